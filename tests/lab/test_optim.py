"""Parameter groups, schedules, and the lean way through torch's optimizers."""

from __future__ import annotations

import copy
import math
import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from common import QUICK
from hypothesis import given, settings, strategies as st
from torch import nn

import lab.optim
import lab.schedules.constant
import lab.schedules.cosine
import lab.tasks.supervised
from lab.builders import make_optimizer
from lab.config import Config
from lab.optim import Schedule, check_optimizer, schedule_change, trainable
from lab.program import PROGRAM
from lab.schedules.constant import Constant
from lab.schedules.cosine import Cosine
from lab.schedules.linear import Linear
from lab.tasks.supervised import Supervised
from samebits.checkpoints import Optimizers, load_checkpoint
from samebits.errors import ConfigError
from samebits.saved import current
from samebits.targets import locate
from samebits.testing import assert_equal, compose, last_checkpoint, start_run, values


def small() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 5), nn.LayerNorm(5), nn.Linear(5, 2))


def parameter_groups(model: nn.Module, *rest: Any) -> list[dict[str, Any]]:
    return lab.optim.parameter_groups(trainable([("", model)]), *rest)


def build_optimizer(make: Any, model: nn.Module, *rest: Any) -> Any:
    return lab.optim.build_optimizer(make, lambda: parameter_groups(model, *rest))


def backward(model: nn.Module) -> None:
    torch.manual_seed(1)
    model(torch.randn(7, 6)).square().mean().backward()


