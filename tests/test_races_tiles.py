"""Tiles whose loops differ in length: which tiles decide about all, and that a fault at any turn of a block is found."""

import itertools
import random

import attrs
import making
import pytest
from handrings import (
    BLOCK,
    TAKEN,
    TILE,
    TURN,
    J,
    consume,
    emptied,
    full,
    grid_of,
    messages_of,
    over_tiles,
    produce,
    ring,
    ringed,
    staged,
)
from touching import BLOCK_BARRIER, WARP_BARRIER, Engine, T, copies, kernel, loop, racy_by_hand, reads, writes

from fireiron import *
from fireiron import ir
from fireiron.check import AccessTrace, check_races
from fireiron.check.races.loops import LoopCourse
from fireiron.check.races.tiles import BLOCK_TILES, SEQUENCE_PART, TILE_LENGTH, VaryingTiles, opened, tile_lengths, varying_tiles
from fireiron.ir.mechanisms.tma import TMA_LOADS
from fireiron.ir.mechanisms.tma_store import TMA_STORES
from fireiron.ir.mechanisms.wgmma import WGMMA_GROUPS
from fireiron.values.expr import ONE, Var, all_of, any_of, as_expr, constant, less, minimum

pytestmark = pytest.mark.sampled(1)

N = Var("N", 1, 1 << 20, 1, True)
L = Var("L", 0, 1 << 20, 1, True)
I2, I3 = Var("i2", 0, 63), Var("i3", 0, 63)

# ---------------------------------------------------------------------------------------------- pieces of a sequence


@pytest.mark.parametrize("count, most", list(itertools.product(range(1, 9), range(1, 11))))
def test_pieces_have_all_neighbours_of_a_sequence(count, most):
    one = VaryingTiles(TILE, list(range(10, 10 + count)), most)
    pieces = [list(one.part(number)) for number in range(one.part_count)]
    assert all(pieces) and all(len(piece) <= most for piece in pieces)
    together = {pair for piece in pieces for pair in itertools.pairwise(piece)}
    if most > 1:
        assert together == set(itertools.pairwise(one.sequence)), "each stands behind the one before it"
        assert {tile for piece in pieces for tile in piece} == set(one.sequence)
        assert all(len(piece) == most for piece in pieces[:-1]), "no more pieces than it takes"
    else:
        assert {tile for piece in pieces for tile in piece} >= set(one.sequence[:-1]), "the last one of a sequence is its first"
        assert len(pieces) == max(count - 1, 1)


@pytest.mark.parametrize("most, more", list(itertools.product((1, 3, 5, 9), (0, 1, 2, 4, 99))))
def test_turns_beyond_a_piece(most, more):
    """As many as are asked for, and no more than a block takes; there the sequence begins again."""
    one = VaryingTiles(TILE, [7, 8, 9, 7], most, extra_iterations=more)
    for number in range(one.part_count):
        piece, turns = list(one.part(number)), one.iterations(number)
        assert turns == min(len(piece) + more, most)
        prior_iterations = [one.tile_at(number, turn) for turn in range(len(piece) + 11)]
        assert prior_iterations[: len(piece)] == piece and prior_iterations[len(piece) :] == ([7, 8, 9, 7] * 3)[:11]


def test_what_a_sequence_is_of():
    assert TILE_LENGTH.low == BLOCK_TILES.low == SEQUENCE_PART.low == 0, "a tile may have no turn"
    assert VaryingTiles(TILE, [0], 1).varied_by == TILE and VaryingTiles(TILE, [0], 1).iterations(0) == 1
    assert VaryingTiles(TILE, [0], 1, L + TILE).varied_by == TILE_LENGTH


