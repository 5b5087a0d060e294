"""Decode images to arrays (C, H, W). An image that would lose information by the mode raises BadSample."""

from __future__ import annotations

import io
from typing import Any

import numpy as np

from h5rows.errors import ConfigError, first_line, need
from h5rows.options import PackOptions
from h5rows.source import BadSample, Field, bad

SUFFIXES = {".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm", ".pbm"}
AUTO = "auto"
COLOURS = {"1", "L", "LA", "P", "PA", "RGB", "RGBA", "YCbCr"}  # modes whose colors RGB can represent
ORIENTATION = 0x0112  # EXIF tag; value 1: upright


class ImageDecoder:
    """Decode an image to (C, H, W) uint8, or uint16 in mode I;16.

    Mode auto: P (palette indices) if the first image has a palette, as class masks do, and is not a GIF; otherwise RGB.
    """

    def __init__(self, options: PackOptions) -> None:
        self.size, self.crop, self.mode, self.variable = options.size, options.crop, options.mode, options.variable
        self.auto, self.exif = options.mode == AUTO, options.exif
        self.palette: np.ndarray | None = None  # (n, 3) uint8, of the first image of mode P
        self.first: object = None
        self.gray: tuple[str, object] | None = None  # mode and name of the first gray image, with mode P
        need("PIL.Image", "reading images", "pillow")
        if self.variable and self.size:
            raise ConfigError("variable=True keeps the size of each image, but size= resizes them: remove one of them")

    def field(self, first: np.ndarray, name: str) -> Field:
        """Return the field for images like `first`, with layout, mode and palette as attributes."""
        shape = (first.shape[0], None, None) if self.variable else first.shape
        attrs: dict[str, Any] = {"layout": "CHW", "mode": self.mode}
        if self.mode == "P" and self.palette is not None:
            attrs["palette"] = self.palette
        return Field(shape, first.dtype, attrs)

    def __call__(self, data: bytes | str, name: object) -> np.ndarray:
        """Decode bytes or the file at a path. name: of the sample. Raise BadSample if it cannot be decoded."""
        from PIL import Image

        try:
            if isinstance(data, str):
                with open(data, "rb", buffering=0) as file:  # at once: Pillow reads a JPEG in about 40 small pieces
                    data = file.read()
            with Image.open(io.BytesIO(data)) as image:
                if lost := more_than_kept(image):
                    raise BadSample(name, lost)
                if self.mode == AUTO:
                    self.mode = "P" if image.mode == "P" and image.format != "GIF" else "RGB"
                image = self._upright(image, name)
                if self.mode == "P":
                    self._check_palette(image, name)
                elif image.mode != self.mode:
                    image = self._convert(image, name)
                pixels = np.asarray(self._resize(image) if self.size else image)
        except BadSample:
            raise
        except Exception as error:  # Pillow's plugins raise OSError, SyntaxError, struct.error ...
            why = first_line(error)
            raise bad(
                name, error, "is not an image that Pillow can read" if "cannot identify" in why else why
            ) from None
        pixels = pixels.astype(np.uint16 if self.mode == "I;16" else np.uint8, copy=False)
        return pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)

    def _upright(self, image: Any, name: object) -> Any:
        if self.exif == "ignore" or (turned := orientation(image)) == 1:
            return image
        if self.exif != "apply":
            why = f"has the EXIF orientation {turned}; exif='apply' rotates the pixels, exif='ignore' does not"
            raise BadSample(name, why)
        from PIL import ImageOps

        return ImageOps.exif_transpose(image)

    def _check_palette(self, image: Any, name: object) -> None:
        """Raise BadSample if the image has no palette, or another one. With --mode P gray values count as indices."""
        if image.mode in ("1", "L") and not self.auto:
            self.gray = self.gray or (image.mode, name)
            if image.mode != self.gray[0]:
                why = f"but {self.gray[1]} is {self.gray[0]}; white is 1 in mode 1, 255 in mode L: save all in one mode"
                raise BadSample(name, f"is an image of mode {image.mode}, {why}")
            return
        if image.mode != "P":
            remedy = "mode='RGB' packs the colors" + "; mode='P' the gray values" * (image.mode == "L")
            raise BadSample(name, f"is an image of mode {image.mode}, without a palette; {remedy}")
        palette = palette_of(image)
        if self.palette is None:
            self.palette, self.first = palette, name
        size = min(len(palette), len(self.palette))
        if self.auto and not np.array_equal(palette[:size, :3], self.palette[:size, :3]):
            why = "its indices mean other colors; mode='RGB' packs the colors, mode='P' the indices"
            raise BadSample(name, f"has another palette than {self.first}: {why}")

    def _convert(self, image: Any, name: object) -> Any:
        deep = image.mode.startswith("I") or image.mode == "F"
        if deep != (self.mode == "I;16") or image.mode == "F":
            remedy = "mode='RGB' or L reads it" if not deep else "mode='I;16' keeps it"
            remedy = "store such values as .npy" if image.mode == "F" else remedy
            raise BadSample(name, f"is an image of mode {image.mode}, but mode={self.mode!r} is set; {remedy}")
        if self.mode == "I;16":  # I;16B and I have the same values in another encoding
            if image.getextrema()[1] > 65535 or image.getextrema()[0] < 0:
                raise BadSample(name, "has values outside 0..65535; store such values as .npy")
            return image
        if self.auto and image.mode not in COLOURS:
            raise BadSample(name, f"has the colors {image.mode}; mode='RGB' converts them")
        alpha = "transparency" in image.info or image.mode in ("PA", "LA", "RGBA")
        if self.auto and alpha and image.convert("RGBA").getextrema()[3][0] < 255:
            raise BadSample(name, "has an alpha channel; mode='RGBA' keeps it, mode='RGB' does not")
        through = "RGBA" if image.mode == "P" and alpha else image.mode  # as a warning of Pillow recommends
        return image.convert(through).convert(self.mode)

    def _resize(self, image: Any) -> Any:
        from PIL import Image, ImageOps

        height, width = self.size or image.size[::-1]
        # indices cannot be interpolated
        between = Image.Resampling.NEAREST if self.mode == "P" else Image.Resampling.BILINEAR
        if self.crop == "center":  # resize the shorter side, then crop the center
            return ImageOps.fit(image, (width, height), between)
        return image.resize((width, height), between) if image.size != (width, height) else image


