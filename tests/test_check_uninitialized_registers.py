"""Registers read before any write: random kernels are compared with an execution thread by thread."""

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


def diagnose(*body, **options):
    findings = check_uninitialized_registers(AccessTrace(kernel(*body, **{"threads": THREADS, "buffers": REGISTERS, **options})))
    return [finding.message.replace("Move(1,1)(RF,SH)(Thread) ", "") for finding in findings]


def uninitialized(register, thread, others=0, name="r"):
    more = f" and {others} others" if others else ""
    return [f"reads register {name}[{register}] before any write to it, in thread {thread}{more}"]


def uninitialized_reads(program):
    """The statements that read a register of a thread before any write to it, by executing the whole kernel."""
    full, reading = set(), set()

    def run(body, values):
        for stmt in body:
            if isinstance(stmt, ir.For):
                for number in range(stmt.extent.evaluate(values)):
                    run(stmt.body, {**values, stmt.var.name: number})
                continue
            for thread in range(program.threads):
                thread_values = {**values, "thread": thread}
                (access,) = stmt.accesses
                if not stmt.performed.evaluate(thread_values):
                    continue
                places = [(access.buffer, thread, access.base[0].evaluate(thread_values) + offset) for (offset,) in access.elements()]
                reads = not access.write or stmt.accumulate.evaluate(thread_values)
                if reads and any(place not in full for place in places):
                    reading.add(id(stmt))
                if access.write:
                    full.update(places)

    run(program.body, {"block": 0})
    return reading


def random_kernel(chance):
    extent = chance.choice((1, 2, 3, 4))

    def statement(inside):
        where = chance.choice((OUTER + 0, OUTER + 1, 3 - OUTER % 4, OUTER % 2, T % 4, 0, 2) if inside else (0, 1, 2, 3, T % 4, T % 2 + 1))
        ends = (less(OUTER, 1), less(0, OUTER), less(OUTER, extent - 1)) if inside else ()
        active = chance.choice((TRUE, TRUE, TRUE, less(T, 20), less(7, T), *ends))
        width = chance.choice((1, 1, 2, 4))
        name = chance.choice("rrq")
        if chance.random() < 0.55:
            added = chance.choice((FALSE, FALSE, FALSE, TRUE, *ends[1:2], less(T, 4)))
            return put(where, name, width=width, active=active, accumulate=added)
        return read(where, name, width=width, active=active)

    body = [put(0, name, width=8) for name in chance.choice(("", "", "r", "rq"))]
    body += [statement(False) for _ in range(chance.choice((0, 1, 2)))]
    body.append(loop(extent, *(statement(True) for _ in range(chance.choice((1, 2, 3)))), var=OUTER))
    body += [statement(False) for _ in range(chance.choice((1, 2)))]
    return kernel(*body, threads=THREADS, buffers=REGISTERS)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("chunk", range(6))
