"""Graphene's figures by number, on the compiler's own tensors, views and levels; and its tiles compared with brute force over all elements."""

import itertools
import os
import random

import numpy as np
import pytest

from fireiron import *
from fireiron.errors import DecompositionError, LayoutError
from fireiron.performing.matrices import addressed
from fireiron.values.expr import Const, Var, as_expr
from fireiron.values.layout import Layout, Swizzle, complement, zipped_divide
from fireiron.values.layout import parse as parse_layout
from fireiron.values.notation import (
    indices,
    parse_level,
    parse_tensor,
    parse_threads,
    parse_view,
    reshaped,
    symbols_of,
    tensor_text,
    threads_text,
    tiles_of,
    tiles_text,
    view_text,
)
from fireiron.values.tensor import Tensor, whole_view
from fireiron.values.units import THREAD, index_in, unit_in

SCALE = float(os.environ.get("FIREIRON_FUZZ", "1"))
SEED = 20230325


def address(tensor, *coordinate):
    return tensor.storage().address(coordinate)


def grid(tensor, rows, columns):
    return [[address(tensor, i, j) for j in range(columns)] for i in range(rows)]


def addresses(view, **units):
    """The addresses of all elements of a view, the first dimension fastest, for given numbers of units and iterations."""
    ways = itertools.product(*(range(int(size.evaluate({}))) for size in reversed(view.shape)))
    places = ([dim.at(index) for dim, index in zip(view.numerals, reversed(way), strict=True)] for way in ways)
    return [int(view.tensor.storage().address([as_expr(part.evaluate(units)) for part in place]).evaluate({})) for place in places]


def first_tile(tensor, *sizes, level=Block):
    """The view of one tile, assigned to a unit of the level, for a tensor tiled with `tile(*sizes)`."""
    view = whole_view(tensor)
    start = Kernel if level == Block else level.parent
    other = whole_view(Tensor("other", tensor.shape, tensor.dtype, tensor.memory, ColMajor))
    return Move.on(start, view, other).tile(*sizes).to(level).result.src


# --------------------------------------------------------------------------------------------------------------------- figure 3


