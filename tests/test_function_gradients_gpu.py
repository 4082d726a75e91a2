"""Gradients of `fireiron.function` on a GPU, compared with those of PyTorch in float64: eager, compiled, with leading dimensions."""

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
    return torch_module


def half(torch, *shape):
    return torch.randn(shape, device="cuda", dtype=torch.half)


def cases(torch):
    """By name: arguments, those that require a gradient, and the same function of float64 tensors."""
    functional = torch.nn.functional
    x, r, w, b = half(torch, 3, 40, 512), half(torch, 3, 40, 512), half(torch, 512), half(torch, 512)
    logits = half(torch, 70, 777) * 3
    label = torch.randint(777, (70,), device="cuda")
    label[5] = -100

    heads, angles = half(torch, 2, 30, 4, 2, 32), torch.rand(30, 32, device="cuda") * 6

    def turned(x, c, s):
        first, second = x[..., 0, :], x[..., 1, :]
        return torch.stack((first * c[:, None] - second * s[:, None], second * c[:, None] + first * s[:, None]), 3)

    def residual(x, r, w, eps):
        return x + r, functional.rms_norm(x + r, (512,), w, eps)

    def entropy(x, label):
        return functional.cross_entropy(x, label, reduction="none"), torch.logsumexp(x, -1)

    return {
        "layernorm": ((x, w, b, 1e-5), (0, 1, 2), lambda x, w, b, eps: functional.layer_norm(x, (512,), w, b, eps)),
        "rmsnorm": ((x, w, 1e-5), (0, 1), lambda x, w, eps: functional.rms_norm(x, (512,), w, eps)),
        "softmax": ((x,), (0,), lambda x: x.softmax(-1)),
        "rmsnorm_residual": ((x, r, w, 1e-5), (0, 1, 2), residual),
        "cross_entropy": ((logits, label), (0,), entropy),
        "rope": ((heads, angles.cos(), angles.sin()), (0,), turned),
        "swiglu": ((half(torch, 3, 40, 2, 264),), (0,), lambda x: functional.silu(x[..., 0, :]) * x[..., 1, :]),
    }


def gradients(torch, function, arguments, places, factors):
    """The gradients of a weighted sum of the results."""
    given = [one.detach().requires_grad_() if place in places else one for place, one in enumerate(arguments)]
    results = function(*given)
    results = results if isinstance(results, tuple) else (results,)
    total = sum((one.double() * factor).sum() for one, factor in zip(results, factors, strict=False))
    return torch.autograd.grad(total, [given[place] for place in places])


@pytest.mark.parametrize("name", ("layernorm", "rmsnorm", "softmax", "rmsnorm_residual", "cross_entropy", "rope", "swiglu"))
@pytest.mark.parametrize("is_compiled", (False, True), ids=("eager", "compiled"))
def test_against_torch(torch, name, is_compiled):
    arguments, places, reference = cases(torch)[name]
    function = fireiron.function(name)
    if is_compiled:
        call = function
        function = torch.compile(lambda *arrays: call(*arrays), fullgraph=True)
    wide = [one.double() if hasattr(one, "is_floating_point") and one.is_floating_point() else one for one in arguments]
    factors = [torch.randn_like(one) for one in as_tuple(reference(*wide))]
    got = gradients(torch, function, arguments, places, factors)
    want = gradients(torch, reference, wide, places, factors)
    for place, gradient, right in zip(places, got, want, strict=True):
        assert gradient.shape == arguments[place].shape and gradient.dtype == arguments[place].dtype
        assert float((gradient.double() - right).norm() / right.norm()) < 4e-3


def as_tuple(results):
    return results if isinstance(results, tuple) else (results,)


def test_dropout_repeats_its_mask(torch):
    x = half(torch, 64, 512).requires_grad_()
    y = fireiron.function("dropout")(x, 7, 0.75)
    (dx,) = torch.autograd.grad(y.sum(), x)
    kept = (y != 0) | (x == 0)
    assert torch.equal(dx != 0, kept) and torch.allclose(dx[kept], torch.full_like(dx[kept], 1 / 0.75), rtol=1e-3)


def test_only_required_gradients_are_computed(torch):
    x, w = half(torch, 8, 512), half(torch, 512).requires_grad_()
    fireiron.function("rmsnorm")(x, w, 1e-5).sum().backward()
    assert w.grad.shape == (512,) and x.grad is None


def test_gradients_with_any_strides(torch):
    """Recorded calls have contiguous gradients; others are copied, also between replays."""
    x, w, bias = half(torch, 64, 256).requires_grad_(), half(torch, 256).requires_grad_(), half(torch, 256).requires_grad_()
    normed = fireiron.function("layernorm")
    plain = half(torch, 64, 256)
    for _ in range(3):
        for given in (plain, plain.t().contiguous().t(), plain[:1].expand(64, 256), torch.stack([plain, plain], -1)[..., 0]):
            ours = torch.autograd.grad(normed(x, w, bias, 1e-5), (x, w, bias), given)
            peers = torch.autograd.grad(torch.nn.functional.layer_norm(x, (256,), w, bias), (x, w, bias), given)
            for gradient, peer in zip(ours, peers, strict=True):
                assert float((gradient - peer).float().norm() / peer.float().norm()) < 5e-3


def test_refusals(torch):
    a, b = half(torch, 64, 64).requires_grad_(), half(torch, 64, 64)
    with pytest.raises(fireiron.errors.ArgumentError, match="has no gradient, but a tensor requires one"):
        fireiron.function("gemm_row_sum")(a, b)
    with pytest.raises(fireiron.errors.ArgumentError, match="out= is not supported"):
        fireiron.function("softmax")(a, out=b)
