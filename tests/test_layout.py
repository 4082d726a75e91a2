"""The layout algebra against definitions of a few lines, over the whole domain of every result.

`FIREIRON_FUZZ=50 pytest tests/test_layout.py` multiplies the number of draws. Each test prints its seed.
"""

from __future__ import annotations

import functools
import itertools
import math
import os
import random

import numpy as np
import pytest

import fireiron.values.layout as fl
from fireiron.errors import ArgumentError, FireironError, LayoutError
from fireiron.values.expr import Const, Var, compiled, constant, sym
from fireiron.values.layout import (
    ComposedLayout,
    Layout,
    Swizzle,
    blocked_product,
    coalesce,
    column_major,
    complement,
    composition,
    flat_divide,
    flat_product,
    left_inverse,
    logical_divide,
    logical_product,
    make_layout,
    max_common_layout,
    max_common_vector,
    parse,
    raked_product,
    right_inverse,
    row_major,
    tiled_divide,
    tiled_product,
    zipped_divide,
    zipped_product,
)
from fireiron.values.machine import GL, SH, float16
from fireiron.values.tensor import ColMajor, Cut, Dim, Fixed, Mode, RowMajor, Tensor, chunks, cut

SCALE = float(os.environ.get("FIREIRON_FUZZ", "1"))
SEED = 20231125


# ------------------------------------------------------------------------------------------------------- independent definition


def leaves(tree):
    return [x for part in tree for x in leaves(part)] if isinstance(tree, tuple) else [tree]


def size(tree):
    return math.prod(map(size, tree)) if isinstance(tree, tuple) else tree


def at(shape, stride, i):
    """The definition of a layout: the integer coordinate i is split into digits, the leftmost mode first."""
    if not isinstance(shape, tuple):
        return i * stride
    total = 0
    for s, d in zip(shape, stride, strict=True):
        total += at(s, d, i % size(s))
        i //= size(s)
    return total


@functools.lru_cache(maxsize=64)
def table(layout):
    """All offsets, by definition."""
    if isinstance(layout, ComposedLayout):
        sw = layout.swizzle
        return [xor(sw.bits, sw.base, sw.shift, layout.offset + x) for x in table(layout.layout)]
    return [at(layout.shape, layout.stride, i) for i in range(size(layout.shape))]


def xor(bits, base, shift, x):
    """The definition of a swizzle, bit by bit."""
    out = x
    for b in range(bits):
        source, target = (base + shift + b, base + b) if shift >= 0 else (base + b, base - shift + b)
        out ^= (x >> source & 1) << target
    return out


def refines(fine, coarse):
    """Whether coordinates of `coarse` are coordinates of `fine`."""
    if not isinstance(coarse, tuple):
        return size(fine) == coarse
    return isinstance(fine, tuple) and len(fine) == len(coarse) and all(map(refines, fine, coarse))


def is_composition(r, a, b):
    return refines(r.shape, b.shape) and table(r) == [table(a)[x] for x in table(b)]


def some_layout_is(values, shape):
    """Whether any layout that refines `shape` has these values: additive over leaves, each leaf a chain of linear runs."""

    def leaf_ok(f):
        if len(f) == 1:
            return True
        run = next((k for k in range(2, len(f)) if f[k] != k * f[1]), len(f))
        return len(f) % run == 0 and all(f[i] == f[i - i % run] + i % run * f[1] for i in range(len(f))) and leaf_ok(f[::run])

    extents = leaves(shape)
    weights = [math.prod(extents[:k]) for k in range(len(extents))]
    axes = [[values[c * w] for c in range(n)] for n, w in zip(extents, weights, strict=True)]
    digits = itertools.product(*(range(n) for n in reversed(extents)))
    additive = all(values[i] == sum(axis[c] for axis, c in zip(axes, reversed(d), strict=True)) for i, d in enumerate(digits))
    return additive and all(map(leaf_ok, axes))


# ----------------------------------------------------------------------------------------------------------------------- drawing


def draws(name, count):
    """`count` generators, each with a printed and replayable seed."""
    print(f"{name}: seed {SEED}, {int(count * SCALE)} draws")
    rng = random.Random(f"{SEED}/{name}")
    for _ in range(int(count * SCALE)):
        yield rng


def draw_shape(rng, limit=48, depth=2, sizes=(1, 2, 2, 3, 4, 4, 5, 6, 8)):
    if depth == 0 or rng.random() < 0.3:
        return rng.choice([s for s in sizes if s <= limit])
    parts = []
    for _ in range(rng.randint(1, 3)):
        parts.append(draw_shape(rng, max(limit, 1), depth - 1, sizes))
        limit //= size(parts[-1])
    return tuple(parts)


def draw_layout(rng, limit=48):
    """Half of them are compact in some order (perhaps padded), the others have arbitrary strides."""
    shape = draw_shape(rng, limit)
    extents = leaves(shape)
    if rng.random() < 0.6:
        order, current, strides = rng.sample(range(len(extents)), len(extents)), rng.choice((1, 1, 1, 2, 3)), [0] * len(extents)
        for k in order:
            strides[k] = current
            current = current * extents[k] * rng.choice((1, 1, 1, 1, 2)) + rng.choice((0,) * 9 + (1,))
    else:
        strides = [rng.choice((0, 1, 1, 2, 2, 3, 4, 6, 8, 12, 16)) for _ in extents]
    return Layout(shape, fl.unflatten(strides, like=shape))


