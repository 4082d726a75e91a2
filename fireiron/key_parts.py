"""Divide the keys of an attention with few queries into parts, which blocks process at the same time."""

from __future__ import annotations

from typing import Final

BLOCKS: Final = 528
"""Number of concurrent blocks: four per SM of an H200."""

FEWEST: Final = 128
"""Minimum number of keys in a part. With fewer keys, the combination of the parts takes more time than it saves."""


def size_for(keys: int, heads: int) -> int:
    """Return the number of keys in a part: the smallest multiple of 64 for which the blocks of all heads run concurrently.

    >>> size_for(4096, 64), size_for(1000, 1)
    (512, 128)
    """
    parts = max(1, BLOCKS // heads)
    return max(FEWEST, -(-keys // (64 * parts)) * 64)


__all__ = ["size_for"]
