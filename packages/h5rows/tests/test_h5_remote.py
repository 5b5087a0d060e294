"""Remote files: the numbers of the local one, fetched once, gone on with after a kill; each mistake one line."""

from __future__ import annotations

import errno
import multiprocessing
import os
import shutil
import socketserver
import ssl
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fsspec
import h5py
import numpy as np
import pytest
from fsspec.asyn import AsyncFileSystem
from http_files import Server, serving, small_blocks
from running import assert_equal, limit, wait_for
from writes import attempt, mark

from h5rows import ConfigError, Dataset
from h5rows.integration import num_outputs, sample_shape
from h5rows.packing.inspect import inspect_file
from h5rows.reading import folders, remote, sources

ALL = {"all": {"group": "/"}}
BYTES = np.random.default_rng(0).bytes(100_000)
SMALL_SPANS = "import sys; from h5rows.reading import remote, sources; remote.SPAN = 1 << 16; "
# a server that waits for another process, which may start late, is asked once
FETCH = SMALL_SPANS + "sources.TIMEOUT_S = 1e6; print(remote.fetched(sys.argv[1]))"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LAB_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    monkeypatch.setattr(sources, "PAUSE_S", 0.001)
    forget()
    return tmp_path / "cache"


@pytest.mark.slow
@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 404 \x1b[31mEVIL\x1b]0;title\x07\r\n\r\n",
        b"HTTP/1.1 500 \x1b[2J\x9b1m\r\n\r\n",
        b"\x1b[31mno server of the web\r\n\r\n",
        b"HTTP/1.1 302 \x1b[1m\r\nLocation: file:///etc/\x1b[31mpasswd\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 302 Found\r\nLocation: /f.h5\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: \x1b[31m1\r\n\r\n",
    ],
    ids=["reason", "failed", "garbage", "moved", "loop", "size"],
)
def test_a_server_s_words_are_one_printable_line(answer: bytes) -> None:
    class Says(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            while self.rfile.readline().strip():
                pass
            self.wfile.write(answer)

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Says) as own:
        thread = threading.Thread(target=own.serve_forever)
        thread.start()
        try:
            with pytest.raises(ConfigError) as caught:
                sources.source_of(f"http://127.0.0.1:{own.server_address[1]}/f.h5", 1)
        finally:
            own.shutdown()
            thread.join()
    assert str(caught.value).isprintable(), str(caught.value)


def forget() -> None:
    """As a new process, which knows nothing of the server."""
    remote._known.clear()
    folders._said.clear()


def small_spans(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "SPAN", 1 << 16)
    small_blocks(monkeypatch)


def made(path: Path, rows: int = 1000, seed: int = 0) -> bytes:
    """x (rows, 1000) uint8, mapped; z: the same, compressed; y: labels of 7 classes."""
    rng = np.random.default_rng(seed)
    with h5py.File(path, "w") as file:
        file["y"] = rng.permutation(np.arange(rows) % 7)
        x = file.create_dataset("x", data=rng.integers(0, 256, (rows, 1000), dtype=np.uint8))
        file.create_dataset("z", data=x[:], chunks=(10, 1000), compression="gzip")
    return path.read_bytes()


def opened(path: Any, **fields: str) -> Dataset:
    return Dataset(path, fields or {"x": "x", "z": "z", "y": "y"}, "all", ALL)


def composed(url: str, **more: Any) -> tuple[list[int], int]:
    data = {"path": url, "fields": {"x": "x", "y": "y"}, "splits": ALL, "external": "refuse", **more}
    return sample_shape(data, "x"), num_outputs(data, "y")


@contextmanager
def refused(*words: str) -> Iterator[None]:
    """One line that has these words."""
    with pytest.raises(ConfigError) as caught:
        yield
    line = str(caught.value)
    assert "\n" not in line
    assert [word for word in words if word not in line] == [], line


