"""`Allocate`: a tensor is there, and nothing is said about its values (Graphene, Table 1).

>>> from fireiron import *
>>> print(Allocate(64, 8)(SH)(Block))
Allocate(64,8)(SH)(Block)
"""

from __future__ import annotations

from typing import Final

from fireiron.spec import Kind

Allocate: Final = Kind("Allocate", "dst[...]").starter
"""`Allocate(M, N, dtype=float16)(SH)(Block)`: the leaf by which a decomposition of one's own makes room for a temporary."""

__all__ = ["Allocate"]
