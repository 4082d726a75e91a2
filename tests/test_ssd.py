"""State space duality and linear attention in chunks: `fireiron.strategies.ssd`, against the recurrence in float64."""

import attrs
import numpy as np
import pytest

import fireiron
from fireiron import *
from fireiron import ssd_gradients, ssd_kernels
from fireiron.errors import ArgumentError
from fireiron.strategies import ssd


def recurrence(x, log, b, c, steps=None, state=None):
    """Return outputs and the last state: x (B,L,H,P), log (B,L,H), b and c (B,L,G,N), steps (B,L,H), state (B,H,P,N)."""
    b, c = (np.repeat(one.astype(float), x.shape[2] // one.shape[2], axis=2) for one in (b, c))
    state = np.zeros((x.shape[0], *x.shape[2:], b.shape[-1])) if state is None else state.astype(float)
    outputs = np.zeros(x.shape)
    for t in range(x.shape[1]):
        given = x[:, t].astype(float) * (1 if steps is None else steps[:, t, :, None])
        state = state * np.exp(log[:, t])[..., None, None] + given[..., None] * b[:, t, :, None]
        outputs[:, t] = (state @ c[:, t, :, :, None])[..., 0]
    return outputs, state


def arrays(length, heads=2, p=64, n=64, groups=1, batch=1, seed=0, dtype=np.float16):
    """Return x, dt, A, B and C."""
    random = np.random.default_rng(seed)
    x = random.standard_normal((batch, length, heads, p)).astype(dtype)
    b, c = ((random.standard_normal((batch, length, groups, n)) * 0.3).astype(dtype) for _ in range(2))
    return x, (random.random((batch, length, heads)) * 0.2).astype(np.float32), -4 * random.random(heads).astype(np.float32), b, c


def close(result, expected, bound=1e-2):
    return np.allclose(result, expected, rtol=bound, atol=bound / 2 * abs(expected).max())


# ---------------------------------------------------------------------------------------------- definitions and strategies

EVERY = {"skip": True, "gate": True, "initial": True}
FORMS = {
    "one group": (128, 2, None, {}),
    "groups, ragged": (100, 4, 2, EVERY),
    "heads, without steps": (128, 2, 1, {"steps": False}),
    "one group, every option": (128, 2, None, EVERY),
}
"""The length, the heads, the heads that share B, and options of the definitions."""


@attrs.frozen
class Form:
    """A form of the definitions, its arrays and its expected results."""

    length: int
    heads: int
    shared: int | None
    options: dict
    p: int = 16
    n: int = 16

    @property
    def groups(self):
        return 1 if self.shared is None else self.heads // self.shared

    def results(self, run, small=1.0):
        """Return the outputs and the last state by `run(definition, arrays by operand)`, and the expected ones."""
        options = dict(self.options)
        steps, length, heads = options.pop("steps", True), self.length, self.heads
        ragged, chunks = length % 64 != 0, -(-length // 64)
        x, dt, a, b, c = arrays(length, heads, self.p, self.n, self.groups)
        random = np.random.default_rng(1)
        z, d = random.standard_normal(x.shape).astype(np.float16), random.standard_normal(heads).astype(np.float32)
        state = random.standard_normal((1, heads, self.p, self.n)).astype(np.float32) if "initial" in options else None
        expected, last = recurrence(x, dt * a, b, c, dt if steps else None, state)
        expected = expected + d[:, None] * x if "skip" in options else expected
        expected = expected * (z / (1 + np.exp(-z.astype(float)))) if "gate" in options else expected

        def in_chunks(array):
            return array if ragged else array.reshape(1, chunks, 64, *array.shape[2:])

        weights = run(ssd.decays_definition(steps, ragged), {"dt": in_chunks(dt), "A": a, "decay": in_chunks(dt * a), "scale": 1.0})
        of_b, of_c = ((one if self.shared is not None else one[:, :, 0]) for one in (b, c))
        given = {"C": in_chunks(of_c), "B": in_chunks(of_b), "X": in_chunks(x), "Xt": in_chunks(x), "D": d, "Z": in_chunks(z), "I": state}
        y, end = run(ssd.definition(self.shared, ragged, **options), given | dict(zip(("at", "au", "rest", "keep"), weights, strict=True)))
        return (y.reshape(1, chunks * 64, heads, self.p)[:, :length], end), (expected, last)

    @property
    def sizes(self):
        return {
            "b": 1,
            "c": -(-self.length // 64),
            "t": 64,
            "u": 64,
            "h": self.heads,
            "p": self.p,
            "n": self.n,
            "g": self.groups,
            "l": self.length,
        }

    def spec(self, fused):
        stated = fused.fused_definition
        used = {dim for name in stated.arrays for dim in stated.dims_of_array(name)}
        return fused(**{dim: size for dim, size in self.sizes.items() if dim in used})


@pytest.mark.parametrize("name", FORMS)
def test_definitions_compute_the_recurrence(name):
    """In float64, as NumPy computes the definitions."""
    form = Form(*FORMS[name])

    def run(fused, given):
        spec, stated = form.spec(fused), fused.fused_definition
        sizes, inputs = (
            {dim: size for dim, size in form.sizes.items() if dim in stated.dims},
            [one for one in stated.arrays if one in given],
        )
        values = stated.evaluate({one: np.asarray(given[one]) for one in inputs}, sizes, dict.fromkeys(stated.arrays, float64))
        return [values[one] for one in spec.outputs]

    for result, expected in zip(*form.results(run), strict=True):
        assert close(result, expected, 1e-5)


def simulated(target):
    """Return a function that simulates the strategy of a definition for a target."""

    def run(form, fused, given):
        names = [name for name in fused.fused_definition.arrays if given.get(name) is not None]
        strategy = (
            (ssd.by_scans if form.p % 32 == 0 else ssd.by_threads)
            if "X" not in names
            else ssd.by_wgmma
            if target == "sm_90a"
            else ssd.by_warps
        )
        return strategy(fused)(form.spec(fused)).compile(target)(*(given[name] for name in names))

    return run


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("target", "name"),
    [("sm_80", "groups, ragged"), ("sm_90a", "one group"), ("sm_90a", "groups, ragged"), ("sm_90a", "heads, without steps")],
)
def test_strategies_in_the_simulator(target, name):
    form = Form(*FORMS[name], **({"p": 64, "n": 64} if target == "sm_90a" else {}))
    run = simulated(target)
    for result, expected in zip(*form.results(lambda fused, given: run(form, fused, given)), strict=True):
        assert close(result, expected)


def test_texts_for_hopper_load_shared_heads_by_tma():
    """Heads that share B: a box has one of them, `h // 2`, and rows at affine indices."""
    fused = ssd.definition(2, ragged=True)
    text = ssd.by_wgmma(fused)(ssd.spec(200, 64, 64, 4, groups=2, fused=fused)).cuda("sm_90a")
    assert "tma_load_4d(" in text and "&B_map" in text and "copied by all threads" not in text


# ---------------------------------------------------------------------------------------------- functions of arrays


def test_ssd_returns_outputs_and_the_last_state():
    """A length that is not a multiple of a chunk, several sequences, an array that no kernel reads in place."""
    x, dt, a, b, c = arrays(70, 2, 16, 16, groups=2, batch=2)
    x = np.asfortranarray(x)
    y, state = fireiron.ssd(x, dt, a, b, c, return_final_state=True, arch="sm_80")
    expected, last = recurrence(x, dt * a, b, c, dt)
    assert y.shape == x.shape and close(y, expected)
    assert state.dtype == np.float32 and close(state, last)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("reset", [-1e9, -np.inf])
def test_decays_of_zero_reset_the_state(reset):
    """A gate of zero in a chunk leaves the decays after it exact."""
    x, log, _, b, c = arrays(64, 1, 16, 16)
    gates = -log
    gates[:, 20] = reset
    y = fireiron.linear_attention(c, b, x, gates, arch="sm_80")
    assert close(y, recurrence(x, gates, b, c)[0])


@pytest.mark.sampled(1)
@pytest.mark.parametrize("arch", ["sm_80", pytest.param("sm_90a", marks=pytest.mark.nightly)])
def test_few_heads_are_computed_in_parts(arch):
    """A sequence has several parts, and the state before each."""
    p = 64 if arch == "sm_90a" else 16
    x, dt, a, b, c = arrays(512, 1, p, p)
    state = np.random.default_rng(3).standard_normal((1, 1, p, p)).astype(np.float32)
    assert "in 2 parts" in fireiron.ssd.choice(x, dt, a, b, c, initial_state=state, arch=arch).why
    y, end = fireiron.ssd(x, dt, a, b, c, initial_state=state, return_final_state=True, arch=arch)
    expected, last = recurrence(x, dt * a, b, c, dt, state)
    assert close(y, expected) and close(end, last)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("decay", ["none", "constant"])
def test_linear_attention_scales_its_result(decay):
    x, log, a, b, c = arrays(128, 1, 16, 16)
    y = fireiron.linear_attention(c, b, x, {"none": None, "constant": a}[decay], scale=0.5, arch="sm_80")
    every = np.zeros_like(log) if decay == "none" else np.broadcast_to(a, log.shape)
    assert close(y, 0.5 * recurrence(x, every, b, c)[0])


# ---------------------------------------------------------------------------------------------- gradients


def differentiated(call, arrays, options):
    """Return the sum of the results times random numbers, as a function of float64 arrays, and these numbers."""
    random = np.random.default_rng(7)
    shape, inner = (arrays[0] if call == "ssd" else arrays[2]).shape, (arrays[3] if call == "ssd" else arrays[1]).shape[-1]
    grad, grad_state = (
        random.standard_normal(shape).astype(np.float16),
        random.standard_normal((shape[0], *shape[2:], inner)).astype(np.float32),
    )

    def value(*arrays):
        if call == "ssd":
            x, dt, a, b, c, d, z, state = arrays
            y, last = recurrence(x, dt * a, b, c, dt, state)
            y = (y + d[:, None] * x) * z / (1 + np.exp(-z))
        else:
            q, k, v, decay, state = arrays
            y, last = recurrence(v, np.broadcast_to(decay, v.shape[:3]), k, q, None, state)
            y = y * options["scale"]
        return (y * grad).sum() + (last * grad_state).sum()

    return value, grad, grad_state


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("call", "groups", "form"), [("ssd", 1, ""), ("linear_attention", 2, "constant"), ("linear_attention", 1, "gated")]
)
def test_gradients_are_finite_differences(call, groups, form):
    """Of each array in a random direction, with all options, and a length that is not a multiple of a chunk."""
    random = np.random.default_rng(2)
    x, dt, a, b, c = arrays(70, 2, 16, 16, groups)
    state = random.standard_normal((1, 2, 16, 16)).astype(np.float32)
    if call == "ssd":
        given, options = (x, dt, a, b, c, np.float32([0.5, -1]), random.standard_normal(x.shape).astype(np.float16), state), {}
        value, grad, grad_state = differentiated(call, given, options)
        results = fireiron.ssd.gradients(grad, *given, grad_state=grad_state, arch="sm_80")
    else:
        given, options = (c, b, x, a * 0.1 if form == "constant" else -dt, state), {"scale": 0.5}
        value, grad, grad_state = differentiated(call, given, options)
        options |= {"initial_state": state, "grad_state": grad_state}
        results = fireiron.linear_attention.gradients(grad, *given[:-1], **options, arch="sm_80")
    wide = [array.astype(float) for array in given]
    for place, (array, result) in enumerate(zip(given, results, strict=True)):
        assert result.shape == array.shape and result.dtype == array.dtype
        direction = result.astype(float) / np.linalg.norm(result.astype(float)) + random.standard_normal(array.shape) / array.size**0.5
        step = 1e-5
        ends = [value(*(one + sign * step * direction if at == place else one for at, one in enumerate(wide))) for sign in (1, -1)]
        expected = (ends[0] - ends[1]) / (2 * step)
        size = np.linalg.norm(result.astype(float)) * np.linalg.norm(direction)
        assert abs((result.astype(float) * direction).sum() - expected) < (2e-2 if form == "constant" else 5e-3) * size


def test_gradients_of_divided_sequences(monkeypatch):
    """If kernels divide sequences into parts, because there are few heads, the sums over pairs of a chunk are those of the sequences."""
    random = np.random.default_rng(3)
    q, k, v, grad = (random.standard_normal((2, 256, 1, 16)).astype(np.float16) for _ in range(4))
    log = -random.random((2, 256, 1)).astype(np.float32)
    monkeypatch.setattr(ssd_kernels, "FEWEST_CHUNKS", 2)
    *_, at, au = ssd_gradients._scanned(q, k, v, log, None, "sm_80", True)
    assert at.shape == (4, 1, 2, 64)
    inside = ssd_gradients._pairs(ssd_gradients.Scan(q, k, v, log, None), grad, at, au, "sm_80")
    chunks = [array.reshape(8, 64, -1).astype(float) for array in (q, k, v, grad, log)]
    expected = [_pairs_of_chunk(*chunk) for chunk in zip(*chunks, strict=True)]
    assert close(inside.reshape(8, 64), np.array(expected))
    fireiron.linear_attention.clear()


def _pairs_of_chunk(q, k, v, grad, log):
    """For each position t, the sum over pairs u < t <= s of the part of output s that comes from position u, times grad[s]."""
    total = np.cumsum(log[:, 0])
    parts = np.tril((q @ k.T) * (grad @ v.T) * np.exp(np.minimum(total[:, None] - total, 0)))
    return [parts[t:, :t].sum() for t in range(len(q))]


@pytest.mark.parametrize("decay", [0.002, 0.2])
def test_rounding_errors_do_not_add_up_along_the_sequence(decay):
    """The gradients of logarithms from parts whose errors are those of 16 bits, over 64 chunks, with slow and with fast decays."""
    random, length = np.random.default_rng(5), 4096
    of_v, of_k, of_q, of_grad = (random.standard_normal((length, 4)) for _ in range(4))
    log = -decay * random.random(length)
    states, slopes = np.zeros((length + 1, 4, 4)), np.zeros((length + 1, 4, 4))
    for t in range(length):
        states[t + 1] = np.exp(log[t]) * states[t] + np.outer(of_v[t], of_k[t])
    for t in reversed(range(length)):
        slopes[t] = np.exp(log[t + 1] if t + 1 < length else 0) * slopes[t + 1] + np.outer(of_grad[t], of_q[t])
    expected = np.exp(log) * (slopes[:-1] * states[:-1]).sum((1, 2))
    starts, total = np.arange(0, length, 64), np.cumsum(log.reshape(-1, 64), 1)
    own = np.exp(total).reshape(-1)
    past = own * np.einsum("tp,tpn,tn->t", of_grad, states[np.repeat(starts, 64)], of_q)
    weights = np.exp(total[:, -1:] - total).reshape(-1) * np.append(np.exp(log[64::64]), 1).repeat(64)
    later = weights * np.einsum("tp,tpn,tn->t", of_v, slopes[np.repeat(starts + 64, 64)], of_k)
    past, later = (one * (1 + 2**-9 * random.standard_normal(length)) for one in (past, later))
    chunks = (one.reshape(-1, 64, 4) for one in (of_q, of_k, of_v, of_grad))
    inside = np.array([_pairs_of_chunk(*chunk) for chunk in zip(*chunks, log.reshape(-1, 64, 1), strict=True)])
    result = ssd_gradients._of_log(inside[None, ..., None], past[None, :, None], later[None, :, None], expected[starts][None, :, None])
    assert np.linalg.norm(result.reshape(-1) - expected) < 5e-3 * np.linalg.norm(expected)


@pytest.mark.parametrize("heads", [2, 3])
def test_copies_of_the_gradients(heads):
    """Arrays in reverse and repeated groups; rows of 12 elements have no whole vectors."""
    array = np.arange(2 * 5 * heads * 4, dtype=np.float16).reshape(2, 5, heads, 4)
    assert np.array_equal(ssd_gradients._in_reverse(array, "sm_80"), array[:, ::-1])
    assert np.array_equal(ssd_gradients._repeated(array, 3 * heads, "sm_80"), np.repeat(array, 3, 2))


def test_gradients_refuse_wide_heads_and_other_shapes():
    with pytest.raises(ArgumentError, match="for so many elements per head"):
        fireiron.ssd.gradients(*(np.zeros((1, 64, 1, 144), np.float16),) * 2, DT[:, :, :1], A_LOG[:1], B_OF[:, :, :1], C_OF[:, :, :1])
    with pytest.raises(ArgumentError, match="grad has another shape than its result"):
        fireiron.ssd.gradients(X[:, 1:], X, DT, A_LOG, B_OF, C_OF)


# ---------------------------------------------------------------------------------------------- choices and refusals


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
