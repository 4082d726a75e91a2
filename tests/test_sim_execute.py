"""Statements in the simulator: asynchronous MMAs, and the fences and waits that their registers need (`fireiron.sim.execute`)."""

import functools
import random
import re
import types

import attrs
import making
import numpy as np
import pytest
from campaign.faults.detectors import outputs, shadow_of
from campaign.faults.kernels import case
from campaign.faults.kind import spots
from engines import WGMMA_SEQUENCES, copied, kernel_of_steps, loaded, numbered, stored, wgmma_kernel
from handmade import access, kernel_of, local
from ringed import TARGET, float16_gemm, inputs_of, is_product, outcome, product, with_changed
from test_wgmma_registers import RINGS

from fireiron import *
from fireiron import ir
from fireiron.errors import SimulationError
from fireiron.executable import INSTRUCTIONS
from fireiron.executable.atomic_add import ATOMIC_ADD
from fireiron.executable.micro_kernel import MicroKernel
from fireiron.executable.thread_move import MOVE
from fireiron.ir.lanes import LaneMap
from fireiron.sim import simulate
from fireiron.sim.execute import _at_threads, _distributed, _element_numbers, _folded, _gathered, _poison, _read, _registers, _unfolded
from fireiron.sim.locations import DistributedPart, Flat, Rows, ThreadGroup
from fireiron.sim.memory import Memory, global_memory
from fireiron.sim.plan import Plan
from fireiron.sim.run import Run
from fireiron.sim.shadow import History
from fireiron.values.expr import FALSE, TRUE, Var, all_of, as_expr, equal, less

FENCED = "add wgmma.fence before the first MMA"
ORDERS = (None, 1)


@functools.cache
def one_product():
    """A tile of one warpgroup in two steps; the first MMA overwrites the accumulators, so no ordinary statement accesses them before."""
    program = product((64, 64, 64), (64, 64), 2)(float16_gemm(64, 64, 128)).program(TARGET)
    return program.ir, *inputs_of(program.spec)


def is_fence(statement):
    return isinstance(statement, ir.Fence) and statement.kind is ir.FenceKind.WGMMA_REGISTERS


def outcome_with_change(change, which=is_fence, number=0):
    """What the simulator reports after a change of one statement, in program order and by warps."""
    kernel, arrays, expected = one_product()
    outcomes = {outcome(with_changed(kernel, which, number, change), arrays, expected, order) for order in ORDERS}
    assert len({text.partition(",")[0] for text in outcomes}) == 1, outcomes
    return outcomes.pop()


def test_the_correct_kernel_passes():
    kernel, arrays, expected = one_product()
    assert [outcome(kernel, arrays, expected, order) for order in ORDERS] == ["right", "right"]


def test_the_first_mma_needs_a_fence():
    message = outcome_with_change(lambda one: ())
    assert "without a preceding wgmma.fence" in message and FENCED in message


def test_a_first_fence_after_the_mma():
    kernel, arrays, expected = one_product()
    (spot, *_) = spots(kernel, ir.Fence, is_fence)
    (following, *rest) = spot.after
    assert any(map(is_product, ir.statements((following,))))
    late = spot.with_list((*spot.before, following, spot.one, *rest))
    assert all(FENCED in outcome(late, arrays, expected, order) for order in ORDERS)


def test_a_proxy_fence_is_not_a_register_fence():
    assert FENCED in outcome_with_change(lambda one: (attrs.evolve(one, kind=ir.FenceKind.ASYNC_PROXY),))


@pytest.mark.parametrize("form, seed", [("ring", 1), ("cluster", 0), ("turns", 0), ("dynamic", 1), ("attention", 0), ("hopper-tasks", 0)])
def test_the_first_fence_of_each_role(form, seed):
    """Each role needs its first fence."""
    drawn = case(form, seed)
    clean = outputs(drawn, drawn.kernel, None)
    assert [*spots(drawn.kernel, ir.Fence, is_fence)]
    without = ir.rewritten(drawn.kernel.body, lambda one: () if is_fence(one) else (one,))
    message, _ = shadow_of(drawn, attrs.evolve(drawn.kernel, body=without), clean, [None])
    assert "fence" in message
    parts = [role.body for one in ir.statements(drawn.kernel.body) if isinstance(one, ir.Roles) for role in one.roles]
    for part in parts or [drawn.kernel.body]:
        fences = [one for one in ir.statements(part) if is_fence(one)]
        if fences:
            body = ir.rewritten(drawn.kernel.body, lambda one, first=fences[0]: () if one is first else (one,))
            message, _ = shadow_of(drawn, attrs.evolve(drawn.kernel, body=body), clean, [None])
            assert "wgmma.fence" in message, message


@pytest.mark.parametrize("name", ["an iteration in flight", "B, swapped"])
def test_an_operand_in_registers(name):
    """Ordinary statements write it before each MMA, which needs a fence after them."""
    strategy, spec = RINGS[name]
    kernel = strategy(spec).program(TARGET).ir
    arrays, expected = inputs_of(spec)
    fences = [*spots(kernel, ir.Fence, is_fence)]
    assert fences and outcome(kernel, arrays, expected) == "right"
    for spot in fences:
        assert re.search("wgmma.fence|no fence", outcome(spot.with_one(), arrays, expected)), str(spot)


# ---------------------------------------------------------------------------------------------- copies in flight

THREAD, BLOCK = Var("thread", 0, 31), Var("block", 0, 2)


def of_threads(body, *buffers, spec, grid=1, **arrays):
    """The result of a hand-made kernel, in lockstep and by warps."""
    kernel = kernel_of(spec, body, *buffers, grid=grid)
    results = [simulate(kernel, arrays, order=order).outputs for order in (None, random.Random(1))]
    for name, array in results[0].items():
        np.testing.assert_array_equal(array, results[1][name])
    return results[0]


def performed(instruction, spec, *accesses, **fields):
    """A statement without guards."""
    pieces = tuple(tuple(making.piece(number) for number in range(len(one.elements()))) for one in accesses)
    return making.execution(instruction, spec, accesses, pieces=pieces, **fields)


def added(source, target, dtype=float32):
    return performed(ATOMIC_ADD, AtomicAdd(1, 1, dtype=dtype)(GL, GL)(Thread), source, attrs.evolve(target, write=True))


