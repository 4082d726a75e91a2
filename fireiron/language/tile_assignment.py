"""The assignment of tiles to blocks: a `Place`, a `Grouping` and a `Selection`, and the table of illegal combinations.

A `Place` maps an index u to a tile. A `Grouping` specifies which adjacent blocks belong together. A `Selection` specifies which tiles a
block computes. Refinements of a tile set them by `plan.with_order`, `plan.with_grouping` and `plan.with_selection`, and
`language.to_blocks` calls their methods. A new kind is a class in the file of its refinement. Its `illegal` extends the table.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar, Final

import attrs

from fireiron.errors import DecompositionError
from fireiron.frozen import frozen
from fireiron.ir import BlockCluster, For, Let, Stmt, effect
from fireiron.ir.effect import Effects
from fireiron.ir.effects.dependent_launch import DependentLaunch
from fireiron.ir.effects.joint_tiles import Combination, JointTiles
from fireiron.language.dividing import Step, product
from fireiron.language.grid import BodyNames, Names, NoNames
from fireiron.language.segments import Segment
from fireiron.language.tree import Draft
from fireiron.spec import Spec
from fireiron.values.expr import Expr, Var, as_expr, mod
from fireiron.values.machine import Level
from fireiron.values.tensor import View

MOST_CHECKED = 1 << 22
"""Largest number of blocks for which a place is checked to be a permutation."""

UNIT: Final = Var("uid", 0, 2**31 - 1)
"""The index of a unit, when a renumbering is checked."""


# ---------------------------------------------------------------------------------------------- illegal combinations


@frozen
class Pair:
    """A row of the table: `first` together with any of `others` is illegal.

    In the texts, `{0}` is the text of `first`, and `{1}` that of the first of `others` that the tile has.
    """

    first: str
    others: tuple[str, ...]
    what: str
    hint: str
    got: str | None = attrs.field(default=None, kw_only=True)
    late: bool = attrs.field(default=False, kw_only=True)
    """Whether the row is checked after the checks of the place and the grouping themselves."""

    def check(self, stated: Mapping[str, str]) -> None:
        """Refuse the pair if both names are in `stated`, which has the text for each name."""
        other = next((name for name in self.others if name in stated), None)
        if other is None or self.first not in stated:
            return
        texts = stated[self.first], stated[other]
        raise DecompositionError(self.what.format(*texts), got=self.got and self.got.format(*texts), hint=self.hint.format(*texts))


@frozen
class Aspect:
    """A place, a grouping or a selection."""

    illegal: ClassVar[tuple[Pair, ...]] = ()
    """Rows that this kind adds to the table."""

    @property
    def stated(self) -> Mapping[str, str]:
        """The names in the table that apply to this value, each with its text for messages."""
        return {}


# ---------------------------------------------------------------------------------------------- place: the tile of an index


def by_digits(digits: Sequence[Step], unit: Expr) -> list[tuple[Step, Expr]]:
    """Return the digits, fastest first, each with its value in an index; the last digit is the final quotient."""
    result, left = [], unit
    for position, digit in enumerate(digits):
        result.append((digit, left if position == len(digits) - 1 else mod(left, digit.size)))
        left = left // digit.size
    return result


@frozen
class Place(Aspect):
    """A map from an index `unit` to a tile. A kind has a `name` and a method `tile`; it is `proved`, or checked."""

    name: ClassVar[str]
    """The name of this kind in the table."""

    proved: ClassVar[bool] = False
    """Whether the map is a permutation for any number of tiles. If not, `require` checks it for the given number."""

    @property
    def stated(self) -> Mapping[str, str]:
        return {self.name: self.name}

    def __str__(self) -> str:
        return self.name

    def tile(self, spec: Spec, digits: Sequence[Step], unit: Expr, names: Names) -> Sequence[tuple[Step, Expr]]:
        """Return the digits, or parts of them, with the index of the tile along each, in the order in which they get names.

        `digits` are fastest first. The default is the digits of the index.
        """
        return by_digits(digits, unit)

    def of_clusters(self, lines: int, columns: int) -> Place:
        """Return the place of clusters of `lines` x `columns` tiles along the slowest and the fastest digit."""
        return self

    def require(self, spec: Spec, digits: Sequence[Step]) -> None:
        """Refuse a place that is not proved, and is not a permutation of the tiles."""
        if self.proved:
            return
        number = product(list(digits))
        if number is None:
            raise DecompositionError(
                f"{self.name}: the number of blocks is known only at run time, so the permutation cannot be checked",
                hint=f"use constant M and N, or remove the {self.name}",
            )
        if number > MOST_CHECKED:
            raise DecompositionError(f"{self.name} of {number} blocks: at most {MOST_CHECKED} can be checked")
        if not self.permutes(spec, digits, number):
            raise DecompositionError(f"{self} is not a permutation of the {number} blocks")

    def permutes(self, spec: Spec, digits: Sequence[Step], number: int) -> bool:
        """Return whether each of `number` tiles has exactly one index."""
        import numpy

        unit, units = Var("unit", 0, number - 1), numpy.arange(number)
        images = numpy.zeros(number, numpy.int64)
        for digit, index in self.tile(spec, digits, unit, NoNames()):
            size, values = digit.size.high, index.evaluate({unit.name: units})
            if numpy.any((values < 0) | (values >= size)):
                return False
            images = images * size + values
        return bool(numpy.array_equal(numpy.sort(images), units))


@frozen
class Digits(Place):
    """The tile with the digits of the index."""

    name: ClassVar[str] = "digits"
    proved: ClassVar[bool] = True


DIGITS: Final = Digits()
"""The default place."""


@frozen
class Renumbering(Place):
    """A renumbering of units of any level; another place maps the new indices to tiles."""

    def image(self, unit: Expr) -> Expr:
        """Return the new index of `unit`."""
        return unit

    def number(self, unit: Expr, tiles: Expr, names: Names) -> Expr:
        """Return the new index of block `unit`, among those of all tiles."""
        image = self.image(unit)
        return names.let("block_tile", image, high=tiles.high - 1) if image.variables() else unit

    def of_units(self, unit: Expr, units: int, level: Level) -> Expr:
        """Return the new index of `unit`, of a level below blocks. Raises: `DecompositionError` if two units have the same."""
        image = self.image(UNIT)
        seen: dict[int, int] = {}
        for uid in range(units):
            number = image.evaluate({UNIT.name: uid})
            if number in seen or not 0 <= number < units:
                out = f"{uid} maps to {number}, which is not in 0..{units - 1}"
                other = f"{seen[number]} and {uid} both map to {number}" if number in seen else out
                raise DecompositionError(f"{self} is not a permutation of the {units} {level} units: {other}")
            seen[number] = uid
        narrow = Var(f"uid_{units}", 0, units - 1)
        return self.image(narrow).substitute({narrow: unit}) if image.variables() else unit

    def permutes(self, spec: Spec, digits: Sequence[Step], number: int) -> bool:
        import numpy

        units = numpy.arange(number)
        images = numpy.broadcast_to(self.image(UNIT).evaluate({UNIT.name: units}), (number,))
        return bool(numpy.array_equal(numpy.sort(images), units))


# ---------------------------------------------------------------------------------------------- grouping of adjacent blocks


@frozen
class Gathered:
    """The result of a grouping.

    Attributes:
        views: the views at a block's tile in its group.
        order: the digits of the group index.
        cluster: the cluster, if groups are clusters.
        lines, columns: the tiles of a group along the slowest and the fastest digit.
    """

    views: dict[str, View]
    order: list[Step]
    cluster: BlockCluster | None = None
    lines: int = 1
    columns: int = 1


@frozen
class Grouping(Aspect):
    """Specifies which adjacent blocks form a group. By default, each block is alone."""

    @property
    def tiles(self) -> int:
        """The number of tiles of a group, one per block."""
        return 1

    @property
    def parts(self) -> int:
        """The number of blocks that share a tile."""
        return 1

    def gathered(self, spec: Spec, views: dict[str, View], order: list[Step], selection: Selection, draft: Draft) -> Gathered:
        """Return the views at a block's tile, and the digits of groups. Raises: `DecompositionError` if the tiles cannot be grouped."""
        return Gathered(views, order)

    def shared(self, block: Expr, draft: Draft) -> Expr:
        """Return the index of the tile of a block; it differs from the block index if blocks share tiles."""
        return block


