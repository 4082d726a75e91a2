"""Shared memory that is read before anything was put there, by hand: conditions, loops, roles, buffers in fewer elements."""

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


def said(*body, **options):
    """What the check says of a kernel of 128 threads."""
    return [
        one.message.replace("Move(1,1)(RF,SH)(Thread) ", "") for one in check_uninitialized_shared(AccessTrace(kernel(*body, **options)))
    ]


def nothing_put(first, others=0, name="s"):
    more = f" and {others} others" if others else ""
    return [f"reads {name}[{first}]{more} before any write to this shared memory"]


READ = reads(T)


def test_a_statement_of_a_new_kind_fails_loudly():
    class Other(ir.Stmt):
        """A kind of statement that the check does not know."""

    with pytest.raises(VerificationError, match="the check of shared memory does not handle the statement Other"):
        said(Other())


def test_a_finding_names_line_and_buffer():
    (one,) = check_uninitialized_shared(AccessTrace(kernel(READ)))
    assert (one.kind, one.severity, one.buffer, one.at) == ("shared", "error", "s", "hand.py:1")
    access = attrs.evolve(READ.accesses[0], origin=None)
    (one,) = check_uninitialized_shared(AccessTrace(kernel(attrs.evolve(READ, accesses=(access,), origin="of statement"))))
    assert one.at == "of statement"
    assert not check_uninitialized_shared(AccessTrace(kernel(READ, buffers=(buffer("s", 4096, memory=RF),)))), (
        "registers are for another check"
    )


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ((READ,), nothing_put(0, 127)),
        ((writes(T), BLOCK_BARRIER, READ), []),
        ((READ, BLOCK_BARRIER, writes(T)), nothing_put(0, 127)),
        ((writes(T), BLOCK_BARRIER, reads(T + 1)), nothing_put(128)),
        ((writes(127 - T), BLOCK_BARRIER, READ), []),
        ((writes(T, active=less(T, 126)), BLOCK_BARRIER, READ), nothing_put(126, 1)),
        ((writes(T), reads(T, active=less(T, 126))), []),
        ((writes(T, active=less(T, 100)), reads(T, active=less(T, 101))), nothing_put(100)),
        ((writes(T * 2, width=2), reads(255 - T)), []),
        ((writes(T * 2, width=1), reads(T)), nothing_put(1, 63)),
        ((writes(T, copy=0), reads(T, copy=1)), nothing_put(4096, 127)),
        ((writes(T, active=less(BLOCK, 1)), READ), []),
        ((reads(T, active=less(BLOCK, 1)),), nothing_put(0, 127)),
        ((writes(T, name="t"), READ), nothing_put(0, 127)),
        ((READ, reads(T)), nothing_put(0, 127) * 2),
        ((READ, READ), nothing_put(0, 127)),
        ((writes(T + K), READ), []),
        ((reads(T + K),), []),
        ((reads(T + 9000),), []),
    ],
)
def test_elements(body, expected):
    """Each element of each copy; conditions on blocks and sizes hold, and a write of which the place is not known is one everywhere."""
    staged = attrs.evolve(buffer("s", 4096), tensor=attrs.evolve(buffer("s", 4096).tensor, copies=2))
    assert said(*body, buffers=(staged, buffer("t", 512, offset=65536)), symbols=(K,)) == expected


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ((loop(4, writes(i * 128 + T)), reads(T + 384)), []),
        ((loop(4, writes(i * 128 + T)), reads(T + 385)), nothing_put(512)),
        ((loop(4, writes(i * 128 + T), BLOCK_BARRIER), reads(T + 384)), []),
        ((loop(4, writes(i * 128 + T), BLOCK_BARRIER), reads(T + 385)), nothing_put(512)),
        ((loop(4, reads(i * 128 + T), writes(i * 128 + T)),), []),
        ((loop(4, reads(i * 128 + T), BLOCK_BARRIER, writes(i * 128 + T)),), nothing_put(0, 127)),
        ((loop(4, writes(i * 128 + T), BLOCK_BARRIER, reads(i * 128 + T)),), []),
        ((loop(4, writes(i * 128 + T), BLOCK_BARRIER, reads(i * 64 + T)),), []),
        ((loop(4, writes(i * 64 + T), BLOCK_BARRIER, reads(i * 128 + T)),), nothing_put(192, 63)),
        ((loop(0, writes(T)), READ), nothing_put(0, 127)),
        ((loop(FEW, writes(T)), READ), nothing_put(0, 127)),
        ((loop(SOME, writes(T)), READ), []),
        ((loop(FEW, writes(T), BLOCK_BARRIER), READ), nothing_put(0, 127)),
        ((loop(FEW, READ),), nothing_put(0, 127)),
        ((loop(8, writes(T + 256, active=less(i, 1)), BLOCK_BARRIER), reads(T + 256)), []),
        ((loop(100, writes(T, active=equal(i, 99)), BLOCK_BARRIER), READ), []),
        ((loop(100, reads(T, active=equal(i, 99)), BLOCK_BARRIER),), nothing_put(0, 127)),
        ((loop(9, writes(i % 3 * 128 + T), BLOCK_BARRIER, period=3), reads(T + 256)), []),
        ((loop(9, writes(i % 3 * 128 + T), BLOCK_BARRIER, period=3), reads(T + 257)), nothing_put(384)),
        ((loop(3, loop(2, writes(i * 256 + Var("j", 0, 1) * 128 + T), var=Var("j", 0, 1)), BLOCK_BARRIER), reads(T + 640)), []),
    ],
)  # fmt: skip
def test_loops(body, expected):
    """Writes of a loop without barriers come first; what may have no iteration puts nothing anywhere; the last iteration counts."""
    assert said(*body, symbols=(FEW, SOME)) == expected


