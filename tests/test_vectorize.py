"""The pass `vectorize` on hand-made IR: a vector width is used if the access is provably contiguous, aligned, and whole at every edge."""

import attrs
import making
import pytest
from guards import with_conditions
from handmade import THREAD, access, execution, kernel_of, local

from fireiron import *
from fireiron import ir
from fireiron.check import AccessTrace, check_bounds
from fireiron.errors import DecompositionError
from fireiron.executable.hfma2 import HFMA2
from fireiron.executable.mma_f16 import HMMA_16816_F32
from fireiron.executable.thread_move import MOVE, vector
from fireiron.lower.guard import guard
from fireiron.lower.vectorize import vectorize
from fireiron.values.expr import as_expr, less
from fireiron.values.layout import Layout, Swizzle


def moved(width, base, *, dtype=float32, ld=None, rows=32, columns=1024, bounds=None, align=16, instruction=MOVE, target=None):
    """A copy by each thread of `width` adjacent elements of a row-major row, from column `base` on, to `target`."""
    spec = Move(rows, columns, dtype=dtype, src=RowMajor if ld is None else RowMajor(ld=ld), dst=RowMajor)(GL, GL)
    copy = execution(
        instruction,
        Move(1, width, dtype=dtype)(GL, GL)(Thread),
        access("src", (THREAD, base), (1, width), bounds),
        target or access("dst", (THREAD, base), (1, width), bounds, True),
    )
    kernel = kernel_of(spec, (copy,))
    buffers = tuple(attrs.evolve(one, tensor=attrs.evolve(one.tensor, align=align)) for one in kernel.buffers)
    return attrs.evolve(kernel, buffers=buffers)


def widths(kernel):
    """The widths of one load and one store after the pass."""
    ((statement, _),) = ir.execs(vectorize(kernel).body)
    return tuple(statement.width(position) for position in range(len(statement.accesses)))


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("dtype", "widest"), [(float64, 2), (float32, 4), (float16, 8), (int8, 16)], ids=str)
def test_sixteen_bytes_at_most(dtype, widest):
    assert widths(moved(16, THREAD % 4 * 16, dtype=dtype)) == (widest, widest)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("ld", "base", "wanted"),
    [(1024, 0, 4), (1028, 0, 4), (1026, 0, 2), (1025, 0, 1), (1024, 4, 4), (1024, 2, 2), (1024, 6, 2), (1024, 1, 1), (1024, 3, 1)],
)
def test_the_address_decides(ld, base, wanted):
    """With a leading dimension or a first column that is not a multiple of the width, `float4` is misaligned."""
    assert widths(moved(4, base, ld=ld))[0] == wanted
    assert widths(moved(4, THREAD % 8 * 4 + base, ld=ld))[0] == wanted
    assert widths(moved(4, THREAD % 8 * 5 + base))[0] == 1


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("align", "wanted"), [(16, 4), (8, 2), (4, 1), (256, 4)])
def test_the_array_decides(align, wanted):
    assert widths(moved(4, 0, align=align)) == (wanted, wanted)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("bound", "wanted"), [(1024, 4), (1020, 4), (1022, 2), (1021, 1), (6, 2)])
def test_the_edge_decides(bound, wanted):
    """A vector is in bounds or out of bounds as a whole if the extent and the first column are multiples of the width."""
    base = THREAD % 8 * 4
    copy = moved(4, base, bounds=(None, bound))
    assert widths(copy) == (wanted, wanted)
    lowered = guard(vectorize(copy))
    ((statement, _),) = ir.execs(lowered.body)
    assert all(piece.width == wanted for pieces in statement.pieces for piece in pieces)


