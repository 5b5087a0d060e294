"""Whatever happens between: in the end the server has each line of metrics.jsonl once, in order, and the run's end.

Sequences that hypothesis makes of starts, ends, kills, outages, syncs and moves of the directory go through a model of
wandb's client: what it has been given arrives in order, up to where it or the server dies, and it tells nobody.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import hypothesis
import pytest
import warm
from conftest import limit, processes_with, status, wait_for
from hypothesis import strategies as st
from test_wandb import assert_holds, begun, online
from test_wandb_sync import SYNC, kill_senders
from wandb_server import Server, serving

from engine.files import write_json
from engine.loggers import RunLogger, wandb_upload
from engine.loggers.options import LoggerConfig
from engine.loggers.wandb_log import wandb_arguments
from engine.loggers.wandb_upload import Feed, upload
from engine.runs.directory import write_status
from lab.project import PROJECT

LAST = 20  # step at which the run finishes; a line every 2 steps, two and a text every 4, where it is saved, too
ENDS = ("preempted", "interrupted", "failed", "kill")
# run: steps that it makes, how it ends, what arrives: None: all, else so many lines, and how the client then fails
ILL = st.one_of(st.none(), st.tuples(st.integers(0, 12), st.sampled_from(["silent", "raises", "killed", "away"])))
EVENT = st.one_of(
    st.tuples(st.just("run"), st.integers(1, 9), st.sampled_from(ENDS), ILL),
    st.tuples(st.just("sync"), ILL),
    st.tuples(st.just("move")),
)


def train(run: Path, steps: int, end: str, kind: str) -> None:
    """Log as a run does that resumes from its newest checkpoint, a multiple of 4, and repeats what came after it."""
    at, kept = saved(run)
    config = LoggerConfig(kind=kind)
    write_status(run, "running")
    until = min(at + steps, LAST)
    with RunLogger(PROJECT, run, config, at, 60.0, kept if at else None) as logger:
        logger.begin(at, LAST)
        for step in range(at + 1, until + 1):
            logger.progress(step)
            if step % 2 == 0:
                logger.log(step, {"train/loss": 1 / step, "perf/clock": time.time()})
            if step % 4 == 0 and not (end == "preempted" and step == until):  # a stop puts the evaluation off
                logger.log(step, {"val/loss": 2 / step, "val/odd": float("nan")})
                logger.show(step, "text", f"step {step}")
            if step % 4 == 0:
                (run / "saved").write_text(f"{step} {logger.lines}")
            if end == "kill" and step == until and kind == "wandb":
                os.kill(os.getpid(), signal.SIGKILL)
        if end != "kill":
            write_status(run, "finished" if until == LAST else end)


def saved(run: Path) -> tuple[int, int | None]:
    if not (run / "saved").exists():
        return 0, None
    at, kept = map(int, (run / "saved").read_text().split())
    return at, kept


class Shown(str):
    """wandb's object for a picture."""

    def bind_to_run(self, *where: Any) -> None: ...


class Client:
    """What wandb.init returns, as far as the upload uses it. limit: lines that arrive; then it is ill."""

    offline = True

    def __init__(self, server: Server, run: str, limit: int, how: str) -> None:
        self.server, self.id, self.limit, self.how = server, run, limit, how
        self.summary: dict[str, Any] = {}
        rows = server.rows(run)
        self.starting_step = rows[-1]["_step"] + 1 if rows else 0
        self.offset, self.preempting = len(rows), False
        self.rows: list[dict[str, Any]] = []

    def log(self, row: dict[str, Any]) -> None:
        self.rows.append({"_step": self.starting_step + len(self.rows), **row})
        if self.how == "killed" and len(self.rows) > self.limit:  # with what has arrived by then
            self._send(self.limit)
            raise KeyboardInterrupt
        if self.how == "raises" and len(self.rows) > self.limit:  # wandb-core has died
            self._send(self.limit)
            raise ConnectionError("wandb-core")

    def mark_preempting(self) -> None:
        self.preempting = True

    def _send(self, count: int, **more: Any) -> None:
        lines = {"offset": self.offset, "content": [json.dumps(row) for row in self.rows[:count]]}
        self.server.streamed(self.id, {"files": {"wandb-history.jsonl": lines}, **more})

    def finish(self, exit_code: int) -> None:
        if len(self.rows) > self.limit or self.how == "away":  # an outage: the client says nothing
            self._send(min(self.limit, len(self.rows)))
            return
        self._send(len(self.rows))
        summary = {"offset": 0, "content": [json.dumps(self.server.summaries.get(self.id, {}) | self.summary)]}
        ended = {"complete": True, "exitcode": exit_code, "preempting": self.preempting}
        self.server.streamed(self.id, {"files": {"wandb-summary.json": summary}, **ended})


