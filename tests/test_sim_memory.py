"""Memory in the simulator, by hand: poison, what was written, guards around arrays, and arrays that do not fit (`fireiron.sim.memory`)."""

import types

import attrs
import making
import numpy as np
import pytest
from handmade import THREAD, access, kernel_of, local

from fireiron import *
from fireiron.errors import ArgumentError, SimulationError
from fireiron.executable.thread_move import MOVE
from fireiron.sim import simulate
from fireiron.sim.memory import Global, Memory, coordinate_memory, global_memory, registers, shared_memory
from fireiron.sim.plan import Plan
from fireiron.values.expr import Var, as_expr

COUNTS = types.SimpleNamespace(dtype=int32)


def planned(shape=(8, 4), dtype=float32, *buffers, layout=ColMajor, threads=32, symbols=(), values=None, dst=None, **fields):
    made = kernel_of(Move(*shape, dtype=dtype, src=layout, dst=dst or layout)(GL, GL), (), *buffers, threads=threads, symbols=symbols)
    return Plan(making.evolved(made, **{"shared_bytes": 4096, **fields}), values or {})


def numbers(shape=(8, 4), dtype=np.float32):
    return np.arange(1, 1 + int(np.prod(shape))).reshape(shape).astype(dtype)


# ---------------------------------------------------------------------------------------------- what was written


def test_it_looks_at_powers_of_two():
    """Whether all was written it asks the first, second, fourth and eighth time, and no more often than that."""
    memory = Memory(np.zeros((4, 1)), 1, 2, 3, np.zeros((4, 1), bool))
    seen = []
    for _ in range(9):
        memory.defined[1:3] = True
        memory.update_complete()
        seen.append(memory.complete)
        memory.complete = False
    assert seen == [True, True, False, True, False, False, False, True, False]


@pytest.mark.parametrize("missing, complete", [(0, True), (1, False), (2, False), (3, True)])
def test_only_its_own_rows_count(missing, complete):
    memory = Memory(np.zeros((4, 2)), 1, 2, 3, np.ones((4, 2), bool))
    memory.defined[missing, 1] = False
    memory.update_complete()
    assert memory.complete == complete


def test_what_is_not_watched_is_complete():
    memory = Memory(np.zeros((4, 2)), 0, 2, 2, None)
    memory.update_complete()
    assert memory.complete and (memory.width, memory.flat.size) == (2, 8)


# ---------------------------------------------------------------------------------------------- registers


@pytest.mark.parametrize(
    "dtype, careful, watched", [(float32, False, False), (float32, True, True), (int32, False, True), (float16, False, False)], ids=str
)
def test_registers_are_poison_until_they_are_written(dtype, careful, watched):
    """A row for each number and thread; behind them a row of zeros, and one for what nobody wants."""
    plan = planned()
    memory = registers(plan, local("r", (3,), RF, dtype), 2, careful)
    assert (memory.first, memory.rows, memory.zero, memory.width, memory.complete) == (0, 96, 96, 2, not watched)
    assert memory.data.shape == (98, 2) and not memory.data[96].any()
    fresh = memory.data[:96]
    assert np.isnan(fresh).all() if dtype.kind == "float" else (fresh == 0x5A5A5A5A).all()
    if watched:
        assert not memory.defined[:96].any() and memory.defined[96:].all()


def test_copies_of_registers():
    assert registers(planned(), local("r", (3,), RF, copies=2), 1, False).rows == 6 * 32


def test_coordinates_have_no_place():
    memory = coordinate_memory(COUNTS)
    assert (memory.first, memory.rows, memory.zero, memory.complete, memory.data.dtype) == (0, 0, 0, True, np.int32)


# ---------------------------------------------------------------------------------------------- shared memory


def shared(name, size, offset, dtype=float32, **fields):
    return attrs.evolve(local(name, (size,), SH, dtype, **fields), offset=offset)


def test_buffers_that_overlap_are_the_same_bytes():
    """Of their own place, in each block of a chunk; what lies apart is apart."""
    plan = planned((8, 4), float32, shared("a", 8, 0), shared("b", 8, 16), shared("c", 8, 64))
    for width in (1, 3):
        found = shared_memory(plan, width, False)
        a, b, c = (found[name] for name in "abc")
        assert a.data.base is b.data.base and a.data.base is not c.data.base
        assert [(one.first, one.rows) for one in (a, b, c)] == [(0, 8), (4, 8), (0, 8)]
        assert np.isnan(a.data[:12]).all() and not a.data[a.zero].any() and a.zero >= 12
        b.data[b.first] = 7
        assert (a.data[4] == 7).all() and np.isnan(a.data[3]).all() and np.isnan(c.data[0]).all()
        assert a.data.shape == (a.zero + 8, width)


