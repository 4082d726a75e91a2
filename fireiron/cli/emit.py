"""`fireiron emit`: CUDA C++."""

from __future__ import annotations

import argparse

from fireiron.cli.arguments import Add, add_strategy, program_of


def register(add: Add) -> None:
    """Add the command."""
    command = add("emit", run, "the kernel in CUDA C++")
    add_strategy(command)
    command.add_argument("-o", dest="output", metavar="FILE", help="write to a file instead")
    command.add_argument("--force", action="store_true", help="overwrite the file")


def run(arguments: argparse.Namespace) -> int:
    text = program_of(arguments).cuda
    if arguments.output is None or arguments.output == "-":
        print(text, end="" if text.endswith("\n") else "\n")
        return 0
    from fireiron.store import write_text

    write_text(arguments.output, text, overwrite=arguments.force)
    return 0
