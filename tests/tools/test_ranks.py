"""The ranks of a training, compared while the training runs: the slowest rank by name, with its
cause, and that no rank waits for a rank, whichever rank dies. tests/support/watched_ranks.py holds
what real ranks run."""

from __future__ import annotations

import ast
import errno
import json
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from helpers import run_ranks

from fastloop.tools.report import ranks
from fastloop.tools.report.observer import NEVER
from fastloop.tools.report.ranks import Ranks

MS = 1_000_000
Make = Callable[..., Any]


class Rank:
    """A rank whose numbers a test moves."""

    def __init__(self, number: int) -> None:
        self.number = number
        source = SimpleNamespace(trains=True, made=[0, 0, 0])
        recorder = SimpleNamespace(
            waited=0, after_update=0, computed=0, elapsed=lambda: self.elapsed
        )
        recorder.steps, recorder.totals = SimpleNamespace(count=0), SimpleNamespace(steps=0)
        self.observer = SimpleNamespace(recorder=recorder, sources=[source], cpu_wait=0)
        self.observer.waits = SimpleNamespace(computed=0)  # no GPU
        self.source, self.recorder, self.elapsed = source, recorder, 0
        self.ranks = Ranks(self.observer)

    def run(
        self,
        steps: int,
        wait: float = 0,
        after: float = 0,
        delayed: float = 0,
        cpu: float = 1,
        computed: float = 0,
    ) -> None:
        """Steps of 10 ms; so many ms are lost in each."""
        self.recorder.steps.count += steps
        self.recorder.totals.steps += steps * 10 * MS
        self.elapsed = self.recorder.totals.steps
        self.recorder.waited += round(steps * wait * MS)
        self.recorder.after_update += round(steps * after * MS)
        self.recorder.computed += round(steps * computed * MS)
        self.observer.cpu_wait += round(steps * delayed * MS)
        made = round(steps * wait * MS)
        self.source.made = [self.source.made[0] + made, self.source.made[1] + round(made * cpu), 0]


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    """A function that makes ranks, which talk through a real socket."""
    with socket.socket(type=socket.SOCK_DGRAM) as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    monkeypatch.setenv("MASTER_ADDR", "localhost")
    monkeypatch.setenv("MASTER_PORT", str(port))
    made: list[Rank] = []

    def make(world: int) -> list[Rank]:
        monkeypatch.setattr(dist, "is_initialized", lambda: True)
        monkeypatch.setattr(dist, "get_world_size", lambda: world)
        for number in range(world):
            monkeypatch.setattr(dist, "get_rank", lambda number=number: number)
            monkeypatch.setattr(Ranks, "_process", 0)  # in truth each is a process
            made.append(Rank(number))
            exchange(made[-1:])
        return made

    yield make
    for rank in made:
        rank.ranks.close()


def exchange(all_ranks: list[Rank], now: float = 0) -> None:
    """Rank 0 comes last."""
    for rank in reversed(all_ranks):
        rank.ranks.exchange(round(now * 1e9))


def warm(all_ranks: list[Rank]) -> None:
    for rank in all_ranks:
        rank.run(20)
    exchange(all_ranks)


@pytest.mark.parametrize(
    ("losses", "text"),
    [
        ({"wait": 3, "cpu": 0.2}, "rank 2 waits for storage 30% of each step; the others 1.0%"),
        ({"wait": 3, "cpu": 0.9}, "rank 2 waits for data 30% of each step; the others 1.0%"),
        ({"delayed": 4}, "rank 2 has no CPU for 40% of each step; the others 0%"),
        ({"after": 3}, "rank 2 runs your other code for 30% of each step; the others 0%"),
        (
            {"computed": 6},
            "rank 2 runs forward and backward for 60% of each step; the others 40%",
        ),
        ({"computed": 9, "delayed": 4}, "rank 2 has no CPU for 40% of each step; the others 0%"),
        ({"computed": 4.9}, ""),
        ({"computed": 0}, ""),  # a parameter that has no gradient there
        ({"wait": 1}, ""),  # 9 points more than the others
    ],
)
def test_the_slowest_rank_is_named_with_its_cause(
    start: Make, losses: dict[str, float], text: str
) -> None:
    four = start(4)
    warm(four)
    for rank in four:
        rank.run(10, **{"wait": 0.1, "computed": 4, **(losses if rank.number == 2 else {})})
    exchange(four)
    found = four[0].ranks.compare()
    assert (found.slowest, found.text) == ((2, text) if text else (None, ""))
    assert found.waits[1] == pytest.approx(0.01)
    assert four[0].ranks.describe()["text"] == text
    assert four[1].ranks.compare().waits == {} and four[1].ranks.describe() is None


