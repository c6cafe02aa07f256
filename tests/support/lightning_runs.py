"""Lightning's Trainer and Fabric over a small model, for one process and for several ranks."""

import logging
import warnings
from typing import Any

import torch
from framework_runs import Trained, arrays, loss_of, model_of, weights
from torch import Tensor
from torch.utils.data import DataLoader

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import lightning.pytorch as pl
    from lightning.fabric import Fabric

# Lightning gives advice that is no concern of these tests.
for name in ("lightning.pytorch", "lightning.fabric"):
    logging.getLogger(name).setLevel(logging.ERROR)
warnings.filterwarnings("ignore", module=r"lightning\.")


class Model(pl.LightningModule):
    """Notes each loss. With loaders in a dict, its batch has one of each."""

    def __init__(self, batch_size: int = 4) -> None:
        super().__init__()
        self.model = model_of()
        self.batch_size = batch_size
        self.lr = 0.1
        self.seen: list[Any] = []

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        batches = batch.values() if isinstance(batch, dict) else [batch]
        loss = torch.stack([loss_of(self.model, b) for b in batches if b is not None]).sum()
        self.seen.append((batch_idx, loss.item()))
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.seen.append(("validation", batch_idx, loss_of(self.model, batch).item()))

    def predict_step(self, batch: Any, batch_idx: int) -> None:
        self.seen.append(("predict", batch_idx, loss_of(self.model, batch).item()))

    def train_dataloader(self) -> DataLoader[Any]:
        return DataLoader(arrays(), self.batch_size, shuffle=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), self.lr, momentum=0.9)


def trainer_of(**given: Any) -> pl.Trainer:
    quiet = ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary")
    return pl.Trainer(
        **{**dict.fromkeys(quiet, False), "accelerator": "cpu", "max_epochs": 2, **given}
    )


def fit(loader: Any, held_out: Any = None, path: Any = None, **given: Any) -> Trained:
    """What the Trainer does; the loader is the one that it has made, where it makes one."""
    model, trainer = Model(), trainer_of(**given)
    trainer.fit(model, loader, held_out, ckpt_path=path)
    used: Any = trainer.train_dataloader
    if isinstance(used, dict):
        used = used["a"]
    return Trained((model.seen, weights(model)), used)


def loop(loader: DataLoader[Any], **given: Any) -> Trained:
    """Fabric's."""
    fabric = Fabric(accelerator="cpu", **given)
    fabric.launch()
    plain = model_of()
    model, optimizer = fabric.setup(plain, torch.optim.SGD(plain.parameters(), 0.1))
    batches = fabric.setup_dataloaders(loader)
    losses = []
    for _ in range(2):
        for batch in batches:
            loss = loss_of(model, batch)
            fabric.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
    return Trained((losses, weights(plain)), batches)
