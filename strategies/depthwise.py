"""Depthwise convolution: each channel of the result is that of the images with its own filter. Limited by reading and writing images.

    Y[b,p,q,c] = sum(k, X[b,p * stride + k // S * dilation - padding,q * stride + k % S * dilation - padding,c] * W[c,k])

    depthwise(b,p,q,c,k)(GL,GL,GL)(Kernel)
      tile(b=1, p=1, q=bq, c=bc).to(Block)
      tile(b=1, p=1, q=tq, c=tc).to(Thread)     `tc` adjacent channels of `tq` adjacent pixels, loaded as vectors

Images have contiguous channels. Adjacent threads have adjacent channels, then pixels. Each pixel is read once per tap, from the caches.
"""

from fireiron import *
from fireiron.strategies import convolution

SIZES = (4, 28, 64)

bq = Tunable("bq", 8, 4, 16, 32)
bc = Tunable("bc", 64, 32, 128, 16, 8)
tq = Tunable("tq", 2, 1, 4)
tc = Tunable("tc", 8, 4, 2, 1)


def definition(size, taps, stride=(1, 1), padding=(0, 0), dilation=(1, 1), bias=False, residual=False, activation=None):
    """Return the convolution of images with a filter of taps (R, S) per channel; see `convolution.definition`."""
    counts = (f"k // {taps[1]}" if taps[1] > 1 else "k"), f"k % {taps[1]}"
    places = [convolution.tap_index(*terms) for terms in zip("pq", counts, taps, stride, dilation, padding, strict=True)]
    operands, steps = convolution.epilogue("acc[b,p,q,c]", "b p q c", "c", bias, residual, activation)
    return Fused(
        name="depthwise", dims="b p q c k h w", operands={"X": "b h w c", "W": "c k", **operands, "Y": "b p q c"},
        body={
            "sum": f"acc[b,p,q,c] = sum(k, X[b,{','.join(places)},c] * W[c,k])", **steps, "store": "Y[b,p,q,c] = acc[b,p,q,c]",
        },
    )  # fmt: skip


strategy = definition((1, 1), (3, 3)).tile(b=1, p=1, q=bq, c=bc).to(Block).tile(b=1, p=1, q=tq, c=tc).to(Thread).done()


def ranked(pixels, channels):
    """Return values for rows and columns of the result, the best first."""
    wide = next(size for size in (64, 32, 16, 8, 4, 2, 1) if channels % size == 0)
    return [{"bc": max(wide, 8), "tc": min(wide, 8), "bq": 16 if pixels[1] >= 16 else 8, "tq": 2}]


def images(batch, size, channels, taps, stride=(1, 1), padding=(0, 0), dilation=(1, 1), bias=False, residual=False, activation=None, **options):
    """Return the convolution of `batch` images of a size (H, W)."""
    rows, columns = (convolution.out_size(*numbers) for numbers in zip(size, taps, stride, padding, dilation, strict=True))
    defined = definition(size, taps, stride, padding, dilation, bias, residual, activation)
    return defined(b=batch, p=rows, q=columns, c=channels, k=taps[0] * taps[1], h=size[0], w=size[1], **options)


def spec(batch, size, channels, filter=3, stride=1, **options):
    """Return the convolution of square images by square filters, with a padding of half of the filter."""
    pair = [(number, number) for number in (size, filter, stride, filter // 2)]
    return images(batch, pair[0], channels, pair[1], pair[2], pair[3], **options)
