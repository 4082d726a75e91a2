"""Which thread accesses which element in which iteration: grids of threads and loop values, and conditions on them."""

import attrs
import making
import numpy as np
import pytest
from touching import K, T, i, kernel, loop, reads, writes

from fireiron import *
from fireiron.errors import ResourceError
from fireiron.ir import lets
from fireiron.lower.footprint import (
    MOST_POINTS,
    _iterations,
    _iterations_of_steps,
    active_mask,
    closure,
    evaluate,
    grid_of,
    require_small,
    revisits,
)
from fireiron.values.expr import FALSE, Var, all_of, as_expr, less

BLOCK = Var("block", 0, 7)
j = Var("j", 0, 1 << 20)


def grid(*loops, program=None, fixed=None):
    """The grid of all loops around a statement."""
    program = program or kernel(*loops)
    return grid_of(program, loops, frozenset((*(one.var for one in loops), *lets(program.body))), fixed or {})


def at_most(extent, **options):
    """A loop whose trip count is known only by its upper bound."""
    return loop(Var("n", 0, extent), reads(T), **options)


# ---------------------------------------------------------------------------------------------- resolution


@pytest.mark.parametrize("each", [32768, 32769])
def test_the_number_of_accesses_in_a_statement_is_bounded(each):
    """The bound applies before any pass enumerates the elements, which would take minutes and all memory: 16 times the registers of 1024
    threads, 256 each.
    """
    program = kernel(loop(4, writes(T, width=each)))
    if each * 128 <= 16 * 1024 * 256:
        require_small(program)
        return
    with pytest.raises(ResourceError, match=f"access {each * 128} elements in one statement"):
        require_small(program)


def test_accesses_common_to_threads_count_once():
    together = writes(0, width=MOST_POINTS, level=Warpgroup)
    assert together.collective
    require_small(kernel(together))
    with pytest.raises(ResourceError):
        require_small(kernel(attrs.evolve(together, accesses=writes(0, width=MOST_POINTS + 1).accesses)))


def test_loops_and_threads_have_axes():
    grid_of_loops = grid(loop(6, reads(T), period=4), loop(3, reads(T), var=j))
    assert grid_of_loops.axes == ("i", "j") and grid_of_loops.shape == (4, 3, 128)
    assert evaluate(i * 1000 + j * 100000 + T, grid_of_loops)[3, 2, 5] == 203005
    assert grid_of_loops.undecided == {"block"} and [one.var for one in grid_of_loops.repeating] == [i]


def test_a_loop_without_iterations_has_its_first_value():
    """Its statements are still compared with the others, and no table is empty."""
    assert grid(loop(0, reads(T)), loop(3, reads(T), var=j)).shape == (1, 3, 128)


def test_loops_that_are_fixed_or_of_no_use_have_none():
    assert grid(loop(6, reads(T)), loop(3, reads(T), var=j), fixed={"i": 5}).axes == ("j",)
    assert evaluate(i + 0 * T, grid(loop(6, reads(T)), fixed={"i": 5})).tolist() == [5] * 128
    assert grid_of(kernel(), (loop(6, reads(T)),), frozenset()).shape == (128,)


@pytest.mark.parametrize(("extent", "axes"), [(4096, ("i",)), (4097, ())])
def test_loops_of_unknown_extent_run_through_all_values_if_there_are_few(extent, axes):
    grid_of_loops = grid(at_most(extent))
    assert grid_of_loops.axes == axes and grid_of_loops.undecided - {"block"} == ({"i"} - {*axes})


def test_of_too_many_values_the_longest_unknown_loop_keeps_its_first():
    grid_of_loops = grid(at_most(4000), at_most(3000, var=j))
    assert grid_of_loops.axes == ("j",) and grid_of_loops.undecided - {"block"} == {"i"}
    assert evaluate(i + 0 * T, grid_of_loops).max() == 0


def test_some_of_the_threads():
    some_threads = grid(loop(2, reads(T))).at_threads(np.array([7, 3]))
    assert some_threads.shape == (2, 2) and evaluate(T + i * 1000, some_threads).tolist() == [[7, 3], [1007, 1003]]


def test_names_are_resolved_to_their_definitions():
    row, place = Var("row", 0, 1 << 20), Var("place", 0, 1 << 20)
    program = kernel(loop(4, making.let(row, i * 2 + T), making.let(place, row + 5), reads(place)))
    assert closure(program, frozenset({place})) == {place, row, i, T}
    assert closure(program, frozenset({row})) == {row, i, T}
    grid_of_names = grid_of(program, (program.body[0],), closure(program, frozenset({place})))
    assert evaluate(as_expr(place), grid_of_names)[3, 4] == 15


