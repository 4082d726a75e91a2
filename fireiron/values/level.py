"""Levels of the machine, from launches to single threads; a level above `Kernel` consists of launches.

A new level is a new value: below `Kernel` a layout over the threads of its parent, above it a name and the level that its units consist of.
"""

from __future__ import annotations

import functools

import attrs

from fireiron.errors import ArgumentError
from fireiron.values.layout import Layout


@attrs.frozen(repr=False, eq=False)
class Level:
    """A group of threads, as a layout over the threads of its parent (Graphene, section 4).

    `layout` specifies the threads of the first unit in the parent: `Warp` is `32:1` of a warpgroup, `QuadPair` is `(4,2):(1,16)` of a warp.
    Its complement in the parent numbers the units. `Kernel` and `Block` have no layout: a strategy determines their sizes. `label` is used
    for variable names in generated code. A unit of a level above `Kernel` has no threads: it consists of units of the level `consists_of`,
    which are launched in order, or on `units` GPUs.

    >>> Half = Level("Half", Warp, Layout(16))
    >>> Half.threads, str(Half.layout)
    (16, '16:1')
    >>> Sequence = Level("Sequence", consists_of=Kernel)
    >>> Kernel.is_below(Sequence), Warp.is_below(Sequence), Sequence.is_below(Kernel)
    (True, True, False)
    """

    name: str
    parent: Level | None = None
    layout: Layout | None = None
    label: str = ""
    consists_of: Level | None = None
    units: int | None = None

    def __attrs_post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name.isidentifier():
            raise ArgumentError("a level's name must be an identifier", got=self.name)
        if self.parent is not None and not isinstance(self.parent, Level):
            raise ArgumentError(f"level {self.name}: the parent must be a level", got=self.parent)
        if self.layout is not None and not isinstance(self.layout, Layout):
            raise ArgumentError(
                f"level {self.name}: the layout must be a Layout over the parent's threads", got=self.layout, legal="Layout(32)"
            )
        if self.consists_of is not None:
            self._check_consists()
        if self.units is not None and not (type(self.units) is int and self.units >= 1 and self.consists_of is not None):
            raise ArgumentError(f"level {self.name}: the number of its units must be a positive integer", got=self.units, legal="Node(2)")
        if not all(self.strides):
            raise ArgumentError(f"level {self.name}: its threads must be distinct", got=self.layout, legal="strides of at least 1")
        if not isinstance(self.label, str) or (self.label and not self.label.isidentifier()):
            raise ArgumentError(f"level {self.name}: its label names variables, so it must be an identifier", got=self.label)
        if not self.label:
            object.__setattr__(self, "label", self.name.lower())
        self._check_tiles_parent()

    def _check_consists(self) -> None:
        """A level above launches has no threads, and no level contains itself."""
        if not isinstance(self.consists_of, Level) or not (self.consists_of.is_launch or self.consists_of.is_above_launch):
            raise ArgumentError(
                f"level {self.name}: its units must consist of whole launches", got=self.consists_of, legal="consists_of=Kernel"
            )
        if self.parent is not None or self.layout is not None:
            raise ArgumentError(
                f"level {self.name}: it consists of {self.consists_of}, so it has no threads",
                got=self.layout if self.parent is None else self.parent, legal="neither a parent nor a layout",
            )  # fmt: skip

    def _check_tiles_parent(self) -> None:
        """A group must tile its parent like a layout with a complement: each mode starts at a multiple of the end of the previous one."""
        reached = 1
        for stride, size in sorted(zip(self.strides, self.sizes, strict=True)):
            if stride % reached:
                raise ArgumentError(
                    f"level {self.name}: threads {self.sizes}:{self.strides} overlap or do not tile {self.parent}",
                    legal=f"strides that are multiples of {reached}",
                )
            reached = stride * size
        if self.parent is not None and self.parent.threads is not None and self.parent.threads % reached:
            raise ArgumentError(
                f"level {self.name}: {reached} threads from first to last do not divide the {self.parent.threads} of {self.parent.name}"
            )

    @property
    def sizes(self) -> tuple[int, ...]:
        """The sizes of the layout's leaves."""
        return () if self.layout is None else tuple(size for size, _ in self.layout.modes)

    @property
    def strides(self) -> tuple[int, ...]:
        """The strides of the layout's leaves."""
        return () if self.layout is None else tuple(stride for _, stride in self.layout.modes)

    @functools.cached_property
    def threads(self) -> int | None:
        """Threads in one unit; None for Kernel and Block, whose sizes a strategy determines."""
        return None if self.layout is None else self.layout.size()

    @property
    def is_launch(self) -> bool:
        """Whether a unit is a launch, with threads and the kernel's arguments; levels above consist of launches."""
        return self == Kernel

    @property
    def is_above_launch(self) -> bool:
        """Whether a unit consists of several launches, which are connected only by arrays in global memory."""
        return self.consists_of is not None

    @property
    def has_arguments(self) -> bool:
        """Whether the operands of a spec at this level are the caller's arrays."""
        return self.consists_of is not None or self.is_launch

    def __eq__(self, other: object) -> bool:
        # A compilation compares levels thousands of times, mostly with themselves or with one of another name.
        if self is other or not isinstance(other, Level):
            return self is other or NotImplemented
        return self.name == other.name and self._rest == other._rest

    @property
    def _rest(self) -> tuple[object, ...]:
        return self.label, self.layout, self.parent, self.consists_of, self.units

    def __hash__(self) -> int:
        return self._hash

    @functools.cached_property
    def _hash(self) -> int:
        return hash((self.name, *self._rest))

    def ancestors(self) -> tuple[Level, ...]:
        """The levels above, nearest first."""
        return () if self.parent is None else (self.parent, *self.parent.ancestors())

    def is_below(self, other: Level) -> bool:
        """Whether a unit of the other level consists of units of this one.

        A single thread is below every group that its parent contains (a lane is below a quad-pair), and `Thread`, whose parent is the
        block, is below every group of threads.
        """
        if other in self.ancestors():
            return True
        if other.consists_of is not None:
            return self == other.consists_of or self.is_below(other.consists_of)
        single = self.threads == 1 and other.threads is not None and other.threads > 1
        return single and self.parent is not None and self.parent in other.ancestors()

    def __call__(self, units: int) -> Level:
        """The level with a number of units: `Node(2)` has two GPUs. Raises: ArgumentError for a level with threads."""
        if self.consists_of is None:
            raise ArgumentError(f"level {self.name}: a strategy determines the number of its units", got=units, legal="Node(2)")
        return attrs.evolve(self, units=units)

    @property
    def gpus(self) -> int | None:
        """The number of GPUs of a unit; None for levels below a node."""
        return self.units if self.consists_of == GPU else None

    def __repr__(self) -> str:
        return self.name if self.units is None else f"{self.name}({self.units})"

    __str__ = __repr__


