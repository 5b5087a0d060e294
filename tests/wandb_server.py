"""As much of a W&B server as an upload asks for: it keeps what it is sent."""

from __future__ import annotations

import gzip
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

KEY = "0" * 40


class Server(ThreadingHTTPServer):
    """runs: {id: what UpsertBucket said of it}; history: {id: {line number: row}}; exits: {id: exit code}."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        self.runs: dict[str, dict[str, Any]] = {}
        self.history: dict[str, dict[int, dict[str, Any]]] = {}
        self.exits: dict[str, int] = {}

    def rows(self, run: str) -> list[dict[str, Any]]:
        """In the order of their lines, as the server would show them."""
        return [row for _, row in sorted(self.history.get(run, {}).items())]

    def steps(self, run: str) -> list[int]:
        return [row["_step"] for row in self.rows(run)]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def log_message(self, format: str, *args: Any) -> None: ...

    def _body(self) -> bytes:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        return gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body

    def _answer(self, value: Any) -> None:
        body = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        self._answer({})

    def do_PUT(self) -> None:
        self._body()
        self._answer({})

    def do_POST(self) -> None:
        body = self._body()
        if self.path.startswith("/graphql"):
            asked = json.loads(body)
            name = re.search(r"(?:query|mutation)\s+(\w+)", asked["query"])
            self._answer({"data": self._graphql(name[1] if name else "", asked.get("variables") or {})})
            return
        if stream := re.fullmatch(r"/files/[^/]+/[^/]+/([^/]+)/file_stream", self.path):
            sent = json.loads(body)
            history = self.server.history.setdefault(stream[1], {})
            lines = sent.get("files", {}).get("wandb-history.jsonl", {"offset": 0, "content": []})
            for i, line in enumerate(lines["content"]):
                history[lines["offset"] + i] = json.loads(line)
            if sent.get("complete"):
                self.server.exits[stream[1]] = sent["exitcode"]
        self._answer({"limits": {}})

    def _graphql(self, name: str, given: dict[str, Any]) -> dict[str, Any]:
        user = {"id": "u", "entity": "me", "username": "me", "flags": "{}", "teams": {"edges": []}, "email": "a@b.c"}
        if name == "UpsertBucket":
            known = self.server.runs.setdefault(given["name"], {})
            known |= {key: value for key, value in given.items() if value is not None}
            project = {"id": "p", "name": known.get("project"), "entity": {"id": "e", "name": "me"}}
            bucket = {
                "id": "b", "name": given["name"], "displayName": known.get("displayName"), "description": "",
                "config": "{}", "sweepName": None, "historyLineCount": 0, "project": project,
            }  # fmt: skip
            return {"upsertBucket": {"bucket": bucket, "inserted": True}}
        if name == "CreateRunFiles":
            files = [{"name": file, "uploadUrl": f"{self.server.url}/upload/{file}"} for file in given["files"]]
            return {"createRunFiles": {"runID": "b", "uploadHeaders": [], "files": files}}
        return {"viewer": user, "serverInfo": {"features": []}, "model": {"bucket": None}}


@contextmanager
def serving() -> Iterator[Server]:
    server = Server()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
