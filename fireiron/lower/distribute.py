"""`distribute`: arrays in private memory get their registers (Fireiron, section 2.4).

The compute path owns: its sequential modes become register modes, its unit modes name the thread. All other paths print
the same formula, and are compared with the owner element by element; static shapes make the comparison exact.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import attrs
import numpy as np

from fireiron.errors import DecompositionError
from fireiron.ir import Access, Buffer, Exec, For, Kernel, Stmt, execs
from fireiron.lower.footprint import Array, active_mask, evaluate, grid_of, needed_variables
from fireiron.spec import InitSpec
from fireiron.values.expr import FALSE, ONE, Expr, Var, as_expr, constant
from fireiron.values.tensor import MatrixLayout, Storage, StorageMode

Use = tuple[Exec, tuple[For, ...], Access]


def distribute(kernel: Kernel) -> Kernel:
    """The kernel with a register number for every element of every distributed array."""
    uses: dict[str, list[Use]] = {buffer.name: [] for buffer in kernel.buffers if buffer.memory.private}
    for statement, loops in execs(kernel.body):
        for access in statement.accesses:
            if access.buffer in uses:
                uses[access.buffer].append((statement, loops, access))
    buffers = []
    own: dict[tuple[int, str], Storage] = {}
    for buffer in kernel.buffers:
        if buffer.memory.private:
            buffer = _distributed(kernel, buffer, uses[buffer.name], own)
        buffers.append(buffer)
    kernel = attrs.evolve(kernel, buffers=tuple(buffers))
    return kernel if not own else attrs.evolve(kernel, body=_with_own_modes(kernel.body, own))


def _distributed(kernel: Kernel, buffer: Buffer, uses: list[Use], own: dict[tuple[int, str], Storage]) -> Buffer:
    owners = [use for use in uses if _owns(use, buffer)] or [use for use in uses if not use[2].write] or uses
    if not owners:
        return attrs.evolve(buffer, storage=Storage((), ONE), elements=ONE)
    if not any(mode.unit for _, _, access in owners for dim in access.dealt for mode in dim):
        storage = buffer.tensor.storage()
    else:
        storage = register_storage(buffer, owners[0][2], owners[0][0])
    result = attrs.evolve(buffer, storage=storage, elements=storage.extent, holder=_first_held(owners[0]))
    uses = [use for use in uses if not use[0].collective]
    owners = [use for use in owners if not use[0].collective]
    if not owners or not any(mode.unit for _, _, access in uses for dim in access.dealt for mode in dim):
        return result
    _check_owners(kernel, result, owners)
    for use in uses:
        if use not in owners:
            _check_other(kernel, result, owners, use, own)
    return result


def _first_held(owner: Use) -> tuple[Expr, ...]:
    """The owner's coordinates at the first iteration of its loops: what a thread keeps in register 0."""
    _, loops, access = owner
    return access.substitute({loop.var: 0 for loop in loops}).base


def _owns(use: Use, buffer: Buffer) -> bool:
    statement, _, access = use
    if buffer.tensor.owner == "accumulates":
        return access.write and statement.accumulate != FALSE
    return not access.write


def register_storage(buffer: Buffer, access: Access, statement: Exec) -> Storage:
    """Register modes of the owner: its value modes first, then the sequential modes by their place in storage.

    An instruction of several lanes says in which order it numbers its values; others go by their place in storage.
    """
    values, loops = [], []
    for dim, (modes, dealt) in enumerate(zip(access.modes, access.dealt, strict=True)):
        for mode in modes:
            size, stride = constant(mode.size), constant(mode.stride)
            if size is not None and stride is not None and size > 1:
                values.append((dim, stride, size))
        loops += [(dim, mode.stride, mode.size) for mode in dealt if not mode.unit and mode.size > 1]
    weights = _place_in_storage(buffer)
    values = sorted(values, key=lambda one: one[1] * weights[one[0]])
    if access.points:
        values = sorted(values, key=lambda one: access.points.index(_along(one[0], one[1], len(access.base))))
    ordered = values + sorted(loops, key=lambda one: one[1] * weights[one[0]])
    dims: list[list[StorageMode]] = [[] for _ in buffer.tensor.shape]
    weight = 1
    for dim, stride, size in ordered:
        dims[dim].append(StorageMode(stride, size, as_expr(weight)))
        weight *= size
    return Storage(tuple(tuple(modes) for modes in dims), as_expr(weight))


