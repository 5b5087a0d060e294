"""Print a table of the model's modules at the start of the run."""

from __future__ import annotations

from typing import Any

from torch import nn

from lab.callbacks.base import Callback
from lab.objective import LossModule
from lab.rehearsal import as_before
from samebits.errors import ConfigError
from samebits.files import replace_text
from samebits.profiling import summarize, summary_table
from samebits.schema import Count
from samebits.shards import is_sharded
from samebits.steps import rng_bytes, set_rng_bytes


class Summary(Callback):
    """Print the modules of the model, and those of the task that have parameters, and write them to summary.txt: output
    shape for the first micro-batch, number of parameters, and FLOP of the forward pass. depth: levels of modules.

    The model is run on the meta device, or with a real batch if it reads values of tensors. Results of the run do not
    change.
    """

    def __init__(self, depth: Count) -> None:
        self.depth = depth

    def on_start(self, state: Any) -> None:
        """Make the table. Raise ConfigError if the model is sharded."""
        run = self.run
        if is_sharded(state.model):
            raise ConfigError(
                "callback=summary: does not support trainer=fsdp, which shards the model - use trainer=single"
            )
        whole, batch = LossModule(state.model, state.task), run.first_batch()
        samples = len(next(iter(batch.values())))
        rows, failed = [], False
        if run.world.is_main:
            before = rng_bytes(run.world.device)
            try:
                rows = summarize(whole, batch, call)
            except ConfigError:  # the first step would raise it too
                raise
            except Exception:  # the model or the loss reads values, which meta tensors do not have
                failed = True
            finally:
                set_rng_bytes(before, run.world.device)
        if run.world.any(failed):  # on all ranks, because losses may use collectives
            with as_before(state, run), run.hardware.autocast():
                rows = summarize(whole, batch, call, meta=False)
        if not run.world.is_main:
            return
        listed = [r for r in rows if r.name.startswith("model") or (r.parameters and r.name.startswith("task"))]
        total = rows[0]
        text = (
            f"{summary_table(listed, samples, self.depth)}\n"
            f"{total.parameters:,} parameters, {total.trained:,} trained; with a micro-batch of {samples} samples"
        )
        replace_text(run.directory / "summary.txt", f"{text}\n")
        run.logger.say(text)


def call(whole: nn.Module, batch: Any) -> None:
    """Run the forward pass of all objectives."""
    assert isinstance(whole, LossModule)
    for name in whole.task.objectives(whole.model):
        whole.name = name
        whole(batch)