@frozen
class Parts(Grouping):
    """Adjacent blocks compute parts of one tile, after a split of K over blocks; `part` is the index of a block's part."""

    part: Var

    @property
    def stated(self) -> Mapping[str, str]:
        return {"split_k": "split_k(.., Block)"}

    @property
    def parts(self) -> int:
        return self.part.high + 1

    def shared(self, block: Expr, draft: Draft) -> Expr:
        draft.define(self.part, mod(block, as_expr(self.parts)))
        return block // self.parts


# ---------------------------------------------------------------------------------------------- selection: the tiles of a block


@frozen
class SelectedTile:
    """The tiles of a block.

    Attributes:
        unit: the index of the tile.
        names: gives names to values that depend on the index.
        blocks: the number of launched blocks.
        loop: the loop over the tiles of a persistent block.
        tile: the statement that computes the index in the loop; None if `names` computes it.
        segment: the part of the tile's iterations that the block computes, if blocks share tiles by Stream-K.
        effects: the effects of the selection on the whole kernel.
    """

    unit: Expr
    names: Draft | BodyNames
    blocks: Expr
    loop: For | None = None
    tile: Let | None = None
    segment: Segment | None = None
    effects: Effects = effect.NONE

    @property
    def named(self) -> tuple[Stmt, ...]:
        """The first statements of the loop body."""
        names = self.names.lets if isinstance(self.names, BodyNames) else ()
        return (*(() if self.tile is None else (self.tile,)), *names)

    def around(self, *body: Stmt) -> tuple[Stmt, ...]:
        """Return the work of a block: `body`, or the loop over its tiles with this body."""
        return body if self.loop is None else (attrs.evolve(self.loop, body=(*self.named, *body)),)


