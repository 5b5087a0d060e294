"""Print a table of the model's modules at the start of the run."""

from __future__ import annotations

from typing import Any

from lab.callbacks.base import Callback
from lab.callbacks.first_batch import losses_of_objectives, with_first_batch
from samebits.files import replace_text
from samebits.profiling import summarize, summary_table
from samebits.schema import Count


class Summary(Callback):
    """Print a table of the model's modules, and of the task's modules with parameters, and write it to summary.txt:
    output shape for the first micro-batch, parameters, and FLOP of the forward pass. depth: levels of modules.

    The model is run on the meta device, or with a real batch if it reads values of tensors. Results of the run do not
    change.
    """

    def __init__(self, depth: Count) -> None:
        self.depth = depth

    def on_start(self, state: Any) -> None:
        """Make the table. Raise ConfigError if the model is sharded."""
        run, samples = self.run, 0

        def summary(loss_module: Any, batch: Any, meta: bool) -> Any:
            nonlocal samples
            samples = len(next(iter(batch.values())))
            return summarize(loss_module, batch, losses_of_objectives, meta)

        rows = with_first_batch(state, run, "callback=summary", summary)
        if rows is None:
            return
        listed = [r for r in rows if r.name.startswith("model") or (r.parameters and r.name.startswith("task"))]
        total = rows[0]
        text = (
            f"{summary_table(listed, samples, self.depth)}\n"
            f"{total.parameters:,} parameters, {total.trained:,} trained; with a micro-batch of {samples} samples"
        )
        replace_text(run.directory / "summary.txt", f"{text}\n")
        run.logger.say(text)
