"""What a model, a criterion, a metric or a dataset does wrong is told in one line; what is right is let through."""

# ruff: noqa: E501 - lines as users see them
from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from common import QUICK, needs
from torch import Tensor, nn
from torch.nn import functional as F, utils
from torch.nn.utils import prune

import lab.losses.cross_entropy
import lab.metrics.accuracy
import lab.models.mlp
from lab.checks import check_criterion, check_registered
from lab.config import Config
from lab.objective import forward_loss
from lab.tasks.base import Task, TaskRun
from lab.tasks.supervised import Supervised
from samebits.checkpoints import BufferChecks
from samebits.device import resolve_hardware
from samebits.errors import ConfigError, RunFailed
from samebits.testing import compose, last_checkpoint, start_run, values

CrossEntropy, Accuracy, MLP = lab.losses.cross_entropy.CrossEntropy, lab.metrics.accuracy.Accuracy, lab.models.mlp.MLP
SHORT = (*QUICK, "trainer.max_steps=2", "trainer.log_every=1", "trainer.eval_every=2", "hardware.micro_batch_size=33")


# ---- types, fields and outputs


class TwoInputs(nn.Linear):
    def forward(self, x: Tensor, table: Tensor) -> Tensor:
        return super().forward(x + table)


X, Y = torch.ones(2, 4), torch.zeros(2).long()
OUTPUTS = {"tuple": (torch.zeros(2, 3), 1), "dict": {"logits": torch.zeros(2, 3)}, "NoneType": None, "list": [X]}
MODULES = {
    "linear": (nn.Linear(4, 3), (2, 4)),
    "convolution": (nn.Conv1d(4, 3, 1), (2, 4, 5)),
    "norm": (nn.LayerNorm(4), (2, 4)),
    "batch norm": (nn.BatchNorm1d(4), (2, 4)),
    "recurrent": (nn.GRU(4, 3), (2, 2, 4)),
    "MLP": (MLP((4,), 3, [], 0.0), (2, 4)),
}
FORWARD: list[tuple[Any, Any, dict[str, Tensor], str]] = [  # model, criterion, batch, the line
    (TwoInputs(4, 2), CrossEntropy(0.0), {"x": X, "y": Y}, r"^model: TwoInputs\.forward\(\) missing .* 'table': .*docs/my_model\.md"),
    *(
        (lambda x, output=output: output, CrossEntropy(0.0), {"x": X, "y": Y}, rf"^task\.criterion: CrossEntropy cannot use the model's output, a {kind} ")
        for kind, output in OUTPUTS.items()
    ),
    *(
        (module, lambda output, batch: output, {"x": torch.ones(shape, dtype=dtype), "y": Y},
         rf"^data: field 'x' is {kind}[^\n]*lab\.transforms\.fields\.\w+[^\n]*$")
        for module, shape in MODULES.values() for kind, dtype in (("float64", torch.float64), ("int64", torch.int64))
    ),
    *(
        (model, CrossEntropy(0.0), {"x": torch.ones(2, 1, 8, 8, dtype=torch.uint8), "y": Y}, r"^data: field 'x' is uint8, [^\n]*: choose data/transforms=\[to_float\], or return")
        for model in (MLP((1, 8, 8), 3, [], 0.0), nn.Conv2d(1, 3, 1))
    ),
    (nn.Linear(4, 3), lambda output, batch: F.linear(output, batch["w"]), {"x": X, "w": torch.ones(1, 3).double()}, r"^data: field 'w' is float64, and the model's weights are float32"),
    (nn.Linear(4, 3), CrossEntropy(0.0), {"x": X}, r"^the batch has no field 'y', only \['x'\]: name it in data\.fields$"),
    (nn.Linear(4, 3), lambda output, batch: batch["sample_id"], {"x": X}, "or set `needs_sample_ids = True` in the task$"),
]  # fmt: skip


@pytest.mark.parametrize(("model", "criterion", "batch", "line"), FORWARD)
def test_what_the_model_and_the_criterion_cannot_use_is_named(
    model: Any, criterion: Any, batch: dict[str, Tensor], line: str
) -> None:
    with pytest.raises(ConfigError, match=line):
        forward_loss(model, Supervised(criterion, {}), batch)


