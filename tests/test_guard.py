"""The pass `guard` on hand-made IR: the conditions and widths of stores and loads, which all later readers use."""

import attrs
import making
import numpy as np
import pytest
from guards import with_conditions
from handmade import THREAD, access, execution, kernel_of, local

from fireiron import *
from fireiron import ir
from fireiron.check import AccessTrace, check_bounds
from fireiron.cuda import emit
from fireiron.errors import SimulationError, VerificationError
from fireiron.executable.atomic_add import ATOMIC_ADD
from fireiron.executable.fma import FFMA
from fireiron.executable.thread_move import MOVE
from fireiron.lower.guard import guard
from fireiron.lower.vectorize import vectorize
from fireiron.sim import simulate
from fireiron.values.expr import FALSE, TRUE, as_expr, conjuncts, less
from fireiron.values.machine import Thread

LAYOUTS = {"A": RowMajor, "B": RowMajor}


def moved(rows, columns, width, kernel=True, overhang=(True, True)):
    """A copy of `rows x columns` by a grid of 8 x 4 threads, each of one row of `width` elements; the grid may be too large."""
    row, column = THREAD // 4, THREAD % 4 * width
    bounds = tuple(size if over else None for size, over in zip((rows, columns), overhang))
    spec = Move(rows, columns, src=RowMajor, dst=RowMajor)(GL, GL)
    statement = execution(
        MOVE,
        Move(1, width)(GL, GL)(Thread),
        access("src", (row, column), (1, width), bounds),
        access("dst", (row, column), (1, width), bounds, True),
    )
    return kernel_of(spec, (statement,)) if kernel else statement


def only(kernel):
    """The only statement of a kernel."""
    ((statement, _),) = ir.execs(kernel.body)
    return statement


def errors(kernel):
    return [finding for finding in check_bounds(AccessTrace(kernel)) if finding.severity == "error"]


def simulated(kernel, rows, columns):
    data = np.arange(rows * columns, dtype=np.float32).reshape(rows, columns)
    return simulate(kernel, {"src": data}).outputs["dst"], data


OVERHANGING = [(8, 16, ()), (5, 16, (0,)), (8, 12, (1,)), (5, 8, (0, 1))]


def test_collective_statements_are_unchanged():
    """No access belongs to a single thread, so its bounds do not become a condition on threads."""
    single = only(moved(5, 16, 4))
    together = attrs.evolve(single, spec=Move(1, 4)(GL, GL)(Warp))
    both = attrs.evolve(moved(5, 16, 4), body=(single, together))
    first, second = guard(both).body
    assert together.collective and second == together and first.guard != TRUE


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("rows", "columns", "over", "wide"),
    [*((*one, wide) for one in OVERHANGING for wide in (False, True)), (8, 9, (1,), False), (5, 10, (0, 1), False)],
    ids=str,
)
def test_overhang_in_every_dimension(rows, columns, over, wide):
    """Elements past the end of a tensor are not stored, in any dimension, by vectors and by single elements."""
    raw = moved(rows, columns, 4)
    kernel = ir.verify(guard(vectorize(raw) if wide else raw), final=True)
    statement = only(kernel)
    row, column = THREAD // 4, THREAD % 4 * 4
    tests = [test for test in (less(row, rows), less(column, columns)) if test != TRUE]
    assert len(tests) == len(over)
    if wide:
        assert statement.pieces == ((making.piece(0, 4),), (making.piece(0, 4),)) and conjuncts(statement.guard) == tuple(tests)
    else:
        conditions = [less(column + step, columns) for step in range(4)]
        equal = len(set(conditions)) == 1  # if the end is a multiple of four, the four elements have equal conditions
        assert equal == (columns % 4 == 0)
        assert conjuncts(statement.guard) == (tuple(tests) if equal else (tests[0],) if 0 in over else ())
        assert [piece.width for piece in statement.pieces[1]] == [1] * 4
        assert [piece.condition for piece in statement.pieces[1]] == ([TRUE] * 4 if equal else conditions)
    assert errors(kernel) == []
    result, data = simulated(kernel, rows, columns)
    np.testing.assert_array_equal(result, data)
    for dim in over:
        extent = as_expr((rows, columns)[dim])
        for buffer, write in (("dst", True), ("src", False)):
            dropped = with_conditions(
                kernel, buffer, write, lambda condition, extent=extent: None if condition.right == extent else condition
            )
            if dropped == kernel:
                continue
            assert {finding.buffer for finding in errors(dropped)} >= {buffer} and f"< {extent}" in emit(kernel)
            with pytest.raises(SimulationError, match="outside of the tensor"):
                simulated(dropped, rows, columns)


