"""A data set needs a length and samples."""

from __future__ import annotations

from typing import Any

import pytest
from torch.utils.data import Dataset

from samebits.data import check_indexed
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