def test_random_kernels_compared_with_execution(chunk):
    verdicts = set()
    for seed in range(40 * chunk, 40 * (chunk + 1)):
        program = random_kernel(random.Random(f"loaded {seed}"))
        expected, findings = uninitialized_reads(program), list(check_uninitialized_registers(AccessTrace(program)))
        assert len(findings) == len(expected), (seed, program.body, [finding.message for finding in findings])
        verdicts.add(bool(expected))
    assert verdicts == {True, False}


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ((read(3),), uninitialized(3, 0, 31)),
        ((put(3), read(3)), []),
        ((put(3, active=less(T, 31)), read(3)), uninitialized(3, 31)),
        ((put(3, active=less(T, 30)), read(3)), uninitialized(3, 30, 1)),
        ((put(3), read(3, "q")), uninitialized(3, 0, 31, "q")),
        ((put(0, width=4), read(3), read(4)), uninitialized(4, 0, 31)),
        ((put(3, active=less(Var("block", 0, 3), 1)), read(3)), []),
        ((read(3, active=less(Var("block", 0, 3), 1)),), uninitialized(3, 0, 31)),
        ((put(SIZE % 16), read(3)), []),
        ((read(SIZE % 16),), []),
        ((put(3, accumulate=TRUE),), uninitialized(3, 0, 31)),
        ((put(3, accumulate=less(Var("block", 0, 3), 1)),), []),
        ((put(3, active=less(0, T), accumulate=less(T, 4)),), uninitialized(3, 1, 2)),
        ((loop(0, put(3), var=OUTER), read(3)), uninitialized(3, 0, 31)),
        ((loop(0, put(OUTER), var=OUTER), read(0)), uninitialized(0, 0, 31)),
        ((loop(SIZE, put(3), var=OUTER), read(3)), uninitialized(3, 0, 31)),
        ((loop(SOME, put(3), var=OUTER), read(3)), []),
        ((loop(SIZE, put(OUTER % 2), read(1), var=OUTER),), uninitialized(1, 0, 31)),
        ((loop(SIZE, put(1), read(1), var=OUTER),), []),
        ((loop(4, loop(OUTER + 1, put(INNER), var=INNER), read(OUTER), var=OUTER),), []),
        ((loop(4, loop(OUTER, put(INNER), var=INNER), read(OUTER), var=OUTER),), uninitialized(0, 0, 31)),
        ((loop(300, put(3, active=less(298, Var("long", 0, 299))), var=Var("long", 0, 299)), read(3)), []),
        ((put(3), put(2, active=all_of((less(T, 8), less(3, T)))), read(2, active=less(T, 8))), uninitialized(2, 0, 3)),
    ],
)  # fmt: skip
def test_paths_through_a_kernel(body, expected):
    """Conditions on threads and loops are evaluated; those on blocks and sizes are assumed to hold; a loop that may be empty writes nothing."""
    assert diagnose(*body, symbols=(SIZE, SOME)) == expected


def test_roles_and_conditional_bodies():
    """Each role starts with the earlier writes; after the roles the writes of all count; a body that may be skipped writes nothing."""

    def roles(*bodies):
        return making.roles(tuple(making.role(f"role {n}", 16 * n, 16, body) for n, body in enumerate(bodies)))

    assert diagnose(put(1), roles((read(1),), (read(1),))) == []
    assert diagnose(roles((put(1),), (read(1),))) == uninitialized(1, 0, 31)
    assert diagnose(roles((put(1),), ()), read(1)) == [] == diagnose(roles((), (put(1),)), read(1))
    assert diagnose(roles((put(1),), (put(9),)), read(1), read(9), read(2)) == uninitialized(2, 0, 31)
    needed = buffer("needed", 1, memory=RF, dtype=int32)

    def skipped(*body):
        return diagnose(put(0, "needed"), making.if_any_lane("needed", body), read(1), buffers=(*REGISTERS, needed))

    assert skipped(put(1)) == uninitialized(1, 0, 31)
    assert diagnose(
        put(0, "needed"), put(1), making.if_any_lane("needed", (read(1), read(2))), buffers=(*REGISTERS, needed)
    ) == uninitialized(2, 0, 31)


def test_findings_name_line_and_buffer():
    (finding,) = check_uninitialized_registers(AccessTrace(kernel(read(3), threads=THREADS, buffers=REGISTERS)))
    assert (finding.kind, finding.severity, finding.buffer, finding.at) == ("registers", "error", "r", "hand.py:1")
    access = attrs.evolve(read(3).accesses[0], origin=None)
    (finding,) = check_uninitialized_registers(
        AccessTrace(kernel(attrs.evolve(read(3), accesses=(access,), origin="of statement"), threads=THREADS, buffers=REGISTERS))
    )
    assert finding.at == "of statement"
    assert check_uninitialized_registers(AccessTrace(kernel(touch(T, write=False), threads=THREADS))) == (), (
        "another check covers shared memory"
    )
    assert len(diagnose(loop(3, read(3), var=OUTER))) == 1, "each statement is reported once"


# ---------------------------------------------------------------------------------------------- single behaviors


J = INNER
BLOCK = Var("block", 0, 7)


def test_a_register_past_the_end_of_its_buffer_is_separate():
    """The bounds check reports it; writes to other registers still count."""
    assert diagnose(read(20)) == uninitialized(20, 0, 31)
    assert diagnose(put(20), read(20)) == [] == diagnose(put(3), put(20), read(3))
    assert diagnose(put(20), read(3)) == uninitialized(3, 0, 31) and diagnose(put(3), read(20)) == uninitialized(20, 0, 31)
    assert diagnose(put(15), put(16), read(15), read(16), read(17)) == uninitialized(17, 0, 31)


