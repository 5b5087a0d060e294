"""task=mae: what is masked is the sample's, only that is learned, and the encoder serves a classifier."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from common import QUICK, needs
from shipped import Shipped
from torch import nn

from lab.restore import score_checkpoint
from lab.tasks.mae import MAE
from samebits.errors import ConfigError
from samebits.testing import SMALL, TaskTests, last_checkpoint, result, start_run

vit = pytest.importorskip("lab.models.vit")
pytestmark = needs("data/digits.h5", "conf/task/mae.yaml", "conf/model/vit.yaml")
NET = ("model=vit", "model.width=16", "model.heads=2", "model.layers=1")
RUN = ("task=mae", *NET, "task.decoder.width=16", "task.decoder.heads=2", "task.decoder.layers=1", "optim.lr=1e-2",
       "+optim.eps=1e-5", "hardware.eval_batch_size=50", "trainer.max_eval_batches=8")  # fmt: skip


class TestMAE(Shipped):
    overfits_to = 0.8
    test_debug_overfit = TaskTests.test_debug_overfit

    @pytest.fixture
    def run(self) -> tuple[str, ...]:
        return RUN


def made(ratio: float = 0.75, normalize: bool = False) -> tuple[nn.Module, MAE, dict[str, torch.Tensor]]:
    torch.manual_seed(0)
    model = vit.ViT([3, 8, 12], 5, 4, 8, 2, 2, 0.0)
    task = MAE(vit.PatchDecoder([3, 8, 12], 8, 4, 12, 2, 1), ratio, normalize, seed=0)
    return model, task, {"x": torch.rand(4, 3, 8, 12), "sample_id": torch.tensor([9, 4, 7, 1])}


def test_patches_and_images_are_inverse() -> None:
    x = torch.rand(2, 3, 8, 12)
    parts = vit.patches(x, 4)
    assert parts.shape == (2, 6, 48)
    assert torch.equal(parts[1, 4].view(3, 4, 4), x[1, :, 4:8, 4:8])
    assert torch.equal(vit.images(parts, x.shape[1:], 4), x)


def test_the_mask_is_the_sample_s() -> None:
    """Whatever the batch; and each sample id has its own."""
    _, task, _ = made()
    kept, masked = task.masks(torch.arange(200), 16)
    assert kept.shape == (200, 4)
    assert masked.sum(1).eq(12).all()
    assert not masked.gather(1, kept).any()
    assert torch.equal(task.masks(torch.tensor([150, 3]), 16)[0], kept[[150, 3]])
    assert len(kept.unique(dim=0)) > 150
    assert masked.float().mean(0).sub(0.75).abs().max() < 0.12  # no patch is preferred


@pytest.mark.parametrize("normalize", [False, True])
def test_only_masked_patches_count_and_only_the_others_are_seen(normalize: bool) -> None:
    model, task, batch = made(0.5, normalize)
    losses, output = task.losses(model, batch)
    masked = output["masked"]
    wanted = vit.patches(batch["x"], 4)
    if normalize:
        wanted = (wanted - wanted.mean(2, keepdim=True)) / (wanted.var(2, keepdim=True) + 1e-6).sqrt()
    for k in range(4):
        error = (output["pixels"][k][masked[k]] - wanted[k][masked[k]]).square().mean()
        torch.testing.assert_close(losses["loss"][k], error)
    # other pixels in the masked patches change no output, other pixels elsewhere do
    parts = vit.patches(batch["x"], 4)
    for hidden, same in ((masked, True), (~masked, False)):
        x = vit.images(torch.where(hidden[:, :, None], 1 - parts, parts), (3, 8, 12), 4)
        pixels = task.losses(model, batch | {"x": x})[1]["pixels"]
        assert torch.allclose(pixels, output["pixels"], atol=1e-6) == same


def test_the_model_sees_places() -> None:
    """The vectors of some patches are those of an image that has no others."""
    model, _, batch = made()
    all_of = torch.arange(6).expand(4, -1)
    torch.testing.assert_close(model.features(batch["x"], all_of), model.features(batch["x"]))
    two = model.features(batch["x"], all_of[:, 2:4])
    assert two.shape == (4, 2, 8)
    moved = batch["x"].roll(4, 3)  # the same patches, elsewhere
    assert not torch.allclose(model.features(moved, all_of[:, 2:4]), two, atol=1e-3)
    assert model.position.unique(dim=0).shape == (6, 8)


def test_the_picture_has_the_image_the_seen_and_the_drawn() -> None:
    model, task, batch = made(0.5, normalize=True)
    output = task.losses(model, batch)[1]
    picture = task.show(output, batch, 2)["reconstructed"]
    assert picture.shape == (3, 3 * 8, 2 * 12)
    given, seen, drawn = (vit.patches(picture[:, 8 * k : 8 * k + 8, :12][None], 4)[0] for k in range(3))
    masked = output["masked"][0]
    assert torch.equal(given, vit.patches(batch["x"][:1], 4)[0])
    assert torch.equal(seen[~masked], given[~masked])
    assert not seen[masked].any()
    assert torch.equal(drawn[~masked], given[~masked])
    parts = given[masked]
    mean, std = parts.mean(1, keepdim=True), (parts.var(1, keepdim=True) + 1e-6).sqrt()
    torch.testing.assert_close(drawn[masked], (output["pixels"][0][masked] * std + mean).clamp(0, 1))


@needs("conf/task/finetune.yaml")
@pytest.mark.slow
def test_a_classifier_starts_from_the_encoder(tmp_path: Path) -> None:
    """With its own head; and scores do not depend on the evaluation's batches."""
    run = start_run(tmp_path / "mae", *SMALL, *RUN, "trainer.max_steps=4", "trainer.ema_decay=null")
    scores = [score_checkpoint(run, "val", [f"hardware.eval_batch_size={size}"]) for size in (50, 7)]
    assert scores[0] == pytest.approx(scores[1], rel=1e-5)
    trained = last_checkpoint(run)["model"]
    quick = [one for one in QUICK if not one.startswith("model.")]
    tuned = start_run(
        tmp_path / "tuned", *quick, *NET, "task=finetune", f"task.weights={run}", "trainer.max_steps=1", "optim.lr=0",
        "model.num_outputs=10", "task.freeze=['^blocks']",
    )  # fmt: skip
    loaded = last_checkpoint(tuned)["model"]
    assert loaded.keys() == trained.keys()
    for name in trained:
        assert torch.equal(loaded[name], trained[name]), name
    assert "test/accuracy" in result(tuned)


