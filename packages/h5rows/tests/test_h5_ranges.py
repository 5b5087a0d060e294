"""Remote files of which the needed blocks are fetched: the local file's numbers, a folder with a limit, any fault."""

from __future__ import annotations

import errno
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from io import FileIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import fsspec
import h5py
import numpy as np
import pytest
from fsspec import AbstractFileSystem
from h5_judge import in_a_fork
from http_files import Server, small_blocks
from running import assert_equal, wait_for

from h5rows import ConfigError, Dataset
from h5rows.integration import num_outputs, sample_shape
from h5rows.reading import copies, ranges, remote, sources

pytestmark = pytest.mark.usefixtures("in_a_program")
FIELDS = ("x", "z", "y", "words", "text")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """With small blocks, so that a small file has many."""
    monkeypatch.setenv("LAB_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    small_blocks(monkeypatch)
    remote._known.clear()
    return tmp_path / "cache"


def made(path: Path, rows: int = 1000, seed: int = 0) -> bytes:
    """Fields of each kind that needs no HDF5: contiguous, compressed, strings, and of different length."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(0, 20, rows)
    with h5py.File(path, "w") as file:
        x = file.create_dataset("x", data=rng.integers(0, 256, (rows, 1001), dtype=np.uint8))
        file.create_dataset("z", data=x[:, :100].astype("f4"), chunks=(10, 60), compression="gzip")
        file["y"] = rng.integers(0, 7, rows)
        file["words"] = np.array([b"word %d" % k for k in range(rows)], "S10")
        text = file.create_group("text")
        text.attrs["encoding"] = "utf-8"
        text["values"] = rng.integers(97, 123, lengths.sum(), dtype=np.uint8)
        text["offsets"] = np.concatenate([[0], np.cumsum(lengths)])
        file["table"] = np.zeros(rows, [("a", "f4"), ("b", "i4")])
    return path.read_bytes()


def opened(path: Any, *names: str, cache_gb: float | None = 1.0) -> Dataset:
    return Dataset(path, {name: name for name in names or FIELDS}, cache_gb=cache_gb)


def on_disk(cache: Path) -> int:
    return sum(path.stat().st_blocks * 512 for path in cache.rglob("*") if path.is_file())


def test_numbers_are_those_of_the_local_file(tmp_path: Path, server: Server) -> None:
    """Of shards, one of which is here; in this process and in a forked one; and each block comes once."""
    for k in range(3):
        server.files[f"/{k}.h5"] = made(tmp_path / f"{k}.h5", 500, seed=k)
    data = opened([server.url("/0.h5"), str(tmp_path / "1.h5"), server.url("/2.h5?signature=secret")])
    known = opened([str(tmp_path / f"{k}.h5") for k in range(3)])
    assert server.sent < 0.3 * len(server.files["/0.h5"])  # to open them
    assert "ranges (contiguous)" in data.describe()[0]
    assert not any("secret" in line for line in data.describe())
    rng = np.random.default_rng(1)
    for _ in range(8):
        rows = rng.integers(0, 1500, 100)
        data.advise(rng.integers(0, 1500, 20))
        assert_equal(data.gather(rows), known.gather(rows))
    whole = len(server.files["/0.h5"]) + len(server.files["/2.h5"])
    assert server.sent <= whole + 2 * 4096
    every = np.arange(1500)
    assert in_a_fork(lambda: "" if data.gather(every)["x"].equal(known.gather(every)["x"]) else "other numbers") == ""
    assert_equal(data.gather(every), known.gather(every))
    assert server.sent <= whole + 4 * 4096
    assert (data.column("y") == known.column("y")).all()


def test_composing_reads_by_ranges_too(tmp_path: Path, server: Server) -> None:
    server.files["/f.h5"] = made(tmp_path / "f.h5")
    node = {"path": server.url(), "fields": {"x": "x", "y": "y"}, "splits": {"all": {"group": "/"}}, "cache_gb": 1}
    assert (sample_shape(node, "x"), num_outputs(node, "y")) == ([1001], 7)
    assert num_outputs({**node, "decode": True, "fields": {"y": "words@classes"}}, "y") == 1000
    assert server.sent < 0.1 * len(server.files["/f.h5"])


def test_the_folder_keeps_to_its_limit(tmp_path: Path, server: Server, cache: Path, monkeypatch: Any) -> None:
    """What was deleted is fetched again; who has it open reads on."""
    server.files["/f.h5"], most = made(tmp_path / "f.h5", 3000), 1 << 20
    assert len(server.files["/f.h5"]) > 3 * most
    monkeypatch.setattr(ranges, "_TOUCH_S", 0.0)
    data, known = opened(server.url(), "x", cache_gb=most / 1e9), opened(str(tmp_path / "f.h5"), "x")
    for at in np.random.default_rng(0).permutation(3000).reshape(-1, 300)[:2]:  # each of all segments
        assert_equal(data.gather(at), known.gather(at))
        assert on_disk(cache) < 1.3 * most
    with copies.open_remote(server.url("/f.h5")):
        pass  # deletes nothing, and changes no limit
    server.forget()
    assert_equal(data.gather(np.arange(3000)), known.gather(np.arange(3000)))  # one batch, larger than the folder
    assert server.sent > 0.3 * len(server.files["/f.h5"])


@contextmanager
def reader(url: str) -> Iterator[tuple[int, FileIO]]:
    """Another process that reads all, and says each ten rows' sum in 8 bytes: -> (its number, what it says)."""
    begin, end = os.pipe()
    if (child := os.fork()) == 0:
        try:
            data = opened(url, "x", "z")
            for at in range(0, len(data), 10):
                os.write(end, int(data.gather(np.arange(at, at + 10))["x"].sum()).to_bytes(8, "little"))
        finally:
            os._exit(0)
    os.close(end)
    with open(begin, "rb", buffering=0) as said:
        try:
            yield child, said
        finally:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


def test_killed_processes_leave_nothing_wrong(tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranges, "_CLAIM_S", 0.5)
    server.files["/f.h5"], server.delay_s = made(tmp_path / "f.h5"), 0.002
    for kill in range(4):
        with reader(server.url()) as (child, said):
            for _ in range(5 * kill + 1):
                assert said.read(8)
            os.kill(child, signal.SIGKILL)
    every = np.arange(1000)
    assert_equal(opened(server.url()).gather(every), opened(str(tmp_path / "f.h5")).gather(every))


@pytest.mark.parametrize("waits_s", [0.0, 1.0])
def test_several_processes_fetch_each_block_once(
    tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch, waits_s: float
) -> None:
    """Also if the server takes longer to answer than the claim of a killed process lasts."""
    server.files["/f.h5"] = server.files["/g.h5"] = made(tmp_path / "f.h5")
    with reader(server.url("/g.h5")) as (_, alone):
        alone.readall()
    server.settle()
    once, server.sent = server.sent, 0
    if waits_s:
        monkeypatch.setattr(ranges, "_CLAIM_S", 0.25)
        server.gate.clear()
        threading.Timer(waits_s, server.gate.set).start()
    with reader(server.url()) as (_, one), reader(server.url()) as (_, other):
        said = [np.frombuffer(each.readall(), np.int64).tolist() for each in (one, other)]
    with h5py.File(tmp_path / "f.h5") as file:
        assert said == [file["x"][:].reshape(100, -1).sum(1).tolist()] * 2
    assert server.sent == once + 1  # a byte, for the size of the file


def test_claims_are_extended_after_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a disk that is full, or of a system without room for a thread."""
    monkeypatch.setattr(ranges, "_CLAIM_S", 0.1)
    segment, fetcher, start, extended = ranges.Segment(tmp_path / "0"), ranges._Fetcher(), threading.Thread.start, []

    def claim(blocks: list[int], until: float) -> None:
        extended.append(blocks)
        if len(extended) == 4:  # the first extension of the second download
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(segment, "claim", claim)
    monkeypatch.setattr(threading.Thread, "start", Mock(side_effect=RuntimeError("can't start new thread")))
    with pytest.raises(RuntimeError, match="start new thread"), fetcher.claimed(segment, [1]):
        pass
    monkeypatch.setattr(threading.Thread, "start", start)
    with fetcher.claimed(segment, [2]):
        wait_for(lambda: len(extended) > 6)
    assert extended[:2] == [[1]] * 2
    assert extended[2:7] == [[2]] * 5


class Stamped(AbstractFileSystem):
    """One file, of which info() tells the size, and by some key when or as what it was written."""

    protocol, content, stamp = "stamped", b"", ("", "")

    def info(self, path: str, **more: Any) -> dict[str, Any]:
        return {"name": path, "size": len(self.content), "type": "file", self.stamp[0]: self.stamp[1]}

    def cat_file(self, path: str, start: int = 0, end: int = 0, **more: Any) -> bytes:
        return self.content[start:end]


@pytest.mark.parametrize("key", ["ETag", "generation", "mtime", "modificationTime", "modify", "sha", "content_hash"])
def test_blocks_of_a_file_that_was_written_anew_in_its_size_are_not_used(tmp_path: Path, key: str) -> None:
    """Between two runs; the keys are those of buckets, of HDFS, FTP, GitHub, Dropbox."""
    fsspec.register_implementation("stamped", Stamped, clobber=True)
    size = len(made(tmp_path / "f.h5"))
    for run in range(2):
        with h5py.File(tmp_path / "f.h5", "r+") as file:
            file["x"][:] = run
        Stamped.content, Stamped.stamp = (tmp_path / "f.h5").read_bytes(), (key, f"stamp {run}")
        assert len(Stamped.content) == size
        remote._known.clear()
        assert (opened("stamped://f.h5", "x").gather(np.arange(1000))["x"] == run).all()


def test_blocks_of_another_boot_are_deleted(tmp_path: Path, server: Server, cache: Path) -> None:
    """A crash of the machine may leave a flag without its bytes."""
    server.files["/f.h5"] = made(tmp_path / "f.h5")
    opened(server.url())
    (folder,) = (cache / "ranges").iterdir()
    folder.rename(folder.with_name(folder.name.partition("@")[0] + "@before"))
    opened(server.url())
    assert [path.name for path in (cache / "ranges").iterdir()] == [folder.name]


def test_what_fails_once_is_tried_again(tmp_path: Path, server: Server) -> None:
    server.files["/f.h5"] = made(tmp_path / "f.h5")
    data, every = opened(server.url()), np.arange(1000)
    server.status, server.cut = [503] * 5, (1000, 5)
    assert_equal(data.gather(every), opened(str(tmp_path / "f.h5")).gather(every))


def test_each_fault_is_one_line(tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    server.files["/f.h5"] = made(tmp_path / "f.h5")
    data, url, rows = opened(server.url()), server.url(), np.arange(900, 1000)
    monkeypatch.setattr(ranges, "_TRIES", 2)

    def refused(*words: str) -> Any:
        return pytest.raises(ConfigError, match=".*".join(words))

    server.status = [500] * 100
    with refused(url, "500", r"tried 2 times"):
        data.gather(rows)
    server.status = [404] * 100
    with refused(url, "404"):
        data.gather(rows - 300)
    server.status, server.tags["/f.h5"] = [], '"2"'
    with refused(url, "was changed while it was downloaded; start the run again"):
        data.gather(rows - 600)
    server.tags.clear()
    assert_equal(data.gather(rows), opened(str(tmp_path / "f.h5")).gather(rows))  # it is still usable

    real = os.pwrite

    def full(fd: int, data: Any, at: int) -> int:
        if len(data) >= 4096:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(fd, data, at)

    with monkeypatch.context() as patched, refused("No space left on device", "data.cache_gb", "LAB_CACHE_DIR"):
        patched.setattr(os, "pwrite", full)
        data.gather(np.arange(100, 200))
    with refused(r"/f.h5: .*table", "needs the whole file", "data.cache_gb=null"):
        Dataset(url, {"x": "table/a"}, cache_gb=1.0)
    with refused(r"^data\.external=allow: not possible if remote files are read by blocks", "remove one of the two"):
        Dataset(url, {"x": "x"}, cache_gb=1.0, external="allow")
    node = {"path": url, "fields": {"y": "y"}, "splits": {"all": {"group": "/"}}, "cache_gb": 1, "external": "allow"}
    with refused(r"^data\.external=allow: not possible if remote files are read by blocks", "remove one of the two"):
        num_outputs(node, "y")
    monkeypatch.setattr(ranges, "LEAST_GB", 1)
    for wrong in (0.1, "lots"):
        with refused(f"data.cache_gb={wrong}", "must be >= 1"):
            opened(url, cache_gb=wrong)  # type: ignore[arg-type]
    for server.ranges, server.tags["/f.h5"] in ((False, '"1"'), (True, "")):  # "": blocks of two versions were mixed
        remote._known.clear()
        with refused(url, "cannot send parts of files, or sends neither ETag nor date", "data.cache_gb=null"):
            opened(url)
    with refused("http://127.0.0.1:1/f.h5", "Connection refused"):
        opened("http://127.0.0.1:1/f.h5")


@pytest.mark.parametrize("longer", [False, True], ids=["short", "longer than the timeout"])
def test_a_server_that_stalls_in_an_answer_and_recovers(
    tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch, longer: bool
) -> None:
    server.files["/f.h5"] = made(tmp_path / "f.h5")
    data, known, rows = opened(server.url()), opened(str(tmp_path / "f.h5")), np.arange(1000)
    server.forget()
    monkeypatch.setattr(sources, "TIMEOUT_S", 0.2 if longer else 60.0)
    monkeypatch.setattr(ranges, "_TRIES", 1000)  # however slow this machine is
    server.gate.clear()
    data.advise(rows[:100])
    wait_for(lambda: server.requests > 0)
    release = threading.Timer(1.5 if longer else 0.3, server.gate.set)
    release.start()
    assert_equal(data.gather(rows), known.gather(rows))
    release.join()
    assert longer or server.sent <= len(server.files["/f.h5"])


def test_a_server_that_trickles(tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some bytes before each timeout: the request is made again, and where it stays so the run ends in a line."""
    server.files["/f.h5"] = made(tmp_path / "f.h5")
    data, rows = opened(server.url()), np.arange(900, 1000)
    server.piece, server.delay_s = 16, 0.05
    fast = SimpleNamespace(monotonic=lambda: 60 * time.monotonic())  # the connection's own timeout is half a minute
    for where, name, value in ((ranges, "_TRIES", 1), (sources, "MOST_S", 0.0)):  # whatever is left of its tries
        with monkeypatch.context() as patched:
            patched.setattr(where, name, value)
            patched.setattr(sources, "time", fast)
            with pytest.raises(ConfigError, match=r"f.h5: only \d+ bytes received in \d+ s \(tried 1 times\)"):
                data.gather(rows)
            wait_for(lambda: not data._ranged[0]._wanted)  # nobody is about to say so too
    release = threading.Timer(0.5, setattr, (server, "delay_s", 0.0))
    release.start()
    assert_equal(data.gather(rows), opened(str(tmp_path / "f.h5")).gather(rows))
    release.join()


def test_a_dead_process_s_claim_ends(tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranges, "_CLAIM_S", 1.0)
    server.files["/f.h5"] = made(tmp_path / "f.h5")
    data = opened(server.url(), "x")
    file = data._ranged[0]
    segments = file._segments(np.arange(len(server.files["/f.h5"]) // 4096))
    for segment in segments.values():
        segment.claim(list(range(64)), time.monotonic() + 1.0)
    rows = np.arange(500, 600)
    assert_equal(data.gather(rows), opened(str(tmp_path / "f.h5"), "x").gather(rows))
