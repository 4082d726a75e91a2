"""The kinds of requests to passes, one per file (see `fireiron.ir.ask`)."""

from __future__ import annotations

import functools

from fireiron import folders
from fireiron.ir.ask import Ask


@functools.cache
def kinds() -> tuple[type[Ask], ...]:
    """The kinds in this folder, in the order of their files."""
    exported = (getattr(module, name) for module in folders.modules(__name__, __path__) for name in module.__all__)
    return tuple(one for one in exported if issubclass(one, Ask))


__all__ = ["kinds"]
