"""What this project hands to the engine, which imports nothing of it (engine.app)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from engine import app
from engine.errors import ConfigError
from lab.groups import FACTORIES, MOVED, OWN, PATHS, TARGETS_ALLOWED, RootConfig, check, score_names


def start(*arguments: Any, **more: Any) -> None:
    from lab.start import start

    start(*arguments, **more)


def join() -> int:
    from lab.start import join

    return join()


def try_out(cfg: Any, known: Sequence[str]) -> dict[str, Any]:
    from lab.trial import try_out

    return try_out(cfg, known)


def h5_shape(field: str, _parent_: Any) -> list[int]:
    """${h5_shape:field} in a group `data`: shape of one sample of the field, from the data file."""
    from engine.data import sample_shape

    with _about_data():
        return list(sample_shape(_parent_, field))


def h5_outputs(field: str, _parent_: Any) -> int:
    """${h5_outputs:field}: how many outputs a model of that field needs."""
    from engine.data import num_outputs

    with _about_data():
        return int(num_outputs(_parent_, field))


def folder_classes(_parent_: Any) -> int:
    """${folder_classes:} in a group `data`: how many class folders there are below its path."""
    from lab.datasets.image_folder import class_names, open_images

    with _about_data():
        source = open_images(_parent_.path, tuple(_parent_.size), _parent_.crop, _parent_.channels)
        return len(class_names(source, _parent_.path))


@contextmanager
def _about_data() -> Iterator[None]:
    """In this block a mistake in what a file holds names the key that leads to the file."""
    try:
        yield
    except ConfigError as error:
        named = re.search(r"\bdata(\.\w+)+", str(error))
        if named is not None and named.start() == 0:
            raise
        raise ConfigError(f"{named[0] if named else 'data.path'}: {error}") from None


RESOLVERS: dict[str, Callable[..., Any]] = {
    "h5_shape": h5_shape,
    "h5_outputs": h5_outputs,
    "folder_classes": folder_classes,
}
app.register(
    app.App(
        "lab", TARGETS_ALLOWED, FACTORIES, RootConfig, OWN, MOVED, PATHS, RESOLVERS,
        check, score_names, start, join, try_out,
    )
)  # fmt: skip
