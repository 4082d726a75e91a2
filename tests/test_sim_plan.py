"""The simulator's plan, on hand-made kernels: which loops become axes, which bytes are shared, and how blocks are distinguished
(`fireiron.sim.plan`).
"""

import itertools
import random
import re

import attrs
import making
import numpy as np
import pytest
from engines import WGMMA_SEQUENCES, copied, fetched, streamed, wgmma_kernel
from handmade import access, kernel_of, local

from fireiron import *
from fireiron import ir
from fireiron.errors import SimulationError, VerificationError
from fireiron.executable.fma import FFMA
from fireiron.executable.micro_kernel import MicroKernel
from fireiron.executable.reduce import REDUCE
from fireiron.executable.thread_move import MOVE
from fireiron.ir.lanes import LaneMap
from fireiron.sim import plan as planning
from fireiron.sim import simulate
from fireiron.sim.plan import Loop, Nest, Plan
from fireiron.values.expr import TRUE, Var, as_expr, less
from fireiron.values.tensor import Dim, Mode, Tensor

THREAD, K, J = Var("thread", 0, 31), Var("k", 0, 3), Var("j", 0, 2)


def copy(source, target, memories=(GL, GL), active=TRUE):
    spec = Move(1, dtype=float32)(*memories)(Thread)
    return making.execution(MOVE, spec, (source, attrs.evolve(target, write=True)), active=active, pieces=((making.piece(0),),) * 2)


def loops(body, *order):
    for var, extent in reversed(order):
        body = (making.loop(var, as_expr(extent), body),)
    return body


def kernel(body, *buffers, elements=512, **options):
    program = kernel_of(Move(elements, dtype=float32)(GL, GL), body, *buffers, **options)
    return attrs.evolve(program, shared_bytes=max([0, *(one.offset + one.bytes for one in buffers if one.memory == SH)]))


def planned(body, *buffers, **options):
    return Plan(kernel(body, *buffers, **options), {})


def result(body, *buffers, size=512, **options):
    given = np.arange(1, size + 1, dtype=np.float32)
    return simulate(kernel(body, *buffers, **options), {"src": given}).outputs["dst"], given


BOTH = J * 4 + K


def test_loops_that_writes_depend_on_are_axes():
    """One after the other around a single statement, outermost first; what it computes is what loops would."""
    body = loops((copy(access("src", (THREAD + BOTH * 32,)), access("dst", (THREAD + BOTH * 32,))),), (J, 3), (K, 4))
    (nest,) = planned(body).nodes
    assert isinstance(nest, Nest) and [name for name, _ in nest.vector.loops] == ["j", "k"] and nest.outer == []
    got, given = result(body)
    np.testing.assert_array_equal(got[:384], given[:384])


def test_a_loop_that_writes_do_not_depend_on_runs_by_itself():
    body = loops((copy(access("src", (THREAD + BOTH * 32,)), access("dst", (THREAD + K * 32,))),), (J, 3), (K, 4))
    (nest,) = planned(body).nodes
    assert [name for name, _ in nest.outer] == ["j"] and [name for name, _ in nest.vector.loops] == ["k"]
    got, given = result(body)
    np.testing.assert_array_equal(got[:128], given[256:384])


def test_a_name_between_the_loops():
    name = Var("place", 0, 383)
    inner = making.loop(K, as_expr(4), (making.let(name, THREAD + BOTH * 32), copy(access("src", (name,)), access("dst", (name,)))))
    body = (making.loop(J, as_expr(3), (inner,)),)
    (nest,) = planned(body).nodes
    assert [name for name, _ in nest.vector.loops] == ["j", "k"]
    got, given = result(body)
    np.testing.assert_array_equal(got[:384], given[:384])


@pytest.mark.parametrize(
    "make", [lambda one: (one, one), lambda one: (one, making.barrier(ir.BLOCK_SCOPE)), lambda one: (making.barrier(ir.BLOCK_SCOPE), one)]
)
def test_two_statements_are_no_nest(make):
    body = loops(make(copy(access("src", (THREAD + K * 32,)), access("dst", (THREAD + K * 32,)))), (K, 4))
    (loop,) = planned(body).nodes
    assert isinstance(loop, Loop) and len(loop.body) == 2
    got, given = result(body)
    np.testing.assert_array_equal(got[:128], given[:128])


def test_loops_with_a_carried_dependence_are_no_axes():
    """An iteration reads what the preceding one wrote: by name, or in bytes shared by two buffers."""
    first, second = (attrs.evolve(local(name, (32 * 5,), SH), offset=0) for name in ("x", "y"))
    fill = copy(access("src", (THREAD,)), access("x", (THREAD,)), (GL, SH))
    for target in ("x", "y"):
        move = copy(access("x", (THREAD + K * 32,)), access(target, (THREAD + K * 32 + 32,)), (SH, SH))
        body = (fill, *loops((move,), (K, 4)), copy(access("x", (THREAD + 128,)), access("dst", (THREAD,)), (SH, GL)))
        assert isinstance(planned(body, first, second).nodes[1], Loop)
        got, given = result(body, first, second)
        np.testing.assert_array_equal(got[:32], given[:32])


def test_axes_of_at_most_so_many_elements(monkeypatch):
    """The outermost ones run in Python."""
    body = loops((copy(access("src", (THREAD + BOTH * 32,)), access("dst", (THREAD + BOTH * 32,))),), (J, 3), (K, 4))
    for most, axes in ((384, ["j", "k"]), (383, ["k"]), (128, ["k"]), (127, None), (31, None)):
        monkeypatch.setattr(planning, "MAX_ELEMENTS", most)
        plan = planned(body)
        (node,) = plan.nodes
        assert (None if isinstance(node, Loop) else [name for name, _ in node.vector.loops]) == axes
        assert plan.largest == max(32, 32 * {None: 1, 1: 4, 2: 12}[axes and len(axes)])
        got, given = result(body)
        np.testing.assert_array_equal(got[:384], given[:384])


def test_bytes_that_buffers_share():
    """Groups of those that overlap, in order of their places; neighbors that touch do not."""
    buffers = [
        attrs.evolve(local(name, (8,), SH), offset=offset) for name, offset in (("a", 0), ("b", 32), ("c", 48), ("d", 76), ("e", 112))
    ]
    parts = planned((), *buffers).components
    assert [[one.name for one in part] for part in parts] == [["a"], ["b", "c", "d"], ["e"]]
    longer = attrs.evolve(local("f", (32,), SH), offset=0)
    assert [[one.name for one in part] for part in planned((), longer, *buffers).components] == [["f", "a", "b", "c", "d", "e"]]


@pytest.mark.parametrize(
    "kinds, mixed, granule", [((float32, float32), False, 4), ((float32, float16), True, 2), ((int8, float32), True, 1)], ids=str
)
def test_the_smallest_element_is_the_grain_of_shadow_memory(kinds, mixed, granule):
    buffers = [attrs.evolve(local(f"x{number}", (32,), SH, dtype), offset=0) for number, dtype in enumerate(kinds)]
    plan = planned((), *buffers)
    assert (plan.mixed, plan.granule) == (mixed, granule)


@pytest.mark.parametrize(
    "threads, barriers, pitch", [(32, (), 32), (96, (), 96), (96, (64,), 128), (160, (32, 128), 256), (128, (2, 64), 128)]
)
def test_blocks_are_distinguished_by_whole_groups(threads, barriers, pitch):
    """The threads of a block take as many numbers as its largest groups, the last one whole."""
    body = tuple(making.barrier(making.scope(f"{size} threads", size)) for size in barriers)
    assert planned(body, threads=threads).pitch == pitch


