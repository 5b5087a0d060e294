"""Images to arrays (C, H, W), and files in folders: root/[train|val|test/][class/]name."""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from h5rows.errors import ConfigError, first_line
from h5rows.extras import need
from h5rows.importers.base import (
    SPLIT_NAMES,
    Bad,
    BadSample,
    Field,
    Left,
    Rows,
    SampleSource,
    bad,
    printable,
)
from h5rows.importers.folders import leave_hidden, walk
from h5rows.packing.account import Account
from h5rows.packing.options import PackOptions

SUFFIXES = {".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm", ".pbm"}
CHANNELS = {"L": 1, "RGB": 3, "RGBA": 4, "P": 1, "I;16": 1}
AUTO = "auto"
COLOURS = {"1", "L", "LA", "P", "PA", "RGB", "RGBA", "YCbCr"}  # modes whose colours RGB has
ORIENTATION = 0x0112  # the tag of EXIF; 1: upright


class ImageDecoder:
    """Encoded image -> (C, H, W) uint8 (uint16 in mode I;16).

    Mode auto: P, the numbers of the palette, if the first image has one, as masks of classes do (a GIF has to); else
    RGB. `lost` lists what a mode that nobody asked for leaves out.
    """

    def __init__(self, options: PackOptions) -> None:
        self.size, self.crop, self.mode, self.variable = options.size, options.crop, options.mode, options.variable
        self.auto, self.exif = options.mode == AUTO, options.exif
        self.palette: np.ndarray | None = None  # (n, 3) uint8, of the first image of mode P
        self.first: object = None
        self.lost: list[Left] = []
        need("PIL.Image", "reading images", "pillow")
        if self.mode not in (AUTO, *CHANNELS):
            raise ConfigError(f"--mode: {self.mode!r} is none of {', '.join(CHANNELS)}")
        if self.variable and self.size:
            raise ConfigError("--variable keeps each image's own size and --size makes them one: give one of the two")

    def field(self, first: np.ndarray, name: str) -> Field:
        shape = (first.shape[0], None, None) if self.variable else first.shape
        attrs: dict[str, Any] = {"layout": "CHW", "mode": self.mode}
        if self.mode == "P" and self.palette is not None:
            attrs["palette"] = self.palette
        return Field(shape, first.dtype, attrs)

    def __call__(self, data: bytes | str, name: object) -> np.ndarray:
        from PIL import Image

        try:
            if isinstance(data, str):
                with open(data, "rb", buffering=0) as file:  # in one go: Pillow reads a JPEG in some 40 small pieces
                    data = file.read()
            with Image.open(io.BytesIO(data)) as image:
                if lost := more_than_kept(image):
                    raise BadSample(name, lost)
                if self.mode == AUTO:
                    self.mode = "P" if image.mode == "P" and image.format != "GIF" else "RGB"
                image = self._upright(image, name)
                if image.mode != self.mode or self.mode == "P":
                    image = self._convert(image, name)
                if self.size:
                    image = self._resize(image)
                pixels = np.asarray(image)
        except BadSample:
            raise
        except Exception as error:  # Pillow's plugins raise whatever they meet: OSError, SyntaxError, struct.error ...
            raise bad(name, error, reason(error)) from None
        pixels = pixels.astype(np.uint16 if self.mode == "I;16" else np.uint8, copy=False)
        return pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)

    def shape(self, path: str) -> tuple[int, int, int]:
        """(C, H, W) from the file's header, without decoding."""
        from PIL import Image

        try:
            with Image.open(path) as image:
                sides = (image.height, image.width)
                turned = self.exif == "apply" and orientation(image) >= 5
                return (CHANNELS[self.mode], *(sides[::-1] if turned else sides))
        except Exception as error:
            raise bad(path, error, reason(error)) from None

    def _upright(self, image: Any, name: object) -> Any:
        if (turned := orientation(image)) == 1 or self.exif == "ignore":
            return image
        if self.exif == "apply":
            from PIL import ImageOps

            return ImageOps.exif_transpose(image)
        self._leave("EXIF orientations", name, f"{turned}; --exif apply turns the pixels, --exif ignore does not")
        return image

    def _leave(self, kind: str, name: object, why: str) -> None:
        self.lost.append((kind, printable(name), why))

    def _numbers(self, image: Any, name: object) -> Any:
        """Of the palette, or grey values where --mode P says that these are numbers."""
        if image.mode in ("1", "L") and not self.auto:
            return image
        if image.mode != "P":
            remedy = "--mode RGB packs the colours" + "; --mode P the grey values" * (image.mode == "L")
            raise BadSample(name, f"is an image of mode {image.mode}, without a palette; {remedy}")
        palette = palette_of(image)
        if self.palette is None:
            self.palette, self.first = palette, name
        size = min(len(palette), len(self.palette))
        if not np.array_equal(palette[:size, :3], self.palette[:size, :3]):
            if self.auto:
                why = "its numbers are other colours; --mode RGB packs the colours, --mode P the numbers"
                raise BadSample(name, f"has another palette than {self.first}: {why}")
            self._leave("palettes", name, "another one than the first, which the file has")
        return image

    def _convert(self, image: Any, name: object) -> Any:
        if self.mode == "P":
            return self._numbers(image, name)
        deep = image.mode.startswith("I") or image.mode == "F"
        if deep != (self.mode == "I;16") or image.mode == "F":
            remedy = "--mode RGB or L reads it" if not deep else "--mode 'I;16' keeps it"
            remedy = "store such values as .npy" if image.mode == "F" else remedy
            raise BadSample(name, f"is an image of mode {image.mode}, --mode is {self.mode}; {remedy}")
        if self.mode == "I;16":  # I;16B and I hold the same values in other words
            if image.getextrema()[1] > 65535 or image.getextrema()[0] < 0:
                raise BadSample(name, "holds values outside 0..65535; store such values as .npy")
            return image
        if self.auto and image.mode not in COLOURS:
            self._leave("colours", name, f"{image.mode}, made RGB; --mode RGB asks for it")
        was = image
        if "transparency" in image.info or image.mode in ("PA", "LA", "RGBA"):
            image = image.convert("RGBA")
            if self.auto and image.getextrema()[3][0] < 255:
                self._leave("alpha channels", name, "--mode RGBA keeps them, --mode RGB does not")
        made = (image if was.mode == "P" else was).convert(self.mode)
        if self.mode == "L" and was.mode == "P" and not np.array_equal(np.asarray(made), np.asarray(was)):
            self._leave("palette numbers", name, "--mode L packs the brightness of the colours, --mode P the numbers")
        return made

    def _resize(self, image: Any) -> Any:
        from PIL import Image

        height, width = self.size or image.size[::-1]
        between = Image.Resampling.NEAREST if self.mode == "P" else Image.Resampling.BILINEAR  # no number is in between
        if self.crop == "center":  # the shorter side to size, then the middle
            scale = max(height / image.height, width / image.width)
            full = (max(width, round(image.width * scale)), max(height, round(image.height * scale)))
            image = image.resize(full, between) if full != image.size else image
            left, top = (full[0] - width) // 2, (full[1] - height) // 2
            return image.crop((left, top, left + width, top + height))
        return image.resize((width, height), between) if image.size != (width, height) else image


