"""Vectors and shared buffers by hand: drawn vectors held against all their addresses; where buffers and barriers lie."""

import itertools
import random

import attrs
import making
import pytest
from touching import T, buffer, i, kernel, loop, reads, touch, writes

from fireiron import *
from fireiron import ir
from fireiron.check import AccessTrace, check_alignment
from fireiron.check import alignment as subject
from fireiron.check.known_bits import KnownBits
from fireiron.values.expr import TRUE, Var, as_expr, equal, less
from fireiron.values.layout import Digit, Layout, Swizzle
from fireiron.values.machine import FRAGMENTS
from fireiron.values.tensor import Mode, Storage, Tensor

THREADS = 32
BLOCK = Var("block", 0, 7)
N, N8 = Var("N", 1, 1 << 20, 1, True), Var("N8", 8, 1 << 20, 8, True)


def said(*body, shared=1 << 15, rings=(), **options):
    """What the check says of a kernel of a block's bytes."""
    program = kernel(*body, **{"threads": THREADS, **options})
    return list(check_alignment(AccessTrace(attrs.evolve(program, shared_bytes=shared, rings=tuple(rings)))))


def vector(place, width, count=1, dtype=None, **options):
    """A statement that reads `count` vectors of `width` elements."""
    pieces = tuple(making.piece(number * width, width, condition=TRUE) for number in range(count))
    return attrs.evolve(reads(place, width=width * count, **options), pieces=(pieces,))


def is_aligned(program):
    """Whether each vector begins at a multiple of its elements, all of it one behind the other, for all threads and iterations."""

    def run(body, values):
        for one in body:
            if isinstance(one, ir.For):
                if not all(run(one.body, {**values, one.var.name: number}) for number in range(one.extent.evaluate(values))):
                    return False
                continue
            (access,), (pieces,) = one.accesses, one.pieces
            target = program.buffer(access.buffer)
            for thread, piece in itertools.product(range(program.threads), pieces):
                there = {**values, "thread": thread}
                if not one.performed.evaluate(there):
                    continue
                offsets = access.elements()[piece.first : piece.first + piece.width]
                places = [target.address(access, offset).evaluate(there) for offset in offsets]
                if places[0] % piece.width or places != list(range(places[0], places[0] + piece.width)):
                    return False
        return True

    return run(program.body, {"block": 0})


def drawn(chance):
    width = chance.choice((2, 4))
    step = chance.choice((1, width, width, 2 * width, width + 1))
    place = T * step + i * chance.choice((0, 1, width, 3 * width)) + chance.choice((0, 0, 0, width, 1, 2))
    place = place + T % 4 * chance.choice((0, 0, width, 1))
    active = chance.choice((TRUE, TRUE, less(T, 1), less(i, 1)))
    swizzle = chance.choice((None, None, Swizzle(2, 2, 3), Swizzle(2, 1, 3), Swizzle(1, 0, 3)))
    one = buffer("s", 1024)
    one = attrs.evolve(one, storage=Storage(Layout((1024,), (1,)), 1024, swizzle))
    count = chance.choice((1, 2))
    return kernel(loop(3, vector(place, width, count, active=active)), threads=THREADS, buffers=(one,), shared_bytes=4096)


@pytest.mark.parametrize("chunk", range(4))
def test_drawn_vectors_are_judged_as_by_their_addresses(chunk):
    verdicts = set()
    for seed in range(40 * chunk, 40 * (chunk + 1)):
        program = drawn(random.Random(f"vectors {seed}"))
        expected = is_aligned(program)
        found = list(check_alignment(AccessTrace(program)))
        assert bool(found) != expected, (seed, program.body, program.buffers[0].storage, found)
        verdicts.add(expected)
    assert verdicts == {True, False}


def test_what_is_said_of_a_vector():
    (one,) = said(vector(T * 4 + 2, 4))
    assert (
        one.message == "s: thread 0 accesses addresses 2, 3, 4, 5 as a vector, which are not 4 contiguous addresses from a multiple of 4 on"
    )
    assert (one.kind, one.severity, one.buffer, one.at) == ("alignment", "error", "s", "hand.py:1") and one.details["vector"] == 4
    (one,) = said(loop(3, vector(T * 4 + i * 2, 4)))
    assert one.message.startswith("s: thread 0, i 1 accesses addresses 2, 3, 4, 5 as a vector")
    (one,) = said(vector(T * 4 + BLOCK, 4), grid=8)
    assert "which is not proved to be a multiple of 4" in one.message
    assert said(vector(T * 4 + BLOCK * 8, 4), grid=8) == []


