"""The pass `asynchronous` on IR made by hand: which copies go on by themselves, by which instruction, and when nothing is committed."""

import attrs
import making
import pytest
from handmade import THREAD, access, execution, kernel_of, local

from fireiron import *
from fireiron import ir
from fireiron.executable.cp_async import CP_ASYNC
from fireiron.executable.fma import FFMA
from fireiron.executable.thread_move import MOVE
from fireiron.ir import Commit
from fireiron.ir.mechanism import AT_ONCE
from fireiron.ir.mechanisms.cp_async import CP_ASYNC_GROUPS
from fireiron.lower.asynchronous import asynchronous
from fireiron.values.expr import Var, as_expr
from fireiron.values.machine import Thread

SPEC = Move(32, 16, src=RowMajor, dst=RowMajor)(GL, GL)


def copy(vector=4, widths=None, instruction=MOVE, target="tile", mechanism=CP_ASYNC_GROUPS, **fields):
    """A copy of four elements a thread to shared memory, by vectors as `vectorize` found them."""
    sides = (access("src", (THREAD, 0), (1, 4)), access(target, (THREAD, 0), (1, 4), write=True))
    widths = (vector, vector) if widths is None else widths
    return execution(instruction, Move(1, 4)(GL, SH)(Thread), *sides, vector=vector, vectors=widths, mechanism=mechanism, **fields)


def passed(*body, dtype=float32, target="sm_80"):
    tile = local("tile", (32, 16), SH, dtype, layout=RowMajor)
    return asynchronous(kernel_of(SPEC, body, tile, local("other", (32, 16), SH, layout=RowMajor), target=target))


def statements(kernel):
    return [one for one, _ in ir.execs(kernel.body)]


@pytest.mark.parametrize(("vector", "size"), [(1, 4), (2, 8), (4, 16)])
def test_a_copy_gets_the_instruction_of_its_width(vector, size):
    kernel = passed(copy(vector), making.commit())
    (found,) = statements(kernel)
    assert found.instruction.vector_bytes == size and found.instruction in CP_ASYNC
    assert found.mechanism is CP_ASYNC_GROUPS and kernel.body[-1] == making.commit()


@pytest.mark.parametrize("widths", [(2, 4), (4, 2), (1, 1)])
def test_both_sides_are_taken_by_the_same_width(widths):
    """cp.async reads and writes as many bytes at once; elements in between have to pass a register."""
    kernel = passed(copy(4, widths), making.commit())
    (found,) = statements(kernel)
    assert found.instruction is MOVE and found.mechanism is AT_ONCE


def test_a_copy_that_converts_is_none():
    (found,) = statements(passed(copy(), making.commit(), dtype=float16))
    assert found.instruction is MOVE and found.mechanism is AT_ONCE


@pytest.mark.parametrize(("target", "size"), [("sm_75", None), ("sm_80", 16)])
def test_older_targets_have_none(target, size):
    (found,) = statements(passed(copy(), making.commit(), target=target))
    assert (found.instruction is MOVE) == (size is None) and found.asynchronous == (size is not None)


def test_a_width_that_was_asked_for_and_has_no_copy():
    """An instruction that offers no such copies is done at once; one whose own mechanism it is, asked for by name, is left as it is."""
    (found,) = statements(passed(copy(2, instruction=FFMA), making.commit()))
    assert found.instruction is FFMA and found.mechanism is AT_ONCE
    sixteen = next(one for one in CP_ASYNC if one.vector_bytes == 16)
    asked = copy(2, instruction=sixteen), making.commit()
    assert passed(*asked).body == asked


def test_copies_that_nobody_marked_are_left_alone():
    plain = copy(mechanism=AT_ONCE)
    kernel = passed(plain)
    assert statements(kernel) == [plain]


def test_commits_stay_as_long_as_one_copy_is_under_way():
    wide, narrow = copy(4), copy(4, (1, 1), target="other")
    loop = making.loop(Var("k", 0, 3), as_expr(4), (narrow, making.commit(), wide, making.commit()))
    kernel = passed(loop, making.wait(0))
    (after,) = (one for one in kernel.body if isinstance(one, ir.For))
    assert [type(one) for one in after.body] == [ir.Exec, Commit, ir.Exec, Commit]
    assert [one.asynchronous for one in after.body if isinstance(one, ir.Exec)] == [False, True]


def test_commits_without_any_copy_go_wherever_they_stand():
    """Only they do: what else stands there stays, in its order."""
    narrow = copy(4, (1, 1))
    loop = making.loop(Var("k", 0, 3), as_expr(4), (narrow, making.commit()))
    kernel = passed(loop, making.commit(), making.comment("behind"))
    plain = attrs.evolve(narrow, mechanism=AT_ONCE)
    assert kernel.body == (attrs.evolve(loop, body=(plain,)), making.comment("behind"))
