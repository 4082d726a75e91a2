"""Parts of `fireiron.conv2d`: the gradients of a depthwise convolution. Each is limited by reading and writing images.

*Images.* A phase of the images (`convolution_input_gradient.phases`) is a depthwise convolution of the result's gradient G:

    D[b,p,q,c] = sum over r, s of G[b,p + shift - r * step,q + shift - s * step,c] * W[c,r,s]

The strategy is that of `depthwise`. *Filters.* A thread has `tc` adjacent channels of one column of an image, and a sum for each tap:

    depthwise_filters(n,v,y,q,c,r,s)(GL,GL,GL)(Kernel)
      tile(n=1, v=1, c=bc).to(Block)   a column of tiles of `wide` pixels of one image; all taps
      split(y=1)                       row by row
      step("load_tap")                 tile(1, 1, tc, r, s).to(Thread)    vectors of channels, one for each tap
      done()                           products to registers; after the last row, the sum over the columns by shuffles

Each block writes a part, and `add_parts` adds them in their order, so the results are the same in each run.
"""

from fireiron import *

WIDE = 32
"""Maximum number of columns of a block."""

LANES = 8
"""Threads with adjacent channels."""

MOST_SUMS = 80
"""Maximum number of sums of a thread that several channels have; a filter with more taps has one channel per thread."""


def images(batch, pixels, grads, channels, taps, shift, step, dtype=float16, **options):
    """Return the gradient of one phase of `batch` images: `pixels` are its rows and columns, `grads` those of G, `taps` of the filter."""
    places = [_place(*one) for one in zip("pq", "rs", shift, step, strict=True)]
    defined = Fused(
        name="depthwise_images", dims="b p q c r s h w", scan="r s", types={"tap": dtype},
        operands={"G": "b h w c", "W": "c r s", "D": "b p q c"},
        init={"zero": "acc[b,p,q,c] = 0"},
        body={
            "load_tap": f"tap[b,p,q,c] = G[b,{','.join(places)},c]",
            "add_tap": "acc[b,p,q,c] = acc[b,p,q,c] + tap[b,p,q,c] * W[c,r,s]",
        },
        final={"round": "d[b,p,q,c] = acc[b,p,q,c]", "store": "D[b,p,q,c] = d[b,p,q,c]"},
    )  # fmt: skip
    sizes = {"b": batch, "p": pixels[0], "q": pixels[1], "c": channels, "r": taps[0], "s": taps[1], "h": grads[0], "w": grads[1]}
    return defined(**sizes, dtype=dtype, **options)


def _place(pixel, tap, shift, step):
    """Return the row or column of G as text."""
    return f"{pixel} - {tap}" + (f" * {step}" if step > 1 else "") + (f" {'-' if shift < 0 else '+'} {abs(shift)}" if shift else "")


def width(columns):
    """Return the number of columns of a block."""
    return next(size for size in (8, 16, WIDE) if size >= columns or size == WIDE)


def tiles(columns):
    """Return the number of tiles of columns of an image."""
    return -(-columns // width(columns))


def filters(batch, size, grads, channels, taps, stride=(1, 1), padding=(0, 0), dilation=(1, 1), dtype=float16):
    """Return the gradient of the filters, one part for each image and tile of columns: `size` is that of an image, `grads` that of G."""
    wide = width(grads[1])
    row = _source("y", "r", stride[0], dilation[0], padding[0])
    column = f"v * {wide * stride[1]} + " + _source("q", "s", stride[1], dilation[1], padding[1])
    defined = Fused(
        name="depthwise_filters", dims="n v y q c r s a b h w", batch="n v", loop="y",
        operands={"G": "n a b c", "X": "n h w c", "D": "n v c r s"},
        init={"zero": "acc[q,c,r,s] = 0"},
        body={
            "load_grad": f"g[y,q,c] = G[n,y + 0,v * {wide} + q,c]",
            "load_tap": f"x[y,q,c,r,s] = X[n,{row},{column},c]",
            "product": "t[y,q,c,r,s] = g[y,q,c] * x[y,q,c,r,s]",
            "add": "acc[q,c,r,s] += sum(y, t[y,q,c,r,s])",
        },
        final={"sum": "u[c,r,s] = sum(q, acc[q,c,r,s])", "store": "D[n,v,c,r,s] = u[c,r,s]"},
        types={"D": float32, "g": dtype, "x": dtype},
    )  # fmt: skip
    images = {"n": batch, "h": size[0], "w": size[1], "a": grads[0], "b": grads[1], "c": channels}
    return defined(**images, v=tiles(grads[1]), y=grads[0], q=wide, r=taps[0], s=taps[1], dtype=dtype)


def _source(pixel, tap, stride, dilation, padding):
    """Return the row or column of an image as text."""
    scaled = pixel + (f" * {stride}" if stride > 1 else "")
    return f"{scaled} + {tap}" + (f" * {dilation}" if dilation > 1 else "") + (f" - {padding}" if padding else "")


def vector_of(channels, taps):
    """Return the number of adjacent channels of a thread."""
    return next((size for size in (8, 4, 2) if channels % size == 0 and size * taps[0] * taps[1] <= MOST_SUMS), 1)


def by_columns(channels, taps):
    """Return the strategy of `filters` for numbers of channels and of taps (rows and columns)."""
    vector = vector_of(channels, taps)
    loads = Move.tile(1, 1, vector, *taps).to(Thread).tile(1, 1, vector, 1, 1).unroll().done()
    return AnySpec.tile(n=1, v=1, c=LANES * vector).to(Block).split(y=1).step("load_tap", loads).done()
