"""Files that change, are cut, or are open elsewhere in the process while a dataset reads them."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from conftest import ROOT, limit, one_quick, slow

from engine.data.h5 import H5Dataset
from engine.data.reading.raw import RawFile
from engine.errors import ConfigError
from lab.datasets.tokens import TokenWindows

SRC = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
ROOT = {"all": {"group": "/"}}
FIELDS = {"mapped": "m", "chunks": "c", "h5py": "h", "virtual": "v", "table": "t/a"}


def write(path: Path, first: int = 0) -> Path:
    """40 rows: row k holds first + k, in each way."""
    values = np.arange(first, first + 40)
    with h5py.File(path.with_name("source.h5"), "w") as file:
        file["s"] = values
    table = np.zeros(40, [("a", "i8"), ("b", "f4")])
    table["a"] = values
    with h5py.File(path, "w") as file:
        file["m"], file["h"], file["t"] = values, values.astype(">i8"), table
        file.create_dataset("c", data=values, chunks=(7,), compression="gzip")
        layout = h5py.VirtualLayout((40,), "i8")
        layout[:] = h5py.VirtualSource("source.h5", "s", (40,))
        file.create_virtual_dataset("v", layout)
    return path


def opened(path: Path, *fields: str, **options: Any) -> H5Dataset:
    return H5Dataset(str(path), {field: FIELDS[field] for field in fields or FIELDS}, ROOT, "all", **options)


def first_rows(data: H5Dataset) -> dict[str, int]:
    return {field: int(values[0]) for field, values in data.gather(np.arange(40)).items()}


def replace(path: Path) -> None:
    (path.parent / "new").mkdir()
    os.replace(write(path.parent / "new" / path.name, 1000), path)


def write_again(path: Path) -> None:
    """As another program does; HDF5 itself writes nothing anew that is open in this process."""
    (path.parent / "anew").mkdir()
    write(path.parent / "anew" / path.name, 1000)
    for name in (path.name, "source.h5"):
        path.with_name(name).write_bytes((path.parent / "anew" / name).read_bytes())
        os.utime(path.with_name(name), ns=(0, 1))  # a file system may count time coarsely


def cut(path: Path) -> None:
    os.truncate(path, 4000)


@pytest.mark.parametrize("field", ["mapped", "chunks", "h5py", "virtual", "table"])
@pytest.mark.parametrize("change", [replace, write_again, cut])
def test_a_change_before_the_first_batch_or_after_it(change: Any, field: str, tmp_path: Path) -> None:
    for used in (False, True):
        (tmp_path / str(used)).mkdir()
        path = write(tmp_path / str(used) / "f.h5")
        data = opened(path, field)
        if used:
            first_rows(data)
        raw = pickle.dumps(data)
        change(path)
        match = r"\.h5.*(replaced|changed|cut short)"
        if change is replace and (used or field in ("mapped", "chunks")):
            assert first_rows(data) == {field: 0}  # the old file is still there for those who hold it
        else:
            with pytest.raises(ConfigError, match=match):
                first_rows(data)
        with pytest.raises(ConfigError, match=match):  # in a worker
            first_rows(pickle.loads(raw))


@pytest.mark.parametrize("change", [write_again, cut])
def test_a_change_of_a_file_that_a_virtual_dataset_shows(change: Any, tmp_path: Path) -> None:
    data = opened(write(tmp_path / "f.h5"), "virtual")
    assert first_rows(data) == {"virtual": 0}
    if change is cut:
        os.truncate(tmp_path / "source.h5", 2000)
    else:
        os.utime(tmp_path / "source.h5", ns=(0, 1))
    with pytest.raises(ConfigError, match=r"source.h5 .*(changed|cut short)"):
        first_rows(data)
    (tmp_path / "source.h5").unlink()
    with pytest.raises(ConfigError, match=r"source.h5, in which .*/v lies, is gone"):
        first_rows(data)


def test_a_change_of_what_a_source_shows_in_turn(tmp_path: Path) -> None:
    """Raw storage and a third file, behind a virtual dataset."""
    with h5py.File(tmp_path / "c.h5", "w") as file:
        file["s"] = np.arange(40)
    with h5py.File(tmp_path / "b.h5", "w") as file:
        file.create_dataset("raw", data=np.arange(40), external=[(str(tmp_path / "raw"), 0, 320)])
        file.create_virtual_dataset("v", _shown("c.h5", "s"))
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for name in ("raw", "v"):
            file.create_virtual_dataset(name, _shown("b.h5", name))
    for name, victim in (("raw", "raw"), ("v", "c.h5")):
        data = H5Dataset(str(tmp_path / "a.h5"), {"x": name}, ROOT, "all", external="allow")
        assert first_rows(data) == {"x": 0}
        os.truncate(tmp_path / victim, 100)
        with pytest.raises(ConfigError, match=rf"{victim} has 100 bytes.*cut short"):
            first_rows(data)


def _shown(file: str, name: str) -> h5py.VirtualLayout:
    layout = h5py.VirtualLayout((40,), "i8")
    layout[:] = h5py.VirtualSource(file, name, (40,))
    return layout


@pytest.mark.parametrize("first", [0, *(slow(k) for k in range(4, 40, 4))])
def test_a_file_that_is_cut_while_it_is_read(first: int, tmp_path: Path) -> None:
    """Of each layout whose bytes are mapped: one error that names it, never a signal, never zeros."""
    path = tmp_path / "f.h5"
    for k in range(first, first + 4):
        rng = np.random.default_rng(k)
        with h5py.File(path, "w") as file:
            file["m"] = file["flat/values"] = np.ones((2000, 500), "f4")
            file["flat/offsets"], file["tokens"] = np.arange(0, 2001, 4), np.ones(1 << 20, "i4")
            file.create_dataset("c", data=np.ones((2000, 500), "f4"), chunks=(7, 500))
        name = ["m", "c", "flat", "tokens"][k % 4]
        read, write = os.pipe()
        if (pid := os.fork()) == 0:
            os.write(write, _read_until_it_fails(path, name, write).encode())
            os._exit(0)
        os.close(write)
        with open(read) as pipe:
            assert pipe.read(5) == "open "
            time.sleep(rng.random() / 20)
            os.truncate(path, rng.integers(path.stat().st_size))
            said = pipe.read()
        assert os.waitpid(pid, 0)[1] == 0, said
        assert "f.h5 has" in said, said
        assert "it was cut short; write it again" in said


def _read_until_it_fails(path: Path, name: str, pipe: int) -> str:
    rng = np.random.default_rng()
    try:
        if name == "tokens":
            data: Any = TokenWindows(str(path), {"x": name}, ROOT, "all", window=999, stride=1)
        else:
            data = H5Dataset(str(path), {"x": name}, ROOT, "all")
        os.write(pipe, b"open ")
        while bool((data.gather(rng.integers(0, len(data), 64))["x"] == 1).all()):
            continue
        return "zeros"
    except ConfigError as error:
        return str(error)


_BUS = """
import faulthandler, mmap, os, signal, sys, threading
import numpy as np
from engine.data.h5 import H5Dataset
from engine.errors import ConfigError

