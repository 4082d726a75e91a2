"""The race check on hand-made kernels: each rule alone, and random kernels compared with happens-before by thread."""

import itertools
import random

import attrs
import making
import numpy as np
import pytest
from touching import (
    BLOCK_BARRIER,
    COMMIT,
    T256,
    WARP_BARRIER,
    K,
    T,
    buffer,
    copies,
    i,
    kernel,
    loop,
    racy_by_hand,
    reads,
    touch,
    writes,
)

from fireiron import *
from fireiron import ir
from fireiron.check import AccessTrace, check_races, safety
from fireiron.check import races as race_check
from fireiron.check.races import atoms, loops, segments
from fireiron.check.races.footprints import Footprints
from fireiron.check.races.traces import Tracer
from fireiron.errors import VerificationError
from fireiron.ir import WARPGROUP_SCOPE, Barrier
from fireiron.values.expr import TRUE, ZERO, Var, all_of, as_expr, equal, less


def races(*body, **options):
    """The findings of the race check, all of which are errors."""
    findings = check_races(AccessTrace(kernel(*body, **options)))
    assert all(finding.severity == "error" and finding.kind == "race" for finding in findings)
    return findings


# ---------------------------------------------------------------------------------------------- barriers


def test_a_barrier_orders_the_threads_of_its_scope():
    neighbor, far = T // 2 * 2 + (T + 1) % 2, 127 - T
    for place, inside in ((neighbor, True), (far, False)):
        assert races(writes(T), reads(place))
        assert not races(writes(T), BLOCK_BARRIER, reads(place))
        assert bool(races(writes(T), WARP_BARRIER, reads(place))) != inside
        assert races(BLOCK_BARRIER, writes(T), reads(place), BLOCK_BARRIER)


