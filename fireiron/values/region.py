"""Regions of a block's memory: address spaces, independent of the threads that share a memory."""

from __future__ import annotations

from fireiron.errors import ArgumentError
from fireiron.frozen import frozen


@frozen
class Region:
    """A separate address space of at most `bytes` bytes per block, which does not count as shared memory.

    Memories of one region share its bytes. A new region specifies how arrays in it are declared. If they are C++ arrays, ordinary
    instructions access them, otherwise special ones. Barriers depend only on the threads that share a memory, not on its region.
    """

    name: str
    bytes: int = 0

    def __attrs_post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise ArgumentError("the name of a region must be a non-empty string", got=self.name, legal="a word")
        if isinstance(self.bytes, bool) or not isinstance(self.bytes, int) or self.bytes < 0:
            raise ArgumentError(f"region {self.name}: illegal number of bytes", got=self.bytes, legal="0, 1, 2, ...")

    def declaration(self, kind: str, name: str, elements: str, align: int, offset: int) -> str:
        """The C++ declaration of an array with `elements` elements of a type, at byte `offset` of the region, which is a multiple of
        `align`.
        """
        raise NotImplementedError(f"region {self.name} does not define how arrays in it are declared")


SHARED = Region("shared memory")
"""Shared memory: its size depends on the target, and `allocate` assigns it."""

__all__ = ["SHARED", "Region"]
