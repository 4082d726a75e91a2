"""The kinds of spec, one per file; `spec.py` has what they share. The folder is the registry: `__all__` of a file lists the names that
`fireiron` exports.

May import: values and spec.py.
"""

from __future__ import annotations

import functools
from types import ModuleType

from fireiron import folders


@functools.cache
def modules() -> tuple[ModuleType, ...]:
    """The modules of this folder, in alphabetical order. This is a function, because `spec.py` itself imports some of them."""
    return folders.modules(__name__, __path__)
