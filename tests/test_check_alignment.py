"""Alignment of vectors, shared buffers and mbarriers: random vectors are compared with all their addresses."""

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


def diagnose(*body, shared=1 << 15, rings=(), **options):
    """The findings of the check, for a kernel with the given shared bytes."""
    program = kernel(*body, **{"threads": THREADS, **options})
    return list(check_alignment(AccessTrace(attrs.evolve(program, shared_bytes=shared, rings=tuple(rings)))))


def vector(place, width, count=1, dtype=None, **options):
    """A statement that reads `count` vectors of `width` elements."""
    pieces = tuple(making.piece(number * width, width, condition=TRUE) for number in range(count))
    return attrs.evolve(reads(place, width=width * count, **options), pieces=(pieces,))


def is_aligned(program):
    """Whether each vector is contiguous and starts at a multiple of its width, in all threads and iterations."""

    def run(body, values):
        for stmt in body:
            if isinstance(stmt, ir.For):
                if not all(run(stmt.body, {**values, stmt.var.name: number}) for number in range(stmt.extent.evaluate(values))):
                    return False
                continue
            (access,), (pieces,) = stmt.accesses, stmt.pieces
            target = program.buffer(access.buffer)
            for thread, piece in itertools.product(range(program.threads), pieces):
                thread_values = {**values, "thread": thread}
                if not stmt.performed.evaluate(thread_values):
                    continue
                offsets = access.elements()[piece.first : piece.first + piece.width]
                places = [target.address(access, offset).evaluate(thread_values) for offset in offsets]
                if places[0] % piece.width or places != list(range(places[0], places[0] + piece.width)):
                    return False
        return True

    return run(program.body, {"block": 0})


def random_kernel(chance):
    width = chance.choice((2, 4))
    step = chance.choice((1, width, width, 2 * width, width + 1))
    place = T * step + i * chance.choice((0, 1, width, 3 * width)) + chance.choice((0, 0, 0, width, 1, 2))
    place = place + T % 4 * chance.choice((0, 0, width, 1))
    active = chance.choice((TRUE, TRUE, less(T, 1), less(i, 1)))
    swizzle = chance.choice((None, None, Swizzle(2, 2, 3), Swizzle(2, 1, 3), Swizzle(1, 0, 3)))
    target = buffer("s", 1024)
    target = attrs.evolve(target, storage=Storage(Layout((1024,), (1,)), 1024, swizzle))
    count = chance.choice((1, 2))
    return kernel(loop(3, vector(place, width, count, active=active)), threads=THREADS, buffers=(target,), shared_bytes=4096)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("chunk", range(4))
def test_random_vectors_compared_with_their_addresses(chunk):
    verdicts = set()
    for seed in range(40 * chunk, 40 * (chunk + 1)):
        program = random_kernel(random.Random(f"vectors {seed}"))
        expected = is_aligned(program)
        findings = list(check_alignment(AccessTrace(program)))
        assert bool(findings) != expected, (seed, program.body, program.buffers[0].storage, findings)
        verdicts.add(expected)
    assert verdicts == {True, False}


def test_findings_name_thread_iteration_and_addresses():
    (finding,) = diagnose(vector(T * 4 + 2, 4))
    assert (
        finding.message
        == "s: thread 0 accesses addresses 2, 3, 4, 5 as a vector, which are not 4 contiguous addresses from a multiple of 4 on"
    )
    assert (finding.kind, finding.severity, finding.buffer, finding.at) == ("alignment", "error", "s", "hand.py:1") and finding.details[
        "vector"
    ] == 4
    (finding,) = diagnose(loop(3, vector(T * 4 + i * 2, 4)))
    assert finding.message.startswith("s: thread 0, i 1 accesses addresses 2, 3, 4, 5 as a vector")
    (finding,) = diagnose(vector(T * 4 + BLOCK, 4), grid=8)
    assert "which is not proved to be a multiple of 4" in finding.message
    assert diagnose(vector(T * 4 + BLOCK * 8, 4), grid=8) == []


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
def test_vector_sizes_that_an_instruction_has(width, dtype, legal):
    findings = diagnose(vector(T * width, width), buffers=(buffer("s", 4096, dtype=dtype),), shared=1 << 16)
    assert (findings == []) == legal
    assert all("no load or store has" in finding.message for finding in findings)


