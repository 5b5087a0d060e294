"""The language model: padded vocabularies, logits in pieces, and windows of several documents."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from gpt import NEEDS_GPT, SMALL_GPT, write_tokens
from torch.nn import functional as F

from lab.losses.next_token import NextToken, Unprojected, _InPieces
from samebits.errors import ConfigError
from samebits.testing import SMALL, last_checkpoint, start_run, values

pytestmark = NEEDS_GPT


def gpt(window: int = 12, **values: Any) -> Any:
    from lab.models.gpt import GPT

    torch.manual_seed(0)
    return GPT([window], 11, width=16, heads=2, layers=2, dropout=0.0, **values)


def batch(size: int = 6) -> dict[str, torch.Tensor]:
    random = torch.Generator().manual_seed(3)
    tokens = torch.randint(0, 11, (size, 13), generator=random)
    target = tokens[:, 1:].clone()
    target[1, 5:] = -100
    target[2] = -100
    return {"x": tokens[:, :-1], "y": target}


@pytest.mark.parametrize("chunked", [False, True])
def test_padding_never_wins_nor_counts(chunked: bool) -> None:
    """Whatever its weights are: the same losses and gradients, none for the padding."""
    plain, padded, data = gpt(), gpt(vocab_multiple=64, chunked_logits=chunked), batch()
    rows = torch.full_like(padded.token.weight, 7.0)
    rows[:11] = plain.token.weight.detach()
    padded.load_state_dict(plain.state_dict() | {"token.weight": rows})
    logits = padded.eval()(data["x"])
    assert logits.shape == (6, 12, 64)
    assert logits.argmax(-1).max() < 11
    assert (logits.softmax(-1)[..., 11:] == 0).all()
    narrow = {"y": data["y"].to(torch.int32)}  # any integers are token ids
    losses = [NextToken()(model.train()(data["x"]), y) for model, y in ((plain, data), (padded, narrow))]
    sum(losses).sum().backward()  # type: ignore[union-attr]
    torch.testing.assert_close(losses[1], losses[0])
    assert (padded.token.weight.grad[11:] == 0).all()
    for a, b in zip(padded.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(a.grad[: len(b)], b.grad, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("autocast", [False, True])
def test_chunks_are_what_whole_logits_are(autocast: bool) -> None:
    """Losses, zero where there is no target, and gradients; in evaluation logits as they are."""
    plain, chunked, data = gpt(), gpt(chunked_logits=True), batch()
    assert torch.equal(plain.eval()(data["x"]), chunked.eval()(data["x"]))
    losses = []
    for model in (plain.train(), chunked.train()):
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            output = model(data["x"])
            losses.append(NextToken()(output, data))
        assert isinstance(output, Unprojected) is (model is chunked)
        losses[-1].sum().backward()
    tolerance: dict[str, Any] = {"rtol": 3e-2, "atol": 1e-2} if autocast else {}
    assert losses[1].dtype == torch.float32
    assert losses[1][2] == 0
    torch.testing.assert_close(losses[1], losses[0], **tolerance)
    for a, b in zip(chunked.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, **(tolerance or {"rtol": 1e-4, "atol": 1e-6}))


def test_a_second_derivative_of_pieces_is_refused() -> None:
    data, model = batch(), gpt(chunked_logits=True)
    loss = NextToken()(model(data["x"]), data).sum()
    with pytest.raises(ConfigError, match=r"model\.chunked_logits=true: .* second derivative .* - set it to false"):
        torch.autograd.grad(loss, [*model.parameters()], create_graph=True)


def test_a_gradient_of_pieces_is_the_gradient() -> None:
    """Of fewer rows than pieces, too, and where a row has no target."""
    random = torch.Generator().manual_seed(2)
    for count in (5, 40):
        target = torch.randint(0, 7, (count,), generator=random)
        target[1] = -100
        hidden, weight, bias = (torch.randn(*size, generator=random, dtype=torch.float64, requires_grad=True)
                                for size in ((count, 3), (7, 3), (7,)))  # fmt: skip
        assert torch.autograd.gradcheck(_InPieces.apply, (hidden, weight, bias, target))


@pytest.mark.slow
def test_chunks_hold_a_fraction_of_the_logits() -> None:
    """Largest tensor that forward and backward make: all logits, or a small part of them."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Largest(TorchDispatchMode):
        size = 0

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            output = func(*args, **(kwargs or {}))
            for value in output if isinstance(output, tuple) else (output,):
                self.size = max(self.size, value.numel() if isinstance(value, torch.Tensor) else 0)
            return output

    hidden, weight = torch.randn(8, 64, 16, requires_grad=True), torch.randn(4000, 16, requires_grad=True)
    target = torch.randint(0, 4000, (8, 64))
    made = {}
    for output in (F.linear(hidden, weight), Unprojected(hidden, weight, None)):
        with Largest() as largest:
            NextToken()(output, {"y": target}).sum().backward()
        made[type(output)] = largest.size
    assert made[torch.Tensor] == 8 * 64 * 4000
    assert made[Unprojected] == 8 * 64 * 4000 / 16


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile wants a C++ compiler")
def test_a_compiled_loss_is_the_loss() -> None:
    """Of bf16 logits in float32, and so is its gradient, before it is rounded to bf16; scores are not compiled."""
    target = batch(40)["y"]
    found = []
    for compiled in (False, True):
        logits = torch.randn(40, 12, 11, generator=torch.Generator().manual_seed(1)).mul(9).bfloat16().requires_grad_()
        losses = NextToken(compiled)(logits, {"y": target})
        losses.sum().backward()
        found.append((losses, logits.grad))
    assert found[1][0].dtype == torch.float32
    torch.testing.assert_close(found[1][0], found[0][0])
    torch.testing.assert_close(found[1][1], found[0][1], rtol=8e-3, atol=1e-6)  # one step of bf16
    with torch.no_grad():
        assert torch.equal(NextToken(True)(logits, {"y": target}), found[0][0])


