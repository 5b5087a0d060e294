"""samebits.torch_private.backward: the gradients of the mean of losses, bit for bit, without the mean in the graph."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import checkpoint

from samebits import torch_private
from samebits.torch_private import backward

SIZES = [*range(1, 130), 255, 1000, 1023, 4097]
LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "cross-entropy": lambda output, y: F.cross_entropy(output, y, reduction="none"),
    "mean of squares": lambda output, y: (output - y[:, None]).square().mean(1),
    "sigmoid": lambda output, y: F.binary_cross_entropy_with_logits(output[:, 0], y % 2.0, reduction="none"),
    "smooth": lambda output, y: F.smooth_l1_loss(output, y[:, None].expand_as(output), reduction="none").sum(1),
    "column": lambda output, y: output.tanh()[:, 0],  # the bias gets a sum of the gradients
}


@pytest.fixture
def fresh() -> Iterator[None]:
    """The next call looks for the names again."""
    torch_private._engine.cache_clear()
    yield
    torch_private._engine.cache_clear()


def mean_by_division(losses: Tensor, n: int, scale: float) -> None:
    """The form that the bits of older runs are from."""
    (losses.sum() / n * scale).backward()


def mean_by_gradient(losses: Tensor, n: int, scale: float) -> None:
    backward(losses, losses.new_full((), 1 / n) * scale)


@pytest.mark.parametrize("scale", [1.0, 65536.0])  # of fp16: a power of two
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", LOSSES)
def test_the_gradients_have_the_bits_of_the_mean_in_the_graph(name: str, dtype: torch.dtype, scale: float) -> None:
    """A weight that all losses share gets a sum of their gradients, whose rounding depends on strides."""
    draw = torch.Generator().manual_seed(0)
    for size in SIZES:
        x, y = torch.randn(size, 7, generator=draw, dtype=dtype), torch.randint(5, (size,), generator=draw)
        model, shared = nn.Linear(7, 5, dtype=dtype), nn.Parameter(torch.ones((), dtype=dtype))
        trained, found = [*model.parameters(), shared], []
        for way in (mean_by_division, mean_by_gradient):
            for n in (size, size + 3):  # one micro-batch of several
                losses = LOSSES[name](model(x), y) * shared + shared
                way(losses, n, scale)
                found.append([p.grad.clone() for p in trained if p.grad is not None])
                for p in trained:
                    p.grad = None
        for ours, wanted in zip(found[2] + found[3], found[0] + found[1], strict=True):
            assert torch.equal(ours, wanted), size


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_gradient_of_a_mean_is_that_of_a_division(dtype: torch.dtype) -> None:
    """For as many samples as float32 has digits for; torch divides by a number in the dtype of the tensor."""
    for begin in range(1, 2**24 + 1, 2**22):
        n = torch.arange(begin, begin + 2**22, dtype=torch.float64)
        assert torch.equal((1 / n).to(dtype), torch.ones((), dtype=dtype) / n.to(dtype))


@pytest.mark.usefixtures("fresh")
def test_no_operation_is_spent_on_a_mean() -> None:
    losses = nn.Parameter(torch.ones(9)) * 3
    backward(torch.ones(1, requires_grad=True) * 1, torch.ones(()))  # tries whether torch has the name
    gradient = losses.new_full((), 1 / 9)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        backward(losses, gradient)
    names = {event.key for event in profile.key_averages()}
    assert "MulBackward0" in names
    assert not names & {"aten::sum", "aten::div", "aten::ones_like", "SumBackward0", "DivBackward0"}


def gone(patch: pytest.MonkeyPatch) -> None:
    patch.delattr(torch.autograd.graph, "_engine_run_backward")


def turned_off(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(torch_private, "enabled", lambda: False)  # LAB_PLAIN_TORCH=1


def other_arguments(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(torch.autograd.graph, "_engine_run_backward", lambda roots, gradients, retain: None)


def another_meaning(patch: pytest.MonkeyPatch) -> None:
    run = torch.autograd.graph._engine_run_backward
    patch.setattr(
        torch.autograd.graph,
        "_engine_run_backward",
        lambda roots, gradients, **more: run(roots, tuple(2 * one for one in gradients), inputs=(), **more),
    )


@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize("change", [gone, turned_off, other_arguments, another_meaning])
def test_torchs_own_is_called_where_a_name_is_gone_or_has_changed(
    monkeypatch: pytest.MonkeyPatch, change: Callable[[pytest.MonkeyPatch], None]
) -> None:
    change(monkeypatch)
    called = noted_calls(monkeypatch)
    weight = nn.Parameter(torch.ones(3))
    backward(weight * 4, torch.tensor(0.5))
    assert weight.grad is not None
    assert weight.grad.tolist() == [2.0, 2.0, 2.0]
    assert called == [(3,)]


def noted_calls(patch: pytest.MonkeyPatch) -> list[Any]:
    """The shapes of the gradients that Tensor.backward gets."""
    called: list[Any] = []
    original = Tensor.backward

    def noted(self: Tensor, gradient: Tensor, **more: Any) -> None:
        called.append(tuple(gradient.shape))
        original(self, gradient, **more)

    patch.setattr(Tensor, "backward", noted)
    return called


def test_torchs_own_is_called_where_functions_of_torch_are_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensor.backward imports sympy, half a second of a start, so otherwise it is not called."""
    seen: list[Any] = []

    class Special(Tensor):
        @classmethod
        def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(function)
            return super().__torch_function__(function, types, args, kwargs or {})

    class Mode(TorchFunctionMode):
        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(function)
            return function(*args, **(kwargs or {}))

    weight = nn.Parameter(torch.ones(3))
    backward((weight * 4).as_subclass(Special), torch.tensor(0.5))
    assert seen.count(Tensor.backward) == 1
    seen.clear()
    with Mode():
        backward(weight * 4, torch.tensor(0.5))
    assert seen.count(Tensor.backward) == 1
    with pytest.raises(RuntimeError, match="inside a functorch transform"):
        torch.func.grad(lambda x: backward(x * nn.Parameter(torch.ones(3)), torch.tensor(0.5)))(torch.ones(3))
    with monkeypatch.context() as patch:
        called = noted_calls(patch)
        backward(weight * 4, torch.tensor(0.5))
        assert called == [(3,)]
    with monkeypatch.context() as patch:
        original, own = torch.autograd.backward, []

        def noted(*given: Any, **more: Any) -> None:
            own.append(len(given))
            original(*given, **more)

        patch.setattr(torch.autograd, "backward", noted)
        backward(weight * 4, torch.tensor(0.5))
        assert own
    with monkeypatch.context() as patch:
        patch.setattr(torch.autograd, "_make_grads", None)  # which torch.autograd.backward calls
        backward(weight * 4, torch.tensor(0.5))
    assert weight.grad is not None
    assert weight.grad.tolist() == [10.0, 10.0, 10.0]


