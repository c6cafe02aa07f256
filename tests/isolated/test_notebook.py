"""The notebook of the examples: its cells run in their order, and the results show themselves."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from sources import ROOT
from time_limits import limit

pytestmark = pytest.mark.slowest

NOTEBOOK = ROOT / "examples/quickstart.ipynb"


def code_cells() -> list[str]:
    notebook = json.loads(NOTEBOOK.read_text())
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert not any(cell["outputs"] for cell in cells), "clear the outputs before you commit"
    return ["".join(cell["source"]) for cell in cells]


def test_the_cells_run_one_after_the_other(tmp_path: Path) -> None:
    (tmp_path / "cells.py").write_text("\n\n".join(code_cells()))
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, "cells.py"]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=limit(300)
    )
    assert done.returncode == 0, done.stderr


BLOCK = """
import sys
import torch, fastloop
parameter = torch.zeros(1, requires_grad=True)
optimizer = torch.optim.SGD([parameter], 0.1)
with fastloop.report() as r:
    for x in torch.utils.data.DataLoader(torch.ones(64, 1), 2):
        parameter.grad = x[0]
        optimizer.step()
"""


@pytest.mark.parametrize("last", ["", "r", "1 / 0"])
def test_a_report_is_shown_once(tmp_path: Path, last: str) -> None:
    """The last expression of a cell shows it, or else the end of the cell."""
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel")
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(BLOCK + last)])
    notebook.metadata.kernelspec = {"name": "python3", "display_name": "python3"}
    nbclient.NotebookClient(
        notebook,
        timeout=int(limit(300)),
        allow_errors=True,
        resources={"metadata": {"path": tmp_path}},
    ).execute()
    outputs = notebook.cells[0].outputs
    texts = [output.get("data", {}).get("text/html", output.get("text", "")) for output in outputs]
    (shown,) = (text for text in texts if "INPUT-BOUND" in text)
    assert shown.startswith("<iframe"), texts


def test_a_kernel_shows_the_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    notebook = nbformat.read(NOTEBOOK, 4)
    notebook.metadata.kernelspec.name = "python3"
    nbclient.NotebookClient(
        notebook, timeout=int(limit(300)), resources={"metadata": {"path": tmp_path}}
    ).execute()
    shown: list[Any] = [
        output["data"]
        for cell in notebook.cells
        for output in cell.get("outputs", [])
        if output["output_type"] == "execute_result"
    ]
    loader, report, *results = shown
    assert loader["text/plain"].startswith(
        "DataLoader(ArrayDataset, 4,000 rows, batch 64, 2 workers"
    )
    assert "<iframe" in report["text/html"] and "fastloop report" in report["text/html"]
    # The measured loaders may be as fast as the present one.
    words = ["LoaderStats", "num_workers=", "batch_size=", "dataloader 1 native"]
    for word, data in zip(words, results, strict=True):
        assert "<pre" in data["text/html"] and word in data["text/html"]
