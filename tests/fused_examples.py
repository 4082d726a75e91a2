"""Multi-step definitions with a strategy each, small enough for every test: (definition, strategy, spec, arrays)."""

from __future__ import annotations

from typing import Any

import numpy as np

from fireiron import *

copy, fragments = Move.coalesced_copy(8).done(), Move.done()
mma = MatMul.tile(16, 16).unroll().mma_tile().done()

gemm_bias_relu = Fused(
    name="gemm_bias_relu",
    dims="m n k",
    operands={"A": "m k", "B": "k n", "bias": "n", "D": "m n"},
    body={"mm": "acc[m,n] = sum(k, A[m,k] * B[k,n])", "act": "d[m,n] = relu(acc[m,n] + bias[n])", "store": "D[m,n] = d[m,n]"},
)
main_loop = (
    MatMul.split(32).pipeline(3, interleave=True).load(A, SH, copy).swizzle_storage().load(B, SH, copy).swizzle_storage()
    .tile(32, 32).to(Warp).split(16).unroll().pipeline(2).load(A, RF, fragments).load(B, RF, fragments).then(mma)
)  # fmt: skip
gemm_strategy = gemm_bias_relu.tile(m=64, n=64).to(Block).step("mm", main_loop).done()

layernorm = Fused(
    name="layernorm",
    dims="m n",
    operands={"X": "m n", "gamma": "n", "beta": "n", "Y": "m n"},
    body={
        "sum": "mean[m] = sum(n, X[m,n])",
        "mean": "mean[m] = mean[m] / size(n)",
        "center": "c[m,n] = X[m,n] - mean[m]",
        "square": "sq[m,n] = c[m,n] * c[m,n]",
        "var": "rstd[m] = sum(n, sq[m,n])",
        "rstd": "rstd[m] = rsqrt(rstd[m] / size(n) + 1e-05)",
        "out": "Y[m,n] = c[m,n] * rstd[m] * gamma[n] + beta[n]",
    },
)
layernorm_strategy = layernorm.tile(m=1).to(Block).load("X", RF, Move.tile(1, 128).to(Warp).tile(1, 4).to(Lane).done()).done()

attention = Fused(
    name="attention",
    dims="m n d b",
    loop="n",
    batch="b",
    operands={"Q": "m d b", "K": "n d b", "V": "n d b", "O": "m d b", "scale": ""},
    init={"mx": "mx[m] = -inf", "l": "l[m] = 0", "acc": "acc[m,d] = 0"},
    body={
        "s": "s[m,n] = sum(d, Q[m,d,b] * K[n,d,b])",
        "mask": "s[m,n] = where(n <= m, s[m,n] * scale, -inf)",
        "top": "top[m] = max(n, s[m,n])",
        "new": "new[m] = max(mx[m], top[m])",
        "alpha": "alpha[m] = exp2(mx[m] - new[m])",
        "keep": "mx[m] = new[m]",
        "exp": "s[m,n] = exp2(s[m,n] - new[m])",
        "sums": "sums[m] = sum(n, s[m,n])",
        "update": "l[m] = l[m] * alpha[m] + sums[m]",
        "scaled": "acc[m,d] = acc[m,d] * alpha[m]",
        "p": "p[m,n] = s[m,n]",
        "pv": "acc[m,d] += sum(n, p[m,n] * V[n,d,b])",
    },
    final={"norm": "o[m,d] = acc[m,d] / l[m]", "store": "O[m,d,b] = o[m,d]"},
)
product = MatMul.split(16).unroll().pipeline(2).load(B, RF, fragments).then(mma)
attention_strategy = (
    attention.tile(m=64, b=1).to(Block).load("Q", SH, copy).swizzle_storage().load("Q", RF, Move.tile(16).to(Warp).done())
    .split(n=32).pipeline(2).load("K", SH, copy).swizzle_storage().load("V", SH, copy).swizzle_storage()
    .tile(m=16).to(Warp).step("s", product).step("pv", product).done()
)  # fmt: skip

