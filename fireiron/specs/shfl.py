"""`Shfl`: threads exchange what they hold, in pairs whose numbers differ in the bits of a mask (Graphene, Table 1; `shfl.sync.bfly`)."""

from __future__ import annotations

from typing import Final

from fireiron.spec import Kind, Parameter, Starter

Shfl: Final = Starter(Kind("Shfl", "dst[t,v] = src[t ^ {mask},v]", (Parameter("mask"),)))
"""`Shfl(mask, T, V)`: value `v` of thread `t` becomes that of thread `t ^ mask`, of T threads, a power of two."""

__all__ = ["Shfl"]