def test_only_the_guard_decides_which_threads_store():
    """After the pass the bounds of an access are ignored: a stricter guard stores less, regardless of the bounds."""
    kernel = guard(moved(5, 16, 4))
    strict = attrs.evolve(kernel, body=(attrs.evolve(only(kernel), guard=less(THREAD // 4, 2)),))
    result, data = simulated(strict, 5, 16)
    np.testing.assert_array_equal(result[:2], data[:2])
    assert np.isnan(result[2:]).all() and "< 2" in emit(strict)


@pytest.mark.parametrize(("rows", "columns"), [(5, 16), (8, 13), (5, 13)])
def test_elements_outside_the_source_are_zero(rows, columns):
    """A tile in shared memory is stored completely: the source is read in bounds only, and each element has its condition."""
    row, column = THREAD // 4, THREAD % 4 * 4
    tile = local("tile", (8, 16), SH, layout=RowMajor)
    load = execution(
        MOVE,
        Move(1, 4)(GL, SH)(Thread),
        access("src", (row, column), (1, 4), (rows, columns)),
        access("tile", (row, column), (1, 4), write=True),
    )
    store = execution(
        MOVE, Move(1, 4)(SH, GL)(Thread), access("tile", (row, column), (1, 4)), access("dst", (row, column), (1, 4), write=True)
    )
    kernel = kernel_of(Move(rows, columns, src=RowMajor, dst=RowMajor)(GL, GL), (load, store), tile)
    whole = attrs.evolve(kernel.buffer("dst").tensor, shape=(as_expr(8), as_expr(16)))
    buffers = tuple(
        attrs.evolve(buffer, tensor=whole, storage=whole.storage(), elements=as_expr(128)) if buffer.name == "dst" else buffer
        for buffer in kernel.buffers
    )
    lowered = guard(vectorize(attrs.evolve(kernel, buffers=buffers)))
    first, _ = (statement for statement, _ in ir.execs(lowered.body))
    assert first.guard == TRUE and {piece.condition for piece in first.pieces[1]} == {TRUE}
    tested = {part for piece in first.pieces[0] for part in conjuncts(piece.condition)}
    assert (less(row, rows) in tested) == (rows < 8) and (less(column + 1, columns) in tested) == (columns < 16)
    text = emit(lowered)
    assert text.count(": 0.0f") + text.count("make_float4") == sum(piece.condition != TRUE for piece in first.pieces[0]) > 0
    assert errors(lowered) == []


def product(accumulate, over=8):
    """`C += A * B` of single elements in GL, where k may be out of bounds."""
    k = making.loop(loop := Var("k", 0, 11), as_expr(12), ())
    m = THREAD // 4
    n = THREAD % 4
    statement = execution(
        FFMA,
        MatMul(1, 1, 1)(GL, GL, GL)(Thread),
        access("A", (m, loop), bounds=(None, over)),
        access("B", (loop, n), bounds=(over, None)),
        access("C", (m, n), write=True),
        accumulate=accumulate(loop),
    )
    return guard(kernel_of(MatMul(8, 4, 8)(GL, GL, GL), (attrs.evolve(k, body=(statement,)),)))


def test_a_multiply_add_is_skipped_only_if_it_would_add_zero():
    """Out of bounds, an accumulating multiply-add does nothing and an overwriting one writes zero (8x8x8 split along k was wrong)."""
    adds, sets, mixed = (only(product(rule)) for rule in (lambda k: TRUE, lambda k: FALSE, lambda k: less(0, k)))
    inside = less(Var("k", 0, 11), 8)
    assert adds.guard == inside and all(piece.condition == TRUE for pieces in adds.pieces for piece in pieces)
    for stmt in (sets, mixed):
        assert stmt.guard == TRUE and [pieces[0].condition for pieces in stmt.pieces] == [inside, inside, TRUE]
    text = emit(product(lambda k: less(0, k)))
    assert "if (" not in text and text.count("k < 8 ? ") == 2
    generator = np.random.default_rng(0)
    a, b = (generator.integers(-3, 4, shape).astype(np.float32) for shape in ((8, 8), (8, 4)))
    np.testing.assert_array_equal(simulate(product(lambda k: less(0, k)), {"A": a, "B": b}).outputs["C"], a @ b)
    np.testing.assert_array_equal(simulate(product(lambda k: FALSE), {"A": a, "B": b}).outputs["C"], np.zeros((8, 4)))


def test_an_atomic_add_outside_its_source_is_skipped():
    target = access("dst", (THREAD, 0), write=True)
    statement = execution(ATOMIC_ADD, AtomicAdd(1, 1)(GL, GL)(Thread), access("src", (THREAD, 0), bounds=(20, None)), target)
    stmt = only(guard(kernel_of(AtomicAdd(32, 1)(GL, GL), (statement,))))
    assert stmt.guard == less(THREAD, 20) and stmt.pieces == ((making.piece(0),), (making.piece(0),))


def test_conditions_of_the_statement_are_not_repeated():
    active = less(THREAD // 4, 5)
    kernel = moved(5, 16, 4)
    statement = only(guard(attrs.evolve(kernel, body=(attrs.evolve(only(kernel), active=active),))))
    assert statement.guard == TRUE and statement.performed == active and {piece.condition for piece in statement.pieces[0]} == {TRUE}


@pytest.mark.parametrize("memory", [RF, SH], ids=str)
def test_user_code_that_tests_edges_gets_no_pieces(memory):
    micro = MicroKernel("own", "dst[0] = src[0];")
    statement = attrs.evolve(moved(5, 16, 4, kernel=False), instruction=micro)
    kernel = ir.verify(guard(kernel_of(Move(5, 16, src=RowMajor, dst=RowMajor)(GL, GL), (statement,))), final=True)
    assert only(kernel).pieces == () and only(kernel).guard == less(THREAD // 4, 5)


def test_registers_are_aligned_for_their_vectors():
    def aligned(width, dtype):
        registers = local("r", (1, 8), RF, dtype)
        load = execution(
            MOVE,
            Move(1, 8, dtype=dtype)(GL, RF)(Thread),
            access("src", (THREAD, 0), (1, 8)),
            access("r", (0, 0), (1, 8), write=True),
            vector=width,
            vectors=(width, width),
        )
        spec = Move(32, 8, dtype=dtype, src=RowMajor, dst=RowMajor)(GL, GL)
        return guard(kernel_of(spec, (load,), registers)).buffer("r").tensor.align

    assert [aligned(width, float32) for width in (1, 2, 4)] == [4, 8, 16]
    assert [aligned(width, float16) for width in (1, 2, 4, 8)] == [2, 4, 8, 16]


FAULTS = {
    "an element twice": (making.piece(0, 2), making.piece(1, 3)),
    "an element left out": (making.piece(0, 1), making.piece(2, 2)),
    "elements past the last": (making.piece(0, 4), making.piece(4, 1)),
    "no last element": (making.piece(0, 3),),
    "nothing": (),
    "no width": (making.piece(0, 0), making.piece(0, 4)),
    "an unbound name": (making.piece(0, 4, condition=less(Var("stranger"), 3)),),
    "no condition": (making.piece(0, 4, condition=THREAD),),
}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", FAULTS)
@pytest.mark.parametrize("operand", [0, 1])
def test_the_verifier_requires_each_element_once(name, operand):
    kernel = guard(moved(8, 16, 4))
    pieces = list(only(kernel).pieces)
    pieces[operand] = FAULTS[name]
    with pytest.raises(VerificationError):
        ir.verify(attrs.evolve(kernel, body=(attrs.evolve(only(kernel), pieces=tuple(pieces)),)))


def test_the_verifier_requires_pieces_at_the_end():
    raw = moved(8, 16, 4)
    assert ir.verify(raw) is raw
    with pytest.raises(VerificationError, match="which elements are accessed"):
        ir.verify(raw, final=True)
    with pytest.raises(VerificationError, match="pieces of 1 operands"):
        ir.verify(attrs.evolve(raw, body=(attrs.evolve(only(raw), pieces=((making.piece(0, 4),),)),)))
