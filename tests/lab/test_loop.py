"""The loop piece by piece: what happens when, in which order, and what each piece computes."""

from __future__ import annotations

import contextlib
import copy
import math
import random
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lab.evaluation as evaluation
import lab.logging as logging
import lab.loop as loop
import lab.optimizer_step as optimizer_step
import lab.pending as pending
from lab.average import evaluation_mode
from lab.callbacks.base import Callback
from lab.objective import LossModule
from lab.optim import Schedule
from lab.options import MonitorConfig, TrainerConfig
from lab.schedules.constant import Constant
from lab.state import RunContext, TrainState
from lab.tasks.base import Task
from lab.tasks.supervised import Supervised
from samebits.checkpoints import Optimizers
from samebits.device import HardwareConfig, resolve_hardware
from samebits.errors import ConfigError, RunFailed
from samebits.testing.processes import on_ranks
from samebits.world import Stopped, World

CPU = torch.device("cpu")
ONE = World(0, 1, 0, CPU)
INF, NAN = math.inf, math.nan


class Surroundings(Callback):
    """All that a run has around it, in one: it notes what is asked of it, in order."""

    def __init__(self) -> None:
        self.events: list[Any] = []
        self.directory = Path("run/checkpoints")
        self.requested_at: int | None = None  # the call of `agree` that says yes
        self.calls = 0
        self.cause = ""
        self.lines = 0
        self.warning: str | None = None
        self.asks = False

    def __getattr__(self, name: str) -> Callable[..., None]:
        """progress, warn, begin, end, beat, receive_broadcast, on_step, ...: noted with what they are called with."""

        def note(*args: Any, **named: Any) -> None:
            told = [a.step if isinstance(a, TrainState) else a for a in args if not isinstance(a, (nn.Module, World))]
            self.events.append((name, *told, *(key for key, value in named.items() if value)))

        return note

    def before_step(self, state: Any) -> None:
        self.events.append(("before_step", state.step))

    def on_step(self, state: Any) -> None:
        self.events.append(("on_step", state.step))

    def on_log(self, state: Any, values: dict[str, float]) -> None:
        self.events.append(("on_log", state.step, dict(values)))
        values["own/x"] = state.step

    def on_eval(self, state: Any, scores: dict[str, float]) -> bool:
        self.events.append(("on_eval", state.step, scores))
        return self.asks

    def read(self, samples: int) -> dict[str, float]:
        """The clock's."""
        self.events.append(("read", samples))
        return {"perf/x": samples}

    def agree(self, world: World) -> bool:
        self.calls += 1
        now = self.calls == self.requested_at
        self.cause = "SIGTERM" if now else self.cause
        return now

    def unsaved(self) -> str | None:
        return self.warning

    def save_last(self, payload: dict[str, Any]) -> None:
        self.events.append(("last", payload["step"]))

    def save_best(self, payload: dict[str, Any]) -> None:
        self.events.append(("best", payload["step"], copy.deepcopy(payload["best"])))

    def prepare_and_check(self, payload: Any) -> None:
        self.events.append("checked")

    def wait(self, best: Any) -> None:
        self.events.append(("waited", best))

    @contextmanager
    def user_code(self, what: str, step: int) -> Iterator[None]:
        self.events.append(("user code", what, step))
        yield

    @contextmanager
    def paused(self) -> Iterator[None]:
        self.events.append("paused")
        yield
        self.events.append("on")

    def named(self, *names: str) -> list[Any]:
        return [event for event in self.events if event in names or event[0] in names]


def trainer(**changed: Any) -> TrainerConfig:
    given: dict[str, Any] = {"global_batch_size": 5, "clip_norm": None}
    return TrainerConfig(**{**given, **changed})


MACHINE = resolve_hardware(HardwareConfig(device="cpu", num_threads=1, micro_batch_size=3), trainer())


def run_of(around: Any, **changed: Any) -> RunContext:
    """changed: fields of the run or of its trainer; log, eval, save: intervals in steps."""
    parts = ("logger", "checkpoints", "stop", "watchdog", "buffer_checks")
    of_trainer = {name: changed.pop(name) for name in [*changed] if name in TrainerConfig.__dataclass_fields__}
    every = {f"{name}_every": changed.pop(name, steps) for name, steps in {"log": 2, "eval": 3, "save": 4}.items()}
    given: dict[str, Any] = {
        "world": ONE, "callbacks": [around],
        "trainer": trainer(**{"global_batch_size": 4, "keep_best": 2, **of_trainer}),
        "monitor": MonitorConfig(), "hardware": MACHINE, **every,
        "samples_per_epoch": 10, "total_steps": 7,
        **dict.fromkeys(parts, around),
    }  # fmt: skip
    return RunContext(**{**given, **changed})


def state_of(model: nn.Module | None = None, **changed: Any) -> TrainState:
    torch.manual_seed(0)
    model = model or nn.Linear(3, 1)
    optimizer = Optimizers({"": torch.optim.SGD(model.parameters(), lr=0.5, fused=True)})
    schedule = Schedule(optimizer, Constant(0.0), 10)
    parts = {"model": model, "task": task_of(squared), "ema": None, "optimizer": optimizer, "schedule": schedule}
    return TrainState(**{**parts, "scaler": None, **changed})


def squared(output: Tensor, batch: dict[str, Tensor]) -> Tensor:
    return (output[:, 0] - batch["y"]).square()


def task_of(criterion: Any) -> Task:
    return Supervised(criterion, {})


class Data:
    """A loader whose micro-batches hold their number."""

    wait_s, why = 0.0, ""

    def __init__(self, sizes: list[int]) -> None:
        self.sizes, self.plan = sizes, SimpleNamespace(common=len(sizes))

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        for k, size in enumerate(self.sizes):
            yield {"x": torch.arange(size * 3.0).view(size, 3) / 7 - k, "y": torch.full((size,), float(k))}

    def size_and_real(self, k: int) -> tuple[int, int]:
        return self.sizes[k], self.sizes[k]


