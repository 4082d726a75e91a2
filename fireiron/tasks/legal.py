"""What of a program is legal for all turns of its loops: pieces that exist, indices of loops that run, tensors that are apart."""

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
"""Most elements of a tensor whose pieces are compared one by one."""

FEW: Final = 64
"""Pieces whose views are compared with their coordinates."""

Path = tuple[tuple[Partition, tuple[Expr, ...]], ...]


def distinct(path: Path, other: Path, free: Collection[Expr] = ()) -> bool:
    """Whether pieces of one tensor, each taken by a path of partitions and places, have no element in common whatever the indices are;
    those that are `free` have other values in one than in the other."""
    for (by, place), (also, there) in zip(path, other, strict=False):
        if by != also or not by.disjoint:
            return False
        for one, two in zip(place, there, strict=True):
            if constant(equal(one, two)) == 0 and not any(var in free for var in (*one.variables(), *two.variables())):
                return True
    return False


def require_inside(
    by: Partition, place: tuple[Expr, ...], counts: tuple[Any, ...], extents: Mapping[Expr, Expr], ended: Collection[Expr]
) -> None:
    """Refuse a place that is not among the pieces in every turn of the loops, whose variables have `extents`; or of a loop that `ended`."""
    for dim, (index, count) in enumerate(zip(place, map(as_expr, counts), strict=True)):
        over = [one for one in index.variables() if one in ended]
        if over:
            raise DecompositionError(
                f"{by}: an index of a loop that is over", legal="indices of the loops around", hint="launch inside the loop", at=call_site()
            )
        last = _last(index, extents)
        if index.low < 0 or (last is not None and (count - last).low < 1 and constant(index) != 0):
            raise DecompositionError(
                f"{by}: the index {dim} is not among the pieces in every turn",
                got=f"from {index.low} to {last if last is not None else index.high}", legal=f"0 to {count} - 1", at=call_site(),
            )  # fmt: skip


def _last(index: Expr, extents: Mapping[Expr, Expr]) -> Expr | None:
    """The largest value of an index, in the last turn of the loops that it grows with; None where it does not grow with each."""
    found = index
    for var in index.variables():
        if var not in extents:
            continue  # a size
        grown = found.substitute({var: var + 1}) - found
        if grown.low < 0:
            return as_expr(index.high) if constant(as_expr(index.high)) is not None else None
        found = found.substitute({var: extents[var] - 1})
    return found


def require_few_registers(name: str, shape: tuple[Expr, ...], dtype: DType, threads: int, most: int) -> None:
    """Refuse a tensor that takes more registers of its threads than each has, if all of them have equal parts; where it is known."""
    sizes = [constant(one) for one in shape]
    count = math.prod(one for one in sizes if one is not None)
    each = -(-count * dtype.bytes // (4 * threads))
    if each > most:
        text = " x ".join(map(str, sizes))
        raise ResourceError(
            f"{name}: {dtype.name} {text} in registers is {count * dtype.bytes} bytes, {each} registers of each of {threads} threads",
            legal=f"at most {most} registers, {4 * most * threads} bytes", hint="smaller tiles, more warps or warpgroups, or SHARED",
            at=call_site(),
        )  # fmt: skip


def require_promises(by: Partition, shape: tuple[Any, ...]) -> None:
    """Refuse a partition of somebody else's whose pieces are not what it says: of other elements for the kernel than for NumPy, of another
    shape, or with common elements though they are `disjoint`. Where sizes are not known, only what is `proven` is disjoint."""
    if by.proven:
        return
    sizes = [constant(as_expr(one)) for one in shape]
    known = tuple(one for one in sizes if one is not None)
    text = " x ".join(map(str, shape))
    if len(known) == len(sizes) and math.prod(known) <= MOST:
        fault = _fault(by, known)
        if fault:
            raise DecompositionError(f"{by}: {fault}", got=f"{text} elements", legal="a partition that does as it says", at=call_site())
    elif by.disjoint:
        raise DecompositionError(
            f"{by}: whether its pieces have common elements is not known for {text} elements", legal=f"known sizes, up to {MOST}",
            hint="disjoint = False, and srange; or proven = True in its class, where it holds for all sizes", at=call_site(),
        )  # fmt: skip


@functools.lru_cache(maxsize=1000)
def _fault(by: Partition, shape: tuple[int, ...]) -> str:
    """What a partition does not do as it says, for a shape; empty if nothing."""
    counts = tuple(int(one) for one in by.counts(shape))
    whole = whole_view(Tensor("t", tuple(map(as_expr, shape)), float32, RF, ColMajor))
    owner = numpy.full(shape, -1, numpy.int64)
    for number, place in enumerate(itertools.product(*map(range, counts))):
        found = tuple(numpy.asarray(one) for one in by.coordinates(shape, place))
        kept = by.axes(len(shape))
        sizes, wanted = tuple(len(found[dim]) for dim in kept), tuple(by.shape(shape))
        if sizes != wanted or any((one < 0).any() for one in found):
            return (
                f"piece {place} is to have {' x '.join(map(str, wanted))} elements, its coordinates are {[one.tolist() for one in found]}"
            )
        if not by.raises and number < FEW:
            view = by.view(whole, tuple(map(as_expr, place)), frozenset())
            seen = [
                [constant(dim.at(one)) for one in range(len(where))]
                for dim, where in zip(view.dims, [found[dim] for dim in kept], strict=True)
            ]
            if seen != [found[dim].tolist() for dim in kept]:
                return f"piece {place} has the coordinates {[one.tolist() for one in found]}, and as a view {seen}"
        part = numpy.ix_(*(one[one < size] for one, size in zip(found, shape, strict=True)))
        taken = owner[part]
        if by.disjoint and (taken != -1).any():
            other = tuple(map(int, numpy.unravel_index(int(taken[taken != -1].flat[0]), counts)))
            return f"pieces {other} and {place} have common elements, and it says that it is disjoint"
        owner[part] = number
    return ""
