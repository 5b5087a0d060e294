"""Log to metrics.jsonl (the complete record), to W&B, TensorBoard, MLflow and metrics.csv (copies), and to the terminal
(latest values).

A separate thread each writes to TensorBoard, MLflow and metrics.csv, in order (samebits.loggers.background); a separate
process makes those of wandb.
"""

from __future__ import annotations

import errno
import itertools
import logging
import math
import os
import sys
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from tqdm import tqdm

from samebits.code import changes_of
from samebits.errors import ConfigError, visible
from samebits.files import as_json, no_links, read_file, records, replace_text
from samebits.loggers.background import Background
from samebits.loggers.csv_log import CSVThread
from samebits.loggers.media import save
from samebits.loggers.mlflow_log import ID as MLFLOW_ID, MLflowThread
from samebits.loggers.options import LoggerConfig
from samebits.loggers.tensorboard_log import TensorBoardThread
from samebits.loggers.wandb_log import FOLDER, OUTPUT, WandbProcess
from samebits.project import Project
from samebits.runs import BEFORE, changed_values, commit_resume
from samebits.saved import NEVER_COMPARED
from samebits.status import METRICS, new_wandb_id, read_status, write_status

log = logging.getLogger("samebits")
TRAIN_LOG = "train.log"
PROGRESS_S = 60.0  # seconds between progress lines if there is no bar
GIVE_UP_S = 5.0  # seconds to send data if a run hangs


class Logger:
    """The null logger, for all ranks except rank 0."""

    lines = 0  # number of lines in metrics.jsonl

    def log(self, step: int, values: dict[str, float]) -> None:
        """Log {name: value} for one optimizer step."""

    def say(self, text: str) -> None:
        """Print a line for the user and write it to train.log."""

    def warn(self, text: str) -> None:
        """Print a warning and write it to train.log."""

    def show(self, step: int, name: str, value: Any) -> None:
        """Log an image, a figure, a text, or a Histogram, Audio or Table of samebits.loggers. It is also written to the
        run directory: media/<name>/<step>.png etc."""

    def summary(self, values: dict[str, Any]) -> None:
        """Log values of the whole run (W&B's summary)."""

    def result(self, result: dict[str, Any]) -> None:
        """Log the final values, as in result.json; for a stopped run, the values so far."""

    def latest(self, prefix: str) -> dict[str, float]:
        """Return the last logged values whose keys start with `prefix`, including values from before a resume."""
        return {}

    def begin(self, step: int, total_steps: int) -> None:
        """Start the copies (W&B, ...) and the progress bar. Call it when training starts, after workers are forked."""

    def progress(self, step: int) -> None:
        """Update the progress bar. Call it after each step."""

    def end_bar(self) -> None:
        """Close the progress bar."""

    def give_up(self) -> None:
        """Close the copies (W&B, ...) as failed. The hang watchdog's thread calls this before it ends the process."""

    def __enter__(self) -> Logger:
        return self

    def __exit__(self, kind: Any, *error: object) -> None:
        """Close the copies with the status of status.json, or as failed if an exception is raised."""


