"""How tiles go to blocks, as three values: a place, a grouping, and a taking; and the table of what is not said together.

A `Place` specifies which tile is number u, a `Grouping` which neighbouring blocks are together, a `Taking` how a block takes its tiles.
Refinements of a tile state them by `plan.with_order`, `plan.with_grouping` and `plan.taking`, and `language.to_blocks` asks their methods.
A new kind is a class in the file of its refinement, whose `illegal` extends the table.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar, Final

import attrs

from fireiron.errors import DecompositionError
from fireiron.ir import BlockCluster, For, Let, Stmt
from fireiron.ir.effect import Effects
from fireiron.ir.effects.chaining import Chaining
from fireiron.language.dividing import Step, product
from fireiron.language.grid import Inside, Names, Unnamed
from fireiron.language.tree import Draft
from fireiron.spec import Spec
from fireiron.values.expr import Expr, Var, as_expr, mod
from fireiron.values.machine import Level
from fireiron.values.tensor import View

MOST_CHECKED = 1 << 22
"""Most blocks for which a place is checked to be a permutation."""

UNIT: Final = Var("uid", 0, 2**31 - 1)
"""The number of a unit, as a renumbering is checked."""


# ---------------------------------------------------------------------------------------------- what is not said together


@attrs.frozen
class Pair:
    """What is refused where a tile says `first` and any of `others`; `{0}` is what is said of the first, `{1}` of the first such other."""

    first: str
    others: tuple[str, ...]
    what: str
    hint: str
    got: str | None = attrs.field(default=None, kw_only=True)
    late: bool = attrs.field(default=False, kw_only=True)
    """Whether it is about how tiles are taken: refused after what a place or a grouping refuses by itself."""

    def check(self, said: Mapping[str, str]) -> None:
        """Refuse the pair in what is said, by name."""
        other = next((name for name in self.others if name in said), None)
        if other is None or self.first not in said:
            return
        texts = said[self.first], said[other]
        raise DecompositionError(self.what.format(*texts), got=self.got and self.got.format(*texts), hint=self.hint.format(*texts))


@attrs.frozen
class Aspect:
    """A place, a grouping or a taking."""

    illegal: ClassVar[tuple[Pair, ...]] = ()
    """Rows of the table that this kind brings with it."""

    @property
    def said(self) -> Mapping[str, str]:
        """The names by which the table knows it, each with the text in messages."""
        return {}


# ---------------------------------------------------------------------------------------------- which tile is number u


def by_digits(digits: Sequence[Step], unit: Expr) -> list[tuple[Step, Expr]]:
    """Digits, fastest first, with those of a number; the last digit takes what is left."""
    result, left = [], unit
    for position, digit in enumerate(digits):
        result.append((digit, left if position == len(digits) - 1 else mod(left, digit.size)))
        left = left // digit.size
    return result


@attrs.frozen
class Place(Aspect):
    """Which tile is number `unit`. A kind has a `name`, and `tile`; it is `proved`, or checked."""

    name: ClassVar[str]
    """How the table names it."""

    proved: ClassVar[bool] = False
    """Whether each tile has one number, however many tiles there are. Otherwise `require` checks it for the tiles at hand."""

    @property
    def said(self) -> Mapping[str, str]:
        return {self.name: self.name}

    def __str__(self) -> str:
        return self.name

    def tile(self, spec: Spec, digits: Sequence[Step], unit: Expr, names: Names) -> Sequence[tuple[Step, Expr]]:
        """The digits, or parts of them, with the index of the tile along each, in the order in which they are named.

        `digits` are fastest first. Without a method of its own a place has the digits of the number.
        """
        return by_digits(digits, unit)

    def of_clusters(self, lines: int, columns: int) -> Place:
        """The place of clusters, each of a number of tiles along the slowest and the fastest digit."""
        return self

    def require(self, spec: Spec, digits: Sequence[Step]) -> None:
        """Refuse a place that is not proved, and gives a tile no number, or two."""
        if self.proved:
            return
        number = product(list(digits))
        if number is None:
            raise DecompositionError(
                f"{self.name} of blocks whose number is known only at run time cannot be proved a permutation",
                hint=f"fix M and N, or leave the {self.name} out",
            )
        if number > MOST_CHECKED:
            raise DecompositionError(f"{self.name} over {number} blocks: at most {MOST_CHECKED} can be checked")
        if not self.permutes(spec, digits, number):
            raise DecompositionError(f"{self} is no permutation of the {number} blocks")

    def permutes(self, spec: Spec, digits: Sequence[Step], number: int) -> bool:
        """Whether each of `number` tiles has one number; an index outside its digit counts as none."""
        import numpy

        unit, units = Var("unit", 0, number - 1), numpy.arange(number)
        images = numpy.zeros(number, numpy.int64)
        for digit, index in self.tile(spec, digits, unit, Unnamed()):
            size, values = digit.size.high, index.evaluate({unit.name: units})
            if numpy.any((values < 0) | (values >= size)):
                return False
            images = images * size + values
        return bool(numpy.array_equal(numpy.sort(images), units))


@attrs.frozen
class Digits(Place):
    """The tile with the digits of the number."""

    name: ClassVar[str] = "digits"
    proved: ClassVar[bool] = True


DIGITS: Final = Digits()
"""The place of tiles for which none is stated."""


@attrs.frozen
class Renumbering(Place):
    """Other numbers for units, of any level; another place specifies which tile has such a number."""

    def image(self, unit: Expr) -> Expr:
        """The number in the place of `unit`."""
        return unit

    def number(self, unit: Expr, tiles: Expr, names: Names) -> Expr:
        """The number of a block in the place of `unit`, among those of all tiles."""
        image = self.image(unit)
        return names.let("block_tile", image, high=tiles.high - 1) if image.variables() else unit

    def of_units(self, unit: Expr, units: int, level: Level) -> Expr:
        """The number of a unit of another level in the place of `unit`; a `DecompositionError` where two units have one."""
        image = self.image(UNIT)
        seen: dict[int, int] = {}
        for uid in range(units):
            number = image.evaluate({UNIT.name: uid})
            if number in seen or not 0 <= number < units:
                out = f"{uid} goes to {number}, outside 0..{units - 1}"
                other = f"{seen[number]} and {uid} both go to {number}" if number in seen else out
                raise DecompositionError(f"{self} is no permutation of the {units} {level} units: {other}")
            seen[number] = uid
        narrow = Var(f"uid_{units}", 0, units - 1)
        return self.image(narrow).substitute({narrow: unit}) if image.variables() else unit

    def permutes(self, spec: Spec, digits: Sequence[Step], number: int) -> bool:
        import numpy

        units = numpy.arange(number)
        images = numpy.broadcast_to(self.image(UNIT).evaluate({UNIT.name: units}), (number,))
        return bool(numpy.array_equal(numpy.sort(images), units))


# ---------------------------------------------------------------------------------------------- which blocks are together


@attrs.frozen
class Gathered:
    """Views at a block's tile in its group, the digits that number groups, the cluster, and the tiles of a group along the slowest and the
    fastest digit."""

    views: dict[str, View]
    order: list[Step]
    cluster: BlockCluster | None = None
    lines: int = 1
    columns: int = 1


@attrs.frozen
class Grouping(Aspect):
    """Which neighbouring blocks are together: here none, each block is alone."""

    @property
    def tiles(self) -> int:
        """The tiles of a group, one for each of its blocks."""
        return 1

    @property
    def parts(self) -> int:
        """The blocks that share a tile."""
        return 1

    def gathered(self, spec: Spec, views: dict[str, View], order: list[Step], taking: Taking, draft: Draft) -> Gathered:
        """The views at a block's tile in its group, and the digits of groups; a `DecompositionError` for tiles that form none."""
        return Gathered(views, order)

    def shared(self, block: Expr, draft: Draft) -> Expr:
        """The number of a block among those of other tiles, where blocks share one."""
        return block