def more_than_kept(image: Any) -> str:
    """Return what Pillow would silently lose, further frames or half of 16-bit colors; "" if nothing."""
    if getattr(image, "is_animated", False) and image.format != "MPO":  # MPO: a camera's JPEG with a preview
        return f"contains {image.n_frames} images, but only one is read; write each to a separate file"
    for tile in [] if image.mode.startswith(("I", "F")) else image.tile:
        words = tile[3] if isinstance(tile[3], tuple) else (tile[3],)
        if any(";16" in w if isinstance(w, str) else image.format == "PPM" and w > 255 for w in words if w):
            return "has 16 bits per color, but only 8 would be kept; store such values as .npy"
    return ""


def orientation(image: Any) -> int:
    """Return the EXIF orientation, 1 to 8; 1 (upright) if EXIF is missing or cannot be read."""
    try:
        found = image.getexif().get(ORIENTATION, 1)
    except Exception:  # Pillow's parser raises SyntaxError, struct.error, ValueError ...
        return 1
    return int(found) if found in range(1, 9) else 1


def palette_of(image: Any) -> np.ndarray:
    """Return the palette, (n, 3) uint8, or (n, 4) if some of its colors are transparent."""
    mode = "RGBA" if "transparency" in image.info else "RGB"
    return np.array(image.getpalette(mode), np.uint8).reshape(-1, len(mode))