def attempt(operation, *args):
    """The result, or None where it was refused with the project's own error."""
    try:
        return operation(*args)
    except LayoutError as refusal:
        assert str(refusal)
        return None


# ------------------------------------------------------------------------------------------------------------------------ laws


@pytest.mark.parametrize("part", range(4))
def test_composition_is_right_or_refused_for_a_reason(part):
    accepted = needless = inside = 0
    for rng in draws(f"composition {part}", 1800):
        a, b = draw_layout(rng), draw_layout(rng, 16)
        r = attempt(composition, a, b)
        if b.cosize() > a.size():
            assert r is None
            continue
        inside += 1
        if r is None:
            needless += some_layout_is([table(a)[x] for x in table(b)], b.shape)
        else:
            accepted += 1
            assert is_composition(r, a, b), f"composition({a!r}, {b!r}) = {r!r}"
    print(f"  {inside} inside, {accepted} accepted, {needless} refused although a layout exists")
    assert accepted > 300 * SCALE and inside - accepted > 50 * SCALE
    assert needless == 0


def test_a_composition_whose_carries_cancel():
    """3 * 4 carries from the mode 6:1 into the mode of stride 6, and so does 4 + 8: the sums are right."""
    a = Layout(((6,), (2, 2, 2)), ((1,), (0, 6, 3)))
    assert composition(a, Layout(4, 4)) == Layout((2, 2), (4, 2))
    assert [a(4 * i) for i in range(4)] == composition(a, Layout(4, 4)).offsets()


def test_a_composition_that_crosses_two_modes_at_once():
    """3 = (1, 1, 0) and 6 = (0, 1, 1) in the digits of the left layout: no run is whole, but all steps are equal."""
    for a, stride in ((Layout((2, 2, 2), (1, 6, 8)), 7), (Layout((2, 2, 2), (0, 4, 4)), 4)):
        assert composition(a, Layout(3, 3)) == Layout(3, stride) and [a(0), a(3), a(6)] == [0, stride, 2 * stride]
    crossing = Layout((2, 2, 2, 2), (1, 6, 8, 16))
    assert composition(crossing, Layout((3, 2), (3, 8))) == Layout((3, 2), (7, 16))
    with pytest.raises(LayoutError):
        composition(crossing, Layout(4, 3))


def test_composition_by_mode():
    accepted = 0
    for rng in draws("by mode", 1000):
        a = make_layout(draw_layout(rng, 12), draw_layout(rng, 12), draw_layout(rng, 4))
        tilers = tuple(rng.choice((draw_layout(rng, 6), rng.randint(1, 6))) for _ in range(rng.randint(1, 3)))
        if (r := attempt(composition, a, tilers)) is not None:
            accepted += 1
            for i, mode in enumerate(a):
                b = tilers[i] if i < len(tilers) else None
                assert r[i] == mode if b is None else is_composition(r[i], mode, b if isinstance(b, Layout) else Layout(b))
    assert accepted > 100 * SCALE


def test_coalesce_and_filter():
    for rng in draws("coalesce", 3000):
        a = draw_layout(rng)
        r = coalesce(a)
        assert table(r) == table(a) and len(leaves(r.shape)) <= len(leaves(a.shape))
        assert not isinstance(r.shape, tuple) or (1 not in r.shape and len(r.shape) > 1)
        assert coalesce(r) == r
        if isinstance(a.shape, tuple):
            by_mode = coalesce(a, (1,) * len(a.shape))
            assert [table(x) for x in by_mode] == [table(x) for x in a]
        f = fl.filter(a)
        assert set(table(f)) == set(table(a)) and (f.stride == 0 or 0 not in leaves(f.stride))
        assert a.offsets() == table(a) and a.cosize() == max(table(a)) + 1
        assert a.is_injective() == (len(set(table(a))) == a.size())
        assert a.is_bijective() == (sorted(table(a)) == list(range(a.size())))


def check_complement(a, r, top):
    image = set(table(a))
    sums = [x + y for x in image for y in table(r)]
    assert sorted(sums) == list(range(top)), f"complement({a!r}) = {r!r}"
    strides = leaves(r.stride)
    assert strides == sorted(strides)


def test_complement():
    accepted = 0
    for rng in draws("complement", 2500):
        a = draw_layout(rng, 24)
        target = rng.choice((None, rng.randint(1, 96), a.cosize() * rng.randint(1, 3), a.size() * rng.randint(1, 4)))
        if (r := attempt(complement, a, target)) is None:
            continue
        accepted += 1
        check_complement(a, r, target if target is not None else r.size() * len(set(table(a))))
    assert accepted > 500 * SCALE


def is_divide(r, a, b):
    """Mode 0 composes with b, mode 1 with b's complement; each element of a occurs exactly once."""
    rest = complement(b, a.size())
    check_complement(b, rest, a.size())
    whole = make_layout(b, rest)
    return is_composition(r, a, whole) and sorted(table(whole)) == list(range(a.size()))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("part", range(2))
