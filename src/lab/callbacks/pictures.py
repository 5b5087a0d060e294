"""Log images of the first validation samples with the model's predictions, at each evaluation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from lab.callbacks.base import Callback
from lab.evaluation import generate_samples
from lab.tasks.base import overrides
from samebits.errors import ConfigError
from samebits.extras import check_installed
from samebits.schema import Count
from samebits.status import class_names


class Pictures(Callback):
    """Log the results of Task.show and Task.sample or, if the task has neither, a figure of images with their predicted
    classes. They are saved to media/<name>/ and the loggers.

    count: number of samples, from the first batch of rank 0. field: images (B, C, H, W). target: labels (B,), shown if
    the prediction is wrong. The figure requires an output of scores (B, classes), and matplotlib.
    """

    def __init__(self, count: Count, field: str, target: str, name: str) -> None:
        self.count, self.field, self.target, self.name = count, field, target, name
        self.kept: Mapping[str, Any] | None = None

    def on_start(self, state: Any) -> None:
        """Raise ConfigError if matplotlib is missing."""
        check_installed("matplotlib", "callback=pictures", "report")  # not after hours of training
        self.task = state.task

    def on_eval_batch(self, output: Any, batch: Any) -> None:
        """Keep the images of the first batch, on the main rank."""
        if self.kept is None and self.run.world.is_main:
            shown = self.task.show(output, batch, self.count)
            if shown is None and not overrides(self.task, "sample"):
                self.kept = {self.name: self.predicted(output, batch)}
            else:
                self.kept = {f"val/{name}": value for name, value in (shown or {}).items()}

    def on_rehearsal(self, output: Any, batch: Any) -> None:
        """Raise the errors of an evaluation; keep nothing."""
        self.on_eval_batch(output, batch)
        self.kept = None

    def on_eval(self, state: Any, scores: dict[str, float]) -> None:
        """Log the images."""
        kept = dict(self.kept or {})
        if overrides(self.task, "sample"):
            samples = generate_samples(state, self.run, self.count)
            kept |= {f"val/{name}": value for name, value in samples.items()}
        for name, value in kept.items():
            self.run.logger.show(state.step, name, value)
        self.kept = None

    def predicted(self, output: Any, batch: Any) -> Any:
        """Return the matplotlib figure. Raise ConfigError if the batch or the output has another shape."""
        for key, field in (("field", self.field), ("target", self.target)):
            if field not in batch:
                raise ConfigError(f"callback.pictures.{key}={field}: the batch has {', '.join(batch)}")
        images = batch[self.field]
        if images.ndim != 4 or not isinstance(output, Tensor) or output.ndim != 2:
            raise ConfigError(
                f"callback=pictures: expected images (B, C, H, W) in {self.field} and outputs (B, classes), got "
                f"{tuple(images.shape)} and {tuple(output.shape) if isinstance(output, Tensor) else type(output)} - "
                "override `show` in the task, or remove the callback"
            )
        from matplotlib.figure import Figure

        shown = [part[: self.count].float().cpu() for part in (images, output.argmax(1), batch[self.target])]
        names = class_names(self.run.directory, self.target)
        figure = Figure(figsize=(1.2 * len(shown[0]), 1.6))
        axes = figure.subplots(1, len(shown[0]), squeeze=False)[0]
        for axis, image, said, label in zip(axes, *shown):
            low, high = image.min(), image.max()  # normalized images can have any range
            picture = ((image - low) / (high - low + 1e-12)).permute(1, 2, 0)
            axis.imshow(picture[..., 0] if picture.shape[2] == 1 else picture[..., :3], cmap="gray")
            said, label = (names[int(k)] if names else int(k) for k in (said, label))
            axis.set_title(f"{said}" if said == label else f"{said}, is {label}", fontsize=8,
                           color="black" if said == label else "firebrick")  # fmt: skip
            axis.axis("off")
        return figure
