"""Rendezvous of processes that torchrun, srun or pods started, on one machine or several: agree on the run directory.

rank 0, or host 0:   config -> directory -> publish ------------.              .-- all see it: go
the others:          await_directory ---------------------------`-- answers --`--- one does not: all stop
"""

from __future__ import annotations

import json
import os
import platform
import secrets
import time
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

from engine.errors import ConfigError
from engine.files import read_text, replace_text
from engine.world.cluster import cluster_role
from engine.world.environment import place
from engine.world.store import START_TIMEOUT_S, forget_store, store

DIRECTORY, TOKEN = "run_directory", ".meeting"
RELEASE_S = 60.0  # how long rank 0 waits for the others to read that nothing will run
HEAR_S = 5.0  # how long rank 0 waits for the others to read the verdict "stop"
VISIBLE_S = 30.0  # longest delay until a shared file system shows a new file


class Rendezvous:
    """What this process has to do with it. A plain process is alone: it follows nobody, and nobody follows it."""

    def __init__(self) -> None:
        self._published = False

    def follows(self) -> bool:
        """Whether rank 0 or host 0, another process, composes the config and chooses the run directory."""
        here = cluster_role()
        return here is not None and here.index > 0 and bool(self.followers())

    def followers(self) -> list[int]:
        """Indices of the ranks, or hosts, that wait for rank 0's directory."""
        if "LAB_STORE" in os.environ:
            return []
        return list(range(1, int(os.environ.get("LAB_HOSTS", place.size or place.hosts))))

    def publish(self, directory: Path) -> None:
        """Rank 0 publishes the run directory to the followers and waits for their answers.

        ConfigError if one of them cannot see it.
        """
        token = secrets.token_hex(8)
        replace_text(directory / TOKEN, token)
        self._published = True
        value = {"directory": str(directory), "token": token, "local_ranks": place.local_size}
        problems = self._publish(value, START_TIMEOUT_S)
        (directory / TOKEN).unlink()
        store().set("verdict", "stop" if problems else "go")
        if problems:
            with suppress(RuntimeError):  # the store lives in this process: let the others read first
                store().wait([f"heard/{index}" for index in self.followers()], timedelta(seconds=HEAR_S))
            raise ConfigError(f"hydra.run.dir={directory}: {problems[0]}")

    def leave_to_ranks(self) -> None:
        """This process will start rank 0, which publishes the directory in its place."""
        self._published = True

    def release(self) -> None:
        """Called when rank 0 ends: if it has published no directory, tell the followers to end too."""
        if self.followers() and not self._published:
            self._publish({"directory": None}, RELEASE_S)

    def _publish(self, value: dict[str, Any], timeout_s: float) -> list[str]:
        """Publish `value` to all followers and wait up to timeout_s for answers; returns the problems they report."""
        meeting_point, keys = store(), [f"answer/{index}" for index in self.followers()]
        meeting_point.set(DIRECTORY, json.dumps(value))
        try:
            meeting_point.wait(keys, timedelta(seconds=timeout_s))
        except RuntimeError:  # DistStoreError, a timeout
            missing = [key for key in keys if not meeting_point.check([key])]
            late = f"{len(missing)} of {len(keys) + 1} processes have not come within {timeout_s:.0f} s"
            return [f"{late}: {missing[:8]}"]
        return [text for key in keys if (text := meeting_point.get(key).decode()) != "ok"]

    def await_directory(self) -> tuple[Path, int] | None:
        """(rank 0's run directory, ranks per host); None: nothing will run, and rank 0 has printed why.

        ConfigError if rank 0 does not come in time, or its connection breaks.
        """
        here = cluster_role()
        assert here is not None
        try:
            meeting_point, wait = store(), timedelta(seconds=START_TIMEOUT_S)
            meeting_point.wait([DIRECTORY], wait)
            value = json.loads(meeting_point.get(DIRECTORY))
            if value["directory"] is None:
                meeting_point.set(f"answer/{here.index}", "ok")
                return None
            directory, problem = Path(value["directory"]), "ok"
            if not _sees(directory, value["token"]):
                problem = f"{here.kind} {here.index} on {platform.node()} does not see what rank 0 has written there"
                problem += " - choose a directory on a file system that all hosts share"
            meeting_point.set(f"answer/{here.index}", problem)
            meeting_point.wait(["verdict"], wait)
            go = meeting_point.get("verdict") == b"go"
            meeting_point.set(f"heard/{here.index}", "")
        except RuntimeError as error:  # DistError: a timeout, a connection that broke
            why = str(error).partition("\n")[0]
            raise ConfigError(f"MASTER_ADDR={here.address}: rank 0 is not there, or no more: {why}") from None
        if here.kind == "host":
            forget_store()
        return (directory, value["local_ranks"]) if go else None


meeting = Rendezvous()


def _sees(directory: Path, token: str) -> bool:
    """Whether this is rank 0's directory and not another of the same name; NFS may show a new file late."""
    end = time.monotonic() + VISIBLE_S
    while True:
        with suppress(OSError):
            os.listdir(directory)  # makes an NFS client look again
            if read_text(directory / TOKEN) == token:
                return True
        if time.monotonic() > end:
            return False
        time.sleep(0.1)
