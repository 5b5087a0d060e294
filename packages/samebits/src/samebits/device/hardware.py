"""Resolve `auto` on this machine, and apply the settings that depend on it."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from samebits.device.options import HardwareConfig
from samebits.device.threads import Threads, decide_threads
from samebits.errors import ConfigError
from samebits.host import bind_to_gpus, count_gpus, hide_gpus, pci_address
from samebits.parallel import ONE_PROCESS, Strategy, check_share, gpus
from samebits.world import ClusterRole, cluster_role, dist_env

AUTOCAST = {"bf16": torch.bfloat16, "bf16-weights": torch.bfloat16, "fp16": torch.float16}
ADD_DDP = "add trainer=ddp; for one process, unset RANK and WORLD_SIZE"


@dataclass(frozen=True)
class Hardware:
    """The group `hardware` with every `auto` resolved.

    micro_batch_sizes: samples of each micro-batch of one optimizer step on one rank. devices: number of devices of this
    process; more than one with trainer=dp.
    """

    device: str
    num_procs: int
    precision: str
    threads: Threads
    micro_batch_sizes: list[int]
    eval_batch_size: int
    compile: str | None = None  # torch.compile's mode
    binding: str = ""  # NUMA node that this process is bound to, for the log; empty: not bound
    devices: int = 1
    cuda_graph: bool = False
    # with auto, precision is the best of the device, bf16 or fp32, until samebits.device.auto decides
    precision_is_auto: bool = False
    precision_why: str = ""

    def apply(self, config: HardwareConfig) -> None:
        """Set torch's global options. Each process must call this."""
        self.set_arithmetic()
        torch.backends.cudnn.benchmark = config.cudnn_benchmark is not False
        torch.autograd.set_detect_anomaly(config.detect_anomaly)
        prefer_attention(config.attention)
        if config.deterministic:
            make_deterministic()

    def set_arithmetic(self) -> None:
        """Set torch's number of threads and the use of TF32."""
        torch.set_num_threads(self.threads.count)
        torch.set_float32_matmul_precision("highest" if self.precision == "fp32" else "high")
        torch.backends.cudnn.allow_tf32 = self.precision != "fp32"

    def autocast(self) -> AbstractContextManager[Any]:
        """Return the context of the forward pass: torch.autocast for bf16 and fp16, otherwise a null context."""
        dtype = AUTOCAST.get(self.precision)
        return nullcontext() if dtype is None else torch.autocast(self.device, dtype)

    def make_scaler(self) -> torch.amp.GradScaler | None:
        """Return a GradScaler for fp16, whose gradients underflow without loss scaling; None for other precisions."""
        return torch.amp.GradScaler(self.device) if self.precision == "fp16" else None


