"""Random sources of records: LMDB, webdataset, TFRecord, folders of images."""

from __future__ import annotations

import io
import os
import pickle
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
from h5_types import Draw
from pack_arrays import numbers
from pack_case import Case
from PIL import Image
from test_pack_formats import npy, record

WORDS = ["", "a", "two words", "ü", "12a", "line\nbreak", "名前", "labels."]
MODES = {"L": 1, "RGB": 3, "RGBA": 4}


def picture(w: Draw, mode: str, side: int) -> tuple[bytes, np.ndarray]:
    """(PNG, (C, H, W))"""
    shape = (side, side + 1) if mode == "L" else (side, side + 1, MODES[mode])
    array, buffer = w.rng.integers(0, 256, shape, np.uint8), io.BytesIO()
    Image.fromarray(array).save(buffer, "PNG")
    return buffer.getvalue(), array[None] if array.ndim == 2 else array.transpose(2, 0, 1)


def column(w: Draw, count: int) -> tuple[str, list[bytes], Any, dict[str, Any]]:
    """A column of encoded values: (kind, bytes of each, what each is, options)."""
    kind = w.one_of(["int", "text", "npy", "image", "raw", "float", "pickle", "large"])
    if kind == "int":
        values = [w.one_of([0, -5, 7, 2**62, w.between(-99, 99)]) for _ in range(count)]
        return kind, [str(v).encode() for v in values], np.array(values), {}
    if kind == "text":
        texts = [w.one_of(WORDS) for _ in range(count)]
        return (
            kind,
            [t.encode() for t in texts],
            [np.frombuffer(t.encode(), np.uint8) for t in texts],
            {"kinds": "text"},
        )
    if kind == "npy":
        arrays = [numbers(w, (2, 3), "<f4") for _ in range(count)]
        return kind, [npy(a) for a in arrays], np.stack(arrays), {}
    if kind == "image":
        pairs = [picture(w, "RGB", 4) for _ in range(count)]
        return kind, [data for data, _ in pairs], np.stack([array for _, array in pairs]), {}
    if kind == "raw":
        arrays = [numbers(w, (2, 2), "<i4") for _ in range(count)]
        return kind, [a.tobytes() for a in arrays], np.stack(arrays), {"kinds": "int32:2,2"}
    if kind == "float":
        values = [w.one_of([0.5, -1.25, 3.0, 0.1, 1e-3]) for _ in range(count)]
        return kind, [repr(v).encode() for v in values], np.array(values, object), {"kinds": "float"}
    if kind == "large":
        return kind, [b"9" * 25] * count, None, {}
    thing = w.one_of([5, "text", None, [1, 2], {"a": 1}, (1.5,), b"bytes", np.arange(3)])
    return kind, [pickle.dumps(thing, w.between(2, 5)) for _ in range(count)], None, {}


def columns(
    w: Draw, names: list[str], count: int
) -> tuple[dict[str, list[bytes]], dict[str, Any] | None, dict[str, Any]]:
    """Name -> bytes of each sample; what is expected, None if one is to be refused; options."""
    raws: dict[str, list[bytes]] = {}
    expected: dict[str, Any] | None = {}
    kinds: dict[str, str] = {}
    for name in names:
        _, raws[name], values, options = column(w, count)
        kinds |= {name: options["kinds"]} if options else {}
        expected = None if expected is None or values is None else {**expected, name: values}
    return raws, expected, {"kinds": kinds}


def lmdb_env(w: Draw, folder: Path) -> Case:
    import lmdb

    count, path = w.between(1, 12), folder / "a.lmdb"
    names = w.one_of([["value"], ["image", "label"], ["x"]])
    raws, expected, options = columns(w, names, count)
    with lmdb.open(str(path), map_size=1 << 24) as env, env.begin(write=True) as txn:
        for name in names:
            for k in range(count):
                prefix = "" if name == "value" else f"{name}-"
                txn.put(f"{prefix}{k}".encode(), raws[name][k] or b" ")
        left = ""
        if w.chance(0.3):
            name, number = w.one_of([("num-samples", count), ("length", count), ("__len__", count), ("__len__", 99)])
            txn.put(name.encode(), str(number).encode())
            left = name if number == 99 else ""
    if expected is not None:
        for name, values in expected.items():
            if isinstance(values, list):  # LMDB holds no empty value
                expected[name] = [v if len(v) else np.frombuffer(b" ", np.uint8) for v in values]
    return Case(path, expected, options, expected is not None, left)


SUFFIX = {"int": "cls", "text": "txt", "npy": "npy", "image": "png"}


def webdataset(w: Draw, folder: Path) -> Case:
    count, path = w.between(2, 8), folder / "a.tar"
    made: dict[str, tuple[list[bytes], Any]] = {}
    for _ in range(w.between(1, 3)):
        kind, raws, values, _ = column(w, count)
        if kind in SUFFIX:
            made[SUFFIX[kind]] = raws, values
    made = made or {"cls": ([b"%d" % k for k in range(count)], np.arange(count))}
    stem = w.one_of(["", "dir/", "a" * 120 + "/", "ü/"])
    style = w.one_of([tarfile.GNU_FORMAT, tarfile.PAX_FORMAT, tarfile.USTAR_FORMAT])
    ends = [0]
    left, broken = "", w.one_of(["", "", "", "cut", "cut", "header", "hole", "twice", "extra", "readme"])
    with tarfile.open(path, "w", format=style, encoding="utf-8") as tar:
        for k in range(count):
            for suffix, (raws, _) in made.items():
                if broken == "hole" and k == count - 1 and suffix == list(made)[-1] and len(made) > 1:
                    continue
                names = [f"{stem}{k:03}.{suffix}"] * (2 if broken == "twice" and k == 1 else 1)
                names += [f"{stem}{k:03}.json"] * (broken == "extra" and k == 1)
                for name in names:
                    info = tarfile.TarInfo(name)
                    info.size = len(raws[k])
                    tar.addfile(info, io.BytesIO(raws[k]))
                ends.append(tar.offset)
        if broken == "readme":
            left = "README"
            tar.addfile(tarfile.TarInfo("README"), io.BytesIO(b""))
    raw = path.read_bytes()
    if broken == "cut":
        path.write_bytes(raw[: w.between(1, ends[-1] + 511)])
    elif broken == "header":
        at = w.one_of(ends[:-1]) + w.between(100, 300)
        path.write_bytes(raw[:at] + bytes([raw[at] ^ 1 << w.between(0, 7)]) + raw[at + 1 :])
    fields = {"cls": "label", "png": "image"}
    expected = {fields.get(suffix, suffix): values for suffix, (_, values) in made.items()}
    refused = broken in ("cut", "header", "twice", "extra") or (broken == "hole" and len(made) > 1)
    return Case(path, None if refused else expected, {}, not refused, left, what=broken)


