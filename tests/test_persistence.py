"""Persistent blocks: loops over tiles, how the checks recognize them, and near misses, compared with NumPy."""

import attrs
import pytest
from ringed import TARGET, errors, float16_gemm, inputs_of, outcome, product, require_right

from fireiron import *
from fireiron import ir
from fireiron.check.persistence import one_tile_per_block, persistence
from fireiron.values.expr import Var, as_expr, constant, less, minimum

np = pytest.importorskip("numpy")
BLOCKS = 3


def plain(blocks=BLOCKS, group_m=0):
    """Without a ring: every thread has elements of each tile."""
    chain = MatMul.tile(16, 16).to(Block)
    chain = chain.rasterize(*(group_m if isinstance(group_m, tuple) else (group_m,))) if group_m else chain
    return chain.persistent(blocks).split(8).load(A, SH).load(B, SH).tile(2, 2).to(Thread).tile(1, 1).split(1).done()


def singles(*sizes):
    return MatMul(*sizes)(GL, GL, GL)(Kernel)


def tiles_of(kernel, sizes=None):
    """The tiles of each block, computed from the loop."""
    (tile_loop,) = {one.tile.var: one for one in persistence(kernel)}.values()
    sizes = dict(sizes or {})
    for definition in ir.lets(kernel.body).items():
        if all(var.name in sizes for var in definition[1].variables()):
            sizes[definition[0].name] = definition[1].evaluate(sizes)
    tiles = []
    for block in range(kernel.grid.evaluate(sizes)):
        values = {**sizes, "block": block}
        trip_count = tile_loop.loop.extent.evaluate(values)
        tiles.append([tile_loop.tile.value.evaluate({**values, tile_loop.loop.var.name: iteration}) for iteration in range(trip_count)])
    return tiles


# ---------------------------------------------------------------------------------------------- tiles of persistent blocks


@pytest.mark.parametrize("tiles", range(1, 14))
def test_each_tile_is_computed_once(tiles):
    """For any number of tiles; at most as many blocks as tiles are launched."""
    kernel = plain()(singles(16 * tiles, 16, 8)).program("sm_80").ir
    if tiles <= BLOCKS:
        assert persistence(kernel) == () and constant(kernel.grid) == tiles, "a tile for each block, and no loop"
        return
    assert constant(kernel.grid) == BLOCKS
    tiles_by_block = tiles_of(kernel)
    assert tiles_by_block == [list(range(block, tiles, BLOCKS)) for block in range(BLOCKS)]


def test_a_last_raster_group_of_few_rows():
    """The last iteration has fewer tiles than blocks: a group after the last one, of height zero, is never accessed."""
    kernel = plain(132, 4)(singles(16 * 43 - 3, 16 * 43 - 5, 8)).program("sm_80").ir
    assert errors(kernel) == [] and len(persistence(kernel)) > 0


@pytest.mark.parametrize("tiles", range(1, 9))
def test_tiles_known_at_run_time(tiles):
    kernel = plain()(singles(sym("M"), 16, 8)).program("sm_80").ir
    tiles_by_block = tiles_of(kernel, {"M": 16 * tiles - 3})
    assert tiles_by_block == [list(range(block, tiles, BLOCKS)) for block in range(min(BLOCKS, tiles))]


@pytest.mark.parametrize("group_m", [0, 2, (2, 1), (1, 2)])
@pytest.mark.parametrize("sizes", [(48, 32, 16), (64, 48, 8), (70, 33, 19), (16, 16, 8)])
def test_without_a_ring(sizes, group_m):
    program = plain(group_m=group_m)(singles(*sizes)).program("sm_80")
    assert errors(program.ir) == []
    arrays, expected = inputs_of(program.spec)
    assert [outcome(program.ir, arrays, expected, order) for order in (None, 1)] == ["right", "right"]


@pytest.mark.sampled(18)
@pytest.mark.parametrize("blocks", [1, 2, 3, 5])
@pytest.mark.parametrize("sizes", [(384, 128, 128), (392, 72, 192)])
def test_with_a_ring(sizes, blocks):
    """Numbers of tiles that the blocks divide, and others; the fills of a ring begin at any stage."""
    require_right(product(stages=3, blocks=blocks, group_m=2), float16_gemm(*sizes))


