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
from fireiron.values.expr import Var, as_expr, less

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
    from fireiron.values.tensor import Mode, Tensor

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
