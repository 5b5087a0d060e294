"""Estimate 3D joints from 2D joints: a weighted sum of three losses, each of which is logged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.linalg import vector_norm

from lab.tasks.base import Batch, Losses, Metric, Task
from samebits.errors import ConfigError
from samebits.schema import NotNegative


class Pose(Task):
    """model(batch[input]) -> (B, J * 3) or (B, J, 3). batch[target]: (B, J, 3); further columns are ignored.

    Each loss is a mean over the joints or bones of a sample, in the unit of length of the target:

        position      distance from the target joint (MPJPE)
        bones         absolute difference of bone lengths
        reprojection  distance in the first two axes from the image's joints, which are scaled by least squares

    input: name of a field (B, J, 2) whose axes are the first two of the target; further columns are not used in the
    loss. bones: pairs of joints. factors: {loss: its weight in the minimized sum}. metrics: see lab.metrics.base.
    """

    loss_names = ("position", "bones", "reprojection")
    bones: Tensor

    def __init__(
        self,
        input: str,
        target: str,
        bones: Sequence[Sequence[int]],
        factors: Mapping[str, NotNegative],
        metrics: Mapping[str, Metric],
    ) -> None:
        super().__init__()
        if sorted(factors) != sorted(self.loss_names):
            raise ConfigError(f"task.factors={dict(factors)}: give one for each of {', '.join(self.loss_names)}")
        if not bones or any(len(bone) != 2 for bone in bones):
            raise ConfigError(f"task.bones={bones}: give pairs of joints")
        self.input, self.target, self.factors = input, target, dict(factors)
        self.metrics = metrics
        self.num_joints = 1 + max(map(max, bones))
        self.register_buffer("bones", torch.tensor(bones), persistent=False)  # (N, 2)

    def losses(self, model: nn.Module, batch: Batch) -> tuple[Losses, Any]:
        """Return the weighted sum and the three losses, (B,) each, and the pose (B, J, 3)."""
        for key, columns in (("input", 2), ("target", 3)):
            field = getattr(self, key)
            shape = tuple(batch[field].shape) if field in batch else f"not in the batch, which has {sorted(batch)}"
            if isinstance(shape, str) or len(shape) != 3 or shape[1] < self.num_joints or shape[2] < columns:
                raise ConfigError(f"task.{key}={field}: {shape}; expected (B, {self.num_joints} joints, {columns})")
        image, target = batch[self.input], batch[self.target][..., :3]
        pose = self.predict(model, batch)
        values = {
            "position": vector_norm(pose - target, dim=2).mean(1),
            "bones": (self.lengths(pose) - self.lengths(target)).abs().mean(1),
            "reprojection": reprojection(pose, image[..., :2]),
        }
        loss = torch.stack([self.factors[name] * value for name, value in values.items()]).sum(0)
        return {"loss": loss, **values}, pose

    def predict(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return the pose (B, J, 3)."""
        image = batch[self.input]
        # float: half precision is too coarse for millimeters
        return model(image).float().reshape(*image.shape[:2], -1)[..., :3]

    def lengths(self, pose: Tensor) -> Tensor:
        """Return the bone lengths (B, N) of pose, (B, J, 3)."""
        begin, end = pose[:, self.bones].unbind(2)
        return vector_norm(end - begin, dim=2)


def reprojection(pose: Tensor, image: Tensor) -> Tensor:
    """Return the mean distance (B,) of the joints under a weak perspective camera. pose: (B, J, 3); image: (B, J,
    2)."""
    seen = pose[..., :2] - pose[..., :2].mean(1, keepdim=True)
    image = image - image.mean(1, keepdim=True)
    # scale the image to the pose, because a division by the pose's size has exploding gradients for poses near zero
    scale = (image * seen).sum((1, 2)) / image.square().sum((1, 2)).clamp(min=1e-12)
    return vector_norm(seen - scale[:, None, None] * image, dim=2).mean(1)
