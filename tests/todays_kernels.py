"""The kernels of a current stack for language models, each as one definition with strategies for mma.sync and, where they differ, for
wgmma: what a user writes from the documentation. `test_todays_kernels` simulates and compiles them, `test_formulas_gpu` launches them.

References are NumPy in float64. Sizes are awkward: no multiples of the tiles, if the kernel allows it.
"""

from collections.abc import Callable, Mapping
from typing import Any

import attrs
import numpy as np

from fireiron import *
from fireiron.measure.data import random_inputs
from fireiron.specs.philox import uniform

copy, parts = Move.coalesced_copy(8).done(), Move.done()
mma = MatMul.tile(16, 16).unroll().mma_tile().done()
products = MatMul.split(16).unroll().load(A, RF, parts).load(B, RF, parts).then(mma)
"""A product of operands in shared memory, by the warps that share its rows and columns."""


def pipelined(k=32, warps=(32, 32)):
    """A product of global operands by mma.sync, through stages in shared memory."""
    staged = MatMul.split(k).pipeline(2).load(A, SH, copy).swizzle_storage().load(B, SH, copy).swizzle_storage()
    return staged.tile(*warps).to(Warp).then(products)


def by_ring(k=64, columns=64):
    """A product of global operands by wgmma, through a ring that TMA fills."""
    ring = MatMul.split(k).pipeline(2).warp_specialize(128).load(A, SH, parts).load(B, SH, parts)
    return ring.tile(64, columns).to(Warpgroup).split(16).unroll().done()


@attrs.frozen
class Case:
    """A definition, its sizes, a strategy for each target, and the outputs by NumPy, all by name.

    `given` are the inputs that may not be random numbers, such as tables, or functions of a generator and of the random ones. `out` is the
    shape of a scattered output. `tolerance` bounds `errors`.
    """

    definition: Fused
    sizes: Mapping[str, Any]
    strategies: Mapping[str, Strategy]
    by_numpy: Callable[..., Mapping[str, np.ndarray]]
    given: Mapping[str, Any] = attrs.field(factory=dict)
    out: tuple[int, ...] | None = None
    tolerance: float = 2e-3

    @property
    def spec(self):
        return self.definition(**self.sizes)

    def arrays(self, seed=0):
        """The inputs by name."""
        generator = np.random.default_rng(seed)
        drawn = random_inputs(self.spec, {}, generator)
        given = {name: value(generator, drawn) if callable(value) else value for name, value in self.given.items()}
        arrays = {name: given.get(name, array) for name, array in drawn.items()}
        return {name: np.asfortranarray(array) if self.sizes.get(name) == ColMajor else array for name, array in arrays.items()}

    def options(self):
        """The initial values of a scattered output, for the call."""
        return {} if self.out is None else {"out": np.zeros(self.out, np.float16)}

    def errors(self, arrays, results):
        """The greatest error of each output, relative to its greatest element."""
        results = results if isinstance(results, tuple) else (results,)
        wide = {
            name: array.astype(np.float64) if array.dtype.kind not in "iu" else array.astype(np.int64) for name, array in arrays.items()
        }
        right = self.by_numpy(**wide)
        difference = {
            name: np.abs(got.astype(np.float64) - right[name]).max() for name, got in zip(self.spec.outputs, results, strict=True)
        }
        return {name: float(error / max(1e-9, np.abs(right[name]).max())) for name, error in difference.items()}


CASES: dict[str, Case] = {}

# ---------------------------------------------------------------------------------------------- quantized products

fp8 = Fused(
    name="fp8_gemm", dims="m n q k nq", scan="q",
    operands={"A": "m q k", "SA": "m q", "B": "n q k", "SB": "nq q", "C": "m n"},
    init={"zero": "acc[m,n] = 0"},
    body={"product": "p[m,n] = sum(k, A[m,q,k] * B[n,q,k])", "promote": "acc[m,n] = acc[m,n] + p[m,n] * SA[m,q] * SB[n // 128,q]"},
    final={"store": "C[m,n] = acc[m,n]"},
    types={"A": float8_e4m3, "B": float8_e4m3, "SA": float32, "SB": float32, "C": bfloat16},
)  # fmt: skip


def of_fp8(A, SA, B, SB):
    scales = np.repeat(SB, 128, axis=0)[: B.shape[0]]
    return {"C": np.einsum("mqk,mq,nqk,nq->mn", A, SA, B, scales, optimize=True)}


fp8_tiles = fp8.tile(m=64, n=64).to(Block).split(q=1)
fp8_ring = fp8.tile(m=64, n=64).to(Block).split(q=1).pipeline(2).warp_specialize(128).load("A", SH, parts).load("B", SH, parts)
fp8_ring = fp8_ring.step("product", MatMul.tile(64, 64).to(Warpgroup).split(32).unroll().done()).done()
CASES["fp8 GEMM with block scales"] = Case(fp8, {"m": 70, "n": 200, "q": 3, "k": 128}, {"sm_90a": fp8_ring}, of_fp8, tolerance=5e-3)

w4a16 = Fused(
    name="w4a16", dims="m n k kp kg", loop="k",
    operands={"A": "m k", "P": "n kp", "S": "n kg", "C": "m n"},
    init={"zero": "acc[m,n] = 0"},
    body={"weight": "w[n,k] = ((P[n,k // 8] >> 4 * (k % 8) & 15) - 8) * S[n,k // 64]", "mm": "acc[m,n] += sum(k, A[m,k] * w[n,k])"},
    final={"store": "C[m,n] = acc[m,n]"}, types={"P": int32},
)  # fmt: skip


