"""Definitions with nested loops, strategies for them, and their results by NumPy in float64, written without the package's evaluation."""

import numpy as np

from fireiron import *

copy, fragments = Move.coalesced_copy(8).done(), Move.done()
by_warps = MatMul.tile(32, 32).to(Warp).split(16).unroll().load(A, RF, fragments).load(B, RF, fragments).tile(16, 16).unroll()
by_warps = by_warps.mma_tile().done()
rows_of_warps = MatMul.tile(16, 64).to(Warp).split(16).unroll().load(A, RF, fragments).load(B, RF, fragments).tile(16, 16).unroll()
rows_of_warps = rows_of_warps.mma_tile().done()
values_of_warps = MatMul.tile(16, 64).to(Warp).split(16).unroll().load(B, RF, fragments).tile(16, 16).unroll().mma_tile().done()
by_warpgroups = MatMul.tile(64, 64).to(Warpgroup).split(16).unroll().done()

SWIGLU = Fused(
    name="swiglu", dims="m f k n", loop="f k", operands={"A": "m k", "G": "k f", "U": "k f", "D": "f n", "Y": "m n"},
    init={"zero": "acc[m,n] = 0"},
    body={
        "gate0": "g[m,f] = 0",
        "up0": "u[m,f] = 0",
        "k": {"gate": "g[m,f] += sum(k, A[m,k] * G[k,f])", "up": "u[m,f] += sum(k, A[m,k] * U[k,f])"},
        "act": "h[m,f] = silu(g[m,f]) * u[m,f]",
        "down": "acc[m,n] += sum(f, h[m,f] * D[f,n])",
    },
    final={"store": "Y[m,n] = acc[m,n]"},
)  # fmt: skip

EXPERTS = Fused(
    name="experts", dims="m f k n g", scan="g", loop="f k", types={"begin": int32, "end": int32},
    operands={"A": "m k", "G": "g k f", "U": "g k f", "D": "g f n", "begin": "g", "end": "g", "Y": "m n"},
    init={"zero": "acc[m,n] = 0"},
    body={
        "own0": "own[m,n] = 0",
        "f": {
            "gate0": "gate[m,f] = 0",
            "up0": "up[m,f] = 0",
            "k": {"gate": "gate[m,f] += sum(k, A[m,k] * G[g,k,f])", "up": "up[m,f] += sum(k, A[m,k] * U[g,k,f])"},
            "act": "h[m,f] = silu(gate[m,f]) * up[m,f]",
            "down": "own[m,n] += sum(f, h[m,f] * D[g,f,n])",
        },
        "keep": "acc[m,n] = where(begin[g] <= m and m < end[g], own[m,n], acc[m,n])",
    },
    final={"store": "Y[m,n] = acc[m,n]"},
)  # fmt: skip

ATTENTION = Fused(
    name="wide_heads", dims="m n d e", loop="n d", operands={"Q": "m d", "K": "n d", "V": "n e", "O": "m e"},
    mask={"causal": "n <= m"},
    init={"mx": "mx[m] = -inf", "l": "l[m] = 0", "acc": "acc[m,e] = 0"},
    body={
        "zero": "s[m,n] = 0",
        "d": {"s": "s[m,n] += sum(d, Q[m,d] * K[n,d])"},
        "mask": "s[m,n] = where(causal, s[m,n], -inf)",
        "top": "top[m] = max(n, s[m,n])",
        "new": "new[m] = max(mx[m], top[m])",
        "exp": "p[m,n] = exp(s[m,n] - new[m])",
        "alpha": "alpha[m] = exp(mx[m] - new[m])",
        "sums": "sums[m] = sum(n, p[m,n])",
        "length": "l[m] = l[m] * alpha[m] + sums[m]",
        "keep": "mx[m] = new[m]",
        "rescale": "acc[m,e] = acc[m,e] * alpha[m]",
        "weights": "w[m,n] = p[m,n]",
        "pv": "acc[m,e] += sum(n, w[m,n] * V[n,e])",
    },
    final={"store": "O[m,e] = acc[m,e] / l[m]"},
)  # fmt: skip

LOG_SUM_EXP = Fused(
    name="log_sum_exp", dims="m n k", loop="n k", operands={"A": "m k", "W": "n k", "y": "m"}, types={"y": float32},
    init={"top0": "mx[m] = -inf", "sum0": "total[m] = 0"},
    body={
        "zero": "s[m,n] = 0",
        "k": {"s": "s[m,n] += sum(k, A[m,k] * W[n,k])"},
        "inside": "s[m,n] = where(n < size(n), s[m,n], -inf)",
        "part": "part[m] = max(n, s[m,n])",
        "new": "new[m] = max(mx[m], part[m])",
        "exp": "e[m,n] = exp(s[m,n] - new[m])",
        "sums": "sums[m] = sum(n, e[m,n])",
        "total": "total[m] = total[m] * exp(mx[m] - new[m]) + sums[m]",
        "keep": "mx[m] = new[m]",
    },
    final={"y": "y[m] = log(total[m]) + mx[m]"},
)  # fmt: skip

