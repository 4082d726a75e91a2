"""Faults in which elements statements touch, and how often: offsets, strides, lanes, swizzles, guards, boxes, initial values, steps."""

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
    """The kernel in which a statement touches something else."""
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
    """An element further along one dimension."""
    for dim, one in enumerate(access.base):
        yield attrs.evolve(access, base=(*access.base[:dim], one + 1, *access.base[dim + 1 :]))


def swapped(kernel: ir.Kernel, access: ir.Access) -> Iterator[ir.Access]:
    """Two neighbouring coordinates, each in the place of the other."""
    for dim in range(len(access.base) - 1):
        first, second = access.base[dim : dim + 2]
        yield attrs.evolve(access, base=(*access.base[:dim], second, first, *access.base[dim + 2 :]))


def of_other_lanes(kernel: ir.Kernel, access: ir.Access) -> Iterator[ir.Access]:
    """What the neighbouring thread touches."""
    if kernel.workers > 1 and any(kernel.thread in one.variables() for one in access.base):
        yield access.substitute({kernel.thread: kernel.thread ^ 1})


def in_other_order(kernel: ir.Kernel, access: ir.Access) -> Iterator[ir.Access]:
    """The first two values of a lane, each in the place of the other."""
    if len(access.points) > 1:
        first, second, *rest = access.points
        yield attrs.evolve(access, points=(second, first, *rest))


def stored_otherwise(change: Callable[[Storage], Storage | None]) -> Callable[[ir.Kernel, ir.Access], Iterator[ir.Access]]:
    """An access by another storage than the buffer's, in shared memory: one side alone."""

    def accesses(kernel: ir.Kernel, access: ir.Access) -> Iterator[ir.Access]:
        buffer = kernel.buffer(access.buffer)
        if buffer.memory.of_block and access.storage is None:
            found = change(buffer.storage)
            if found is not None:
                yield attrs.evolve(access, storage=found)

    return accesses


def unswizzled(storage: Storage) -> Storage | None:
    """Without the swizzle."""
    return None if storage.swizzle is None else attrs.evolve(storage, swizzle=None)


def padded(storage: Storage) -> Storage | None:
    """Rows further apart by an element: the largest stride, of those that are numbers."""
    layout = _with_longest(storage.layout, lambda stride: stride + 1)
    return None if layout is None else Storage(layout, storage.extent, storage.swizzle)


def _with_longest(layout: Layout, change: Callable[[int], int]) -> Layout | None:
    """The layout with another largest stride; None if no stride is a number above 1."""
    longest = max(_numbers(layout.stride), default=1)
    return None if longest < 2 else Layout(layout.shape, _replaced(layout.stride, longest, change(longest)))


def _numbers(strides: object) -> Iterator[int]:
    if isinstance(strides, tuple):
        for one in strides:
            yield from _numbers(one)
    elif isinstance(strides, int):
        yield strides


def _replaced(strides: object, old: int, new: int) -> object:
    if isinstance(strides, tuple):
        return tuple(_replaced(one, old, new) for one in strides)
    return new if strides == old else strides


def without_one_variable(kernel: ir.Kernel, access: ir.Access) -> Iterator[ir.Access]:
    """The same element at all values of a loop, a name or a block."""
    for var in sorted({one for base in access.base for one in base.variables()}, key=str):
        if var != kernel.thread and var not in kernel.symbols:
            yield access.substitute({var: 0})


# ---------------------------------------------------------------------------------------------- conditions


def of_statements(change: Callable[[ir.Kernel, ir.Exec], Iterator[ir.Exec]]) -> Callable[[ir.Kernel], Iterator[Planted]]:
    """Faults that change one statement of work."""

    def plant(kernel: ir.Kernel) -> Iterator[Planted]:
        for spot in spots(kernel, ir.Exec):
            for number, changed in enumerate(change(kernel, spot.one)):
                if changed != spot.one:
                    yield f"{spot}, {number}", lambda spot=spot, changed=changed: spot.with_one(changed)

    return plant


def conditioned(one: ir.Exec, change: Callable[[Expr], Expr]) -> ir.Exec:
    """A statement with other conditions on what lies inside, in one version."""
    pieces = tuple(tuple(attrs.evolve(piece, condition=change(piece.condition)) for piece in pieces) for pieces in one.pieces)
    return attrs.evolve(one, guard=change(one.guard), pieces=pieces, whole=FALSE, implied=())


