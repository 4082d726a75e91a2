"""Layouts `shape:stride` with the algebra of CuTe and Graphene section 3, and XOR swizzles.

A layout is a function from coordinates to offsets. Its shape is a tuple of integers or of such tuples, its stride has the
same structure. An integer coordinate counts colexicographically (the leftmost mode first), as in CuTe; so every layout is
also a function on `range(size)`, and that is its *domain*.

Refuse or be right: an operation raises `LayoutError` (or `ArgumentError` for a wrong type), or its result obeys the law in its
docstring for every element of the domain. Nothing here is approximate: sizes that do not divide are refused.

Sources: the CuTe documentation (`media/docs/cpp/cute/01_layout.md`, `02_layout_algebra.md` of NVIDIA CUTLASS) and Graphene
(ASPLOS 2023), sections 3.1 to 3.3. Written from their definitions.
"""

from __future__ import annotations

import functools
import itertools
import numbers
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Concatenate, ParamSpec, Protocol, TypeAlias, cast, overload

from attrs import field, frozen

from fireiron.errors import ArgumentError, LayoutError

IntTuple: TypeAlias = "int | tuple[IntTuple, ...]"
Mode: TypeAlias = tuple[int, int]
"""One leaf of a layout: size, stride."""


# ---------------------------------------------------------------------------------------------------------------- IntTuples


def is_int(x: object) -> bool:
    """Whether `x` is an integer and not a bool.

    >>> is_int(3), is_int(True), is_int(3.0)
    (True, False, False)
    """
    return isinstance(x, int) and not isinstance(x, bool)


def is_expression(x: object) -> bool:
    """Whether `x` can stand for an unknown integer: it has `+ * // %`, and is no plain number and no array of anything else.

    >>> is_expression(3), is_expression(2.5), is_expression("M")
    (False, False, False)
    """
    if isinstance(x, (numbers.Number, str, bytes, tuple, list)) or not all(
        hasattr(x, f"__{operation}__") for operation in ("add", "mul", "floordiv", "mod")
    ):
        return False
    return getattr(getattr(x, "dtype", None), "kind", "i") in "iu"


MAX_DEPTH = 32
"""How deep tuples may nest: far above any use, far below Python's recursion limit."""


def _check_tree(what: str, x: object, least: int, level: int = 0) -> IntTuple:
    """`x` itself if it is an integer of at least `least`, or a tuple of such."""
    if isinstance(x, tuple):
        check_depth(level)
        return tuple(_check_tree(what, y, least, level + 1) for y in x)
    if not is_int(x):
        raise ArgumentError(f"a {what} is an integer or a tuple of {what}s", got=x, legal=f"int >= {least}, or tuples of them")
    value = int(cast(int, x))
    if value < least:
        raise LayoutError(f"a {what} is at least {least}", got=value, legal=f"int >= {least}, or tuples of them")
    return value


def check_depth(level: int) -> None:
    """Refuses tuples nested deeper than MAX_DEPTH."""
    if level > MAX_DEPTH:
        raise LayoutError(f"tuples nest deeper than {MAX_DEPTH} levels", legal=f"at most {MAX_DEPTH} levels")


def _as_shape(x: IntTuple) -> IntTuple:
    return _check_tree("shape", x, 1)


def _as_stride(x: IntTuple | None) -> IntTuple:
    return cast("IntTuple", None) if x is None else _check_tree("stride", x, 0)


def flatten(tree: IntTuple) -> tuple[int, ...]:
    """The leaves of an IntTuple, left to right.

    >>> flatten((4, (2, 4)))
    (4, 2, 4)
    """
    return tuple(leaf for part in tree for leaf in flatten(part)) if isinstance(tree, tuple) else (tree,)


def product(tree: IntTuple) -> int:
    """The product of all leaves of an IntTuple; 1 for `()`.

    >>> product((4, (2, 4)))
    32
    """
    return functools.reduce(lambda x, y: x * y, flatten(tree), 1)


def rank(tree: IntTuple) -> int:
    """The number of modes: the length of a tuple, 1 for an integer.

    >>> rank((4, (2, 4))), rank(8)
    (2, 1)
    """
    return len(tree) if isinstance(tree, tuple) else 1


def depth(tree: IntTuple) -> int:
    """How deep tuples nest: 0 for an integer.

    >>> depth((4, (2, 4))), depth(8)
    (2, 0)
    """
    return 1 + max((depth(part) for part in tree), default=0) if isinstance(tree, tuple) else 0


def congruent(a: IntTuple, b: IntTuple) -> bool:
    """Whether two IntTuples have the same structure.

    >>> congruent((4, (2, 4)), (1, (4, 8))), congruent((4, 8), (4, (2, 4)))
    (True, False)
    """
    if isinstance(a, tuple) and isinstance(b, tuple):
        return len(a) == len(b) and all(map(congruent, a, b))
    return not isinstance(a, tuple) and not isinstance(b, tuple)


def unflatten(leaves: Iterable[int], like: IntTuple) -> IntTuple:
    """The leaves arranged in the structure of `like`.

    >>> unflatten([1, 4, 8], like=(4, (2, 4)))
    (1, (4, 8))
    """
    rest = iter(leaves)

    def build(tree: IntTuple) -> IntTuple:
        return tuple(build(part) for part in tree) if isinstance(tree, tuple) else next(rest)

    return build(like)