OTHER_ERRORS: list[tuple[type[Exception], str, Any, Any, dict[str, Tensor]]] = [
    (AttributeError, "no_such_name", nn.Linear(4, 3), lambda output, batch: output.no_such_name, {"x": X}),
    (KeyError, "S", nn.Linear(4, 3), lambda output, batch: {}["S"], {"x": X}),  # a dict of the criterion's own
    (RuntimeError, "cannot be multiplied", nn.Linear(4, 3), lambda output, batch: F.linear(output, batch["w"]), {"x": X, "w": torch.ones(1, 4)}),
    (RuntimeError, "dtype", nn.Embedding(4, 3), lambda output, batch: F.linear(output, torch.ones(1, 3).half()), {"x": Y}),  # not of the integers
]  # fmt: skip


@pytest.mark.parametrize(("kind", "text", "model", "criterion", "batch"), OTHER_ERRORS)
def test_other_errors_of_a_criterion_stay_as_they_are(
    kind: type[Exception], text: str, model: Any, criterion: Any, batch: dict[str, Tensor]
) -> None:
    """With their traceback."""
    with pytest.raises(kind, match=text):
        forward_loss(model, Supervised(criterion, {}), batch)


@pytest.mark.parametrize(
    ("shape", "known", "named"),
    [((4,), (5,), True), ((4,), (4,), False), ((-1,), (256,), False), ((2, 2), (4,), False), (None, (5,), False)],
)
def test_a_wrong_shape_of_the_data_is_named_only_of_samples_of_one_shape(
    shape: tuple[int, ...] | None, known: tuple[int, ...], named: bool
) -> None:
    """Not if it is a maximum length, nor if the samples may be meant for another field."""

    def broken(x: Tensor) -> Tensor:
        raise IndexError("a bug")

    model, task = cast(nn.Module, broken), Supervised(CrossEntropy(0.0), {})
    spec = {} if shape is None else {"tokens": (shape, torch.float32)}
    task.run = TaskRun(input_shape=known, context=SimpleNamespace(train_set=SimpleNamespace(spec=spec)))
    x = torch.ones(2, *(max(size, 3) for size in shape or (4,)))
    with pytest.raises(IndexError) as caught:
        forward_loss(model, task, {"x": x})
    assert ("data.input_shape=" in vars(caught.value)["given"]) == named


def test_a_trained_model_does_not_get_another_input_shape() -> None:
    """In an evaluation the data are wrong, not the config of the run."""
    task, shape = Supervised(CrossEntropy(0.0), {}), (4,)
    line = r"^MLP was built for samples of shape \(4,\) but got \(5,\)"
    varying = SimpleNamespace(train_set=SimpleNamespace(spec={"x": ((-1,), torch.uint8)}))
    remedies: tuple[tuple[Any, str], ...] = (
        (None, "$"),
        (SimpleNamespace(train_set=None), r": set model\.input_shape=\[5\]$"),
        (varying, r": the samples x differ in length; data/transforms=\[window,center_window\] gives them one length$"),
    )
    for context, remedy in remedies:
        task.run = TaskRun(input_shape=shape, context=context)
        with pytest.raises(ConfigError, match=line + remedy):
            forward_loss(MLP(shape, 3, [], 0.0), task, {"x": torch.ones(2, 5), "y": Y})


def test_a_type_is_not_the_data_s_where_autocast_casts_fields() -> None:
    own = Supervised(metrics={}, criterion=lambda output, batch: output.double() @ torch.ones(3).bfloat16())
    with torch.autocast("cpu", torch.bfloat16), pytest.raises(RuntimeError, match="dtype"):
        forward_loss(nn.Linear(4, 3).bfloat16(), own, {"x": X})


# ---- tasks


class Hasty(Task):
    def __init__(self) -> None:
        self.weight = 1.0


class Objectiveless(Task):
    def objectives(self, model: nn.Module) -> dict[str, list[nn.Module]]:
        return {"student": [model]}


class Bare(Objectiveless):
    def objectives(self, model: nn.Module) -> Any:
        return {"": model}


class Nameless(Objectiveless):
    def objectives(self, model: nn.Module) -> Any:
        return [model, self]


class Lossless(Task):
    def training_step(self, batch: Any, index: int) -> None: ...


class Terms(Supervised):
    loss_names = ("consistency",)


@pytest.mark.parametrize("name", ["sample", "averaging_factor", "losses", "run", "frozen_networks"])
def test_a_part_of_a_task_hides_no_method(name: str) -> None:
    with pytest.raises(
        ConfigError, match=rf"^task: Supervised\.{name} is an attribute of Task itself - choose another name$"
    ):
        setattr(Supervised(CrossEntropy(0.0), {}), name, nn.Linear(1, 1))


