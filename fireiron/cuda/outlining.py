"""Outline repeated sequences of statements on registers as functions, such as those of a peeled iteration and of its loop.

T[n := 0]; for n: { S; T[n := n + 1] }    -->    void f(int n) { T }    f(0); for n: { S; f(n + 1) }

Repeated sequences are equal except for the values of loop variables in their expressions. These values become parameters. A sequence
accesses registers by indices that only its own loops determine, which are unrolled. So the function is inlined, and its arrays stay in
registers.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias

from fireiron.cuda.reductions import LaneReduction
from fireiron.frozen import evolve, frozen
from fireiron.ir import Access, Buffer, Comment, Exec, For, IfAnyLane, Kernel, Let, Stmt, execs, statements, substituted
from fireiron.ir.mechanism import AT_ONCE
from fireiron.ir.rewrite import by_identities, by_identity
from fireiron.values.expr import Const, Expr, Var, as_expr, constant
from fireiron.values.expr.normal import terms_of

LEAST_LINES = 24
"""Minimum number of lines of a sequence that becomes a function. Comments, loops and statements count."""

Values: TypeAlias = "dict[Var, Expr]"
Place: TypeAlias = "tuple[int, int]"
"""The number of a statement list in the kernel, and a position in it."""


@frozen(eq=False)
class Outlined:
    """A function: statements that refer to its parameters."""

    parameters: tuple[Var, ...]
    body: tuple[Stmt, ...]

    @property
    def results(self) -> tuple[str, str]:
        """The names of the first and the last array that the function writes, without `_rf`, so that a parsed kernel has the same names."""
        written = [access.buffer for stmt, _ in execs(self.body) for access in stmt.accesses if access.write]
        first, last = (re.sub(r"_rf\d*$", "", name) for name in (written[0], written[-1]))
        return first, last

    @property
    def name(self) -> str:
        """The name of the function, from the names of the arrays that it computes."""
        first, last = self.results
        return f"compute_{first}" if first == last else f"{first}_to_{last}"


@frozen
class OutlinedCall(Stmt):
    """A call of a function; `body` has the statements that it executes."""

    function: Outlined
    arguments: tuple[Expr, ...]
    body: tuple[Stmt, ...]

    @property
    def children(self) -> tuple[tuple[Stmt, ...], ...]:
        """The executed statements."""
        return (self.body,)

    def rebuilt(self, children: tuple[tuple[Stmt, ...], ...]) -> OutlinedCall:
        """The same call with other statements."""
        (body,) = children
        return evolve(self, body=body)

    @property
    def expressions(self) -> tuple[Expr, ...]:
        """The arguments."""
        return self.arguments

    def substitute(self, values: Mapping[Var, Expr | int]) -> OutlinedCall:
        """The call with variables replaced in its arguments."""
        return evolve(self, arguments=tuple(argument.substitute(values) for argument in self.arguments))


def outlined(kernel: Kernel) -> Kernel:
    """Replace sequences that a kernel repeats by calls of functions, the longest first."""
    while (call_of := _repeated(kernel)) is not None:
        kernel = evolve(kernel, body=_replaced(kernel, kernel.body, call_of, itertools.count()))
    return kernel


# ---------------------------------------------------------------------------------------------- sequences


def _is_in_registers(kernel: Kernel, stmt: Stmt) -> bool:
    """Whether a statement only accesses registers, by indices that its own loops determine, and parameters that are values."""
    return _of_registers(kernel.buffers, stmt)


@by_identities  # the search for sequences examines each statement several times
def _of_registers(buffers: tuple[Buffer, ...], stmt: Stmt) -> bool:
    return _accesses_registers(_table(buffers), stmt, frozenset())


@by_identity
def _table(buffers: tuple[Buffer, ...]) -> Mapping[str, Buffer]:
    return {buffer.name: buffer for buffer in buffers}


def _accesses_registers(table: Mapping[str, Buffer], stmt: Stmt, loops: frozenset[Var]) -> bool:
    """The same for a statement inside loops with these variables."""
    match stmt:
        case Comment():
            return True
        case For():
            plain = constant(stmt.extent) is not None and stmt.prior_iterations is None and not stmt.pinned_registers
            inside = loops | {stmt.var}
            return plain and all(_accesses_registers(table, inner, inside) for inner in stmt.body)
        case IfAnyLane(body=body) | LaneReduction(body=body):
            return all(_accesses_registers(table, inner, loops) for inner in body)
        case Exec():
            simple = stmt.mechanism is AT_ONCE and stmt.scratch is None and stmt.tensor_map is None and not stmt.ring
            printed = bool(stmt.pieces) and not stmt.instruction.tests_edges and not stmt.collective
            return simple and printed and all(_is_register(table[access.buffer], access, loops) for access in stmt.accesses)
    return False


def _is_register(buffer: Buffer, access: Access, loops: frozenset[Var]) -> bool:
    if buffer.memory.by_value or buffer.memory.is_coordinate:
        return True
    if not buffer.memory.private or buffer.memory.fragment is not None:
        return False
    has_numbers = (access.storage or buffer.storage).has_numbers and constant(buffer.elements) is not None
    if has_numbers and all(value.variables() <= loops for value in (*access.base, access.copy)):
        return True  # faster than the addresses of all elements
    return all(buffer.address(access, offset).variables() <= loops for offset in access.elements())


def _shape(stmt: Stmt) -> object:
    """The part of a statement that is equal in all statements that differ only in expressions."""
    match stmt:
        case Comment(text=text):
            return text
        case Exec():
            return stmt.path, stmt.instruction.name, tuple(access.buffer for access in stmt.accesses)
        case For():
            return stmt.var, stmt.extent, tuple(map(_shape, stmt.body))
        case IfAnyLane(needed=needed, body=body):
            return needed, tuple(map(_shape, body))
        case LaneReduction(values=values, operation=operation, lanes=lanes):
            return values, operation, lanes
    return None


def _inner_lists(kernel: Kernel, stmt: Stmt) -> tuple[tuple[Stmt, ...], ...]:
    """The lists of a statement that are searched for sequences: none if it is a part of a sequence, or a call."""
    return () if isinstance(stmt, OutlinedCall) or _is_in_registers(kernel, stmt) else stmt.children


def _lists(kernel: Kernel, body: tuple[Stmt, ...], numbers: Iterator[int]) -> Iterator[tuple[int, tuple[Stmt, ...]]]:
    """The statement lists that are searched for sequences, with their numbers, in program order."""
    yield next(numbers), body
    for stmt in body:
        for child in _inner_lists(kernel, stmt):
            yield from _lists(kernel, child, numbers)


def _lines(body: Sequence[Stmt]) -> int:
    """A measure of the lines of statements; 0 for comments alone."""
    if next(execs(tuple(body)), None) is None:
        return 0
    return sum(0 if isinstance(stmt, LaneReduction) else 2 if isinstance(stmt, (For, IfAnyLane)) else 1 for stmt in statements(tuple(body)))


# ---------------------------------------------------------------------------------------------- repetitions


@frozen
class _Sequence:
    """Statements from a place on."""

    place: Place
    body: tuple[Stmt, ...]

    def overlaps(self, other: _Sequence) -> bool:
        """Whether both have a statement in common."""
        (number, start), (other_number, other_start) = self.place, other.place
        return number == other_number and start < other_start + len(other.body) and other_start < start + len(self.body)

    def after(self, count: int) -> _Sequence:
        """The sequence without its first statements."""
        number, start = self.place
        return _Sequence((number, start + count), self.body[count:])

    def trimmed(self, count: int) -> _Sequence:
        """The first statements, without comments at their end, which belong to the next statement."""
        while count and isinstance(self.body[count - 1], Comment):
            count -= 1
        return _Sequence(self.place, self.body[:count])


def _repeated(kernel: Kernel) -> Mapping[Place, OutlinedCall] | None:
    """The calls of the function for the longest repeated sequence, by where they begin; None if there is none that is long enough."""
    fixed = {kernel.block, kernel.thread, *kernel.symbols, *(stmt.var for stmt in kernel.body if isinstance(stmt, Let))}
    runs = list(_runs(kernel))
    for template in _candidates(runs, fixed):
        uses = _uses(template, runs, fixed)
        if len(uses) > 1 and (calls := _calls(template, uses)) is not None:
            return calls
    return None


def _runs(kernel: Kernel) -> Iterator[_Sequence]:
    """The maximal sequences of consecutive statements on registers that are long enough."""
    for number, body in _lists(kernel, kernel.body, itertools.count()):
        for inside, group in itertools.groupby(enumerate(body), lambda entry: _is_in_registers(kernel, entry[1])):
            entries = list(group)
            run = tuple(stmt for _, stmt in entries)
            if inside and _lines(run) >= LEAST_LINES:
                yield _Sequence((number, entries[0][0]), run)


def _candidates(runs: Sequence[_Sequence], fixed: set[Var]) -> list[_Sequence]:
    """The sequences that occur twice, the longest first, in the version whose expressions depend on more variables."""
    starts: dict[object, list[_Sequence]] = {}
    known: set[tuple[Place, Place]] = set()
    sequences: dict[Place, _Sequence] = {}
    for run in runs:
        for start, stmt in enumerate(run.body):
            second = run.after(start)
            for first in starts.setdefault(_shape(stmt), []):
                for template, use in ((second, first), (first, second)):
                    if (template.place, use.place) in known:
                        continue  # a part of a longer sequence
                    length = _agreement(template.body, use.body, fixed)
                    known |= {(template.after(number).place, use.after(number).place) for number in range(length)}
                    sequence = template.trimmed(length)
                    if _lines(sequence.body) >= LEAST_LINES and not sequence.overlaps(use.trimmed(length)):
                        sequences.setdefault(sequence.place, sequence)
            starts[_shape(stmt)].append(second)
    return sorted(sequences.values(), key=lambda sequence: (-_lines(sequence.body), sequence.place))


def _agreement(template: Sequence[Stmt], use: Sequence[Stmt], fixed: set[Var]) -> int:
    """The number of first statements that agree for some values of the template's variables."""
    values: Values = {}
    for number, (stmt, other) in enumerate(zip(template, use)):
        extended = _agreeing(stmt, other, values, fixed)
        if extended is None:
            return number
        values = extended
    return min(len(template), len(use))


