"""The access trace that all checks use: frames of values, names, elements in bounds, addresses, terms of sums."""

import itertools

import attrs
import making
import numpy as np
import pytest
from touching import T, buffer, kernel, loop, reads, writes

from fireiron import *
from fireiron.check import AccessTrace
from fireiron.check.access_trace import Elements, accesses_of, assumed_elements, distinct, less_a_minimum, linear, product
from fireiron.errors import VerificationError
from fireiron.values.expr import Var, all_of, as_expr, less, minimum
from fireiron.values.tensor import Mode, Tensor

OUTER, INNER = Var("i", 0, 7), Var("j", 0, 3)
N = Var("N", 1, 1 << 20, 1, True)
ROW, COLUMN = Var("row", 0, 99), Var("column", 0, 99)


def trace_of(*body, **options):
    return AccessTrace(kernel(*body, **{"threads": 8, **options}))


# ---------------------------------------------------------------------------------------------- names


def test_roots_go_through_named_values():
    access_trace = trace_of(making.let(ROW, T + OUTER), making.let(COLUMN, ROW * 2 + N), symbols=(N,))
    assert (
        access_trace.roots(COLUMN) == {"thread", "i", "N"}
        and access_trace.roots(ROW) == {"thread", "i"}
        and access_trace.roots(as_expr(3)) == frozenset()
    )
    assert access_trace.needs((ROW, N)) == {"thread", "i", "N"} and access_trace.needs(()) == frozenset()
    assert access_trace.opened(COLUMN) == (T + OUTER) * 2 + N and access_trace.symbols == {"N"}


def test_a_name_has_one_value():
    trace_of(making.let(ROW, T), making.let(ROW, T))
    with pytest.raises(VerificationError, match="row has two values"):
        trace_of(making.let(ROW, T), making.let(ROW, T + 1))


def test_conditions_by_the_variables_that_decide_them():
    stmt = writes(T, active=all_of((less(T, 4), less(OUTER, 2), less(Var("block", 0, 3), 1))))
    kept, others = trace_of().guards(stmt, frozenset({"thread", "i"}))
    assert set(kept) == {less(T, 4), less(OUTER, 2)} and others == [less(Var("block", 0, 3), 1)]


# ---------------------------------------------------------------------------------------------- frames


def test_values_at_every_point():
    access_trace = trace_of(making.let(ROW, T * 10 + OUTER))
    frame = access_trace.frame([("thread", np.arange(8)), ("i", np.arange(3))], {"block": 5})
    assert frame.shape == (8, 3)
    wanted = [[t * 10 + i + 5 for i in range(3)] for t in range(8)]
    assert frame.full(ROW + Var("block", 0, 9)).tolist() == wanted
    assert frame.full(as_expr(4)).tolist() == [[4] * 3] * 8 and frame.full(OUTER).tolist() == [[0, 1, 2]] * 8
    assert frame.at((3, 2)) == {"thread": 3, "i": 2}
    assert frame.value(T).shape == (8, 1)
    with pytest.raises(KeyError):
        frame.value(Var("nowhere", 0, 1))
    with pytest.raises(VerificationError, match="is known only at run time"):
        frame.value(Var("table[]", 0, 1))


def test_axes_of_loops():
    loops = (loop(3, var=OUTER), loop(4, var=INNER), loop(N, var=Var("k", 0, 9)), loop(2, var=Var("late", 0, 9), first=4, step=3))
    access_trace = trace_of(symbols=(N,))
    assert [(name, values.tolist()) for name, values in access_trace.loop_axes(loops, frozenset({"i", "j"}))] == [
        ("i", [0, 1, 2]),
        ("j", [0, 1, 2, 3]),
    ]
    assert access_trace.loop_axes(loops, frozenset()) == [] and access_trace.loop_axes(loops, frozenset({"k"})) is None
    assert (
        access_trace.loop_axes(loops, frozenset({"i", "j"}), 12) is not None
        and access_trace.loop_axes(loops, frozenset({"i", "j"}), 11) is None
    )
    late = loops[3]
    assert [(name, values.tolist()) for name, values in access_trace.loop_axes((late,), frozenset({"late"}))] == [
        ("late", list(late.values(2)))
    ]


# ---------------------------------------------------------------------------------------------- elements


def access(*base, shape=(1, 1), bounds=(None, None)):
    modes = tuple((Mode(size, 1),) for size in shape)
    bounds = tuple(None if bound is None else as_expr(bound) for bound in bounds)
    return making.access("s", tuple(map(as_expr, base)), modes, bounds, True, unit_modes=((), ()))


def matrix(rows, columns, layout=ColMajor):
    tensor = Tensor("s", (as_expr(rows), as_expr(columns)), float32, SH, layout)
    storage = tensor.storage()
    return making.buffer(tensor, storage, storage.extent, written=True)


def statement(stmt):
    return making.execution(spec=Move(1, 1)(RF, SH)(Thread), accesses=(stmt,), instruction=writes(0).instruction)


