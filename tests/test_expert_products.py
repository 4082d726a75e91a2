"""Products of a mixture of experts (`strategies/experts.py`): results, text, and tables that are not legal."""

import functools
import random

import ml_dtypes
import numpy as np
import pytest

from fireiron import *
from fireiron.check import safety
from fireiron.errors import FireironError
from fireiron.gpu.toolchain import compile_cuda, toolchains
from fireiron.sim import simulate
from fireiron.strategies import experts as products
from fireiron.strategies import experts_rows

EIGHT = ml_dtypes.float8_e4m3fn
SIZES = {"t": 3, "n": 128, "k": 192, "e": 3}

# For each form: values of tunables, the name of its definition, rows of a tile.
FORMS = {
    "strategy": ({"bm": 64, "bn": 128, "bk": 64, "stages": 3}, "product", 64),
    "gated": ({"bm": 64, "bn": 64, "stages": 3}, "gated_product", 64),
    "held": ({"bm": 64, "bn": 64, "stages": 3}, "gated_product", 64),
    "kept": ({"bm": 64, "bn": 64, "stages": 3}, "kept_product", 64),
    "gathered": ({"bm": 64, "bn": 128, "stages": 3}, "gathered_product", 64),
    "gathered_gated": ({"bm": 64, "bn": 64, "stages": 3}, "gathered_gated_product", 64),
    "scaled": ({"bm": 64, "bn": 128, "bk": 64, "stages": 3}, "scaled_product", 64),
    "few": ({"bm": 16, "bn": 64, "bk": 128, "stages": 4}, "product", 16),
    "few_gated": ({"bm": 8, "bn": 64, "bk": 64, "stages": 4}, "gated_product", 8),
    "slopes": ({"bm": 64, "bn": 64, "bk": 64, "stages": 3}, "slope_product", 64),
    "ampere": ({"bm": 32, "wm": 32}, "product", 32),
    "ampere_gated": ({"bm": 16, "wm": 16}, "gated_product", 16),
}


@functools.cache
def program(form, target="sm_90a"):
    values, definition, rows = FORMS[form]
    more = {"r": 40} if form.startswith("gathered") else {}
    more |= {} if form == "scaled" else {"dtype": float16}
    return getattr(products, form).with_(**values)(getattr(products, definition)(m=rows, **SIZES, **more)).program(target)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def problem(form):
    """Inputs and results. The last tile has no rows, and the table of the second names no expert."""
    numbers = np.random.default_rng(0)
    spec = program(form).spec
    arrays = {"expert": np.array([2, 0, 1], np.int32), "steps": np.array([2, 1 << 20, 0], np.int32)}
    for name, view in spec.operands.items():
        shape = tuple(int(size.high) for size in view.tensor.array.shape)
        if name in ("A", "W", "G", "U", "P", "Q"):
            arrays[name] = (numbers.integers(-2, 3, shape) * (0.125 if name == "G" else 1)).astype(
                EIGHT if form == "scaled" else np.float16
            )
        elif name in ("SA", "SW"):
            arrays[name] = numbers.random(shape).astype(np.float32)
        elif name == "rows":
            arrays[name] = numbers.integers(0, 40, shape).astype(np.int32)
    if form == "kept":
        del arrays["P"], arrays["Q"]
    left = arrays["A"][arrays["rows"]] if "rows" in arrays else arrays["A"]
    live = (arrays["steps"] > 0)[:, None, None]

    def multiplied(name):
        return np.einsum("tmk,tnk->tmn", left.astype(float), arrays[name].astype(float)[arrays["expert"]]) * live

    if "G" in arrays:
        gate, up = multiplied("G"), multiplied("U")
        results = {"H": gate * sigmoid(gate) * up} | ({"P": gate, "Q": up} if form == "kept" else {})
    elif form == "slopes":
        acc, gate, up = multiplied("W"), arrays["P"].astype(float), arrays["Q"].astype(float)
        share = sigmoid(gate)
        results = {"dQ": acc * gate * share, "dP": acc * up * share * (1 + gate * (1 - share))}
    else:
        results = {"D": multiplied("W")}
    if form == "scaled":
        results["D"] = results["D"] * arrays["SA"][..., None] * arrays["SW"][arrays["expert"]][:, None]
    return {name: arrays[name] for name in spec.operands if name in arrays}, results


