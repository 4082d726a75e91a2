"""Print and parse tensors and views in Graphene's notation."""

from __future__ import annotations

import re
from collections.abc import Sequence

from fireiron.errors import LayoutError
from fireiron.values.expr import ZERO, Expr, constant
from fireiron.values.layout import Layout, composition, congruent, flatten, make_layout, product, read_tree
from fireiron.values.notation.shapes import ALL, parts_of, read_shapes, shape_text, sizes_of, tree_text
from fireiron.values.notation.tensors import around, read_tensor, tensor_texts
from fireiron.values.notation.words import Symbols, exact, expression_text, pieces, read_expression
from fireiron.values.tensor import Dim, Fixed, Mode, Tensor, View, whole_view

_REST = re.compile(r"(?:\{([^{}]*)\})?\s*(?:((?:\[[^\[\]]*\]\s*)+)(?:\{([^{}]*)\})?)?", re.DOTALL)


def parse_tensor(text: str, symbols: Symbols | None = None) -> Tensor:
    """The tensor that a text denotes; `parse_tensor(tensor_text(t), symbols_of(t)) == t`.

    Nested tiles denote the untiled tensor. Each of its dimensions counts the elements of a tile first, then the tiles.

    >>> parse_tensor("%A:[16,16].fp16.SH").layout, parse_tensor("%A:[16,16 : 1,20].fp16.SH").layout
    (RowMajor, ColMajor(ld=20))
    >>> print(parse_tensor("%A:[2,2 : 2,16].[2,4 : 1,4].fp32").layout)
    ((2,2),(4,2)):((1,2),(4,16))

    Source: Graphene Figure 2, sections 3.1 and 3.3.
    """
    view = parse_view(text, symbols)
    if view != whole_view(view.tensor):
        raise LayoutError(f"{text!r} is only a part of a tensor", hint="parse_view")
    return view.tensor


def parse_view(text: str, symbols: Symbols | None = None) -> View:
    """The view that a text denotes, or the whole tensor without coordinates; `parse_view(view_text(v), symbols_of(v)) == v`.

    >>> from fireiron.values.expr import Var
    >>> view = parse_view("%A:[1024,64]:[1,1024].fp16.GL[128:1 #8:128=block, _]", {"block": Var("block", 0, 7)})
    >>> print(view.dims[0].base, *view.shape)
    block * 128 128 64

    After nested tiles, one pair of brackets per outer shape selects a tile by its number along each dimension; `#` marks the number of a
    unit, `@` that of an iteration. Brackets with such marks after an untiled tensor select one element.

    >>> print(view_text(parse_view("%7:[2,2].[8,8].fp16.SH[@i, 1]", {"i": Var("i", 0, 1)})))
    %7:[(8,2),(8,2)]:[(16,128),(1,8)].fp16.SH[8:1 @2:8=i, 8:1 @2:8=1]
    """
    parts, symbols = parts_of(text), symbols or {}
    match = _REST.fullmatch(parts.rest)
    if match is None:
        raise LayoutError(f"{parts.rest!r} after a tensor is not legal", legal="{pad=8} [coordinates] {copy=warp, order=1 0}")
    copy, order = _view_options(match[3] or "", symbols)
    whole = whole_view(read_tensor(parts, match[1] or "", symbols), copy)
    groups = [pieces(one, ",") if one.strip() else [] for one in re.findall(r"\[([^\[\]]*)\]", match[2] or "")]
    if len(parts.shapes) > 1 or any(one.strip().startswith(("@", "#")) for group in groups for one in group):
        return _ordered(_at_tiles(whole, read_shapes(parts.shapes, symbols)[1:], groups, symbols), order)
    if len(groups) > 1:
        raise LayoutError(f"{len(groups)} pairs of brackets after a tensor in {text!r}", legal="one, or one for each shape")
    return _ordered(_with_numerals(whole, groups[0], symbols), order) if groups else whole


def _view_options(text: str, symbols: Symbols) -> tuple[Expr, tuple[int, ...] | None]:
    """The contents of braces after coordinates: the copy, and the order of the tensor's dimensions in the view."""
    copy: Expr = ZERO
    order: tuple[int, ...] | None = None
    for item in pieces(text, ",") if text.strip() else ():
        name, _, value = (part.strip() for part in item.partition("="))
        if name == "copy":
            copy = read_expression(value, symbols)
        elif name == "order" and all(axis.isdecimal() for axis in value.split()):
            order = tuple(map(int, value.split()))
        else:
            raise LayoutError(f"{item.strip()!r} after a view is not an option", legal="copy=warp order=1 0")
    return copy, order


