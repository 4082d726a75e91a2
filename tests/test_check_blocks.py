"""Races between blocks: random accesses to global arrays, compared with all pairs of blocks."""

import itertools
import random

import attrs
import making
import numpy as np
import pytest
from touching import T, buffer, i, kernel, loop, reads, touch, writes

from fireiron import *
from fireiron import ir
from fireiron.check import AccessTrace
from fireiron.check import blocks as subject
from fireiron.check.blocks import between_blocks, local_coordinates
from fireiron.values.expr import TRUE, Var, all_of, as_expr, assume_positive, floordiv, hilbert, less, minimum, mod
from fireiron.values.tensor import Mode, Tensor

THREADS = 32
GRID = 12
BLOCK = Var("block", 0, GRID - 1)
N = Var("N", 1, 1 << 20, 1, True)
ARRAY = buffer("s", 1 << 16, memory=GL)


def findings_of(*body, grid=GRID, **options):
    options = {"buffers": (ARRAY,), "threads": THREADS, **options}
    return between_blocks(AccessTrace(kernel(*body, grid=grid, **options)))


def meet(program):
    """Whether two blocks access one element and one of them writes it, over all threads, blocks and iterations, with conditions."""
    touched = {}

    def run(body, values):
        for stmt in body:
            if isinstance(stmt, ir.For):
                for number in range(stmt.extent.evaluate(values)):
                    run(stmt.body, {**values, stmt.var.name: number})
                continue
            for thread in range(program.threads):
                env = {**values, "thread": thread}
                if stmt.performed.evaluate(env):
                    for access in stmt.accesses:
                        for (offset,) in access.elements():
                            place = access.buffer, access.base[0].evaluate(env) + offset
                            touched.setdefault(place, set()).add((values["block"], access.write))

    for block in range(program.grid.evaluate({})):
        run(program.body, {"block": block})
    return any(len({block for block, _ in who}) > 1 and any(write for _, write in who) for who in touched.values())


