"""Shared memory read before any write, in hand-made kernels: conditions, loops, roles, stages, gaps in buffers."""

import random

import attrs
import making
import pytest
from touching import BLOCK_BARRIER, K, T, buffer, i, kernel, loop, reads, touch, writes

from fireiron import *
from fireiron import ir
from fireiron.check import AccessTrace, check_uninitialized_shared, uninitialized_shared
from fireiron.errors import VerificationError
from fireiron.values.expr import TRUE, Var, all_of, as_expr, equal, less
from fireiron.values.layout import Layout
from fireiron.values.tensor import Mode, Storage

BLOCK = Var("block", 0, 7)
FEW, SOME = Var("few", 0, 9, 1, True), Var("some", 1, 9, 1, True)


def diagnose(*body, **options):
    """The messages of the check for a kernel of 128 threads."""
    return [
        finding.message.replace("Move(1,1)(RF,SH)(Thread) ", "")
        for finding in check_uninitialized_shared(AccessTrace(kernel(*body, **options)))
    ]


def uninitialized(first, others=0, name="s"):
    more = f" and {others} others" if others else ""
    return [f"reads {name}[{first}]{more} before any write to this shared memory"]


READ = reads(T)


def test_unknown_statements_are_rejected():
    class Other(ir.Stmt):
        """A kind of statement that the check does not know."""

    with pytest.raises(VerificationError, match="the check of shared memory does not handle the statement Other"):
        diagnose(Other())


def test_findings_name_line_and_buffer():
    (finding,) = check_uninitialized_shared(AccessTrace(kernel(READ)))
    assert (finding.kind, finding.severity, finding.buffer, finding.at) == ("shared", "error", "s", "hand.py:1")
    access = attrs.evolve(READ.accesses[0], origin=None)
    (finding,) = check_uninitialized_shared(AccessTrace(kernel(attrs.evolve(READ, accesses=(access,), origin="of statement"))))
    assert finding.at == "of statement"
    assert not check_uninitialized_shared(AccessTrace(kernel(READ, buffers=(buffer("s", 4096, memory=RF),)))), (
        "another check covers registers"
    )


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ((READ,), uninitialized(0, 127)),
        ((writes(T), BLOCK_BARRIER, READ), []),
        ((READ, BLOCK_BARRIER, writes(T)), uninitialized(0, 127)),
        ((writes(T), BLOCK_BARRIER, reads(T + 1)), uninitialized(128)),
        ((writes(127 - T), BLOCK_BARRIER, READ), []),
        ((writes(T, active=less(T, 126)), BLOCK_BARRIER, READ), uninitialized(126, 1)),
        ((writes(T), reads(T, active=less(T, 126))), []),
        ((writes(T, active=less(T, 100)), reads(T, active=less(T, 101))), uninitialized(100)),
        ((writes(T * 2, width=2), reads(255 - T)), []),
        ((writes(T * 2, width=1), reads(T)), uninitialized(1, 63)),
        ((writes(T, copy=0), reads(T, copy=1)), uninitialized(4096, 127)),
        ((writes(T, active=less(BLOCK, 1)), READ), []),
        ((reads(T, active=less(BLOCK, 1)),), uninitialized(0, 127)),
        ((writes(T, name="t"), READ), uninitialized(0, 127)),
        ((READ, reads(T)), uninitialized(0, 127) * 2),
        ((READ, READ), uninitialized(0, 127)),
        ((writes(T + K), READ), []),
        ((reads(T + K),), []),
        ((reads(T + 9000),), []),
    ],
)
def test_each_element_and_stage(body, expected):
    """Each element of each stage counts; conditions on blocks and sizes are assumed to hold; a write at an unknown index initializes all."""
    staged = attrs.evolve(buffer("s", 4096), tensor=attrs.evolve(buffer("s", 4096).tensor, copies=2))
    assert diagnose(*body, buffers=(staged, buffer("t", 512, offset=65536)), symbols=(K,)) == expected


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ((loop(4, writes(i * 128 + T)), reads(T + 384)), []),
        ((loop(4, writes(i * 128 + T)), reads(T + 385)), uninitialized(512)),
        ((loop(4, writes(i * 128 + T), BLOCK_BARRIER), reads(T + 384)), []),
        ((loop(4, writes(i * 128 + T), BLOCK_BARRIER), reads(T + 385)), uninitialized(512)),
        ((loop(4, reads(i * 128 + T), writes(i * 128 + T)),), []),
        ((loop(4, reads(i * 128 + T), BLOCK_BARRIER, writes(i * 128 + T)),), uninitialized(0, 127)),
        ((loop(4, writes(i * 128 + T), BLOCK_BARRIER, reads(i * 128 + T)),), []),
        ((loop(4, writes(i * 128 + T), BLOCK_BARRIER, reads(i * 64 + T)),), []),
        ((loop(4, writes(i * 64 + T), BLOCK_BARRIER, reads(i * 128 + T)),), uninitialized(192, 63)),
        ((loop(0, writes(T)), READ), uninitialized(0, 127)),
        ((loop(FEW, writes(T)), READ), uninitialized(0, 127)),
        ((loop(SOME, writes(T)), READ), []),
        ((loop(FEW, writes(T), BLOCK_BARRIER), READ), uninitialized(0, 127)),
        ((loop(FEW, READ),), uninitialized(0, 127)),
        ((loop(8, writes(T + 256, active=less(i, 1)), BLOCK_BARRIER), reads(T + 256)), []),
        ((loop(100, writes(T, active=equal(i, 99)), BLOCK_BARRIER), READ), []),
        ((loop(100, reads(T, active=equal(i, 99)), BLOCK_BARRIER),), uninitialized(0, 127)),
        ((loop(9, writes(i % 3 * 128 + T), BLOCK_BARRIER, period=3), reads(T + 256)), []),
        ((loop(9, writes(i % 3 * 128 + T), BLOCK_BARRIER, period=3), reads(T + 257)), uninitialized(384)),
        ((loop(3, loop(2, writes(i * 256 + Var("j", 0, 1) * 128 + T), var=Var("j", 0, 1)), BLOCK_BARRIER), reads(T + 640)), []),
    ],
)  # fmt: skip
def test_writes_and_reads_in_loops(body, expected):
    """Writes in a loop without barriers come first; a loop that may have no iteration initializes nothing; the last iteration counts."""
    assert diagnose(*body, symbols=(FEW, SOME)) == expected


