"""`fireiron check`: findings."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fireiron.cli.arguments import Add, add_strategy, strategy_of
from fireiron.cli.folded import table
from fireiron.cli.output import FAILED, paint, print_json, width_of_output, working
from fireiron.cli.texts import examined
from fireiron.errors import DecompositionError, FireironError, ResourceError, SynchronizationError

if TYPE_CHECKING:
    from fireiron.compiler import Program


def register(add: Add) -> None:
    """Add the command."""
    add_strategy(
        add(
            "check",
            run,
            "races, bounds, alignment, bank conflicts, coalescing, resources, the order of events of tasks; exit status 1 on an error",
        ),
        json=True,
    )


def run(arguments: argparse.Namespace) -> int:
    with working(f"checking {arguments.strategy}"):
        program, findings = _checked(arguments)
    counts = {severity: sum(one.severity == severity for one in findings) for severity in ("error", "warning", "note")}
    if arguments.json:
        print_json({"strategy": arguments.strategy, "counts": counts, "findings": [one.as_dict() for one in findings]})
    else:
        _print_findings(findings)
        _print_usage(program)
        print(", ".join(f"{number} {severity}{'' if number == 1 else 's'}" for severity, number in counts.items()))
    return FAILED if counts["error"] else 0


def _checked(arguments: argparse.Namespace) -> tuple[Program | FireironError, list[Any]]:
    """The program, or why there is none, and all findings."""
    from fireiron.check import check, ordered
    from fireiron.inspect.ineffective import ineffective
    from fireiron.inspect.oracle import check_events
    from fireiron.language.tree import require_complete

    program = _program_or_error(arguments)
    if isinstance(program, FireironError):
        return program, [_finding(program)]
    require_complete(program.tree)
    try:
        findings = [finding for launch in program.launches for finding in check(launch.program.ir)]
        return program, list(ordered((*findings, *check_events(program), *_of_texts(program), *ineffective(program))))
    except (SynchronizationError, ResourceError, DecompositionError) as error:
        return program, [_finding(error)]


def _program_or_error(arguments: argparse.Namespace) -> Program | FireironError:
    """The program; or why its tree or its tunables cannot be, where that is a finding."""
    strategy = strategy_of(arguments)
    try:
        program = strategy.program(arguments.arch)
        _ = program.tree
    except (SynchronizationError, ResourceError, DecompositionError) as error:
        return error
    return program


def _finding(error: FireironError) -> Any:
    from fireiron.check import Finding

    kinds: Mapping[type[FireironError], str] = {SynchronizationError: "race", ResourceError: "resources"}
    details = {name: str(value) for name, value in (("in", error.within), ("legal", error.legal), ("do", error.hint)) if value is not None}
    return Finding(kinds.get(type(error), "decomposition"), "error", None, str(error), error.at, None, details)


def _of_texts(program: Program) -> Iterator[Any]:
    """What is known of the texts of micro-kernels, which no check of the IR looks into."""
    from fireiron.check import Finding

    known = examined(program)
    if known is not None:
        severity = "error" if known.wrong is not None else "note" if known.compiled and known.meant else "warning"
        message = str(known) if known.error is None else f"{known}: {known.error}"
        yield Finding("micro-kernel", severity, None, message)


def _print_findings(findings: Sequence[Any]) -> None:
    if not findings:
        return
    colours = {"error": 31, "warning": 33, "note": 36}
    width = width_of_output()
    rows, heads = [], ["severity", "kind", "access", "message", "line"]
    for one in findings:
        of, message = one.access or one.buffer or "", _without(one.message, one.access)
        rows.append([paint(one.severity, colours[one.severity]), one.kind, of, message, one.at or ""])
    if width is None:
        print(table(rows, heads, most=(None, None, 44, 72, None)))
    else:  # below each message what it is about, and where that comes from
        stacked = [[severity, kind, "\n".join(filter(None, (message, f"{of}  {at}".strip())))] for severity, kind, of, message, at in rows]
        print(table(stacked, [*heads[:2], "message"], width=width))


def _print_usage(program: Program | FireironError) -> None:
    """Registers and shared memory by buffer, as predicted, where the kernel could be built."""
    from fireiron.check.resources import report

    if isinstance(program, FireironError):
        return
    try:
        kernel = program.ir
    except (SynchronizationError, ResourceError, DecompositionError):  # which the findings tell
        return
    print(f"\n{report(kernel)}\n")


def _without(message: str, access: str | None) -> str:
    """A message without the access it starts with, which has a column of its own."""
    return message.removeprefix(f"{access}: ")
