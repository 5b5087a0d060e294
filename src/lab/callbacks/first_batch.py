"""Run the forward pass of the first micro-batch before the first step, without changing the run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from torch import Tensor, nn

from lab.objective import LossModule
from lab.rehearsal import restored_after
from samebits.errors import ConfigError
from samebits.shards import is_sharded
from samebits.steps import restored_rng

T = TypeVar("T")
Call = Callable[[nn.Module, Any], dict[str, Tensor]]


def with_first_batch(
    state: Any, run: Any, option: str, function: Callable[[nn.Module, dict[str, Any], bool], T]
) -> T | None:
    """Return function(loss_module, batch, meta) on the main rank, None on others. All ranks call this.

    meta: True to compute on the device `meta`, with a copy; if that fails, because the model or a loss reads values of
    tensors, `function` is called with False on all ranks, and the run is restored afterwards. option: key=value, for
    errors. Raise ConfigError if the model is sharded."""
    if is_sharded(state.model):
        raise ConfigError(f"{option}: does not support trainer=fsdp, which shards the model - use trainer=single")
    loss_module, batch = LossModule(state.model, state.task), run.peek_batch()
    result, failed = None, False
    if run.world.is_main:
        try:
            with restored_rng(run.world.device):
                result = function(loss_module, batch, True)
        except ConfigError:  # the first step would raise it too
            raise
        except Exception:  # the model or the loss reads values, which meta tensors do not have
            failed = True
    if run.world.any(failed):  # on all ranks, because losses may use collectives
        with restored_after(state, run), run.hardware.autocast():
            result = function(loss_module, batch, False)
    return result if run.world.is_main else None


def losses_of_objectives(loss_module: nn.Module, batch: Any) -> dict[str, Tensor]:
    """Run the forward pass of all objectives. Return {"loss" or "<objective> loss": loss (B,)}."""
    assert isinstance(loss_module, LossModule)
    losses = {}
    for objective in loss_module.task.objectives(loss_module.model):
        loss_module.objective = objective
        losses[f"{objective} loss".strip()] = loss_module(batch)[0]["loss"]
    return losses
