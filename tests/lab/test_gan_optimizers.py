"""optim.objectives: an optimizer, a schedule and a limit of the gradient's norm for one objective of a task."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import pytest
import torch
from common import QUICK, ROOT, needs
from shipped import Shipped

import lab.tasks.supervised
from lab.builders import make_task
from lab.config import Config, check
from lab.model_io import make_model
from lab.tasks.supervised import Supervised
from samebits.errors import ConfigError
from samebits.steps import seed_everything
from samebits.testing import (
    SMALL,
    assert_equal,
    compose,
    last_checkpoint,
    metrics,
    resume_run,
    start_run,
    values,
)

pytestmark = needs("conf/task/gan.yaml", "conf/optim/schedule_free.yaml")
GAN = (
    "task=gan", "model.input_shape=[4]", "model.num_outputs=64", "model.hidden=[16]", "task.critic.hidden=[16]",
    "task.critic_steps=2",
)  # fmt: skip
CRITIC = "optim.objectives.critic"
RUN = (
    *GAN, "optim.lr=3e-3", "optim.betas=[0.0,0.9]", "+optim.eps=1e-5", f"+optim@{CRITIC}=sgd", f"{CRITIC}.lr=0.03",
    f"{CRITIC}.weight_decay=0", f"+{CRITIC}.clip_norm=0.5", f"optim/schedule@{CRITIC}.schedule=step",
    f"{CRITIC}.schedule.milestones=[6st]", "+optim.objectives.generator.schedule.warmup=4st",
    "+optim.objectives.generator.clip_norm=null",
)  # fmt: skip


@pytest.fixture
def run() -> tuple[str, ...]:
    return RUN


class TestObjectives(Shipped):
    """Killed and resumed, and with micro-batches and ranks."""

    loss_names = ("real", "fake")
    logged = ("critic/loss", "critic/grad_norm", "critic/lr", "generator/loss", "generator/grad_norm", "generator/lr")
    monitor = "critic/penalty"


BATCH, STEPS = 12, 8


def batches() -> Iterator[dict[str, Any]]:
    """The digits' first rows, in the order of the file."""
    with h5py.File(ROOT / "data" / "digits.h5") as file:
        x = torch.from_numpy(file["train"]["image"][: STEPS * BATCH])
    for step, rows in enumerate(x.split(BATCH)):
        ids = torch.arange(step * BATCH, (step + 1) * BATCH)
        yield {"x": rows.float() / 255, "sample_id": ids}


def test_two_optimizers_are_those_of_a_loop_by_hand(tmp_path: Path) -> None:
    """Bit for bit: SGD with clipping and drops for the critic, AdamW with a warmup and a cosine for the generator."""
    overrides = (
        *SMALL, *RUN, f"trainer.max_steps={STEPS}", "trainer.log_every=1", "trainer.eval_every=null",
        "optim.weight_decay=0", f"{CRITIC}.schedule.warmup=0", "data.order._target_=samebits.data.order.sequential",
    )  # fmt: skip
    folder = start_run(tmp_path, *overrides)

    config = Config.of(compose(*overrides))
    seed_everything(config.seed)
    model, task = make_model(config), make_task(config)
    critic = torch.optim.SGD(task.critic.parameters(), lr=0.03, momentum=0.9, nesterov=True, fused=True)
    generator = torch.optim.AdamW(model.parameters(), betas=(0.0, 0.9), eps=1e-5, weight_decay=0.0, fused=True)
    norms, rates = [], []
    for step, batch in enumerate(batches()):
        critic.param_groups[0]["lr"] = 0.03 * (1.0 if step < 6 else 0.1)
        warm, progress = min(1.0, (step + 1) / 4), max(0.0, (step - 4) / (STEPS - 4))
        generator.param_groups[0]["lr"] = 3e-3 * (warm * (0.5 * (1 + math.cos(math.pi * progress))))
        rates.append((critic.param_groups[0]["lr"], generator.param_groups[0]["lr"]))
        critic.zero_grad()
        task.critic_losses(model, batch)[0]["loss"].mean().backward()
        gradients = [p.grad for p in task.critic.parameters()]
        norm = torch.nn.utils.get_total_norm(gradients)
        norms.append(norm.item())
        for gradient in gradients:
            gradient.mul_((0.5 / (norm + 1e-6)).clamp(max=1.0))
        critic.step()
        if step % 2:
            generator.zero_grad()
            task.generator_losses(model, batch)[0]["loss"].mean().backward()
            generator.step()
    assert max(norms) > 0.5, "otherwise nothing is clipped"
    payload = last_checkpoint(folder)
    assert_equal(payload["model"], dict(model.state_dict()))
    assert_equal(payload["task"], {k: v for k, v in task.state_dict().items() if k in payload["task"]})
    assert any(name.startswith("critic.") for name in payload["task"])
    logged = [line for line in metrics(folder) if "train/critic/lr" in line]
    assert [(line["train/critic/lr"], line["train/generator/lr"]) for line in logged] == rates
    assert [line["train/critic/grad_norm"] for line in logged] == pytest.approx(norms, rel=1e-6)
    assert not values(folder, "train/lr")


