"""Name each line of a step that waits for the device."""

from __future__ import annotations

import traceback
from collections import Counter
from contextlib import ExitStack
from typing import Any

from lab.callbacks.base import Callback
from samebits.profiling import observe_waits


class NameWaits(Callback):
    """Notices what asks the device for a value in a step, on any device; says at the end which line, and how often. The
    data set's own code is not meant, as it runs on the host."""

    def __init__(self) -> None:
        self.found: Counter[tuple[str, int, str]] = Counter()
        self.step = ExitStack()

    def before_step(self, state: Any) -> None:
        self.step.enter_context(observe_waits(self._note))

    def on_step(self, state: Any) -> None:
        self.step.close()

    def _note(self, what: str, file: str, line: int) -> None:
        stack = traceback.walk_stack(None)
        if not any("/samebits/data/" in frame.f_code.co_filename for frame, _ in stack):
            self.found[file, line, what] += 1

    def on_end(self, state: Any, scores: dict[str, float]) -> None:
        for (file, line, what), count in sorted(self.found.items()):
            self.run.logger.say(f"{file}:{line}: {what} waits for the device, {count} times in {state.step} steps")
        if not self.found:
            self.run.logger.say(f"nothing has waited for the device in {state.step} steps")