def test_a_warpgroup_is_a_scope_too():
    group = making.barrier(WARPGROUP_SCOPE)
    inside, outside = T256 // 128 * 128 + (127 - T256 % 128), 255 - T256
    assert not races(writes(T256), group, reads(inside), threads=256)
    assert races(writes(T256), group, reads(outside), threads=256)
    assert races(writes(T256), WARP_BARRIER, reads(inside), threads=256)
    assert not races(writes(T256), making.barrier(making.scope("half", 64)), reads(T256 // 64 * 64 + (63 - T256 % 64)), threads=256)


def test_happens_before_is_transitive():
    """A warp barrier, then one of a warpgroup: the order is passed on."""
    first = reads(T // 32 * 32)
    assert not races(writes(T), WARP_BARRIER, first, making.barrier(WARPGROUP_SCOPE), writes(127 - T))
    (finding,) = races(writes(T), WARP_BARRIER, first, WARP_BARRIER, writes(127 - T))[:1]
    assert len({thread // 32 for thread in finding.details["threads"]}) == 2


def test_a_barrier_for_a_part_of_a_warp_is_refused():
    with pytest.raises(VerificationError, match="a part of a warp"):
        races(writes(T), making.barrier(making.scope("quarter", 8)), reads(T))


def test_accesses_of_one_thread_are_ordered():
    assert not races(writes(T), reads(T), writes(T))
    assert not races(writes(T, active=less(T, as_expr(7))), reads(T + 0, active=less(T, as_expr(7))))
    assert races(writes(T), reads(T + 1))


def test_threads_of_a_block_race_in_global_memory_too():
    for threads in (2, 32, 64):
        thread = Var("thread", 0, threads - 1)
        array = {"threads": threads, "buffers": (buffer("g", 64, memory=GL),)}
        assert not races(writes(thread, name="g"), reads(thread, name="g"), **array)
        assert races(writes(thread, name="g"), reads(threads - 1 - thread, name="g"), **array)
        assert not races(writes(thread, name="g"), BLOCK_BARRIER, reads(threads - 1 - thread, name="g"), **array)


def test_reads_need_no_order_but_a_write_after_a_read_does():
    assert not races(reads(ZERO), reads(ZERO))
    assert races(reads(ZERO), writes(T))
    assert not races(reads(ZERO), BLOCK_BARRIER, writes(T))


def test_partially_overlapping_vectors():
    """Grains have 16 bytes, or fewer if an access needs it."""
    assert not races(writes(T * 4, width=4), BLOCK_BARRIER, reads(508 - T * 4, width=4))
    assert not races(writes(T * 4, width=4), reads(T * 4 + 2, width=2))
    (finding,) = races(writes(T * 4, width=4), reads(T * 4 + 3, width=2))
    assert finding.details["address"] % 4 == 0 and finding.details["threads"][0] != finding.details["threads"][1]


def test_out_of_bounds_elements_are_not_accessed():
    """Elements past a bound, or with an inactive piece."""
    use = reads(128 + T * 2, width=2, bound=as_expr(131))
    assert not races(writes(T + 131), use) and races(writes(T + 128), use)
    pieces = (making.piece(0), making.piece(1, 1, condition=less(T, as_expr(5))))
    use = attrs.evolve(reads(T * 2, width=2), pieces=(pieces,))
    odd, only = less(as_expr(10), T), less(T, as_expr(12))
    assert not races(writes(T, active=all_of((odd, only))), use) and races(writes(T - 2, active=all_of((odd, only))), use)
    first = writes(T + 298, active=less(T, as_expr(1)))
    for count, bound, racy in ((40, 300, False), (46, 300, True), (46, 298, False)):
        assert bool(races(first, loop(count, reads(T * 2 + i, width=2, bound=as_expr(bound))))) == racy


def test_overlapping_buffers():
    float16_buffer = buffer("h", 256, dtype=float16)
    later = attrs.evolve(float16_buffer, offset=256)
    assert not races(writes(T), reads(T * 2, width=2, name="h"), buffers=(buffer("s", 4096), float16_buffer))
    assert races(writes(T), reads(T * 2, width=2, name="h"), buffers=(buffer("s", 4096), later))
    assert not races(writes(T, active=less(T, as_expr(64))), reads(T, name="h"), buffers=(buffer("s", 64), later))


def test_stages_that_are_not_whole_vectors_apart():
    """Vectors of 16 bytes in stages of 514 elements: the second stage starts 8 bytes before another buffer inside it."""
    staged_buffer = attrs.evolve(buffer("s", 514), tensor=attrs.evolve(buffer("s", 514).tensor, copies=2))
    others = [(staged_buffer, buffer("t", 4, offset=514 * 4 + at)) for at in (-16, -8, 0, 8, 16)]
    write, read = writes(ZERO, width=4, copy=1, active=equal(T, 0)), reads(ZERO, width=4, name="t", active=equal(T, 127))
    assert [bool(races(write, read, buffers=buffers)) for buffers in others] == [False, True, True, True, False]


# ---------------------------------------------------------------------------------------------- one statement


def test_two_lanes_of_one_instruction():
    (finding,) = races(writes(T // 2))
    assert finding.details["threads"] == [0, 1] and "in the same statement" in finding.message
    assert not races(writes(T // 2, active=less(T % 2, as_expr(1))))
    assert not races(reads(T // 2))


def test_atomic_adds_need_no_order_among_each_other():
    adds = attrs.evolve(writes(ZERO), spec=AtomicAdd(1, 1)(RF, SH)(Thread))
    assert not races(adds, adds)
    assert races(adds, reads(ZERO)) and races(writes(T, active=less(T, as_expr(1))), adds)
    assert not races(adds, BLOCK_BARRIER, reads(ZERO))


def test_every_pair_of_access_kinds():
    """One thread of the first warp and one of the last, without a barrier, with each kind first."""
    adds = attrs.evolve(writes(ZERO), spec=AtomicAdd(1, 1)(RF, SH)(Thread))
    for first, second in itertools.product((reads(ZERO), writes(ZERO), adds), repeat=2):
        before, after = attrs.evolve(first, active=equal(T, 0)), attrs.evolve(second, active=equal(T, 127))
        in_order = (first is second and first is adds) or not (first.accesses[0].write or second.accesses[0].write)
        assert bool(races(before, after)) != in_order, (first, second)
        assert not races(before, BLOCK_BARRIER, after)


def test_spread_accesses_belong_to_the_whole_warp():
    tile = T // 32 * 32 + T % 16
    assert not races(writes(tile, spread=True))
    assert races(writes(T % 32, spread=True))
    assert races(writes(T), reads(T, spread=True))
    assert not races(writes(T), WARP_BARRIER, reads(T, spread=True))
    first_lane = writes(T, active=equal(T % 32, 0))
    for pair in ((first_lane, reads(T, spread=True)), (reads(T, spread=True), first_lane)):
        assert races(*pair) and not races(pair[0], WARP_BARRIER, pair[1]), "another lane may read it"


def test_collective_statements():
    """The accesses within a statement of a warp are ordered; those of its next execution need a warp barrier."""
    of_warp = T // 32 * 32
    accesses = tuple(touch(of_warp, write=write, width=32).accesses[0] for write in (False, True))
    both = attrs.evolve(writes(of_warp, level=Warp), accesses=accesses)
    assert not races(both)
    assert races(both, both) and not races(both, WARP_BARRIER, both)
    twice = Var("twice", 0, 1)
    assert races(making.loop(twice, as_expr(2), (both,))) and not races(making.loop(twice, as_expr(2), (both, WARP_BARRIER)))
    across = touch((of_warp + 32) % 128, write=True, width=32).accesses[0]
    assert races(attrs.evolve(both, accesses=(accesses[0], across))), "another warp reads it in the same execution"
    finding, *_ = races(attrs.evolve(both, accesses=tuple(attrs.evolve(access, base=(ZERO,)) for access in accesses)))
    assert "warp 0" in finding.message and "thread" not in finding.message.split("(")[0]


# ---------------------------------------------------------------------------------------------- loops


@pytest.mark.parametrize("extent", [2, 3, 70, 1000, 100_000, K])
def test_loop_carried_races(extent):
    load, use = writes(T), reads(127 - T)
    symbols = (K,) if extent is K else ()
    assert not races(loop(extent, load, BLOCK_BARRIER, use, BLOCK_BARRIER), symbols=symbols)
    for body in ((load, use, BLOCK_BARRIER), (load, BLOCK_BARRIER, use), (BLOCK_BARRIER, load, use)):
        (finding,) = races(loop(extent, *body), symbols=symbols)
        assert "i=" in finding.message


def test_a_loop_that_may_not_run_orders_nothing():
    for extent, racy in ((K, True), (K + 1, False), (as_expr(0), True), (as_expr(5), False)):
        assert bool(races(writes(T), loop(extent, BLOCK_BARRIER), reads(127 - T), symbols=(K,))) == racy


def test_extents_and_conditions_of_all_blocks():
    block = Var("block", 0, 7)
    for extent, racy in ((block, True), (block + 1, False), (7 - block, True), (8 - block, False)):
        assert bool(races(writes(T), loop(extent, BLOCK_BARRIER), reads(127 - T), grid=8)) == racy
    for number in (0, 3, 7):
        only = less(as_expr(number - 1), block) if number else TRUE
        findings = races(writes(T, active=only), reads(127 - T, active=only), grid=8)
        assert findings and all("undecided" not in finding.message for finding in findings), number
    some = less(as_expr(2), T % 32 + block)
    (finding,) = races(writes(T, active=some), reads(127 - T), grid=2)
    assert "undecided" not in finding.message, "the first threads of a warp are active in no block, and the finding names another thread"
    (finding,) = races(writes(T, active=less(block * block, block)), reads(127 - T), grid=8)
    assert "undecided" in finding.message, "no block is active, and the check cannot decide that"


def test_stages_are_followed_for_a_period():
    """Three alternating stages need one barrier per iteration; two are not enough for a load two iterations ahead."""
    for extent in (7, 500, K):
        for stages, racy in ((3, False), (2, True)):
            load = writes(T + (i + 2) % stages * 128)
            use = reads(127 - T + i % stages * 128)
            findings = races(loop(extent, BLOCK_BARRIER, load, use), symbols=(K,))
            assert bool(findings) == racy, (extent, stages)


def test_the_end_of_a_long_loop_is_followed():
    """An access that only the last iterations perform, and that conflicts after the loop."""
    for count in (5, 50, 5000):
        last = less(as_expr(count - 2), i)
        body = loop(count, BLOCK_BARRIER, writes(T, active=last))
        assert races(body, reads(127 - T)) and not races(body, BLOCK_BARRIER, reads(127 - T)), count


def test_conditions_that_become_true_late():
    """In a loop of unknown length they may hold; with a known length the iteration decides."""
    for condition in (less(as_expr(900), i), less(as_expr(900), i + T)):
        body = (writes(T, active=condition), reads(127 - T, active=condition), BLOCK_BARRIER)
        assert races(loop(K, *body), symbols=(K,)) and races(loop(1000, *body)) and not races(loop(700, *body))
    early = less(i, as_expr(2))
    assert races(loop(1000, writes(T, active=early), reads(127 - T), BLOCK_BARRIER))
    assert not races(loop(1000, writes(T, active=early), BLOCK_BARRIER, reads(127 - T), BLOCK_BARRIER))
    j = Var("j", 0, 1 << 20)
    inner = loop(K, writes(T, active=less(as_expr(50), i + j)), var=j)
    assert races(loop(100, inner, reads(127 - T), BLOCK_BARRIER), symbols=(K,))


def test_one_statement_at_several_positions():
    again = writes(T)
    assert races(again, loop(3, again), reads(127 - T)) and not races(again, loop(3, again), BLOCK_BARRIER, reads(127 - T))


def test_moving_addresses():
    step = buffer("g", 1 << 20, memory=GL)
    for width, racy in ((128, False), (64, True)):
        for extent in (3, 5000, K):
            assert bool(races(loop(extent, writes(T + i * width, name="g")), buffers=(step,), symbols=(K,))) == racy, (width, extent)


def test_a_conflict_in_a_late_iteration():
    """The tenth of twenty iterations writes the elements that each iteration reads."""
    assert races(loop(20, BLOCK_BARRIER, reads(127 - T + 1280), writes(T + i * 128)))
    assert not races(loop(20, BLOCK_BARRIER, reads(127 - T + 2560), writes(T + i * 128)))


def test_conflicts_many_iterations_apart():
    """Two threads write the same sequence of addresses, one 15 iterations ahead; at 8.5 iterations they never conflict."""
    walk = buffer("g", 1 << 20, memory=GL)
    for apart, racy in ((120, True), (68, False)):
        walkers = (writes(i * 8, name="g", active=equal(T, 0)), writes(i * 8 + apart, name="g", active=equal(T, 127)))
        assert bool(races(loop(K, *walkers), buffers=(walk,), symbols=(K,))) == racy


def test_distinct_iterations_are_followed_or_undecided(monkeypatch):
    square = i * i % 509 * 8 % 509
    assert loops.MOST_ITERATIONS >= 4096
    monkeypatch.setattr(loops, "MOST_ITERATIONS", 300)
    assert races(loop(300, writes(T + square), BLOCK_BARRIER, reads(T + square + 1)))
    (finding,) = races(loop(1000, writes(T + square), BLOCK_BARRIER, reads(T + square), BLOCK_BARRIER))
    assert "undecided" in finding.message and "1000 iterations" in finding.message and "unchecked" in finding.message
    (finding,) = races(loop(K, writes(T + square), BLOCK_BARRIER, reads(T + square), BLOCK_BARRIER), symbols=(K,))
    assert "undecided" in finding.message


def test_findings_name_a_conflicting_iteration():
    (finding,) = races(loop(5, writes(T + i * 128)), reads(127 - T + 384))
    assert sorted(finding.details["loops"], key=len) == [{}, {"i": 3}]
    assert 384 <= finding.details["address"] < 512 and finding.details["element"] == [finding.details["address"]]


def test_nested_loops():
    j = Var("j", 0, 63)
    inner = loop(64, writes(T), BLOCK_BARRIER, reads(127 - T), var=j)
    assert races(loop(1000, inner)) and races(loop(1000, inner, BLOCK_BARRIER))
    inner = loop(64, writes(T), BLOCK_BARRIER, reads(127 - T), BLOCK_BARRIER, var=j)
    assert not races(loop(1000, inner)) and not races(loop(K, inner), symbols=(K,))
    triangle = making.loop(j, i + 1, (BLOCK_BARRIER,))
    assert not races(loop(5, writes(T), triangle, reads(127 - T), BLOCK_BARRIER))
    assert races(loop(5, writes(T), making.loop(j, i, (BLOCK_BARRIER,)), reads(127 - T), BLOCK_BARRIER))


def test_a_name_counts_as_its_value():
    other = Var("other", 0, 127)
    assert races(making.let(other, 127 - T), writes(T), reads(other)) and not races(making.let(other, T + 0), writes(T), reads(other))


# ---------------------------------------------------------------------------------------------- asynchronous copies


def test_pending_copies():
    use = reads(T)
    for body in (
        (copies(T), use),
        (copies(T), making.commit(), use),
        (copies(T), making.commit(), making.wait(1), use),
        (copies(T), making.wait(0), use),
    ):
        (finding,) = races(*body)
        assert "while the asynchronous copy is in flight" in finding.message
    assert not races(copies(T), making.commit(), making.wait(0), use)
    assert races(copies(T), making.commit(), making.wait(0), reads(T // 2 * 2))
    assert not races(copies(T), making.commit(), making.wait(0), WARP_BARRIER, reads(T // 2 * 2))
    assert races(copies(T), making.commit(), making.wait(0), WARP_BARRIER, reads(127 - T))
    assert not races(copies(T), making.commit(), making.wait(0), BLOCK_BARRIER, reads(127 - T))
    assert races(copies(T), making.commit(), BLOCK_BARRIER, making.wait(0), reads(127 - T))


def test_a_copy_of_a_single_thread_needs_a_wait():
    assert races(copies(ZERO), making.commit(), reads(ZERO), threads=1)
    assert not races(copies(ZERO), making.commit(), making.wait(0), reads(ZERO), threads=1)


def test_two_copies_to_one_element():
    assert races(copies(T), copies(T)) and races(copies(T), making.commit(), copies(T))
    assert not races(copies(T), making.commit(), making.wait(0), copies(T))
    twice = Var("twice", 0, 1)
    assert races(making.loop(twice, as_expr(2), (copies(T),))) and not races(making.loop(twice, as_expr(2), (copies(T + twice * 128),)))
    four = Var("four", 0, 3)
    (finding,) = races(making.loop(four, as_expr(4), (copies(T + four // 2 * 128),)))
    assert "while the asynchronous copy is in flight" in finding.message and len(set(finding.details["threads"])) == 1


def test_groups_complete_in_order():
    body = (copies(T), making.commit(), copies(T + 128), making.commit())
    assert not races(*body, making.wait(1), reads(T)) and races(*body, making.wait(1), reads(T + 128))
    assert not races(*body, making.wait(0), reads(T + 128))


@pytest.mark.parametrize("extent", [6, 200, K])
@pytest.mark.parametrize("stages", [2, 3, 4])
def test_a_pipeline(stages, extent):
    ahead = Var("ahead", 0, stages - 2)
    count = as_expr(extent)

    def program(groups=stages - 2, barrier=(BLOCK_BARRIER,), commit=COMMIT, offset=0):
        first = making.loop(ahead, as_expr(stages - 1), (copies(T + ahead * 128, active=less(ahead, count)), making.commit()))
        load = copies(T + (i + stages - 1) % stages * 128, active=less(i + stages - 1, count))
        use = reads(127 - T + (i + offset) % stages * 128)
        return first, making.loop(i, count, (making.wait(groups), *barrier, load, *commit, use))

    assert not races(*program(), symbols=(K,))
    for fault in ({"groups": stages - 1}, {"barrier": ()}, {"barrier": (WARP_BARRIER,)}, {"commit": ()}, {"offset": stages - 1}):
        if fault != {"commit": ()} or stages > 2:  # with two stages each wait is for all groups
            assert races(*program(**fault), symbols=(K,)), fault


# ---------------------------------------------------------------------------------------------- refusals


@attrs.frozen
class Around(ir.Stmt):
    """A kind of statement with a body that the check does not know."""

    body: tuple[ir.Stmt, ...]

    @property
    def children(self):
        return (self.body,)


def test_unknown_statements_are_rejected():
    for body in ((Around((writes(T),)),), (loop(3, Around(())),), (loop(0, loop(K, Around(()), var=Var("j", 0, 9))),)):
        with pytest.raises(VerificationError, match="the race check does not handle the statement Around"):
            races(*body, symbols=(K,))


def test_addresses_that_depend_on_block_or_size_are_undecided():
    block = Var("block", 0, 7)
    for place in (T + block % 2, T + K % 2):
        (finding,) = races(writes(place), grid=8, symbols=(K,))
        assert "undecided" in finding.message and "depend on" in finding.message
    trusted = check_races(AccessTrace(kernel(writes(T + block % 2), grid=8, unchecked=("I know",))))
    assert [finding.severity for finding in trusted] == ["warning"]


# ---------------------------------------------------------------------------------------------- atoms


def spaces_of(program):
    """The address spaces of a program, with numbered grains."""
    from fireiron.check.blocks import local_coordinates
    from fireiron.check.races.loops import Loops

    access_trace = AccessTrace(program)
    footprints = Footprints(access_trace, local_coordinates(access_trace))
    loops = Loops(access_trace, footprints, access_trace.uses)
    Tracer(access_trace, footprints, loops).traces({})
    for space in footprints.spaces.values():
        space.number_grains()
    return list(footprints.spaces.values())


def test_atoms_are_sets_of_accesses_despite_equal_hashes():
    """Grains with different sets of accesses are distinguished even if their hashes are equal."""
    program = kernel(writes(T), reads(T // 2), reads(127 - T), reads(T % 32 * 4), writes(T + 64))
    (space,) = spaces_of(program)
    expected = {}
    for number, footprint in enumerate(space.footprints.values()):
        keys, rows = footprint.pattern.present
        for key, row in zip(keys.tolist(), rows.tolist(), strict=True):
            expected.setdefault(key + footprint.shift, set()).add((number, row // 32))
    sets = {frozenset(footprint) for footprint in expected.values()}
    count = len(space.footprints)
    for multipliers in (None, np.zeros(count, np.uint64), np.ones(count, np.uint64), np.arange(count).astype(np.uint64)):
        total = atoms.split(list(space.footprints.values()), 4, 10, multipliers)
        by_atom = {}
        for number, footprint in enumerate(space.footprints.values()):
            for warp, atoms_of_warp in enumerate(footprint.atoms):
                for atom in atoms_of_warp:
                    assert 10 <= atom < 10 + total
                    by_atom.setdefault(atom, set()).add((number, warp))
        assert len(by_atom) == len(sets) and {frozenset(footprint) for footprint in by_atom.values()} == sets


# ---------------------------------------------------------------------------------------------- random kernels


def random_kernel(generator, extents=(0, 1, 2, 3, 8, 20)):
    """A random kernel of accesses, barriers, waits and loops, ordered or not."""
    threads = generator.choice((1, 32, 64, 96))
    thread = Var("thread", 0, threads - 1)

    def place(var):
        first = generator.choice((thread, thread, threads - 1 - thread, thread // 2 * 2, thread // 32 * 32 + (31 - thread % 32)))
        stages = generator.choice((1, 2, 3))
        ahead = generator.choice((0, 1, 2))
        return first * 2 + (0 if var is None else (var + ahead) % stages * 256), generator.choice((1, 2, 2))

    def statement(var, depth):
        kind = generator.random()
        if kind < 0.5:
            where, width = place(var)
            condition = generator.choice((TRUE, TRUE, less(thread, as_expr(generator.choice((8, 40))))))
            if var is not None and generator.random() < 0.2:
                condition = less(var + generator.choice((1, 2)), generator.choice([as_expr(item) for item in (3, 9, *extents[-2:])]))
            make = generator.choice((writes, reads, reads, copies))
            return (make(where, width=width, active=condition),)
        if kind < 0.75 or depth == 2:
            return (generator.choice((BLOCK_BARRIER, BLOCK_BARRIER, WARP_BARRIER)),)
        if kind < 0.87:
            return (making.commit(), making.wait(generator.choice((0, 0, 1, 2))), BLOCK_BARRIER)
        inner = Var(f"i{depth}", 0, 63)
        extent = generator.choice(extents)
        body = tuple(item for _ in range(generator.choice((1, 2, 3, 4))) for item in statement(inner, depth + 1))
        return (making.loop(inner, as_expr(extent), body),)

    return kernel(*(item for _ in range(generator.choice((2, 3, 4))) for item in statement(None, 0)), threads=threads, symbols=(K,))


@pytest.mark.parametrize("chunk", range(8))
def test_random_kernels_compared_with_execution_by_thread(chunk):
    verdicts = [0, 0]
    for seed in range(chunk * 40, chunk * 40 + 40):
        program = random_kernel(random.Random(seed))
        expected = racy_by_hand(program)
        findings = check_races(AccessTrace(program))
        assert bool(findings) == expected, (seed, program.body, [str(finding) for finding in findings])
        verdicts[expected] += 1
    assert min(verdicts) >= 5, verdicts


def test_segments_miss_no_race(monkeypatch):
    """If all segments are ordered, no access is unordered; and most correct kernels need no second pass."""
    ordered_segments, unordered_accesses = [], []
    unordered_segments, unordered = segments.Segments.unordered, race_check._unordered

    def followed_as_well(instance, traces, ways):
        ordered_segments.append(not unordered_segments(instance, traces, ways))
        return traces

    monkeypatch.setattr(segments.Segments, "unordered", followed_as_well)
    monkeypatch.setattr(
        race_check, "_unordered", lambda *arguments: unordered_accesses.append(unordered(*arguments)) or unordered_accesses[-1]
    )
    for seed in range(300):
        check_races(AccessTrace(random_kernel(random.Random(seed))))
    assert not any(ordered and race for ordered, race in zip(ordered_segments, unordered_accesses, strict=True))
    clean = [ordered for ordered, race in zip(ordered_segments, unordered_accesses, strict=True) if not race]
    assert 40 <= len(clean) <= 260 and sum(clean) >= len(clean) // 2, (len(clean), sum(clean))


def test_lengths_with_ordered_segments_need_no_second_pass(monkeypatch):
    """The findings equal those of a second pass over all lengths."""
    followed, all_lengths = [], []
    unordered_segments, unordered = segments.Segments.unordered, race_check._unordered
    monkeypatch.setattr(
        segments.Segments, "unordered", lambda instance, *given: all_lengths.append(given[0]) or unordered_segments(instance, *given)
    )
    monkeypatch.setattr(
        race_check, "_unordered", lambda *given: followed.append((len(given[0]), len(all_lengths[-1]))) or unordered(*given)
    )
    programs = [random_kernel(random.Random(seed), extents=(2, K)) for seed in range(60)]
    shown = [check_races(AccessTrace(program)) for program in programs]
    assert any(few < all_of_them for few, all_of_them in followed)
    monkeypatch.setattr(segments.Segments, "unordered", lambda instance, traces, ways: traces)
    assert [set(map(str, findings)) for findings in shown] == [set(map(str, check_races(AccessTrace(program)))) for program in programs]


@pytest.mark.parametrize("chunk", range(4))
def test_loops_of_unknown_length_compared_with_all_lengths(chunk):
    verdicts = [0, 0]
    for seed in range(chunk * 20, chunk * 20 + 20):
        program = random_kernel(random.Random(seed), extents=(2, K))
        expected = any(racy_by_hand(program, K=size) for size in range(20))
        findings = check_races(AccessTrace(program))
        assert bool(findings) == expected, (seed, program.body, [str(finding) for finding in findings])
        verdicts[expected] += 1
    assert min(verdicts) >= 3, verdicts


# ---------------------------------------------------------------------------------------------- strategies

SMALL = MatMul.tile(16, 16).to(Block).split(4).pipeline(2).load(A, SH).load(B, SH).tile(2, 2).to(Thread).split(1).tile(1, 1).done()
PARTS = MatMul.tile(16, 16).to(Block).split_k(1, Warpgroup, 1).split(1).pipeline(3).load(A, SH).load(B, SH).tile(2, 2).to(Thread)
PARTS = PARTS.tile(1, 1).done()
ABOVE = MatMul.tile(32, 32).tile(4, 4).to(Block).tile(2, 2).to(Warp).tile(1, 1).to(Lane).split(1).tile(1, 1).done()


@pytest.mark.parametrize(
    "strategy, sizes, target", [(SMALL, (64, 64, sym("K")), "sm_75"), (PARTS, (32, 32, 80), "sm_75"), (PARTS, (32, 32, 80), "sm_80")]
)
def test_pipelines_without_their_barriers_are_decided(strategy, sizes, target):
    """With any subset of barriers removed, for loops of any length."""
    program = strategy(MatMul(*sizes)(GL, GL, GL)(Kernel)).program(target).lowered
    assert safety(program) == ()
    paths = [stmt for stmt in ir.statements(program.body) if isinstance(stmt, Barrier)]
    assert paths
    for number in range(1, len(paths) + 1):
        for chosen in itertools.combinations(paths, number):
            body = ir.rewritten(program.body, lambda stmt, chosen=chosen: () if any(stmt is barrier for barrier in chosen) else (stmt,))
            findings = check_races(AccessTrace(attrs.evolve(program, body=body)))
            assert findings and all(stmt.severity == "error" and "undecided" not in stmt.message for stmt in findings)


@pytest.mark.parametrize("sizes", [(64, 32, 4), (70, 33, 4), (sym("M"), sym("N"), sym("K"))])
def test_tiles_above_the_block_with_idle_lanes(sizes):
    assert safety(ABOVE(MatMul(*sizes)(GL, GL, GL)(Kernel)).program().lowered) == ()
