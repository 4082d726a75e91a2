"""Bank conflicts and sectors by hand: requests of a warp held against counting each word and each byte."""

import random

import attrs
import numpy as np
import pytest
from touching import T, buffer, i, kernel, loop, reads, touch, writes

from fireiron import *
from fireiron.check import Scene, check_banks, check_coalescing
from fireiron.check.banks import lanes_per_phase, request, wavefronts
from fireiron.check.coalescing import sectors
from fireiron.values.expr import Var, less
from fireiron.values.tensor import Tensor

ODD = Var("other", 0, 9)


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
    return list(check(Scene(kernel(*body, **options))))


def rows(pad=0, memory=SH, layout=RowMajor, shape=(32, 32), dtype=float32, offset=0):
    """A matrix of rows in shared memory, or columns."""
    from fireiron import ir
    from fireiron.values.expr import as_expr

    tensor = Tensor("s", tuple(map(as_expr, shape)), dtype, memory, layout, pad=pad)
    storage = tensor.storage()
    return ir.Buffer(tensor, storage, storage.extent, offset=offset, written=memory == GL)


def at(row, column, width=1, along=1, **options):
    """A read at a row and a column."""
    from fireiron import ir
    from fireiron.values.expr import as_expr
    from fireiron.values.tensor import Mode

    modes = tuple((Mode(width if dim == along else 1, 1),) for dim in range(2))
    access = ir.Access("s", (as_expr(row), as_expr(column)), modes, (None, None), False, dealt=((), ()), origin="mine.py:2")
    one = ir.Exec(spec=Move(1, 1)(SH, RF)(Thread), accesses=(access,), instruction=reads(0).instruction, **options)
    return attrs.evolve(one, vectors=(width,)) if width > 1 else one


def test_columns_of_rows_of_32_words():
    """A pad of a word, or a swizzle, frees them; what is said is counted again."""
    (one,) = of(at(T, 0), threads=32, buffers=(rows(),))
    assert (one.kind, one.severity, one.at) == ("banks", "warning", "mine.py:2")
    assert {name: one.details[name] for name in ("wavefronts", "ideal", "degree", "average", "vector_bytes", "requests")} == {
        "wavefronts": 32, "ideal": 1, "degree": 32, "average": 32.0, "vector_bytes": 4, "requests": 1,
    }  # fmt: skip
    assert "32-way bank conflict, 32 wavefronts where 1 would do; pad(1) or swizzle(Swizzle(" in one.message
    (free,) = of(at(T, 0), threads=32, buffers=(rows(pad=1),))
    assert free.severity == "note" and "no bank conflict, 1 wavefront for 4 bytes a lane" in free.message
    from fireiron.values.layout import Swizzle

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
    scene = Scene(kernel(at(T, ODD), threads=32, buffers=(rows(),)))
    assert request(scene, scene.uses[0]) is None
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


def test_neighbouring_lanes_at_neighbouring_elements():
    (one,) = coalesced(at(0, T), buffers=(rows(memory=GL),))
    assert (one.severity, one.details["sectors"], one.details["ideal"], one.details["ratio"]) == ("note", 4, 4, 1.0)
    assert one.message.endswith("4 sectors of 32 bytes a warp request, 4 needed, 4 bytes a lane")


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
    from fireiron import ir
    from fireiron.values.expr import as_expr

    n = Var("n", 8, 1 << 20, 8, True)
    tensor = Tensor("s", (as_expr(64), n), float32, GL, RowMajor)
    storage = tensor.storage()
    array = ir.Buffer(tensor, storage, storage.extent, written=True)
    (one,) = coalesced(at(T, 0), buffers=(array,), symbols=(n,))
    assert one.details["assumed_sizes"] == {"n": 4096} and "(with n=4096)" in one.message and one.details["sectors"] == 32
    odd = Var("n", 5000, 1 << 20, 24, True)
    tensor = attrs.evolve(tensor, shape=(as_expr(64), odd))
    storage = tensor.storage()
    (one,) = coalesced(at(T, 0), buffers=(ir.Buffer(tensor, storage, storage.extent, written=True),), symbols=(odd,))
    assert one.details["assumed_sizes"] == {"n": 5016}