def test_buffer_of_unknown_size():
    """It is never fully initialized, and its registers are tracked separately."""
    long = attrs.evolve(REGISTERS[0], elements=SIZE + 1)
    options = {"buffers": (long,), "symbols": (SIZE,)}
    assert diagnose(put(5), read(5), read(6), **options) == uninitialized(6, 0, 31)
    assert diagnose(put(0), read(0), put(2), read(0), read(2), read(1), **options) == uninitialized(1, 0, 31)


def test_stages_have_separate_registers():
    staged = attrs.evolve(buffer("r", 4, memory=RF), tensor=attrs.evolve(buffer("r", 4, memory=RF).tensor, copies=2))
    assert diagnose(put(0, width=4), read(3), read(3, copy=1), buffers=(staged,)) == uninitialized(7, 0, 31)
    assert diagnose(put(0, width=4, copy=1), read(3, copy=1), read(3), buffers=(staged,)) == uninitialized(3, 0, 31)
    assert diagnose(loop(2, put(0, width=4, copy=OUTER), var=OUTER), read(3), read(3, copy=1), buffers=(staged,)) == []
    assert diagnose(put(0, width=4, copy=SIZE % 2), read(3), read(3, copy=1), buffers=(staged,), symbols=(SIZE,)) == []


@pytest.mark.parametrize(("writers", "readers", "alarm"), [(16, 16, None), (16, 17, 16), (17, 16, None), (31, 32, 31), (32, 32, None)])
def test_a_buffer_is_initialized_for_the_threads_that_read_it(writers, readers, alarm):
    """Threads that do not read need no write; threads that accumulate read."""
    whole = put(0, width=16, active=less(T, writers))
    expected = [] if alarm is None else uninitialized(3, alarm)
    assert diagnose(whole, read(3, active=less(T, readers))) == expected
    assert diagnose(whole, put(3, active=less(T, readers), accumulate=TRUE)) == expected
    assert diagnose(whole, read(2, active=less(T, 4)), read(3, active=less(T, readers))) == expected
    guarded = attrs.evolve(read(3), guard=less(T, readers))
    assert diagnose(whole, guarded) == expected


def test_fully_initialized_means_all_registers_of_all_threads():
    assert diagnose(put(0, width=15), read(15)) == uninitialized(15, 0, 31)
    assert diagnose(put(1, width=15), read(0)) == uninitialized(0, 0, 31)
    assert diagnose(put(0, width=16), put(0, "q"), read(15), read(1, "q")) == uninitialized(1, 0, 31, "q")
    assert diagnose(put(0, width=16, active=less(BLOCK, 1)), read(9)) == []


def test_threads_are_tracked_separately():
    """The register numbers are equal in all threads, differ by thread, or are bounded."""
    assert diagnose(put(T % 16), read(T % 16), read(0)) == uninitialized(0, 1, 29), "only threads 0 and 16 write register 0"
    assert diagnose(put(T % 4, width=2), read(T % 4 + 1), read(T % 4 + 2)) == uninitialized(2, 0, 31)
    assert diagnose(put(T % 4), read((T + 1) % 4)) == uninitialized(1, 0, 31)
    assert diagnose(put(0, bound=as_expr(1), width=4), read(0), read(1)) == uninitialized(1, 0, 31), (
        "only elements below the bound are written"
    )
    assert diagnose(put(0, width=2), put(2, active=less(T, 16)), read(0, width=3)) == uninitialized(2, 16, 15)
    assert diagnose(read(2, width=3)) == uninitialized(2, 0, 31), "the first register is reported"
    assert diagnose(put(2), read(2, width=3)) == uninitialized(3, 0, 31)


