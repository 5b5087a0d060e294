"""Serve one page that shows runs while they run: ./run report --serve.

Only this machine can connect (127.0.0.1), and only with the address that is printed: it has a random key, because other
users of a login node can connect to 127.0.0.1, too. No part of an address names a file. Nothing is written.
"""

from __future__ import annotations

import errno
import getpass
import hmac
import json
import logging
import os
import platform
import secrets
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from samebits.errors import ConfigError, first_line
from samebits.project import Project
from samebits.runs import holds_run
from samebits.signals import how_to_stop
from samebits.sweeps.report import style
from samebits.sweeps.report.facts import Facts
from samebits.sweeps.report.live import LiveRuns
from samebits.sweeps.report.page import WEB, filled, page
from samebits.sweeps.report.study import read_study

PORT = 8100
EVERY_S, SHARE = 1.0, 4.0  # between two looks at the runs: seconds, and how often as long as one takes
IDLE_S = 30.0  # after so many seconds without a request nothing is read
POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; connect-src 'self'; "
    "img-src data: blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


class LiveServer(ThreadingHTTPServer):
    """The server. key: first part of each address. last: time.monotonic() of the last request for data."""

    daemon_threads = True  # a request that hangs does not keep the process

    def __init__(self, project: Project, folders: list[Path], port: int) -> None:
        self.project, self.folders = project, folders
        shared = Path(os.path.commonpath(folders))  # the names of runs begin below it
        self.runs = LiveRuns(folders, shared.parent if holds_run(shared) else shared)
        self.key, self.last = secrets.token_urlsafe(16), time.monotonic()
        self.wake = threading.Event()
        super().__init__(("127.0.0.1", port), Handler)
        threading.Thread(target=self._follow, name="follow runs", daemon=True).start()

    @property
    def port(self) -> int:
        """The port that the server listens on."""
        return int(self.server_address[1])

    @property
    def address(self) -> str:
        """The address of the page."""
        return f"http://127.0.0.1:{self.port}/{self.key}/"

    def _follow(self) -> None:
        told = ""
        while True:
            began = time.monotonic()
            try:
                self.runs.refresh()
                told = ""
            except Exception as error:  # a file system that is away for a moment
                if told != (told := first_line(error)):
                    print(f"not read: {told}", file=sys.stderr)
            time.sleep(max(EVERY_S, SHARE * (time.monotonic() - began)))
            self.wake.clear()
            if time.monotonic() - self.last > IDLE_S:
                self.wake.wait()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print nothing for a browser that has closed its connection."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


class Handler(BaseHTTPRequestHandler):
    """Answer GET for three addresses below the key: the page, data.json and report."""

    server: LiveServer
    timeout = 60
    server_version, sys_version = "report", ""

    def do_GET(self) -> None:
        """Answer a request."""
        url = urlsplit(self.path)
        key, _, name = url.path.removeprefix("/").partition("/")
        # a foreign page whose name resolves to 127.0.0.1 sends its own name
        if self.headers.get("Host", "").rpartition(":")[0] not in ("127.0.0.1", "localhost"):
            self._answer(403, "text/plain", "open the address that ./run report --serve has printed")
        elif not hmac.compare_digest(key.encode(errors="replace"), self.server.key.encode()):
            self._answer(403, "text/plain", "open the complete address that ./run report --serve has printed")
        elif name == "":
            self._answer(200, "text/html", live_page(self.server.project, self.server.folders))
        elif name == "data.json":
            self.server.last = time.monotonic()
            self.server.wake.set()
            self._data(parse_qs(url.query))
        elif name == "report":
            self._report()
        else:
            self._answer(404, "text/plain", "no such page")

    def _data(self, query: dict[str, list[str]]) -> None:
        since = query.get("since", ["0"])[0]
        if not (since.isascii() and since.isdigit() and len(since) < 20):
            self._answer(400, "text/plain", "since: must be a number")
            return
        rows = self.server.runs.rows(query.get("key", [""])[0], int(since))
        self._answer(200, "application/json", json.dumps(rows, separators=(",", ":"), allow_nan=False))

    def _report(self) -> None:
        """Send the complete report of now, which is built in memory."""
        try:
            text = page(Facts(read_study(self.server.project, self.server.folders)))
        except (ConfigError, OSError, ImportError) as error:
            self._answer(500, "text/plain", f"error: {error}")
        else:
            self._answer(200, "text/html", text)

    def _answer(self, code: int, kind: str, text: str) -> None:
        data = text.encode(errors="replace")
        self.send_response(code)
        for name, value in {
            "Content-Type": f"{kind}; charset=utf-8", "Content-Length": str(len(data)), "Cache-Control": "no-store",
            "Content-Security-Policy": POLICY, "Referrer-Policy": "no-referrer", "X-Content-Type-Options": "nosniff",
        }.items():  # fmt: skip
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        """Print no line for a request."""


def live_page(project: Project, folders: list[Path]) -> str:
    """Return the page. Its script requests the data."""
    root = project.root
    title = ", ".join(str(one.relative_to(root) if one.is_relative_to(root) else one) for one in folders)
    data = {"title": title, "colors": style.PAGE, "groups": [], "jobs": []}
    return filled("live.html", {
        "title": "Runs",
        "style": (WEB / "page.css").read_text("utf-8") + (WEB / "live.css").read_text("utf-8"),
        "data": json.dumps(data).replace("<", "\\u003c"),
        "script": "\n".join((WEB / name).read_text("utf-8") for name in ("core.js", "live.js")),
    })  # fmt: skip


def start_server(project: Project, folders: list[Path], port: int) -> LiveServer:
    """Return a server that listens. Raise ConfigError if the port is not free."""
    try:
        return LiveServer(project, folders, port)
    except OSError as error:
        reasons = {errno.EADDRINUSE: "is in use", errno.EACCES: "needs the rights of root"}
        why = reasons.get(error.errno or 0, error.strerror)
        raise ConfigError(
            f"--serve {port}: the port {why}; give another one, such as --serve {PORT + 1}, or --serve 0 for any"
        ) from None


def serve(project: Project, directories: list[Path], port: int) -> None:
    """Serve the page until Ctrl-C (KeyboardInterrupt). Raise ConfigError for a folder or a port that cannot be used."""
    folders = [path.absolute() for path in directories] or [project.root / "outputs"]
    for folder in folders:
        if not folder.is_dir():
            raise ConfigError(f"{folder}: no such directory; give run directories, sweeps or folders that contain them")
    logging.getLogger("samebits").setLevel(logging.ERROR)  # each look would warn of the same links again
    with start_server(project, folders, port) as server:
        print(f"{server.address}\nFrom a laptop, type this there, then open the same address:", flush=True)
        print(f"  ssh -N -L {server.port}:127.0.0.1:{server.port} {name_of_host()}\n{how_to_stop()}.", flush=True)
        server.serve_forever()


def name_of_host() -> str:
    """Return this machine's name for ssh: the one that the user has given to ./run remote (RUN_REMOTE_HOST), or
    user@host."""
    if known := os.environ.get("RUN_REMOTE_HOST"):
        return known
    try:
        return f"{getpass.getuser()}@{platform.node()}"
    except (KeyError, OSError):  # a container whose user has no name
        return platform.node()
