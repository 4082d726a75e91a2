"""`fireiron records`: show, merge and check tuned records."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fireiron.cli.arguments import Add
from fireiron.cli.folded import table
from fireiron.cli.output import FAILED, print_json, width_of_output
from fireiron.errors import FireironError, StoreError
from fireiron.files import exists

if TYPE_CHECKING:
    from fireiron.tune.record import Record

ACTIONS = ("show", "merge", "check")


def register(add: Add) -> None:
    """Add the command."""
    command = add("records", run, "show, merge or check files of tuned records", strategy=False)
    command.add_argument("action", choices=ACTIONS, help="print a table; merge files into one; check every line and the strategies")
    command.add_argument("files", nargs="*", metavar="FILE", help="files or folders (show: default is the records in use)")
    command.add_argument("-o", "--output", metavar="FILE", help="merge: the file to write")
    command.add_argument("--force", action="store_true", help="merge: replace a file that is not among those merged")
    command.add_argument("--strategy", metavar="NAME", help="show: only records of this strategy")
    command.add_argument("--arch", help="show: only records for this target")


def run(arguments: argparse.Namespace) -> int:
    from fireiron.errors import ArgumentError

    if arguments.action != "show" and not arguments.files:
        raise ArgumentError(f"records {arguments.action}: no file is given", hint=f"fireiron records {arguments.action} FILE ...")
    if arguments.output is not None and arguments.action != "merge":
        raise ArgumentError(f"records {arguments.action} writes no file", hint="fireiron records merge FILE ... -o FILE")
    actions: dict[str, Callable[[argparse.Namespace], int]] = {"show": _show, "merge": _merge, "check": _check}
    return actions[arguments.action](arguments)


# ---------------------------------------------------------------------------------------------- tables


def show(records: Iterable[Record], as_json: bool) -> int:
    """Print records as a table, or as JSON."""
    chosen = list(records)
    if as_json:
        return print_json([json.loads(record.line()) for record in chosen])
    if not chosen:
        print("no records")
        return 0
    heads = ["strategy", "sizes", "types", "layouts", "values", "us", "TFLOP/s", "speedup", "clocks", "target", "GPU", "date"]
    rights = ("us", "TFLOP/s", "speedup")
    rows, width = [_row(record) for record in chosen], width_of_output()
    if width is not None:  # a terminal: only --wide shows how and where records were measured
        kept = [heads.index(head) for head in ("strategy", "sizes", "values", *rights, "GPU")]
        heads, rows = [heads[i] for i in kept], [[row[i] for i in kept] for row in rows]
    print(table(rows, heads, right=rights, width=width))
    strategies = len({record.strategy for record in chosen})
    if strategies > 1:
        print(f"{len(chosen)} records of {strategies} strategies; --strategy NAME selects one")
    return 0


def only(records: Iterable[Record], strategy: str | None, arch: str | None) -> list[Record]:
    """Return the records of a strategy for the compute capability of a target. `Records.find` compares capabilities in the same way."""
    from fireiron.tune.records.rules import capability_of
    from fireiron.values.machine import as_architecture

    capability = None if arch is None else as_architecture(arch).capability
    matches = [record for record in records if strategy in (None, record.strategy)]
    return [record for record in matches if capability in (None, capability_of(record.architecture))]


def _row(record: Record) -> list[str]:
    names = list(record.spec["dtypes"])
    return [
        record.strategy,
        "x".join(map(str, record.shape)),
        " ".join(dict.fromkeys(record.spec["dtypes"][name] for name in names)),
        " ".join(_stored(record, name) for name in names),
        " ".join(f"{name}={value}" for name, value in record.values.items()) or "-",
        f"{record.us:.4g}",
        f"{record.tflops:.4g}",
        "-" if record.ratio is None else f"{record.ratio:.3f}",
        f"{record.regime} {record.l2}",
        record.architecture,
        record.gpu,
        record.date,
    ]


def _stored(record: Record, name: str) -> str:
    leading = record.spec.get("leading", {}).get(name)
    return f"{record.spec['layouts'][name]}{'' if leading is None else f'({leading})'}"


def _show(arguments: argparse.Namespace) -> int:
    from fireiron.tune.records import Records, available

    records = Records.load(*arguments.files) if arguments.files else available()
    return show(only(records, arguments.strategy, arguments.arch), arguments.json)


# ---------------------------------------------------------------------------------------------- files


def _merge(arguments: argparse.Namespace) -> int:
    from fireiron.errors import ArgumentError
    from fireiron.tune.records import Records, merge_files, record_files

    if not record_files(*arguments.files):
        raise ArgumentError(
            "records merge: the folders contain no records", got=" ".join(arguments.files), legal="files, or folders with *.jsonl"
        )
    if arguments.output is None:
        sys.stdout.write(Records.load(*arguments.files).text())
        return 0
    target = Path(arguments.output)
    among = any(exists(Path(file)) and exists(target) and Path(file).samefile(target) for file in arguments.files)
    if exists(target) and not among and not arguments.force:
        raise ArgumentError(f"{target} exists", hint="add it to the files to merge, or use --force")
    before, after = merge_files(arguments.files, target)
    replaced = f", {before - after} replaced by newer ones" if before > after else ""
    print(f"{target}: {after} records{replaced}")
    return 0


def _check(arguments: argparse.Namespace) -> int:
    """Check every line, and check whether strategies have changed since their records."""
    from fireiron.tune.records import Records, record_files

    findings: list[dict[str, Any]] = []
    good: list[Record] = []
    for path in record_files(*arguments.files):
        good += _lines(path, findings)
    findings += [_finding(None, outdated.message) for outdated in Records(tuple(good)).outdated()]
    duplicates = len(good) - len(Records().merged(Records(tuple(good))))
    if arguments.json:
        print_json({"records": len(good), "duplicates": duplicates, "errors": findings})
    else:
        for finding in findings:
            print(f"{finding['at']}: {finding['message']}" if finding["at"] else finding["message"])
        print(f"{len(good)} records, {duplicates} of them duplicates; {len(findings)} errors")
    return FAILED if findings else 0


def _lines(path: Path, findings: list[dict[str, Any]]) -> list[Record]:
    from fireiron.tune.records import parse_line, read_text

    good = []
    try:
        lines = read_text(path).split("\n")
    except StoreError as error:
        findings.append(_finding(str(path), error.asked))
        return []
    for number, line in enumerate(lines, 1):
        try:
            good += [parse_line(path, number, line)] if line.strip() else []
        except FireironError as error:
            findings.append(_finding(error.at, error.asked))
    return good


def _finding(at: str | None, message: str) -> dict[str, Any]:
    return {"at": at, "message": message}
