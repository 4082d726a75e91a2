"""`fireiron.function` on a GPU: PyTorch's tensors compared with its own functions, compiled, in CUDA graphs."""

import pytest

import fireiron
from fireiron.gpu import launch

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not launch.gpu_available(), reason="needs a CUDA GPU and CuPy (pip install 'fireiron[cuda13]')"),
]


@pytest.fixture
def torch(monkeypatch):
    monkeypatch.delenv("FIREIRON_RECORDS", raising=False)
    monkeypatch.delenv("FIREIRON_REQUIRE_RECORD", raising=False)
    torch_module = pytest.importorskip("torch", reason="needs PyTorch")
    if not torch_module.cuda.is_available():
        pytest.skip("needs PyTorch for CUDA")
    torch_module.manual_seed(0)
    with torch_module.no_grad():
        yield torch_module


def float16_array(torch, *shape):
    return torch.randn(shape, device="cuda", dtype=torch.half) * (shape[-2] ** -0.5 if len(shape) > 1 else 1)


def cases(torch):
    """Functions by name with arrays, and their expected results."""
    functional = torch.nn.functional
    x, a, h = float16_array(torch, 3, 40, 512), float16_array(torch, 200, 256), float16_array(torch, 200, 256)
    w, b, right, other, bias = (
        float16_array(torch, 512),
        float16_array(torch, 512),
        float16_array(torch, 256, 128),
        float16_array(torch, 256, 128),
        float16_array(torch, 128),
    )
    rows, weights, biases = float16_array(torch, 300, 128), float16_array(torch, 4, 128, 128), float16_array(torch, 4, 128)
    wide = [part.double() for part in (a, right, h, other)]
    layers = rows.double()
    for weight, added in zip(weights.double(), biases.double(), strict=True):
        layers = (layers @ weight + added).relu().half().double()
    return {
        "layernorm": ((x, w, b, 1e-5), functional.layer_norm(x.double(), (512,), w.double(), b.double(), 1e-5)),
        "rmsnorm": ((x, w, 1e-5), functional.rms_norm(x.double(), (512,), w.double(), 1e-5)),
        "softmax": ((x,), x.double().softmax(-1)),
        "dual": ((a, right, other), wide[0] @ wide[1] + wide[0] @ wide[3]),
        "gated": ((a, right, other), functional.silu(wide[0] @ wide[1]) * (wide[0] @ wide[3])),
        "lstm:tanh": ((a, right, h, other, bias), (wide[0] @ wide[1] + wide[2] @ wide[3] + bias.double()).tanh()),
        "mlp": ((rows, weights, biases), layers),
    }


def close(torch, got, expected):
    assert got.shape == expected.shape and bool(torch.isfinite(got).all())
    assert float((got.double() - expected).norm() / expected.norm()) < 4e-3


def test_against_torch(torch):
    for name, (arrays, expected) in cases(torch).items():
        close(torch, fireiron.function(name)(*arrays), expected)


def test_several_outputs_compiled(torch):
    """One graph, in which the kernel is an operator between others."""
    both = fireiron.function("gemm_row_sum")

    def layer(a, b):
        product, sums = both(a + a, b)
        return product.relu(), sums + 1

    a, b = float16_array(torch, 128, 256), float16_array(torch, 256, 192)
    product, sums = torch.compile(layer, fullgraph=True)(a, b)
    close(torch, product, (2 * a.double() @ b.double()).relu())
    assert sums.dtype == torch.float32
    torch.testing.assert_close(sums.double(), 2 * a.double().sum(1) + 1, rtol=1e-3, atol=1e-3)
    torch.library.opcheck(torch.ops.fireiron.function.default, ([a, b], [], "gemm_row_sum"), test_utils=("test_schema", "test_faketensor"))


def test_captured(torch):
    """A CUDA graph replays the launch on the current memory contents."""
    x = float16_array(torch, 64, 512)
    softmax = fireiron.function("softmax")
    softmax(x)  # compiled and loaded
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = softmax(x)
    x.normal_()
    graph.replay()
    torch.cuda.synchronize()
    close(torch, out, x.double().softmax(-1))
