"""What a user may set of the strategies: parts of the group `trainer`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Protocol

from samebits.errors import ConfigError
from samebits.schema import Rule, option

ONE_PROCESS = ("single", "dp")  # strategies


@dataclass(frozen=True)
class DDPConfig:
    find_unused_parameters: bool = False
    static_graph: bool = False
    bucket_cap_mb: Annotated[float | None, Rule(above=0)] = None
    comm_hook: Annotated[str | None, option("fp16", "bf16")] = None


@dataclass(frozen=True)
class FsdpConfig:
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
    def strategy(self) -> str: ...
    @property
    def global_batch_size(self) -> int: ...
    @property
    def ddp(self) -> DDPConfig: ...
    @property
    def fsdp(self) -> FsdpConfig | None: ...
    @property
    def sync_batchnorm(self) -> bool: ...


def check_share(global_batch_size: int, num_procs: int) -> int:
    """Samples per process in one optimizer step: global_batch_size / num_procs; ConfigError if not a whole number."""
    share, left = divmod(global_batch_size, num_procs)
    if left:
        near = max(share, 1) * num_procs
        raise ConfigError(
            f"trainer.global_batch_size: {global_batch_size} cannot be shared equally by {num_procs} processes "
            f"(hardware.num_procs) - {near} can"
        )
    return share
