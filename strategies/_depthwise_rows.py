"""Parts of `fireiron.conv2d`: depthwise convolutions and their gradients that load each row once; rows of taps are adjacent.

A thread has `tc` adjacent channels of one column, and visits the rows. Three loads (for three columns of taps) then serve all rows of taps.
Several rows are loaded together, so that enough bytes are in flight.

*Images.* A row of G is added to the sums of all rows of the result that it reaches, W0 to the oldest of them, which is then complete.
The convolution itself is the same with the filters in reverse, and an epilogue.

    depthwise_images(b,z,y,q,c,s)(GL,...)(Kernel)
      tile(b=1, z=1, q=wide, c=bc).to(Block)   a column of tiles of `wide` pixels; z divides the rows
      split(y=1)                               row by row
      step("load_tap")                         tile(1, tc, s).to(Thread)    vectors of channels, one for each column of taps

*Filters.* The last rows of G are in registers, g0 the newest one, and a row of the images is multiplied by each. Row r of the filters is
the output Dr: each block writes a part, and `add_parts` adds them in their order.

Operands may be the same array, because a definition has one list of indices for each: G0 is the row before the first one, and so on.
"""

import math
from typing import NamedTuple

from fireiron import *
from fireiron.strategies import _depthwise_gradients as taps_of
from fireiron.strategies import convolution

CHANNELS = 64
"""Channels of a block: 128 bytes."""

THREADS = 128
"""Maximum number of threads of a block with more than the fewest columns."""

MOST_TAPS = 98
"""Maximum number of taps of all channels of a thread: each is a register."""

MANY_TAPS = 4
"""Rows of taps from which on each row is loaded once, even if a thread loads few rows together."""

AT_ONCE = (8, 7, 4, 2, 1)
"""Numbers of rows that a thread loads together, by preference."""

OF_RESULT = (7, 4)
"""Numbers of rows of the result that a thread computes together if rows have a stride, by preference."""

SMALL = 9
"""Number of taps up to which four rows together need few registers, so that six blocks fit on an SM."""

WAVES = 3168
"""Blocks of four waves, with six on each SM of an H200: a last wave that is not full then costs little."""

FEW_ROWS = 32
"""Number of rows of images and of padding up to which a thread of `filters` loads eight rows together."""

FEW_TAPS = 25
"""Number of taps up to which a thread of `filters` loads more than four rows together."""

SUITABLE = 4
"""Minimum number of rows that a thread loads together, so that enough bytes are in flight."""

BLOCKS = 528
"""Blocks from which the rows of images are not divided: four for each SM of an H200."""

FEWEST_ROWS = 14
"""Minimum number of rows of a thread: it also loads as many rows before them as a filter has, less one."""


class Rows(NamedTuple):
    """How threads visit the rows: the parts that divide them, the rows loaded together, the columns of a block, and the limit of blocks.

    The limit of registers is that of `min_blocks_per_sm`, or None.
    """

    parts: int
    together: int
    columns: int
    blocks: int | None = None


def images(batch, pixels, grads, channels, taps, shift, step, rows, dtype=float16, **options):
    """Return the gradient of one phase of images whose rows of taps are adjacent; see `_depthwise_gradients.images`.

    `rows` are those of `rows_of_result`. The rows of the result have the dimensions z and y.
    """
    column, count = taps_of._place("q", "s", shift[1], step[1]), pixels[0] // rows.parts
    defined = _definition("depthwise_images", "GD", taps[0], count, rows.together, shift[0], column, dtype)
    return defined(**_sizes(batch, pixels, grads, channels, taps, rows.parts, rows.together), dtype=dtype, **options)


def forward(batch, size, channels, taps, stride, padding, dilation, bias, residual, activation, rows, dtype=float16, **options):
    """Return the convolution of images of a `size`; rows have a dilation of 1. W0 are the last taps of each filter.

    See `depthwise.definition`; `rows` are those of `rows_of_result`.
    """
    pixels = tuple(convolution.out_size(*numbers) for numbers in zip(size, taps, stride, padding, dilation, strict=True))
    column, count = taps_of._source("q", "s", stride[1], dilation[1], padding[1]), pixels[0] // rows.parts
    further = bias, residual, activation
    if stride[0] > 1:
        defined = _strided(taps[0], count, rows.together, stride[0], padding[0], column, dtype, further)
    else:
        defined = _definition("depthwise", "XY", taps[0], count, rows.together, taps[0] - 1 - padding[0], column, dtype, further)
    return defined(**_sizes(batch, pixels, size, channels, taps, rows.parts, rows.together), dtype=dtype, **options)


