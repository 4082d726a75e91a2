"""Gradients of `fireiron.attention` in the simulator (oracle: float64, whose gradients are compared with differences)."""

import re

import numpy as np
import pytest
from printed_text import COMPILER, HostProgram, Printed

from fireiron import *
from fireiron import attention_gradients
from fireiron.attention import attention
from fireiron.attention_gradients import GradientOptions
from fireiron.errors import ArgumentError
from fireiron.front.call import Request
from fireiron.gpu.toolchain import compile_cuda, toolchains
from fireiron.strategies import attention_backward, attention_backward_queries

needs_nvrtc = pytest.mark.skipif(not toolchains(), reason="no NVRTC installed (pip install 'fireiron[check]')")


def capped(s, m, n):
    """A soft-capped score with a linear bias, and its derivative."""
    return 20 * np.tanh(s / 20) - 0.1 * (m - n), 1 - np.tanh(s / 20) ** 2


CAPPED = "20 * tanh(s / 20) - 0.1 * (m - n)"


def forward(q, k, v, scale, causal=False, window=None, score=None):
    """The result, the log-sum-exp, the probabilities and the derivative of the scores, in float64; keys repeated for each query head."""
    s = np.einsum("bhmd,bhnd->bhmn", q, k) * scale
    m, n = np.arange(s.shape[2])[:, None], np.arange(s.shape[3])
    s, slope = (s, np.ones_like(s)) if score is None else capped(s, m, n)
    seen = np.ones((len(m), len(n)), bool)
    seen &= (n <= m) | (not causal and window is None)
    seen &= window is None or m < n + (window or 0)
    s = np.where(seen, s, -np.inf)
    top = np.where(seen.any(1)[:, None], s.max(-1, keepdims=True), 0)
    e = np.exp(s - top)
    total = e.sum(-1, keepdims=True)
    p = np.divide(e, total, out=np.zeros_like(e), where=total > 0)
    with np.errstate(divide="ignore"):
        return p @ v, (top + np.log(total))[..., 0], p, slope


def by_numpy(q, k, v, do, scale, dlse=None, **options):
    """The gradients in float64."""
    q, k, v, do = (one.astype(np.float64) for one in (q, k, v, do))
    heads, shared = k.shape[1], q.shape[1] // k.shape[1]
    k, v = (np.repeat(one, shared, 1) for one in (k, v))
    _, _, p, slope = forward(q, k, v, scale, **options)
    dp = do @ np.swapaxes(v, 2, 3)
    delta = (p * dp).sum(-1, keepdims=True) - (0 if dlse is None else dlse[..., None])
    ds = p * (dp - delta) * slope * scale
    of_keys = [np.swapaxes(ds, 2, 3) @ q, np.swapaxes(p, 2, 3) @ do]
    return ds @ k, *(one.reshape(len(one), heads, shared, *one.shape[2:]).sum(2) for one in of_keys)


def inputs(q_shape, k_shape, dtype="float16", seed=0):
    generator = np.random.default_rng(seed)
    return [generator.standard_normal(shape).astype(dtype) for shape in (q_shape, k_shape, k_shape, q_shape)]


def require(got, right, tolerance=2e-3):
    for gradient, other in zip(got, right, strict=True):
        assert gradient.shape == other.shape
        assert np.linalg.norm(gradient.astype(float) - other) <= tolerance * np.linalg.norm(other) + 1e-6


CASES = {
    "sm_80": ((1, 2, 33, 64), (1, 2, 70, 64), "sm_80", {}),
    "wgmma, causal": ((1, 1, 70, 64), (1, 1, 70, 64), "sm_90a", {"causal": True}),
    "window, padded heads, shared keys": ((1, 4, 40, 40), (1, 2, 77, 40), "sm_80", {"window": 9}),
    "wgmma, shared keys": ((1, 2, 40, 128), (1, 1, 150, 128), "sm_90a", {"window": 9}),
    "score": ((1, 1, 70, 64), (1, 1, 70, 64), "sm_90a", {"causal": True, "score": CAPPED}),
    "wgmma, causal, shared keys": ((1, 2, 100, 64), (1, 1, 150, 64), "sm_90a", {"causal": True}),
    "wgmma, 256": ((1, 1, 70, 256), (1, 1, 70, 256), "sm_90a", {}),
    "tiles of 64 queries": ((1, 2, 128, 64), (1, 2, 150, 64), "sm_90a", {"causal": True}),
    "tiles of 64 queries, shared keys": ((1, 4, 64, 128), (1, 2, 130, 128), "sm_90a", {"window": 9}),
    "tiles of 64 queries, 256": ((2, 1, 64, 256), (2, 1, 130, 256), "sm_90a", {}),
    "queries without keys": ((2, 1, 50, 64), (2, 1, 10, 64), "sm_80", {"window": 4}),
    "more queries": ((1, 1, 130, 64), (1, 1, 3, 64), "sm_80", {"causal": True}),
}


