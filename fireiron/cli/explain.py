"""`fireiron explain`: explain why each leaf matches an instruction, or which steps would make it match."""

from __future__ import annotations

import argparse

from fireiron.cli import graphs
from fireiron.cli.arguments import Add, add_strategy, program_of, strategy_of
from fireiron.cli.output import FAILED, print_json, working


def register(add: Add) -> None:
    """Add the command."""
    command = add(
        "explain",
        run,
        "why each leaf matched an instruction, or which steps would make it match; exit status 1 if the kernel is illegal",
    )
    add_strategy(command)
    command.add_argument("--all", action="store_true", help="all instructions that a leaf does not use, with the reasons")
    command.add_argument("--sync", action="store_true", help="which barrier, wait, fence or mbarrier orders each dependence")


def run(arguments: argparse.Namespace) -> int:
    graph = graphs.graph_of(arguments)
    if graph is not None:
        return graphs.explain(graph, arguments)
    if arguments.sync:
        return _synchronization(arguments)

    with working(f"explaining {arguments.strategy}"):
        from fireiron.inspect.explain import explain, text, trip_counts

        explanation = explain(strategy_of(arguments), arguments.arch)
    if arguments.json:
        program = explanation.program
        head = {"spec": str(program.spec), "architecture": program.architecture.name, "chosen": dict(program.chosen)}
        refused = None if explanation.refused is None else str(explanation.refused)
        print_json(
            head
            | {
                "leaves": [leaf.as_dict() for leaf in explanation.leaves],
                "refused": refused,
                "trip_counts": [str(entry) for entry in trip_counts(explanation)],
            }
        )
    else:
        print(text(explanation, arguments.all))
    return 0 if explanation.refused is None else FAILED


def _synchronization(arguments: argparse.Namespace) -> int:
    with working(f"explaining {arguments.strategy}"):
        from fireiron.inspect.synchronization import synchronization, text

        program = program_of(arguments)
        report = synchronization(program.ir)
    if arguments.json:
        head = {"spec": str(program.spec), "architecture": program.architecture.name, "chosen": dict(program.chosen)}
        print_json(head | report.as_dict())
    else:
        values = "".join(f", {name}={value}" for name, value in program.chosen.items())
        print(f"{program.spec} on {program.architecture}{values}\n\n{text(report)}")
    return 0
