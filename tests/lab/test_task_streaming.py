"""task=streaming: truncated backpropagation through time, in lanes, as a plain loop has it."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import plain
import pytest
import torch
from common import needs
from omegaconf import OmegaConf
from shipped import Shipped
from torch.nn import functional as F

from lab.tasks.streaming import LaneStates
from samebits.errors import ConfigError, RunFailed
from samebits.testing import (
    SMALL,
    WAYS,
    Killed,
    assert_equal,
    last_checkpoint,
    raise_at_step,
    resume_run,
    scores,
    start_run,
)

pytestmark = needs("conf/experiment/streaming.yaml", "conf/data/tokens.yaml")
WINDOW, LANES, LENGTH = 8, 12, 7  # a lane's rows: a run of 12 steps wraps
TRAIN, VAL = LANES * LENGTH + 5, 22  # rows
OWN = (f"data.window={WINDOW}", "model.width=16", "task.eval_lanes=4")


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Each token is the one of three places before, with a tenth of them drawn."""
    path = tmp_path_factory.mktemp("streaming") / "tokens.h5"
    random = np.random.default_rng(0)
    with h5py.File(path, "w") as file:
        for split, rows in (("train", TRAIN), ("val", VAL)):
            values = random.integers(0, 11, rows * WINDOW + 1)
            for i in range(3, len(values)):
                values[i] = values[i] if random.random() < 0.1 else values[i - 3]
            file.create_dataset(f"{split}/tokens", data=values.astype(np.uint8)).attrs["classes"] = 11
    return path


def overrides(path: Path) -> tuple[str, ...]:
    return ("experiment=streaming", f"data.path={path}", *OWN, "optim.lr=1e-2")


@pytest.mark.parametrize(
    ("state", "kinds"), [({"hidden": None}, r"{'hidden': 'NoneType'}"), (None, "NoneType"), ([1], "list")]
)
def test_a_state_that_is_no_mapping_of_tensors_is_named(state: Any, kinds: str) -> None:
    with pytest.raises(ConfigError, match=rf"^model: initial_state\(\) must return .*, but its state is {kinds}$"):
        LaneStates(state, 2, 1)
    states = LaneStates({"hidden": torch.zeros(3)}, 2, 1)
    with pytest.raises(ConfigError, match=rf"^model: must return \(output, .*, but its state is {kinds}$"):
        states.write({}, state)


class TestStreaming(Shipped):
    ranks = (2,)  # each rank has states of its own lanes

    @pytest.fixture
    def run(self, path: Path) -> tuple[str, ...]:
        return overrides(path)

    def test_another_batch_size_cannot_go_on(self, tmp_path: Path, straight: Path) -> None:
        folder = Path(shutil.copytree(straight, tmp_path / "run"))
        change(
            folder, {"trainer.global_batch_size": 6, "data.order.lanes": 6, "task.lanes": 6, "trainer.max_steps": 14}
        )
        with pytest.raises(ConfigError, match=r"states\.hidden: \(12, .* in the checkpoint, \(6, ") as caught:
            resume_run(folder)
        assert "\n" not in str(caught.value)


def change(folder: Path, values: dict[str, Any]) -> None:
    """The run's own config."""
    config = OmegaConf.load(folder / "config.yaml")
    for key, value in values.items():
        OmegaConf.update(config, key, value)
    OmegaConf.save(config, folder / "config.yaml")


def rows_of(path: Path, split: str) -> torch.Tensor:
    with h5py.File(path) as file:
        tokens = torch.from_numpy(file[split]["tokens"][()]).long()
    return tokens.unfold(0, WINDOW + 1, WINDOW)


def losses_of(model: Any, rows: torch.Tensor, hidden: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
    logits, state = model(rows[:, :-1], None if hidden is None else {"hidden": hidden})
    return F.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten()), state["hidden"].detach()


@pytest.mark.slow
def test_it_is_a_plain_loop(tmp_path: Path, path: Path) -> None:
    """The weights after a wrap of the lanes, the states, and the score of lanes of unequal length; with micro-batches
    and evaluations between the steps."""
    still = [value for value in plain.PLAIN if not value.startswith("data.order")]
    more = ("trainer.max_steps=9", "trainer.keep_best=0", "hardware.micro_batch_size=5", "trainer.eval_every=2")
    run = (*SMALL, *overrides(path), *still, *more)
    model, hidden = plain.first_weights(*run), None
    lanes = rows_of(path, "train")[: LANES * LENGTH].view(LANES, LENGTH, -1)
    for step in range(9):
        loss, hidden = losses_of(model, lanes[:, step % LENGTH], None if step % LENGTH == 0 else hidden)
        gradients = torch.autograd.grad(loss, [*model.parameters()])
        for p, g in zip(model.parameters(), gradients):
            p.data -= 0.1 * g
    folder = start_run(tmp_path, *run)
    plain.assert_trained(folder, model)
    held = last_checkpoint(folder)["task"]["states.hidden"][:, 9 % LENGTH % 2]
    torch.testing.assert_close(held, hidden, rtol=1e-4, atol=1e-5)
    rows, total, first = rows_of(path, "val"), 0.0, 0
    with torch.no_grad():
        for length in (6, 6, 5, 5):  # 22 rows in 4 lanes
            before = None
            for row in rows[first : first + length]:
                loss, before = losses_of(model, row[None], before)
                total += loss.item()
            first += length
    assert scores(folder)["val/loss"] == pytest.approx(total / VAL, rel=1e-4)


