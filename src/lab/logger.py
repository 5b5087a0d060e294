"""Where values go: metrics.jsonl (the truth), Weights & Biases (a copy), the terminal (a glance).

All of W&B runs on one background thread, in order: training never waits for it, whatever the network does.
"""

from __future__ import annotations

import json
import logging
import math
import netrc
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit

from tqdm import tqdm

from lab.config import LoggerConfig
from lab.directory import replace_text

log = logging.getLogger("lab")
METRICS, TRAIN_LOG = "metrics.jsonl", "train.log"
GIVE_UP_S = 5.0  # the same for a run that has failed and must end
FINISH_S = 60.0  # what an upload that is behind gets at the end; `wandb sync` sends the rest


class Logger:
    """The null logger of the ranks that are not the main one."""

    def log(self, step: int, values: dict[str, float]) -> None:
        """Values of one optimizer step."""

    def say(self, text: str) -> None:
        """A line for the user and train.log."""

    def warn(self, text: str) -> None: ...

    def summary(self, values: dict[str, float]) -> None:
        """The run's result."""

    def latest(self, key: str) -> dict[str, float]:
        """{key: the value logged last}, or nothing."""
        return {}

    def begin(self, step: int, total_steps: int) -> None:
        """Training begins, all workers are forked: W&B's thread starts, and a bar where a person is watching."""

    def progress(self, step: int) -> None:
        """Called after each step."""

    def end_bar(self) -> None: ...

    def give_up(self) -> None:
        """The process ends now, from another thread: mark the W&B run as failed."""

    def __enter__(self) -> Logger:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Ends the W&B run as finished or, where an exception passes, as failed."""


class RunLogger(Logger):
    """The main rank's. from_step: what was logged after it is forgotten."""

    def __init__(self, directory: Path, config: LoggerConfig, wandb_run: dict[str, Any], from_step: int) -> None:
        cut_metrics(directory / METRICS, from_step)
        self._file = open(directory / METRICS, "a", buffering=1)  # noqa: SIM115 - closed in __exit__
        self._wandb: WandbThread | None = None
        self._wandb_arguments = (directory, config, wandb_run) if config.kind == "wandb" else None
        self._bar: Any = None
        self._latest: dict[str, float] = {}

    def latest(self, key: str) -> dict[str, float]:
        return {key: self._latest[key]} if key in self._latest else {}

    def begin(self, step: int, total_steps: int) -> None:
        if self._wandb_arguments:
            self._wandb = WandbThread(*self._wandb_arguments)
        if sys.stderr.isatty():
            self._bar = tqdm(total=total_steps, initial=step, unit="step", dynamic_ncols=True)

    def log(self, step: int, values: dict[str, float]) -> None:
        # JSON has no NaN: a value that is not finite is written as null
        plain = {k: v if math.isfinite(v) else None for k, v in values.items()}
        self._file.write(json.dumps({"step": step, "time": time.time(), **plain}) + "\n")
        if self._wandb:
            self._wandb.log({"step": step, **values})
        self._latest |= values
        if self._bar is not None:
            shown = {k: f"{v:.4g}" for k, v in self._latest.items() if k == "train/loss" or k.startswith("val/")}
            self._bar.set_postfix(shown, refresh=False)
        log.debug("step %d: %s", step, ", ".join(f"{k} {v:.6g}" for k, v in values.items()))

    def progress(self, step: int) -> None:
        if self._bar is not None:
            self._bar.update(step - self._bar.n)

    def say(self, text: str) -> None:
        self._aside(logging.INFO, text)

    def warn(self, text: str) -> None:
        self._aside(logging.WARNING, text)

    def _aside(self, level: int, text: str) -> None:
        if self._bar is None:
            log.log(level, text)
            return
        with tqdm.external_write_mode():
            log.log(level, text)

    def summary(self, values: dict[str, float]) -> None:
        if self._wandb:
            self._wandb.summary(values)

    def end_bar(self) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    def give_up(self) -> None:
        if self._wandb:
            self._wandb.finish(1, GIVE_UP_S)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end_bar()
        self._file.close()
        if self._wandb:
            self._wandb.finish(0 if kind is None else 1)


