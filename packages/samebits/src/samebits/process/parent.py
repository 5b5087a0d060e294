"""Start a run: create its directory, start its ranks, and report the first failure to the user."""

from __future__ import annotations

import os
import sys
import time
import traceback
from collections.abc import Collection
from contextlib import suppress
from functools import partial
from pathlib import Path

from samebits import early_signals
from samebits.device import count_processes
from samebits.errors import PREEMPTED, Cancelled, ConfigError, RunFailed, one_line
from samebits.host import start_method
from samebits.loggers import WANDB, check_wandb_key
from samebits.process.options import Options
from samebits.process.rank import longest_start_s, run
from samebits.process.tuning import find_micro_batch
from samebits.project import Program, Project
from samebits.runs import (
    claimed,
    commit_resume,
    empty_directory,
    fill_directory,
    has_trained,
    holds_run,
    keep_files,
    keep_versions,
    reopen_directory,
    undo_resume,
)
from samebits.saved import read_config
from samebits.schema import plain
from samebits.status import (
    CHECKPOINTS,
    FAILURE,
    FAILURES,
    STATUS,
    checkpoint_files,
    end_status,
    forget_failure,
    keep_failure,
    newest_checkpoint,
    read_failure,
    read_status,
    resume_hint,
    shown,
    step_of,
)
from samebits.targets import TRACEBACK
from samebits.world import RankLauncher, cluster_role, dist_env, recording_failures, run_rendezvous