def test_what_watches_a_backward_pass_sees_it() -> None:
    """Hooks of tensors, of modules and of parameters, hooks on saved tensors, anomaly mode, recomputation."""
    seen: list[str] = []
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    first = next(model.parameters())
    model[0].register_full_backward_hook(lambda *_: seen.append("module"))
    first.register_hook(lambda _: seen.append("tensor"))
    first.register_post_accumulate_grad_hook(lambda _: seen.append("accumulated"))

    def packed(tensor: Tensor) -> Tensor:
        seen.append("saved")
        return tensor

    for reentrant in (False, True):
        seen.clear()
        with torch.autograd.graph.saved_tensors_hooks(packed, lambda tensor: tensor):
            x = torch.ones(5, 3, requires_grad=True)
            losses = checkpoint(model, x, use_reentrant=reentrant).square().sum(1)
        losses.register_hook(lambda gradient: seen.append(f"losses {tuple(gradient.shape)}"))
        backward(losses, torch.tensor(0.25))
        assert seen.count("losses (5,)") == 1
        assert {"module", "tensor", "accumulated", "saved"} <= {*seen}
    with torch.autograd.set_detect_anomaly(True):
        bad = (first.sum(1) * 0).sqrt() * 0
        with pytest.warns(UserWarning, match="Error detected in Sqrt"), pytest.raises(RuntimeError, match="nan values"):
            backward(bad, torch.tensor(0.25))
    with pytest.raises(RuntimeError, match="second time"):
        backward(losses, torch.tensor(0.25))