def test_a_task_is_checked_before_a_batch_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    from lab import builders

    def metric(output: Tensor, batch: Any) -> Tensor:
        return output[:, 0]

    model, config = nn.Linear(1, 1), Config.of(compose("hardware=cpu"))
    hardware = resolve_hardware(config.hardware, config.trainer)
    for task, line in (
        (Supervised(metric, {"loss": metric}), r"^task\.metrics\.loss: Supervised has a loss of this name"),
        (Terms(metric, {"consistency": metric}), r"^task\.metrics\.consistency: Terms has a loss of this name"),
        (
            Objectiveless(),
            r"^task: Objectiveless\.objectives contains 'student', so Objectiveless needs a method student_losses$",
        ),
        (Bare(), r"^task: Bare\.objectives must return a list of modules for each objective, \{'': \[model, self\]\}$"),
        (Nameless(), r"^task: Nameless\.objectives must return a list of modules for each objective"),
        (Lossless(), r"^task: Lossless needs losses\(model, batch\) -> \(losses, output\): see lab\.tasks\.base$"),
    ):
        with pytest.raises(ConfigError, match=line):
            builders.check_task(task, model, config, hardware)
    builders.check_task(Terms(metric, {"other": metric}), model, config, hardware)
    monkeypatch.setattr(builders, "construct", lambda project, key, node: Hasty)
    monkeypatch.setattr(builders, "task_class", lambda node: Hasty)
    with pytest.raises(ConfigError, match=r"^task: the __init__ of Hasty must begin with super\(\).__init__\(\)$"):
        builders.make_task(SimpleNamespace(values={"task": {"_target_": "x"}}))  # type: ignore[arg-type]


# ---- ranks


def test_a_collective_that_breaks_in_an_evaluation_names_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch.distributed as dist

    def gathering(output: Tensor, batch: Any) -> Any:
        dist.all_reduce(output)  # fails: there is no group

    task = Supervised(metrics={}, criterion=gathering)
    batch = {"x": torch.ones(2, 4)}
    with torch.no_grad(), pytest.raises(ValueError, match="has not been initialized"):
        forward_loss(nn.Linear(4, 3), task, batch)
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    with torch.no_grad(), pytest.raises(RunFailed, match=r"set trainer\.pad_eval_batches=true"):
        forward_loss(nn.Linear(4, 3), task, batch)
    with pytest.raises(ValueError, match="has not been initialized"):
        forward_loss(nn.Linear(4, 3), task, batch)


# ---- gradients


def test_a_gradient_in_an_evaluation_needs_enable_grad() -> None:
    def penalty(output: Tensor, batch: Any) -> Tensor:
        (gradient,) = torch.autograd.grad(output.sum(), batch["x"], create_graph=True)
        return gradient.square().sum(1)

    task, model, x = Supervised(metrics={}, criterion=penalty), nn.Linear(4, 3), torch.ones(2, 4, requires_grad=True)
    assert forward_loss(model, task, {"x": x})[0]["loss"].requires_grad
    with torch.no_grad(), pytest.raises(ConfigError, match=r"^task: Supervised computes a gradient, .*enable_grad"):
        forward_loss(model, task, {"x": x})
    detached: Any = Supervised(metrics={}, criterion=lambda output, batch: penalty(output.detach(), batch))
    with pytest.raises(RuntimeError, match="does not require grad"):  # a mistake in training, too
        forward_loss(model, detached, {"x": x})


# ---- what a checkpoint does not hold


class Temperature(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))


class Plain:
    def __init__(self, held: Any) -> None:
        self.held = held

    def __call__(self, output: Any, batch: Any) -> Any: ...


def test_a_criterion_with_something_to_train_is_refused() -> None:
    inner = Temperature()
    for criterion, name in (
        (Plain(inner), r"held\.scale"),
        (Plain([inner]), r"held\.0\.scale"),
        (Plain({"a": nn.Parameter(torch.ones(2))}), r"held\.a"),
        (Plain(torch.ones(2, requires_grad=True)), "held"),
    ):
        with pytest.raises(
            ConfigError, match=rf"^task\.criterion: {type(criterion).__name__} .* {name} that is not a reg"
        ):
            check_criterion(criterion)
    frozen = Temperature().requires_grad_(False)
    for fine in (inner, nn.Sequential(inner), Plain(frozen), Plain(torch.ones(2)), Plain(Plain(3)), CrossEntropy(0.0)):
        check_criterion(fine)


