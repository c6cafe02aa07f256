"""Objects show themselves in a line or a page, and measurements show how far they are."""

import io
import os
import pty
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch
from time_limits import limit
from torch.utils.data import IterableDataset, TensorDataset

import fastloop
from fastloop.tools import text

TRAIN = """
import torch
from torch.utils.data import DataLoader
layer = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
for x in DataLoader(torch.randn(480, 4), batch_size=8):
    layer(x).mean().backward()
    optimizer.step()
"""


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(())


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


# ---- lines


@pytest.mark.parametrize(
    ("dataset", "arguments", "line"),
    [
        (
            TensorDataset(torch.zeros(20_000, 2)),
            {"batch_size": 256, "num_workers": 2},
            "DataLoader(TensorDataset, 20,000 rows, batch 256, 2 workers, path='array')",
        ),
        ([1, 2], {"num_workers": 1}, "DataLoader(list, 2 rows, batch 1, 1 worker, path='array')"),
        (Stream(), {"batch_size": None}, "DataLoader(Stream, path='sync')"),
        (Stream(), {"path": "torch"}, "DataLoader(Stream, batch 1, path='torch')"),
    ],
)
def test_a_loader_is_one_line(dataset: object, arguments: dict[str, object], line: str) -> None:
    assert repr(fastloop.DataLoader(dataset, **arguments)) == line


def test_a_loader_that_is_not_made_yet_has_a_line_too() -> None:
    assert repr(object.__new__(fastloop.DataLoader)).startswith("<fastloop.")


def test_samplers_steppers_and_logs_are_one_line() -> None:
    order = fastloop.ShuffleSampler(10_000, seed=3)
    order.set_epoch(2)
    assert repr(order) == "ShuffleSampler(10,000 indices, seed=3, epoch=2)"
    batches = fastloop.LengthBucketBatchSampler([1, 2], max_tokens=8, num_replicas=2, rank=1)
    line = "LengthBucketBatchSampler(2 samples, max_tokens=8, seed=0, epoch=0, rank 1 of 2)"
    assert repr(batches) == line
    weight = torch.zeros(1, requires_grad=True)
    stepper = fastloop.Stepper(torch.optim.SGD([weight], lr=0.1), accumulate=2)
    for _ in range(2):
        with stepper.micro():
            stepper.backward(weight.sum())
    assert repr(stepper) == "Stepper(SGD, accumulate=2, 1 window)"
    log = fastloop.ScalarLog()
    log.push(0, loss=torch.tensor(0.25))
    assert repr(log) == "ScalarLog(1 to poll, 0 on their way, loss=0.25)"


@pytest.mark.parametrize(
    ("name", "hint"), [("Dataloader", "; did you mean DataLoader[?]"), ("_DataLoader", "")]
)
def test_a_wrong_name_is_answered_with_the_nearest(name: str, hint: str) -> None:
    with pytest.raises(AttributeError, match=f"has no attribute '{name}'{hint}$"):
        getattr(fastloop, name)


# ---- notebooks


def test_results_show_in_a_notebook_what_they_print() -> None:
    loader = fastloop.DataLoader(torch.arange(64), batch_size=8)
    weight = torch.zeros(1, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.1)

    def step(count: int) -> None:
        weight.sum().backward()
        optimizer.step()

    model = torch.nn.ParameterList([weight])
    plan = fastloop.find_batch_size(step, model, optimizer, batch_size=2)
    suggestion = fastloop.tune(loader, seconds=0.01)
    results = [plan, suggestion, fastloop.doctor(), loader.stats(), fastloop.patch_status()]
    for result in results:
        shown = result._repr_html_()
        assert shown.startswith("<pre") and str(result).split("'")[0] in shown


def test_a_report_shows_its_page_in_a_notebook() -> None:
    report = fastloop.report(verbose=False)
    assert report._repr_html_() is None and repr(report) == "Report(not opened)"
    with report:
        assert repr(report).startswith("Report(0 steps; ")
        shown = report._repr_html_()
    assert shown is not None and shown.startswith('<iframe srcdoc="&lt;!DOCTYPE html&gt;')


# ---- progress


def test_progress_is_silent_where_nobody_looks(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ipykernel", ModuleType("ipykernel"))  # some script's import
    said: list[str] = []
    with text.progress("title", 2, said.append) as show:
        show("part 1")
    with text.progress("title") as show:
        show("part 1")
    assert said == ["part 1"] and capfd.readouterr() == ("", "")


@pytest.mark.parametrize("has_tqdm", [True, False])
def test_progress_is_a_line_on_a_terminal(monkeypatch: pytest.MonkeyPatch, has_tqdm: bool) -> None:
    if not has_tqdm:
        monkeypatch.setitem(sys.modules, "tqdm", None)
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    with text.progress("title", 2) as show:
        show("part 1")
        show("part 2")
    assert "title" in terminal.getvalue()
    assert "part 2" in terminal.getvalue()
    assert ("50%" in terminal.getvalue()) is has_tqdm
    assert has_tqdm or "\rtitle: part 2" in terminal.getvalue()
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    with text.progress("title") as show:
        show("part 1")
    assert terminal.getvalue() == ""


def test_progress_is_a_line_in_a_notebook(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    shell = SimpleNamespace(kernel=None)
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    with text.progress("title") as show:
        show("part 1")
    out, err = capfd.readouterr()
    assert "part 1" in out and err == ""


def run_on_terminal(folder: Path, *args: str) -> str:
    """Return the text that a program prints on a terminal, which stdout is not."""
    leader, follower = pty.openpty()
    command = [sys.executable, "-m", "fastloop", "run", *args]
    done = subprocess.run(
        command, cwd=folder, stdout=subprocess.PIPE, stderr=follower, timeout=limit(120), check=True
    )
    os.close(follower)
    printed = done.stdout
    with suppress(OSError):  # once nothing is left, as nobody writes
        while True:
            printed += os.read(leader, 65_536)
    os.close(leader)
    return printed.decode()


@pytest.mark.slowest
def test_run_ends_on_a_terminal_with_a_verdict_and_a_command(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    *_, end, verdict, more = run_on_terminal(tmp_path, "train.py", "--lr", "0 1").splitlines()
    assert "dataloader 1 native [Tensor: gathered by threads, 1 loader, 1 epoch]" in end
    assert "INPUT-BOUND" in verdict and "of each step" in verdict
    command = "python -m fastloop run --report=run.html train.py --lr '0 1'"
    assert more == f"fastloop: more: {command}"
    assert [path.name for path in tmp_path.iterdir()] == ["train.py"]


def test_run_has_no_verdict_without_a_loop(tmp_path: Path) -> None:
    printed = run_on_terminal(tmp_path, "-c", "import torch")
    assert printed.splitlines()[-1].startswith("fastloop: end of run: ")
