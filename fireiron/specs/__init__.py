"""The kinds of spec, one per file. `spec.py` contains their base classes. The folder is the registry: `__all__` of a file lists the names
that `fireiron` exports.

May import: values and spec.py.
"""

from __future__ import annotations

import functools
from types import ModuleType

from fireiron import folders


@functools.cache
def modules() -> tuple[ModuleType, ...]:
    """Return the modules of this folder, in alphabetical order. A constant would import them too early: `spec.py` itself imports some."""
    return folders.modules(__name__, __path__)