def test_pieces_have_conditions():
    """Each piece has a condition on threads or on iterations."""

    def in_pieces(*conditions, write=True):
        stmt = touch(0, write=write, name="r", width=len(conditions))
        return attrs.evolve(
            stmt, pieces=(tuple(making.piece(number, 1, condition=condition) for number, condition in enumerate(conditions)),)
        )

    assert diagnose(in_pieces(TRUE, less(T, 8)), read(0), read(1)) == uninitialized(1, 8, 23)
    assert diagnose(put(0), in_pieces(TRUE, less(T, 8), write=False)) == uninitialized(1, 0, 7)
    assert diagnose(loop(2, in_pieces(TRUE, less(0, OUTER)), var=OUTER), read(1)) == []
    assert diagnose(loop(1, in_pieces(TRUE, less(0, OUTER)), var=OUTER), read(1)) == uninitialized(1, 0, 31)
    assert diagnose(loop(2, read(9), in_pieces(TRUE, less(0, OUTER)), var=OUTER), read(1)) == uninitialized(9, 0, 31)
    assert diagnose(put(0), loop(2, in_pieces(TRUE, less(0, OUTER), write=False), var=OUTER)) == uninitialized(1, 0, 31)


def test_group_accesses_without_lane_maps_count_as_all_registers():
    """Without lane maps all registers count as written, and reads are not checked; with lane maps each thread has its registers."""
    together = put(0, level=Warp)
    assert diagnose(together, read(7)) == [] == diagnose(read(3, level=Warp))
    assert diagnose(attrs.evolve(together, lane_maps=(None,)), read(0), read(7)) == uninitialized(7, 0, 31)
    assert diagnose(loop(2, together, var=OUTER), read(7)) == []
    assert diagnose(loop(2, attrs.evolve(together, lane_maps=(None,)), var=OUTER), read(7)) == uninitialized(7, 0, 31)


def test_a_statement_that_reads_and_writes_reads_first():
    both = attrs.evolve(put(3), accesses=(put(3).accesses[0], read(3).accesses[0]))
    assert diagnose(both) == uninitialized(3, 0, 31)
    assert diagnose(put(3), both) == []
    other = attrs.evolve(both, accesses=(read(3, "q").accesses[0], read(3).accesses[0]))
    assert diagnose(other) == uninitialized(3, 0, 31, "q") + uninitialized(3, 0, 31)
    again = read(3)
    assert diagnose(again, again) == uninitialized(3, 0, 31), "a statement is reported once"


def test_accumulation_reads_its_register():
    """If threads and loops decide it; otherwise nothing is reported."""
    assert diagnose(put(3, accumulate=less(T, 4))) == uninitialized(3, 0, 3)
    assert diagnose(put(3, accumulate=less(T, 4), active=less(T, 2))) == uninitialized(3, 0, 1)
    assert diagnose(put(3, active=less(T, 4)), put(3, accumulate=less(T, 5))) == uninitialized(3, 4)
    assert diagnose(loop(4, put(3, accumulate=less(0, OUTER)), var=OUTER), read(3)) == []
    assert diagnose(loop(4, put(3, accumulate=less(OUTER, 1)), var=OUTER)) == uninitialized(3, 0, 31)
    assert diagnose(loop(4, put(3, accumulate=less(1, OUTER), active=less(0, OUTER)), var=OUTER)) == []
    assert diagnose(loop(4, put(3, accumulate=less(0, OUTER), active=less(0, OUTER)), var=OUTER)) == uninitialized(3, 0, 31)
    assert diagnose(put(3, accumulate=less(SIZE, 4)), read(3), symbols=(SIZE,)) == []


@pytest.mark.parametrize(("number", "reached"), [(0, True), (1, True), (2, True), (3, False), (6, False), (7, True)])
def test_loops_are_followed_for_the_first_three_iterations_and_the_last(number, reached):
    """If no register number depends on the loop variable."""
    assert diagnose(loop(8, read(3, active=equal(OUTER, number)), var=OUTER)) == (uninitialized(3, 0, 31) if reached else [])
    after_loop = uninitialized(9, 0, 31) + ([] if reached else uninitialized(3, 0, 31))
    assert diagnose(loop(8, read(9), put(3, active=equal(OUTER, number)), var=OUTER), read(3)) == after_loop
    assert diagnose(loop(8, put(3, active=equal(OUTER, number)), var=OUTER), read(3)) == [], "in a loop without reads all iterations count"


@pytest.mark.parametrize("many", [4, 5])
def test_register_numbers_of_a_loop_are_followed_up_to_a_limit(monkeypatch, many):
    monkeypatch.setattr("fireiron.check.uninitialized_registers.MANY", many)
    for number in range(8):
        messages = diagnose(loop(8, read(9, active=less(T, 1)), put(OUTER), var=OUTER), read(number))
        assert messages == uninitialized(9, 0) + ([] if number < many else uninitialized(number, 0, 31))