@pytest.mark.parametrize("align", [4, 8, 16, 32])
def test_vectors_and_the_alignment_of_an_array(align):
    """An array in global memory has its own alignment; a vector must be aligned to its bytes only."""
    array = buffer("s", 4096, memory=GL)
    array = attrs.evolve(array, tensor=attrs.evolve(array.tensor, align=align))
    for width in (2, 4):
        findings = diagnose(vector(T * width, width), buffers=(array,))
        assert (findings == []) == (align >= 4 * width), (align, width)
        assert all(f"the buffer starts at a multiple of {align} bytes only" in finding.message for finding in findings)


@pytest.mark.parametrize("offset", [0, 8, 16, 24, 32, 48])
def test_shared_buffers_start_at_multiples_of_16_bytes(offset):
    """A buffer starts at a multiple of 16 bytes or of its alignment; its first byte limits its vectors."""
    target = buffer("s", 256, offset=offset)
    findings = diagnose(writes(T), buffers=(target,))
    assert [finding.message for finding in findings] == (
        [f"s starts at byte {offset}, which is not a multiple of 16"] if offset % 16 else []
    )
    aligned = attrs.evolve(target, tensor=attrs.evolve(target.tensor, align=32))
    findings = diagnose(writes(T), buffers=(aligned,))
    assert [finding.message for finding in findings] == (
        [f"s starts at byte {offset}, which is not a multiple of 32"] if offset % 32 else []
    )
    wide = [finding.message for finding in diagnose(vector(T * 4, 4), buffers=(target,)) if "a vector has" in finding.message]
    assert wide == (["s: a vector has 16 bytes, but the buffer starts at a multiple of 8 bytes only"] if offset % 16 else [])


@pytest.mark.parametrize(
    ("offset", "shared", "inside"), [(0, 1024, True), (0, 1023, False), (16, 1040, True), (16, 1039, False), (-16, 2048, False)]
)
def test_buffers_are_inside_the_shared_memory_of_a_block(offset, shared, inside):
    findings = diagnose(writes(T), buffers=(buffer("s", 256, offset=offset),), shared=shared)
    assert ([finding for finding in findings if f"occupies bytes {offset} ... {offset + 1023}" in finding.message] == []) == inside
    assert all(finding.details["end"] == offset + 1024 for finding in findings)


def test_shared_memory_limit_of_a_block():
    limit = kernel().architecture.shared_per_block
    assert diagnose(writes(T), shared=limit) == []
    (finding,) = diagnose(writes(T), shared=limit + 1)
    assert finding.message == f"the kernel needs {limit + 1} bytes of shared memory, but {kernel().architecture} has at most {limit}"


# ---------------------------------------------------------------------------------------------- overlapping buffers


def two_buffers(offset, elements=64, reuse=False, first=256):
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
def test_live_buffers_do_not_overlap(offset, elements, shares):
    """The order of the buffers does not matter."""
    for order in (1, -1):
        findings = diagnose(writes(T), reads(T, name="t", active=less(T, 4)), writes(T), buffers=two_buffers(offset, elements)[::order])
        assert len(findings) == shares, [finding.message for finding in findings]
        assert all("overlaps" in finding.message and "while both are live" in finding.message for finding in findings)


def test_buffers_with_reuse_overlap_if_never_live_together():
    early, late = (writes(T), reads(T)), (writes(T, name="t", active=less(T, 4)),)
    assert (
        diagnose(*early, *late, buffers=two_buffers(1024, reuse=True))
        == []
        == diagnose(*late, *early, buffers=two_buffers(1024, reuse=True))
    )
    (finding,) = diagnose(*early, *late, buffers=two_buffers(1024))
    assert finding.message == "t overlaps s, which no refinement requests"
    assert len(diagnose(loop(2, *early, *late), buffers=two_buffers(1024, reuse=True))) == 1, "in a loop all its buffers are live"
    assert len(diagnose(*early, *late, reads(T), buffers=two_buffers(1024, reuse=True))) == 1
    assert diagnose(writes(T), buffers=two_buffers(1024)) == [], "an unused buffer occupies no bytes"


