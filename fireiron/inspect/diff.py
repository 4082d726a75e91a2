"""Compare two strategies: the steps of their trees, and the figures of their kernels."""

from __future__ import annotations

import difflib
import textwrap
from collections.abc import Iterator
from typing import Any, Final

from fireiron.compiler import Program
from fireiron.errors import FireironError
from fireiron.inspect.final_tree import final_tree
from fireiron.inspect.show import ASCII, UNICODE, Figures, Row, figures, rows

Pair = tuple[str, Row | None, Row | None]
"""A mark with the left and right row: `" "` equal, `"<"` or `">"` only left or right, `"|"` different, `"~"` different spec only."""

_SIDE: Final = 66

LEGEND: Final = "  marks: < only left, > only right, | another step or value, ~ the same step with another spec after it"


def aligned(left: Program, right: Program, glyphs: tuple[str, ...] = UNICODE) -> list[Pair]:
    """Return the rows of both trees, with equal steps in one line."""
    first, second = rows(final_tree(left), glyphs), rows(final_tree(right), glyphs)
    matcher = difflib.SequenceMatcher(None, [_key(row) for row in first], [_key(row) for row in second], autojunk=False)
    pairs: list[Pair] = []
    for tag, start, stop, begin, end in matcher.get_opcodes():
        left_rows: list[Row | None] = list(first[start:stop])
        right_rows: list[Row | None] = list(second[begin:end])
        length = max(len(left_rows), len(right_rows))
        left_rows += [None] * (length - len(left_rows))
        right_rows += [None] * (length - len(right_rows))
        pairs += [(_mark(tag, left_row, right_row), left_row, right_row) for left_row, right_row in zip(left_rows, right_rows, strict=True)]
    return pairs


def _key(row: Row) -> tuple[int, str]:
    return row.depth, row.text


def _mark(tag: str, left: Row | None, right: Row | None) -> str:
    if left is None or right is None:
        return ">" if left is None else "<"
    return "|" if tag != "equal" else " " if left.after == right.after else "~"


def compared(left: Program, right: Program) -> list[tuple[str, str, str]]:
    """Return `(name, left, right)` for every figure of the two kernels."""
    return [(name, *values) for name, values in _columns(_figure_table(left), _figure_table(right))]


def _columns(first: dict[str, str], second: dict[str, str]) -> Iterator[tuple[str, tuple[str, str]]]:
    for name in dict.fromkeys([*first, *second]):
        yield name, (first.get(name, "-"), second.get(name, "-"))


def _figure_table(program: Program) -> dict[str, str]:
    """Return the figures of a kernel by name, or its error."""
    leaves = program.tree.open_leaves()
    if leaves:
        return {"threads a block": str(program.grown.threads), "blocks": str(program.grown.grid), "open leaves": str(len(leaves))}
    try:
        kernel_figures = figures(program)
    except FireironError as error:
        return {"threads a block": str(program.grown.threads), "blocks": str(program.grown.grid), "error": error.asked}
    return _rows_of(kernel_figures) | _findings(program)


def _rows_of(figures: Figures) -> dict[str, str]:
    scopes = [scope for scope, _ in figures.barriers]
    table = {
        "threads a block": str(figures.threads),
        "blocks": figures.blocks,
        "block barriers": str(scopes.count("block")),
        "warp barriers": str(scopes.count("warp")),
        "shared bytes, static": str(0 if figures.dynamic_shared else figures.shared),
        "shared bytes, dynamic": str(figures.dynamic_shared),
        "registers for arrays": str(figures.registers),
    }
    table |= {"preceding launches": str(len(figures.launches))} if figures.launches else {}
    table |= {f"tunable {name}": str(value) for name, value in figures.chosen}
    return table | {f"bytes of {name} in {memory}": size for name, memory, _, size, _ in figures.buffers if memory != "GL"}


def _findings(program: Program) -> dict[str, str]:
    from fireiron.check import check

    findings = [finding for launch in program.launches for finding in check(launch.program.ir)]
    return {f"{severity}s": str(sum(finding.severity == severity for finding in findings)) for severity in ("error", "warning", "note")}


