"""Races by hand in memory of all shapes: what a finding says is computed again; arrays of two dimensions, buffers that overlap, units."""

import itertools
import random

import attrs
import pytest
from touching import BLOCK_BARRIER, T256, WARP_BARRIER, T, buffer, i, kernel, loop, touch, writes

from fireiron import *
from fireiron import ir
from fireiron.check import Scene, check_races
from fireiron.check.races.places import Places
from fireiron.values.expr import TRUE, Var, as_expr, equal, less
from fireiron.values.tensor import Mode, Tensor

THREADS = 64
STEP = writes(0).instruction


def found(*body, **options):
    return list(check_races(Scene(kernel(*body, **{"threads": THREADS, **options}))))


def shaped(name, *shape, memory=SH, dtype=float32, layout=ColMajor, offset=0):
    """A buffer of several dimensions."""
    tensor = Tensor(name, tuple(map(as_expr, shape)), dtype, memory, layout)
    storage = tensor.storage()
    return ir.Buffer(tensor, storage, storage.extent, offset=offset, written=True)


def at(*base, write=True, name="s", width=1, along=0, level=Thread, line="hand.py:1", **options):
    """A statement of one access at coordinates, `width` elements along one of them."""
    modes = tuple((Mode(width if dim == along else 1, 1),) for dim in range(len(base)))
    access = ir.Access(name, tuple(map(as_expr, base)), modes, (None,) * len(base), write, dealt=((),) * len(base), origin=line)
    return ir.Exec(spec=Move(1, 1)(RF, SH)(level), accesses=(access,), instruction=STEP, **options)


def bytes_of(program, statement, values):
    """The bytes of memory that a thread touches; of arrays in global memory with their name."""
    (access,) = statement.accesses
    target = program.buffer(access.buffer)
    size = target.dtype.bytes
    found = {}
    for offset in access.elements():
        place = target.address(access, offset).evaluate(values) * size + (target.offset if target.memory.of_block else 0)
        coordinates = [base.evaluate(values) + step for base, step in zip(access.base, offset)]
        space = "" if target.memory.of_block else access.buffer
        found.update({(space, place + byte): (coordinates, place) for byte in range(size)})
    return found


def racy(program):
    """Whether two threads meet without a barrier between, run through in full."""
    epoch, touched = {}, {}

    def run(body, values):
        for one in body:
            if isinstance(one, ir.For):
                if any(run(one.body, {**values, one.var.name: number}) for number in range(one.extent.evaluate(values))):
                    return True
            elif isinstance(one, ir.Barrier):
                size = one.scope.threads or program.threads
                for first in range(0, program.threads, size):
                    part = [epoch.setdefault(thread, {thread: 0}) for thread in range(first, min(first + size, program.threads))]
                    union = {}
                    for known in part:
                        for thread, count in known.items():
                            union[thread] = max(union.get(thread, 0), count)
                    for thread in range(first, min(first + size, program.threads)):
                        epoch[thread] = {**union, thread: union.get(thread, 0) + 1}
            else:
                for thread in range(program.threads):
                    known = epoch.setdefault(thread, {thread: 0})
                    there = {**values, "thread": thread, "block": 0}
                    if not one.performed.evaluate(there):
                        continue
                    write = one.accesses[0].write
                    for place in bytes_of(program, one, there):
                        for other, count, wrote in touched.setdefault(place, []):
                            if other != thread and (write or wrote) and known.get(other, -1) < count:
                                return True
                        touched[place].append((thread, known[thread], write))
        return False

    return run(program.body, {})