def test_a_column_that_is_not_a_multiple_straddles_the_edge():
    """Odd rows of 1026 elements, from column 2 on: addresses are multiples of four, and the vector at column 1022 crosses 1024."""
    row, column = THREAD % 4 * 2 + 1, THREAD // 4 * 4 + 2
    spec = Move(32, 1024, src=RowMajor(ld=1026), dst=RowMajor(ld=1026))(GL, GL)
    sides = (access(name, (row, column), (1, 4), (None, 1024), name == "dst") for name in ("src", "dst"))
    kernel = kernel_of(spec, (execution(MOVE, Move(1, 4)(GL, GL)(Thread), *sides),))
    buffer = kernel.buffer("src")
    ((statement, _),) = ir.execs(kernel.body)
    assert buffer.address(statement.accesses[0], (0, 0)).factor == 4
    assert widths(kernel) == (2, 2)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("swizzle", "wanted"),
    [
        (Swizzle(2, 2, 3), 4),
        (Swizzle(2, 1, 3), 2),
        (Swizzle(2, 0, 3), 1),
        (Swizzle(1, 1, -1), 2),  # the second pair of each four moves, the first of each eight stays
        (Swizzle(1, 0, -2), 1),
        (Swizzle(1, 2, -1), 4),
    ],
    ids=str,
)
def test_a_swizzle_leaves_the_groups_that_it_moves_whole(swizzle, wanted):
    shared, columns = local("s", (32, 64), SH, layout=RowMajor, swizzle=swizzle), THREAD % 8 * 4

    def widths_at(base, shape):
        into = access("s", base, shape, write=True)
        copy = execution(MOVE, Move(*shape)(GL, SH)(Thread), access("src", base, shape), into)
        return widths(kernel_of(Move(32, 64, src=RowMajor)(GL, GL), (copy,), shared))[1]

    assert widths_at((THREAD // 8, columns), (1, 4)) == wanted
    assert widths_at((THREAD // 8, columns + 2), (1, 4)) == min(wanted, 2), "half of two groups"
    assert widths_at((THREAD // 8 * 4, columns), (4, 1)) == 1, "a column"


def test_adjacent_elements_along_a_dimension_of_several_strides():
    """Pieces that follow each other with stride one are recognized by their addresses; across pieces there are none."""
    shared = local("s", (32, 64), SH, layout=Layout((32, (4, 16)), (4, (1, 128))))

    def widths_at(base):
        into = access("s", base, (1, 4), write=True)
        return widths(
            kernel_of(
                Move(32, 64, src=RowMajor)(GL, GL),
                (execution(MOVE, Move(1, 4)(GL, SH)(Thread), access("src", base, (1, 4)), into),),
                shared,
            )
        )

    assert widths_at((THREAD, 0)) == widths_at((THREAD, 8)) == (4, 4) and widths_at((THREAD, 2)) == (2, 2)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("size", "copies", "wanted"), [(8, 2, 4), (6, 2, 2), (7, 2, 1), (6, 1, 4), (4, 3, 4)])
def test_copies_of_a_buffer_are_adjacent(size, copies, wanted):
    """An access aligned in the first copy is aligned in the others if these are multiples of the width apart."""
    shared = local("s", (1, size), SH, layout=RowMajor, copies=copies)
    into = access("s", (0, 0), (1, 4), write=True)
    copy = execution(MOVE, Move(1, 4)(GL, SH)(Thread), access("src", (THREAD, 0), (1, 4)), into)
    assert widths(kernel_of(Move(32, 8, src=RowMajor)(GL, GL), (copy,), shared))[1] == wanted


def test_strides_are_not_contiguous():
    """Adjacent elements of a column in row-major storage are a row apart."""
    column = access("src", (0, THREAD), (4, 1))
    copy = execution(MOVE, Move(4, 1)(GL, GL)(Thread), column, access("dst", (0, THREAD), (4, 1), write=True))
    assert widths(kernel_of(Move(32, 32, src=RowMajor, dst=ColMajor)(GL, GL), (copy,))) == (1, 4)


def test_aligned_elements_of_a_column_are_not_adjacent():
    """Each of the four begins a row of 32 elements; all addresses are multiples of four, and no two are adjacent."""
    column = access("src", (THREAD * 4, 0), (4, 1))
    copy = execution(MOVE, Move(4, 1)(GL, GL)(Thread), column, access("dst", (THREAD * 4, 0), (4, 1), write=True))
    assert widths(kernel_of(Move(128, 32, src=RowMajor, dst=ColMajor)(GL, GL), (copy,))) == (1, 4)


@pytest.mark.parametrize(("offset", "wanted"), [(0, 4), (2, 2), (1, 1)])
def test_adjacent_registers_are_vectorized(offset, wanted):
    registers = local("r", (1, 8), RF, layout=RowMajor)
    copy = execution(
        MOVE,
        Move(1, 4)(GL, RF)(Thread),
        access("src", (THREAD, 0), (1, 4)),
        access("r", (0, offset), (1, 4), write=True),
    )
    access_widths = widths(kernel_of(Move(32, 8, src=RowMajor, dst=RowMajor)(GL, GL), (copy,), registers))
    assert access_widths == (4, 4 if wanted == 4 else 1)


@pytest.mark.parametrize("size", [4, 8, 16])
def test_a_requested_width_is_proved_or_refused(size):
    instruction = vector(size)
    assert widths(moved(size // 4, 0, instruction=instruction)) == (size // 4, size // 4)
    if size > 4:
        with pytest.raises(DecompositionError, match="was requested"):
            vectorize(moved(size // 4, 1, instruction=instruction))
        with pytest.raises(DecompositionError, match="was requested"):
            vectorize(moved(size // 4, 0, ld=1025, instruction=instruction))


def test_conversions_between_memories_are_element_by_element():
    """A requested width of one element is satisfied, and no larger one."""
    for size in (4, 16):
        kernel = moved(4, 0, instruction=vector(size))
        source, target = kernel.buffers
        changed = attrs.evolve(target, tensor=attrs.evolve(target.tensor, dtype=int32))
        kernel = attrs.evolve(kernel, buffers=(source, changed))
        if size == 4:
            assert widths(kernel) == (1, 1)
        else:
            with pytest.raises(DecompositionError, match="was requested"):
                vectorize(kernel)


@pytest.mark.parametrize(("first", "wanted"), [(0, 2), (2, 2), (1, 1)])
def test_pairs_are_packed_if_stored_so(first, wanted):
    a, b, c = (local(name, (4, 4), RF, float16) for name in ("a", "b", "c"))
    product = execution(
        HFMA2,
        MatMul(2, 1, 1, dtype=float16)(RF, RF, RF)(Thread),
        access("a", (first, 0), (2, 1)),
        access("b", (0, 0)),
        access("c", (0, 0), (2, 1), write=True),
    )
    spec = MatMul(4, 4, 4, dtype=float16)(GL, GL, GL)
    assert widths(kernel_of(spec, (product,), a, b, c)) == (wanted, 1, 2)


def test_registers_of_matrix_instructions_that_are_apart_are_refused():
    """mma.sync takes two float16 values in one register: an array that stores them eight apart cannot supply it."""
    apart = local("a", (16, 16), RF, float16)
    lane_maps = HMMA_16816_F32.maps()
    lane = THREAD
    spec = MatMul(16, 8, 16, dtype=float16, c_dtype=float32)(RF, RF, RF)(Warp)
    accesses = [lane_maps[name].access(spec.operands[name], lane, name == "C", None) for name in "ABC"]
    accesses = [attrs.evolve(one, buffer=name) for one, name in zip(accesses, "abc")]
    product = making.execution(
        HMMA_16816_F32, spec, tuple(accesses), accumulate=as_expr(1), vectors=(2, 2, 1), lane_maps=tuple(lane_maps[name] for name in "ABC")
    )
    others = [local("b", (16, 8), RF, float16), local("c", (16, 8), RF)]
    whole = MatMul(16, 8, 16, dtype=float16, c_dtype=float32)(GL, GL, GL)
    with pytest.raises(DecompositionError, match="2 values of a in one register"):
        vectorize(kernel_of(whole, (product,), apart, *others))


def test_a_wrong_width_is_found_by_the_check():
    """The second oracle: four elements at once with a test of the first, while the extent is not a multiple of four."""
    kernel = guard(vectorize(moved(4, THREAD % 8 * 4, columns=20, bounds=(None, 20))))
    assert not [one for one in check_bounds(AccessTrace(kernel)) if one.severity == "error"]
    loose = with_conditions(kernel, "dst", True, lambda one: less(one.left, 18))
    loose = with_conditions(loose, "src", False, lambda one: less(one.left, 18))
    shorter = tuple(attrs.evolve(one, tensor=attrs.evolve(one.tensor, shape=(as_expr(32), as_expr(18)))) for one in loose.buffers)
    findings = [one for one in check_bounds(AccessTrace(attrs.evolve(loose, buffers=shorter))) if one.severity == "error"]
    assert findings and all("elements is accessed" in one.message for one in findings)


def test_a_width_greater_than_the_extent_is_reported():
    """If nothing else prevents it."""
    with pytest.raises(DecompositionError, match="cannot be proved legal: 2 elements of 4 bytes"):
        vectorize(moved(2, THREAD % 4 * 4, instruction=vector(16)))
    with pytest.raises(DecompositionError, match=r"cannot be proved legal: (?!\d+ elements of)"):
        vectorize(moved(4, THREAD % 4 * 4 + 1, instruction=vector(16)))