def more_than_kept(image: Any) -> str:
    """What Pillow would leave out of a file without a word: further frames, or half of 16-bit colours."""
    if getattr(image, "is_animated", False) and image.format != "MPO":  # a camera's JPEG with a preview is one image
        return f"holds {image.n_frames} images, and one is read; write each as a file of its own"
    for tile in [] if image.mode.startswith(("I", "F")) else image.tile:
        words = tile[3] if isinstance(tile[3], tuple) else (tile[3],)
        if any(";16" in w if isinstance(w, str) else image.format == "PPM" and w > 255 for w in words if w):
            return "has 16 bits for each colour, and 8 would be kept; store such values as .npy"
    return ""


def orientation(image: Any) -> int:
    """1 to 8; EXIF that cannot be read says nothing."""
    try:
        found = image.getexif().get(ORIENTATION, 1)
    except Exception:  # of Pillow's parser: SyntaxError, struct.error, ValueError ...
        return 1
    return int(found) if found in range(1, 9) else 1


def palette_of(image: Any) -> np.ndarray:
    """(n, 3) uint8, or (n, 4) where some of its colours are transparent."""
    mode = "RGBA" if "transparency" in image.info else "RGB"
    return np.array(image.getpalette(mode), np.uint8).reshape(-1, len(mode))


def reason(error: Exception) -> str:
    first = first_line(error)
    return "is no image that Pillow knows" if "cannot identify" in first else first


class FileSource(SampleSource):
    """One sample per file. decode: path -> value of field `name`. targets: field -> (value per file, attributes)."""

    def __init__(
        self,
        root: Path,
        files: list[str],
        splits: dict[str, Rows],
        name: str,
        decode: Callable[[str, str], np.ndarray],
        make_field: Callable[[np.ndarray, str], Field],
        targets: dict[str, tuple[np.ndarray, dict[str, Any]]],
    ) -> None:
        self.root, self.files, self.splits, self.image, self.decode = root, files, splits, name, decode
        if isinstance(decode, ImageDecoder):
            self.remedy = "; --size makes all one size (--variable keeps each, flat)"
        self.targets = {t: values for t, (values, _) in targets.items()}
        self.fields = {name: make_field(self._first(), name)}
        self.fields |= {t: Field(v.shape[1:], v.dtype, attrs) for t, (v, attrs) in targets.items()}

    def _first(self) -> np.ndarray:
        """The first file that can be read says what all are like; the pack itself names the bad ones."""
        for row, _ in zip(range(len(self.files)), range(100), strict=False):
            try:
                return self.decode(self.path(row), self.files[row])
            except BadSample as error:
                last = error
        raise ConfigError(f"none of the first files of {self.root} can be read; the last: {last}")

    def path(self, row: int) -> str:
        return os.path.join(self.root, self.files[row])

    def name_of(self, row: int) -> str:
        return self.files[row]

    def sample(self, row: int, fields: Sequence[str]) -> dict[str, Any]:
        return {f: self.decode(self.path(row), self.files[row]) for f in fields}

    def read(self, rows: Rows, fields: Sequence[str]) -> tuple[dict[str, Any], list[Bad]]:
        out, bad = super().read(rows, [f for f in fields if f == self.image])
        where = np.delete(np.asarray(rows), [b.place for b in bad])
        return {f: out[f] if f == self.image else self.targets[f][where] for f in fields}, bad

    def lost(self) -> list[Left]:
        return drained([self.decode])

    def measure(self, rows: Rows, name: str) -> np.ndarray:
        if not isinstance(self.decode, ImageDecoder):
            return super().measure(rows, name)
        shapes = np.zeros((len(rows), 3), np.int64)
        for k, row in enumerate(rows):
            with contextlib.suppress(BadSample):  # stays empty here; reading it names it
                shapes[k] = self.decode.shape(self.path(int(row)))
        return shapes

    def identity(self) -> Any:
        names = hashlib.sha256("\0".join(self.files).encode("utf-8", "surrogateescape")).hexdigest()
        targets = {t: hashlib.sha256(v.tobytes()).hexdigest() for t, v in self.targets.items()}
        return {"folder": str(self.root.resolve()), "files": len(self.files), "names": names, "targets": targets}


