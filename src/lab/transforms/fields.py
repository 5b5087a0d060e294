"""Transforms of whole batches on the device. Random numbers are a pure function of (seed, sample id).

A transform is `(batch, sample_ids) -> batch`; sample_ids: (B,) int64, on the device of the batch. Transforms with
`random = True` are not used in evaluations. `field` is one field or a list: all fields of a list (an image and its
mask) get the same random numbers. Two transforms with the same class and seed get the same random numbers too: use
different seeds to make them independent. Images are (B, C, H, W).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal

import torch
from torch import Tensor

from lab.transforms.spec import dtype_name
from samebits.data import SampleRNG
from samebits.errors import ConfigError
from samebits.schema import Count, NotNegativeInt, Positive, Share

Batch = dict[str, Tensor]
Transform = Callable[[Batch, Tensor], Batch]


def compose(transforms: Iterable[Transform], training: bool) -> Transform | None:
    """Return the transforms as one transform; None if there are none. training: False to exclude the random ones."""
    chosen = [t for t in transforms if training or not getattr(t, "random", False)]

    def apply(batch: Batch, sample_ids: Tensor) -> Batch:
        for transform in chosen:
            batch = transform(batch, sample_ids)
        return batch

    return apply if chosen else None


def field_of(batch: Batch, field: str, argument: str) -> Tensor:
    """Return a field of the batch. Raise ConfigError if it is missing. argument: such as FillMissing.field."""
    if field not in batch:
        raise ConfigError(f"data.transforms: {argument}={field!r}; the batch has {sorted(batch)}")
    return batch[field]


class OnDevices:
    """A constant tensor that is copied once to each device that uses it, because trainer=dp has a thread for each
    GPU."""

    def __init__(self, value: Tensor) -> None:
        self._value, self._copies = value, {value.device: value}

    def on(self, device: torch.device) -> Tensor:
        """Return the constant on this device."""
        if device not in self._copies:
            self._copies[device] = self._value.to(device)
        return self._copies[device]


class _PerField:
    """The base class: `prepare` draws random numbers once per batch, `apply` transforms each field with them."""

    dims: tuple[int, ...] = ()  # allowed numbers of dimensions, including the batch's; empty: any
    one_size = False  # True: all fields must have the same height and width, because a crop is computed from the first

    def __init__(self, field: str | Sequence[str]) -> None:
        self.fields = [field] if isinstance(field, str) else list(field)

    def __call__(self, batch: Batch, sample_ids: Tensor) -> Batch:
        """Return the batch with transformed fields. Raise ConfigError if a field is missing or has another shape."""
        name = type(self).__name__
        for field in self.fields:
            x = field_of(batch, field, f"{name}.field")
            if self.dims and x.ndim not in self.dims:
                raise ConfigError(
                    f"data.transforms: {name} requires images (B, C, H, W), but field={field!r} is {tuple(x.shape)}"
                )
        sizes = [tuple(batch[field].shape[-2:]) for field in self.fields] if self.one_size else []
        if len(set(sizes)) > 1:
            raise ConfigError(
                f"data.transforms: {name}.field={self.fields}: their sizes are {sizes} pixels, but "
                "must be equal, because all get the same crop - resize them before it, or use other fields"
            )
        drawn = self.prepare(batch[self.fields[0]], sample_ids)
        return {**batch, **{field: self.apply(batch[field], drawn) for field in self.fields}}

    def prepare(self, x: Tensor, sample_ids: Tensor) -> Tensor:
        """Return the random numbers of the batch. x: the first field."""
        return sample_ids

    def apply(self, x: Tensor, drawn: Tensor) -> Tensor:
        """Return the transformed field."""
        raise NotImplementedError


KEPT = "their values are kept"


class ToFloat(_PerField):
    """Convert the field to float32. Pixels are divided by the largest value of their dtype (uint8: 255), other values
    are not.

    pixels: which fields contain pixels. "images": uint8 and uint16 with two or more dimensions per sample. "integers":
    all integers of 8 and 16 bits, as in runs before this option; ConfigError for wider integers.
    """

    random = False

    def __init__(self, field: str | Sequence[str], pixels: Literal["images", "integers"] = "integers") -> None:
        super().__init__(field)
        self.pixels = pixels

    def apply(self, x: Tensor, drawn: Tensor) -> Tensor:
        """Return x as float32. Raise ConfigError for complex values and, if pixels=integers, wide integers."""
        if x.is_floating_point() or x.dtype == torch.bool:
            return x.float()
        if x.is_complex():
            raise ConfigError(
                f"data.transforms: ToFloat.field={self.fields[0]!r} is {dtype_name(x.dtype)}: float32 "
                "would lose the imaginary parts - use your own transform, e.g. with torch.view_as_real, or remove "
                "this one, ~data.transforms.to_float"
            )
        if self.pixels == "images" and not (x.dtype in (torch.uint8, torch.uint16) and x.ndim > 2):
            return x.float()
        if x.dtype.itemsize > 2:
            raise ConfigError(
                f"data.transforms: ToFloat.field={self.fields[0]!r} is {dtype_name(x.dtype)}, not a type of pixels: "
                "divided by the largest number of this type, the values would be almost 0 - use "
                "lab.transforms.fields.Cast, which keeps the values"
            )
        return x.float().div_(torch.iinfo(x.dtype).max)  # in place: a third less time for large images

    def describe(self, spec: Mapping[str, tuple[tuple[int, ...], torch.dtype]]) -> list[str]:
        """Return a line for each field of integers or float64 that describes its conversion. spec: {field: (shape of a
        sample, dtype)}."""
        lines = []
        for field in self.fields:
            shape, dtype = spec.get(field, ((), torch.float32))
            if dtype == torch.float64:
                lines.append(f"{field}: float64 -> float32, rounded to 7 digits (data.transforms.to_float)")
            if not dtype.is_floating_point and dtype != torch.bool:
                divided = self.pixels != "images" or (dtype in (torch.uint8, torch.uint16) and len(shape) > 1)
                rounded = ", but rounded above 2**24" * (dtype.itemsize > 2)
                what = f"divided by {torch.iinfo(dtype).max}" if divided else f"{KEPT}{rounded}"
                lines.append(f"{field}: {dtype_name(dtype)} -> float32, {what} (data.transforms.to_float)")
        return lines


class Cast(_PerField):
    """Convert the field to float32 without scaling: for counts and measurements of any dtype."""

    random = False

    def apply(self, x: Tensor, drawn: Tensor) -> Tensor:
        """Return x as float32."""
        return x.float()


class ChannelsFirst(_PerField):
    """Change (B, H, W, C) to (B, C, H, W), as a view. Put it before all other transforms, and set data.input_shape."""

    random = False

    def apply(self, x: Tensor, drawn: Tensor) -> Tensor:
        """Return x as (B, C, H, W). Raise ConfigError unless it has four dimensions."""
        if x.ndim != 4:
            raise ConfigError(f"data.transforms: ChannelsFirst requires (B, H, W, C), got {tuple(x.shape)}")
        return x.permute(0, 3, 1, 2)


AUTO = "auto"


class Normalize(_PerField):
    """Compute (x - mean) / std. mean, std: one number per channel, or one for all; auto: the statistics of the training
    rows, which a run computes and saves (lab.statistics).

    dim: dimension of the channels in a batch; null: mean and std are for all values. auto: 1, as in (B, C, ...); if
    mean or std is auto, see docs/transforms.md.
    """

    random = False

    def __init__(
        self,
        field: str | Sequence[str],
        mean: Sequence[float] | Literal["auto"],
        std: Sequence[Positive] | Literal["auto"],
        dim: int | Literal["auto"] | None = "auto",
    ) -> None:
        super().__init__(field)
        self._dim = dim if isinstance(dim, int) else 1
        self._numbers: OnDevices | None = None
        if isinstance(mean, str) or isinstance(std, str):
            return
        if not mean or len(mean) != len(std) or min(std) <= 0:
            raise ConfigError(
                f"data.transforms: Normalize needs as many std > 0 as mean, got mean={list(mean)} std={list(std)}"
            )
        if dim is None and len(mean) > 1:
            raise ConfigError(f"data.transforms: Normalize.dim=null needs one mean and std, got {len(mean)}")
        exact = torch.tensor([list(mean), list(std)], dtype=torch.float64)
        # float64 fields, such as times, may have a mean whose rounding error in float32 is larger than their std
        self._numbers, self._exact = OnDevices(exact.float()), OnDevices(exact)

    def apply(self, x: Tensor, drawn: Tensor) -> Tensor:
        """Return the normalized values. Raise ConfigError if dtype or channels do not fit."""
        if self._numbers is None:
            raise ConfigError("data.transforms: Normalize.mean=auto: only a run computes it - give numbers here")
        if not x.is_floating_point():
            raise ConfigError(f"data.transforms: Normalize got {x.dtype}; put ToFloat before it")
        mean, std = (self._exact if x.dtype == torch.float64 else self._numbers).on(x.device)
        if len(mean) == 1:
            return (x - mean) / std
        channels, dims, at = len(mean), max(2, x.ndim), self._dim
        if not (0 < at < dims or -dims < at < 0):
            raise ConfigError(f"data.transforms: Normalize.dim={at}: the batch has the shape {tuple(x.shape)}")
        given = x.shape[at] if x.ndim > 1 else 1
        if channels != given:
            raise ConfigError(f"data.transforms: Normalize has {channels} means for {given} channels")
        shape = [channels if axis == at % dims else 1 for axis in range(x.ndim)]
        return (x - mean.view(shape)) / std.view(shape)


class RandomFlip(_PerField):
    """Mirror each sample with probability 0.5 along `dim` (-1: left and right, -2: top and bottom)."""

    random = True

    def __init__(self, field: str | Sequence[str], dim: int, seed: int) -> None:
        super().__init__(field)
        if dim == 0:
            raise ValueError("dim must not be 0, the batch dimension; -1 is left and right, -2 top and bottom")
        self._dim, self._draws = dim, SampleRNG(seed, f"RandomFlip{dim}")

    def prepare(self, x: Tensor, sample_ids: Tensor) -> Tensor:
        """Return True for samples to mirror, (B,)."""
        return self._draws.below(sample_ids, (2,))[:, 0].bool()

    def apply(self, x: Tensor, drawn: Tensor) -> Tensor:
        """Return the samples, mirrored if drawn."""
        if not 1 - x.ndim <= self._dim < x.ndim:
            raise ConfigError(f"data.transforms: RandomFlip.dim={self._dim}: the batch has the shape {tuple(x.shape)}")
        signed = x.view(torch.int16) if x.dtype == torch.uint16 else x  # torch cannot flip uint16, such as label maps
        return torch.where(drawn.view(-1, *[1] * (x.ndim - 1)), signed.flip(self._dim), signed).view(x.dtype)


class RandomCrop(_PerField):
    """Crop a window of `size` (H, W) at a random position, after padding the image with `padding` pixels per side.

    padding_mode: constant pads with zeros, reflect mirrors the image at its edge (floating point only).
    """

    random = True
    dims = (3, 4)
    one_size = True

    def __init__(
        self,
        field: str | Sequence[str],
        size: Sequence[Count],
        padding: NotNegativeInt,
        seed: int,
        padding_mode: Literal["constant", "reflect"] = "constant",
    ) -> None:
        super().__init__(field)
        if len(size) != 2:
            raise ValueError(f"size must be [height, width], got {list(size)}")
        self._mode = padding_mode
        self._height, self._width = size
        self._padding, self._draws = padding, SampleRNG(seed, "RandomCrop")

    def prepare(self, x: Tensor, sample_ids: Tensor) -> Tensor:
        """Return top and left of the windows, (B, 2). Raise ConfigError if the image is too small."""
        places = tuple(
            n + 2 * self._padding - m + 1 for n, m in zip(x.shape[-2:], (self._height, self._width), strict=True)
        )
        if min(places) < 1:
            raise ConfigError(
                f"data.transforms: RandomCrop.size={[self._height, self._width]} is larger than the image "
                f"{list(x.shape[-2:])} with padding={self._padding}"
            )
        return self._draws.below(sample_ids, places)

    def apply(self, x: Tensor, drawn: Tensor) -> Tensor:
        """Return the windows."""
        if x.ndim == 3:  # (B, H, W): one channel
            return self.apply(x.unsqueeze(1), drawn).squeeze(1)
        if self._mode == "reflect" and not (x.is_floating_point() and self._padding < min(x.shape[-2:])):
            raise ConfigError(
                "data.transforms: RandomCrop.padding_mode=reflect requires floats (after ToFloat) with sides larger "
                f"than padding={self._padding}, got {x.dtype} of {list(x.shape[-2:])} - or use padding_mode=constant"
            )
        padded = torch.nn.functional.pad(x, [self._padding] * 4, self._mode)
        windows = padded.unfold(2, self._height, 1).unfold(3, self._width, 1)  # a view of every window of every sample
        return windows[torch.arange(len(x), device=x.device), :, drawn[:, 0], drawn[:, 1]]


class _Rectangle(_PerField):
    """The base class: fill a rectangle of each image. drawn: (B, 4) int64 top, left, bottom, right."""

    random = True
    dims = (4,)
    _value = 0.0

    def apply(self, x: Tensor, drawn: Tensor) -> Tensor:
        """Return the images with filled rectangles."""
        top, left, bottom, right = drawn.view(-1, 4, 1).unbind(1)
        y, across = (torch.arange(n, device=x.device) for n in x.shape[-2:])
        inside = ((y >= top) & (y < bottom))[:, None, :, None] & ((across >= left) & (across < right))[:, None, None, :]
        return x.masked_fill(inside, self._value)


class Cutout(_Rectangle):
    """Cutout (DeVries & Taylor 2017): set a square of side `size` around a random pixel to `value`; it is clipped at
    the border."""

    def __init__(self, field: str | Sequence[str], size: Count, value: float, seed: int) -> None:
        super().__init__(field)
        self._size, self._value, self._draws = size, value, SampleRNG(seed, "Cutout")

    def prepare(self, x: Tensor, sample_ids: Tensor) -> Tensor:
        """Return the squares, (B, 4)."""
        begin = self._draws.below(sample_ids, (x.shape[-2], x.shape[-1])) - self._size // 2
        return torch.cat([begin, begin + self._size], 1)


class RandomErase(_Rectangle):
    """Random erasing (Zhong et al. 2020): set a random rectangle to `value` with `probability`.

    area: [low, high], fraction of the image's area. ratio: [low, high] of height / width.
    """

    def __init__(
        self,
        field: str | Sequence[str],
        probability: Share,
        area: Sequence[Share],
        ratio: Sequence[Positive],
        value: float,
        seed: int,
    ) -> None:
        super().__init__(field)
        if not (len(area) == len(ratio) == 2 and 0 < area[0] <= area[1] and ratio[0] <= ratio[1]):
            raise ConfigError(
                f"data.transforms: RandomErase needs area and ratio as [low, high], got area={list(area)}, "
                f"ratio={list(ratio)}"
            )
        self._probability, self._area, self._ratio = probability, list(area), [math.log(r) for r in ratio]
        self._value, self._draws = value, SampleRNG(seed, "RandomErase")

    def prepare(self, x: Tensor, sample_ids: Tensor) -> Tensor:
        """Return the rectangles, (B, 4); empty ones with 1 - probability."""
        height, width = x.shape[-2:]
        erased, area, ratio, y, left = self._draws.uniform(sample_ids, 5).unbind(1)
        area = (self._area[0] + area * (self._area[1] - self._area[0])) * (height * width)
        ratio = torch.exp(self._ratio[0] + ratio * (self._ratio[1] - self._ratio[0]))
        rows = (area * ratio).sqrt().round().clamp(1, height)
        columns = (area / ratio).sqrt().round().clamp(1, width)
        top, left = (y * (height - rows + 1)).floor(), (left * (width - columns + 1)).floor()
        rows = rows * (erased < self._probability)
        return torch.stack([top, left, top + rows, left + columns], 1).long()