def test_what_is_added_to_was_put_there():
    adding = touch(T, write=True, accumulate=TRUE)
    assert said(adding) == nothing_put(0, 127)
    assert said(writes(T), BLOCK_BARRIER, adding) == []
    assert said(touch(T, write=True, accumulate=less(T, 3))) == nothing_put(0, 2)
    assert said(loop(4, attrs.evolve(adding, accumulate=less(0, i)), BLOCK_BARRIER)) == [], "the first iteration puts it"
    assert said(loop(4, attrs.evolve(adding, accumulate=less(i, 1)), BLOCK_BARRIER)) == nothing_put(0, 127)
    assert said(touch(T, write=True, accumulate=less(BLOCK, 1))) == [], "of what blocks decide nothing is said"


def test_a_producer_fills_before_others_read():
    """Whichever role comes first; but one that is not elected fills for those after it alone."""

    def roles(elected, *bodies):
        every = [making.role(f"role {n}", 64 * n, 64, body, elected=n == elected) for n, body in enumerate(bodies)]
        return making.roles(tuple(every))

    fill, use = (writes(T),), (reads(T, active=less(T, 64)),)
    assert said(roles(1, use, fill)) == [] == said(roles(0, fill, use))
    assert said(roles(None, use, fill)) == nothing_put(0, 63)
    assert said(roles(1, (loop(FEW, *use),), (loop(FEW, *fill),)), symbols=(FEW,)) == [], "without an iteration both do nothing"
    assert said(roles(None, (loop(FEW, *fill),), use), symbols=(FEW,)) == nothing_put(0, 63)
    half = loop(FEW, writes(T, active=less(T, 64)), BLOCK_BARRIER)
    assert said(roles(1, (), (half,)), loop(FEW, writes(T + 64)), reads(T), symbols=(FEW,)) == nothing_put(64, 63), "it is one no more"


def test_what_threads_perform_together_the_first_stands_for():
    together = touch(T * 4, write=True, level=Warp, width=4)
    assert said(together, reads(T)) == nothing_put(4, 123), "the first thread of each warp writes 4 elements"
    assert said(attrs.evolve(together, lane_maps=(None,)), reads(T)) == [], "each thread its own"


