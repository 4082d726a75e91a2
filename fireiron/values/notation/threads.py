"""Print and parse thread groups in Graphene's notation, and compute the indices of a thread in them."""

from __future__ import annotations

import math
from collections.abc import Sequence

from fireiron.errors import LayoutError
from fireiron.values.expr import Expr, as_expr
from fireiron.values.layout import Layout, composition, logical_divide, make_layout, reading, sum_of_digits
from fireiron.values.machine import GPU, LEVELS, Level, Node
from fireiron.values.notation.shapes import ALL, UNITS, Parts, listed, omittable, parts_of, read_shapes, shape_text, sizes_of, strides_of
from fireiron.values.notation.words import Symbols
from fireiron.values.units import THREAD

GPUS = "gpu"
"""The unit of a node."""


def parse_threads(text: str) -> tuple[Layout, ...]:
    """The shapes of threads or blocks, the outermost first, as layouts over the numbers of threads or blocks.

    >>> print(*parse_threads("#5:[4].[8].thread"), *parse_threads("#4:[4:4].[(4,2):(1,16)].thread"))
    (4):(8) (8):(1) (4):(4) (4,2):(1,16)

    Source: Graphene section 4.
    """
    return read_shapes(_units(text).shapes, {})


def threads_text(shapes: Sequence[Layout], name: str = "") -> str:
    """The inverse of `parse_threads`: threads arranged in shapes, the outermost first."""
    return f"{f'#{name}:' if name else ''}{'.'.join(map(shape_text, shapes))}.thread"


def parse_group(text: str) -> tuple[str, str, tuple[Layout, ...] | None]:
    """A group of units: its name, `block` or `thread`, and their arrangement, the outermost shape first; None for `[_]`."""
    parts = _units(text)
    known = [sizes.strip() for sizes, _ in parts.shapes] != [ALL]
    return parts.name, parts.element, read_shapes(parts.shapes, {}) if known else None


def group_text(shapes: Sequence[Layout], name: str, unit: str) -> str:
    """The inverse of `parse_group`. Strides of a single row-major shape are omitted."""
    text = "".join(f"{shape_text(one)}." for one in shapes)
    if len(shapes) == 1 and omittable(shapes[0]):
        text = f"[{listed(sizes_of(shapes[0]))}]."
    return f"#{name}:{text}{unit}"


def _units(text: str) -> Parts:
    parts = parts_of(text)
    if parts.element not in UNITS or parts.sign == "%" or parts.memory or parts.rest or parts.swizzle:
        raise LayoutError(f"{text!r} is not a group of threads", legal="#name:[sizes]:[strides].thread, without a memory")
    return parts


def parse_level(text: str, symbols: Symbols | None = None) -> Level:
    """The level whose unit a text describes: `[32].thread` is a warp, `[_].thread` a block, `[_].block` all blocks of the kernel.

    `#node:[2].gpu` is a node with two GPUs, and `#gpu:[1].gpu` one of them.

    A name that is not a number is a level's label, and must match. Levels in `symbols` come before Fireiron's own.

    >>> parse_level("#warp:[32].thread"), parse_level("#4:[(4,2):(1,16)].thread"), parse_level("[].thread"), parse_level("[1].block")
    (Warp, QuadPair, Thread, Block)

    Source: Graphene section 4 and Table 2.
    """
    parts = _units(text)
    if parts.element == GPUS:
        return _level_of_gpus(text, parts)
    known = (*(level for level in (symbols or {}).values() if isinstance(level, Level)), *LEVELS)
    fitting = [level for level in known if _fits(level, parts)]
    named = [level for level in fitting if level.label == parts.name]
    if not named and parts.name and not parts.name.isdecimal():
        raise LayoutError(f"{text!r} is not a level", legal=[level_text(one) for one in known])
    if not fitting:
        raise LayoutError(f"no level has the units of {text!r}", legal=[level_text(one) for one in known])
    return (named or fitting)[0]


def _level_of_gpus(text: str, parts: Parts) -> Level:
    """The level of a number of GPUs: a node, or one GPU."""
    known = [sizes.strip() for sizes, _ in parts.shapes] != [ALL]
    count = math.prod(shape.size() for shape in read_shapes(parts.shapes, {})) if known else 1
    if known and count == 1 and parts.name == GPU.label:
        return GPU
    if parts.name and not parts.name.isdecimal() and parts.name != Node.label:
        raise LayoutError(f"{text!r} is not a level", legal=[level_text(Node(2)), level_text(GPU)])
    return Node(count) if known else Node


def _fits(level: Level, parts: Parts) -> bool:
    """Whether a text describes one unit of a level. Only a strategy determines the number of threads per block, and of blocks."""
    if [sizes.strip() for sizes, _ in parts.shapes] == [ALL]:
        return level.layout is None and (level.parent is None) == (parts.element == "block")
    shapes = read_shapes(parts.shapes, {})
    leaves = [leaf for one in shapes for leaf in one.modes if leaf[0] > 1]
    if parts.element == "block":
        return level.layout is None and level.parent is not None and not leaves
    return level.layout is not None and len(shapes) == 1 and leaves == [leaf for leaf in level.layout.modes if leaf[0] > 1]


