"""Sharers: the threads that share one copy of a memory, from all GPUs to a single thread; an open list, ordered by size.

Barriers, fences and checks support some sharers; a tensor in a memory with other sharers is refused.
"""

from __future__ import annotations

import attrs

from fireiron.errors import ArgumentError
from fireiron.values.level import Block, Kernel, Level, Thread, Warp, Warpgroup


@attrs.frozen(eq=False, repr=False)
class Sharer:
    """The threads that share one copy of a memory.

    `rank` orders sharers: a smaller rank means more threads. `level` is the level of which one unit shares a copy, if there is one. A
    sharer is equal to its name. A memory refuses a new sharer with the name of a known one.

    >>> from fireiron.values.sharer import BLOCK, WARP
    >>> BLOCK.includes(WARP), WARP.includes(BLOCK), BLOCK == "block"
    (True, False, True)
    """

    name: str
    rank: int
    level: Level | None = None

    def __attrs_post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name.strip():
            raise ArgumentError("the name of a sharer must be a non-empty string", got=self.name, legal="a word")
        if isinstance(self.rank, bool) or not isinstance(self.rank, int):
            raise ArgumentError(
                f"sharer {self.name}: the rank must be an integer", got=self.rank, legal="an integer, larger for fewer threads"
            )

    @property
    def is_ordered(self) -> bool:
        """Whether passes and checks order accesses among these sharers."""
        return self.name in ORDERED

    def includes(self, other: Sharer) -> bool:
        """Whether threads that share a copy of an `other` memory also share a copy of a memory with this sharer."""
        return self.rank <= other.rank

    def __eq__(self, other: object) -> bool:
        return self.name == (other.name if isinstance(other, Sharer) else other)

    def __hash__(self) -> int:
        return hash(self.name)

    def __repr__(self) -> str:
        return repr(self.name)

    def __str__(self) -> str:
        return self.name


SYSTEM = Sharer("system", 0)
"""All GPUs and the host."""

GRID = Sharer("grid", 10, Kernel)
"""All blocks of a launch, and later launches: the caller's arrays."""

CLUSTER = Sharer("cluster", 20)
"""The blocks of a cluster."""

BLOCK = Sharer("block", 30, Block)
"""The threads of a block, synchronized by barriers."""

WARPGROUP = Sharer("warpgroup", 40, Warpgroup)
"""The threads of a warpgroup."""

WARP = Sharer("warp", 50, Warp)
"""The threads of a warp."""

THREAD = Sharer("thread", 60, Thread)
"""A single thread, which needs no synchronization."""

ORDERED = frozenset((GRID.name, BLOCK.name, THREAD.name))
"""The sharers among which passes and checks order accesses."""

SHARERS: tuple[Sharer, ...] = (SYSTEM, GRID, CLUSTER, BLOCK, WARPGROUP, WARP, THREAD)
"""The known sharers, those with the most threads first."""


def as_sharer(value: object) -> Sharer:
    """A sharer, given as a value or by name; an `ArgumentError` that lists them for any other."""
    for sharer in SHARERS:
        if isinstance(value, str) and value == sharer.name:
            return sharer
        if isinstance(value, Sharer) and value == sharer and _facts(value) != _facts(sharer):
            raise ArgumentError(f"sharer {value}: the name is taken", got=_facts(value), legal=_facts(sharer), hint="another name")
    if isinstance(value, Sharer):
        return value
    raise ArgumentError("memory: unknown shared_by", got=value, legal=[sharer.name for sharer in SHARERS])


def _facts(sharer: Sharer) -> tuple[object, ...]:
    return sharer.rank, sharer.level


def refused_sharer(memory: str, sharer: Sharer, tensor: str) -> ArgumentError:
    """The error for a tensor in a memory for whose sharers no pass orders accesses."""
    return ArgumentError(
        f"{tensor} in {memory}: passes do not order accesses among the threads that share this memory",
        got=f"shared by a {sharer}", legal=[known.name for known in SHARERS if known.is_ordered],
        hint="use a memory with other sharers: Memory(..., 'block', ...)",
    )  # fmt: skip


__all__ = ["BLOCK", "CLUSTER", "GRID", "SHARERS", "SYSTEM", "THREAD", "WARP", "WARPGROUP", "Sharer", "as_sharer", "refused_sharer"]