def test_conditions_together():
    both = all_of((less(T, 10), less(i, 2)))
    body = (loop(3, writes(i * 16 + T, active=both), BLOCK_BARRIER), reads(T, active=less(T, 27)))
    assert said(*body) == nothing_put(10, 6), "10 elements of 16, twice"


# ---------------------------------------------------------------------------------------------- by running


def missing(program):
    """What each statement reads that nothing was written to, the first time that there is any, by running all of it in order."""
    full, found = set(), {}

    def run(body, values):
        for one in body:
            if isinstance(one, ir.For):
                for number in range(one.extent.evaluate(values)):
                    run(one.body, {**values, one.var.name: number})
            elif isinstance(one, ir.Exec):
                (access,) = one.accesses
                size = program.buffer(access.buffer).elements.evaluate({})
                places = {
                    access.copy.evaluate(there) * size + access.base[0].evaluate(there) + offset
                    for thread in range(program.threads)
                    if one.active.evaluate(there := {**values, "thread": thread})
                    for (offset,) in access.elements()
                    if access.bounds[0] is None or access.base[0].evaluate(there) + offset < access.bounds[0].evaluate(there)
                }
                if access.write:
                    full.update(places)
                elif gone := sorted(places - full):
                    found.setdefault(id(one), gone)

    run(program.body, {"block": 0})
    return [nothing_put(gone[0], len(gone) - 1)[0] if len(gone) > 1 else nothing_put(gone[0])[0] for gone in found.values()]


def drawn(chance):
    """Writes and reads of two copies of 64 elements, with barriers everywhere: each comes behind all before it."""
    inner = Var("j", 0, 2)

    def step(depth):
        where = chance.choice((T, T % 16, T + 16, 31 - T, T * 2, *((T + i * 8, T % 8 + i * 8) * depth), *((T + inner,) * (depth > 1))))
        ends = (less(i, 1), less(0, i), equal(i, 2)) if depth else ()
        active = chance.choice((TRUE, TRUE, TRUE, less(T, 20), less(T, 19), less(7, T), equal(T % 2, 0), *ends))
        copy = chance.choice((0, 0, 1, T % 2, *((i % 2, (i + 1) % 2) * (depth > 0))))
        bound = chance.choice((None, None, None, as_expr(30), T + 1))
        put = chance.random() < 0.5
        return [touch(where, write=put, width=chance.choice((1, 1, 2)), active=active, copy=copy, bound=bound), BLOCK_BARRIER]

    body = [one for _ in range(chance.choice((0, 1, 2))) for one in step(0)]
    within = [one for _ in range(chance.choice((1, 2, 3))) for one in step(1)]
    if chance.random() < 0.4:
        within += [loop(2, *step(2), var=inner)]
    body += [loop(chance.choice((1, 2, 3)), *within)]
    body += [one for _ in range(chance.choice((1, 2))) for one in step(0)]
    whole = buffer("s", 64)
    return kernel(*body, threads=32, buffers=(attrs.evolve(whole, tensor=attrs.evolve(whole.tensor, copies=2)),))


@pytest.mark.parametrize("chunk", range(6))
def test_drawn_programs_are_judged_as_by_running_them(chunk):
    verdicts = set()
    for seed in range(40 * chunk, 40 * (chunk + 1)):
        program = drawn(random.Random(f"filled {seed}"))
        expected = missing(program)
        found = [one.message.replace("Move(1,1)(RF,SH)(Thread) ", "") for one in check_uninitialized_shared(AccessTrace(program))]
        assert sorted(found) == sorted(expected), (seed, program.body)
        verdicts.add(bool(expected))
    assert verdicts == {True, False}


# ---------------------------------------------------------------------------------------------- behaviors one by one


