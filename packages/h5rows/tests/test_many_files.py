"""Sets of many files: each is opened once, a change is noticed, descriptors are bounded, a batch is that of h5py."""

from __future__ import annotations

import multiprocessing
import os
import resource
import sys
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import h5py
import numpy as np
import pytest
import torch

from h5rows import ConfigError, Dataset
from h5rows.conventions import described
from h5rows.conventions.opening import How, how
from h5rows.integration import num_outputs, reading_once, sample_shape
from h5rows.reading import layout, opening
from h5rows.reading.raw import ChunkCache
from h5rows.reading.readers import Chunks

SPLITS = ("train", "val", "test")
FIELDS = {"x": "x", "y": "y"}
OLD = 10**9  # ns


def write(
    path: Path, seed: int, rows: int = 3, splits: Sequence[str] = SPLITS, kind: str = "mapped", width: int = 5
) -> None:
    rng = np.random.default_rng(seed)
    with h5py.File(path, "w") as file:
        for split in splits:
            x = rng.integers(0, 1000, (rows, width)).astype(">i4" if kind == "h5py" else "<i4")
            filters = {"chunks": (2, width), "compression": "gzip"} if kind == "chunks" else {}
            file.create_dataset(f"{split}/x", data=x, **filters)
            file[f"{split}/y"] = np.append(3, rng.integers(0, 4, rows - 1))
    os.utime(path, ns=(OLD, OLD))


def folder_of(path: Path, count: int, sizes: int = 1, **more: Any) -> str:
    path.mkdir()
    for k in range(count):
        write(path / f"{k:04}.h5", k, 3 + k % sizes, **more)
    return str(path / "*.h5")


def data_of(path: str, splits: Sequence[str] = SPLITS, decode: bool = False) -> dict[str, Any]:
    return {"path": path, "fields": FIELDS, "splits": {split: {"group": split} for split in splits}, "decode": decode}


def by_h5py(path: str, split: str) -> dict[str, np.ndarray]:
    parts: dict[str, list[np.ndarray]] = {"x": [], "y": []}
    for name in opening.names_of(path):
        with h5py.File(name) as file:
            for field, read in parts.items():
                read.append(file[f"{split}/{field}"][:].astype(file[f"{split}/{field}"].dtype.newbyteorder("=")))
    return {field: np.concatenate(read) for field, read in parts.items()}


def assert_as_h5py(path: str, split: str = "train") -> None:
    theirs, ours = by_h5py(path, split), Dataset(**data_of(path), split=split)
    batch = ours.gather(np.arange(len(ours)))
    for field, values in theirs.items():
        assert batch[field].numpy().tobytes() == values.tobytes()