def equal(left: Program, right: Program) -> bool:
    """Return whether both programs have the same steps, values, spec and target."""
    return (left.strategy, left.spec, left.architecture, left.chosen) == (right.strategy, right.spec, right.architecture, right.chosen)


def diff(
    left: Program, right: Program, names: tuple[str, str], glyphs: tuple[str, ...] = UNICODE, columns: int | None = None
) -> Iterator[str]:
    """Yield the text of `fireiron diff`, with steps folded to the given number of columns."""
    from tabulate import tabulate

    if equal(left, right):
        yield f"{names[0]} and {names[1]} are equal: the same steps, for {left.spec} on {left.architecture}"
        return
    pairs = aligned(left, right, glyphs)
    side = None if columns is None else (columns - len("  " + " | ")) // 2
    cells = [(mark, _within(_cell(left_row), side), _within(_cell(right_row), side)) for mark, left_row, right_row in pairs]
    width = min(max(len(line) for _, cell, _ in cells for line in cell), _SIDE)
    yield f"  {names[0]:<{width}} | {names[1]}".rstrip()
    yield f"  {'-' * width}-+-{'-' * width}"
    for mark, left_cell, right_cell in cells:
        for position in range(max(len(left_cell), len(right_cell))):
            left_line = left_cell[position] if position < len(left_cell) else ""
            right_line = right_cell[position] if position < len(right_cell) else ""
            yield f"{mark if position == 0 else ' '} {left_line:<{width}} | {right_line}".rstrip()
    yield LEGEND
    if str(left.spec) != str(right.spec):
        yield f"  the problems differ: {left.spec} and {right.spec}; -M, -N, -K and --size set sizes of both"
    inside = differences(left, right)
    if inside:
        yield "\n" + "\n".join(inside)
    table = [[" " if one == other else "|", name, one, other] for name, one, other in compared(left, right)]
    yield "\n" + tabulate(table, headers=["", "", *names], disable_numparse=True, colalign=("left", "left", "right", "right"))


def differences(left: Program, right: Program) -> list[str]:
    """Return the differences of corresponding steps that their summaries do not show, such as mappings of tasks."""
    pairs = zip(left.strategy.steps, right.strategy.steps, strict=False)
    return [line for one, other in pairs if type(one) is type(other) for line in one.differences(other)]


def _within(lines: list[str], side: int | None) -> list[str]:
    """Return the lines of a cell, folded to the width of a side."""
    if side is None:
        return lines
    return [part for line in lines for part in textwrap.wrap(line, side, subsequent_indent="    ", drop_whitespace=False)]


def _cell(row: Row | None) -> list[str]:
    """Return the lines of a step. The spec after the step is on a separate line."""
    if row is None:
        return [""]
    rail = "".join(glyph if glyph in "│| " else " " for glyph in row.prefix)
    rail = rail[:-3] + {UNICODE[0]: UNICODE[2], ASCII[0]: ASCII[2]}.get(row.prefix[-3:], "   ") if row.prefix else ""
    lines = [row.prefix + row.text]
    if row.after:
        lines.append(f"{rail}  {row.after}")
    return [part for line in lines for part in _wrapped(line, rail)]


def _wrapped(line: str, rail: str) -> list[str]:
    parts = [line[:_SIDE]]
    rest = line[_SIDE:]
    room = max(_SIDE - len(rail) - 4, 16)
    while rest:
        parts.append(f"{rail}    {rest[:room]}")
        rest = rest[room:]
    return parts


def as_dict(left: Program, right: Program, names: tuple[str, str]) -> dict[str, Any]:
    """Return the comparison as plain values, for JSON."""
    steps = [{"mark": mark.strip() or "=", "left": _plain(one), "right": _plain(other)} for mark, one, other in aligned(left, right)]
    table = {name: [one, other] for name, one, other in compared(left, right)}
    inside = differences(left, right)
    same = {"left": names[0], "right": names[1], "equal": equal(left, right)}
    return {**same, "steps": steps, **({"inside": inside} if inside else {}), "figures": table}


def _plain(row: Row | None) -> list[str] | None:
    return None if row is None else [row.text, row.after]
