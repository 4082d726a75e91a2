"""`fireiron explain`: why a leaf matched, or what would make it match."""

from __future__ import annotations

import argparse

from fireiron.cli.arguments import Add, add_strategy, strategy_of
from fireiron.cli.output import FAILED, print_json, working


def register(add: Add) -> None:
    """Add the command."""
    add_strategy(
        add(
            "explain",
            run,
            "why each leaf matched an instruction, or the steps that would close the gap; exit status 1 if no code can be made",
        ),
        json=True,
    )


def run(arguments: argparse.Namespace) -> int:
    from fireiron.inspect.explain import explain, text

    with working(f"explaining {arguments.strategy}"):
        explanation = explain(strategy_of(arguments), arguments.arch)
    if arguments.json:
        program = explanation.program
        head = {"spec": str(program.spec), "architecture": program.architecture.name, "chosen": dict(program.chosen)}
        refused = None if explanation.refused is None else str(explanation.refused)
        print_json(head | {"leaves": [leaf.as_dict() for leaf in explanation.leaves], "refused": refused})
    else:
        print(text(explanation))
    return 0 if explanation.refused is None else FAILED
