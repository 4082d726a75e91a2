"""The algebra of layouts: coalesce, composition, complement, division, products, inverses.

The docstring of each operation states its law. It holds for every element of the domain, or the operation raises an error.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Concatenate, ParamSpec, Protocol, cast, overload

from fireiron.errors import ArgumentError, LayoutError
from fireiron.values.layout.int_tuples import IntTuple, Mode, is_int, merge_modes, product, running_products, shown
from fireiron.values.layout.layouts import ComposedLayout, Layout, Tiler, as_tiler, check_layout, make_layout

P = ParamSpec("P")

MOST_ELEMENTS = 1 << 16
"""Maximum number of elements of a composition with carries that are compared individually; larger ones are rejected."""


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
        return operation(check_layout(f"{operation.__name__} acts on", layout), *args, **kwargs)

    return cast("_Operation[P]", apply)


def _from_modes(modes: list[Mode]) -> Layout:
    """A flat layout; one mode has no parentheses, none is `1:0`."""
    if len(modes) <= 1:
        return Layout(*(modes[0] if modes else (1, 0)))
    return Layout(tuple(size for size, _ in modes), tuple(stride for _, stride in modes))


def _by_mode(operation: Callable[[Layout, Any], Layout], layout: Layout, tilers: tuple[Any, ...]) -> Layout:
    """Apply the operation to each mode that has a tiler; other modes do not change."""
    if not 1 <= len(tilers) <= layout.rank():
        raise LayoutError(
            f"{len(tilers)} tilers for {layout} of rank {layout.rank()}", got=tilers, legal="one tiler per mode, or fewer; at least one"
        )
    return make_layout(*(operation(layout[i], tiler) for i, tiler in enumerate(tilers)), *list(layout)[len(tilers) :])


@_under_swizzle
def coalesce(layout: Layout, profile: object = 1) -> Layout:
    """The same function of the integer coordinate with as few modes as possible.

    With a tuple as profile, each mode is coalesced separately, and the top-level structure is preserved.
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
    return _from_modes(_reaching(layout))


def _reaching(layout: Layout) -> list[Mode]:
    """The modes of a layout that reach more than one offset, merged."""
    return merge_modes(mode for mode in layout.modes if mode[1])


@_under_swizzle
def composition(layout: Layout, tiler: Tiler) -> Layout:
    """`layout o tiler`: `R(c) == layout(tiler(c))` for every c, and each leaf of the tiler becomes a mode or a tuple of modes.

    With a tuple, each mode is composed with its own tiler.
    Legal when: the tiler stays inside the layout, each of its leaves steps through the layout's modes in complete runs, and no sum
    of two leaves carries from one mode into the next, unless the carries cancel. Otherwise the composed function is not a layout of
    this structure. (For tilers of more than 65,536 elements, carries are always rejected.)

    >>> print(composition(Layout((6, 2), (8, 2)), Layout((4, 3), (3, 1))))
    ((2,2),3):((24,2),8)
    >>> composition(Layout((6, 4), (1, 10)), Layout(6, 4))
    Traceback (most recent call last):
    fireiron.errors.LayoutError: composition (6,4):(1,10) o 6:4: two parts of the right layout carry out of the mode 6:1
      legal   parts whose largest coordinates in that mode add up to at most 5; here 8

    Source: CuTe docs, 02_layout_algebra, "Composition".
    """
    right = as_tiler(tiler)
    if isinstance(right, tuple):
        return _by_mode(composition, layout, right)
    if right.cosize() > layout.size():
        raise LayoutError(
            f"composition {layout} o {right}: the right layout reaches element {right.cosize() - 1}",
            legal=f"at most {layout.size() - 1}: the left layout has {layout.size()} elements",
        )
    return _Composer(layout, right).result()


