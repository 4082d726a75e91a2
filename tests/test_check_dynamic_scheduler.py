"""Tiles that blocks take from a counter, by hand: each rule with a kernel that keeps it and one close by that does not."""

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


def acquire(side, turn=ITERATION, ring="tiles"):
    return making.acquire(ring, side, as_expr(turn))


def release(side, turn=ITERATION, ring="tiles"):
    return making.release(ring, side, as_expr(turn))


def take(takes, tiles=TILES, number=ITERATION, var=TILE):
    return making.claim_tile(var, as_expr(tiles), "tiles", as_expr(number), takes=takes)


def leave(tiles=TILES, var=TILE):
    return making.exit_if_done(var, as_expr(tiles))


def turn(takes, tiles=TILES):
    """What a role does in a turn: five statements, the last of which is its work."""
    waits, arrives = (StageState.EMPTY, StageState.FULL) if takes else (StageState.FULL, StageState.EMPTY)
    return [acquire(waits), take(takes, tiles), release(arrives), leave(tiles), WORK]


def over(body, **options):
    return making.loop(ITERATION, as_expr(12), tuple(body), **options)


def said(producer=None, consumer=None, *, grid=3, elected=True, others=(), behind=(), symbols=(), counter=COUNTER, tiles=TILES):
    """What the check says where these are the programs of the two roles."""
    producer = (over(turn(True, tiles)),) if producer is None else tuple(producer)
    consumer = (over(turn(False, tiles)),) if consumer is None else tuple(consumer)
    roles = making.roles((making.role("consumers", 0, 128, consumer), making.role("producer", 128, 32, producer, elected=elected), *others))
    program = kernel(roles, *behind, threads=160, grid=grid, workers=128, counter=counter, symbols=symbols)
    found = check_dynamic_scheduler(AccessTrace(program))
    assert all((one.kind, one.severity, one.buffer) == ("race", "error", None) for one in found)
    return [one.message for one in found]


def changed(takes, edit, **options):
    """What is said where the turn of one role is edited: its five statements are given, and those that it has are returned."""
    loop = (over(edit(*turn(takes))),)
    return said(loop, **options) if takes else said(None, loop, **options)


def test_a_right_kernel():
    assert said() == []
    assert said(grid=12) == [] == said(grid=1)


def test_a_kernel_without_a_counter_is_not_asked():
    assert said((WORK,), (WORK,), counter=None, grid=100) == []
    assert said((WORK,), (WORK,)) == ["0 statements claim tiles from the counter; exactly one statement, of one thread, must"]
    assert said(counter=None, grid=13) != [], "who takes tiles is asked, whether there is a counter or not"


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
def test_no_more_blocks_than_tiles(grid, tiles, right):
    found = said(grid=grid, tiles=tiles, symbols=(N, M))
    text = f"{as_expr(grid)} blocks may exceed the number of tiles, or roles count tiles differently: the counter does not return to zero"
    assert found == ([] if right else [text])


