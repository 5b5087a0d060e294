"""Python's garbage collector, kept from interrupting training steps: its pauses would hit ranks at different steps."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager

EVERY = 100
_modules = sys.maxsize  # that were imported when objects were last frozen


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """In this block, or in a function that this decorates, garbage is collected by `collect_garbage` alone, and not
    among what was there before, nor among what was there when a module was imported later."""
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
    """Collects if `count`, of steps or batches done, is a multiple of EVERY: at the same ones on all ranks. Nothing
    where Python collects by itself: without frozen objects one takes 0.1 s."""
    global _modules
    if count % EVERY or gc.isenabled():
        return
    gc.collect()
    if len(sys.modules) > _modules:  # torch._dynamo alone has 117,000 objects: 35 ms for each collection among them
        _modules = len(sys.modules)
        gc.freeze()
