"""NaN and infinity in one row, image, token or sequence reach no other one, 20 calls return the same bits, and large scores stay finite."""

import pytest

import fireiron
from fireiron.gpu import launch

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not launch.gpu_available(), reason="needs a CUDA GPU and CuPy (pip install 'fireiron[cuda13]')"),
]

REPEATS = 20


@pytest.fixture(autouse=True)
def seed(monkeypatch):
    monkeypatch.delenv("FIREIRON_RECORDS", raising=False)
    monkeypatch.delenv("FIREIRON_REQUIRE_RECORD", raising=False)
    torch.manual_seed(0)


def half(*shape, scale=1.0):
    return (torch.randn(shape, device="cuda") * scale).half()


def product(rows, columns, depth):
    return lambda: (fireiron.matmul, [half(rows, depth), half(depth, columns)])


def rows_of(name, *further):
    return lambda: (fireiron.function(name), [half(37, 1000), *(one(1000) for one in further)])


def convolution(shape, filters, **options):
    def case():
        x, w = half(*shape).to(memory_format=torch.channels_last), half(*filters)
        return lambda x, w: fireiron.conv2d(x, w, **options), [x, w]

    return case


def gradient_of_images(shape, filters, **options):
    def case():
        x, w = half(*shape).to(memory_format=torch.channels_last), half(*filters)
        grad = half(*torch.nn.functional.conv2d(x, w, **options).shape).to(memory_format=torch.channels_last)

        def call(grad, x, w):
            x = x.detach().requires_grad_()
            return torch.autograd.grad(fireiron.conv2d(x, w, **options), x, grad)[0]

        return call, [grad, x, w]

    return case


def experts(tokens):
    """Rows of padding read token 0, so it is the damaged one."""

    def case():
        scores = torch.randn(tokens, 4, device="cuda")
        gate_up, down = half(4, 160, 72, scale=0.2), half(4, 72, 80, scale=0.2)
        return lambda x: fireiron.experts(x, scores, gate_up, down, top_k=2), [half(tokens, 72)]

    return case


def losses():
    weight, targets = half(500, 96), torch.randint(500, (70,), device="cuda")
    return lambda x: fireiron.linear_cross_entropy(x, weight, targets, reduction="none"), [half(70, 96)]


def state_space():
    dt, a = torch.rand(3, 300, 4, device="cuda") * 0.2, -4 * torch.rand(4, device="cuda")
    b, c = (half(3, 300, 2, 64, scale=0.3) for _ in range(2))
    return lambda x: fireiron.ssd(x, dt, a, b, c), [half(3, 300, 4, 64)]


def attention(**options):
    return lambda: (lambda q, k, v: fireiron.attention(q, k, v, **options), [half(3, 4, 200, 128) for _ in range(3)])


CASES = {
    "few rows": product(7, 512, 1024),
    "many rows": product(300, 264, 200),
    "rows that no vector loads": product(129, 127, 77),
    "parts of K": product(64, 64, 8192),
    "softmax": rows_of("softmax"),
    "convolution": convolution((4, 64, 14, 14), (72, 64, 3, 3), padding=1),
    "depthwise convolution": convolution((4, 64, 28, 28), (64, 1, 3, 3), padding=1, groups=64),
    "depthwise convolution with stride": convolution((4, 64, 28, 28), (64, 1, 3, 3), padding=1, stride=2, groups=64),
    "gradient of images": gradient_of_images((4, 64, 14, 14), (72, 64, 3, 3), padding=1),
    "gradient of images with stride": gradient_of_images((4, 64, 14, 14), (72, 64, 3, 3), padding=1, stride=2),
    "gradient of images, depthwise": gradient_of_images((4, 64, 28, 28), (64, 1, 3, 3), padding=1, groups=64),
    "experts, few tokens": experts(9),
    "experts, many tokens": experts(400),
    "linear cross-entropy": losses,
    "state space duality": state_space,
    "attention": attention(),
    "causal attention": attention(causal=True),
    "attention with a window": attention(window=50, causal=True),
}
"""By name: functions that return a call and its arguments. Row 0 of the first argument determines row 0 of the result."""


@pytest.mark.parametrize("name", CASES)
def test_other_rows_do_not_change(name):
    call, arrays = CASES[name]()
    want = call(*arrays)
    assert bool(want.isfinite().all())
    for value in (float("inf"), -float("inf"), float("nan")):
        arrays[0][0] = value
        got = call(*arrays)
        assert torch.equal(got[1:], want[1:]), value
    assert bool(got[0].isnan().any())


@pytest.mark.parametrize("name", CASES)
def test_twenty_calls_return_the_same_bits(name):
    call, arrays = CASES[name]()
    want = call(*arrays).clone()
    for _ in range(REPEATS):
        assert torch.equal(call(*arrays), want)


@pytest.mark.parametrize("length", [1000, 300_000])
def test_scans_pass_nan_on_only_to_later_elements(length):
    call, x, place = fireiron.function("scan"), torch.randn(3, length, device="cuda"), length // 3
    want = call(x)
    x[1, place] = float("nan")
    got = call(x)
    assert torch.equal(got[[0, 2]], want[[0, 2]]) and torch.equal(got[1, :place], want[1, :place])
    assert bool(got[1, place:].isnan().all())
    assert all(torch.equal(call(x)[1, :place], got[1, :place]) for _ in range(REPEATS))


@pytest.mark.parametrize("d", [64, 128, 256])
@pytest.mark.parametrize("causal", [False, True])
def test_large_scores_of_attention(d, causal):
    """Scores with a standard deviation of 32 to 64: results and gradients are those of float64."""
    q, k, v, grad = half(1, 2, 150, d, scale=8), half(1, 2, 150, d, scale=64 / d**0.5), half(1, 2, 150, d), half(1, 2, 150, d)
    ours, wide = ([one.detach().to(kind).requires_grad_() for one in (q, k, v)] for kind in (torch.half, torch.double))
    got = fireiron.attention(*ours, causal=causal)
    scores = wide[0] @ wide[1].transpose(-1, -2) * d**-0.5
    mask = torch.ones(150, 150, device="cuda", dtype=torch.bool).triu(1) if causal else torch.zeros(1, device="cuda", dtype=torch.bool)
    want = scores.masked_fill(mask, -float("inf")).softmax(-1) @ wide[2]
    assert near(got.detach(), want.detach(), 1e-2)
    pairs = zip(torch.autograd.grad(got, ours, grad), torch.autograd.grad(want, wide, grad.double()), strict=True)
    assert all(near(mine, other, 2e-2) for mine, other in pairs)


def test_large_logits_of_cross_entropy():
    """Logits in the thousands: losses and gradients are those of float64."""
    targets = torch.randint(500, (70,), device="cuda")
    arrays = half(70, 96, scale=20), half(500, 96, scale=20)
    ours, wide = ([one.detach().to(kind).requires_grad_() for one in arrays] for kind in (torch.half, torch.double))
    got = fireiron.linear_cross_entropy(*ours, targets, reduction="sum")
    want = torch.nn.functional.cross_entropy(wide[0] @ wide[1].T, targets, reduction="sum")
    assert near(got.detach(), want.detach(), 1e-3)
    pairs = zip(torch.autograd.grad(got, ours), torch.autograd.grad(want, wide), strict=True)
    assert all(near(mine, other, 2e-2) for mine, other in pairs)


def near(got, want, bound):
    return bool(got.isfinite().all()) and float((got.double() - want).norm()) <= bound * float(want.norm())
