"""Whatever write a run is killed at, resumed it ends as the one that was not."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from common import QUICK
from writes import Attempt, _wait_for_group, attempt

import lab.loop
from lab.callbacks.base import Callback
from lab.program import PROGRAM, start
from samebits.checkpoints import load_checkpoint
from samebits.errors import PREEMPTED
from samebits.runs import choose_run, directory
from samebits.testing import assert_equal, compose, metrics, result, status
from samebits.testing.processes import sample_of
from samebits.testing.runs import import_once

RUN = (
    *QUICK, "trainer.max_steps=12", "trainer.log_every=2", "trainer.eval_every=4", "trainer.save_every=3",
    "trainer.keep_best=2", "trainer.max_eval_batches=1", "model.dropout=0.1",
)  # fmt: skip
TWO = ("hardware.num_procs=2", "trainer.global_batch_size=16", "trainer.max_eval_batches=4")
CASES = {
    "one rank": (),
    "no save but the last": ("trainer.save_every=null", "process.save_async=false", "trainer.keep_best=1"),
    "ended by a callback": ("trainer.eval_every=2", "trainer.save_every=5"),
    "ended by patience": ("trainer.early_stop_patience=1", "optim.lr=0", "trainer.save_every=null"),
    "stopped at a step": ("process.stop_at_step=4", "trainer.save_every=null"),
    "put off by a signal": ("trainer.save_every=null",),
    "two ranks": ("trainer=ddp", *TWO),
    "shards": ("trainer=fsdp", *TWO, "trainer.ema_decay=0.9"),
    "shards, beside no loop": ("trainer=fsdp", *TWO, "process.save_async=false"),
}  # fmt: skip


class Ending(Callback):
    """As a user's, which keeps nothing over a resume."""

    def on_eval(self, state: Any, scores: dict[str, float]) -> bool:
        return bool(state.step == 6)


def signalled(loss_modules: Any, state: Any, *rest: Any, train_step: Any = lab.loop.train_step) -> Any:
    if state.step == 3:  # so that the evaluation of step 4 is left to the next process
        os.kill(os.getpid(), signal.SIGTERM)
    return train_step(loss_modules, state, *rest)


@dataclass
class Case:
    overrides: tuple[str, ...]
    folder: Path

    def __post_init__(self) -> None:
        last = {override.partition("=")[0]: override for override in (*self.overrides, "resume=auto")}
        self.overrides = tuple(last.values())
        import_once(*self.overrides)
        self.cfg = compose(*self.overrides, checked=False)

    def command(self, run: Path) -> Callable[[], None]:
        def begin_or_go_on() -> None:
            cfg, chosen = choose_run(PROGRAM, self.cfg.copy(), run, list(self.overrides), Path.cwd())
            start(cfg, chosen, list(self.overrides), own_process=False)

        return begin_or_go_on

    def undisturbed(self) -> list[list[str]]:
        """Returns the writes of each of its processes."""
        done = self.to_the_end(self.folder / "straight")
        self.expected = contents(self.folder / "straight")
        return [one.writes for one in done]

    def to_the_end(self, run: Path) -> list[Attempt]:
        """The command, repeated while it says that it was stopped."""
        done = [attempt(self.command(run), run)]
        while done[-1].status == PREEMPTED and len(done) < 3:
            done.append(attempt(self.command(run), run))
        assert done[-1].status == 0, done
        return done

    def equals_killed_at(self, *writes: int, after: int = 0) -> None:
        """after: so many processes end as they would."""
        run = self.folder / "_".join(map(str, (after, *writes)))
        shown = [attempt(self.command(run), run).shown for _ in range(after)]
        for write in writes:
            killed = attempt(self.command(run), run, write)
            shown.append(f"{' '.join(killed.writes[-1:])}, then killed at {write}:\n{killed.shown}")
            assert killed.status in (-signal.SIGKILL, 0, PREEMPTED), shown  # one that goes on makes fewer writes
        try:
            shown += [done.shown for done in self.to_the_end(run)]
            assert_equal(contents(run), self.expected)
        except AssertionError as error:
            raise AssertionError("\n".join([str(error), *shown])) from None


def contents(run: Path) -> dict[str, Any]:
    """All that it holds, but for times, the place, and the log of what it said."""
    files = {str(path.relative_to(run)) for path in run.rglob("*")}
    texts = ("config.yaml", "overrides.yaml", "classes.json")
    found = {
        "files": sorted(files),
        "checkpoints": {path.name: load_checkpoint(path) for path in (run / "checkpoints").iterdir()},
        "metrics": metrics(run),
        "status": without(status(run), "time", "seconds", "wandb_id", "began"),
        "texts": {name: (run / name).read_text() for name in texts if name in files},
    }
    if (run / "result.json").exists():
        best = Path(result(run).get("best_checkpoint", "")).name
        found["result"] = without(result(run), "seconds", "best_checkpoint", "balance") | {"best": best}
    return found


def without(values: dict[str, Any], *keys: str) -> dict[str, Any]:
    return {key: value for key, value in values.items() if key not in keys}


@pytest.fixture
def case(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Case:
    if request.param == "ended by a callback":
        monkeypatch.setattr("lab.run.make_callbacks", lambda config: [Ending()])
    if request.param == "put off by a signal":
        monkeypatch.setattr(lab.loop, "train_step", signalled)
    known = directory.surroundings(PROGRAM.root)
    monkeypatch.setattr(directory, "surroundings", lambda root: known)  # asked of git once, not by each process
    return Case((*RUN, *CASES[request.param]), tmp_path)


WINDOWS = (
    "make checkpoints/.last_000000012.pt.tmp",  # the best of the last step is there, the last is not
    "remove checkpoints/last_000000006.pt",
)


@pytest.mark.parametrize("case", ["one rank"], indirect=True)
def test_killed_at_a_write_of_its_end_it_ends_as_undisturbed(case: Case) -> None:
    (writes,) = case.undisturbed()
    for window in WINDOWS:
        case.equals_killed_at(writes.index(window))


KILLS = {"one rank": 4, "no save but the last": 2}  # of each of its processes; of other cases 1


@pytest.mark.slow
@pytest.mark.timeout(1500)
@pytest.mark.parametrize(
    ("case", "kills"), [(name, sample_of(KILLS.get(name, 1), None)) for name in CASES], indirect=["case"]
)
def test_killed_at_any_write_it_ends_as_undisturbed(case: Case, kills: int | None) -> None:
    """kills: at so many writes, drawn at random; None, with TESTS_ALL=1: at each."""
    dice = random.Random(len(case.overrides))
    for after, writes in enumerate(case.undisturbed()):
        numbers = range(len(writes))
        for number, write in enumerate(dice.sample(numbers, kills) if kills else numbers):
            again = [dice.randrange(len(writes) // 2)] if number % 3 == 2 else []  # and so is the run that goes on
            case.equals_killed_at(write, *again, after=after)


def test_a_zombie_holds_no_lock() -> None:
    """The process 1 of some containers reaps no orphan, so that it stays in its group."""
    if (child := os.fork()) == 0:
        os.setsid()
        os._exit(0)
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)  # it has ended and is not reaped
    began = time.monotonic()
    _wait_for_group(child)
    os.waitpid(child, 0)
    assert time.monotonic() - began < 10
