"""Send a run to W&B: row n there is line n of metrics.jsonl. The column `step` of a row is the optimizer step (the x
axis of all charts); W&B's own `_step` is the line number.

All callers use the same protocol: request the number of rows from the server, send the lines after them, the summary
and the status, and request the number again. Therefore the run's own process, a resumed run and ./run sync can each add
what is missing after any interruption, without duplicates.

    RUN_DIR live PID    follow the run of process PID, whose end is notified by a pipe (stdin)
    RUN_DIR sync        send what is missing of a run that has ended
    RUN_DIR anew        send everything as a new W&B run

Exit status 0: the server has everything. `command` prints one line for the user. Output of wandb goes to stderr.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import os
import secrets
import signal
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from samebits.errors import RunFailed
from samebits.files import amount, check_regular, open_regular, read_file, read_json, read_text, write_json
from samebits.locks import Busy, Lock
from samebits.loggers.media import media_file, read_table
from samebits.loggers.wandb_log import FOLDER, SUMMARY, upload_command, wandb_arguments, wandb_reachable
from samebits.programs import NoAnswer, answer_of
from samebits.project import Project
from samebits.runs import current_status
from samebits.saved import check_run_dir
from samebits.status import METRICS, RESULT, SHARED_WEIGHTS, STATUS

POLL_S = 1.0  # seconds between two reads of metrics.jsonl
LIMIT_S = 900.0  # seconds to send data after a run's end; ./run sync sends the rest
PATIENCE_S = 10.0  # seconds that ./run sync waits for the run's own process to end
SENT, LOCKED = "sent.json", ".sending"  # in wandb/: what the server has confirmed; the lock of the process that sends
# W&B shows 255 as killed by the user, others except 0 as failed, or as preempted after mark_preempting()
EXIT_CODES = {"finished": 0, "running": 0, "pruned": 0, "interrupted": 255, "preempted": 75}


class Elsewhere(RunFailed):
    """The rows under the run's id in W&B are not the first lines of metrics.jsonl."""


class Feed:
    """Iterate over the records of metrics.jsonl, including future ones, until the process at the other end of `pipe`
    closes it.

    Afterwards `status` is the text that it wrote to the pipe, or the status of status.json. pipe: None to read the
    files once; `status` does not change.
    """

    def __init__(self, run_dir: Path, pipe: TextIO | None = None, status: str = "") -> None:
        # of a run that is still running: read before its lines, so that lines of a later end are never counted as sent
        self._directory, self._pipe, self._status = run_dir, pipe, status if pipe else current_status(run_dir)
        self._ended = threading.Event()
        self._offset = 0
        if pipe is None:
            self._ended.set()
        else:
            threading.Thread(target=self._listen, daemon=True).start()

    @property
    def ended(self) -> bool:
        """True if the run has ended."""
        return self._ended.is_set()

    @property
    def status(self) -> str:
        """The status that was written to the pipe, or that of status.json."""
        return self._status or current_status(self._directory)

    def wait(self, limit_s: float | None = None) -> None:
        """Wait until the run has ended, at most limit_s seconds. If it has already ended, sleep for limit_s."""
        if self.ended and limit_s is not None:
            time.sleep(limit_s)
        self._ended.wait(limit_s)

    def _listen(self) -> None:
        assert self._pipe is not None
        self._status = self._pipe.read().strip() or self._status
        self._ended.set()

    def __iter__(self) -> Iterator[dict[str, Any]]:
        self._offset = 0
        while True:
            ended = self.ended  # before reading, so that everything that was written by then is read
            yield from self._new()
            if ended:
                return
            self._ended.wait(POLL_S)

    def _new(self) -> Iterator[dict[str, Any]]:
        with suppress(FileNotFoundError), open_regular(self._directory / METRICS) as file:
            file.seek(self._offset)
            for line in file:
                if not line.endswith(b"\n"):  # still being written, or cut off because the run was killed
                    return
                self._offset += len(line)
                with suppress(ValueError, RecursionError):
                    record = json.loads(line)
                    if isinstance(record, dict) and isinstance(record.get("step"), int):
                        yield record


