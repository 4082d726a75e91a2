"""`max_shared_bytes`: arrays share bytes if the bound requires it, as few as possible; what must not share, with injected faults."""

import itertools
import random

import attrs
import making
import pytest
from handmade import local
from ringed import TARGET, errors, float16_gemm, inputs_of, outcome
from test_allocate import X, Y, Z, both, kernel, loop, offsets, shared, use

from fireiron import *
from fireiron import ir
from fireiron.check import safety
from fireiron.lower.allocate import FEW, _choices, _packed, _stacked, _top, allocate, live_spans


def bounded(program, bytes):
    return making.evolved(program, within=bytes)


def partners(program):
    """The pairs of arrays in use that share bytes."""
    used = {access.buffer for statement, _ in ir.execs(program.body) for access in statement.accesses}
    buffers = [one for one in program.buffers if one.memory.of_block and one.name in used]
    return {(one.name, other.name) for one, other in itertools.combinations(buffers, 2) if one.shares(other)}


# ---------------------------------------------------------------------------------------------- the pass alone


def test_nothing_is_shared_if_all_arrays_fit():
    program = kernel((X, Y), use(X), use(Y))
    assert allocate(bounded(program, 256)) == bounded(allocate(program), 256)
    assert offsets(allocate(bounded(program, 256))) == {"x": 0, "y": 128}


def test_the_fewest_pairs_share():
    """Of three arrays one after the other, two have to share, not three."""
    program = kernel((X, Y, Z), use(X), use(Y), use(Z))
    assert len(partners(allocate(bounded(program, 256)))) == 1
    assert len(partners(allocate(bounded(program, 128)))) == 3
    assert allocate(bounded(program, 128)).shared_bytes == 128


def test_arrays_with_overlapping_live_ranges_do_not_share():
    program = kernel((X, Y, Z), loop("i", use(X), use(Y)), use(Z))
    assert partners(allocate(bounded(program, 256))) in ({("x", "z")}, {("y", "z")})
    with pytest.raises(ResourceError, match=r"max_shared_bytes\(255\) allows 255") as caught:
        allocate(bounded(program, 255))
    assert "x 128, y 128, z 128" in str(caught.value) and "live at the same time" in str(caught.value)


def test_arrays_that_share_start_at_multiples_of_16():
    """Two arrays of 4 bytes after two that share."""
    small, other = shared("small", 1, align=4), shared("other", 1, align=4)
    places = offsets(allocate(bounded(kernel((X, Y, small, other), use(small), use(other), use(X), use(Y), both(small, other)), 160)))
    assert places["x"] == places["y"] and all(place % 16 == 0 for place in places.values())


def test_the_target_is_a_bound_too():
    big = [shared(name, 40_000) for name in "xyz"]
    program = kernel(big, *(use(one) for one in big))
    with pytest.raises(ResourceError, match="sm_90 has 232448"):
        allocate(program)
    assert allocate(bounded(program, 1 << 20)).shared_bytes <= 232448


@pytest.mark.parametrize("count", [6, 8])
def test_many_arrays_in_sequence_share_one_address(count):
    """Neither all orders nor all sets of pairs are tried: for eight arrays there are millions."""
    arrays = [shared(f"b{number}", 8 * (number + 1)) for number in range(count)]
    program = allocate(bounded(kernel(arrays, *map(use, arrays)), 32 * count))
    assert program.shared_bytes == 32 * count


@pytest.mark.sampled(1)
@pytest.mark.parametrize("seed", range(30))
def test_no_smaller_choice_fits(seed):
    """Compared with all packings of all smaller choices (oracle: enumeration)."""
    draw = random.Random(seed)
    arrays = [shared(f"b{number}", draw.choice((8, 16, 32, 48, 64))) for number in range(draw.randint(2, 4))]
    moments = [draw.sample(arrays, draw.randint(1, 2)) for _ in range(4)]
    program = kernel(arrays, *(loop(f"i{number}", *map(use, used)) for number, used in enumerate(moments)))
    spans = live_spans(program)
    live = [one for one in arrays if one.name in spans]
    sizes = {one.name: 4 * int(str(one.shape[0])) for one in live}
    bound = draw.randint(max(sizes.values()), sum(sizes.values()))
    apart = [
        pair for pair in itertools.combinations(sizes, 2) if spans[pair[0]][1] < spans[pair[1]][0] or spans[pair[1]][1] < spans[pair[0]][0]
    ]

    def fits(pairs):
        return any(packed(order, sizes, pairs) <= bound for order in itertools.permutations(sizes))

    needed = next((count for count in range(len(apart) + 1) if any(map(fits, itertools.combinations(apart, count)))), None)
    if needed is None:
        with pytest.raises(ResourceError):
            allocate(bounded(program, bound))
        return
    allocated = allocate(bounded(program, bound))
    assert allocated.shared_bytes <= bound and partners(allocated) <= set(apart) and len(partners(allocated)) <= needed


def packed(order, sizes, pairs):
    """The end of arrays that are placed in an order, each as low as possible."""
    places = {}
    for name in order:
        others = [one for one in places if (one, name) not in pairs and (name, one) not in pairs]
        starts = sorted({0, *(places[one] + sizes[one] for one in others)})
        places[name] = next(
            start for start in starts if all(start + sizes[name] <= places[one] or places[one] + sizes[one] <= start for one in others)
        )
    return max(places[name] + sizes[name] for name in places)


# ---------------------------------------------------------------------------------------------- whole kernels


