"""TMA for tiles whose indices are digits: one thread copies each element of an array once by one instruction (Hopper).

PTX ISA, "Data Movement and Conversion Instructions: cp.async.bulk.tensor". Quantized weights have several elements of a formula in one
element of an array, `P[n,k // 8]`, or one scale for a group, `S[k // 128,n]`. The load of such a tile copies each element of the array
once, and these elements are a box. The box is stored without a swizzle, in the order of the array. Its bytes complete on the full barrier
of its ring.

>>> from fireiron.strategies import w4a16
>>> text = w4a16.strategy(w4a16.spec(128, 256, 512)).cuda("sm_90a")
>>> text.count("prefetch_tensor_map(&")  # tensor maps of A, of words of weights, of scales, and of C
4
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import attrs

from fireiron.frozen import frozen
from fireiron.ir import Exec, StageState, Stmt, TensorMap
from fireiron.ir.text import Item, Printer
from fireiron.language.tree import Draft, Executable, Mismatch, access_of
from fireiron.performing.boxes import MOST_ROWS, MULTIPLE, RANKS, load_function
from fireiron.performing.tma_loads import TmaTileLoad
from fireiron.spec import Spec
from fireiron.values.affine import AffineIndex
from fireiron.values.document import called
from fireiron.values.expr import ZERO, as_expr, constant
from fireiron.values.indirect import DimIndex
from fireiron.values.tensor import View

STAGE = 128
"""Alignment in bytes of the destination in shared memory."""


@frozen
class TmaDigitLoad(TmaTileLoad):
    """`Move(r,c)(GL -> SH)(Block)` from an array whose indices are digits, by one thread of the producer."""

    def performs(self) -> str:
        return "Move(r,c)(GL,SH)(Block), src by digits of coordinates; rows, address: multiples of 16 bytes; with warp_specialize()"

    def may_perform(self, spec: Spec) -> bool:
        return super().may_perform(spec) and len(spec.dims) > 1 and spec.src.tensor.by_digits

    def array_mismatches(self, spec: Spec) -> tuple[Mismatch, ...]:
        return _source_mismatch(spec.src) or _target_mismatch(spec.src, spec.dst)

    def emit(self, spec: Spec, draft: Draft) -> tuple[Stmt, ...]:
        accesses = tuple(access_of(view, name in spec.outputs, draft.origin) for name, view in spec.operands.items())
        sizes, array = _sizes(spec.src), spec.src.tensor.name
        order = _order(spec.src, sizes)
        tensor_map = TensorMap(f"{array}_map", array, order, tuple(sizes[axis] for axis in order), MULTIPLE)
        statement = Exec(self, spec, accesses, spec.accumulate, draft.active, mechanism=self.mechanism, origin=draft.origin)
        return (attrs.evolve(statement, tensor_map=tensor_map),)

    def cuda(self, printer: Printer, statement: Exec) -> Sequence[Item]:
        tensor_map = statement.tensor_map
        assert tensor_map is not None
        barrier = printer.barrier(statement.ring, StageState.FULL, statement.fill_index)
        outside, inside = statement.accesses
        coordinates = statement.spec.src.tensor.array_coordinates(outside.base)
        return [
            called(
                printer.function(load_function(len(tensor_map.order))),
                printer.shared_address(inside, (0,) * len(inside.base)),
                f"&{tensor_map.name}",
                *(printer.expression(coordinates[axis]) for axis in tensor_map.order),
                barrier,
            )
        ]


def _steps(view: View) -> list[tuple[int, ...]]:
    """Return the coordinates of the elements of a tile minus those of its first element, by dimension of the tensor."""
    steps: list[tuple[int, ...]] = [(0,)] * len(view.tensor.shape)
    for number, dim in enumerate(view.dims):
        count = constant(dim.size) or 0
        steps[view.axis(number)] = tuple(constant(dim.at(index) - dim.base) or 0 for index in range(count))
    return steps


def _offsets(view: View) -> Any:
    """Return the indices in the array of the elements of a tile, minus those of its first element; the last dimension is the fastest."""
    import numpy as np  # slow to import

    steps = _steps(view)
    order = [view.axis(number) for number in range(len(view.dims))]
    grid = dict(zip(order, np.meshgrid(*(np.array(steps[axis]) for axis in order), indexing="ij"), strict=True))
    shape = next(iter(grid.values())).shape
    indices = view.tensor.array_steps([grid.get(axis, np.zeros(shape, np.int64)) for axis in range(len(steps))])
    return np.stack([np.broadcast_to(index, shape).reshape(-1) for index in indices], axis=-1)


def _sizes(view: View) -> tuple[int, ...]:
    """Return the size of the box of a tile along each dimension of the array."""
    return tuple(int(size) + 1 for size in _offsets(view).max(axis=0))


def _order(view: View, sizes: Sequence[int]) -> tuple[int, ...]:
    """Return the dimensions of the array in the order of a tensor map: the contiguous one, those with several elements, the others."""
    steps = view.tensor.array.storage().steps
    along = next((axis for axis, step in enumerate(steps) if step is not None and constant(step) == 1), len(steps) - 1)
    others = [axis for axis in reversed(range(len(steps))) if axis != along]
    return (along, *sorted(others, key=lambda axis: sizes[axis] == 1))


def _is_index(view: View, axis: int) -> bool:
    """Whether a coordinate itself is an index of the array, and no digit of it: TMA reads zeros past the end of this dimension."""
    through = view.tensor.through
    assert through is not None
    digits = {term.dim for index in through.index if isinstance(index, AffineIndex) for term in index.digits}
    return axis not in digits and DimIndex(axis) in through.index


def _carries(view: View) -> str | None:
    """Return an index whose digit in the tile depends on the first coordinate, since the tile does not start at a multiple; or None."""
    through, steps = view.tensor.through, _steps(view)
    assert through is not None
    bases = {view.axis(number): dim.base for number, dim in enumerate(view.dims)}
    for index in through.index:
        parts = index.digits if isinstance(index, AffineIndex) else (index,) if isinstance(index, DimIndex) else ()
        for part in parts:
            period = part.divisor * (part.modulus or 1)
            if len(steps[part.dim]) > 1 and period > 1 and bases[part.dim].factor % period:
                return f"from {bases[part.dim]} on, which is not a multiple of {period}"
    return None


def _source_mismatch(view: View) -> tuple[Mismatch, ...]:
    if not view.tensor.by_digits:
        return (Mismatch("src array", "an index that is a digit of a coordinate", "dimensions as indices"),)
    storage, steps = view.tensor.storage(), view.tensor.array.storage().steps
    if storage.tables or storage.computed or storage.windows or storage.reversed:
        return (Mismatch("src index", "digits and coordinates", "a table, a window, or an exact quotient"),)
    if len(steps) not in RANKS:
        return (Mismatch("src array", f"{RANKS[0]} to {RANKS[-1]} dimensions", f"{len(steps)}"),)
    if view.tensor.align % MULTIPLE:
        return (Mismatch("src address", f"a multiple of {MULTIPLE} bytes", f"of {view.tensor.align}"),)
    if any(not constant(size) for size in view.shape):
        return (Mismatch("src tile", "a tile of a known size", "x".join(map(str, view.shape))),)
    if any(dim.bound is not None and not _is_index(view, view.axis(number)) for number, dim in enumerate(view.dims)):
        return (Mismatch("src tile", "a tile that ends before the last digit", "a tile that may extend past the end of digits"),)
    if carried := _carries(view):
        return (Mismatch("src tile", "elements from a multiple of the period of each digit on", carried),)
    sizes = _sizes(view)
    along, *others = _order(view, sizes)
    if (first := steps[along]) is None or constant(first) != 1:
        return (Mismatch("src array", "a contiguous dimension", str(view.tensor.array.layout)),)
    for axis in others:
        step = steps[axis]
        if step is None or as_expr(step).factor * view.dtype.bytes % MULTIPLE or step == ZERO:
            return (Mismatch("src strides", f"multiples of {MULTIPLE} bytes", f"{step} elements of {view.dtype.bytes} bytes"),)
    offsets = _offsets(view)
    if len({tuple(place) for place in offsets.tolist()}) != len(offsets) or math.prod(sizes) != len(offsets):
        return (Mismatch("src tile", "each element of a box of the array once", f"{len(offsets)} elements in a box of {sizes}"),)
    if max(sizes) > MOST_ROWS or sizes[along] * view.dtype.bytes % MULTIPLE:
        got = f"{'x'.join(map(str, sizes))} elements of {view.dtype.bytes} bytes"
        return (Mismatch("src tile", f"at most {MOST_ROWS} elements along a dimension, rows of a multiple of {MULTIPLE} bytes", got),)
    return ()


def _target_mismatch(source: View, view: View) -> tuple[Mismatch, ...]:
    import numpy as np  # slow to import

    storage, sizes, offsets = view.tensor.storage(), _sizes(source), _offsets(source)
    order = _order(source, sizes)
    weights = np.cumprod((1, *(sizes[axis] for axis in order[:-1])))
    steps = _steps(view)
    axes = [view.axis(number) for number in range(len(view.dims))]
    parts = np.meshgrid(*(np.array([storage.part(axis, step) for step in steps[axis]]) for axis in axes), indexing="ij")
    if storage.swizzle is not None or not np.array_equal(np.sum(parts, axis=0).reshape(-1), offsets[:, list(order)] @ weights):
        return (Mismatch("dst storage", "elements in the order of the array, without padding", str(view.tensor.layout)),)
    if (constant(storage.extent) or 0) * view.dtype.bytes % STAGE:
        return (Mismatch("dst storage", f"a multiple of {STAGE} bytes", f"{storage.extent} elements of {view.dtype.bytes} bytes"),)
    return ()


TMA_DIGIT_LOAD = TmaDigitLoad("TMA_DIGIT_LOAD")

INSTRUCTIONS: tuple[Executable, ...] = (TMA_DIGIT_LOAD,)

__all__ = ["TMA_DIGIT_LOAD", "TmaDigitLoad"]
