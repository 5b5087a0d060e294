"""Values that ranks exchange, as JSON and not pickle: who can reach their ports could send values, but no code."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor


def encode(value: Any) -> bytes:
    """value: None, numbers, text, paths, tensors on the CPU, and lists, tuples and dicts of such."""
    return json.dumps(_plain(value), separators=(",", ":")).encode()


def decode(data: bytes) -> Any:
    return _value(json.loads(data))


def _plain(value: Any) -> Any:
    """JSON's own types, and lists; all else as {kind: content}."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, tuple):
        return {"tuple": [_plain(item) for item in value]}
    if isinstance(value, dict):
        return {"dict": [[_plain(key), _plain(item)] for key, item in value.items()]}
    if isinstance(value, Path):
        return {"path": str(value)}
    import torch

    if isinstance(value, torch.Tensor):
        return {"tensor": [str(value.dtype).removeprefix("torch."), list(value.shape), _text(value)]}
    raise TypeError(f"ranks do not exchange a {type(value).__name__}")


def _value(node: Any) -> Any:
    if isinstance(node, list):
        return [_value(item) for item in node]
    if not isinstance(node, dict):
        return node
    ((kind, content),) = node.items()
    if kind == "tuple":
        return tuple(_value(item) for item in content)
    if kind == "dict":
        return {_value(key): _value(item) for key, item in content}
    if kind == "path":
        return Path(content)
    if kind == "tensor":
        return _tensor(*content)
    raise ValueError(f"no value of the kind {kind!r}")


def _text(value: Tensor) -> str:
    import torch

    return base64.b64encode(value.contiguous().view(-1).view(torch.uint8).numpy().tobytes()).decode()


def _tensor(dtype: str, shape: list[int], text: str) -> Tensor:
    import torch

    kind = getattr(torch, dtype)
    if not isinstance(kind, torch.dtype):
        raise ValueError(f"no type of tensors: {dtype}")
    data = bytearray(base64.b64decode(text))
    return torch.frombuffer(data, dtype=kind).reshape(shape) if data else torch.empty(shape, dtype=kind)
