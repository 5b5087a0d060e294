"""hardware.precision=bf16-weights: bf16 in the forward pass, fp32 in all that is kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from common import QUICK
from gpt import NEEDS_GPT

from samebits.device import WithBf16Weights
from samebits.parallel import checkpoint_activations, find_blocks
from samebits.testing import last_checkpoint, metrics, start_run
from samebits.testing.processes import slow

BF16 = "hardware.precision=bf16-weights"
SHORT = (*QUICK, "trainer.max_steps=40", "trainer.log_every=1", "trainer.eval_every=20", "trainer.global_batch_size=60")


def losses(run: Path, key: str = "train/loss") -> torch.Tensor:
    return torch.tensor([row[key] for row in metrics(run) if key in row])


@pytest.mark.slow
def test_it_follows_fp32_and_keeps_it(tmp_path: Path) -> None:
    """The curve is fp32's to bf16's rounding; weights, their average and the optimizer's state are fp32."""
    common = (*SHORT, "optim.lr=0.02", "trainer.ema_decay=0.9", "hardware.micro_batch_size=25")
    run, plain = start_run(tmp_path / "run", *common, BF16), start_run(tmp_path / "plain", *common)
    torch.testing.assert_close(losses(run), losses(plain), rtol=3e-2, atol=1e-2)
    assert not torch.equal(losses(run), losses(plain))
    assert losses(run)[-1] < losses(run)[0] / 2
    payload = last_checkpoint(run)
    assert {v.dtype for part in ("model", "ema") for v in payload[part].values()} == {torch.float32}
    moments = {v.dtype for state in payload["optimizer"]["state"].values() for v in state.values()}
    assert moments == {torch.float32}
    for value in payload["model"].values():
        assert not torch.equal(value, value.bfloat16().float())  # not merely stored wider


@pytest.mark.slow
def test_small_updates_are_not_lost(tmp_path: Path) -> None:
    """With steps of 1e-7 a bf16 weight of 0.1 stands still: its next value is 5e-4 away. The fp32 ones add them up."""
    small = (*SHORT, "optim.lr=1e-7", "optim.weight_decay=0", "optim/schedule=constant", "optim.schedule.warmup=0")
    first = last_checkpoint(start_run(tmp_path / "one", *small, BF16, "trainer.max_steps=1"))["model"]
    last = last_checkpoint(start_run(tmp_path / "all", *small, BF16))["model"]
    moved = torch.cat([(last[name] - first[name]).flatten() for name in first])
    lost = torch.cat([(last[name].bfloat16() - first[name].bfloat16()).flatten() for name in first])
    assert (moved != 0).float().mean() > 0.8  # some pixels are always black
    assert moved.abs().mean() > 5e-7  # 39 steps of about 1e-7
    assert (lost == 0).float().mean() > 0.9


@NEEDS_GPT
@pytest.mark.parametrize("way", ["recomputed", slow("compiled")])
def test_gradients_are_the_same_in_other_ways(way: str) -> None:
    """Recomputation comes after the copies are gone: autocast casts the fp32 weights again, to the same bits."""
    from lab.models.gpt import GPT

    gradients: list[Any] = []
    for again in (False, True):
        torch.manual_seed(0)
        model = GPT([8], 11, width=16, heads=2, layers=2, dropout=0.3 if way == "recomputed" else 0.0)
        if again and way == "recomputed":
            checkpoint_activations(find_blocks(model, "auto", "key").values(), compiled=False)
        net: Any = WithBf16Weights(model)
        if again and way == "compiled":
            net = torch.compile(net, backend="aot_eager", fullgraph=True)
        for _ in range(2):
            with torch.autocast("cpu", torch.bfloat16):
                loss = net(torch.arange(16).reshape(2, 8) % 11).float().square().mean()
            loss.backward()
        gradients.append([p.grad for p in model.parameters()])
    tolerance = {"rtol": 0.0, "atol": 0.0} if way == "recomputed" else {"rtol": 2e-2, "atol": 1e-4}
    torch.testing.assert_close(*gradients, **tolerance)
