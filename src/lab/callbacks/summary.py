"""A table of the model's modules, at the start."""

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
from samebits.steps import rng_row, set_rng_row


class Summary(Callback):
    """Modules of the model, and of the task if it has parameters, down to `depth` levels: their output for the first
    micro-batch, parameters, and FLOP of the forward pass. On the screen and in summary.txt. The table is made with
    tensors that have no memory or, of a model that asks for values, with a batch; no bit of the run changes."""

    def __init__(self, depth: Count) -> None:
        self.depth = depth

    def on_start(self, state: Any) -> None:
        run = self.run
        if is_sharded(state.model):
            raise ConfigError("callback=summary: trainer=fsdp has cut the model over the ranks - use trainer=single")
        whole, batch = LossModule(state.model, state.task), run.first_batch()
        samples = len(next(iter(batch.values())))
        rows, failed = [], False
        if run.world.is_main:
            before = rng_row(run.world.device)
            try:
                rows = summarize(whole, batch, call)
            except ConfigError:  # what the first step would say, too
                raise
            except Exception:  # a model or a loss that asks tensors for their values, which these have not
                failed = True
            finally:
                set_rng_row(before, run.world.device)
        if run.world.any(failed):  # on all ranks: losses may talk to the others
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
    assert isinstance(whole, LossModule)
    for name in whole.task.objectives(whole.model):
        whole.name = name
        whole(batch)