@pytest.mark.parametrize("form", FORMS)
def test_right(form):
    target = "sm_80" if form.startswith("ampere") else "sm_90a"
    whole = program(form, target)
    arrays, want = problem(form)
    assert safety(whole.lowered) == ()
    got = simulate(whole.ir, arrays, order=random.Random(3)).outputs
    for name, result in want.items():
        np.testing.assert_allclose(got[name].astype(float), result, rtol=2e-2, atol=2e-2)
    assert ("wgmma" in whole.cuda, "tma_load" in whole.cuda) == (target == "sm_90a",) * 2
    assert "where(" not in whole.cuda


@pytest.mark.parametrize("form", ["strategy", "gathered_gated", "few"])
def test_compiled(form):
    if any(one.serves("sm_90a") for one in toolchains()):
        report = compile_cuda(program(form).cuda, "sm_90a").resources[program(form).name]
        assert report.spill_stores == report.stack_frame == 0


def test_weights_are_one_box():
    text = program("strategy").cuda
    assert "tma_load_3d(w_sh_address + k * w_sh_stage_bytes, &W_map, k * 64, 0, expert[block]," in text


def test_number_that_is_no_expert():
    """TMA reads zeros, and no other memory."""
    arrays, _ = problem("strategy")
    arrays["expert"] = np.array([3, -1, 0], np.int32)
    try:
        assert not simulate(program("strategy").ir, arrays).outputs["D"].astype(float).any()
    except FireironError as error:
        assert "expert" in str(error)


ROWS = {
    "strategy": lambda: experts_rows.sorted_rows(t=3, m=16, n=72, r=20),
    "weighted": lambda: experts_rows.weighted_rows(t=3, m=16, n=72, r=20),
    "combined": lambda: experts_rows.combined_rows(i=9, n=72, j=3, p=48),
    "dots": lambda: experts_rows.dot_products(i=9, n=72, j=3, p=48),
    "activated": lambda: experts_rows.gated_rows(m=9, n=72),
    "slopes": lambda: experts_rows.gated_slopes(m=9, n=72),
}


@pytest.mark.parametrize("form", ROWS)
def test_rows(form):
    whole = getattr(experts_rows, form)(ROWS[form]()).program("sm_90a")
    assert safety(whole.lowered) == () and "uint4" in whole.cuda
    numbers = np.random.default_rng(0)

    def half(*shape):
        return numbers.standard_normal(shape).astype(np.float16)

    x, d, weights = half(20, 72), half(48, 72), numbers.random((3, 16)).astype(np.float32)
    rows, filled = numbers.integers(0, 20, (3, 16)).astype(np.int32), np.array([16, 0, 5], np.int32)
    places, shares, grad = numbers.integers(0, 48, (9, 3)).astype(np.int32), numbers.random((9, 3)).astype(np.float32), half(9, 72)
    live = (np.arange(16) < filled[:, None])[..., None]
    p, q = half(9, 72).astype(float), half(9, 72).astype(float)
    slope = sigmoid(p) * (1 + p * (1 - sigmoid(p)))
    arrays, want = {
        "strategy": ({"X": x, "rows": rows, "filled": filled}, {"Y": x[rows] * live}),
        "weighted": ({"X": x, "rows": rows, "V": weights, "filled": filled}, {"Y": x[rows] * weights[..., None] * live}),
        "combined": ({"D": d, "places": places, "V": shares}, {"Y": (d[places] * shares[..., None]).sum(1)}),
        "dots": ({"D": d, "places": places, "dY": grad}, {"V": (d[places].astype(float) * grad[:, None]).sum(2)}),
        "activated": ({"P": p.astype(np.float16), "Q": q.astype(np.float16)}, {"H": p * sigmoid(p) * q}),
        "slopes": (
            {"dH": grad, "P": p.astype(np.float16), "Q": q.astype(np.float16)},
            {"dQ": grad * p * sigmoid(p), "dP": grad * q * slope},
        ),
    }[form]
    got = simulate(whole.ir, arrays).outputs
    for name, result in want.items():
        np.testing.assert_allclose(got[name].astype(float), result, rtol=1e-2, atol=1e-2)
