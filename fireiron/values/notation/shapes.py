"""Parse and print shapes, which are sizes and strides by dimension, also of nested tiles; and split a text into its parts."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

from fireiron.errors import ArgumentError, LayoutError
from fireiron.frozen import frozen
from fireiron.values.expr import assume_positive, constant
from fireiron.values.layout import Layout, Swizzle, check_depth, congruent, flatten, read_tree, row_major_strides
from fireiron.values.notation.words import Symbols, expression_text, pieces, read_expression

_SHAPE = r"\[([^\[\]]*)\](?:\s*:\s*\[([^\[\]]*)\])?"
_TEXT = re.compile(
    rf"""\s* (?: ([%\#]?) (\w+) \s*:)? \s*
    (?: Sw<([0-9]+),([0-9]+),(-?[0-9]+)> \s+ o \s+)?
    ((?: {_SHAPE} \s*\.\s*)+)
    ([A-Za-z_]\w*) (?: \s*\.\s* ([A-Za-z_]\w* (?:<[0-9,\ ]+>)?) )?
    \s* (.*)""",
    re.VERBOSE | re.DOTALL | re.ASCII,
)
UNITS = ("thread", "block", "gpu")
ALL = "_"


@frozen
class Parts:
    """The parts of a text, before their interpretation."""

    sign: str
    name: str
    swizzle: Swizzle | None
    shapes: tuple[tuple[str, str | None], ...]
    element: str
    memory: str | None
    rest: str


def parts_of(text: object) -> Parts:
    if not isinstance(text, str):
        raise ArgumentError("the argument must be a string", got=text)
    match = _TEXT.fullmatch(text)
    if match is None:
        raise LayoutError(f"{text!r} is not a tensor", legal="%name:[sizes]:[strides].type.memory, as %A:[16,16]:[1,16].fp16.SH")
    swizzle = Swizzle(*(int(match[number]) for number in (3, 4, 5))) if match[3] else None
    shapes = tuple(_sizes_and_strides(*pair) for pair in re.findall(_SHAPE, match[6]))
    return Parts(match[1] or "", match[2] or "", swizzle, shapes, match[9], match[10], match[11].strip())


def _sizes_and_strides(sizes: str, strides: str) -> tuple[str, str | None]:
    """Sizes and strides as comma-separated items; the paper writes both in one pair of brackets, possibly each in parentheses."""
    inside = sizes.split(":")
    if len(inside) == 1 and not strides:
        return sizes, None
    if len(inside) > 2 or (len(inside) == 2 and strides):
        raise LayoutError(f"[{sizes}] has two strides", legal="[sizes]:[strides], or [sizes : strides]")
    if strides:
        return sizes, strides
    return _unwrapped(inside[0]), _unwrapped(inside[1])


def _unwrapped(items: str) -> str:
    """Remove parentheses around all items: the paper writes `[(4,8) : ...]` for `[4,8 : ...]`."""
    tree = items.strip()
    check_depth((len(tree) - len(tree.lstrip("( "))) // 2)
    while len(pieces(tree, ",")) == 1 and tree.startswith("(") and tree.endswith(")"):
        tree = tree[1:-1].strip()
    return tree


def _items(text: str, symbols: Symbols, least: int) -> tuple[Any, ...]:
    """Sizes (at least 1) or strides (at least 0) by dimension: integers, expressions, tuples of them."""
    return tuple(read_tree(item, lambda leaf: read_leaf(leaf, symbols, least)) for item in pieces(text, ",")) if text.strip() else ()


def read_leaf(text: str, symbols: Symbols, least: int) -> Any:
    value = read_expression(text, symbols)
    number = constant(value)
    if number is None:
        return assume_positive(value) if least else value
    if number < least:
        raise LayoutError(f"a {'size' if least else 'stride'} is at least {least}", got=number)
    return number


def read_shapes(shapes: tuple[tuple[str, str | None], ...], symbols: Symbols) -> tuple[Layout, ...]:
    """The layouts of shapes, the outermost first."""
    sizes = [_items(one, symbols, 1) for one, _ in shapes]
    given = [one for _, one in shapes]
    strides = [() if one is None else _items(one, symbols, 0) for one in given]
    if any(not size for size in sizes) and len(sizes) > 1:
        raise LayoutError("a scalar [] cannot be combined with other shapes")
    if None in given:
        if any(given):
            raise LayoutError("some shapes have strides and others do not", legal="strides for all shapes, or for none")
        strides = _row_major(sizes)
    for size, stride in zip(sizes, strides, strict=True):
        if not congruent(size, stride):
            raise LayoutError(f"sizes [{listed(size)}] and strides [{listed(stride)}] differ in structure")
    return tuple(map(Layout, sizes, strides))


def _row_major(sizes: Sequence[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """The strides of shapes without strides: those of the compact row-major tensor, whose inner shapes are contiguous tiles."""
    if len(sizes) == 1 and all(isinstance(leaf, int) for leaf in flatten(sizes[0])):
        strides = row_major_strides(sizes[0])
        return [strides if isinstance(strides, tuple) else (strides,)]
    if any(isinstance(size, tuple) for one in sizes for size in one) or len({len(one) for one in sizes}) > 1:
        what = "strides are omitted, but a dimension is hierarchical, or the shapes have different numbers of dimensions"
        raise LayoutError(what, hint="write the strides of all shapes")
    totals = [math.prod(column) for column in zip(*sizes, strict=True)]
    steps = [math.prod(totals[dim + 1 :]) for dim in range(len(totals))]
    result: list[tuple[Any, ...]] = []
    for extents in reversed(sizes):
        result.insert(0, tuple(steps))
        steps = [step * size for step, size in zip(steps, extents, strict=True)]
    return result


def of_tiles(layouts: tuple[Layout, ...]) -> Layout:
    """The layout of the untiled tensor: each dimension counts the elements of a tile first, then the tiles."""
    if len({layout.rank() for layout in layouts}) > 1:
        raise LayoutError(
            f"tiles {' in '.join(map(str, layouts))} have different numbers of dimensions", legal="the same number in all shapes"
        )
    shapes, strides = ([tree(layout) for layout in reversed(layouts)] for tree in (sizes_of, strides_of))
    return Layout(tuple(zip(*shapes, strict=True)), tuple(zip(*strides, strict=True)))


def sizes_of(layout: Layout) -> tuple[Any, ...]:
    return layout.shape if isinstance(layout.shape, tuple) else (layout.shape,)


def strides_of(layout: Layout) -> tuple[Any, ...]:
    return layout.stride if isinstance(layout.stride, tuple) else (layout.stride,)


def omittable(layout: Layout) -> bool:
    try:
        return _row_major([sizes_of(layout)]) == [strides_of(layout)]
    except LayoutError:
        return False


def listed(tree: tuple[Any, ...]) -> str:
    return ",".join(map(tree_text, tree))


def tree_text(tree: Any) -> str:
    return f"({listed(tree)})" if isinstance(tree, tuple) else expression_text(tree)


def shape_text(shape: Layout) -> str:
    return f"[{listed(sizes_of(shape))}]:[{listed(strides_of(shape))}]"