@pytest.mark.parametrize(
    ("width", "dtype", "legal"),
    [
        (4, float32, True),
        (8, float32, False),
        (3, float32, False),
        (8, float16, True),
        (16, float16, False),
        (2, float64, True),
        (4, float64, False),
        (1, float64, True),
    ],
)
def test_bytes_of_a_vector(width, dtype, legal):
    found = said(vector(T * width, width), buffers=(buffer("s", 4096, dtype=dtype),), shared=1 << 16)
    assert (found == []) == legal
    assert all("no load or store has" in one.message for one in found)


@pytest.mark.parametrize("align", [4, 8, 16, 32])
def test_where_an_array_begins(align):
    """In global memory by its own alignment; a vector needs no more than its bytes."""
    one = buffer("s", 4096, memory=GL)
    one = attrs.evolve(one, tensor=attrs.evolve(one.tensor, align=align))
    for width in (2, 4):
        found = said(vector(T * width, width), buffers=(one,))
        assert (found == []) == (align >= 4 * width), (align, width)
        assert all(f"the buffer starts at a multiple of {align} bytes only" in each.message for each in found)


@pytest.mark.parametrize("offset", [0, 8, 16, 24, 32, 48])
def test_where_a_shared_buffer_begins(offset):
    """At multiples of 16 bytes, or of what it asks for; its vectors as the number of its first byte allows."""
    one = buffer("s", 256, offset=offset)
    found = said(writes(T), buffers=(one,))
    assert [each.message for each in found] == ([f"s starts at byte {offset}, which is not a multiple of 16"] if offset % 16 else [])
    asked = attrs.evolve(one, tensor=attrs.evolve(one.tensor, align=32))
    found = said(writes(T), buffers=(asked,))
    assert [each.message for each in found] == ([f"s starts at byte {offset}, which is not a multiple of 32"] if offset % 32 else [])
    wide = [each.message for each in said(vector(T * 4, 4), buffers=(one,)) if "a vector has" in each.message]
    assert wide == (["s: a vector has 16 bytes, but the buffer starts at a multiple of 8 bytes only"] if offset % 16 else [])


@pytest.mark.parametrize(
    ("offset", "shared", "inside"), [(0, 1024, True), (0, 1023, False), (16, 1040, True), (16, 1039, False), (-16, 2048, False)]
)
def test_buffers_lie_in_the_block(offset, shared, inside):
    found = said(writes(T), buffers=(buffer("s", 256, offset=offset),), shared=shared)
    assert ([one for one in found if f"occupies bytes {offset} ... {offset + 1023}" in one.message] == []) == inside
    assert all(one.details["end"] == offset + 1024 for one in found)


def test_more_than_a_block_may_have():
    limit = kernel().architecture.shared_per_block
    assert said(writes(T), shared=limit) == []
    (one,) = said(writes(T), shared=limit + 1)
    assert one.message == f"the kernel needs {limit + 1} bytes of shared memory, but {kernel().architecture} has at most {limit}"


# ---------------------------------------------------------------------------------------------- shared bytes


def two(offset, elements=64, reuse=False, first=256):
    other = buffer("t", elements, offset=offset)
    other = attrs.evolve(other, tensor=attrs.evolve(other.tensor, reuse=reuse))
    return buffer("s", first, offset=1024), other


@pytest.mark.parametrize(
    ("offset", "elements", "shares"),
    [
        (2048, 64, False),
        (2032, 64, True),
        (768, 64, False),
        (784, 64, True),
        (1024, 256, True),
        (1280, 4, True),
        (512, 512, True),
        (0, 1024, True),
    ],
)
def test_buffers_in_use_together_share_no_bytes(offset, elements, shares):
    """Whichever is listed first, and whichever begins first."""
    for order in (1, -1):
        found = said(writes(T), reads(T, name="t", active=less(T, 4)), writes(T), buffers=two(offset, elements)[::order])
        assert len(found) == shares, [one.message for one in found]
        assert all("overlaps" in one.message and "while both are live" in one.message for one in found)


