"""Choose a record for a spec: an exact record if there is one, and otherwise the best neighbor.

`Records.find` documents the rules. Nothing is measured: lowering decides whether a record is legal, and the cost model predicts its time.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import attrs

from fireiron.display import Displayed
from fireiron.errors import ArgumentError, FireironError, StoreError
from fireiron.frozen import frozen
from fireiron.ir.rewrite import by_identity
from fireiron.language.strategy import Strategy
from fireiron.spec import Spec
from fireiron.tune.record import Record, describe
from fireiron.tune.records.format import problem_text, record_text, spec_text, tune_command
from fireiron.tune.records.outdated import current_strategy
from fireiron.tune.records.rules import FARTHEST, capability_of, distance_to, preference
from fireiron.values.machine import Architecture

if TYPE_CHECKING:
    from fireiron.compiler import Program


MOST_TRIES: Final = 16
"""Maximum number of neighbors to lower in the search."""


MOST_COMPARED: Final = 5
"""The number of legal neighbors with different values that the cost model compares."""


AS_NEAR: Final = 2.0
"""Neighbors are compared with the nearest legal one if their distance is at most this much larger."""


Accept = Callable[["Program"], bool]


def any_program(program: Program) -> bool:
    """Accept any legal program."""
    return True


Prove = Callable[["Program"], None]
"""Computes the final, checked IR of a program; raises the errors of `Program.ir`."""

Bind = Callable[[Strategy], Strategy]
"""Binds a strategy to a spec."""


def prove_only(program: Program) -> None:
    """Check a program, without a concurrent compilation."""
    _ = program.ir


@frozen
class Choice(Displayed):
    """The choice for a spec: a record, `exact` if it was measured for this spec; `why` is the reason as a sentence.

    `program` is the strategy with its values, lowered for the spec. `record` is None if the library's default is used instead,
    which only `fireiron.matmul` does.
    """

    record: Record | None
    exact: bool
    why: str
    program: Program = attrs.field(eq=False, repr=False)

    @property
    def strategy(self) -> Strategy:
        """The strategy, bound to the spec, with values for all tunables."""
        return self.program.strategy


@frozen
class Question:
    """A spec on an architecture, a preferred GPU, a user's strategies, and further conditions on programs.

    `lowered` is the spec for which strategies are lowered, if the arrays of the same problem are stored differently. `prove` checks the
    program that is chosen. `bind` binds a strategy to a spec with further work, which is then lowered instead.
    """

    spec: Spec
    target: Architecture
    gpu: str | None = None
    strategies: Mapping[str, Strategy] = attrs.field(factory=dict)
    accept: Accept = any_program
    lowered: Spec | None = None
    prove: Prove = prove_only
    bind: Bind | None = None

    def bound(self, strategy: Strategy) -> Strategy:
        """Return a strategy bound to the spec to lower."""
        return strategy(self.lowered or self.spec) if self.bind is None else self.bind(strategy)

    @property
    def described(self) -> dict[str, Any]:
        """The spec as `describe` returns it."""
        return _described(self.spec)

    def program(self, record: Record) -> Program | None:
        """Return the record's strategy for the spec; None if it has changed, is unknown, illegal or not accepted.

        It is lowered only as far as comparisons require. `safe` checks later whether the chosen program can be synchronized.
        Tunables without a value in the record have their first values, if these are legal.
        """
        return self._program(record, first=True) or self._program(record, first=False)

    def _program(self, record: Record, first: bool) -> Program | None:
        """Return the program of a record. Tunables without a value in the record have their `first` values, or otherwise legal values."""
        strategy = current_strategy(record, self.strategies)
        if strategy is None:
            return None
        try:
            bound = strategy.with_(**record.values)
            left = {name: tunable.values[0] for name, tunable in bound.tunables().items()}
            if left and first:
                bound = bound.with_(**left)
            elif not left and not first:
                return None
            program = self.bound(bound).program(self.target)
            _ = program.sequential
        except FireironError:
            return None
        return program if self.accept(program) else None

    def safe(self, record: Record, program: Program | None) -> Program | None:
        """Return a program of the record that passes synchronization and the independent checks: `program`, if it does."""
        if program is not None and not self._is_safe(program):
            program = self._program(record, first=False)
            return program if program is not None and self._is_safe(program) else None
        return program

    def _is_safe(self, program: Program) -> bool:
        """Return whether a program passes synchronization and the independent checks."""
        try:
            self.prove(program)
        except FireironError:
            return False
        return True


@by_identity  # one call searches exact records and neighbors; equality of definitions with several steps is slow
def _described(spec: Spec) -> dict[str, Any]:
    """Return the result of `describe`, cached."""
    return describe(spec)


def for_spec(records: Iterable[Record], spec: Spec, target: Architecture) -> list[Record]:
    """Return the records for exactly a spec and the compute capability of an architecture, the fastest first."""
    requested = _described(spec)
    matches = [record for record in records if record.spec == requested and capability_of(record.architecture) == target.capability]
    return sorted(matches, key=preference)


def exact(records: Iterable[Record], question: Question) -> Choice | None:
    """Return the best record that was measured for exactly this question."""
    for record in sorted(for_spec(records, question.spec, question.target), key=functools.partial(preference, gpu=question.gpu)):
        program = question.safe(record, question.program(record))
        if program is not None:
            return Choice(record, True, f"tuned for exactly this spec: {record_text(record)}", program)
    return None


def nearest(records: Iterable[Record], question: Question) -> Choice | None:
    """Return the record with the fastest prediction among the nearest records."""
    near = _neighbors(records, question)
    ranked = sorted(near, key=lambda neighbor: _predicted(neighbor[2], neighbor[1].gpu)) if len(near) > 1 else near
    for distance, record, compared in ranked:
        program = question.safe(record, compared)
        if program is not None:
            sizes = "x".join(map(str, record.shape))
            among = f", predicted to be the fastest of {len(near)} neighbors" if len(near) > 1 else ""
            return Choice(
                record, False, f"tuned for {sizes} (distance {distance:.2f}){among}, and legal here: {record_text(record)}", program
            )
    return None


def _neighbors(records: Iterable[Record], question: Question) -> list[tuple[float, Record, Program]]:
    """Return the legal records that are about as near as the nearest one, with different values.

    Of the strategies of one file that were measured for the same problem, only the fastest legal one is returned: no prediction is
    needed to compare these.
    """
    neighbors: list[tuple[float, Record, Program]] = []
    seen: set[str] = set()
    slower = 0
    for distance, record in _ranked(records, question):
        if len(neighbors) + slower >= MOST_COMPARED or (neighbors and distance > neighbors[0][0] + AS_NEAR):
            break
        same = json.dumps([record.strategy, record.values], sort_keys=True)
        measured = json.dumps([record.strategy.rpartition(":")[0] or record.strategy, record.spec, record.architecture], sort_keys=True)
        slower += measured in seen and same not in seen
        program = None if seen & {same, measured} else question.program(record)
        seen.add(same)
        if program is not None:
            seen.add(measured)
            neighbors.append((distance, record, program))
    return neighbors


def _ranked(records: Iterable[Record], question: Question) -> list[tuple[float, Record]]:
    """Return the neighbors, the nearest first: the best record of each strategy for each problem."""
    requested = question.described
    ranked = sorted(
        (
            (distance, preference(record, gpu=question.gpu), record)
            for record in records
            if (distance := distance_to(record, requested, question.target)) is not None and distance <= FARTHEST
        ),
        key=lambda ranking: ranking[:2],
    )
    best: dict[tuple[Any, ...], tuple[float, Record]] = {}
    for distance, _, record in ranked:
        best.setdefault((record.strategy, json.dumps(record.spec, sort_keys=True), record.architecture), (distance, record))
    return list(best.values())[:MOST_TRIES]


def nothing_answers(records: Sequence[Record], spec: Spec, target: Architecture) -> StoreError:
    """Return the error that lists the existing records, and the command that tunes."""
    requested = describe(spec)
    problems = sorted({problem_text(record) for record in records if record.spec["kind"] == requested["kind"]})
    shown = "; ".join(problems[:6]) + (f"; and {len(problems) - 6} more" if len(problems) > 6 else "")
    return StoreError(
        f"there is no record for {spec_text(requested)} on {target.name}",
        legal=shown or f"none of {len(records)} records is for a {requested['kind']}",
        hint=f"tune it on that GPU: {tune_command(spec, target.name)}",
    )


def _predicted(program: Program, gpu: str) -> float:
    """Return the predicted microseconds on the GPU of a record, or on the architecture's default GPU if that one is unknown.

    Barriers are estimated: their placement takes most of the time of lowering, and only the chosen program needs it.
    """
    from fireiron.cost import predict
    from fireiron.cost.expected import with_expected_barriers

    kernels = [with_expected_barriers(launch.program.sequential) for launch in program.launches]
    try:
        return sum(predict(kernel, gpu).us for kernel in kernels)
    except ArgumentError:  # a GPU without figures, or one that does not run this architecture
        return sum(predict(kernel).us for kernel in kernels)
