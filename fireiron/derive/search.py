"""Search candidates in a fixed order: first the preferred values, then one decision after another by the predicted time.

The order and the number of candidates do not depend on the speed of the machine, so the answer is the same everywhere. `seconds` limits a
search that takes too long; its answer is then marked as incomplete.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Final

import attrs

from fireiron.cost import predict
from fireiron.derive.derivation import Candidate, Derivation, Reason
from fireiron.derive.facts import Facts
from fireiron.derive.forms import OtherForm, forms_of
from fireiron.derive.prefix import numbers_of
from fireiron.derive.rule import Rule, Skeleton, Trick
from fireiron.derive.sketch import GAIN, Decision, Sketch, Values
from fireiron.errors import ArgumentError, FireironError
from fireiron.gpu.toolchain import compile_cuda
from fireiron.language.strategy import Strategy
from fireiron.language.tree import Decomposition
from fireiron.specs.fused import Fused

CANDIDATES: Final = 64
"""Number of candidates that are lowered for one answer."""

FIRST: Final = 24
"""Number of values of a sketch that are lowered until one is legal."""

LAST_RESORT: Final = "a last resort"
"""The reason against a sketch that is not wanted although it would be legal."""

SAME: Final = 0.0005
"""Predictions whose relative difference is smaller are printed as the same time."""

DESCENDED: Final = 2
"""Number of sketches whose decisions are varied."""

OF_FORM: Final = 6
"""Candidates of the derivation of another form of the definition."""

CHECKED: Final = 8
"""Number of the best candidates of which one must pass all checks."""

Progress = Callable[[int, str], object]
"""A function that receives the number of candidates so far, and a text."""


def _silent(count: int, text: str) -> None:
    """Ignore progress."""


class NoStrategyError(ArgumentError):
    """No rule finds a legal strategy. `refusals` has the reason of each rule that does not apply, and of what was tried."""

    def __init__(self, asked: str, *, refusals: Mapping[str, str], hint: str) -> None:
        super().__init__(asked, hint=hint)
        self.refusals = dict(refusals)


@attrs.define(eq=False)
class Search:
    """The search of a strategy for a spec.

    Attributes:
        facts: the spec and the target.
        rules: the rules, in order of preference.
        fixed: values of tunables that are given.
        avoid: names of rules that are not applied.
        prefix: the steps that the strategy starts with; their numbers are given.
        candidates, seconds: the limits.
        screen: whether NVRTC must compile the answer.
        resorts: whether sketches of last resort are lowered; their code may be long.
    """

    facts: Facts
    rules: tuple[Rule, ...]
    fixed: Values = attrs.field(factory=dict)
    avoid: Collection[str] = ()
    prefix: tuple[Decomposition, ...] = ()
    candidates: int = CANDIDATES
    seconds: float = 60.0
    progress: Progress = _silent
    screen: bool = False
    resorts: bool = True
    refusals: dict[str, str] = attrs.field(factory=dict, init=False)
    _examined: dict[object, Candidate] = attrs.field(factory=dict, init=False)
    _preferred: list[Candidate] = attrs.field(factory=list, init=False)
    _start: float = attrs.field(factory=time.perf_counter, init=False)

    def __attrs_post_init__(self) -> None:
        names = [rule.name for rule in self.rules]
        for name in self.avoid:
            if name not in names:
                raise ArgumentError(f"avoid: there is no rule {name}", legal=sorted(names))

    # ------------------------------------------------------------------------------------------ candidates

    def run(self) -> Derivation:
        """Return the derivation. Raises: `NoStrategyError` if no candidate is legal, with the reason of each rule."""
        firsts: list[Candidate] = []
        for sketch in self._sketches():
            needless = sketch.last_resort and any(not one.sketch.last_resort for one in firsts)
            best = None if needless else self._first_of(sketch)
            firsts += [] if best is None else [best]
        order = [candidate.skeleton for candidate in firsts]
        firsts.sort(key=lambda one: (one.sketch.last_resort, _time(one)))
        descended, started = [], firsts[:DESCENDED]
        for place, candidate in enumerate(started):
            share = (self.candidates - len(self._examined)) // (len(started) - place)
            descended.append(self._descend(candidate, len(self._examined) + share))
        self._preferred = sorted(descended, key=lambda candidate: order.index(candidate.skeleton))
        return self._answer()

    def _sketches(self) -> Iterator[Sketch]:
        """Yield the sketch of each skeleton that applies, with the usual tricks."""
        for rule in self.rules:
            if not isinstance(rule, Skeleton):
                continue
            reason = "avoided" if rule.name in self.avoid else rule.refusal(self.facts)
            if reason:
                self.refusals[rule.name] = reason
            elif (sketch := self._completed(rule.sketch(self.facts).fixed(self.fixed))) is not None:
                if sketch.last_resort and not self.resorts:
                    self.refusals[rule.name] = f"{LAST_RESORT}: {sketch.because}"
                else:
                    yield sketch

    def _completed(self, sketch: Sketch) -> Sketch | None:
        """Return a sketch with the usual tricks; None, with a reason, if it lacks a fixed value."""
        for trick in self._tricks():
            reason = "avoided" if trick.name in self.avoid else trick.refusal(self.facts, sketch)
            if reason:
                self.refusals.setdefault(trick.name, reason)
            elif trick.usual:
                self.refusals.pop(trick.name, None)
                sketch = trick.amend(self.facts, sketch).fixed(self.fixed)
        missing = [name for name in self.fixed if name not in sketch.tunables]
        if missing:
            self.refusals[sketch.skeleton] = f"it has no value {', '.join(missing)}; it has {', '.join(sketch.tunables)}"
            return None
        return sketch

    def _tricks(self) -> Iterator[Trick]:
        return (rule for rule in self.rules if isinstance(rule, Trick))

    def _candidate(self, sketch: Sketch, values: Values) -> Candidate:
        """Return a candidate with its predicted time, or the error of its bounds or of lowering."""
        exceeded = sketch.exceeds(values)
        if exceeded:
            return Candidate(sketch, values, None, exceeded)
        if self.prefix and not sketch.prefix:
            given = numbers_of(sketch.open.steps, self.prefix, self.facts.spec)
            if isinstance(given, str):
                return Candidate(sketch, values, None, given)
            return self._candidate(attrs.evolve(sketch.fixed(given), prefix=self.prefix), {**values, **given})
        strategy = sketch.strategy(values)
        if strategy.steps not in self._examined:
            self._examined[strategy.steps] = self._lowered(sketch, values, strategy)
            self.progress(len(self._examined), str(self._examined[strategy.steps]))
        return self._examined[strategy.steps]

    def _lowered(self, sketch: Sketch, values: Values, strategy: Strategy) -> Candidate:
        try:
            program = strategy(self.facts.spec).program(self.facts.target)
            us = predict(program, self.facts.gpu, self.facts.assumed).us
        except FireironError as error:
            return Candidate(sketch, values, None, error.headline)
        return Candidate(sketch, values, us)

    def _is_over(self, limit: int) -> bool:
        return len(self._examined) >= limit or time.perf_counter() - self._start > self.seconds

    def _first_of(self, sketch: Sketch) -> Candidate | None:
        """Return the first legal candidate of a sketch; without one of its tricks, or any, if it is illegal with all of them."""
        best = self._first(sketch)
        for trick in reversed(tuple(self._tricks())) if best is None else ():
            if best is None and trick.name in dict(sketch.tricks):
                best = self._first(self._without(Candidate(sketch, {}), trick))
        return best

    def _first(self, sketch: Sketch) -> Candidate | None:
        """Return the first legal candidate of a sketch. Values are tried in the order of their distance from the preferred ones."""
        refused = ""
        lowered = len(self._examined)
        for values in _near(sketch.decisions, FIRST * FIRST):
            candidate = self._candidate(sketch, values)
            if candidate.us is not None:
                self.refusals.pop(sketch.skeleton, None)
                return candidate
            refused = refused or candidate.refused
            if len(self._examined) - lowered >= FIRST or time.perf_counter() - self._start > self.seconds:
                break
        self.refusals[sketch.skeleton] = refused
        return None

    def _descend(self, best: Candidate, limit: int) -> Candidate:
        """Vary the decisions and the tricks of a candidate, one after another, and return what the prediction prefers.

        The descent ends when `limit` candidates are examined, so that the next one has a part of the candidates, too.
        """
        for _ in range(2):
            start = best
            for decision in best.sketch.decisions:
                best = self._best([best, *self._varied(best, decision, limit)])
            for trick in self._tricks():
                best = self._best([best, *self._toggled(best, trick, limit)])
            if best is start or self._is_over(limit):
                break
        return best

    def _varied(self, best: Candidate, decision: Decision, limit: int) -> Iterator[Candidate]:
        for option in decision.options:
            if not self._is_over(limit):
                yield self._candidate(best.sketch, {**best.values, **option})

    def _toggled(self, best: Candidate, trick: Trick, limit: int) -> Iterator[Candidate]:
        """Yield the candidate with a trick that it lacks; of a trick that it has, the search has seen the candidate without it."""
        if trick.name in self.avoid or self._is_over(limit):
            return
        if trick.name in best.tricks:
            if trick.trusted:
                return
            sketch = self._without(best, trick)
        elif trick.refusal(self.facts, best.sketch):
            return
        else:
            sketch = trick.amend(self.facts, best.sketch).fixed(self.fixed)
        if all(name in sketch.tunables for name in self.fixed):
            yield self._candidate(
                sketch, {**sketch.first(), **{name: best.values[name] for name in sketch.tunables if name in best.values}}
            )

    def _without(self, candidate: Candidate, left_out: Trick) -> Sketch:
        """Return the sketch of a candidate without one of its tricks."""
        skeleton = next(rule for rule in self.rules if isinstance(rule, Skeleton) and rule.name == candidate.skeleton)
        sketch = skeleton.sketch(self.facts).fixed(self.fixed)
        for trick in self._tricks():
            if trick.name in candidate.tricks and trick is not left_out and not trick.refusal(self.facts, sketch):
                sketch = trick.amend(self.facts, sketch).fixed(self.fixed)
        return sketch

    @staticmethod
    def _best(candidates: Iterable[Candidate]) -> Candidate:
        """Return the first candidate, or a later one that gains more than the model's error for its sketch."""
        best, *others = [one for one in candidates if one.us is not None]
        for other in others:
            if _time(other) < _time(best) * (1 - best.sketch.gain):
                best = other
        return best

    # ------------------------------------------------------------------------------------------ the answer

    def _answer(self) -> Derivation:
        """Return the best candidate that passes all checks."""
        ranking = self._ranking()
        for candidate in ranking[:CHECKED]:
            strategy = candidate.strategy(self.facts.spec)
            try:
                program = strategy.program(self.facts.target)
                _ = program.ir
                if self.screen:
                    compile_cuda(program.cuda, self.facts.target.name)
            except FireironError as error:
                self.refusals[str(attrs.evolve(candidate, us=None, refused=""))] = error.headline
                continue
            kept = tuple(one for one in ranking if one is candidate or ranking.index(one) > ranking.index(candidate))
            spent = time.perf_counter() - self._start
            us = _time(candidate)
            tunable = candidate.sketch.with_tunables(candidate.values)
            reasons = tuple(self._reasons(candidate))
            return Derivation(
                self.facts.spec,
                self.facts.target,
                strategy,
                tunable,
                reasons,
                kept,
                self.refusals,
                us,
                len(self._examined),
                spent,
                program,
                self._faster_forms,
            )
        raise self._no_strategy()

    def _no_strategy(self) -> NoStrategyError:
        """Return the error: why skeletons find no strategy, each reason once; `refusals` also has those of tricks."""
        names: dict[str, list[str]] = {}
        for name in (rule.name for rule in self.rules if isinstance(rule, Skeleton) and rule.name in self.refusals):
            names.setdefault(self.refusals[name].removesuffix("; the nearest:"), []).append(name)
        lines = (f"  {first}{f' and {len(others)} more' if others else ''}: {reason}" for reason, (first, *others) in names.items())
        return NoStrategyError(
            "\n".join([f"schedule: no rule finds a legal strategy for {self.facts.spec} on {self.facts.target}", *lines]),
            hint="fireiron derive --explain prints the reason of each rule (error.refusals); fireiron new writes a strategy to start from",
            refusals=self.refusals,
        )

    def _faster_forms(self, us: float) -> tuple[OtherForm, ...]:
        """Return the forms of the definition whose derived strategies are predicted to take at least 3 % less than `us` microseconds."""
        forms = []
        for form, spec in forms_of(self.facts.spec):
            try:
                answer = Search(Facts(spec, self.facts.target), self.rules, candidates=OF_FORM).run()
            except ArgumentError:  # no rule finds a strategy for this form, so it is no suggestion
                continue
            if answer.us < us * (1 - GAIN) and isinstance(spec.starter, Fused):
                forms.append(OtherForm(form.name, form.because, spec.starter, answer.us, us / answer.us))
        return tuple(sorted(forms, key=lambda form: form.us))

    def _ranking(self) -> list[Candidate]:
        """Return the legal candidates: the result of the descents first, then by predicted time, then in the order of the search.

        Times that differ by less than the model's error (`Sketch.gain`) count as equal, so that the preferred one of two is first.
        """
        every = [one for one in self._examined.values() if one.us is not None]
        legal = [one for one in every if not one.sketch.last_resort] or every
        ordered = sorted(legal, key=_time)
        if not ordered:
            return []
        preferred = [one for one in self._preferred if one in legal] or ordered
        first = self._best([self._best(preferred), ordered[0]])
        return [first, *(one for one in ordered if one is not first)]

    def _reasons(self, chosen: Candidate) -> Iterator[Reason]:
        """Yield the reason for the skeleton, for each decision, and for each trick."""
        yield Reason(
            "skeleton", chosen.skeleton, chosen.sketch.because, self._compared(chosen, lambda one: one.skeleton != chosen.skeleton)
        )
        for decision in chosen.sketch.decisions:
            own = {name: chosen.values[name] for name in decision.tunables}
            because = "given" if set(own) <= set(self.fixed) else decision.because.format(**chosen.values)
            yield Reason(decision.name, _values_text(own), because, self._next_value(chosen, decision))
        for name, because in chosen.sketch.tricks:
            others = self._compared(chosen, functools.partial(_lacks, chosen.skeleton, name))
            yield Reason(name, "used", because, others.replace(chosen.skeleton, "without", 1) if others else "")

    def _next_value(self, chosen: Candidate, decision: Decision) -> str:
        """Return the best candidate that differs from the chosen one in one decision only."""

        def differs(other: Candidate) -> bool:
            same = all(other.values.get(name) == value for name, value in chosen.values.items() if name not in decision.tunables)
            return other.sketch.skeleton == chosen.skeleton and other.tricks == chosen.tricks and same and other.values != chosen.values

        others = [one for one in self._examined.values() if one.us is not None and differs(one)]
        if not others:
            return ""
        best = min(others, key=_time)
        return f"{_values_text({name: best.values[name] for name in decision.tunables})}: {_gap(best, chosen)}"

    def _compared(self, chosen: Candidate, among: Callable[[Candidate], bool]) -> str:
        others = [one for one in self._examined.values() if one.us is not None and among(one)]
        return f"{(best := min(others, key=_time)).skeleton}: {_gap(best, chosen)}" if others else ""


