"""Fine-tuning: which weights come from elsewhere, what stays as it is, and that all else goes on as in any run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from common import QUICK, needs
from shipped import Shipped
from torch import nn

from lab.config import Config
from lab.losses.cross_entropy import CrossEntropy
from lab.model_io import make_model
from lab.restore import score_checkpoint
from lab.tasks.finetune import Finetune
from samebits.checkpoints import eval_state_dict, export, find_checkpoint
from samebits.errors import ConfigError
from samebits.testing import assert_equal, compose, last_checkpoint, result, start_run

pytestmark = needs("conf/task/finetune.yaml", "src/lab/tasks/finetune.py")
NET = (*(o for o in QUICK if not o.startswith("model.")), "model=resnet", "model.width=4", "model.blocks=[1,1]")


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with a head of twelve outputs."""
    run = tmp_path_factory.mktemp("pretrained") / "run"
    return start_run(run, *NET, "model.num_outputs=12", "trainer.max_steps=3", "optim.lr=0.01")


def task(weights: Path | str, rename: Any = None, frozen: Any = ()) -> Finetune:
    return Finetune(CrossEntropy(0.0), {}, str(weights), rename or {}, frozen)


def small(outputs: int = 3) -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, outputs))


# -- which weights


@pytest.mark.slow
def test_weights_come_from_a_run_a_checkpoint_or_a_state_dict(pretrained: Path, tmp_path: Path) -> None:
    """And the head, of another size, is the run's own; what happened is said. A relative path counts from where the
    command starts."""
    cfg = compose(*NET, "task=finetune", "task.weights=some/run", "trainer.max_steps=1")
    assert cfg.task.weights == str(Path.cwd() / "some/run")
    file = find_checkpoint(pretrained)[0]
    theirs = last_checkpoint(pretrained)["model"]
    torch.save(theirs, tmp_path / "plain.pt")
    torch.save(theirs, tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    torch.save({"state_dict": theirs, "epoch": 3}, tmp_path / "nested.pt")
    export(pretrained, tmp_path / "export.pt", overwrite=False)
    config = Config.of(compose(*NET, "trainer.max_steps=1"))
    for source in (pretrained, file, *(tmp_path / f"{name}.pt" for name in ("plain", "old", "nested", "export"))):
        model = make_model(config)
        head = model.head.weight.clone()  # type: ignore[union-attr, operator]
        line = task(source).initialize(model, iter(()))
        assert line is not None
        assert line.splitlines()[0].startswith("36 of the model's 38 weights and buffers were loaded from ")
        assert line.splitlines()[1:] == [
            "  of another shape: head.weight (12, 8), here (10, 8), head.bias (12,), here (10,)"
        ]
        own = model.state_dict()
        assert_equal({k: own[k] for k in own if k[:4] != "head"}, {k: theirs[k] for k in own if k[:4] != "head"})
        assert torch.equal(own["head.weight"], head)


def test_frozen_weights_that_are_not_loaded_are_named(tmp_path: Path) -> None:
    """They stay random: by task.freeze, or because the model froze them."""
    theirs, own = small(), small()
    names = [name for name, _ in own.named_parameters()]
    torch.save({k: v for k, v in theirs.state_dict().items() if k not in names[:2]}, tmp_path / "w.pt")
    found = task(tmp_path / "w.pt", frozen=["^" + re.escape(names[0])])
    assert f"\n  frozen, but not loaded: {names[0]} - if " in str(found.initialize(own, iter(())))
    own.requires_grad_(False)
    assert f"\n  frozen, but not loaded: {names[0]}, {names[1]} - if " in str(
        task(tmp_path / "w.pt").initialize(own, iter(()))
    )
    assert "frozen, but" not in str(task(tmp_path / "w.pt").initialize(small(), iter(())))


def test_names_are_mapped(tmp_path: Path) -> None:
    """One pattern after the other; what becomes empty is left out, though its shape would fit."""
    theirs = small()
    torch.save({f"module.net.{name}": value for name, value in theirs.state_dict().items()}, tmp_path / "w.pt")
    model = small()
    head = model[2].weight.clone()
    method = task(tmp_path / "w.pt", {r"^module\.": "", r"^net\.2\..*": "", r"^net\.(\d)": r"\1"})
    line = method.initialize(model, iter(()))
    assert line is not None
    assert line.splitlines()[0].startswith("7 of the model's 9 weights")
    assert line.splitlines()[1:] == ["  not in the file: 2.weight, 2.bias"]
    assert torch.equal(model[0].weight, theirs[0].weight)
    assert torch.equal(model[2].weight, head)
    for rename, line in (
        ({}, r"w\.pt: no weight in it fits .* - .*task\.rename"),
        ({"nothing": ""}, r"^task\.rename: no name contains 'nothing'; names are module\.net\.0\.weight, "),
        ({"weight": "bias"}, r"^task\.rename: two weights of .*w\.pt would get the name 'module\.net\.0\.bias'"),
    ):
        with pytest.raises(ConfigError, match=line):
            task(tmp_path / "w.pt", rename).initialize(small(), iter(()))


# -- what stays


def test_what_is_frozen_is_in_eval_mode_while_the_rest_trains() -> None:
    model = nn.Sequential(small(), nn.BatchNorm1d(3), nn.Dropout(0.5), nn.Linear(3, 2))
    one = task("unused", frozen=[r"^0\.[01]\."])
    one.setup(model)
    assert [name for name, p in model.named_parameters() if not p.requires_grad] == [
        "0.0.weight", "0.0.bias", "0.1.weight", "0.1.bias",
    ]  # fmt: skip
    model.train(), one.train()
    assert [name for name, module in model.named_modules() if not module.training] == ["0.1"]
    model[0][1] = nn.SyncBatchNorm(4)  # as trainer.sync_batchnorm does later  # type: ignore[index, operator]
    model.train(), one.train()
    assert not model[0][1].training  # type: ignore[index]
    model.eval(), one.eval()
    assert not any(module.training for module in model.modules())


@pytest.mark.slow
def test_mistakes_in_patterns_are_one_line(pretrained: Path) -> None:
    for frozen, line in (
        (["("], r"^task\.freeze: '\(' is not a regular expression: missing \)"),
        ([r"^2\.", "nope"], r"^task\.freeze: no name contains 'nope'; names are 0\.weight, .* and 5 more$"),
        (["."], r"^task\.freeze: freezes all parameters of Sequential, so there is nothing to train$"),
    ):
        with pytest.raises(ConfigError, match=line):
            task(pretrained, frozen=frozen).setup(small())
    with pytest.raises(ConfigError, match=r"^task\.weights: is missing \(\?\?\?\)"):
        compose(*NET, "task=finetune")
    for factors, line in (
        (r"\(: 1", r"^optim\.lr_factors: '\(' is not a regular expression: "),
        ("x: fast", r"^optim\.lr_factors: x: expected a factor of the learning rate, got 'fast'"),
        ("x: -1", r"^optim\.lr_factors: x: expected a factor of the learning rate, got -1"),
    ):
        with pytest.raises(ConfigError, match=line):
            compose(*NET, f"+optim.lr_factors={{{factors}}}", "trainer.max_steps=1")


class TestFinetune(Shipped):
    """Frozen BatchNorm uses its saved statistics, so this model's steps do not depend on the shares of the batch."""

    @pytest.fixture
    def run(self, pretrained: Path) -> tuple[str, ...]:
        return (*NET, "task=finetune", f"task.weights={pretrained}", 'task.freeze=["^stem","^stages"]')


@pytest.mark.slow
@pytest.mark.parametrize("more", [("hardware.precision=bf16",), ("trainer=fsdp", "hardware.num_procs=2")])
def test_frozen_parts_stay_bit_for_bit(pretrained: Path, tmp_path: Path, more: tuple[str, ...]) -> None:
    """Parameters, buffers and their moving average; a run goes on, and is scored, without the file."""
    theirs = eval_state_dict(find_checkpoint(pretrained)[1])
    weights = tmp_path / "weights.pt"
    torch.save(theirs, weights)
    overrides = (
        *NET, "task=finetune", f"task.weights={weights}", 'task.freeze=["^stem","^stages.0"]', "trainer.ema_decay=0.5",
        *more,
    )  # fmt: skip
    run = start_run(tmp_path / "run", *overrides, "trainer.max_steps=3")
    assert "of another shape: head.weight (12, 8), here (10, 8)" in (run / "train.log").read_text()
    weights.unlink()
    start_run(run, *overrides, "trainer.max_steps=4")
    payload = find_checkpoint(run)[1]
    assert payload["step"] == 4
    for part in ("model", "ema"):
        for name, value in payload[part].items():
            same = name[:4] != "head" and torch.equal(value, theirs[name])
            assert same == name.startswith(("stem", "stages.0")), (part, name)
    scores = score_checkpoint(run, "test", [])
    assert scores["loss"] == pytest.approx(result(run)["test/loss"], rel=1e-5)
