"""Definitions with 2:4 sparse products as steps, a strategy for each target, and their outputs by NumPy, of several tests.

The inputs of products are small integers, so their sums are exact in any order.
"""

from collections.abc import Callable, Mapping
from math import erf
from typing import Any

import attrs
import numpy as np

from fireiron import *
from fireiron.measure.inputs import random_inputs

wide, parts = Move.coalesced_copy(16).done(), Move.done()


def by_warps(kk=32, warp=(32, 32)):
    """A product of operands in shared memory by mma.sp, with `kk` elements of k per instruction."""
    chain = SparseMatMul.tile(*warp).to(Warp).split(kk).unroll().load(A, RF, parts).load("E", RF, parts).load(B, RF, parts)
    return chain.tile(16, 8).unroll().done()


def staged(kk=32, k=64, stages=2, warp=(32, 32)):
    """A product of operands in global memory by mma.sp, through stages in shared memory."""
    chain = SparseMatMul.split(k).pipeline(stages).load(A, SH, wide).swizzle_storage().load("E", SH, wide)
    return chain.load(B, SH, wide).swizzle_storage().then(by_warps(kk, warp))


def by_ring(columns=64, k=128, order=RowMajor):
    """A product of operands in global memory by wgmma.sp, through a ring that a producer fills."""
    chain = SparseMatMul.split(k).pipeline(2).warp_specialize().load(A, SH, parts).load("E", SH, parts)
    chain = chain.to_row_major() if order == RowMajor else chain.to_col_major().swizzle_storage()
    return chain.load(B, SH, parts).then(by_warpgroups(columns))


def by_warpgroups(columns=64):
    """A product of operands in shared memory by wgmma.sp."""
    return SparseMatMul.tile(64, columns).to(Warpgroup).load("E", RF, parts).done()