# ---- when


@pytest.mark.parametrize(
    ("step", "changed", "wanted"),
    [
        (1, {}, []), (2, {}, ["log"]), (3, {}, ["score"]), (4, {}, ["log", "save"]), (6, {}, ["log", "score"]),
        (7, {}, ["log", "score", "save"]), (7, {"log": None, "save": None}, ["log", "score", "save"]),
        (7, {"eval": None}, ["log", "save"]), (5, {"stop_at_step": 5}, ["save"]),
        (6, {"stop_at_step": 5}, ["log", "score"]), (12, {"total_steps": 99}, ["log", "score", "save"]),
    ],
)  # fmt: skip
def test_what_is_due_after_a_step(step: int, changed: dict[str, Any], wanted: list[str]) -> None:
    """Each at its steps and at the last; without a split nothing is scored."""
    run = run_of(Surroundings(), **changed)
    assert pending.actions_after_step(state_of(step=step), True, run) == wanted
    assert pending.actions_after_step(state_of(step=step), False, run) == [what for what in wanted if what != "score"]


LEFT = {"pending": ["save"], "total_steps": 7}
BOTH = {"step": 3, "pending": ["score", "save"], "total_steps": 7}
IMPATIENT = {"step": 3, "evals_without_improvement": 2, "stop_reason": "patience", **LEFT}


@pytest.mark.parametrize(
    ("state", "changed", "actions", "stop_reason"),
    [
        ({}, {}, [], ""),
        (BOTH, {}, ["score", "save"], ""),
        # the resume says otherwise
        (BOTH, {"eval": None}, ["save"], ""),
        ({"step": 7, **LEFT}, {"total_steps": 9}, ["save"], ""),
        ({"step": 5, "logged_step": 4, "scored_step": 3, "total_steps": 7}, {"total_steps": 5},
         ["log", "score", "save"], ""),
        ({"step": 6, "logged_step": 6, "scored_step": 6, "total_steps": 7}, {"total_steps": 6}, ["save"], ""),
        # of an older version
        ({"step": 3}, {}, ["score"], ""),
        ({"step": 7, "logged_step": 7}, {}, ["score", "save"], ""),
        ({"step": 3, "scored_step": 3, "evals_without_improvement": 2}, {"early_stop_patience": 2}, [], "patience"),
        # why there are no more steps
        (IMPATIENT, {"early_stop_patience": 2}, ["save"], "patience"),
        (IMPATIENT, {"early_stop_patience": 3}, ["save"], ""),
        (IMPATIENT, {"early_stop_patience": 2, "total_steps": 9}, ["save"], "patience"),
        (IMPATIENT | {"stop_reason": "callback"}, {"early_stop_patience": 3}, ["save"], "callback"),
        ({"step": 3, "stop_reason": "callback", **LEFT}, {"total_steps": 6}, ["save"], "callback"),
        ({"step": 3, "stop_reason": "callback", **LEFT}, {"total_steps": 8}, ["save"], ""),
    ],
)  # fmt: skip
def test_what_a_run_takes_up(
    state: dict[str, Any], changed: dict[str, Any], actions: list[str], stop_reason: str
) -> None:
    """The actions that its checkpoint has pending, and an end that stands unless the resume has moved that very end."""
    found, run = state_of(**copy.deepcopy(state)), run_of(Surroundings(), **changed)
    pending.restore_pending(found, True, run)
    assert (found.pending, found.stop_reason, found.total_steps) == (actions, stop_reason, run.total_steps)


@pytest.fixture
def noted(monkeypatch: pytest.MonkeyPatch) -> Surroundings:
    """fit with a step, an evaluation and a clock that only note: the loss of step n is n, its score 10 - n."""
    around = Surroundings()

    def train_step(loss_modules: Any, state: TrainState, batches: Any, *rest: Any) -> dict[str, Any]:
        assert all(net.training for net in loss_modules.values())
        assert len(around.events) < 500, "it does not end"
        around.events.append(("step", state.step + 1))
        return {"loss": torch.tensor(state.step + 1.0), "grad_norm": torch.tensor(2.0), "non_finite": torch.zeros(())}

    def evaluate(model: nn.Module, *rest: Any, **more: Any) -> dict[str, float]:
        around.events.append("evaluate")
        return {"loss": 10.0 - around.named("step")[-1][1] if around.named("step") else 9.5}

    monkeypatch.setattr(loop, "train_step", train_step)
    monkeypatch.setattr(evaluation, "evaluate", evaluate)
    monkeypatch.setattr(loop, "SpeedMeter", lambda *given: around)
    return around


def fit(around: Surroundings, state: TrainState, val: Any = "data", **changed: Any) -> None:
    net = nn.Linear(1, 1)
    run = run_of(around, **changed)
    loop.fit({"": net}, state, Data([1]), validating(run) if val else None, run)  # type: ignore[arg-type]


def validating(run: RunContext) -> Callable[[TrainState], bool]:
    return partial(evaluation.validate, val_loaders={"val": Data([1])}, run=run)  # type: ignore[dict-item]


