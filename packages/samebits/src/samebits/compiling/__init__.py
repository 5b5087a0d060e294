"""Compile training and evaluation: torch.compile, and a training step as one CUDA graph. Importing it does not import
torch.

Input: a model or a function, the config group `hardware`, and `Hardware`, in which `auto` is resolved. Output: a faster
equivalent, or the same object if nothing is to be compiled.

Guarantees: names of weights do not change. Effects that a graph would not repeat (a step that changes values on the
host or draws random numbers there) are detected and refused before the step is captured.

Errors: ConfigError for a model or step that cannot be compiled or captured.

    dynamo      torch.compile: training, evaluation, chains of transforms, blocks
    captured    a step as one CUDA graph
"""

from typing import TYPE_CHECKING

from samebits.lazy_imports import lazy_getattr

if TYPE_CHECKING:
    from samebits.compiling.captured import Captured as Captured, check_optimizer_of_graph as check_optimizer_of_graph
    from samebits.compiling.dynamo import (
        CompiledChain as CompiledChain,
        compile_blocks as compile_blocks,
        compile_report as compile_report,
        compiled as compiled,
        for_evaluation as for_evaluation,
    )
else:
    __getattr__ = lazy_getattr(__name__, __file__)
