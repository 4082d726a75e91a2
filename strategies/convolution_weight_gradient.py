"""The gradient of the filters of a convolution on Hopper: a matrix product over all pixels, in parts that a second kernel sums.

    P[b,o,k] = sum(m, dY[b,m,o] * X[m // (P * Q) + b * N,m // Q % P * stride + k // (S * C) * dilation - padding,...,k % C])

Both operands are read in place: dY by TMA, and the pixels of X by TMA in im2col mode. A tile has 64 channels of each of several taps. Each
part has complete images. `add_parts` adds the parts in their order, so the result is the same in each run.

    weight_gradient(b,o,k,m)(GL,GL,GL)(Kernel)
      tile(b=1).to(Block)
      tile(bm,bn).to(Block)            output channels, and channels of taps
        .rasterize(group_m).persistent()
      epilog(RF, float32, ...)         MatMul(128,192,M)(GL,GL,RF)(Block)       store through shared memory by TMA
      split(bk).pipeline(stages)       MatMul(128,192,64)(GL,GL,RF)(Block)      pixels
        .warp_specialize()
      load(A, SH), load(B, SH)         MatMul(128,192,64)(SH,SH,RF)(Block)      TMA
      tile(wm,wn).to(Warpgroup)        MatMul(64,192,64)(SH,SH,RF)(Warpgroup)
      done()                           WGMMA

`whole` is for one part: it stores the result in the type of the filters.
"""

import math

from fireiron import *
from fireiron.strategies import convolution

SIZES = (32, 56, 64)

bm = Tunable("bm", 128, 64, 256)
bn = Tunable("bn", 128, 64, 192, 256, 96, 160, 224, 32, 48, 80, 144, 240, 16)
bk = Tunable("bk", 64, 112, 96, 80, 48, 32, 16)
wm = Tunable("wm", 64, 128)
wn = Tunable("wn", 128, 64, 192, 256, 96, 160, 224, 32, 48, 80, 144, 240, 16)
epi_n = Tunable("epi_n", 32, 64, 16)
stages = Tunable("stages", 4, 2, 3, 5, 6)
group_m = Tunable("group_m", 8, 1)
num_blocks = Tunable("num_blocks", 132, 264)
mma_in_flight = Tunable("mma_in_flight", 1, 0)


def product(start, store):
    """Return the kernel after the steps `start`, which stores tiles of warpgroups by `store`."""
    return (
        start.tile(bm, bn)
        .to(Block)
        .rasterize(group_m)
        .persistent(num_blocks)
        .epilog(RF, float32, Init.done(), store)
        .split(bk)
        .pipeline(stages)
        .warp_specialize(32)
        .mma_in_flight(mma_in_flight)
        .load(A, SH, Move.done())
        .load(B, SH, Move.done())
        .tile(wm, wn)
        .to(Warpgroup)
        .done()
    )


pieces = Move.tile(wm, wn).to(Warpgroup).tile(64, epi_n).unroll().load(SRC, SH, Move.done())
strategy = product(MatMul.tile(b=1).to(Block), pieces.done())
whole = product(MatMul, pieces.cast_on_copy().done())

FORMS = {
    64: (
        ((128, 256, 64, 256), 1.0),
        ((256, 128, 128, 128), 0.97),
        ((128, 192, 64, 192), 0.97),
        ((128, 128, 64, 128), 0.85),
        ((64, 192, 64, 192, 264), 0.7),
        ((64, 192, 64, 192), 0.6),
        ((64, 256, 64, 256), 0.55),
        ((64, 64, 64, 64), 0.3),
    ),
    32: (
        ((128, 224, 64, 224), 0.9),
        ((64, 224, 64, 224), 0.55),
        ((128, 96, 64, 96), 0.5),
        ((64, 96, 64, 96), 0.4),
        ((64, 32, 64, 32), 0.2),
    ),
    16: (((128, 144, 64, 144), 0.6), ((64, 144, 64, 144), 0.4), ((64, 48, 64, 48), 0.25), ((64, 16, 64, 16), 0.1)),
}
"""Values of `bm`, `bn`, `wm`, `wn` and perhaps `num_blocks`, and the share of the peak that full tiles reach (H200); by the channels of a
box, a divisor of C. With 264 blocks, two share an SM.

A box has the channels of one tap, in rows of 128, 64 or 32 bytes. `bn` is an odd multiple of fewer than 64 channels, so that the rows of
its chunks in shared memory have the same length.
"""

SMS = 132
"""Multiprocessors of an H200."""

PEAK = 5.5e6
"""Operations that an SM of an H200 performs per microsecond with full tiles."""

SUM_US, SUM_BYTES = 2.0, 2.0e6
"""Microseconds of the second kernel, and bytes of parts that are written and read again per microsecond."""

