"""Faults in the elements that statements access, and how often: offsets, strides, lanes, swizzles, guards, boxes, initial values, steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import attrs

from campaign.faults.kind import DEPTH, EVERY, Kind, Planted, Spot, spots
from fireiron import ir
from fireiron.values.expr import FALSE, ONE, TRUE, Expr, Less, all_of, conjuncts, less
from fireiron.values.layout import Layout
from fireiron.values.tensor import Storage

OPERANDS = "threads pipeline fused ring cluster turns dynamic share hopper-tasks ampere-tasks"
SAME_ADDRESS = "the other elements have the same values, or nobody uses them"


def operands(kernel: ir.Kernel) -> Iterator[tuple[Spot, int, ir.Access]]:
    """All accesses of all statements, with their numbers."""
    for spot in spots(kernel, ir.Exec):
        for position, access in enumerate(spot.one.accesses):
            yield spot, position, access


def with_access(spot: Spot, position: int, access: ir.Access) -> ir.Kernel:
    """The kernel with one access of a statement replaced."""
    accesses = spot.one.accesses
    return spot.with_one(attrs.evolve(spot.one, accesses=(*accesses[:position], access, *accesses[position + 1 :])))


def of_accesses(change: Callable[[ir.Kernel, ir.Access], Iterator[ir.Access]]) -> Callable[[ir.Kernel], Iterator[Planted]]:
    """Faults that change one access of one statement."""

    def plant(kernel: ir.Kernel) -> Iterator[Planted]:
        for spot, position, access in operands(kernel):
            for number, changed in enumerate(change(kernel, access)):
                if changed != access:
                    yield (
                        f"{spot}, {access.buffer}, {number}",
                        lambda spot=spot, position=position, changed=changed: with_access(spot, position, changed),
                    )

    return plant


def by_one(kernel: ir.Kernel, access: ir.Access) -> Iterator[ir.Access]:
    """One element further along a dimension."""
    for dim, coordinate in enumerate(access.base):
        yield attrs.evolve(access, base=(*access.base[:dim], coordinate + 1, *access.base[dim + 1 :]))


def swapped(kernel: ir.Kernel, access: ir.Access) -> Iterator[ir.Access]:
    """Two adjacent coordinates exchanged."""
    for dim in range(len(access.base) - 1):
        first, second = access.base[dim : dim + 2]
        yield attrs.evolve(access, base=(*access.base[:dim], second, first, *access.base[dim + 2 :]))


def of_other_lanes(kernel: ir.Kernel, access: ir.Access) -> Iterator[ir.Access]:
    """The accesses of the next thread."""
    if kernel.workers > 1 and any(kernel.thread in one.variables() for one in access.base):
        yield access.substitute({kernel.thread: kernel.thread ^ 1})


def in_other_order(kernel: ir.Kernel, access: ir.Access) -> Iterator[ir.Access]:
    """The first two values of a lane exchanged."""
    if len(access.points) > 1:
        first, second, *rest = access.points
        yield attrs.evolve(access, points=(second, first, *rest))


def stored_otherwise(change: Callable[[Storage], Storage | None]) -> Callable[[ir.Kernel, ir.Access], Iterator[ir.Access]]:
    """An access in shared memory with another storage layout than the buffer's, on one side only."""

    def accesses(kernel: ir.Kernel, access: ir.Access) -> Iterator[ir.Access]:
        buffer = kernel.buffer(access.buffer)
        if buffer.memory.of_block and access.storage is None:
            storage = change(buffer.storage)
            if storage is not None:
                yield attrs.evolve(access, storage=storage)

    return accesses


def unswizzled(storage: Storage) -> Storage | None:
    """Without the swizzle."""
    return None if storage.swizzle is None else attrs.evolve(storage, swizzle=None)


def padded(storage: Storage) -> Storage | None:
    """Rows one element further apart: the largest numeric stride."""
    layout = _with_longest(storage.layout, lambda stride: stride + 1)
    return None if layout is None else Storage(layout, storage.extent, storage.swizzle)


def _with_longest(layout: Layout, change: Callable[[int], int]) -> Layout | None:
    """The layout with another largest stride; None if no stride is a number above 1."""
    longest = max(_numbers(layout.stride), default=1)
    return None if longest < 2 else Layout(layout.shape, _replaced(layout.stride, longest, change(longest)))