class RunLogger(Logger):
    """The logger of rank 0.

    from_step, lines: step of the checkpoint, and the number of lines that were logged before it was saved; later lines
    are deleted after the first step of the resumed run. most_s: limit for the copies at the end, in seconds.
    """

    def __init__(
        self,
        project: Project,
        directory: Path,
        config: LoggerConfig,
        from_step: int,
        most_s: float,
        lines: int | None = None,
    ) -> None:
        self._project = project
        self._metrics, self._from_step, self._lines_before = directory / METRICS, from_step, lines
        self._file: int | None = None
        self._copies: list[Background | WandbProcess] = []
        self._directory, self._config, self._most_s = directory, config, most_s
        self._bar: Any = None
        self._total_steps, self._began, self._said = 0, (0, 0.0), math.inf  # set by `begin`
        self._latest: dict[str, float] = {}
        kept = kept_lines(self._metrics, from_step, lines)
        self.lines = len(kept)
        for _, record in kept:
            self._latest |= {key: value for key, value in record.items() if "/" in key and value is not None}

    def latest(self, prefix: str) -> dict[str, float]:
        """Return the last logged values whose keys start with `prefix`."""
        return {key: value for key, value in self._latest.items() if key.startswith(prefix)}

    def _go_on(self) -> int:
        """Return the file descriptor of metrics.jsonl. The first call makes a resume final, see commit_resume."""
        if self._file is None:
            self._leave_other_values()
            cut_metrics(self._metrics, self._from_step, self._lines_before)
            self._file = os.open(self._metrics, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW, 0o666)
            commit_resume(self._directory)
            self._begin_remote()
        return self._file

    def _begin_remote(self) -> None:
        """Start the copies on servers."""
        if any(isinstance(copy, (WandbProcess, MLflowThread)) for copy in self._copies):
            return
        if self._config.kind == "wandb":
            self._copies.append(WandbProcess(self._project, self._directory, self._config))
        if self._config.mlflow is not None:
            own = self._project, self._directory, self._from_step, self._most_s
            self._copies.append(MLflowThread(self._config.mlflow, *own))

    def begin(self, step: int, total_steps: int) -> None:
        """Start the copies and, on a terminal, the progress bar."""
        if not self._metrics.exists():  # otherwise _go_on: a resume deletes lines first, W&B and MLflow cannot
            self._begin_remote()
        own = self._project, self._directory, self._from_step, self._most_s
        if self._config.csv:
            self._copies.append(CSVThread(self._lines_before, *own))
        if self._config.tensorboard:
            self._copies.append(TensorBoardThread(*own))
        self._total_steps, self._began, self._said = total_steps, (step, time.monotonic()), time.monotonic()
        if sys.stderr.isatty():
            self._bar = tqdm(total=total_steps, initial=step, unit="step", dynamic_ncols=True)

    def _leave_other_values(self) -> None:
        """Begin a new run in W&B and MLflow, which cannot delete lines, if a resume logs lines again with a changed
        config: their values or steps may differ."""
        begun = [path for path in (self._directory / FOLDER / OUTPUT, self._directory / MLFLOW_ID) if path.exists()]
        if not begun or self.lines >= sum(1 for _ in records(self._metrics)):
            return
        keys: Collection[str] = changed_values(self._project, self._directory)
        if keys and self._from_step:  # what is recorded, without files of the same content at another path
            known = len(changes_of(self._directory / BEFORE))
            keys = [key for change in changes_of(self._directory)[known:] for key in change.get("was", ())]
        same = (*NEVER_COMPARED, *self._project.neutral_groups, "name", "process")
        if keys := [key for key in keys if key.split(".")[0] not in same]:
            write_status(self._directory, str(read_status(self._directory)["status"]), wandb_id=new_wandb_id())
            (self._directory / MLFLOW_ID).unlink(missing_ok=True)
            self.warn(f"a new run in W&B or MLflow begins, because {', '.join(keys)} changed after lines were sent")

    def log(self, step: int, values: dict[str, float]) -> None:
        """Write a line to metrics.jsonl and log it to the copies. Raise ConfigError if a value is not a number."""
        check_numbers({"step": step, **values})
        self._write(step, values)
        for copy in self._copies:
            copy.log(step, values)
        self._latest |= values
        if self._bar is not None:
            self._bar.set_postfix(self._shown(), refresh=False)
        log.debug("step %d: %s", step, ", ".join(f"{k} {v:.6g}" for k, v in values.items()))

    def _shown(self) -> dict[str, str]:
        wanted = [k for k in self._latest if k == "train/loss" or (k.startswith("val") and k.count("/") == 1)]
        return {k: f"{self._latest[k]:.4g}" for k in wanted}

    def _write(self, step: int, values: dict[str, Any]) -> None:
        line = as_json({"step": step, "time": time.time(), **values}).encode() + b"\n"
        try:
            if os.write(self._go_on(), line) < len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            error.filename = str(self._metrics)
            raise
        self.lines += 1

    def progress(self, step: int) -> None:
        """Update the bar, or print a line every PROGRESS_S seconds if there is none."""
        self._go_on()
        if self._bar is not None:
            self._bar.update(step - self._bar.n)
        elif time.monotonic() - self._said > PROGRESS_S:
            self._said = time.monotonic()
            began, at = self._began
            each_s = (self._said - at) / max(step - began, 1)
            values = ", ".join([f"{key} {value}" for key, value in self._shown().items()])
            self.say(f"step {step:,} of {self._total_steps:,}, {each_s:.3g} s each{values and f'; {values}'}")

    def say(self, text: str) -> None:
        """Log a line at level INFO."""
        self._aside(logging.INFO, text)

    def warn(self, text: str) -> None:
        """Log a line at level WARNING."""
        self._aside(logging.WARNING, text)

    def _aside(self, level: int, text: str) -> None:
        if self._bar is None:
            log.log(level, text)
            return
        with tqdm.external_write_mode():
            log.log(level, text)

    def show(self, step: int, name: str, value: Any) -> None:
        """Write `value` into the run directory and log it to the copies."""
        media = save(self._directory, step, name, value)
        self._write(step, {"media": {name: media.kind}})
        for copy in self._copies:
            copy.show(step, name, media)

    def summary(self, values: dict[str, Any]) -> None:
        """Log values of the whole run to the copies."""
        for copy in self._copies:
            copy.summary(values)

    def result(self, result: dict[str, Any]) -> None:
        """Log the final values to the copies, as final/<name>."""
        self.summary({f"final/{key}": value for key, value in result.items() if "/" in key})

    def end_bar(self) -> None:
        """Close the bar, if there is one."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    def give_up(self) -> None:
        """Close the copies as failed, within GIVE_UP_S seconds."""
        for copy in self._copies:
            copy.finish("failed", GIVE_UP_S)

    def __exit__(self, kind: Any, *error: object) -> None:
        self.end_bar()
        if self._file is not None:
            os.close(self._file)
        failed = "interrupted" if kind is KeyboardInterrupt else "failed"
        for copy in self._copies:
            copy.finish(str(read_status(self._directory).get("status")) if kind is None else failed)


def check_numbers(values: dict[str, float]) -> None:
    """Raise ConfigError if a value is not a number."""
    for key, value in values.items():
        if not isinstance(value, (int, float)):
            raise ConfigError(
                f"log({key!r}): expected a number, got {type(value).__name__} - call .item() on a tensor or array; "
                "use run.logger.show for images, tables and texts"
            )


class _File(logging.FileHandler):
    """Handler of train.log. If the disk is full it prints one error, and the run continues without the file."""

    _lost = False

    def _open(self) -> Any:
        return open(self.baseFilename, "a", opener=no_links)

    def handleError(self, record: logging.LogRecord) -> None:
        if not self._lost:
            self._lost = True
            print(f"{self.baseFilename} cannot be written: {sys.exc_info()[1]}", file=sys.stderr)

    def close(self) -> None:
        with suppress(OSError):  # close() tries again to flush
            super().close()


class _Visible(logging.Formatter):
    """A formatter that escapes control characters, because a line may contain untrusted text of a checkpoint or
    config."""

    def format(self, record: logging.LogRecord) -> str:
        return visible(super().format(record))


@contextmanager
def log_to(directory: Path) -> Iterator[None]:
    """Log DEBUG and above to train.log and INFO and above to stderr, within this block."""
    path = directory / TRAIN_LOG
    log.setLevel(logging.DEBUG)
    log.propagate = False
    screen, file = logging.StreamHandler(sys.stderr), _File(path)
    screen.setLevel(logging.INFO)
    screen.setFormatter(_Visible("%(message)s"))
    file.setFormatter(_Visible("%(asctime)s %(levelname)s %(message)s"))
    for handler in (screen, file):
        log.addHandler(handler)
    try:
        yield
    finally:
        for handler in (screen, file):
            log.removeHandler(handler)
            handler.close()


def kept_lines(path: Path, from_step: int, lines: int | None) -> list[tuple[str, dict[str, Any]]]:
    """Return the lines (text, record) that were logged before a checkpoint of step `from_step` was saved.

    lines: their number. None in older checkpoints, whose lines are selected by step; this can include an evaluation
    that was logged after the checkpoint, because a signal delayed it.
    """
    if lines is not None:
        return list(itertools.islice(records(path), lines))
    return [(line, record) for line, record in records(path) if record["step"] <= from_step]


def cut_metrics(path: Path, from_step: int, lines: int | None) -> None:
    """Delete all lines except `kept_lines`, because the resumed run logs them again."""
    kept = "".join(line for line, _ in kept_lines(path, from_step, lines))
    if path.exists() and read_file(path) != kept.encode():
        replace_text(path, kept)
