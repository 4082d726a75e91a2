"""`fireiron.experts` on a GPU against PyTorch in float64: values, gradients, `torch.compile`, CUDA graphs."""

import pytest

import fireiron

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.gpu

CASES = {
    "one token": (1, 8, 256, 512, 2),
    "few tokens": (40, 16, 264, 136, 4),
    "tiles of 128 rows": (700, 4, 512, 384, 2),
    "all experts": (9, 8, 128, 64, 8),
    "an empty expert": (300, 5, 192, 320, 1),
}


def layer(tokens, experts, width, hidden, dtype, empty=False):
    generator = torch.Generator(device="cuda").manual_seed(0)
    shapes = ((tokens, width), 1.0), ((experts, 2 * hidden, width), 0.1), ((experts, width, hidden), 0.1)
    x, gate_up, down = (
        torch.randn(shape, generator=generator, device="cuda").mul(scale).to(getattr(torch, dtype)) for shape, scale in shapes
    )
    scores = torch.randn(tokens, experts, generator=generator, device="cuda")
    if empty:
        scores[:, 2] -= 100
    return x, scores, gate_up, down


def by_torch(x, scores, gate_up, down, top_k):
    """The layer, expert by expert, in the type of its arguments."""
    weights, index = torch.topk(torch.softmax(scores, -1), top_k, -1)
    weights = (weights / weights.sum(-1, keepdim=True)).to(x.dtype)
    result = torch.zeros_like(x)
    for expert in range(len(gate_up)):
        tokens, choices = torch.where(index == expert)
        gate, up = (x[tokens] @ gate_up[expert].t()).chunk(2, -1)
        rows = (torch.nn.functional.silu(gate) * up) @ down[expert].t()
        result = result.index_add(0, tokens, rows * weights[tokens, choices, None])
    return result


def require_near(got, want, bound):
    assert got.shape == want.shape
    error = (got.double() - want).norm()
    rounding = 1e-6 * want.numel() ** 0.5  # of float32 terms that cancel: the gradient of the only score of a token is 0
    assert error < bound * want.norm() + rounding, (float(error), float(want.norm()))


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_right(name, dtype):
    *sizes, top_k = CASES[name]
    arrays = layer(*sizes, dtype, name == "an empty expert")
    want = by_torch(*(one.double() for one in arrays), top_k)
    got = fireiron.experts(*arrays, top_k=top_k)
    require_near(got, want, 3e-3 if dtype == "float16" else 2e-2)
    assert torch.equal(got, fireiron.experts(*arrays, top_k=top_k))


@pytest.mark.parametrize("name", ["few tokens", "an empty expert"])
def test_gradients(name):
    *sizes, top_k = CASES[name]
    arrays = [one.requires_grad_() for one in layer(*sizes, "bfloat16", name == "an empty expert")]
    wide = [one.detach().double().requires_grad_() for one in arrays]
    grad = torch.randn_like(arrays[0])
    want = torch.autograd.grad(by_torch(*wide, top_k), wide, grad.double())
    got = torch.autograd.grad(fireiron.experts(*arrays, top_k=top_k), arrays, grad)
    for result, right in zip(got, want, strict=True):
        require_near(result, right, 3e-2)


def test_compiled_and_captured():
    arrays = layer(64, 8, 256, 128, "bfloat16")
    want = fireiron.experts(*arrays, top_k=2)
    compiled = torch.compile(lambda *given: fireiron.experts(*given, top_k=2) + 1, fullgraph=True)
    torch.testing.assert_close(compiled(*arrays), want + 1)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = fireiron.experts(*arrays, top_k=2)
    result.fill_(float("nan"))
    graph.replay()
    assert torch.equal(result, want)


def test_refused():
    x, scores, gate_up, down = layer(4, 4, 64, 64, "bfloat16")
    with pytest.raises(fireiron.ArgumentError, match="host memory"):
        fireiron.experts(x.cpu(), scores.cpu(), gate_up.cpu(), down.cpu(), top_k=2)
    x.requires_grad_()
    with pytest.raises(fireiron.ArgumentError, match="have no gradient"):
        torch.autograd.grad(fireiron.experts(x, scores, gate_up, down, top_k=2).sum(), x, create_graph=True)
