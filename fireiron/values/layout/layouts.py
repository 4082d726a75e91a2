"""The classes `Layout` and `ComposedLayout` (a layout under a swizzle), and functions that create them."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias, cast

from attrs import field, frozen

from fireiron.errors import ArgumentError, LayoutError
from fireiron.values.expr import Expr
from fireiron.values.layout.int_tuples import (
    Digit,
    IntTuple,
    Mode,
    as_shape,
    as_stride,
    check_tree,
    column_major_strides,
    congruent,
    depth,
    digits_of,
    flatten,
    idx2crd,
    is_int,
    offset_of,
    product,
    rank,
    require_integer,
    row_major_strides,
    shown,
    sum_of_digits,
    summed,
    unflatten,
)
from fireiron.values.layout.swizzles import Swizzle

MOST_OFFSETS = 1 << 23
"""Maximum number of offsets of a layout that are listed: some hundred megabytes."""


@frozen(repr=False, str=False)
class Layout:
    """A function from coordinates to offsets, written `shape:stride`.

    Args:
        shape: an integer or a nested tuple of integers, all at least 1; `()` is the scalar.
        stride: the same structure, all at least 0. Default: compact, leftmost mode contiguous.

    Leaves may also be index expressions, for sizes and strides known only at run time. Such a layout supports its text, `size`,
    `cosize`, `digits` and `address`; all other operations require numbers (`evaluated`).

    Legal when: shape and stride are congruent.

    >>> print(Layout((4, 8)))
    (4,8):(1,4)
    >>> c = Layout((4, (2, 4)), (2, (1, 8)))
    >>> c(0, 3), c(12), c(0, (1, 1)), c[1](3), c.size(), c.cosize()
    (9, 9, 9, 9, 32, 32)

    Source: CuTe docs, 01_layout; Graphene sections 3.1 and 3.2.
    """

    shape: IntTuple = field(converter=as_shape)
    stride: IntTuple = field(default=None, converter=as_stride)

    def __attrs_post_init__(self) -> None:
        if self.stride is None:
            object.__setattr__(self, "stride", column_major_strides(self.shape))
        elif not congruent(self.shape, self.stride):
            raise LayoutError(
                f"shape {shown(self.shape)} and stride {shown(self.stride)} differ in structure",
                legal=f"strides like {shown(column_major_strides(self.shape))}",
            )

    @property
    def leaves(self) -> list[tuple[int | Expr, int | Expr]]:
        """The leaves as (size, stride), left to right."""
        return list(zip(flatten(self.shape), flatten(self.stride), strict=True))

    @property
    def modes(self) -> list[Mode]:
        """The leaves as (size, stride) integers; a layout with other leaves is refused."""
        return cast("list[Mode]", self.require_static().leaves)

    @functools.cached_property
    def static(self) -> bool:
        """Whether all leaves are integers."""
        return all(map(is_int, (*flatten(self.shape), *flatten(self.stride))))

    def evaluated(self, sizes: Mapping[str, int]) -> Layout:
        """The layout with numbers in place of expressions.

        >>> from fireiron import sym
        >>> ld = sym("ld")
        >>> str(Layout((8, 4), (1, ld))), str(Layout((8, 4), (1, ld)).evaluated({"ld": 12}))
        ('(8,4):(1,ld)', '(8,4):(1,12)')
        """
        if self.static:
            return self
        shape, stride = (
            unflatten([int(leaf.evaluate(sizes)) if isinstance(leaf, Expr) else leaf for leaf in flatten(tree)], like=tree)
            for tree in (self.shape, self.stride)
        )
        return Layout(shape, stride)

    @functools.cached_property
    def digits(self) -> tuple[Digit, ...]:
        """The digits of an integer coordinate, as `Digit`s; the outermost leaf is open, so coordinates may exceed its size."""
        return digits_of(self.leaves)

    def address(self, *coordinates: Any) -> Any:
        """The offset of one coordinate per mode: integers, expressions or integer arrays. They are not checked.

        >>> from fireiron import sym
        >>> print(Layout((8, 4), (1, sym("ld"))).address(2, 3))
        ld * 3 + 2
        """
        modes = self if self.rank() != 1 or isinstance(self.shape, tuple) else (self,)
        if len(coordinates) != self.rank():
            raise LayoutError(f"{self}: {len(coordinates)} coordinates", got=coordinates, legal=f"one for each mode, {self.rank()} of them")
        return summed([sum_of_digits(coordinate, mode.digits) for coordinate, mode in zip(coordinates, modes, strict=True)])

    def size(self) -> int:
        """The number of elements of the domain."""
        return product(self.shape)

    def cosize(self) -> int:
        """The largest offset plus one: the number of elements of a buffer for it."""
        return 1 + sum((size - 1) * stride for size, stride in cast("list[Mode]", self.leaves))

    def rank(self) -> int:
        """The number of modes."""
        return rank(self.shape)

    def depth(self) -> int:
        """The nesting depth of the modes."""
        return depth(self.shape)

    def __call__(self, *coordinate: IntTuple) -> int:
        """The offset of an integer, a flat or a hierarchical coordinate; refused outside the domain."""
        return cast(int, offset_of(_one(coordinate), self.require_static().shape, self.stride, symbolic=False))

    def expression(self, *coordinate: Any) -> Any:
        """The offset of a coordinate that may contain expressions: anything with `+ * // %`, also integer arrays.

        Legal when: each expression is in the range of its mode (not checked); plain integers are checked.
        """
        return offset_of(_one(coordinate), self.require_static().shape, self.stride, symbolic=True)

    def require_static(self) -> Layout:
        """Return this layout; refuse it if a leaf is known only at run time."""
        for leaf in () if self.static else (*flatten(self.shape), *flatten(self.stride)):
            require_integer(leaf)
        return self

    def coordinate(self, index: int) -> IntTuple:
        """The hierarchical coordinate of an integer coordinate."""
        return idx2crd(index, self.require_static().shape)

    def offsets(self) -> list[int]:
        """All offsets in the order of the integer coordinate.

        >>> Layout((2, 3), (3, 1)).offsets()
        [0, 3, 1, 4, 2, 5]

        Raises: LayoutError if there are more than `MOST_OFFSETS`.
        """
        if self.static and self.size() > MOST_OFFSETS:
            raise LayoutError(f"{self.size()} offsets are too many to list", legal=f"at most {MOST_OFFSETS}", within=str(self))
        result = [0]
        for size, stride in self.modes:
            result = [base + i * stride for i in range(size) for base in result]
        return result

    def is_injective(self) -> bool:
        """Whether no two coordinates share an offset."""
        if self.require_static().size() > self.cosize():
            return False
        reach = 1
        for stride, size in sorted((stride, size) for size, stride in self.modes if size > 1):
            if stride < reach:
                return len(set(self.offsets())) == self.size()
            reach += (size - 1) * stride
        return True

    def is_bijective(self) -> bool:
        """Whether the offsets are exactly `range(size)`, each once."""
        return self.require_static().cosize() == self.size() and self.is_injective()

    def swizzled(self, swizzle: Swizzle, offset: int = 0) -> ComposedLayout:
        """The composition of this layout, the addition of `offset`, and the swizzle.

        >>> print(Layout((8, 64), (64, 1)).swizzled(Swizzle(3, 3, 3)))
        Sw<3,3,3> o 0 o (8,64):(64,1)
        """
        return ComposedLayout(swizzle, offset, self)

    def __len__(self) -> int:
        return self.rank()

    def __iter__(self) -> Iterator[Layout]:
        return (self[i] for i in range(self.rank()))

    def __getitem__(self, mode: int | tuple[int, ...]) -> Layout:
        """Mode `i`, or mode `j` of mode `i` for `layout[i, j]`."""
        if isinstance(mode, tuple) and all(map(is_int, mode)):
            return functools.reduce(lambda layout, i: layout[i], mode, self)
        if isinstance(mode, tuple) or not is_int(mode):
            raise ArgumentError("a mode is named by its position", got=mode, legal=range(self.rank()), within=str(self))
        if not 0 <= mode < self.rank():
            raise LayoutError(f"there is no mode {mode}", legal=range(self.rank()), within=str(self))
        if isinstance(self.shape, tuple) and isinstance(self.stride, tuple):
            return Layout(self.shape[mode], self.stride[mode])
        return self

    def __str__(self) -> str:
        return f"{shown(self.shape)}:{shown(self.stride)}"

    def __repr__(self) -> str:
        return f"Layout({self.shape!r}, {self.stride!r})"


def _one(coordinate: tuple[Any, ...]) -> Any:
    """`layout(x)` means `x`; `layout(x, y)` means `(x, y)`."""
    return coordinate[0] if len(coordinate) == 1 else coordinate


@frozen(repr=False, str=False)
class ComposedLayout:
    """A layout under a swizzle: `R(c) = swizzle(offset + layout(c))`.

    The offset is added before the swizzle, because a tile of a swizzled buffer may begin anywhere in the swizzle's period.

    >>> s = ComposedLayout(Swizzle(2, 0, 3), 0, Layout((4, 8), (8, 1)))
    >>> s(1, 0), s(1, 1), s.cosize(), s.is_bijective()
    (9, 8, 32, True)

    Source: CuTe `ComposedLayout`.
    """

    swizzle: Swizzle
    offset: int
    layout: Layout

    def __attrs_post_init__(self) -> None:
        if not isinstance(self.swizzle, Swizzle):
            raise ArgumentError("a composed layout begins with a Swizzle", got=self.swizzle)
        if not is_int(self.offset):
            raise ArgumentError("the offset of a composed layout is an integer", got=self.offset, legal="int >= 0")
        if self.offset < 0:
            raise LayoutError("the offset of a composed layout is at least 0", got=self.offset, legal="int >= 0")
        check_layout("a swizzle is composed with", self.layout)

    @property
    def shape(self) -> IntTuple:
        """The shape of the inner layout."""
        return self.layout.shape

    def size(self) -> int:
        """The number of elements of the domain."""
        return self.layout.size()

    def cosize(self) -> int:
        """The largest offset plus one, exactly (by enumeration, unless the image consists of complete periods)."""
        if self.layout.is_bijective() and self.offset % self.swizzle.size() == 0 and self.size() % self.swizzle.size() == 0:
            return self.offset + self.size()
        return 1 + max(self.offsets())

    def rank(self) -> int:
        """The number of modes."""
        return self.layout.rank()

    def depth(self) -> int:
        """The nesting depth of the modes."""
        return self.layout.depth()

    def __call__(self, *coordinate: IntTuple) -> int:
        """The offset of an integer, a flat or a hierarchical coordinate."""
        return self.swizzle(self.offset + self.layout(*coordinate))

    def expression(self, *coordinate: Any) -> Any:
        """The offset of a coordinate that may hold expressions with `^ &` besides `+ * // %`."""
        return self.swizzle.expression(summed([self.offset, self.layout.expression(*coordinate)]))

    def coordinate(self, index: int) -> IntTuple:
        """The hierarchical coordinate of an integer coordinate."""
        return self.layout.coordinate(index)

    def offsets(self) -> list[int]:
        """All offsets in the order of the integer coordinate."""
        return [self.swizzle.expression(self.offset + x) for x in self.layout.offsets()]

    def is_injective(self) -> bool:
        """Whether no two coordinates share an offset."""
        return self.layout.is_injective()

    def is_bijective(self) -> bool:
        """Whether the offsets are exactly `range(size)`, each once."""
        return self.is_injective() and self.cosize() == self.size()

    def __len__(self) -> int:
        return self.rank()

    def __iter__(self) -> Iterator[ComposedLayout]:
        return (self[i] for i in range(self.rank()))

    def __getitem__(self, mode: int | tuple[int, ...]) -> ComposedLayout:
        """A mode of the inner layout, under the same swizzle and offset."""
        return ComposedLayout(self.swizzle, self.offset, self.layout[mode])

    def __str__(self) -> str:
        return f"{self.swizzle} o {self.offset} o {self.layout}"

    def __repr__(self) -> str:
        return f"ComposedLayout({self.swizzle!r}, {self.offset!r}, {self.layout!r})"


Tiler: TypeAlias = "int | Layout | tuple[Tiler, ...]"
"""The right operand of a composition or division: a layout, `n` for `n:1`, or a tuple with one tiler per mode."""


def check_layout(what: str, x: object) -> Layout:
    """Return `x` if it is a layout without swizzle, else raise an error; `what` is the beginning of its message."""
    if isinstance(x, ComposedLayout):
        raise LayoutError(f"{what} a layout without swizzle", got=x, hint="use its .layout, and put the swizzle outside")
    if not isinstance(x, Layout):
        raise ArgumentError(f"{what} a Layout", got=x)
    x.require_static()
    return x


def as_tiler(x: object) -> Layout | tuple[Tiler, ...]:
    """Return a tiler with integers converted to layouts; elements of a tuple are checked when their mode is processed."""
    if isinstance(x, tuple):
        return x
    if isinstance(x, (Layout, ComposedLayout)):
        return check_layout("a tiler is", x)
    if not is_int(x):
        raise ArgumentError("a tiler is a Layout, an integer, or a tuple of tilers, one per mode", got=x)
    if cast(int, x) < 1:
        raise LayoutError("a tile has at least one element", got=x, legal="int >= 1")
    return Layout(cast(int, x), 1)


def row_major(*shape: IntTuple) -> Layout:
    """The compact layout whose rightmost mode is contiguous.

    >>> print(row_major(4, 8))
    (4,8):(8,1)

    Source: Graphene Figure 3b.
    """
    tree = check_tree("shape", _one(shape), 1)
    return Layout(tree, row_major_strides(tree))


def column_major(*shape: IntTuple) -> Layout:
    """The compact layout whose leftmost mode is contiguous.

    >>> print(column_major(4, 8))
    (4,8):(1,4)

    Source: Graphene Figure 3a.
    """
    return Layout(_one(shape))


def make_layout(*modes: Layout) -> Layout:
    """The layout whose modes are the given layouts.

    >>> print(make_layout(Layout(4, 8), Layout((2, 2))))
    (4,(2,2)):(8,(1,2))

    Source: CuTe docs, 01_layout, "Concatenation".
    """
    layouts = [check_layout("the modes of a layout are each", mode) for mode in modes]
    return Layout(tuple(layout.shape for layout in layouts), tuple(layout.stride for layout in layouts))


def crd2idx(coordinate: IntTuple, shape: IntTuple, stride: IntTuple | None = None) -> int:
    """The offset of a coordinate: the sum of coordinate times stride over the leaves.

    Where the shape has a tuple, an integer may be the coordinate of the whole mode. Without strides, the result is the integer coordinate.
    Legal when: the coordinate is an integer or a tuple of the shape's length, and every integer is inside its mode.

    >>> crd2idx((0, 3), (4, (2, 4)), (2, (1, 8)))
    9

    Source: CuTe docs, 01_layout, "Index mapping"; Graphene section 3.2.
    """
    return Layout(shape, stride)(coordinate)
