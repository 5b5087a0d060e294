"""Windows of samples that differ in length."""

from __future__ import annotations

import pytest
import torch

from lab.transforms.windows import CenterWindow, RandomWindow
from samebits.errors import ConfigError

LENGTHS = torch.tensor([9, 4, 2, 0, 30])


def batch(longest: int = 30) -> dict[str, torch.Tensor]:
    """x: 1, 2, ... up to the sample's length, then zeros."""
    steps = torch.arange(longest)
    x = torch.where(steps < LENGTHS[:, None], steps + 1, 0)
    return {"x": x, "x_length": LENGTHS}


def test_the_middle() -> None:
    cut = CenterWindow("x", 4)(batch(), torch.arange(5))
    wanted = [[3, 4, 5, 6], [1, 2, 3, 4], [1, 2, 0, 0], [0, 0, 0, 0], [14, 15, 16, 17]]
    assert cut["x"].tolist() == wanted
    assert cut["x_length"].tolist() == [4, 4, 2, 0, 4]
    assert all(torch.equal(a, b) for a, b in zip(CenterWindow("x", 4)(cut, torch.arange(5)).values(), cut.values()))


def test_random_windows_depend_on_the_sample_only() -> None:
    """Not on the batch, whose longest sample sets the padding; each place is drawn."""
    window, numbers = RandomWindow("x", 4, seed=3), torch.tensor([7, 8, 9, 10, 11])
    whole = window(batch(), numbers)["x"]
    for longest, rows in ((9, [0, 1, 2]), (4, [1, 2]), (2, [2]), (0, [3])):
        alone = {name: values[rows] for name, values in batch(longest).items()}
        assert torch.equal(window(alone, numbers[rows])["x"], whole[rows])
    same = {"x": torch.arange(6).expand(500, 6)}
    first = window(same, torch.arange(500))["x"][:, 0]
    assert set(first.tolist()) == {0, 1, 2}
    assert (first.bincount() > 120).all()


def test_video_and_several_fields() -> None:
    x = torch.arange(2 * 6 * 3, dtype=torch.uint8).view(2, 6, 3, 1, 1)
    fields = {"x": x, "mask": x + 1}
    cut = RandomWindow(["x", "mask"], 4, seed=0)(fields, torch.arange(2))
    assert cut["x"].shape == (2, 4, 3, 1, 1)
    assert cut["x"].dtype == torch.uint8
    assert torch.equal(cut["mask"], cut["x"] + 1)


@pytest.mark.parametrize(("field", "said"), [("z", "the batch has"), ("y", "samples of several steps")])
def test_wrong_fields_are_named(field: str, said: str) -> None:
    with pytest.raises(ConfigError, match=f"CenterWindow.field='{field}'.*{said}"):
        CenterWindow(field, 4)({"x": torch.zeros(2, 3), "y": torch.zeros(2)}, torch.arange(2))