def test_a_named_number_of_tiles_is_its_value():
    many = Var("many", 1, 1 << 20)
    name = making.let(many, N * 1)
    assert said((name, over(turn(True, many))), (over(turn(False, many)),), grid=minimum(N, as_expr(132)), symbols=(N,)) == []
    name = making.let(many, (N + 1) // 2)
    assert said((name, over(turn(True, many))), (over(turn(False, many)),), grid=minimum(N, as_expr(132)), symbols=(N,)) != []


def test_roles_count_alike():
    text = "3 blocks may exceed the number of tiles, or roles count tiles differently: the counter does not return to zero"
    assert said((over(turn(True, 13)),)) == [text] == said((over(turn(True, 11)),))
    assert said((over(turn(True, 13)),), (over(turn(False, 13)),)) == []


def test_one_thread_takes():
    def text(count):
        return [f"{count} statements claim tiles from the counter; exactly one statement, of one thread, must"]

    assert said(elected=False) == text(1), "all threads of a role"
    assert said(None, (over(turn(True)),)) == text(2)
    assert said((over(turn(False)),)) == text(0)
    assert said((over(turn(True)), over(turn(True)))) == text(2), "twice in one role"
    assert said(others=(making.role("third", 160, 32, (over(turn(False)),)),)) == []
    assert said((over(turn(False)),), behind=(over(turn(True)),)) == text(1), "in no role"


def test_a_tile_is_of_its_turn():
    def text(number):
        return f"tiles: tile tile uses fill {number} in loop turn, whose iterations count from 0"

    for takes in (True, False):
        (found,) = changed(takes, lambda wait, one, give, end, work: (wait, attrs.evolve(one, fill_index=as_expr(0)), give, end, work))[:1]
        assert found == text("0")
        for options in ({"first": 1}, {"step": 2}):
            loop = (over(turn(takes), **options),)
            found = said(loop) if takes else said(None, loop)
            assert found == [text("turn")], options
    later = ITERATION + 1
    body = [acquire(StageState.EMPTY, later), take(True, number=later), release(StageState.FULL, later), leave(), WORK]
    assert said((over(body),)) == [text("turn + 1")]


def test_a_tile_is_taken_in_a_loop_and_directly():
    loose = turn(True)
    assert said(loose) == ["tiles: a tile is claimed outside of any loop"]
    inside = making.if_any_lane("r", (take(True),))
    body = [acquire(StageState.EMPTY), inside, release(StageState.FULL), leave(), WORK]
    assert said((over(body),)) == [
        "loop turn exits on a tile that it does not claim",
        "tiles: tile tile is not directly in loop turn",
    ]
    around = making.loop(Var("outer", 0, 3), as_expr(1), (over(turn(True)),))
    assert said((around,)) == [], "of the loops around the inner one counts"
    assert said((making.loop(ITERATION, as_expr(12), (over(turn(True), first=1),)),)) != []


@pytest.mark.parametrize("takes", [True, False])
def test_a_turn_is_waited_for(takes):
    side, verb, other = (StageState.EMPTY, "stored", StageState.FULL) if takes else (StageState.FULL, "read", StageState.EMPTY)
    text = [f"tiles: the tile index of fill turn is {verb} before the fill is {side.value}"]
    assert changed(takes, lambda wait, *rest: rest) == text
    assert changed(takes, lambda wait, one, *rest: (one, wait, *rest))[:1] == text, "behind it is too late"
    assert changed(takes, lambda wait, *rest: (acquire(other), *rest)) == text
    assert changed(takes, lambda wait, *rest: (acquire(side, ITERATION + 1), *rest)) == text
    assert changed(takes, lambda wait, *rest: (acquire(side, ring="ring"), *rest)) == text
    assert changed(takes, lambda wait, *rest: (release(side), *rest)) == text
    assert changed(takes, lambda wait, *rest: (wait, WORK, making.comment("text"), *rest)) == []


@pytest.mark.parametrize("takes", [True, False])
def test_a_number_is_given_on_at_once(takes):
    side, other = (StageState.FULL, StageState.EMPTY) if takes else (StageState.EMPTY, StageState.FULL)
    text = ["tiles: fill turn is not released directly after its tile index"]
    assert changed(takes, lambda wait, one, give, end, work: (wait, one, end, work)) == text
    assert changed(takes, lambda wait, one, give, end, work: (wait, one, end, give, work)) == text
    assert changed(takes, lambda wait, one, give, end, work: (wait, give, one, end, work)) == text
    assert changed(takes, lambda wait, one, give, end, work: (wait, give, one, give, end, work)) == text, "not before it"
    assert changed(takes, lambda wait, one, give, end, work: (wait, one, release(other), end, work)) == text
    assert changed(takes, lambda wait, one, give, end, work: (wait, one, release(side, ITERATION + 1), end, work)) == text
    assert changed(takes, lambda wait, one, give, end, work: (wait, one, release(side, ring="ring"), end, work)) == text
    assert changed(takes, lambda wait, one, give, end, work: (wait, one, making.comment("text"), give, end, work)) == []
    assert changed(takes, lambda wait, one, give, end, work: (wait, one))[0] == text[0]


@pytest.mark.parametrize("takes", [True, False])
def test_the_loop_ends_before_a_number_is_used(takes):
    text = ["loop turn: tile, which may not be a valid tile, is used"]
    assert changed(takes, lambda wait, one, give, end, work: (wait, one, give, work)) == text
    assert changed(takes, lambda wait, one, give, end, work: (wait, one, give, work, end)) == text
    assert changed(takes, lambda wait, one, give, end, work: (wait, end, one, give, work)) == text
    assert changed(takes, lambda wait, one, give, end, work: (wait, one, give, leave(13), work)) == text
    assert changed(takes, lambda wait, one, give, end, work: (wait, one, give, leave(var=Var("other", 0, 63)), work)) == text
    assert changed(takes, lambda wait, one, give, end, work: (wait, one, give, making.comment("text"), end, work)) == []
    assert changed(takes, lambda wait, one, give, end, work: (wait, one, give, release(StageState.FULL, ring="ring"), end, work)) == []
    assert changed(takes, lambda wait, one, give, end, work: (wait, one, give, leave(13), end)) == []
    assert changed(takes, lambda wait, one, give, end, work: (wait, one, give, end)) == []


def test_no_loop_ends_by_a_tile_of_another():
    text = ["loop j exits on a tile that it does not claim"]
    inner = making.loop(Var("j", 0, 3), as_expr(4), (leave(), WORK))
    assert said((over([*turn(True)[:4], inner]),)) == text
    quiet = attrs.evolve(inner, body=(WORK,))
    assert said((over([*turn(True)[:4], quiet]),)) == []
    assert said(behind=(inner,)) == text


def test_each_fault_is_told_once():
    body = [take(True), release(StageState.FULL), leave(), WORK]
    found = said((over(body), over(body)))
    assert len(found) == len(set(found)) == 2
