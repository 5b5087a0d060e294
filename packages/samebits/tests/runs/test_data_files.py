"""Data are the same if their content is, wherever they lie: a fingerprint that reads half a megabyte of any file."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from samebits.runs import is_same
from samebits.runs.data_files import BLOCK, BLOCKS, fingerprints

ROOT = Path("/a/project")  # below which no data lie


def of(*paths: Path | str) -> dict[str, object]:
    names = [str(path) for path in paths]
    return fingerprints(ROOT, {"data": {"path": names[0] if len(names) == 1 else names}})["data.path"]


@given(size=st.integers(1, BLOCKS * BLOCK), place=st.floats(0, 1, exclude_max=True), byte=st.integers(1, 255))
def test_any_byte_of_a_small_file_counts(tmp_path_factory: pytest.TempPathFactory, size: int, place: float, byte: int):
    folder = tmp_path_factory.mktemp("data")
    one, other = folder / "one.h5", folder / "other.h5"
    content = bytearray(size)
    one.write_bytes(content)
    other.write_bytes(content)
    assert is_same(of(one), of(other))
    content[int(place * size)] ^= byte
    other.write_bytes(content)
    assert not is_same(of(one), of(other))


def test_of_a_large_file_little_is_read(tmp_path: Path) -> None:
    """Its size, beginning, end and blocks between count; what lies between the blocks is not seen, as documented."""
    large = tmp_path / "large.h5"
    with open(large, "wb") as file:
        file.truncate(1 << 34)  # 16 GB, of holes
    whole = of(large)
    for place, seen in ((0, True), ((1 << 34) - 1, True), (((1 << 34) - BLOCK) // (BLOCKS - 1), True), (BLOCK, False)):
        with open(large, "r+b") as file:
            file.seek(place)
            file.write(b"x")
        assert is_same(whole, of(large)) is not seen
        with open(large, "r+b") as file:
            file.seek(place)
            file.write(b"\0")
    os.truncate(large, (1 << 34) + 1)
    assert not is_same(whole, of(large))


def test_shards_count_in_their_order_and_folders_not_at_all(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / f"{name}.h5").write_text(name)
    a, b = tmp_path / "a.h5", tmp_path / "b.h5"
    assert is_same(of(tmp_path / "*.h5"), of(a, b))
    assert not is_same(of(a, b), of(b, a))
    assert fingerprints(tmp_path, {"data": {"path": str(tmp_path), "x": "a.h5", "y": 1}, "name": str(a)}) == {}
