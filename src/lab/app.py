"""What this project hands to the engine, which imports nothing of it (engine.app)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from engine import app
from engine.errors import ConfigError
from lab.config import (
    ASKED_OF_RUN,
    FACTORIES,
    MOVED,
    MOVED_KEYS,
    OWN,
    PATHS,
    REMEDIES,
    TARGETS_ALLOWED,
    Config,
    check,
    score_names,
)
from lab.groups import RootConfig


def start(cfg: Any, *arguments: Any, **more: Any) -> None:
    from lab.start import start

    start(Config.of(cfg), *arguments, **more)


def join() -> int:
    from lab.start import join

    return join()


def try_out(cfg: Any, known: Sequence[str]) -> dict[str, Any]:
    from lab.trial import try_out

    return try_out(cfg, known)


def h5_shape(field: str, _parent_: Any) -> list[int]:
    """${h5_shape:field} in a group `data`: shape of one sample of the field, from the data file."""
    from h5rows import sample_shape

    with _about_data(_parent_):
        return list(sample_shape(_parent_, field))


def h5_outputs(field: str, _parent_: Any) -> int | None:
    """${h5_outputs:field}: how many outputs a model of that field needs; null in a part of data=mixed that lacks it."""
    from h5rows import num_outputs

    if _key(_parent_) != "data" and _parent_.fields.get(field, field) is None:
        return None
    with _about_data(_parent_):
        return int(num_outputs(_parent_, field))


def first_part(key: str, _parent_: Any) -> Any:
    """${first_part:num_outputs} in data=mixed: what the first part says that says it."""
    if not _parent_.parts:
        raise ConfigError("data.parts: there are none - add some, such as +data@data.parts.old=h5 +data.weights.old=1")
    said = (node.get(key) for node in _parent_.parts.values() if hasattr(node, "get"))
    return next((value for value in said if value is not None), None)


def _key(node: Any) -> str:
    return str(node._get_full_key(None)) or "data"


def folder_classes(_parent_: Any) -> int:
    """${folder_classes:} in a group `data`: how many class folders there are below its path."""
    from lab.datasets.image_folder import class_names, open_images

    with _about_data(_parent_):
        source = open_images(_parent_.path, tuple(_parent_.size), _parent_.crop, _parent_.channels)
        return len(class_names(source, _parent_.path))


@contextmanager
def _about_data(node: Any) -> Iterator[None]:
    """In this block a mistake in what a file holds names the key that leads to the file. node: the data group's."""
    try:
        yield
    except ConfigError as error:
        key = _key(node)
        text = str(error) if key == "data" else re.sub(r"(?<![\w./-])data(?=\.[a-z])", key, str(error))
        named = re.search(r"\bdata(\.\w+)+", text)
        if named is not None and named.start() == 0:
            raise ConfigError(text) from None
        raise ConfigError(f"{named[0] if named else f'{key}.path'}: {text}") from None


RESOLVERS: dict[str, Callable[..., Any]] = {
    "h5_shape": h5_shape,
    "h5_outputs": h5_outputs,
    "folder_classes": folder_classes,
    "first_part": first_part,
}
app.register(
    app.App(
        "lab", TARGETS_ALLOWED, FACTORIES, RootConfig, OWN, MOVED, PATHS, RESOLVERS,
        check, score_names, start, join, try_out, ASKED_OF_RUN, MOVED_KEYS, REMEDIES,
    )
)  # fmt: skip
