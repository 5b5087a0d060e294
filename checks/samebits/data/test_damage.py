"""Damaged and foreign files: a checkpoint loads as it was written, or is refused in one line and passed over."""

from __future__ import annotations

import logging
import random
import shutil
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from common import ROOT

from samebits.checkpoints import Checkpoints, load_checkpoint, save_checkpoint, sharded
from samebits.errors import CorruptFileError
from samebits.testing import assert_equal
from samebits.world import World

RUNS = ROOT / "checks" / "runs"


def in_parts(path: Path) -> Path:
    """A checkpoint of this version, in parts."""
    payload = load_checkpoint(RUNS / "whole-stopped/checkpoints/last_000000005.pt")
    sharded.save(payload, path, World(0, 1, 0, torch.device("cpu")), save_checkpoint)
    return path


def outside_the_records(file: Path) -> list[int]:
    """Places of the bytes of a zip that no CRC covers."""
    inside: set[int] = set()
    with zipfile.ZipFile(file) as archive, open(file, "rb") as raw:
        for record in archive.infolist():
            raw.seek(record.header_offset + 26)
            lengths = raw.read(4)
            begin = record.header_offset + 30 + sum(int.from_bytes(lengths[k : k + 2], "little") for k in (0, 2))
            inside.update(range(begin, begin + record.file_size))
    return [place for place in range(file.stat().st_size) if place not in inside]


def damages(size: int, places: list[int], count: int, rng: random.Random) -> Iterator[tuple[int, bytes | None]]:
    """(where, what is written there, or None: cut off there); one bit mostly."""
    for number in range(count):
        place = rng.choice(places) if number % 2 else rng.randrange(size)
        kind = rng.choice(["bit"] * 7 + ["zeros", "noise", "cut"])
        yield place, {"bit": b"", "zeros": bytes(64), "noise": rng.randbytes(64), "cut": None}[kind]


def damage(raw: bytes, place: int, what: bytes | None, bit: int) -> bytes:
    if what is None:
        return raw[:place]
    what = what or bytes([raw[place] ^ 1 << bit])
    return raw[:place] + what + raw[place + len(what) :]


@pytest.mark.one_quick
@pytest.mark.parametrize("kind", ["file", "parts"])
def test_damage_is_seen_or_harmless(tmp_path: Path, kind: str) -> None:
    """Bits flipped, cuts, blocks of zeros and noise, half of them outside of what the sums cover."""
    rng = random.Random(kind)
    if kind == "file":
        path = tmp_path / "last_000000005.pt"
        shutil.copy(RUNS / "whole-stopped/checkpoints" / path.name, path)
        files = [path]
    else:
        path = in_parts(tmp_path / "last_000000005.dcp")
        files = sorted(path.iterdir())
        assert {".metadata", "rest.pt", "__0_0.distcp"} <= {file.name for file in files}
    whole, count = load_checkpoint(path), 100 if kind == "file" else 30  # DCP is slow
    said: list[str] = []
    for file in files:
        raw = file.read_bytes()
        places = outside_the_records(file) if file.suffix == ".pt" else list(range(len(raw)))
        for place, what in damages(len(raw), places, count // len(files), rng):
            file.write_bytes(damage(raw, place, what, rng.randrange(8)))
            try:
                loaded = load_checkpoint(path)
            except CorruptFileError as error:
                said.append(str(error))
            else:
                assert_equal(loaded, whole, f"{file.name}, byte {place}")
        file.write_bytes(raw)
    assert len(said) > count / 4
    assert all(str(path) in line and "\n" not in line for line in said)
    assert_equal(load_checkpoint(path), whole)


FOREIGN: list[Any] = [[1, 2], {"a": torch.zeros(2)}, {"model": [], "ema": None}, torch.zeros(3), "text"]


@pytest.mark.parametrize("suffix", [".pt", ".dcp"])
def test_the_newest_that_is_whole_counts(tmp_path: Path, suffix: str, caplog: pytest.LogCaptureFixture) -> None:
    """Whatever lies beside it: of the right size and damaged, no checkpoint at all, or of another name."""
    good = tmp_path / f"last_000000005{suffix}"
    damaged = tmp_path / f"last_000000006{suffix}"
    if suffix == ".pt":
        shutil.copy(RUNS / "whole-stopped/checkpoints/last_000000005.pt", good)
        shutil.copy(good, damaged)
    else:
        shutil.copytree(in_parts(good), damaged)
    file = damaged if suffix == ".pt" else damaged / "__0_0.distcp"
    raw = bytearray(file.read_bytes())
    raw[len(raw) // 2] ^= 1
    file.write_bytes(raw)
    for number, payload in enumerate(FOREIGN, start=7):
        torch.save(payload, tmp_path / f"last_{number:09d}.pt")
    (tmp_path / "best_000000020.dcp").write_bytes(b"no directory")
    (tmp_path / "best_000000021.pt").mkdir()
    for name in ("last_final.pt", "best_.pt", "last_5.damaged", "best_model.dcp"):
        (tmp_path / name).write_bytes(b"mine")
    with caplog.at_level(logging.WARNING, "samebits"):
        found = Checkpoints(tmp_path).newest_valid()
    assert found is not None
    assert found[0] == good
    said = [record.getMessage() for record in caplog.records if record.name == "samebits"]
    assert len(said) == 3 + len(FOREIGN)
    assert all(line.startswith(f"skipping damaged checkpoint: {tmp_path}") and "\n" not in line for line in said)


def test_a_disk_that_cannot_be_read_is_no_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor is a lack of memory: nothing is passed over, or renamed, for it."""
    shutil.copytree(RUNS / "whole-stopped", tmp_path / "run")
    for error in (
        OSError(5, "Input/output error"),
        MemoryError(),
        RuntimeError("DefaultCPUAllocator: can't allocate memory"),
    ):
        monkeypatch.setattr(torch, "load", lambda *a, error=error, **k: (_ for _ in ()).throw(error))
        with pytest.raises(type(error)):
            Checkpoints(tmp_path / "run/checkpoints").newest_valid(put_aside=True)
    assert sorted(p.name for p in (tmp_path / "run/checkpoints").iterdir()) == [
        "best_000000004.pt",
        "last_000000005.pt",
    ]
