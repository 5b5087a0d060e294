"""A job as lightning-hydra-template runs it: a Hydra app around Lightning's Trainer, on our digits. benchmarks/sweep.py
starts it; it needs `pip install -e '.[bench]'`.

    ./run python benchmarks/sweep_rival.py -m lr=1e-3,3e-3 seed=0,1 hydra.sweep.dir=/tmp/rival
"""

from __future__ import annotations

import logging
import os
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import hydra
import lightning as L
import torch
import torchmetrics
from hydra.core.config_store import ConfigStore
from hydra.core.hydra_config import HydraConfig
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

DIGITS = Path(__file__).resolve().parents[1] / "data" / "digits.h5"
warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


@dataclass
class Config:
    lr: float = 1e-3
    seed: int = 0
    max_steps: int = 20


class Digits(L.LightningDataModule):
    def setup(self, stage: str | None = None) -> None:
        with h5py.File(DIGITS) as file:
            self.sets = {
                split: TensorDataset(
                    torch.from_numpy(file[split]["image"][:]).float() / 255, torch.from_numpy(file[split]["label"][:])
                )
                for split in ("train", "val", "test")
            }

    def train_dataloader(self) -> DataLoader[Any]:
        return DataLoader(self.sets["train"], 64, shuffle=True)

    def val_dataloader(self) -> DataLoader[Any]:
        return DataLoader(self.sets["val"], 64)

    def test_dataloader(self) -> DataLoader[Any]:
        return DataLoader(self.sets["test"], 64)


class Module(L.LightningModule):
    """As the template's: torchmetrics for each stage, updated and logged at each step."""

    def __init__(self, lr: float) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.net = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10))
        for stage in ("train", "val", "test"):
            setattr(self, f"{stage}_loss", torchmetrics.MeanMetric())
            setattr(self, f"{stage}_acc", torchmetrics.Accuracy(task="multiclass", num_classes=10))

    def step(self, batch: list[Tensor], stage: str) -> Tensor:
        logits = self.net(batch[0])
        loss = F.cross_entropy(logits, batch[1])
        getattr(self, f"{stage}_loss")(loss)
        getattr(self, f"{stage}_acc")(logits, batch[1])
        for name in ("loss", "acc"):
            self.log(f"{stage}/{name}", getattr(self, f"{stage}_{name}"), on_step=False, on_epoch=True, prog_bar=True)
        return loss

    def training_step(self, batch: list[Tensor], index: int) -> Tensor:
        return self.step(batch, "train")

    def validation_step(self, batch: list[Tensor], index: int) -> None:
        self.step(batch, "val")

    def test_step(self, batch: list[Tensor], index: int) -> None:
        self.step(batch, "test")

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=self.hparams["lr"], fused=True)


@hydra.main(version_base=None, config_path=None, config_name="config")
def main(cfg: Config) -> None:
    torch.set_num_threads(1)
    folder = HydraConfig.get().runtime.output_dir
    L.seed_everything(cfg.seed, workers=True, verbose=False)
    trainer = L.Trainer(
        max_steps=cfg.max_steps, max_epochs=-1, accelerator="cpu", default_root_dir=folder,
        callbacks=[ModelCheckpoint(os.path.join(folder, "checkpoints"), monitor="val/acc", mode="max", save_last=True)],
        logger=CSVLogger(folder), check_val_every_n_epoch=None, val_check_interval=cfg.max_steps,
    )  # fmt: skip
    module, data = Module(cfg.lr), Digits()
    trainer.fit(module, data)
    trainer.test(module, data, ckpt_path="best")


if __name__ == "__main__":
    ConfigStore.instance().store("config", Config)
    main()
