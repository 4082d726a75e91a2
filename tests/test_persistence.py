"""Persistent blocks: tiles in turns, the loop that the checks recognise as such and its near misses, against NumPy."""

import attrs
import pytest
from ringed import TARGET, errors, halves, inputs_of, outcome, product, require_right

from fireiron import *
from fireiron import ir
from fireiron.check.persistence import one_tile_each, persistence
from fireiron.values.expr import Var, as_expr, constant, less, minimum

np = pytest.importorskip("numpy")
BLOCKS = 3


def plain(blocks=BLOCKS, bands=0):
    """Without a ring: every thread has elements of each tile."""
    chain = MatMul.tile(16, 16).to(Block)
    chain = chain.rasterize(*(bands if isinstance(bands, tuple) else (bands,))) if bands else chain
    return chain.persistent(blocks).split(8).load(A, SH).load(B, SH).tile(2, 2).to(Thread).tile(1, 1).split(1).done()


def singles(*sizes):
    return MatMul(*sizes)(GL, GL, GL)(Kernel)


def tiles_of(kernel, sizes=None):
    """The tiles that each block takes, from the loop itself."""
    (found,) = {one.tile.var: one for one in persistence(kernel)}.values()
    sizes = dict(sizes or {})
    for one in ir.lets(kernel.body).items():
        if all(var.name in sizes for var in one[1].variables()):
            sizes[one[0].name] = one[1].evaluate(sizes)
    taken = []
    for block in range(kernel.grid.evaluate(sizes)):
        values = {**sizes, "block": block}
        turns = found.loop.extent.evaluate(values)
        taken.append([found.tile.value.evaluate({**values, found.loop.var.name: turn}) for turn in range(turns)])
    return taken


# ---------------------------------------------------------------------------------------------- tiles in turns


@pytest.mark.parametrize("tiles", range(1, 14))
def test_each_tile_is_taken_once(tiles):
    """Whatever the number of tiles; no more blocks than tiles are launched."""
    kernel = plain()(singles(16 * tiles, 16, 8)).program("sm_80").ir
    if tiles <= BLOCKS:
        assert persistence(kernel) == () and constant(kernel.grid) == tiles, "a tile for each block, and no loop"
        return
    assert constant(kernel.grid) == BLOCKS
    taken = tiles_of(kernel)
    assert taken == [list(range(block, tiles, BLOCKS)) for block in range(BLOCKS)]


def test_a_last_band_of_few_rows():
    """The tiles of the last turn are fewer than blocks: a band behind the last one, of no height, is never asked for."""
    kernel = plain(132, 4)(singles(16 * 43 - 3, 16 * 43 - 5, 8)).program("sm_80").ir
    assert errors(kernel) == [] and len(persistence(kernel)) > 0


@pytest.mark.parametrize("tiles", range(1, 9))
def test_tiles_known_at_run_time(tiles):
    kernel = plain()(singles(sym("M"), 16, 8)).program("sm_80").ir
    taken = tiles_of(kernel, {"M": 16 * tiles - 3})
    assert taken == [list(range(block, tiles, BLOCKS)) for block in range(min(BLOCKS, tiles))]


@pytest.mark.parametrize("bands", [0, 2, (2, 1), (1, 2)])
@pytest.mark.parametrize("sizes", [(48, 32, 16), (64, 48, 8), (70, 33, 19), (16, 16, 8)])
def test_without_a_ring(sizes, bands):
    program = plain(bands=bands)(singles(*sizes)).program("sm_80")
    assert errors(program.ir) == []
    arrays, expected = inputs_of(program.spec)
    assert [outcome(program.ir, arrays, expected, order) for order in (None, 1)] == ["right", "right"]


@pytest.mark.parametrize("blocks", [1, 2, 3, 5])
@pytest.mark.parametrize("sizes", [(384, 128, 128), (392, 72, 192)])
def test_with_a_ring(sizes, blocks):
    """Counts of tiles that the blocks divide, and others; turns of a ring that begin anywhere in a round."""
    require_right(product(stages=3, blocks=blocks, bands=2), halves(*sizes))