def ring_at(offset, stages=2, name="ring"):
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
def test_mbarriers_of_a_ring(offset, texts):
    """mbarriers start at multiples of 8 bytes inside the block, and overlap no live buffer."""
    findings = diagnose(writes(T), buffers=(buffer("s", 256, offset=1024),), shared=4096, rings=(ring_at(offset),))
    begin = [f"the mbarriers of ring occupy bytes {offset} ... {offset + 31} of shared memory"] * len(texts)
    assert [finding.message.partition(",")[0].partition(";")[0] for finding in findings] == begin
    assert all(text in finding.message for text, finding in zip(texts, findings, strict=False)), findings


def test_mbarriers_of_two_rings_do_not_overlap():
    apart = (ring_at(2048), ring_at(2080, name="other"))
    options = {"buffers": (buffer("s", 256, offset=1024),), "shared": 4096}
    assert diagnose(writes(T), rings=apart, **options) == []
    (finding,) = diagnose(writes(T), rings=(ring_at(2048), ring_at(2072, name="other")), **options)
    assert (
        "the mbarriers of other occupy bytes 2072 ... 2103" in finding.message and "which overlap the mbarriers of ring" in finding.message
    )


# ---------------------------------------------------------------------------------------------- vectors at bounds


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
def test_a_vector_is_in_bounds_as_a_whole(place, width, bound, symbol, whole):
    findings = diagnose(bounded(place, width, bound), symbols=(symbol,) if symbol is not None else ())
    assert (findings == []) == whole
    assert all(f"a vector of {width} elements is not proved to be below {bound}" in finding.message for finding in findings)


def test_inactive_statements_and_single_elements_are_aligned():
    assert diagnose(vector(T * 4 + 1, 4, active=less(T, 0))) == []
    assert diagnose(vector(T * 4 + 1, 4, active=less(0, T))) != []
    assert diagnose(touch(T, write=True)) == [], "an element is aligned"


# ---------------------------------------------------------------------------------------------- vectors in digits


def in_digits(sizes, steps, place, width, dtype=float32, copies=1, copy=0, elements=None, **options):
    """The findings of a vector along a dimension with several strides, at a position that depends on the block."""
    extent = 1024
    target = buffer("s", extent, dtype=dtype)
    tensor = attrs.evolve(target.tensor, copies=copies)
    target = attrs.evolve(target, tensor=tensor, storage=Storage(Layout((sizes,), (steps,)), extent), elements=as_expr(elements or extent))
    return diagnose(vector(place, width, copy=as_expr(copy), **options), buffers=(target,), grid=8, threads=32, shared=1 << 17)


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
        ((6, 8), (1, 8), BLOCK * 2, 2, True),
        ((6, 8), (1, 8), BLOCK * 4, 4, False),
        ((8, 8), (1, 8), BLOCK * 4 + 4, 4, True),
        ((1024,), (1,), BLOCK * 4 + T % 2 * 4, 4, True),
        ((1024,), (1,), BLOCK * 4 + T % 2 * 2, 4, False),
        ((1024,), (1,), BLOCK * 6, 2, True),
        ((1024,), (2,), BLOCK * 4, 2, False),
    ],
)
def test_vectors_over_the_digits_of_an_index(sizes, steps, place, width, proved):
    """A proved vector is aligned in each block; any other is undecided or wrong."""
    findings = in_digits(sizes, steps, place, width)
    assert (findings == []) == proved, [finding.message for finding in findings]
    layout = Storage(Layout((sizes,), (steps,)), 1024)
    if proved:
        for number in range(8):
            first = place.evaluate({"block": number, "thread": 1})
            addresses = [layout.address([as_expr(first + step)]).evaluate({}) for step in range(width)]
            assert addresses[0] % width == 0 and addresses == list(range(addresses[0], addresses[0] + width))


