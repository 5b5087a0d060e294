"""What is written is what was read: whatever the splits, the order, the shards, the workers, the kills."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from pack_typed import typed
from running import limit

import h5rows
from h5rows.errors import ConfigError
from h5rows.importers import open_source
from h5rows.locks import Lock
from h5rows.options import PackOptions
from h5rows.packing.file import offsets
from h5rows.packing.write import pack
from h5rows.source import ArraySource, BadSample, Field, Rows, SampleSource


def options(**kwargs: Any) -> PackOptions:
    return PackOptions(**{"quiet": True, "workers": 2, **kwargs})


def arrays(n: int = 1000, seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {
        "x": rng.integers(0, 255, (n, 3, 5), np.uint8),
        "y": np.arange(n),
        "z": rng.normal(size=n).astype(np.float32),
    }


class Numbers(SampleSource):
    """Row i holds i; rows in `broken` cannot be read; `lengths` makes a ragged field."""

    def __init__(self, n: int, broken: Sequence[int] = (), lengths: np.ndarray | None = None) -> None:
        self.n, self.broken, self.lengths = n, set(broken), lengths
        self.splits: dict[str, Rows] = {"": range(n)}
        self.fields = {"x": Field((2,), np.dtype(np.int32))}
        if lengths is not None:
            self.fields["w"] = Field((None, 2), np.dtype(np.int16))

    def sample(self, row: int, fields: Sequence[str]) -> dict[str, Any]:
        if row in self.broken:
            raise BadSample(f"sample-{row}", "is broken")
        values: dict[str, Any] = {"x": np.array([row, -row], np.int32)}
        if self.lengths is not None:
            values["w"] = np.full((self.lengths[row], 2), row, np.int16)
        return {f: values[f] for f in fields}


def test_bytes_dtypes_and_alignment(tmp_path: Path) -> None:
    made = {
        f"f{k}": np.arange(7 * 3).reshape(7, 3).astype(kind)
        for k, kind in enumerate(["?", "u1", "i2", ">i4", "<f2", ">f8", "u8", "c8", "S3"])
    }
    made["pairs"] = np.zeros(7, [("a", "<f4"), ("b", ">i2")])
    made["pairs"]["a"] = np.arange(7)
    made["empty"] = np.zeros((7, 0), np.float32)
    made["large"] = np.arange(7.0 * 600).reshape(7, 600)
    out = pack(ArraySource({"": made}), tmp_path / "a.h5", options(), {"source": "here"})
    with h5py.File(out) as file:
        for name, values in made.items():
            assert file[name].dtype == values.dtype
            assert file[name][:].tobytes() == values.tobytes()
            assert file[name].chunks is None
        assert file.attrs["source"] == "here"
    # less than a page would take a page each
    assert {name for name, place in offsets(out).items() if not place % 4096} >= {"large"}
    assert [p.name for p in tmp_path.iterdir()] == ["a.h5"]
    with h5py.File(pack(ArraySource({"": arrays(0)}), tmp_path / "b.h5", options(), {})) as file:
        assert file["x"].shape == (0, 3, 5)


def test_shares_are_disjoint_whole_and_fixed(tmp_path: Path) -> None:
    made = arrays()
    source = ArraySource({"": made})
    share = options(split={"val": 0.1, "test": 0.25}, seed=3)
    one, two = (pack(source, tmp_path / name, share, {}) for name in ("a.h5", "b.h5"))
    with h5py.File(one) as file, h5py.File(two) as again:
        parts = {name: group["y"][:] for name, group in file.items()}
        assert {n: len(p) for n, p in parts.items()} == {"train": 650, "val": 100, "test": 250}
        assert sorted(np.concatenate(list(parts.values()))) == list(range(1000))
        for name, rows in parts.items():
            np.testing.assert_array_equal(file[name]["x"][:], made["x"][rows])
            np.testing.assert_array_equal(again[name]["y"][:], rows)


def test_shuffle_permutes_and_shards_partition_it(tmp_path: Path) -> None:
    made = arrays()
    source = ArraySource({"train": made})
    with h5py.File(pack(source, tmp_path / "a.h5", options(shuffle=True), {})) as file:
        order = file["train/y"][:]
        np.testing.assert_array_equal(file["train/x"][:], made["x"][order])
    assert sorted(order) == list(range(1000))
    assert np.corrcoef(order, np.arange(1000))[0, 1] < 0.2
    pieces = []
    for i in range(3):
        out = pack(source, tmp_path / "s.h5", options(shuffle=True, shard=(i, 3)), {})
        assert out.name == f"s.{i}-of-3.h5"
        with h5py.File(out) as file:
            pieces.append(file["train/y"][:])
    np.testing.assert_array_equal(np.concatenate(pieces), order)


@pytest.mark.one_quick
@pytest.mark.parametrize("broken", [[5, 6, 700, 999], list(range(512))])
@pytest.mark.parametrize("ragged", [True, False])
def test_skipped_samples_leave_no_gap(tmp_path: Path, broken: list[int], ragged: bool) -> None:
    lengths = np.random.default_rng(0).integers(0, 9, 1000) if ragged else None
    out = pack(Numbers(1000, broken, lengths), tmp_path / "a.h5", options(on_error="skip"), {})
    kept = np.array([i for i in range(1000) if i not in set(broken)])
    with h5py.File(out) as file:
        np.testing.assert_array_equal(file["x"][:, 0], kept)
        assert len(file.attrs["skipped"]) == len(broken)
        if lengths is not None:
            np.testing.assert_array_equal(np.diff(file["w/offsets"][:]), lengths[kept])
            np.testing.assert_array_equal(file["w/values"][:], np.repeat(kept, lengths[kept])[:, None].repeat(2, 1))
    assert [p.name for p in tmp_path.iterdir()] == ["a.h5"]


def test_samples_that_are_skipped_are_those_of_their_split(tmp_path: Path) -> None:
    source = Numbers(1000, broken := [10, 600, 650, 999])
    source.splits = {"train": range(600), "val": range(600, 1000)}
    with h5py.File(pack(source, tmp_path / "a.h5", options(on_error="skip"), {})) as file:
        for split, rows in source.splits.items():
            assert file[f"{split}/x"][:, 0].tolist() == [row for row in rows if row not in broken], split


def test_stop_names_the_sample_and_skip_then_goes_on(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"sample-600: is broken.*on_error='skip'"):
        pack(Numbers(1000, [600]), tmp_path / "a.h5", options(), {})
    assert not (tmp_path / "a.h5").exists()
    pack(Numbers(1000, [600]), tmp_path / "a.h5", options(on_error="skip"), {})
    with pytest.raises(ConfigError, match="no sample of"):
        pack(Numbers(3, [0, 1, 2]), tmp_path / "b.h5", options(on_error="skip"), {})


def test_existing_output_is_kept(tmp_path: Path) -> None:
    out = tmp_path / "a.h5"
    out.write_text("precious")
    with pytest.raises(ConfigError, match="exists; overwrite=True"):
        pack(Numbers(10), out, options(), {})
    with pytest.raises(ConfigError, match="broken"):
        pack(Numbers(10, [3]), out, options(overwrite=True), {})
    assert out.read_text() == "precious"
    with pytest.raises(ConfigError, match="is a folder; name the file in it"):
        pack(Numbers(10), tmp_path, options(overwrite=True), {})
    pack(Numbers(10), out, options(overwrite=True), {})
    with h5py.File(out) as file:
        assert len(file["x"]) == 10


def test_a_folder_that_may_not_be_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(path: Path) -> Lock:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr("h5rows.packing.file.Lock", denied)
    with pytest.raises(ConfigError, match=r"Permission denied; check its permissions, or pack into another folder"):
        pack(Numbers(10), tmp_path / "a.h5", options(), {})


@pytest.mark.slow
def test_two_packs_of_one_file(tmp_path: Path) -> None:
    with Lock(tmp_path / "a.h5.partial.lock"), pytest.raises(ConfigError, match="another pack"):
        pack(Numbers(10), tmp_path / "a.h5", options(), {})


@pytest.mark.parametrize("command", ["pack", "repack"])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EROFS])
def test_each_call_of_the_system_that_fails_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, number: int
) -> None:
    """Nothing has the name of OUT but a whole file, and the same command then makes it."""
    out = tmp_path / "out.h5"
    pack(ArraySource({"": arrays()}), tmp_path / "a.h5", options(), {})

    def run() -> None:
        out.unlink(missing_ok=True)
        if command == "pack":
            pack(ArraySource({"": arrays()}), out, options(), {})
        else:
            h5rows.repack(str(tmp_path / "a.h5"), str(out), quiet=True)

    places = [(os, "fsync"), (os, "open"), (Path, "replace"), (Path, "unlink"), (os, "posix_fallocate")]
    for where, name in [*places, *[(os, "pwrite")] * (command == "pack")]:
        real, seen, failing = getattr(where, name), [0], [0]

        def call(*given: Any, real: Any = real, seen: Any = seen, at: Any = failing, **more: Any) -> Any:
            seen[0] += 1
            if seen[0] == at[0]:
                raise OSError(number, os.strerror(number), "somewhere")
            return real(*given, **more)

        out.unlink(missing_ok=True)
        with monkeypatch.context() as patch:
            patch.setattr(where, name, call)
            run()
            for k in range(1, seen[0] + 1):
                seen[0], failing[0] = 0, k + (name == "unlink")  # the first one is of this test
                with contextlib.suppress(ConfigError):
                    run()
                failing[0] = 0
                if out.exists():
                    with h5py.File(out) as file:
                        assert len(file["x"]) == 1000
                run()
        assert sorted(path.name for path in tmp_path.iterdir()) == ["a.h5", "out.h5"], name


def test_damage_between_writing_and_reading_back_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def damage(fd: int, data: Any, place: int, pwrite: Any = os.pwrite) -> int:
        return pwrite(fd, bytes(len(data)), place)

    monkeypatch.setattr(os, "pwrite", damage)
    with pytest.raises(ConfigError, match="read back with other bytes than written"):
        pack(ArraySource({"": arrays()}), tmp_path / "a.h5", options(), {})
    assert not (tmp_path / "a.h5").exists()


@pytest.mark.slow
def test_a_file_has_its_name_only_once_it_is_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The flush runs beside the reading back; both end before the rename, and a failed flush is a failed pack."""
    done: list[str] = []
    fsync, replace = os.fsync, Path.replace

    def slow(fd: int) -> None:
        time.sleep(0.3)
        fsync(fd)
        done.append("fsync")
        if stat.S_ISDIR(os.fstat(fd).st_mode):
            raise OSError(errno.EINVAL, "some file systems cannot sync folders")

    monkeypatch.setattr(os, "fsync", slow)
    monkeypatch.setattr(Path, "replace", lambda self, to: (done.append("rename"), replace(self, to))[1])
    pack(ArraySource({"": arrays()}), tmp_path / "a.h5", options(), {})
    assert done == ["fsync", "rename", "fsync"]

    def broken(fd: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", broken)
    with pytest.raises(ConfigError, match="the disk is full"):
        pack(ArraySource({"": arrays()}), tmp_path / "b.h5", options(), {})
    assert not (tmp_path / "b.h5").exists()


@pytest.mark.slow
def test_memory_stays_bounded(tmp_path: Path) -> None:
    """200 MB packed by a process that may take 150 MB beside what its imports take."""
    big = np.lib.format.open_memmap(tmp_path / "x.npy", "w+", np.uint8, (200, 1000, 1000))
    big[::50, 0, 0] = 7
    del big
    out = tmp_path / "a.h5"
    code = (
        f"import resource, sys; sys.path[:0] = {sys.path!r}\nfrom h5rows import command\n"
        "import h5rows.packing.write, h5rows.packing.repack\n"
        "used = int(open('/proc/self/statm').read().split()[5]) * 4096\n"  # data and stack: not the mapped file
        "resource.setrlimit(resource.RLIMIT_DATA, (used + 150_000_000,) * 2)\n"
        f"command.main(['pack', {str(tmp_path / 'x.npy')!r}, {str(out)!r}, '--workers', '2', '--quiet'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=limit(60))
    assert done.returncode == 0, done.stderr
    with h5py.File(out) as file:
        assert file["x"][50, 0, 0] == 7


BAD_INPUT = [
    (["missing", "out.h5"], "missing does not exist"),
    (["x.npy", "nowhere/out.h5"], "nowhere is not a folder"),
    (["x.npy", "out.h5", "--split", "val"], "val=0.1"),
    (["x.npy", "out.h5", "--split", "val=1.5"], "each share must be > 0"),
    (["x.npy", "out.h5", "--split", "val=0.0001"], "leaves a split empty"),
    (["x.npy", "out.h5", "--shard", "3/3"], "I/N"),
    (["x.npy", "out.h5", "--fields", "w"], "no field 'w'"),
    (["x.npy", "out.h5", "--size", "0"], "pixels"),
    (["x.npy", "out.h5", "--format", "hdf"], "not one of"),
    (["repack", "missing", "out.h5"], "missing does not exist"),
    (["repack", "x.npy", "nowhere/out.h5"], "nowhere is not a folder"),
]


def test_bad_input_is_one_line_and_status_2(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    np.save("x.npy", np.arange(100))
    for words, message in BAD_INPUT:
        done = typed(*(words if words[0] == "repack" else ["pack", *words]))
        assert done.status == 2, words
        assert message in done.err.splitlines()[-1]
        assert [path.name for path in tmp_path.iterdir()] == ["x.npy"]


def test_command_writes_provenance(tmp_path: Path) -> None:
    np.savez(tmp_path / "ü b.npz", x_train=np.arange(6.0), x_test=np.arange(4.0))
    done = typed("pack", tmp_path / "ü b.npz", tmp_path / "ö.h5", "--quiet")
    assert done.status == 0, done.err
    with h5py.File(tmp_path / "ö.h5") as file:
        np.testing.assert_array_equal(file["train/x"][:], np.arange(6.0))
        np.testing.assert_array_equal(file["test/x"][:], np.arange(4.0))
        assert set(file.attrs) == {"source", "command", "created", "versions", "options"}
        assert "ü b.npz" in file.attrs["command"]


def test_open_source_refuses(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match="empty folder"):
        open_source(str(tmp_path / "empty"), options())
    (tmp_path / "a.xyz").touch()
    with pytest.raises(ConfigError, match="unknown suffix"):
        open_source(str(tmp_path / "a.xyz"), options())
    np.save(tmp_path / "objects.npy", np.array([{}, 1], dtype=object), allow_pickle=True)
    with pytest.raises(ConfigError, match="Python objects"):
        open_source(str(tmp_path / "objects.npy"), options())
    (tmp_path / "cut.npy").write_bytes((tmp_path / "objects.npy").read_bytes()[:20])
    with pytest.raises(ConfigError, match=r"cut.npy cannot be read"):
        open_source(str(tmp_path / "cut.npy"), options())
