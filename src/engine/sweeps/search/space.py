"""The search space: sweep overrides -> Optuna's distributions, and a trial's parameters -> overrides.

optim.lr=tag(log,interval(1e-4,1e-1))    real, on a logarithmic scale
optim.lr=interval(0.001,0.1)             real
model.depth=int(interval(1,4))           1, 2, 3 or 4
model.depth=range(1,5)                   the same: a range ends before its stop, as in a sweep
model.hidden=choice([16],[32,32])        one of these; 16,32 is the same as choice(16,32)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ChoiceSweep, IntervalSweep, Override, RangeSweep, Transformer

from engine.config.explain import one_line
from engine.errors import ConfigError

if TYPE_CHECKING:
    from hydra.core.config_loader import ConfigLoader
    from optuna.distributions import BaseDistribution

TAGS = ("log", "int")
DIGITS = 6


@dataclass(frozen=True)
class Space:
    """fixed: {key: override of all trials}; swept: {key: distribution of a trial's value}; typed: {key: the override
    as typed}, of both."""

    fixed: dict[str, str]
    swept: dict[str, BaseDistribution]
    typed: dict[str, str]

    @property
    def keys(self) -> list[str]:
        """The swept keys, without +, as in the ledger."""
        return [key.lstrip("+") for key in self.swept]

    def overrides(self, params: Mapping[str, Any]) -> list[str]:
        """The overrides of a trial with these parameters."""
        return [*self.fixed.values(), *self.drawn(params)]

    def drawn(self, params: Mapping[str, Any]) -> list[str]:
        return [f"{key}={_text(params[key], distribution)}" for key, distribution in self.swept.items()]

    def corners(self) -> Iterable[dict[str, Any]]:
        """Parameter sets that cover every choice and both ends of every range, for a check before the start."""
        ends = {key: _ends(distribution) for key, distribution in self.swept.items()}
        first = {key: values[0] for key, values in ends.items()}
        yield first
        for key, values in ends.items():
            for value in values[1:]:
                yield {**first, key: value}


def parse(arguments: Sequence[str], loader: ConfigLoader | None = None) -> Space:
    """The space that these overrides span; a later one of the same key replaces an earlier one.

    loader: Hydra's, for choices by pattern, model=glob(*).
    """
    found: dict[str, Override] = {}
    for override in OverridesParser.create(config_loader=loader).parse_overrides(list(arguments)):
        key = override.get_key_element()
        if override.is_sweep_override() and key.startswith("hydra"):
            raise ConfigError(f"{override.input_line}: a search varies the experiment, not Hydra - give one value")
        found[key] = override
    swept = {key: distribution(o) for key, o in found.items() if o.is_sweep_override()}
    typed = {key: str(o.input_line) for key, o in found.items()}
    return Space({key: typed[key] for key in found if key not in swept}, swept, typed)


def distribution(override: Override) -> BaseDistribution:
    """Optuna's distribution of one key's values; ConfigError if Optuna has none for this override."""
    value: Any = override.value()
    unknown = sorted(getattr(value, "tags", set()) - set(TAGS))
    if unknown:
        raise ConfigError(f"{override.input_line}: no tag {unknown[0]!r} (tags: {', '.join(TAGS)})")
    try:
        if isinstance(value, IntervalSweep):
            return _interval(value)
        if isinstance(value, RangeSweep):
            return _range(value)
        return _choice(override, value)
    except ValueError as error:
        raise ConfigError(f"{override.input_line}: {one_line(error)}") from None


def _interval(sweep: IntervalSweep) -> BaseDistribution:
    from optuna.distributions import FloatDistribution, IntDistribution

    low, high, log = sweep.start, sweep.end, "log" in sweep.tags
    if low is None or high is None or not float("-inf") < low <= high < float("inf"):
        raise ValueError("an interval goes from a smaller to a larger number")
    if log and low <= 0:
        raise ValueError("a logarithmic scale begins above 0")
    if "int" not in sweep.tags and not isinstance(low, int):  # int(interval(1,4)) makes the ends integers
        return FloatDistribution(low, high, log=log)
    if not (float(low).is_integer() and float(high).is_integer()):
        raise ValueError("the ends of an interval of integers must be integers")
    return IntDistribution(int(low), int(high), log=log)


def _range(sweep: RangeSweep) -> BaseDistribution:
    from optuna.distributions import FloatDistribution, IntDistribution

    values = sorted(sweep.range())
    log = "log" in sweep.tags
    if not values:
        raise ValueError("this range is empty")
    if log and (abs(sweep.step) != 1 or not isinstance(values[0], int) or values[0] <= 0):
        raise ValueError("on a logarithmic scale a range holds all integers from one above 0 on - or use interval(a,b)")
    if isinstance(values[0], int):
        return IntDistribution(values[0], values[-1], log=log, step=1 if log else abs(int(sweep.step)))
    low, step = _exact(values[0]), abs(_exact(sweep.step))
    return FloatDistribution(float(low), float(low + step * (len(values) - 1)), step=float(step))


def _choice(override: Override, value: Any) -> BaseDistribution:
    """A choice among the values' texts: Optuna would take 1, 1.0 and true for one value, and accepts no list."""
    from optuna.distributions import CategoricalDistribution

    if isinstance(value, ChoiceSweep):  # not the iterator: shuffle() would change the order at each start
        texts = [Transformer.str(item) for item in value.list]
    else:
        texts = list(override.sweep_string_iterator())
    if getattr(value, "tags", None):
        raise ValueError("a choice has no scale - leave out the tag")
    if not texts:
        raise ValueError("nothing to choose from")
    return CategoricalDistribution(list(dict.fromkeys(texts)))


def _text(value: Any, distribution: BaseDistribution) -> str:
    """A parameter as text of an override; a float is rounded to DIGITS significant digits."""
    if isinstance(value, float):
        low, high, step = (getattr(distribution, name) for name in ("low", "high", "step"))
        if step is None:
            value = min(max(float(f"{value:.{DIGITS}g}"), low), high)
        else:  # 0.1 + 2 * 0.1 = 0.30000000000000004
            value = float(_exact(low) + round((value - low) / step) * _exact(step))
    return value if isinstance(value, str) else repr(value)


def _ends(distribution: BaseDistribution) -> list[Any]:
    choices = getattr(distribution, "choices", None)
    if choices is not None:
        return list(choices)
    low, high = distribution.low, distribution.high  # type: ignore[attr-defined]
    return [low] if low == high else [low, high]


def count_values(distribution: Any) -> int:
    """Number of distinct values; 0: infinitely many."""
    if hasattr(distribution, "choices"):
        return len(distribution.choices)
    step = getattr(distribution, "step", None)
    return round((distribution.high - distribution.low) / step) + 1 if step else 0


def _exact(value: Any) -> Decimal:
    """The decimal number as typed: Decimal(0.1) would be 0.1000000000000000055..."""
    return Decimal(repr(float(value)))