@pytest.mark.parametrize("group_m", [2, (2, 1), (1, 2)])
def test_sizes_known_at_run_time_without_a_ring(group_m):
    spec = singles(sym("M"), sym("N"), sym("K"))
    program = plain(group_m=group_m)(spec).program("sm_80")
    assert errors(program.ir) == []
    for sizes in ((70, 33, 19), (1, 1, 1), (100, 16, 8)):
        values = dict(zip("MNK", sizes, strict=True))
        arrays, expected = inputs_of(spec, values)
        assert outcome(program.ir, arrays, expected, 1, values) == "right"


# ---------------------------------------------------------------------------------------------- recognized loops


def test_the_loop_of_each_role_is_recognized():
    kernel = product(blocks=2)(float16_gemm(512, 64, 192)).program(TARGET).ir
    loops = persistence(kernel)
    assert [constant(one.tiles) for one in loops] == [4, 4] and len({id(one.loop) for one in loops}) == 2


def test_one_tile_each():
    """The equivalent kernel for checks between blocks: one block per tile, without iterations."""
    kernel = plain()(singles(16 * 7, 16, 8)).program("sm_80").ir
    other = one_tile_per_block(kernel)
    assert constant(other.grid) == 7 and persistence(other) == ()
    (loop_of_tiles,) = persistence(kernel)
    assert all(loop_of_tiles.loop.var not in value.variables() for one in ir.statements(other.body) for value in one.expressions)
    arrays, expected = inputs_of(kernel.spec)
    assert outcome(other, arrays, expected) == "right"
    unchanged = one_tile_per_block(other)
    assert unchanged is other


def changed_loop(kernel, change):
    """The kernel with a changed loop over tiles."""
    (loop_of_tiles,) = persistence(kernel)
    body = ir.rewritten(
        kernel.body, lambda one: (change(loop_of_tiles, one),) if one is loop_of_tiles.loop or one is loop_of_tiles.tile else (one,)
    )
    assert body != kernel.body
    return attrs.evolve(kernel, body=body)


BLOCK = Var("block", 0, BLOCKS - 1)


def at_loop(value):
    """A change of the loop's trip count."""
    return lambda found, one: attrs.evolve(one, extent=as_expr(value(found))) if one is found.loop else one


def at_tile(value):
    """A change of the tile number."""
    return lambda found, one: attrs.evolve(one, value=as_expr(value(found))) if one is found.tile else one


NEAR_MISSES = {
    "the other blocks": at_loop(lambda found: 2 + less(as_expr(1), BLOCK)),
    "tiles side by side": at_tile(lambda found: BLOCK * 3 + found.loop.var),
    "a step too far": at_tile(lambda found: BLOCK + found.loop.var * 4),
    "a tile on": at_tile(lambda found: BLOCK + found.loop.var * BLOCKS + 1),
}


@pytest.mark.parametrize("name", NEAR_MISSES)
def test_near_misses_are_not_recognized(name):
    """7 tiles, 3 blocks: 2 iterations, and one more for block 0."""
    kernel = plain()(singles(16 * 7, 16, 8)).program("sm_80").ir
    (loop_of_tiles,) = persistence(kernel)
    assert [loop_of_tiles.loop.extent.evaluate({"block": block}) for block in range(BLOCKS)] == [3, 2, 2]
    other = changed_loop(kernel, NEAR_MISSES[name])
    assert persistence(other) == () and one_tile_per_block(other) is other


@pytest.mark.parametrize(("trip_count", "tiles"), [(as_expr(2), 6), (3 + less(BLOCK, as_expr(1)), 10), (less(BLOCK, as_expr(2)), 2)])
def test_the_loop_determines_the_number_of_tiles(trip_count, tiles):
    """Each tile belongs to one block and iteration; whether the tiles cover the whole grid is checked elsewhere."""
    kernel = changed_loop(plain()(singles(16 * 7, 16, 8)).program("sm_80").ir, at_loop(lambda found: trip_count))
    loops = persistence(attrs.evolve(kernel, grid=as_expr(min(tiles, BLOCKS))))
    assert [constant(one.tiles) for one in loops] == [tiles]