def test_what_a_run_does_when(noted: Surroundings) -> None:
    """7 steps, logged every 2, scored every 3, saved every 4, an epoch every 2.5: all that happens, in its order."""
    state = state_of()
    fit(noted, state)

    def saved(kind: str, step: int, *best: Any) -> list[Any]:
        return [
            ("beat", "saving", step, "slow"), ("check_finite", step), (kind, step, *best), ("beat", "training", step),
        ]  # fmt: skip

    def stepped(step: int) -> list[Any]:
        return [
            ("before_step", step - 1), ("step", step), ("beat", "training", step), "checked", ("progress", step),
            ("user code", "a callback's on_step", step), ("on_step", step),
        ]  # fmt: skip

    def logged(step: int, loss: float) -> list[Any]:
        values = {"train/loss": loss, "train/grad_norm": 2.0, "train/lr": 0.5, "train/epoch": step * 4 / 10}
        return [
            ("user code", "Surroundings.on_log", step), ("on_log", step, values), ("read", step * 4),
            ("log", step, {**values, "own/x": step, "perf/x": step * 4}),
        ]  # fmt: skip

    def scored(step: int, best: list[list[float]]) -> list[Any]:
        scores = {"val/loss": 10.0 - step}
        return [
            "paused", "evaluate", ("log", step, scores), ("user code", "Surroundings.on_eval", step),
            ("on_eval", step, scores), *saved("best", step, best), "on",
        ]  # fmt: skip

    def kept(step: int) -> list[Any]:
        return ["paused", *saved("last", step), "on"]

    assert noted.events == [
        ("beat", "training", 0, "slow"),
        *stepped(1),
        *stepped(2), *logged(2, 1.5),
        *stepped(3), ("end_epoch", 3), *scored(3, [[7.0, 3]]),
        *stepped(4), *logged(4, 3.5), *kept(4),
        *stepped(5), ("end_epoch", 5),
        *stepped(6), *logged(6, 5.5), *scored(6, [[4.0, 6], [7.0, 3]]),
        *stepped(7), *logged(7, 7.0), *scored(7, [[3.0, 7], [4.0, 6]])[:-1], *kept(7)[1:],
        ("beat", "saving", 7, "slow"), ("waited", [[3.0, 7], [4.0, 6]]),
    ]  # fmt: skip
    assert noted.calls == 7, "the ranks agree after each step"
    assert (state.step, state.samples, state.logged_step, state.scored_step) == (7, 28, 7, 7)
    assert (state.best_score, state.evals_without_improvement, state.running_sums) == (3.0, 0, {})
    assert noted.named("receive_broadcast") == []


def test_without_a_split_to_score_nothing_is_scored(noted: Surroundings) -> None:
    fit(noted, state_of(step=3), val=None, callbacks=[])
    assert "evaluate" not in noted.events
    assert noted.named("step") == [("step", step) for step in (4, 5, 6, 7)]
    assert noted.named("last") == [("last", 4), ("last", 7)]
    assert noted.named("user code", "on_step") == []


def test_a_stop_ends_with_a_checkpoint_and_the_resume_scores_what_was_due(noted: Surroundings) -> None:
    noted.requested_at = 3
    state = state_of()
    fit(noted, state)
    assert noted.events[-8:] == [
        "paused", ("beat", "saving", 3, "slow"), ("check_finite", 3), ("last", 3), ("beat", "training", 3), "on",
        ("beat", "saving", 3, "slow"), ("waited", []),
    ]  # fmt: skip
    assert "evaluate" not in noted.events, "who asks for a stop does not wait for an evaluation"
    noted.events.clear()
    assert state.pending == ["score", "save"]
    noted.calls, noted.requested_at, noted.cause = 0, 1, ""
    fit(noted, state)
    first = noted.named("evaluate", "best", "last", "step", "paused", "on")
    assert first == [
        "paused", "evaluate", ("best", 3, [[9.5, 3]]), ("last", 3), "on",
        ("step", 4), "paused", ("last", 4), "on",
    ]  # fmt: skip
    assert state.scored_step == 3


def test_nothing_is_left_to_do(noted: Surroundings) -> None:
    """A finished run, and one that has lost its patience, take no step; patience is counted in evaluations."""
    fit(noted, state_of(step=7, total_steps=7))
    fit(noted, state_of(step=4, total_steps=7, evals_without_improvement=2), early_stop_patience=2)
    fit(noted, state_of(step=3, total_steps=7, stop_reason="callback"))
    assert noted.named("step", "evaluate", "last") == []
    fit(noted, state_of(step=4, total_steps=7, evals_without_improvement=1, best_score=0.0), early_stop_patience=2)
    assert noted.named("step", "evaluate", "last") == [("step", 5), ("step", 6), "evaluate", ("last", 6)]
    noted.events.clear()
    owing = state_of(step=3, total_steps=7, pending=["score", "save"], evals_without_improvement=1, best_score=0.0)
    fit(noted, owing, early_stop_patience=2)  # the evaluation that was put off is the last
    assert noted.named("step", "evaluate", "last") == ["evaluate", ("last", 3)]


# ---- logs


def totals(**values: float) -> dict[str, Tensor]:
    return {name: torch.tensor(value) for name, value in values.items()}


