"""State space duality and linear attention in chunks: `fireiron.strategies.ssd`, against the recurrence in float64."""

import numpy as np
import pytest

from fireiron import *
from fireiron.strategies import ssd

LOG2_E = 1.4426950408889634


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


FORMS = {"sm_90a": ssd.by_wgmma, "sm_80": ssd.by_warps}


@pytest.mark.parametrize("target", FORMS)
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
    sizes = {"b": 1, "c": chunks, "t": 64, "h": heads} | ({"l": length} if ragged else {})
    first = ssd.by_threads(sums)(sums(**sizes)).compile(target)
    in_chunks = (lambda array: array) if ragged else (lambda array: array.reshape(1, chunks, 64, *array.shape[2:]))
    at, au, last = first(in_chunks(dt), a) if steps else first(in_chunks(log), 1.0)
    fused = ssd.definition(shared, ragged, **{name: value for name, value in options.items() if name != "steps"})
    random = np.random.default_rng(1)
    z, d = random.standard_normal(x.shape).astype(np.float16), random.standard_normal(heads).astype(np.float32)
    state = random.standard_normal((1, heads, 64, n)).astype(np.float32) if "initial" in options else None
    b_of, c_of = ((one if shared is not None else one[:, :, 0]) for one in (b, c))
    given = {"C": in_chunks(c_of), "B": in_chunks(b_of), "X": in_chunks(x), "at": at, "au": au, "last": last, "Xt": in_chunks(x)}
    given |= {"D": d, "Z": in_chunks(z), "I": state}
    bound = (ssd.by_wgmma(fused, cluster=False) if target == "sm_90a" else ssd.by_warps(fused))(
        ssd.spec(length, 64, n, heads, groups=groups, fused=fused)
    )
    y, end = bound.compile(target)(*(given[name] for name in fused.fused_definition.arrays if name in given))
    per_head = [np.repeat(one, heads // groups, axis=2) for one in (b, c)]
    expected, final = recurrence(x, log, *per_head, dt if steps else None, state)
    expected = expected + d[:, None] * x if "skip" in options else expected
    expected = expected * (z / (1 + np.exp(-z.astype(float)))) if "gate" in options else expected
    assert np.allclose(y.reshape(1, chunks * 64, heads, 64)[:, :length], expected, rtol=1e-2, atol=5e-3 * abs(expected).max())
    assert np.allclose(end, final, rtol=1e-2, atol=5e-3 * abs(final).max())
