"""Files that change, are cut, or are open elsewhere in the process while a dataset reads them."""

from __future__ import annotations

import os
import pickle
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from common import QUICK, ROOT as PROJECT, TRAIN

import samebits.errors
from h5rows import ConfigError, Dataset
from lab.datasets.tokens import TokenWindows
from samebits.testing import assert_undisturbed, start_run, status
from samebits.testing.processes import limit, slow, warm

ROOT = {"all": {"group": "/"}}
FIELDS = {"mapped": "m", "chunks": "c", "h5py": "h", "virtual": "v", "table": "t/a"}


def write(path: Path, first: int = 0) -> Path:
    """40 rows: row k holds first + k, in each way."""
    values = np.arange(first, first + 40)
    table = np.zeros(40, [("a", "i8"), ("b", "f4")])
    table["a"] = values
    with h5py.File(path, "w") as file:
        file["m"], file["h"], file["t"] = values, values.astype(">i8"), table
        file.create_dataset("c", data=values, chunks=(7,), compression="gzip")
        layout = h5py.VirtualLayout((40,), "i8")
        layout[:] = h5py.VirtualSource(".", "m", (40,))
        file.create_virtual_dataset("v", layout)
    return path


def opened(path: Path, *fields: str, **options: Any) -> Dataset:
    return Dataset(str(path), {field: FIELDS[field] for field in fields or FIELDS}, "all", ROOT, **options)


def first_rows(data: Dataset) -> dict[str, int]:
    return {field: int(values[0]) for field, values in data.gather(np.arange(40)).items()}


def replace(path: Path) -> None:
    (path.parent / "new").mkdir()
    os.replace(write(path.parent / "new" / path.name, 1000), path)


def write_again(path: Path) -> None:
    """As another program does; HDF5 itself writes nothing anew that is open in this process."""
    (path.parent / "anew").mkdir()
    write(path.parent / "anew" / path.name, 1000)
    path.write_bytes((path.parent / "anew" / path.name).read_bytes())
    os.utime(path, ns=(0, 1))  # a file system may count time coarsely


def cut(path: Path) -> None:
    os.truncate(path, 4000)


def touch(path: Path) -> None:
    os.utime(path, ns=(0, 1))


def lengthen(path: Path) -> None:
    with open(path, "ab") as file:
        file.write(b"more")


@pytest.mark.one_quick
@pytest.mark.parametrize("field", ["mapped", "chunks", "h5py", "virtual", "table"])
@pytest.mark.parametrize("change", [replace, write_again, cut, touch, lengthen])
def test_a_change_before_the_first_batch_or_after_it(change: Any, field: str, tmp_path: Path) -> None:
    for used in (False, True):
        (tmp_path / str(used)).mkdir()
        path = write(tmp_path / str(used) / "f.h5")
        data = opened(path, field)
        if used:
            first_rows(data)
        raw = pickle.dumps(data)
        change(path)
        match = r"\.h5.*(replaced|changed|truncated)"
        if change is replace and (used or field in ("mapped", "chunks")):
            assert first_rows(data) == {field: 0}  # the old file is still there for those who hold it
        else:
            with pytest.raises(ConfigError, match=match):
                first_rows(data)
        with pytest.raises(ConfigError, match=match):  # in a worker
            first_rows(pickle.loads(raw))
        if change in (replace, write_again):
            assert first_rows(opened(path, field)) == {field: 1000}


CUT = f"""
import os, sys
sys.path.insert(0, {str(PROJECT / "src")!r})
import lab.loop, train
train_step = lab.loop.train_step
def cut(nets, state, *rest):
    if state.step == 12:
        os.truncate(os.environ["CUT"], 4096)
    return train_step(nets, state, *rest)
lab.loop.train_step = cut
sys.exit(train.main())
"""


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, slow(2)])
def test_a_file_that_is_cut_while_it_is_mapped(ranks: int, tmp_path: Path) -> None:
    """The run dies by SIGBUS, with its stack, and goes on once the file is whole again. A process may end by SIGSEGV
    after its stack was written, because faulthandler then reads the frames of threads that run. If the loop reads the
    file while the loader's thread writes its stack, the process ends there, and the text is cut. If both fault at once,
    faulthandler writes one stack, and the thread without one may end the process first."""
    data, run = tmp_path / "digits.h5", tmp_path / "run"
    shutil.copy(PROJECT / "data" / "digits.h5", data)
    whole = data.read_bytes()
    options = [*QUICK, f"data.path={data}", "data.loader=threads", "trainer.max_steps=40", "trainer.save_every=5"]
    options += [] if ranks == 1 else ["trainer=ddp", f"hardware.num_procs={ranks}"]
    straight = start_run(tmp_path / "straight", *options)
    command = [sys.executable, "-c", CUT, *options, f"hydra.run.dir={run}"]
    said = {"capture_output": True, "text": True, "timeout": limit(60)}
    died = warm.run(command, env={**os.environ, "CUT": str(data)}, **said)
    stack = died.stderr if ranks == 1 else status(run)["traceback"]
    assert "Fatal Python error: " in stack
    both = stack.count("Fatal Python error: ") == 2
    assert both or "h5rows/reading/readers.py" in stack or stack.endswith("Fatal Python error: ")
    if ranks == 1:
        assert died.returncode in (-signal.SIGBUS, -signal.SIGSEGV)
        assert status(run)["status"] == "running"
    else:
        assert (died.returncode, status(run)["status"]) == (1, "failed")
        assert "was killed by SIGBUS (a data file was cut short" in status(run)["error"]
    data.write_bytes(whole)
    again = warm.run([*TRAIN, f"resume={run}"], **said)
    assert again.returncode == 0, again.stderr
    assert ", resumed from last_" in again.stderr
    assert_undisturbed(run, straight)


def test_a_stream_that_is_cut(tmp_path: Path) -> None:
    path = write(tmp_path / "f.h5")
    data = TokenWindows(str(path), {"x": "m"}, ROOT, "all", window=3, stride=1)
    os.utime(path, ns=(0, 1))
    with pytest.raises(samebits.errors.ConfigError, match=r"f.h5 was changed"):
        data.gather(np.arange(4))


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (os.mkfifo, "is not a regular file"),
        (Path.mkdir, "is a directory"),
        (lambda path: path.symlink_to("/dev/zero"), "is not a regular file"),
        (lambda path: path.symlink_to("nowhere"), "does not exist"),
        (Path.touch, "not an HDF5 file"),
    ],
)
def test_what_is_no_file(make: Any, said: str, tmp_path: Path) -> None:
    """HDF5 would wait for a pipe."""
    make(tmp_path / "f.h5")
    with pytest.raises(ConfigError, match=rf"f.h5.* {said}"):
        opened(tmp_path / "f.h5")