@frozen
class Selection(Aspect):
    """Specifies which tiles a block computes. By default it computes one, so there are as many blocks as tiles."""

    groups: int = attrs.field(default=1, kw_only=True)
    """The number of consumer groups that alternate between the tiles of a block."""

    @property
    def stated(self) -> Mapping[str, str]:
        return {"once": "once", **self.of_groups}

    @property
    def of_groups(self) -> Mapping[str, str]:
        """The entries of the table for consumer groups."""
        return {"pingpong": f"pingpong({self.groups})"} if self.groups > 1 else {}

    @property
    def most(self) -> int:
        """The largest number of launched blocks; 0 means the number of tiles."""
        return 0

    def for_spec(self, spec: Spec) -> Selection:
        """Return the selection for the tiles of a spec. Raises: `DecompositionError` if blocks cannot compute the selected work of it."""
        return self

    def work(self, spec: Spec) -> Spec:
        """Return the spec of the work of a block, from that of its tile."""
        return spec

    def selected(self, block: Expr, tiles: Expr, together: int, draft: Draft) -> SelectedTile:
        """Return which of `tiles` tiles block `block` computes, if groups of `together` blocks compute adjacent tiles."""
        return SelectedTile(block, draft, tiles)


# ---------------------------------------------------------------------------------------------- the table and the assignment


def _one_counter(other: str, reason: str) -> Pair:
    return Pair("dynamic", (other,), f"{{0}}: {reason}", "remove {1} or dynamic=True", got="{1}", late=True)