mlp = Fused(
    name="mlp",
    dims="m n k l",
    scan="l",
    operands={"X": "m k", "W": "k n l", "bias": "n l", "Y": "m n"},
    init={"x": "h[m,k] = X[m,k]"},
    body={"mm": "acc[m,n] = sum(k, h[m,k] * W[k,n,l])", "act": "h[m,n] = relu(acc[m,n] + bias[n,l])"},
    final={"out": "Y[m,n] = h[m,n]"},
)
mlp_strategy = (
    mlp.tile(m=32).to(Block).set_memory("h", SH, pad=8).split(l=1).pipeline(2).load("W", SH, copy).swizzle_storage().step("x", copy)
    .step("mm", MatMul.tile(32, 32).to(Warp).split(16).unroll().load(A, RF, fragments).load(B, RF, fragments).then(mma))
    .step("out", copy).done()
)  # fmt: skip

dual = Fused(
    name="dual",
    dims="m n k",
    loop="k",
    operands={"A": "m k", "B1": "k n", "B2": "k n", "D": "m n", "y": "m"},
    init={"u0": "u[m,n] = 0", "v0": "v[m,n] = 0", "r0": "r[m] = 0"},
    body={
        "u": "u[m,n] += sum(k, A[m,k] * B1[k,n])",
        "v": "v[m,n] += sum(k, A[m,k] * B2[k,n])",
        "r": "r[m] += sum(k, A[m,k])",
    },
    final={"D": "D[m,n] = relu(u[m,n]) * v[m,n]", "y": "y[m] = r[m]"},
)
half = MatMul.load(B, RF, fragments).then(mma)
dual_strategy = (
    dual.tile(m=64, n=64).to(Block).split(k=32).pipeline(3)
    .load("A", SH, copy).swizzle_storage().load("B1", SH, copy).swizzle_storage().load("B2", SH, copy).swizzle_storage()
    .tile(m=32, n=32).to(Warp).split(k=16).unroll().load("A", RF, fragments).step("u", half).step("v", half).done()
)  # fmt: skip

scaled = Fused(
    name="scaled",
    dims="i j",
    operands={"x": "i j", "alpha": "", "y": "i j", "top": "i j"},
    body={"scale": "t[i,j] = x[i,j] * alpha", "y": "y[i,j] = where(j <= i, t[i,j], 0)", "top": "top[i,j] = max(t[i,j], 0)"},
)
scaled_strategy = scaled.tile(i=8, j=32).to(Block).tile(1, 1).to(Thread).done()


def specs() -> dict[str, tuple[Any, Any]]:
    """A strategy and a spec of each definition, by its name."""
    at = {
        "attention": attention(m=64, n=64, d=32, b=2, **{one: Strides(b=64 * 32, **{row: 32}, d=1) for one, row in zip("QKVO", "mnnm")}),
        "mlp": mlp(m=32, n=32, k=32, l=2, W=Strides(l=1024, k=32, n=1), bias=Strides(l=32, n=1)),
    }
    return {
        "gemm_bias_relu": (gemm_strategy, gemm_bias_relu(m=64, n=64, k=64)),
        "layernorm": (layernorm_strategy, layernorm(m=4, n=256)),
        "attention": (attention_strategy, at["attention"]),
        "mlp": (mlp_strategy, at["mlp"]),
        "dual": (dual_strategy, dual(m=64, n=64, k=64)),
        "scaled": (scaled_strategy, scaled(i=20, j=40)),
    }


def inputs(spec: Any, seed: int = 0) -> dict[str, Any]:
    """Random inputs of a spec whose sizes are known, by operand."""
    random = np.random.default_rng(seed)
    return {
        name: np.asarray(random.standard_normal([int(size.value) for size in spec.operands[name].shape])).astype(
            spec.operands[name].dtype.to_numpy()
        )
        for name in spec.inputs
    }
