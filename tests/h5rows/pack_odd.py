"""Random sources whose names are no UTF-8, and TFRecords of lists of lists, of lists of any length, with holes."""

from __future__ import annotations

import io
import os
import struct
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from h5_types import Draw
from pack_arrays import numbers
from pack_case import Case
from pack_records import picture
from test_pack_formats import field, npy, record

from h5rows.importers.tfrecord import masked_crc32c

BYTES = [b"\xff", b"k\xe9k", b"\xc3(", b"a\x80b", b"\xed\xa0\x80", b"x\xf0\x28"]


def framed(data: bytes) -> bytes:
    head = struct.pack("<Q", len(data))
    return head + struct.pack("<I", masked_crc32c(head)) + data + struct.pack("<I", masked_crc32c(data))


def features(values: dict[str, Any]) -> bytes:
    """The message of tf.train.Features: an Example's, without its tag."""
    return record(values, True)[12:-4]


def one_feature(values: np.ndarray | bytes) -> bytes:
    """tf.train.Feature: out of an Example of one."""
    body = values if isinstance(values, bytes) else values.astype("<f4").tobytes()
    return field(1, field(1, body)) if isinstance(values, bytes) else field(2, field(1, body))


def sequences(w: Draw, folder: Path) -> Case:
    """SequenceExample: a context as in an Example, and named lists of features."""
    path, count = folder / "a.tfrecord", w.between(1, 6)
    labels = [np.array([w.between(-9, 9)]) for _ in range(count)]
    with_context, lists, parts = w.chance(0.7), w.one_of([0, 1, 1, 2]), []
    for k in range(count):
        data = features({"label": labels[k]}) if with_context else b""
        entries = b""
        for name in range(lists):
            steps = w.between(0, 4)
            made = [one_feature(w.rng.normal(size=w.between(0, 3)) if w.chance(0.7) else b"ab") for _ in range(steps)]
            entries += field(1, field(1, f"list{name}".encode()) + field(2, b"".join(field(1, f) for f in made)))
        if lists and (k or w.chance(0.5)):  # the first may have none
            data += field(2, entries)
        elif k == count - 1 and lists:
            lists = 0  # none has any
        parts.append(framed(data))
    path.write_bytes(b"".join(parts))
    if lists or not with_context:
        return Case(path, None, {"variable": w.chance(0.5)}, what="feature lists")
    return Case(path, {"label": np.concatenate(labels)}, {}, True)


def holes(w: Draw, folder: Path) -> Case:
    """Features that some records lack, or hold without values, or of several strings, or of lengths of their own."""
    path, count = folder / "a.tfrecord", w.between(2, 8)
    odd, victim = w.one_of(["lacks", "empty", "strings", "lengths", "lengths", "name"]), w.between(0, count - 1)
    values = [w.rng.integers(-99, 99, 3 if odd != "lengths" else w.between(0, 4)) for _ in range(count)]
    labels, parts = [np.array([k]) for k in range(count)], []
    for k in range(count):
        made: dict[str, Any] = {"x": values[k], "y": labels[k]}
        if odd == "lacks" and k == victim:
            del made[w.one_of(["x", "y"])]
        data = features(made)
        if k == victim and odd in ("empty", "strings", "name"):
            name = w.one_of(BYTES) if odd == "name" else b"z"
            body = {
                "empty": b"",
                "strings": field(1, field(1, b"a") + field(1, b"b")),
                "name": field(3, field(1, b"\1")),
            }
            data = field(1, data[_tag(data) :] + field(1, field(1, name) + field(2, body[odd])))
        parts.append(framed(data))
    path.write_bytes(b"".join(parts))
    if odd != "lengths":
        return Case(path, None, {"variable": w.chance(0.5)}, what=odd)
    ragged = len({len(v) for v in values}) > 1
    alike: Any = np.stack(values) if not ragged else values
    if not ragged and len(values[0]) == 1:
        alike = np.concatenate(values)
    if not w.chance(0.7):
        return Case(path, None if ragged else {"x": alike, "y": np.concatenate(labels)}, {}, what="without --variable")
    expected = {"x": values if any(len(v) != 1 for v in values) else alike, "y": np.concatenate(labels)}
    return Case(path, expected, {"variable": True}, ragged, what=odd)


def _tag(data: bytes) -> int:
    """Where the body of a message's first field begins."""
    at = 1
    while data[at] & 128:
        at += 1
    return at + 1


