"""What counts as the same as an original's result, and what follows from a comparison."""

from __future__ import annotations

import itertools
import re
import threading
import warnings
from collections import UserDict
from fractions import Fraction
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import torch
from torchvision_shim import torchvision_v2

from fastloop.adapters import originals
from fastloop.compat import verification
from fastloop.compat.verification import Verification, runs_original, same_bits

_TABLE = Path(originals.__file__).with_suffix(".txt")

NAN = torch.tensor([float("nan"), 1.0])
SAME: list[Any] = [
    (NAN, NAN.clone()),
    ((torch.ones(2, 3), 4), (torch.ones(2, 3), 4)),
    (UserDict(a=NAN, b="x"), UserDict(a=NAN.clone(), b="x")),
]
OTHERS: list[Any] = [
    (torch.tensor([0.0]), torch.tensor([-0.0])),
    (torch.ones(2, 3), torch.ones(3, 2).t()),
    (torch.ones(2), torch.ones(2, dtype=torch.float64)),
    (torch.ones(2), torch.nn.Parameter(torch.ones(2))),
    ([NAN], (NAN,)),
    ([NAN], [NAN, NAN]),
    ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
    (1, 1.0),
]


def test_bits_strides_classes_and_order_count() -> None:
    assert all(same_bits(a, b) for a, b in SAME)
    assert not any(same_bits(a, b) for a, b in OTHERS)


def test_a_class_that_a_release_does_not_have_hides_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names = "Gone.method", "Fraction.limit_denominator"
    entries = [originals.Entry("fractions", name, frozenset([""]), ()) for name in names]
    monkeypatch.setattr(originals, "_read_table", lambda: {"group": entries})
    methods = originals.methods_of.__wrapped__("group")
    assert methods.find_replaced() == ""
    monkeypatch.setattr(Fraction, "limit_denominator", lambda self: self)
    assert methods.find_replaced() == "Fraction.limit_denominator"


def draw_none(generator: torch.Generator) -> Any:
    return torch.zeros(1)


def draw_one() -> Any:
    assert runs_original()
    return torch.rand(1) * 0


def test_numbers_that_are_not_drawn_leave_the_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verification, "is_alone", lambda: True)  # whatever earlier tests have left
    checked = Verification("zeros", "torch's", 2)
    with pytest.warns(RuntimeWarning, match="fastloop's zeros differ from torch's"):
        checked.compare(draw_one, draw_none)
    assert checked.falls_back and checked.run(lambda: 1, lambda generator: 2) == 1


@pytest.mark.filterwarnings("error")
def test_numbers_that_another_thread_may_have_drawn_decide_nothing() -> None:
    checked, end = Verification("zeros", "torch's", 2), threading.Event()
    thread = threading.Thread(target=end.wait, daemon=True)
    thread.start()
    checked.compare(draw_one, draw_none)
    assert (checked.falls_back, checked.unchecked) == (False, 2)
    with warnings.catch_warnings(record=True) as seen:  # another thread changes no other bits
        warnings.simplefilter("always")
        checked.compare(lambda: torch.ones(1), draw_none)
    end.set()
    thread.join()
    assert checked.falls_back and len(seen) == 1


def test_comparisons_of_unknown_code_take_a_fiftieth_of_the_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also of the time after a pause, in which no sample was made."""
    clock = [100.0]
    monkeypatch.setattr(verification, "perf_counter", lambda: clock[0])

    def original() -> int:
        clock[0] += 1
        return 3

    checked = Verification("threes", "Python's", 1, is_known=False)
    compared = []
    for sample in range(64 * 100):
        clock[0] += 0.1 + 9999 * (sample == 640)
        if checked.is_due():
            checked.compare(original, lambda generator: 3)
            compared.append(sample)
    assert compared[:4] == [0, 511, 703, 1215] and not checked.falls_back
    gaps = {b - a for a, b in itertools.pairwise(compared)}
    assert gaps == {511, 192, 512} and len(compared) == 14


@pytest.mark.filterwarnings("error")
def test_a_sample_that_c_refuses_is_the_originals() -> None:
    def refuse(generator: torch.Generator) -> Any:
        raise ValueError("too large")

    checked = Verification("fives", "Python's", 1)
    assert checked.run(lambda: 5, refuse) == 5 and checked.unchecked == 1
    assert checked.run(lambda: 5, lambda generator: 5) == 5 and checked.unchecked == 0
    assert checked.run(lambda: 5, lambda generator: 6) == 6  # no longer compared
    assert checked.run(lambda: 5, refuse) == 5 and not checked.falls_back


def test_an_error_of_the_original_ends_the_comparison() -> None:
    def fail() -> Any:
        raise ZeroDivisionError

    checked = Verification("zeros", "torch's", 1)
    with pytest.raises(ZeroDivisionError):
        checked.compare(fail, draw_none)
    assert not runs_original() and checked.unchecked == 1


@pytest.mark.parametrize(
    ("packages", "groups"),
    [
        (["torchvision"], ["transforms", "transforms.v2", "arrays"]),
        (["transformers", "datasets"], ["collators"]),
    ],
)
def test_code_is_known_of_the_releases_that_the_table_names(
    packages: list[str], groups: list[str]
) -> None:
    heading = _TABLE.read_text().split("\n\n")[0].replace("\n#", "")
    is_named = True
    torchvision_v2()  # imports it where torch's build lacks operators that it needs
    for name in packages:
        pytest.importorskip(name)
        release = ".".join(version(name).split(".")[:2])
        named = re.search(rf"{name} (\d+\.\d+(?: and \d+\.\d+)*)", heading)
        is_named &= named is not None and release in named[1].split(" and ")
    users = frozenset(user for entry in originals.entries_of(groups) for user in entry.users)
    assert users and bool(originals.find_unknown(*users)) != is_named
