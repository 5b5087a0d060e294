"""Python's garbage collector, kept from interrupting training steps: its pauses would hit ranks at different steps."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

EVERY = 100


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """In this block, or in a function that this decorates, garbage is collected by `collect_garbage` alone, and not
    among what was there before."""
    enabled = gc.isenabled()
    gc.disable()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
        if enabled:
            gc.enable()


def collect_garbage(count: int) -> None:
    """Collects if `count`, of steps or batches done, is a multiple of EVERY: at the same ones on all ranks."""
    if count % EVERY == 0:
        gc.collect()
