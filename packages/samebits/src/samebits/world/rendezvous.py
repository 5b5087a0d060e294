"""Rendezvous of processes started by torchrun, srun or pods: agree on the run directory.

rank 0, or host 0:   config -> directory -> publish ------------.              .-- all see it: start
the others:          await_directory ---------------------------`-- answers --`--- one does not: all stop
"""

from __future__ import annotations

import json
import math
import os
import platform
import secrets
import signal
import sys
import threading
import time
from collections.abc import Callable
from concurrent import futures
from contextlib import suppress
from pathlib import Path
from threading import Event, Thread
from typing import Any

from samebits import early_signals
from samebits.errors import MISTAKE, Cancelled, ConfigError, RunFailed
from samebits.files import read_text, replace_text
from samebits.signals import heeded_signals, held_signals
from samebits.world.cluster import ClusterRole, cluster_role
from samebits.world.environment import dist_env
from samebits.world.store import START_TIMEOUT_S, forget_store, store

DIRECTORY, VERDICT, LEFT, TOKEN = "run_directory", "verdict", "left", ".meeting"
RELEASE_S = 60.0  # seconds that rank 0 waits until the others have read that nothing will run
HEAR_S = 5.0  # seconds that rank 0 waits until the others have read the decision not to run
VISIBLE_S = 30.0  # seconds until a shared file system shows a new file
SAY_S, SAY_AGAIN_S = 10.0, 60.0  # until a waiting process prints for whom it waits, and between repetitions
POLL_S = 0.05
LISTED = 8  # maximum number of processes in a message
MEETING = "meeting"  # name of the threads that wait for other processes


class Wait:
    """A wait for other processes of the run, in a thread, because a native call blocks signals.

    awaited: text for messages, updated by the waiting function. The function must return when `over` is set.
    """

    def __init__(self, awaited: str) -> None:
        self.awaited, self.over = awaited, Event()

    def until(self, condition: Callable[[], bool]) -> None:
        """Wait until the condition is true or `over` is set."""
        while not condition():
            if self.over.wait(POLL_S):
                raise RuntimeError("the wait is over")

    def run(self, function: Callable[[], Any], limit_s: float, heeds: bool = True) -> Any:
        """Return function(). Raise Cancelled after a stop signal and TimeoutError after limit_s. Call it in the main
        thread.

        heeds: False if another process of this run handles signals and prints messages.
        """
        done: futures.Future[Any] = futures.Future()

        def work() -> None:
            try:
                done.set_result(function())
            except BaseException as error:
                done.set_exception(error)

        began, say_s = time.monotonic(), SAY_S
        with held_signals():  # the thread inherits the blocked signals
            thread = Thread(target=work, name=MEETING, daemon=True)
            thread.start()
            try:
                while not futures.wait([done], POLL_S).done:
                    if heeds and (asked := _asked()):
                        raise Cancelled(f"{asked}: stopped before the run began, while waiting for {self.awaited}")
                    passed_s = time.monotonic() - began
                    if heeds and passed_s > say_s:  # first: after a pause of this process both times may have passed
                        print(f"waiting for {self.awaited} since {passed_s:.0f} s", file=sys.stderr)
                        say_s += SAY_AGAIN_S
                    if passed_s > limit_s:
                        raise TimeoutError
                thread.join()  # it has its result; until it ends, `is_waiting` is true
            finally:
                self.over.set()
        return done.result()


def _verdict(wait: Wait) -> str:
    wait.until(lambda: store().check([VERDICT]))
    return store().get(VERDICT).decode()


def _at_most(seconds: float, function: Callable[[], Any]) -> Any:
    """Return function(), or None if it has not ended in time, or has no store."""
    found: list[Any] = []

    def work() -> None:
        with suppress(ConfigError):  # there is no store, which the caller reports
            found.append(function())

    thread = Thread(target=work, name=MEETING, daemon=True)
    thread.start()
    thread.join(seconds)
    return found[0] if found else None


def _asked() -> str:
    """Return the name of a stop signal that is pending (it is consumed) or was noted before, otherwise ""."""
    pending = signal.sigpending()
    for number in heeded_signals():
        if number in pending:
            signal.sigwait([number])
            return number.name
    return early_signals.asked()


