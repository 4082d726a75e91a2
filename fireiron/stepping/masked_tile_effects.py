"""Derive from formulas whether a fully masked iteration changes a carried value.

In such an iteration, each tensor is a constant, its previous value, or an expression of these. Elements of arrays and numbers passed by
value are assumed to be finite, and positive if the definition declares it. Functions are evaluated only for numbers. A derived result is
valid for all arrays. If the derivation fails, the strategy is refused, although it may be correct.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence

import attrs

from fireiron.frozen import frozen
from fireiron.specs.bits import INTEGER_ONLY, TO_INTEGER
from fireiron.specs.compressed import of_dense
from fireiron.specs.formula import Element, Formula, Number, Operation, Value
from fireiron.specs.fused_definition import FusedDefinition
from fireiron.specs.meaning import number_of
from fireiron.specs.steps import INDICES, LOOPED, Step, shown

INFINITY = Number(math.inf)
LEAST = Number(-math.inf)
ZERO = Number(0)
ONE = Number(1)

KEEP_FINITE = (
    "+", "-", "*", "max", "min", "abs", "relu", "tanh", "tanh_approx", "sigmoid", "erf", "clamp", "floor", "round", "sin", "cos", "uniform",
    *INTEGER_ONLY, *TO_INTEGER,
)  # fmt: skip
"""Operations whose result is finite if all arguments are."""


Fails = Callable[[Value], bool]
"""Whether a condition is known to fail for all elements."""


@frozen
class Changed:
    """A change by a fully masked iteration: the first step that writes a different value, and that value."""

    step: Step
    value: Value

    def __str__(self) -> str:
        return f"{self.step.formula.target} = {shown(self.value)}"


def changed_by(definition: FusedDefinition, fails: Fails) -> Changed | None:
    """Return the first carried tensor that may change in an iteration in which some conditions fail everywhere; None if no tensor changes.

    All steps with such a condition select the other value: steps with the same mask are masked together.
    """
    values = Values(definition, fails=fails)
    values.perform_all(definition.steps, definition.looped)
    last = {step.formula.output: step for step in definition.steps}
    for name in definition.uses:
        if name in last and not name.startswith(INDICES):
            value = values.known[name]
            if not isinstance(value, Element) or value.tensor != name or value.dims != last[name].formula.target.dims:
                return Changed(last[name], value)
    return None


@frozen
class Unknown(Operation):
    """A value that is not known; only its arguments are. `text` is its text."""

    text: str = ""

    def __str__(self) -> str:
        return self.text


@attrs.define
class Values:
    """The value of each tensor written so far, in terms of previous values.

    Conditions for which `fails` returns True are assumed to fail.
    """

    definition: FusedDefinition
    fails: Fails = attrs.field(default=lambda condition: False, kw_only=True)
    known: dict[str, Value] = attrs.field(factory=dict, init=False)
    targets: dict[str, Element] = attrs.field(factory=dict, init=False)

    def perform(self, step: Step, masked_value: Number | None = None) -> None:
        """Set the value of a step's output; `masked_value` replaces the value of a mask."""
        formula = of_dense(step.formula)
        value: Value = masked_value if masked_value is not None else self._reduced(formula, self._simple_value(formula))
        if formula.accumulates:
            sign = {"sum": "+", "max": "max", "min": "min", "prod": "*"}[formula.combiner]
            value = self._operation(sign, (self.element(formula.target), value))
        self.known[formula.output], self.targets[formula.output] = value, formula.target

    def perform_all(self, steps: Iterable[Step], looped: tuple[str, ...] = ()) -> None:
        """Set the values of the outputs of steps, in order. Those of a nested loop are repeated; `looped` is the loop around `body`."""
        for loop, group in itertools.groupby(steps, lambda step: (step.part in LOOPED and bool(looped), step.nest[:1])):
            repeated, nest = loop
            if repeated or nest:
                inner = [step if repeated else attrs.evolve(step, nest=step.nest[1:]) for step in group]
                self._perform_loop(inner)
                continue
            for step in group:
                self.perform(step)

    def _perform_loop(self, steps: Sequence[Step]) -> None:
        """Set the values after any number of iterations: a tensor that an iteration changes has an unknown value before each."""
        targets = {step.formula.output: step.formula.target for step in steps}
        while True:
            before = {name: self.element(target) for name, target in targets.items()}
            self.perform_all(steps)
            changed = [name for name, target in targets.items() if self.element(target) != before[name]]
            self.known |= before
            self.targets |= targets
            if all(self._is_repeated(before[name]) for name in changed):
                return
            self.known |= {name: Unknown("repeated", (), f"{targets[name]} after some iterations") for name in changed}

    def _is_repeated(self, value: Value) -> bool:
        """Whether a value is the unknown one after some iterations."""
        return isinstance(value, Unknown) and value.name == "repeated"

    def _simple_value(self, formula: Formula) -> Value:
        """Return the value of a formula before its reduction; the values of a scan are unknown."""
        if formula.scan is None:
            return self._simple(formula.value)
        values = tuple(self._simple(value) for value in formula.scanned)
        return Unknown(formula.scan, values, f"{formula.scan}({', '.join(map(str, (*formula.along, *values)))})")

    def _reduced(self, formula: Formula, value: Value) -> Value:
        """Return the reduction of a value: the number itself if all terms are this number and it is neutral; else unknown."""
        same = {"sum": ZERO, "prod": ONE}.get(formula.combiner, value)
        if formula.reduction is None or (isinstance(value, Number) and value == same):
            return value
        return Unknown(formula.reduction, (value,), f"{formula.reduction}({', '.join(formula.over)}, {value})")

    def _simple(self, value: Value | None) -> Value:
        """Simplify a value by the known values of its elements."""
        if isinstance(value, Element):
            return self.element(value)
        if isinstance(value, Operation):
            if value.name == "where":
                shown, other = (self._simple(argument) for argument in value.arguments[1:])
                holds = False if self.fails(value.arguments[0]) else self._holds(value.arguments[0])
                if holds is not None or shown == other:
                    return other if holds is False else shown
                return Operation("where", (value.arguments[0], shown, other))
            return self._operation(value.name, tuple(self._simple(argument) for argument in value.arguments))
        assert value is not None
        return value

    def _holds(self, condition: Value) -> bool | None:
        """Whether a comparison holds because one side is infinite and the other finite; None if this does not decide it."""
        if not isinstance(condition, Operation) or condition.name not in ("<", "<=", ">", ">="):
            return None
        left, right = (self._simple(argument) for argument in condition.arguments)
        if condition.name[0] == ">":
            left, right = right, left
        if (left == LEAST and self._finite(right)) or (right == INFINITY and self._finite(left)):
            return True
        return False if (right == LEAST and self._finite(left)) or (left == INFINITY and self._finite(right)) else None

    def assume(self, element: Element, value: Value) -> None:
        """Assume a value for an element of a tensor, and for all its other elements."""
        self.known[element.tensor], self.targets[element.tensor] = self._simple(value), element

    def element(self, element: Element) -> Value:
        """Return the value of an element; the element itself if no step wrote it."""
        known = self.known.get(element.tensor)
        if known is None:
            return element
        same = isinstance(known, Number) or element.index == self.targets[element.tensor].index
        return known if same else Unknown("written", (element,), str(element))

    def _operation(self, name: str, arguments: tuple[Value, ...]) -> Value:
        if all(isinstance(argument, Number) for argument in arguments):
            return Number(number_of(Operation(name, arguments)))
        if len(arguments) == 2:
            left, right = arguments
            result = self._of_two(name, left, right)
            if result is None and name in ("+", "*", "max", "min"):
                result = self._of_two(name, right, left)
            if result is not None:
                return result
        return Operation(name, arguments)

    def _of_two(self, name: str, left: Value, right: Value) -> Value | None:
        """Return the value of an operation that one argument determines, or None. Callers swap the arguments of symmetric operations."""
        match name:
            case "max" | "min" if left == right or right == (LEAST if name == "max" else INFINITY):
                return left
            case "+" | "-" if right == ZERO:
                return left
            case "+" | "-" if left in (LEAST, INFINITY) and self._finite(right):
                return left
            case "-" if left == right and self._finite(left):
                return ZERO
            case "*" | "/" if right == ONE:
                return left
            case "*" if right == ZERO and self._finite(left):
                return ZERO
            case "*" | "/" if left in (LEAST, INFINITY) and self._positive(right):
                return left
            case "/" if left == ZERO and self._positive(right):
                return ZERO
        return None

    def _finite(self, value: Value) -> bool:
        if isinstance(value, Number):
            return math.isfinite(value.value)
        return isinstance(value, Element) or (value.name in KEEP_FINITE and all(map(self._finite, value.arguments)))

    def _positive(self, value: Value) -> bool:
        """Whether a value is finite and positive: positive numbers, values declared `positive`, and their sums, products and quotients."""
        if isinstance(value, Number):
            return 0 < value.value < math.inf
        if isinstance(value, Element):
            return value.tensor in self.definition.positive
        return value.name in ("+", "*", "/", "max", "min") and all(map(self._positive, value.arguments))