def test_biases_and_norms_do_not_decay() -> None:
    """One group where nothing decays, or all does; and no group without parameters."""
    model = small()
    groups = parameter_groups(model, 0.3, False)
    decays = {id(p): group.get("weight_decay", 0.3) for group in groups for p in group["params"]}
    assert [decays[id(p)] for p in model.parameters()] == [0.3 if p.dim() > 1 else 0.0 for p in model.parameters()]
    for decay, all_of_it in ((0.0, False), (0.3, True), (0.0, True)):
        assert [len(g["params"]) for g in parameter_groups(small(), decay, all_of_it)] == [6]
    assert [len(g["params"]) for g in parameter_groups(nn.Linear(2, 2, bias=False), 0.3, False)] == [1]
    assert [g["weight_decay"] for g in parameter_groups(nn.LayerNorm(2), 0.3, False)] == [0.0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("make", [partial(torch.optim.SGD, momentum=0.9, nesterov=True), torch.optim.AdamW])
def test_a_fused_kernel_that_is_wrong_is_not_used(make: Any, dtype: torch.dtype) -> None:
    """torch's fused SGD with momentum leaves the first gradient out for half precision on a CPU."""
    built, plain = ([nn.Parameter(torch.zeros(16, 16, dtype=dtype))] for _ in range(2))
    optimizers = lab.optim.build_optimizer(partial(make, lr=0.1), lambda: [{"params": built}]), make(plain, lr=0.1)
    for step in range(3):
        for optimizer, [p] in zip(optimizers, (built, plain)):
            p.grad = torch.full_like(p, 1.0 + step)
            optimizer.step()
        torch.testing.assert_close(built[0], plain[0], rtol=0.05, atol=0)


def test_what_the_config_says_of_fused_holds() -> None:
    """And a class that has no fused kernel for the weights' device or dtype is built without."""
    assert build_optimizer(partial(torch.optim.SGD, lr=0.1), small(), 0.0, True).defaults["fused"]
    assert "fused" not in build_optimizer(torch.optim.RMSprop, small(), 0.0, True).defaults
    for said in ({"foreach": True}, {"fused": False}, {"fused": True}):
        defaults = build_optimizer(partial(torch.optim.AdamW, **said), small(), 0.0, True).defaults
        assert {**said, "fused": said.get("fused")}.items() <= defaults.items()

    class Picky(torch.optim.SGD):
        def __init__(self, params: Any, fused: bool | None = None) -> None:
            if fused:
                raise RuntimeError("no kernel")
            super().__init__(params, lr=0.1)

    class Late(torch.optim.SGD):
        def __init__(self, params: Any, fused: bool | None = None) -> None:
            super().__init__(params, lr=0.1)
            self.fused = fused

        def step(self, closure: Any = None) -> None:
            if self.fused:
                raise RuntimeError("no kernel")  # Adagrad on a GPU, torch 2.11

    for kind in (Picky, Late):
        made = build_optimizer(kind, small(), 0.1, False)
        assert [len(group["params"]) for group in made.param_groups] == [2, 4]
    assert not made.fused


@pytest.mark.slow
def test_a_model_with_nothing_to_train_is_named() -> None:
    config = Config.of(compose(*QUICK, "trainer.max_steps=1"))
    for model in (nn.ReLU(), small().requires_grad_(False)):
        with pytest.raises(ConfigError, match=f"model: {type(model).__name__} has no parameters"):
            make_optimizer(config, trainable([("", model)]), type(model).__name__)


def test_an_optimizer_without_its_base_class_s_init_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    class Bare(torch.optim.Optimizer):
        def __init__(self, params: Any, lr: float, betas: list[float], weight_decay: float) -> None:
            self.lr = lr

    Bare.__module__ = lab.schedules.constant.__name__

    monkeypatch.setattr(lab.schedules.constant, "Bare", Bare, raising=False)
    config = Config.of(compose(*QUICK, "trainer.max_steps=1", "optim._target_=lab.schedules.constant.Bare"))
    with pytest.raises(
        ConfigError, match=r"^optim: the __init__ of Bare must call super\(\).__init__\(params, defaults\)"
    ):
        make_optimizer(config, trainable([("", small())]), "the model")


def test_learning_rates_by_parts_of_names() -> None:
    """The first pattern that is found holds; decay and the schedule's factor are on top of it."""
    groups = parameter_groups(small(), 0.3, False, {r"^0\.": 0.0, "weight$": 4.0})
    found = [(g.get("lr_factor", 1.0), g.get("weight_decay", 0.3), len(g["params"])) for g in groups]
    assert sorted(found) == [(0.0, 0.0, 1), (0.0, 0.3, 1), (1.0, 0.0, 2), (4.0, 0.0, 1), (4.0, 0.3, 1)]
    optimizer = torch.optim.SGD(groups, lr=0.5)
    schedule = Schedule(optimizer, lambda step, total: 0.5, 10)
    assert sorted({group["lr"] for group in optimizer.param_groups}) == [0.0, 0.25, 1.0]
    assert schedule.last_lr == 0.25, "what is logged is the rate of the parameters without a factor"
    line = r"^optim\.lr_factors: no trained parameter's name contains 'nothing'; names are, for example, 0\.w"
    with pytest.raises(ConfigError, match=line):
        parameter_groups(small(), 0.3, False, {"nothing": 2.0})


def test_several_optimizers_are_saved_as_one() -> None:
    """Their parameters are numbered in a row; each takes its own back."""
    one, other, fresh = small(), nn.Linear(3, 2), [small(), nn.Linear(3, 2)]

    def made(first: nn.Module, second: nn.Module) -> Optimizers:
        adam = build_optimizer(torch.optim.AdamW, first, 0.3, False)
        return Optimizers(a=adam, b=build_optimizer(partial(torch.optim.SGD, momentum=0.9), second, 0.0, True))

    both = made(one, other)
    backward(one)
    other(torch.ones(1, 3)).sum().backward()
    for optimizer in both.values():
        optimizer.step()
    saved = both.state_dict()
    assert [group["params"] for group in saved["param_groups"]] == [[0, 1], [2, 3, 4, 5], [6, 7]]
    assert sorted(saved["state"]) == list(range(8))
    again = made(fresh[0], fresh[1])  # type: ignore[arg-type]
    again.load_state_dict(copy.deepcopy(saved))
    for name in both:
        assert_equal(again[name].state_dict(), both[name].state_dict())


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 300), st.sampled_from([0.0, 0.05, 0.3, 0.99, 1.0]), st.sampled_from([0.0, 0.1, 1.0]))
def test_a_schedule_follows_its_formula_to_the_last_step(total: int, warmup: float, final: float) -> None:
    """From the peak at the first step after the warm-up to exactly `final` of it behind the last."""
    rise = round(warmup * total)
    for kind in (Linear, Cosine):
        factors = [kind(warmup, final)(step, total) for step in range(total + 1)]
        assert factors[:rise] == pytest.approx([(step + 1) / rise for step in range(rise)])
        for step in range(rise, total):
            progress = (step - rise) / (total - rise)
            left = 1 - progress if kind is Linear else (1 + math.cos(math.pi * progress)) / 2
            assert factors[step] == pytest.approx(final + (1 - final) * left, abs=1e-12)
        assert min(factors[:total]) > 0
        assert factors[total] == pytest.approx(final, abs=1e-12)


