"""`AtomicMax` and `AtomicMin`: atomic maximum and minimum in memory, by threads of any block, in no particular order.

>>> from fireiron import *
>>> print(AtomicMax(64, 32)(GL, GL)(Kernel).tile(8, 8).to(Block).tile(1, 1).to(Thread).result)
AtomicMax(1,1)(GL,GL)(Thread)
>>> print(AtomicMin(64)(GL, GL)(Kernel).tile(8).to(Block).tile(1).to(Thread).result)
AtomicMin(1)(GL,GL)(Thread)
"""

from __future__ import annotations

from typing import Final

from fireiron.spec import Kind

AtomicMax: Final = Kind("AtomicMax", "dst[...] max= src[...]", atomic=True).starter
"""`AtomicMax(M, N)`: each element of dst becomes the maximum of it and of an element of src. NaN is ignored. Source: decision 90."""

AtomicMin: Final = Kind("AtomicMin", "dst[...] min= src[...]", atomic=True).starter
"""`AtomicMin(M, N)`: each element of dst becomes the minimum of it and of an element of src. NaN is ignored. Source: decision 90."""

__all__ = ["AtomicMax", "AtomicMin"]