def test_a_skipped_body_reads_and_fills_for_itself_alone():
    assert said(making.if_any_lane("r", (READ,))) == nothing_put(0, 127)
    assert said(making.if_any_lane("r", (writes(T), BLOCK_BARRIER, READ))) == []
    assert said(making.if_any_lane("r", (writes(T),)), BLOCK_BARRIER, READ) == nothing_put(0, 127), "it may be left out"
    assert said(writes(T), making.if_any_lane("r", (writes(T + 128),)), reads(T), reads(T + 128)) == nothing_put(128, 127)


def test_statements_that_touch_nothing_are_passed_over():
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
    assert said(*names, READ) == nothing_put(0, 127)
    assert said(writes(T), *names, READ) == []


def test_without_shared_memory_nothing_is_followed():
    class Other(ir.Stmt):
        """A kind of statement that the check does not know."""

    assert said(Other(), buffers=(buffer("r", 4, memory=RF),)) == []
    with pytest.raises(VerificationError):
        said(Other(), buffers=(buffer("r", 4, memory=RF), buffer("s", 4)))


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ((writes(T, active=less(T, 127)), reads(T - 1)), []),
        ((writes(T - 64), reads(T + 4032)), nothing_put(4032, 63)),
        ((writes(T + 4032), reads(T - 64)), nothing_put(0, 63)),
        ((writes(T + 4032), reads(T + 4033)), []),
        ((writes(T, copy=2), reads(T, copy=1)), nothing_put(4096, 127)),
        ((writes(T, copy=-1), reads(T, copy=1)), nothing_put(4096, 127)),
        ((writes(T, copy=-1), reads(T, copy=0)), nothing_put(0, 127)),
        ((writes(T, copy=2), reads(T, copy=2)), []),
    ],
)
def test_what_lies_outside_is_neither_filled_nor_asked(body, expected):
    """The bounds check reports it; it counts as no other element."""
    staged = attrs.evolve(buffer("s", 4096), tensor=attrs.evolve(buffer("s", 4096).tensor, copies=2))
    assert said(*body, buffers=(staged,)) == expected


def two(elements=128, copies=2):
    """A buffer in copies of so many elements."""
    plain = buffer("s", elements)
    return attrs.evolve(plain, tensor=attrs.evolve(plain.tensor, copies=copies))


def test_a_copy_of_which_all_was_put_there():
    """Each copy for itself; one that does not exist is neither."""
    own, all_of_0 = {"buffers": (two(),)}, writes(T)
    assert said(all_of_0, READ, reads(T, copy=1), **own) == nothing_put(128, 127)
    assert said(writes(T, copy=1), reads(T, copy=1), READ, **own) == nothing_put(0, 127)
    assert said(all_of_0, writes(T, copy=1, active=less(T, 127)), READ, reads(T, copy=1), **own) == nothing_put(255)
    assert said(all_of_0, reads(T, copy=2), reads(T, copy=3), **own) == []
    assert said(all_of_0, writes(T, copy=2), reads(T, copy=1), **own) == nothing_put(128, 127)
    assert said(all_of_0, loop(3, reads(T, copy=i), BLOCK_BARRIER), **own) == nothing_put(128, 127)
    assert said(loop(2, writes(T, copy=i), BLOCK_BARRIER), loop(2, reads(T, copy=1 - i), BLOCK_BARRIER), **own) == []
    assert said(all_of_0, writes(T, copy=T % 2), reads(T, copy=1), **own) == nothing_put(128, 63)
    assert said(writes(T, active=less(T, 127)), READ, buffers=(two(copies=1),)) == nothing_put(127)
    assert said(writes(T, active=less(0, T)), READ, buffers=(two(copies=1),)) == nothing_put(0)


def gapped(rows=4, columns=8, stride=6):
    """A buffer with gaps: columns of 4 elements, 6 apart."""
    tensor = attrs.evolve(buffer("s", rows).tensor, shape=(as_expr(rows), as_expr(columns)), layout=ColMajor)
    storage = Storage(Layout((rows, columns), (1, stride)), rows + (columns - 1) * stride)
    return making.buffer(tensor, storage, storage.extent, written=False)


