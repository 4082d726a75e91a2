"""Check for all iterations of loops that pieces exist and are disjoint, and that indices belong to enclosing loops."""

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

MAX_ELEMENTS: Final = 2**26
"""Maximum number of elements of a tensor whose pieces are compared element by element."""

MAX_VIEWS: Final = 64
"""Maximum number of pieces of a partition whose views are compared with their coordinates."""

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
    """Refuse an index that is out of range in some iteration, or that uses the variable of a loop that has `ended`.

    `extents` has the trip count of each loop variable.
    """
    for dim, (index, count) in enumerate(zip(place, map(as_expr, counts), strict=True)):
        over = [var for var in index.variables() if var in ended]
        if over:
            raise DecompositionError(
                f"{by}: the index {dim} uses {over[0]}, the variable of a loop that has ended",
                legal="indices of enclosing loops",
                hint="move the launch into the loop",
                at=call_site(),
            )
        last = _last(index, extents)
        if index.low < 0 or (last is not None and (count - last).low < 1 and constant(index) != 0):
            raise DecompositionError(
                f"{by}: the index {dim} is out of range in some iteration",
                got=f"from {index.low} to {last if last is not None else index.high}", legal=f"0 to {count} - 1", at=call_site(),
            )  # fmt: skip


def _last(index: Expr, extents: Mapping[Expr, Expr]) -> Expr | None:
    """Return the maximum of an index over all iterations; None if it is unknown, because the index decreases with some loop."""
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
    """Refuse a tensor that needs more than `most` registers per thread. The tensor is assumed to have equal parts in all threads."""
    sizes = [constant(size) for size in shape]
    count = math.prod(size for size in sizes if size is not None)
    each = -(-count * dtype.bytes // (4 * threads))
    if each > most:
        text = " x ".join(map(str, sizes))
        raise ResourceError(
            f"{name}: {dtype.name} {text} in registers takes {count * dtype.bytes} bytes: {each} registers in each of {threads} threads",
            legal=f"at most {most} registers, {4 * most * threads} bytes", hint="smaller tiles, more warps or warpgroups, or SHARED",
            at=call_site(),
        )  # fmt: skip


def require_declaration(by: Partition, shape: tuple[Any, ...]) -> None:
    """Refuse a user-defined partition whose pieces differ from its declaration.

    The elements of a piece must be the same in the kernel and in NumPy, its shape must be that of `shape`, and pieces of a `disjoint`
    partition must not overlap. For unknown sizes, only `proven` partitions count as disjoint.
    """
    if by.proven:
        return
    sizes = [constant(as_expr(size)) for size in shape]
    known = tuple(size for size in sizes if size is not None)
    text = " x ".join(map(str, shape))
    if len(known) == len(sizes) and math.prod(known) <= MAX_ELEMENTS:
        difference = _difference(by, known)
        if difference:
            raise DecompositionError(
                f"{by}: {difference}", got=f"{text} elements", legal="a partition that fits its declaration", at=call_site()
            )
    elif by.disjoint:
        raise DecompositionError(
            f"{by}: it is unknown whether its pieces are disjoint, for {text} elements", legal=f"known sizes, up to {MAX_ELEMENTS}",
            hint="set disjoint = False and use srange, or set proven = True in its class if it is disjoint for all sizes", at=call_site(),
        )  # fmt: skip


@functools.lru_cache(maxsize=1000)
def _difference(by: Partition, shape: tuple[int, ...]) -> str:
    """Return the difference between a partition and its declaration for a shape, as a text; empty if there is none."""
    counts = tuple(int(count) for count in by.counts(shape))
    whole = whole_view(Tensor("t", tuple(map(as_expr, shape)), float32, RF, ColMajor))
    owner = numpy.full(shape, -1, numpy.int64)
    for number, place in enumerate(itertools.product(*map(range, counts))):
        coordinates = tuple(numpy.asarray(axis) for axis in by.coordinates(shape, place))
        kept = by.axes(len(shape))
        sizes, wanted = tuple(len(coordinates[dim]) for dim in kept), tuple(by.shape(shape))
        if sizes != wanted or any((axis < 0).any() for axis in coordinates):
            actual = [axis.tolist() for axis in coordinates]
            return f"piece {place} must have {' x '.join(map(str, wanted))} elements, but its coordinates are {actual}"
        if not by.of_threads and number < MAX_VIEWS:
            view = by.view(whole, tuple(map(as_expr, place)), frozenset())
            seen = [
                [constant(dim.at(number_in_axis)) for number_in_axis in range(len(where))]
                for dim, where in zip(view.dims, [coordinates[dim] for dim in kept], strict=True)
            ]
            if seen != [coordinates[dim].tolist() for dim in kept]:
                return f"piece {place} has the coordinates {[axis.tolist() for axis in coordinates]}, but its view has {seen}"
        part = numpy.ix_(*(axis[axis < size] for axis, size in zip(coordinates, shape, strict=True)))
        owners = owner[part]
        if by.disjoint and (owners != -1).any():
            other = tuple(map(int, numpy.unravel_index(int(owners[owners != -1].flat[0]), counts)))
            return f"pieces {other} and {place} overlap, although the partition is disjoint"
        owner[part] = number
    return ""
