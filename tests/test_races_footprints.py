"""Footprints of accesses in hand-made kernels: findings are verified; two-dimensional arrays, overlapping buffers, groups of threads."""

import itertools
import random

import attrs
import making
import numpy as np
import pytest
from touching import BLOCK_BARRIER, T256, WARP_BARRIER, T, buffer, copies, i, kernel, loop, touch, writes

from fireiron import *
from fireiron import ir
from fireiron.check import AccessTrace, check_races
from fireiron.check.blocks import local_coordinates
from fireiron.check.races import footprints as subject
from fireiron.check.races.footprints import Footprints, element_tests, stages
from fireiron.ir.mechanisms.tma import TMA_LOADS
from fireiron.values.expr import TRUE, Var, all_of, as_expr, equal, less
from fireiron.values.tensor import Mode, Storage, Tensor

THREADS = 64
STEP = writes(0).instruction


def race_findings(*body, **options):
    return list(check_races(AccessTrace(kernel(*body, **{"threads": THREADS, **options}))))


def shaped(name, *shape, memory=SH, dtype=float32, layout=ColMajor, offset=0):
    """A buffer of several dimensions."""
    tensor = Tensor(name, tuple(map(as_expr, shape)), dtype, memory, layout)
    storage = tensor.storage()
    return making.buffer(tensor, storage, storage.extent, offset=offset, written=True)


def at(*base, write=True, name="s", width=1, along=0, level=Thread, line="hand.py:1", **options):
    """A statement of one access at coordinates, `width` elements along one of them."""
    modes = tuple((Mode(width if dim == along else 1, 1),) for dim in range(len(base)))
    access = making.access(name, tuple(map(as_expr, base)), modes, (None,) * len(base), write, unit_modes=((),) * len(base), origin=line)
    return making.execution(spec=Move(1, 1)(RF, SH)(level), accesses=(access,), instruction=STEP, **options)


def bytes_of(program, statement, values):
    """The bytes that a thread accesses; for arrays in global memory with the name of the array."""
    (access,) = statement.accesses
    target = program.buffer(access.buffer)
    size = target.dtype.bytes
    by_byte = {}
    for offset in access.elements():
        place = target.address(access, offset).evaluate(values) * size + (target.offset if target.memory.of_block else 0)
        coordinates = [base.evaluate(values) + step for base, step in zip(access.base, offset)]
        space = "" if target.memory.of_block else access.buffer
        by_byte.update({(space, place + byte): (coordinates, place) for byte in range(size)})
    return by_byte


def has_race(program):
    """Whether two threads conflict without a barrier between, by executing the whole kernel."""
    epoch, touched = {}, {}

    def run(body, values):
        for stmt in body:
            if isinstance(stmt, ir.For):
                if any(run(stmt.body, {**values, stmt.var.name: number}) for number in range(stmt.extent.evaluate(values))):
                    return True
            elif isinstance(stmt, ir.Barrier):
                size = stmt.scope.threads or program.threads
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
                    thread_values = {**values, "thread": thread, "block": 0}
                    if not stmt.performed.evaluate(thread_values):
                        continue
                    write = stmt.accesses[0].write
                    for place in bytes_of(program, stmt, thread_values):
                        for other, count, wrote in touched.setdefault(place, []):
                            if other != thread and (write or wrote) and known.get(other, -1) < count:
                                return True
                        touched[place].append((thread, known[thread], write))
        return False

    return run(program.body, {})


def random_kernel(chance):
    """Random accesses to buffers of several types, shapes and memories, which may overlap; barriers between some of them."""
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


@pytest.mark.sampled(2)
@pytest.mark.parametrize("chunk", range(8))
def test_random_kernels_and_their_findings(chunk):
    """A race is reported if and only if there is one, and its threads, iterations and address are correct."""
    verdicts = set()
    for seed in range(25 * chunk, 25 * (chunk + 1)):
        program = random_kernel(random.Random(f"places {seed}"))
        expected, findings = has_race(program), list(check_races(AccessTrace(program)))
        assert bool(findings) == expected, (seed, program.body, program.buffers, findings)
        verdicts.add(expected)
        for finding in findings:
            confirm(program, finding, seed)
    assert verdicts == {True, False}


def confirm(program, finding, seed):
    """Verify the details of a finding."""
    details = finding.details
    statements = [stmt for stmt in ir.statements(program.body) if isinstance(stmt, ir.Exec)]
    sides = []
    for name, thread, loops in zip(details["buffers"], details["threads"], details["loops"]):
        values = {"block": 0, "i": 0, **loops, "thread": thread}
        first_bytes = [stmt for stmt in statements if stmt.accesses[0].buffer == name and stmt.performed.evaluate(values)]
        sides.append([(bytes_of(program, stmt, values), stmt.accesses[0].write) for stmt in first_bytes])
    element = details["element"]
    conflicts = [
        (first_bytes, second_bytes)
        for (first_bytes, wrote), (second_bytes, written) in itertools.product(*sides)
        if (wrote or written) and first_bytes.keys() & second_bytes.keys() and any(place == element for place, _ in second_bytes.values())
    ]
    assert conflicts, (seed, str(finding), dict(details))
    assert details["threads"][0] != details["threads"][1], seed
    target = program.buffer(finding.buffer)
    if target.memory.of_block:
        addresses = {
            (start - target.offset) // target.dtype.bytes
            for _, second_bytes in conflicts
            for place, start in second_bytes.values()
            if place == element
        }
        assert details["address"] in addresses, (seed, details["address"], addresses)
    else:
        assert details["address"] is None
    assert f"{finding.buffer}{element}:" in finding.message


