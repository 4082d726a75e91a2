"""Shared memory that is read before anything was put there, by hand: conditions, loops, roles, buffers in fewer elements."""

import random

import attrs
import pytest
from touching import BLOCK_BARRIER, K, T, buffer, i, kernel, loop, reads, touch, writes

from fireiron import *
from fireiron import ir
from fireiron.check import Scene, check_filled
from fireiron.errors import VerificationError
from fireiron.values.expr import TRUE, Var, all_of, as_expr, equal, less

BLOCK = Var("block", 0, 7)
FEW, SOME = Var("few", 0, 9, 1, True), Var("some", 1, 9, 1, True)


def said(*body, **options):
    """What the check says of a kernel of 128 threads."""
    return [one.message.replace("Move(1,1)(RF,SH)(Thread) ", "") for one in check_filled(Scene(kernel(*body, **options)))]


def nothing_put(first, others=0, name="s"):
    more = f" and {others} others" if others else ""
    return [f"reads {name}[{first}]{more}, shared memory that nothing was put into before"]


READ = reads(T)


def test_a_statement_of_a_new_kind_fails_loudly():
    class Other(ir.Stmt):
        """A kind of statement that the check does not know."""

    with pytest.raises(VerificationError, match="the check of shared memory has no rule for the statement Other"):
        said(Other())


def test_a_finding_names_line_and_buffer():
    (one,) = check_filled(Scene(kernel(READ)))
    assert (one.kind, one.severity, one.buffer, one.at) == ("shared", "error", "s", "hand.py:1")
    access = attrs.evolve(READ.accesses[0], origin=None)
    (one,) = check_filled(Scene(kernel(attrs.evolve(READ, accesses=(access,), origin="of statement"))))
    assert one.at == "of statement"
    assert not check_filled(Scene(kernel(READ, buffers=(buffer("s", 4096, memory=RF),)))), "registers are for another check"


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
        every = [ir.Role(f"role {n}", 64 * n, 64, body, elected=n == elected) for n, body in enumerate(bodies)]
        return ir.Roles(tuple(every))

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
        found = [one.message.replace("Move(1,1)(RF,SH)(Thread) ", "") for one in check_filled(Scene(program))]
        assert sorted(found) == sorted(expected), (seed, program.body)
        verdicts.add(bool(expected))
    assert verdicts == {True, False}