def drained(decoders: Iterable[Any]) -> list[Left]:
    """What these left out since they were asked last."""
    found = []
    for decode in decoders:
        if isinstance(decode, ImageDecoder):
            found += decode.lost
            decode.lost = []
    return found


def open_files(
    root: Path,
    options: PackOptions,
    suffixes: Collection[str],
    name: str,
    decode: Callable[[str, str], np.ndarray],
    make_field: Callable[[np.ndarray, str], Field],
) -> FileSource:
    """Files in folders, one for each sample, with the folder of its class as `label`. Other kinds are left out."""
    account = Account()
    files: list[str] = []
    labels: list[str] = []
    splits: dict[str, Rows] = {}
    for top, split in split_folders(root, account).items():
        found = list(files_below(root, top, suffixes, options.external, account))
        if not found:
            raise ConfigError(f"{root / top} holds no such files ({' '.join(sorted(suffixes))})")
        splits[split] = range(len(files), len(files) + len(found))
        files += [file for file, _ in found]
        labels += [label for _, label in found]
    classes = sorted(set(labels))
    if "" in classes and len(classes) > 1:
        raise ConfigError(
            f"{root} mixes class folders and files without a class, such as {files[labels.index('')]!r}; move them "
            "into a folder"
        )
    targets: dict[str, tuple[np.ndarray, dict[str, Any]]] = {}
    if classes != [""]:
        numbers = {label: k for k, label in enumerate(classes)}
        targets["label"] = np.array([numbers[label] for label in labels], np.int64), {"classes": classes}
    source = FileSource(root, files, splits, name, decode, make_field, targets)
    source.account = account
    return source


def split_folders(root: Path, account: Account) -> dict[str, str]:
    """{folder in root: split}; {"": ""} where its folders are no splits."""
    try:
        names = sorted(entry.name for entry in os.scandir(root))
        tops = [name for name in names if (root / name).is_dir() and not name.startswith(".")]
    except OSError as error:
        raise ConfigError(f"{root} cannot be read: {error.strerror}") from None
    parts = {top: SPLIT_NAMES[top.lower()] for top in tops if top.lower() in SPLIT_NAMES}
    if not parts:
        return {"": ""}
    if loose := sorted(set(tops) - set(parts)):
        raise ConfigError(
            f"{root} holds the splits {sorted(parts)} and also the folder {loose[0]!r}; move it or name it a split"
        )
    if len(set(parts.values())) < len(parts):
        raise ConfigError(f"{root}: two folders are one split: {parts}; rename one")
    leave_hidden("", names, account)
    for name in names:
        if name not in tops and not name.startswith("."):
            account.leave("files", name, "in the folder of no split")
    return parts


def files_below(
    root: Path, top: str, suffixes: Collection[str], external: str, account: Account
) -> Iterator[tuple[str, str]]:
    """(file relative to root, its class or "") below root/top, sorted."""
    why = f"no {' '.join(sorted(suffixes))}" if len(suffixes) < 4 else "no image"
    for folder, names, found in walk(root / top, external, account, source=root):
        below = os.path.relpath(folder, root / top)
        mine = []
        for name in found:
            path = os.path.normpath(os.path.join(top, below, name))
            if os.path.splitext(name)[1].lower() in suffixes:
                mine.append(path)
            else:
                account.leave("files", path, why)
        if below != "." and not names and not mine:
            raise ConfigError(
                f"folder {os.path.join(root, top, below)} holds no images or samples; fill it or remove it"
            )
        for path in mine:
            yield path, "" if below == "." else below.split(os.sep)[0]


def open_folder(root: Path, options: PackOptions) -> FileSource:
    decoder = ImageDecoder(options)
    return open_files(root, options, SUFFIXES, "image", decoder, decoder.field)