@dataclass(frozen=True)
class Held:
    """The state of a run on the server. count: number of rows. last: W&B's `_step` of the last row, -1 without rows."""

    count: int
    last: int
    state: str
    status: str

    @property
    def in_lines(self) -> bool:
        """True if the rows are numbered like lines of metrics.jsonl."""
        return self.last == self.count - 1

    def is_whole(self, lines: int, status: str) -> bool:
        """Return True if the server has this number of lines and this status."""
        return (self.count, self.status) == (lines, status) and self.state not in ("running", "crashed", "pending")


def held(arguments: dict[str, Any]) -> Held | None:
    """Return the state of a run on the server; None if it does not exist there. Raise wandb's exceptions if the server
    does not answer."""
    run = _server_run(arguments)
    if run is None:
        return None
    count = int(run.historyLineCount or 0)
    status = str(run.summary.get("status", ""))
    return Held(count, int(run.lastHistoryStep) if count else -1, str(run.state), status)


def _server_run(arguments: dict[str, Any]) -> Any:
    import wandb

    path = [arguments["entity"], arguments["project"], arguments["id"]]
    try:
        return wandb.Api(timeout=20).run("/".join(part for part in path if part))
    except (ValueError, wandb.errors.CommError) as error:
        if "Could not find" in str(error):
            return None
        raise


def begin_wandb(arguments: dict[str, Any], folder: Path, mode: str, timeout_s: float, pid: int | None = None) -> Any:
    """Call wandb.init, with the optimizer step as the x axis of all charts. pid: the process whose system metrics W&B
    shows."""
    import wandb

    settings = wandb.Settings(init_timeout=timeout_s, silent=True, console="off", x_stats_pid=pid or os.getpid())
    run = wandb.init(mode=mode, dir=str(folder), settings=settings, **arguments)  # type: ignore[arg-type]
    run.define_metric("*", step_metric="step")
    return run


def send_wandb(
    project: Project, run_dir: Path, feed: Iterable[dict[str, Any]], folder: Path, mode: str, pid: int | None = None
) -> Any:
    """Continue the W&B run and log the missing lines. Return (run, number of lines, number of lines it had)."""
    logger, arguments = wandb_arguments(project, run_dir)
    again = {"resume": "allow"} if mode == "online" else {}
    run = begin_wandb(arguments | again, folder, mode, logger.timeout_s, pid)
    had, lines, files = run.starting_step, 0, None
    for record in feed:
        lines += 1
        if lines > had:
            run.log(row(run_dir, record))
        elif record.get("media"):  # its file may be missing although the row is there
            files = [file.name for file in _server_run(arguments).files()] if files is None else files
            for name, value in shown(run_dir, record).items():
                if not any(f"{name}_{lines - 1}_" in file for file in files):
                    value.bind_to_run(run, name, lines - 1)
    return run, lines, had


def row(run_dir: Path, record: dict[str, Any]) -> dict[str, Any]:
    """Convert a line of metrics.jsonl to a W&B row. Values that were not finite (null) are left out."""
    values = {key: value for key, value in record.items() if key not in ("time", "media") and value is not None}
    return values | shown(run_dir, record) | {"_timestamp": record.get("time", time.time())}


