"""The bounds check by hand: drawn accesses against an enumeration of every thread, block and iteration; messages and details."""

import itertools
import random

import attrs
import making
import pytest
from touching import T, buffer, i, kernel, loop, reads, writes

from fireiron import *
from fireiron import ir
from fireiron.check import AccessTrace, check_bounds
from fireiron.check import bounds as subject
from fireiron.values.expr import FALSE, TRUE, ZERO, Var, all_of, as_expr, assume_positive, bit_xor, equal, floordiv, less, minimum
from fireiron.values.layout import Layout, Swizzle
from fireiron.values.machine import COORD
from fireiron.values.tensor import Mode, Storage, Tensor

BLOCK = Var("block", 0, 3)
J = Var("j", 0, 7)
BLOCKS = Var("block", 0, 1 << 15)
N = Var("N", 1, 1 << 20, 1, True)
N8 = Var("N8", 8, 1 << 20, 8, True)
THREADS = 32


def findings_of(*body, **options):
    """The findings of the check."""
    return list(check_bounds(AccessTrace(kernel(*body, **{"threads": THREADS, **options}))))


def array(name, *shape, memory=GL):
    """A buffer of several dimensions, its first one contiguous."""
    tensor = Tensor(name, tuple(map(as_expr, shape)), float32, memory, ColMajor)
    storage = tensor.storage()
    return making.buffer(tensor, storage, storage.extent, written=memory == GL)


def outside(program, sizes):
    """Whether any access leaves its buffer, by running all of it."""

    def run(body, values):
        for stmt in body:
            if isinstance(stmt, ir.For):
                if any(run(stmt.body, {**values, stmt.var.name: number}) for number in range(stmt.extent.evaluate(values))):
                    return True
            elif any(leaves(stmt, {**values, "thread": thread}) for thread in range(program.threads)):
                return True
        return False

    def leaves(stmt, values):
        if not stmt.performed.evaluate(values):
            return False
        for access in stmt.accesses:
            target = program.buffer(access.buffer)
            for offset in access.elements():
                places = [base.evaluate(values) + step for base, step in zip(access.base, offset)]
                bounds = [None if bound is None else bound.evaluate(values) for bound in access.bounds]
                if any(bound is not None and place >= bound for place, bound in zip(places, bounds)):
                    continue
                extents = [part.evaluate(values) for part in target.tensor.shape]
                copies = access.copy.evaluate(values)
                if any(not 0 <= place < extent for place, extent in zip(places, extents)) or not 0 <= copies < target.tensor.copies:
                    return True
        return False

    return any(run(program.body, {**sizes, "block": block}) for block in range(program.grid.evaluate(sizes)))


