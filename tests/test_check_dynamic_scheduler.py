"""The dynamic tile scheduler in hand-made kernels: each rule with a kernel that follows it and a similar one that does not."""

import attrs
import making
import pytest
from touching import T, kernel, writes

from fireiron.check import AccessTrace, check_dynamic_scheduler
from fireiron.ir import StageState
from fireiron.values.expr import Var, as_expr, minimum

pytestmark = pytest.mark.sampled(1)

ITERATION, TILE = Var("turn", 0, 63), Var("tile", 0, 63)
N = Var("N", 1, 1 << 20, 1, True)
M = Var("M", 1, 1 << 20, 1, True)
TILES = as_expr(12)
COUNTER = making.counter("counter")
WORK = writes(T)


def acquire(side, fill=ITERATION, ring="tiles"):
    return making.acquire(ring, side, as_expr(fill))


def release(side, fill=ITERATION, ring="tiles"):
    return making.release(ring, side, as_expr(fill))


def claim_tile(takes, tiles=TILES, number=ITERATION, var=TILE):
    return making.claim_tile(var, as_expr(tiles), "tiles", as_expr(number), takes=takes)


def exit_loop(tiles=TILES, var=TILE):
    return making.exit_if_done(var, as_expr(tiles))


def iteration_of(takes, tiles=TILES):
    """The five statements of an iteration of a role; the last one is its work."""
    waits, arrives = (StageState.EMPTY, StageState.FULL) if takes else (StageState.FULL, StageState.EMPTY)
    return [acquire(waits), claim_tile(takes, tiles), release(arrives), exit_loop(tiles), WORK]


def over(body, **options):
    return making.loop(ITERATION, as_expr(12), tuple(body), **options)


def messages_of_roles(producer=None, consumer=None, *, grid=3, elected=True, others=(), after=(), symbols=(), counter=COUNTER, tiles=TILES):
    """The messages of the check for these programs of the two roles."""
    producer = (over(iteration_of(True, tiles)),) if producer is None else tuple(producer)
    consumer = (over(iteration_of(False, tiles)),) if consumer is None else tuple(consumer)
    roles = making.roles((making.role("consumers", 0, 128, consumer), making.role("producer", 128, 32, producer, elected=elected), *others))
    program = kernel(roles, *after, threads=160, grid=grid, workers=128, counter=counter, symbols=symbols)
    findings = check_dynamic_scheduler(AccessTrace(program))
    assert all((finding.kind, finding.severity, finding.buffer) == ("race", "error", None) for finding in findings)
    return [finding.message for finding in findings]


def messages_with_edit(takes, edit, **options):
    """The messages after an edit of one role's iteration: `edit` gets its five statements and returns the new ones."""
    loop = (over(edit(*iteration_of(takes))),)
    return messages_of_roles(loop, **options) if takes else messages_of_roles(None, loop, **options)


def test_correct_kernels():
    assert messages_of_roles() == []
    assert messages_of_roles(grid=12) == [] == messages_of_roles(grid=1)


def test_kernels_without_a_counter():
    assert messages_of_roles((WORK,), (WORK,), counter=None, grid=100) == []
    assert messages_of_roles((WORK,), (WORK,)) == ["0 statements claim tiles from the counter; exactly one statement, of one thread, must"]
    assert messages_of_roles(counter=None, grid=13) != [], "claims are checked even without a counter"


