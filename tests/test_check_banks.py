"""Bank conflicts and sectors of hand-made kernels, compared with a count of every word and every byte of a warp's request."""

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


def wavefronts_of(start, width, active):
    """Wavefronts of one request, by the CUDA programming guide: per phase, the most words that one bank serves."""
    lanes = 32 if width <= 4 else 16 if width <= 8 else 8
    total = 0
    for first in range(0, 32, lanes):
        words = {
            (s + byte) // 4 for s, on in zip(start[first : first + lanes], active[first : first + lanes]) if on for byte in range(width)
        }
        total += max((sum(word % 32 == bank for word in words) for bank in range(32)), default=0)
    return total


@pytest.mark.parametrize("width", [1, 2, 4, 8, 16])
def test_wavefronts_equal_a_count_by_words(width):
    assert lanes_per_phase(width) == {1: 32, 2: 32, 4: 32, 8: 16, 16: 8}[width]
    generator = np.random.default_rng(width)
    start = generator.integers(0, 64, (60, 32)) * width
    start[:20] = (np.arange(32) * generator.integers(1, 40, (20, 1))) * width
    start[20:30] = start[20:30, :1]  # all lanes access the same address
    active = generator.random((60, 32)) < np.array([1.0, 0.5, 0.1])[np.arange(60) % 3][:, None]
    got = wavefronts(start, width, active)
    assert got.tolist() == [wavefronts_of(row, width, on) for row, on in zip(start, active)]
    assert wavefronts(start[:1], width, np.zeros((1, 32), dtype=bool)).tolist() == [0]


def test_wavefronts_of_unaligned_vectors_are_counted_by_words():
    start = np.arange(32)[None] * 8 + 4
    assert wavefronts(start, 8, np.ones((1, 32), dtype=bool)).tolist() == [wavefronts_of(start[0], 8, [True] * 32)]


