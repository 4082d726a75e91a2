"""`fireiron list`: the strategy library as a table, with what is tuned."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from fireiron.cli.arguments import Add, add_json
from fireiron.cli.output import FAILED, print_json
from fireiron.cli.records import only, show
from fireiron.errors import ArgumentError, FireironError

if TYPE_CHECKING:
    from fireiron.tune.record import Record


def register(add: Add) -> None:
    """Add the command."""
    command = add("list", run, "the strategy library as a table, with what is tuned", strategy=False)
    command.add_argument("name", nargs="?", metavar="NAME", help="only this strategy")
    command.add_argument("--arch", help="the target (sm_90)")
    command.add_argument("--records", action="store_true", help="the tuned records instead")
    command.add_argument("--drift", action="store_true", help="the records that were tuned for another version of their strategy instead")
    add_json(command)


def run(arguments: argparse.Namespace) -> int:
    from fireiron.language.library import find, names
    from fireiron.tune.records import available
    from fireiron.values.machine import as_architecture

    if arguments.arch is not None:
        as_architecture(arguments.arch)
    if arguments.records and arguments.drift:
        raise ArgumentError("list: --records and --drift are two tables", hint="give one of them")
    known = available()
    if arguments.name is not None and (not (arguments.records or arguments.drift) or all(one.strategy != arguments.name for one in known)):
        find(arguments.name)  # records may also be of strategies outside the library
    records = only(known, arguments.name, arguments.arch)
    if arguments.records:
        return show(records, arguments.json)
    if arguments.drift:
        return _drift(records, arguments.json)
    wanted = names() if arguments.name is None else (arguments.name,)
    return _library([_listed(name, arguments.arch, [one for one in records if one.strategy == name]) for name in wanted], arguments.json)


def _library(entries: list[dict[str, Any]], as_json: bool) -> int:
    if as_json:
        return print_json(entries)
    from tabulate import tabulate

    heads = ["name", "sizes", "threads", "shared bytes", "tunables", "tuned", "what it is"]
    table = [[_cell(row[head]) for head in heads] for row in entries]
    print(tabulate(table, headers=heads, disable_numparse=True, colalign=("left", "left", "right", "right", "left", "left", "left")))
    return 0


def _cell(value: Any) -> Any:
    if isinstance(value, list):
        return " ".join(map(str, value))
    if not isinstance(value, dict):
        return value
    if not value["records"]:
        return f"- ({value['outdated']} outdated)" if value["outdated"] else "-"
    best = f"{value['best of library']:.0%} of library" if value["best of library"] is not None else f"{value['best TFLOP/s']:.4g} TFLOP/s"
    outdated = f", {value['outdated']} outdated" if value["outdated"] else ""
    return f"{value['records']} ({', '.join(value['gpus'])}), best {best}{outdated}"


def _listed(name: str, architecture: str | None, records: list[Record]) -> dict[str, Any]:
    """A row of the table; a strategy that cannot be built for the target says so."""
    from fireiron.language.library import bind, find

    try:
        entry = find(name)
    except FireironError as error:
        return {
            "name": name,
            "sizes": [],
            "threads": "-",
            "shared bytes": "-",
            "tunables": [],
            "tuned": _tuned([], 0),
            "what it is": f"cannot be loaded: {error.asked}",
        }
    row: dict[str, Any] = {"name": name, "sizes": list(entry.sizes), "tunables": list(entry.strategy.tunables()), "what it is": entry.doc}
    row["tuned"] = _tuned_of(entry.strategy, records)
    try:
        kernel = bind(entry).program(architecture).lowered
    except FireironError as error:
        return row | {"threads": "-", "shared bytes": "-", "what it is": f"{entry.doc} ({error.asked.splitlines()[0]})"}
    return row | {"threads": kernel.threads, "shared bytes": kernel.shared_bytes}


def _tuned_of(strategy: Any, records: list[Record]) -> dict[str, Any]:
    from fireiron.tune.record import strategy_hash

    if not records:
        return _tuned([], 0)
    now = strategy_hash(strategy)
    current = [one for one in records if one.strategy_hash == now]
    return _tuned(current, len(records) - len(current))


def _tuned(records: list[Record], outdated: int) -> dict[str, Any]:
    """How many records, on which GPUs, and the best of them."""
    return {
        "records": len(records),
        "outdated": outdated,
        "gpus": sorted({record.gpu for record in records}),
        "best of library": max((record.ratio for record in records if record.ratio is not None), default=None),
        "best TFLOP/s": max((record.tflops for record in records), default=None),
    }


def _drift(records: list[Record], as_json: bool) -> int:
    """The records that are not used; the exit status says whether there are any."""
    from fireiron.tune.records import Records

    found = Records(tuple(records)).drift()
    if as_json:
        print_json([{"strategy": one.strategy, "recorded": one.recorded, "now": one.now, "records": one.records} for one in found])
    else:
        for one in found:
            print(one.message)
        print(f"{len(records)} records, {sum(one.records for one in found)} of them not used")
    return FAILED if found else 0
