"""Statements in the simulator: products of an engine, and the registers that they want fenced and waited for (`fireiron.sim.execute`)."""

import functools
import random
import re

import attrs
import numpy as np
import pytest
from campaign.faults.detectors import outputs, shadow_of
from campaign.faults.kernels import case
from campaign.faults.kind import spots
from engines import OF_PRODUCTS, copied, of_products
from handmade import access, kernel_of, local
from ringed import TARGET, halves, inputs_of, is_product, outcome, product, with_changed
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
from fireiron.values.expr import TRUE, Var, as_expr, equal, less

FENCED = "a fence in front of the first product"
ORDERS = (None, 1)


@functools.cache
def one_product():
    """A tile by one warpgroup in two steps, of which the first begins anew: no ordinary statement touches its registers before."""
    program = product((64, 64, 64), (64, 64), 2)(halves(64, 64, 128)).program(TARGET)
    return program.ir, *inputs_of(program.spec)


def is_fence(statement):
    return isinstance(statement, ir.Fence) and statement.reach is ir.Reach.REGISTERS


def said(change, which=is_fence, number=0):
    """What the simulator says of a change of one statement, in step and by warps."""
    kernel, arrays, expected = one_product()
    found = {outcome(with_changed(kernel, which, number, change), arrays, expected, order) for order in ORDERS}
    assert len({text.partition(",")[0] for text in found}) == 1, found
    return found.pop()


def test_it_is_right():
    kernel, arrays, expected = one_product()
    assert [outcome(kernel, arrays, expected, order) for order in ORDERS] == ["right", "right"]


def test_the_first_product_wants_a_fence_whoever_touched_its_registers():
    message = said(lambda one: ())
    assert "with no fence of registers before it" in message and FENCED in message


def test_the_first_fence_behind_its_product():
    kernel, arrays, expected = one_product()
    (spot, *_) = spots(kernel, ir.Fence, is_fence)
    (behind, *rest) = spot.behind
    assert any(map(is_product, ir.statements((behind,))))
    late = spot.with_list((*spot.before, behind, spot.one, *rest))
    assert all(FENCED in outcome(late, arrays, expected, order) for order in ORDERS)


def test_a_fence_of_the_proxy_is_none_of_registers():
    assert FENCED in said(lambda one: (attrs.evolve(one, reach=ir.Reach.PROXY),))


@pytest.mark.parametrize("form, seed", [("ring", 1), ("cluster", 0), ("turns", 0), ("dynamic", 1), ("attention", 0), ("hopper-tasks", 0)])
def test_the_first_fence_of_each_role(form, seed):
    """Of a kernel in which all products are fenced no role does without its first one."""
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
            assert "fence of registers" in message, message


@pytest.mark.parametrize("name", ["a turn in flight", "B, swapped"])
def test_a_factor_in_registers(name):
    """It is written by ordinary statements in front of each product, which wants a fence behind them."""
    strategy, spec = RINGS[name]
    kernel = strategy(spec).program(TARGET).ir
    arrays, expected = inputs_of(spec)
    fences = [*spots(kernel, ir.Fence, is_fence)]
    assert fences and outcome(kernel, arrays, expected) == "right"
    for spot in fences:
        assert re.search("fence of registers|no fence", outcome(spot.with_one(), arrays, expected)), str(spot)


# ---------------------------------------------------------------------------------------------- additions, sums and poison

THREAD, BLOCK = Var("thread", 0, 31), Var("block", 0, 2)


def of_threads(body, *buffers, spec, grid=1, **arrays):
    """What a kernel by hand computes, in step and by warps."""
    kernel = kernel_of(spec, body, *buffers, grid=grid)
    found = [simulate(kernel, arrays, order=order).outputs for order in (None, random.Random(1))]
    for name, array in found[0].items():
        np.testing.assert_array_equal(array, found[1][name])
    return found[0]


def performed(instruction, spec, *accesses, **fields):
    """A statement without guards."""
    pieces = tuple(tuple(ir.Piece(number) for number in range(len(one.elements()))) for one in accesses)
    return ir.Exec(instruction, spec, accesses, pieces=pieces, **fields)


def added(source, target, dtype=float32):
    return performed(ATOMIC_ADD, AtomicAdd(1, 1, dtype=dtype)(GL, GL)(Thread), source, attrs.evolve(target, write=True))