def unguarded(kernel: ir.Kernel, one: ir.Exec) -> Iterator[ir.Exec]:
    """Of nothing it is asked whether it lies inside."""
    if one.pieces:
        yield conditioned(one, lambda condition: TRUE)


def guarded_too_late(kernel: ir.Kernel, one: ir.Exec) -> Iterator[ir.Exec]:
    """One element more than lies inside: `<=` for `<`."""
    if one.pieces:
        yield conditioned(one, lambda condition: all_of([_or_equal(part) for part in conjuncts(condition)]))


def _or_equal(condition: Expr) -> Expr:
    return less(condition.left, condition.right + 1) if isinstance(condition, Less) else condition


def by_all(kernel: ir.Kernel, one: ir.Exec) -> Iterator[ir.Exec]:
    """Performed by all threads, not only by those that have work."""
    if one.active != TRUE:
        yield attrs.evolve(one, active=TRUE)


def overwriting(kernel: ir.Kernel, one: ir.Exec) -> Iterator[ir.Exec]:
    """A product that begins anew at each step."""
    if one.accumulate != FALSE:
        yield attrs.evolve(one, accumulate=FALSE)


def adding(kernel: ir.Kernel, one: ir.Exec) -> Iterator[ir.Exec]:
    """A product that adds to what lay there, also at its first step."""
    if one.accumulate not in (TRUE, ONE) and one.spec.kind != "Init" and any(access.write for access in one.accesses):
        yield attrs.evolve(one, accumulate=TRUE)


# ---------------------------------------------------------------------------------------------- initial values and steps


def is_initial(one: ir.Exec) -> bool:
    """Whether it reads nothing, and writes."""
    return all(access.write for access in one.accesses)


def without_initial(kernel: ir.Kernel) -> Iterator[Planted]:
    """No initial value."""
    for spot in spots(kernel, ir.Exec, is_initial):
        yield str(spot), lambda spot=spot: spot.with_one()


def without_last_step(kernel: ir.Kernel) -> Iterator[Planted]:
    """Loops that end a step early, where all roles agree."""
    names = dict.fromkeys(spot.one.var.name for spot in spots(kernel, ir.For))
    for name in names:

        def shorter(one: ir.Stmt, name: str = name) -> tuple[ir.Stmt, ...]:
            return (attrs.evolve(one, extent=one.extent - 1),) if isinstance(one, ir.For) and one.var.name == name else (one,)

        yield name, lambda shorter=shorter: attrs.evolve(kernel, body=ir.rewritten(kernel.body, shorter))


def without_move(kernel: ir.Kernel) -> Iterator[Planted]:
    """A copy, or a product, left out."""
    for spot in spots(kernel, ir.Exec, lambda one: not is_initial(one) and not one.ring):
        yield str(spot), lambda spot=spot: spot.with_one()


def of_another_leading_dimension(kernel: ir.Kernel) -> Iterator[Planted]:
    """Arrays whose rows lie an element further apart than they do."""
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


def of_another_box(one: ir.TensorMap) -> Iterator[ir.TensorMap]:
    """Half as many elements along one dimension, or twice as many."""
    for dim, size in enumerate(one.box):
        for other in (size // 2, size * 2):
            yield attrs.evolve(one, box=(*one.box[:dim], other, *one.box[dim + 1 :]))


def of_another_order(one: ir.TensorMap) -> Iterator[ir.TensorMap]:
    """Its dimensions in another order, or another swizzle."""
    if len(one.order) > 1:
        first, second, *others = one.order
        for order in dict.fromkeys((one.order[::-1], (second, first, *others))):
            yield attrs.evolve(one, order=order)
    yield attrs.evolve(one, span=32 if one.span != 32 else 64)


def _kind(name: str, forms: str, plant: Callable[[ir.Kernel], Iterator[Planted]], needless: str = SAME_ADDRESS) -> Kind:
    return Kind(name, "index", forms, plant, needless)


BY_TMA = "ring cluster share attention hopper-tasks"

KINDS = (
    _kind("offset by one", OPERANDS, of_accesses(by_one)),
    _kind("strides swapped", OPERANDS, of_accesses(swapped)),
    _kind("elements of the neighbouring lane", OPERANDS, of_accesses(of_other_lanes)),
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