def test_accumulation_reads_its_target():
    adding = touch(T, write=True, accumulate=TRUE)
    assert diagnose(adding) == uninitialized(0, 127)
    assert diagnose(writes(T), BLOCK_BARRIER, adding) == []
    assert diagnose(touch(T, write=True, accumulate=less(T, 3))) == uninitialized(0, 2)
    assert diagnose(loop(4, attrs.evolve(adding, accumulate=less(0, i)), BLOCK_BARRIER)) == [], "the first iteration initializes"
    assert diagnose(loop(4, attrs.evolve(adding, accumulate=less(i, 1)), BLOCK_BARRIER)) == uninitialized(0, 127)
    assert diagnose(touch(T, write=True, accumulate=less(BLOCK, 1))) == [], "conditions on blocks are undecided"


def test_the_elected_producer_writes_before_other_roles_read():
    """The order of the roles does not matter; a role that is not elected initializes only for later roles."""

    def roles(elected, *bodies):
        roles_ = [making.role(f"role {n}", 64 * n, 64, body, elected=n == elected) for n, body in enumerate(bodies)]
        return making.roles(tuple(roles_))

    fill, use = (writes(T),), (reads(T, active=less(T, 64)),)
    assert diagnose(roles(1, use, fill)) == [] == diagnose(roles(0, fill, use))
    assert diagnose(roles(None, use, fill)) == uninitialized(0, 63)
    assert diagnose(roles(1, (loop(FEW, *use),), (loop(FEW, *fill),)), symbols=(FEW,)) == [], "without an iteration neither reads"
    assert diagnose(roles(None, (loop(FEW, *fill),), use), symbols=(FEW,)) == uninitialized(0, 63)
    half = loop(FEW, writes(T, active=less(T, 64)), BLOCK_BARRIER)
    assert diagnose(roles(1, (), (half,)), loop(FEW, writes(T + 64)), reads(T), symbols=(FEW,)) == uninitialized(64, 63), (
        "a later loop has no producer"
    )


