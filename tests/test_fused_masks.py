"""Masks of a fused definition: fully masked tiles are skipped, fully visible tiles run without a mask."""

import re

import numpy as np
import pytest
from faults import faults

from fireiron import *
from fireiron.check import safety
from fireiron.ir import execs
from fireiron.specs.formula import Number, formula_of
from fireiron.stepping.masks import AtLeast, linear_conjuncts, may_fail, visible_shares
from fireiron.stepping.out_of_bounds import OutOfBoundsValues
from fireiron.strategies import attention
from fireiron.values.expr import FALSE, TRUE

VALUES = {"bm": 64, "bn": 32, "wm": 16, "stages": 2}


def text_of(m, n, **options):
    definition = attention.definition(**options)
    return attention.by_rows(definition, q_in_registers=True).with_(**VALUES)(attention.spec(m, n, 64, fused=definition)).cuda("sm_80")


def loop_of(text):
    return re.search(r"for \(int n = 0; n < (.*); \+\+n\)", text)[1]


def test_tiles_above_the_diagonal_are_skipped():
    assert loop_of(text_of(256, 256)) == "8"
    text = text_of(256, 256, causal=True)
    assert loop_of(text) == "block_m * 2 + 2" and "block_m = 3 - blockIdx.x" in text
    assert "if (block_m * 64 + warp * 16 < n * 32 + 31) {" in text
    assert loop_of(text_of(256, 128, causal=True)) == "min(4, block_m * 2 + 2)"


def test_tiles_outside_the_window_are_skipped():
    text = text_of(256, 256, window=40)
    assert "n_hidden = blockIdx.x * 64 - min(39, blockIdx.x * 64)" in text
    assert loop_of(text) == "block * 2 - n_hidden / 32 + 2"


def test_interior_tiles_have_no_bounds_mask():
    """Of 70 keys in blocks of 32 the third block overhangs; of 64 keys none does."""
    assert re.search(r"if \(n \* 32 \+ 32 > 70\) \{", text_of(64, 70))
    assert "inside" not in text_of(64, 64)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("score", "masked"),
    [
        ("exp(s[m,n] * scale - mx[m])", ["part"]),
        ("exp(s[m,n] * bias - mx[m])", ["part", "sum"]),  # a negative factor makes infinity of -inf
        ("exp(s[m,n] * scale - exp(X[m,n]))", ["part", "sum"]),
        ("exp(abs(s[m,n]))", ["part", "sum"]),
        ("exp(s[m,n]) + 1", ["part", "sum"]),
        ("max(s[m,n], 0)", ["part"]),
    ],
)
def test_out_of_bounds_elements_are_masked_if_they_matter(score, masked):
    """A maximum uses -inf for out-of-bounds elements. A sum needs no mask if their terms are 0."""
    definition = Fused(
        name="x", dims="m n", loop="n", operands={"X": "m n", "scale": "", "bias": "", "y": "m"}, positive="scale",
        init={"top": "mx[m] = -1000", "zero": "t[m] = 0"},
        body={
            "s": "s[m,n] = X[m,n]", "part": "part[m] = max(n, s[m,n])", "keep": "mx[m] = max(mx[m], part[m])",
            "e": f"e[m,n] = {score}", "sum": "t[m] += sum(n, e[m,n])",
        },
        final={"y": "y[m] = t[m] * scale + mx[m] * bias"},
    )  # fmt: skip
    kernel = chain(definition).load("X", RF, Move.done()).done()(definition(m=16, n=40)).program("sm_80").walked
    titles = {str(one.spec) for one, _ in execs(kernel.body)}
    assert [name for name in ("part", "sum") if any(one.startswith(f"{name.title()}_inside") for one in titles)] == masked