@pytest.mark.parametrize(
    ("grid", "tiles", "right"),
    [
        (12, 12, True),
        (13, 12, False),
        (minimum(N, as_expr(132)), N, True),
        (minimum(as_expr(132), N), N, True),
        (minimum(N, as_expr(132)), N + 1, True),
        (minimum(N + 1, as_expr(132)), N, False),
        (minimum(N + 1, as_expr(132)), N + 1, True),
        (minimum(minimum(N, M), as_expr(132)), M, True),
        (minimum(minimum(N, M), as_expr(132)), M - 1, False),
        (minimum(N, as_expr(132)), as_expr(131), False),
        (minimum(N, as_expr(132)), as_expr(132), True),
        (N, N, True),
        (N, N + 1, True),
        (N + 1, N, False),
        (N, N // 2, False),
    ],
    ids=str,
)
def test_at_most_one_block_per_tile(grid, tiles, right):
    findings = messages_of_roles(grid=grid, tiles=tiles, symbols=(N, M))
    text = f"{as_expr(grid)} blocks may exceed the number of tiles, or roles count tiles differently: the counter does not return to zero"
    assert findings == ([] if right else [text])


def test_a_named_number_of_tiles_is_its_value():
    many = Var("many", 1, 1 << 20)
    name = making.let(many, N * 1)
    assert (
        messages_of_roles(
            (name, over(iteration_of(True, many))), (over(iteration_of(False, many)),), grid=minimum(N, as_expr(132)), symbols=(N,)
        )
        == []
    )
    name = making.let(many, (N + 1) // 2)
    assert (
        messages_of_roles(
            (name, over(iteration_of(True, many))), (over(iteration_of(False, many)),), grid=minimum(N, as_expr(132)), symbols=(N,)
        )
        != []
    )


def test_roles_have_equal_tile_counts():
    text = "3 blocks may exceed the number of tiles, or roles count tiles differently: the counter does not return to zero"
    assert messages_of_roles((over(iteration_of(True, 13)),)) == [text] == messages_of_roles((over(iteration_of(True, 11)),))
    assert messages_of_roles((over(iteration_of(True, 13)),), (over(iteration_of(False, 13)),)) == []


def test_exactly_one_thread_claims_tiles():
    def text(count):
        return [f"{count} statements claim tiles from the counter; exactly one statement, of one thread, must"]

    assert messages_of_roles(elected=False) == text(1), "all threads of a role"
    assert messages_of_roles(None, (over(iteration_of(True)),)) == text(2)
    assert messages_of_roles((over(iteration_of(False)),)) == text(0)
    assert messages_of_roles((over(iteration_of(True)), over(iteration_of(True)))) == text(2), "twice in one role"
    assert messages_of_roles(others=(making.role("third", 160, 32, (over(iteration_of(False)),)),)) == []
    assert messages_of_roles((over(iteration_of(False)),), after=(over(iteration_of(True)),)) == text(1), "in no role"


def test_a_tile_uses_the_fill_of_its_iteration():
    def text(number):
        return f"tiles: tile tile uses fill {number} in loop turn, whose iterations count from 0"

    for takes in (True, False):
        (message,) = messages_with_edit(
            takes, lambda wait, claim, give, end, work: (wait, attrs.evolve(claim, fill_index=as_expr(0)), give, end, work)
        )[:1]
        assert message == text("0")
        for options in ({"first": 1}, {"step": 2}):
            loop = (over(iteration_of(takes), **options),)
            message = messages_of_roles(loop) if takes else messages_of_roles(None, loop)
            assert message == [text("turn")], options
    later = ITERATION + 1
    body = [acquire(StageState.EMPTY, later), claim_tile(True, number=later), release(StageState.FULL, later), exit_loop(), WORK]
    assert messages_of_roles((over(body),)) == [text("turn + 1")]


def test_tiles_are_claimed_directly_in_a_loop():
    loose = iteration_of(True)
    assert messages_of_roles(loose) == ["tiles: a tile is claimed outside of any loop"]
    inside = making.if_any_lane("r", (claim_tile(True),))
    body = [acquire(StageState.EMPTY), inside, release(StageState.FULL), exit_loop(), WORK]
    assert messages_of_roles((over(body),)) == [
        "loop turn exits on a tile that it does not claim",
        "tiles: tile tile is not directly in loop turn",
    ]
    around = making.loop(Var("outer", 0, 3), as_expr(1), (over(iteration_of(True)),))
    assert messages_of_roles((around,)) == [], "the innermost loop counts"
    assert messages_of_roles((making.loop(ITERATION, as_expr(12), (over(iteration_of(True), first=1),)),)) != []


@pytest.mark.parametrize("takes", [True, False])
def test_a_fill_is_acquired_before_its_tile_index(takes):
    side, verb, other = (StageState.EMPTY, "stored", StageState.FULL) if takes else (StageState.FULL, "read", StageState.EMPTY)
    text = [f"tiles: the tile index of fill turn is {verb} before the fill is {side.value}"]
    assert messages_with_edit(takes, lambda wait, *rest: rest) == text
    assert messages_with_edit(takes, lambda wait, claim, *rest: (claim, wait, *rest))[:1] == text, "after it is too late"
    assert messages_with_edit(takes, lambda wait, *rest: (acquire(other), *rest)) == text
    assert messages_with_edit(takes, lambda wait, *rest: (acquire(side, ITERATION + 1), *rest)) == text
    assert messages_with_edit(takes, lambda wait, *rest: (acquire(side, ring="ring"), *rest)) == text
    assert messages_with_edit(takes, lambda wait, *rest: (release(side), *rest)) == text
    assert messages_with_edit(takes, lambda wait, *rest: (wait, WORK, making.comment("text"), *rest)) == []


@pytest.mark.parametrize("takes", [True, False])
def test_a_fill_is_released_directly_after_its_tile_index(takes):
    side, other = (StageState.FULL, StageState.EMPTY) if takes else (StageState.EMPTY, StageState.FULL)
    text = ["tiles: fill turn is not released directly after its tile index"]
    assert messages_with_edit(takes, lambda wait, claim, give, end, work: (wait, claim, end, work)) == text
    assert messages_with_edit(takes, lambda wait, claim, give, end, work: (wait, claim, end, give, work)) == text
    assert messages_with_edit(takes, lambda wait, claim, give, end, work: (wait, give, claim, end, work)) == text
    assert messages_with_edit(takes, lambda wait, claim, give, end, work: (wait, give, claim, give, end, work)) == text, "not before it"
    assert messages_with_edit(takes, lambda wait, claim, give, end, work: (wait, claim, release(other), end, work)) == text
    assert messages_with_edit(takes, lambda wait, claim, give, end, work: (wait, claim, release(side, ITERATION + 1), end, work)) == text
    assert messages_with_edit(takes, lambda wait, claim, give, end, work: (wait, claim, release(side, ring="ring"), end, work)) == text
    assert messages_with_edit(takes, lambda wait, claim, give, end, work: (wait, claim, making.comment("text"), give, end, work)) == []
    assert messages_with_edit(takes, lambda wait, claim, give, end, work: (wait, claim))[0] == text[0]


@pytest.mark.parametrize("takes", [True, False])
def test_the_exit_is_before_the_use_of_a_tile(takes):
    text = ["loop turn: tile, which may not be a valid tile, is used"]
    assert messages_with_edit(takes, lambda wait, claim, give, end, work: (wait, claim, give, work)) == text
    assert messages_with_edit(takes, lambda wait, claim, give, end, work: (wait, claim, give, work, end)) == text
    assert messages_with_edit(takes, lambda wait, claim, give, end, work: (wait, end, claim, give, work)) == text
    assert messages_with_edit(takes, lambda wait, claim, give, end, work: (wait, claim, give, exit_loop(13), work)) == text
    assert (
        messages_with_edit(takes, lambda wait, claim, give, end, work: (wait, claim, give, exit_loop(var=Var("other", 0, 63)), work))
        == text
    )
    assert messages_with_edit(takes, lambda wait, claim, give, end, work: (wait, claim, give, making.comment("text"), end, work)) == []
    assert (
        messages_with_edit(
            takes, lambda wait, claim, give, end, work: (wait, claim, give, release(StageState.FULL, ring="ring"), end, work)
        )
        == []
    )
    assert messages_with_edit(takes, lambda wait, claim, give, end, work: (wait, claim, give, exit_loop(13), end)) == []
    assert messages_with_edit(takes, lambda wait, claim, give, end, work: (wait, claim, give, end)) == []


def test_loops_exit_on_their_own_tiles_only():
    text = ["loop j exits on a tile that it does not claim"]
    inner = making.loop(Var("j", 0, 3), as_expr(4), (exit_loop(), WORK))
    assert messages_of_roles((over([*iteration_of(True)[:4], inner]),)) == text
    quiet = attrs.evolve(inner, body=(WORK,))
    assert messages_of_roles((over([*iteration_of(True)[:4], quiet]),)) == []
    assert messages_of_roles(after=(inner,)) == text


def test_each_fault_is_reported_once():
    body = [claim_tile(True), release(StageState.FULL), exit_loop(), WORK]
    findings = messages_of_roles((over(body), over(body)))
    assert len(findings) == len(set(findings)) == 2
