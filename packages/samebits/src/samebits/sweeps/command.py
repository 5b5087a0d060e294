"""The command `train`: one run, or the jobs of a multirun. torch is imported only after the config is resolved.

Exit status: 0 finished, 1 a run failed, 2 a mistake in the configuration, 130 Ctrl-C, 75 preempted (SIGTERM,
SIGUSR1, SIGUSR2, SIGHUP, process.max_time). A preempted run has saved a checkpoint and can be resumed.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import NoReturn

from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from samebits import early_signals
from samebits.config import (
    agents_run,
    as_started,
    check_job_name,
    missing_defaults,
    recipe_hint,
    remove_if_empty,
    run_hydra,
)
from samebits.errors import INTERRUPTED, MISTAKE, Cancelled, ConfigError, RunFailed, plain_output
from samebits.project import Program
from samebits.runs import choose_run
from samebits.schema import plain
from samebits.sweeps.job import run_job
from samebits.world import become_rank, dist_env, run_rendezvous

FINISHED, RUN_FAILED = 0, 1
OF_A_MULTIRUN = ("sweep.", "hydra/launcher", "hydra/sweeper", "hydra.launcher.", "hydra.sweeper.", "hydra.sweep.")


def train(program: Program) -> int:
    """Run the command. Return the exit status; for a multirun, the worst status of its jobs."""
    early_signals.imported()
    plain_output()
    try:
        become_rank()
        if run_rendezvous.follows():  # another rank, started by torchrun or a scheduler: only rank 0 composes
            from samebits.process import join

            return join(program)
    except Cancelled as error:
        print(error, file=sys.stderr)
        return error.status
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return MISTAKE
    statuses = [FINISHED]

    def job(cfg: DictConfig) -> None:
        with as_started():
            statuses.append(train_one(program, cfg))

    try:
        run_hydra(program, job)
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        statuses.append(MISTAKE)
    except RunFailed as error:  # raised by a sweep
        print(f"failed: {error}", file=sys.stderr)
        statuses.append(RUN_FAILED)
    except KeyboardInterrupt:
        return INTERRUPTED
    finally:
        run_rendezvous.release()
    return max(statuses)


def train_one(program: Program, cfg: DictConfig) -> int:
    """Train one composed config. Return the exit status; failures are not raised, so that a multirun continues."""
    hydra = HydraConfig.get()
    run_dir = Path(hydra.runtime.output_dir)
    overrides = [str(text) for text in plain(hydra.overrides.task, resolve=False)]  # optim.lr=${oc.env:LR} as typed
    if cfg.resume not in (None, "auto"):
        overrides = [text.removeprefix("++") for text in overrides]  # samebits.config.compose.for_a_run
    multirun = hydra.mode == RunMode.MULTIRUN
    label = f"job {hydra.job.num} ({' '.join(overrides)}): " if multirun else ""
    if cfg.sweep.job is not None:
        return run_job(program, Path(cfg.sweep.job))
    if multirun and OmegaConf.select(cfg, "sweep.zip"):  # the sweeper has combined all values
        remove_if_empty(program.root, run_dir)
        raise ConfigError("sweep.zip: has no effect with this hydra/sweeper - choose hydra/sweeper=ledger")
    try:
        if not multirun:
            check_effects(cfg, overrides)
        final, chosen = choose_run(program, cfg, run_dir, overrides, Path(hydra.runtime.cwd))
        if chosen != run_dir:
            remove_if_empty(program.root, run_dir)
        config = program.check(final)
        from samebits.process import start  # imports torch

        early_signals.leave_if_asked()
        start(program, config, chosen, overrides, own_process=multirun)
    except Cancelled as error:
        remove_if_empty(program.root, run_dir)
        print(error, file=sys.stderr)
        return error.status
    except ConfigError as error:
        remove_if_empty(program.root, run_dir)
        choices = plain(hydra.runtime.choices)
        line = missing_defaults(str(error), choices, sys.argv[1:], program.conf)
        hint = recipe_hint(line, choices, overrides, program.conf)
        print(f"error: {label}{line}{hint}", file=sys.stderr)
        return MISTAKE
    except RunFailed as error:
        if str(error):
            print(f"failed: {label}{error}", file=sys.stderr)
        return RUN_FAILED
    except KeyboardInterrupt:
        remove_if_empty(program.root, run_dir)
        raise
    except SystemExit as end:  # preempted
        remove_if_empty(program.root, run_dir)
        return int(end.code or 0)
    return FINISHED


def check_effects(cfg: DictConfig, overrides: list[str]) -> None:
    """Raise ConfigError for overrides, and values to sweep from a yaml, that have no effect on a single run."""
    hydra = HydraConfig.get()
    check_job_name(cfg, hydra)
    if cfg.sweep.name is not None:
        raise ConfigError(f"sweep={cfg.sweep.name}: only for a multirun - add -m")
    for text in [*overrides, *plain(hydra.overrides.hydra, resolve=False)]:
        if text.lstrip("+~").startswith(OF_A_MULTIRUN):
            raise ConfigError(f"{text}: only for a multirun, has no effect here - add -m, or remove it")
        if cfg.resume not in (None, "auto") and text.startswith("hydra.run.dir="):
            raise ConfigError(
                f"{text}: has no effect, because resume={cfg.resume} continues in its directory - remove it"
            )
    if plain(hydra.sweeper, resolve=False).get("params") and "hydra.mode=RUN" not in sys.argv:
        raise ConfigError(
            "hydra.sweeper.params: in a yaml, only for a multirun - add -m, or hydra.mode=RUN for a run without them"
        )
    run_dir = plain(hydra.run, resolve=False)["dir"]
    if cfg.resume == "auto" and not agents_run() and re.search(r"\$\{(now|suffix):", run_dir):
        raise ConfigError(
            "resume=auto: every run gets a new directory, so there is nothing to resume - add "
            "hydra.run.dir=outputs/NAME, or give resume=RUN"
        )


def leave(status: int) -> NoReturn:
    """End this process with an exit status.

    A rank ends without Python's teardown. A thread of gloo may still release its last tensor then, and if it requests
    the interpreter during teardown, the process aborts (in 1 of 30 runs under torchrun). The same holds for a thread
    that still connects to a rank 0 that came too late."""
    early_signals.ignore_signals()
    if dist_env.size is None and not run_rendezvous.is_waiting():
        sys.exit(status)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
