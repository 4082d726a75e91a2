"""Races between blocks by hand: drawn accesses to arrays in global memory, held against all pairs of blocks."""

import itertools
import random

import attrs
import pytest
from touching import T, buffer, i, kernel, loop, reads, touch, writes

from fireiron import *
from fireiron import ir
from fireiron.check import Scene
from fireiron.check.blocks import between_blocks, local_coordinates
from fireiron.values.expr import TRUE, Var, as_expr, floordiv, hilbert, less, minimum, mod, positive
from fireiron.values.tensor import Mode, Tensor

THREADS = 32
GRID = 12
BLOCK = Var("block", 0, GRID - 1)
N = Var("N", 1, 1 << 20, 1, True)
ARRAY = buffer("s", 1 << 16, memory=GL)


def said(*body, grid=GRID, **options):
    options = {"buffers": (ARRAY,), "threads": THREADS, **options}
    return between_blocks(Scene(kernel(*body, grid=grid, **options)))


def meet(program):
    """Whether two blocks touch one element and one of them writes it, by all threads, blocks and iterations; conditions apply."""
    touched = {}

    def run(body, values):
        for one in body:
            if isinstance(one, ir.For):
                for number in range(one.extent.evaluate(values)):
                    run(one.body, {**values, one.var.name: number})
                continue
            for thread in range(program.threads):
                there = {**values, "thread": thread}
                if one.performed.evaluate(there):
                    for access in one.accesses:
                        for (offset,) in access.elements():
                            place = access.buffer, access.base[0].evaluate(there) + offset
                            touched.setdefault(place, set()).add((values["block"], access.write))

    for block in range(program.grid.evaluate({})):
        run(program.body, {"block": block})
    return any(len({block for block, _ in who}) > 1 and any(write for _, write in who) for who in touched.values())