def test_groups_that_only_overlap_are_refused():
    body = tuple(making.barrier(making.scope(f"{size} threads", size)) for size in (64, 96))
    with pytest.raises(VerificationError, match="no rule for barriers of 64 and of 96 threads"):
        planned(body, threads=192)


def test_shared_memory_that_differs_between_blocks_is_watched_in_each():
    buffer = attrs.evolve(local("x", (64,), SH), offset=0)
    block = Var("block", 0, 1)
    same = copy(access("src", (THREAD,)), access("x", (THREAD,)), (GL, SH))
    other = copy(access("src", (THREAD,)), access("x", (THREAD + block * 32,)), (GL, SH))
    assert planned((same,), buffer, grid=2).uniform and not planned((other,), buffer, grid=2).uniform
    looped = making.loop(K, as_expr(1) + block, (same,))
    assert planned((looped,), buffer, grid=2).block_loops and not planned((same,), buffer, grid=2).block_loops
    # thread 31 of block 1 alone reads what thread 30 wrote
    target = access("x", (THREAD + block * 32,))
    near = copy(access("x", ((THREAD + block) % 32 + block * 32,)), access("dst", (THREAD + block * 32,)), (SH, GL))
    write = copy(access("src", (THREAD,)), target, (GL, SH))
    with pytest.raises(SimulationError, match=r"race on x\[.*(?s:.*)block 1"):
        simulate(kernel((write, near), buffer, grid=2), {"src": np.zeros(512, np.float32)})


def test_buffers_in_use():
    buffers = [attrs.evolve(local(name, (32,), SH), offset=128 * number) for number, name in enumerate("xy")]
    plan = planned((copy(access("src", (THREAD,)), access("y", (THREAD,)), (GL, SH)),), *buffers)
    assert [one.name for one in plan.shared_in_use] == ["y"]