def sectors_of(start, width, active):
    moved = {(s + byte) // 32 for s, on in zip(start, active) if on for byte in range(width)}
    wanted = {s + byte for s, on in zip(start, active) if on for byte in range(width)}
    return len(moved), -(-len(wanted) // 32)


@pytest.mark.parametrize("width", [1, 2, 4, 8, 16, 32, 64])
def test_sectors_equal_a_count_by_bytes(width):
    generator = np.random.default_rng(width)
    start = generator.integers(0, 200, (40, 32)) * min(width, 32)
    active = generator.random((40, 32)) < 0.7
    active[0] = False
    moved, wanted = sectors(start, width, active)
    assert list(zip(moved.tolist(), wanted.tolist())) == [sectors_of(row, width, on) for row, on in zip(start, active)]


# ---------------------------------------------------------------------------------------------- findings


def diagnose(*body, check=check_banks, **options):
    return list(check(AccessTrace(kernel(*body, **options))))


def rows(pad=0, memory=SH, layout=RowMajor, shape=(32, 32), dtype=float32, offset=0):
    """A row-major or column-major matrix in shared or global memory."""

    tensor = Tensor("s", tuple(map(as_expr, shape)), dtype, memory, layout, pad=pad)
    storage = tensor.storage()
    return making.buffer(tensor, storage, storage.extent, offset=offset, written=memory == GL)


def at(row, column, width=1, along=1, **options):
    """A read of `width` elements at a row and a column."""
    from fireiron.values.tensor import Mode

    modes = tuple((Mode(width if dim == along else 1, 1),) for dim in range(2))
    access = making.access("s", (as_expr(row), as_expr(column)), modes, (None, None), False, unit_modes=((), ()), origin="mine.py:2")
    stmt = making.execution(spec=Move(1, 1)(SH, RF)(Thread), accesses=(access,), instruction=reads(0).instruction, **options)
    return attrs.evolve(stmt, vectors=(width,)) if width > 1 else stmt


def test_column_access_has_a_32_way_conflict():
    """A pad of one word or the proposed swizzle removes the conflict."""
    (finding,) = diagnose(at(T, 0), threads=32, buffers=(rows(),))
    assert (finding.kind, finding.severity, finding.at) == ("banks", "warning", "mine.py:2")
    assert {name: finding.details[name] for name in ("wavefronts", "ideal", "degree", "average", "vector_bytes", "requests")} == {
        "wavefronts": 32, "ideal": 1, "degree": 32, "average": 32.0, "vector_bytes": 4, "requests": 1,
    }  # fmt: skip
    assert "text" not in finding.details
    assert "32-way bank conflict, 32 wavefronts instead of 1; pad(1) or swizzle_storage(Swizzle(" in finding.message
    (free,) = diagnose(at(T, 0), threads=32, buffers=(rows(pad=1),))
    assert free.severity == "note" and "no bank conflict, 1 wavefront for 4 bytes per lane" in free.message
    swizzled = attrs.evolve(rows().tensor, swizzle=Swizzle(*finding.details["swizzle"]))
    storage = swizzled.storage()
    (free,) = diagnose(at(T, 0), threads=32, buffers=(attrs.evolve(rows(), tensor=swizzled, storage=storage),))
    assert free.severity == "note"


@pytest.mark.parametrize(("column", "severity"), [(T, "note"), (T * 2 % 32, "note"), (0, "note")])
def test_row_access_has_no_conflict(column, severity):
    (finding,) = diagnose(at(0, column), threads=32, buffers=(rows(),))
    assert finding.severity == severity and finding.details["wavefronts"] == 1


@pytest.mark.parametrize(("width", "phases"), [(1, 1), (2, 2), (4, 4)])
def test_vector_accesses_need_several_phases(width, phases):
    (finding,) = diagnose(at(T // (32 // width), T % (32 // width) * width, width), threads=32, buffers=(rows(),))
    assert (finding.details["wavefronts"], finding.details["vector_bytes"], finding.severity) == (phases, 4 * width, "note")


def test_proposed_pad_keeps_vectors_aligned():
    (finding,) = diagnose(at(T, 0, 4), threads=32, buffers=(rows(),))
    assert finding.details["pad"] % 4 == 0 and finding.severity == "warning"


def test_only_active_lanes_count():
    (finding,) = diagnose(at(T, 0, active=less(T, 5)), threads=32, buffers=(rows(),))
    assert (finding.details["wavefronts"], finding.details["ideal"]) == (5, 1)
    (finding,) = diagnose(at(T, 0, active=less(T, 0)), threads=32, buffers=(rows(),))
    assert (finding.details["wavefronts"], finding.details["ideal"]) == (0, 0)
    (finding,) = diagnose(at(T, 0), threads=20, buffers=(rows(),))
    assert finding.details["wavefronts"] == 20, "the last warp is incomplete"


def test_requests_of_all_warps_and_iterations_are_counted():
    (finding,) = diagnose(loop(5, at(T % 32, i)), threads=64, buffers=(rows(),))
    assert finding.details["requests"] == 10
    (finding,) = diagnose(loop(2, at(T % 32 * (1 - i), T % 32)), threads=32, buffers=(rows(),))
    assert finding.details["wavefronts"] >= 1 and finding.details["requests"] == 2


def test_unknown_addresses_give_no_finding():
    access_trace = AccessTrace(kernel(at(T, ODD), threads=32, buffers=(rows(),)))
    assert request(access_trace, access_trace.uses[0]) is None
    assert diagnose(touch(T, write=False, level=Warp)) == [] and diagnose(touch(T, write=False, spread=True)) == []
    assert diagnose(reads(T), buffers=(buffer("s", 64, memory=GL),)) == []


def test_two_float16_values_share_a_word():
    (finding,) = diagnose(at(T, 0), threads=32, buffers=(rows(dtype=float16),))
    assert finding.details["wavefronts"] == 16 and finding.details["vector_bytes"] == 2


def test_conflicts_in_both_directions_remain():
    """Accesses along rows and columns and vectors along rows: padding can only reduce the conflicts."""
    findings = diagnose(at(T, 0), at(0, T), at(T // 4 * 2 % 32, T % 4 * 8, 4), threads=32, buffers=(rows(),))
    assert len(findings) == 3
    worse = [finding for finding in findings if finding.severity == "warning"]
    assert worse and all(
        ("pad" in finding.details or "swizzle" in finding.details or "best_pad" in finding.details or "is better" in finding.message)
        for finding in worse
    )


# ---------------------------------------------------------------------------------------------- sectors of findings


def coalescing_findings(*body, **options):
    return diagnose(*body, check=check_coalescing, **{"threads": 32, **options})


def test_adjacent_lanes_at_adjacent_elements_are_coalesced():
    (finding,) = coalescing_findings(at(0, T), buffers=(rows(memory=GL),))
    assert (finding.severity, finding.details["sectors"], finding.details["ideal"], finding.details["ratio"]) == ("note", 4, 4, 1.0)
    assert finding.message.endswith("4 32-byte sectors per warp request, 4 needed, 4 bytes per lane")


def test_column_access_is_not_coalesced():
    (finding,) = coalescing_findings(at(T, 0), buffers=(rows(memory=GL),))
    assert (finding.kind, finding.severity, finding.at) == ("coalescing", "warning", "mine.py:2")
    assert (finding.details["sectors"], finding.details["ideal"], finding.details["ratio"]) == (32, 4, 8.0)


def test_a_better_tile_layout_is_proposed():
    (finding,) = coalescing_findings(at(T % 8, T // 8), buffers=(rows(memory=GL),))
    assert finding.details.get("layout") == "RowMajor" or finding.severity == "note"
    (finding,) = coalescing_findings(at(T % 32, T // 32), threads=64, buffers=(rows(memory=GL),))
    assert finding.details["layout"] == "RowMajor" if "layout" in finding.details else finding.severity == "warning"
    (finding,) = coalescing_findings(at(T, 0), threads=32, buffers=(rows(memory=GL, layout=ColMajor),))
    assert finding.severity == "note" and finding.details["sectors"] == 4


@pytest.mark.parametrize("seed", range(4))
def test_random_accesses_move_the_sectors_of_their_bytes(seed):
    """The check reports the first iterations of the loops, for block 0."""
    chance = random.Random(seed)
    row, column = T % chance.choice((4, 8, 16)), T // chance.choice((2, 4)) * 2
    (finding,) = coalescing_findings(at(row, column % 32), buffers=(rows(memory=GL),))
    places = [(row.evaluate({"thread": t}) * 32 + (column % 32).evaluate({"thread": t})) * 4 for t in range(32)]
    assert (finding.details["sectors"], finding.details["ideal"]) == sectors_of(places, 4, [True] * 32)


def test_inactive_accesses_and_shared_memory_have_no_sectors():
    (finding,) = coalescing_findings(at(0, T, active=less(T, 0)), buffers=(rows(memory=GL),))
    assert (finding.severity, finding.details["sectors"], finding.details["ideal"]) == ("note", 0, 0)
    assert coalescing_findings(writes(T)) == [], "shared memory has no sectors"


def test_run_time_sizes_are_assumed_large():

    n = Var("n", 8, 1 << 20, 8, True)
    tensor = Tensor("s", (as_expr(64), n), float32, GL, RowMajor)
    storage = tensor.storage()
    array = making.buffer(tensor, storage, storage.extent, written=True)
    (finding,) = coalescing_findings(at(T, 0), buffers=(array,), symbols=(n,))
    assert finding.details["assumed_sizes"] == {"n": 4096} and "(with n=4096)" in finding.message and finding.details["sectors"] == 32
    odd = Var("n", 5000, 1 << 20, 24, True)
    tensor = attrs.evolve(tensor, shape=(as_expr(64), odd))
    storage = tensor.storage()
    (finding,) = coalescing_findings(at(T, 0), buffers=(making.buffer(tensor, storage, storage.extent, written=True),), symbols=(odd,))
    assert finding.details["assumed_sizes"] == {"n": 5016}


# ---------------------------------------------------------------------------------------------- bank conflicts, compared with a count


def requests_by_execution(program, memory=SH):
    """The byte addresses, vector width and active lanes of each warp's requests, by executing the whole kernel; a list per statement."""
    from fireiron import ir

    by_stmt = {}

    def run(body, values):
        for stmt in body:
            if isinstance(stmt, ir.For):
                for number in range(stmt.extent.evaluate(values)):
                    run(stmt.body, {**values, stmt.var.name: number})
                continue
            (access,) = stmt.accesses
            target, vector = program.buffer(access.buffer), stmt.vectors[0] if stmt.vectors else 1
            for offset in access.elements()[::vector]:
                for warp in range(-(-program.threads // 32)):
                    start, on = [], []
                    for lane in range(32):
                        thread_values = {**values, "thread": warp * 32 + lane}
                        on.append(thread_values["thread"] < program.threads and bool(stmt.active.evaluate(thread_values)))
                        place = target.address(access, offset).evaluate(thread_values) if on[-1] else 0
                        start.append(place * target.dtype.bytes + (target.offset if memory == SH else 0))
                    by_stmt.setdefault(id(stmt), []).append((start, vector * target.dtype.bytes, on))

    run(program.body, {"block": 0})
    return list(by_stmt.values())


def random_kernel(chance, memory=SH):
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
def test_random_requests_equal_a_count(seed):
    """All warps, vectors and iterations count; the check reports the worst request."""
    program = random_kernel(random.Random(f"banks {seed}"))
    (finding,) = check_banks(AccessTrace(program))
    (requests,) = requests_by_execution(program)
    passes = [wavefronts_of(*request) for request in requests]
    phases = [
        sum(any(on[first : first + lanes]) for first in range(0, 32, lanes))
        for _, width, on in requests
        for lanes in [lanes_per_phase(width)]
    ]
    spent = [p - q for p, q in zip(passes, phases)]
    assert (finding.details["requests"], finding.details["average"]) == (
        len(requests) // math.prod(unused_trip_counts(program)),
        round(sum(passes) / len(requests), 3),
    )
    reported = (finding.details["wavefronts"], finding.details["ideal"])
    assert reported in zip(passes, phases) and reported[0] - reported[1] == max(spent)
    assert finding.details["degree"] == -(-reported[0] // max(reported[1], 1)) and finding.severity == ("warning" if max(spent) else "note")


def total(findings):
    return sum(round(finding.details["average"] * finding.details["requests"]) for finding in findings)


@pytest.mark.sampled(3)
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
def test_the_smallest_pad_without_conflicts_is_proposed(accesses, options, pad):
    """Every pad is tried here, and the proposed swizzle too."""
    steps = [at(*access) for access in accesses]
    before = options.get("pad", 0)

    def findings_with(more, swizzle=None):
        padded = rows(**{**options, "pad": before + more})
        if swizzle is not None:
            tensor = attrs.evolve(rows(**options).tensor, swizzle=Swizzle(*swizzle))
            padded = attrs.evolve(padded, tensor=tensor, storage=tensor.storage())
        return diagnose(*steps, threads=32, buffers=(padded,))

    worst = next(finding for finding in findings_with(0) if finding.severity == "warning")
    unit = max(access[2] if len(access) > 2 else 1 for access in accesses)
    tried = [more for more in range(1, 33) if (before + more) % unit == 0]
    costs = {more: total(findings_with(more)) for more in tried}
    free = [before + more for more in tried if all(finding.severity == "note" for finding in findings_with(more))]
    assert worst.details.get("pad") == (free[0] if free else None) == pad
    if "swizzle" in worst.details:
        assert all(finding.severity == "note" for finding in findings_with(0, worst.details["swizzle"]))
        bits, base, shift = worst.details["swizzle"]
        assert 1 << base >= unit and Swizzle(bits, base, shift).size() <= rows(**options).storage.extent.evaluate({})
    elif not free:
        now, (least, more) = total(findings_with(0)), min((cost, more) for more, cost in costs.items())
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
def test_the_swizzle_with_the_fewest_bits_is_proposed(shape, width, swizzle):
    """The swizzle has no more bits than needed, and its highest bit is inside the buffer."""
    (finding,) = diagnose(at(T % shape[0], 0, width), threads=32, buffers=(rows(shape=shape),))
    assert finding.details["swizzle"] == swizzle
    assert (
        f" or swizzle_storage(Swizzle({', '.join(map(str, swizzle))})) on s removes all bank conflicts of its accesses" in finding.message
    )


def test_fixed_layouts_and_swizzles_get_no_pad():
    led = attrs.evolve(rows().tensor, layout=MatrixLayout("row", as_expr(64)))
    (finding,) = diagnose(
        at(T, 0), threads=32, buffers=(attrs.evolve(rows(), tensor=led, storage=led.storage(), elements=led.storage().extent),)
    )
    assert finding.severity == "warning" and "pad" not in finding.details
    tensor = attrs.evolve(rows().tensor, swizzle=Swizzle(1, 0, 5))
    (finding,) = diagnose(at(T, 0), threads=32, buffers=(attrs.evolve(rows(), tensor=tensor, storage=tensor.storage()),))
    assert finding.details["wavefronts"] == 16 and finding.message.endswith("is better: assign the elements to lanes in another order")


def test_many_iterations_are_sampled():
    """At most 2 ** 16 lanes in all: inner loops are sampled first, and each outer loop has at least two iterations."""

    def requests(inner, outer, threads=1024):
        body = loop(outer, loop(inner, at(T % 32, (i + J) % 32), var=J))
        (finding,) = diagnose(body, threads=threads, buffers=(rows(),))
        return finding.details["requests"] // (threads // 32)

    assert requests(1000, 1) == 64 and requests(1000, 1000) == 64 * 2 and requests(63, 1) == 63 and requests(1, 1000) == 64
    assert requests(40, 10) == 40 * 2 and requests(16, 10) == 16 * 4 and requests(16, 3) == 16 * 3 and requests(32, 9) == 32 * 2
    assert requests(3, 5) == 15


def test_a_request_needs_known_coordinates():
    size = Var("K", 0, 1 << 20, 1, True)
    block = Var("block", 0, 3)
    for column, judged in ((T, True), (block, False), (size % 32, False), (i % 32, True)):
        findings = diagnose(loop(size, at(T, column)), threads=32, buffers=(rows(),), symbols=(size,), grid=4)
        assert bool(findings) == judged, column
    (finding,) = diagnose(at(T, 0, active=less(block, 2)), threads=32, buffers=(rows(),), grid=4)
    assert finding.details["wavefronts"] == 32, "a condition on blocks is assumed to hold"
    assert diagnose(loop(0, at(T, i)), threads=32, buffers=(rows(),)) == [], "a loop without iterations has no requests"
    (finding,) = diagnose(loop(size, at(T * i % 32, 0)), threads=32, buffers=(rows(),), symbols=(size,))
    assert (finding.details["wavefronts"], finding.details["requests"]) == (1, 1), "the first iteration"


# ---------------------------------------------------------------------------------------------- sectors, compared with a count


@pytest.mark.parametrize("seed", range(40))
def test_random_sectors_equal_a_count(seed):
    """The check samples two iterations of each loop."""
    program = random_kernel(random.Random(f"sectors {seed}"), GL)
    (requests,) = requests_by_execution(attrs.evolve(program, body=tuple(map(shortened, program.body))), GL)
    (finding,) = check_coalescing(AccessTrace(program))
    moved, wanted = map(list, zip(*(sectors_of(*request) for request in requests)))
    reported = (finding.details["sectors"], finding.details["ideal"])
    assert reported in zip(moved, wanted) and reported[0] - reported[1] == max(m - w for m, w in zip(moved, wanted))
    assert finding.details["ratio"] == round(sum(moved) / max(sum(wanted), 1), 3)
    assert finding.severity == ("warning" if sum(moved) > 2 * sum(wanted) else "note")


def shortened(stmt):
    from fireiron import ir

    return attrs.evolve(stmt, extent=as_expr(2), body=tuple(map(shortened, stmt.body))) if isinstance(stmt, ir.For) else stmt


def unused_trip_counts(program):
    """The trip counts of loops on which no address and no condition depends: all their iterations issue the same request."""
    from fireiron import ir

    ((stmt, around),) = ir.execs(program.body)
    names = {var.name for value in (*stmt.accesses[0].base, stmt.accesses[0].copy, stmt.active) for var in value.variables()}
    return [loop.extent.evaluate({}) for loop in around if loop.var.name not in names]


@pytest.mark.parametrize(("step", "severity"), [(1, "note"), (2, "note"), (3, "warning")])
def test_up_to_twice_the_sectors_is_a_note(step, severity):
    (finding,) = coalescing_findings(at(0, T * step), buffers=(rows(memory=GL, shape=(32, 96)),))
    assert (finding.details["sectors"], finding.severity) == (4 * step, severity)


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
def test_a_tile_layout_with_half_the_sectors_is_proposed(row, column, threads, layout, proposed):
    (finding,) = coalescing_findings(at(row, column), threads=threads, buffers=(rows(memory=GL, layout=layout, shape=(64, 64)),))
    assert finding.severity == "warning" and finding.details.get("layout") == proposed
    end = f"; .layout({proposed}) on the tile of the threads makes adjacent lanes access adjacent elements"
    assert finding.message.endswith(end if proposed else " 4 bytes per lane")


@pytest.mark.parametrize(("write", "through"), [(True, "load(SRC, SH) in a store"), (False, "a preceding load(s, SH)")])
def test_a_copy_through_shared_memory_is_proposed(write, through):
    step = at(T, 0)
    (access,) = step.accesses
    register = touch(0, write=not write, name="r").accesses[0]
    step = attrs.evolve(step, accesses=(attrs.evolve(access, write=write), register))
    (finding,) = coalescing_findings(step, buffers=(rows(memory=GL), buffer("r", 1, memory=RF)))
    assert finding.message.endswith(
        f"; a Strided tile assigns adjacent elements to adjacent lanes, and {through} goes through shared memory"
    )


def test_accesses_of_groups_have_no_sectors():
    array = buffer("s", 64, memory=GL)
    assert coalescing_findings(touch(T, write=False, level=Warp), buffers=(array,)) == []
    assert coalescing_findings(touch(T, write=False, spread=True), buffers=(array,)) == []
    assert coalescing_findings(loop(0, reads(T + i)), buffers=(array,)) == []
    assert len(coalescing_findings(loop(0, reads(T)), buffers=(array,))) == 1
    block = Var("block", 0, 3)
    (finding,) = coalescing_findings(reads(T + block * 3, active=less(block, 1)), buffers=(array,), grid=4)
    assert finding.details["sectors"] == 4, "of block 0"


def test_two_iterations_of_a_loop_are_sampled():
    size = Var("K", 0, 1 << 20, 1, True)
    for count in (size, 2, 3):
        (finding,) = coalescing_findings(loop(count, at(0, T + T * i)), buffers=(rows(memory=GL, shape=(8, 512)),), symbols=(size,))
        assert (finding.details["sectors"], finding.details["ratio"]) == (8, 1.5), count
    (finding,) = coalescing_findings(loop(1, at(0, T + T * i)), buffers=(rows(memory=GL, shape=(8, 512)),))
    assert (finding.details["sectors"], finding.details["ratio"]) == (4, 1.0)


# ---------------------------------------------------------------------------------------------- candidates


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
def test_candidate_swizzles(shape, width, bits, swizzles):
    """Up to 5 bits above those of a vector, shifted by up to 10 bits, inside the buffer; the fewest bits first."""
    warp_request, array = request_of(width, shape=shape)
    base = {1: 0, 2: 1, 4: 2, 8: 3}[width]
    expected = [
        (number, low, shift)
        for number in (1, 2, 3, 4, 5)
        for low in (base, base + 1, base + 2, base + 3)
        for shift in (1, 2, 3, 4, 5, 6, 7, 8, 9, 10)
        if number <= shift and low + shift + number <= bits
    ]
    assert swizzles is None or expected == swizzles
    candidates = list(_swizzled(array, [warp_request]))
    assert [(swizzle.bits, swizzle.base, swizzle.shift) for swizzle, _ in candidates] == expected
    for swizzle, moved in candidates:
        assert moved.tensor.swizzle == moved.storage.swizzle == swizzle and moved.elements == moved.storage.extent
    wide, _ = request_of(4, shape=(32, 32))
    assert [swizzle.base for swizzle, _ in _swizzled(rows(), [request_of()[0], wide])] == [
        swizzle.base for swizzle, _ in _swizzled(rows(), [wide])
    ]


@pytest.mark.parametrize(
    ("width", "pad", "pads"),
    [(1, 0, range(1, 33)), (2, 0, range(2, 33, 2)), (4, 0, range(4, 33, 4)), (4, 2, range(4, 35, 4)), (1, 8, range(9, 41))],
)
def test_candidate_pads(width, pad, pads):
    """Pads of up to 32 more elements, in multiples of a vector."""
    warp_request, array = request_of(width, pad=pad)
    candidates = list(_padded(array, [warp_request]))
    assert [more for more, _ in candidates] == list(pads)
    for more, moved in candidates:
        assert (
            moved.tensor.pad == more and moved.elements == moved.storage.extent and constant(moved.elements) == 31 * (32 + more) + 32 + more
        )
    narrow, _ = request_of()
    assert [more for more, _ in _padded(array, [narrow, warp_request])] == list(pads)


@pytest.mark.parametrize(("count", "step"), [(1, 1), (64, 1), (127, 1), (128, 2), (191, 2), (192, 3), (1000, 15)])
def test_requests_are_sampled_to_about_a_hundred(count, step):
    warp_request, _ = request_of()
    rows_ = np.arange(count)[:, None] + np.zeros((1, 32), int)
    many = attrs.evolve(warp_request, coordinates=(rows_, rows_ + 1), copies=rows_ + 2, active=rows_ % 2 == 0)
    thin = _sampled(many)
    for sampled, original in (
        (thin.coordinates[0], rows_),
        (thin.coordinates[1], rows_ + 1),
        (thin.copies, rows_ + 2),
        (thin.active, rows_ % 2 == 0),
    ):
        np.testing.assert_array_equal(sampled, original[::step])


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
def test_values_are_arranged_by_warp(values, fill, expected):
    """A row per warp and iteration; the last warp is padded."""
    assert banks_by_warp(values, fill).tolist() == [list(row) for row in expected]
    if not fill and values.dtype != bool:
        assert sectors_by_warp(values).tolist() == [list(row) for row in expected]