def drawn(chance):
    """One or two accesses whose blocks have parts of their own, or just not."""
    width = chance.choice((1, 1, 2, 4))
    inner = T * width
    reach = (THREADS - 1) * width + width
    turns = chance.choice((1, 1, 3))
    inner, reach = inner + i * reach, reach * turns
    rows = chance.choice((1, 2, 3, 4))
    low = reach + chance.choice((-1, 0, 0, 0, 7))
    high = low * rows + chance.choice((-1, 0, 0, 0, 16))
    outer = chance.choice((BLOCK * low, BLOCK % rows * low + BLOCK // rows * high, BLOCK // rows * high + (BLOCK % rows) * low))
    places = [inner + outer] + ([inner + outer + chance.choice((0, 0, 1, reach))] if chance.random() < 0.4 else [])
    # A condition on the block counts as true there, except for `digit < 1` of all that touches an array.
    steps = [(writes if number == 0 or chance.random() < 0.5 else reads)(place, width=width) for number, place in enumerate(places)]
    return kernel(loop(turns, *steps), threads=THREADS, grid=GRID, buffers=(ARRAY,))


@pytest.mark.parametrize("chunk", range(6))
def test_drawn_accesses_are_judged_as_by_all_pairs_of_blocks(chunk):
    verdicts = set()
    for seed in range(30 * chunk, 30 * (chunk + 1)):
        program = drawn(random.Random(f"blocks {seed}"))
        expected, found = meet(program), between_blocks(Scene(program))
        assert bool(found) == expected, (seed, program.body, found)
        assert not any("undecided" in one.message for one in found), seed
        verdicts.add(expected)
    assert verdicts == {True, False}


def test_one_block_meets_nobody():
    assert said(writes(T), grid=1) == [] and said(writes(T)) != []
    assert said(reads(T)) == [], "reads need no order"
    assert said(touch(T, write=True, level=Thread, name="s"), grid=2) != []


@pytest.mark.parametrize(("step", "alarms"), [(31, 1), (32, 0), (33, 0), (0, 1)])
def test_the_step_of_a_block(step, alarms):
    found = said(writes(T + BLOCK * step))
    assert len(found) == alarms
    for one in found:
        assert (one.kind, one.severity, one.buffer, one.at) == ("race", "error", "s", "hand.py:1")
        assert "blocks" in one.details and len(one.details["blocks"]) == 2


def test_the_blocks_and_the_element_are_real():
    """What is said can be computed again: both blocks touch the element."""
    for step, rows in ((31, 1), (16, 1), (32, 3)):
        place = T + (BLOCK % rows * 4 if rows > 1 else BLOCK * step)
        (one,) = said(writes(place))
        first, second = one.details["blocks"]
        reached = [{place.evaluate({"thread": t, "block": block}) for t in range(THREADS)} for block in (first, second)]
        assert first != second and set(one.details["element"]) <= reached[0] & reached[1]


def test_a_digit_that_is_0_for_all_who_touch():
    """`digit < 1` of all uses says that they have the same digit; of one use alone it does not."""
    column, row = BLOCK % 4, BLOCK // 4
    only = less(column, 1)
    assert said(writes(T + row * 32)) != []
    assert said(writes(T + row * 32, active=only)) == []
    assert said(writes(T + row * 32, active=only), reads(T + row * 32)) != []
    assert said(writes(T + row * 32, active=only), reads(T + row * 32, active=only)) == []
    assert said(writes(T + row * 32, active=less(column, 2))) != [], "two of them"
    assert said(writes(T + row * 32, active=less(row, 1))) != []


def test_additions_in_one_step_meet_whom_they_like():
    adding = attrs.evolve(writes(T), spec=AtomicAdd(1, 1)(RF, GL)(Thread))
    assert adding.atomic and said(adding) == []
    assert said(adding, reads(T)) != []


def test_sizes_that_are_known_at_run_time():
    """Proved for all sizes, refuted at some, or undecided; the latter two are errors."""
    blocks = (N + 31) // 32
    block = Var("block", 0, (1 << 15) - 1)
    long = buffer("s", 1 << 20, memory=GL)
    assert said(writes(T + block * 32), grid=blocks, symbols=(N,), buffers=(long,)) == []
    (one,) = said(writes(T + block * 31), grid=blocks, symbols=(N,), buffers=(long,))
    assert one.severity == "error"
    (one,) = said(writes(T), grid=blocks, symbols=(N,), buffers=(long,))
    assert one.severity == "error"


def test_many_blocks_are_undecided_or_decoded():
    many = Var("block", 0, (1 << 24) - 1)
    long = buffer("s", 1 << 30, memory=GL)
    assert said(writes(T + many * 32), grid=1 << 24, buffers=(long,)) == []
    (one,) = said(writes(T + many % 4096 * many % 4096 * 32), grid=1 << 24, buffers=(long,))
    assert "undecided whether two blocks touch one element of s" in one.message and ".unchecked(reason)" in one.message


@pytest.mark.parametrize("shape", [(8, 4), (5, 7)])
def test_two_dimensions(shape):
    """Tiles of two dimensions, a block each; apart in either of them is apart."""
    rows, columns = 4, 3
    tensor = Tensor("s", (as_expr(rows * shape[0]), as_expr(columns * shape[1])), float32, GL, ColMajor)
    storage = tensor.storage()
    array = ir.Buffer(tensor, storage, storage.extent, written=True)

    def store(row_step, column_step, inner=0):
        base = (T % shape[0] + BLOCK % rows * row_step, i + BLOCK // rows * column_step + inner)
        access = ir.Access("s", tuple(map(as_expr, base)), ((Mode(1, 1),),) * 2, (None, None), True, dealt=((), ()), origin="mine.py:5")
        step = ir.Exec(spec=Move(1, 1)(RF, GL)(Thread), accesses=(access,), instruction=writes(0).instruction)
        return said(loop(shape[1], step), buffers=(array,))

    assert store(*shape) == []
    assert store(shape[0] - 1, shape[1]) != [] and store(shape[0], shape[1] - 1) != []
    assert store(0, shape[1]) != [] and store(shape[0], 0) != []


def test_local_coordinates_leave_out_the_block():
    thread, turn = Var("thread", 0, THREADS - 1), Var("turn", 0, 2)
    body = loop(3, writes(thread * 2 + turn + BLOCK * 128, width=2), var=turn)
    scene = Scene(kernel(body, threads=THREADS, grid=GRID, buffers=(ARRAY,)))
    local = local_coordinates(scene)["s"]
    assert local.problem is None and (local.low, local.high) == ((0,), (31 * 2 + 2 + 1,))
    (use,) = scene.uses
    for block, number, step in itertools.product((0, 5), (0, 7, 31), (0, 2)):
        values = {"block": block, "thread": number, "turn": step}
        parts = local.parts[use.access.base][0].evaluate(values), local.offset[0].evaluate(values)
        assert parts == (number * 2 + step, block * 128)


# ---------------------------------------------------------------------------------------------- two dimensions


TALL, BROAD = Var("tall", 1, 11, 1, True), Var("broad", 1, 9, 1, True)
EVEN = Var("even", 2, 12, 2, True)
ANY = Var("block", 0, (1 << 31) - 2)


def matrix(rows, columns):
    tensor = Tensor("s", (as_expr(rows), as_expr(columns)), float32, GL, ColMajor)
    storage = tensor.storage()
    return ir.Buffer(tensor, storage, storage.extent, written=True)


def store(row, column, width=1, write=True, active=TRUE):
    """A statement that touches `width` rows of a column."""
    modes = ((Mode(width, 1),), (Mode(1, 1),))
    access = ir.Access("s", (as_expr(row), as_expr(column)), modes, (None, None), write, dealt=((), ()), origin="mine.py:5")
    return ir.Exec(spec=Move(1, 1)(RF, GL)(Thread), accesses=(access,), instruction=writes(0).instruction, active=active)


def tiles(line, column, lines, columns, grid, *, rows=8, wide=4, symbols=(), step=None):
    """What is said where each block stores a tile of 8 x 4 elements, at a place among lines x columns tiles."""
    high, low = step or (rows, wide)
    one = store(T % rows + line * high, T // rows + column * low)
    array = matrix(lines * high, columns * low)
    return between_blocks(Scene(kernel(one, threads=rows * wide, grid=grid, buffers=(array,), symbols=symbols)))


def in_bands(lines, columns, rows, block=ANY, height=None):
    """The tile of a block: down so many rows, then one column on, in bands; the last band is as high as what is left."""
    band, inside = floordiv(block, columns * rows), mod(block, columns * rows)
    left = positive(minimum(as_expr(rows), lines - band * rows)) if height is None else as_expr(height)
    return band * rows + mod(inside, left), floordiv(inside, left)


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 7])
@pytest.mark.parametrize(
    ("lines", "columns"), [(TALL, BROAD), (TALL, as_expr(6)), (as_expr(6), BROAD), (as_expr(6), as_expr(5)), (TALL, EVEN // 2)]
)
def test_blocks_that_walk_in_bands(lines, columns, rows):
    """Each tile is of one block, whatever the sizes are; down the rows or along the columns."""
    symbols = (TALL, BROAD, EVEN)
    line, column = in_bands(lines, columns, rows)
    grid = lines * columns
    assert tiles(line, column, lines, columns, grid, symbols=symbols) == []
    assert tiles(column, line, columns, lines, grid, symbols=symbols) == [], "the other way round"
    limited = minimum(line, lines - 1), minimum(column, columns - 1)
    assert tiles(*limited, lines, columns, grid, symbols=symbols) == []
    assert tiles(line, column, lines, columns, grid, symbols=symbols, step=(9, 5)) == []
    assert (
        tiles(line, column, lines, columns, grid, symbols=symbols, step=(7, 4))
        != []
        != tiles(line, column, lines, columns, grid, symbols=symbols, step=(8, 3))
    )
    assert tiles(line // 2, column, lines, columns, grid, symbols=symbols) != []
    assert tiles(line, column // 2, lines, columns, grid, symbols=symbols) != []


def test_bands_that_are_no_bands():
    """Of another height, or among other numbers of columns than the grid says."""
    symbols = (TALL, BROAD, EVEN)
    for rows, height in ((3, 4), (2, 4), (4, 5)):
        line, column = in_bands(TALL, BROAD, rows, height=height)
        assert tiles(line, column, TALL, BROAD, TALL * BROAD, symbols=symbols) != [], "rows of the next band"
    line, column = in_bands(EVEN, BROAD, 2, height=2)
    assert tiles(line, column, EVEN, BROAD, EVEN * BROAD, symbols=symbols) == [], "all bands are whole"
    line, column = in_bands(TALL, BROAD, 4, block=ANY // 2)
    assert tiles(line, column, TALL, BROAD, TALL * BROAD * 2, symbols=symbols) != [], "two blocks a tile"
    line, column = in_bands(TALL, BROAD + 1, 4)
    assert tiles(line, column, TALL, BROAD + 1, TALL * (BROAD + 1), symbols=symbols) == []


@pytest.mark.parametrize(("lines", "columns"), [(TALL, BROAD), (as_expr(5), as_expr(6))])
def test_blocks_on_a_curve(lines, columns):
    place = hilbert(ANY, lines, columns)
    line, column = floordiv(place, columns), mod(place, columns)
    assert tiles(line, column, lines, columns, lines * columns, symbols=(TALL, BROAD)) == []
    assert tiles(column, line, columns, lines, lines * columns, symbols=(TALL, BROAD)) == []
    assert tiles(line, column, lines, columns, lines * columns, symbols=(TALL, BROAD), step=(7, 4)) != []
    assert tiles(line, 0, lines, columns, lines * columns, symbols=(TALL, BROAD)) != []


@pytest.mark.parametrize(
    ("line", "column", "grid", "apart"),
    [
        (ANY % TALL, ANY // TALL, TALL * BROAD, True),
        (ANY // BROAD, ANY % BROAD, TALL * BROAD, True),
        (ANY % TALL, ANY // BROAD, TALL * BROAD, False),
        (ANY % TALL, ANY % BROAD, TALL * BROAD, False),
        (ANY // TALL, ANY // TALL, TALL * BROAD, False),
        (ANY % TALL, 0, TALL + 1, False),
        (ANY, 0, TALL, True),
        (TALL - 1 - ANY, 0, TALL, True),
        (positive(TALL - ANY) - 1, 0, TALL, True),
        (positive(TALL - ANY // 2) - 1, ANY % 2, TALL * 2, True),
        (positive(TALL - ANY // 2) - 1, 0, TALL * 2, False),
        (ANY % 4 + ANY // 4 * 4, 0, TALL * 4, True),
        (ANY % 4 + ANY // 4 * 3, 0, TALL * 4, False),
        (ANY // 4, ANY % 4, TALL * 4, True),
        (ANY // 8, ANY % 4, TALL * 4, False),
        (ANY // 8 * 2 + ANY % 2, ANY // 2 % 4, TALL * 8, True),
        (ANY // 8 * 2 + ANY % 2, ANY // 2 % 2, TALL * 8, False),
        (ANY * ANY, 0, TALL, False),
    ],
)
def test_digits_of_blocks_of_which_sizes_say_how_many(line, column, grid, apart):
    assert (tiles(as_expr(line), as_expr(column), TALL, BROAD, grid, symbols=(TALL, BROAD)) == []) == apart


@pytest.mark.parametrize("seed", range(60))
def test_drawn_tiles_are_judged_as_by_all_pairs_of_blocks(seed):
    """Of a known number: digits, bands and curves with steps about as wide as the tiles; elements beyond the array are nobody's."""
    chance = random.Random(f"tiles {seed}")
    lines, columns = chance.choice((2, 3, 5)), chance.choice((2, 3, 4))
    block = Var("block", 0, lines * columns - 1)
    place = hilbert(block, as_expr(lines), as_expr(columns))
    line, column = chance.choice(
        (
            (block % lines, block // lines),
            (block // columns, block % columns),
            in_bands(as_expr(lines), as_expr(columns), 2, block),
            in_bands(as_expr(lines), as_expr(columns), 2, block, height=2),
            (floordiv(place, as_expr(columns)), mod(place, as_expr(columns))),
            (block % lines, block % columns),
            (as_expr(0), block),
            (block * 2 % lines, block // lines),
        )
    )
    high, low = chance.choice((3, 4, 4, 4, 5)), chance.choice((1, 2, 2, 2, 3))
    width = chance.choice((1, 1, 2))
    active = chance.choice((TRUE, TRUE, less(T, 7), less(T % 4, 3), less(block % columns, 1), less(block // columns, 1)))
    row, other = T % 4 + line * high, T // 4 + column * low
    steps = [store(row, other, width, active=active)]
    if chance.random() < 0.3:
        steps.append(store(row + chance.choice((0, 0, 1)), other, width, write=False, active=chance.choice((active, TRUE))))
    array = matrix(
        lines * high + chance.choice((-2, 0, 4)), columns * low + chance.choice((-1, 0, 4)) + lines * columns * low * (line == 0)
    )
    program = kernel(*steps, threads=8, grid=lines * columns, buffers=(array,))
    shape = [size.evaluate({}) for size in array.tensor.shape]
    fixed = [one for one in (less(block % columns, 1), less(block // columns, 1)) if all(one == step.active for step in steps)]
    touched = {}
    for number, thread in itertools.product(range(lines * columns), range(8)):
        there = {"block": number, "thread": thread}
        for step in steps:
            about_blocks = "block" in {var.name for var in step.active.variables()}
            if step.active.evaluate(there) if not about_blocks or fixed else True:
                (access,) = step.accesses
                for offset in access.elements():
                    element = tuple(base.evaluate(there) + more for base, more in zip(access.base, offset))
                    if all(0 <= one < size for one, size in zip(element, shape)):
                        touched.setdefault(element, set()).add(number)
    meeting = {element: sorted(who) for element, who in touched.items() if len(who) > 1}
    found = between_blocks(Scene(program))
    assert bool(found) == bool(meeting), (program.body, found)
    for one in found:
        element, blocks = tuple(one.details["element"]), one.details["blocks"]
        assert element in meeting and blocks[0] != blocks[1] and set(blocks) <= set(meeting[element]), (one, meeting.get(element))
        assert (
            one.message
            == f"s[{element[0]}, {element[1]}]: blocks {blocks[0]} and {blocks[1]} both touch it, and blocks do not wait for each other"
        )


def test_what_mixes_blocks_and_threads_is_undecided():
    (one,) = said(writes(T * BLOCK))
    assert "undecided whether two blocks touch one element of s: the coordinate block * thread mixes block and thread" in one.message
    (one,) = said(writes(T + BLOCK * 32), writes(T + BLOCK * 64))
    assert "its accesses are offset by the block in different ways" in one.message
    assert (
        said(
            writes(T + BLOCK * 32),
            reads(T + BLOCK * 64, name="t"),
            buffers=(ARRAY, attrs.evolve(buffer("t", 1 << 16, memory=GL), written=False)),
        )
        == []
    )


@pytest.mark.parametrize(("step", "alarms"), [(32 * 3, 0), (32 * 2, 1), (32, 1)])
def test_turns_that_step_over_all_blocks(step, alarms):
    """Blocks lie side by side in each turn, and each turn is behind all of them."""
    blocks = Var("block", 0, 2)
    turns = Var("turns", 1, 1 << 10, 1, True)
    body = loop(turns, writes(Var("thread", 0, 31) + i * step + blocks * 32))
    found = said(body, grid=3, symbols=(turns,), buffers=(buffer("s", 1 << 20, memory=GL),))
    assert len(found) == alarms, found