def test_the_first_thread_represents_a_group():
    together = touch(T * 4, write=True, level=Warp, width=4)
    assert diagnose(together, reads(T)) == uninitialized(4, 123), "the first thread of each warp writes 4 elements"
    assert diagnose(attrs.evolve(together, lane_maps=(None,)), reads(T)) == [], "with a lane map each thread writes its own element"


def test_conditions_on_threads_and_iterations_together():
    both = all_of((less(T, 10), less(i, 2)))
    body = (loop(3, writes(i * 16 + T, active=both), BLOCK_BARRIER), reads(T, active=less(T, 27)))
    assert diagnose(*body) == uninitialized(10, 6), "10 elements of 16, twice"


# ---------------------------------------------------------------------------------------------- compared with execution


def uninitialized_reads(program):
    """The first elements that each statement reads before any write, by executing the kernel in order."""
    full, first_reads = set(), {}

    def run(body, values):
        for stmt in body:
            if isinstance(stmt, ir.For):
                for number in range(stmt.extent.evaluate(values)):
                    run(stmt.body, {**values, stmt.var.name: number})
            elif isinstance(stmt, ir.Exec):
                (access,) = stmt.accesses
                size = program.buffer(access.buffer).elements.evaluate({})
                places = {
                    access.copy.evaluate(thread_values) * size + access.base[0].evaluate(thread_values) + offset
                    for thread in range(program.threads)
                    if stmt.active.evaluate(thread_values := {**values, "thread": thread})
                    for (offset,) in access.elements()
                    if access.bounds[0] is None
                    or access.base[0].evaluate(thread_values) + offset < access.bounds[0].evaluate(thread_values)
                }
                if access.write:
                    full.update(places)
                elif missing := sorted(places - full):
                    first_reads.setdefault(id(stmt), missing)

    run(program.body, {"block": 0})
    return [
        uninitialized(elements[0], len(elements) - 1)[0] if len(elements) > 1 else uninitialized(elements[0])[0]
        for elements in first_reads.values()
    ]


def random_kernel(chance):
    """Writes and reads of two stages of 64 elements, with a barrier after each."""
    inner = Var("j", 0, 2)

    def step(depth):
        where = chance.choice((T, T % 16, T + 16, 31 - T, T * 2, *((T + i * 8, T % 8 + i * 8) * depth), *((T + inner,) * (depth > 1))))
        ends = (less(i, 1), less(0, i), equal(i, 2)) if depth else ()
        active = chance.choice((TRUE, TRUE, TRUE, less(T, 20), less(T, 19), less(7, T), equal(T % 2, 0), *ends))
        copy = chance.choice((0, 0, 1, T % 2, *((i % 2, (i + 1) % 2) * (depth > 0))))
        bound = chance.choice((None, None, None, as_expr(30), T + 1))
        put = chance.random() < 0.5
        return [touch(where, write=put, width=chance.choice((1, 1, 2)), active=active, copy=copy, bound=bound), BLOCK_BARRIER]

    body = [stmt for _ in range(chance.choice((0, 1, 2))) for stmt in step(0)]
    within = [stmt for _ in range(chance.choice((1, 2, 3))) for stmt in step(1)]
    if chance.random() < 0.4:
        within += [loop(2, *step(2), var=inner)]
    body += [loop(chance.choice((1, 2, 3)), *within)]
    body += [stmt for _ in range(chance.choice((1, 2))) for stmt in step(0)]
    whole = buffer("s", 64)
    return kernel(*body, threads=32, buffers=(attrs.evolve(whole, tensor=attrs.evolve(whole.tensor, copies=2)),))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("chunk", range(6))
def test_random_kernels_compared_with_execution(chunk):
    verdicts = set()
    for seed in range(40 * chunk, 40 * (chunk + 1)):
        program = random_kernel(random.Random(f"filled {seed}"))
        expected = uninitialized_reads(program)
        messages = [
            finding.message.replace("Move(1,1)(RF,SH)(Thread) ", "") for finding in check_uninitialized_shared(AccessTrace(program))
        ]
        assert sorted(messages) == sorted(expected), (seed, program.body)
        verdicts.add(bool(expected))
    assert verdicts == {True, False}


# ---------------------------------------------------------------------------------------------- single behaviors


