"""Arrays that PyTorch multiplies and kernels cannot read as stored, on a GPU: each compared with PyTorch's own result."""

import itertools

import pytest

from fireiron import attention, function, matmul
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
    return torch_module


def float16_array(torch, *shape):
    return torch.randn(shape, device="cuda").bfloat16()


def close(torch, got, expected):
    assert got.shape == expected.shape and got.dtype == expected.dtype
    right = expected.double()
    assert float((got.double() - right).norm()) <= 1e-2 * float(right.norm()) + 1e-12


LIE = {
    "rows": lambda torch, m, k: float16_array(torch, m, k),
    "columns": lambda torch, m, k: float16_array(torch, k, m).T,
    "steps": lambda torch, m, k: float16_array(torch, m, 2 * k)[:, ::2],
    "steps of rows": lambda torch, m, k: float16_array(torch, 2 * m, k)[::2],
    "one row": lambda torch, m, k: float16_array(torch, 1, k).expand(m, k),
    "one column": lambda torch, m, k: float16_array(torch, m, 1).expand(m, k),
    "one element": lambda torch, m, k: float16_array(torch, 1, 1).expand(m, k),
    "from one element on": lambda torch, m, k: float16_array(torch, m * k + 1)[1:].view(m, k),
}


@pytest.mark.parametrize(("left", "other"), [*itertools.product(LIE, LIE)])
def test_products(torch, left, other):
    for m, k, n in ((64, 96, 80), (33, 17, 65)):
        a, b = LIE[left](torch, m, k), LIE[other](torch, k, n)
        close(torch, matmul(a, b), a @ b)


def test_outputs(torch):
    a, b = float16_array(torch, 64, 96), float16_array(torch, 96, 80)
    for out in (float16_array(torch, 64, 160)[:, ::2], float16_array(torch, 80, 64).T, float16_array(torch, 64, 100)[:, 3:83]):
        assert matmul(a, b, out=out) is out
        close(torch, out, a @ b)


EMPTY = [
    ((0, 8), (8, 16)), ((8, 0), (0, 16)), ((8, 8), (8, 0)), ((0, 0), (0, 0)), ((3, 0, 8), (8, 4)), ((3, 4, 0), (0, 5)), ((2, 0, 4, 8), (8, 5)),
]  # fmt: skip


@pytest.mark.parametrize("shapes", EMPTY, ids=str)
def test_arrays_without_elements(torch, shapes):
    a, b = (float16_array(torch, *shape) for shape in shapes)
    close(torch, matmul(a, b), a @ b)


@pytest.mark.parametrize("elements", [8, 16, 24, 40, 64, 72, 80, 96, 128, 136, 192, 256])
def test_heads(torch, elements):
    softmax = torch.nn.functional.scaled_dot_product_attention
    q, k, v = (float16_array(torch, 2, 4, 200, elements) for _ in range(3))
    for causal in (False, True):
        close(torch, attention(q, k, v, causal=causal), softmax(q, k, v, is_causal=causal))


def test_heads_that_lie_otherwise(torch):
    softmax = torch.nn.functional.scaled_dot_product_attention
    q, k, v = (float16_array(torch, 2, 256, 8, 64).transpose(1, 2) for _ in range(3))
    for keys, two in (
        (k, v),
        (float16_array(torch, 2, 1, 256, 64).expand(2, 8, 256, 64),) * 2,
        (float16_array(torch, 1, 8, 256, 64).expand(2, 8, 256, 64), v),
    ):
        close(torch, attention(q, keys, two), softmax(q, keys, two))
    repeated, stepped = float16_array(torch, 2, 8, 1, 64).expand(2, 8, 256, 64), float16_array(torch, 2, 8, 256, 128)[..., ::2]
    close(torch, attention(repeated, k, v), softmax(repeated, k, v))
    close(torch, attention(q, stepped, v), softmax(q, stepped, v))
    out = float16_array(torch, 2, 8, 256, 128)[..., ::2]
    assert attention(q, k, v, out=out) is out
    close(torch, out, softmax(q, k, v))
    assert attention(q[:, :, :0], k, v).shape == (2, 8, 0, 64)
    close(torch, attention(q, k[:, :, :0], v[:, :, :0]), torch.zeros_like(q))


def test_functions(torch):
    """Rows of any storage, and arrays without elements, with gradients."""
    weight, bias = (float16_array(torch, 64).requires_grad_() for _ in range(2))
    ours, peer = function("layernorm"), torch.nn.functional.layer_norm
    stored = {
        "steps": float16_array(torch, 5, 128)[:, ::2],
        "columns": float16_array(torch, 64, 5).T,
        "one row": float16_array(torch, 1, 64).expand(5, 64),
        "leading dimensions": float16_array(torch, 5, 3, 64).transpose(0, 1),
        "no rows": float16_array(torch, 0, 64),
        "no matrices": float16_array(torch, 0, 3, 64),
    }
    for x in stored.values():
        given = x.detach().requires_grad_(), weight, bias
        results = ours(*given, 1e-5), peer(given[0], (64,), weight, bias, 1e-5)
        close(torch, *(one.detach() for one in results))
        grad = torch.ones_like(results[1])
        for got, expected in zip(*(torch.autograd.grad(one, given, grad) for one in results), strict=True):
            assert got.shape == expected.shape and float((got.double() - expected.double()).abs().max() if got.numel() else 0) < 0.1


@pytest.mark.parametrize("keys", [0, 9])
def test_gradients_of_arrays_without_elements(torch, keys):
    q, k, v = (float16_array(torch, 1, 2, n, 64).requires_grad_() for n in (9 if keys == 0 else 0, keys, keys))
    result = attention(q, k, v)
    for tensor, gradient in zip((q, k, v), torch.autograd.grad(result, (q, k, v), torch.ones_like(result)), strict=True):
        close(torch, gradient, torch.zeros_like(tensor))
    a, b = float16_array(torch, 16, 0).requires_grad_(), float16_array(torch, 0, 8).requires_grad_()
    assert [one.shape for one in torch.autograd.grad(matmul(a, b).sum(), (a, b))] == [a.shape, b.shape]
