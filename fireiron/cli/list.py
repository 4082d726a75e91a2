"""`fireiron list`: print the strategy library as a table, with tuned records."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from fireiron.cli.arguments import KERNEL_FILES, STORED_FILES, Add, entry_named
from fireiron.cli.folded import WIDEST, shortened
from fireiron.cli.output import FAILED, print_json, width_of_output
from fireiron.cli.records import only, show
from fireiron.errors import ArgumentError, FireironError

if TYPE_CHECKING:
    from fireiron.tune.record import Record


Row = dict[str, Any]
"""A row of the table: its values by column head."""

HEADS: Final = ("name", "sizes", "tunables", "tuned", "description")
FIGURES: Final = ("threads", "shared bytes")
"""Columns whose values require lowering. The table has them for a single strategy, or with `--arch`."""


def register(add: Add) -> None:
    """Add the command."""
    command = add("list", run, "print the strategy library as a table, with tuned records", strategy=False)
    command.add_argument(
        "name",
        nargs="?",
        metavar="NAME",
        help="only this strategy of the library, or the strategies of a file, a folder, a module or a package",
    )
    command.add_argument("--arch", help="a target: adds threads and shared bytes, and shows only records for this target")
    command.add_argument("--records", action="store_true", help="print the tuned records instead")
    command.add_argument("--outdated", action="store_true", help="print the records of older versions of their strategies instead")


def run(arguments: argparse.Namespace) -> int:
    from fireiron.language.library import is_of_library, names
    from fireiron.tune.records import available
    from fireiron.values.machine import as_architecture

    if arguments.arch is not None:
        as_architecture(arguments.arch)
    if arguments.records and arguments.outdated:
        raise ArgumentError("list: --records and --outdated request two different tables", hint="use one of them")
    available_records = available()
    if arguments.name is not None and (
        not (arguments.records or arguments.outdated) or all(record.strategy != arguments.name for record in available_records)
    ):
        _ = _named(arguments)  # records may also be of strategies that are not in the library
    records = only(available_records, arguments.name, arguments.arch)
    if arguments.records:
        return show(records, arguments.json)
    if arguments.outdated:
        return _outdated(records, arguments.json)
    wanted = (*names(), *_of_team()) if arguments.name is None else _named(arguments)
    own = arguments.name is not None and not is_of_library(arguments.name)
    if own and len(wanted) != 1:
        arguments.name = None  # a table rather than the properties of one strategy
    entries = (_listed(arguments, name, [record for record in records if record.strategy == name]) for name in wanted)
    if width_of_output() is not None:
        return _on_terminal(wanted, entries, arguments)
    rows = list(entries)
    if arguments.arch is None and arguments.name is None:
        return _library(rows, rows, HEADS, arguments.json)
    figures = (_with_figures(arguments, row) for row in rows)
    return _library(rows, figures, (*HEADS[:2], *FIGURES, *HEADS[2:]), arguments.json)


def _library(known_rows: Sequence[Row], entries: Iterable[Row], heads: Sequence[str], as_json: bool) -> int:
    """Print each entry as soon as it is available. `known_rows`, the rows before lowering, determine the column widths."""
    if as_json:
        return print_json(list(entries))
    widths = [max(len(cell) for cell in (head, *(_cell(row.get(head, "")) for row in known_rows))) for head in heads]
    _print_row(heads, widths, heads)
    _print_row(["-" * width for width in widths], widths, heads)
    for entry in entries:
        _print_row([_cell(entry[head]) for head in heads], widths, heads)
    return 0


def _on_terminal(names: Sequence[str], entries: Iterable[Row], arguments: argparse.Namespace) -> int:
    """Print a line for each strategy as soon as it is loaded. For a single strategy, print a line for each property."""
    width, room = width_of_output() or WIDEST, max(map(len, names))
    for entry in entries:
        row = entry if arguments.arch is None and arguments.name is None else _with_figures(arguments, entry)
        if arguments.name is not None:
            for head in (*HEADS[:2], *FIGURES, *HEADS[2:]):
                print(f"{head:<12}  {_cell(row[head])}")
            return 0
        best = "" if row["tuned"]["best speedup"] is None else f"{row['tuned']['best speedup']:.2f}"
        figures = f"  {row['threads']:>4}  {row['shared bytes']:>6}" if arguments.arch is not None else ""
        print(shortened(f"{row['name']:<{room}}{figures}  {best:>4}  {row['description']}", width), flush=True)
    heads = f", threads, shared bytes on {arguments.arch}" if arguments.arch is not None else ""
    print(f"\nname{heads}, speedup of the best record over the library, description; for more: fireiron list NAME, or --wide")
    return 0


def _print_row(cells: Sequence[str], widths: Sequence[int], heads: Sequence[str]) -> None:
    padded = (cell.rjust(width) if head in FIGURES else cell.ljust(width) for cell, width, head in zip(cells, widths, heads, strict=True))
    print("  ".join(padded).rstrip(), flush=True)


def _cell(value: Any) -> str:
    if isinstance(value, list):
        return " ".join(map(str, value))
    if not isinstance(value, dict):
        return str(value)
    if not value["records"]:
        return f"- ({value['outdated']} outdated)" if value["outdated"] else "-"
    speedup = value["best speedup"]
    best = f"{value['best TFLOP/s']:.4g} TFLOP/s" if speedup is None else f"{speedup:.2f}x the library"
    outdated = f", {value['outdated']} outdated" if value["outdated"] else ""
    return f"{value['records']} ({', '.join(value['gpus'])}), best {best}{outdated}"


def _of_team() -> Iterator[str]:
    """Yield the strategies of the team's folder; for a file that cannot be loaded, its name."""
    from fireiron.language.library import strategies_in, team_files

    for name in team_files():
        try:
            yield from strategies_in(name)
        except FireironError:
            yield name


