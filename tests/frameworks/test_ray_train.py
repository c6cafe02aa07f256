"""Ray Train: two workers, whose loaders it makes anew with samplers of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sources import ROOT
from time_limits import limit

ray: Any = pytest.importorskip("ray", reason="ray is not installed")
pytest.importorskip("ray.train.torch", reason="ray's extra train is not installed")


@pytest.fixture(scope="module", autouse=True)
def ordinary_processes() -> Iterator[None]:
    """By default Ray's workers leave a busy machine to all other processes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_worker_niceness", "0")
        yield


@pytest.fixture(scope="module")
def cluster(ordinary_processes: None) -> Iterator[None]:
    ray.init(num_cpus=3, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


def make_loop() -> Callable[[dict[str, Any]], None]:
    """What each worker runs; it goes there by value, and takes nothing of this module along."""

    def loop(config: dict[str, Any]) -> None:
        import ray.train.torch
        import torch
        from torch.utils.data import DataLoader, TensorDataset

        import fastloop

        def train(kind: str, num_workers: int) -> Any:
            ray.train.torch.enable_reproducibility(5)
            model = ray.train.torch.prepare_model(torch.nn.Linear(3, 2))
            optimizer = torch.optim.SGD(model.parameters(), 0.1)
            data: Any = TensorDataset(torch.linspace(0, 1, 66).view(22, 3), torch.arange(22) % 2)
            if kind == "samples":
                data = [data[i] for i in range(22)]
            loader = ray.train.torch.prepare_data_loader(
                DataLoader(data, 4, shuffle=True, num_workers=num_workers)
            )
            losses = []
            for _ in range(2):
                for x, y in loader:
                    loss = torch.nn.functional.cross_entropy(model(x), y)
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()
                    losses.append(loss.item())
            return losses, torch.rand(2).tolist()

        found = {}
        for case in config["cases"]:
            plain = train(*case)
            with fastloop.patched():
                ours = train(*case)
                seam = fastloop.patch_status().seams["dataloader"]
            found[str(case)] = plain, ours, seam.native, seam.fallbacks
        rank = ray.train.get_context().get_world_rank()
        with open(f"{config['out']}{rank}", "w") as out:
            json.dump(found, out)

    return loop


@pytest.mark.slow
def test_two_workers(cluster: None, tmp_path: Path) -> None:
    from ray.train import RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer

    cases = [[kind, workers] for kind in ("arrays", "samples") for workers in (0, 2)]
    TorchTrainer(
        make_loop(),
        train_loop_config={"cases": cases, "out": str(tmp_path / "rank")},
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(storage_path=str(tmp_path)),
    ).fit()
    for rank in range(2):
        found = json.loads((tmp_path / f"rank{rank}").read_text())
        assert list(found) == list(map(str, cases))
        for case, (plain, ours, native, fallbacks) in found.items():
            assert plain == ours, case
            assert (native, fallbacks) == (2, {}), case


def make_watched_loop() -> Callable[[dict[str, Any]], None]:
    """A loop whose worker 1 waits for data; like `make_loop`, it takes nothing along."""

    def loop(config: dict[str, Any]) -> None:
        import time

        import ray.train.torch
        import torch
        from torch.utils.data import DataLoader, Dataset

        import fastloop

        rank = ray.train.get_context().get_world_rank()

        class Slow(Dataset[Any]):
            def __len__(self) -> int:
                return 100

            def __getitem__(self, index: int) -> Any:
                time.sleep(0.02 * rank)
                return index

        model = ray.train.torch.prepare_model(torch.nn.Linear(1, 1))
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        with fastloop.report(verbose=False) as report:
            for batch in DataLoader(Slow()):
                model(batch.float()[:, None]).mean().backward()
                optimizer.step()
        with open(f"{config['out']}{rank}", "w") as out:
            json.dump(report.to_dict()["ranks"], out)

    return loop


@pytest.mark.slow
def test_a_report_compares_the_workers(cluster: None, tmp_path: Path) -> None:
    from ray.train import RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer

    TorchTrainer(
        make_watched_loop(),
        train_loop_config={"out": str(tmp_path / "rank")},
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(storage_path=str(tmp_path)),
    ).fit()
    first, second = (json.loads((tmp_path / f"rank{rank}").read_text()) for rank in range(2))
    assert first["slowest"] == 1 and sorted(first["waits"]) == ["0", "1"] and second is None


@pytest.mark.slow
def test_a_corpus_goes_on_with_more_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two workers of the example are killed, and three go on."""
    pytest.importorskip("pyarrow", reason="pyarrow is not installed")

    def train(workers: int) -> tuple[int, str]:
        command = [sys.executable, ROOT / "examples/corpus_ray.py", tmp_path, str(workers)]
        done = subprocess.run(
            command, cwd=tmp_path, capture_output=True, text=True, timeout=limit(600)
        )
        return done.returncode, done.stdout + done.stderr

    monkeypatch.setenv("STOP_AFTER", "4")
    status, printed = train(2)
    assert status != 0 and (tmp_path / "saved.pt").exists(), printed
    monkeypatch.delenv("STOP_AFTER")
    status, printed = train(3)
    assert status == 0 and "tokens, each once: True" in printed, printed
    assert "step 5: " in printed and "step 4: " not in printed, printed
