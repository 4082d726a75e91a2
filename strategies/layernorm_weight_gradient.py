"""The gradients of LayerNorm with respect to weight and bias: sums of columns, to which several blocks add.

    layernorm_weight_gradient(M,N)(GL,GL,GL,GL,GL,GL)(Kernel)
      tile(m=128, n=256).to(Block)      layernorm_weight_gradient(128,256)(GL,...)(Block)
      load(X, RF), load(dY, RF)        16 rows to a warp, eight columns to a lane
      done()                           sums of rows in registers, of warps through shared memory, of blocks by atomic additions

The order of the additions is not fixed, so the last bits differ between runs. `mean` and `scale` are those of each row.
"""

from fireiron import *
from fireiron.strategies._rows import column_values, columns, columns_once, rows_of_block

SIZES = (4096, 1024)

layernorm_weight_gradient = Fused(
    name="layernorm_weight_gradient",
    dims="m n",
    operands={"X": "m n", "mean": "m", "scale": "m", "dY": "m n", "dweight": "n", "dbias": "n"},
    body={
        "product": "p[m,n] = (X[m,n] - mean[m]) * scale[m] * dY[m,n]",
        "weight": "dweight[n] += sum(m, p[m,n])",
        "bias": "dbias[n] += sum(m, dY[m,n])",
    },
    types={"mean": float32, "scale": float32, "dweight": float32, "dbias": float32},
)

strategy = (
    layernorm_weight_gradient.tile(m=rows_of_block, n=columns).to(Block).load("X", RF, columns_once).load("dY", RF, columns_once).done()
)


def spec(M, N, **options):
    """Return the problem: float16 by default; options are `dtype`, `types`, strides by operand. The kernel takes X, mean, scale and dY."""
    return layernorm_weight_gradient(m=M, n=N, **options)


def values(spec):
    """Return tunables for a problem without a record, by row length."""
    return column_values(spec)