def test_writes_in_a_conditional_body_count_inside_it_only():
    assert diagnose(making.if_any_lane("r", (READ,))) == uninitialized(0, 127)
    assert diagnose(making.if_any_lane("r", (writes(T), BLOCK_BARRIER, READ))) == []
    assert diagnose(making.if_any_lane("r", (writes(T),)), BLOCK_BARRIER, READ) == uninitialized(0, 127), "the body may be skipped"
    assert diagnose(writes(T), making.if_any_lane("r", (writes(T + 128),)), reads(T), reads(T + 128)) == uninitialized(128, 127)


def test_statements_without_accesses_change_nothing():
    names = (
        making.let(Var("name", 0, 0), as_expr(0)),
        making.comment("text"),
        making.commit(),
        making.wait(0),
        making.fence(ir.FenceKind.ASYNC_PROXY),
    )
    names += (
        making.acquire("ring", ir.StageState.FULL, as_expr(0)),
        making.release("ring", ir.StageState.FULL, as_expr(0)),
        making.cluster_barrier(),
    )
    names += (making.claim_tile(Var("tile", 0, 9), as_expr(9), "ring", as_expr(0)), making.exit_if_done(Var("tile", 0, 9), as_expr(9)))
    assert diagnose(*names, READ) == uninitialized(0, 127)
    assert diagnose(writes(T), *names, READ) == []


def test_kernels_without_shared_memory_are_not_analyzed():
    class Other(ir.Stmt):
        """A kind of statement that the check does not know."""

    assert diagnose(Other(), buffers=(buffer("r", 4, memory=RF),)) == []
    with pytest.raises(VerificationError):
        diagnose(Other(), buffers=(buffer("r", 4, memory=RF), buffer("s", 4)))


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ((writes(T, active=less(T, 127)), reads(T - 1)), []),
        ((writes(T - 64), reads(T + 4032)), uninitialized(4032, 63)),
        ((writes(T + 4032), reads(T - 64)), uninitialized(0, 63)),
        ((writes(T + 4032), reads(T + 4033)), []),
        ((writes(T, copy=2), reads(T, copy=1)), uninitialized(4096, 127)),
        ((writes(T, copy=-1), reads(T, copy=1)), uninitialized(4096, 127)),
        ((writes(T, copy=-1), reads(T, copy=0)), uninitialized(0, 127)),
        ((writes(T, copy=2), reads(T, copy=2)), []),
    ],
)
def test_out_of_bounds_accesses_are_ignored(body, expected):
    """The bounds check reports them; they count as no other element."""
    staged = attrs.evolve(buffer("s", 4096), tensor=attrs.evolve(buffer("s", 4096).tensor, copies=2))
    assert diagnose(*body, buffers=(staged,)) == expected


def staged_buffer(elements=128, copies=2):
    """A buffer of `elements` elements in `copies` stages."""
    plain = buffer("s", elements)
    return attrs.evolve(plain, tensor=attrs.evolve(plain.tensor, copies=copies))


def test_stages_are_initialized_separately():
    """A stage that does not exist is ignored."""
    options, writes_stage_0 = {"buffers": (staged_buffer(),)}, writes(T)
    assert diagnose(writes_stage_0, READ, reads(T, copy=1), **options) == uninitialized(128, 127)
    assert diagnose(writes(T, copy=1), reads(T, copy=1), READ, **options) == uninitialized(0, 127)
    assert diagnose(writes_stage_0, writes(T, copy=1, active=less(T, 127)), READ, reads(T, copy=1), **options) == uninitialized(255)
    assert diagnose(writes_stage_0, reads(T, copy=2), reads(T, copy=3), **options) == []
    assert diagnose(writes_stage_0, writes(T, copy=2), reads(T, copy=1), **options) == uninitialized(128, 127)
    assert diagnose(writes_stage_0, loop(3, reads(T, copy=i), BLOCK_BARRIER), **options) == uninitialized(128, 127)
    assert diagnose(loop(2, writes(T, copy=i), BLOCK_BARRIER), loop(2, reads(T, copy=1 - i), BLOCK_BARRIER), **options) == []
    assert diagnose(writes_stage_0, writes(T, copy=T % 2), reads(T, copy=1), **options) == uninitialized(128, 63)
    assert diagnose(writes(T, active=less(T, 127)), READ, buffers=(staged_buffer(copies=1),)) == uninitialized(127)
    assert diagnose(writes(T, active=less(0, T)), READ, buffers=(staged_buffer(copies=1),)) == uninitialized(0)


