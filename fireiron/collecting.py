"""Postpone garbage collection of cycles while a kernel is made.

Lowering allocates some hundred thousand objects that live until the program does. Each few hundred of them the collector looks through the
youngest, and now and then through all that the process holds, PyTorch included: a tenth of the time, for next to nothing that it finds.
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
