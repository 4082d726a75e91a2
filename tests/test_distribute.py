"""`distribute` alone, on hand-made IR: who holds which element under which number, and what is refused."""

import attrs
import making
import pytest

from fireiron import *
from fireiron.executable.thread_move import INIT, MOVE
from fireiron.ir import verify
from fireiron.lower.distribute import distribute, holdings
from fireiron.lower.footprint import MOST_POINTS
from fireiron.values.expr import TRUE, ZERO, Const, Var, as_expr, equal, less
from fireiron.values.machine import as_architecture
from fireiron.values.tensor import Mode, Tensor, UnitMode

THREADS = 32
THREAD = Var("thread", 0, THREADS - 1)
PAIR = (UnitMode(THREADS, 2, True),)
"""Two neighbours for each thread."""


def array(name, memory, elements, **options):
    """A float32 array of one column."""
    return Tensor(name, (as_expr(elements), as_expr(1)), float32, memory, ColMajor, **options)


GLOBAL = array("g", GL, 4096)
HELD = array("r", RF, 64)
ADDED = attrs.evolve(HELD, owner="accumulates")


def access(tensor, base, count=1, stride=1, *, write=False, dealt=(), bound=None):
    """The elements `base + stride * i` of a column."""
    bounds = (None if bound is None else as_expr(bound), None)
    modes = ((Mode(count, stride),), (Mode(1, 1),))
    return making.access(tensor.name, (as_expr(base), ZERO), modes, bounds, write, dealt=(tuple(dealt), ()))


def write(tensor, base=THREAD * 2, count=2, dealt=PAIR, active=TRUE, bound=None, accumulate=ZERO):
    """A copy of single threads into registers."""
    target = access(tensor, base, count, write=True, dealt=dealt, bound=bound)
    return making.execution(MOVE, Move(1, 1)(GL, RF)(Thread), (access(GLOBAL, base, count), target), accumulate=accumulate, active=active)


def read(tensor, base=THREAD * 2, count=2, dealt=PAIR, active=TRUE, bound=None):
    """A copy of single threads out of registers."""
    source = access(tensor, base, count, dealt=dealt, bound=bound)
    return making.execution(MOVE, Move(1, 1)(RF, GL)(Thread), (source, access(GLOBAL, base, count, write=True)), active=active)


def kernel(held, *body):
    """One block of 32 threads with an array in registers, and one in global memory for the other side of copies."""
    buffers = tuple(
        making.buffer(one, one.storage(), one.storage().extent, parameter=one.memory == GL, written=one.memory == GL)
        for one in (GLOBAL, held)
    )
    spec = MatMul(8, 8, 8)(GL, GL, GL)(Kernel)
    return verify(making.kernel("hand_made", as_architecture("sm_90"), as_expr(1), THREADS, buffers, (), body, spec))


def registers(program, found, **values):
    """The register numbers of an access's elements."""
    buffer = program.buffer(found.buffer)
    return [int(buffer.address(found, offset).evaluate(values)) for offset in found.elements()]


def size(program, name):
    """Registers that an array takes of each thread."""
    return int(program.buffer(name).elements.evaluate({}))


def refusal(program):
    """What `distribute` says against a kernel."""
    with pytest.raises(DecompositionError) as caught:
        distribute(program)
    return str(caught.value)


# ---------------------------------------------------------------------------------------------- numbers


def test_a_thread_keeps_its_two_neighbours_in_registers_0_and_1():
    program = distribute(kernel(HELD, write(HELD), read(HELD)))
    filled, used = program.body
    assert size(program, "r") == 2
    for thread in (0, 5, 31):
        assert registers(program, filled.accesses[1], thread=thread) == [0, 1]
        assert registers(program, used.accesses[0], thread=thread) == [0, 1]


def test_the_holder_names_the_coordinates_of_a_register():
    program = distribute(kernel(HELD, write(HELD), read(HELD)))
    held = [tuple(int(part.evaluate({"thread": 7})) for part in program.buffer("r").held(Const(number))) for number in (0, 1)]
    assert held == [(14, 0), (15, 0)]


def test_the_steps_of_a_loop_have_registers_of_their_own():
    tensor, dealt = array("r", RF, 128), (*PAIR, UnitMode(2, 64, False))
    fill_step, read_step = Var("i", 0, 1), Var("j", 0, 1)
    fills = making.loop(fill_step, as_expr(2), (write(tensor, THREAD * 2 + fill_step * 64, dealt=dealt),))
    reads = making.loop(read_step, as_expr(2), (read(tensor, THREAD * 2 + read_step * 64, dealt=dealt),))
    program = distribute(kernel(tensor, fills, reads))
    assert size(program, "r") == 4
    used = program.body[1].body[0].accesses[0]
    assert [registers(program, used, thread=3, j=step) for step in (0, 1)] == [[0, 1], [2, 3]]


def test_an_array_of_which_each_thread_has_a_whole_copy_keeps_its_storage():
    tensor = array("r", RF, 4)
    program = distribute(kernel(tensor, write(tensor, ZERO, 4, dealt=()), read(tensor, ZERO, 4, dealt=())))
    assert registers(program, program.body[1].accesses[0], thread=3) == [0, 1, 2, 3]


# ---------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize("thread", [0, 9, 30])
def test_one_foreign_element_that_one_thread_reads_is_refused(thread):
    """All threads store the pair that they hold; one of them also its neighbour's first element, and nothing else is wrong."""
    adds, stores = write(ADDED, accumulate=TRUE), read(ADDED)
    assert size(distribute(kernel(ADDED, adds, stores)), "r") == 2
    foreign = read(ADDED, THREAD * 2 + 2, 1, active=equal(THREAD, thread))
    expected = f"reads element ({2 * thread + 2}, 0) in thread {thread}, the compute path keeps it in thread {thread + 1}"
    assert expected in refusal(kernel(ADDED, adds, stores, foreign))


