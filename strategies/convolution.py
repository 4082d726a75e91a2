"""Convolution on Hopper as one matrix product (implicit GEMM): TMA in im2col mode, wgmma, persistent blocks, TMA stores.

    Y[m,o] = sum(k, X[m // (P * Q),m // Q % P * stride + k // (S * C) * dilation - padding,...,k % C] * W[o,k])

Images have contiguous channels (NHWC), and the weights are those of PyTorch in channels_last (O, R, S, C), as a matrix of rows k. A
row m of the result is an output pixel. Tiles of pixels cross rows and images, so images of any size fill them; TMA reads zeros outside of
an image. In the second form, `outputs_first`, a warpgroup has rows of output channels, and columns of pixels: wgmma reads fewer bytes of
shared memory if there are few output channels, because its wide operand has the pixels.

    convolution(m,k,o)(GL,GL,GL)(Kernel)
      tile(bm,bn).to(Block)            pixels and output channels of a block
        .rasterize(group_m).persistent().pingpong(groups)    with 2 groups, the epilogue of one overlaps with the loop of the other
      epilog(RF, float32, ...)         MatMul(128,128,K)(GL,GL,RF)(Block)       convert, store through shared memory by TMA
      split(bk).pipeline(stages)       MatMul(128,128,64)(GL,GL,RF)(Block)      channels of one tap of the filter
        .warp_specialize()
      load(A, SH), load(B, SH)         MatMul(128,128,64)(SH,SH,RF)(Block)      TMA: pixels in im2col mode
      tile(wm,wn).to(Warpgroup)        MatMul(64,128,64)(SH,SH,RF)(Warpgroup)
      done()                           WGMMA

A convolution of 1x1 with stride 1 and no padding is a product of matrices, for which `fireiron.matmul` is faster.
"""

from fireiron import *

SIZES = (32, 56, 64)

bm = Tunable("bm", 128, 64, 192, 256)
bn = Tunable("bn", 128, 64, 96, 192, 256)
bk = Tunable("bk", 64, 128, 32, 16)
wm = Tunable("wm", 64, 128, 192)
wn = Tunable("wn", 128, 64, 96, 192, 256)
epi_n = Tunable("epi_n", 64, 32, 128, 192, 256)
stages = Tunable("stages", 4, 2, 3, 5, 6, 7, 8)
group_m = Tunable("group_m", 8, 1, 2, 4, 16)
num_blocks = Tunable("num_blocks", 132, 264, 65536)
groups = Tunable("groups", 1, 2)
producer_threads = Tunable("producer_threads", 32, 128)
mma_in_flight = Tunable("mma_in_flight", 1, 0)

store = Move.tile(wm, wn).to(Warpgroup).tile(64, epi_n).unroll().load(SRC, SH, Move.done()).cast_on_copy().done()

