"""Profile a run with profiler=simple, torch or python, and measure the amount of work per sample."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from samebits.data import Loader
from samebits.device import Hardware
from samebits.errors import first_line
from samebits.files import amount, write_json
from samebits.loggers import Logger
from samebits.profiling.functions import Functions
from samebits.profiling.memory import explained
from samebits.profiling.options import ProfilerConfig
from samebits.profiling.report import as_dict, bound, table
from samebits.profiling.sample_cost import Loss, SampleCost, count_flop, peak_tflops
from samebits.profiling.timeline import Batches, Timeline, wrapped
from samebits.profiling.trace import Trace, dump_memory
from samebits.status import shown
from samebits.steps import restored_rng
from samebits.world import dist_env

PROFILE = "profile.json"
FEW = 20  # number of steps; with fewer, one-time costs (the last checkpoint) dominate


@contextmanager
def profiling(
    options: ProfilerConfig, run: Any, nets: Iterable[nn.Module], train: Loader, compiles: bool,
    parts: Mapping[tuple[Any, str], str], aside: Mapping[str, str],
) -> Iterator[Any]:  # fmt: skip
    """Yield the loader to train with. With profiler=none it is `train`, and no part of the loop is changed.
    Out-of-memory errors are explained in all cases.

    run: has hardware, world, trainer, directory, watchdog, logger and callbacks; one callback is added. parts: {(owner
    of a function, its name): the part of a step that it is}. aside: {part: how to spend less time on it}.
    """
    device = run.world.device
    folder = run.directory / "profile"

    def where() -> str:
        mark = run.watchdog.latest()
        return f"{mark.doing}, at step {mark.step}"

    def snapshot() -> str | None:
        file = folder / f"memory_rank{run.world.rank}.pickle"
        return shown(file) if options.kind == "torch" and dump_memory(file) else None

    with explained(run.hardware, where, snapshot):
        if options.kind == "none":
            yield train
            return
        if options.kind == "python":
            with Functions(options, folder, run):
                yield train
            return
        profiler: Simple | Trace
        spans: Timeline | Trace
        if options.kind == "simple":
            spans = timeline = Timeline(device)
            profiler = Simple(options, timeline, run, compiles, train.why, aside)
        else:
            spans = profiler = Trace(options, folder, run)
        places: list[tuple[Any, str, str]] = [(*function, part) for function, part in parts.items()]
        places.append((torch.Tensor, "backward", "backward"))
        if train.transform is not None:
            places.append((train, "transform", "transform"))
        run.callbacks.append(profiler)
        with profiler, wrapped(places, nets, spans):
            yield Batches(train, spans)


class Simple:
    """A callback that measures the time of each part and reports what limits the run."""

    def __init__(
        self, options: ProfilerConfig, timeline: Timeline, run: Any, compiles: bool, loader: str,
        aside: Mapping[str, str],
    ) -> None:  # fmt: skip
        self.spans, self.run, self.wait, self.compiles, self.loader = timeline, run, options.wait, compiles, loader
        self.aside = aside
        self.done = self.first = 0

    def before_step(self, state: Any) -> None:
        """Start a step; restart the measurement after profiler.wait steps."""
        if self.done == self.wait:
            self.spans.restart()
            self.first = state.step + 1
        self.done += 1
        self.spans.step()

    def on_log(self, state: Any, values: dict[str, float]) -> None:
        """Collect the spans that the device has finished."""
        self.spans.collect()

    def __enter__(self) -> Simple:
        return self

    def __exit__(self, kind: Any, *error: object) -> None:
        """Write profile.json and print the table, on rank 0, unless the run has failed."""
        if kind is not None:
            return
        self.spans.step_end()
        figures, run = self.spans.collect(), self.run
        if not (run.world.is_main and figures.steps):
            return
        sharded = run.trainer.strategy == "fsdp"
        kind, sentence = bound(figures, run.hardware, self.compiles, self.loader, sharded, self.aside)
        if figures.steps < FEW:
            sentence = f"{sentence} (measured: {amount(figures.steps, 'step')}, too few for a reliable profile)"
        write_json(run.directory / PROFILE, as_dict(figures, kind, sentence))
        head = f"profile of {amount(figures.steps, 'step')}" + (
            f", starting at step {self.first}" if self.first else ""
        )
        run.logger.say(f"{head}{', rank 0' if run.world.size > 1 else ''}:\n{table(figures)}\n{sentence}")


def cost_of_sample(
    options: ProfilerConfig, hardware: Hardware, modules: list[nn.Module], losses: Mapping[str, Loss], dataset: Any,
    first: Callable[[], dict[str, Any]], logger: Logger,
) -> SampleCost:  # fmt: skip
    """Return the amount of work per sample of `dataset`. All ranks must call this.

    modules: not wrapped, not sharded. losses: {objective: loss}, see `count_flop`. first: returns the next training
    batch.
    """
    tokens = getattr(dataset, "tokens_per_sample", None)
    wanted = hardware.device == "cuda" or options.kind != "none" if options.flop == "auto" else options.flop
    if not wanted:
        return SampleCost(tokens)
    device = dist_env.device(hardware.device)
    try:
        with restored_rng(device):
            batch = first()
            size = len(next(iter(batch.values())))
            flop = {name: count_flop(modules, batch, loss) / size for name, loss in losses.items()}
    except Exception as error:  # e.g. a loss that reads values, which meta tensors do not have
        logger.say(f"perf/tflop_per_s is not logged, because the FLOP cannot be counted: {first_line(error)}")
        return SampleCost(tokens)
    name = torch.cuda.get_device_name(device) if hardware.device == "cuda" else "cpu"
    peak = options.peak_tflops or peak_tflops(name, hardware.precision)
    if peak is None and hardware.device == "cuda":
        logger.say(f"perf/mfu is not logged: set profiler.peak_tflops, the peak of {name} in {hardware.precision}")
    return SampleCost(tokens, flop, peak and peak * 1e12 * hardware.num_procs * hardware.devices)