def _lacks(skeleton: str, trick: str, candidate: Candidate) -> bool:
    """Whether a candidate has a skeleton, but not a trick."""
    return candidate.skeleton == skeleton and trick not in candidate.tricks


def _time(candidate: Candidate) -> float:
    return float("inf") if candidate.us is None else candidate.us


def _gap(other: Candidate, chosen: Candidate) -> str:
    """Return by how much a candidate is slower, in percent of the predicted time, and whether this counts as equal."""
    slower = _time(other) / _time(chosen) - 1
    if abs(slower) < SAME:
        return "same time"
    return f"{slower * 100:+.1f} %" + (", counts as equal" if -chosen.sketch.gain < slower < 0 else "")


def _values_text(values: Values) -> str:
    return " ".join(f"{name}={value}" for name, value in values.items())


def _near(decisions: tuple[Decision, ...], most: int) -> Iterator[dict[str, int]]:
    """Yield combinations of options: the preferred ones, then by the sum of their positions; at most `most`."""
    counts = [len(decision.options) for decision in decisions]
    total = 0
    for distance in range(sum(count - 1 for count in counts) + 1):
        for places in _places(counts, distance):
            yield {
                name: value for decision, place in zip(decisions, places, strict=True) for name, value in decision.options[place].items()
            }
            total += 1
            if total >= most:
                return


def _places(counts: list[int], distance: int) -> Iterator[tuple[int, ...]]:
    """Yield the positions below `counts` with a sum, in lexical order of the last ones."""
    if not counts:
        if distance == 0:
            yield ()
        return
    for place in range(min(counts[0] - 1, distance), -1, -1):
        yield from ((place, *rest) for rest in _places(counts[1:], distance - place))
