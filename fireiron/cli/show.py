"""`fireiron show`: the tree."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import TYPE_CHECKING

from fireiron.cli.arguments import Add, add_strategy, program_of
from fireiron.cli.output import glyphs, print_json, working

if TYPE_CHECKING:
    from fireiron.compiler import Program


def register(add: Add) -> None:
    """Add the command."""
    command = add("show", run, "the decomposition tree, with the spec after every step, and the kernel in figures")
    add_strategy(command, json=True)
    command.add_argument("--graphene", action="store_true", help="the kernel in the notation of Graphene, as commands read it again")
    command.add_argument("--times", action="store_true", help="how long each stage of the compilation took, printing included")


def run(arguments: argparse.Namespace) -> int:
    from fireiron.inspect.show import as_dict, show

    if arguments.graphene:
        return _print_graphene(arguments)
    with working(f"building {arguments.strategy}"):
        program = program_of(arguments)
        value = as_dict(program) if arguments.json else None
        _ = program.tree
    if value is not None:
        return print_json(value | ({"seconds": _times(program)} if arguments.times else {}))
    for part in show(program, glyphs()):  # the tree, before a later stage takes its time, or fails
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


def _times(program: Program) -> dict[str, float]:
    """The wall time of each stage in seconds; the text is printed too, where the tree is complete."""
    if program.tree.complete:
        _ = program.cuda
    return dict(program.seconds)


def _print_times(seconds: Mapping[str, float]) -> None:
    width = max(map(len, seconds))
    print()
    for stage, spent in {**seconds, "in all": sum(seconds.values())}.items():
        print(f"{stage:<{width}}  {spent * 1e3:8.1f} ms")