def test_a_log_has_the_means_over_the_steps_that_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two ranks, six steps since the last log, two of them skipped; the other rank's sums are four times these. Each
    rank sends them sorted by name, in whatever order its task returns them."""
    around = Surroundings()
    sent = []
    monkeypatch.setattr(World, "all_reduce_sum", lambda self, values: sent.append(values.tolist()) or values * 5)
    run = run_of(around, non_finite="skip", world=World(0, 2, 0, CPU))
    sums = totals(loss=8.0, grad_norm=16.0, non_finite=2.0)
    state = state_of(step=10, samples=40, logged_step=4, running_sums=sums, counts=dict.fromkeys(sums, 6))
    logging.log_train(state, run, around)  # type: ignore[arg-type]
    assert around.named("log") == [
        ("log", 10, {
            "train/loss": 5.0, "train/grad_norm": 10.0, "train/lr": 0.5, "train/epoch": 4.0, "train/skipped_steps": 2.0,
            "own/x": 10, "perf/x": 40,
        }),
    ]  # fmt: skip
    assert sent == [[16.0, 8.0]]
    assert around.named("read") == [("read", 40)]
    assert (state.running_sums, state.logged_step) == ({}, 10)


def test_a_log_without_a_step_that_counts_has_no_means() -> None:
    around = Surroundings()
    sums = totals(loss=0.0, non_finite=2.0)
    state = state_of(step=4, samples=16, logged_step=2, running_sums=sums, counts=dict.fromkeys(sums, 2))
    logging.log_train(state, run_of(around, non_finite="skip"), around)  # type: ignore[arg-type]
    assert around.named("log") == [
        ("log", 4, {"train/lr": 0.5, "train/epoch": 1.6, "train/skipped_steps": 2.0, "own/x": 4, "perf/x": 16}),
    ]  # fmt: skip


MEANS = r"within the steps 5 to 9 \(means on rank 0: loss 0\.2\)"
STOPS = rf"^gradients were not finite {MEANS}; debug=nan names .*trainer\.clip_norm"
SCALE = r"^fp16: the loss scale has fallen below 0\.001 by step 9,"
LARGE = rf"^the norm of the gradients overflowed float32 {MEANS}; .* largest weight is 0\.475: .* lower optim\.lr"
GOOD, BAD = {"loss": 1.0, "grad_norm": 3.0}, {"loss": 1.0, "grad_norm": NAN}


@pytest.mark.parametrize(
    ("held", "skip", "scale", "expected"),
    [
        ({}, False, None, {}),  # right after a log nothing is known of steps
        (GOOD, False, None, {}),
        (GOOD | {"non_finite": 2.0}, True, None, {"": 2}),
        (GOOD | {"non_finite": 2.0}, False, 4.0, {"": 2}),
        (GOOD | {"non_finite": 2.0}, False, None, {"": 2}),  # left out before a resume that has ended the skipping
        (GOOD | {"non_finite": 0.0}, False, logging.SMALLEST_SCALE, {"": 0}),
        (BAD, False, None, STOPS),
        (BAD | {"non_finite": 2.0}, False, None, STOPS),
        (GOOD | {"grad_norm": INF}, False, None, LARGE),
        (GOOD | {"non_finite": 0.0}, False, 0.0009, SCALE),
        (GOOD | {"non_finite": 2.0}, True, 0.0009, SCALE),
    ],
)
def test_steps_that_are_not_finite(held: dict[str, float], skip: bool, scale: float | None, expected: Any) -> None:
    scaler = None if scale is None else SimpleNamespace(get_scale=lambda: scale)
    state = state_of(step=9, logged_step=4, scaler=scaler, running_sums=totals(**held), counts=dict.fromkeys(held, 5))
    run = run_of(Surroundings(), non_finite="skip" if skip else "stop")
    with pytest.raises(RunFailed, match=expected) if isinstance(expected, str) else contextlib.nullcontext():
        assert logging.check_finite(state, run) == expected


# ---- scores


def score(state: TrainState, run: RunContext) -> None:
    loop.validate_and_save_best(state, validating(run), run)


def scoring(monkeypatch: pytest.MonkeyPatch, values: list[float], **changed: Any) -> tuple[Any, TrainState, list[Any]]:
    """Score these one after the other, every 3 steps -> (what was noted, the state, why it has ended, each time)."""
    around, state, told = Surroundings(), state_of(), []
    around.latest = lambda prefix: {}  # type: ignore[attr-defined]
    given = iter(values)
    monkeypatch.setattr(evaluation, "evaluate", lambda *rest, **more: {"loss": next(given), "other": 0.0})
    for _ in values:
        state.step += 3
        state.pending, state.stop_reason = ["score"], ""
        score(state, run_of(around, **{"total_steps": 99, **changed}))
        told.append(state.stop_reason)
        assert state.pending == ["save"] * bool(state.stop_reason)
    return around, state, told


MORE = {"monitor": MonitorConfig(mode="max")}


@pytest.mark.parametrize(
    ("values", "changed", "best", "best_score", "evals_without_improvement", "stop_reason"),
    [
        # less is better; of equal ones the older stays before, and is the best
        ([5.0, 7.0, 5.0, 4.0, 4.0, NAN, 4.5], {},
         {3: [[5.0, 3]], 6: [[5.0, 3], [7.0, 6]], 9: [[5.0, 3], [5.0, 9]], 12: [[4.0, 12], [5.0, 3]],
          15: [[4.0, 12], [4.0, 15]]}, 4.0, 3, []),
        ([0.25, 0.5, 0.5, 0.375, -1.0], MORE,
         {3: [[0.25, 3]], 6: [[0.5, 6], [0.25, 3]], 9: [[0.5, 6], [0.5, 9]]}, 0.5, 3, []),
        ([NAN, -INF, 3.0], {"early_stop_patience": 3}, {9: [[3.0, 9]]}, 3.0, 0, []),
        ([3.0, 2.0], {"keep_best": 0}, {}, 2.0, 0, []),
        ([1.0, 2.0, 1.0, 0.5, 0.5, 0.5], {"early_stop_patience": 2, "keep_best": 1}, {3: [[1.0, 3]], 12: [[0.5, 12]]},
         0.5, 2, [9, 18]),
    ],
)  # fmt: skip
def test_scores_are_ranked(
    monkeypatch: pytest.MonkeyPatch, values: list[float], changed: Any, best: Any, best_score: float,
    evals_without_improvement: int, stop_reason: list[int],
) -> None:  # fmt: skip
    """best: what is kept after which step; stop_reason: after which steps patience is at an end."""
    around, state, told = scoring(monkeypatch, values, **changed)
    assert {event[1]: event[2] for event in around.named("best")} == best
    assert (state.best_score, state.evals_without_improvement, state.scored_step) == (
        best_score,
        evals_without_improvement,
        3 * len(values),
    )
    assert told == ["patience" * (step in stop_reason) for step in range(3, 3 * len(values) + 1, 3)]
    scores = {"val/loss": values[1], "val/other": 0.0}
    assert (around.named("log")[1], around.named("on_eval")[1]) == (("log", 6, scores), ("on_eval", 6, scores))


def test_a_callback_may_end_the_training(monkeypatch: pytest.MonkeyPatch) -> None:
    class Asking(Callback):
        def on_eval(self, state: Any, scores: dict[str, float]) -> bool | None:
            return True if scores["val/loss"] == 3.0 else None

    class Other(Callback):
        def on_eval(self, state: Any, scores: dict[str, float]) -> bool | None:
            return False

    for callbacks in ([Asking(), Other()], [Other(), Asking()]):
        assert scoring(monkeypatch, [1.0, 3.0, 4.0], callbacks=callbacks)[2] == ["", "callback", ""]


def test_what_a_callback_asks_on_one_rank_ends_all(tmp_path: Path) -> None:
    def work(world: World, folder: Path) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(evaluation, "evaluate", lambda *rest, **more: {"loss": 1.0})
            for asking in (1, None, 0):
                around, state = Surroundings(), state_of(step=3, parameter_names=["weight", "bias"])
                around.asks = world.rank == asking
                score(state, run_of(around, world=world))
                assert state.stop_reason == ("" if asking is None else "callback")

    on_ranks(work, tmp_path / "ranks")


def test_an_evaluation_that_was_left_has_not_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    def evaluate(*rest: Any, **more: Any) -> dict[str, float]:
        random.random(), torch.rand(3)
        raise Stopped

    monkeypatch.setattr(evaluation, "evaluate", evaluate)
    around, state = Surroundings(), state_of(step=3)
    torch.manual_seed(5)
    expected = torch.rand(2)
    torch.manual_seed(5)
    state.pending = ["score"]
    score(state, run_of(around))
    assert torch.equal(torch.rand(2), expected)
    assert (state.scored_step, state.best, state.evals_without_improvement, state.pending) == (0, [], 0, ["score"])
    assert around.named("log", "on_eval", "best") == []


# ---- saving


def test_a_save_is_what_all_ranks_agree_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 0's buffers first, which the average takes over; then checked, and written."""
    model = nn.BatchNorm1d(1)
    state = state_of(model, ema=copy.deepcopy(model), step=6)
    around = Surroundings()
    around.warning = "something is not saved"
    monkeypatch.setattr(
        World, "broadcast_buffers", lambda self, m: (around.events.append("buffers"), m.model.running_mean.fill_(3.0))
    )
    loop.save(state, run_of(around), best=False)
    assert around.events == [
        ("beat", "saving", 6, "slow"), "buffers", ("check_finite", 6), ("warn", "something is not saved"), ("last", 6),
        ("beat", "training", 6),
    ]  # fmt: skip
    assert state.ema.running_mean.tolist() == [3.0]  # type: ignore[union-attr]
    around.events.clear()
    around.warning = None
    loop.save(state, run_of(around), best=True)
    assert around.named("warn", "best", "last") == [("best", 6, [])]