class _Composer:
    """Composes leaf by leaf in the mixed radix of the left layout, and records the largest digits."""

    def __init__(self, left: Layout, right: Layout) -> None:
        self.left, self.right = left, right
        self.modes = merge_modes(left.modes)
        self.reach = [0] * len(self.modes)
        self.crosses = False

    def result(self) -> Layout:
        parts = iter([self.leaf(*mode) for mode in self.right.modes])
        composed = Layout(*self.assemble(self.right.shape, parts))
        if self.crosses and not self.cancels(composed):
            raise LayoutError(
                f"composition {self.left} o {self.right}: a part of the right layout crosses the end of a mode",
                legal="parts that step through the left layout's modes in complete runs",
            )
        for (size, step), reached in zip(self.modes, self.reach, strict=True):
            if reached >= size and not self.cancels(composed):
                raise LayoutError(
                    f"composition {self.left} o {self.right}: two parts of the right layout carry out of the mode {size}:{step}",
                    legal=f"parts whose largest coordinates in that mode add up to at most {size - 1}; here {reached}",
                )
        return composed

    def cancels(self, composed: Layout) -> bool:
        """Whether the sums of the leaves are correct although they carry, compared element by element."""
        if self.right.size() > MOST_ELEMENTS:
            return False
        return all(self.left(x) == offset for x, offset in zip(self.right.offsets(), composed.offsets(), strict=True))

    def assemble(self, like: IntTuple, parts: Iterator[Layout]) -> tuple[IntTuple, IntTuple]:
        if not isinstance(like, tuple):
            part = next(parts)
            return part.shape, part.stride
        pairs = [self.assemble(tree, parts) for tree in like]
        return tuple(shape for shape, _ in pairs), tuple(stride for _, stride in pairs)

    def digits(self, x: int) -> list[int]:
        result = []
        for size, _ in self.modes:
            result.append(x % size)
            x //= size
        return result

    def leaf(self, size: int, stride: int) -> Layout:
        """`left o size:stride`: runs of equal steps, each run as long as no digit overflows."""
        if size == 1 or stride == 0:
            return Layout(size, 0)
        rest, step, runs = size, stride, []
        while rest > 1:
            digits = self.digits(step)
            run = min(rest, *((extent - 1) // digit + 1 for digit, (extent, _) in zip(digits, self.modes, strict=True) if digit))
            if rest % run:
                if (linear := self.linear_runs(size, stride)) is not None:
                    self.crosses = True
                    return _from_modes(linear)
                raise LayoutError(
                    f"composition {self.left} o {self.right}: {size}:{stride} crosses the end of a mode after {run} of {rest} steps",
                    legal=f"a size of at most {size // rest * run}, or a multiple of it",
                )
            self.reach = [reached + (run - 1) * digit for reached, digit in zip(self.reach, digits, strict=True)]
            runs.append((run, sum(digit * weight for digit, (_, weight) in zip(digits, self.modes, strict=True))))
            rest, step = rest // run, step * run
        return _from_modes(runs)

    def linear_runs(self, size: int, stride: int) -> list[Mode] | None:
        """The runs of equal steps of `left o size:stride`, computed element by element.

        A step that crosses the ends of two modes may have the same size as the previous one: `(2,2,2):(1,6,8) o 3:3 = 3:7`.
        None if the runs form no layout, or if there are too many elements.
        """
        if size > MOST_ELEMENTS:
            return None
        runs, places = [], range(0, size * stride, stride)
        while len(places) > 1:
            step = self.left(places[1])
            run = next((number for number in range(2, len(places)) if self.left(places[number]) != number * step), len(places))
            if len(places) % run:
                return None
            if any(self.left(x) != self.left(places[i - i % run]) + i % run * step for i, x in enumerate(places)):
                return None
            runs.append((run, step))
            places = places[::run]
        return runs


def complement(layout: Layout, size: int | None = None) -> Layout:
    """The complement R: every x in `range(size)` is `layout(i) + R(j)` for exactly one pair of offsets.

    The modes of R are flat and ascending. Without `size`, R only fills the gaps, up to the layout's last complete period.
    Legal when: sorted by stride, each mode's stride is a multiple of the previous size times stride, and so is `size` for the last mode.
    Modes of stride 0 do not count.

    >>> print(complement(Layout(4, 2), 24), complement(Layout(4, 2)))
    (2,3):(1,8) 2:1

    Source: CuTe docs, 02_layout_algebra, "Complement".
    """
    layout = check_layout("a complement is taken of", layout)
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
    for stride, size in sorted((stride, size) for size, stride in _reaching(layout) if size > 1):
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
    """`layout o (tiler, complement)`: mode 0 is the tile, mode 1 enumerates the tiles; with a tuple, this applies to each mode.

    Legal when: the tiler is injective, has a complement in the layout's size, and both compositions are legal.

    >>> print(logical_divide(Layout((4, 2, 3), (2, 1, 8)), Layout(4, 2)))
    ((2,2),(2,3)):((4,1),(2,8))
    >>> print(logical_divide(Layout((4, 8), (1, 4)), (2, 4)))
    ((2,2),(4,2)):((1,2),(4,16))

    Source: CuTe docs, 02_layout_algebra, "Division"; Graphene section 3.3.
    """
    right = as_tiler(tiler)
    if isinstance(right, tuple):
        return _by_mode(logical_divide, layout, right)
    if any(stride == 0 < size - 1 for size, stride in right.modes):
        raise LayoutError(f"{layout} cannot be divided by {right}: a tile has each element once", legal="strides of at least 1")
    return composition(layout, make_layout(right, complement(right, layout.size())))


def _unzip(operation: Callable[[Layout, Any], Layout], layout: Layout, tiler: Any) -> Layout:
    """Apply the operation; for a tuple of tilers, collect all first modes in mode 0, and second and unchanged modes in mode 1."""
    if not isinstance(tiler, tuple):
        return operation(layout, tiler)
    _by_mode(lambda mode, _: mode, layout, tiler)
    pairs = [_unzip(operation, layout[i], part) for i, part in enumerate(tiler)]
    kept = list(layout)[len(tiler) :]
    return make_layout(make_layout(*(pair[0] for pair in pairs)), make_layout(*(pair[1] for pair in pairs), *kept))


def _spread(layout: Layout) -> list[Layout]:
    """The modes of a tuple layout; an integer layout is its only mode."""
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
    """`(layout, complement o tiler)`: mode 0 is the layout, mode 1 repeats it at unused offsets, in the tiler's order.

    With a tuple, each mode is multiplied separately.
    If the layout has no complement, or the tiler does not step through it in complete runs, the copies are consecutive: each begins
    at the end of the previous one.
    Legal when: always; with a tuple, if copies do not overlap. Under a swizzle: `Sw o product`, whose mode 0 is the swizzled layout.

    >>> print(logical_product(Layout((2, 2), (4, 1)), Layout(6, 1)))
    ((2,2),(2,3)):((4,1),(2,8))
    >>> print(logical_product(Layout(4), 3))
    (4,3):(1,4)
    >>> print(logical_product(Layout((2, 2), (2, 3)), 3))
    ((2,2),3):((2,3),6)

    Source: CuTe docs, 02_layout_algebra, "Product".
    """
    right = as_tiler(tiler)
    if isinstance(right, tuple):
        return _disjoint(_by_mode(logical_product, layout, right), layout, right)
    if right.cosize() == 1:
        return make_layout(layout, composition(Layout(1, 0), right))
    return make_layout(layout, composition(_free_offsets(layout, right), right))


def _free_offsets(layout: Layout, tiler: Layout) -> Layout:
    """The free offsets where copies of a layout can begin, as a layout that is composed with the tiler; gaps of the layout come first."""
    try:
        holes, period = _holes(layout)
        copies = -(-tiler.cosize() // product(tuple(size for size, _ in holes)))
        places = complement(layout, copies * period)
        composition(places, tiler)
    except LayoutError:
        return Layout(tiler.cosize(), layout.cosize())
    return places


def _disjoint(result: Layout, layout: Layout, tiler: object) -> Layout:
    if not result.is_injective():
        raise LayoutError(
            f"the product of {layout} with {shown(tiler)} mode by mode: copies overlap",
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
    tiler = check_layout(f"{name} repeats by", tiler)
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
    """The layout R with `layout(R(k)) == k` for every k of its domain, the largest contiguous range of offsets from 0.

    Legal when: always; `1:0` if no mode has stride 1. Of several modes with the same stride, the longest is used.

    >>> print(right_inverse(Layout((4, 8), (8, 1))))
    (8,4):(4,1)

    Source: CuTe `right_inverse`.
    """
    modes = merge_modes(check_layout("an inverse is taken of", layout).modes)
    weights = running_products(tuple(size for size, _ in modes))
    runs_from_zero: list[Mode] = []
    contiguous = 1
    while runs := [(size, weight) for (size, stride), weight in zip(modes, weights, strict=True) if stride == contiguous]:
        runs_from_zero.append(max(runs))
        contiguous *= runs_from_zero[-1][0]
    return _from_modes(merge_modes(runs_from_zero))


def left_inverse(layout: Layout) -> Layout:
    """The layout L with `L(layout(c)) == c` for every integer coordinate c; its other values are unspecified.

    Legal when: sorted by stride, each stride divides the next and is at least the span of the modes below (padding is permitted),
    and no mode has stride 0.

    >>> print(left_inverse(Layout((4, 8), (9, 1))))
    (9,4):(4,1)

    Source: CuTe `left_inverse`.
    """
    modes = merge_modes(check_layout("an inverse is taken of", layout).modes)
    weights = running_products(tuple(size for size, _ in modes))
    digits = sorted((stride, size, weight) for (size, stride), weight in zip(modes, weights, strict=True))
    if not digits:
        return Layout(1, 0)
    inverse = [(digits[0][0], 0)]
    for (stride, size, weight), (above, _, _) in itertools.pairwise(digits):
        if stride == 0 or above % stride or above < size * stride:
            raise LayoutError(
                f"{layout} has no left inverse: the mode {size}:{stride} and the mode of stride {above} overlap or do not divide",
                legal="strides that divide the next greater one and are at least the span of smaller modes",
            )
        inverse.append((above // stride, weight))
    if digits[0][0] == 0:
        raise LayoutError(f"{layout} has no left inverse: a mode of stride 0 is not injective", legal="strides of at least 1")
    return _from_modes(merge_modes([*inverse, digits[-1][1:]]))


@functools.lru_cache(maxsize=4096)
def runs(sizes: tuple[int, ...], size: int, stride: int) -> tuple[tuple[int, int, int], ...]:
    """The runs of one leaf `size:stride` in a mixed radix of the given sizes, each as `(position, size, stride)`; a run changes one digit.

    This is the leaf's composition with any layout of these sizes, before the layout's strides are known. So no runs are merged.
    Legal when: `composition` is legal, and `stride` changes one digit.

    >>> runs((16, 8), 4, 8)
    ((0, 2, 8), (1, 2, 1))

    Source: CuTe docs, 02_layout_algebra, "Composition".
    """
    result: list[tuple[int, int, int]] = []
    described, reached = f"{size}:{stride} in digits of {shown(sizes)}", 1
    for position, extent in enumerate(sizes):
        end = reached * extent
        if size > 1 and stride < end:
            run = min(size, end // stride)
            if run < 1 or size % run or stride % reached:
                raise LayoutError(f"{described}: its steps cross the end of a digit", legal=f"strides that divide {end}")
            result.append((position, run, stride // reached))
            size, stride = size // run, stride * run
        reached = end
    if size > 1:
        raise LayoutError(f"{described}: there are only {reached} numbers", legal=f"a largest element of at most {reached - 1}")
    return tuple(result)


def reading(parts: Iterable[tuple[int, int, int]], closed: bool = True) -> Layout:
    """The layout that maps x to the sum of `x // stride % size * weight` over the parts `(stride, size, weight)`.

    It is a left inverse that is defined for every x: digits between the parts, and after the last, have stride 0. The last leaf is
    such a gap. If `closed` is False, this leaf is omitted, and the digit of the greatest stride is unbounded.
    Legal when: sorted by stride, each stride is a multiple of the previous stride times its size.

    >>> print(reading([(1, 4, 1), (32, 2, 4)]))
    (4,8,2,1):(1,0,4,0)

    Source: CuTe `left_inverse`, for layouts whose offsets leave digits out.
    """
    modes: list[Mode] = []
    reached = 1
    for stride, size, weight in sorted(parts):
        if stride % reached:
            raise LayoutError(
                f"digits overlap: the part {size}:{stride} does not begin at a multiple of {reached}",
                legal=_multiples_near(reached, stride),
            )
        modes += [(stride // reached, 0)] if stride != reached else []
        modes.append((size, weight))
        reached = stride * size
    modes += [(1, 0)] if closed or not modes else []
    return Layout(tuple(size for size, _ in modes), tuple(stride for _, stride in modes))


def max_common_layout(a: Layout, b: Layout) -> Layout:
    """The layout R of coordinates with `a(R(k)) == b(R(k)) == k` for every k of its domain: the elements of one vector copy.

    Legal when: both have the same size, and `a o right_inverse(b)` is a layout.

    >>> print(max_common_layout(Layout((4, 8), (8, 1)), Layout((4, 8), (16, 1))))
    8:4

    Source: CuTe `max_common_layout`.
    """
    a, b = check_layout("layouts are compared:", a), check_layout("layouts are compared:", b)
    if a.size() != b.size():
        raise LayoutError(f"{a} and {b} have {a.size()} and {b.size()} elements", legal="equal sizes")
    inverse = right_inverse(b)
    first = coalesce(composition(a, inverse)).modes[0]
    return composition(inverse, first[0]) if first[1] == 1 else Layout(1, 0)


def max_common_vector(a: Layout, b: Layout) -> int:
    """The number of corresponding elements that are contiguous in both layouts: the size of `max_common_layout`.

    Legal when: `max_common_layout` is.

    >>> max_common_vector(Layout((4, 8), (8, 1)), Layout((4, 8), (16, 1)))
    8

    Source: CuTe `max_common_vector`.
    """
    return max_common_layout(a, b).size()
