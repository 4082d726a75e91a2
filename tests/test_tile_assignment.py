"""Tiles assigned to blocks: every row of the table of illegal combinations, with its message, and checked tile orders."""

import attrs
import pytest

from fireiron import *
from fireiron.errors import DecompositionError
from fireiron.language.dividing import Step
from fireiron.language.tile_assignment import DIGITS, ILLEGAL, PLAIN, Renumbering, TileAssignment
from fireiron.refine.longest_first import LastTilesFirst
from fireiron.refine.permute import UID, Permuted
from fireiron.refine.rasterize import RASTER_ORDERS
from fireiron.values.expr import Var, as_expr

PARTS = MatMul.split_k(2, Block, 8)
VERBS = {
    "longest_first": lambda tile: tile.longest_first("m"),
    "rasterize": lambda tile: tile.hilbert(),
    "cluster": lambda tile: tile.cluster(2, 1),
    "swizzle": lambda tile: tile.swizzle(lambda uid: uid ^ 1),
    "split_k": lambda tile: tile,
    "persistent": lambda tile: tile.persistent(2),
    "dynamic": lambda tile: tile.persistent(2, dynamic=True),
    "pingpong": lambda tile: tile.pingpong(2),
    "programmatic_launch": lambda tile: tile.programmatic_launch(),
    "ordered": lambda tile: tile.ordered(),
    "stream_k": lambda tile: tile.stream_k(2, 8),
    "look_back": lambda tile: tile.look_back(),
    "once": lambda tile: tile,
}
"""The verbs that the table names."""

TEXTS = {
    "split_k": "split_k(.., Block)",
    "persistent": "persistent(2)",
    "dynamic": "persistent(2, dynamic=True)",
    "pingpong": "pingpong(2)",
    "ordered": "ordered()",
    "stream_k": "stream_k(2, 8)",
    "look_back": "look_back()",
}
ROWS = [(pair, other) for pair in ILLEGAL for other in pair.others]


def refused(*names):
    """The error of a GEMM whose block tiles have these verbs."""
    chain = PARTS.tile(16, 16) if "split_k" in names else MatMul.tile(16, 16)
    blocks = chain.to(Block)
    for name in names:
        blocks = VERBS[name](blocks)
    strategy = blocks.tile(8, 8).to(Thread).tile(1, 1).split(1).done()
    with pytest.raises(DecompositionError) as caught:
        _ = strategy(MatMul(64, 64, 32)(GL, GL, GL)(Kernel)).program("sm_90a").ir
    return caught.value


@pytest.mark.parametrize(("pair", "other"), ROWS, ids=[f"{pair.first} {other}" for pair, other in ROWS])
def test_rows_of_the_table_are_refused_with_their_message(pair, other):
    texts = [TEXTS.get(name, name) for name in (pair.first, other)]
    for names in ((pair.first, other), (other, pair.first)):
        error = refused("persistent", *names) if (pair.first, other) == ("pingpong", "cluster") else refused(*names)
        assert error.asked == pair.what.format(*texts) and error.hint == pair.hint.format(*texts)
        assert error.got == (pair.got and pair.got.format(*texts))


@pytest.mark.parametrize(
    ("names", "first"),
    [
        (("persistent", "swizzle", "cluster"), "cluster: swizzle"),
        (("dynamic", "pingpong", "cluster"), "pingpong(2) in clusters"),
        (("dynamic", "pingpong", "swizzle"), "persistent(2): swizzle"),
        (("longest_first", "rasterize", "pingpong"), "longest_first: rasterize"),
        (("dynamic", "programmatic_launch", "pingpong"), "persistent(2, dynamic=True): groups"),
    ],
)
def test_of_several_rows_the_first_is_refused(names, first):
    assert refused(*names).asked.startswith(first)


def digits(rows, columns):
    return [Step("n", as_expr(columns), {}), Step("m", as_expr(rows), {})]


SPEC = MatMul(64, 64, 8)(GL, GL, GL)(Kernel)


PLACES = [*(walk(rows) for walk in RASTER_ORDERS[:2] for rows in (1, 2, 3)), RASTER_ORDERS[2](), DIGITS, LastTilesFirst("m", 0)]
PLACED = [(place, grid) for place in PLACES for grid in ((4, 4), (6, 4), (2, 7), (5, 3))]


@pytest.mark.parametrize(("place", "grid"), [*PLACED, (LastTilesFirst("n", 2), (4, 3)), (LastTilesFirst("m", 2), (3, 4))])
def test_proved_places_give_each_tile_one_number(place, grid):
    assert place.proved and place.permutes(SPEC, digits(*grid), grid[0] * grid[1])


@pytest.mark.parametrize("place", [*(walk(rows) for walk in RASTER_ORDERS[:2] for rows in (1, 2)), RASTER_ORDERS[2]()], ids=str)
def test_orders_of_rows_and_columns_refuse_other_grids(place):
    """A group of one tile row is the order of the numbers, for any grid."""
    spec = Fused(name="sums", dims="b m n", operands={"X": "b m n"}, body={"out": "X[b,m,n] = 0"})(b=2, m=64, n=64)
    grid = [Step(dim, as_expr(size), {}) for dim, size in zip("nmb", (4, 3, 2), strict=True)]
    if place == RASTER_ORDERS[0](1):
        place.require(spec, grid)
        assert [(digit.dim, index.evaluate({"unit": 23})) for digit, index in place.tile(spec, grid, Var("unit", 0, 23), None)] == [
            ("n", 3), ("m", 2), ("b", 1)
        ]  # fmt: skip
        return
    with pytest.raises(DecompositionError, match="the tiles form a grid of 3 dimensions") as caught:
        place.require(spec, grid)
    assert caught.value.got == "2 tiles along b, 3 tiles along m, 4 tiles along n"
    assert caught.value.hint == f".tile(b=1).to(Block), then the tile of the other dimensions with .{place.call}"


@pytest.mark.parametrize(("permutation", "right"), [(UID ^ 1, True), (UID // 2, False), (UID + 1, False), (as_expr(0), False)])
def test_permutations_are_checked(permutation, right):
    place = Permuted(permutation)
    assert not place.proved and place.permutes(SPEC, digits(2, 4), 8) == right
    unit = Var("unit", 0, 7)
    if right:
        place.require(SPEC, digits(2, 4))
        assert place.of_units(unit, 8, Warp).evaluate({"unit": 4}) == 5
    else:
        with pytest.raises(DecompositionError, match="is not a permutation of the 8 blocks"):
            place.require(SPEC, digits(2, 4))
        with pytest.raises(DecompositionError, match="is not a permutation of the 8 Warp units"):
            place.of_units(unit, 8, Warp)


def test_places_for_more_blocks_than_can_be_checked_are_refused():
    with pytest.raises(DecompositionError, match="swizzle of 8388608 blocks: at most 4194304 can be checked"):
        Permuted(UID ^ 1).require(SPEC, digits(1 << 11, 1 << 12))


def test_refinements_of_block_tiles_only():
    @attrs.frozen
    class Backwards(Renumbering):
        name = "backwards"

    assert not PLAIN.of_blocks and not PLAIN.with_order(Permuted(UID)).with_order(Backwards()).of_blocks
    assert (
        PLAIN.with_order(RASTER_ORDERS[0](2)).of_blocks
        and PLAIN.place == DIGITS
        and TileAssignment((RASTER_ORDERS[0](2),)).place == RASTER_ORDERS[0](2)
    )