def shown(run_dir: Path, record: dict[str, Any]) -> dict[str, Any]:
    """Return the media of a line as wandb objects, made from the run's files."""
    import numpy as np
    import wandb

    made: dict[str, Any] = {}
    for name, kind in (record.get("media") or {}).items():
        path = media_file(run_dir, record["step"], name, kind)
        if not path.exists():
            continue
        check_regular(path)
        if kind == "image":
            made[name] = wandb.Image(str(path))
        elif kind == "audio":
            made[name] = wandb.Audio(str(path))
        elif kind == "svg":  # as an image: scripts in it, perhaps of an untrusted run, do not run
            data = base64.b64encode(read_file(path)).decode()
            made[name] = wandb.Html(f'<img src="data:image/svg+xml;base64,{data}">')
        elif kind == "text":
            made[name] = wandb.Html(f"<pre>{html.escape(read_text(path))}</pre>")
        else:
            heads, rows = read_table(path)
            if kind == "table":
                made[name] = wandb.Table(columns=list[str | int](heads), data=rows)
            else:
                edges = [line[0] for line in rows] + [rows[-1][1]]
                counts = [line[2] for line in rows]
                made[name] = wandb.Histogram(np_histogram=(np.asarray(counts), np.asarray(edges)))
    return made


def finish_wandb(project: Project, run: Any, run_dir: Path, status: str) -> None:
    """Send the summary, the best checkpoint and, last, the status, so that a run with a status is complete."""
    logger, _ = wandb_arguments(project, run_dir)
    result = read_json(run_dir / RESULT)
    finals = {f"final/{key}": value for key, value in result.items() if "/" in key}
    run.summary.update(read_json(run_dir / FOLDER / SUMMARY) | finals)
    if logger.artifact and status == "finished" and (best := own_checkpoint(run_dir, result)) is not None:
        log_artifact(run, result, best)
    run.summary["status"] = status
    if status == "preempted":
        run.mark_preempting()  # W&B shows it as preempted, and a W&B sweep may queue it again
    run.finish(exit_code=EXIT_CODES.get(status, 1))


def own_checkpoint(run_dir: Path, result: dict[str, Any]) -> Path | None:
    """Return the best checkpoint that result.json names, if it is in this run directory; no other file is uploaded."""
    path = run_dir / "checkpoints" / Path(str(result.get("best_checkpoint", ""))).name
    inside = path.resolve().parent == (run_dir.resolve() / "checkpoints")
    return path if "best_checkpoint" in result and inside and path.exists() else None


def log_artifact(run: Any, result: dict[str, Any], path: Path) -> None:
    """Upload the best checkpoint, and wait until it is stored. With policy=immutable W&B reads the file itself instead
    of a copy."""
    import wandb

    scores = {key: value for key, value in result.items() if "/" in key}
    artifact = wandb.Artifact(f"model-{run.id}", type="model", metadata={"step": result["best_step"], **scores})
    files = sorted(path.iterdir()) if path.is_dir() else [path]  # a folder with one file per rank
    shared = path.with_name(SHARED_WEIGHTS)  # weights that no step changes, see samebits.checkpoints.shared_weights
    for file in [*files, *([shared] if shared.exists() else [])]:
        check_regular(file)
        artifact.add_file(str(file), name=str(file.relative_to(path.parent)), policy="immutable")
    logged = run.log_artifact(artifact, aliases=["best"])
    if not run.offline:
        logged.wait()


# ---- one run, and the record of what the server confirmed


def sent(run_dir: Path) -> dict[str, Any]:
    """Return everything that an upload depends on. If it is equal to the content of sent.json, nothing is missing."""
    status = read_json(run_dir / STATUS)
    text = read_file(run_dir / METRICS) if (run_dir / METRICS).exists() else b""
    return {
        "id": status.get("wandb_id"),
        "status": current_status(run_dir),
        "metrics": hashlib.sha256(text).hexdigest(),
    }


def confirmed(run_dir: Path) -> bool:
    """Return True if the server has confirmed everything since the run's last line and end."""
    return read_json(run_dir / FOLDER / SENT) == sent(run_dir)