@pytest.mark.parametrize("bands", [2, (2, 1), (1, 2)])
def test_sizes_known_at_run_time_without_a_ring(bands):
    spec = singles(sym("M"), sym("N"), sym("K"))
    program = plain(bands=bands)(spec).program("sm_80")
    assert errors(program.ir) == []
    for sizes in ((70, 33, 19), (1, 1, 1), (100, 16, 8)):
        values = dict(zip("MNK", sizes, strict=True))
        arrays, expected = inputs_of(spec, values)
        assert outcome(program.ir, arrays, expected, 1, values) == "right"


# ---------------------------------------------------------------------------------------------- what is recognised


def test_the_loop_of_each_role_is_recognised():
    kernel = product(blocks=2)(halves(512, 64, 192)).program(TARGET).ir
    found = persistence(kernel)
    assert [constant(one.tiles) for one in found] == [4, 4] and len({id(one.loop) for one in found}) == 2


def test_one_tile_each():
    """The kernel that stands for it in checks between blocks: as many blocks as tiles, and no turns."""
    kernel = plain()(singles(16 * 7, 16, 8)).program("sm_80").ir
    other = one_tile_each(kernel)
    assert constant(other.grid) == 7 and persistence(other) == ()
    (found,) = persistence(kernel)
    assert all(found.loop.var not in value.variables() for one in ir.statements(other.body) for value in one.expressions)
    arrays, expected = inputs_of(kernel.spec)
    assert outcome(other, arrays, expected) == "right"
    unchanged = one_tile_each(other)
    assert unchanged is other


def changed_loop(kernel, change):
    """The kernel with the loop over tiles changed."""
    (found,) = persistence(kernel)
    body = ir.rewritten(kernel.body, lambda one: (change(found, one),) if one is found.loop or one is found.tile else (one,))
    assert body != kernel.body
    return attrs.evolve(kernel, body=body)


BLOCK = Var("block", 0, BLOCKS - 1)


def at_loop(value):
    """A change of the loop's extent."""
    return lambda found, one: attrs.evolve(one, extent=as_expr(value(found))) if one is found.loop else one


def at_tile(value):
    """A change of the number of a tile."""
    return lambda found, one: attrs.evolve(one, value=as_expr(value(found))) if one is found.tile else one


NEAR_MISSES = {
    "the other blocks": at_loop(lambda found: 2 + less(as_expr(1), BLOCK)),
    "tiles side by side": at_tile(lambda found: BLOCK * 3 + found.loop.var),
    "a step too far": at_tile(lambda found: BLOCK + found.loop.var * 4),
    "a tile on": at_tile(lambda found: BLOCK + found.loop.var * BLOCKS + 1),
}


@pytest.mark.parametrize("name", NEAR_MISSES)
def test_near_misses_are_none(name):
    """7 tiles, 3 blocks: 2 turns, and one more for block 0."""
    kernel = plain()(singles(16 * 7, 16, 8)).program("sm_80").ir
    (found,) = persistence(kernel)
    assert [found.loop.extent.evaluate({"block": block}) for block in range(BLOCKS)] == [3, 2, 2]
    other = changed_loop(kernel, NEAR_MISSES[name])
    assert persistence(other) == () and one_tile_each(other) is other


@pytest.mark.parametrize(("turns", "tiles"), [(as_expr(2), 6), (3 + less(BLOCK, as_expr(1)), 10), (less(BLOCK, as_expr(2)), 2)])
def test_the_loop_itself_says_how_many_tiles_there_are(turns, tiles):
    """Each of so many belongs to one block and turn; whether they are all that there are is another question."""
    kernel = changed_loop(plain()(singles(16 * 7, 16, 8)).program("sm_80").ir, at_loop(lambda found: turns))
    found = persistence(attrs.evolve(kernel, grid=as_expr(min(tiles, BLOCKS))))
    assert [constant(one.tiles) for one in found] == [tiles]