def folder_names(w: Draw, folder: Path) -> Case:
    """Files or class folders whose names are no UTF-8."""
    path, name, kind = folder / "in", w.one_of(BYTES), w.one_of(["class", "file", "npy", "column", "text", "left"])
    path.mkdir()
    raw, pictures = os.fsencode(path), [picture(w, "RGB", 4) for _ in range(4)]
    if kind in ("class", "file", "left"):
        for k, (data, _) in enumerate(pictures):
            place = (raw + b"/" + (name if k % 2 else b"a")) if kind == "class" else raw
            os.makedirs(place, exist_ok=True)
            own = name if kind == "file" and k == 3 else b""
            with open(place + b"/%d" % k + own + b".png", "wb") as file:
                file.write(data)
        if kind == "left":
            with open(raw + b"/" + name + b".md", "wb") as file:
                file.write(b"words")
        order = [0, 2, 1, 3] if kind == "class" else [0, 1, 2, 3]
        expected: dict[str, Any] = {"image": np.stack([pictures[k][1] for k in order])}
        return Case(path, expected, {"mode": "RGB"}, what=f"{kind} {name!r}")
    if kind == "text":
        with open(raw + b"/" + name + b".txt", "wb") as file:
            file.write(b"words and words")
        return Case(path, {}, what=f"text {name!r}")
    arrays = [numbers(w, (5, 2), "<f4") for _ in range(2)]
    for k, array in enumerate(arrays):
        with open(raw + b"/" + (name if k else b"x") + b".npy", "wb") as file:
            file.write(npy(array))
    options = {"format": "samples"} if kind == "npy" else {}
    return Case(path, {} if options else {"x": arrays[0]}, options, what=f"{kind} {name!r}")


def member_names(w: Draw, folder: Path) -> Case:
    """Members of a tar or an .npz, keys of an LMDB, arrays of zarr, headers of a CSV."""
    name, kind, count = w.one_of(BYTES), w.one_of(["tar", "suffix", "npz", "zarr", "csv", "lmdb", "tfrecord"]), 4
    values = np.arange(count)
    if kind in ("tar", "suffix"):
        path = folder / "a.tar"
        with tarfile.open(path, "w", format=w.one_of([tarfile.GNU_FORMAT, tarfile.USTAR_FORMAT]),
                          encoding="utf-8", errors="surrogateescape") as tar:  # fmt: skip
            for k in values:
                stem, suffix = (name, b"cls") if kind == "tar" else (b"", b"cls")
                members = [b"%d" % k + stem + b"." + suffix]
                if kind == "suffix":
                    members.append(b"%d." % k + name)
                for member in members:
                    info = tarfile.TarInfo(os.fsdecode(member))
                    info.size = 1
                    tar.addfile(info, io.BytesIO(b"%d" % k))
        return Case(path, {"label": values}, what=f"{kind} {name!r}")
    if kind == "npz":
        path = folder / "a.npz"
        with zipfile.ZipFile(path, "w") as made:
            made.writestr("x.npy", npy(values))
            made.writestr("yyyy.npy", npy(values))
        path.write_bytes(path.read_bytes().replace(b"yyyy", (name + b"____")[:4]))
        return Case(path, {"x": values}, what=f"{kind} {name!r}")
    if kind == "zarr":
        import zarr

        path = folder / "a.zarr"
        root = zarr.open_group(str(path), mode="w", zarr_format=w.one_of([2, 3]))
        for key in ("x", "y"):
            root.create_array(key, shape=values.shape, chunks=(2,), dtype="i8")[...] = values
        os.rename(os.fsencode(path / "y"), os.fsencode(path) + b"/" + name)
        return Case(path, {"x": values}, what=f"{kind} {name!r}")
    if kind == "csv":
        path = folder / "a.csv"
        path.write_bytes(b"x," + name + b"\n" + b"".join(b"%d,%d\n" % (k, k) for k in values))
        return Case(path, {"x": values}, what=f"{kind} {name!r}")
    if kind == "lmdb":
        import lmdb

        path = folder / "a.lmdb"
        with lmdb.open(str(path), map_size=1 << 24) as env, env.begin(write=True) as txn:
            for k in values:
                txn.put(w.one_of([name, b""]) + b"%d" % k, b"%d" % k)
        return Case(path, {}, what=f"{kind} {name!r}")
    path = folder / os.fsdecode(name + b".tfrecord")
    path.write_bytes(b"".join(record({"y": np.array([k])}, True) for k in values))
    return Case(path, {"y": values}, what=f"{kind} {name!r}")


MAKERS = [sequences, holes, folder_names, member_names]