def column_major_strides(shape: IntTuple) -> IntTuple:
    """Compact strides, the leftmost leaf contiguous (CuTe's `LayoutLeft`).

    >>> column_major_strides((4, (2, 4)))
    (1, (4, 8))
    """
    return unflatten(_running_products(flatten(shape)), shape)


def row_major_strides(shape: IntTuple) -> IntTuple:
    """Compact strides, the rightmost leaf contiguous (CuTe's `LayoutRight`).

    >>> row_major_strides((4, (2, 4)))
    (8, (4, 1))
    """
    return unflatten(_running_products(flatten(shape)[::-1])[::-1], shape)


def _running_products(leaves: tuple[int, ...]) -> list[int]:
    strides, current = [], 1
    for leaf in leaves:
        strides.append(current)
        current *= leaf
    return strides


def idx2crd(index: int, shape: IntTuple) -> IntTuple:
    """The hierarchical coordinate, congruent to `shape`, of an integer coordinate (colexicographic).

    Legal when: `0 <= index < product(shape)`.

    >>> idx2crd(14, (4, (2, 4)))
    (2, (1, 1))

    Source: CuTe docs, 01_layout, "Coordinate mapping".
    """
    shape = _check_tree("shape", shape, 1)
    _check_index(index, product(shape), shape)
    digits = []
    for leaf in flatten(shape):
        digits.append(index % leaf)
        index //= leaf
    return unflatten(digits, shape)


def crd2idx(coordinate: IntTuple, shape: IntTuple, stride: IntTuple | None = None) -> int:
    """The offset of a coordinate: the sum of coordinate times stride over the leaves.

    An integer stands for a whole mode wherever the shape has a tuple. Without strides: the integer coordinate.
    Legal when: the coordinate is an integer or a tuple of the shape's length, and every integer is inside its mode.

    >>> crd2idx((0, 3), (4, (2, 4)), (2, (1, 8)))
    9

    Source: CuTe docs, 01_layout, "Index mapping"; Graphene section 3.2.
    """
    return Layout(shape, stride)(coordinate)


def _check_index(index: object, size: int, shape: object) -> None:
    if not is_int(index):
        raise ArgumentError("a coordinate is an integer or a tuple of coordinates", got=index, within=_show(shape))
    if not 0 <= cast(int, index) < size:
        raise LayoutError(f"coordinate {index} is outside the {size} elements", legal=f"0 to {size - 1}", within=_show(shape))


def _offset(coordinate: Any, shape: IntTuple, stride: IntTuple, *, symbolic: bool) -> Any:
    """The offset of a coordinate; integers are checked, expressions (only if `symbolic`) are trusted to be inside."""
    if isinstance(coordinate, tuple):
        if not isinstance(shape, tuple) or not isinstance(stride, tuple) or len(coordinate) != len(shape):
            raise LayoutError(
                f"the coordinate has {len(coordinate)} parts, the shape {_show(shape)} has {rank(shape)}",
                got=coordinate,
                legal="an integer, or a tuple with one part per mode",
            )
        parts = [_offset(c, s, d, symbolic=symbolic) for c, s, d in zip(coordinate, shape, stride, strict=True)]
        return _sum(parts)
    if symbolic and is_expression(coordinate):
        return _symbolic_offset(coordinate, list(zip(flatten(shape), flatten(stride), strict=True)))
    _check_index(coordinate, product(shape), shape)
    total = 0
    for size, step in zip(flatten(shape), flatten(stride), strict=True):
        total += coordinate % size * step
        coordinate //= size
    return total


def _symbolic_offset(x: Any, modes: list[Mode]) -> Any:
    """`sum((x // weight) % size * stride)`, without what is certainly redundant for an `x` inside the modes."""
    modes = [mode for mode in merge_modes(modes) if mode[0] > 1]
    terms, weight = [], 1
    for position, (size, step) in enumerate(modes):
        digit = x if weight == 1 else x // weight
        digit = digit if position == len(modes) - 1 else digit % size
        terms += [] if step == 0 else [digit if step == 1 else digit * step]
        weight *= size
    return _sum(terms)


def _sum(parts: list[Any]) -> Any:
    """The sum, without a leading zero that would show in printed expressions."""
    parts = [part for part in parts if not (is_int(part) and part == 0)]
    return functools.reduce(lambda x, y: x + y, parts) if parts else 0


def _show(tree: object) -> str:
    """An IntTuple as the papers write it: no blanks, `(8)` for a tuple of one."""
    return f"({','.join(map(_show, tree))})" if isinstance(tree, tuple) else str(tree)


# ------------------------------------------------------------------------------------------------------------------ layouts


