"""Whether a callback's class has the hooks of Callback, by their names and arguments: checked before a run starts."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from typing import Any

from lab.callbacks.base import Callback
from samebits.errors import ConfigError
from samebits.schema import did_you_mean

HOOKS = ("on_", "before_")  # how the names of Callback's methods begin


def check_hooks(key: str, kind: type[Callback]) -> None:
    """ConfigError if the class has a method of a hook's kind that is none, such as on_stepp or Lightning's
    on_train_epoch_end, which would never be called, or one that does not take what it is called with."""
    hooks = [name for name in dir(Callback) if name.startswith(HOOKS)]
    for name in dir(kind):
        if name.startswith(HOOKS) and name not in hooks:
            raise ConfigError(
                f"{key}: {kind.__name__}.{name} would never be called{did_you_mean(name, hooks)} (called are: "
                f"{', '.join(hooks)}; a method of another use has another name)"
            )
    for name in hooks:
        asked, *given = inspect.signature(getattr(Callback, name)).parameters
        found = inspect.signature(getattr(kind, name))
        shorter = [given[:1]] if name == "on_end" else []  # its scores may be left out
        if not any(takes(found, [asked, *names]) for names in [given, *shorter]):
            raise ConfigError(f"{key}: {kind.__name__}.{name} must take ({', '.join(given)}), got {found}")


def takes(signature: inspect.Signature, arguments: Iterable[Any]) -> bool:
    try:
        signature.bind(*arguments)
    except TypeError:
        return False
    return True
