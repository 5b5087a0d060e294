"""Train on a simulated GPU: torch's fake tensors have shapes, types and the device `cuda`, but no values.

Host code is checked as on a GPU, and more strictly: operations with tensors of two devices fail, and values that the
host reads do not exist. Nothing is computed."""

from __future__ import annotations

import copy
import ctypes
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeCopyMode, FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

GPU = torch.device("cuda", 0)


DEVICE = torch.ops.prim.device.default  # called by C++ to get the device of a tensor


class Waited(AssertionError):
    """The host waited for the device."""


# aten names of operations that raise on a GPU with hardware.deterministic=true, from the docs of
# torch.use_deterministic_algorithms
UNORDERED = {
    *(f"{kind}_backward" for kind in (
        "avg_pool3d", "_adaptive_avg_pool2d", "_adaptive_avg_pool3d", "max_pool3d_with_indices", "adaptive_max_pool2d",
        "fractional_max_pool2d", "fractional_max_pool3d", "upsample_linear1d", "upsample_bilinear2d",
        "upsample_bicubic2d", "upsample_trilinear3d", "reflection_pad1d", "reflection_pad2d", "reflection_pad3d",
        "replication_pad1d", "replication_pad2d", "replication_pad3d", "grid_sampler_2d", "grid_sampler_3d",
        "_ctc_loss",
    )),
    "max_unpool2d", "max_unpool3d", "nll_loss2d_forward", "put_", "histc", "kthvalue", "median", "bincount",
}  # fmt: skip


def is_unordered(name: str, first: Any) -> bool:
    """Return True if the operation is nondeterministic on a GPU. first: its first argument."""
    floats = isinstance(first, Tensor) and first.is_floating_point()
    return name in UNORDERED or (name in ("cumsum", "cumsum_") and floats)


def on_cuda(value: Any) -> bool:
    """Return True for a fake tensor on `cuda`."""
    return isinstance(value, FakeTensor) and value.fake_device.type == "cuda"


# C++ sees tensors on `cuda` as tensors on `xla`, which autocast treats like `cuda`: with `cuda` itself, autograd would
# use streams of a GPU. A new tensor that C++ creates on `xla` is therefore created on `cuda`.
IN_CPP = torch.device("xla", 0)
XLA, META = 9, 14  # values of c10::DeviceType


def let_autograd_pass() -> None:
    """Register the device guard of meta, which does nothing, for xla: autograd needs one, and this build has none."""
    torch.ones(1, requires_grad=True).sum().backward()  # before, as autograd starts a thread per device with a guard
    lib = ctypes.CDLL(str(next((Path(torch.__file__).parent / "lib").glob("libc10.*"))))
    guards = (ctypes.c_void_p * (META + 1)).in_dll(lib, "_ZN3c104impl26device_guard_impl_registryE")
    guards[XLA] = guards[META]


def device_in_cpp(args: Any) -> torch.device:
    """Return the device that C++ sees for a fake tensor."""
    in_kernel = args[0].fake_mode.in_kernel_invocation
    return torch.device("meta") if in_kernel else IN_CPP if on_cuda(args[0]) else args[0].fake_device


def of_python(kwargs: Any) -> dict[str, Any]:
    """Return keyword arguments with the device xla replaced by cuda."""
    return {k: GPU if isinstance(v, torch.device) and v.type == "xla" else v for k, v in (kwargs or {}).items()}