def test_iterations_that_write_one_element_are_sequential():
    """After a loop that also runs in Python: the last iteration determines the value."""
    body = loops((copy(access("src", (THREAD + BOTH * 32,)), access("dst", (THREAD + K // 2 * 32,))),), (J, 3), (K, 4))
    got, given = result(body)
    np.testing.assert_array_equal(got[:64], np.concatenate([given[288:320], given[352:384]]))


def test_places_follow_all_loops_around():
    """A place that only an outer loop moves is found again in the inner one, and moves with the outer one."""
    outer = copy(access("src", (THREAD + J * 32,)), access("dst", (THREAD + J * 32,)))
    inner = copy(access("src", (THREAD + BOTH * 32,)), access("dst", (THREAD + BOTH * 32 + 96,)))
    body = (making.loop(J, as_expr(3), (making.loop(K, as_expr(4), (outer, inner)),)),)
    got, given = result(body)
    np.testing.assert_array_equal(got[:480], np.concatenate([given[:96], given[:384]]))


# ---------------------------------------------------------------------------------------------- accesses by thread

ORDERS = (None, 0)


def sequential_loop(monkeypatch):
    """From now on every loop runs in Python."""
    monkeypatch.setattr(Plan, "_vector_loops", lambda *_: [])


def outcome_of(kernel, given=None, order=None, **options):
    """The outputs of a kernel, or the report of the simulator."""
    (size,) = kernel.buffer("src").tensor.shape
    arrays = {"src": np.arange(1, size.evaluate({}) + 1, dtype=np.float32)} if given is None else given
    try:
        return simulate(kernel, arrays, order=None if order is None else random.Random(order), **options).outputs
    except SimulationError as error:
        return str(error)


def words(text):
    """Those of a message, in whatever order it names the loops; None for outputs."""
    return sorted(re.split("[ ,\n]+", text)) if isinstance(text, str) else None


def agree(first, second):
    if isinstance(first, str) or isinstance(second, str):
        return words(first) == words(second)
    return all(np.array_equal(first[name], second[name], equal_nan=True) for name in first)


L = Var("l", 0, 3)


def drawn(draw):
    """Two or three loops around a copy between arrays, shared memory and registers, whose addresses iterations, threads and blocks may
    share.
    """
    threads, grid = draw.choice([(32, 1), (64, 1), (64, 2)])
    thread, block = Var("thread", 0, threads - 1), Var("block", 0, grid - 1)
    x = attrs.evolve(local("x", (520,), SH), offset=0)
    r = local("r", (16,), RF)
    nest = draw.sample([(J, 3), (K, 4), (L, 2)], draw.choice([2, 2, 3]))
    if draw.random() < 0.3 and grid > 1:
        nest[-1] = (nest[-1][0], block + nest[-1][1] - 1)
    iterations = [as_expr(draw.choice([0, 1, 1, 2, 4])) * var for var, _ in nest]
    iteration = sum(iterations[1:], iterations[0])

    def place(memory):
        if memory == RF:
            return iteration % 16
        step = draw.choice([1, 32, 32])
        spread = thread * (16 if step == 1 else 1)
        own = block * 1024 if memory == GL else block * draw.choice([0, 0, 7])
        return own + (spread + iteration * step) % (1024 if memory == GL else 512)

    source, target = draw.choice([(GL, GL), (GL, SH), (SH, GL), (GL, RF), (RF, GL), (SH, RF), (RF, SH), (SH, SH)])
    names = {RF: "r", SH: "x"}
    fill = making.loop(M, as_expr(16), (copy(access("src", (thread + M * 32,)), access("r", (M,)), (GL, RF)),))
    shared = copy(access("src", (thread * 8,)), access("x", (thread * 8,)), (GL, SH))
    move = copy(access(names.get(source, "src"), (place(source),)), access(names.get(target, "dst"), (place(target),)), (source, target))
    store = making.loop(N, as_expr(16), (copy(access("r", (N,)), access("dst", (block * 1024 + thread * 16 + N,)), (RF, GL)),))
    barriers = [[making.barrier(ir.BLOCK_SCOPE)] if draw.random() < 0.7 else [] for _ in range(2)]
    tail = (
        (store,)
        if target == RF
        else (copy(access("x", (thread * 8,)), access("dst", (block * 1024 + thread,)), (SH, GL)),)
        if target == SH
        else ()
    )
    body = (fill, shared, *barriers[0], *loops((move,), *nest), *barriers[1], *tail)
    return kernel(body, x, r, threads=threads, grid=grid, elements=2048)


M, N = Var("m", 0, 15), Var("n", 0, 15)


@pytest.mark.parametrize("batch", range(4))
def test_axes_change_neither_results_nor_findings(batch, monkeypatch):
    """For random nests, with as many elements at once as the simulator chooses, with few, and with sequential iterations."""
    has_report = []
    for number in range(12):
        program = drawn(random.Random(f"nests {batch} {number}"))
        with monkeypatch.context() as patch:
            got = [outcome_of(program)]
            patch.setattr(planning, "MAX_ELEMENTS", program.threads * 4)
            got.append(outcome_of(program))
            sequential_loop(patch)
            expected = outcome_of(program)
        for outcome in got:
            if isinstance(expected, str) and expected.startswith("race"):
                # Of several races another one may be reported first: simultaneous writes are compared at once.
                assert isinstance(outcome, str) and outcome.startswith("race"), (batch, number)
            else:
                assert agree(outcome, expected), (batch, number, outcome, expected)
        has_report.append(isinstance(expected, str))
    assert {True, False} <= {*has_report}


# ---------------------------------------------------------------------------------------------- what loops are

TAKEN = Var("taken", 0, 99)


def number_of(var, more=0):
    return copy(access("src", (THREAD + (var + more) * 32,)), access("dst", (THREAD + var * 32,)))


@pytest.mark.parametrize(
    "first, step, iterations", [(0, 1, [0, 1, 2, 3]), (0, 2, [0, 2]), (1, 2, [1, 3]), (2, 1, [2, 3]), (3, 5, [3]), (4, 1, [])]
)
@pytest.mark.parametrize("inner", [False, True])
def test_loops_with_other_starts_and_steps(first, step, iterations, inner):
    """Alone, and inside another one."""
    loop = making.loop(K, as_expr(4), (number_of(K),), first=first, step=step)
    got, given = result((making.loop(L, as_expr(2), (loop,)),) if inner else (loop,))
    expected = np.full(128, np.nan, np.float32)
    for iteration in iterations:
        expected[iteration * 32 : iteration * 32 + 32] = given[iteration * 32 : iteration * 32 + 32]
    np.testing.assert_array_equal(got[:128], expected)


@pytest.mark.parametrize("growth", [1, 2])
def test_iterations_of_earlier_executions_are_counted(growth):
    """They are counted over all executions of the loop, with the increment that it states."""
    inner = making.loop(K, as_expr(2), (copy(access("src", (THREAD + TAKEN * 32,)), access("dst", (THREAD + TAKEN * 32,))),))
    inner = attrs.evolve(inner, prior_iterations=TAKEN, increment=as_expr(growth))
    got, given = result((making.loop(J, as_expr(3), (inner,)),))
    expected = np.full(512, np.nan, np.float32)
    for iteration in range(6):
        offset = iteration * growth * 32
        expected[offset : offset + 32] = given[offset : offset + 32]
    np.testing.assert_array_equal(got, expected)


def test_an_extent_that_an_outer_loop_decides():
    """In a triangle each row has its own length, and the last iterations of shorter rows do not exist."""
    name = Var("length", 0, 3)
    for extent, more in ((J + 1, ()), (name, (making.let(name, J + 1),))):
        inner = making.loop(K, extent, (copy(access("src", (THREAD + BOTH * 32,)), access("dst", (THREAD + BOTH * 32,))),))
        got, given = result((making.loop(J, as_expr(3), (*more, inner)),))
        expected = np.full(384, np.nan, np.float32)
        for row, column in zip((0, 1, 1, 2, 2, 2), (0, 0, 1, 0, 1, 2), strict=True):
            offset = (row * 4 + column) * 32
            expected[offset : offset + 32] = given[offset : offset + 32]
        np.testing.assert_array_equal(got[:384], expected)


@pytest.mark.parametrize("order", [((J, 3), (K, 4)), ((K, 4), (J, 3))], ids=str)
@pytest.mark.parametrize("alone", [J, K])
def test_a_loop_that_moves_no_write_is_sequential(order, alone):
    body = loops((copy(access("src", (THREAD + BOTH * 32,)), access("dst", (THREAD + alone * 32,))),), *order)
    (nest,) = planned(body).nodes
    assert [name for name, _ in nest.vector.loops] == [alone.name] and len(nest.outer) == 1
    got, given = result(body)
    last = {J: [3, 7, 11], K: [8, 9, 10, 11]}[alone]
    np.testing.assert_array_equal(
        got[: len(last) * 32], np.concatenate([given[32 * iteration : 32 * iteration + 32] for iteration in last])
    )


def one_by_one(extents, value):
    """The final values of iterations that write to shared places."""
    last = {}
    for indices in itertools.product(*map(range, extents)):
        place, number = value(*indices)
        last[place] = number
    return last


@pytest.mark.parametrize("extents", [(as_expr(3), as_expr(2) + Var("block", 0, 1)), (as_expr(2) + Var("block", 0, 1), as_expr(3))], ids=str)
@pytest.mark.parametrize("most", [1 << 21, 32 * 3, 32])
def test_places_shared_by_iterations_of_two_loops(extents, most, monkeypatch):
    """The last iteration wins, whichever of the loops may be an axis."""
    monkeypatch.setattr(planning, "MAX_ELEMENTS", most)
    block = Var("block", 0, 1)
    body = loops(
        (copy(access("src", (THREAD + BOTH * 32,)), access("dst", (THREAD + (J + K) * 32 + block * 256,))),),
        *zip((J, K), extents, strict=True),
    )
    got, given = result(body, grid=2)
    for number in range(2):
        sizes = [extent.evaluate({"block": number}) for extent in extents]
        for place, iteration in one_by_one(sizes, lambda j, k: (j + k, j * 4 + k)).items():
            offset = number * 256 + place * 32
            np.testing.assert_array_equal(got[offset : offset + 32], given[iteration * 32 : iteration * 32 + 32])


def test_axes_are_counted_in_elements_of_the_largest_access(monkeypatch):
    """A sum of four elements takes four for each iteration."""
    spec = Reduction(1, 1, 4)(GL, GL)(Thread)
    pieces = (tuple(making.piece(number) for number in range(4)), (making.piece(0),))
    total = making.execution(
        REDUCE, spec, (access("src", (THREAD, K, 0), (1, 1, 4)), access("dst", (THREAD, K), write=True)), pieces=pieces
    )
    program = kernel_of(Reduction(32, 4, 4)(GL, GL), (making.loop(K, as_expr(4), (total,)),))
    given = np.arange(512, dtype=np.float32).reshape(32, 4, 4)
    for most, kind in ((512, Nest), (511, Loop)):
        monkeypatch.setattr(planning, "MAX_ELEMENTS", most)
        plan = Plan(program, {})
        assert isinstance(plan.nodes[0], kind) and plan.largest == (512 if kind is Nest else 128)
        np.testing.assert_array_equal(simulate(program, {"src": given}).outputs["dst"], given.sum(2))


TWO = Fused(
    name="two",
    dims="m n",
    operands={"X": "m n", "Y": "m n", "Z": "m n"},
    body={"Y": "Y[m,n] = X[m,n]", "Z": "Z[m,n] = X[m,n] + X[m,n]"},
).tile(m=1, n=1).to(Block).done("// two\n")  # fmt: skip


@pytest.mark.parametrize("second", [J, K, "both", "one place"])
def test_two_results_of_one_statement(second):
    """Loops are axes only if both results move with them, and do not overlap."""
    spec = TWO.start(m=32, n=12, dtype=float32)
    of_one = attrs.evolve(TWO.start(m=1, n=1, dtype=float32), level=Thread)
    place = BOTH * 0 + (BOTH if second in ("both", "one place") else second)
    operands = {"X": (THREAD, BOTH), "Y": (THREAD, BOTH), "Z": (THREAD, place)}
    accesses = [access("Y" if second == "one place" and name == "Z" else name, base, write=name != "X") for name, base in operands.items()]
    rest = [access(name, (0,)) for name in spec.operands if name not in operands]
    stmt = making.execution(MicroKernel("two", "// two\n"), of_one, (*accesses, *rest))
    program = kernel_of(lambda level: spec, loops((stmt,), (J, 3), (K, 4)))
    (node,) = Plan(program, {}).nodes
    assert isinstance(node, Nest if second == "both" else Loop)
    given = np.arange(384, dtype=np.float32).reshape(32, 12)
    outputs = simulate(program, {"X": given}).outputs
    if second == "one place":
        np.testing.assert_array_equal(outputs["Y"], given * 2)
        return
    np.testing.assert_array_equal(outputs["Y"], given)
    last = {J: [3, 7, 11], K: [8, 9, 10, 11], "both": range(12)}[second]
    np.testing.assert_array_equal(outputs["Z"][:, : len(last)], given[:, [*last]] * 2)


# ---------------------------------------------------------------------------------------------- operands


def run_of(spec, body, *buffers, arrays, order=None, **options):
    program = kernel_of(spec, body, *buffers, **options)
    program = attrs.evolve(program, shared_bytes=max([0, *(one.offset + one.bytes for one in buffers if one.memory == SH)]))
    return simulate(program, arrays, order=None if order is None else random.Random(order)).outputs


@pytest.mark.parametrize(
    "points", [((0,), (1,), (2,)), ((2,), (0,), (1,)), ((1,), (2,), (0,)), ((0,), (12,), (5,)), ((9,), (3,), (0,))], ids=str
)
@pytest.mark.parametrize("permuted", ["src", "dst"])
def test_elements_that_an_instruction_numbers_in_its_own_order(points, permuted):
    """Those of a tile are paired by their place in it, others in the order of their numbers."""
    place = THREAD * 16
    accesses = [access(name, (place,), (3,), write=name == "dst") for name in ("src", "dst")]
    accesses = [attrs.evolve(one, points=points) if one.buffer == permuted else one for one in accesses]
    move = making.execution(
        MOVE, Move(3, dtype=float32)(GL, GL)(Thread), tuple(accesses), pieces=(tuple(making.piece(n) for n in range(3)),) * 2
    )
    got, given = result((move,), elements=1024, size=1024)
    ordered = [(n,) for n in range(3)] if sorted(points) == [(0,), (1,), (2,)] else points
    for number, (position,) in enumerate(ordered):
        source, target = (position, number) if permuted == "src" else (number, position)
        np.testing.assert_array_equal(got[target::16][:32], given[source::16][:32])


def test_the_dimensions_of_an_operand_in_another_order():
    """A result that is transposed in its array."""
    spec = MatMul(2, 3, 2)(GL, GL, GL)(Thread)
    spec_of_all = MatMul(64, 3, 2, A=RowMajor, B=RowMajor, C=RowMajor)(GL, GL, GL)
    places = access("A", (THREAD * 2, 0), (2, 2)), access("B", (0, 0), (2, 3)), access("C", (THREAD * 2, 0), (2, 3), write=True)
    values = np.random.default_rng(0)
    arrays = {"A": values.integers(0, 9, (64, 2)).astype(np.float32), "B": values.integers(0, 9, (2, 3)).astype(np.float32)}
    stmt = making.execution(MicroKernel("m", "// m\n"), spec, places)
    np.testing.assert_array_equal(run_of(spec_of_all, (stmt,), arrays=arrays)["C"], arrays["A"] @ arrays["B"])


@pytest.mark.parametrize("override", [False, True])
def test_an_access_with_its_own_storage(override):
    """Its own storage counts, not the buffer's."""
    buffer = attrs.evolve(local("x", (4, 8), SH), offset=0)
    other = local("x", (4, 8), SH, layout=RowMajor).storage
    row, column = THREAD // 8, THREAD % 8
    target = access("x", (row, column))
    write = attrs.evolve(target, storage=other) if override else target
    of_one = lambda memories: Move(1, 1, dtype=float32)(*memories)(Thread)
    pieces = ((making.piece(0),),) * 2
    body = (
        making.execution(MOVE, of_one((GL, SH)), (access("src", (row, column)), attrs.evolve(write, write=True)), pieces=pieces),
        making.barrier(ir.BLOCK_SCOPE),
        making.execution(MOVE, of_one((SH, GL)), (target, access("dst", (row, column), write=True)), pieces=pieces),
    )
    given = np.arange(32, dtype=np.float32).reshape(4, 8)
    got = run_of(Move(4, 8, src=RowMajor, dst=RowMajor)(GL, GL), body, buffer, arrays={"src": given})["dst"]
    np.testing.assert_array_equal(got, given.reshape(8, 4).T if override else given)


@pytest.mark.parametrize(
    "widths, conditions", [((1, 1, 1, 1), "abab"), ((2, 2), "ab"), ((2, 1, 1), "aba"), ((4,), "a"), ((2, 2), "aa"), ((1, 3), "ba")]
)
@pytest.mark.parametrize("side", ["src", "dst", "both"])
def test_pieces_with_conditions_of_their_own(widths, conditions, side):
    """Elements of a source that are not read count as zero, and those of a target keep their values."""
    holds = {"a": less(THREAD, 7), "b": less(3, THREAD)}
    masks = {"a": np.arange(32) < 7, "b": np.arange(32) > 3}
    firsts = [sum(widths[:number]) for number in range(len(widths))]
    parts = tuple(
        making.piece(first, width, condition=holds[name])
        for first, width, name in zip(firsts, widths, conditions, strict=True)
        if width != 3
    )
    if 3 in widths:
        parts = tuple(making.piece(n, 1, condition=holds["b" if n == 0 else "a"]) for n in range(4))
    plain = tuple(making.piece(number) for number in range(4))
    pieces = tuple(parts if side in (name, "both") else plain for name in ("src", "dst"))
    accesses = access("src", (THREAD * 4,), (4,)), access("dst", (THREAD * 4,), (4,), write=True)
    got, given = result((making.execution(MOVE, Move(4, dtype=float32)(GL, GL)(Thread), accesses, pieces=pieces),))
    inside = np.stack([masks[name] for name, width in zip(conditions, widths, strict=True) for _ in range(width)], 1).ravel()
    expected = np.where(inside, given[:128], 0 if side == "src" else np.nan)
    np.testing.assert_array_equal(got[:128], expected)


@pytest.mark.parametrize("bound", [1, 31, 32])
def test_without_pieces_the_bounds_of_an_access_decide(bound):
    """An instruction that tests them itself reads zero beyond them, and writes nothing."""
    text, spec = MicroKernel("m", "// m\n"), Move(1, dtype=float32)(GL, GL)(Thread)
    source, target = access("src", (THREAD,)), access("dst", (THREAD,), write=True)
    got, given = result((making.execution(text, spec, (attrs.evolve(source, bounds=(as_expr(bound),)), target)),))
    np.testing.assert_array_equal(got[:32], np.where(np.arange(32) < bound, given[:32], 0))
    got, given = result((making.execution(text, spec, (source, attrs.evolve(target, bounds=(as_expr(bound),)))),))
    np.testing.assert_array_equal(got[:32], np.where(np.arange(32) < bound, given[:32], np.nan))


def test_bounds_are_not_checked_again_after_pieces():
    """The conditions of the pieces decide: an in-bounds element past a stated bound is moved."""
    move = copy(access("src", (THREAD,), bounds=(8,)), access("dst", (THREAD,), bounds=(8,)))
    got, given = result((move,))
    np.testing.assert_array_equal(got[:32], given[:32])


@pytest.mark.parametrize("width, place, right", [(2, 2, True), (2, 1, False), (4, 4, True), (4, 2, False)])
def test_elements_taken_together_begin_at_their_multiple(width, place, right):
    move = making.execution(
        MOVE,
        Move(width, dtype=float32)(GL, GL)(Thread),
        (access("src", (THREAD * 8 + place,), (width,)), access("dst", (THREAD * 8,), (width,), write=True)),
        pieces=((making.piece(0, width),), (making.piece(0, width),)),
    )
    if right:
        got, given = result((move,))
        np.testing.assert_array_equal(got[:width], given[place : place + width])
    else:
        with pytest.raises(SimulationError, match=f"src: a vector of {width} elements at addresses {place}, "):
            result((move,))


SCALED = Fused(name="scaled", dims="m", operands={"x": "m", "alpha": "", "y": "m"}, body={"y": "y[m] = alpha * x[m]"})
SCALED = SCALED.tile(m=1).to(Block).done("// scaled\n")


def test_a_number_by_value_has_no_dimension():
    """A statement reads it as any other operand, also in the iterations of a loop."""
    spec, of_one = (SCALED.start(m=size, dtype=float32) for size in (128, 1))
    operands = {"x": access("x", (THREAD + K * 32,)), "alpha": access("alpha", ()), "y": access("y", (THREAD + K * 32,), write=True)}
    accesses = tuple(operands.get(name) or access(name, (0,)) for name in spec.operands)
    stmt = making.execution(MicroKernel("scaled", "// scaled\n"), attrs.evolve(of_one, level=Thread), accesses)
    program = kernel_of(lambda level: spec, (making.loop(K, as_expr(4), (stmt,)),))
    given = np.arange(128, dtype=np.float32)
    np.testing.assert_array_equal(simulate(program, {"x": given, "alpha": 3.0}).outputs["y"], given * 3)


OTHER = copy(access("src", (THREAD,)), access("dst", (THREAD + 256,)))
"""A second statement of a loop, which so runs in Python."""


@pytest.mark.parametrize("names", [0, 1, 2])
def test_a_place_that_depends_on_a_loop_through_a_name(names):
    first, second = Var("first", 0, 127), Var("second", 0, 127)
    lets = (making.let(first, K * 32), making.let(second, first))[:names]
    where = (K * 32, first, second)[names]
    move = copy(access("src", (THREAD + where,)), access("dst", (THREAD + where,)))
    got, given = result((making.loop(J, as_expr(2), (making.loop(K, as_expr(4), (*lets, move, OTHER)),)),))
    np.testing.assert_array_equal(got[:128], given[:128])


def test_a_copy_of_a_buffer_that_moves_with_a_loop():
    buffer = attrs.evolve(local("x", (32,), SH, copies=4), offset=0)
    target = attrs.evolve(access("x", (THREAD,)), copy=K)
    fill = copy(access("src", (THREAD + K * 32,)), target, (GL, SH))
    move = copy(attrs.evolve(target, copy=3 - K), access("dst", (THREAD + K * 32,)), (SH, GL))
    got, given = result(
        (making.loop(K, as_expr(4), (fill, OTHER)), making.loop(J, as_expr(2), (making.loop(K, as_expr(4), (move, OTHER)),))), buffer
    )
    np.testing.assert_array_equal(got[:128].reshape(4, 32), given[:128].reshape(4, 32)[::-1])


def test_a_bound_that_moves_with_a_loop():
    """Only the last of four iterations writes the last elements."""
    target = access("dst", (THREAD,), bounds=(K * 8,), write=True)
    move = making.execution(MicroKernel("m", "// m\n"), Move(1, dtype=float32)(GL, GL)(Thread), (access("src", (THREAD + K * 32,)), target))
    got, given = result((making.loop(J, as_expr(2), (making.loop(K, as_expr(4), (move, OTHER)),)),))
    np.testing.assert_array_equal(got[:32], np.where(np.arange(32) < 24, given[96:128], np.nan))


@pytest.mark.parametrize("form", ["condition", "piece"])
def test_a_condition_that_holds_in_some_iterations(form):
    """The first iterations move something that the last ones leave unchanged."""
    first = less(K, 2)
    move = copy(access("src", (THREAD + K * 32,)), access("dst", (THREAD,)), active=first if form == "condition" else TRUE)
    if form == "piece":
        move = attrs.evolve(move, pieces=((making.piece(0),), (making.piece(0, 1, condition=first),)))
    got, given = result((making.loop(J, as_expr(1), (making.loop(K, as_expr(4), (move, OTHER)),)),))
    np.testing.assert_array_equal(got[:32], given[32:64])


# ---------------------------------------------------------------------------------------------- what becomes of values


def of_one(instruction, spec, *accesses, **fields):
    pieces = tuple(tuple(making.piece(number) for number in range(len(one.elements()))) for one in accesses)
    return making.execution(instruction, spec, accesses, pieces=pieces, **fields)


PRODUCTS = {
    "floats": ({}, FFMA),
    "doubles": ({"dtype": float64, "c_dtype": float64}, FFMA),
    "halves": ({"dtype": float16, "c_dtype": float16}, FFMA),
    "halves with a float": ({"dtype": float16, "c_dtype": float32}, FFMA),
    "bytes": ({"dtype": int8, "c_dtype": int32}, FFMA),
}


@pytest.mark.parametrize("name", PRODUCTS)
@pytest.mark.parametrize("begins", [True, False])
def test_sums_of_products_in_the_type_of_the_result(name, begins):
    """For float16 each sum is rounded once at the end; the others are exact. Previous contents count, or do not."""
    options, instruction = PRODUCTS[name]
    spec = MatMul(1, 1, 1, **options)(GL, GL, GL)(Thread)
    spec_of_all = MatMul(32, 1, 4, A=RowMajor, B=RowMajor, C=RowMajor, **options)(GL, GL, GL)
    places = access("A", (THREAD, K)), access("B", (K, 0)), access("C", (THREAD, 0), write=True)
    add = less(0, K) if begins else TRUE
    body = (making.loop(K, as_expr(4), (of_one(instruction, spec, *places, accumulate=add),)),)
    factor, kind = (spec_of_all(Kernel).operands[one].dtype.to_numpy() for one in "AC")
    values = np.random.default_rng(3)
    a, b = (values.integers(-100, 100, shape).astype(factor) for shape in ((32, 4), (4, 1)))
    arrays = {"A": a, "B": b, "C": np.full((32, 1), 7, kind)}
    expected = np.zeros((32, 1), kind) if begins else arrays["C"]
    for iteration in range(4):
        expected = (expected.astype(np.float64) + a[:, iteration : iteration + 1].astype(np.float64) * float(b[iteration, 0])).astype(kind)
    np.testing.assert_array_equal(run_of(spec_of_all, body, arrays=arrays)["C"], expected)


def test_products_of_several_elements():
    spec = MatMul(2, 1, 2)(GL, GL, GL)(Thread)
    spec_of_all = MatMul(64, 1, 2, A=RowMajor, B=RowMajor, C=RowMajor)(GL, GL, GL)
    places = access("A", (THREAD * 2, 0), (2, 2)), access("B", (0, 0), (2, 1)), access("C", (THREAD * 2, 0), (2, 1), write=True)
    arrays = {
        "A": np.arange(128, dtype=np.float32).reshape(64, 2),
        "B": np.array([[3], [5]], np.float32),
        "C": np.ones((64, 1), np.float32),
    }
    for adds in (0, 1):
        got = run_of(spec_of_all, (of_one(FFMA, spec, *places, accumulate=as_expr(adds)),), arrays=arrays)["C"]
        np.testing.assert_array_equal(got, arrays["A"] @ arrays["B"] + adds)


def test_old_values_are_read_where_they_count():
    """A thread that starts a new sum reads no uninitialized value; the others do."""
    options = {"dtype": int8, "c_dtype": int32}
    spec = MatMul(1, 1, 1, **options)(GL, GL, GL)(Thread)
    spec_of_all = MatMul(32, 1, 1, A=RowMajor, B=RowMajor, C=RowMajor, **options)(GL, GL, GL)
    places = access("A", (THREAD, 0)), access("B", (0, 0)), access("C", (THREAD, 0), write=True)
    arrays = {"A": np.arange(32, dtype=np.int8).reshape(32, 1), "B": np.ones((1, 1), np.int8)}

    def body(adds, active=TRUE):
        begin = of_one(FFMA, spec, *places, active=less(THREAD, 7))
        return begin, of_one(FFMA, spec, *places, accumulate=adds, active=active)

    got = run_of(spec_of_all, body(less(THREAD, 7)), arrays=arrays)["C"]
    np.testing.assert_array_equal(got[:, 0], np.arange(32) * np.where(np.arange(32) < 7, 2, 1))
    with pytest.raises(SimulationError, match=r"C\[7, 0\].* is read before any write to it: thread 7 of block 0"):
        run_of(spec_of_all, body(less(THREAD, 8)), arrays=arrays)
    with pytest.raises(SimulationError, match=r"C\[7, 0\].* is read before any write to it: thread 7 of block 0"):
        run_of(spec_of_all, body(TRUE), arrays=arrays)
    run_of(spec_of_all, body(TRUE, less(THREAD, 7)), arrays=arrays)
    run_of(spec_of_all, body(less(THREAD, 20), less(THREAD, 7)), arrays=arrays)


def test_elements_out_of_bounds_change_no_maximum():
    """An element that is not there is no zero, of which the maximum of negative numbers would be one."""
    spec = Reduction(1, 1, 4, by="max")(GL, GL)(Thread)
    pieces = (tuple(making.piece(number, 1, condition=less(THREAD + number, 33)) for number in range(4)), (making.piece(0),))
    total = making.execution(
        REDUCE, spec, (access("src", (THREAD, 0, 0), (1, 1, 4)), access("dst", (THREAD, 0), write=True)), pieces=pieces
    )
    given = -np.arange(1, 129, dtype=np.float32).reshape(32, 1, 4)[::-1]
    got = run_of(Reduction(32, 1, 4, by="max")(GL, GL), (total,), arrays={"src": given})["dst"]
    inside = np.add.outer(np.arange(32), np.arange(4)) < 33
    np.testing.assert_array_equal(got[:, 0], np.where(inside, given[:, 0], -np.inf).max(1))


@pytest.mark.parametrize("order", ORDERS)
def test_a_copy_of_two_elements_that_converts(order):
    spec = Move(2, dtype=float32, dst_dtype=float16)(GL, GL)
    given = np.linspace(-3, 3, 64).astype(np.float32) + np.float32(0.01)
    stmt = of_one(MOVE, spec(Thread), access("src", (THREAD * 2,), (2,)), access("dst", (THREAD * 2,), (2,), write=True))
    got = run_of(Move(64, dtype=float32, dst_dtype=float16)(GL, GL), (stmt,), arrays={"src": given}, order=order)["dst"]
    np.testing.assert_array_equal(got, given.astype(np.float16))


# ---------------------------------------------------------------------------------------------- threads of accesses


def shared(name="x", size=256, offset=0, **fields):
    return attrs.evolve(local(name, (size,), SH, **fields), offset=offset)


WIDE = Var("thread", 0, 255)


def spread_write(unit):
    """Each of 256 threads writes its element, by an access that does not state which thread of its unit does."""
    write = attrs.evolve(access("x", (WIDE,), write=True), spread=True)
    if unit <= 32:
        return attrs.evolve(copy(access("src", (WIDE,)), write, (GL, SH)))
    lane = LaneMap.along((unit,), ((unit, 0, 1),), ((1, 0, 1),))
    return of_one(MOVE, Move(unit, dtype=float32)(GL, SH)(Warpgroup), access("src", (WIDE,)), write, lane_maps=(lane, lane))


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(
    "unit, barrier, right", [(32, None, False), (32, 32, True), (32, 64, True), (128, 32, False), (128, 64, False), (128, 128, True)]
)
def test_the_writing_thread_of_a_unit_is_unknown(unit, barrier, right, order):
    """Even its own element may have been written by another thread, so a barrier of the whole unit is needed."""
    barriers = () if barrier is None else (making.barrier(making.scope(f"group of {barrier}", barrier)),)
    body = (spread_write(unit), *barriers, copy(access("x", (WIDE,)), access("dst", (WIDE,)), (SH, GL)))
    program = kernel(body, shared(), threads=256)
    outcome = outcome_of(program, order=order)
    if right:
        np.testing.assert_array_equal(outcome["dst"][:256], np.arange(1, 257))
    else:
        assert outcome.startswith("race on x["), outcome


def test_a_race_names_both_statements_and_their_iterations():
    """The operation, the line, and the iteration of the surrounding loops, for both."""
    write = attrs.evolve(copy(access("src", (THREAD,)), access("x", (THREAD + K * 32,)), (GL, SH)), origin="line 1")
    read = attrs.evolve(copy(access("x", ((THREAD + 1) % 32 + J * 32,)), access("dst", (THREAD + J * 32,)), (SH, GL)), origin="line 2")
    body = (making.loop(K, as_expr(3), (write, OTHER)), making.loop(J, as_expr(3), (read, OTHER)))
    text = outcome_of(kernel(body, shared()))
    assert re.search(r"race on x\[1\].*: thread 1 writes it \(Move .* at line 1, k=0\), thread 0 reads it \(Move .* at line 2\)", text), (
        text
    )
    assert re.search(r"in +block 0, j=0\n", text) and "a barrier between the two" in text


@pytest.mark.parametrize("iterations, message", [(1, None), (2, "thread 0 of block 1|block 1")])
def test_loops_of_other_lengths_are_checked_in_each_block(iterations, message):
    """A second iteration, which only block 1 has, conflicts with accesses of other threads in the first."""
    block = Var("block", 0, 1)
    write = copy(access("src", (THREAD,)), access("x", ((THREAD + K) % 32,)), (GL, SH))
    read = copy(access("x", ((THREAD + K) % 32,)), access("dst", (THREAD + block * 32,)), (SH, GL))
    body = (making.loop(K, as_expr(1) + block * (iterations - 1), (write, read)),)
    outcome = outcome_of(kernel(body, shared(), grid=2))
    assert (message is None) == (not isinstance(outcome, str)), outcome
    assert message is None or (outcome.startswith("race on x") and re.search(message, outcome)), outcome


def test_blocks_with_separate_writes_use_shared_memory_uniformly():
    """The place of a block's writes to an array does not affect its use of shared memory."""
    block = Var("block", 0, 1)
    fill = copy(access("src", (THREAD + block * 32,)), access("x", (THREAD,)), (GL, SH))
    move = copy(access("x", (THREAD,)), access("dst", (THREAD + block * 32,)), (SH, GL))
    program = kernel((fill, move), shared(), grid=2)
    assert Plan(program, {}).uniform
    np.testing.assert_array_equal(outcome_of(program)["dst"][:64], np.arange(1, 65))


def test_the_grain_is_that_of_shared_memory():
    """Smaller elements elsewhere make it no finer."""
    assert planned((), shared(), local("r", (4,), RF, int8)).granule == 4


@pytest.mark.parametrize("offset", [-8, -1])
def test_buffers_in_front_of_shared_memory_are_refused(offset):
    body = (
        copy(access("src", (THREAD,)), access("x", (THREAD,)), (GL, SH)),
        copy(access("src", (THREAD,)), access("y", (THREAD,)), (GL, SH)),
    )
    program = kernel(body, shared(size=32, offset=offset), shared("y", 32, 256))
    assert outcome_of(program).startswith(f"x occupies bytes {offset} ... {offset + 127} of shared memory")


# ---------------------------------------------------------------------------------------------- statements of whole blocks


def with_scratch(level, size=64, offset=0):
    """A statement with its own shared memory, which copies each thread's element."""
    scratch = Tensor("scratch", (as_expr(size),), int8, SH, ColMajor, reuse=True, must_reuse=False)
    text = MicroKernel("m", "// m\n", scratch_bytes=size)
    if level is Thread:
        stmt = making.execution(
            text, Move(1, dtype=float32)(GL, GL)(Thread), (access("src", (THREAD,)), access("dst", (THREAD,), write=True)), scratch=scratch
        )
    else:
        stmt = making.execution(
            text,
            Move(32, dtype=float32)(GL, GL)(Block),
            (access("src", (0,), (32,)), access("dst", (0,), (32,), write=True)),
            scratch=scratch,
        )
    return stmt, attrs.evolve(making.buffer(scratch, scratch.storage(), scratch.storage().extent, written=True), offset=offset)


FILLED = copy(access("src", (THREAD,)), access("x", (THREAD,)), (GL, SH))
EMPTIED = copy(access("x", (THREAD,)), access("dst", (THREAD + 32,)), (SH, GL))


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("level", [Thread, Block], ids=str)
def test_memory_of_a_statement_of_its_own(level, order):
    """Any thread may write anywhere in it: bytes that it shares with a buffer want barriers, and lose their values."""
    apart, (stmt, scratch), x = making.barrier(ir.BLOCK_SCOPE), with_scratch(level), shared(size=32)
    for body, right in (
        ((stmt,), True),
        ((stmt, apart, FILLED), True),
        ((stmt, FILLED), False),
        ((FILLED, stmt), False),
        ((FILLED, apart, stmt), True),
    ):
        outcome = outcome_of(kernel(body, x, scratch), order=order)
        assert isinstance(outcome, str) != right, (body, outcome)
        assert (outcome["dst"][:32] == np.arange(1, 33)).all() if right else outcome.startswith("race on"), outcome
    lost = outcome_of(kernel((FILLED, apart, stmt, apart, EMPTIED), x, scratch), order=order)["dst"][32:64] == np.arange(1, 33)
    assert not lost[:16].any() and lost[16:].all()
    disjoint = outcome_of(kernel((FILLED, stmt, EMPTIED), x, attrs.evolve(scratch, offset=128)), order=order)
    np.testing.assert_array_equal(disjoint["dst"][32:64], np.arange(1, 33))


def test_memory_of_a_statement_is_within_that_of_the_block():
    stmt, scratch = with_scratch(Block, offset=64)
    program = attrs.evolve(kernel((stmt,), scratch), shared_bytes=127)
    assert outcome_of(program).startswith("scratch occupies bytes 64 ... 127 of shared memory")
    assert [buffer.name for buffer in Plan(program, {}).shared_in_use] == ["scratch"]


def test_a_statement_of_the_block_in_a_loop():
    """It is not an axis: the iterations are sequential, with the contents of each."""
    stmt, _ = with_scratch(Block)
    stmt = attrs.evolve(stmt, accesses=(access("src", (K * 32,), (32,)), access("dst", (K * 32,), (32,), write=True)), scratch=None)
    for order in ORDERS:
        outcome = outcome_of(kernel((making.loop(K, as_expr(4), (stmt,)),)), order=order)
        np.testing.assert_array_equal(outcome["dst"][:128], np.arange(1, 129))


@pytest.mark.parametrize("order", ORDERS)
def test_a_statement_of_several_warps_in_a_loop(order):
    """Whose lanes pass values on: no warp performs it before the others have come, and each receives what the maps say."""
    thread = Var("thread", 0, 127)
    straight, permuted = (LaneMap.along((128,), lanes, ((1, 0, 1),)) for lanes in (((128, 0, 1),), ((4, 0, 32), (32, 0, 1))))
    stmt = of_one(
        MOVE,
        Move(128, dtype=float32)(GL, GL)(Warpgroup),
        access("src", (thread + K * 128,)),
        access("dst", (thread + K * 128,), write=True),
        lane_maps=(straight, permuted),
    )
    outcome = outcome_of(kernel((making.loop(K, as_expr(4), (stmt,)),), threads=128), order=order)
    numbers = np.arange(1, 513).reshape(4, 4, 32).transpose(0, 2, 1).ravel()
    np.testing.assert_array_equal(outcome["dst"], numbers)


@pytest.mark.parametrize("statement", [making.step_marker("a"), making.sync_point(None, "a"), making.hole("a")], ids=repr)
def test_statements_that_no_thread_executes(statement):
    with pytest.raises(VerificationError, match=f"the simulator does not handle the statement {type(statement).__name__}"):
        planned((statement,))


@pytest.mark.parametrize("statement", [making.comment("a"), making.grid_dep_control(ir.GridDepAction.WAIT)], ids=repr)
def test_statements_without_effect_in_the_simulator(statement):
    assert planned((statement,)).nodes == []


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("name", WGMMA_SEQUENCES)
def test_registers_of_products_under_way(name, order):
    """By hand: what may be touched while they are, and what wants a fence before, or a wait."""
    program, message = wgmma_kernel(name)
    given = np.arange(1, 33, dtype=np.float32).reshape(32, 1)
    if message is not None:
        with pytest.raises(SimulationError, match=message):
            copied(program, given, None if order is None else random.Random(order))
        return
    a = given.astype(np.float64)
    steps = WGMMA_SEQUENCES[name][0].split(", ")
    values = {step[0]: a for step in steps if step.endswith(("=", "<"))}
    for step in steps:
        if "=" in step[1:-1]:
            values[step[0]] = values[step[0]] * ("+" in step) if step[0] in values else 0
            values[step[0]] = values[step[0]] + values[step[-2]] * values[step[-1]]
    stored = [step[1] for step in steps if step.startswith("=")][-1]
    np.testing.assert_array_equal(copied(program, given, None if order is None else random.Random(order)), values[stored])


# ---------------------------------------------------------------------------------------------- rings


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("tiles, blocks", [(1, 1), (5, 1), (5, 2), (5, 5), (2, 2)])
def test_tiles_that_blocks_take(tiles, blocks, order):
    """Each block processes its own tiles, a varying number of them."""
    given = np.arange(1, tiles * 32 + 1, dtype=np.float32)
    np.testing.assert_array_equal(copied(fetched(tiles, blocks), given, None if order is None else random.Random(order)), given)


def next_to_a_ring(*others, writes="y", barrier=None):
    """Two warps read a ring's stages and then write to a separate buffer, which may occupy the same bytes."""
    kernel = streamed(2, 2, warps=2)
    thread = Var("thread", 0, 63)
    (roles,) = kernel.body
    consumers, producer = roles.roles
    write = copy(access("src", (thread,)), access(writes, (63 - thread,)), (GL, SH))
    move = making.execution(
        MOVE, Move(1, 1, dtype=float16)(GL, SH)(Thread), (access("src", (0, thread)), access(writes, (0, 63 - thread), write=True))
    )
    move = attrs.evolve(move, pieces=write.pieces)
    more = (move,) if barrier is None else (making.barrier(barrier), move)
    consumers = attrs.evolve(consumers, body=(*consumers.body, *more))
    return attrs.evolve(kernel, body=(making.roles((consumers, producer)),), buffers=(*kernel.buffers, *others), shared_bytes=8192)


GROUP = making.scope("group of 64", 64)
FLOAT16 = np.arange(1, 16 * 64 + 1).reshape(16, 64).astype(np.float16)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(
    "offsets, barrier, right",
    [((1024,), None, False), ((1024,), GROUP, True), ((4096,), None, True), ((1024, 4096), None, False), ((4096, 1024), None, True)],
)
def test_bytes_of_a_ring_that_others_write_to(offsets, barrier, right, order):
    """The ring orders its readers with the producer, not with writers to its bytes under another name."""
    others = [attrs.evolve(local(name, (1, 64), SH, float16), offset=offset) for name, offset in zip("yz", offsets, strict=False)]
    program, chance = next_to_a_ring(*others, barrier=barrier), None if order is None else random.Random(order)
    if right:
        np.testing.assert_array_equal(copied(program, FLOAT16, chance), FLOAT16)
    else:
        with pytest.raises(SimulationError, match="race on [xy].*reads it .*writes it|race on tile.*writes it .*reads it"):
            copied(program, FLOAT16, chance)


# ---------------------------------------------------------------------------------------------- what warps leave out


NEEDED = local("needed", (1,), RF, int32)


def left_out(*body, needed="needed"):
    """Threads have the number of their warp in `needed`, which is 0 in the first one; a warp performs the body if it needs it."""
    thread = Var("thread", 0, 63)
    number = of_one(MOVE, Move(1, dtype=int32)(GL, RF)(Thread), access("src", (thread,)), access("needed", (0,), write=True))
    init = of_one(MOVE, Move(1, dtype=int32)(GL, RF)(Thread), access("src", (thread + 64,)), access("r", (0,), write=True))
    store = of_one(MOVE, Move(1, dtype=int32)(RF, GL)(Thread), access("r", (0,)), access("dst", (thread,), write=True))
    return kernel_of(
        Move(192, dtype=int32)(GL, GL),
        (number, init, making.if_any_lane("needed", body), store),
        NEEDED,
        local("r", (2,), RF, int32),
        local("s", (2,), RF, int32),
        threads=64,
    )


def moved(source, target):
    return of_one(MOVE, Move(1, dtype=int32)(RF, RF)(Thread), access(source, (0,)), access(target, (0,), write=True))


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("needing", [(), (0,), (31,), (32,), (63,), (0, 40), range(64)], ids=str)
def test_skipped_statements_of_a_warp(needing, order):
    """All of a warp perform it if one of them needs it; of a warp that does not, registers keep what they had."""
    given = np.concatenate([np.isin(np.arange(64), needing) * 5, np.arange(100, 164), np.zeros(64)]).astype(np.int32)
    got = copied(left_out(moved("needed", "r")), given, None if order is None else random.Random(order))[:64]
    some = np.repeat([any(one // 32 == warp for one in needing) for warp in (0, 1)], 32)
    np.testing.assert_array_equal(got, np.where(some, given[:64], given[64:128]))


@pytest.mark.parametrize("order", ORDERS)
def test_uninitialized_registers_of_a_skipping_warp(order):
    """It has nothing in registers that only others of the block wrote."""
    program = left_out(moved("needed", "s"))
    body = (*program.body[:-1], moved("s", "r"), program.body[-1])
    program = attrs.evolve(program, body=body)
    for needing, right in ((range(64), True), ((0, 63), True), ((40,), False), ((1,), False)):
        given = np.concatenate([np.isin(np.arange(64), needing), np.zeros(128)]).astype(np.int32)
        outcome = outcome_of(program, {"src": given}, order)
        if right:
            np.testing.assert_array_equal(outcome["dst"][:64], given[:64])
        else:
            first = 0 if min(needing) >= 32 else 32
            assert outcome.startswith(f"s[0] (register 0) is read before any write to it: thread {first} of block 0"), outcome


def test_a_row_of_variable_length_whose_elements_share_a_place():
    """The last element of each row stays, of rows of other lengths."""
    inner = making.loop(K, J + 1, (copy(access("src", (THREAD + BOTH * 32,)), access("dst", (THREAD + J * 32,))),))
    got, given = result((making.loop(J, as_expr(3), (inner,)),))
    np.testing.assert_array_equal(got[:96].reshape(3, 32), given[: 12 * 32].reshape(12, 32)[[0, 5, 10]])


@pytest.mark.parametrize("most", [1 << 21, 32 * 3])
def test_places_shared_around_a_loop_without_effect_on_them(most, monkeypatch):
    """The last iteration wins, with an inner loop whose length depends on the block."""
    monkeypatch.setattr(planning, "MAX_ELEMENTS", most)
    block = Var("block", 0, 1)
    for extents in itertools.permutations((as_expr(3), as_expr(2) + block, as_expr(2))):
        source = access("src", (THREAD + (BOTH * 2 + L) % 16 * 32,))
        body = loops((copy(source, access("dst", (THREAD + (J + K) * 32 + block * 256,))),), *zip((J, K, L), extents, strict=True))
        got, given = result(body, grid=2)
        for number in range(2):
            sizes = [extent.evaluate({"block": number}) for extent in extents]
            for place, iteration in one_by_one(sizes, lambda j, k, n: (j + k, (j * 8 + k * 2 + n) % 16)).items():
                offset = number * 256 + place * 32
                np.testing.assert_array_equal(got[offset : offset + 32], given[iteration * 32 : iteration * 32 + 32])


def test_a_name_from_outside_the_loops():
    """A place inside a loop of two statements moves with the loop around that, by a name which is bound between the two."""
    name = Var("name", 0, 127)
    move = copy(access("src", (THREAD + name,)), access("dst", (THREAD + name,)))
    got, given = result((making.loop(K, as_expr(4), (making.let(name, K * 32), making.loop(L, as_expr(2), (move, OTHER)))),))
    np.testing.assert_array_equal(got[:128], given[:128])


@pytest.mark.parametrize("axes", [(0, 1), (1, 0), (0, 2), (2, 0), (2, 1)], ids=str)
def test_the_dimensions_of_an_array_in_the_order_of_an_operand(axes):
    """The factor B of a product, in an array whose dimensions it has in another order, or that has one more."""
    spec_of_all = MatMul(64, 3, 2, A=RowMajor, B=RowMajor, C=RowMajor)(GL, GL, GL)(Kernel)
    of_thread = MatMul(2, 3, 2)(GL, GL, GL)(Thread)
    shape = [1] * (max(axes) + 1)
    for axis, size in zip(axes, (2, 3), strict=True):
        shape[axis] = size
    view = of_thread.operands["B"]
    tensor = Tensor("B", tuple(map(as_expr, shape)), float32, GL, ColMajor if len(shape) == 2 else Layout(tuple(shape)))
    numerals = [Dim((Mode(as_expr(1), as_expr(1)),))] * len(shape)
    for axis, numeral in zip(axes, view.numerals, strict=True):
        numerals[axis] = numeral
    permuted = attrs.evolve(view, numerals=tuple(numerals), axes=axes)
    views = tuple(permuted if one is view else one for one in of_thread.views)
    of_thread = attrs.evolve(of_thread, views=views)
    accesses = (
        access("A", (THREAD * 2, 0), (2, 2)),
        access("B", (0,) * len(shape), tuple(shape)),
        access("C", (THREAD * 2, 0), (2, 3), write=True),
    )
    program = kernel_of(lambda level: spec_of_all, (of_one(FFMA, of_thread, *accesses),))
    buffer = making.buffer(tensor, tensor.storage(), tensor.storage().extent, parameter=True)
    program = attrs.evolve(program, buffers=tuple(buffer if one.name == "B" else one for one in program.buffers))
    values = np.random.default_rng(0)
    a, b = values.integers(0, 9, (64, 2)).astype(np.float32), values.integers(0, 9, (2, 3)).astype(np.float32)
    given = (b if axes[0] < axes[1] else b.T).reshape(shape)
    np.testing.assert_array_equal(simulate(program, {"A": a, "B": given}).outputs["C"], a @ b)


def test_a_statement_of_the_whole_kernel():
    """Of its only block all threads perform it together."""
    stmt = making.execution(
        MicroKernel("m", "// m\n"),
        Move(64, dtype=float32)(GL, GL)(Kernel),
        (access("src", (0,), (64,)), access("dst", (0,), (64,), write=True)),
    )
    for order in ORDERS:
        np.testing.assert_array_equal(outcome_of(kernel((stmt,), threads=64), order=order)["dst"][:64], np.arange(1, 65))
