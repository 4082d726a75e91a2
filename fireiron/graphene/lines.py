"""Split a text into logical lines with positions. A line ends when its parentheses are closed. Errors report line and column."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from typing import Final, NoReturn

from fireiron.errors import ArgumentError, FireironError, LayoutError
from fireiron.frozen import frozen

MOST_CHARACTERS: Final = 4_000_000
"""Maximum number of characters of a text."""

MOST_NESTED: Final = 60
"""Maximum nesting depth of bodies."""


@frozen
class Line:
    """A logical line: its text without the brace that opens a body, its position, and whether a body follows."""

    text: str
    number: int
    column: int
    opens: bool = False

    def refuse(self, what: str, *, offset: int = 0, legal: object = None, hint: str | None = None) -> NoReturn:
        """Raise a `LayoutError` about this line, with its position, the text there and what is legal."""
        rest = self.text[offset:].split("\n")[0]
        before = self.text[:offset].split("\n")
        column = len(before[-1]) + (self.column if len(before) == 1 else 1)
        shown = rest if len(rest) <= 60 else f"{rest[:57]}..."
        position = f"line {self.number + len(before) - 1}, column {column}"
        raise LayoutError(f"{position}: {what}", got=shown, legal=legal, hint=hint)  # type: ignore[arg-type]

    @contextlib.contextmanager
    def here(self, offset: int = 0) -> Iterator[None]:
        """Add the position of this line to errors that the body of the `with` raises."""
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
    """Split a text into logical lines.

    Raises: a `LayoutError` if the parentheses do not match, and an `ArgumentError` if the argument is not text.
    """
    if not isinstance(text, str):
        raise ArgumentError("cannot parse a kernel: the argument is not text", got=text)
    if len(text) > MOST_CHARACTERS:
        raise LayoutError(f"the text has too many characters: {len(text)}", legal=f"at most {MOST_CHARACTERS}")
    logical_lines: list[Line] = []
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
            Line(stripped, number, column).refuse("a closing parenthesis has no opening parenthesis")
        if level == 0:
            logical_lines += _logical("\n".join(parts), start, column)
            parts = []
    if parts:
        Line(parts[0], start, column).refuse("a parenthesis is not closed")
    return logical_lines


_QUOTED: Final = re.compile(r'"(?:[^"\\]|\\.)*"' + r"|'(?:[^'\\]|\\.)*'")
_NESTS: Final = {"(": 1, "[": 1, "{": 1, ")": -1, "]": -1, "}": -1}


def _blanked(text: str) -> str:
    """Replace quoted strings by underscores, which keeps the length."""
    return _QUOTED.sub(lambda quoted: "_" * len(quoted[0]), text)


_REMARK: Final = re.compile(r"(?<=[{}])\s*//")
"""A remark after a brace, where `//` cannot be a division."""


def _balance(line: str) -> int:
    """Return the number of parentheses that a line opens minus the number that it closes, without quoted strings."""
    plain = _QUOTED.sub("", line)
    return sum(plain.count(one) for one in "([") - sum(plain.count(one) for one in ")]")


def _without_remark(line: str) -> str:
    """Remove the remark at the end of a line.

    A remark follows a brace, or a line about tensors outside all parentheses. Elsewhere `//` divides. A line that begins with `//` is a
    comment of the kernel and remains.
    """
    if "//" not in line or line.lstrip().startswith("//"):
        return line
    plain = _blanked(line)
    if (remark := _REMARK.search(plain)) is not None:
        return line[: remark.start()]
    if not line.lstrip().startswith(("%", "#", "@", "(")):
        return line
    level = 0
    for position, character in enumerate(plain):
        level += _NESTS.get(character, 0)
        if level <= 0 and plain.startswith("//", position):
            return line[:position]
    return line


def _logical(text: str, number: int, column: int) -> list[Line]:
    """Return the line without the brace that opens a body, followed by a line `}` for each body that it closes."""
    if text.startswith("//"):
        return [Line(text, number, column)]
    if text.endswith("{"):
        return [Line(text[:-1].rstrip(), number, column, True)]
    closed = 0
    while text.endswith("}") and _blanked(text).count("}") > _blanked(text).count("{"):
        text, closed = text[:-1].rstrip(), closed + 1
    return [*([Line(text, number, column)] if text else []), *[Line("}", number, column)] * closed]


def split_at(text: str, word: str) -> tuple[str, str | None]:
    """Split a text at a word outside all parentheses. If the text does not contain the word, return the text and None."""
    level = 0
    plain = _blanked(text)
    for position, character in enumerate(plain):
        level += _NESTS.get(character, 0)
        if level == 0 and character.isspace() and re.match(rf"\s{word}\s", plain[position:]):
            return text[:position].rstrip(), text[position + len(word) + 1 :].strip()
    return text, None


def split_options(text: str) -> tuple[str, str]:
    """Split a text into the part before the braces at its end, and their contents."""
    if not text.endswith("}"):
        return text, ""
    plain = _blanked(text)
    level = 0
    for position in range(len(plain) - 1, -1, -1):
        level += {"}": 1, "{": -1}.get(plain[position], 0)
        if level == 0:
            return text[:position].rstrip(), text[position + 1 : -1].strip()
    return text, ""


def read_options(text: str) -> list[tuple[str, str]]:
    """Return comma-separated options as pairs of name and value. An option without `=` has an empty value."""
    options: list[str] = [""]
    level = 0
    plain = _blanked(text)
    for position, character in enumerate(plain):
        level += _NESTS.get(character, 0)
        if character == "," and level == 0:
            options.append("")
        else:
            options[-1] += text[position]
    pairs = [one.partition("=") for one in options if one.strip()]
    return [(name.strip(), value.strip()) for name, _, value in pairs]
