"""Fill indices, stages and conditions at assumed loop lengths, compared with sizes that have these lengths."""

import itertools

import pytest

from fireiron import *
from fireiron.check.races.lengths import at_lengths
from fireiron.values.expr import Var, as_expr, floordiv, less, mod

K, M = Var("K", 0, 1 << 20, 1, True), Var("M", 0, 1 << 20, 1, True)
TILE_LENGTH, OTHER = Var("length 0", 0, 1 << 20), Var("length 1", 0, 1 << 20)
ITERATION = Var("turn", 0, 99)
STEPS = floordiv(K + 31, as_expr(32))


@pytest.mark.parametrize("extent", [K, STEPS, K + 1], ids=str)
@pytest.mark.parametrize(
    "make",
    [
        lambda extent: extent,
        lambda extent: extent + 3,
        lambda extent: extent - 1,
        lambda extent: extent * 4 + 2,
        lambda extent: extent + ITERATION,
        lambda extent: ITERATION * 7 + extent - 2,
        lambda extent: mod(extent, as_expr(3)),
        lambda extent: mod(extent + 1, as_expr(3)),
        lambda extent: mod(extent + 5, as_expr(4)),
        lambda extent: mod(extent + ITERATION, as_expr(3)),
        lambda extent: mod(extent + ITERATION * 3, as_expr(4)),
        lambda extent: less(ITERATION, extent),
        lambda extent: less(ITERATION, extent + 1),
        lambda extent: ITERATION * 3 + 1,
        lambda extent: mod(ITERATION, as_expr(3)),
    ],
)
def test_a_value_at_an_assumed_length(make, extent):
    value = make(extent)
    result = at_lengths(value, {extent: TILE_LENGTH})
    assert K not in result.variables()
    for size, iteration in itertools.product((0, 1, 2, 5, 31, 32, 33, 100), (0, 1, 2, 7)):
        values = {"K": size, "turn": iteration}
        assumed = {"length 0": extent.evaluate(values), "turn": iteration}
        assert result.evaluate(assumed) == value.evaluate(values), (value, result, size, iteration)


@pytest.mark.parametrize(
    "value", [K + M, K * 3 + M * 2 + 1, mod(K + 1, as_expr(3)), mod(M + ITERATION, as_expr(4)), less(ITERATION, M), K - M], ids=str
)
def test_several_lengths(value):
    result = at_lengths(value, {K: TILE_LENGTH, M: OTHER})
    assert result.variables().isdisjoint({K, M})
    for k, m, iteration in itertools.product((0, 1, 3, 8), (0, 2, 5), (0, 4)):
        assumed = {"length 0": k, "length 1": m, "turn": iteration}
        assert result.evaluate(assumed) == value.evaluate({"K": k, "M": m, "turn": iteration})


def test_a_length_plus_or_minus_one():
    """An expression with one more iteration is expressed by the length too."""
    result = at_lengths(STEPS - 1 + 1, {STEPS - 1: TILE_LENGTH})
    assert result == TILE_LENGTH + 1
    assert at_lengths(as_expr(5), {K: TILE_LENGTH}) == as_expr(5) and at_lengths(ITERATION, {}) == ITERATION


def test_unknown_values_keep_their_size():
    """A user of the value then reports it as undecided."""
    value = mod(K * 2 + 5, as_expr(4))
    assert at_lengths(value, {K * 2: TILE_LENGTH}) == value
    assert at_lengths(K * 6 + 1, {K * 2: TILE_LENGTH}) == TILE_LENGTH * 3 + 1


@pytest.mark.parametrize(
    ("extent", "value", "expected"),
    [
        (mod(K, as_expr(5)), mod(mod(K, as_expr(5)) + 2, as_expr(5)), mod(TILE_LENGTH + 2, as_expr(5))),
        (mod(K, as_expr(5)), mod(mod(K, as_expr(5)) + 4, as_expr(5)), mod(TILE_LENGTH + 4, as_expr(5))),
        (mod(K, as_expr(6)) + 1, mod(K, as_expr(2)), mod(TILE_LENGTH + 1, as_expr(2))),
        (mod(K, as_expr(6)) + 1, mod(K, as_expr(3)), mod(TILE_LENGTH + 2, as_expr(3))),
    ],
    ids=str,
)
def test_stages_of_a_length_that_is_a_remainder(extent, value, expected):
    assert at_lengths(value, {extent: TILE_LENGTH}) == expected
    for size in range(40):
        assert expected.evaluate({"length 0": extent.evaluate({"K": size})}) == value.evaluate({"K": size})


OUTER = Var("outer", 0, 7)


@pytest.mark.parametrize("extent", [K, 8 - mod(K, as_expr(4)) * 2, mod(K, as_expr(4)) * 3 + 1], ids=str)
@pytest.mark.parametrize("stages", [None, 2, 3, 4])
@pytest.mark.parametrize("distance", [0, 1])
def test_fills_of_an_inner_loop_at_an_assumed_length(extent, stages, distance):
    """The fills of all earlier iterations of an outer loop are the length times its iteration."""
    fill = OUTER * extent + ITERATION + distance
    value = fill if stages is None else mod(fill, as_expr(stages))
    result = at_lengths(value, {extent: TILE_LENGTH})
    if K in result.variables():
        assert stages is not None  # a coefficient vanished or is not a multiple: the user of the value reports it as undecided
        return
    for size, outer, iteration in itertools.product(range(9), (0, 1, 5), (0, 1, 4)):
        values = {"K": size, "outer": outer, "turn": iteration}
        assumed = {"length 0": extent.evaluate(values), "outer": outer, "turn": iteration}
        assert result.evaluate(assumed) == value.evaluate(values), (value, result, values)
