"""`fireiron diff`: compare two strategies."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from fireiron.cli.arguments import Add, entry_named, strategy_of
from fireiron.cli.output import FAILED, glyphs, print_json, width_of_output, working
from fireiron.errors import ArgumentError

if TYPE_CHECKING:
    from fireiron.compiler import Program


def register(add: Add) -> None:
    """Add the command."""
    command = add("diff", run, "compare two strategies side by side")
    command.add_argument("left", metavar="A", help="a strategy")
    command.add_argument("right", metavar="B", help="another strategy")


def run(arguments: argparse.Namespace) -> int:
    from fireiron.inspect.diff import as_dict, diff

    names = (arguments.left, arguments.right)
    tunables = {tunable for name in names for tunable in entry_named(arguments, name).strategy.tunables()}
    for tunable, _ in arguments.set:
        if tunable not in tunables:
            raise ArgumentError(f"{tunable}: neither strategy has such a tunable", legal=sorted(tunables) or "none")
    with working(f"building {' and '.join(names)}"):
        left, right = (_program(arguments, name) for name in names)
        value = as_dict(left, right, names) if arguments.json else None
        _ = left.tree, right.tree
    if value is not None:
        print_json(value)
        return _status(left, right)
    for part in diff(left, right, names, glyphs(), width_of_output()):  # print the trees before later stages, which may be slow or fail
        print(part, flush=True)
    return _status(left, right)


def _status(left: Program, right: Program) -> int:
    """Return the exit status: 1 if one of the kernels is illegal. An incomplete tree is not, as in `fireiron show`."""
    from fireiron.inspect.diff import compared

    return FAILED if any(name == "error" for name, _, _ in compared(left, right)) else 0


def _program(arguments: argparse.Namespace, name: str) -> Program:
    """Return the program of one strategy. The target of its file does not apply to the other strategy."""
    own = argparse.Namespace(**vars(arguments))
    return strategy_of(own, name, known_only=True).program(own.arch)