@attrs.frozen
class Parts(Grouping):
    """Neighbouring blocks have parts of one tile, as a split of K to Block before specifies; `part` is the number of a block's part."""

    part: Var

    @property
    def said(self) -> Mapping[str, str]:
        return {"split_k": "split_k(.., Block)"}

    @property
    def parts(self) -> int:
        return self.part.high + 1

    def shared(self, block: Expr, draft: Draft) -> Expr:
        draft.define(self.part, mod(block, as_expr(self.parts)))
        return block // self.parts


# ---------------------------------------------------------------------------------------------- how a block takes tiles


@attrs.frozen
class Taken:
    """The number of a block's tile, where values of it are named, how many blocks are launched, and the loop of those that take several."""

    unit: Expr
    names: Draft | Inside
    blocks: Expr
    loop: For | None = None
    tile: Let | None = None

    @property
    def named(self) -> tuple[Stmt, ...]:
        """The statements that come first in the loop."""
        return (self.tile, *self.names.lets) if self.tile is not None and isinstance(self.names, Inside) else ()

    def around(self, *body: Stmt) -> tuple[Stmt, ...]:
        """What a block does with each of its tiles, for all of them."""
        return body if self.loop is None else (attrs.evolve(self.loop, body=(*self.named, *body)),)


@attrs.frozen
class Taking(Aspect):
    """How a block takes tiles: here one, and there are as many blocks as tiles."""

    groups: int = attrs.field(default=1, kw_only=True)
    """The groups of consumers of a block that have its tiles alternately."""

    @property
    def said(self) -> Mapping[str, str]:
        return {"once": "once", **self.of_groups}

    @property
    def of_groups(self) -> Mapping[str, str]:
        """What is said of groups of consumers."""
        return {"pingpong": f"pingpong({self.groups})"} if self.groups > 1 else {}

    @property
    def most(self) -> int:
        """The most blocks that are launched; 0 where that is the number of tiles."""
        return 0

    def taken(self, block: Expr, tiles: Expr, together: int, draft: Draft) -> Taken:
        """What block number `block` takes of so many tiles, of which groups of `together` blocks take neighbouring ones."""
        return Taken(block, draft, tiles)


