"""Training on a GPU that is not there: torch's fake tensors have shapes, types and a device, `cuda`, but no values.

What the host does with them is checked as it is on a GPU, and more strictly: tensors of two devices do not mix, and a
value that the host asks for is not there to be given. Nothing is computed.
"""

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


DEVICE = torch.ops.prim.device.default  # what C++ asks a tensor


class Waited(AssertionError):
    """The host waited for the device."""


# what raises on a GPU with hardware.deterministic=true, of torch.use_deterministic_algorithms' page: names in aten
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
    """Whether the operation has no fixed order on a GPU. first: its first argument."""
    floats = isinstance(first, Tensor) and first.is_floating_point()
    return name in UNORDERED or (name in ("cumsum", "cumsum_") and floats)


def on_cuda(value: Any) -> bool:
    return isinstance(value, FakeTensor) and value.fake_device.type == "cuda"


# C++ is told that tensors on `cuda` are on `xla`, which autocast takes for tensors on `cuda`: for `cuda` itself
# autograd would ask a GPU for its streams. So what C++ makes like a tensor on `xla` is made on `cuda`.
IN_CPP = torch.device("xla", 0)
XLA, META = 9, 14  # numbers of c10::DeviceType


def let_autograd_pass() -> None:
    """Autograd wants a guard of each kind of device, which for xla is not in this build: that of meta does nothing."""
    torch.ones(1, requires_grad=True).sum().backward()  # first: autograd starts a thread for each device with a guard
    lib = ctypes.CDLL(str(next((Path(torch.__file__).parent / "lib").glob("libc10.*"))))
    guards = (ctypes.c_void_p * (META + 1)).in_dll(lib, "_ZN3c104impl26device_guard_impl_registryE")
    guards[XLA] = guards[META]


def device_in_cpp(args: Any) -> torch.device:
    in_kernel = args[0].fake_mode.in_kernel_invocation
    return torch.device("meta") if in_kernel else IN_CPP if on_cuda(args[0]) else args[0].fake_device


def of_python(kwargs: Any) -> dict[str, Any]:
    return {k: GPU if isinstance(v, torch.device) and v.type == "xla" else v for k, v in (kwargs or {}).items()}


class Watched(TorchDispatchMode):
    """Notes where the host waits for the device, and raises there in a block of `refused`.

    value: what the host is told of a float. waits: {what: how often}. computed: dtypes of matrix products. unordered:
    operations that hardware.deterministic=true refuses.
    """

    def __init__(self) -> None:
        super().__init__()
        self.strict, self.value, self.waits = False, 0.0, Counter[str]()
        self.computed: set[torch.dtype] = set()
        self.unordered: set[str] = set()

    @contextmanager
    def refused(self) -> Iterator[None]:
        self.strict = True
        try:
            yield
        finally:
            self.strict = False

    def wait(self, what: str) -> None:
        self.waits[what] += 1
        if self.strict:
            raise Waited(what)

    def told(self, tensor: Tensor) -> Any:
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
            return 1.0 if args[0].is_floating_point() else 0  # of the host: 1.0 is an optimizer's count of steps
        if name.startswith("_fused_"):  # optimizers' kernels, of which some take no fake tensors; they work in place
            given, _ = tree_flatten([args, kwargs])
            assert all(on_cuda(value) for value in given if isinstance(value, Tensor)), f"{name}: tensors on the host"
            return None
        if name in ("_linalg_check_errors", "equal"):
            if any(map(on_cuda, args)):
                self.wait(name)
            return name == "equal" or None
        if name == "_pin_memory":
            return args[0].clone()  # on the host, as before
        if name in ("_to_copy", "copy_"):
            source = args[1] if name == "copy_" else args[0]
            to = args[0].device if name == "copy_" else torch.device(kwargs.get("device") or source.device)
            blocking = not (kwargs.get("non_blocking") or (name == "copy_" and len(args) > 2 and args[2]))
            if to.type != source.device.type and blocking:
                self.wait(f"a copy from {source.device.type} to {to.type}")
        if name == "index" and not on_cuda(args[0]) and any(i is not None and i.dtype == torch.bool for i in args[1]):
            return args[0].new_empty(1, *args[0].shape[1:])  # a mask on the host chooses one
        indices = args[1] if name.startswith("index") and on_cuda(args[0]) else ()
        if isinstance(indices, (list, tuple)) and any(isinstance(i, Tensor) and not on_cuda(i) for i in indices):
            self.wait("an index on the host")
        found = function(*args, **kwargs)
        if name in ("mm", "addmm", "bmm", "convolution"):
            self.computed.add(found.dtype)
        return found


class Mode(FakeTensorMode):
    def dispatch(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is DEVICE:
            return device_in_cpp(args)
        return super().dispatch(function, types, args, of_python(kwargs))

    def __deepcopy__(self, memo: Any) -> Mode:
        return self  # a copied tensor is of the same mode


def _definitely_not(*_: Any) -> bool:
    return False


@contextmanager
def fake_gpu(real: Any) -> Iterator[tuple[Watched, Any]]:
    """In this block new tensors are fake, and can be on `cuda`. Yields a copy of `real`, too, with fake tensors on the
    device of the real ones."""
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
            ),  # else no module.to: the mode has some
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