def start(
    program: Program, config: Options, run_dir: Path, overrides: list[str], own_process: bool,
    leave: Collection[str] = (),
) -> None:  # fmt: skip
    """Run a checked config in `run_dir` to its end, or resume the run in `run_dir`.

    own_process: start a child process even for one rank, as for each job of a multirun. leave: do nothing if the
    status of the run is one of these. Raise ConfigError, RunFailed, KeyboardInterrupt (interrupted) or SystemExit
    (preempted) if the run ended in this way.
    """
    began = time.monotonic()
    cfg, process, hardware = config.given, config.process, config.hardware
    num_procs = count_processes(hardware, config.trainer)
    if hardware.micro_batch_size == "auto":
        cfg = cfg.copy()
        cfg.hardware.micro_batch_size, line = find_micro_batch(program, cfg)
        print(line, file=sys.stderr)
    if process.max_restarts and (run_rendezvous.followers() or dist_env.size is not None):
        raise ConfigError(
            "process.max_restarts: requires that this command starts its ranks; with torchrun, use "
            "torchrun --max-restarts=3, a fixed hydra.run.dir and resume=auto"
        )
    if not holds_run(run_dir):  # not in check(), because SLURM's `setup` may set the key in the job; a resume continues
        check_wandb_key(config.logger)
    versions: dict[str, str] = {}
    if not run_rendezvous.followers():  # otherwise each rank fetches its files
        versions = program.fetch(plain(cfg.data), early_signals.leave_if_asked)
    early_signals.begin_run()
    with claimed(run_dir):
        if read_status(run_dir).get("status") in leave:
            return
        went_on = holds_run(run_dir)
        foreign = {path.name for path in run_dir.iterdir()}
        if went_on:
            check_stop(program, run_dir, process.stop_at_step, overrides)
            reopen_directory(program, run_dir, cfg, overrides)
        else:
            try:
                fill_directory(program, run_dir, cfg, overrides)
            except OSError as error:  # a full disk, or a source file that cannot be read
                empty_directory(run_dir, keep=foreign)
                file = error.filename2 or error.filename  # of a copy: the destination
                elsewhere = file and run_dir not in Path(os.fsdecode(file)).parents
                place = file if elsewhere else f"hydra.run.dir={run_dir}: cannot be written"
                raise ConfigError(f"{place}: {error.strerror or error}") from error
        keep_versions(run_dir, versions)
        for line in keep_files(program.root, run_dir, cfg, begins=not has_trained(run_dir)):
            print(line, file=sys.stderr)
        # a sweep's job keeps its new status and failure when the resume is undone
        stay = (STATUS, FAILURE) if leave else ()
        try:
            alone = num_procs == 1 and not own_process and not process.max_restarts
            if dist_env.size is not None or alone:
                run_rank(program, run_dir, began)
            else:
                program.training()  # imported once, before ranks are forked
                if hardware.compile or (config.trainer.strategy == "fsdp" and start_method() == "fork"):
                    import torch._dynamo  # noqa: F401 - imported once, before ranks are forked; fully_shard needs it
                run_rendezvous.leave_to_ranks()
                run_ranks(program, run_dir, num_procs // dist_env.hosts, process.max_restarts, began)
        except KeyboardInterrupt:
            end_status(run_dir, "interrupted", signal="SIGINT")
            undo_resume(run_dir, stay)
            raise
        except Exception as error:
            first = first_failure(run_dir, error)
            undo_resume(run_dir, stay)
            if isinstance(first, Cancelled) and leave:
                forget_failure(run_dir)
                state = "preempted" if first.status == PREEMPTED else "interrupted"
                end_status(run_dir, state, signal=str(first).partition(":")[0])
            if not went_on and isinstance(first, ConfigError):
                if has_trained(run_dir):
                    raise ConfigError(f"{first}{resume_hint(run_dir)}") from error
                empty_directory(run_dir, keep=foreign)
            raise first from error
        commit_resume(run_dir)
        end_as_stopped(run_dir)


def check_stop(project: Project, run_dir: Path, stop_at_step: int | None, overrides: list[str]) -> None:
    """Raise ConfigError if a resumed run has already reached `stop_at_step`.

    Do not raise if the run started with this value: a command that is repeated with resume=auto still contains it.
    """
    step = max(map(step_of, checkpoint_files(run_dir / CHECKPOINTS)), default=0)
    if stop_at_step is None or stop_at_step > step:
        return
    again = "resume=auto" in overrides and stop_at_step == read_config(project, run_dir).process.stop_at_step
    given = any(text.lstrip("+").startswith(("process.stop_at_step=", "process={")) for text in overrides)
    if given and not again:
        raise ConfigError(
            f"process.stop_at_step={stop_at_step}: has no effect: the run in {run_dir} is already at step {step} "
            "- give a later step, or remove it"
        )


def run_ranks(program: Program, run_dir: Path, num_procs: int, max_restarts: int, began: float) -> None:
    """Run `num_procs` ranks. Restart them from the last checkpoint, up to max_restarts times, if `may_pass`."""
    ranks = RankLauncher()
    with ranks.passing_on_signals():
        for attempt in range(max_restarts + 1):
            checkpoint = newest_checkpoint(run_dir)
            try:
                ranks.run(partial(run_rank, program, began=began), run_dir, num_procs)
                return
            except RunFailed as error:
                if attempt == max_restarts or ranks.signalled:
                    raise
                if not may_pass(run_dir, newest_checkpoint(run_dir) != checkpoint or not attempt):
                    print("not restarted: it would fail again in the same way", file=sys.stderr)
                    raise
                print(
                    f"{first_failure(run_dir, error)}\nrestart {attempt + 1} of {max_restarts}, from "
                    f"{newest_checkpoint(run_dir) or 'the beginning'}; the failure is recorded in {FAILURES}",
                    file=sys.stderr,
                )
            keep_failure(run_dir, attempt)


def may_pass(run_dir: Path, moved: bool) -> bool:
    """Return whether a restart may succeed: not after ConfigError or RunFailed (such as a non-finite loss).

    After other exceptions, except RankLost, progress is required. moved: there is a new checkpoint since the last
    restart, or this would be the first restart.
    """
    record = read_failure(run_dir)
    if record is None:  # the failure could not be recorded, for example because the disk is full
        return False
    return record["type"] == "RankLost" or (moved and record["type"] not in ("ConfigError", "RunFailed"))


def run_rank(program: Program, run_dir: Path, began: float) -> None:
    """Run this rank. Rank 0 first publishes the run directory to ranks and hosts started by torchrun or srun."""
    if run_rendezvous.followers() and dist_env.rank > 0:
        run_rendezvous.await_verdict()
    elif run_rendezvous.followers():
        with recording_failures(run_dir, rank=0):
            run_rendezvous.publish(run_dir, longest_start_s(read_config(program, run_dir).process.timeout))
    run(program, run_dir, began)


def join(program: Program) -> int:
    """Run a rank above 0 that torchrun or srun has started, or the ranks of a host above 0. Return the exit status.

    Wait until rank 0 has published the run directory, then run in it.
    """
    began = time.monotonic()
    # this process composes no config, so it reads the command line; rank 0 raises for an invalid value
    timeout_s = None
    with suppress(ConfigError):
        for text in sys.argv:
            if text.startswith("process.timeout="):
                value = text.partition("=")[2]
                timeout_s = longest_start_s(f"{value}s" if value.replace(".", "").isdigit() else value)
    here, published = cluster_role(), run_rendezvous.await_directory(timeout_s)
    assert here is not None
    if isinstance(published, int):
        early_signals.leave_if_asked()
        return published  # rank 0 has printed why
    run_dir, local_ranks = published
    try:
        if here.kind == "host":
            run_ranks(program, run_dir, local_ranks, 0, began)
        else:
            run(program, run_dir, began)
        end_as_stopped(run_dir)
    except KeyboardInterrupt:
        return 130
    except SystemExit as end:
        return int(end.code or 0)
    except Exception as error:
        record = read_failure(run_dir)
        ours = range(here.index * local_ranks, (here.index + 1) * local_ranks) if here.kind == "host" else [here.index]
        if record is not None and record["rank"] in ours:  # rank 0 may hang in a collective and print nothing
            print(f"failed: {first_failure(run_dir, error)}", file=sys.stderr)
        return 1
    return 0


def first_failure(run_dir: Path, error: Exception) -> Exception:
    """Return the first failure of any rank as a one-line exception. Print its traceback to stderr if it is useful.

    error: the exception of this process, used if no failure could be recorded (full disk).
    """
    record = read_failure(run_dir)
    if record is None:
        if isinstance(error, (ConfigError, RunFailed)):
            return error
        traceback.print_exception(error)
        return RunFailed(f"{one_line(error)}; it could not be recorded in {shown(run_dir)}")
    if record["type"] == "Cancelled":
        return Cancelled(record["message"])
    if record["type"] == "ConfigError":
        if os.environ.get(TRACEBACK) == "1":
            print(record["traceback"], file=sys.stderr, end="")
        return ConfigError(record["message"])
    if record["type"] in ("RankLost", "OutOfMemory"):  # the stack of a rank that hung; the place of the allocation
        print(record["traceback"], file=sys.stderr, end="")
    elif record["type"] != "RunFailed":
        whole = os.environ.get(TRACEBACK) == "1" or not record.get("short")
        more = "" if whole else f"({TRACEBACK}=1 prints the whole traceback, which is also in {FAILURE})\n"
        text = record["traceback" if whole else "short"]
        print(f"rank {record['rank']} failed:\n{text}{more}", file=sys.stderr, end="")
    told = "resume=" in record["cause"]
    return RunFailed(record["cause"] + ("" if told else resume_hint(run_dir)))


def end_as_stopped(run_dir: Path) -> None:
    """Raise KeyboardInterrupt for an interrupted run, SystemExit for a preempted one.

    A run that W&B has stopped ends with status 0: otherwise W&B's agent would count it as failed, and exit after a few.
    """
    status = read_status(run_dir)
    if status.get("status") == "interrupted" and status.get("signal") != WANDB:
        raise KeyboardInterrupt
    if status.get("status") == "preempted":
        raise SystemExit(PREEMPTED)