def in_two(row, column, write, active=TRUE):
    modes = ((Mode(1, 1),), (Mode(1, 1),))
    access = making.access("s", (as_expr(row), as_expr(column)), modes, (None, None), write, dealt=((), ()), origin="hand.py:1")
    return making.execution(spec=Move(1, 1)(RF, SH)(Thread), accesses=(access,), instruction=READ.instruction, active=active)


def looked_at(monkeypatch, *body, **options):
    """How often the check looks for places, and what it says."""
    seen, addresses = [], AccessTrace.addresses
    monkeypatch.setattr(
        AccessTrace, "addresses", lambda access_trace, frame, access: seen.append(access) or addresses(access_trace, frame, access)
    )
    found = said(*body, **options)
    monkeypatch.undo()
    return len(seen), found


def test_a_buffer_with_gaps_is_whole_without_them(monkeypatch):
    row, column, few = T % 4, T // 4, less(T, 31)
    options = {"buffers": (gapped(),), "threads": 32}
    assert looked_at(monkeypatch, in_two(row, column, True), in_two(row, column, False), **options) == (1, []), "nothing is asked any more"
    assert looked_at(monkeypatch, in_two(row, column, True, few), in_two(row, column, False), **options) == (2, nothing_put(45))


def test_of_what_is_whole_nothing_is_asked(monkeypatch):
    own = {"buffers": (two(copies=1),)}
    assert looked_at(monkeypatch, writes(T), READ, reads(127 - T), writes(T), **own) == (1, [])
    assert looked_at(monkeypatch, writes(T, active=less(T, 127)), READ, **own) == (2, nothing_put(127))
    assert looked_at(monkeypatch, writes(T), reads(T), buffers=(two(),)) == (1, []), "of a whole copy neither"
    assert looked_at(monkeypatch, writes(T), reads(T, copy=1), buffers=(two(),)) == (2, nothing_put(128, 127))
    assert looked_at(monkeypatch, writes(T), loop(9, reads(T + i - i), BLOCK_BARRIER), **own) == (1, [])
    assert looked_at(monkeypatch, writes(T + K), reads(T), reads(T + 1), symbols=(K,), **own) == (0, []), "anything may have been put there"


def test_an_unknown_place_is_every_place():
    """Of a write; of a read nothing is said, and it says nothing of others."""
    assert said(writes(T + K), loop(3, reads(T + i * 128), BLOCK_BARRIER), symbols=(K,)) == []
    assert said(writes(T, copy=K % 2), reads(T), reads(T, copy=1), buffers=(two(),), symbols=(K,)) == []
    assert said(writes(T, copy=0), reads(T, copy=K % 2), reads(T, copy=1), buffers=(two(),), symbols=(K,)) == nothing_put(128, 127)
    assert said(reads(T + K), READ, symbols=(K,)) == nothing_put(0, 127)


J = Var("j", 0, 1 << 20)


def test_a_loop_inside_of_which_nobody_knows_the_length():
    """Where it decides the place, that of a write is every place; where it does not, it is as one statement."""
    assert said(loop(2, loop(FEW, writes(T + J), var=J)), READ, symbols=(FEW,)) == []
    assert said(loop(2, loop(FEW, writes(T), var=J)), reads(T + 1), symbols=(FEW,)) == nothing_put(128)


@pytest.mark.parametrize(("width", "known"), [(4, True), (5, False)])
def test_too_many_points_are_anywhere(monkeypatch, width, known):
    """What is too much to look at lies nobody knows where: 128 threads times so many elements."""
    monkeypatch.setattr("fireiron.check.uninitialized_shared.POINTS", 512)
    assert said(writes(T * 0 + T, width=width), reads(T + 1000)) == (nothing_put(1000, 127) if known else [])
    assert said(writes(0, width=512), reads(T + 1000)) == nothing_put(1000, 127), "one thread stands for all that touch the same"
    assert said(writes(0, width=513), reads(T + 1000)) == []


