"""Parts of `fireiron.linear_cross_entropy`: definitions and strategies of its kernels, for a number of classes.

A tile of logits stays in registers. The first kernel writes two numbers per row and tile of `WIDE` classes: the largest logit, and the sum
of exponentials of the differences from it. The second kernel combines the tiles of a row, and multiplies the row with the weights of its
target. So no logit is stored.
With `keep` the first kernel also stores the exponentials, from which `gradient_of_kept` computes the gradients of the logits.

    statistics(M,T,256,K)(GL,GL,GL,GL)(Kernel)
      tile(t=1, m=bm).to(Block)        statistics(bm,1,256,K)(GL,GL,GL,GL)(Block)
        .rasterize(group_m).persistent()    tiles of few rows and several tiles of classes run at a time
      step(product)                    MatMul(bm,256,K)(GL,GL,RF)(Block)
        split(64).pipeline(stages).warp_specialize()    TMA and wgmma (Hopper)
      done()                           maximum and sum of a row in registers, over four lanes by shuffles

The array of the weights is W[v,k]. A tile reads the rows `t * WIDE + j`; those past the end are zero, and their logits are masked.
"""

from fireiron import *
from fireiron.strategies._fused import product as fragments_product

LOG2_E = 1.4426950408889634
"""exp(x) = 2 ** (x * LOG2_E)."""

WIDE = 256
"""Classes of a tile."""

NARROW = 64
"""Classes of a tile without wgmma."""

LOWEST = "-1e30"
"""The logit of a class past the end, finite so that differences are."""

NAN = "from_bits(0x7fc00000)"
"""The loss of a row whose target is no class."""

SCALE = 256
"""Gradients of logits are stored in 16 bits times this number, so that small probabilities are normal float16 values."""

LANES = 32
WARPS = 8
"""Warps of a block that combines rows or tiles."""


def statistics(classes, wide=WIDE, keep=False, pick=False):
    """Return the first kernel's definition: the largest logit and the sum of exponentials of each row and tile.

    With `keep` it also stores the exponentials, in 16 bits: each is at most 1, and has the relative error of its type. With `pick` it
    also stores the logit of the class `row[m]` for the tile that contains it, and 0 for the others.
    """
    past = {"mask": f"acc[m,j] = where(t * {wide} + j < {classes}, acc[m,j], {LOWEST})"} if classes % wide else {}
    return Fused(
        name="linear_cross_entropy",
        dims="t m j k v",
        batch="t",
        operands={
            "X": "m k", "W": "v k", **({"row": "m"} if pick else {}), "top": "m t", "total": "m t",
            **({"logit": "m t"} if pick else {}), **({"kept": "m t j"} if keep else {}),
        },
        body={
            "product": f"acc[m,j] = sum(k, X[m,k] * W[t * {wide} + j,k])",
            **past,
            "largest": "best[m] = max(j, acc[m,j])",
            **(_picked(wide) if pick else {}),
            "shift": f"shift[m] = best[m] * {LOG2_E}",
            "power": f"e[m,j] = exp2(acc[m,j] * {LOG2_E} - shift[m])",
            "sum": "sums[m] = sum(j, e[m,j])",
            "top": "top[m,t] = best[m]",
            "total": "total[m,t] = sums[m]",
            **({"keep": "kept[m,t,j] = e[m,j]"} if keep else {}),
        },
        types={"top": float32, "total": float32, **({"row": int32, "logit": float32} if pick else {})},
    )  # fmt: skip


def _picked(wide):
    """Return the steps that store the logit of the target."""
    return {
        "only": f"own[m,j] = where(t * {wide} + j == row[m], acc[m,j], 0)",
        "pick": "picked[m] = sum(j, own[m,j])",
        "logit": "logit[m,t] = picked[m]",
    }