@pytest.mark.parametrize(
    ("elements", "width", "proved"), [(1024, 4, True), (1028, 4, True), (1026, 4, False), (1026, 2, True), (1025, 2, False)]
)
def test_vectors_in_stages_of_a_buffer(elements, width, proved):
    findings = in_digits((1024,), (1,), BLOCK * 4, width, copies=8, copy=BLOCK, elements=elements)
    assert (findings == []) == proved
    assert in_digits((1024,), (1,), BLOCK * 4, width, elements=elements) == [], "the first copy"
    findings = in_digits((1024,), (1,), T * 4, width, copies=2, copy=T % 2, elements=elements)
    assert (findings == []) == proved


def test_conditions_select_the_threads_that_access_vectors():
    assert diagnose(vector(T * 2, 4, active=equal(T % 2, 0))) == []
    assert len(diagnose(vector(T * 2, 4, active=equal(T % 2, 1)))) == 1
    assert len(diagnose(vector(T * 2, 4, active=less(BLOCK, 3)), grid=8)) == 1, "a condition on blocks may hold"
    assert diagnose(loop(4, vector(i * 2, 4, active=equal(i % 2, 0)))) == []
    (finding,) = diagnose(loop(4, vector(i * 2, 4)))
    assert finding.message.startswith("s: thread 0, i 1 accesses addresses 2, 3, 4, 5 as a vector")
    (finding,) = diagnose(vector(2, 4))
    assert finding.message.startswith("s: thread 0 accesses addresses 2, 3, 4, 5 as a vector")
    assert len(diagnose(loop(N, vector(i * 2, 4, active=equal(i % 2, 0))), symbols=(N,))) == 1, "undecided without the size"
    assert diagnose(loop(N, vector(i * 4, 4)), symbols=(N,)) == []


def test_bounds_and_the_threads_that_access_vectors():
    first = equal(T, 31)
    assert diagnose(vector(T * 4, 4, bound=as_expr(126))) != []
    assert diagnose(vector(T * 4, 4, bound=as_expr(126), active=less(T, 31))) == []
    assert diagnose(vector(T * 4, 4, bound=as_expr(126), active=first)) != []
    assert (
        diagnose(vector(T * 4, 4, bound=as_expr(127), active=first)) != [] == diagnose(vector(T * 4, 4, bound=as_expr(124), active=first))
    )
    assert diagnose(vector(BLOCK * 8 + 4, 4, bound=N8), grid=8, symbols=(N8,)) == []
    assert len(diagnose(vector(BLOCK * 8 + 4, 4, bound=N8 + 2), grid=8, symbols=(N8,))) == 1
    assert diagnose(vector(BLOCK * 4, 4, bound=N8 + 28), grid=8, symbols=(N8,)) == [], "the whole vector is in bounds"
    assert diagnose(vector(BLOCK * 4, 4, bound=N8 + 31), grid=8, symbols=(N8,)) == []
    assert len(diagnose(vector(BLOCK * 4, 4, bound=N8 + 21), grid=8, symbols=(N8,))) == 1


def test_the_first_unaligned_vector_of_a_statement_is_reported():
    """Single elements need no alignment."""
    pieces = ((making.piece(0, 1, condition=TRUE), making.piece(1, 1, condition=TRUE), making.piece(2, 2, condition=TRUE)),)
    assert diagnose(attrs.evolve(reads(T * 4, width=4), pieces=pieces)) == []
    (finding,) = diagnose(attrs.evolve(reads(T * 4 + 1, width=4), pieces=pieces))
    assert "accesses addresses 3, 4 as a vector, which are not 2 contiguous addresses from a multiple of 2 on" in finding.message
    last = ((making.piece(0, 2, condition=TRUE), making.piece(2, 1, condition=TRUE), making.piece(3, 1, condition=TRUE)),)
    (finding,) = diagnose(attrs.evolve(reads(T * 4 + 1, width=4), pieces=last))
    assert "accesses addresses 1, 2 as a vector" in finding.message


# ---------------------------------------------------------------------------------------------- WMMA matrices


