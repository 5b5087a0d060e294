"""Sends a run to W&B: row n there is line n of metrics.jsonl. Of each row `step` is the optimizer's step (the x axis of
all charts), W&B's own `_step` the line's number.

One way for all: ask how many rows the server has, send the lines after them, the summary and the end, ask again. So
whoever sends (the run's own process, a resume's, ./run sync), after whatever interruption, adds what is lacking, once.

    RUN_DIR live PID    beside process PID, whose run it follows by a pipe (stdin)
    RUN_DIR sync        what a run that has ended lacks there
    RUN_DIR anew        all of it, as a new W&B run

Status 0: all is there. `command` prints one line for the user. W&B's own lines go to stderr.
"""

from __future__ import annotations

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
from samebits.files import check_regular, open_regular, read_file, read_json, read_text, write_json
from samebits.locks import Busy, Lock
from samebits.loggers.media import media_file, read_table
from samebits.loggers.wandb_log import FOLDER, SUMMARY, upload_command, wandb_arguments, wandb_reachable
from samebits.programs import NoAnswer, answer_of
from samebits.project import Project
from samebits.runs import is_claimed
from samebits.saved import enter
from samebits.status import METRICS, RESULT, SHARED_WEIGHTS, STATUS

POLL_S = 1.0  # between two looks at metrics.jsonl
LIMIT_S = 900.0  # for what is left at a run's end; ./run sync sends the rest
PATIENCE_S = 10.0  # that ./run sync leaves a run's own process to end
SENT, LOCKED = "sent.json", ".sending"  # in wandb/: what the server has confirmed; the lock of whoever sends
# W&B shows 255 as killed by the user, others except 0 as failed, or as preempted after mark_preempting()
EXIT_CODES = {"finished": 0, "running": 0, "pruned": 0, "interrupted": 255, "preempted": 75}


class Elsewhere(RunFailed):
    """What W&B has under the run's id is no beginning of metrics.jsonl."""


class Feed:
    """The records of metrics.jsonl, those still to come too, until the process at the pipe's other end closes it; then
    `status` is what it wrote there, or what status.json says. pipe: None for a run that has ended."""

    def __init__(self, run_dir: Path, pipe: TextIO | None = None, status: str = "") -> None:
        self._directory, self._pipe, self._status = run_dir, pipe, status
        self._ended = threading.Event()
        self._offset = 0
        if pipe is None:
            self._ended.set()
        else:
            threading.Thread(target=self._listen, daemon=True).start()

    @property
    def ended(self) -> bool:
        return self._ended.is_set()

    @property
    def status(self) -> str:
        return self._status or status_of(self._directory)

    def wait(self, limit_s: float | None = None) -> None:
        """Until the run has ended; for a run that has, limit_s."""
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
            ended = self.ended  # before the look: all that was written by then is read
            yield from self._new()
            if ended:
                return
            self._ended.wait(POLL_S)

    def _new(self) -> Iterator[dict[str, Any]]:
        with suppress(FileNotFoundError), open_regular(self._directory / METRICS) as file:
            file.seek(self._offset)
            for line in file:
                if not line.endswith(b"\n"):  # being written, or cut off by a kill
                    return
                self._offset += len(line)
                with suppress(ValueError, RecursionError):
                    record = json.loads(line)
                    if isinstance(record, dict) and isinstance(record.get("step"), int):
                        yield record


def status_of(run_dir: Path) -> str:
    """As in status.json; killed: it says running, but no process does."""
    status = str(read_json(run_dir / STATUS).get("status", "created"))
    return "killed" if status in ("running", "created") and not is_claimed(run_dir) else status


@dataclass(frozen=True)
class Held:
    """What the server has of a run. last: W&B's `_step` of the last row, -1 without rows."""

    count: int
    last: int
    state: str
    status: str

    @property
    def in_lines(self) -> bool:
        return self.last == self.count - 1

    def is_whole(self, lines: int, status: str) -> bool:
        return (self.count, self.status) == (lines, status) and self.state not in ("running", "crashed", "pending")


def held(arguments: dict[str, Any]) -> Held | None:
    """None: the server has no such run. Raises whatever wandb raises where the server does not answer."""
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
    """wandb.init, with the optimizer step as the x axis of all charts. pid: the process whose use of the machine W&B
    shows."""
    import wandb

    settings = wandb.Settings(init_timeout=timeout_s, silent=True, console="off", x_stats_pid=pid or os.getpid())
    run = wandb.init(mode=mode, dir=str(folder), settings=settings, **arguments)  # type: ignore[arg-type]
    run.define_metric("*", step_metric="step")
    return run