def opened(path):
    return H5Dataset(path, {"x": "m", "y": "n"}, {"all": {"group": "/"}}, "all")

def said(data):
    try:
        data.gather(np.arange(2000))
    except ConfigError as error:
        return str(error)

path = sys.argv[1]
"""


def _bus(tmp_path: Path, code: str) -> subprocess.CompletedProcess[str]:
    path = tmp_path / "f.h5"
    with h5py.File(path, "w") as file:
        file["m"], file["n"] = np.ones((2000, 500), "f4"), np.ones((2000, 50), "f4")
    command = [sys.executable, "-c", _BUS + code, str(path)]
    return subprocess.run(command, capture_output=True, text=True, env=SRC, timeout=limit(60))


# each reads behind the end of a file that is cut, without a check before it
@pytest.mark.parametrize(
    "code",
    [
        # many threads at the same pages at once, and a second file after that
        "a, b = opened(path), opened(sys.argv[1])\nos.truncate(path, 4096)\nfound = []\n"
        "for _ in range(8): threading.Thread(target=lambda: found.append(said(a))).start()\n"
        "while len(found) < 8: pass\nassert len(set(found)) == 1 and 'was cut short' in found[0], found",
        # another has taken the signal; a mapping takes it back
        "faulthandler.enable()\na = opened(path)\nos.truncate(path, 4096)\nassert 'was cut short' in said(a)",
        "a = opened(path)\nfaulthandler.enable()\n"
        "import shutil; shutil.copy(path, path + '2'); c = opened(path + '2')\n"
        "os.truncate(path + '2', 4096)\nassert 'was cut short' in said(c)",
        # whole again, to the nanosecond, before it is checked: the zeros are known
        "a, raw, was = opened(path), open(path, 'rb').read(), os.stat(path)\nos.truncate(path, 4096)\n"
        "a._fields['x'][0].reader.gather_into(np.arange(2000), np.empty((2000, 500), 'f4'))\n"
        "open(path, 'r+b').write(raw)\nos.utime(path, ns=(was.st_atime_ns, was.st_mtime_ns))\n"
        "assert 'could not be read for a while' in said(a), said(a)",
        # grown again while the handler begins
        "a = opened(path)\ndone = []\nos.truncate(path, 5 << 20)\n"
        "def flip():\n"
        "  while not done: os.truncate(path, 4096); os.truncate(path, 5 << 20)\n"
        "t = threading.Thread(target=flip); t.start()\n"
        "found = {said(a) for _ in range(200)}; done.append(1); t.join()\nassert None not in found, found",
    ],
)
def test_what_survives_the_signal(code: str, tmp_path: Path) -> None:
    done = _bus(tmp_path, code)
    assert (done.returncode, done.stderr) == (0, "")


FOREIGN = "f = open(path + 'o', 'w+b'); f.write(bytes(9000)); f.flush(); m = mmap.mmap(f.fileno(), 9000)\n"


@pytest.mark.parametrize(
    "code",
    one_quick([
        "os.kill(os.getpid(), signal.SIGBUS)",
        "threading.Thread(target=lambda: os.kill(os.getpid(), signal.SIGBUS)).start(); threading.Event().wait()",
        FOREIGN + "f.truncate(0); m[5000]",
        FOREIGN + "os.truncate(path, 4096); said(a); f.truncate(0); m[5000]",
    ]),
)  # fmt: skip
def test_a_bus_error_of_others_kills_with_its_trace(code: str, tmp_path: Path) -> None:
    for before in ("faulthandler.enable(); a = opened(path)\n", "a = opened(path); faulthandler.enable()\n"):
        if "os.truncate" in code and before.startswith("a"):
            continue  # it would be faulthandler's
        done = _bus(tmp_path, before + code)
        assert done.returncode == -signal.SIGBUS, done
        assert "Fatal Python error: Bus error" in done.stderr, done
        assert '  File "' in done.stderr, done


def test_a_file_is_checked_once_for_each_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = opened(write(tmp_path / "f.h5"), "mapped", "chunks")
    checked: list[RawFile] = []
    monkeypatch.setattr(RawFile, "check", lambda self: checked.append(self))
    data.gather(np.arange(3))
    assert len(checked) == 1


def test_a_file_written_anew_is_read_anew(tmp_path: Path) -> None:
    for change in (write_again, replace):
        (tmp_path / change.__name__).mkdir()
        path = write(tmp_path / change.__name__ / "f.h5")
        old = opened(path)
        first_rows(old)
        change(path)
        assert set(first_rows(opened(path, "mapped", "chunks", "h5py", "table")).values()) == {1000}
        with pytest.raises(ConfigError, match=r"replaced|changed"):
            first_rows(old)


def test_a_stream_that_is_cut(tmp_path: Path) -> None:
    path = write(tmp_path / "f.h5")
    data = TokenWindows(str(path), {"x": "m"}, ROOT, "all", window=3, stride=1)
    os.utime(path, ns=(0, 1))
    with pytest.raises(ConfigError, match=r"f.h5 was changed"):
        data.gather(np.arange(4))


def _send(data: H5Dataset, queue: Any) -> None:
    queue.put(first_rows(data))


def test_swmr_of_a_file_that_nobody_writes(tmp_path: Path) -> None:
    """Of any layout, twice in one process, and in a forked one."""
    path = write(tmp_path / "f.h5")
    data, again = opened(path, swmr=True), opened(path, swmr=True)
    expected = dict.fromkeys(FIELDS, 0)
    for _ in range(3):
        assert first_rows(data) == first_rows(again) == expected
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    child = context.Process(target=_send, args=(data, queue))
    child.start()
    assert queue.get(timeout=limit(60)) == expected
    child.join(limit(60))
    assert child.exitcode == 0


def test_links_and_virtual_datasets_of_one_file_together(tmp_path: Path) -> None:
    """HDF5 opens a virtual dataset's source by itself, and wants to find it open in its own way."""
    write(tmp_path / "f.h5")
    values = np.arange(40).reshape(20, 2)
    with h5py.File(tmp_path / "b.h5", "w") as file:
        file.create_dataset("lzf", data=values, chunks=(2, 2), compression="lzf")
        file["big"], file["strings"] = values.astype(">i4"), ["ab"] * 20
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for name in ("lzf", "big", "strings"):
            file[name] = h5py.ExternalLink("b.h5", name)
        layout = h5py.VirtualLayout((20, 2), "i8")
        layout[...] = h5py.VirtualSource("b.h5", "lzf", (20, 2))
        file.create_virtual_dataset("virtual", layout)
    names = ["lzf", "big", "virtual", "strings"]
    for order in (names, names[::-1]):
        sets = [H5Dataset(str(tmp_path / "a.h5"), {n: n for n in order}, ROOT, "all") for _ in range(2)]
        sets.append(H5Dataset(str(tmp_path / "b.h5"), {"lzf": "lzf"}, ROOT, "all"))
        for _ in range(2):
            for data in sets:
                batch = data.gather(np.arange(20))
                assert batch.pop("strings", ["ab"] * 20) == ["ab"] * 20
                assert all(np.array_equal(part.numpy(), values) for part in batch.values())


def test_a_pipe_is_no_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "f.h5")
    with pytest.raises(ConfigError, match=r"f.h5 is no regular file"):
        opened(tmp_path / "f.h5")
