"""The pass `pipeline` on hand-made IR: which loads run ahead, into which stage, under which condition, and what is refused."""

import attrs
import making
import pytest
from handmade import THREAD, access, execution, kernel_of, local

from fireiron import *
from fireiron import ir
from fireiron.executable.fma import FFMA
from fireiron.executable.thread_move import MOVE
from fireiron.ir import Comment, Commit, Exec, For, SyncPoint
from fireiron.ir.mechanism import AT_ONCE
from fireiron.ir.mechanisms.cp_async import CP_ASYNC_GROUPS
from fireiron.lower.pipeline import pipeline
from fireiron.values.expr import FALSE, TRUE, Var, as_expr, less
from fireiron.values.machine import Thread

SPEC = MatMul(32, 32, 64)(GL, GL, GL)
K = Var("k", 0, 15)
STEP = Var("step", 0, 3)
TILE = local("tile", (32, 4), SH)
OTHER = local("other", (32, 4), SH)
REGISTERS = local("held", (4, 1), RF)


def load(target="tile", k=K, source="A", **fields):
    """A thread's element of one step of k, from global to shared memory."""
    sides = (access(source, (THREAD, k * 4)), access(target, (THREAD, 0), write=True))
    return execution(MOVE, Move(1, 1)(GL, SH)(Thread), *sides, **fields)


def fill(step=STEP, source="tile"):
    """A thread's element from shared memory to registers."""
    return execution(MOVE, Move(1, 1)(SH, RF)(Thread), access(source, (THREAD, step)), access("held", (0, 0), write=True))


def use(source="tile", memory=SH, column=0):
    """A matmul that reads what was loaded."""
    spec = MatMul(1, 1, 1)(memory, GL, GL)(Thread)
    where = (THREAD, column) if memory == SH else (0, 0)
    return execution(FFMA, spec, access(source, where), access("B", (0, THREAD)), access("C", (THREAD, 0), write=True), accumulate=TRUE)


def loop(*body, stages=3, extent=16, var=K, **fields):
    return making.loop(var, as_expr(extent), body, stages=stages, **fields)


def passed(*body, buffers=(TILE, OTHER, REGISTERS), **options):
    return ir.verify(pipeline(kernel_of(SPEC, body, *buffers, **options)))


def copies(kernel):
    return {one.name: one.tensor.copies for one in kernel.buffers if not one.parameter}


def stages_of(statement, **values):
    """The stage of each access at given values of the loop variables."""
    return [one.copy.evaluate({"thread": 0, **values}) for one in statement.accesses]


# ---------------------------------------------------------------------------------------------- one loop


@pytest.mark.parametrize("stages", [2, 3, 5])
def test_loads_run_ahead_by_all_stages_but_one(stages):
    kernel = passed(loop(load(), use(), stages=stages))
    note, prologue, steady = kernel.body
    assert isinstance(note, Comment) and prologue.extent == as_expr(stages - 1) and prologue.unroll
    early, group = prologue.body
    assert group == making.commit() and prologue.var.name == "k_ahead" and prologue.var.high == stages - 2
    assert [stages_of(early, k_ahead=number)[1] for number in range(stages - 1)] == list(range(stages - 1))
    assert early.accesses[0].base[1] == prologue.var * 4 and early.active == TRUE
    wish, producer, commit, consumer = steady.body
    assert wish == making.sync_point(None, "k") and commit == making.commit()
    assert (tuple(steady.asks), steady.period, steady.extent) == ((), stages, as_expr(16))
    for k in range(12):
        assert stages_of(producer, k=k)[1] == (k + stages - 1) % stages and stages_of(consumer, k=k)[0] == k % stages
        assert producer.accesses[0].base[1].evaluate({"k": k}) == (k + stages - 1) * 4
    assert producer.active == less(K + (stages - 1), 16) and consumer.active == TRUE
    assert copies(kernel) == {"tile": stages, "other": 1, "held": 1}


def test_only_what_was_loaded_has_stages():
    kernel = passed(loop(load(), use(), use("other")))
    consumers = [one for one in kernel.body[-1].body if isinstance(one, Exec) and one.spec.title == "MatMul"]
    assert [stages_of(one, k=1)[0] for one in consumers] == [1, 0]
    assert [stages_of(one, k=1)[1:] for one in consumers] == [[0, 0], [0, 0]]


