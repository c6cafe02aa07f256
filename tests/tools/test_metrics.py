"""report(metrics=...) and run --metrics: what Prometheus' own client reads, from a file and from a
port, and that nothing about metrics ends a training."""

from __future__ import annotations

import errno
import os
import re
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from helpers import run_script
from time_limits import limit

import fastloop
from fastloop.cli.run import main
from fastloop.device.accelerator import HostAccelerator
from fastloop.tools.report import files, updates
from fastloop.tools.report.gpu import GpuUsage
from fastloop.tools.report.loader_source import LoaderSource
from fastloop.tools.report.ranks import Comparison, Ranks

prometheus_client = pytest.importorskip("prometheus_client")
from prometheus_client.openmetrics.parser import text_string_to_metric_families  # noqa: E402
from prometheus_client.parser import (  # noqa: E402
    text_string_to_metric_families as text_to_families,
)

from fastloop.tools.watch.metrics import Metrics  # noqa: E402

ROOT = Path(__file__).parent.parent.parent
Samples = dict[tuple[str, ...], float]


def samples_of(text: str, parse: Any = text_string_to_metric_families) -> Samples:
    """By name, loader and cause."""
    samples = [sample for family in parse(text) for sample in family.samples]
    names = "loader", "cause"
    return {(s.name, *(s.labels[n] for n in names if n in s.labels)): s.value for s in samples}


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def train(metrics: Any, call: Any = lambda update: None, steps: int = 10) -> None:
    data = torch.utils.data.TensorDataset(torch.zeros(4 * steps, 2))
    parameter = torch.zeros(4, requires_grad=True)
    optimizer = torch.optim.SGD([parameter], 0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    report = fastloop.report(verbose=False, metrics=metrics)
    report.on_update(call, 0)
    loader = fastloop.DataLoader(data, 4, num_workers=1, name="train")
    with report:
        for _ in loader:
            scaler.scale(parameter.sum()).backward()
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(parameter, 0.1)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        list(fastloop.DataLoader(range(3), num_workers=1, path="process"))  # type: ignore[arg-type, var-annotated]


def test_a_file_has_the_names_of_the_reference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found_ranks = Comparison({0: 0.02, 1: 0.31}, 1, "rank 1 waits")
    monkeypatch.setattr(Ranks, "compare", lambda self: found_ranks)
    monkeypatch.setattr(GpuUsage, "look", lambda self: setattr(self, "busy", 0.5))
    train(tmp_path / "run.prom")
    assert os.listdir(tmp_path) == ["run.prom"]
    text = (tmp_path / "run.prom").read_text()
    families = {family.name: family for family in text_string_to_metric_families(text)}
    page = (ROOT / "docs/api/tools.md").read_text()
    rows = re.findall(r"^\| `(fastloop_\w+)` \| (\w+) \|([^|]*)\|", page, re.MULTILINE)
    assert {name: (kind, {"rank", *re.findall(r"\w+", cell)}) for name, kind, cell in rows} == {
        name: (family.type, {*family.samples[-1].labels}) for name, family in families.items()
    }
    assert 'fastloop_rank_wait_share{rank="1"} 0.31' in text
    found = samples_of(text)
    assert found["fastloop_slowest_rank",] == 1
    assert found["fastloop_steps_total",] == 10
    assert found["fastloop_batches_total", "train"] == 10
    assert found["fastloop_samples_total", "train"] == 40
    (other,) = [key for key in found if key[0] == "fastloop_batches_total" and key[1] != "train"]
    assert re.fullmatch(r"range \S+:\d+", other[1]) and found[other] == 3
    assert ("fastloop_samples_total", other[1]) not in found
    assert found["fastloop_first_batch_seconds_total", "train"] > 0
    assert found["fastloop_wait_seconds_total", "train", "none"] > 0
    assert found["fastloop_resident_memory_bytes",] > 1 << 20
    assert (found["fastloop_scale",], found["fastloop_gradient_norm",]) == (8, 2)
    assert found["fastloop_device_busy",] == 0.5 and found["fastloop_slots_lent", "train"] == 1


def test_a_reader_always_finds_a_whole_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fastloop.tools.watch.report._FILE_S", 0)
    path, seen, is_over = tmp_path / "run.prom", list[float](), threading.Event()

    def read() -> None:
        while not is_over.is_set():
            if path.exists():  # the client's parser raises if the end is missing
                seen.append(samples_of(path.read_text())["fastloop_steps_total",])

    with ThreadPoolExecutor(1) as pool:
        reader = pool.submit(read)

        def wait(update: Any) -> None:
            before = len(seen)
            while update.steps > 0 and len(seen) == before and not reader.done():
                time.sleep(0.001)

        train(path, wait, steps=30)
        is_over.set()
        reader.result()
    assert len(set(seen)) > 20 and seen == sorted(seen)


def test_waits_are_counted_by_length() -> None:
    """Loaders of one name are added up."""
    metrics, source = Metrics(Path("none")), LoaderSource(object())
    for ms in (0.05, 0.1, 0.11, 99, 20_000):
        source.note_wait("none", round(ms * 1e6))
    one = updates._describe(source)
    (family,) = [metrics._make_histogram([one, one])]
    found = {
        (s.name, s.labels.get("le")): s.value for s in family.samples if s.labels["cause"] == "none"
    }
    bounds = "0.0001", "0.001", "0.01", "0.1", "1.0", "10.0", "+Inf"
    name = "fastloop_batch_wait_seconds"
    assert [found[f"{name}_bucket", bound] for bound in bounds] == [4, 6, 6, 8, 8, 8, 10]
    assert found[f"{name}_count", None] == 10
    assert found[f"{name}_sum", None] == pytest.approx(2 * 20.09926)


def test_a_forked_child_does_not_keep_the_port(tmp_path: Path) -> None:
    script = f"""
import os, socket, time, torch, fastloop
port = {free_port()}
optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], 0.1)
report = fastloop.report(verbose=False, metrics=f":{{port}}")
with report:
    for batch in torch.utils.data.DataLoader(range(3)):
        optimizer.step()
        report._updates.tell((1 << 60) + (int(batch) << 40))  # a later time; opens the port
    assert report._updates._callbacks[0].call._server is not None
    ours, theirs = os.pipe()
    if os.fork() == 0:
        os.close(theirs)
        os.read(ours, 1)  # until the parent has ended
        os._exit(0)
    os.close(ours)
with socket.socket() as one:
    one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    one.bind(("127.0.0.1", port))
    one.listen()
print("free")
"""
    assert run_script(tmp_path, script) == "free\n"


def test_a_port_is_scraped_while_the_loop_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside a metric of the same name in the program's own registry."""
    monkeypatch.setattr("fastloop.tools.watch.report._PORT_S", 0)
    own = prometheus_client.Counter("fastloop_steps", "of the program")
    port, seen = free_port(), list[float]()

    def scrape(update: Any) -> None:
        if update.steps > 0 and not update.is_last:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=limit(10)) as r:
                found = samples_of(r.read().decode(), text_to_families)
            seen.append(found["fastloop_steps_total",])
            assert found["fastloop_workers", "train"] == 1 or update.steps == 10

    try:
        for _ in range(2):  # the port is free again
            train(f":{port}", scrape)
    finally:
        prometheus_client.REGISTRY.unregister(own)
    assert seen == [*range(1, 11), *[10] * 4] * 2  # also before and after batches of validation
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port))


