"""Windows of a token stream, the data of a language model.

stream   t0 t1 t2 t3 t4 t5 t6 ...      1-D integers; shards (files) in order; no window spans two shards
row 0    [t0 .. t4]                    window + 1 tokens, as int64
row 1          [t2 .. t6]              stride tokens later
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from h5rows.integration import ChunkCache, Fixed, files_of, open_field, open_h5, split_of
from lab.h5_errors import h5_methods
from lab.transforms.fields import field_of
from samebits.errors import ConfigError
from samebits.schema import Count, NotNegativeInt


@h5_methods
class TokenWindows:
    """A data set of windows of a 1-D integer dataset. A batch has one field, (B, window + 1) int64.

    path, external: as in h5rows.Dataset. fields: {name in the batch: name of the dataset}, exactly one. splits: {split:
    {group: of its dataset} or null}. stride: distance of two windows in tokens, in the training split. 1 with a
    shuffled order samples windows at random positions; stride=window predicts each token once. Other splits always use
    stride=window. cache_mb: size of the chunk cache.
    """

    takes_remote = True

    def __init__(
        self,
        path: str | Sequence[str],
        fields: Mapping[str, str],
        splits: Mapping[str, Mapping[str, Any] | None],
        split: str,
        window: Count,
        stride: Count,
        cache_mb: NotNegativeInt = 0,
        external: Literal["refuse", "allow"] = "refuse",
    ) -> None:
        if len(fields) != 1:
            raise ConfigError(f"data.fields={dict(fields)}: must be exactly one field, such as {{tokens: tokens}}")
        ((self._field, name),) = fields.items()
        entry, cache = split_of(splits, split), ChunkCache(cache_mb << 20)
        if divided := [f"{key}={value}" for key, value in entry.items() if key != "group" and value is not None]:
            raise ConfigError(
                f"data.splits.{split}.{divided[0]}: data=tokens reads all windows of a group - give each split its own "
                "group; ./run h5 pack --split val=0.1 writes them"
            )
        group = entry["group"]
        self._shards: list[Fixed] = []
        for file_name in files_of(path):
            with open_h5(file_name) as file:
                shard = open_field(file, group, name, f"data.fields.{self._field}", cache, False, external)
            # not in the block, which takes a ValueError for an error of h5py
            if not isinstance(shard, Fixed) or len(shard.shape) != 1 or shard.dtype.kind not in "iu":
                raise ConfigError(f"data.fields.{self._field}={name}: is not a 1-D dataset of integers in {file_name}")
            self._shards.append(shard)
        stride = stride if split == "train" else window  # in evaluation each token is predicted once
        counts = [max(0, (len(shard) - 1 - window) // stride + 1) for shard in self._shards]
        self._starts = np.cumsum([0, *counts])
        self._window, self._stride, self._size = window, stride, sum(counts)
        if self._size == 0:
            longest = max(map(len, self._shards))
            raise ConfigError(
                f"data.window={window}: the longest stream has {longest} tokens, and {window + 1} are needed"
            )
        self.spec = {self._field: ((window + 1,), torch.int64)}
        self.consecutive = stride == window  # True: each row continues the previous one, as data/order=lanes requires
        self.tokens_per_sample = window  # to log the speed in tokens/s
        self.chunk_rows = None

    def __len__(self) -> int:
        return self._size

    def shared_rows(self, other: TokenWindows) -> int:
        """Return the number of windows whose stream the other split reads too."""
        streams = {shard.where for shard in other._shards}
        counts = zip(self._shards, np.diff(self._starts).tolist(), strict=True)
        return sum(count for shard, count in counts if shard.where in streams)

    @property
    def nbytes(self) -> int:
        """Size of the tokens in bytes."""
        return sum(shard.nbytes(None) for shard in self._shards)

    def describe(self) -> list[str]:
        """Return a line for the log: number of tokens and windows, how they are read, and why."""
        total = sum(map(len, self._shards))
        first = self._shards[0]
        return [
            f"{self._field}: {total} tokens of {first.dtype}, {self._size} windows of {self._window} every "
            f"{self._stride}, {first.way} ({first.reason})"
            + (f", {len(self._shards)} files" if len(self._shards) > 1 else "")
        ]

    def gather(self, rows: np.ndarray, out: dict[str, Tensor] | None = None) -> dict[str, Tensor]:
        """Return {field: (B, window + 1) int64 tokens} of these rows, (B,) int64. Thread-safe. out: written to if
        given."""
        tokens = torch.empty((len(rows), self._window + 1), dtype=torch.int64) if out is None else out[self._field]
        tokens = tokens[: len(rows)]
        target = tokens.numpy()
        for shard, begin, at in self._places(rows):
            if (stream := shard.mapped) is not None:  # the assignment casts any integer dtype
                every = np.lib.stride_tricks.sliding_window_view(stream, self._window + 1)
                target[at] = every[begin]
                shard.check()
            else:
                flat = (begin[:, None] + np.arange(self._window + 1)).reshape(-1)
                target[at] = shard.read(flat).reshape(len(begin), -1)
        return {self._field: tokens}

    def advise(self, rows: np.ndarray) -> None:
        """Request the kernel to read these windows ahead (madvise)."""
        for shard, begin, _ in self._places(rows):
            shard.advise(begin, self._window + 1)

    def __getitem__(self, i: int) -> dict[str, Tensor]:
        batch = self.gather(np.asarray([range(self._size)[i]], dtype=np.int64))
        return {field: value[0] for field, value in batch.items()}

    def _places(self, rows: np.ndarray) -> list[tuple[Fixed, np.ndarray, Any]]:
        """Return [(shard, first token of each window, positions in the batch)]."""
        rows = np.asarray(rows, dtype=np.int64)
        if len(rows) and (rows.min() < 0 or rows.max() >= self._size):
            raise IndexError(f"rows {rows.min()} to {rows.max()} of {self._size} windows")
        if len(self._shards) == 1:
            return [(self._shards[0], rows * self._stride, slice(None))]
        of = np.searchsorted(self._starts, rows, side="right") - 1
        places = [(shard, k, np.flatnonzero(of == k)) for k, shard in enumerate(self._shards)]
        return [(shard, (rows[at] - self._starts[k]) * self._stride, at) for shard, k, at in places if len(at)]


class NextToken:
    """A transform that replaces field (B, T + 1) by x: (B, T), the first T tokens, and y: (B, T), the last T. Both are
    views."""

    random = False

    def __init__(self, field: str) -> None:
        self.field = field

    def __call__(self, batch: dict[str, Tensor], sample_ids: Tensor) -> dict[str, Tensor]:
        """Return the batch with x and y. Raise ConfigError if it lacks the field."""
        tokens = field_of(batch, self.field, "NextToken.field")
        rest = {field: value for field, value in batch.items() if field != self.field}
        return {**rest, "x": tokens[:, :-1], "y": tokens[:, 1:]}


class PaddedNextToken:
    """A transform for samples of different length: replaces field (B, L), padded on the right, and `<field>_length`
    (B,) by x: (B, T) int64 and y: (B, T) int64, the next tokens. y is -100 (ignored by the loss) after the end of a
    sample.

    T: length of the longest sample of the batch minus 1, at most `longest`. A sample of one token has no target and
    loss 0.
    """

    random = False

    def __init__(self, field: str, longest: Count) -> None:
        self.field, self.longest = field, longest

    def __call__(self, batch: dict[str, Tensor], sample_ids: Tensor) -> dict[str, Tensor]:
        """Return the batch with x and y. Raise ConfigError if the field has another shape."""
        lengths = batch.get(f"{self.field}_length")
        if lengths is None or self.field not in batch or batch[self.field].dim() != 2:
            raise ConfigError(
                f"data.transforms: PaddedNextToken.field={self.field!r} must contain one-dimensional samples of "
                "different length, as in data=sequences - streams use lab.datasets.tokens.NextToken"
            )
        tokens = batch[self.field][:, : self.longest + 1].long()
        if tokens.shape[1] < 2:
            tokens = torch.nn.functional.pad(tokens, (0, 2 - tokens.shape[1]))
        places = torch.arange(1, tokens.shape[1], device=tokens.device)
        rest = {name: value for name, value in batch.items() if name not in (self.field, f"{self.field}_length")}
        return {**rest, "x": tokens[:, :-1], "y": tokens[:, 1:].masked_fill(places >= lengths[:, None], -100)}