def upload(project: Project, run_dir: Path, how: str, feed: Feed, pid: int | None = None) -> str:
    """Send what is missing on the server, and verify that it arrived. Return a line for the user. Raise RunFailed, or
    the exceptions of wandb."""
    _, arguments = wandb_arguments(project, run_dir)
    known = None if how == "anew" else held(arguments)
    new = how == "anew"
    if how == "live":
        if known is not None and not known.in_lines:
            raise Elsewhere("its rows were written by an older version and are not the lines of metrics.jsonl")
    elif known is not None:
        steps = [record["step"] for record in feed]
        older = not known.in_lines and (known.count, known.last) == (len(set(steps)), max(steps, default=-1))
        if known.is_whole(known.count if older else len(steps), feed.status):
            return "complete"
        new = not known.in_lines or (known.count > len(steps) and feed.status in ("finished", "pruned"))
    if new:
        write_json(run_dir / STATUS, read_json(run_dir / STATUS) | {"wandb_id": secrets.token_hex(4)})
        _, arguments = wandb_arguments(project, run_dir)
    run, lines, had = send_wandb(project, run_dir, feed, run_dir, "online", pid)
    finish_wandb(project, run, run_dir, feed.status)
    if lines < had:
        held_there = f"has {amount(had, 'line')}, metrics.jsonl only {lines:,}"
        return f"{held_there}: the run was resumed from an earlier step; resume it again"
    for _ in range(5):
        now = held(arguments)
        if now is not None and now.is_whole(lines, feed.status):
            return f"{lines - had:,} of {amount(lines, 'line')} sent" + f", as a new run {run.id}" * new
        time.sleep(1)
    raise RunFailed(f"the server has {now.count if now else 0:,} of {amount(lines, 'line')}")


@contextmanager
def sending(run_dir: Path, wait_s: float) -> Iterator[None]:
    """Hold the lock of the process that sends this run. The run's own process is terminated after wait_s seconds; the
    caller sends the rest. Raise RunFailed if another ./run sync holds the lock."""
    path = run_dir / FOLDER / LOCKED
    path.parent.mkdir(exist_ok=True)
    began, asked = time.monotonic(), False
    while True:
        try:
            lock = Lock(path)
            break
        except Busy as busy:
            waited = time.monotonic() - began
            if waited > wait_s and not asked and (pid := sender_of(run_dir)) is not None:
                asked = True
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGTERM)
            elif waited > wait_s + PATIENCE_S:
                raise RunFailed(f"another process is sending it{busy}") from None
            time.sleep(0.1)
    with lock:
        live = sys.argv[2:3] == ["live"]
        write_json(path.with_suffix(".json"), {"pid": os.getpid(), "host": os.uname().nodename, "live": live})
        yield


def sender_of(run_dir: Path) -> int | None:
    """Return the id of the process on this machine that sends the run; None if there is none, or it belongs to another
    user.

    The id is read from a file of the run directory, so the command line of the process is compared, too.
    """
    pid = read_json(run_dir / FOLDER / f"{LOCKED}.json").get("pid")
    if type(pid) is not int or pid <= 1:
        return None
    said = command_line(pid)
    is_one = "samebits.loggers.wandb_upload" in said and f" {run_dir.absolute()} live " in f"{said} "
    return pid if is_one else None


def command_line(pid: int) -> str:
    """Return the command line of a process of this user, or an empty string if it does not exist."""
    proc = Path(f"/proc/{pid}")
    try:
        if proc.parent.joinpath("self").exists():
            own = proc.stat().st_uid == os.getuid()
            return os.fsdecode((proc / "cmdline").read_bytes()).replace("\0", " ").strip() if own else ""
        uid, _, words = os.fsdecode(answer_of(["ps", "-ww", "-o", "uid=,args=", "-p", str(pid)])).strip().partition(" ")
        return words if uid == str(os.getuid()) else ""
    except (OSError, NoAnswer):  # it has ended
        return ""