# ---- several documents in one window

WINDOWS = {  # lengths of the documents; the first one of a window may have begun in another
    12: ([2, 4, 6], [12], [1, 1, 3, 7]),
    1100: ([300, 700, 100], [1050, 50], [5, 515, 580]),  # longer than a block of torch's kernel for CPUs
}


def packed(length: int) -> tuple[torch.Tensor, list[tuple[int, int, int]]]:
    """(B, length + 1) tokens below 10, and 10 where a document begins; (row, begin, end) of each document."""
    tokens = torch.randint(0, 10, (len(WINDOWS[length]), length + 1), generator=torch.Generator().manual_seed(1))
    parts = [
        (row, sum(sizes[:k]), sum(sizes[: k + 1]))
        for row, sizes in enumerate(WINDOWS[length])
        for k in range(len(sizes))
    ]
    for row, begin, end in parts:
        tokens[row, end] = 10
        if begin or row:  # the first window begins within a document
            tokens[row, begin] = 10
    return tokens, parts


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("length", WINDOWS)
def test_a_document_in_a_window_is_what_it_is_alone(length: int, chunked: bool) -> None:
    """Logits, the sum of its losses, and the gradients."""
    tokens, parts = packed(length)
    models = [gpt(window=length, separator=10, chunked_logits=chunked), gpt(window=length)]
    together, alone = models
    with torch.no_grad():
        logits = together.eval()(tokens[:, :-1])
        for row, begin, end in parts:
            wanted = alone.eval()(tokens[row : row + 1, begin:end])[0]
            torch.testing.assert_close(logits[row, begin:end], wanted, rtol=1e-4, atol=1e-6)
    loss = NextToken()
    losses = loss(together.train()(tokens[:, :-1]), {"y": tokens[:, 1:]}) * length
    losses.sum().backward()
    sums = torch.zeros(len(tokens))
    for row, begin, end in parts:
        own = tokens[row : row + 1, begin : end + 1]
        value = loss(alone.train()(own[:, :-1]), {"y": own[:, 1:]})[0] * (end - begin)
        value.backward()
        sums[row] += value.detach()
    torch.testing.assert_close(losses.detach(), sums, rtol=1e-5, atol=1e-5)
    for a, b in zip(together.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-3, atol=2e-6 * length)


@pytest.mark.parametrize("length", WINDOWS)
def test_other_documents_change_no_bit(length: int) -> None:
    tokens, parts = packed(length)
    model = gpt(window=length, separator=10).eval()
    with torch.no_grad():
        before = model(tokens[:, :-1])
        for row, begin, end in parts:
            other = tokens.clone()
            other[row, begin + 1 : end] = (other[row, begin + 1 : end] + 1) % 10
            same = torch.ones(tokens.shape[0], length, dtype=torch.bool)
            same[row, begin + 1 : end] = False
            after = model(other[:, :-1])
            assert torch.equal(after[same], before[same])
            assert not same.all() or end - begin == 1
            assert end - begin == 1 or not torch.equal(after[~same], before[~same])


@pytest.mark.slow
def test_windows_of_documents_compile() -> None:
    tokens, _ = packed(12)
    models = [gpt(separator=10), gpt(separator=10)]
    compiled = torch.compile(models[1], backend="aot_eager", fullgraph=True)
    for call in (models[0], compiled):
        NextToken()(call(tokens[:, :-1]), {"y": tokens[:, 1:]}).sum().backward()
    for a, b in zip(*(model.parameters() for model in models), strict=True):
        torch.testing.assert_close(a.grad, b.grad)


def test_a_separator_is_a_token() -> None:
    with pytest.raises(ConfigError, match=r"model\.separator=11: must be a token id, 0 to 10"):
        gpt(separator=11)


def overrides(path: Path) -> tuple[str, ...]:
    return ("data=tokens", f"data.path={path}", "data.window=12", *SMALL_GPT, "task=next_token", "optim.lr=1e-2")


@pytest.mark.slow
def test_a_run_in_chunks_is_the_run(tmp_path: Path) -> None:
    """For any number of ranks, micro-batches and layout of the weights; of windows that hold several documents."""
    common = (*SMALL, *overrides(write_tokens(tmp_path)), "trainer.max_steps=8", "trainer.log_every=1",
              "model.vocab_multiple=8", "model.separator=10")  # fmt: skip
    plain = start_run(tmp_path / "plain", *common)
    assert last_checkpoint(plain)["model"]["token.weight"].shape == (16, 16)
    for trainer in ("ddp", "fsdp"):
        more = ("model.chunked_logits=true", "hardware.num_procs=2", "hardware.micro_batch_size=3")
        run = start_run(tmp_path / trainer, *common, f"trainer={trainer}", *more)
        for key in ("train/loss", "train/grad_norm", "val/loss"):
            assert values(run, key) == pytest.approx(values(plain, key), rel=1e-3), key


@pytest.mark.slow
def test_chunks_compile() -> None:
    data, gradients = batch(), []

    def losses(model: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return NextToken()(model(x), {"y": y})

    for compiled in (False, True):
        model = gpt(chunked_logits=True, vocab_multiple=8)
        call = torch.compile(losses, backend="aot_eager") if compiled else losses
        call(model, data["x"], data["y"]).sum().backward()
        gradients.append([p.grad for p in model.parameters()])
    torch.testing.assert_close(*gradients)
