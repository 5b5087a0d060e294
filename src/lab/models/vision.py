"""Image models of torchvision and timm by name, with random initial weights."""

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
    """Return a model (B, 3, H, W) floating point -> (B, num_outputs) logits.

    name: from timm.list_models() or torchvision.models.list_models(), e.g. resnet50, vit_small_patch16_224 (timm),
    vit_b_16 (torchvision). options: further arguments of the model (timm: in_chans, drop_path_rate; torchvision:
    zero_init_residual). They must be numbers, because strings could name files to load. Raise ConfigError for an
    unknown name.
    """
    for key, value in options.items():
        if not isinstance(value, int | float):
            raise ConfigError(f"model.options.{key}={value}: must be a number")
    what = f"model.library={library}"
    models: Any = need("torchvision.models", what, "torchvision")  # timm imports it too
    make = models.get_model
    if library == "timm":
        models = need("timm", what, "timm")
        make = models.create_model
    if name not in (known := models.list_models()):  # timm would look up an unknown name on a server
        raise ConfigError(f"model.name={name}: is not a model of {library}{did_you_mean(name, known)}")
    model: nn.Module = make(name, num_classes=num_outputs, **options)
    return model
