"""experiment=cifar10_fast in small: the whitening layer, flips that alternate, a few steps that learn."""

from __future__ import annotations

import inspect
import shutil
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
import yaml
from common import QUICK, ROOT, needs
from torch import nn

from lab.models.cifar_fast import CifarFast
from lab.tasks.whitened import Whitened
from lab.transforms.alternating_flip import AlternatingFlip
from samebits.errors import ConfigError
from samebits.testing import assert_equal, last_checkpoint, result, start_run, values

pytestmark = needs("conf/experiment/cifar10_fast.yaml")


def test_patches_come_out_uncorrelated() -> None:
    """Of images with correlated pixels and channels: variance 1, but for the smallest components, and no covariance."""
    torch.manual_seed(0)
    noise = torch.randn(50, 3, 20, 20)
    images = torch.einsum("dc,bchw->bdhw", torch.randn(3, 3), noise + noise.roll(1, 3))
    model = CifarFast([3, 20, 20], 5, widths=[4, 4, 4], head_scale=0.1)
    model.whiten(images)
    out = torch.nn.functional.conv2d(images, model.whiten_weight).transpose(0, 1).flatten(1)
    assert torch.equal(out[:12], -out[12:])
    torch.testing.assert_close(out[:12] @ out[:12].T / out.shape[1], torch.eye(12), atol=0.02, rtol=0)
    assert "whiten_weight" in model.state_dict()
    assert "whiten_weight" not in dict(model.named_parameters())


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile wants a C++ compiler")
def test_gradients_are_finite_compiled_in_half_precision() -> None:
    """A compiler may compute what a maximum is taken of again for the backward pass, in another precision: amax then
    finds no element that is the maximum, and divides by their number. (Seen on a GPU.) Without the groups, which take
    half a minute to compile."""
    torch.manual_seed(0)
    model, x = CifarFast([3, 8, 8], 10, [8, 8, 24], 0.1), torch.randn(32, 3, 8, 8)
    model.groups = nn.Sequential()
    model.whiten(x)
    with torch.autocast("cpu", torch.bfloat16):
        out = torch.compile(model)(x)
    nn.functional.cross_entropy(out.float(), torch.arange(32) % 10).backward()
    assert all(p.grad.isfinite().all() for p in model.parameters() if p.requires_grad)


def test_each_image_is_seen_both_ways_in_two_epochs() -> None:
    """Whatever its number in them; half of the images are mirrored in each; other halves with another seed."""
    images = torch.randint(0, 256, (400, 3, 6, 6)).float() / 255
    flip, other = (AlternatingFlip("x", 400, seed) for seed in (0, 1))

    def flipped(transform: AlternatingFlip, epoch: int) -> torch.Tensor:
        """In another order in each epoch, in two batches."""
        rows = torch.randperm(400)
        found = torch.zeros(400, dtype=torch.bool)
        for part in (slice(0, 250), slice(250, 400)):
            x, numbers = images[rows[part]], torch.arange(400)[part] + 400 * epoch
            out = transform({"x": x}, numbers)["x"]
            found[rows[part]] = (out == x.flip(-1)).flatten(1).all(1)
            assert ((out == x).flatten(1).all(1) != found[rows[part]]).all()
        return found

    first = flipped(flip, 0)
    assert 150 < int(first.sum()) < 250
    for epoch in range(1, 5):
        assert torch.equal(flipped(flip, epoch), first ^ bool(epoch % 2))
    assert 100 < int((flipped(other, 0) ^ first).sum()) < 300


