"""`wrap_boxes`: load boxes of the front of an array instead of boxes that are completely out of bounds.

The blocks of a cluster have tiles past the end of C if the number of tiles is not a multiple of the cluster. A tile at the end may have
several boxes, the last ones past the end. TMA fills these boxes with zeros. That takes longer than to load data, about 5.4 clocks per row
of 128 bytes (H200, docs/decisions/0135-rows-out-of-bounds.md).

Elements of A past the last row only change elements of C past the last row, which are not stored. So any values serve there. The coordinate
of a box becomes its remainder by the extent, rounded up to complete boxes. A box with an element in bounds keeps its coordinate. Elements
past the end of a dimension that a step reduces must be zero, so their boxes keep their coordinates, too.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Sequence

import attrs

from fireiron.ir import Access, Comment, Exec, IfAnyLane, Kernel, Stmt, TensorMap, rewritten, statements
from fireiron.ir.maps import rows_of_box
from fireiron.spec import Spec
from fireiron.specs.fused import fused
from fireiron.values.expr import ceildiv, constant
from fireiron.values.indirect import DimIndex
from fireiron.values.tensor import Dim, Mode, View


def wrap_boxes(kernel: Kernel) -> Kernel:
    """The kernel whose TMA loads read boxes in bounds, where values do not matter; the same kernel if no box may be out of bounds."""
    dims = independent_dims(kernel.spec)
    if not dims or any(isinstance(stmt, IfAnyLane) for stmt in statements(kernel.body)):  # rows of a warp decide together
        return kernel
    result = _rewritten(kernel, dims, divides=True)
    names = [one.name for one in result.maps]
    return result if len(names) == len(set(names)) else _rewritten(kernel, dims, divides=False)


def _rewritten(kernel: Kernel, dims: Collection[str], divides: bool) -> Kernel:
    """The kernel with other loads; `divides`: boxes may have fewer rows, if all statements that use a tensor map agree."""
    body = rewritten(kernel.body, lambda stmt: _of_boxes(kernel, stmt, dims, divides))
    same = len(body) == len(kernel.body) and all(one is other for one, other in zip(body, kernel.body, strict=True))
    return kernel if same else attrs.evolve(kernel, body=body)


def independent_dims(spec: Spec) -> frozenset[str]:
    """The dimensions whose coordinates past the end only affect elements of outputs past the end of the same dimension.

    Every output has such a dimension, and no step combines elements along it. If a tensor is indexed by two dimensions of equal size, none
    is returned.
    """
    definition = fused(spec)
    if definition is None and not spec.contracts:
        return frozenset()
    stored = [set(spec.uses[name]) for name in spec.outputs]
    common = frozenset.intersection(*map(frozenset, stored)) if stored else frozenset()
    if definition is None:
        return common
    if definition.equal_sizes or definition.indexed:
        return frozenset()
    combined = {*definition.combined, *definition.loops, *(dim for step in definition.steps for dim in step.formula.over)}
    return common - combined


def _of_boxes(kernel: Kernel, stmt: Stmt, dims: Collection[str], divides: bool) -> Sequence[Stmt]:
    """The loads of the single boxes of a load if some boxes may be out of bounds, else the statement."""
    if not isinstance(stmt, Exec) or stmt.tensor_map is None or not stmt.mechanism.counted or stmt.tensor_map.im2col is not None:
        return (stmt,)
    name = next((one for one, access in stmt.operands.items() if access.buffer == stmt.tensor_map.buffer), None)
    if name is None:
        return (stmt,)  # of another array than its tensor map, which the checks report
    view, buffer = stmt.spec.operands[name], kernel.buffer(stmt.tensor_map.buffer)
    if len(view.dims) != 2 or not buffer.parameter or buffer.written or buffer.name not in kernel.spec.uses:
        return (stmt,)
    tile = view.axis(0), view.axis(1)
    places = [_place_in_map(view, axis, stmt.tensor_map) for axis in tile]
    if None in places:
        return (stmt,)
    box = [stmt.tensor_map.box[place] for place in places if place is not None]
    names = kernel.spec.uses[buffer.name]
    free = [names[axis] in dims and _is_coordinate(view, axis) for axis in tile]
    access = stmt.operands[name]
    if divides and 1 in places and free[places.index(1)]:
        dim = places.index(1)
        box[dim] = _rows(access, tile[dim], box[dim])
        sizes = dict(zip(places, box, strict=True))
        tensor_map = attrs.evolve(stmt.tensor_map, box=tuple(sizes.get(place, size) for place, size in enumerate(stmt.tensor_map.box)))
        stmt = attrs.evolve(stmt, tensor_map=tensor_map) if tensor_map != stmt.tensor_map else stmt
    periods = [_period(access, axis, size) if own else None for axis, size, own in zip(tile, box, free, strict=True)]
    if periods == [None, None]:
        return (stmt,)
    return (
        Comment(f"a box past the end of {buffer.name} loads its front (%), faster than zeros; only results that are not stored use it"),
        *_box_loads(stmt, name, box, periods),
    )


def _place_in_map(view: View, axis: int, tensor_map: TensorMap) -> int | None:
    """The dimension of a map that a dimension of a tensor counts; None if an index has another form."""
    through = view.tensor.through
    if through is None:
        return tensor_map.order.index(axis)
    places = [place for place, dim in enumerate(tensor_map.order) if through.own_axis(dim, (axis,)) == axis]
    return places[0] if len(places) == 1 else None


def _is_coordinate(view: View, axis: int) -> bool:
    """Whether the coordinate along a dimension is an index of the array."""
    return view.tensor.through is None or DimIndex(axis) in view.tensor.through.index


def _rows(access: Access, axis: int, box: int) -> int:
    """The rows of the boxes into which boxes at the end of an array are divided."""
    bound = access.bounds[axis]
    extent = None if bound is None else constant(bound)
    return rows_of_box(box, extent) if extent else box


def _period(access: Access, axis: int, box: int) -> int | None:
    """The extent rounded up to complete boxes, if some box of a tile may be past it along a dimension; otherwise None.

    Tiles start at multiples of a box, so that the rounded extent is a start of a box.
    """
    bound, base = access.bounds[axis], access.base[axis]
    extent = None if bound is None else constant(bound)
    if not extent or base.factor % box or base.high + access.shape[axis] - box < extent:
        return None
    return constant(ceildiv(extent, box) * box)


def _box_loads(stmt: Exec, name: str, box: Sequence[int], periods: Sequence[int | None]) -> Iterator[Exec]:
    """The loads of the boxes of a statement whose operand `name` is the array."""
    sizes = [constant(size) or 0 for size in stmt.spec.operands[name].shape]
    for starts in itertools.product(*(range(0, size, step) for size, step in zip(sizes, box, strict=True))):
        views = {operand: _part(view, box) for operand, view in stmt.spec.operands.items()}
        accesses = tuple(
            _moved(access, view, starts, box, periods if operand == name else (None, None))
            for (operand, access), view in zip(stmt.operands.items(), stmt.spec.operands.values(), strict=True)
        )
        yield attrs.evolve(stmt, spec=stmt.spec.with_operands(**views), accesses=accesses)


def _part(view: View, box: Sequence[int]) -> View:
    """A view of one box of a view."""
    parts = enumerate(zip(box, view.dims, strict=True))
    return view.with_dims({dim: Dim((Mode(size, 1),), part.bound, part.fixed) for dim, (size, part) in parts})


def _moved(access: Access, view: View, starts: Sequence[int], box: Sequence[int], periods: Sequence[int | None]) -> Access:
    """The access of a box that begins at an offset of a tile."""
    base, modes = list(access.base), list(access.modes)
    for dim, (start, size, period) in enumerate(zip(starts, box, periods, strict=True)):
        axis = view.axis(dim)
        base[axis] = base[axis] + start if period is None else (base[axis] + start) % period
        modes[axis] = (Mode(size, 1),)
    return attrs.evolve(access, base=tuple(base), modes=tuple(modes))
