"""Derived error bounds: right kernels stay within them on random data, wrong ones exceed them; matrix instructions by their model."""

import fused_examples
import numpy as np
import pytest
from fused_examples import specs
from fused_generator import draw as drawn_definition
from generator import draw as drawn_strategy
from test_fused_random import program_to_paste

from fireiron import *
from fireiron.measure.data import accumulator_of, all_sizes, random_inputs, references_of, tolerance_of
from fireiron.measure.inputs import select_at
from fireiron.measure.rounding import EIGHT_BITS, Bounded, compared, differing, error_bounds, expected, free_dims, sample
from fireiron.sim import simulate
from fireiron.values.expr import TRUE


def product(K, dtype=float16, c_dtype=float32, adder=None, size=24):
    """A GEMM spec, normally distributed operands, and the sums in float64."""
    spec = MatMul(size, size, K, dtype=dtype, c_dtype=c_dtype, accumulator=adder)(GL, GL, GL)(Kernel)
    generator = np.random.default_rng(K)
    arrays = {name: generator.standard_normal(shape).astype(dtype.to_numpy()) for name, shape in (("A", (size, K)), ("B", (K, size)))}
    return spec, arrays, arrays["A"].astype(float) @ arrays["B"].astype(float)


def cut(values, bits, exponent):
    """Values truncated toward zero `bits` below the leading bit of 2^exponent."""
    step = np.ldexp(1.0, exponent - bits)
    return np.trunc(values / step) * step


def by_matrix_instructions(a, b, terms, bits):
    """A GEMM as matrix instructions compute it: groups of terms, aligned with the largest, truncated, and their sum truncated to float32."""
    total = np.zeros((a.shape[0], b.shape[1]))
    for start in range(0, a.shape[1], terms):
        parts = [total, *(a[:, k, None] * b[None, k] for k in range(start, min(start + terms, a.shape[1])))]
        _, exponent = np.frexp(np.abs(parts).max(0))
        total = sum(cut(one, bits, exponent - 1) for one in parts)
        total = cut(total, min(23, bits), np.frexp(np.abs(total))[1] - 1)
    return total


@pytest.mark.parametrize("K", [16, 100, 512, 2048])
@pytest.mark.parametrize(
    ("terms", "bits", "dtype"), [(4, 23, float16), (8, 24, bfloat16), (16, 25, float16), (32, 13, float8_e4m3)], ids=str
)
def test_matrix_instructions_stay_within_and_a_step_left_out_does_not(terms, bits, dtype, K):
    spec, arrays, right = product(K, dtype)
    a, b = (one.astype(float) for one in arrays.values())
    result = by_matrix_instructions(a, b, terms, bits)
    (bound,) = error_bounds(spec, arrays, {}).values()
    off = np.abs(result - right)
    assert (off <= bound).all() and off.max() > 0
    last = (K - 1) // 16 * 16
    fewer = by_matrix_instructions(a[:, :last], b[:last], terms, bits)
    if bits != EIGHT_BITS.bits or K <= 512:  # with 13 bits the truncation hides an error of a single element
        assert (np.abs(fewer - right) > bound).mean() > 0.5, "a k-step of 16 left out"
    norm_bound = tolerance_of(spec) * np.linalg.norm(right)
    assert np.linalg.norm(result - right) < norm_bound < np.linalg.norm(fewer - right) / 3, "the norm of all elements tells"


@pytest.mark.parametrize("K", [16, 512])
@pytest.mark.parametrize(("terms", "bits", "dtype"), [(4, 23, float16), (32, 13, float8_e4m3)], ids=str)
def test_factors_of_one_sign_stay_within(terms, bits, dtype, K):
    """With operands of one sign, all truncation errors accumulate."""
    spec, arrays, _ = product(K, dtype)
    arrays = {name: abs(one) for name, one in arrays.items()}
    a, b = (one.astype(float) for one in arrays.values())
    (bound,) = error_bounds(spec, arrays, {}).values()
    assert (np.abs(by_matrix_instructions(a, b, terms, bits) - a @ b) <= bound).all() and (bound < 0.1 * (a @ b)).all()


