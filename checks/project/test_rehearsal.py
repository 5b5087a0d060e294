"""A new run tries one validation batch before its first step: mistakes come at once, and bits stay."""

# ruff: noqa: E501 - the lines that users see, word for word
from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from common import QUICK

import lab.rehearsal
import lab.run
from samebits.errors import ConfigError, RunFailed
from samebits.status import read_status
from samebits.testing import assert_equal, last_checkpoint, resume_run, start_run, values, without_code_generator

OWN = """
import random
import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy, one_hot
from lab.callbacks.base import Callback
from lab.tasks.supervised import Supervised

class Drawing(nn.Module):
    '''Dropout, BatchNorm, a buffer that every forward changes, random numbers of all kinds in evaluations too.'''
    def __init__(self, input_shape, num_outputs):
        super().__init__()
        self.net = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.BatchNorm1d(16), nn.Dropout(0.5), nn.Linear(16, num_outputs))
        self.register_buffer("calls", torch.zeros(()))
        self.own, self.numbers = torch.Generator().manual_seed(1), np.random.default_rng(1)
        self.seen, self.count = [], 0

    def forward(self, x):
        self.calls += 1
        self.count += 1
        self.seen.append(self.count)
        noise = torch.randn(()) + random.random() + np.random.rand() + torch.rand((), generator=self.own)
        return self.net(x) * (1 + 0.01 * (noise + self.numbers.random() + self.calls + self.count + len(self.seen)))

class Wrong(nn.Module):
    def __init__(self, input_shape, num_outputs, how):
        super().__init__()
        self.first, self.how, self.parts = nn.Linear(64, 16), how, (k for k in how) if how == "uncopied" else None
        self.last = nn.Linear(32 if how == "size" else 16, num_outputs)

    def forward(self, x):
        h = self.first(x.flatten(1))
        if self.how == "numpy":
            h = torch.from_numpy(np.asarray(h.numpy()))
        grown = lambda: setattr(self, "more", nn.Linear(16, 16)) or self.more(h)
        return self.last({"array": lambda: h.detach().numpy(), "list": lambda: [h], "inplace": lambda: h.exp().add_(1), "grown": grown}.get(self.how, lambda: h)())

class Predicts(Supervised):
    def predict(self, model, batch):
        return [batch["nothing"]]

class Crops(Supervised):
    def losses(self, model, batch):
        output = model(batch["x"])
        return self.criterion(output, batch), output

    def predict(self, model, batch):
        return model(batch["x"][:, :, 4:])

class Shows(Supervised):
    def show(self, output, batch, count):
        return {"val/x": batch["picture"]}

class Tried(Callback):
    def on_rehearsal(self, output, batch):
        raise ZeroDivisionError("in a callback")

def mean():
    return lambda output, batch: cross_entropy(output, batch["y"])

def nothing():
    return lambda output, batch: None

def number():
    return lambda output, batch: 0.5

def missing():
    def metric(output, batch):
        return batch["label"]
    return metric

def full():
    def metric(output, batch):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")
    return metric

class Text:
    def reset(self): ...
    def update(self, output, batch): ...
    def compute(self, world):
        return "good"

class Late:
    '''Needs more than one batch.'''
    def reset(self):
        self.count = 0
    def update(self, output, batch):
        self.count += len(output)
    def compute(self, world):
        if self.count < 100:
            raise ValueError("too few samples")
        return float(self.count)

class Writes(Late):
    def compute(self, world):
        return float(self.count)
    def write(self, path):
        path.write_text(self.table)

class NoReset:
    def update(self, output, batch): ...
    def compute(self, world): ...

class NoUpdate:
    def reset(self): ...
    def compute(self, world): ...

class NoWorld:
    def reset(self): ...
    def update(self, output, batch): ...
    def compute(self): ...
"""
METRIC = "+task.metrics.own={{_target_: lab.models.own.{}}}"
OTHER_MODEL = ("~model.hidden", "~model.dropout")


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A module lab.models.own of a user's."""
    import lab.models

    (tmp_path / "package").mkdir()
    file = tmp_path / "package" / "own.py"
    file.write_text(OWN)
    monkeypatch.setattr(lab.models, "__path__", [*lab.models.__path__, str(tmp_path / "package")])
    yield file
    sys.modules.pop("lab.models.own", None)
    vars(lab.models).pop("own", None)


