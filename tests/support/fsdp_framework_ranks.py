"""What each of two ranks of test_fsdp_frameworks.py runs: `python fsdp_framework_ranks.py CASE`.

Frameworks clip a model that FSDP2 shards, without fastloop and under patch(): weights have the same
bits, and fastloop does the passes."""

import sys
import warnings
from collections.abc import Callable
from typing import Any

import torch
from framework_runs import arrays, loss_of, model_of
from rank_program import leave_ranks
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader

import fastloop

MAX_NORM = 0.05


def weights_of(model: Any) -> list[Tensor]:
    return [p.full_tensor().clone() for p in model.parameters()]


def check_alike(train: Callable[[], list[Tensor]]) -> None:
    torch.manual_seed(3)
    theirs = train()
    torch.manual_seed(3)
    with fastloop.patched():
        ours = train()
        clip = fastloop.patch_status().seams["clip_grad_norm"]
    assert clip.native >= 3 and not clip.fallbacks, fastloop.patch_status()
    assert all(map(torch.equal, ours, theirs))


def sharded(mesh: Any = None) -> Any:
    model = model_of()
    mesh = init_device_mesh("cpu", (2,)) if mesh is None else mesh
    for layer in model:
        if any(True for _ in layer.parameters()):
            fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def case_accelerate() -> None:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)

    def train() -> list[Tensor]:
        model = sharded()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        optimizer, loader = accelerator.prepare(optimizer, DataLoader(arrays(), 4, shuffle=True))
        for _ in range(2):
            for batch in loader:
                with accelerator.accumulate():
                    accelerator.backward(loss_of(model, batch))
                    if accelerator.sync_gradients:
                        norm = accelerator.clip_grad_norm_(model.parameters(), MAX_NORM)
                        assert norm > MAX_NORM
                    optimizer.step()
                    optimizer.zero_grad()
        return weights_of(model)

    check_alike(train)


def case_lightning() -> None:
    import lightning
    from lightning.pytorch.strategies import ModelParallelStrategy

    class Module(lightning.LightningModule):
        def configure_model(self) -> None:
            if not hasattr(self, "layers"):
                self.layers = sharded(self.device_mesh["data_parallel"])

        def training_step(self, batch: Any) -> Tensor:
            return loss_of(self.layers, batch)

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), 0.1)

    def train() -> list[Tensor]:
        module = Module()
        trainer = lightning.Trainer(
            accelerator="cpu",
            devices=2,
            strategy=ModelParallelStrategy(data_parallel_size=2, tensor_parallel_size=1),
            max_epochs=2,
            gradient_clip_val=MAX_NORM,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        trainer.fit(module, DataLoader(arrays(), 4, shuffle=True))
        return weights_of(module.layers)

    check_alike(train)


def case_transformers() -> None:
    from transformers import Trainer, TrainingArguments

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = sharded()

        def forward(self, batch: Any) -> Any:
            return {"loss": loss_of(self.layers, batch)}

    def train() -> list[Tensor]:
        model = Model()
        arguments = TrainingArguments(
            "unused",
            use_cpu=True,
            max_grad_norm=MAX_NORM,
            per_device_train_batch_size=4,
            num_train_epochs=2,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
        )
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        scheduler = torch.optim.lr_scheduler.ConstantLR(optimizer)
        trainer = Trainer(
            model,
            arguments,
            train_dataset=arrays(),
            data_collator=lambda samples: {"batch": torch.utils.data.default_collate(samples)},
            optimizers=(optimizer, scheduler),
        )
        # On a CPU accelerate has DDP alone, which refuses a sharded model.
        trainer.accelerator.prepare_model = lambda model, **_: model
        trainer.train()
        return weights_of(model.layers)

    check_alike(train)


torch.set_num_threads(1)
warnings.simplefilter("ignore")
globals()[f"case_{sys.argv[1]}"]()
print("alike", flush=True)
leave_ranks()
