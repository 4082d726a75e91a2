"""Print outlined functions."""

from __future__ import annotations

import re

from fireiron.cuda.lines import WIDTH, Line, comment, lines_of, plain
from fireiron.cuda.outlining import Outlined
from fireiron.cuda.reductions import received_only
from fireiron.frozen import frozen
from fireiron.ir import Buffer, IfAnyLane, Kernel, Let, execs, statements
from fireiron.ir.text import Item, Path
from fireiron.values.document import Call, Listed, laid_out
from fireiron.values.expr import INT_MAX, Expr, Var


@frozen
class OutlinedFunction:
    """A printed function: `buffers` are passed by reference, or by value if they are values, `variables` under their names.

    `tested` are the conditions that its callers test.
    """

    name: str
    function: Outlined
    buffers: tuple[Buffer, ...]
    variables: tuple[Var, ...]
    tested: frozenset[Expr]
    items: tuple[Item, ...]
    steps: tuple[Path, ...]

    def lines(self) -> list[Line]:
        """The lines of the function."""
        first, last = self.function.results
        note = first if first == last else f"{first} to {last}"
        head = plain([*comment(f"{note}, on registers"), *self._head(), "{"], self.steps)
        return [*head, *lines_of(self.items, 1), Line("}", self.steps)]

    def _head(self) -> list[str]:
        parameters = [*map(_parameter, self.buffers), *(f"{kind_of(var)} {var}" for var in (*self.function.parameters, *self.variables))]
        head = Call(f"__device__ __forceinline__ void {self.name}", (Listed(tuple(parameters)),))
        return laid_out(head, WIDTH)


def name_of(function: Outlined) -> str:
    """The wanted name of a function."""
    return re.sub(r"\W", "_", function.name)


def kind_of(var: Var) -> str:
    """The type of an index."""
    return "long long" if var.high > INT_MAX else "int"


def _parameter(buffer: Buffer) -> str:
    kind = buffer.dtype.cuda
    return f"{kind} {buffer.name}" if buffer.memory.by_value else f"{kind} (&{buffer.name})[{buffer.total.high}]"


def buffers_of(kernel: Kernel, function: Outlined) -> tuple[Buffer, ...]:
    """The buffers that a function accesses, in the order of the kernel, values after registers."""
    names = {access.buffer for stmt, _ in execs(function.body) for access in stmt.accesses} - received_only(kernel)
    names |= {stmt.needed for stmt in statements(function.body) if isinstance(stmt, IfAnyLane)}
    buffers = [buffer for buffer in kernel.buffers if buffer.name in names and not buffer.memory.is_coordinate]
    return tuple(sorted(buffers, key=lambda buffer: buffer.memory.by_value))


def in_order(kernel: Kernel, variables: set[Var]) -> tuple[Var, ...]:
    """Variables in the order of their definitions at the top of a kernel; those of loops first."""
    names = [*kernel.symbols, kernel.block, kernel.thread, *(stmt.var for stmt in kernel.body if isinstance(stmt, Let))]
    order = {var: number for number, var in enumerate(names)}
    return tuple(sorted(variables, key=lambda var: (order.get(var, -1), var.name)))