@pytest.mark.parametrize("followed", [3, 4])
def test_of_a_long_loop_the_first_iterations_and_the_last(monkeypatch, followed):
    """Those numbered up to so many: what only a later one puts there is not known of, but for the last."""
    monkeypatch.setattr("fireiron.check.uninitialized_shared.MAX_FOLLOWED", followed)
    for number in range(12):
        reached = number <= followed or number == 11
        body = loop(12, writes(T, active=equal(i, number)), BLOCK_BARRIER)
        assert said(body, READ) == ([] if reached else nothing_put(0, 127)), number
        body = loop(12, reads(T, active=equal(i, number)), BLOCK_BARRIER)
        assert said(body) == (nothing_put(0, 127) if reached else []), number
    for extent in (followed, followed + 1, followed + 2):
        assert said(loop(extent, writes(T + i * 128), BLOCK_BARRIER), reads(T + extent * 128 - 128)) == []
        assert said(loop(extent, writes(T + i * 128), BLOCK_BARRIER), reads(T + extent * 128 - 127)) == nothing_put(extent * 128)


def followed(monkeypatch, *body, **options):
    """How many values of loops the check takes, by the frames that it makes."""
    seen, perform = [], uninitialized_shared._Execution._perform
    monkeypatch.setattr(
        uninitialized_shared._Execution, "_perform", lambda path, works, loops: seen.append(dict(loops)) or perform(path, works, loops)
    )
    found = said(*body, **options)
    monkeypatch.undo()
    return seen, found


def test_a_loop_is_followed_once_round_its_period(monkeypatch):
    """Where only copies depend on its variable; else for all values; once where nothing does; not on where all is whole."""
    own = {"buffers": (two(copies=3),)}
    round_ = [{"i": number} for number in (0, 1, 2, 3, 99)]
    part = writes(T, copy=i % 3, active=less(T, 64))
    assert followed(monkeypatch, loop(100, part, BLOCK_BARRIER, period=3), **own) == (round_, [])
    short = loop(4, part, BLOCK_BARRIER, period=3)
    assert followed(monkeypatch, short, **own) == (round_[:4], []), "no more than there are"
    inside = writes(T + i % 2, copy=i % 3, active=less(T, 64))
    assert len(followed(monkeypatch, loop(20, inside, BLOCK_BARRIER, period=3), **own)[0]) == 20
    assert len(followed(monkeypatch, loop(20, part, BLOCK_BARRIER), **own)[0]) == 20, "of which no period is known"
    same = writes(T, active=less(T, 64))
    assert followed(monkeypatch, loop(20, same, BLOCK_BARRIER), **own) == ([{"i": 0}], [])
    whole = writes(T, copy=i % 3)
    assert followed(monkeypatch, loop(100, whole, BLOCK_BARRIER, period=50), **own) == (round_[:3], [])
    assert followed(monkeypatch, loop(0, same, BLOCK_BARRIER), **own) == ([], [])
    assert followed(monkeypatch, loop(20, same), **own) == ([{}], []), "nothing orders threads: as a whole"


def test_a_loop_of_which_only_the_least_length_is_known():
    """So many iterations fill what they touch; two are looked at where it may be fewer."""
    three = Var("three", 3, 9, 1, True)
    step = writes(i * 128 + T), BLOCK_BARRIER
    options = {"symbols": (three, SOME, FEW)}
    assert said(loop(three, *step), reads(T + 256), **options) == []
    assert said(loop(three, *step), reads(T + 257), **options) == nothing_put(384)
    assert said(loop(SOME, *step), reads(T + 128), **options) == []
    assert said(loop(SOME, *step), reads(T + 129), **options) == nothing_put(256)
    assert said(loop(FEW, *step, READ), **options) == [], "inside it counts"
    assert said(loop(FEW, writes(T), BLOCK_BARRIER, reads(T + 1)), **options) == nothing_put(128)
    assert said(loop(FEW, *step, reads(T + 128 * i)), **options) == []
    assert said(loop(FEW, BLOCK_BARRIER, reads(T, active=equal(i, 1))), **options) == nothing_put(0, 127), "the second, too"
    assert said(loop(FEW, BLOCK_BARRIER, reads(T, active=equal(i, 2))), **options) == []
    assert said(loop(three, BLOCK_BARRIER, reads(T, active=equal(i, 2))), **options) == nothing_put(0, 127)


