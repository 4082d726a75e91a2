"""Registers that are read before anything was put into them: drawn programs held against running them, thread by thread."""

import random

import attrs
import making
import pytest
from touching import T, buffer, kernel, loop, touch

from fireiron import *
from fireiron import ir
from fireiron.check import AccessTrace, check_uninitialized_registers
from fireiron.values.expr import FALSE, TRUE, Var, all_of, as_expr, equal, less

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
    found = check_uninitialized_registers(AccessTrace(kernel(*body, **{"threads": THREADS, "buffers": REGISTERS, **options})))
    return [one.message.replace("Move(1,1)(RF,SH)(Thread) ", "") for one in found]


def nothing_put(register, thread, others=0, name="r"):
    more = f" and {others} others" if others else ""
    return [f"reads register {name}[{register}] before any write to it, in thread {thread}{more}"]


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
        expected, found = missing(program), list(check_uninitialized_registers(AccessTrace(program)))
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
        return making.roles(tuple(making.role(f"role {n}", 16 * n, 16, body) for n, body in enumerate(bodies)))

    assert said(put(1), roles((read(1),), (read(1),))) == []
    assert said(roles((put(1),), (read(1),))) == nothing_put(1, 0, 31)
    assert said(roles((put(1),), ()), read(1)) == [] == said(roles((), (put(1),)), read(1))
    assert said(roles((put(1),), (put(9),)), read(1), read(9), read(2)) == nothing_put(2, 0, 31)
    needed = buffer("needed", 1, memory=RF, dtype=int32)

    def skipped(*body):
        return said(put(0, "needed"), making.if_any_lane("needed", body), read(1), buffers=(*REGISTERS, needed))

    assert skipped(put(1)) == nothing_put(1, 0, 31)
    assert said(put(0, "needed"), put(1), making.if_any_lane("needed", (read(1), read(2))), buffers=(*REGISTERS, needed)) == nothing_put(
        2, 0, 31
    )


def test_a_finding_names_line_and_buffer():
    (one,) = check_uninitialized_registers(AccessTrace(kernel(read(3), threads=THREADS, buffers=REGISTERS)))
    assert (one.kind, one.severity, one.buffer, one.at) == ("registers", "error", "r", "hand.py:1")
    access = attrs.evolve(read(3).accesses[0], origin=None)
    (one,) = check_uninitialized_registers(
        AccessTrace(kernel(attrs.evolve(read(3), accesses=(access,), origin="of statement"), threads=THREADS, buffers=REGISTERS))
    )
    assert one.at == "of statement"
    assert check_uninitialized_registers(AccessTrace(kernel(touch(T, write=False), threads=THREADS))) == (), (
        "shared memory is for another check"
    )
    assert len(said(loop(3, read(3), var=OUTER))) == 1, "each statement is named once"


# ---------------------------------------------------------------------------------------------- behaviors one by one


J = INNER
BLOCK = Var("block", 0, 7)


def test_a_register_beyond_its_buffer_is_one_of_its_own():
    """The bounds check reports it; what was put into others is not lost."""
    assert said(read(20)) == nothing_put(20, 0, 31)
    assert said(put(20), read(20)) == [] == said(put(3), put(20), read(3))
    assert said(put(20), read(3)) == nothing_put(3, 0, 31) and said(put(3), read(20)) == nothing_put(20, 0, 31)
    assert said(put(15), put(16), read(15), read(16), read(17)) == nothing_put(17, 0, 31)


def test_a_buffer_of_which_nobody_knows_the_size():
    """It is never whole, and its registers are told apart."""
    long = attrs.evolve(REGISTERS[0], elements=SIZE + 1)
    options = {"buffers": (long,), "symbols": (SIZE,)}
    assert said(put(5), read(5), read(6), **options) == nothing_put(6, 0, 31)
    assert said(put(0), read(0), put(2), read(0), read(2), read(1), **options) == nothing_put(1, 0, 31)


