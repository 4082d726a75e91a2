"""Regions of a block's memory: where addresses are, apart from who shares what lies there."""

from __future__ import annotations

import attrs

from fireiron.errors import ArgumentError


@attrs.frozen
class Region:
    """Bytes of a block that are numbered by themselves, and do not take from those of shared memory: at most `bytes` of them.

    Memories of one region share its bytes. A region of its own states how an array in it is declared; instructions of one's own reach it,
    or the plain ones where its arrays are C++ arrays. Who shares a memory decides about barriers, whatever its region is.
    """

    name: str
    bytes: int = 0

    def __attrs_post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise ArgumentError("a region has a name", got=self.name, legal="a word")
        if isinstance(self.bytes, bool) or not isinstance(self.bytes, int) or self.bytes < 0:
            raise ArgumentError(f"region {self.name}: bytes of a block", got=self.bytes, legal="0, 1, 2, ...")

    def declaration(self, kind: str, name: str, elements: str, align: int, offset: int) -> str:
        """The C++ of an array of `elements` of a type, which begins at byte `offset` of the region and a multiple of `align` bytes."""
        raise NotImplementedError(f"region {self.name} does not say how an array in it is declared")


SHARED = Region("shared memory")
"""Shared memory: as many bytes as the target has, which `allocate` deals."""

__all__ = ["SHARED", "Region"]