# ---------------------------------------------------------------------------------------------- active threads


def taking_part(condition, *loops):
    return active_mask(reads(T, active=condition), grid(*loops))


def test_conditions_on_threads_and_iterations():
    mask = taking_part(all_of((less(T, 3), less(i, 2))), loop(4, reads(T)))
    assert mask.sum(axis=-1).tolist() == [3, 3, 0, 0]


@pytest.mark.parametrize("condition", [less(BLOCK, 1), less(as_expr(T), as_expr(K)), less(as_expr(i), as_expr(K))])
def test_conditions_on_the_block_or_on_sizes_hold_somewhere(condition):
    assert taking_part(condition, loop(4, reads(T))).all()


def test_a_condition_on_a_repeating_loop_holds_where_it_does_at_some_iteration():
    """Iterations 0 to 5 have the phases 0, 1, 2, 3, 0, 1: the fifth is the only one from 4 on with phase 0."""
    late, early = less(3, i), less(i, 2)
    assert taking_part(late, loop(6, reads(T), period=4))[:, 0].tolist() == [True, True, False, False]
    assert taking_part(early, loop(6, reads(T), period=4))[:, 0].tolist() == [True, True, False, False]
    assert taking_part(all_of((less(1, i), less(i, 4))), loop(6, reads(T), period=4))[:, 0].tolist() == [False, False, True, True]


def test_conditions_on_a_repeating_loop_and_a_thread_count_as_true():
    assert taking_part(less(as_expr(T), i * 2), loop(6, reads(T), period=4)).all()


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("extent", "period", "condition", "round"),
    [
        (6, 4, less(i, 6), True),  # 0 and 4
        (6, 4, less(i, 4), False),  # each phase once
        (6, 4, less(3, i), False),
        (6, 4, less(as_expr(T), i), True),  # the condition may differ between threads
        (4, 4, less(i, 4), False),  # a single period
        (6, 0, less(i, 6), False),  # no two iterations are equal
        (K, 4, less(i, 1), True),  # some size
    ],
)
def test_whether_a_statement_repeats(extent, period, condition, round):
    assert revisits(reads(T, active=condition), loop(extent, reads(T), period=period)) is round


@pytest.mark.sampled(1)
@pytest.mark.parametrize("period", [1, 2, 3, 5])
@pytest.mark.parametrize("count", [1, 2, 7, 30])
@pytest.mark.parametrize("conditions", [(), ((1, 0, 5),), ((-1, 4, 0),), ((3, 1, 20), (-2, 3, -2)), ((2, 0, 1),), ((1, -3, 4), (1, -3, 6))])
def test_iterations_from_steps_equal_the_enumerated_ones(period, count, conditions):
    """Each condition is step * i + start < end."""
    number = Var("i", 0, count - 1)
    bounds = [less(number * step + start, as_expr(end)) for step, start, end in conditions]
    periodic = loop(count, reads(T), var=number, period=period)
    wanted = [
        sum(all(step * n + start < end for step, start, end in conditions) for n in range(place, count, period)) for place in range(period)
    ]
    assert _iterations(periodic, bounds).tolist() == wanted
    if FALSE not in bounds:  # such a statement does not exist
        assert _iterations_of_steps(periodic, bounds, count).tolist() == wanted


def test_values_derived_from_an_unknown_iteration_are_undecided():
    """This is transitive; values of threads, or of loops with known iterations, are decided."""
    iteration, half, place, row, step = (Var(name, 0, 1 << 20) for name in ("turn", "half", "place", "row", "step"))
    inner = loop(4, reads(place), var=j)
    named = (making.let(half, iteration // 2), making.let(place, half + T), making.let(row, T // 32), making.let(step, j * 2))
    outer = loop(Var("n", 0, 1 << 20), attrs.evolve(inner, body=(*named, *inner.body)), var=iteration)
    grid_of_loops = grid(outer, inner, program=kernel(outer))
    assert {"turn", "half", "place"} <= grid_of_loops.undecided and not {"row", "step", "j"} & grid_of_loops.undecided
    assert grid(outer, inner, program=kernel(outer), fixed={"turn": 3}).undecided.isdisjoint({"half", "place", "row", "step"})
