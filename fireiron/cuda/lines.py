"""Lay out items as lines: indentation, braces, comments, a maximal width."""

from __future__ import annotations

import itertools
import textwrap
from collections.abc import Iterable, Sequence

from fireiron.frozen import frozen
from fireiron.ir.text import Braces, If, Item, Noted, Path, Remark, WithSteps
from fireiron.values.document import Chain, Joined, Text, laid_out

WIDTH = 120
"""Columns of a line."""

INDENT = 2
"""Columns of a block."""


@frozen
class Line:
    """A line of text and the steps of the tree that created it; none for a line of the whole kernel."""

    text: str
    steps: tuple[Path, ...] = ()


def lines_of(items: Iterable[Item], depth: int = 0) -> list[Line]:
    """The lines of items inside `depth` blocks."""
    lines: list[Line] = []
    for item in items:
        lines += _item(item, depth)
    return lines


def plain(texts: Iterable[str], steps: tuple[Path, ...] = ()) -> list[Line]:
    """Texts as lines, all of the same steps."""
    return [Line(text, steps) for text in texts]


def _item(item: Item, depth: int) -> list[Line]:
    if isinstance(item, WithSteps):  # the innermost steps are the most specific
        return [line if line.steps else Line(line.text, item.steps) for line in _item(item.item, depth)]
    if isinstance(item, If):
        first = _block(Joined(("if (", _all(item.conditions), ")")), item.body, depth)
        return first if not item.otherwise else _joined(first, _block("else", item.otherwise, depth))
    if isinstance(item, Braces):
        lines = _block(item.head, item.body, depth)
        return [Line(item.pragma), *lines] if item.pragma else lines
    if isinstance(item, Noted):
        return plain(_noted(item, depth))
    if isinstance(item, Remark):
        return plain(_remark(item, depth))
    return plain(_text(item, depth))


def _joined(first: list[Line], second: list[Line]) -> list[Line]:
    """A block and the one after its `else`, which is on the line of the closing brace."""
    if first[-1].text.strip() != "}":
        return [*first, *second]
    return [*first[:-1], Line(f"{first[-1].text} {second[0].text.lstrip()}", second[0].steps), *second[1:]]


def _remark(item: Remark, depth: int) -> list[str]:
    margin = " " * INDENT * depth
    if all(len(margin) + len(line) <= WIDTH for line in item.lines):
        return [_ended(f"{margin}{line}") for line in item.lines]
    lines: list[str] = []
    for is_text, run in itertools.groupby((line[2:].strip() for line in item.lines), bool):
        if is_text:
            filled = textwrap.wrap(" ".join(run), WIDTH - len(margin) - len("// "))
            lines += [f"{margin}// {line}" for line in filled]
        else:
            lines += [f"{margin}//" for _ in run]
    return [_ended(line) for line in lines]


def _ended(line: str) -> str:
    """A comment line without a final backslash, which would continue the comment in the next line."""
    return f"{line} ." if line.endswith("\\") else line


def _text(text: Text, depth: int, after: int = 0) -> list[str]:
    """The lines of a text; a comment continues as comments, preprocessor lines are not indented."""
    if isinstance(text, str):
        if text.startswith("//"):
            return comment(text[2:].strip(), depth)
        return [text if text.startswith("#") or not text else " " * INDENT * depth + text]
    return [" " * INDENT * depth + line for line in laid_out(text, WIDTH - INDENT * depth, after)]


def _noted(item: Noted, depth: int) -> list[str]:
    line = f"{' ' * INDENT * depth}{item.line}  // {one_line(item.note)}"
    return [line] if len(line) <= WIDTH else [*comment(item.note, depth), *_text(item.line, depth)]


def _block(head: Text, body: Sequence[Item], depth: int) -> list[Line]:
    inner = lines_of(body, depth + 1)
    match inner:
        case [one] if str(head) and not one.text.lstrip().startswith("//"):
            return [*plain(_text(head, depth)), one]
    closed = Line(" " * INDENT * depth + "}")
    if not str(head):
        return [Line(" " * INDENT * depth + "{"), *inner, closed]
    *before, last = _text(head, depth, 2)
    return [*plain(before), Line(f"{last} {{"), *inner, closed]


def _all(conditions: Sequence[Text]) -> Text:
    """The conjunction of conditions."""
    first, *others = conditions
    return Chain((first, *(Joined(("&& ", one)) for one in others))) if others else first


def guarded(conditions: Sequence[Text], body: Sequence[Item]) -> Item:
    """Items under conditions; the conditions of an `if` that is the only item are added to them."""
    item, steps = _bare(*body) if len(body) == 1 else (None, ())
    if isinstance(item, If) and not item.otherwise:
        return If((*conditions, *item.conditions), tuple(WithSteps(one, steps) for one in item.body))
    return If(tuple(conditions), tuple(body))


def _bare(item: Item) -> tuple[Item, tuple[Path, ...]]:
    """An item without its steps, and the innermost steps."""
    steps: tuple[Path, ...] = ()
    while isinstance(item, WithSteps):
        steps = item.steps
        item = item.item
    return item, steps


def one_line(text: str) -> str:
    """A text for the end of a comment: one line without a final backslash, which would continue the comment in the next line."""
    text = " ".join(text.split())
    return _ended(text)


def comment(text: str, depth: int = 0, lead: str = "// ") -> list[str]:
    """A text as a comment on as many lines as needed; those after the first are indented."""
    margin = " " * INDENT * depth
    lines: list[str] = []
    for part in text.splitlines() or [""]:
        line = margin + lead.rstrip()
        for number, word in enumerate(part.split()):
            joint = lead[len(lead.rstrip()) :] if number == 0 else " "
            if number and len(line) + len(joint) + len(word) > WIDTH:
                lines.append(line)
                line, joint = f"{margin}//", "     "
            line += joint + word
            while len(line) > WIDTH:
                lines.append(line[:WIDTH])
                line = f"{margin}//     {line[WIDTH:]}"
        lines.append(line)
    return [_ended(line) for line in lines]
