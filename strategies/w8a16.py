"""C = A·W of float16 or bfloat16 activations A and weights W of int8 with a scale for each column of C (W8A16).

    w8a16(M,N,K)(GL,GL,GL,GL)(Kernel)
      few, for 1 to 64 rows:
        split_k(num_splits, Block, bk)   blocks share the k of a tile; the last block sums their parts, in a fixed order
        tile(bm,bn).to(Block)            all rows of A, 64 rows of weights
        split(k=bk).pipeline(stages)     cp.async
        tile(n=64).to(Warpgroup)         weights are converted to registers, the first operand of wgmma
        step(product)                    MatMul(64,bm,16)(RF,SH,RF)(Warpgroup)
      strategy, for more rows:
        tile(bm,bn).to(Block)            persistent; TMA loads weights and A, with a producer
      ampere:                            mma.sync, with converted weights in shared memory

W[n,k] is stored by columns of the product: K is contiguous. The scale S[n] multiplies the complete sum in float32.
"""

import re

from fireiron import *
from fireiron.strategies._quantized import form, of_few_rows, of_many_rows, of_warps, values_of, with_epilogue

SIZES = (4096, 4096, 4096)


def definition(epilogue="acc", operands=None, name="w8a16", **types):
    """Return the definition with an epilogue: a formula of the scaled sum, written `acc`, and of further operands by name.

    `definition("gelu(acc + bias[n]) + R[m,n]", {"bias": "n", "R": "m n"}, name="mine")` has a bias, an activation and a residual;
    `types` are the types of operands. `forms` returns the strategies for it.
    """
    arrays, final = with_epilogue({"A": "m k", "W": "n k", "S": "n"}, re.sub(r"\bacc\b", "(acc * S[n])", epilogue), operands or {})
    return Fused(
        name=name,
        dims="m n k",
        loop="k",
        operands=arrays,
        init={"zero": "acc[n,m] = 0"},
        body={"weight": "w[n,k] = W[n,k] * 1", "product": "acc[n,m] += sum(k, w[n,k] * A[m,k])"},
        final=final,
        types={"W": int8, **types},
    )


def swizzled(loop):
    """Load the weights so that lanes access different banks."""
    return loop.load("W", SH, Move.coalesced_copy(16).done()).swizzle_storage()


def by_tma(loop):
    """Load the weights by TMA."""
    return loop.load("W", SH, Move.done()).swizzle_storage()


def forms(definition):
    """Return the strategies of a definition: for many rows, for few rows, and for mma.sync."""
    return of_many_rows(definition, by_tma), of_few_rows(definition, swizzled), of_warps(definition, swizzled)


w8a16 = definition()

strategy, few, ampere = forms(w8a16)


def spec(M, N, K, **options):
    """Return the problem. The kernel takes A (M x K), W (N x K) and S (N)."""
    return w8a16(m=M, n=N, k=K, **options)


def fastest(spec):
    """Return the strategy for the number of rows."""
    return form(spec)


def values(spec, target=None):
    """Return the values for a problem that were the fastest on an H200."""
    return values_of(spec, target, {"bk": 256, "stages": 3}, {"bm": 256, "bn": 128, "stages": 3})
