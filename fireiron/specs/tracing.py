"""Values that a kernel prints while it runs: what to print, and the form of a line, which the simulator and a GPU share.

A traced step is followed by an elementwise spec that reads the value of the step, and coordinates. A condition selects elements:

    acc_traced[m,n] = where(m == 3 and n == 5, acc[m,n], 0)

Coordinates of dimensions that the tensor does not have, such as that of a loop, are those of the first element that an iteration or a tile
processes; their operands have the prefix `first_`.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import attrs

from fireiron.frozen import frozen
from fireiron.specs.formula import Element, Formula, Index, Number, Operation, Value
from fireiron.values.machine import DType, float64, int64

FIRST: Final = "first_"
"""The prefix of operands with the first coordinate of a dimension."""

SUFFIX: Final = "_traced"
"""The suffix of the registers with the selected values."""


@frozen
class Traced:
    """A tensor whose elements a kernel prints after each step that writes it, or only after the named step.

    `condition` selects elements; None selects all. Its operands are elements of the tensor, coordinates, and first coordinates. An input
    (`is_input`) is printed before the first step that reads it, or before the named step. With `iterations`, the accumulator of a matmul is
    printed after each iteration of the loop in the strategy of its step.
    """

    tensor: str
    condition: Operation | None = None
    step: str = ""
    is_input: bool = False
    iterations: bool = False

    def follows(self, step: str, output: str) -> bool:
        """Whether the elements are printed after a step with this name and result."""
        return not self.is_input and output == self.tensor and self.step in ("", step)

    def precedes(self, step: str, readers: Sequence[str]) -> bool:
        """Whether the elements of an input are printed before a step; `readers` are the steps that read it, in order."""
        return self.is_input and step in readers and step == (self.step or readers[0])


def conjunction(conditions: Iterable[Value]) -> Value:
    """Return the conjunction of at least one condition."""
    return functools.reduce(lambda first, second: Operation("and", (first, second)), conditions)


def conjuncts(condition: Value) -> Iterator[Value]:
    """Yield the parts of a conjunction."""
    if isinstance(condition, Operation) and condition.name == "and":
        for argument in condition.arguments:
            yield from conjuncts(argument)
    else:
        yield condition


def at_least_zero(coordinate: Value) -> Operation:
    """Return a condition that always holds, by which a formula has a coordinate as an operand."""
    return Operation(">=", (coordinate, Number(0)))


def always_holds(condition: Value) -> bool:
    """Whether a condition is that of `at_least_zero`."""
    return isinstance(condition, Operation) and condition == at_least_zero(condition.arguments[0])


def condition_and_value(formula: Formula) -> tuple[Value, Value]:
    """Return the condition and the value of a formula `where(condition, value, 0)`."""
    assert isinstance(formula.value, Operation) and formula.value.name == "where"
    condition, value, _ = formula.value.arguments
    return condition, value


def selection(formula: Formula) -> Formula:
    """Return a formula that is 1 for the printed elements, and 0 for others."""
    condition, _ = condition_and_value(formula)
    return attrs.evolve(formula, value=Operation("where", (condition, Number(1), Number(0))))


def coordinates(formula: Formula, prefix: str) -> tuple[Element, ...]:
    """Return the operands of the printed coordinates, by the prefix of their names: those that `at_least_zero` adds, in order."""
    condition, _ = condition_and_value(formula)
    added = (part.arguments[0] for part in conjuncts(condition) if isinstance(part, Operation) and always_holds(part))
    return tuple(element for element in added if isinstance(element, Element) and element.tensor.startswith(prefix))


def first_of(dim: str) -> Element:
    """Return the first coordinate of a dimension."""
    return Element(f"{FIRST}{dim}", ())


def at_elements(value: Value, tensor: str, dims: Sequence[str]) -> Value:
    """Return a condition with the elements of a tensor at the coordinates `dims`."""
    if isinstance(value, Operation):
        return Operation(value.name, tuple(at_elements(argument, tensor, dims) for argument in value.arguments))
    if isinstance(value, Element) and value.tensor == tensor:
        return Element(tensor, tuple(map(Index, dims)))
    return value


def replaced(value: Value, old: Element, new: Value) -> Value:
    """Return a value in which another value replaces an element."""
    if isinstance(value, Operation):
        return Operation(value.name, tuple(replaced(argument, old, new) for argument in value.arguments))
    return new if value == old else value


def line_format(step: str, tensor: str, dtype: DType, rank: int, first: Sequence[str], wide: str = "ll", sign: str = "=") -> str:
    """Return the format of a line, for `printf` and for the operator % of Python: coordinates, the value, first coordinates, block, thread.

    `wide` is the length modifier of 64-bit integers, which Python does not have. The `sign` is `+=` for a value that a block adds.

    >>> from fireiron.values.machine import float16
    >>> line_format("gelu", "acc", float16, 2, ("k",)) % (3, 5, 0.1, 64, 2, 37)
    'gelu: acc[3,5] = 0.1 (k = 64, block 2, thread 37)'
    """
    element = f"[{','.join(['%d'] * rank)}]" if rank else ""
    number = f"%{wide}d" if dtype == int64 else "%d" if dtype.kind == "int" else "%.17g" if dtype == float64 else "%.9g"
    places = "".join(f"{dim} = %d, " for dim in first)
    return f"{step}: {tensor}{element} {sign} {number} ({places}block %d, thread %d)"
