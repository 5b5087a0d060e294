"""Modules of a model by name or class, and activation checkpointing of them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import nn

from lab.errors import ConfigError
from lab.schema import did_you_mean

CONTAINERS = (nn.ModuleList, nn.Sequential)


def find(model: nn.Module, patterns: str | Sequence[str], key: str) -> dict[str, nn.Module]:
    """{name: module} in the model's order. patterns: auto, or classes (Block) and names (blocks.0, blocks.*).

    auto: the members of model.blocks, where there is such a list, else of the list that holds most of the weights; none
    where the model has no list. key: for the error about a pattern that fits nothing.
    """
    if patterns == "auto":
        return _members(model)
    found: dict[str, nn.Module] = {}
    for pattern in [patterns] if isinstance(patterns, str) else patterns:
        named = {
            name: module
            for name, module in model.named_modules()
            if name and (type(module).__name__ == pattern or fnmatchcase(name, pattern))
        }
        if not named:
            raise ConfigError(_nothing(model, pattern, key))
        for name, module in named.items():
            if isinstance(module, nn.ModuleList | nn.ModuleDict):
                raise ConfigError(f"{key}: {name!r} is a list of modules, which is never called - write {name}.*")
        found |= named
    return {name: module for name, module in model.named_modules() if name in found}


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


def checkpoint_activations(modules: Iterable[nn.Module], compiled: bool) -> None:
    """Keep a module's input only, and compute what lies inside again in the backward pass (Chen et al. 2016).

    Random numbers are drawn again as they were. compiled: the modules will be compiled.
    """
    from torch.utils.checkpoint import checkpoint

    # the compiler knows the decorated function; without it, the decorator would import the compiler
    run = checkpoint if compiled else inspect.unwrap(checkpoint)
    for module in modules:
        module.forward = _kept_small(module.forward, run)  # not a wrapper module: names stay as they are


def _kept_small(forward: Callable[..., Any], run: Callable[..., Any]) -> Callable[..., Any]:
    def checkpointed(*args: Any, **kwargs: Any) -> Any:
        if torch.is_grad_enabled():
            return run(forward, *args, use_reentrant=False, **kwargs)
        return forward(*args, **kwargs)

    return checkpointed