def test_what_is_not_finite_is_neither_scored_nor_saved() -> None:
    around = Surroundings()
    sums = totals(loss=NAN, grad_norm=NAN)
    state, run = state_of(step=3, running_sums=sums, counts=dict.fromkeys(sums, 3)), run_of(around)
    for work in (
        lambda: loop.save(state, run, best=False),
        lambda: loop.validate_and_save_best(state, lambda state: False, run),
    ):
        with pytest.raises(RunFailed, match="not finite within the steps"):
            work()
    assert around.named("last", "best") == []


# ---- a step


class Synced(nn.Module):
    """Notes the passes in which its gradients stay on the rank, as DDP's no_sync has it."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.net, self.alone, self.passes = LossModule(model, task_of(squared)), False, []  # type: ignore[var-annotated]

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        self.alone = True
        yield
        self.alone = False

    def forward(self, batch: dict[str, Tensor]) -> Any:
        self.passes.append((len(batch["x"]), self.alone))
        return self.net(batch)


def stepped(state: TrainState, net: Any = None, **changed: Any) -> dict[str, Tensor]:
    """One step of micro-batches of 3 and 2 samples."""
    loss_modules = {"": net or LossModule(state.model, state.task)}
    return loop.train_step(loss_modules, state, iter(Data([3, 2])), trainer(**changed), MACHINE, ONE)  # type: ignore[arg-type]


@pytest.mark.parametrize("weights", [[0.0, 0.0], [0.0, 1.0]])
def test_samples_that_do_not_count_move_nothing(weights: list[float]) -> None:
    """Of a step of which all tokens are ignored; of a micro-batch of it the mean is over the others."""
    state = state_of()
    given = iter(weights)
    state.task.sample_weights = lambda batch: torch.full((len(batch["x"]),), next(given))  # type: ignore[method-assign]
    counted = [part for part, weight in zip(Data([3, 2]), weights) if weight]
    wanted = [squared(state.model(part["x"]), part).mean().item() for part in counted] or [0.0]
    before = [p.detach().clone() for p in state.model.parameters()]
    values = stepped(state, clip_norm=None)
    assert values["loss"].item() == pytest.approx(wanted[0])
    assert bool(values["grad_norm"] > 0) is bool(counted)
    for p, was in zip(state.model.parameters(), before):
        assert p.isfinite().all()
        assert torch.equal(p, was) is not bool(counted)


def test_what_a_task_samples_takes_nothing_from_training() -> None:
    """The same pictures at each evaluation, and random numbers that go on as if none had been drawn."""
    state, run = state_of(), run_of(Surroundings())
    state.task.sample = lambda model, count: {"drawn": torch.rand(count)}  # type: ignore[method-assign]
    torch.manual_seed(3)
    wanted = torch.rand(4)
    torch.manual_seed(3)
    first, second = (evaluation.generate_samples(state, run, 2)["drawn"] for _ in range(2))
    assert torch.equal(torch.rand(4), wanted)
    assert torch.equal(first, second)


def whole_batch(state: TrainState) -> tuple[float, list[Tensor], Tensor]:
    """(loss, gradients, their norm) of the mean over the five samples, without micro-batches."""
    model = copy.deepcopy(state.model)
    parts = list(Data([3, 2]))
    loss = torch.cat([squared(model(part["x"]), part) for part in parts]).mean()
    loss.backward()
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    return loss.item(), gradients, torch.cat([g.flatten() for g in gradients]).norm()


@pytest.mark.parametrize("fp16", [False, True])
@pytest.mark.parametrize("limit", [None, 0.25])
def test_a_step_is_that_of_the_mean_over_all_samples(fp16: bool, limit: float | None) -> None:
    """Uneven micro-batches weigh right; the ranks meet once; fp16's scale is out before the limit and the update."""
    state = state_of(scaler=torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=1) if fp16 else None)
    loss, gradients, norm = whole_batch(state)
    before = [p.detach().clone() for p in state.model.parameters()]
    net = Synced(state.model)
    values = stepped(state, net, clip_norm=limit)
    assert net.passes == [(3, True), (2, False)]
    assert values.keys() == {"loss", "grad_norm"} | ({"non_finite"} if fp16 else set())
    assert values["loss"].item() == pytest.approx(loss, rel=1e-6)
    assert values["grad_norm"].item() == pytest.approx(norm.item(), rel=1e-6)
    assert not fp16 or values["non_finite"].item() == 0.0
    assert not values["loss"].requires_grad
    factor = 1.0 if limit is None else limit / norm.item()
    for old, new, gradient in zip(before, state.model.parameters(), gradients):
        torch.testing.assert_close(new.detach(), old - 0.5 * factor * gradient)
    assert all(p.grad is None for p in state.model.parameters())
    assert state.schedule.last_lr == 0.5
    if state.scaler:
        assert state.scaler.get_scale() == 2048.0


