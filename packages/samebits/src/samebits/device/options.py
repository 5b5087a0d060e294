"""The schema of the config group `hardware`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from samebits.schema import WHICH_GPUS, Rule, option

BLOCKS = "blocks"  # mode of hardware.compile: only the model's blocks
CUDA_GRAPHS = ("reduce-overhead", "max-autotune")  # modes of hardware.compile that use CUDA graphs
ATTENTION = ("cudnn", "flash", "efficient", "math")  # torch's kernels for scaled_dot_product_attention


@dataclass(frozen=True)
class HardwareConfig:
    """The options of conf/hardware. None: a default that depends on other options."""

    device: Annotated[str, Rule(words=("auto", "cpu", "cuda", "mps"), hint=WHICH_GPUS)] = "auto"
    num_procs: Annotated[int | str, Rule(words=("auto",), at_least=1)] = "auto"
    precision: Annotated[str, option("auto", "fp32", "tf32", "bf16", "bf16-weights", "fp16")] = "auto"
    micro_batch_size: Annotated[int | str | None, Rule(words=("auto",), at_least=1)] = None
    eval_batch_size: Annotated[int | None, Rule(at_least=1)] = None
    activation_checkpointing: list[str] | str = field(default_factory=list)
    activation_checkpointing_keeps: Annotated[str, option("inputs", "matmuls")] = "inputs"
    attention: list[str] = field(default_factory=list)
    compile: Annotated[bool | str, option("default", BLOCKS, *CUDA_GRAPHS)] = False
    cuda_graph: bool = False
    channels_last: bool = False
    deterministic: bool = False
    cudnn_benchmark: bool | None = None
    detect_anomaly: bool = False
    num_threads: Annotated[int | str, Rule(words=("auto",), at_least=1, at_most=1024)] = "auto"
    numa_binding: bool = True