@frozen(repr=False, str=False)
class Layout:
    """A function from coordinates to offsets, written `shape:stride`.

    Args:
        shape: an integer or a nested tuple of integers, all at least 1; `()` is the scalar.
        stride: the same structure, all at least 0. Default: compact, leftmost mode contiguous.

    Legal when: shape and stride are congruent.

    >>> print(Layout((4, 8)))
    (4,8):(1,4)
    >>> c = Layout((4, (2, 4)), (2, (1, 8)))
    >>> c(0, 3), c(12), c(0, (1, 1)), c[1](3), c.size(), c.cosize()
    (9, 9, 9, 9, 32, 32)

    Source: CuTe docs, 01_layout; Graphene sections 3.1 and 3.2.
    """

    shape: IntTuple = field(converter=_as_shape)
    stride: IntTuple = field(default=None, converter=_as_stride)

    def __attrs_post_init__(self) -> None:
        if self.stride is None:
            object.__setattr__(self, "stride", column_major_strides(self.shape))
        if not congruent(self.shape, self.stride):
            raise LayoutError(
                f"shape {_show(self.shape)} and stride {_show(self.stride)} differ in structure",
                legal=f"strides like {_show(column_major_strides(self.shape))}",
            )

    @property
    def modes(self) -> list[Mode]:
        """The leaves as (size, stride), left to right."""
        return list(zip(flatten(self.shape), flatten(self.stride), strict=True))

    def size(self) -> int:
        """The number of elements of the domain."""
        return product(self.shape)

    def cosize(self) -> int:
        """The largest offset plus one: what a buffer must hold."""
        return 1 + sum((size - 1) * stride for size, stride in self.modes)

    def rank(self) -> int:
        """The number of modes."""
        return rank(self.shape)

    def depth(self) -> int:
        """How deep the modes nest."""
        return depth(self.shape)

    def __call__(self, *coordinate: IntTuple) -> int:
        """The offset of an integer, a flat or a hierarchical coordinate; refused outside the domain."""
        return cast(int, _offset(_one(coordinate), self.shape, self.stride, symbolic=False))

    def expression(self, *coordinate: Any) -> Any:
        """The offset of a coordinate that may hold expressions (anything with `+ * // %`, an integer array too).

        Legal when: the caller knows that each expression is inside its mode; plain integers are checked.
        """
        return _offset(_one(coordinate), self.shape, self.stride, symbolic=True)

    def coordinate(self, index: int) -> IntTuple:
        """The hierarchical coordinate of an integer coordinate."""
        return idx2crd(index, self.shape)

    def offsets(self) -> list[int]:
        """All offsets in the order of the integer coordinate.

        >>> Layout((2, 3), (3, 1)).offsets()
        [0, 3, 1, 4, 2, 5]
        """
        found = [0]
        for size, stride in self.modes:
            found = [base + i * stride for i in range(size) for base in found]
        return found

    def is_injective(self) -> bool:
        """Whether no two coordinates share an offset."""
        if self.size() > self.cosize():
            return False
        reach = 1
        for stride, size in sorted((stride, size) for size, stride in self.modes if size > 1):
            if stride < reach:
                return len(set(self.offsets())) == self.size()
            reach += (size - 1) * stride
        return True

    def is_bijective(self) -> bool:
        """Whether the offsets are exactly `range(size)`, each once."""
        return self.cosize() == self.size() and self.is_injective()

    def swizzled(self, swizzle: Swizzle, offset: int = 0) -> ComposedLayout:
        """This layout, then `offset` added, then the swizzle.

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
        if isinstance(mode, tuple):
            return functools.reduce(lambda layout, i: layout[i], mode, self)
        if not is_int(mode):
            raise ArgumentError("a mode is named by its position", got=mode, legal=range(self.rank()), within=str(self))
        if not 0 <= mode < self.rank():
            raise LayoutError(f"there is no mode {mode}", legal=range(self.rank()), within=str(self))
        if isinstance(self.shape, tuple) and isinstance(self.stride, tuple):
            return Layout(self.shape[mode], self.stride[mode])
        return self

    def __str__(self) -> str:
        return f"{_show(self.shape)}:{_show(self.stride)}"

    def __repr__(self) -> str:
        return f"Layout({self.shape!r}, {self.stride!r})"


def _one(coordinate: tuple[Any, ...]) -> Any:
    """`layout(x)` means `x`; `layout(x, y)` means `(x, y)`."""
    return coordinate[0] if len(coordinate) == 1 else coordinate


@frozen(repr=False, str=False)
class Swizzle:
    """The permutation of offsets that XORs `bits` bits, found `shift` above bit `base`, onto the bits at `base`.

    In units of elements: `2**base` neighbours stay together. A negative shift XORs low bits onto high ones.
    Legal when: `bits` and `base` are at least 0 and `abs(shift) >= bits`; else source and target overlap and it is no involution.

    >>> sw = Swizzle(2, 0, 3)
    >>> [sw(x) for x in range(8, 12)], all(sw(sw(x)) == x for x in range(64))
    ([9, 8, 11, 10], True)

    Source: CuTe `swizzle.hpp`, as described in the CuTe docs; T036 of the checklist (Graphene promises swizzled layouts).
    """

    bits: int
    base: int
    shift: int

    def __attrs_post_init__(self) -> None:
        for name, value in (("bits", self.bits), ("base", self.base), ("shift", self.shift)):
            if not is_int(value):
                raise ArgumentError(f"the {name} of a swizzle are counted by an integer", got=value)
        if self.bits < 0 or self.base < 0:
            raise LayoutError(f"a swizzle has no negative bits or base: {self}", legal="bits >= 0, base >= 0")
        if abs(self.shift) < self.bits:
            raise LayoutError(
                f"{self}: source and target bits overlap", legal=f"shift <= {-self.bits} or shift >= {self.bits}", hint="raise the shift"
            )

    def size(self) -> int:
        """The period: each block of this many offsets is permuted in itself."""
        return 1 << (self.bits + self.base + abs(self.shift)) if self.bits else 1

    def __call__(self, offset: int) -> int:
        """Where the element of a given offset lives."""
        if not is_int(offset):
            raise ArgumentError("a swizzle maps integer offsets", got=offset, legal="int >= 0")
        if offset < 0:
            raise LayoutError("a swizzle maps offsets of at least 0", got=offset, legal="int >= 0")
        return cast(int, self.expression(offset))

    def expression(self, offset: Any) -> Any:
        """The same for anything that has `^ & << >>`, or `// *` in place of the shifts."""
        if self.bits == 0:
            return offset
        mask, by = (1 << self.bits) - 1, 1 << abs(self.shift)
        if self.shift >= 0:
            return offset ^ ((offset & (mask << (self.base + self.shift))) // by)
        return offset ^ ((offset & (mask << self.base)) * by)

    def __str__(self) -> str:
        return f"Sw<{self.bits},{self.base},{self.shift}>"

    def __repr__(self) -> str:
        return f"Swizzle({self.bits}, {self.base}, {self.shift})"


@frozen(repr=False, str=False)
class ComposedLayout:
    """A layout under a swizzle: `R(c) = swizzle(offset + layout(c))`.

    The offset stands inside because a tile of a swizzled buffer begins anywhere in the swizzle's period.

    >>> s = ComposedLayout(Swizzle(2, 0, 3), 0, Layout((4, 8), (8, 1)))
    >>> s(1, 0), s(1, 1), s.cosize(), s.is_bijective()
    (9, 8, 32, True)

    Source: CuTe `ComposedLayout`; T036 of the checklist.
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
        _check_layout("a swizzle is composed with", self.layout)

    @property
    def shape(self) -> IntTuple:
        """The shape of the inner layout."""
        return self.layout.shape

    def size(self) -> int:
        """The number of elements of the domain."""
        return self.layout.size()

    def cosize(self) -> int:
        """The largest offset plus one, exact (found by enumeration where the image is not whole periods)."""
        if self.layout.is_bijective() and self.offset % self.swizzle.size() == 0 and self.size() % self.swizzle.size() == 0:
            return self.offset + self.size()
        return 1 + max(self.offsets())

    def rank(self) -> int:
        """The number of modes."""
        return self.layout.rank()

    def depth(self) -> int:
        """How deep the modes nest."""
        return self.layout.depth()

    def __call__(self, *coordinate: IntTuple) -> int:
        """The offset of an integer, a flat or a hierarchical coordinate."""
        return self.swizzle(self.offset + self.layout(*coordinate))

    def expression(self, *coordinate: Any) -> Any:
        """The offset of a coordinate that may hold expressions with `^ &` besides `+ * // %`."""
        return self.swizzle.expression(_sum([self.offset, self.layout.expression(*coordinate)]))

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
"""What a layout is composed with or divided by: a layout, `n` for `n:1`, or a tuple with one tiler per mode."""


