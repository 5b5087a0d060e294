"""What a checkpoint holds comes back whole, for any number of ranks."""

from __future__ import annotations

import copy
import io
from typing import Any

import pytest
import torch
from common import QUICK, old_rng_state

from lab.builders import make_state, make_task
from lab.config import Config
from lab.model_io import make_model
from lab.state import TrainState, model_or_average
from samebits.device import resolve_hardware
from samebits.steps import seed_everything
from samebits.testing import assert_equal, compose
from samebits.world import World

CPU = torch.device("cpu")
VALUES = {
    "step": 12, "samples": 345, "best": [[0.5, 9], [0.7, 3]], "best_score": 0.5, "evals_without_improvement": 3,
    "logged_step": 10, "scored_step": 9, "parameter_names": ["a", "b"], "monitor": ["val/x", "max"],
    "counts": {"loss": 2, "non_finite": 2},
    "logged_lines": 4, "pending": ["save"], "stop_reason": "callback", "epoch_samples": 1297, "total_steps": 40,
    "steps_without_update": 3, "rules": 1, "passed": {"": 512},
}  # fmt: skip


def state_of(*overrides: str) -> TrainState:
    config = Config.of(compose(*QUICK, "trainer.max_steps=40", "trainer.ema_decay=0.9", *overrides))
    hardware = resolve_hardware(config.hardware, config.trainer)
    return make_state(config, hardware, make_model(config), make_task(config), 40, World(0, 1, 0, CPU))


def worked(*overrides: str) -> TrainState:
    """A state in which nothing has the value that it begins with."""
    state = state_of(*overrides)
    for parameter in state.model.parameters():
        parameter.grad = torch.randn_like(parameter)
    state.optimizer[""].step()
    state.schedule.set_rates(6)
    assert state.ema is not None
    for mean in state.ema.parameters():
        mean.data.add_(1.0)
    for name, value in VALUES.items():
        setattr(state, name, copy.deepcopy(value))
    state.running_sums = {"non_finite": torch.tensor(1.0), "loss": torch.tensor(2.5)}
    return state