@pytest.mark.parametrize("shape", [(1, 1), (2, 3), (4, 1), (3, 4), (1, 16)])
@pytest.mark.parametrize("layout", [RowMajor, ColMajor], ids=str)
def test_addresses_and_coordinates_of_all_elements(shape, layout):
    """Few elements are computed separately, many along an axis: the results are equal."""
    accessed = access(T, OUTER * 2, shape=shape)
    access_trace = trace_of(loop(3, statement(accessed), var=OUTER), buffers=(matrix(16, 32, layout),))
    frame = access_trace.frame([("thread", access_trace.threads), ("i", np.arange(3))])
    places, (rows, columns) = access_trace.addresses(frame, accessed), access_trace.coordinates(frame, accessed)
    assert places.shape == rows.shape == columns.shape == (8, 3, shape[0] * shape[1])
    for t, i, (number, (row, column)) in itertools.product(range(8), range(3), enumerate(accessed.elements())):
        assert (rows[t, i, number], columns[t, i, number]) == (t + row, i * 2 + column)
        want = (t + row) * 32 + i * 2 + column if layout is RowMajor else (i * 2 + column) * 16 + t + row
        assert places[t, i, number] == want
    assert accessed.table().tolist() == [list(each) for each in accessed.elements()] and accessed.reach == (shape[0] - 1, shape[1] - 1)


@pytest.mark.parametrize("bounds", [(None, None), (6, None), (None, 5), (6, 5), (0, None), (T + 2, None)])
def test_elements_below_their_bounds(bounds):
    accessed = access(T, OUTER * 2, shape=(2, 3), bounds=bounds)
    access_trace = trace_of(loop(3, statement(accessed), var=OUTER), buffers=(matrix(16, 16),))
    (use,) = access_trace.uses
    frame = access_trace.frame([("thread", access_trace.threads), ("i", np.arange(3))])
    inside = access_trace.inside(use, frame)
    for t, i, (number, (row, column)) in itertools.product(range(8), range(3), enumerate(accessed.elements())):
        limits = [None if bound is None else as_expr(bound).evaluate({"thread": t}) for bound in bounds]
        want = all(limit is None or place < limit for place, limit in zip((t + row, i * 2 + column), limits))
        assert inside[t, i, number] == want
    if bounds[0] is not None and not isinstance(bounds[0], int):
        assert access_trace.inside(use, frame, frozenset({"i"})).all(), "an unknown bound is ignored"


def test_pieces_replace_bounds():
    pieces = ((making.piece(0, 2, condition=less(T, 3)), making.piece(2, 2, condition=all_of((less(T, 5), less(Var("block", 0, 3), 1))))),)
    stmt = attrs.evolve(reads(T * 4, width=4, bound=as_expr(1)), pieces=pieces)
    access_trace = trace_of(stmt)
    (use,) = access_trace.uses
    frame = access_trace.frame([("thread", access_trace.threads)], {"block": 1})
    assert access_trace.inside(use, frame).tolist() == [[t < 3] * 2 + [False] * 2 for t in range(8)]
    assert access_trace.inside(use, frame, frozenset({"thread"})).tolist() == [[t < 3] * 2 + [t < 5] * 2 for t in range(8)]
    assert use.width == 2 and use.pieces == pieces[0]


def test_uses_of_statements_with_their_loops():
    access_trace = trace_of(loop(3, writes(T), loop(2, reads(T), var=INNER), var=OUTER))
    assert [(use.access.write, [loop_stmt.var.name for loop_stmt in use.loops]) for use in access_trace.uses] == [
        (True, ["i"]),
        (False, ["i", "j"]),
    ]
    assert accesses_of(writes(T)) == writes(T).accesses
    scratch = Tensor("s", (as_expr(64),), float32, SH, ColMajor)
    uses = accesses_of(attrs.evolve(writes(T), scratch=scratch))
    assert len(uses) == 2 and uses[1].buffer == "s"


# ---------------------------------------------------------------------------------------------- sums