@pytest.mark.parametrize("thread", [0, 17, 31])
def test_one_thread_that_a_copy_leaves_out_is_refused(thread):
    fills = write(HELD, active=equal(equal(THREAD, thread), 0))
    assert f"thread {thread} needs element ({2 * thread}, 0) in its registers" in refusal(kernel(HELD, fills, read(HELD)))


def test_one_element_that_a_copy_leaves_out_is_refused():
    """The last thread starts one element late: the one before is left out, and the one behind lies outside."""
    late = write(HELD, THREAD * 2 + equal(THREAD, 31))
    assert "thread 31 needs element (62, 0)" in refusal(kernel(HELD, late, read(HELD)))


def test_two_elements_in_one_register_are_refused():
    """The loop is none of the modes that were dealt, so both its steps give one number."""
    step = Var("i", 0, 1)
    tensor = array("r", RF, 128)
    loop = making.loop(step, as_expr(2), (read(tensor, THREAD * 2 + step * 64),))
    assert "thread 0 would keep elements (0, 0) and (64, 0) in register 0" in refusal(kernel(tensor, loop))


def test_one_element_too_many_in_a_register_of_one_thread_is_refused():
    """Only thread 20 meets a second element in its first register."""
    tensor = array("r", RF, 128)
    second = read(tensor, THREAD * 2 + 64, 1, active=equal(THREAD, 20))
    assert "thread 20 would keep elements (40, 0) and (104, 0) in register 0" in refusal(kernel(tensor, read(tensor), second))


def test_elements_outside_the_array_are_held_by_nobody():
    """33 elements: thread 16 has the last one, and what lies behind it nobody must fill."""
    tensor = array("r", RF, 33)
    reads = read(tensor, bound=33)
    assert size(distribute(kernel(tensor, write(tensor, bound=33, active=less(THREAD, 17)), reads)), "r") == 2
    assert "thread 16 needs element (32, 0)" in refusal(kernel(tensor, write(tensor, bound=33, active=less(THREAD, 16)), reads))


def test_the_first_element_outside_is_held_by_nobody():
    """63 elements: of the last pair one lies outside, so that a copy need not bring it."""
    tensor = array("r", RF, 63)
    early = write(tensor, THREAD * 2 - equal(THREAD, 31), bound=63)
    assert size(distribute(kernel(tensor, early, read(tensor, bound=63))), "r") == 2


def test_what_sets_a_sum_does_not_decide_who_holds_it():
    """The copy in front deals elements 32 apart; the path that adds holds neighbours, and the copy is refused, not the sum."""
    target = access(ADDED, THREAD, 2, 32, write=True, dealt=(UnitMode(THREADS, 1, True),))
    copies = making.execution(MOVE, Move(1, 1)(GL, RF)(Thread), (access(GLOBAL, THREAD, 2, 32), target))
    assert "thread 0 needs element (1, 0)" in refusal(kernel(ADDED, copies, write(ADDED, accumulate=TRUE), read(ADDED)))


# ---------------------------------------------------------------------------------------------- uniform fills (T006)


def test_a_group_takes_each_element_from_whichever_of_its_threads_holds_it():
    """Where nothing but a group reads them, threads may have them in any way."""
    together = attrs.evolve(read(HELD, 0, 64, ()), spec=Move(1, 1)(RF, GL)(Warp))
    assert together.collective
    program = kernel(HELD, write(HELD), together)
    assert distribute(program).buffer("r").storage == program.buffer("r").storage


def test_so_many_elements_that_tables_of_them_take_all_memory_are_refused():
    """Threads, turns of the loops and elements of the statement count; in each of the former there are few enough."""
    turn = Var("turn", 0, 1 << 20)
    loop = making.loop(turn, as_expr(MOST_POINTS // THREADS), ())
    found = write(HELD, THREAD + turn * 64)
    program = kernel(HELD, write(HELD))
    with pytest.raises(ResourceError, match=f"touch {MOST_POINTS * 2} elements in one statement.*loops: turn of {MOST_POINTS // THREADS}"):
        holdings(program, program.buffer("r"), [(found, (loop,), found.accesses[1])])


def clear(active=TRUE):
    """Each thread clears two elements 32 apart, where the compute path keeps neighbours."""
    target = access(HELD, THREAD, 2, 32, write=True, dealt=(UnitMode(THREADS, 1, True),))
    return making.execution(INIT, Init(1, 1)(RF)(Thread), (target,), active=active)


def test_a_uniform_fill_may_number_registers_in_its_own_way():
    program = distribute(kernel(HELD, clear(), read(HELD)))
    cleared, used = program.body[0].accesses[0], program.body[1].accesses[0]
    assert [registers(program, cleared, thread=thread) for thread in (0, 31)] == [[0, 1], [0, 1]]
    assert used.storage is None


def test_a_copy_may_not():
    """What is copied differs from element to element, so it must arrive where the compute path looks for it."""
    target = access(HELD, THREAD, 2, 32, write=True, dealt=(UnitMode(THREADS, 1, True),))
    copies = making.execution(MOVE, Move(1, 1)(GL, RF)(Thread), (access(GLOBAL, THREAD, 2, 32), target))
    assert "thread 0 needs element (1, 0)" in refusal(kernel(HELD, copies, read(HELD)))


@pytest.mark.parametrize("idle", [0, 13, 31])
def test_a_uniform_fill_that_leaves_one_thread_out_is_refused(idle):
    assert "needs element" in refusal(kernel(HELD, clear(equal(equal(THREAD, idle), 0)), read(HELD)))