@pytest.mark.sampled(12)
@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_gradients_equal_float64(name, deterministic):
    q_shape, k_shape, arch, options = CASES[name]
    q, k, v, do = inputs(q_shape, k_shape)
    o, lse = attention(q, k, v, lse=True, arch=arch, **options)
    got = attention.gradients(do, q, k, v, o, lse, arch=arch, deterministic=deterministic, **options)
    assert all(one.dtype == np.float16 for one in got)
    require(got, by_numpy(q, k, v, do, q_shape[-1] ** -0.5, **options))


def kernel_of(form, m, n, d, **values):
    """The compiled kernel of a form for one head, with values that differ from the usual ones."""
    spec = attention_backward.spec(m, n, d, fused=form.start)
    return attention_backward.with_values(form, {**attention_backward.values(spec), **values})(spec).compile("sm_90a")


def require_kernel(kernel, m, n, d, causal):
    """Require that a kernel of gradients equals float64; keys that no query attends to are NaN, and their values infinite."""
    scale = d**-0.5
    q, k, v, do = inputs((1, 1, m, d), (1, 1, n, d))
    k[:, :, m if causal else n :], v[:, :, m if causal else n :] = 0, 0
    o, lse, _, _ = forward(*(one.astype(float) for one in (q, k, v)), scale, causal=causal)
    sums = [one.astype(np.float32).reshape(1, 1, 1, m) for one in (lse * np.log2(np.e), (o * do).sum(-1))]
    rows = [one.reshape(1, m, 1, 1, d) for one in (q, do)]
    expected = by_numpy(q, k, v, do, scale, causal=causal)
    k[:, :, m if causal else n :], v[:, :, m if causal else n :] = np.nan, np.inf
    dq, dk, dv = kernel(rows[0], k.reshape(1, n, 1, d), v.reshape(1, n, 1, d), rows[1], *sums, scale)
    got = [one.astype(float).reshape(1, 1, -1, d) for one in (dq * scale, dk, dv)]
    require(got, expected)


def test_persistent_blocks():
    """One block claims both tiles of keys; the keys have one stage."""
    fused = attention_backward.definition(causal=True, rounded=True, dk_of="dst", dk_first=True)
    form = attention_backward.by_keys(fused, blocks=1, dynamic=True)
    kernel = kernel_of(form, 140, 140, 64)
    assert next(ring.stages for ring in kernel.ir.rings if "k_sh" in ring.buffers) == 1
    require_kernel(kernel, 140, 140, 64, causal=True)


def test_fully_masked_blocks_run_no_iteration():
    """No query attends to the keys of the second block, which are NaN."""
    kernel = kernel_of(attention_backward.by_keys(attention_backward.definition(causal=True)), 64, 128, 64, bm=64, bn=64)
    require_kernel(kernel, 64, 128, 64, causal=True)