def test_buffers_in_use_one_after_the_other_may_if_that_is_asked_for():
    early, late = (writes(T), reads(T)), (writes(T, name="t", active=less(T, 4)),)
    assert said(*early, *late, buffers=two(1024, reuse=True)) == [] == said(*late, *early, buffers=two(1024, reuse=True))
    (one,) = said(*early, *late, buffers=two(1024))
    assert one.message == "t overlaps s, which no refinement requests"
    assert len(said(loop(2, *early, *late), buffers=two(1024, reuse=True))) == 1, "a loop has all of its buffers in use"
    assert len(said(*early, *late, reads(T), buffers=two(1024, reuse=True))) == 1
    assert said(writes(T), buffers=two(1024)) == [], "what nobody touches has no place"


def ring(offset, stages=2, name="ring"):
    return making.ring(name, stages, ("s",), bytes=64, consumers=1, offset=offset)


@pytest.mark.parametrize(
    ("offset", "texts"),
    [
        (2048, ()),
        (2047, ("which overlap s", "legal")),
        (1020, ("which overlap s", "legal")),
        (992, ()),
        (1000, ("which overlap s",)),
        (2040, ("which overlap s",)),
        (0, ()),
        (4064, ()),
        (4065, ("legal",)),
        (4072, ("legal",)),
        (-8, ("legal",)),
    ],
)
def test_barriers_of_rings(offset, texts):
    """Multiples of 8 bytes inside the block, in no byte of a buffer in use."""
    found = said(writes(T), buffers=(buffer("s", 256, offset=1024),), shared=4096, rings=(ring(offset),))
    begin = [f"the mbarriers of ring occupy bytes {offset} ... {offset + 31} of shared memory"] * len(texts)
    assert [one.message.partition(",")[0].partition(";")[0] for one in found] == begin
    assert all(text in one.message for text, one in zip(texts, found, strict=False)), found


def test_barriers_of_two_rings():
    apart = (ring(2048), ring(2080, name="other"))
    options = {"buffers": (buffer("s", 256, offset=1024),), "shared": 4096}
    assert said(writes(T), rings=apart, **options) == []
    (one,) = said(writes(T), rings=(ring(2048), ring(2072, name="other")), **options)
    assert "the mbarriers of other occupy bytes 2072 ... 2103" in one.message and "which overlap the mbarriers of ring" in one.message


# ---------------------------------------------------------------------------------------------- inside as a whole


def bounded(place, width, bound):
    return vector(place, width, bound=as_expr(bound))


@pytest.mark.parametrize(
    ("place", "width", "bound", "symbol", "whole"),
    [
        (T * 4, 4, 128, None, True),
        (T * 4, 4, 126, None, False),
        (T * 4, 4, 64, None, True),
        (T * 4, 4, 66, None, False),
        (T * 4, 4, N8, N8, True),
        (T * 4, 4, N, N, False),
        (T * 2, 2, N8 + 1, N8, False),
        (T * 2, 2, N8 + 2, N8, True),
    ],
)
def test_a_vector_is_inside_or_outside_as_a_whole(place, width, bound, symbol, whole):
    found = said(bounded(place, width, bound), symbols=(symbol,) if symbol is not None else ())
    assert (found == []) == whole
    assert all(f"a vector of {width} elements is not proved to be below {bound}" in one.message for one in found)


def test_what_is_never_performed_has_no_vectors():
    assert said(vector(T * 4 + 1, 4, active=less(T, 0))) == []
    assert said(vector(T * 4 + 1, 4, active=less(0, T))) != []
    assert said(touch(T, write=True)) == [], "an element is aligned"


# ---------------------------------------------------------------------------------------------- vectors in digits


def in_digits(sizes, steps, place, width, dtype=float32, copies=1, copy=0, elements=None, **options):
    """What is said of a vector along a dimension whose neighbors lie apart in several ways, at a place that a block chooses."""
    extent = 1024
    one = buffer("s", extent, dtype=dtype)
    tensor = attrs.evolve(one.tensor, copies=copies)
    one = attrs.evolve(one, tensor=tensor, storage=Storage(Layout((sizes,), (steps,)), extent), elements=as_expr(elements or extent))
    return said(vector(place, width, copy=as_expr(copy), **options), buffers=(one,), grid=8, threads=32, shared=1 << 17)