def test_a_loop_in_steps():
    odd = {"first": 1, "step": 2}
    assert said(loop(5, writes(i * 128 + T), BLOCK_BARRIER, **odd), reads(T + 128), reads(T + 384), reads(T + 256)) == nothing_put(256, 127)
    assert said(loop(SOME, writes(i * 128 + T), BLOCK_BARRIER, **odd), reads(T + 384), symbols=(SOME,)) == []
    assert said(loop(SOME, writes(i * 128 + T), BLOCK_BARRIER, **odd), reads(T + 512), symbols=(SOME,)) == nothing_put(512, 127)


def test_the_length_of_a_loop_inside_may_depend_on_that_around():
    inner = loop(i + 1, writes(J * 128 + T), BLOCK_BARRIER, var=J)
    assert said(loop(3, inner, BLOCK_BARRIER), reads(T + 256)) == []
    assert said(loop(3, inner, BLOCK_BARRIER), reads(T + 257)) == nothing_put(384)
    assert said(loop(3, loop(i, reads(T), BLOCK_BARRIER, var=J))) == nothing_put(0, 127), "the first time it has no iteration"
    assert said(loop(1, loop(i, reads(T), BLOCK_BARRIER, var=J))) == []


@pytest.mark.parametrize(
    "order",
    [
        BLOCK_BARRIER,
        making.wait(0),
        making.acquire("ring", ir.StageState.FULL, as_expr(0)),
        making.release("ring", ir.StageState.FULL, as_expr(0)),
        making.cluster_barrier(),
    ],
    ids=lambda one: type(one).__name__,
)
def test_what_orders_threads_in_a_loop(order):
    """Then its iterations come one after the other; else its writes are in front of its reads."""
    assert said(loop(4, reads(i * 128 + T), order, writes(i * 128 + T))) == nothing_put(0, 127)
    assert said(loop(4, reads(i * 128 + T), making.commit(), making.comment("text"), writes(i * 128 + T))) == []


@pytest.mark.parametrize("bound", [i * 16 + 16, as_expr(40)])
def test_bounds_and_pieces_change_with_iterations(bound):
    """What lies inside a bound alone is touched, and what is in a piece under its condition."""
    ends = [bound.evaluate({"i": number}) for number in range(3)]
    put = writes(i * 32 + T % 32, bound=bound + i * 16)
    full = {place for number, end in enumerate(ends) for place in range(number * 32, min(number * 32 + 32, end + number * 16))}
    gone = sorted(set(range(96)) - full)
    text = nothing_put(gone[0], len(gone) - 1) if gone else []
    assert said(loop(3, put, BLOCK_BARRIER), reads(T, active=less(T, 96))) == text
    pieces = ((making.piece(0, 2), making.piece(2, 1, condition=less(i, 1)), making.piece(3, 1, condition=less(0, i))),)
    some = attrs.evolve(writes(T * 4, width=4), pieces=pieces)
    assert said(some, reads(T), symbols=(i,)) == []
    assert said(loop(1, some, BLOCK_BARRIER), reads(T)) == nothing_put(3, 31)
    assert said(loop(2, some, BLOCK_BARRIER), reads(T)) == []


def test_a_statement_that_reads_and_writes():
    """It reads what was there before; each operand is asked for itself."""
    both = attrs.evolve(READ, accesses=(READ.accesses[0], writes(T).accesses[0]))
    assert said(both, READ) == [], "in one statement writes come first: the race check orders them"
    other = attrs.evolve(READ, accesses=(reads(T, name="t").accesses[0], READ.accesses[0]))
    buffers = (buffer("s", 128), buffer("t", 128, 4096))
    assert said(other, buffers=buffers) == nothing_put(0, 127, "t") + nothing_put(0, 127)
    assert said(writes(T), other, other, buffers=buffers) == nothing_put(0, 127, "t")


