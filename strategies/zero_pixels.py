"""Set pixels of images to zero: those of a phase of a gradient that no tap of the filter reads. Limited by writing memory.

zero_pixels(u,v,e)(GL)(Kernel)
  tile(1, bv, be).to(Block)
  tile(1, 1, te).to(Thread)        `te` elements, stored as a vector
"""

from fireiron import *
from fireiron.values.expr import constant

SIZES = (4, 28, 64)

bv = Tunable("bv", 8, 1, 2, 4, 16, 32)
be = Tunable("be", 256, 64, 128, 16, 32, 512, 1024, 2048)
te = Tunable("te", 8)

definition = Fused(
    name="zero_pixels", dims="u v e", operands={"Y": "u v e"}, body={"zero": "zero[u,v,e] = 0", "store": "Y[u,v,e] = zero[u,v,e]"},
)  # fmt: skip

strategy = AnySpec.tile(1, bv, be).to(Block).tile(1, 1, te).to(Thread).done()


def values(spec):
    """Return tunables for a problem: about 256 threads per block."""
    elements, pixels = constant(spec.size("e")) or 16, constant(spec.size("v")) or 1
    wide = next((size for size in (2048, 1024, 512, 256, 128, 64, 32) if size <= elements and (pixels == 1 or size <= 256)), 16)
    return {"be": wide, "bv": next(size for size in (32, 16, 8, 4, 2, 1) if size == 1 or (size <= 2048 // wide and size < 2 * pixels))}


def spec(rows, columns, channels, **options):
    """Return the problem of `rows` rows of all images."""
    return definition(u=rows, v=columns, e=channels, **options)