def test_out_of_bounds_value_holds_for_one_dimension():
    """`-inf` past the end of n in rows of s determines nothing about its columns."""
    definition = Fused(
        name="x", dims="m n", loop="n", operands={"X": "m n", "y": "m"}, init={"zero": "t[m] = 0"},
        body={"s": "s[m,n] = X[m,n]", "total": "t[m] += sum(n, s[m,n])"}, final={"y": "y[m] = t[m]"},
    )  # fmt: skip
    out_of_bounds = OutOfBoundsValues(definition.fused_definition, "n")
    row, column = (formula_of(f"a[m,n] = {text}").value for text in ("s[m,n]", "s[n,m]"))
    out_of_bounds.assume(row, Number(-np.inf))
    assert out_of_bounds.is_number(row, -np.inf) and not out_of_bounds.is_number(column, -np.inf) and not out_of_bounds.is_number(row, 0)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ("index_n[n] <= index_m[m]", AtLeast((("index_m", 1), ("index_n", -1)), 0)),
        ("index_m[m] < index_n[n] + 5", AtLeast((("index_m", -1), ("index_n", 1)), 4)),
        ("index_n[n] - 3 > -index_m[m]", AtLeast((("index_m", 1), ("index_n", 1)), -4)),
        ("index_n[n] * 2 < index_m[m]", AtLeast((("index_m", 1), ("index_n", -2)), -1)),
        ("4 * (index_n[n] - 1) <= -index_m[m]", AtLeast((("index_m", -1), ("index_n", -4)), 4)),
        ("index_n[n] * 0.5 < index_m[m]", None),
        ("index_n[n] * index_m[m] < 8", None),
        ("index_n[n] == index_m[m]", None),
        ("s[m,n] < index_m[m]", None),
        ("index_n[n] < 1.5", None),
    ],
)
def test_masked_tile_conditions(condition, expected):
    value = formula_of(f"s[m,n] = where({condition}, s[m,n], 0)").value
    assert list(linear_conjuncts(value.arguments[0])) == [expected]


def test_may_fail_equals_enumeration():
    """Compare with an enumeration of all elements of a tile."""
    views = {f"index_{dim}": view for dim, view in _tiles().items()}
    for text in ("index_n[n] <= index_m[m]", "index_n[n] < index_m[m] + 3", "index_n[n] > 7 and index_m[m] < 32", "s[m,n] < 1"):
        condition = formula_of(f"s[m,n] = where({text}, s[m,n], 0)").value.arguments[0]
        condition_fails = may_fail(condition, views)
        for block_m, block_n in np.ndindex(4, 8):
            m, n = np.arange(8)[:, None] + 8 * block_m, np.arange(4) + 4 * block_n
            holds = {"index_n[n] <= index_m[m]": n <= m, "index_n[n] < index_m[m] + 3": n < m + 3}.get(text, (n > 7) & (m < 32))
            may = bool(condition_fails.evaluate({"block_m": block_m, "block_n": block_n}))
            assert may == (text == "s[m,n] < 1" or not holds.all()), (text, block_m, block_n)


def _tiles():
    from fireiron.values.expr import Var
    from fireiron.values.machine import COORD, int32
    from fireiron.values.tensor import ColMajor, Dim, Fixed, Mode, Tensor, whole_view

    counts = {}
    for dim, tile, count in (("m", 8, 4), ("n", 4, 8)):
        view = whole_view(Tensor(f"index_{dim}", (32,), int32, COORD, ColMajor))
        place = Fixed(count, tile, False, Var(f"block_{dim}", 0, count - 1))
        counts[dim] = view.with_dims({0: Dim((Mode(tile, 1),), None, (place,))})
    return counts


def chain(definition, **split):
    """Rows of a block, keys in steps of 16."""
    return definition.tile(m=16).to(Block).split(n=16, **split)


def masked(**steps):
    each = {"s": "s[m,n] = X[m,n] * 2", "mask": "s[m,n] = where(n <= m, s[m,n], 0)", "sum": "y[m] += sum(n, s[m,n])", **steps}
    return Fused(
        name="masked", dims="m n", loop="n", operands={"X": "m n", "Y": "m"},
        init={"zero": "y[m] = 0"}, body=each, final={"store": "Y[m] = y[m]"},
    )  # fmt: skip