Kernel = Level("Kernel")
"""The whole launch: the level of the specs that strategies start from."""

GPU = Level("GPU", consists_of=Kernel)
"""A GPU of a node, which performs its part of each launch."""

Node = Level("Node", consists_of=GPU)
"""GPUs of one host that access each other's memory: `Node(2)` has two. Each of them performs all launches."""

Block = Level("Block", Kernel)
"""A block of threads, which share SH and barriers; its size is the number of threads that its tiles are distributed over."""

Warpgroup = Level("Warpgroup", Block, Layout(128))
"""Four warps, which issue `wgmma` together (PTX ISA, "Warpgroup")."""

Warp = Level("Warp", Warpgroup, Layout(32))
"""The 32 threads that execute in lockstep, and share tensor core instructions."""

QuadPair = Level("QuadPair", Warp, Layout((4, 2), (1, 16)))
"""Four lanes and the four lanes 16 further on, which perform Volta's m8n8k4 (Graphene, Figure 5)."""

Thread = Level("Thread", Block, Layout(1))
"""One thread, numbered in its block."""

Lane = Level("Lane", Warp, Layout(1))
"""One thread, numbered in its warp."""

LEVELS: tuple[Level, ...] = (Kernel, Block, Warpgroup, Warp, QuadPair, Thread, Lane)

__all__ = ["GPU", "LEVELS", "Block", "Kernel", "Lane", "Level", "Node", "QuadPair", "Thread", "Warp", "Warpgroup"]