def _numbers(strides: object) -> Iterator[int]:
    if isinstance(strides, tuple):
        for stride in strides:
            yield from _numbers(stride)
    elif isinstance(strides, int):
        yield strides


def _replaced(strides: object, old: int, new: int) -> object:
    if isinstance(strides, tuple):
        return tuple(_replaced(one, old, new) for one in strides)
    return new if strides == old else strides


def without_one_variable(kernel: ir.Kernel, access: ir.Access) -> Iterator[ir.Access]:
    """The same element for all values of a loop, a name or a block."""
    for var in sorted({one for base in access.base for one in base.variables()}, key=str):
        if var != kernel.thread and var not in kernel.symbols:
            yield access.substitute({var: 0})


# ---------------------------------------------------------------------------------------------- conditions


def of_statements(change: Callable[[ir.Kernel, ir.Exec], Iterator[ir.Exec]]) -> Callable[[ir.Kernel], Iterator[Planted]]:
    """Faults that change one working statement."""

    def plant(kernel: ir.Kernel) -> Iterator[Planted]:
        for spot in spots(kernel, ir.Exec):
            for number, changed in enumerate(change(kernel, spot.one)):
                if changed != spot.one:
                    yield f"{spot}, {number}", lambda spot=spot, changed=changed: spot.with_one(changed)

    return plant


def conditioned(stmt: ir.Exec, change: Callable[[Expr], Expr]) -> ir.Exec:
    """A statement with other bounds conditions, in a single version."""
    pieces = tuple(tuple(attrs.evolve(piece, condition=change(piece.condition)) for piece in pieces) for pieces in stmt.pieces)
    return attrs.evolve(stmt, guard=change(stmt.guard), pieces=pieces, interior=FALSE, implied=())


def unguarded(kernel: ir.Kernel, stmt: ir.Exec) -> Iterator[ir.Exec]:
    """No bounds conditions."""
    if stmt.pieces:
        yield conditioned(stmt, lambda condition: TRUE)


def guarded_too_late(kernel: ir.Kernel, stmt: ir.Exec) -> Iterator[ir.Exec]:
    """One element past the bound: `<=` instead of `<`."""
    if stmt.pieces:
        yield conditioned(stmt, lambda condition: all_of([_or_equal(part) for part in conjuncts(condition)]))


def _or_equal(condition: Expr) -> Expr:
    return less(condition.left, condition.right + 1) if isinstance(condition, Less) else condition


def by_all(kernel: ir.Kernel, stmt: ir.Exec) -> Iterator[ir.Exec]:
    """Executed by all threads, not only by those that have work."""
    if stmt.active != TRUE:
        yield attrs.evolve(stmt, active=TRUE)


def overwriting(kernel: ir.Kernel, stmt: ir.Exec) -> Iterator[ir.Exec]:
    """An MMA that starts from zero at each step."""
    if stmt.accumulate != FALSE:
        yield attrs.evolve(stmt, accumulate=FALSE)


def adding(kernel: ir.Kernel, stmt: ir.Exec) -> Iterator[ir.Exec]:
    """An MMA that accumulates onto previous memory contents, also at its first step."""
    if stmt.accumulate not in (TRUE, ONE) and stmt.spec.kind != "Init" and any(access.write for access in stmt.accesses):
        yield attrs.evolve(stmt, accumulate=TRUE)


# ---------------------------------------------------------------------------------------------- initial values and steps


def is_initial(stmt: ir.Exec) -> bool:
    """Whether the statement only writes."""
    return all(access.write for access in stmt.accesses)


def without_initial(kernel: ir.Kernel) -> Iterator[Planted]:
    """No initial value."""
    for spot in spots(kernel, ir.Exec, is_initial):
        yield str(spot), lambda spot=spot: spot.with_one()


def without_last_step(kernel: ir.Kernel) -> Iterator[Planted]:
    """Loops that end one step early, consistently in all roles."""
    names = dict.fromkeys(spot.one.var.name for spot in spots(kernel, ir.For))
    for name in names:

        def shorter(stmt: ir.Stmt, name: str = name) -> tuple[ir.Stmt, ...]:
            return (attrs.evolve(stmt, extent=stmt.extent - 1),) if isinstance(stmt, ir.For) and stmt.var.name == name else (stmt,)

        yield name, lambda shorter=shorter: attrs.evolve(kernel, body=ir.rewritten(kernel.body, shorter))