class Listed(nn.Module):
    """A layer in a Python list, of which PyTorch knows nothing."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__()
        self.layers = [nn.Linear(2, 2)]


@pytest.mark.parametrize("owner", ["model", "task"])
def test_a_layer_that_would_not_be_trained_is_refused(monkeypatch: pytest.MonkeyPatch, owner: str) -> None:
    kind = MLP if owner == "model" else Supervised
    built = kind.__init__

    def listing(self: Any, *args: Any, **kwargs: Any) -> None:
        built(self, *args, **kwargs)
        self.more = [nn.Linear(2, 2)]

    monkeypatch.setattr(kind, "__init__", listing)
    line = rf"^{owner}: {kind.__name__} has a trainable tensor more\.0\.weight that is not a registered parameter"
    with pytest.raises(ConfigError, match=line):
        lab.build(compose(*SHORT))


COMPUTING = [
    utils.weight_norm, utils.spectral_norm, utils.parametrizations.weight_norm, utils.parametrizations.spectral_norm,
    partial(prune.l1_unstructured, amount=0.5),
]  # fmt: skip


def test_what_may_be_trained_elsewhere_is_let_through() -> None:
    """Frozen layers, weights of another module, results of a computation such as those of weight_norm."""
    frozen, listed = Listed(), Listed()
    frozen.layers[0].requires_grad_(False)
    check_registered("model", frozen)
    check_registered("task", listed, listed.layers[0].parameters())
    check_registered("model", torch.nn.utils.weight_norm(nn.Linear(2, 2)))
    check_registered("model", torch.jit.script(nn.Linear(2, 2)))


@pytest.mark.parametrize("make", [nn.Linear, nn.LSTM])
@pytest.mark.parametrize("apply", COMPUTING)
def test_weights_that_torch_computes_are_let_through(make: Any, apply: Callable[..., nn.Module]) -> None:
    """In training and after an evaluation: torch keeps them as attributes, or an LSTM a list of them."""
    layer = make(2, 2)
    model, x = nn.Sequential(apply(layer, "weight" if make is nn.Linear else "weight_hh_l0")), torch.ones(3, 1, 2)
    check_registered("model", model)
    checks, optimizer = BufferChecks(model, None, model=model), torch.optim.SGD(model.parameters(), 0.1)
    output = model(x)
    (output if make is nn.Linear else output[0]).square().sum().backward()
    optimizer.step()
    assert checks.unsaved() is None
    with torch.no_grad():
        model.eval()(x)
    assert checks.unsaved() is None


def test_a_model_whose_parts_refer_to_it_is_searched_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each part was searched anew from each other one: 24 s with 100 parts."""
    model, visits = nn.Sequential(*(nn.Linear(1, 1) for _ in range(20))), []
    for part in model:
        object.__setattr__(part, "whole", model)
    found = nn.Module.named_children
    monkeypatch.setattr(nn.Module, "named_children", lambda self: visits.append(self) or found(self))
    check_registered("model", model)
    assert len(visits) <= 3 * 21


@pytest.mark.slow
def test_a_causal_mask_is_saved_and_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And a criterion's queue, which is not, is told of in the run's log."""
    built, called = MLP.__init__, CrossEntropy.__call__
    mask = torch.full((3, 3), -math.inf).triu(1)

    def masked(self: Any, *args: Any, **kwargs: Any) -> None:
        built(self, *args, **kwargs)
        self.register_buffer("mask", mask.clone())

    def queueing(self: Any, output: Any, batch: Any) -> Any:
        self.queue = getattr(self, "queue", torch.zeros(10)) + output.detach().float().mean(0)
        return called(self, output, batch)

    monkeypatch.setattr(MLP, "__init__", masked)
    monkeypatch.setattr(CrossEntropy, "__call__", queueing)
    common = (*SHORT, "trainer.ema_decay=0.9", "trainer.save_every=1")
    run = start_run(tmp_path / "run", *common, "hydra.run.dir=x")
    assert torch.equal(last_checkpoint(run)["model"]["mask"], mask)
    assert "the task changes tensors that are not in a checkpoint (criterion.queue)" in (run / "train.log").read_text()
    start_run(run, *common, "trainer.max_steps=4")
    assert torch.equal(last_checkpoint(run)["ema"]["mask"], mask)
    assert last_checkpoint(run)["step"] == 4
    assert np.isfinite(values(run, "train/loss")).all()


@needs("conf/task/pcgrad.yaml")
@pytest.mark.slow
def test_a_constant_buffer_that_is_not_saved_needs_no_warning(tmp_path: Path) -> None:
    """The rehearsal of an evaluation puts buffers back, and does not write those that have not changed."""
    run = start_run(tmp_path / "run", *SHORT, "task=pcgrad", "trainer.save_every=1")
    assert "the task changes" not in (run / "train.log").read_text()