def test_of_copies_each_has_registers_of_its_own():
    staged = attrs.evolve(buffer("r", 4, memory=RF), tensor=attrs.evolve(buffer("r", 4, memory=RF).tensor, copies=2))
    assert said(put(0, width=4), read(3), read(3, copy=1), buffers=(staged,)) == nothing_put(7, 0, 31)
    assert said(put(0, width=4, copy=1), read(3, copy=1), read(3), buffers=(staged,)) == nothing_put(3, 0, 31)
    assert said(loop(2, put(0, width=4, copy=OUTER), var=OUTER), read(3), read(3, copy=1), buffers=(staged,)) == []
    assert said(put(0, width=4, copy=SIZE % 2), read(3), read(3, copy=1), buffers=(staged,), symbols=(SIZE,)) == []


@pytest.mark.parametrize(("writers", "readers", "alarm"), [(16, 16, None), (16, 17, 16), (17, 16, None), (31, 32, 31), (32, 32, None)])
def test_a_buffer_is_whole_for_those_who_read_it(writers, readers, alarm):
    """Threads that read nothing need nothing; those that add read, too."""
    whole = put(0, width=16, active=less(T, writers))
    expected = [] if alarm is None else nothing_put(3, alarm)
    assert said(whole, read(3, active=less(T, readers))) == expected
    assert said(whole, put(3, active=less(T, readers), accumulate=TRUE)) == expected
    assert said(whole, read(2, active=less(T, 4)), read(3, active=less(T, readers))) == expected
    guarded = attrs.evolve(read(3), guard=less(T, readers))
    assert said(whole, guarded) == expected


def test_whole_needs_all_registers_of_all_threads():
    assert said(put(0, width=15), read(15)) == nothing_put(15, 0, 31)
    assert said(put(1, width=15), read(0)) == nothing_put(0, 0, 31)
    assert said(put(0, width=16), put(0, "q"), read(15), read(1, "q")) == nothing_put(1, 0, 31, "q")
    assert said(put(0, width=16, active=less(BLOCK, 1)), read(9)) == []


def test_each_thread_by_itself():
    """Registers by thread: the same in all, others in each, and some of them."""
    assert said(put(T % 16), read(T % 16), read(0)) == nothing_put(0, 1, 29), "threads 0 and 16 alone have it"
    assert said(put(T % 4, width=2), read(T % 4 + 1), read(T % 4 + 2)) == nothing_put(2, 0, 31)
    assert said(put(T % 4), read((T + 1) % 4)) == nothing_put(1, 0, 31)
    assert said(put(0, bound=as_expr(1), width=4), read(0), read(1)) == nothing_put(1, 0, 31), "what lies inside the bound alone"
    assert said(put(0, width=2), put(2, active=less(T, 16)), read(0, width=3)) == nothing_put(2, 16, 15)
    assert said(read(2, width=3)) == nothing_put(2, 0, 31), "the first of several"
    assert said(put(2), read(2, width=3)) == nothing_put(3, 0, 31)


def test_pieces_of_a_statement():
    """Each under its own condition, by thread and by iteration."""

    def in_pieces(*conditions, write=True):
        one = touch(0, write=write, name="r", width=len(conditions))
        return attrs.evolve(
            one, pieces=(tuple(making.piece(number, 1, condition=condition) for number, condition in enumerate(conditions)),)
        )

    assert said(in_pieces(TRUE, less(T, 8)), read(0), read(1)) == nothing_put(1, 8, 23)
    assert said(put(0), in_pieces(TRUE, less(T, 8), write=False)) == nothing_put(1, 0, 7)
    assert said(loop(2, in_pieces(TRUE, less(0, OUTER)), var=OUTER), read(1)) == []
    assert said(loop(1, in_pieces(TRUE, less(0, OUTER)), var=OUTER), read(1)) == nothing_put(1, 0, 31)
    assert said(loop(2, read(9), in_pieces(TRUE, less(0, OUTER)), var=OUTER), read(1)) == nothing_put(9, 0, 31)
    assert said(put(0), loop(2, in_pieces(TRUE, less(0, OUTER), write=False), var=OUTER)) == nothing_put(1, 0, 31)


