"""log_to(): trackers of experiments get the numbers of updates by their documented names, without a
network. Trackers that are not installed are skipped; test_lightning.py, test_hf_trainer.py and
test_accelerate.py have the frameworks."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from sources import ROOT
from torch.utils.data import DataLoader

import fastloop
from fastloop.tools.report.updates import Update

UPDATE = Update(
    seconds=3, steps=1200, skipped=0, batches=1200, samples=4800, step_seconds=2.9,
    first_batch_seconds=0.1, steps_per_second=412.25, wait_share=0.5,
    causes={"none": 0.25, "others": 0.25, "ready": 0.0}, queue=0, workers=2, restarts=0,
    scale=8.0, gradient_norm=1.5, device_busy=0.5,
    verdict="input-bound", next="num_workers 2→6", gain=2.0, text="INPUT-BOUND: it waits.",
    ranks={0: 0.1}, slowest_rank=3, slowest_text="", loaders=(), is_last=False,
)  # fmt: skip
NUMBERS = UPDATE.to_dict()


def test_names_are_those_of_the_reference() -> None:
    page = (ROOT / "docs/api/tools.md").read_text()
    assert {*NUMBERS} == {*re.findall(r"`(fastloop/\w+)`", page)}
    assert NUMBERS["fastloop/queue_depth"] == 0 and NUMBERS["fastloop/wait_share_none"] == 0.25
    unknown = replace(UPDATE, wait_share=None, gain=None, samples=None, slowest_rank=None)
    lost = {"wait_share", "wait_share_none", "wait_share_others", "wait_share_ready"}
    lost |= {"gain", "samples", "slowest_rank"}
    assert NUMBERS.keys() - unknown.to_dict() == {f"fastloop/{name}" for name in lost}


@pytest.mark.parametrize("tracker", [None, torch.nn.Linear(1, 1), re, DataLoader])
def test_other_objects_are_refused(tracker: Any) -> None:
    with pytest.raises(TypeError, match="tracker must be a SummaryWriter, a run of wandb, the"):
        fastloop.log_to(tracker)


def test_tensorboard(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(tmp_path)) as writer:
        fastloop.log_to(writer)(UPDATE)
    found = EventAccumulator(str(tmp_path)).Reload()
    assert {*found.Tags()["scalars"]} == {*NUMBERS}
    for name, number in NUMBERS.items():
        (event,) = found.Scalars(name)
        assert (event.step, event.value) == (1200, pytest.approx(number))


def read_records(data: bytes) -> Iterator[bytes]:
    """The records of wandb's file, which lie in blocks of 32 KiB."""
    at, whole = 7, b""
    while at + 7 <= len(data):
        if (rest := -at % 32_768) < 7:
            at += rest
        _, length, kind = struct.unpack_from("<IHB", data, at)
        at += 7 + length
        whole += data[at - length : at]
        if kind in (1, 4):  # the record is whole
            yield whole
            whole = b""


def test_wandb(tmp_path: Path) -> None:
    """The program's own steps stay as they are."""
    wandb = pytest.importorskip("wandb")
    from wandb.proto import wandb_internal_pb2

    with wandb.init(mode="offline", dir=str(tmp_path), settings={"silent": True}) as run:
        log = fastloop.log_to(run)
        for step in range(3):
            log(replace(UPDATE, steps=step))
            run.log({"loss": step})
    wandb.teardown()  # the process that writes the file has ended
    (path,) = tmp_path.glob("wandb/offline-run-*/run-*.wandb")
    rows = []
    for data in read_records(path.read_bytes()):
        record = wandb_internal_pb2.Record.FromString(data)
        if record.HasField("history"):
            items = record.history.item
            rows.append({(*i.nested_key, i.key)[0]: i.value_json for i in items})
    found = [(row["_step"], row["loss"], row["fastloop/steps"]) for row in rows]
    assert found == [(text, text, text) for text in "012"]
    assert all(row.keys() >= NUMBERS.keys() for row in rows)


def test_mlflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow.set_tracking_uri((tmp_path / "runs").as_uri())
    log = fastloop.log_to(mlflow)
    with mlflow.start_run() as run:
        log(UPDATE)
    mlflow.flush_async_logging()
    log(UPDATE)  # begins no run
    client = mlflow.MlflowClient()
    assert len(client.search_runs(["0"])) == 1
    assert client.get_run(run.info.run_id).data.metrics == NUMBERS
    (point,) = client.get_metric_history(run.info.run_id, "fastloop/steps")
    assert point.step == 1200
