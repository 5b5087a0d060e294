"""Add rules for transforms of colors and for mixup to lab.transforms.order. Does not import torch."""

from __future__ import annotations

from lab.transforms.order import AUTO, HERE, RULES, Node, Rule, items_of

CLIPS = (f"{HERE}color.ColorJitter", f"{HERE}augment.TrivialAugment")


def _moves_pixels(first: Node, then: Node) -> bool:
    """Return True if pixels become negative. A scaling to [0, 1], mean=[0] std=[255], is right."""
    mean = first.get("mean")
    numbers = [value for value in items_of(mean) if isinstance(value, (int, float))]
    return mean == AUTO or any(value > 0 for value in numbers)


RULES += [
    Rule(
        (f"{HERE}mixup.Mixup",), (f"{HERE}missing.FillMissing",), lambda first, then: True,
        "a NaN makes the sample that it is mixed with NaN too",
    ),
    Rule(
        (f"{HERE}fields.Normalize",), CLIPS, _moves_pixels,
        "its values are clipped to [0, 1], and those below the mean would become 0",
    ),
    Rule(
        CLIPS, (f"{HERE}fields.ChannelsFirst",), lambda first, then: True,
        "the channels would be taken for the width",
    ),
]  # fmt: skip