def level_text(level: Level) -> str:
    """One unit of a level in Graphene's notation; `parse_level(level_text(x), symbols_of(x)) == x`.

    >>> from fireiron.values.machine import QuadPair, Warp
    >>> print(level_text(Warp), level_text(QuadPair))
    #warp:[32].thread #quadpair:[4,2]:[1,16].thread
    """
    if level == GPU or level.consists_of == GPU:
        return f"#{level.label}:[{1 if level == GPU else level.units or ALL}].{GPUS}"
    if level.layout is None:
        return f"#{level.label}:[_].{'block' if level.parent is None else 'thread'}"
    strides = "" if omittable(level.layout) else f":[{listed(strides_of(level.layout))}]"
    return f"#{level.label}:[{listed(sizes_of(level.layout))}]{strides}.thread"


def indices(shapes: Sequence[Layout], unit: Expr = THREAD) -> tuple[tuple[Expr, ...], ...]:
    """The coordinates of a thread or block in shapes: per shape, per dimension, an expression of its number (the paper's `indices()`).

    Legal when the shapes number each unit once: sorted by stride, each stride is a multiple of the previous stride times its size.

    >>> (group_m, group_n), (place,) = indices(parse_threads("#6:[2,2 : 16,8].[8:1].thread"))
    >>> print(group_m, group_n, place, sep=" | ")
    thread // 16 % 2 | thread // 8 % 2 | thread % 8

    Source: Graphene section 4, the gray boxes of Figures 5 and 6.
    """
    reading(part for shape in shapes for part in _digits(shape))
    return tuple(tuple(as_expr(sum_of_digits(unit, reading(_digits(dim)).digits)) for dim in shape) for shape in shapes)


def _digits(dim: Layout) -> list[tuple[int, int, int]]:
    """The modes of a dimension as (stride, size, weight in the coordinate)."""
    sizes = [size for size, _ in dim.modes]
    return [(stride, size, math.prod(sizes[:place])) for place, (size, stride) in enumerate(dim.modes) if size > 1]


def reshaped(shapes: Sequence[Layout], depth: int, arrangement: Layout) -> tuple[Layout, ...]:
    """Shapes with the units of one of them rearranged (the paper's `reshape`).

    Legal when the arrangement numbers all units of that shape, each once.

    >>> print(threads_text(reshaped(parse_threads("#5:[4].[8].thread"), 0, Layout((2, 2), (2, 1)))))
    [2,2]:[16,8].[8]:[1].thread

    Source: Graphene section 4, Figure 5c.
    """
    if depth not in range(len(shapes)):
        raise LayoutError(f"{threads_text(shapes)} has no shape {depth}", legal=range(len(shapes)))
    if arrangement.size() != shapes[depth].size() or not arrangement.is_bijective():
        raise LayoutError(f"{arrangement} does not number {shapes[depth].size()} units, each once", legal="as many units, compact strides")
    return (*shapes[:depth], composition(shapes[depth], arrangement), *shapes[depth + 1 :])


def tiled(shapes: Sequence[Layout], sizes: Sequence[int | Layout | None]) -> tuple[Layout, ...]:
    """Shapes whose innermost one is divided into groups (the paper's `tile`): a number of units, a layout, or None (all), by dimension.

    Legal when the groups divide that shape: no group lacks units.

    >>> warp = parse_threads("#4:[32].thread")
    >>> print(threads_text(tiled(warp, (8,))), threads_text(tiled(warp, (Layout((4, 2), (1, 16)),))))
    [4]:[8].[8]:[1].thread [4]:[4].[(4,2)]:[(1,16)].thread

    Source: Graphene section 4, Figures 5b and 6.
    """
    *around, last = shapes
    if len(sizes) != last.rank():
        raise LayoutError(
            f"tile: {len(sizes)} sizes for the {last.rank()} dimensions of {threads_text(shapes)}", legal="one each; _ keeps it whole"
        )
    parts_by_dim = [_group_and_rest(dim, size) for dim, size in zip(last, sizes, strict=True)]
    return (*around, *(make_layout(*(pair[place] for pair in parts_by_dim)) for place in (1, 0)))


def _group_and_rest(dim: Layout, size: int | Layout | None) -> tuple[Layout, Layout]:
    """The units of a group along a dimension, and its groups."""
    tile = Layout(dim.size()) if size is None else size if isinstance(size, Layout) else Layout(size)
    if dim.size() % tile.size():
        raise LayoutError(
            f"groups of {tile.size()} units do not divide {dim.size()}", legal=[n for n in range(1, dim.size() + 1) if dim.size() % n == 0]
        )
    group, groups = logical_divide(dim, tile)
    if group.size() * groups.size() != dim.size():
        raise LayoutError(f"groups {tile} do not divide {dim.size()} units", legal="a layout whose complement numbers the groups")
    return group, groups