def test_divides(part):
    accepted = by_mode = 0
    for rng in draws(f"divide {part}", 2000):
        a, b = draw_layout(rng), draw_layout(rng, 12)
        b = b if rng.random() < 0.7 else Layout(rng.randint(1, 8))
        if (r := attempt(logical_divide, a, b)) is not None:
            accepted += 1
            assert is_divide(r, a, b), f"logical_divide({a!r}, {b!r}) = {r!r}"
            assert zipped_divide(a, b) == r
            check_spread(r, tiled_divide(a, b), flat_divide(a, b))
        pair, tiler = make_layout(a, draw_layout(rng, 8)), (rng.choice((b, b.size())), rng.randint(1, 4))
        tiler = tiler[: rng.randint(1, 2)]
        if (r := attempt(logical_divide, pair, tiler)) is not None:
            by_mode += 1
            for mode, result, t in zip(pair, r, tiler, strict=False):
                assert is_divide(result, mode, t if isinstance(t, Layout) else Layout(t))
            zipped = zipped_divide(pair, tiler)
            assert [table(x) for x in zipped[0]] == [table(r[i, 0]) for i in range(len(tiler))]
            rests = [r[i, 1] for i in range(len(tiler))] + list(r)[len(tiler) :]
            assert list(zipped[1]) == rests
            check_spread(zipped, tiled_divide(pair, tiler), flat_divide(pair, tiler))
    assert accepted > 200 * SCALE and by_mode > 100 * SCALE


def check_spread(zipped, tiled, flat):
    first, second = zipped
    assert list(tiled) == [first, *second]
    assert list(flat) == [*first, *second]


def is_product(r, a, b):
    """Mode 0 is a; mode 1 is b through free places: offsets b apart are equal, others never collide with a's copies."""
    c = r[1]
    if r[0] != a or not refines(c.shape, b.shape):
        return False
    places = dict(zip(table(b), table(c), strict=True))
    if any(places[x] != y for x, y in zip(table(b), table(c), strict=True)):
        return False
    image = set(table(a))
    return len({x + y for x in image for y in places.values()}) == len(image) * len(places) and ascending(places)


def ascending(places):
    order = [places[x] for x in sorted(places)]
    return order == sorted(set(order)) and order[0] == 0


@pytest.mark.nightly
@pytest.mark.parametrize("part", range(2))
def test_products(part):
    blocked = 0
    for rng in draws(f"product {part}", 2000):
        a, b = draw_layout(rng, 16), draw_layout(rng, 12)
        r = logical_product(a, b)
        assert is_product(r, a, b), f"logical_product({a!r}, {b!r}) = {r!r}"
        assert zipped_product(a, b) == r
        check_spread(r, tiled_product(a, b), flat_product(a, b))
        if a.rank() == b.rank() and (r := attempt(blocked_product, a, b)) is not None:
            blocked += 1
            check_interleaved(r, raked_product(a, b), a, b, logical_product(a, b))
        pair, tilers = make_layout(a, Layout(rng.randint(1, 4), rng.choice((1, 16, 64)))), (rng.randint(1, 3), rng.randint(1, 3))
        if (r := attempt(logical_product, pair, tilers)) is not None:
            assert all(is_product(result, mode, Layout(t)) for mode, result, t in zip(pair, r, tilers, strict=True))
            assert len(set(table(r))) == r.size()
            assert sorted(table(zipped_product(pair, tilers))) == sorted(table(r))
    assert blocked > 50 * SCALE


def check_interleaved(blocked, raked, a, b, logical):
    """Coordinate k of a block product is (block coordinate, repetition) in each mode."""
    modes = [(x.size(), y.size()) for x, y in zip(a, b, strict=True)]
    for inner in itertools.product(*(range(n) for n, _ in modes)):
        for outer in itertools.product(*(range(n) for _, n in modes)):
            sizes = list(zip(inner, outer, modes, strict=True))
            want = logical[0](inner[0] if len(modes) == 1 else inner) + logical[1](outer[0] if len(modes) == 1 else outer)
            assert blocked(tuple(i + n * j for i, j, (n, _) in sizes)) == want
            assert raked(tuple(j + m * i for i, j, (_, m) in sizes)) == want


def test_inverses():
    left = 0
    for rng in draws("inverse", 3000):
        a = draw_layout(rng)
        r = right_inverse(a)
        assert [table(a)[x] for x in table(r)] == list(range(r.size()))
        if (inverse := attempt(left_inverse, a)) is not None:
            left += 1
            assert a.cosize() <= inverse.size()
            assert [table(inverse)[x] for x in table(a)] == list(range(a.size()))
        elif complement_exists(a):
            raise AssertionError(f"{a} is injective and has a complement, but left_inverse was refused")
        if a.is_bijective():
            assert [table(a)[x] for x in table(r)] == list(range(a.size()))
    assert left > 500 * SCALE


def complement_exists(a):
    return a.is_injective() and attempt(complement, a) is not None


def test_max_common_vector():
    lengths = {}
    for rng in draws("max common", 1500):
        a = draw_layout(rng)
        b = Layout(a.shape, draw_layout_like(rng, a)) if rng.random() < 0.6 else draw_layout(rng)
        if (r := attempt(max_common_layout, a, b)) is None:
            continue
        n = max_common_vector(a, b)
        lengths[n] = lengths.get(n, 0) + 1
        assert n == r.size() and [table(a)[x] for x in table(r)] == [table(b)[x] for x in table(r)] == list(range(n))
    assert len(lengths) > 4


