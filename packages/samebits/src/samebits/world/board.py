"""Messages between ranks outside of collectives, in the store (the key-value server through which ranks find each
other): a rank failed, a rank is stuck.

    alarm         set together with one of the other keys; each rank reads it twice a second
    failed        the rank whose failure is recorded
    round         number of the current search for a stuck rank; missing: 0
    stuck/ROUND   a line of JSON from each rank with its position; the first line is from a rank without progress
    stack/RANK    the stack trace of that rank

The process of rank 0 or torchrun's agent hosts the store. If that process is stopped or cannot be reached, a call never
returns. Therefore each call is made in a thread, for at most ANSWER_S. Importing this module does not import torch.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from typing import Any

from samebits.errors import ConfigError
from samebits.world.store import connect

ANSWER_S = 1.0  # seconds; the watch thread must send its heartbeat to the parent within its limit and heartbeat.LATE_S
TELL_S = 5.0  # seconds to report a failure: this includes a connection, and c10d may look up the peer's name in DNS
ALARM, FAILED, ROUND, STUCK, STACK = "alarm", "failed", "round", "stuck", "stack"


def tell_failed(rank: int, env: Mapping[str, str]) -> None:
    """Notify all ranks that the failure of this rank is recorded. env: see Board."""

    def tell(store: Any) -> None:
        store.set(FAILED, str(rank))
        store.set(ALARM, "")

    if int(env.get("WORLD_SIZE", "1")) > 1:
        Board(env).ask(tell, None, TELL_S)


class Board:
    """The messages, as seen by one rank. env: the rank's environment variables, from which the store is found."""

    def __init__(self, env: Mapping[str, str]) -> None:
        self.lost = False  # the process that hosts the store has ended
        self._env = env
        self._store: Any = None
        self._asking: threading.Thread | None = None
        self._round, self._stood_in = 0, -1
        self._heard = -1, b""  # number of the round, its reports

    def look(self, rank: int) -> str:
        """Return FAILED if another rank has failed, STUCK if a rank is stuck, otherwise ""."""
        return FAILED if self.lost else self.ask(lambda store: self._look(store, rank), "")

    def _look(self, store: Any, rank: int) -> str:
        if not store.check([ALARM]):
            return ""
        if store.check([FAILED]) and int(store.get(FAILED)) != rank:
            return FAILED
        if store.check([ROUND]):
            self._round = int(store.get(ROUND))
        return STUCK if store.check([f"{STUCK}/{self._round}"]) else ""

    def say_where(self, rank: int, report: dict[str, Any], stack: str) -> None:
        """Report this rank's position once per round. The first report starts the search for the stuck rank."""

        def say(store: Any) -> None:
            store.set(f"{STACK}/{rank}", stack)
            store.append(f"{STUCK}/{self._round}", json.dumps(report) + "\n")
            store.set(ALARM, "")

        if self._stood_in != self._round:
            self.ask(say, None)
            self._stood_in = self._round

    def reports(self) -> list[dict[str, Any]]:
        """Return the reports of this round in any order, as far as the store has answered. A late answer is returned by
        the next call, because with 1,024 ranks it is long and all ranks request it."""
        number = self._round

        def hear(store: Any) -> None:
            self._heard = number, store.get(f"{STUCK}/{number}")

        self.ask(hear, None)
        of_round, lines = self._heard
        return [json.loads(line) for line in lines.splitlines()] if of_round == number else []

    def stack(self, rank: int) -> str:
        """Return the stack trace of a rank that has reported."""
        return self.ask(lambda store: store.get(f"{STACK}/{rank}"), b"").decode()

    def end_round(self) -> None:
        """End the round, because the ranks make progress again."""
        self._round += 1
        self.ask(lambda store: store.set(ROUND, str(self._round)), None)

    def ask(self, call: Callable[[Any], Any], default: Any, wait_s: float = ANSWER_S) -> Any:
        """Return call(store), or `default` if it does not return in time or an earlier call has not returned."""
        if self._asking is not None and self._asking.is_alive():
            return default
        answers = []

        def ask() -> None:
            try:
                if self._store is None:
                    self._store = connect(self._env)
                answers.append(call(self._store))
            except (RuntimeError, ConfigError):  # torch's DistError
                self.lost = True

        self._asking = threading.Thread(target=ask, name="store", daemon=True)
        self._asking.start()
        self._asking.join(wait_s)
        return answers[0] if answers else default
