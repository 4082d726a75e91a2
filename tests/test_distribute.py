"""`distribute` alone, on hand-made IR: which thread owns which element in which register, and what is refused."""

import attrs
import making
import pytest

from fireiron import *
from fireiron.executable.thread_move import INIT, MOVE
from fireiron.ir import verify
from fireiron.lower.distribute import accesses_of, distribute
from fireiron.lower.footprint import MOST_POINTS
from fireiron.values.expr import TRUE, ZERO, Const, Var, as_expr, equal, less
from fireiron.values.machine import as_architecture
from fireiron.values.tensor import Mode, Tensor, UnitMode

THREADS = 32
THREAD = Var("thread", 0, THREADS - 1)
PAIR = (UnitMode(THREADS, 2, True),)
"""Two adjacent elements per thread."""


def array(name, memory, elements, **options):
    """A float32 array of one column."""
    return Tensor(name, (as_expr(elements), as_expr(1)), float32, memory, ColMajor, **options)


GLOBAL = array("g", GL, 4096)
REGISTERS = array("r", RF, 64)
ADDED = attrs.evolve(REGISTERS, owner="accumulates")


def access(tensor, base, count=1, stride=1, *, write=False, unit_modes=(), bound=None):
    """The elements `base + stride * i` of a column."""
    bounds = (None if bound is None else as_expr(bound), None)
    modes = ((Mode(count, stride),), (Mode(1, 1),))
    return making.access(tensor.name, (as_expr(base), ZERO), modes, bounds, write, unit_modes=(tuple(unit_modes), ()))


def write(tensor, base=THREAD * 2, count=2, unit_modes=PAIR, active=TRUE, bound=None, accumulate=ZERO):
    """A copy of single threads into registers."""
    target = access(tensor, base, count, write=True, unit_modes=unit_modes, bound=bound)
    return making.execution(MOVE, Move(1, 1)(GL, RF)(Thread), (access(GLOBAL, base, count), target), accumulate=accumulate, active=active)


def read(tensor, base=THREAD * 2, count=2, unit_modes=PAIR, active=TRUE, bound=None):
    """A copy of single threads out of registers."""
    source = access(tensor, base, count, unit_modes=unit_modes, bound=bound)
    return making.execution(MOVE, Move(1, 1)(RF, GL)(Thread), (source, access(GLOBAL, base, count, write=True)), active=active)


def kernel(registers_tensor, *body):
    """A block of 32 threads with a register array, and a global array as the other side of copies."""
    buffers = tuple(
        making.buffer(tensor, tensor.storage(), tensor.storage().extent, parameter=tensor.memory == GL, written=tensor.memory == GL)
        for tensor in (GLOBAL, registers_tensor)
    )
    spec = MatMul(8, 8, 8)(GL, GL, GL)(Kernel)
    return verify(making.kernel("hand_made", as_architecture("sm_90"), as_expr(1), THREADS, buffers, (), body, spec))


def registers(program, access_to_registers, **values):
    """The register numbers of an access's elements."""
    buffer = program.buffer(access_to_registers.buffer)
    return [int(buffer.address(access_to_registers, offset).evaluate(values)) for offset in access_to_registers.elements()]


def size(program, name):
    """The registers per thread that an array occupies."""
    return int(program.buffer(name).elements.evaluate({}))


def refusal(program):
    """The error of `distribute` for a kernel."""
    with pytest.raises(DecompositionError) as caught:
        distribute(program)
    return str(caught.value)


# ---------------------------------------------------------------------------------------------- numbers


def test_a_thread_has_its_two_adjacent_elements_in_registers_0_and_1():
    program = distribute(kernel(REGISTERS, write(REGISTERS), read(REGISTERS)))
    filled, used = program.body
    assert size(program, "r") == 2
    for thread in (0, 5, 31):
        assert registers(program, filled.accesses[1], thread=thread) == [0, 1]
        assert registers(program, used.accesses[0], thread=thread) == [0, 1]