def send_wandb(
    project: Project, run_dir: Path, feed: Iterable[dict[str, Any]], folder: Path, mode: str, pid: int | None = None
) -> Any:
    """Begin the W&B run where it ended and log the lines that it lacks. Returns (run, lines in all, lines it had)."""
    logger, arguments = wandb_arguments(project, run_dir)
    again = {"resume": "allow"} if mode == "online" else {}
    run = begin_wandb(arguments | again, folder, mode, logger.timeout_s, pid)
    had, lines, files = run.starting_step, 0, None
    for record in feed:
        lines += 1
        if lines > had:
            run.log(row(run_dir, record))
        elif record.get("media"):  # its file may be lost, although the row is there
            files = [file.name for file in _server_run(arguments).files()] if files is None else files
            for name, value in shown(run_dir, record).items():
                if not any(f"{name}_{lines - 1}_" in file for file in files):
                    value.bind_to_run(run, name, lines - 1)
    return run, lines, had


def row(run_dir: Path, record: dict[str, Any]) -> dict[str, Any]:
    """A line of metrics.jsonl as W&B's row: values that were not finite (null) are left out."""
    values = {key: value for key, value in record.items() if key not in ("time", "media") and value is not None}
    return values | shown(run_dir, record) | {"_timestamp": record.get("time", time.time())}


def shown(run_dir: Path, record: dict[str, Any]) -> dict[str, Any]:
    """The pictures and more that a line names, as wandb's objects made of the run's files."""
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
    """The whole run's values, the best checkpoint, and last the status: where that is, all is."""
    logger, _ = wandb_arguments(project, run_dir)
    result = read_json(run_dir / RESULT)
    finals = {f"final/{key}": value for key, value in result.items() if "/" in key}
    run.summary.update(read_json(run_dir / FOLDER / SUMMARY) | finals)
    if logger.artifact and status == "finished" and (best := own_checkpoint(run_dir, result)) is not None:
        log_artifact(run, result, best)
    run.summary["status"] = status
    if status == "preempted":
        run.mark_preempting()  # W&B shows it as preempted, and a sweep of W&B's may queue it again
    run.finish(exit_code=EXIT_CODES.get(status, 1))


def own_checkpoint(run_dir: Path, result: dict[str, Any]) -> Path | None:
    """Returns the best checkpoint that result.json names, only if it is in this run directory: no other is uploaded."""
    path = run_dir / "checkpoints" / Path(str(result.get("best_checkpoint", ""))).name
    inside = path.resolve().parent == (run_dir.resolve() / "checkpoints")
    return path if "best_checkpoint" in result and inside and path.exists() else None


def log_artifact(run: Any, result: dict[str, Any], path: Path) -> None:
    """Upload the best checkpoint; returns when it is there. policy=immutable: W&B reads the file itself, not a copy."""
    import wandb

    scores = {key: value for key, value in result.items() if "/" in key}
    artifact = wandb.Artifact(f"model-{run.id}", type="model", metadata={"step": result["best_step"], **scores})
    files = sorted(path.iterdir()) if path.is_dir() else [path]  # a folder: one file of each rank
    shared = path.with_name(SHARED_WEIGHTS)  # what no step changes, samebits.checkpoints.shared_weights
    for file in [*files, *([shared] if shared.exists() else [])]:
        check_regular(file)
        artifact.add_file(str(file), name=str(file.relative_to(path.parent)), policy="immutable")
    logged = run.log_artifact(artifact, aliases=["best"])
    if not run.offline:
        logged.wait()


# ---- one run, and the record of what the server confirmed


def sent(run_dir: Path) -> dict[str, Any]:
    """What an upload depends on. Unchanged since SENT was written: nothing is lacking."""
    status = read_json(run_dir / STATUS)
    text = read_file(run_dir / METRICS) if (run_dir / METRICS).exists() else b""
    return {"id": status.get("wandb_id"), "status": status_of(run_dir), "metrics": hashlib.sha256(text).hexdigest()}


def confirmed(run_dir: Path) -> bool:
    """Whether the server has said, since the run's last line and end, that it has all."""
    return read_json(run_dir / FOLDER / SENT) == sent(run_dir)


def upload(project: Project, run_dir: Path, how: str, feed: Feed, pid: int | None = None) -> str:
    """Send what the server lacks, and see that it has it. Returns a line for the user. Raises RunFailed, and what wandb
    raises."""
    _, arguments = wandb_arguments(project, run_dir)
    known = None if how == "anew" else held(arguments)
    new = how == "anew"
    if how == "live":
        if known is not None and not known.in_lines:
            raise Elsewhere("its rows are not the lines of metrics.jsonl, as an older version wrote them")
    elif known is not None:
        steps = [record["step"] for record in feed]
        older = not known.in_lines and (known.count, known.last) == (len(set(steps)), max(steps, default=-1))
        if known.is_whole(known.count if older else len(steps), feed.status):
            return "all is there"
        new = not known.in_lines or (known.count > len(steps) and feed.status in ("finished", "pruned"))
    if new:
        write_json(run_dir / STATUS, read_json(run_dir / STATUS) | {"wandb_id": secrets.token_hex(4)})
        _, arguments = wandb_arguments(project, run_dir)
    run, lines, had = send_wandb(project, run_dir, feed, run_dir, "online", pid)
    finish_wandb(project, run, run_dir, feed.status)
    if lines < had:
        return f"has {had} lines, metrics.jsonl only {lines}: the run was resumed further back; go on with it"
    for _ in range(5):
        now = held(arguments)
        if now is not None and now.is_whole(lines, feed.status):
            return f"{lines - had} of {lines} lines sent" + f", as a new run {run.id}" * new
        time.sleep(1)
    raise RunFailed(f"the server has {now.count if now else 0} of {lines} lines")


