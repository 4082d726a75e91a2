"""`allocate` alone, on hand-made IR: addresses and live ranges of shared buffers, and what does not fit."""

import making
import pytest

from fireiron import *
from fireiron.executable.thread_move import MOVE
from fireiron.ir import verify
from fireiron.lower.allocate import allocate, live_spans
from fireiron.values.expr import ZERO, Var, as_expr
from fireiron.values.machine import as_architecture
from fireiron.values.tensor import Mode, Tensor

THREAD = Var("thread", 0, 31)
OUTSIDE = Tensor("g", (as_expr(4096), as_expr(1)), float32, GL, ColMajor)


def shared(name, elements=32, **options):
    """A float32 array in shared memory."""
    return Tensor(name, (as_expr(elements), as_expr(1)), float32, SH, ColMajor, **options)


def access(tensor, write):
    """A thread's own element."""
    return making.access(tensor.name, (THREAD, ZERO), ((Mode(1, 1),), (Mode(1, 1),)), (None, None), write)


def use(tensor, **options):
    """A statement that writes an array."""
    return making.execution(MOVE, Move(1, 1)(GL, SH)(Thread), (access(OUTSIDE, False), access(tensor, True)), **options)


def both(source, other):
    """A statement that reads one array and writes another."""
    return making.execution(MOVE, Move(1, 1)(SH, SH)(Thread), (access(source, False), access(other, True)))


def loop(name, *body):
    """A loop of four iterations."""
    return making.loop(Var(name, 0, 3), as_expr(4), body)


def kernel(tensors, *body):
    """One block of 32 threads; the arrays are declared in this order."""
    buffers = tuple(making.buffer(one, one.storage(), one.storage().extent, parameter=one is OUTSIDE) for one in (OUTSIDE, *tensors))
    spec = MatMul(8, 8, 8)(GL, GL, GL)(Kernel)
    return verify(making.kernel("hand_made", as_architecture("sm_90"), as_expr(1), 32, buffers, (), body, spec))


def offsets(program):
    """Byte offsets of the shared arrays by name."""
    return {buffer.name: buffer.offset for buffer in program.buffers if buffer.memory == SH}


X, Y, Z = shared("x"), shared("y"), shared("z")
AGAIN = shared("again", reuse=True)


# ---------------------------------------------------------------------------------------------- addresses


def test_arrays_are_placed_one_after_the_other():
    program = allocate(kernel((X, Y, Z), use(X), use(Y), use(Z)))
    assert offsets(program) == {"x": 0, "y": 128, "z": 256}
    assert program.shared_bytes == 384


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("align", "second"), [(4, 16), (16, 16), (128, 128), (256, 256)])
def test_arrays_start_at_multiples_of_their_alignment_and_of_16(align, second):
    small, aligned = shared("small", 1), shared("aligned", align=align)
    assert offsets(allocate(kernel((small, aligned), use(small), use(aligned)))) == {"small": 0, "aligned": second}


def test_arrays_are_aligned_to_the_vectors_of_instructions():
    small, wide = shared("small", 1), shared("wide", align=4)
    program = allocate(kernel((small, wide), use(small), use(wide, vector=8, vectors=(1, 8))))
    assert offsets(program) == {"small": 0, "wide": 32}
    assert program.buffer("wide").tensor.align == 32


def test_copies_take_their_share():
    staged = shared("staged", copies=3)
    program = allocate(kernel((staged, X), use(staged), use(X)))
    assert offsets(program) == {"staged": 0, "x": 384}
    assert program.shared_bytes == 512


def test_an_unused_array_occupies_nothing():
    assert allocate(kernel((X, Y), use(Y))).shared_bytes == 128


def test_the_memory_of_a_statement_lives_with_it():
    """It is placed next to the statement's operands, and is dead after it."""
    body = (use(X, scratch=Z), use(AGAIN))
    spans = live_spans(kernel((X, Z, AGAIN), *body))
    assert spans["z"] == spans["x"]
    program = allocate(kernel((X, Z, AGAIN), *body))
    assert offsets(program) == {"x": 0, "z": 128, "again": 0} and program.shared_bytes == 256


# ---------------------------------------------------------------------------------------------- live ranges


def test_a_loop_is_one_life_for_all_that_is_used_in_it():
    """An iteration writes first what the preceding one read last: nothing in a loop dies before its end."""
    spans = live_spans(kernel((X, Y, Z), use(Z), loop("i", use(X), use(Y))))
    assert spans["x"] == spans["y"]
    assert spans["z"][1] < spans["x"][0]


def test_an_array_used_before_and_in_a_loop_lives_through_it():
    spans = live_spans(kernel((X, Y), use(X), loop("i", both(X, Y))))
    assert spans["x"][0] < spans["y"][0]
    assert spans["x"][1] == spans["y"][1]


def test_dead_storage_is_used_again():
    program = allocate(kernel((X, AGAIN), use(X), use(AGAIN)))
    assert offsets(program) == {"x": 0, "again": 0}
    assert program.shared_bytes == 128


def test_an_array_read_by_the_statement_that_first_writes_the_new_one_is_not_dead():
    """The live ranges overlap in one statement: threads write the new array while others still read the old one."""
    with pytest.raises(DecompositionError, match="no earlier shared buffer is dead while again is live .live: x."):
        allocate(kernel((X, AGAIN), use(X), both(X, AGAIN)))


def test_an_array_whose_first_use_is_the_last_of_the_new_one_is_not_free():
    """The same with the new array's live range first: its last statement is the first one of the other."""
    late = shared("late", reuse=True, must_reuse=False)
    program = allocate(kernel((Y, X, late), use(Y), use(late), both(late, X)))
    assert offsets(program) == {"y": 0, "x": 128, "late": 0}


def test_two_arrays_of_one_loop_do_not_share():
    with pytest.raises(DecompositionError, match="live: x"):
        allocate(kernel((X, AGAIN), loop("i", use(X), use(AGAIN))))


def test_an_array_too_large_for_a_gap_is_placed_after_live_arrays():
    """Only x is dead; 256 bytes from its start would overlap y, so the address after y is used."""
    large = shared("large", 64, reuse=True, must_reuse=False)
    program = allocate(kernel((X, Y, large), use(X), both(Y, large)))
    assert offsets(program) == {"x": 0, "y": 128, "large": 256}


def test_a_gap_of_just_the_right_size_is_taken():
    again = shared("again", 32, reuse=True)
    program = allocate(kernel((X, Y, again), use(X), both(Y, again)))
    assert offsets(program) == {"x": 0, "y": 128, "again": 0}
    assert program.shared_bytes == 256


def test_a_gap_that_begins_where_a_living_array_ends_is_taken():
    """x and z are live; y between them is dead."""
    program = allocate(kernel((X, Y, Z, AGAIN), use(Y), use(Z), use(AGAIN), both(X, Z), both(Z, AGAIN), use(X)))
    assert offsets(program) == {"x": 0, "y": 128, "z": 256, "again": 128}


# ---------------------------------------------------------------------------------------------- limits


def test_all_of_the_shared_memory_of_a_block_may_be_used_and_no_byte_more():
    limit = as_architecture("sm_90").shared_per_block
    exact, more = shared("exact", limit // 4), shared("more", limit // 4 + 1)
    assert allocate(kernel((exact,), use(exact))).shared_bytes == limit
    with pytest.raises(ResourceError, match=f"{limit + 4} bytes of shared memory in a block, but sm_90 has {limit}"):
        allocate(kernel((more,), use(more)))
