"""The garbage collector, where very many objects are made that stay: modules, and what a node brings back at its start.

Looking through them takes as long as making them, and finds nothing.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def made_to_stay() -> Iterator[None]:
    """What is made meanwhile is not looked through, now or later. (What nobody refers to any more is freed as ever;
    only cycles that end up without an owner stay.)"""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if was_on:
            gc.enable()
