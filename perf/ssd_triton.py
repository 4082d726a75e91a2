"""The chunked algorithm of state space duality in five Triton kernels, written from its description (Dao and Gu, 2024, sections 6 and 7).

    from ssd_triton import chunked

    y = chunked(x, dt, a, b, c)    # x (b,l,h,p), dt (b,l,h), a (h), b and c (b,l,g,n); l is a multiple of CHUNK

Sums of the logarithms of decays in chunks of 256 positions; products C B^T of each chunk and group; the state that each chunk adds; the
state before each chunk; the outputs. Tiles are autotuned for each problem. Products C B^T are float32 by default, or 16 bits, which is
faster and less precise.
"""

import torch
import triton
import triton.language as tl

CHUNK = 256


@triton.jit
def _sums(dt, a, cum, steps, length, heads, T: tl.constexpr, H: tl.constexpr):
    """Sums of logarithms within a chunk, and steps, both by sequence, head and position."""
    chunk, sequence = tl.program_id(0), tl.program_id(1)
    h, t = tl.program_id(2) * H + tl.arange(0, H), chunk * T + tl.arange(0, T)
    given = tl.load(dt + (sequence * length + t[:, None]) * heads + h[None, :], mask=h[None, :] < heads, other=0.0).to(tl.float32)
    log = given * tl.load(a + h, mask=h < heads, other=0.0)[None, :]
    places = (sequence * heads + h[None, :]) * length + t[:, None]
    tl.store(cum + places, tl.cumsum(log, 0), mask=h[None, :] < heads)
    tl.store(steps + places, given, mask=h[None, :] < heads)