SHARED = 200 << 10
"""Bytes of shared memory for stages."""

MOST_PARTS = 128
"""Maximum number of parts."""


def ranked(images, pixels, outputs, channels, taps=1, joined=False):
    """Return the number of parts and values, the least estimated time first.

    `images` have `pixels` pixels of the result each. With `joined`, images are one dimension, and tiles may end within the channels.
    """
    options, terms = [], channels * taps
    box = 64 if joined else math.gcd(channels, 64)
    for parts in range(1, MOST_PARTS + 1):
        if images % parts:
            continue
        length = images // parts * pixels
        depth = next((size for size in (64, 112, 96, 80, 48, 32, 16) if length % size == 0), 64 if joined or parts == 1 else None)
        if depth is None:
            continue
        for (high, wide, rows, columns, *blocks), share in FORMS[box]:
            if (terms < wide // 2 or outputs <= high // 2) and (high, wide) != FORMS[box][-1][0][:2]:
                continue
            tiles, slots = -(-outputs // high) * -(-terms // wide) * parts, blocks[0] if blocks else SMS
            us = -(-tiles // slots) * (2 * high * wide * length / PEAK / share * slots / SMS + 1.0)
            us += 0 if parts == 1 else SUM_US + outputs * terms * 4 * parts / SUM_BYTES
            count = min(6, SHARED * SMS // slots // ((high + wide) * depth * 2))
            if count > 2:
                values = {"bm": high, "bn": wide, "wm": rows, "wn": columns, "bk": depth, "stages": count, "epi_n": min(box, 32)}
                values |= {"num_blocks": slots} if blocks else {}
                options.append((us, len(options), parts, values))
    return [(parts, values) for _, _, parts, values in sorted(options, key=lambda one: one[:2])]


def definition(size, taps, channels, stride=(1, 1), padding=(0, 0), dilation=(1, 1), images=0):
    """Return the gradient of the filters as a matrix product of output channels and channels of taps.

    `images` are those of each part; without parts, the result has no dimension of parts.
    """
    result = "P[b,o,k]" if images else "D[o,k]"
    accumulator, left = ("acc[b,o,k]", "b m o") if images else ("acc[o,k]", "m o")
    image, dims = _image(size, taps, channels, stride, padding, dilation, images)
    order = dict.fromkeys(f"{'b ' if images else ''}o m k {dims}".split())
    result_dims = "b o k" if images else "o k"
    return Fused(
        name="weight_gradient", dims=" ".join(order), operands={"G": left, "X": dims, result[0]: result_dims},
        body={"product": f"{accumulator} = sum(m, G[{left.replace(' ', ',')}] * {image})", "store": f"{result} = {accumulator}"},
    )  # fmt: skip


def _image(size, taps, channels, stride, padding, dilation, images):
    """Return the element of the images as text, and the dimensions of their array."""
    if convolution.joins(taps, stride, padding):
        return ("X[b,m,k]", "b m k") if images else ("X[m,k]", "m k")
    plain = convolution.image_index(size, taps, channels, stride, padding, dilation)
    return (plain.replace(",", f" + b * {images},", 1) if images else plain), "n h w c"


def images(batch, size, channels, outputs, taps, stride=(1, 1), padding=(0, 0), dilation=(1, 1), parts=1, **options):
    """Return the gradient for `batch` images of a size (H, W), in parts of complete images."""
    rows, columns = (convolution.out_size(*numbers) for numbers in zip(size, taps, stride, padding, dilation, strict=True))
    defined = definition(size, taps, channels, stride, padding, dilation, batch // parts if parts > 1 else 0)
    joined = convolution.joins(taps, stride, padding)
    sizes = {} if joined else {"n": batch, "h": size[0], "w": size[1], "c": channels}
    sizes |= {"b": parts, "types": {"P": float32, **options.pop("types", {})}} if parts > 1 else {}
    return defined(m=batch // parts * rows * columns, k=math.prod(taps) * channels, o=outputs, **sizes, **options)


def spec(batch, size, channels, outputs=64, filter=3, stride=1, parts=4, **options):
    """Return the problem of square images and a square filter, with a padding of half of the filter, in parts that divide the images.

    Channels are a multiple of 64, those of a box with the first values of the tunables. `ranked` returns values for others.
    """
    if channels % 64:
        asked = "convolution_weight_gradient: a box of the first tile has 64 channels, which do not divide those of the images"
        raise ArgumentError(asked, got=channels, legal="64 128 192", hint="images(...), and values of ranked(...)")
    pair = [(number, number) for number in (size, filter, stride, filter // 2)]
    return images(batch, pair[0], channels, outputs, pair[1], pair[2], pair[3], parts=parts, **options)
