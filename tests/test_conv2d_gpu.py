"""`fireiron.conv2d` on a GPU against PyTorch's convolution in float32."""

import pytest

from fireiron import conv2d

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.gpu

CASES = {
    "same": ((5, 64, 13, 17), (72, 64, 3, 3), {"padding": 1}),
    "stride": ((7, 64, 15, 9), (64, 64, 3, 3), {"stride": 2, "padding": 1}),
    "unequal": ((3, 32, 18, 11), (40, 32, 3, 1), {"padding": (2, 0), "dilation": (2, 1), "stride": (1, 2)}),
    "many channels": ((9, 320, 7, 7), (200, 320, 3, 3), {"padding": 1}),
    "1x1": ((4, 48, 9, 9), (96, 48, 1, 1), {}),
    "1x1 with stride": ((4, 128, 9, 9), (256, 128, 1, 1), {"stride": 2}),
    "three channels": ((2, 3, 65, 65), (64, 3, 7, 7), {"stride": 2, "padding": 3}),
    "one image": ((1, 512, 7, 7), (512, 512, 3, 3), {"padding": 1}),
    "large steps": ((2, 64, 40, 41), (64, 64, 5, 4), {"stride": (8, 3), "padding": (7, 2), "dilation": (3, 5)}),
    "one row": ((33, 64, 1, 70), (64, 64, 1, 9), {"padding": (0, 4)}),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("last", [True, False], ids=["channels_last", "contiguous"])
def test_right(name, dtype, last):
    shape, filters, options = CASES[name]
    x, w = (torch.randn(size, device="cuda").to(getattr(torch, dtype)) for size in (shape, filters))
    if last:
        x, w = (one.to(memory_format=torch.channels_last) for one in (x, w))
    got, want = conv2d(x, w, **options), torch.nn.functional.conv2d(x.float(), w.float(), **options)
    assert got.shape == want.shape and got.dtype == x.dtype
    assert float((got.float() - want).norm() / want.norm()) < (1e-3 if dtype == "float16" else 6e-3)
    out = torch.full_like(want, float("nan"), dtype=x.dtype)
    assert conv2d(x, w, out=out, **options) is out and torch.equal(out, got)


def test_compiled():
    """torch.compile traces the call as an operator."""
    x, w = (
        torch.randn(size, device="cuda", dtype=torch.half).to(memory_format=torch.channels_last) for size in ((2, 64, 9, 9), (64, 64, 3, 3))
    )
    compiled = torch.compile(lambda x, w: torch.relu(conv2d(x, w, padding=1)), fullgraph=True)
    want = torch.relu(torch.nn.functional.conv2d(x.float(), w.float(), padding=1))
    assert float((compiled(x, w).float() - want).norm() / want.norm()) < 1e-3


@pytest.mark.parametrize("last", [True, False], ids=["channels_last", "contiguous"])
def test_epilogue(last):
    x, w, options = CASES["same"]
    x, w = (torch.randn(size, device="cuda", dtype=torch.half) for size in (x, w))
    plain = torch.nn.functional.conv2d(x.float(), w.float(), **options)
    bias, residual = torch.randn(72, device="cuda", dtype=torch.half), torch.randn_like(plain).half()
    if last:
        x, w, residual = (one.to(memory_format=torch.channels_last) for one in (x, w, residual))
    for names in ((), ("bias",), ("residual",), ("bias", "residual")):
        total = plain + (bias.float()[:, None, None] if "bias" in names else 0) + (residual.float() if "residual" in names else 0)
        given = {name: array for name, array in (("bias", bias), ("residual", residual)) if name in names}
        for activation, of in ((None, lambda one: one), ("relu", torch.relu), ("silu", torch.nn.functional.silu)):
            want = of(total)
            for _ in range(2):  # the second call replays
                got = conv2d(x, w, activation=activation, **given, **options)
                assert float((got.float() - want).norm() / want.norm()) < 1e-3
