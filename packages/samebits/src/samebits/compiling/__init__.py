"""Passes and steps that are compiled: torch.compile, and a step as one CUDA graph. (Importing it imports no torch.)

Given: a model or a function, the group `hardware` and `Hardware`, in which its `auto` is resolved. Returned: what
computes the same, faster; the thing itself where nothing was asked for.

Promised: names of weights stay. What a graph would not do again (values that a step changes on the host, its random
numbers) is found and refused before the step is captured.

Raised: ConfigError for what cannot be compiled or captured.

    dynamo      torch.compile: training, evaluations, chains of transforms, blocks
    captured    a step as one CUDA graph
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from samebits.lazy_imports import lazy_getattr

if TYPE_CHECKING:
    from samebits.compiling.captured import Captured, check_optimizer_of_graph
    from samebits.compiling.dynamo import CompiledChain, compile_blocks, compile_report, compiled, for_evaluation
else:
    __getattr__ = lazy_getattr(__name__, __file__)
