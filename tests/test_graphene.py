"""Graphene's figures by number, and its tiling against brute force over all elements."""

from __future__ import annotations

import itertools
import math
import os
import random

import numpy as np
import pytest

from fireiron.errors import ArgumentError, FireironError, LayoutError
from fireiron.values.layout import Layout, Swizzle, complement
from fireiron.values.notation import KEEP, Guard, Index, NestedTensor, Shape, _, parse

SCALE = float(os.environ.get("FIREIRON_FUZZ", "1"))
SEED = 20230325
assert Guard  # named by repr


def grid(tensor, rows, columns):
    return [[tensor.address(i, j) for j in range(columns)] for i in range(rows)]


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
    tensor = parse(text)
    assert grid(tensor, 4, 8) == numbers and tensor.address(0, 3) == at_0_3
    assert sorted(itertools.chain(*numbers)) == list(range(32))
    assert parse(str(tensor)) == tensor and tensor.rank == 2


def test_figure_3d_as_printed_and_as_transcribed():
    assert FIGURE_3["3d"][1][0] == [0, 2, 8, 10, 16, 18, 24, 26]
    assert parse(FIGURE_3["3d"][0]).address((0, 0), (1, 1)) == 10
    transcribed = parse("[(2,2),(2,4) : (1,4),(1,8)].fp32")
    assert transcribed.address(0, 3) == 9 and len({transcribed.address(i) for i in range(32)}) == 24


def test_padded_layout():
    padded = parse("[(4,8):(9,1)].fp32")
    assert padded.shape.layout().cosize() == 35 and padded.address(3, 7) == 34


def test_the_layout_changes_no_access():
    """G018: the same coordinates, whatever the layout; each layout holds each value once."""
    for text, _numbers, _at in FIGURE_3.values():
        tensor, memory = parse(text), {}
        for i, j in itertools.product(range(4), range(8)):
            memory[tensor.address(i, j)] = (i, j)
        assert [memory[tensor.address(i, j)] for i in range(4) for j in range(8)] == list(itertools.product(range(4), range(8)))


# --------------------------------------------------------------------------------------------------------------------- figure 4


