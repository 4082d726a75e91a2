"""The pass `asynchronous` on hand-made IR: which copies become asynchronous, by which instruction, and when nothing is committed."""

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
    """A copy of four elements per thread to shared memory, with the vectors chosen by `vectorize`."""
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
    (stmt,) = statements(kernel)
    assert stmt.instruction.vector_bytes == size and stmt.instruction in CP_ASYNC
    assert stmt.mechanism is CP_ASYNC_GROUPS and kernel.body[-1] == making.commit()


@pytest.mark.parametrize("widths", [(2, 4), (4, 2), (1, 1)])
def test_both_sides_are_taken_by_the_same_width(widths):
    """cp.async reads and writes equally many bytes at once; other copies go through a register."""
    kernel = passed(copy(4, widths), making.commit())
    (stmt,) = statements(kernel)
    assert stmt.instruction is MOVE and stmt.mechanism is AT_ONCE


def test_a_copy_that_converts_is_none():
    (stmt,) = statements(passed(copy(), making.commit(), dtype=float16))
    assert stmt.instruction is MOVE and stmt.mechanism is AT_ONCE


@pytest.mark.parametrize(("target", "size"), [("sm_75", None), ("sm_80", 16)])
def test_older_targets_have_none(target, size):
    (stmt,) = statements(passed(copy(), making.commit(), target=target))
    assert (stmt.instruction is MOVE) == (size is None) and stmt.asynchronous == (size is not None)


def test_a_requested_width_without_an_asynchronous_copy():
    """A requested instruction without an asynchronous form is synchronous; one with its own mechanism is unchanged."""
    (stmt,) = statements(passed(copy(2, instruction=FFMA), making.commit()))
    assert stmt.instruction is FFMA and stmt.mechanism is AT_ONCE
    sixteen = next(one for one in CP_ASYNC if one.vector_bytes == 16)
    requested = copy(2, instruction=sixteen), making.commit()
    assert passed(*requested).body == requested


def test_unmarked_copies_are_unchanged():
    plain = copy(mechanism=AT_ONCE)
    kernel = passed(plain)
    assert statements(kernel) == [plain]


def test_commits_are_kept_while_a_copy_is_pending():
    wide, narrow = copy(4), copy(4, (1, 1), target="other")
    loop = making.loop(Var("k", 0, 3), as_expr(4), (narrow, making.commit(), wide, making.commit()))
    kernel = passed(loop, making.wait(0))
    (after,) = (one for one in kernel.body if isinstance(one, ir.For))
    assert [type(one) for one in after.body] == [ir.Exec, Commit, ir.Exec, Commit]
    assert [one.asynchronous for one in after.body if isinstance(one, ir.Exec)] == [False, True]


def test_commits_without_any_copy_are_removed():
    """Only the commits are removed: all other statements remain, in order."""
    narrow = copy(4, (1, 1))
    loop = making.loop(Var("k", 0, 3), as_expr(4), (narrow, making.commit()))
    kernel = passed(loop, making.commit(), making.comment("behind"))
    plain = attrs.evolve(narrow, mechanism=AT_ONCE)
    assert kernel.body == (attrs.evolve(loop, body=(plain,)), making.comment("behind"))
