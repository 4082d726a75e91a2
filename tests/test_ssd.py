"""State space duality and linear attention in chunks: `fireiron.strategies.ssd`, against the recurrence in float64."""

import attrs
import numpy as np
import pytest

import fireiron
from fireiron import *
from fireiron import ssd_kernels
from fireiron.errors import ArgumentError
from fireiron.strategies import ssd


def recurrence(x, log, b, c, steps=None, state=None):
    """Return outputs and the last state: x (B,L,H,P), log (B,L,H), b and c (B,L,H,N), steps (B,L,H), state (B,H,P,N)."""
    state = np.zeros((x.shape[0], *x.shape[2:], b.shape[-1])) if state is None else state.astype(float)
    outputs = np.zeros(x.shape)
    for t in range(x.shape[1]):
        given = x[:, t].astype(float) * (1 if steps is None else steps[:, t, :, None])
        state = state * np.exp(log[:, t])[..., None, None] + given[..., None] * b[:, t, :, None].astype(float)
        outputs[:, t] = (state @ c[:, t, :, :, None].astype(float))[..., 0]
    return outputs, state


def arrays(length, heads=2, p=64, n=64, groups=1, batch=1, seed=0, dtype=np.float16):
    """Return x, dt, A, B and C."""
    random = np.random.default_rng(seed)
    x = random.standard_normal((batch, length, heads, p)).astype(dtype)
    b, c = ((random.standard_normal((batch, length, groups, n)) * 0.3).astype(dtype) for _ in range(2))
    return x, (random.random((batch, length, heads)) * 0.2).astype(np.float32), -4 * random.random(heads).astype(np.float32), b, c


