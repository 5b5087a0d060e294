"""Save images, figures, histograms, audio, text and tables that a run logs as files of the run.

Files: media/<name>/<step>.png .svg .csv .wav .txt. Each adds a line to metrics.jsonl: {"step": ..., "media": {name:
kind}}
"""

from __future__ import annotations

import csv
import io
import re
import wave
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from samebits.errors import ConfigError, CorruptFileError
from samebits.extras import need
from samebits.files import read_text, replacing

FOLDER = "media"
# by kind
SUFFIXES = {"image": ".png", "svg": ".svg", "histogram": ".csv", "table": ".csv", "audio": ".wav", "text": ".txt"}
NAME = re.compile(r"[\w.-]+(/[\w.-]+)*")


@dataclass(frozen=True)
class Histogram:
    """A histogram of `values`, of any shape; NaN and inf are ignored."""

    values: Any
    bins: int = 64


@dataclass(frozen=True)
class Audio:
    """samples: (T,) or (T, channels), floats in [-1, 1]. rate: samples per second."""

    samples: Any
    rate: int


@dataclass(frozen=True)
class Table:
    """A table: names of the columns, and rows of as many values."""

    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]


@dataclass(frozen=True)
class Svg:
    """A drawing. text: the content of an SVG file."""

    text: str


@dataclass(frozen=True)
class Media:
    """A saved object for the logging libraries. kind: image, svg, histogram, audio, text or table. path: its file in
    the run directory."""

    kind: str
    path: Path
    content: Any = field(repr=False)


def grid(images: Any, columns: int = 8) -> Any:
    """Arrange images in a grid.

    images: tensor (N, C, H, W), C 1 or 3. Return (C, rows * H, columns * W); cells without an image are 0. Raise
    ConfigError for another shape.
    """
    if images.ndim != 4 or images.shape[1] not in (1, 3):
        raise ConfigError(f"grid: expected images (N, 1 or 3, H, W), got {tuple(images.shape)}")
    n, c, h, w = images.shape
    rows = -(-n // columns)
    places = images.new_zeros(rows * columns, c, h, w)
    places[:n] = images
    return places.view(rows, columns, c, h, w).permute(2, 0, 3, 1, 4).reshape(c, rows * h, columns * w)


def save(run_dir: Path, step: int, name: str, value: Any) -> Media:
    """Write `value` into the run directory.

    value: a matplotlib figure; an image (H, W), (H, W, 3) or (3, H, W), uint8 or floats in [0, 1], array or tensor; a
    text; an Svg, Histogram, Audio or Table. Raise ConfigError for another type or shape, or an invalid name.
    """
    if not NAME.fullmatch(name) or ".." in name:
        raise ConfigError(f"show({name!r}): the name must consist of letters, digits, - _ . and /, e.g. val/samples")
    kind, text = "image", None
    content: Any = None
    if isinstance(value, str):
        kind, text, content = "text", value, value
    elif isinstance(value, Svg):
        kind, text, content = "svg", value.text, value
    elif isinstance(value, Table):
        kind, text, content = "table", csv_text([list(value.columns), *value.rows]), value
    elif isinstance(value, Histogram):
        values = _array(value.values).ravel()
        counts, edges = np.histogram(values[np.isfinite(values)], value.bins)
        rows = [["from", "to", "count"], *zip(edges[:-1].tolist(), edges[1:].tolist(), counts.tolist())]
        kind, text, content = "histogram", csv_text(rows), (counts, edges)
    elif isinstance(value, Audio):
        kind, content = "audio", value
    path = media_file(run_dir, step, name, kind)
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as file:
        if text is not None:
            file.write(text.encode())
        elif isinstance(value, Audio):
            _write_wav(file, value)
        elif hasattr(value, "savefig"):
            value.savefig(file, format="png", dpi=120, bbox_inches="tight")
        else:
            _write_png(file, _array(value), name)
    return Media(kind, path, content)


def media_file(run_dir: Path, step: int, name: str, kind: str) -> Path:
    """Return the path that `save` writes to. Raise CorruptFileError for a name that `save` refuses, because
    metrics.jsonl may come from an untrusted source."""
    if not NAME.fullmatch(name) or ".." in name or kind not in SUFFIXES:
        raise CorruptFileError(f"{run_dir}: not a valid name of an image: {name!r}, {kind!r}")
    return run_dir / FOLDER / name / f"{step:08d}{SUFFIXES[kind]}"


def read_table(path: Path) -> tuple[list[str], list[list[Any]]]:
    """Return (heads, rows) of a saved table or histogram. Cells that are numbers are converted to int or float."""
    heads, *rows = csv.reader(io.StringIO(read_text(path)))
    return heads, [[_number(cell) for cell in row] for row in rows]


def _number(text: str) -> Any:
    for kind in (int, float):
        with suppress(ValueError):
            return kind(text)
    return text


def _array(value: Any) -> np.ndarray:
    """Convert a tensor on any device, or anything that NumPy accepts, to an array."""
    if hasattr(value, "detach"):
        value = value.detach().float().cpu() if value.is_floating_point() else value.detach().cpu()
    return np.asarray(value)


def csv_text(rows: Sequence[Sequence[Any]]) -> str:
    """Return the rows as lines of a csv file."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


def _write_png(file: BinaryIO, image: np.ndarray, name: str) -> None:
    Image = need("PIL.Image", f"show({name!r}): writing an image", "pillow", "images")
    given = f"{image.dtype} {image.shape}"
    if image.ndim == 3 and image.shape[0] in (1, 3) and image.shape[2] not in (1, 3):
        image = image.transpose(1, 2, 0)
    if image.ndim == 3 and image.shape[2] == 1:
        image = image[..., 0]
    if image.dtype.kind == "f":
        image = (np.nan_to_num(image).clip(0, 1) * 255).round().astype(np.uint8)
    if image.dtype != np.uint8 or not (image.ndim == 2 or (image.ndim == 3 and image.shape[2] == 3)):
        raise ConfigError(
            f"show({name!r}): {given} is not an image: give (H, W), (H, W, 3) or (3, H, W), uint8 or floats in [0, 1], "
            "a matplotlib figure, a text, or an Svg, Histogram, Audio or Table of "
            "samebits.loggers"
        )
    Image.fromarray(image).save(file, "PNG")


def _write_wav(target: BinaryIO, audio: Audio) -> None:
    samples = _array(audio.samples)
    if samples.ndim not in (1, 2):
        raise ConfigError(f"Audio: samples must be (T,) or (T, channels), got {samples.shape}")
    with wave.open(target, "wb") as file:
        file.setnchannels(1 if samples.ndim == 1 else samples.shape[1])
        file.setsampwidth(2)
        file.setframerate(audio.rate)
        file.writeframes((np.nan_to_num(samples).clip(-1, 1) * 32767).astype("<i2").tobytes())
