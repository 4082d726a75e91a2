"""The gradient of the rotary position embedding: the rotation by the opposite angles.

    rope_gradient(B,M,H,2,2,D)(GL,GL,GL,GL)(Kernel)
      ...                              as `rope`

dX0 = dY0 * C + dY1 * S, dX1 = dY1 * C - dY0 * S.
"""

from fireiron import *
from fireiron.strategies import rope

SIZES = (2, 4096, 32, 64)

rope_gradient = rope.definition("rope_gradient", "dY", "dX", "S[m,d]", "-S[m,d]")
strategy = rope.of(rope_gradient)

sizes = rope.sizes
"""The number of halves of the result."""


def spec(B, M, H, D, **options):
    """Return the problem: float16 by default; D is half of the elements of a head. The kernel takes dY, C and S."""
    return rope_gradient(b=B, m=M, h=H, p=2, q=2, d=D, **options)


def values(spec):
    """Return tunables for a problem without a record: those of `rope`."""
    return rope.values(spec)
