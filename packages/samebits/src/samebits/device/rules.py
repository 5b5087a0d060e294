"""Check for conflicts between values of the groups `trainer` and `hardware`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields

from samebits.device.options import ATTENTION, CUDA_GRAPHS, HardwareConfig
from samebits.errors import ConfigError
from samebits.parallel import ONE_PROCESS, Strategy, check_share
from samebits.schema import show

Case = tuple[bool, str]  # (True if there is a conflict, the message)


def check_options(trainer: Strategy, hardware: HardwareConfig) -> None:
    """Raise ConfigError for the first conflict. Does not import torch."""
    if isinstance(hardware.num_procs, int) and trainer.strategy not in ONE_PROCESS:
        check_share(trainer.global_batch_size, hardware.num_procs)
    for wrong, line in (*_strategy(trainer, hardware), *_graph(trainer, hardware), *_ddp(trainer, hardware)):
        if wrong:
            raise ConfigError(line)


def _strategy(trainer: Strategy, hardware: HardwareConfig) -> list[Case]:
    strategy, device, mode, precision = trainer.strategy, hardware.device, hardware.compile, hardware.precision
    fsdp, dp, many = strategy == "fsdp", strategy == "dp", hardware.num_procs not in (1, "auto")
    compiling = f"hardware.compile={mode if isinstance(mode, str) else show(mode)}"
    keeps, again = hardware.activation_checkpointing_keeps, bool(hardware.activation_checkpointing)
    other = "fsdp already gathers its blocks in bf16" if fsdp else "dp makes its own copies"
    strange = next((name for name in hardware.attention if name not in ATTENTION), None)
    return [
        (many and strategy in ONE_PROCESS,
         f"hardware.num_procs: trainer={strategy} is one process, not {hardware.num_procs} - use trainer=ddp"),
        (fsdp and trainer.fsdp is None,
         "trainer.strategy=fsdp: trainer.fsdp, the options of sharding, is null - use trainer=fsdp"),
        (fsdp and device == "mps",
         "trainer.strategy=fsdp: requires CUDA devices or CPU processes, not mps - use trainer=single"),
        (many and strategy == "ddp" and device == "mps",
         "hardware.num_procs: a machine has one mps device - use hardware=cpu or trainer=single"),
        (precision == "tf32" and device in ("cpu", "mps"),
         f"hardware.precision: tf32 is a mode of CUDA devices, not of {device} - use fp32, bf16 or fp16"),
        (dp and device in ("cpu", "mps"),
         f"trainer=dp: splits a batch over several GPUs, not available on {device} - use trainer=ddp"),
        (dp and bool(mode), f"{compiling}: trainer=dp copies the model at each step - use trainer=ddp"),
        (fsdp and mode in CUDA_GRAPHS,
         f"{compiling}: a CUDA graph cannot contain the collectives of trainer=fsdp - use hardware.compile=default"),
        (hardware.deterministic and mode == "max-autotune",
         "hardware.compile=max-autotune: chooses kernels by their measured speed, so another run may round differently "
         "- use default with hardware.deterministic=true"),
        (fsdp and hardware.channels_last,
         "hardware.channels_last=true: trainer=fsdp requires torch's default memory format - set it to false"),
        (precision == "bf16-weights" and (dp or fsdp),
         f"hardware.precision=bf16-weights: trainer={other} - use hardware.precision=bf16"),
        (keeps != "inputs" and not again, f"hardware.activation_checkpointing_keeps={keeps}: "
         "has no effect, because hardware.activation_checkpointing is empty - set it to auto"),
        (keeps == "matmuls" and precision == "bf16-weights",
         "hardware.activation_checkpointing_keeps=matmuls: the recomputation needs the weights of the forward pass, "
         "but the bf16 copies are freed by then - use hardware.precision=bf16, or inputs"),
        (strange is not None, f"hardware.attention: no kernel {show(strange)} - use {', '.join(ATTENTION)}, or []"),
        (dp and again, "hardware.activation_checkpointing: trainer=dp copies the model at each step - use trainer=ddp"),
    ]  # fmt: skip


def _graph(trainer: Strategy, hardware: HardwareConfig) -> Iterator[Case]:
    """Yield conflicts of hardware.cuda_graph."""
    precision, mode, strategy = hardware.precision, hardware.compile, trainer.strategy
    for refused, why in (
        (strategy != "single", f"requires one GPU, not trainer={strategy} - use trainer=single"),
        (
            hardware.device in ("cpu", "mps"),
            f"requires a GPU, and hardware.device is {hardware.device} - use hardware=gpu",
        ),
        (
            mode in CUDA_GRAPHS,
            f"cannot contain the graphs of hardware.compile={mode} - use hardware.compile=default or false",
        ),
        (precision == "fp16", "does not support loss scaling of fp16 - use hardware.precision=bf16"),
        (
            hardware.detect_anomaly,
            "cannot read values from the GPU, which detect_anomaly does - set hardware.detect_anomaly=false",
        ),
    ):
        yield hardware.cuda_graph and refused, f"hardware.cuda_graph=true: a graph of the step {why}"


def _ddp(trainer: Strategy, hardware: HardwareConfig) -> Iterator[Case]:
    """Yield conflicts of DistributedDataParallel's options; with other strategies they have no effect."""
    options, cap = trainer.ddp, trainer.ddp.bucket_cap_mb
    asked = {f"trainer.ddp.{f.name}": getattr(options, f.name) for f in fields(options)}
    for key, value in (*asked.items(), ("trainer.sync_batchnorm", trainer.sync_batchnorm)):
        useless = value not in (False, None) and trainer.strategy != "ddp"
        yield useless, f"{key}={show(value)}: has no effect with trainer={trainer.strategy}, only with ddp - remove it"
    yield from (
        (options.find_unused_parameters and options.static_graph,
         "trainer.ddp.find_unused_parameters=true: set it to false, because trainer.ddp.static_graph=true finds them"),
        (bool(hardware.compile) and cap is not None and cap < 1,
         f"trainer.ddp.bucket_cap_mb={show(cap)}: with hardware.compile torch's first bucket is 1 MB, and no bucket "
         "may be smaller - use 1 or more"),
        (options.comm_hook == "bf16" and hardware.device == "cpu",
         "trainer.ddp.comm_hook=bf16: torch supports it only on CUDA, not on cpu - use fp16"),
        (trainer.sync_batchnorm and hardware.device in ("cpu", "mps"),
         f"trainer.sync_batchnorm=true: torch's SyncBatchNorm requires CUDA, not {hardware.device} - set it to false"),
    )  # fmt: skip