class Holding:
    """A schedule of one's own around one of these."""

    __module__ = "lab.schedules.cosine"

    def __init__(self, warmup: float, final: float) -> None:
        self.inner = Cosine(warmup, final)

    def __call__(self, step: int, total_steps: int) -> float:
        return 0.5 * self.inner(step, total_steps)


@pytest.mark.one_quick(3)
@pytest.mark.parametrize("kind", ["cosine.Cosine", "linear.Linear", "cosine.Holding"])
@pytest.mark.parametrize("rules", [1, 2])
def test_a_run_keeps_the_rate_of_its_last_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, rules: int
) -> None:
    """0 where it began by the rules before, and then its last two checkpoints are equal; also of a resumed one."""
    monkeypatch.setattr(lab.schedules.cosine, "Holding", Holding, raising=False)
    run = start_run(
        tmp_path, *QUICK, f"optim.schedule._target_=lab.schedules.{kind}", "optim.weight_decay=0", f"rules={rules}",
        "trainer.max_steps=4", "trainer.log_every=1", "trainer.save_every=1", "trainer.eval_every=null",
    )  # fmt: skip
    assert (values(run, "train/lr")[-1] == 0) is (rules == 1)
    third, last = (load_checkpoint(path) for path in sorted((run / "checkpoints").glob("last_*.pt"))[-2:])
    assert (third["step"], last["step"]) == (3, 4)
    equal = all(torch.equal(last["model"][name], value) for name, value in third["model"].items())
    assert equal is (rules == 1)


def test_the_rate_that_is_told_is_that_of_the_newest_step() -> None:
    """And each group has its own peak."""
    model = small()
    groups = [{"params": [p], "lr": lr} for p, lr in zip(model.parameters(), (0.5, 2.0))]
    optimizer = torch.optim.SGD(groups, lr=0.1)
    schedule = Schedule(optimizer, lambda step, total: (step + 1) / total, 16)
    for step in range(11):
        schedule.set_rates(step)
        assert [group["lr"] for group in optimizer.param_groups] == [0.5 * (step + 1) / 16, 2.0 * (step + 1) / 16]
        assert schedule.last_lr == 0.5 * (step + 1) / 16


@pytest.mark.parametrize("value", [None, "0.1", [0.5], 1j])
def test_a_schedule_that_returns_no_number_is_named(value: Any) -> None:
    """At the start, which builds it, and at a later step."""

    class Own:
        def __call__(self, step: int, total: int) -> Any:
            return value if step == late else 1.0

    optimizer = torch.optim.SGD(small().parameters(), lr=0.1)
    line = rf"^optim\.objectives\.d\.schedule: Own returned {re.escape(repr(value))}: a schedule must return a number"
    for late in (0, 3):
        with pytest.raises(ConfigError, match=line):
            Schedule(optimizer, lambda step, total: 1.0, 16, {"d": Own()}).set_rates(late)


def test_a_checkpoint_of_another_optimizer_is_named() -> None:
    model = small()
    optimizer = build_optimizer(partial(torch.optim.SGD, lr=0.1), model, 0.3, False)
    saved = optimizer.state_dict()["param_groups"]
    check_optimizer(saved, optimizer, "SGD")
    check_optimizer([{**group, "of_another_torch": 1} for group in saved], optimizer, "SGD")
    check_optimizer([{k: v for k, v in group.items() if k != "maximize"} for group in saved], optimizer, "SGD")
    adam = build_optimizer(torch.optim.AdamW, model, 0.3, False).state_dict()["param_groups"]
    with pytest.raises(ConfigError, match=r"^optim: .* another optimizer than SGD, which has no amsgrad, betas, "):
        check_optimizer(adam, optimizer, "SGD")
    with pytest.raises(ConfigError, match=r"^optim: .* groups have \[2, 4\] parameters, but this config gives \[6\]: "):
        check_optimizer(saved, build_optimizer(partial(torch.optim.SGD, lr=0.1), model, 0.3, True), "SGD")