def _along(dim: int, step: int, rank: int) -> tuple[int, ...]:
    return tuple(step if one == dim else 0 for one in range(rank))


def _place_in_storage(buffer: Buffer) -> tuple[int, ...]:
    shape = [constant(size) or 1 for size in buffer.tensor.shape]
    layout = buffer.tensor.layout
    if isinstance(layout, MatrixLayout) and layout.order == "row":
        return tuple(math.prod(shape[dim + 1 :]) for dim in range(len(shape)))
    return tuple(math.prod(shape[:dim]) for dim in range(len(shape)))


# ---------------------------------------------------------------------------------------------- proof by enumeration


def holdings(kernel: Kernel, buffer: Buffer, uses: Iterable[Use]) -> tuple[Array, Array, Array]:
    """Threads, registers and elements (a number for each coordinate) that statements touch, all combinations."""
    threads, registers, elements = [], [], []
    for statement, loops, access in uses:
        grid = grid_of(kernel, loops, needed_variables(kernel, statement, access))
        mask = active_mask(statement, grid, kernel)
        thread = np.broadcast_to(np.arange(kernel.threads), grid.shape)[mask]
        for offset in access.elements():
            coordinates = access.coordinates(offset)
            number = np.zeros(grid.shape, dtype=np.int64)
            inside = mask
            for coordinate, size in zip(coordinates, buffer.tensor.shape, strict=True):
                value = evaluate(coordinate, grid)
                extent = constant(size) or 1
                inside = inside & (value < extent)
                number = number * extent + value
            register = evaluate(buffer.storage.address(coordinates), grid) if buffer.storage.dims else number
            keep = inside[mask]
            threads.append(thread[keep])
            registers.append(register[mask][keep])
            elements.append(number[mask][keep])
    return np.concatenate(threads), np.concatenate(registers), np.concatenate(elements)


def _check_owners(kernel: Kernel, buffer: Buffer, owners: list[Use]) -> None:
    """In every thread, one register for one element."""
    threads, registers, elements = holdings(kernel, buffer, owners)
    if registers.size and (registers.min() < 0 or registers.max() >= (constant(buffer.elements) or 0)):
        raise _refused(buffer, owners[0], "its coordinates do not give register numbers")
    order = np.lexsort((elements, registers, threads))
    threads, registers, elements = threads[order], registers[order], elements[order]
    same = (threads[1:] == threads[:-1]) & (registers[1:] == registers[:-1]) & (elements[1:] != elements[:-1])
    if same.any():
        where = int(np.flatnonzero(same)[0])
        first, second = (_coordinate(buffer, int(elements[where + shift])) for shift in (0, 1))
        raise _refused(
            buffer, owners[0], f"thread {threads[where]} would keep elements {first} and {second} in register {registers[where]}"
        )