@pytest.mark.parametrize("points", [32 * 4, 32 * 4 - 1])
def test_loops_with_too_many_registers_are_followed_by_iteration(monkeypatch, points):
    """Results are the same for followed iterations, whose number is limited."""
    monkeypatch.setattr("fireiron.check.uninitialized_registers.POINTS", points)
    monkeypatch.setattr("fireiron.check.uninitialized_registers.MANY", 2)
    together = points == 32 * 4
    assert diagnose(loop(4, put(OUTER), var=OUTER), read(3)) == ([] if together else uninitialized(3, 0, 31))
    assert diagnose(loop(2, put(OUTER, width=2), var=OUTER), read(2)) == []
    assert diagnose(loop(9, put(3), var=OUTER), read(3)) == [], "a loop whose body does not change is executed once"
    assert diagnose(loop(4, put(3, active=equal(OUTER, 3)), var=OUTER), read(3)) == ([] if together else uninitialized(3, 0, 31))


def test_a_loop_that_only_writes_is_handled_as_a_whole():
    """All iterations of all inner loops count, except for bodies that may be skipped and loops of unknown length."""
    assert diagnose(loop(4, loop(2, put(OUTER * 2 + J), var=J), var=OUTER), read(7), read(8)) == uninitialized(8, 0, 31)
    assert diagnose(loop(4, loop(0, put(OUTER), var=J), var=OUTER), read(0)) == uninitialized(0, 0, 31)
    assert diagnose(loop(2, loop(SIZE, put(3), var=J), var=OUTER), read(3), symbols=(SIZE,)) == uninitialized(3, 0, 31)
    assert diagnose(loop(2, loop(SOME, put(3), var=J), var=OUTER), read(3), symbols=(SOME,)) == []
    assert diagnose(loop(3, put(OUTER), first=1, var=OUTER), read(2), read(0)) == uninitialized(0, 0, 31)
    assert diagnose(loop(6, put(OUTER), first=1, step=2, var=OUTER), read(5), read(3), read(4)) == uninitialized(4, 0, 31)
    needed = buffer("needed", 1, memory=RF, dtype=int32)
    skipping = loop(3, making.if_any_lane("needed", (put(1),)), var=OUTER)
    assert diagnose(put(0, "needed"), skipping, read(1), buffers=(*REGISTERS, needed)) == uninitialized(1, 0, 31)
    roles = making.roles((making.role("one", 0, 16, (put(1, active=less(T, 16)),)), making.role("other", 16, 16, (put(2),))))
    assert diagnose(loop(3, roles, var=OUTER), read(2), read(1)) == uninitialized(1, 16, 15)
    assert diagnose(put(0, width=16), loop(3, read(5), put(3, "q"), var=OUTER), read(3, "q"), read(4, "q")) == uninitialized(4, 0, 31, "q")


def test_loop_with_a_known_minimum_length():
    """The minimum number of iterations writes; reads are checked in at least two iterations."""
    three = Var("three", 3, 1 << 20, 1, True)
    options = {"symbols": (three, SOME, SIZE)}
    assert diagnose(loop(three, put(OUTER), var=OUTER), read(2), read(3), **options) == uninitialized(3, 0, 31)
    assert diagnose(loop(SOME, put(OUTER), var=OUTER), read(1), read(2), **options) == uninitialized(2, 0, 31)
    assert diagnose(loop(SIZE, put(OUTER), var=OUTER), read(0), **options) == uninitialized(0, 0, 31)
    assert diagnose(loop(SIZE, read(3, active=equal(OUTER, 1)), var=OUTER), **options) == uninitialized(3, 0, 31)
    assert diagnose(loop(SIZE, read(3, active=equal(OUTER, 2)), var=OUTER), **options) == []
    assert diagnose(loop(SOME, put(OUTER), first=1, step=2, var=OUTER), read(3), read(5), **options) == uninitialized(5, 0, 31)
    assert diagnose(loop(SIZE, put(3), put(4), read(3), var=OUTER), read(4), **options) == uninitialized(4, 0, 31)
    assert diagnose(put(4), loop(SIZE, put(3), var=OUTER), read(4), **options) == []


