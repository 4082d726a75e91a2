"""The bounds check by hand: drawn accesses against an enumeration of every thread, block and iteration; messages and details."""

import itertools
import random

import attrs
import pytest
from touching import T, buffer, i, kernel, loop, reads, writes

from fireiron import *
from fireiron import ir
from fireiron.check import Scene, check_bounds
from fireiron.values.expr import TRUE, ZERO, Var, all_of, as_expr, floordiv, less, minimum, positive
from fireiron.values.layout import Layout, Swizzle
from fireiron.values.tensor import Mode, Storage, Tensor

BLOCK = Var("block", 0, 3)
J = Var("j", 0, 7)
BLOCKS = Var("block", 0, 1 << 15)
N = Var("N", 1, 1 << 20, 1, True)
N8 = Var("N8", 8, 1 << 20, 8, True)
THREADS = 32


def said(*body, **options):
    """What the check says."""
    return list(check_bounds(Scene(kernel(*body, **{"threads": THREADS, **options}))))


def array(name, *shape, memory=GL):
    """A buffer of several dimensions, its first one contiguous."""
    tensor = Tensor(name, tuple(map(as_expr, shape)), float32, memory, ColMajor)
    storage = tensor.storage()
    return ir.Buffer(tensor, storage, storage.extent, written=memory == GL)


def outside(program, sizes):
    """Whether any access leaves its buffer, by running all of it."""

    def run(body, values):
        for one in body:
            if isinstance(one, ir.For):
                if any(run(one.body, {**values, one.var.name: number}) for number in range(one.extent.evaluate(values))):
                    return True
            elif any(leaves(one, {**values, "thread": thread}) for thread in range(program.threads)):
                return True
        return False

    def leaves(one, values):
        if not one.performed.evaluate(values):
            return False
        for access in one.accesses:
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
    """A kernel with one access somewhere near the end of a buffer of about so many elements."""
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


@pytest.mark.parametrize("memory", [GL, SH, RF], ids=str)
@pytest.mark.parametrize("chunk", range(4))
def test_drawn_accesses_are_judged_as_by_enumeration(chunk, memory):
    """Found exactly if an element outside is touched: all of it is known."""
    verdicts = set()
    for seed in range(40 * chunk, 40 * (chunk + 1)):
        program = drawn(random.Random(f"{memory}/{seed}"), 64, memory)
        expected = outside(program, {})
        found = list(check_bounds(Scene(program)))
        assert bool(found) == expected, (seed, program.body, program.buffers, found)
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
    """An array of so many elements."""
    tensor = Tensor(name, (as_expr(length),), float32, GL, ColMajor)
    storage = tensor.storage()
    return ir.Buffer(tensor, storage, storage.extent, written=True)


@pytest.mark.parametrize("chunk", range(4))
def test_sizes_that_are_known_at_run_time(chunk):
    """What is called inside is so for all sizes that were tried; what leaves the array at one of them is found."""
    verdicts = set()
    for seed in range(30 * chunk, 30 * (chunk + 1)):
        program = symbolic(random.Random(f"symbolic {seed}"))
        (symbol,) = program.symbols
        sizes = [symbol.low, *range(8, 8 * 14, 8)] if symbol is N8 else [1, 2, 3, 5, 7, 31, 32, 33, 63, 64, 65, 97]
        expected = any(outside(program, {symbol.name: size}) for size in sizes)
        found = list(check_bounds(Scene(program)))
        assert found or not expected, (seed, program.body)
        verdicts.add((expected, bool(found)))
    assert {(True, True), (False, False)} <= verdicts


# ---------------------------------------------------------------------------------------------- what is said


def test_a_counterexample_names_thread_block_iteration_and_coordinate():
    (one,) = said(loop(5, writes(T + i * 32 + BLOCK * 160)), grid=4, buffers=(buffer("s", 639, memory=GL),))
    assert one.message == "s: thread 31, block 3, i=4 writes coordinate 639 of dimension 0, which has 639"
    assert dict(one.details) == {"thread": 31, "block": 3, "loops": {"i": 4}, "dimension": 0, "coordinate": 639, "extent": 639, "sizes": {}}
    assert (one.kind, one.severity, one.buffer, one.at) == ("bounds", "error", "s", "hand.py:1")
    assert one.access == "s written by step Move(1,1)(RF,SH)(Thread)"


def test_a_coordinate_below_zero():
    (one,) = said(reads(T - 1), buffers=(buffer("s", 64, memory=GL),))
    assert one.message == "s: thread 0 reads coordinate -1 of dimension 0, which has 64"