@pytest.mark.parametrize(
    ("sizes", "steps", "place", "width", "proved"),
    [
        ((4, 8), (1, 8), BLOCK * 4, 4, True),
        ((4, 8), (1, 8), BLOCK * 4 + 1, 4, False),
        ((4, 8), (1, 8), BLOCK * 2, 4, False),
        ((4, 8), (1, 8), BLOCK * 2, 2, True),
        ((4, 8), (1, 6), BLOCK * 4, 4, False),
        ((4, 8), (1, 6), BLOCK * 2, 2, True),
        ((4, 8), (2, 8), BLOCK * 4, 4, False),
        ((8, 8), (1, 16), BLOCK * 4, 4, True),
        ((2, 16), (1, 2), BLOCK * 4, 4, True),
        ((2, 16), (1, 4), BLOCK * 4, 4, False),
        ((2, 16), (1, 4), BLOCK * 4, 2, True),
        ((2, 16), (2, 1), BLOCK * 4, 4, False),
        ((2, 2, 16), (1, 2, 4), BLOCK * 4, 4, True),
        ((2, 2, 16), (1, 2, 8), BLOCK * 4, 4, True),
        ((2, 2, 16), (2, 1, 8), BLOCK * 4, 4, False),
        ((4, 4, 16), (1, 64, 4), BLOCK * 4, 4, True),
        ((4, 4, 16), (64, 1, 4), BLOCK * 4, 4, False),
        ((4, 4, 16), (64, 1, 4), BLOCK * 4, 2, False),
        ((16, 4), (4, 1), BLOCK * 16, 2, False),
        ((6, 8), (1, 8), BLOCK * 2, 2, False),
        ((8, 8), (1, 8), BLOCK * 4 + 4, 4, True),
        ((1024,), (1,), BLOCK * 4 + T % 2 * 4, 4, True),
        ((1024,), (1,), BLOCK * 4 + T % 2 * 2, 4, False),
        ((1024,), (1,), BLOCK * 6, 2, True),
        ((1024,), (2,), BLOCK * 4, 2, False),
    ],
)
def test_vectors_over_the_digits_of_a_place(sizes, steps, place, width, proved):
    """What is proved is so for each block; what is not is not known, or wrong."""
    found = in_digits(sizes, steps, place, width)
    assert (found == []) == proved, [one.message for one in found]
    layout = Storage(Layout((sizes,), (steps,)), 1024)
    if proved:
        for number in range(8):
            first = place.evaluate({"block": number, "thread": 1})
            addresses = [layout.address([as_expr(first + step)]).evaluate({}) for step in range(width)]
            assert addresses[0] % width == 0 and addresses == list(range(addresses[0], addresses[0] + width))


@pytest.mark.parametrize(
    ("elements", "width", "proved"), [(1024, 4, True), (1028, 4, True), (1026, 4, False), (1026, 2, True), (1025, 2, False)]
)
def test_vectors_in_copies_of_a_buffer(elements, width, proved):
    found = in_digits((1024,), (1,), BLOCK * 4, width, copies=8, copy=BLOCK, elements=elements)
    assert (found == []) == proved
    assert in_digits((1024,), (1,), BLOCK * 4, width, elements=elements) == [], "the first copy"
    found = in_digits((1024,), (1,), T * 4, width, copies=2, copy=T % 2, elements=elements)
    assert (found == []) == proved


def test_conditions_say_which_threads_take_vectors():
    assert said(vector(T * 2, 4, active=equal(T % 2, 0))) == []
    assert len(said(vector(T * 2, 4, active=equal(T % 2, 1)))) == 1
    assert len(said(vector(T * 2, 4, active=less(BLOCK, 3)), grid=8)) == 1, "a condition on blocks may hold"
    assert said(loop(4, vector(i * 2, 4, active=equal(i % 2, 0)))) == []
    (one,) = said(loop(4, vector(i * 2, 4)))
    assert one.message.startswith("s: thread 0, i 1 accesses addresses 2, 3, 4, 5 as a vector")
    (one,) = said(vector(2, 4))
    assert one.message.startswith("s: thread 0 accesses addresses 2, 3, 4, 5 as a vector")
    assert len(said(loop(N, vector(i * 2, 4, active=equal(i % 2, 0))), symbols=(N,))) == 1, "not known without the size"
    assert said(loop(N, vector(i * 4, 4)), symbols=(N,)) == []