def gapped(rows=4, columns=8, stride=6):
    """A buffer with gaps: columns of 4 elements, 6 apart."""
    tensor = attrs.evolve(buffer("s", rows).tensor, shape=(as_expr(rows), as_expr(columns)), layout=ColMajor)
    storage = Storage(Layout((rows, columns), (1, stride)), rows + (columns - 1) * stride)
    return making.buffer(tensor, storage, storage.extent, written=False)


def in_matrix(row, column, write, active=TRUE):
    modes = ((Mode(1, 1),), (Mode(1, 1),))
    access = making.access("s", (as_expr(row), as_expr(column)), modes, (None, None), write, unit_modes=((), ()), origin="hand.py:1")
    return making.execution(spec=Move(1, 1)(RF, SH)(Thread), accesses=(access,), instruction=READ.instruction, active=active)


def count_addresses(monkeypatch, *body, **options):
    """How often the check computes addresses, and its messages."""
    computed, addresses = [], AccessTrace.addresses
    monkeypatch.setattr(
        AccessTrace, "addresses", lambda access_trace, frame, access: computed.append(access) or addresses(access_trace, frame, access)
    )
    findings = diagnose(*body, **options)
    monkeypatch.undo()
    return len(computed), findings


def test_gaps_of_a_buffer_need_no_write(monkeypatch):
    row, column, few = T % 4, T // 4, less(T, 31)
    options = {"buffers": (gapped(),), "threads": 32}
    assert count_addresses(monkeypatch, in_matrix(row, column, True), in_matrix(row, column, False), **options) == (1, []), (
        "a fully initialized buffer is not examined again"
    )
    assert count_addresses(monkeypatch, in_matrix(row, column, True, few), in_matrix(row, column, False), **options) == (
        2,
        uninitialized(45),
    )


def test_fully_initialized_buffers_are_not_examined(monkeypatch):
    options = {"buffers": (staged_buffer(copies=1),)}
    assert count_addresses(monkeypatch, writes(T), READ, reads(127 - T), writes(T), **options) == (1, [])
    assert count_addresses(monkeypatch, writes(T, active=less(T, 127)), READ, **options) == (2, uninitialized(127))
    assert count_addresses(monkeypatch, writes(T), reads(T), buffers=(staged_buffer(),)) == (1, []), "nor a fully initialized stage"
    assert count_addresses(monkeypatch, writes(T), reads(T, copy=1), buffers=(staged_buffer(),)) == (2, uninitialized(128, 127))
    assert count_addresses(monkeypatch, writes(T), loop(9, reads(T + i - i), BLOCK_BARRIER), **options) == (1, [])
    assert count_addresses(monkeypatch, writes(T + K), reads(T), reads(T + 1), symbols=(K,), **options) == (0, []), (
        "an unknown write may initialize any element"
    )


def test_writes_at_unknown_indices_initialize_all():
    """A read at an unknown index is not reported and does not affect others."""
    assert diagnose(writes(T + K), loop(3, reads(T + i * 128), BLOCK_BARRIER), symbols=(K,)) == []
    assert diagnose(writes(T, copy=K % 2), reads(T), reads(T, copy=1), buffers=(staged_buffer(),), symbols=(K,)) == []
    assert diagnose(writes(T, copy=0), reads(T, copy=K % 2), reads(T, copy=1), buffers=(staged_buffer(),), symbols=(K,)) == uninitialized(
        128, 127
    )
    assert diagnose(reads(T + K), READ, symbols=(K,)) == uninitialized(0, 127)


J = Var("j", 0, 1 << 20)


def test_inner_loop_of_unknown_length():
    """If its variable is part of the index, the write initializes all; if not, the loop counts as one statement."""
    assert diagnose(loop(2, loop(FEW, writes(T + J), var=J)), READ, symbols=(FEW,)) == []
    assert diagnose(loop(2, loop(FEW, writes(T), var=J)), reads(T + 1), symbols=(FEW,)) == uninitialized(128)


