"""How often Python looks for garbage while a trace is made: seldom, which saves time.

It is a module of its own so that it holds already while the modules of a trace are imported.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

ALLOCATIONS = 1_000_000  # after how many new objects a trace looks for garbage


@contextmanager
def few_collections() -> Iterator[None]:
    """Let Python look for garbage seldom: most objects of a trace live until its page is written.

    They are modules, graphs and pictures. To go through them again and again takes a seventh of the
    processor time of a trace. A caller that has objects frozen, or looks for no garbage, keeps
    that.
    """
    before, are_frozen = gc.get_threshold(), gc.get_freeze_count() > 0
    if not before[0]:
        yield
        return
    gc.set_threshold(ALLOCATIONS, *before[1:])
    try:
        yield
    finally:
        if not are_frozen:
            gc.freeze()
            gc.unfreeze()  # now all objects count as old, so that none is gone through at once
        gc.set_threshold(*before)
