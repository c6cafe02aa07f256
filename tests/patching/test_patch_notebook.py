"""%load_ext fastloop and %unload_ext fastloop, without IPython and with it."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers import run_script

LATE = """
import sys
import torch
from torch.nn.utils import clip_grad_norm_
import fastloop
shell = object()
torchs = torch.amp.GradScaler.unscale_
def on():
    return [name for name, seam in fastloop.patch_status().seams.items() if seam.is_on]
fastloop.load_ipython_extension(shell)
print(on(), torch.amp.GradScaler.unscale_ is torchs)
params = [torch.zeros(2)]
params[0].grad = torch.ones(2)
clip_grad_norm_(params, 1.0)
fastloop.unload_ipython_extension(shell)
print(on(), torch.amp.GradScaler.unscale_ is torchs)
fastloop.patch("dataloader")
fastloop.load_ipython_extension(shell)
fastloop.unload_ipython_extension(shell)
print(on())
"""

EARLY = """
import sys
import fastloop
fastloop.load_ipython_extension(None)
print("torch" in sys.modules)
if sys.argv[1] == "unload":
    fastloop.unload_ipython_extension(None)
import torch
print(fastloop.patch_status().seams["clip_grad_norm"].is_on)
"""


def test_the_extension_comes_late_and_goes_without_a_trace(tmp_path: Path) -> None:
    text = "fastloop: dataloader 0 native; grad_scaler 0 native; clip_grad_norm 1 native"
    printed = run_script(tmp_path, LATE, stderr=text, is_fresh=True).splitlines()
    every = "['dataloader', 'grad_scaler', 'clip_grad_norm']"
    assert printed == [f"{every} False", "[] True", "['dataloader']"]


@pytest.mark.parametrize(("then", "is_on"), [("stay", True), ("unload", False)])
def test_the_extension_may_come_before_torch(tmp_path: Path, then: str, is_on: bool) -> None:
    stderr = "on for dataloader, grad_scaler" if is_on else ""
    printed = run_script(tmp_path, EARLY, then, stderr=stderr, is_fresh=True).splitlines()
    assert printed == ["False", str(is_on)]


def test_one_word_switches_it_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FASTLOOP", "0")
    printed = run_script(tmp_path, EARLY, "stay", stderr="FASTLOOP=0 is set", is_fresh=True)
    assert printed.splitlines() == ["False", "False"]


IPYTHON = """
from IPython.core.interactiveshell import InteractiveShell
import torch, fastloop
shell = InteractiveShell.instance()
for magic in ("load_ext", "unload_ext"):
    shell.run_line_magic(magic, "fastloop")
    print([seam.is_on for seam in fastloop.patch_status().seams.values()])
"""


def test_ipython_loads_and_unloads_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("IPython", reason="IPython is not here")
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    printed = run_script(tmp_path, IPYTHON, stderr="on for dataloader", is_fresh=True)
    assert printed.splitlines()[-2:] == ["[True, True, True]", "[False, False, False]"]