def test_a_counterexample_at_a_size():
    (one,) = said(reads(T), buffers=(of_length("s", N),), symbols=(N,))
    assert one.message == "s: thread 1 reads coordinate 1 of dimension 0, which has 1 at N=1" and one.details["sizes"] == {"N": 1}
    (one,) = said(reads(T), buffers=(of_length("s", N8),), symbols=(N8,))
    assert one.message.endswith("thread 8 reads coordinate 8 of dimension 0, which has 8 at N8=8")


@pytest.mark.parametrize("size", [37 * 8, 129, 500])
def test_sizes_that_are_tried(size):
    """Also such as are just above a tile, and large ones: an array that is too short from there on."""
    whole = of_length("s", minimum(N, as_expr(size - 1)))
    found = said(reads(T, active=less(T, N)), loop(1, reads(N - 1)), buffers=(whole,), symbols=(N,))
    assert found and any("coordinate" in one.message for one in found)


def test_an_address_in_shared_memory():
    (one,) = said(reads(T + 1), buffers=(buffer("s", 32),))
    assert one.message == "s: thread 31 reads coordinate 32 of dimension 0, which has 32"
    (one,) = said(loop(8, reads(T, copy=i)), buffers=(buffer("s", 32),))
    assert one.message == "s: thread 0, i=1 touches address 32, it has 32 elements"
    assert dict(one.details) == {"thread": 0, "loops": {"i": 1}, "address": 32, "elements": 32}


def copied(copies, **options):
    one = buffer("s", 32, **options)
    return attrs.evolve(one, tensor=attrs.evolve(one.tensor, copies=copies))


@pytest.mark.parametrize(("turns", "copies", "alarms"), [(4, 4, 0), (5, 4, 1), (4, 5, 0), (1, 1, 0), (2, 1, 1)])
def test_copies_of_a_buffer(turns, copies, alarms):
    assert len(said(loop(turns, writes(T, copy=i)), buffers=(copied(copies),))) == alarms
    assert len(said(loop(turns * 3, writes(T, copy=i % copies)), buffers=(copied(copies),))) == 0
    assert len(said(loop(turns, writes(T, copy=i - 1)), buffers=(copied(turns),))) == 1, "before the first"


@pytest.mark.parametrize(("registers", "alarms"), [(4, 0), (3, 1), (5, 0)])
def test_numbers_of_registers(registers, alarms):
    assert len(said(loop(4, writes(i)), buffers=(buffer("s", registers, memory=RF),))) == alarms
    assert len(said(writes(0, width=4), buffers=(buffer("s", registers, memory=RF),))) == alarms


def swizzled(elements, extent, swizzle):
    one = buffer("s", elements)
    return attrs.evolve(one, storage=Storage(Layout((elements,), (1,)), extent, swizzle), elements=as_expr(extent))


def test_a_swizzle_moves_elements_inside_their_spans():
    """Of the last span all has to be there, whichever element of it is touched."""
    swizzle = Swizzle(2, 1, 2)
    span = 1 << (2 + 1 + 2)
    assert said(reads(T), buffers=(swizzled(32, 32, swizzle),)) == []
    whole = [swizzle(place) for place in range(span)]
    assert sorted(whole) == list(range(span)), "a permutation of the span"
    short = swizzled(32, 30, swizzle)
    reached = max(swizzle(thread) for thread in range(20))
    assert bool(said(reads(T, active=less(T, 20)), buffers=(short,))) == (reached >= 30)