MISTAKES = {
    "a mean": ((METRIC.format("mean"),), "task.metrics.own: must return one value per sample"),
    "None": ((METRIC.format("nothing"),), "task.metrics.own: must return one value per sample"),
    "a number": ((METRIC.format("number"),), "task.metrics.own: must return one value per sample"),
    "a field that is missing": ((METRIC.format("missing"),), "task.metrics.own: KeyError: 'label' ({own}, line "),
    "a score that is a text": ((METRIC.format("Text"),), "task.metrics.own: compute returned a str: return a number, a tensor or a mapping"),
    "no reset": ((METRIC.format("NoReset"),), "task.metrics.own: AttributeError: 'NoReset' object has no attribute 'reset' ("),
    "no update": ((METRIC.format("NoUpdate"),), "task.metrics.own: AttributeError: 'NoUpdate' object has no attribute 'update' ("),
    "a compute without world": ((METRIC.format("NoWorld"),), "task.metrics.own: TypeError: NoWorld.compute() takes 1 positional argument but 2 were given ("),
    "predict": (("task._target_=lab.models.own.Predicts",), "the batch has no field 'nothing', only ['x', 'y']"),
    "predict, not losses": (("task._target_=lab.models.own.Crops",), "task (Crops.predict): MLP was built for samples of shape (1, 8, 8) but got (1, 4, 8)"),
    "show": (("task._target_=lab.models.own.Shows", "callback=pictures"), "callback (Pictures): KeyError: 'picture' ({own}, line "),
    "a callback": (("+callback.own._target_=lab.models.own.Tried",), "callback (Tried): ZeroDivisionError: in a callback ({own}, line "),
    "a size": (("model._target_=lab.models.own.Wrong", "+model.how=size", *OTHER_MODEL), "model: RuntimeError: mat1 and mat2 shapes cannot be multiplied (64x16 and 32x10) ({own}, line 37); in last, Linear(in_features=32, out_features=10, bias=True): input (64, 16) float32; the batch has x (64, 1, 8, 8) float32, y (64,) int64 ("),
    "an array": (("model._target_=lab.models.own.Wrong", "+model.how=array", *OTHER_MODEL), "model: TypeError: linear(): argument 'input' (position 1) must be Tensor, not numpy.ndarray ({own}, line 37); in last, Linear(in_features=16, out_features=10, bias=True): input ndarray (64, 16) float32; the batch has x ("),
    "a list": (("model._target_=lab.models.own.Wrong", "+model.how=list", *OTHER_MODEL), "model: TypeError: linear(): argument 'input' (position 1) must be Tensor, not list ({own}, line 37); in last, Linear(in_features=16, out_features=10, bias=True): input list; the batch has x ("),
    "a layer of forward": (("model._target_=lab.models.own.Wrong", "+model.how=grown", *OTHER_MODEL), "model: Wrong creates the parameter more.weight in `forward`, so it would be neither trained nor loaded: create it in __init__"),
    "a layer of forward, not evaluated": (("model._target_=lab.models.own.Wrong", "+model.how=grown", *OTHER_MODEL, "trainer.eval_every=null"), "model: Wrong creates the parameter more.weight in `forward`, so it would be neither trained nor loaded: create it in __init__"),
    "a copy": (("model._target_=lab.models.own.Wrong", "+model.how=uncopied", *OTHER_MODEL, "trainer.ema_decay=0.9"), "model: Wrong cannot be copied for the weight average (TypeError: cannot pickle 'generator' object): create the part that cannot"),
    "a size, not evaluated": (("model._target_=lab.models.own.Wrong", "+model.how=size", *OTHER_MODEL, "trainer.eval_every=null"), "model: RuntimeError: mat1 and mat2 shapes cannot be multiplied"),
    "an in-place operation": (("model._target_=lab.models.own.Wrong", "+model.how=inplace", *OTHER_MODEL), "RuntimeError: one of the variables needed for gradient computation has been modified by an inplace operation: [torch.FloatTensor [64, 16]], which is output 0 of Exp, is at version 1; expected version 0 instead. Hint: enable anomaly detection to find the operation that failed to compute its gradient, with debug=anomaly. ("),
    "numpy, not evaluated": (("model._target_=lab.models.own.Wrong", "+model.how=numpy", *OTHER_MODEL, "trainer.eval_every=null"), "model: RuntimeError: Can't call numpy() on Tensor that requires grad. Use tensor.detach().numpy() instead. ({own}, line 35); in the model, Wrong(): x (64, 1, 8, 8) float32, h (64, 16) float32; the batch"),
}  # fmt: skip


