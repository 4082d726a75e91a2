"""Divide the views of a spec into tiles: views of one tile, the digits of tile indices, loops over tiles."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import TypeAlias

import attrs

from fireiron.errors import DecompositionError
from fireiron.frozen import frozen
from fireiron.ir import For, Stmt
from fireiron.language.tree import Draft
from fireiron.spec import Spec
from fireiron.values.expr import Expr, Var, as_expr, constant
from fireiron.values.layout import Layout
from fireiron.values.tensor import Cut, Dim, Fixed, Mode, View, chunks, cut, require_cut


@frozen
class Step:
    """A digit of a tile index: `size` values; its unit is `strides[operand]` coordinates along `dim`."""

    dim: str
    size: Expr
    strides: Mapping[str, Expr]


Extent: TypeAlias = "int | Layout | tuple[int, int | None]"
"""A tile along one dimension: n contiguous elements, the layout of its elements, or `(chunk, repeat)`: a chunk every `repeat` elements."""


def divide(spec: Spec, extents: Mapping[str, Extent], what: str) -> tuple[dict[str, View], list[Step]]:
    """Return the operands' views of tile 0, and the digits of the tile index, slowest first."""
    cuts: dict[str, dict[str, Cut]] = {}
    coarse = spec.definition.coarse
    for name, view in spec.operands.items():
        cuts[name] = {}
        for position, dim in enumerate(spec.uses[name]):
            if dim in extents:
                extent = _coarse(extents[dim], coarse[name][position], name, dim, what, spec) if name in coarse else extents[dim]
                cuts[name][dim] = _cut(view.dims[position], extent, view.extent(position), what, spec)
    if coarse:
        fewer = {name: [dim for dim, count in zip(spec.uses[name], counts, strict=True) if count > 1] for name, counts in coarse.items()}
        cuts = _counted_equally(cuts, fewer)
    digits = [digit for dim in spec.dims if dim in extents for digit in _digits(dim, cuts)]
    views = {name: _inner(view, spec.uses[name], cuts[name]) for name, view in spec.operands.items()}
    return views, digits