@pytest.fixture(autouse=True)
def _forget(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget all files, and say that it is later: a file that changed in the last seconds is not remembered."""
    forget()
    monkeypatch.setattr(described, "time", SimpleNamespace(time_ns=lambda: time.time_ns() + 10**10))


def forget() -> None:
    for key in [*described._files]:
        described._files.drop(key)
    described._alike.clear()
    described._alike.nbytes = 0


@pytest.fixture
def opens(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The files that HDF5 opens."""
    seen: list[str] = []
    real = opening._open

    def counted(path: Any, swmr: bool = False) -> Any:
        seen.append(os.path.basename(path))
        return real(path, swmr)

    monkeypatch.setattr(opening, "_open", counted)
    return seen


@pytest.mark.parametrize("kind", ["mapped", "chunks", "h5py"])
@pytest.mark.parametrize("splits", [1, 3])
@pytest.mark.parametrize("decode", [False, True])
def test_each_file_is_opened_once_before_the_first_batch(
    decode: bool, splits: int, kind: str, tmp_path: Path, opens: list[str]
) -> None:
    """By the probe, which the config calls twice, and by all splits; however many files there are."""
    for count in (1, 12):
        forget()
        path = folder_of(tmp_path / str(count), count, count, splits=SPLITS[:splits], kind=kind)
        data = data_of(path, SPLITS[:splits], decode)
        del opens[:]
        for _ in range(2):
            assert (sample_shape(data, "x"), num_outputs(data, "y")) == ([5], 4)
        made = [Dataset(**data, split=split) for split in SPLITS[:splits]]
        named = sorted(os.path.basename(name) for name in opening.names_of(path))
        assert kind == "h5py" or sorted(opens) == named
        if kind == "h5py":  # the probe of values that HDF5 must read is apart
            del opens[:]
            made = [Dataset(**data, split=split) for split in SPLITS[:splits]]
            assert opens == []
        assert len(made[0]) == sum(3 + k % count for k in range(count))


@pytest.mark.parametrize("kind", ["mapped", "chunks"])
def test_few_objects_of_hdf5_are_made_for_a_file_that_differs(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Most of the time of describing a file was spent on handles of HDF5, each of which h5py enters in a table, and on
    h5py's Python. A field needs four: itself, its type, its creation properties and its shape."""
    made = Counter[str]()
    for of, name in ((h5py.Group, "_get"), (weakref.WeakValueDictionary, "__setitem__"), (h5py.Dataset, "__init__")):
        monkeypatch.setattr(of, name, counting(getattr(of, name), made, name))
    counts = []
    for files in (5, 15):
        path = folder_of(tmp_path / str(files), files, files, splits=SPLITS[:2], kind=kind, width=600)
        made.clear()
        for split in SPLITS[:2]:
            Dataset(**data_of(path, SPLITS[:2]), split=split)
        counts.append(made.copy())
    few, many = counts
    assert few["_get"] == many["_get"] > 0  # of the first file only
    assert few["__init__"] == many["__init__"] > 0
    assert many["__setitem__"] - few["__setitem__"] <= 10 * (4 * 2 * len(FIELDS) + 8)


def counting(real: Callable[..., Any], made: Counter[str], name: str) -> Callable[..., Any]:
    def counted(*given: Any, **more: Any) -> Any:
        made[name] += 1
        return real(*given, **more)

    return counted


@pytest.mark.parametrize("decode", [False, True])
def test_of_files_with_equal_structure_one_is_opened(decode: bool, tmp_path: Path, opens: list[str]) -> None:
    for count in (2, 10):
        forget()
        path = folder_of(tmp_path / str(count), count)
        del opens[:]
        data = data_of(path, decode=decode)
        assert num_outputs(data, "y") == 4
        for split in SPLITS:
            Dataset(**data, split=split)
        assert opens == ["0000.h5"]
        for split in SPLITS:
            assert_as_h5py(path, split)


def test_of_files_of_many_sizes_one_of_each_is_opened(
    tmp_path: Path, opens: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if the sizes alternate, as of shards of different lengths. The references have a limit in bytes."""
    path = folder_of(tmp_path / "set", 12, 6, width=600)  # HDF5 allocates less than 2 KB in blocks of one size
    assert len({file.stat().st_size for file in (tmp_path / "set").iterdir()}) == 6
    for split in SPLITS:
        assert_as_h5py(path, split)
    assert opens == [f"{k:04}.h5" for k in range(6)]
    most = described._alike.nbytes // 3
    forget()
    monkeypatch.setattr(described, "_MOST_ALIKE_BYTES", most)
    assert_as_h5py(path)
    assert 0 < described._alike.nbytes == sum(one.nbytes for one in described._alike.values()) <= most


def swapped(path: Path, kind: str) -> None:
    """y, which is as long as x, is where x was: the same size, the same bytes but for a few in the headers."""
    with h5py.File(path, "r+") as file:
        file.move("train/y", "train/z")
        file.move("val/y", "train/y")
        file.move("train/z", "val/y")


def rewritten(path: Path, kind: str) -> None:
    write(path, 77, kind=kind)


def replaced(path: Path, kind: str) -> None:
    write(path.with_suffix(".new"), 78, kind=kind)
    os.replace(path.with_suffix(".new"), path)


def longer(path: Path, kind: str) -> None:
    write(path, 79, rows=6, kind=kind)


def swapped_as_if_not(path: Path, kind: str) -> None:
    """Other places, with the size and the time of the last change as before."""
    was = path.stat()
    swapped(path, kind)
    os.utime(path, ns=(was.st_atime_ns, was.st_mtime_ns))
    assert (path.stat().st_size, path.stat().st_mtime_ns) == (was.st_size, was.st_mtime_ns)


@pytest.mark.parametrize("change", [swapped, rewritten, replaced, longer, swapped_as_if_not])
@pytest.mark.parametrize("kind", ["mapped", "chunks", "h5py"])
def test_a_changed_file_is_opened_again(change: Callable[[Path, str], None], kind: str, tmp_path: Path) -> None:
    path = folder_of(tmp_path / "set", 4, kind=kind)
    for split in SPLITS:
        assert_as_h5py(path, split)
    change(tmp_path / "set" / "0002.h5", kind)
    for _ in range(2):
        for split in SPLITS:
            assert_as_h5py(path, split)


def test_a_file_whose_time_was_set_back_is_opened_again_while_an_earlier_data_set_is_open(tmp_path: Path) -> None:
    """HDF5 shows a file as it was when it was opened first, until all handles of it are closed."""
    path, other = folder_of(tmp_path / "set", 1, kind="h5py"), tmp_path / "other.h5"
    file = tmp_path / "set" / "0000.h5"
    other.write_bytes(file.read_bytes())
    swapped(other, "h5py")
    with Dataset(**data_of(path), split="train") as before:
        before[:]
        was = file.stat()
        while file.stat().st_ctime_ns == was.st_ctime_ns:  # the clock of a file system ticks every few ms
            file.write_bytes(other.read_bytes())
            os.utime(file, ns=(OLD, OLD))
        assert (file.stat().st_size, file.stat().st_mtime_ns) == (was.st_size, OLD)
        with Dataset(**data_of(path), split="train") as data:
            assert data[:]["y"].tolist() == by_h5py(str(other), "train")["y"].tolist()


@pytest.mark.parametrize("change", [swapped, rewritten])
def test_a_file_with_another_structure_is_not_taken_for_an_equal_one(
    change: Callable[[Path, str], None], tmp_path: Path, opens: list[str]
) -> None:
    path = folder_of(tmp_path / "set", 6)
    change(tmp_path / "set" / "0003.h5", "mapped")
    sizes = {file.stat().st_size for file in (tmp_path / "set").iterdir()}
    for split in SPLITS:
        assert_as_h5py(path, split)
    assert len(sizes) == 1
    assert sorted(set(opens)) == (["0000.h5", "0003.h5"] if change is swapped else ["0000.h5"])


def with_x(file: h5py.File, dtype: str = "<i4", **how: Any) -> None:
    values = file["train/x"][:].astype(dtype)
    del file["train/x"]
    file.create_dataset("train/x", data=values, **how)


def partly_written(file: h5py.File) -> None:
    values, how = file["train/x"][:], {"chunks": (2, 5), "compression": "gzip", "fillvalue": 9}
    del file["train/x"]
    file.create_dataset("train/x", values.shape, "<i4", **how)[:2] = values[:2]


def through_a_link(file: h5py.File) -> None:
    file.move("train/x", "elsewhere")
    file["train/x"] = h5py.SoftLink("/elsewhere")


def classes_of_the(owner: str) -> Callable[[h5py.File], None]:
    return lambda file: file[owner].attrs.create("classes", list("abcd"))


ODD: dict[str, Callable[[h5py.File], None]] = {
    "byte order": lambda file: with_x(file, ">i4"),
    "other chunks": lambda file: with_x(file, chunks=(3, 5), compression="gzip"),
    "shuffle": lambda file: with_x(file, chunks=(2, 5), compression="gzip", shuffle=True, fletcher32=True),
    "tiles": lambda file: with_x(file, chunks=(2, 3), compression="gzip"),
    "raw chunks": lambda file: with_x(file, chunks=(2, 5)),
    "growing along the samples": lambda file: with_x(file, chunks=(2, 5), compression="gzip", maxshape=(7, None)),
    "partly written": partly_written,
    "a link": through_a_link,
    "an attribute": lambda file: file["train/x"].attrs.create("units", "m"),
    "classes": classes_of_the("train/y"),
    "classes of the group": classes_of_the("train"),
    "classes of the file": classes_of_the("/"),
}


@pytest.mark.parametrize("decode", [False, True])
@pytest.mark.parametrize("kind", ["mapped", "chunks"])
@pytest.mark.parametrize("odd", ODD)
def test_a_file_of_a_set_is_read_as_it_is_alone(odd: str, kind: str, decode: bool, tmp_path: Path) -> None:
    """Also if it is like the others in everything but one. All have different numbers of rows."""
    path, third = folder_of(tmp_path / "set", 5, 5, kind=kind), str(tmp_path / "set" / "0002.h5")
    with h5py.File(third, "r+") as file:
        ODD[odd](file)
    os.utime(third, ns=(OLD, OLD))
    assert_as_h5py(path)
    together = Dataset(**data_of(path, decode=decode), split="train")
    files = described.groups_of_files(opening.names_of(path), "train", together_as(decode), ChunkCache(0))
    ways = [{name: (one.way, one.reason) for name, (one, _) in group.fields.items()} for group in files]
    for name, way in zip(opening.names_of(path), ways, strict=True):
        forget()
        (alone,) = described.groups_of_files([name], "train", together_as(decode), ChunkCache(0))
        assert way == {name: (one.way, one.reason) for name, (one, _) in alone.fields.items()}
    classes = Dataset(**data_of(third, decode=decode), split="train").class_names
    assert together.class_names == classes == ({"y": [*"abcd"]} if odd == "classes" else classes)


def together_as(decode: bool) -> How:
    return how(FIELDS, SPLITS, decode=decode)


def outside(path: Path) -> None:
    with h5py.File(path, "r+") as file:
        del file["train/x"]
        file["train/x"] = h5py.ExternalLink("0001.h5", "train/x")


def packed(path: Path) -> None:
    with h5py.File(path, "r+") as file:
        file["train/x"].attrs["scale_factor"] = 0.5


def of_netcdf(path: Path) -> None:
    """Its default fill value means that an integer is missing."""
    with h5py.File(path, "r+") as file:
        file.attrs["_NCProperties"] = "version=2"


def wider(path: Path) -> None:
    write(path, 2, 5, width=6)


def another_type(path: Path) -> None:
    with h5py.File(path, "r+") as file:
        with_x(file, "<f4")


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 100)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (outside, "link to train/x of another file"),
        (packed, "differs between"),
        (of_netcdf, "differs between"),
        (wider, "differs between"),
        (another_type, r"fields\.x differs between files"),
        (cut, "cut|trunc"),
    ],
)
def test_a_later_file_that_must_be_refused_is_refused(
    change: Callable[[Path], None], message: str, tmp_path: Path
) -> None:
    path = folder_of(tmp_path / "set", 5, 5)
    change(tmp_path / "set" / "0003.h5")
    with pytest.raises(ConfigError, match=message):
        Dataset(**data_of(path, decode=True), split="train")


def test_a_list_of_chunks_of_a_later_file_is_compared_with_hdf5(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A list that is wrong, with plausible positions, as HDF5 2.0 returned."""
    path, real = folder_of(tmp_path / "set", 3, 3, kind="chunks"), layout._chunk_table

    def swapped_chunks(dset: Any, space: Any, of: Any) -> Any:
        found = real(dset, space, of)
        if of.path.endswith("0002.h5") and not isinstance(found, str):
            found.offset[[0, -1]], found.size[[0, -1]] = found.offset[[-1, 0]], found.size[[-1, 0]]
        return found

    monkeypatch.setattr(layout, "_chunk_table", swapped_chunks)
    with pytest.raises(ConfigError, match=r"0002\.h5: /train/x: chunks reads other values than h5py"):
        Dataset(**data_of(path), split="train")


def test_files_may_have_chunks_of_other_sizes(tmp_path: Path) -> None:
    """h5py's own choice of chunks depends on the number of rows, and HDF5 does not compare the last axis of chunks."""
    for k, rows in enumerate((90, 70, 50)):
        with h5py.File(tmp_path / f"{k}.h5", "w") as file:
            assert file.create_dataset("x", data=np.arange(rows), compression="gzip").chunks == (rows,)
    found = Dataset(f"{tmp_path}/*.h5", {"x": "x"}, "train", {"train": {"group": "/"}})
    assert found.gather(np.arange(len(found)))["x"].tolist() == [*range(90), *range(70), *range(50)]


def test_a_field_may_be_a_group_that_names_its_dataset(tmp_path: Path) -> None:
    """By NeXus' attribute `signal`, in files without other marks of NeXus."""
    for k in range(3):
        with h5py.File(tmp_path / f"{k}.h5", "w") as file:
            file["entry/data/counts"], file["y"] = np.arange(4.0 + k), np.arange(4 + k)
            file["entry/data"].attrs["signal"] = "counts"
    found = Dataset(f"{tmp_path}/*.h5", {"x": "entry/data", "y": "y"}, "train", {"train": {"group": "/"}}, decode=True)
    both = found.gather(np.arange(len(found)))
    assert both["x"].tolist() == both["y"].tolist() == [*range(4), *range(5), *range(6)]


@pytest.mark.parametrize("age", ["new", "old"])
def test_a_recent_file_is_not_remembered(
    age: str, tmp_path: Path, opens: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another change could leave its size and times equal; with `cp -p` the mtime is always old."""
    write(tmp_path / "a.h5", 0)
    if age == "new":
        os.utime(tmp_path / "a.h5")
    changed = max((tmp_path / "a.h5").stat().st_mtime_ns, (tmp_path / "a.h5").stat().st_ctime_ns)
    monkeypatch.setattr(described, "time", SimpleNamespace(time_ns=lambda: changed + 10**9))
    for count in (1, 2):
        Dataset(**data_of(str(tmp_path / "a.h5")), split="train")
        assert len(opens) == count


def test_a_large_description_is_kept_for_the_splits_of_one_data_set(
    tmp_path: Path, opens: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(described, "_MOST_BYTES", 2000)
    write(tmp_path / "a.h5", 0)
    for count in (1, 2):
        with reading_once():
            for split in SPLITS:
                Dataset(**data_of(str(tmp_path / "a.h5")), split=split)
        assert len(opens) == count
    assert (described._files.nbytes, len(described._files)) == (0, 0)


def test_a_probe_leaves_its_cache_of_no_bytes_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compressed chunks of one row are decoded once in two passes, because the data set's cache has room for all."""
    values = np.arange(8, dtype="i4")
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("train/x/values", data=values, chunks=(1,), compression="gzip")
        file["train/x/offsets"], file["train/y"] = np.arange(9), values % 4
    data, decoded, real = data_of(str(tmp_path / "a.h5"), SPLITS[:1]), [], Chunks._decode

    def counted(self: Chunks, number: int, tile: int) -> np.ndarray:
        decoded.append(number)
        return real(self, number, tile)

    assert num_outputs(data, "y") == 4
    assert len(described._files) == 1
    monkeypatch.setattr(Chunks, "_decode", counted)
    opened = Dataset(**data, split="train")
    for _ in range(2):
        assert [int(opened[k]["x"]) for k in range(8)] == values.tolist()
    assert sorted(decoded) == [*range(8)]


def test_a_file_that_is_open_for_writing_is_refused_as_before(tmp_path: Path) -> None:
    path, second = folder_of(tmp_path / "set", 3), tmp_path / "set" / "0001.h5"
    with h5py.File(second, "r+"):
        os.utime(second, ns=(OLD, OLD))
        with pytest.raises(ConfigError, match=r"0001\.h5 is open for writing"):
            Dataset(**data_of(path), split="train")


def read_in_child(sets: list[Dataset], rows: list[np.ndarray], send: Any) -> None:
    send.send([s.gather(r)["x"].numpy().tobytes() for s, r in zip(sets, rows)])


def test_more_files_than_descriptors(tmp_path: Path) -> None:
    """In a process of its own, which has no files of other tests open; each way to read in a fork of it."""
    run_to_its_end("spawn", each_with_few_descriptors, tmp_path)


def run_to_its_end(how: str, work: Callable[..., None], *given: Any) -> None:
    process = multiprocessing.get_context(how).Process(target=work, args=given)  # type: ignore[attr-defined]
    process.start()
    process.join()
    assert process.exitcode == 0


def each_with_few_descriptors(folder: Path) -> None:
    for kind in ("mapped", "h5py"):
        (folder / kind).mkdir()
        run_to_its_end("fork", read_with_few_descriptors, kind, folder / kind)


def read_with_few_descriptors(kind: str, folder: Path) -> None:
    few = 96
    resource.setrlimit(resource.RLIMIT_NOFILE, (few, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    path = folder_of(folder / "set", 60, 2, splits=SPLITS[:2], kind=kind)
    data = data_of(path, SPLITS[:2])
    sets = [Dataset(**data, split=split) for split in SPLITS[:2]]
    rows = [np.random.default_rng(k).permutation(len(one)) for k, one in enumerate(sets)]
    wanted = [by_h5py(path, split)["x"][at].tobytes() for split, at in zip(SPLITS, rows)]

    def read(k: int) -> bytes:
        sets[k % 2].advise(rows[k % 2])
        return sets[k % 2].gather(rows[k % 2])["x"].numpy().tobytes()

    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(read, range(4))) == 2 * wanted
    fork = multiprocessing.get_context("fork")
    receive, send = fork.Pipe(duplex=False)
    child = fork.Process(target=read_in_child, args=(sets, rows, send))
    child.start()
    send.close()  # so that `recv` ends if the child fails
    assert receive.recv() == wanted
    child.join()
    assert [read(k) for k in (0, 1)] == wanted
    if Path("/proc/self/fd").exists():
        assert len([name for name in map(os.readlink, fds()) if name.startswith(str(folder))]) <= few // 2
    if kind == "mapped":  # a file whose descriptor was closed is looked up by its path
        k = next(k for k, (file, *_) in enumerate(sets[0]._shard_files) if file._held is None)
        replaced(folder / "set" / f"{k:04}.h5", kind)
        with pytest.raises(ConfigError, match=rf"{k:04}\.h5 was replaced"):
            sets[0].gather(np.arange(len(sets[0])))


def fds() -> Iterator[str]:
    """Descriptors of this process; one may be closed meanwhile."""
    return (f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{fd}"))


@pytest.mark.parametrize("width", [1, 700, 20_000])
def test_a_batch_of_many_files_has_the_bytes_of_h5py(width: int, tmp_path: Path) -> None:
    """Contiguous, in raw chunks, compressed and by HDF5; also files without rows; at any places of a buffer."""
    rng, whole = np.random.default_rng(0), []
    for k in range(9):
        values = rng.integers(0, 256, (0 if k == 4 else 4 + k, width), dtype=np.uint8)
        with h5py.File(tmp_path / f"{k}.h5", "w") as file:
            how: dict[str, Any] = {} if k % 3 == 0 or k == 4 else {"chunks": (3, width)}
            file.create_dataset("mapped", data=values, **how)
            file.create_dataset("mixed", data=values, **(how | ({"compression": 1} if k in (2, 5) else {})))
        whole.append(values)
    names = {"mapped": "mapped", "mixed": "mixed"}
    values = np.concatenate(whole)
    files = [str(tmp_path / f"{k}.h5") for k in range(9)]
    for skipped in ((), (4,)):
        data = Dataset([name for k, name in enumerate(files) if k not in skipped], names)
        assert len(data) == len(values)
        for rows in (rng.permutation(len(values)), rng.integers(0, len(values), 500), np.arange(7), np.arange(0)):
            for batch in data.gather(rows).values():
                assert batch.numpy().tobytes() == values[rows].tobytes()
            out = {name: torch.zeros((len(rows) + 3, width), dtype=torch.uint8) for name in names}
            at = rng.permutation(len(rows) + 3)[: len(rows)]
            data.gather_at(rows, out, at)
            for batch in out.values():
                assert batch[torch.from_numpy(at)].numpy().tobytes() == values[rows].tobytes()
                assert int((batch.sum(1) != 0).sum()) <= len(rows)


def calls_of(read: Callable[[], object]) -> int:
    """Return how many Python functions are called."""
    count = 0

    def profile(frame: Any, event: str, arg: Any) -> None:
        nonlocal count
        count += event == "call"

    sys.setprofile(profile)
    try:
        read()
    finally:
        sys.setprofile(None)
    return count


def test_a_batch_calls_one_function_for_each_touched_file(tmp_path: Path) -> None:
    """The check that it has not changed. Nothing is called for each row, field, or file that is not touched."""
    counts = {}
    for files in (10, 100):
        data = Dataset(**data_of(folder_of(tmp_path / str(files), files)), split="train")
        data.gather(np.arange(len(data)))
        for touched in (5, 10):
            for times in (1, 50):
                rows = np.tile(np.arange(0, 3 * touched, 3), times)
                counts[files, touched, times] = calls_of(lambda rows=rows, data=data: data.gather(rows))
    assert len({counts[files, 5, times] for files in (10, 100) for times in (1, 50)}) == 1
    assert {counts[files, 10, times] - counts[files, 5, times] for files in (10, 100) for times in (1, 50)} == {5}
