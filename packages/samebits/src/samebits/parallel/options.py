"""Options of the strategies: parts of the config group `trainer`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Protocol

from samebits.errors import ConfigError
from samebits.schema import Rule, option

ONE_PROCESS = ("single", "dp")  # strategies


@dataclass(frozen=True)
class DDPConfig:
    """Options of trainer=ddp, named as in torch's DistributedDataParallel."""

    find_unused_parameters: bool = False
    static_graph: bool = False
    bucket_cap_mb: Annotated[float | None, Rule(above=0)] = None
    comm_hook: Annotated[str | None, option("fp16", "bf16")] = None


@dataclass(frozen=True)
class FsdpConfig:
    """Options of trainer=fsdp."""

    wrap: list[str] | str = "auto"
    param_dtype: Annotated[str, option("auto", "fp32")] = "auto"
    reduce_dtype: Annotated[str, option("fp32", "bf16")] = "fp32"
    replicas: Annotated[int, Rule(at_least=1)] = 1
    reshard_after_forward: bool = True
    reduce_each_micro_batch: bool = False
    cpu_offload: bool = False


class Strategy(Protocol):
    """The values of the group `trainer` that samebits.parallel and samebits.device read."""

    @property
    def strategy(self) -> str:
        """Return single, dp, ddp or fsdp."""

    @property
    def global_batch_size(self) -> int:
        """Return the samples per optimizer step, of all ranks."""

    @property
    def ddp(self) -> DDPConfig:
        """Return the options of trainer=ddp."""

    @property
    def fsdp(self) -> FsdpConfig | None:
        """Return the options of trainer=fsdp; None for other strategies."""

    @property
    def sync_batchnorm(self) -> bool:
        """Return whether BatchNorm uses the samples of all ranks."""


def check_share(global_batch_size: int, num_procs: int) -> int:
    """Return the samples per process and optimizer step: global_batch_size / num_procs.

    Raise ConfigError if it is not an integer.
    """
    share, left = divmod(global_batch_size, num_procs)
    if left:
        near = max(share, 1) * num_procs
        raise ConfigError(
            f"trainer.global_batch_size={global_batch_size}: must be divisible by {num_procs} processes "
            f"(hardware.num_procs) - use {near}"
        )
    return share