def test_ranks_have_files_and_ports_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "2")
    train(tmp_path / "run.prom")
    assert os.listdir(tmp_path) == ["run.rank2.prom"]
    assert 'fastloop_steps_total{rank="2"} 10' in (tmp_path / "run.rank2.prom").read_text()
    ports = list[int]()
    monkeypatch.setattr(
        "fastloop.tools.watch.metrics.start_http_server",
        lambda port, host, registry: ports.append((port, host)) or 1 / 0,
    )
    train(":9100")
    train("0.0.0.0:9200")
    assert ports == [(9102, "127.0.0.1"), (9202, "0.0.0.0")]


@pytest.mark.parametrize("fault", ["port", "folder", "disk", "rank"])
def test_a_target_that_cannot_be_used_is_told_once(
    fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("fastloop.tools.watch.report._PORT_S", 0)
    monkeypatch.setattr("fastloop.tools.watch.report._FILE_S", 0)
    target: Any = tmp_path / "no" / "run.prom"
    steps = []
    with socket.socket() as taken:
        if fault == "port":
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            target = f":{taken.getsockname()[1]}"
        elif fault == "rank":
            monkeypatch.setenv("RANK", "5000")
            target = ":65535"
        elif fault == "disk":
            target = tmp_path / "run.prom"
            full = OSError(errno.ENOSPC, "No space left on device")
            monkeypatch.setattr(files.os, "replace", lambda *args: (_ for _ in ()).throw(full))
        train(target, lambda update: steps.append(update.steps))
    assert steps[-1] == 10
    err = capsys.readouterr().err
    assert err.count("fastloop: metrics cannot go to ") == 1 == err.count("\n"), err
    assert os.listdir(tmp_path) == []


def test_a_pipe_stays_a_pipe(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    text = f"metrics and reports go to regular files, got {str(pipe)!r}; name a different file"
    train(pipe)
    assert pipe.is_fifo() and os.listdir(tmp_path) == ["pipe"]
    assert text in capsys.readouterr().err
    assert main([f"--metrics={pipe}", "script.py"]) == 2
    assert text in capsys.readouterr().err


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    folder, link = tmp_path / "folder", tmp_path / "link"
    folder.mkdir()
    link.symlink_to(folder / "run.prom")
    for _ in range(2):  # the file exists in the second round only
        train(link)
        assert link.is_symlink() and os.listdir(folder) == ["run.prom"]
        assert "fastloop_steps_total" in link.read_text()
        link.write_text("")


def test_a_name_that_utf_8_has_not_is_shown(tmp_path: Path) -> None:
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], 0.1)
    with fastloop.report(tmp_path / "run.json", verbose=False, metrics=tmp_path / "run.prom"):
        for _ in fastloop.DataLoader(range(3), name="a\ud800"):  # type: ignore[arg-type, var-annotated]
            optimizer.step()
    assert samples_of((tmp_path / "run.prom").read_text())["fastloop_batches_total", "a?"] == 3
    assert (tmp_path / "run.json").exists()