@pytest.mark.parametrize("grid", [BLOCKS + 1, BLOCKS - 1, 7])
def test_a_loop_with_another_grid_is_not_recognized(grid):
    """If the grid has more blocks than the loop's step, tiles would be computed twice; with fewer, some never."""
    kernel = plain()(singles(16 * 7, 16, 8)).program("sm_80").ir
    assert persistence(attrs.evolve(kernel, grid=as_expr(grid))) == ()
    assert persistence(attrs.evolve(kernel, grid=minimum(as_expr(7), as_expr(BLOCKS)))) != ()


def test_tiles_computed_twice_are_found():
    """Other loops are checked as they are: two blocks that store the same tile are detected, or the absence is unproved."""
    kernel = plain()(singles(16 * 7, 16, 8)).program("sm_80").ir
    assert errors(kernel) == []
    twice = changed_loop(kernel, at_tile(lambda found: BLOCK * 2 + found.loop.var))
    for wrong in (twice, attrs.evolve(kernel, grid=as_expr(BLOCKS + 1))):
        assert any(one.startswith(("C[", "undecided for C:")) for one in errors(wrong)), errors(wrong)


# ---------------------------------------------------------------------------------------------- refusals, and a simulated sample


def test_whole_tiles_of_a_size_at_run_time_are_inside():
    """No bounds test is needed if tiles divide a size with one dimension of tiles; a tile number is less than the number of tiles."""
    kernel = plain()(singles(sym("M", multiple_of=16), 16, 8)).program("sm_80").ir
    assert errors(kernel) == []
    for change in (at_tile(lambda found: found.tile.value + 1), at_loop(lambda found: found.loop.extent + 1)):
        assert any(one.startswith("A: ") and "coordinate" in one for one in errors(changed_loop(kernel, change)))


def test_refusals():
    swizzled = MatMul.tile(16, 16).to(Block).swizzle(lambda uid: uid ^ 1).persistent(2).tile(2, 2).to(Thread).tile(1, 1).split(1).done()
    with pytest.raises(DecompositionError, match=r"persistent\(2\): swizzle also determines the tile of a block"):
        _ = swizzled(singles(64, 16, 8)).program("sm_80").ir
    parts = MatMul.split_k(2, Block, 4).tile(16, 16).to(Block).persistent(2).tile(2, 2).to(Thread).tile(1, 1).split(1).done()
    with pytest.raises(DecompositionError, match=r"persistent\(2\): split_k\(.., Block\) also determines the tile of a block"):
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
    assert "for (int tile = blockIdx.x; tile < num_tiles; tile += num_blocks) {" in text
    assert "constexpr int num_tiles = 7;" in text and "constexpr int num_blocks = 3;" in text
    assert "<<<3, 64>>>" in text
    assert "num_tiles" not in plain()(singles(48, 16, 8)).program("sm_80").cuda, "as many blocks as tiles"


def test_loops_over_tiles_of_run_time_sizes_have_no_divisions():
    text = plain()(singles(sym("M"), 16, 8)).program("sm_80").cuda
    assert "for (int tile = blockIdx.x; tile < num_tiles; tile += num_blocks) {" in text
    assert "constexpr int num_blocks = 3;" in text and "num_tiles / " not in text and "num_tiles % " not in text
    assert "requires: the grid has at most 2**31 - 4 tiles" not in text, "32-bit sizes cannot have more tiles"


def test_tiles_of_run_time_sizes_are_distinct():
    """The kernel with one block per tile has as many blocks as there may be tiles: a number shared by all blocks is detected."""
    kernel = product((64, 64, 64), stages=2, blocks=BLOCKS)(float16_gemm(sym("M", high=65536), 128, 64)).program(TARGET).lowered
    assert errors(kernel) == []
    (tile,) = {one.tile.var for one in persistence(kernel)}
    (block,) = {var for one in ir.lets(one_tile_per_block(kernel).body).items() for var in one[1].variables() if var.name == "block"}
    assert block.high == tile.high > 2**8

    def same(stmt):
        return (attrs.evolve(stmt, value=as_expr(0)),) if isinstance(stmt, ir.Let) and stmt.var.name == "block_m" else (stmt,)

    shared = attrs.evolve(kernel, body=ir.rewritten(kernel.body, same))
    assert shared.body != kernel.body
    assert errors(shared)
