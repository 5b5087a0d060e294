"""The model that is evaluated: the model itself, or the weight average; evaluation mode; BatchNorm's statistics."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from lab.state import RunContext, TrainState, model_or_average
from lab.tasks.base import Batch, Task
from samebits.device import Hardware
from samebits.steps import restored_rng
from samebits.world import World


@contextmanager
def evaluation_mode(*modules: nn.Module) -> Iterator[None]:
    """Set these modules to evaluation mode in this block; then restore the mode of each submodule, so that a frozen
    BatchNorm stays in evaluation mode. Modes are set by `train`, because a module may override it (LoRA does)."""
    modes = [(part, part.training) for module in modules for part in module.modules()]
    for module in modules:
        module.eval()
    try:
        yield
    finally:
        restore_modes(modes)


def set_training_mode(net: nn.Module) -> None:
    """Call `net.train()`, but keep submodules in evaluation mode that the model has put there (a frozen BatchNorm)."""
    modes = [(part, part.training) for frozen in net.modules() if not frozen.training for part in frozen.modules()]
    net.train()
    restore_modes(modes)


def restore_modes(modes: Iterable[tuple[nn.Module, bool]]) -> None:
    """Restore training modes. modes: (module, its `training`), each module before its submodules."""
    for module, training in modes:
        if module.training != training:
            module.train(training)


def modules_in_eval_mode(model: nn.Module) -> list[str]:
    """Return the names of the outermost modules in evaluation mode; their submodules are not listed."""
    outermost: list[str] = []
    for name, module in model.named_modules():
        if not (module.training or any(f".{name}".startswith(f".{outer}." if outer else ".") for outer in outermost)):
            outermost.append(name)
    return outermost


def prepare_evaluation_model(state: TrainState, run: RunContext) -> nn.Module:
    """Return the model to evaluate: the weight average, or the model if there is no average. All ranks call this.

    With Task.bn_update_batches, BatchNorm's statistics of the average are computed first, once per step."""
    model = model_or_average(state)
    if run.bn_batches is not None and state.ema is not None and run.last_bn_update != [state.step]:
        with restored_rng(run.world.device):
            recompute_batchnorm(model, state.task, run.bn_batches, run.world, run.hardware)
        run.last_bn_update[:] = [state.step]
    return model


@torch.no_grad()
def recompute_batchnorm(
    model: nn.Module, task: Task, batches: Iterable[Batch], world: World, hardware: Hardware
) -> None:
    """Set BatchNorm's statistics to means over the batches of all ranks (Izmailov et al. 2018, section 3.2)."""
    norms = [module for module in model.modules() if isinstance(module, _BatchNorm) and module.track_running_stats]
    if not norms:
        return
    autocast, momenta = hardware.autocast, [norm.momentum for norm in norms]
    with evaluation_mode(model, task):
        for norm in norms:
            norm.reset_running_stats()
            norm.momentum = None  # None: the mean over all batches
            norm.train()
        for batch in batches:
            with autocast():
                task.losses(model, batch)
    for norm, momentum in zip(norms, momenta):
        norm.momentum = momentum
        for statistic in (norm.running_mean, norm.running_var):
            assert statistic is not None
            statistic.copy_(world.all_reduce_sum(statistic) / world.size)
