"""Select the layers of a model whose weights are pruned or quantized."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from samebits.checkpoints import format_keys
from samebits.errors import ConfigError
from samebits.schema import regex

KINDS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)


def layers_of(model: nn.Module, key: str, exclude: Sequence[str]) -> dict[str, nn.Linear | nn.Conv2d]:
    """Return {name: layer} of the model's linear and convolutional layers whose names match no expression of `exclude`
    (re.search). Raise ConfigError if an expression matches no layer, or if no layer is left.

    key: the config group, for messages."""
    layers = {name: part for name, part in model.named_modules() if isinstance(part, KINDS)}
    names = f"names are {format_keys([*layers])}" if layers else "there are none"
    for pattern in (patterns := [regex(text, f"{key}.exclude") for text in exclude]):
        if not any(map(pattern.search, layers)):
            raise ConfigError(f"{key}.exclude: {pattern.pattern!r} matches no linear or convolutional layer; {names}")
    selected = {name: layer for name, layer in layers.items() if not any(pattern.search(name) for pattern in patterns)}
    others = (part for part in model.modules() if not isinstance(part, KINDS))
    elsewhere = {id(p) for part in others for p in part.parameters(recurse=False)}
    if tied := [name for name, layer in selected.items() if id(layer.weight) in elsewhere]:
        raise ConfigError(
            f"{key}: {tied[0]} shares its weight with another module, such as an embedding - exclude it: "
            f"'{key}.exclude=[\"^{tied[0]}$\"]'"
        )
    if not selected:
        raise ConfigError(f"{key}: {type(model).__name__} has no linear or convolutional layer to change; {names}")
    return selected  # type: ignore[return-value]
