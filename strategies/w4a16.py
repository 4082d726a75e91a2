"""C = A·W of float16 or bfloat16 activations A and weights W of 4 bits with a scale for 128 of them (W4A16).

    w4a16(M,N,K,...)(GL,GL,GL,GL)(Kernel)
      few, for 1 to 64 rows:
        split_k(num_splits, Block, bk)   blocks share the k of a tile; the last block sums their parts, in a fixed order
        tile(bm,bn).to(Block)            all rows of A, 64 rows of weights
        split(k=bk).pipeline(stages)     cp.async
        tile(n=64).to(Warpgroup)         weights are converted to registers, the first operand of wgmma
        step(product)                    MatMul(64,bm,16)(RF,SH,RF)(Warpgroup)
      strategy, for more rows:
        tile(bm,bn).to(Block)            persistent; TMA loads A, weights and scales; a warpgroup converts its rows of weights
      ampere:                            mma.sync, with converted weights in shared memory

The weight w[n,k] is (u - 8) * S[k // 128,n] for an integer u from 0 to 15. P has a word for 8 of them, in the order in which a thread
needs them for two MMAs: word 4 * (k // 32) + k // 2 % 4 of row n has u in the four bits from 16 * (k % 2) + 4 * (k // 8 % 4) on. So a
thread reads whole words, and one operation on bits extracts a pair. `pack` returns the words of weights.
"""

from fireiron import *
from fireiron.strategies._quantized import form, of_few_rows, of_least_time, of_many_rows, of_warps, values_of, with_epilogue

SIZES = (4096, 4096, 4096)

GROUP = 128
"""Weights along k with one scale."""

TILES = [
    ({"bm": 256, "bn": 128, "stages": 4, "group_m": 4}, 256, 128, 1.0),
    ({"bm": 192, "bn": 128, "stages": 5, "group_m": 4}, 192, 128, 0.96),
    ({"bm": 128, "bn": 128, "stages": 6, "group_m": 4}, 128, 128, 0.85),
]
"""Values for more than 64 rows; rows and columns of the tile, and its share of the fastest one's speed."""

FIELD = "P[n,k // 32 * 4 + k // 2 % 4] >> 16 * (k % 2) + 4 * (k // 8 % 4) & 15"


def definition(epilogue="acc", operands=None, name="w4a16", group=GROUP, **types):
    """Return the definition with an epilogue: a formula of the sum `acc[n,m]`, written `acc`, and of further operands by name.

    `definition("gelu(acc + bias[n]) + R[m,n]", {"bias": "n", "R": "m n"}, name="mine")` has a bias, an activation and a residual;
    `types` are the types of operands. `forms` returns the strategies for it.
    """
    arrays, final = with_epilogue({"A": "m k", "P": "n q", "S": "g n"}, epilogue, operands or {})
    return Fused(
        name=name,
        dims="m n k q g",
        loop="k",
        operands=arrays,
        init={"zero": "acc[n,m] = 0"},
        body={"weight": f"w[n,k] = (({FIELD}) - 8) * S[k // {group},n]", "product": "acc[n,m] += sum(k, w[n,k] * A[m,k])"},
        final=final,
        types={"P": int32, **types},
    )


def loads(loop):
    """Load the words of weights, with rows apart so that lanes access different banks, and the scales."""
    return loop.load("P", SH, Move.coalesced_copy(4).done()).pad(4).load("S", SH, Move.coalesced_copy(8).done())


def boxes(loop):
    """Load the words of weights and the scales by TMA."""
    return loop.load("P", SH, Move.done()).load("S", SH, Move.done())


def forms(definition):
    """Return the strategies of a definition: for many rows, for few rows, and for mma.sync."""
    return of_many_rows(definition, boxes), of_few_rows(definition, loads), of_warps(definition, loads)


w4a16 = definition()

strategy, few, ampere = forms(w4a16)


def spec(M, N, K, **options):
    """Return the problem: K is a multiple of 128. The kernel takes A (M x K), P (N x K / 8) and S (K / 128 x N)."""
    return w4a16(m=M, n=N, k=K, q=K // 8, **options)


def fastest(spec):
    """Return the strategy for the number of rows."""
    return form(spec)


def values(spec, target=None):
    """Return the values for a problem that were the fastest on an H200."""
    return values_of(spec, target, {"bk": 256, "stages": 4}, of_least_time(spec, TILES))


def pack(weights):
    """Return the words, N x K / 8 of int32, of integers from 0 to 15 in an array N x K of NumPy, CuPy or PyTorch; 32 divides K."""
    rows, columns = weights.shape
    parts = weights.reshape(rows, columns // 32, 4, 4, 2)  # k = 32 a + 8 b + 2 c + d: word c of the group a, bits from 16 d + 4 b on
    words = 0
    for b in range(4):
        for d in range(2):
            words = words + _as_int64(parts[:, :, b, :, d]) * (1 << 16 * d + 4 * b)
    return _as_int32(words - ((words >> 31) << 32)).reshape(rows, columns // 8)


def _as_int64(array):
    return array.long() if hasattr(array, "is_cuda") else array.astype("int64")


def _as_int32(array):
    return array.int() if hasattr(array, "is_cuda") else array.astype("int32")