def strategy(bound, blocks=65536, stages=3):
    staged = Move.tile(64, 128).to(Warpgroup).tile(64, 64).unroll().load(SRC, SH, Move.done()).cast_on_copy().done()
    chain = MatMul.tile(128, 128).to(Block).max_shared_bytes(bound).persistent(blocks).epilog(RF, float32, Init.done(), staged).split(64)
    return chain.pipeline(stages).warp_specialize().load(A, SH, Move.done()).load(B, SH, Move.done()).tile(64, 128).to(Warpgroup).done()


SPEC = float16_gemm(200, 136, 328)


def freed(kernel):
    """The barrier before the chunks of C are written: after the last MMAs, and after the preceding store."""
    return [one for one in ir.statements(kernel.body) if isinstance(one, ir.Barrier) and "free" in one.reason]


def test_results_lie_where_factors_lay():
    """The chunks of C reuse the first stages once all MMAs have read them; the whole kernel is right."""
    kernel = strategy(100_000)(SPEC).program(TARGET).ir
    assert kernel.shared_bytes <= 100_000 < strategy(232448)(SPEC).program(TARGET).ir.shared_bytes
    assert partners(kernel) == {("a_sh", "store_c_sh")} and len(freed(kernel)) == 1
    arrays, expected = inputs_of(SPEC)
    for order in (None, 1, 2):
        assert outcome(kernel, arrays, expected, order) == "right"


def test_both_detectors_find_that_the_barrier_is_missing():
    kernel = strategy(100_000)(SPEC).program(TARGET).ir
    (barrier,) = freed(kernel)
    faulty = attrs.evolve(kernel, body=ir.rewritten(kernel.body, lambda one: () if one is barrier else (one,)))
    assert any(one.kind == "race" and one.severity == "error" for one in safety(faulty))
    arrays, expected = inputs_of(SPEC)
    assert any(outcome(faulty, arrays, expected, order) != "right" for order in (None, 1, 2))


def test_blocks_that_stay_have_no_room_to_share():
    """The loads of the next tile are in flight while this one is stored."""
    with pytest.raises(ResourceError, match="live at the same time"):
        _ = strategy(100_000, blocks=1)(SPEC).program(TARGET).ir


def test_sharing_while_both_are_in_use_is_an_error():
    kernel = strategy(100_000)(SPEC).program(TARGET).ir
    other = attrs.evolve(kernel, buffers=tuple(attrs.evolve(one, offset=0) if one.name == "b_sh" else one for one in kernel.buffers))
    assert any("while both are live" in one.message for one in safety(other)) and errors(kernel) == []


@pytest.mark.sampled(1)
@pytest.mark.parametrize("bound", [1, 0, -5, 1 << 21])
def test_bounds_that_are_none(bound):
    with pytest.raises(FireironError):
        _ = strategy(bound)(SPEC).program(TARGET).ir


def test_a_tunable_as_the_bound():
    tunable = strategy(Tunable("most", 90_000, 100_000))
    assert tunable(SPEC).program(TARGET).chosen == {"most": 100_000}
    assert Strategy.from_json(tunable.to_json()) == tunable and eval(repr(strategy(100_000))) == strategy(100_000)


# ---------------------------------------------------------------------------------------------- choice of pairs and addresses


def arrays(**sizes):
    """Arrays with given numbers of bytes."""
    return [local(name, (size // 4, 1), SH) for name, size in sizes.items()]


def test_where_sets_of_pairs_are_too_many_the_pair_that_saves_most_is_let_go_first(monkeypatch):
    monkeypatch.setattr("fireiron.lower.allocate.MOST_CHOICES", 1)
    buffers = arrays(small=64, big=512, middle=256)
    apart = [frozenset(pair) for pair in itertools.combinations(("small", "big", "middle"), 2)]
    choices = list(_choices(buffers, apart))
    assert choices[0] == {frozenset(("big", "middle"))} and [len(one) for one in choices] == [1, 2, 3]
    assert all(one < other for one, other in itertools.pairwise(choices))
    assert [_top(buffers, _packed(buffers, one)) for one in choices] == [576, 512, 512]


def test_few_sets_of_pairs_are_all_tried_small_ones_first():
    apart = [frozenset(pair) for pair in ("ab", "bc", "cd")]
    choices = list(_choices(arrays(a=64, b=64, c=64, d=64), apart))
    assert [len(one) for one in choices] == [1, 1, 1, 2, 2, 2, 3] and len(set(choices)) == 7


@pytest.mark.parametrize("count", [3, 5, 6, 7])
def test_arrays_lie_at_the_lowest_places_that_they_may_share(count):
    choose = random.Random(count)
    for _ in range(20):
        sizes = {f"b{number}": 16 * choose.randint(1, 9) for number in range(count)}
        buffers = arrays(**sizes)
        pairs = frozenset(frozenset(pair) for pair in itertools.combinations(sizes, 2) if choose.random() < 0.4)
        tops = []
        for order in itertools.permutations(buffers) if count <= FEW else (buffers, sorted(buffers, key=lambda one: -one.bytes)):
            offsets = {}
            for array in order:
                others = [(offsets[name], offsets[name] + sizes[name]) for name in offsets if frozenset((name, array.name)) not in pairs]
                places = range(0, sum(sizes.values()), 16)
                offsets[array.name] = next(
                    place for place in places if all(place + array.bytes <= start or place >= end for start, end in others)
                )
            assert _stacked(order, pairs) == offsets
            tops.append(_top(buffers, offsets))
        assert _top(buffers, _packed(buffers, pairs)) == min(tops)
