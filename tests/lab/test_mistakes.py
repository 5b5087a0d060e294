"""Mistakes that only the components can find: one line that names key, value and place, and nothing is left behind."""

# ruff: noqa: E501 - the lines that users see, word for word
from __future__ import annotations

import copy
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from conftest import NEEDS_GPT, QUICK, compose, start_run
from omegaconf import OmegaConf
from torch import nn

from engine.config.building import construct, constructing
from engine.errors import ConfigError, RunFailed
from lab.config import check
from lab.program import PROGRAM

ZOO = """
import torch
from torch import nn

class Net(nn.Sequential):
    def __init__(self, input_shape, num_outputs, hidden, dropout, depth=1, width=64):
        if depth == 0:
            raise ValueError("depth must not be 0")
        if depth == 2:
            raise KeyError("a bug")
        if depth == 3:
            raise MemoryError("no memory")
        if depth == 4:
            raise FileNotFoundError(2, "No such file or directory", "table.csv")
        super().__init__(nn.Flatten(), nn.Linear(width, num_outputs), nn.Dropout(dropout))

class Late(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Flatten(), nn.LazyLinear(10))

class Order:
    def __init__(self, dataset, seed):
        raise RuntimeError(f"cannot order {len(dataset)} samples")

class Nothing:
    def __init__(self, *parts, **arguments): ...

def rate(**arguments):
    return lambda step, total: "fast"

from lab.callbacks.base import Callback

class Misspelt(Callback):
    def on_stepp(self, state): ...

class Lightning(Callback):
    def on_train_epoch_end(self, trainer, module): ...

class Fewer(Callback):
    def on_eval(self, scores): ...

class Text(Callback):
    def on_log(self, state, values): values["mine"] = "text"

def listed():
    return lambda output, batch: torch.nn.functional.cross_entropy(output, batch["y"], reduction="none").tolist()

def mean():
    return lambda output, batch: torch.nn.functional.cross_entropy(output, batch["y"]).item()
"""
CRITERION = "~task.criterion.label_smoothing"


@pytest.fixture
def zoo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A module lab.models.zoo of a user's."""
    import lab.models

    (tmp_path / "package").mkdir()
    file = tmp_path / "package" / "zoo.py"
    file.write_text(ZOO)
    monkeypatch.setattr(lab.models, "__path__", [*lab.models.__path__, str(tmp_path / "package")])
    yield file
    sys.modules.pop("lab.models.zoo", None)
    vars(lab.models).pop("zoo", None)


@pytest.fixture(scope="module")
def base() -> dict[str, Any]:
    return OmegaConf.to_container(compose("data=synthetic"))  # type: ignore[return-value]


def target(path: str, **arguments: Any) -> dict[str, Any]:
    return {"_target_": path, **arguments}


