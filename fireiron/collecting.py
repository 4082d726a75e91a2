"""Postpone garbage collection of cycles while a kernel is compiled.

Lowering allocates some hundred thousand objects that live as long as the program. The collector would examine the youngest objects after
every few hundred allocations, and sometimes all objects of the process, including those of PyTorch. This takes a tenth of the time and
frees almost no memory.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator
from typing import Final


class _Program:
    """The process. Counting its frozen objects takes time per object, so it ends with the first count above 0."""

    has_frozen = False

    def has_frozen_objects(self) -> bool:
        """Whether `unfreeze` would release objects that the program itself has frozen."""
        self.has_frozen = self.has_frozen or gc.get_freeze_count() > 0
        return self.has_frozen


_program: Final = _Program()


@contextlib.contextmanager
def postponed(keeps: bool = False) -> Iterator[None]:
    """Disable the collection of cycles in the enclosed block. Objects that are not in a cycle are still freed immediately.

    If the caller `keeps` the new objects, they belong to the oldest generation afterwards. Otherwise the next allocation would start a
    collection of all objects of the process (0.04 s with PyTorch).
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            if keeps and not _program.has_frozen_objects():
                gc.freeze()
                gc.unfreeze()
            gc.enable()


__all__ = ["postponed"]