def test_bounds_of_vectors_and_who_takes_them():
    first = equal(T, 31)
    assert said(vector(T * 4, 4, bound=as_expr(126))) != []
    assert said(vector(T * 4, 4, bound=as_expr(126), active=less(T, 31))) == []
    assert said(vector(T * 4, 4, bound=as_expr(126), active=first)) != []
    assert said(vector(T * 4, 4, bound=as_expr(127), active=first)) != [] == said(vector(T * 4, 4, bound=as_expr(124), active=first))
    assert said(vector(BLOCK * 8 + 4, 4, bound=N8), grid=8, symbols=(N8,)) == []
    assert len(said(vector(BLOCK * 8 + 4, 4, bound=N8 + 2), grid=8, symbols=(N8,))) == 1
    assert said(vector(BLOCK * 4, 4, bound=N8 + 28), grid=8, symbols=(N8,)) == [], "all of it is below"
    assert said(vector(BLOCK * 4, 4, bound=N8 + 31), grid=8, symbols=(N8,)) == []
    assert len(said(vector(BLOCK * 4, 4, bound=N8 + 21), grid=8, symbols=(N8,))) == 1


def test_which_vector_of_a_statement_is_wrong():
    """The first that is; single elements lie anywhere."""
    pieces = ((making.piece(0, 1, condition=TRUE), making.piece(1, 1, condition=TRUE), making.piece(2, 2, condition=TRUE)),)
    assert said(attrs.evolve(reads(T * 4, width=4), pieces=pieces)) == []
    (one,) = said(attrs.evolve(reads(T * 4 + 1, width=4), pieces=pieces))
    assert "accesses addresses 3, 4 as a vector, which are not 2 contiguous addresses from a multiple of 2 on" in one.message
    last = ((making.piece(0, 2, condition=TRUE), making.piece(2, 1, condition=TRUE), making.piece(3, 1, condition=TRUE)),)
    (one,) = said(attrs.evolve(reads(T * 4 + 1, width=4), pieces=last))
    assert "accesses addresses 1, 2 as a vector" in one.message


# ---------------------------------------------------------------------------------------------- matrices of WMMA


def of_matrix(
    row, column, shape=(64, 64), dtype=float16, align=256, swizzle=None, bound=None, layout=ColMajor, memory=GL, copies=1, copy=0, offset=0
):
    """What is said where a fragment is loaded from a matrix that begins at a row and a column."""
    tensor = Tensor("m", tuple(map(as_expr, shape)), dtype, memory, layout, align=align, swizzle=swizzle)
    tensor = attrs.evolve(tensor, copies=copies)
    storage = tensor.storage()
    one = making.buffer(tensor, storage, storage.extent, offset=offset)
    held = buffer("f", 8, memory=FRAGMENTS[0])
    bounds = (None, None) if bound is None else (as_expr(bound), None)
    modes = ((Mode(1, 1),),) * 2
    access = making.access(
        "m", (as_expr(row), as_expr(column)), modes, bounds, False, dealt=((), ()), copy=as_expr(copy), origin="hand.py:1"
    )
    fragment = writes(0, name="f").accesses[0]
    body = attrs.evolve(writes(0), accesses=(access, fragment))
    return [each.message for each in said(body, buffers=(one, held), grid=8, symbols=(N, N8), shared=1 << 16)]