@pytest.mark.parametrize(
    ("dtype", "adder", "K"), [(float32, float32, 4096), (float64, float64, 512), (float16, float16, 64), (bfloat16, float32, 300)], ids=str
)
def test_chains_in_any_order_stay_within_and_one_wrong_element_does_not(dtype, adder, K):
    """Terms added in order, in reverse and in pairs, with rounding after each addition."""
    spec, arrays, right = product(K, dtype, c_dtype=adder, adder=adder, size=8)
    a, b = (one.astype(adder.to_numpy()) for one in arrays.values())
    (bound,) = error_bounds(spec, arrays, {}).values()
    terms = (a[:, :, None] * b[None]).transpose(1, 0, 2)
    for order in (terms, terms[::-1], terms[np.random.default_rng(1).permutation(K)]):
        total = np.zeros_like(order[0])
        for term in order:
            total = (total + term).astype(adder.to_numpy())
        assert (np.abs(total.astype(float) - right) <= bound).all()
    if K > 16:
        fewer = np.abs(terms[: (K - 1) // 16 * 16].astype(float).sum(0) - right) > bound
        assert fewer.mean() > 0.5, "a k-step of 16 left out"
    wrong = right.copy()
    wrong[3, 4] += K**0.5  # as much as elements differ
    differences = differing(spec, {}, {"C": wrong}, arrays, {"C": right})
    assert len(differences) == 1 and "C[3, 4]" in differences[0] and "1 of 64" in differences[0]
    assert not differing(spec, {}, {"C": right}, arrays, {"C": right})
    assert differing(spec, {}, {"C": np.full_like(right, np.nan)}, arrays, {"C": right})


def test_nan_must_match_and_the_worst_element_is_reported():
    """A number instead of NaN, NaN instead of a number, and of two wrong elements the one that exceeds its bound more."""
    spec, arrays, right = product(16)
    spoiled = {**arrays, "A": arrays["A"].copy()}
    spoiled["A"][3, 4], spoiled["A"][5, 6] = np.nan, np.inf
    right = spoiled["A"].astype(float) @ spoiled["B"].astype(float)
    assert not differing(spec, {}, {"C": right}, spoiled, {"C": right})
    differences = differing(spec, {}, {"C": np.nan_to_num(right, nan=0, posinf=np.inf, neginf=-np.inf)}, spoiled, {"C": right})
    assert len(differences) == 1 and "C[3, 0] is 0, expected nan" in differences[0] and "24 of 576" in differences[0]
    wrong = right.copy()
    wrong[7, 1], wrong[7, 2] = right[7, 1] + 1, right[7, 2] + 100
    (differences,) = differing(spec, {}, {"C": wrong}, spoiled, {"C": right}, float32)
    assert "C[7, 2]" in differences and "off by 1e+02, sums in float32; 2 of 576" in differences
    wrong[7, 1] = np.nan
    assert "C[7, 1] is nan" in differing(spec, {}, {"C": wrong}, spoiled, {"C": right})[0]


def test_values_have_bounds():
    """In float64 before rounding; integers exactly, and rounded."""
    spec, arrays, right = product(64, c_dtype=float16)
    (result,) = expected(spec, arrays, {}).values()
    np.testing.assert_allclose(result.value, right, rtol=1e-13)
    assert (abs(right.astype(np.float16) - right) <= result.error).all()
    spec = MatMul(8, 8, 40, dtype=int8)(GL, GL, GL)(Kernel)
    integers = {name: np.random.default_rng(1).integers(-128, 128, shape, np.int8) for name, shape in (("A", (8, 40)), ("B", (40, 8)))}
    (result,) = expected(spec, integers, {}).values()
    assert (result.value == integers["A"].astype(int) @ integers["B"].astype(int)).all() and not result.error.any()


@pytest.mark.parametrize("layers", [1, 6, 20])
def test_chains_of_products(layers):
    """Layers in float16: worst-case errors grow by the sum of the weights per layer, random weights have both signs."""
    spec = fused_examples.mlp(m=16, n=64, k=64, l=layers)
    arrays, sizes = random_inputs(spec, {}, np.random.default_rng(layers)), all_sizes(spec, {})
    estimate, certain = expected(spec, arrays, sizes, random=True)["Y"], expected(spec, arrays, sizes)["Y"]
    h, wrong = arrays["X"], None
    for layer in range(layers):
        product = h.astype(np.float32) @ arrays["W"][:, :, layer].astype(np.float32) + arrays["bias"][:, layer]
        wrong = np.maximum(product - h[:, :8].astype(float) @ arrays["W"][:8, :, layer].astype(float), 0)
        h = np.maximum(product, 0).astype(np.float16)
    assert (abs(h - estimate.value) <= estimate.error).all() and (estimate.error <= certain.error).all()
    assert (estimate.error < 0.05 * np.sqrt((estimate.value**2).mean())).all() and (layers < 20 or certain.error.min() > 1e9)
    assert (abs(wrong - estimate.value) > estimate.error)[(wrong > 0) & (estimate.value > 0)].mean() > 0.6, (
        "eight terms of the last layer left out"
    )


@pytest.mark.parametrize("keys", [64, 512])
def test_softmax_rescaled_in_each_iteration(keys):
    """The factors are 1 except where the maximum changes, so bounds do not grow with the number of iterations."""
    spec = fused_examples.attention(m=keys, n=keys, d=16, b=1)
    sizes = all_sizes(spec, {})
    arrays = random_inputs(spec, sizes, np.random.default_rng(1))
    result = expected(spec, arrays, sizes, places={"m": np.array([keys - 1])}, random=True)["O"]
    root = float(np.sqrt((result.value**2).mean()))
    assert result.error.shape == (1, 16, 1) and result.error.max() < 0.02 * root
    missing = expected(spec, {**arrays, "V": np.concatenate([arrays["V"][: keys - 16], 0 * arrays["V"][-16:]])}, sizes)["O"].value[-1:]
    assert (abs(missing - result.value) > result.error).mean() > 0.6, "16 keys left out"


@pytest.mark.parametrize("name", specs())
def test_samples_equal_the_full_result(name):
    """At some places of the free dimensions, values and bounds are those of the full result."""
    spec = specs()[name][1]
    sizes = all_sizes(spec, {})
    arrays = random_inputs(spec, sizes, np.random.default_rng(2))
    lengths = {dim: int(str(spec.size(dim))) for dim in free_dims(spec)}
    places = {dim: np.array([0, size // 2, size - 1]) for dim, size in lengths.items()}
    assert places
    some, full = expected(spec, arrays, sizes, places=places), expected(spec, arrays, sizes)
    for output in spec.outputs:
        for part, expected_part in ((some[output].value, full[output].value), (some[output].error, full[output].error)):
            np.testing.assert_allclose(part, select_at(expected_part, spec.uses[output], places), rtol=1e-9, atol=1e-12)
        worst = compared(select_at(full[output].value, spec.uses[output], places), some[output], spec.operands[output].dtype)
        assert worst.count == 0 and worst.fraction < 1e-3


def shapes_of_the_library():
    """Small specs of multi-step definitions like those of the library."""
    from fireiron.strategies import (
        attention,
        dual,
        gated,
        gemm_layernorm,
        gemm_row_sum,
        layernorm,
        lstm,
        mlp,
        rmsnorm,
        softmax,
    )

    for options in ({}, {"causal": True, "lse": True}, {"window": 9}, {"rescale_threshold": 8}):
        yield attention.spec(40, 70, 16, fused=attention.definition(**options))
    for module in (dual, gated, gemm_row_sum, lstm):
        yield module.spec(30, 20, 40)
    yield from (gemm_layernorm.spec(20, 32, 24), mlp.spec(20, 32, 5), lstm.spec(30, 20, 40, form="tanh"))
    yield from (module.spec(5, 300) for module in (layernorm, rmsnorm, softmax))


def test_bounds_of_the_library_are_small():
    """Bounds are finite and small compared with the values: an infinite bound would accept any number."""
    for spec in shapes_of_the_library():
        arrays = random_inputs(spec, {}, np.random.default_rng(4))
        for name, result in expected(spec, arrays, {}, random=True).items():
            root = float(np.sqrt((result.value**2).mean()))
            assert np.isfinite(result.error).all() and np.median(result.error) < 0.02 * root, (str(spec), name)


def test_samples_are_small_and_have_both_ends():
    """The places are halved, including the first and the last, until there are few terms; never along a reduced dimension."""
    spec = fused_examples.attention(m=1000, n=500, d=16, b=12)
    assert free_dims(spec) == ("m", "b") and sample(spec, {}, 10**9, np.random.default_rng(0)) == {}
    some = sample(spec, {}, 10**6, np.random.default_rng(0))
    assert {dim: (one[0], one[-1]) for dim, one in some.items()} == {"m": (0, 999), "b": (0, 11)}
    assert len(some["m"]) * len(some["b"]) * 500 * 16 <= 10**6 and all((np.diff(one) > 0).all() for one in some.values())
    assert [len(one) for one in sample(spec, {}, 1, np.random.default_rng(0)).values()] == [8, 2]


def checked_definition(seed):
    draw_of_seed, _ = drawn_definition(seed)
    arrays, sizes = (
        random_inputs(draw_of_seed.bound, draw_of_seed.symbols, np.random.default_rng(seed)),
        all_sizes(draw_of_seed.bound, draw_of_seed.symbols),
    )
    got = simulate(draw_of_seed.program.ir, arrays, draw_of_seed.symbols).outputs
    differences = differing(draw_of_seed.bound, sizes, got, arrays, references_of(draw_of_seed.bound, *arrays.values()))
    assert not differences, (differences, program_to_paste(draw_of_seed))


def checked_strategy(seed):
    """A GEMM of normal numbers by a random strategy; whether it is one of floats that starts from zero."""
    draw_of_seed, _ = drawn_strategy(seed)
    if draw_of_seed.spec.A.dtype.kind == "int" or draw_of_seed.spec.accumulate == TRUE:
        return False
    generator = np.random.default_rng(seed)
    arrays = {name: generator.standard_normal([draw_of_seed.sizes[size] for size in dims]).astype(draw_of_seed.spec.operands[name].dtype.to_numpy())
              for name, dims in (("A", "MK"), ("B", "KN"))}  # fmt: skip
    got = simulate(draw_of_seed.program.lowered, arrays, draw_of_seed.symbols).outputs
    differences = differing(
        draw_of_seed.spec,
        all_sizes(draw_of_seed.spec, draw_of_seed.symbols),
        got,
        arrays,
        references_of(draw_of_seed.spec, *arrays.values()),
        accumulator_of(draw_of_seed.program),
    )
    assert not differences, (differences, draw_of_seed.strategy)
    return True


@pytest.mark.parametrize("seed", range(1, 13))
def test_drawn_definitions_stay_within(seed):
    checked_definition(seed)


def test_drawn_strategies_stay_within():
    assert sum(map(checked_strategy, range(10))) > 3


@pytest.mark.nightly
@pytest.mark.parametrize("chunk", range(20))
def test_many_drawn_strategies_stay_within(chunk):
    assert sum(map(checked_strategy, range(2000 + chunk * 50, 2050 + chunk * 50))) > 20


@pytest.mark.nightly
@pytest.mark.parametrize("chunk", range(20))
def test_many_drawn_definitions_stay_within(chunk):
    for seed in range(1000 + chunk * 50, 1050 + chunk * 50):
        checked_definition(seed)


@pytest.mark.parametrize("name", specs())
def test_examples_stay_within_and_a_wrong_element_does_not(name):
    strategy, spec = specs()[name]
    sizes = all_sizes(spec, {})
    arrays = random_inputs(spec, sizes, np.random.default_rng(1))
    right = references_of(spec, *arrays.values())
    bounds = error_bounds(spec, arrays, sizes)
    for output, value in right.items():
        wide = value.astype(float)
        root = float(np.sqrt((wide**2).mean()))
        assert np.median(bounds[output]) < 0.01 * root, "the bound says something"
        other = np.abs(np.roll(wide, 1, axis=0) - wide)
        assert (other > 2 * bounds[output])[other > 0].mean() > 0.9, "an element in the place of another is seen"
    got = simulate(strategy(spec).program("sm_90").ir, arrays).outputs
    assert not differing(spec, sizes, got, arrays, right)


def test_a_definition_multiplies_the_upper_bits_of_tf32_and_reads_all_elsewhere():
    steps = {"sums": "row[m] = sum(k, A[m,k])", "product": "acc[m,n] = sum(k, A[m,k] * B[k,n])", "rest": "C[m,n] = acc[m,n] + row[m]"}
    definition = Fused(
        "both", dims="m n k", operands={"A": "m k", "B": "k n", "C": "m n"}, body=steps, types={"acc": float32, "row": float32}
    )
    spec = definition(m=8, n=8, k=64, types={"A": tf32, "B": tf32, "C": float32})
    generator = np.random.default_rng(0)
    A, B = (generator.standard_normal(shape).astype(np.float32) for shape in ((8, 64), (64, 8)))
    upper = [(one.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32).astype(float) for one in (A, B)]
    right, rounded = (left @ other + A.astype(float).sum(1, keepdims=True) for left, other in (upper, (A.astype(float), B.astype(float))))
    np.testing.assert_array_equal(spec.reference(A, B), right.astype(np.float32))
    (known,) = expected(spec, {"A": A, "B": B}, {}).values()
    assert (abs(known.value - right) < known.error).all() and (abs(known.value - rounded) > known.error).mean() > 0.9


def test_intermediate_tf32_values_may_be_truncated():
    steps = {"scaled": "p[m,k] = 2 * A[m,k]", "product": "acc[m,n] = sum(k, p[m,k] * B[k,n])", "store": "C[m,n] = acc[m,n]"}
    definition = Fused("kept", dims="m n k", operands={"A": "m k", "B": "k n", "C": "m n"}, body=steps, types={"acc": float32, "p": tf32})
    spec = definition(m=8, n=8, k=32, types={"A": float32, "B": tf32, "C": float32})
    A, B = np.full((8, 32), np.nextafter(np.float32(0.5 + 2**-11), np.float32(0))), np.ones((32, 8), np.float32)
    p = 2 * A
    cut_off = (p.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32).astype(float) @ B.astype(float)
    (known,) = expected(spec, {"A": A, "B": B}, {}).values()
    off = abs(known.value - cut_off)
    assert (p < 1 + 2**-10).all() and (off <= known.error).all() and (off > known.error / 2).all()


def test_the_nearest_number_of_a_type_is_within_its_bound():
    """The printed bound is the one that decides: fp8 has no number nearer to 1.06 than 1, for any bound."""
    right = Bounded(np.array([1.06, 2.0]), np.array([0.001, 0.001]))
    nearest = compared(np.array([1.0, 2.0]), right, float8_e4m3)
    assert nearest.count == 0 and nearest.off == pytest.approx(0.06) and nearest.fraction == 1.0 and nearest.bound == pytest.approx(0.06)
    other = compared(np.array([1.125, 2.0]), right, float8_e4m3)
    assert other.count == 1 and other.fraction > 1
    large = compared(np.array([np.inf]), Bounded(np.array([1e6]), np.array([1.0])), float16)
    assert large.count == 0  # infinity is the nearest there
    for dtype, least in ((float8_e4m3, 2.0**-9), (float8_e5m2, 2.0**-16), (float16, 2.0**-24), (bfloat16, 2.0**-133)):
        middle = compared(np.array([least, 0.0]), Bounded(np.array([1.49 * least, 0.49 * least]), np.zeros(2) + least / 50), dtype)
        assert middle.count == 0 and middle.fraction <= 1, "subnormal numbers"


def test_operators_of_integers_are_exact_if_their_operands_are():
    """Packed numbers have the error of the product only; of a rounded integer nothing is known."""
    definition = Fused(
        name="unpacked", dims="m n", operands={"P": "m n", "S": "m", "X": "m n", "Y": "m n", "Z": "m n"},
        body={"y": "Y[m,n] = (P[m,n] * 0x9e3779b9 & 0xffffffff) % 16 * S[m]", "t": "t[m,n] = X[m,n] * X[m,n]", "z": "Z[m,n] = t[m,n] >> 1"},
        types={"P": int32, "t": int32, "Z": int32, "Y": float32},
    )  # fmt: skip
    spec, source = definition(m=4, n=8), np.random.default_rng(0)
    arrays = {
        "P": source.integers(-(2**31), 2**31, (4, 8)).astype(np.int32), "S": source.random(4).astype(np.float16),
        "X": (source.random((4, 8)) * 100).astype(np.float16),
    }  # fmt: skip
    got = expected(spec, arrays, {"m": 4, "n": 8})
    exact = (arrays["P"].astype(object) * 0x9E3779B9 % 16).astype(float) * arrays["S"][:, None]
    assert np.allclose(got["Y"].value, exact, rtol=1e-12, atol=0) and (got["Y"].error <= 2.0**-22 * np.maximum(exact, 1)).all()
    assert np.isinf(got["Z"].error).any()
