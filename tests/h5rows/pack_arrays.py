"""Random sources that hold arrays: .npy, .npz, .pt, zarr, N5, a folder of files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from h5_types import Draw
from pack_case import Case

TYPES = ["?", "i1", "u1", "<i2", ">i2", "<u4", "<i8", "<u8", "<f2", "<f4", ">f4", "<f8", "<c8", "<c16"]
ODD = ["U3", "M8[D]", "m8[s]", "S4", "V5", "longdouble", "O", "pair"]
NAMES = ["x", "y", "image", "ü", "a b", "label2", "x.y"]
SHARES: list[dict[str, Any]] = [{}, {}, {"split": {"val": 0.25}}, {"shard": (1, 2)}]


def numbers(w: Draw, shape: tuple[int, ...], kind: str) -> np.ndarray:
    dtype = np.dtype(kind)
    if dtype.kind == "b":
        return w.rng.integers(0, 2, shape).astype(bool)
    raw = w.rng.integers(0, 256, (*shape, dtype.itemsize), np.uint8)
    return raw.view(dtype).reshape(shape)


def odd(w: Draw, rows: int) -> tuple[np.ndarray, bool]:
    """An array that is no plain numbers, and whether it may be packed (as it is)."""
    kind = w.one_of(ODD)
    if kind == "pair":
        return np.zeros(rows, [("a", "<f4"), ("b", ">i2")]), True
    if kind == "O":
        return np.array([w.one_of([1, "a", None]) for _ in range(rows)], object), False
    made = np.arange(1, rows + 1)
    if kind[0] in "mM":
        return made.astype(kind), False
    return made.astype("S3").astype(kind) if kind[0] in "USV" else made.astype(kind), kind[
        0
    ] in "SV" or kind == "longdouble"


def table(w: Draw) -> tuple[dict[str, np.ndarray], bool, bool]:
    """(columns of as many rows, whether all must be packed, whether one must be refused)"""
    rows = w.between(1, 40)
    made: dict[str, np.ndarray] = {}
    for name in w.rng.permutation(NAMES)[: w.between(1, 4)]:
        shape = (rows, *(w.between(0 if w.chance(0.1) else 1, 5) for _ in range(w.between(0, 3))))
        made[str(name)] = numbers(w, shape, w.one_of(TYPES))
    if w.chance(0.2):
        name = str(w.one_of(list(made)))
        made[name], may = odd(w, rows)
        return made, False, not may
    return made, True, False


def shared(w: Draw, made: dict[str, np.ndarray], options: dict[str, Any]) -> dict[str, np.ndarray]:
    """What each dataset holds if the rows are shared out; `shard`: the second half."""
    if "shard" in options:
        return {name: a[len(a) * 1 // 2 :] for name, a in made.items()}
    return made


def numpy_files(w: Draw, folder: Path) -> Case:
    made, plain, refused = table(w)
    options: dict[str, Any] = {"shard": (1, 2)} if w.chance(0.2) else {}
    kind = w.one_of(["npz", "npz compressed", "npy", "folder"])
    if w.chance(0.3):
        made = {name: np.asfortranarray(a) for name, a in made.items()}
    if kind == "npy":
        name, array = next(iter(made.items()))
        made, path = {"one": array}, folder / "one.npy"
        np.save(path, array)
        refused = refused and array.dtype.kind not in "biufcSV"
    elif kind == "folder":
        path = folder / "in"
        path.mkdir()
        for name, array in made.items():
            np.save(path / f"{name}.npy", array)
    else:
        path = folder / "a.npz"
        (np.savez_compressed if "comp" in kind else np.savez)(path, **made)  # type: ignore[arg-type]
    if w.chance(0.1):
        options["fields"] = {name: f"f{k}" for k, name in enumerate(made)}
        made = {f"f{k}": array for k, array in enumerate(made.values())}
    expected = None if refused else shared(w, made, options)
    if "shard" in options:
        return Case(path, None, {}, False) if refused else Case(path, made, {**options, "shard": (0, 1)}, plain)
    return Case(path, expected, options, plain)


TENSORS = ["bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64", "complex64",
           "float8_e4m3fn", "float8_e5m2", "uint16", "uint32", "uint64"]  # fmt: skip


def tensor(w: Draw, rows: int) -> tuple[torch.Tensor, np.ndarray | None]:
    """(a tensor, its numbers; None: it has no plain ones)"""
    kind = getattr(torch, w.one_of(TENSORS))
    shape = (rows, *(w.between(1, 4) for _ in range(w.between(0, 2))))
    base = torch.from_numpy(w.rng.integers(0, 100, shape))
    made = base.to(kind)
    how = w.one_of(["", "", "", "", "strided", "t", "conj", "grad", "sparse", "meta", "quantized", "neg"])
    if how == "strided":
        made = torch.cat([made, made])[::2]
    elif how == "t" and made.dim() > 1:
        made = made.transpose(0, 1).contiguous().transpose(0, 1)
    elif how == "conj" and made.is_complex():
        made = (made + 2j).conj()
    elif how == "neg" and made.is_complex():
        made = (made + 3j).conj().imag
    elif how == "grad" and made.dtype == torch.float32:
        made = torch.nn.Parameter(made)
    elif how == "sparse" and made.dtype == torch.float32:
        return made.to_sparse(), None
    elif how == "meta":
        return made.to("meta"), None
    elif how == "quantized":
        return torch.quantize_per_tensor(base.float(), 0.5, 3, torch.qint8), None
    values = made.detach().resolve_conj().resolve_neg()
    wide = values.float() if str(made.dtype)[11:12] == "8" or made.dtype == torch.bfloat16 else values
    return made, wide.clone().numpy()


def torch_file(w: Draw, folder: Path) -> Case:
    rows, path = w.between(1, 20), folder / w.one_of(["a.pt", "a.pth"])
    pairs = {str(name): tensor(w, rows) for name in w.rng.permutation(NAMES)[: w.between(1, 3)]}
    made: Any = {name: pair[0] for name, pair in pairs.items()}
    names = list(made)
    kind = w.one_of(["dict", "dict", "tuple", "nested", "one", "object"])
    if kind == "tuple":
        made, names = tuple(made.values()), [f"field{k}" for k in range(len(made))]
    elif kind == "nested":
        made, names = {"in": made}, [f"in/{name}" for name in names]
    elif kind == "one":
        made, names = next(iter(made.values())), ["a"]
    elif kind == "object":
        made = {**made, "model": w.one_of([Case, torch.nn.Linear(2, 2), "text", 5, None])}
        plain = not isinstance(made["model"], (type, torch.nn.Module))
    torch.save(made, path)
    arrays = [pair[1] for pair in pairs.values()][: len(names)]
    if (kind == "object" and not plain) or any(a is None for a in arrays):
        return Case(path, None)
    return Case(path, dict(zip(names, arrays)), {}, True, "model" if kind == "object" else "")


def zarr_store(w: Draw, folder: Path) -> Case:
    import numcodecs
    import zarr
    from zarr.codecs import BloscCodec, GzipCodec, ZstdCodec

    path, version = folder / "a.zarr", w.one_of([2, 3])
    root = zarr.open_group(str(path), mode="w", zarr_format=version)
    rows, expected = w.between(1, 30), {}
    for name in w.rng.permutation(["x", "y", "g/z"])[: w.between(1, 3)]:
        shape = (rows, *(w.between(1, 5) for _ in range(w.between(0, 2))))
        values = numbers(w, shape, w.one_of([t for t in TYPES if t[0] != ">" or version == 2]))
        chunks = tuple(w.between(1, n) for n in shape)
        packers = {2: [None, numcodecs.Blosc(), numcodecs.Zlib(), numcodecs.BZ2()],
                   3: [None, BloscCodec(), ZstdCodec(), GzipCodec()]}[version]  # fmt: skip
        made = {"shape": shape, "chunks": chunks, "dtype": values.dtype, "compressors": w.one_of(packers)}
        if version == 3 and w.chance(0.2):
            made["shards"] = chunks
        array = root.create_array(str(name), **made)
        if w.chance(0.2):  # chunks that were never written hold the fill value, zero
            part = w.between(0, rows)
            values[part:] = 0
            array[:part] = values[:part]
        else:
            array[...] = values
        expected[str(name)] = values
    files = [p for p in path.rglob("*") if p.is_file() and "zarr" not in p.name and not p.name.startswith(".")]
    if files and w.chance(0.3):
        victim = w.one_of(sorted(files))
        raw = victim.read_bytes()
        victim.write_bytes(w.one_of([raw[: w.between(0, len(raw) - 1)], b"no chunk of any kind" * 99, b""]))
        return Case(path, None, what="damaged")
    return Case(path, expected, {}, True)


def n5_store(w: Draw, folder: Path) -> Case:
    import tensorstore

    path, rows, expected = folder / "a.n5", w.between(1, 20), {}
    reverse = w.chance(0.3)
    for name in ["x", "y"][: w.between(1, 2)]:
        shape = (rows, *(w.between(1, 5) for _ in range(w.between(0, 2))))
        values = numbers(w, shape, w.one_of(["u1", "i2", "u4", "i8", "f4", "f8"]))
        there = values.T if reverse else values
        meta = {"dataType": str(values.dtype), "dimensions": there.shape, "blockSize": [w.between(1, 4)] * there.ndim,
                "compression": {"type": w.one_of(["raw", "gzip"])}}  # fmt: skip
        spec = {"driver": "n5", "kvstore": {"driver": "file", "path": f"{path}/{name}/"}, "metadata": meta}
        tensorstore.open(spec, create=True).result()[...] = there
        expected[name] = values
    files = [p for p in path.rglob("*") if p.is_file() and p.name != "attributes.json"]
    if files and w.chance(0.3):
        victim = w.one_of(sorted(files))
        victim.write_bytes(victim.read_bytes()[: w.between(0, victim.stat().st_size - 1)])
        return Case(path, None, {"reverse_axes": reverse}, what="damaged")
    return Case(path, expected, {"reverse_axes": reverse}, True)


def sample_files(w: Draw, folder: Path) -> Case:
    """One file for each sample, in class folders or not, of one shape or of many."""
    path, suffix, ragged = folder / "in", w.one_of([".npy", ".pt"]), w.chance(0.4)
    classes = w.one_of([[], ["a", "b"], ["ü", "b c", "z"]])
    inner, kind = (w.between(1, 3),), w.one_of(["u1", "<i8", "<f4"])
    samples: list[tuple[str, np.ndarray]] = []
    for k in range(w.between(2, 8)):
        shape = (w.between(0, 5) if ragged else 3, *inner)
        place = path / (classes[k % len(classes)] if classes else "")
        place.mkdir(parents=True, exist_ok=True)
        file, value = place / f"{k}{suffix}", numbers(w, shape, kind)
        np.save(file, value) if suffix == ".npy" else torch.save(torch.from_numpy(value), file)
        samples.append((str(file.relative_to(path)), value))
    samples.sort(key=lambda pair: pair[0].split("/"))
    values = [value for _, value in samples]
    options = {"format": "samples", "variable": ragged}
    expected: dict[str, Any] = {"x": values if ragged else np.stack(values)}
    if classes:
        known = sorted({name.split("/")[0] for name, _ in samples})
        expected["label"] = np.array([known.index(name.split("/")[0]) for name, _ in samples])
    if w.chance(0.2):
        victim = path / samples[-1][0]
        victim.write_bytes(victim.read_bytes()[: w.between(0, victim.stat().st_size - 1)])
        return Case(path, None, options, what="cut")
    left = ""
    if w.chance(0.2):
        (path / (left := "README.md")).write_text("words")
    return Case(path, expected, options, True, left)


MAKERS = [numpy_files, torch_file, zarr_store, n5_store, sample_files]