@pytest.mark.parametrize(
    ("row", "column", "options", "text"),
    [
        (BLOCK * 16, 0, {}, ""),
        (BLOCK * 8, 0, {}, "is not proved to start at a multiple of 32 bytes"),
        (8, 0, {}, "is not proved to start at a multiple of 32 bytes"),
        (16, 3, {}, ""),
        (BLOCK * 16 + Var("thread", 0, 31), 0, {}, ""),
        (BLOCK * 8, 0, {"dtype": float32}, ""),
        (BLOCK * 4, 0, {"dtype": float32}, "is not proved to start at a multiple of 32 bytes"),
        (BLOCK * 16, 0, {"dtype": int8}, ""),
        (BLOCK * 8, 0, {"dtype": int8}, "is not proved to start at a multiple of 16 bytes"),
        (0, BLOCK * 16, {"layout": RowMajor}, ""),
        (0, BLOCK * 8, {"layout": RowMajor}, "is not proved to start at a multiple of 32 bytes"),
        (0, BLOCK, {"shape": (16, 64)}, ""),
        (0, BLOCK, {"shape": (8, 64)}, "is not proved to start at a multiple of 32 bytes"),
        (0, BLOCK * 2, {"shape": (8, 64)}, ""),
        (
            0,
            BLOCK * 4,
            {"shape": (4, 64)},
            "the stride of rows or columns of a matrix, 4 elements, is not proved to be a multiple of 16 bytes",
        ),
        (
            0,
            BLOCK * 16,
            {"shape": (12, 64)},
            "the stride of rows or columns of a matrix, 12 elements, is not proved to be a multiple of 16 bytes",
        ),
        (0, 0, {"shape": (24, 64)}, ""),
        (0, 0, {"shape": (N8, 64)}, ""),
        (0, 0, {"shape": (N, 64)}, "the stride of rows or columns of a matrix, N elements, is not proved to be a multiple of 16 bytes"),
        (0, BLOCK * 2, {"shape": (N8, 64)}, ""),
        (0, BLOCK, {"shape": (N8, 64)}, "is not proved to start at a multiple of 32 bytes"),
        (0, 0, {"align": 32}, ""),
        (0, 0, {"align": 16}, "a matrix must start at a multiple of 32 bytes, but the buffer starts at a multiple of 16 only"),
        (0, 0, {"align": 16, "dtype": int8}, ""),
        (0, 0, {"align": 8, "dtype": int8}, "a matrix must start at a multiple of 16 bytes, but the buffer starts at a multiple of 8 only"),
        (
            0,
            0,
            {"swizzle": Swizzle(2, 3, 3)},
            "a fragment needs rows or columns with a fixed stride, which its storage does not have",
        ),
        (0, 0, {"bound": 60}, "a fragment is accessed as a whole, but a part of its matrix may be out of bounds"),
        (0, 0, {"memory": SH, "offset": 256, "align": 32}, ""),
        (0, 0, {"memory": SH, "offset": 256, "align": 32, "copies": 2, "copy": BLOCK % 2, "shape": (16, 1)}, ""),
        (
            0,
            0,
            {"memory": SH, "offset": 256, "align": 32, "copies": 2, "copy": BLOCK % 2, "shape": (8, 1)},
            "is not proved to start at a multiple of 32 bytes",
        ),
        (0, 0, {"memory": SH, "offset": 256, "align": 32, "copies": 4, "copy": BLOCK % 2 * 2, "shape": (8, 1)}, ""),
    ],
)
def test_where_a_matrix_of_a_fragment_begins(row, column, options, text):
    found = of_matrix(row, column, **options)
    assert len(found) == bool(text) and all(one.startswith("m: ") and text in one for one in found), found


# ---------------------------------------------------------------------------------------------- roles


def test_in_roles_those_who_empty_the_rings_say_what_is_in_use():
    """A producer fills what its consumers wait for; of several consumers nobody knows who is where."""

    def roles(*bodies, elected=0):
        return making.roles(tuple(making.role(f"role {n}", 32 * n, 32, body, elected=n == elected) for n, body in enumerate(bodies)))

    fill = (writes(T, active=less(T, 4)), writes(T, name="t", active=less(T, 4)))
    early, late = reads(T), reads(T, name="t", active=less(T, 4))
    options = {"threads": 64, "buffers": two(1024, reuse=True)}
    assert said(roles(fill, (early, late)), **options) == []
    assert len(said(roles(fill, (early, late, early)), **options)) == 1
    assert len(said(roles(fill, (early, late), elected=5), **options)) == 1
    assert len(said(roles(fill, (early,), (late,)), **{**options, "threads": 96})) == 1
    assert len(said(roles((early, late), fill, elected=0), **options)) == 0, "the second one is the consumer"
    number = as_expr(0)
    for statement in (making.acquire("ring", ir.StageState.FULL, number), making.release("ring", ir.StageState.EMPTY, number)):
        between = (late, statement, late)
        assert len(said(*between, rings=(ring(8192),), **{**options, "threads": 32})) == 1, "the ring's buffer is in use"
        assert said(statement, late, late, rings=(ring(8192),), **{**options, "threads": 32}) == []


def test_scratch_memory_of_a_statement_is_in_use_with_it():
    own = Tensor("t", (as_expr(64),), float32, SH, ColMajor, reuse=True)
    step = attrs.evolve(reads(T), scratch=own)
    assert len(said(step, buffers=two(1024, reuse=True))) == 1
    assert said(step, buffers=two(2048, reuse=True)) == []


# ---------------------------------------------------------------------------------------------- what is looked at one by one


BUT_THE_LAST = less(T, 31)