LIMITS = [
    ("optim.lr", -0.1, "optim.lr: must be >= 0, got -0.1"),
    ("optim.lr", float("nan"), "optim.lr: must be >= 0, got nan"),
    ("optim.lr", float("inf"), "optim.lr: must be finite, got inf"),
    ("optim.weight_decay", -1, "optim.weight_decay: must be >= 0, got -1"),
    ("optim.betas", [0.9, 1.5], "optim.betas[1]: must be < 1, got 1.5"),
    ("optim.schedule.warmup", 2, "optim.schedule.warmup: must be <= 1, got 2"),
    ("optim.schedule.warmup", -0.1, "optim.schedule.warmup: must be >= 0, got -0.1"),
    ("optim.schedule.final", -1, "optim.schedule.final: must be >= 0, got -1"),
    ("model.dropout", 1.5, "model.dropout: must be <= 1, got 1.5"),
    ("model.hidden", [8, 0], "model.hidden[1]: must be >= 1, got 0"),
    ("model.num_outputs", 0, "model.num_outputs: must be >= 1, got 0"),
    ("model.input_shape", [3, 0], "model.input_shape[1]: must be >= 1, got 0"),
    ("task.criterion.label_smoothing", 1.5, "task.criterion.label_smoothing: must be <= 1, got 1.5"),
    ("data.shape", [3, -1], "data.shape[1]: must be >= 1, got -1"),
    ("data.size", 0, "data.size: must be >= 1, got 0"),
    ("seed", 2**32, "seed: must be < 4,294,967,296, got 4294967296"),
    ("model", target("lab.models.resnet.ResNet", input_shape=[3, 8, 8], num_outputs=2, width=0, blocks=[1], dropout=0.0), "model.width: must be >= 1, got 0"),
    pytest.param("model", target("lab.models.gpt.GPT", input_shape=[8], num_outputs=2, width=8, heads=0, layers=1, dropout=0.0), "model.heads: must be >= 1, got 0", marks=NEEDS_GPT),
    pytest.param("model", target("lab.models.gpt.GPT", input_shape=[8], num_outputs=2, width=8, heads=1, layers=0, dropout=0.0), "model.layers: must be >= 1, got 0", marks=NEEDS_GPT),
    ("optim.schedule", target("lab.schedules.step.Step", warmup=0.0, milestones=[0.5, 3], gamma=0.1), "optim.schedule.milestones[1]: must be <= 1, got 3"),
    ("optim.schedule", target("lab.schedules.step.Step", warmup=0.0, milestones=[0.5], gamma=-1), "optim.schedule.gamma: must be > 0, got -1"),
    ("data.order", target("engine.data.order.first", _partial_=True, count=0), "data.order.count: must be >= 1, got 0"),
    ("data.order", target("engine.data.windows.chunk_windows", _partial_=True, window=0, batch_size=2, chunk_rows=None), "data.order.window: must be >= 1, got 0"),
    ("data.order", target("engine.data.windows.chunk_windows", _partial_=True, window=1, batch_size=2, chunk_rows=0), "data.order.chunk_rows: must be >= 1, got 0"),
    ("data.order", target("engine.data.sampling.length_buckets", _partial_=True, field="x", batch_size=0, jitter=0.1), "data.order.batch_size: must be >= 1, got 0"),
    ("data.order", target("engine.data.sampling.length_buckets", _partial_=True, field="x", batch_size=1, jitter=-0.1), "data.order.jitter: must be >= 0, got -0.1"),
    ("data.transforms.a", target("lab.transforms.fields.RandomCrop", field="x", size=[0, 3], padding=4, seed=0), "data.transforms.a.size[0]: must be >= 1, got 0"),
    ("data.transforms.a", target("lab.transforms.fields.RandomCrop", field="x", size=[3, 3], padding=-4, seed=0), "data.transforms.a.padding: must be >= 0, got -4"),
    ("data.transforms.a", target("lab.transforms.fields.RandomCrop", field="x", size=[3, 3], padding=4, seed=0, padding_mode="zeros"), "data.transforms.a.padding_mode: expected one of constant, reflect, got 'zeros'"),
    ("data.transforms.a", target("lab.transforms.fields.Cutout", field="x", size=0, value=0.0, seed=0), "data.transforms.a.size: must be >= 1, got 0"),
    ("data.transforms.a", target("lab.transforms.fields.RandomErase", field="x", probability=2, area=[0.1, 0.2], ratio=[1, 2], value=0.0, seed=0), "data.transforms.a.probability: must be <= 1, got 2"),
    ("data.transforms.a", target("lab.transforms.fields.Normalize", field="x", mean=[0.5], std=[0.0]), "data.transforms.a.std[0]: must be > 0, got 0.0"),
    ("data.transforms.a", target("lab.transforms.mixup.Mixup", field="x", target="y", num_classes=2, alpha=0, seed=0), "data.transforms.a.alpha: must be > 0, got 0"),
    ("trainer.clip_norm", -1, "trainer.clip_norm: must be > 0, got -1"),
    ("trainer.ema_decay", 1.5, "trainer.ema_decay: must be < 1, got 1.5"),
    ("hardware.micro_batch_size", 0, "hardware.micro_batch_size: must be >= 1, got 0"),
    ("data.num_workers", -1, "data.num_workers: must be >= 0, got -1"),
]  # fmt: skip
CANNOT_WORK = [
    ("optim.schedule", target("torch.optim.lr_scheduler.ReduceLROnPlateau"), "optim.schedule._target_: torch.optim.lr_scheduler.ReduceLROnPlateau moves an optimizer itself; a schedule here is a class called with (step, total_steps)"),
    ("task.criterion", target("torch.nn.CrossEntropyLoss"), "task.criterion._target_: torch.nn.CrossEntropyLoss is called with (output, target); here it would be called with (output, batch)"),
    ("task.metrics.f1", target("torch.nn.L1Loss"), "task.metrics.f1._target_: torch.nn.L1Loss is called with (output, target)"),
    ("optim._partial_", False, "optim._partial_: must be true - the run adds params itself"),
    ("data.order._partial_", False, "data.order._partial_: must be true - the run adds dataset and seed itself"),
]  # fmt: skip