class Model:
    """Puts itself in the place of wandb."""

    def __init__(self, server: Server) -> None:
        self.server, self.ill = server, (10**6, "well")

    def begin(self, arguments: dict[str, Any], folder: Path, mode: str, *rest: Any) -> Client:
        given = {"name": arguments["id"], "project": arguments["project"]}
        self.server.graphql("UpsertBucket", given, "")
        self.server.configs[arguments["id"]] = {key: {"value": value} for key, value in arguments["config"].items()}
        return Client(self.server, arguments["id"], *self.ill)

    def known(self, arguments: dict[str, Any]) -> Any:
        bucket = self.server._bucket(arguments["id"])
        if bucket is None:
            return None
        return SimpleNamespace(
            historyLineCount=bucket["historyLineCount"], lastHistoryStep=bucket["historyKeys"]["lastStep"],
            state=bucket["state"], summary=self.server.summaries.get(arguments["id"], {}), files=list,
        )  # fmt: skip

    def send(self, run: Path, how: str, ill: tuple[int, str] | None) -> None:
        """What the process of a run or ./run sync does, up to where it fails."""
        self.ill = ill or (10**6, "well")
        try:
            said = upload(PROJECT, run, how, Feed(run, None))
        except (Exception, KeyboardInterrupt):
            assert ill is not None
            return
        if "resumed further back" not in said:  # who says that all is there has seen it
            assert len(self.server.rows(status(run)["wandb_id"])) == len(list(Feed(run, None))), said


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch, template: Path) -> Iterator[Model]:
    server = Server()
    made = Model(server)
    monkeypatch.setattr(wandb_upload, "begin_wandb", made.begin)
    monkeypatch.setattr(wandb_upload, "_server_run", made.known)
    monkeypatch.setattr(wandb_upload, "shown", lambda run, record: dict.fromkeys(record.get("media") or (), Shown("x")))
    logger, given = wandb_arguments(PROJECT, template)  # once: YAML is slow to read

    def arguments(project: Any, run: Path) -> Any:
        return logger, given | {"id": status(run)["wandb_id"]}

    monkeypatch.setattr(wandb_upload, "wandb_arguments", arguments)
    monkeypatch.setattr(wandb_upload.time, "sleep", lambda seconds: None)
    yield made
    server.server_close()


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run directory, composed once."""
    begun(run := tmp_path_factory.mktemp("template") / "run")
    return run


def one_sequence(model: Model, template: Path, folder: Path, events: list[Any]) -> Path:
    run = shutil.copytree(template, folder / "run")
    write_json(run / "status.json", status(run) | {"wandb_id": f"r{len(model.server.runs)}"})
    for number, (event, *more) in enumerate(events):
        if event == "run":
            steps, end, ill = more
            train(run, steps, end, "none")
            if ill != (0, "away"):
                model.send(run, "live", ill)
        elif event == "sync":
            model.send(run, "sync", more[0])
        else:
            moved = folder / f"moved{number}"
            shutil.copytree(run, moved)
            run = moved
        if saved(run)[0] == LAST:
            break
    while saved(run)[0] < LAST or status(run)["status"] != "finished":
        train(run, LAST, "finished", "none")
    model.send(run, "sync", None)
    return run


@pytest.mark.slow
@hypothesis.settings(max_examples=200, suppress_health_check=list(hypothesis.HealthCheck))
@hypothesis.given(events=st.lists(EVENT, max_size=8))
def test_after_any_sequence_the_server_has_what_metrics_has(model: Model, template: Path, events: list[Any]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        run = one_sequence(model, template, Path(folder), events)
        asked = model.server.asked.copy()
        model.send(run, "sync", None)  # once more: nothing is sent
        assert model.server.asked == asked
        model.server.changed.clear()  # of steps done again: what depends on the clock
        assert_holds(model.server, run)


@pytest.mark.slow
def test_a_few_sequences(model: Model, template: Path, tmp_path: Path) -> None:
    sequences = [
        [("run", 9, "kill", (3, "killed")), ("run", 7, "preempted", None), ("move",), ("sync", None)],
        [("run", 8, "preempted", None), ("run", 9, "failed", (2, "silent")), ("sync", (1, "raises"))],
        [("run", 9, "kill", None), ("run", 1, "interrupted", None), ("sync", None)],
    ]
    for number, events in enumerate(sequences):
        run = one_sequence(model, template, tmp_path / str(number), events)
        model.server.changed.clear()
        assert_holds(model.server, run)


# ---- the same with wandb itself

# from which request on the server is ill, for how many seconds, and how
OUTAGE = st.one_of(
    st.none(),
    st.tuples(st.integers(0, 12), st.sampled_from([0.5, 3.0]), st.sampled_from([0.2, 500, 429, 403, "hang", "drop"])),
)
REAL = st.one_of(
    st.tuples(st.just("run"), st.integers(1, 9), st.sampled_from(ENDS), OUTAGE, st.booleans()),
    st.tuples(st.just("sync"), OUTAGE),
    st.tuples(st.just("move")),
)


def outage(first: int, seconds: float, how: Any) -> Callable[[str], Any]:
    asked, until = iter(range(10**9)), [0.0]

    def ill(path: str) -> Any:
        if not until[0]:
            if next(asked) < first:
                return None
            until[0] = time.monotonic() + seconds
        return how if time.monotonic() < until[0] else None

    return ill


def in_a_process(work: Callable[[], Any]) -> None:
    if (child := os.fork()) == 0:
        try:
            work()
        finally:
            os._exit(0)
    os.waitpid(child, 0)


def a_real_sequence(server: Server, template: Path, folder: Path, events: list[Any], env: dict[str, str]) -> Path:
    def sync(code: set[int]) -> None:
        done = warm.run([*SYNC, str(run)], env=env, capture_output=True, text=True, timeout=limit(120))
        assert done.returncode in code, done.stdout + done.stderr

    run = shutil.copytree(template, folder / "run")
    write_json(run / "status.json", status(run) | {"wandb_id": f"r{len(server.runs)}"})
    for number, (event, *more) in enumerate(events):
        ill = more[-1] if event == "sync" else more[2] if event == "run" else None
        server.ill = outage(*ill) if ill else None
        if event == "run":
            steps, end, _, killed = more
            in_a_process(partial(train, run, steps, end, "wandb"))
            if killed:
                kill_senders(run)
        elif event == "sync":
            sync({0, 1})
        else:
            moved = shutil.copytree(run, folder / f"moved{number}")
            kill_senders(run)  # else both would send the same run, from two machines at once
            run = moved
        if saved(run)[0] == LAST:
            break
    server.ill = None
    while saved(run)[0] < LAST or status(run)["status"] != "finished":
        in_a_process(partial(train, run, LAST, "finished", "wandb"))
    sync({0})
    return run


@pytest.mark.slow
@pytest.mark.timeout(7200)
@hypothesis.settings(
    max_examples=int(os.environ.get("SEQUENCES", "3")), suppress_health_check=list(hypothesis.HealthCheck)
)
@hypothesis.given(events=st.lists(REAL, min_size=1, max_size=4))
def test_after_any_sequence_with_wandb_itself(template: Path, events: list[Any]) -> None:
    """SEQUENCES in the environment: how many; each takes some 15 seconds."""
    with serving() as server, tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patched:
        for name, value in online(server).items():
            patched.setenv(name, value)
        run = a_real_sequence(server, template, Path(folder), events, dict(os.environ))
        wait_for(lambda: not processes_with(folder))
        server.changed.clear()  # of steps done again: what depends on the clock
        assert_holds(server, run)


def test_however_often_a_sender_tries_again_its_time_is_counted_from_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the run. Else one whose server stays away would never end."""
    given: list[list[str]] = []
    monkeypatch.setattr(wandb_upload.os, "execv", lambda _, command: given.append(command))
    monkeypatch.setattr(wandb_upload, "main", lambda *arguments: given.append([*map(str, arguments)]))
    feed = SimpleNamespace(ended=True, status="finished")
    wandb_upload._again(PROJECT, tmp_path, 1, feed, 2, 0.0)  # type: ignore[arg-type]
    monkeypatch.setattr("sys.argv", ["-c", *given[0][-6:]])
    with pytest.raises(SystemExit):
        wandb_upload.command(PROJECT)
    began, tries = float(given[1][4]), int(given[1][5])
    assert 0 <= time.time() - began < 60 and tries == 2  # noqa: PT018
    wandb_upload._again(PROJECT, tmp_path, 1, feed, 3, began)  # type: ignore[arg-type]
    assert given[2][-3:] == [str(began), "3", "finished"]