def test_a_rank_that_waits_for_a_slow_rank_is_not_blamed(start: Make) -> None:
    """Rank 0 of two waits for rank 1 by .item(), in code after the update."""
    two = start(2)
    warm(two)
    two[0].run(50, after=5)
    two[1].run(50)
    exchange(two)
    assert two[0].ranks.compare().slowest is None


@pytest.mark.parametrize("fast", [4, 0])
def test_the_slow_one_of_two_devices_is_named_if_both_are_known(start: Make, fast: int) -> None:
    two = start(2)
    warm(two)
    two[0].run(50, computed=fast)
    two[1].run(50, computed=8)
    exchange(two)
    text = "rank 1 runs forward and backward for 80% of each step; the others 40%"
    assert two[0].ranks.compare()[1:] == ((1, text) if fast else (None, ""))


def test_half_the_devices_that_are_slow_are_not_blamed(start: Make) -> None:
    four = start(4)
    warm(four)
    for rank in four:
        rank.run(50, computed=4 + 2 * (rank.number % 2))
    exchange(four)
    assert four[0].ranks.compare().slowest is None


def test_hooks_leave_parameters_with_the_report(monkeypatch: pytest.MonkeyPatch) -> None:
    rank, noted = Rank(0), []
    rank.observer.note_gradient = noted.append
    frozen, first = torch.zeros(2), torch.zeros(2, requires_grad=True)
    inner = first * 1
    groups = [{"params": [frozen, first]}]
    optimizer = SimpleNamespace(param_groups=groups)
    rank.ranks.watch(optimizer)  # without ranks
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "get_world_size", lambda: 2)
    rank.ranks.watch(SimpleNamespace(param_groups=[{"params": [inner]}]))  # not a leaf
    sharded = torch.zeros(2, requires_grad=True)
    sharded.device_mesh = "as a DTensor's"  # type: ignore[attr-defined]
    rank.ranks.watch(SimpleNamespace(param_groups=[{"params": [sharded, first]}]))
    (first.sum() + sharded.sum()).backward()
    assert noted == []
    rank.ranks.watch(optimizer)
    first.sum().backward()
    assert len(noted) == 1 and noted[0] is first
    rank.ranks.close()
    first.sum().backward()
    assert len(noted) == 1


def test_half_the_ranks_that_wait_for_the_other_half_are_not_blamed(start: Make) -> None:
    four = start(4)
    warm(four)
    for rank in four:
        rank.run(50, after=5 * (rank.number % 2))
    exchange(four)
    assert four[0].ranks.compare().slowest is None


def test_the_warm_up_does_not_count(start: Make) -> None:
    two = start(2)
    two[0].run(20)
    two[1].run(20, wait=9)
    exchange(two)
    assert two[0].ranks.compare().waits == {}
    two[0].run(20)
    two[1].run(20)
    exchange(two)
    assert two[0].ranks.compare() == ({0: 0.0, 1: 0.0}, None, "")


def test_an_update_is_about_the_last_seconds_and_a_report_about_all(start: Make) -> None:
    two = start(2)
    warm(two)
    for second in range(1, 60):
        two[0].run(20)
        two[1].run(20, wait=5 if second <= 30 else 0)
        exchange(two, second)
    assert two[0].ranks.compare().slowest is None
    assert two[0].ranks.describe()["slowest"] == 1


def test_a_rank_that_is_silent_drops_out(start: Make) -> None:
    three = start(3)
    warm(three)
    for second in range(1, 40):
        for rank in three:
            rank.run(20, wait=5 if rank.number == 2 else 0)
        exchange(three if second < 5 else three[:2], second)
    assert three[0].ranks.compare() == ({0: 0.0, 1: 0.0}, None, "")
    assert three[0].ranks.describe()["slowest"] == 2  # what was heard counts


def test_a_rank_whose_last_report_is_heard_late_begins_anew(start: Make) -> None:
    two = start(2)
    two[1].run(200)
    exchange(two)
    two[1].run(-200)
    warm(two)
    two[0].run(10)
    two[1].run(10, wait=5)
    exchange(two)
    assert two[0].ranks.describe()["slowest"] == 1