def test_dimensions_are_checked_one_by_one():
    """Beyond the end of a row is outside, though the address is that of the next row."""

    def access(first, second, shape):
        modes = ((Mode(1, 1),), (Mode(1, 1),))
        one = ir.Access("s", (as_expr(first), as_expr(second)), modes, (None, None), True, dealt=((), ()))
        return ir.Exec(spec=Move(1, 1)(RF, GL)(Thread), accesses=(one,), instruction=writes(0).instruction)

    for memory in (GL, SH):
        assert said(access(T % 8, T // 8, (8, 4)), buffers=(array("s", 8, 4, memory=memory),)) == []
        (one,) = said(access(T % 8 + 1, T // 8, (8, 4)), buffers=(array("s", 8, 4, memory=memory),))
        assert "coordinate 8 of dimension 0, which has 8" in one.message
        (one,) = said(access(T % 8, T // 8, (8, 3)), buffers=(array("s", 8, 3, memory=memory),))
        assert "thread 24 writes coordinate 3 of dimension 1, which has 3" in one.message


# ---------------------------------------------------------------------------------------------- pieces


def in_pieces(base, width, condition, count=1, **options):
    """A statement whose elements are moved `width` at once, each piece under a condition on its first element."""
    pieces = tuple(ir.Piece(number * width, width, condition(base + number * width)) for number in range(count))
    return attrs.evolve(reads(base, width=width * count, **options), pieces=(pieces,))


def test_the_first_element_of_a_vector_speaks_for_all_where_sizes_are_multiples():
    whole = (of_length("s", N8),)
    assert said(in_pieces(T * 4, 4, lambda first: less(first, N8)), buffers=whole, symbols=(N8,)) == []
    assert said(in_pieces(T * 8, 8, lambda first: less(first, N8)), buffers=whole, symbols=(N8,)) == []
    (one,) = said(in_pieces(T * 16, 16, lambda first: less(first, N8)), buffers=whole, symbols=(N8,))
    assert one.message.startswith(
        "s: 16 elements are moved at once, and only the first one is tested against N8; the others may lie outside"
    )
    assert dict(one.details) == {"dimension": 0, "bound": "N8", "vector": 16}
    (one,) = said(in_pieces(T * 4, 4, lambda first: less(first, N)), buffers=(of_length("s", N),), symbols=(N,))
    assert "as N is not known to be a multiple of 4" in one.message
    assert said(in_pieces(T * 4 + 1, 4, lambda first: less(first, N8)), buffers=whole, symbols=(N8,)) != [], "it begins between"
    assert said(in_pieces(T * 4, 4, lambda first: less(first + 3, N)), buffers=(of_length("s", N),), symbols=(N,)) == [], (
        "the last is tested"
    )
    assert said(in_pieces(T * 8, 4, lambda first: less(first, N8), 2), buffers=whole, symbols=(N8,)) == []
    assert said(in_pieces(T * 4, 4, lambda first: TRUE), buffers=(buffer("s", 128, memory=GL),)) == []
    assert said(in_pieces(T * 4, 4, lambda first: TRUE), buffers=(buffer("s", 127, memory=GL),)) != []


def test_a_version_is_checked_without_the_conditions_that_it_implies():
    """Where `whole` holds, parts of conditions are left out: what they kept inside has to be so without them."""
    active = less(T, 20)
    plain = reads(T, active=active)
    assert said(plain, buffers=(buffer("s", 20, memory=GL),)) == []
    version = attrs.evolve(plain, whole=less(BLOCK, 2), implied=(active,))
    assert said(version, grid=4, buffers=(buffer("s", 20, memory=GL),)) != []
    assert said(version, grid=4, buffers=(buffer("s", 32, memory=GL),)) == []


# ---------------------------------------------------------------------------------------------- named values


def test_a_name_keeps_the_range_that_it_states():
    """Readers trust ranges: a name whose value leaves them proves nothing."""
    low, high = Var("row", 0, 31), Var("row", 0, 15)
    for var, value, size, alarms in (
        (low, T, 32, 0), (high, T, 16, 1), (high, T % 16, 16, 0), (high, T // 2, 16, 0), (high, T // 2 + 1, 16, 1),
        (low, T * 2 % 32, 32, 0), (high, minimum(T, as_expr(15)), 16, 0),
    ):  # fmt: skip
        found = said(ir.Let(var, value), reads(var), buffers=(buffer("s", size, memory=GL),))
        assert len(found) == alarms, (var, value, found)


def test_what_is_never_performed_is_nowhere():
    assert said(reads(T + 99, active=less(T, 0)), buffers=(buffer("s", 32, memory=GL),)) == []
    assert said(loop(4, reads(T + i * 32 + 99, active=less(i, 0))), buffers=(buffer("s", 32, memory=GL),)) == []


# ---------------------------------------------------------------------------------------------- what counts down


@pytest.mark.parametrize(
    ("place", "alarms"),
    [
        (positive(N - BLOCKS * 32) - 1, 0),
        (positive(N - BLOCKS * 32), 1),
        (positive(N - BLOCKS * 32 + 1) - 1, 1),
        (positive(N - BLOCKS * 32 - 1 + 1) - 1, 0),
        (positive(N - 1 - BLOCKS * 32 + 1) - 2 + 1, 0),
    ],
)
def test_what_counts_down_from_a_size_is_largest_where_nothing_is_taken_away(place, alarms):
    """Blocks of 32 elements: the rest of the last ones is at least 1, and that of block 0 is all."""
    found = said(reads(place, active=less(T, 1)), grid=floordiv(N + 31, as_expr(32)), buffers=(of_length("s", N),), symbols=(N,))
    assert len(found) == alarms, found


@pytest.mark.parametrize(("low", "alarms"), [(0, 0), (5, 1)])
def test_a_size_less_a_minimum_of_it_is_at_least_zero_and_no_more(low, alarms):
    """A name that states a larger least value proves nothing of what is below it."""
    row = Var("row", low, 1 << 20)
    rest = ir.Let(row, N - minimum(N, T + 5))
    found = said(rest, reads(row - low, active=less(row, N)), buffers=(of_length("s", N),), symbols=(N,))
    assert len(found) == alarms, found
