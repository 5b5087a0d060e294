"""Observe operations in which the host reads a value from the device: on a GPU each of them waits for all queued work.

They are recognized by name and therefore found on any device. Only one kind is found on GPUs only: a copy to the host
that is not written as .cpu, .numpy or .to("cpu").
"""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

# methods of a tensor whose result is on the host
ASKS = (
    "item", "tolist", "cpu", "numpy", "__array__", "__bool__", "__float__", "__int__", "__index__", "__complex__",
    "__repr__", "__format__",
)  # fmt: skip
# operations whose result or shape the host needs; linear algebra checks for convergence
OPERATIONS = re.compile(
    r"""_local_scalar_dense|is_nonzero|nonzero|nonzero_numpy|equal|allclose|masked_select|masked_scatter_?
    |_?unique\w*|bincount|repeat_interleave|_?to_sparse\w*|_coalesce|_?(cudnn_)?ctc_loss|_pack_padded_sequence
    |_linalg_(check_errors|eigh|svd|eigvals)|linalg_(eig|eigvals|pinv|lstsq|matrix_exp)""",
    re.VERBOSE,
)
Notice = Callable[[str, str, int], None]  # the operation, the file and the line of the code that calls it
_ONE_HOT = functional.one_hot
_NOT_OURS = (str(Path(torch.__file__).parent), __file__)
_watched: list[int] = []  # the threads that are in a block of `observe_waits`


@contextmanager
def observe_waits(notice: Notice) -> Iterator[None]:
    """Call `notice` before each such operation of this thread within this block. Other threads, e.g. of a loader, are
    not observed."""
    with _Operations(notice), _patched(notice):
        _watched.append(threading.get_ident())
        try:
            yield
        finally:
            _watched.remove(threading.get_ident())


@contextmanager
def allow_waits() -> Iterator[None]:
    """Suspend the observation of this thread within this block."""
    before, _watched[:] = [*_watched], [one for one in _watched if one != threading.get_ident()]
    try:
        yield
    finally:
        _watched[:] = before


def place() -> tuple[str, int]:
    """Return (file, line) of the running code, outside of torch and this module."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_back and frame.f_code.co_filename.startswith(_NOT_OURS):
        frame = frame.f_back
    assert frame is not None
    return frame.f_code.co_filename, frame.f_lineno


def _is_watched() -> bool:
    return threading.get_ident() in _watched


class _Operations(TorchDispatchMode):
    def __init__(self, notice: Notice) -> None:
        super().__init__()
        self.notice = notice

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if _is_watched() and _waits(function, args, kwargs):
            self.notice(str(function), *place())
            with allow_waits():
                return function(*args, **kwargs)
        return function(*args, **kwargs)


def _waits(function: Any, args: Any, kwargs: Any) -> bool:
    name, _, overload = function.__name__.partition(".")
    if name.startswith("index") and len(args) > 1 and isinstance(args[1], (list, tuple)):
        return any(isinstance(m, Tensor) and m.dtype in (torch.bool, torch.uint8) for m in args[1])
    if name == "repeat_interleave":
        return kwargs.get("output_size") is None
    if name == "histc":  # without limits it reads the smallest and largest value
        low, high = [*args, 100, 0, 0][2:4] if len(args) != 2 else (kwargs.get("min", 0), kwargs.get("max", 0))
        return bool(low == high)
    if name == "normal":  # checks that all are positive
        return overload.endswith("_Tensor")
    if name in ("copy_", "_to_copy"):
        source = args[1] if name == "copy_" else args[0]
        target = args[0].device if name == "copy_" else torch.device(kwargs.get("device") or source.device)
        blocking = not (kwargs.get("non_blocking") or (name == "copy_" and len(args) > 2 and args[2]))
        return target.type == "cpu" and source.device.type not in ("cpu", "meta") and blocking
    return OPERATIONS.fullmatch(name) is not None


@contextmanager
def _patched(notice: Notice) -> Iterator[None]:
    """Patch the methods that are not dispatched, or are dispatched under a name that does not show the wait."""

    def asking(name: str, answer: Any, waits: Callable[..., bool] = lambda *args, **kwargs: True) -> Any:
        def ask(*args: Any, **kwargs: Any) -> Any:
            if not (_is_watched() and waits(*args, **kwargs)):
                return answer(*args, **kwargs)
            notice(name, *place())
            with allow_waits():
                return answer(*args, **kwargs)

        return ask

    def one_hot(tensor: Tensor, num_classes: int = -1) -> Tensor:
        # on a CPU torch checks that labels are below num_classes; on a GPU it does not (ATen/native/Onehot.cpp)
        with allow_waits() if num_classes > 0 else nullcontext():
            return _ONE_HOT(tensor, num_classes)

    patches: list[tuple[Any, str, Any]] = [
        (Tensor, name, asking(f"Tensor.{name}", getattr(Tensor, name))) for name in ASKS
    ]
    patches.append((Tensor, "to", asking('Tensor.to("cpu")', Tensor.to, _to_host)))
    patches.append((torch, "tensor", asking("torch.tensor(tensors)", torch.tensor, _of_tensors)))
    for owner in (torch, Tensor):
        patches.append((owner, "tensor_split", asking("tensor_split", owner.tensor_split, _by_tensor)))
    patches.append((functional, "one_hot", one_hot))
    before = [(owner, name, vars(owner).get(name)) for owner, name, _ in patches]
    try:
        for owner, name, patch in patches:
            setattr(owner, name, patch)
        yield
    finally:
        for owner, name, was in before:
            delattr(owner, name) if was is None else setattr(owner, name, was)


def _to_host(*args: Any, **kwargs: Any) -> bool:
    """Return True for .to("cpu"). Device objects are ignored, because in a run on a CPU the device is the host."""
    asked = kwargs.get("device", args[1] if len(args) > 1 else None)
    return isinstance(asked, str) and asked.startswith("cpu") and not kwargs.get("non_blocking")


def _of_tensors(data: Any = None, *args: Any, **kwargs: Any) -> bool:
    return isinstance(data, (list, tuple)) and any(isinstance(one, Tensor) or _of_tensors(one) for one in data)


def _by_tensor(*args: Any, **kwargs: Any) -> bool:
    return any(isinstance(one, Tensor) for one in (*args[1:], *kwargs.values()))
