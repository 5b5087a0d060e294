"""Colors of pictures and page, safe for color-blind readers (Okabe and Ito 2008); each color has its own shape."""

from __future__ import annotations

CATEGORICAL = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9", "#7A6A00")
CATEGORICAL_DARK = ("#56B4E9", "#E69F00", "#2DC4A0", "#E59AC6", "#F0844A", "#A8C8FF", "#F0E442")
MARKERS = ("o", "s", "^", "D", "v", "P", "h")
FAILED, FAILED_DARK = "#B3261E", "#FF8A80"
FAINT, FAINT_DARK = "#9AA3AD", "#5B6672"
MAX_COLORED = len(CATEGORICAL)  # the best groups get a color each; the others are gray

PAGE = {  # colors of report.html on light and dark background
    "light": CATEGORICAL,
    "dark": CATEGORICAL_DARK,
    "failed": (FAILED, FAILED_DARK),
    "faint": (FAINT, FAINT_DARK),
}


def shortened(text: str, limit: int) -> str:
    """Return the text, cut to `limit` characters."""
    return text if len(text) <= limit else text[: limit - 1] + "…"
