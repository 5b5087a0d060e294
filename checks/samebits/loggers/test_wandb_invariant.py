"""Whatever happens between: in the end the server has each line of metrics.jsonl once, in order, and the run's end.

Sequences that hypothesis makes of starts, ends, kills, outages, syncs and moves of the directory go through a model of
wandb's client: what it has been given arrives in order, up to where it or the server dies, and it tells nobody.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies as st
from test_wandb import assert_holds, begun
from wandb_server import Server

from lab.program import PROGRAM
from samebits.files import write_json
from samebits.loggers import LoggerConfig, RunLogger, wandb_upload
from samebits.loggers.wandb_log import wandb_arguments
from samebits.loggers.wandb_upload import Feed, upload
from samebits.status import write_status
from samebits.testing import status

LAST = 20  # step at which the run finishes; a line every 2 steps, two and a text every 4, where it is saved, too
ENDS = ("preempted", "interrupted", "failed", "kill")
# run: steps that it makes, how it ends, what arrives: None: all, else so many lines, and how the client then fails
ILL = st.one_of(st.none(), st.tuples(st.integers(0, 12), st.sampled_from(["silent", "raises", "killed", "away"])))
EVENT = st.one_of(
    st.tuples(st.just("run"), st.integers(1, 9), st.sampled_from(ENDS), ILL),
    st.tuples(st.just("sync"), ILL),
    st.tuples(st.just("move")),
)


def train(run: Path, steps: int, end: str) -> None:
    """Log as a run does that resumes from its newest checkpoint, a multiple of 4, and repeats what came after it."""
    at, kept = saved(run)
    write_status(run, "running")
    until = min(at + steps, LAST)
    with RunLogger(PROGRAM, run, LoggerConfig(kind="none"), at, 60.0, kept if at else None) as logger:
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
            said = upload(PROGRAM, run, how, Feed(run, None))
        except (Exception, KeyboardInterrupt):
            assert ill is not None
            return
        if "resumed from an earlier step" not in said:  # "complete" is printed after a check
            assert len(self.server.rows(status(run)["wandb_id"])) == len(list(Feed(run, None))), said


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch, template: Path) -> Iterator[Model]:
    server = Server()
    made = Model(server)
    monkeypatch.setattr(wandb_upload, "begin_wandb", made.begin)
    monkeypatch.setattr(wandb_upload, "_server_run", made.known)
    monkeypatch.setattr(wandb_upload, "shown", lambda run, record: dict.fromkeys(record.get("media") or (), Shown("x")))
    logger, given = wandb_arguments(PROGRAM, template)  # once: YAML is slow to read

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
            train(run, steps, end)
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
        train(run, LAST, "finished")
    model.send(run, "sync", None)
    return run


@pytest.mark.slow
@hypothesis.settings(max_examples=100, suppress_health_check=list(hypothesis.HealthCheck))
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


def test_however_often_a_sender_tries_again_its_time_is_counted_from_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the run. Else one whose server stays away would never end."""
    given: list[list[str]] = []
    monkeypatch.setattr(wandb_upload.os, "execv", lambda _, command: given.append(command))
    monkeypatch.setattr(wandb_upload, "main", lambda *arguments: given.append([*map(str, arguments)]))
    feed = SimpleNamespace(ended=True, status="finished")
    wandb_upload._again(PROGRAM, tmp_path, 1, feed, 2, 0.0)  # type: ignore[arg-type]
    monkeypatch.setattr("sys.argv", ["-c", *given[0][-6:]])
    with pytest.raises(SystemExit):
        wandb_upload.command(PROGRAM)
    began, tries = float(given[1][4]), int(given[1][5])
    assert tries == 2
    wandb_upload._again(PROGRAM, tmp_path, 1, feed, 3, began)  # type: ignore[arg-type]
    assert given[2][-3:] == [str(began), "3", "finished"]
    slept: list[float] = []
    monkeypatch.setattr(wandb_upload, "leave", lambda code: None)
    monkeypatch.setattr(wandb_upload.time, "sleep", slept.append)
    monkeypatch.setattr(wandb_upload.time, "time", lambda: 0.0)  # the clock was set back
    wandb_upload._limit(SimpleNamespace(wait=lambda: None), began)  # type: ignore[arg-type]
    assert wandb_upload.LIMIT_S - 60 < slept[0] <= wandb_upload.LIMIT_S
