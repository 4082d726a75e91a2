"""Move rows of a mixture of experts between the order of tokens and tiles of experts, with copies of 16 bytes.

    experts_rows(T,bm,N)(GL,GL,GL,GL)(Kernel)
      tile(t=1, m=rows, n=256).to(Block)   experts_rows(1,8,256)(GL,...)(Block)
      load(X, RF)                          Move(1,8)(GL,RF)(Lane)                  a vector of 16 bytes of one row

- `sorted_rows` copies row `rows[t,m]` to row m of tile t, and zero to the rows from `filled[t]` on. `weighted` multiplies rows by `V[t,m]`.
- `combined` adds the `j` rows of each token, times their weights, in the order of `j`, in float32: the result is equal in each run.
- `dots` computes the gradients of the weights: the product of the gradient of a token's result with each of its rows.
- `activated` computes silu(p) * q of both products, and `slopes` the gradients of p and q.
"""

from fireiron import *

SIZES = (64, 256, 8)

rows = Tunable("rows", 8, 4, 2, 1)
"""Rows of a block."""

warps = Tunable("warps", 8, 4, 2, 1)
"""Warps of a block, each with one row of one token."""

TABLES = {"rows": int32, "filled": int32}

sorted_rows = Fused(
    name="experts_rows", dims="t m n r", batch="t", types=TABLES, operands={"X": "r n", "rows": "t m", "filled": "t", "Y": "t m n"},
    body={"copy": "y[m,n] = where(m < filled[t], X[rows[t,m],n], 0)", "store": "Y[t,m,n] = y[m,n]"},
)  # fmt: skip

weighted_rows = Fused(
    name="experts_weighted_rows", dims="t m n r", batch="t", types={**TABLES, "V": float32},
    operands={"X": "r n", "rows": "t m", "V": "t m", "filled": "t", "Y": "t m n"},
    body={"scale": "y[m,n] = where(m < filled[t], X[rows[t,m],n] * V[t,m], 0)", "store": "Y[t,m,n] = y[m,n]"},
)  # fmt: skip

combined_rows = Fused(
    name="experts_combined_rows", dims="i n j p", scan="j", types={"V": float32, "places": int32},
    operands={"D": "p n", "places": "i j", "V": "i j", "Y": "i n"},
    init={"zero": "acc[i,n] = 0"},
    body={"add": "acc[i,n] = acc[i,n] + D[places[i,j],n] * V[i,j]"},
    final={"store": "Y[i,n] = acc[i,n]"},
)  # fmt: skip

dot_products = Fused(
    name="experts_dots", dims="i j n p", loop="n", types={"places": int32, "V": float32},
    operands={"D": "p n", "places": "i j", "dY": "i n", "V": "i j"},
    init={"zero": "total[i,j] = 0"},
    body={
        "terms": "x[i,j,n] = D[places[i,j],n] * dY[i,n]",
        "part": "part[i,j] = sum(n, x[i,j,n])",
        "add": "total[i,j] = total[i,j] + part[i,j]",
    },
    final={"store": "V[i,j] = total[i,j]"},
)  # fmt: skip

gated_slopes = Fused(
    name="experts_gated_slopes", dims="m n", operands={"dH": "m n", "P": "m n", "Q": "m n", "dP": "m n", "dQ": "m n"},
    body={
        "sigmoid": "s[m,n] = sigmoid(P[m,n])",
        "up": "q[m,n] = dH[m,n] * (P[m,n] * s[m,n])",
        "gate": "p[m,n] = dH[m,n] * Q[m,n] * (s[m,n] * (1 + P[m,n] * (1 - s[m,n])))",
        "store_up": "dQ[m,n] = q[m,n]",
        "store_gate": "dP[m,n] = p[m,n]",
    },
)  # fmt: skip

gated_rows = Fused(
    name="experts_gated_rows",
    dims="m n",
    operands={"P": "m n", "Q": "m n", "H": "m n"},
    body={"act": "h[m,n] = silu(P[m,n]) * Q[m,n]", "store": "H[m,n] = h[m,n]"},
)

vectors = Move.tile(1, 256).to(Warp).tile(1, 8).to(Lane).done()

strategy = sorted_rows.tile(t=1, m=rows, n=256).to(Block).load("X", RF, vectors).done()
weighted = weighted_rows.tile(t=1, m=rows, n=256).to(Block).load("X", RF, vectors).done()
combined = combined_rows.tile(i=rows, n=256).to(Block).split(j=1).unroll().tile(i=1, n=8).to(Thread).done()
dots = (
    dot_products.rfactor("part", 32)
    .tile(i=1, j=warps)
    .to(Block)
    .tile(j=1)
    .to(Warp)
    .split(n=256)
    .load("D", RF, Move.tile(1, 1, 8).to(Lane).done())
    .done()
)
activated = gated_rows.tile(m=rows, n=256).to(Block).load("P", RF, vectors).load("Q", RF, vectors).done()
slopes = gated_slopes.tile(m=rows, n=256).to(Block).load("dH", RF, vectors).load("P", RF, vectors).load("Q", RF, vectors).done()


def spec(M, N, K, form="sorted", **options):
    """Return the problem: M tokens of N elements, and K tiles of 16 rows, or K choices per token.

    Args: `form`: "sorted", "weighted", "combined", "dots", "activated" or "slopes".
    """
    if form in ("sorted", "weighted"):
        return {"sorted": sorted_rows, "weighted": weighted_rows}[form](t=K, m=16, n=N, r=M, **options)
    if form in ("activated", "slopes"):
        return {"activated": gated_rows, "slopes": gated_slopes}[form](m=M, n=N, **options)
    return {"combined": combined_rows, "dots": dot_products}[form](i=M, n=N, j=K, p=M * K, **options)
