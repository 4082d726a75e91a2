"""Parts of `fireiron.conv2d`: depthwise convolutions and their gradients that load each row once; rows of taps are adjacent.

A thread has `tc` adjacent channels of one column, and visits the rows. Three loads (for three columns of taps) then serve all rows of taps.

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

from fireiron import *
from fireiron.strategies import _depthwise_gradients as taps_of
from fireiron.strategies import convolution

LANES = taps_of.LANES
"""Threads with adjacent channels."""

BLOCKS = 528
"""Blocks from which the rows of images are not divided: four for each SM of an H200."""

FEWEST_ROWS = 14
"""Minimum number of rows of a thread: it also loads as many rows before them as a filter has, less one."""


def images(batch, pixels, grads, channels, taps, shift, step, parts=1, dtype=float16, **options):
    """Return the gradient of one phase of images whose rows of taps are adjacent; see `_depthwise_gradients.images`.

    `parts` divide the rows of the result, which have the dimensions z and y.
    """
    column = taps_of._place("q", "s", shift[1], step[1])
    steps = _by_rows("G", taps[0], pixels[0] // parts, shift[0], column)
    defined = _definition("depthwise_images", "GD", taps[0], steps, {}, dtype)
    return defined(**_sizes(batch, pixels, grads, channels, taps, parts), dtype=dtype, **options)


def forward(batch, size, channels, taps, stride, padding, dilation, bias, residual, activation, parts=1, dtype=float16, **options):
    """Return the convolution of images of a `size`; rows have a stride and a dilation of 1. W0 are the last taps of each filter.

    See `depthwise.definition`; `parts` as for `images`.
    """
    pixels = tuple(convolution.out_size(*numbers) for numbers in zip(size, taps, stride, padding, dilation, strict=True))
    column = taps_of._source("q", "s", stride[1], dilation[1], padding[1])
    operands, further = convolution.epilogue("out[q,c]", "b z y q c", "c", bias, residual, activation)
    steps = _by_rows("X", taps[0], pixels[0] // parts, taps[0] - 1 - padding[0], column)
    defined = _definition("depthwise", "XY", taps[0], (steps[0], steps[1] | further), operands, dtype)
    return defined(**_sizes(batch, pixels, size, channels, taps, parts), dtype=dtype, **options)


def _sizes(batch, pixels, source, channels, taps, parts):
    """Return the sizes of a definition."""
    rows, columns = pixels[0] // parts, pixels[1]
    return {"b": batch, "z": parts, "y": rows, "q": columns, "c": channels, "s": taps[1], "h": source[0], "w": source[1]}


def _definition(name, arrays, rows, steps, operands, dtype):
    """Return the definition with the first steps and those of each row; `arrays` are the names of the source and of the result."""
    source, result = arrays
    return Fused(
        name=name, dims="b z y q c s h w", batch="b z", scan="y",
        operands={
            **dict.fromkeys([source, *(f"{source}{number}" for number in range(rows - 1))], "b h w c"),
            **{f"W{row}": "c s" for row in range(rows)},
            **operands,
            result: "b z y q c",
        },
        init=steps[0],
        body={**steps[1], "round": "d[q,c] = out[q,c]", "store": f"{result}[b,z,y,q,c] = d[q,c]"},
        types=dict.fromkeys(["x", "d", *(f"x{number}" for number in range(rows - 1))], dtype),
    )  # fmt: skip


def _by_rows(source, rows, count, newest, column):
    """Return the first steps, and those of a row: its newest row of the array is `newest` rows after it, and a part has `count` rows."""
    early = [_row(f"z * {count}", newest - 1 - number) for number in range(rows - 1)]
    init = {
        **{f"filter{row}": f"w{row}[q,c,s] = W{row}[c,s]" for row in range(rows)},
        **{f"load{number}": f"x{number}[q,c,s] = {source}{number}[b,{row},{column},c]" for number, row in enumerate(early)},
        **{f"zero{row}": f"a{row}[q,c] = 0" for row in range(rows - 1)},
        **dict(_early_sums(rows)),
    }
    return init, {"load_tap": f"x[q,c,s] = {source}[b,{_row(f'z * {count} + y', newest)},{column},c]", **dict(_sums(rows))}


def _row(start, offset):
    """Return the index of a row of G as text."""
    return f"{start} {'-' if offset < 0 else '+'} {abs(offset)}"


def _early_sums(rows):
    """Yield the steps that add the rows of G before the first one; row `number` before it reaches sum `row` by taps of row + number + 1."""
    for row in range(rows - 1):
        for number in range(rows - 1 - row):
            yield f"early{row}_{number}", f"e{row}_{number}[q,c,s] = x{number}[q,c,s] * w{row + number + 1}[q,c,s]"
            yield f"begin{row}_{number}", f"a{row}[q,c] += sum(s, e{row}_{number}[q,c,s])"


def _sums(rows):
    """Yield the steps that add a row of G to all sums; each sum then is that of the row of the result before."""
    for row in range(rows):
        own, before = "out" if row == 0 else f"a{row - 1}", f"a{row}[q,c]" if row < rows - 1 else "0"
        yield f"take{row}", f"{own}[q,c] = {before}"
        yield f"product{row}", f"t{row}[q,c,s] = x[q,c,s] * w{row}[q,c,s]"
        yield f"add{row}", f"{own}[q,c] += sum(s, t{row}[q,c,s])"


def filters(batch, size, grads, channels, taps, padding=(0, 0), dtype=float16, **options):
    """Return the gradient of filters with a stride and a dilation of 1, one part for each image and tile of columns.

    `size` is that of an image, `grads` that of G.
    """
    rows, wide = range(taps[0]), taps_of.width(grads[1])
    column = f"v * {wide} + " + taps_of._source("q", "s", 1, 1, padding[1])
    defined = Fused(
        name="depthwise_filters", dims="n v y q c s a b h w", batch="n v", scan="y",
        operands={"G": "n a b c", "X": "n h w c", **{f"D{row}": "n v c s" for row in rows}},
        init={
            **{f"zero{row}": f"acc{row}[q,c,s] = 0" for row in rows},
            **{f"none{row}": f"g{row}[q,c] = 0" for row in rows[:-1]},
        },
        body={
            "load_grad": f"g[q,c] = G[n,y + 0,v * {wide} + q,c]",
            "load_tap": f"x[q,c,s] = X[n,y - {padding[0]},{column},c]",
            **{f"shift{row}": f"g{row}[q,c] = g{row - 1}[q,c]" for row in reversed(rows[1:])},
            "newest": "g0[q,c] = g[q,c]",
            **{f"add{row}": f"acc{row}[q,c,s] = acc{row}[q,c,s] + g{row}[q,c] * x[q,c,s]" for row in rows},
        },
        final={
            **{f"sum{row}": f"u{row}[c,s] = sum(q, acc{row}[q,c,s])" for row in rows},
            **{f"store{row}": f"D{row}[n,v,c,s] = u{row}[c,s]" for row in rows},
        },
        types={"g": dtype, "x": dtype, **{f"D{row}": float32 for row in rows}},
    )  # fmt: skip
    images = {"n": batch, "h": size[0], "w": size[1], "a": grads[0], "b": grads[1], "c": channels}
    return defined(**images, v=taps_of.tiles(grads[1]), y=size[0] + padding[0], q=wide, s=taps[1], dtype=dtype, **options)


def parts(batch, pixels, channels, taps):
    """Return into how many parts `images` divides the rows, so that there are enough blocks."""
    blocks = batch * taps_of.tiles(pixels[1]) * -(-channels // (LANES * taps_of.vector_of(channels, taps)))
    few = [count for count in range(1, pixels[0] // FEWEST_ROWS + 1) if pixels[0] % count == 0]
    return next((count for count in few if blocks * count >= BLOCKS), max(few, default=1))


def by_rows(channels, taps, columns):
    """Return the strategy of `images` for numbers of channels, of taps (rows and columns), and of columns of the result."""
    vector = taps_of.vector_of(channels, taps)
    chain = AnySpec.tile(b=1, z=1, q=taps_of.width(columns), c=LANES * vector).to(Block).split(y=1)
    for name in ("load_tap", *(f"load{number}" for number in range(taps[0] - 1))):
        chain = chain.step(name, _loads(vector, taps))
    return chain.done()


def by_columns(channels, taps):
    """Return the strategy of `filters` for numbers of channels and of taps (rows and columns)."""
    vector = taps_of.vector_of(channels, taps)
    return AnySpec.tile(n=1, v=1, c=LANES * vector).to(Block).split(y=1).step("load_tap", _loads(vector, taps)).done()


def _loads(vector, taps):
    """Return the strategy of the loads of a row: vectors of channels of one thread, one for each column of taps."""
    return Move.tile(1, vector, taps[1]).to(Thread).tile(1, vector, 1).unroll().done()
