"""The gradients of `fireiron.conv2d` on a GPU, through PyTorch, against PyTorch's convolution in float32."""

import pytest

from fireiron import conv2d
from fireiron.conv2d_gradients import input_gradient

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.gpu

CASES = {
    "same": ((8, 64, 14, 18), (72, 64, 3, 3), {"padding": 1}),
    "stride": ((8, 64, 16, 12), (128, 64, 3, 3), {"stride": 2, "padding": 1}),
    "odd size": ((3, 64, 13, 9), (64, 64, 3, 3), {"stride": 2, "padding": 1}),
    "unequal": ((3, 32, 18, 11), (40, 32, 3, 1), {"padding": (2, 0), "dilation": (2, 1), "stride": (1, 2)}),
    "1x1": ((4, 48, 8, 8), (96, 48, 1, 1), {}),
    "1x1 with stride": ((4, 128, 8, 8), (256, 128, 1, 1), {"stride": 2}),
    "three channels": ((2, 3, 33, 33), (64, 3, 7, 7), {"stride": 2, "padding": 3}),
    "depthwise": ((8, 64, 14, 40), (64, 1, 3, 3), {"padding": 1, "groups": 64}),
    "depthwise with stride": ((3, 24, 13, 9), (24, 1, 5, 3), {"stride": 2, "padding": (2, 1), "groups": 24}),
}


def tensors(name, dtype, last):
    shape, filters, options = CASES[name]
    x, w = (torch.randn(size, device="cuda").to(getattr(torch, dtype)) for size in (shape, filters))
    x, w = (one.to(memory_format=torch.channels_last) if last else one for one in (x, w))
    return x, w, torch.randn(filters[0], device="cuda").to(x.dtype), options


def error(got, want):
    return float((got.float() - want).norm() / want.norm())


def both(convolve, x, w, bias, grad, **options):
    given = [one.detach().requires_grad_() for one in (x, w, bias)]
    result = convolve(*given, **options)
    result.backward(grad.to(result.dtype))
    return (result.detach(), *(one.grad for one in given))


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("last", [True, False], ids=["channels_last", "contiguous"])
def test_right(name, dtype, last):
    x, w, bias, options = tensors(name, dtype, last)
    plain = torch.nn.functional.conv2d
    grad = torch.randn_like(plain(x.float(), w.float(), **options)).to(x.dtype)
    for _ in range(2):  # the second call replays
        got = both(conv2d, x, w, bias, grad, **options)
        want = both(plain, x.float(), w.float(), bias.float(), grad, **options)
        assert all(error(*pair) < (2e-3 if dtype == "float16" else 1e-2) for pair in zip(got, want, strict=True))
    assert torch.equal(got[2], both(conv2d, x, w, bias, grad, **options)[2])  # the order of additions is fixed


def test_compiled():
    """torch.compile traces the call and its gradients as operators."""
    x, w, bias, options = tensors("stride", "float16", True)

    def relu(x, w, bias, **options):
        return conv2d(x, w, bias, activation="relu", **options)

    def plain(x, w, bias, **options):
        return torch.relu(torch.nn.functional.conv2d(x, w, bias, **options))

    grad = torch.randn(8, 128, 8, 6, device="cuda", dtype=torch.half)
    want = both(plain, x.float(), w.float(), bias.float(), grad, **options)
    for call in (relu, torch.compile(relu, fullgraph=True)):
        assert all(error(*pair) < 5e-3 for pair in zip(both(call, x, w, bias, grad, **options), want, strict=True))


def test_given_result():
    x, w, _, options = tensors("stride", "float16", True)
    grad = torch.randn(8, 128, 8, 6, device="cuda", dtype=torch.half).to(memory_format=torch.channels_last)
    want = input_gradient(grad, w, (16, 12), **options)
    for out in (torch.full_like(x, float("nan")), torch.full_like(x, float("nan")).contiguous()):
        assert input_gradient(grad, w, (16, 12), out=out, **options) is out and torch.equal(out, want)


def test_refused():
    x = torch.randn(2, 64, 9, 9, device="cuda", dtype=torch.half, requires_grad=True)
    w = torch.randn(64, 64, 3, 3, device="cuda", dtype=torch.half)
    with pytest.raises(Exception, match="this call has no gradient"):
        conv2d(x, w, activation="silu")
