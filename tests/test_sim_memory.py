"""Memory of the simulator: poison, written elements, guard zones around arrays, and arguments that do not match (`fireiron.sim.memory`)."""

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
    kernel = kernel_of(Move(*shape, dtype=dtype, src=layout, dst=dst or layout)(GL, GL), (), *buffers, threads=threads, symbols=symbols)
    return Plan(making.evolved(kernel, **{"shared_bytes": 4096, **fields}), values or {})


def numbers(shape=(8, 4), dtype=np.float32):
    return np.arange(1, 1 + int(np.prod(shape))).reshape(shape).astype(dtype)


# ---------------------------------------------------------------------------------------------- written elements


def test_completeness_is_tested_at_powers_of_two():
    """Whether all is written is tested at the first, second, fourth and eighth update only."""
    memory = Memory(np.zeros((4, 1)), 1, 2, 3, np.zeros((4, 1), bool))
    seen = []
    for _ in range(9):
        memory.defined[1:3] = True
        memory.update_complete()
        seen.append(memory.complete)
        memory.complete = False
    assert seen == [True, True, False, True, False, False, False, True, False]


@pytest.mark.parametrize("missing, complete", [(0, True), (1, False), (2, False), (3, True)])
def test_completeness_depends_on_its_rows_only(missing, complete):
    memory = Memory(np.zeros((4, 2)), 1, 2, 3, np.ones((4, 2), bool))
    memory.defined[missing, 1] = False
    memory.update_complete()
    assert memory.complete == complete


def test_untracked_memory_is_complete():
    memory = Memory(np.zeros((4, 2)), 0, 2, 2, None)
    memory.update_complete()
    assert memory.complete and (memory.width, memory.flat.size) == (2, 8)


# ---------------------------------------------------------------------------------------------- registers


@pytest.mark.parametrize(
    "dtype, track_all, tracked", [(float32, False, False), (float32, True, True), (int32, False, True), (float16, False, False)], ids=str
)
def test_registers_are_poison_until_they_are_written(dtype, track_all, tracked):
    """A row per number and thread, then a row of zeros and one for masked writes."""
    plan = planned()
    memory = registers(plan, local("r", (3,), RF, dtype), 2, track_all)
    assert (memory.first, memory.rows, memory.zero, memory.width, memory.complete) == (0, 96, 96, 2, not tracked)
    assert memory.data.shape == (98, 2) and not memory.data[96].any()
    fresh = memory.data[:96]
    assert np.isnan(fresh).all() if dtype.kind == "float" else (fresh == 0x5A5A5A5A).all()
    if tracked:
        assert not memory.defined[:96].any() and memory.defined[96:].all()


def test_stages_of_registers():
    assert registers(planned(), local("r", (3,), RF, copies=2), 1, False).rows == 6 * 32


def test_coordinates_occupy_no_memory():
    memory = coordinate_memory(COUNTS)
    assert (memory.first, memory.rows, memory.zero, memory.complete, memory.data.dtype) == (0, 0, 0, True, np.int32)


# ---------------------------------------------------------------------------------------------- shared memory


def shared(name, size, offset, dtype=float32, **fields):
    return attrs.evolve(local(name, (size,), SH, dtype, **fields), offset=offset)


def test_overlapping_buffers_share_bytes():
    """In each block of a batch; buffers that do not overlap are separate."""
    plan = planned((8, 4), float32, shared("a", 8, 0), shared("b", 8, 16), shared("c", 8, 64))
    for width in (1, 3):
        memories = shared_memory(plan, width, False)
        a, b, c = (memories[name] for name in "abc")
        assert a.data.base is b.data.base and a.data.base is not c.data.base
        assert [(memory.first, memory.rows) for memory in (a, b, c)] == [(0, 8), (4, 8), (0, 8)]
        assert np.isnan(a.data[:12]).all() and not a.data[a.zero].any() and a.zero >= 12
        b.data[b.first] = 7
        assert (a.data[4] == 7).all() and np.isnan(a.data[3]).all() and np.isnan(c.data[0]).all()
        assert a.data.shape == (a.zero + 8, width)


