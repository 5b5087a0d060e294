"""Data sets without a length, read in their own order: any iterable of samples.

    samples of the stream   0 1 2 3 | 4 5 6 7 | ...      global batches; each rank reads all samples and keeps its share

`Stream` wraps an iterable, so that the loader can read samples by ascending index. A lower index (the next evaluation,
a rank that resumes from the state of another rank) makes it read from the beginning again.
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
    """Return True if a data set can only be iterated."""
    own = type(dataset)
    indexed = hasattr(own, "__getitem__") or hasattr(dataset, "gather")
    return hasattr(own, "__iter__") and (isinstance(dataset, IterableDataset) or not indexed)


class Stream:
    """A map-style data set of an iterable that yields samples, dicts of tensors, arrays or numbers. If the iterable
    ends, it is iterated again.

    source: may have state_dict() and load_state_dict(state); iter() after that must continue after the last sample that
    was yielded before the state was taken. Otherwise a resumed run reads all earlier samples again. length: number of
    samples of an evaluation; None: endless.
    """

    def __init__(self, source: Any, length: int | None = None) -> None:
        self.source, self.length = source, ENDLESS if length is None else length
        self._items: Iterator[Any] | None = None
        self._next = 0  # index of the next sample
        self.reading = 0  # index of the current sample, or the last one; samples of other ranks are read as well
        self._last: Any = None  # the sample before `_next`
        self.digests: list[str] = []  # of the first samples, to compare the ranks
        self._begin = self._state()  # state at sample 0
        self.begin_sample: Callable[[int], None] = lambda number: None  # seeds; samples of other ranks draw too
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
        for _ in range(2):  # an ended stream is iterated again
            self._items = iter(self.source) if self._items is None else self._items
            for sample in self._items:
                return sample
            self._items = None
        name = type(self.source).__name__
        if self._next:
            raise ConfigError(
                f"data: the stream {name} ended after {self._next:,} samples and yields none when it is iterated again "
                "- return a new iterator from each call of __iter__"
            )
        raise ConfigError(f"data: the stream {name} yields no samples")

    def _state(self) -> Any:
        return self.source.state_dict() if hasattr(self.source, "state_dict") else None

    def state_dict(self) -> dict[str, Any]:
        """Return the position in the stream and the state of its source, for a checkpoint."""
        return {"next": self._next, "source": self._state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a state. If the source has no state, start from the beginning: earlier samples are read
        again."""
        known = state["source"] is not None
        if known:
            self.source.load_state_dict(state["source"])
        self._items, self._last, self._next = None, None, state["next"] if known else 0


def _check_plain(state: Any, name: str) -> None:
    """Raise ConfigError if torch.load(weights_only=True) rejects the state, because a checkpoint contains it."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    try:
        torch.load(file, weights_only=True)
    except pickle.UnpicklingError as error:
        raise ConfigError(
            f"data: the state_dict() of {name} may contain only tensors, numbers, strings, lists and dicts, "
            f"otherwise a checkpoint cannot be loaded ({str(error).splitlines()[0]})"
        ) from None


def digest(sample: Any) -> str:
    """Return a hash of a sample's numbers and texts, as far as they are in dicts, lists, tensors and arrays."""
    hashed = hashlib.sha256()

    def add(value: Any) -> None:
        if isinstance(value, Tensor) and value.is_nested:
            add(value.detach().unbind())  # its shape is not a tuple of numbers
        elif isinstance(value, Tensor):
            hashed.update(f"{value.dtype} {tuple(value.shape)}".encode())
            if value.layout is torch.strided:
                whole = value.detach().cpu().resolve_conj().contiguous()
                hashed.update(whole.reshape(-1).view(torch.uint8).numpy().tobytes())
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