def _uses(template: _Sequence, runs: Sequence[_Sequence], fixed: set[Var]) -> list[tuple[_Sequence, Values]]:
    """The sequences that equal the template for some values of its variables, and do not overlap; the template first."""
    length = len(template.body)
    uses: list[tuple[_Sequence, Values]] = [(template, {})]
    for run in runs:
        for start in range(len(run.body) - length + 1):
            sequence = run.after(start).trimmed(length)
            if any(sequence.overlaps(use) for use, _ in uses):
                continue
            values: Values | None = {}
            for stmt, other in zip(template.body, sequence.body):
                values = None if values is None else _agreeing(stmt, other, values, fixed)
            if values is not None:
                uses.append((sequence, values))
    return uses


def _calls(template: _Sequence, uses: Sequence[tuple[_Sequence, Values]]) -> Mapping[Place, OutlinedCall] | None:
    """The calls of one function, by the place where they begin; None if no function equals all sequences."""
    variables = list(dict.fromkeys(var for _, values in uses for var, value in values.items() if value != var))
    parameters: list[Var] = []
    begin: Values = {}
    arguments: list[list[Expr]] = [[] for _ in uses]
    for var in variables:
        values = [use.get(var, var) for _, use in uses]
        least = min((number for value in values if (number := constant(value)) is not None), default=0)
        expressions = (value for stmt in statements(template.body) for value in stmt.expressions)
        step = math.gcd(*(factor for value in expressions for factor in _factors(value, var))) or 1
        shifted = [(value - least) * step for value in values]
        name = f"{var.name}_offset" if step > 1 else var.name
        parameter = Var(name, min(value.low for value in shifted), max(value.high for value in shifted), step)
        parameters.append(parameter)
        begin[var] = parameter // step + least
        for given, value in zip(arguments, shifted, strict=True):
            given.append(value)
    function = Outlined(tuple(parameters), substituted(template.body, begin))
    for (use, _), given in zip(uses, arguments, strict=True):
        if substituted(function.body, dict(zip(parameters, given, strict=True))) != use.body:
            return None
    return {use.place: OutlinedCall(function, tuple(given), use.body) for (use, _), given in zip(uses, arguments, strict=True)}