def test_the_owner_determines_the_coordinates_of_a_register():
    program = distribute(kernel(REGISTERS, write(REGISTERS), read(REGISTERS)))
    owned = [
        tuple(int(part.evaluate({"thread": 7})) for part in program.buffer("r").register_coordinates(Const(number))) for number in (0, 1)
    ]
    assert owned == [(14, 0), (15, 0)]


def test_the_steps_of_a_loop_have_registers_of_their_own():
    tensor, unit_modes = array("r", RF, 128), (*PAIR, UnitMode(2, 64, False))
    fill_step, read_step = Var("i", 0, 1), Var("j", 0, 1)
    fills = making.loop(fill_step, as_expr(2), (write(tensor, THREAD * 2 + fill_step * 64, unit_modes=unit_modes),))
    reads = making.loop(read_step, as_expr(2), (read(tensor, THREAD * 2 + read_step * 64, unit_modes=unit_modes),))
    program = distribute(kernel(tensor, fills, reads))
    assert size(program, "r") == 4
    used = program.body[1].body[0].accesses[0]
    assert [registers(program, used, thread=3, j=step) for step in (0, 1)] == [[0, 1], [2, 3]]


def test_a_replicated_array_keeps_its_storage():
    tensor = array("r", RF, 4)
    program = distribute(kernel(tensor, write(tensor, ZERO, 4, unit_modes=()), read(tensor, ZERO, 4, unit_modes=())))
    assert registers(program, program.body[1].accesses[0], thread=3) == [0, 1, 2, 3]


# ---------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize("thread", [0, 9, 30])
def test_one_foreign_element_that_one_thread_reads_is_refused(thread):
    """All threads store the pair that they own; one of them also stores the first element of the next pair, which is the only error."""
    adds, stores = write(ADDED, accumulate=TRUE), read(ADDED)
    assert size(distribute(kernel(ADDED, adds, stores)), "r") == 2
    foreign = read(ADDED, THREAD * 2 + 2, 1, active=equal(THREAD, thread))
    expected = f"reads element ({2 * thread + 2}, 0) in thread {thread}, but the compute path owns it in thread {thread + 1}"
    assert expected in refusal(kernel(ADDED, adds, stores, foreign))


@pytest.mark.parametrize("thread", [0, 17, 31])
def test_one_thread_that_a_copy_leaves_out_is_refused(thread):
    fills = write(REGISTERS, active=equal(equal(THREAD, thread), 0))
    assert f"thread {thread} needs element ({2 * thread}, 0) in its registers" in refusal(kernel(REGISTERS, fills, read(REGISTERS)))


def test_one_element_that_a_copy_leaves_out_is_refused():
    """The last thread starts one element late: the preceding element is left out, and the next one is out of bounds."""
    late = write(REGISTERS, THREAD * 2 + equal(THREAD, 31))
    assert "thread 31 needs element (62, 0)" in refusal(kernel(REGISTERS, late, read(REGISTERS)))


def test_two_elements_in_one_register_are_refused():
    """The loop is not among the distributed modes, so both its iterations give one register number."""
    step = Var("i", 0, 1)
    tensor = array("r", RF, 128)
    loop = making.loop(step, as_expr(2), (read(tensor, THREAD * 2 + step * 64),))
    assert "thread 0 would keep elements (0, 0) and (64, 0) in register 0" in refusal(kernel(tensor, loop))


def test_one_element_too_many_in_a_register_of_one_thread_is_refused():
    """Only thread 20 has a second element in its first register."""
    tensor = array("r", RF, 128)
    second = read(tensor, THREAD * 2 + 64, 1, active=equal(THREAD, 20))
    assert "thread 20 would keep elements (40, 0) and (104, 0) in register 0" in refusal(kernel(tensor, read(tensor), second))


