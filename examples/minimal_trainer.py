"""Hugging Face's Trainer, which makes its own loaders: patch() puts fastloop behind them."""

import tempfile

import torch
from torch import nn
from torch.utils.data import default_collate
from transformers import Trainer, TrainingArguments

import fastloop


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(20, 2)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        logits = self.layer(x)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


fastloop.patch()
torch.manual_seed(0)
x = torch.randn(2000, 20)
data = fastloop.ArrayDataset(x=x, labels=(x.sum(1) > 0).long())
folder = tempfile.TemporaryDirectory()
arguments = TrainingArguments(
    folder.name,
    report_to="none",
    save_strategy="no",
    num_train_epochs=3,
    per_device_train_batch_size=50,
    learning_rate=1e-2,
    logging_steps=40,
    disable_tqdm=True,
    remove_unused_columns=False,  # else the Trainer collates in Python
)
Trainer(Model(), arguments, default_collate, data).train()
print(fastloop.patch_status())