def drawn(chance):
    """One or two accesses whose blocks have separate parts, or almost."""
    width = chance.choice((1, 1, 2, 4))
    inner = T * width
    reach = (THREADS - 1) * width + width
    iterations = chance.choice((1, 1, 3))
    inner, reach = inner + i * reach, reach * iterations
    rows = chance.choice((1, 2, 3, 4))
    low = reach + chance.choice((-1, 0, 0, 0, 7))
    high = low * rows + chance.choice((-1, 0, 0, 0, 16))
    outer = chance.choice((BLOCK * low, BLOCK % rows * low + BLOCK // rows * high, BLOCK // rows * high + (BLOCK % rows) * low))
    places = [inner + outer] + ([inner + outer + chance.choice((0, 0, 1, reach))] if chance.random() < 0.4 else [])
    # A condition on the block counts as true there, except for `digit < 1` of all that touches an array.
    steps = [(writes if number == 0 or chance.random() < 0.5 else reads)(place, width=width) for number, place in enumerate(places)]
    return kernel(loop(iterations, *steps), threads=THREADS, grid=GRID, buffers=(ARRAY,))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("chunk", range(6))
def test_random_accesses_compared_with_all_pairs_of_blocks(chunk):
    verdicts = set()
    for seed in range(30 * chunk, 30 * (chunk + 1)):
        program = drawn(random.Random(f"blocks {seed}"))
        expected, findings = meet(program), between_blocks(AccessTrace(program))
        assert bool(findings) == expected, (seed, program.body, findings)
        assert not any("undecided" in one.message for one in findings), seed
        verdicts.add(expected)
    assert verdicts == {True, False}


def test_one_block_has_no_conflict():
    assert findings_of(writes(T), grid=1) == [] and findings_of(writes(T)) != []
    assert findings_of(reads(T)) == [], "reads need no order"
    assert findings_of(touch(T, write=True, level=Thread, name="s"), grid=2) != []


@pytest.mark.parametrize(("step", "alarms"), [(31, 1), (32, 0), (33, 0), (0, 1)])
def test_the_step_of_a_block(step, alarms):
    findings = findings_of(writes(T + BLOCK * step))
    assert len(findings) == alarms
    for finding in findings:
        assert (finding.kind, finding.severity, finding.buffer, finding.at) == ("race", "error", "s", "hand.py:1")
        assert "blocks" in finding.details and len(finding.details["blocks"]) == 2


def test_findings_name_conflicting_blocks_and_their_element():
    """The finding can be verified: both blocks access the element."""
    for step, rows in ((31, 1), (16, 1), (32, 3)):
        place = T + (BLOCK % rows * 4 if rows > 1 else BLOCK * step)
        (finding,) = findings_of(writes(place))
        first, second = finding.details["blocks"]
        reached = [{place.evaluate({"thread": t, "block": block}) for t in range(THREADS)} for block in (first, second)]
        assert first != second and set(finding.details["element"]) <= reached[0] & reached[1]


def test_a_digit_that_is_0_in_all_accesses():
    """`digit < 1` in all accesses proves equal digits; in one access alone it does not."""
    column, row = BLOCK % 4, BLOCK // 4
    only = less(column, 1)
    assert findings_of(writes(T + row * 32)) != []
    assert findings_of(writes(T + row * 32, active=only)) == []
    assert findings_of(writes(T + row * 32, active=only), reads(T + row * 32)) != []
    assert findings_of(writes(T + row * 32, active=only), reads(T + row * 32, active=only)) == []
    assert findings_of(writes(T + row * 32, active=less(column, 2))) != [], "two different conditions"
    assert findings_of(writes(T + row * 32, active=less(row, 1))) != []


def test_atomic_additions_do_not_conflict():
    adding = attrs.evolve(writes(T), spec=AtomicAdd(1, 1)(RF, GL)(Thread))
    assert adding.atomic and findings_of(adding) == []
    assert findings_of(adding, reads(T)) != []


def test_run_time_sizes():
    """Proved for all sizes, refuted at some, or undecided; the latter two are errors."""
    blocks = (N + 31) // 32
    block = Var("block", 0, (1 << 15) - 1)
    long = buffer("s", 1 << 20, memory=GL)
    assert findings_of(writes(T + block * 32), grid=blocks, symbols=(N,), buffers=(long,)) == []
    (finding,) = findings_of(writes(T + block * 31), grid=blocks, symbols=(N,), buffers=(long,))
    assert finding.severity == "error"
    (finding,) = findings_of(writes(T), grid=blocks, symbols=(N,), buffers=(long,))
    assert finding.severity == "error"


def test_many_blocks_are_undecided_or_decoded():
    many = Var("block", 0, (1 << 24) - 1)
    long = buffer("s", 1 << 30, memory=GL)
    assert findings_of(writes(T + many * 32), grid=1 << 24, buffers=(long,)) == []
    (finding,) = findings_of(writes(T + many % 4096 * many % 4096 * 32), grid=1 << 24, buffers=(long,))
    assert "undecided whether two blocks access one element of s" in finding.message and ".unchecked(reason)" in finding.message


@pytest.mark.parametrize("shape", [(8, 4), (5, 7)])
def test_two_dimensions(shape):
    """Two-dimensional tiles, one per block; tiles that are disjoint in either dimension are disjoint."""
    rows, columns = 4, 3
    tensor = Tensor("s", (as_expr(rows * shape[0]), as_expr(columns * shape[1])), float32, GL, ColMajor)
    storage = tensor.storage()
    array = making.buffer(tensor, storage, storage.extent, written=True)

    def store(row_step, column_step, inner=0):
        base = (T % shape[0] + BLOCK % rows * row_step, i + BLOCK // rows * column_step + inner)
        access = making.access(
            "s", tuple(map(as_expr, base)), ((Mode(1, 1),),) * 2, (None, None), True, unit_modes=((), ()), origin="mine.py:5"
        )
        step = making.execution(spec=Move(1, 1)(RF, GL)(Thread), accesses=(access,), instruction=writes(0).instruction)
        return findings_of(loop(shape[1], step), buffers=(array,))

    assert store(*shape) == []
    assert store(shape[0] - 1, shape[1]) != [] and store(shape[0], shape[1] - 1) != []
    assert store(0, shape[1]) != [] and store(shape[0], 0) != []


def test_local_coordinates_leave_out_the_block():
    thread, iteration = Var("thread", 0, THREADS - 1), Var("turn", 0, 2)
    body = loop(3, writes(thread * 2 + iteration + BLOCK * 128, width=2), var=iteration)
    access_trace = AccessTrace(kernel(body, threads=THREADS, grid=GRID, buffers=(ARRAY,)))
    local = local_coordinates(access_trace)["s"]
    assert local.problem is None and (local.low, local.high) == ((0,), (31 * 2 + 2 + 1,))
    (use,) = access_trace.uses
    for block, number, step in itertools.product((0, 5), (0, 7, 31), (0, 2)):
        values = {"block": block, "thread": number, "turn": step}
        parts = local.parts[use.access.base][0].evaluate(values), local.offset[0].evaluate(values)
        assert parts == (number * 2 + step, block * 128)


# ------------------------------------------------------------------------------ clusters in grouped order


TALL, BROAD = Var("tall", 1, 11, 1, True), Var("broad", 1, 9, 1, True)
EVEN = Var("even", 2, 12, 2, True)
ANY = Var("block", 0, (1 << 31) - 2)


def matrix(rows, columns):
    tensor = Tensor("s", (as_expr(rows), as_expr(columns)), float32, GL, ColMajor)
    storage = tensor.storage()
    return making.buffer(tensor, storage, storage.extent, written=True)


def store(row, column, width=1, write=True, active=TRUE):
    """A statement that touches `width` rows of a column."""
    modes = ((Mode(width, 1),), (Mode(1, 1),))
    access = making.access("s", (as_expr(row), as_expr(column)), modes, (None, None), write, unit_modes=((), ()), origin="mine.py:5")
    return making.execution(spec=Move(1, 1)(RF, GL)(Thread), accesses=(access,), instruction=writes(0).instruction, active=active)


def tiles(line, column, lines, columns, grid, *, rows=8, wide=4, symbols=(), step=None):
    """The findings if each block stores a tile of 8 x 4 elements, at a place among lines x columns tiles."""
    high, low = step or (rows, wide)
    stmt = store(T % rows + line * high, T // rows + column * low)
    array = matrix(lines * high, columns * low)
    return between_blocks(AccessTrace(kernel(stmt, threads=rows * wide, grid=grid, buffers=(array,), symbols=symbols)))


def in_groups(lines, columns, rows, block=ANY, height=None):
    """The tile of a block in grouped order: down a given number of rows, then one column on; the last group contains the remaining rows."""
    band, inside = floordiv(block, columns * rows), mod(block, columns * rows)
    left = assume_positive(minimum(as_expr(rows), lines - band * rows)) if height is None else as_expr(height)
    return band * rows + mod(inside, left), floordiv(inside, left)


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 7])
@pytest.mark.parametrize(
    ("lines", "columns"), [(TALL, BROAD), (TALL, as_expr(6)), (as_expr(6), BROAD), (as_expr(6), as_expr(5)), (TALL, EVEN // 2)]
)
def test_blocks_in_grouped_order(lines, columns, rows):
    """Each tile is of one block, whatever the sizes are; down the rows or along the columns."""
    symbols = (TALL, BROAD, EVEN)
    line, column = in_groups(lines, columns, rows)
    grid = lines * columns
    assert tiles(line, column, lines, columns, grid, symbols=symbols) == []
    assert tiles(column, line, columns, lines, grid, symbols=symbols) == [], "in the other direction"
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


def test_orders_that_are_not_grouped():
    """With another height, or another number of columns than that of the grid."""
    symbols = (TALL, BROAD, EVEN)
    for rows, height in ((3, 4), (2, 4), (4, 5)):
        line, column = in_groups(TALL, BROAD, rows, height=height)
        assert tiles(line, column, TALL, BROAD, TALL * BROAD, symbols=symbols) != [], "rows of the next group"
    line, column = in_groups(EVEN, BROAD, 2, height=2)
    assert tiles(line, column, EVEN, BROAD, EVEN * BROAD, symbols=symbols) == [], "all groups are complete"
    line, column = in_groups(TALL, BROAD, 4, block=ANY // 2)
    assert tiles(line, column, TALL, BROAD, TALL * BROAD * 2, symbols=symbols) != [], "two blocks per tile"
    line, column = in_groups(TALL, BROAD + 1, 4)
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
        (assume_positive(TALL - ANY) - 1, 0, TALL, True),
        (assume_positive(TALL - ANY // 2) - 1, ANY % 2, TALL * 2, True),
        (assume_positive(TALL - ANY // 2) - 1, 0, TALL * 2, False),
        (ANY % 4 + ANY // 4 * 4, 0, TALL * 4, True),
        (ANY % 4 + ANY // 4 * 3, 0, TALL * 4, False),
        (ANY // 4, ANY % 4, TALL * 4, True),
        (ANY // 8, ANY % 4, TALL * 4, False),
        (ANY // 8 * 2 + ANY % 2, ANY // 2 % 4, TALL * 8, True),
        (ANY // 8 * 2 + ANY % 2, ANY // 2 % 2, TALL * 8, False),
        (ANY * ANY, 0, TALL, False),
    ],
)
def test_digits_of_blocks_with_run_time_ranges(line, column, grid, apart):
    assert (tiles(as_expr(line), as_expr(column), TALL, BROAD, grid, symbols=(TALL, BROAD)) == []) == apart


@pytest.mark.parametrize("seed", range(60))
def test_random_tiles_compared_with_all_pairs_of_blocks(seed):
    """For a known number of blocks: digits, groups and curves with steps about as wide as the tiles; elements past the array belong to no
    block.
    """
    chance = random.Random(f"tiles {seed}")
    lines, columns = chance.choice((2, 3, 5)), chance.choice((2, 3, 4))
    block = Var("block", 0, lines * columns - 1)
    place = hilbert(block, as_expr(lines), as_expr(columns))
    line, column = chance.choice(
        (
            (block % lines, block // lines),
            (block // columns, block % columns),
            in_groups(as_expr(lines), as_expr(columns), 2, block),
            in_groups(as_expr(lines), as_expr(columns), 2, block, height=2),
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
        env = {"block": number, "thread": thread}
        for step in steps:
            about_blocks = "block" in {var.name for var in step.active.variables()}
            if step.active.evaluate(env) if not about_blocks or fixed else True:
                (access,) = step.accesses
                for offset in access.elements():
                    element = tuple(base.evaluate(env) + more for base, more in zip(access.base, offset))
                    if all(0 <= one < size for one, size in zip(element, shape)):
                        touched.setdefault(element, set()).add(number)
    shared_elements = {element: sorted(who) for element, who in touched.items() if len(who) > 1}
    findings = between_blocks(AccessTrace(program))
    assert bool(findings) == bool(shared_elements), (program.body, findings)
    for finding in findings:
        element, blocks = tuple(finding.details["element"]), finding.details["blocks"]
        assert element in shared_elements and blocks[0] != blocks[1] and set(blocks) <= set(shared_elements[element]), (
            finding,
            shared_elements.get(element),
        )
        assert (
            finding.message
            == f"s[{element[0]}, {element[1]}]: blocks {blocks[0]} and {blocks[1]} both access it, and blocks are not ordered"
        )


def test_coordinates_that_mix_blocks_and_threads_are_undecided():
    (finding,) = findings_of(writes(T * BLOCK))
    assert "undecided whether two blocks access one element of s: the coordinate block * thread mixes block and thread" in finding.message
    (finding,) = findings_of(writes(T + BLOCK * 32), writes(T + BLOCK * 64))
    assert "its accesses are offset by the block in different ways" in finding.message
    assert (
        findings_of(
            writes(T + BLOCK * 32),
            reads(T + BLOCK * 64, name="t"),
            buffers=(ARRAY, attrs.evolve(buffer("t", 1 << 16, memory=GL), written=False)),
        )
        == []
    )


@pytest.mark.parametrize(("step", "alarms"), [(32 * 3, 0), (32 * 2, 1), (32, 1)])
def test_iterations_that_step_over_all_blocks(step, alarms):
    """Blocks are adjacent in each iteration, and each iteration is past all of them."""
    blocks = Var("block", 0, 2)
    iterations = Var("turns", 1, 1 << 10, 1, True)
    body = loop(iterations, writes(Var("thread", 0, 31) + i * step + blocks * 32))
    findings = findings_of(body, grid=3, symbols=(iterations,), buffers=(buffer("s", 1 << 20, memory=GL),))
    assert len(findings) == alarms, findings


# ------------------------------------------------------------------------------ groups with other digits


LONG = buffer("s", 1 << 30, memory=GL)
LANE = Var("thread", 0, THREADS - 1)


def test_keys_distinguish_coordinates():
    """A number for each place of all dimensions, whether all of them fit a table or not."""
    for step in (1, 1 << 20):
        five = Var("i", 0, 4)
        access_trace = AccessTrace(
            kernel(
                loop(5, store(LANE % 8 * step + BLOCK * 8, LANE // 8 + five), var=five),
                threads=THREADS,
                grid=GRID,
                buffers=(matrix(96, 9),),
            )
        )
        local, (use,) = local_coordinates(access_trace)["s"], access_trace.uses
        frame = access_trace.frame([("thread", access_trace.threads), ("i", np.arange(5))])
        places = [one.ravel() for one in local.coordinates(frame, use.access)]
        keys = local.keys(frame, use.access).ravel()
        assert len({*zip(*(one.tolist() for one in places), strict=True)}) == len({*keys.tolist()}) == 8 * 8
        by_place = {}
        for key, *place in zip(keys.tolist(), *(one.tolist() for one in places), strict=True):
            assert by_place.setdefault(tuple(place), key) == key
        assert keys.min() == 0
        assert keys.max() == 7 * step + 7 * (8 if step == 1 else 1 << 30)


def test_analyzed_arrays():
    """Those of the grid that the kernel writes; one without accesses has no coordinates."""
    read_only = attrs.evolve(buffer("t", 1 << 16, memory=GL), written=False)
    unused = buffer("u", 64, memory=GL)
    access_trace = AccessTrace(kernel(writes(LANE + BLOCK * 32), reads(LANE, name="t"), writes(LANE, name="q"), threads=THREADS, grid=GRID,
                         buffers=(ARRAY, read_only, buffer("q", 64), unused)))  # fmt: skip
    coordinates = local_coordinates(access_trace)
    assert set(coordinates) == {"s", "u"} and coordinates["u"].parts == {} and coordinates["u"].problem is None
    assert (
        findings_of(
            writes(LANE + BLOCK * 32), reads(LANE, name="t"), writes(LANE, name="q"), buffers=(ARRAY, read_only, buffer("q", 64), unused)
        )
        == []
    )


def test_sizes_are_of_the_block():
    """What sizes add to a coordinate is the same for all accesses, as what blocks add is."""
    access_trace = AccessTrace(kernel(writes(LANE + BLOCK * 32 + N * 4 + 7), threads=THREADS, grid=GRID, buffers=(LONG,), symbols=(N,)))
    local = local_coordinates(access_trace)["s"]
    assert local.offset == (BLOCK * 32 + N * 4,) and (local.low, local.high) == ((7,), (38,))
    assert findings_of(writes(LANE + BLOCK * 32 + N * 4), buffers=(LONG,), symbols=(N,)) == []
    assert findings_of(writes(LANE + BLOCK * 31 + N * 4), buffers=(LONG,), symbols=(N,)) != []


def test_arrays_are_analyzed_separately():
    other = buffer("t", 1 << 16, memory=GL)
    findings = findings_of(writes(T), writes(T + BLOCK * 128, name="t"), buffers=(ARRAY, other), threads=128)
    assert [one.buffer for one in findings] == ["s"]
    findings = findings_of(writes(T), writes(T, name="t"), buffers=(ARRAY, other), threads=128)
    assert [one.buffer for one in findings] == ["s", "t"]
    assert findings_of(reads(T), writes(T + BLOCK * 128, name="t"), buffers=(ARRAY, other), threads=128) == []


def test_a_finding_names_blocks_and_element():
    """The last that writes, the two blocks, the element, and its sizes."""
    first, last = writes(LANE), attrs.evolve(writes(LANE), origin="mine.py:9")
    last = attrs.evolve(last, accesses=(attrs.evolve(last.accesses[0], origin="mine.py:9"),))
    (finding,) = findings_of(first, last, reads(LANE))
    assert finding.message == "s[0]: blocks 0 and 1 both access it, and blocks are not ordered" and finding.at == "mine.py:9"
    assert finding.details["lines"] == ["mine.py:9"] * 2 and finding.details["buffers"] == ["s", "s"] and finding.details["sizes"] == {}
    assert finding.details["blocks"] == (0, 1) and finding.details["element"] == [0] and len(finding.details["statements"]) == 2
    (finding,) = findings_of(writes(LANE + 5))
    assert finding.details["element"] == [5], "the first common element"


# ------------------------------------------------------------------------------ sizes that are known at run time


def of_size(place, symbol, grid=None, **options):
    (finding,) = findings_of(writes(place), grid=symbol if grid is None else grid, symbols=(symbol,), buffers=(LONG,), **options)
    return finding


@pytest.mark.parametrize(
    ("symbol", "limit", "at"),
    [
        (Var("N", 1, 1 << 20, 1, True), 299, 300),
        (Var("N", 1, 1 << 20, 1, True), 300, 1000),
        (Var("N", 1, 1 << 20, 1, True), 999, 1000),
        (Var("N", 1, 1 << 20, 1, True), 1000, None),
        (Var("N", 7, 1 << 20, 7, True), 300, 301),
        (Var("N", 7, 1 << 20, 7, True), 301, 1001),
        (Var("N", 7, 1 << 20, 7, True), 1001, None),
        (Var("N", 1, 500, 1, True), 499, 500),
        (Var("N", 1, 500, 1, True), 500, None),
        (Var("N", 400, 1 << 20, 1, True), 399, 400),
        (Var("N", 2000, 1 << 20, 1, True), 1999, 2000),
    ],
)
def test_a_race_is_reported_at_two_sizes(symbol, limit, at):
    """At about 300 and 1000, as near as the size may be: here blocks from a limit on write where the last before them does."""
    block = Var("block", 0, 1 << 20)
    finding = of_size(LANE + minimum(block, as_expr(limit - 1)) * 32, symbol)
    if at is None:
        assert "undecided" in finding.message and "the offsets of the blocks could not be decoded for all sizes" in finding.message
        return
    assert f"at N={at}, and blocks are not ordered" in finding.message and finding.details["sizes"] == {"N": at}
    assert finding.details["blocks"] == (limit - 1, limit) and finding.details["element"] == [(limit - 1) * 32]


def test_several_sizes_are_reported_together():
    block, m = Var("block", 0, 1 << 20), Var("M", 1, 40, 1, True)
    (finding,) = findings_of(writes(LANE + block // 2 * 32), grid=N, symbols=(N, m), buffers=(LONG,))
    assert "both access it at N=300, M=40, and" in finding.message and finding.details["sizes"] == {"N": 300, "M": 40}


# ------------------------------------------------------------------------------ many blocks


def test_grids_that_are_enumerated(monkeypatch):
    """Up to a limit of blocks; and of interleaved elements up to a limit together."""
    scattered = LANE * LANE * GRID + BLOCK * 5 % GRID  # no digit: squares of threads
    assert findings_of(writes(scattered)) == []
    monkeypatch.setattr(subject, "MANY", GRID * THREADS)
    assert findings_of(writes(scattered)) == []
    monkeypatch.setattr(subject, "MANY", GRID * THREADS - 1)
    (finding,) = findings_of(writes(scattered))
    assert "12 blocks access interleaved elements, too many to enumerate" in finding.message
    place = LANE + BLOCK * 5 % GRID * 31
    monkeypatch.setattr(subject, "MANY", GRID)
    (finding,) = findings_of(writes(place))
    assert "access interleaved elements" in finding.message
    monkeypatch.setattr(subject, "MANY", GRID - 1)
    (finding,) = findings_of(writes(place))
    assert "12 blocks are too many to enumerate" in finding.message
    assert findings_of(writes(LANE + BLOCK * 32)) == [], "digits need no enumeration"


def test_sizes_at_which_blocks_are_too_many(monkeypatch):
    monkeypatch.setattr(subject, "MANY", 299)
    finding = of_size(LANE + Var("block", 0, 1 << 20) // 2 * 32, N)
    assert "undecided" in finding.message and "could not be decoded for all sizes" in finding.message
    monkeypatch.setattr(subject, "MANY", 300)
    finding = of_size(LANE + Var("block", 0, 1 << 20) // 2 * 32, N)
    assert "at N=300" in finding.message


@pytest.mark.parametrize(
    ("place", "width"),
    [
        (LANE * LANE * GRID + BLOCK, 1),
        (LANE * LANE * 11 + BLOCK, 1),
        (LANE * LANE * 24 + BLOCK * 2, 2),
        (LANE * LANE * 24 + BLOCK * 2, 3),
        (LANE // 3 * LANE * 12 + BLOCK * 7 % 12, 1),
        (LANE // 3 * LANE * 12 + BLOCK * 8 % 12, 1),
        (LANE * LANE + BLOCK * 961, 1),
        (LANE * LANE + BLOCK * 962, 1),
    ],
    ids=str,
)
def test_interleaved_elements(place, width):
    """Over all threads and blocks: disjoint blocks, or a conflicting pair."""
    program = kernel(writes(place, width=width), threads=THREADS, grid=GRID, buffers=(ARRAY,))
    findings = between_blocks(AccessTrace(program))
    assert bool(findings) == meet(program)
    for finding in findings:
        (element,), blocks = finding.details["element"], finding.details["blocks"]
        assert blocks[0] != blocks[1]
        for block in blocks:
            assert any(
                place.evaluate({"thread": t, "block": block}) <= element < place.evaluate({"thread": t, "block": block}) + width
                for t in range(32)
            )


def test_conditions_on_threads_and_loops_exclude_elements():
    """Overlapping ranges may have no common accessed element."""
    half = less(LANE, 16)
    assert findings_of(writes(LANE + BLOCK * 16, active=half)) == [] != findings_of(writes(LANE + BLOCK * 16))
    assert findings_of(writes(LANE + BLOCK * 16, active=less(LANE, 17))) != []
    assert findings_of(loop(4, writes(LANE + i * 32 + BLOCK * 64, active=less(i, 2)))) == []
    assert findings_of(loop(4, writes(LANE + i * 32 + BLOCK * 64, active=less(i, 3)))) != []
    assert findings_of(writes(LANE + BLOCK * 16, active=half), reads(LANE + BLOCK * 16)) != [], "each with its condition"
    never = all_of((less(LANE, 4), less(9, LANE)))
    assert findings_of(writes(LANE + BLOCK * 8, active=never)) == [], "no access is active"
    symbolic = Var("block", 0, 1 << 20)
    assert findings_of(writes(LANE + symbolic * 16, active=half), grid=N, symbols=(N,), buffers=(LONG,)) == []
    assert findings_of(writes(LANE + symbolic * 16, active=less(LANE, 17)), grid=N, symbols=(N,), buffers=(LONG,)) != []


def test_elements_past_the_array_belong_to_no_block():
    small = buffer("s", 100, memory=GL)
    assert findings_of(writes(LANE + minimum(BLOCK, as_expr(4)) * 25 + 100), buffers=(small,)) == [], "all of it"
    (finding,) = findings_of(writes(LANE + minimum(BLOCK, as_expr(4)) * 25), buffers=(small,))
    assert finding.details["element"][0] < 100
    (finding,) = findings_of(writes(LANE - 31 + minimum(BLOCK, as_expr(0)) * 25 + BLOCK // 12), buffers=(small,))
    assert finding.details["element"] in ([0], [-31]) or 0 <= finding.details["element"][0] < 100
    low = writes(LANE - 4 + BLOCK % 6 * 32)
    (finding,) = findings_of(low, buffers=(small,))
    assert 0 <= finding.details["element"][0] < 100, "not the first element, which is before the array"
    at_end = buffer("s", 33, memory=GL)
    assert findings_of(writes(LANE + BLOCK * 5 % 12 * 33), buffers=(at_end,)) == []
    assert findings_of(writes(LANE + BLOCK // 6 * 32 + BLOCK % 6 * 31 * 33), buffers=(at_end,)) == []


# ------------------------------------------------------------------------------ loops and threads between blocks


SIXTY = Var("block", 0, 63)


@pytest.mark.parametrize(("step", "apart"), [(64, True), (63, False), (65, True)])
def test_blocks_between_the_elements_of_one_thread_and_the_next(monkeypatch, step, apart):
    """Threads, and loops around all accesses, that step over all blocks: of as many as are never enumerated."""
    monkeypatch.setattr(subject, "MANY", 64)
    few = Var("thread", 0, 15)

    def alone(*body, threads=16, **options):
        return findings_of(*body, threads=threads, grid=64, buffers=(LONG,), symbols=(N,), **options) == []

    assert alone(writes(few * step + SIXTY)) == apart
    assert alone(writes(few * step + SIXTY), reads(few * step + SIXTY)) == apart
    assert not alone(writes(few * step + SIXTY), reads(few * (step + 1) + SIXTY))
    assert not alone(writes(few * step + SIXTY, width=2)), "two elements each"
    assert alone(writes(few * step * 2 + SIXTY * 2, width=2)) == apart
    assert not alone(writes(few * step * 2 + SIXTY * 2, width=3))
    assert alone(loop(N, writes(few + i * step * 16 + SIXTY * 16))) == apart
    assert alone(loop(16, writes(i * step + SIXTY)), threads=1) == apart
    assert alone(loop(16, writes(i * step + SIXTY), reads(i * step + SIXTY)), threads=1) == apart
    assert not alone(loop(16, writes(i * step + SIXTY)), reads(SIXTY + 1), threads=1)
    assert not alone(loop(16, writes(i * step + SIXTY), reads(i * (step + 1) + SIXTY)), threads=1), "one of them by another step"
    fifth = Var("i", 0, 4)
    assert alone(loop(5, writes(few * step * 5 + fifth * step + SIXTY), var=fifth)) == apart
    assert alone(writes(few // 4 * step * 4 + few % 4 * step + SIXTY)) == apart
    assert not alone(writes(few // 4 * step * 3 + few % 4 * step + SIXTY))


J3, J4, J = Var("j", 0, 2), Var("j", 0, 3), Var("j", 0, 39)
ITERATIONS = Var("turns", 1, 1 << 10, 1, True)
MIXED = BLOCK * 5 % GRID  # each of 12 once, in no order of digits


@pytest.mark.parametrize(
    ("body", "apart"),
    [
        (loop(ITERATIONS, writes(LANE + MIXED * 32 + i * 384)), True),
        (loop(ITERATIONS, writes(LANE + MIXED * 32 + i * 383)), False),
        (loop(ITERATIONS, writes(LANE + MIXED * 32 + i * 385)), True),
        (loop(ITERATIONS, writes(LANE + MIXED * 31 + i * 384)), False),
        (loop(ITERATIONS, writes(LANE + MIXED * 33 + i * 395)), True),
        (loop(ITERATIONS, writes(LANE + MIXED * 33 + i * 394)), False),
        (loop(ITERATIONS, writes(LANE + BLOCK * 4 % GRID * 32 + i * 384)), False),
        (loop(ITERATIONS, writes(LANE + MIXED * 64 + i * 768, width=33)), True),
        (loop(ITERATIONS, writes(LANE + MIXED * 64 + i * 768, width=34)), False),
        (loop(ITERATIONS, writes(LANE + MIXED * 64 + i * 768), reads(LANE + MIXED * 64 + i * 768 + 32)), True),
        (loop(ITERATIONS, writes(LANE + MIXED * 64 + i * 768), reads(LANE + MIXED * 64 + i * 768 + 33)), False),
        (loop(ITERATIONS, loop(3, writes(LANE + MIXED * 32 + J3 * 384 + i * 1152), var=J3)), True),
        (loop(ITERATIONS, loop(3, writes(LANE + MIXED * 32 + J3 * 384 + i * 1151), var=J3)), False),
        (loop(ITERATIONS, loop(3, writes(LANE + MIXED * 32 + J3 * 383 + i * 1152), var=J3)), False),
        (loop(ITERATIONS, loop(4, writes(LANE + MIXED * 32 + J4 * 384 + i * 1152), var=J4)), False),
        (loop(ITERATIONS, loop(4, writes(LANE + MIXED * 32 + J4 * 384 + i * 1536), var=J4)), True),
        (loop(ITERATIONS, writes(LANE + MIXED // 2 * 32 + i * 384)), False),
    ],
    ids=str,
)
def test_iterations_of_blocks_that_are_not_digits(body, apart):
    """For a loop of unknown length: adjacent boxes in each iteration, and each iteration past all of them."""
    findings = findings_of(body, buffers=(LONG,), symbols=(ITERATIONS,))
    assert (findings == []) == apart, findings


def test_iterations_in_one_of_two_dimensions():
    """What all blocks have alike along one of them does not matter, nor how wide it is."""
    array = matrix(1 << 20, 64)
    body = loop(ITERATIONS, loop(40, store(LANE + MIXED * 32 + i * 384, J), var=J))
    assert findings_of(body, buffers=(array,), symbols=(ITERATIONS,)) == []
    body = loop(ITERATIONS, loop(40, store(LANE + MIXED * 31 + i * 384, J), var=J))
    assert findings_of(body, buffers=(array,), symbols=(ITERATIONS,)) != []
    body = loop(ITERATIONS, store(LANE + i * 384, MIXED))
    assert findings_of(body, buffers=(array,), symbols=(ITERATIONS,)) == []
    body = loop(ITERATIONS, store(LANE + i * 384, MIXED // 2))
    assert findings_of(body, buffers=(array,), symbols=(ITERATIONS,)) != []


def test_iterations_of_the_accessing_blocks():
    """If a digit is 0 in all accesses, the blocks of its other values need no separate place."""
    place = BLOCK * 5 % 6 * 32
    first = less(BLOCK // 6, 1)
    assert findings_of(loop(ITERATIONS, writes(LANE + place + i * 192, active=first)), buffers=(LONG,), symbols=(ITERATIONS,)) == []
    assert findings_of(loop(ITERATIONS, writes(LANE + place + i * 191, active=first)), buffers=(LONG,), symbols=(ITERATIONS,)) != []
    assert findings_of(loop(ITERATIONS, writes(LANE + place + i * 192)), buffers=(LONG,), symbols=(ITERATIONS,)) != []


@pytest.mark.parametrize(
    ("digit", "apart"),
    [
        (less(BLOCK % 4, 1), True),
        (less(BLOCK % 4, 2), False),
        (less(BLOCK % 4 - 1, 1), False),
        (less(BLOCK % 4 + LANE, 1), False),
        (less(LANE, 1), False),
        (less(BLOCK % 4, 1 + LANE), False),
        (all_of((less(BLOCK % 4, 1), less(LANE, 9))), True),
        (all_of((less(LANE, 9), less(BLOCK % 4, 1))), True),
    ],
    ids=str,
)
def test_which_conditions_fix_a_digit(digit, apart):
    """`digit < 1` of blocks alone, which is never negative: of four blocks in a row one takes part."""
    assert (findings_of(writes(LANE + BLOCK // 4 * 32, active=digit)) == []) == apart


# ------------------------------------------------------------------------------ digits


@pytest.mark.parametrize(
    ("digit", "apart"),
    [(ANY % 12 * 5 % 12, True), (ANY % 12 * 4 % 12, False), (ANY % 12 * 7 % 12, True), (11 - ANY % 12, True), (ANY % 12 // 2, False), (ANY % 6, False)],
    ids=str,
)  # fmt: skip
def test_a_remainder_that_is_enumerated(monkeypatch, digit, apart):
    """Each value of the remainder implies another digit, for a known number of values."""
    place = LANE + digit * 32 + ANY // 12 * 384
    assert (findings_of(writes(place), grid=N * 12, symbols=(N,), buffers=(LONG,)) == []) == apart
    if digit == ANY % 12 * 5 % 12:
        for most in (12, 11):
            monkeypatch.setattr(subject, "MAX_ENUMERATED_BLOCKS", most)
            assert (findings_of(writes(place), grid=N * 12, symbols=(N,), buffers=(LONG,)) == []) == (most == 12)


def test_digits_in_digits():
    """As deep as there are digits in a kernel, and some more."""
    for depth in range(1, 6):
        digits = [ANY // 2**number % 2 for number in range(depth)]
        place = (
            LANE
            + sum((digit * (32 << (depth - number)) for number, digit in enumerate(digits)), start=as_expr(0))
            + ANY // 2**depth * (64 << depth)
        )
        assert findings_of(writes(place), grid=N * 2**depth, symbols=(N,), buffers=(LONG,)) == [], depth
        short = place - digits[0] * (32 << depth)
        assert findings_of(writes(short), grid=N * 2**depth, symbols=(N,), buffers=(LONG,)) != [], depth


@pytest.mark.parametrize(("step", "apart"), [(64, True), (63, False), (-64, True), (-63, False)])
def test_digits_that_count_down(step, apart):
    """A coordinate that falls from block to block is as far apart."""
    high = as_expr(0) if step > 0 else as_expr(1 << 25)
    place = LANE + ANY % 2 * 32 + ANY // 2 * step + high
    assert (findings_of(writes(place), grid=N * 2, symbols=(N,), buffers=(LONG,)) == []) == apart
    place = LANE - ANY % 2 * 32 + ANY // 2 * step + high + 32
    assert (findings_of(writes(place), grid=N * 2, symbols=(N,), buffers=(LONG,)) == []) == apart


def test_names_of_digits():
    """Values of names, or the names themselves where their values are sums of other digits."""
    row, column = Var("row", 0, 1 << 20), Var("column", 0, 3)
    names = making.let(column, ANY % 4), making.let(row, ANY // 4)
    assert findings_of(*names, writes(LANE + row * 128 + column * 32), grid=N * 4, symbols=(N,), buffers=(LONG,)) == []
    assert findings_of(*names, writes(LANE + row * 127 + column * 32), grid=N * 4, symbols=(N,), buffers=(LONG,)) != []
    assert findings_of(*names, writes(LANE + row * 128 + column * 31), grid=N * 4, symbols=(N,), buffers=(LONG,)) != []
    reversed_names = making.let(column, 3 - ANY % 4), making.let(row, ANY // 4)
    assert findings_of(*reversed_names, writes(LANE + row * 128 + column * 32), grid=N * 4, symbols=(N,), buffers=(LONG,)) == []


# ------------------------------------------------------------------------------ clusters in grouped order


def in_clusters(sizes, *, rows=2, columns=BROAD, lines=TALL, x=8, y=4, high=None, low=None, more=1, use=(True, True), curve=False):
    """The findings if clusters follow a grouped order with a given number of rows, and the blocks of one store adjacent tiles of 8 x 4
    elements.
    """
    wide, tall = sizes
    each = wide * tall
    across, other = Var("across", 0, tall - 1), Var("along", 0, wide - 1)
    names = making.let(across, ANY % tall), making.let(other, ANY // tall % wide)
    number = ANY // each
    if curve:
        place = hilbert(number, lines, columns)
        line, column = floordiv(place, columns), mod(place, columns)
    else:
        line, column = in_groups(lines, columns, rows, block=number)
        line, column = minimum(line, lines - 1), minimum(column, columns - 1)
    high, low = tall * 8 if high is None else high, wide * 4 if low is None else low
    row = T % 8 + line * high + (across * x if use[0] and tall > 1 else 0)
    step = store(row, T // 8 + column * low + (other * y if use[1] and wide > 1 else 0))
    places = tuple(place for place, size in ((across, tall), (other, wide)) if size > 1)
    cluster = making.block_cluster(tuple(size for size in (tall, wide) if size > 1), places)
    names = tuple(name for name in names if name.var in places)
    array = matrix(lines * high, columns * low)
    program = kernel(*names, step, threads=32, grid=lines * columns * each * more, buffers=(array,), symbols=(TALL, BROAD), cluster=cluster)
    return between_blocks(AccessTrace(program))


@pytest.mark.filterwarnings("ignore:divide by zero")
@pytest.mark.parametrize("curve", [False, True])
@pytest.mark.parametrize("sizes", [(1, 2), (2, 1), (2, 2), (1, 4)])
@pytest.mark.parametrize(("columns", "lines"), [(BROAD, TALL), (as_expr(6), TALL), (BROAD, as_expr(6))])
def test_clusters_that_walk(sizes, columns, lines, curve):
    wide, tall = sizes
    options = {"columns": columns, "lines": lines, "curve": curve}
    assert in_clusters(sizes, **options) == []
    assert in_clusters(sizes, **options, high=tall * 8 + 1, low=wide * 4 + 1) == [], "further apart"
    assert in_clusters(sizes, **options, high=tall * 8 - 1) != [] and in_clusters(sizes, **options, low=wide * 4 - 1) != []
    assert in_clusters(sizes, **options, more=2) != [], "two clusters per tile"
    if tall > 1:
        assert in_clusters(sizes, **options, x=7) != [] and in_clusters(sizes, **options, use=(False, True)) != []
        assert in_clusters(sizes, **options, x=9) != [], "its last reaches into the next cluster"
        assert in_clusters(sizes, **options, x=9, high=(tall - 1) * 9 + 8) == []
        assert in_clusters(sizes, **options, x=9, high=(tall - 1) * 9 + 7) != []
    if wide > 1:
        assert in_clusters(sizes, **options, y=3) != [] and in_clusters(sizes, **options, use=(True, False)) != []


@pytest.mark.parametrize("rows", [1, 3, 4])
def test_clusters_in_groups_of_other_heights(rows):
    for columns in (BROAD, as_expr(6), as_expr(5)):
        assert in_clusters((1, 2), rows=rows, columns=columns) == [] == in_clusters((2, 2), rows=rows, columns=columns)


# ------------------------------------------------------------------------------ groups with other digits


def in_layers(layer, place, grid, *, rows=2, active=TRUE, along=8):
    """Tiles of a group in each of some layers, which a digit selects."""
    line, column = in_groups(TALL, BROAD, rows, block=place)
    line, column = minimum(line, TALL - 1), minimum(column, BROAD - 1)
    tensor = Tensor("s", (TALL * 8, BROAD * 4, N), float32, GL, ColMajor)
    storage = tensor.storage()
    array = making.buffer(tensor, storage, storage.extent, written=True)
    base = (T % 8 + line * along, T // 8 + column * 4, as_expr(layer))
    access = making.access(
        "s", tuple(map(as_expr, base)), ((Mode(1, 1),),) * 3, (None,) * 3, True, unit_modes=((),) * 3, origin="mine.py:5"
    )
    step = making.execution(spec=Move(1, 1)(RF, GL)(Thread), accesses=(access,), instruction=writes(0).instruction, active=active)
    return between_blocks(AccessTrace(kernel(step, threads=32, grid=grid, buffers=(array,), symbols=(TALL, BROAD, N))))


def test_groups_in_layers():
    """The number within a layer follows the order, and the layer is a separate digit."""
    count = TALL * BROAD
    assert in_layers(ANY // count, ANY % count, count * N) == []
    assert in_layers(ANY // count // 2, ANY % count, count * N) != []
    assert in_layers(0, ANY % count, count * N) != []
    assert in_layers(ANY // count, ANY % count, count * N, along=7) != []
    assert in_layers(ANY // (count + 1), ANY % count, count * N) != []


def test_groups_of_the_accessing_blocks():
    """For a digit that is 0 in all accesses the grid gives the number of its values."""
    count = TALL * BROAD
    split = ANY // count

    def fixed(grid, active, place=ANY % count):
        line, column = in_groups(TALL, BROAD, 2, block=place)
        line, column = minimum(line, TALL - 1), minimum(column, BROAD - 1)
        stmt = store(T % 8 + line * 8, T // 8 + column * 4, active=active)
        return between_blocks(
            AccessTrace(kernel(stmt, threads=32, grid=grid, buffers=(matrix(TALL * 8, BROAD * 4),), symbols=(TALL, BROAD)))
        )

    assert fixed(count * 4, less(split, 1)) == []
    assert fixed(count * 4, less(split, 2)) != []
    assert fixed(count * 4, TRUE) != []


def limited(row=0, column=0, *, names=False, height=8):
    """Tiles of 8 x 4 elements in grouped order, with limits, whose coordinates have an added term."""
    line, tile = in_groups(TALL, BROAD, 2)
    line, tile = minimum(line, TALL - 1), minimum(tile, BROAD - 1)
    places = (line * height, tile * 4)
    body = ()
    if names:
        rows, columns = Var("rows", 0, 1 << 20), Var("columns", 0, 1 << 20)
        body, places = (making.let(rows, places[0]), making.let(columns, places[1])), (rows, columns)
    stmt = store(T % 8 + places[0] + row, T // 8 + places[1] + column)
    symbols = (TALL, BROAD, N, Var("Z", 0, 9, 1, True))
    return between_blocks(
        AccessTrace(kernel(*body, stmt, threads=32, grid=TALL * BROAD, buffers=(matrix(TALL * 8, BROAD * 4),), symbols=symbols))
    )


def test_groups_with_an_added_term():
    """A term of sizes is equal for all blocks; names are resolved; a multiple of a possibly zero size is not a tile."""
    zero = Var("Z", 0, 9, 1, True)
    assert limited() == [] == limited(names=True)
    assert limited(N * 8) == [] == limited(0, N * 3 + 5)
    assert limited(height=7) != [] and limited(height=7, names=True) != []
    assert limited(height=zero * 8) != []
    assert limited(ANY % 2) != []


def test_disjoint_boxes_need_no_elements(monkeypatch):
    """Accesses of several widths: the longest of all does not reach from the last of all."""
    for many in (1 << 22, GRID):
        monkeypatch.setattr(subject, "MANY", many)
        for step, apart in ((64, True), (62, True), (61, False)):
            body = writes(LANE + MIXED * step, width=4), reads(LANE + 30 + MIXED * step)
            assert (findings_of(*body) == []) == apart, (many, step)
        array = matrix(1 << 12, 64)
        for step, apart in ((64, True), (62, True), (61, False)):
            body = store(LANE + MIXED * step, LANE % 31, 4), store(LANE + 30 + MIXED * step, LANE % 31, write=False)
            assert (findings_of(*body, buffers=(array,)) == []) == apart, (many, step)


def test_accesses_that_begin_at_other_places():
    """From the first of all to the last of all is what a block touches."""
    block = Var("block", 0, 1 << 20)
    for other, step, apart in ((32, 64, True), (33, 64, False), (33, 65, True), (-32, 64, True), (-33, 64, False)):
        body = writes(LANE + block * step + 64), reads(LANE + block * step + 64 + other)
        assert (findings_of(*body, grid=N, symbols=(N,), buffers=(LONG,)) == []) == apart, (other, step)
        body = writes(LANE + block * step + 64, active=less(LANE, 32 - N * 0)), reads(LANE + block * step + 64 + other)
        assert (findings_of(*body, grid=N, symbols=(N,), buffers=(LONG,)) == []) == apart, (other, step)


def test_fixed_digits_prove_nothing_about_others():
    """Two of one digit leave others open, though no coordinate has the block's number in it."""
    both = all_of((less(BLOCK // 4, 1), less(BLOCK // 8, 1)))
    assert findings_of(writes(LANE, active=both)) != []
    assert findings_of(writes(LANE, active=all_of((less(BLOCK // 4, 1), less(BLOCK % 4, 1))))) == []
    assert findings_of(writes(LANE + BLOCK % 4 * 32, active=both)) == []
    assert findings_of(writes(LANE + BLOCK % 4 * 31, active=both)) != []


def test_the_first_conflicting_pair():
    """Of boxes that are equal the first that is twice; of elements the first that two touch."""
    (finding,) = findings_of(writes(LANE + minimum(BLOCK, as_expr(7)) * 32))
    assert finding.details["blocks"] == (7, 8) and finding.details["element"] == [224]
    (finding,) = findings_of(writes(LANE + BLOCK * 5 % 7 * 32))
    assert finding.details["blocks"] == (0, 7) and finding.details["element"] == [0]
    (finding,) = findings_of(writes(LANE + BLOCK * 31))
    assert finding.details["blocks"] == (0, 1) and finding.details["element"] == [31]
    (finding,) = findings_of(writes(LANE + BLOCK * 5 % GRID * 31))
    assert finding.details["blocks"] == (0, 5) and finding.details["element"] == [31]
    (finding,) = findings_of(writes(LANE + BLOCK // 4 * 31, active=less(BLOCK % 4, 1)))
    assert finding.details["blocks"] == (0, 4) and finding.details["element"] == [31], "of those that take part"
    (finding,) = findings_of(writes(LANE + BLOCK // 8 * 32, active=less(BLOCK % 4, 1)))
    assert finding.details["blocks"] == (0, 4) and finding.details["element"] == [0]


@pytest.mark.parametrize("extra", [0, 1])
def test_in_one_of_several_dimensions(extra):
    """Steps and widths of each dimension by itself: what is apart in one of them may be as it likes in the other."""
    array = matrix(1 << 12, 1 << 12)
    assert findings_of(store(LANE + MIXED * 32, LANE * LANE % 7 + MIXED), buffers=(array,)) == []
    assert findings_of(store(LANE % 4 + BLOCK * 5 % 3 * (4 - extra), LANE // 4 + BLOCK // 3 * 8), buffers=(array,)) == [] or extra
    body = loop(ITERATIONS, store(LANE % 4 + BLOCK * 5 % 3 * 4 + i * (12 - extra), LANE // 4 + BLOCK // 3 * 8))
    assert (findings_of(body, buffers=(array,), symbols=(ITERATIONS,)) == []) == (not extra)
    body = loop(ITERATIONS, store(LANE % 4 + BLOCK * 5 % 3 * 4 + i * 12, LANE // 4 + BLOCK // 3 * (8 - extra)))
    assert (findings_of(body, buffers=(array,), symbols=(ITERATIONS,)) == []) == (not extra)
    body = loop(ITERATIONS, store(LANE % 4 + BLOCK * 5 % 3 * (4 - extra) + i * 12, LANE // 4 + BLOCK // 3 * 8))
    assert (findings_of(body, buffers=(array,), symbols=(ITERATIONS,)) == []) == (not extra)


@pytest.mark.parametrize(
    ("place", "shows"),
    [
        (lambda block, size: LANE + block * size, "undecided"),
        (lambda block, size: LANE + block % 4 * 32 + block // 4 * size, "undecided"),
        (lambda block, size: LANE + block // 2 * size, "at N=300"),
    ],
)
def test_steps_of_a_run_time_size(place, shows):
    """Nothing proves that they are wide enough; at two sizes they may be too narrow."""
    (finding,) = findings_of(writes(place(Var("block", 0, 11), N)), symbols=(N,), buffers=(LONG,))
    assert shows in finding.message
    narrow = Var("Z", 0, 9, 1, True)
    (finding,) = findings_of(writes(place(Var("block", 0, 11), narrow)), symbols=(narrow,), buffers=(LONG,))
    assert "at Z=9" in finding.message


def test_elements_past_an_array_of_a_run_time_size():
    """At the tried sizes only elements in bounds count."""
    block = Var("block", 0, 1 << 20)
    own = matrix(N * 32, 1)
    inside, beyond = store(LANE + block // 2 * 32, 0), store(LANE + block // 2 * 32 + N * 32, 0)
    (finding,) = findings_of(inside, grid=N, symbols=(N,), buffers=(own,))
    assert "at N=300" in finding.message and finding.details["element"] == [0, 0]
    (finding,) = findings_of(beyond, grid=N, symbols=(N,), buffers=(own,))
    assert "undecided" in finding.message
    (finding,) = findings_of(store(LANE + block // 2 * 32 + N * 32 - 1, 0), grid=N, symbols=(N,), buffers=(own,))
    assert "at N=300" in finding.message and finding.details["element"] == [300 * 32 - 1, 0]


@pytest.mark.parametrize("width", [1, 3])
def test_the_reach_under_conditions(width):
    """From the first that is touched to the last, with all elements of each, in all loops and of all accesses."""
    block = Var("block", 0, 1 << 20)

    def alone(step, *body):
        return findings_of(*(one(step) for one in body), grid=N, symbols=(N,), buffers=(LONG,)) == []

    range_of = lambda low, high, more=0: (
        lambda step: writes(LANE + block * step + more, width=width, active=all_of((less(low - 1, LANE), less(LANE, high))))
    )
    for low, high in ((0, 8), (4, 8), (7, 8), (24, 32)):
        assert alone(high - low + width - 1, range_of(low, high)) and not alone(high - low + width - 2, range_of(low, high)), (low, high)
    assert alone(19 + width, range_of(0, 4), range_of(0, 4, 16)) and not alone(18 + width, range_of(0, 4), range_of(0, 4, 16))
    assert alone(19 + width, range_of(0, 4, 16), range_of(0, 4)) and not alone(18 + width, range_of(0, 4, 16), range_of(0, 4))
    few = Var("i", 0, 7)
    turning = lambda step: loop(8, writes(LANE % 4 + few * 4 + block * step, width=width, active=less(few, 2)), var=few)
    assert alone(7 + width, turning) and not alone(6 + width, turning)
    both = lambda step: loop(8, writes(LANE % 4 + few * 4 + block * step, width=width, active=less(few * 4 + LANE, 6)), var=few)
    assert alone(5 + width, both) and not alone(4 + width, both)
    open_ = lambda step: loop(N, writes(LANE % 4 + i * 4 + block * step, width=width, active=less(LANE, 2)))
    assert not alone(64, open_), "the length is unknown"


# ---------------------------------------------------------------------------------------------- parts of it, by tables


def parts_of(*body, threads=THREADS, **options):
    """A scene, the local coordinates of its array, and the uses."""
    access_trace = AccessTrace(kernel(*body, threads=threads, **{"grid": GRID, "buffers": (LONG,), "symbols": (N,), **options}))
    return access_trace, local_coordinates(access_trace)["s"], [use for use in access_trace.uses if use.access.buffer == "s"]


FIVE = Var("i", 0, 4)


@pytest.mark.parametrize(
    ("body", "digits", "widths"),
    [
        ((writes(LANE + BLOCK * 32),), [(((BLOCK, 32),), 32)], [32]),
        ((writes(LANE + BLOCK * 32, width=3),), [(((BLOCK, 32),), 34)], [34]),
        ((writes(LANE + BLOCK % 3 * 32 + BLOCK // 3 * 100 + 7),), [(((BLOCK % 3, 32), (BLOCK // 3, 100)), 32)], [32]),
        ((writes(LANE + BLOCK * 64), reads(LANE + BLOCK * 64 + 9)), [(((BLOCK, 64),), 41)], [41]),
        ((writes(LANE + BLOCK * 64 + 9), reads(LANE + BLOCK * 64, width=2)), [(((BLOCK, 64),), 42)], [41]),
        ((writes(LANE * 64 + BLOCK * 4, width=4),), [(((BLOCK, 4), (LANE, 64)), 4)], [1988]),
        ((writes(LANE * 4 + BLOCK * 4, width=4),), [(((BLOCK, 4),), 128)], [128]),
        ((loop(5, writes(LANE + BLOCK * 32 + FIVE * 512), var=FIVE),), [(((BLOCK, 32), (FIVE, 512)), 32)], [2080]),
        ((loop(5, writes(LANE + BLOCK * 32 + FIVE * 32), var=FIVE),), [(((BLOCK, 32),), 160)], [160]),
        ((loop(5, writes(LANE + BLOCK * 32 + FIVE * 33), var=FIVE),), [(((BLOCK, 32), (FIVE, 33)), 32)], [164]),
        ((loop(5, writes(LANE + BLOCK * 64 + FIVE * 512), reads(LANE + BLOCK * 64 + FIVE * 512 + 1), var=FIVE),), [(((BLOCK, 64), (FIVE, 512)), 33)], [2081]),
        ((loop(5, writes(LANE + BLOCK * 64 + FIVE * 512), reads(LANE + BLOCK * 64 + FIVE * 513), var=FIVE),), [(((BLOCK, 64),), 2084)], [2084]),
        ((loop(5, writes(LANE + BLOCK * 64 + FIVE * 512), var=FIVE), reads(LANE + BLOCK * 64)), [(((BLOCK, 64),), 2080)], [2080]),
        ((writes(LANE + BLOCK * N),), None, [32]),
        ((writes(LANE + N * 4),), [((), 32)], [32]),
        ((writes(LANE - BLOCK * 32 + 4096),), [(((BLOCK, -32),), 32)], [32]),
    ],
)  # fmt: skip
def test_the_digits_of_a_coordinate(body, digits, widths):
    """Blocks first, then what moves all accesses alike by more than the least step of blocks; below a rest."""
    access_trace, local, uses = parts_of(*body)
    parsed_digits = subject._digits(access_trace, local, uses, local.offset)
    assert (None if parsed_digits is None else [(one.terms, one.width) for one in parsed_digits]) == digits
    first, *_ = subject._widths(access_trace, local, uses)
    assert first == widths
    tight = subject._tight_digits(access_trace, local, uses, local.offset)
    if digits is None:
        assert tight is None
    else:
        blocks = tuple(term for term in digits[0][0] if "block" in {var.name for var in term[0].variables()})
        assert [(one.terms, one.width) for one in tight] == [(blocks, widths[0])]


@pytest.mark.parametrize(
    ("body", "reach"),
    [
        ((writes(LANE + BLOCK * 32),), [32]),
        ((writes(LANE + BLOCK * 32, active=less(LANE, 5)),), [5]),
        ((writes(LANE + BLOCK * 32, width=4, active=less(LANE, 5)),), [8]),
        ((writes(LANE + BLOCK * 32, active=less(29, LANE)),), [2]),
        ((writes(LANE + BLOCK * 32, active=less(LANE, 2)), reads(LANE + BLOCK * 32 + 8, active=less(LANE, 1))), [9]),
        ((writes(LANE + BLOCK * 32, active=less(LANE, 2)), reads(LANE + BLOCK * 32, active=less(LANE, 0))), [2]),
        ((writes(LANE + BLOCK * 32, active=less(LANE, 0)),), None),
        ((writes(LANE + BLOCK * 32, active=less(BLOCK, 1)),), [32]),
        ((loop(5, writes(LANE + FIVE * 32 + BLOCK * 512, active=less(FIVE, 2)), var=FIVE),), [64]),
        ((loop(N, writes(LANE + i * 32 + BLOCK * 512, active=less(LANE, 2))),), None),
        ((loop(N, writes(LANE + BLOCK * 512, active=less(LANE, 2))),), [2]),
    ],
)
def test_how_far_a_block_reaches(body, reach):
    """With conditions on threads and loops; an empty or unknown range has no reach."""
    assert subject._reach(*parts_of(*body)) == reach


@pytest.mark.parametrize(("many", "known"), [(5 * 32, True), (5 * 32 - 1, False), (4 * 32, False)])
def test_limit_of_enumerated_threads_and_iterations(monkeypatch, many, known):
    use_parts = parts_of(loop(5, writes(LANE + FIVE * 32 + BLOCK * 512), var=FIVE))
    monkeypatch.setattr(subject, "MANY", many)
    assert (subject._reach(*use_parts) is not None) == (subject._elements(*use_parts) is not None) == known


def test_elements_of_a_block_are_each_named_once():
    access_trace, local, uses = parts_of(writes(LANE // 2 + BLOCK * 64, width=2), reads(LANE + 20 + BLOCK * 64, active=less(LANE, 3)))
    assert subject._elements(access_trace, local, uses).tolist() == [[one] for one in (*range(17), 20, 21, 22)]


@pytest.mark.parametrize(("low", "expected"), [(0, 0), (7, 0), (-3, 0)])
def test_keys_begin_at_the_least_coordinate(low, expected):
    access_trace, local, (use,) = parts_of(writes(LANE + BLOCK * 32 + low, width=2))
    assert (local.low, local.high) == ((low,), (low + 32,))
    frame = access_trace.frame([("thread", access_trace.threads)])
    assert local.keys(frame, use.access).tolist() == [[one, one + 1] for one in range(32)]
    assert [one.tolist() for one in local.coordinates(frame, use.access)] == [[[one + low, one + low + 1] for one in range(32)]]


@pytest.mark.parametrize(
    ("low", "high", "weights"),
    [
        ((0,), (9,), (1,)),
        ((2, 3), (4, 9), (1, 3)),
        ((0, 0, 5), (1, 2, 5), (1, 2, 6)),
        ((0, 0), (2047, 2047), (1, 2048)),
        ((0, 0), (2047, 2048), (1, 1 << 30)),
        ((0, 0, 0), (1 << 20, 9, 9), (1, 1 << 20, 1 << 40)),
    ],
)
def test_place_values_of_dimensions(low, high, weights):
    """Each so large as all before it reach; or the same for all, where that is more than a table holds."""
    assert subject.Local({}, (), low, high).weights == weights


@pytest.mark.parametrize(
    ("value", "counted"),
    [
        (BLOCK, BLOCK),
        (BLOCK % 4, BLOCK % 4),
        (3 - BLOCK % 4, BLOCK % 4),
        (N - BLOCK, BLOCK),
        (assume_positive(N - BLOCK // 2) - 1, BLOCK // 2),
        (BLOCK * 2, BLOCK * 2),
        (N - BLOCK * 2, N - BLOCK * 2),
        (BLOCK + BLOCK // 3, BLOCK + BLOCK // 3),
        (N * BLOCK, N * BLOCK),
        (N * BLOCK + 1, N * BLOCK + 1),
    ],
    ids=str,
)
def test_the_digit_that_a_value_counts(value, counted):
    assert subject._counted_value(AccessTrace(kernel(writes(LANE), threads=THREADS)), as_expr(value)) == counted


@pytest.mark.parametrize(
    ("size", "part", "times"),
    [(EVEN, EVEN // 2, 2), (TALL, as_expr(3), 3), (TALL, TALL, 1), (as_expr(12), as_expr(5), 2), (TALL * 3, TALL, 3), (BROAD, TALL, 0), (as_expr(7), as_expr(0), 7)],
    ids=str,
)  # fmt: skip
def test_quotients_of_sizes(size, part, times):
    assert subject._times(size, part) == times


Q4, R4 = ANY // 4, ANY % 4


@pytest.mark.parametrize(
    ("value", "known", "depth", "follows"),
    [
        (ANY, (ANY,), 1, True),
        (ANY, (ANY,), 0, False),
        (None, (ANY,), 6, False),
        (ANY, (), 6, False),
        (as_expr(3), (), 1, True),
        (Var("block", 5, 5), (), 1, True),
        (ANY, (Q4, R4), 2, True),
        (ANY, (Q4, R4), 1, False),
        (ANY, (Q4,), 6, False),
        (ANY, (R4,), 6, False),
        (ANY, (Q4, R4 // 2, R4 % 2), 3, True),
        (ANY, (Q4 // 8, Q4 % 8, R4), 3, True),
        (ANY, (Q4 // 8, Q4 % 8, R4), 2, True),
        (ANY, (Q4 // 8, Q4 % 8, R4), 1, False),
        (ANY, (Q4 // 8, Q4 % 4, R4), 6, False),
        (ANY, (Q4, R4 * 3 + 1), 3, True),
        (ANY, (Q4, R4 * 3 % 4), 3, True),
        (ANY, (Q4, R4 * 2 % 4), 3, False),
        (ANY, (ANY // 1, ANY % 1), 6, True),
    ],
    ids=str,
)
def test_implications_of_digits(value, known, depth, follows):
    assert subject._recovered(value, frozenset(known), depth) == follows


@pytest.mark.parametrize(
    ("active", "fixed"),
    [
        (less(BLOCK % 4, 1), (BLOCK % 4,)),
        (all_of((less(BLOCK % 4, 1), less(BLOCK // 4, 1))), (BLOCK % 4, BLOCK // 4)),
        (less(BLOCK % 4, 2), ()),
        (less(BLOCK % 4 - 1, 1), ()),
        (less(LANE, 1), ()),
        (less(BLOCK % 4 + LANE, 1), ()),
        (less(BLOCK // N, 1), (BLOCK // N,)),
        (less(N - 1, 1), ()),
        (TRUE, ()),
    ],
    ids=str,
)
def test_digits_that_conditions_fix(active, fixed):
    """Of blocks and sizes alone; of all uses."""
    access_trace, _, uses = parts_of(writes(LANE, active=active), reads(LANE, active=active))
    assert set(subject._fixed(access_trace, uses)) == set(fixed) and len(subject._fixed(access_trace, uses)) == len(fixed)
    access_trace, _, uses = parts_of(writes(LANE, active=active), reads(LANE))
    assert subject._fixed(access_trace, uses) == ()


def test_grids_with_too_many_blocks_to_enumerate(monkeypatch):
    """Whatever sizes there are."""
    for grid, text in ((GRID, "could not be decoded for all sizes"), (GRID + 1, "13 blocks are too many to enumerate")):
        monkeypatch.setattr(subject, "MANY", GRID)
        block = Var("block", 0, grid - 1)
        (finding,) = findings_of(writes(LANE + block * N), grid=grid, symbols=(N,), buffers=(LONG,))
        assert text in finding.message


@pytest.mark.parametrize("low", [0, 5, -2])
@pytest.mark.parametrize(
    ("place", "blocks", "element"),
    [
        (minimum(BLOCK, as_expr(7)) * 32, (7, 8), 224),
        (BLOCK * 31, (0, 1), 31),
        (BLOCK * 5 % GRID * 31, (0, 5), 31),
        (BLOCK * 5 % 7 * 32 + 32, (0, 7), 32),
    ],
    ids=str,
)
def test_the_element_of_a_pair_is_counted_from_the_start_of_the_array(place, blocks, element, low):
    """Whatever is the least that threads add."""
    if element + low >= 0:
        (finding,) = findings_of(writes(LANE + low + place))
        assert (finding.details["blocks"], finding.details["element"]) == (blocks, [element + low])


def test_elements_before_an_array_belong_to_no_block():
    (finding,) = findings_of(writes(LANE - 40 + minimum(BLOCK, as_expr(7)) * 32 % 64))
    assert finding.details["element"][0] >= 0


@pytest.mark.parametrize(
    ("parts", "least", "moves", "rests"),
    [
        ((LANE * 64 + 3,), 4, [(LANE, 64)], [3]),
        ((LANE * 64 + 3,), 64, [], [LANE * 64 + 3]),
        ((LANE * 64 + 3,), 0, [], [LANE * 64 + 3]),
        ((LANE * 64, LANE * 64 + 9), 4, [(LANE, 64)], [0, 9]),
        ((LANE * 64, LANE * 65), 4, [], [LANE * 64, LANE * 65]),
        ((FIVE * 100 + LANE * 64,), 4, [(FIVE, 100), (LANE, 64)], [0]),
        ((FIVE * 100 + LANE * 2,), 4, [(FIVE, 100)], [LANE * 2]),
        ((FIVE * 100, FIVE * 100 + LANE), 4, [(FIVE, 100)], [0, LANE]),
        ((FIVE * 100, FIVE * 99), 4, [], [FIVE * 100, FIVE * 99]),
        ((FIVE * LANE * 64,), 4, [], [FIVE * LANE * 64]),
        ((LANE // 4 * 64 + LANE % 4,), 4, [(LANE // 4, 64)], [LANE % 4]),
        ((LANE * -64,), 4, [], [LANE * -64]),
    ],
    ids=str,
)
def test_terms_that_move_all_accesses_equally(parts, least, moves, rests):
    """Loops around all of them, then threads; what is left of each."""
    _, _, uses = parts_of(loop(5, *(writes(part) for part in parts), var=FIVE))
    common, left = subject._common_steps(uses, [as_expr(part) for part in parts], least)
    assert common == moves and left == [as_expr(one) for one in rests]


def test_a_loop_around_one_of_two_moves_not_both():
    _, _, uses = parts_of(loop(5, writes(FIVE * 100), var=FIVE), reads(LANE))
    assert subject._common_steps(uses, [FIVE * 100, as_expr(LANE)], 4) == ([], [FIVE * 100, as_expr(LANE)])
