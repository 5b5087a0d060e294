"""What media can be shown, and how images make a grid."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from samebits.errors import ConfigError
from samebits.loggers import Audio, grid
from samebits.loggers.media import save


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("../out", "text", "the name must consist of letters"),
        ("a b", "text", "the name must consist of letters"),
        ("x", np.zeros((2, 2), np.int64), r"int64 \(2, 2\) is not an image"),
        (
            "x",
            np.zeros(5, np.uint8),
            r"uint8 \(5,\) is not an image: .* an Svg, Histogram, Audio or Table of samebits\.loggers",
        ),
        ("x", Audio(np.zeros((1, 2, 3)), 8000), r"samples must be \(T,\) or \(T, channels\), got \(1, 2, 3\)"),
    ],
)
def test_what_cannot_be_shown_is_said(tmp_path: Path, name: str, value: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        save(tmp_path, 1, name, value)


def test_a_grid_has_its_images_in_order() -> None:
    images = torch.arange(5.0).view(5, 1, 1, 1).expand(5, 3, 2, 2)
    made = grid(images, columns=3)
    assert made.shape == (3, 4, 6)
    assert made[1, ::2, ::2].tolist() == [[0, 1, 2], [3, 4, 0]]
    with pytest.raises(ConfigError, match=r"grid: expected images \(N, 1 or 3, H, W\), got \(5, 3, 2\)"):
        grid(images[..., 0])
