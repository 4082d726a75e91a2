"""Tiles whose loops differ in length: which tiles represent all others, and that a fault at any tile of a block is found."""

import itertools
import random

import attrs
import making
import pytest
from handrings import (
    BLOCK,
    ITERATION,
    TAKEN,
    TILE,
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
def test_parts_contain_all_adjacent_pairs_of_a_sequence(count, most):
    tiles = VaryingTiles(TILE, list(range(10, 10 + count)), most)
    pieces = [list(tiles.part(number)) for number in range(tiles.part_count)]
    assert all(pieces) and all(len(piece) <= most for piece in pieces)
    together = {pair for piece in pieces for pair in itertools.pairwise(piece)}
    if most > 1:
        assert together == set(itertools.pairwise(tiles.sequence)), "each follows its predecessor"
        assert {tile for piece in pieces for tile in piece} == set(tiles.sequence)
        assert all(len(piece) == most for piece in pieces[:-1]), "no more parts than needed"
    else:
        assert {tile for piece in pieces for tile in piece} >= set(tiles.sequence[:-1]), "the sequence is cyclic"
        assert len(pieces) == max(count - 1, 1)


@pytest.mark.parametrize("most, more", list(itertools.product((1, 3, 5, 9), (0, 1, 2, 4, 99))))
def test_iterations_beyond_a_piece(most, more):
    """As many as requested, and no more than a block takes; the sequence is repeated there."""
    tiles = VaryingTiles(TILE, [7, 8, 9, 7], most, extra_iterations=more)
    for number in range(tiles.part_count):
        piece, count = list(tiles.part(number)), tiles.iterations(number)
        assert count == min(len(piece) + more, most)
        prior_iterations = [tiles.tile_at(number, iteration) for iteration in range(len(piece) + 11)]
        assert prior_iterations[: len(piece)] == piece and prior_iterations[len(piece) :] == ([7, 8, 9, 7] * 3)[:11]


def test_sequences():
    assert TILE_LENGTH.low == BLOCK_TILES.low == SEQUENCE_PART.low == 0, "a tile may have no iteration"
    assert VaryingTiles(TILE, [0], 1).varied_by == TILE and VaryingTiles(TILE, [0], 1).iterations(0) == 1
    assert VaryingTiles(TILE, [0], 1, L + TILE).varied_by == TILE_LENGTH


def test_representatives_of_the_iterations_of_a_tile():
    """Their number, and whether there is one, where it is known only at run time; the tiles of a block where that is."""
    length = minimum(L, TILE + 1)
    never = VaryingTiles(TILE, [0], 4)
    assert tile_lengths([]) == {} and tile_lengths([never]) == {}
    assert tile_lengths([attrs.evolve(never, block_tiles=N // 3)]) == {N // 3: BLOCK_TILES}
    assert tile_lengths([attrs.evolve(never, length=length)]) == {length: TILE_LENGTH, minimum(length, ONE): minimum(TILE_LENGTH, ONE)}
    assert tile_lengths([attrs.evolve(never, length=length + 1)]) == {length + 1: TILE_LENGTH}, "there is always one"
    both = tile_lengths([attrs.evolve(never, length=L), attrs.evolve(never, length=L + TILE, block_tiles=N)])
    assert both.keys() >= {L, L + TILE, N}


def test_names_are_expanded_unless_they_are_kept():
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
    """A persistent block whose tiles have iterations with a ring: as many as each tile requires."""
    increment, number = length if increment is None else increment, TAKEN + J
    how = {"prior_iterations": TAKEN, "increment": increment}
    consumers = over_tiles(tiles, blocks, *consumer, loop(length, *consume(number, stages), *inner, var=J), **how)
    producers = over_tiles(tiles, blocks, *producer, loop(length, *produce(number, stages), var=J), **how)
    options.setdefault("grid", grid_of(tiles, blocks))
    return ringed([consumers], [producers], stages=stages, **options)


def chosen(program, course=STILL):
    """The decisive lengths of the loops over tiles of a kernel."""
    return list(varying_tiles(AccessTrace(program), lambda _: course).values())


@pytest.mark.parametrize("stages", [1, 2, 3])
@pytest.mark.parametrize(
    "length, tiles", [(TILE + 1, 40), (TILE, 40), (TILE // 2, 31), (TILE % 3, 9), (7 - TILE, 8), (as_expr(2) + TILE * 5, 9)]
)
def test_sequence_contains_all_pairs_of_lengths(stages, length, tiles):
    """Lengths up to one iteration more than two rounds are distinguished, longer ones by the position in two rounds at which they end."""
    first, second = chosen(causal(tiles, 3, length, stages))
    assert list(first.sequence) == list(second.sequence) and first.tile == TILE and first.length is None and first.varied_by == TILE
    lengths = [length.evaluate({"tile": tile}) for tile in first.sequence]
    assert all(0 <= tile < tiles for tile in first.sequence)

    def kind(length):
        return length if length <= 2 * stages + 1 else 2 * stages + 2 + (length - 2) % (2 * stages)

    every = [length.evaluate({"tile": tile}) for tile in range(tiles)]
    kinds = set(map(kind, every))
    pairs = set(itertools.pairwise(map(kind, lengths)))
    assert set(map(kind, lengths)) == kinds and pairs >= set(itertools.product(kinds, repeat=2))
    short = [length for length in sorted(kinds) if length <= stages]
    begin = [length for length in short for _ in range(2 * stages + 1)]
    assert lengths[: len(begin)] == begin, "each short one as often as two rounds take, and once more"
    assert len(lengths) == len(begin) + len(kinds) ** 2 + 1 and kind(lengths[-1]) == kind(lengths[len(begin)])
    assert max(lengths) == max(min(one for one in every if kind(one) == each) for each in kinds), "the shortest of each kind"


def test_tiles_of_equal_length_need_no_sequence():
    assert chosen(causal(8, 3, as_expr(4))) == []
    assert chosen(ringed([loop(4, *consume(J), var=J)], [loop(4, *produce(J), var=J)])) == []
    assert chosen(causal(8, 3, TILE + 1, increment=ONE)) == [], "no role counts iterations"
    assert chosen(causal(8, 3, TILE + 1, increment=ONE, consumer=(BLOCK_BARRIER,), producer=(BLOCK_BARRIER,))) == [], (
        "a barrier does not separate roles"
    )
    pair = causal(8, 3, TILE + 1), causal(8, 3, TILE + 1, increment=ONE)
    (own_roles,), (other_roles,) = ([one for one in each.body if isinstance(one, ir.Roles)] for each in pair)
    one_counts = attrs.evolve(pair[0], body=(making.roles((own_roles.roles[0], other_roles.roles[1])),))
    assert len(chosen(one_counts)) == 2, "a count in one role applies to the other"
    assert len(chosen(causal(8, 3, TILE + 1))) == 2


def test_number_of_tiles_of_a_block():
    for tiles, blocks, most in ((7, 3, 3), (6, 3, 2), (2, 3, 1), (9, 1, 9)):
        result, _ = chosen(causal(tiles, blocks, TILE + 1))
        assert result.max_tiles == most and result.part_count >= 1
    (result, _) = chosen(causal(6, 3, TILE + 1))
    assert result.block_tiles == as_expr(2) and result.extra_iterations == 2, "all blocks have two"
    (result, _) = chosen(causal(7, 3, TILE + 1))
    assert constant(result.block_tiles) is None and result.extra_iterations == 0, "some blocks have more"


@pytest.mark.parametrize("high", [2, 6, 1 << 20])
@pytest.mark.parametrize("stages", [1, 2])
def test_run_time_lengths(high, stages):
    """The sequence contains all possible lengths."""
    size = Var("L", 0, high, 1, True)
    length = minimum(size, TILE + 1)
    result, _ = chosen(causal(60, 3, length, stages, symbols=(size,)))
    assert result.length == length and result.varied_by == TILE_LENGTH
    longest = min(4 * stages + 1, high, 60)
    assert set(result.sequence) == set(range(longest + 1)) and set(itertools.pairwise(result.sequence)) >= set(
        itertools.product(range(longest + 1), repeat=2)
    )
    more, _ = chosen(causal(60, 3, length + 3, stages, symbols=(size,)))
    assert set(more.sequence) == set(range(3, max(min(high + 3, 63, 4 * stages + 1), 3) + 1))


def test_run_time_numbers_of_tiles():
    result, _ = chosen(causal(N, 3, TILE + 1, symbols=(N,), grid=minimum(N, as_expr(3))))
    assert result.length == TILE + 1 and result.sequence and min(result.sequence) == 1
    assert result.block_tiles == N // 3 + less(BLOCK, N % 3) and result.extra_iterations == 0


def test_lengths_that_depend_on_more_than_one_number():
    """A second loop with an independent length: nothing is chosen; one iteration less is derived from the first length."""

    def program(other):
        extra = (loop(other, reads(T, name="t"), WARP_BARRIER, var=I2),)
        return causal(9, 3, TILE + 2, consumer=extra, buffers=(staged(2), attrs.evolve(staged(1, "t"), offset=4096)))

    assert len(chosen(program(TILE + 2))) == 2 and len(chosen(program(TILE + 1))) == 2 and len(chosen(program(as_expr(3)))) == 2
    assert len(chosen(program(TILE // 2))) == 1, "of the producer only"


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
def test_tiles_with_iterations_of_a_ring(stages, length, tiles, blocks):
    """Correct as they are; and incorrect where the loop counts one iteration too many or too few."""
    symbols = (L,) if L in length.variables() else ()
    assert messages_of(causal(tiles, blocks, length, stages, symbols=symbols)) == []
    assert messages_of(causal(tiles, blocks, length, stages, increment=length + 1, symbols=symbols)) != []


def test_rings_with_a_run_time_number_of_tiles():
    options = {"symbols": (N,), "grid": minimum(N, as_expr(3))}
    assert messages_of(causal(N, 3, TILE % 5 + 1, **options)) == []
    assert messages_of(causal(N, 3, TILE % 5 + 1, increment=TILE % 5 + 2, **options)) != []


def without_at(iteration, program, which):
    """The kernel with the statements selected by `which` removed in one iteration of a block."""

    def change(stmt):
        return (making.loop(I3, less(ITERATION, iteration) + less(as_expr(iteration), ITERATION), (stmt,)),) if which(stmt) else (stmt,)

    return attrs.evolve(program, body=ir.rewritten(program.body, change))


@pytest.mark.parametrize("blocks", [1, 2])
@pytest.mark.parametrize("iteration", [0, 1, 18, 23])
def test_a_fault_in_one_iteration_of_a_block_with_the_maximum_number(blocks, iteration):
    """Also in the last one, far after the end of the sequence."""
    tiles = 24 * blocks
    program = causal(tiles, blocks, TILE % 2 + 1)
    result, _ = chosen(program)
    assert result.max_tiles == 24 and result.extra_iterations == 24
    assert messages_of(program) == []
    assert messages_of(without_at(iteration, program, lambda one: isinstance(one, ir.Release) and one.state is ir.StageState.EMPTY)) != []
    assert messages_of(without_at(iteration, program, lambda one: isinstance(one, ir.Acquire) and one.state is ir.StageState.FULL)) != []
    beyond = without_at(24, program, lambda one: isinstance(one, ir.Release) and one.state is ir.StageState.EMPTY)
    assert messages_of(beyond) == [], "there is no such iteration"


# ---------------------------------------------------------------------------------------------- dynamic tiles


def fetched(tiles, blocks, length, stages=2, faulty=None, following=None, increment=None):
    """Blocks that take tiles from a counter, which a producer passes on; a fault of the consumers in one iteration."""
    name, number = "tile_ring", TAKEN + J
    release = emptied(ITERATION, name)
    leave = making.exit_if_done(TILE, as_expr(tiles))
    how = {"prior_iterations": TAKEN, "increment": length if increment is None else increment}
    steps = loop(length, *consume(number, stages), var=J)
    if faulty is not None:  # a stage is not released there
        acquire, read, fence, barrier, give_back = consume(number, stages)
        steps = loop(
            length,
            acquire,
            read,
            fence,
            barrier,
            attrs.evolve(give_back, active=all_of((give_back.active, any_of((less(ITERATION, faulty), less(as_expr(faulty), ITERATION)))))),
            var=J,
        )
    extra = () if following is None else following
    consumer = (
        full(ITERATION, name), making.claim_tile(TILE, as_expr(tiles), name, ITERATION), WARP_BARRIER, release, leave, steps, *extra
    )  # fmt: skip
    producer = (
        making.acquire(name, ir.StageState.EMPTY, ITERATION), making.claim_tile(TILE, as_expr(tiles), name, ITERATION, takes=True),
        making.release(name, ir.StageState.FULL, ITERATION), leave, loop(length, *produce(number, stages), var=J),
    )  # fmt: skip
    extent = as_expr(tiles) + 1
    rings = (ring(stages), making.ring(name, stages, (), bytes=0, consumers=4, tiles=True))
    roles = [[making.loop(ITERATION, extent, body, **how)] for body in (consumer, producer)]
    return ringed(*roles, rings=rings, stages=stages, grid=blocks)


@pytest.mark.parametrize("length", [TILE % 2 + 1, TILE // 3 + 1, TILE % 3])
def test_dynamic_tiles(length):
    program = fetched(12, 3, length)
    assert messages_of(program) == []
    assert messages_of(fetched(12, 3, length, increment=length + 1)) != []


def test_a_block_is_followed_some_iterations_beyond_the_sequence():
    """As the end of the tiles is handled in any iteration, the number of iterations is that for equal tiles."""
    for kept in (3, 6):
        result, other = chosen(fetched(40, 3, TILE % 2 + 1), attrs.evolve(STILL, kept=kept))
        assert result.extra_iterations == other.extra_iterations == kept and result.max_tiles == 41
        assert result.iterations(0) == len(result.part(0)) + kept
    result, _ = chosen(fetched(4, 3, TILE % 2 + 1))
    assert result.iterations(0) == 5


@pytest.mark.parametrize("iteration", [0, 15, 18])
def test_a_fault_in_one_iteration_with_dynamic_tiles(iteration):
    """Also one iteration after the sequence."""
    program = fetched(40, 3, TILE % 2 + 1)
    last = len(chosen(program)[0].sequence)
    assert messages_of(program) == []
    at = min(iteration, last)
    assert messages_of(fetched(40, 3, TILE % 2 + 1, faulty=at)) != []


# ---------------------------------------------------------------------------------------------- without rings


def plain(tiles, blocks, *body, **options):
    """A persistent block with identical threads."""
    return kernel(over_tiles(tiles, blocks, *body), grid=grid_of(tiles, blocks), **options)


def parted(*body, tiles=24, blocks=3, course=STILL, **options):
    """The lengths that decide, or the tiles: None where a barrier parts no tile from the next."""
    result = chosen(plain(tiles, blocks, *body, **options), course)
    return list(result[0].sequence) if result else None


def steps_of(length, *body):
    return loop(length, *(body or (writes(T),)), var=J)


STEPS = steps_of(TILE + 1)
SHORT = LoopCourse(1, False, 1, True)
"""So that lengths up to 2 are distinguished, and longer ones are treated alike."""


def test_barriers_that_separate_tiles_make_lengths_independent():
    """Two barriers, one on each side of the loop: each length alone. One barrier, or one inside: each two of them."""
    assert parted(STEPS, course=SHORT) is None
    assert parted(STEPS, BLOCK_BARRIER, course=SHORT) == [1, 2, 3, 1] == parted(BLOCK_BARRIER, STEPS, course=SHORT)
    assert parted(BLOCK_BARRIER, STEPS, BLOCK_BARRIER, course=SHORT) == [1, 2, 3, 1]
    neighbors = [1, 1, 2, 1, 3, 2, 2, 3, 3, 1]
    assert parted(STEPS, BLOCK_BARRIER, STEPS, course=SHORT) == neighbors
    assert parted(STEPS, BLOCK_BARRIER, STEPS, BLOCK_BARRIER, course=SHORT) == [1, 2, 3, 1], "the second separates them"
    assert parted(BLOCK_BARRIER, STEPS, writes(T), STEPS, course=SHORT) == [1, 2, 3, 1]
    assert parted(STEPS, WARP_BARRIER, course=SHORT) is None and parted(STEPS, loop(1, WARP_BARRIER), course=SHORT) is None
    for inside in (loop(2, BLOCK_BARRIER, var=I2), loop(1, loop(3, BLOCK_BARRIER, var=I3), var=I2)):
        assert parted(STEPS, inside, course=SHORT) == neighbors
    assert parted(STEPS, loop(0, BLOCK_BARRIER, var=I2), course=SHORT) is None, "the tile has no iteration"
    assert parted(STEPS, loop(L, BLOCK_BARRIER, var=I2), course=SHORT, symbols=(L,)) is None, "the tile may have no iteration"
    assert parted(STEPS, loop(L, loop(2, BLOCK_BARRIER, var=I3), var=I2), course=SHORT, symbols=(L,)) is None
    assert parted(STEPS, loop(L + 1, BLOCK_BARRIER, var=I2), course=SHORT, symbols=(L,)) == neighbors
    assert parted(steps_of(TILE + 1, writes(T), BLOCK_BARRIER), course=SHORT) == neighbors, "its length is at least 1"
    assert parted(steps_of(TILE, writes(T), BLOCK_BARRIER), course=SHORT) is None


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
def test_lengths_that_are_distinguished(course, expected, size):
    """As many as are followed of equal iterations and one more, and then those of a period; of lengths that there may be."""
    length = TILE if size is None else minimum(size, TILE) if size.high < 9 else TILE + size
    symbols = () if size is None else tuple(one for one in size.variables())
    result = parted(steps_of(length), BLOCK_BARRIER, tiles=60, course=course, symbols=symbols)
    if expected is None:
        assert result is None
    elif size is None or size.low == 0:
        high = 60 if size is None else size.high
        assert result == [one for one in expected if one <= high] + [0]
    else:
        # None is shorter than the least; there is one of each kind in any case.
        assert result[0] == result[-1] == size.low and result[:-1] == list(range(size.low, max(expected[-1], size.low) + 1))


def test_loops_of_different_courses():
    """The longest and the least common multiple of all of them."""
    fast, slow = steps_of(TILE), loop(TILE, writes(T), var=I2)
    assert parted(fast, slow, BLOCK_BARRIER, course=LoopCourse(None, False, 1, True)) is None
    courses = {J.name: LoopCourse(2, False, 1, True), I2.name: LoopCourse(3, False, 4, True)}
    program = plain(60, 3, fast, slow, BLOCK_BARRIER)
    access_trace = AccessTrace(program)
    (result,) = varying_tiles(access_trace, lambda loop: courses.get(loop.var.name, STILL)).values()
    assert list(result.sequence) == [*range(5 + 6 + 1), 0]
    courses[I2.name] = LoopCourse(None, False, 4, True)
    assert list(varying_tiles(access_trace, lambda loop: courses.get(loop.var.name, STILL)).values()) == [], "one of them never repeats"


def test_lengths_of_a_grid_that_is_known():
    """Only those that a tile has."""
    assert parted(steps_of(TILE // 8 * 2 + 1), BLOCK_BARRIER, tiles=24) == [1, 3, 5, 1]
    assert parted(steps_of(TILE // 8 * 2 - 2), BLOCK_BARRIER, tiles=24) == [0, 2, 0]
    assert parted(steps_of(TILE % 2 * 0 + 4), BLOCK_BARRIER, tiles=24) is None
    (result,) = chosen(plain(24, 3, STEPS, BLOCK_BARRIER))
    assert (
        result.max_tiles == 8
        and result.extra_iterations == 8
        and result.block_tiles == as_expr(8)
        and result.length == TILE + 1
        and result.varied_by == TILE_LENGTH
        and result.tile == TILE
    )
    (result,) = chosen(plain(25, 3, STEPS, BLOCK_BARRIER))
    assert result.max_tiles == 9 and result.extra_iterations == 0
    (result,) = chosen(plain(2, 3, STEPS, BLOCK_BARRIER))
    assert result.max_tiles == 1 and result.extra_iterations == 0
    named = Var("last", 0, 99)
    (result,) = chosen(plain(24, 3, making.let(named, TILE + 1), steps_of(named), BLOCK_BARRIER))
    assert result.length == TILE + 1, "by another name"


def test_a_number_of_tiles_that_is_named():
    """What is named counts as its value, in how many tiles a block takes too."""
    tiles = Var("tiles", 1, 1 << 20)
    extent = tiles // 3 + less(BLOCK, tiles % 3)
    body = (making.let(TILE, BLOCK + ITERATION * 3), STEPS, BLOCK_BARRIER)
    named = kernel(making.let(tiles, N * 2), making.loop(ITERATION, extent, body), grid=minimum(N * 2, as_expr(3)), symbols=(N,))
    (result,) = chosen(named)
    assert result.block_tiles == N * 2 // 3 + less(BLOCK, N * 2 % 3) and result.length == TILE + 1 and result.extra_iterations == 0


def test_tiles_without_a_separating_barrier():
    """Nested loops, lengths that depend on more than one number, and places in shared memory that depend on the iteration."""
    inner = loop(TILE + 1, writes(T), var=I2)
    assert parted(loop(TILE + 1, inner, var=J), BLOCK_BARRIER) is None
    assert parted(loop(3, inner, var=J), BLOCK_BARRIER) is not None
    assert parted(STEPS, inner, BLOCK_BARRIER) is not None
    assert parted(steps_of(TILE), inner, BLOCK_BARRIER) is not None, "the other loop determines the longer one"
    assert parted(STEPS, loop(TILE // 2, writes(T), var=I2), BLOCK_BARRIER) is None
    assert (
        parted(steps_of(minimum(L, TILE)), loop(minimum(minimum(L, TILE), ONE), writes(T), var=I2), BLOCK_BARRIER, symbols=(L,)) is not None
    )
    assert (
        parted(STEPS, writes(T + ITERATION % 2 * 128), BLOCK_BARRIER) is None
        and parted(STEPS, reads(T, copy=ITERATION % 2), BLOCK_BARRIER) is None
    )
    assert parted(STEPS, writes(T + ITERATION * 128, name="g"), BLOCK_BARRIER, buffers=(SHARED, GLOBAL)) is not None
    assert parted(STEPS, loop(3, writes(T + ITERATION % 2), var=I2), BLOCK_BARRIER) is None


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
def test_nothing_is_pending_at_a_barrier_that_separates_tiles(body, sides):
    result = parted(STEPS, *body, course=SHORT)
    assert result == (None if sides is None else [1, 2, 3, 1])
    engine = attrs.evolve(copies(T), mechanism=TMA_LOADS)
    assert parted(STEPS, engine, making.wait(0, mechanism=TMA_LOADS), BLOCK_BARRIER) is None


def by_blocks(program, tiles, blocks, **sizes):
    """Whether any block of a kernel has a race, by executing all of its tiles."""
    (tile_loop,) = program.body
    for block in range(blocks):
        body = []
        for iteration, tile in enumerate(range(block, tiles, blocks)):
            body += ir.substituted(tile_loop.body[1:], {TILE: as_expr(tile), ITERATION: as_expr(iteration)})
        if racy_by_hand(attrs.evolve(program, body=tuple(body)), **sizes):
            return True
    return False


def drawn(chance):
    """Random tiles with loops of different lengths between accesses, copies and barriers."""
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
    before, following = ([one for _ in range(chance.choice((0, 1, 2))) for one in step(None)] for _ in range(2))
    return [*before, steps_of(length, *inner), *following]


@pytest.mark.parametrize("chunk", range(2))
def test_random_tiles_compared_with_blocks(chunk):
    verdicts = [0, 0]
    for seed in range(chunk * 30, chunk * 30 + 30):
        chance = random.Random(f"tiles {seed}")
        tiles, blocks = chance.choice(((24, 2), (25, 3), (12, 1), (13, 4)))
        program = plain(tiles, blocks, *drawn(chance), threads=32)
        expected, findings = by_blocks(program, tiles, blocks), check_races(AccessTrace(program))
        if any("undecided" in one.message for one in findings):
            continue
        assert bool(findings) == expected, (seed, program.body, list(map(str, findings)))
        verdicts[expected] += 1
    assert min(verdicts) >= 3, verdicts
