"""optimizer_step.outputs: a forward pass without gradients that the backward pass repeats exactly."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lab import loop
from lab.objective import LossModule
from lab.optim import Schedule
from lab.options import TrainerConfig
from lab.schedules.constant import Constant
from lab.state import TrainState
from lab.tasks.base import Batch, Losses, OptimizerStep, Task
from samebits.checkpoints import Optimizers
from samebits.device import HardwareConfig, resolve_hardware
from samebits.world import world_of_one

SAMPLES = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))


class Compared(Task):
    """The cross-entropy of finding each sample's negative among those of all samples of the step (GradCache)."""

    seen: list[Tensor]

    def losses(self, model: nn.Module, batch: Batch) -> tuple[Losses, Any]:
        output = model(batch["x"])
        self.seen = [*self.seen, output.detach()]
        return {"loss": (output * batch["gradient"]).sum(1)}, output

    def train_step(self, step: int, batches: Iterator[Batch], optimizer_step: OptimizerStep) -> dict[str, Tensor]:
        held, self.seen = list(batches), []
        self.first = optimizer_step.outputs(lambda batch: optimizer_step.model(batch["x"]), held)
        torch.rand(3)  # does not change the numbers of the backward pass
        rows = torch.cat(self.first).requires_grad_()
        with torch.enable_grad():
            loss = F.cross_entropy(rows @ rows.flip(0).T, torch.arange(len(rows)))
        (gradient,) = torch.autograd.grad(loss, rows)
        parts = (len(rows) * gradient).split([len(batch["x"]) for batch in held])
        values = optimizer_step("", [batch | {"gradient": part} for batch, part in zip(held, parts)])
        return values | {"loss": loss.detach()}


class Plain(Compared):
    """The same without the first pass: all gradients are 1."""

    def train_step(self, step: int, batches: Iterator[Batch], optimizer_step: OptimizerStep) -> dict[str, Tensor]:
        self.seen = []
        held = [batch | {"gradient": torch.ones(len(batch["x"]), 2)} for batch in batches]
        return optimizer_step("", held)


def step_of(task: Task, micro_batch_size: int, *layers: nn.Module) -> tuple[nn.Module, dict[str, Tensor]]:
    """Take a step with the 6 samples. Return the model and the logged values."""
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(4, 8), *layers, nn.Linear(8, 2))
    optimizer = Optimizers({"": torch.optim.SGD(model.parameters(), lr=0.5)})
    trainer = TrainerConfig(global_batch_size=6, clip_norm=None)
    hardware = resolve_hardware(HardwareConfig(device="cpu", num_threads=1, micro_batch_size=micro_batch_size), trainer)
    state = TrainState(model, task, None, optimizer, Schedule(optimizer, Constant(0.0), 10), None)
    batches = iter([{"x": part} for part in SAMPLES.split(hardware.micro_batch_sizes)])
    values = loop.train_step({"": LossModule(model, task)}, state, batches, trainer, hardware, world_of_one())
    return model, values


def test_a_loss_across_samples_does_not_depend_on_the_micro_batch() -> None:
    (whole, one), (parts, three) = (step_of(Compared(), size, nn.Tanh()) for size in (6, 2))
    torch.testing.assert_close(one["loss"], three["loss"])
    torch.testing.assert_close(one["grad_norm"], three["grad_norm"])
    for p, q in zip(whole.parameters(), parts.parameters()):
        torch.testing.assert_close(p, q)
    assert one["grad_norm"] > 0


def test_the_gradient_is_that_of_the_loss() -> None:
    model, values = step_of(Compared(), 3, nn.Tanh())
    torch.manual_seed(1)
    wanted = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    rows = wanted(SAMPLES)
    loss = F.cross_entropy(rows @ rows.flip(0).T, torch.arange(6))
    loss.backward()
    torch.testing.assert_close(values["loss"], loss.detach())
    for p, q in zip(model.parameters(), wanted.parameters()):
        assert q.grad is not None
        torch.testing.assert_close(p, q.detach() - 0.5 * q.grad)


def test_both_passes_have_the_same_dropout_and_leave_the_buffers() -> None:
    layers = lambda: (nn.Dropout(0.5), nn.BatchNorm1d(8))  # noqa: E731
    task, plain = Compared(), Plain()
    model, _ = step_of(task, 2, *layers())
    assert all(torch.equal(a, b) for a, b in zip(task.first, task.seen, strict=True))
    assert any((output != task.first[0]).any() for output in task.first[1:])
    other, _ = step_of(plain, 2, *layers())
    # the first pass changed neither random numbers nor statistics
    assert all(torch.equal(a, b) for a, b in zip(task.seen, plain.seen, strict=True))
    for (name, a), b in zip(model.named_buffers(), other.buffers(), strict=True):
        assert torch.equal(a, b), name


class Replacing(nn.Module):
    """A layer whose forward pass assigns new tensors to its buffers."""

    count: Tensor
    last: Tensor | None

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(()))
        self.register_buffer("last", None)

    def forward(self, x: Tensor) -> Tensor:
        self.count = self.count + 1
        last = 0.0 if self.last is None else self.last
        self.last = x.detach().sum()
        return x + self.count + last


def test_buffers_that_the_pass_replaces_are_left_too() -> None:
    task, plain = Compared(), Plain()
    model, _ = step_of(task, 6, Replacing())
    other, _ = step_of(plain, 6, Replacing())
    assert torch.equal(task.seen[0], plain.seen[0])
    assert torch.equal(model[1].count, torch.ones(()))  # type: ignore[index]
    assert torch.equal(model[1].last, other[1].last)  # type: ignore[index]


class Heads(Task):
    """Two outputs with a loss each."""

    loss_names = ("first",)

    def losses(self, model: nn.Module, batch: Batch) -> tuple[Losses, Any]:
        output = model(batch["x"])
        return {"loss": output.sum(1), "first": output[:, 0]}, output

    def train_step(self, step: int, batches: Iterator[Batch], optimizer_step: OptimizerStep) -> dict[str, Tensor]:
        values = optimizer_step.gradients("", batches, "first")
        self.bias = [p.grad for p in optimizer_step.parameters("")][-1]
        optimizer_step.update("")
        return values


def test_weights_of_other_losses_have_the_gradient_zero() -> None:
    """As on several ranks, where DDP needs a gradient of each parameter: else weight decay would differ."""
    task = Heads()
    step_of(task, 6)
    assert task.bias is not None
    assert task.bias.tolist() == [1.0, 0.0]

    class Other(Heads):
        def losses(self, model: nn.Module, batch: Batch) -> tuple[Losses, Any]:
            output = model(batch["x"])
            return {"loss": output.sum(1), "first": model[0](batch["x"])[:, 0]}, output  # type: ignore[index]

    other = Other()
    step_of(other, 6)
    assert other.bias is not None
    assert other.bias.tolist() == [0.0, 0.0]
