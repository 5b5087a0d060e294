"""One key of a search space: a sweep override -> Optuna's distribution, and a drawn value -> the text of an override.

optim.lr=tag(log,interval(1e-4,1e-1))    real, on a logarithmic scale
optim.lr=interval(0.001,0.1)             real
model.depth=int(interval(1,4))           1, 2, 3 or 4
model.depth=range(1,5)                   the same: a range ends before its stop, as in a sweep
model.hidden=choice([16],[32,32])        one of these; 16,32 is the same as choice(16,32)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from hydra.core.override_parser.types import ChoiceSweep, IntervalSweep, Override, RangeSweep, Transformer

from samebits.config import one_line
from samebits.errors import ConfigError

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

TAGS, IF = ("log", "int"), "if "
DIGITS = 6  # significant digits of drawn real numbers


def conditions_of(override: Override) -> list[str]:
    """Return the tags of an override that are conditions, 'if key=value' (samebits.sweeps.search.space)."""
    return sorted(tag for tag in getattr(override.value(), "tags", ()) if tag.startswith(IF))


def distribution_of(override: Override) -> BaseDistribution:
    """Return Optuna's distribution for the values of one key. Raise ConfigError if Optuna has none for this
    override."""
    value: Any = override.value()
    tags = set(getattr(value, "tags", ())) - set(conditions_of(override))
    try:
        if unknown := sorted(tags - set(TAGS)):
            raise ValueError(f"no tag {unknown[0]!r} (tags: {', '.join(TAGS)}, 'if key=value')")
        if isinstance(value, IntervalSweep):
            return _interval(value, "log" in tags, "int" in tags)
        if isinstance(value, RangeSweep):
            return _range(value, "log" in tags)
        if tags:
            raise ValueError("a choice has no scale - remove the tag")
        return _choice(override, value)
    except ValueError as error:  # also raised by Optuna
        raise ConfigError(f"{override.input_line}: {one_line(error)}") from None


def _interval(sweep: IntervalSweep, log: bool, whole: bool) -> BaseDistribution:
    from optuna.distributions import FloatDistribution, IntDistribution

    low, high = sweep.start, sweep.end
    if low is None or high is None or not (math.isfinite(low) and math.isfinite(high)):
        raise ValueError("the ends of an interval must be finite")
    if not whole and not isinstance(low, int):  # int(interval(1,4)) makes the ends integers
        return FloatDistribution(low, high, log=log)
    if not (float(low).is_integer() and float(high).is_integer()):
        raise ValueError("the ends of an interval of integers must be integers")
    return IntDistribution(int(low), int(high), log=log)


def _range(sweep: RangeSweep, log: bool) -> BaseDistribution:
    from optuna.distributions import FloatDistribution, IntDistribution

    values = sorted(sweep.range())
    if not values:
        raise ValueError("this range is empty")
    if isinstance(values[0], int):
        return IntDistribution(values[0], values[-1], log=log, step=abs(int(sweep.step)))
    return FloatDistribution(decimal(values[0]), decimal(values[-1]), log=log, step=abs(sweep.step))


def _choice(override: Override, value: Any) -> BaseDistribution:
    """Return a choice among the values as text, because for Optuna 1, 1.0 and true are one value, and lists are
    invalid."""
    from optuna.distributions import CategoricalDistribution

    if isinstance(value, ChoiceSweep):  # not the iterator, because shuffle() would change the order at each start
        texts = [Transformer.str(item) for item in value.list]
    else:
        texts = list(override.sweep_string_iterator())
    return CategoricalDistribution(list(dict.fromkeys(texts)))


def text_of(value: Any, distribution: BaseDistribution) -> str:
    """Return a parameter as the text of an override; real numbers are rounded to DIGITS significant digits."""
    if isinstance(value, str):
        return value
    low, high, step = (getattr(distribution, name) for name in ("low", "high", "step"))
    return repr(decimal(value) if step else min(max(decimal(value, DIGITS), low), high))


def ends(distribution: Any) -> list[Any]:
    """Return every choice, or both ends of a range."""
    return list(dict.fromkeys(getattr(distribution, "choices", None) or (distribution.low, distribution.high)))


def values_of(distribution: Any, where: str) -> Sequence[Any]:
    """Return all values. Raise ConfigError, which begins with `where`, if there are infinitely many."""
    if hasattr(distribution, "choices"):
        return distribution.choices
    low, high, step = distribution.low, distribution.high, distribution.step
    if step is None:
        raise ConfigError(
            f"{where}: an interval has infinitely many values - use a range, a choice or int(interval(...))"
        )
    if isinstance(step, int):
        return range(low, high + 1, step)
    return [decimal(low + n * step) for n in range(round((high - low) / step) + 1)]


def decimal(value: Any, digits: int = 12) -> Any:
    """Round a float to `digits` digits to remove binary rounding errors (0.1 + 2 * 0.1 is 0.30000000000000004). Return
    other types unchanged."""
    return float(f"{value:.{digits}g}") if isinstance(value, float) else value
