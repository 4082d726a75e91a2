"""Registers that are read before anything was put into them: drawn programs held against running them, thread by thread."""

import random

import attrs
import pytest
from touching import T, buffer, kernel, loop, touch

from fireiron import *
from fireiron import ir
from fireiron.check import Scene, check_loaded
from fireiron.values.expr import FALSE, TRUE, Var, all_of, less

THREADS = 32
OUTER, INNER = Var("i", 0, 7), Var("j", 0, 3)
SIZE = Var("K", 0, 1 << 20, 1, True)
SOME = Var("some", 1, 1 << 20, 1, True)
REGISTERS = (buffer("r", 16, memory=RF), buffer("q", 16, memory=RF))


def put(place, name="r", **options):
    return touch(place, write=True, name=name, **options)


def read(place, name="r", **options):
    return touch(place, write=False, name=name, **options)


def said(*body, **options):
    found = check_loaded(Scene(kernel(*body, **{"threads": THREADS, "buffers": REGISTERS, **options})))
    return [one.message.replace("Move(1,1)(RF,SH)(Thread) ", "") for one in found]


def nothing_put(register, thread, others=0, name="r"):
    more = f" and {others} others" if others else ""
    return [f"reads {name}[{register}], a register that nothing was put into before, in thread {thread}{more}"]


def missing(program):
    """The statements that read a register of a thread into which nothing was put, by running all of it."""
    full, found = set(), set()

    def run(body, values):
        for one in body:
            if isinstance(one, ir.For):
                for number in range(one.extent.evaluate(values)):
                    run(one.body, {**values, one.var.name: number})
                continue
            for thread in range(program.threads):
                there = {**values, "thread": thread}
                (access,) = one.accesses
                if not one.performed.evaluate(there):
                    continue
                places = [(access.buffer, thread, access.base[0].evaluate(there) + offset) for (offset,) in access.elements()]
                reads = not access.write or one.accumulate.evaluate(there)
                if reads and any(place not in full for place in places):
                    found.add(id(one))
                if access.write:
                    full.update(places)

    run(program.body, {"block": 0})
    return found


def drawn(chance):
    turns = chance.choice((1, 2, 3, 4))

    def statement(inside):
        where = chance.choice((OUTER + 0, OUTER + 1, 3 - OUTER % 4, OUTER % 2, T % 4, 0, 2) if inside else (0, 1, 2, 3, T % 4, T % 2 + 1))
        ends = (less(OUTER, 1), less(0, OUTER), less(OUTER, turns - 1)) if inside else ()
        active = chance.choice((TRUE, TRUE, TRUE, less(T, 20), less(7, T), *ends))
        width = chance.choice((1, 1, 2, 4))
        name = chance.choice("rrq")
        if chance.random() < 0.55:
            added = chance.choice((FALSE, FALSE, FALSE, TRUE, *ends[1:2], less(T, 4)))
            return put(where, name, width=width, active=active, accumulate=added)
        return read(where, name, width=width, active=active)

    body = [put(0, name, width=8) for name in chance.choice(("", "", "r", "rq"))]
    body += [statement(False) for _ in range(chance.choice((0, 1, 2)))]
    body.append(loop(turns, *(statement(True) for _ in range(chance.choice((1, 2, 3)))), var=OUTER))
    body += [statement(False) for _ in range(chance.choice((1, 2)))]
    return kernel(*body, threads=THREADS, buffers=REGISTERS)


