"""`Allocate`: the allocation of a tensor whose values are unspecified (Graphene, Table 1).

>>> from fireiron import *
>>> print(Allocate(64, 8)(SH)(Block))
Allocate(64,8)(SH)(Block)
"""

from __future__ import annotations

from typing import Final

from fireiron.spec import Kind

Allocate: Final = Kind("Allocate", "dst[...]").starter
"""`Allocate(M, N, dtype=float16)(SH)(Block)`: the leaf by which a user's decomposition allocates a temporary."""

__all__ = ["Allocate"]