@pytest.mark.one_quick
@pytest.mark.parametrize(("key", "value", "line"), [*LIMITS, *CANNOT_WORK])
def test_a_value_out_of_range_is_refused_before_anything_is_built(
    base: dict[str, Any], key: str, value: Any, line: str
) -> None:
    cfg = OmegaConf.create(copy.deepcopy(base))
    OmegaConf.update(cfg, key, value, merge=False, force_add=True)
    with pytest.raises(ConfigError) as error:
        check(cfg)
    assert str(error.value).startswith(line)
    assert "\n" not in str(error.value)


def test_every_argument_that_must_be_a_size_says_so(base: dict[str, Any]) -> None:
    """What the yamls give as a whole number of something may not be negative."""
    free = {"seed"}  # of the synthetic data: any number
    for name, node in (("model", base["model"]), ("data", base["data"])):
        for argument, value in node.items():
            if isinstance(value, int) and not isinstance(value, bool) and argument not in free:
                cfg = OmegaConf.create(copy.deepcopy(base))
                OmegaConf.update(cfg, f"{name}.{argument}", -1)
                with pytest.raises(ConfigError, match=rf"{name}\.{argument}: must be >= "):
                    check(cfg)


@pytest.mark.parametrize(
    ("name", "arguments", "line"),
    [
        ("RandomFlip", {"dim": 0, "seed": 0}, "data.transforms.a.dim=0: {target} cannot be built: dim must not be 0"),
        ("RandomCrop", {"size": [3], "padding": 0, "seed": 0}, "data.transforms.a.size=[3]: {target} cannot be built: size must be"),
        ("Normalize", {"mean": [], "std": []}, "data.transforms: Normalize needs as many std"),
    ],
)  # fmt: skip
def test_transforms_refuse_what_they_cannot_do(name: str, arguments: dict[str, Any], line: str) -> None:
    path = f"lab.transforms.fields.{name}"
    with pytest.raises(ConfigError) as error:
        construct(PROGRAM, "data.transforms.a", target(path, field="x", **arguments))
    assert str(error.value).startswith(line.format(target=path))


@pytest.mark.one_quick
@pytest.mark.parametrize(
    ("override", "line"),
    [
        ("data.path=3", "data.path=3: expected a file, a pattern or a list of files"),
        ("data.splits=null", "data.splits=None: expected a mapping, such as {train: {group: train}, val: null}"),
        ("data.splits.train=3", "data.splits.train=3: expected a mapping, such as {group: train}, or null"),
        (
            "data.splits.train.rows=[a,b]",
            "data.splits.train.rows=['a', 'b']: must be two shares, such as [0, 0.9], or null",
        ),
        ("data.fields=null", "data.fields=None: expected a mapping, such as {x: image, y: label}"),
        ("data.fields.x=3", "data.fields.x: expected the name of a dataset, got 3"),
    ],
)
def test_where_the_data_is_said_to_be_must_be_of_the_right_kind(override: str, line: str) -> None:
    with pytest.raises(ConfigError) as error:
        compose(override)
    assert str(error.value).endswith(line)  # after the key that needs the file


@pytest.mark.parametrize(
    ("depth", "line"),
    [
        (0, "model.depth=0: lab.models.zoo.Net cannot be built: depth must not be 0 (ValueError, {zoo}, line 8; LAB_TRACEBACK=1 has more)"),
        (2, "model: lab.models.zoo.Net cannot be built with input_shape=[1], num_outputs=1, hidden=[], dropout=0.0, depth=2: 'a bug' (KeyError, {zoo}, line 10; LAB_TRACEBACK=1 has more)"),
        (4, "model: lab.models.zoo.Net cannot be built with input_shape=[1], num_outputs=1, hidden=[], dropout=0.0, depth=4: [Errno 2] No such file or directory: 'table.csv' (FileNotFoundError, {zoo}, line 14; LAB_TRACEBACK=1 has more)"),
    ],
)  # fmt: skip
def test_what_a_class_raises_names_the_key_the_values_and_the_line_of_the_users_file(
    zoo: Path, depth: int, line: str
) -> None:
    node = target("lab.models.zoo.Net", input_shape=[1], num_outputs=1, hidden=[], dropout=0.0, depth=depth)
    with pytest.raises(ConfigError) as error:
        construct(PROGRAM, "model", node, nn.Module)
    assert str(error.value) == line.format(zoo=zoo)
    assert isinstance(error.value.__cause__, Exception)  # LAB_TRACEBACK shows it


