"""Bank conflicts and sectors by hand: requests of a warp held against counting each word and each byte."""

import math
import random

import attrs
import making
import numpy as np
import pytest
from touching import T, buffer, i, kernel, loop, reads, touch, writes

from fireiron import *
from fireiron.check import AccessTrace, check_banks, check_coalescing
from fireiron.check.banks import _by_warp as banks_by_warp
from fireiron.check.banks import _padded, _sampled, _swizzled, lanes_per_phase, request, wavefronts
from fireiron.check.coalescing import _by_warp as sectors_by_warp
from fireiron.check.coalescing import sectors
from fireiron.values.expr import TRUE, Var, as_expr, constant, less
from fireiron.values.layout import Swizzle
from fireiron.values.tensor import MatrixLayout, Tensor

ODD = Var("other", 0, 9)
J = Var("j", 0, 9)


def passes_of(start, width, active):
    """Passes of one request, by the programming guide: of each phase the most words that one bank has to serve."""
    lanes = 32 if width <= 4 else 16 if width <= 8 else 8
    total = 0
    for first in range(0, 32, lanes):
        words = {
            (s + byte) // 4 for s, on in zip(start[first : first + lanes], active[first : first + lanes]) if on for byte in range(width)
        }
        total += max((sum(word % 32 == bank for word in words) for bank in range(32)), default=0)
    return total


@pytest.mark.parametrize("width", [1, 2, 4, 8, 16])
def test_passes_are_counted_word_by_word(width):
    assert lanes_per_phase(width) == {1: 32, 2: 32, 4: 32, 8: 16, 16: 8}[width]
    generator = np.random.default_rng(width)
    start = generator.integers(0, 64, (60, 32)) * width
    start[:20] = (np.arange(32) * generator.integers(1, 40, (20, 1))) * width
    start[20:30] = start[20:30, :1]  # all lanes want one place
    active = generator.random((60, 32)) < np.array([1.0, 0.5, 0.1])[np.arange(60) % 3][:, None]
    got = wavefronts(start, width, active)
    assert got.tolist() == [passes_of(row, width, on) for row, on in zip(start, active)]
    assert wavefronts(start[:1], width, np.zeros((1, 32), dtype=bool)).tolist() == [0]


def test_vectors_that_are_not_aligned_are_counted_by_words():
    start = np.arange(32)[None] * 8 + 4
    assert wavefronts(start, 8, np.ones((1, 32), dtype=bool)).tolist() == [passes_of(start[0], 8, [True] * 32)]