class Weighted(Supervised):
    def sample_weights(self, batch: dict[str, Tensor]) -> Tensor:
        return batch["x"][:, 0] + batch["y"] + 1


def test_a_step_of_weighted_samples_is_that_of_their_weighted_mean() -> None:
    """Over both micro-batches together, whose weights have different sums."""
    state = state_of(task=Weighted(squared, {}))
    model, parts = copy.deepcopy(state.model), list(Data([3, 2]))
    weights = torch.cat([state.task.sample_weights(part) for part in parts])  # type: ignore[misc]
    loss = (torch.cat([squared(model(part["x"]), part) for part in parts]) * weights).sum() / weights.sum()
    loss.backward()
    before = [p.detach().clone() for p in state.model.parameters()]
    assert stepped(state)["loss"].item() == pytest.approx(loss.item(), rel=1e-6)
    for old, new, p in zip(before, state.model.parameters(), model.parameters()):
        torch.testing.assert_close(new.detach(), old - 0.5 * p.grad)  # type: ignore[operator]


def test_an_output_is_gone_when_the_next_is_computed() -> None:
    """Logits of a large vocabulary are gigabytes."""
    outputs: list[weakref.ref[Tensor]] = []

    class Noting(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            assert all(one() is None for one in outputs)
            outputs.append(weakref.ref(output := super().forward(x)))
            return output

    stepped(state_of(Noting(3, 1)))
    assert len(outputs) == 2


def poison(output: Tensor, batch: dict[str, Tensor]) -> Tensor:
    return squared(output, batch) * (INF if batch["y"][0] == 1 else 1.0)


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("way", ["stop", "skip", "fp16"])
def test_a_step_that_is_not_finite(way: str, fused: bool) -> None:
    """skip and fp16 leave it out, of the means too; else its norm tells. A fused kernel is called, and told."""
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0) if way == "fp16" else None
    model = nn.Linear(3, 1)
    state = state_of(model, scaler=scaler, ema=copy.deepcopy(model))
    state.optimizer[""] = torch.optim.SGD(model.parameters(), lr=0.5, fused=fused)
    updates: list[Any] = []
    given: dict[str, Any] = {"non_finite": "skip" if way == "skip" else "stop", "ema_decay": 0.5}
    state.optimizer[""].step = lambda: updates.append(1)  # type: ignore[method-assign, assignment, misc]
    with torch.no_grad():
        state.ema.weight.add_(1.0)  # type: ignore[union-attr, operator]
    before = [p.clone() for p in state.ema.parameters()]  # type: ignore[union-attr]
    state.task = task_of(poison)
    values = stepped(state, **given)
    asks = way != "stop"
    assert values["non_finite"].item() == 1.0 if asks else "non_finite" not in values
    assert len(updates) == (0 if asks and not fused else 1)
    told = getattr(state.optimizer[""], "found_inf", None)
    assert (told is not None and told.item() == 1.0) if asks and fused else told is None
    assert all(map(torch.equal, state.ema.parameters(), before)) == asks  # type: ignore[union-attr]
    if way == "stop":
        assert not any(math.isfinite(values[name].item()) for name in ("loss", "grad_norm"))
    else:
        assert (values["loss"].item(), values["grad_norm"].item()) == (0.0, 0.0)
    if scaler is not None:
        assert scaler.get_scale() == 512.0
    state.task = task_of(squared)
    stepped(state, **given)
    assert len(updates) == (1 if asks and not fused else 2)
    if asks and fused:
        assert state.optimizer[""].found_inf.item() == 0.0


def test_the_average_moves_by_its_share() -> None:
    model = nn.Linear(3, 1, bias=False)
    state = state_of(model, ema=copy.deepcopy(model), task=task_of(lambda output, batch: 0 * output[:, 0]))
    model.weight.data.fill_(8.0)
    state.ema.weight.data.fill_(4.0)  # type: ignore[union-attr, operator]
    stepped(state, ema_decay=0.75)
    assert state.ema.weight.tolist() == [[5.0] * 3]  # type: ignore[union-attr, operator]


