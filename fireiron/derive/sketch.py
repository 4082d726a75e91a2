"""A sketch: a strategy in named parts, with open decisions. Skeletons make sketches, tricks change their parts."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, Self

import attrs

from fireiron.errors import ArgumentError
from fireiron.frozen import frozen
from fireiron.language.strategy import Strategy
from fireiron.language.tree import Decomposition
from fireiron.language.tunable import Tunable, resolve
from fireiron.spec import Spec

Values = Mapping[str, int]
"""Values of tunables by name."""

Bound = Callable[[Values], str]
"""A function that returns why values cannot be legal, or an empty text. It is cheap: nothing is lowered."""


GAIN: Final = 0.03
"""Share of the predicted time that another choice must gain to replace the preferred one. Smaller gains are within the model's error."""


@frozen
class Decision:
    """An open decision: a name, its options in order of preference, and the reason for the first one.

    An option has a value for each tunable of the decision: `{"bm": 128, "bn": 256}`. `because` may name them: `"{bm} rows: ..."`.
    """

    name: str
    options: tuple[Values, ...]
    because: str = ""

    @staticmethod
    def of(name: str, values: Iterable[int], because: str = "") -> Decision:
        """Return the decision about one tunable."""
        return Decision(name, tuple({name: value} for value in dict.fromkeys(values)), because)

    @property
    def tunables(self) -> tuple[str, ...]:
        """The names of its tunables."""
        return tuple(self.options[0])

    def __getitem__(self, name: str) -> Tunable:
        """Return a tunable, with its values in order of preference."""
        return Tunable(name, *(option[name] for option in self.options))

    def fixed(self, values: Values) -> Decision:
        """Return the decision with some values fixed: the options that have them, or else all options with the values replaced."""
        own = {name: value for name, value in values.items() if name in self.tunables}
        if not own:
            return self
        kept = tuple(option for option in self.options if all(option[name] == value for name, value in own.items()))
        changed = tuple(dict(pairs) for pairs in dict.fromkeys(tuple({**option, **own}.items()) for option in self.options))
        return attrs.evolve(self, options=kept or changed)


@frozen
class Call:
    """A call of a verb."""

    verb: str
    arguments: tuple[Any, ...] = ()
    named: tuple[tuple[str, Any], ...] = ()

    def on(self, chain: Any) -> Any:
        """Return a chain followed by this step or refinement."""
        return getattr(chain, self.verb)(*self.arguments, **dict(self.named))


def call(verb: str, *arguments: Any, **named: Any) -> Call:
    """Return a call of a verb."""
    return Call(verb, arguments, tuple(named.items()))


@frozen
class Part:
    """A part of a sketch: the calls of a step with its refinements, and the reason for it. `rule` is the rule that added it."""

    name: str
    calls: tuple[Call, ...]
    because: str = ""
    rule: str = ""