# ---------------------------------------------------------------------------------------------- collective accesses


@pytest.mark.parametrize("level", [Warp, Warpgroup])
def test_collective_statements_race_between_units_only(level):
    """All threads of a unit share the operands; two units that access the same element conflict."""
    threads = 256
    unit = 32 if level is Warp else 128
    separate = at(T256 // unit, level=level)
    assert race_findings(separate, threads=threads, buffers=(shaped("s", 64),)) == []
    (finding,) = race_findings(at(0, level=level), threads=threads, buffers=(shaped("s", 64),))
    first, second = (thread // unit for thread in finding.details["threads"])
    assert (
        first < second
        and f"{level} {first} writes it".lower() in finding.message
        and f"{level} {second} writes it".lower() in finding.message
    )
    assert (
        race_findings(
            at(T256 // unit, level=level),
            BLOCK_BARRIER,
            at(T256 // unit, level=level, write=False),
            threads=threads,
            buffers=(shaped("s", 64),),
        )
        == []
    )
    # The threads of one unit are not ordered from one statement to the next.
    follows = (at(T256 // unit, level=level), at(T256 // unit, level=level, write=False))
    assert race_findings(*follows, threads=threads, buffers=(shaped("s", 64),)) != []
    if level is Warp:
        assert race_findings(follows[0], WARP_BARRIER, follows[1], threads=threads, buffers=(shaped("s", 64),)) == []


@pytest.mark.parametrize("unit", [32, 128])
def test_spread_accesses_belong_to_any_thread_of_their_unit(unit):
    level = Warp if unit == 32 else Warpgroup
    threads = 256
    spread_write = touch(T256, write=True, spread=True, level=level)
    assert race_findings(spread_write, threads=threads, buffers=(buffer("s", 512),)) == []
    assert race_findings(spread_write, touch(T256, write=False), threads=threads, buffers=(buffer("s", 512),)) != [], (
        "any thread of the unit may have written"
    )
    between = WARP_BARRIER if unit == 32 else making.barrier(ir.WARPGROUP_SCOPE)
    assert race_findings(spread_write, between, touch(T256, write=False), threads=threads, buffers=(buffer("s", 512),)) == []
    far = touch(T256 + unit, write=False, active=less(T256, threads - unit))
    assert race_findings(spread_write, between, far, threads=threads, buffers=(buffer("s", 512),)) != [], "elements of another unit"


# ---------------------------------------------------------------------------------------------- address spaces


def test_overlapping_shared_buffers_conflict():
    """Conflicts are by bytes, regardless of types; arrays in global memory are separate."""
    for offset, overlaps in ((0, True), (124, True), (128, False), (256, False)):
        pair = (shaped("s", 32), attrs.evolve(shaped("t", 256, dtype=float16), offset=offset))
        findings = race_findings(at(T, active=less(T, 32)), at(63 - T, name="t", write=False), buffers=pair)
        assert bool(findings) == overlaps, offset
    arrays = (shaped("s", 64, memory=GL), shaped("t", 64, memory=GL))
    assert race_findings(at(T), at(63 - T, name="t", write=False), buffers=arrays) == []
    assert race_findings(at(T), at(63 - T, write=False), buffers=arrays) != []


@pytest.mark.parametrize("shape", [(8, 8), (5, 13), (16, 2)])
@pytest.mark.parametrize("along", [0, 1])
def test_elements_of_global_arrays_are_distinguished(shape, along):
    """Adjacent elements in a row and in a column differ."""
    threads = 32
    rows, columns = shape
    place = (T % rows, T // rows % columns)
    once = less(T, min(rows * columns, threads))
    array = (shaped("s", rows + 1, columns + 1, memory=GL),)
    assert race_findings(at(*place, active=once), threads=threads, buffers=array) == []
    assert race_findings(at(*place, active=once, width=2, along=along), threads=threads, buffers=array) != []
    separate = (T, 0) if along == 1 else (0, T)
    wide = (shaped("s", 40, 40, memory=GL),)
    assert race_findings(at(*separate, width=3, along=along), threads=threads, buffers=wide) == []
    assert race_findings(at(*separate, width=3, along=1 - along), threads=threads, buffers=wide) != []


def test_local_bytes_cover_all_local_coordinates():
    block = Var("block", 0, 3)
    line = Var("line", 0, 63)
    access_trace = AccessTrace(
        kernel(loop(64, at(line + block * 64), var=line), threads=32, grid=4, buffers=(shaped("s", 256, memory=GL, dtype=float64),))
    )
    places = Footprints(access_trace, local_coordinates(access_trace))
    size = places.local_bytes(access_trace.kernel.buffer("s"))
    assert size >= 64 * 8 and size % 16 == 0 and size <= 4 * 64 * 8


def test_race_of_one_statement():
    (finding,) = race_findings(at(T // 2), buffers=(shaped("s", 64),))
    assert finding.message.endswith("thread 1 writes it in the same statement, and no barrier orders them")
    assert finding.details["threads"] == [0, 1] and finding.details["address"] == 0 and finding.details["lines"] == ["hand.py:1"] * 2


def test_findings_name_the_lines_of_both_statements():
    first, second = at(T, line="mine.py:4"), at(63 - T, write=False, line="mine.py:9")
    (finding,) = race_findings(first, second, buffers=(shaped("s", 64),))
    assert finding.at == "mine.py:9" and finding.details["lines"] == ["mine.py:4", "mine.py:9"]
    assert "writes it (step Move(1,1)(RF,SH)(Thread) at mine.py:4)" in finding.message and "reads it (step" in finding.message


def test_conditions_on_blocks_are_assumed_and_named():
    """If a block satisfies both conditions there is a race; otherwise it is undecided, which is also an error."""
    block = Var("block", 0, 3)
    pair = (at(T, active=less(block, 1)), at(63 - T, write=False))
    (finding,) = race_findings(*pair, grid=4, buffers=(shaped("s", 64),))
    assert not finding.message.startswith("undecided") and finding.details["assumed"] == ["block < 1"]
    pair = (at(T, active=less(block, 1)), at(63 - T, write=False, active=less(2, block)))
    (finding,) = race_findings(*pair, grid=4, buffers=(shaped("s", 64),))
    assert finding.message.startswith("undecided: s[") and "if block < 1 and 2 < block can hold for both" in finding.message
    last = (at(T, active=less(2, block)), at(63 - T, write=False))
    (finding,) = race_findings(*last, grid=4, buffers=(shaped("s", 64),))
    assert not finding.message.startswith("undecided"), "the last block"
    size = Var("N", 1, 1 << 20, 1, True)
    (finding,) = race_findings(at(T, active=less(500, size)), at(63 - T, write=False), symbols=(size,), buffers=(shaped("s", 64),))
    assert not finding.message.startswith("undecided"), "a large size"


def test_races_in_vectorized_loops_name_the_iteration():
    (finding,) = race_findings(loop(4, at(T + i * 32)), threads=64, buffers=(shaped("s", 256),))
    first, second = finding.details["loops"]
    assert (
        {finding.details["threads"][0] + first["i"] * 32}
        == {finding.details["threads"][1] + second["i"] * 32}
        == {finding.details["address"]}
    )


@pytest.mark.parametrize("stage", [1, 2])
def test_addresses_include_the_stage(stage):
    """Stages are contiguous; a finding has the address within all of them."""
    plain = shaped("s", 64, offset=256)
    staged = attrs.evolve(plain, tensor=attrs.evolve(plain.tensor, copies=3))
    step = touch(T // 2, write=True, copy=i % 3, active=equal(i, stage))
    (finding,) = race_findings(loop(3, step, BLOCK_BARRIER), buffers=(staged,))
    assert finding.details["address"] == finding.details["element"][0] + stage * 64 and finding.details["loops"] == [{"i": stage}] * 2


# ---------------------------------------------------------------------------------------------- threads and addresses of an access


def row_threads(statement, workers):
    """The threads of the only access of a statement: rows, warps, first and last threads, units, as lists."""
    threads = -(-workers // 32) * 32 + (32 if statement.ring else 0)
    access_trace = AccessTrace(attrs.evolve(kernel(statement, threads=threads, buffers=(shaped("s", 4096),)), workers=workers))
    groups = Footprints(access_trace, {}).threads(access_trace.uses[0])
    return [np.asarray(array).tolist() for array in (groups.rows, groups.warp, groups.low, groups.high, groups.unit)]


@pytest.mark.parametrize("workers", [32, 48, 96])
def test_thread_statements_have_a_row_per_thread(workers):
    threads = list(range(workers))
    assert row_threads(at(T), workers) == [threads, [thread // 32 for thread in threads], threads, threads, threads]


@pytest.mark.parametrize("workers, warp", [(32, 1), (64, 2), (65, 3), (40, 2)])
def test_a_ring_load_belongs_to_the_warp_after_the_consumers(workers, warp):
    assert row_threads(at(T, ring="ring", mechanism=TMA_LOADS), workers) == [[0], [warp], [workers], [workers], [warp]]


@pytest.mark.parametrize("workers", [64, 48])
def test_a_spread_access_of_a_warp_belongs_to_any_of_its_threads(workers):
    threads = list(range(workers))
    first = [thread // 32 * 32 for thread in threads]
    last = [min(thread + 31, workers - 1) for thread in first]
    for level in (Warp, Thread):
        spread_write = touch(T, write=True, spread=True, level=level)
        assert row_threads(spread_write, workers) == [
            threads,
            [thread // 32 for thread in threads],
            first,
            last,
            [thread // 32 for thread in threads],
        ]


def test_a_spread_access_of_a_warpgroup_belongs_to_any_of_its_warps():
    rows = [thread for thread in range(256) for _ in range(4)]
    warps = [thread // 128 * 4 + number for thread in range(256) for number in range(4)]
    actual = row_threads(touch(T256, write=True, spread=True, level=Warpgroup), 256)
    assert actual == [rows, warps, [warp * 32 for warp in warps], [warp * 32 + 31 for warp in warps], [warp // 128 for warp in rows]]


@pytest.mark.parametrize(
    "level, workers, rows",
    [
        (Warp, 96, [(0, 0, 0, 31, 0), (32, 1, 32, 63, 1), (64, 2, 64, 95, 2)]),
        (Warp, 48, [(0, 0, 0, 31, 0), (32, 1, 32, 47, 1)]),
        (Block, 64, [(0, 0, 0, 31, 0), (0, 1, 32, 63, 0)]),
        (Block, 40, [(0, 0, 0, 31, 0), (0, 1, 32, 39, 0)]),
        (Warpgroup, 256, [(one // 4 * 128, one, one * 32, one * 32 + 31, one // 4) for one in range(8)]),
        (Level("Every", Block, Layout(32, 2)), 64, [(0, 0, 0, 30, 0), (0, 1, 32, 62, 0), (1, 0, 1, 31, 1), (1, 1, 33, 63, 1)]),
        (Level("Half", Block, Layout(16)), 48, [(0, 0, 0, 15, 0), (16, 0, 16, 31, 1), (32, 1, 32, 47, 2)]),
    ],
    ids=str,
)
def test_a_collective_access_has_a_row_per_warp(level, workers, rows):
    """The address is that of the first thread; each row has the warp's threads that belong to the unit."""
    assert row_threads(at(0, level=level), workers) == [list(column) for column in zip(*rows, strict=True)]


def patterns(*statements, copies=(), fixed=None, loops=(), guards=(), tests=(), threads=32, buffers=None, shifts=((0, 0),)):
    """The patterns of statements of one access each, numbered, and their address space."""
    program = kernel(*statements, threads=threads, buffers=buffers or (shaped("s", 512),))
    access_trace = AccessTrace(program)
    footprints = Footprints(access_trace, local_coordinates(access_trace))
    result = [footprints.pattern(use, as_expr(0), loops, fixed or {}, guards, tests) for use in access_trace.uses]
    space = footprints.space(result[0].use.access.buffer)
    for number, shift in shifts:
        space.footprint(result[number], shift)
    space.number_grains()
    return *result, space


def keys_of(pattern):
    """For each row the grains that it accesses, in order; None for inactive ones."""
    active = np.ones(pattern.keys.shape, bool) if pattern.active is None else pattern.active
    return np.where(active, pattern.keys.astype(object), None).tolist()


@pytest.mark.parametrize(
    "statement, options, grain, keys",
    [
        (at(T), {}, 4, [[one] for one in range(32)]),
        (at(T * 2), {}, 4, [[2 * one] for one in range(32)]),
        (at(T * 4, width=4), {}, 16, [[one] for one in range(32)]),
        (at(T * 4, width=4), {"shifts": ((0, 8),)}, 8, [[2 * one, 2 * one + 1] for one in range(32)]),
        (at(T * 4, width=4), {"shifts": ((0, 32),)}, 16, [[one] for one in range(32)]),
        (at(T * 4, width=4), {"buffers": (shaped("s", 512, offset=4),)}, 4, [[4 * one + 1 + two for two in range(4)] for one in range(32)]),
        (at(T * 4, width=4), {"buffers": (shaped("s", 512, offset=64),)}, 16, [[one + 4] for one in range(32)]),
        (at(T * 4, width=4), {"buffers": (shaped("s", 512, dtype=float16),)}, 8, [[one] for one in range(32)]),
        (at(T), {"buffers": (shaped("s", 512, dtype=float64),)}, 8, [[one] for one in range(32)]),
        (at(T, width=3), {}, 4, [[one, one + 1, one + 2] for one in range(32)]),
        (at(T), {"buffers": (shaped("s", 512, dtype=float64),), "shifts": ((0, 4),)}, 4, [[2 * one, 2 * one + 1] for one in range(32)]),
        (
            at(T * 2, width=2),
            {"buffers": (shaped("s", 512, dtype=float64),), "shifts": ((0, 4),)},
            4,
            [[4 * one + two for two in range(4)] for one in range(32)],
        ),
        (at(T), {"buffers": (shaped("s", 512, dtype=int8),)}, 1, [[one] for one in range(32)]),
    ],
    ids=str,
)
def test_grains_are_the_largest_common_unit_of_access(statement, options, grain, keys):
    pattern, space = patterns(statement, **options)
    assert (space.grain, keys_of(pattern), pattern.active) == (grain, keys, None)
    # Each grain belongs to the element whose bytes it is.
    width, start = pattern.width, space.grain
    base = pattern.bases[0][:, 0] // width
    for column in range(pattern.keys.shape[1]):
        assert ((pattern.keys[:, column] * start - pattern.bases[0][:, 0]) // width == pattern.element(column)).all(), base
    low, high = min(map(min, keys)), max(map(max, keys))
    shift = next(iter(space.footprints.values())).shift
    assert (space.first, space.length, pattern.span) == (low + shift, high - low + 1, (low, high - low + 1))


def test_a_vectorized_loop_is_an_axis():
    line = loop(3, at(T + i * 32))
    pattern, _ = patterns(line, loops=(line,))
    assert keys_of(pattern) == [[thread, thread + 32, thread + 64] for thread in range(32)] and pattern.frame.shape == (32, 3)
    assert pattern.columns == 1 and [pattern.element(thread) for thread in range(3)] == [0, 0, 0]
    pattern, _space = patterns(line, loops=(line,), guards=(less(T, 2), less(i, 2)))
    assert keys_of(pattern) == [[thread, thread + 32, None] if thread < 2 else [None] * 3 for thread in range(32)]
    assert [thread.tolist() for thread in pattern.present] == [[0, 32, 1, 33], [0, 0, 1, 1]] and pattern.span == (0, 34)
    pattern, _ = patterns(line, fixed={"i": 2})
    assert keys_of(pattern) == [[thread + 64] for thread in range(32)] and pattern.frame.shape == (32,)


@pytest.mark.parametrize("points", [1, 2])
def test_conditions_of_single_elements(points):
    """Each element is a separate point; guards apply to a whole row."""
    line = loop(2, at(T * 4 + i * 128, width=4))
    conditions = ((less(T, 3), np.array([1, 2])), (less(i, 1), np.array([2, 3])))
    options = {"loops": (line,)} if points == 2 else {"fixed": {"i": 0}}
    for guards, rows in (((), 32), ((less(T, 5),), 5)):
        pattern, space = patterns(line, tests=conditions, guards=guards, **options)
        expected = []
        for thread in range(32):
            expected.append([])
            for iteration in range(points):
                touched = {0, *([1, 2] if thread < 3 else ()), 3} - ({2, 3} if iteration else set())
                expected[-1] += [
                    iteration * 128 + thread * 4 + element if element in touched and thread < rows else None for element in range(4)
                ]
        assert (space.grain, keys_of(pattern)) == (4, expected)
        assert pattern.columns == 4 and [pattern.element(element) for element in range(4 * points)] == [0, 1, 2, 3] * points


def test_addresses_of_swizzled_elements():
    """No stride describes them: every address is computed."""
    swizzled = shaped("s", 512)
    swizzled = attrs.evolve(swizzled, storage=attrs.evolve(swizzled.storage, swizzle=Swizzle(2, 0, 3)))
    place = lambda address: address ^ (address >> 3 & 3)
    pattern, _ = patterns(at(T * 3, width=2), buffers=(swizzled,))
    assert keys_of(pattern) == [[place(3 * thread), place(3 * thread + 1)] for thread in range(32)]
    assert [pattern.element(thread) for thread in range(2)] == [0, 1]
    assert pattern.offsets.tolist() == [[0]] and pattern.bases[0].shape == (32, 2)
    pattern, _space = patterns(at(T * 3, width=2), buffers=(swizzled,), guards=(less(T, 2),))
    assert keys_of(pattern) == [[place(3 * thread), place(3 * thread + 1)] if thread < 2 else [None, None] for thread in range(32)]
    conditions = ((less(T, 2), np.array([1])),)
    pattern, _ = patterns(at(T * 3, width=2), buffers=(swizzled,), tests=conditions, guards=(less(T, 3),))
    rows = [[place(3 * thread), place(3 * thread + 1)] for thread in range(32)]
    assert keys_of(pattern) == [[a if thread < 3 else None, b if thread < 2 else None] for thread, (a, b) in enumerate(rows)]


@pytest.mark.parametrize("layout, steps", [(ColMajor, (1, 16)), (RowMajor, (16, 1))], ids=str)
def test_elements_in_another_storage_order(layout, steps):
    """Keys ascend by address; `element` returns the element of the access at each key."""
    modes = (Mode(3, 1),), (Mode(3, 1),)
    access = making.access("s", (as_expr(0), as_expr(0)), modes, (None, None), True, unit_modes=((), ()), origin="x")
    statement = making.execution(spec=Move(1, 1)(RF, SH)(Thread), accesses=(access,), instruction=STEP)
    pattern, space = patterns(statement, buffers=(shaped("s", 16, 16, layout=layout),))
    places = [row * steps[0] + column * steps[1] for row, column in access.elements()]
    assert space.grain == 4 and pattern.keys[0].tolist() == sorted(places)
    assert [pattern.element(index) for index in range(9)] == [places.index(index) for index in sorted(places)]


def test_warps_by_key():
    pattern, _ = patterns(at(T, active=less(T, 70)), threads=96, guards=(less(T, 70),))
    assert pattern.warps.tolist() == [1] * 32 + [2] * 32 + [4] * 6 and pattern.changes.tolist() == [0, 32, 64, 70]
    pattern, _ = patterns(at(T // 2 + 7), threads=96)
    assert pattern.span == (7, 48)
    assert pattern.warps.tolist() == [1] * 16 + [2] * 16 + [4] * 16 and pattern.changes.tolist() == [0, 16, 32, 48]
    pattern, _space = patterns(at(T % 40), threads=64)
    assert pattern.warps.tolist() == [3] * 24 + [1] * 8 + [2] * 8 and pattern.changes.tolist() == [0, 24, 32, 40]
    pattern, _ = patterns(at(T), guards=(less(T, 0),))
    assert pattern.span == (0, 0) and pattern.warps.tolist() == [] and pattern.changes.tolist() == [0, 0]
    assert pattern.distinct_threads is None and pattern.repeated is None and [array.size for array in pattern.ends] == [0, 0, 0]


def test_conflicts_within_a_pattern():
    """Between rows of one unit, or of two units."""
    separate, _ = patterns(at(T + 5))
    assert separate.distinct_threads is None and separate.repeated is None
    shared, _ = patterns(at(T // 2 + 5))
    assert shared.distinct_threads == (5, 0, 1) and shared.repeated is None
    line = loop(3, at(T * 2 + i // 2 + 5))
    twice, _ = patterns(line, loops=(line,))
    assert twice.distinct_threads is None and twice.repeated == (5, 0, 0)
    late = loop(2, at(T + 40 - equal(T, 9) * i * 3 + 0 * i))
    late_pattern, _ = patterns(late, loops=(late,))
    assert late_pattern.distinct_threads == (46, 6, 9)
    units, _ = patterns(at(T // 32 * 0 + 3, level=Warp), threads=64)
    assert units.distinct_threads == (3, 0, 1) and units.repeated is None
    block, _ = patterns(at(3, level=Block), threads=64)
    assert block.distinct_threads is None and block.repeated == (3, 0, 1)


def test_first_and_last_thread_of_each_warp_at_a_grain():
    pattern, _ = patterns(at(T % 3 + 10), threads=64)
    places, low, high = (array.tolist() for array in pattern.ends)
    assert places == [key * 32 + warp for key in (10, 11, 12) for warp in (0, 1)]
    expected = [[array for array in range(warp * 32, warp * 32 + 32) if array % 3 == key] for key in range(3) for warp in (0, 1)]
    assert low == [array[0] for array in expected] and high == [array[-1] for array in expected]


def test_two_dimensional_arrays_are_numbered_along_the_access():
    """Each dimension has at least 16 coordinates, from a multiple of 16."""
    array = (shaped("s", 64, 64, memory=GL),)
    for along in (0, 1):
        pattern, space = patterns(at(T, 5) if along else at(5, T), buffers=array)
        assert space._weights == ([1, 32] if along else [1, 16], [0, 0])
    pattern, space = patterns(at(T + 17, 35, along=1, width=4), buffers=array)
    assert space._weights == ([16, 1], [16, 32]) and space.grain == 4
    assert keys_of(pattern) == [[(one + 1) * 16 + 3 + two for two in range(4)] for one in range(32)]
    pattern, space = patterns(at(T + 17, 32, along=1, width=4), buffers=array)
    assert space.grain == 16 and keys_of(pattern) == [[(one + 1) * 4] for one in range(32)]
    pattern, other, space = patterns(at(T + 17, 35, along=1, width=4), at(3, 3, along=0), buffers=array, shifts=((0, 0), (1, 0)))
    assert space._weights == ([48, 1], [0, 0])
    assert keys_of(other) == [[3 * 48 + 3]] * 32 and keys_of(pattern) == [
        [(thread + 17) * 48 + 35 + two for two in range(4)] for thread in range(32)
    ]
    pattern, space = patterns(at(5, T - 3), buffers=array)
    assert space._weights == ([1, 16], [0, -16])


def test_keys_with_a_large_span_are_compressed(monkeypatch):
    for many, expected in ((331, None), (330, list(range(12)))):
        monkeypatch.setattr(subject, "MANY", many)
        pattern, space = patterns(at(T * 30 + 7, active=less(T, 12)), guards=(less(T, 12),), shifts=((0, 0),))
        if expected is None:
            assert (space.first, space.length) == (7, 331) and pattern.span == (7, 331)
            assert [row[0] for row in keys_of(pattern)][:12] == [30 * one + 7 for one in range(12)]
        else:
            assert (space.first, space.length) == (0, 12) and pattern.span == (0, 12)
            assert [row[0] for row in keys_of(pattern)][:12] == expected


def test_one_footprint_per_shift():
    pattern, space = patterns(at(T * 4, width=4), shifts=((0, 0), (0, 64)))
    first, second = space.footprints.values()
    assert space.footprint(pattern, 64) is second and (first.shift, second.shift) == (0, 4)
    assert (first.first, second.first) == (0, 4) and (space.first, space.length) == (0, 36)
    assert second.use is pattern.use and second.warps is pattern.warps and second.changes is pattern.changes and second.space is space


def test_thread_groups_are_cached():
    """Accesses with the same groups of threads share one object."""
    access_trace = AccessTrace(
        kernel(at(T), at(T + 1), at(0, level=Warp), at(0, level=Block), touch(T, write=True, spread=True, level=Warp), threads=64)
    )
    footprints = Footprints(access_trace, {})
    groups = [footprints.threads(use) for use in access_trace.uses]
    assert groups[0] is groups[1] and len({id(group) for group in groups}) == 4


def test_conditions_of_elements_come_from_pieces_or_bounds():
    """A condition that always holds is omitted; with pieces the bounds are ignored."""
    bound = Var("N", 0, 64)
    modes = (Mode(2, 1),), (Mode(2, 4),)
    access = making.access("s", (T, as_expr(0)), modes, (as_expr(bound), as_expr(3)), True, unit_modes=((), ()), origin="x")
    statement = making.execution(spec=Move(1, 1)(RF, SH)(Thread), accesses=(access,), instruction=STEP)
    tests_of = lambda use: [(condition, numbers.tolist()) for condition, numbers in element_tests(use)]
    access_trace = AccessTrace(kernel(statement, buffers=(shaped("s", 64, 64),), symbols=(bound,)))
    assert [*access.elements()] == [(0, 0), (1, 0), (0, 4), (1, 4)]
    assert tests_of(access_trace.uses[0]) == [(less(T, bound), [0, 2]), (less(T + 1, bound), [1, 3]), (less(4, 3), [2, 3])]
    pieces = (
        making.piece(0, 2, condition=all_of([less(T, 3), less(T, bound)])),
        making.piece(2, 1, condition=TRUE),
        making.piece(3, 1, condition=less(T, 7)),
    )
    access_trace = AccessTrace(kernel(attrs.evolve(statement, pieces=(pieces,)), buffers=(shaped("s", 64, 64),), symbols=(bound,)))
    assert sorted(map(str, tests_of(access_trace.uses[0]))) == sorted(
        map(str, [(less(T, 3), [0, 1]), (less(T, bound), [0, 1]), (less(T, 7), [3])])
    )


@pytest.mark.parametrize(
    "copy, ordered, moved, rest",
    [
        (i, "i", i, 0),
        (i, "", 0, i),
        (i * 2 + T + 3, "i", i * 2 + 3, T),
        (as_expr(5), "", 5, 0),
        (i * T, "i", 0, i * T),
        (T * 3 + 1, "i", 1, T * 3),
    ],
    ids=str,
)
def test_stage_shift_by_ordered_loops(copy, ordered, moved, rest):
    assert stages(AccessTrace(kernel(at(T))), as_expr(copy), frozenset(ordered)) == (as_expr(moved), as_expr(rest))


def test_expressions_that_determine_an_address():
    """The coordinates and the stage; in a ring the fill index determines the stage; arrays use local coordinates."""
    ring = making.ring("ring", 2, ("s",), bytes=128, consumers=1)
    step = touch(T, write=True, copy=i)
    plain = AccessTrace(kernel(step))
    assert Footprints(plain, {}).parts(step.accesses[0]) == (T, i)
    ringed = AccessTrace(kernel(step, rings=(ring,)))
    footprints = Footprints(ringed, {})
    assert footprints.parts(step.accesses[0]) == (T,) and footprints.ring_of_buffer == {"s": "ring"}
    block = Var("block", 0, 3)
    far = at(T + block * 64)
    access_trace = AccessTrace(kernel(far, grid=4, buffers=(shaped("s", 256, memory=GL),)))
    assert Footprints(access_trace, local_coordinates(access_trace)).parts(far.accesses[0]) == (T,)


@pytest.mark.parametrize(
    "shape, dtype, size", [((64,), float32, 80 * 4), ((17,), float64, 48 * 8), ((16,), float32, 128), ((16, 40), float16, 32 * 64 * 2)]
)
def test_local_bytes_are_whole_grains_per_dimension(shape, dtype, size):
    """One grain more than the coordinates span, since they may start inside a grain."""
    lines = [Var(name, 0, count - 1) for name, count in zip("xy", shape)]
    body = at(*lines)
    for line in lines:
        body = loop(line.high + 1, body, var=line)
    access_trace = AccessTrace(
        kernel(body, buffers=(shaped("s", 64, 64, memory=GL, dtype=dtype) if len(shape) > 1 else shaped("s", 64, memory=GL, dtype=dtype),))
    )
    assert Footprints(access_trace, local_coordinates(access_trace)).local_bytes(access_trace.kernel.buffer("s")) == size


def swizzled(array, *numbers):
    return attrs.evolve(array, storage=attrs.evolve(array.storage, swizzle=Swizzle(*numbers)))


@pytest.mark.parametrize(
    ("array", "statement", "steps"),
    [
        (shaped("s", 512), at(T, width=4), (0, 1, 2, 3)),
        (shaped("s", 16, 16), at(T % 16, 3, width=3), (0, 1, 2)),
        (shaped("s", 16, 16), at(T % 16, 3, width=3, along=1), (0, 16, 32)),
        (shaped("s", 16, 16, layout=RowMajor), at(T % 16, 3, width=3), (0, 16, 32)),
        (swizzled(shaped("s", 512), 2, 2, 3), at(T * 4, width=4), (0, 1, 2, 3)),
        (swizzled(shaped("s", 512), 2, 2, 3), at(T * 8 + 4, width=4), (0, 1, 2, 3)),
        (swizzled(shaped("s", 512), 2, 2, 3), at(T * 4 + 1, width=3), (0, 1, 2)),
        (swizzled(shaped("s", 512), 2, 2, 3), at(T * 2, width=2), (0, 1)),
        (swizzled(shaped("s", 512), 2, 1, 3), at(T * 4, width=4), None),
        (swizzled(shaped("s", 512), 2, 0, 3), at(T * 32, width=12), (0, 1, 2, 3, 4, 5, 6, 7, 9, 8, 11, 10)),
        (swizzled(shaped("s", 512), 2, 0, 3), at(T * 16, width=12), None),
        (swizzled(shaped("s", 512), 2, 0, 3), at(8, width=4), (0, -1, 2, 1)),
    ],
)
def test_element_distances_equal_in_all_threads(array, statement, steps):
    """By the layout alone, within a group that the swizzle keeps contiguous, or from the start of its period."""
    distances = subject._steps(array, statement.accesses[0])
    assert (distances if distances is None else tuple(distances.tolist())) == steps


@pytest.mark.parametrize(
    ("array", "weights"),
    [
        (shaped("s", 512), [1]),
        (shaped("s", 16, 8), [1, 16]),
        (shaped("s", 16, 8, layout=RowMajor), [8, 1]),
        (swizzled(shaped("s", 512), 2, 0, 3), [1]),
    ],
)
def test_strides_of_dimensions(array, weights):
    assert subject._weights(array.storage).tolist() == weights
    bent = attrs.evolve(
        array.storage,
        layout=Layout(((4, 4), *tuple(one for one in (8,) if len(weights) > 1)), ((1, 64), *tuple(4 for one in (8,) if len(weights) > 1))),
    )
    assert subject._weights(attrs.evolve(bent)) is None


TWO_DIGITS = Layout(((4, 4), 8), ((1, 32), 4))


@pytest.mark.parametrize(
    ("layout", "swizzle", "base", "starts"),
    [
        (Layout(512), None, (T,), True),
        (Layout(512), Swizzle(2, 0, 3), (T,), False),
        (Layout(512), Swizzle(2, 0, 3), (T * 16,), False),
        (Layout(512), Swizzle(2, 0, 3), (T * 32,), True),
        (TWO_DIGITS, None, (T * 4, T), True),
        (TWO_DIGITS, None, (T * 2, T), False),
        (TWO_DIGITS, None, (T * 8, T), True),
        (TWO_DIGITS, None, (as_expr(0), T), True),
        (TWO_DIGITS, Swizzle(1, 0, 2), (as_expr(0), T), False),
        (TWO_DIGITS, Swizzle(1, 0, 2), (T * 4, T * 2), True),
        (Layout(Var("N", 1, 64, 1, True)), None, (T,), False),
    ],
)
def test_accesses_at_the_start_of_a_layout_period(layout, swizzle, base, starts):
    """All digits and swizzle source bits are zero there, so the elements have the offsets of the first ones."""
    access = making.access(
        "s", tuple(map(as_expr, base)), ((Mode(1, 1),),) * len(base), (None,) * len(base), True, unit_modes=((),) * len(base)
    )
    assert subject._starts_period(Storage(layout, 512, swizzle), access) == starts


def test_an_access_may_have_its_own_storage():
    """Its storage determines the addresses, not that of the buffer."""
    stmt = at(T, width=3)
    stmt = attrs.evolve(stmt, accesses=(attrs.evolve(stmt.accesses[0], storage=Storage(Layout((512,), (2,)), 1024)),))
    assert subject._steps(shaped("s", 1024), stmt.accesses[0]).tolist() == [0, 2, 4]
    pattern, space = patterns(stmt, buffers=(shaped("s", 1024),))
    assert space.grain == 4 and keys_of(pattern) == [[2 * thread, 2 * thread + 2, 2 * thread + 4] for thread in range(32)]


def test_elements_at_one_address_use_byte_grains():
    modes = ((Mode(2, 0),),)
    access = making.access("s", (T,), modes, (None,), True, unit_modes=((),), origin="x")
    pattern, space = patterns(making.execution(spec=Move(1, 1)(RF, SH)(Thread), accesses=(access,), instruction=STEP))
    assert space.grain == 1 and keys_of(pattern) == [[4 * one + byte for byte in range(4)] for one in range(32)]


@pytest.mark.parametrize(
    ("place", "iterations", "address"),
    [(T * 2 + i // 2, (0, 1), 0), (T * 2 + 1 - i // 2, (0, 1), 1), (T * 2 + i % 2, (0, 2), 0), (T * 2, (0, 1), 0)],
)
def test_copies_of_one_thread_in_two_iterations_race(place, iterations, address):
    """The finding names both iterations, the earlier one first."""
    (finding,) = race_findings(loop(3, copies(place)), making.commit(), making.wait(0), threads=32, buffers=(shaped("s", 4096),))
    assert finding.details["loops"] == [{"i": iterations[0]}, {"i": iterations[1]}] and finding.details["threads"] == [0, 0]
    assert finding.details["address"] == address and finding.details["element"] == [address]
    assert (
        f"thread 0 writes it in i={iterations[0]} (" in finding.message and f"thread 0 writes it in i={iterations[1]} (" in finding.message
    )
    assert "in the same statement" not in finding.message and finding.message.endswith("while the asynchronous copy is in flight")


def test_addresses_of_swizzled_elements_include_the_buffer_offset():
    array = swizzled(shaped("s", 512, offset=64), 2, 0, 3)
    pattern, _ = patterns(at(T * 3, width=2), buffers=(array,))
    place = lambda address: 16 + (address ^ (address >> 3 & 3))
    assert keys_of(pattern) == [[place(3 * one), place(3 * one + 1)] for one in range(32)]
