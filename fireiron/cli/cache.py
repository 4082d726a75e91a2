"""`fireiron cache`: show, prune or verify the disk cache of compiled kernels, checked programs and chosen kernels."""

from __future__ import annotations

import argparse
import re
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from fireiron.cli.arguments import Add
from fireiron.cli.folded import table
from fireiron.cli.output import FAILED, paint, print_json, width_of_output

if TYPE_CHECKING:
    from fireiron.gpu.cache import Entry

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_DAYS = {"d": 1.0, "h": 1 / 24, "m": 1 / 1440, "w": 7.0}


def register(add: Add) -> None:
    """Add the command."""
    command = add("cache", run, "show, prune or verify the disk cache of compiled kernels, programs and choices", strategy=False)
    command.set_defaults(action="show")
    actions = command.add_subparsers(dest="action", metavar="ACTION")
    parsers = {
        "show": actions.add_parser("show", help="print a table of the entries (default)", allow_abbrev=False),
        "prune": actions.add_parser("prune", help="remove entries, least recently used first", allow_abbrev=False),
        "verify": actions.add_parser("verify", help="read every entry in full; exit status 1 if one is damaged", allow_abbrev=False),
    }
    for action in parsers.values():
        action.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help="print JSON")
    parsers["prune"].add_argument("--max-size", type=_size, metavar="100M", help="limit the cache to this size (K, M, G: powers of 1024)")
    parsers["prune"].add_argument("--older-than", type=_age, metavar="30d", help="remove entries not used for this time (w, d, h or m)")
    parsers["prune"].add_argument("--all", action="store_true", help="remove everything")
    parsers["verify"].add_argument("--fix", action="store_true", help="remove the damaged entries")


def run(arguments: argparse.Namespace) -> int:
    actions = {"show": _show, "prune": _prune, "verify": _verify}
    return actions[arguments.action or "show"](arguments)


def _size(text: str) -> int:
    match = re.fullmatch(r"([0-9]{1,12}(?:\.[0-9]{1,6})?)([KMGT]?)(?:i?B)?", text, re.ASCII | re.IGNORECASE)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size: give a number of bytes, or 500K, 100M, 2G")
    return int(float(match[1]) * _UNITS[match[2].upper()])


def _age(text: str) -> float:
    """Parse a time; return days."""
    match = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,6})?)([wdhm])", text, re.ASCII)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a time: give weeks, days, hours or minutes, such as 30d or 12h")
    return float(match[1]) * _DAYS[match[2]]


def _show(arguments: argparse.Namespace) -> int:
    from fireiron.gpu.cache import entries, folder

    cached = entries()
    if arguments.json:
        total = sum(entry.size for entry in cached)
        return print_json({"folder": str(folder()), "bytes": total, "entries": [_plain(entry) for entry in cached]})
    if cached:
        _print_table(cached)
    print(f"{_counted(cached)} in {folder()}")
    return 0


def _prune(arguments: argparse.Namespace) -> int:
    from fireiron.errors import ArgumentError
    from fireiron.gpu.cache import entries, prune

    if arguments.max_size is None and arguments.older_than is None and not arguments.all:
        raise ArgumentError("prune: nothing to remove is specified", legal="--max-size 100M, --older-than 30d, or --all")
    removed = prune(arguments.max_size, arguments.older_than, arguments.all)
    kept = entries()
    if arguments.json:
        total = sum(entry.size for entry in kept)
        return print_json({"removed": [_plain(entry) for entry in removed], "kept": len(kept), "bytes": total})
    print(f"removed {_counted(removed)}; {_counted(kept)} left")
    return 0


def _verify(arguments: argparse.Namespace) -> int:
    from fireiron.gpu.cache import entries, verify

    total = len(entries())
    damaged = verify(arguments.fix)
    if arguments.json:
        print_json({"entries": total, "damaged": [_plain(entry) for entry in damaged], "removed": bool(arguments.fix)})
    else:
        for entry in damaged:
            print(f"{paint('damaged', 31)}  {entry.path}: {entry.problem}")
        after = "" if not damaged else ", removed" if arguments.fix else ", remove them with --fix"
        print(f"{total} entr{'y' if total == 1 else 'ies'} read, {len(damaged)} damaged{after}")
    return FAILED if damaged else 0


def _plain(entry: Entry) -> dict[str, Any]:
    import attrs

    return attrs.asdict(entry) | {"path": str(entry.path), "kernels": list(entry.kernels), "toolchain": _version(entry)}


def _print_table(cached: Iterable[Entry]) -> None:
    now = time.time()
    rows = [
        [
            ", ".join(entry.kernels) or f"({entry.problem})",
            entry.kind,
            entry.about.lstrip("/ ")[:60],
            entry.arch,
            _version(entry),
            _bytes(entry.size),
            _ago(now - entry.created),
            _ago(now - entry.used),
        ]
        for entry in cached
    ]
    heads = ["kernel", "kind", "computes", "target", "NVRTC", "size", "age", "last use"]
    print(table(rows, heads, right=heads[5:], width=width_of_output()))


def _version(entry: Entry) -> str:
    return ".".join(map(str, entry.toolchain))


def _counted(cached: Iterable[Entry]) -> str:
    sizes = [entry.size for entry in cached]
    return f"{len(sizes)} entr{'y' if len(sizes) == 1 else 'ies'}, {_bytes(sum(sizes))}"


def _bytes(size: float) -> str:
    for unit in ("bytes", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "bytes" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} GiB"


def _ago(seconds: float) -> str:
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.0f} {unit}"
    return f"{max(seconds, 0):.0f} s"
