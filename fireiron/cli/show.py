"""`fireiron show`: the tree."""

from __future__ import annotations

import argparse

from fireiron.cli.arguments import Add, add_strategy, program_of
from fireiron.cli.output import glyphs, print_json


def register(add: Add) -> None:
    """Add the command."""
    add_strategy(add("show", run, "the decomposition tree, with the spec after every step, and the kernel in figures"), json=True)


def run(arguments: argparse.Namespace) -> int:
    from fireiron.show import as_dict, show

    program = program_of(arguments)
    if arguments.json:
        return print_json(as_dict(program))
    for part in show(program, glyphs()):
        print(part)
    return 0
