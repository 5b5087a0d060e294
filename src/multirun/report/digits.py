"""A mean and its error with the digits that the error leaves."""

from __future__ import annotations

import math

from multirun.report.analyse import show

SMALL, LARGE = -4, 6  # powers of ten of means and errors that are written without an exponent


def rounded(mean: float, error: float | None) -> tuple[str, str | None, int]:
    """(mean, error, n) as text, both to be multiplied by 10^n: 83.47, 3.28 -> ("83.5", "3.3", 0).

    The error has two digits where they are at most 35, else one, the mean as many places (Particle Data Group, Review
    of Particle Physics, 5.3). Without an error, or where it is 0, the mean has four digits.
    """
    if error is None or error == 0:
        return show(mean), error if error is None else "0", 0
    power = math.floor(math.log10(max(abs(mean), error)))
    power = 0 if SMALL < power < LARGE else power
    mean, error = mean / 10.0**power, error / 10.0**power
    exponent = math.floor(math.log10(error))
    places = (1 if error / 10.0**exponent < 3.55 else 0) - exponent
    mean, error = round(mean, places), round(error, places)
    shown = max(places, 0)
    return f"{mean + 0.0:.{shown}f}", f"{error:.{shown}f}", power


def plus_minus(mean: float, error: float | None) -> str:
    mean_text, error_text, power = rounded(mean, error)
    plain = mean_text if error_text is None else f"{mean_text} ± {error_text}"
    return f"({plain})e{power}" if power else plain


def tex_plus_minus(mean: float, error: float | None) -> str:
    r"""For LaTeX's math mode: 83.5 \pm 3.3."""
    mean_text, error_text, power = rounded(mean, error)
    plain = mean_text if error_text is None else rf"{mean_text} \pm {error_text}"
    return rf"({plain}) \times 10^{{{power}}}" if power else plain
