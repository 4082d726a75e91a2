"""`fireiron export`: write a kernel as files for C and C++."""

from __future__ import annotations

import argparse
import re

from fireiron.cli import graphs
from fireiron.cli.arguments import Add, add_strategy, program_of
from fireiron.cli.output import print_json, working


def register(add: Add) -> None:
    """Add the command."""
    command = add("export", run, "write a header, CUDA source with a launcher, and machine code, for C and C++ without this package")
    add_strategy(command)
    command.set_defaults(verbatim=True)
    command.add_argument("-o", dest="folder", metavar="FOLDER", required=True, help="the folder of the files; created if missing")
    command.add_argument("--name", help="the name of files and functions (default: that of the strategy)")
    command.add_argument("--no-cubin", dest="cubin", action="store_false", help="write no machine code, so that no compiler is needed")
    command.add_argument("--force", action="store_true", help="overwrite the files")


def run(arguments: argparse.Namespace) -> int:
    from fireiron.export import export

    name = _name(arguments.strategy) if arguments.name is None else arguments.name
    with working(f"exporting {arguments.strategy}"):
        graph = graphs.graph_of(arguments)
        program = program_of(arguments) if graph is None else graph.program(arguments.arch)
        exported = export(program, arguments.folder, name, cubin=arguments.cubin, overwrite=arguments.force)
    if arguments.json:
        return print_json({"name": exported.name, "files": [str(path) for path in exported.files], "build": dict(exported.build)})
    for path in exported.files:
        print(path)
    print(f"build in {arguments.folder}:")
    for what, line in exported.build.items():
        print(f"  {what:<16} {line}")
    return 0


def _name(strategy: str) -> str:
    """Return NAME of `NAME`, `path/NAME.py` or `path.py:NAME`."""
    return re.sub(r"\.py$", "", re.split(r"[/\\:]", strategy)[-1])
