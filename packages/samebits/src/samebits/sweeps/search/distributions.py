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
DIGITS = 6  # significant digits of a real number that is drawn


def conditions_of(override: Override) -> list[str]:
    """The tags of an override that are conditions, 'if key=value' (samebits.sweeps.search.space)."""
    return sorted(tag for tag in getattr(override.value(), "tags", ()) if tag.startswith(IF))


def distribution_of(override: Override) -> BaseDistribution:
    """Optuna's distribution of one key's values; ConfigError if Optuna has none for this override."""
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
            raise ValueError("a choice has no scale - leave out the tag")
        return _choice(override, value)
    except ValueError as error:  # Optuna's own too
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
    """A choice among the values' texts: Optuna would take 1, 1.0 and true for one value, and accepts no list."""
    from optuna.distributions import CategoricalDistribution

    if isinstance(value, ChoiceSweep):  # not the iterator: shuffle() would change the order at each start
        texts = [Transformer.str(item) for item in value.list]
    else:
        texts = list(override.sweep_string_iterator())
    return CategoricalDistribution(list(dict.fromkeys(texts)))


def text_of(value: Any, distribution: BaseDistribution) -> str:
    """A parameter as text of an override; a real number is rounded to DIGITS significant digits."""
    if isinstance(value, str):
        return value
    low, high, step = (getattr(distribution, name) for name in ("low", "high", "step"))
    return repr(decimal(value) if step else min(max(decimal(value, DIGITS), low), high))


def ends(distribution: Any) -> list[Any]:
    """Every choice, or both ends."""
    return list(dict.fromkeys(getattr(distribution, "choices", None) or (distribution.low, distribution.high)))


def values_of(distribution: Any, where: str) -> Sequence[Any]:
    """All values. ConfigError that begins with `where` for infinitely many."""
    if hasattr(distribution, "choices"):
        return distribution.choices
    low, high, step = distribution.low, distribution.high, distribution.step
    if step is None:
        raise ConfigError(f"{where}: an interval has no end of values - use a range, a choice or int(interval(...))")
    if isinstance(step, int):
        return range(low, high + 1, step)
    return [decimal(low + n * step) for n in range(round((high - low) / step) + 1)]


def decimal(value: Any, digits: int = 12) -> Any:
    """Without the rounding error of binary fractions: 0.1 + 2 * 0.1 is 0.30000000000000004. All but floats as it is."""
    return float(f"{value:.{digits}g}") if isinstance(value, float) else value