A4 = parse("%A:[4,8 : 1,4].fp32")
FIGURE_4 = {
    "4b": (("[2:1]", "[4:1]"), "[2,2 : 2,16].[2,4 : 1,4].fp32", lambda i, j: (i // 2, j // 4)),
    "4c": (("[2:2]", "[4:1]"), "[2,2 : 1,16].[2,4 : 2,4].fp32", lambda i, j: (i % 2, j // 4)),
    "4d": (("[2:2]", "[(2,2):(1,4)]"), "[2,2 : 1,8].[2,(2,2) : 2,(4,16)].fp32", lambda i, j: (i % 2, j // 2 % 2)),
}


def test_figure_4a():
    assert parse("%A:[(4,8):(1,4)].fp32") == A4 and grid(A4, 4, 8) == FIGURE_3["3a"][1]


@pytest.mark.parametrize("figure", FIGURE_4)
def test_figure_4_tiles(figure):
    sizes, text, tile_of = FIGURE_4[figure]
    tiled = A4.tile(*sizes)
    assert tiled == parse(f"%A:{text}") and parse(str(tiled)) == tiled
    colours = {}
    for m, n in itertools.product(range(2), range(2)):
        for i, j in itertools.product(range(2), range(4)):
            colours[tiled.address((m, n), (i, j))] = (m, n)
    assert colours == {A4.address(i, j): tile_of(i, j) for i in range(4) for j in range(8)}


def test_figure_4_inner_coordinates():
    """Inside a tile of 4d, column 2 is the first of the second pair: logical column 4."""
    tiled = A4.tile("[2:2]", "[(2,2):(1,4)]")
    assert [tiled.address((0, 0), (0, j)) for j in range(4)] == [0, 4, 16, 20]
    assert tiled.address((0, 0), (0, (0, 1))) == 16 and tiled[0, 1].address(1, 0) == 10


def test_tile_is_agnostic_of_the_layout():
    """G026: the same call groups the same logical elements, whatever the strides."""
    for sizes, _text, tile_of in FIGURE_4.values():
        for text, _numbers, _at in FIGURE_3.values():
            tensor = parse(text)
            tiled = tensor.tile(*sizes)
            for m, n in itertools.product(range(2), range(2)):
                found = {tiled.address((m, n), (i, j)) for i in range(2) for j in range(4)}
                assert found == {tensor.address(i, j) for i in range(4) for j in range(8) if tile_of(i, j) == (m, n)}


# -------------------------------------------------------------------------------------------------------------- figures 5 and 6


def numbers(index, threads=32):
    return [index(t) for t in range(threads)]


def test_figure_5a_warp():
    warp = parse("#4:[32:1].thread")
    ((tidx,),) = warp.indices()
    assert str(tidx) == "threadIdx.x % 32" and numbers(tidx, 64) == [t % 32 for t in range(64)]
    assert str(warp.indices(extent=32)[0][0]) == "threadIdx.x"


def test_figure_5b_groups():
    groups = parse("#4:[32:1].thread").tile("[8:1]")
    assert groups == parse("#4:[4:8].[8:1].thread") == parse("#4:[32].thread").tile(8)
    (grp,), (tidx,) = groups.indices(extent=32)
    assert str(grp) == "threadIdx.x / 8" and str(tidx) == "threadIdx.x % 8"
    assert str(groups.indices()[0][0]) == "(threadIdx.x / 8) % 4"
    assert list(zip(numbers(grp), numbers(tidx), strict=True)) == [(t // 8, t % 8) for t in range(32)]


@pytest.mark.parametrize("shape", ["[2,2 : 2,1]", (2, 2), Layout((2, 2), (2, 1))], ids=str)
def test_figure_5c_reshaped_groups(shape):
    groups = parse("#4:[32].thread").tile(8).reshape(0, shape)
    assert groups == parse("#4:[2,2 : 16,8].[8:1].thread")
    (grp_m, grp_n), (tidx,) = groups.indices()
    assert (str(grp_m), str(grp_n), str(tidx)) == ("(threadIdx.x / 16) % 2", "(threadIdx.x / 8) % 2", "threadIdx.x % 8")
    assert all((grp_m(t), grp_n(t), tidx(t)) == (t // 16, t // 8 % 2, t % 8) for t in range(32))
    assert [groups.address((m, n), 0) for m in range(2) for n in range(2)] == [0, 8, 16, 24]


def test_figure_6_quad_pairs():
    pairs = parse("#4:[32:1].thread").tile("[(4,2):(1,16)]")
    assert pairs == parse("#4:[4:4].[(4,2):(1,16)].thread") and str(pairs) == "#4:[4:4].[(4,2):(1,16)].thread"
    (qp,), (quad, hi_lo) = pairs.indices()
    assert (str(qp), str(quad), str(hi_lo)) == ("(threadIdx.x / 4) % 4", "threadIdx.x % 4", "(threadIdx.x / 16) % 2")
    assert [t for t in range(32) if qp(t) == 0] == [0, 1, 2, 3, 16, 17, 18, 19]
    assert [pairs.address(0, k) for k in range(8)] == [0, 1, 2, 3, 16, 17, 18, 19]
    assert all(pairs.address(qp(t), (quad(t), hi_lo(t))) == t for t in range(32))


# -------------------------------------------------------------------------------------------------------------- figures 1d and 8


def test_figure_1d_ldmatrix():
    """Each thread addresses one row of 8 of its group's 8x8 tile: thr_grp_m*128 + thr_grp_n*8 + grp_local_idx*16, in elements (T023)."""
    source, destination = parse("%1:[16,16].fp16.SH"), parse("%2:[2,4].fp16.RF")
    groups = parse("#4:[32].thread").tile(8).named("#5").reshape(0, (2, 2)).named("#6")
    (grp_m, grp_n), (local,) = groups.indices()
    tiles = source.tile(8, 8).named("%7")
    assert tiles == parse("%7:[2,2 : 128,8].[8,8 : 16,1].fp16.SH")
    rows = []
    for t in range(32):
        tile = tiles[grp_m(t), grp_n(t)].named("%8")
        row = tile.tile(1, 8).named("%9")[local(t), 0].named("%10")
        assert row.shape == Shape((1, 8), (0, 1))
        assert row.address(0, 0) == t // 16 % 2 * 128 + t // 8 % 2 * 8 + t % 8 * 16
        rows += [row.address(0, j) for j in range(8)]
    assert sorted(rows) == list(range(256))
    received = destination.tile(1, 2)
    assert received == parse("%2:[2,2 : 4,2].[1,2 : 0,1].fp16.RF")
    assert [received.address((i, j), (0, k)) for i in range(2) for j in range(2) for k in range(2)] == list(range(8))


def test_figure_1d_with_expressions():
    expr = pytest.importorskip("fireiron.values.expr")
    thread = expr.Var("threadIdx.x", 0, 31)
    (grp_m, grp_n), (local,) = parse("#4:[32].thread").tile(8).reshape(0, (2, 2)).indices()
    tiles = parse("%1:[16,16].fp16.SH").tile(8, 8)
    address = tiles[grp_m(thread), grp_n(thread)].tile(1, 8)[local(thread), 0].address(0, 0)
    assert [address.evaluate({"threadIdx.x": t}) for t in range(32)] == [t // 16 * 128 + t // 8 % 2 * 8 + t % 8 * 16 for t in range(32)]


def test_figure_8_addresses():
    """Its indices are column-major, so strides are written (T029, T030)."""
    a, b = parse("%1:[1024,1024 : 1,1024].fp16.GL"), parse("%2:[1024,1024 : 1,1024].fp16.GL")
    c = parse("%3:[1024,1024 : 1,1024].fp16.GL")
    blocks, threads = parse("#4:[8,8 : 1,8].block"), parse("#5:[16,16 : 1,16].thread")
    ((bid_m, bid_n),), ((tid_m, tid_n),) = blocks.indices(), threads.indices()
    assert (str(bid_m), str(bid_n)) == ("blockIdx.x % 8", "(blockIdx.x / 8) % 8")
    assert (str(tid_m), str(tid_n)) == ("threadIdx.x % 16", "(threadIdx.x / 16) % 16")
    assert a.tile(128, _) == parse("%1:[8,1 : 128,0].[128,1024 : 1,1024].fp16.GL")
    assert b.tile(KEEP, 128) == parse("%2:[1,8 : 0,131072].[1024,128 : 1,1024].fp16.GL")
    rng = random.Random(SEED)
    for block, thread, k, m, n in [tuple(rng.randrange(x) for x in (64, 256, 1024, 8, 8)) for _draw in range(200)]:
        bm, bn, tm, tn = bid_m(block), bid_n(block), tid_m(thread), tid_n(thread)
        scalar_a = a.tile(128, _)[bm, 0].tile(8, _)[tm, 0][m, k]
        scalar_b = b.tile(_, 128)[0, bn].tile(_, 8)[0, tn][k, n]
        scalar_c = c.tile(128, 128)[bm, bn].tile(8, 8)[tm, tn][m, n]
        assert scalar_c.address() == bm * 128 + bn * 131072 + tm * 8 + tn * 8192 + m + n * 1024
        assert scalar_a.address() == bm * 128 + tm * 8 + m + k * 1024
        assert scalar_b.address() == k + (bn * 128 + tn * 8 + n) * 1024
        assert str(scalar_a).endswith("[].fp16.GL")
    assert str(blocks.scalar().named("#21")) == "#21:[].block" and str(threads.scalar()) == "#5:[].thread"


# ----------------------------------------------------------------------------------------------------- partial tiles and symbols


def test_partial_tiles_are_over_approximated():
    tiled = parse("[1023].fp32").tile(128)
    assert tiled == parse("[8:128].[128:1].fp32") and tiled.partial
    assert not parse("[1024].fp32").tile(128).partial and tiled[7].partial
    covered = {tiled.address(i, j) for i in range(8) for j in range(128)}
    assert covered == set(range(1024))
    two = parse("[5,7 : 1,5].fp32").tile("[2:2]", 4)
    assert two == parse("[(2,2),2 : (1,4),20].[2,4 : 2,5].fp32") and two.partial
    assert [two[3, 1].inside(i, j) for i, j in ((0, 0), (0, 2), (0, 3), (1, 0))] == [False] * 4 and str(Shape((), ())) == "[]"
    assert [two[2, 1].inside(i, j) for i, j in ((0, 0), (0, 2), (0, 3), (1, 0))] == [True, True, False, False]
    logical = {two.address(o, i) for o in range(8) for i in range(8)}
    assert {i + 5 * j for i in range(5) for j in range(7)} <= logical


def test_guards_follow_through_all_levels():
    """Tiles of partial tiles, and tiles of tiles: exactly the elements of the tensor are inside, each once."""
    for root, first, second in itertools.product((5, 12, 31, 32), (2, 4, 6), (1, 2, 3, 4)):
        tensor = parse(f"[{root}:3].fp32")
        nested = tensor.tile(first).tile(second)
        inner = [tensor.tile(first)[i].tile(second) for i in range(-(-root // first))]
        ways = itertools.product(*(range(shape.layout().size()) for shape in nested.shapes))
        assert sorted(nested.address(*way) for way in ways if nested.inside(*way)) == [3 * k for k in range(root)]
        found = [part.address(i, j) for part in inner for i in range(-(-first // second)) for j in range(second) if part.inside(i, j)]
        assert sorted(found) == [3 * k for k in range(root)]


def test_guards_of_hierarchical_coordinates_and_expressions():
    tiled = parse("[4,(2,3) : 20,(1,4)].fp32").tile(4, 4)
    assert [tiled.inside((0, 1), (0, (i, j))) for j in range(2) for i in range(2)] == [True, True, False, False]
    expr = pytest.importorskip("fireiron.values.expr")
    n = expr.sym("N")
    symbolic = parse("[N].fp32", {"N": n}).tile(32)
    ((index, bound),) = symbolic[expr.Var("i", 0, 99)].bounds(5)
    assert index.evaluate({"i": 2, "N": 70}) == 69 and bound == n
    with pytest.raises(LayoutError):
        symbolic.inside(0, 5)


def test_partial_hierarchical_dimensions():
    tiled = parse("[2,(2,3) : 1,(2,8)].fp32").tile(2, 4)
    assert tiled == parse("[1,2 : 0,16].[2,(2,2) : 1,(2,8)].fp32") and tiled.partial
    with pytest.raises(LayoutError):
        parse("[1,(4,1) : 1,(1,8)].fp32").tile(1, 3)


def test_symbolic_sizes():
    expr = pytest.importorskip("fireiron.values.expr")
    m, n = expr.sym("M", multiple_of=128), expr.sym("N")
    tensor = parse("%A:[M,N].fp32.GL", {"M": m, "N": n})
    assert str(tensor) == "%A:[(M,N):(N,1)].fp32.GL" and parse(str(tensor), {"M": m, "N": n}) == tensor
    tiled = tensor.tile(128, 32)
    assert tiled.partial and not tensor.tile(128, "_").partial
    assert [bound for _index, bound in tiled.bounds((0, 0), (0, 0))] == [n]
    values = {"M": 256, "N": 40, "i": 1, "j": 1}
    i, j = expr.Var("i", 0, 1), expr.Var("j", 0, 1)
    assert [s.evaluate(values) for s in tiled.shape.dims] == [2, 2]
    address = tiled[i, j].address(expr.Var("r", 0, 127), expr.Var("c", 0, 31))
    assert address.evaluate({**values, "r": 5, "c": 7}) == (128 + 5) * 40 + 32 + 7
    assert tensor.address(3, 4).evaluate(values) == 3 * 40 + 4
    for call in (
        lambda: tensor.address(-1, 0),
        lambda: tensor.address(5),
        lambda: tensor.shape.layout(),
        lambda: parse("[M,N].fp32"),
        lambda: NestedTensor("", (Shape(((n, 2), 4), ((1, n), 64)),), "fp32").tile(2, 2),
        lambda: Shape.row_major(((n, 2), 4)),
    ):
        with pytest.raises(LayoutError):
            call()


def test_symbolic_strides_and_hierarchical_dimensions():
    expr = pytest.importorskip("fireiron.values.expr")
    ld = expr.sym("ld")
    tensor = parse("[4,(2,4) : ld,(1,2)].fp32", {"ld": ld})
    assert tensor.address(1, 3).evaluate({"ld": 100}) == tensor.address(1, (1, 1)).evaluate({"ld": 100}) == 103
    tiled = tensor.tile(2, "_")
    assert tiled.address((1, 0), (1, 5)).evaluate({"ld": 100}) == 305
    vector = parse("[N : 3].fp32", {"N": ld})
    assert vector.address(5) == 15 and vector[5].offset == 15
    assert tensor.tile(2, 2).address((1, 2), (1, 1)).evaluate({"ld": 100}) == 305
    assert str(Shape(((ld, 2), 4), ((1, ld), 0))) == "[((ld,2),4):((1,ld),0)]"
    for call in (lambda: tensor.address(1.5, 0), lambda: tensor.address(True, 0), lambda: tensor.address(0, 8), lambda: vector[-1]):
        with pytest.raises(FireironError):
            call()


def test_swizzled_tensor():
    plain, swizzled = parse("%A:[(8,64):(64,1)].fp16.SH"), parse("%A:Sw<3,3,3> o [(8,64):(64,1)].fp16.SH")
    sw = Swizzle(3, 3, 3)
    assert all(swizzled.address(i, j) == sw(plain.address(i, j)) for i in range(8) for j in range(64))
    tiled = swizzled.tile(8, 8)
    assert all(tiled[0, t].address(i, j) == swizzled.address(i, 8 * t + j) for t in range(8) for i in range(8) for j in range(8))
    assert str(tiled[0, 3]) == "%A:Sw<3,3,3> o 24 o [(8,8):(64,1)].fp16.SH" and parse(str(tiled[0, 3])) == tiled[0, 3]


def test_addresses_of_arrays():
    tensor = parse("[4,(2,4) : 2,(1,8)].fp32")
    i, j = np.arange(4)[:, None], np.arange(8)[None, :]
    assert tensor.address(i, j).tolist() == FIGURE_3["3c"][1]


# -------------------------------------------------------------------------------------------------------------------- brute force


def draws(name, count):
    print(f"{name}: seed {SEED}, {int(count * SCALE)} draws")
    rng = random.Random(f"{SEED}/{name}")
    for _draw in range(int(count * SCALE)):
        yield rng


def draw_tensor(rng):
    dims, strides, current = [], [], 1
    for _dim in range(rng.randint(1, 3)):
        parts = [rng.choice((1, 2, 2, 3, 4, 6)) for _ in range(rng.choice((1, 1, 2)))]
        dims.append(parts)
    slots = [(d, k) for d, parts in enumerate(dims) for k in range(len(parts))]
    strides = [[0] * len(parts) for parts in dims]
    for d, k in rng.sample(slots, len(slots)):
        strides[d][k] = current
        current *= dims[d][k] + rng.choice((0, 0, 0, 1))

    def fold(parts):
        return parts[0] if len(parts) == 1 else tuple(parts)

    return NestedTensor("%A", (Shape(tuple(map(fold, dims)), tuple(map(fold, strides))),), "fp32", rng.choice((None, "SH")))


def draw_tile(rng):
    return Layout(*rng.choice([(1, 1), (2, 1), (2, 2), (3, 1), (4, 1), (2, 3), ((2, 2), (1, 4)), ((2, 2), (4, 1)), (2, 4), (6, 1)]))


def dims_of(tensor):
    return [math.prod(dim) if isinstance(dim, tuple) else dim for dim in tensor.shape.dims]


def check_tiles(tensor, sizes, tiled):
    """Tile t, element e of a dimension is logical element tile(e) + complement(t); over all, each logical element comes once."""
    extents = dims_of(tensor)
    tiles = [Layout(1, 0) if size is KEEP else size for size in sizes]
    seen = {}
    ways = []
    for extent, tile, size in zip(extents, tiles, sizes, strict=True):
        if size is KEEP:
            ways.append([(0, e, e) for e in range(extent)])
            continue
        holes = complement(tile)
        period = tile.size() * holes.size()
        rest = complement(tile, -(-extent // period) * period)
        ways.append([(t, e, rest(t) + tile(e)) for t in range(rest.size()) for e in range(tile.size())])
    for way in itertools.product(*ways):
        outer, inner, logical = (tuple(part[k] for part in way) for k in range(3))
        unwrap = len(way) == 1
        address = tiled.address(outer[0] if unwrap else outer, inner[0] if unwrap else inner)
        assert logical not in seen
        seen[logical] = address
        exists = all(x < extent for x, extent in zip(logical, extents, strict=True))
        assert tiled.inside(outer[0] if unwrap else outer, inner[0] if unwrap else inner) == exists
    part = tiled[outer[0] if unwrap else outer]
    assert part.address(inner[0] if unwrap else inner) == address and part.inside(inner[0] if unwrap else inner) == exists
    inside = set(itertools.product(*map(range, extents)))
    assert inside <= set(seen) and (tiled.partial == (set(seen) != inside))
    assert all(seen[x] == tensor.address(x[0] if len(x) == 1 else x) for x in inside)


def test_tile_against_brute_force():
    accepted = partial = 0
    for rng in draws("tile", 800):
        tensor = draw_tensor(rng)
        sizes = [KEEP if rng.random() < 0.1 else draw_tile(rng) for _dim in range(tensor.rank)]
        assert parse(str(tensor)) == tensor and eval(repr(tensor)) == tensor
        try:
            tiled = tensor.tile(*sizes)
        except LayoutError:
            continue
        accepted, partial = accepted + 1, partial + tiled.partial
        check_tiles(tensor, sizes, tiled)
        assert parse(str(tiled)) == tiled and eval(repr(tiled)) == tiled and eval(repr(tiled)).guards == tiled.guards
    print(f"  {accepted} tiled, {partial} of them partial")
    assert accepted > 250 * SCALE and partial > 50 * SCALE


def test_the_brute_force_finds_planted_wrong_tiles():
    tensor, sizes = parse("%A:[4,8 : 1,4].fp32"), [Layout(2, 1), Layout(4, 1)]
    for lie in (
        "[2,2 : 2,8].[2,4 : 1,4].fp32",
        "[2,2 : 16,2].[2,4 : 1,4].fp32",
        "[2,2 : 2,16].[2,4 : 4,1].fp32",
        "[2,2 : 1,16].[2,4 : 2,4].fp32",
    ):
        with pytest.raises(AssertionError):
            check_tiles(tensor, sizes, parse(f"%A:{lie}"))
    check_tiles(tensor, sizes, parse("%A:[2,2 : 2,16].[2,4 : 1,4].fp32"))


def test_thread_indices_against_brute_force():
    accepted = 0
    for rng in draws("threads", 800):
        threads = parse(f"#t:[{rng.choice((12, 24, 32, 64, 96, 128))}:1].thread")
        try:
            for _level in range(rng.randint(0, 2)):
                threads = threads.tile(*(draw_tile(rng) for _dim in range(threads.rank)))
            if rng.random() < 0.5:
                depth = rng.randrange(len(threads.shapes))
                count = threads.shapes[depth].layout().size()
                first = rng.choice([d for d in range(1, count + 1) if count % d == 0])
                threads = threads.reshape(depth, (first, count // first))
            levels = threads.indices(extent=rng.choice((None, threads_of(threads))))
        except LayoutError:
            continue
        accepted += 1
        for t in range(threads_of(threads)):
            coordinates = [tuple(index(t) for index in level) for level in levels]
            assert threads.address(*(c if len(c) > 1 or len(levels) == 1 else c[0] for c in coordinates)) == t
            for level in levels:
                for index in level:
                    text = str(index).replace("threadIdx.x", str(t)).replace("/", "//")
                    assert eval(text) == index(t)
    assert accepted > 200 * SCALE


def threads_of(tensor):
    return math.prod(shape.layout().size() for shape in tensor.shapes)


# ---------------------------------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    "bad",
    [True, 1.5, None, [2], {2}, object(), 0, -2, "x", "[0:1]", "(2", Layout(4, 0), Layout((2, 2), (1, 3))],
    ids=lambda bad: type(bad).__name__,
)
def test_bad_tile_sizes(bad):
    for tensor in (parse("[4,8 : 1,4].fp32"), parse("#t:[4,8 : 1,4].thread")):
        with pytest.raises(FireironError):
            tensor.tile(bad, 4)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[4]",
        "[4].",
        "fp32",
        "[4].fp32.sh",
        "[4].FP32",
        "%A:[4].thread",
        "#A:[4].fp32",
        "#A:[4].thread.SH",
        "@x:[4].fp16",
        "A:[4].fp32",
        "[4:1:1].fp32",
        "[4,8:1].fp32",
        "[0].fp32",
        "[-4].fp32",
        "[4:-1].fp32",
        "[4.5].fp32",
        "[M].fp32",
        "[2,2].[8,8].fp16.SH",
        "[].[4:1].fp32",
        "[4:1].[].fp32",
        "[4:1]fp32",
        "[4:1].fp32.SH.SH",
        "Sw<3,0,1> o [8:1].fp32",
        "8 o 8 o [8:1].fp32",
        "x o [8:1].fp32",
        "Sw<1,0,1> o [8:1].thread",
        "[(4,8:1,4].fp32",
    ],
)
def test_bad_text(text):
    with pytest.raises(FireironError) as refusal:
        parse(text)
    assert len(str(refusal.value)) > 15


@pytest.mark.parametrize(
    "call",
    [
        lambda t, w: t.tile(2),
        lambda t, w: t.tile(),
        lambda t, w: t[32],
        lambda t, w: t[0, 8],
        lambda t, w: t[0, -1],
        lambda t, w: t[0, 1.5],
        lambda t, w: t[0, True],
        lambda t, w: t[0, None],
        lambda t, w: t[0, 0][0],
        lambda t, w: t.address(0, 0, 0),
        lambda t, w: t.tile(2, 4).address(0),
        lambda t, w: t[0, 0].tile(1),
        lambda t, w: t[0, 0].address(0),
        lambda t, w: list(t),
        lambda t, w: t.reshape(0, (8, 4)),
        lambda t, w: t.indices(),
        lambda t, w: t.scalar(),
        lambda t, w: t.named("A"),
        lambda t, w: t.named(3),
        lambda t, w: w.tile(24),
        lambda t, w: w.reshape(1, (4, 8)),
        lambda t, w: w.reshape(-1, (4, 8)),
        lambda t, w: w.reshape(True, (4, 8)),
        lambda t, w: w.reshape(0, (4, 4)),
        lambda t, w: w.reshape(0, Layout((4, 8), (1, 1))),
        lambda t, w: w.reshape(0, 32),
        lambda t, w: w.reshape(0, (4, True)),
        lambda t, w: w.tile(8)[1].indices(),
        lambda t, w: w.indices(extent=0),
        lambda t, w: w.indices(extent=True),
        lambda t, w: parse("#t:[4,4 : 1,2].thread").indices(),
        lambda t, w: parse("#t:[4:0].thread").indices(),
        lambda t, w: w.indices()[0][0](1.5),
        lambda t, w: NestedTensor("%A", (Shape((4,), (1,)),), "fp32", offset=True),
        lambda t, w: NestedTensor("%A", (Shape((4,), (1,)),), "fp32", offset=(1, 2)),
        lambda t, w: NestedTensor("%A", (Shape((4,), (1,)),), "fp32", offset=-1),
        lambda t, w: NestedTensor("%A", (Shape((4,), (1,)),), "fp32", guards=[]),
        lambda t, w: NestedTensor("%A", (Shape((4,), (1,)),), "fp32", guards=(1,)),
        lambda t, w: NestedTensor("%A", [Shape((4,), (1,))], "fp32"),
        lambda t, w: NestedTensor("%A", (Shape((), ()),), "fp32"),
        lambda t, w: NestedTensor("%A", (), 32),
        lambda t, w: NestedTensor("%A", (), "fp32", "sh"),
        lambda t, w: Shape(4, 1),
        lambda t, w: Shape((4,), (1, 2)),
        lambda t, w: Shape((4, True), (1, 2)),
        lambda t, w: Shape((4, None), (1, 2)),
        lambda t, w: Shape.of("4:1"),
        lambda t, w: Shape((t,), (1,)),
        lambda t, w: parse(3),
    ],
)
def test_illegal_requests(call):
    with pytest.raises((ArgumentError, LayoutError)):
        call(parse("%A:[4,8 : 1,4].fp32"), parse("#w:[32:1].thread"))


def test_small_facts():
    assert str(Index("threadIdx.x", ())) == "0" and Index("threadIdx.x", ())(5) == 0
    assert parse("@s:[].fp16").shape.rank == 0 and parse("[].fp16").address() == 0
    assert Shape.of(Layout(8, 2)) == Shape((8,), (2,)) and repr(KEEP) == "KEEP"
    nested = parse("%A:[16,16].fp16").tile(8, 8).tile(2, 1)
    assert nested == parse("%A:[1,2 : 0,8].[2,1 : 128,0].[8,8 : 16,1].fp16")
    assert parse("[1,8].fp16") == parse("[1,8 : 0,1].fp16") == parse("[1,8 : 5,1].fp16") and t_is_linear(parse("[4,8 : 1,4].fp16"))
    assert nested.element_type().endswith("[(8,8):(16,1)].fp16") and len(nested.shapes) == 3
    assert parse("[16,16 : 16,1].fp16.FR<16,16,16>").memory == "FR<16,16,16>"


def t_is_linear(tensor):
    """A single integer indexes several dimensions colexicographically."""
    return [tensor[k].offset for k in range(32)] == list(range(32))
