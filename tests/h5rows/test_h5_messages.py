"""What cannot be read is named, with what HDF5 says of it; only what is known to be damaged is called so."""

from __future__ import annotations

import multiprocessing
import signal
from pathlib import Path

import h5py
import numpy as np
import pytest
from conftest import limit, sample_of

from engine.errors import ConfigError
from h5rows.dataset import Dataset

ROOT = {"all": {"group": "/"}}
VALUES = np.arange(40).reshape(20, 2)
FIELDS = ("plain", "big", "lzf", "gzip", "strings", "table/a", "text", "virtual")


def write(path: Path, libver: str | None) -> bytes:
    with h5py.File(path, "w", libver=libver) as file:
        file["plain"], file["big"], file["strings"] = VALUES, VALUES.astype(">i8"), ["ab"] * 20
        file.create_dataset("lzf", data=VALUES, chunks=(2, 2), compression="lzf")
        file.create_dataset("gzip", data=VALUES, chunks=(2, 2), compression="gzip", fletcher32=True)
        file["table"] = np.zeros(20, [("a", "i4"), ("b", "f8")])
        file["text/values"], file["text/offsets"] = np.full(40, 97, np.uint8), np.arange(0, 41, 2)
        layout = h5py.VirtualLayout(VALUES.shape, "i8")
        layout[...] = h5py.VirtualSource(".", "lzf", VALUES.shape)
        file.create_virtual_dataset("virtual", layout)
    return path.read_bytes()


def is_readable(path: Path, name: str) -> bool:
    """By h5py."""
    try:
        with h5py.File(path) as file:
            group, _, member = name.partition("/")
            if name == "text":
                file["text/values"][...], file["text/offsets"][...]
            else:
                file[group].fields(member)[...] if member else file[name][...]
    except (OSError, RuntimeError, KeyError, ValueError, TypeError, AttributeError, MemoryError):
        return False
    return True


def check_what_is_said(path: Path) -> None:
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(10)  # HDF5 itself loops in some damaged structures, and crashes in others
    for name in FIELDS:
        try:
            Dataset(str(path), {"x": name}, "all", ROOT).gather(np.arange(20))
        except ConfigError as error:
            line = str(error)
            assert "\n" not in line, line
            assert str(path) in line, line
            if not ("cannot be opened" in line or "the group /" in line or "has no rows" in line):
                assert name.partition("/")[0] in line.replace(str(path), ""), line
            # HDF5 reads anything where a chunk's note on its filters is damaged
            assert "damaged" not in line or "damaged in the chunk" in line or not is_readable(path, name), line
        except IndexError:  # fewer rows than there were
            pass


@pytest.mark.slow
@pytest.mark.parametrize("libver", [None, "latest"])
def test_damage_anywhere(libver: str | None, tmp_path: Path) -> None:
    path, rng = tmp_path / "f.h5", np.random.default_rng(0)
    whole = write(path, libver)
    used = [k for k in range(len(whole)) if any(whole[max(0, k - 8) : k + 8])]
    context = multiprocessing.get_context("fork")
    for _ in range(sample_of(30, 300)):
        damaged = bytearray(whole)
        for at in rng.choice(used, rng.choice([1, 2, 8])):
            damaged[at] = rng.choice([0, 255, damaged[at] ^ 1 << rng.integers(8)])
        path.write_bytes(damaged)
        child = context.Process(target=check_what_is_said, args=(path,))
        child.start()
        child.join(limit(60))
        assert child.exitcode in (0, -signal.SIGSEGV, -signal.SIGALRM), damaged == whole


def test_links_that_lead_nowhere(tmp_path: Path) -> None:
    write(tmp_path / "b.h5", None)
    with h5py.File(tmp_path / "f.h5", "w") as file:
        file["x"] = VALUES
        for name, link in {
            "soft": h5py.SoftLink("/nowhere"),
            "circle": h5py.SoftLink("/circle"),
            "no file": h5py.ExternalLink("no.h5", "/x"),
            "no name": h5py.ExternalLink("b.h5", "/none"),
        }.items():
            file[name] = link
    for name, said in {
        "soft": r"'soft' \(data.fields.x\): cannot be read .*it leads to nothing",
        "circle": "'circle' .*cannot be read .*it leads to itself",
        "no file": "'no file' .*cannot be read .*a file in which its values lie is missing",
        "no name": "'no name' .*cannot be read .*object 'none' doesn't exist",
    }.items():
        with pytest.raises(ConfigError, match=said) as error:
            Dataset(str(tmp_path / "f.h5"), {"x": name}, "all", ROOT, external="allow")
        assert "damaged" not in str(error.value)
        assert "did you mean" not in str(error.value)