def through_a_file(payload: dict[str, Any]) -> dict[str, Any]:
    file = io.BytesIO()
    torch.save(payload, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


@pytest.mark.slow
def test_every_field_comes_back() -> None:
    state = worked("hardware.precision=fp16")
    assert state.scaler is not None
    state.scaler.load_state_dict({**state.scaler.state_dict(), "scale": 128.0, "_growth_tracker": 17})
    seed_everything(1)
    payload = through_a_file(state.payload(state.rank_row(CPU)[None]))
    drawn = torch.rand(3)
    fresh = state_of("hardware.precision=fp16")
    seed_everything(2)
    fresh.load(payload, World(0, 1, 0, CPU), options=[])
    assert torch.equal(torch.rand(3), drawn), "random numbers go on where they were"
    assert {name: getattr(fresh, name) for name in VALUES} == VALUES
    assert_equal([*fresh.running_sums.items()], [*state.running_sums.items()])  # in the order of the log's keys
    assert_equal(fresh.optimizer.state_dict(), state.optimizer.state_dict())
    assert fresh.schedule.last_lr == state.schedule.last_lr
    assert fresh.scaler is not None
    assert fresh.scaler.get_scale() == 128.0, "an fp16 run goes on with the scale that it had found"
    assert fresh.scaler.state_dict()["_growth_tracker"] == 17
    assert_equal(payload["model"], state.model.state_dict())
    assert state.ema is not None
    assert_equal(payload["ema"], state.ema.state_dict())
    # a field that is added to the state is added to the checkpoint: nothing of a run may begin anew at a resume
    parts = {"source", "order", "model", "task", "ema", "optimizer", "schedule", "scaler", "ranks"}
    assert set(payload) == parts | set(VALUES) | {"shared", "running_sum_types"}
    assert set(state.__dataclass_fields__) == (parts - {"ranks"}) | set(VALUES) | {"running_sums"}


def test_a_checkpoint_of_before_0_2_goes_on_where_it_was() -> None:
    """Of each rank a dict instead of a row of bytes."""
    state = worked()
    seed_everything(1)
    now = state.payload(state.rank_row(CPU)[None])
    old = {**now, "ranks": [{"rng": old_rng_state(), "totals": dict(state.running_sums)}]}
    del old["running_sum_types"]
    drawn = torch.rand(3)
    for payload in (now, old):
        fresh = state_of()
        seed_everything(2)
        fresh.load(through_a_file(payload), World(0, 1, 0, CPU), options=[])
        assert torch.equal(torch.rand(3), drawn)
        assert_equal(fresh.running_sums, state.running_sums)


def test_no_memory_for_the_average_is_no_mistake_of_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 4096 bytes")

    monkeypatch.setattr(torch.nn.Linear, "__deepcopy__", full, raising=False)
    with pytest.raises(RuntimeError, match=r"^DefaultCPUAllocator: can't allocate memory"):
        state_of()


@pytest.mark.slow
def test_a_state_without_average_and_scaler() -> None:
    state = state_of("trainer.ema_decay=null")
    payload = through_a_file(state.payload(state.rank_row(CPU)[None]))
    assert payload["ema"] is None
    assert payload["scaler"] is None
    assert model_or_average(state) is state.model
    state_of("trainer.ema_decay=null", "hardware.precision=fp16").load(payload, World(0, 1, 0, CPU), options=[])


def test_sums_of_a_checkpoint_that_did_not_count_are_of_all_steps_since_the_log() -> None:
    state = worked()
    payload = through_a_file(state.payload(state.rank_row(CPU)[None]))
    del payload["counts"]
    fresh = state_of()
    fresh.load(payload, World(0, 1, 0, CPU), options=[])
    assert state.logged_step != state.scored_step
    assert fresh.counts == dict.fromkeys(state.running_sums, state.step - state.logged_step)


def test_values_of_the_optimizer_that_the_config_gives_hold_at_a_resume() -> None:
    state = worked("optim.lr=0.1", "optim.weight_decay=0.3")
    payload = through_a_file(state.payload(state.rank_row(CPU)[None]))
    fresh = state_of("optim.lr=0.2", "optim.weight_decay=0.4", "optim.betas=[0.5,0.6]")
    fresh.load(payload, World(0, 1, 0, CPU), options=["weight_decay"])
    assert [group["weight_decay"] for group in fresh.optimizer.param_groups] == [0.4, 0.0]
    assert [tuple(group["betas"]) for group in fresh.optimizer.param_groups] == [(0.9, 0.999)] * 2


@pytest.mark.one_quick
@pytest.mark.parametrize(("size", "rank", "total", "own_numbers"), [(1, 0, 4.0, 0), (2, 1, 6.0, 1), (3, 2, 4.0, None)])
def test_ranks_take_what_was_theirs(size: int, rank: int, total: float, own_numbers: int | None) -> None:
    """As many ranks as before: each its own sums; other numbers of ranks: the mean. Random numbers: of that rank."""
    state = worked()
    ranks, drawn = [], []
    for index, loss in enumerate((2.0, 6.0)):
        seed_everything(5, stream=index)
        ranks.append({"rng": old_rng_state(), "totals": {"loss": torch.tensor(loss)}})
        drawn.append(torch.rand(2))
    payload = through_a_file(state.payload(ranks))
    fresh = state_of()
    seed_everything(8)
    untouched = torch.get_rng_state()
    fresh.load(payload, World(rank, size, 0, CPU), options=[])
    assert fresh.running_sums["loss"].item() == total
    if own_numbers is None:  # a rank that the run did not have
        assert torch.equal(torch.get_rng_state(), untouched)
    else:
        assert torch.equal(torch.rand(2), drawn[own_numbers])


def test_the_averaged_model_has_the_buffers_of_the_model() -> None:
    state = state_of()
    assert state.ema is not None
    for module, value in ((state.model, 3.0), (state.ema, 1.0)):
        module.register_buffer("running", torch.full((2,), value))
    assert model_or_average(state) is state.ema
    assert state.ema.get_buffer("running").tolist() == [3.0, 3.0]
    assert not any(parameter.requires_grad for parameter in state.ema.parameters())
    assert all(a is not b for a, b in zip(state.ema.parameters(), state.model.parameters()))