@pytest.mark.one_quick(3)
@pytest.mark.parametrize(("overrides", "line"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_in_an_evaluation_ends_the_run_before_its_first_step(
    own: Path, tmp_path: Path, overrides: tuple[str, ...], line: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ConfigError) as error:
        start_run(tmp_path / "runs" / "a", *QUICK, "trainer.max_steps=200", "trainer.eval_every=150", *overrides)
    assert str(error.value).startswith(line.format(own=own)), str(error.value)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "runs" / "a").exists()
    assert "Traceback" not in capfd.readouterr().err


def test_a_metric_that_needs_more_than_a_batch_is_no_mistake(
    own: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run = start_run(tmp_path / "a", *QUICK, "trainer.max_steps=2", METRIC.format("Late"))
    line = "task.metrics.own: compute raised for one validation batch, which may be too small for it (ValueError: too"
    assert line in capfd.readouterr().err
    assert values(run, "val/own")[-1] > 100


@pytest.mark.parametrize(
    ("metric", "line"),
    [
        ("full", r"out of memory \(evaluating, before the first step; .*hardware\.eval_batch_size=32"),
        ("Writes", r"^task\.metrics\.own: AttributeError: 'Writes' object has no attribute 'table' \("),
    ],
)
def test_a_failure_of_a_metric_names_its_key(own: Path, tmp_path: Path, metric: str, line: str) -> None:
    with pytest.raises(RunFailed, match=line):
        start_run(tmp_path / "a", *QUICK, "trainer.max_steps=2", METRIC.format(metric))


def test_a_resume_and_a_run_without_evaluations_have_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[int] = []
    monkeypatch.setattr(lab.run, "rehearse", lambda state, vals, run: called.append(state.step))
    with pytest.raises(SystemExit, match="75"):
        start_run(tmp_path / "a", *QUICK, "trainer.max_steps=4", "process.stop_at_step=2")
    resume_run(tmp_path / "a", process__stop_at_step=None)
    start_run(tmp_path / "b", *QUICK, "trainer.max_steps=2", "trainer.eval_every=null")
    assert called == [0]


BITS = {
    "draws": ("model._target_=lab.models.own.Drawing", *OTHER_MODEL),
    "draws, averaged": ("model._target_=lab.models.own.Drawing", *OTHER_MODEL, "trainer.ema_decay=0.9"),
    "draws, 2 ranks": ("model._target_=lab.models.own.Drawing", *OTHER_MODEL, "trainer=ddp", "hardware.num_procs=2"),
    "pictures": ("model.dropout=0.3", "callback=pictures"),
    "workers": ("data=synthetic", "data.loader=workers", "data.num_workers=1", "model.dropout=0.3"),
}


@pytest.mark.one_quick
@pytest.mark.parametrize("case", BITS)
def test_a_rehearsal_changes_no_bit(own: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str) -> None:
    common = (*QUICK, "trainer.max_steps=6", "trainer.eval_every=3", "trainer.log_every=1", *BITS[case])
    called = []
    real = lab.rehearsal.evaluate
    monkeypatch.setattr(lab.rehearsal, "evaluate", lambda *a, **k: called.append(1) or real(*a, **k))
    one = start_run(tmp_path / "with", *common)
    assert called or "2 ranks" in case  # those have memory of their own
    monkeypatch.setattr(lab.run, "rehearse", lambda *_: None)
    other = start_run(tmp_path / "without", *common)
    assert_equal(last_checkpoint(one), last_checkpoint(other))
    for key in ("train/loss", "val/loss", "val/accuracy"):
        assert values(one, key) == values(other, key)


@pytest.mark.slow
def test_a_rehearsal_compiles_nothing_and_decides_nothing_of_what_is_compiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    common = (*QUICK, "trainer.max_steps=6", "trainer.eval_every=3", "hardware.compile=default", "model.dropout=0.3",
              "trainer.global_batch_size=24", "hardware.eval_batch_size=17")  # fmt: skip
    with without_code_generator(monkeypatch, "eager"):
        one = start_run(tmp_path / "with", *common)
    with without_code_generator(monkeypatch, "eager"):
        monkeypatch.setattr(lab.run, "rehearse", lambda *_: None)
        other = start_run(tmp_path / "without", *common)
    assert_equal(last_checkpoint(one), last_checkpoint(other))
    again = [re.findall(r"recompiled: (\w+)", (run / "train.log").read_text()) for run in (one, other)]
    assert again[0] == again[1]


QUITS = """
from bdb import BdbQuit
from lab.models.mlp import MLP

class InInit(MLP):
    def __init__(self, **arguments):
        super().__init__(**arguments)
        raise BdbQuit

class InForward(MLP):
    def forward(self, x):
        raise BdbQuit

class InStep(MLP):
    def forward(self, x):
        if self.training:
            raise BdbQuit
        return super().forward(x)

class InData:
    def __init__(self, **arguments): ...
    def __len__(self):
        return 99
    def __getitem__(self, i):
        raise BdbQuit
"""


@pytest.mark.one_quick(1)
@pytest.mark.parametrize("kind", ["model.InInit", "model.InForward", "model.InStep", "data.InData"])
def test_a_debugger_that_is_quit_interrupts_the_run(
    own: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], kind: str
) -> None:
    own.write_text(QUITS)
    key, _, name = kind.partition(".")
    with pytest.raises(KeyboardInterrupt):
        start_run(
            tmp_path / "a", *QUICK, "trainer.max_steps=3", "data=synthetic", f"{key}._target_=lab.models.own.{name}"
        )
    assert read_status(tmp_path / "a")["status"] == "interrupted"
    assert f"the debugger was quit at {own}:" in capfd.readouterr().err


SEEDS = '''
import torch
from lab.models.mlp import MLP
from lab.tasks.supervised import Supervised

class InInit(MLP):
    def __init__(self, **arguments):
        torch.manual_seed(0)
        super().__init__(**arguments)

class InForward(MLP):
    def forward(self, x):
        if self.training:
            torch.manual_seed(0)
        return super().forward(x)

class Forks(MLP):
    """Draws constant numbers, and restores the generator."""
    def __init__(self, **arguments):
        with torch.random.fork_rng():
            torch.manual_seed(0)
        super().__init__(**arguments)

    def forward(self, x):
        with torch.random.fork_rng():
            torch.manual_seed(0)
        return super().forward(x) + torch.rand((), generator=torch.Generator().manual_seed(0))

class InSetup(Supervised):
    def setup(self, model):
        torch.manual_seed(0)

class InLosses(Supervised):
    def losses(self, model, batch):
        torch.manual_seed(0)
        return super().losses(model, batch)
'''
OF_WEIGHTS = "own.{} has random numbers that do not depend on `seed`, so all seeds may begin with the same weights, because it sets torch's seed:"
OF_STEPS = "{} may draw the same random numbers, such as dropout masks, in each step, because it sets torch's seed:"
SEED_CASES = [
    ("model", "InInit", OF_WEIGHTS.format("InInit")),
    ("model", "InForward", OF_STEPS.format("InForward or Supervised")),
    ("model", "Forks", None),
    ("task", "InSetup", OF_WEIGHTS.format("InSetup")),
    ("task", "InLosses", OF_STEPS.format("MLP or InLosses")),
]


@pytest.mark.one_quick(1)
@pytest.mark.parametrize(("key", "kind", "line"), SEED_CASES, ids=[kind for _, kind, _ in SEED_CASES])
def test_code_that_sets_torch_s_seed_is_named_once(
    own: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], key: str, kind: str, line: str | None
) -> None:
    own.write_text(SEEDS)
    start_run(tmp_path / "a", *QUICK, "trainer.max_steps=3", f"{key}._target_=lab.models.own.{kind}")
    said = capfd.readouterr().err
    assert said.count("torch's seed") == (line is not None)
    assert line is None or line in said