def test_what_a_group_performs_together_is_written_everywhere():
    """Where only a text says which thread touches which registers, nothing is asked of reads; with maps of lanes, each its own."""
    together = put(0, level=Warp)
    assert said(together, read(7)) == [] == said(read(3, level=Warp))
    assert said(attrs.evolve(together, lane_maps=(None,)), read(0), read(7)) == nothing_put(7, 0, 31)
    assert said(loop(2, together, var=OUTER), read(7)) == []
    assert said(loop(2, attrs.evolve(together, lane_maps=(None,)), var=OUTER), read(7)) == nothing_put(7, 0, 31)


def test_a_statement_that_reads_and_writes_reads_first():
    both = attrs.evolve(put(3), accesses=(put(3).accesses[0], read(3).accesses[0]))
    assert said(both) == nothing_put(3, 0, 31)
    assert said(put(3), both) == []
    other = attrs.evolve(both, accesses=(read(3, "q").accesses[0], read(3).accesses[0]))
    assert said(other) == nothing_put(3, 0, 31, "q") + nothing_put(3, 0, 31)
    again = read(3)
    assert said(again, again) == nothing_put(3, 0, 31), "a statement is named once"


def test_what_is_added_to():
    """Where it is decided by threads and loops; else nothing is said."""
    assert said(put(3, accumulate=less(T, 4))) == nothing_put(3, 0, 3)
    assert said(put(3, accumulate=less(T, 4), active=less(T, 2))) == nothing_put(3, 0, 1)
    assert said(put(3, active=less(T, 4)), put(3, accumulate=less(T, 5))) == nothing_put(3, 4)
    assert said(loop(4, put(3, accumulate=less(0, OUTER)), var=OUTER), read(3)) == []
    assert said(loop(4, put(3, accumulate=less(OUTER, 1)), var=OUTER)) == nothing_put(3, 0, 31)
    assert said(loop(4, put(3, accumulate=less(1, OUTER), active=less(0, OUTER)), var=OUTER)) == []
    assert said(loop(4, put(3, accumulate=less(0, OUTER), active=less(0, OUTER)), var=OUTER)) == nothing_put(3, 0, 31)
    assert said(put(3, accumulate=less(SIZE, 4)), read(3), symbols=(SIZE,)) == []


@pytest.mark.parametrize(("number", "reached"), [(0, True), (1, True), (2, True), (3, False), (6, False), (7, True)])
def test_conditions_of_a_loop_are_followed_for_its_first_iterations_and_its_last(number, reached):
    """Where no register number depends on its variable: three, and the last."""
    assert said(loop(8, read(3, active=equal(OUTER, number)), var=OUTER)) == (nothing_put(3, 0, 31) if reached else [])
    behind = nothing_put(9, 0, 31) + ([] if reached else nothing_put(3, 0, 31))
    assert said(loop(8, read(9), put(3, active=equal(OUTER, number)), var=OUTER), read(3)) == behind
    assert said(loop(8, put(3, active=equal(OUTER, number)), var=OUTER), read(3)) == [], "where nothing is read all of it is marked"


@pytest.mark.parametrize("many", [4, 5])
def test_register_numbers_of_a_loop_are_followed_for_so_many_values(monkeypatch, many):
    monkeypatch.setattr("fireiron.check.uninitialized_registers.MANY", many)
    for number in range(8):
        found = said(loop(8, read(9, active=less(T, 1)), put(OUTER), var=OUTER), read(number))
        assert found == nothing_put(9, 0) + ([] if number < many else nothing_put(number, 0, 31))


@pytest.mark.parametrize("points", [32 * 4, 32 * 4 - 1])
def test_too_many_registers_at_once_are_followed_one_by_one(monkeypatch, points):
    """The answer is the same where a loop is followed; of iterations only so many are."""
    monkeypatch.setattr("fireiron.check.uninitialized_registers.POINTS", points)
    monkeypatch.setattr("fireiron.check.uninitialized_registers.MANY", 2)
    together = points == 32 * 4
    assert said(loop(4, put(OUTER), var=OUTER), read(3)) == ([] if together else nothing_put(3, 0, 31))
    assert said(loop(2, put(OUTER, width=2), var=OUTER), read(2)) == []
    assert said(loop(9, put(3), var=OUTER), read(3)) == [], "what does not change is looked at once"
    assert said(loop(4, put(3, active=equal(OUTER, 3)), var=OUTER), read(3)) == ([] if together else nothing_put(3, 0, 31))


