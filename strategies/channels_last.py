"""Copy images with contiguous pixels (NCHW) to images with contiguous channels (NHWC): transposed matrices, through shared memory.

channels_last(n,p,c)(GL,GL)(Kernel)
  tile(1, bp, bc).to(Block)
  load(X, SH)                      channels_last(1,64,64)(SH,GL)(Block)     vectors along pixels; padded rows
  tile(1, 1, tc).to(Thread)        `tc` channels of a pixel, stored as a vector
"""

from fireiron import *
from fireiron.values.expr import constant

SIZES = (4, 56, 64)

bp = Tunable("bp", 64, 32, 128)
bc = Tunable("bc", 64, 32, 128)
tp = Tunable("tp", 8, 4, 2, 1)
tc = Tunable("tc", 8, 4, 2, 1)

definition = Fused(
    name="channels_last", dims="n p c", operands={"X": "n c p", "Y": "n p c"},
    body={"gather": "pixel[n,p,c] = X[n,c,p]", "store": "Y[n,p,c] = pixel[n,p,c]"},
)  # fmt: skip

strategy = AnySpec.tile(1, bp, bc).to(Block).load("X", SH, Move.coalesced_copy(tp).done()).pad(2).tile(1, 1, tc).to(Thread).done()


def values(spec):
    """Return tunables for a problem: vectors that divide rows."""
    sizes = {"tp": constant(spec.size("p")) or 1, "tc": constant(spec.size("c")) or 1}
    return {name: next(width for width in (8, 4, 2, 1) if size % width == 0) for name, size in sizes.items()}


def spec(batch, size, channels, **options):
    """Return the problem of square images."""
    return definition(n=batch, p=size * size, c=channels, **options)