@pytest.mark.parametrize("dtype", [float32, int32], ids=str)
@pytest.mark.parametrize("apart", [1, 4, 32])
def test_additions_to_one_place_are_all_there(dtype, apart):
    """Of threads, of blocks, and onto what was there; so many threads beside each other add to one element."""
    spec = AtomicAdd(32, 3, dtype=dtype, src=RowMajor, dst=RowMajor)(GL, GL)
    given = np.arange(1, 97).reshape(32, 3).astype(dtype.to_numpy())
    start = np.full((32, 3), 100, dtype.to_numpy())
    body = (added(access("src", (THREAD, BLOCK)), access("dst", (THREAD // apart, BLOCK * 0)), dtype),)
    got = of_threads(body, spec=spec, grid=3, src=given, dst=start)["dst"]
    expected = start.copy()
    for row, column in np.ndindex(32, 3):
        expected[row // apart, 0] += given[row, column]
    np.testing.assert_array_equal(got, expected)


def test_additions_to_what_was_never_written():
    spec = AtomicAdd(32, 3, dtype=int32, src=RowMajor, dst=RowMajor)(GL, GL)
    body = (added(access("src", (THREAD, BLOCK)), access("dst", (THREAD, BLOCK)), int32),)
    with pytest.raises(SimulationError, match=r"dst.* is read before anything was written to it"):
        of_threads(body, spec=spec, grid=3, src=np.ones((32, 3), np.int32))


@pytest.mark.parametrize("accumulate", [0, 1, "k"])
def test_a_product_begins_anew_or_adds(accumulate):
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
    """Values of another type are rounded as the type says."""
    spec = Move(32, dst_dtype=target)(GL, GL)
    move = Move(1, dst_dtype=target)(GL, GL)(Thread)
    given = np.linspace(-2, 2049.3, 32).astype(np.float32)
    body = (performed(MOVE, move, access("src", (THREAD,)), access("dst", (THREAD,), write=True)),)
    got = of_threads(body, spec=spec, src=given)["dst"]
    np.testing.assert_array_equal(got, given.astype(target.to_numpy()))


@pytest.mark.parametrize("dtype", [float32, int32], ids=str)
def test_registers_that_nothing_was_put_into(dtype):
    """Poison comes out of them, and is named: a float by its result, an integer at once."""
    spec = Move(32, dtype=dtype)(GL, GL)
    one = local("r", (2,), RF, dtype)
    load = performed(MOVE, Move(1, dtype=dtype)(GL, RF)(Thread), access("src", (THREAD,)), access("r", (0,), write=True))
    for number, right in ((0, True), (1, False)):
        store = performed(MOVE, Move(1, dtype=dtype)(RF, GL)(Thread), access("r", (number,)), access("dst", (THREAD,), write=True))
        given = np.arange(32).astype(dtype.to_numpy())
        if right:
            np.testing.assert_array_equal(of_threads((load, store), one, spec=spec, src=given)["dst"], given)
        else:
            with pytest.raises(
                SimulationError, match=r"r\[1\] \(register 1\) is read before anything was written to it: thread 0 of block 0"
            ):
                of_threads((load, store), one, spec=spec, src=given)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("name", OF_PRODUCTS)
def test_registers_of_products_under_way(name, order):
    """By hand: what may be touched while they are, and what wants a fence before, or a wait."""
    made, message = of_products(name)
    given = np.arange(1, 33, dtype=np.float32).reshape(32, 1)
    if message is not None:
        with pytest.raises(SimulationError, match=message):
            copied(made, given, None if order is None else random.Random(order))
        return
    a = given.astype(np.float64)
    steps = OF_PRODUCTS[name][0].split(", ")
    values = {step[0]: a for step in steps if step.endswith(("=", "<"))}
    for step in steps:
        if "=" in step[1:-1]:
            values[step[0]] = values[step[0]] * ("+" in step) if step[0] in values else 0
            values[step[0]] = values[step[0]] + values[step[-2]] * values[step[-1]]
    stored = [step[1] for step in steps if step.startswith("=")][-1]
    np.testing.assert_array_equal(copied(made, given, None if order is None else random.Random(order)), values[stored])


# ---------------------------------------------------------------------------------------------- parts of it


@pytest.mark.sampled(1)
@pytest.mark.parametrize("turns", [2, 5])
@pytest.mark.parametrize("moving", ["A", "B", "both"])
@pytest.mark.parametrize("dtype", [float32, float64, int8], ids=str)
def test_products_of_many_turns_are_added_one_by_one(turns, moving, dtype):
    """Into registers of each thread and block; those that need more room than a cache has, too."""
    options = {"dtype": dtype, "c_dtype": int32 if dtype == int8 else dtype}
    count, threads, grid = 64, 128, 4
    m, k = Var("m", 0, count - 1), Var("k", 0, turns - 1)
    thread, block = Var("thread", 0, threads - 1), Var("block", 0, grid - 1)
    whole = MatMul(count * threads * grid, 1, turns, A=RowMajor, B=RowMajor, C=RowMajor, **options)(GL, GL, GL)
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
    over = lambda one, *loops: one if not loops else ir.For(loops[0], as_expr(loops[0].high + 1), (over(one, *loops[1:]),))
    inner = {"A": (m, n), "B": (n, m), "both": (m, n)}[moving]
    body = (over(clear, m, n), ir.For(k, as_expr(turns), (over(load, m), over(factor, n), over(product, *inner))), over(store, m))
    values = np.random.default_rng(2)
    kernel = kernel_of(whole, body, *registers.values(), threads=threads, grid=grid)
    a = values.integers(-4, 5, (count * threads * grid, turns)).astype(dtype.to_numpy())
    b = values.integers(-4, 5, (turns, 1)).astype(dtype.to_numpy())
    c = values.integers(-4, 5, (count * threads * grid, 1)).astype(kind.to_numpy())
    got = simulate(kernel, {"A": a, "B": b, "C": c}).outputs["C"]
    np.testing.assert_array_equal(got, c + a.astype(kind.to_numpy()) @ b.astype(kind.to_numpy()))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("level, unit", [(Warp, 32), (Warpgroup, 128), (Block, 256)], ids=str)
def test_threads_of_a_unit_mean_the_same(level, unit):
    """Another place of one of them, a condition that some of them have not, another copy: they are told; of other units they may be others."""
    thread = Var("thread", 0, 255)
    spec = Move(32, dtype=float32)(GL, GL)(level)
    text = MicroKernel("m", "// m\n")

    def outcome_of(source, active=TRUE):
        target = access("dst", (thread // unit * 32,), (32,), write=True)
        kernel = kernel_of(
            Move(512, dtype=float32)(GL, GL), (ir.Exec(text, spec, (access("src", (source,), (32,)), target), active=active),), threads=256
        )
        try:
            return simulate(kernel, {"src": np.arange(512, dtype=np.float32)}).outputs["dst"]
        except SimulationError as error:
            return str(error)

    got = outcome_of(thread // unit * 64)
    for number in range(256 // unit):
        np.testing.assert_array_equal(got[number * 32 : number * 32 + 32], np.arange(number * 64, number * 64 + 32))
    for odd in (0, 1, unit - 1, 255):
        assert f"threads of one {level} disagree about its operands" in outcome_of(equal(thread, odd) * 7)
        assert f"threads of one {level} disagree about its operands" in outcome_of(thread * 0, less(0, equal(thread, odd)))
    got = outcome_of(thread * 0, less(thread // unit, 1))
    assert np.isnan(got[32:]).all() and not np.isnan(got[:32]).any()


@pytest.mark.sampled(1)
@pytest.mark.parametrize("threads", [32, 48, 64, 80])
def test_units_that_a_block_does_not_fill(threads):
    """An instruction of all lanes of a warp is performed by whole warps only."""
    thread = Var("thread", 0, threads - 1)
    straight, turned = (LaneMap.along((32,), lanes, ((1, 0, 1),)) for lanes in (((32, 0, 1),), ((4, 0, 8), (8, 0, 1))))
    one = performed(
        MOVE,
        Move(32, dtype=float32)(GL, GL)(Warp),
        access("src", (thread,)),
        access("dst", (thread,), write=True),
        lane_maps=(straight, turned),
    )
    kernel = kernel_of(Move(96, dtype=float32)(GL, GL), (one,), threads=threads)
    given = np.arange(1, 97, dtype=np.float32)
    for order in (None, random.Random(0)):
        got = simulate(kernel, {"src": given}, order=order).outputs["dst"]
        for first in range(0, threads // 32 * 32, 32):
            np.testing.assert_array_equal(got[first : first + 32], given[first : first + 32].reshape(4, 8).T.ravel())
        assert not np.isin(got[threads // 32 * 32 : threads], given).any()
