"""A source without a length, read in its own order: any iterable of samples.

    samples of the stream   0 1 2 3 | 4 5 6 7 | ...      global batches; each rank reads all and keeps its share

So that the loader can ask for samples by number, which only rises, a stream is wrapped; where a lower number is asked
for (the next evaluation, a rank that went on from another rank's state) it is read again from its beginning.
"""

from __future__ import annotations

import hashlib
import io
import pickle
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import IterableDataset

from samebits.errors import ConfigError

ENDLESS = 2**62
_DIGESTS = 4


def is_stream(dataset: Any) -> bool:
    own = type(dataset)
    indexed = hasattr(own, "__getitem__") or hasattr(dataset, "gather")
    return hasattr(own, "__iter__") and (isinstance(dataset, IterableDataset) or not indexed)


class Stream:
    """A map-style dataset of an iterable that gives samples, dicts of tensors, arrays or numbers. One that ends begins
    again.

    source: may have state_dict() and load_state_dict(state): iter() after it goes on behind the last sample that was
    given when the state was taken. Without, a resumed run reads up to there again. length: of an evaluation; None:
    endless.
    """

    def __init__(self, source: Any, length: int | None = None) -> None:
        self.source, self.length = source, ENDLESS if length is None else length
        self._items: Iterator[Any] | None = None
        self._next = 0  # the number of the sample that comes next
        self.reading = 0  # the number of the one that is read, or was last; those of other ranks are read too
        self._last: Any = None  # the sample before it
        self.digests: list[str] = []  # of the first samples that were read: all ranks read the same
        self._begin = self._state()  # of sample 0
        self.begin_sample: Callable[[int], None] = lambda number: None  # seeds; those that are skipped draw numbers too
        if hasattr(source, "collate"):
            self.collate = source.collate
        _check_plain(self._begin, type(source).__name__)

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, number: int) -> Any:
        if number < self._next - 1 or (number < self._next and self._last is None):
            self.load_state_dict({"next": 0, "source": self._begin})
        while self._next <= number:
            self.reading = self._next
            self.begin_sample(self._next)
            self._last = self._read()
            if len(self.digests) < _DIGESTS:
                self.digests.append(digest(self._last))
            self._next += 1
        return self._last

    def _read(self) -> Any:
        for _ in range(2):  # a stream that has ended begins again
            self._items = iter(self.source) if self._items is None else self._items
            for sample in self._items:
                return sample
            self._items = None
        raise ConfigError(f"data: the stream {type(self.source).__name__} gives no samples")

    def _state(self) -> Any:
        return self.source.state_dict() if hasattr(self.source, "state_dict") else None

    def state_dict(self) -> dict[str, Any]:
        return {"next": self._next, "source": self._state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Of a source without a state only the beginning can be had: what comes before is read again."""
        known = state["source"] is not None
        if known:
            self.source.load_state_dict(state["source"])
        self._items, self._last, self._next = None, None, state["next"] if known else 0


def _check_plain(state: Any, name: str) -> None:
    """A checkpoint holds it, and is loaded with weights_only=True."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    try:
        torch.load(file, weights_only=True)
    except pickle.UnpicklingError as error:
        raise ConfigError(
            f"data: the state_dict() of {name} holds more than tensors, numbers, texts, lists and dicts, so it could "
            f"not be loaded again ({str(error).splitlines()[0]})"
        ) from None


def digest(sample: Any) -> str:
    """Return a hash of a sample's numbers and texts, as far as they are in dicts, lists, tensors and arrays."""
    hashed = hashlib.sha256()

    def add(value: Any) -> None:
        if isinstance(value, Tensor):
            hashed.update(f"{value.dtype} {tuple(value.shape)}".encode())
            if value.layout is torch.strided:
                hashed.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
        elif isinstance(value, (np.ndarray, np.generic)) and value.dtype != object:
            hashed.update(f"{value.dtype} {value.shape}".encode() + value.tobytes())
        elif isinstance(value, Mapping):
            for key in value:
                add(key)
                add(value[key])
        elif isinstance(value, (list, tuple)):
            for one in value:
                add(one)
        else:
            plain = isinstance(value, (bool, int, float, complex, str, bytes, type(None)))
            hashed.update(repr(value if plain else type(value)).encode())

    add(sample)
    return hashed.hexdigest()