def _ordered(view: View, order: tuple[int, ...] | None) -> View:
    """The view with its dimensions in another order than the tensor's."""
    if order is None:
        return view
    own = [view.axis(dim) for dim in range(len(view.dims))]
    if sorted(order) != own:
        raise LayoutError(f"order={' '.join(map(str, order))} is not a permutation of the dimensions {own}", legal="each of them once")
    return View(view.tensor, view.numerals, view.copy, order)


def _with_numerals(whole: View, numerals: list[str], symbols: Symbols) -> View:
    """The part of a tensor with these coordinates, given as one numeral per dimension."""
    shape = whole.tensor.shape
    if len(numerals) != len(shape):
        raise LayoutError(f"[{','.join(numerals)}] specifies {len(numerals)} dimensions, but the tensor has {len(shape)}")
    dims = tuple(_read_numeral(one, size, symbols) for one, size in zip(numerals, shape, strict=True))
    own = tuple(axis for axis, one in enumerate(numerals) if _free(one) != "0")
    return View(whole.tensor, dims, whole.copy, None if len(own) == len(dims) else own)


def _at_tiles(view: View, inner: tuple[Layout, ...], places: list[list[str]], symbols: Symbols) -> View:
    """The tile at a position in each outer shape, the outermost first; a position in the innermost shape selects an element."""
    if len(places) > len(inner) + 1:
        raise LayoutError(f"{len(places)} pairs of brackets after {len(inner) + 1} shapes", legal=f"at most {len(inner) + 1}")
    for depth, place in enumerate(places):
        sizes = [product(tuple(sizes_of(one)[dim] for one in inner[depth:])) for dim in range(len(view.dims))]
        marks = {one.strip()[:1] for one in place} & {"@", "#"}
        if len(marks) > 1:
            raise LayoutError(f"[{','.join(place)}] mixes numbers of units (#) and of iterations (@)", legal="# or @ in a pair of brackets")
        numbers = tuple(read_expression(one.strip().lstrip("@#"), symbols) for one in place)
        view = view.tile(*sizes).at(numbers, unit="#" in marks)
    return view


def tensor_text(tensor: Tensor) -> str:
    """A tensor in Graphene's notation; a `LayoutError` if no text represents it.

    >>> from fireiron import SH, ColMajor, float16, sym
    >>> print(tensor_text(Tensor("A", (sym("M"), sym("N")), float16, SH, ColMajor)))
    %A:[M,N]:[1,M].fp16.SH
    """
    return exact(tensor, tensor_texts(tensor), parse_tensor)


def view_text(view: View) -> str:
    """A view in Graphene's notation: that of its tensor, followed by the coordinates that the view has, if these are not all.

    >>> import attrs
    >>> from fireiron.values.expr import Var
    >>> tensor = parse_tensor("%A:[1024,64]:[1,1024].fp16.GL")
    >>> part = whole_view(tensor).dims[0].moved(Fixed(8, 128, True, Var("block", 0, 7)))
    >>> print(view_text(whole_view(tensor).with_dims({0: attrs.evolve(part, modes=(Mode(128, 1),))})))
    %A:[1024,64]:[1,1024].fp16.GL[128:1 #8:128=block, _]
    """
    if view == whole_view(view.tensor):
        return tensor_text(view.tensor)
    own = range(len(view.numerals)) if view.axes is None else view.axes
    numerals = [_numeral(part, view.tensor.shape[axis], axis in own) for axis, part in enumerate(view.numerals)]
    options = [] if view.copy == ZERO else [f"copy={expression_text(view.copy)}"]
    if view.axes is not None and (len(own) == len(numerals) or list(own) != sorted(own)):
        options.append(f"order={' '.join(map(str, own))}")
    braces = f"{{{', '.join(options)}}}" if options else ""
    return exact(view, [f"{tensor_text(view.tensor)}[{', '.join(numerals)}]{braces}"], parse_view)