def of_matrix(
    row, column, shape=(64, 64), dtype=float16, align=256, swizzle=None, bound=None, layout=ColMajor, memory=GL, copies=1, copy=0, offset=0
):
    """The messages for a fragment loaded from a matrix at a row and a column."""
    tensor = Tensor("m", tuple(map(as_expr, shape)), dtype, memory, layout, align=align, swizzle=swizzle)
    tensor = attrs.evolve(tensor, copies=copies)
    storage = tensor.storage()
    matrix = making.buffer(tensor, storage, storage.extent, offset=offset)
    fragment_buffer = buffer("f", 8, memory=FRAGMENTS[0])
    bounds = (None, None) if bound is None else (as_expr(bound), None)
    modes = ((Mode(1, 1),),) * 2
    access = making.access(
        "m", (as_expr(row), as_expr(column)), modes, bounds, False, unit_modes=((), ()), copy=as_expr(copy), origin="hand.py:1"
    )
    fragment = writes(0, name="f").accesses[0]
    body = attrs.evolve(writes(0), accesses=(access, fragment))
    return [finding.message for finding in diagnose(body, buffers=(matrix, fragment_buffer), grid=8, symbols=(N, N8), shared=1 << 16)]


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
def test_the_matrix_of_a_fragment_is_aligned(row, column, options, text):
    findings = of_matrix(row, column, **options)
    assert len(findings) == bool(text) and all(message.startswith("m: ") and text in message for message in findings), findings


# ---------------------------------------------------------------------------------------------- roles


def test_consumers_determine_which_buffers_are_live():
    """A producer fills buffers that its consumers wait for; the order of several consumers is unknown."""

    def roles(*bodies, elected=0):
        return making.roles(tuple(making.role(f"role {n}", 32 * n, 32, body, elected=n == elected) for n, body in enumerate(bodies)))

    fill = (writes(T, active=less(T, 4)), writes(T, name="t", active=less(T, 4)))
    early, late = reads(T), reads(T, name="t", active=less(T, 4))
    options = {"threads": 64, "buffers": two_buffers(1024, reuse=True)}
    assert diagnose(roles(fill, (early, late)), **options) == []
    assert len(diagnose(roles(fill, (early, late, early)), **options)) == 1
    assert len(diagnose(roles(fill, (early, late), elected=5), **options)) == 1
    assert len(diagnose(roles(fill, (early,), (late,)), **{**options, "threads": 96})) == 1
    assert len(diagnose(roles((early, late), fill, elected=0), **options)) == 0, "the second role is the consumer"
    number = as_expr(0)
    for statement in (making.acquire("ring", ir.StageState.FULL, number), making.release("ring", ir.StageState.EMPTY, number)):
        between = (late, statement, late)
        assert len(diagnose(*between, rings=(ring_at(8192),), **{**options, "threads": 32})) == 1, "the buffer of the ring is live"
        assert diagnose(statement, late, late, rings=(ring_at(8192),), **{**options, "threads": 32}) == []


def test_scratch_memory_is_live_during_its_statement():
    scratch = Tensor("t", (as_expr(64),), float32, SH, ColMajor, reuse=True)
    step = attrs.evolve(reads(T), scratch=scratch)
    assert len(diagnose(step, buffers=two_buffers(1024, reuse=True))) == 1
    assert diagnose(step, buffers=two_buffers(2048, reuse=True)) == []


# ---------------------------------------------------------------------------------------------- threads and iterations that are enumerated


ALL_BUT_THE_LAST = less(T, 31)


