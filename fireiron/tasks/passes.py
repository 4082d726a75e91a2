"""The passes over event IR, in order. `fireiron show FILE --events [PASS]` prints the result of a pass.

A pass is a function of an event program and its mapping. To add one, add a line to `PASSES`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

import attrs

from fireiron.errors import ArgumentError, closest
from fireiron.frozen import frozen
from fireiron.spec import Spec
from fireiron.tasks import roles
from fireiron.tasks.allocate import allocated, report
from fireiron.tasks.dependences import analyzed_for
from fireiron.tasks.eliminate import eliminated
from fireiron.tasks.events import EventProgram
from fireiron.tasks.mapping import Mapping
from fireiron.tasks.program import Tasks
from fireiron.tasks.vectorize import vectorized

Rewrite: TypeAlias = "Callable[[EventProgram, Mapping], EventProgram]"
Report: TypeAlias = "Callable[[EventProgram, Mapping], str]"


@frozen
class EventPass:
    """A pass: its name, its function, and optionally a `report` of results that the text of the program does not contain."""

    name: str
    run: Rewrite = attrs.field(repr=False)
    report: Report | None = attrs.field(default=None, repr=False)


FIRST: Final = "dependences"
"""The pass that translates a program to event IR."""

PASSES: Final[tuple[EventPass, ...]] = (
    EventPass("vectorize", lambda program, mapping: vectorized(program)),
    EventPass("eliminate", lambda program, mapping: eliminated(program)),
    EventPass("allocate", allocated, lambda program, mapping: report(program)),
    EventPass("roles", lambda program, mapping: program, roles.report),
)
"""The subsequent passes, in order."""

PASS_NAMES: Final = (FIRST, *(event_pass.name for event_pass in PASSES))


def report_of(program: EventProgram, mapping: Mapping, name: str) -> str:
    """The report of a pass on the program that it returned; empty if it has none."""
    event_pass = next((candidate for candidate in PASSES if candidate.name == name), None)
    return event_pass.report(program, mapping) if event_pass is not None and event_pass.report is not None else ""


def events_of(program: Tasks, mapping: Mapping, spec: Spec, until: str = PASS_NAMES[-1]) -> EventProgram:
    """The event IR of a program that performs a spec, after all passes up to one.

    Raises: ArgumentError for an unknown name.
    """
    if until not in PASS_NAMES:
        nearest = closest(until, PASS_NAMES)
        raise ArgumentError(f"there is no event pass {until!r}", legal=PASS_NAMES, hint=f"{nearest}?" if nearest else None)
    program_events = analyzed_for(program, mapping, spec)
    for event_pass in PASSES[: PASS_NAMES.index(until)]:
        program_events = event_pass.run(program_events, mapping)
    return program_events
