"""Before a sweep starts: build every job, run one batch of each distinct shape, say what the sweep will take.

Each job is tried in a process of its own, with what one of its ranks would do; nothing is written. With several ranks
the exchange between them is left out of the times, and a model that would be sharded is whole.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from typing import Any

from omegaconf import DictConfig

from engine import early
from engine.config.explain import one_line
from engine.errors import ConfigError, RunFailed
from engine.ranks.cores import CORES_LIMIT, cores
from engine.ranks.cuda import start_method
from engine.ranks.parent import die_with
from engine.sweeps.screen import aligned, clock
from lab.groups import parse_interval

TIMED_STEPS = 3


@dataclass(frozen=True)
class Candidate:
    """A job before it is written."""

    number: int
    label: str
    cfg: DictConfig


@dataclass(frozen=True)
class Trial:
    """What one rank of a job did. shape: what decides times and memory. step_s, eval_s: of one optimizer step, of one
    evaluation; None: a job of the same shape has been timed before. threads: it computed with."""

    shape: str
    batch: str
    steps: int
    evaluations: int
    step_s: float | None
    eval_s: float | None
    memory: int
    threads: int


def preflight(candidates: Sequence[Candidate], at_once: int) -> str:
    """The table for the user. Raises ConfigError or RunFailed for the first job that cannot be built or run."""
    import torch  # noqa: F401 - once, for all processes

    known: dict[str, Trial] = {}
    rows = [["job", "steps", "ms a step", "memory", "time", "batch", "overrides"]]
    seconds, memory = 0.0, 0
    for candidate in candidates:
        early.leave_if_asked()
        trial = in_a_process(candidate, sorted(known), max(1, cores() // at_once))
        timed = known.setdefault(trial.shape, trial)
        assert timed.step_s is not None and timed.eval_s is not None  # noqa: PT018
        job_s = trial.steps * timed.step_s + trial.evaluations * timed.eval_s
        seconds, memory = seconds + job_s, max(memory, timed.memory)
        figures = [f"{trial.steps:,}", f"{1e3 * timed.step_s:.1f}", megabytes(timed.memory), clock(job_s)]
        rows.append([str(candidate.number), *figures, trial.batch, candidate.label])
    total = f"preflight: {len(candidates)} jobs of {len(known)} shapes, about {clock(seconds)} one after the other"
    if at_once > 1:
        total += f", {clock(seconds / at_once)} with {at_once} at once"
    return f"{aligned(rows)}\n\n{total}; memory of a rank: up to {megabytes(memory)}"


def in_a_process(candidate: Candidate, known: Sequence[str], num_cores: int) -> Trial:
    context: Any = multiprocessing.get_context(start_method())
    receive, send = context.Pipe(duplex=False)
    process = context.Process(target=_child, args=(candidate.cfg, num_cores, list(known), send, os.getpid()))
    process.start()
    send.close()
    try:
        kind, value = receive.recv()
    except EOFError:
        process.join()
        kind, value = (
            "failed",
            f"it ended with status {process.exitcode} (below 0: by that signal; -9: no memory left?)",
        )
    finally:
        receive.close()
        process.join()
    where = f"preflight: job {candidate.number} ({candidate.label}): "
    if kind == "mistake":
        raise ConfigError(where + value)
    if kind == "failed":
        raise RunFailed(where + value)
    return Trial(**value)


def _child(cfg: DictConfig, num_cores: int, known: list[str], send: Connection, parent: int) -> None:
    die_with(parent)
    os.environ[CORES_LIMIT] = str(num_cores)
    try:
        send.send(("good", vars(try_out(cfg, known))))
    except ConfigError as error:
        send.send(("mistake", str(error)))
    except Exception as error:
        at = traceback.extract_tb(error.__traceback__)[-1]  # all of it shows a run of this job alone
        send.send(("failed", f"{type(error).__name__}: {one_line(error)} ({at.filename}:{at.lineno})"))
    except KeyboardInterrupt:
        os._exit(130)


def try_out(cfg: DictConfig, known: Sequence[str]) -> Trial:
    """Build what the config names; run a batch where no job of its shape has."""
    import torch

    from engine.ranks import hardware
    from engine.ranks.balance import peak_memory
    from engine.ranks.ddp import wrap
    from engine.ranks.distributed import World
    from engine.ranks.seed import seed_everything
    from engine.ranks.threads import measure
    from lab import build
    from lab.loop import forward_loss

    config = build.Config.of(cfg)
    machine = hardware.resolve(config.hardware, config.trainer)
    hardware.apply(config.hardware, machine)
    device = torch.device(machine.device)
    world = World(0, machine.num_procs, 0, device)
    sets = {split: build.make_dataset(config.dataset, split) for split in ("train", "val", "test")}
    if sets["train"] is None:
        raise ConfigError("data.splits.train=null: there is nothing to train on; name the group that holds the split")
    train = build.make_train_loader(config, machine, sets["train"], world, 0)
    val, test = (build.make_eval_loader(config, machine, sets[split], world) for split in ("val", "test"))
    try:
        seed_everything(cfg.seed)
        model = build.make_model(config).to(device)
        task = build.make_task(config, device)
        steps = build.count_steps(config.trainer, len(sets["train"]))
        net = wrap(model, World(0, 1, 0, device), config.trainer)  # dp's copies; else the model itself
        # one process, which holds the whole of a model that fsdp would cut
        config = replace(config, trainer=replace(config.trainer, strategy="single"))
        state, settings = build.make_state(config, machine, model, steps, World(0, 1, 0, device))
        build.make_callbacks(config)
        batches = iter(train)
        first = next(batches)
        shape = shape_of(model, first, [machine, config.trainer.ema_decay, config.optimizer["_target_"]])
        batch = ", ".join(f"{name} {tuple(value.shape)}" for name, value in first.items())
        step_s = eval_s = None
        if shape not in known:
            if not machine.threads.why:
                most = machine.threads.most
                autocast = hardware.autocast(machine)
                torch.set_num_threads(measure(most, model, task, lambda: first, forward_loss, autocast).count)
            step_s = _step_s(net, state, task, itertools.chain([first], batches), settings, device)
            size = min(
                len(sets["val"] or ()),
                (config.trainer.max_eval_batches or sys.maxsize) * config.trainer.global_batch_size,
            )
            num_batches = -(-size // (machine.eval_batch_size * machine.num_procs))
            eval_s = num_batches * _eval_batch_s(model, task, val, settings, device)
        memory = int(peak_memory(device))
        per_epoch = len(sets["train"]) / config.trainer.global_batch_size
        every = parse_interval(config.trainer.eval_every, per_epoch)
        evaluations = steps // every if every else 0
        return Trial(shape, batch, steps, evaluations, step_s, eval_s, memory, torch.get_num_threads())
    finally:
        for loader in (train, val, test):
            if loader is not None:
                loader.close()


def _step_s(model: Any, state: Any, task: Any, batches: Iterator[Any], settings: Any, device: Any) -> float:
    from lab.loop import train_step

    train_step(model, state, task, batches, settings)  # the first one allocates
    synchronize(device)
    began = time.perf_counter()
    for _ in range(TIMED_STEPS):
        train_step(model, state, task, batches, settings)
    synchronize(device)
    return (time.perf_counter() - began) / TIMED_STEPS


def _eval_batch_s(model: Any, task: Any, val: Any, settings: Any, device: Any) -> float:
    from engine.ranks.distributed import World
    from lab.loop import evaluate

    if val is None:
        return 0.0
    began = time.perf_counter()
    evaluate(model, task, itertools.islice(iter(val), 1), World(0, 1, 0, device), settings.autocast, val.lengths)
    return time.perf_counter() - began


def synchronize(device: Any) -> None:
    import torch

    if device.type != "cpu":
        getattr(torch, device.type).synchronize()


def shape_of(model: Any, batch: dict[str, Any], more: Sequence[Any]) -> str:
    """Equal for jobs whose steps take the same time and memory."""
    parameters = [tuple(p.shape) for p in model.parameters()]
    return repr((type(model), parameters, [(k, v.shape, v.dtype) for k, v in batch.items()], *more))


def megabytes(size: int) -> str:
    return f"{size / 2**20:,.0f} MB"
