"""A W&B server as far as its client goes: it keeps what it is sent, answers by what it has, and can be ill.

What it answers is what a real server does: a run that is begun again has its lines, its config, its summary, its tail.
To answer more, subclass Server and override `graphql`; `serving(MyServer)` starts one.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

KEY = "0" * 40
# fields of artifacts that clients before 0.21 ask for
INPUTS = (
    "entityName projectName runName artifactTypeName artifactCollectionName digest digestAlgorithm description "
    "labels aliases metadata historyStep enableDigestDeduplication distributedID clientID sequenceClientID tags"
)
STATES = {0: "finished", 255: "killed"}  # by exit code; others: failed


class Server(ThreadingHTTPServer):
    """Everything is by run id. runs: variables of UpsertBucket; history: {line number: row}; exits: exit codes; files:
    {name: bytes}; artifacts: what CreateArtifact said, and whether it was committed. changed: (run, line) of lines that
    were sent again with other values. asked: how often each operation came.

    ill: None, or called with the path of a request before it is handled: returns None (healthy), a status such as 500,
    "hang" (no answer until the server is well again), "drop" (the connection is closed), or seconds to wait (float).
    """

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), Handler)
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        self.runs: dict[str, dict[str, Any]] = {}
        self.history: dict[str, dict[int, dict[str, Any]]] = {}
        self.configs: dict[str, dict[str, Any]] = {}
        self.summaries: dict[str, dict[str, Any]] = {}
        self.exits: dict[str, int] = {}
        self.states: dict[str, str] = {}
        self.preempting: set[str] = set()
        self.files: dict[str, dict[str, bytes]] = {}
        self.artifacts: dict[str, dict[str, Any]] = {}
        self.changed: list[tuple[str, int]] = []
        self.asked: Counter[str] = Counter()
        self.ill: Callable[[str], int | float | str | None] | None = None
        self.lock = threading.RLock()

    def rows(self, run: str) -> list[dict[str, Any]]:
        """In the order of their lines, as the server would show them."""
        return [row for _, row in sorted(self.history.get(run, {}).items())]

    def steps(self, run: str) -> list[int]:
        """The optimizer's step of each line."""
        return [row.get("step", row["_step"]) for row in self.rows(run)]

    # ---- what arrives
    def streamed(self, run: str, sent: dict[str, Any]) -> None:
        """A request of the file stream: lines of history, the summary, the run's end."""
        files = sent.get("files") or {}
        history = self.history.setdefault(run, {})
        lines = files.get("wandb-history.jsonl", {"offset": 0, "content": []})
        for number, line in enumerate(lines["content"], lines["offset"]):
            row = json.loads(line)
            if history.get(number, row) != row:
                self.changed.append((run, number))
            history[number] = row
        for line in files.get("wandb-summary.json", {"content": []})["content"]:
            self.summaries[run] = json.loads(line)
        if sent.get("preempting"):
            self.preempting.add(run)
        if sent.get("complete"):
            self.exits[run] = sent["exitcode"]
            preempted = run in self.preempting and sent["exitcode"]
            self.states[run] = "preempted" if preempted else STATES.get(sent["exitcode"], "failed")

    def graphql(self, name: str, given: dict[str, Any], query: str) -> dict[str, Any]:
        """The answer to an operation: its `data`."""
        if name == "UpsertBucket":
            return self._upsert(given)
        if name in ("RunResumeStatus", "ResumeStatus"):
            bucket = self._bucket(given["name"])
            return {"model": {"name": given.get("project"), "id": "p", "entity": {"id": "e", "name": "me"},
                              "bucketLimit": None, "bucket": bucket}}  # fmt: skip
        if name == "CreateRunFiles":
            urls = [{"name": file, "uploadUrl": f"{self.url}/upload/{given['run']}/{file}"} for file in given["files"]]
            return {"createRunFiles": {"runID": "b", "uploadHeaders": [], "files": urls}}
        if "run(name:" in query and "project(name:" in query:  # the public API
            bucket = self._bucket(given.get("name") or given.get("run"))
            files = [{"node": {"id": n, "name": n, "sizeBytes": len(b), "md5": None, "mimetype": None,
                               "updatedAt": None, "url": f"{self.url}/upload/{given.get('name')}/{n}",
                               "directUrl": None}, "cursor": n}
                     for n, b in self.files.get(str(given.get("name")), {}).items()]  # fmt: skip
            page = {"endCursor": "", "hasNextPage": False}
            if bucket is not None:
                bucket |= {"fileCount": len(files), "files": {"edges": files, "pageInfo": page}}
            return {"project": {"internalId": "1", "run": bucket}}
        if "rtifact" in name and (answer := self._artifact(name, given)) is not None:
            return answer
        user = {"id": "u", "name": "me", "entity": "me", "username": "me", "flags": "{}", "teams": {"edges": []},
                "email": "a@b.c", "admin": False, "apiKeys": {"edges": []}, "deletedAt": None}  # fmt: skip
        # for clients before 0.21, which ask what the server knows of
        kinds = {
            "RunType": {"fields": [{"name": "projectId"}]},
            "TypeInfo": {"inputFields": [{"name": n} for n in INPUTS]},
        }
        empty = {"artifact": None, "run": None}
        return {"viewer": user, "serverInfo": {"features": []}, "model": {"bucket": None}, "project": empty, **kinds}

    def _upsert(self, given: dict[str, Any]) -> dict[str, Any]:
        run, new = given["name"], given["name"] not in self.runs
        known = self.runs.setdefault(run, {})
        known |= {key: value for key, value in given.items() if value is not None}
        if given.get("config"):
            self.configs[run] = json.loads(given["config"])
        if given.get("state") != "finished" or new:
            self.states[run] = given.get("state") or "running"
        return {"upsertBucket": {"bucket": self._bucket(run), "inserted": new}}

    def _bucket(self, run: Any) -> dict[str, Any] | None:
        """A run as the server tells of it."""
        known = self.runs.get(str(run))
        if known is None:
            return None
        rows, summary = self.rows(run), self.summaries.get(run, {})
        project = {"id": "p", "name": known.get("project"), "entity": {"id": "e", "name": "me"}}
        return {
            "id": run, "name": run, "displayName": known.get("displayName"), "description": "", "notes": None,
            "projectId": 1, "config": json.dumps(self.configs.get(run, {})), "sweepName": known.get("sweep"),
            "summaryMetrics": json.dumps(summary), "systemMetrics": "{}", "tags": known.get("tags") or [],
            "historyLineCount": len(rows), "logLineCount": 0, "eventsLineCount": 0, "eventsTail": "[]",
            "historyTail": json.dumps([json.dumps(row) for row in rows[-1:]]), "wandbConfig": json.dumps({"t": 1}),
            "state": self.states.get(run, "running"), "group": known.get("groupName"), "jobType": known.get("jobType"),
            "commit": None, "readOnly": False, "createdAt": "2026-01-01T00:00:00", "heartbeatAt": "2026-01-01T00:00:00",
            "historyKeys": {"lastStep": rows[-1]["_step"] if rows else -1, "keys": {}}, "stopped": False,
            "user": {"name": "me", "username": "me"}, "project": project,
        }  # fmt: skip

    def _artifact(self, name: str, given: dict[str, Any]) -> dict[str, Any] | None:
        """Artifacts: made, their files uploaded, committed."""
        if name == "CreateArtifact":
            given = given.get("input", given)
            number = f"a{len(self.artifacts)}"
            self.artifacts[number] = {**given, "state": "PENDING"}
            made = {"id": number, "state": "PENDING", "artifactSequence": {"id": "s", "latestArtifact": None}}
            return {"createArtifact": {"artifact": made}}
        if name == "CommitArtifact":
            self.artifacts[given.get("artifactID", "")]["state"] = "COMMITTED"
            return {"commitArtifact": {"artifact": {"id": given.get("artifactID"), "digest": "d"}}}
        if name in ("CreateArtifactManifest", "UpdateArtifactManifest"):
            file = {"id": "f", "name": "m", "displayName": "m", "uploadUrl": f"{self.url}/upload/manifest/m",
                    "uploadHeaders": []}  # fmt: skip
            key = name[0].lower() + name[1:]
            return {key: {"artifactManifest": {"id": "m", "file": file}}}
        if name == "CreateArtifactFiles":
            nodes = [{"node": {"id": "f", "name": spec["name"], "displayName": spec["name"], "storagePath": None,
                               "uploadUrl": f"{self.url}/upload/artifact/{spec['name']}", "uploadHeaders": [],
                               "uploadMultipartUrls": None, "artifact": {"id": "a0"}}}
                     for spec in given.get("input", given)["artifactFiles"]]  # fmt: skip
            return {"createArtifactFiles": {"files": {"edges": nodes}}}
        if name.startswith("ArtifactByID") and given.get("id") in self.artifacts:
            held = self.artifacts[given["id"]]
            project = {"id": "p", "internalId": "1", "name": "p", "entityName": "me", "entity": {"name": "me"}}
            return {"artifact": {
                "__typename": "Artifact", "id": given["id"], "versionIndex": 0, "description": None, "metadata": "{}",
                "artifactSequence": {"__typename": "ArtifactSequence", "id": "s", "project": project,
                                     "name": held["artifactCollectionName"]},
                "artifactType": {"name": held["artifactTypeName"]}, "ttlDurationSeconds": -1, "ttlIsInherited": True,
                "tags": [], "historyStep": None, "state": held["state"], "size": 1, "digest": held["digest"],
                "digestAlgorithm": "MANIFEST_MD5", "commitHash": None, "fileCount": 1, "aliases": [],
                "createdAt": "2026-01-01T00:00:00", "updatedAt": None, "currentManifest": {"file": {"directUrl": "x"}},
            }}  # fmt: skip
        return None

    def stored(self, path: str, body: bytes) -> None:
        run, _, name = path.partition("/")
        self.files.setdefault(run, {})[name] = body


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def log_message(self, format: str, *args: Any) -> None: ...

    def handle(self) -> None:
        with contextlib.suppress(ConnectionError):  # the client was killed
            super().handle()

    def _body(self) -> bytes:
        if "chunked" in self.headers.get("Transfer-Encoding", ""):
            parts = []
            while size := int(self.rfile.readline(), 16):
                parts.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(parts)
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        return gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body

    def _answer(self, value: Any, status: int = 200) -> None:
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _healthy(self) -> bool:
        """Waits or answers as an ill server does. Returns whether the request is to be handled."""
        how = self.server.ill(self.path) if self.server.ill else None
        while how == "hang":
            time.sleep(0.05)
            how = self.server.ill(self.path) if self.server.ill else "drop"
        if isinstance(how, float):
            time.sleep(how)
        elif isinstance(how, int):
            self._answer({"errors": [{"message": f"status {how}"}], "error": f"status {how}"}, how)
        elif how == "drop":
            self.close_connection = True
        return how is None or isinstance(how, float)

    def do_GET(self) -> None:
        if self._healthy():
            self._answer({})

    def do_PUT(self) -> None:
        body = self._body()
        if self._healthy():
            with self.server.lock:
                self.server.stored(self.path.removeprefix("/upload/"), body)
            self._answer({})

    def do_POST(self) -> None:
        body = self._body()
        if not self._healthy():
            return
        with self.server.lock:
            if self.path.startswith("/graphql"):
                asked = json.loads(body)
                name = re.search(r"(?:query|mutation)\s+(\w+)", asked["query"])
                operation = name[1] if name else ""
                self.server.asked[operation] += 1
                answer: Any = {"data": self.server.graphql(operation, asked.get("variables") or {}, asked["query"])}
            else:
                if stream := re.fullmatch(r"/files/[^/]+/[^/]+/([^/]+)/file_stream", self.path):
                    self.server.streamed(stream[1], json.loads(body))
                answer = {"limits": {}}
        self._answer(answer)


@contextmanager
def serving(kind: Callable[[int], Any] = Server, port: int = 0) -> Iterator[Any]:
    server = kind(port)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    try:
        yield server
    finally:
        server.ill = lambda path: "drop"
        server.shutdown()
        server.server_close()
