"""Read TFRecord files of tf.train.Example, without TensorFlow.

    record    length uint64 | masked crc32c of the length | data | masked crc32c of the data
    Example   {1: Features {1: map entry {1: name, 2: Feature {1: bytes | 2: floats | 3: int64s {1: values}}}}}

Both checksums are verified: the checksum of each length when a file is opened, that of the data when it is read.
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from h5rows.errors import ConfigError, need
from h5rows.importers.values import ShardSource
from h5rows.options import PackOptions
from h5rows.source import BadSample

COMPRESSED = {"gzip": b"\x1f\x8b", "zlib": b"\x78\x9c"}  # how such files begin, zlib with TensorFlow's level


def masked_crc32c(data: bytes) -> int:
    """Return the checksum that TFRecord uses."""
    crc = need("google_crc32c", "reading TFRecord", "google-crc32c").value(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def frames(path: Path) -> Iterator[tuple[int, int]]:
    """Yield (offset, size) of the data of each record. Raise ConfigError if the file is damaged or cut off."""
    size, at = path.stat().st_size, 0
    with open(path, "rb", buffering=1 << 20) as file:
        while at < size:
            head = file.read(12)
            if len(head) < 12:
                raise ConfigError(f"{path} is cut off at byte {at}; copy or write it again")
            length, crc = struct.unpack("<QI", head)
            if crc != masked_crc32c(head[:8]):
                pressed = next((kind for kind, begin in COMPRESSED.items() if head.startswith(begin) and not at), "")
                why = f"it is {pressed}: decompress it first" if pressed else "it is damaged; copy or write it again"
                raise ConfigError(f"{path}: no valid record at byte {at}; {why}")
            if at + 16 + length > size:
                raise ConfigError(f"{path} is cut off in the record at byte {at}; copy or write it again")
            yield at + 12, length
            at += 16 + length
            file.seek(at)


def varint(data: bytes, at: int) -> tuple[int, int]:
    """Return (value, next offset) of the varint at this offset."""
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7


def message(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield (field number, its bytes) of a protobuf message."""
    at = 0
    while at < len(data):
        tag, at = varint(data, at)
        kind = tag & 7
        if kind == 0:
            size = varint(data, at)[1] - at
        elif kind == 2:
            size, at = varint(data, at)
        else:
            size = {1: 8, 5: 4}[kind]
        if at + size > len(data):
            raise ValueError("a field runs over the end")
        yield tag >> 3, data[at : at + size]
        at += size


def varints(data: bytes) -> np.ndarray:
    """Return the int64 values of concatenated varints, (n,)."""
    raw = np.frombuffer(data, np.uint8)
    if not len(raw):
        return np.zeros(0, np.int64)
    ends = np.flatnonzero(raw < 128)
    if not len(ends) or ends[-1] != len(raw) - 1:
        raise ValueError("a number runs over the end")
    begins = np.concatenate([[0], ends[:-1] + 1])
    if (ends - begins).max() > 9:
        raise ValueError("a number of more than 10 bytes")
    place = np.arange(len(raw)) - np.repeat(begins, ends - begins + 1)
    parts = (raw & 127).astype(np.uint64) << (7 * place).astype(np.uint64)
    return np.bitwise_or.reduceat(parts, begins).astype(np.int64)


def feature(data: bytes) -> Any:
    """Return the value of a Feature: bytes, or a float32 or int64 array (n,)."""
    found = list(message(data))
    if len(found) != 1:
        raise ValueError("an empty feature")
    kind, body = found[0]
    values = [value for number, value in message(body) if number == 1]
    if kind == 1:
        if len(values) != 1:
            raise ValueError(f"a feature of {len(values)} byte strings; one is supported")
        return values[0]
    together = b"".join(values)  # packed or unpacked encoding
    return np.frombuffer(together, "<f4") if kind == 2 else varints(together)


def example(data: bytes) -> dict[str, Any]:
    """Return {feature: value} of an Example. Raise ValueError for other messages."""
    out = {}
    for number, features in message(data):
        if number != 1:
            raise ValueError("a SequenceExample, which is not supported" if number == 2 else "other fields")
        for entry_number, entry in message(features):
            parts = dict(message(entry))
            if entry_number != 1 or not set(parts) <= {1, 2}:
                raise ValueError("other fields")
            out[parts[1].decode()] = feature(parts.get(2, b""))
    return out


class RecordSource(ShardSource):
    """The records of TFRecord files."""

    def __init__(self, path: Path, options: PackOptions) -> None:
        self._found: list[np.ndarray] = []
        super().__init__(path, ".tfrecord", options)
        self._records, self._found = np.concatenate(self._found), []  # (file, offset, size) of each
        self._many: set[str] = set()  # features with several numbers in some record, even if the first has one
        if options.variable:
            self._many = self._of_many(set(options.fields))
        self.learn(len(self._records), options, path)

    def index(self, number: int, file: Path) -> int:
        """Find the records of a file, and return their number."""
        self._found.append(np.array([(number, *frame) for frame in frames(file)], np.int64).reshape(-1, 3))
        return len(self._found[-1])

    def _of_many(self, chosen: set[str]) -> set[str]:
        many, names = set(), set(chosen)
        for row in range(len(self._records)):
            with contextlib.suppress(BadSample):
                values = self.parse(row)
                names |= set() if chosen else set(values)
                many |= {n for n, v in values.items() if not isinstance(v, bytes) and len(v) != 1}
                if names <= many:
                    break
        return many

    def name_of(self, row: int) -> str:
        """Return file and offset of a record, for messages."""
        number, offset, _ = self._records[row].tolist()
        return f"{self.files[number].name}, record at byte {offset - 12}"

    def raw(self, row: int) -> dict[str, Any]:
        """Return {feature: value}. A single number has shape (), unless the feature has several in another record."""
        return {
            name: value.reshape(())
            if not isinstance(value, bytes) and len(value) == 1 and name not in self._many
            else value
            for name, value in self.parse(row).items()
        }

    def parse(self, row: int) -> dict[str, Any]:
        """Return {feature: bytes or array (n,)} of a record. Raise BadSample if it is damaged."""
        number, offset, size = self._records[row].tolist()
        data = self.piece(number, offset, size + 4)
        if len(data) < size + 4 or masked_crc32c(data[:size]) != int.from_bytes(data[size:], "little"):
            raise BadSample(self.name_of(row), "is damaged: its checksum differs; copy or write the file again")
        try:
            values = example(data[:size])
        except (ValueError, IndexError, KeyError, AttributeError, TypeError) as error:
            why = error if isinstance(error, ValueError) else "a field is missing or cut off"
            raise BadSample(self.name_of(row), f"is not a tf.train.Example: {why}") from None
        if not values:
            raise BadSample(self.name_of(row), "is not a tf.train.Example: it has no features")
        return values
