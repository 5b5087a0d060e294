"""Orders that depend on the data: sampling with replacement by class or weight, and batches of similar length."""

from __future__ import annotations

from collections.abc import Sequence, Sized
from functools import lru_cache
from typing import Any

import numpy as np

from samebits.data.order import Order, size_of
from samebits.data.permutation import hashed
from samebits.data.spec import empty_batch, is_ragged
from samebits.errors import ConfigError
from samebits.schema import Count, NotNegative

_PER_READ = 4096  # rows per read if a dataset has no `column`


def class_balanced(dataset: Sized, seed: int, field: str) -> Order:
    """Return an order that draws every class equally often: first a class, then one of its rows, with replacement.

    field: its values are class numbers. Raise ConfigError if it contains something else.
    """
    labels = column(dataset, field)
    if labels.ndim != 1 or labels.dtype.kind not in "iub":
        raise ConfigError(
            f"data.order.field={field!r} contains {labels.dtype} of shape {labels.shape[1:]}; it must "
            "contain class numbers"
        )
    by_class = np.argsort(labels, kind="stable")
    _, begins, counts = np.unique(labels[by_class], return_index=True, return_counts=True)

    def order(sample_ids: np.ndarray) -> np.ndarray:
        classes = _below(len(counts), seed, 1, sample_ids)
        return by_class[begins[classes] + _below(counts[classes], seed, 2, sample_ids)]

    return order


def weighted(dataset: Sized, seed: int, weights: str | Sequence[float]) -> Order:
    """Return an order that draws rows with probabilities proportional to their weights, with replacement.

    weights: one number >= 0 per row, as a list, a .npy file or the name of a field. Raise ConfigError for other
    weights."""
    if isinstance(weights, str):
        values = np.load(weights) if weights.endswith(".npy") else column(dataset, weights)
    else:
        values = np.asarray(weights)
    values = values.astype(np.float64)
    if values.shape != (size_of(dataset),):
        raise ConfigError(
            f"data.order.weights has shape {values.shape}; give one weight for each of the {len(dataset)} samples"
        )
    with np.errstate(over="ignore", invalid="ignore"):
        ends = np.cumsum(values)
    if not np.isfinite(ends).all() or values.min() < 0 or ends[-1] == 0:
        raise ConfigError("data.order.weights and their sum must be finite, not negative, and not all 0")
    last = int(np.flatnonzero(values)[-1])  # rounding must not draw a later row, whose weight is 0

    def order(sample_ids: np.ndarray) -> np.ndarray:
        draws = (hashed(seed, 3, sample_ids) >> np.uint64(11)).astype(np.float64) * 2.0**-53
        return np.minimum(np.searchsorted(ends, draws * ends[-1], side="right"), last).astype(np.int64)

    return order


def length_buckets(dataset: Sized, seed: int, field: str, batch_size: Count, jitter: NotNegative) -> Order:
    """Return an order of global batches of similar length, in random order; each row occurs once per epoch.

    In a batch, long and short samples alternate, so that ranks and micro-batches get nearly equal numbers of tokens.
    Raise ConfigError if the field does not have one length per sample.

    field: contains the length of each sample, or has a variable length itself (batches then have `<field>_length`).
    batch_size: trainer.global_batch_size.
    jitter: each epoch sorts by length * (1 + jitter * u), u in [0, 1), so that batches differ between epochs.
    """
    lengths = column(dataset, field).astype(np.float64)
    if lengths.shape != (size_of(dataset),):
        raise ConfigError(
            f"data.order.field={field!r} has shape {lengths.shape}; give a field with one length per sample"
        )
    return LengthBuckets(lengths, seed, batch_size, jitter)


