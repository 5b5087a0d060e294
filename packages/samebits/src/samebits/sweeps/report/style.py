"""Colours, for pictures and page: safe for the colour-blind (Okabe and Ito 2008), with a shape beside each colour."""

from __future__ import annotations

CATEGORICAL = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9", "#7A6A00")
CATEGORICAL_DARK = ("#56B4E9", "#E69F00", "#2DC4A0", "#E59AC6", "#F0844A", "#A8C8FF", "#F0E442")
MARKERS = ("o", "s", "^", "D", "v", "P", "h")
FAILED, FAILED_DARK = "#B3261E", "#FF8A80"
FAINT, FAINT_DARK = "#9AA3AD", "#5B6672"
MAX_COLORED = len(CATEGORICAL)  # the best groups get a colour each; the rest is grey

PAGE = {  # for report.html: light and dark background
    "light": CATEGORICAL,
    "dark": CATEGORICAL_DARK,
    "failed": (FAILED, FAILED_DARK),
    "faint": (FAINT, FAINT_DARK),
}


def shortened(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"