def _check_other(kernel: Kernel, buffer: Buffer, owners: list[Use], use: Use, own: dict[tuple[int, str], Storage]) -> None:
    """A path that does not own touches, in each thread, elements that this thread holds, under the same numbers."""
    threads, registers, elements = holdings(kernel, buffer, [use])
    held_threads, held_registers, held_elements = holdings(kernel, buffer, owners)
    count = math.prod(constant(size) or 1 for size in buffer.tensor.shape)
    slots = int(constant(buffer.elements) or 1) + 1
    held = np.unique((held_threads * count + held_elements) * slots + held_registers)
    asked = np.unique((threads * count + elements) * slots + np.clip(registers, 0, slots - 1))
    statement, _, access = use
    if access.write:
        missing = np.setdiff1d(held, asked)
        ok = missing.size == 0
    else:
        missing = np.setdiff1d(asked, held)
        ok = missing.size == 0
    if ok:
        return
    if isinstance(statement.spec, InitSpec) and _covers_with_own_modes(kernel, buffer, use, held_threads, own):
        return
    thread, element = divmod(int(missing[0]) // slots, count)
    holders = sorted(set(held_threads[held_elements == element].tolist()))
    place = _coordinate(buffer, element)
    if access.write:
        problem = f"thread {thread} needs element {place} in its registers, and {statement.spec} does not write it there"
    else:
        problem = f"{statement.spec} reads element {place} in thread {thread}, the compute path keeps it in thread {_listed(holders)}"
    raise DecompositionError(
        f"{buffer.name}: this path deals elements to threads otherwise than the compute path: {problem}",
        within=f"{statement.instruction.name} {statement.spec}",
        at=access.origin,
        hint="deal it as the compute path does (same tiles, levels, layout and swizzle), or go through shared memory",
    )


def _covers_with_own_modes(kernel: Kernel, buffer: Buffer, use: Use, holders: Array, own: dict[tuple[int, str], Storage]) -> bool:
    """A uniform init may number the registers by its own modes, if each holding thread thereby sets all of them (T006)."""
    statement, _, access = use
    storage = register_storage(buffer, access, statement)
    if not any(mode.unit for dim in access.dealt for mode in dim):
        storage = buffer.tensor.storage()
    if storage.extent != buffer.elements:
        return False
    threads, registers, _ = holdings(kernel, attrs.evolve(buffer, storage=storage), [use])
    count = constant(buffer.elements) or 1
    reached = np.unique(threads * count + registers)
    wanted = (np.unique(holders)[:, None] * count + np.arange(count)).ravel()
    if np.setdiff1d(wanted, reached).size:
        return False
    own[(id(statement), access.buffer)] = storage
    return True


def _with_own_modes(body: tuple[Stmt, ...], own: dict[tuple[int, str], Storage], loops: frozenset[Var] = frozenset()) -> tuple[Stmt, ...]:
    result: list[Stmt] = []
    for statement in body:
        if isinstance(statement, For):
            statement = attrs.evolve(statement, body=_with_own_modes(statement.body, own, loops | {statement.var}))
        elif isinstance(statement, Exec):
            accesses = tuple(_renumbered(access, own.get((id(statement), access.buffer)), loops) for access in statement.accesses)
            statement = attrs.evolve(statement, accesses=accesses)
        result.append(statement)
    return tuple(result)


def _renumbered(access: Access, storage: Storage | None, loops: frozenset[Var]) -> Access:
    """Registers by the access's own modes: which element it is no longer matters, so the thread's part of it goes."""
    if storage is None:
        return access
    of_thread = {var: 0 for base in access.base for var in base.variables() if var not in loops}
    return attrs.evolve(access.substitute(of_thread), storage=storage)


def _coordinate(buffer: Buffer, element: int) -> tuple[int, ...]:
    result: list[int] = []
    for size in reversed(buffer.tensor.shape):
        element, digit = divmod(element, constant(size) or 1)
        result.append(digit)
    return tuple(reversed(result))


def _listed(threads: list[int]) -> str:
    return ", ".join(map(str, threads[:4])) + (", ..." if len(threads) > 4 else "") if threads else "none"


def _refused(buffer: Buffer, use: Use, problem: str) -> DecompositionError:
    return DecompositionError(
        f"{buffer.name} cannot be divided over the registers of the threads: {problem}",
        within=f"{use[0].instruction.name} {use[0].spec}",
        at=use[2].origin,
        hint="make the number of tiles a multiple of, or divide, the number of units",
    )