def test_parameters_without_a_gradient_are_named(caplog: pytest.LogCaptureFixture) -> None:
    model = nn.Linear(3, 1)
    model.idle = nn.Parameter(torch.ones(1))  # type: ignore[assignment]
    stepped(state_of())
    assert caplog.text == ""
    stepped(state_of(model))
    assert "the loss does not depend on idle: these parameters are not trained" in caplog.text


class Used(Supervised):
    def train_step(self, step: int, batches: Any, optimizer_step: Any) -> dict[str, Tensor]:
        return optimizer_step("", batches) | optimizer_step("", batches)


class Skips(Supervised):
    def train_step(self, step: int, batches: Any, optimizer_step: Any) -> dict[str, Tensor]:
        first = next(batches)
        return optimizer_step("", [first, {name: value[:2] for name, value in first.items()}])


class Bare(Supervised):
    def losses(self, model: nn.Module, batch: Any) -> Any:
        return {"loss": super().losses(model, batch)[0]}


class Silent(Supervised):
    def train_step(self, step: int, batches: Any, optimizer_step: Any) -> dict[str, Tensor]:
        optimizer_step("", batches)
        return None  # type: ignore[return-value]


class Idle(Supervised):
    def train_step(self, step: int, batches: Any, optimizer_step: Any) -> dict[str, Tensor]:
        return {}


class Other(Supervised):
    def train_step(self, step: int, batches: Any, optimizer_step: Any) -> dict[str, Tensor]:
        return optimizer_step("critic", batches)


