"""A model: built as the config names it, or loaded from a run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig
from torch import nn
from torch.nn.parameter import is_lazy

from lab.config import Config
from lab.project import PROJECT
from samebits.checkpoints import eval_state_dict, load_weights, read_run
from samebits.errors import ConfigError
from samebits.targets import construct


def make_model(config: Config) -> nn.Module:
    model = construct(PROJECT, "model", config.cfg.model, nn.Module)
    for name, parameter in model.named_parameters():
        if is_lazy(parameter):
            raise ConfigError(
                f"model: {name} has no size before the first batch, as a lazy module's: give the size, which "
                "data.input_shape and data.num_outputs say"
            )
    return model


def restore_model(path: Path, overrides: Sequence[str] = ()) -> tuple[nn.Module, DictConfig, Path, dict[str, Any]]:
    """path: a run directory or one of its checkpoints. Returns (model in eval mode on the CPU, resolved config,
    checkpoint path, its payload).

    overrides: key=value, applied to the run's config before the model is built.
    """
    cfg, file, payload = read_run(PROJECT, path, overrides)
    model = make_model(Config.of(cfg))
    load_weights(model, eval_state_dict(payload), str(file))
    return model.eval(), cfg, file, payload
