"""`distribute`: assign registers to the elements of arrays in private memory (Fireiron, section 2.4).

The compute path owns the array: its sequential modes become register modes, and its unit modes determine the thread. All other accesses use
the same register numbers. They are compared with the owner element by element, which is exact because shapes are static.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Set
from typing import Any

import numpy as np

from fireiron.errors import DecompositionError, LayoutError
from fireiron.frozen import evolve, frozen
from fireiron.ir import Access, Buffer, Exec, For, Kernel, Stmt, execs, rewritten, statements
from fireiron.ir.register_ownership import Digit, DigitKind, Ownership, owns
from fireiron.lower.footprint import Array, active_mask, closure, grid_of, needed_variables, require_few
from fireiron.values.expr import ONE, TRUE, Var, as_expr, compiled, constant
from fireiron.values.layout import Layout, make_layout, reading
from fireiron.values.machine import Warpgroup
from fireiron.values.tensor import MatrixLayout, Storage
from fireiron.values.units import THREAD

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
    proved: set[Any] = set()
    for buffer in kernel.buffers:
        if buffer.memory.private:
            buffer = _distributed(kernel, buffer, uses[buffer.name], own, proved)
        buffers.append(buffer)
    kernel = evolve(kernel, buffers=tuple(buffers))
    return kernel if not own else evolve(kernel, body=_with_own_modes(kernel.body, own))


def _distributed(kernel: Kernel, buffer: Buffer, uses: list[Use], own: dict[tuple[int, str], Storage], proved: set[Any]) -> Buffer:
    """The buffer with register numbers. `proved` are the comparisons of this kernel that succeeded: another buffer with the same accesses
    and the same storage needs none.
    """
    # Without a compute path the readers determine the registers; without readers, any access does. Accesses that inherit their ownership
    # come last.
    deciding = [use for use in uses if not use[0].inherits_ownership] or uses
    owners = [use for use in uses if owns(buffer.tensor, use[0], use[2])] or [use for use in deciding if not use[2].write] or deciding
    if not owners:
        return evolve(buffer, storage=Storage(Layout(()), ONE), elements=ONE)
    statement, loops, access = owners[0]
    ownership = Ownership.of(statement, access, loops)
    # Without modes distributed over threads each thread has the whole array, in its own layout.
    distributed = any(mode.unit for _, _, access in owners for dim in access.unit_modes for mode in dim)
    storage = register_storage(buffer, owners[0], ownership) if distributed else buffer.tensor.storage()
    result = evolve(buffer, storage=storage, elements=storage.extent, register_origin=ownership.first)
    # A collective statement takes each element from any thread of its unit that owns it.
    uses = [use for use in uses if not use[0].collective]
    owners = [use for use in owners if not use[0].collective]
    if not owners or not any(_is_partial(kernel, use) for use in uses):
        return result
    owners_by_key: dict[Any, Use] = {}
    for use in owners:
        owners_by_key.setdefault(_distribution_key(kernel, use), use)
    distributions = frozenset(owners_by_key)
    owners_key = storage, _extents(buffer), distributions
    owned: _OwnerTable | None = None
    if owners_key not in proved:
        owned = _OwnerTable(kernel, result, [*owners_by_key.values()])
        proved.add(owners_key)
    # A read with the distribution of an owner finds its elements. A write reaches all elements if all owners have its distribution.
    matching = {(key, False) for key in distributions} | {(key, True) for key in distributions if len(distributions) == 1}
    for use in uses:
        if not any(use is owner for owner in owners):
            key = _distribution_key(kernel, _as_if_unmasked(use)), _replaces(use)
            if key in matching or (owners_key, key) in proved:
                continue
            owned = owned or _OwnerTable(kernel, result, [*owners_by_key.values()])
            if _check_other(kernel, owned, use, own):
                proved.add((owners_key, key))
    return result


def _is_partial(kernel: Kernel, use: Use) -> bool:
    """Whether some thread does not access everything that the statement accesses: elements are distributed, or only some threads perform
    it.
    """
    statement, _, access = use
    distributed = any(mode.unit for dim in access.unit_modes for mode in dim)
    return distributed or THREAD.name in {var.name for var in closure(kernel, statement.active.variables())}


def _distribution_key(kernel: Kernel, use: Use) -> Any:
    """A key for which thread accesses which elements: uses with equal keys access the same elements, regardless of loop names."""
    statement, loops, access = use
    needed = needed_variables(kernel, statement, access)
    around = tuple(loop for loop in loops if loop.var in needed)
    variables = frozenset(loop.var for loop in around)
    values = (*access.base, statement.active)
    direct = frozenset().union(*(value.variables() for value in values))
    if not closure(kernel, direct - variables).isdisjoint(variables):  # a named value depends on a loop
        return access.base, access.points, access.modes, statement.active, needed, tuple(map(id, around))
    numbered = {loop.var: _numbered(number, loop.var.low, loop.var.high, loop.var.multiple_of) for number, loop in enumerate(around)}
    ranges = tuple((loop.extent, loop.period) for loop in around)
    return tuple(value.substitute(numbered) for value in values), access.points, access.modes, needed - variables, ranges


@functools.lru_cache(maxsize=256)
def _numbered(number: int, low: int, high: int, multiple_of: int) -> Var:
    """The variable that replaces loop variables of a number and a range. The space in its name makes it different from all others."""
    return Var(f"loop {number}", low, high, multiple_of)


def register_storage(buffer: Buffer, owner: Use, ownership: Ownership) -> Storage:
    """Register modes of the owner: first the values that it accesses at once, then the tiles that it iterates over, in storage order.

    An instruction of several lanes specifies the order of its values; other values are in storage order, too.
    """
    weights = _place_in_storage(buffer)

    def placed(by: DigitKind) -> list[Digit]:
        return sorted((digit for digit in ownership.digits if digit.kind is by), key=lambda digit: digit.stride * weights[digit.dim])

    values = [digit for digit in ownership.digits if digit.kind is DigitKind.VALUES] if owner[2].points else placed(DigitKind.VALUES)
    ordered = values + placed(DigitKind.LOOP)
    dims: list[list[tuple[int, int, int]]] = [[] for _ in buffer.tensor.shape]
    weight = 1
    for digit in ordered:
        dims[digit.dim].append((digit.stride, digit.size, weight))
        weight *= digit.size
    try:
        return Storage(make_layout(*map(reading, dims)), as_expr(weight))
    except LayoutError as error:
        raise _refused(buffer, owner, f"its coordinates do not give register numbers: {error}") from None


def _place_in_storage(buffer: Buffer) -> tuple[int, ...]:
    shape = _extents(buffer)
    layout = buffer.tensor.layout
    if isinstance(layout, MatrixLayout) and layout.order == "row":
        return tuple(math.prod(shape[dim + 1 :]) for dim in range(len(shape)))
    return tuple(math.prod(shape[:dim]) for dim in range(len(shape)))


# ---------------------------------------------------------------------------------------------- proof by enumeration


@frozen(eq=False)
class Accesses:
    """Which thread accesses which element: one entry per thread, loop value and element of an access, in flat arrays of equal length.

    `elements` number the coordinates of the buffer, the last dimension fastest.
    """

    threads: Array
    registers: Array
    elements: Array


def accesses_of(kernel: Kernel, buffer: Buffer, uses: Iterable[Use]) -> Accesses:
    """The accesses of statements to a buffer, where their conditions are true and in bounds."""
    parts = [_accesses_of_use(kernel, buffer, use) for use in uses]
    return Accesses(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))


def _accesses_of_use(kernel: Kernel, buffer: Buffer, use: Use) -> tuple[Array, Array, Array]:
    statement, loops, access = use
    grid = grid_of(kernel, loops, needed_variables(kernel, statement, access))
    require_few(math.prod(grid.shape) * access.count, loops)
    # If only the condition depends on a loop, it suffices to know whether the condition is true for some iteration.
    own = {var.name for var in closure(kernel, frozenset().union(*(base.variables() for base in access.base)))}
    condition_axes = tuple(axis for axis, name in enumerate(grid.axes) if name not in own)
    active = active_mask(statement, grid) if statement.active != TRUE else np.ones((1,) * len(grid.shape), dtype=bool)
    inside: Array = np.asarray(active.any(axis=condition_axes, keepdims=True))[..., None]
    steps = access.table().T
    shape = (*(1 if axis in condition_axes else size for axis, size in enumerate(grid.shape)), steps.shape[1])
    coordinates = []
    number: Array = 0
    for base, step, reach, extent in zip(access.base, steps, access.reach, _extents(buffer), strict=True):
        coordinate = np.asarray(compiled(base)(grid.environment))[..., None] + step  # only along the axes that this dimension depends on
        # only where ranges do not exclude it: comparing all entries takes time
        if base.high + reach >= extent:
            inside = inside & (coordinate < extent)
        number = number * extent + coordinate
        coordinates.append(coordinate)
    registers = buffer.storage.address(coordinates) if buffer.storage.dims else number
    threads = np.arange(kernel.workers)[:, None]
    columns = tuple(np.broadcast_to(column, shape) for column in (threads, registers, number))
    if np.all(inside):
        return columns[0].ravel(), columns[1].ravel(), columns[2].ravel()
    inside = np.broadcast_to(inside, shape)
    return columns[0][inside], columns[1][inside], columns[2][inside]


class _OwnerTable:
    """The element in each register of each thread, as a scatter table; sorting all entries would take longer."""

    def __init__(self, kernel: Kernel, buffer: Buffer, owners: list[Use]) -> None:
        self.buffer = buffer
        self.slots = buffer.elements.high
        self.owners = owners
        owned = accesses_of(kernel, buffer, owners)
        if owned.registers.size and (owned.registers.min() < 0 or owned.registers.max() >= self.slots):
            raise _refused(buffer, owners[0], "its coordinates do not give register numbers")
        places = owned.threads * self.slots + owned.registers
        self.table = np.full(kernel.workers * self.slots, -1)
        self.table[places] = owned.elements
        if (self.table[places] != owned.elements).any():
            raise self._two_in_one(owned)

    def _two_in_one(self, owned: Accesses) -> DecompositionError:
        """The error for a thread that would need two elements in one register, with the first such register."""
        order = np.lexsort((owned.elements, owned.registers, owned.threads))
        threads, registers, elements = owned.threads[order], owned.registers[order], owned.elements[order]
        same = (threads[1:] == threads[:-1]) & (registers[1:] == registers[:-1]) & (elements[1:] != elements[:-1])
        where = int(np.flatnonzero(same)[0])
        first, second = (_coordinate(self.buffer, int(elements[where + shift])) for shift in (0, 1))
        problem = f"thread {threads[where]} would keep elements {first} and {second} in register {registers[where]}"
        return _refused(self.buffer, self.owners[0], problem)

    @property
    def threads(self) -> Array:
        """The threads that own something."""
        return np.flatnonzero((self.table.reshape(-1, self.slots) >= 0).any(axis=1))

    def missing(self, accessed: Accesses, write: bool) -> tuple[Array, Array]:
        """Threads and elements for which an access does not match the owners: elements that a read or an accumulation does not find in the
        register that it accesses, or that a `write` does not reach.
        """
        known = (accessed.registers >= 0) & (accessed.registers < self.slots)
        places = accessed.threads * self.slots + np.where(known, accessed.registers, 0)
        right = known & (self.table[places] == accessed.elements)
        if not write:
            return accessed.threads[~right], accessed.elements[~right]
        # A register without an element need not be written.
        reached = self.table < 0
        reached[places[right]] = True
        places = np.flatnonzero(~reached)
        return places // self.slots, self.table[places]

    def owners_of(self, element: int) -> list[int]:
        """The threads that own an element."""
        return sorted(set((np.flatnonzero(self.table == element) // self.slots).tolist()))


def _replaces(use: Use) -> bool:
    """Whether a statement overwrites everything that it accesses; an update of old values need not reach all of them."""
    statement, _, access = use
    return access.write and statement.accumulate != TRUE


def _as_if_unmasked(use: Use) -> Use:
    """The use as if its condition were always true, if elements stay unchanged where it is false."""
    statement, _, access = use
    return _unconditional(use) if access.write and _in_place(statement, access) else use


def _check_other(kernel: Kernel, owned: _OwnerTable, use: Use, own: dict[tuple[int, str], Storage]) -> bool:
    """Check that in each thread another path accesses only elements that the thread owns, under the same register numbers.

    Returns false if an init may number the registers by its own modes, which are then recorded in `own`.

    Raises: DecompositionError if the check fails.
    """
    statement, _, access = use
    buffer = owned.buffer
    threads, elements = owned.missing(accesses_of(kernel, buffer, [_as_if_unmasked(use)]), _replaces(use))
    if not threads.size:
        return True
    if statement.spec.fills and _covers_with_own_modes(kernel, owned, use, own):
        return False
    # the minimum, so that the message does not depend on the order of entries
    thread, element = min(zip(threads.tolist(), elements.tolist(), strict=True))
    place = _coordinate(buffer, element)
    if access.write:
        problem = f"thread {thread} needs element {place} in its registers, and {statement.spec} does not write it there"
    else:
        owners, owner = _listed(owned.owners_of(element)), owned.owners[0][0]
        by = f" ({owner.instruction.name} {owner.spec})"
        problem = f"{statement.spec} reads element {place} in thread {thread}, but the compute path owns it in thread {owners}{by}"
    raise DecompositionError(
        f"{buffer.name}: this path distributes elements over threads differently than the compute path: {problem}",
        within=f"{statement.instruction.name} {statement.spec}",
        at=access.origin,
        hint=_remedy(statement, owned, access.write),
    )


def _remedy(statement: Exec, owned: _OwnerTable, write: bool) -> str:
    """The remedy for a path that distributes differently. A load may leave the distribution to the compute path, replicas included."""
    loads = statement if write else owned.owners[0][0]
    load = f"Move.done() as the strategy of the load of {owned.buffer.name}: each thread loads what it computes with; or "
    is_load = loads.spec.copies and not loads.inherits_ownership and not loads.spec.src.memory.private
    same = f"same tiles, level, layout, swizzle{_warpgroup_tile(owned)}"
    owner = owned.owners[0][0]
    usual = owner.instruction.instead_of(owner.spec)
    return f"{usual}{load if is_load else ''}distribute it like the compute path ({same}), or go through shared memory"


def _warpgroup_tile(owned: _OwnerTable) -> str:
    """The tile of the compute path if it is that of an instruction of a warpgroup: wgmma may compute 64 rows, or with swapped operands 64
    columns.
    """
    spec = owned.owners[0][0].spec
    shape = [constant(size) for size in spec.operands[spec.outputs[0]].shape]
    return f": .tile{tuple(shape)}.to(Warpgroup)" if spec.level == Warpgroup and spec.contracts and None not in shape else ""


def _in_place(statement: Exec, access: Access) -> bool:
    """Whether a statement reads the elements that it writes: where its condition is false, they stay unchanged."""
    return any(not other.write and other.buffer == access.buffer and other.base == access.base for other in statement.accesses)


def _unconditional(use: Use) -> Use:
    """The use as if the condition of its statement were always true."""
    statement, loops, access = use
    return evolve(statement, active=TRUE), loops, access


def _covers_with_own_modes(kernel: Kernel, owned: _OwnerTable, use: Use, own: dict[tuple[int, str], Storage]) -> bool:
    """Whether a uniform init may number the registers by its own modes: each owning thread must set all of its registers (decision 3)."""
    statement, loops, access = use
    buffer = owned.buffer
    storage = register_storage(buffer, use, Ownership.of(statement, access, loops))
    if not any(mode.unit for dim in access.unit_modes for mode in dim):
        storage = buffer.tensor.storage()
    if storage.extent != buffer.elements:
        return False
    accessed = accesses_of(kernel, evolve(buffer, storage=storage), [use])
    reached = np.zeros((kernel.workers, owned.slots), dtype=bool)
    reached[accessed.threads, accessed.registers] = True
    if not reached[owned.threads].all():
        return False
    own[(id(statement), access.buffer)] = storage
    return True


def _with_own_modes(body: tuple[Stmt, ...], own: dict[tuple[int, str], Storage]) -> tuple[Stmt, ...]:
    """The program in which uniform inits number registers by their own modes, given in `own`."""
    loops = {stmt.var for stmt in statements(body) if isinstance(stmt, For)}

    def renumber(statement: Stmt) -> tuple[Stmt, ...]:
        if not isinstance(statement, Exec) or not any((id(statement), access.buffer) in own for access in statement.accesses):
            return (statement,)
        accesses = tuple(_renumbered(access, own.get((id(statement), access.buffer)), loops) for access in statement.accesses)
        return (evolve(statement, accesses=accesses),)

    return rewritten(body, renumber)


def _renumbered(access: Access, storage: Storage | None, loops: Set[Var]) -> Access:
    """The access with register numbers by its own modes: the element no longer matters, so the thread's part of the coordinate is
    removed.
    """
    if storage is None:
        return access
    of_thread = {var: 0 for base in access.base for var in base.variables() if var not in loops}
    return evolve(access.substitute(of_thread), storage=storage)


def _coordinate(buffer: Buffer, element: int) -> tuple[int, ...]:
    result: list[int] = []
    for extent in reversed(_extents(buffer)):
        element, digit = divmod(element, extent)
        result.append(digit)
    return tuple(reversed(result))


def _extents(buffer: Buffer) -> tuple[int, ...]:
    """The extents of a buffer in registers; an error if they are not known."""
    return tuple(size.evaluate({}) for size in buffer.tensor.shape)


def _listed(threads: list[int]) -> str:
    return ", ".join(map(str, threads[:4])) + (", ..." if len(threads) > 4 else "") if threads else "none"


def _refused(buffer: Buffer, use: Use, problem: str) -> DecompositionError:
    return DecompositionError(
        f"{buffer.name} cannot be distributed over the registers of the threads: {problem}",
        within=f"{use[0].instruction.name} {use[0].spec}",
        at=use[2].origin,
        hint="a number of tiles that is a multiple or a divisor of the number of units",
    )
