"""task=pose: three weighted losses, and a batch with names in it."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
import yaml
from common import ROOT
from shipped import Stateless
from torch import Tensor, nn

from lab.tasks.pose import Pose, reprojection
from samebits.errors import ConfigError
from samebits.testing import SMALL, scores, start_run

BONES = yaml.safe_load((ROOT / "conf/task/pose.yaml").read_text())["bones"]
FACTORS = {"position": 1.0, "bones": 0.5, "reprojection": 0.1}
# names of its own in the batch, beside the default's x and y
FIELDS = (
    "+data.fields.part=part", "+data.fields.S=S", "+data.fields.images=images",
    "~data.fields.x", "~data.fields.y", "~data.transforms.to_float", "data.input_shape=${h5_shape:part}",
    "data.num_outputs=${h5_outputs:S}",
)  # fmt: skip


def poses(count: int, seed: int) -> np.ndarray:
    """(count, 17, 3): a skeleton of bones of fixed length whose directions differ."""
    random = np.random.default_rng(seed)
    pose = np.zeros((count, 17, 3))
    rest = np.random.default_rng(9).normal(size=(len(BONES), 3))
    for (parent, joint), direction in zip(BONES, rest):
        way = direction + 0.4 * random.normal(size=(count, 3))
        pose[:, joint] = pose[:, parent] + 0.25 * way / np.linalg.norm(way, axis=1, keepdims=True)
    return pose.astype(np.float32)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    path = tmp_path_factory.mktemp("pose") / "pose.h5"
    with h5py.File(path, "w") as file:
        for seed, (split, count) in enumerate((("train", 150), ("val", 31))):
            pose = poses(count, seed)
            file[f"{split}/S"], file[f"{split}/part"] = pose, pose[..., :2] / (5 + pose[..., 2:])
            file[f"{split}/images"] = [f"S{k % 7}/walking_{k:05d}.jpg" for k in range(count)]
    return (
        f"data.path={path}", "data.splits.test=null", *FIELDS, "task=pose", "task.input=part", "task.target=S",
        "model.hidden=[64]", "optim.lr=3e-3",
    )  # fmt: skip


class TestPose(Stateless):
    loss_names = ("position", "bones", "reprojection")


@pytest.mark.slow
def test_the_command_in_the_yaml_runs(tmp_path: Path, run: tuple[str, ...]) -> None:
    fields = ("task=pose", "data.fields.x=part", "data.fields.y=S", "+data.fields.name=images")
    folder = start_run(tmp_path, *SMALL, *run[:2], *fields, "trainer.max_steps=1", "model.hidden=[8]")
    found = {name: scores(folder)[f"val/{name}"] for name in ("loss", *FACTORS)}
    assert found["loss"] == pytest.approx(sum(FACTORS[name] * found[name] for name in FACTORS), rel=1e-5)


class Fixed(nn.Module):
    def __init__(self, output: Tensor) -> None:
        super().__init__()
        self.output = output

    def forward(self, x: Tensor) -> Tensor:
        return self.output.flatten(1)


def losses_of(pose: Tensor, batch: dict[str, Tensor], **changed: object) -> dict[str, Tensor]:
    given = {"input": "part", "target": "S", "bones": [[0, 1], [1, 2]], "factors": FACTORS, "metrics": {}}
    return dict(Pose(**{**given, **changed}).losses(Fixed(pose), batch)[0])  # type: ignore[arg-type]


def test_what_each_loss_measures() -> None:
    torch.manual_seed(0)
    target = torch.randn(4, 3, 3)
    batch = {"part": target[..., :2] * 7 + 3, "S": target}  # another scale, another place
    zero = torch.zeros(4)
    for value in losses_of(target, batch).values():
        torch.testing.assert_close(value, zero, atol=1e-5, rtol=0)
    moved = losses_of(target + torch.tensor([3.0, 0, 4]), batch)
    torch.testing.assert_close(moved["position"], zero + 5)
    torch.testing.assert_close(moved["bones"] + moved["reprojection"], zero, atol=1e-5, rtol=0)
    larger = losses_of(2 * target, batch)
    lengths = torch.linalg.vector_norm(target[:, 1:] - target[:, :-1], dim=2).mean(1)
    torch.testing.assert_close(larger["bones"], lengths)
    torch.testing.assert_close(larger["reprojection"], zero, atol=1e-5, rtol=0)
    deeper = losses_of(target * torch.tensor([1.0, 1, 3]), batch)
    torch.testing.assert_close(deeper["reprojection"], zero, atol=1e-5, rtol=0)
    assert (losses_of(target.flip(1), batch)["reprojection"] > 0.1).all()
    torch.testing.assert_close(moved["loss"], sum(FACTORS[name] * moved[name] for name in FACTORS))


def test_gradients_are_finite_where_a_distance_is_zero() -> None:
    pose = torch.zeros(2, 3, 3, requires_grad=True)
    batch = {"part": torch.zeros(2, 3, 2), "S": torch.zeros(2, 3, 3)}
    losses_of(pose, batch)["loss"].sum().backward()
    assert pose.grad is not None
    assert pose.grad.isfinite().all()
    assert reprojection(pose, torch.zeros(2, 3, 2)).isfinite().all()


def test_mistakes() -> None:
    for changed, line in (
        ({"factors": {"position": 1.0}}, "task.factors.*give one for each of position, bones, reprojection"),
        ({"bones": [[0, 1, 2]]}, "task.bones.*pairs"),
        ({"input": "parts"}, r"task.input=parts: not in the batch, which has \['S', 'part'\]"),
        ({"target": "part"}, r"task.target=part: \(2, 3, 2\); expected \(B, 3 joints, 3\)"),
        ({"bones": [[0, 3]]}, r"task.input=part: \(2, 3, 2\); expected \(B, 4 joints, 2\)"),
    ):
        with pytest.raises(ConfigError, match=line):
            losses_of(torch.zeros(2, 3, 3), {"part": torch.zeros(2, 3, 2), "S": torch.zeros(2, 3, 3)}, **changed)