def test_masked_triangle_sum():
    """Not attention: row sums of a triangle."""
    definition = masked()
    strategy = chain(definition).skip_masked_tiles().load("X", RF, Move.tile(1, 16).to(Warp).tile(1, 1).to(Lane).done()).done()
    x = np.arange(40 * 40).reshape(40, 40).astype(np.float16) % 7
    got = strategy(definition(m=40, n=40, types={"Y": float32})).compile("sm_80")(x)
    np.testing.assert_array_equal(got, 2 * np.tril(x).sum(1))


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("steps", "message"),
    [
        ({"mask": "s[m,n] = s[m,n] + 1"}, "no step masks elements by a condition that bounds n"),
        ({"mask": "s[m,n] = where(n == m, s[m,n], 0)"}, "no step masks elements by a condition that bounds n"),
        ({"mask": "s[m,n] = where(n <= m, s[m,n], 1)"}, "an iteration in which mask masks all elements changes y"),
        ({"more": "y[m] = y[m] + 1"}, "an iteration in which mask masks all elements changes y"),
    ],
)
def test_skip_masked_tiles_refusals(steps, message):
    definition = masked(**steps)
    with pytest.raises(DecompositionError, match=message):
        chain(definition).skip_masked_tiles().done()(definition(m=32, n=32)).cuda("sm_80")


def test_gemm_has_no_mask():
    with pytest.raises(DecompositionError, match="skip_masked_tiles needs a mask"):
        MatMul.tile(16, 16).to(Block).split(8).skip_masked_tiles().done()(MatMul(32, 32, 32)(GL, GL, GL)(Kernel)).cuda("sm_80")


@pytest.mark.parametrize("size", [Layout((4, 2), (1, 8)), Layout(16, 2)], ids=str)
def test_skipped_iterations_are_contiguous(size):
    definition = masked()
    with pytest.raises(DecompositionError, match="skip_masked_tiles requires contiguous iterations") as refused:
        definition.tile(m=16).to(Block).split(n=size).skip_masked_tiles().done()(definition(m=32, n=32)).cuda("sm_80")
    assert refused.value.legal == "split(n=64).skip_masked_tiles()"


def test_condition_without_a_comparison_is_undecided():
    views = {f"index_{dim}": view for dim, view in _tiles().items()}
    for text in ("x[m]", "1", "x[m] < 3 or index_n[n] < 32"):
        assert may_fail(formula_of(f"s[m,n] = where({text}, s[m,n], 0)").value.arguments[0], views) == (FALSE if " or " in text else TRUE)


def test_constant_conditions():
    views = {f"index_{dim}": view for dim, view in _tiles().items()}
    for text, expected in (("index_n[n] < 32", FALSE), ("index_n[n] < 0", TRUE)):
        assert may_fail(formula_of(f"s[m,n] = where({text}, s[m,n], 0)").value.arguments[0], views) == expected


@pytest.mark.parametrize("text", ["index_n[n] < index_m[m]", "index_n[n] < 32", "index_n[n] < 32 and index_m[m] < 32"])
def test_condition_on_unknown_coordinates_may_fail(text):
    """As in a part of a definition whose operands lack the dimension."""
    views = {"index_m": _tiles()["m"]}
    assert may_fail(formula_of(f"s[m,n] = where({text}, s[m,n], 0)").value.arguments[0], views) == TRUE


def test_disjunction_may_fail_if_both_conditions_may():
    """If each condition alone may fail, both may fail together. If one holds in the whole tile, the disjunction holds."""
    views = {f"index_{dim}": view for dim, view in _tiles().items()}
    condition_fails = may_fail(formula_of("s[m,n] = where(index_n[n] < 8 or index_m[m] < 16, s[m,n], 0)").value.arguments[0], views)
    for block_m, block_n in np.ndindex(4, 8):
        may = bool(condition_fails.evaluate({"block_m": block_m, "block_n": block_n}))
        assert may == (block_n >= 2 and block_m >= 2)


@pytest.mark.parametrize("lengths", [(130, 130), (sym("m"), sym("n"))], ids=["known", "symbols"])
def test_race_check_finds_faults_of_block_dependent_loops(lengths):
    """Barriers, waits and commits of a loop whose trip count and guards depend on the block index."""
    definition = attention.definition(causal=True)
    kernel = attention.by_rows(definition).with_(**VALUES)(attention.spec(*lengths, 64, fused=definition)).program("sm_80").ir
    assert not safety(kernel)
    planted = list(faults(kernel))
    assert len(planted) > 8
    for fault, faulty in planted:
        assert safety(faulty) or fault.startswith(("raised", "dropped: Commit")), fault


