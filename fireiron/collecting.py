"""Postpone garbage collection of cycles while a kernel is compiled.

Lowering allocates some hundred thousand objects that live as long as the program. The collector would examine the youngest objects after
each few hundred allocations, and sometimes all objects of the process, including PyTorch's. That takes a tenth of the time and frees
almost nothing.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def put_off() -> Iterator[None]:
    """Disable the collection of cycles meanwhile, if it was enabled. Objects that are not in a cycle are freed immediately."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


__all__ = ["put_off"]
