"""The gradient of RMSNorm with respect to its weight: sums of columns, to which several blocks add.

    rmsnorm_weight_gradient(M,N)(GL,GL,GL,GL)(Kernel)
      tile(m=128, n=256).to(Block)      rmsnorm_weight_gradient(128,256)(GL,GL,GL,GL)(Block)
      load(X, RF), load(dY, RF)        16 rows to a warp, eight columns to a lane
      done()                           sums of rows in registers, of warps through shared memory, of blocks by atomic additions

The order of the additions is not fixed, so the last bits differ between runs. `scale` is the reciprocal root mean square of each row.
"""

from fireiron import *
from fireiron.strategies._rows import column_values, columns, columns_once, rows_of_block

SIZES = (4096, 1024)

rmsnorm_weight_gradient = Fused(
    name="rmsnorm_weight_gradient",
    dims="m n",
    operands={"X": "m n", "scale": "m", "dY": "m n", "dweight": "n"},
    body={"product": "p[m,n] = X[m,n] * scale[m] * dY[m,n]", "add": "dweight[n] += sum(m, p[m,n])"},
    types={"scale": float32, "dweight": float32},
)

strategy = (
    rmsnorm_weight_gradient.tile(m=rows_of_block, n=columns).to(Block).load("X", RF, columns_once).load("dY", RF, columns_once).done()
)


def spec(M, N, **options):
    """Return the problem: float16 by default; options are `dtype`, `types` and strides by operand. The kernel takes X, scale and dY."""
    return rmsnorm_weight_gradient(m=M, n=N, **options)


def values(spec):
    """Return tunables for a problem without a record, by row length."""
    return column_values(spec)