FIGURE_3 = {
    "3a": ("%A:[(4,8):(1,4)].fp32", [[i + 4 * j for j in range(8)] for i in range(4)], 12),
    "3b": ("%B:[(4,8):(8,1)].fp32", [[8 * i + j for j in range(8)] for i in range(4)], 3),
    "3c": ("%C:[4,(2,4) : 2,(1,8)].fp32", [[2 * i + j % 2 + j // 2 * 8 for j in range(8)] for i in range(4)], 9),
    "3d": (
        "%D:[(2,2),(2,4) : (1,4),(2,8)].fp32",
        [[i % 2 + i // 2 * 4 + j % 2 * 2 + j // 2 * 8 for j in range(8)] for i in range(4)],
        10,
    ),
}


@pytest.mark.parametrize("figure", FIGURE_3)
def test_figure_3_layouts(figure):
    text, numbers, at_0_3 = FIGURE_3[figure]
    tensor = parse_tensor(text)
    assert grid(tensor, 4, 8) == numbers and address(tensor, 0, 3) == at_0_3
    assert sorted(itertools.chain(*numbers)) == list(range(32))
    assert parse_tensor(tensor_text(tensor)) == tensor and len(tensor.shape) == 2, "a hierarchical dimension is one dimension"


def test_figure_3d_as_printed_and_as_transcribed():
    assert FIGURE_3["3d"][1][0] == [0, 2, 8, 10, 16, 18, 24, 26]
    assert parse_tensor(FIGURE_3["3d"][0]).layout((0, 0), (1, 1)) == 10
    transcribed = parse_tensor("[(2,2),(2,4) : (1,4),(1,8)].fp32")
    assert address(transcribed, 0, 3) == 9 and len(set(itertools.chain(*grid(transcribed, 4, 8)))) == 24


def test_padded_layout():
    padded = parse_tensor("[(4,8):(9,1)].fp32")
    assert padded.layout == RowMajor(ld=9) and padded.storage().layout.cosize() == 35 and address(padded, 3, 7) == 34


def test_the_layout_changes_no_access():
    """G018: the same coordinates for every layout; each layout contains each value once."""
    for text, _numbers, _at in FIGURE_3.values():
        tensor, memory = parse_tensor(text), {}
        for i, j in itertools.product(range(4), range(8)):
            memory[address(tensor, i, j)] = (i, j)
        assert [memory[address(tensor, i, j)] for i in range(4) for j in range(8)] == list(itertools.product(range(4), range(8)))


# --------------------------------------------------------------------------------------------------------------------- figure 4


A4 = parse_tensor("%A:[4,8 : 1,4].fp32")
FIGURE_4 = {
    "4b": ("[2:1] [4:1]", "%A:[2,2]:[2,16].[2,4]:[1,4].fp32.GL", lambda i, j: (i // 2, j // 4)),
    "4c": ("[2:2] [4:1]", "%A:[2,2]:[1,16].[2,4]:[2,4].fp32.GL", lambda i, j: (i % 2, j // 4)),
    "4d": ("[2:2] [(2,2):(1,4)]", "%A:[2,2]:[1,8].[2,(2,2)]:[2,(4,16)].fp32.GL", lambda i, j: (i % 2, j // 2 % 2)),
}
"""The paper's tile sizes, its text of the tiled tensor, and the tile of each element."""


def sizes_of(text):
    """Tile sizes from the paper's text of one-dimensional tensors."""
    return [parse_layout(one) for one in text.split()]


def test_figure_4a():
    assert parse_tensor("%A:[(4,8):(1,4)].fp32") == A4 and grid(A4, 4, 8) == FIGURE_3["3a"][1]


@pytest.mark.parametrize("figure", FIGURE_4)
def test_figure_4_tiles(figure):
    sizes, text, tile_of = FIGURE_4[figure]
    tile = first_tile(A4, *sizes_of(sizes))
    assert tiles_text(tile) == text and parse_view(view_text(tile), symbols_of(tile)) == tile
    colors = {}
    for m, n in itertools.product(range(2), range(2)):
        colors |= dict.fromkeys(addresses(tile, block_m=m, block_n=n), (m, n))
    assert colors == {address(A4, i, j): tile_of(i, j) for i in range(4) for j in range(8)}
    tiled, by_view = parse_tensor(text).storage(), whole_view(A4).tile(*sizes_of(sizes))
    for m, n, i, j in itertools.product(range(2), range(2), range(2), range(4)):
        assert tiled.address((i + 2 * m, j + 4 * n)) == addresses(tile, block_m=m, block_n=n)[i + 2 * j], "what the text says"
        assert addresses(by_view[m, n]) == addresses(tile, block_m=m, block_n=n)
        assert addresses(by_view[m, n]) == addresses(parse_view(f"{text}[{m}, {n}]")) and tiles_text(by_view[m, n]) == text


def test_chunks_are_tiles_of_layouts():
    """`Strided` states the stride of a chunk; the number of chunks follows from the size."""
    for strided, layouts in ((Strided((1, 2), (4, 8)), "[2:2] [4:1]"), (Strided((1, 2), (2, 4)), "[2:2] [(2,2):(1,4)]")):
        assert first_tile(A4, strided) == first_tile(A4, *sizes_of(layouts))


def test_figure_4_inner_coordinates():
    """Inside a tile of 4d, column 2 is the first of the second pair: logical column 4."""
    tile = first_tile(A4, *sizes_of(FIGURE_4["4d"][0]))
    assert addresses(tile, block_m=0, block_n=0) == [0, 2, 4, 6, 16, 18, 20, 22]
    assert tiles_of(tile)[1](0, (0, 1)) == 16 and addresses(tile, block_m=0, block_n=1)[1] == 10


def test_tile_is_agnostic_of_the_layout():
    """G026: the same call groups the same logical elements, for all strides."""
    for sizes, _text, tile_of in FIGURE_4.values():
        for text, _numbers, _at in FIGURE_3.values():
            tensor = parse_tensor(text)
            tile = first_tile(tensor, *sizes_of(sizes))
            outer, inner = tiles_of(tile)
            for m, n in itertools.product(range(2), range(2)):
                tile_addresses = addresses(tile, block_m=m, block_n=n)
                assert set(tile_addresses) == {address(tensor, i, j) for i in range(4) for j in range(8) if tile_of(i, j) == (m, n)}
                assert tile_addresses == [outer(m, n) + inner(i, j) for j in range(4) for i in range(2)]


# -------------------------------------------------------------------------------------------------------------- figures 5 and 6


def numbers(index, threads=32):
    return [index.evaluate({"thread": thread}) for thread in range(threads)]


WARP = Var("thread", 0, 31)
"""`threadIdx.x` if one warp is launched: a remainder without effect is omitted."""


def test_figure_5a_warp():
    ((place,),) = indices(parse_threads("#4:[32:1].thread"))
    assert parse_level("#4:[32:1].thread") == Warp and str(place) == str(index_in(Warp)) == "thread % 32"
    assert numbers(place, 64) == [thread % 32 for thread in range(64)]
    assert str(indices(parse_threads("#4:[32:1].thread"), WARP)[0][0]) == str(index_in(Warp, WARP)) == "thread"


GROUPS = tuple(reversed(list(zipped_divide(Layout(32), Layout(8)))))
"""`[32:1].thread` by tiles `[8:1]`."""


def test_figure_5b_groups():
    assert [shape.modes for shape in GROUPS] == [shape.modes for shape in parse_threads("#4:[4:8].[8:1].thread")]
    group = Level("Group", Warp, GROUPS[1])
    (number,), (place,) = indices(GROUPS, WARP)
    assert (str(number), str(place)) == (str(unit_in(group, Warp, WARP)), str(index_in(group, WARP))) == ("thread // 8", "thread % 8")
    assert str(indices(GROUPS)[0][0]) == str(unit_in(group, Warp)) == "thread // 8 % 4"
    assert list(zip(numbers(number), numbers(place), strict=True)) == [(thread // 8, thread % 8) for thread in range(32)]


def test_figure_5c_reshaped_groups():
    groups = reshaped(GROUPS, 0, Layout((2, 2), (2, 1)))
    assert groups[0] == parse_threads("#4:[2,2 : 16,8].[8:1].thread")[0] and threads_text(groups, "4") == "#4:[2,2]:[16,8].[8]:[1].thread"
    (group_m, group_n), (place,) = indices(groups)
    assert (str(group_m), str(group_n), str(place)) == ("thread // 16 % 2", "thread // 8 % 2", "thread % 8")
    assert [(m, n) for m, n in zip(numbers(group_m), numbers(group_n), strict=True)] == [(t // 16, t // 8 % 2) for t in range(32)]
    assert [groups[0](m, n) for m in range(2) for n in range(2)] == [0, 8, 16, 24]


def test_figure_6_quad_pairs():
    """The level of the paper's `tile([(4,2):(1,16)])`, and its gray boxes."""
    pairs = tuple(reversed(list(zipped_divide(Layout(32), QuadPair.layout))))
    assert threads_text(pairs, "4") == "#4:[4]:[4].[4,2]:[1,16].thread" and pairs[1] == QuadPair.layout
    assert parse_level("#5:[(4,2):(1,16)].thread") == QuadPair and complement(QuadPair.layout, 32) == Layout(4, 4)
    (pair,), (quad, high) = indices(parse_threads("#4:[4:4].[(4,2):(1,16)].thread"))
    assert (str(pair), str(quad), str(high)) == ("thread // 4 % 4", "thread % 4", "thread // 16 % 2")
    assert str(unit_in(QuadPair, Warp)) == str(pair) and numbers(index_in(QuadPair)) == numbers(quad + high * 4)
    assert [t for t in range(32) if numbers(pair)[t] == 0] == [0, 1, 2, 3, 16, 17, 18, 19]
    assert all(pairs[0](numbers(pair)[t]) + pairs[1](numbers(quad)[t], numbers(high)[t]) == t for t in range(32))


# -------------------------------------------------------------------------------------------------------------- figures 1d and 8


def test_figure_1d_ldmatrix():
    """Each thread addresses one row of 8 of its group's 8x8 tile: thr_grp_m*128 + thr_grp_n*8 + grp_local_idx*16, in elements (T023)."""
    source = parse_tensor("%1:[16,16].fp16.SH")
    group = Level("Group", Warp, GROUPS[1])
    tile = first_tile(source, 8, 8, level=group)
    assert tiles_text(tile) == "%1:[2,2]:[128,8].[8,8]:[16,1].fp16.SH"
    assert parse_tensor("%1:[2,2].[8,8].fp16.SH").layout == parse_tensor(tiles_text(tile)).layout, "as the paper prints it, without strides"
    units = [digit.index for dim in tile.numerals for digit in dim.fixed]
    (group_m, group_n), (local,) = indices(reshaped(GROUPS, 0, Layout((2, 2), (2, 1))))
    rows = []
    for t in range(32):
        here = dict(zip((unit.name for unit in units), (numbers(group_m)[t], numbers(group_n)[t]), strict=True))
        row = [found for place, found in enumerate(addresses(tile, **here)) if place % 8 == numbers(local)[t]]
        assert row[0] == t // 16 % 2 * 128 + t // 8 % 2 * 8 + t % 8 * 16 and row == list(range(row[0], row[0] + 8))
        rows.append(row)
    assert sorted(itertools.chain(*rows)) == list(range(256))
    lanes = [[address(source, *addressed((2, 2), 1).coordinate(lane, i)) for i in range(8)] for lane in range(32)]
    assert sorted(lanes) == sorted(rows), "the rows that ldmatrix's lanes address; which lane comes first is free (T027)"


def test_figure_1d_registers():
    received = parse_tensor("%2:[2,2].[1,2].fp16.RF")
    assert received == parse_tensor("%2:[2,2 : 4,2].[1,2 : 4,1].fp16.RF") and received.shape == parse_tensor("%2:[2,4].fp16.RF").shape
    register_addresses = [address(received, i, k + 2 * j) for i in range(2) for j in range(2) for k in range(2)]
    assert register_addresses == list(range(8)) and register_addresses == list(
        itertools.chain(*grid(parse_tensor("%2:[2,4].fp16.RF"), 2, 4))
    )


def test_figure_8_addresses():
    """Its indices are column-major (T029, T030), like the compiler's parameters."""
    spec = MatMul(1024, 1024, 1024, dtype=float16)(GL, GL, GL)(Kernel)
    block, thread = (chain.result for chain in (spec.tile(128, 128).to(Block), spec.tile(128, 128).to(Block).tile(8, 8).to(Thread)))
    assert [tiles_text(view) for view in block.operands.values()] == [
        "%A:[8,1]:[128,0].[128,1024]:[1,1024].fp16.GL",
        "%B:[1,8]:[0,131072].[1024,128]:[1,1024].fp16.GL",
        "%C:[8,8]:[128,131072].[128,128]:[1,1024].fp16.GL",
    ]
    rng = random.Random(SEED)
    for bm, bn, tm, tn, k, m, n in [tuple(map(rng.randrange, (8, 8, 16, 16, 1024, 8, 8))) for _draw in range(200)]:
        units = {"block_m": bm, "block_n": bn, "thread_m": tm, "thread_n": tn}
        places = {"A": (m, k), "B": (k, n), "C": (m, n)}
        by_operand = {name: element(view, places[name], units) for name, view in thread.operands.items()}
        assert by_operand["C"] == bm * 128 + bn * 131072 + tm * 8 + tn * 8192 + m + n * 1024
        assert by_operand["A"] == bm * 128 + tm * 8 + m + k * 1024
        assert by_operand["B"] == k + (bn * 128 + tn * 8 + n) * 1024


def element(view, place, units):
    return view.tensor.storage().address([dim.at(index) for dim, index in zip(view.dims, place, strict=True)]).evaluate(units)


def test_figure_8_blocks_and_threads():
    ((block_m, block_n),), ((thread_m, thread_n),) = (
        indices(parse_threads(text), Var(name, 0, high))
        for text, name, high in (("#4:[8,8 : 1,8].block", "block", 2**31 - 1), ("#5:[16,16 : 1,16].thread", "thread", 1023))
    )
    assert (str(block_m), str(block_n)) == ("block % 8", "block // 8 % 8")
    assert (str(thread_m), str(thread_n)) == ("thread % 16", "thread // 16 % 16")
    assert (parse_level("#21:[].block"), parse_level("#22:[].thread")) == (Block, Thread)


# ----------------------------------------------------------------------------------------------------- partial tiles and symbols


def test_partial_tiles_are_over_approximated():
    view = first_tile(parse_tensor("[1023,1].fp32"), 128, 1)
    assert tiles_text(view).startswith("[8,1]:[128,0].[128,1]") and view.dims[0].bound == Const(1023)
    assert first_tile(parse_tensor("[1024,1].fp32"), 128, 1).dims[0].bound is None
    inside = [(b, i) for b in range(8) for i in range(128) if view.dims[0].inside(i).evaluate({"block": b, "block_m": b})]
    assert inside == [(b, i) for b in range(8) for i in range(128) if b * 128 + i < 1023]


def test_bounds_follow_through_all_levels():
    """Tiles of partial tiles: exactly the elements of the tensor are in bounds, each once."""
    for extent, first, second in itertools.product((5, 12, 31, 32), (2, 4, 6), (1, 2, 3)):
        if first % second:
            continue
        tensor = Tensor("A", (Const(extent), Const(1)), float32, GL, ColMajor)
        spec = Move.on(Kernel, whole_view(tensor), whole_view(Tensor("other", tensor.shape, float32, GL, ColMajor)))
        (dim, _) = spec.tile(first, 1).to(Block).tile(second, 1).to(Thread).result.src.dims
        names = [digit.index.name for digit in dim.fixed]
        ways = itertools.product(*(range(digit.size.value) for digit in dim.fixed), range(second))
        coordinates = [(dim.at(way[-1]), dim.inside(way[-1]), dict(zip(names, way[:-1], strict=True))) for way in ways]
        assert sorted(at.evaluate(units) for at, inside, units in coordinates if inside.evaluate(units)) == list(range(extent))


def test_symbolic_sizes():
    m, n = sym("M", multiple_of=128), sym("N")
    tensor = parse_tensor("%A:[M,N].fp32.GL", {"M": m, "N": n})
    assert tensor_text(tensor) == "%A:[M,N].fp32.GL" and parse_tensor("%A:[M,N]:[N,1].fp32.GL", symbols_of(tensor)) == tensor
    values = {"M": 256, "N": 40}
    assert tensor.storage().address([Const(3), Const(4)]).evaluate(values) == 3 * 40 + 4
    tile = first_tile(tensor, 128, 32)
    assert [dim.bound for dim in tile.dims] == [None, n]
    assert view_text(tile) == "%A:[M,N].fp32.GL[128:1 #M // 128:128=block_m, 32:1 #(N + 31) // 32:32=block_n < N]"
    assert parse_view(view_text(tile), symbols_of(tile)) == tile
    assert element(tile, (5, 7), values | {"block_m": 1, "block_n": 1}) == (128 + 5) * 40 + 32 + 7
    for text in ("[M,N].fp32", "[(M,2),4].fp32"):
        with pytest.raises(LayoutError):
            parse_tensor(text, {"M": m} if "(" in text else {})


def test_symbolic_strides():
    ld = sym("ld")
    tensor = parse_tensor("[4,(2,4) : ld,(1,2)].fp32", {"ld": ld})
    assert tensor.storage().address([Const(1), Const(3)]).evaluate({"ld": 100}) == 103
    assert parse_tensor("[4,8]:[1,ld].fp32", {"ld": ld}).layout == ColMajor(ld)


def test_swizzled_tensor():
    plain, swizzled = parse_tensor("%A:[(8,64):(64,1)].fp16.SH"), parse_tensor("%A:Sw<3,3,3> o [(8,64):(64,1)].fp16.SH")
    sw = Swizzle(3, 3, 3)
    assert all(address(swizzled, i, j) == sw(address(plain, i, j)) for i in range(8) for j in range(64))
    tile = first_tile(swizzled, 8, 8, level=Level("Group", Warp, Layout(4)))
    assert tiles_text(tile) == "%A:Sw<3,3,3> o [1,8]:[0,8].[8,8]:[64,1].fp16.SH"
    assert parse_view(view_text(tile), symbols_of(tile)) == tile and tile.tensor.swizzle == sw


def test_addresses_of_arrays():
    tensor = parse_tensor("[4,(2,4) : 2,(1,8)].fp32")
    i, j = np.arange(4)[:, None], np.arange(8)[None, :]
    assert address(tensor, i, j).tolist() == FIGURE_3["3c"][1]


# -------------------------------------------------------------------------------------------------------------------- brute force


def draws(name, count):
    print(f"{name}: seed {SEED}, {int(count * SCALE)} draws")
    rng = random.Random(f"{SEED}/{name}")
    for _draw in range(int(count * SCALE)):
        yield rng


def tile_elements(tile, extent):
    """The logical elements of each tile: those of the first one, from the first element on that is in no earlier tile."""
    tiles, covered = [], set()
    for start in range(extent):
        if start not in covered:
            tiles.append([start + offset for offset in tile.offsets()])
            assert covered.isdisjoint(tiles[-1]), "the drawn layout tiles nothing"
            covered.update(tiles[-1])
    return tiles


def fault(tensor, axis, tile, tiled):
    """Why a division is not one of a dimension into tiles, element by element; None if it is."""
    extent = tensor.shape[axis].value
    tiles, count = tile_elements(tile, extent), tiled.shape[axis].value
    if count < len(tiles):
        return f"{count} tiles, not {len(tiles)}"
    for number in range(count):
        dim = tiled[tuple(number if axis == other else 0 for other in range(len(tensor.shape)))].dims[axis]
        for place in range(tile.size()):
            logical = tiles[number][place] if number < len(tiles) else extent
            at = dim.at(place).evaluate({})
            if number < len(tiles) and at != logical:
                return f"element {place} of tile {number} is {at}, not {logical}"
            if bool(dim.inside(place).evaluate({})) != (logical < extent):
                return f"element {place} of tile {number}: inside"
    return None


def draw_tile(rng):
    """The layout of a tile's elements along a dimension: parts after each other in any order, possibly with gaps."""
    parts = [rng.randint(1, 4) for _part in range(rng.randint(1, 3))]
    strides, reached = [0] * len(parts), 1
    for place in rng.sample(range(len(parts)), len(parts)):
        reached *= rng.choice((1, 1, 2, 3))
        strides[place], reached = reached, reached * parts[place]
    return Layout(tuple(parts), tuple(strides)) if rng.random() < 0.7 else Layout(parts[0], rng.randint(1, 3))


def test_tile_against_brute_force():
    overhanging = strided = 0
    for rng in draws("tile", 400):
        extent, tile = rng.randint(1, 48), draw_tile(rng)
        tensor = Tensor("A", (Const(extent), Const(3)), float32, GL, rng.choice((ColMajor, RowMajor)))
        assert fault(tensor, 0, tile, whole_view(tensor).tile(tile, None)) is None, (extent, tile)
        period = max([size * stride for size, stride in tile.modes if size > 1], default=1)
        overhanging, strided = overhanging + (extent % period != 0), strided + (tile.size() < period)
    print(f"  {overhanging} partial, {strided} with gaps")
    assert overhanging > 100 * SCALE and strided > 100 * SCALE


def test_tiles_of_tiles_against_brute_force():
    """A tile counts the elements of the tile that it divides, whichever these are."""
    accepted = refused = 0
    for rng in draws("tiles of tiles", 400):
        outer, inner = draw_tile(rng), draw_tile(rng)
        tensor = Tensor("A", (Const(48),), float32, GL, ColMajor)
        tile = whole_view(tensor).tile(outer)[0,]
        elements = [tile.dims[0].at(place).value for place in range(outer.size())]
        try:
            tiled = tile.tile(inner)
        except DecompositionError as refusal:
            refused += 1
            period = max([size * stride for size, stride in inner.modes if size > 1], default=1)
            assert outer.size() % period or "cross the boundaries" in str(refusal), (outer, inner)
            continue
        accepted += 1
        for number, places in enumerate(tile_elements(inner, outer.size())):
            assert [tiled[number,].dims[0].at(place).value for place in range(inner.size())] == [elements[one] for one in places]
    assert accepted > 100 * SCALE and refused > 50 * SCALE


def test_the_brute_force_finds_planted_wrong_tiles():
    tensor = parse_tensor("%A:[4,8 : 1,4].fp32")
    tiles = [Layout(4), Layout(2), Layout(4, 2), Layout((2, 2), (1, 4)), Layout((2, 2), (4, 1))]
    for right, candidate in itertools.product(tiles, tiles):
        assert (fault(tensor, 1, right, whole_view(tensor).tile(None, candidate)) is None) == (right == candidate)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("tile", "reason"), [
    (Layout(2, 0), "no stride is 0"), (Layout((2, 2), (1, 1)), "has no complement"), (Layout((2, 2), (1, 3)), "has no complement"),
    (Layout(3, 3), "cover 9 elements together, which do not divide the 8"), (Layout(sym("M"), 1), "integers"), (3, "3 does not divide the 8"),
])  # fmt: skip
def test_invalid_tiles_are_refused(tile, reason):
    part = whole_view(parse_tensor("%A:[16,4].fp32")).tile(8, None)[1, 0]
    with pytest.raises(DecompositionError, match=reason):
        part.tile(tile, None)
    with pytest.raises(DecompositionError, match=reason):
        assert Move(16, 4)(GL, GL)(Kernel).tile(8, 4).to(Block).tile(tile, 4).to(Thread).result


def test_places_that_no_tile_has_are_refused():
    view = whole_view(parse_tensor("%A:[16,4].fp32"))
    tiled = view.tile(Layout(2, 2), None)
    assert [size.value for size in tiled.shape] == [8, 1] and tiled.at((3, 0), unit=True).dims[0].unit_modes[0].unit
    for place in ((8, 0), (-1, 0), (0, 1), (0,), (0, 0, 0), 3, (Var("i", 0, 8), 0)):
        with pytest.raises(LayoutError):
            tiled[place]
    for sizes in ((0, 4), (4,), (4, 4, 4), (-2, 4)):
        with pytest.raises((LayoutError, DecompositionError)):
            view.tile(*sizes)


@pytest.mark.parametrize("tile", [Layout((3, 2), (1, 6)), 3, 6])
def test_runs_that_a_tile_steps_out_of(tile):
    part = whole_view(parse_tensor("%A:[64,4].fp32")).tile(Layout((4, 3), (1, 8)), None)[0, 0]
    with pytest.raises(DecompositionError, match=r"cross the boundaries of the tile.s runs \(4 elements 1 apart, 3 elements 8 apart\)"):
        part.tile(tile, None)


def draw_threads(rng):
    """Threads as tiles of tiles, one of the shapes possibly rearranged; with the number of threads."""
    count = rng.choice((12, 24, 32, 64, 96, 128))
    shapes = (Layout(count),)
    for _level in range(rng.randint(0, 2)):
        tile = Layout(*rng.choice([(2, 1), (2, 2), (3, 1), (4, 1), ((2, 2), (1, 4)), ((2, 2), (4, 1)), (2, 4), (6, 1)]))
        inner, outer = zipped_divide(shapes[0], tile)
        shapes = (outer, inner, *shapes[1:])
    if rng.random() < 0.5:
        depth = rng.randrange(len(shapes))
        size = shapes[depth].size()
        first = rng.choice([d for d in range(1, size + 1) if size % d == 0])
        shapes = reshaped(shapes, depth, Layout((first, size // first), (size // first, 1)))
    return shapes, count


def test_thread_indices_against_brute_force():
    accepted = 0
    for rng in draws("threads", 400):
        try:
            shapes, count = draw_threads(rng)
            places = indices(shapes, rng.choice((THREAD, Var("thread", 0, count - 1))))
        except LayoutError:
            continue
        accepted += 1
        for thread in range(count):
            at = [tuple(index.evaluate({"thread": thread}) for index in level) for level in places]
            assert sum(shape(*place) for shape, place in zip(shapes, at, strict=True)) == thread
        parsed = parse_threads(threads_text(shapes))
        assert [shape.modes for shape in parsed] == [shape.modes for shape in shapes]
    assert accepted > 150 * SCALE