@pytest.mark.parametrize("dtype", [float32, int32], ids=str)
@pytest.mark.parametrize("apart", [1, 4, 32])
def test_no_atomic_add_is_lost(dtype, apart):
    """By threads, by blocks, and to previous values; all these concurrent threads add to one element."""
    spec = AtomicAdd(32, 3, dtype=dtype, src=RowMajor, dst=RowMajor)(GL, GL)
    given = np.arange(1, 97).reshape(32, 3).astype(dtype.to_numpy())
    start = np.full((32, 3), 100, dtype.to_numpy())
    body = (added(access("src", (THREAD, BLOCK)), access("dst", (THREAD // apart, BLOCK * 0)), dtype),)
    got = of_threads(body, spec=spec, grid=3, src=given, dst=start)["dst"]
    expected = start.copy()
    for row, column in np.ndindex(32, 3):
        expected[row // apart, 0] += given[row, column]
    np.testing.assert_array_equal(got, expected)


def test_atomic_adds_to_unwritten_elements():
    spec = AtomicAdd(32, 3, dtype=int32, src=RowMajor, dst=RowMajor)(GL, GL)
    body = (added(access("src", (THREAD, BLOCK)), access("dst", (THREAD, BLOCK)), int32),)
    with pytest.raises(SimulationError, match=r"dst.* is read before any write to it"):
        of_threads(body, spec=spec, grid=3, src=np.ones((32, 3), np.int32))


@pytest.mark.parametrize("accumulate", [0, 1, "k"])
def test_fma_overwrites_or_accumulates(accumulate):
    """Element by element: what was there counts where `accumulate` holds, of threads that may differ."""
    spec = MatMul(32, 1, 1, A=RowMajor, B=RowMajor, C=RowMajor)(GL, GL, GL)
    condition = {0: as_expr(0), 1: as_expr(1), "k": less(THREAD, 7)}[accumulate]
    fma = next(one for one in INSTRUCTIONS if one.name == "FFMA")
    places = access("A", (THREAD, 0)), access("B", (0, 0)), access("C", (THREAD, 0), write=True)
    body = (performed(fma, MatMul(1, 1, 1)(GL, GL, GL)(Thread), *places, accumulate=condition),)
    arrays = {
        "A": np.arange(32, dtype=np.float32).reshape(32, 1),
        "B": np.full((1, 1), 3, np.float32),
        "C": np.full((32, 1), 50, np.float32),
    }
    adds = {0: np.zeros(32, bool), 1: np.ones(32, bool), "k": np.arange(32) < 7}[accumulate]
    got = of_threads(body, spec=spec, **arrays)["C"]
    np.testing.assert_array_equal(got[:, 0], np.arange(32) * 3 + np.where(adds, 50, 0))


@pytest.mark.parametrize("target", [float16, int32], ids=str)
def test_a_copy_converts(target):
    """Values of another type are rounded as the type requires."""
    spec = Move(32, dst_dtype=target)(GL, GL)
    move = Move(1, dst_dtype=target)(GL, GL)(Thread)
    given = np.linspace(-2, 2049.3, 32).astype(np.float32)
    body = (performed(MOVE, move, access("src", (THREAD,)), access("dst", (THREAD,), write=True)),)
    got = of_threads(body, spec=spec, src=given)["dst"]
    np.testing.assert_array_equal(got, given.astype(target.to_numpy()))


@pytest.mark.parametrize("dtype", [float32, int32], ids=str)
def test_uninitialized_registers(dtype):
    """Poison is reported: a float when it reaches the result, an integer at once."""
    spec = Move(32, dtype=dtype)(GL, GL)
    registers = local("r", (2,), RF, dtype)
    load = performed(MOVE, Move(1, dtype=dtype)(GL, RF)(Thread), access("src", (THREAD,)), access("r", (0,), write=True))
    for number, right in ((0, True), (1, False)):
        store = performed(MOVE, Move(1, dtype=dtype)(RF, GL)(Thread), access("r", (number,)), access("dst", (THREAD,), write=True))
        given = np.arange(32).astype(dtype.to_numpy())
        if right:
            np.testing.assert_array_equal(of_threads((load, store), registers, spec=spec, src=given)["dst"], given)
        else:
            with pytest.raises(SimulationError, match=r"r\[1\] \(register 1\) is read before any write to it: thread 0 of block 0"):
                of_threads((load, store), registers, spec=spec, src=given)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("name", WGMMA_SEQUENCES)
def test_registers_of_pending_mmas(name, order):
    """Accesses that are legal while MMAs are pending, and accesses that need a fence or a wait."""
    kernel, message = wgmma_kernel(name)
    given = np.arange(1, 33, dtype=np.float32).reshape(32, 1)
    if message is not None:
        with pytest.raises(SimulationError, match=message):
            copied(kernel, given, None if order is None else random.Random(order))
        return
    a = given.astype(np.float64)
    steps = WGMMA_SEQUENCES[name][0].split(", ")
    values = {step[0]: a for step in steps if step.endswith(("=", "<"))}
    for step in steps:
        if "=" in step[1:-1]:
            values[step[0]] = values[step[0]] * ("+" in step) if step[0] in values else 0
            values[step[0]] = values[step[0]] + values[step[-2]] * values[step[-1]]
    stored = [step[1] for step in steps if step.startswith("=")][-1]
    np.testing.assert_array_equal(copied(kernel, given, None if order is None else random.Random(order)), values[stored])


# ---------------------------------------------------------------------------------------------- arrays distributed over threads


@pytest.mark.sampled(1)
@pytest.mark.parametrize("steps", [2, 5])
@pytest.mark.parametrize("moving", ["A", "B", "both"])
@pytest.mark.parametrize("dtype", [float32, float64, int8], ids=str)
def test_accumulation_over_iterations(steps, moving, dtype):
    """Into registers of each thread and block; those that need more room than a cache has, too."""
    options = {"dtype": dtype, "c_dtype": int32 if dtype == int8 else dtype}
    count, threads, grid = 64, 128, 4
    m, k = Var("m", 0, count - 1), Var("k", 0, steps - 1)
    thread, block = Var("thread", 0, threads - 1), Var("block", 0, grid - 1)
    spec = MatMul(count * threads * grid, 1, steps, A=RowMajor, B=RowMajor, C=RowMajor, **options)(GL, GL, GL)
    fma = next(one for one in INSTRUCTIONS if one.name == "FFMA")
    registers = {
        "a": local("a", (count, 1), RF, dtype),
        "b": local("b", (1, count), RF, dtype),
        "c": local("c", (count, count), RF, options["c_dtype"]),
    }
    row = (block * threads + thread) * count
    n = Var("n", 0, count - 1)
    kind = options["c_dtype"]
    load = performed(MOVE, Move(1, 1, dtype=dtype)(GL, RF)(Thread), access("A", (row + m, k)), access("a", (m, 0), write=True))
    factor = performed(MOVE, Move(1, 1, dtype=dtype)(GL, RF)(Thread), access("B", (k, 0)), access("b", (0, n), write=True))
    clear = performed(MOVE, Move(1, 1, dtype=kind)(GL, RF)(Thread), access("C", (row + m, 0)), access("c", (m, n), write=True))
    product = performed(
        fma,
        MatMul(1, 1, 1, **options)(RF, RF, RF)(Thread),
        access("a", (m, 0)),
        access("b", (0, n)),
        access("c", (m, n), write=True),
        accumulate=as_expr(1),
    )
    store = performed(MOVE, Move(1, 1, dtype=kind)(RF, GL)(Thread), access("c", (m, m * 3 % count)), access("C", (row + m, 0), write=True))
    over = lambda one, *loops: one if not loops else making.loop(loops[0], as_expr(loops[0].high + 1), (over(one, *loops[1:]),))
    inner = {"A": (m, n), "B": (n, m), "both": (m, n)}[moving]
    body = (over(clear, m, n), making.loop(k, as_expr(steps), (over(load, m), over(factor, n), over(product, *inner))), over(store, m))
    values = np.random.default_rng(2)
    kernel = kernel_of(spec, body, *registers.values(), threads=threads, grid=grid)
    a = values.integers(-4, 5, (count * threads * grid, steps)).astype(dtype.to_numpy())
    b = values.integers(-4, 5, (steps, 1)).astype(dtype.to_numpy())
    c = values.integers(-4, 5, (count * threads * grid, 1)).astype(kind.to_numpy())
    got = simulate(kernel, {"A": a, "B": b, "C": c}).outputs["C"]
    np.testing.assert_array_equal(got, c + a.astype(kind.to_numpy()) @ b.astype(kind.to_numpy()))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("level, unit", [(Warp, 32), (Warpgroup, 128), (Block, 256)], ids=str)
def test_threads_of_a_unit_must_agree(level, unit):
    """A different place in one thread, a condition that holds for only some threads, a different copy: each is reported; different units
    may differ.
    """
    thread = Var("thread", 0, 255)
    spec = Move(32, dtype=float32)(GL, GL)(level)
    text = MicroKernel("m", "// m\n")

    def outcome_of(source, active=TRUE):
        target = access("dst", (thread // unit * 32,), (32,), write=True)
        kernel = kernel_of(
            Move(512, dtype=float32)(GL, GL),
            (making.execution(text, spec, (access("src", (source,), (32,)), target), active=active),),
            threads=256,
        )
        try:
            return simulate(kernel, {"src": np.arange(512, dtype=np.float32)}).outputs["dst"]
        except SimulationError as error:
            return str(error)

    got = outcome_of(thread // unit * 64)
    for number in range(256 // unit):
        np.testing.assert_array_equal(got[number * 32 : number * 32 + 32], np.arange(number * 64, number * 64 + 32))
    for odd in (0, 1, unit - 1, 255):
        assert f"threads of one {level} specify different operands" in outcome_of(equal(thread, odd) * 7)
        assert f"threads of one {level} specify different operands" in outcome_of(thread * 0, less(0, equal(thread, odd)))
    got = outcome_of(thread * 0, less(thread // unit, 1))
    assert np.isnan(got[32:]).all() and not np.isnan(got[:32]).any()


@pytest.mark.sampled(1)
@pytest.mark.parametrize("threads", [32, 48, 64, 80])
def test_incomplete_units_of_a_block(threads):
    """An instruction of all lanes of a warp is performed by whole warps only."""
    thread = Var("thread", 0, threads - 1)
    straight, permuted = (LaneMap.along((32,), lanes, ((1, 0, 1),)) for lanes in (((32, 0, 1),), ((4, 0, 8), (8, 0, 1))))
    stmt = performed(
        MOVE,
        Move(32, dtype=float32)(GL, GL)(Warp),
        access("src", (thread,)),
        access("dst", (thread,), write=True),
        lane_maps=(straight, permuted),
    )
    kernel = kernel_of(Move(96, dtype=float32)(GL, GL), (stmt,), threads=threads)
    given = np.arange(1, 97, dtype=np.float32)
    for order in (None, random.Random(0)):
        got = simulate(kernel, {"src": given}, order=order).outputs["dst"]
        for first in range(0, threads // 32 * 32, 32):
            np.testing.assert_array_equal(got[first : first + 32], given[first : first + 32].reshape(4, 8).T.ravel())
        assert not np.isin(got[threads // 32 * 32 : threads], given).any()


# ---------------------------------------------------------------------------------------------- tables of lanes and elements

PERMUTED = LaneMap.along((4, 3), ((2, 0, 2), (2, 0, 1)), ((3, 1, 1),))
"""Lane 0, 1, 2, 3 has row 0, 2, 1, 3."""


@pytest.mark.parametrize("seats", [[[0, 1, 2, 3]], [[0, 1, 2, 3], [4, 5, 6, 7]], [[5, 1, 0, 2], [7, 4, 3, 6]], [[4, 5, 6, 7]]])
@pytest.mark.parametrize("loops", [(), (2,), (2, 3)])
def test_tiles_are_gathered_from_lanes_and_distributed_back(seats, loops):
    """Each value at the place given by its map, for each iteration, unit and block; threads without a place get zeros."""
    seats = np.array(seats)
    threads, blocks = 8, 2
    values = np.random.default_rng(0).integers(1, 1000, (3, *loops, threads, blocks))
    tile = _gathered(values, PERMUTED, seats)
    assert tile.shape == (4, 3, *loops, len(seats), blocks)
    row_of = [0, 2, 1, 3]
    for unit, lane, column in np.ndindex(len(seats), 4, 3):
        np.testing.assert_array_equal(tile[row_of[lane], column, ..., unit, :], values[column, ..., seats[unit, lane], :])
    back = _distributed(tile, PERMUTED, seats, values.shape)
    seated = np.isin(np.arange(threads), seats)
    np.testing.assert_array_equal(back, np.where(seated[:, None], values, 0))
    wide = _distributed(tile[..., :1], PERMUTED, seats, values.shape)
    np.testing.assert_array_equal(wide, np.where(seated[:, None], np.broadcast_to(values[..., :1], values.shape), 0))


def test_values_common_to_all_threads_are_gathered_too():
    """An axis of one thread, or of one element, stands for all of them; where no unit is whole there is no tile."""
    seats = np.array([[0, 1, 2, 3], [4, 5, 6, 7]])
    tile = _gathered(np.array([[[7]], [[8]], [[9]]]), PERMUTED, seats)
    np.testing.assert_array_equal(tile, np.broadcast_to(np.array([7, 8, 9])[None, :, None, None], (4, 3, 2, 1)))
    tile = _gathered(np.full((1, 1, 1), 5), PERMUTED, seats)
    np.testing.assert_array_equal(tile, np.full((4, 3, 2, 1), 5))
    none = np.zeros((0, 4), int)
    tile = _gathered(np.ones((3, 2, 1), int), PERMUTED, none)
    assert tile.shape == (4, 3, 0, 1) and not _distributed(tile, PERMUTED, none, (3, 2, 1)).any()
    assert _gathered(np.ones((3, 1, 1), int), PERMUTED, none).shape == (4, 3, 0, 1)


@pytest.mark.parametrize(
    "tile, order, numbers",
    [
        ((2, 3), (0, 1), None),
        ((2, 3), (1, 0), None),
        ((2, 3, 4), (2, 0, 1), None),
        ((2, 3, 4), (1, 2, 0), None),
        ((6,), (0,), [3, 0, 5, 1, 2, 4]),
        ((2, 3), (1, 0), [3, 0, 5, 1, 2, 4]),
    ],
)
@pytest.mark.parametrize("rest", [(1, 1), (2, 4, 3)])
def test_elements_are_unfolded_to_the_dimensions_of_a_view(tile, order, numbers, rest):
    """The first dimension of the access is fastest; `order` gives the dimension of the access for each one of the view."""
    count = int(np.prod(tile))
    operand = types.SimpleNamespace(tile=tile, count=count, order=order, element_order=None if numbers is None else np.array(numbers))
    values = np.random.default_rng(1).integers(0, 1000, (count, *rest))
    result = _unfolded(values, operand)
    assert result.shape == (*(tile[axis] for axis in order), *rest)
    for index in np.ndindex(*tile):
        number = sum(one * int(np.prod(tile[:axis])) for axis, one in enumerate(index))
        number = number if numbers is None else numbers[number]
        np.testing.assert_array_equal(result[tuple(index[axis] for axis in order)], values[number])
    np.testing.assert_array_equal(_folded(result, operand), values)


def test_one_element_is_unfolded_to_dimensions_of_size_one():
    values = np.arange(6).reshape(1, 2, 3)
    operand = types.SimpleNamespace(tile=(1, 1, 1), count=1, order=(2, 0, 1), element_order=None)
    assert _unfolded(values, operand).shape == (1, 1, 1, 2, 3)
    np.testing.assert_array_equal(_folded(_unfolded(values, operand), operand), values)
    nothing = types.SimpleNamespace(tile=(), count=1, order=(), element_order=None)
    np.testing.assert_array_equal(_unfolded(values, nothing), values[0])
    np.testing.assert_array_equal(_folded(values[0], nothing), values)


def test_elements_are_numbered_the_last_dimension_fastest():
    rows, columns = np.arange(2)[:, None], np.arange(3)
    np.testing.assert_array_equal(_element_numbers([rows, columns], (2, 3)), [[0, 1, 2], [3, 4, 5]])
    np.testing.assert_array_equal(_element_numbers([rows, columns, columns * 0 + 1], (9, 3, 2)), [[1, 3, 5], [7, 9, 11]])
    assert _element_numbers([], ()) == 0


@pytest.mark.parametrize(
    "value, threads, expected",
    [
        (np.arange(4)[:, None], 4, [[2], [0]]),
        (np.arange(8).reshape(4, 2), 4, [[4, 5], [0, 1]]),
        (np.arange(3)[None, :], 4, [[0, 1, 2]]),
        (np.arange(1)[:, None], 1, [[0]]),
        (np.arange(4), 4, [0, 1, 2, 3]),
        (7, 4, 7),
    ],
    ids=str,
)
def test_values_of_threads_are_taken_at_some_of_them(value, threads, expected):
    assert np.asarray(_at_threads(value, np.array([2, 0]), threads)).tolist() == expected


@pytest.mark.parametrize("dtype, size", [(np.float32, 4), (np.float16, 2), (np.int32, 4), (np.int8, 1)])
def test_poison_is_one_element_of_its_type(dtype, size):
    poison = _poison(np.dtype(dtype), (np.dtype(dtype).kind == "f" and "float") or "int")
    assert poison.shape == (1,) and poison.dtype == dtype
    assert np.isnan(poison[0]) if poison.dtype.kind == "f" else poison.tobytes() == bytes([0x5A]) * size


def test_skipped_elements_have_the_value_given_by_the_spec():
    """Zero, or the number given, where the mask excludes an element; elements that are read stay unchanged."""
    memory = Memory(np.array([[5.0, 6.0], [7.0, 8.0], [0.0, 0.0], [0.0, 0.0]], np.float32), 0, 2, 2, None)
    rows = Rows(memory, np.array([[1, 2]]))
    np.testing.assert_array_equal(_read(rows, 0), [[[7, 8], [0, 0]]])
    np.testing.assert_array_equal(_read(rows, -np.inf), [[[7, 8], [-np.inf, -np.inf]]])
    flat = Flat(memory, np.array([[[3, 4, 5, 1]]]))
    np.testing.assert_array_equal(_read(flat, 2), [[[8, 2, 2, 6]]])
    assert _read(flat, 2).dtype == np.float32
    part = DistributedPart(memory, np.array([[2]]), np.array([0]), np.array([0]))
    np.testing.assert_array_equal(_read(part, 2), [[[0, 0]]])


# ---------------------------------------------------------------------------------------------- MMAs of several lanes

P = Var("thread", 0, 63)
LANES = (
    LaneMap.along((4, 1), ((4, 0, 1), (8, 0, 0)), ()),
    LaneMap.along((1, 8), ((4, 1, 0), (8, 1, 1)), ()),
    LaneMap.along((4, 8), ((4, 0, 1), (8, 1, 1)), ()),
)
"""An outer product of a column of 4 and a row of 8 by a warp, one accumulator element per lane."""


@pytest.mark.sampled(1)
@pytest.mark.parametrize("adds", ["no", "yes", "warp", "block", "turn", "warp and block"])
def test_warp_mma_overwrites_or_accumulates(adds):
    """Where using the old values may differ by warp, block and iteration."""
    step, block = Var("k", 0, 1), Var("block", 0, 1)
    condition = {
        "no": FALSE,
        "yes": TRUE,
        "warp": less(P // 32, 1),
        "block": less(block, 1),
        "turn": less(0, step),
        "warp and block": all_of([less(P // 32, 1), less(block, 1)]),
    }[adds]
    lane, unit = P % 32, P // 32
    row = step * 16 + block * 8 + unit * 4 + lane % 4
    places = access("A", (row, 0)), access("B", (0, lane // 4)), access("C", (row, lane // 4), write=True)
    product = performed(
        next(one for one in INSTRUCTIONS if one.name == "FFMA"),
        MatMul(4, 8, 1)(GL, GL, GL)(Warp),
        *places,
        accumulate=condition,
        lane_maps=LANES,
    )
    spec = MatMul(32, 8, 1, A=RowMajor, B=RowMajor, C=RowMajor)(GL, GL, GL)
    kernel = kernel_of(spec, (making.loop(step, as_expr(2), (product,)),), threads=64, grid=2)
    a, b = np.arange(1, 33, dtype=np.float32).reshape(32, 1), np.arange(1, 9, dtype=np.float32).reshape(1, 8)
    c = np.arange(256, dtype=np.float32).reshape(32, 8) * 100
    rows = np.arange(32)
    old = {
        "no": rows < 0,
        "yes": rows >= 0,
        "warp": rows % 8 < 4,
        "block": rows % 16 < 8,
        "turn": rows >= 16,
        "warp and block": (rows % 8 < 4) & (rows % 16 < 8),
    }[adds]
    for order in (None, random.Random(0)):
        got = simulate(kernel, {"A": a, "B": b, "C": c}, order=order).outputs["C"]
        np.testing.assert_array_equal(got, a @ b + np.where(old[:, None], c, 0))


# ---------------------------------------------------------------------------------------------- copies in flight


@pytest.mark.parametrize(
    "steps, message",
    [
        ("x<, sent, arrived, =x", None),
        ("x<, sent, =x, arrived", "^x.* is read while an asynchronous copy to it is in flight"),
        ("x<, =x, sent, arrived", "^x.* is read while an asynchronous copy to it is in flight"),
        ("x<, x=, sent, arrived, =x", "^x.* is written while an asynchronous copy to it is in flight"),
        ("x<, arrived, =x, sent", "^x.* is read while an asynchronous copy to it is in flight"),
        ("x<, sent, x<, arrived, =x", "^x.* is written while an asynchronous copy to it is in flight"),
        ("x<, sent, arrived, x<, sent, arrived, =x", None),
    ],
)
@pytest.mark.parametrize("order", ORDERS)
def test_destinations_of_pending_copies_are_not_accessed(steps, message, order):
    given = np.arange(1, 33, dtype=np.float32).reshape(32, 1)
    kernel = kernel_of_steps(*steps.split(", "))
    if message is None:
        np.testing.assert_array_equal(copied(kernel, given, None if order is None else random.Random(order)), given)
    else:
        with pytest.raises(SimulationError, match=message):
            copied(kernel, given, None if order is None else random.Random(order))


def test_the_destination_of_a_pending_copy_is_poison():
    """Until the copy completes its destination is poison, which a thread that does not wait stores."""
    spec = Move(32, 1, dtype=float32, src=RowMajor, dst=RowMajor)(GL, GL)
    buffers = (local("x", (32, 1), SH),)
    copy = performed(MOVE, Move(1, 1, dtype=float32)(GL, SH)(Thread), access("src", (THREAD, 0)), access("x", (THREAD, 0), write=True))
    load = making.async_copy(copy)
    store = performed(MOVE, Move(1, 1, dtype=float32)(SH, GL)(Thread), access("x", (THREAD, 0)), access("dst", (THREAD, 0), write=True))
    given = np.arange(1, 33, dtype=np.float32).reshape(32, 1)
    for steps, right in (((load, making.commit(), making.wait(0), store), True), ((load, making.commit(), making.wait(1), store), False)):
        kernel = attrs.evolve(kernel_of(spec, steps, *buffers), shared_bytes=128)
        got = simulate(kernel, {"src": given}, shadow=False).outputs["dst"]
        assert np.isnan(got).all() if not right else (got == given).all()


# ---------------------------------------------------------------------------------------------- arrays distributed over threads, read by units


def executor_of(*buffers, threads=64, grid=1, batch=(0,), body=()):
    kernel = attrs.evolve(kernel_of(Move(64, 1)(GL, GL), body, *buffers, threads=threads, grid=grid), shared_bytes=4096)
    plan = Plan(kernel, {})
    run = Run(plan, global_memory(plan, {"src": np.zeros((64, 1), np.float32)}, False), History({}), batch, True, False)
    return run.executor, run.group(np.arange(threads))


def distributed_registers(threads=32, shared_by=1):
    """An array in registers: of each warp's columns thread t owns rows 2 (t % 4) and 2 (t % 4) + 1 of column t / 4; with `shared_by`, several threads own the same elements."""
    thread = Var("thread", 0, threads - 1)
    columns = threads // 4 // shared_by
    origin = (thread % 4 * 2, thread // 4 % columns)
    array = local("r", (8, columns), RF, layout=Layout(((2, 4), columns), ((1, 0), 0)))
    return attrs.evolve(array, storage=attrs.evolve(array.storage, extent=as_expr(2)), elements=as_expr(2), register_origin=origin), origin


def through_registers(*statements, threads=32, shared_by=1, puts=True, takes=False, target=(8, 8)):
    """The result of a kernel whose threads write `src` to such an array, which statements of units or threads then use."""
    array, origin = distributed_registers(threads, shared_by)
    move = lambda number: (origin[0] + number, origin[1])
    put = [
        performed(MOVE, Move(1, 1)(GL, RF)(Thread), access("src", move(number)), access("r", move(number), write=True)) for number in (0, 1)
    ]
    take = [
        performed(MOVE, Move(1, 1)(RF, GL)(Thread), access("r", move(number)), access("dst", move(number), write=True)) for number in (0, 1)
    ]
    body = (*(put if puts else ()), *statements, *(take if takes else ()))
    kernel = kernel_of(Move(*target, src=RowMajor, dst=RowMajor)(GL, GL), body, array, threads=threads)
    given = np.arange(1, 1 + int(np.prod(target)), dtype=np.float32).reshape(target)
    results = [simulate(kernel, {"src": given}, order=order).outputs["dst"] for order in (None, random.Random(0))]
    np.testing.assert_array_equal(*results)
    return given, results[0]


TEXT = MicroKernel("m", "// m\n")


def stored_by_units(base, shape, to=None, level=Warp, bounds=None, **fields):
    spec = Move(*shape)(RF, GL)(level)
    return making.execution(TEXT, spec, (access("r", base, shape, bounds), access("dst", to or base, shape, bounds, write=True)), **fields)


@pytest.mark.parametrize("base, shape", [((0, 0), (8, 8)), ((2, 3), (4, 4)), ((7, 0), (1, 8)), ((0, 7), (8, 1)), ((5, 5), (1, 1))])
def test_a_unit_reads_the_registers_of_its_threads(base, shape):
    given, got = through_registers(stored_by_units(base, shape))
    part = tuple(slice(start, start + size) for start, size in zip(base, shape, strict=True))
    expected = np.full((8, 8), np.nan, np.float32)
    expected[part] = given[part]
    np.testing.assert_array_equal(got, expected)


def test_units_read_the_registers_of_their_threads():
    """They do not own elements of another unit."""
    given, got = through_registers(stored_by_units((0, P // 32 * 8), (8, 8)), threads=64, target=(8, 16))
    np.testing.assert_array_equal(got, given)
    given, got = through_registers(stored_by_units((0, 0), (8, 16), level=Block), threads=64, target=(8, 16))
    np.testing.assert_array_equal(got, given)
    with pytest.raises(SimulationError, match=r"no thread of Warp 0 has r\[0, 8\]"):
        through_registers(stored_by_units((0, 8 - P // 32 * 8), (8, 8)), threads=64, target=(8, 16))
    with pytest.raises(SimulationError, match=r"no thread of Warp 1 has r\[3, 4\]"):
        through_registers(stored_by_units((3, P // 32 * 0 + 4), (4, 8)), threads=64, target=(8, 16))
    with pytest.raises(SimulationError, match=r"no thread of Warp 1 has r\[0, 7\]"):
        through_registers(stored_by_units((0, P // 32 * 7), (8, 8)), threads=64, target=(8, 16))


@pytest.mark.parametrize("bounds, rows, columns", [((5, None), 5, 8), ((None, 3), 8, 3), ((8, 8), 8, 8), ((1, 1), 1, 1)])
def test_a_unit_skips_elements_out_of_bounds(bounds, rows, columns):
    given, got = through_registers(stored_by_units((0, 0), (8, 8), bounds=bounds))
    expected = np.full((8, 8), np.nan, np.float32)
    expected[:rows, :columns] = given[:rows, :columns]
    np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("shared_by", [1, 2, 4])
def test_a_unit_writes_to_all_owners_of_an_element(shared_by):
    """And reads it from any of them."""
    columns = 8 // shared_by
    load = making.execution(
        TEXT, Move(8, columns)(GL, RF)(Warp), (access("src", (0, 0), (8, columns)), access("r", (0, 0), (8, columns), write=True))
    )
    give = performed(
        MOVE,
        Move(1, 1)(RF, GL)(Thread),
        access("r", (THREAD % 4 * 2 + 1, THREAD // 4 % columns)),
        access("dst", (THREAD % 4 * 2 + 1, THREAD // 4), write=True),
    )
    given, got = through_registers(load, give, shared_by=shared_by, puts=False)
    expected = np.full((8, 8), np.nan, np.float32)
    expected[1::2] = np.tile(given[1::2, :columns], (1, shared_by))
    np.testing.assert_array_equal(got, expected)
    given, got = through_registers(stored_by_units((0, 0), (8, columns)), shared_by=shared_by)
    np.testing.assert_array_equal(got[:, :columns], given[:, :columns])


def test_a_unit_adds_to_the_registers_of_its_threads():
    """A product by a warp: the sum is started or continued by a condition of the warp itself."""
    thread = Var("thread", 0, 63)
    array, origin = distributed_registers(64)
    spec = MatMul(8, 8, 2)(GL, GL, RF)(Warp)
    column = thread // 32 * 8
    places = access("A", (0, 0), (8, 2)), access("B", (0, column), (2, 8)), access("r", (0, column), (8, 8), write=True)
    product = making.execution(TEXT, spec, places, accumulate=less(thread // 32, 1))
    take = [
        performed(
            MOVE,
            Move(1, 1)(RF, GL)(Thread),
            access("r", (origin[0] + number, origin[1])),
            access("C", (origin[0] + number, origin[1]), write=True),
        )
        for number in (0, 1)
    ]
    put = [
        performed(
            MOVE,
            Move(1, 1)(GL, RF)(Thread),
            access("C", (origin[0] + number, origin[1])),
            access("r", (origin[0] + number, origin[1]), write=True),
        )
        for number in (0, 1)
    ]
    kernel = kernel_of(MatMul(8, 16, 2, A=RowMajor, B=RowMajor, C=RowMajor)(GL, GL, GL), (*put, product, *take), array, threads=64)
    a, b = np.arange(1, 17, dtype=np.float32).reshape(8, 2), np.arange(1, 33, dtype=np.float32).reshape(2, 16)
    c = np.arange(128, dtype=np.float32).reshape(8, 16) * 1000
    for order in (None, random.Random(0)):
        got = simulate(kernel, {"A": a, "B": b, "C": c}, order=order).outputs["C"]
        np.testing.assert_array_equal(got, a @ b + np.where(np.arange(16) < 8, c, 0))


def test_registers_that_a_unit_reads_must_be_written():
    with pytest.raises(SimulationError, match=r"r\[0, 0\] .*is read before any write to it"):
        through_registers(stored_by_units((0, 0), (8, 8)), puts=False)


# ---------------------------------------------------------------------------------------------- the statement's own memory


@pytest.mark.parametrize("dtype, watched", [(float32, False), (int32, True)], ids=str)
def test_temporary_memory_of_a_statement_holds_nothing_afterwards(dtype, watched):
    """Its own bytes hold only poison afterwards, and none of them counts as written; neighbors stay unchanged."""
    temporary, other = (attrs.evolve(local(name, (8,), SH, dtype), offset=offset) for name, offset in (("x", 16), ("y", 0)))
    executor, group = executor_of(temporary, attrs.evolve(other, elements=as_expr(24)))
    memory = executor.batch.memories["x"]
    assert (memory.first, memory.rows, memory.defined is not None) == (4, 8, watched)
    memory.data[:] = 3
    if watched:
        memory.defined[:] = True
        memory.complete = True
    operand = types.SimpleNamespace(buffer=temporary, checked=False, write=True, adds=False, spread=1)
    site = types.SimpleNamespace(statement=types.SimpleNamespace(instruction=MOVE))
    executor._scratch(site, operand, {}, group, group)
    rest = np.ones(len(memory.data), bool)
    rest[4:12] = False
    assert (memory.data[rest] == 3).all()
    inside = memory.data[4:12]
    assert np.isnan(inside).all() if dtype == float32 else (inside == 0x5A5A5A5A).all()
    if watched:
        assert not memory.complete and not memory.defined[4:12].any() and memory.defined[rest].all()


# ---------------------------------------------------------------------------------------------- counts, stages, large MMAs


def counted(order=None, **options):
    body = [performed(MOVE, Move(1)(GL, GL)(Thread), access("src", (THREAD,)), access("dst", (THREAD,), write=True))]
    if options.get("collective"):
        body.append(making.execution(TEXT, Move(32)(GL, GL)(Warp), (access("src", (0,), (32,)), access("dst", (32,), (32,), write=True))))
    if steps := options.get("turns"):
        step = Var("k", 0, steps - 1)
        body.append(
            making.loop(
                step,
                as_expr(steps),
                (
                    making.execution(
                        TEXT, Move(32)(GL, GL)(Warp), (access("src", (0,), (32,)), access("dst", (step * 32 + 64,), (32,), write=True))
                    ),
                ),
            )
        )
    return simulate(kernel_of(Move(512)(GL, GL), body), {"src": np.zeros(512, np.float32)}, order=order).statements


def test_statements_are_counted_as_often_as_they_are_executed():
    """One by all threads, one by units, and one in each iteration of a loop."""
    assert counted() == 1
    assert counted(collective=True) == 2
    assert counted(turns=3) == 4


def test_large_mmas_of_many_blocks():
    """All elements of a statement are of threads and blocks, none of it of a loop."""
    threads, grid = 256, 256
    thread, block = Var("thread", 0, threads - 1), Var("block", 0, grid - 1)
    row = block * threads + thread
    c = local("c", (1, 1), RF)
    fma = next(one for one in INSTRUCTIONS if one.name == "FFMA")
    whole = MatMul(threads * grid, 1, 1, A=RowMajor, B=RowMajor, C=RowMajor)(GL, GL, GL)
    clear = performed(MOVE, Move(1, 1)(GL, RF)(Thread), access("C", (row, 0)), access("c", (0, 0), write=True))
    spec = MatMul(1, 1, 1)(GL, GL, RF)(Thread)
    product = performed(fma, spec, access("A", (row, 0)), access("B", (0, 0)), access("c", (0, 0), write=True), accumulate=TRUE)
    store = performed(MOVE, Move(1, 1)(RF, GL)(Thread), access("c", (0, 0)), access("C", (row, 0), write=True))
    kernel = kernel_of(whole, (clear, product, store), c, threads=threads, grid=grid)
    a = np.arange(threads * grid, dtype=np.float32).reshape(-1, 1)
    got = simulate(kernel, {"A": a, "B": np.full((1, 1), 2, np.float32), "C": a + 1}).outputs["C"]
    np.testing.assert_array_equal(got, 3 * a + 1)


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_warp_mma_over_iterations(steps):
    """The first of them starts a new sum, each other one adds to the previous values."""
    step, lane = Var("k", 0, steps - 1), THREAD
    places = access("A", (lane % 4, step)), access("B", (step, lane // 4)), access("C", (lane % 4, lane // 4), write=True)
    fma = next(one for one in INSTRUCTIONS if one.name == "FFMA")
    product = performed(fma, MatMul(4, 8, 1)(GL, GL, GL)(Warp), *places, accumulate=less(0, step), lane_maps=LANES)
    spec = MatMul(4, 8, steps, A=RowMajor, B=RowMajor, C=RowMajor)(GL, GL, GL)
    kernel = kernel_of(spec, (making.loop(step, as_expr(steps), (product,)),))
    a, b = np.arange(1, 4 * steps + 1, dtype=np.float32).reshape(4, steps), np.arange(1, 8 * steps + 1, dtype=np.float32).reshape(steps, 8)
    for order in (None, random.Random(0)):
        got = simulate(kernel, {"A": a, "B": b, "C": np.full((4, 8), 99, np.float32)}, order=order).outputs["C"]
        np.testing.assert_array_equal(got, a @ b)


def test_threads_of_a_unit_use_the_same_stage():
    """In a buffer with several stages."""
    x = attrs.evolve(local("x", (32,), SH, copies=2), offset=0)
    move = lambda copy: (
        performed(
            MOVE, Move(1)(GL, SH)(Thread), access("src", (THREAD,)), attrs.evolve(access("x", (THREAD,), write=True), copy=as_expr(1))
        ),
        making.barrier(ir.WARP_SCOPE),
        making.execution(
            TEXT,
            Move(32)(SH, GL)(Warp),
            (attrs.evolve(access("x", (0,), (32,)), copy=as_expr(copy)), access("dst", (0,), (32,), write=True)),
        ),
    )
    given = np.arange(32, dtype=np.float32)
    kernel = lambda copy: attrs.evolve(kernel_of(Move(32)(GL, GL), move(copy), x), shared_bytes=256)
    np.testing.assert_array_equal(simulate(kernel(1), {"src": given}).outputs["dst"], given)
    with pytest.raises(SimulationError, match="threads of one Warp specify different operands"):
        simulate(kernel(less(0, THREAD)), {"src": given})


@pytest.mark.parametrize("apart", [True, False])
def test_threads_with_temporary_memory_of_a_statement_synchronize_as_others_do(apart):
    """Each thread by itself writes one element: their own, or the first."""
    spec = Move(1)(GL, GL)(Thread)
    place = THREAD if apart else as_expr(0)
    statement = making.execution(
        TEXT, spec, (access("src", (THREAD,)), access("dst", (place,), write=True)), scratch=local("t", (8,), SH).tensor
    )
    kernel = attrs.evolve(kernel_of(Move(32)(GL, GL), (statement,), local("t", (8,), SH)), shared_bytes=256)
    given = np.arange(32, dtype=np.float32)
    if apart:
        np.testing.assert_array_equal(simulate(kernel, {"src": given}).outputs["dst"], given)
    else:
        with pytest.raises(SimulationError, match="race on dst"):
            simulate(kernel, {"src": given})


def test_loads_of_integers_count_as_written():
    """Values that are tracked from the start are defined once the load completes."""
    tensor_map = making.tensor_map("src_map", "src", (1, 0), (32, 64), 128)
    given = numbered((64, 32), int32)
    np.testing.assert_array_equal(copied(loaded(tensor_map, (64, 32), (64, 32), dtype=int32), given), given)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("barrier", [True, False])
@pytest.mark.parametrize("thread", [0, 5, 31])
def test_any_thread_of_a_unit_may_read_the_data_of_the_unit(thread, barrier, order):
    """So that even the first of them writes there only after a barrier."""
    x = attrs.evolve(local("x", (32,), SH), offset=0)
    put = performed(MOVE, Move(1)(GL, SH)(Thread), access("src", (THREAD,)), access("x", (THREAD,), write=True))
    text = making.execution(TEXT, Move(32)(SH, GL)(Warp), (access("x", (0,), (32,)), access("dst", (0,), (32,), write=True)))
    again = performed(
        MOVE, Move(1)(GL, SH)(Thread), access("src", (THREAD,)), access("x", (THREAD,), write=True), active=equal(THREAD, thread)
    )
    between = (making.barrier(ir.WARP_SCOPE),)
    kernel = attrs.evolve(kernel_of(Move(32)(GL, GL), (put, *between, text, *(between if barrier else ()), again), x), shared_bytes=128)
    given = np.arange(32, dtype=np.float32)
    options = {"order": None if order is None else random.Random(order)}
    if barrier:
        np.testing.assert_array_equal(simulate(kernel, {"src": given}, **options).outputs["dst"], given)
    else:
        with pytest.raises(SimulationError, match="race on x"):
            simulate(kernel, {"src": given}, **options)


@pytest.mark.parametrize("first", [0, 4, 7])
def test_elements_out_of_bounds_need_no_owner(first):
    """Only columns below 8 exist."""
    given, got = through_registers(stored_by_units((0, first), (8, 8), bounds=(None, 8)))
    expected = np.full((8, 8), np.nan, np.float32)
    expected[:, first:] = given[:, first:]
    np.testing.assert_array_equal(got, expected)
    with pytest.raises(SimulationError, match=r"no thread of Warp 0 has r\[0, 8\]|outside of the tensor"):
        through_registers(stored_by_units((0, first + 1), (8, 8), bounds=(None, 9)), target=(8, 16))


@pytest.mark.parametrize("adds", [True, False])
@pytest.mark.parametrize("given", [True, False])
def test_elements_that_a_unit_adds_to_count_as_written(adds, given):
    spec = MatMul(8, 8, 2, dtype=int32, A=RowMajor, B=RowMajor, C=RowMajor)(GL, GL, GL)
    places = access("A", (0, 0), (8, 2)), access("B", (0, 0), (2, 8)), access("C", (0, 0), (8, 8), write=True)
    product = making.execution(TEXT, spec(Warp), places, accumulate=as_expr(int(adds)))
    kernel = kernel_of(spec, (product,))
    a, b = np.arange(16, dtype=np.int32).reshape(8, 2), np.arange(16, dtype=np.int32).reshape(2, 8)
    arrays = {"A": a, "B": b, **({"C": np.full((8, 8), 100, np.int32)} if given else {})}
    if adds and not given:
        with pytest.raises(SimulationError, match=r"C\[0, 0\] .*is read before any write to it"):
            simulate(kernel, arrays)
    else:
        np.testing.assert_array_equal(simulate(kernel, arrays).outputs["C"], a @ b + 100 * adds)


@pytest.mark.parametrize("order", ORDERS)
def test_tma_stores_need_a_wait(order):
    kernel = stored(making.tensor_map("dst_map", "dst", (1, 0), (64, 64), 128))
    given, options = numbered((64, 64)), None if order is None else random.Random(order)
    np.testing.assert_array_equal(copied(kernel, given, options), given)
    with pytest.raises(SimulationError, match="a TMA store may read shared memory after the block exits"):
        copied(attrs.evolve(kernel, body=kernel.body[:-1]), given, options)


@pytest.mark.parametrize(
    ("origin", "threads", "expected"),
    [
        ((THREAD % 4 * 2, THREAD // 4), range(32), [[(t % 4 * 2 + r) * 8 + t // 4 for t in range(32)] for r in (0, 1)]),
        ((THREAD % 4 * 2, THREAD // 4), range(8, 16), [[(t % 4 * 2 + r) * 8 + t // 4 for t in range(8, 16)] for r in (0, 1)]),
        ((as_expr(4), as_expr(3)), range(4), [[35] * 4, [43] * 4]),
        ((THREAD % 4 * 2, as_expr(3)), range(4), [[3, 19, 35, 51], [11, 27, 43, 59]]),
        ((THREAD * 2, as_expr(0)), range(5), [[0, 16, 32, 48, None], [8, 24, 40, 56, None]]),
        ((THREAD * 2 - 1, as_expr(0)), range(5), [[None, 8, 24, 40, 56], [0, 16, 32, 48, None]]),
        ((as_expr(0), THREAD * 4), range(4), [[0, 4, None, None], [8, 12, None, None]]),
    ],
    ids=str,
)
def test_elements_in_each_register_of_each_thread(origin, threads, expected):
    """The number of the element, the last dimension fastest; none if it is outside the buffer."""
    array, _ = distributed_registers()
    array = attrs.evolve(array, register_origin=tuple(map(as_expr, origin)))
    operand = types.SimpleNamespace(elements=2, sizes=(8, 8), buffer=array)
    group = ThreadGroup(np.array(list(threads)), {})
    env = {"thread": group.threads[:, None], "block": np.arange(3)[None, :]}
    numbers, valid = _registers(operand, env, group)
    assert numbers.shape == valid.shape == (2, len(group.threads))
    assert np.where(valid, numbers, None).tolist() == expected
