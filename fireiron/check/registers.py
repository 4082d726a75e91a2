"""Estimate the registers that a compiler assigns to the threads of a kernel."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from fireiron.frozen import frozen
from fireiron.ir import Comment, Exec, For, Kernel, Let, Roles, Stmt, execs
from fireiron.ir.effects.residency import Residency
from fireiron.ir.unrolled import loops_that_run
from fireiron.specs.formula import Operation, Value
from fireiron.values.expr import FALSE, constant
from fireiron.values.machine import Architecture

LOOPING: Final = 38
"""Number of registers of a thread in addition to its arrays if a loop remains: addresses, counters (median of the sweep, NVRTC 13)."""

UNROLLED: Final = 12
"""Number of registers of a thread in addition to its arrays if no loop remains."""

MIN_REGISTERS: Final = 8
"""Number of registers that any computation needs. Arrays spill if they leave fewer."""


DIRECT: Final = frozenset(("+", "-", "*", "<", "<=", ">", ">=", "==", "!=", "abs", "exp", "exp2", "max", "min", "relu", "rsqrt", "where"))
"""Functions without branches. A compiler computes each element of a chain of them from its operands, so the elements in between need no
array; a division or a square root branches to a path for rare arguments, which keeps all elements of its array."""

ASSIGNED: Final = 8
"""Number of registers of a thread in which a compiler assigns them."""


@frozen
class Registers:
    """The estimated 32-bit registers of a thread.

    Attributes:
        given: assigned at the launch, which limits the resident blocks.
        used: of the threads that have the arrays. It differs from `given` with `setmaxnreg`.
        arrays: of arrays that are live at the same time.
        spilled: that spill to local memory.
    """

    given: int
    used: int
    arrays: int
    spilled: int

    @property
    def rest(self) -> int:
        """The registers in addition to arrays: addresses and counters."""
        return self.used - self.arrays + self.spilled


def register_limit(kernel: Kernel) -> int:
    """Return the registers per thread that the compiler may use, so that `min_blocks_per_sm` blocks fit on an SM (`__launch_bounds__`)."""
    target = kernel.architecture
    warps = rounded(warps_of(kernel), partitions(target)) * max(kernel.effects[Residency].blocks, 1)
    return min(target.registers_per_thread, target.registers_per_sm // (32 * warps) // 8 * 8)


def array_limit(kernel: Kernel) -> int:
    """Return the registers of the threads that have the arrays: with `setmaxnreg`, the number that their role gets."""
    given = [role.registers for stmt in kernel.body if isinstance(stmt, Roles) for role in stmt.roles]
    return max([register_limit(kernel), *given])


def partitions(target: Architecture) -> int:
    """Return the number of partitions of an SM, each with a part of its registers and warps."""
    return 2 if target.capability == 60 else 4


def warps_of(kernel: Kernel) -> int:
    """Return the number of warps of a block."""
    return -(-kernel.threads // 32)


def rounded(value: int, unit: int) -> int:
    """Return the next multiple of a unit."""
    return -(-value // unit) * unit


def register_prediction(kernel: Kernel) -> Registers:
    """Return the estimate. A block always fits, because the compiler assigns fewer registers and the rest spills.

    With `setmaxnreg`, each thread starts with the same number, and arrays have the registers of their role.
    """
    limit = max(register_limit(kernel), 2 * MIN_REGISTERS)
    looping = any(id(loop) in loops_that_run(kernel) for loop in _outermost(kernel.body))
    most = max(array_limit(kernel), limit)
    arrays = array_registers(kernel)
    if arrays + MIN_REGISTERS > most:
        arrays = array_registers(kernel, in_chains=True)
    wanted = rounded(arrays + (LOOPING if looping else UNROLLED), ASSIGNED)
    return Registers(min(wanted, limit), min(wanted, most), arrays, max(arrays + MIN_REGISTERS - most, 0))


def _outermost(body: Iterable[Stmt]) -> Iterator[For]:
    """Return the loops that are in no other loop."""
    for stmt in body:
        if isinstance(stmt, For):
            yield stmt
        else:
            yield from itertools.chain.from_iterable(_outermost(child) for child in stmt.children)


def array_registers(kernel: Kernel, in_chains: bool = False) -> int:
    """Return the number of registers of a thread's arrays that are live at the same time, including all stages of a pipeline.

    With `in_chains`, arrays between the statements of a chain of `DIRECT` functions of elements need no registers.
    """
    sizes = {buffer.name: -(-(constant(buffer.total) or 0) * buffer.dtype.bytes // 4) for buffer in kernel.buffers if buffer.memory.private}
    chained = frozenset(buffer.name for buffer in kernel.buffers if buffer.memory.private or buffer.memory.of_grid) if in_chains else None
    return max(_most_live(body, sizes, chained) for body in _bodies_of_roles(kernel.body))


def _bodies_of_roles(body: Sequence[Stmt]) -> list[list[Stmt]]:
    """Return the statements that a thread of each role executes."""
    bodies: list[list[Stmt]] = [[]]
    for statement in body:
        parts: Sequence[Sequence[Stmt]] = [role.body for role in statement.roles] if isinstance(statement, Roles) else [[statement]]
        bodies = [[*before, *part] for before in bodies for part in parts]
    return bodies


def _most_live(body: Sequence[Stmt], sizes: Mapping[str, int], chained: frozenset[str] | None) -> int:
    """Return the largest number of registers of arrays that are live at the same time."""
    ranges = _Ranges(chained)
    ranges.listed(body)
    changes: dict[int, int] = {}
    for name, (first, last) in ranges.live.items():
        size = sizes.get(name, 0)
        changes[first] = changes.get(first, 0) + size
        changes[last] = changes.get(last, 0) - size
    return max(itertools.accumulate(changes[place] for place in sorted(changes)), default=0)


class _Ranges:
    """The live range of each buffer: the places of its first access, and the one after its last access, in program order.

    A nest of loops around one statement has one place. An array that an iteration reads before it writes it, or that is accessed before a
    loop and in it, is live in the whole loop. Registers of an operand are free for the result of the same elementwise statement. With the
    names of `chained` arrays, those in registers and in global memory, a chain of elementwise statements on them has one place. The chain
    ends before a statement that reads one of its reductions.
    """

    def __init__(self, chained: frozenset[str] | None = None) -> None:
        self.place = 0
        self.live: dict[str, tuple[int, int]] = {}
        self.chained = chained
        self.in_chain = False
        self.reduced: set[str] = set()

    def listed(self, body: Sequence[Stmt]) -> None:
        """Add statements."""
        for statement in body:
            if isinstance(statement, Exec):
                self._execute(statement)
            elif isinstance(statement, For) and (inner := _only(statement)) is not None:
                self._execute(inner)
            elif isinstance(statement, For):
                self._end_chain()
                self._loop(statement)
                self._end_chain()
            else:
                for child in statement.children:
                    self.listed(child)

    def _end_chain(self) -> None:
        """Start a new place if statements of a chain have this one."""
        self.place += self.in_chain
        self.in_chain = False
        self.reduced.clear()

    def _execute(self, statement: Exec) -> None:
        reads = [access.buffer for access in statement.accesses if not access.write]
        writes = [access.buffer for access in statement.accesses if access.write]
        if self.chained is not None and self.chained.issuperset(reads) and writes and _is_direct(statement):
            self._chain(statement, reads, writes)
            return
        self._end_chain()
        spec = statement.spec
        elementwise = all(any(dim in spec.uses[name] for name in spec.outputs) for dim in spec.dims)
        for name in reads:
            self._extend(name, self.place, self.place + (0 if elementwise else 1))
        for name in writes:
            self._extend(name, self.place, self.place + 1)
        self.place += 1

    def _chain(self, statement: Exec, reads: Sequence[str], writes: Sequence[str]) -> None:
        """Add a statement of a chain."""
        if not self.reduced.isdisjoint(reads):
            self._end_chain()
        for name in (*reads, *writes):
            first, last = self.live.get(name, (self.place, self.place))
            self.live[name] = first, max(last, self.place)
        if any(formula.over for formula in statement.spec.definition.formulas):
            self.reduced.update(writes)
        self.in_chain = True

    def _extend(self, name: str, first: int, last: int) -> None:
        known = self.live.get(name, (first, last))
        self.live[name] = min(known[0], first), max(known[1], last, known[0] + 1)

    def _loop(self, loop: For) -> None:
        start, before = self.place, set(self.live)
        self.listed(loop.body)
        seen: set[str] = set()
        for statement, _ in execs(loop.body):
            for access in sorted(statement.accesses, key=lambda access: access.write):
                reads_old = not access.write or statement.accumulate != FALSE
                if access.buffer not in seen and (access.buffer in before or reads_old):
                    self._extend(access.buffer, start, self.place)
                seen.add(access.buffer)


def _is_direct(statement: Exec) -> bool:
    """Whether a statement computes or reduces elements by functions without branches."""
    formulas = statement.spec.definition.formulas
    is_complete = {access.buffer for access in statement.accesses if not access.write} or not statement.spec.inputs
    return bool(is_complete) and all(
        formula.value is not None and not formula.contracts and formula.scan is None and _functions(formula.value) <= DIRECT
        for formula in formulas
    )


def _functions(value: Value) -> set[str]:
    """Return the names of the functions and operators of a value."""
    if not isinstance(value, Operation):
        return set()
    return {value.name}.union(*map(_functions, value.arguments))


def _only(loop: For) -> Exec | None:
    """Return the only statement of a nest of loops; None if it has several."""
    inner = [stmt for stmt in loop.body if not isinstance(stmt, (Let, Comment))]
    if len(inner) != 1:
        return None
    return inner[0] if isinstance(inner[0], Exec) else _only(inner[0]) if isinstance(inner[0], For) else None
