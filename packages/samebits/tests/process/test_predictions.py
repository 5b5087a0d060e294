"""Parts of predictions become one file in the order of the rows."""

from __future__ import annotations

import multiprocessing
import resource
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from samebits import predictions
from samebits.checkpoints import trained
from samebits.errors import ConfigError, RunFailed, file_error


@pytest.mark.parametrize("lanes", [1, 5])
def test_rows_are_in_order_whatever_the_order_and_the_size_of_the_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lanes: int
) -> None:
    """A task with lanes predicts row k of each lane together, and a block has some of the rows."""
    monkeypatch.setattr(predictions, "BLOCK", 100)
    values, texts = np.random.default_rng(0).random((50, 2)), [f"text {k}" for k in range(50)]
    parts = [tmp_path / f"{rank}.h5" for rank in range(2)]
    for rank, path in enumerate(parts):
        part = predictions.Part(path)
        for rows in np.split(np.arange(50).reshape(lanes, -1).T.ravel()[rank::2], 5):
            part.append(rows, {"output": values[rows], "text": [texts[row] for row in rows]})
        part.close()
    predictions.assemble(parts, tmp_path / "all.npz", {})
    found = np.load(tmp_path / "all.npz")
    assert found["row"].tolist() == list(range(50))
    np.testing.assert_array_equal(found["output"], values)
    assert found["text"].tolist() == texts


def test_a_full_disk_ends_any_write_with_a_line(tmp_path: Path) -> None:
    """In a process of its own, because HDF5 may crash. The limit of a file's size is its full disk."""
    part, target = tmp_path / "parts/0.h5", tmp_path / "all.h5"
    part.parent.mkdir()
    writes: tuple[tuple[Path, Callable[[], object]], ...] = (
        (part, lambda: write_rows(part)),
        (target, lambda: predictions.assemble([part], target, {"split": "test"})),
    )

    def write_all() -> None:
        most = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
        for file, write in writes:
            write()
            whole = file.read_bytes()
            for room in range(0, len(whole), len(whole) // 40):
                file.unlink()
                resource.setrlimit(resource.RLIMIT_FSIZE, (room, most))
                with pytest.raises(RunFailed, match=r"cannot be written.*: File too large"):
                    write()
                resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
                write()
                assert file.read_bytes() == whole
        assert sorted(tmp_path.rglob("*")) == [target, part.parent, part]

    child = multiprocessing.get_context("fork").Process(target=write_all)
    child.start()
    child.join()
    assert child.exitcode == 0


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