def test_a_library_that_refuses_an_argument_is_named_by_the_line_of_the_user_that_gave_it(zoo: Path) -> None:
    with pytest.raises(ConfigError) as error:
        construct(
            PROGRAM,
            "model",
            target("lab.models.zoo.Net", input_shape=[1], num_outputs=1, hidden=[], dropout=7.0),
            nn.Module,
        )
    assert str(error.value).startswith(
        "model.dropout=7.0: lab.models.zoo.Net cannot be built: dropout probability has to be"
    )
    assert f"{zoo}, line 15" in str(error.value)
    optimizer = target("torch.optim.Adam", lr=1, amsgrad=2)
    line = r"optim: torch.optim.Adam cannot be built with lr=1, amsgrad=2: Invalid beta .*adam.py, line"
    with pytest.raises(ConfigError, match=line), constructing(PROGRAM, "optim", optimizer):
        torch.optim.Adam([torch.zeros(1)], lr=1, betas=(2, 2))


def test_a_machine_without_memory_is_no_mistake_of_the_config_and_errors_that_name_their_key_stay(zoo: Path) -> None:
    with pytest.raises(MemoryError):
        construct(
            PROGRAM, "model", target("lab.models.zoo.Net", input_shape=[], num_outputs=1, hidden=[], dropout=0, depth=3)
        )
    for error in (ConfigError("data.x: wrong"), RunFailed("not finite")):
        with pytest.raises(type(error), match=str(error)), constructing(PROGRAM, "data", {}):
            raise error


@pytest.mark.parametrize(
    ("key", "kind", "line"),
    [
        ("model", nn.Module, "model._target_: expected a torch.nn.modules.module.Module, and lab.models.zoo.Nothing gives a Nothing"),
        ("data.transforms.a", None, "data.transforms.a._target_: expected something to be called, and lab.models.zoo.Nothing gives a Nothing"),
    ],
)  # fmt: skip
def test_a_target_of_another_kind_is_named(zoo: Path, key: str, kind: type | None, line: str) -> None:
    with pytest.raises(ConfigError) as error:
        construct(PROGRAM, key, target("lab.models.zoo.Nothing"), kind)
    assert str(error.value) == line


AT_BUILDING = [
    (["model._target_=lab.models.zoo.Net", "+model.depth=0"], "model.depth=0: lab.models.zoo.Net cannot be built: depth must"),
    (["~model.input_shape", "~model.num_outputs", "~model.hidden", "~model.dropout", "model._target_=lab.models.zoo.Late"], "model: net.1.weight has no size before the first batch, as a lazy module's"),
    (["data.order._target_=lab.models.zoo.Order"], "data.order: lab.models.zoo.Order cannot be built: cannot order 1297 samples"),
    (["optim.schedule._target_=lab.models.zoo.rate"], "optim.schedule: lab.models.zoo.rate cannot be built with warmup="),
    (["optim.schedule._target_=lab.models.zoo.Nothing"], "optim.schedule._target_: expected something to be called"),
    (["+callback.a._target_=lab.models.zoo.Nothing"], "callback.a._target_: expected a lab.callbacks.base.Callback"),
    (["+callback.a._target_=lab.models.zoo.Misspelt"], "callback.a: Misspelt.on_stepp would never be called - did you mean on_step? (called are: before_step, on_end"),
    (["+callback.a._target_=lab.models.zoo.Lightning"], "callback.a: Lightning.on_train_epoch_end would never be called (called are: "),
    (["+callback.a._target_=lab.models.zoo.Fewer"], "callback.a: Fewer.on_eval must take (state, scores), got (self, scores)"),
    (["+callback.a._target_=lab.models.zoo.Text"], "log('mine'): expected a number, got str"),
    (["+callback._target_=lab.models.zoo.Text"], "callback: its entries have names, such as callback.x: {_target_: ...}"),
    (["task.criterion._target_=lab.models.zoo.Nothing", CRITERION], "task.criterion: Nothing cannot be called: give it __call__(output, batch)"),
    (["task.criterion._target_=lab.models.zoo.listed", CRITERION], "task.criterion: must return one value a sample, (B,) = (64,), but returned a list"),
    (["task.criterion._target_=lab.models.zoo.mean", CRITERION], "task.criterion: must return one value a sample, (B,) = (64,), but returned a float"),
    (["data.splits.val.group=valid"], "data.splits.val.group: "),
    (["optim._target_=lab.models.zoo.Nothing"], "optim._target_: expected a torch.optim.optimizer.Optimizer, and lab.models.zoo.Nothing gives a Nothing"),
    (["~data.order", "+data.order={_target_: engine.data.order.first, _partial_: true, count: 9999}"], "data.order.count=9999 must be between 1 and the 1297"),
    (["data.splits.train=null"], "data.splits.train=null: there is nothing to train on"),
    (["data.splits.train.rows=[0,2]"], "data.splits.train.rows=[0, 2]: must be two shares"),
    (["+data.transforms.a={_target_: lab.transforms.fields.Cutout, field: y, size: 3, value: 0.0, seed: 0}"], "data.transforms: Cutout takes images, (B, C, H, W), and field='y' is (64,)"),
    (["+data.transforms.a={_target_: lab.transforms.fields.RandomFlip, field: x, dim: 9, seed: 0}"], "data.transforms: RandomFlip.dim=9: the batch has"),
    (["+data.transforms.a={_target_: lab.datasets.tokens.NextToken, field: z}"], "data.transforms: NextToken.field='z'; the batch has"),
    (["model.input_shape=[3]"], "MLP was built for samples of shape (3,) and got (1, 8, 8)"),
]  # fmt: skip


