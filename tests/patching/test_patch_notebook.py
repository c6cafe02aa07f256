"""%load_ext fastloop and %unload_ext fastloop, without IPython and with it."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers import run_program


def test_the_extension_comes_late_and_goes_without_a_trace(tmp_path: Path) -> None:
    text = (
        "fastloop: dataloader 0 native; grad_scaler 0 native; clip_grad_norm 1 native; "
        "transforms 0 native; texts 0 native"
    )
    printed = run_program(
        tmp_path,
        "patch_notebook/the_extension_comes_late_and_goes_without_a_trace",
        stderr=text,
        is_fresh=True,
    ).splitlines()
    every = "['dataloader', 'grad_scaler', 'clip_grad_norm', 'transforms', 'texts']"
    assert printed == [f"{every} False", "[] True"]


@pytest.mark.parametrize(("then", "is_on"), [("stay", True), ("unload", False)])
def test_the_extension_may_come_before_torch(tmp_path: Path, then: str, is_on: bool) -> None:
    stderr = "on for dataloader, grad_scaler" if is_on else ""
    printed = run_program(
        tmp_path,
        "patch_notebook/the_extension_may_come_before_torch",
        then,
        stderr=stderr,
        is_fresh=True,
    ).splitlines()
    assert printed == ["False", str(is_on)]


def test_one_word_switches_it_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FASTLOOP", "0")
    printed = run_program(
        tmp_path,
        "patch_notebook/the_extension_may_come_before_torch",
        "stay",
        stderr="FASTLOOP=0 is set",
        is_fresh=True,
    )
    assert printed.splitlines() == ["False", "False"]


def test_ipython_loads_and_unloads_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("IPython", reason="IPython is not here")
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    printed = run_program(
        tmp_path,
        "patch_notebook/ipython_loads_and_unloads_it",
        stderr="on for dataloader",
        is_fresh=True,
    )
    assert printed.splitlines()[-2:] == [str([True] * 5), str([False] * 5)]
