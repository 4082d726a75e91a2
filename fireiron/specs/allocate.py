"""`Allocate`: a tensor is there, and nothing is said about its values (Graphene, Table 1)."""

from __future__ import annotations

from typing import Final

from fireiron.spec import Kind, Starter

Allocate: Final = Starter(Kind("Allocate", "dst[...]"))
"""`Allocate(M, N, dtype=float16)(SH)(Block)`."""

__all__ = ["Allocate"]
