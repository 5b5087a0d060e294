"""Where a run's time goes, how fast it is, and what to change. (Importing it imports no torch.)

Given: the objects of the loop, a device, a directory to write to. Promised: where nothing is asked for, nothing is
wrapped, so nothing is paid; the device is never waited for at a step; times are those of the device, which a GPU's
host runs ahead of.

    running     the profile of a run, and the work of its samples
    timeline    spans on the device's clock, added up by part       report    the table, and what bounds the run
    trace       torch.profiler: a chrome trace, a kernel table      memory    what to change where memory is full
    work        tokens and FLOP of a sample, peak FLOP/s            options   the group `profiler`
    summary     a table of modules: shapes, parameters, FLOP        waits     what asks the device for a value
    writes      what writes to given tensors
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from samebits.lazy_imports import lazy_getattr

if TYPE_CHECKING:
    from samebits.profiling.memory import explained, is_out_of_memory, limit_memory
    from samebits.profiling.options import ProfilerConfig
    from samebits.profiling.running import profiling, work_of
    from samebits.profiling.summary import summarize, summary_table
    from samebits.profiling.waits import allow_waits, observe_waits
    from samebits.profiling.work import Work, count_flop
    from samebits.profiling.writes import observe_writes
else:
    __getattr__ = lazy_getattr(__name__, __file__)
