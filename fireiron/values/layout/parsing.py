"""Parse the text of a layout."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from typing import Any

from fireiron.errors import ArgumentError, LayoutError
from fireiron.values.layout.int_tuples import check_depth
from fireiron.values.layout.layouts import ComposedLayout, Layout, row_major
from fireiron.values.layout.swizzles import Swizzle


def parse(text: str) -> Layout | ComposedLayout:
    """The layout that a text denotes: CuTe's `shape:stride`, Graphene's `[shape : stride]`, or either under a swizzle; else an error.

    Without strides, brackets are row-major (Graphene section 3.1) and parentheses column-major (CuTe).
    `parse(str(x)) == x` for every layout.

    >>> parse("(4,(2,4)):(2,(1,8))") == parse("[4,(2,4) : 2,(1,8)]")
    True
    >>> print(parse("[16,16]"), parse("(16,16)"), parse("Sw<3,3,3> o 0 o (8,64):(64,1)")(1, 0))
    (16,16):(16,1) (16,16):(1,16) 72
    """
    if not isinstance(text, str):
        raise ArgumentError("a layout is parsed from text", got=text)
    parts = [part.strip() for part in text.split(" o ")]
    layout = _parse_plain(parts[-1])
    if len(parts) == 1:
        return layout
    swizzle = re.fullmatch(r"Sw<([0-9]+),([0-9]+),(-?[0-9]+)>", parts[0].replace(" ", ""))
    if swizzle is None or len(parts) > 3 or not all(part.isdecimal() for part in parts[1:-1]):
        raise LayoutError("this is not a swizzled layout", got=text, legal="Sw<bits,base,shift> o offset o shape:stride")
    return ComposedLayout(Swizzle(*map(int, swizzle.groups())), int(parts[1]) if len(parts) == 3 else 0, layout)


def _parse_plain(text: str) -> Layout:
    bracketed = text.startswith("[") and text.endswith("]")
    shape, stride = split_shape(text[1:-1] if bracketed else text)
    tree = read_dims(shape, _read_int) if bracketed else read_tree(shape, _read_int)
    if stride is None:
        return row_major(tree) if bracketed else Layout(tree)
    return Layout(tree, read_dims(stride, _read_int) if bracketed else read_tree(stride, _read_int))


def _read_int(text: str) -> int:
    if not re.fullmatch("[0-9]+", text):
        raise LayoutError(f"{text!r} is not an integer", legal="digits, tuples in parentheses, one colon")
    return int(text)


def split_shape(text: str) -> tuple[str, str | None]:
    """Split `shape : stride`; the stride is None if it is omitted. Raises: `LayoutError` for several colons."""
    parts = text.split(":")
    if len(parts) > 2:
        raise LayoutError("a layout has one colon", got=text, legal="shape:stride")
    return parts[0], parts[1] if len(parts) == 2 else None


def read_dims(text: str, leaf: Callable[[str], Any]) -> Any:
    """The contents of Graphene's brackets: a single item is itself, several are a tuple."""
    parts = _split(text) if text.strip() else []
    return read_tree(parts[0], leaf) if len(parts) == 1 else tuple(read_tree(part, leaf) for part in parts)


def read_tree(text: str, leaf: Callable[[str], Any], level: int = 0) -> Any:
    """Parse a nested tuple in parentheses; `leaf` parses each leaf."""
    check_depth(level)
    text = text.strip()
    if level == 0:
        # Refuses deep nesting before the recursion. Only half of the opening parentheses count, because a leaf may also begin with some.
        check_depth((len(text) - len(text.lstrip("( "))) // 2)
    if not _enclosed(text):
        return leaf(text)
    inner = text[1:-1].strip().removesuffix(",")
    return tuple(read_tree(part, leaf, level + 1) for part in _split(inner)) if inner else ()


def _enclosed(text: str) -> bool:
    """Whether one pair of parentheses encloses the whole text, as in a tuple, and not as in a leaf such as `(a) // (b)`."""
    depths = list(itertools.accumulate({"(": 1, ")": -1}.get(character, 0) for character in text))
    return text.startswith("(") and text.endswith(")") and 0 not in depths[:-1]


def _split(text: str) -> list[str]:
    """The items between commas outside all parentheses."""
    parts, level = [""], 0
    for character in text:
        level += {"(": 1, ")": -1}.get(character, 0)
        if level < 0:
            break
        if character == "," and level == 0:
            parts.append("")
        else:
            parts[-1] += character
    if level:
        raise LayoutError("parentheses do not match", got=text)
    return parts
