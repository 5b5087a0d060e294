"""Check the names and arguments of a callback's hooks before a run starts."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from typing import Any

from lab.callbacks.base import Callback
from samebits.errors import ConfigError
from samebits.schema import did_you_mean

HOOKS = ("on_", "before_")  # prefixes of the names of hooks


def check_hooks(key: str, kind: type[Callback]) -> None:
    """Raise ConfigError if the class has a method that is named like a hook (on_*, before_*) but is not a hook, such as
    the typo on_stepp or Lightning's on_train_epoch_end, or if a hook does not accept its arguments. key: config key of
    the callback, for messages."""
    hooks = [name for name in dir(Callback) if name.startswith(HOOKS)]
    for name in dir(kind):
        if name.startswith(HOOKS) and name not in hooks:
            raise ConfigError(
                f"{key}: {kind.__name__}.{name} is not a hook, so it is never called{did_you_mean(name, hooks)} "
                f"(hooks: {', '.join(hooks)}; rename a method that is not a hook)"
            )
    for name in hooks:
        owner, *given = inspect.signature(getattr(Callback, name)).parameters
        found = inspect.signature(getattr(kind, name))
        shorter = [given[:1]] if name == "on_end" else []  # `scores` may be omitted
        if not any(takes(found, [owner, *names]) for names in [given, *shorter]):
            raise ConfigError(f"{key}: {kind.__name__}.{name} must take ({', '.join(given)}), got {found}")


def takes(signature: inspect.Signature, arguments: Iterable[Any]) -> bool:
    """Return True if a function with this signature accepts these positional arguments."""
    try:
        signature.bind(*arguments)
    except TypeError:
        return False
    return True