def draw_layout_like(rng, a):
    """A layout with some strides of `a` and the others changed."""
    return fl.unflatten([d if rng.random() < 0.7 else rng.randint(0, 16) for d in leaves(a.stride)], like=a.shape)


def test_coordinates_agree_with_the_definition():
    for rng in draws("coordinates", 1500):
        a = draw_layout(rng)
        for i in rng.sample(range(a.size()), min(a.size(), 6)):
            crd = a.coordinate(i)
            assert a(i) == a(crd) == at(a.shape, a.stride, i) == fl.crd2idx(crd, a.shape, a.stride)
            assert fl.crd2idx(crd, a.shape) == i and fl.congruent(crd, a.shape)
            if isinstance(a.shape, tuple):
                flat = tuple(fl.crd2idx(c, s) for c, s in zip(crd, a.shape, strict=True))
                assert a(*flat) == a(i)
        assert np.array_equal(np.zeros(a.size(), int) + a.expression(np.arange(a.size())), table(a))


def test_text_and_repr_round_trip():
    for rng in draws("text", 1500):
        a = draw_layout(rng)
        s = ComposedLayout(draw_swizzle(rng), rng.randint(0, 9), a)
        for x in (a, s):
            assert parse(str(x)) == x and eval(repr(x)) == x and hash(eval(repr(x))) == hash(x)
        if isinstance(a.shape, tuple) and len(a.shape) > 1:
            assert parse(f"[{str(a).replace(':', ' : ')}]") == a


# -------------------------------------------------------------------------------------------------------------------- swizzles


def draw_swizzle(rng):
    bits = rng.randint(0, 3)
    return Swizzle(bits, rng.randint(0, 3), rng.choice((1, -1)) * rng.randint(bits, 4))


def test_swizzles_are_involutions_that_permute_their_period():
    for bits, base, shift in itertools.product(range(4), range(4), range(-4, 5)):
        if abs(shift) < bits:
            with pytest.raises(LayoutError):
                Swizzle(bits, base, shift)
            continue
        sw = Swizzle(bits, base, shift)
        image = [sw(x) for x in range(2 * sw.size())]
        assert image == [xor(bits, base, shift, x) for x in range(2 * sw.size())]
        assert sorted(image[: sw.size()]) == list(range(sw.size())) and [sw(x) for x in image] == list(range(2 * sw.size()))
        assert eval(repr(sw)) == sw


@pytest.mark.nightly
def test_operations_act_under_a_swizzle():
    for rng in draws("under swizzle", 1500):
        sw, offset = draw_swizzle(rng), rng.choice((0, 0, 8, 5))
        a, b = draw_layout(rng), draw_layout(rng, 8)
        s = ComposedLayout(sw, offset, a)
        assert table(s) == s.offsets() == [s(i) for i in range(s.size())] and s.cosize() == max(table(s)) + 1
        assert s.is_injective() == (len(set(table(s))) == s.size())
        assert s.is_bijective() == (sorted(table(s)) == list(range(s.size())))
        assert table(coalesce(s)) == table(s)
        for operation in (composition, logical_divide):
            if (r := attempt(operation, s, b)) is not None:
                plain = operation(a, b)
                assert isinstance(r, ComposedLayout) and table(r) == [xor(sw.bits, sw.base, sw.shift, offset + x) for x in table(plain)]
        if (r := attempt(logical_product, s, b)) is not None:
            assert table(r[0]) == table(s)
            if a.is_injective() and b.is_injective():
                assert len(set(table(r))) == r.size()