@pytest.mark.parametrize(
    ("many", "extent", "decided"),
    [(2048, 16, True), (2048, 17, False), (2175, 17, False), (2176, 17, True), (128, 1, True), (127, 1, False)],
)
def test_limit_of_enumerated_elements(monkeypatch, many, extent, decided):
    """Up to `MANY` elements of all threads and iterations are enumerated, with the condition of each."""
    monkeypatch.setattr(subject, "MANY", many)
    stmt = vector(T * 4 + T // 31 + i * 128, 4, active=ALL_BUT_THE_LAST)
    findings = diagnose(loop(extent, stmt), buffers=(buffer("s", 1 << 12),))
    assert (
        [finding.message for finding in findings] == [] if decided else "which is not proved to be a multiple of 4" in findings[0].message
    )


@pytest.mark.parametrize(
    ("place", "active", "around", "texts"),
    [
        (T * 4 + T // 31, ALL_BUT_THE_LAST, 1, ()),
        (T * 4 + T // 31, TRUE, 1, ("thread 31 accesses addresses 125, 126, 127, 128 as a vector, which are not 4 contiguous addresses from a multiple of 4 on",)),
        (T * 4 + T // 31, less(T, N), 1, ("thread 31 accesses addresses",)),
        (T * 4 + T // 31, ALL_BUT_THE_LAST, N, ()),
        (T * 4 + T // 31 + i * 2, ALL_BUT_THE_LAST, N, ("not proved to be a multiple of 4",)),
        (T * 4 + T // 31 + BLOCK * 2, ALL_BUT_THE_LAST, 1, ("not proved to be a multiple of 4",)),
        (T * 4 + T // 31 + N, ALL_BUT_THE_LAST, 1, ("not proved to be a multiple of 4",)),
        (T * 4 + i * 2, less(i, 1), 3, ()),
        (T * 4 + i * 2, TRUE, 3, ("thread 0, i 1 accesses addresses 2, 3, 4, 5 as a vector",)),
        (i * 2, TRUE, 3, ("i 1 accesses addresses 2, 3, 4, 5 as a vector",)),
        (as_expr(2), TRUE, 1, ("accesses addresses 2, 3, 4, 5 as a vector",)),
        (T * 4 + i * 2, less(i, 1), 0, ()),
    ],
    ids=str,
)  # fmt: skip
def test_conditions_exclude_threads_with_unaligned_vectors(place, active, around, texts):
    findings = diagnose(loop(around, vector(place, 4, active=active)), symbols=(N,), grid=8, buffers=(buffer("s", 1 << 12),))
    assert len(findings) == len(texts) and all(text in finding.message for finding, text in zip(findings, texts)), [
        finding.message for finding in findings
    ]


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
def test_conditions_exclude_threads_with_vectors_across_a_bound(place, bound, active, around, whole):
    findings = diagnose(
        loop(around, vector(place, 4, bound=bound, active=active)), symbols=(N, N8), grid=8, buffers=(buffer("s", 1 << 12),)
    )
    if whole is None:
        assert not any("to be below" in finding.message for finding in findings)
        return
    assert any("to be below" in finding.message for finding in findings) != whole, [finding.message for finding in findings]
    if not whole and (place, bound) != (T * 4 + 1, as_expr(126)):
        assert f"not proved to be below {bound} as a whole, if its first element is" in findings[0].message


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
def test_digit_changes_along_a_vector(multiple, digit, reach, changes):
    """The changes are the same from every multiple on; None if they are not."""
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
        (T * 8, Digit(1, 12, 1, False), 2),
        (T * 8, Digit(4, 2, 1, False), 64),
        (T * 8, Digit(4, 4, 1, False), 1),
    ],
)
def test_known_bits_of_a_digit(place, digit, zeros):
    assert subject._digit_bits(KnownBits({}).of(place), digit).trailing_zeros == zeros


@pytest.mark.parametrize(
    ("offset", "align", "begins"), [(0, 16, 16), (0, 32, 32), (8, 16, 8), (48, 16, 16), (48, 32, 16), (64, 32, 32), (20, 16, 4), (0, 4, 16)]
)
def test_start_multiple_of_a_buffer(offset, align, begins):
    target = buffer("s", 64, offset=offset)
    target = attrs.evolve(target, tensor=attrs.evolve(target.tensor, align=align))
    assert subject._start_multiple(target) == begins
    far = buffer("s", 64, memory=GL)
    assert subject._start_multiple(attrs.evolve(far, tensor=attrs.evolve(far.tensor, align=align))) == align


@pytest.mark.parametrize(
    ("bound", "whole"), [(93, True), (92, True), (91, False), (94, False), (95, True), (90, True), (1, False), (0, True), (96, True)]
)
def test_a_bound_inside_a_vector(bound, whole):
    """Pairs start at multiples of 3: a bound before or after a pair does not split it."""
    check = subject._Vectors(AccessTrace(kernel(vector(T * 3, 2, bound=as_expr(bound)), threads=THREADS)))
    assert check._inside_together(check.access_trace.uses[0], T * 3, [0, 1], as_expr(bound)) == whole