class LengthBuckets:
    """The order of `length_buckets`. lengths: (N,) one per row."""

    def __init__(self, lengths: np.ndarray, seed: int, batch_size: int, jitter: float) -> None:
        self._lengths, self._seed, self._batch_size, self._jitter = lengths, seed, batch_size, jitter
        self._epoch = lru_cache(2)(self._arrange)

    def __call__(self, sample_ids: np.ndarray) -> np.ndarray:
        """Return rows, (B,) int64; sample_ids: (B,) int64."""
        epochs, positions = np.divmod(sample_ids, len(self._lengths))
        rows = np.empty_like(sample_ids)
        for epoch in np.unique(epochs).tolist():
            here = np.flatnonzero(epochs == epoch)
            rows[here] = self._epoch(epoch)[positions[here]]
        return rows

    def _arrange(self, epoch: int) -> np.ndarray:
        """Return the rows of one epoch, (N,) int64.

        Batches do not end at epochs: the first and last few rows of an epoch share a batch with rows of the neighboring
        epochs. They are taken from the middle of the lengths, because that is similar in all epochs.
        """
        size, batch_size = len(self._lengths), self._batch_size
        random = np.random.default_rng([self._seed, 4, epoch])
        by_length = np.argsort(self._lengths * (1 + self._jitter * random.random(size)), kind="stable")
        head = min(-epoch * size % batch_size, size)
        tail = (size - head) % batch_size
        middle = (size - head - tail) // 2
        shared = random.permutation(by_length[middle : middle + head + tail])
        batches = np.delete(by_length, slice(middle, middle + head + tail)).reshape(-1, batch_size)
        batches = batches[random.permutation(len(batches))]
        return np.concatenate([shared[:head], batches[:, deal(batch_size)].ravel(), shared[head:]])


def deal(batch_size: int) -> np.ndarray:
    """Return (B,) indices into B samples that are sorted by length: which sample is at each position of the batch.

    The shortest is paired with the longest, the second shortest with the second longest, and so on. Pairs are placed by
    multiples of the golden ratio, so that each range of positions contains pairs from the whole range of lengths.
    """
    pairs = np.argsort(np.arange(batch_size // 2) * 0.6180339887498949 % 1.0, kind="stable")
    dealt = np.stack([pairs, batch_size - 1 - pairs], axis=1).ravel()
    return np.append(dealt, batch_size // 2) if batch_size % 2 else dealt


def column(dataset: Any, field: str) -> np.ndarray:
    """Return all values of one field, by row: from `dataset.column(field)` if it exists, otherwise by reading the data
    set.

    If the field has a variable length, return the lengths. Raise ConfigError if there is no such field.
    """
    if hasattr(dataset, "spec"):
        _named(dataset.spec, field)
    if hasattr(dataset, "column"):
        return np.asarray(dataset.column(field))
    if not hasattr(dataset, "gather"):
        return np.stack([np.asarray(_named(dataset[i], field)) for i in range(size_of(dataset))])
    ragged, size, parts = is_ragged(dataset.spec), size_of(dataset), []
    for begin in range(0, size, _PER_READ):
        rows = np.arange(begin, min(begin + _PER_READ, size), dtype=np.int64)
        batch = dataset.gather(rows, None if ragged else empty_batch(dataset.spec, len(rows)))
        # if samples differ in length, return their lengths
        parts.append(np.asarray(batch[f"{field}_length" if -1 in dataset.spec[field][0] else field]))
    return np.concatenate(parts)


def _named(fields: Any, field: str) -> Any:
    if field not in fields:
        raise ConfigError(f"data.order names the field {field!r}; the dataset has {sorted(fields)}")
    return fields[field]


def _below(limits: int | np.ndarray, seed: int, stream: int, sample_ids: np.ndarray) -> np.ndarray:
    """Return (B,) int64 in [0, limits): 32 random bits scaled, with a bias of limits / 2**32."""
    bits = hashed(seed, stream, sample_ids) >> np.uint64(32)
    return (bits * np.asarray(limits).astype(np.uint64) >> np.uint64(32)).astype(np.int64)
