"""What a callback may override. A callback observes; what changes the algorithm belongs into loop.py."""

from __future__ import annotations

from typing import Any


class Callback:
    """Called on every rank. `state` is the loop's TrainState, `scores` and `values` hold what was logged."""

    def on_start(self, state: Any) -> None:
        """Before the first step, after a checkpoint was loaded."""

    def on_log(self, state: Any, values: dict[str, float]) -> None:
        """After the training values of a log were written."""

    def on_eval(self, state: Any, scores: dict[str, float]) -> None:
        """After an evaluation."""

    def on_end(self, state: Any) -> None:
        """After the last step; not when the run failed."""
