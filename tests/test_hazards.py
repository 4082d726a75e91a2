"""Joint choice of barrier scopes compared with all choices, and hazards whose accesses are not all enumerated.

`test_synchronize.py` tests each rule separately.
"""

import itertools
import random

import making
import pytest
from touching import BLOCK_BARRIER, K, T, buffer, i, kernel, loop, placed, reads, writes

from fireiron import *
from fireiron.ir import BLOCK_SCOPE, WARP_SCOPE, Barrier, statements
from fireiron.language.library import bind, find
from fireiron.lower.barrier_placement import fewest_of_scopes
from fireiron.lower.synchronize import synchronize
from fireiron.values.expr import Var, equal, less

FAR = 127 - T
"""The element of a thread of another warp."""
NEAR = T // 2 * 2
"""The element of a thread of the same warp."""
BLOCK = Var("block", 0, 7)


# ---------------------------------------------------------------------------------------------- all scopes at once


def test_a_block_barrier_is_placed_where_it_covers_a_warp_hazard_too():
    buffers = [buffer(name, 128, offset=512 * number) for number, name in enumerate("xyz")]
    body = (writes(T, name="x"), writes(T, name="y"), reads(NEAR, name="y"), writes(T, name="z"), reads(FAR, name="x"))
    assert placed(*body, buffers=buffers) == [".", ".", "block", ".", ".", "."]


def test_split_k_has_no_superfluous_barrier():
    lowered = bind(find("split_k")).program("sm_80").lowered
    scopes = [one.scope for one in statements(lowered.body) if isinstance(one, Barrier)]
    assert scopes == [WARP_SCOPE, WARP_SCOPE, BLOCK_SCOPE]


def arc(start, stop, count):
    return frozenset(range(start, stop + 1)) if start <= stop else frozenset((*range(start, count), *range(stop + 1)))


def cost(barriers_):
    return tuple(sum(scope == one for one in barriers_.values()) for scope in (2, 1, 0))


def covers(chosen, arcs):
    return all(any(at in one and scope >= least for at, scope in chosen.items()) for one, least in arcs)


def test_the_cheapest_of_all_positions_and_scopes():
    """No cheaper set of barriers covers all arcs, on a line and on a circle, with some positions removed."""
    for seed in range(600):
        generator = random.Random(seed)
        count = generator.randint(2, 6)
        positions = sorted(generator.sample(range(count), generator.randint(1, min(count, 5))))
        around = generator.random() < 0.6
        arcs = []
        for _ in range(generator.randrange(7)):
            ends = [generator.randrange(count) for _ in range(2)]
            covered = arc(*(ends if around else sorted(ends)), count) & frozenset(positions)
            arcs += [(covered, generator.randrange(3))] if covered else []
        preferred = generator.sample(positions, len(positions))
        got = fewest_of_scopes(arcs, preferred)
        assert covers(got, arcs), seed
        choices = itertools.product((None, 0, 1, 2), repeat=len(positions))
        drawn = ({at: scope for at, scope in zip(positions, scopes) if scope is not None} for scopes in choices)
        assert cost(got) == min(cost(one) for one in drawn if covers(one, arcs)), (seed, arcs, preferred)


# ---------------------------------------------------------------------------------------------- loops


@pytest.mark.parametrize("shift", [1, 2, 3])
def test_conflicts_across_iterations(shift):
    """The body reads first what it wrote last `shift` iterations ago: only a shift of 1 requires the barrier at the end."""
    read, written = reads((i + (4 - shift)) % 4 * 128 + FAR), writes(i % 4 * 128 + T)
    barriers = placed(loop(16, read, making.sync_point(None, "s"), writes(T + 512), written, period=4))
    assert barriers == [[".", ".", ".", "block"] if shift == 1 else [".", "block", ".", "."]]


def test_data_of_the_iteration_before_is_complete_at_the_end_of_each():
    """Read first, written last: a requested position elsewhere does not move the barrier between this write and the next read."""
    read, written = reads((i + 1) % 2 * 128 + FAR), writes(i % 2 * 128 + T)
    assert placed(loop(16, read, making.sync_point(None, "s"), written, period=2)) == [[".", ".", "block"]]


def test_a_loop_of_one_iteration_carries_nothing_although_its_addresses_vary():
    only = Var("only", 0, 0)
    assert placed(loop(1, reads(only + FAR), writes(only + T), var=only)) == [[".", "block", "."]]


def test_a_barrier_in_a_loop_counts_if_the_loop_surely_runs():
    for extent, runs in ((2, True), (BLOCK % 4, False), (Var("K", 1, 99, 1, True), True), (Var("K", 0, 99, 1, True), False)):
        symbols = () if isinstance(extent, int) else tuple(extent.variables() - {BLOCK})
        body = (writes(T), loop(extent, BLOCK_BARRIER, var=Var("i", 0, 98)), reads(FAR))
        assert placed(*body, symbols=symbols, grid=8) == [".", ["block"], *([] if runs else ["block"]), "."], extent


# ---------------------------------------------------------------------------------------------- accesses that are not enumerated


def test_a_condition_on_a_loop_of_unknown_length_counts_as_true():
    body = loop(K, writes(T, active=less(0, i)), reads(FAR))
    assert placed(body, symbols=(K,)) == [[".", "block", ".", "block"]]


def test_a_condition_on_a_periodic_loop_holds_at_some_iteration_of_its_stage():
    for condition, scopes in ((equal(i, 5), ["block"]), (equal(i, 9), []), (less(6, i), ["block"])):
        body = loop(8, writes(i % 2 * 128 + T, active=condition), reads(i % 2 * 128 + FAR), period=2)
        assert placed(body) == [[".", *scopes, "."]], condition


def test_all_values_of_a_loop_whose_length_depends_on_the_block():
    iteration = Var("turn", 0, 2)
    body = loop(BLOCK % 4, writes(iteration * 128 + T), var=iteration)
    assert placed(body, reads(FAR + 2 * 128), grid=8) == [["."], "block", "."], "written in the third iteration"
    assert placed(body, reads(FAR + 3 * 128), grid=8) == [["."], "."]


def test_an_unknown_address_is_refused():
    with pytest.raises(SynchronizationError, match="depends on block"):
        synchronize(kernel(writes(T + BLOCK % 2 * 128), reads(FAR), grid=8))
