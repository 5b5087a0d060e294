"""What the machine lacks is told as that, and no file is called damaged, left out or renamed for it."""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from h5rows import Dataset, command
from h5rows.errors import machine_fault
from h5rows.importers.files import read_sample
from h5rows.integration import open_h5


@contextmanager
def no_more_files() -> Iterator[None]:
    """Nothing more can be opened; what is open stays. Only the standard streams have numbers below the limit: those of
    other files would be free again where garbage of other tests is collected meanwhile."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def read_h5(path: Path) -> None:
    with open_h5(path):
        pass


READERS: dict[str, Callable[[Path], Any]] = {
    "a.h5": read_h5,
    "a.npy": lambda path: read_sample(str(path), "a"),
}


@pytest.mark.parametrize("name", READERS)
def test_too_many_open_files_is_no_damage(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"] = np.zeros(3)
    np.save(tmp_path / "a.npy", np.zeros(3))
    READERS[name](path)
    before = sorted(tmp_path.iterdir())
    with no_more_files(), pytest.raises(Exception, match=r"Too many open files: .*ulimit -n") as caught:
        READERS[name](path)
    assert type(caught.value).__name__ in ("ConfigError", "RunFailed")
    assert "damaged" not in str(caught.value)
    assert sorted(tmp_path.iterdir()) == before
    READERS[name](path)


@pytest.mark.parametrize("number", [errno.EMFILE, errno.EIO, errno.EACCES, errno.ENOMEM, errno.ESTALE])
def test_whatever_reading_meets_is_told_as_it_is(tmp_path: Path, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """HDF5 tells some of these by their text alone."""
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["train/x"] = np.zeros((3, 2), dtype=np.float32)
    text = f"Unable to open file (file read failed: errno = {number}, error message = '{os.strerror(number)}')"
    for error in (OSError(number, "said h5py"), OSError(text)):
        assert str(machine_fault(error)).startswith(os.strerror(number))
        with (
            pytest.raises(Exception, match=f"cannot be read: {os.strerror(number)}: ") as caught,
            open_h5(tmp_path / "a.h5"),
        ):
            raise error
        assert "damaged" not in str(caught.value)
        with monkeypatch.context() as patch:
            patch.setattr(h5py.h5f, "open", lambda *rest, e=error, **named: (_ for _ in ()).throw(e))
            with pytest.raises(Exception, match=f"cannot be opened: {os.strerror(number)}: "):
                Dataset(str(tmp_path / "a.h5"), {"x": "x"}, "train", {"train": {"group": "train"}})
    assert machine_fault(ValueError("not an HDF5 file")) is None


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="Linux has a full device")
@pytest.mark.parametrize("buffering", [1, -1])  # the first line fails, or the end of the command
def test_output_that_is_lost_is_no_error_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], buffering: int
) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"] = np.zeros(3)
    monkeypatch.setattr("sys.argv", ["h5rows", "inspect", str(tmp_path / "a.h5")])
    with open("/dev/full", "w", buffering=buffering) as full:
        monkeypatch.setattr("sys.stdout", full)
        assert command.run() == 1
    assert capsys.readouterr().err == "error: cannot write to the standard output: No space left on device\n"
    monkeypatch.setattr("sys.stdout", None)
    assert command.run() == 0
