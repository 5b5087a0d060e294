"""The program's own h5py.File beside fields that read the same files: both are right, whoever came first; or one line,
where the program opens them in a way of its own."""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from running import limit, sample_of

from h5rows.dataset import Dataset
from h5rows.errors import ConfigError

VALUES = np.arange(40).reshape(20, 2)
FIELDS = ("mapped", "chunks", "big", "lzf", "link", "linked group", "virtual", "own parts", "raw")
# how the program opens files: as everybody does, and in ways of its own (one for all), which HDF5 may refuse
WAYS: dict[str, dict[str, Any]] = {
    "plain": {},
    "no locks": {"locking": False},
    "locks": {"locking": True},
    "latest": {"libver": "latest", "rdcc_nbytes": 0},
    "swmr": {"swmr": True},
}


def write(folder: Path) -> None:
    VALUES.tofile(folder / "raw.bin")
    for name in ("a.h5", "b.h5"):
        with h5py.File(folder / name, "w") as file:
            file["mapped"], file["big"] = VALUES, VALUES.astype(">i8")
            file.create_dataset("chunks", data=VALUES, chunks=(2, 2), compression="gzip")
            file.create_dataset("lzf", data=VALUES, chunks=(2, 2), compression="lzf")
            file["group/values"], file["group/offsets"] = VALUES.reshape(-1).astype(">i8"), np.arange(0, 41, 2)
            for key, source in {"virtual": "b.h5", "own parts": "."}.items() if name == "a.h5" else ():
                layout = h5py.VirtualLayout(VALUES.shape, "i8")
                layout[...] = h5py.VirtualSource(source, "lzf", VALUES.shape)
                file.create_virtual_dataset(key, layout)
    with h5py.File(folder / "a.h5", "r+") as file:
        file["link"], file["linked group"] = h5py.ExternalLink("b.h5", "lzf"), h5py.ExternalLink("b.h5", "group")
        file.create_dataset("raw", VALUES.shape, "i8", external=[(str(folder / "raw.bin"), 0, VALUES.nbytes)])


@contextlib.contextmanager
def refusable(way: str, error: type[Exception]) -> Iterator[None]:
    """The program opens files as everybody does, or HDF5 may refuse what is opened second."""
    try:
        yield
    except error as refused:
        if way in ("plain", "latest") or (error is ConfigError and "open both with the same ones" not in str(refused)):
            raise


def play(folder: Path, way: str, seed: int) -> None:
    """A random order of opening, reading and closing; raises where anything but HDF5's word to the program is wrong."""
    gc.freeze()  # it collects what it lets go, which need not look through all that the tests have
    draw = random.Random(seed)
    own: list[h5py.File] = []
    sets: list[Dataset] = []
    for _ in range(draw.randint(4, 12)):
        match draw.choice(["own", "own reads", "own closes", "open", "gather", "gather", "forget"]):
            case "own":
                with refusable(way, OSError):
                    own.append(h5py.File(folder / draw.choice(["a.h5", "b.h5"]), **WAYS[way]))
            case "own reads" if own:
                assert np.array_equal(draw.choice(own)["lzf"][...], VALUES)
            case "own closes" if own:
                own.pop(draw.randrange(len(own))).close()
            case "open":
                fields = {name: name for name in draw.sample(FIELDS, draw.randint(1, 3))}
                with refusable(way, ConfigError):
                    sets.append(Dataset(str(folder / "a.h5"), fields, external="allow"))
            case "gather" if sets:
                rows = np.random.permutation(20)
                with refusable(way, ConfigError):
                    for name, values in draw.choice(sets).gather(rows).items():
                        assert name.endswith("_length") or np.array_equal(values.numpy(), VALUES[rows]), name
            case "forget" if sets:
                sets.pop(draw.randrange(len(sets)))
                gc.collect()


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_any_order_of_opening_reading_and_closing(way: str, tmp_path: Path) -> None:
    write(tmp_path)
    context = multiprocessing.get_context("fork")  # HDF5 keeps what it has open for the whole process
    for seed in range(sample_of(12, 60)):
        child = context.Process(target=play, args=(tmp_path, way, seed))
        child.start()
        child.join(limit(60))
        assert child.exitcode == 0, f"seed {seed}"


def test_a_file_that_the_program_has_open_in_another_way(tmp_path: Path) -> None:
    """What is mapped needs no handle once it is open; else a line says what to do."""
    write(tmp_path)
    data = Dataset(str(tmp_path / "a.h5"), {"x": "mapped"})
    through = Dataset(str(tmp_path / "a.h5"), {"x": "big"})
    with h5py.File(tmp_path / "a.h5", locking=True):
        assert np.array_equal(data.gather(np.arange(20))["x"].numpy(), VALUES)
        for read in (lambda: through.gather(np.arange(20)), lambda: Dataset(str(tmp_path / "a.h5"), {"x": "mapped"})):
            with pytest.raises(ConfigError, match=r"a\.h5.*open both with the same ones \(locking, swmr\)"):
                read()
    assert np.array_equal(through.gather(np.arange(20))["x"].numpy(), VALUES)


def test_a_file_that_the_program_is_writing(tmp_path: Path) -> None:
    """Its bytes may not be in the file yet, or never were: it is to be closed first."""
    write(tmp_path)
    with h5py.File(tmp_path / "a.h5", "r+") as file:
        file["mapped"][3], file["lzf"][3] = 77, 78
        for name in ("mapped", "lzf"):
            with pytest.raises(ConfigError, match=r"a\.h5 is open for writing in this program.*close it"):
                Dataset(str(tmp_path / "a.h5"), {"x": name})
    data = Dataset(str(tmp_path / "a.h5"), {"x": "mapped", "y": "lzf"})
    assert [values.tolist() for values in data.gather(np.array([3])).values()] == [[[77] * 2], [[78] * 2]]
