"""The gradient of the images of a convolution on Hopper: TMA in im2col mode reads pixels of the result's gradient, wgmma multiplies.

    dX[m,c] = sum(k, dY[m // (H * W),m // W % H + shift - k // (S * O) * step,...,k % O] * W[k // (S * O),k // O % S,k % O,c])

With stride 1, it is a convolution of dY with reversed taps: the reversal is in the indices of dY, so the filters are read in place. With a
stride, the pixels whose coordinates have the same remainder are a *phase*. They use the same taps, and each phase is one kernel, which
performs no multiplication by zero. `phases` returns those of a dimension.

    input_gradient(m,k,c)(GL,GL,GL)(Kernel)
      tile(bm,bn).to(Block)            pixels and channels of a block
        .rasterize(group_m).persistent().pingpong(groups)
      epilog(RF, float32, ...)         MatMul(128,128,K)(GL,GL,RF)(Block)       convert, store through shared memory
      split(bk).pipeline(stages)       MatMul(128,128,64)(GL,GL,RF)(Block)      output channels of one tap of the filter
        .warp_specialize()
      load(A, SH), load(B, SH)         MatMul(128,128,64)(SH,SH,RF)(Block)      TMA: pixels, and rows of filters, in im2col mode
      tile(wm,wn).to(Warpgroup)        MatMul(64,128,64)(SH,SH,RF)(Warpgroup)
      done()                           WGMMA

`strategy` stores by TMA. `strided` is for strides: threads store 16 bytes of each pixel of a phase, and each kernel starts while the
previous one ends (programmatic dependent launch).
"""

import math

from fireiron import *
from fireiron.strategies.convolution import (
    NAMES,
    SMS,
    bk,
    bm,
    bn,
    epi_n,
    group_m,
    groups,
    mma_in_flight,
    num_blocks,
    producer_threads,
    ranked,
    stages,
    wm,
    wn,
)  # fmt: skip

SIZES = (32, 56, 64)


def product(store, programmatic_launch=False):
    """Return the kernel that stores tiles of warpgroups by `store`; with `programmatic_launch` it starts before the previous one ends."""
    tiles = MatMul.tile(bm, bn).to(Block).rasterize(group_m).persistent(num_blocks).pingpong(groups)
    tiles = tiles.programmatic_launch() if programmatic_launch else tiles
    return (
        tiles.epilog(RF, float32, Init.done(), store)
        .split(bk)
        .pipeline(stages)
        .warp_specialize(producer_threads)
        .mma_in_flight(mma_in_flight)
        .load(A, SH, Move.done())
        .load(B, SH, Move.done())
        .tile(wm, wn)
        .to(Warpgroup)
        .done()
    )


pieces = Move.tile(wm, wn).to(Warpgroup).tile(64, epi_n).unroll()
strategy = product(pieces.load(SRC, SH, Move.done()).cast_on_copy().done())
strided = product(pieces.load(SRC, SH, Move.done()).cast_on_copy().coalesced_copy(8).done(), programmatic_launch=True)