@frozen
class Sketch:
    """A strategy with open decisions.

    - `skeleton`, `because`: the rule that made it, and why it applies.
    - `start`: the kind of spec from which the strategy starts.
    - `parts`: the steps, in order. `decisions`: the open decisions, the most important first.
    - `bounds`: cheap tests of values. `tricks`: the rules that changed it, with their reasons.
    - `prefix`: the first steps of its strategies, as a user gives them.
    - `last_resort`: whether it is used only if no other sketch is legal, whatever the predictions are.
    - `gain`: the share of the predicted time that another choice must gain to replace the preferred one.
    - `family`: the name of the instructions that multiply matrices, a `Family`; empty without any.
    """

    skeleton: str
    because: str
    start: Any
    parts: tuple[Part, ...] = ()
    decisions: tuple[Decision, ...] = ()
    bounds: tuple[Bound, ...] = ()
    tricks: tuple[tuple[str, str], ...] = ()
    family: str = ""
    prefix: tuple[Decomposition, ...] = ()
    last_resort: bool = False
    gain: float = GAIN

    # ------------------------------------------------------------------------------------------ construction

    def then(self, name: str, *calls: Call, because: str = "") -> Self:
        """Append a part."""
        return attrs.evolve(self, parts=(*self.parts, Part(name, calls, because, self.skeleton)))

    def deciding(self, *decisions: Decision) -> Self:
        """Add open decisions."""
        return attrs.evolve(self, decisions=(*self.decisions, *decisions))

    def bounded(self, *bounds: Bound) -> Self:
        """Add tests of values."""
        return attrs.evolve(self, bounds=(*self.bounds, *bounds))

    def by(self, trick: str, because: str) -> Self:
        """Add the name of a trick that changed the sketch, with its reason."""
        return attrs.evolve(self, tricks=(*self.tricks, (trick, because)))

    def has(self, name: str) -> bool:
        """Whether it has a part of a name."""
        return any(part.name == name for part in self.parts)

    def part(self, name: str) -> Part:
        """Return the part of a name. Raises: `ArgumentError` if there is none."""
        for part in self.parts:
            if part.name == name:
                return part
        raise ArgumentError(f"the sketch {self.skeleton} has no part {name}", legal=[part.name for part in self.parts])

    def refined(self, name: str, *calls: Call) -> Self:
        """Append calls to a part: refinements of its last step."""
        changed = self.part(name)
        parts = tuple(attrs.evolve(part, calls=(*part.calls, *calls)) if part is changed else part for part in self.parts)
        return attrs.evolve(self, parts=parts)

    def replaced(self, name: str, *calls: Call) -> Self:
        """Replace the calls of a part."""
        changed = self.part(name)
        return attrs.evolve(self, parts=tuple(attrs.evolve(part, calls=calls) if part is changed else part for part in self.parts))

    def inserted(self, before: str, part: Part) -> Self:
        """Insert a part before another one."""
        place = self.parts.index(self.part(before))
        return attrs.evolve(self, parts=(*self.parts[:place], part, *self.parts[place:]))

    # ------------------------------------------------------------------------------------------ values

    def fixed(self, values: Values) -> Self:
        """Return the sketch with the values of some tunables fixed."""
        return attrs.evolve(self, decisions=tuple(decision.fixed(values) for decision in self.decisions))

    @property
    def tunables(self) -> tuple[str, ...]:
        """The names of all tunables."""
        return tuple(name for decision in self.decisions for name in decision.tunables)

    def first(self) -> dict[str, int]:
        """The preferred option of each decision."""
        return {name: value for decision in self.decisions for name, value in decision.options[0].items()}

    def exceeds(self, values: Values) -> str:
        """Return why values cannot be legal; empty if no bound is exceeded."""
        return next(filter(None, (bound(values) for bound in self.bounds)), "")

    # ------------------------------------------------------------------------------------------ strategies

    @functools.cached_property
    def open(self) -> Strategy:
        """The strategy with a tunable for each open value."""
        chain: Any = self.start
        for part in self.parts:
            for step in part.calls:
                chain = step.on(chain)
        strategy: Strategy = attrs.evolve(chain, spec=None, start=_starter(self.start))
        return strategy

    def strategy(self, values: Values) -> Strategy:
        """Return the strategy with values of its tunables."""
        return self._resolved(dict(values))

    def with_tunables(self, values: Values) -> Strategy:
        """Return the strategy with tunables: these values first, then those of the other options."""
        tunables = {name: Tunable(name, values[name], *self._others(name)) for name in self.tunables}
        return self._resolved({name: tunable if len(tunable.values) > 1 else values[name] for name, tunable in tunables.items()})

    def _others(self, name: str) -> list[int]:
        return [option[name] for decision in self.decisions for option in decision.options if name in option]

    def _resolved(self, values: Mapping[str, Any]) -> Strategy:
        steps = (*self.prefix, *self.open.steps[len(self.prefix) :])
        return attrs.evolve(self.open, steps=resolve(steps, values))


def _starter(start: Any) -> Any:
    return start.starter if isinstance(start, Spec) else start