@pytest.mark.parametrize("grid", [BLOCKS + 1, BLOCKS - 1, 7])
def test_another_grid_is_none(grid):
    """With more blocks than the loop steps by tiles would be taken twice, with fewer some never."""
    kernel = plain()(singles(16 * 7, 16, 8)).program("sm_80").ir
    assert persistence(attrs.evolve(kernel, grid=as_expr(grid))) == ()
    assert persistence(attrs.evolve(kernel, grid=minimum(as_expr(7), as_expr(BLOCKS)))) != ()


def test_tiles_taken_twice_are_found():
    """What is no such loop is checked as it is: that blocks store the same tile is seen, or that they do not is not proved."""
    kernel = plain()(singles(16 * 7, 16, 8)).program("sm_80").ir
    assert errors(kernel) == []
    twice = changed_loop(kernel, at_tile(lambda found: BLOCK * 2 + found.loop.var))
    for wrong in (twice, attrs.evolve(kernel, grid=as_expr(BLOCKS + 1))):
        assert any(one.startswith(("C[", "undecided for C:")) for one in errors(wrong)), errors(wrong)


# ---------------------------------------------------------------------------------------------- refusals, and a simulated sample


def test_whole_tiles_of_a_size_at_run_time_are_inside():
    """Nothing tests a bound where tiles divide a size of one dimension of tiles; a tile's number is below their count, and no further."""
    kernel = plain()(singles(sym("M", multiple_of=16), 16, 8)).program("sm_80").ir
    assert errors(kernel) == []
    for change in (at_tile(lambda found: found.tile.value + 1), at_loop(lambda found: found.loop.extent + 1)):
        assert any(one.startswith("A: ") and "coordinate" in one for one in errors(changed_loop(kernel, change)))


def test_refusals():
    swizzled = MatMul.tile(16, 16).to(Block).swizzle(lambda uid: uid ^ 1).persistent(2).tile(2, 2).to(Thread).tile(1, 1).split(1).done()
    with pytest.raises(DecompositionError, match=r"persistent\(2\): swizzle says which block does what"):
        _ = swizzled(singles(64, 16, 8)).program("sm_80").ir
    parts = MatMul.split_k(2, Block, 4).tile(16, 16).to(Block).persistent(2).tile(2, 2).to(Thread).tile(1, 1).split(1).done()
    with pytest.raises(DecompositionError, match=r"persistent\(2\): split_k\(.., Block\) says which block does what"):
        _ = parts(singles(64, 16, 8)).program("sm_80").ir
    with pytest.raises(
        DecompositionError,
        match="these tiles are distributed over .*; rasterize, cluster, min_blocks_per_sm, max_shared_bytes, persistent, pingpong and programmatic_launch apply to blocks",
    ):
        _ = MatMul.tile(16, 16).to(Block).tile(8, 8).to(Warp).persistent(2).done()(singles(64, 16, 8)).program("sm_80").ir
    with pytest.raises(DecompositionError, match="persistent: must be a positive integer"):
        MatMul.tile(16, 16).to(Block).persistent(0)


def test_text():
    text = plain()(singles(16 * 7, 16, 8)).program("sm_80").cuda
    assert "for (int turn = 0; turn < (block == 0) + 2; ++turn) {\n    const int tile = turn * 3 + block;" in text
    assert "<<<3, 64>>>" in text
    assert "turn" not in plain()(singles(48, 16, 8)).program("sm_80").cuda, "as many blocks as tiles"


def test_tiles_known_at_run_time_are_told_apart_as_any_number():
    """The kernel with a tile for each block has as many blocks as there may be tiles: a name that all of them share is found."""
    kernel = product((64, 64, 64), stages=2, blocks=BLOCKS)(halves(sym("M", high=65536), 128, 64)).program(TARGET).lowered
    assert errors(kernel) == []
    (tile,) = {one.tile.var for one in persistence(kernel)}
    (block,) = {var for one in ir.lets(one_tile_each(kernel).body).items() for var in one[1].variables() if var.name == "block"}
    assert block.high == tile.high > 2**8

    def same(one):
        return (attrs.evolve(one, value=as_expr(0)),) if isinstance(one, ir.Let) and one.var.name == "block_m" else (one,)

    shared = attrs.evolve(kernel, body=ir.rewritten(kernel.body, same))
    assert shared.body != kernel.body
    assert errors(shared)
