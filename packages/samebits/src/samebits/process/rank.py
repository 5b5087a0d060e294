"""Run one rank: open the process group, the logger and the checkpoints, call the training, and record its end."""

from __future__ import annotations

import faulthandler
import math
import os
import time
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from samebits.checkpoints import Checkpoints
from samebits.device import Hardware, resolve_auto_of_run, resolve_hardware
from samebits.files import amount, decimals, write_json
from samebits.loggers import WANDB, Logger, RunLogger, log_to, stopped_by_wandb
from samebits.process.options import Options
from samebits.project import Program, Project
from samebits.runs import record_start
from samebits.saved import read_config
from samebits.schema import seconds
from samebits.status import RESULT, read_status, shown, write_status
from samebits.torch_private import skip_dynamo_import
from samebits.world import (
    NO_RESUME,
    HangWatchdog,
    StopRequest,
    World,
    dist_env,
    process_group,
    quitting_debugger,
    recording_failures,
    stop_on_signals,
)


@dataclass(frozen=True)
class RankProcess:
    """Hold everything that a rank has before the experiment is built.

    config: from Program.read. payload: of the checkpoint to resume from; None for a new run. title: line to log before
    training.
    """

    project: Project
    config: Any
    hardware: Hardware
    world: World
    logger: Logger
    checkpoints: Checkpoints
    stop: StopRequest
    watchdog: HangWatchdog
    payload: dict[str, Any] | None
    title: str

    @property
    def directory(self) -> Path:
        """Return the run directory."""
        return self.checkpoints.directory.parent

    def hardware_for(self, flop: float) -> Hardware:
        """Return `hardware` with the `auto` values that depend on the model. flop: FLOP per sample."""
        return resolve_auto_of_run(self.hardware, self.directory, self.world, flop, begins=self.payload is None)


def run(program: Program, run_dir: Path, began: float) -> None:
    """Run one rank, from the resolved config to result.json. Resume from the newest valid checkpoint if there is one.

    began: time.monotonic() when the command started; process.max_time counts from then.
    """
    rank = dist_env.rank
    with recording_failures(run_dir, rank), stop_on_signals(began) as stop:
        if not faulthandler.is_enabled():  # a job of a sweep has already enabled it, with a file
            faulthandler.enable(file=2)  # print Python's stack to stderr when native code crashes
        train = program.training()
        config: Options = program.read(read_config(program, run_dir))
        timeout_s = seconds(config.process.timeout)
        stop.max_time_s = seconds(config.process.max_time)
        watchdog = HangWatchdog(run_dir, rank, dist_env.size or 1, timeout_s)
        hardware = resolve_hardware(config.hardware, config.trainer)
        hardware.apply(config.hardware)
        if not config.hardware.compile:
            skip_dynamo_import()
        with (
            watchdog.running(),
            process_group(hardware.device, collective_timeout_s(timeout_s)) as world,
            Checkpoints(
                run_dir / "checkpoints", world, save_async=config.process.save_async, saved=stop.saved
            ) as checkpoints,
            recording_failures(run_dir, world.rank, watchdog),
            log_to(run_dir) if world.is_main else nullcontext(),
        ):
            if world.size > 1 and not dist_env.has_parent:
                watchdog.dead_peers = world.dead_peers()
            # ---- the checkpoint to resume from: all ranks check it together and load the same checkpoint
            checkpoints.directory.mkdir(exist_ok=True)
            source, payload = checkpoints.newest_valid(put_aside=True) or (None, None)
            with make_logger(program, run_dir, config, world, payload or {"step": 0}, began) as logger:
                watchdog.before_end = logger.give_up
                title = f"run {shown(run_dir)}" + (f", resumed from {source.name}" if source else "")
                own = RankProcess(program, config, hardware, world, logger, checkpoints, stop, watchdog, payload, title)
                with quitting_debugger(logger.warn):
                    result = train(own)
                watchdog.beat("ending", result["step"], slow=True)
                stop.ended = True
                if world.is_main:
                    finish(run_dir, logger, stop, result, time.monotonic() - began)


def collective_timeout_s(timeout_s: float | None) -> float:
    """Return the timeout of collectives in seconds. timeout_s: process.timeout; None gives 7 days, as torch needs a
    value.

    It is longer than the limit of the hang watchdog, so that the watchdog reports the stuck rank first.
    """
    return 7 * 24 * 3600.0 if timeout_s is None else 2 * HangWatchdog.USER_TIMEOUTS * timeout_s + 60


def longest_start_s(timeout: float | str | None) -> float | None:
    """Return the longest time in seconds that a start may take, or None. timeout: process.timeout."""
    limit_s = seconds(timeout)
    return None if limit_s is None else HangWatchdog.SLOW_TIMEOUTS * limit_s


def make_logger(
    program: Program, run_dir: Path, config: Options, world: World, payload: dict[str, Any], began: float
) -> Logger:
    """Return the RunLogger on rank 0, which continues from the payload's step; on other ranks the null logger."""
    if not world.is_main:
        return Logger()
    record_start(run_dir, began)
    timeout_s = seconds(config.process.timeout)
    # the hang watchdog allows HangWatchdog.SLOW_TIMEOUTS * timeout_s
    most_s = math.inf if timeout_s is None else (HangWatchdog.SLOW_TIMEOUTS - 1) * timeout_s
    return RunLogger(program, run_dir, config.logger, payload["step"], most_s, payload.get("logged_lines"))


def finish(run_dir: Path, logger: Logger, stop: StopRequest, result: dict[str, Any], seconds: float) -> None:
    """Write result.json, status.json and the summary of the loggers. Log a short table."""
    scores = {key: value for key, value in result.items() if "/" in key}
    logger.result(result)
    seconds = round(seconds + read_status(run_dir).get("seconds", 0.0), 2)
    if result.get("pruned"):
        write_status(run_dir, "pruned", step=result["step"], seconds=seconds)
        logger.say(f"pruned by the search at step {result['step']}: {shown(run_dir)}")
        return
    if stop.cause:
        by = WANDB if stop.cause in ("SIGTERM", "SIGINT") and stopped_by_wandb() else stop.cause
        state = "interrupted" if by in ("SIGINT", WANDB) else "preempted"
        write_status(run_dir, state, signal=by, seconds=seconds)
        remedy = "" if NO_RESUME in os.environ else f"; resume with: resume={shown(run_dir)}"
        logger.say(f"stopped by {by} at step {result['step']}, saved{remedy}")
        return
    write_json(run_dir / RESULT, result | {"seconds": seconds})
    write_status(run_dir, "finished", seconds=seconds)
    step, best = result["step"], result.get("best_step")
    whose = f"{'last' if step else 'fresh'} weights, step {step:,}" if best is None else f"best weights, step {best:,}"
    trained = f"in training, until step {step:,}"
    rows = [
        f"  {key:<20} {decimals(value):<9} {trained if key.startswith('train/') else whose}"
        for key, value in scores.items()
    ]
    logger.say("\n".join([f"finished {amount(step, 'step')} in {seconds:.1f} s", *rows, f"  {shown(run_dir)}"]))
