"""`fireiron emit`: print the kernel as CUDA C++, PTX or SASS."""

from __future__ import annotations

import argparse
from typing import Final

from fireiron.cli import graphs
from fireiron.cli.arguments import Add, add_strategy, program_of
from fireiron.cli.output import print_json, working

FORMS: Final = ("cuda", "ptx", "sass")


def register(add: Add) -> None:
    """Add the command."""
    command = add("emit", run, "print the kernel as CUDA C++, PTX or SASS")
    add_strategy(command)
    command.set_defaults(verbatim=True)
    command.add_argument("--form", choices=FORMS, default="cuda", help="cuda (default), ptx, or sass (disassembled machine code)")
    command.add_argument("-o", dest="output", metavar="FILE", help="write to a file instead")
    command.add_argument("--force", action="store_true", help="overwrite the file")


def run(arguments: argparse.Namespace) -> int:
    with working(f"emitting {arguments.strategy}"):
        text = _text(arguments)
    if arguments.output is None or arguments.output == "-":
        if arguments.json:
            return print_json({"form": arguments.form, "text": text})
        print(text, end="" if text.endswith("\n") else "\n")
        return 0
    from fireiron.language.store import write_text

    write_text(arguments.output, text, overwrite=arguments.force)
    return print_json({"form": arguments.form, "file": arguments.output}) if arguments.json else 0


def _text(arguments: argparse.Namespace) -> str:
    graph = graphs.graph_of(arguments)
    if graph is not None:
        return graphs.emit(graph, arguments)
    program = program_of(arguments)
    if arguments.form == "cuda":
        return program.cuda
    from fireiron.gpu.kernel import CompiledKernel

    text: str = CompiledKernel(program).asm[arguments.form]
    return text