@pytest.mark.parametrize(
    "kinds, careful", [((float32, int32), False), ((int32, int32), False), ((float32, float32), True), ((float16, float32), False)], ids=str
)
def test_poison_of_shared_memory(kinds, careful):
    """Bytes that some float has are NaN to it; integers are watched, and floats where somebody asks."""
    plan = planned((8, 4), float32, shared("a", 8, 0, kinds[0]), shared("b", 8, 8, kinds[1]))
    found = shared_memory(plan, 2, careful)
    for name, dtype in zip("ab", kinds, strict=True):
        memory = found[name]
        assert memory.first * dtype.bytes == (0 if name == "a" else 8)
        fresh = memory.data[memory.first : memory.first + 8]
        if dtype.kind == "float":
            assert np.isnan(fresh).all()
        elif kinds == (int32, int32):
            assert (fresh == 0x5A5A5A5A).all()
        watched = careful or dtype.kind == "int"
        assert memory.complete == (not watched)
        if watched:
            assert not memory.defined[: memory.zero].any() and memory.defined[memory.zero :].all()
        assert not memory.data[memory.zero].any() and memory.data.shape[0] >= memory.zero + 2


@pytest.mark.parametrize("end", [4, 16, 20, 36, 60])
def test_rows_behind_buffers_are_behind_all_of_them(end):
    """Whole elements of each type, zeros, and a row for masked writes."""
    plan = planned((8, 4), float32, shared("a", end // 4, 0), shared("b", end // 2, 0, float16))
    for name, width in (("a", 2), ("b", 1)):
        memory = shared_memory(plan, width, False)[name]
        assert memory.zero >= memory.rows and memory.data.shape[0] >= memory.zero + 2
        assert not memory.data[memory.zero : memory.zero + 2].any()


def use(*names):
    """Threads that put an element into each of these."""
    spec = Move(1, dtype=float32)(GL, SH)(Thread)
    for name in names:
        yield making.execution(
            MOVE, spec, (access("src", (THREAD,)), access(name, (THREAD,), write=True)), pieces=((making.piece(0),),) * 2
        )


@pytest.mark.parametrize(
    "offset, size, right",
    [(0, 256, True), (128, 256, True), (132, 256, False), (128, 255, False), (-4, 256, False), (0, 128, True), (0, 127, False)],
)
def test_a_buffer_in_use_lies_in_the_memory_of_the_block(offset, size, right):
    """One that nobody touches may lie anywhere."""
    made = kernel_of(Move(32, dtype=float32)(GL, GL), tuple(use("x")), shared("x", 32, offset), shared("y", 32, 4000))
    made = attrs.evolve(made, shared_bytes=size)
    given = {"src": np.zeros(32, np.float32)}
    if right:
        simulate(made, given)
    else:
        with pytest.raises(SimulationError, match=rf"x occupies bytes {offset} ... {offset + 127} of shared memory") as caught:
            simulate(made, given)
        assert caught.value.legal == f"0 ... {size - 1}"


# ---------------------------------------------------------------------------------------------- arrays


@pytest.mark.parametrize("layout", [ColMajor, RowMajor, ColMajor(ld=11), RowMajor(ld=7)], ids=str)
@pytest.mark.parametrize("dtype", [float32, float16, int32], ids=str)
def test_an_array_lies_as_its_layout_says(layout, dtype):
    """Poison between rows that are padded, guards around all, zero behind."""
    plan, given = planned(layout=layout, dtype=dtype), numbers(dtype=dtype.to_numpy())
    one = Global(plan, plan.buffers["src"], given, False)
    np.testing.assert_array_equal(one.array, given)
    steps = {str(ColMajor): (1, 8), str(RowMajor): (4, 1)}.get(str(layout)) or ((1, 11) if "11" in str(layout) else (7, 1))
    for index in np.ndindex(8, 4):
        assert one.flat[one.guard + index[0] * steps[0] + index[1] * steps[1]] == given[index]
    assert one.guard >= 64 and one.flat[one.zero] == 0 and one.zero - one.end == one.guard
    outside = np.ones(one.flat.size, bool)
    outside[one.places], outside[one.zero] = False, False
    rest = one.flat[outside]
    assert np.isnan(rest).all() if dtype.kind == "float" else (rest == 0x5A5A5A5A).all()
    assert one.end - one.guard == plan.number(plan.buffers["src"].elements) and one.flat.size == one.zero + 2
    assert (one.memory.first, one.memory.rows, one.memory.zero) == (one.guard, one.end - one.guard, one.zero)


@pytest.mark.parametrize(
    "shape, guard", [((8, 4), 64), ((2, 400), 400), ((300, 300), 300), ((1, 90), 90), ((65,), 64), ((5, 100), 100), ((2, 40000), 1 << 14)]
)
def test_a_row_too_far_meets_the_guard(shape, guard):
    """It holds the longest step of the array, and a warp's worth at least; no more than so many elements."""
    plan = planned(shape)
    one = Global(plan, plan.buffers["src"], None, False)
    assert one.guard == guard


@pytest.mark.parametrize(
    "given, careful, dtype, watched",
    [
        (True, True, float32, False),
        (False, True, float32, True),
        (False, False, float32, False),
        (False, False, int32, True),
        (True, False, int32, False),
    ],
    ids=str,
)
def test_what_was_given_is_written(given, careful, dtype, watched):
    plan = planned(dtype=dtype)
    one = Global(plan, plan.buffers["dst"], numbers(dtype=dtype.to_numpy()) if given else None, careful)
    assert one.memory.complete == (not watched)


def test_elements_that_share_a_place_are_alike():
    """Strides of zero: what lies at one place is one number, NaN of one kind included."""
    plan = planned((8, 4))
    src = plan.buffers["src"]
    flat = attrs.evolve(src, storage=attrs.evolve(src.storage, layout=Layout((8, 4), (1, 0))), elements=as_expr(8))
    alike = np.broadcast_to(np.array([1, 2, 3, np.nan, 5, 6, 7, -0.0], np.float32)[:, None], (8, 4))
    one = Global(plan, flat, alike, False)
    np.testing.assert_array_equal(one.array, alike)
    for other in (9, 0.0):
        differs = alike.copy()
        differs[7, 1] = other
        with pytest.raises(ArgumentError, match="src: elements that share a place in memory differ"):
            Global(plan, flat, differs, False)


@pytest.mark.parametrize(
    "number, right",
    [(0, True), (31, True), (32, False), (-1, False), ([3, 31], True), ([3, 32], False), ([-1, 40], False), ([0, -1], False)],
)
def test_elements_of_arrays_of_integers(number, right):
    """As a kernel reads how long a row is: inside alone, and nothing below zero."""
    plan, given = planned((32,), int32), np.arange(-3, 29, dtype=np.int32)
    one = Global(plan, plan.buffers["src"], given, False)
    if right:
        np.testing.assert_array_equal(one.element(np.array(number)), np.maximum(given[np.array(number)], 0))
    else:
        with pytest.raises(SimulationError, match=f"src: element {np.max(number)} is read, of 32"):
            one.element(np.array(number))


@pytest.mark.parametrize("address", [-64, -1, 8, 9, 10, 19, 43, 44, 107])
@pytest.mark.parametrize("dtype", [float32, int32, float16], ids=str)
def test_what_was_written_outside_is_told(address, dtype):
    """In front, behind, and between rows; the first such place, and the tensor."""
    plan = planned(layout=ColMajor(ld=11), dtype=dtype)
    one = Global(plan, plan.buffers["dst"], numbers(dtype=dtype.to_numpy()), False)
    one.check_guards()
    one.flat[one.guard : one.guard + 8] = 1
    one.flat[one.zero :] = 3
    one.check_guards()
    if address in (44, 107) and one.end - one.guard < 44:
        address -= 3
    one.flat[one.guard + address] = 5
    if address == 9:
        one.flat[one.guard + 10] = 5
    with pytest.raises(SimulationError, match=rf"dst: address {address}, outside of the tensor, was written") as caught:
        one.check_guards()
    assert caught.value.legal == "elements of the 8 x 4 tensor"


def test_one_byte_that_changed_is_enough():
    plan = planned((8,))
    one = Global(plan, plan.buffers["dst"], None, False)
    for byte in (0, 3):
        one.bytes[(one.guard - 2) * 4 + byte] = 0
        with pytest.raises(SimulationError, match="address -2, outside"):
            one.check_guards()
        one.bytes[(one.guard - 2) * 4 + byte] = 0xFF


# ---------------------------------------------------------------------------------------------- what a kernel is given


@pytest.mark.parametrize(
    "arrays, message, got",
    [
        ({}, "the input src is missing", None),
        ({"src": [1.0]}, "src: not a NumPy array", "list"),
        ({"src": numbers((4, 8))}, "src: wrong shape", (4, 8)),
        ({"src": numbers((32,))}, "src: wrong shape", (32,)),
        ({"src": numbers(dtype=np.float64)}, "src: wrong element type", "float64"),
        ({"src": numbers(), "dst": numbers(dtype=np.int32)}, "dst: wrong element type", "int32"),
        ({"src": numbers(), "dst": numbers((8, 5))}, "dst: wrong shape", (8, 5)),
        ({"src": numbers(), "x": numbers()}, "has no parameter x", None),
        ({"src": numbers(), "local": numbers()}, "has no parameter local", None),
    ],
)
def test_arrays_that_do_not_fit(arrays, message, got):
    plan = planned((8, 4), float32, local("local", (4,), RF))
    with pytest.raises(ArgumentError, match=message) as caught:
        global_memory(plan, arrays, False)
    assert caught.value.got == got


def test_arrays_that_fit():
    """A missing output is poison; one that blocks add to begins at zero, whatever was given."""
    plan = planned()
    found = global_memory(plan, {"src": numbers()}, False)
    assert {*found} == {"src", "dst"} and np.isnan(found["dst"].array).all()
    np.testing.assert_array_equal(global_memory(plan, {"src": numbers(), "dst": numbers()}, False)["dst"].array, numbers())
    zeroed = planned(zeroed=("dst",))
    for arrays in ({"src": numbers()}, {"src": numbers(), "dst": numbers()}):
        found = global_memory(zeroed, arrays, False)
        assert not found["dst"].array.any() and found["src"].array.all()
    with pytest.raises(ArgumentError, match="dst: wrong shape"):
        global_memory(zeroed, {"src": numbers(), "dst": numbers((4, 4))}, False)


def test_truth_values_are_bytes():
    """As inputs; an output is of its own type."""
    plan, given = planned(dtype=uint8), np.eye(8, 4).astype(bool)
    np.testing.assert_array_equal(global_memory(plan, {"src": given}, False)["src"].array, given.astype(np.uint8))
    with pytest.raises(ArgumentError, match="dst: wrong element type"):
        global_memory(plan, {"src": given, "dst": given}, False)


@pytest.mark.parametrize("order, least", [(ColMajor, 8), (RowMajor, 4)])
def test_a_leading_dimension_holds_a_row_or_a_column(order, least):
    ld = Var("ld", 1, 64)
    for value in (least - 1, least, least + 3):
        plan = planned(layout=order(ld=ld), dst=ColMajor, symbols=(ld,), values={"ld": value})
        if value >= least:
            np.testing.assert_array_equal(global_memory(plan, {"src": numbers()}, False)["src"].array, numbers())
        else:
            with pytest.raises(ArgumentError, match="src: the leading dimension is less than a row or column") as caught:
                global_memory(plan, {"src": numbers()}, False)
            assert (caught.value.got, caught.value.legal) == (value, f"at least {least}")


def test_a_number_is_given_by_value():
    """An array of no dimension, a Python number, but no array of several."""
    made = Fused(name="scaled", dims="m", operands={"x": "m", "alpha": "", "y": "m"}, body={"y": "y[m] = alpha * x[m]"})
    spec = made.tile(m=1).to(Block).done("// m\n").start(m=8, dtype=float32)
    plan = Plan(kernel_of(lambda level: spec, ()), {})
    for given in (3, 3.0, np.float32(3), np.array(3, np.float32)):
        found = global_memory(plan, {"x": numbers((8,)), "alpha": given}, False)
        assert found["alpha"].array == 3 and found["alpha"].array.shape == ()
    with pytest.raises(ArgumentError, match="alpha"):
        global_memory(plan, {"x": numbers((8,)), "alpha": numbers((8,))}, False)