@pytest.mark.parametrize(("width", "known"), [(4, True), (5, False)])
def test_writes_with_too_many_points_initialize_all(monkeypatch, width, known):
    """Above the limit on points (128 threads times `width` elements) the index counts as unknown."""
    monkeypatch.setattr("fireiron.check.uninitialized_shared.POINTS", 512)
    assert diagnose(writes(T * 0 + T, width=width), reads(T + 1000)) == (uninitialized(1000, 127) if known else [])
    assert diagnose(writes(0, width=512), reads(T + 1000)) == uninitialized(1000, 127), (
        "one thread represents all threads that access the same elements"
    )
    assert diagnose(writes(0, width=513), reads(T + 1000)) == []


@pytest.mark.parametrize("followed", [3, 4])
def test_long_loops_are_followed_for_first_and_last_iterations(monkeypatch, followed):
    """Writes of later iterations are unknown, except for the last one."""
    monkeypatch.setattr("fireiron.check.uninitialized_shared.MAX_FOLLOWED", followed)
    for number in range(12):
        reached = number <= followed or number == 11
        body = loop(12, writes(T, active=equal(i, number)), BLOCK_BARRIER)
        assert diagnose(body, READ) == ([] if reached else uninitialized(0, 127)), number
        body = loop(12, reads(T, active=equal(i, number)), BLOCK_BARRIER)
        assert diagnose(body) == (uninitialized(0, 127) if reached else []), number
    for extent in (followed, followed + 1, followed + 2):
        assert diagnose(loop(extent, writes(T + i * 128), BLOCK_BARRIER), reads(T + extent * 128 - 128)) == []
        assert diagnose(loop(extent, writes(T + i * 128), BLOCK_BARRIER), reads(T + extent * 128 - 127)) == uninitialized(extent * 128)


def executed_iterations(monkeypatch, *body, **options):
    """The iterations that the check executes, and its messages."""
    executed, perform = [], uninitialized_shared._Execution._perform
    monkeypatch.setattr(
        uninitialized_shared._Execution, "_perform", lambda path, works, loops: executed.append(dict(loops)) or perform(path, works, loops)
    )
    findings = diagnose(*body, **options)
    monkeypatch.undo()
    return executed, findings


def test_a_loop_is_followed_for_one_period(monkeypatch):
    """If only the stage depends on its variable; otherwise for all values, or once if nothing depends on it. It ends when all is initialized."""
    options = {"buffers": (staged_buffer(copies=3),)}
    period = [{"i": number} for number in (0, 1, 2, 3, 99)]
    part = writes(T, copy=i % 3, active=less(T, 64))
    assert executed_iterations(monkeypatch, loop(100, part, BLOCK_BARRIER, period=3), **options) == (period, [])
    short = loop(4, part, BLOCK_BARRIER, period=3)
    assert executed_iterations(monkeypatch, short, **options) == (period[:4], []), "at most the trip count"
    inside = writes(T + i % 2, copy=i % 3, active=less(T, 64))
    assert len(executed_iterations(monkeypatch, loop(20, inside, BLOCK_BARRIER, period=3), **options)[0]) == 20
    assert len(executed_iterations(monkeypatch, loop(20, part, BLOCK_BARRIER), **options)[0]) == 20, "without a known period"
    same = writes(T, active=less(T, 64))
    assert executed_iterations(monkeypatch, loop(20, same, BLOCK_BARRIER), **options) == ([{"i": 0}], [])
    whole = writes(T, copy=i % 3)
    assert executed_iterations(monkeypatch, loop(100, whole, BLOCK_BARRIER, period=50), **options) == (period[:3], [])
    assert executed_iterations(monkeypatch, loop(0, same, BLOCK_BARRIER), **options) == ([], [])
    assert executed_iterations(monkeypatch, loop(20, same), **options) == ([{}], []), "without synchronization the loop counts as a whole"


def test_loop_with_a_known_minimum_length():
    """The minimum number of iterations initializes; reads are checked in at least two iterations."""
    three = Var("three", 3, 9, 1, True)
    step = writes(i * 128 + T), BLOCK_BARRIER
    options = {"symbols": (three, SOME, FEW)}
    assert diagnose(loop(three, *step), reads(T + 256), **options) == []
    assert diagnose(loop(three, *step), reads(T + 257), **options) == uninitialized(384)
    assert diagnose(loop(SOME, *step), reads(T + 128), **options) == []
    assert diagnose(loop(SOME, *step), reads(T + 129), **options) == uninitialized(256)
    assert diagnose(loop(FEW, *step, READ), **options) == [], "a write counts inside its loop"
    assert diagnose(loop(FEW, writes(T), BLOCK_BARRIER, reads(T + 1)), **options) == uninitialized(128)
    assert diagnose(loop(FEW, *step, reads(T + 128 * i)), **options) == []
    assert diagnose(loop(FEW, BLOCK_BARRIER, reads(T, active=equal(i, 1))), **options) == uninitialized(0, 127), "the second iteration too"
    assert diagnose(loop(FEW, BLOCK_BARRIER, reads(T, active=equal(i, 2))), **options) == []
    assert diagnose(loop(three, BLOCK_BARRIER, reads(T, active=equal(i, 2))), **options) == uninitialized(0, 127)


