"""Texts with possible line breaks: calls, sums, choices and assignments of C++, formatted for a width.

A text is a `str`, which is never broken, or a `Doc`. `str(doc)` is its form on one line; `laid_out` breaks what does not fit from the
outside in: an assignment after `=`, a call between its arguments, a chain before an operator.

>>> print("\\n".join(laid_out(Call("f", ("first", Chain(("second", "+ third")))), 80)))
f(first, second + third)
>>> print("\\n".join(laid_out(Assignment("x", Call("f", ("first", "second", "third"))), 20)))
x =
    f(
        first,
        second,
        third);
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TypeAlias

import attrs

STEP = 4
"""Columns by which a continuation line is indented."""


@attrs.frozen(slots=False)
class Doc:
    """A text with possible line breaks."""

    @functools.cached_property
    def flat(self) -> str:
        """The text on one line."""
        raise NotImplementedError

    def broken(self, room: int, width: int, after: int) -> list[str]:
        """Its lines if it does not fit: the first has `room` columns, the others `width`, and the last leaves `after` of them free."""
        raise NotImplementedError

    def __str__(self) -> str:
        return self.flat


Text: TypeAlias = "str | Doc"


def laid_out(text: Text, width: int, after: int = 0, room: int | None = None) -> list[str]:
    """The lines of a text in `width` columns, the first in `room` of them; the last leaves `after` columns free."""
    room = width if room is None else room
    flat = str(text)
    if isinstance(text, str) or len(flat) + after <= room:
        return [flat]
    return text.broken(room, width, after)


def _indented(lines: Sequence[str]) -> list[str]:
    return [" " * STEP + line for line in lines]


@attrs.frozen(slots=False)
class Joined(Doc):
    """Parts without separators."""

    parts: tuple[Text, ...]

    @functools.cached_property
    def flat(self) -> str:
        """The text on one line."""
        return "".join(map(str, self.parts))

    def broken(self, room: int, width: int, after: int) -> list[str]:
        """Each part, broken after the previous one ends."""
        lines = [""]
        for number, part in enumerate(self.parts):
            rest = self.parts[number + 1 :]
            remaining = sum(len(part) for part in rest if isinstance(part, str)) + (
                after if all(isinstance(part, str) for part in rest) else 0
            )
            free = (room if len(lines) == 1 else width) - len(lines[-1])
            first, *others = laid_out(part, width, remaining, free)
            lines = [*lines[:-1], lines[-1] + first, *others]
        return lines


@attrs.frozen(slots=False)
class Call(Doc):
    """`head(argument, argument)`."""

    head: Text
    arguments: tuple[Text, ...]

    @functools.cached_property
    def flat(self) -> str:
        """The text on one line."""
        return f"{self.head}({', '.join(map(str, self.arguments))})"

    def broken(self, room: int, width: int, after: int) -> list[str]:
        """The arguments on one separate line, or each on its own line."""
        inside = ", ".join(map(str, self.arguments)) + ")"
        head = laid_out(self.head, width, 1, room)
        if len(inside) + STEP + after <= width:
            return [*head[:-1], f"{head[-1]}(", *_indented([inside])]
        lines: list[str] = []
        for number, argument in enumerate(self.arguments):
            last = number == len(self.arguments) - 1
            *before, end = laid_out(argument, width - STEP, 1 + (after if last else 0))
            lines += [*before, end + (")" if last else ",")]
        return [*head[:-1], f"{head[-1]}(", *_indented(lines)]


@attrs.frozen(slots=False)
class Chain(Doc):
    """Operands of one operator: the first, then each preceded by the operator, such as `"+ b"`."""

    parts: tuple[Text, ...]

    @functools.cached_property
    def flat(self) -> str:
        """The text on one line."""
        return " ".join(map(str, self.parts))

    def broken(self, room: int, width: int, after: int) -> list[str]:
        """As many operands on a line as fit."""
        lines = laid_out(self.parts[0], width, 0, room)
        for number, part in enumerate(self.parts[1:], start=1):
            remaining = after if number == len(self.parts) - 1 else 0
            free = room if len(lines) == 1 else width
            if len(lines[-1]) + 1 + len(str(part)) + remaining <= free:
                lines[-1] += f" {part}"
            else:
                lines += _indented(laid_out(part, width - STEP, remaining))
        return lines


@attrs.frozen(slots=False)
class Listed(Doc):
    """Parts with commas between them, as many on a line as fit.

    >>> print("\\n".join(laid_out(Call("f", (Listed(("first", "second", "third")),)), 20)))
    f(
        first, second,
        third)
    """

    parts: tuple[Text, ...]

    @functools.cached_property
    def flat(self) -> str:
        """The text on one line."""
        return ", ".join(map(str, self.parts))

    def broken(self, room: int, width: int, after: int) -> list[str]:
        """Lines of parts, each but the last followed by a comma."""
        *parts, last = self.parts
        lines = [""]
        for part, remaining in (*((Joined((part, ",")), 0) for part in parts), (last, after)):
            free = room if len(lines) == 1 else width
            if not lines[-1] or len(lines[-1]) + 1 + len(str(part)) + remaining <= free:
                lines[-1] += f" {part}" if lines[-1] else str(part)
            else:
                lines += laid_out(part, width, remaining)
        return lines


@attrs.frozen(slots=False)
class Choice(Doc):
    """`condition ? first : second`."""

    condition: Text
    first: Text
    second: Text

    @functools.cached_property
    def flat(self) -> str:
        """The text on one line."""
        return f"{self.condition} ? {self.first} : {self.second}"

    def broken(self, room: int, width: int, after: int) -> list[str]:
        """The condition, then each alternative on its own line."""
        first = laid_out(Joined(("? ", self.first)), width - STEP)
        second = laid_out(Joined((": ", self.second)), width - STEP, after)
        return [*laid_out(self.condition, width, 0, room), *_indented([*first, *second])]


@attrs.frozen(slots=False)
class Assignment(Doc):
    """`target = value;`, also with a declaration as the target."""

    target: Text
    value: Text

    @functools.cached_property
    def flat(self) -> str:
        """The text on one line."""
        return f"{self.target} = {self.value};"

    def broken(self, room: int, width: int, after: int) -> list[str]:
        """The value on separate lines."""
        *before, head = laid_out(self.target, width, 2, room)
        *lines, last = laid_out(self.value, width - STEP, after + 1)
        return [*before, f"{head} =", *_indented([*lines, f"{last};"])]


def called(head: Text, *arguments: Text) -> Text:
    """A call as a statement."""
    return Joined((Call(head, arguments), ";"))


def in_parentheses(text: Text) -> Text:
    """A choice in parentheses, for use as an operand; any other text unchanged."""
    return Joined(("(", text, ")")) if isinstance(text, Choice) else text
