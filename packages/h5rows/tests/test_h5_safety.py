"""Processes, threads, files that are written, locked or damaged: right numbers or one clear error, never a crash."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import hdf5plugin
import numpy as np
import pytest
import torch
from running import limit

from h5rows.dataset import Dataset, _ShardRows
from h5rows.errors import ConfigError
from h5rows.integration import reading_once
from h5rows.reading import fields, filters

SRC = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
ROOT = {"all": {"group": "/"}}
PIPES: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
FIELDS = {"mapped": "m", "chunks": "c", "h5py": "h", "label": "y"}
_THP = Path("/sys/kernel/mm/transparent_hugepage/enabled")
HUGE_PAGES = _THP.exists() and "[never]" not in _THP.read_text()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """200 rows, one field for each way; row k is determined by k."""
    values = np.random.default_rng(0).integers(0, 256, (200, 50), dtype=np.uint8)
    values[:, 0] = np.arange(200)
    with h5py.File(tmp_path / "f.h5", "w") as file:
        file["m"] = values
        file.create_dataset("c", data=values, chunks=(8, 50), compression="gzip", fletcher32=True)
        file.create_dataset("h", data=values, chunks=(8, 50), compression="lzf")
        file["y"] = np.arange(200)
    return tmp_path / "f.h5"


def opened(path: Path, **options: Any) -> Dataset:
    return Dataset(str(path), FIELDS, "all", ROOT, cache_mb=1, **options)


def check(data: Dataset, seed: int) -> str:
    """'ok', if batches of random rows agree in all ways; what went wrong, else."""
    rng = np.random.default_rng(seed)
    for _ in range(20):
        rows = rng.integers(0, len(data), 64)
        batch = data.gather(rows)
        if batch["label"].tolist() != rows.tolist():
            return "wrong labels"
        for way in ("mapped", "chunks", "h5py"):
            if not torch.equal(batch[way], batch["mapped"]) or batch[way][:, 0].tolist() != rows.tolist():
                return f"{way} differs"
    return "ok"


def send(data: Dataset, seed: int, queue: Any) -> None:
    queue.put(check(data, seed))


def test_a_forked_child_does_not_wait_for_what_another_thread_was_computing() -> None:
    """As functools.cached_property does before Python 3.12, for all objects of a class."""
    begun, goes_on = threading.Event(), threading.Event()

    class Slow(list[int]):
        def __len__(self) -> int:
            begun.set()
            return goes_on.wait() + 1

    thread = threading.Thread(target=lambda: _ShardRows(np.arange(3), Slow()).touched)  # type: ignore[arg-type]
    thread.start()
    begun.wait()
    if not (child := os.fork()):
        signal.signal(signal.SIGALRM, signal.SIG_DFL)  # not pytest-timeout's
        signal.alarm(int(limit(10)))
        os._exit(_ShardRows(np.arange(3), np.array([0, 3])).touched != [0])
    status = os.waitpid(child, 0)[1]
    goes_on.set()
    thread.join()
    assert os.waitstatus_to_exitcode(status) == 0


@pytest.mark.slow
def test_fork_while_other_threads_read(path: Path) -> None:
    data, stop = opened(path), threading.Event()
    # also lets torch set up what it does once: a child would wait for a thread that was doing it at the fork
    said = {check(opened(path), 0)}

    def read() -> None:
        k = 0
        while not stop.is_set():
            said.add(check(data, k := k + 1))

    threads = [threading.Thread(target=read) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        context = multiprocessing.get_context("fork")
        for seed in range(5):
            queue = context.Queue()
            child = context.Process(target=send, args=(data, seed, queue))
            child.start()
            assert queue.get(timeout=limit(60)) == "ok"
            child.join(limit(60))
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert said == {"ok"}


def test_pickle_holds_no_handles_and_no_data(path: Path) -> None:
    data = opened(path)
    check(data, 0)
    raw = pickle.dumps(data)
    assert len(raw) < 10_000
    assert check(pickle.loads(raw), 1) == "ok"


def test_rows_outside_and_wrong_buffers(path: Path) -> None:
    data = opened(path)
    for rows in ([200], [-1], [0, 10**12]):
        with pytest.raises(IndexError, match="out of range for 200 rows"):
            data.gather(np.array(rows))
    with pytest.raises(IndexError):
        data[200]
    assert torch.equal(data[-1]["mapped"], data[199]["mapped"])
    good = data.gather(np.arange(4))
    for bad in (torch.empty(3, 50, dtype=torch.uint8), torch.empty(4, 50), torch.empty(50, 4, dtype=torch.uint8).t()):
        with pytest.raises(ValueError, match="buffer of 'mapped'"):
            data.gather(np.arange(4), good | {"mapped": bad})
    assert data.gather(np.arange(0))["mapped"].shape == (0, 50)


def test_damaged_files(path: Path) -> None:
    whole = path.read_bytes()
    with h5py.File(path) as file:
        chunk = file["c"].id.get_chunk_info(10)

    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ConfigError, match=r"f.h5: cannot be opened .*truncated.*interrupted"):
        opened(path)
    path.write_bytes(b"hello" * 1000)
    with pytest.raises(ConfigError, match="not an HDF5 file"):
        opened(path)
    flipped = bytearray(whole)
    flipped[chunk.byte_offset + chunk.size // 2] ^= 0xFF
    path.write_bytes(flipped)
    data = opened(path)
    with pytest.raises(ConfigError, match=r"f.h5: /c is damaged in the chunk of row 80 .*fletcher32"):
        data.gather(np.arange(200))
    assert torch.equal(data.gather(np.arange(80))["chunks"], data.gather(np.arange(80))["mapped"])


def test_a_file_cut_short_anywhere(path: Path) -> None:
    whole, rng = path.read_bytes(), np.random.default_rng(0)
    for size in rng.integers(0, len(whole), 50):
        path.write_bytes(whole[:size])
        with pytest.raises(ConfigError, match=r"f\.h5"):
            opened(path)


def test_errors_name_file_field_and_remedy(path: Path) -> None:
    with h5py.File(path, "a") as file:
        file["short"], file["one"], file["void"] = np.zeros(3), 1.0, h5py.Empty("f4")
        file["table"] = np.zeros(200, dtype=[("a", "i4"), ("b", "f4")])
        file["gone"] = h5py.ExternalLink("nowhere.h5", "/x")
        file["sub/x"], file["kind"] = np.zeros(200), np.dtype("f4")
        layout = h5py.VirtualLayout((200,), "f4")
        layout[:] = h5py.VirtualSource("missing.h5", "x", (200,))
        file.create_virtual_dataset("virtual", layout)
        file["long"] = np.zeros(200, dtype=np.longdouble)
    for name, message in {
        "short": r"different numbers of rows: \{'mapped': 200, 'x': 3\}",
        "one": "single value without rows",
        "void": "empty",
        "table": "choose a member: /table/a",
        "table/c": r"members \['a', 'b'\], not 'c'",
        "m/deep": "no members",
        "gone": "'gone' .*cannot be read .*a file that contains its values is missing",
        "sub": r"is a group of \['x'\]",
        "virtual": "source missing.h5 is missing",
        "long": "no tensor supports",
        "mm": r"no 'mm' \(fields.x\)",
        "kind": "is a named type, not a dataset; (?!did you mean 'kind')",
    }.items():
        with pytest.raises(ConfigError, match=message) as error:
            Dataset(str(path), {"mapped": "m", "x": name}, "all", ROOT, external="allow")
        assert "f.h5" in str(error.value)
    with pytest.raises(ConfigError, match="is a directory"):
        Dataset(str(path.parent), {"x": "m"}, "all", ROOT)


def test_sources_that_would_read_as_fill_values(tmp_path: Path) -> None:
    path, raw = tmp_path / "f.h5", tmp_path / "x.raw"
    with h5py.File(path, "w") as file:
        file.create_dataset("x", data=np.arange(100.0), external=[(str(raw), 0, h5py.h5f.UNLIMITED)])
        layout = h5py.VirtualLayout((5,), "f4")
        layout[:] = h5py.VirtualSource(".", "nothing", (5,))
        file.create_virtual_dataset("v", layout)
    raw.unlink()
    with pytest.raises(ConfigError, match="/x: cannot be read"):
        Dataset(str(path), {"x": "x"}, "all", ROOT, external="allow")
    with pytest.raises(ConfigError, match="v is virtual and its source nothing is missing"):
        Dataset(str(path), {"v": "v"}, "all", ROOT)


@pytest.mark.slow
def test_filters_of_hdf5plugin_are_found(tmp_path: Path) -> None:
    """Here it is imported already; in a run it must be loaded when a file needs it, in spawned workers too."""
    with h5py.File(tmp_path / "f.h5", "w") as file:
        file.create_dataset("x", data=np.arange(64), chunks=(8,), **hdf5plugin.Bitshuffle())
        file.create_dataset("y", data=np.arange(64), chunks=(8,), **hdf5plugin.Zstd())
    code = """if True:
        import pickle, sys, numpy
        assert "hdf5plugin" not in sys.modules
        from h5rows.dataset import Dataset, _ShardRows
        data = Dataset(sys.argv[1], {"x": "x", "y": "y"}, "all", {"all": {"group": "/"}})
        assert all(value.tolist() == list(range(64)) for value in data.gather(numpy.arange(64)).values())
        sys.stdout.buffer.write(pickle.dumps(data))
    """
    options: Any = {"env": SRC, "stdout": subprocess.PIPE, "check": True}
    raw = subprocess.run([sys.executable, "-c", code, str(tmp_path / "f.h5")], **options).stdout
    code = "import pickle, sys; data = pickle.load(sys.stdin.buffer); assert data[63]['x'] == 63"
    (tmp_path / "pickled").write_bytes(raw)
    with open(tmp_path / "pickled", "rb") as pickled:
        subprocess.run([sys.executable, "-c", code], stdin=pickled, **options)


def test_without_the_libraries_h5py_reads(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with h5py.File(path, "a") as file:
        file.create_dataset("z", data=np.arange(200), chunks=(8,), **hdf5plugin.Zstd())
    monkeypatch.setattr(filters, "_load", lambda library: None)
    data = Dataset(str(path), {"z": "z", "c": "c"}, "all", ROOT)
    assert "h5py (zstd needs zstandard (in the extra codecs), which is not installed" in data.describe()[0]
    assert data.gather(np.arange(200))["z"].tolist() == list(range(200))
    assert "chunks (" in data.describe()[1]  # gzip is in Python itself
    assert data.gather(np.arange(200))["c"][:, 0].tolist() == list(range(200))


@pytest.mark.one_quick
@pytest.mark.parametrize("missing", [(), ("posix_fadvise",), ("RWF_NOWAIT",)])
def test_advice_brings_rows_into_memory(missing: tuple[str, ...], path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that are not there; on systems that lack the call nothing happens."""
    for name in missing:
        monkeypatch.delattr(os, name)
    asked: list[tuple[int, int]] = []
    if "posix_fadvise" not in missing:
        monkeypatch.setattr(os, "posix_fadvise", lambda fd, begin, size, advice: asked.append((begin, size)))
    cached = [True]

    def read(*_: object) -> int:
        if not cached[0]:
            raise BlockingIOError
        return 1

    monkeypatch.setattr(os, "preadv", read)
    data = opened(path)
    asked.clear()
    data.advise(np.random.default_rng(0).permutation(200))
    assert bool(asked) == (missing == ("RWF_NOWAIT",))
    cached[0] = False
    data.advise(np.arange(0))
    data.advise(np.arange(200))
    assert sum(size for _, size in asked) > 200 * 50 or missing == ("posix_fadvise",)
    assert check(data, 0) == "ok"


