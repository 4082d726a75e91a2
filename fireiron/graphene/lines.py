"""A text as lines with places: where its parentheses are closed, what begins a body, and errors that say where."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from typing import Final, NoReturn

import attrs

from fireiron.errors import ArgumentError, FireironError, LayoutError

MOST_CHARACTERS: Final = 4_000_000
"""Most characters of a text."""

MOST_NESTED: Final = 60
"""Deepest nesting of bodies."""


@attrs.frozen
class Line:
    """A logical line: its text without what begins a body, where it begins, and whether a body follows."""

    text: str
    number: int
    column: int
    opens: bool = False

    def refuse(self, what: str, *, offset: int = 0, legal: object = None, hint: str | None = None) -> NoReturn:
        """Raise a `LayoutError` about this line: its place, what stands there, what is legal."""
        rest = self.text[offset:].split("\n")[0]
        before = self.text[:offset].split("\n")
        column = len(before[-1]) + (self.column if len(before) == 1 else 1)
        shown = rest if len(rest) <= 60 else f"{rest[:57]}..."
        place = f"line {self.number + len(before) - 1}, column {column}"
        raise LayoutError(f"{place}: {what}", got=shown, legal=legal, hint=hint)  # type: ignore[arg-type]

    @contextlib.contextmanager
    def here(self, offset: int = 0) -> Iterator[None]:
        """Errors of what is read inside say that it stands in this line."""
        try:
            yield
        except FireironError as error:
            if error.asked.startswith("line "):
                raise
            before = self.text[:offset].split("\n")
            column = len(before[-1]) + (self.column if len(before) == 1 else 1)
            error.asked = f"line {self.number + len(before) - 1}, column {column}: {error.asked}"
            error.args = (error.asked,)
            error.at = None
            raise error from None


def lines_of(text: object) -> list[Line]:
    """The logical lines of a text; a `LayoutError` where its parentheses do not match."""
    if not isinstance(text, str):
        raise ArgumentError("a kernel is parsed from text", got=text)
    if len(text) > MOST_CHARACTERS:
        raise LayoutError(f"a text of {len(text)} characters", legal=f"at most {MOST_CHARACTERS}")
    found: list[Line] = []
    parts: list[str] = []
    start, column, level = 0, 1, 0
    for number, line in enumerate(text.split("\n"), 1):
        stripped = _without_remark(line).strip()
        if not parts:
            if not stripped:
                continue
            start, column = number, len(line) - len(line.lstrip()) + 1
        parts.append(stripped if not parts else _without_remark(line).rstrip())
        if not (len(parts) == 1 and stripped.startswith("//")):
            level += _balance(stripped)
        if level < 0:
            Line(stripped, number, column).refuse("a parenthesis is closed that was not opened")
        if level == 0:
            found += _logical("\n".join(parts), start, column)
            parts = []
    if parts:
        Line(parts[0], start, column).refuse("a parenthesis is not closed before the text ends")
    return found


_QUOTED: Final = re.compile(r'"(?:[^"\\]|\\.)*"' + r"|'(?:[^'\\]|\\.)*'")
_NESTS: Final = {"(": 1, "[": 1, "{": 1, ")": -1, "]": -1, "}": -1}


def _blanked(text: str) -> str:
    """A text of the same length in which nothing in quotes means anything."""
    return _QUOTED.sub(lambda quoted: "_" * len(quoted[0]), text)


_REMARK: Final = re.compile(r"(?<=[{}])\s*//")
"""A remark behind a brace, where no division can stand."""


def _balance(line: str) -> int:
    """How many more parentheses a line opens than it closes, texts in quotes left out."""
    plain = _QUOTED.sub("", line)
    return sum(plain.count(one) for one in "([") - sum(plain.count(one) for one in ")]")


def _without_remark(line: str) -> str:
    """A line without the remark at its end: behind a brace, or behind a line about tensors, outside all parentheses.

    Elsewhere `//` divides. A line that begins with it is a comment of the kernel, and stays.
    """
    if "//" not in line or line.lstrip().startswith("//"):
        return line
    plain = _blanked(line)
    if (remark := _REMARK.search(plain)) is not None:
        return line[: remark.start()]
    if not line.lstrip().startswith(("%", "#", "@", "(")):
        return line
    level = 0
    for place, character in enumerate(plain):
        level += _NESTS.get(character, 0)
        if level <= 0 and plain.startswith("//", place):
            return line[:place]
    return line


def _logical(text: str, number: int, column: int) -> list[Line]:
    """The line, without the brace that begins a body, and in front of lines of the braces that end bodies where it closes some."""
    if text.startswith("//"):
        return [Line(text, number, column)]
    if text.endswith("{"):
        return [Line(text[:-1].rstrip(), number, column, True)]
    closed = 0
    while text.endswith("}") and _blanked(text).count("}") > _blanked(text).count("{"):
        text, closed = text[:-1].rstrip(), closed + 1
    return [*([Line(text, number, column)] if text else []), *[Line("}", number, column)] * closed]


def split_at(text: str, word: str) -> tuple[str, str | None]:
    """A text before and behind a word between blanks that stands outside all parentheses; all of it, and None, where there is none."""
    level = 0
    plain = _blanked(text)
    for place, character in enumerate(plain):
        level += _NESTS.get(character, 0)
        if level == 0 and character.isspace() and re.match(rf"\s{word}\s", plain[place:]):
            return text[:place].rstrip(), text[place + len(word) + 1 :].strip()
    return text, None


def options_behind(text: str) -> tuple[str, str]:
    """A text without the braces at its end, and what stands in them."""
    if not text.endswith("}"):
        return text, ""
    plain = _blanked(text)
    level = 0
    for place in range(len(plain) - 1, -1, -1):
        level += {"}": 1, "{": -1}.get(plain[place], 0)
        if level == 0:
            return text[:place].rstrip(), text[place + 1 : -1].strip()
    return text, ""


def listed(text: str) -> list[tuple[str, str]]:
    """Options between commas, as names and values; a word alone has no value."""
    found: list[str] = [""]
    level = 0
    plain = _blanked(text)
    for place, character in enumerate(plain):
        level += _NESTS.get(character, 0)
        if character == "," and level == 0:
            found.append("")
        else:
            found[-1] += text[place]
    pairs = [one.partition("=") for one in found if one.strip()]
    return [(name.strip(), value.strip()) for name, _, value in pairs]