# ---------------------------------------------------------------------------------------------- iterations without effect


def log_sum_exp(hidden, scaled="s[m,n]"):
    """A running maximum and a sum of exponentials of the visible elements."""
    return Fused(
        name="log_sum_exp", dims="m n", loop="n", operands={"X": "m n", "scale": "", "y": "m"}, positive="scale",
        init={"top": "top[m] = -inf", "zero": "total[m] = 0"},
        body={
            "s": "s[m,n] = X[m,n] * scale", "mask": f"s[m,n] = where(n <= m, s[m,n], {hidden})", "part": "part[m] = max(n, s[m,n])",
            "new": "new[m] = max(top[m], part[m] * (scale * 2))", "exp": f"e[m,n] = exp({scaled} * (scale * 2) - new[m])",
            "sum": "sums[m] = sum(n, e[m,n])", "total": "total[m] = total[m] * exp(top[m] - new[m]) + sums[m]", "keep": "top[m] = new[m]",
        },
        final={"y": "y[m] = log(total[m]) + top[m]"},
    )  # fmt: skip


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("hidden", "scaled", "message"),
    [
        ("-1000", "s[m,n]", r"changes top\n  got     'step keep: top\[m\] = max\(top\[m\], -1000"),
        ("0", "s[m,n]", r"changes top\n  got     'step keep: top\[m\] = max\(top\[m\], 0"),
        ("-inf", "X[m,n]", r"changes total\n  got     'step total: total\[m\] = total\[m\] \+ sum\(n, exp\(X\[m,n\]"),
        ("-inf", "abs(s[m,n])", r"changes total\n  got     'step total: total\[m\] = total\[m\] \+ sum\(n, inf\)"),
    ],
)
def test_skipped_iterations_are_proved_to_have_no_effect(hidden, scaled, message):
    """For all array contents: -1000 vanishes next to generated scores, but not next to smaller ones."""
    good = log_sum_exp("-inf")
    assert "n_hidden" not in chain(good).skip_masked_tiles().load("X", RF, Move.done()).done()(good(m=32, n=32)).cuda("sm_80")
    definition = log_sum_exp(hidden, scaled)
    with pytest.raises(DecompositionError, match=message):
        _ = chain(definition).skip_masked_tiles().done()(definition(m=32, n=32)).cuda("sm_80")


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("hidden", "value", "changes"),
    [
        ("0", "sum(n, s[m,n] * X[m,n])", False),
        ("0", "sum(n, s[m,n] * exp(X[m,n]))", True),
        ("-inf", "sum(n, exp(s[m,n] * scale))", False),
        ("-inf", "sum(n, exp(s[m,n] * X[m,n]))", True),
        ("-inf", "sum(n, exp(s[m,n] + abs(X[m,n])))", False),
        ("-inf", "sum(n, exp(s[m,n] + exp(X[m,n])))", True),
        ("-inf", "sum(n, where(X[m,n] < s[m,n], 1, 0))", False),
        ("-inf", "sum(n, where(s[m,n] < X[m,n], 1, 0))", True),
    ],
)
def test_effect_of_a_fully_masked_iteration(hidden, value, changes):
    """Undecided: zero times a possible infinity, infinity times a possible zero or negative value, or plus a possible infinity."""
    definition = Fused(
        name="x", dims="m n", loop="n", operands={"X": "m n", "scale": "", "y": "m"}, positive="scale", init={"zero": "t[m] = 0"},
        body={"mask": f"s[m,n] = where(n <= m, X[m,n], {hidden})", "total": f"t[m] += {value}"}, final={"y": "y[m] = t[m] * scale"},
    )  # fmt: skip
    strategy = chain(definition).skip_masked_tiles().load("X", RF, Move.done()).done()(definition(m=32, n=32))
    if changes:
        with pytest.raises(DecompositionError, match="masks all elements changes t"):
            _ = strategy.program("sm_80").ir
    else:
        assert strategy.program("sm_80").ir