def of_w4a16(A, P, S):
    k = np.arange(A.shape[1])
    return {"C": A @ (((P[:, k // 8] >> 4 * (k % 8) & 15) - 8) * S[:, k // 64]).T}


w4a16_tiles = w4a16.tile(m=64, n=64).to(Block).split(k=64).pipeline(2).load("A", SH, copy).swizzle_storage()
w4a16_tiles = w4a16_tiles.set_memory("w", SH).swizzle_storage().step("mm", MatMul.tile(32, 32).to(Warp).then(products)).done()
w4a16_ring = w4a16.tile(m=64, n=64).to(Block).split(k=64).pipeline(2).warp_specialize(128).load("A", SH, parts).load("P", SH, parts)
w4a16_ring = w4a16_ring.set_memory("w", SH).step("mm", MatMul.tile(64, 64).to(Warpgroup).split(16).unroll().done()).done()
CASES["GEMM with 4-bit weights"] = Case(
    w4a16, {"m": 70, "n": 100, "k": 192}, {"sm_80": w4a16_tiles, "sm_90a": w4a16_ring}, of_w4a16,
    given={"P": lambda rng, arrays: rng.integers(-(2**31), 2**31, arrays["P"].shape).astype(np.int32)},
)  # fmt: skip

w8a8 = MatMul.fuse_epilogue("C = acc * sa[m] * sb[n] + bias[n]")
w8a8_tiles = MatMul.tile(64, 64).to(Block).epilog(RF).split(64).pipeline(2).load(A, SH, Move.coalesced_copy(16).done()).swizzle_storage()
w8a8_tiles = w8a8_tiles.load(B, SH, Move.coalesced_copy(16).done()).swizzle_storage().tile(32, 32).to(Warp).split(32).unroll()
w8a8_tiles = w8a8_tiles.load(A, RF, parts).load(B, RF, parts).tile(16, 16).unroll().mma_tile().done()
CASES["GEMM of int8"] = Case(
    w8a8, {"m": 70, "n": 100, "k": 208, "types": {"A": int8, "B": int8, "sa": float32, "sb": float32, "C": float16}, "B": ColMajor},
    {"sm_80": w8a8_tiles}, lambda A, B, sa, sb, bias: {"C": (A.astype(int) @ B.astype(int)) * sa[:, None] * sb + bias},
)  # fmt: skip

sparse_gelu = SparseMatMul.fuse_epilogue("gelu(acc + bias[m])")


def of_sparse_gelu(A, E, B, bias):
    halves = np.stack([E & 15, E >> 4], axis=-1).reshape(len(E), -1)  # of each four elements of k
    halves = np.where(halves == 0, 4, halves)
    places = 4 * np.arange(halves.shape[1])[:, None] + np.stack([halves & 3, halves >> 2], axis=-1)
    dense = np.zeros((len(A), 2 * A.shape[1]))
    np.put_along_axis(dense, places.reshape(len(A), -1), A, axis=1)
    x = dense @ B + bias[:, None]
    return {"C": x * 0.5 * (1 + np.vectorize(__import__("math").erf)(x * 0.5**0.5))}


by_sixteen = Move.coalesced_copy(16).done()
sparse_loop = SparseMatMul.split(64).pipeline(2).load(A, SH, by_sixteen).swizzle_storage().load("E", SH, by_sixteen)
sparse_loop = sparse_loop.load(B, SH, by_sixteen).swizzle_storage().tile(32, 32).to(Warp).split(32).unroll()
sparse_loop = sparse_loop.load(A, RF, parts).load("E", RF, parts).load(B, RF, parts).tile(16, 8).unroll().done()
sparse_ring = SparseMatMul.split(128).pipeline(2).warp_specialize(128).load(A, SH, parts).load("E", SH, parts).to_row_major()
sparse_ring = sparse_ring.load(B, SH, parts).tile(64, 64).to(Warpgroup).load("E", RF, parts).done()
sparse_tiles = SparseMatMul.tile(64, 64).to(Block).epilog(RF)
CASES["GEMM of 2:4 sparse weights, bias, GELU"] = Case(
    sparse_gelu, {"m": 70, "n": 72, "k": 256}, {"sm_80": sparse_tiles.then(sparse_loop), "sm_90a": sparse_tiles.then(sparse_ring)},
    of_sparse_gelu,
)  # fmt: skip

# ---------------------------------------------------------------------------------------------- mixtures of experts

moe_up = Fused(
    name="moe_up", dims="m n k g r", scan="g",
    operands={"X": "r k", "rows": "m", "G": "g k n", "U": "g k n", "begin": "g", "end": "g", "H": "m n"},
    init={"zero_g": "gate[m,n] = 0", "zero_u": "up[m,n] = 0"},
    body={
        "gate": "pg[m,n] = sum(k, X[rows[m],k] * G[g,k,n])",
        "up": "pu[m,n] = sum(k, X[rows[m],k] * U[g,k,n])",
        "keep_gate": "gate[m,n] = where(mine, pg[m,n], gate[m,n])",
        "keep_up": "up[m,n] = where(mine, pu[m,n], up[m,n])",
    },
    final={"store": "H[m,n] = silu(gate[m,n]) * up[m,n]"},
    mask={"mine": "begin[g] <= m and m < end[g]"}, types={"begin": int32, "end": int32},
)  # fmt: skip
OFFSETS = np.array([0, 37, 37, 90], np.int32)
ROWS = np.random.default_rng(5).permutation(60)[np.arange(90) % 60].astype(np.int32)


def of_moe_up(X, rows, G, U, begin, end):
    H = np.zeros((len(rows), G.shape[2]))
    for g, (first, last) in enumerate(zip(begin, end)):
        x = X[rows[first:last]]
        gate = x @ G[g]
        H[first:last] = gate / (1 + np.exp(-gate)) * (x @ U[g])
    return {"H": H}


moe_up_tiles = (
    moe_up.tile(m=64, n=32)
    .to(Block)
    .split(g=1)
    .skip_masked_tiles()
    .step("gate", pipelined(warps=(32, 16)))
    .step("up", pipelined(warps=(32, 16)))
    .done()
)
CASES["experts: gather, gate and up"] = Case(
    moe_up, {"m": 90, "n": 72, "k": 64, "g": 3, "r": 60, "end": Strides(g=1).aligned(4)}, {"sm_80": moe_up_tiles}, of_moe_up,
    given={"rows": ROWS, "begin": OFFSETS[:-1], "end": OFFSETS[1:]},
)  # fmt: skip

moe_down = Fused(
    name="moe_down", dims="m n k g r", scan="g",
    operands={"H": "m k", "D": "g k n", "begin": "g", "end": "g", "weight": "m", "rows": "m", "Y": "r n"},
    init={"zero": "acc[m,n] = 0"},
    body={"down": "p[m,n] = sum(k, H[m,k] * D[g,k,n])", "keep": "acc[m,n] = where(begin[g] <= m and m < end[g], p[m,n], acc[m,n])"},
    final={"store": "Y[rows[m],n] = acc[m,n] * weight[m]"},
    types={"begin": int32, "end": int32}, distinct="rows",
)  # fmt: skip


def of_moe_down(H, D, begin, end, weight, rows):
    Y = np.zeros((100, D.shape[2]))
    for g, (first, last) in enumerate(zip(begin, end)):
        Y[rows[first:last]] = H[first:last] @ D[g] * weight[first:last, None]
    return {"Y": Y}


moe_down_tiles = moe_down.tile(m=64, n=64).to(Block).split(g=1).skip_masked_tiles().step("down", pipelined()).done()
CASES["experts: down and scatter"] = Case(
    moe_down, {"m": 90, "n": 72, "k": 64, "g": 3, "r": 100, "end": Strides(g=1).aligned(4)}, {"sm_80": moe_down_tiles}, of_moe_down,
    out=(100, 72), given={"rows": np.random.default_rng(5).permutation(100)[:90].astype(np.int32), "begin": OFFSETS[:-1], "end": OFFSETS[1:]},
)  # fmt: skip

# ---------------------------------------------------------------------------------------------- attention

LOG2_E = 1.4426950408889634


def softmax(scores):
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


def attention_of(score, operands, K="K[b,n,g,d]", V="V[b,n,g,d]", types=None, **options):
    """Online softmax over keys `n`; the rows `m` are the queries of all heads that read key head g.

    `keys` are steps that compute keys and values, `before` steps between the product and the `score`.
    """
    return Fused(
        name="attention", dims=f"m n d b g{options.pop('dims', '')}", loop="n", batch="b g",
        operands={"Q": "b g m d", **operands, "O": "b g m d"},
        init={"mx": "mx[m] = -1e30", "l": "l[m] = 0", "acc": "acc[m,d] = 0", **options.pop("init", {})},
        body={
            **options.pop("keys", {}),
            "s": f"s[m,n] = sum(d, Q[b,g,m,d] * {K})",
            **options.pop("before", {}),
            "score": f"s[m,n] = {score}",
            "top": "top[m] = max(n, s[m,n])",
            "new": "new[m] = max(mx[m], top[m])",
            "alpha": f"alpha[m] = exp2((mx[m] - new[m]) * {LOG2_E})",
            "keep": "mx[m] = new[m]",
            "exp": f"s[m,n] = exp2((s[m,n] - mx[m]) * {LOG2_E})",
            "sums": "sums[m] = sum(n, s[m,n])",
            "update": "l[m] = l[m] * alpha[m] + sums[m]",
            "p": "w[m,n] = s[m,n]",
            "rescale": "acc[m,d] = acc[m,d] * alpha[m]",
            "pv": f"acc[m,d] += sum(n, w[m,n] * {V})",
        },
        final={"store": options.pop("store", "O[b,g,m,d] = where(l[m] > 0, acc[m,d] / l[m], 0)")},
        types=types or {}, **options,
    )  # fmt: skip


def rows_of_queries(definition, skip=True, keys="K", values="V"):
    """A block of 32 rows by two warps; keys and values are copied into stages."""
    blocks = definition.tile(m=32, b=1, g=1).to(Block).load("Q", SH, copy).swizzle_storage().split(n=32).pipeline(2)
    blocks = blocks.skip_masked_tiles() if skip else blocks
    blocks = blocks.load(keys, SH, copy).swizzle_storage()
    blocks = blocks.load(values, SH, copy).swizzle_storage() if values != keys else blocks
    values_of = MatMul.split(16).unroll().load(B, RF, parts).then(mma)
    return blocks.tile(m=16).to(Warp).step("s", products).step("pv", values_of).done()


paged = attention_of(
    "where(n < length[b], s[m,n] * 0.125, -inf)",
    {"K": "page slot g d", "V": "page slot g d", "table": "b t", "length": "b"},
    K="K[table[b,n // 16],n % 16,g,d]", V="V[table[b,n // 16],n % 16,g,d]", dims=" page slot t", types={"length": int32},
)  # fmt: skip
TABLE = np.random.default_rng(7).permutation(30)[:16].reshape(2, 8).astype(np.int32)
LENGTHS = np.array([121, 40], np.int32)


def of_paged(Q, K, V, table, length):
    k, v = (x[table].reshape(2, 128, *x.shape[2:]) for x in (K, V))
    s = np.einsum("bgmd,bngd->bgmn", Q, k) * 0.125
    s = np.where(np.arange(128) < length[:, None, None, None], s, -np.inf)
    return {"O": np.einsum("bgmn,bngd->bgmd", softmax(s), v)}


CASES["decoding with pages of keys"] = Case(
    paged, {"m": 8, "n": 128, "d": 64, "b": 2, "g": 3, "page": 30}, {"sm_80": rows_of_queries(paged)}, of_paged,
    given={"table": TABLE, "length": LENGTHS},
)  # fmt: skip


latent = attention_of(
    "where(n < length[b], (s[m,n] + rope[m,n]) * 0.07, -inf)", {"R": "b g m e", "C": "b n d", "KR": "b n e", "length": "b"},
    K="C[b,n,d]", V="C[b,n,d]", before={"rope": "rope[m,n] = sum(e, R[b,g,m,e] * KR[b,n,e])"}, dims=" e", types={"length": int32},
)  # fmt: skip


def of_latent(Q, R, C, KR, length):
    s = (np.einsum("bgmd,bnd->bgmn", Q, C) + np.einsum("bgme,bne->bgmn", R, KR)) * 0.07
    s = np.where(np.arange(C.shape[1]) < length[:, None, None, None], s, -np.inf)
    return {"O": np.einsum("bgmn,bnd->bgmd", softmax(s), C)}


latent_rows = latent.tile(m=16, b=1, g=1).to(Block).load("Q", SH, copy).swizzle_storage().load("R", SH, copy).swizzle_storage().split(n=32)
latent_rows = latent_rows.pipeline(2).skip_masked_tiles().load("C", SH, copy).swizzle_storage().load("KR", SH, copy).swizzle_storage()
latent_rows = latent_rows.tile(m=16).to(Warp).step("s", products).step("rope", products)
latent_rows = latent_rows.step("pv", MatMul.split(16).unroll().load(B, RF, parts).then(mma)).done()
CASES["decoding with latent keys"] = Case(
    latent, {"m": 13, "n": 75, "d": 128, "e": 32, "b": 2, "g": 1}, {"sm_80": latent_rows}, of_latent,
    given={"length": np.array([75, 33], np.int32)},
)  # fmt: skip

modern = attention_of(
    "where(n <= m and m - n < 40, 20 * tanh(s[m,n] * 0.125 / 20) + slope[g] * (n - m), -inf)",
    {"K": "b n g d", "V": "b n g d", "slope": "g", "sink": "g"}, init={"mx": "mx[m] = sink[g]", "l": "l[m] = 1"},
)  # fmt: skip


def of_modern(Q, K, V, slope, sink):
    m, n = np.arange(Q.shape[2])[:, None], np.arange(K.shape[1])
    s = 20 * np.tanh(np.einsum("bgmd,bngd->bgmn", Q, K) * 0.125 / 20) + slope[:, None, None] * (n - m)
    s = np.where((n <= m) & (m - n < 40), s, -np.inf)
    with_sink = np.concatenate([s, np.broadcast_to(sink[:, None, None], (*s.shape[:3], 1))], axis=-1)
    return {"O": np.einsum("bgmn,bngd->bgmd", softmax(with_sink)[..., :-1], V)}


CASES["attention: window, sinks, soft cap, ALiBi"] = Case(
    modern, {"m": 100, "n": 100, "d": 64, "b": 1, "g": 2, "types": {"slope": float32, "sink": float32}},
    {"sm_80": rows_of_queries(modern)}, of_modern,
)  # fmt: skip


cached = attention_of(
    "where(n <= m + 60, s[m,n] * scale[g] * 0.125, -inf)", {"K": "b n g d", "V": "b n g d", "scale": "g"}, K="k[n,d]", V="v[n,d]",
    keys={"k": "k[n,d] = K[b,n,g,d]", "v": "v[n,d] = V[b,n,g,d]"}, types={"K": float8_e4m3, "V": float8_e4m3},
    store="O[b,g,m,d] = acc[m,d] / l[m] * scale[g]",
)  # fmt: skip


def of_cached(Q, K, V, scale):
    s = np.einsum("bgmd,bngd->bgmn", Q, K) * scale[:, None, None] * 0.125
    s = np.where(np.arange(K.shape[1]) <= np.arange(Q.shape[2])[:, None] + 60, s, -np.inf)
    return {"O": np.einsum("bgmn,bngd->bgmd", softmax(s), V) * scale[:, None, None]}


def computed_keys(definition, *temporaries):
    """All threads of a block compute keys in shared memory; each of two warps has 16 rows of scores."""
    blocks = definition.tile(m=32, b=1, g=1).to(Block).load("Q", SH, copy).swizzle_storage().split(n=32).skip_masked_tiles()
    for name in temporaries:
        blocks = blocks.set_memory(name, SH).swizzle_storage()
    values_of = MatMul.tile(16, 64).to(Warp).split(16).unroll().load(B, RF, parts).then(mma)
    return blocks.step("s", MatMul.tile(16, 32).to(Warp).then(products)).step("pv", values_of).done()


CASES["attention: cache of 8-bit floats"] = Case(
    cached, {"m": 13, "n": 70, "d": 64, "b": 1, "g": 2}, {"sm_80": computed_keys(cached, "k", "v")}, of_cached
)

rotated = attention_of(
    "where(n <= m, s[m,n] * 0.125, -inf)", {"K": "b n g d", "H": "b n g d", "V": "b n g d", "frequency": "d"}, K="k[n,d]", V="V[b,n,g,d]",
    keys={"k": "k[n,d] = K[b,n,g,d] * cos(n * frequency[d]) + where(d < 32, -H[b,n,g,d + 32], H[b,n,g,d + 32]) * sin(n * frequency[d])"},
    types={"frequency": float32}, outside={"H": "circular"},
)  # fmt: skip


def of_rotated(Q, K, H, V, frequency):
    angle = np.arange(K.shape[1])[:, None, None] * frequency
    half = np.concatenate([-H[..., 32:], H[..., :32]], axis=-1)
    s = np.einsum("bgmd,bngd->bgmn", Q, K * np.cos(angle) + half * np.sin(angle)) * 0.125
    s = np.where(np.arange(K.shape[1]) <= np.arange(Q.shape[2])[:, None], s, -np.inf)
    return {"O": np.einsum("bgmn,bngd->bgmd", softmax(s), V)}


CASES["attention: keys rotated by their positions"] = Case(
    rotated, {"m": 40, "n": 40, "d": 64, "b": 1, "g": 2}, {"sm_80": computed_keys(rotated, "k")}, of_rotated,
    given={"H": lambda rng, arrays: arrays["K"], "frequency": (10000.0 ** (-(np.arange(64) % 32) / 32)).astype(np.float32)},
)  # fmt: skip

gradients = Fused(
    name="gradients", dims="m n d b g", loop="m", batch="b g", mask={"causal": "n <= m"},
    operands={"Q": "b g m d", "K": "b g n d", "V": "b g n d", "dO": "b g m d", "L": "b g m", "D": "b g m",
              "dQ": "b g m d", "dK": "b g n d", "dV": "b g n d"},
    init={"zero_k": "dk[n,d] = 0", "zero_v": "dv[n,d] = 0"},
    body={
        "s": "s[m,n] = sum(d, Q[b,g,m,d] * K[b,g,n,d])",
        "p": "p[m,n] = where(causal, exp(s[m,n] * 0.125 - L[b,g,m]), 0)",
        "dv": "dv[n,d] += sum(m, p[m,n] * dO[b,g,m,d])",
        "dp": "dp[m,n] = sum(d, dO[b,g,m,d] * V[b,g,n,d])",
        "ds": "ds[m,n] = where(causal, p[m,n] * (dp[m,n] - D[b,g,m]) * 0.125, 0)",
        "dk": "dk[n,d] += sum(m, ds[m,n] * Q[b,g,m,d])",
        "dq": "dQ[b,g,m,d] += sum(n, ds[m,n] * K[b,g,n,d])",
    },
    final={"dK": "dK[b,g,n,d] = dk[n,d]", "dV": "dV[b,g,n,d] = dv[n,d]"}, types={"L": float32, "D": float32, "dQ": float32},
)  # fmt: skip


def of_gradients(Q, K, V, dO, L, D):
    causal = np.arange(K.shape[2]) <= np.arange(Q.shape[2])[:, None]
    p = np.where(causal, np.exp(np.einsum("bgmd,bgnd->bgmn", Q, K) * 0.125 - L[..., None]), 0)
    ds = p * (np.einsum("bgmd,bgnd->bgmn", dO, V) - D[..., None]) * 0.125
    by_keys = {"dK": np.einsum("bgmn,bgmd->bgnd", ds, Q), "dV": np.einsum("bgmn,bgmd->bgnd", p, dO)}
    return {"dQ": np.einsum("bgmn,bgnd->bgmd", ds, K), **by_keys}


gradient_tiles = MatMul.tile(16, 32).to(Warp).then(products)
by_keys = gradients.tile(n=32, b=1, g=1).to(Block).split(m=32).skip_masked_tiles().set_memory("p", SH).set_memory("ds", SH)
for step in ("s", "dp", "dv", "dk", "dq"):
    by_keys = by_keys.step(step, gradient_tiles)
CASES["attention: causal gradients in one kernel"] = Case(
    gradients, {"m": 70, "n": 70, "d": 64, "b": 1, "g": 2}, {"sm_80": by_keys.done()}, of_gradients
)

# ---------------------------------------------------------------------------------------------- rows

rms_fp8 = Fused(
    name="rms_residual_fp8", dims="m n",
    operands={"X": "m n", "R": "m n", "gamma": "n", "Z": "m n", "Y": "m n", "scale": "m"},
    body={
        "add": "t[m,n] = X[m,n] + R[m,n]",
        "residual": "Z[m,n] = t[m,n]",
        "square": "sq[m,n] = t[m,n] * t[m,n]",
        "mean": "r[m] = sum(n, sq[m,n])",
        "root": "r[m] = rsqrt(r[m] / size(n) + 1e-06)",
        "normed": "t[m,n] = t[m,n] * r[m] * gamma[n]",
        "abs": "a[m,n] = abs(t[m,n])",
        "top": "top[m] = max(n, a[m,n])",
        "keep": "scale[m] = top[m] / 448",
        "quantize": "Y[m,n] = t[m,n] * (448 / top[m])",
    },
    types={"X": bfloat16, "R": bfloat16, "gamma": bfloat16, "Z": bfloat16, "Y": float8_e4m3, "scale": float32},
)  # fmt: skip


def of_rms_fp8(X, R, gamma):
    t = X + R
    normed = t / np.sqrt((t * t).mean(1, keepdims=True) + 1e-6) * gamma
    scale = np.abs(normed).max(1) / 448
    return {"Z": t, "Y": normed / scale[:, None], "scale": scale}


eight = Move.tile(1, 256).to(Warp).tile(1, 8).to(Lane).done()
CASES["RMSNorm, residual, 8-bit floats"] = Case(
    rms_fp8, {"m": 5, "n": 1024}, {"sm_90a": rms_fp8.tile(m=1).to(Block).load("X", RF, eight).done()}, of_rms_fp8, tolerance=7e-2
)

cross_entropy = Fused(
    name="cross_entropy", dims="m n", loop="n", operands={"X": "m n", "label": "m", "loss": "m", "lse": "m"},
    init={"mx": "mx[m] = -1e30", "l": "l[m] = 0", "x": "picked[m] = 0"},
    body={
        "part": "part[m] = max(n, X[m,n])",
        "new": "new[m] = max(mx[m], part[m])",
        "exp": f"e[m,n] = exp2((X[m,n] - new[m]) * {LOG2_E})",
        "sums": "sums[m] = sum(n, e[m,n])",
        "total": f"l[m] = l[m] * exp2((mx[m] - new[m]) * {LOG2_E}) + sums[m]",
        "keep": "mx[m] = new[m]",
        "mine": "mine[m,n] = where(n == label[m], X[m,n], 0)",
        "pick": "picks[m] = sum(n, mine[m,n])",
        "picked": "picked[m] = picked[m] + picks[m]",
    },
    final={"lse": "lse[m] = log(l[m]) + mx[m]", "loss": "loss[m] = where(label[m] == -100, 0, log(l[m]) + mx[m] - picked[m])"},
    types={"label": int64, "loss": float32, "lse": float32},
)  # fmt: skip
LABELS = np.array([3, 700, -100, 0, 776])


def of_cross_entropy(X, label):
    lse = np.log(np.exp(X - X.max(1, keepdims=True)).sum(1)) + X.max(1)
    return {"loss": np.where(label == -100, 0, lse - X[np.arange(len(X)), label.clip(0)]), "lse": lse}


classes = cross_entropy.tile(m=1).to(Block).split(n=512).load("X", RF, Move.tile(1, 128).to(Warp).tile(1, 4).to(Lane).done()).done()
CASES["cross-entropy"] = Case(cross_entropy, {"m": 5, "n": 777}, {"sm_80": classes}, of_cross_entropy, given={"label": LABELS})

entropy_gradient = Fused(
    name="cross_entropy_gradient", dims="m n", operands={"X": "m n", "label": "m", "lse": "m", "dL": "m", "dX": "m n"},
    body={"dx": "dX[m,n] = where(label[m] == -100, 0, (exp(X[m,n] - lse[m]) - where(n == label[m], 1, 0)) * dL[m])"},
    types={"label": int64, "lse": float32, "dL": float32},
)  # fmt: skip


def of_entropy_gradient(X, label, lse, dL):
    one_hot = np.arange(X.shape[1]) == label[:, None]
    return {"dX": np.where(label[:, None] == -100, 0, (np.exp(X - lse[:, None]) - one_hot) * dL[:, None])}


of_threads = entropy_gradient.tile(m=1, n=512).to(Block).tile(m=1, n=4).to(Thread).done()
CASES["cross-entropy, gradient"] = Case(
    entropy_gradient, {"m": 5, "n": 776}, {"sm_80": of_threads}, of_entropy_gradient, given={"label": LABELS - 1}
)

rope = Fused(
    name="rope", dims="b m h d", operands={"X": "b m h d", "H": "b m h d", "frequency": "d", "Y": "b m h d"},
    body={"o": "Y[b,m,h,d] = X[b,m,h,d] * cos(m * frequency[d]) + where(d < 32, -H[b,m,h,d + 32], H[b,m,h,d + 32]) * sin(m * frequency[d])"},
    types={"frequency": float32}, outside={"H": "circular"}, batch="b m",
)  # fmt: skip


def of_rope(X, H, frequency):
    angle = np.arange(X.shape[1])[:, None, None] * frequency
    return {"Y": X * np.cos(angle) + np.concatenate([-H[..., 32:], H[..., :32]], axis=-1) * np.sin(angle)}


CASES["rotary embedding"] = Case(
    rope, {"b": 2, "m": 9, "h": 3, "d": 64}, {"sm_80": rope.tile(b=1, m=1, h=4, d=64).to(Block).tile(h=1, d=4).to(Thread).done()}, of_rope,
    given={"H": lambda rng, arrays: arrays["X"], "frequency": (10000.0 ** (-(np.arange(64) % 32) / 32)).astype(np.float32)},
)  # fmt: skip

# ---------------------------------------------------------------------------------------------- convolution, scan

convolution = Fused(
    name="convolution", dims="b p q o r s c h w", batch="b p", scan="r s",
    operands={"X": "b h w c", "W": "r s c o", "bias": "o", "Y": "b p q o"},
    init={"zero": "acc[q,o] = 0"},
    body={"product": "acc[q,o] += sum(c, X[b,p + r - 1,q + s - 1,c] * W[r,s,c,o])"},
    final={"store": "Y[b,p,q,o] = relu(acc[q,o] + bias[o])"},
)  # fmt: skip


def of_convolution(X, W, bias):
    _, h, w, _ = X.shape
    padded = np.pad(X, ((0, 0), (1, 1), (1, 1), (0, 0)))
    taps = (padded[:, r : r + h, s : s + w] @ W[r, s] for r in range(3) for s in range(3))
    return {"Y": np.maximum(sum(taps) + bias, 0)}


of_taps = convolution.tile(b=1, p=1, q=64, o=64).to(Block).split(r=1).split(s=1)
CASES["convolution of images"] = Case(
    convolution, {"b": 1, "p": 3, "q": 13, "o": 72, "r": 3, "s": 3, "c": 64, "h": 3, "w": 13},
    {"sm_80": of_taps.step("product", pipelined()).done(), "sm_90a": of_taps.step("product", by_ring()).done()}, of_convolution,
)  # fmt: skip

chunked = Fused(
    name="chunked_scan", dims="h c t u n p", batch="h", scan="c",
    operands={"C": "h c t n", "B": "h c u n", "X": "h c u p", "at": "h c t", "au": "h c u", "whole": "h c", "Y": "h c t p"},
    init={"zero": "state[n,p] = 0"},
    body={
        "carry": "z[n,p] = state[n,p]",
        "past": "y[t,p] = sum(n, C[h,c,t,n] * z[n,p])",
        "decay": "y[t,p] = y[t,p] * exp(at[h,c,t])",
        "s": "s[t,u] = sum(n, C[h,c,t,n] * B[h,c,u,n])",
        "w": "w[t,u] = where(u <= t, s[t,u] * exp(at[h,c,t] - au[h,c,u]), 0)",
        "own": "y[t,p] += sum(u, w[t,u] * X[h,c,u,p])",
        "store": "Y[h,c,t,p] = y[t,p]",
        "shrink": "state[n,p] = state[n,p] * exp(whole[h,c])",
        "b": "b[u,n] = B[h,c,u,n] * exp(whole[h,c] - au[h,c,u])",
        "add": "state[n,p] += sum(u, b[u,n] * X[h,c,u,p])",
    },
    types={"at": float32, "au": float32, "whole": float32},
)  # fmt: skip
"""A linear recurrence with a decay per element, in chunks (SSD): `at` and `au` are the sums of log decays within a chunk."""


def of_chunked(C, B, X, at, au, whole):
    Y, state = np.zeros((*C.shape[:3], X.shape[3])), np.zeros((C.shape[0], C.shape[3], X.shape[3]))
    for c in range(C.shape[1]):
        for t in range(C.shape[2]):
            decay = np.exp(at[:, c, t] - (at[:, c, t - 1] if t else 0))
            state = state * decay[:, None, None] + B[:, c, t, :, None] * X[:, c, t, None, :]
            Y[:, c, t] = np.einsum("hn,hnp->hp", C[:, c, t], state)
    return {"Y": Y}


def tiled(rows, columns):
    """A product of operands in shared memory by warps, each with a tile."""
    return MatMul.tile(rows, columns).to(Warp).then(products)


chunks = (
    chunked.tile(h=1).to(Block).split(c=1).load("C", SH, copy).swizzle_storage().load("B", SH, copy).swizzle_storage().load("X", SH, copy)
)
chunks = (
    chunks.swizzle_storage()
    .set_memory("z", SH)
    .swizzle_storage()
    .set_memory("w", SH)
    .swizzle_storage()
    .set_memory("b", SH)
    .swizzle_storage()
)
for step in ("past", "s", "own", "add"):
    chunks = chunks.step(step, tiled(16, 64))
DECAYS = -np.random.default_rng(3).random((2, 3, 64)).cumsum(-1).astype(np.float32) / 16
CASES["chunked scan"] = Case(
    chunked, {"h": 2, "c": 3, "t": 64, "u": 64, "n": 64, "p": 64}, {"sm_80": chunks.done()}, of_chunked,
    given={"at": DECAYS, "au": DECAYS, "whole": DECAYS[:, :, -1].copy()},
)  # fmt: skip

# ---------------------------------------------------------------------------------------------- selection, counts

argmax = Fused(
    name="argmax", dims="m n", loop="n", operands={"X": "m n", "I": "m"}, types={"I": int32, "best": int32, "at": int32, "here": int32},
    init={"top0": "top[m] = -inf", "best0": "best[m] = 0"},
    body={
        "part": "part[m] = max(n, X[m,n])",
        "places": "at[m,n] = where(X[m,n] == part[m], n, 2147483647)",
        "first": "here[m] = min(n, at[m,n])",
        "best": "best[m] = where(part[m] > top[m], here[m], best[m])",
        "top": "top[m] = max(top[m], part[m])",
    },
    final={"store": "I[m] = best[m]"},
)  # fmt: skip
of_lanes = argmax.tile(m=2).to(Block).tile(m=1).to(Warp).split(n=128).load("X", RF, Move.tile(1, 4).to(Lane).done()).done()
CASES["argmax"] = Case(argmax, {"m": 5, "n": 1000}, {"sm_80": of_lanes}, lambda X: {"I": X.argmax(1)}, tolerance=0)

TOP = 4
top_k = Fused(
    name="top_k", dims="m n", operands={"X": "m n", **{f"V{i}": "m" for i in range(TOP)}, **{f"I{i}": "m" for i in range(TOP)}},
    body={
        "load": "t[m,n] = X[m,n]",
        **{name: text for i in range(TOP) for name, text in {
            f"top{i}": f"v{i}[m] = max(n, t[m,n])",
            f"places{i}": f"at{i}[m,n] = where(t[m,n] == v{i}[m], n, 2147483647)",
            f"first{i}": f"i{i}[m] = min(n, at{i}[m,n])",
            f"value{i}": f"V{i}[m] = v{i}[m]",
            f"index{i}": f"I{i}[m] = i{i}[m]",
            f"drop{i}": f"t[m,n] = where(n == i{i}[m], -inf, t[m,n])",
        }.items()},
    },
    types={**{f"{name}{i}": int32 for i in range(TOP) for name in ("I", "i", "at")}, **{f"V{i}": float32 for i in range(TOP)}},
)  # fmt: skip


def of_top_k(X):
    order = np.argsort(-X, axis=1, kind="stable")[:, :TOP]
    values = np.take_along_axis(X, order, axis=1)
    return {**{f"V{i}": values[:, i] for i in range(TOP)}, **{f"I{i}": order[:, i] for i in range(TOP)}}


four = Move.tile(1, 128).to(Warp).tile(1, 4).to(Lane).done()
CASES["top-k by rounds"] = Case(
    top_k, {"m": 3, "n": 256}, {"sm_80": top_k.tile(m=1).to(Block).load("X", RF, four).done()}, of_top_k, tolerance=0
)

histogram = Fused(name="histogram", dims="n b", operands={"X": "n", "H": "b"}, types={"H": int32}, body={"count": "H[X[n]] += 1"})
CASES["histogram"] = Case(
    histogram, {"n": 1000, "b": 16}, {"sm_80": histogram.tile(n=256).to(Block).tile(n=1).to(Thread).done()},
    lambda X: {"H": np.bincount(X[(X >= 0) & (X < 16)], minlength=16)}, tolerance=0,
    given={"X": np.random.default_rng(2).integers(-1, 17, 1000).astype(np.int32)},
)  # fmt: skip

embedding = Fused(
    name="embedding_gradient", dims="m n v", operands={"dY": "m n", "token": "m", "dE": "v n"}, types={"dE": float32},
    body={"add": "dE[token[m],n] += dY[m,n]"},
)  # fmt: skip


def of_embedding(dY, token):
    dE = np.zeros((30, dY.shape[1]))
    np.add.at(dE, token, dY)
    return {"dE": dE}


CASES["embedding, gradient by scatter-add"] = Case(
    embedding, {"m": 70, "n": 40, "v": 30}, {"sm_80": embedding.tile(m=4, n=32).to(Block).tile(m=1, n=1).to(Thread).done()}, of_embedding,
    given={"token": np.random.default_rng(2).integers(0, 30, 70).astype(np.int32)},
)  # fmt: skip

# ---------------------------------------------------------------------------------------------- products with epilogues

dropout = MatMul.fuse_epilogue("C = where(uniform(seed, m, n) < 0.9, gelu(acc + bias[n]) / 0.9, 0) + R[m,n]")


def of_dropout(A, B, bias, seed, R):
    x = A @ B + bias
    erf = np.vectorize(__import__("math").erf)
    kept = uniform(int(seed), np.arange(len(A))[:, None], np.arange(B.shape[1])) < np.float32(0.9)
    return {"C": np.where(kept, x * 0.5 * (1 + erf(x * 0.5**0.5)) / 0.9, 0) + R}


gemm = MatMul.tile(64, 64).to(Block).epilog(RF).then(pipelined())
gemm_ring = MatMul.tile(64, 64).to(Block).epilog(RF).then(by_ring())
CASES["GEMM, bias, GELU, dropout, residual"] = Case(
    dropout, {"m": 70, "n": 72, "k": 64, "types": {"seed": int32}}, {"sm_80": gemm, "sm_90a": gemm_ring}, of_dropout,
)  # fmt: skip

few_rows = MatMul.fuse_epilogue("C = relu(acc + bias[n])")
split = MatMul.split_k(4, Block, 32).reduce_in_last_block().tile(64, 64).to(Block).epilog(RF).then(pipelined())
CASES["few rows, long sums: split K with bias and ReLU"] = Case(
    few_rows, {"m": 13, "n": 72, "k": 512}, {"sm_80": split}, lambda A, B, bias: {"C": np.maximum(A @ B + bias, 0)}
)

prefix = Fused(
    name="prefix_sums", dims="m n", operands={"X": "m n", "Y": "m n"}, types={"Y": float32},
    body={"scan": "t[m,n] = cumsum(n, X[m,n])", "store": "Y[m,n] = t[m,n]"},
)  # fmt: skip
CASES["prefix sums"] = Case(
    prefix, {"m": 5, "n": 250}, {"sm_80": prefix.tile(m=1).to(Block).load("X", RF, Move.tile(1, 64).to(Warp).tile(1, 2).to(Lane).done()).done()},
    lambda X: {"Y": X.cumsum(1)},
)  # fmt: skip

# ---------------------------------------------------------------------------------------------- moves

permute = Fused(
    name="permute", dims="b m h d", operands={"X": "b m h d", "Y": "b h m d"}, batch="b h", body={"copy": "Y[b,h,m,d] = X[b,m,h,d]"}
)
CASES["permutation"] = Case(
    permute, {"b": 2, "m": 13, "h": 3, "d": 64}, {"sm_80": permute.tile(b=1, h=1, m=16).to(Block).step("copy", copy).done()},
    lambda X: {"Y": X.transpose(0, 2, 1, 3)}, tolerance=0,
)  # fmt: skip

columns = Fused(
    name="im2col", dims="p q r s c h w", operands={"X": "h w c", "Y": "p q r s c"}, batch="p r s",
    body={"copy": "Y[p,q,r,s,c] = X[p + r - 1,q + s - 1,c]"},
)  # fmt: skip


def of_columns(X):
    padded = np.pad(X, ((1, 1), (1, 1), (0, 0)))
    h, w, _ = X.shape
    return {"Y": np.stack([np.stack([padded[r : r + h, s : s + w] for s in range(3)], axis=2) for r in range(3)], axis=2)}


CASES["im2col"] = Case(
    columns, {"p": 5, "q": 9, "r": 3, "s": 3, "c": 32, "h": 5, "w": 9}, {"sm_80": columns.tile(p=1, r=1, s=1, q=16).to(Block).step("copy", copy).done()},
    of_columns, tolerance=0,
)  # fmt: skip

gather = Fused(name="gather", dims="m n v", operands={"E": "v n", "token": "m", "Y": "m n"}, body={"copy": "Y[m,n] = E[token[m],n]"})
CASES["gather"] = Case(
    gather, {"m": 70, "n": 48, "v": 30}, {"sm_80": gather.tile(m=16, n=64).to(Block).step("copy", copy).done()}, lambda E, token: {"Y": E[token]},
    given={"token": np.random.default_rng(2).integers(0, 30, 70).astype(np.int32)}, tolerance=0,
)  # fmt: skip
