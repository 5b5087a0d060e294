"""Report each line of code that waits for the device in a step."""

from __future__ import annotations

import traceback
from collections import Counter
from contextlib import ExitStack
from typing import Any

from lab.callbacks.base import Callback
from samebits.profiling import observe_waits


class NameWaits(Callback):
    """Record each operation of a step that reads a value from the device (such as .item()), and log its line and count
    at the end of the run. It works on any device, also on a CPU. Code of data sets is excluded, because it runs on the
    host."""

    def __init__(self) -> None:
        self.found: Counter[tuple[str, int, str]] = Counter()
        self.step = ExitStack()

    def before_step(self, state: Any) -> None:
        """Start observing the step."""
        self.step.enter_context(observe_waits(self._note))

    def on_step(self, state: Any) -> None:
        """Stop observing the step."""
        self.step.close()

    def _note(self, what: str, file: str, line: int) -> None:
        stack = traceback.walk_stack(None)
        if not any("/samebits/data/" in frame.f_code.co_filename for frame, _ in stack):
            self.found[file, line, what] += 1

    def on_end(self, state: Any, scores: dict[str, float]) -> None:
        """Log the lines that wait."""
        for (file, line, what), count in sorted(self.found.items()):
            self.run.logger.say(f"{file}:{line}: {what} waits for the device, {count} times in {state.step} steps")
        if not self.found:
            self.run.logger.say(f"no line waited for the device in {state.step} steps")