SUMS = Fused(
    name="sums", dims="m n k", loop="n k", operands={"X": "m n k", "Y": "m n", "y": "m"}, types={"y": float32},
    init={"zero": "total[m] = 0"},
    body={
        "zero_n": "t[m,n] = 0",
        "k": {"two": "u[m,n,k] = X[m,n,k] * 2", "part": "p[m,n] = sum(k, u[m,n,k])", "add": "t[m,n] = t[m,n] + p[m,n]"},
        "store": "Y[m,n] = t[m,n]",
        "top": "top[m] = max(n, t[m,n])",
        "all": "total[m] = max(total[m], top[m])",
    },
    final={"out": "y[m] = total[m]"},
)  # fmt: skip


def swiglu_on_ampere(stages=2, outer=0, early=False, definition=SWIGLU):
    """A, G and U by `cp.async` in the inner loop; D in an iteration of the outer one, before or after the inner loop."""
    chain = definition.tile(m=64, n=64).to(Block).split(f=64)
    chain = chain.pipeline(outer) if outer else chain
    chain = chain.load("D", SH, copy).swizzle_storage() if early else chain
    chain = chain.split(k=32)
    chain = chain.pipeline(stages) if stages else chain
    for name in "AGU":
        chain = chain.load(name, SH, copy).swizzle_storage()
    chain = chain.set_memory("h", SH).swizzle_storage()
    chain = chain if early else chain.load("D", SH, copy).swizzle_storage()
    return chain.step("gate", by_warps).step("up", by_warps).step("down", by_warps).done()


def swiglu_on_hopper(special=True, tma=True, stages=3):
    """A, G and U by TMA in a ring of the inner loop, D in a ring of the outer one, or copied by threads."""
    chain = SWIGLU.tile(m=128, n=64).to(Block).split(f=64).split(k=64).pipeline(stages)
    chain = chain.warp_specialize(128) if special else chain
    for name in "AGU":
        chain = chain.load(name, SH, Move.done())
    chain = chain.set_memory("h", SH).load("D", SH, Move.done() if tma else copy)
    return chain.step("gate", by_warpgroups).step("up", by_warpgroups).step("down", by_warpgroups).done()


def experts_on_ampere():
    """Three loops: groups, of which a tile of rows skips those of other rows, columns of the hidden layer, and k."""
    chain = EXPERTS.tile(m=64, n=64).to(Block).split(g=1).skip_masked_tiles().split(f=64).split(k=32).pipeline(2)
    for name in "AGU":
        chain = chain.load(name, SH, copy).swizzle_storage()
    chain = chain.set_memory("h", SH).swizzle_storage().load("D", SH, copy).swizzle_storage()
    return chain.step("gate", by_warps).step("up", by_warps).step("down", by_warps).done()


def attention_on_ampere(stages=2, skip=True):
    """Keys in chunks of the head dimension: Q and K are staged in the inner loop, V in the outer one."""
    chain = ATTENTION.tile(m=64).to(Block).split(n=64)
    chain = chain.skip_masked_tiles() if skip else chain
    chain = chain.split(d=32).pipeline(stages).load("Q", SH, copy).swizzle_storage().load("K", SH, copy).swizzle_storage()
    chain = chain.load("V", SH, copy).swizzle_storage().tile(m=16).to(Warp)
    scores = MatMul.split(16).unroll().load(A, RF, fragments).load(B, RF, fragments).tile(16, 16).unroll().mma_tile().done()
    values = MatMul.split(16).unroll().load(B, RF, fragments).tile(16, 16).unroll().mma_tile().done()
    return chain.step("s", scores).step("pv", values).done()


def attention_on_hopper():
    """Q, K and V by TMA and a producer."""
    chain = ATTENTION.tile(m=128).to(Block).split(n=64).split(d=64).pipeline(2).warp_specialize(128)
    chain = chain.load("Q", SH, Move.done()).load("K", SH, Move.done()).load("V", SH, Move.done()).tile(m=64).to(Warpgroup)
    product = MatMul.split(16).unroll().done()
    return chain.step("s", product).step("pv", product).done()


def log_sum_exp_on_ampere(persistent=False):
    chain = LOG_SUM_EXP.tile(m=64).to(Block)
    chain = chain.persistent(2) if persistent else chain
    chain = chain.split(n=64).split(k=32).pipeline(3).load("A", SH, copy).swizzle_storage().load("W", SH, copy).swizzle_storage()
    scores = MatMul.split(16).unroll().load(A, RF, fragments).load(B, RF, fragments).tile(16, 16).unroll().mma_tile().done()
    return chain.tile(m=16).to(Warp).step("s", scores).done()


def sums_of_rows(n=4, k=8, unrolled=False):
    """Without matrix instructions: a row of a warp, whose lanes have columns."""
    chain = SUMS.tile(m=2).to(Block).tile(m=1).to(Warp).split(n=n).split(k=k)
    chain = chain.unroll() if unrolled else chain
    return chain.load("X", RF, Move.tile(1, n, 1).to(Lane).done() if k <= 32 else Move.tile(1, 1, 1).to(Lane).done()).done()


