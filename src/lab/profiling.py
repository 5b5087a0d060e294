"""What of the loop is timed with profiler=simple and profiler=torch, and how much work a sample is."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import torch
from torch import Tensor, nn

from lab import descend, loop
from lab.objective import LossModule
from lab.state import Run
from lab.tasks.base import Batch, Task
from samebits.data import Loader
from samebits.device import Hardware
from samebits.errors import first_line
from samebits.files import write_json
from samebits.loggers import Logger
from samebits.profiling import (
    Batches,
    ProfilerConfig,
    Timeline,
    Trace,
    Work,
    as_dict,
    bound,
    count_flop,
    dump_memory,
    explained,
    peak_tflops,
    table,
    wrapped,
)
from samebits.runs import shown
from samebits.steps import rng_row, set_rng_row
from samebits.world import place

# (where a function is called, its name) -> the part that it is; a new one that takes time gets its line here
PARTS = {
    (descend, "clip"): "clip",
    (descend, "update"): "optimizer",
    (loop, "log_train"): "log",
    (loop, "score"): "evaluation",
    (loop, "save"): "save",
}
ASIDE = {  # how to spend less on what is no part of a step
    "evaluation": "raise trainer.eval_every, or set trainer.max_eval_batches",
    "save": "raise trainer.save_every",
    "log": "raise trainer.log_every",
    "transform": "compute less in data.transforms, or once, when the file is packed",
}
PROFILE = "profile.json"
FEW = 20  # measured steps: with fewer, what a run does once (the last save) looks large


@contextmanager
def profiling(
    options: ProfilerConfig, run: Run, nets: Mapping[str, nn.Module], train: Loader, compiles: bool
) -> Iterator[Any]:
    """Yields the loader to train with. With profiler=none that is `train`, and nothing of the loop is touched; an error
    of full memory is explained in any case."""
    device = run.world.device
    folder = run.directory / "profile"

    def where() -> str:
        mark = run.watch.latest()
        return f"{mark.doing}, at step {mark.step}"

    def snapshot() -> str | None:
        file = folder / f"memory_rank{run.world.rank}.pickle"
        return shown(file) if options.kind == "torch" and dump_memory(file) else None

    with explained(run.machine, where, snapshot):
        if options.kind == "none":
            yield train
            return
        simple = options.kind == "simple"
        profiler: Simple | Traced = (
            Simple(options, Timeline(device), run, compiles, train.why)
            if simple
            else Traced(Trace(options, device, folder, run.world.rank), run)
        )
        places: list[tuple[Any, str, str]] = [(*function, part) for function, part in PARTS.items()]
        places.append((torch.Tensor, "backward", "backward"))
        if train.transform is not None:
            places.append((train, "transform", "transform"))
        run.callbacks.append(profiler)
        try:
            with wrapped(places, nets.values(), profiler.spans):
                yield Batches(train, profiler.spans)
        except BaseException:
            profiler.abandon()
            raise
        profiler.end()


class Simple:
    """A callback: the time of each part, and what bounds the run."""

    def __init__(self, options: ProfilerConfig, timeline: Timeline, run: Run, compiles: bool, loader: str) -> None:
        self.spans, self.run, self.wait, self.compiles, self.loader = timeline, run, options.wait, compiles, loader
        self.done = self.first = 0

    def before_step(self, state: Any) -> None:
        if self.done == self.wait:
            self.spans.restart()
            self.first = state.step + 1
        self.done += 1
        self.spans.step()

    def on_log(self, state: Any, values: dict[str, float]) -> None:
        self.spans.collect()

    def abandon(self) -> None:
        """The run has failed."""

    def end(self) -> None:
        self.spans.step_end()
        figures, run = self.spans.collect(), self.run
        if not (run.world.is_main and figures.steps):
            return
        sharded = run.trainer.strategy == "fsdp"
        kind, sentence = bound(figures, run.machine, self.compiles, self.loader, sharded, ASIDE)
        if figures.steps < FEW:
            sentence = f"{sentence} (of {figures.steps} steps: too few to go by)"
        write_json(run.directory / PROFILE, as_dict(figures, kind, sentence))
        head = f"profile of {figures.steps} steps" + (f" from step {self.first} on" if self.first else "")
        run.logger.say(f"{head}{', of rank 0' if run.world.size > 1 else ''}:\n{table(figures)}\n{sentence}")


class Traced:
    """A callback: torch.profiler's trace of some steps."""

    def __init__(self, spans: Trace, run: Run) -> None:
        self.spans, self.logger, self.ranks, self.stopped = spans, run.logger, run.world.size, False
        self.spans.start()

    def on_step(self, state: Any) -> None:
        if not self.stopped:
            self.spans.step()
            if self.spans.written:
                files = f"trace: {shown(self.spans.trace_file)}, kernels: {shown(self.spans.kernels_file)}"
                self.logger.say(files + (f"; each of the {self.ranks} ranks writes its own" * (self.ranks > 1)))
                self.end()

    def abandon(self) -> None:
        """The run has failed: the memory's history is still wanted, but a process that ends while torch records
        crashes."""
        if not self.stopped:
            self.stopped = True
            with suppress(Exception):  # such as a full disk: the run's own error counts
                self.spans.stop_recording()

    def end(self) -> None:
        if not self.stopped:
            self.stopped = True
            self.spans.stop()
            if not self.spans.written:
                self.logger.warn("profiler=torch: the run has ended before profiler.wait + warmup + active steps")


def work_of(
    options: ProfilerConfig, machine: Hardware, model: nn.Module, task: Task, dataset: Any,
    first: Callable[[], Batch], logger: Logger,
) -> Work:  # fmt: skip
    """How much work a sample of `dataset` is; all ranks call this. model: not wrapped, not sharded. first: the next
    training batch."""
    tokens = getattr(dataset, "tokens_per_sample", None)
    wanted = machine.device == "cuda" or options.kind != "none" if options.flop == "auto" else options.flop
    if not wanted:
        return Work(tokens)
    device = place.device(machine.device)
    before = rng_row(device)
    try:
        flop = flop_per_sample(model, task, first())
    except Exception as error:  # such as a loss that asks tensors for their values, which these have not
        logger.say(f"perf/tflop_per_s is left out, as the FLOP cannot be counted: {first_line(error)}")
        return Work(tokens)
    finally:
        set_rng_row(before, device)
    name = torch.cuda.get_device_name(device) if machine.device == "cuda" else "cpu"
    peak = options.peak_tflops or peak_tflops(name, machine.precision)
    if peak is None and machine.device == "cuda":
        logger.say(f"perf/mfu is left out: give profiler.peak_tflops, the peak of {name} in {machine.precision}")
    return Work(tokens, flop, peak and peak * 1e12 * machine.num_procs * machine.devices)


def flop_per_sample(model: nn.Module, task: Task, batch: Batch) -> float:
    """FLOP of forward and backward, each objective once."""

    def loss_of(name: str) -> Callable[..., Tensor]:
        def loss(copies: list[nn.Module], given: Batch) -> Tensor:
            own_model, own_task = copies
            assert isinstance(own_task, Task)
            return LossModule(own_model, own_task, name).train()(given)[0]["loss"].sum()

        return loss

    samples = len(next(iter(batch.values())))
    return count_flop([model, task], batch, [loss_of(name) for name in task.trained(model)]) / samples
