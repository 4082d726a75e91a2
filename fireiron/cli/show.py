"""`fireiron show`: print the decomposition tree."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import TYPE_CHECKING

from fireiron.cli import graphs
from fireiron.cli.arguments import Add, add_strategy, program_of
from fireiron.cli.output import glyphs, print_json, width_of_output, working

if TYPE_CHECKING:
    from fireiron.compiler import Program


def register(add: Add) -> None:
    """Add the command."""
    command = add("show", run, "print the decomposition tree, with the spec after every step, and figures of the kernel")
    add_strategy(command)
    command.add_argument("--graphene", action="store_true", help="print the kernel in Graphene's notation, a .graphene file")
    command.add_argument(
        "--events", nargs="?", const="", metavar="PASS", help="print the event IR of a task program after a pass (default: the last)"
    )
    command.add_argument("--times", action="store_true", help="print the time of each stage of the compilation")


def run(arguments: argparse.Namespace) -> int:
    graph = graphs.graph_of(arguments)
    if graph is not None:
        return graphs.show(graph, arguments)
    if arguments.graphene:
        return _print_graphene(arguments)
    if arguments.events is not None:
        return _print_events(arguments)
    with working(f"building {arguments.strategy}"):
        from fireiron.inspect.show import as_dict, show

        program = program_of(arguments)
        value = as_dict(program) if arguments.json else None
        _ = program.tree
    if value is not None:
        return print_json(value | ({"seconds": _times(program)} if arguments.times else {}))
    for part in show(program, glyphs(), width_of_output()):  # print the tree before later stages, which may be slow or fail
        print(part, flush=True)
    if arguments.times:
        _print_times(_times(program))
    return 0


def _print_graphene(arguments: argparse.Namespace) -> int:
    from fireiron.graphene import graphene_text

    with working(f"writing {arguments.strategy}"):
        text = graphene_text(program_of(arguments))
    print(text, end="")
    return 0


def _print_events(arguments: argparse.Namespace) -> int:
    from fireiron.errors import ArgumentError
    from fireiron.tasks.event_text import text
    from fireiron.tasks.passes import PASS_NAMES, events_of, report_of
    from fireiron.tasks.step import TaskProgram

    strategy = program_of(arguments).strategy
    step = next((step for step in strategy.steps if isinstance(step, TaskProgram)), None)
    if step is None or strategy.spec is None:
        raise ArgumentError(
            f"{arguments.strategy}: only task programs have events, and the strategy has none",
            hint="tasks.strategy(program, mapping)",
        )
    name = arguments.events or PASS_NAMES[-1]
    events = events_of(step.program, step.mapped, strategy.spec, name)
    for line in report_of(events, step.mapped, name).splitlines():
        print(f"# {line}")
    print(text(events), end="")
    return 0


def _times(program: Program) -> dict[str, float]:
    """Return the wall time of each stage in seconds, including that of printing if the tree is complete."""
    if program.tree.complete:
        _ = program.cuda
    return dict(program.seconds)


def _print_times(seconds: Mapping[str, float]) -> None:
    width = max(map(len, seconds))
    print()
    for stage, spent in {**seconds, "total": sum(seconds.values())}.items():
        print(f"{stage:<{width}}  {spent * 1e3:8.1f} ms")