def dense_of(values, metadata):
    """The dense matrix, element by element from the definition of the format; any further dimensions come first."""
    values, metadata = np.asarray(values, np.float64), np.asarray(metadata).astype(int)
    dense = np.zeros((*values.shape[:-1], values.shape[-1] * 2), np.float64)
    for *row, kept in np.ndindex(values.shape):
        group = kept // 2
        nibble = metadata[(*row, group // 2)] >> 4 * (group % 2) & 15 or 4
        dense[(*row, 4 * group + ((nibble >> 2 * (kept % 2)) & 3))] = values[(*row, kept)]
    return dense


def gelu(x):
    return 0.5 * x * (1 + np.vectorize(erf)(x * 0.5**0.5))


@attrs.frozen
class SparseCase:
    """A definition, its sizes, strategies by target, and its outputs by NumPy; `products` are operands with few small integers."""

    definition: Fused
    sizes: Mapping[str, Any]
    strategies: Mapping[str, Strategy]
    by_numpy: Callable[..., Any]
    products: str
    symbols: Mapping[str, int] = attrs.field(factory=dict)

    @property
    def spec(self):
        return self.definition(**self.sizes)

    def arrays(self, seed=0):
        """The inputs by name."""
        generator = np.random.default_rng(seed)
        arrays = random_inputs(self.spec, self.symbols, generator)
        return {
            name: generator.integers(-2, 3, array.shape).astype(array.dtype) if name in self.products.split() else array
            for name, array in arrays.items()
        }

    def require_right(self, results, arrays):
        """Compare outputs by name with NumPy: to two units in the last place of float16."""
        given = {name: array if array.dtype == np.uint8 else array.astype(np.float64) for name, array in arrays.items()}
        right = self.by_numpy(**given)
        right = right if isinstance(right, tuple) else (right,)
        for name, expected in zip(self.spec.outputs, right, strict=True):
            np.testing.assert_allclose(np.asarray(results[name], np.float64), expected, rtol=2e-3, atol=1e-3, err_msg=name)


CASES: dict[str, SparseCase] = {}

sparse_gelu = Fused(
    name="sparse_gelu", dims="m n k h b", operands={"W": "m h", "E": "m b", "X": "k n", "bias": "m", "Y": "m n"},
    body={
        "product": "acc[m,n] = sum(k, decompressed(W[m,k // 2], E[m,k // 8]) * X[k,n])",
        "gelu": "Y[m,n] = gelu(acc[m,n] + bias[m])",
    },
)  # fmt: skip


def of_gelu(W, E, X, bias):
    return gelu(dense_of(W, E) @ X + bias[:, None])


gelu_warps = sparse_gelu.tile(m=64, n=64).to(Block).step("product", staged()).done()
gelu_ring = sparse_gelu.tile(m=64, n=64).to(Block).step("product", by_ring()).done()
CASES["bias, GELU"] = SparseCase(
    sparse_gelu, {"m": 70, "n": 72, "k": 256}, {"sm_80": gelu_warps, "sm_90a": gelu_ring}, of_gelu, "W X"
)  # fmt: skip
CASES["k that tiles do not divide"] = SparseCase(
    sparse_gelu, {"m": 70, "n": 33, "k": 200}, {"sm_80": gelu_warps, "sm_90a": gelu_ring}, of_gelu, "W X"
)  # fmt: skip
CASES["run-time sizes"] = SparseCase(
    sparse_gelu, {"m": sym("m"), "n": sym("n", multiple_of=8), "k": sym("k", multiple_of=128)},
    {"sm_80": gelu_warps, "sm_90a": gelu_ring}, of_gelu, "W X", {"m": 70, "n": 72, "k": 256},
)  # fmt: skip
CASES["metadata by columns"] = SparseCase(
    sparse_gelu, {"m": 80, "n": 72, "k": 192, "E": ColMajor},
    {"sm_90a": sparse_gelu.tile(m=64, n=64).to(Block).step("product", by_ring(k=64, order=ColMajor)).done()}, of_gelu, "W X",
)  # fmt: skip

linear = Fused(
    name="linear", dims="m n k h b", operands={"X": "m k", "W": "n h", "E": "n b", "bias": "n", "R": "m n", "Y": "m n", "Z": "m n"},
    body={
        "product": "acc[m,n] = sum(k, X[m,k] * decompressed(W[n,k // 2], E[n,k // 8]))",
        "residual": "Z[m,n] = acc[m,n] + bias[n] + R[m,n]",
        "relu": "Y[m,n] = relu(acc[m,n])",
    },
)  # fmt: skip


def of_linear(X, W, E, bias, R):
    acc = X @ dense_of(W, E).T
    return np.maximum(acc, 0), acc + bias + R


CASES["sparse right factor, two outputs"] = SparseCase(
    linear, {"m": 70, "n": 72, "k": 256},
    {
        "sm_80": linear.tile(m=64, n=64).to(Block).step("product", staged()).done(),
        "sm_90a": linear.tile(m=64, n=64).to(Block).step("product", by_ring()).done(),
    },
    of_linear, "X W",
)  # fmt: skip

looped = Fused(
    name="looped", dims="m n k h b", loop="k", operands={"W": "m h", "E": "m b", "X": "k n", "s": "m", "Y": "m n"},
    init={"zero": "acc[m,n] = 0"},
    body={"product": "acc[m,n] += sum(k, decompressed(W[m,k // 2], E[m,k // 8]) * X[k,n])"},
    final={"store": "Y[m,n] = silu(acc[m,n] * s[m])"},
)  # fmt: skip


def of_looped(W, E, X, s):
    x = dense_of(W, E) @ X * s[:, None]
    return x / (1 + np.exp(-x))


in_loop = looped.tile(m=64, n=64).to(Block).split(k=64).pipeline(2).load("W", SH, wide).swizzle_storage()
in_loop = in_loop.load("E", SH, wide).load("X", SH, wide).swizzle_storage().step("product", by_warps()).done()
in_ring = looped.tile(m=64, n=64).to(Block).split(k=128).pipeline(2).warp_specialize().load("W", SH, parts).load("E", SH, parts)
in_ring = in_ring.to_row_major().load("X", SH, parts).step("product", by_warpgroups()).done()
CASES["loop of the definition"] = SparseCase(
    looped, {"m": 70, "n": 72, "k": 256}, {"sm_80": in_loop, "sm_90a": in_ring}, of_looped, "W X"
)  # fmt: skip

perceptron = Fused(
    name="perceptron", dims="m n k r h b p q", operands={"W": "m h", "E": "m b", "X": "k n", "V": "r q", "F": "r p", "Y": "r n"},
    body={
        "first": "a[m,n] = sum(k, decompressed(W[m,k // 2], E[m,k // 8]) * X[k,n])",
        "relu": "t[m,n] = relu(a[m,n]) * 0.25",
        "second": "y[r,n] = sum(m, decompressed(V[r,m // 2], F[r,m // 8]) * t[m,n])",
        "store": "Y[r,n] = y[r,n]",
    },
)  # fmt: skip
second = SparseMatMul.load(A, SH, wide).load("E", SH, wide).then(by_warps(warp=(16, 32)))
CASES["two sparse products"] = SparseCase(
    perceptron, {"m": 64, "n": 40, "k": 136, "r": 64},
    {"sm_80": perceptron.tile(n=32).to(Block).step("first", staged(warp=(16, 32))).set_memory("t", SH).step("second", second).done()},
    lambda W, E, X, V, F: dense_of(V, F) @ (np.maximum(dense_of(W, E) @ X, 0) * 0.25), "W X V",
)  # fmt: skip

batched = Fused(
    name="batched", dims="g m n k h b", batch="g", operands={"W": "g m h", "E": "g m b", "X": "g k n", "Y": "g m n"},
    body={
        "product": "acc[m,n] = sum(k, decompressed(W[g,m,k // 2], E[g,m,k // 8]) * X[g,k,n])",
        "relu": "Y[g,m,n] = relu(acc[m,n])",
    },
)  # fmt: skip
CASES["batch"] = SparseCase(
    batched, {"g": 2, "m": 70, "n": 40, "k": 128},
    {
        "sm_80": batched.tile(g=1, m=64, n=64).to(Block).step("product", staged()).done(),
        "sm_90a": batched.tile(g=1, m=64, n=64).to(Block).step("product", by_ring()).done(),
    },
    lambda W, E, X: np.maximum(dense_of(W, E) @ X, 0), "W X",
)  # fmt: skip

quantized = Fused(
    name="quantized", dims="m n k h b", operands={"W": "m h", "E": "m b", "X": "k n", "sw": "m", "sx": "n", "Y": "m n"},
    body={
        "product": "acc[m,n] = sum(k, decompressed(W[m,k // 2], E[m,k // 8]) * X[k,n])",
        "scale": "f[m,n] = acc[m,n] * sw[m] * sx[n]",
        "round": "Y[m,n] = clamp(round(f[m,n]), -128, 127)",
    },
    types={"sw": float32, "sx": float32, "Y": int8},
)  # fmt: skip


def of_quantized(W, E, X, sw, sx):
    scaled = (dense_of(W, E) @ X).astype(np.float32) * sw.astype(np.float32)[:, None] * sx.astype(np.float32)
    return np.clip(np.rint(scaled), -128, 127)


int8_ring = quantized.tile(m=64, n=64).to(Block).step("product", by_ring()).done()
CASES["int8, scales, int8 result"] = SparseCase(
    quantized, {"m": 70, "n": 72, "k": 256, "dtype": int8, "X": ColMajor},
    {"sm_80": quantized.tile(m=64, n=64).to(Block).step("product", staged(kk=64)).done(), "sm_90a": int8_ring}, of_quantized, "W X",
)  # fmt: skip

STRATEGIES = [(name, target) for name, case in CASES.items() for target in case.strategies]
