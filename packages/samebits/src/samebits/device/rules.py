"""Which values of the groups `trainer` and `hardware` go together."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields

from samebits.device.options import ATTENTION, CUDA_GRAPHS, HardwareConfig
from samebits.errors import ConfigError
from samebits.parallel import ONE_PROCESS, Strategy, check_share
from samebits.schema import show

Case = tuple[bool, str]  # (whether it is so, what to say)


def check_options(trainer: Strategy, hardware: HardwareConfig) -> None:
    """ConfigError for the first two that do not. Imports no torch."""
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
    other = "fsdp gathers its blocks in bf16 already" if fsdp else "dp makes its own copies"
    strange = next((name for name in hardware.attention if name not in ATTENTION), None)
    return [
        (many and strategy in ONE_PROCESS,
         f"hardware.num_procs: trainer={strategy} is one process, not {hardware.num_procs} - use trainer=ddp"),
        (fsdp and trainer.fsdp is None,
         "trainer.strategy=fsdp: trainer.fsdp, which says how to shard, is null - use trainer=fsdp"),
        (fsdp and device == "mps",
         "trainer.strategy=fsdp: shards over CUDA devices or CPU processes, not mps - trainer=single"),
        (many and strategy == "ddp" and device == "mps",
         "hardware.num_procs: a machine has one mps device - use hardware=cpu or trainer=single"),
        (precision == "tf32" and device in ("cpu", "mps"),
         f"hardware.precision: tf32 is a mode of CUDA devices, not of {device} - use fp32, bf16 or fp16"),
        (dp and device in ("cpu", "mps"),
         f"trainer=dp: shares a batch among several GPUs, not on {device} - use trainer=ddp"),
        (dp and bool(mode), f"{compiling}: trainer=dp copies the model at each step - use trainer=ddp"),
        (fsdp and mode in CUDA_GRAPHS,
         f"{compiling}: a CUDA graph cannot hold trainer=fsdp's collectives between the blocks - use default"),
        (hardware.deterministic and mode == "max-autotune",
         "hardware.compile=max-autotune: chooses kernels by their speed, so another run may round in another way - use "
         "default with hardware.deterministic=true"),
        (fsdp and hardware.channels_last,
         "hardware.channels_last=true: trainer=fsdp shards weights in torch's order - leave it false"),
        (precision == "bf16-weights" and (dp or fsdp),
         f"hardware.precision=bf16-weights: trainer={other} - use hardware.precision=bf16"),
        (keeps != "inputs" and not again, f"hardware.activation_checkpointing_keeps={keeps}: "
         "hardware.activation_checkpointing names no modules - give auto"),
        (keeps == "matmuls" and precision == "bf16-weights",
         "hardware.activation_checkpointing_keeps=matmuls: its recomputation must see the weights of the forward pass, "
         "and the bf16 copies are gone by then - use hardware.precision=bf16, or keep inputs"),
        (strange is not None, f"hardware.attention: no kernel {show(strange)} - give {', '.join(ATTENTION)}, or []"),
        (dp and again, "hardware.activation_checkpointing: trainer=dp copies the model at each step - use trainer=ddp"),
    ]  # fmt: skip


def _graph(trainer: Strategy, hardware: HardwareConfig) -> Iterator[Case]:
    """What a graph of the whole step cannot hold."""
    precision, mode, strategy = hardware.precision, hardware.compile, trainer.strategy
    for refused, why in (
        (strategy != "single", f"holds one GPU's step, not that of trainer={strategy} - trainer=single"),
        (hardware.device in ("cpu", "mps"), f"is a GPU's, and hardware.device is {hardware.device} - hardware=gpu"),
        (mode in CUDA_GRAPHS, f"cannot hold those of hardware.compile={mode} - hardware.compile=default or false"),
        (precision == "fp16", "does not hold the scale of fp16's losses - hardware.precision=bf16"),
        (hardware.detect_anomaly, "asks the GPU for nothing, as detect_anomaly does - hardware.detect_anomaly=false"),
    ):
        yield hardware.cuda_graph and refused, f"hardware.cuda_graph=true: a graph of the step {why}"


def _ddp(trainer: Strategy, hardware: HardwareConfig) -> Iterator[Case]:
    """DistributedDataParallel's options; with other strategies they would have no effect."""
    options, cap = trainer.ddp, trainer.ddp.bucket_cap_mb
    asked = {f"trainer.ddp.{f.name}": getattr(options, f.name) for f in fields(options)}
    for key, value in (*asked.items(), ("trainer.sync_batchnorm", trainer.sync_batchnorm)):
        useless = value not in (False, None) and trainer.strategy != "ddp"
        yield useless, f"{key}={show(value)}: an option of trainer=ddp, not of {trainer.strategy}"
    yield from (
        (options.find_unused_parameters and options.static_graph,
         "trainer.ddp.find_unused_parameters=true: leave it false, trainer.ddp.static_graph=true finds them itself"),
        (bool(hardware.compile) and cap is not None and cap < 1,
         f"trainer.ddp.bucket_cap_mb={show(cap)}: with hardware.compile torch's first bucket is 1 MB, and no other may "
         "be smaller - give 1 or more"),
        (options.comm_hook == "bf16" and hardware.device == "cpu",
         "trainer.ddp.comm_hook=bf16: torch has it for CUDA only, not for cpu; fp16 works"),
        (trainer.sync_batchnorm and hardware.device in ("cpu", "mps"),
         f"trainer.sync_batchnorm=true: torch's SyncBatchNorm runs on CUDA only, not on {hardware.device}"),
    )  # fmt: skip