@pytest.mark.parametrize(
    ("task", "says"),
    [
        (task_of(lambda output, batch: squared(output, batch).mean()), r"^task\.criterion: "),
        (task_of(lambda output, batch: batch["y"]), r"^task\.criterion: "),
        (
            Used,
            r"Used\.train_step passed fewer than 2 micro-batches to optimizer_step: .*list\(batches\)",
        ),
        (Skips, r"Skips\.train_step must use all micro-batches of the step"),
        (Bare, r"^task: Bare\.losses returned a dict; it must return \(losses, output\)"),
        (Silent, r"Silent\.train_step must call optimizer_step and return its values"),
        (Idle, r"Idle\.train_step must call optimizer_step and return its values"),
        (Other, r"Other\.train_step uses the objective 'critic', but `objectives` returns ''$"),
    ],
)
def test_what_a_task_does_is_checked(task: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        stepped(state_of(task=task(squared, {}) if isinstance(task, type) else task))


def test_clip() -> None:
    for limit, factor in ((None, 1.0), (10.0, 1.0), (5.0, 5 / (5 + 1e-6)), (1.0, 0.2)):
        gradients = [torch.tensor([3.0]), torch.tensor([[4.0, 0.0]])]
        assert optimizer_step.clip(gradients, limit).item() == 5.0
        torch.testing.assert_close(gradients[0], torch.tensor([3.0 * factor]), rtol=1e-6, atol=0.0)
        torch.testing.assert_close(gradients[1], torch.tensor([[4.0 * factor, 0.0]]), rtol=1e-6, atol=0.0)
    tiny = [torch.tensor([3e-6, 4e-6])]
    optimizer_step.clip(tiny, 1e-6)
    torch.testing.assert_close(tiny[0], torch.tensor([5e-7, 4e-6 / 6]), rtol=1e-5, atol=0.0)  # as in torch: 1 / (5 + 1)
    nothing = [torch.zeros(2)]
    assert optimizer_step.clip(nothing, 1e-3).item() == 0.0
    assert nothing[0].tolist() == [0.0, 0.0]  # and not nan


# ---- an evaluation


class Same(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        assert not self.training
        assert not torch.is_grad_enabled()
        return x


EVALUATED = [torch.tensor([1.0, 2.0, 4.0]), torch.tensor([8.0, 512.0]), torch.tensor([64.0])]
LENGTHS = [(3, 3), (2, 1), (1, 0)]  # the last of the second, and the third, only keep the ranks in step


def first(output: Tensor, batch: Any) -> Tensor:
    return output


def double(output: Tensor, batch: Any) -> Tensor:
    return 2 * output


def evaluated(task: Task, batches: list[Tensor] = EVALUATED, lengths: Any = LENGTHS, **more: Any) -> dict[str, float]:
    given = [{"x": batch} for batch in batches]
    return evaluation.evaluate(more.pop("model", Same()), task, given, ONE, MACHINE, lengths.__getitem__, **more)


@pytest.mark.parametrize("training", [True, False])
def test_an_evaluation_counts_what_counts(monkeypatch: pytest.MonkeyPatch, training: bool) -> None:
    """Of this rank and of another one, which has 3 samples more, of 10 each; observers see what counts."""
    told, seen = [], []

    def all_reduce_sum(self: World, sums: Tensor) -> None:
        told.append("summed")
        sums += torch.tensor([30.0, 60.0, 0.0, 3.0])

    monkeypatch.setattr(World, "all_reduce_sum", all_reduce_sum)
    monkeypatch.setattr(World, "broadcast_buffers", lambda self, model: told.append("buffers"))
    model = Same().train(training)
    task = Supervised(first, {"double": double, "none": lambda output, batch: 0 * output})
    scores = evaluated(
        task, model=model, observers=[lambda out, batch: seen.append((out.tolist(), batch["x"].tolist()))]
    )
    assert scores == {"loss": (15 + 30) / 7, "double": (30 + 60) / 7, "none": 0.0}
    assert told == ["buffers", "summed"]
    assert seen == [([1.0, 2.0, 4.0],) * 2, ([8.0],) * 2]
    assert model.training is training


@pytest.mark.parametrize("weighted", [False, True])
def test_an_evaluation_sums_in_float64(monkeypatch: pytest.MonkeyPatch, weighted: bool) -> None:
    """To the bit, batch after batch: scores of an older version, and of a resumed run, are the same."""
    lengths = [(500, 500), (500, 500), (77, 70)]
    batches = [torch.randn(size, generator=torch.Generator().manual_seed(size)) for size, _ in lengths]
    weights = [batch.abs() for batch in batches]
    if weighted:
        monkeypatch.setattr(Supervised, "sample_weights", lambda self, batch: batch["x"].abs())
    sums = torch.zeros(2, dtype=torch.float64)
    for batch, weight, (_, real) in zip(batches, weights, lengths):
        values, kept = batch[:real].double(), weight[:real]
        sums += torch.stack(
            [(values * kept).sum(), kept.sum().double()] if weighted else [values.sum(), torch.tensor(float(real))]
        )
    total, count = sums.tolist()
    assert evaluated(Supervised(first, {}), batches, lengths) == {"loss": total / count}


class Merged(nn.Linear):
    """As LoRA's layers are merged for evaluations: `train` says in which form its weight is."""

    def train(self, mode: bool = True) -> Merged:
        self.merged = not mode
        return super().train(mode)


@pytest.mark.parametrize("error", [None, Stopped])
def test_an_evaluation_leaves_each_module_in_its_mode(error: Any) -> None:
    """Those of the task too; a part that somebody holds in evaluation mode; after an error."""
    model, task = nn.Sequential(Same(), nn.Dropout(), Merged(1, 1), Merged(1, 1).eval()), Supervised(first, {})
    task.head = nn.Sequential(nn.BatchNorm1d(2), nn.Dropout()).eval()
    before = [module.training for module in (*model.modules(), *task.modules())]
    with contextlib.suppress(Stopped), evaluation_mode(model, task):
        assert not any(module.training for module in (*model.modules(), *task.modules()))
        assert (model[2].merged, model[3].merged) == (True, True)
        if error:
            raise error
    assert [module.training for module in (*model.modules(), *task.modules())] == before
    assert (model[2].merged, model[3].merged) == (False, True)


def test_modules_of_a_task_are_evaluated_too() -> None:
    task = Supervised(lambda output, batch: output * (1 + task.head.training), {})
    task.head = nn.Dropout()
    assert evaluated(task) == evaluated(Supervised(first, {}))
    assert task.head.training


def test_each_metric_is_checked() -> None:
    right = {"a": first, "b": double}
    evaluated(Supervised(first, right))
    for name in right:
        with pytest.raises(ConfigError, match=rf"^task\.metrics\.{name}: must return one value per sample"):
            evaluated(Supervised(first, {**right, name: lambda output, batch: output.repeat(2)}))
    with pytest.raises(ConfigError, match=r"^task\.criterion: must return one value per sample"):
        evaluated(Supervised(lambda output, batch: output.repeat(2), right))


# ---- the batches of an evaluation


class Agreeing(Surroundings):
    """Says yes in the call `requested_at`, and then has a cause."""

    def agree(self, world: World) -> bool:
        self.events.append("agree")
        return super().agree(world)


@pytest.mark.parametrize(("at", "cause", "seen"), [(None, "", 3), (1, "", 1), (2, "", 2), (None, "SIGTERM", 3)])
def test_the_batches_of_an_evaluation(at: int | None, cause: str, seen: int) -> None:
    """Left together, after the batch at which the ranks agree, or at its end, where what was sent last says so."""
    around = Agreeing()
    around.requested_at, around.cause = at, cause
    data, got = Data([2, 2, 2]), []
    data.plan.common = 2  # the ranks have no third batch in common: nobody may wait for another there
    with pytest.raises(Stopped) if at or cause else contextlib.nullcontext():
        for batch in evaluation.until_stopped(data, 6, run_of(around)):  # type: ignore[arg-type]
            got.append(batch["y"][0].item())
    assert got == [0.0, 1.0, 2.0][:seen]
    beat = ("beat", "evaluating", 6)
    asked = [("receive_broadcast",), beat, beat, "agree", beat, "agree", beat, ("receive_broadcast",)]
    assert around.events == (asked[: 2 * at + 2] if at else asked)


# ---- the final scores


def test_the_best_weights_are_scored_with_the_task_of_then(monkeypatch: pytest.MonkeyPatch) -> None:
    def scored(model: Any, state: TrainState, split: str, loader: Any, run: RunContext) -> dict[str, float]:
        return {f"{split}/weight": model.weight.item(), f"{split}/task": state.task.held.item()}  # type: ignore[operator, union-attr]

    monkeypatch.setattr(evaluation, "score_split", scored)
    around, state = Surroundings(), state_of(nn.Linear(1, 1), step=6, best=[[0.5, 3]])
    state.task.register_buffer("held", torch.tensor(3.0))
    with torch.no_grad():
        state.model.weight.fill_(3.0)  # type: ignore[operator, union-attr]
        best = copy.deepcopy(state.payload([]))
        state.model.weight.fill_(6.0), state.task.held.fill_(6.0)  # type: ignore[operator, union-attr]
    around.load_best = lambda entries: (entries[0], best)  # type: ignore[attr-defined]
    around.best_path = lambda entry: Path("run/checkpoints/best_3.pt")  # type: ignore[attr-defined]
    around.latest = lambda *names: {}  # type: ignore[attr-defined]
    around.close = lambda: None  # type: ignore[attr-defined]
    found = evaluation.final_scores(state, {"val": around}, run_of(around))  # type: ignore[dict-item]
    assert (found["val/weight"], found["val/task"], found["best_step"]) == (3.0, 3.0, 3)
    assert found["best_checkpoint"] == "checkpoints/best_3.pt"
