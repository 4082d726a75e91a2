"""Fold lines and tables to the width of a terminal. For pipes, files, JSON and `--wide`, lines are not folded."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, Final

WIDEST: Final = 100
"""Maximum number of columns that output uses on a terminal."""

NARROWEST: Final = 6
"""Minimum width of a table column."""

HANGING: Final = 28
"""A continuation line is indented below the second column of a line if that column starts at or before this column."""

_GAP: Final = 2
_COLOR: Final = re.compile(r"\x1b\[[0-9;]*m")
_LETTER: Final = re.compile(r"(?:\x1b\[[0-9;]*m)*.")
_BRANCHES: Final = re.compile(r"(?:│  |\|  |   )*(?:├─ |└─ |\|- |`- )?")


class Folded:
    """A text stream that folds long lines. Otherwise it behaves like the wrapped stream. It calls `before` before the first line."""

    def __init__(self, stream: Any, width: int, before: Callable[[], None] = lambda: None) -> None:
        self.stream = stream
        self.width = width
        self.rest = ""
        self.before: Callable[[], None] | None = before

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)

    def write(self, text: str) -> int:
        """Write complete lines, and keep an incomplete line."""
        if self.before is not None:
            self.before()
            self.before = None
        *lines, self.rest = (self.rest + text).split("\n")
        for line in lines:
            for part in folded(line, self.width):
                self.stream.write(f"{part}\n")
        return len(text)

    def flush(self) -> None:
        """Write an incomplete line, and flush the stream."""
        self.stream.write(self.rest)
        self.rest = ""
        self.stream.flush()


def terminal_width() -> int:
    """Return the number of columns to use of the terminal."""
    return min(shutil.get_terminal_size((WIDEST, 24)).columns, WIDEST)


def folded(line: str, width: int) -> Iterator[str]:
    """Yield a line in parts of at most `width` columns, broken at spaces if possible. Branches of a tree continue in all parts.

    >>> list(folded("|- tile(128, 128).to(Block)  MatMul(128,128,64)", 30))
    ['|- tile(128, 128).to(Block)', '|      MatMul(128,128,64)']
    """
    letters = _LETTER.findall(line)
    if len(letters) <= width:
        yield line
        return
    end = line[sum(map(len, letters)) :]  # colors after the last letter
    indent = _continuation(_COLOR.sub("", line))
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
    """Return the position of a line break: the last gap between columns that fits, else the last space, else the width.

    The part before the break must be longer than `least` letters, and longer than a third of the width.
    """
    spaces = [place for place in range(max(least, room // 3) + 1, room + 1) if letters[place] == " "]
    gaps = [place for place in spaces if letters[place - 1] == " "]
    return (gaps or spaces or [room])[-1]


def _continuation(line: str) -> str:
    """Return the prefix of the continuation lines of a line."""
    match = _BRANCHES.match(line)
    branches = "" if match is None else match[0]
    if branches.strip():
        continued = branches.replace("├─ ", "│  ").replace("|- ", "|  ").replace("└─ ", "   ").replace("`- ", "   ")
        return f"{continued}    "
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
    """Return a table. Its widest columns are folded to fit `width`. Without `width`, `most` limits the width of each column.

    `right` contains the heads of the right-aligned columns.
    """
    from tabulate import tabulate

    aligned = ["right" if head in right else "left" for head in heads]
    if width is not None and rows:
        most = _widths(rows, heads, width)
    widths = None if most is None else [*most]  # tabulate 0.9 appends to it
    return str(tabulate(rows, headers=heads, disable_numparse=True, colalign=aligned if rows else None, maxcolwidths=widths))


def _widths(rows: Sequence[Sequence[Any]], heads: Sequence[str], width: int) -> list[int | None]:
    """Return the maximum width of each column of a table; None for a column that is not folded."""
    least = [len(head) + _GAP for head in heads]  # as tabulate pads heads
    natural = [max(_longest(str(cell)) for cell in column) for column in zip(*rows, strict=True)]
    room = width - _GAP * (len(heads) - 1)
    limit = max(natural)
    while limit > NARROWEST and sum(max(min(wide, limit), head) for wide, head in zip(natural, least, strict=True)) > room:
        limit -= 1
    return [max(limit, head) if wide > max(limit, head) else None for wide, head in zip(natural, least, strict=True)]


def _longest(text: str) -> int:
    return max(map(len, _COLOR.sub("", text).splitlines()), default=0)


def shortened(text: str, width: int) -> str:
    """Return a text of at most `width` columns, which ends with dots if it was cut."""
    return text if len(text) <= width else f"{text[: max(0, width - 3)].rstrip()}..."