def end_children() -> None:
    """Kill the child processes, because wandb's service process would continue to retry."""
    pids: list[bytes] = []
    if not os.path.exists("/proc/self"):
        with suppress(NoAnswer):  # no child processes
            pids = answer_of(["pgrep", "-P", str(os.getpid())]).split()
    else:
        pids = [path.name.encode() for path in Path("/proc").glob("[0-9]*") if parent_of(path) == os.getpid()]
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(int(pid), signal.SIGKILL)


def parent_of(process: Path) -> int | None:
    """Return the parent's id of a process given by its folder /proc/PID; None if it has ended."""
    with suppress(OSError):  # it has ended
        return int((process / "stat").read_text(errors="replace").rpartition(")")[2].split()[1])
    return None


def leave(code: int) -> None:
    """End this process and its child processes."""
    end_children()
    os._exit(code)


def main(
    project: Project, run_dir: Path, how: str, pid: int = 0, began: float = 0.0, tries: int = 0, status: str = ""
) -> int:
    """Send a run, see the module. Return the exit status.

    began, tries, status: arguments of a process that retries (`_again`): time.monotonic() at the end of the run (0: it
    is running), number of failed attempts, final status of the run.
    """
    signal.signal(signal.SIGTERM, lambda *_: leave(143))
    check_run_dir(run_dir)
    live = how == "live"
    before = sent(run_dir)  # what is written during the upload may not be part of it
    feed = Feed(run_dir, sys.stdin if live else None, status)
    if live:  # wandb interrupts this process for W&B's stop button and for early termination by a W&B sweep
        signal.signal(signal.SIGINT, lambda *_: os.kill(pid, signal.SIGINT) if os.getppid() == pid else None)
    threading.Thread(target=_limit, args=(feed, began), daemon=True).start()
    try:
        with sending(run_dir, 0.0 if live else PATIENCE_S):
            if not wandb_reachable(5.0):
                raise RunFailed("the server cannot be reached")
            done = upload(project, run_dir, how, feed, pid or None)
            if live and feed.status == current_status(run_dir):
                write_json(run_dir / FOLDER / SENT, sent(run_dir))
            elif not live:
                own = read_json(run_dir / STATUS).get("wandb_id")
                write_json(run_dir / FOLDER / SENT, before | {"id": own})
    except Exception as error:
        what = str(error) if isinstance(error, RunFailed) else f"{type(error).__name__}: {error}"
        if not live or isinstance(error, Elsewhere) or not tries:
            with suppress(OSError):  # the run has ended, so the pipe is closed
                print(" ".join(what.split())[:300], flush=True)
        if not live or isinstance(error, Elsewhere):
            leave(1)
        end_children()
        feed.wait(min(2.0**tries, 60.0))
        _again(project, run_dir, pid, feed, tries + 1, began)
    if not live:
        print(done, flush=True)
    return 0


def _again(project: Project, run_dir: Path, pid: int, feed: Feed, tries: int, began: float) -> None:
    """Restart this program in the same process with the same pipe, because wandb keeps the state of a failure."""
    ended = (str(began or time.monotonic()), str(tries), feed.status) if feed.ended else ("0", str(tries), "")
    given = upload_command(project, run_dir, "live", str(pid), *ended)
    os.environ.pop("WANDB_SERVICE", None)  # set by wandb for the process that end_children has killed
    os.execv(sys.executable, given)


def _limit(feed: Feed, began: float) -> None:
    """End this process LIMIT_S seconds after the run, if wandb hangs or the server cannot be reached."""
    feed.wait()
    time.sleep(max(0.0, LIMIT_S - (time.monotonic() - began if began else 0.0)))
    leave(1)


def command(project: Project) -> None:
    """Run `main` with the arguments of the command line; those after PID are for a process that retries."""
    run_dir, how, *more = sys.argv[1:]
    pid, began, tries = (float(text) for text in [*more[:3], "0", "0", "0"][:3])
    sys.exit(main(project, Path(run_dir), how, int(pid), began, int(tries), *more[3:]))
