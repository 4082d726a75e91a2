"""`fireiron.attention` on a GPU: PyTorch's tensors compared with its own attention, compiled, in CUDA graphs; CuPy's arrays."""

import pytest

from fireiron import *
from fireiron import attention as attend
from fireiron.gpu import launch

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not launch.gpu_available(), reason="needs a CUDA GPU and CuPy (pip install 'fireiron[cuda13]')"),
]


@pytest.fixture
def torch(monkeypatch):
    monkeypatch.delenv("FIREIRON_RECORDS", raising=False)
    monkeypatch.delenv("FIREIRON_REQUIRE_RECORD", raising=False)
    attend.clear()
    torch_module = pytest.importorskip("torch", reason="needs PyTorch")
    if not torch_module.cuda.is_available():
        pytest.skip("needs PyTorch for CUDA")
    torch_module.manual_seed(0)
    with torch_module.no_grad():
        yield torch_module


def heads(torch, batch, count, length, d, dtype="float16", layout="bhmd"):
    """Random (batch, heads, length, d), stored in an order."""
    if layout == "bmhd":
        return heads(torch, batch, length, count, d, dtype).transpose(1, 2)
    return torch.randn((batch, count, length, d), device="cuda").to(getattr(torch, dtype))


def softmax(torch, q, k, v, causal=False, window=None, changed=lambda s, m, n: s):
    """The result and the log-sum-exp, in float64."""
    q, k, v = (one.double() for one in (q, k, v))
    k, v = (one.repeat_interleave(q.shape[1] // k.shape[1], 1) for one in (k, v))
    m, n = torch.arange(q.shape[2], device="cuda")[:, None], torch.arange(k.shape[2], device="cuda")
    scores = changed(q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5, m, n)
    if causal or window:
        scores = scores.masked_fill(n > m, -float("inf"))
    if window:
        scores = scores.masked_fill(m >= n + window, -float("inf"))
    return scores.softmax(-1) @ v, scores.logsumexp(-1)


def close(torch, got, expected, dtype="float16"):
    """Within three roundings in the norm: of the probabilities, of the result, and of PyTorch's result, each at most 2^-p."""
    assert bool(torch.isfinite(got).all())
    assert float((got.double() - expected.double()).norm() / expected.double().norm()) < 3 * 2.0 ** -(8 if dtype == "bfloat16" else 11)


@pytest.mark.parametrize(
    ("queries", "keys", "d", "shared", "dtype", "layout", "causal"),
    [
        (256, 256, 64, 1, "float16", "bhmd", False),
        (300, 300, 128, 1, "float16", "bmhd", True),
        (128, 333, 128, 4, "bfloat16", "bmhd", False),
        (200, 200, 64, 2, "bfloat16", "bhmd", True),
        (1, 100, 96, 1, "float16", "bmhd", False),
        (64, 128, 256, 1, "float16", "bhmd", False),
    ],
)
def test_against_torch(torch, queries, keys, d, shared, dtype, layout, causal):
    q = heads(torch, 2, 4, queries, d, dtype, layout)
    k, v = (heads(torch, 2, 4 // shared, keys, d, dtype, layout) for _ in range(2))
    got = attend(q, k, v, causal=causal)
    wide = (one.repeat_interleave(shared, 1) for one in (k, v))
    close(torch, got, torch.nn.functional.scaled_dot_product_attention(q, *wide, is_causal=causal), dtype)
    close(torch, got, softmax(torch, q, k, v, causal)[0], dtype)
    assert got.shape == q.shape and got.dtype == q.dtype and got.stride() == q.stride()


def test_options(torch):
    """Windows, log-sum-exps, score formulas, given outputs, another stream, tensors unsupported by TMA."""
    q, k, v = (heads(torch, 2, 2, 200, 64, layout="bmhd") for _ in range(3))
    out, sums = torch.empty_like(q), torch.empty(2, 2, 200, device="cuda")
    expected, logarithms = softmax(torch, q, k, v, window=50, changed=lambda s, m, n: 5 * torch.tanh(s / 5) - 0.01 * (m - n))
    options = {"window": 50, "lse": True, "score": "5 * tanh(s / 5) - 0.01 * (m - n)"}
    given = attend(q, k, v, out=(out, sums), **options)
    assert given[0] is out and given[1] is sums
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    results = attend(q, k, v, stream=stream, **options)
    torch.cuda.synchronize()
    for result, logarithm in (given, results):
        close(torch, result, expected)
        torch.testing.assert_close(logarithm.double(), logarithms, rtol=1e-4, atol=1e-3)
    odd = torch.randn((2, 2, 200, 67), device="cuda", dtype=torch.half)[..., 1:65]
    close(torch, attend(odd, odd, odd), softmax(torch, odd, odd, odd)[0])
    with pytest.raises(ArgumentError, match="out= is not supported"), torch.enable_grad():
        attend(q.clone().requires_grad_(), k, v, out=out)


GRADIENTS = [
    (256, 256, 64, 1, "float16", "bhmd", {}),
    (300, 300, 128, 1, "float16", "bmhd", {"causal": True}),
    (128, 333, 128, 4, "bfloat16", "bmhd", {}),
    (200, 200, 64, 2, "bfloat16", "bhmd", {"window": 50}),
    (70, 150, 256, 1, "float16", "bhmd", {}),
    (200, 200, 96, 1, "float16", "bmhd", {"causal": True}),
    (200, 200, 128, 1, "float16", "bhmd", {"score": "5 * tanh(s / 5) - 0.01 * (m - n)"}),
]


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize(("queries", "keys", "d", "shared", "dtype", "layout", "options"), GRADIENTS)
def test_gradients(torch, queries, keys, d, shared, dtype, layout, options, compiled):
    """Gradients, also of the log-sum-exp, compared with float64."""
    if compiled and options:
        pytest.skip("the options are those of eager calls")
    q = heads(torch, 2, 4, queries, d, dtype, layout)
    k, v = (heads(torch, 2, 4 // shared, keys, d, dtype, layout) for _ in range(2))
    grad, of_sums = torch.randn_like(q), torch.randn(q.shape[:3], device="cuda")

    def loss(*arrays):
        out, sums = attend(*arrays, lse=True, **options)
        return (out.float() * grad.float()).sum() + (sums * of_sums).sum()

    reference = {name: value for name, value in options.items() if name != "score"}
    if "score" in options:
        reference["changed"] = lambda s, m, n: 5 * torch.tanh(s / 5) - 0.01 * (m - n)
    with torch.enable_grad():
        arrays, wide = [one.clone().requires_grad_() for one in (q, k, v)], [one.double().requires_grad_() for one in (q, k, v)]
        got = torch.autograd.grad((torch.compile(loss, fullgraph=True) if compiled else loss)(*arrays), arrays)
        out, sums = softmax(torch, *wide, **reference)
        right = torch.autograd.grad((out * grad.double()).sum() + (sums * of_sums).sum(), wide)
    for gradient, other in zip(got, right, strict=True):
        assert gradient.dtype == q.dtype
        close(torch, gradient, other, dtype)


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize(("queries", "keys", "d", "options"), [
    (256, 512, 64, {"causal": True}), (200, 333, 128, {"causal": True}), (72, 1000, 128, {"window": 33}), (64, 192, 256, {"causal": True}),
])  # fmt: skip
def test_keys_that_no_query_attends_to(torch, queries, keys, d, options, deterministic):
    """NaN and infinity in such keys reach no result, and their gradients are zero."""
    q, k, v = (heads(torch, 2, count, length, d) for count, length in ((4, queries), (2, keys), (2, keys)))
    grad, results = torch.randn_like(q), []
    for key, value in ((0.0, 0.0), (float("nan"), float("inf"))):
        k[:, :, queries:], v[:, :, queries:] = key, value
        with torch.enable_grad():
            arrays = [one.clone().requires_grad_() for one in (q, k, v)]
            out = attend(*arrays, deterministic=deterministic, **options)
            results.append((out.detach(), *torch.autograd.grad(out, arrays, grad)))
    assert not any(one[:, :, queries:].any() for one in results[1][2:])
    for got, other in zip(results[1], results[0], strict=True):
        torch.testing.assert_close(got, other, rtol=1e-2, atol=1e-3)


@pytest.mark.parametrize("dynamic", [False, True])
def test_compiled(torch, dynamic):
    """One graph, in which the kernel is an operator between others; nothing is registered before."""

    def layer(x, weight):
        q, k, v = (x @ weight).unflatten(-1, (3, 4, 64)).permute(2, 0, 3, 1, 4)
        out, sums = attend(q, k, v, causal=True, lse=True)
        return (attend(q, k, v, score="s - 0.01 * abs(m - n)") + out).transpose(1, 2).flatten(2), sums

    weight = torch.randn((256, 768), device="cuda", dtype=torch.half) / 16
    compiled = torch.compile(layer, fullgraph=True, dynamic=dynamic)
    for length in (128, 72):
        x = torch.randn((2, length, 256), device="cuda", dtype=torch.half)
        for got, expected in zip(compiled(x, weight), layer(x, weight), strict=True):
            torch.testing.assert_close(
                got, expected, rtol=1e-2, atol=1e-2
            )  # PyTorch fuses and rounds differently, so no bound of ours applies


def test_operator_checks_of_pytorch(torch):
    q, k = heads(torch, 2, 4, 64, 64, layout="bmhd"), heads(torch, 2, 2, 72, 64)
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        fake = torch.empty((2, 4, 64, 64), device="cuda", dtype=torch.half)
        assert attend(fake, fake, fake).shape == fake.shape
    for operator in (torch.ops.fireiron.attention, torch.ops.fireiron.attention_lse):
        arguments = (q, k, k, True, None, None, None, None)
        torch.library.opcheck(operator.default, arguments, test_utils=("test_schema", "test_faketensor"))


def test_captured(torch):
    """A CUDA graph replays the launch on the current memory contents."""
    q, k, v = (heads(torch, 1, 2, 128, 64) for _ in range(3))
    attend(q, k, v)  # compiled and loaded
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = attend(q, k, v)
    for tensor in (q, k, v):
        tensor.normal_()
    graph.replay()
    torch.cuda.synchronize()
    close(torch, out, softmax(torch, q, k, v)[0])


def test_cupy():
    cupy = pytest.importorskip("cupy")
    q = cupy.random.standard_normal((2, 100, 64), dtype="float32").astype("float16")
    wide = q.astype("float64")
    scores = cupy.exp(wide @ wide.transpose(0, 2, 1) / 8)
    got = attend(q, q, q)
    assert type(got) is type(q) and got.flags.c_contiguous
    cupy.testing.assert_allclose(got.astype("float64"), scores / scores.sum(-1, keepdims=True) @ wide, atol=5e-3)


def test_deterministic_gradients(torch):
    """The same bits in 20 runs, by the option and by PyTorch's flag, and the gradients of PyTorch."""
    q, k, v, grad = (heads(torch, 2, 4, 500, 64) for _ in range(4))
    arrays = [tensor.detach().requires_grad_() for tensor in (q, k, v)]
    with torch.enable_grad():
        result = attend(*arrays, causal=True, deterministic=True)
        other = torch.nn.functional.scaled_dot_product_attention(*arrays, is_causal=True)
        plain = attend(*arrays, causal=True)
    first = torch.autograd.grad(result, arrays, grad, retain_graph=True)
    for gradient, right in zip(first, torch.autograd.grad(other, arrays, grad), strict=True):
        assert float((gradient.double() - right.double()).norm() / right.double().norm()) < 3e-3
    for _ in range(20):
        assert all(map(torch.equal, torch.autograd.grad(result, arrays, grad, retain_graph=True), first))
    torch.use_deterministic_algorithms(True)
    try:
        assert all(map(torch.equal, torch.autograd.grad(plain, arrays, grad), first))
    finally:
        torch.use_deterministic_algorithms(False)


def test_gradients_of_packed_sequences(torch):
    """Those of each sequence, with two query heads for each key head."""
    from fireiron.strategies import attention_packed

    lengths = [1, 100, 0, 300, 129]
    offsets = torch.tensor([0, 1, 101, 101, 401, 530], device="cuda", dtype=torch.int32)
    q, k, v, grad = (torch.randn((530, count, 64), device="cuda", dtype=torch.float16) for count in (4, 2, 2, 4))
    arrays = [tensor.requires_grad_() for tensor in (q, k, v)]
    with torch.enable_grad():
        result, logs = attention_packed.attend(*arrays, offsets, causal=True, lse=True)
        got = torch.autograd.grad((result, logs), arrays, (grad, torch.ones_like(logs)))
        parts = [tensor.split(lengths) for tensor in (*arrays, grad)]
        total = 0
        for q_part, k_part, v_part, grad_part in zip(*parts, strict=True):
            if len(q_part):
                wide = [tensor.double().repeat_interleave(2, 1).transpose(0, 1) for tensor in (k_part, v_part)]
                scores = q_part.double().transpose(0, 1) @ wide[0].transpose(1, 2) / 8
                scores = scores.masked_fill(torch.ones_like(scores, dtype=torch.bool).triu(1), -float("inf"))
                total = total + (scores.softmax(-1) @ wide[1] * grad_part.double().transpose(0, 1)).sum() + scores.logsumexp(-1).sum()
        right = torch.autograd.grad(total, arrays)
    for gradient, other in zip(got, right, strict=True):
        assert float((gradient.double() - other.double()).norm() / other.double().norm()) < 3e-3


@pytest.mark.parametrize("score", [None, "2 * tanh(s / 2) - 0.1 * (m - n)"])
def test_isolated_sequences(torch, score):
    """NaN and infinity of a sequence change no bit of another one, and 20 calls return the same bits; gradients are those without `isolated`."""
    from fireiron.strategies import attention_packed, attention_packed_backward

    offsets = torch.tensor([0, 1, 101, 101, 401, 530], device="cuda", dtype=torch.int32)
    q, k, v, grad = (torch.randn((536, count, 64), device="cuda", dtype=torch.float16) for count in (4, 2, 2, 4))
    words = {"causal": True, "score": score, "isolated": True}
    result, logs = attention_packed.attend(q, k, v, offsets, lse=True, **words)
    plain = attention_packed.attend(q, k, v, offsets, causal=True, score=score)
    assert float((result - plain).norm() / plain.norm()) < 1e-3 and not result[530:].any()
    assert all(torch.equal(attention_packed.attend(q, k, v, offsets, **words), result) for _ in range(20))
    gradients = attention_packed_backward.gradients(grad, q, k, v, result, logs, offsets, **words)
    others = attention_packed_backward.gradients(grad, q, k, v, result, logs, offsets, **(words | {"isolated": False}))
    for gradient, other in zip(gradients, others, strict=True):
        assert float((gradient - other).float().norm() / other.float().norm()) < 2e-3
    for array in (q, k, v, grad):
        array[101:401:2], array[102:401:2], array[530:] = float("nan"), float("inf"), float("nan")
    got, lse = attention_packed.attend(q, k, v, offsets, lse=True, **words)
    kept = [*range(101), *range(401, 530)]
    assert torch.equal(got[kept], result[kept]) and torch.equal(lse[kept], logs[kept]) and not got[101:401].isfinite().any()
    after = attention_packed_backward.gradients(grad, q, k, v, got, lse, offsets, **words)
    assert torch.equal(after[1][kept], gradients[1][kept]) and torch.equal(after[2][kept], gradients[2][kept])
    assert float((after[0][kept] - gradients[0][kept]).float().norm() / gradients[0][kept].float().norm()) < 1e-4