def drawn(chance, extent, memory=GL):
    """A kernel with one access near the end of a buffer of a given number of elements."""
    terms = [T * chance.choice((0, 1, 1, 2)), BLOCK * chance.choice((0, 0, 32)) if memory == GL else ZERO, i * chance.choice((0, 1, 4))]
    terms += [T // 8 * chance.choice((0, 0, 3)), T % 4 * chance.choice((0, 0, 5)), i % 2 * chance.choice((0, 0, 9))]
    base = sum(terms, as_expr(chance.choice((0, 0, 0, 1, 3, -1))))
    width = chance.choice((1, 1, 2, 4))
    most = max(base.evaluate({"thread": t, "block": b, "i": k}) for t, b, k in itertools.product((0, 7, 31), range(4), range(5)))
    size = max(most + width + chance.choice((-3, -1, 0, 0, 0, 1, 1, 5)), 1)
    conditions = [
        less(T, chance.choice((7, 31, 32))),
        less(i, chance.choice((2, 4, 5))),
        less(base, size - width + chance.choice((0, 1, 2))),
    ]
    active = all_of(chance.sample(conditions, chance.choice((0, 0, 1, 2))))
    bound = chance.choice((None, None, None, as_expr(size), as_expr(size + chance.choice((-1, 1)))))
    step = (reads if chance.random() < 0.5 else writes)(base, width=width, active=active, bound=bound)
    body = loop(5, step) if chance.random() < 0.8 else loop(1, step)
    return kernel(body, threads=THREADS, grid=4, buffers=(buffer("s", size, memory=memory),))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("memory", [GL, SH, RF], ids=str)
@pytest.mark.sampled(2)
@pytest.mark.parametrize("chunk", range(4))
def test_random_accesses_compared_with_enumeration(chunk, memory):
    """A finding if and only if an element out of bounds is accessed; everything is known."""
    verdicts = set()
    for seed in range(40 * chunk, 40 * (chunk + 1)):
        program = drawn(random.Random(f"{memory}/{seed}"), 64, memory)
        expected = outside(program, {})
        findings = list(check_bounds(AccessTrace(program)))
        assert bool(findings) == expected, (seed, program.body, program.buffers, findings)
        verdicts.add(expected)
    assert verdicts == {True, False}


def symbolic(chance):
    """A kernel of which the array's length is known only when it runs."""
    symbol = chance.choice((N, N8))
    width = chance.choice((1, 2, 4, 8))
    base = chance.choice((T * width, (BLOCK * THREADS + T) * width, T + i * 32))
    blocks = chance.choice((1, 2))
    at_most = symbol + chance.choice((0, 0, 0, 1)) - chance.choice((0, 0, width - 1))
    active = less(base, at_most)
    bound = chance.choice((None, None, symbol, symbol + 1))
    step = (reads if chance.random() < 0.5 else writes)(base, width=width, active=active, bound=bound)
    return kernel(loop(3, step), threads=THREADS, grid=blocks, buffers=(of_length("s", symbol),), symbols=(symbol,))


def of_length(name, length):
    """An array with a given number of elements."""
    tensor = Tensor(name, (as_expr(length),), float32, GL, ColMajor)
    storage = tensor.storage()
    return making.buffer(tensor, storage, storage.extent, written=True)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("chunk", range(4))
def test_run_time_sizes(chunk):
    """What is called inside is so for all sizes that were tried; what leaves the array at one of them is found."""
    verdicts = set()
    for seed in range(30 * chunk, 30 * (chunk + 1)):
        program = symbolic(random.Random(f"symbolic {seed}"))
        (symbol,) = program.symbols
        sizes = [symbol.low, *range(8, 8 * 14, 8)] if symbol is N8 else [1, 2, 3, 5, 7, 31, 32, 33, 63, 64, 65, 97]
        expected = any(outside(program, {symbol.name: size}) for size in sizes)
        findings = list(check_bounds(AccessTrace(program)))
        assert findings or not expected, (seed, program.body)
        verdicts.add((expected, bool(findings)))
    assert {(True, True), (False, False)} <= verdicts


# ---------------------------------------------------------------------------------------------- messages


def test_a_counterexample_names_thread_block_iteration_and_coordinate():
    (finding,) = findings_of(loop(5, writes(T + i * 32 + BLOCK * 160)), grid=4, buffers=(buffer("s", 639, memory=GL),))
    assert finding.message == "s: thread 31, block 3, i=4 writes coordinate 639 of dimension 0, whose extent is 639"
    assert dict(finding.details) == {
        "thread": 31,
        "block": 3,
        "loops": {"i": 4},
        "dimension": 0,
        "coordinate": 639,
        "extent": 639,
        "sizes": {},
    }
    assert (finding.kind, finding.severity, finding.buffer, finding.at) == ("bounds", "error", "s", "hand.py:1")
    assert finding.access == "s written by step Move(1,1)(RF,SH)(Thread)"


def test_a_coordinate_below_zero():
    (finding,) = findings_of(reads(T - 1), buffers=(buffer("s", 64, memory=GL),))
    assert finding.message == "s: thread 0 reads coordinate -1 of dimension 0, whose extent is 64"


def test_a_counterexample_at_a_size():
    (finding,) = findings_of(reads(T), buffers=(of_length("s", N),), symbols=(N,))
    assert finding.message == "s: thread 1 reads coordinate 1 of dimension 0, whose extent is 1 at N=1" and finding.details["sizes"] == {
        "N": 1
    }
    (finding,) = findings_of(reads(T), buffers=(of_length("s", N8),), symbols=(N8,))
    assert finding.message.endswith("thread 8 reads coordinate 8 of dimension 0, whose extent is 8 at N8=8")


@pytest.mark.parametrize("size", [37 * 8, 129, 500])
def test_sizes_that_are_tried(size):
    """Also such as are just above a tile, and large ones: an array that is too short from there on."""
    array_of_size = of_length("s", minimum(N, as_expr(size - 1)))
    findings = findings_of(reads(T, active=less(T, N)), loop(1, reads(N - 1)), buffers=(array_of_size,), symbols=(N,))
    assert findings and any("coordinate" in one.message for one in findings)


def test_an_address_in_shared_memory():
    (finding,) = findings_of(reads(T + 1), buffers=(buffer("s", 32),))
    assert finding.message == "s: thread 31 reads coordinate 32 of dimension 0, whose extent is 32"
    (finding,) = findings_of(loop(8, reads(T, copy=i)), buffers=(buffer("s", 32),))
    assert finding.message == "s: thread 0, i=1 accesses address 32, but s has 32 elements"
    assert dict(finding.details) == {"thread": 0, "loops": {"i": 1}, "address": 32, "elements": 32}


def copied(copies, **options):
    plain = buffer("s", 32, **options)
    return attrs.evolve(plain, tensor=attrs.evolve(plain.tensor, copies=copies))


@pytest.mark.parametrize(("iterations", "copies", "alarms"), [(4, 4, 0), (5, 4, 1), (4, 5, 0), (1, 1, 0), (2, 1, 1)])
def test_copies_of_a_buffer(iterations, copies, alarms):
    assert len(findings_of(loop(iterations, writes(T, copy=i)), buffers=(copied(copies),))) == alarms
    assert len(findings_of(loop(iterations * 3, writes(T, copy=i % copies)), buffers=(copied(copies),))) == 0
    assert len(findings_of(loop(iterations, writes(T, copy=i - 1)), buffers=(copied(iterations),))) == 1, "before the first"


@pytest.mark.parametrize(("registers", "alarms"), [(4, 0), (3, 1), (5, 0)])
def test_numbers_of_registers(registers, alarms):
    assert len(findings_of(loop(4, writes(i)), buffers=(buffer("s", registers, memory=RF),))) == alarms
    assert len(findings_of(writes(0, width=4), buffers=(buffer("s", registers, memory=RF),))) == alarms


def swizzled(elements, extent, swizzle):
    plain = buffer("s", elements)
    return attrs.evolve(plain, storage=Storage(Layout((elements,), (1,)), extent, swizzle), elements=as_expr(extent))


def test_a_swizzle_moves_elements_inside_their_spans():
    """Of the last span all has to be there, whichever element of it is touched."""
    swizzle = Swizzle(2, 1, 2)
    span = 1 << (2 + 1 + 2)
    assert findings_of(reads(T), buffers=(swizzled(32, 32, swizzle),)) == []
    places = [swizzle(place) for place in range(span)]
    assert sorted(places) == list(range(span)), "a permutation of the span"
    short = swizzled(32, 30, swizzle)
    reached = max(swizzle(thread) for thread in range(20))
    assert bool(findings_of(reads(T, active=less(T, 20)), buffers=(short,))) == (reached >= 30)


def test_dimensions_are_checked_one_by_one():
    """Beyond the end of a row is outside, though the address is that of the next row."""

    def access(first, second, shape):
        modes = ((Mode(1, 1),), (Mode(1, 1),))
        written = making.access("s", (as_expr(first), as_expr(second)), modes, (None, None), True, unit_modes=((), ()))
        return making.execution(spec=Move(1, 1)(RF, GL)(Thread), accesses=(written,), instruction=writes(0).instruction)

    for memory in (GL, SH):
        assert findings_of(access(T % 8, T // 8, (8, 4)), buffers=(array("s", 8, 4, memory=memory),)) == []
        (finding,) = findings_of(access(T % 8 + 1, T // 8, (8, 4)), buffers=(array("s", 8, 4, memory=memory),))
        assert "coordinate 8 of dimension 0, whose extent is 8" in finding.message
        (finding,) = findings_of(access(T % 8, T // 8, (8, 3)), buffers=(array("s", 8, 3, memory=memory),))
        assert "thread 24 writes coordinate 3 of dimension 1, whose extent is 3" in finding.message


# ---------------------------------------------------------------------------------------------- pieces


def in_pieces(base, width, condition, count=1, **options):
    """A statement whose elements are moved `width` at once, each piece under a condition on its first element."""
    pieces = tuple(making.piece(number * width, width, condition=condition(base + number * width)) for number in range(count))
    return attrs.evolve(reads(base, width=width * count, **options), pieces=(pieces,))


def test_the_first_element_of_a_vector_decides_if_sizes_are_multiples():
    buffers = (of_length("s", N8),)
    assert findings_of(in_pieces(T * 4, 4, lambda first: less(first, N8)), buffers=buffers, symbols=(N8,)) == []
    assert findings_of(in_pieces(T * 8, 8, lambda first: less(first, N8)), buffers=buffers, symbols=(N8,)) == []
    (finding,) = findings_of(in_pieces(T * 16, 16, lambda first: less(first, N8)), buffers=buffers, symbols=(N8,))
    assert finding.message.startswith(
        "s: a vector of 16 elements is accessed, but only its first element is tested against N8; the others may be out of bounds"
    )
    assert dict(finding.details) == {"dimension": 0, "bound": "N8", "vector": 16}
    (finding,) = findings_of(in_pieces(T * 4, 4, lambda first: less(first, N)), buffers=(of_length("s", N),), symbols=(N,))
    assert "since N is not known to be a multiple of 4" in finding.message
    assert findings_of(in_pieces(T * 4 + 1, 4, lambda first: less(first, N8)), buffers=buffers, symbols=(N8,)) != [], "it starts between"
    assert findings_of(in_pieces(T * 4, 4, lambda first: less(first + 3, N)), buffers=(of_length("s", N),), symbols=(N,)) == [], (
        "the last is tested"
    )
    assert findings_of(in_pieces(T * 8, 4, lambda first: less(first, N8), 2), buffers=buffers, symbols=(N8,)) == []
    assert findings_of(in_pieces(T * 4, 4, lambda first: TRUE), buffers=(buffer("s", 128, memory=GL),)) == []
    assert findings_of(in_pieces(T * 4, 4, lambda first: TRUE), buffers=(buffer("s", 127, memory=GL),)) != []


def test_a_version_is_checked_without_the_conditions_that_it_implies():
    """Where `whole` holds, parts of conditions are left out: what they kept inside has to be so without them."""
    active = less(T, 20)
    plain = reads(T, active=active)
    assert findings_of(plain, buffers=(buffer("s", 20, memory=GL),)) == []
    version = attrs.evolve(plain, interior=less(BLOCK, 2), implied=(active,))
    assert findings_of(version, grid=4, buffers=(buffer("s", 20, memory=GL),)) != []
    assert findings_of(version, grid=4, buffers=(buffer("s", 32, memory=GL),)) == []


# ---------------------------------------------------------------------------------------------- named values


def test_a_name_has_its_stated_range():
    """Readers trust ranges: a name whose value leaves them proves nothing."""
    low, high = Var("row", 0, 31), Var("row", 0, 15)
    for var, value, size, alarms in (
        (low, T, 32, 0), (high, T, 16, 1), (high, T % 16, 16, 0), (high, T // 2, 16, 0), (high, T // 2 + 1, 16, 1),
        (low, T * 2 % 32, 32, 0), (high, minimum(T, as_expr(15)), 16, 0),
    ):  # fmt: skip
        findings = findings_of(making.let(var, value), reads(var), buffers=(buffer("s", size, memory=GL),))
        assert len(findings) == alarms, (var, value, findings)


def test_statements_never_executed_have_no_address():
    assert findings_of(reads(T + 99, active=less(T, 0)), buffers=(buffer("s", 32, memory=GL),)) == []
    assert findings_of(loop(4, reads(T + i * 32 + 99, active=less(i, 0))), buffers=(buffer("s", 32, memory=GL),)) == []


# ---------------------------------------------------------------------------------------------- what counts down


@pytest.mark.parametrize(
    ("place", "alarms"),
    [
        (assume_positive(N - BLOCKS * 32) - 1, 0),
        (assume_positive(N - BLOCKS * 32), 1),
        (assume_positive(N - BLOCKS * 32 + 1) - 1, 1),
        (assume_positive(N - BLOCKS * 32 - 1 + 1) - 1, 0),
        (assume_positive(N - 1 - BLOCKS * 32 + 1) - 2 + 1, 0),
    ],
)
def test_a_decreasing_size_is_largest_without_subtraction(place, alarms):
    """Blocks of 32 elements: the rest of the last ones is at least 1, and that of block 0 is all."""
    findings = findings_of(reads(place, active=less(T, 1)), grid=floordiv(N + 31, as_expr(32)), buffers=(of_length("s", N),), symbols=(N,))
    assert len(findings) == alarms, findings


@pytest.mark.parametrize(("low", "alarms"), [(0, 0), (5, 1)])
def test_a_size_less_a_minimum_of_it_is_at_least_zero_and_no_more(low, alarms):
    """A name that states a larger least value proves nothing of what is below it."""
    row = Var("row", low, 1 << 20)
    rest = making.let(row, N - minimum(N, T + 5))
    findings = findings_of(rest, reads(row - low, active=less(row, N)), buffers=(of_length("s", N),), symbols=(N,))
    assert len(findings) == alarms, findings


# ---------------------------------------------------------------------------------------------- ranges that are trusted

T32 = Var("thread", 0, 31)
WIDE = Var("block", 0, (1 << 31) - 2)
M = Var("M", 1, 1 << 10, 1, True)


def row(low, high):
    return Var("row", low, high)


def trusted(var, value, *around, active=TRUE, **options):
    """Whether a name's range is trusted: it is read near the end of an array, past a size."""
    body = (making.let(var, value), reads(N - 1 + var, active=active))
    for extent, number in reversed(around):
        body = (loop(extent, *body, var=number),)
    findings = findings_of(*body, **{"symbols": (N, M), "buffers": (of_length("s", N + var.high),), **options})
    assert all(one.buffer == "s" for one in findings)
    return not findings


LONG = Var("i", 0, 1 << 30)
I8, J8 = Var("i", 0, 7), Var("j", 0, 7)


@pytest.mark.parametrize(
    ("low", "high", "value", "around"),
    [
        (0, 31, T32, ()),
        (1, 32, T32 + 1, ()),
        (0, 31, T, ()),
        (0, 961, T * T, ()),
        (4, 965, T * T + 4, ()),
        (0, 9, BLOCK * BLOCK, ()),
        (0, 93, BLOCK * T, ()),
        (0, 4, i * i, ((3, i),)),
        (0, 9, i * i, ((BLOCK + 1, i),)),
        (5, 9, 9 - i * i, ((BLOCK, i),)),
        (0, 62, i * T, ((3, i),)),
        (0, 12, i * J8, ((4, i), (5, J8))),
        (0, 9, I8 * J8, ((4, I8), (I8 + 1, J8))),
        (0, 961 + 4, T * T + i * i, ((3, i),)),
    ],
    ids=str,
)
def test_the_range_of_a_name_is_that_of_all_its_values(low, high, value, around):
    """All threads, blocks and iterations are looked at, and no more: ranges one shorter on either side do not hold."""
    assert trusted(row(low, high), value, *around, grid=4)
    assert trusted(row(max(low - 1, 0), high + 1), value, *around, grid=4)
    assert not trusted(row(low, high - 1), value, *around, grid=4)
    assert not trusted(row(low + 1, high), value, *around, grid=4)


def test_a_name_in_a_loop_without_iterations_has_no_value_that_is_outside():
    assert trusted(row(0, 3), i * i + 99, (0, i))


def test_a_name_of_which_a_size_is_a_part_is_not_enumerated():
    assert not trusted(row(0, 5), i * J8, (N, i), (2, J8))
    assert not trusted(row(0, 5), T * T % N)
    assert trusted(row(0, 4), i * i, (3, i), grid=N), "for any number of blocks"
    assert not trusted(row(0, 3), i * i, (3, i), grid=N)


def test_values_are_enumerated_up_to_a_number(monkeypatch):
    """Of what a value depends on alone."""
    monkeypatch.setattr("fireiron.check.bounds.MANY", 4)
    assert trusted(row(0, 9), BLOCK * BLOCK, grid=4) and not trusted(row(0, 16), BLOCK * BLOCK, grid=5)
    monkeypatch.setattr("fireiron.check.bounds.MANY", 32)
    assert trusted(row(0, 961), T * T)
    monkeypatch.setattr("fireiron.check.bounds.MANY", 31)
    assert not trusted(row(0, 961), T * T)


def test_a_name_in_range_by_the_condition_of_the_statement():
    assert trusted(row(0, 31), T32 * 2, active=less(T32, 16))
    assert not trusted(row(0, 31), T32 * 2, active=less(T32, 17))
    assert trusted(row(1, 31), T32 * 2 + 1, active=less(T32, 16))
    assert not trusted(row(2, 31), T32 * 2 + 1, active=less(T32, 16))
    assert not trusted(row(0, 30), T32 * 2 + 1, active=less(T32, 16))


def test_a_decreasing_size_keeps_its_range_with_enough_blocks():
    """The number of blocks limits the subtraction: with one more block, the last value is negative."""
    high = 1 << 20
    for value, grid, more in (
        (assume_positive(N - WIDE) - 1, N, 1),
        (assume_positive(N - WIDE // 4) - 1, N * 4, 4),
        (assume_positive(N + M - WIDE) - 1, N + M, 1),
    ):
        assert trusted(row(0, high + (1 << 10)), value, grid=grid, symbols=(N, M))
        assert not trusted(row(0, high + (1 << 10)), value, grid=grid + more, symbols=(N, M))
    assert trusted(row(0, high), assume_positive(N - WIDE % N) - 1, grid=99)
    assert not trusted(row(0, high), assume_positive(N - WIDE % N - 1) - 1, grid=99)
    assert not trusted(row(0, high), assume_positive(N - bit_xor(WIDE, as_expr(1))) - 1, grid=N), "its last block may be N"
    assert trusted(row(0, high), assume_positive(N - M) - 1), "the launch checks sizes"


@pytest.mark.parametrize(("more", "alarms"), [(0, 0), (1, 1)])
def test_a_coordinate_that_counts_down_is_checked_like_a_name(more, alarms):
    stmt = reads(assume_positive(N - WIDE) - 1, active=less(T, 1))
    assert len(findings_of(stmt, grid=N + more, symbols=(N,), buffers=(of_length("s", N),))) == alarms
    named = making.let(row(0, 1 << 20), assume_positive(N - WIDE) - 1)
    stmt = reads(named.var, active=all_of((less(T, 1), less(named.var, N))))
    assert len(findings_of(named, stmt, grid=N + more, symbols=(N,), buffers=(of_length("s", N),))) == alarms


def test_an_executed_iteration_proves_a_positive_remainder():
    """If a loop over the remainder of a size has an iteration, at least 1 remains."""
    high = (1 << 20) - 1
    left = N - WIDE * 32
    for extent in (left, minimum(left, M), minimum(M, left), minimum(left, as_expr(4))):
        assert trusted(row(0, high), left - 1, (extent, i), grid=M)
        assert not trusted(row(0, high), left - 2, (extent, i), grid=M)
        assert not trusted(row(1, high), left - 1, (extent, i), grid=M)
        assert not trusted(row(0, high - 1), left - 1, (extent, i), grid=M)
    assert not trusted(row(0, high), left - 1, (M, i), grid=M)
    assert not trusted(row(0, high), left - 1, grid=M)
    assert not trusted(row(0, high), left - 1, (N + M, i), grid=M)
    # This holds inside the loop: after it there may have been no iteration.
    named = making.let(row(0, high), left - 1)
    inside = reads(named.var, active=less(T, 1))
    options = {"symbols": (N, M), "grid": M, "buffers": (of_length("s", N),)}
    assert findings_of(named, loop(left, inside), **options) == []
    assert len(findings_of(named, loop(left, inside), inside, **options)) == 1


def test_a_size_less_a_minimum_keeps_its_range():
    high = 1 << 20
    assert trusted(row(0, high), N - minimum(N, T32))
    assert trusted(row(0, high), N - minimum(T32 * M, N))
    assert not trusted(row(1, high), N - minimum(N, T32))
    assert not trusted(row(0, high - 1), N - minimum(N, T32))
    assert not trusted(row(0, high), N - minimum(N, T32) - 1)
    assert not trusted(row(0, high), N - minimum(N + 1, T32 * M))


def test_threads_blocks_and_iterations_count_from_zero_to_their_number():
    """Whatever range a variable claims."""
    options = {"symbols": (N,), "buffers": (of_length("s", N + 7),)}
    for claimed, alarms in ((Var("thread", 0, 7), 0), (Var("thread", 0, 6), 1), (Var("thread", 1, 7), 1)):
        assert len(findings_of(reads(N - 1 + claimed), threads=8, **options)) == alarms, claimed
    for claimed, alarms in ((Var("block", 0, 7), 0), (Var("block", 0, 6), 1), (Var("block", 1, 7), 1)):
        assert len(findings_of(reads(N - 1 + claimed), grid=8, **options)) == alarms, claimed
    for claimed, alarms in ((Var("i", 0, 7), 0), (Var("i", 0, 6), 1), (Var("i", 1, 7), 1)):
        assert len(findings_of(loop(8, reads(N - 1 + claimed), var=claimed), **options)) == alarms, claimed


def test_ranges_of_the_terms_of_names_matter():
    claimed = Var("thread", 0, 6)
    for threads, expected in ((7, True), (8, False)):
        assert trusted(row(0, 7), claimed + 1, threads=threads) == expected


def test_consecutive_loops_with_the_same_name():
    """Each has its own length, in any order."""
    for first, second, alarms in ((8, 4, 1), (4, 8, 1), (4, 4, 0), (8, 8, 2)):
        findings = findings_of(loop(first, reads(T32 + i * 32)), loop(second, reads(T32 + i * 32)), buffers=(buffer("s", 128, memory=GL),))
        assert len(findings) == alarms, (first, second)
        findings = findings_of(
            loop(first, reads(N - 1 + i)), loop(second, reads(N - 1 + i)), symbols=(N,), buffers=(of_length("s", N + 3),)
        )
        assert len(findings) == alarms, (first, second)
    named = loop(8, making.let(row(0, 9), i * i), reads(N - 1 + row(0, 9))), loop(4, making.let(row(0, 9), i * i), reads(N - 1 + row(0, 9)))
    for body, alarms in ((named[:1], 1), (named[1:], 0), (named, 1), (named[::-1], 1)):
        assert len(findings_of(*body, symbols=(N,), buffers=(of_length("s", N + 9),))) == alarms


# ---------------------------------------------------------------------------------------------- persistent blocks


def persistent(tile, iteration, *, most=None, place=None, blocks=8):
    """Persistent blocks that process N tiles: the findings for an access to the element of a tile."""
    number = Var("block", 0, blocks - 1)
    extent = floordiv(N, as_expr(blocks)) + less(number, N % blocks)
    body = loop(extent, making.let(tile, number + iteration * blocks), reads(tile if place is None else place(tile)), var=iteration)
    facts = () if most is None else (("few", less(N, most + 1)), ("others", less(M, 5)), ("odd", equal(N % 2, 1)), ("M", less(N, M)))
    options = {"grid": minimum(N, as_expr(blocks)), "facts": facts, "symbols": (N, M), "buffers": (of_length("s", N),)}
    return findings_of(body, **options)


def test_tiles_of_persistent_blocks_are_below_their_number():
    high = 1 << 20
    tile, iteration = Var("tile", 0, high - 1), Var("turn", 0, high - 1)
    assert persistent(tile, iteration) == []
    assert len(persistent(tile, iteration, place=lambda tile: tile + 1)) == 1
    assert persistent(Var("tile", 0, high), iteration) == []
    assert len(persistent(Var("tile", 0, high - 2), iteration)) == 1
    assert len(persistent(tile, Var("turn", 0, high // 8 - 2))) == 1
    assert persistent(tile, Var("turn", 0, high // 8)) == []


def test_a_fact_bounds_the_number_of_tiles():
    assert persistent(Var("tile", 0, 98), Var("turn", 0, 98), most=99) == []
    assert len(persistent(Var("tile", 0, 97), Var("turn", 0, 98), most=99)) == 1
    assert len(persistent(Var("tile", 0, 98), Var("turn", 0, 97), most=99)) == 1
    assert len(persistent(Var("tile", 0, 98), Var("turn", 0, 98))) == 1, "without the fact"


# ---------------------------------------------------------------------------------------------- over all sizes


def proved(place, length, *, around=(), active=TRUE, grid=1, symbols=(N, M, N8), **options):
    """Whether an access is proved to stay below a length, and the next element beyond the greatest is not."""
    options_of_proof = {"grid": grid, "symbols": symbols, "buffers": (of_length("s", length),)}

    def alarms(where):
        body = (reads(where, active=active, **options),)
        for extent, number in reversed(around):
            body = (loop(extent, *body, var=number),)
        return len(findings_of(*body, **options_of_proof))

    assert alarms(place + 1) == 1, "the next one is out of bounds"
    return alarms(place) == 0


@pytest.mark.parametrize(
    ("place", "length", "grid"),
    [
        (WIDE, N, N),
        (WIDE * 4 + 3, N * 4, N),
        (WIDE // 4, N, N * 4),
        (WIDE // M, N, N * M),
        (WIDE // M // 2, N, N * M * 2),
        (WIDE // 2 // M // 2, N, N * M * 4),
        (WIDE % N, N, 99),
        (WIDE % N + WIDE // N * N, N * M, N * M),
        (T32 % N, N, 1),
        (WIDE // N8, M, M * N8),
        (WIDE // (N8 // 8), M, M * (N8 // 8)),
        (WIDE // 8, N8 // 8, N8),
        (WIDE // floordiv(N8, as_expr(4)), as_expr(4) * M, M * N8),
        (minimum(WIDE * 5, N - 1), N, 99),
        (minimum(N - 1, WIDE * 5), N, 99),
        (minimum(N - 1, WIDE * 5) * 3 + 2, N * 3, 99),
        (WIDE * 32 + T32, N * 32, N),
        (WIDE * 962 + T * T, N * 962, N),
        (WIDE * 4 + 3 - T32 % 4, N * 4, N),
    ],
    ids=str,
)  # fmt: skip
def test_digits_of_the_block_are_bounded_by_the_number_of_blocks(place, length, grid):
    assert proved(place, length, grid=grid)


def test_digits_that_a_number_of_blocks_does_not_bound():
    for place, length, grid in ((WIDE // 4, N, N * 4 + 1), (WIDE // M, N, N * M + 1), (WIDE // 3, N, N * 4), (i // 4, N, N * 4)):
        findings = findings_of(loop(N * 4 + 1, reads(place)), grid=grid, symbols=(N, M), buffers=(of_length("s", length),))
        assert len(findings) == 1, place


@pytest.mark.parametrize(
    ("place", "length", "extent"),
    [
        (i, N, N),
        (i * 3 + 2, N * 3, N),
        (i, N, minimum(WIDE + 1, N)),
        (i, N, minimum(N, WIDE * 3 + 1)),
        (i + T % 4, N + 3, minimum(as_expr(4), N)),
        (i * 2 + 1, N * 2, minimum(as_expr(4), N)),
        (i, as_expr(4), minimum(as_expr(4), N)),
        (i, N, minimum(N, M)),
        (i, M, minimum(N, M)),
        (i, N, assume_positive(N)),
    ],
    ids=str,
)
def test_loops_end_with_their_last_iteration(place, length, extent):
    grid = floordiv(N + 3, as_expr(4))
    assert findings_of(loop(extent, reads(place)), grid=grid, symbols=(N, M), buffers=(of_length("s", length),)) == []
    assert len(findings_of(loop(extent, reads(place + 1)), grid=grid, symbols=(N, M), buffers=(of_length("s", length),))) == 1


@pytest.mark.parametrize(
    ("place", "length", "conditions"),
    [
        (T, N, (less(T, N),)),
        (T * 8 + 7, M * 8, (less(T, M),)),
        (T * 2 + 1, M, (less(T * 2, M - 1),)),
        (T * 8 + 7, N8, (less(T * 8, N8),)),
        (T + LONG * 4, N, (less(T + LONG * 4, N),)),
        (T * 4 + LONG * 5, M * 9 - 8, (less(T, M), less(LONG, M))),
        (T + LONG, N + M - 1, (less(T, N), less(LONG, M))),
        (T * 6 + LONG * 2, N * 2 + M * 6 - 7, (less(T, M), less(LONG, N))),
    ],
    ids=str,
)
def test_remainders_of_conditions_are_added(place, length, conditions):
    active = all_of(conditions)
    options = {"symbols": (N, M, N8), "threads": 128, "buffers": (of_length("s", length),)}
    assert findings_of(loop(N + M * 9, reads(place, active=active), var=LONG), **options) == []
    findings = findings_of(loop(N + M * 9, reads(place + 8, active=active), var=LONG), **options)
    assert len(findings) == 1
    for left in conditions:
        fewer_conditions = all_of(one for one in conditions if one is not left)
        assert len(findings_of(loop(N + M * 9, reads(place, active=fewer_conditions), var=LONG), **options)) == 1, "without one of them"


@pytest.mark.parametrize("others", range(10))
def test_one_condition_after_many_others_suffices(others):
    """However many conditions come before it, which leave something over, too."""
    before = all_of([less(T * (number + 2), M * (number + 3)) for number in range(others)])
    options = {"symbols": (N, M), "threads": 128, "buffers": (of_length("s", N),)}
    assert findings_of(reads(T * 3 + 1, active=all_of([before, less(T * 3 + 1, N)])), **options) == []
    assert len(findings_of(reads(T * 3 + 2, active=all_of([before, less(T * 3 + 1, N)])), **options)) == 1


def test_conditions_on_the_value_of_a_name():
    named = making.let(row(0, 254), T * 2)
    options = {"symbols": (N,), "threads": 128, "buffers": (of_length("s", N),)}
    assert findings_of(named, reads(named.var, active=less(T * 2, N)), **options) == []
    assert len(findings_of(named, reads(named.var, active=less(T * 2, N + 1)), **options)) == 1
    assert len(findings_of(named, reads(named.var + 1, active=less(T * 2, N)), **options)) == 1


def test_bounds_that_the_text_tests():
    options = {"symbols": (N, M), "threads": 128, "buffers": (of_length("s", N),)}
    assert findings_of(reads(T, bound=N), **options) == []
    assert findings_of(reads(T, width=4, bound=N), **options) == []
    assert findings_of(reads(T, width=4, bound=N - 1), **options) == []
    assert len(findings_of(reads(T, bound=N + 1), **options)) == 1
    assert len(findings_of(reads(T - 1, bound=N), **options)) == 1, "below zero"


def test_parts_of_threads_and_loops_are_enumerated_where_blocks_give_the_rest():
    def alarms(place, length, **options):
        body = loop(3, reads(place, **options))
        return len(findings_of(body, grid=N, symbols=(N, M), buffers=(of_length("s", length),)))

    mixed = T * T + i * i * 1000
    assert alarms(WIDE * 4962 + mixed, N * 4962) == 0
    assert alarms(WIDE * 4962 + mixed + 1, N * 4962) == 1
    assert alarms(WIDE * 4962 + mixed, N * 4962, width=2) == 1
    assert alarms(WIDE * 4963 + mixed, N * 4963, width=2) == 0
    assert alarms(WIDE * 4962 + 961 - T * T, N * 4962) == 0
    assert alarms(WIDE * 4962 + 960 - T * T, N * 4962) == 1, "below zero"
    assert alarms(WIDE * 82 + T * T, N * 82, active=less(T * T, 100)) == 0
    assert alarms(WIDE * 82 + T * T + 1, N * 82, active=less(T * T, 100)) == 1
    assert alarms(WIDE * 82 + T * T, N * 82, active=all_of((less(T * T, 100), less(WIDE * 3, M)))) == 0
    assert alarms(WIDE * 82 + T * T, N * 82, active=less(WIDE * 3, M)) == 1
    assert alarms(WIDE + T * T + 10**6, N, active=less(1000, T * T)) == 0, "it is never executed"
    assert alarms(WIDE * T, N * 31) == 1, "a term of both"


def pointed(base, *points):
    """An access to some elements by their offsets."""
    stmt = reads(base)
    (access,) = stmt.accesses
    return attrs.evolve(stmt, accesses=(attrs.evolve(access, points=tuple((point,) for point in points)),))


def test_elements_before_the_first_one():
    """Offsets of an access may be below zero."""
    options = {"grid": N, "symbols": (N,), "buffers": (of_length("s", N * 964),)}
    assert findings_of(pointed(WIDE * 964 + T * T + 1, -1, 0, 1), **options) == []
    assert len(findings_of(pointed(WIDE * 964 + T * T, -1, 0, 1), **options)) == 1
    assert len(findings_of(pointed(WIDE * 964 + T * T + 2, -1, 0, 1), **options)) == 1
    (finding,) = findings_of(pointed(T, 0, -1), buffers=(buffer("s", 64, memory=GL),))
    assert finding.message == "s: thread 0 reads coordinate -1 of dimension 0, whose extent is 64"
    assert findings_of(pointed(T + 1, 0, -1), buffers=(buffer("s", 64, memory=GL),)) == []


@pytest.mark.parametrize("size", [1, 2, 3, 37, 127, 129, 500])
def test_each_tried_size_is_reported(size):
    (finding,) = findings_of(reads(N - 1 + equal(N, as_expr(size)), active=less(T, 1)), symbols=(N,), buffers=(of_length("s", N),))
    assert finding.message == f"s: thread 0 reads coordinate {size} of dimension 0, whose extent is {size} at N={size}"


@pytest.mark.parametrize("size", [8, 16, 24, 296, 128, 136, 504])
def test_sizes_that_are_tried_are_multiples(size):
    (finding,) = findings_of(reads(N8 - 1 + equal(N8, as_expr(size)), active=less(T, 1)), symbols=(N8,), buffers=(of_length("s", N8),))
    assert finding.details["sizes"] == {"N8": size}


def test_tried_sizes_are_in_their_range():
    few = Var("few", 5, 130, 1, True)
    for size in (5, 37, 127, 129):
        (finding,) = findings_of(
            reads(few - 1 + equal(few, as_expr(size)), active=less(T, 1)), symbols=(few,), buffers=(of_length("s", few),)
        )
        assert finding.details["sizes"] == {"few": size}
    (finding,) = findings_of(reads(few - 1 + equal(few, as_expr(130)), active=less(T, 1)), symbols=(few,), buffers=(of_length("s", few),))
    assert finding.message.endswith("is not proved to be in 0 .. few - 1, and no condition tests it") and finding.details["dimension"] == 0
    both = findings_of(reads(N - 1 + equal(N + M, as_expr(629)), active=less(T, 1)), symbols=(N, M), buffers=(of_length("s", N),))
    assert both[0].details["sizes"] == {"N": 129, "M": 500}


# ---------------------------------------------------------------------------------------------- how much is enumerated


@pytest.mark.parametrize("bad", [0, 1, 50, 98, 99])
def test_long_loops_are_enumerated_partly(bad, monkeypatch):
    monkeypatch.setattr("fireiron.check.bounds.MANY", 32 * 20)
    place = T32 + equal(i % 100, as_expr(bad)) * M
    findings = findings_of(loop(100, reads(place)), symbols=(M,), buffers=(of_length("s", 31 + M),))
    assert [one.details["loops"] for one in findings] == [{"i": bad}], findings


def test_partly_enumerated_loops_are_not_proved(monkeypatch):
    body = loop(100, reads(T * T + equal(i, as_expr(37)) * 31 * i % 32))
    assert findings_of(body, buffers=(buffer("s", 993, memory=GL),)) == []
    monkeypatch.setattr("fireiron.check.bounds.MANY", 32 * 20)
    (finding,) = findings_of(body, buffers=(buffer("s", 993, memory=GL),))
    assert "is not proved" in finding.message


def test_a_loop_whose_length_depends_on_another():
    inner = loop(i + 1, reads(J + i + 32), var=J)
    (finding,) = findings_of(loop(4, inner), buffers=(buffer("s", 35, memory=GL),))
    assert finding.message == "s: thread 0, i=3 reads coordinate 35 of dimension 0, whose extent is 35"


# ---------------------------------------------------------------------------------------------- what is not there


def test_a_statement_that_is_never_performed_needs_no_proof():
    assert findings_of(reads(T + 99, active=FALSE), symbols=(N,), buffers=(of_length("s", N),)) == []


def test_coordinate_tensors_have_no_address():
    assert findings_of(reads(T + 99), buffers=(attrs.evolve(array("s", 32, memory=COORD)),)) == []
    assert findings_of(reads(T + 99), symbols=(N,), buffers=(array("s", N, memory=COORD),)) == []


def test_pieces_that_are_never_accessed():
    options = {"symbols": (N,), "buffers": (of_length("s", N),)}
    assert findings_of(in_pieces(T * 4, 4, lambda first: FALSE), **options) == []
    some = in_pieces(T * 4, 4, lambda first: FALSE if first == T * 4 else less(first + 3, N), 2)
    assert findings_of(some, **options) == []
    other = in_pieces(T * 4, 4, lambda first: TRUE if first == T * 4 else less(first + 3, N), 2)
    assert len(findings_of(other, **options)) == 1


# ---------------------------------------------------------------------------------------------- addresses


def in_shared(place, elements, *, width=1, storage=None, copies=1, copy=ZERO, active=TRUE, memory=SH, **options):
    """The findings for an access to a buffer of a block, indexed with a run-time size."""
    array = buffer("s", elements, memory=memory)
    array = attrs.evolve(array, tensor=attrs.evolve(array.tensor, copies=copies))
    if storage is not None:
        array = attrs.evolve(array, storage=storage, elements=as_expr(storage.extent))
    body = loop(N, reads(place, width=width, copy=copy, active=active))
    return findings_of(body, **{"symbols": (N, M), "buffers": (array,), "grid": M, **options})


@pytest.mark.parametrize("memory", [SH, RF], ids=str)
def test_addresses_that_contain_a_size(memory):
    assert in_shared(M % 4, 4, memory=memory) == []
    (finding,) = in_shared(M % 4, 3, memory=memory)
    assert finding.kind == "bounds" and finding.buffer == "s"
    assert len(in_shared(M % 4 + 1, 4, memory=memory)) == 1
    assert in_shared(M % 4, 5, width=2, memory=memory) == []
    assert len(in_shared(M % 4, 4, width=2, memory=memory)) == 1
    assert in_shared(M % 4, 3, active=less(M % 4, 3), memory=memory) == []
    assert len(in_shared(M % 4, 3, active=less(M % 4, 4), memory=memory)) == 1


def test_a_stage_that_depends_on_a_size():
    assert in_shared(T32, 32, copies=4, copy=i % 4) == []
    assert len(in_shared(T32, 32, copies=3, copy=i % 4)) == 1
    assert in_shared(T32, 32, copies=3, copy=i % 4, active=less(i % 4, 3)) == []
    assert len(in_shared(T32 - 1, 32, copies=4, copy=i % 4)) == 1
    (finding,) = in_shared(T32, 32, copies=3, copy=i % 4)
    assert finding.message == "s: the address is not proved to be below 96" and finding.details["elements"] == "96"


def test_an_address_in_registers_below_zero():
    (finding,) = findings_of(loop(4, reads(i - 1)), buffers=(buffer("s", 4, memory=RF),))
    assert finding.message == "s: thread 0, i=0 accesses address -1, but s has 4 elements"
    assert len(in_shared(M % 4 - 1, 4, memory=RF)) == 1


def test_the_first_address_out_of_bounds_is_reported_and_conditions_hold():
    (finding,) = findings_of(loop(4, reads(i + T // 31, active=less(2, i + T % 2))), buffers=(buffer("s", 3, memory=RF),))
    assert finding.message == "s: thread 0, i=3 accesses address 3, but s has 3 elements"
    assert findings_of(loop(4, reads(i, active=less(i, 3))), buffers=(buffer("s", 3, memory=RF),)) == []
    (finding,) = findings_of(loop(4, reads(i, active=less(i, 3), width=2)), buffers=(buffer("s", 3, memory=RF),))
    assert dict(finding.details) == {"thread": 0, "loops": {"i": 2}, "address": 3, "elements": 3}
    assert findings_of(loop(4, reads(i, bound=as_expr(3))), buffers=(buffer("s", 3, memory=RF),)) == []
    assert len(findings_of(loop(4, reads(i, bound=as_expr(4))), buffers=(buffer("s", 3, memory=RF),))) == 1


SWAPPED = Swizzle(2, 0, 2)


@pytest.mark.parametrize(("extent", "alarms"), [(32, 0), (48, 0), (17, 1), (30, 1), (31, 1)])
def test_a_swizzled_place_that_a_size_selects(extent, alarms):
    """All of the reachable spans of 16 elements must exist; more does no harm, whatever follows."""
    storage = Storage(Layout((32,), (1,)), extent, SWAPPED)
    for width in (1, 16):
        assert len(in_shared(M % (33 - width), 32, width=width, storage=storage)) == alarms
    assert len(in_shared(M % 16, 32, storage=storage)) == 0, "the first span is there"
    assert len(in_shared(M % 17, 32, storage=storage)) == alarms


def test_a_swizzle_may_lead_out_between_the_first_and_the_last_element():
    """Of four elements, the first is at 25 and the last at 29, those between at 31 and 30."""
    (finding,) = findings_of(reads(27, width=4), buffers=(swizzled(32, 30, SWAPPED),))
    assert finding.message == "s: thread 0 accesses address 31, but s has 30 elements"
    assert [SWAPPED(place) for place in range(27, 31)] == [25, 31, 30, 29]
    assert findings_of(reads(27, width=4), buffers=(swizzled(32, 32, SWAPPED),)) == []


@pytest.mark.parametrize(("extent", "alarms"), [(32, 0), (31, 1)])
def test_rows_of_tiles(extent, alarms):
    """Adjacent elements have two strides: 8 rows of 4."""
    storage = Storage(Layout(((4, 8),), ((8, 1),)), extent)
    for width in (1, 16):
        assert len(in_shared(M % (33 - width), 32, width=width, storage=storage)) == alarms
    assert in_shared(M % 4, 4, storage=Storage(Layout(((4, 8),), ((8, 1),)), 25)) == []
    assert len(in_shared(M % 4, 4, storage=Storage(Layout(((4, 8),), ((8, 1),)), 24))) == 1
    # The first and the last element are in bounds, one between them is not.
    between = Storage(Layout(((2, 2),), ((5, 1),)), 6)
    assert len(findings_of(reads(0, width=3), buffers=(attrs.evolve(buffer("s", 4), storage=between, elements=as_expr(5)),))) == 1
    assert findings_of(reads(0, width=3), buffers=(attrs.evolve(buffer("s", 4), storage=between, elements=as_expr(6)),)) == []


@pytest.mark.parametrize("memory", [SH, RF], ids=str)
def test_conditions_on_loops_are_part_of_an_enumeration(memory):
    for last, size, alarms in ((3, 5, 0), (3, 4, 1), (4, 9, 1), (4, 10, 0)):
        body = loop(4, writes(i * i, active=less(i, last)))
        assert len(findings_of(body, buffers=(buffer("s", size, memory=memory),))) == alarms, (last, size)
        assert len(findings_of(loop(N, body, var=J8), symbols=(N,), buffers=(buffer("s", size, memory=memory),))) == alarms


def test_facts_that_are_not_upper_bounds():
    number = Var("block", 0, 7)
    for fact, alarms in ((less(N, 99), 0), (equal(N, as_expr(99)), 1), (less(98, N), 1), (all_of((less(N, 99), less(M, 5))), 1)):
        tile, iteration = Var("tile", 0, 97), Var("turn", 0, 1 << 20)
        extent = floordiv(N, as_expr(8)) + less(number, N % 8)
        body = loop(extent, making.let(tile, number + iteration * 8), reads(tile), var=iteration)
        options = {"symbols": (N, M), "buffers": (of_length("s", N),)}
        assert len(findings_of(body, grid=minimum(N, as_expr(8)), facts=(("fact", fact),), **options)) == alarms, fact


def test_remainders_of_conditions_combine_with_digits_of_the_block():
    options = {"symbols": (N, M), "grid": N, "threads": 128}
    some = less(T, M)
    assert findings_of(reads(WIDE + T, active=some), buffers=(of_length("s", N + M - 1),), **options) == []
    assert len(findings_of(reads(WIDE + T + 1, active=some), buffers=(of_length("s", N + M - 1),), **options)) == 1
    assert findings_of(reads(WIDE * 4 + T * 8, active=some), buffers=(of_length("s", N * 4 + M * 8 - 11),), **options) == []
    assert len(findings_of(reads(WIDE * 4 + T * 8, active=some), buffers=(of_length("s", N * 4 + M * 8 - 12),), **options)) == 1


def test_counts_of_tiles_that_are_quotients_of_sizes():
    """A size that is a multiple of 8 has a whole number of tiles of 8, and of 4."""
    N12 = Var("N12", 12, 1 << 20, 12, True)
    for grid, digit, tiles in (
        (floordiv(N8, as_expr(8)) * M, WIDE // M, floordiv(N8, as_expr(8))),
        (floordiv(N8, as_expr(8)) * M, WIDE // floordiv(N8, as_expr(8)), M),
        (floordiv(N8, as_expr(4)) * M, WIDE // M, floordiv(N8, as_expr(4))),
        (floordiv(N12, as_expr(4)) * floordiv(N8, as_expr(2)), WIDE // floordiv(N8, as_expr(2)), floordiv(N12, as_expr(4))),
        (N8 * M, WIDE // floordiv(N8, as_expr(8)), M * 8),
        (N8 * M, WIDE // M, N8),
        (N8 * M, WIDE // 8 // M, floordiv(N8, as_expr(8))),
    ):
        options = {"symbols": (N8, N12, M), "grid": grid}
        assert findings_of(reads(digit), buffers=(of_length("s", tiles),), **options) == [], (grid, digit)
        assert len(findings_of(reads(digit + 1), buffers=(of_length("s", tiles),), **options)) == 1, (grid, digit)


def test_piece_that_crosses_a_bound():
    """The first piece is tested wholly; of the second one only its first element."""
    options = {"symbols": (N,), "buffers": (of_length("s", N),)}
    both = in_pieces(T * 8, 4, lambda first: less(first + 3 if first == T * 8 else first, N), 2)
    (crossing,) = findings_of(both, **options)
    assert crossing.message == (
        "s: a vector of 4 elements is accessed, but only its first element is tested against N; the others may be out of bounds, since N is not known to be a "
        "multiple of 4"
    )
    other = in_pieces(T * 8, 4, lambda first: less(first if first == T * 8 else first + 3, N), 2)
    assert len(findings_of(other, **options)) == 1
    single = in_pieces(T, 1, lambda first: less(first, N + 1))
    (finding,) = findings_of(single, **options)
    assert "coordinate" in finding.message and "elements is accessed" not in finding.message
    (finding,) = findings_of(in_pieces(T * 4, 4, lambda first: less(first, N + 1)), **options)
    assert "elements is accessed" not in finding.message, "a bound past the end is ignored"
    assert "elements is accessed" in findings_of(in_pieces(T * 4, 4, lambda first: less(first, N)), **options)[0].message
    outer = in_pieces(T * 4, 4, lambda first: TRUE, active=less(T * 4, N))
    assert "a vector of 4 elements is accessed" in findings_of(outer, **options)[0].message


def test_bounds_next_to_pieces_are_not_tested_by_the_text():
    """So what is known is not less known because of them."""
    options = {"symbols": (N,), "buffers": (buffer("s", 962, memory=GL),)}
    assert findings_of(in_pieces(T * T, 1, lambda first: TRUE, bound=N), **options) == []
    assert len(findings_of(in_pieces(T * T + 1, 1, lambda first: TRUE, bound=N), **options)) == 1


@pytest.mark.parametrize("loops", [((100, i), (3, J)), ((3, J), (100, i))])
def test_the_longest_loop_is_enumerated_partly(loops, monkeypatch):
    monkeypatch.setattr("fireiron.check.bounds.MANY", 32 * 20)
    body = reads(T32 + equal(i + J, as_expr(101)) * M)
    for extent, number in loops:
        body = loop(extent, body, var=number)
    (finding,) = findings_of(body, symbols=(M,), buffers=(of_length("s", 31 + M),))
    assert finding.details["loops"] == {"i": 99, "j": 2}


def test_an_interior_version_needs_a_condition():
    """Without one there is no such version, and nothing is left out."""
    active = less(T, 20)
    without = attrs.evolve(reads(T, active=active), implied=(active,))
    assert findings_of(without, grid=4, buffers=(buffer("s", 20, memory=GL),)) == []


def test_products_of_blocks_and_threads():
    assert findings_of(reads(BLOCK * T), grid=4, buffers=(buffer("s", 94, memory=GL),)) == []
    assert len(findings_of(reads(BLOCK * T), grid=4, buffers=(buffer("s", 93, memory=GL),))) == 1
    (finding,) = findings_of(reads(WIDE * WIDE), grid=N, symbols=(N,), buffers=(buffer("s", 499 * 499 + 1, memory=GL),))
    assert "is not proved" in finding.message, "inside for all sizes that are tried"
    assert not trusted(row(0, 5), WIDE * WIDE, grid=N)


def test_a_copy_before_the_first():
    assert len(in_shared(T32, 32, copies=4, copy=i % 4 - 1)) == 1
    assert in_shared(T32, 32, copies=4, copy=i % 4 - 1, active=less(0, i % 4)) != [], "not known without the size"
    assert len(in_shared(T32, 32, copies=4, copy=i % 5)) == 1


@pytest.mark.parametrize(("low", "step", "first"), [(0, 1, 0), (0, 8, 0), (1, 8, 8), (20, 8, 24), (16, 8, 16), (600, 1, 600)])
def test_the_least_size_is_tried(low, step, first):
    size = Var("size", low, 1 << 20, step, True)
    (finding,) = findings_of(
        reads(size + equal(size, as_expr(first)), active=less(T, 1)), symbols=(size,), buffers=(of_length("s", size + 1),)
    )
    assert finding.details["sizes"] == {"size": first}


def test_terms_added_to_a_decreasing_value():
    """Only what is taken away is nothing at most."""
    for length, alarms in ((M + 3, 0), (M + 2, 1)):
        body = loop(4, reads(assume_positive(M + i - N) - 1, active=less(T, 1)))
        assert len(findings_of(body, symbols=(N, M), buffers=(of_length("s", length),))) == alarms, length


def test_a_name_of_a_decreasing_value_is_below_the_size():
    named = making.let(row(0, 1 << 20), assume_positive(N - WIDE) - 1)
    for more, alarms in ((0, 0), (1, 1)):
        stmt = reads(named.var + more, active=less(T, 1))
        assert len(findings_of(named, stmt, grid=N, symbols=(N,), buffers=(of_length("s", N),))) == alarms, more


def test_a_test_of_something_else_is_none_of_the_first_element():
    options = {"symbols": (N, N8), "buffers": (of_length("s", N),)}
    (finding,) = findings_of(in_pieces(T * 8, 4, lambda first: less(T, N)), **options)
    assert "elements is accessed" not in finding.message
    (finding,) = findings_of(
        in_pieces(T * 8, 4, lambda first: less(first, N8) if first == T * 8 else TRUE, 2), symbols=(N8,), buffers=(of_length("s", N8),)
    )
    assert "elements is accessed" not in finding.message, "what is tested is whole"


def test_each_piece_has_its_own_condition():
    options = {"symbols": (N,), "buffers": (of_length("s", N),)}
    assert findings_of(in_pieces(T * 8, 4, lambda first: less(first + 3, N), 2), **options) == []
    assert len(findings_of(in_pieces(T * 8, 4, lambda first: less(first + 2, N), 2), **options)) == 1
    permuted = pointed(T * 8, 4, 5, 6, 7, 0, 1, 2, 3)
    for last, alarms in ((3, 0), (2, 1)):
        pieces = (making.piece(0, 4, condition=less(T * 8 + 7, N)), making.piece(4, 4, condition=less(T * 8 + last, N)))
        assert len(findings_of(attrs.evolve(permuted, pieces=(pieces,)), **options)) == alarms, last


def test_indices_that_need_many_bits_are_reported():
    large = Var("large", 1, (1 << 31) - 1, 1, True)
    place = WIDE * large * 4
    findings = findings_of(reads(place), grid=large, symbols=(large,), buffers=(of_length("s", large),))
    assert any("may need more than 64 bits" in one.message for one in findings)


def test_threads_times_blocks_within_their_ranges():
    narrow = Var("block", 0, 7)
    for length, alarms in ((7 * 31 + 1, 0), (7 * 31, 1)):
        assert len(findings_of(reads(N - 1 + narrow * T32), grid=8, symbols=(N,), buffers=(of_length("s", N + length - 1),))) == alarms


# ---------------------------------------------------------------------------------------------- parts of it, by tables


def parts(*body, **options):
    """What proves bounds in a kernel."""
    return subject._Bounds(AccessTrace(kernel(*body, **{"threads": THREADS, "symbols": (N, M, N8), **options})))


DIGIT = Var("block", 0, (1 << 31) - 1)


@pytest.mark.parametrize(
    ("value", "grid", "largest"),
    [
        (DIGIT, N, N - 1),
        (DIGIT % M, N, M - 1),
        (DIGIT % 8, N, as_expr(7)),
        (DIGIT // 4, N * 4, N - 1),
        (DIGIT // 4, N, None),
        (DIGIT // N, N * M, M - 1),
        (DIGIT // N // 4, N * M * 4, M - 1),
        (DIGIT // 8, N8, N8 // 8 - 1),
        (DIGIT // 8, N8 + 8, N8 // 8),
        (DIGIT // 16, N8, None),
        (minimum(DIGIT, N - 1), 7, N - 1),
        (minimum(DIGIT, M), N, M),
        (minimum(DIGIT, as_expr(5)), N, None),
        (T // 4, N, None),
        (assume_positive(N - DIGIT), N, N),
        (assume_positive(N - DIGIT) + 3, N, N + 3),
        (assume_positive(N - DIGIT * 2 + M), N, N + M),
        (assume_positive(N - DIGIT) * 2, N, None),
        (assume_positive(N - DIGIT) + M, N, None),
    ],
    ids=str,
)
def test_the_largest_value_of_a_digit_over_the_sizes(value, grid, largest):
    assert parts(grid=as_expr(grid))._largest_digit(as_expr(value)) == largest


@pytest.mark.parametrize(
    ("value", "side", "largest"),
    [
        (i * 4 + 3, None, (N - 1) * 4 + 3),
        (i * 4 - J, None, (N - 1) * 4 - J),
        (i + J, None, N - 1 + minimum(N, M) - 1),
        (J * 2, 0, (minimum(N, M).children[0] - 1) * 2),
        (J * 2, -1, (minimum(N, M).children[1] - 1) * 2),
        (T + i, None, T + N - 1),
        (DIGIT * 8 + T, None, (N8 - 1) * 8 + T),
        (i * M, None, i * M),
        (as_expr(5), None, as_expr(5)),
    ],
    ids=str,
)
def test_the_largest_value_of_a_coordinate_over_the_sizes(value, side, largest):
    """Loops at their last iteration, blocks at the last of them; what is taken away stays."""
    bounds = parts(loop(N, loop(minimum(N, M), reads(T), var=J)), grid=N8)
    assert bounds._largest(as_expr(value), side) == largest


@pytest.mark.parametrize(
    ("value", "spare", "multiples"),
    [
        (N * -3, N, [3, 1, 0]),
        (N * -16 - M * 3, N + M, [3, 16, 1, 0]),
        (N * -3, N * 2, [1, 0]),
        (N * -4, N * 2, [2, 1, 0]),
        (N * 4, N * 2, [1, 0]),
        (N * -1, N, [1, 0]),
        (N * -2 + M, N - M, [2, 1, 0]),
        (M * -2, N, [1, 0]),
        (as_expr(7), N, [1, 0]),
    ],
    ids=str,
)
def test_how_often_a_remainder_is_added(value, spare, multiples):
    assert subject._multiples(as_expr(value), as_expr(spare)) == multiples


@pytest.mark.parametrize(
    ("address", "swizzle", "last"),
    [(0, None, 0), (13, None, 13), (0, Swizzle(2, 0, 3), 31), (31, Swizzle(2, 0, 3), 31), (32, Swizzle(2, 0, 3), 63), (70, Swizzle(1, 2, 3), 127), (63, Swizzle(1, 2, 3), 63)],
)  # fmt: skip
def test_the_last_address_of_a_swizzled_span(address, swizzle, last):
    assert subject._last_of_span(address, swizzle) == last


def test_addresses_that_grow_with_each_coordinate():
    plain, bent = Storage(Layout((8, 4), (1, 8)), 32), Storage(Layout(((2, 4), 4), ((1, 16), 2)), 64)
    assert subject._monotone(plain) and not subject._monotone(bent)
    assert not subject._monotone(attrs.evolve(plain, swizzle=Swizzle(1, 0, 2)))


def test_description_of_a_point():
    point = {"thread": 3, "block": 0, "i": 7, "j": 2}
    assert subject._where(point) == "thread 3, block 0, i=7, j=2" and subject._where({}) == ""
    assert subject._split(point) == {"thread": 3, "block": 0, "loops": {"i": 7, "j": 2}}
    assert subject._split({"i": 1}) == {"loops": {"i": 1}}


@pytest.mark.parametrize(
    ("value", "inner", "outside", "inside"),
    [
        (T + i * 4 + 3, ("thread", "i"), ZERO, T + i * 4 + 3),
        (T + i * 4 + 3, ("thread",), i * 4, T + 3),
        (T * N + BLOCKS + i, ("thread", "i"), T * N + BLOCKS, i),
        (N - 5, ("thread",), N, as_expr(-5)),
        (as_expr(0), (), ZERO, ZERO),
    ],
    ids=str,
)
def test_contributions_of_threads_and_loops(value, inner, outside, inside):
    assert parts()._parts(as_expr(value), frozenset(inner)) == (outside, as_expr(inside))


@pytest.mark.parametrize(
    ("symbols", "expected"),
    [
        ((), [{}]),
        ((Var("N", 1, 1 << 20, 1, True),), [{"N": one} for one in (1, 2, 3, 37, 127, 129, 500)]),
        ((Var("N", 8, 1 << 20, 8, True),), [{"N": one} for one in (8, 16, 24, 128, 136, 296, 504)]),
        ((Var("N", 3, 100, 1, True),), [{"N": one} for one in (3, 37)]),
        ((Var("N", 40, 130, 10, True),), [{"N": one} for one in (40, 130)]),
        ((Var("N", 128, 128, 128, True),), [{"N": 128}]),
        ((Var("N", 3, 3, 1, True), Var("M", 1, 2, 1, True)), [{"N": 3, "M": 1}, {"N": 3, "M": 2}]),
    ],
    ids=str,
)
def test_which_sizes_are_tried(symbols, expected):
    """The last of several symbols changes first."""
    assert list(parts(symbols=symbols)._sizes()) == expected


def test_number_of_tried_sizes_is_limited():
    three = tuple(Var(name, 1, 1 << 20, 1, True) for name in ("N", "M", "K"))
    tried_sizes = list(parts(symbols=three)._sizes())
    assert len(tried_sizes) == 64 and tried_sizes[0] == {"N": 1, "M": 1, "K": 1} and tried_sizes[63] == {"N": 2, "M": 3, "K": 1}


@pytest.mark.parametrize(
    ("values", "sizes", "axes", "complete"),
    [
        ((T,), {}, {"thread": range(32)}, True),
        ((i,), {"N": 3}, {"thread": range(1), "i": range(3)}, True),
        ((i + T,), {"N": 3}, {"thread": range(32), "i": range(3)}, True),
        ((BLOCKS,), {"N8": 4}, {"thread": range(1), "block": range(4)}, True),
        ((J,), {"N": 3}, {"thread": range(1)}, False),
        ((N + 1,), {"N": 3}, {"thread": range(1)}, True),
        ((i,), {"N": 0}, {"thread": range(1), "i": range(0)}, True),
    ],
    ids=str,
)
def test_enumeration_at_some_sizes(values, sizes, axes, complete):
    """Relevant threads, blocks and loops, with lengths by the sizes; others are at 0."""
    bounds = parts(loop(N, loop(i + 1, reads(T), var=J)), grid=N8)
    (use,) = bounds.access_trace.uses
    frame, is_complete = bounds._frame(use, {"N": 1, "M": 1, "N8": 8, **sizes}, values)
    assert {name: list(one) for name, one in frame.axes} == {name: list(one) for name, one in axes.items()} and is_complete == complete
    if not complete:
        assert frame["j"] == 0


@pytest.mark.parametrize(
    ("many", "threads", "iterations"),
    [(32 * 100, None, None), (32 * 99, None, [0, 1, 50, 98, 99]), (159, [0, 1, 16, 30, 31], [0, 1, 50, 98, 99]), (24, [0, 31], [0, 1, 50, 98, 99]), (9, [0, 31], [0, 99]), (3, [0], [0, 99]), (1, [0], [0])],
)  # fmt: skip
def test_reduction_of_too_large_enumerations(monkeypatch, many, threads, iterations):
    """The longest first: its ends and what is between, then its ends, then its first value."""
    bounds = parts(loop(100, reads(T)))
    monkeypatch.setattr(subject, "MANY", many)
    frame, is_complete = bounds._frame(bounds.access_trace.uses[0], {}, (T + i,))
    assert {name: list(one) for name, one in frame.axes} == {"thread": threads or list(range(32)), "i": iterations or list(range(100))}
    assert is_complete == (iterations is None)


@pytest.mark.parametrize(
    ("value", "grid", "extent", "static"),
    [(T, 4, 3, True), (BLOCKS, 4, 3, True), (BLOCKS, N, 3, False), (T, N, 3, True), (i, 4, N, False), (T, 4, N, False), (T + N, 4, 3, False)],
    ids=str,
)  # fmt: skip
def test_values_that_depend_on_no_size(value, grid, extent, static):
    bounds = parts(loop(extent, reads(T)), grid=as_expr(grid))
    assert bounds._static((as_expr(value),), bounds.access_trace.uses[0]) == static


@pytest.mark.parametrize(
    ("facts", "most"),
    [
        ((), 1 << 20),
        ((less(N, 100),), 99),
        ((less(N, 100), less(N, 7)), 6),
        ((less(M, 5),), 1 << 20),
        ((less(N, M),), 1 << 20),
        ((less(5, N),), 1 << 20),
    ],
    ids=str,
)
def test_upper_bounds_from_facts(facts, most):
    assert parts(facts=tuple(("it is so", one) for one in facts))._upper_limit(N) == most


def test_the_blocks_of_a_grid_are_no_more_than_a_target_launches():
    limit = parts().kernel.architecture.grid_x
    assert parts(grid=as_expr(7))._blocks() == as_expr(7) and parts(grid=N)._blocks() == N
    long = Var("long", 1, limit + 1, 1, True)
    assert parts(grid=long, symbols=(long,))._blocks() == as_expr(limit)
    short = Var("short", 1, limit, 1, True)
    assert parts(grid=short, symbols=(short,))._blocks() == short


@pytest.mark.parametrize(
    ("value", "extents", "expected"),
    [
        (N - i - 1, (N,), False),
        (N - 1, (N,), True),
        (N, (N,), True),
        (N - 2, (N,), False),
        (N - 1, (M,), False),
        (N - 1, (minimum(M, N),), True),
        (M - 1, (minimum(M, N),), True),
        (N8 - 1, (M, N), False),
        (N - 1, (M, N), True),
        (N - 1, (), False),
    ],
    ids=str,
)
def test_values_nonnegative_in_an_executed_iteration(value, extents, expected):
    assert parts()._nonnegative_in_loop(value, [loop(one) for one in extents]) == expected


LANE = Var("thread", 0, THREADS - 1)


@pytest.mark.parametrize(
    ("copy", "copies", "place", "elements", "storage", "inside"),
    [
        (ZERO, 1, LANE, 32, None, True),
        (ZERO, 1, LANE, 31, None, False),
        (ZERO, 1, LANE + 1, 32, None, False),
        (i, 2, LANE, 32, None, False),
        (ZERO, 1, LANE - 1, 32, None, False),
        (ZERO, 1, LANE % 4 * 4, 16, None, True),
        (ZERO, 1, LANE % 4 * 4, 13, None, True),
        (ZERO, 1, LANE % 4 * 4, 12, None, False),
        (ZERO, 1, LANE, 32, Swizzle(2, 0, 3), True),
        (ZERO, 1, LANE % 8, 31, Swizzle(2, 0, 3), False),
        (ZERO, 1, LANE % 8, 32, Swizzle(2, 0, 3), True),
    ],
    ids=str,
)
def test_addresses_by_the_ranges_of_coordinates(copy, copies, place, elements, storage, inside):
    array = buffer("s", elements)
    array = attrs.evolve(array, storage=attrs.evolve(array.storage, swizzle=storage))
    bounds = parts(reads(place, copy=copy), buffers=(array,))
    assert bounds._by_ranges(bounds.access_trace.uses[0], array, as_expr(elements)) == inside


@pytest.mark.parametrize(
    ("layout", "place", "width", "most"),
    [
        (Layout(((2, 4),), ((1, 8),)), T % 8, 1, 25),
        (Layout(((2, 4),), ((1, 8),)), T % 4, 1, 9),
        (Layout(((2, 4),), ((1, 8),)), T % 4, 3, 17),
        (Layout((8,), (3,)), T % 8, 1, 21),
        (Layout((8,), (3,)), T % 8, 2, 24),
    ],
)
def test_addresses_by_the_ranges_of_digits(layout, place, width, most):
    """Each digit at its largest; the last of them may grow on."""
    array = attrs.evolve(buffer("s", 64), storage=Storage(layout, 64))
    bounds = parts(reads(place, width=width), buffers=(array,))
    for total in (most, most + 1):
        assert bounds._by_ranges(bounds.access_trace.uses[0], array, as_expr(total)) == (total > most)
