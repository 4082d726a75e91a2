"""Copy the pixels that a row of a filter reads, next to each other: for convolutions of few channels.

    Y[n,h,q,e] = X[n,e % C,h,q * stride + e // C * dilation - padding] for e < S * C, else 0

A convolution of few channels has short contiguous runs: 3 channels are 6 bytes. With these rows as channels, it has taps (R, 1) and whole
chunks for TMA. X may have any strides, so images with contiguous rows (NCHW) need no other copy.

    filter_rows(n,h,q,e)(GL,GL)(Kernel)
      tile(1, 1, bq, be).to(Block)
      tile(1, 1, 1, te).to(Thread)     `te` elements, stored as a vector
"""

from fireiron import *
from fireiron.values.expr import constant

SIZES = (4, 56, 3)

bq = Tunable("bq", 32, 8, 16, 64)
be = Tunable("be", 32, 16, 64)
te = Tunable("te", 8, 4)

strategy = AnySpec.tile(1, 1, bq, be).to(Block).tile(1, 1, 1, te).to(Thread).done()


def definition(channels, taps, stride=1, padding=0, dilation=1):
    """Return the copy for a filter of `taps` columns; the numbers are those along columns."""
    tap = f"e // {channels}" + (f" * {dilation}" if dilation > 1 else "")
    column = f"q{f' * {stride}' if stride > 1 else ''} + {tap}" + (f" - {padding}" if padding else "")
    return Fused(
        name="filter_rows", dims="n h q e c w", operands={"X": "n c h w", "Y": "n h q e"},
        body={
            "gather": f"row[n,h,q,e] = where(e < {taps * channels}, X[n,e % {channels},h,{column}], 0)",
            "store": "Y[n,h,q,e] = row[n,h,q,e]",
        },
    )  # fmt: skip


def rows(batch, size, channels, taps, columns, elements, stride=1, padding=0, dilation=1, **options):
    """Return the copy of `batch` images of a size (H, W), for `columns` columns of the result, with `elements` elements each."""
    return definition(channels, taps, stride, padding, dilation)(n=batch, h=size[0], q=columns, e=elements, w=size[1], **options)


def values(spec):
    """Return tunables for a problem."""
    return {"be": 32 if (constant(spec.size("e")) or 16) % 32 == 0 else 16}


def spec(batch, size, channels, filter=7, stride=2, **options):
    """Return the problem of square images and a square filter, with a padding of half of the filter."""
    columns = (size + 2 * (filter // 2) - filter) // stride + 1
    return rows(batch, (size, size), channels, filter, columns, -(-filter * channels // 16) * 16, stride, filter // 2, **options)
