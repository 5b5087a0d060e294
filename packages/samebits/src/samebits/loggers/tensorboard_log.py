"""Log to TensorBoard: event files in the folder `tensorboard` of the run directory."""

from __future__ import annotations

from typing import Any

import numpy as np
from omegaconf import OmegaConf

from samebits.credentials import redacted
from samebits.loggers.background import Background
from samebits.loggers.media import Media
from samebits.saved import read_config

FOLDER = "tensorboard"


class TensorBoardThread(Background):
    """The thread that logs to TensorBoard. from_step: later events are purged; a resumed run logs them again."""

    title = "TensorBoard"
    _writer: Any

    def _start(self) -> None:
        from torch.utils.tensorboard import SummaryWriter

        purge = self._from_step + 1 if self._from_step else None
        self._writer = SummaryWriter(str(self._directory / FOLDER), purge_step=purge)
        if self._from_step:
            self._again(self._known(), self._from_step)
        else:
            config = OmegaConf.to_yaml(redacted(OmegaConf.to_container(read_config(self._project, self._directory))))
            self._writer.add_text(
                "config", "    " + config.replace("\n", "\n    ")
            )  # an indented code block in Markdown

    def _known(self) -> dict[str, set[int]]:
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        held = EventAccumulator(str(self._directory / FOLDER), size_guidance={"scalars": 0})
        held.Reload()
        return {name: {event.step for event in held.Scalars(name)} for name in held.Tags()["scalars"]}

    def _log(self, step: int, values: dict[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()  # shown immediately, and little is lost if the run is killed

    def _summary(self, values: dict[str, Any]) -> None:
        rows = "\n".join(f"| {name} | {value} |" for name, value in values.items())
        self._writer.add_text("summary", f"| | |\n|---|---|\n{rows}")

    def _show(self, step: int, name: str, media: Media) -> None:
        if media.kind == "image":
            from PIL import Image

            self._writer.add_image(name, np.asarray(Image.open(media.path).convert("RGB")), step, dataformats="HWC")
        elif media.kind == "histogram":
            counts, edges = media.content
            middles = (edges[:-1] + edges[1:]) / 2
            self._writer.add_histogram_raw(
                name, edges[0], edges[-1], counts.sum(), (middles * counts).sum(), (middles**2 * counts).sum(),
                edges[1:].tolist(), counts.tolist(), step,
            )  # fmt: skip
        elif media.kind == "audio":
            import torch

            samples = torch.as_tensor(media.content.samples, dtype=torch.float32)
            mono = samples if samples.ndim == 1 else samples.mean(1)  # TensorBoard supports one channel
            self._writer.add_audio(name, mono[None], step, media.content.rate)
        elif media.kind == "table":
            head = "| " + " | ".join(map(str, media.content.columns)) + " |\n" + "|---" * len(media.content.columns)
            rows = ["| " + " | ".join(map(str, row)) + " |" for row in media.content.rows]
            self._writer.add_text(name, "\n".join([head + "|", *rows]), step)
        elif media.kind == "svg":  # TensorBoard shows none
            self._writer.add_text(name, f"an SVG, which TensorBoard cannot show: `{media.path}`", step)
        else:
            self._writer.add_text(name, media.content, step)

    def _end(self, status: str) -> None:
        self._writer.add_text("status", status)
        self._writer.close()
