"""`fireiron.function`: results for NumPy arrays, chosen strategies and errors; and the operator of a simulated PyTorch."""

import sys

import numpy as np
import pytest
import test_attention

import fireiron
from fireiron import *
from fireiron.front import place
from fireiron.gpu.kernel import CompiledKernel

function_module = sys.modules["fireiron.function"]
torch, Tensor = test_attention.torch, test_attention.Tensor


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    monkeypatch.delenv("FIREIRON_RECORDS", raising=False)
    monkeypatch.delenv("FIREIRON_REQUIRE_RECORD", raising=False)
    function_module.register_operator.cache_clear()
    yield
    function_module.register_operator.cache_clear()


def random(*shape):
    return np.random.default_rng(shape).standard_normal(shape).astype(np.float16)


def test_rows_with_leading_dimensions():
    x, weight, bias = random(2, 3, 64), random(64), random(64)
    layernorm, out = fireiron.function("layernorm"), np.zeros((2, 3, 64), np.float16)
    wide = x.astype(np.float64)
    expected = (wide - wide.mean(-1, keepdims=True)) / np.sqrt(wide.var(-1, keepdims=True) + 1e-5) * weight + bias
    assert layernorm(x, weight, bias, 1e-5, out=out) is out
    np.testing.assert_allclose(out, expected, atol=4e-3)
    assert layernorm is fireiron.function("layernorm") and "layernorm rows=" in layernorm.choice(x, weight, bias, 1e-5, out=out).why


@pytest.mark.nightly
def test_several_outputs_and_storage():
    """With the warpgroup strategy if the target has warpgroups; matrices may be column-major."""
    a, b = random(64, 64), random(64, 64).T
    function = fireiron.function("gemm_row_sum")
    product, sums = function(a, b, arch="sm_90a")
    np.testing.assert_allclose(product, a.astype(float) @ b, atol=0.05)
    np.testing.assert_allclose(sums, a.astype(float).sum(1), atol=1e-3)
    assert sums.dtype == np.float32 and "gemm_row_sum:hopper" in function.choice(a, b, arch="sm_90a").why
    assert function.choice(a, b, arch="sm_80").why.endswith("gemm_row_sum")


def test_user_defined_definitions():
    doubled = Fused(name="doubled", dims="m n", operands={"X": "m n", "Y": "m n"}, body={"y": "Y[m,n] = X[m,n] + X[m,n]"})
    lanes = Move.tile(1, 32).to(Warp).tile(1, 1).to(Lane).done()
    strategy = doubled.tile(m=1).to(Block).load("X", RF, lanes).done()
    x = random(4, 64)
    np.testing.assert_array_equal(fireiron.function(doubled, (strategy,))(x), x + x)
    derived = fireiron.function(doubled)
    np.testing.assert_array_equal(derived(x), x + x)
    assert "derived: elements" in derived.choice(x).why


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("arrays", "options", "message"),
    [
        ((random(4, 64), random(32), random(64), 1e-5), {}, "weight has 32 elements along n"),
        ((random(4, 64), random(64), random(64)), {}, "3 arrays and numbers"),
        ((random(64), random(64), random(64), 1e-5), {}, "X has 1 dimensions"),
        ((random(4, 64), random(64), random(64), 1e-5), {"out": np.zeros((4, 32), np.float16)}, "Y has the shape"),
        (
            (random(2, 3, 64), random(64), random(64), 1e-5),
            {"out": np.zeros((3, 2, 64), np.float16).swapaxes(0, 1)},
            "Y cannot be flattened",
        ),
    ],
)
def test_refusals(arrays, options, message):
    with pytest.raises(ArgumentError, match=message):
        fireiron.function("layernorm")(*arrays, **options)


def test_copied_inputs():
    """Leading dimensions without a flattened view, and negative strides."""
    softmax, x = fireiron.function("softmax"), random(3, 2, 64)
    expected = softmax(np.ascontiguousarray(x.swapaxes(0, 1)))
    np.testing.assert_array_equal(softmax(x.swapaxes(0, 1)), expected)
    np.testing.assert_array_equal(softmax(x[:, :, ::-1]), softmax(np.ascontiguousarray(x[:, :, ::-1])))


def test_arrays_without_elements():
    norm, weight = fireiron.function("layernorm"), random(64)
    for shape in ((0, 64), (2, 0, 64)):
        result = norm(np.zeros(shape, np.float16), weight, weight, 1e-5)
        assert result.shape == shape and result.dtype == np.float16
        out = np.zeros(shape, np.float16)
        assert norm(np.zeros(shape, np.float16), weight, weight, 1e-5, out=out) is out
    rows, scale = np.zeros((0, 64), np.float16), np.zeros(0, np.float32)
    with pytest.raises(ArgumentError, match="an array has no elements, but the output dweight has"):
        fireiron.function("rmsnorm_weight_gradient")(rows, scale, rows)
    with pytest.raises(ArgumentError, match="no elements"):
        norm.choice(rows, weight, weight, 1e-5)


def test_refused_names():
    with pytest.raises(ArgumentError, match="does not start from a definition"):
        fireiron.function("sgemm")


def test_operator(torch, monkeypatch):
    """Tracing gives shapes and types without a launch; the operator launches."""
    launched, outputs = [], (Tensor((8, 64)), Tensor((8,)))
    monkeypatch.setattr(Tensor, "new_empty", lambda self, shape, dtype: Tensor(shape, dtype=str(dtype).removeprefix("torch.")))
    monkeypatch.setattr(CompiledKernel, "__call__", lambda self, *arrays, **named: launched.append(arrays) or outputs)
    monkeypatch.setattr(place, "target_of", lambda device: "sm_80")
    monkeypatch.setattr(place, "gpu_name", lambda device: "NVIDIA H200")
    function, arrays = fireiron.function("gemm_row_sum"), (Tensor((8, 64)), Tensor((64, 64)))
    torch.compiling, operator = True, torch.ops.fireiron
    function_module.register_operator()
    registered_operator = torch.registered["fireiron::function"]
    operator.function = registered_operator.fake
    product, sums = function(*arrays)
    assert product.shape == (8, 64) and sums.shape == (8,) and sums.dtype == "torch.float32" and not launched
    assert registered_operator.schema == "(Tensor[] arrays, float[] numbers, str name) -> Tensor[]"
    torch.compiling = False
    assert registered_operator.run(list(arrays), [], "gemm_row_sum") == list(outputs)
    assert len(launched) == 1
