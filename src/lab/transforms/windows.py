"""Windows of fields whose samples differ in length, such as audio (B, T) and video (B, T, H, W, C)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from lab.transforms.fields import Batch, field_of
from samebits.data import SampleRNG
from samebits.errors import ConfigError
from samebits.schema import Count


class CenterWindow:
    """Cut the middle `size` steps out of each sample. Shorter samples get zeros at their end.

    field: one field (B, T, ...), or several that have the same lengths and get the same window. The batch's
    <field>_length becomes the number of steps before the zeros; a field without it has T steps."""

    random = False

    def __init__(self, field: str | Sequence[str], size: Count) -> None:
        self.fields, self.size = [field] if isinstance(field, str) else list(field), size

    def begins(self, spare: Tensor, sample_ids: Tensor) -> Tensor:
        """Return the first step of each window, (B,). spare: (B,), the largest first step allowed, at least 0."""
        return spare // 2

    def __call__(self, batch: Batch, sample_ids: Tensor) -> Batch:
        """Return the batch with fields (B, size, ...). Raise ConfigError if a field is missing or has no steps."""
        cut = dict(batch)
        for field in self.fields:
            argument = f"{type(self).__name__}.field"
            x = field_of(batch, field, argument)
            if x.dim() < 2:
                raise ConfigError(
                    f"data.transforms: {argument}={field!r} is {tuple(x.shape)}; expected (B, T, ...): samples of "
                    "several steps"
                )
            given = batch.get(f"{field}_length")
            length = torch.full_like(sample_ids, x.shape[1]) if given is None else given.to(x.device)
            begin = self.begins((length - self.size).clamp(min=0), sample_ids)
            steps = begin[:, None] + torch.arange(self.size, device=x.device)
            inside = (steps < length[:, None]).view(len(x), self.size, *[1] * (x.dim() - 2))
            if not x.shape[1]:  # all samples of the batch are empty
                x = x.new_zeros(len(x), 1, *x.shape[2:])
            taken = x[torch.arange(len(x), device=x.device)[:, None], steps.clamp(max=x.shape[1] - 1)]
            cut[field] = torch.where(inside, taken, torch.zeros((), dtype=x.dtype, device=x.device))
            cut[f"{field}_length"] = length.clamp(max=self.size)
        return cut


class RandomWindow(CenterWindow):
    """Cut `size` steps out of each sample, at a place drawn from the seed and the sample id."""

    random = True

    def __init__(self, field: str | Sequence[str], size: Count, seed: int) -> None:
        super().__init__(field, size)
        self._rng = SampleRNG(seed, "RandomWindow")

    def begins(self, spare: Tensor, sample_ids: Tensor) -> Tensor:
        """Return the first step of each window, each possible one with the same probability."""
        drawn: Tensor = self._rng.below(sample_ids, (1 << 24,))[:, 0] * (spare + 1) >> 24
        return drawn