@pytest.mark.parametrize(
    "kinds, track_all",
    [((float32, int32), False), ((int32, int32), False), ((float32, float32), True), ((float16, float32), False)],
    ids=str,
)
def test_poison_of_shared_memory(kinds, track_all):
    """Bytes that some float has are NaN to it; integers are tracked, and floats if requested."""
    plan = planned((8, 4), float32, shared("a", 8, 0, kinds[0]), shared("b", 8, 8, kinds[1]))
    memories = shared_memory(plan, 2, track_all)
    for name, dtype in zip("ab", kinds, strict=True):
        memory = memories[name]
        assert memory.first * dtype.bytes == (0 if name == "a" else 8)
        fresh = memory.data[memory.first : memory.first + 8]
        if dtype.kind == "float":
            assert np.isnan(fresh).all()
        elif kinds == (int32, int32):
            assert (fresh == 0x5A5A5A5A).all()
        tracked = track_all or dtype.kind == "int"
        assert memory.complete == (not tracked)
        if tracked:
            assert not memory.defined[: memory.zero].any() and memory.defined[memory.zero :].all()
        assert not memory.data[memory.zero].any() and memory.data.shape[0] >= memory.zero + 2


@pytest.mark.parametrize("end", [4, 16, 20, 36, 60])
def test_rows_after_the_buffers_are_past_all_of_them(end):
    """They are whole elements of each type: zeros, and a row for masked writes."""
    plan = planned((8, 4), float32, shared("a", end // 4, 0), shared("b", end // 2, 0, float16))
    for name, width in (("a", 2), ("b", 1)):
        memory = shared_memory(plan, width, False)[name]
        assert memory.zero >= memory.rows and memory.data.shape[0] >= memory.zero + 2
        assert not memory.data[memory.zero : memory.zero + 2].any()


def use(*names):
    """Threads that write an element of each of these buffers."""
    spec = Move(1, dtype=float32)(GL, SH)(Thread)
    for name in names:
        yield making.execution(
            MOVE, spec, (access("src", (THREAD,)), access(name, (THREAD,), write=True)), pieces=((making.piece(0),),) * 2
        )


@pytest.mark.parametrize(
    "offset, size, right",
    [(0, 256, True), (128, 256, True), (132, 256, False), (128, 255, False), (-4, 256, False), (0, 128, True), (0, 127, False)],
)
def test_used_buffers_are_inside_the_shared_memory_of_a_block(offset, size, right):
    """An unused buffer may have any offset."""
    kernel = kernel_of(Move(32, dtype=float32)(GL, GL), tuple(use("x")), shared("x", 32, offset), shared("y", 32, 4000))
    kernel = attrs.evolve(kernel, shared_bytes=size)
    given = {"src": np.zeros(32, np.float32)}
    if right:
        simulate(kernel, given)
    else:
        with pytest.raises(SimulationError, match=rf"x occupies bytes {offset} ... {offset + 127} of shared memory") as caught:
            simulate(kernel, given)
        assert caught.value.legal == f"0 ... {size - 1}"


# ---------------------------------------------------------------------------------------------- arrays


@pytest.mark.parametrize("layout", [ColMajor, RowMajor, ColMajor(ld=11), RowMajor(ld=7)], ids=str)
@pytest.mark.parametrize("dtype", [float32, float16, int32], ids=str)
def test_arrays_are_stored_by_their_layout(layout, dtype):
    """Padding is poison; guard zones are before and after the array, then a zero."""
    plan, given = planned(layout=layout, dtype=dtype), numbers(dtype=dtype.to_numpy())
    memory = Global(plan, plan.buffers["src"], given, False)
    np.testing.assert_array_equal(memory.array, given)
    steps = {str(ColMajor): (1, 8), str(RowMajor): (4, 1)}.get(str(layout)) or ((1, 11) if "11" in str(layout) else (7, 1))
    for index in np.ndindex(8, 4):
        assert memory.flat[memory.guard + index[0] * steps[0] + index[1] * steps[1]] == given[index]
    assert memory.guard >= 64 and memory.flat[memory.zero] == 0 and memory.zero - memory.end == memory.guard
    unused = np.ones(memory.flat.size, bool)
    unused[memory.places], unused[memory.zero] = False, False
    rest = memory.flat[unused]
    assert np.isnan(rest).all() if dtype.kind == "float" else (rest == 0x5A5A5A5A).all()
    assert memory.end - memory.guard == plan.number(plan.buffers["src"].elements) and memory.flat.size == memory.zero + 2
    assert (memory.memory.first, memory.memory.rows, memory.memory.zero) == (memory.guard, memory.end - memory.guard, memory.zero)


@pytest.mark.parametrize(
    "shape, guard", [((8, 4), 64), ((2, 400), 400), ((300, 300), 300), ((1, 90), 90), ((65,), 64), ((5, 100), 100), ((2, 40000), 1 << 14)]
)
def test_guard_zone_covers_one_row(shape, guard):
    """It covers the largest stride of the array, at least 64 and at most 2 ** 14 elements."""
    plan = planned(shape)
    memory = Global(plan, plan.buffers["src"], None, False)
    assert memory.guard == guard


@pytest.mark.parametrize(
    "given, track_all, dtype, tracked",
    [
        (True, True, float32, False),
        (False, True, float32, True),
        (False, False, float32, False),
        (False, False, int32, True),
        (True, False, int32, False),
    ],
    ids=str,
)
def test_given_arrays_are_complete(given, track_all, dtype, tracked):
    plan = planned(dtype=dtype)
    memory = Global(plan, plan.buffers["dst"], numbers(dtype=dtype.to_numpy()) if given else None, track_all)
    assert memory.memory.complete == (not tracked)


def test_elements_that_share_an_address_are_equal():
    """With a stride of zero all elements at one address must be equal, including equal NaN."""
    plan = planned((8, 4))
    src = plan.buffers["src"]
    flat = attrs.evolve(src, storage=attrs.evolve(src.storage, layout=Layout((8, 4), (1, 0))), elements=as_expr(8))
    equal = np.broadcast_to(np.array([1, 2, 3, np.nan, 5, 6, 7, -0.0], np.float32)[:, None], (8, 4))
    memory = Global(plan, flat, equal, False)
    np.testing.assert_array_equal(memory.array, equal)
    for other in (9, 0.0):
        differs = equal.copy()
        differs[7, 1] = other
        with pytest.raises(ArgumentError, match="src: elements that share an address differ"):
            Global(plan, flat, differs, False)


@pytest.mark.parametrize(
    "number, right",
    [(0, True), (31, True), (32, False), (-1, False), ([3, 31], True), ([3, 32], False), ([-1, 40], False), ([0, -1], False)],
)
def test_elements_of_integer_arrays(number, right):
    """As a kernel reads trip counts: in bounds only, negative values as zero."""
    plan, given = planned((32,), int32), np.arange(-3, 29, dtype=np.int32)
    memory = Global(plan, plan.buffers["src"], given, False)
    if right:
        np.testing.assert_array_equal(memory.element(np.array(number)), np.maximum(given[np.array(number)], 0))
    else:
        wrong = max(one for one in np.ravel(number) if not 0 <= one < 32)
        with pytest.raises(SimulationError, match=f"src: element {wrong} is read, but the array has 32 elements"):
            memory.element(np.array(number))


@pytest.mark.parametrize("address", [-64, -1, 8, 9, 10, 19, 43, 44, 107])
@pytest.mark.parametrize("dtype", [float32, int32, float16], ids=str)
def test_writes_out_of_bounds_are_reported(address, dtype):
    """Before, after and between rows; the message names the first address and the tensor."""
    plan = planned(layout=ColMajor(ld=11), dtype=dtype)
    memory = Global(plan, plan.buffers["dst"], numbers(dtype=dtype.to_numpy()), False)
    memory.check_guards()
    memory.flat[memory.guard : memory.guard + 8] = 1
    memory.flat[memory.zero :] = 3
    memory.check_guards()
    if address in (44, 107) and memory.end - memory.guard < 44:
        address -= 3
    memory.flat[memory.guard + address] = 5
    if address == 9:
        memory.flat[memory.guard + 10] = 5
    with pytest.raises(SimulationError, match=rf"dst: address {address}, outside of the tensor, was written") as caught:
        memory.check_guards()
    assert caught.value.legal == "elements of the 8 x 4 tensor"


def test_one_changed_byte_is_reported():
    plan = planned((8,))
    memory = Global(plan, plan.buffers["dst"], None, False)
    for byte in (0, 3):
        memory.bytes[(memory.guard - 2) * 4 + byte] = 0
        with pytest.raises(SimulationError, match="address -2, outside"):
            memory.check_guards()
        memory.bytes[(memory.guard - 2) * 4 + byte] = 0xFF


# ---------------------------------------------------------------------------------------------- arguments


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
def test_arguments_that_do_not_match(arrays, message, got):
    plan = planned((8, 4), float32, local("local", (4,), RF))
    with pytest.raises(ArgumentError, match=message) as caught:
        global_memory(plan, arrays, False)
    assert caught.value.got == got


def test_arguments_that_match():
    """A missing output is poison; an output with atomic adds starts at zero, even if given."""
    plan = planned()
    memories = global_memory(plan, {"src": numbers()}, False)
    assert {*memories} == {"src", "dst"} and np.isnan(memories["dst"].array).all()
    np.testing.assert_array_equal(global_memory(plan, {"src": numbers(), "dst": numbers()}, False)["dst"].array, numbers())
    zeroed = planned(zeroed=("dst",))
    for arrays in ({"src": numbers()}, {"src": numbers(), "dst": numbers()}):
        memories = global_memory(zeroed, arrays, False)
        assert not memories["dst"].array.any() and memories["src"].array.all()
    with pytest.raises(ArgumentError, match="dst: wrong shape"):
        global_memory(zeroed, {"src": numbers(), "dst": numbers((4, 4))}, False)


def test_booleans_are_bytes():
    """As inputs; outputs need their exact type."""
    plan, given = planned(dtype=uint8), np.eye(8, 4).astype(bool)
    np.testing.assert_array_equal(global_memory(plan, {"src": given}, False)["src"].array, given.astype(np.uint8))
    with pytest.raises(ArgumentError, match="dst: wrong element type"):
        global_memory(plan, {"src": given, "dst": given}, False)


@pytest.mark.parametrize("order, least", [(ColMajor, 8), (RowMajor, 4)])
def test_leading_dimension_is_at_least_a_row_or_column(order, least):
    ld = Var("ld", 1, 64)
    for value in (least - 1, least, least + 3):
        plan = planned(layout=order(ld=ld), dst=ColMajor, symbols=(ld,), values={"ld": value})
        if value >= least:
            np.testing.assert_array_equal(global_memory(plan, {"src": numbers()}, False)["src"].array, numbers())
        else:
            with pytest.raises(ArgumentError, match="src: the leading dimension is less than a row or column") as caught:
                global_memory(plan, {"src": numbers()}, False)
            assert (caught.value.got, caught.value.legal) == (value, f"at least {least}")


def test_scalars_are_passed_by_value():
    """A zero-dimensional array or a Python number, but not an array with dimensions."""
    definition = Fused(name="scaled", dims="m", operands={"x": "m", "alpha": "", "y": "m"}, body={"y": "y[m] = alpha * x[m]"})
    spec = definition.tile(m=1).to(Block).done("// m\n").start(m=8, dtype=float32)
    plan = Plan(kernel_of(lambda level: spec, ()), {})
    for given in (3, 3.0, np.float32(3), np.array(3, np.float32)):
        arrays = global_memory(plan, {"x": numbers((8,)), "alpha": given}, False)
        assert arrays["alpha"].array == 3 and arrays["alpha"].array.shape == ()
    with pytest.raises(ArgumentError, match="alpha"):
        global_memory(plan, {"x": numbers((8,)), "alpha": numbers((8,))}, False)