def test_loop_with_first_and_step():
    odd = {"first": 1, "step": 2}
    assert diagnose(loop(5, writes(i * 128 + T), BLOCK_BARRIER, **odd), reads(T + 128), reads(T + 384), reads(T + 256)) == uninitialized(
        256, 127
    )
    assert diagnose(loop(SOME, writes(i * 128 + T), BLOCK_BARRIER, **odd), reads(T + 384), symbols=(SOME,)) == []
    assert diagnose(loop(SOME, writes(i * 128 + T), BLOCK_BARRIER, **odd), reads(T + 512), symbols=(SOME,)) == uninitialized(512, 127)


def test_inner_loop_length_depends_on_the_outer_variable():
    inner = loop(i + 1, writes(J * 128 + T), BLOCK_BARRIER, var=J)
    assert diagnose(loop(3, inner, BLOCK_BARRIER), reads(T + 256)) == []
    assert diagnose(loop(3, inner, BLOCK_BARRIER), reads(T + 257)) == uninitialized(384)
    assert diagnose(loop(3, loop(i, reads(T), BLOCK_BARRIER, var=J))) == uninitialized(0, 127), (
        "in the first outer iteration it has no iteration"
    )
    assert diagnose(loop(1, loop(i, reads(T), BLOCK_BARRIER, var=J))) == []


@pytest.mark.parametrize(
    "order",
    [
        BLOCK_BARRIER,
        making.wait(0),
        making.acquire("ring", ir.StageState.FULL, as_expr(0)),
        making.release("ring", ir.StageState.FULL, as_expr(0)),
        making.cluster_barrier(),
    ],
    ids=lambda finding: type(finding).__name__,
)
def test_statements_that_order_iterations(order):
    """With one of them the iterations are in order; otherwise the writes of the loop come before its reads."""
    assert diagnose(loop(4, reads(i * 128 + T), order, writes(i * 128 + T))) == uninitialized(0, 127)
    assert diagnose(loop(4, reads(i * 128 + T), making.commit(), making.comment("text"), writes(i * 128 + T))) == []


@pytest.mark.parametrize("bound", [i * 16 + 16, as_expr(40)])
def test_bounds_and_pieces_change_with_iterations(bound):
    """Only elements below the bound are accessed, and a piece only under its condition."""
    ends = [bound.evaluate({"i": number}) for number in range(3)]
    put = writes(i * 32 + T % 32, bound=bound + i * 16)
    full = {place for number, end in enumerate(ends) for place in range(number * 32, min(number * 32 + 32, end + number * 16))}
    missing = sorted(set(range(96)) - full)
    text = uninitialized(missing[0], len(missing) - 1) if missing else []
    assert diagnose(loop(3, put, BLOCK_BARRIER), reads(T, active=less(T, 96))) == text
    pieces = ((making.piece(0, 2), making.piece(2, 1, condition=less(i, 1)), making.piece(3, 1, condition=less(0, i))),)
    some = attrs.evolve(writes(T * 4, width=4), pieces=pieces)
    assert diagnose(some, reads(T), symbols=(i,)) == []
    assert diagnose(loop(1, some, BLOCK_BARRIER), reads(T)) == uninitialized(3, 31)
    assert diagnose(loop(2, some, BLOCK_BARRIER), reads(T)) == []


def test_statement_that_reads_and_writes():
    """Each operand is checked separately."""
    both = attrs.evolve(READ, accesses=(READ.accesses[0], writes(T).accesses[0]))
    assert diagnose(both, READ) == [], "in one statement writes come first: the race check orders them"
    other = attrs.evolve(READ, accesses=(reads(T, name="t").accesses[0], READ.accesses[0]))
    buffers = (buffer("s", 128), buffer("t", 128, 4096))
    assert diagnose(other, buffers=buffers) == uninitialized(0, 127, "t") + uninitialized(0, 127)
    assert diagnose(writes(T), other, other, buffers=buffers) == uninitialized(0, 127, "t")


