"""`sink_relu` on hand-made programs: max(x, 0) moves into its readers if all of them can apply it to everything that it wrote; else it stays."""

import attrs
import making
import pytest
from handmade import access, kernel_of, local
from touching import Step

from fireiron import *
from fireiron.ir import execs
from fireiron.lower.sink_relu import MOST_ITERATIONS, sink_relu
from fireiron.values.expr import TRUE, Var, as_expr, less

T, N, J = Var("thread", 0, 31), Var("i", 0, 1 << 20), Var("j", 0, 1 << 20)
SPEC = Move(1, 1)(RF, RF)(Thread)


@attrs.frozen
class Plain(Step):
    """It neither ends with max(x, 0) nor can apply it to its operand."""

    name: str = "plain"

    def clamped_later(self, spec):
        return None

    def clamping(self, spec):
        return None


@attrs.frozen
class Clamps(Plain):
    name: str = "clamps"

    def clamped_later(self, spec):
        return Plain("no longer")


@attrs.frozen
class Rounds(Plain):
    name: str = "rounds"

    def clamping(self, spec):
        return Plain("clamps in its place")


def move(instruction, source, target, **options):
    """A statement from an element of one array to an element of another; each is `(name, number)`."""
    accesses = [
        access(name, (number,), (size,), write=write) for (name, number, size), write in ((_sized(source), False), (_sized(target), True))
    ]
    return making.execution(instruction, SPEC, tuple(accesses), **options)


def _sized(place):
    return place if len(place) == 3 else (*place, 1)


def fill(name, extent=4, start=0, instruction=None, **options):
    """Clamped values for registers of an array, in a loop."""
    return loop(N, extent, move(instruction or Clamps(), ("x", N), (name, N + start), **options))


def read(name, extent=4, instruction=None, **options):
    return loop(J, extent, move(instruction or Rounds(), (name, J), ("y", J), **options))


def loop(var, extent, *body):
    return making.loop(var, as_expr(extent), body)


def after(*body, registers=4):
    """The names of the instructions after the pass, in order."""
    arrays = [local(name, (registers,), RF) for name in "rxy"] + [local("s", (registers,), SH)]
    kernel = kernel_of(Move(8, 8)(GL, GL), body, *arrays)
    result = sink_relu(kernel)
    assert result is kernel or len([*execs(result.body)]) == len([*execs(kernel.body)])
    return [one.instruction.name for one, _ in execs(result.body)]


UNCHANGED = ["clamps", "rounds"]
MOVED = ["no longer", "clamps in its place"]


def test_a_clamping_moves_to_its_reader():
    assert after(fill("r"), read("r")) == MOVED
    assert after(fill("r"), read("r"), read("r")) == [*MOVED, "clamps in its place"]
    assert after(move(Clamps(), ("x", 0, 4), ("r", 0, 4)), read("r")) == MOVED, "all elements in one statement"


def test_without_a_clamping_readers_are_not_examined():
    assert after(fill("r", instruction=Plain()), read("r")) == ["plain", "rounds"]


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "body",
    [
        (fill("r", 3), read("r")),  # a register keeps its value
        (fill("r", 2, 1), read("r")),
        (loop(N, 2, loop(J, 4, move(Clamps(), ("x", J), ("r", J)))), read("r")),  # each twice
        (fill("r", active=TRUE, guard=less(T, 5)), read("r")),
        (fill("r", pieces=((making.piece(0),), (making.piece(0, 1, condition=less(T, 5)),))), read("r")),
        (fill("r", Var("n", 1, 4, 1, True)), read("r")),
        (loop(N, 4, move(Clamps(), ("x", N), ("r", (T + N) % 4))), read("r")),  # another for each thread
        (fill("s"), read("s")),  # other threads read it too
        (loop(N, 4, move(Clamps(), ("x", N), ("r", N)), move(Plain(), ("x", N), ("r", N))), read("r")),
        (loop(N, 4, move(Clamps(), ("x", N), ("r", N)), move(Clamps(), ("x", N), ("y", N))), read("r")),
    ],
)
def test_a_buffer_that_is_not_filled_once_and_wholly_keeps_its_clamping(body):
    assert {"clamps"} <= {*after(*body)} and "clamps in its place" not in after(*body)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "body",
    [
        (fill("r"),),  # no statement reads it
        (read("r"), fill("r")),  # its reader comes before
        (fill("r"), read("r", instruction=Plain())),
        (fill("r"), read("r"), read("r", instruction=Plain())),
        (fill("r"), read("r"), fill("r", instruction=Plain())),  # another writes it
        (fill("r"), making.if_any_lane("x", (read("r"),))),
        (fill("r", active=less(T, 5)), read("r")),  # values of other threads are not clamped
        (loop(Var("k", 0, 3), 4, fill("r"), read("r")),),  # it may add to a value of the previous iteration
        (loop(Var("k", 0, 3), 4, fill("r")), read("r")),  # the reader is in another list
    ],
)
def test_readers_that_do_not_clamp_all_of_it(body):
    assert "no longer" not in after(*body)


def test_the_same_condition_on_both_sides():
    assert after(fill("r", active=less(T, 5)), read("r", active=less(T, 5))) == MOVED
    assert after(fill("r"), read("r", active=less(T, 5))) == MOVED


def test_registers_are_overwritten_in_each_iteration():
    """By a statement that writes all of them and accumulates nothing."""
    zeros = loop(N, 4, making.execution(Plain("zeros"), Init(1, 1)(RF)(Thread), (access("r", (N,), write=True),)))
    some = loop(N, 3, making.execution(Plain("zeros"), Init(1, 1)(RF)(Thread), (access("r", (N,), write=True),)))
    var = Var("k", 0, 3)
    assert after(loop(var, 4, zeros, fill("r"), read("r"))) == ["zeros", *MOVED]
    assert after(loop(var, 4, some, fill("r"), read("r"))) == ["zeros", *UNCHANGED]


def test_more_iterations_than_are_analyzed():
    assert after(fill("r", MOST_ITERATIONS), read("r", MOST_ITERATIONS), registers=MOST_ITERATIONS) == MOVED
    assert after(fill("r", MOST_ITERATIONS + 1), read("r", MOST_ITERATIONS + 1), registers=MOST_ITERATIONS + 1) == UNCHANGED