def sectors_of(start, width, active):
    moved = {(s + byte) // 32 for s, on in zip(start, active) if on for byte in range(width)}
    wanted = {s + byte for s, on in zip(start, active) if on for byte in range(width)}
    return len(moved), -(-len(wanted) // 32)


@pytest.mark.parametrize("width", [1, 2, 4, 8, 16, 32, 64])
def test_sectors_are_counted_byte_by_byte(width):
    generator = np.random.default_rng(width)
    start = generator.integers(0, 200, (40, 32)) * min(width, 32)
    active = generator.random((40, 32)) < 0.7
    active[0] = False
    moved, wanted = sectors(start, width, active)
    assert list(zip(moved.tolist(), wanted.tolist())) == [sectors_of(row, width, on) for row, on in zip(start, active)]


# ---------------------------------------------------------------------------------------------- findings


def of(*body, check=check_banks, **options):
    return list(check(AccessTrace(kernel(*body, **options))))


def rows(pad=0, memory=SH, layout=RowMajor, shape=(32, 32), dtype=float32, offset=0):
    """A matrix of rows in shared memory, or columns."""

    tensor = Tensor("s", tuple(map(as_expr, shape)), dtype, memory, layout, pad=pad)
    storage = tensor.storage()
    return making.buffer(tensor, storage, storage.extent, offset=offset, written=memory == GL)


def at(row, column, width=1, along=1, **options):
    """A read at a row and a column."""
    from fireiron.values.tensor import Mode

    modes = tuple((Mode(width if dim == along else 1, 1),) for dim in range(2))
    access = making.access("s", (as_expr(row), as_expr(column)), modes, (None, None), False, dealt=((), ()), origin="mine.py:2")
    one = making.execution(spec=Move(1, 1)(SH, RF)(Thread), accesses=(access,), instruction=reads(0).instruction, **options)
    return attrs.evolve(one, vectors=(width,)) if width > 1 else one


def test_columns_of_rows_of_32_words():
    """A pad of a word, or a swizzle, frees them; what is said is counted again."""
    (one,) = of(at(T, 0), threads=32, buffers=(rows(),))
    assert (one.kind, one.severity, one.at) == ("banks", "warning", "mine.py:2")
    assert {name: one.details[name] for name in ("wavefronts", "ideal", "degree", "average", "vector_bytes", "requests")} == {
        "wavefronts": 32, "ideal": 1, "degree": 32, "average": 32.0, "vector_bytes": 4, "requests": 1,
    }  # fmt: skip
    assert "text" not in one.details
    assert "32-way bank conflict, 32 wavefronts instead of 1; pad(1) or swizzle_storage(Swizzle(" in one.message
    (free,) = of(at(T, 0), threads=32, buffers=(rows(pad=1),))
    assert free.severity == "note" and "no bank conflict, 1 wavefront for 4 bytes per lane" in free.message
    swizzled = attrs.evolve(rows().tensor, swizzle=Swizzle(*one.details["swizzle"]))
    storage = swizzled.storage()
    (free,) = of(at(T, 0), threads=32, buffers=(attrs.evolve(rows(), tensor=swizzled, storage=storage),))
    assert free.severity == "note"


@pytest.mark.parametrize(("column", "severity"), [(T, "note"), (T * 2 % 32, "note"), (0, "note")])
def test_rows_are_free(column, severity):
    (one,) = of(at(0, column), threads=32, buffers=(rows(),))
    assert one.severity == severity and one.details["wavefronts"] == 1


@pytest.mark.parametrize(("width", "phases"), [(1, 1), (2, 2), (4, 4)])
def test_vectors_have_phases(width, phases):
    (one,) = of(at(T // (32 // width), T % (32 // width) * width, width), threads=32, buffers=(rows(),))
    assert (one.details["wavefronts"], one.details["vector_bytes"], one.severity) == (phases, 4 * width, "note")


def test_a_pad_keeps_vectors_aligned():
    (one,) = of(at(T, 0, 4), threads=32, buffers=(rows(),))
    assert one.details["pad"] % 4 == 0 and one.severity == "warning"


def test_only_lanes_that_take_part_count():
    (one,) = of(at(T, 0, active=less(T, 5)), threads=32, buffers=(rows(),))
    assert (one.details["wavefronts"], one.details["ideal"]) == (5, 1)
    (one,) = of(at(T, 0, active=less(T, 0)), threads=32, buffers=(rows(),))
    assert (one.details["wavefronts"], one.details["ideal"]) == (0, 0)
    (one,) = of(at(T, 0), threads=20, buffers=(rows(),))
    assert one.details["wavefronts"] == 20, "the last warp is no whole one"


def test_requests_are_those_of_all_warps_and_iterations():
    (one,) = of(loop(5, at(T % 32, i)), threads=64, buffers=(rows(),))
    assert one.details["requests"] == 10
    (one,) = of(loop(2, at(T % 32 * (1 - i), T % 32)), threads=32, buffers=(rows(),))
    assert one.details["wavefronts"] >= 1 and one.details["requests"] == 2


def test_what_is_not_known_is_not_judged():
    access_trace = AccessTrace(kernel(at(T, ODD), threads=32, buffers=(rows(),)))
    assert request(access_trace, access_trace.uses[0]) is None
    assert of(touch(T, write=False, level=Warp)) == [] and of(touch(T, write=False, spread=True)) == []
    assert of(reads(T), buffers=(buffer("s", 64, memory=GL),)) == []


def test_halves_share_words():
    (one,) = of(at(T, 0), threads=32, buffers=(rows(dtype=float16),))
    assert one.details["wavefronts"] == 16 and one.details["vector_bytes"] == 2


def test_nothing_frees_what_is_dealt_in_pairs_of_rows_and_columns():
    """Both directions at once by vectors along one: padding at best helps."""
    found = of(at(T, 0), at(0, T), at(T // 4 * 2 % 32, T % 4 * 8, 4), threads=32, buffers=(rows(),))
    assert len(found) == 3
    worse = [one for one in found if one.severity == "warning"]
    assert worse and all(
        ("pad" in one.details or "swizzle" in one.details or "best_pad" in one.details or "is better" in one.message) for one in worse
    )


# ---------------------------------------------------------------------------------------------- sectors of findings


def coalesced(*body, **options):
    return of(*body, check=check_coalescing, **{"threads": 32, **options})


def test_neighboring_lanes_at_neighboring_elements():
    (one,) = coalesced(at(0, T), buffers=(rows(memory=GL),))
    assert (one.severity, one.details["sectors"], one.details["ideal"], one.details["ratio"]) == ("note", 4, 4, 1.0)
    assert one.message.endswith("4 32-byte sectors per warp request, 4 needed, 4 bytes per lane")


def test_lanes_in_columns_of_rows():
    (one,) = coalesced(at(T, 0), buffers=(rows(memory=GL),))
    assert (one.kind, one.severity, one.at) == ("coalescing", "warning", "mine.py:2")
    assert (one.details["sectors"], one.details["ideal"], one.details["ratio"]) == (32, 4, 8.0)


def test_another_order_of_dealing_is_proposed_where_it_helps():
    (one,) = coalesced(at(T % 8, T // 8), buffers=(rows(memory=GL),))
    assert one.details.get("layout") == "RowMajor" or one.severity == "note"
    (one,) = coalesced(at(T % 32, T // 32), threads=64, buffers=(rows(memory=GL),))
    assert one.details["layout"] == "RowMajor" if "layout" in one.details else one.severity == "warning"
    (one,) = coalesced(at(T, 0), threads=32, buffers=(rows(memory=GL, layout=ColMajor),))
    assert one.severity == "note" and one.details["sectors"] == 4


@pytest.mark.parametrize("seed", range(4))
def test_drawn_accesses_move_the_sectors_of_their_bytes(seed):
    """Of the first iterations of the loops, block 0."""
    chance = random.Random(seed)
    row, column = T % chance.choice((4, 8, 16)), T // chance.choice((2, 4)) * 2
    (one,) = coalesced(at(row, column % 32), buffers=(rows(memory=GL),))
    places = [(row.evaluate({"thread": t}) * 32 + (column % 32).evaluate({"thread": t})) * 4 for t in range(32)]
    assert (one.details["sectors"], one.details["ideal"]) == sectors_of(places, 4, [True] * 32)


def test_what_moves_nothing_is_no_trouble():
    (one,) = coalesced(at(0, T, active=less(T, 0)), buffers=(rows(memory=GL),))
    assert (one.severity, one.details["sectors"], one.details["ideal"]) == ("note", 0, 0)
    assert coalesced(writes(T)) == [], "shared memory has no sectors"


def test_sizes_known_at_run_time_are_taken_as_large():

    n = Var("n", 8, 1 << 20, 8, True)
    tensor = Tensor("s", (as_expr(64), n), float32, GL, RowMajor)
    storage = tensor.storage()
    array = making.buffer(tensor, storage, storage.extent, written=True)
    (one,) = coalesced(at(T, 0), buffers=(array,), symbols=(n,))
    assert one.details["assumed_sizes"] == {"n": 4096} and "(with n=4096)" in one.message and one.details["sectors"] == 32
    odd = Var("n", 5000, 1 << 20, 24, True)
    tensor = attrs.evolve(tensor, shape=(as_expr(64), odd))
    storage = tensor.storage()
    (one,) = coalesced(at(T, 0), buffers=(making.buffer(tensor, storage, storage.extent, written=True),), symbols=(odd,))
    assert one.details["assumed_sizes"] == {"n": 5016}


# ---------------------------------------------------------------------------------------------- requests one by one


def requested(program, memory=SH):
    """The byte addresses and the lanes that take part of each request, by running all of the program: what a warp asks for at once."""
    from fireiron import ir

    found = {}

    def run(body, values):
        for one in body:
            if isinstance(one, ir.For):
                for number in range(one.extent.evaluate(values)):
                    run(one.body, {**values, one.var.name: number})
                continue
            (access,) = one.accesses
            target, vector = program.buffer(access.buffer), one.vectors[0] if one.vectors else 1
            for offset in access.elements()[::vector]:
                for warp in range(-(-program.threads // 32)):
                    start, on = [], []
                    for lane in range(32):
                        there = {**values, "thread": warp * 32 + lane}
                        on.append(there["thread"] < program.threads and bool(one.active.evaluate(there)))
                        place = target.address(access, offset).evaluate(there) if on[-1] else 0
                        start.append(place * target.dtype.bytes + (target.offset if memory == SH else 0))
                    found.setdefault(id(one), []).append((start, vector * target.dtype.bytes, on))

    run(program.body, {"block": 0})
    return list(found.values())


def drawn(chance, memory=SH):
    dtype, width = chance.choice((float16, float32, float32)), chance.choice((1, 1, 2, 4))
    row = T % chance.choice((8, 32)) + i * chance.choice((0, 0, 1))
    column = T // chance.choice((1, 8, 32)) * width % 32 * chance.choice((0, 1)) + J * width * chance.choice((0, 1))
    active = chance.choice((TRUE, TRUE, less(T, 20), less(T % 3, 1), less(i, 1), less(T + J * 8, 33)))
    step = at(row, column, width, active=active)
    if chance.random() < 0.3:
        (access,) = step.accesses
        step = attrs.evolve(step, accesses=(attrs.evolve(access, copy=T % 2 + i % 2),))
    body = chance.choice((loop(2, loop(3, step, var=J)), loop(3, loop(2, step), var=J)))
    pad = chance.choice((0, 0, 4, 1)) if width == 1 else 0
    shape = (40, chance.choice((32, 40)))
    threads = chance.choice((32, 64, 48, 20, 100))
    return kernel(body, threads=threads, buffers=(rows(pad, memory, shape=shape, dtype=dtype, offset=128 * chance.choice((0, 1))),))


@pytest.mark.parametrize("seed", range(40))
def test_drawn_requests_are_counted_one_by_one(seed):
    """All warps, vectors and iterations are; the one that is told is the worst."""
    program = drawn(random.Random(f"banks {seed}"))
    (one,) = check_banks(AccessTrace(program))
    (asked,) = requested(program)
    passes = [passes_of(*request) for request in asked]
    phases = [
        sum(any(on[first : first + lanes]) for first in range(0, 32, lanes)) for _, width, on in asked for lanes in [lanes_per_phase(width)]
    ]
    spent = [p - q for p, q in zip(passes, phases)]
    assert (one.details["requests"], one.details["average"]) == (
        len(asked) // math.prod(not_asked(program)),
        round(sum(passes) / len(asked), 3),
    )
    told = (one.details["wavefronts"], one.details["ideal"])
    assert told in zip(passes, phases) and told[0] - told[1] == max(spent)
    assert one.details["degree"] == -(-told[0] // max(told[1], 1)) and one.severity == ("warning" if max(spent) else "note")


def total(found):
    return sum(round(one.details["average"] * one.details["requests"]) for one in found)


@pytest.mark.parametrize(
    ("accesses", "options", "pad"),
    [
        ([(T, 0)], {}, 1),
        ([(T, 0)], {"dtype": float16}, 1),
        ([(T, 0, 4)], {}, 4),
        ([(T, 0, 2)], {}, 2),
        ([(T % 8, T // 8)], {}, 4),
        ([(T % 8, T // 8 * 2), (T, 0)], {}, None),
        ([(T, 0)], {"shape": (32, 48)}, 1),
        ([(T, 0), (T // 8, T % 8 * 4, 4)], {}, None),
        ([(T // 8, T % 8 * 4, 4), (T, 0, 4)], {}, 4),
        ([(T, 0)], {"pad": 32}, 33),
        ([(T * 2, 0)], {"shape": (64, 32)}, None),
        ([(T // 2, T % 2 * 16, 4)], {}, 4),
    ],
)
def test_the_least_pad_that_frees_all(accesses, options, pad):
    """Each pad is tried by hand; the swizzle that is proposed is tried, too."""
    steps = [at(*one) for one in accesses]
    before = options.get("pad", 0)

    def found(more, swizzle=None):
        one = rows(**{**options, "pad": before + more})
        if swizzle is not None:
            tensor = attrs.evolve(rows(**options).tensor, swizzle=Swizzle(*swizzle))
            one = attrs.evolve(one, tensor=tensor, storage=tensor.storage())
        return of(*steps, threads=32, buffers=(one,))

    worst = next(one for one in found(0) if one.severity == "warning")
    unit = max(one[2] if len(one) > 2 else 1 for one in accesses)
    tried = [more for more in range(1, 33) if (before + more) % unit == 0]
    costs = {more: total(found(more)) for more in tried}
    free = [before + more for more in tried if all(one.severity == "note" for one in found(more))]
    assert worst.details.get("pad") == (free[0] if free else None) == pad
    if "swizzle" in worst.details:
        assert all(one.severity == "note" for one in found(0, worst.details["swizzle"]))
        bits, base, shift = worst.details["swizzle"]
        assert 1 << base >= unit and Swizzle(bits, base, shift).size() <= rows(**options).storage.extent.evaluate({})
    elif not free:
        now, (least, more) = total(found(0)), min((cost, more) for more, cost in costs.items())
        assert worst.details.get("best_pad") == (before + more if least < now else None)
        if least < now:
            assert worst.details["best_share"] == round(least / now, 3)
            assert worst.message.endswith(
                f"no pad up to 32 and no XOR swizzle removes all conflicts; pad({before + more}) takes {least / now:.0%} of the wavefronts"
            )
        else:
            assert worst.message.endswith("no pad up to 32 and no XOR swizzle is better: assign the elements to lanes in another order")


@pytest.mark.parametrize(
    ("shape", "width", "swizzle"),
    [((4, 32), 1, [2, 0, 5]), ((8, 32), 1, [3, 0, 5]), ((32, 32), 1, [5, 0, 5]), ((32, 32), 4, [3, 2, 3]), ((32, 32), 2, [4, 1, 4])],
)
def test_the_first_swizzle_that_frees_all(shape, width, swizzle):
    """As few bits as are enough, found in the buffer: the highest bit is that of the last row."""
    (one,) = of(at(T % shape[0], 0, width), threads=32, buffers=(rows(shape=shape),))
    assert one.details["swizzle"] == swizzle
    assert f" or swizzle_storage(Swizzle({', '.join(map(str, swizzle))})) on s removes all bank conflicts of its accesses" in one.message


def test_what_has_a_place_already_is_not_moved_again():
    led = attrs.evolve(rows().tensor, layout=MatrixLayout("row", as_expr(64)))
    (one,) = of(at(T, 0), threads=32, buffers=(attrs.evolve(rows(), tensor=led, storage=led.storage(), elements=led.storage().extent),))
    assert one.severity == "warning" and "pad" not in one.details
    tensor = attrs.evolve(rows().tensor, swizzle=Swizzle(1, 0, 5))
    (one,) = of(at(T, 0), threads=32, buffers=(attrs.evolve(rows(), tensor=tensor, storage=tensor.storage()),))
    assert one.details["wavefronts"] == 16 and one.message.endswith("is better: assign the elements to lanes in another order")


def test_iterations_are_sampled_where_there_are_many():
    """2 ** 16 lanes in all: inner loops have the room first, and each outer one two iterations of it."""

    def requests(inner, outer, threads=1024):
        body = loop(outer, loop(inner, at(T % 32, (i + J) % 32), var=J))
        (one,) = of(body, threads=threads, buffers=(rows(),))
        return one.details["requests"] // (threads // 32)

    assert requests(1000, 1) == 64 and requests(1000, 1000) == 64 * 2 and requests(63, 1) == 63 and requests(1, 1000) == 64
    assert requests(40, 10) == 40 * 2 and requests(16, 10) == 16 * 4 and requests(16, 3) == 16 * 3 and requests(32, 9) == 32 * 2
    assert requests(3, 5) == 15


def test_what_a_request_needs_to_be_known():
    size = Var("K", 0, 1 << 20, 1, True)
    block = Var("block", 0, 3)
    for column, judged in ((T, True), (block, False), (size % 32, False), (i % 32, True)):
        found = of(loop(size, at(T, column)), threads=32, buffers=(rows(),), symbols=(size,), grid=4)
        assert bool(found) == judged, column
    (one,) = of(at(T, 0, active=less(block, 2)), threads=32, buffers=(rows(),), grid=4)
    assert one.details["wavefronts"] == 32, "a condition on blocks holds"
    assert of(loop(0, at(T, i)), threads=32, buffers=(rows(),)) == [], "no iteration asks for anything"
    (one,) = of(loop(size, at(T * i % 32, 0)), threads=32, buffers=(rows(),), symbols=(size,))
    assert (one.details["wavefronts"], one.details["requests"]) == (1, 1), "the first iteration"


# ---------------------------------------------------------------------------------------------- sectors one by one


@pytest.mark.parametrize("seed", range(40))
def test_drawn_sectors_are_counted_one_by_one(seed):
    """Of two iterations of each loop."""
    program = drawn(random.Random(f"sectors {seed}"), GL)
    (asked,) = requested(attrs.evolve(program, body=tuple(map(shortened, program.body))), GL)
    (one,) = check_coalescing(AccessTrace(program))
    moved, wanted = map(list, zip(*(sectors_of(*request) for request in asked)))
    told = (one.details["sectors"], one.details["ideal"])
    assert told in zip(moved, wanted) and told[0] - told[1] == max(m - w for m, w in zip(moved, wanted))
    assert one.details["ratio"] == round(sum(moved) / max(sum(wanted), 1), 3)
    assert one.severity == ("warning" if sum(moved) > 2 * sum(wanted) else "note")


def shortened(one):
    from fireiron import ir

    return attrs.evolve(one, extent=as_expr(2), body=tuple(map(shortened, one.body))) if isinstance(one, ir.For) else one


def not_asked(program):
    """The turns of loops on which nothing depends: they ask for the same again."""
    from fireiron import ir

    ((one, around),) = ir.execs(program.body)
    names = {var.name for value in (*one.accesses[0].base, one.accesses[0].copy, one.active) for var in value.variables()}
    return [loop.extent.evaluate({}) for loop in around if loop.var.name not in names]


@pytest.mark.parametrize(("step", "severity"), [(1, "note"), (2, "note"), (3, "warning")])
def test_twice_the_sectors_are_no_trouble(step, severity):
    (one,) = coalesced(at(0, T * step), buffers=(rows(memory=GL, shape=(32, 96)),))
    assert (one.details["sectors"], one.severity) == (4 * step, severity)


@pytest.mark.parametrize(
    ("row", "column", "threads", "layout", "proposed"),
    [
        (T % 32, T // 32, 64, RowMajor, "RowMajor"),
        (T // 32, T % 32, 64, ColMajor, "ColMajor"),
        (T % 16, T // 16, 64, RowMajor, "RowMajor"),
        (T % 16, T // 16, 32, RowMajor, None),
        (T % 32, T // 32 * 2, 64, RowMajor, "RowMajor"),
        (T, T % 2, 32, RowMajor, None),
        (T % 32, T // 32 + 8, 128, RowMajor, "RowMajor"),
        (T % 32 * 2, T // 32, 64, RowMajor, "RowMajor"),
        (T % 32 * 2, T // 32 * 8, 64, RowMajor, None),
        (T % 32, T // 32, 48, RowMajor, None),
    ],
)
def test_the_other_order_of_dealing_is_proposed_where_it_halves_the_sectors(row, column, threads, layout, proposed):
    (one,) = coalesced(at(row, column), threads=threads, buffers=(rows(memory=GL, layout=layout, shape=(64, 64)),))
    assert one.severity == "warning" and one.details.get("layout") == proposed
    end = f"; .layout({proposed}) on the tile of the threads makes adjacent lanes access adjacent elements"
    assert one.message.endswith(end if proposed else " 4 bytes per lane")


@pytest.mark.parametrize(("write", "through"), [(True, "load(SRC, SH) in a store"), (False, "a preceding load(s, SH)")])
def test_registers_may_go_through_shared_memory(write, through):
    step = at(T, 0)
    (access,) = step.accesses
    held = touch(0, write=not write, name="r").accesses[0]
    step = attrs.evolve(step, accesses=(attrs.evolve(access, write=write), held))
    (one,) = coalesced(step, buffers=(rows(memory=GL), buffer("r", 1, memory=RF)))
    assert one.message.endswith(f"; a Strided tile assigns adjacent elements to adjacent lanes, and {through} goes through shared memory")


def test_what_has_no_sectors_of_lanes():
    array = buffer("s", 64, memory=GL)
    assert coalesced(touch(T, write=False, level=Warp), buffers=(array,)) == []
    assert coalesced(touch(T, write=False, spread=True), buffers=(array,)) == []
    assert coalesced(loop(0, reads(T + i)), buffers=(array,)) == []
    assert len(coalesced(loop(0, reads(T)), buffers=(array,))) == 1
    block = Var("block", 0, 3)
    (one,) = coalesced(reads(T + block * 3, active=less(block, 1)), buffers=(array,), grid=4)
    assert one.details["sectors"] == 4, "of block 0"


def test_of_a_loop_two_iterations_are_looked_at():
    size = Var("K", 0, 1 << 20, 1, True)
    for count in (size, 2, 3):
        (one,) = coalesced(loop(count, at(0, T + T * i)), buffers=(rows(memory=GL, shape=(8, 512)),), symbols=(size,))
        assert (one.details["sectors"], one.details["ratio"]) == (8, 1.5), count
    (one,) = coalesced(loop(1, at(0, T + T * i)), buffers=(rows(memory=GL, shape=(8, 512)),))
    assert (one.details["sectors"], one.details["ratio"]) == (4, 1.0)


# ---------------------------------------------------------------------------------------------- what is tried


def request_of(width=1, **options):
    access_trace = AccessTrace(kernel(at(T, 0, width), threads=32, buffers=(rows(**options),)))
    return request(access_trace, access_trace.uses[0]), access_trace.kernel.buffers[0]


@pytest.mark.parametrize(
    ("shape", "width", "bits", "swizzles"),
    [
        ((16, 1), 1, 4, None),
        ((17, 1), 1, 5, None),
        ((32, 1), 2, 5, None),
        ((32, 4), 4, 7, None),
        ((2, 2), 1, 2, [(1, 0, 1)]),
        ((8, 1), 1, 3, [(1, 0, 1), (1, 0, 2), (1, 1, 1)]),
        ((2, 1), 1, 1, []),
        ((1, 1), 1, 0, []),
        ((1024, 1024), 1, 20, None),
        ((1024, 1024), 8, 20, None),
    ],
)
def test_swizzles_that_are_tried(shape, width, bits, swizzles):
    """Of up to 5 bits, from the elements of a vector on, by up to 10 bits, as far as the buffer reaches; the fewest bits first."""
    one, array = request_of(width, shape=shape)
    base = {1: 0, 2: 1, 4: 2, 8: 3}[width]
    expected = [
        (number, low, shift)
        for number in (1, 2, 3, 4, 5)
        for low in (base, base + 1, base + 2, base + 3)
        for shift in (1, 2, 3, 4, 5, 6, 7, 8, 9, 10)
        if number <= shift and low + shift + number <= bits
    ]
    assert swizzles is None or expected == swizzles
    found = list(_swizzled(array, [one]))
    assert [(swizzle.bits, swizzle.base, swizzle.shift) for swizzle, _ in found] == expected
    for swizzle, moved in found:
        assert moved.tensor.swizzle == moved.storage.swizzle == swizzle and moved.elements == moved.storage.extent
    wide, _ = request_of(4, shape=(32, 32))
    assert [one.base for one, _ in _swizzled(rows(), [request_of()[0], wide])] == [one.base for one, _ in _swizzled(rows(), [wide])]


@pytest.mark.parametrize(
    ("width", "pad", "pads"),
    [(1, 0, range(1, 33)), (2, 0, range(2, 33, 2)), (4, 0, range(4, 33, 4)), (4, 2, range(4, 35, 4)), (1, 8, range(9, 41))],
)
def test_pads_that_are_tried(width, pad, pads):
    """Up to 32 more elements, multiples of a vector."""
    one, array = request_of(width, pad=pad)
    found = list(_padded(array, [one]))
    assert [more for more, _ in found] == list(pads)
    for more, moved in found:
        assert (
            moved.tensor.pad == more and moved.elements == moved.storage.extent and constant(moved.elements) == 31 * (32 + more) + 32 + more
        )
    narrow, _ = request_of()
    assert [more for more, _ in _padded(array, [narrow, one])] == list(pads)


@pytest.mark.parametrize(("count", "step"), [(1, 1), (64, 1), (127, 1), (128, 2), (191, 2), (192, 3), (1000, 15)])
def test_requests_are_thinned_to_about_a_hundred(count, step):
    one, _ = request_of()
    rows_ = np.arange(count)[:, None] + np.zeros((1, 32), int)
    many = attrs.evolve(one, coordinates=(rows_, rows_ + 1), copies=rows_ + 2, active=rows_ % 2 == 0)
    thin = _sampled(many)
    for found, every in (
        (thin.coordinates[0], rows_),
        (thin.coordinates[1], rows_ + 1),
        (thin.copies, rows_ + 2),
        (thin.active, rows_ % 2 == 0),
    ):
        np.testing.assert_array_equal(found, every[::step])


@pytest.mark.parametrize(
    ("values", "fill", "expected"),
    [
        (np.arange(32), 0, [range(32)]),
        (np.arange(64), 0, [range(32), range(32, 64)]),
        (np.arange(3) + 5, 0, [[5, 6, 7] + [0] * 29]),
        (np.ones(33, bool), False, [[True] * 32, [True] + [False] * 31]),
        (np.arange(64).reshape(32, 2), 0, [range(0, 64, 2), range(1, 64, 2)]),
        (np.arange(128).reshape(64, 2), 0, [range(0, 64, 2), range(1, 64, 2), range(64, 128, 2), range(65, 128, 2)]),
    ],
)
def test_lanes_of_a_warp_are_a_row(values, fill, expected):
    """A row for each warp and each of its iterations; the last warp is filled up."""
    assert banks_by_warp(values, fill).tolist() == [list(row) for row in expected]
    if not fill and values.dtype != bool:
        assert sectors_by_warp(values).tolist() == [list(row) for row in expected]