def _named(arguments: argparse.Namespace) -> tuple[str, ...]:
    """Return the STRATEGY arguments of the strategies that the command names.

    Raises: an `ArgumentError` if there is none.
    """
    from fireiron.language.library import is_of_library, strategies_in

    name = arguments.name
    if is_of_library(name) or name.endswith((STORED_FILES, KERNEL_FILES)):
        entry_named(arguments, name)
        return (name,)
    strategies = strategies_in(name)
    if not strategies:
        raise ArgumentError(f"{name} has no strategies", hint="strategy = MatMul.tile(...)... .done()")
    return strategies


def _listed(arguments: argparse.Namespace, name: str, records: list[Record]) -> Row:
    """Return a row of the table, from the file and the records."""
    try:
        entry = entry_named(arguments, name)
    except FireironError as error:
        description = f"cannot be loaded: {error.asked}"
        return {"name": name, "sizes": [], "tunables": [], "tuned": _tuned([], 0), "description": description}
    row: Row = {"name": name, "sizes": list(entry.sizes), "tunables": list(entry.strategy.tunables())}
    return row | {"tuned": _tuned_of(entry.strategy, records), "description": entry.doc}


def _with_figures(arguments: argparse.Namespace, row: Row) -> Row:
    """Return the row with the columns that require lowering. If the strategy is illegal for the target, the row has the error."""
    from fireiron.language.library import bind

    architecture = arguments.arch
    unknown = row | {"threads": "-", "shared bytes": "-"}
    try:
        entry = entry_named(arguments, row["name"])
    except FireironError:  # its row has the error
        return unknown
    try:
        kernel = bind(entry, architecture=architecture).program(architecture).lowered
    except FireironError as error:
        return unknown | {"description": f"{entry.doc} ({error.headline})"}
    return row | {"threads": kernel.threads, "shared bytes": kernel.shared_bytes}


def _tuned_of(strategy: Any, records: list[Record]) -> Row:
    from fireiron.tune.record import strategy_hash

    if not records:
        return _tuned([], 0)
    now = strategy_hash(strategy)
    current = [record for record in records if record.strategy_hash == now]
    return _tuned(current, len(records) - len(current))


def _tuned(records: list[Record], outdated: int) -> Row:
    """Return the number of records, their GPUs, the best speedup and the best TFLOP/s."""
    return {
        "records": len(records),
        "outdated": outdated,
        "gpus": sorted({record.gpu for record in records}),
        "best speedup": max((record.ratio for record in records if record.ratio is not None), default=None),
        "best TFLOP/s": max((record.tflops for record in records), default=None),
    }


def _outdated(records: list[Record], as_json: bool) -> int:
    """Print the outdated records; return 1 if there are any."""
    from fireiron.tune.records import Records

    outdated = Records(tuple(records)).outdated()
    if as_json:
        print_json(
            [{"strategy": entry.strategy, "recorded": entry.recorded, "now": entry.now, "records": entry.records} for entry in outdated]
        )
    else:
        for entry in outdated:
            print(entry.message)
        print(f"{len(records)} records, {sum(entry.records for entry in outdated)} of them not used")
    return FAILED if outdated else 0