def nodes(*overrides: str) -> dict[str, Any]:
    return {name: node for name, node in check(compose(*GAN, *overrides)).optimizers.items() if name}


def test_what_an_entry_lacks_is_that_of_optim() -> None:
    shared = ("optim.lr=5e-3", "optim.schedule.final=0.25", "+optim.lr_factors={bias: 2, weight: 3}")
    own = nodes(*shared, f"+{CRITIC}.schedule.warmup=0.5", f"+{CRITIC}.lr_factors={{weight: 4}}")["critic"]
    assert own.optimizer["lr"] == 5e-3 and own.target == "torch.optim.AdamW"  # noqa: PT018
    assert own.options.schedule == {"_target_": "lab.schedules.cosine.Cosine", "warmup": 0.5, "final": 0.25}
    assert list(own.options.lr_factors.items()) == [("weight", 4), ("bias", 2)]
    assert own.options.clip_norm == 1.0
    # another class takes no arguments of the shared one, but the schedule
    own = nodes(*shared, f"+{CRITIC}={{_target_: torch.optim.RMSprop, lr: 1e-4}}", "trainer.clip_norm=null")["critic"]
    assert own.optimizer == {"_target_": "torch.optim.RMSprop", "_partial_": True, "lr": 1e-4}
    assert own.options.schedule["final"] == 0.25 and own.options.clip_norm is None  # noqa: PT018
    # an option of the group is complete, with its own schedule
    own = nodes(*shared, f"+optim@{CRITIC}=schedule_free")["critic"]
    assert own.options.schedule["_target_"] == "lab.schedules.constant.Constant"
    assert "betas" not in own.optimizer


MISTAKES = {
    f"+{CRITIC}=sgd": f"{CRITIC}: expected keys of an optimizer, got 'sgd' - choose one by +optim@{CRITIC}=sgd, or set",
    f"+{CRITIC}={{}}": f"{CRITIC}: is empty, so it has no effect - remove it, or set a value, +{CRITIC}.lr=1e-4",
    "+optim.objectives={a-b: {lr: 1}}": "optim.objectives.a-b: 'a-b' cannot name an objective",
    f"+{CRITIC}.objectives={{generator: {{lr: 1}}}}": f"{CRITIC}.objectives: has no effect - remove it",
    f"+{CRITIC}.lr=-1": f"{CRITIC}.lr: must be >= 0, got -1",
    f"+{CRITIC}.momentum=0.9": f"{CRITIC}.momentum: torch.optim.AdamW does not accept 'momentum'",
    f"+{CRITIC}.clip_norm=0": f"{CRITIC}.clip_norm: must be > 0, got 0",
    f"+{CRITIC}.lr_factors={{x: fast}}": f"{CRITIC}.lr_factors: x: expected a factor of the learning rate, got 'fast'",
    f"+{CRITIC}.schedule.final=2": f"{CRITIC}.schedule.final: must be <= 1, got 2",
    f"+{CRITIC}.schedule={{_target_: torch.optim.lr_scheduler.StepLR}}": f"{CRITIC}.schedule._target_: torch.optim.lr_",
    "+optim.clip_norm=1": "optim.clip_norm: torch.optim.AdamW does not accept 'clip_norm'",
}


@pytest.mark.one_quick(3)
@pytest.mark.parametrize("override", MISTAKES)
def test_mistakes_are_named(override: str) -> None:
    with pytest.raises(ConfigError, match=f"^{re.escape(MISTAKES[override])}"):
        check(compose(*GAN, override))


@pytest.mark.slow
def test_what_the_task_lacks_is_named(tmp_path: Path) -> None:
    for overrides, line in (
        ((*GAN, "+optim.objectives.critik.lr=1e-4"),
         "optim.objectives.critik: WGAN has no objective 'critik' - did you mean critic? (objectives: critic, gen"),
        (("model.hidden=[8]", f"+{CRITIC}.lr=1e-4"),
         f"{CRITIC}: Supervised has no objective 'critic', but one optimizer, which `optim` configures"),
        ((*GAN, f"+{CRITIC}.lr_factors={{generator: 2}}"),
         f"{CRITIC}.lr_factors: no trained parameter's name contains 'generator'"),
        ((*GAN, f"+optim/schedule@{CRITIC}.schedule=plateau", "trainer.eval_every=null"),
         f"{CRITIC}.schedule: Plateau needs val/loss, but trainer.eval_every is null"),
        ((*GAN, "+optim@optim.objectives.generator=schedule_free", "trainer.ema_decay=0.9"),
         "trainer.ema_decay=0.9: optim.objectives.generator._target_=lab.optimizers.schedule_free.ScheduleFree av"),
    ):  # fmt: skip
        with pytest.raises(ConfigError, match=f"^{re.escape(line)}"):
            start_run(tmp_path / "run", *SMALL, *overrides)