@pytest.mark.parametrize(
    ("many", "turns", "decided"),
    [(2048, 16, True), (2048, 17, False), (2175, 17, False), (2176, 17, True), (128, 1, True), (127, 1, False)],
)
def test_so_many_elements_of_threads_and_iterations_are_looked_at(monkeypatch, many, turns, decided):
    """Where conditions keep out whoever would take a vector from elsewhere."""
    monkeypatch.setattr(subject, "MANY", many)
    one = vector(T * 4 + T // 31 + i * 128, 4, active=BUT_THE_LAST)
    found = said(loop(turns, one), buffers=(buffer("s", 1 << 12),))
    assert [one.message for one in found] == [] if decided else "which is not proved to be a multiple of 4" in found[0].message


@pytest.mark.parametrize(
    ("place", "active", "around", "texts"),
    [
        (T * 4 + T // 31, BUT_THE_LAST, 1, ()),
        (T * 4 + T // 31, TRUE, 1, ("thread 31 accesses addresses 125, 126, 127, 128 as a vector, which are not 4 contiguous addresses from a multiple of 4 on",)),
        (T * 4 + T // 31, less(T, N), 1, ("thread 31 accesses addresses",)),
        (T * 4 + T // 31, BUT_THE_LAST, N, ()),
        (T * 4 + T // 31 + i * 2, BUT_THE_LAST, N, ("not proved to be a multiple of 4",)),
        (T * 4 + T // 31 + BLOCK * 2, BUT_THE_LAST, 1, ("not proved to be a multiple of 4",)),
        (T * 4 + T // 31 + N, BUT_THE_LAST, 1, ("not proved to be a multiple of 4",)),
        (T * 4 + i * 2, less(i, 1), 3, ()),
        (T * 4 + i * 2, TRUE, 3, ("thread 0, i 1 accesses addresses 2, 3, 4, 5 as a vector",)),
        (i * 2, TRUE, 3, ("i 1 accesses addresses 2, 3, 4, 5 as a vector",)),
        (as_expr(2), TRUE, 1, ("accesses addresses 2, 3, 4, 5 as a vector",)),
        (T * 4 + i * 2, less(i, 1), 0, ()),
    ],
    ids=str,
)  # fmt: skip
def test_who_takes_a_vector_from_elsewhere(place, active, around, texts):
    found = said(loop(around, vector(place, 4, active=active)), symbols=(N,), grid=8, buffers=(buffer("s", 1 << 12),))
    assert len(found) == len(texts) and all(text in one.message for one, text in zip(found, texts)), [one.message for one in found]


@pytest.mark.parametrize(
    ("place", "bound", "active", "around", "whole"),
    [
        (T * 4 + T // 31 * 4, as_expr(124), TRUE, 1, True),
        (T * 4, as_expr(122), TRUE, 1, False),
        (T * 4, as_expr(122), less(T, 30), 1, True),
        (T * 4, as_expr(122), less(T, 31), 1, False),
        (T * 4 + i * 128, as_expr(130), less(i, 1), 2, True),
        (T * 4 + i * 128, as_expr(130), TRUE, 2, False),
        (T * 4 + i * 128, as_expr(130), TRUE, 1, True),
        (T * 4, 124 + T // 31, less(T, 31), 1, True),
        (T * 4, 124 + T // 31, TRUE, 1, False),
        (T * 4 + i * 128, as_expr(130), TRUE, N, False),
        (T * 4, N8, TRUE, 1, True),
        (T * 4, N8 + 4, TRUE, 1, True),
        (T * 4, N8 + 2, TRUE, 1, False),
        (T * 4 + BLOCK * 128, as_expr(122), TRUE, 1, False),
        (T * 4 + 4 * (T // 31), as_expr(124) + T // 31 * 4, TRUE, 1, True),
    ],
    ids=str,
)
def test_who_takes_a_vector_over_a_bound(place, bound, active, around, whole):
    found = said(loop(around, vector(place, 4, bound=bound, active=active)), symbols=(N, N8), grid=8, buffers=(buffer("s", 1 << 12),))
    if whole is None:
        assert not any("to be below" in one.message for one in found)
        return
    assert any("to be below" in one.message for one in found) != whole, [one.message for one in found]
    if not whole and (place, bound) != (T * 4 + 1, as_expr(126)):
        assert f"not proved to be below {bound} as a whole, if its first element is" in found[0].message


@pytest.mark.parametrize(
    ("multiple", "digit", "reach", "changes"),
    [
        (1, Digit(1, 9, 1, True), [0, 1, 2, 3], [0, 1, 2, 3]),
        (1, Digit(1, 9, 1, True), [0, -1, 5], [0, -1, 5]),
        (4, Digit(1, 8, 1, False), [0, 1, 2, 3], [0, 1, 2, 3]),
        (2, Digit(1, 8, 1, False), [0, 1, 2, 3], None),
        (4, Digit(1, 4, 1, False), [0, 1, 2, 3], [0, 1, 2, 3]),
        (4, Digit(1, 2, 1, False), [0, 1, 2, 3], [0, 1, 0, 1]),
        (4, Digit(1, 1, 1, False), [0, 1, 2, 3], [0, 0, 0, 0]),
        (4, Digit(1, 3, 1, False), [0, 1, 2, 3], None),
        (4, Digit(1, 6, 1, False), [0, 1, 2, 3], None),
        (4, Digit(1, 12, 1, False), [0, 1, 2, 3], [0, 1, 2, 3]),
        (4, Digit(2, 4, 1, False), [0, 1, 2, 3], [0, 0, 1, 1]),
        (4, Digit(2, 1, 1, False), [0, 1, 2, 3], [0, 0, 0, 0]),
        (8, Digit(2, 2, 1, False), [0, 2, 4, 6], [0, 1, 0, 1]),
        (8, Digit(2, 9, 1, True), [0, 2, 4, 6], [0, 1, 2, 3]),
        (4, Digit(4, 4, 1, False), [0, 1, 2, 3], [0, 0, 0, 0]),
        (4, Digit(8, 4, 1, False), [0, 1, 2, 3], [0, 0, 0, 0]),
        (4, Digit(8, 4, 1, True), [0, 1, 2, 3], [0, 0, 0, 0]),
        (4, Digit(3, 4, 1, False), [0, 1, 2, 3], None),
        (4, Digit(12, 4, 1, False), [0, 1, 2, 3], [0, 0, 0, 0]),
        (4, Digit(1, 8, 1, False), [0, -1], None),
        (4, Digit(8, 8, 1, False), [0, -1], None),
        (4, Digit(1, 8, 1, False), [0, 4], None),
        (8, Digit(1, 8, 1, False), [0, 4], [0, 4]),
        (1, Digit(1, 8, 1, False), [0], [0]),
    ],
)
def test_how_a_digit_changes_along_a_vector(multiple, digit, reach, changes):
    """The same wherever it begins at such a multiple; where that is not sure nothing is said."""
    assert subject._digit_changes(KnownBits({}).of(T * multiple), digit, reach) == changes
    if changes is not None:
        for start in range(0, 48 * multiple, multiple):
            assert [digit.of(start + step) - digit.of(start) for step in reach] == changes


@pytest.mark.parametrize(
    ("place", "digit", "zeros"),
    [
        (T * 8, Digit(1, 4, 1, True), 3),
        (T * 8, Digit(2, 4, 1, True), 2),
        (T * 8, Digit(3, 4, 1, True), 0),
        (T * 8, Digit(1, 8, 1, False), 64),
        (T * 8, Digit(1, 16, 1, False), 3),
        (T * 8, Digit(1, 12, 1, False), 0),
        (T * 8, Digit(4, 2, 1, False), 64),
        (T * 8, Digit(4, 4, 1, False), 1),
    ],
)
def test_what_is_known_of_a_digit(place, digit, zeros):
    assert subject._digit_bits(KnownBits({}).of(place), digit).trailing_zeros == zeros


@pytest.mark.parametrize(
    ("offset", "align", "begins"), [(0, 16, 16), (0, 32, 32), (8, 16, 8), (48, 16, 16), (48, 32, 16), (64, 32, 32), (20, 16, 4), (0, 4, 16)]
)
def test_the_multiple_at_which_a_buffer_begins(offset, align, begins):
    one = buffer("s", 64, offset=offset)
    one = attrs.evolve(one, tensor=attrs.evolve(one.tensor, align=align))
    assert subject._start_multiple(one) == begins
    far = buffer("s", 64, memory=GL)
    assert subject._start_multiple(attrs.evolve(far, tensor=attrs.evolve(far.tensor, align=align))) == align


@pytest.mark.parametrize(
    ("bound", "whole"), [(93, True), (92, True), (91, False), (94, False), (95, True), (90, True), (1, False), (0, True), (96, True)]
)
def test_a_bound_between_the_elements_of_a_vector(bound, whole):
    """Of pairs from multiples of 3 on: a bound in front of a pair, or behind it, does not part it."""
    check = subject._Vectors(AccessTrace(kernel(vector(T * 3, 2, bound=as_expr(bound)), threads=THREADS)))
    assert check._inside_together(check.access_trace.uses[0], T * 3, [0, 1], as_expr(bound)) == whole