@pytest.mark.parametrize("chunk", range(6))
def test_drawn_programs_are_judged_as_by_running_them(chunk):
    verdicts = set()
    for seed in range(40 * chunk, 40 * (chunk + 1)):
        program = drawn(random.Random(f"loaded {seed}"))
        expected, found = missing(program), list(check_loaded(Scene(program)))
        assert len(found) == len(expected), (seed, program.body, [one.message for one in found])
        verdicts.add(bool(expected))
    assert verdicts == {True, False}


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ((read(3),), nothing_put(3, 0, 31)),
        ((put(3), read(3)), []),
        ((put(3, active=less(T, 31)), read(3)), nothing_put(3, 31)),
        ((put(3, active=less(T, 30)), read(3)), nothing_put(3, 30, 1)),
        ((put(3), read(3, "q")), nothing_put(3, 0, 31, "q")),
        ((put(0, width=4), read(3), read(4)), nothing_put(4, 0, 31)),
        ((put(3, active=less(Var("block", 0, 3), 1)), read(3)), []),
        ((read(3, active=less(Var("block", 0, 3), 1)),), nothing_put(3, 0, 31)),
        ((put(SIZE % 16), read(3)), []),
        ((read(SIZE % 16),), []),
        ((put(3, accumulate=TRUE),), nothing_put(3, 0, 31)),
        ((put(3, accumulate=less(Var("block", 0, 3), 1)),), []),
        ((put(3, active=less(0, T), accumulate=less(T, 4)),), nothing_put(3, 1, 2)),
        ((loop(0, put(3), var=OUTER), read(3)), nothing_put(3, 0, 31)),
        ((loop(0, put(OUTER), var=OUTER), read(0)), nothing_put(0, 0, 31)),
        ((loop(SIZE, put(3), var=OUTER), read(3)), nothing_put(3, 0, 31)),
        ((loop(SOME, put(3), var=OUTER), read(3)), []),
        ((loop(SIZE, put(OUTER % 2), read(1), var=OUTER),), nothing_put(1, 0, 31)),
        ((loop(SIZE, put(1), read(1), var=OUTER),), []),
        ((loop(4, loop(OUTER + 1, put(INNER), var=INNER), read(OUTER), var=OUTER),), []),
        ((loop(4, loop(OUTER, put(INNER), var=INNER), read(OUTER), var=OUTER),), nothing_put(0, 0, 31)),
        ((loop(300, put(3, active=less(298, Var("long", 0, 299))), var=Var("long", 0, 299)), read(3)), []),
        ((put(3), put(2, active=all_of((less(T, 8), less(3, T)))), read(2, active=less(T, 8))), nothing_put(2, 0, 3)),
    ],
)  # fmt: skip
def test_ways_through_a_kernel(body, expected):
    """Conditions on threads and loops are taken as they are; those on blocks and sizes hold; what may have no iteration puts nothing."""
    assert said(*body, symbols=(SIZE, SOME)) == expected


def test_roles_and_what_a_warp_may_leave_out():
    """Each role goes on from what was put before, and what any of them put is there after them; a body that may be left out puts nothing."""

    def roles(*bodies):
        return ir.Roles(tuple(ir.Role(f"role {n}", 16 * n, 16, body) for n, body in enumerate(bodies)))

    assert said(put(1), roles((read(1),), (read(1),))) == []
    assert said(roles((put(1),), (read(1),))) == nothing_put(1, 0, 31)
    assert said(roles((put(1),), ()), read(1)) == [] == said(roles((), (put(1),)), read(1))
    assert said(roles((put(1),), (put(9),)), read(1), read(9), read(2)) == nothing_put(2, 0, 31)
    needed = buffer("needed", 1, memory=RF, dtype=int32)

    def skipped(*body):
        return said(put(0, "needed"), ir.Skip("needed", body), read(1), buffers=(*REGISTERS, needed))

    assert skipped(put(1)) == nothing_put(1, 0, 31)
    assert said(put(0, "needed"), put(1), ir.Skip("needed", (read(1), read(2))), buffers=(*REGISTERS, needed)) == nothing_put(2, 0, 31)


def test_a_finding_names_line_and_buffer():
    (one,) = check_loaded(Scene(kernel(read(3), threads=THREADS, buffers=REGISTERS)))
    assert (one.kind, one.severity, one.buffer, one.at) == ("registers", "error", "r", "hand.py:1")
    access = attrs.evolve(read(3).accesses[0], origin=None)
    (one,) = check_loaded(
        Scene(kernel(attrs.evolve(read(3), accesses=(access,), origin="of statement"), threads=THREADS, buffers=REGISTERS))
    )
    assert one.at == "of statement"
    assert check_loaded(Scene(kernel(touch(T, write=False), threads=THREADS))) == (), "shared memory is for another check"
    assert len(said(loop(3, read(3), var=OUTER))) == 1, "each statement is named once"