def test_a_launcher_leaves_file_and_port_alone(tmp_path: Path) -> None:
    with fastloop.report(verbose=False, metrics=tmp_path / "run.prom"):
        list(fastloop.DataLoader(range(3)))  # type: ignore[arg-type, var-annotated]
    assert os.listdir(tmp_path) == []


def test_uploads_are_added_up_over_iterators() -> None:
    first, second = (HostAccelerator(torch.device("cpu")) for _ in range(2))
    below = SimpleNamespace(_destination=SimpleNamespace(_accelerator=second))
    source = LoaderSource(object())
    for _ in range(2):  # persistent workers keep their iterator
        source.use_uploads(SimpleNamespace(_accelerator=first))
        first.allocate(5)
    source.use_uploads(below)
    second.allocate(100)
    source.use_uploads(SimpleNamespace(_accelerator="of the program"))
    assert source.count_uploaded() == 110


@pytest.mark.parametrize("workers", [0, 1])
def test_uploads_of_a_loader_are_seen(workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The CPU stands in for a device that has no batch yet."""
    monkeypatch.setattr(HostAccelerator, "holds", lambda self, tensor: False)
    monkeypatch.setattr(HostAccelerator, "is_pinned", lambda self, tensor: False)
    unpinned = lambda self, size: torch.empty(size, dtype=torch.uint8)  # noqa: E731
    monkeypatch.setattr(HostAccelerator, "allocate_pinned", unpinned)
    data = torch.utils.data.TensorDataset(torch.zeros(40, 16))
    loader = fastloop.DataLoader(data, 4, num_workers=workers, device="cpu", device_transform=list)
    seen = list[fastloop.Update]()
    report = fastloop.report(verbose=False)
    report.on_update(seen.append)
    with report:
        for _ in range(2):
            list(loader)
    (one,) = seen[-1].loaders
    assert one.uploaded_bytes == 2 * 40 * 16 * 4


@pytest.mark.parametrize(
    ("target", "text"),
    [
        ("", "metrics must be a file, :PORT or HOST:PORT, got ''"),
        (":x", "metrics must be a file, :PORT or HOST:PORT, got ':x'"),
        (":0", "metrics must be a file, :PORT or HOST:PORT, got ':0'"),
        ("node:65536", "metrics must be a file, :PORT or HOST:PORT, got 'node:65536'"),
        ("no/run.prom", "there is no folder "),
        (".", "go to regular files, got "),
    ],
)
def test_wrong_targets_are_errors_at_the_start(
    target: str, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([f"--metrics={target}", "script.py"]) == 2
    assert text in capsys.readouterr().err
    if text.startswith("metrics"):
        with pytest.raises(ValueError, match=re.escape(text)):
            fastloop.report(metrics=target)


def test_a_missing_client_is_an_error_at_the_start(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("fastloop.tools.watch.options.find_spec", lambda name: None)
    assert main(["--metrics=:9100", "script.py"]) == 2
    assert "run `pip install prometheus-client`" in capsys.readouterr().err
    with pytest.raises(ImportError, match="prometheus_client"):
        fastloop.report(metrics=":9100")


@pytest.mark.slow
def test_run_writes_metrics_of_a_script(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text((ROOT / "tests/programs/report_loop.py").read_text())
    command = [sys.executable, "-m", "fastloop", "run", "--metrics=run.prom", "--watch=60"]
    command += ["script.py", "exit"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, timeout=limit(300))
    assert done.returncode == 3, done.stderr
    assert done.stderr.count(b"fastloop: step 3, ") == 1  # a log, in the end
    found = samples_of((tmp_path / "run.prom").read_text())
    assert found["fastloop_steps_total",] == 3
    assert found["fastloop_batches_total", "TensorDataset script.py:12"] == 3
