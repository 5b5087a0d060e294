"""Image models of torchvision and timm by their names, with new weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from torch import nn

from samebits.errors import ConfigError
from samebits.extras import need
from samebits.schema import Count, did_you_mean


def vision_model(
    library: Literal["timm", "torchvision"], name: str, num_outputs: Count, options: Mapping[str, int | float]
) -> nn.Module:
    """(B, 3, H, W) floating point -> (B, num_outputs) logits; a model of timm.list_models() or
    torchvision.models.list_models(), such as resnet50, vit_small_patch16_224 (timm), vit_b_16 (torchvision).

    options: further arguments of the model, numbers alone: texts would name files to load (timm: in_chans,
    drop_path_rate; torchvision: zero_init_residual)."""
    for key, value in options.items():
        if not isinstance(value, int | float):
            raise ConfigError(f"model.options.{key}={value}: of a model's arguments only numbers are allowed here")
    what = f"model.library={library}"
    models: Any = need("torchvision.models", what, "torchvision")  # timm imports it, too
    make = models.get_model
    if library == "timm":
        models = need("timm", what, "timm")
        make = models.create_model
    if name not in (known := models.list_models()):  # timm would look for an unknown one on a server
        raise ConfigError(f"model.name={name}: {library} has no such model{did_you_mean(name, known)}")
    model: nn.Module = make(name, num_classes=num_outputs, **options)
    return model
