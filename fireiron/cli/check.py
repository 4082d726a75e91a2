"""`fireiron check`: check a kernel, and print the findings."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from fireiron.cli import graphs
from fireiron.cli.arguments import Add, add_strategy, strategy_of
from fireiron.cli.findings import finding_of_error, findings_of, print_findings, print_proofs, print_usage, proofs_of
from fireiron.cli.output import FAILED, is_of_kernel, print_json, working
from fireiron.errors import FireironError

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
    )


def run(arguments: argparse.Namespace) -> int:
    graph = graphs.graph_of(arguments)
    if graph is not None:
        return graphs.check(graph, arguments)
    with working(f"checking {arguments.strategy}"):
        program, findings = _checked(arguments)
    counts = {severity: sum(finding.severity == severity for finding in findings) for severity in ("error", "warning", "note")}
    proofs = proofs_of(program, findings)
    if arguments.json:
        proved = {name or arguments.strategy: proof.as_dict() for name, proof in proofs.items()}
        print_json(
            {"strategy": arguments.strategy, "counts": counts, "proved": proved, "findings": [finding.as_dict() for finding in findings]}
        )
    else:
        print_findings(findings, arguments.wide)
        print_usage(program)
        print_proofs(proofs)
        print(", ".join(f"{number} {severity}{'' if number == 1 else 's'}" for severity, number in counts.items()))
    return FAILED if counts["error"] else 0


def _checked(arguments: argparse.Namespace) -> tuple[Program | FireironError, list[Any]]:
    """Return the program, or its error, and all findings."""
    program = _program_or_error(arguments)
    if isinstance(program, FireironError):
        return program, [finding_of_error(program)]
    return program, findings_of(program)


def _program_or_error(arguments: argparse.Namespace) -> Program | FireironError:
    """Return the program, or the error of its tree or tunables if the command reports this error as a finding."""
    strategy = strategy_of(arguments)
    try:
        program = strategy.program(arguments.arch)
        _ = program.tree
    except FireironError as error:
        if not is_of_kernel(error):
            raise
        return error
    return program
