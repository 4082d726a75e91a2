"""Depthwise convolution: each channel of the result is that of the images with its own filter. Limited by reading and writing images.

    Y[b,p,q,c] = sum over r, s of X[b,p * stride + r * dilation - padding,q * stride + s * dilation - padding,c] * W[c,r,s]

    depthwise(b,p,q,c)(GL,GL,GL)(Kernel)
      tile(1, 1, bq, bc).to(Block)
      tile(1, 1, tq, tc).to(Thread)    `tc` adjacent channels of `tq` adjacent pixels, loaded as vectors
      split(r=1), split(s=1)           unrolled: each tap is a multiplication of the tile

Images have contiguous channels. Adjacent threads have adjacent channels, then pixels. Each pixel is read once per tap, from the caches.
"""

from fireiron import *
from fireiron.strategies import convolution

SIZES = (4, 28, 64)

bq = Tunable("bq", 32, 8, 16, 64)
bc = Tunable("bc", 64, 32, 128, 16, 8)
tq = Tunable("tq", 4, 1, 2, 8)
tc = Tunable("tc", 8, 4, 2, 1)

strategy = (
    AnySpec.tile(1, 1, bq, bc)
    .to(Block)
    .tile(1, 1, tq, tc)
    .to(Thread)
    .split(r=1)
    .unroll()
    .split(s=1)
    .unroll()
    .step("load_tap", Move.tile(1, 1, 1, tc).unroll().done())
    .done()
)


def definition(stride=(1, 1), padding=(0, 0), dilation=(1, 1), bias=False, residual=False, activation=None, dtype=float16):
    """Return the convolution of images with a filter per channel; see `convolution.definition`."""
    places = [
        pixel + (f" * {step}" if step > 1 else "") + f" + {tap}" + (f" * {gap}" if gap > 1 else "") + (f" - {by}" if by else "")
        for pixel, tap, step, gap, by in zip("pq", "rs", stride, dilation, padding, strict=True)
    ]
    operands, steps = convolution.epilogue("acc[b,p,q,c]", "b p q c", "c", bias, residual, activation)
    return Fused(
        name="depthwise", dims="b p q c r s h w", operands={"X": "b h w c", "W": "c r s", **operands, "Y": "b p q c"},
        scan="r s", types={"tap": dtype},
        init={"zero": "acc[b,p,q,c] = 0"},
        body={
            "load_tap": f"tap[b,p,q,c] = X[b,{','.join(places)},c]",
            "add_tap": "acc[b,p,q,c] = acc[b,p,q,c] + tap[b,p,q,c] * W[c,r,s]",
        },
        final={**steps, "round": "y[b,p,q,c] = acc[b,p,q,c]", "store": "Y[b,p,q,c] = y[b,p,q,c]"},
    )  # fmt: skip


def ranked(pixels, channels):
    """Return values for rows and columns of the result, the best first."""
    wide = next(size for size in (64, 32, 16, 8, 4, 2, 1) if channels % size == 0)
    few = next((size for size in (32, 16) if pixels[1] >= size - 4), 8)
    return [{"bc": max(wide, 8), "tc": min(wide, 8), "bq": few, "tq": 4}]


def images(
    batch, size, channels, taps, stride=(1, 1), padding=(0, 0), dilation=(1, 1), bias=False, residual=False, activation=None, **options
):  # fmt: skip
    """Return the convolution of `batch` images of a size (H, W)."""
    rows, columns = (convolution.out_size(*numbers) for numbers in zip(size, taps, stride, padding, dilation, strict=True))
    defined = definition(stride, padding, dilation, bias, residual, activation, options.get("dtype", float16))
    return defined(b=batch, p=rows, q=columns, c=channels, r=taps[0], s=taps[1], h=size[0], w=size[1], **options)


def spec(batch, size, channels, filter=3, stride=1, **options):
    """Return the convolution of square images by square filters, with a padding of half of the filter."""
    pair = [(number, number) for number in (size, filter, stride, filter // 2)]
    return images(batch, pair[0], channels, pair[1], pair[2], pair[3], **options)