strategy = (
    MatMul.tile(bm, bn)
    .to(Block)
    .rasterize(group_m)
    .persistent(num_blocks)
    .pingpong(groups)
    .epilog(RF, float32, Init.done(), store)
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

outputs_first = strategy

FORMS = (
    (True, (128, 256, 64, 256, 1, 4, 64), 1.0),
    (True, (128, 192, 64, 192, 1, 5, 64), 0.98),
    (False, (192, 128, 64, 128, 1, 5, 64), 0.97),
    (False, (128, 128, 64, 128, 2, 5, 64), 0.96),
    (True, (64, 256, 64, 256, 2, 4, 64), 0.93),
    (True, (64, 192, 64, 192, 2, 5, 64), 0.9),
    (True, (64, 128, 64, 128, 2, 7, 64), 0.8),
    (True, (64, 64, 64, 64, 1, 8, 64), 0.5),
)
"""Whether output channels are the rows; values of the tunables of `NAMES`; the share of the peak that full tiles reach (H200)."""

NAMES = ("bm", "bn", "wm", "wn", "groups", "stages", "epi_n")
"""The tunables that `FORMS` has."""

WRITES = (False, (64, 256, 64, 256, 1, 2, 128), 1.0)
"""The form for few terms of each sum, whose time is that of its stores: two blocks per SM, and pieces of 128 output channels."""

FEW_TERMS = 128
"""Number of terms of a sum up to which `WRITES` is first, if there are at least 256 output channels."""

SMS = 132
"""Multiprocessors of an H200."""


def ranked(pixels, outputs, channels, taps=1):
    """Return forms and values for a number of pixels, output channels, channels and taps, the least estimated time first.

    The estimate is the number of waves of tiles times the elements of a tile, divided by the share of the peak.
    """
    bk = next(size for size in (64, 32, 16) if channels % size == 0 or size == 16)

    def cost(form):
        first, (high, wide, *_), share = form
        rows, columns = (outputs, pixels) if first else (pixels, outputs)
        tiles = -(-rows // high) * -(-columns // wide)
        return -(-tiles // SMS) * high * wide / share

    ordered = [(form, {}) for form in sorted(FORMS, key=cost)]
    if channels * taps <= FEW_TERMS and outputs >= 256:
        ordered.insert(0, (WRITES, {"num_blocks": 2 * SMS}))
    return [(first, {**dict(zip(NAMES, numbers, strict=True)), **others, "bk": bk}) for (first, numbers, _), others in ordered]


def out_size(size, taps, stride=1, padding=0, dilation=1):
    """Return the size of the result along an image dimension."""
    return (size + 2 * padding - dilation * (taps - 1) - 1) // stride + 1


def definition(
    size, taps, channels, stride=(1, 1), padding=(0, 0), dilation=(1, 1), outputs_first=False, bias=False, residual=False, activation=None
):
    """Return the convolution of images of a size (H, W) with a filter of taps (R, S), as a matrix product of pixels and output channels.

    With `outputs_first`, the result is a matrix of output channels and pixels. `bias` is added to each pixel, and `residual` to the result;
    `activation` is a function of the sum.
    """
    further = bias, residual, activation
    if joins(taps, stride, padding):
        return _defined("X[m,k]", "m k", outputs_first, further)
    return _defined(image_index(size, taps, channels, stride, padding, dilation), "n h w c", outputs_first, further)


def image_index(size, taps, channels, stride, padding, dilation):
    """Return the element of the images that tap and channel number k of output pixel number m reads, as text."""
    rows, columns = (out_size(*numbers) for numbers in zip(size, taps, stride, padding, dilation, strict=True))
    pixels = f"m // {columns} % {rows}", f"m % {columns}"
    counts = f"k // {taps[1] * channels}", f"k // {channels} % {taps[1]}"
    places = [tap_index(*terms) for terms in zip(pixels, counts, taps, stride, dilation, padding, strict=True)]
    return f"X[m // {rows * columns},{','.join(places)},k % {channels}]"


def joins(taps, stride, padding):
    """Return whether pixels of the input are those of the result, so that images, rows and columns are one dimension."""
    return (*taps, *stride) == (1, 1, 1, 1) and not any(padding)


def _defined(image, dims, outputs_first, further):
    """Return the matrix product of an image, whose array has dimensions `dims`, and of the weights."""
    product = f"sum(k, W[o,k] * {image})" if outputs_first else f"sum(k, {image} * W[o,k])"
    result = "o m" if outputs_first else "m o"
    element = result.replace(" ", ",")
    order = dict.fromkeys(f"{'o k m' if outputs_first else 'm k o'} {dims}".split())
    operands, steps = epilogue(f"acc[{element}]", result, "o", *further)
    return Fused(
        name="convolution", dims=" ".join(order), operands={"X": dims, "W": "o k", **operands, "Y": result},
        body={"product": f"acc[{element}] = {product}", **steps, "store": f"Y[{element}] = acc[{element}]"},
    )  # fmt: skip


ACTIVATIONS = {"relu": "relu({0})", "silu": "{0} / (1 + exp(-{0}))"}
"""Functions of a sum, as formulas."""


def epilogue(accumulator, dims, channel, bias=False, residual=False, activation=None):
    """Return operands and a step that adds a bias per channel and a residual with the dimensions `dims`, and applies an activation."""
    operands = ({"bias": channel} if bias else {}) | ({"R": dims} if residual else {})
    terms = [accumulator, *([f"bias[{channel}]"] if bias else []), *([f"R[{dims.replace(' ', ',')}]"] if residual else [])]
    steps = {"add": f"{accumulator} = {' + '.join(terms)}"} if len(terms) > 1 else {}
    steps |= {"activation": f"{accumulator} = {ACTIVATIONS[activation].format(accumulator)}"} if activation else {}
    return operands, steps


def tap_index(pixel, count, taps, stride, dilation, padding):
    """Return the index of an image dimension as text: a digit of the pixel, a digit of the tap, the padding."""
    terms = [f"{pixel} * {stride}" if stride > 1 else pixel, (f"{count} * {dilation}" if dilation > 1 else count) if taps > 1 else ""]
    return " + ".join(filter(None, terms)) + (f" - {padding}" if padding else "")


def images(
    batch, size, channels, outputs, taps, stride=(1, 1), padding=(0, 0), dilation=(1, 1), outputs_first=False, bias=False, residual=False,
    activation=None, **options
):  # fmt: skip
    """Return the convolution of `batch` images of a size (H, W)."""
    rows, columns = (out_size(*numbers) for numbers in zip(size, taps, stride, padding, dilation, strict=True))
    defined = definition(size, taps, channels, stride, padding, dilation, outputs_first, bias, residual, activation)
    order = {"Y": ColMajor, **({"R": ColMajor} if residual else {})} if outputs_first else {}
    sizes = {} if joins(taps, stride, padding) else {"n": batch, "h": size[0], "w": size[1], "c": channels}
    return defined(m=batch * rows * columns, k=taps[0] * taps[1] * channels, o=outputs, **sizes, **order, **options)


def spec(batch, size, channels, outputs=64, filter=3, stride=1, **options):
    """Return the convolution of square images by a square filter, with a padding of half of the filter."""
    pair = [(number, number) for number in (size, filter, stride, filter // 2)]
    return images(batch, pair[0], channels, outputs, pair[1], pair[2], pair[3], **options)