def test_elements_outside_the_array_have_no_owner():
    """33 elements: thread 16 owns the last one, and the element past it need not be written."""
    tensor = array("r", RF, 33)
    reads = read(tensor, bound=33)
    assert size(distribute(kernel(tensor, write(tensor, bound=33, active=less(THREAD, 17)), reads)), "r") == 2
    assert "thread 16 needs element (32, 0)" in refusal(kernel(tensor, write(tensor, bound=33, active=less(THREAD, 16)), reads))


def test_the_first_element_outside_has_no_owner():
    """63 elements: one of the last pair is out of bounds, so a copy need not load it."""
    tensor = array("r", RF, 63)
    early = write(tensor, THREAD * 2 - equal(THREAD, 31), bound=63)
    assert size(distribute(kernel(tensor, early, read(tensor, bound=63))), "r") == 2


def test_initialization_does_not_decide_ownership():
    """The preceding copy distributes elements 32 apart, and the accumulating path owns adjacent ones: the copy is refused, not the sum."""
    target = access(ADDED, THREAD, 2, 32, write=True, unit_modes=(UnitMode(THREADS, 1, True),))
    copies = making.execution(MOVE, Move(1, 1)(GL, RF)(Thread), (access(GLOBAL, THREAD, 2, 32), target))
    assert "thread 0 needs element (1, 0)" in refusal(kernel(ADDED, copies, write(ADDED, accumulate=TRUE), read(ADDED)))


# ---------------------------------------------------------------------------------------------- uniform fills (T006)


def test_a_group_reads_each_element_from_its_owner():
    """If only a group reads them, threads may own them in any way."""
    together = attrs.evolve(read(REGISTERS, 0, 64, ()), spec=Move(1, 1)(RF, GL)(Warp))
    assert together.collective
    program = kernel(REGISTERS, write(REGISTERS), together)
    assert distribute(program).buffer("r").storage == program.buffer("r").storage


def test_so_many_elements_that_tables_of_them_take_all_memory_are_refused():
    """The limit counts threads, iterations of the loops and elements of the statement; each factor alone is small enough."""
    iteration = Var("turn", 0, 1 << 20)
    loop = making.loop(iteration, as_expr(MOST_POINTS // THREADS), ())
    stmt = write(REGISTERS, THREAD + iteration * 64)
    program = kernel(REGISTERS, write(REGISTERS))
    with pytest.raises(ResourceError, match=f"access {MOST_POINTS * 2} elements in one statement.*loops: turn of {MOST_POINTS // THREADS}"):
        accesses_of(program, program.buffer("r"), [(stmt, (loop,), stmt.accesses[1])])


def clear(active=TRUE):
    """Each thread clears two elements 32 apart, while the compute path owns adjacent ones."""
    target = access(REGISTERS, THREAD, 2, 32, write=True, unit_modes=(UnitMode(THREADS, 1, True),))
    return making.execution(INIT, Init(1, 1)(RF)(Thread), (target,), active=active)


def test_a_uniform_fill_may_number_registers_in_its_own_way():
    program = distribute(kernel(REGISTERS, clear(), read(REGISTERS)))
    cleared, used = program.body[0].accesses[0], program.body[1].accesses[0]
    assert [registers(program, cleared, thread=thread) for thread in (0, 31)] == [[0, 1], [0, 1]]
    assert used.storage is None


def test_a_copy_may_not():
    """Copied elements differ from each other, so each must arrive where the compute path reads it."""
    target = access(REGISTERS, THREAD, 2, 32, write=True, unit_modes=(UnitMode(THREADS, 1, True),))
    copies = making.execution(MOVE, Move(1, 1)(GL, RF)(Thread), (access(GLOBAL, THREAD, 2, 32), target))
    assert "thread 0 needs element (1, 0)" in refusal(kernel(REGISTERS, copies, read(REGISTERS)))


@pytest.mark.parametrize("idle", [0, 13, 31])
def test_a_uniform_fill_that_leaves_one_thread_out_is_refused(idle):
    assert "needs element" in refusal(kernel(REGISTERS, clear(equal(equal(THREAD, idle), 0)), read(REGISTERS)))
