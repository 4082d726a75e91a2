"""The passes over event IR, in their order, each of which can be shown: `fireiron show FILE --events [PASS]`.

A pass is a function of a program and the mapping that it is under; a new one is a line of `PASSES`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

import attrs

from fireiron.errors import ArgumentError, closest
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


@attrs.frozen
class EventPass:
    """A pass by its name; with a `report` it says of its program more than the text does."""

    name: str
    run: Rewrite = attrs.field(repr=False)
    report: Report | None = attrs.field(default=None, repr=False)


FIRST: Final = "dependences"
"""The pass that makes event IR of a program."""

PASSES: Final[tuple[EventPass, ...]] = (
    EventPass("vectorize", lambda program, mapping: vectorized(program)),
    EventPass("eliminate", lambda program, mapping: eliminated(program)),
    EventPass("allocate", allocated, lambda program, mapping: report(program)),
    EventPass("roles", lambda program, mapping: program, roles.report),
)
"""What follows, in this order."""

PASS_NAMES: Final = (FIRST, *(one.name for one in PASSES))


def report_of(program: EventProgram, mapping: Mapping, name: str) -> str:
    """What a pass says of the program that it left; nothing if it says no more than the text."""
    found = next((one for one in PASSES if one.name == name), None)
    return found.report(program, mapping) if found is not None and found.report is not None else ""


def events_of(program: Tasks, mapping: Mapping, spec: Spec, until: str = PASS_NAMES[-1]) -> EventProgram:
    """The event IR of a program that performs a spec, after all passes up to one.

    Raises: ArgumentError for the name of no pass.
    """
    if until not in PASS_NAMES:
        meant = closest(until, PASS_NAMES)
        raise ArgumentError(f"no pass over events is called {until!r}", legal=PASS_NAMES, hint=f"{meant}?" if meant else None)
    found = analyzed_for(program, mapping, spec)
    for one in PASSES[: PASS_NAMES.index(until)]:
        found = one.run(found, mapping)
    return found
