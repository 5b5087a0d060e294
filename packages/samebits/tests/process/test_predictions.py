"""Parts of predictions become one file in the order of the rows."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import shutil
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from samebits import predictions
from samebits.checkpoints import trained
from samebits.errors import ConfigError, RunFailed, file_error


@pytest.mark.parametrize("lanes", [1, 5])
def test_rows_are_in_order_whatever_the_order_and_the_size_of_the_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lanes: int
) -> None:
    """A task with lanes predicts row k of each lane together, and a block has some of the rows. HDF5 takes no locks,
    which some file systems do not have."""
    monkeypatch.setattr(predictions, "BLOCK", 100)
    values, texts = np.random.default_rng(0).random((50, 2)), [f"text {k}" for k in range(50)]
    parts = [tmp_path / f"{rank}.h5" for rank in range(2)]
    locks = [os.open(path, os.O_CREAT) for path in (*parts, tmp_path / ".all.h5.tmp")]
    for lock in locks:
        fcntl.flock(lock, fcntl.LOCK_EX)
    for rank, path in enumerate(parts):
        part = predictions.Part(path)
        for rows in np.split(np.arange(50).reshape(lanes, -1).T.ravel()[rank::2], 5):
            part.append(rows, {"output": values[rows], "text": [texts[row] for row in rows]})
        part.close()
    predictions.assemble(parts, tmp_path / "all.h5", {})
    predictions.assemble(parts, tmp_path / "all.npz", {})
    for lock in locks:
        os.close(lock)
    found = np.load(tmp_path / "all.npz")
    assert found["row"].tolist() == list(range(50))
    np.testing.assert_array_equal(found["output"], values)
    assert found["text"].tolist() == texts


def test_a_full_disk_ends_any_write_with_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """HDF5 crashes if it cannot write, so it is not tried."""
    part, target = tmp_path / "parts/0.h5", tmp_path / "all.h5"
    part.parent.mkdir()
    room = 0

    def usage(folder: Path) -> SimpleNamespace:
        used = sum(file.stat().st_size for file in tmp_path.rglob("*") if file.is_file())
        return SimpleNamespace(free=max(0, room - used))

    def error_with(megabytes: int, write: Callable[[], object]) -> str:
        nonlocal room
        room = megabytes << 20
        try:
            write()
        except RunFailed as error:
            return str(error)
        return ""

    monkeypatch.setattr(shutil, "disk_usage", usage)
    for write in (lambda: write_rows(part), lambda: predictions.assemble([part], target, {"split": "test"})):
        errors = [error_with(megabytes, write) for megabytes in range(16)]
        needed = errors.index("")
        assert predictions.RESERVE >> 20 < needed < 12
        assert not any(errors[needed:])
        for error in errors[:needed]:
            assert re.search(f"cannot be written.*: {os.strerror(errno.ENOSPC)}", error)
    assert sorted(tmp_path.rglob("*")) == [target, part.parent, part]


def write_rows(path: Path) -> None:
    with closing(predictions.Part(path)) as part:
        for first in range(0, 320, 32):
            rows = np.arange(first, first + 32)
            part.append(rows, {"output": rows[:, None] * np.ones(20), "text": [f"text {row}" for row in rows]})


def test_a_folder_that_cannot_be_written_is_found_before_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its permissions are asked, because they do not hold for root, who may run this test."""
    monkeypatch.setattr("os.access", lambda folder, _: folder != tmp_path)
    with pytest.raises(ConfigError, match=r"--out .*/p.h5: must be a file in an existing folder that you can write to"):
        predictions.check_target(tmp_path / "p.h5", overwrite=False)
    with pytest.raises(ConfigError, match=r"/m.pt: must be a file in an existing folder that you can write to"):
        trained.check_target(tmp_path, tmp_path / "m.pt", overwrite=False)
    assert file_error(PermissionError(13, "Permission denied", "there")) == "there: Permission denied"


def test_a_file_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(
        RunFailed, match=rf"^predictions cannot be written to {tmp_path}: No such file.* another --out$"
    ):
        predictions.Part(tmp_path / "missing" / "0.h5")
    predictions.Part(tmp_path / "0.h5").close()
    with pytest.raises(RunFailed, match=r"out\.h5: cannot be written: No such file or directory$"):
        predictions.assemble([tmp_path / "0.h5"], tmp_path / "missing" / "out.h5", {})


def test_an_entry_of_varying_shape_is_named_with_its_remedies(tmp_path: Path) -> None:
    """It may be an output of the model or a field of the batch."""
    part = predictions.Part(tmp_path / "0.h5")
    part.append(np.arange(2), {"ids": np.zeros((2, 3))})
    with pytest.raises(
        ConfigError, match=r"^ids: has the shape \(4,\) per sample, but \(3,\) before; .*of --fields, or"
    ):
        part.append(np.arange(2), {"ids": np.zeros((2, 4))})
