"""The result of a search: a strategy, a reason for each choice, the ranking of the candidates, and what was refused."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import attrs

from fireiron.compiler import Program
from fireiron.derive.forms import OtherForm
from fireiron.derive.sketch import Sketch, Values
from fireiron.frozen import frozen
from fireiron.language.strategy import Strategy
from fireiron.spec import Spec
from fireiron.values.machine import WARPGROUP_ARCHITECTURE, Architecture, as_architecture

SHOWN: Final = 5
"""Candidates that the text of a result lists."""


@attrs.frozen(eq=False)
class Candidate:
    """A strategy that the search examined: a sketch with values.

    `us` is the predicted time in microseconds; None if the candidate is illegal, and `refused` is then the error.
    """

    sketch: Sketch
    values: Values
    us: float | None = None
    refused: str = ""

    @property
    def skeleton(self) -> str:
        """The name of its skeleton."""
        return self.sketch.skeleton

    @property
    def tricks(self) -> tuple[str, ...]:
        """The names of the tricks that changed it."""
        return tuple(name for name, _ in self.sketch.tricks)

    @property
    def strategy(self) -> Strategy:
        """The strategy, not bound."""
        return self.sketch.strategy(self.values)

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        return {
            "skeleton": self.skeleton, "tricks": list(self.tricks), "values": dict(self.values), "us": self.us, "refused": self.refused,
        }  # fmt: skip

    def __str__(self) -> str:
        text = " ".join([self.skeleton, *(f"+{name}" for name in self.tricks), *(f"{name}={value}" for name, value in self.values.items())])
        return f"{text}: {self.refused}" if self.us is None else f"{text}: {self.us:.4g} us"


@frozen
class Reason:
    """The reason for one decision: what was decided, its value, why, and the next best value with its predicted time."""

    decision: str
    choice: str
    because: str
    next_best: str = ""

    def __str__(self) -> str:
        return f"{self.decision}: {self.choice}" + f": {self.because}" * bool(self.because) + f" ({self.next_best})" * bool(self.next_best)


@attrs.frozen(eq=False, slots=False)
class Derivation:
    """A derived strategy.

    Attributes:
        spec, target: what was asked.
        strategy: the strategy, bound to the spec: an ordinary value, which prints, stores, compares and compiles like any other.
        tunable: the same, not bound, with a tunable for each open value; `fireiron.tune` searches its values.
        reasons: the reason for each decision, in the order of the strategy.
        ranking: the legal candidates, the best prediction first.
        refusals: why rules did not apply, and which candidates were illegal, by name.
        us: the predicted time in microseconds on the target's default GPU.
        examined: the number of candidates that were lowered. `seconds`: the time of the search.
        program: the checked program of the strategy.
        find_forms: the function of `other_forms`: it takes the predicted time.
    """

    spec: Spec
    target: Architecture
    strategy: Strategy
    tunable: Strategy
    reasons: tuple[Reason, ...]
    ranking: tuple[Candidate, ...]
    refusals: Mapping[str, str]
    us: float
    examined: int
    seconds: float
    program: Program = attrs.field(repr=False)
    find_forms: Callable[[float], tuple[OtherForm, ...]] = attrs.field(repr=False)

    @property
    def chosen(self) -> Candidate:
        """The candidate of the strategy."""
        return next(one for one in self.ranking if one.strategy.steps == self.strategy.steps)

    def finalists(self, count: int = SHOWN) -> tuple[Candidate, ...]:
        """Return the best candidates that differ in more than one secondary decision: in skeleton, tricks, or the first decision.

        Two skeletons may make the same kernel of the same values, so their candidates with equal predictions count as one.
        """
        distinct: dict[object, Candidate] = {}
        different: dict[object, Candidate] = {}
        for candidate in self.ranking:
            different.setdefault((candidate.us, candidate.tricks, tuple(candidate.values.items())), candidate)
        for candidate in different.values():
            first = tuple(candidate.values.get(name) for decision in candidate.sketch.decisions[:1] for name in decision.tunables)
            distinct.setdefault((candidate.skeleton, first, candidate.tricks if len(distinct) < count // 2 else ()), candidate)
        return tuple(distinct.values())[:count]

    @functools.cached_property
    def other_forms(self) -> tuple[OtherForm, ...]:
        """The forms of the definition that are predicted to be faster, the fastest first: each with the rewritten definition.

        The first access derives a strategy for each form that applies. The strategy stays one for the definition as it is.
        """
        return self.find_forms(self.us)

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON. The strategy is stored as text, which `Strategy.from_json` reads."""
        return {
            "spec": str(self.spec),
            "target": self.target.name,
            "strategy": self.strategy.to_json(),
            "reasons": [attrs.asdict(reason) for reason in self.reasons],
            "ranking": [candidate.as_dict() for candidate in self.ranking],
            "refusals": dict(self.refusals),
            "us": self.us,
            "examined": self.examined,
        }

    def explain(self) -> str:
        """Return each decision with its reason and the next best choice, and the rules that did not apply."""
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        from tabulate import tabulate

        yield f"{self.spec} on {self.target}: {self.us:.4g} us predicted on one {self.program_gpu}; {self.examined} candidates"
        yield ""
        rows = [[reason.decision, reason.choice, reason.because, reason.next_best] for reason in self.reasons]
        yield tabulate(rows, headers=["decision", "choice", "because", "next best"], maxcolwidths=[None, 28, 60, 40])
        yield "next best: the fastest candidate with another choice, and its predicted time relative to the chosen one"
        yield from self._notes()
        for form in self.other_forms:
            yield ""
            yield f"another form of the definition would be faster: {form}"
        used = {self.chosen.skeleton, *self.chosen.tricks}  # another candidate may have refused a trick
        refusals = [[name, text] for name, text in self.refusals.items() if name not in used]
        if refusals:
            yield ""
            yield tabulate(refusals, headers=["not used", "because"], maxcolwidths=[None, 100])

    @property
    def program_gpu(self) -> str:
        """The GPU of the predictions."""
        from fireiron.cost.gpus import of_architecture

        return str(of_architecture(self.target))

    def _notes(self) -> Iterator[str]:
        """Yield a note if the target lacks instructions that the other target of the same GPU has."""
        wide = as_architecture(WARPGROUP_ARCHITECTURE)
        if self.chosen.sketch.family == "warps" and self.target.capability == wide.capability and self.target != wide:
            what = f"{self.target} has no instructions of warpgroups, so warps multiply by mma.sync"
            yield f"{what}; on a GPU of this family, {wide} is usually faster: --arch {wide}, or derive({wide.name!r})"

    def __str__(self) -> str:
        best = [f"  {candidate}" for candidate in self.ranking[:SHOWN]]
        fastest = min((candidate.us for candidate in self.ranking if candidate.us is not None), default=self.us)
        equal = f"Predictions that differ by less than {self.chosen.sketch.gain:.0%} count as equal; of these, the rules prefer the first."
        head = f"{self.us:.4g} us predicted on one {self.program_gpu}. {self.examined} candidates were examined; the preferred ones:"
        legend = "  (kind of kernel, + changes of it, values of the tunables: predicted time)"
        return "\n".join([written(self.strategy), "", head, *best, legend, *([equal] if fastest < self.us else []), *self._notes()])

    def source(self) -> str:
        """Return a strategy file: the definition, `problem`, and `strategy`, which all commands read."""
        start, problem = repr(self.tunable.start), repr(self.spec)
        is_definition = problem.startswith(f"{start}(") and not start.isidentifier()
        name = "definition" if is_definition else start
        note = f"{self.us:.4g} us predicted on one {self.program_gpu}"
        return "\n".join(
            [
                f'"""{self.spec}: derived for {self.target}, {note}."""',
                "",
                "from fireiron import *",
                "",
                *([f"definition = {start}"] if is_definition else []),
                f"problem = {problem.replace(start, name, 1) if is_definition else problem}",
                f"strategy = {_chain(name, self.strategy)}",
                "",
            ]
        )


def written(strategy: Strategy) -> str:
    """Return a strategy as Python, a step on each line."""
    return _chain(repr(strategy.start if strategy.spec is None else strategy.spec), strategy)


def _chain(start: str, strategy: Strategy) -> str:
    return "\n".join(["(", f"    {start}", *(f"    .{step.label()}" for step in strategy.steps), ")"])