def test_a_loop_that_only_writes_is_marked_together():
    """All iterations of all loops in it; but not what a warp may leave out, and not what nobody knows how often it is done."""
    assert said(loop(4, loop(2, put(OUTER * 2 + J), var=J), var=OUTER), read(7), read(8)) == nothing_put(8, 0, 31)
    assert said(loop(4, loop(0, put(OUTER), var=J), var=OUTER), read(0)) == nothing_put(0, 0, 31)
    assert said(loop(2, loop(SIZE, put(3), var=J), var=OUTER), read(3), symbols=(SIZE,)) == nothing_put(3, 0, 31)
    assert said(loop(2, loop(SOME, put(3), var=J), var=OUTER), read(3), symbols=(SOME,)) == []
    assert said(loop(3, put(OUTER), first=1, var=OUTER), read(2), read(0)) == nothing_put(0, 0, 31)
    assert said(loop(6, put(OUTER), first=1, step=2, var=OUTER), read(5), read(3), read(4)) == nothing_put(4, 0, 31)
    needed = buffer("needed", 1, memory=RF, dtype=int32)
    skipping = loop(3, making.if_any_lane("needed", (put(1),)), var=OUTER)
    assert said(put(0, "needed"), skipping, read(1), buffers=(*REGISTERS, needed)) == nothing_put(1, 0, 31)
    roles = making.roles((making.role("one", 0, 16, (put(1, active=less(T, 16)),)), making.role("other", 16, 16, (put(2),))))
    assert said(loop(3, roles, var=OUTER), read(2), read(1)) == nothing_put(1, 16, 15)
    assert said(put(0, width=16), loop(3, read(5), put(3, "q"), var=OUTER), read(3, "q"), read(4, "q")) == nothing_put(4, 0, 31, "q")


def test_a_loop_of_which_only_the_least_length_is_known():
    """So many iterations put something there; two are looked at where there may be fewer."""
    three = Var("three", 3, 1 << 20, 1, True)
    options = {"symbols": (three, SOME, SIZE)}
    assert said(loop(three, put(OUTER), var=OUTER), read(2), read(3), **options) == nothing_put(3, 0, 31)
    assert said(loop(SOME, put(OUTER), var=OUTER), read(1), read(2), **options) == nothing_put(2, 0, 31)
    assert said(loop(SIZE, put(OUTER), var=OUTER), read(0), **options) == nothing_put(0, 0, 31)
    assert said(loop(SIZE, read(3, active=equal(OUTER, 1)), var=OUTER), **options) == nothing_put(3, 0, 31)
    assert said(loop(SIZE, read(3, active=equal(OUTER, 2)), var=OUTER), **options) == []
    assert said(loop(SOME, put(OUTER), first=1, step=2, var=OUTER), read(3), read(5), **options) == nothing_put(5, 0, 31)
    assert said(loop(SIZE, put(3), put(4), read(3), var=OUTER), read(4), **options) == nothing_put(4, 0, 31)
    assert said(put(4), loop(SIZE, put(3), var=OUTER), read(4), **options) == []


def test_a_loop_that_has_iterations_keeps_what_it_puts():
    """Of a known number, which may be that of the loop around."""
    assert said(loop(3, read(9), put(3), var=OUTER), read(3)) == nothing_put(9, 0, 31)
    assert said(loop(3, loop(OUTER, read(9), put(3), var=J), var=OUTER), read(3)) == nothing_put(9, 0, 31)
    assert said(loop(3, loop(OUTER, put(3), var=J), read(3), var=OUTER)) == nothing_put(3, 0, 31)
    assert said(loop(3, loop(OUTER + 1, put(3), var=J), read(3), var=OUTER)) == []
    row = Var("row", 0, 7)
    assert said(loop(3, making.let(row, OUTER + 1), loop(row, put(3), var=J), read(3), var=OUTER)) == []


