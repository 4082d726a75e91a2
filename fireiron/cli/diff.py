"""`fireiron diff`: two strategies side by side."""

from __future__ import annotations

import argparse

from fireiron.cli.arguments import Add, add_json, strategy_of
from fireiron.cli.output import glyphs, print_json, working
from fireiron.errors import ArgumentError


def register(add: Add) -> None:
    """Add the command."""
    command = add("diff", run, "two strategies side by side")
    command.add_argument("left", metavar="A", help="a strategy")
    command.add_argument("right", metavar="B", help="another one")
    add_json(command)


def run(arguments: argparse.Namespace) -> int:
    from fireiron.inspect.diff import as_dict, diff
    from fireiron.language.library import find

    names = (arguments.left, arguments.right)
    tunables = {tunable for name in names for tunable in find(name).strategy.tunables()}
    for tunable, _ in arguments.set:
        if tunable not in tunables:
            raise ArgumentError(f"{tunable}: neither strategy has such a tunable", legal=sorted(tunables) or "none")
    with working(f"building {' and '.join(names)}"):
        left, right = (strategy_of(arguments, name, known_only=True).program(arguments.arch) for name in names)
        value = as_dict(left, right, names) if arguments.json else None
        _ = left.tree, right.tree
    if value is not None:
        return print_json(value)
    for part in diff(left, right, names, glyphs()):  # the trees, before a later stage takes its time, or fails
        print(part, flush=True)
    return 0
