"""The kinds of spec, one a file, beside what `spec.py` says of all. The folder is the registry: a file says by `__all__` which of its
names stand in `fireiron`.

May import: values and spec.py.
"""

from __future__ import annotations

import functools
from types import ModuleType

from fireiron import folders


@functools.cache
def modules() -> tuple[ModuleType, ...]:
    """The files of the folder, in the order of their names; no constant, because `spec.py` itself needs some of them."""
    return folders.modules(__name__, __path__)
