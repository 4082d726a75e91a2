"""`Shfl` and its like: threads receive what others of their group hold (Graphene, Table 1; `shfl.sync` of the PTX ISA, its four modes)."""

from __future__ import annotations

from typing import Final

from fireiron.spec import Kind, Parameter, Starter

WIDTH: Final = Parameter("width", 32)

Shfl: Final = Starter(Kind("Shfl", "dst[t,v] = src[t ^ {mask},v]", (Parameter("mask"),)))
"""`Shfl(mask, T, V)`: value `v` of thread `t` becomes that of thread `t ^ mask`, of T threads, a power of two."""

ShflIdx: Final = Starter(Kind("ShflIdx", "dst[t,v] = src[t = {lane} in {width},v]", (Parameter("lane"), WIDTH)))
"""`ShflIdx(lane, T, V, width=32)`: in each group of `width` threads all receive what the one of number `lane` holds."""

ShflUp: Final = Starter(Kind("ShflUp", "dst[t,v] = src[t - {delta} in {width},v]", (Parameter("delta"), WIDTH)))
"""`ShflUp(delta, T, V, width=32)`: what the thread `delta` before in the group holds; the first ones keep what they have."""

ShflDown: Final = Starter(Kind("ShflDown", "dst[t,v] = src[t + {delta} in {width},v]", (Parameter("delta"), WIDTH)))
"""`ShflDown(delta, T, V, width=32)`: what the thread `delta` further on in the group holds; the last ones keep what they have."""

__all__ = ["Shfl", "ShflDown", "ShflIdx", "ShflUp"]
