"""`Shfl` and its like: threads receive what others of their group hold (Graphene, Table 1; `shfl.sync` of the PTX ISA, its four modes).

>>> import numpy
>>> from fireiron import *
>>> lanes = numpy.arange(8).reshape(8, 1)
>>> for spec in Shfl(1, 8, 1), ShflIdx(2, 8, 1, width=4):
...     print(spec(RF, RF)(Warp).reference(lanes).ravel())
[1. 0. 3. 2. 5. 4. 7. 6.]
[2. 2. 2. 2. 6. 6. 6. 6.]
>>> for spec in ShflUp(1, 8, 1, width=4), ShflDown(1, 8, 1, width=4):
...     print(spec(RF, RF)(Warp).reference(lanes).ravel())
[0. 0. 1. 2. 4. 4. 5. 6.]
[1. 2. 3. 3. 5. 6. 7. 7.]
"""

from __future__ import annotations

from typing import Final

from fireiron.spec import Kind, Parameter

WIDTH: Final = Parameter("width", 32)

Shfl: Final = Kind("Shfl", "dst[t,v] = src[t ^ {mask},v]", (Parameter("mask"),)).starter
"""`Shfl(mask, T, V)`: value `v` of thread `t` becomes that of thread `t ^ mask`, of T threads, a power of two."""

ShflIdx: Final = Kind("ShflIdx", "dst[t,v] = src[t = {lane} in {width},v]", (Parameter("lane"), WIDTH)).starter
"""`ShflIdx(lane, T, V, width=32)`: in each group of `width` threads all receive what the one of number `lane` holds."""

ShflUp: Final = Kind("ShflUp", "dst[t,v] = src[t - {delta} in {width},v]", (Parameter("delta"), WIDTH)).starter
"""`ShflUp(delta, T, V, width=32)`: what the thread `delta` before in the group holds; the first ones keep what they have."""

ShflDown: Final = Kind("ShflDown", "dst[t,v] = src[t + {delta} in {width},v]", (Parameter("delta"), WIDTH)).starter
"""`ShflDown(delta, T, V, width=32)`: what the thread `delta` further on in the group holds; the last ones keep what they have."""

__all__ = ["Shfl", "ShflDown", "ShflIdx", "ShflUp"]
