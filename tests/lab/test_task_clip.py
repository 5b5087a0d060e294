"""task=clip: two encoders, texts of different length, and a loss across samples that no micro-batch changes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from common import needs
from shipped import Shipped
from torch import Tensor, nn
from torch.nn import functional as F

from lab.restore import score_checkpoint
from lab.tasks.clip import CLIP
from samebits.errors import ConfigError
from samebits.testing import SMALL, TaskTests, result, start_run
from samebits.testing.processes import on_ranks
from samebits.world import World, world_of_one

Recall = pytest.importorskip("lab.metrics.retrieval").Recall
TextEncoder = pytest.importorskip("lab.models.text_encoder").TextEncoder
pytestmark = needs("conf/task/clip.yaml", "conf/data/captions.yaml")
RUN = (
    "task=clip", "data=captions", "model.num_outputs=16", "model.hidden=[32]", "task.text_encoder.width=16",
    "task.text_encoder.layers=1", "task.text_encoder.heads=2", "optim.lr=1e-2", "+optim.eps=1e-5",
)  # fmt: skip


@pytest.fixture(scope="module")
def captions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images whose brightness in four places is what their text says, in one to eight tokens."""
    path, draw = tmp_path_factory.mktemp("captions") / "captions.h5", np.random.default_rng(0)
    with h5py.File(path, "w") as file:
        for split, size in (("train", 200), ("val", 50), ("test", 20)):
            levels = draw.integers(0, 5, (size, 4))
            image = draw.normal(0, 10, (size, 1, 8, 8)) + 40 * levels.reshape(size, 1, 2, 2).repeat(4, 2).repeat(4, 3)
            file[f"{split}/image"] = image.clip(0, 255).astype(np.uint8)
            texts = [5 * np.arange(4) + row for row in levels]
            texts = [np.repeat(text, 1 + k % 2)[: 8 - k % 3] for k, text in enumerate(texts)]
            file[f"{split}/caption/values"] = np.concatenate(texts).astype(np.uint8)
            file[f"{split}/caption/offsets"] = np.cumsum([0, *map(len, texts)])
    return path


class TestCLIP(Shipped):
    """Its 50 samples of an evaluation leave a last batch of 2, which 3 ranks share with a padded row."""

    loss_names = ("top1", "temperature")
    overfits_to = 0.2
    ways = (["micro-batches", "2 ranks, micro-batches", "3 ranks"],)
    test_debug_overfit = TaskTests.test_debug_overfit

    @pytest.fixture
    def run(self, captions: Path) -> tuple[str, ...]:
        return (*RUN, f"data.path={captions}")


@pytest.mark.slow
def test_scores_depend_on_the_evaluation_s_batch_only(tmp_path: Path, captions: Path) -> None:
    """Not on the micro-batch; and recall not even on that."""
    run = start_run(tmp_path, *SMALL, *RUN, f"data.path={captions}", "trainer.max_steps=4")
    scores = [
        score_checkpoint(run, "val", [f"hardware.{size}"])
        for size in ("micro_batch_size=null", "micro_batch_size=5", "eval_batch_size=5")
    ]
    assert scores[0] == pytest.approx(scores[1], rel=1e-6)
    assert scores[0]["loss"] > scores[2]["loss"] * 1.1
    assert scores[0]["recall/image_to_text"] == scores[2]["recall/image_to_text"]
    assert "test/recall/text_to_image" in result(run)


# ---- the gradient


class Wide(nn.Module):
    """Token ids and mask -> (B, 3)."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(9, 3)

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        return (self.table(tokens) * mask[:, :, None]).sum(1)


def made() -> tuple[nn.Module, CLIP, dict[str, Tensor]]:
    torch.manual_seed(0)
    model, task = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)), CLIP(Wide(), 0.2, "x", "text", {})
    batch = {"x": torch.randn(12, 4), "text": torch.randint(0, 9, (12, 5)), "text_length": torch.arange(12) % 5 + 1,
             "sample_id": torch.arange(12)}  # fmt: skip
    return model, task, batch


class Step:
    """An optimizer_step that only computes gradients, as the loop's does. padding: rows that do not count."""

    def __init__(self, model: nn.Module, task: CLIP) -> None:
        self.model, self.task = model, task

    @torch.no_grad()
    def outputs(self, function: Any, batches: list[dict[str, Tensor]]) -> list[Tensor]:
        return [function(batch) for batch in batches]

    def __call__(self, objective: str, batches: list[dict[str, Tensor]]) -> dict[str, Tensor]:
        real = sum(int((batch["sample_id"] >= 0).sum()) for batch in batches)
        total = 0.0
        for batch in batches:
            losses, _ = self.task.losses(self.model, batch)
            loss = (losses["loss"] * (batch["sample_id"] >= 0)).sum() / real
            loss.backward()
            total += loss.item()
        return {"loss": torch.tensor(total)}


def parts_of(batch: dict[str, Tensor], size: int) -> list[dict[str, Tensor]]:
    return [dict(zip(batch, part)) for part in zip(*(value.split(size) for value in batch.values()))]


def plain(padding: int) -> tuple[Tensor, list[Tensor]]:
    """The loss and its gradients, by the formula with all samples at once."""
    model, task, batch = made()
    mask = torch.arange(5) < batch["text_length"][:, None]
    a, b = (
        F.normalize(one, dim=1)[: 12 - padding] for one in (model(batch["x"]), task.text_encoder(batch["text"], mask))
    )
    logits, target = task.log_scale.exp() * a @ b.T, torch.arange(12 - padding)
    loss = (F.cross_entropy(logits, target) + F.cross_entropy(logits.T, target)) / 2
    loss.backward()
    return loss.detach(), [p.grad for module in (model, task) for p in module.parameters() if p.grad is not None]