def gradient_of_kept(wide=WIDE):
    """Return the definition of the gradients of logits from the exponentials that the first kernel kept, times a factor of each row."""
    return Fused(
        name="gradient_of_kept",
        dims="m t j",
        operands={"kept": "m t j", "top": "m t", "lse": "m", "row": "m", "factor": "m", "first": "", "G": "m t j"},
        body={
            "scale": f"s[m,t] = exp2((top[m,t] - lse[m]) * {LOG2_E})",
            "target": f"y[m,t,j] = where((first + t) * {wide} + j == row[m], 1, 0)",
            "out": "g[m,t,j] = (kept[m,t,j] * s[m,t] - y[m,t,j]) * factor[m]",
            "store": "G[m,t,j] = g[m,t,j]",
        },
        types={"top": float32, "lse": float32, "row": int32, "factor": float32, "first": int32},
    )


def by_vectors(definition, tiles=4, wide=WIDE):
    """Return the strategy of `gradient_of_kept`: a block has `tiles` tiles of a row, and a lane 16 bytes of each."""
    vectors = Move.tile(1, 1, wide).to(Warp).tile(1, 1, wide // LANES).to(Lane)
    chain = definition.tile(m=1, t=tiles).to(Block).load("kept", RF, vectors.done(EVICT_FIRST))
    return chain.done()


def by_rings(definition, bm=128, wm=64, wide=WIDE, stages=4, group_m=8, num_blocks=132, groups=1, keep=0):
    """Return the strategy on Hopper: `groups` 2 overlaps the exponentials of a warpgroup with the MMAs of the other one.

    Exponentials are stored by TMA, `keep` columns at a time.
    """
    loop = MatMul.split(64).pipeline(stages).warp_specialize(32).load(A, SH, Move.done()).load(B, SH, Move.done())
    tiles = definition.tile(t=1, m=bm).to(Block).rasterize(group_m=group_m).persistent(num_blocks)
    tiles = tiles.pingpong(groups) if groups > 1 else tiles
    chain = tiles.step("product", loop.tile(wm, wide).to(Warpgroup).done())
    store = Move.tile(wm, wide).to(Warpgroup).tile(64, keep).unroll().load(SRC, SH, Move.done()).cast_on_copy().done() if keep else None
    return (chain.step("keep", store) if keep else chain).done()


def by_warps(definition):
    """Return the strategy with mma.sync, for arrays that TMA cannot read and for targets other than sm_90a."""
    copy = Move.coalesced_copy(8).done()
    loop = MatMul.split(32).pipeline(3).load(A, SH, copy).swizzle_storage().load(B, SH, copy).swizzle_storage().tile(16, NARROW).to(Warp)
    return definition.tile(t=1, m=64).to(Block).step(
        "product", loop.split(16).unroll().load(A, RF, Move.done()).load(B, RF, Move.done()).then(fragments_product)
    ).done()  # fmt: skip


def targets(classes):
    """Return the definition of the weights' rows: the targets, and 0 for those that are no class."""
    return Fused(
        name="rows_of_targets",
        dims="m",
        operands={"target": "m", "row": "m"},
        body={"row": f"row[m] = where(0 <= target[m] and target[m] < {classes}, target[m], 0)"},
        types={"target": int64, "row": int32},
    )


def loss(classes, pick=False):
    """Return the definition of the second kernel: loss and log-sum-exp of each row from the tiles' maxima and sums.

    With `pick` it adds the logits of the target that the first kernel stored. Otherwise it multiplies the row with the weights of the
    target, which is fast if these are contiguous.
    """
    legal = f"0 <= target[m] and target[m] < {classes}"
    arrays = {"top": "m t", "total": "m t", "target": "m"}
    given = {**arrays, "logits": "m t"} if pick else {"X": "m k", "W": "v k", **arrays, "row": "m"}
    product = {"product": "p[m,k] = X[m,k] * W[row[m],k]", "logit": "z[m] = sum(k, p[m,k])"}
    types = {"top": float32, "total": float32, "target": int64, "ignored": int32, "loss": float32, "lse": float32}
    return Fused(
        name="linear_cross_entropy_loss",
        dims="m t" if pick else "m t k v",
        operands={**given, "ignored": "", "loss": "m", "lse": "m"},
        body={
            "largest": "best[m] = max(t, top[m,t])",
            "scale": f"e[m,t] = total[m,t] * exp2((top[m,t] - best[m]) * {LOG2_E})",
            "sum": "sums[m] = sum(t, e[m,t])",
            "logarithm": "l[m] = log(sums[m]) + best[m]",
            **({"logit": "z[m] = sum(t, logits[m,t])"} if pick else product),
            "lse": "lse[m] = l[m]",
            "loss": f"loss[m] = where(target[m] == ignored, 0, where({legal}, l[m] - z[m], {NAN}))",
        },
        types={**types, **({"logits": float32} if pick else {"row": int32})},
    )


reduced = Fused(
    name="linear_cross_entropy_sum",
    dims="z m",
    loop="m",
    operands={"loss": "m", "target": "m", "ignored": "", "total": "z", "share": "z", "mean": "z"},
    init={"zero": "t[z] = 0", "none": "c[z] = 0"},
    body={"add": "t[z] += sum(m, loss[m])", "counted": "o[m] = where(target[m] == ignored, 0, 1)", "count": "c[z] += sum(m, o[m])"},
    final={"total": "total[z] = t[z]", "share": "share[z] = 1 / c[z]", "mean": "mean[z] = t[z] / c[z]"},
    types={"loss": float32, "target": int64, "ignored": int32, "total": float32, "share": float32, "mean": float32},
)
"""The sum of the losses, 1 divided by the number of rows that are not ignored, and the mean, in a fixed order."""

largest = Fused(
    name="largest_gradient",
    dims="z m",
    loop="m",
    operands={"dloss": "m", "target": "m", "ignored": "", "top": "z"},
    init={"zero": "t[z] = 0"},
    body={"size": "a[m] = where(target[m] == ignored, 0, abs(dloss[m]))", "max": "t[z] max= max(m, a[m])"},
    final={"top": "top[z] = t[z]"},
    types={"dloss": float32, "target": int64, "ignored": int32, "top": float32},
)
"""The largest gradient of a row's loss."""


def factors(classes, uniform):
    """Return the definition of the factor of each row of the gradients of the logits, at most `SCALE`.

    `uniform`: the losses of all rows have the same gradient. Otherwise `dloss` are the gradients and `top` is the largest.
    """
    value = str(SCALE) if uniform else f"dloss[m] * {SCALE} / max(top[z], 1e-30)"
    further = {} if uniform else {"dloss": "m", "top": "z"}
    legal = f"0 <= target[m] and target[m] < {classes}"
    return Fused(
        name="factors_of_rows",
        dims="m z",
        operands={"target": "m", **further, "ignored": "", "factor": "m z"},
        body={"factor": f"factor[m,z] = where(target[m] == ignored, 0, where({legal}, {value}, {NAN}))"},
        types={"target": int64, **dict.fromkeys(further, float32), "ignored": int32, "factor": float32},
    )


spread = Fused(
    name="scale_of_gradients",
    dims="n z",
    operands={"top": "z", "scale": "n z"},
    body={"scale": f"scale[n,z] = top[z] / {SCALE}"},
    types={"top": float32, "scale": float32},
)
"""The factor of the two products of the gradients, for each column."""


def by_elements(definition, dim="m"):
    """Return the strategy with one element per thread."""
    return definition.tile(**{dim: 256}).to(Block).tile(**{dim: 1}).to(Thread).done()


def by_one_block(definition, operand):
    """Return the strategy of one block, which reads vectors in a loop and so combines elements in a fixed order."""
    chain = definition.tile(z=1).to(Block).split(m=LANES * WARPS * 8)
    for name in (operand, "target"):
        chain = chain.load(name, RF, Move.tile(LANES * 8).to(Warp).tile(1).to(Lane).done())
    return chain.done()


def by_rows(definition, columns, tiles):
    """Return the strategy of the second kernel, for numbers of columns of X, if it reads X, and of tiles: a block has a row."""
    parts = Move.tile(1, _part(tiles, 1)).to(Warp).tile(1, 1).to(Lane).done()
    chain = definition.tile(m=1).to(Block)
    if columns:
        chain = chain.load("X", RF, Move.tile(1, _part(columns, 8)).to(Warp).tile(1, 8).to(Lane).done())
    return chain.load("top", RF, parts).done()


def _part(size, vector):
    """Return the elements of a row that a warp has, if a block has at most `WARPS` warps."""
    once = LANES * vector
    return once * -(-size // (WARPS * once))
