"""torch.profiler over some steps: a chrome trace and a table of kernels in the run directory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function, schedule

from samebits.files import replace_text
from samebits.profiling.options import ProfilerConfig

ROWS = 40  # of the table of kernels
MOST_EVENTS = 200_000  # of the memory's history


class Trace:
    """Spans that a trace shows, and the trace itself: `wait` steps left out, `warmup` thrown away, `active` kept."""

    def __init__(self, options: ProfilerConfig, device: torch.device, folder: Path, rank: int) -> None:
        self._open: list[Any] = []
        self.folder, self.rank = folder, rank
        self.on_gpu = device.type == "cuda"
        activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if self.on_gpu else [])]
        self._profile = profile(
            activities=activities,
            schedule=schedule(wait=options.wait, warmup=options.warmup, active=options.active, repeat=1),
            on_trace_ready=self._write,
            record_shapes=True,
            profile_memory=True,
        )
        self.written, self._left = False, options.wait + options.warmup  # steps until the first one that is kept

    def begin(self, part: str) -> None:
        span = record_function(part)
        span.__enter__()
        self._open.append(span)

    def end(self) -> None:
        self._open.pop().__exit__(None, None, None)

    def start(self) -> None:
        self.folder.mkdir(exist_ok=True)
        record_memory(self.on_gpu, MOST_EVENTS)
        self._profile.start()

    def step(self) -> None:
        self._left -= 1
        if self.on_gpu and not self._left:  # what earlier steps have queued would be counted too
            torch.cuda.synchronize()
        self._profile.step()

    def stop_recording(self) -> None:
        """Of all but memory; what was recorded is written."""
        self._profile.stop()

    def stop(self) -> None:
        self.stop_recording()
        record_memory(self.on_gpu, None)

    @property
    def trace_file(self) -> Path:
        return self.folder / f"trace_rank{self.rank}.json"

    @property
    def kernels_file(self) -> Path:
        return self.folder / f"kernels_rank{self.rank}.txt"

    def _write(self, done: Any) -> None:
        self.trace_file.unlink(missing_ok=True)  # a link would be followed
        done.export_chrome_trace(str(self.trace_file))
        by = "self_device_time_total" if self.on_gpu else "self_cpu_time_total"
        averages = done.key_averages(group_by_input_shape=True)
        replace_text(self.kernels_file, averages.table(sort_by=by, row_limit=ROWS))
        self.written = True


def record_memory(on_gpu: bool, most_events: int | None) -> None:
    """Begin to record CUDA's allocations with Python's stacks, for `dump_memory`; None: end it. C++'s stacks, torch's
    default, slow each step, and take minutes to write."""
    record: Any = getattr(torch.cuda.memory, "_record_memory_history", None)
    if on_gpu and record is not None:
        record(stacks="python", max_entries=most_events) if most_events else record(enabled=None)


def dump_memory(file: Path) -> bool:
    """Write what `record_memory` has recorded, for pytorch.org/memory_viz. Returns whether there is a file."""
    dump: Any = getattr(torch.cuda.memory, "_dump_snapshot", None)
    if dump is None or not torch.cuda.is_initialized():
        return False
    file.unlink(missing_ok=True)  # a link would be followed
    dump(str(file))
    return True
