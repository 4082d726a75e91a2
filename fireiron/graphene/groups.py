"""Derive groups of threads and blocks from other groups, and name the coordinates of a unit in its group (Graphene, section 4)."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from fireiron.errors import LayoutError
from fireiron.values.expr import Expr
from fireiron.values.layout import Layout
from fireiron.values.notation import group_text, indices, parse_group, parse_threads, pieces, reshaped, tiled
from fireiron.values.notation.shapes import parts_of, read_shapes

SizeReader = Callable[[str], "int | Layout | None"]

_SCALAR: Final = re.compile(r"\.\s*scalar\(\s*\)")
_TILE: Final = re.compile(r"\.\s*tile\(\s*(.*?)\s*\)", re.DOTALL)
_RESHAPE: Final = re.compile(r"\.\s*reshape\(\s*([0-9]{1,3})\s*,\s*\[([^\[\]]*)\]\s*\)", re.DOTALL)
_LEGAL: Final = "#22 = #5.scalar(), #5 = #4.tile(8), #6 = #5.reshape(0, [2,2])"


def derive_group(name: str, source: str, rest: str, size: SizeReader) -> str:
    """Return the text of a derived group: one unit of another group, or that group tiled or reshaped."""
    _, unit, shapes = parse_group(source)
    if _SCALAR.fullmatch(rest):
        return f"{name}:[].{unit}"
    if shapes is None:
        raise LayoutError(f"the shape of {source} is unknown: the strategy determines its number of units", legal="[16,16].thread")
    if (match := _TILE.fullmatch(rest)) is not None:
        return group_text(tiled(shapes, tuple(map(size, sizes_in(match[1])))), name[1:], unit)
    if (match := _RESHAPE.fullmatch(rest)) is not None:
        (arrangement,) = parse_threads(f"#0:[{match[2]}].thread")
        return group_text(reshaped(shapes, int(match[1]), arrangement), name[1:], unit)
    raise LayoutError(f"{rest!r} does not derive a group from {source}", legal=_LEGAL)


def sizes_in(text: str) -> list[str]:
    """Split the arguments of `tile`. They have the forms `128, _`, `[128, _]` (as in the paper), and `[2:2], [(2,2):(1,4)]`."""
    items = pieces(text, ",")
    if len(items) == 1 and (inside := text.strip()).startswith("[") and inside.endswith("]"):
        return pieces(inside[1:-1], ",")
    return items


def require_same_group(declared: str, name: str, text: str) -> None:
    """Require that the declared shape of a group equals the derived shape. Strides are optional."""
    parts = parts_of(f"{name}:{declared}")
    _, unit, shapes = parse_group(text)
    written = [read_shapes((one,), {})[0] for one in parts.shapes]
    same = parts.element == unit and not parts.memory and not parts.rest
    if any(strides for _, strides in parts.shapes):
        # The paper's [(4,2):(1,16)] is one dimension with two strides, or two dimensions. Both are the same units.
        same &= [_leaves(one) for one in written] == [_leaves(one) for one in shapes or ()]
    else:
        same &= [one.shape for one in written] == [one.shape for one in shapes or ()]
    if not same:
        raise LayoutError(f"{name} is {text.partition(':')[2]}, not the declared group", got=declared.strip())


def _leaves(shape: Layout) -> list[tuple[Any, Any]]:
    return [leaf for leaf in shape.modes if leaf[0] != 1]


def named_indices(names: str, text: str, unit: Expr) -> list[tuple[str, Expr]]:
    """Return the name and value of each coordinate of a unit in a group.

    For `[2,2].[8].thread`, `names` is `(@m, @n), @i`, or `@m, @n, @i` without parentheses.
    """
    _, _, shapes = parse_group(text)
    if shapes is None:
        raise LayoutError(f"the shape of {text} is unknown: the strategy determines its number of units", legal="[16,16].thread")
    coordinates = indices(shapes, unit)
    items = [one.strip() for one in pieces(names, ",")]
    flat = [one for place in coordinates for one in place]
    if any(one.startswith("(") for one in items):
        if len(items) != len(coordinates):
            raise LayoutError(f"the text has {len(items)} names for {len(coordinates)} shapes", legal=_nested(coordinates))
        pairs = [(_inside(item), shape_coordinates) for item, shape_coordinates in zip(items, coordinates, strict=True)]
    else:
        pairs = [(items, tuple(flat))]
    for listed, shape_coordinates in pairs:
        if len(listed) != len(shape_coordinates):
            raise LayoutError(f"the text has {len(listed)} names for {len(shape_coordinates)} values", legal=_nested(coordinates))
    return [(plain_name(name), value) for listed, shape_coordinates in pairs for name, value in zip(listed, shape_coordinates, strict=True)]


def _inside(item: str) -> list[str]:
    return pieces(item[1:-1], ",") if item.startswith("(") and item.endswith(")") else [item]


def _nested(places: tuple[tuple[Expr, ...], ...]) -> str:
    return ", ".join(f"({', '.join(map(str, place))})" if len(place) > 1 else str(place[0]) for place in places if place)


_MARKED: Final = re.compile(r"@\s*(?=[A-Za-z_])")


def plain_name(text: str) -> str:
    """Remove the `@` that the paper writes before names."""
    return _MARKED.sub("", text).strip()


def group_of(texts: Mapping[str, Any], name: str) -> str:
    """Return the text of the group with a name."""
    if name not in texts:
        raise LayoutError(f"{name} is not a group", legal=[one for one in texts if one.startswith("#")])
    return str(texts[name])


__all__ = ["derive_group", "group_of", "named_indices", "plain_name", "require_same_group", "sizes_in"]