def _check_layout(what: str, x: object) -> Layout:
    if isinstance(x, ComposedLayout):
        raise LayoutError(f"{what} a layout without swizzle", got=x, hint="use its .layout, and put the swizzle outside")
    if not isinstance(x, Layout):
        raise ArgumentError(f"{what} a Layout", got=x)
    return x


def _tiler(x: object) -> Layout | tuple[Tiler, ...]:
    """A tiler with integers made layouts; elements of a tuple are checked when their mode is reached."""
    if isinstance(x, (Layout, tuple)):
        return x
    if isinstance(x, ComposedLayout):
        return _check_layout("a tiler is", x)
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
    tree = _check_tree("shape", _one(shape), 1)
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
    layouts = [_check_layout("the modes of a layout are each", mode) for mode in modes]
    return Layout(tuple(layout.shape for layout in layouts), tuple(layout.stride for layout in layouts))


# ------------------------------------------------------------------------------------------------------------------ parsing


def parse(text: str) -> Layout | ComposedLayout:
    """The layout that a text denotes: CuTe's `shape:stride`, Graphene's `[shape : stride]`, or either under a swizzle.

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
        raise LayoutError("this is no swizzled layout", got=text, legal="Sw<bits,base,shift> o offset o shape:stride")
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
        raise LayoutError(f"{text!r} is no integer", legal="digits, tuples in parentheses, one colon")
    return int(text)


def split_shape(text: str) -> tuple[str, str | None]:
    """`shape : stride` in two; the stride is None where it is omitted."""
    parts = text.split(":")
    if len(parts) > 2:
        raise LayoutError("a layout has one colon", got=text, legal="shape:stride")
    return parts[0], parts[1] if len(parts) == 2 else None


def read_dims(text: str, leaf: Callable[[str], Any]) -> Any:
    """What stands between Graphene's brackets: a lone item is itself, several are a tuple, nothing is `()`."""
    parts = _split(text) if text.strip() else []
    return read_tree(parts[0], leaf) if len(parts) == 1 else tuple(read_tree(part, leaf) for part in parts)


def read_tree(text: str, leaf: Callable[[str], Any], level: int = 0) -> Any:
    """A nested tuple written in parentheses, each leaf read by `leaf`."""
    check_depth(level)
    text = text.strip()
    if not (text.startswith("(") and text.endswith(")")):
        return leaf(text)
    inner = text[1:-1].strip().removesuffix(",")
    return tuple(read_tree(part, leaf, level + 1) for part in _split(inner)) if inner else ()


def _split(text: str) -> list[str]:
    """The items between commas that stand outside all parentheses."""
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


# ---------------------------------------------------------------------------------------------------------------- operations

P = ParamSpec("P")


