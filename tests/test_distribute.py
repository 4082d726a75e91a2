"""`distribute` alone, on hand-made IR: who holds which element under which number, and what is refused."""

import attrs
import numpy as np
import pytest

from fireiron import *
from fireiron.expr import FALSE, TRUE, ZERO, Const, Var, as_expr, equal, less
from fireiron.ir import Access, Buffer, Exec, For, verify
from fireiron.ir import Kernel as Program
from fireiron.lower.distribute import distribute
from fireiron.machine import as_architecture
from fireiron.tensor import Dealt, Mode, Storage, Tensor, whole_view

THREADS = 32
THREAD = Var("thread", 0, THREADS - 1)
COPY = next(one for one in INSTRUCTIONS if one.name == "MOVE")
FILL = next(one for one in INSTRUCTIONS if one.name == "INIT")


def array(name, memory, elements, **options):
    """A float32 array of one row."""
    return Tensor(name, (as_expr(elements), as_expr(1)), float32, memory, ColMajor, **options)


def access(tensor, base, count=1, stride=1, *, write=False, dealt=(), bound=None):
    """Which elements `base + stride * i` a thread touches."""
    return Access(
        tensor.name, (as_expr(base), ZERO), ((Mode(count, stride),), (Mode(1, 1),)), (bound, None), write, dealt=(tuple(dealt), ())
    )


def move(source, target, active=TRUE):
    """A copy by single threads."""
    spec = Move(1, 1)(RF, RF)(Thread)
    return Exec(COPY, spec, (source, target), active=active)


def fill(target, active=TRUE):
    """A uniform value set by single threads."""
    return Exec(FILL, Init(1, 1)(RF)(Thread), (target,), active=active)


def kernel(held, *body, others=()):
    """One block of 32 threads with the array `held` in registers, and an array in global memory for the other side of copies."""
    everything = array("g", GL, 4096)
    tensors = (everything, held, *others)
    buffers = tuple(Buffer(one, one.storage(), one.storage().extent, parameter=one.memory == GL, written=one.memory == GL) for one in tensors)
    spec = MatMul(8, 8, 8)(GL, GL, GL)(Kernel)
    return verify(Program("hand_made", as_architecture("sm_90"), as_expr(1), THREADS, buffers, (), tuple(body), spec))


GLOBAL = array("g", GL, 4096)
HELD = array("r", RF, 64)
PAIR = (Dealt(THREADS, 2, True),)
"""Two neighbours for each thread."""


def reader(base=THREAD * 2, count=2, stride=1, dealt=PAIR, active=TRUE):
    """The compute path: it reads its elements of `r`."""
    return move(access(HELD, base, count, stride, dealt=dealt), access(GLOBAL, base, count, write=True), active)


def writer(base=THREAD * 2, count=2, stride=1, dealt=PAIR, active=TRUE):
    """A path that fills `r`."""
    return move(access(GLOBAL, base, count), access(HELD, base, count, stride, write=True, dealt=dealt), active)


def registers(program, statement, position, thread):
    """The register numbers of a thread's elements at an operand."""
    one = statement.accesses[position]
    buffer = program.buffer(one.buffer)
    return [int(buffer.address(one, offset).evaluate({"thread": thread})) for offset in one.elements()]


def test_a_thread_keeps_its_two_neighbours_in_registers_0_and_1():
    program = distribute(kernel(HELD, writer(), reader()))
    assert int(program.buffer("r").elements.evaluate({})) == 2
    for thread in (0, 5, 31):
        assert registers(program, program.body[0], 1, thread) == [0, 1]
        assert registers(program, program.body[1], 0, thread) == [0, 1]


def test_the_holder_names_the_coordinates_of_register_0():
    program = distribute(kernel(HELD, writer(), reader()))
    held = [tuple(int(part.evaluate({"thread": 7})) for part in program.buffer("r").held(Const(register))) for register in (0, 1)]
    assert held == [(14, 0), (15, 0)]


def test_a_loop_numbers_registers_behind_the_values_of_one_step():
    step = Var("i", 0, 1)
    tensor = array("r", RF, 128)
    base = THREAD * 2 + step * 64
    dealt = (Dealt(THREADS, 2, True), Dealt(2, 64, False))
    body = tuple(
        For(step, as_expr(2), (one,))
        for one in (
            move(access(GLOBAL, base, 2), access(tensor, base, 2, write=True, dealt=dealt)),
        )
    )
    second = Var("j", 0, 1)
    base = base.substitute({step: second})
    reads = For(second, as_expr(2), (move(access(tensor, base, 2, dealt=dealt), access(GLOBAL, base, 2, write=True)),))
    program = distribute(kernel(tensor, *body, reads))
    assert int(program.buffer("r").elements.evaluate({})) == 4
    one = program.body[1].body[0].accesses[0]
    found = [[int(program.buffer("r").address(one, o).evaluate({"thread": 3, "j": j})) for o in one.elements()] for j in (0, 1)]
    assert found == [[0, 1], [2, 3]]


# ---------------------------------------------------------------------------------------------- refusals


def foreign(thread):
    """The pair of each thread, but that of one, whose second element is its neighbour's first."""
    return THREAD * 2, equal(THREAD, thread)


def test_one_element_in_one_thread_that_reads_what_its_neighbour_holds_is_refused():
    base, only = THREAD * 2 + equal(THREAD, 9), equal(THREAD, 9)
    stray = move(access(HELD, base, 2, dealt=PAIR), access(GLOBAL, base, 2, write=True), only)
    with pytest.raises(DecompositionError) as caught:
        distribute(kernel(attrs.evolve(HELD, owner="accumulates"), adder(), stray))
    message = str(caught.value)
    assert "reads element (20, 0) in thread 9" in message or "reads element (19, 0) in thread 9" in message
    assert "keeps it in thread" in message