@pytest.mark.parametrize("value", [T * 3 + OUTER - 5, as_expr(7), T * OUTER * 2 + 1, T // 2 + 3, OUTER])
def test_terms_and_constant_of_a_sum(value):
    terms, number = linear(value)
    for t, i in itertools.product((0, 3, 7), (0, 2, 5)):
        values = {"thread": t, "i": i}
        assert sum(product(atoms, times).evaluate(values) for atoms, times in terms) + number == value.evaluate(values)


@pytest.mark.parametrize(
    ("value", "is_one"),
    [
        (N - minimum(N, T + 5), True),
        (N - minimum(T + 5, N), True),
        (as_expr(8) - minimum(as_expr(8), T), True),
        (T + 5 - minimum(N, T + 5), True),
        (T + 4 - minimum(N, T + 5), False),
        (N - 1 - minimum(N, T + 5), False),
        (N + 3 - minimum(N, T + 5), True),
        (N - minimum(T + 5, OUTER * 9), False),
        (minimum(N, T + 5), False),
        (N - T, False),
        (N + minimum(N, T + 5), False),
    ],
)
def test_a_value_minus_its_minimum(value, is_one):
    assert less_a_minimum(value) == is_one


def test_all_elements_of_an_estimate_are_the_same():
    assert Elements(7)(np.arange(3)).tolist() == [7, 7, 7] and Elements(7)(2) == 7
    assert assumed_elements(trace_of(loop(3, writes(T), var=OUTER)), {}) == {}


def test_tiles_and_threads():
    access_trace = trace_of(writes(T))
    assert access_trace.threads.tolist() == list(range(8)) and access_trace.tiles == {}
    assert buffer("s", 4) not in access_trace.kernel.buffers


# ---------------------------------------------------------------------------------------------- rows, elements


@pytest.mark.parametrize(("low", "high", "rows"), [(0, 4, 30), (-3, 3, 30), (-70000, 70000, 30), (5, 6, 3), (0, 400, 2), (-200, 200, 500)])
@pytest.mark.parametrize("columns", [1, 2, 3])
def test_different_rows_in_order(low, high, rows, columns):
    values = np.random.default_rng(rows).integers(low, high, (rows, columns))
    values[:, 0] += 7
    assert distinct(values, axis=0).tolist() == [list(stmt) for stmt in sorted({tuple(row) for row in values.tolist()})]
    assert distinct(values).tolist() == sorted(set(values.ravel().tolist()))
    assert distinct(values.astype(float), axis=0).shape == distinct(values, axis=0).shape


def test_no_rows():
    assert distinct(np.zeros((0, 2), dtype=int), axis=0).shape == (0, 2) and distinct(np.zeros(0, dtype=int)).tolist() == []


def pointed(*points):
    (access,) = writes(T).accesses
    return attrs.evolve(access, points=points)


def test_offsets_sizes_and_reach():
    modes = ((Mode(2, 3), Mode(2, 10)), (Mode(3, 1),))
    plain = making.access("s", (T, T), modes, (None, None), True, unit_modes=((), ()))
    assert [tuple(stmt) for stmt in plain.table().tolist()] == list(plain.elements())
    assert plain.count == 12 and plain.reach == (13, 2)
    some = pointed((3,), (-1,), (2,))
    assert some.table().tolist() == [[3], [-1], [2]] and some.count == 3 and some.reach == (3,)
    none = making.access("s", (), (), (), True, unit_modes=())
    assert none.table().shape == (1, 0) and none.count == 1 and none.reach == ()


def test_a_statement_s_own_memory_belongs_to_no_operand():
    own = Tensor("own", (as_expr(16),), float32, SH, ColMajor)
    step = attrs.evolve(writes(T, width=4), scratch=own, vectors=(4,))
    access_trace = trace_of(step, buffers=(buffer("s", 64), buffer("own", 16, offset=256)))
    first, second = access_trace.uses
    assert (first.position, first.width, second.position, second.width) == (0, 4, None, 1)
    assert first.pieces == () == second.pieces and second.access.buffer == "own" and second.access.count == 16
    pieces = ((making.piece(0, 4),),)
    first, second = trace_of(attrs.evolve(step, pieces=pieces), buffers=(buffer("s", 64), buffer("own", 16, offset=256))).uses
    assert first.pieces == pieces[0] and second.pieces == ()


def test_terms_of_sums_add_up_again():
    value = T * 3 + OUTER * INNER * 2 - 5
    terms, number = linear(value)
    assert sum((product(atoms, times) for atoms, times in terms), as_expr(number)) == value and number == -5
    assert linear(as_expr(7)) == ([], 7) and linear(T) == ([((T,), 1)], 0) and linear(T % 3) == ([((T % 3,), 1)], 0)


@pytest.mark.parametrize(
    ("value", "so"),
    [
        (N - minimum(N, T), True),
        (N + 3 - minimum(T, N), True),
        (N - 1 - minimum(N, T), False),
        (N * 2 - minimum(N, T) * 2, False),
        (N - T, False),
        (T - minimum(N, T + 1), False),
        (T + 1 - minimum(N, T + 1), True),
        (N - minimum(N, T) + OUTER, True),
        (N - minimum(N, T) - OUTER, False),
        (N + minimum(N, T), False),
    ],
    ids=str,
)
def test_other_forms_of_a_value_minus_its_minimum(value, so):
    assert less_a_minimum(value) == so


def test_a_single_element_without_dimensions():
    tensor = Tensor("z", (), float32, GL, ColMajor)
    storage = tensor.storage()
    target = making.buffer(tensor, storage, storage.extent, written=True)
    access = making.access("z", (), (), (), True, unit_modes=())
    access_trace = trace_of(buffers=(target,))
    addresses = access_trace.addresses(access_trace.frame([("thread", np.arange(3))]), access)
    assert addresses.shape == (3, 1) and all(as_expr(address) == as_expr(0) for address in addresses.ravel().tolist())


@pytest.mark.parametrize(
    ("value", "known"),
    [
        (N - minimum(N, OUTER), True),
        (N - minimum(N, OUTER) * 2, False),
        (minimum(N, OUTER) - N, False),
        (N - OUTER, False),
        (N - minimum(OUTER, INNER), False),
        (N - minimum(N, OUTER) * INNER, False),
        (as_expr(4), False),
    ],
    ids=str,
)
def test_remainder_after_a_minimum(value, known):
    assert less_a_minimum(as_expr(value)) == known