def _numeral(part: Dim, extent: Expr, own: bool) -> str:
    if own and part == Dim((Mode(extent, 1),)):
        return ALL
    sizes, strides = ([getattr(mode, name) for mode in part.modes] for name in ("size", "stride"))
    free = "0" if not own else "1"
    if sizes:
        free = ":".join(tree_text(leaves[0] if len(leaves) == 1 else tuple(leaves)) for leaves in (sizes, strides))
    bound = [] if part.bound is None else [f"< {expression_text(part.bound)}"]
    return " ".join([free, *map(_digit_text, part.fixed), *bound])


def _digit_text(digit: Fixed) -> str:
    return f"{'#' if digit.unit else '@'}{expression_text(digit.size)}:{expression_text(digit.stride)}={_index(digit.index)}"


def _index(index: Expr) -> str:
    text = expression_text(index)
    return f"({text})" if "<" in text else text


def _free(numeral: str) -> str:
    return pieces(numeral, "#@<")[0].strip()


def _read_numeral(text: str, extent: Expr, symbols: Symbols) -> Dim:
    free, *marked = (piece.strip() for piece in pieces(text, "#@<"))
    if free == ALL:
        modes: tuple[Mode, ...] = (Mode(extent, 1),)
    elif free in ("0", "1"):
        modes = ()
    else:
        sizes, _, strides = free.partition(":")
        trees = [read_tree(tree, lambda leaf: read_expression(leaf, symbols)) for tree in (sizes, strides)]
        if not congruent(*trees):
            raise LayoutError(f"the sizes and strides of {free} differ in structure")
        modes = tuple(map(Mode, *map(flatten, trees)))
    bounds = [one for one in marked if one.startswith("<")]
    if len(bounds) > 1:
        raise LayoutError(f"{text.strip()!r} has several bounds")
    fixed = tuple(_read_digit(one, symbols) for one in marked if not one.startswith("<"))
    return Dim(modes, read_expression(bounds[0][1:], symbols) if bounds else None, fixed)


def _read_digit(text: str, symbols: Symbols) -> Fixed:
    match = re.fullmatch(r"([#@])([^:=]*):([^:=]*)=(.*)", text, re.DOTALL)
    if match is None:
        raise LayoutError(f"{text!r} is not a fixed digit", legal="#size:stride=unit, @size:stride=iteration")
    size, stride, index = (read_expression(part, symbols) for part in match.groups()[1:])
    return Fixed(size, stride, match[1] == "#", index)


def tiles_of(view: View) -> tuple[Layout, Layout]:
    """The layouts by which the paper prints a tile: that of the tiles, by the fixed digits of each dimension, and that of a tile's
    elements.

    The layouts map to addresses, as everywhere in the paper. Legal when: sizes and strides are known.
    """
    modes = view.tensor.storage().layout
    parts = [(mode, view.numerals[axis]) for axis, mode in enumerate(modes)]
    outer = [_after(mode, [(one.size, one.stride) for one in part.fixed]) for mode, part in parts]
    inner = [_after(mode, [(mode.size, mode.stride) for mode in part.modes]) for mode, part in parts]
    return make_layout(*outer), make_layout(*inner)


def strided(view: View, dim: int, modes: Sequence[Mode]) -> Layout:
    """Modes of the coordinates of a view's dimension, as a layout over addresses."""
    return _after(list(view.tensor.storage().layout)[view.axis(dim)], [(mode.size, mode.stride) for mode in modes])


def _after(mode: Layout, digits: Sequence[tuple[Expr, Expr]]) -> Layout:
    """The layout of a dimension after digits of its coordinate: a multiple of its only step, or the composition."""
    modes = []
    for size, stride in digits:
        numbers = constant(size), constant(stride)
        if None in numbers:
            raise LayoutError(f"the digit {size}:{stride} is known only at run time", hint="use view_text")
        steps = [step for _, step in mode.leaves]
        here = Layout(*numbers)  # type: ignore[arg-type]
        modes.append(Layout(numbers[0], numbers[1] * steps[0]) if len(steps) == 1 else composition(mode, here))  # type: ignore[operator,arg-type]
    return modes[0] if len(modes) == 1 else make_layout(*modes) if modes else Layout(1, 0)


def tiles_text(view: View) -> str:
    """The tiled tensor of which a view is one tile, as the paper prints it: `%A:[2,2]:[2,16].[2,4]:[1,4].fp32.GL`.

    It contains neither the tile number nor bounds; `view_text` is complete.
    """
    front, back = around(view.tensor)
    return f"{front}{'.'.join(map(shape_text, tiles_of(view)))}{back}"