def test_what_is_added_to_in_a_loop_as_a_whole_is_not_asked():
    adding = touch(T, write=True, accumulate=TRUE)
    assert said(loop(4, adding)) == nothing_put(0, 127), "one statement alone"
    assert said(loop(4, adding, writes(T))) == []
    assert said(loop(4, touch(T, write=True, accumulate=less(Var("j", 0, 9), 1)), BLOCK_BARRIER)) == [], "j is not known"
    assert said(touch(T, write=True, accumulate=less(T, 5), active=less(T, 3))) == nothing_put(0, 2)


def test_what_warps_and_blocks_perform_together():
    warp = touch(T * 4, write=True, level=Warp, width=128)
    assert said(warp, reads(T + 384)) == [] == said(warp, reads(T))
    assert said(warp, reads(T + 385)) == nothing_put(512)
    block = touch(T, write=True, level=Block, width=128)
    assert said(block, reads(T)) == []
    assert said(block, reads(T + 1)) == nothing_put(128), "its first thread stands for all"


def test_additions_in_copies_that_change():
    """Whether a statement adds may depend on the iteration where its place in a copy does not."""
    adding = touch(T, write=True, copy=i % 2, accumulate=less(0, i))
    assert said(loop(4, adding, BLOCK_BARRIER), buffers=(two(),)) == nothing_put(128, 127)
    assert said(loop(4, attrs.evolve(adding, accumulate=less(1, i)), BLOCK_BARRIER), buffers=(two(),)) == []
    assert said(loop(4, attrs.evolve(adding, accumulate=less(1, i)), BLOCK_BARRIER), buffers=(two(copies=3),)) == []


def test_a_shape_that_nobody_knows():
    """Then all elements of the buffer are needed."""
    plain = buffer("s", 128)
    open_ = attrs.evolve(plain, tensor=attrs.evolve(plain.tensor, shape=(K + 1,)))
    assert said(writes(T), READ, buffers=(open_,), symbols=(K,)) == []
    assert said(writes(T, active=less(T, 127)), READ, buffers=(open_,), symbols=(K,)) == nothing_put(127)
    assert said(READ, buffers=(attrs.evolve(plain, elements=K + 1),), symbols=(K,)) == nothing_put(0), (
        "nor how many there are: of the first"
    )


def test_loops_in_loops_that_are_taken_as_a_whole():
    inner = Var("j", 0, 1)
    body = loop(3, loop(2, writes(i * 256 + inner * 128 + T), var=inner))
    assert said(body, reads(T + 640)) == [] and said(body, reads(T + 641)) == nothing_put(768)
    assert said(loop(3, loop(2, writes(i * 256 + inner * 128 + T), reads(767 - T - i * 256), var=inner))) == []


def test_limits_as_they_are():
    """Of iterations that are followed, and of points that are looked at together."""
    for number, reached in ((1024, True), (1025, False)):
        body = loop(1100, writes(T, active=equal(i, number)), BLOCK_BARRIER)
        assert said(body, READ) == ([] if reached else nothing_put(0, 127))
    long = buffer("s", 1 << 16)
    for width, known in ((1 << 13, True), ((1 << 13) + 1, False)):
        assert said(writes(T, width=width), reads(T + 30000), buffers=(long,)) == (nothing_put(30000, 127) if known else [])


def test_a_loop_is_passed_over_only_where_all_that_it_touches_is_whole():
    buffers = (buffer("s", 128), buffer("t", 128, 4096))
    body = loop(3, reads(T), reads(T, name="t"), BLOCK_BARRIER)
    assert said(writes(T), body, buffers=buffers) == nothing_put(0, 127, "t")
    assert said(writes(T, name="t"), body, buffers=buffers) == nothing_put(0, 127)
    assert said(writes(T), writes(T, name="t"), body, buffers=buffers) == []