@contextmanager
def sending(run_dir: Path, wait_s: float) -> Iterator[None]:
    """Hold the lock of whoever sends this run. A run's own process is ended after wait_s: what it has not sent, the
    caller sends. Raises RunFailed if another ./run sync holds it."""
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
    """The process that a run on this machine has begun to send it, if it is there and the user's own. Its number is
    from a file of the run's directory, so its command line must say that it is one."""
    pid = read_json(run_dir / FOLDER / f"{LOCKED}.json").get("pid")
    if type(pid) is not int or pid <= 1:
        return None
    said = command_line(pid)
    is_one = "samebits.loggers.wandb_upload" in said and f" {run_dir.absolute()} live " in f"{said} "
    return pid if is_one else None


def command_line(pid: int) -> str:
    """Of one of the user's own processes; empty if there is none of this number."""
    proc = Path(f"/proc/{pid}")
    try:
        if proc.parent.joinpath("self").exists():
            own = proc.stat().st_uid == os.getuid()
            return os.fsdecode((proc / "cmdline").read_bytes()).replace("\0", " ").strip() if own else ""
        uid, _, words = os.fsdecode(answer_of(["ps", "-ww", "-o", "uid=,args=", "-p", str(pid)])).strip().partition(" ")
        return words if uid == str(os.getuid()) else ""
    except (OSError, NoAnswer):  # it has gone
        return ""


def end_children() -> None:
    """wandb's service process would go on trying."""
    pids: list[bytes] = []
    if not os.path.exists("/proc/self"):
        with suppress(NoAnswer):  # there are none
            pids = answer_of(["pgrep", "-P", str(os.getpid())]).split()
    else:
        pids = [path.name.encode() for path in Path("/proc").glob("[0-9]*") if parent_of(path) == os.getpid()]
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(int(pid), signal.SIGKILL)


def parent_of(process: Path) -> int | None:
    with suppress(OSError):  # it has ended meanwhile
        return int((process / "stat").read_text(errors="replace").rpartition(")")[2].split()[1])
    return None


def leave(code: int) -> None:
    end_children()
    os._exit(code)


def main(
    project: Project, run_dir: Path, how: str, pid: int = 0, began: float = 0.0, tries: int = 0, status: str = ""
) -> int:
    """began: when the run had ended, for a process that tries again (`_again`)."""
    signal.signal(signal.SIGTERM, lambda *_: leave(143))
    enter(run_dir)
    live = how == "live"
    feed = Feed(run_dir, sys.stdin if live else None, status)
    if live:  # W&B's stop button, and the early end of a run of its sweeps: wandb interrupts this process
        signal.signal(signal.SIGINT, lambda *_: os.kill(pid, signal.SIGINT) if os.getppid() == pid else None)
    threading.Thread(target=_limit, args=(feed, began), daemon=True).start()
    try:
        with sending(run_dir, 0.0 if live else PATIENCE_S):
            if not wandb_reachable(5.0):
                raise RunFailed("the server cannot be reached")
            done = upload(project, run_dir, how, feed, pid or None)
            if feed.status == status_of(run_dir):
                write_json(run_dir / FOLDER / SENT, sent(run_dir))
    except Exception as error:
        what = str(error) if isinstance(error, RunFailed) else f"{type(error).__name__}: {error}"
        if not live or isinstance(error, Elsewhere) or not tries:
            with suppress(OSError):  # the run has gone, and nobody listens
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
    """Begin anew as a fresh process of the same number and pipe, as wandb keeps the state of a failure."""
    ended = (str(began or time.time()), str(tries), feed.status) if feed.ended else ("0", str(tries), "")
    given = upload_command(project, run_dir, "live", str(pid), *ended)
    os.environ.pop("WANDB_SERVICE", None)  # wandb's, of the process that end_children has killed
    os.execv(sys.executable, given)


def _limit(feed: Feed, began: float) -> None:
    """End this process LIMIT_S after the run, if wandb hangs or the server stays away."""
    feed.wait()
    time.sleep(max(0.0, LIMIT_S - (time.time() - began if began else 0.0)))
    leave(1)


def command(project: Project) -> None:
    """The arguments above; those after PID are of a process that tries again."""
    run_dir, how, *more = sys.argv[1:]
    pid, began, tries = (float(text) for text in [*more[:3], "0", "0", "0"][:3])
    sys.exit(main(project, Path(run_dir), how, int(pid), began, int(tries), *more[3:]))