@contextmanager
def log_to(directory: Path) -> Iterator[None]:
    """Everything into train.log, the notable on stderr, for the length of the block."""
    path = directory / TRAIN_LOG
    log.setLevel(logging.DEBUG)
    log.propagate = False
    screen, file = logging.StreamHandler(sys.stderr), logging.FileHandler(path)
    screen.setLevel(logging.INFO)
    screen.setFormatter(logging.Formatter("%(message)s"))
    file.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    for handler in (screen, file):
        log.addHandler(handler)
    try:
        yield
    finally:
        for handler in (screen, file):
            log.removeHandler(handler)
            handler.close()


def cut_metrics(path: Path, from_step: int) -> None:
    """Forget what was logged after `from_step`: the run goes on from there and will log it again."""
    if not path.exists():
        return
    kept = []
    for line in path.read_text().splitlines():
        try:
            if json.loads(line)["step"] <= from_step:
                kept.append(line + "\n")
        except json.JSONDecodeError:  # the half line of a killed process
            continue
    replace_text(path, "".join(kept))


class WandbThread:
    """One W&B run, driven from one thread in the order of the calls. Errors are said once and end the copying only."""

    def __init__(self, directory: Path, config: LoggerConfig, run: dict[str, Any]) -> None:
        self._directory, self._config, self._run_arguments = directory, config, run
        self._calls: SimpleQueue[Callable[[], object] | None] = SimpleQueue()
        self._calls.put(self._start)
        self._run: Any = None
        # a daemon: what hangs in it does not keep the process, its GPU and its directory's lock
        self._thread = threading.Thread(target=self._work, name="wandb", daemon=True)
        self._thread.start()

    def log(self, values: dict[str, float]) -> None:
        self._calls.put(lambda: self._run.log(values))

    def summary(self, values: dict[str, float]) -> None:
        self._calls.put(lambda: self._run.summary.update(values))

    def finish(self, exit_code: int, limit_s: float = FINISH_S) -> None:
        """Bounded: what could not be sent in time stays in the run directory."""
        self._calls.put(lambda: self._run.finish(exit_code=exit_code))
        self._calls.put(None)
        self._thread.join(limit_s + self._config.timeout_s)
        if self._thread.is_alive():
            log.warning("W&B is still busy after %.0f s; send the rest with: %s", limit_s, self._sync_command())

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            try:
                call()
            except Exception as error:
                log.warning("W&B stopped (%s: %s); metrics.jsonl goes on", type(error).__name__, error)
                return

    def _start(self) -> None:
        import wandb

        mode = self._config.mode if self._config.mode != "auto" else auto_mode()
        if mode == "online" and not _reachable(3.0):
            log.warning("W&B's server cannot be reached: this run is logged offline; later: %s", self._sync_command())
            mode = "offline"
        settings = wandb.Settings(init_timeout=self._config.timeout_s, silent=True, console="off")
        arguments = {
            "dir": str(self._directory),
            "resume": "allow" if mode == "online" else None,
            **self._run_arguments,
        }
        try:
            self._run = wandb.init(mode=mode, settings=settings, **arguments)  # type: ignore[arg-type]
        except (wandb.Error, OSError) as error:
            if mode != "online":
                raise
            log.warning("W&B did not start (%s): this run is logged offline; later: %s", error, self._sync_command())
            self._run = wandb.init(mode="offline", settings=settings, **{**arguments, "resume": None})
        self._run.define_metric("*", step_metric="step")

    def _sync_command(self) -> str:
        return f"wandb sync {self._directory}/wandb/offline-run-*"


def auto_mode() -> str:
    """What WANDB_MODE says; else online where a key is configured, offline where there is none."""
    if os.environ.get("WANDB_MODE"):
        return os.environ["WANDB_MODE"]
    if os.environ.get("WANDB_API_KEY"):
        return "online"
    try:
        known = netrc.netrc().authenticators(_server()[0])
    except (OSError, netrc.NetrcParseError):
        known = None
    return "online" if known else "offline"


def _server() -> tuple[str, int]:
    url = urlsplit(os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai"))
    return url.hostname or "", url.port or (80 if url.scheme == "http" else 443)


def _reachable(timeout_s: float) -> bool:
    """Without a network wandb.init tries for far longer than its timeout says; this asks first."""
    if os.environ.get("HTTPS_PROXY") or os.environ.get("https_proxy"):
        return True
    try:
        socket.create_connection(_server(), timeout=timeout_s).close()
    except OSError:
        return False
    return True