class Watched(TorchDispatchMode):
    """Count when the host waits for the device; in a block of `refused`, raise Waited.

    value: returned when the host reads a float. waits: {operation: count}. computed: dtypes of matrix products.
    unordered: operations that raise with hardware.deterministic=true.
    """

    def __init__(self) -> None:
        super().__init__()
        self.strict, self.value, self.waits = False, 0.0, Counter[str]()
        self.computed: set[torch.dtype] = set()
        self.unordered: set[str] = set()

    @contextmanager
    def refused(self) -> Iterator[None]:
        """Raise Waited in this block when the host waits."""
        self.strict = True
        try:
            yield
        finally:
            self.strict = False

    def wait(self, what: str) -> None:
        """Count a wait. Raise Waited in a block of `refused`."""
        self.waits[what] += 1
        if self.strict:
            raise Waited(what)

    def told(self, tensor: Tensor) -> Any:
        """Return the value that the host reads from a fake tensor."""
        return self.value if tensor.is_floating_point() else bool(self.value) if tensor.dtype == torch.bool else 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is DEVICE:
            return device_in_cpp(args)
        kwargs = of_python(kwargs)
        name = function.__name__.partition(".")[0]
        if any(map(on_cuda, args)) and is_unordered(name, args[0]):
            self.unordered.add(name)
        if name == "_local_scalar_dense":
            if on_cuda(args[0]):
                self.wait("a value")
                return self.told(args[0])
            return 1.0 if args[0].is_floating_point() else 0  # on the host: 1.0 for the step count of an optimizer
        if name.startswith("_fused_"):  # kernels of optimizers, which work in place; some do not accept fake tensors
            given, _ = tree_flatten([args, kwargs])
            assert all(on_cuda(value) for value in given if isinstance(value, Tensor)), f"{name}: tensors on the host"
            return None
        if name in ("_linalg_check_errors", "equal"):
            if any(map(on_cuda, args)):
                self.wait(name)
            return name == "equal" or None
        if name == "_pin_memory":
            return args[0].clone()  # stays on the host
        if name in ("_to_copy", "copy_"):
            source = args[1] if name == "copy_" else args[0]
            to = args[0].device if name == "copy_" else torch.device(kwargs.get("device") or source.device)
            blocking = not (kwargs.get("non_blocking") or (name == "copy_" and len(args) > 2 and args[2]))
            if to.type != source.device.type and blocking:
                self.wait(f"a copy from {source.device.type} to {to.type}")
        if name == "index" and not on_cuda(args[0]) and any(i is not None and i.dtype == torch.bool for i in args[1]):
            return args[0].new_empty(1, *args[0].shape[1:])  # assume that a mask on the host selects one row
        indices = args[1] if name.startswith("index") and on_cuda(args[0]) else ()
        if isinstance(indices, (list, tuple)) and any(isinstance(i, Tensor) and not on_cuda(i) for i in indices):
            self.wait("an index on the host")
        found = function(*args, **kwargs)
        if name in ("mm", "addmm", "bmm", "convolution"):
            self.computed.add(found.dtype)
        return found


class Mode(FakeTensorMode):
    """A mode of fake tensors that lets C++ see their device as xla."""

    def dispatch(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation on fake tensors."""
        if function is DEVICE:
            return device_in_cpp(args)
        return super().dispatch(function, types, args, of_python(kwargs))

    def __deepcopy__(self, memo: Any) -> Mode:
        return self  # a copied tensor keeps this mode


def _definitely_not(*_: Any) -> bool:
    return False


@contextmanager
def fake_gpu(real: Any) -> Iterator[tuple[Watched, Any]]:
    """Make new tensors fake in this block, also on `cuda`. Yield the mode that counts waits, and a copy of `real` with
    fake tensors on the same devices."""
    mode, watched = Mode(allow_non_fake_inputs=True), Watched()
    of_tensor = FakeTensor.__torch_dispatch__

    def dispatch(kind: Any, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return device_in_cpp(args) if function is DEVICE else of_tensor(function, types, args, kwargs or {})

    def tolist(tensor: FakeTensor) -> Any:
        if on_cuda(tensor):
            watched.wait("values")
        return np.full(tuple(tensor.shape), watched.told(tensor)).tolist()

    let_autograd_pass()
    with ExitStack() as stack:
        stack.enter_context(torch.autograd.set_multithreading_enabled(False))
        for thing, name, value in (
            (
                torch.utils,
                "weakref",
                SimpleNamespace(getweakrefs=lambda tensor: []),
            ),  # otherwise module.to fails, as the mode has weak references to tensors
            (FakeTensor, "__torch_dispatch__", classmethod(dispatch)),
            (FakeTensor, "tolist", tolist),
            (torch.cuda.amp.common, "amp_definitely_not_available", _definitely_not),
            (torch.cuda, "is_bf16_supported", lambda including_emulation=True: True),
            (torch.cuda, "get_rng_state", lambda device=None: torch.zeros(16, dtype=torch.uint8)),
        ):
            stack.enter_context(mock.patch.object(thing, name, value))
        with FakeCopyMode(mode):
            copied = copy.deepcopy(real)
        stack.enter_context(mode)
        stack.enter_context(watched)
        yield watched, copied
