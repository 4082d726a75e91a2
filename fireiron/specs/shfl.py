"""`Shfl` and its variants: threads receive values of other threads of their group (Graphene, Table 1; `shfl.sync` of the PTX ISA).

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
"""`Shfl(mask, T, V)`: thread `t` receives value `v` of thread `t ^ mask`, among T threads, a power of two."""

ShflIdx: Final = Kind("ShflIdx", "dst[t,v] = src[t = {lane} in {width},v]", (Parameter("lane"), WIDTH)).starter
"""`ShflIdx(lane, T, V, width=32)`: in each group of `width` threads, all threads receive the values of thread number `lane`."""

ShflUp: Final = Kind("ShflUp", "dst[t,v] = src[t - {delta} in {width},v]", (Parameter("delta"), WIDTH)).starter
"""`ShflUp(delta, T, V, width=32)`: thread `t` receives the values of thread `t - delta` of its group; the first threads keep their own."""

ShflDown: Final = Kind("ShflDown", "dst[t,v] = src[t + {delta} in {width},v]", (Parameter("delta"), WIDTH)).starter
"""`ShflDown(delta, T, V, width=32)`: thread `t` receives the values of thread `t + delta` of its group; the last threads keep their own."""

__all__ = ["Shfl", "ShflDown", "ShflIdx", "ShflUp"]