@pytest.mark.parametrize("padding", [0, 2])
@pytest.mark.parametrize("size", [12, 5, 1])
def test_the_gradient_is_that_of_all_samples_at_once(size: int, padding: int) -> None:
    """Also of the temperature, and with rows that only fill up the last batch."""
    (loss, wanted), (model, task, batch) = plain(padding), made()
    batch["sample_id"][12 - padding :] = -1
    values = task.train_step(0, iter(parts_of(batch, size)), Step(model, task))  # type: ignore[arg-type]
    torch.testing.assert_close(values["loss"], loss)
    parameters = [p for module in (model, task) for p in module.parameters()]
    assert len(wanted) == len(parameters) == 6
    for p, gradient in zip(parameters, wanted, strict=True):
        torch.testing.assert_close(p.grad, gradient)


def test_the_gradient_of_two_ranks_is_that_of_all_samples(tmp_path: Path) -> None:
    """Ranks average their gradients."""

    def work(world: World, folder: Path) -> None:
        (_, wanted), (model, task, batch) = plain(0), made()
        own = parts_of(batch, 6)[world.rank]
        task.train_step(0, iter(parts_of(own, 4)), Step(model, task))  # type: ignore[arg-type]
        parameters = [p for module in (model, task) for p in module.parameters()]
        for p, gradient in zip(parameters, wanted, strict=True):
            assert p.grad is not None
            torch.testing.assert_close(world.all_reduce_sum(p.grad) / 2, gradient)

    on_ranks(work, tmp_path / "work")


# ---- texts


def test_padding_of_a_text_changes_nothing() -> None:
    torch.manual_seed(0)
    encoder = TextEncoder(9, 3, 7, 8, 2, 2, 0.0)
    texts = [torch.tensor([4, 2, 7]), torch.tensor([1]), torch.tensor([3, 3, 8, 0, 5])]
    tokens = nn.utils.rnn.pad_sequence(texts, batch_first=True, padding_value=6)
    mask = torch.arange(5) < torch.tensor([3, 1, 5])[:, None]
    together = encoder(tokens, mask)
    for k, text in enumerate(texts):
        torch.testing.assert_close(together[k], encoder(text[None], torch.ones(1, len(text)) > 0)[0])
    empty = encoder(tokens, torch.zeros(3, 5) > 0)
    assert empty.isfinite().all()
    with pytest.raises(ConfigError, match=r"8 tokens, but has positions for 7: increase task.text_encoder.longest"):
        encoder(torch.zeros(1, 8, dtype=torch.int64), torch.ones(1, 8) > 0)


def test_predictions_need_no_texts() -> None:
    model, task, batch = made()
    with_texts = task.predict(model, batch)
    assert set(with_texts) == {"image", "text"}
    assert torch.equal(task.predict(model, {"x": batch["x"]})["image"], with_texts["image"])
    assert task.show(tuple(with_texts.values()), batch, 5)["similarity"].shape == (5, 5)


def test_what_cannot_be() -> None:
    model, task, batch = made()
    for changed, line in (
        ({"text": batch["text"].float()}, "task.text=text: must be a field of token ids, integers (B, T); the batch"),
        ({"text": batch["text"][:, 0]}, "use data=captions"),
    ):
        with pytest.raises(ConfigError, match=re.escape(line)):
            task.losses(model, batch | changed)
    with pytest.raises(ConfigError, match=re.escape("shapes (12, 4) and (12, 3): both encoders need the same num_ou")):
        task.losses(nn.Identity(), batch)


# ---- recall


def test_recall_is_that_of_a_sort(tmp_path: Path) -> None:
    """Of all samples, whatever the batches and ranks; ties count as broken at random."""
    draw = torch.Generator().manual_seed(0)
    images = torch.randn(30, 4, generator=draw)
    texts = images + torch.randn(30, 4, generator=draw)

    def score(world: World, k: int) -> dict[str, float]:
        metric = Recall(k)
        for one in list(range(30))[world.rank :: world.size]:
            metric.update((images[one : one + 1], texts[one : one + 1]), {})
        return metric.compute(world)

    for k in (1, 5):
        found = (images @ texts.T).argsort(1, descending=True)[:, :k] == torch.arange(30)[:, None]
        asked = (texts @ images.T).argsort(1, descending=True)[:, :k] == torch.arange(30)[:, None]
        wanted = {"image_to_text": found.sum().item() / 30, "text_to_image": asked.sum().item() / 30}
        assert score(world_of_one(), k) == pytest.approx(wanted)

        def work(world: World, folder: Path, k: int = k, wanted: dict[str, float] = wanted) -> None:
            assert score(world, k) == pytest.approx(wanted)

        on_ranks(work, tmp_path / f"{k}")
    same = torch.ones(10, 2)
    assert Recall(1).recall(same, same) == pytest.approx(0.1)
    assert Recall(1).recall(same * torch.nan, same) == 0
    assert all(value != value for value in Recall(1).compute(world_of_one()).values())


def test_compiled_with_micro_batches_is_refused(captions: Path, tmp_path: Path) -> None:
    """Inductor's dropout differs between the two passes."""
    options = ("hardware.compile=default", "hardware.micro_batch_size=8", f"data.path={captions}")
    with pytest.raises(
        ConfigError, match=r"^hardware\.compile=default: with several micro-batches CLIP computes each "
    ):
        start_run(tmp_path, *RUN, *SMALL, *options, "trainer.max_steps=1")