UNATTENDED = {
    "sm_80": ((1, 2, 33, 64), (1, 1, 70, 64), "sm_80", {"causal": True}, False),
    "window": ((1, 1, 20, 64), (1, 1, 150, 64), "sm_90a", {"window": 9}, False),
    "deterministic": ((2, 1, 20, 40), (2, 1, 70, 40), "sm_80", {"window": 9}, True),
    "256": ((1, 2, 40, 256), (1, 1, 90, 256), "sm_90a", {"causal": True}, False),
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", UNATTENDED)
def test_keys_that_no_query_attends_to(name):
    """Their NaN and infinity reach no result, also in a tile with other keys, and their gradients are zero."""
    q_shape, k_shape, arch, options, deterministic = UNATTENDED[name]
    q, k, v, do = inputs(q_shape, k_shape)
    first, last = (np.arange(k_shape[2]) < q_shape[2])[:, None], slice(q_shape[2], None)
    expected = by_numpy(q, *(np.where(first, one, 0) for one in (k, v)), do, q_shape[-1] ** -0.5, **options)
    k[:, :, last], v[:, :, last] = np.nan, np.inf
    o, lse = attention(q, k, v, lse=True, arch=arch, **options)
    got = attention.gradients(do, q, k, v, o, lse, arch=arch, deterministic=deterministic, **options)
    assert np.isfinite(o).all() and np.isfinite(lse).all() and not any(one[:, :, last].any() for one in got[1:])
    require(got, expected)


def test_staggered_blocks():
    """The second block of keys begins with the second block of queries."""
    form = attention_backward.by_keys(attention_backward.definition(), stagger=1)
    kernel = kernel_of(form, 100, 90, 64, bm=64, bn=64)
    assert "m_shifted = (block + m) % 2" in kernel.program.cuda
    require_kernel(kernel, 100, 90, 64, causal=False)


def test_one_wait_at_the_end_of_an_iteration():
    """MMAs of an iteration overlap: it waits for S, for dP, for dQ while dK is in flight, and at its end for dK."""
    form = attention_backward.by_keys(attention_backward.definition(late=True, dk_of="dst"), tma=False, **attention_backward.AT_END)
    loop = kernel_of(form, 256, 128, 128, stages=2).program.cuda.split("for (int m = 0;")[1].split("// scaled:")[0]
    assert re.findall(r"wgmma_wait_group<(\d)>", loop) == ["1", "0", "1", "0"] and loop.count("consumers_sync();") == 1
    assert "add_2_floats_in_memory(" in loop
    require_kernel(kernel_of(form, 92, 70, 128, stages=2), 92, 70, 128, causal=False)


def test_deterministic_kernels_add_nothing_in_place():
    """No kernel adds to an array in memory, and the option is a part of the key of a call."""
    graph = attention_backward_queries.graph(next(iter(attention_backward_queries.candidates(64, False).values())), 64, 64, 64)
    assert not any("atomicAdd" in graph[name].cuda("sm_80") for name in graph.specs)
    q = np.zeros((1, 64, 64), np.float16)
    options = [GradientOptions(False, None, None, deterministic) for deterministic in (False, True)]
    assert len({attention_gradients.gradients.key_of_options(Request((q,), None, each)) for each in options}) == 2


def test_a_mask_that_leaves_one_tile():
    """A branch whose condition always holds is printed without a condition."""
    strategy, _ = next(iter(attention_backward_queries.candidates(64, False, window=9).values()))
    text = strategy(attention_backward_queries.spec(40, 77, 64, fused=strategy.start)).cuda("sm_80")
    assert "window_ds" in text and "if ()" not in text


@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler")
@pytest.mark.nightly
@pytest.mark.parametrize("hopper", [False, True])
def test_the_printed_queries_kernel_on_a_cpu(hopper, tmp_path):
    """The kernel for queries, whose last tile and last keys are partial, compared with float64."""
    strategy, _ = next(iter(attention_backward_queries.candidates(64, hopper, causal=True).values()))
    spec = attention_backward_queries.spec(72, 72, 64, fused=strategy.start)
    q, k, v, do = inputs((1, 1, 72, 64), (1, 1, 72, 64))
    o, lse, _, _ = forward(*(one.astype(float) for one in (q, k, v)), 0.125, causal=True)
    sums = (o * do).sum(-1).astype(np.float32)
    rows = {"L": (lse * np.log2(np.e)).astype(np.float32).reshape(1, 1, 1, 72), "D": sums.reshape(1, 1, 1, 72), "scale": np.float32(0.125)}
    arrays = {
        name: array.reshape((1, 72, 1, 1, 64) if name in ("Q", "dO") else (1, 72, 1, 64))
        for name, array in zip(("Q", "K", "V", "dO"), (q, k, v, do))
    }
    given = {name: (arrays | rows)[name] for name in spec.inputs}
    host = HostProgram([Printed.of(strategy(spec).program("sm_90a" if hopper else "sm_80"))], tmp_path)
    got = host.run(0, given, {}, 0)["dQ"].reshape(1, 1, 72, 64)
    require([got], by_numpy(q, k, v, do, 0.125, causal=True)[:1])


def test_the_oracle_equals_differences():
    """The gradient times a direction is the difference of values along it."""
    q, k, v, do = (one.astype(float) for one in inputs((1, 1, 9, 16), (1, 1, 9, 16)))
    generator, options = np.random.default_rng(1), {"causal": True, "score": CAPPED}
    dlse = generator.standard_normal((1, 1, 9))

    def value(*arrays):
        o, lse, *_ = forward(*arrays, 0.3, **options)
        return (o * do).sum() + (lse * dlse).sum()

    directions = [generator.standard_normal(one.shape) for one in (q, k, v)]
    step = 1e-6
    above, below = (value(*(x + sign * step * way for x, way in zip((q, k, v), directions, strict=True))) for sign in (1, -1))
    slope = sum((gradient * way).sum() for gradient, way in zip(by_numpy(q, k, v, do, 0.3, dlse, **options), directions, strict=True))
    assert np.isclose(slope, (above - below) / (2 * step), rtol=1e-6)


def test_strides_bfloat16_and_the_gradient_of_the_log_sum_exp():
    """Arrays (b, m, h, d) are read in place, a broadcast gradient is copied; results have the order of the inputs."""
    (q, k, v, _), generator = inputs((1, 33, 2, 64), (1, 20, 2, 64)), np.random.default_rng(2)
    q, k, v = (one.transpose(0, 2, 1, 3) for one in (q, k, v))
    do, dlse = np.broadcast_to(np.float16(0.5), q.shape), generator.standard_normal(q.shape[:3]).astype(np.float32)
    o, lse = attention(q, k, v, lse=True, arch="sm_80")
    got = attention.gradients(do, q, k, v, o, lse, lse_grad=dlse, scale=None, arch="sm_80")
    require(got, by_numpy(q, k, v, do, 0.125, dlse))
    assert got[0].strides == (q.size * 2, 128, 256, 2)


def test_two_dimensions_and_no_elements():
    q, k, v, do = inputs((20, 64), (30, 64))
    o, lse = attention(q, k, v, lse=True, arch="sm_80")
    got = attention.gradients(do, q, k, v, o, lse, arch="sm_80")
    require(got, (one[0, 0] for one in by_numpy(*(one[None, None] for one in (q, k, v, do)), 0.125)))
    empty = np.zeros((0, 64), np.float16)
    dq, dk, dv = attention.gradients(empty, empty, k, v, empty, lse[:0])
    assert dq.shape == (0, 64) and not dk.any() and not dv.any()


@pytest.mark.parametrize(("change", "words"), [
    ({"arch": "sm_75"}, "no kernel computes gradients on this target"),
    ({"lse": np.zeros(3, np.float32)}, "lse does not match the other arrays"),
    ({"grad": np.zeros((20, 64), np.float32)}, "grad does not match the other arrays"),
    ({"score": "from_bits(bits(s))"}, "the function from_bits has no derivative"),
    ({"window": 0}, "window must be the number of keys"),
])  # fmt: skip
def test_refusals(change, words):
    q, k, v, do = inputs((20, 64), (20, 64))
    given = {"grad": do, "q": q, "k": k, "v": v, "o": q, "lse": np.zeros(20, np.float32), **change}
    arrays = [given.pop(name) for name in ("grad", "q", "k", "v", "o", "lse")]
    with pytest.raises(ArgumentError, match=words):
        attention.gradients(*arrays, **given)


def test_large_heads_are_refused():
    q, k, v, do = inputs((4, 264), (4, 264))
    with pytest.raises(ArgumentError, match="no kernel computes gradients of these heads") as refused:
        attention.gradients(do, q, k, v, q, np.zeros(4, np.float32))
    assert "at most 256" in str(refused.value)


@needs_nvrtc
@pytest.mark.sampled(9)
@pytest.mark.parametrize("score", [None, CAPPED])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("d", attention_gradients.HEADS)
def test_kernels_compile_without_spills_of_the_default(d, causal, score):
    """wgmma is not serialized, and without a score no register is spilled."""
    name, strategy = next(iter(attention_backward.candidates(d, True, causal=causal, score=score).items()))
    graph = attention_backward.graph(strategy, 4096, 4096, d, heads=2)
    compiled = compile_cuda(graph["gradients"].cuda("sm_90a"), "sm_90a")
    (resources,) = compiled.resources.values()
    assert score or resources.spill_stores == 0, name


@needs_nvrtc
@pytest.mark.sampled(12)
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("d", attention_gradients.HEADS)
def test_deterministic_kernels_compile_without_spills(d, causal, shared):
    pair = next(iter(attention_backward_queries.candidates(d, True, causal=causal, shared=shared).values()))
    graph = attention_backward_queries.graph(pair, 4096, 4096, d, heads=2, shared=1 + shared)
    for name in ("queries", "keys"):
        compiled = compile_cuda(graph[name].cuda("sm_90a"), "sm_90a")
        (resources,) = compiled.resources.values()
        assert resources.spill_stores == 0, name
