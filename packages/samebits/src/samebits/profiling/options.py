"""The schema of the config group `profiler`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from samebits.schema import Rule, option


@dataclass(frozen=True)
class ProfilerConfig:
    """wait, warmup, active: numbers of steps. peak_tflops: peak of one device in TFLOP/s; None: looked up by its
    name."""

    kind: Annotated[str, option("none", "simple", "torch", "python")] = "none"
    wait: Annotated[int, Rule(at_least=0)] = 5
    warmup: Annotated[int, Rule(at_least=0)] = 2
    active: Annotated[int, Rule(at_least=1)] = 5
    flop: Annotated[bool | str, Rule(words=("auto",))] = "auto"
    peak_tflops: Annotated[float | None, Rule(above=0)] = None