class Rendezvous:
    """The part of this process in the rendezvous. A plain process has no others: it does not follow, nobody follows
    it."""

    def __init__(self) -> None:
        self._published = False

    def follows(self) -> bool:
        """Return True if another process, rank 0 or host 0, composes the config and chooses the run directory."""
        here = cluster_role()
        return here is not None and here.index > 0 and bool(self.followers())

    def followers(self) -> list[int]:
        """Return the indices of the ranks, or hosts, that wait for rank 0's directory."""
        if "LAB_STORE" in os.environ:
            return []
        return list(range(1, int(os.environ.get("LAB_HOSTS", dist_env.size or dist_env.hosts))))

    def publish(self, directory: Path, timeout_s: float | None) -> None:
        """Publish the run directory as rank 0, and wait for the answers of the followers, at most timeout_s if given.

        Raise ConfigError if a follower does not connect, cannot see the directory or has another number of processes.
        """
        token = secrets.token_hex(8)
        replace_text(directory / TOKEN, token)
        self._published = True
        limit_s = min(START_TIMEOUT_S, timeout_s or math.inf)
        value = {
            "directory": str(directory), "token": token, "local_ranks": dist_env.local_size,
            "count": len(self.followers()) + 1,
        }  # fmt: skip
        answers: dict[int, str] = {}
        try:
            self._ask(value, answers, limit_s)
            if problem := next((text for text in answers.values() if text != "ok"), ""):
                raise ConfigError(problem)
        except ConfigError as error:
            status = error.status if isinstance(error, Cancelled) else MISTAKE
            _at_most(HEAR_S, lambda: self._publish_verdict(str(status), list(answers)))
            raise
        finally:
            (directory / TOKEN).unlink()
        store().set(VERDICT, "go")

    def _publish_verdict(self, verdict: str, hear: list[int]) -> None:
        """Publish the decision. Wait until the followers in `hear` have read it, because the store ends afterwards."""
        store().set(VERDICT, verdict)
        Wait("").until(lambda: store().check([f"heard/{index}" for index in hear]))

    def is_waiting(self) -> bool:
        """Return True if a thread still waits for other processes, perhaps in a native call, although the wait is
        over."""
        return any(thread.name == MEETING for thread in threading.enumerate())

    def leave_to_ranks(self) -> None:
        """Leave the publication to rank 0, which this process will start."""
        self._published = True

    def release(self) -> None:
        """Make the followers end if rank 0 ends without having published a directory."""
        if self.followers() and not self._published:
            status = Cancelled(early_signals.asked()).status if early_signals.asked() else MISTAKE
            with suppress(ConfigError):
                self._ask({"directory": None, "status": status}, {}, HEAR_S if early_signals.asked() else RELEASE_S)

    def _ask(self, value: dict[str, Any], answers: dict[int, str], limit_s: float) -> None:
        """Publish `value` and wait until all followers have answered, or one has reported a problem. Raise ConfigError
        if they have not connected after limit_s."""
        here, followers = cluster_role(), self.followers()
        assert here is not None
        kind = "host" if "LAB_HOSTS" in os.environ else here.kind
        at = f"MASTER_ADDR={here.address} MASTER_PORT={here.port}"

        def missing() -> str:
            names = [str(index) for index in followers if index not in answers]
            more = f" and {len(names) - LISTED} more" if len(names) > LISTED else ""
            return f"{kind} {', '.join(names[:LISTED])}{more}"

        def answered() -> bool:
            meeting_point = store()
            for index in followers:
                if index not in answers and meeting_point.check([f"answer/{index}"]):
                    answers[index] = meeting_point.get(f"answer/{index}").decode()
            if meeting_point.check([LEFT]):
                raise Cancelled(meeting_point.get(LEFT).decode())
            wait.awaited = f"{missing()} of {len(followers) + 1} at {at}"
            return len(answers) == len(followers) or any(text != "ok" for text in answers.values())

        def ask() -> None:
            store().set(DIRECTORY, json.dumps(value))
            wait.until(answered)

        wait = Wait(f"{missing()} of {len(followers) + 1} at {at}")
        try:
            wait.run(ask, limit_s)
        except TimeoutError:
            late = len(followers) - len(answers)
            raise ConfigError(
                f"{at}: {late} of {len(followers) + 1} processes did not connect within {limit_s:.0f} s: {missing()}"
            ) from None

    def await_directory(self, timeout_s: float | None = None) -> tuple[Path, int] | int:
        """Return (rank 0's run directory, ranks per host), or an exit status if nothing will run; rank 0 prints the
        reason.

        Raise ConfigError if rank 0 does not connect in time, the connection breaks, or it has another number of
        processes."""
        limit_s = min(START_TIMEOUT_S, timeout_s or math.inf)
        here = cluster_role()
        assert here is not None
        at = f"MASTER_ADDR={here.address} MASTER_PORT={here.port}"
        wait = Wait(nobody := f"rank 0 at {at}")
        begins: list[tuple[Path, int]] = []  # set when this process has answered

        def meet() -> tuple[Path, int] | int:
            meeting_point = store()
            wait.awaited = f"rank 0 at {at} to choose the run directory"
            wait.until(lambda: meeting_point.check([DIRECTORY]))
            value = json.loads(meeting_point.get(DIRECTORY))
            if value["directory"] is None:
                meeting_point.set(f"answer/{here.index}", "ok")
                return int(value["status"])
            answer = self._answer(here, value)
            meeting_point.set(f"answer/{here.index}", answer)
            if value["count"] != here.count:
                raise ConfigError(answer)
            begins.append((Path(value["directory"]), value["local_ranks"]))
            wait.awaited = f"rank 0 at {at}, which waits for the others"
            verdict = _verdict(wait)
            meeting_point.set(f"heard/{here.index}", "")
            return begins[0] if verdict == "go" else int(verdict)

        def leave() -> str:
            store().set(LEFT, f"{asked} (sent to {here.kind} {here.index} on {platform.node()})")
            return _verdict(Wait("")) if begins else ""

        try:
            found: tuple[Path, int] | int = wait.run(meet, limit_s)
        except TimeoutError:
            raise ConfigError(
                f"{at}: rank 0 did not connect within {limit_s:.0f} s: waited for {wait.awaited}"
            ) from None
        except Cancelled as error:
            asked = str(error)
            if wait.awaited == nobody or _at_most(HEAR_S, leave) != "go":
                raise
            found = begins[0]  # rank 0 has already started; all ranks stop after the first step
            signal.raise_signal(signal.Signals[asked.partition(":")[0]])
        except RuntimeError as error:  # DistError: the connection broke
            why = str(error).partition("\n")[0]
            raise ConfigError(f"{at}: rank 0 cannot be reached, or has ended: {why}") from None
        if here.kind == "host":
            forget_store()
        return found

    def await_verdict(self) -> None:
        """Wait, in a rank that a host process started, until rank 0 has announced that all processes are connected."""
        wait = Wait("rank 0, which waits for the other hosts")
        if wait.run(lambda: _verdict(wait), math.inf, heeds=False) != "go":
            raise RunFailed("rank 0 ended before the run started")

    def _answer(self, here: ClusterRole, value: dict[str, Any]) -> str:
        """Return this process's answer to the published value: ok, or a problem."""
        name = f"{here.kind} {here.index} on {platform.node()}"
        if value["count"] != here.count:
            return (
                f"rank 0 is one of {value['count']} processes, {name} one of {here.count}: start all with the same "
                "number (WORLD_SIZE, PET_NNODES)"
            )
        if not _sees(Path(value["directory"]), value["token"]):
            return (
                f"hydra.run.dir={value['directory']}: {name} does not see what rank 0 has written there - choose a "
                "directory on a file system that all hosts share"
            )
        return "ok"


run_rendezvous = Rendezvous()


def _sees(directory: Path, token: str) -> bool:
    """Return True if this is rank 0's directory and not another one of the same name. NFS may show a new file late."""
    end = time.monotonic() + VISIBLE_S
    while True:
        with suppress(OSError):
            os.listdir(directory)  # makes an NFS client refresh the directory
            if read_text(directory / TOKEN) == token:
                return True
        if time.monotonic() > end:
            return False
        time.sleep(0.1)
