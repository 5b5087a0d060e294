"""Control of Python's garbage collector, because its pauses would interrupt ranks at different steps."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager

EVERY = 100
_modules = sys.maxsize  # number of imported modules when objects were last frozen


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Within this block or decorated function, collect garbage only in `collect_garbage`. Objects that existed before
    the block, or when a module was imported later, are not examined."""
    global _modules
    enabled = gc.isenabled()
    gc.disable()
    gc.freeze()
    _modules = len(sys.modules)
    try:
        yield
    finally:
        _modules = sys.maxsize
        gc.unfreeze()
        if enabled:
            gc.enable()


def collect_garbage(count: int) -> None:
    """Collect garbage if `count`, the number of steps or batches, is a multiple of EVERY, so that all ranks do it at
    the same step. Do nothing if Python's automatic collection is enabled, because then a collection takes 0.1 s."""
    global _modules
    if count % EVERY or gc.isenabled():
        return
    gc.collect()
    if len(sys.modules) > _modules:  # e.g. torch._dynamo has 117,000 objects, which add 35 ms to each collection
        _modules = len(sys.modules)
        gc.freeze()
