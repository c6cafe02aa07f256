"""What is said of a worker that SIGKILL has ended: lack of memory only where memory is scarce."""

import os
import re
import signal
import warnings

import pytest
from torch.utils.data import Dataset

from fastloop import DataLoader
from fastloop.base import machine


class KillsItself(Dataset[int]):
    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        os.kill(os.getpid(), signal.SIGKILL)
        return index


@pytest.mark.parametrize(
    ("available", "text", "absent"),
    [
        (22, "A program or a user has killed it, or the system for lack of memory", "Most likely"),
        (1, "Most likely the system was out of memory: ", "A program or a user"),
    ],
)
def test_memory_is_blamed_where_it_is_scarce(
    available: int, text: str, absent: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = {"MemTotal": 23 << 20, "MemAvailable": available << 20}  # KiB
    monkeypatch.setattr(machine, "read_table", lambda path: table)
    monkeypatch.setattr(machine, "list_groups", lambda controller, root: [])
    loader = DataLoader(KillsItself(), 2, num_workers=1, path="process", memory_budget=1 << 20)
    with pytest.raises(RuntimeError, match="SIGKILL") as raised:
        list(loader)
    assert text in str(raised.value) and absent not in str(raised.value)
    assert re.search(rf"{available}\.0 of 23\.0 GiB of memory", str(raised.value))


class Ends(KillsItself):
    def __getitem__(self, index: int) -> int:
        os._exit(3)


@pytest.mark.parametrize("answer", ["raise", "restart"])
def test_the_last_words_of_a_worker_end_without_a_blank(answer: str) -> None:
    loader = DataLoader(Ends(), 2, num_workers=1, path="process", on_worker_death=answer)
    found = pytest.raises(RuntimeError, match=r"exit code 3; it was ")
    with warnings.catch_warnings(record=True) as caught, found as raised:
        list(loader)
    texts = [str(raised.value), *(str(each.message) for each in caught)]
    assert not any(re.search(r"  |\s$", text) for text in texts)
