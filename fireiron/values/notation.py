"""Graphene's tensors and logical thread groups: `Name : Shape . ElementType . Memory`, on top of layouts.

A tensor is a list of *shapes*, outermost first: the outer shape arranges tiles, the next one what is in a tile, and so on down
to a scalar type. Strides of all shapes count innermost scalars (section 3.3), so the address of an element is one dot product.
Threads are tensors too, with scalar type `thread` or `block` and no memory; their "address" is `threadIdx.x` or `blockIdx.x`.

What the paper leaves open, decided here:

- Omitted strides are row-major, as section 3.1 says. The indices printed in Figure 8 are column-major (T029, T030): write strides
  there. `reshape` without strides is row-major too, as in Figure 5c. In text with several shapes strides cannot be omitted.
- A shape is printed `[(4,8):(1,4)]`; `[4,8 : 1,4]` reads the same. So `[(4,2):(1,16)]` has two dimensions of 4 and 2 elements
  (quad and hi_lo in Figure 6). As the tile size of one dimension it is one dimension with two strides, as in Figure 4d.
- Figure 3d needs the stride `(2,8)` for its columns; `(1,8)` is a misprint (T021).
- So a tile of the only dimension that is hierarchical becomes several dimensions; a single integer still indexes it.
- `tile` divides the outermost shape; tiles of tiles nest to any depth.
- Extensions of the grammar: an offset and a swizzle stand before the shape, `%7:Sw<3,3,3> o 136 o [(8,8):(16,1)].fp16.SH`.

Sizes may be expressions (anything with `+ * // %`, such as `fireiron.values.expr`). A dimension of unknown size can be tiled and indexed;
an unknown size inside a hierarchical dimension cannot be tiled, and thread tensors have known sizes.

Source: Graphene (ASPLOS 2023), sections 3 and 4.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

from attrs import evolve, field, frozen

from fireiron.errors import ArgumentError, LayoutError
from fireiron.values.layout import (
    Layout,
    Swizzle,
    check_depth,
    column_major_strides,
    complement,
    composition,
    flatten,
    is_expression,
    is_int,
    logical_divide,
    merge_modes,
    product,
    read_dims,
    row_major,
    split_shape,
)
from fireiron.values.layout import parse as parse_layout

Tree: TypeAlias = Any
"""An integer, an expression, or a tuple of Trees."""
Pair: TypeAlias = tuple[Tree, Tree]
"""Sizes and strides of the same structure."""


class _Keep:
    """Keeps a dimension whole in `tile`; Graphene writes `_` (Figure 8)."""

    def __repr__(self) -> str:
        return "KEEP"


KEEP = _Keep()
_ = KEEP


# ------------------------------------------------------------------------------------------------------------------- shapes


def _leaves(tree: Tree) -> list[Any]:
    return [leaf for part in tree for leaf in _leaves(part)] if isinstance(tree, tuple) else [tree]


def _number(x: Any) -> Any:
    """An expression that can have one value only is that integer."""
    low, high = getattr(x, "low", None), getattr(x, "high", None)
    return low if is_expression(x) and is_int(low) and low == high else x


def _read_sizes(what: str, tree: object, least: int, level: int = 0) -> Tree:
    if isinstance(tree, tuple):
        check_depth(level)
        return tuple(_read_sizes(what, part, least, level + 1) for part in tree)
    value = _number(tree)
    if not is_int(value) and not is_expression(value):
        raise ArgumentError(f"a {what} is an integer, an integer expression, or a tuple of them", got=tree)
    if is_int(value) and value < least:
        raise LayoutError(f"a {what} is at least {least}", got=value)
    return value


def _read_top(what: str, tree: object, least: int) -> Tree:
    """A tuple of dimensions; a tuple alone in a tuple is the tuple itself."""
    if not isinstance(tree, tuple):
        raise ArgumentError(f"the {what}s of a shape are a tuple", got=tree, legal=f"tuples of {what}s")
    while len(tree) == 1 and isinstance(tree[0], tuple):
        tree = tree[0]
    return _read_sizes(what, tree, least)


def _read_dims(x: tuple[Tree, ...]) -> tuple[Tree, ...]:
    return tuple(_read_top("size", x, 1))


def _read_strides(x: tuple[Tree, ...]) -> tuple[Tree, ...]:
    return tuple(_read_top("stride", x, 0))


def _same_structure(a: Tree, b: Tree) -> bool:
    if isinstance(a, tuple) and isinstance(b, tuple):
        return len(a) == len(b) and all(map(_same_structure, a, b))
    return not isinstance(a, tuple) and not isinstance(b, tuple)


def _without_idle_strides(dims: Tree, stride: Tree) -> Tree:
    """Stride 0 where the size is 1, so that equal shapes compare equal however they were made."""
    if isinstance(dims, tuple):
        return tuple(map(_without_idle_strides, dims, stride))
    return 0 if is_int(dims) and dims == 1 else stride


def _times(a: Any, b: Any) -> Any:
    """The product, without factors of one that would show in printed expressions."""
    if is_int(a) and a == 1:
        return b
    if (is_int(a) and a == 0) or (is_int(b) and b == 0):
        return 0
    return a if is_int(b) and b == 1 else _number(a * b)


def _plus(a: Any, b: Any) -> Any:
    if is_int(a) and a == 0:
        return b
    return a if is_int(b) and b == 0 else _number(a + b)


def _scaled(tree: Tree, by: Any) -> Tree:
    return tuple(_scaled(part, by) for part in tree) if isinstance(tree, tuple) else _times(tree, by)


def _show(tree: Tree) -> str:
    return f"({','.join(map(_show, tree))})" if isinstance(tree, tuple) else str(tree)


@frozen(str=False)
class Shape:
    """`[dims : stride]`: sizes and strides per dimension, each an integer, an expression or a tuple (a hierarchical dimension).

    Legal when: dims and stride are congruent tuples. A dimension of one element has stride 0.

    >>> print(Shape((4, (2, 4)), (2, (1, 8))))
    [(4,(2,4)):(2,(1,8))]

    Source: Graphene Figure 2 and section 3.1.
    """

    dims: tuple[Tree, ...] = field(converter=_read_dims)
    stride: tuple[Tree, ...] = field(converter=_read_strides)

    def __attrs_post_init__(self) -> None:
        if not _same_structure(self.dims, self.stride):
            raise LayoutError(f"sizes {_show(self.dims)} and strides {_show(self.stride)} differ in structure")
        object.__setattr__(self, "stride", _without_idle_strides(self.dims, self.stride))

    @classmethod
    def row_major(cls, dims: tuple[Tree, ...]) -> Shape:
        """The simplified notation of section 3.1: strides omitted.

        Legal when: no hierarchical dimension stands beside unknown sizes.

        >>> print(Shape.row_major((16, 16)))
        [(16,16):(16,1)]
        """
        dims = _read_dims(dims)
        if not all(map(is_int, _leaves(dims))) and any(isinstance(dim, tuple) for dim in dims):
            raise LayoutError(f"[{_show(dims)}] has unknown sizes in a hierarchical dimension", hint="write its strides")
        if all(map(is_int, _leaves(dims))):
            return cls.of(row_major(dims))
        strides: list[Any] = [1]
        for dim in reversed(dims[1:]):
            strides.insert(0, _times(strides[0], dim))
        return cls(dims, tuple(strides))

    @classmethod
    def of(cls, layout: Layout) -> Shape:
        """The shape of a layout; an integer shape is one dimension, a layout under a swizzle an `ArgumentError`."""
        if not isinstance(layout, Layout):
            raise ArgumentError("a shape is made of a Layout without swizzle", got=layout)
        if isinstance(layout.shape, tuple) and isinstance(layout.stride, tuple):
            return cls(layout.shape, layout.stride)
        return cls((layout.shape,), (layout.stride,))

    @property
    def rank(self) -> int:
        """The number of dimensions; hierarchical ones count once."""
        return len(self.dims)

    @functools.cached_property
    def is_static(self) -> bool:
        """Whether all sizes and strides are known integers."""
        return all(map(is_int, _leaves(self.dims) + _leaves(self.stride)))

    def layout(self) -> Layout:
        """The layout. Legal when: all sizes and strides are known."""
        if not self.is_static:
            raise LayoutError(f"{self} has sizes that are known only at run time", legal="integers")
        return self._layout

    @functools.cached_property
    def _layout(self) -> Layout:
        return Layout(self.dims, self.stride)

    def offset(self, coordinate: Tree) -> Any:
        """The scalars between the first element and the one at a coordinate, which may hold expressions.

        Legal when: integers are inside their dimension (also where they stand for a hierarchical one); expressions are trusted.
        """
        if self.is_static:
            return self._layout.expression(coordinate)
        if not isinstance(coordinate, tuple):
            coordinate = (coordinate,)
        if len(coordinate) != self.rank:
            raise LayoutError(f"{self} has {self.rank} dimensions", got=coordinate, legal="one coordinate per dimension")
        total: Any = 0
        for part, dim, step in zip(coordinate, self.dims, self.stride, strict=True):
            total = _plus(total, self._dim_offset(part, dim, step))
        return total

    def dimensionwise(self, coordinate: Tree) -> Tree:
        """The same coordinate with one integer or expression per dimension, hierarchical ones counted colexicographically."""
        if not isinstance(coordinate, tuple):
            return coordinate
        return tuple(
            Layout(dim).expression(part) if isinstance(part, tuple) else part for part, dim in zip(coordinate, self.dims, strict=True)
        )

    def _dim_offset(self, part: Tree, dim: Tree, step: Tree) -> Any:
        if isinstance(dim, tuple):
            return Shape(dim, step).offset(part)
        if not is_int(part) and not is_expression(part):
            raise ArgumentError("a coordinate is an integer or an expression", got=part, within=str(self))
        if is_int(part) and (part < 0 or (is_int(dim) and part >= dim)):
            raise LayoutError(f"coordinate {part} is outside the dimension of {dim}", within=str(self))
        return 0 if is_int(part) and part == 0 else _times(part, step)

    def __str__(self) -> str:
        if self.rank == 0:
            return "[]"
        if self.rank == 1:
            return f"[{_show(self.dims[0])}:{_show(self.stride[0])}]"
        return f"[{_show(self.dims)}:{_show(self.stride)}]"


def _read_tile(size: object) -> Layout | _Keep:
    """A tile size: an integer, a 1-D tensor as text or Layout, or KEEP."""
    if isinstance(size, _Keep) or size == "_":
        return KEEP
    if isinstance(size, str):
        size = parse_layout(size)
    if is_int(size):
        return Layout(size, 1)  # type: ignore[arg-type]
    if not isinstance(size, Layout):
        raise ArgumentError("a tile size is an integer, a 1-D tensor such as '[2:1]', a Layout, or KEEP", got=size)
    if any(stride == 0 < extent - 1 for extent, stride in size.modes):
        raise LayoutError(f"[{size}] is no tile: it holds an element twice", legal="strides of at least 1")
    return size


def _tile_dimension(dim: Tree, step: Tree, tile: Layout | _Keep) -> tuple[Pair, Pair, bool]:
    """One dimension as (outer, inner, whether tiles stand over its end)."""
    if isinstance(tile, _Keep):
        return (1, 0), (dim, step), False
    holes = complement(tile)
    period = tile.size() * holes.size()
    if isinstance(dim, tuple):
        return _tile_hierarchical(dim, step, tile, period)
    tiles = -(-dim // period) if is_int(dim) else _number(dim if period == 1 else (dim + (period - 1)) // period)
    outer = merge_modes([*holes.modes, (tiles, period)])
    whole = _number(dim % period)
    return _scaled_modes(outer, step), (tile.shape, _scaled(tile.stride, step)), not (is_int(whole) and whole == 0)


def _scaled_modes(modes: list[tuple[Any, Any]], step: Any) -> Pair:
    if not modes:
        return 1, 0
    sizes, strides = tuple(size for size, _ in modes), tuple(_times(stride, step) for _, stride in modes)
    return (sizes[0], strides[0]) if len(modes) == 1 else (sizes, strides)


def _shape_of(pairs: Iterable[Pair]) -> Shape:
    """Dimensions side by side."""
    sizes, strides = zip(*pairs, strict=True)
    return Shape(sizes, strides)


def _tile_hierarchical(dim: Tree, step: Tree, tile: Layout, period: int) -> tuple[Pair, Pair, bool]:
    """A dimension of several strides is padded in its last one, where `dim` is not a multiple of the tile's period."""
    if not all(map(is_int, _leaves(dim) + _leaves(step))):
        raise LayoutError(f"the dimension {_show(dim)}:{_show(step)} cannot be tiled: it is hierarchical and of unknown size")
    layout = Layout(dim, step)
    size, tiles = layout.size(), -(-layout.size() // period)
    padded = _padded(layout, tiles * period)
    if padded is None:
        raise LayoutError(
            f"the dimension {layout} of {size} elements cannot be padded to {tiles} tiles [{tile}]: its last stride has no such multiple",
            legal=f"tiles whose period divides {size}",
        )
    inner, outer = logical_divide(padded, tile)
    return (outer.shape, outer.stride), (inner.shape, inner.stride), size != padded.size()


def _compact(dim: Tree) -> Tree:
    """Strides whose addresses are the coordinates of the dimension."""
    return column_major_strides(dim) if isinstance(dim, tuple) else 1


def _padded(layout: Layout, size: int) -> Layout | None:
    if size == layout.size():
        return layout
    extents = list(flatten(layout.shape))
    inner = product(tuple(extents[:-1]))
    return Layout((*extents[:-1], size // inner), flatten(layout.stride)) if size % inner == 0 else None


# ------------------------------------------------------------------------------------------------------------------ indices


@frozen(str=False)
class Index:
    """A coordinate as a function of the linear index: `sum((x / divisor) % size * weight)`.

    `str` is C, calling it evaluates it: for integers, arrays or expressions.

    >>> i = Index("threadIdx.x", ((16, 2, 1),))
    >>> print(i, "|", i(17))
    (threadIdx.x / 16) % 2 | 1

    Source: Graphene section 4, grey boxes of Figures 5 and 6.
    """

    variable: str
    terms: tuple[tuple[int, int | None, int], ...]

    def __call__(self, x: Any) -> Any:
        """The coordinate that unit `x` has."""
        if not is_int(x) and not is_expression(x):
            raise ArgumentError(f"{self.variable} is an integer or an expression", got=x)
        total: Any = 0
        for divisor, size, weight in self.terms:
            digit = x if divisor == 1 else x // divisor
            digit = digit if size is None else digit % size
            total = _plus(total, _times(digit, weight))
        return total

    def __str__(self) -> str:
        return " + ".join(self._term(*term) for term in self.terms) or "0"

    def _term(self, divisor: int, size: int | None, weight: int) -> str:
        text = self.variable if divisor == 1 else f"{self.variable} / {divisor}"
        if size is not None:
            text = f"{text} % {size}" if divisor == 1 else f"({text}) % {size}"
        if weight != 1:
            return f"({text}) * {weight}"
        return f"({text})" if len(self.terms) > 1 else text


# ------------------------------------------------------------------------------------------------------------------ tensors


@frozen
class Guard:
    """An access is legal only where `index.address(...)` of the same coordinates is less than `bound`.

    `index` is a tensor of the same nesting whose addresses are coordinates in the dimension that was tiled.
    """

    index: NestedTensor
    bound: Any


_UNITS = {"thread": "threadIdx.x", "block": "blockIdx.x"}
_SCALAR = re.compile(r"[a-z][a-z0-9_]*")
_MEMORY = re.compile(r"[A-Z][A-Z0-9]*(<[0-9]+(,[0-9]+)*>)?")
_NAME = re.compile(r"[%#@][A-Za-z0-9_]+")


@frozen(str=False)
class NestedTensor:
    """`Name : Shape . ElementType . Memory`, with the nested shapes of the element type as a tuple, outermost first.

    A value of the notation, whose elements may be tiles or threads; the arrays that kernels work on are `fireiron.Tensor`.

    Args:
        name: `%data`, `#threads`, `@scalar`, or "" for a tensor without name.
        shapes: from the outermost arrangement to the innermost tile; `()` is a scalar.
        element: the scalar type (`fp16`), or `thread` or `block`.
        memory: `GL`, `SH`, `RF`, ..., None where it is omitted; threads have none.
        offset: scalars before the first element, an integer or an expression.
        swizzle: applied to the whole address.
        guards: where tiles may stand over the end of a dimension, what an access must be predicated with (section 3.4).
            Not part of the text, nor of equality; made by `tile`.

    >>> a = parse("%A:[4,(2,4) : 2,(1,8)].fp32.SH")
    >>> print(a, a.address(0, 3), a.address(0, (1, 1)))
    %A:[(4,(2,4)):(2,(1,8))].fp32.SH 9 9

    Source: Graphene section 3.1 and Figure 2; section 4 for threads.
    """

    name: str
    shapes: tuple[Shape, ...]
    element: str
    memory: str | None = None
    offset: Any = 0
    swizzle: Swizzle | None = None
    guards: tuple[Guard, ...] = field(default=(), eq=False)

    def __attrs_post_init__(self) -> None:
        if not isinstance(self.shapes, tuple) or not all(isinstance(shape, Shape) and shape.rank for shape in self.shapes):
            raise ArgumentError("the shapes of a tensor are a tuple of Shapes with dimensions; () for a scalar", got=self.shapes)
        if not isinstance(self.element, str) or not _SCALAR.fullmatch(self.element):
            raise ArgumentError("the element type is a scalar type", got=self.element, legal="fp16 fp32 i32 ... thread block")
        self._check_labels()
        _read_sizes("offset", self.offset, 0)
        if isinstance(self.offset, tuple):
            raise ArgumentError("an offset is one integer or expression", got=self.offset)
        if self.swizzle is not None and (not isinstance(self.swizzle, Swizzle) or self.is_threads):
            raise ArgumentError("a swizzle is a Swizzle, and permutes data only", got=self.swizzle)
        if not isinstance(self.guards, tuple) or not all(isinstance(guard, Guard) for guard in self.guards):
            raise ArgumentError("guards are a tuple of Guards", got=self.guards)

    def _check_labels(self) -> None:
        if not isinstance(self.name, str) or (self.name and not _NAME.fullmatch(self.name)):
            raise ArgumentError("a tensor's name is a prefix and a word", got=self.name, legal="%data #threads @scalar")
        if self.name.startswith("#" if not self.is_threads else ("%", "@")):
            raise ArgumentError(f"the name {self.name} does not suit {self.element}", legal="# for thread and block, % and @ for data")
        if self.name.startswith("@") and self.shapes:
            raise ArgumentError(f"{self.name} is the name of a scalar, and this has {len(self.shapes)} shapes", legal="%data")
        if self.memory is not None and (not isinstance(self.memory, str) or not _MEMORY.fullmatch(self.memory)):
            raise ArgumentError("a memory is a label in capitals", got=self.memory, legal="GL SH RF")
        if self.memory is not None and self.is_threads:
            raise ArgumentError("threads live in no memory", got=self.memory, legal=[None])

    # ------------------------------------------------------------------------------------------------------------ questions

    @property
    def is_threads(self) -> bool:
        """Whether this is a tensor of threads or blocks."""
        return self.element in _UNITS

    @property
    def shape(self) -> Shape:
        """The outermost shape; a scalar has one of rank 0."""
        return self.shapes[0] if self.shapes else Shape((), ())

    @property
    def rank(self) -> int:
        """The number of dimensions of the outermost shape."""
        return self.shape.rank

    def element_type(self) -> str:
        """The recursive element type: the inner shapes and the scalar type.

        >>> parse("%B:[2,2 : 2,16].[2,4 : 1,4].fp32").element_type()
        '[(2,4):(1,4)].fp32'
        """
        return ".".join([*map(str, self.shapes[1:]), self.element])

    def address(self, *coordinates: Tree) -> Any:
        """The address of a scalar in scalars: one coordinate per shape, outermost first; for a single shape also one per dimension.

        Legal when: integers are inside their dimension; expressions are trusted. Swizzled expressions need `^ &` too.

        >>> parse("%B:[2,2 : 2,16].[2,4 : 1,4].fp32").address((1, 0), (0, 3))
        14

        Source: Graphene section 3.2 (dot product), 3.3 (strides count innermost scalars).
        """
        if len(self.shapes) == 1 and len(coordinates) != 1:
            coordinates = (coordinates,)
        if len(coordinates) != len(self.shapes):
            raise LayoutError(f"{self} has {len(self.shapes)} nested shapes", got=coordinates, legal="one coordinate per shape")
        total = self.offset
        for coordinate, shape in zip(coordinates, self.shapes, strict=True):
            total = _plus(total, shape.offset(coordinate))
        return total if self.swizzle is None else self.swizzle.expression(total)

    @property
    def partial(self) -> bool:
        """Whether some coordinates may lie outside the tensor that was tiled, so that accesses need a predicate."""
        return bool(self.guards)

    def bounds(self, *coordinates: Tree) -> tuple[Pair, ...]:
        """Pairs (index, bound) for the coordinates of `address`: the access is legal where every index is less than its bound.

        >>> parse("[1023].fp32").tile(128).bounds(7, 127)
        ((1023, 1023),)

        Source: Graphene section 3.4: "subsequent accesses ... must be predicated".
        """
        if len(self.shapes) == 1 and len(coordinates) != 1:
            coordinates = (coordinates,)
        self.address(*coordinates)
        if not self.guards:
            return ()
        flat = [shape.dimensionwise(part) for part, shape in zip(coordinates, self.shapes, strict=True)]
        return tuple((guard.index.address(*flat), guard.bound) for guard in self.guards)

    def inside(self, *coordinates: Tree) -> bool:
        """Whether an element with integer coordinates exists: false in the overhang of partial tiles.

        Legal when: coordinates and bounds are known integers.

        >>> [parse("[5].fp32").tile(4).inside(1, i) for i in range(4)]
        [True, False, False, False]
        """
        pairs = self.bounds(*coordinates)
        if not all(is_int(x) for pair in pairs for x in pair):
            raise LayoutError(f"whether {coordinates} is inside {self} is known only at run time", hint="use bounds()")
        return all(index < bound for index, bound in pairs)

    # ---------------------------------------------------------------------------------------------------------- derivations

    def named(self, name: str) -> NestedTensor:
        """The same tensor under another name."""
        return evolve(self, name=name)

    def tile(self, *sizes: object) -> NestedTensor:
        """Groups the elements of the outermost shape into tiles, logically adjacent or as the sizes' strides say.

        A size per dimension: `2`, `"[2:1]"`, `"[(2,2):(1,4)]"`, a Layout, or KEEP (`"_"`) for the whole dimension.
        Legal when: each size has a complement (its strides divide), and no tile of threads stands over the end.
        Data tiles that do not divide are over-approximated: the last ones are marked `partial`.

            rewrite: [4,8 : 1,4].fp32  -->  [2,2 : 2,16].[2,4 : 1,4].fp32        tile("[2:1]", "[4:1]")

        >>> a = parse("%A:[4,8 : 1,4].fp32")
        >>> print(a.tile("[2:2]", "[(2,2):(1,4)]"))
        %A:[(2,2):(1,8)].[(2,(2,2)):(2,(4,16))].fp32
        >>> print(parse("[1023].fp32").tile(128))
        [8:128].[128:1].fp32

        Source: Graphene sections 3.3 and 3.4, Figures 4b to 4d.
        """
        if len(sizes) != self.rank or not self.shapes:
            raise LayoutError(f"{len(sizes)} tile sizes for {self} of {self.rank} dimensions", legal="one size per dimension, at least one")
        tiles = [_read_tile(size) for size in sizes]
        shapes, overhangs = self._tiled(tiles)
        if self.is_threads and any(overhangs):
            raise LayoutError(f"tiles {sizes} do not divide the {self.element}s of {self}", legal="tiles that divide: units are not padded")
        kept = [evolve(guard, index=evolve(guard.index, shapes=guard.index._tiled(tiles)[0])) for guard in self.guards]
        new = [self._guard(k, tiles) for k, overhang in enumerate(overhangs) if overhang]
        return evolve(self, shapes=shapes, guards=(*kept, *new))

    def _tiled(self, tiles: list[Layout | _Keep]) -> tuple[tuple[Shape, ...], list[bool]]:
        """The shapes after tiling, and for each dimension whether tiles stand over its end."""
        parts = [_tile_dimension(dim, step, tile) for dim, step, tile in zip(self.shape.dims, self.shape.stride, tiles, strict=True)]
        outer, inner = _shape_of(part[0] for part in parts), _shape_of(part[1] for part in parts)
        return (outer, inner, *self.shapes[1:]), [part[2] for part in parts]

    def _guard(self, k: int, tiles: list[Layout | _Keep]) -> Guard:
        """The coordinate in dimension k of the outermost shape, once tiled, and the dimension's size.

        Made from the dimensions, not from a Shape: in the overhang of a dimension of one element the stride matters.
        """
        dims = self.shape.dims
        steps = [_compact(dim) if i == k else _scaled(dim, 0) for i, dim in enumerate(dims)]
        parts = [_tile_dimension(dim, step, tile) for dim, step, tile in zip(dims, steps, tiles, strict=True)]
        inner = tuple(Shape(shape.dims, _scaled(shape.dims, 0)) for shape in self.shapes[1:])
        index = NestedTensor("", (_shape_of(part[0] for part in parts), _shape_of(part[1] for part in parts), *inner), "i32")
        return Guard(index, product(dims[k]) if isinstance(dims[k], tuple) else dims[k])

    def reshape(self, depth: int, shape: object) -> NestedTensor:
        """Arranges the units of one nesting level in another shape: sizes (row-major), `"[2,2 : 2,1]"` or a Layout.

        Legal when: this is a thread tensor and the new shape numbers all units of that level, each once.

            rewrite: [4:8].[8:1].thread  -->  [2,2 : 16,8].[8:1].thread        reshape(0, "[2,2 : 2,1]")

        >>> print(parse("#5:[4:8].[8:1].thread").reshape(0, (2, 2)))
        #5:[(2,2):(16,8)].[8:1].thread

        Source: Graphene section 4, Figure 5c.
        """
        if not self.is_threads:
            raise LayoutError(f"reshape of {self}: only thread tensors are reshaped", hint="tile data")
        if not is_int(depth):
            raise ArgumentError("the depth of a reshape is an integer", got=depth, legal=range(len(self.shapes)))
        if not 0 <= depth < len(self.shapes):
            raise LayoutError(f"{self} has no nesting level {depth}", legal=range(len(self.shapes)))
        old, new = self.shapes[depth].layout(), _read_arrangement(shape)
        if new.size() != old.size() or not new.is_bijective():
            raise LayoutError(
                f"reshape of {self.shapes[depth]} to [{new}]: not every unit exactly once", legal=f"{old.size()} units, compact strides"
            )
        return evolve(self, shapes=(*self.shapes[:depth], Shape.of(composition(old, new)), *self.shapes[depth + 1 :]))

    def scalar(self) -> NestedTensor:
        """A single block or thread of a thread tensor, as one unit sees itself: `[].thread`. Legal when: this is no data.

        >>> print(parse("#5:[8,8 : 1,8].thread").scalar())
        #5:[].thread

        Source: Graphene Figure 8, lines 31 and 32.
        """
        if not self.is_threads:
            raise LayoutError(f"{self} is data: a single element is chosen by a coordinate", hint="index it: t[i, j]")
        return evolve(self, shapes=(), offset=0)

    def indices(self, extent: int | None = None) -> tuple[tuple[Index, ...], ...]:
        """The coordinates of the executing unit: per nesting level, per dimension, an index expression of threadIdx.x or blockIdx.x.

        With the number of units launched as `extent`, a remainder that cannot matter is left out.
        Legal when: this is a whole thread tensor (not indexed) in which each unit has exactly one place: sorted by stride,
        each stride is a multiple of the size times stride before.

        >>> (grp_m, grp_n), (tidx,) = parse("#6:[2,2 : 16,8].[8:1].thread").indices()
        >>> print(grp_m, "|", grp_n, "|", tidx)
        (threadIdx.x / 16) % 2 | (threadIdx.x / 8) % 2 | threadIdx.x % 8

        Source: Graphene section 4, Figures 1d, 5, 6 and 8.
        """
        if not self.is_threads:
            raise LayoutError(f"{self} is data: only threads know their index")
        if not is_int(self.offset) or self.offset != 0:
            raise LayoutError(f"{self} is a part of its units, and has no indices of its own", hint="ask the tensor before it was indexed")
        if extent is not None and (not is_int(extent) or extent < 1):
            raise ArgumentError("the extent is the number of units launched", got=extent, legal="int >= 1")
        self._check_digits()
        return tuple(
            tuple(self._index(dim, step, extent) for dim, step in zip(shape.dims, shape.stride, strict=True)) for shape in self.shapes
        )

    def _check_digits(self) -> None:
        modes = [mode for shape in self.shapes for mode in shape.layout().modes if mode[0] > 1]
        period = 1
        for stride, size in sorted((stride, size) for size, stride in modes):
            if stride == 0 or stride % period:
                raise LayoutError(f"{self}: units have no single place, [{size}:{stride}] overlaps a period of {period}")
            period = stride * size

    def _index(self, dim: Tree, step: Tree, extent: int | None) -> Index:
        terms, weight = [], 1
        for size, stride in zip(_leaves(dim), _leaves(step), strict=True):
            if size > 1:
                redundant = extent is not None and extent <= size * stride
                terms.append((stride, None if redundant else size, weight))
            weight *= size
        return Index(_UNITS[self.element], tuple(terms))

    def __getitem__(self, coordinate: Tree) -> NestedTensor:
        """One tile (or scalar): removes the outermost shape and adds its offset.

        Legal when: one coordinate per dimension, or a single one that counts colexicographically; integers inside, expressions
        trusted.

        >>> print(parse("%7:[2,2 : 128,8].[8,8 : 16,1].fp16.SH")[1, 1])
        %7:136 o [(8,8):(16,1)].fp16.SH

        Source: Graphene Figures 1d and 8.
        """
        if not self.shapes:
            raise LayoutError(f"{self} is a scalar and has no elements")
        offset = _plus(self.offset, self.shape.offset(coordinate))
        guards = tuple(evolve(guard, index=guard.index[self.shape.dimensionwise(coordinate)]) for guard in self.guards)
        return evolve(self, shapes=self.shapes[1:], offset=offset, guards=guards)

    def __iter__(self) -> Any:
        raise ArgumentError("a tensor is not iterated", hint="index it: t[i, j]")

    def __str__(self) -> str:
        front = [str(self.swizzle)] if self.swizzle is not None else []
        front += [] if is_int(self.offset) and self.offset == 0 else [str(self.offset)]
        shapes = ".".join(map(str, self.shapes)) if self.shapes else "[]"
        body = " o ".join([*front, ".".join([shapes, self.element, *([self.memory] if self.memory else [])])])
        return f"{self.name}:{body}" if self.name else body


def _read_arrangement(shape: object) -> Layout:
    if isinstance(shape, str):
        shape = parse_layout(shape)
    if isinstance(shape, tuple):
        return row_major(shape)
    if not isinstance(shape, Layout):
        raise ArgumentError("a new shape is a tuple of sizes, text such as '[2,2 : 2,1]', or a Layout", got=shape)
    return shape


# ------------------------------------------------------------------------------------------------------------------ parsing


def parse(text: str, symbols: Mapping[str, Any] | None = None) -> NestedTensor:
    """The tensor that Graphene's notation denotes; `parse(str(t)) == t` if its sizes are integers or names in `symbols`.

    Omitted strides are row-major, for a single shape; with several shapes they are refused, since they depend on what was tiled.

    >>> print(parse("%A:[16,16].fp16.SH"))
    %A:[(16,16):(16,1)].fp16.SH
    >>> print(parse("#4:[32:1].thread"), parse("[].fp16"))
    #4:[32:1].thread [].fp16

    Source: Graphene Figure 2, sections 3.1 and 4.
    """
    if not isinstance(text, str):
        raise ArgumentError("a tensor is parsed from text", got=text)
    match = re.fullmatch(r"\s*(?:([%#@]\w+)\s*:)?(.*)", text, flags=re.DOTALL | re.ASCII)
    name, rest = (match[1] or "", match[2]) if match else ("", text)
    *front, body = [part.strip() for part in rest.split(" o ")]
    swizzle, offset = _read_front(front, symbols or {})
    found = re.fullmatch(r"((?:\[[^\[\]]*\]\s*\.\s*)+)([a-z]\w*)(?:\s*\.\s*(\S+))?", body, flags=re.ASCII)
    if found is None:
        raise LayoutError(f"{text!r} is no tensor", legal="name:[dims:stride].type.memory, as %A:[(16,16):(16,1)].fp16.SH")
    inner = re.findall(r"\[([^\[\]]*)\]", found[1])
    shapes = () if [part.strip() for part in inner] == [""] else tuple(_read_shape(part, len(inner), symbols or {}) for part in inner)
    return NestedTensor(name, shapes, found[2], found[3], offset, swizzle)


def _read_front(parts: list[str], symbols: Mapping[str, Any]) -> tuple[Swizzle | None, Any]:
    swizzle: Swizzle | None = None
    if parts and (match := re.fullmatch(r"Sw<([0-9]+),([0-9]+),(-?[0-9]+)>", parts[0])):
        swizzle, parts = Swizzle(*map(int, match.groups())), parts[1:]
    if len(parts) > 1:
        raise LayoutError(f"what is {' o '.join(parts)!r} before a shape?", legal="Sw<bits,base,shift> o offset o [...]")
    return swizzle, _read_leaf(parts[0], symbols) if parts else 0


def _read_shape(text: str, levels: int, symbols: Mapping[str, Any]) -> Shape:
    dims, stride = split_shape(text)
    sizes = _as_tuple(read_dims(dims, lambda leaf: _read_leaf(leaf, symbols)))
    if stride is not None:
        return Shape(sizes, _as_tuple(read_dims(stride, lambda leaf: _read_leaf(leaf, symbols))))
    if levels > 1:
        raise LayoutError(f"[{text}] stands among several shapes and has no strides", hint="write them: they depend on what was tiled")
    return Shape.row_major(sizes)


def _as_tuple(tree: Tree) -> tuple[Tree, ...]:
    return tree if isinstance(tree, tuple) else (tree,)


def _read_leaf(text: str, symbols: Mapping[str, Any]) -> Any:
    text = text.strip()
    if re.fullmatch("[0-9]+", text):
        return int(text)
    if text not in symbols:
        raise LayoutError(f"{text!r} is neither an integer nor a known symbol", legal=list(symbols) or "integers")
    return symbols[text]
