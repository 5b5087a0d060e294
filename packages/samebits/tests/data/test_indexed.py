"""A data set needs a length and samples."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset

from samebits.data import check_indexed
from samebits.data.loading.samples import tensor_of
from samebits.errors import ConfigError


class NoLength(Dataset[Any]):
    def __getitem__(self, i: int) -> Any:
        return {}


class NoItems:
    def __len__(self) -> int:
        return 9


class Endless(NoLength):
    def __len__(self) -> int:
        return 10**9


def test_a_dataset_without_length_or_samples_is_told_the_way_out() -> None:
    for kind in (NoLength, NoItems):
        with pytest.raises(ConfigError, match=rf"^data: {kind.__name__} has no __\w+__.*10\*\*9.*for a stream.*pack"):
            check_indexed(kind())
    check_indexed(Endless())


@pytest.mark.parametrize("value", [None, 12.5, -1, 10**20])
def test_a_length_that_is_no_count_of_samples_is_one_line(value: object) -> None:
    kind = type("Odd", (NoItems,), {"__len__": value and (lambda self: value), "__getitem__": lambda self, i: i})
    with pytest.raises(ConfigError, match=r"^data: len\(Odd\) fails: .* - return the number of samples from __len__"):
        check_indexed(kind())


def test_an_array_that_cannot_be_written_is_no_warning(recwarn: pytest.WarningsRecorder) -> None:
    """np.frombuffer returns one, for example of a blob in a database. torch warns once per process."""
    torch.set_warn_always(True)
    try:
        assert tensor_of(np.frombuffer(b"\x01\x02", np.uint8), "x").tolist() == [1, 2]
    finally:
        torch.set_warn_always(False)
    assert not recwarn.list