def test_copies_of_units_come_before_their_stages():
    """A buffer with a copy per warp keeps its copies: stage s of copy c has the index c * stages + s."""
    first = attrs.evolve(load(), accesses=tuple(attrs.evolve(one, copy=THREAD // 16) for one in load().accesses))
    two = attrs.evolve(TILE, tensor=attrs.evolve(TILE.tensor, copies=2))
    kernel = passed(loop(first, use()), buffers=(two, OTHER, REGISTERS))
    producer = kernel.body[-1].body[1]
    assert [producer.accesses[1].copy.evaluate({"thread": thread, "k": 0}) for thread in (0, 16)] == [2, 5]
    assert copies(kernel)["tile"] == 6


def test_copies_between_global_and_shared_memory_may_be_in_flight():
    """Only those: what is copied from shared memory is read by the same thread at once."""
    kernel = passed(loop(load(), use()))
    assert {one.mechanism for one, _ in ir.execs(kernel.body) if one.spec.title == "Move"} == {CP_ASYNC_GROUPS}
    inner = passed(loop(fill(), use("held", RF), extent=4, var=STEP))
    assert {one.mechanism for one, _ in ir.execs(inner.body)} == {AT_ONCE}


def test_steps_that_a_loop_does_not_have_are_not_loaded():
    """Of four stages and two iterations, three loads would run ahead; the loop's own loads are gone."""
    kernel = passed(loop(load(), use(), stages=4, extent=2))
    note, prologue, steady = kernel.body
    early, _ = prologue.body
    assert note.text.startswith("prologue: loads of the first 3 iterations") and early.active == less(prologue.var, 2)
    assert [type(one) for one in steady.body] == [SyncPoint, Exec]
    size = sym("S")
    unknown = passed(loop(load(), use(), extent=size), symbols=(size,))
    assert unknown.body[1].body[0].active == less(unknown.body[1].var, size)
    assert unknown.body[2].body[1].active == less(K + 2, size)


def test_one_stage_loads_in_its_own_iteration():
    kernel = passed(loop(load(), use(), stages=1))
    (steady,) = kernel.body
    producer = steady.body[1]
    assert producer.active == TRUE and producer.accesses[0].base[1] == K * 4 and stages_of(producer, k=5)[1] == 0
    assert copies(kernel)["tile"] == 1 and steady.period == 1


def test_a_condition_of_the_load_stays():
    (early, _), (_, producer, *_) = (one.body for one in passed(loop(load(active=less(THREAD, 8)), use())).body[1:])
    assert early.active == less(THREAD, 8)
    assert [producer.active.evaluate({"thread": thread, "k": k}) for thread, k in ((7, 13), (7, 14), (8, 0))] == [1, 0, 0]


def test_comments_move_with_the_next_statement():
    kernel = passed(loop(making.comment("a"), load(), making.comment("the product"), use()))
    _, prologue, steady = kernel.body
    assert [one.text for one in prologue.body if isinstance(one, Comment)] == ["a"]
    kinds = [one.text if isinstance(one, Comment) else type(one).__name__ for one in steady.body]
    assert kinds == ["SyncPoint", "a", "Exec", "Commit", "the product", "Exec"]


def test_wishes_between_the_loads_are_for_loads_that_stay():
    """`no_sync` and the best place between loads lose their meaning; the user's barrier and the requests after it stay."""
    points = [making.sync_point(False, "tile"), making.sync_point(None, "k"), making.sync_point(True, "tile")]
    kept = []
    for point in points:
        steady = passed(loop(load(), point, load("other", source="A"), use(), use("other"))).body[-1]
        kept.append(point in steady.body[1:])
    assert kept == [False, False, True]
    assert making.sync_point(False, "C") in passed(loop(load(), use(), making.sync_point(False, "C"))).body[-1].body


def test_what_is_not_a_load_stays():
    """A move out of what the loop writes, and one into global memory, belong to the iteration."""
    out = execution(MOVE, Move(1, 1)(SH, GL)(Thread), access("tile", (THREAD, 0)), access("C", (THREAD, 0), write=True))
    second_copy = execution(MOVE, Move(1, 1)(SH, SH)(Thread), access("tile", (THREAD, 0)), access("other", (THREAD, 0), write=True))
    for other in (out, second_copy):
        _, prologue, steady = passed(loop(load(), other, use())).body
        assert len(prologue.body) == 2
        at = steady.body.index(making.commit())
        assert [one.accesses[1].buffer for one in steady.body[at:] if isinstance(one, Exec) and one.spec.title == "Move"] == [
            other.accesses[1].buffer
        ]
    with pytest.raises(DecompositionError, match="no load directly under"):
        passed(loop(out, use(), making.comment("nothing to load")))


def test_a_used_name_gets_a_number():
    earlier_loop = making.loop(Var("k_ahead", 0, 1), as_expr(2), (use(),))
    assert passed(earlier_loop, loop(load(), use())).body[2].var.name == "k_ahead2"


def test_kernels_without_a_marked_loop_are_left_alone():
    kernel = kernel_of(SPEC, (loop(load(), use(), stages=0),), TILE)
    assert pipeline(kernel) is kernel


def test_marked_loops_inside_others_are_found():
    inside = making.loop(Var("outer", 0, 1), as_expr(2), (loop(load(), use()),))
    (outer,) = passed(inside).body
    assert [type(one) for one in outer.body] == [Comment, For, For] and outer.body[2].period == 3


# ---------------------------------------------------------------------------------------------- registers


@pytest.mark.parametrize(("extent", "stages", "legal"), [(64, 2, True), (65, 2, False), (None, 2, False), (65, 1, True)])
def test_registers_have_no_number_at_run_time(extent, stages, legal):
    size = sym("S")
    step = Var("step", 0, 2**20 if extent is None else extent - 1)
    inner = loop(fill(as_expr(0)), use("held", RF), stages=stages, extent=size if extent is None else extent, var=step)
    if legal:
        kernel = passed(inner)
        assert kernel.body[-1].period == 0 and making.commit() not in tuple(ir.statements(kernel.body))
        assert copies(kernel)["held"] == stages
    else:
        with pytest.raises(DecompositionError, match="are in registers"):
            passed(inner, symbols=(size,))


def nested(outer=3, inner=2, extent=4, **fields):
    return loop(load(), loop(fill(), use("held", RF), stages=inner, extent=extent, var=STEP), stages=outer, **fields)


def test_fragments_are_loaded_ahead_across_iterations():
    kernel = passed(nested())
    _note, prologue, first, steady = kernel.body
    assert isinstance(prologue, For) and first.accesses[0].base[1] == as_expr(0)
    assert stages_of(first, k=0) == [0, 0], "the first step's data before both loops, from the first stage"
    producer, commit, steps, wish, early, last = steady.body
    assert (type(producer), commit, wish) == (Exec, making.commit(), making.sync_point(None, "k"))
    assert steps.extent == as_expr(3) and not steps.asks and steps.var.high == 2
    ahead, now = steps.body
    for k in range(4):
        for step in range(3):
            assert stages_of(ahead, k=k, step=step) == [k % 3, (step + 1) % 2] and stages_of(now, k=k, step=step)[0] == step % 2
            assert ahead.accesses[0].base[1].evaluate({"step": step, "k": k}) == step + 1
        assert stages_of(early, k=k) == [(k + 1) % 3, 0] and stages_of(last, k=k)[0] == 1
    assert early.active == less(K + 1, 16) and early.accesses[0].base[1] == as_expr(0) and last.active == TRUE
    assert copies(kernel) == {"tile": 3, "other": 1, "held": 2}


@pytest.mark.parametrize(("extent", "inner"), [(5, 2), (4, 3)])
def test_steps_must_be_whole_rounds_of_stages(extent, inner):
    with pytest.raises(DecompositionError, match="registers have no run-time index"):
        passed(nested(inner=inner, extent=extent))


@pytest.mark.parametrize("outer", [1, 2])
def test_fragments_stay_in_their_iteration_where_there_is_no_next_stage(outer):
    kernel = passed(nested(outer=outer))
    steady = kernel.body[-1]
    across = [one for one in steady.body if isinstance(one, For)][-1].extent == as_expr(3)
    assert across == (outer > 1)


def test_shared_memory_filled_inside_has_separate_groups():
    inner = loop(load("other", STEP), use("other"), stages=2, extent=4, var=STEP)
    steady = passed(loop(load(), inner)).body[-1]
    assert [type(one) for one in steady.body] == [SyncPoint, Exec, Commit, Comment, For, For]
    assert steady.body[-1].period == 2 and copies(passed(loop(load(), inner))) == {"tile": 3, "other": 2, "held": 1}


# ---------------------------------------------------------------------------------------------- spread


FILL = Var("turn", 0, 9)


def spread(iterations=10, steps=4, **fields):
    fill_loop = making.loop(FILL, as_expr(iterations), (load(k=K + FILL),))
    return loop(fill_loop, making.loop(STEP, as_expr(steps), (use(),)), interleave=True, **fields)


@pytest.mark.parametrize(("iterations", "steps"), [(10, 4), (8, 4), (3, 4), (4, 1)])
def test_shares_of_a_copy_are_issued_in_the_steps(iterations, steps):
    """Every iteration of the copy is in exactly one step, and the group is committed after the last."""
    steady = passed(spread(iterations, steps)).body[-1]
    wish, inner, commit = steady.body
    assert (type(wish), commit, tuple(steady.asks)) == (SyncPoint, making.commit(), ())
    share = inner.body[0]
    issued = []
    for step in range(steps):
        values = [{"step": step, "k": 0, "thread": 0}]
        statement = share
        if isinstance(share, For):
            (statement,) = share.body
            values = [{**values[0], share.var.name: iteration} for iteration in range(int(str(share.extent)))]
        for value in values:
            if statement.active.evaluate(value):
                issued.append(statement.accesses[0].base[1].evaluate(value) // 4 - 2)
    assert issued == list(range(iterations))
    assert isinstance(share, For) == (-(-iterations // steps) > 1)


def test_there_must_be_steps_to_spread_over():
    with pytest.raises(DecompositionError, match="no inner loop"):
        passed(loop(load(), use(), interleave=True))


def test_nothing_is_spread_where_nothing_is_loaded():
    steady = passed(making.with_asks(attrs.evolve(spread(), extent=as_expr(2)), stages=4)).body[-1]
    assert making.commit() not in tuple(ir.statements((steady,))) and not steady.asks
    assert all(one.active != FALSE for one, _ in ir.execs((steady,)))
