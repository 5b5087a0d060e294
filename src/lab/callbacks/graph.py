"""Draw the model at the start of the run: its modules, and the operations of autograd."""

from __future__ import annotations

from typing import Any

from lab.callbacks.base import Callback
from lab.callbacks.first_batch import losses_of_objectives, with_first_batch
from samebits.loggers import Svg
from samebits.profiling import autograd_svg, forward_graph, module_svg
from samebits.schema import Count
from samebits.status import shown


class Graph(Callback):
    """Log two kinds of pictures and save them in media/graph: `modules` shows the calls of modules with the shapes of
    their outputs, `autograd` the operations of the backward pass with the parameters.

    depth: levels of modules that are drawn; deeper ones are part of their parent. autograd: False draws only the
    modules. The forward pass of the first micro-batch is run on the meta device, or with a real batch if the model
    reads values of tensors. Results of the run do not change.
    """

    def __init__(self, depth: Count, autograd: bool) -> None:
        self.depth, self.autograd = depth, autograd

    def on_start(self, state: Any) -> None:
        """Draw the pictures of a new run. Raise ConfigError if the model is sharded, or too large for a picture."""
        if state.step:  # the run has them
            return
        run = self.run

        def pictures(loss_module: Any, batch: Any, meta: bool) -> dict[str, str | None]:
            # names of modules begin with model. or task.: one level more
            graph, losses, names = forward_graph(loss_module, batch, losses_of_objectives, self.depth + 1, meta)
            samples = len(next(iter(batch.values())))
            title = f"{type(state.model).__name__}, {type(state.task).__name__}, a micro-batch of {samples} samples"
            drawn: dict[str, str | None] = {"modules": module_svg(graph, title)}
            for name, loss in losses.items() if self.autograd else ():
                objective = name.removesuffix("loss").strip()
                file = f"autograd_{objective}" if objective else "autograd"
                drawn[file] = autograd_svg(loss, names, f"{title}: gradients of the {name}")
            return drawn

        for name, text in (with_first_batch(state, run, "callback=graph", pictures) or {}).items():
            if text is None:
                run.logger.warn(f"callback=graph: no picture {name}, because the loss has no gradient")
                continue
            run.logger.show(state.step, f"graph/{name}", Svg(text))
            run.logger.say(f"graph: {shown(run.directory / f'media/graph/{name}/{state.step:08d}.svg')}")