def adder(base=THREAD * 2, count=2):
    """A compute path that accumulates, and so decides who holds an accumulator."""
    spec = Move(1, 1)(RF, RF)(Thread)
    return Exec(COPY, spec, (access(GLOBAL, base, count), access(HELD, base, count, write=True, dealt=PAIR)), accumulate=TRUE)


ACCUMULATOR = attrs.evolve(HELD, owner="accumulates")


@pytest.mark.parametrize("thread", [0, 9, 30])
def test_one_foreign_element_of_one_thread_is_found(thread):
    """All threads store the pair that they hold; one of them, its neighbour's first element beside it."""
    right = move(access(HELD, THREAD * 2, 2, dealt=PAIR), access(GLOBAL, THREAD * 2, 2, write=True))
    foreign_one = move(
        access(HELD, THREAD * 2 + 2, 1, dealt=PAIR), access(GLOBAL, THREAD * 2 + 2, 1, write=True), equal(THREAD, thread)
    )
    assert distribute(kernel(ACCUMULATOR, adder(), right))
    with pytest.raises(DecompositionError) as caught:
        distribute(kernel(ACCUMULATOR, adder(), right, foreign_one))
    expected = f"reads element ({2 * thread + 2}, 0) in thread {thread}, the compute path keeps it in thread {thread + 1}"
    assert expected in str(caught.value)


@pytest.mark.parametrize("thread", [0, 17, 31])
def test_one_element_that_a_fill_leaves_out_is_found(thread):
    """A copy that fills all pairs, but one element of one thread."""
    first = writer(base=THREAD * 2, count=1)
    second = less(THREAD, thread) if thread == 31 else 1 - equal(THREAD, thread)
    rest = writer(base=THREAD * 2 + 1, count=1, active=equal(second, 1))
    with pytest.raises(DecompositionError) as caught:
        distribute(kernel(HELD, attrs.evolve(writer(), active=equal(second, 1)), reader()))
    assert f"thread {thread} needs element ({2 * thread}, 0) in its registers" in str(caught.value)
    assert first.accesses and rest.accesses


def test_two_elements_in_one_register_are_refused():
    """The owner's own modes do not tell two elements apart: the loop was not said to be dealt."""
    step = Var("i", 0, 1)
    tensor = array("r", RF, 128)
    base = THREAD * 2 + step * 64
    loop = For(step, as_expr(2), (move(access(tensor, base, 2, dealt=PAIR), access(GLOBAL, base, 2, write=True)),))
    with pytest.raises(DecompositionError) as caught:
        distribute(kernel(tensor, loop))
    assert "thread 0 would keep elements (0, 0) and (64, 0) in register 0" in str(caught.value)


def test_elements_beyond_the_end_of_the_array_are_held_by_nobody():
    """17 pairs for 32 threads: the last element and all behind it lie outside, and nobody must fill them."""
    tensor = array("r", RF, 33)
    bound = as_expr(33)
    fills = move(access(GLOBAL, THREAD * 2, 2), access(tensor, THREAD * 2, 2, write=True, dealt=PAIR, bound=bound), less(THREAD, 17))
    reads = move(access(tensor, THREAD * 2, 2, dealt=PAIR, bound=bound), access(GLOBAL, THREAD * 2, 2, write=True))
    assert int(distribute(kernel(tensor, fills, reads)).buffer("r").elements.evaluate({})) == 2
    short = attrs.evolve(fills, active=less(THREAD, 16))
    with pytest.raises(DecompositionError, match=r"thread 16 needs element \(32, 0\)"):
        distribute(kernel(tensor, short, reads))


# ---------------------------------------------------------------------------------------------- uniform fills (T006)


def test_a_uniform_fill_may_number_registers_in_its_own_way():
    """Each thread clears elements 32 apart, where the compute path keeps neighbours: all registers are set all the same."""
    clears = fill(access(HELD, THREAD, 2, 32, write=True, dealt=(Dealt(THREADS, 1, True),)))
    program = distribute(kernel(HELD, clears, reader()))
    one = program.body[0].accesses[0]
    assert one.storage == Storage(one.storage.dims, as_expr(2))
    assert [registers(program, program.body[0], 0, thread) for thread in (0, 31)] == [[0, 1], [0, 1]]
    assert program.body[1].accesses[0].storage is None


@pytest.mark.parametrize("idle", [0, 13, 31])
def test_a_uniform_fill_that_leaves_one_thread_out_is_refused(idle):
    busy = equal(equal(THREAD, idle), 0)
    clears = fill(access(HELD, THREAD, 2, 32, write=True, dealt=(Dealt(THREADS, 1, True),)), busy)
    with pytest.raises(DecompositionError, match=r"thread \d+ needs element"):
        distribute(kernel(HELD, clears, reader()))


def test_an_array_that_no_unit_shares_keeps_its_storage():
    """Without dealt modes each thread has all of the array, by its place in storage."""
    tensor = array("r", RF, 4)
    fills = move(access(GLOBAL, ZERO, 4), access(tensor, ZERO, 4, write=True))
    reads = move(access(tensor, ZERO, 4), access(GLOBAL, THREAD * 4, 4, write=True))
    program = distribute(kernel(tensor, fills, reads))
    assert registers(program, program.body[1], 0, 3) == [0, 1, 2, 3]
    assert np.array_equal(program.buffer("r").elements.evaluate({}), 4)
    assert FALSE.value == 0
