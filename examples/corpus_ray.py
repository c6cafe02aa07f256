"""The corpus of corpus.py under Ray Train: python examples/corpus_ray.py FOLDER WORKERS"""

import os
import sys
from pathlib import Path
from typing import Any

import ray
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer


def train(config: dict[str, Any]) -> None:
    from corpus import main

    main(Path(config["folder"]))


folder, workers = Path(sys.argv[1]).absolute(), int(sys.argv[2])
paths = os.pathsep.join(sys.path)  # workers import corpus.py, too
ray.init(num_cpus=workers + 1, runtime_env={"env_vars": {"PYTHONPATH": paths}})
TorchTrainer(
    train,
    train_loop_config={"folder": str(folder)},
    torch_config=TorchConfig("gloo"),
    scaling_config=ScalingConfig(num_workers=workers),
    run_config=RunConfig(storage_path=str(folder / "ray")),
).fit()