def _factors(value: Expr, var: Var) -> Iterator[int]:
    """The coefficients of a variable in an expression; 1 where it is not a term of a sum."""
    for atoms, coefficient in terms_of(value)[0]:
        if atoms == (var,):
            yield coefficient
        for atom in atoms if atoms != (var,) else ():
            if atom == var:
                yield 1
            for child in atom.children:
                yield from _factors(child, var)


def _replaced(kernel: Kernel, body: tuple[Stmt, ...], call_of: Mapping[Place, OutlinedCall], numbers: Iterator[int]) -> tuple[Stmt, ...]:
    """Statements with calls for the sequences that begin at some places; lists are numbered as in `_lists`."""
    number, position = next(numbers), 0
    result: list[Stmt] = []
    while position < len(body):
        stmt = call_of.get((number, position), body[position])
        position += len(stmt.body) if isinstance(stmt, OutlinedCall) and stmt is not body[position] else 1
        inner = tuple(_replaced(kernel, child, call_of, numbers) for child in _inner_lists(kernel, stmt))
        result.append(stmt.rebuilt(inner) if inner else stmt)
    return tuple(result)


# ---------------------------------------------------------------------------------------------- agreement


def _agreeing(stmt: Stmt, other: Stmt, values: Values, fixed: set[Var]) -> Values | None:
    """The values of variables for which a statement equals another one; `values` are those that earlier statements determined."""
    if _shape(stmt) != _shape(other):
        return None
    free = _variables(stmt) - {inner.var for inner in statements((stmt,)) if isinstance(inner, For)} - fixed
    values = dict(values)
    while True:
        (replaced,) = substituted((stmt,), values)
        if replaced == other:
            return {**{var: var for var in sorted(free, key=str)}, **values}
        solved = _solved_statement(replaced, other, free - values.keys())
        if solved is None:
            return None
        values |= solved


