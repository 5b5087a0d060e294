"""Start a run: its directory, its processes, and what the user sees when one of them fails."""

from __future__ import annotations

import sys
from pathlib import Path

from omegaconf import DictConfig

from lab import directory, distributed, meeting
from lab.config import HardwareConfig, TrainerConfig, typed
from lab.errors import ConfigError, RunFailed
from lab.hardware import count_processes
from lab.launch import run_processes
from lab.place import place
from lab.run import recording, run


def start(cfg: DictConfig, run_dir: Path, overrides: list[str], own_process: bool) -> None:
    """Run `cfg` (checked, resolved) in `run_dir`, or go on with the run that `run_dir` holds, to the end.

    own_process: a job of a multirun, which never shares a process with another. Raises ConfigError, RunFailed,
    KeyboardInterrupt or SystemExit as the run ended.
    """
    num_procs = count_processes(
        typed(HardwareConfig, cfg.hardware, "hardware"), typed(TrainerConfig, cfg.trainer, "trainer")
    )
    with directory.claimed(run_dir):
        before = directory.reopen(run_dir, cfg) if directory.holds_run(run_dir) else None
        if before is None:
            directory.fill(run_dir, cfg, overrides)
        try:
            if distributed.started_ranks() is not None or (num_procs == 1 and not own_process):
                lead(run_dir)
            else:
                meeting.leave_to_ranks(run_dir)
                run_processes(lead, run_dir, num_procs // distributed.hosts())
        except KeyboardInterrupt:
            directory.write_status(run_dir, "interrupted", signal="SIGINT")
            raise
        except Exception as error:
            first = first_failure(run_dir)
            if before is not None and isinstance(first, ConfigError):
                directory.write_config(run_dir, before)  # a changed value that does not fit must not stay
            raise first from error
        end_as_signalled(run_dir)


def lead(run_dir: Path) -> None:
    """The life of a rank; rank 0 first tells the ranks and hosts that others have started where the run is."""
    if distributed.rank() == 0 and meeting.followers():
        with recording(run_dir, rank=0):
            meeting.publish_directory(run_dir)
    run(run_dir)


def follow() -> int:
    """The life of a rank above 0 that torchrun or srun started, or of a host above 0, which starts ranks: wait for rank
    0's directory, run there -> exit status."""
    here, found = place(), meeting.await_directory()
    if found is None or here is None:
        return 2  # rank 0 has said what is wrong with the configuration
    run_dir, local_ranks = found
    try:
        if here.kind == "host":
            run_processes(run, run_dir, local_ranks)
        else:
            run(run_dir)
    except Exception:
        record = directory.failure(run_dir)
        own = range(here.index * local_ranks, (here.index + 1) * local_ranks) if here.kind == "host" else [here.index]
        if record is not None and record["rank"] in own:  # rank 0 may be stuck, waiting for this one
            print(f"failed: {first_failure(run_dir)}", file=sys.stderr)
        return 1
    return 0


def first_failure(run_dir: Path) -> Exception:
    """What went wrong first, on whichever rank, as one line; its traceback goes to stderr where it helps."""
    record = directory.failure(run_dir)
    if record is None:
        raise AssertionError(f"{run_dir} failed without a record")
    if record["type"] == "ConfigError":
        return ConfigError(record["message"])
    if record["type"] == "RunFailed":
        return RunFailed(f"{record['message']} ({run_dir})")
    print(f"rank {record['rank']} failed:\n{record['traceback']}", file=sys.stderr, end="")
    return RunFailed(f"the run failed; what it wrote is in {run_dir}")


def end_as_signalled(run_dir: Path) -> None:
    status = directory.read_json(run_dir / directory.STATUS)
    if status["status"] != "interrupted":
        return
    if status["signal"] == "SIGINT":
        raise KeyboardInterrupt
    raise SystemExit(143)
