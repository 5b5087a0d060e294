"""The project's library. In a notebook: `from lab import load_run; model, cfg = load_run("outputs/...")`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from omegaconf import DictConfig
    from torch import nn


# with this the question whether there is CUDA asks NVML instead of starting CUDA, after which ranks could not be forked
os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")

import lab.app  # noqa: F401


def load_run(path: str | Path) -> tuple[nn.Module, DictConfig]:
    """Returns (model, config) of a run directory (its best checkpoint, else its newest valid one) or one checkpoint.

    The model is on the CPU, in eval mode, with the weights that were evaluated (the EMA if the run kept one). Needs
    only the run directory: neither the data nor Hydra's command line.
    """
    from lab.restore import restore_model

    model, cfg, *_ = restore_model(Path(path))
    return model, cfg
