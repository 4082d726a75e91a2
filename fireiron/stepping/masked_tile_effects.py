"""What a turn of a loop does whose elements a mask hides, worked out on formulas: whether it changes anything that is carried.

Each tensor is, in such a turn, a number everywhere, what it was before, or a value made of such. What arrays hold counts as
finite, and so do numbers by value, above 0 where the definition says so; of functions nothing is known but their values at numbers.
So what is found is proved for all arrays, and what is not found may be true all the same: it is refused.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import attrs

from fireiron.specs.formula import Element, Formula, Number, Operation, Value
from fireiron.specs.fused import INDICES, FusedDefinition, Step, shown
from fireiron.specs.meaning import number_of

INFINITY = Number(math.inf)
LEAST = Number(-math.inf)
ZERO = Number(0)
ONE = Number(1)

KEEP_FINITE = ("+", "-", "*", "max", "min", "abs", "relu", "tanh", "tanh_approx", "sigmoid", "erf")
"""What of finite arguments is finite."""


Fails = Callable[[Value], bool]
"""Whether a condition is known to fail for all elements."""


@attrs.frozen
class Changed:
    """What a turn changes though all its elements are hidden: the step that first writes what differs, and what it then is."""

    step: Step
    value: Value

    def __str__(self) -> str:
        return f"{self.step.formula.target} = {shown(self.value)}"


def changed_by(made: FusedDefinition, fails: Fails) -> Changed | None:
    """The first of what is carried that an iteration changes, or may change, in which some conditions fail everywhere; None where none is.

    Every step with such a condition takes its other value: two steps under the same mask are hidden together.
    """
    values = Values(made, fails=fails)
    last: dict[str, Step] = {}
    for step in made.steps:
        values.perform(step)
        last[step.formula.output] = step
    for name in made.uses:
        if name in last and not name.startswith(INDICES):
            found = values.known[name]
            if not isinstance(found, Element) or found.tensor != name or found.dims != last[name].formula.target.dims:
                return Changed(last[name], found)
    return None


@attrs.frozen
class Unknown(Operation):
    """A value of which nothing is known but what it is made of, as `text` says."""

    text: str = ""

    def __str__(self) -> str:
        return self.text


@attrs.define
class Values:
    """What each tensor is that was written so far, in terms of what it and others were before, where conditions fail that `fails` names."""

    made: FusedDefinition
    fails: Fails = attrs.field(default=lambda condition: False, kw_only=True)
    known: dict[str, Value] = attrs.field(factory=dict, init=False)
    targets: dict[str, Element] = attrs.field(factory=dict, init=False)

    def perform(self, step: Step, hidden: Number | None = None) -> None:
        """What a step makes its output; `hidden` where it is the mask."""
        one = step.formula
        value: Value = hidden if hidden is not None else self._reduced(one, self._simple(one.value))
        if one.joins:
            sign = {"sum": "+", "max": "max", "min": "min", "prod": "*"}[one.joins_by]
            value = self._operation(sign, (self.element(one.target), value))
        self.known[one.output], self.targets[one.output] = value, one.target

    def _reduced(self, one: Formula, value: Value) -> Value:
        """What values that are everywhere the same number are reduced to, where it is that number; otherwise not known."""
        same = {"sum": ZERO, "prod": ONE}.get(one.joins_by, value)
        if one.reduction is None or (isinstance(value, Number) and value == same):
            return value
        return Unknown(one.reduction, (value,), f"{one.reduction}({', '.join(one.over)}, {value})")

    def _simple(self, value: Value | None) -> Value:
        """A value, with what is known of its elements."""
        if isinstance(value, Element):
            return self.element(value)
        if isinstance(value, Operation):
            if value.name == "where":
                shown, other = (self._simple(one) for one in value.arguments[1:])
                holds = False if self.fails(value.arguments[0]) else self._holds(value.arguments[0])
                if holds is not None or shown == other:
                    return other if holds is False else shown
                return Operation("where", (value.arguments[0], shown, other))
            return self._operation(value.name, tuple(self._simple(one) for one in value.arguments))
        assert value is not None
        return value

    def _holds(self, condition: Value) -> bool | None:
        """Whether a comparison holds because one side is infinite and the other finite; None where that does not say it."""
        if not isinstance(condition, Operation) or condition.name not in ("<", "<=", ">", ">="):
            return None
        left, right = (self._simple(one) for one in condition.arguments)
        if condition.name[0] == ">":
            left, right = right, left
        if (left == LEAST and self._finite(right)) or (right == INFINITY and self._finite(left)):
            return True
        return False if (right == LEAST and self._finite(left)) or (left == INFINITY and self._finite(right)) else None

    def assume(self, one: Element, value: Value) -> None:
        """Let an element be a value, wherever the others in its place are."""
        self.known[one.tensor], self.targets[one.tensor] = self._simple(value), one

    def element(self, one: Element) -> Value:
        """What an element is; itself where nothing wrote it."""
        known = self.known.get(one.tensor)
        if known is None:
            return one
        same = isinstance(known, Number) or one.index == self.targets[one.tensor].index
        return known if same else Unknown("written", (one,), str(one))

    def _operation(self, name: str, arguments: tuple[Value, ...]) -> Value:
        if all(isinstance(one, Number) for one in arguments):
            return Number(number_of(Operation(name, arguments)))
        if len(arguments) == 2:
            left, right = arguments
            found = self._of_two(name, left, right)
            if found is None and name in ("+", "*", "max", "min"):
                found = self._of_two(name, right, left)
            if found is not None:
                return found
        return Operation(name, arguments)

    def _of_two(self, name: str, left: Value, right: Value) -> Value | None:
        """What an operation is of which one argument says it; None where none does. What is the same turned round is asked so too."""
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
        """Whether a value is finite and above 0: numbers, those that are `positive`, and their sums, products and quotients."""
        if isinstance(value, Number):
            return 0 < value.value < math.inf
        if isinstance(value, Element):
            return value.tensor in self.made.positive
        return value.name in ("+", "*", "/", "max", "min") and all(map(self._positive, value.arguments))
