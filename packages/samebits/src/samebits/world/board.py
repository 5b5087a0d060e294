"""What ranks tell each other beside collectives, in the store of the rendezvous: "I failed", "I am stuck here".

    alarm         set with either of the others: each rank looks for it, one message twice a second
    failed        the rank whose failure is on record
    round         number of the current search for a stuck rank; absent: 0
    stuck/ROUND   a line of JSON from each rank: where it stands. The first is of one that does not move
    stack/RANK    the stack to it

Rank 0's process or torchrun's agent holds the store. It may be stopped, or out of reach, and then a call never returns:
so each is made in a thread, and not waited for after ANSWER_S. Importing this imports no torch.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from typing import Any

from samebits.errors import ConfigError
from samebits.world.store import connect

ANSWER_S = 1.0  # a parent hears from the watch thread within its limit and heartbeat.LATE_S, so no longer
TELL_S = 5.0  # for a failure to be told: a connection is made, and c10d may ask DNS for the peer's name in vain
ALARM, FAILED, ROUND, STUCK, STACK = "alarm", "failed", "round", "stuck", "stack"


def tell_failed(rank: int, env: Mapping[str, str]) -> None:
    """Tell all ranks that the failure of this one is on record. env: as a Board's."""

    def tell(store: Any) -> None:
        store.set(FAILED, str(rank))
        store.set(ALARM, "")

    if int(env.get("WORLD_SIZE", "1")) > 1:
        Board(env).ask(tell, None, TELL_S)


class Board:
    """One rank's view. env: a rank's environment variables, by which the store is found."""

    def __init__(self, env: Mapping[str, str]) -> None:
        self.lost = False  # whoever holds the store has ended
        self._env = env
        self._store: Any = None
        self._asking: threading.Thread | None = None
        self._round, self._stood_in = 0, -1
        self._heard = -1, b""  # round, its reports

    def look(self, rank: int) -> str:
        """Whether another rank than this one has FAILED, or a rank is STUCK; else nothing."""
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
        """Report once in a round where this rank stands; the first report begins the round's search."""

        def say(store: Any) -> None:
            store.set(f"{STACK}/{rank}", stack)
            store.append(f"{STUCK}/{self._round}", json.dumps(report) + "\n")
            store.set(ALARM, "")

        if self._stood_in != self._round:
            self._stood_in = self._round
            self.ask(say, None)

    def reports(self) -> list[dict[str, Any]]:
        """What ranks have reported in this round, in no order, as far as the store has answered. A late answer counts
        at the next call: of 1,024 ranks it is long, and all of them ask."""
        number = self._round

        def hear(store: Any) -> None:
            self._heard = number, store.get(f"{STUCK}/{number}")

        self.ask(hear, None)
        of_round, lines = self._heard
        return [json.loads(line) for line in lines.splitlines()] if of_round == number else []

    def stack(self, rank: int) -> str:
        """Of a rank that has reported."""
        return self.ask(lambda store: store.get(f"{STACK}/{rank}"), b"").decode()

    def end_round(self) -> None:
        """The ranks move after all."""
        self._round += 1
        self.ask(lambda store: store.set(ROUND, str(self._round)), None)

    def ask(self, call: Callable[[Any], Any], default: Any, wait_s: float = ANSWER_S) -> Any:
        """call(store); `default` if there is no answer in time, or one to an earlier call is still missing."""
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
