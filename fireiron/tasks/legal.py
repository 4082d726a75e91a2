"""Legality checks for all iterations of a program's loops: pieces that exist, indices of enclosing loops, disjoint tensors."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Collection, Mapping
from typing import Any, Final

import numpy

from fireiron.errors import DecompositionError, ResourceError, call_site
from fireiron.tasks.partition import Partition
from fireiron.values.expr import Expr, as_expr, constant, equal
from fireiron.values.machine import RF, DType, float32
from fireiron.values.tensor import ColMajor, Tensor, whole_view

MOST: Final = 2**26
"""Maximum number of elements of a tensor whose pieces are compared element by element."""

FEW: Final = 64
"""Number of pieces whose views are compared with their coordinates."""

Path = tuple[tuple[Partition, tuple[Expr, ...]], ...]


def distinct(path: Path, other_path: Path, free: Collection[Expr] = ()) -> bool:
    """Whether two pieces of a tensor, each a path of partitions and indices, are disjoint for all values of the indices.

    Variables that are `free` may have different values in the two paths."""
    for (by, place), (other_by, other_place) in zip(path, other_path, strict=False):
        if by != other_by or not by.disjoint:
            return False
        for left, right in zip(place, other_place, strict=True):
            if constant(equal(left, right)) == 0 and not any(var in free for var in (*left.variables(), *right.variables())):
                return True
    return False


def require_inside(
    by: Partition, place: tuple[Expr, ...], counts: tuple[Any, ...], extents: Mapping[Expr, Expr], ended: Collection[Expr]
) -> None:
    """Refuse an index outside the pieces in some iteration of the loops, whose variables have `extents`, or of a loop that has `ended`."""
    for dim, (index, count) in enumerate(zip(place, map(as_expr, counts), strict=True)):
        over = [var for var in index.variables() if var in ended]
        if over:
            raise DecompositionError(
                f"{by}: the index of a loop that has ended",
                legal="indices of enclosing loops",
                hint="launch inside the loop",
                at=call_site(),
            )
        last = _last(index, extents)
        if index.low < 0 or (last is not None and (count - last).low < 1 and constant(index) != 0):
            raise DecompositionError(
                f"{by}: the index {dim} is out of range in some iteration",
                got=f"from {index.low} to {last if last is not None else index.high}", legal=f"0 to {count} - 1", at=call_site(),
            )  # fmt: skip


def _last(index: Expr, extents: Mapping[Expr, Expr]) -> Expr | None:
    """The maximum of an index, in the last iteration of the loops with which it increases; None if it does not increase with each."""
    largest = index
    for var in index.variables():
        if var not in extents:
            continue  # a size
        increase = largest.substitute({var: var + 1}) - largest
        if increase.low < 0:
            return as_expr(index.high) if constant(as_expr(index.high)) is not None else None
        largest = largest.substitute({var: extents[var] - 1})
    return largest


def require_few_registers(name: str, shape: tuple[Expr, ...], dtype: DType, threads: int, most: int) -> None:
    """Refuse a tensor that needs more registers per thread than there are, if its size is known and all threads have equal parts."""
    sizes = [constant(size) for size in shape]
    count = math.prod(size for size in sizes if size is not None)
    each = -(-count * dtype.bytes // (4 * threads))
    if each > most:
        text = " x ".join(map(str, sizes))
        raise ResourceError(
            f"{name}: {dtype.name} {text} in registers takes {count * dtype.bytes} bytes, {each} registers per thread of {threads} threads",
            legal=f"at most {most} registers, {4 * most * threads} bytes", hint="smaller tiles, more warps or warpgroups, or SHARED",
            at=call_site(),
        )  # fmt: skip


def require_promises(by: Partition, shape: tuple[Any, ...]) -> None:
    """Refuse a user's partition whose pieces differ from its declaration: other elements in the kernel than in NumPy, another shape, or
    overlaps although it is `disjoint`. For unknown sizes, only `proven` partitions count as disjoint."""
    if by.proven:
        return
    sizes = [constant(as_expr(size)) for size in shape]
    known = tuple(size for size in sizes if size is not None)
    text = " x ".join(map(str, shape))
    if len(known) == len(sizes) and math.prod(known) <= MOST:
        fault = _fault(by, known)
        if fault:
            raise DecompositionError(
                f"{by}: {fault}", got=f"{text} elements", legal="a partition that fits its declaration", at=call_site()
            )
    elif by.disjoint:
        raise DecompositionError(
            f"{by}: disjointness of its pieces is unknown for {text} elements", legal=f"known sizes, up to {MOST}",
            hint="disjoint = False, and srange; or proven = True in its class, if it holds for all sizes", at=call_site(),
        )  # fmt: skip


@functools.lru_cache(maxsize=1000)
def _fault(by: Partition, shape: tuple[int, ...]) -> str:
    """How a partition differs from its declaration, for a shape; empty if it does not."""
    counts = tuple(int(count) for count in by.counts(shape))
    whole = whole_view(Tensor("t", tuple(map(as_expr, shape)), float32, RF, ColMajor))
    owner = numpy.full(shape, -1, numpy.int64)
    for number, place in enumerate(itertools.product(*map(range, counts))):
        coordinates = tuple(numpy.asarray(axis) for axis in by.coordinates(shape, place))
        kept = by.axes(len(shape))
        sizes, wanted = tuple(len(coordinates[dim]) for dim in kept), tuple(by.shape(shape))
        if sizes != wanted or any((axis < 0).any() for axis in coordinates):
            actual = [axis.tolist() for axis in coordinates]
            return f"piece {place} must have {' x '.join(map(str, wanted))} elements, its coordinates are {actual}"
        if not by.raises and number < FEW:
            view = by.view(whole, tuple(map(as_expr, place)), frozenset())
            seen = [
                [constant(dim.at(number_in_axis)) for number_in_axis in range(len(where))]
                for dim, where in zip(view.dims, [coordinates[dim] for dim in kept], strict=True)
            ]
            if seen != [coordinates[dim].tolist() for dim in kept]:
                return f"piece {place} has the coordinates {[axis.tolist() for axis in coordinates]}, and as a view {seen}"
        part = numpy.ix_(*(axis[axis < size] for axis, size in zip(coordinates, shape, strict=True)))
        owners = owner[part]
        if by.disjoint and (owners != -1).any():
            other = tuple(map(int, numpy.unravel_index(int(owners[owners != -1].flat[0]), counts)))
            return f"pieces {other} and {place} overlap, although the partition is disjoint"
        owner[part] = number
    return ""
