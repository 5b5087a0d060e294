"""task=dpo with model=gpt_lora: the paper's loss, a reference that stays, weights that stay but for the adapters."""

from __future__ import annotations

import copy
import math
from pathlib import Path

import h5py
import numpy as np
import plain
import pytest
import torch
from shipped import Shipped
from torch import Tensor, nn

from lab import build
from lab.models.gpt import GPT
from lab.models.gpt_lora import with_adapters
from lab.restore import restore
from samebits.errors import ConfigError
from samebits.testing import SMALL, assert_equal, compose, last_checkpoint, scores, start_run, values

SIZES = {"width": 16, "heads": 2, "layers": 1}
NAMES = ("chosen", "chosen_mask", "rejected", "rejected_mask")


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """(pairs of answers, of which the chosen ones have tokens below 6; the weights of a GPT)."""
    folder, draw = tmp_path_factory.mktemp("pairs"), np.random.default_rng(0)
    with h5py.File(folder / "pairs.h5", "w") as file:
        for split, count in (("train", 96), ("val", 25)):
            prompt = draw.integers(0, 11, (count, 4))
            for name, low, high in (("chosen", 0, 6), ("rejected", 5, 11)):
                answer, length = draw.integers(low, high, (count, 5)), draw.integers(1, 6, (count, 1))
                file[f"{split}/{name}"] = np.concatenate([prompt, answer], 1).astype(np.uint8)
                file[f"{split}/{name}_mask"] = np.concatenate([0 * prompt, np.arange(5) < length], 1).astype(np.uint8)
    torch.manual_seed(5)
    torch.save(GPT([9], 11, **SIZES, dropout=0.0).state_dict(), folder / "gpt.pt")
    return folder / "pairs.h5", folder / "gpt.pt"


def small(files: tuple[Path, Path]) -> tuple[str, ...]:
    sizes = [f"model.model.{name}={value}" for name, value in SIZES.items()]
    return ("task=dpo", f"task.weights={files[1]}", "data=pairs", f"data.path={files[0]}",
            "model=gpt_lora", "model.rank=2", *sizes, "optim.lr=1e-2", "task.beta=5")  # fmt: skip


class TestDPO(Shipped):
    loss_names = ("margin", "accuracy")

    @pytest.fixture
    def run(self, files: tuple[Path, Path]) -> tuple[str, ...]:
        return small(files)


def answer(model: nn.Module, tokens: Tensor, mask: Tensor) -> Tensor:
    """(B,) the logarithm of the answer's probability, token by token."""
    said = model(tokens[:, :-1]).log_softmax(2)
    return sum(torch.where(mask[:, t] > 0, said[range(len(tokens)), t - 1, tokens[:, t]], 0.0) for t in range(1, 9))  # type: ignore


def test_it_is_the_paper_s_loss(tmp_path: Path, files: tuple[Path, Path]) -> None:
    """Equation 7, in a plain loop; what is not an adapter stays bit for bit. The reference is in the run's folder, for
    whoever scores it."""
    run = (*SMALL, *small(files), *plain.PLAIN, "trainer.log_every=1", "trainer.max_steps=8", "task.beta=0.5")
    parts = build(compose(*run))
    parts.close()
    policy, begun = parts.model, torch.load(files[1], weights_only=True)
    reference = copy.deepcopy(policy)
    adapters = {name: p for name, p in policy.named_parameters() if p.requires_grad}
    assert sorted(adapters) == [f"blocks.0.{layer}.{part}" for layer in ("out", "qkv") for part in ("down", "up")]
    with h5py.File(files[0]) as file:
        rows = [torch.from_numpy(file["train"][name][:]).long() for name in NAMES]
    losses = []
    for chosen, chosen_mask, rejected, rejected_mask in zip(*(one.split(12) for one in rows)):
        better = answer(policy, chosen, chosen_mask) - answer(reference, chosen, chosen_mask).detach()
        worse = answer(policy, rejected, rejected_mask) - answer(reference, rejected, rejected_mask).detach()
        loss = -(0.5 * (better - worse)).sigmoid().log().mean()
        losses.append(loss.item())
        for p, g in zip(adapters.values(), torch.autograd.grad(loss, [*adapters.values()])):
            p.data -= 0.1 * g
    folder = start_run(tmp_path / "run", *run)
    plain.assert_trained(folder, policy)
    assert values(folder, "train/loss") == pytest.approx(losses, rel=1e-5)
    assert losses[0] == pytest.approx(math.log(2))  # nothing is added at first
    trained = last_checkpoint(folder)["model"]
    (newest,) = (folder / "checkpoints").glob("last_*8.pt")
    assert torch.load(newest, weights_only=True)["model"].keys() == adapters.keys()
    assert all(torch.equal(trained[name], value) for name, value in begun.items())
    assert scores(folder)["val/accuracy"] > 0.5
    assert_equal(restore(folder, "val", []).task.frozen_networks["reference"].state_dict(), reference.state_dict())


@pytest.mark.slow
def test_weights_that_do_not_fit(tmp_path: Path, files: tuple[Path, Path]) -> None:
    line = r"gpt\.pt: token\.weight do not fit the model - set data\.input_shape, data\.num_outputs"
    with pytest.raises(ConfigError, match=line):
        start_run(tmp_path / "run", *SMALL, *small(files), "data.num_outputs=12")


def test_an_adapter_is_a_matrix_of_low_rank() -> None:
    torch.manual_seed(0)
    base = nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3))
    model, x = with_adapters(copy.deepcopy(base), ["^2$"], rank=2, alpha=6.0), torch.randn(7, 5)
    assert torch.equal(model(x), base(x))
    down, up = model[2].down, nn.init.normal_(model[2].up)
    base[2].weight.data += 3 * up @ down
    torch.testing.assert_close(model(x), base(x))
    assert [name for name, p in model.named_parameters() if p.requires_grad] == ["2.down", "2.up"]
    with pytest.raises(ConfigError, match=r"model\.layers: no layer's name contains 'qvk'; names are 0, 1"):
        with_adapters(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)), ["qvk"], rank=1, alpha=1.0)