class _Operation(Protocol[P]):
    """An operation on layouts that acts on the inner layout of a swizzled one."""

    @overload
    def __call__(self, layout: Layout, /, *args: P.args, **kwargs: P.kwargs) -> Layout: ...
    @overload
    def __call__(self, layout: ComposedLayout, /, *args: P.args, **kwargs: P.kwargs) -> ComposedLayout: ...


def _under_swizzle(operation: Callable[Concatenate[Layout, P], Layout]) -> _Operation[P]:
    """Lets an operation act under the swizzle: `op(Sw o L) = Sw o op(L)`."""

    @functools.wraps(operation)
    def apply(layout: Layout | ComposedLayout, /, *args: P.args, **kwargs: P.kwargs) -> Layout | ComposedLayout:
        if isinstance(layout, ComposedLayout):
            return ComposedLayout(layout.swizzle, layout.offset, operation(layout.layout, *args, **kwargs))
        return operation(_check_layout(f"{operation.__name__} acts on", layout), *args, **kwargs)

    return cast("_Operation[P]", apply)


def merge_modes(modes: Iterable[Mode]) -> list[Mode]:
    """The same function with as few modes as possible: sizes of 1 dropped, neighbours that continue each other joined."""
    merged: list[Mode] = []
    for size, stride in modes:
        if size == 1:
            continue
        if merged and merged[-1][0] * merged[-1][1] == stride:
            merged[-1] = (merged[-1][0] * size, merged[-1][1])
        else:
            merged.append((size, stride))
    return merged


def _from_modes(modes: list[Mode]) -> Layout:
    """A flat layout; one mode stands without parentheses, none is `1:0`."""
    if len(modes) <= 1:
        return Layout(*(modes[0] if modes else (1, 0)))
    return Layout(tuple(size for size, _ in modes), tuple(stride for _, stride in modes))


def _by_mode(operation: Callable[[Layout, Any], Layout], layout: Layout, tilers: tuple[Any, ...]) -> Layout:
    """The operation on each mode that has a tiler; the others are kept."""
    if not 1 <= len(tilers) <= layout.rank():
        raise LayoutError(
            f"{len(tilers)} tilers for {layout} of rank {layout.rank()}", got=tilers, legal="one tiler per mode, or fewer; at least one"
        )
    return make_layout(*(operation(layout[i], tiler) for i, tiler in enumerate(tilers)), *list(layout)[len(tilers) :])


@_under_swizzle
def coalesce(layout: Layout, profile: object = 1) -> Layout:
    """The same function of the integer coordinate with as few modes as possible.

    With a tuple as profile, modes are coalesced each by itself and the top structure stays.
    Legal when: the profile has no more modes than the layout.

    >>> print(coalesce(Layout((2, (1, 6)), (1, (6, 2)))))
    12:1
    >>> print(coalesce(Layout((2, (1, 6)), (1, (6, 2))), (1, 1)))
    (2,6):(1,2)

    Source: CuTe docs, 02_layout_algebra, "Coalesce" and "By-mode coalesce".
    """
    if isinstance(profile, tuple):
        return _by_mode(coalesce, layout, profile)
    if not is_int(profile):
        raise ArgumentError("a profile is an integer or a tuple of profiles", got=profile, legal="1, (1, 1), (1, (1, 1)), ...")
    return _from_modes(merge_modes(layout.modes))


@_under_swizzle
def filter(layout: Layout) -> Layout:
    """The coalesced layout without modes of stride 0: the same set of offsets.

    >>> print(filter(Layout((4, 2, 3), (1, 0, 8))))
    (4,3):(1,8)

    Source: CuTe docs, 02_layout_algebra ("filter" removes stride 0 and size 1).
    """
    return _from_modes(merge_modes(mode for mode in layout.modes if mode[1]))


@_under_swizzle
def composition(layout: Layout, tiler: Tiler) -> Layout:
    """`layout o tiler`: `R(c) == layout(tiler(c))` for every c, and each leaf of the tiler becomes a mode or a tuple of modes.

    With a tuple, each mode is composed with its own tiler.
    Legal when: the tiler stays inside the layout, each of its leaves steps through the layout's modes in whole runs, and no sum
    of two leaves carries from one mode into the next. Where that fails the function is no layout of this structure (but for a few
    layouts, one in ten thousand drawn, in which two carries cancel: they are refused too).

    >>> print(composition(Layout((6, 2), (8, 2)), Layout((4, 3), (3, 1))))
    ((2,2),3):((24,2),8)
    >>> composition(Layout((6, 4), (1, 10)), Layout(6, 4))
    Traceback (most recent call last):
    fireiron.errors.LayoutError: composition (6,4):(1,10) o 6:4: two parts of the right layout carry out of the mode 6:1
      legal   parts whose largest coordinates in that mode add up to at most 5; here 8

    Source: CuTe docs, 02_layout_algebra, "Composition".
    """
    right = _tiler(tiler)
    if isinstance(right, tuple):
        return _by_mode(composition, layout, right)
    if right.cosize() > layout.size():
        raise LayoutError(
            f"composition {layout} o {right}: the right layout reaches element {right.cosize() - 1}",
            legal=f"at most {layout.size() - 1}: the left layout has {layout.size()} elements",
        )
    return _Composer(layout, right).result()


