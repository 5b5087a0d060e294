"""The search space: sweep overrides -> drawn keys in order of their dependencies; a trial's parameters -> overrides.

optim.momentum=tag('if optim=sgd',interval(0.5,0.99))    searched only in trials with optim=sgd; other trials do not set
it model.width=tag('if model=mlp,gpt','if optim=sgd',log,interval(8,64))    one of several values; all conditions must
be true"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from typing import TYPE_CHECKING, Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException

from samebits.errors import ConfigError
from samebits.schema import did_you_mean
from samebits.sweeps.identity import canonical
from samebits.sweeps.search.distributions import IF, conditions_of, decimal, distribution_of, ends, text_of, values_of

if TYPE_CHECKING:
    from hydra.core.config_loader import ConfigLoader
    from optuna.distributions import BaseDistribution


@dataclass(frozen=True)
class Space:
    """The search space.

    fixed: {key: override of all trials}. swept: {key: distribution}, each key after the keys that it depends on. typed:
    {key: the override as typed}, for both. conditions: {key: {other key: values}}; a trial sets `key` only if each
    other key has one of these values."""

    fixed: dict[str, str]
    swept: dict[str, BaseDistribution]
    typed: dict[str, str]
    conditions: dict[str, dict[str, list[Any]]] = field(default_factory=dict)

    @property
    def keys(self) -> list[str]:
        """Return the swept keys without +, as in the ledger."""
        return [key.lstrip("+") for key in self.swept]

    def overrides(self, params: Mapping[str, Any]) -> list[str]:
        """Return the overrides of a trial with these parameters."""
        return [*self.fixed.values(), *self.drawn(params)]

    def drawn(self, params: Mapping[str, Any]) -> list[str]:
        """Return the overrides of the drawn keys."""
        return [f"{key}={text_of(params[key], kind)}" for key, kind in self.swept.items() if key in params]

    def has(self, key: str, params: Mapping[str, Any]) -> bool:
        """Return True if a trial with these parameters sets `key`."""
        return all(decimal(params.get(other)) in values for other, values in self.conditions.get(key, {}).items())

    def draw(self, suggest: Callable[[str, BaseDistribution], Any]) -> dict[str, Any]:
        """Draw the parameters of one trial. suggest: a function (key, distribution) -> value."""
        params: dict[str, Any] = {}
        for key, distribution in self.swept.items():
            if self.has(key, params):
                params[key] = suggest(key, distribution)
        return params

    def needs(self, key: str) -> dict[str, list[Any]]:
        """Return {other key: values} that a trial must have to set `key`, including the conditions of those keys."""
        found: dict[str, list[Any]] = {}
        for other, values in self.conditions.get(key, {}).items():
            for name, allowed in (*self.needs(other).items(), (other, values)):
                found[name] = [value for value in found.get(name, allowed) if value in allowed]
        return found

    def corners(self) -> Iterator[dict[str, Any]]:
        """Yield parameter sets that cover every choice and both ends of every range, for a check before the start."""
        seen = []
        for key, distribution in self.swept.items():
            needed = {other: values[0] for other, values in self.needs(key).items()}
            for value in ends(distribution):
                given = {**needed, key: value}
                params = self.draw(lambda k, d, given=given: given[k] if k in given else ends(d)[0])  # type: ignore[misc]
                if params not in seen:
                    seen.append(params)
                    yield params

    def combinations(self) -> Iterator[dict[str, Any]]:
        """Yield all parameter sets, for an exhaustive sampler. Raise ConfigError for a key with infinitely many
        values."""
        values = {
            key: values_of(kind, f"{self.typed[key]}: this sampler takes every combination")
            for key, kind in self.swept.items()
        }

        def extended(params: dict[str, Any], keys: Sequence[str]) -> Iterator[dict[str, Any]]:
            if not keys:
                yield params
            elif not self.has(keys[0], params):
                yield from extended(params, keys[1:])
            else:
                for value in values[keys[0]]:
                    yield from extended({**params, keys[0]: value}, keys[1:])

        return extended({}, list(self.swept))


def parse(arguments: Sequence[str], loader: ConfigLoader | None = None) -> Space:
    """Return the space of these overrides; a later override of a key replaces an earlier one.

    loader: Hydra's config loader, for choices by pattern, model=glob(*).
    """
    found: dict[str, Override] = {}
    for override in OverridesParser.create(config_loader=loader).parse_overrides(list(arguments)):
        key = override.get_key_element()
        if override.is_sweep_override() and key.startswith("hydra"):
            raise ConfigError(f"{override.input_line}: keys of Hydra cannot be searched - give one value")
        found[key] = override
    swept = {key: distribution_of(o) for key, o in found.items() if o.is_sweep_override()}
    typed = {key: str(o.input_line) for key, o in found.items()}
    conditions = {key: _conditions(key, found, swept) for key in swept if conditions_of(found[key])}
    depends = {key: [other for other in conditions.get(key, ()) if other in swept] for key in swept}
    try:
        swept = {key: swept[key] for key in TopologicalSorter(depends).static_order()}
    except CycleError as error:
        ring = error.args[1]
        raise ConfigError(f"{typed[ring[0]]}: its conditions form a cycle ({' -> '.join(ring)})") from None
    fixed = {key: typed[key] for key in found if key not in swept}
    space, never = Space(fixed, swept, typed, conditions), []
    for key in swept:
        if unmet := [other for other, values in space.needs(key).items() if not values]:
            if not any(other in fixed for other in unmet):
                raise ConfigError(f"{typed[key]}: its conditions exclude each other, so no trial can set it")
            never.append(key)  # e.g. optim=adamw for all trials: skip keys that need optim=sgd
    return Space(fixed, {key: kind for key, kind in swept.items() if key not in never}, typed, conditions)


def _conditions(key: str, found: Mapping[str, Override], swept: Mapping[str, BaseDistribution]) -> dict[str, list[Any]]:
    """Return {other key: values} of the conditions of `key`. A key with the same value in all trials is left out if the
    value fits, and has [] if not."""
    names = {name.lstrip("+"): name for name in found}
    allowed: dict[str, list[Any]] = {}
    for tag in conditions_of(found[key]):
        where = f"{found[key].input_line}: '{tag}'"
        name, texts = _condition(tag.removeprefix(IF), where)
        if name not in names:
            hint = did_you_mean(name, names) or f" - give it too, {name}=..."
            raise ConfigError(f"{where}: {name} is neither searched nor set{hint}")
        if (other := names[name]) not in swept:
            if repr(canonical(found[other].value())) not in map(_canonical, texts):
                allowed[other] = []
            continue
        told = {_canonical(value): value for value in values_of(swept[other], where)}
        if unknown := [text for text in texts if _canonical(text) not in told]:
            shown = ", ".join(map(str, [*told.values()][:10]))
            raise ConfigError(f"{where}: {name} is never {unknown[0]} (it is one of: {shown})")
        met = [told[_canonical(text)] for text in texts]
        allowed[other] = [value for value in allowed.get(other, met) if value in met]
    return allowed


def _condition(text: str, where: str) -> tuple[str, list[str]]:
    """Parse a condition: optim=sgd,adamw -> (optim, [sgd, adamw])."""
    try:
        parsed = OverridesParser.create().parse_override(text)
        texts = list(parsed.sweep_string_iterator()) if parsed.is_sweep_override() else [text.split("=", 1)[1]]
    except (HydraException, AssertionError, IndexError):  # an interval, or not an override
        raise ConfigError(f"{where} is not a condition - write 'if key=value' or 'if key=value,value'") from None
    return parsed.get_key_element(), texts


def _canonical(value: Any) -> str:
    """Return one spelling for equal values. value: text of an override (1e-3, 'a b'), or a number."""
    parsed = OverridesParser.create().parse_override(f"a={value}").value() if isinstance(value, str) else value
    return repr(canonical(parsed))