def _variables(stmt: Stmt) -> set[Var]:
    return {var for inner in statements((stmt,)) for value in inner.expressions for var in value.variables()}


def _solved_statement(stmt: Stmt, other: Stmt, free: set[Var]) -> Values | None:
    """The value of one variable that makes the first different expression of two statements agree."""
    for first, second in zip(statements((stmt,)), statements((other,))):
        for value, wanted in zip(first.expressions, second.expressions):
            solved = _solved(value, wanted, free) if value != wanted else None
            if solved is not None:
                return solved
    return None


def _solved(value: Expr, wanted: Expr, free: set[Var]) -> Values | None:
    """The value of one variable for which an expression equals another one."""
    rest = wanted - value
    for atoms, coefficient in terms_of(value)[0]:
        if len(atoms) == 1 and isinstance(atoms[0], Var) and atoms[0] in free and (steps := _divided(rest, coefficient)) is not None:
            return {atoms[0]: atoms[0] + steps}
    if type(value) is type(wanted) and len(value.children) == len(wanted.children):
        for part, other in zip(value.children, wanted.children, strict=True):
            if part != other and (solved := _solved(part, other, free)) is not None:
                return solved
    return None


def _divided(value: Expr, divisor: int) -> Expr | None:
    """A value divided by a number that divides each of its coefficients; None for others."""
    terms, number = terms_of(value)
    if number % divisor or any(coefficient % divisor for _, coefficient in terms):
        return None
    total: Expr = Const(number // divisor)
    for atoms, coefficient in terms:
        product = as_expr(coefficient // divisor)
        for atom in atoms:
            product = product * atom
        total = total + product
    return total


__all__ = ["Outlined", "OutlinedCall", "outlined"]