def phases(size, taps, stride=1, padding=0, dilation=1):
    """Return the phases of an image dimension of `size` pixels, which may have a different number of pixels.

    Phase number a has the pixels a, a + stride, ...; each is a tuple of their number, the first tap and the number of taps, the pixel of
    the gradient that the first tap of the first pixel reads, and the pixels by which the next tap reads an earlier one. Taps of a phase are
    `tap_step(stride, dilation)` apart.
    """
    step = tap_step(stride, dilation)
    result = []
    for first in range(min(stride, size)):
        own = [tap for tap in range(taps) if (first + padding - tap * dilation) % stride == 0]
        shift = (first + padding - own[0] * dilation) // stride if own else 0
        result.append((-(-(size - first) // stride), own[0] if own else 0, len(own), shift, step * dilation // stride))
    return result


def tap_step(stride, dilation):
    """Return the number of taps from one tap of a phase to the next."""
    return stride // math.gcd(stride, dilation)


def definition(pixels, grads, taps, shift, step, outputs, strided=False, channels_first=False):
    """Return the gradient of one phase of the images, as a matrix product of pixels and channels.

    `pixels` are the rows and columns of the phase, `grads` those of dY, and `taps` those of the filter. Tap (r, s) of pixel (i, j) reads
    dY at (i + shift[0] - r * step[0], j + shift[1] - s * step[1]). With `strided`, dX has a dimension of rows of all images, and one of
    columns. With `channels_first`, the product is transposed.
    """
    image, dims = _gradient(pixels, grads, taps, shift, step, outputs)
    weights, weight_dims = _filters(taps, outputs)
    result, result_dims = (f"D[m // {pixels[1]},m % {pixels[1]},c]", "u v c") if strided else ("D[m,c]", "m c")
    accumulator = "acc[c,m]" if channels_first else "acc[m,c]"
    if channels_first and not strided:
        result, result_dims = "D[c,m]", "c m"
    value = f"sum(k, {weights} * {image})" if channels_first else f"sum(k, {image} * {weights})"
    order = dict.fromkeys(f"{'c k m' if channels_first else 'm k c'} {dims} {weight_dims} {result_dims}".split())
    return Fused(
        name="input_gradient", dims=" ".join(order), operands={"G": dims, "W": weight_dims, "D": result_dims},
        body={"product": f"{accumulator} = {value}", "store": f"{result} = {accumulator}"},
    )  # fmt: skip


def joins(pixels, grads, taps, shift):
    """Return whether pixel number m of the phase reads only pixel number m of the gradient, so that their rows are one dimension."""
    return tuple(taps) == (1, 1) and tuple(shift) == (0, 0) and tuple(pixels) == tuple(grads)


def _gradient(pixels, grads, taps, shift, step, outputs):
    """Return the element of dY as text, and the dimensions of its array."""
    if joins(pixels, grads, taps, shift):
        return "G[m,k]", "m k"
    digits = f"m // {pixels[1]} % {pixels[0]}", f"m % {pixels[1]}"
    counts = f"k // {taps[1] * outputs}", f"k // {outputs} % {taps[1]}"
    ends = [own != size for own, size in zip(pixels, grads, strict=True)]
    places = [_place(*one) for one in zip(digits, counts, taps, shift, step, ends, strict=True)]
    return f"G[m // {math.prod(pixels)},{','.join(places)},k % {outputs}]", "n p q o"


def _place(pixel, count, taps, shift, step, is_sum):
    """Return the index of an image dimension of dY as text; with `is_sum`, it is no plain digit, which would determine the extent."""
    tap = "" if taps == 1 else f" - {count}" + (f" * {step}" if step > 1 else "")
    offset = f" {'-' if shift < 0 else '+'} {abs(shift)}" if shift or (is_sum and not tap) else ""
    return pixel + tap + offset


def _filters(taps, outputs):
    """Return the element of the filters as text, and the dimensions of their array; those with one tap are missing."""
    rows, columns = taps
    if rows * columns == 1:
        return "W[k,c]", "k c"
    index = [f"k // {columns * outputs}"] if rows > 1 else []
    index += [f"k // {outputs}" + (f" % {columns}" if rows > 1 else "")] if columns > 1 else []
    dims = " ".join(["r"] * (rows > 1) + ["s"] * (columns > 1) + ["o c"])
    return f"W[{','.join(index)},k % {outputs},c]", dims


def phase(batch, pixels, grads, taps, shift, step, outputs, channels, strided=False, channels_first=False, **options):
    """Return the problem of one phase, for `batch` images; `options` state storage orders of W and D."""
    defined = definition(pixels, grads, taps, shift, step, outputs, strided, channels_first)
    sizes = {} if joins(pixels, grads, taps, shift) else {"n": batch, "p": grads[0], "q": grads[1], "o": outputs}
    sizes |= {"r": taps[0]} if taps[0] > 1 else {}
    sizes |= {"s": taps[1]} if taps[1] > 1 else {}
    sizes |= {"o": outputs} if math.prod(taps) > 1 else {}
    order = {"D": ColMajor} if channels_first and not strided else {}
    return defined(m=batch * math.prod(pixels), k=math.prod(taps) * outputs, c=channels, **sizes, **{**order, **options})


def spec(batch, size, channels, outputs=64, filter=3, **options):
    """Return the problem of square images, a square filter and stride 1, with a padding of half of the filter."""
    pair = (size, size)
    (_, _, _, shift, step), *_ = phases(size, filter, 1, filter // 2)
    return phase(batch, pair, pair, (filter, filter), (shift, shift), (step, step), outputs, channels, **options)


STRIDED = (
    ((128, 128, 64, 128, 2, 5, 64), 0.97),
    ((192, 128, 64, 128, 1, 5, 64), 0.92),
    ((128, 256, 64, 256, 1, 3, 64), 0.9),
    ((256, 64, 64, 64, 1, 4, 64), 0.85),
    ((128, 64, 64, 64, 2, 6, 64), 0.8),
)
"""Values of the tunables of `convolution.NAMES`, and the share of the peak that full tiles of `strided` reach."""


def tiles(pixels, channels, outputs, taps=1, strided=False):
    """Return forms and values, the least estimated time first; see `convolution.ranked`. The form states whether channels are rows."""
    if not strided:
        return ranked(pixels, channels, outputs, taps)
    depth = next(size for size in (64, 32, 16) if outputs % size == 0 or size == 16)

    def cost(form):
        (high, wide, *_), share = form
        return -(-(-(-pixels // high) * -(-channels // wide)) // SMS) * high * wide / share

    return [(False, {**dict(zip(NAMES, numbers, strict=True)), "bk": depth}) for numbers, _ in sorted(STRIDED, key=cost)]