def test_evaluations_average_over_views() -> None:
    """Of a model that returns its image: moved by one pixel each way along the diagonal, mirrored or not."""
    task = Whitened(lambda output, batch: output, {}, 1, views=6)
    image = torch.zeros(1, 1, 8, 8)
    image[..., 3, 2] = 1.0
    model = nn.Identity()
    assert torch.equal(task.predict(model, {"x": image}), image)
    model.eval()
    seen = task.predict(model, {"x": image})[0, 0]
    expected = torch.zeros(8, 8)
    for row, column, share in ((3, 2, 1 / 4), (4, 3, 1 / 8), (2, 1, 1 / 8)):
        expected[row, column] += share
        expected[row, 7 - column] += share
    assert torch.equal(seen, expected)
    default = inspect.signature(Whitened).parameters["views"].default  # runs that were saved without it have this
    assert default == yaml.safe_load((ROOT / "conf/task/whitened.yaml").read_text())["views"]
    task.views = 2
    assert torch.equal(task.predict(model, {"x": image}), (image + image.flip(-1)) / 2)
    task.views = 1
    assert torch.equal(task.predict(model, {"x": image}), image)
    with pytest.raises(ConfigError, match=r"task\.views=3: must be one of 1, 2, 6"):
        Whitened(lambda output, batch: output, {}, 1, views=3)


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Four classes: which quarter of the image is the brighter one."""
    path = tmp_path_factory.mktemp("images") / "images.h5"
    random = np.random.default_rng(0)
    with h5py.File(path, "w") as file:
        for split, count in (("train", 400), ("test", 40)):
            labels = np.sort(np.arange(count) % 4)
            pixels = random.integers(0, 128, (count, 3, 32, 32))
            for image, label in zip(pixels, labels, strict=True):
                image[:, 16 * (label // 2) :][:, :16] += 40
                image[label % 2] += 60
            file[f"{split}/image"] = pixels.clip(0, 255).astype(np.uint8)
            file.create_dataset(f"{split}/label", data=labels.astype(np.uint8)).attrs["classes"] = 4
    return str(path)


def overrides(path: str) -> tuple[str, ...]:
    quick = [one for one in QUICK if "model." not in one]
    return (
        "experiment=cifar10_fast", *quick, f"data.path={path}", "model.widths=[8,8,8]", "trainer.max_epochs=null",
        "trainer.max_steps=24", "trainer.global_batch_size=60", "trainer.eval_every=12", "trainer.log_every=1",
        "task.count=100", "data.transforms.flip.epoch_samples=360",
    )  # fmt: skip


@pytest.mark.slow
def test_the_first_layer_is_not_trained_and_kernels_keep_their_norm(tmp_path: Path, images: str) -> None:
    """It is computed when the run begins, and is in checkpoints; its bias is trained. The norm of a kernel is that of
    Muon's updates, the root of the number of rows, after each step."""
    one, two = (start_run(tmp_path / str(n), *overrides(images), f"trainer.max_steps={n}") for n in (1, 2))
    assert "2x2 patches of 100 images" in (one / "train.log").read_text()
    first, second = (last_checkpoint(run)["model"] for run in (one, two))
    assert first["whiten_weight"].abs().sum() > 0
    assert_equal(first["whiten_weight"], second["whiten_weight"])
    assert first["whiten_bias"].any()
    kernels = [value for name, value in second.items() if name.startswith("groups.") and value.ndim == 2]
    assert [len(kernel) for kernel in kernels] == [8] * 6
    for kernel in kernels:
        assert kernel.norm().item() == pytest.approx(8**0.5, rel=1e-5)


@pytest.mark.slow
def test_a_short_stage_learns_on_any_ranks(tmp_path: Path, images: str) -> None:
    """Two ranks are one rank of two micro-batches, but for BatchNorm's own statistics of each."""
    one = start_run(tmp_path / "one", *overrides(images), "hardware.micro_batch_size=30")
    two = start_run(tmp_path / "two", *overrides(images), "trainer=ddp", "hardware.num_procs=2")
    for key in ("train/loss", "train/grad_norm"):
        assert values(two, key) == pytest.approx(values(one, key), rel=2e-2), key
    losses = values(one, "train/loss")
    assert min(losses[-3:]) < losses[0] - 0.2
    assert result(one)["test/accuracy"] > 0.6  # a guess: 0.25


@pytest.mark.slow
def test_another_model_is_refused(tmp_path: Path, images: str) -> None:
    with pytest.raises(ConfigError, match="task=whitened: MLP has no layer to whiten - use model=cifar_fast"):
        start_run(
            tmp_path / "run", *QUICK, "task=whitened", "+data.transforms.normalize.mean=[0.5]", "trainer.max_steps=1",
            "+data.transforms.normalize.std=[0.5]", "+data.transforms.normalize.field=x",
            "+data.transforms.normalize._target_=lab.transforms.fields.Normalize",
        )  # fmt: skip
