"""`fireiron.paged_attention` and `fireiron.latent_attention` on a GPU: compared with PyTorch in float32, with NaN in all unused memory; equal
results in 20 calls; other lengths and tables in later calls and in CUDA graphs; compiled.
"""

import math

import pytest

import fireiron
from fireiron import *
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


def pages_of(torch, lengths, pages, page, *shape, dtype="float16", unused=math.nan):
    """A cache in random pages with NaN, or another number, in unused memory, its table with -1 in unused entries, and the lengths."""
    batch = len(lengths)
    cache = torch.randn(batch * pages + 3, page, *shape, device="cuda")
    table = torch.randperm(batch * pages + 3)[: batch * pages].view(batch, pages)
    used = torch.zeros(cache.shape[:2], dtype=torch.bool)
    for b, length in enumerate(lengths):
        n = torch.arange(length)
        used[table[b, n // page], n % page] = True
        table[b, -(-length // page) :] = -1
    cache[~used.cuda()] = unused
    return cache.to(getattr(torch, dtype)), table.int().cuda(), torch.tensor(lengths, dtype=torch.int32, device="cuda")


def softmax(torch, q, k, v, length):
    """The result for one sequence, in float32; keys and values are (n, heads, d)."""
    k, v = (stored[:length].float().repeat_interleave(len(q) // stored.shape[1], 1).transpose(0, 1) for stored in (k, v))
    m = torch.arange(q.shape[1], device="cuda")[:, None] + length - q.shape[1]
    s = (q.float() @ k.transpose(1, 2) * q.shape[-1] ** -0.5).masked_fill(torch.arange(length, device="cuda") > m, -math.inf)
    return torch.nan_to_num(s.softmax(-1)) @ v


def sequence(table, cache, b):
    return cache.float()[table[b].clamp(min=0).long()].flatten(0, 1)


def close(torch, got, expected, dtype="float16"):
    assert bool(torch.isfinite(got).all())
    assert float((got.float() - expected).norm()) <= 4 * 2.0 ** -(8 if dtype == "bfloat16" else 11) * float(expected.norm())


@pytest.mark.parametrize(
    ("queries", "heads", "groups", "d", "page", "dtype", "cache"),
    [
        (1, 32, 8, 128, 64, "float16", "float16"),
        (1, 8, 8, 64, 16, "bfloat16", "bfloat16"),
        (4, 16, 2, 128, 128, "float16", "float16"),
        (2, 8, 1, 256, 16, "float16", "float16"),
        (1, 32, 8, 128, 64, "float16", "float8_e4m3fn"),
        (4, 16, 2, 64, 16, "bfloat16", "float8_e4m3fn"),
        (1, 8, 8, 80, 16, "float16", "float8_e4m3fn"),
        (8, 16, 2, 256, 64, "float16", "float8_e4m3fn"),
    ],
)
def test_pages(torch, queries, heads, groups, d, page, dtype, cache):
    lengths = [1000, 0, 1, 4 * page, 515]
    k, table, sizes = pages_of(torch, lengths, 2048 // page, page, groups, d, dtype=cache)
    v = torch.flip(k.float(), [3]).to(k.dtype)
    q = torch.randn(5, heads, queries, d, device="cuda").to(getattr(torch, dtype))
    got = fireiron.paged_attention(q, k, v, table, sizes)
    expected = torch.stack([softmax(torch, q[b], *(sequence(table, one, b) for one in (k, v)), size) for b, size in enumerate(lengths)])
    close(torch, got, expected, dtype)
    for _ in range(20):
        assert torch.equal(fireiron.paged_attention(q, k, v, table, sizes), got)
    fewer = sizes // 2
    half = fireiron.paged_attention(q, k, v, table, fewer)
    expected = torch.stack(
        [softmax(torch, q[b], *(sequence(table, one, b) for one in (k, v)), size // 2) for b, size in enumerate(lengths)]
    )
    close(torch, half, expected, dtype)


@pytest.mark.parametrize(("queries", "heads", "page", "dtype"), [(1, 128, 64, "bfloat16"), (2, 16, 16, "float16"), (1, 20, 64, "float16")])
def test_latent(torch, queries, heads, page, dtype):
    lengths = [1000, 0, 63, 640]
    cache, table, sizes = pages_of(torch, lengths, 2048 // page, page, 576, dtype=dtype)
    q = torch.randn(4, heads, queries, 576, device="cuda").to(cache.dtype)
    got, logs = fireiron.latent_attention(q, cache, table, sizes, lse=True)
    rows = [sequence(table, cache, b)[:, None] for b in range(4)]
    expected = torch.stack([softmax(torch, q[b], rows[b], rows[b][..., :512], size) for b, size in enumerate(lengths)])
    close(torch, got, expected, dtype)
    assert bool((logs[1] == -math.inf).all())
    for _ in range(20):
        assert torch.equal(fireiron.latent_attention(q, cache, table, sizes), got)


@pytest.mark.parametrize("cache", ["float16", "float8_e4m3fn"])
def test_large_scores(torch, cache):
    """Scores up to 10^5, and infinity in unused memory (NaN in 8 bits): no result is NaN, and the largest scores determine them."""
    lengths = [1000, 0, 17, 512]
    k, table, sizes = pages_of(torch, lengths, 16, 64, 2, 128, dtype=cache, unused=math.inf)
    q = (torch.randn(4, 8, 1, 128, device="cuda") * 2000).half()
    got = fireiron.paged_attention(q, k, k, table, sizes)
    expected = torch.stack([softmax(torch, q[b], *[sequence(table, k, b)] * 2, size) for b, size in enumerate(lengths)])
    assert bool(torch.isfinite(got).all()) and float((got.float() - expected).norm()) <= 0.02 * float(expected.norm())


def test_large_scores_of_latent_vectors(torch):
    lengths = [640, 0, 17, 130]
    cache, table, sizes = pages_of(torch, lengths, 16, 64, 576, dtype="bfloat16", unused=math.inf)
    q = (torch.randn(4, 128, 1, 576, device="cuda") * 2000).bfloat16()
    got = fireiron.latent_attention(q, cache, table, sizes)
    rows = [sequence(table, cache, b)[:, None] for b in range(4)]
    expected = torch.stack([softmax(torch, q[b], rows[b], rows[b][..., :512], size) for b, size in enumerate(lengths)])
    assert bool(torch.isfinite(got).all()) and float((got.float() - expected).norm()) <= 0.02 * float(expected.norm())


def test_compiled_and_captured(torch):
    """A CUDA graph reads lengths when it is replayed."""
    k, table, sizes = pages_of(torch, [700, 33], 16, 64, 2, 64)
    q = torch.randn(2, 8, 64, device="cuda").half()
    eager = fireiron.paged_attention(q, k, k, table, sizes)
    compiled = torch.compile(lambda *arrays: fireiron.paged_attention(*arrays) * 2, fullgraph=True)
    torch.testing.assert_close(compiled(q, k, k, table, sizes), eager * 2)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = fireiron.paged_attention(q, k, k, table, sizes)
    sizes.copy_(torch.tensor([100, 1], dtype=torch.int32))
    graph.replay()
    torch.testing.assert_close(out, fireiron.paged_attention(q, k, k, table, sizes))
    assert not torch.equal(out, eager)