@pytest.mark.skipif(not hasattr(os, "SEEK_DATA"), reason="this system does not tell where holes are")
@pytest.mark.parametrize("shards", [1, 2])
def test_rows_in_holes_are_requested(shards: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The system returns a byte of a hole at once, although the page is not in memory: using it from the mapping would
    load megabytes around each row."""
    for k in range(shards):
        with h5py.File(tmp_path / f"{k}.h5", "w") as file:
            file.create_dataset("x", (10_000 // shards, 1 << 16), np.uint8)[-1:] = 1
    if 512 * (tmp_path / "0.h5").stat().st_blocks > 100 << 20:
        pytest.skip("this file system writes holes")
    data = Dataset(str(tmp_path / "*.h5"), {"x": "x"})
    asked: list[int] = []
    monkeypatch.setattr(os, "preadv", lambda fd, buffers, offset, flags: 1)
    monkeypatch.setattr(os, "posix_fadvise", lambda fd, begin, size, advice: asked.append(size))
    data.advise(np.arange(9_999))
    assert sum(asked) >= 9_998 << 16
    asked.clear()
    data.advise(np.array([9_999]))  # written, so it is in memory
    assert not asked


@pytest.mark.parametrize("shards", [1, 2])
def test_few_bytes_are_probed_of_rows_that_are_in_memory(
    shards: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each probe releases the GIL. Rows that leave the memory later are noticed, also if only one part of them does."""
    for k in range(shards):
        with h5py.File(tmp_path / f"{k}.h5", "w") as file:
            file["x"] = np.zeros((800 // shards, 500), np.uint8)
    data, probed, end = Dataset(str(tmp_path / "*.h5"), {"x": "x"}), [], 10**9
    asked: list[int] = []

    def read(fd: int, buffers: Any, offset: int, flags: int) -> int:
        probed.append(offset)
        if offset >= end:
            raise BlockingIOError
        return 1

    def probes(rows: np.ndarray) -> int:
        probed.clear()
        data.advise(rows)
        return len(probed)

    monkeypatch.setattr(os, "preadv", read)
    monkeypatch.setattr(os, "posix_fadvise", lambda fd, begin, size, advice: asked.append(begin))
    rows = np.arange(800)
    counts = [probes(rows) for _ in range(100)]
    assert min(counts[:8]) >= 8, "a sample, as long as little is known"
    assert counts[-80:] == [1] * 80
    assert not asked
    end = 200_000 // shards  # the second half of each file is not in memory
    for _ in range(800):
        probes(rows)
        if asked:
            break
    assert asked
    assert [probes(rows) > 1 for _ in range(8)] == [True] * 8


@pytest.mark.skipif(not HUGE_PAGES, reason="this system has no huge pages on request")
def test_a_new_batch_needs_few_page_faults(tmp_path: Path) -> None:
    """Faults of 4 KB pages would take ten times as long as the copy."""
    values = np.random.default_rng(0).integers(0, 9, (64, 1 << 19), dtype=np.uint8)
    with h5py.File(tmp_path / "f.h5", "w") as file:
        file["x"] = values
    data, rows = Dataset(str(tmp_path / "f.h5"), {"x": "x"}), np.arange(64)[::-1]
    data.gather(rows)  # the pages of the file are mapped now
    most, shown = values.nbytes // os.sysconf("SC_PAGE_SIZE") // 4, []
    for _ in range(5):  # where memory is full, the kernel has small pages for a moment, or for all
        lacking, _ = faults_of(lambda: np.ones(values.nbytes, np.uint8))
        faults, batch = faults_of(lambda: data.gather(rows)["x"])
        assert batch.numpy().tobytes() == values[::-1].tobytes()
        shown.append((faults, lacking))
    assert any(faults < lacking + most for faults, lacking in shown), shown


def faults_of(work: Callable[[], Any]) -> tuple[int, Any]:
    """Return how many page faults the work takes, and what it returns."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    made = work()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before, made


WRITER = """
import sys, h5py, numpy as np
with h5py.File(sys.argv[1], "w", libver="latest") as file:
    dset = file.create_dataset("x", (0, 4), "i4", maxshape=(None, 4), chunks=(16, 4), compression=sys.argv[2] or None)
    file.swmr_mode = True
    for k in range(0, 1000, 50):
        dset.resize(k + 50, 0)
        dset[k:] = np.arange(k, k + 50)[:, None]
        dset.flush()
        print(k, flush=True)
        sys.stdin.readline()
"""


def test_the_rows_that_a_swmr_writer_has_appended_to_all_fields(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = np.arange(12)
    for name, rows in {"a": 5, "b": 3}.items():
        with h5py.File(tmp_path / f"{name}.h5", "w", libver="latest") as file:
            file["x"], file["y"], file["group"] = values[:rows], values[: rows + 2], values[: rows + 4] // 2
    paths = [str(tmp_path / "a.h5"), str(tmp_path / "b.h5")]
    monkeypatch.setattr(fields, "plan", None)  # positions are not used: the writer may move what it appends to
    shares = {"all": {"group": "/", "rows": [0, 1], "by": "group"}}
    for splits in (ROOT, shares):
        data = Dataset(paths, {"x": "x", "y": "y"}, "all", splits, swmr=True)
        expected = [0, 1, 2, 3, 4, 0, 1, 2]
        assert [rows.tolist() for rows in data[:].values()] == [expected, expected]
        assert data.column("y").tolist() == expected
        unread = ["rows are not read, because another field has fewer" in line for line in data.describe()]
        assert unread == [False, True]
    shares = {name: {"group": "/", "rows": rows} for name, rows in {"train": [0, 0.5], "val": [0.5, 1]}.items()}
    with reading_once():  # the shares were of other numbers of rows, and overlapped
        train = Dataset(paths, {"x": "x"}, "train", shares, swmr=True)
        with h5py.File(paths[0], "a") as file:
            del file["x"]
            file["x"] = values
        assert Dataset(paths, {"x": "x"}, "val", shares, swmr=True).shared_rows(train) == 0
    assert len(Dataset(paths, {"x": "x"}, "val", shares, swmr=True)) > len(train)


@pytest.mark.slow
@pytest.mark.parametrize("codec", ["", "gzip"])
def test_a_file_that_a_swmr_writer_is_writing(codec: str, tmp_path: Path) -> None:
    path = str(tmp_path / "f.h5")
    with subprocess.Popen([sys.executable, "-c", WRITER, path, codec], **PIPES) as writer:
        for step in range(20):
            writer.stdout.readline()
            if step == 3:
                data = Dataset(path, {"x": "x"}, "all", ROOT, swmr=True)
                assert len(data) == 200
                with pytest.raises(ConfigError, match="swmr=True"):
                    Dataset(path, {"x": "x"}, "all", ROOT)
            if step >= 3:
                assert data.gather(np.arange(200))["x"][:, 0].tolist() == list(range(200))
                assert len(Dataset(path, {"x": "x"}, "all", ROOT, swmr=True)) == 50 * (step + 1)
            writer.stdin.write("\n")
            writer.stdin.flush()
    assert writer.returncode == 0


@pytest.mark.parametrize(
    ("libver", "swmr", "said"),
    [
        ("earliest", False, "its writer was killed before it wrote all"),
        ("earliest", True, "its writer was killed before it wrote all"),
        ("latest", False, "its writer was killed; then `h5clear -s FILE`"),
        ("latest", True, "no SWMR writer has it open; leave out swmr=True"),
    ],
)
def test_a_file_whose_writer_was_killed(libver: str, swmr: bool, said: str, tmp_path: Path) -> None:
    path = str(tmp_path / "a.h5")
    script = f"import os, h5py; f = h5py.File({path!r}, 'w', libver={libver!r}); f['x'] = range(999); os._exit(0)"
    subprocess.run([sys.executable, "-c", script], check=True)
    with pytest.raises(ConfigError, match=said):
        Dataset(path, {"x": "x"}, swmr=swmr)


def test_a_file_that_another_process_holds_locked(path: Path) -> None:
    code = "import sys, h5py; f = h5py.File(sys.argv[1], 'r+'); print('open', flush=True); sys.stdin.readline()"
    with subprocess.Popen([sys.executable, "-c", code, str(path)], **PIPES) as holder:
        holder.stdout.readline()
        with pytest.raises(OSError, match="lock"):
            h5py.File(path, "r")
        path.chmod(0o444)  # which needs no more than to be read
        assert check(opened(path), 0) == "ok"
        holder.stdin.write("\n")
