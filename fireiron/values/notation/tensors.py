"""Tensors from the parts of a text, and candidate texts of a tensor."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

import attrs

from fireiron.errors import LayoutError
from fireiron.values.distribution import Portion
from fireiron.values.expr import as_expr
from fireiron.values.layout import Layout, flatten, read_tree
from fireiron.values.machine import DTYPES, GL, NAMED_MEMORIES, DType, Memory
from fireiron.values.notation.indirect import indirect_options, read_indirect
from fireiron.values.notation.shapes import (
    UNITS,
    Parts,
    listed,
    of_tiles,
    omittable,
    read_leaf,
    read_shapes,
    sizes_of,
    strides_of,
    tree_text,
)
from fireiron.values.notation.words import SHORT, Symbols, dtype_text, expression_text, named, pieces, read_expression
from fireiron.values.orders import ColMajor, Distributed, MatrixLayout, RowMajor
from fireiron.values.tensor import Tensor

_COUNTS: Final = ("pad", "align", "copies", "stages", "alternating")
_NAMES: Final = ("owner", "shares", "joins")
_LISTS: Final = ("shape", "at")
"""The options of an indirect tensor."""
_OUTSIDE: Final = "outside"
"""The option of an indirect tensor with affine indices: the value outside of its array."""
_PORTION: Final[Mapping[str, str]] = {"gpus": "gpu_axis", "own": "own_along", "divided": "divided", "joined": "joined"}
"""The options of an array of a node in a launch on one GPU: the dimension of the GPUs, the dimension of which it accesses a slice, and the
dimension that it accesses as two; the number of GPUs whose parts are joined."""
_OPTIONS: Final = (
    "pad=8 align=16 copies=4 stages=2 alternating=2 reuse may_reuse free owner=reads shares=other joins=other "
    "gpus=0 own=1 divided=0 joined=2 layout=row"
)
_FLAGS: Final[Mapping[str, Mapping[str, bool]]] = {"reuse": {"reuse": True}, "may_reuse": {"must_reuse": False}, "free": {"free": True}}
"""A single word in braces; `free`: an instruction that reads the buffer may still choose its layout."""


def read_tensor(parts: Parts, options: str, symbols: Symbols) -> Tensor:
    if parts.sign == "#" or parts.element in UNITS:
        what = f"the text denotes a group of units ({parts.element}), not a tensor"
        raise LayoutError(what, hint="write %name for data; parse_level and parse_group read #name, threads and blocks")
    layouts = read_shapes(parts.shapes, symbols)
    layout = layouts[0] if len(layouts) == 1 else of_tiles(layouts)
    dtype = named(SHORT.get(parts.element, parts.element), DType, symbols, DTYPES, "an element type nor one of the symbols")
    memory = GL if parts.memory is None else _memory(parts.memory, symbols)
    shape = tuple(as_expr(math.prod(flatten(size))) for size in sizes_of(layout))
    given, order = _options(options, symbols)
    lists = {name: given.pop(name) for name in _LISTS if name in given}
    outside = given.pop(_OUTSIDE, "0")
    tensor = Tensor(parts.name, shape, dtype, memory, layout, swizzle=parts.swizzle, **given)
    if len(lists) == len(_LISTS):
        array = _ordered(tensor, layout if parts.shapes[0][1] is not None else None, order)
        return read_indirect(array, lists["shape"], lists["at"], symbols, outside)
    if lists:
        raise LayoutError(f"what is {next(iter(lists))}=... after a tensor?", legal="shape=(...), at=(...) of an indirect tensor")
    if len(layouts) > 1 or any(isinstance(size, tuple) for size in sizes_of(layout)):
        return tensor
    return _ordered(tensor, layout if parts.shapes[0][1] is not None else None, order)


def _memory(name: str, symbols: Symbols) -> Memory:
    return named(name.replace(" ", ""), Memory, symbols, NAMED_MEMORIES, "a memory nor one of the symbols")


def _ordered(tensor: Tensor, layout: Layout | None, order: MatrixLayout | Layout | Distributed | None) -> Tensor:
    """The tensor with the named storage order that has these strides, if there is one; without strides it is RowMajor."""
    orders = [RowMajor if len(tensor.shape) > 1 else ColMajor] if layout is None else list(_orders(layout))
    for candidate_order in orders if order is None else [order]:
        candidate_tensor = attrs.evolve(tensor, layout=candidate_order)
        if layout is None or candidate_tensor.storage().layout == layout:
            return candidate_tensor
    if order is not None:
        raise LayoutError(f"{order} does not have the strides {layout}")
    return tensor


def _orders(layout: Layout) -> Iterator[MatrixLayout]:
    """Storage orders that may have the strides of a layout, the usual ones first."""
    yield from (ColMajor, RowMajor)
    first, second, *_ = (*strides_of(layout), 0, 0)
    if first == 1 and as_expr(second).low >= 1:
        yield ColMajor(second)
    if second == 1 and as_expr(first).low >= 1:
        yield RowMajor(first)


def _options(text: str, symbols: Symbols) -> tuple[dict[str, Any], MatrixLayout | Layout | Distributed | None]:
    """The braces after a tensor: the fields of `Tensor` without a notation in Graphene, and the order if strides are ambiguous."""
    fields: dict[str, Any] = {}
    order: MatrixLayout | Layout | Distributed | None = None
    for item in pieces(text, ",") if text.strip() else ():
        name, _, value = (part.strip() for part in item.partition("="))
        if name in _COUNTS and value.isdecimal():
            fields[name] = int(value)
        elif name in _PORTION and value.isdecimal():
            fields["portion"] = attrs.evolve(fields.get("portion", Portion()), **{_PORTION[name]: int(value)})
        elif item.strip() in _FLAGS:
            fields |= _FLAGS[item.strip()]
        elif (name in _NAMES and value.isidentifier()) or name in (*_LISTS, _OUTSIDE):
            fields[name] = value
        elif name == "layout":
            order = _read_order(value, symbols)
        else:
            raise LayoutError(f"{item.strip()!r} after a tensor is not an option", legal=_OPTIONS)
    return fields, order


def _read_order(text: str, symbols: Symbols) -> MatrixLayout | Layout | Distributed:
    if match := re.fullmatch(r"(col|row) over (\w+)", text):
        return Distributed(ColMajor if match[1] == "col" else RowMajor, match[2])
    if match := re.fullmatch(r"(col|row)(?:\((.*)\))?", text):
        order = ColMajor if match[1] == "col" else RowMajor
        return order if match[2] is None else order(read_expression(match[2], symbols))
    sizes, _, strides = text.partition(":")
    return Layout(read_tree(sizes, lambda leaf: read_leaf(leaf, symbols, 1)), read_tree(strides, lambda leaf: read_leaf(leaf, symbols, 0)))


def tensor_texts(tensor: Tensor) -> Iterator[str]:
    """Texts of a tensor, the shortest first; the caller reads them back to find one that is complete."""
    own, tensor = tensor, tensor.array
    layout = tensor.storage().layout
    sizes, strides = f"[{listed(sizes_of(layout))}]", f":[{listed(strides_of(layout))}]"
    front, back = around(tensor)
    options = [f"{name}={getattr(tensor, name)}" for name in (*_COUNTS, *_NAMES) if getattr(tensor, name) != _DEFAULTS[name]]
    options += [name for name, fields in _FLAGS.items() if all(getattr(tensor, field) == value for field, value in fields.items())]
    options += _portion_options(tensor.portion)
    options += indirect_options(own)
    braces = f"{{{', '.join(options)}}}" if options else ""
    order = f"{{{', '.join([*options, f'layout={_order_text(tensor.layout)}'])}}}"
    for middle, end in (("", braces), (strides, braces), (strides, order)):
        if middle or omittable(layout):
            yield f"{front}{sizes}{middle}{back}{end}"


def _portion_options(portion: Portion | None) -> list[str]:
    """The options of a portion: its fields without a default value."""
    fields = () if portion is None else ((name, getattr(portion, field), getattr(Portion(), field)) for name, field in _PORTION.items())
    return [f"{name}={value}" for name, value, usual in fields if value != usual]


def around(tensor: Tensor) -> tuple[str, str]:
    """The text before and after the shapes of a tensor."""
    front = (f"%{tensor.name}:" if tensor.name else "") + (f"{tensor.swizzle} o " if tensor.swizzle else "")
    return front, f".{dtype_text(tensor.dtype)}.{tensor.memory.name}"


_DEFAULTS: Final = {field.name: field.default for field in attrs.fields(Tensor)}


def _order_text(layout: MatrixLayout | Layout | Distributed) -> str:
    if isinstance(layout, Distributed):
        return f"{layout.layout.order} over {layout.dim}"
    if isinstance(layout, Layout):
        return f"{tree_text(layout.shape)}:{tree_text(layout.stride)}"
    return layout.order if layout.leading is None else f"{layout.order}({expression_text(layout.leading)})"
