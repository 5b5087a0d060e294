"""Predict with one or several processes: each writes its share of the samples; the shares are merged into one file."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from samebits.device import Hardware
from samebits.errors import ConfigError, RunFailed
from samebits.host import count_gpus
from samebits.predictions import Part, Spec, assemble, check_target
from samebits.process.parent import first_failure
from samebits.process.rank import collective_timeout_s
from samebits.signals import STOP_SIGNALS, temporary_folder
from samebits.world import RankLauncher, World, check_no_rank, dist_env, process_group, recording_failures

# of a rank: yields rows (B,) and {name: (B, ...)}
Rows = Callable[[World], Iterable[tuple[np.ndarray, dict[str, Any]]]]
Load = Callable[[int], tuple[Hardware, Rows]]


def write_predictions(
    out: Path, overwrite: bool, num_procs: int | None, load: Load, attributes: Mapping[str, Any]
) -> Spec:
    """Write the rows that all ranks yield into one file, in the order of the split. Return {name: (shape, dtype)}.

    num_procs: processes that share the samples; None: one per GPU, at least one. load: called in each process with the
    number of processes. attributes: attributes of the file, if its format supports them. Raise ConfigError if the file
    exists and overwrite is false.
    """
    check_target(out, overwrite)
    check_no_rank("this command starts its own processes", remedy=", and add --procs 8")
    if num_procs is not None and num_procs < 1:
        raise ConfigError(f"--procs {num_procs}: must be at least 1")
    count = num_procs or max(1, count_gpus())
    # on the disk of the target, because /tmp may be too small
    with temporary_folder(f".{out.name}-", out.parent) as folder:
        if count == 1:
            write_part(load, 1, folder)
        else:
            run_ranks(load, count, folder)
        return assemble([folder / f"{number}.h5" for number in range(count)], out, attributes)


def run_ranks(load: Load, count: int, folder: Path) -> None:
    """Run `count` ranks that write into the folder. Raise the first failure."""
    ranks = RankLauncher()
    try:
        with ranks.passing_on_signals():
            ranks.run(partial(write_recorded, load, count), folder, count)
    except RunFailed as error:
        if ranks.signalled is not None:
            raise SystemExit(128 + ranks.signalled) from error
        raise first_failure(folder, error) from error


def write_recorded(load: Load, count: int, folder: Path) -> None:
    """Write this rank's share, and record a failure in the folder."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)  # the parent blocks them while it starts the ranks
    with recording_failures(folder, dist_env.rank):
        write_part(load, count, folder)


def write_part(load: Load, count: int, folder: Path) -> None:
    """Write this rank's share of the samples into folder/<rank>.h5."""
    machine, rows_of = load(count)
    with (
        process_group(machine.device, collective_timeout_s(None)) as world,
        closing(Part(folder / f"{world.rank}.h5")) as part,
    ):
        for rows, fields in rows_of(world):
            part.append(rows, fields)
