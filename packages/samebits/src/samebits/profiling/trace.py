"""Trace some steps with torch.profiler: a Chrome trace and a table of kernels in the run directory."""

from __future__ import annotations

from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function, schedule

from samebits.files import replace_text
from samebits.profiling.options import ProfilerConfig
from samebits.status import shown

ROWS = 40  # in the table of kernels
MOST_EVENTS = 200_000  # in the memory history


class Trace:
    """A callback that traces a run within its block, and a recorder of spans. It skips `wait` steps, discards `warmup`
    steps and records `active` steps."""

    def __init__(self, options: ProfilerConfig, folder: Path, run: Any) -> None:
        self.folder, self._world, self._logger = folder, run.world, run.logger
        self._open: list[Any] = []
        self._on_gpu = run.world.device.type == "cuda"
        activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if self._on_gpu else [])]
        self._profile = profile(
            activities=activities,
            schedule=schedule(wait=options.wait, warmup=options.warmup, active=options.active, repeat=1),
            on_trace_ready=self._write,
            record_shapes=True,
            profile_memory=True,
        )
        self._left = options.wait + options.warmup  # steps until the first recorded step
        self._written = self._stopped = False

    def __enter__(self) -> Trace:
        self.folder.mkdir(exist_ok=True)
        record_memory(self._on_gpu, MOST_EVENTS)
        self._profile.start()
        return self

    def __exit__(self, kind: Any, *error: object) -> None:
        """Stop the profiler; warn if the run was too short for a trace. After a failure the memory history is still
        needed, but a process that exits while torch records crashes."""
        if self._stopped:
            return
        with suppress(Exception) if kind else nullcontext():  # e.g. a full disk: the error of the run is more important
            self._profile.stop()
        if not kind:
            record_memory(self._on_gpu, None)
        if not (kind or self._written):
            self._logger.warn(
                "profiler=torch: no trace, because the run ended before profiler.wait + warmup + active steps"
            )

    def begin(self, part: str) -> None:
        """Open a span of this part."""
        span = record_function(part)
        span.__enter__()
        self._open.append(span)

    def end(self) -> None:
        """Close the innermost span."""
        self._open.pop().__exit__(None, None, None)

    def on_step(self, state: Any) -> None:
        """Advance the profiler; stop it and print the paths when the trace is written."""
        if self._stopped:
            return
        self._left -= 1
        if self._on_gpu and not self._left:  # otherwise kernels queued by earlier steps would be counted
            torch.cuda.synchronize()
        self._profile.step()
        if self._written:
            self._stopped = True
            files = f"trace: {shown(self._file('trace', 'json'))}, kernels: {shown(self._file('kernels', 'txt'))}"
            ranks = self._world.size
            self._logger.say(files + (f"; each of the {ranks} ranks writes these files" * (ranks > 1)))
            self._profile.stop()
            record_memory(self._on_gpu, None)

    def _file(self, name: str, ending: str) -> Path:
        return self.folder / f"{name}_rank{self._world.rank}.{ending}"

    def _write(self, done: Any) -> None:
        trace = self._file("trace", "json")
        trace.unlink(missing_ok=True)  # a link would be followed
        done.export_chrome_trace(str(trace))
        by = "self_device_time_total" if self._on_gpu else "self_cpu_time_total"
        averages = done.key_averages(group_by_input_shape=True)
        replace_text(self._file("kernels", "txt"), averages.table(sort_by=by, row_limit=ROWS))
        self._written = True


def record_memory(on_gpu: bool, most_events: int | None) -> None:
    """Record CUDA allocations with Python stacks, for `dump_memory`. most_events=None: stop recording. C++ stacks, the
    default of torch, slow each step and take minutes to write."""
    if on_gpu:
        how: dict[str, Any] = {"stacks": "python", "max_entries": most_events} if most_events else {"enabled": None}
        torch.cuda.memory._record_memory_history(**how)


def dump_memory(file: Path) -> bool:
    """Write the history of `record_memory`, for pytorch.org/memory_viz. Return True if a file was written."""
    if not torch.cuda.is_initialized():
        return False
    file.unlink(missing_ok=True)  # a link would be followed
    torch.cuda.memory._dump_snapshot(str(file))
    return True