def without_move(kernel: ir.Kernel) -> Iterator[Planted]:
    """A copy, or an MMA, removed."""
    for spot in spots(kernel, ir.Exec, lambda one: not is_initial(one) and not one.ring):
        yield str(spot), lambda spot=spot: spot.with_one()


def of_another_leading_dimension(kernel: ir.Kernel) -> Iterator[Planted]:
    """Arrays with an assumed leading dimension that is one too large."""
    for number, buffer in enumerate(kernel.buffers):
        layout = (
            _with_longest(buffer.storage.layout, lambda stride: stride + 1) if buffer.parameter and len(buffer.tensor.shape) > 1 else None
        )
        if layout is not None:
            changed = attrs.evolve(buffer, storage=Storage(layout, buffer.storage.extent, buffer.storage.swizzle))
            buffers = (*kernel.buffers[:number], changed, *kernel.buffers[number + 1 :])
            yield buffer.name, lambda buffers=buffers: attrs.evolve(kernel, buffers=buffers)


def of_maps(change: Callable[[ir.TensorMap], Iterator[ir.TensorMap]]) -> Callable[[ir.Kernel], Iterator[Planted]]:
    """Faults that change the tensor map of one statement."""
    return of_statements(
        lambda kernel, one: (attrs.evolve(one, tensor_map=found) for found in (() if one.tensor_map is None else change(one.tensor_map)))
    )


def of_another_box(tensor_map: ir.TensorMap) -> Iterator[ir.TensorMap]:
    """Half or twice as many elements along one dimension."""
    for dim, size in enumerate(tensor_map.box):
        for other in (size // 2, size * 2):
            yield attrs.evolve(tensor_map, box=(*tensor_map.box[:dim], other, *tensor_map.box[dim + 1 :]))


def of_another_order(tensor_map: ir.TensorMap) -> Iterator[ir.TensorMap]:
    """Dimensions in another order, or another swizzle mode."""
    if len(tensor_map.order) > 1:
        first, second, *others = tensor_map.order
        for order in dict.fromkeys((tensor_map.order[::-1], (second, first, *others))):
            yield attrs.evolve(tensor_map, order=order)
    yield attrs.evolve(tensor_map, span=32 if tensor_map.span != 32 else 64)


def _kind(name: str, forms: str, plant: Callable[[ir.Kernel], Iterator[Planted]], needless: str = SAME_ADDRESS) -> Kind:
    return Kind(name, "index", forms, plant, needless)


BY_TMA = "ring cluster share attention hopper-tasks"

KINDS = (
    _kind("offset by one", OPERANDS, of_accesses(by_one)),
    _kind("strides swapped", OPERANDS, of_accesses(swapped)),
    _kind("elements of the neighboring lane", OPERANDS, of_accesses(of_other_lanes)),
    _kind("values of a lane in another order", "pipeline fused ampere-tasks", of_accesses(in_other_order)),
    _kind("swizzle on one side", "pipeline fused ring ampere-tasks", of_accesses(stored_otherwise(unswizzled))),
    _kind("pad on one side", "threads pipeline fused ring", of_accesses(stored_otherwise(padded))),
    _kind("a variable left out", OPERANDS, of_accesses(without_one_variable)),
    _kind("guard dropped", DEPTH, of_statements(unguarded)),
    _kind("guard with <=", DEPTH, of_statements(guarded_too_late)),
    _kind("performed by idle threads too", DEPTH, of_statements(by_all)),
    _kind("sum overwritten", EVERY, of_statements(overwriting)),
    _kind("sum onto what lay there", "ring share attention threads fused", of_statements(adding)),
    _kind("initial value left out", DEPTH, without_initial),
    _kind("copy or product left out", OPERANDS, without_move),
    _kind("last step left out", OPERANDS, without_last_step),
    _kind("another leading dimension", "threads pipeline fused ampere-tasks", of_another_leading_dimension),
    _kind("another box of TMA", BY_TMA, of_maps(of_another_box)),
    _kind("another order or swizzle of TMA", BY_TMA, of_maps(of_another_order)),
)  # fmt: skip