# -- the numbers -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ranges", [True, False])
def test_numbers_and_ways_are_those_of_the_local_file(
    ranges: bool, tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_spans(monkeypatch)
    local, server.ranges = tmp_path / "here.h5", ranges
    server.files["/sets/f.h5"] = made(local)
    data, known = opened(server.url("/sets/f.h5")), opened(str(local))
    rows = np.random.default_rng(1).integers(0, 1000, 100)
    assert_equal(data.gather(rows), known.gather(rows))
    assert data.describe() == known.describe()  # mapped, by chunks
    if ranges:
        assert server.sent == len(server.files["/sets/f.h5"]) + 1
    # another process asks for a byte, whether it has changed
    forget()
    server.forget()
    assert_equal(opened(server.url("/sets/f.h5")).gather(rows), known.gather(rows))
    assert server.requests == 1
    if ranges:
        assert server.sent == 1


# -- what is fetched ---------------------------------------------------------------------------------------------------


def test_composing_fetches_what_it_looks_at(tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    small_spans(monkeypatch)
    server.files["/f.h5"] = made(tmp_path / "f.h5")
    assert composed(server.url()) == composed(str(tmp_path / "f.h5")) == ([1000], 7)
    assert server.sent < 0.02 * len(server.files["/f.h5"])
    with refused("has no 'w'", "x (1000, 1000) uint8"):
        sample_shape({"path": server.url(), "fields": {"w": "w"}, "splits": ALL}, "w")
    shutil.rmtree(folders.cache_dir())
    server.status = [200, 403]
    with refused(server.url(), "403"):  # not what HDF5 makes of it
        composed(server.url())
    forget()
    opened(server.url())  # whole now
    server.forget()
    assert composed(server.url()) == ([1000], 7)
    assert server.requests == 0


def test_a_file_that_has_changed_is_fetched_anew(tmp_path: Path, server: Server, capsys: Any) -> None:
    server.files["/f.h5"] = made(tmp_path / "f.h5", 100)
    old = opened(server.url())
    first = old.gather(np.arange(100))
    server.files["/f.h5"], server.tags["/f.h5"] = made(tmp_path / "f.h5", 100, seed=1), '"2"'
    forget()
    assert_equal(opened(server.url()).gather(np.arange(100)), opened(str(tmp_path / "f.h5")).gather(np.arange(100)))
    assert "has changed since" in capsys.readouterr().err
    assert_equal(old.gather(np.arange(100)), first)  # a run that has it open goes on with the old one


def test_a_file_that_changes_while_it_is_fetched(tmp_path: Path, server: Server, monkeypatch: Any) -> None:
    small_spans(monkeypatch)
    server.files["/f.h5"] = made(tmp_path / "f.h5")
    remote.copy_of(server.url())
    server.tags["/f.h5"] = '"2"'
    with refused(server.url(), "was changed while it was downloaded"):
        opened(server.url())
    forget()
    server.tags["/f.h5"] = ""  # of a server that names no version, the part may be of another file of this size
    path, _ = remote.copy_of(server.url())
    path.parent.mkdir(parents=True)
    path.with_name("f.h5.part").write_bytes(server.files["/f.h5"][:9000] + bytes(1000))
    opened(server.url())
    assert path.read_bytes() == server.files["/f.h5"]


def test_killed_at_any_write_the_next_one_has_the_whole_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After each piece too. The pieces come from memory: who forks here has no thread of a server."""
    whole = made(tmp_path / "f.h5", 100)

    def pieces(source: Any, at: int, between: Any) -> Iterator[bytes]:
        for begin in range(at, source.size, 1 << 16):
            mark("before a piece")
            yield whole[begin : begin + (1 << 16)]

    monkeypatch.setattr(remote, "_pieces", pieces)

    def fetch(cache: Path) -> Callable[[], None]:
        def into_it() -> None:
            source = SimpleNamespace(size=len(whole), url="http://here/f.h5", version="1")
            remote.copy_of = lambda url: (cache / "version/f.h5", source)
            remote.fetched(source.url)

        return into_it

    def files(cache: Path) -> dict[str, bytes]:
        return {str(path.relative_to(cache)): path.read_bytes() for path in cache.rglob("*") if path.is_file()}

    straight = tmp_path / "straight"
    done = attempt(fetch(straight), straight)
    assert done.status == 0, done.shown
    assert done.writes.count("before a piece ") > 2
    assert files(straight) == {"version/.lock": b"", "version/f.h5": whole}
    for number, what in enumerate(done.writes):
        cache = tmp_path / str(number)
        assert attempt(fetch(cache), cache, number).status < 0, what
        again = attempt(fetch(cache), cache)
        assert again.status == 0, (what, again.shown)
        assert files(cache) == files(straight), what


def test_who_waits_for_a_file_may_stop(tmp_path: Path, cache: Path, server: Server, monkeypatch: Any) -> None:
    there = 0

    def here() -> int:
        return sum(path.stat().st_size for path in cache.glob("*/*/f.h5*"))

    def leave() -> None:  # at once when a part has come, however slow this machine is
        if here() > there:
            raise SystemExit(75)

    server.files["/f.h5"] = made(tmp_path / "f.h5")
    small_spans(monkeypatch)
    monkeypatch.setattr(sources, "PIECE", 1 << 16)
    for server.ranges in (False, True):
        forget()
        with pytest.raises(SystemExit):
            remote.fetched(server.url(), leave)
        (part,) = cache.glob("*/*/f.h5*")
        assert part.suffix == ".part"
        assert there < here() < len(server.files["/f.h5"])
        there = here()
    wait_for(lambda: not [one for one in threading.enumerate() if one.name.startswith("fetch")])  # they may still ask
    server.forget()
    assert len(opened(server.url())) == 1000
    assert server.sent == len(server.files["/f.h5"]) - there  # it goes on from there


@pytest.mark.slow
def test_processes_fetch_once(tmp_path: Path, server: Server) -> None:
    server.files["/f.h5"] = made(tmp_path / "f.h5")
    server.gate.clear()
    command, logs = [sys.executable, "-c", FETCH, server.url()], [tmp_path / "0", tmp_path / "1"]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=open(log, "w")) for log in logs]  # noqa: SIM115
    wait_for(lambda: "waiting for the process that downloads" in "".join(log.read_text() for log in logs))
    server.gate.set()
    said = [process.communicate(timeout=limit(60))[0] for process in both]
    assert [process.returncode for process in both] == [0, 0], [log.read_text() for log in logs]
    assert said[0] == said[1]
    assert server.sent == len(server.files["/f.h5"]) + 2


# -- what may go wrong -------------------------------------------------------------------------------------------------


def test_what_fails_once_is_tried_again(tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    small_spans(monkeypatch)
    server.files["/f.h5"], server.status, server.cut = made(tmp_path / "f.h5"), [503, 503], (1000, 2)
    assert len(opened(server.url())) == 1000
    forget()
    server.ranges, server.tags["/f.h5"], server.cut = False, '"2"', (100_000, 2)
    assert len(opened(server.url())) == 1000
    assert len({path.read_bytes() for path in folders.cache_dir().glob("*/*/f.h5")} | {server.files["/f.h5"]}) == 1


def test_each_mistake_is_one_line_that_names_the_address(tmp_path: Path, server: Server, monkeypatch: Any) -> None:
    server.files |= {"/f.h5": made(tmp_path / "f.h5"), "/page.h5": b"<!DOCTYPE html> log in", "/empty.h5": b""}
    url = server.url()
    with refused(server.url("/none.h5"), "404"):
        opened(server.url("/none.h5?signature=secret"))
    server.status = [500] * 3
    with refused(url, "500", "tried 3 times"):
        opened(url)
    server.status = [401]
    with refused(url, "401", "netrc"):
        opened(url)
    with refused("is not an HDF5 file", "<!DOCTYPE html>"):
        opened(server.url("/page.h5"))
    with refused("empty.h5", "the file is empty"):
        opened(server.url("/empty.h5"))
    server.cut = (1000, 99)
    with refused(url, "the answer ended at byte 1,000", "tried 3 times"):
        opened(url)
    server.cut, server.ranges, server.sizes = (0, 0), False, False
    forget()
    with refused(url, "does not send its size"):
        opened(url)
    server.ranges = server.sizes = True
    server.delay_s = 5.0
    monkeypatch.setattr(sources, "TIMEOUT_S", 0.05)
    forget()
    with refused(url, "timed out", "tried 3 times"):
        opened(url)
    server.delay_s = 0.0
    monkeypatch.setattr(sources, "TIMEOUT_S", 30.0)
    with refused("f-*.h5", "give a list"):
        opened(server.url("/f-*.h5"))
    with refused("http://host/f.h5", "netrc"):
        opened("http://me:secret@host/f.h5")
    for name in ("..", ".lock"):
        server.files[f"/{name}"] = server.files["/f.h5"]
        assert len(opened(server.url(f"/{name}"))) == 1000
    with refused("has no host"):
        opened("http:///f.h5")
    with refused("http://127.0.0.1:1/f.h5", "Connection refused"):
        opened("http://127.0.0.1:1/f.h5")
    with refused("nothing://f.h5", "Protocol not known"):
        opened("nothing://f.h5")
    with refused("memory://none.h5", "no such file"):
        opened("memory://none.h5")
    for module in ("s3fs", "fsspec.core"):
        monkeypatch.setitem(sys.modules, module, None)
        with refused("s3://bucket/f.h5", "-m pip install fsspec s3fs"):
            opened("s3://bucket/f.h5")


def test_a_disk_that_is_full_or_not_there(tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    server.files["/f.h5"] = made(tmp_path / "f.h5")

    def full(fd: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched, refused("No space left on device", server.url(), "LAB_CACHE_DIR"):
        patched.setattr(os, "fsync", full)
        opened(server.url())
    with monkeypatch.context() as patched, refused("no space for its copy", server.url(), "LAB_CACHE_DIR"):
        patched.setattr(remote.shutil, "disk_usage", lambda path: SimpleNamespace(free=-1))
        opened(server.url())
    (tmp_path / "a file").touch()
    with monkeypatch.context() as patched, refused("Not a directory", server.url(), "LAB_CACHE_DIR"):
        patched.setenv("LAB_CACHE_DIR", str(tmp_path / "a file" / "below"))
        opened(server.url())
    assert len(opened(server.url())) == 1000


def test_a_server_that_is_away_leaves_the_copy(tmp_path: Path, capsys: Any) -> None:
    with serving() as server:
        server.files["/f.h5"], url = made(tmp_path / "f.h5"), server.url()
        opened(url)
    forget()
    assert len(opened(url)) == 1000
    assert composed(url) == ([1000], 7)
    assert capsys.readouterr().err.count("Connection refused (tried 1 times); using the copy of") == 1


def test_links_out_of_a_remote_file(tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    small_spans(monkeypatch)
    made(tmp_path / "private.h5")
    made(tmp_path / "f.h5", 200)
    with h5py.File(tmp_path / "f.h5", "a") as file:
        del file["y"]
        file["y"] = h5py.ExternalLink(str(tmp_path / "private.h5"), "y")
        file.create_dataset("raw", (100,), "u1", external=[(str(tmp_path / "private.h5"), 0, 100)])
        layout = h5py.VirtualLayout((1000,), "i8")
        layout[...] = h5py.VirtualSource(str(tmp_path / "private.h5"), "y", (1000,))
        file.create_virtual_dataset("virtual", layout)
    server.files["/f.h5"] = (tmp_path / "f.h5").read_bytes()
    for name in ("y", "raw", "virtual"):
        with refused("refused", "private.h5"):
            composed(server.url(), fields={"x": "x", "y": name})
    with refused("refused", "private.h5"):
        opened(server.url(), y="y")
    assert composed(server.url(), external="allow")[1] == 7


# -- other places ------------------------------------------------------------------------------------------------------


def test_what_fsspec_knows(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    small_spans(monkeypatch)
    content = made(tmp_path / "f.h5")
    with fsspec.open("memory://sets/f.h5", "wb") as file:
        file.write(content)
    for count, url in enumerate(["memory://sets/f.h5", f"file://{tmp_path}/f.h5"]):
        assert composed(url) == ([1000], 7)
        assert len(list(cache.glob("*/*/f.h5"))) == count
        assert_equal(opened(url).gather(np.arange(9)), opened(str(tmp_path / "f.h5")).gather(np.arange(9)))
    capsys.readouterr()
    inspect_file(url)
    assert "contiguous" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl, for a certificate")
def test_https_passwords_stay_with_their_host(tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    made = "req -x509 -newkey rsa:2048 -nodes -keyout k.pem -out c.pem -subj /CN=localhost"
    more = ["-addext", "subjectAltName=DNS:localhost"]
    subprocess.run(["openssl", *made.split(), *more], cwd=tmp_path, check=True, capture_output=True)
    (tmp_path / ".netrc").write_text("machine localhost login me password pw\ndefault login me password other\n")
    (tmp_path / ".netrc").chmod(0o600)
    monkeypatch.setenv("HOME", str(tmp_path))
    server.files["/digits.h5"] = BYTES
    with serving() as secure:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(tmp_path / "c.pem", tmp_path / "k.pem")
        secure.socket = context.wrap_socket(secure.socket, server_side=True)
        secure.files["/digits.h5"], secure.moved["/moved.h5"] = BYTES, server.url("/digits.h5")
        there = f"https://localhost:{secure.server_address[1]}"
        with refused(there, "its certificate"):
            sources.source_of(f"{there}/digits.h5", 1)
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "c.pem"))
        for name in ("digits", "moved"):
            assert sources.read(sources.source_of(f"{there}/{name}.h5", 1), 0, len(BYTES)) == BYTES
        assert secure.logins == {"Basic bWU6cHc="}
        assert server.logins == {None}


class Slow(AsyncFileSystem):
    """Files whose bytes come from fsspec's own thread."""

    protocol, content = "slow", b""

    async def _info(self, path: str, **more: Any) -> dict[str, Any]:
        return {"name": path, "size": len(self.content), "type": "file"}

    async def _cat_file(self, path: str, version_id: Any = None, start: int = 0, end: int = 0) -> bytes:  # as s3fs's
        return self.content[start:end]


def test_a_process_that_is_forked_does_not_use_a_thread_of_its_parent(tmp_path: Path, monkeypatch: Any) -> None:
    """fsspec's: it is not there."""
    small_spans(monkeypatch)
    fsspec.register_implementation("slow", Slow, clobber=True)
    Slow.content = made(tmp_path / "f.h5", 200)
    assert composed("slow://f.h5") == ([1000], 7)
    child = multiprocessing.get_context("fork").Process(target=opened, args=("slow://f.h5",))
    child.start()
    child.join(limit(30))
    assert child.exitcode == 0
    child.close()
    assert len(list(folders.cache_dir().glob("*/*/f.h5"))) == 1
