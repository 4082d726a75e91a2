"""What a terminal shows: lines folded to its width, tables made for it. Pipes, files, JSON and `--wide` get everything as it is."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, Final

WIDEST: Final = 100
"""Most columns of a terminal that are used."""

NARROWEST: Final = 6
"""Least columns of a table column."""

HANGING: Final = 28
"""Columns within which the second column of a line must start for its continuation to be indented below it."""

_GAP: Final = 2
_COLOUR: Final = re.compile(r"\x1b\[[0-9;]*m")
_LETTER: Final = re.compile(r"(?:\x1b\[[0-9;]*m)*.")
_BRANCHES: Final = re.compile(r"(?:│  |\|  |   )*(?:├─ |└─ |\|- |`- )?")


class Folded:
    """A text stream whose long lines are folded; everything else is what the stream behind it does. `before` is called once, before the
    first line is written."""

    def __init__(self, stream: Any, width: int, before: Callable[[], None] = lambda: None) -> None:
        self.stream = stream
        self.width = width
        self.rest = ""
        self.before: Callable[[], None] | None = before

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)

    def write(self, text: str) -> int:
        """Write the lines that are complete; the rest waits for its end."""
        if self.before is not None:
            self.before()
            self.before = None
        *lines, self.rest = (self.rest + text).split("\n")
        for line in lines:
            for part in folded(line, self.width):
                self.stream.write(f"{part}\n")
        return len(text)

    def flush(self) -> None:
        """Write what waits, and flush the stream."""
        self.stream.write(self.rest)
        self.rest = ""
        self.stream.flush()


def terminal_width() -> int:
    """The columns to use of the terminal that this process writes to."""
    return min(shutil.get_terminal_size((WIDEST, 24)).columns, WIDEST)


def folded(line: str, width: int) -> Iterator[str]:
    """A line in parts of at most so many columns, broken at spaces where there are some; branches of a tree go on beside the parts.

    >>> list(folded("|- tile(128, 128).to(Block)  MatMul(128,128,64)", 30))
    ['|- tile(128, 128).to(Block)', '|      MatMul(128,128,64)']
    """
    letters = _LETTER.findall(line)
    if len(letters) <= width:
        yield line
        return
    end = line[sum(map(len, letters)) :]  # colours behind the last letter
    indent = _continuation(_COLOUR.sub("", line))
    if len(indent) > width // 2:
        indent = ""
    start, least = "", len(indent)
    while len(start) + len(letters) > width:
        cut = _cut(letters, width - len(start), least)
        yield (start + "".join(letters[:cut])).rstrip()
        letters = letters[cut:]
        while letters and letters[0] == " ":
            letters.pop(0)
        start, least = indent, 0
    yield start + "".join(letters) + end


def _cut(letters: Sequence[str], room: int, least: int) -> int:
    """Where to break: before the last column that does not fit, else behind the last space that fits, else anywhere.

    What is left behind a break is to be more than what further parts begin with anyway: `least` letters, and a third of the room.
    """
    spaces = [place for place in range(max(least, room // 3) + 1, room + 1) if letters[place] == " "]
    gaps = [place for place in spaces if letters[place - 1] == " "]
    return (gaps or spaces or [room])[-1]


def _continuation(line: str) -> str:
    """What the further parts of a line begin with."""
    match = _BRANCHES.match(line)
    branches = "" if match is None else match[0]
    if branches.strip():
        beside = branches.replace("├─ ", "│  ").replace("|- ", "|  ").replace("└─ ", "   ").replace("`- ", "   ")
        return f"{beside}    "
    indent = line[: len(line) - len(line.lstrip())]
    second = re.match(r"\s*\S+(?: \S+)*  +", line)
    if second is not None and len(second[0]) <= HANGING:
        return " " * len(second[0])
    return f"{indent}    "


def table(
    rows: Sequence[Sequence[Any]],
    heads: Sequence[str],
    *,
    right: Collection[str] = (),
    width: int | None = None,
    most: Sequence[int | None] | None = None,
) -> str:
    """A table, its widest columns folded so that it is no wider than `width`; without one the columns are no wider than `most` says.

    `right` names the columns that are aligned to the right.
    """
    from tabulate import tabulate

    aligned = ["right" if head in right else "left" for head in heads]
    if width is not None and rows:
        most = _widths(rows, heads, width)
    return str(tabulate(rows, headers=heads, disable_numparse=True, colalign=aligned if rows else None, maxcolwidths=most))


def _widths(rows: Sequence[Sequence[Any]], heads: Sequence[str], width: int) -> list[int | None]:
    """The most columns for each column of a table, None for those that stay: those that are wider than their share give the rest up."""
    least = [len(head) + _GAP for head in heads]  # as tabulate pads heads
    natural = [max(_longest(str(cell)) for cell in column) for column in zip(*rows, strict=True)]
    room = width - _GAP * (len(heads) - 1)
    limit = max(natural)
    while limit > NARROWEST and sum(max(min(one, limit), head) for one, head in zip(natural, least, strict=True)) > room:
        limit -= 1
    return [max(limit, head) if one > max(limit, head) else None for one, head in zip(natural, least, strict=True)]


def _longest(text: str) -> int:
    return max(map(len, _COLOUR.sub("", text).splitlines()), default=0)


def shortened(text: str, width: int) -> str:
    """A text of at most so many columns, with dots where something is left out."""
    return text if len(text) <= width else f"{text[: max(0, width - 3)].rstrip()}..."