@pytest.mark.slow
def test_a_plateau_of_one_objective_is_in_the_checkpoint(tmp_path: Path) -> None:
    """Only the critic's rate falls; a run that is stopped and resumed is the run that was not."""
    falls = (
        *SMALL, *GAN, "optim/schedule=constant", "optim.schedule.warmup=0", "trainer.eval_every=1",
        f"+optim/schedule@{CRITIC}.schedule=plateau", f"{CRITIC}.schedule.warmup=0", f"{CRITIC}.schedule.patience=1",
        f"{CRITIC}.schedule.gamma=0.5", f"{CRITIC}.schedule.threshold=50", "trainer.log_every=1", "trainer.max_steps=8",
    )  # fmt: skip
    straight = start_run(tmp_path / "straight", *falls)
    run = tmp_path / "run"
    with pytest.raises(SystemExit, match="75"):
        start_run(run, *falls, "process.stop_at_step=4")
    assert len(values(run, "train/critic/lr")) == 4
    resume_run(run, process__stop_at_step=None)
    rates = values(run, "train/critic/lr")
    assert rates == values(straight, "train/critic/lr")
    assert rates == pytest.approx([1e-3, 1e-3, *(1e-3 * 0.5**k for k in range(1, 7))])
    assert set(values(run, "train/generator/lr")) == {1e-3}
    assert last_checkpoint(run)["schedule"]["objectives"]["critic"]["scale"] == 0.5**7
    assert_equal(last_checkpoint(run)["model"], last_checkpoint(straight)["model"])
    assert "the learning rate of critic is now 0.0005 (val/loss=" in (run / "train.log").read_text()


@pytest.mark.slow
def test_an_average_by_one_optimizer_is_evaluated(tmp_path: Path) -> None:
    """The generator's mean by ScheduleFree is in the checkpoint's average; the critic's would not be evaluated."""
    base = (*SMALL, *GAN, "trainer.max_steps=4", "trainer.save_every=1")
    folder = start_run(tmp_path / "generator", *base, "+optim@optim.objectives.generator=schedule_free")
    last = last_checkpoint(folder)
    names = last["parameter_names"]
    states = {names[number]: state for number, state in last["optimizer"]["state"].items() if "z" in state}
    assert states.keys() == last["model"].keys() == last["ema"].keys()
    for name, y in last["model"].items():
        assert torch.equal(last["ema"][name], torch.lerp(y, states[name]["z"], 1 - 1 / 0.9))
    assert last_checkpoint(start_run(tmp_path / "critic", *base, f"+optim@{CRITIC}=schedule_free"))["ema"] is None


class InTurns(Supervised):
    """Trains the first and the last layer of a model in turns."""

    __module__ = "lab.tasks.supervised"

    def objectives(self, model: Any) -> dict[str, list[Any]]:
        layers = [layer for layer in model if list(layer.parameters())]
        return {"first": layers[:1], "last": layers[-1:]}

    def train_step(self, step: int, batches: Any, optimizer_step: Any) -> Any:
        return optimizer_step(("first", "last")[step % 2], batches)

    def first_losses(self, model: Any, batch: Any) -> Any:
        return self.losses(model, batch)

    last_losses = first_losses


@pytest.mark.one_quick
@pytest.mark.parametrize("own", [(), ("optim=adamw", "+optim@optim.objectives.first=schedule_free")])
def test_an_average_has_the_weights_that_a_step_does_not_train(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own: tuple[str, ...]
) -> None:
    """Those of an optimizer that averages are its means; those of another one are the weights."""
    monkeypatch.setattr(lab.tasks.supervised, "InTurns", InTurns, raising=False)
    run = start_run(
        tmp_path, *QUICK, "task._target_=lab.tasks.supervised.InTurns", "optim=schedule_free", *own,
        "trainer.max_steps=6", "trainer.eval_every=null",
    )  # fmt: skip
    last = last_checkpoint(run)
    states = {last["parameter_names"][number]: state for number, state in last["optimizer"]["state"].items()}
    assert len([state for state in states.values() if "z" in state]) == (2 if own else 4)
    layers = dict.fromkeys(name.split(".")[0] for name in last["model"])
    for layer, objective in zip(layers, ("first", "last"), strict=True):
        for part in ("weight", "bias"):
            y, state = last["model"][f"{layer}.{part}"], states[f"{objective}.{part}"]
            wanted = torch.lerp(y, state["z"], 1 - 1 / 0.9) if "z" in state else y
            assert torch.equal(last["ema"][f"{layer}.{part}"], wanted), (layer, part)