def drawn(chance):
    """Touches of buffers of several types, dimensions and memories, which may overlap; barriers between some of them."""
    memory = chance.choice((SH, SH, GL))
    offset = chance.choice((0, 8, 64, 128, 256, 512))
    first = shaped("s", 16, 16, memory=memory, dtype=chance.choice((float32, float16)), layout=chance.choice((RowMajor, ColMajor)))
    second = shaped("t", 512, memory=memory, dtype=chance.choice((float32, float16, float64)), offset=offset)

    def statement():
        condition = chance.choice((TRUE, TRUE, less(T, 16), equal(T // 32, 1), equal(T, 5)))
        write = chance.random() < 0.6
        if chance.random() < 0.5:
            row = chance.choice((T % 16, T // 4, i % 4 * 4 + T // 16, 15 - T % 16))
            column = chance.choice((T // 16 * 4, T // 16 + i % 4 * 4, T % 4))
            return at(row, column, write=write, active=condition, width=chance.choice((1, 1, 2)) if row is not T % 16 else 1, along=1)
        place = chance.choice((T, T * 2, 63 - T, T + i % 2 * 64, T // 2 * 2)) + chance.choice((0, 32))
        return at(place, name="t", write=write, active=condition, width=chance.choice((1, 2)))

    body = []
    for _ in range(chance.choice((2, 3, 4))):
        body.append(statement())
        if chance.random() < 0.5:
            body.append(chance.choice((BLOCK_BARRIER, BLOCK_BARRIER, WARP_BARRIER)))
    whole = (loop(chance.choice((1, 2, 4)), *body),) if chance.random() < 0.6 else (loop(1, *body),)
    return kernel(*whole, threads=THREADS, buffers=(first, second))


@pytest.mark.parametrize("chunk", range(8))
def test_drawn_programs_and_what_is_said_of_them(chunk):
    """A race is found exactly where there is one, and its threads, iterations and place are of one."""
    verdicts = set()
    for seed in range(25 * chunk, 25 * (chunk + 1)):
        program = drawn(random.Random(f"places {seed}"))
        expected, said = racy(program), list(check_races(Scene(program)))
        assert bool(said) == expected, (seed, program.body, program.buffers, said)
        verdicts.add(expected)
        for one in said:
            confirm(program, one, seed)
    assert verdicts == {True, False}


def confirm(program, one, seed):
    """The details of a finding, computed again."""
    details = one.details
    statements = [each for each in ir.statements(program.body) if isinstance(each, ir.Exec)]
    sides = []
    for name, thread, loops in zip(details["buffers"], details["threads"], details["loops"]):
        values = {"block": 0, "i": 0, **loops, "thread": thread}
        mine = [each for each in statements if each.accesses[0].buffer == name and each.performed.evaluate(values)]
        sides.append([(bytes_of(program, each, values), each.accesses[0].write) for each in mine])
    element = details["element"]
    met = [
        (mine, theirs)
        for (mine, wrote), (theirs, written) in itertools.product(*sides)
        if (wrote or written) and mine.keys() & theirs.keys() and any(place == element for place, _ in theirs.values())
    ]
    assert met, (seed, str(one), dict(details))
    assert details["threads"][0] != details["threads"][1], seed
    target = program.buffer(one.buffer)
    if target.memory.of_block:
        addresses = {
            (start - target.offset) // target.dtype.bytes for _, theirs in met for place, start in theirs.values() if place == element
        }
        assert details["address"] in addresses, (seed, details["address"], addresses)
    else:
        assert details["address"] is None
    assert f"{one.buffer}{element}:" in one.message


# ---------------------------------------------------------------------------------------------- units that act together


@pytest.mark.parametrize("level", [Warp, Warpgroup])
def test_units_that_act_together_are_one(level):
    """Of one unit all threads mean the same operands; two units that touch one place meet."""
    threads = 256
    unit = 32 if level is Warp else 128
    apart = at(T256 // unit, level=level)
    assert found(apart, threads=threads, buffers=(shaped("s", 64),)) == []
    (one,) = found(at(0, level=level), threads=threads, buffers=(shaped("s", 64),))
    first, second = (thread // unit for thread in one.details["threads"])
    assert first < second and f"{level} {first} writes it".lower() in one.message and f"{level} {second} writes it".lower() in one.message
    assert (
        found(
            at(T256 // unit, level=level),
            BLOCK_BARRIER,
            at(T256 // unit, level=level, write=False),
            threads=threads,
            buffers=(shaped("s", 64),),
        )
        == []
    )
    # A unit's own threads are not in order with each other from one statement to the next.
    follows = (at(T256 // unit, level=level), at(T256 // unit, level=level, write=False))
    assert found(*follows, threads=threads, buffers=(shaped("s", 64),)) != []
    if level is Warp:
        assert found(follows[0], WARP_BARRIER, follows[1], threads=threads, buffers=(shaped("s", 64),)) == []


@pytest.mark.parametrize("unit", [32, 128])
def test_spread_accesses_are_of_any_thread_of_their_unit(unit):
    level = Warp if unit == 32 else Warpgroup
    threads = 256
    mine = touch(T256, write=True, spread=True, level=level)
    assert found(mine, threads=threads, buffers=(buffer("s", 512),)) == []
    assert found(mine, touch(T256, write=False), threads=threads, buffers=(buffer("s", 512),)) != [], "which thread it was is not said"
    between = WARP_BARRIER if unit == 32 else ir.Barrier(ir.WARPGROUP_SCOPE)
    assert found(mine, between, touch(T256, write=False), threads=threads, buffers=(buffer("s", 512),)) == []
    far = touch(T256 + unit, write=False, active=less(T256, threads - unit))
    assert found(mine, between, far, threads=threads, buffers=(buffer("s", 512),)) != [], "another unit's"


# ---------------------------------------------------------------------------------------------- spaces


def test_buffers_in_shared_memory_meet_where_they_overlap():
    """By bytes, whatever their types; arrays in global memory are each their own."""
    for offset, meets in ((0, True), (124, True), (128, False), (256, False)):
        pair = (shaped("s", 32), attrs.evolve(shaped("t", 256, dtype=float16), offset=offset))
        one = found(at(T, active=less(T, 32)), at(63 - T, name="t", write=False), buffers=pair)
        assert bool(one) == meets, offset
    arrays = (shaped("s", 64, memory=GL), shaped("t", 64, memory=GL))
    assert found(at(T), at(63 - T, name="t", write=False), buffers=arrays) == []
    assert found(at(T), at(63 - T, write=False), buffers=arrays) != []


@pytest.mark.parametrize("shape", [(8, 8), (5, 13), (16, 2)])
@pytest.mark.parametrize("along", [0, 1])
def test_elements_of_arrays_in_global_memory_are_told_apart(shape, along):
    """Neighbours in a row and in a column are different elements."""
    threads = 32
    rows, columns = shape
    place = (T % rows, T // rows % columns)
    once = less(T, min(rows * columns, threads))
    array = (shaped("s", rows + 1, columns + 1, memory=GL),)
    assert found(at(*place, active=once), threads=threads, buffers=array) == []
    assert found(at(*place, active=once, width=2, along=along), threads=threads, buffers=array) != []
    apart = (T, 0) if along == 1 else (0, T)
    wide = (shaped("s", 40, 40, memory=GL),)
    assert found(at(*apart, width=3, along=along), threads=threads, buffers=wide) == []
    assert found(at(*apart, width=3, along=1 - along), threads=threads, buffers=wide) != []


def test_local_bytes_hold_all_local_coordinates():
    from fireiron.check.blocks import local_coordinates

    block = Var("block", 0, 3)
    line = Var("line", 0, 63)
    scene = Scene(
        kernel(loop(64, at(line + block * 64), var=line), threads=32, grid=4, buffers=(shaped("s", 256, memory=GL, dtype=float64),))
    )
    places = Places(scene, local_coordinates(scene))
    size = places.local_bytes(scene.kernel.buffer("s"))
    assert size >= 64 * 8 and size % 16 == 0 and size <= 4 * 64 * 8


def test_two_of_one_statement():
    (one,) = found(at(T // 2), buffers=(shaped("s", 64),))
    assert one.message.endswith("thread 1 writes it in the same statement, and no barrier stands between")
    assert one.details["threads"] == [0, 1] and one.details["address"] == 0 and one.details["lines"] == ["hand.py:1"] * 2


def test_lines_of_both_statements():
    first, second = at(T, line="mine.py:4"), at(63 - T, write=False, line="mine.py:9")
    (one,) = found(first, second, buffers=(shaped("s", 64),))
    assert one.at == "mine.py:9" and one.details["lines"] == ["mine.py:4", "mine.py:9"]
    assert "writes it (step Move(1,1)(RF,SH)(Thread) at mine.py:4)" in one.message and "reads it (step" in one.message


def test_conditions_on_blocks_are_taken_to_hold_and_named():
    """Where some block makes them hold for both there is a race; where none does it is undecided, an error too."""
    block = Var("block", 0, 3)
    pair = (at(T, active=less(block, 1)), at(63 - T, write=False))
    (one,) = found(*pair, grid=4, buffers=(shaped("s", 64),))
    assert not one.message.startswith("undecided") and one.details["assumed"] == ["block < 1"]
    pair = (at(T, active=less(block, 1)), at(63 - T, write=False, active=less(2, block)))
    (one,) = found(*pair, grid=4, buffers=(shaped("s", 64),))
    assert one.message.startswith("undecided: s[") and "if block < 1 and 2 < block can hold for both" in one.message
    last = (at(T, active=less(2, block)), at(63 - T, write=False))
    (one,) = found(*last, grid=4, buffers=(shaped("s", 64),))
    assert not one.message.startswith("undecided"), "the last block"
    size = Var("N", 1, 1 << 20, 1, True)
    (one,) = found(at(T, active=less(500, size)), at(63 - T, write=False), symbols=(size,), buffers=(shaped("s", 64),))
    assert not one.message.startswith("undecided"), "a large size"


def test_loops_that_are_taken_as_a_whole_name_the_iteration():
    (one,) = found(loop(4, at(T + i * 32)), threads=64, buffers=(shaped("s", 256),))
    first, second = one.details["loops"]
    assert {one.details["threads"][0] + first["i"] * 32} == {one.details["threads"][1] + second["i"] * 32} == {one.details["address"]}


@pytest.mark.parametrize("stage", [1, 2])
def test_the_address_of_a_stage_is_counted_from_its_buffer(stage):
    """Stages lie behind each other; what a finding names is the place in all of them."""
    whole = shaped("s", 64, offset=256)
    staged = attrs.evolve(whole, tensor=attrs.evolve(whole.tensor, copies=3))
    step = touch(T // 2, write=True, copy=i % 3, active=equal(i, stage))
    (one,) = found(loop(3, step, BLOCK_BARRIER), buffers=(staged,))
    assert one.details["address"] == one.details["element"][0] + stage * 64 and one.details["loops"] == [{"i": stage}] * 2
