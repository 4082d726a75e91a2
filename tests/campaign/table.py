"""The table of public names: how often each name, and each pair of names, was drawn, executed and compared.

`docs/campaign/names/counts.json` has the sums of all campaigns: exact counts of names, and for pairs the orders of magnitude, one character
per pair. `python -m campaign --publish` adds the counts of local states; `--names FILE` adds those of `perf/drawn_kernels.py`.
"""

from __future__ import annotations

import datetime
import itertools
import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import attrs

from campaign.impossible import reason_for_names
from campaign.names import public
from campaign.state import PUBLISHED

FILE = PUBLISHED / "names" / "counts.json"
UNDRAWN = FILE.with_name("undrawn.txt")
"""The names without draws at the last publication, one a line: a new name is not among them."""

DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"
"""The character of a pair: the number of binary digits of its count."""


@attrs.define
class Table:
    """Counts of names and of their pairs, each with a range of seeds or a command as its source."""

    names: Counter[str] = attrs.field(factory=Counter)
    pairs: Counter[str] = attrs.field(factory=Counter)
    """Counts of `a + b`, with a before b; those read from a file are lower bounds within a factor of 2."""
    sources: list[str] = attrs.field(factory=list)

    def add(self, names: Mapping[str, int], pairs: Mapping[str, int], source: str) -> None:
        """Add counts."""
        self.names.update(names)
        self.pairs.update(pairs)
        self.sources.append(f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d}: {source}")

    def undrawn(self) -> list[str]:
        """The public names that were never drawn, without those that cannot be."""
        return [name for name in public() if not self.names[name] and reason_for_names(name) is None]

    def cells(self) -> Iterator[tuple[str, str, int, str | None]]:
        """Each pair of names with its count, and the reason if it is impossible."""
        for first, other in itertools.combinations(sorted(public()), 2):
            yield first, other, self.pairs[f"{first} + {other}"], reason_for_names(first, other)

    def write(self, file: Path = FILE) -> None:
        """Store the table, and the names that it lacks."""
        names = sorted(self.names)
        rows = {
            name: "".join(DIGITS[self.pairs[f"{name} + {other}"].bit_length()] for other in names[place + 1 :])
            for place, name in enumerate(names)
        }
        file.parent.mkdir(parents=True, exist_ok=True)
        lines = [f'{json.dumps(name)}: [{self.names[name]}, "{row}"]' for name, row in rows.items()]
        file.with_name(UNDRAWN.name).write_text("".join(f"{name}\n" for name in self.undrawn()), encoding="utf-8")
        file.write_text(f'{{"sources": {json.dumps(self.sources)},\n"names": {{\n' + ",\n".join(lines) + "\n}}\n", encoding="utf-8")


def read(file: Path = FILE) -> Table:
    """The stored table; an empty one if there is none."""
    if not file.is_file():
        return Table()
    stored = json.loads(file.read_text(encoding="utf-8"))
    names, pairs = list(stored["names"]), Counter[str]()
    for place, name in enumerate(names):
        for other, digit in zip(names[place + 1 :], stored["names"][name][1], strict=True):
            if digit != "0":
                pairs[f"{name} + {other}"] = 1 << (DIGITS.index(digit) - 1)
    return Table(Counter({name: count for name, (count, _) in stored["names"].items()}), pairs, stored["sources"])


def summary(table: Table) -> str:
    """The table by pairs of categories: filled cells, impossible ones, and those that are neither."""
    kinds = sorted({name.partition(" ")[0] for name in public()})
    filled, impossible, empty = Counter[tuple[str, str]](), Counter[tuple[str, str]](), Counter[tuple[str, str]]()
    for first, other, count, reason in table.cells():
        kind = (first.partition(" ")[0], other.partition(" ")[0])
        (filled if count else impossible if reason else empty)[kind] += 1
    rows = [[*kind, filled[kind], impossible[kind], empty[kind]] for kind in itertools.combinations_with_replacement(kinds, 2)]
    total = [sum(counter.values()) for counter in (filled, impossible, empty)]
    lines = [f"| {' | '.join(map(str, row))} |" for row in rows if sum(row[2:])]
    head = "| names | and | drawn | impossible or alternatives | not drawn |\n|---|---|---|---|---|"
    return "\n".join([head, *lines, f"| all | all | {' | '.join(map(str, total))} |"])


def least(table: Table, count: int) -> list[str]:
    """The names that were drawn least, with their counts."""
    return [f"{name} {number}" for name, number in sorted(table.names.items(), key=lambda one: (one[1], one[0]))[:count]]


def order(count: int) -> str:
    """A count as a power of two, as in the file."""
    return "0" if not count else f"2^{math.floor(math.log2(count))}"


def merged(files: Iterable[Path], table: Table) -> None:
    """Add the counts of files of `perf/drawn_kernels.py`."""
    for file in files:
        counts = json.loads(file.read_text(encoding="utf-8"))
        table.add(counts["names"], counts["meetings"], f"perf/drawn_kernels.py, {counts['seeds']}")