@pytest.mark.slow
def test_evaluations_leave_the_states(tmp_path: Path, path: Path) -> None:
    runs = [
        start_run(tmp_path / every, *SMALL, *overrides(path), "trainer.max_steps=4", f"trainer.eval_every={every}")
        for every in ("null", "1")
    ]
    never, often = map(last_checkpoint, runs)
    for part in ("model", "task", "optimizer"):
        assert_equal(often[part], never[part])


@pytest.mark.slow
def test_lanes_are_dealt_anew_to_other_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: Path) -> None:
    """A run that goes on with another number of ranks ends as if it always had them, to rounding."""
    run = (*SMALL, *overrides(path), "trainer.save_every=5")
    straight = start_run(tmp_path / "straight", *run)
    killed = tmp_path / "killed"
    with monkeypatch.context() as patch:
        raise_at_step(patch, 6, Killed)
        with pytest.raises(RunFailed):
            start_run(killed, *run, *WAYS["2 ranks"])
    change(killed, {"hardware.num_procs": 3})
    resume_run(killed)
    wanted, found = last_checkpoint(straight), last_checkpoint(killed)
    assert len(found["ranks"]) == 3
    for part in ("model", "task"):
        torch.testing.assert_close(found[part], wanted[part], rtol=1e-3, atol=1e-4)
    assert scores(killed) == pytest.approx(scores(straight), rel=1e-3)


@pytest.mark.slow
def test_predictions_are_those_of_whole_lanes(tmp_path: Path, path: Path) -> None:
    """Each row once, by one process or two, in batches smaller than the lanes."""
    from lab.predict import Prediction, predict

    folder = start_run(tmp_path / "run", *SMALL, *overrides(path), "trainer.max_steps=3", "trainer.keep_best=0")
    found = []
    for count, size in ((1, 64), (2, 1)):
        out = tmp_path / f"{count}.h5"
        predict(Prediction([folder], "val", out, [f"hardware.eval_batch_size={size}"], ["y"]), count, overwrite=False)
        with h5py.File(out) as file:
            found.append({name: torch.from_numpy(file[name][()]) for name in ("row", "output", "y")})
    assert found[0]["row"].tolist() == list(range(VAL))
    torch.testing.assert_close(found[1], found[0])
    losses = F.cross_entropy(found[0]["output"].flatten(0, 1), found[0]["y"].flatten())
    assert scores(folder)["val/loss"] == pytest.approx(losses.item(), rel=1e-4)
    # the lanes of another model have other rows, so the mean would be of different samples
    other = start_run(tmp_path / "other", *SMALL, *overrides(path), "trainer.max_steps=3", "task.eval_lanes=2")
    both = Prediction([folder, other], "val", tmp_path / "mean.h5", ["hardware.eval_batch_size=2"], [])
    with pytest.raises(ConfigError, match=r"/other/.*: reads the split val in another order .* task\.eval_lanes"):
        predict(both, 1, overwrite=False)


def test_a_lane_that_is_not_finite_begins_anew() -> None:
    """Alone; and a second pass over a step's batch begins with what the first began with."""
    from lab.tasks.streaming import LaneStates

    states, initial = LaneStates({"h": torch.zeros(2)}, 3, 1), {"h": torch.zeros(2)}
    batch = {"lane": torch.tensor([0, 2]), "position": torch.tensor([4, 4])}
    states.write(batch, {"h": torch.tensor([[1.0, torch.nan], [2.0, 3.0]])})
    assert states.read(batch, initial)["h"].tolist() == [[0, 0], [0, 0]]
    after = batch | {"position": batch["position"] + 1}
    assert states.read(after, initial)["h"].tolist() == [[0, 0], [2, 3]]
    assert states.read(batch | {"position": torch.tensor([1, 0])}, initial)["h"].tolist() == [[0, 0], [0, 0]]


@pytest.mark.slow
def test_what_does_not_fit_is_one_line(tmp_path: Path, path: Path) -> None:
    for override, line in (
        ("data.order._target_=samebits.data.order.overfit +data.order.count=24 ~data.order.lanes", "has no lanes"),
        ("task.lanes=6", r"task\.lanes=6: must be trainer\.global_batch_size=12"),
        ("data.stride=1", r"data\.stride: lanes need rows that continue each other"),
        ("data.order.lanes=6", r"data\.order\.lanes=6: .*trainer\.global_batch_size=12"),
        ("trainer.global_batch_size=200", r"data\.order\.lanes=200 must be between 1 and the 89 rows"),
        ("model=gpt", r"model: GPT has no method initial_state\(\)"),
    ):
        with pytest.raises(ConfigError, match=line) as caught:
            start_run(tmp_path, *SMALL, *overrides(path), *override.split(), "trainer.max_steps=1")
        assert "\n" not in str(caught.value)
