"""Which values of the groups `trainer` and `hardware` go together."""

from __future__ import annotations

from dataclasses import fields

from engine.device.options import ATTENTION, CUDA_GRAPHS, HardwareConfig
from engine.errors import ConfigError
from engine.parallel import ONE_PROCESS, Strategy, check_share
from engine.schema import show


def check_options(trainer: Strategy, hardware: HardwareConfig) -> None:
    """ConfigError for the first two that do not. Imports no torch."""
    compiling = f"hardware.compile={hardware.compile if isinstance(hardware.compile, str) else show(hardware.compile)}"
    if isinstance(hardware.num_procs, int):
        if trainer.strategy in ONE_PROCESS and hardware.num_procs > 1:
            raise ConfigError(
                f"hardware.num_procs: trainer={trainer.strategy} is one process, not {hardware.num_procs} - "
                "use trainer=ddp"
            )
        check_share(trainer.global_batch_size, hardware.num_procs)
    if trainer.strategy == "fsdp" and trainer.fsdp is None:
        raise ConfigError("trainer.strategy=fsdp: trainer.fsdp, which says how to shard, is null - use trainer=fsdp")
    if trainer.strategy == "fsdp" and hardware.device == "mps":
        raise ConfigError("trainer.strategy=fsdp: shards over CUDA devices or CPU processes, not mps - trainer=single")
    if trainer.strategy == "ddp" and hardware.device == "mps" and hardware.num_procs not in (1, "auto"):
        raise ConfigError("hardware.num_procs: a machine has one mps device - use hardware=cpu or trainer=single")
    if hardware.precision == "tf32" and hardware.device in ("cpu", "mps"):
        raise ConfigError(
            f"hardware.precision: tf32 is a mode of CUDA devices, not of {hardware.device} - use fp32, bf16 or fp16"
        )
    if trainer.strategy == "dp" and hardware.device in ("cpu", "mps"):
        raise ConfigError(f"trainer=dp: shares a batch among several GPUs, not on {hardware.device} - use trainer=ddp")
    if trainer.strategy == "dp" and hardware.compile:
        raise ConfigError(f"{compiling}: trainer=dp copies the model at each step - use trainer=ddp")
    if trainer.strategy == "fsdp" and hardware.compile in CUDA_GRAPHS:
        raise ConfigError(
            f"{compiling}: a CUDA graph cannot hold trainer=fsdp's collectives between the blocks - use default"
        )
    if hardware.deterministic and hardware.compile == "max-autotune":
        raise ConfigError(
            "hardware.compile=max-autotune: chooses kernels by their speed, so another run may round "
            "in another way - use default with hardware.deterministic=true"
        )
    if trainer.strategy == "fsdp" and hardware.channels_last:
        raise ConfigError("hardware.channels_last=true: trainer=fsdp shards weights in torch's order - leave it false")
    if hardware.precision == "bf16-weights" and trainer.strategy in ("dp", "fsdp"):
        other = "fsdp gathers its blocks in bf16 already" if trainer.strategy == "fsdp" else "dp makes its own copies"
        raise ConfigError(f"hardware.precision=bf16-weights: trainer={other} - use hardware.precision=bf16")
    if hardware.activation_checkpointing_keeps != "inputs" and not hardware.activation_checkpointing:
        raise ConfigError(
            f"hardware.activation_checkpointing_keeps={hardware.activation_checkpointing_keeps}: "
            "hardware.activation_checkpointing names no modules - give auto"
        )
    if hardware.activation_checkpointing_keeps == "matmuls" and hardware.precision == "bf16-weights":
        raise ConfigError(
            "hardware.activation_checkpointing_keeps=matmuls: its recomputation must see the weights of the forward "
            "pass, and the bf16 copies are gone by then - use hardware.precision=bf16, or keep inputs"
        )
    if hardware.cuda_graph:
        _check_graph(trainer, hardware)
    if wrong := next((name for name in hardware.attention if name not in ATTENTION), None):
        raise ConfigError(f"hardware.attention: no kernel {show(wrong)} - give {', '.join(ATTENTION)}, or []")
    if trainer.strategy == "dp" and hardware.activation_checkpointing:
        raise ConfigError(
            "hardware.activation_checkpointing: trainer=dp copies the model at each step - use trainer=ddp"
        )
    _check_ddp(trainer, hardware)


def _check_graph(trainer: Strategy, hardware: HardwareConfig) -> None:
    """Refuse what a graph of the whole step cannot hold."""
    precision, mode, strategy = hardware.precision, hardware.compile, trainer.strategy
    for refused, why in (
        (strategy != "single", f"holds one GPU's step, not that of trainer={strategy} - trainer=single"),
        (hardware.device in ("cpu", "mps"), f"is a GPU's, and hardware.device is {hardware.device} - hardware=gpu"),
        (mode in CUDA_GRAPHS, f"cannot hold those of hardware.compile={mode} - hardware.compile=default or false"),
        (precision == "fp16", "does not hold the scale of fp16's losses - hardware.precision=bf16"),
        (hardware.detect_anomaly, "asks the GPU for nothing, as detect_anomaly does - hardware.detect_anomaly=false"),
    ):
        if refused:
            raise ConfigError(f"hardware.cuda_graph=true: a graph of the step {why}")


def _check_ddp(trainer: Strategy, hardware: HardwareConfig) -> None:
    """Refuse DistributedDataParallel's options with other strategies, where they would have no effect."""
    options = trainer.ddp
    asked = {f"trainer.ddp.{f.name}": getattr(options, f.name) for f in fields(options)}
    asked["trainer.sync_batchnorm"] = trainer.sync_batchnorm
    for key, value in asked.items():
        if value not in (False, None) and trainer.strategy != "ddp":
            raise ConfigError(f"{key}={show(value)}: an option of trainer=ddp, not of {trainer.strategy}")
    if options.find_unused_parameters and options.static_graph:
        raise ConfigError(
            "trainer.ddp.find_unused_parameters=true: leave it false, trainer.ddp.static_graph=true finds them itself"
        )
    if hardware.compile and options.bucket_cap_mb is not None and options.bucket_cap_mb < 1:
        raise ConfigError(
            f"trainer.ddp.bucket_cap_mb={show(options.bucket_cap_mb)}: with hardware.compile torch's first bucket "
            "is 1 MB, and no other may be smaller - give 1 or more"
        )
    if options.comm_hook == "bf16" and hardware.device == "cpu":
        raise ConfigError("trainer.ddp.comm_hook=bf16: torch has it for CUDA only, not for cpu; fp16 works")
    if trainer.sync_batchnorm and hardware.device in ("cpu", "mps"):
        raise ConfigError(
            f"trainer.sync_batchnorm=true: torch's SyncBatchNorm runs on CUDA only, not on {hardware.device}"
        )