def test_reasons_why_a_condition_skips_no_iterations():
    for mask, why in (("n == m", "n == m is not an inequality"), ("n + n <= m", "<= m has n 2 times")):
        definition = masked(mask=f"s[m,n] = where({mask}, s[m,n], 0)")
        with pytest.raises(DecompositionError) as caught:
            _ = chain(definition).skip_masked_tiles().done()(definition(m=32, n=32)).cuda("sm_80")
        assert why in str(caught.value)


def test_iterations_are_counted():
    """With four blocks of 64 rows and keys, the first block has one iteration, the second two, and so on."""
    from fireiron.cost import predict
    from fireiron.draw.timeline import timeline
    from fireiron.inspect.explain import explain, text

    definition = attention.definition(causal=True)
    strategies = [
        attention.by_rows(candidate).with_(bm=64, bn=64, wm=16, stages=2)(attention.spec(256, 256, 64, fused=candidate))
        for candidate in (definition, attention.definition())
    ]
    masked_one, whole = (predict(one.program("sm_90")) for one in strategies)
    assert masked_one.instructions["mma"] == whole.instructions["mma"] * 10 / 16
    assert 0.5 < masked_one.flops / whole.flops < 0.65 and 0.45 < masked_one.useful / whole.useful < 0.55
    message = "loop over n: a block executes 1 to 4 of 4 iterations, 2.5 on average (62%)"
    assert message in str(masked_one) and message in text(explain(strategies[0], "sm_90")) and "turns" not in str(whole)
    assert "Those of block 0" in re.sub(r"</text>\s*<text[^>]*>", " ", timeline(strategies[0].program("sm_90")).svg)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("condition", "shown"),
    [
        ("n <= m", [("mn", 10 / 16)]),
        ("n <= m and m <= n + 1", [("mn", 7 / 16)]),
        ("n < m", [("mn", 6 / 16)]),
        ("n + 1 < size(n)", [("n", 3 / 4)]),
        ("n < 8", [("n", 1.0)]),
        ("8 <= n", [("n", 0.0)]),
        ("size(m) <= size(n)", []),
        ("X[m,n] < 0", []),
        ("n <= m and X[m,n] < 0", [("mn", 10 / 16)]),
    ],
)
def test_visible_fraction_of_a_mask(condition, shown):
    """Of four rows and columns, as far as coordinates and sizes determine it; undecided for an unknown dimension."""
    definition = masked(mask=f"s[m,n] = where({condition}, s[m,n], 0)").fused_definition
    assert visible_shares(definition, {"m": 4, "n": 4}) == [(frozenset(dims), share) for dims, share in shown]
    assert visible_shares(definition, {"m": 4}) == []


def test_visible_fraction_of_a_large_mask():
    """A sample of the coordinates estimates the fraction."""
    (fraction,) = visible_shares(masked().fused_definition, {"m": 1 << 20, "n": 1 << 20})
    assert fraction[1] == pytest.approx(0.5, abs=1e-2)


@pytest.mark.parametrize("memory", [RF, SH])
@pytest.mark.parametrize("by", ["sum", "max"])
def test_a_placed_temporary_past_the_end(memory, by):
    """A temporary that an earlier step computes is not zero past the end of a loop dimension, wherever it is."""
    join = {"sum": "t[m] + c[m]", "max": "max(t[m], c[m])"}[by]
    definition = Fused(
        name="exponentials", dims="m n", loop="n", operands={"X": "m n", "y": "m"}, init={"z": f"t[m] = {'0' if by == 'sum' else '-inf'}"},
        body={"p": "p[m,n] = exp(X[m,n])", "c": f"c[m] = {by}(n, p[m,n])", "a": f"t[m] = {join}"}, final={"o": "y[m] = t[m]"},
    )  # fmt: skip
    chain = definition.tile(m=4).to(Block).split(n=4).set_memory("p", memory).load("X", RF, Move.tile(1, 1).to(Thread).done())
    x = np.random.default_rng(0).standard_normal((5, 6)).astype(np.float32) - 3
    y = chain.done()(definition(m=5, n=6, dtype=float32)).compile("sm_80")(x)
    wanted = np.exp(x.astype(np.float64))
    np.testing.assert_allclose(y, wanted.sum(1) if by == "sum" else wanted.max(1), rtol=1e-5)
