"""Names of shapes and dtypes in messages."""

from __future__ import annotations

from collections.abc import Sequence

import torch


def dtype_name(dtype: torch.dtype) -> str:
    """Return float32 for torch.float32."""
    return str(dtype).removeprefix("torch.")


def described(shape: Sequence[int], dtype: torch.dtype) -> str:
    """Return "(1, 8, 8) float32" for one sample of a field."""
    return f"{tuple(shape)} {dtype_name(dtype)}"