def test_datagrams_of_others_are_left_out(start: Make) -> None:
    two = start(2)
    warm(two)
    form, magic = ranks._FORM, ranks._MAGIC
    zeros = [0] * 9
    strangers = [b"", b"x" * form.size, form.pack(magic, 1, 2, *zeros)[:-1], b"x" * 60_000]
    strangers += [form.pack(b"theirs", 1, 2, *zeros)]
    strangers += [form.pack(magic, rank, world, *zeros) for rank, world in ((0, 2), (2, 2), (1, 3))]
    with socket.socket(type=socket.SOCK_DGRAM) as one:
        for data in strangers:
            one.sendto(data, ("127.0.0.1", int(os.environ["MASTER_PORT"])))
    before = {**two[0].ranks._latest}
    exchange(two[:1])
    assert two[0].ranks._latest == before


def test_a_taken_port_is_said_in_the_report(start: Make) -> None:
    with socket.socket(type=socket.SOCK_DGRAM) as taken:
        taken.bind(("", int(os.environ["MASTER_PORT"])))
        two = start(2)
        warm(two)
    assert two[0].ranks.describe() == {
        "waits": {},
        "slowest": None,
        "text": "1 of 2 were never heard",
    }


def test_an_unknown_address_is_asked_for_once(start: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MASTER_PORT", "no port")
    (rank, _) = start(2)
    assert rank.ranks.due == NEVER and rank.ranks.describe() is None


def test_without_a_socket_the_training_goes_on(
    start: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: Any) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(socket, "socket", fail)
    (rank, _) = start(2)
    assert rank.ranks.due == NEVER and rank.ranks.describe() is None


def test_a_forked_child_has_no_socket(start: Make) -> None:
    two = start(2)
    if (pid := os.fork()) == 0:
        os._exit(sum(rank.ranks._socket.fileno() >= 0 for rank in two))
    assert os.waitpid(pid, 0)[1] == 0


def test_a_second_report_leaves_the_ranks_to_the_first(
    start: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    two = start(2)
    monkeypatch.setattr(dist, "get_rank", lambda: 0)
    second = Rank(0)
    second.ranks.exchange(0)
    assert second.ranks.describe() is None
    two[0].ranks.close()
    second.ranks.exchange(0)
    assert second.ranks.describe() is not None
    second.ranks.close()


def test_without_ranks_there_is_no_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "socket", None)
    monkeypatch.setenv("MASTER_ADDR", "localhost")
    monkeypatch.setenv("MASTER_PORT", "1")
    rank = Rank(0)
    rank.ranks.exchange(7)
    assert rank.ranks.describe() is None and 7 < rank.ranks.due < NEVER


# ---- real ranks


@pytest.mark.slowest
def test_ranks_under_ddp_name_the_straggler(tmp_path: Path) -> None:
    first, *_ = run_ranks(tmp_path, "watched_ranks.py", "straggler", ranks=3)
    text = "rank 2 waits for storage 33% of each step; the others 1.0%"
    assert f"waits 1.0% (no batch ready 1.0%); {text}\n" in first, first
    (line,) = [line for line in first.splitlines() if line.startswith("{")]
    found, end = json.JSONDecoder().raw_decode(line)
    assert found["slowest"] == 2 and found["text"] == text and sorted(found["waits"]) == [*"012"]
    assert line[end:].startswith(" NOT INPUT-BOUND") and line.endswith(f" But {text}.")


@pytest.mark.slowest
def test_ranks_under_ddp_name_the_slow_device(tmp_path: Path) -> None:
    first, *_ = run_ranks(tmp_path, "watched_ranks.py", "slow_device", ranks=3)
    text = "rank 2 runs forward and backward for 75% of each step; the others 50%"
    assert f"slow {text}" in first, first


@pytest.mark.slowest
@pytest.mark.parametrize("dying", [0, 1])
def test_ranks_go_on_when_a_rank_dies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dying: int
) -> None:
    monkeypatch.setenv("DYING", str(dying))
    outputs = run_ranks(tmp_path, "watched_ranks.py", "dies")
    assert [output.count("dies fine") for output in outputs] == [int(r != dying) for r in range(2)]
    if dying:
        heard = ast.literal_eval(outputs[0].partition("heard ")[2].splitlines()[0])
        assert heard[-1] == [0]
