"""Trace some steps with torch.profiler: a Chrome trace and a table of kernels in the run directory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function, schedule

from samebits.files import replace_text
from samebits.profiling.options import ProfilerConfig

ROWS = 40  # in the table of kernels
MOST_EVENTS = 200_000  # in the memory history


class Trace:
    """A recorder of spans for torch.profiler. It skips `wait` steps, discards `warmup` steps and records `active`
    steps."""

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
        self.written, self._left = False, options.wait + options.warmup  # steps until the first recorded step

    def begin(self, part: str) -> None:
        """Open a span of this part."""
        span = record_function(part)
        span.__enter__()
        self._open.append(span)

    def end(self) -> None:
        """Close the innermost span."""
        self._open.pop().__exit__(None, None, None)

    def start(self) -> None:
        """Start the profiler and the memory history."""
        self.folder.mkdir(exist_ok=True)
        record_memory(self.on_gpu, MOST_EVENTS)
        self._profile.start()

    def step(self) -> None:
        """Advance the profiler by a step."""
        self._left -= 1
        if self.on_gpu and not self._left:  # otherwise kernels queued by earlier steps would be counted
            torch.cuda.synchronize()
        self._profile.step()

    def stop_recording(self) -> None:
        """Stop the profiler, but not the memory history, and write the recorded steps."""
        self._profile.stop()

    def stop(self) -> None:
        """Stop the profiler and the memory history."""
        self.stop_recording()
        record_memory(self.on_gpu, None)

    @property
    def trace_file(self) -> Path:
        """Path of the Chrome trace."""
        return self.folder / f"trace_rank{self.rank}.json"

    @property
    def kernels_file(self) -> Path:
        """Path of the table of kernels."""
        return self.folder / f"kernels_rank{self.rank}.txt"

    def _write(self, done: Any) -> None:
        self.trace_file.unlink(missing_ok=True)  # a link would be followed
        done.export_chrome_trace(str(self.trace_file))
        by = "self_device_time_total" if self.on_gpu else "self_cpu_time_total"
        averages = done.key_averages(group_by_input_shape=True)
        replace_text(self.kernels_file, averages.table(sort_by=by, row_limit=ROWS))
        self.written = True


def record_memory(on_gpu: bool, most_events: int | None) -> None:
    """Record CUDA allocations with Python stacks, for `dump_memory`. most_events=None: stop recording. C++ stacks, the
    default of torch, slow each step and take minutes to write."""
    record: Any = getattr(torch.cuda.memory, "_record_memory_history", None)
    if on_gpu and record is not None:
        record(stacks="python", max_entries=most_events) if most_events else record(enabled=None)


def dump_memory(file: Path) -> bool:
    """Write the history of `record_memory`, for pytorch.org/memory_viz. Return True if a file was written."""
    dump: Any = getattr(torch.cuda.memory, "_dump_snapshot", None)
    if dump is None or not torch.cuda.is_initialized():
        return False
    file.unlink(missing_ok=True)  # a link would be followed
    dump(str(file))
    return True
