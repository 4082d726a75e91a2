"""`fireiron list`: the strategy library as a table."""

from __future__ import annotations

import argparse
from typing import Any

from fireiron.cli.arguments import Add, add_json
from fireiron.cli.output import print_json
from fireiron.errors import FireironError


def register(add: Add) -> None:
    """Add the command."""
    command = add("list", run, "the strategy library as a table", strategy=False)
    command.add_argument("--arch", help="the target (sm_90)")
    add_json(command)


def run(arguments: argparse.Namespace) -> int:
    from fireiron.library import names
    from fireiron.machine import as_architecture

    if arguments.arch is not None:
        as_architecture(arguments.arch)
    entries = [_listed(name, arguments.arch) for name in names()]
    if arguments.json:
        return print_json(entries)
    from tabulate import tabulate

    heads = ["name", "sizes", "threads", "shared bytes", "tunables", "what it is"]
    table = [[" ".join(map(str, row[head])) if isinstance(row[head], list) else row[head] for head in heads] for row in entries]
    print(tabulate(table, headers=heads, disable_numparse=True, colalign=("left", "left", "right", "right", "left", "left")))
    return 0


def _listed(name: str, architecture: str | None) -> dict[str, Any]:
    """A row of the table; a strategy that cannot be built for the target says so."""
    from fireiron.library import bind, find

    try:
        entry = find(name)
    except FireironError as error:
        return {
            "name": name,
            "sizes": [],
            "threads": "-",
            "shared bytes": "-",
            "tunables": [],
            "what it is": f"cannot be loaded: {error.asked}",
        }
    row = {"name": name, "sizes": list(entry.sizes), "tunables": list(entry.strategy.tunables()), "what it is": entry.doc}
    try:
        kernel = bind(entry).program(architecture).ir
    except FireironError as error:
        return row | {"threads": "-", "shared bytes": "-", "what it is": f"{entry.doc} ({error.asked})"}
    return row | {"threads": kernel.threads, "shared bytes": kernel.shared_bytes}