def test_a_schedule_of_another_length_is_said() -> None:
    for factor, saved, now, said in (
        (
            Cosine(0.0, 0.0),
            {"total_steps": 100},
            200,
            "now has 200 steps instead of 100; the learning rate of step ",
        ),
        (Constant(0.9), {"total_steps": 100}, 200, "Constant now has 200 steps instead of 100"),
        (Constant(0.1), {"total_steps": 100}, 200, None),  # its warmup is over
        (Cosine(0.0, 0.0), {"total_steps": 100}, 100, None),
        (Cosine(0.0, 0.0), {}, 100, None),  # a checkpoint of an older version
    ):
        line = schedule_change(
            Schedule(torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1), factor, now), saved, 50
        )
        assert said in line if said else line == ""


def test_an_optimizer_that_needs_a_closure_is_noticed() -> None:
    with pytest.raises(ConfigError, match=r"^optim\._target_=a\.b: LBFGS needs a task whose train_step"):
        lab.optim.check_closure(torch.optim.LBFGS(small().parameters()), "optim._target_=a.b")
    lab.optim.check_closure(torch.optim.SGD(small().parameters()))


def test_saved_configs_with_the_names_of_older_versions_are_built() -> None:
    """Optimizers and schedules were classes of one module."""
    old_names = [old for old in PROGRAM.moved if ".optim." in old]
    assert len(old_names) >= 5
    saved = compose(*QUICK, "trainer.max_steps=1")
    for old in old_names:
        saved.optim.schedule = {"_target_": old}
        new = current(PROGRAM, saved, Path("config.yaml")).optim.schedule._target_
        assert locate(PROGRAM, new, "optim").__name__ == old.rpartition(".")[2]


class Turned(Supervised):
    """Sets gradients of other strides than the weights have, as a mixture of gradients or a projection may."""

    __module__ = "lab.tasks.supervised"

    def train_step(self, step: int, batches: Any, optimizer_step: Any) -> Any:
        values = optimizer_step.gradients("", batches)
        for p in optimizer_step.parameters(""):
            if p.dim() == 2:
                p.grad = p.grad.t().contiguous().t()
        optimizer_step.update("")
        return values


class Closes(torch.optim.SGD):
    __module__ = "lab.tasks.supervised"

    def step(self, closure: Any) -> Any:  # type: ignore[override]
        raise AssertionError


@pytest.mark.slow
def test_a_task_of_its_own_step_that_passes_no_closure_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lab.tasks.supervised, "Turned", Turned, raising=False)
    monkeypatch.setattr(lab.tasks.supervised, "Closes", Closes, raising=False)
    own = ("task._target_=lab.tasks.supervised.Turned", "optim=sgd", "optim._target_=lab.tasks.supervised.Closes")
    with pytest.raises(ConfigError, match=r"^optim: Closes needs a task whose train_step passes a closure"):
        start_run(tmp_path / "run", *QUICK, *own, "+optim.fused=false", "trainer.max_steps=1")


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_gradients_that_a_task_sets_may_have_any_strides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, optimizer: str
) -> None:
    """torch's fused kernels read them in memory order."""
    monkeypatch.setattr(lab.tasks.supervised, "Turned", Turned, raising=False)
    given = (*QUICK, f"optim={optimizer}", "model.hidden=[16]", "trainer.max_steps=4", "trainer.clip_norm=1")
    plain = start_run(tmp_path / "plain", *given)
    turned = start_run(tmp_path / "turned", *given, "task._target_=lab.tasks.supervised.Turned")
    assert_equal(last_checkpoint(turned)["model"], last_checkpoint(plain)["model"])