class _Composer:
    """Composes leaf by leaf in the mixed radix of the left layout, and remembers the largest digits reached."""

    def __init__(self, left: Layout, right: Layout) -> None:
        self.left, self.right = left, right
        self.modes = merge_modes(left.modes)
        self.reach = [0] * len(self.modes)

    def result(self) -> Layout:
        parts = iter([self.leaf(*mode) for mode in self.right.modes])
        shape, stride = self.assemble(self.right.shape, parts)
        for (size, step), reached in zip(self.modes, self.reach, strict=True):
            if reached >= size:
                raise LayoutError(
                    f"composition {self.left} o {self.right}: two parts of the right layout carry out of the mode {size}:{step}",
                    legal=f"parts whose largest coordinates in that mode add up to at most {size - 1}; here {reached}",
                )
        return Layout(shape, stride)

    def assemble(self, like: IntTuple, parts: Iterator[Layout]) -> tuple[IntTuple, IntTuple]:
        if not isinstance(like, tuple):
            part = next(parts)
            return part.shape, part.stride
        pairs = [self.assemble(tree, parts) for tree in like]
        return tuple(shape for shape, _ in pairs), tuple(stride for _, stride in pairs)

    def digits(self, x: int) -> list[int]:
        found = []
        for size, _ in self.modes:
            found.append(x % size)
            x //= size
        return found

    def leaf(self, size: int, stride: int) -> Layout:
        """`left o size:stride`: runs of equal steps, each run as long as no digit overflows."""
        if size == 1 or stride == 0:
            return Layout(size, 0)
        rest, step, runs = size, stride, []
        while rest > 1:
            digits = self.digits(step)
            run = min(rest, *((extent - 1) // digit + 1 for digit, (extent, _) in zip(digits, self.modes, strict=True) if digit))
            if rest % run:
                raise LayoutError(
                    f"composition {self.left} o {self.right}: {size}:{stride} crosses the end of a mode after {run} of {rest} steps",
                    legal=f"a size of at most {size // rest * run}, or a multiple of it",
                )
            self.reach = [reached + (run - 1) * digit for reached, digit in zip(self.reach, digits, strict=True)]
            runs.append((run, sum(digit * weight for digit, (_, weight) in zip(digits, self.modes, strict=True))))
            rest, step = rest // run, step * run
        return _from_modes(runs)


def complement(layout: Layout, size: int | None = None) -> Layout:
    """The layout of what is missing: every x in `range(size)` is `layout(i) + R(j)` for one offset of each, and in one way only.

    The modes of R are flat and ascending. Without `size`: R only fills the holes, up to the layout's last whole period.
    Legal when: sorted by stride, each mode's stride is a multiple of the previous size times stride, and `size` of the last.
    Modes of stride 0 do not count.

    >>> print(complement(Layout(4, 2), 24), complement(Layout(4, 2)))
    (2,3):(1,8) 2:1

    Source: CuTe docs, 02_layout_algebra, "Complement".
    """
    layout = _check_layout("a complement is taken of", layout)
    holes, period = _holes(layout)
    if size is None:
        return _from_modes(merge_modes(holes))
    if not is_int(size):
        raise ArgumentError("the size of a complement's target is an integer", got=size, legal=f"multiples of {period}")
    if size < 1 or size % period:
        raise LayoutError(
            f"complement of {layout} in {size}: {period} does not divide {size}",
            legal=_multiples_near(period, size),
            hint="round the size up to a multiple of the period, and guard the rest",
        )
    return _from_modes(merge_modes([*holes, (size // period, period)]))


def _holes(layout: Layout) -> tuple[list[Mode], int]:
    """The modes that fill the gaps between a layout's modes, and the period after which it may repeat."""
    holes, period = [], 1
    for stride, size in sorted((stride, size) for size, stride in filter(layout).modes if size > 1):
        if stride % period:
            raise LayoutError(
                f"{layout} has no complement: the mode {size}:{stride} does not begin at a multiple of {period}",
                legal=_multiples_near(period, stride),
            )
        holes.append((stride // period, period))
        period = stride * size
    return holes, period


def _multiples_near(unit: int, value: int) -> list[int]:
    below = max(value // unit, 1) * unit
    return [below, below + unit, below + 2 * unit]


@_under_swizzle
def logical_divide(layout: Layout, tiler: Tiler) -> Layout:
    """`layout o (tiler, complement)`: mode 0 is the tile, mode 1 runs over the tiles; with a tuple, so for each mode.

    Legal when: the tiler is injective, has a complement in the layout's size, and both compositions are legal.

    >>> print(logical_divide(Layout((4, 2, 3), (2, 1, 8)), Layout(4, 2)))
    ((2,2),(2,3)):((4,1),(2,8))
    >>> print(logical_divide(Layout((4, 8), (1, 4)), (2, 4)))
    ((2,2),(4,2)):((1,2),(4,16))

    Source: CuTe docs, 02_layout_algebra, "Division"; Graphene section 3.3.
    """
    right = _tiler(tiler)
    if isinstance(right, tuple):
        return _by_mode(logical_divide, layout, right)
    if any(stride == 0 < size - 1 for size, stride in right.modes):
        raise LayoutError(f"{layout} cannot be divided by {right}: a tile holds each element once", legal="strides of at least 1")
    return composition(layout, make_layout(right, complement(right, layout.size())))


def _unzip(operation: Callable[[Layout, Any], Layout], layout: Layout, tiler: Any) -> Layout:
    """The operation, and for a tuple of tilers all first modes gathered in mode 0, all second modes and kept modes in mode 1."""
    if not isinstance(tiler, tuple):
        return operation(layout, tiler)
    _by_mode(lambda mode, _: mode, layout, tiler)
    pairs = [_unzip(operation, layout[i], part) for i, part in enumerate(tiler)]
    kept = list(layout)[len(tiler) :]
    return make_layout(make_layout(*(pair[0] for pair in pairs)), make_layout(*(pair[1] for pair in pairs), *kept))


def _spread(layout: Layout) -> list[Layout]:
    """The modes of a tuple layout; an integer layout is its own mode."""
    return list(layout)


@_under_swizzle
def zipped_divide(layout: Layout, tiler: Tiler) -> Layout:
    """`logical_divide` with all tiles in mode 0 and all rests in mode 1: `((t0, t1, ...), (r0, r1, ...))`.

    Legal when: `logical_divide` is.

    >>> print(zipped_divide(Layout((4, 8), (1, 4)), (2, 4)))
    ((2,4),(2,2)):((1,4),(2,16))

    Source: CuTe docs, 02_layout_algebra, "Zipped, tiled, flat divides"; Graphene Figure 4b (its outer shape is mode 1).
    """
    return _unzip(logical_divide, layout, tiler)


@_under_swizzle
def tiled_divide(layout: Layout, tiler: Tiler) -> Layout:
    """`logical_divide` as `((t0, t1, ...), r0, r1, ...)`.

    Legal when: `logical_divide` is.

    >>> print(tiled_divide(Layout((4, 8), (1, 4)), (2, 4)))
    ((2,4),2,2):((1,4),2,16)

    Source: CuTe docs, 02_layout_algebra, "Zipped, tiled, flat divides".
    """
    tile, rest = zipped_divide(layout, tiler)
    return make_layout(tile, *_spread(rest))


@_under_swizzle
def flat_divide(layout: Layout, tiler: Tiler) -> Layout:
    """`logical_divide` as `(t0, t1, ..., r0, r1, ...)`.

    Legal when: `logical_divide` is.

    >>> print(flat_divide(Layout((4, 8), (1, 4)), (2, 4)))
    (2,4,2,2):(1,4,2,16)

    Source: CuTe docs, 02_layout_algebra, "Zipped, tiled, flat divides".
    """
    tile, rest = zipped_divide(layout, tiler)
    return make_layout(*_spread(tile), *_spread(rest))


@_under_swizzle
def logical_product(layout: Layout, tiler: Tiler) -> Layout:
    """`(layout, complement o tiler)`: mode 0 is the layout, mode 1 repeats it at free places in the tiler's order.

    With a tuple, each mode is multiplied by itself.
    Legal when: the layout has a complement and its composition with the tiler is legal, or the tiler asks for one copy only, which
    needs no other place; with a tuple, if copies do not overlap. Under a swizzle: `Sw o product`, whose mode 0 is the swizzled layout.

    >>> print(logical_product(Layout((2, 2), (4, 1)), Layout(6, 1)))
    ((2,2),(2,3)):((4,1),(2,8))
    >>> print(logical_product(Layout(4), 3))
    (4,3):(1,4)

    Source: CuTe docs, 02_layout_algebra, "Product".
    """
    right = _tiler(tiler)
    if isinstance(right, tuple):
        return _disjoint(_by_mode(logical_product, layout, right), layout, right)
    if right.cosize() == 1:
        return make_layout(layout, composition(Layout(1, 0), right))
    holes, period = _holes(layout)
    copies = -(-right.cosize() // product(tuple(size for size, _ in holes)))
    return make_layout(layout, composition(complement(layout, copies * period), right))


def _disjoint(result: Layout, layout: Layout, tiler: object) -> Layout:
    if not result.is_injective():
        raise LayoutError(
            f"the product of {layout} with {_show(tiler)} mode by mode: copies overlap",
            legal="modes that leave room for each other's copies",
            hint="multiply by one layout, or use blocked_product",
        )
    return result


@_under_swizzle
def zipped_product(layout: Layout, tiler: Tiler) -> Layout:
    """`logical_product` with all blocks in mode 0 and all repetitions in mode 1.

    Legal when: `logical_product` is.

    >>> print(zipped_product(Layout((2, 2), (4, 1)), 6))
    ((2,2),(2,3)):((4,1),(2,8))

    Source: CuTe docs, 02_layout_algebra, "Zipped and tiled products".
    """
    result = _unzip(logical_product, layout, tiler)
    return _disjoint(result, layout, tiler) if isinstance(tiler, tuple) else result


@_under_swizzle
def tiled_product(layout: Layout, tiler: Tiler) -> Layout:
    """`logical_product` as `((b0, b1, ...), r0, r1, ...)`.

    Legal when: `logical_product` is.

    >>> print(tiled_product(Layout((2, 2), (4, 1)), 6))
    ((2,2),2,3):((4,1),2,8)

    Source: CuTe docs, 02_layout_algebra, "Zipped and tiled products".
    """
    block, rest = zipped_product(layout, tiler)
    return make_layout(block, *_spread(rest))


@_under_swizzle
def flat_product(layout: Layout, tiler: Tiler) -> Layout:
    """`logical_product` as `(b0, b1, ..., r0, r1, ...)`.

    Legal when: `logical_product` is.

    >>> print(flat_product(Layout((2, 2), (4, 1)), 6))
    (2,2,2,3):(4,1,2,8)

    Source: CuTe docs, 02_layout_algebra, "Zipped and tiled products".
    """
    block, rest = zipped_product(layout, tiler)
    return make_layout(*_spread(block), *_spread(rest))


@_under_swizzle
def blocked_product(layout: Layout, tiler: Layout) -> Layout:
    """A matrix of blocks: mode i is block mode i, then repetition i, coalesced mode by mode.

    Legal when: both have the same rank, and `logical_product` is legal.

    >>> print(blocked_product(Layout((2, 5), (5, 1)), Layout((3, 4), (1, 3))))
    (6,(5,4)):(5,(1,30))

    Source: CuTe docs, 02_layout_algebra, "Blocked and raked products".
    """
    return _interleaved("blocked_product", layout, tiler, lambda block, repeat: make_layout(block, repeat))


@_under_swizzle
def raked_product(layout: Layout, tiler: Layout) -> Layout:
    """A matrix of interleaved blocks: mode i is repetition i, then block mode i, coalesced mode by mode.

    Legal when: both have the same rank, and `logical_product` is legal.

    >>> print(raked_product(Layout((2, 5), (5, 1)), Layout((3, 4), (1, 3))))
    ((3,2),(4,5)):((10,5),(30,1))

    Source: CuTe docs, 02_layout_algebra, "Blocked and raked products".
    """
    return _interleaved("raked_product", layout, tiler, lambda block, repeat: make_layout(repeat, block))


def _interleaved(name: str, layout: Layout, tiler: Layout, pair: Callable[[Layout, Layout], Layout]) -> Layout:
    tiler = _check_layout(f"{name} repeats by", tiler)
    if layout.rank() != tiler.rank() or layout.rank() == 0:
        raise LayoutError(
            f"{name} of {layout} and {tiler}: ranks {layout.rank()} and {tiler.rank()} differ", legal="equal ranks of at least 1"
        )
    block, repeat = logical_product(layout, tiler)
    if not isinstance(tiler.shape, tuple):
        repeat = make_layout(repeat)
    blocks = block if isinstance(layout.shape, tuple) else make_layout(block)
    return coalesce(make_layout(*map(pair, blocks, repeat)), (1,) * layout.rank())


def right_inverse(layout: Layout) -> Layout:
    """The layout R with `layout(R(k)) == k` for every k of its domain, grown as far as the layout is contiguous from 0.

    Legal when: always; `1:0` where no mode has stride 1. Of several modes with the same stride the longest is followed.

    >>> print(right_inverse(Layout((4, 8), (8, 1))))
    (8,4):(4,1)

    Source: CuTe `right_inverse`.
    """
    modes = merge_modes(_check_layout("an inverse is taken of", layout).modes)
    weights = _running_products(tuple(size for size, _ in modes))
    found: list[Mode] = []
    contiguous = 1
    while runs := [(size, weight) for (size, stride), weight in zip(modes, weights, strict=True) if stride == contiguous]:
        found.append(max(runs))
        contiguous *= found[-1][0]
    return _from_modes(merge_modes(found))


def left_inverse(layout: Layout) -> Layout:
    """The layout L with `L(layout(c)) == c` for every integer coordinate c; between the offsets L has no meaning.

    Legal when: sorted by stride, each stride divides the next and is at least the span of the modes below (padding is welcome),
    and no mode has stride 0.

    >>> print(left_inverse(Layout((4, 8), (9, 1))))
    (9,4):(4,1)

    Source: CuTe `left_inverse`.
    """
    modes = merge_modes(_check_layout("an inverse is taken of", layout).modes)
    weights = _running_products(tuple(size for size, _ in modes))
    digits = sorted((stride, size, weight) for (size, stride), weight in zip(modes, weights, strict=True))
    if not digits:
        return Layout(1, 0)
    found = [(digits[0][0], 0)]
    for (stride, size, weight), (above, _, _) in itertools.pairwise(digits):
        if stride == 0 or above % stride or above < size * stride:
            raise LayoutError(
                f"{layout} has no left inverse: the mode {size}:{stride} and the mode of stride {above} overlap or do not divide",
                legal="strides that divide the next greater one and leave room for what lies below",
            )
        found.append((above // stride, weight))
    if digits[0][0] == 0:
        raise LayoutError(f"{layout} has no left inverse: a mode of stride 0 is not injective", legal="strides of at least 1")
    return _from_modes(merge_modes([*found, digits[-1][1:]]))


def max_common_layout(a: Layout, b: Layout) -> Layout:
    """The layout R of coordinates with `a(R(k)) == b(R(k)) == k` for every k of its domain: what one vector copy can move.

    Legal when: both have the same size, and `a o right_inverse(b)` is a layout.

    >>> print(max_common_layout(Layout((4, 8), (8, 1)), Layout((4, 8), (16, 1))))
    8:4

    Source: CuTe `max_common_layout`.
    """
    a, b = _check_layout("layouts are compared:", a), _check_layout("layouts are compared:", b)
    if a.size() != b.size():
        raise LayoutError(f"{a} and {b} have {a.size()} and {b.size()} elements", legal="equal sizes")
    inverse = right_inverse(b)
    first = coalesce(composition(a, inverse)).modes[0]
    return composition(inverse, first[0]) if first[1] == 1 else Layout(1, 0)


def max_common_vector(a: Layout, b: Layout) -> int:
    """How many elements that are contiguous in both layouts correspond: the size of `max_common_layout`.

    Legal when: `max_common_layout` is.

    >>> max_common_vector(Layout((4, 8), (8, 1)), Layout((4, 8), (16, 1)))
    8

    Source: CuTe `max_common_vector`.
    """
    return max_common_layout(a, b).size()
