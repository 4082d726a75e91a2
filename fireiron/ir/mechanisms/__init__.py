"""The completion mechanisms, one per file (see `fireiron.ir.mechanism`).

The folder is the registry: each file defines `MECHANISM`.
"""

from __future__ import annotations

import functools

from fireiron import folders
from fireiron.ir.mechanism import Mechanism


@functools.cache
def kinds() -> tuple[Mechanism, ...]:
    """The mechanisms of the folder, by rank."""
    return tuple(sorted((module.MECHANISM for module in folders.modules(__name__, __path__)), key=lambda one: one.rank))


__all__ = ["kinds"]
