"""Log to TensorBoard: event files in the folder `tensorboard` of the run directory."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

import numpy as np
from omegaconf import OmegaConf

from samebits.credentials import redacted
from samebits.files import as_json
from samebits.loggers.background import Background
from samebits.loggers.media import Media
from samebits.project import Project
from samebits.saved import NEVER_COMPARED, flat, read_config, read_overrides

FOLDER = "tensorboard"


class TensorBoardThread(Background):
    """The thread that logs to TensorBoard. from_step: later events are purged; a resumed run logs them again."""

    title = "TensorBoard"
    _writer: Any
    _step = 0  # the last logged step

    def _start(self) -> None:
        from torch.utils.tensorboard import SummaryWriter

        purge = self._from_step + 1 if self._from_step else None
        is_new = not any((self._directory / FOLDER).glob("events*"))
        self._writer = SummaryWriter(str(self._directory / FOLDER), purge_step=purge)
        if is_new:  # TensorBoard uses only the first ones of a run
            self._hparams(session_start_info=hparams(self._project, self._directory))
        if self._from_step:
            self._again(self._known(), self._from_step)
        else:
            config = OmegaConf.to_yaml(redacted(OmegaConf.to_container(read_config(self._project, self._directory))))
            # an indented code block in Markdown
            self._writer.add_text("config", "    " + config.replace("\n", "\n    "))

    def _hparams(self, **content: Any) -> None:
        """Write data of TensorBoard's HParams plugin. No experiment is declared, because TensorBoard would apply the
        first one to all runs; it collects the hyperparameters and scores of all runs itself."""
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.plugins.hparams import metadata, plugin_data_pb2

        (name,) = content
        tag = {"session_start_info": metadata.SESSION_START_INFO_TAG, "session_end_info": metadata.SESSION_END_INFO_TAG}
        data = metadata.create_summary_metadata(plugin_data_pb2.HParamsPluginData(**content))
        self._writer.file_writer.add_summary(Summary(value=[Summary.Value(tag=tag[name], metadata=data)]))
        self._writer.flush()

    def _known(self) -> dict[str, set[int]]:
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        held = EventAccumulator(str(self._directory / FOLDER), size_guidance={"scalars": 0})
        held.Reload()
        return {name: {event.step for event in held.Scalars(name)} for name in held.Tags()["scalars"]}

    def _log(self, step: int, values: dict[str, float]) -> None:
        self._step = max(self._step, step)
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()  # shown immediately, and little is lost if the run is killed

    def _summary(self, values: dict[str, Any]) -> None:
        for name, value in values.items():
            if name.startswith("final/") and isinstance(value, (int, float)):  # a column of the HParams tab
                self._writer.add_scalar(name, value, max(self._step, self._from_step))
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
        if status in ("finished", "pruned"):  # another run resumes, and TensorBoard uses only the first end
            from tensorboard.plugins.hparams import api_pb2, plugin_data_pb2

            end = plugin_data_pb2.SessionEndInfo(status=api_pb2.STATUS_SUCCESS, end_time_secs=time.time())
            self._hparams(session_end_info=end)
        self._writer.close()


def hparams(project: Project, run_dir: Path) -> Any:
    """Return a SessionStartInfo with the seed and the overrides of a run, except those that do not change results."""
    from tensorboard.plugins.hparams import plugin_data_pb2

    info = plugin_data_pb2.SessionStartInfo(start_time_secs=time.time())
    values = flat(redacted(OmegaConf.to_container(read_config(project, run_dir))))
    given = [text.lstrip("+").partition("=") for text in redacted(read_overrides(project, run_dir)) if "=" in text]
    for key, _, text in [("seed", "", ""), *given]:
        if re.split(r"[./@]", key)[0] in (*NEVER_COMPARED, *project.neutral_groups, "name") or key.startswith("~"):
            continue
        value = values.get(key, text.strip("'\""))  # an option of a group has only its text
        if isinstance(value, bool):
            info.hparams[key].bool_value = value
        elif isinstance(value, (int, float)):
            info.hparams[key].number_value = value
        else:
            info.hparams[key].string_value = value if isinstance(value, str) else as_json(value)
    return info