@pytest.mark.one_quick
@pytest.mark.parametrize(("overrides", "line"), AT_BUILDING)
def test_a_run_that_cannot_be_built_leaves_nothing(
    zoo: Path, tmp_path: Path, overrides: list[str], line: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ConfigError) as error:
        start_run(tmp_path / "runs" / "a", *QUICK, "trainer.max_steps=2", *overrides)
    assert str(error.value).startswith(line)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "runs" / "a").exists()
    assert "Traceback" not in capfd.readouterr().err


def test_a_score_that_is_never_finite_and_a_split_of_another_shape_are_said(
    zoo: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    zoo.write_text(f"{ZOO}\ndef lost():\n    return lambda output, batch: output[:, 0] * float('nan')\n")
    with h5py.File(tmp_path / "unlike.h5", "w") as file:
        for split, side in (("train", 8), ("val", 10)):
            file[f"{split}/image"] = np.random.default_rng(0).random((40, 1, side, side), np.float32)
            file[f"{split}/label"] = np.arange(40) % 10
    own = (f"data.path={tmp_path}/unlike.h5", "data.splits.test=null", "model=resnet", "model.width=4")
    quick = [override for override in QUICK if not override.startswith("model.")]
    monitor = ("+task.metrics.lost._target_=lab.models.zoo.lost", "monitor.key=val/lost")
    start_run(tmp_path / "run", *quick, "trainer.max_steps=2", *own, *monitor)
    said = capfd.readouterr().err
    assert "x of val: (1, 10, 10) float32, unlike that of train, (1, 8, 8) float32\n" in said
    assert "monitor.key=val/lost: was not finite in any evaluation, so no weights are the best" in said


@pytest.mark.slow
def test_ranks_that_cannot_be_built_leave_only_what_was_there_before(zoo: Path, tmp_path: Path) -> None:
    (tmp_path / "a" / "notes").mkdir(parents=True)
    (tmp_path / "a" / "notes" / "mine.txt").write_text("mine")
    bad = ["model._target_=lab.models.zoo.Net", "+model.depth=0", "trainer=ddp", "hardware.num_procs=2"]
    with pytest.raises(ConfigError, match=r"model.depth=0"):
        start_run(tmp_path / "a", *QUICK, "trainer.max_steps=2", *bad)
    assert [p.relative_to(tmp_path / "a").as_posix() for p in (tmp_path / "a").rglob("*")] == [
        "notes",
        "notes/mine.txt",
    ]


@pytest.mark.slow
def test_a_mistake_found_after_a_checkpoint_leaves_the_run(zoo: Path, tmp_path: Path, monkeypatch: Any) -> None:
    """What was trained is worth more than a clean folder."""
    import lab.run

    def scores(*_: Any) -> Any:
        raise ConfigError("task.metrics.accuracy: wrong")

    monkeypatch.setattr(lab.run, "final_scores", scores)
    with pytest.raises(ConfigError, match=r"task\.metrics\.accuracy: wrong"):
        start_run(tmp_path / "a", *QUICK, "trainer.max_steps=2")
    assert list((tmp_path / "a" / "checkpoints").iterdir())