def tfrecord(w: Draw, folder: Path) -> Case:
    count, path = w.between(2, 8), folder / "a.tfrecord"
    ragged, packed = w.chance(0.3), w.chance(0.5)
    lengths = [w.between(0, 4) if ragged else 3 for _ in range(count)]
    values = [w.rng.integers(-(2**63), 2**63 - 1, n) for n in lengths]
    floats = [w.rng.normal(size=2).astype(np.float32) for _ in range(count)]
    labels = [np.array([w.between(-9, 9)]) for _ in range(count)]
    texts = [w.one_of(WORDS[1:]).encode() for _ in range(count)]
    broken = w.one_of(["", "", "", "flip", "flip", "cut", "later", "gone", "mixed"])
    parts = []
    for k in range(count):
        features: dict[str, Any] = {"x": values[k], "f": floats[k], "y": labels[k], "t": texts[k]}
        if broken == "later" and k == 1:
            features["z"] = labels[k]
        if broken == "gone" and k == count - 1:
            del features["y"]
        if broken == "mixed" and k == count - 1:
            features["f"] = labels[k]
        parts.append(
            record(dict(w.rng.permutation(list(features.items())).tolist()) if w.chance(0) else features, packed)
        )
    raw = b"".join(parts)
    if broken == "flip":
        at = w.between(0, len(raw) - 1)
        raw = raw[:at] + bytes([raw[at] ^ 1 << w.between(0, 7)]) + raw[at + 1 :]
    elif broken == "cut":
        cut = w.between(1, len(raw) - 1)
        broken = "" if cut in np.cumsum([len(p) for p in parts]) else "cut"
        raw = raw if not broken else raw[:cut]
    path.write_bytes(raw)
    options = {"variable": ragged, "kinds": {"t": "text"}}
    if broken:
        return Case(path, None, options, what=broken)
    expected: dict[str, Any] = {
        "x": values
        if ragged and any(n != 1 for n in lengths)
        else np.stack(values)
        if not ragged
        else np.concatenate(values),
        "f": floats if ragged else np.stack(floats),
        "y": np.concatenate(labels),
        "t": [np.frombuffer(t, np.uint8) for t in texts],
    }
    return Case(path, expected, options, True)


def image_folder(w: Draw, folder: Path) -> Case:
    path, mode, ragged = folder / "in", w.one_of(list(MODES)), w.chance(0.3)
    classes = w.one_of([[], ["cat", "dog"], ["ü", "a b"]])
    made: list[tuple[str, np.ndarray]] = []
    for k in range(w.between(2, 8)):
        place = path / (classes[k % len(classes)] if classes else "")
        place.mkdir(parents=True, exist_ok=True)
        data, array = picture(w, mode, w.between(2, 6) if ragged else 5)
        file = place / f"{k}.{w.one_of(['png', 'PNG'])}"
        file.write_bytes(data)
        made.append((str(file.relative_to(path)), array))
    made.sort(key=lambda pair: pair[0].split("/"))
    options = {"mode": mode, "variable": ragged}
    odd, left = w.one_of(["", "", "", "up", "cut", "license", "deep", "frames", "loose", "twice"]), ""
    first = path / made[-1][0]
    if odd == "up":
        os.symlink(w.one_of([path, folder]), first.parent / "up")
    elif odd == "cut":
        first.write_bytes(first.read_bytes()[: w.between(0, first.stat().st_size // 2)])
    elif odd == "license":
        (path / (left := "LICENSE.txt")).write_text("free")
    elif odd == "deep":
        deep = w.rng.integers(300, 1 << 16, (5, 6)).astype(np.uint16)
        Image.fromarray(deep).save(first.with_suffix(".png"))
    elif odd == "frames":
        frames = [Image.fromarray(np.full((4, 4), v, np.uint8)) for v in (0, 200)]
        frames[0].save(first.parent / "z.gif", save_all=True, append_images=frames[1:])
    elif odd == "loose" and classes:
        (path / "0.png").write_bytes(first.read_bytes())
    elif odd == "twice":
        os.symlink(first.parent, path / "same") if classes else os.symlink(path, path / "same")
    else:
        odd = ""
    if odd and odd != "license":
        return Case(path, None, options, what=odd)
    arrays = [array for _, array in made]
    expected: dict[str, Any] = {"image": arrays if ragged else np.stack(arrays)}
    if classes:
        known = sorted({name.split("/")[0] for name, _ in made})
        expected["label"] = np.array([known.index(name.split("/")[0]) for name, _ in made])
    return Case(path, expected, options, True, left)


MAKERS = [lmdb_env, webdataset, tfrecord, image_folder]