def test_what_cannot_be() -> None:
    for ratio, count in ((0.05, 0), (0.95, 6)):
        model, task, batch = made(ratio)
        line = f"task.mask_ratio={ratio}: masks {count} of 6 patches"
        with pytest.raises(ConfigError, match=re.escape(line)):
            task.losses(model, batch)
    model, task, batch = made()
    task.setup(model)
    assert not any(p.requires_grad for p in model.head.parameters())
    with pytest.raises(ConfigError, match=r"task=mae: expected a model with .* got Linear - use model=vit"):
        task.setup(nn.Linear(2, 2))
    task.decoder = vit.PatchDecoder([3, 8, 12], 8, 2, 12, 2, 1)
    with pytest.raises(ConfigError, match=r"task\.decoder: returns \(24, 12\) .* patches are \(6, 48\)"):
        task.losses(model, batch)
    with pytest.raises(ConfigError, match=r"model\.patch=5: expected images"):
        vit.ViT([3, 8, 12], 5, 5, 8, 2, 2, 0.0)
    with pytest.raises(ConfigError, match=r"model\.width=10: must be a multiple of model\.heads=2 and of 4"):
        vit.ViT([3, 8, 12], 5, 4, 10, 2, 2, 0.0)
    with pytest.raises(ConfigError, match=r"built for 6 patches of 48 values, but an image \(3, 8, 8\) has 4"):
        model(torch.rand(1, 3, 8, 8))