def test_what_stands_for_the_turns_of_a_tile():
    """Their number, and whether there is one, where it is known only at run time; the tiles of a block where that is."""
    length = minimum(L, TILE + 1)
    never = VaryingTiles(TILE, [0], 4)
    assert tile_lengths([]) == {} and tile_lengths([never]) == {}
    assert tile_lengths([attrs.evolve(never, block_tiles=N // 3)]) == {N // 3: BLOCK_TILES}
    assert tile_lengths([attrs.evolve(never, length=length)]) == {length: TILE_LENGTH, minimum(length, ONE): minimum(TILE_LENGTH, ONE)}
    assert tile_lengths([attrs.evolve(never, length=length + 1)]) == {length + 1: TILE_LENGTH}, "which there always is"
    both = tile_lengths([attrs.evolve(never, length=L), attrs.evolve(never, length=L + TILE, block_tiles=N)])
    assert both.keys() >= {L, L + TILE, N}


def test_names_are_opened_but_for_those_that_are_kept():
    first, second, third = (Var(name, 0, 99) for name in ("first", "second", "third"))
    body = (making.let(first, T + 1), making.let(second, first * 2), making.let(third, second + first))
    access_trace = AccessTrace(kernel(*body, writes(T)))
    assert opened(access_trace, third, frozenset()) == T * 3 + 3
    assert opened(access_trace, third, frozenset({"first"})) == first * 3
    assert opened(access_trace, third, frozenset({"second"})) == second + T + 1
    assert opened(access_trace, T + 5, frozenset({"second"})) == T + 5


# ---------------------------------------------------------------------------------------------- sequences


STILL = LoopCourse(1, False, 4, True)


def causal(tiles, blocks, length, stages=2, increment=None, consumer=(), producer=(), inner=(), **options):
    """A block that stays, and whose tiles have turns of a ring: as many as each tile says."""
    increment, number = length if increment is None else increment, TAKEN + J
    how = {"prior_iterations": TAKEN, "increment": increment}
    consumers = over_tiles(tiles, blocks, *consumer, loop(length, *consume(number, stages), *inner, var=J), **how)
    producers = over_tiles(tiles, blocks, *producer, loop(length, *produce(number, stages), var=J), **how)
    options.setdefault("grid", grid_of(tiles, blocks))
    return ringed([consumers], [producers], stages=stages, **options)


def chosen(program, course=STILL):
    """What decides about the loops over tiles of a kernel."""
    return list(varying_tiles(AccessTrace(program), lambda _: course).values())


@pytest.mark.parametrize("stages", [1, 2, 3])
@pytest.mark.parametrize(
    "length, tiles", [(TILE + 1, 40), (TILE, 40), (TILE // 2, 31), (TILE % 3, 9), (7 - TILE, 8), (as_expr(2) + TILE * 5, 9)]
)
def test_each_length_stands_behind_each(stages, length, tiles):
    """Lengths up to a turn more than two rounds are told apart, longer ones by where in two rounds they end."""
    first, second = chosen(causal(tiles, 3, length, stages))
    assert list(first.sequence) == list(second.sequence) and first.tile == TILE and first.length is None and first.varied_by == TILE
    lengths = [length.evaluate({"tile": tile}) for tile in first.sequence]
    assert all(0 <= tile < tiles for tile in first.sequence)

    def kind(turns):
        return turns if turns <= 2 * stages + 1 else 2 * stages + 2 + (turns - 2) % (2 * stages)

    every = [length.evaluate({"tile": tile}) for tile in range(tiles)]
    kinds = set(map(kind, every))
    pairs = set(itertools.pairwise(map(kind, lengths)))
    assert set(map(kind, lengths)) == kinds and pairs >= set(itertools.product(kinds, repeat=2))
    short = [turns for turns in sorted(kinds) if turns <= stages]
    begin = [turns for turns in short for _ in range(2 * stages + 1)]
    assert lengths[: len(begin)] == begin, "each short one as often as two rounds take, and once more"
    assert len(lengths) == len(begin) + len(kinds) ** 2 + 1 and kind(lengths[-1]) == kind(lengths[len(begin)])
    assert max(lengths) == max(min(one for one in every if kind(one) == each) for each in kinds), "the shortest of each kind"


def test_tiles_of_one_length_are_no_matter():
    assert chosen(causal(8, 3, as_expr(4))) == []
    assert chosen(ringed([loop(4, *consume(J), var=J)], [loop(4, *produce(J), var=J)])) == []
    assert chosen(causal(8, 3, TILE + 1, increment=ONE)) == [], "nobody counts"
    assert chosen(causal(8, 3, TILE + 1, increment=ONE, consumer=(BLOCK_BARRIER,), producer=(BLOCK_BARRIER,))) == [], (
        "a barrier parts no roles"
    )
    pair = causal(8, 3, TILE + 1), causal(8, 3, TILE + 1, increment=ONE)
    (mine,), (theirs,) = ([one for one in each.body if isinstance(one, ir.Roles)] for each in pair)
    one_counts = attrs.evolve(pair[0], body=(making.roles((mine.roles[0], theirs.roles[1])),))
    assert len(chosen(one_counts)) == 2, "what one role counts the other takes too"
    assert len(chosen(causal(8, 3, TILE + 1))) == 2


def test_how_many_tiles_a_block_takes():
    for tiles, blocks, most in ((7, 3, 3), (6, 3, 2), (2, 3, 1), (9, 1, 9)):
        one, _ = chosen(causal(tiles, blocks, TILE + 1))
        assert one.max_tiles == most and one.part_count >= 1
    (one, _) = chosen(causal(6, 3, TILE + 1))
    assert one.block_tiles == as_expr(2) and one.extra_iterations == 2, "all take two"
    (one, _) = chosen(causal(7, 3, TILE + 1))
    assert constant(one.block_tiles) is None and one.extra_iterations == 0, "some take more"


@pytest.mark.parametrize("high", [2, 6, 1 << 20])
@pytest.mark.parametrize("stages", [1, 2])
def test_lengths_that_are_known_at_run_time(high, stages):
    """The sequence is one of all lengths that there may be."""
    size = Var("L", 0, high, 1, True)
    length = minimum(size, TILE + 1)
    one, _ = chosen(causal(60, 3, length, stages, symbols=(size,)))
    assert one.length == length and one.varied_by == TILE_LENGTH
    longest = min(4 * stages + 1, high, 60)
    assert set(one.sequence) == set(range(longest + 1)) and set(itertools.pairwise(one.sequence)) >= set(
        itertools.product(range(longest + 1), repeat=2)
    )
    more, _ = chosen(causal(60, 3, length + 3, stages, symbols=(size,)))
    assert set(more.sequence) == set(range(3, max(min(high + 3, 63, 4 * stages + 1), 3) + 1))


def test_numbers_of_tiles_that_are_known_at_run_time():
    one, _ = chosen(causal(N, 3, TILE + 1, symbols=(N,), grid=minimum(N, as_expr(3))))
    assert one.length == TILE + 1 and one.sequence and min(one.sequence) == 1
    assert one.block_tiles == N // 3 + less(BLOCK, N % 3) and one.extra_iterations == 0


def test_lengths_that_one_number_does_not_say():
    """A second loop whose length is another one: nothing is chosen; a turn less is said by it."""

    def program(other):
        extra = (loop(other, reads(T, name="t"), WARP_BARRIER, var=I2),)
        return causal(9, 3, TILE + 2, consumer=extra, buffers=(staged(2), attrs.evolve(staged(1, "t"), offset=4096)))

    assert len(chosen(program(TILE + 2))) == 2 and len(chosen(program(TILE + 1))) == 2 and len(chosen(program(as_expr(3)))) == 2
    assert len(chosen(program(TILE // 2))) == 1, "of the producer alone"


# ---------------------------------------------------------------------------------------------- rings


@pytest.mark.parametrize(
    "stages, length, tiles, blocks",
    [
        (1, TILE + 1, 7, 3),
        (2, TILE, 6, 3),
        (3, TILE // 2, 24, 2),
        (2, TILE % 3, 24, 2),
        (1, minimum(L, TILE + 1), 7, 3),
        (2, minimum(L, TILE + 1), 24, 2),
        (1, minimum(L, TILE + 1) + 1, 6, 3),
        (2, minimum(L, TILE + 1) + 1, 7, 3),
    ],
)
def test_tiles_with_turns_of_a_ring(stages, length, tiles, blocks):
    """Right as they are; and not where the loop counts a turn too many or too few."""
    symbols = (L,) if L in length.variables() else ()
    assert messages_of(causal(tiles, blocks, length, stages, symbols=symbols)) == []
    assert messages_of(causal(tiles, blocks, length, stages, increment=length + 1, symbols=symbols)) != []


def test_a_number_of_tiles_that_is_known_at_run_time():
    options = {"symbols": (N,), "grid": minimum(N, as_expr(3))}
    assert messages_of(causal(N, 3, TILE % 5 + 1, **options)) == []
    assert messages_of(causal(N, 3, TILE % 5 + 1, increment=TILE % 5 + 2, **options)) != []


def one_turn(turn, program, which):
    """The kernel with the statements that `which` says left out at one turn of a block."""

    def change(one):
        return (making.loop(I3, less(TURN, turn) + less(as_expr(turn), TURN), (one,)),) if which(one) else (one,)

    return attrs.evolve(program, body=ir.rewritten(program.body, change))


@pytest.mark.parametrize("blocks", [1, 2])
@pytest.mark.parametrize("turn", [0, 1, 18, 23])
def test_a_fault_at_one_turn_of_a_block_that_takes_as_many_as_all(blocks, turn):
    """Also at the last one, far behind what the sequence has."""
    tiles = 24 * blocks
    program = causal(tiles, blocks, TILE % 2 + 1)
    one, _ = chosen(program)
    assert one.max_tiles == 24 and one.extra_iterations == 24
    assert messages_of(program) == []
    assert messages_of(one_turn(turn, program, lambda one: isinstance(one, ir.Release) and one.state is ir.StageState.EMPTY)) != []
    assert messages_of(one_turn(turn, program, lambda one: isinstance(one, ir.Acquire) and one.state is ir.StageState.FULL)) != []
    beyond = one_turn(24, program, lambda one: isinstance(one, ir.Release) and one.state is ir.StageState.EMPTY)
    assert messages_of(beyond) == [], "there is no such turn"


# ---------------------------------------------------------------------------------------------- tiles from a counter


def fetched(tiles, blocks, length, stages=2, at_turn=None, behind=None, increment=None):
    """Blocks that take tiles from a counter, which a producer hands on; a fault of the consumers at one turn."""
    name, number = "tile_ring", TAKEN + J
    release = emptied(TURN, name)
    leave = making.exit_if_done(TILE, as_expr(tiles))
    how = {"prior_iterations": TAKEN, "increment": length if increment is None else increment}
    turns = loop(length, *consume(number, stages), var=J)
    if at_turn is not None:  # a stage is not given back there
        acquire, read, barrier, give_back = consume(number, stages)
        turns = loop(
            length,
            acquire,
            read,
            barrier,
            attrs.evolve(give_back, active=all_of((give_back.active, any_of((less(TURN, at_turn), less(as_expr(at_turn), TURN)))))),
            var=J,
        )
    extra = () if behind is None else behind
    consumer = (
        full(TURN, name), making.claim_tile(TILE, as_expr(tiles), name, TURN), WARP_BARRIER, release, leave, turns, *extra
    )  # fmt: skip
    producer = (
        making.acquire(name, ir.StageState.EMPTY, TURN), making.claim_tile(TILE, as_expr(tiles), name, TURN, takes=True),
        making.release(name, ir.StageState.FULL, TURN), leave, loop(length, *produce(number, stages), var=J),
    )  # fmt: skip
    extent = as_expr(tiles) + 1
    rings = (ring(stages), making.ring(name, stages, (), bytes=0, consumers=4, tiles=True))
    roles = [[making.loop(TURN, extent, body, **how)] for body in (consumer, producer)]
    return ringed(*roles, rings=rings, stages=stages, grid=blocks)


@pytest.mark.parametrize("length", [TILE % 2 + 1, TILE // 3 + 1, TILE % 3])
def test_tiles_from_a_counter(length):
    program = fetched(12, 3, length)
    assert messages_of(program) == []
    assert messages_of(fetched(12, 3, length, increment=length + 1)) != []


def test_a_block_is_followed_some_turns_beyond_the_sequence():
    """As it is done at any turn, when no tile is left, so many turns decide as equal ones do."""
    for kept in (3, 6):
        one, other = chosen(fetched(40, 3, TILE % 2 + 1), attrs.evolve(STILL, kept=kept))
        assert one.extra_iterations == other.extra_iterations == kept and one.max_tiles == 41
        assert one.iterations(0) == len(one.part(0)) + kept
    one, _ = chosen(fetched(4, 3, TILE % 2 + 1))
    assert one.iterations(0) == 5


@pytest.mark.parametrize("turn", [0, 15, 18])
def test_a_fault_at_one_turn_of_a_block_that_takes_tiles_from_a_counter(turn):
    """One turn behind the sequence too."""
    program = fetched(40, 3, TILE % 2 + 1)
    last = len(chosen(program)[0].sequence)
    assert messages_of(program) == []
    at = min(turn, last)
    assert messages_of(fetched(40, 3, TILE % 2 + 1, at_turn=at)) != []


# ---------------------------------------------------------------------------------------------- without rings


def plain(tiles, blocks, *body, **options):
    """A block that stays, of threads that are all alike."""
    return kernel(over_tiles(tiles, blocks, *body), grid=grid_of(tiles, blocks), **options)


def parted(*body, tiles=24, blocks=3, course=STILL, **options):
    """The lengths that decide, or the tiles: None where a barrier parts no tile from the next."""
    found = chosen(plain(tiles, blocks, *body, **options), course)
    return list(found[0].sequence) if found else None


def turns(length, *body):
    return loop(length, *(body or (writes(T),)), var=J)


STEPS = turns(TILE + 1)
SHORT = LoopCourse(1, False, 1, True)
"""So that lengths up to 2 are told apart, and longer ones are alike."""


def test_each_length_of_a_tile_decides_where_barriers_part_tiles():
    """Two barriers, one on each side of the loop: each length alone. One barrier, or one inside: each two of them."""
    assert parted(STEPS, course=SHORT) is None
    assert parted(STEPS, BLOCK_BARRIER, course=SHORT) == [1, 2, 3, 1] == parted(BLOCK_BARRIER, STEPS, course=SHORT)
    assert parted(BLOCK_BARRIER, STEPS, BLOCK_BARRIER, course=SHORT) == [1, 2, 3, 1]
    neighbours = [1, 1, 2, 1, 3, 2, 2, 3, 3, 1]
    assert parted(STEPS, BLOCK_BARRIER, STEPS, course=SHORT) == neighbours
    assert parted(STEPS, BLOCK_BARRIER, STEPS, BLOCK_BARRIER, course=SHORT) == [1, 2, 3, 1], "the second parts them"
    assert parted(BLOCK_BARRIER, STEPS, writes(T), STEPS, course=SHORT) == [1, 2, 3, 1]
    assert parted(STEPS, WARP_BARRIER, course=SHORT) is None and parted(STEPS, loop(1, WARP_BARRIER), course=SHORT) is None
    for inside in (loop(2, BLOCK_BARRIER, var=I2), loop(1, loop(3, BLOCK_BARRIER, var=I3), var=I2)):
        assert parted(STEPS, inside, course=SHORT) == neighbours
    assert parted(STEPS, loop(0, BLOCK_BARRIER, var=I2), course=SHORT) is None, "which has no turn"
    assert parted(STEPS, loop(L, BLOCK_BARRIER, var=I2), course=SHORT, symbols=(L,)) is None, "which may have none"
    assert parted(STEPS, loop(L, loop(2, BLOCK_BARRIER, var=I3), var=I2), course=SHORT, symbols=(L,)) is None
    assert parted(STEPS, loop(L + 1, BLOCK_BARRIER, var=I2), course=SHORT, symbols=(L,)) == neighbours
    assert parted(turns(TILE + 1, writes(T), BLOCK_BARRIER), course=SHORT) == neighbours, "its length is 1 at least"
    assert parted(turns(TILE, writes(T), BLOCK_BARRIER), course=SHORT) is None


@pytest.mark.parametrize(
    "course, expected",
    [
        (LoopCourse(1, False, 1, True), [0, 1, 2, 3]),
        (LoopCourse(1, False, 4, True), [0, 1, 2, 3, 4, 5, 6]),
        (LoopCourse(2, False, 1, True), [0, 1, 2, 3, 4]),
        (LoopCourse(3, False, 2, True), [0, 1, 2, 3, 4, 5, 6]),
        (LoopCourse(3, True, 0, False), [0, 1, 2, 3, 4]),
        (LoopCourse(None, False, 1, True), None),
    ],
)
@pytest.mark.parametrize("size", [None, L, Var("L", 0, 2, 1, True), Var("L", 3, 1 << 20, 1, True), Var("L", 0, 1 << 20, 1, True) + 2])
def test_lengths_that_are_told_apart(course, expected, size):
    """As many as are followed of equal iterations and one more, and then those of a period; of lengths that there may be."""
    length = TILE if size is None else minimum(size, TILE) if size.high < 9 else TILE + size
    symbols = () if size is None else tuple(one for one in size.variables())
    found = parted(turns(length), BLOCK_BARRIER, tiles=60, course=course, symbols=symbols)
    if expected is None:
        assert found is None
    elif size is None or size.low == 0:
        high = 60 if size is None else size.high
        assert found == [one for one in expected if one <= high] + [0]
    else:
        # None is shorter than the least; there is one of each kind in any case.
        assert found[0] == found[-1] == size.low and found[:-1] == list(range(size.low, max(expected[-1], size.low) + 1))


def test_loops_of_different_courses():
    """The longest and the least common multiple of all of them."""
    fast, slow = turns(TILE), loop(TILE, writes(T), var=I2)
    assert parted(fast, slow, BLOCK_BARRIER, course=LoopCourse(None, False, 1, True)) is None
    courses = {J.name: LoopCourse(2, False, 1, True), I2.name: LoopCourse(3, False, 4, True)}
    program = plain(60, 3, fast, slow, BLOCK_BARRIER)
    access_trace = AccessTrace(program)
    (one,) = varying_tiles(access_trace, lambda loop: courses.get(loop.var.name, STILL)).values()
    assert list(one.sequence) == [*range(5 + 6 + 1), 0]
    courses[I2.name] = LoopCourse(None, False, 4, True)
    assert list(varying_tiles(access_trace, lambda loop: courses.get(loop.var.name, STILL)).values()) == [], "one of them never repeats"


def test_lengths_of_a_grid_that_is_known():
    """Only those that a tile has."""
    assert parted(turns(TILE // 8 * 2 + 1), BLOCK_BARRIER, tiles=24) == [1, 3, 5, 1]
    assert parted(turns(TILE // 8 * 2 - 2), BLOCK_BARRIER, tiles=24) == [0, 2, 0]
    assert parted(turns(TILE % 2 * 0 + 4), BLOCK_BARRIER, tiles=24) is None
    (one,) = chosen(plain(24, 3, STEPS, BLOCK_BARRIER))
    assert (
        one.max_tiles == 8
        and one.extra_iterations == 8
        and one.block_tiles == as_expr(8)
        and one.length == TILE + 1
        and one.varied_by == TILE_LENGTH
        and one.tile == TILE
    )
    (one,) = chosen(plain(25, 3, STEPS, BLOCK_BARRIER))
    assert one.max_tiles == 9 and one.extra_iterations == 0
    (one,) = chosen(plain(2, 3, STEPS, BLOCK_BARRIER))
    assert one.max_tiles == 1 and one.extra_iterations == 0
    named = Var("last", 0, 99)
    (one,) = chosen(plain(24, 3, making.let(named, TILE + 1), turns(named), BLOCK_BARRIER))
    assert one.length == TILE + 1, "by another name"


def test_a_number_of_tiles_that_is_named():
    """What is named counts as its value, in how many tiles a block takes too."""
    tiles = Var("tiles", 1, 1 << 20)
    extent = tiles // 3 + less(BLOCK, tiles % 3)
    body = (making.let(TILE, BLOCK + TURN * 3), STEPS, BLOCK_BARRIER)
    named = kernel(making.let(tiles, N * 2), making.loop(TURN, extent, body), grid=minimum(N * 2, as_expr(3)), symbols=(N,))
    (one,) = chosen(named)
    assert one.block_tiles == N * 2 // 3 + less(BLOCK, N * 2 % 3) and one.length == TILE + 1 and one.extra_iterations == 0


def test_what_parts_no_tile_from_the_next():
    """Loops in each other, lengths that one does not say, and places in shared memory that depend on the turn."""
    inner = loop(TILE + 1, writes(T), var=I2)
    assert parted(loop(TILE + 1, inner, var=J), BLOCK_BARRIER) is None
    assert parted(loop(3, inner, var=J), BLOCK_BARRIER) is not None
    assert parted(STEPS, inner, BLOCK_BARRIER) is not None
    assert parted(turns(TILE), inner, BLOCK_BARRIER) is not None, "the longer one is said by the other"
    assert parted(STEPS, loop(TILE // 2, writes(T), var=I2), BLOCK_BARRIER) is None
    assert parted(turns(minimum(L, TILE)), loop(minimum(minimum(L, TILE), ONE), writes(T), var=I2), BLOCK_BARRIER, symbols=(L,)) is not None
    assert (
        parted(STEPS, writes(T + TURN % 2 * 128), BLOCK_BARRIER) is None and parted(STEPS, reads(T, copy=TURN % 2), BLOCK_BARRIER) is None
    )
    assert parted(STEPS, writes(T + TURN * 128, name="g"), BLOCK_BARRIER, buffers=(SHARED, GLOBAL)) is not None
    assert parted(STEPS, loop(3, writes(T + TURN % 2), var=I2), BLOCK_BARRIER) is None


S, G = "s", "g"
SHARED, GLOBAL = staged(1), attrs.evolve(staged(1, "g"), tensor=attrs.evolve(staged(1, "g").tensor, memory=GL))
PRODUCT, BULK = (attrs.evolve(reads(T), instruction=Engine(), mechanism=one) for one in (WGMMA_GROUPS, TMA_STORES))


@pytest.mark.parametrize(
    "body, sides",
    [
        ((copies(T), making.commit(), BLOCK_BARRIER), None),
        ((copies(T), making.commit(), making.wait(0), BLOCK_BARRIER), 1),
        ((copies(T), making.commit(), making.wait(1), BLOCK_BARRIER), None),
        ((copies(T), making.commit(), making.wait(0), copies(T), BLOCK_BARRIER), None),
        ((copies(T), making.commit(), making.wait(0), loop(2, copies(T), var=I2), BLOCK_BARRIER), None),
        ((copies(T), making.commit(), making.wait(0), writes(T), BLOCK_BARRIER), 1),
        ((copies(T), making.commit(), making.wait(0, mechanism=WGMMA_GROUPS), BLOCK_BARRIER), None),
        ((copies(T), making.commit(), making.wait(0), PRODUCT, BLOCK_BARRIER), None),
        ((PRODUCT, copies(T), making.commit(), making.wait(0), BLOCK_BARRIER), None),
        ((PRODUCT, copies(T), making.wait(0), making.wait(0, mechanism=WGMMA_GROUPS), BLOCK_BARRIER), 1),
        ((BULK, making.wait(0, mechanism=TMA_STORES), BLOCK_BARRIER), 1),
        ((making.wait(0), BLOCK_BARRIER, copies(T), making.commit()), 1),
        ((BLOCK_BARRIER, copies(T), making.commit()), None),
        ((BLOCK_BARRIER, making.wait(0), copies(T), making.commit()), None),
    ],
)
def test_nothing_is_under_way_where_a_barrier_parts_tiles(body, sides):
    found = parted(STEPS, *body, course=SHORT)
    assert found == (None if sides is None else [1, 2, 3, 1])
    engine = attrs.evolve(copies(T), mechanism=TMA_LOADS)
    assert parted(STEPS, engine, making.wait(0, mechanism=TMA_LOADS), BLOCK_BARRIER) is None


def by_blocks(program, tiles, blocks, **sizes):
    """Whether some block of a kernel has a race, run through with all of its tiles."""
    (whole,) = program.body
    for block in range(blocks):
        body = []
        for turn, tile in enumerate(range(block, tiles, blocks)):
            body += ir.substituted(whole.body[1:], {TILE: as_expr(tile), TURN: as_expr(turn)})
        if racy_by_hand(attrs.evolve(program, body=tuple(body)), **sizes):
            return True
    return False


def drawn(chance):
    """Tiles with loops of a length of theirs between touches, copies and barriers."""
    length = chance.choice((TILE % 3, TILE // 2, TILE // 4 + 1, 5 - TILE % 5, TILE * 2 % 7))

    thread = Var("thread", 0, 31)

    def step(var):
        kind = chance.random()
        where = chance.choice((thread, 31 - thread, thread // 2 * 2)) + (
            0 if var is None else (var + chance.choice((0, 1))) % chance.choice((1, 2)) * 32
        )
        if kind < 0.5:
            return (chance.choice((writes, reads, reads, copies))(where),)
        if kind < 0.65:
            return (making.commit(), making.wait(chance.choice((0, 0, 1))))
        return (BLOCK_BARRIER,)

    inner = [one for _ in range(chance.choice((1, 2, 3))) for one in step(J)]
    before, behind = ([one for _ in range(chance.choice((0, 1, 2))) for one in step(None)] for _ in range(2))
    return [*before, turns(length, *inner), *behind]


@pytest.mark.parametrize("chunk", range(2))
def test_drawn_tiles_are_judged_as_block_by_block(chunk):
    verdicts = [0, 0]
    for seed in range(chunk * 30, chunk * 30 + 30):
        chance = random.Random(f"tiles {seed}")
        tiles, blocks = chance.choice(((24, 2), (25, 3), (12, 1), (13, 4)))
        program = plain(tiles, blocks, *drawn(chance), threads=32)
        expected, said = by_blocks(program, tiles, blocks), check_races(AccessTrace(program))
        if any("undecided" in one.message for one in said):
            continue
        assert bool(said) == expected, (seed, program.body, list(map(str, said)))
        verdicts[expected] += 1
    assert min(verdicts) >= 3, verdicts