def test_swizzle_removes_the_bank_conflicts_of_a_column():
    """Eight rows of 128 bytes: a column of 16-byte chunks falls on one bank group, swizzled it falls on all eight."""
    plain = row_major(8, 64)
    swizzled = plain.swizzled(Swizzle(3, 3, 3))
    assert len({plain(i, 0) // 8 % 8 for i in range(8)}) == 1
    assert len({swizzled(i, 0) // 8 % 8 for i in range(8)}) == 8
    assert swizzled.is_bijective()


def test_swizzled_expression_takes_arrays():
    s = row_major(8, 64).swizzled(Swizzle(3, 3, 3), 64)
    i, j = np.arange(8)[:, None], np.arange(64)[None, :]
    assert (s.expression(i, j) == np.array([[s(x, y) for y in range(64)] for x in range(8)])).all()
    negative = row_major(8, 64).swizzled(Swizzle(2, 1, -4))
    assert (negative.expression(i, j) == np.array([[negative(x, y) for y in range(64)] for x in range(8)])).all()


# --------------------------------------------------------------------------------------------------- other implementations, injected wrong answers


def test_agrees_with_pycute_where_pycute_is_right():
    """The oracle also finds pycute's silent errors."""
    pycute = pytest.importorskip("pycute")
    right = wrong = 0
    for rng in draws("pycute", 3000):
        a, b = draw_layout(rng, 32), draw_layout(rng, 8)
        if b.cosize() > a.size():
            continue
        try:
            expected = pycute.composition(pycute.Layout(a.shape, a.stride), pycute.Layout(b.shape, b.stride))
            expected = Layout(expected.shape, expected.stride)
        except (AssertionError, ValueError, ZeroDivisionError, FireironError):
            continue
        if not is_composition(expected, a, b):
            wrong += 1
            continue
        right += 1
        assert table(composition(a, b)) == table(expected)
    print(f"  pycute right {right}, silently wrong {wrong}")
    assert right > 300 * SCALE and wrong > 10 * SCALE


def test_complement_and_divide_agree_with_pycute():
    pycute = pytest.importorskip("pycute")
    compared = 0
    for rng in draws("pycute complement", 1500):
        a = draw_layout(rng, 16)
        target = a.cosize() * rng.randint(1, 3)
        if (r := attempt(complement, a, target)) is not None:
            expected = pycute.complement(pycute.Layout(a.shape, a.stride), target)
            assert table(Layout(expected.shape, expected.stride)) == table(r)
            compared += 1
    assert compared > 300 * SCALE


def wrong_answers_near(r):
    """Wrong answers close to a right one."""
    shape, strides = leaves(r.shape), leaves(r.stride)
    for k, (n, d) in enumerate(zip(shape, strides, strict=True)):
        if n > 1:
            yield Layout(r.shape, fl.unflatten([*strides[:k], d + 1, *strides[k + 1 :]], like=r.shape))
            if d:
                yield Layout(r.shape, fl.unflatten([*strides[:k], 0, *strides[k + 1 :]], like=r.shape))
        for j in range(k):
            if strides[j] != d and shape[j] > 1 and n > 1:
                swapped = list(strides)
                swapped[j], swapped[k] = d, strides[j]
                yield Layout(r.shape, fl.unflatten(swapped, like=r.shape))


def test_the_oracle_finds_injected_wrong_answers():
    wrong_answers = 0
    for rng in draws("lies", 400):
        a, b = draw_layout(rng), draw_layout(rng, 8)
        if (r := attempt(composition, a, b)) is not None:
            for lie in wrong_answers_near(r):
                wrong_answers += 1
                assert not is_composition(lie, a, b), f"{lie!r} passed for {a!r} o {b!r}"
        if (r := attempt(logical_product, a, b)) is not None and b.size() > 1 and len(set(table(b))) > 1:
            assert not is_product(
                make_layout(r[0], Layout(r[1].shape, fl.unflatten([0] * len(leaves(r[1].stride)), like=r[1].shape))), a, b
            )
            wrong_answers += 1
        if (r := attempt(complement, a, a.cosize() * 2)) is not None and r.size() > 1:
            with pytest.raises(AssertionError):
                check_complement(a, next(wrong_answers_near(r)), a.cosize() * 2)
            wrong_answers += 1
    assert wrong_answers > 300 * SCALE


# ------------------------------------------------------------------------------------------------ refusals, errors and small facts

BAD = [True, 1.5, "4", None, [4], {4}, b"4", object(), np.float32(4)]


@pytest.mark.parametrize("bad", BAD, ids=lambda bad: type(bad).__name__)
def test_wrong_types_are_refused(bad):
    layout = Layout((4, 8))
    calls = [
        lambda: Layout(bad),
        lambda: Layout((4, bad)),
        lambda: Layout((4, 8), (1, bad)),
        lambda: layout(bad),
        lambda: layout(0, bad),
        lambda: layout[bad],
        lambda: layout.coordinate(bad),
        lambda: layout.expression(bad),
        lambda: row_major(4, bad),
        lambda: column_major(bad),
        lambda: make_layout(layout, bad),
        lambda: layout.swizzled(bad),
        lambda: layout.swizzled(Swizzle(1, 0, 1), bad),
        lambda: Swizzle(bad, 0, 3),
        lambda: Swizzle(1, bad, 3),
        lambda: Swizzle(1, 0, bad),
        lambda: Swizzle(1, 0, 1)(bad),
        lambda: ComposedLayout(Swizzle(1, 0, 1), 0, bad),
        lambda: coalesce(layout, bad),
        lambda: complement(layout, bad if bad is not None else "x"),
        lambda: fl.idx2crd(bad, (4, 8)),
        lambda: fl.idx2crd(1, (4, bad)),
        lambda: fl.crd2idx(bad, (4, 8)),
    ]
    calls += [lambda f=f: f(bad) for f in (coalesce, fl.filter, complement, right_inverse, left_inverse)]
    calls += [lambda f=f: f(bad, 4) for f in BINARY] + [lambda f=f: f(layout, bad) for f in BINARY]
    calls += [lambda f=f: f(layout, (2, bad)) for f in BINARY if f not in (blocked_product, raked_product, max_common_layout)]
    calls += [] if isinstance(bad, str) else [lambda: parse(bad)]
    for call in calls:
        with pytest.raises((ArgumentError, LayoutError)):
            call()


BINARY = [
    composition,
    logical_divide,
    zipped_divide,
    tiled_divide,
    flat_divide,
    logical_product,
    zipped_product,
    tiled_product,
    flat_product,
    blocked_product,
    raked_product,
    max_common_layout,
]


def nested(levels):
    tree = 4
    for _ in range(levels):
        tree = (tree, 2)
    return tree


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "call",
    [
        lambda: Layout(0),
        lambda: Layout((4, -1)),
        lambda: Layout(4, -1),
        lambda: Layout((4, 8), 1),
        lambda: Layout((4, 8), (1, (4, 8))),
        lambda: Layout((4, 8))(32),
        lambda: Layout((4, 8))(-1),
        lambda: Layout((4, 8))(4, 0),
        lambda: Layout((4, 8))(0, 0, 0),
        lambda: Layout((4, 8))((0, 0), 0),
        lambda: Layout((4, 8))(),
        lambda: Layout((4, 8))[2],
        lambda: Layout((4, 8))[-1],
        lambda: Layout((4, 8))[0, 1],
        lambda: fl.idx2crd(32, (4, 8)),
        lambda: Layout(nested(1000)),
        lambda: Layout(nested(40)),
        lambda: parse("(" * 1000 + "4" + ")" * 1000 + ":1"),
        lambda: composition(Layout((6, 4), (1, 10)), Layout(6, 4)),
        lambda: composition(Layout((4, 3), (1, 100)), Layout(3, 2)),
        lambda: composition(Layout(4), 5),
        lambda: composition(Layout(4), 0),
        lambda: composition(Layout((4, 8)), ()),
        lambda: composition(Layout((4, 8)), (2, 2, 2)),
        lambda: composition(Layout(8), Layout(8).swizzled(Swizzle(1, 0, 1))),
        lambda: complement(Layout(4), 6),
        lambda: complement(Layout(4), 0),
        lambda: complement(Layout((2, 2), (1, 3))),
        lambda: complement(Layout((4, 4), (1, 2))),
        lambda: logical_divide(Layout(10), 4),
        lambda: logical_divide(Layout(8), Layout(4, 0)),
        lambda: logical_product(Layout((2, 2), (1, 2)), (2, 2)),
        lambda: blocked_product(Layout((2, 2)), Layout(4)),
        lambda: left_inverse(Layout(4, 0)),
        lambda: left_inverse(Layout((4, 4), (1, 2))),
        lambda: right_inverse(Layout(8).swizzled(Swizzle(1, 0, 1))),
        lambda: max_common_vector(Layout(4), Layout(8)),
        lambda: coalesce(Layout((4, 8)), (1, 1, 1)),
        lambda: Swizzle(-1, 0, 1),
        lambda: Swizzle(1, -1, 1),
        lambda: Swizzle(3, 0, 2),
        lambda: Swizzle(1, 0, 1)(-1),
        lambda: ComposedLayout(Swizzle(1, 0, 1), -1, Layout(8)),
        *(
            lambda t=t: parse(t)
            for t in (
                "",
                "(",
                "4:",
                ":1",
                "(4,8",
                "4,8)",
                "(4,8):(1)",
                "4:1:2",
                "a:1",
                "4:-1",
                "1.5",
                "[4,8:1]",
                "0",
                "(4)(8)",
                ")4(",
                "٤:1",
            )
        ),
        *(lambda t=t: parse(t) for t in ("Sw<1,0,1>", "Sw<1,0> o 4:1", "Sw<3,0,1> o 0 o 4:1", "Sw<1,0,1> o x o 4:1", "x o 0 o 4:1")),
    ],
)
def test_illegal_requests_are_refused_with_a_message(call):
    with pytest.raises(LayoutError) as refusal:
        call()
    assert len(str(refusal.value)) > 15


def test_known_defects_of_pycute_do_not_occur():
    assert logical_product(Layout((2, 2), (4, 1)), 6) == Layout(((2, 2), (2, 3)), ((4, 1), (2, 8)))
    assert Swizzle(0, 4, 0)(7) == 7 and Swizzle(0, 2, 0).size() == 1


def test_figure_3_of_graphene():
    """Element (0, 3) and the first row, as printed; 3d needs the stride (2,8), see T021."""
    a, b = column_major(4, 8), row_major(4, 8)
    c, d = parse("[4,(2,4) : 2,(1,8)]"), parse("[(2,2),(2,4) : (1,4),(2,8)]")
    assert [x(0, 3) for x in (a, b, c, d)] == [12, 3, 9, 10]
    assert [d(0, j) for j in range(8)] == [0, 2, 8, 10, 16, 18, 24, 26]
    assert d((0, 0), (1, 1)) == 10 and c.is_bijective() and d.is_bijective()
    transcribed = Layout(((2, 2), (2, 4)), ((1, 4), (1, 8)))
    assert len(set(transcribed.offsets())) == 24 and transcribed(0, 3) == 9
    padded = Layout((4, 8), (9, 1))
    assert padded.cosize() == 35 and padded.is_injective() and not padded.is_bijective()


def test_swizzled_layouts_have_the_methods_of_layouts():
    inner = Layout((8, (8, 8)), (64, (1, 8)))
    s = inner.swizzled(Swizzle(3, 3, 3))
    assert (
        (s.shape, s.size(), s.rank(), s.depth(), len(s)) == (inner.shape, 512, 2, 2, 2) == (inner.shape, 512, 2, inner.depth(), len(inner))
    )
    assert s.coordinate(9) == inner.coordinate(9) == (1, (1, 0)) and [x.layout for x in s] == list(inner) and s[1, 0].layout == Layout(8, 1)
    assert s[1](3) == s(0, 3) and s[0](5) == s(5, 0)


def test_large_layouts_are_not_enumerated():
    big = Layout((2**20, 2**20), (3, 2))
    assert not big.is_injective() and row_major(2**20, 2**20).is_bijective() and composition(row_major(2**20, 2**20), 2**10).size() == 2**10


def test_scalar_layout():
    scalar = Layout(())
    assert scalar.size() == scalar.cosize() == 1 and scalar(0) == scalar(()) == 0 and str(scalar) == "():()" and scalar.rank() == 0
    assert parse("[]") == parse(str(scalar)) == scalar and coalesce(scalar) == Layout(1, 0)


def test_expressions_are_checked_where_they_are_numbers():
    layout = Layout((4, 8), (8, 1))
    with pytest.raises(LayoutError):
        layout.expression(4, np.arange(8))
    with pytest.raises(ArgumentError):
        layout.expression(np.ones(3), 0)
    assert list(layout.expression(2, np.arange(3))) == [16, 17, 18]


@pytest.mark.parametrize("swizzle", [Swizzle(1, 0, 3), Swizzle(2, 3, 2), Swizzle(3, 3, 3), Swizzle(3, 4, 3), Swizzle(2, 2, -2)], ids=str)
def test_storage_and_layouts_swizzle_equally(swizzle):
    """The address that kernels compute is that of the layout, in every bit."""
    address = Var("address", 0, 2047)
    for offset in (0, 1, 8):
        text = compiled(swizzle.expression(address + offset))
        assert [int(text({"address": one})) for one in range(2000)] == [swizzle(one + offset) for one in range(2000)]


@pytest.mark.parametrize("swizzle", [None, Swizzle(2, 1, 3)], ids=str)
@pytest.mark.parametrize("layout", [ColMajor, RowMajor(ld=40), Layout(((4, 2), (2, 8)), ((2, 64), (1, 8)))], ids=str)
def test_one_address_for_expressions_integers_and_arrays(layout, swizzle):
    storage = Tensor("a", (Const(8), Const(16)), float16, SH, layout, swizzle=swizzle).storage()
    row, column = Var("row", 0, 7), Var("column", 0, 15)
    text, table = compiled(storage.address([row, column])), storage.address(np.ogrid[:8, :16])
    assert table.shape == (8, 16) and len(set(table.ravel().tolist())) == 128 and table.max() < storage.extent.value
    for i, j in np.ndindex(8, 16):
        want = layout(i, j) if isinstance(layout, Layout) else i + 8 * j if layout == ColMajor else 40 * i + j
        want = want if swizzle is None else swizzle(want)
        assert (
            want == table[i, j] == storage.address((i, j)) == text({"row": i, "column": j}) == storage.address([Const(i), Const(j)]).value
        )


def test_steps_known_at_run_time_only_are_evaluated_first():
    storage = Tensor("a", (Const(8), Const(16)), float16, GL, RowMajor(ld=sym("ld"))).storage()
    assert str(storage.address([Const(2), Const(3)])) == "ld * 2 + 3"
    with pytest.raises(ArgumentError, match="known only at run time"):
        storage.address([np.arange(8), 3])
    assert storage.evaluated({"ld": 20}).address([np.arange(8), 3]).tolist() == [20 * row + 3 for row in range(8)]


# ------------------------------------------------------------------------------------------------------ leaves known at run time only


def test_layouts_with_leaves_of_run_time():
    rows, ld = sym("M"), sym("ld")
    layout = Layout((rows, (2, 4)), (1, (ld, ld * 2)))
    assert str(layout) == "(M,(2,4)):(1,(ld,ld * 2))" and not layout.static and layout[1].size() == 8
    assert layout.size() == rows * 8 and layout.cosize().evaluate({"M": 10, "ld": 16}) == 10 + 16 + 3 * 32
    known = layout.evaluated({"M": 10, "ld": 16})
    assert known == Layout((10, (2, 4)), (1, (16, 32))) and known.evaluated({}) is known
    x, y = Var("x", 0, 9), Var("y", 0, 7)
    at = compiled(layout.address(x, y))
    for i, j in np.ndindex(10, 8):
        assert at({"x": i, "y": j, "M": 10, "ld": 16}) == known(i, j) == known.address(i, j)
    assert Layout((Const(4), 8), (Const(8), 1)) == Layout((4, 8), (8, 1))


@pytest.mark.parametrize(
    "call",
    [
        lambda one: one(0, 0),
        lambda one: one.expression(0, 0),
        lambda one: one.coordinate(0),
        lambda one: one.offsets(),
        lambda one: one.is_injective(),
        lambda one: one.is_bijective(),
        lambda one: one.swizzled(Swizzle(1, 0, 1)).offsets(),
        lambda one: coalesce(one),
        lambda one: fl.filter(one),
        lambda one: composition(one, 4),
        lambda one: composition(Layout(64), one),
        lambda one: complement(one, 64),
        lambda one: logical_divide(one, 4),
        lambda one: logical_product(one, 4),
        lambda one: logical_product(Layout(4), one),
        lambda one: blocked_product(one, one),
        lambda one: left_inverse(one),
        lambda one: right_inverse(one),
        lambda one: max_common_vector(one, one),
        lambda one: Layout(((sym("M"), 2), 2)).digits,
    ],
)
def test_what_needs_integers_refuses_other_leaves(call):
    """All operations but text, size, cosize, digits and address check this first."""
    for layout in (Layout((sym("M"), 4), (4, 1)), Layout((8, 4), (sym("ld"), 1))):
        with pytest.raises(LayoutError, match="known only at run time"):
            call(layout)


def test_digits_of_any_number():
    for rng in draws("reading", 600):
        parts, reached, weight = [], 1, 1
        for _ in range(rng.randint(0, 4)):
            stride, size = reached * rng.choice((1, 1, 2, 3)), rng.choice((1, 2, 3, 4))
            parts.append((stride, size, weight))
            reached, weight = stride * size, weight * size
        rng.shuffle(parts)
        layout = fl.reading(parts)
        for x in (*range(2 * reached), 10**6 + rng.randint(0, 99)):
            assert fl.sum_of_digits(x, layout.digits) == sum(x // stride % size * value for stride, size, value in parts)
        if reached > 2:
            with pytest.raises(LayoutError, match="digits overlap"):
                fl.reading([*parts, (reached - 1, 2, 1)])


# --------------------------------------------------------------------------------------------------------------------- tiles of views


def numbers(modes, count):
    """The coordinates of the digits of modes from one position on, in order."""
    return [Dim(modes).at(index).value for index in range(count)]


def test_a_cut_is_a_division():
    """Tile `j` at index `i` is the dimension at `tile(i) + complement(j)`; indices past the end of a dimension overhang it."""
    accepted = strided = overhang = 0
    for rng in draws("cut", 3000):
        sizes = [rng.choice((2, 3, 4, 6, 8)) for _ in range(rng.choice((1, 1, 2, 3)))]
        whole = len(sizes) == 1 and rng.random() < 0.5
        strides = [1] if whole else [rng.choice((1, 2)) * 16**position for position in range(len(sizes))]
        modes = tuple(Mode(size, stride) for size, stride in zip(sizes, strides, strict=True))
        dim = Dim(modes, None if whole else Const(7), () if whole else (Fixed(2, 7**9, False, 1),))
        size = rng.choice((1, 2, 3, 4, 6, 8, 12))
        repeat = None if rng.random() < 0.6 else size * rng.choice((1, 2, 3, 4))
        total = math.prod(sizes)
        requested = size if repeat is None else chunks(size, repeat, total)
        if requested is None or (result := cut(dim, requested, Const(1000))) is None:
            continue
        accepted, strided = accepted + 1, strided + (repeat is not None)
        tile = Layout(size) if repeat is None else Layout((size, total // repeat), (1, repeat))
        padded = -(-total // tile.size()) * tile.size() if repeat is None else total
        overhang += padded > total
        assert result.bound == (Const(1000) if padded > total else dim.bound)
        rest = complement(tile, padded)
        inner, outer = numbers(result.inner, tile.size()), numbers(result.outer, rest.size())
        along = Dim(modes if padded == total else (Mode(padded, 1),))
        for i, j in np.ndindex(tile.size(), rest.size()):
            assert inner[i] + outer[j] == along.at(tile(i) + rest(j)).value
    assert accepted > 300 * SCALE and strided > 50 * SCALE and overhang > 20 * SCALE


def test_a_cut_of_a_size_of_run_time():
    rows = sym("M", multiple_of=4)
    assert cut(Dim((Mode(rows, 1),)), 4, rows) == Cut((Mode(4, 1),), (Mode(rows // 4, 4),), None)
    assert cut(Dim((Mode(rows, 1),)), 8, rows) == Cut((Mode(8, 1),), (Mode((rows + 7) // 8, 8),), rows)
    strided = Dim((Mode(2, 1), Mode(rows, 16)), None, (Fixed(8, 2, True, Var("x", 0, 7)),))
    assert cut(strided, 8, rows) == Cut((Mode(2, 1), Mode(4, 16)), (Mode(rows // 4, 64),), None)
    assert cut(strided, 16, rows) is None and chunks(2, 4, constant(strided.size)) is None


@pytest.mark.parametrize(("product", "inner"), [(blocked_product, True), (raked_product, False)])
def test_matrices_of_blocks(product, inner):
    """Element (i, j) of repetition (p, q) is element (i, j) of the block, moved by the offset that the tiler has at (p, q)."""
    block, repeat = Layout((2, 4), (4, 1)), Layout((3, 2), (2, 1))
    blocks = product(block, repeat)
    for i, j, p, q in itertools.product(range(2), range(4), range(3), range(2)):
        place = (i + 2 * p, j + 4 * q) if inner else (p + 3 * i, q + 2 * j)
        assert blocks(place) == block((i, j)) + 8 * repeat((p, q))
    with pytest.raises(LayoutError, match="ranks 2 and 1 differ(.|\n)*equal ranks"):
        product(block, Layout(4))
    assert product(Layout(4), Layout(2)).size() == 8


def test_products_of_modes():
    rows = Layout((2, 4), (1, 64))
    blocks, rest = zipped_product(rows, (3, 1))
    assert list(blocks) == list(rows)
    assert sorted(blocks(i) + rest(j) for i in range(8) for j in range(3)) == [64 * k + i for k in range(4) for i in range(6)]
    assert list(tiled_product(rows, (3, 1))) == [blocks, *rest] and list(flat_product(rows, (3, 1))) == [*blocks, *rest]
    with pytest.raises(LayoutError, match="copies overlap"):
        zipped_product(rows, (3, 2))
    with pytest.raises(LayoutError):
        logical_product(rows, (1, 1, 1))