def by_numpy(spec, arrays):
    """The outputs in float64."""
    x = {name: np.asarray(array).astype(np.float64) for name, array in arrays.items()}
    with np.errstate(all="ignore"):
        match spec.title:
            case "swiglu":
                return {"Y": _swiglu(x["A"], x["G"], x["U"], x["D"])}
            case "experts":
                y = np.zeros((len(x["A"]), x["D"].shape[2]))
                for group, (begin, end) in enumerate(zip(arrays["begin"], arrays["end"], strict=True)):
                    y[begin:end] = _swiglu(x["A"][begin:end], *(x[name][group] for name in "GUD"))
                return {"Y": y}
            case "wide_heads":
                scores = x["Q"] @ x["K"].T
                scores[np.arange(scores.shape[1]) > np.arange(scores.shape[0])[:, None]] = -np.inf
                weights = np.exp(scores - scores.max(1, keepdims=True))
                return {"O": weights @ x["V"] / weights.sum(1, keepdims=True)}
            case "log_sum_exp":
                scores = x["A"] @ x["W"].T
                return {"y": np.log(np.exp(scores - scores.max(1, keepdims=True)).sum(1)) + scores.max(1)}
    y = x["X"].sum(2) * 2
    return {"Y": y, "y": np.maximum(y.max(1), 0)}


def _swiglu(a, gate, up, down):
    g = a @ gate
    return (g / (1 + np.exp(-g)) * (a @ up)) @ down


M, N, F, K = (sym(name, high=1 << 16) for name in "MNFK")
CASES = {
    "swiglu": (swiglu_on_ampere(), SWIGLU(m=64, n=64, f=128, k=96), {}, "sm_80"),
    "swiglu ragged": (swiglu_on_ampere(3), SWIGLU(m=70, n=50, f=90, k=72), {}, "sm_80"),
    "swiglu symbolic": (swiglu_on_ampere(), SWIGLU(m=M, n=64, f=F, k=K), {"M": 70, "F": 130, "K": 40}, "sm_80"),
    "swiglu no pipeline": (swiglu_on_ampere(0), SWIGLU(m=64, n=64, f=128, k=64), {}, "sm_80"),
    "swiglu two pipelines": (swiglu_on_ampere(2, 2, True), SWIGLU(m=64, n=64, f=192, k=64), {}, "sm_80"),
    "swiglu one iteration": (swiglu_on_ampere(2), SWIGLU(m=64, n=64, f=64, k=32), {}, "sm_80"),
    "swiglu tma": (swiglu_on_hopper(), SWIGLU(m=128, n=64, f=128, k=192), {}, "sm_90a"),
    "swiglu tma ragged": (swiglu_on_hopper(stages=2), SWIGLU(m=200, n=56, f=104, k=200), {}, "sm_90a"),
    "swiglu tma symbolic": (swiglu_on_hopper(), SWIGLU(m=M, n=64, f=sym("F", multiple_of=8), k=sym("K", multiple_of=8)), {"M": 130, "F": 72, "K": 136}, "sm_90a"),
    "swiglu wgmma": (swiglu_on_hopper(False), SWIGLU(m=128, n=64, f=128, k=128), {}, "sm_90a"),
    "swiglu copied": (swiglu_on_hopper(True, False), SWIGLU(m=128, n=64, f=128, k=128), {}, "sm_90a"),
    "experts": (experts_on_ampere(), EXPERTS(m=100, n=64, f=64, k=64, g=3, end=Strides(g=1).aligned(4)), {}, "sm_80"),
    "attention": (attention_on_ampere(), ATTENTION(m=128, n=128, d=96, e=64), {}, "sm_80"),
    "attention ragged": (attention_on_ampere(3, False), ATTENTION(m=100, n=100, d=72, e=64), {}, "sm_80"),
    "attention tma": (attention_on_hopper(), ATTENTION(m=128, n=128, d=128, e=64), {}, "sm_90a"),
    "log_sum_exp": (log_sum_exp_on_ampere(), LOG_SUM_EXP(m=64, n=128, k=64), {}, "sm_80"),
    "log_sum_exp ragged": (log_sum_exp_on_ampere(), LOG_SUM_EXP(m=100, n=150, k=72), {}, "sm_80"),
    "log_sum_exp persistent": (log_sum_exp_on_ampere(True), LOG_SUM_EXP(m=256, n=64, k=64), {}, "sm_80"),
    "sums": (sums_of_rows(), SUMS(m=4, n=8, k=24), {}, "sm_80"),
    "sums ragged": (sums_of_rows(), SUMS(m=5, n=11, k=21, dtype=float32), {}, "sm_80"),
    "sums symbolic": (sums_of_rows(unrolled=True), SUMS(m=M, n=N, k=K), {"M": 3, "N": 9, "K": 17}, "sm_80"),
}  # fmt: skip
"""Strategy, spec, values of symbols, and architecture, by name."""