ILLEGAL: Final = (
    Pair(
        "longest_first",
        ("rasterize", "cluster", "swizzle"),
        "longest_first: rasterize, cluster and swizzle also determine the tile of a block",
        "use only one of them",
    ),
    Pair("cluster", ("split_k", "swizzle"), "cluster: {1} also determines the tile of a block", "use cluster or {1}; or rasterize"),
    Pair(
        "pingpong",
        ("cluster",),
        "{0} in clusters: waits on mbarriers of other blocks are not proved for groups that alternate between tiles",
        "use cluster or {0}",
    ),
    Pair(
        "persistent",
        ("split_k", "swizzle"),
        "{0}: {1} also determines the tile of a block",
        "use persistent or {1}; or rasterize",
        late=True,
    ),
    Pair(
        "stream_k",
        ("split_k", "swizzle", "cluster", "pingpong", "ordered"),
        "{0}: blocks share the iterations of tiles, which {1} does not support",
        "use stream_k or {1}; persistent() with {1}",
        late=True,
    ),
    Pair("ordered", ("split_k",), "{0} on a tile: {1} states how blocks add to C", "split_k(...).ordered()"),
    Pair(
        "ordered",
        ("persistent", "cluster", "rasterize", "longest_first", "swizzle"),
        "{0}: blocks add in the order of their indices, but {1} assigns tiles to them in another order, so a block could wait for one that "
        "has not started",
        "remove {1}",
    ),
    Pair(
        "look_back",
        ("split_k", "persistent", "cluster", "rasterize", "longest_first", "swizzle", "programmatic_launch"),
        "{0}: a block waits for the tiles before its own, so blocks compute tiles in the order in which they start, but {1} assigns or "
        "starts them differently",
        "remove {1}",
    ),
    _one_counter("cluster", "the blocks of a cluster compute adjacent tiles, but each block claims its tiles from the counter"),
    _one_counter("pingpong", "groups alternate between tiles by index, and the last tile of a block is not known in advance"),
    _one_counter("programmatic_launch", "the preceding kernel may still claim tiles from the counter when this kernel starts"),
    Pair("pingpong", ("once",), "{0}: each block has one tile, so groups cannot alternate between tiles", "persistent().{0}", late=True),
)
"""The table of illegal combinations, in the order of the checks."""


@frozen
class TileAssignment:
    """The assignment of tiles to blocks: the places, the grouping and the selection that a tile specifies."""

    places: tuple[Place, ...] = ()
    grouping: Grouping = Grouping()
    selection: Selection = Selection()

    def with_order(self, place: Place) -> TileAssignment:
        """Return the assignment with one more place."""
        return attrs.evolve(self, places=(*self.places, place))

    @property
    def place(self) -> Place:
        """The place that maps indices to tiles."""
        return next(self._tiling(), DIGITS)

    @property
    def renumberings(self) -> tuple[Renumbering, ...]:
        """The renumberings of units, in order."""
        return tuple(place for place in self.places if isinstance(place, Renumbering))

    @property
    def of_blocks(self) -> bool:
        """Whether the assignment specifies anything that is legal only for blocks."""
        return self is not PLAIN and self != TileAssignment(self.renumberings)

    @property
    def _aspects(self) -> tuple[Aspect, ...]:
        return (*self.places, self.grouping, self.selection)

    def _tiling(self) -> Iterator[Place]:
        return (place for place in self.places if not isinstance(place, Renumbering))

    def stated(self, effects: Effects) -> dict[str, str]:
        """Return all names of the table that apply, with their texts for messages."""
        texts = {name: text for aspect in self._aspects for name, text in aspect.stated.items()}
        combination = effects[JointTiles].combination
        return {
            **texts,
            **({"programmatic_launch": "programmatic_launch"} if effects[DependentLaunch].enabled else {}),
            **({"ordered": "ordered()"} if combination is Combination.ORDERED else {}),
            **({"look_back": "look_back()"} if combination is Combination.LOOK_BACK else {}),
        }

    def check(self, stated: Mapping[str, str], late: bool) -> None:
        """Refuse illegal combinations: the rows of the table, those of the aspects, and two places."""
        for pair in (*ILLEGAL, *(pair for aspect in self._aspects for pair in aspect.illegal)):
            if pair.late == late:
                pair.check(stated)
        names = [place.name for place in self._tiling()]
        if len(names) > 1:
            raise DecompositionError(f"{names[0]}: {names[1]} also determines the tile of a block", hint="use one of them")


PLAIN: Final = TileAssignment()
"""One tile per block, by the digits of the block index."""