# ---------------------------------------------------------------------------------------------- all of it


def _one_counter(other: str, reason: str) -> Pair:
    return Pair("dynamic", (other,), f"{{0}}: {reason}", "leave {1} out, or dynamic=True", got="{1}", late=True)


ILLEGAL: Final = (
    Pair(
        "longest_first",
        ("rasterize", "cluster", "swizzle"),
        "longest_first: rasterize, cluster and swizzle say which tile is a block's too",
        "one of them",
    ),
    Pair("cluster", ("split_k", "swizzle"), "cluster: {1} says which block does what", "cluster, or {1}; rasterize"),
    Pair(
        "pingpong",
        ("cluster",),
        "{0} in clusters: whether barriers of other blocks may be waited for by parity is not proved for groups that alternate tiles",
        "cluster, or {0}",
    ),
    Pair("persistent", ("split_k", "swizzle"), "{0}: {1} says which block does what", "persistent, or {1}; rasterize", late=True),
    _one_counter("cluster", "the blocks of a cluster take neighbouring tiles, and each of them takes its own from the counter"),
    _one_counter("pingpong", "groups alternate tiles by their numbers, and the last tile of a block is not known before"),
    _one_counter("programmatic_launch", "the kernel before may still take tiles from the counter when this one begins"),
    Pair("pingpong", ("once",), "{0}: a block has one tile, so groups have nothing to alternate", "persistent().{0}", late=True),
)
"""The table: in this order pairs are refused."""


@attrs.frozen
class Dealing:
    """How tiles go to blocks: the places that are stated, which blocks are together, and how a block takes its tiles."""

    places: tuple[Place, ...] = ()
    grouping: Grouping = Grouping()
    taking: Taking = Taking()

    def with_order(self, place: Place) -> Dealing:
        """The same with one place more."""
        return attrs.evolve(self, places=(*self.places, place))

    @property
    def place(self) -> Place:
        """The place that specifies a tile."""
        return next(self._tiling(), DIGITS)

    @property
    def renumberings(self) -> tuple[Renumbering, ...]:
        """Those that specify numbers, in order."""
        return tuple(place for place in self.places if isinstance(place, Renumbering))

    @property
    def of_blocks(self) -> bool:
        """Whether anything is stated that only tiles for blocks have."""
        return self is not PLAIN and self != Dealing(self.renumberings)

    @property
    def _aspects(self) -> tuple[Aspect, ...]:
        return (*self.places, self.grouping, self.taking)

    def _tiling(self) -> Iterator[Place]:
        return (place for place in self.places if not isinstance(place, Renumbering))

    def said(self, effects: Effects) -> dict[str, str]:
        """All that pairs are about, by name, with the texts in messages."""
        texts = {name: text for aspect in self._aspects for name, text in aspect.said.items()}
        return {**texts, **({"programmatic_launch": "programmatic_launch"} if effects[Chaining].chained else {})}

    def check(self, said: Mapping[str, str], late: bool) -> None:
        """Refuse what is not said together: the rows of the table, those of the values, and two places."""
        for pair in (*ILLEGAL, *(pair for aspect in self._aspects for pair in aspect.illegal)):
            if pair.late == late:
                pair.check(said)
        names = [place.name for place in self._tiling()]
        if len(names) > 1:
            raise DecompositionError(f"{names[0]}: {names[1]} says which tile is a block's too", hint="one of them")


PLAIN: Final = Dealing()
"""One tile for each block, by the digits of its number."""