def resolve_hardware(hardware: HardwareConfig, trainer: Strategy) -> Hardware:
    """Resolve every `auto` as a rank of the run does, also in a process that only looks (./run env, ./run tune). May
    initialize CUDA. Raise ConfigError if an option is not available."""
    device, num_procs = choose_device(hardware), count_processes(hardware, trainer)
    share = check_share(trainer.global_batch_size, num_procs)
    devices = len(gpus()) if trainer.strategy == "dp" else 1  # GPUs of this process
    asked = hardware.micro_batch_size
    size = asked if isinstance(asked, int) else share  # auto is like null until a run has found the size
    parts = -(-share // min(size * devices, share))
    if parts > 1 and trainer.ddp.static_graph:
        raise ConfigError(
            "trainer.ddp.static_graph=true: torch does not support it with gradient accumulation, and "
            f"hardware.micro_batch_size={hardware.micro_batch_size} makes {parts} micro-batches of a rank's {share} "
            "samples - remove one of them"
        )
    micro = [share // parts + (i < share % parts) for i in range(parts)]  # sizes differ by at most one
    if hardware.device == "cpu":
        hide_gpus()
    if hardware.cuda_graph and device != "cuda":
        raise ConfigError(f"hardware.cuda_graph=true: requires a GPU, and this run is on {device} - set it to false")
    if device == "cuda":
        # first, because any other CUDA call would create a context on GPU 0 in each rank
        torch.cuda.set_device(dist_env.gpu())
    used = gpus() if trainer.strategy == "dp" else [torch.device("cuda", dist_env.gpu())] if device == "cuda" else []
    binding = bind_to_gpus(map(pci_address, used)) if used and hardware.numa_binding else ""  # before threads start
    half = device == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
    precision, auto = hardware.precision, hardware.precision == "auto"
    if auto:
        precision = "bf16" if half else "fp32"
    threads = decide_threads(hardware.num_threads, device, hardware.deterministic, dist_env.ranks_here(num_procs))
    eval_batch_size = hardware.eval_batch_size or -(-micro[0] // devices)
    mode = "default" if hardware.compile is True else hardware.compile or None
    graph = hardware.cuda_graph
    return Hardware(device, num_procs, precision, threads, micro, eval_batch_size, mode, binding, devices, graph, auto)


def choose_device(hardware: HardwareConfig) -> str:
    """Return cpu, cuda or mps. Raise ConfigError for a device that this machine does not have. Does not initialize
    CUDA."""
    has: dict[str, Callable[[], bool]] = {
        "cuda": lambda: count_gpus() > 0,
        "mps": torch.backends.mps.is_available,
        "cpu": lambda: True,
    }
    if hardware.device == "auto":
        return next(device for device, is_there in has.items() if is_there())
    if not has[hardware.device]():
        raise ConfigError(
            f"hardware.device={hardware.device}: this machine has no such device, or torch cannot use it - "
            "hardware=auto uses an available device"
        )
    return hardware.device


def count_processes(hardware: HardwareConfig, trainer: Strategy) -> int:
    """Return the world size of this run. Does not initialize CUDA, so that ranks can be forked later. Raise ConfigError
    for a conflict with the processes that were started."""
    device, started = choose_device(hardware), dist_env.size
    if started is not None:
        if trainer.strategy in ONE_PROCESS and started > 1:
            raise ConfigError(f"trainer.strategy={trainer.strategy}, but {started} processes were started: {ADD_DDP}")
        if hardware.num_procs not in ("auto", dist_env.local_size):
            raise ConfigError(
                f"hardware.num_procs={hardware.num_procs}, but {dist_env.local_size} were started on this host: "
                "set it to auto"
            )
        return started
    here = cluster_role()
    if here is not None:
        return here.count * _processes_of_host(hardware, trainer, device, here)
    if trainer.strategy in ONE_PROCESS:
        return 1
    return _processes_here(hardware, device, on_cpu=2)


def _processes_of_host(hardware: HardwareConfig, trainer: Strategy, device: str, here: ClusterRole) -> int:
    """Return the number of ranks that one of several hosts starts. On a CPU auto is 1; for more, start more pods or
    tasks."""
    if trainer.strategy in ONE_PROCESS:
        raise ConfigError(f"trainer.strategy={trainer.strategy}, but {here.count} hosts were started: {ADD_DDP}")
    if here.local_count is None:
        return _processes_here(hardware, device, on_cpu=1)
    if hardware.num_procs not in ("auto", here.local_count):
        raise ConfigError(
            f"hardware.num_procs={hardware.num_procs}, but PET_NPROC_PER_NODE={here.local_count}: set it to auto"
        )
    return here.local_count


def _processes_here(hardware: HardwareConfig, device: str, on_cpu: int) -> int:
    gpus = count_gpus()
    if hardware.num_procs == "auto":
        return {"cuda": gpus, "mps": 1}.get(device, on_cpu)
    if device == "cuda" and int(hardware.num_procs) > gpus:
        raise ConfigError(
            f"hardware.num_procs={hardware.num_procs}: each process needs its own GPU (NCCL requires it), "
            f"visible GPUs: {gpus} - use fewer, or hardware=cpu"
        )
    return int(hardware.num_procs)


def make_deterministic() -> None:
    """Make results reproducible bit for bit. Operations without a deterministic implementation then raise."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read when cuBLAS starts
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False


_attention = ExitStack()  # keeps sdpa_kernel's context open; closing it restores torch's order


def prefer_attention(kernels: Sequence[str]) -> None:
    """Make scaled_dot_product_attention try these kernels first in this process; the others stay allowed.

    It is set once, not in the model's forward, because sdpa_kernel costs 80 us per call. It has no effect on CPUs.
    """
    _attention.close()
    if kernels:
        from torch.nn.attention import SDPBackend, sdpa_kernel

        own = {"cudnn": SDPBackend.CUDNN_ATTENTION, "flash": SDPBackend.FLASH_ATTENTION,
               "efficient": SDPBackend.EFFICIENT_ATTENTION, "math": SDPBackend.MATH}  # fmt: skip
        order = [own[name] for name in dict.fromkeys([*kernels, *own])]
        _attention.enter_context(sdpa_kernel(order, set_priority=True))


def in_channels_last(module: nn.Module | None) -> int:
    """Convert weights and buffers with four dimensions (2D convolutions) to channels-last, in place. Return their
    number."""
    own = () if module is None else (*module.parameters(), *module.buffers())
    images = [tensor for tensor in own if tensor.dim() == 4]
    for tensor in images:
        tensor.data = tensor.data.contiguous(memory_format=torch.channels_last)
    return len(images)


def match_memory_format(optimizer: torch.optim.Optimizer) -> None:
    """Give the optimizer's state of each weight the weight's memory format. load_state_dict keeps the checkpoint's
    format, which differs if a resume changes channels_last, and fused kernels read both as flat arrays."""
    for weight, held in optimizer.state.items():
        for name, value in held.items():
            if isinstance(value, Tensor) and value.shape == weight.shape and value.stride() != weight.stride():
                held[name] = torch.empty_like(weight, dtype=value.dtype).copy_(value)
