"""Lightning's Trainer over a fastloop.DataLoader; patch() also serves its clipping."""

import lightning
import torch
from torch import nn
from torch.utils.data import TensorDataset

import fastloop


class Model(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 1))

    def training_step(self, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        x, y = batch
        self.loss = nn.functional.binary_cross_entropy_with_logits(self.net(x), y)
        return self.loss

    def on_train_epoch_end(self) -> None:
        print(f"epoch {self.current_epoch}: loss {self.loss.item():.4f}")

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


fastloop.patch()
lightning.seed_everything(0)
x = torch.randn(6400, 20)
data = TensorDataset(x, (x.sum(1, keepdim=True) > 0).float())
loader = fastloop.DataLoader(data, batch_size=64, shuffle=True, num_workers=2)
quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
trainer = lightning.Trainer(max_epochs=2, gradient_clip_val=1.0, devices=1, **quiet)
trainer.fit(Model(), loader)
print(loader.stats(), fastloop.patch_status())