def test_accumulation_in_a_loop_without_synchronization():
    adding = touch(T, write=True, accumulate=TRUE)
    assert diagnose(loop(4, adding)) == uninitialized(0, 127), "with one statement"
    assert diagnose(loop(4, adding, writes(T))) == []
    assert diagnose(loop(4, touch(T, write=True, accumulate=less(Var("j", 0, 9), 1)), BLOCK_BARRIER)) == [], "j is unknown"
    assert diagnose(touch(T, write=True, accumulate=less(T, 5), active=less(T, 3))) == uninitialized(0, 2)


def test_accesses_of_warps_and_blocks():
    warp = touch(T * 4, write=True, level=Warp, width=128)
    assert diagnose(warp, reads(T + 384)) == [] == diagnose(warp, reads(T))
    assert diagnose(warp, reads(T + 385)) == uninitialized(512)
    block = touch(T, write=True, level=Block, width=128)
    assert diagnose(block, reads(T)) == []
    assert diagnose(block, reads(T + 1)) == uninitialized(128), "its first thread represents all threads"


def test_accumulation_in_alternating_stages():
    """Whether a statement accumulates may depend on the iteration even if its index does not."""
    adding = touch(T, write=True, copy=i % 2, accumulate=less(0, i))
    assert diagnose(loop(4, adding, BLOCK_BARRIER), buffers=(staged_buffer(),)) == uninitialized(128, 127)
    assert diagnose(loop(4, attrs.evolve(adding, accumulate=less(1, i)), BLOCK_BARRIER), buffers=(staged_buffer(),)) == []
    assert diagnose(loop(4, attrs.evolve(adding, accumulate=less(1, i)), BLOCK_BARRIER), buffers=(staged_buffer(copies=3),)) == []


def test_buffer_of_unknown_shape():
    """All elements of the buffer must then be written."""
    plain = buffer("s", 128)
    open_ = attrs.evolve(plain, tensor=attrs.evolve(plain.tensor, shape=(K + 1,)))
    assert diagnose(writes(T), READ, buffers=(open_,), symbols=(K,)) == []
    assert diagnose(writes(T, active=less(T, 127)), READ, buffers=(open_,), symbols=(K,)) == uninitialized(127)
    assert diagnose(READ, buffers=(attrs.evolve(plain, elements=K + 1),), symbols=(K,)) == uninitialized(0), (
        "with an unknown number of elements the first one is reported"
    )


def test_nested_loops_without_synchronization():
    inner = Var("j", 0, 1)
    body = loop(3, loop(2, writes(i * 256 + inner * 128 + T), var=inner))
    assert diagnose(body, reads(T + 640)) == [] and diagnose(body, reads(T + 641)) == uninitialized(768)
    assert diagnose(loop(3, loop(2, writes(i * 256 + inner * 128 + T), reads(767 - T - i * 256), var=inner))) == []


def test_limits_of_iterations_and_points():
    """The numbers of followed iterations and of points examined together."""
    for number, reached in ((1024, True), (1025, False)):
        body = loop(1100, writes(T, active=equal(i, number)), BLOCK_BARRIER)
        assert diagnose(body, READ) == ([] if reached else uninitialized(0, 127))
    long = buffer("s", 1 << 16)
    for width, known in ((1 << 13, True), ((1 << 13) + 1, False)):
        assert diagnose(writes(T, width=width), reads(T + 30000), buffers=(long,)) == (uninitialized(30000, 127) if known else [])


def test_a_loop_is_skipped_only_if_all_its_buffers_are_initialized():
    buffers = (buffer("s", 128), buffer("t", 128, 4096))
    body = loop(3, reads(T), reads(T, name="t"), BLOCK_BARRIER)
    assert diagnose(writes(T), body, buffers=buffers) == uninitialized(0, 127, "t")
    assert diagnose(writes(T, name="t"), body, buffers=buffers) == uninitialized(0, 127)
    assert diagnose(writes(T), writes(T, name="t"), body, buffers=buffers) == []
