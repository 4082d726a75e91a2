"""C = A·B of int8 with a scale for each row of A (each token) and for each column of B (each output channel) (W8A8).

    w8a8(M,N,K)(GL,GL,GL,GL,GL)(Kernel)
      few, for 1 to 64 rows:
        split_k(num_splits, Block, bk)   blocks share the k of a tile; the last block sums their parts, in a fixed order
        tile(bm,bn).to(Block)            all rows of A, 64 columns of B
        split(k=bk).pipeline(stages)     cp.async
        tile(n=64).to(Warpgroup)         columns of B are the rows of the instruction
        step(product)                    MatMul(64,bm,32)(SH,SH,RF)(Warpgroup), wgmma
      strategy, for more rows:
        tile(bm,bn).to(Block)            persistent; TMA, with a producer
      ampere:                            mma.sync

B[n,k] is stored by columns of the product: K is contiguous. Sums are int32; the scales SA[m] and SB[n] multiply them in float32.
"""

import re

from fireiron import *
from fireiron.strategies._quantized import form, of_few_rows, of_many_rows, products_of_bytes, values_of, with_epilogue

SIZES = (4096, 4096, 4096)


def definition(epilogue="acc", operands=None, name="w8a8", **types):
    """Return the definition with an epilogue: a formula of the scaled sum, written `acc`, and of further operands by name.

    `definition("gelu(acc + bias[n]) + R[m,n]", {"bias": "n", "R": "m n"}, name="mine")` has a bias, an activation and a residual, and
    `definition("clamp(round(acc * inverse), -128, 127)", {"inverse": ""}, name="mine", C=int8)` a result in int8. `types` are the types of
    operands; C is float16 by default. `forms` returns the strategies for it.
    """
    scaled = re.sub(r"\bacc\b", "(acc * (SA[m] * SB[n]))", epilogue)
    arrays, final = with_epilogue({"A": "m k", "SA": "m", "B": "n k", "SB": "n"}, scaled, operands or {})
    return Fused(
        name=name,
        dims="m n k",
        loop="k",
        operands=arrays,
        init={"zero": "acc[n,m] = 0"},
        body={"product": "acc[n,m] += sum(k, B[n,k] * A[m,k])"},
        final=final,
        types={"A": int8, "SA": float32, "B": int8, "SB": float32, "C": float16, **types},
    )


def by_tma(loop):
    """Load B by TMA."""
    return loop.load("B", SH, Move.done())


def of_warps(definition):
    """Return the strategy for mma.sync."""
    copy, fragments = Move.coalesced_copy(16).done(), Move.done()
    loop = definition.tile(m=64, n=64).to(Block).split(k=64).pipeline(3).load("A", SH, copy).swizzle_storage()
    warps = MatMul.tile(32, 32).to(Warp).split(32).unroll().load(A, RF, fragments).load(B, RF, fragments)
    return loop.load("B", SH, copy).swizzle_storage().step("product", warps.tile(16, 16).unroll().mma_tile().done()).done()


def forms(definition):
    """Return the strategies of a definition: for many rows, for few rows, and for mma.sync."""
    many = of_many_rows(definition, by_tma, step=128, products=products_of_bytes)
    return many, of_few_rows(definition, by_tma, products_of_bytes), of_warps(definition)


w8a8 = definition()

strategy, few, ampere = forms(w8a8)


def spec(M, N, K, **options):
    """Return the problem. The kernel takes A (M x K), SA (M), B (N x K) and SB (N)."""
    return w8a8(m=M, n=N, k=K, **options)


def fastest(spec):
    """Return the strategy for the number of rows."""
    return form(spec)


def values(spec, target=None):
    """Return the values for a problem that were the fastest on an H200."""
    return values_of(spec, target, {"bk": 256, "stages": 4}, {"bm": 256, "bn": 128, "stages": 4})
