"""Profile a run: where its time goes, how fast it is, and which keys to change. Importing it does not import torch.

Input: the objects of the training loop, a device, a directory to write to. Output: profile.json, traces, tables, and
sentences that name a key.

Guarantees: without a profiler nothing is wrapped, so it costs nothing. Steps never synchronize with the device. Times
are measured on the device's clock, because the host of a GPU runs ahead of it.

Errors: OutOfMemory, which names the key to change.

    running      the profile of a run, and the amount of work per sample
    timeline     spans on the device's clock, added up by part
    report       the table of a profile, and what limits the run
    trace        torch.profiler: a Chrome trace and a table of kernels
    functions    Python functions: a table by cProfile and a flame graph
    memory       which key to change when memory is full
    sample_cost  tokens and FLOP per sample, peak FLOP/s
    options      the schema of the config group `profiler`
    summary      a table of modules: shapes, parameters, FLOP
    graph        the graph of a forward pass: modules, and autograd's operations
    diagram      a directed graph as an SVG
    waits        operations that synchronize the host with the device
    writes       operations that write to given tensors
"""

from typing import TYPE_CHECKING

from samebits.lazy_imports import lazy_getattr

if TYPE_CHECKING:
    from samebits.profiling.graph import (
        autograd_svg as autograd_svg,
        forward_graph as forward_graph,
        module_svg as module_svg,
    )
    from samebits.profiling.memory import (
        explained as explained,
        is_out_of_memory as is_out_of_memory,
        limit_memory as limit_memory,
    )
    from samebits.profiling.options import ProfilerConfig as ProfilerConfig
    from samebits.profiling.running import cost_of_sample as cost_of_sample, profiling as profiling
    from samebits.profiling.sample_cost import SampleCost as SampleCost, count_flop as count_flop
    from samebits.profiling.summary import summarize as summarize, summary_table as summary_table
    from samebits.profiling.waits import allow_waits as allow_waits, observe_waits as observe_waits
    from samebits.profiling.writes import observe_writes as observe_writes
else:
    __getattr__ = lazy_getattr(__name__, __file__)