def _sizes(batch, pixels, source, channels, taps, parts, together):
    """Return the sizes of a definition."""
    count, columns = pixels[0] // parts, pixels[1]
    loops = {"z": parts, "y": count // together}
    return {"b": batch, **loops, "q": columns, "c": channels, "s": taps[1], "h": source[0], "w": source[1]}


def at_once(count):
    """Return how many rows of `count` a thread loads together, so that enough bytes are in flight."""
    return next(number for number in AT_ONCE if count % number == 0)


def numbered(name, number):
    """Return the name of an operand for a row of those that are loaded together: G, G1, G2, ..."""
    return f"{name}{number}" if number else name


def _definition(name, arrays, taps, count, together, newest, column, dtype, further=None):
    """Return the definition for a number of rows of taps.

    Args:
        name: its name.
        arrays: the names of the source and of the result.
        taps: the rows of taps.
        count: the rows of a part.
        together: the rows that a thread loads together.
        newest: the newest row of the source that row 0 of the result reads.
        column: the index of a column of the source.
        dtype: the type of both.
        further: whether a bias and a residual are added, and the activation.
    """
    source, result = arrays
    before = {f"before{number}": _row(f"z * {count}", newest - 1 - number) for number in range(taps - 1)}
    each = f"z * {count} + y" + (f" * {together}" if together > 1 else "")
    now = {numbered(source, number): _row(each, newest + number) for number in range(together)}
    operands, body = {}, {}
    for number, (operand, row) in enumerate(now.items()):
        body[f"load_tap{number}"] = f"x{number}[q,c,s] = {operand}[b,{row},{column},c]"
    for number in range(together):
        more, steps = convolution.epilogue(f"out{number}[q,c]", "b z y q c", "c", *(further or (False, False, None)))
        operands |= {numbered(one, number) if one == "R" else one: dims for one, dims in more.items()}
        body |= dict(_sums(taps, number))
        body |= _stored(number, steps, result)
    names = [*(f"x{number}" for number in range(together)), *(f"d{number}" for number in range(together))]
    return Fused(
        name=name, dims="b z y q c s h w", batch="b z", scan="y",
        operands={
            **dict.fromkeys([*now, *before], "b h w c"),
            **{f"W{row}": "c s" for row in range(taps)},
            **operands,
            **{numbered(result, number): "b z y q c" for number in range(together)},
        },
        init={
            **{f"filter{row}": f"w{row}[q,c,s] = W{row}[c,s]" for row in range(taps)},
            **{f"load_{operand}": f"of_{operand}[q,c,s] = {operand}[b,{row},{column},c]" for operand, row in before.items()},
            **{f"zero{row}": f"a{row}[q,c] = 0" for row in range(taps - 1)},
            **dict(_early_sums(taps)),
        },
        body=body,
        types=dict.fromkeys([*names, *(f"of_{operand}" for operand in before)], dtype),
    )  # fmt: skip


def _strided(taps, count, together, stride, padding, column, dtype, further):
    """Return the definition of a convolution whose rows have a stride above 1: each iteration loads all rows that its results read.

    Args:
        taps: the rows of taps, at least the stride.
        count: the rows of a part.
        together: the rows of the result that a thread computes together.
        stride: the stride of rows.
        padding: the rows of padding.
        column: the index of a column of the images.
        dtype: the type of images and result.
        further: whether a bias and a residual are added, and the activation.
    """
    each = f"z * {count * stride} + y * {together * stride}"
    sources = range((together - 1) * stride + taps)
    places = [f"{numbered('X', row)}[b,{_row(each, row - padding)},{column},c]" for row in sources]
    operands, body = {}, {f"load_tap{row}": f"x{row}[q,c,s] = {place}" for row, place in enumerate(places)}
    for number in range(together):
        more, steps = convolution.epilogue(f"out{number}[q,c]", "b z y q c", "c", *further)
        operands |= {numbered(one, number) if one == "R" else one: dims for one, dims in more.items()}
        body[f"take{number}"] = f"out{number}[q,c] = 0"
        for tap in range(taps):
            body[f"product{number}_{tap}"] = f"t{number}_{tap}[q,c,s] = x{number * stride + tap}[q,c,s] * w{taps - 1 - tap}[q,c,s]"
            body[f"add{number}_{tap}"] = f"out{number}[q,c] += sum(s, t{number}_{tap}[q,c,s])"
        body |= _stored(number, steps, "Y")
    return Fused(
        name="depthwise", dims="b z y q c s h w", batch="b z", scan="y",
        operands={
            **{numbered("X", row): "b h w c" for row in sources},
            **{f"W{row}": "c s" for row in range(taps)},
            **operands,
            **{numbered("Y", number): "b z y q c" for number in range(together)},
        },
        init={f"filter{row}": f"w{row}[q,c,s] = W{row}[c,s]" for row in range(taps)},
        body=body,
        types=dict.fromkeys([*(f"x{row}" for row in sources), *(f"d{number}" for number in range(together))], dtype),
    )  # fmt: skip


def _stored(number, steps, result):
    """Return the steps that store row `number` of those that are computed together, after those of its epilogue."""
    named = {f"{one}{number}": text.replace("R[", f"{numbered('R', number)}[") for one, text in steps.items()}
    rounded = {f"round{number}": f"d{number}[q,c] = out{number}[q,c]"}
    return named | rounded | {f"store{number}": f"{numbered(result, number)}[b,z,y,q,c] = d{number}[q,c]"}


def _row(start, offset):
    """Return the index of a row of G as text."""
    return f"{start} {'-' if offset < 0 else '+'} {abs(offset)}"


def _early_sums(rows):
    """Yield the steps that add the rows of G before the first one; row `number` before it reaches sum `row` by taps of row + number + 1."""
    for row in range(rows - 1):
        for number in range(rows - 1 - row):
            yield f"early{row}_{number}", f"e{row}_{number}[q,c,s] = of_before{number}[q,c,s] * w{row + number + 1}[q,c,s]"
            yield f"begin{row}_{number}", f"a{row}[q,c] += sum(s, e{row}_{number}[q,c,s])"


def _sums(taps, number):
    """Yield the steps that add row `number` of the source to all sums; each sum then is that of the row of the result before."""
    for row in range(taps):
        own, before = f"out{number}" if row == 0 else f"a{row - 1}", f"a{row}[q,c]" if row < taps - 1 else "0"
        yield f"take{number}_{row}", f"{own}[q,c] = {before}"
        yield f"product{number}_{row}", f"t{number}_{row}[q,c,s] = x{number}[q,c,s] * w{row}[q,c,s]"
        yield f"add{number}_{row}", f"{own}[q,c] += sum(s, t{number}_{row}[q,c,s])"


def filters(batch, size, grads, channels, taps, padding=(0, 0), dtype=float16, **options):
    """Return the gradient of filters with a stride and a dilation of 1, one part for each image and tile of columns.

    `size` is that of an image, `grads` that of G.
    """
    height = size[0] + padding[0]
    rows, wide, together = range(taps[0]), width(channels, taps, grads[1]), filter_rows(height, taps)
    column = f"v * {wide} + " + taps_of._source("q", "s", 1, 1, padding[1])
    loads, sums = {}, {}
    for number in range(together):
        place, other = _row(f"y * {together}", number), _row(f"y * {together}", number - padding[0])
        loads[f"load_grad{number}"] = f"n{number}[q,c] = {numbered('G', number)}[n,{place},v * {wide} + q,c]"
        loads[f"load_tap{number}"] = f"x{number}[q,c,s] = {numbered('X', number)}[n,{other},{column},c]"
        sums |= {f"shift{number}_{row}": f"g{row}[q,c] = g{row - 1}[q,c]" for row in reversed(rows[1:])}
        sums[f"newest{number}"] = f"g0[q,c] = n{number}[q,c]"
        sums |= {f"add{number}_{row}": f"acc{row}[q,c,s] = acc{row}[q,c,s] + g{row}[q,c] * x{number}[q,c,s]" for row in rows}
    defined = Fused(
        name="depthwise_filters", dims="n v y q c s a b h w", batch="n v", scan="y",
        operands={
            **{numbered("G", number): "n a b c" for number in range(together)},
            **{numbered("X", number): "n h w c" for number in range(together)},
            **{f"D{row}": "n v c s" for row in rows},
        },
        init={
            **{f"zero{row}": f"acc{row}[q,c,s] = 0" for row in rows},
            **{f"none{row}": f"g{row}[q,c] = 0" for row in rows[:-1]},
        },
        body=loads | sums,
        final={
            **{f"sum{row}": f"u{row}[c,s] = sum(q, acc{row}[q,c,s])" for row in rows},
            **{f"store{row}": f"D{row}[n,v,c,s] = u{row}[c,s]" for row in rows},
        },
        types={
            **dict.fromkeys([f"{name}{number}" for name in "nx" for number in range(together)], dtype),
            **{f"D{row}": float32 for row in rows},
        },
    )  # fmt: skip
    images = {"n": batch, "h": size[0], "w": size[1], "a": grads[0], "b": grads[1], "c": channels}
    count = -(-height // together)
    return defined(**images, v=tiles(channels, taps, grads[1]), y=count, q=wide, s=taps[1], dtype=dtype, **options)


def vector_of(channels, taps):
    """Return the number of adjacent channels of a thread."""
    return next((size for size in (4, 2) if channels % size == 0 and size * taps[0] * taps[1] <= MOST_TAPS), 1)


def width(channels, taps, columns):
    """Return the number of columns of a block, which has at most `CHANNELS` channels."""
    vector = vector_of(channels, taps)
    fewest, pixel = 4 if vector == 2 else 8, CHANNELS // vector
    return next(size for size in (4, 8, 16, 32) if size >= fewest and (size >= columns or size * 2 * pixel > THREADS or size == 32))


def tiles(channels, taps, columns):
    """Return the number of tiles of columns."""
    return -(-columns // width(channels, taps, columns))


def filter_rows(rows, taps):
    """Return how many of `rows` rows a thread of `filters` loads together; the fastest number on an H200."""
    if taps[0] * taps[1] > FEW_TAPS:
        return 4
    return 8 if rows <= FEW_ROWS else 6


def suits(rows, taps, stride=1):
    """Return whether `images` and `forward` are expected to be faster than kernels that load each tap; `rows` are those of the result."""
    if stride > 1:
        return stride <= taps[0] and any(rows % number == 0 for number in OF_RESULT)
    return taps[0] >= MANY_TAPS or at_once(rows) >= SUITABLE


def parts(batch, pixels, channels, taps):
    """Return into how many parts the rows are divided if there are few, so that there are enough blocks."""
    blocks, rows = batch * tiles(channels, taps, pixels[1]) * -(-channels // CHANNELS), pixels[0]
    few = [count for count in range(1, rows // FEWEST_ROWS + 1) if rows % count == 0 and at_once(rows // count) == at_once(rows)]
    return next((count for count in few if blocks * count >= BLOCKS), max(few, default=1))


def rows_of_result(batch, pixels, channels, taps, stride=1, is_plain=True):
    """Return how `images` and `forward` visit the rows; the fastest way on an H200.

    If not `is_plain`, there is a bias, a residual or an activation.
    """
    wide, blocks = width(channels, taps, pixels[1]), batch * tiles(channels, taps, pixels[1]) * -(-channels // CHANNELS)
    is_small = vector_of(channels, taps) == 4 and math.prod(taps) <= SMALL
    if stride > 1:
        together = next(number for number in OF_RESULT if pixels[0] % number == 0)
        limit = 3 if together == 7 else 5 if is_plain else None
        return Rows(1, together, wide, limit if is_small else None)
    if is_small and wide == 8 and pixels[1] % 8 == 4 and pixels[0] % 7 == 0:
        return Rows(1, 7, 4, 10 if is_plain else None)
    counts = [count for count in range(1, pixels[0] // FEWEST_ROWS + 1) if pixels[0] % (4 * count) == 0 and blocks * count >= WAVES]
    if is_small and counts:
        return Rows(counts[0], 4, wide, 6 if is_plain else None)
    count = parts(batch, pixels, channels, taps)
    return Rows(count, at_once(pixels[0] // count), wide)


def by_rows(channels, taps, rows, stride=1):
    """Return the strategy of `images` and `forward` for channels, taps (rows and columns), `Rows`, and a stride of rows."""
    tile = AnySpec.tile(b=1, z=1, q=rows.columns, c=CHANNELS).to(Block)
    chain = (tile.min_blocks_per_sm(rows.blocks) if rows.blocks else tile).split(y=1)
    before = [f"load_before{number}" for number in range(taps[0] - 1)] if stride == 1 else []
    loads = (rows.together - 1) * stride + (taps[0] if stride > 1 else 1)
    for name in (*(f"load_tap{number}" for number in range(loads)), *before):
        chain = chain.step(name, _loads(vector_of(channels, taps), taps))
    return chain.done()


def by_columns(channels, taps, rows):
    """Return the strategy of `filters` for numbers of channels and of taps (rows and columns), and the rows of images and of padding."""
    chain = AnySpec.tile(n=1, v=1, c=CHANNELS).to(Block).split(y=1)
    for number in range(filter_rows(rows, taps)):
        chain = chain.step(f"load_tap{number}", _loads(vector_of(channels, taps), taps))
    return chain.done()


def _loads(vector, taps):
    """Return the strategy of the loads of a row: vectors of channels of one thread, one for each column of taps."""
    return Move.tile(1, vector, taps[1]).to(Thread).tile(1, vector, 1).unroll().done()
