"""Add the transforms of lab.transforms.sized to lab.transforms.order. Does not import torch."""

from __future__ import annotations

from lab.transforms.order import HERE, SIZED

SIZED += [f"{HERE}sized.{name}" for name in ("Resize", "CenterCrop", "RandomResizedCrop")]
