"""Build a model from the config, or load it from a run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf
from torch import nn
from torch.nn.parameter import is_lazy

from lab.config import Config
from lab.project import PROJECT
from lab.quantization import quantize, round_weights
from lab.statistics import with_stored
from samebits.checkpoints import eval_state_dict, load_weights, read_run, run_directory
from samebits.errors import ConfigError
from samebits.saved import read_config
from samebits.steps import rng_bytes, seeded
from samebits.targets import construct


def make_model(config: Config) -> nn.Module:
    """Build the model, with quantized layers if `quantization` is set. Raise ConfigError if it has lazy parameters."""
    model = construct(PROJECT, "model", config.values["model"], nn.Module)
    for name, parameter in model.named_parameters():
        if is_lazy(parameter):
            raise ConfigError(
                f"model: {name} belongs to a lazy module, which has no size before the first batch: give the "
                "size, from data.input_shape and data.num_outputs"
            )
    return model if config.quantization.weight_bits is None else quantize(model, config.quantization)


def restore_model(path: Path, overrides: Sequence[str] = ()) -> tuple[nn.Module, DictConfig, Path, dict[str, Any]]:
    """Return (model, resolved config, path of the checkpoint, its payload). The model is on the CPU, in eval mode.

    path: a run directory or one of its checkpoints. overrides: key=value, applied to the run's config first. The
    payload also has "rng_of_task", the random state from which the run's task was built.
    """
    cfg, file, payload = read_run(PROJECT, path, overrides)
    cfg = with_stored(cfg, file.parent.parent)
    config = Config.of(cfg)
    of_run = Config.of(read_config(PROJECT, file.parent.parent)) if overrides else config
    # for values that no checkpoint has, such as random features that are not a buffer
    with seeded(of_run.seed):
        model = make_model(config)
        payload["rng_of_task"] = rng_bytes(torch.device("cpu"))
    load_weights(model, eval_state_dict(payload), str(file))
    return model.eval(), cfg, file, payload


def exported(state: dict[str, Any], source: Path) -> dict[str, Any]:
    """Return the state dict that ./run export writes: with `quantization` in the run's config, rounded weights as
    floating-point numbers. source: the checkpoint."""
    file = run_directory(source) / "config.yaml"
    if not file.is_file() or OmegaConf.select(OmegaConf.load(file), "quantization.weight_bits") is None:
        return state
    return round_weights(restore_model(source)[0]).state_dict()