def _coarse(extent: Extent, count: int, name: str, dim: str, what: str, spec: Spec) -> Extent:
    """Return a tile in elements of an operand that has one element per `count` coordinates of a dimension."""
    sizes = [size for size in (extent if isinstance(extent, tuple) else (extent,)) if size is not None]
    if count == 1 or (all(isinstance(size, int) for size in sizes) and all(size % count == 0 for size in sizes)):  # type: ignore[operator]
        if count == 1 or isinstance(extent, Layout):
            return extent
        return (extent[0] // count, extent[1] and extent[1] // count) if isinstance(extent, tuple) else extent // count
    total = constant(spec.size(dim))
    legal = f"multiples of {count}" if total is None else [size for size in range(count, total + 1, count) if total % size == 0]
    raise DecompositionError(
        f"{what}: {name} has one element per {count} coordinates of {dim}", got=f"tiles of {extent} along {dim}", legal=legal, within=spec
    )


def _counted_equally(cuts: dict[str, dict[str, Cut]], coarse: Mapping[str, Collection[str]]) -> dict[str, dict[str, Cut]]:
    """Return the cuts with one expression for the number of tiles along a dimension: that of an operand with fewer elements.

    `coarse` are the dimensions along which operands have fewer elements than coordinates. An extent and a tile size are divided by the same
    number, so the number of tiles is the same. The expression contains what is known to divide the extent of the operand, which proves its
    bounds.
    """
    pairs = [(dim, cuts[name][dim]) for name, dims in coarse.items() for dim in dims if dim in cuts[name]]
    counts = {dim: cut.outer[0].size for dim, cut in reversed(pairs) if len(cut.outer) == 1}

    def counted(cut: Cut, dim: str) -> Cut:
        if dim not in counts or len(cut.outer) != 1 or constant(cut.outer[0].size) is not None:
            return cut
        return attrs.evolve(cut, outer=(Mode(counts[dim], cut.outer[0].stride),))

    return {name: {dim: counted(cut, dim) for dim, cut in by_dim.items()} for name, by_dim in cuts.items()}


def _cut(part: Dim, extent: Extent, whole: Expr, what: str, spec: Spec) -> Cut:
    if not isinstance(extent, tuple):
        return require_cut(cut(part, extent, whole), extent, part, what, spec)
    chunk, repeat = extent
    tile = chunk if repeat is None else chunks(chunk, repeat, constant(part.size))
    return require_cut(None if tile is None else cut(part, tile, whole), repeat or chunk, part, what, spec)


def _inner(view: View, dims: tuple[str, ...], cuts: Mapping[str, Cut]) -> View:
    changed = {}
    for position, (dim, part) in enumerate(zip(dims, view.dims, strict=True)):
        if dim in cuts:
            changed[position] = Dim(cuts[dim].inner, cuts[dim].bound, part.fixed)
    return view.with_dims(changed)


def _digits(dim: str, cuts: Mapping[str, Mapping[str, Cut]]) -> list[Step]:
    """Return the digits of a dimension's tile index that suit all operands, slowest first."""
    outer = {name: list(by_dim[dim].outer) for name, by_dim in cuts.items() if dim in by_dim}
    digits: list[Step] = []
    while any(outer.values()):
        sizes = [modes[0].size for modes in outer.values() if modes]
        step = _common(sizes)
        if step is None or not all(outer.values()):
            raise DecompositionError(
                f"dimension {dim}: the operands are divided in incompatible ways ({', '.join(map(str, sizes))})",
                hint="tile them equally, or load the operand after the strided tile",
            )
        strides = {}
        for name, modes in outer.items():
            mode = modes[0]
            strides[name] = mode.stride
            if mode.size == step:
                modes.pop(0)
            else:
                modes[0] = Mode(mode.size // step, mode.stride * step)
        digits.append(Step(dim, step, strides))
    return digits[::-1]


def _common(sizes: list[Expr]) -> Expr | None:
    """Return the largest first digit common to all sizes; run-time sizes must be equal."""
    if all(size == sizes[0] for size in sizes):
        return sizes[0]
    numbers = [constant(size) for size in sizes]
    if any(number is None for number in numbers):
        return None
    step = math.gcd(*[number for number in numbers if number is not None])
    return as_expr(step) if step > 1 else None


def moved(views: Mapping[str, View], spec: Spec, digit: Step, index: Expr, unit: bool) -> dict[str, View]:
    """Return the views, moved by `index` tiles along a digit."""
    result = {}
    for name, view in views.items():
        dims = spec.uses[name]
        if digit.dim not in dims:
            result[name] = view
            continue
        position = dims.index(digit.dim)
        place = Fixed(digit.size, digit.strides[name], unit, index)
        result[name] = view.with_dims({position: view.dims[position].moved(place)})
    return result


def product(digits: list[Step]) -> int | None:
    """Return the number of tiles; None if it is known only at run time."""
    total = 1
    for digit in digits:
        number = constant(digit.size)
        if number is None:
            return None
        total *= number
    return total


def shares_of_digits(order: list[Step], units: int) -> tuple[list[tuple[Step, Expr]], list[Step]] | None:
    """Return the digits distributed over units and those that remain as loops, both fastest first; None if they do not divide evenly."""
    distributed: list[tuple[Step, Expr]] = []
    rest: list[Step] = []
    left = units
    for digit in order:
        size = constant(digit.size)
        assert size is not None
        if left == 1:
            rest.append(digit)
        elif left % size == 0:
            distributed.append((digit, digit.size))
            left //= size
        elif size % left == 0:
            distributed.append((attrs.evolve(digit, size=as_expr(left)), as_expr(left)))
            strides = {name: stride * left for name, stride in digit.strides.items()}
            rest.append(Step(digit.dim, as_expr(size // left), strides))
            left = 1
        else:
            return None
    return (distributed, rest) if left == 1 else None


def loop_over(
    spec: Spec, views: dict[str, View], digits: list[Step], unroll: bool, draft: Draft, inner: tuple[Stmt, ...]
) -> tuple[dict[str, View], tuple[Stmt, ...], list[Var]]:
    """Return the views at the current tile, loops over digits around `inner` (slowest outermost), and the loop variables.

    `draft` makes the names; return its `expansion`.
    """
    variables = []
    for digit in digits:
        label = spec.labels[spec.dims.index(digit.dim)]
        var = Var(draft.fresh(label), 0, max(digit.size.high - 1, 0))
        views = moved(views, spec, digit, var, unit=False)
        variables.append(var)
    body = inner
    for digit, var in zip(reversed(digits), reversed(variables), strict=True):
        body = (For(var, digit.size, body, unroll, draft.origin),)
    return views, body, variables