def test_roles_join_what_each_of_them_put():
    """Registers of several lengths and whole buffers; each begins with what there was."""

    def roles(*bodies):
        return making.roles(tuple(making.role(f"role {n}", 16 * n, 16, body) for n, body in enumerate(bodies)))

    assert said(roles((put(20),), (put(1),)), read(20), read(1), read(2)) == nothing_put(2, 0, 31)
    assert said(roles((put(1),), (put(20),)), read(20), read(1), read(2)) == nothing_put(2, 0, 31)
    assert said(roles((put(0, width=16),), ()), read(9)) == [] == said(roles((), (put(0, width=16),)), read(9))
    assert said(roles((put(0, width=16),), (read(9),))) == nothing_put(9, 0, 31)
    assert said(put(0, width=16), roles((read(9),), (read(9),)), read(9)) == []
    assert said(roles((put(1, active=less(T, 16)),), (put(1, active=less(15, T)),)), read(1)) == []
    assert said(roles((put(1, active=less(T, 16)),), (put(1, active=less(16, T)),)), read(1)) == nothing_put(1, 16)


def test_without_registers_nothing_is_followed():
    class Other(ir.Stmt):
        """A kind of statement that the check does not know."""

    assert check_uninitialized_registers(AccessTrace(kernel(Other(), threads=THREADS))) == ()


def test_statements_that_touch_no_register_are_passed_over():
    names = (
        making.let(Var("name", 0, 0), as_expr(0)),
        making.comment("text"),
        making.commit(),
        making.wait(0),
        making.barrier(ir.BLOCK_SCOPE),
    )
    names += (
        making.acquire("ring", ir.StageState.FULL, as_expr(0)),
        making.release("ring", ir.StageState.FULL, as_expr(0)),
        making.cluster_barrier(),
    )
    names += (
        making.claim_tile(Var("tile", 0, 9), as_expr(9), "ring", as_expr(0)),
        making.exit_if_done(Var("tile", 0, 9), as_expr(9)),
        making.fence(ir.FenceKind.ASYNC_PROXY),
    )
    assert said(*names, put(3), *names, read(3), read(4)) == nothing_put(4, 0, 31)


def looked_at(monkeypatch, *body, **options):
    """How often the check looks for registers, and what it says."""
    seen, addresses = [], AccessTrace.addresses
    monkeypatch.setattr(
        AccessTrace, "addresses", lambda access_trace, frame, access: seen.append(access) or addresses(access_trace, frame, access)
    )
    found = said(*body, **options)
    monkeypatch.undo()
    return len(seen), found


def test_of_what_is_whole_nothing_is_asked(monkeypatch):
    """In any role, or before; of a loop in which all is whole neither."""
    whole = put(0, width=16)
    assert looked_at(monkeypatch, whole, read(3), read(4)) == (1, [])
    assert looked_at(monkeypatch, put(0, width=15), read(3), read(4)) == (3, [])
    assert looked_at(monkeypatch, whole, loop(9, read(3), read(OUTER), var=OUTER), put(3)) == (1, [])
    roles = making.roles((making.role("one", 0, 16, (whole,)), making.role("other", 16, 16, ())))
    assert looked_at(monkeypatch, roles, read(3)) == (1, [])
    other = making.roles((making.role("one", 0, 16, ()), making.role("other", 16, 16, (whole,))))
    assert looked_at(monkeypatch, other, read(3)) == (1, [])
    assert looked_at(monkeypatch, read(3), read(3)) == (2, nothing_put(3, 0, 31) * 2)
    assert looked_at(monkeypatch, loop(9, put(3), read(3), var=OUTER)) == (3, []), "once: nothing changes"


def test_no_more_values_of_a_loop_than_a_thread_has_registers():
    long = Var("long", 0, 299)
    body = loop(300, read(0, "q", active=less(T, 1)), put(long), var=long)
    for number, alarms in ((255, 1), (256, 2)):
        assert len(said(body, read(number), buffers=(buffer("r", 512, memory=RF), REGISTERS[1]))) == alarms
