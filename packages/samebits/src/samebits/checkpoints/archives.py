"""Write small tensors as torch.save does, without a call of torch.save for each.

torch.save holds the GIL for 0.1 ms or more per tensor, however small, and the training loop waits. The archives of two
tensors with the same dtype, shape and strides differ only in the data, their CRC-32, and an id that torch computes from
the CRC-32 of all records. So one archive serves as a form, in which these are replaced. Each form is tested: filled
with the data of a second archive it must be equal to it. If it is not, e.g. with a later version of torch, torch.save
writes the tensors.
"""

from __future__ import annotations

import functools
import io
import re
import zipfile
import zlib
from typing import IO, Any

import torch
from torch import Tensor

from samebits.checkpoints.background import is_plain

LARGEST = 1 << 20  # bytes; to write more takes longer than the call of torch.save


def write_tensor(value: Tensor, file: IO[bytes]) -> None:
    """Write what torch.save(value, file) writes. value: on the CPU."""
    form = _form(value.dtype, value.shape, value.stride()) if _is_small(value) else None
    if form is None:
        torch.save(value, file)
    else:
        file.writelines(form.filled(_bytes_of(value)))


def _is_small(value: Tensor) -> bool:
    """Whether a tensor is small and has nothing that torch.save writes except its dtype, shape, strides and data."""
    return (
        type(value) is Tensor
        and is_plain(value)
        and value.is_contiguous()
        and 0 < value.untyped_storage().nbytes() == value.nbytes <= LARGEST
        and not value.requires_grad
        and not vars(value)
    )


def _bytes_of(value: Tensor) -> Any:
    """Return the bytes of the tensor's storage as an array, without a copy."""
    return torch.empty(0, dtype=torch.uint8, device="cpu").set_(value.untyped_storage()).numpy()


class Form:
    """An archive of torch.save, cut where it depends on the data."""

    def __init__(self, start: bytes, data: bytes, end: bytes, sums: list[int], identity: bytes) -> None:
        """start, end: of the archive, before and after the data. sums: CRC-32 of its records except the id's."""
        self._start, self._sums, self._identity = start, sums, identity
        self._sum = zlib.crc32(data)
        self._fields = [_field(self._sum), identity, _field(zlib.crc32(identity))]
        self._end = re.split(b"(" + b"|".join(map(re.escape, self._fields)) + b")", end)

    def filled(self, data: Any) -> list[Any]:
        """Return the parts of the archive with other data of the same size."""
        total = zlib.crc32(data)
        mixed = 0
        for one in self._sums:
            one = total if one == self._sum else one
            mixed = (mixed ^ (one + 0x9E3779B9 + (mixed << 6) + (mixed >> 2))) % 2**64  # at::hash_combine
        identity = self._identity[:20] + b"%020d" % mixed  # 20 digits for the names of the records, 20 for their sums
        new = dict(zip(self._fields, (_field(total), identity, _field(zlib.crc32(identity)))))
        return [self._start, data, *(new.get(piece, piece) for piece in self._end)]


def _field(total: int) -> bytes:
    return total.to_bytes(4, "little")


@functools.lru_cache(maxsize=1 << 12)
def _form(dtype: torch.dtype, shape: tuple[int, ...], stride: tuple[int, ...]) -> Form | None:
    """Return the form of such tensors, None if torch's archives are not as expected."""
    archives, contents = [], []
    for byte in (0x00, 0xFF):  # all bytes of the data differ
        value = torch.empty_strided(shape, stride, dtype=dtype, device="cpu")
        _bytes_of(value).fill(byte)
        torch.save(value, saved := io.BytesIO())
        contents.append(_bytes_of(value).tobytes())
        archives.append(saved.getvalue())
    first = next(at for at, (one, other) in enumerate(zip(*archives)) if one != other)
    try:
        with zipfile.ZipFile(io.BytesIO(archives[0])) as archive:
            *records, last = archive.infolist()
            identity = archive.read(last)
    except zipfile.BadZipFile:  # torch.serialization.set_crc32_options(False)
        return None
    start, end = archives[0][:first], archives[0][first + len(contents[0]) :]
    form = Form(start, contents[0], end, [record.CRC for record in records], identity)
    return form if b"".join(form.filled(contents[1])) == archives[1] else None
