"""A web server on this machine that serves files from memory, as well or as badly as a test wants."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
from running import wait_for

from h5rows.reading import listed, ranges, remote, sources

# of h5rows.reading.ranges, for files of a megabyte
SMALL = {"BLOCK": 1 << 12, "RUN": 1 << 14, "SEGMENT": 1 << 18, "_BLOCKS": 64, "_CLAIMS": (1 << 18) + 64, "LEAST_GB": 0}


def forget_files() -> None:
    """Know nothing of remote files, as a new process."""
    for known in (listed._known, listed.EXPECTED, remote._known):
        known.clear()


def small_blocks(patch: pytest.MonkeyPatch) -> None:
    """Read remote files by blocks as small as SMALL, and try again at once."""
    patch.setattr(sources, "PAUSE_S", 0.001)
    for name, value in SMALL.items():
        patch.setattr(ranges, name, value)


class Server(ThreadingHTTPServer):
    """files: path -> bytes. ranges: whether it answers with parts. cut: so many bytes of a body, of this many answers.
    moved: path -> address. status: of these, the next ones. sizes: whether it says them. delay_s: before each piece.
    sent: bytes of bodies, counted before they leave."""

    daemon_threads = True

    def __init__(self, host: str = "127.0.0.1", port: int = 0) -> None:
        super().__init__((host, port), Handler)
        self.files: dict[str, bytes] = {}
        self.tags: dict[str, str] = {}
        self.moved: dict[str, str] = {}
        self.logins: set[str | None] = set()
        self.status: list[int] = []
        self.cut: tuple[int, int] = (0, 0)
        self.ranges, self.sizes, self.delay_s, self.piece = True, True, 0.0, 1 << 16
        self.requests, self.sent = 0, 0
        self.gate = threading.Event()  # no body of more than a byte is sent before it is set
        self.gate.set()
        self.lock, self.open_requests = threading.Lock(), 0

    def url(self, path: str = "/f.h5") -> str:
        return f"http://127.0.0.1:{self.server_address[1]}{path}"

    def process_request(self, *given: Any) -> None:
        with self.lock:
            self.open_requests += 1
        super().process_request(*given)

    def process_request_thread(self, *given: Any) -> None:
        try:
            super().process_request_thread(*given)
        finally:
            with self.lock:
                self.open_requests -= 1

    def settle(self) -> None:
        """Wait until all earlier requests are answered, also those of a process that has ended."""
        with suppress(HTTPError):
            urlopen(self.url("/none"))  # connections are accepted in their order
        wait_for(lambda: not self.open_requests)

    def forget(self) -> None:
        """Count from 0 again, after `settle`."""
        self.settle()
        self.requests = self.sent = 0


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        own = self.server
        with own.lock:
            own.requests += 1
        own.logins.add(self.headers.get("Authorization"))
        if self.path in own.moved:
            self.send_response(302)
            self.send_header("Location", own.moved[self.path])
            self.end_headers()
            return
        body = own.files.get(self.path.partition("?")[0])
        status = own.status.pop(0) if own.status else 200 if body is not None else 404
        if status != 200 or body is None:
            self.send_error(status)
            return
        begin, size = 0, len(body)
        if own.ranges and (asked := self.headers.get("Range")):
            begin, end = (int(k) for k in asked.removeprefix("bytes=").split("-"))
            if begin >= size:
                self.send_error(416)
                return
            body = body[begin : end + 1]
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {begin}-{begin + len(body) - 1}/{size}")
        else:
            self.send_response(200)
        if own.sizes:
            self.send_header("Content-Length", str(len(body)))
        self.send_header("ETag", own.tags.get(self.path, '"1"'))
        self.end_headers()
        with own.lock:
            keep, times = own.cut
            if times and len(body) > keep:
                own.cut = keep, times - 1
                body = body[:keep]
        if len(body) > 1:
            own.gate.wait()
        try:
            for at in range(0, len(body), piece := own.piece):
                if own.delay_s and len(body) > 1:
                    time.sleep(own.delay_s)
                part = body[at : at + piece]
                with own.lock:
                    own.sent += len(part)
                self.wfile.write(part)
        except OSError:  # who asked has left
            pass

    def log_message(self, *words: object) -> None:
        pass


@contextmanager
def serving() -> Iterator[Server]:
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.gate.set()
            server.shutdown()
            thread.join()