def test_writes_of_a_nonempty_loop_count_after_it():
    """Its trip count is known, or is the variable of the outer loop."""
    assert diagnose(loop(3, read(9), put(3), var=OUTER), read(3)) == uninitialized(9, 0, 31)
    assert diagnose(loop(3, loop(OUTER, read(9), put(3), var=J), var=OUTER), read(3)) == uninitialized(9, 0, 31)
    assert diagnose(loop(3, loop(OUTER, put(3), var=J), read(3), var=OUTER)) == uninitialized(3, 0, 31)
    assert diagnose(loop(3, loop(OUTER + 1, put(3), var=J), read(3), var=OUTER)) == []
    row = Var("row", 0, 7)
    assert diagnose(loop(3, making.let(row, OUTER + 1), loop(row, put(3), var=J), read(3), var=OUTER)) == []


def test_writes_of_all_roles_are_joined():
    """Single registers and whole buffers; each role starts with the earlier writes."""

    def roles(*bodies):
        return making.roles(tuple(making.role(f"role {n}", 16 * n, 16, body) for n, body in enumerate(bodies)))

    assert diagnose(roles((put(20),), (put(1),)), read(20), read(1), read(2)) == uninitialized(2, 0, 31)
    assert diagnose(roles((put(1),), (put(20),)), read(20), read(1), read(2)) == uninitialized(2, 0, 31)
    assert diagnose(roles((put(0, width=16),), ()), read(9)) == [] == diagnose(roles((), (put(0, width=16),)), read(9))
    assert diagnose(roles((put(0, width=16),), (read(9),))) == uninitialized(9, 0, 31)
    assert diagnose(put(0, width=16), roles((read(9),), (read(9),)), read(9)) == []
    assert diagnose(roles((put(1, active=less(T, 16)),), (put(1, active=less(15, T)),)), read(1)) == []
    assert diagnose(roles((put(1, active=less(T, 16)),), (put(1, active=less(16, T)),)), read(1)) == uninitialized(1, 16)


def test_kernels_without_registers_are_not_analyzed():
    class Other(ir.Stmt):
        """A kind of statement that the check does not know."""

    assert check_uninitialized_registers(AccessTrace(kernel(Other(), threads=THREADS))) == ()


def test_statements_without_register_accesses_change_nothing():
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
    assert diagnose(*names, put(3), *names, read(3), read(4)) == uninitialized(4, 0, 31)


def count_addresses(monkeypatch, *body, **options):
    """How often the check computes register numbers, and its messages."""
    computed, addresses = [], AccessTrace.addresses
    monkeypatch.setattr(
        AccessTrace, "addresses", lambda access_trace, frame, access: computed.append(access) or addresses(access_trace, frame, access)
    )
    messages = diagnose(*body, **options)
    monkeypatch.undo()
    return len(computed), messages


def test_fully_initialized_buffers_are_not_examined(monkeypatch):
    """Initialized in a role or before the roles; a loop that reads only such buffers is skipped."""
    whole = put(0, width=16)
    assert count_addresses(monkeypatch, whole, read(3), read(4)) == (1, [])
    assert count_addresses(monkeypatch, put(0, width=15), read(3), read(4)) == (3, [])
    assert count_addresses(monkeypatch, whole, loop(9, read(3), read(OUTER), var=OUTER), put(3)) == (1, [])
    roles = making.roles((making.role("one", 0, 16, (whole,)), making.role("other", 16, 16, ())))
    assert count_addresses(monkeypatch, roles, read(3)) == (1, [])
    other = making.roles((making.role("one", 0, 16, ()), making.role("other", 16, 16, (whole,))))
    assert count_addresses(monkeypatch, other, read(3)) == (1, [])
    assert count_addresses(monkeypatch, read(3), read(3)) == (2, uninitialized(3, 0, 31) * 2)
    assert count_addresses(monkeypatch, loop(9, put(3), read(3), var=OUTER)) == (3, []), "once, since nothing changes"


def test_followed_values_are_limited_by_the_registers_of_a_thread():
    long = Var("long", 0, 299)
    body = loop(300, read(0, "q", active=less(T, 1)), put(long), var=long)
    for number, alarms in ((255, 1), (256, 2)):
        assert len(diagnose(body, read(number), buffers=(buffer("r", 512, memory=RF), REGISTERS[1]))) == alarms