@triton.jit
def _scores(b, c, out, length, groups, N: tl.constexpr, T: tl.constexpr, M: tl.constexpr):
    """C B^T of tiles of a chunk that are not above the diagonal."""
    tile, chunk, other = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    sequence, group = other // groups, other % groups
    rows, columns = tile // (T // M) * M + tl.arange(0, M), tile % (T // M) * M + tl.arange(0, M)
    if tile // (T // M) < tile % (T // M):
        return
    n = tl.arange(0, N)
    first = sequence * length + chunk * T
    left = tl.load(c + ((first + rows[:, None]) * groups + group) * N + n[None, :])
    right = tl.load(b + ((first + columns[None, :]) * groups + group) * N + n[:, None])
    places = ((sequence * (length // T) + chunk) * groups + group) * T * T + rows[:, None] * T + columns[None, :]
    tl.store(out + places, tl.dot(left, right).to(out.dtype.element_ty))


STATES = [
    triton.Config({"BN": n, "BK": k}, num_warps=w, num_stages=s)
    for n, k, w, s in ((128, 32, 4, 4), (128, 64, 4, 3), (128, 64, 8, 3), (64, 64, 4, 3))
]
OUTPUTS = [
    triton.Config({"BM": m, "BK": k}, num_warps=w, num_stages=s)
    for m, k, w, s in ((128, 32, 4, 4), (128, 64, 4, 3), (128, 64, 8, 3), (64, 64, 4, 3), (64, 32, 4, 4))
]
PASSED = [triton.Config({"BLOCK": size}, num_warps=4) for size in (512, 1024, 2048)]
KEY = ["length", "heads", "groups", "P", "N"]


def _timed(kernel, quantiles):
    """Return the times of a configuration, in milliseconds."""
    return triton.testing.do_bench(kernel, warmup=5, rep=20, quantiles=quantiles)


@triton.autotune(STATES, KEY, do_bench=_timed)
@triton.jit
def _states(
    x, b, cum, steps, out, length, heads, groups, P: tl.constexpr, N: tl.constexpr, T: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr
):
    """The state that a chunk adds."""
    n, p = tl.program_id(0) * BN + tl.arange(0, BN), tl.arange(0, P)
    sequence, chunk, head = tl.program_id(1) // (length // T), tl.program_id(1) % (length // T), tl.program_id(2)
    group = head // (heads // groups)
    first, sums = sequence * length + chunk * T, (sequence * heads + head) * length + chunk * T
    last = tl.load(cum + sums + T - 1)
    state = tl.zeros((P, BN), tl.float32)
    for start in range(0, T, BK):
        u = start + tl.arange(0, BK)
        weight = tl.exp(last - tl.load(cum + sums + u)) * tl.load(steps + sums + u)
        values = tl.load(x + ((first + u[None, :]) * heads + head) * P + p[:, None])
        keys = tl.load(b + ((first + u[:, None]) * groups + group) * N + n[None, :])
        state = tl.dot((values * weight[None, :]).to(values.dtype), keys, state)
    places = ((sequence * (length // T) + chunk) * heads + head) * P * N
    tl.store(out + places + p[:, None] * N + n[None, :], state)


@triton.autotune(PASSED, KEY, do_bench=_timed)
@triton.jit
def _passed(states, cum, before, length, heads, groups, P: tl.constexpr, N: tl.constexpr, T: tl.constexpr, BLOCK: tl.constexpr):
    """The states before each chunk."""
    e, sequence, head = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK), tl.program_id(1), tl.program_id(2)
    state = tl.zeros((BLOCK,), tl.float32)
    for chunk in range(length // T):
        places = ((sequence * (length // T) + chunk) * heads + head) * P * N + e
        tl.store(before + places, state.to(before.dtype.element_ty))
        last = tl.load(cum + (sequence * heads + head) * length + chunk * T + T - 1)
        state = state * tl.exp(last) + tl.load(states + places)


@triton.autotune(OUTPUTS, KEY, do_bench=_timed)
@triton.jit
def _outputs(
    x,
    c,
    scores,
    cum,
    steps,
    before,
    y,
    length,
    heads,
    groups,
    P: tl.constexpr,
    N: tl.constexpr,
    T: tl.constexpr,
    BM: tl.constexpr,
    BK: tl.constexpr,
):
    """The outputs of BM positions of a chunk."""
    t, p, n = tl.program_id(0) * BM + tl.arange(0, BM), tl.arange(0, P), tl.arange(0, N)
    sequence, chunk, head = tl.program_id(1) // (length // T), tl.program_id(1) % (length // T), tl.program_id(2)
    group = head // (heads // groups)
    first, sums = sequence * length + chunk * T, (sequence * heads + head) * length + chunk * T
    queries = tl.load(c + ((first + t[:, None]) * groups + group) * N + n[None, :])
    state = tl.load(before + ((sequence * (length // T) + chunk) * heads + head) * P * N + p[None, :] * N + n[:, None])
    own = tl.load(cum + sums + t)
    result = tl.dot(queries, state) * tl.exp(own)[:, None]
    rows = ((sequence * (length // T) + chunk) * groups + group) * T * T + t[:, None] * T
    for start in range(0, (tl.program_id(0) + 1) * BM, BK):
        u = start + tl.arange(0, BK)
        mask = u[None, :] <= t[:, None]
        score = tl.load(scores + rows + u[None, :], mask=mask, other=0.0).to(tl.float32)
        log = tl.where(mask, own[:, None] - tl.load(cum + sums + u)[None, :], 0.0)
        weight = score * tl.exp(log) * tl.load(steps + sums + u)[None, :]
        values = tl.load(x + ((first + u[:, None]) * heads + head) * P + p[None, :])
        result = tl.dot(weight.to(values.dtype), values, result)
    tl.store(y + ((first + t[:, None]) * heads + head) * P + p[None, :], result.to(y.dtype.element_ty))


def chunked(x, dt, a, b, c, scores_dtype=torch.float32):
    """Return the outputs, without D, z and an initial state."""
    batch, length, heads, p = x.shape
    groups, n, chunks = b.shape[2], b.shape[3], length // CHUNK
    make = x.new_empty
    cum, steps = (make((batch, heads, length), dtype=torch.float32) for _ in range(2))
    _sums[chunks, batch, triton.cdiv(heads, 16)](dt, a, cum, steps, length, heads, CHUNK, 16, num_warps=8)
    scores = make((batch, chunks, groups, CHUNK, CHUNK), dtype=scores_dtype)
    _scores[4, chunks, batch * groups](b, c, scores, length, groups, n, CHUNK, 128, num_warps=8)
    states = make((batch, chunks, heads, p, n), dtype=torch.float32)
    sizes = length, heads, groups, p, n, CHUNK
    _states[lambda meta: (n // meta["BN"], batch * chunks, heads)](x, b, cum, steps, states, *sizes)
    before = torch.empty_like(states, dtype=x.dtype)
    _passed[lambda meta: (p * n // meta["BLOCK"], batch, heads)](states, cum, before, *sizes)
    y = torch.empty_like(x)
    _outputs[lambda meta: (CHUNK // meta["BM"], batch * chunks, heads)](x, c, scores, cum, steps, before, y, *sizes)
    return y
