"""Find modules of a model by name or class, and apply activation checkpointing to them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from fnmatch import fnmatchcase
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from samebits.errors import ConfigError
from samebits.schema import did_you_mean

CONTAINERS = (nn.ModuleList, nn.Sequential)


def find_blocks(model: nn.Module, patterns: str | Sequence[str], key: str) -> dict[str, nn.Module]:
    """Return {name: module} in the model's order. patterns: auto, or classes (Block) and names (blocks.0, blocks.*).

    auto: the members of model.blocks if there is such a list, otherwise of the list with the most weights; {} without
    a list. key: config key for the errors. Raise ConfigError if a pattern matches nothing or a list of modules.
    """
    if patterns == "auto":
        return _members(model)
    found: dict[str, nn.Module] = {}
    for pattern in [patterns] if isinstance(patterns, str) else patterns:
        named = {
            name: module
            for name, module in model.named_modules()
            if name and (type(module).__name__ == pattern or _is_named(name, pattern))
        }
        if not named:
            raise ConfigError(_nothing(model, pattern, key))
        for name, module in named.items():
            if isinstance(module, nn.ModuleList | nn.ModuleDict):
                raise ConfigError(f"{key}: {name!r} is a list of modules, which has no forward - write {name}.*")
        found |= named
    return {name: module for name, module in model.named_modules() if name in found}


def _is_named(name: str, pattern: str) -> bool:
    """Return whether the name matches. A * is one part of the name: blocks.* matches blocks.0, not blocks.0.mlp."""
    parts, patterns = name.split("."), pattern.split(".")
    return len(parts) == len(patterns) and all(map(fnmatchcase, parts, patterns))


def _members(model: nn.Module) -> dict[str, nn.Module]:
    lists = {name: module for name, module in model.named_modules() if isinstance(module, CONTAINERS)}
    if not lists:
        return {}
    name = "blocks" if "blocks" in lists else max(lists, key=lambda name: _numel(lists[name]))
    prefix = f"{name}." if name else ""
    return {f"{prefix}{part}": module for part, module in lists[name].named_children() if _numel(module)}


def _numel(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


def _nothing(model: nn.Module, pattern: str, key: str) -> str:
    names = [name for name, _ in model.named_modules() if name]
    classes = list(dict.fromkeys(type(module).__name__ for _, module in model.named_modules()))[1:]
    return (
        f"{key}: {type(model).__name__} has no module of class or name {pattern!r}"
        f"{did_you_mean(pattern, [*classes, *names])} (classes: {', '.join(classes)})"
    )


def checkpoint_activations(modules: Iterable[nn.Module], compiled: bool, keeps: str = "inputs") -> None:
    """Keep only each module's input and recompute its activations in the backward pass (Chen et al. 2016), in place.

    keeps=matmuls: also keep the outputs of matrix products, convolutions and attention, and recompute only the rest.
    The recomputation draws the same random numbers and does not update running statistics again. compiled: whether the
    modules will be compiled; raise ConfigError if they then contain a BatchNorm.
    """
    from torch.utils.checkpoint import checkpoint

    # torch.compile recognizes the decorated function; in eager mode the decorator would import the unused compiler
    run = checkpoint if compiled else inspect.unwrap(checkpoint)
    for module in modules:
        options: dict[str, Any] = {"use_reentrant": False}
        norms = [norm for norm in module.modules() if isinstance(norm, _NormBase) and norm.track_running_stats]
        if norms and compiled:
            raise ConfigError(
                "hardware.compile: with hardware.activation_checkpointing, BatchNorm would count each batch twice - "
                "remove one of the two"
            )
        if norms or keeps == "matmuls":
            options["context_fn"] = partial(_contexts, norms, keeps == "matmuls")
        again: Callable[..., Any] = partial(run, module.forward, **options)
        module.forward = _kept_small(module.forward, again)  # a wrapper module would change parameter names


def _kept_small(forward: Callable[..., Any], again: Callable[..., Any]) -> Callable[..., Any]:
    def checkpointed(*args: Any, **kwargs: Any) -> Any:
        return (again if torch.is_grad_enabled() else forward)(*args, **kwargs)

    return checkpointed


def _contexts(norms: list[_NormBase], matmuls: bool) -> tuple[AbstractContextManager[Any], AbstractContextManager[Any]]:
    """Return contexts of (the forward pass, its recomputation, which must not update the running statistics)."""
    forward: AbstractContextManager[Any] = nullcontext()
    again: AbstractContextManager[Any] = nullcontext()
    if matmuls:
        from torch.utils.checkpoint import create_selective_checkpoint_contexts

        forward, again = create_selective_checkpoint_contexts(_policy)
    return forward, _uncounted(norms, again) if norms else again


MATMULS = (
    "mm", "addmm", "bmm", "baddbmm", "convolution", "_scaled_mm", "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_efficient_attention", "_scaled_dot_product_cudnn_attention",
    "_scaled_dot_product_flash_attention_for_cpu",
)  # fmt: skip


def _policy(context: Any, operation: Any, *args: Any, **kwargs: Any) -> Any:
    """Save the outputs of MATMULS, except attention with dropout.

    Without its recomputation, the operations after it would draw different random numbers than in the forward pass.
    """
    from torch.utils.checkpoint import CheckpointPolicy

    schema = operation._schema
    names = [argument.name for argument in schema.arguments]
    kept = schema.name.removeprefix("aten::") in MATMULS
    if kept and "dropout_p" in names:
        place = names.index("dropout_p")
        kept = not (args[place] if place < len(args) else kwargs.get("dropout_p", 0.0))
    return CheckpointPolicy.MUST_SAVE if kept else CheckpointPolicy.PREFER_RECOMPUTE


@contextmanager
def _uncounted(norms: list[_NormBase], inner: AbstractContextManager[Any]) -> Iterator[None]:
    """Set the momentum to 0 in this block, so that running statistics do not change.

    (Without running statistics, autograd would save other tensors.)
    """
    before = [(norm, norm.momentum, norm.num_batches_tracked) for norm in norms]
    for norm in norms:
        norm.momentum, norm.num_batches_tracked = 0.0, None
    try:
        with inner:
            yield
    finally:
        for norm, momentum, count in before:
            norm.momentum, norm.num_batches_tracked = momentum, count