@pytest.mark.parametrize("target", ["sm_90a", "sm_80"])
@pytest.mark.parametrize(
    ("length", "heads", "n", "shared", "options"),
    [
        (128, 2, 64, None, {}),
        (100, 4, 64, 2, {"skip": True, "gate": True, "initial": True}),
        (128, 2, 128, 1, {"steps": False}),
    ],
)
def test_outputs(target, length, heads, n, shared, options):
    """All options of the definition, with the sums of decays of the other kernel."""
    groups = 1 if shared is None else heads // shared
    x, dt, a, b, c = arrays(length, heads, n=n, groups=groups)
    ragged, chunks, steps = length % 64 != 0, -(-length // 64), "steps" not in options
    log = dt * a
    sums = ssd.decays_definition(steps, ragged)
    sizes = {"b": 1, "c": chunks, "t": 64, "h": heads, "p": 64} | ({"l": length} if ragged else {})
    first = ssd.by_threads(sums)(sums(**sizes)).compile(target)
    in_chunks = (lambda array: array) if ragged else (lambda array: array.reshape(1, chunks, 64, *array.shape[2:]))
    weights = first(in_chunks(dt), a) if steps else first(in_chunks(log), 1.0)
    fused = ssd.definition(shared, ragged, **{name: value for name, value in options.items() if name != "steps"})
    random = np.random.default_rng(1)
    z, d = random.standard_normal(x.shape).astype(np.float16), random.standard_normal(heads).astype(np.float32)
    state = random.standard_normal((1, heads, 64, n)).astype(np.float32) if "initial" in options else None
    b_of, c_of = ((one if shared is not None else one[:, :, 0]) for one in (b, c))
    given = {"C": in_chunks(c_of), "B": in_chunks(b_of), "X": in_chunks(x), "Xt": in_chunks(x)}
    given |= zip(("at", "au", "rest", "keep"), weights, strict=True)
    given |= {"D": d, "Z": in_chunks(z), "I": state}
    bound = (ssd.by_wgmma(fused) if target == "sm_90a" else ssd.by_warps(fused))(ssd.spec(length, 64, n, heads, groups=groups, fused=fused))
    y, end = bound.compile(target)(*(given[name] for name in fused.fused_definition.arrays if name in given))
    per_head = [np.repeat(one, heads // groups, axis=2) for one in (b, c)]
    expected, final = recurrence(x, log, *per_head, dt if steps else None, state)
    expected = expected + d[:, None] * x if "skip" in options else expected
    expected = expected * (z / (1 + np.exp(-z.astype(float)))) if "gate" in options else expected
    assert np.allclose(y.reshape(1, chunks * 64, heads, 64)[:, :length], expected, rtol=1e-2, atol=5e-3 * abs(expected).max())
    assert np.allclose(end, final, rtol=1e-2, atol=5e-3 * abs(final).max())


# ---------------------------------------------------------------------------------------------- functions of arrays


def close(result, expected):
    return np.allclose(result, expected, rtol=1e-2, atol=5e-3 * abs(expected).max())


def test_ssd_in_one_part():
    """A length that is not a multiple of a chunk, groups of heads, both results."""
    x, dt, a, b, c = arrays(100, 4, n=32, groups=2, batch=2)
    y, state = fireiron.ssd(x, dt, a, b, c, return_final_state=True, arch="sm_80")
    expected, last = recurrence(x, dt * a, np.repeat(b, 2, 2), np.repeat(c, 2, 2), dt)
    assert y.shape == x.shape and close(y, expected)
    assert state.dtype == np.float32 and close(state, last)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_ssd_in_parts(arch):
    """Few heads: a sequence has several parts, and the state before each."""
    x, dt, a, b, c = arrays(512, 1)
    state = np.random.default_rng(3).standard_normal((1, 1, 64, 64)).astype(np.float32)
    assert "in 2 parts" in fireiron.ssd.choice(x, dt, a, b, c, initial_state=state, arch=arch).why
    y, end = fireiron.ssd(x, dt, a, b, c, initial_state=state, return_final_state=True, arch=arch)
    expected, last = recurrence(x, dt * a, b, c, dt, state)
    assert close(y, expected) and close(end, last)


@pytest.mark.parametrize("decay", ["none", "constant", "gated"])
def test_linear_attention(decay):
    """Decays of each form, and a scale."""
    x, log, a, b, c = arrays(128)
    given = {"none": None, "constant": a, "gated": -log}[decay]
    y = fireiron.linear_attention(c, b, x, given, scale=0.5, arch="sm_80")
    every = np.zeros_like(log) if given is None else np.broadcast_to(given, log.shape)
    expected, _ = recurrence(x, every, *(np.repeat(one, 2, 2) for one in (b, c)))
    assert close(y, expected * 0.5)


def test_parts_of_sequences():
    """Enough heads have one part; few heads so many that all SMs have a block."""
    sizes = ssd_kernels.Sizes(batch=1, length=8192, heads=8, elements=64, groups=1, state=128)
    assert ssd_kernels.parts_of(attrs.evolve(sizes, heads=160)) == 1
    assert ssd_kernels.parts_of(sizes) * 8 > 100
    assert ssd_kernels.parts_of(attrs.evolve(sizes, length=64)) == 1


X, DT, A_LOG, B_OF, C_OF = arrays(64, 4, n=16, groups=2)
REFUSED = {
    "dimensions": ((X[0], DT, A_LOG, B_OF, C_OF), {}, "have 4 dimensions"),
    "groups": ((X[:, :, :3], DT[:, :, :3], A_LOG[:3], B_OF, C_OF), {}, "do not divide the 3 heads"),
    "shape": ((X, DT[:, 1:], A_LOG, B_OF, C_OF), {}, "dt has another shape"),
    "state": ((X, DT, A_LOG, B_OF[..., :8], C_OF[..., :8]), {}, "states of 64 x 8 numbers"),
    "type": ((X, DT.astype(np.float64), A_LOG, B_OF, C_OF), {}, "dt has elements of float64"),
    "mixed": ((X, DT, A_LOG, B_OF.astype(np.float32), C_OF), {}, "B has elements of float32"),
    "target": ((X, DT, A_LOG, B_OF, C_OF), {"arch": "sm_75"}, "no kernel supports this target"),
    "float64": ((X.astype(np.float64), DT, A_LOG, B_OF, C_OF), {}, "element type of x"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusals(case):
    arguments, options, message = REFUSED[case]
    with pytest.raises(ArgumentError, match=message):
        fireiron.ssd(*arguments, **options)


def test_scales_must_be_positive():
    with pytest.raises(ArgumentError, match="scale must be a positive number"):
        fireiron.linear_attention(C_OF, B_OF, X, scale=0)


def test_arrays_without_elements():
    y, state = fireiron.ssd(X[:, :0], DT[:, :0], A_LOG, B_OF[:, :0], C_OF[:, :0], return_final_state=True)
    assert y.shape == (1, 0, 4, 64) and not state.any()


def test_tma_boxes_with_digits_of_other_coordinates():
    """Heads that share B: a box has one of them, `h // 2`, and rows at affine indices. A digit of a dimension of the tile is refused."""
    fused = ssd.definition(2, ragged=True)
    text = ssd.by_wgmma(fused)(ssd.spec(200, 64, 64, 4, groups=2, fused=fused)).cuda("sm_90a")
    assert "tma_load_4d(" in text and "&B_map" in text and "copied by all threads" not in text
