"""The picture `tree`: a box for each spec of the main chain, the steps between them, side paths to the right."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import attrs

from fireiron.compiler import Program
from fireiron.draw import colors
from fireiron.draw.picture import Page, Picture
from fireiron.draw.shapes import INK, PALE, Line, Rect, text_width, wrapped
from fireiron.frozen import frozen
from fireiron.inspect.final_tree import final_tree
from fireiron.inspect.show import main_child, short
from fireiron.ir import Barrier, For, Kernel, Stmt, execs, located, statements
from fireiron.ir.asks.pipelined import Pipelined
from fireiron.language.tree import Node
from fireiron.spec import Spec
from fireiron.values.expr import constant
from fireiron.values.machine import Level, Memory
from fireiron.values.sharer import BLOCK, GRID, THREAD
from fireiron.values.tensor import Tensor

WIDTH: Final = 900
_BOX: Final = 452.0
_SIDE: Final = 500.0
_SIDE_WIDTH: Final = 384.0
_SMALL: Final = 9.0


@frozen
class Facts:
    """Facts of the kernel for the tree, if it is complete: barriers by loop variable, buffer sizes, blocks and threads."""

    threads: int | None
    blocks: str
    barriers: dict[str, list[str]] = attrs.field(factory=dict)
    sizes: dict[str, str] = attrs.field(factory=dict)
    copies: dict[str, int] = attrs.field(factory=dict)
    lines: tuple[str, ...] = ()


def tree(program: Program) -> Picture:
    """Draw the picture; a tree may have open leaves."""
    facts = _facts(program)
    page = Page()
    page.heading(f"Decomposition: {program.spec}")
    y = 48.0
    for line in facts.lines:
        y = page.paragraph(16, y, line)
    y += 4
    known: set[str] = set()
    node: Node | None = final_tree(program)
    while node is not None:
        y = _box(page, y, node.spec, facts, known)
        known |= {view.tensor.name for view in node.spec.operands.values()}
        main = main_child(node)
        y = _edge(page, y, node, main[1] if main is not None else None, facts, known)
        node = None if main is None else main[1]
    y = _key(page, y + 14)
    return page.picture("tree", f"Decomposition tree: {program.spec}", WIDTH, y)


def _facts(program: Program) -> Facts:
    grid_tree = program.grown
    if program.tree.open_leaves():
        lines = [f"{program.architecture.name}: {grid_tree.threads or 'not yet known how many'} threads a block, {grid_tree.grid} blocks. "]
        lines += ["Open, so that there is no kernel yet: " + "; ".join(map(str, program.tree.open_leaves()[:3]))]
        return Facts(grid_tree.threads, str(grid_tree.grid), lines=tuple(lines))
    kernel = program.lowered
    registers = sum(-(-buffer.bytes // 4) for buffer in kernel.buffers if buffer.memory.private)
    line = f"{kernel.architecture.name}: {kernel.grid} blocks of {kernel.threads} threads, "
    line += f"{_bytes(kernel.shared_bytes)} of shared memory per block, {registers} registers per thread for arrays."
    lines = [line]
    if program.chosen:
        lines.append("Tunables: " + ", ".join(f"{name} = {value}" for name, value in program.chosen.items()) + ".")
    barriers: dict[str, list[str]] = {}
    for loop, text in _barriers(kernel.body):
        barriers.setdefault(loop, []).append(text)
    if barriers.get(""):
        lines.append("Barriers outside all loops: " + "; ".join(_counted(barriers[""])) + ".")
    copies = {buffer.name: buffer.tensor.copies for buffer in kernel.buffers}
    return Facts(kernel.threads, str(kernel.grid), barriers, _buffer_sizes(kernel), copies, tuple(lines))


def _barriers(body: Sequence[Stmt]) -> Iterator[tuple[str, str]]:
    """Yield `(innermost loop, purpose of the barrier)` in program order."""
    for statement, around in located(body):
        if isinstance(statement, Barrier):
            loops = [stmt.var.name for stmt in around if isinstance(stmt, For)]
            yield loops[-1] if loops else "", f"{statement.scope} barrier" + (f" ({statement.reason})" if statement.reason else "")


def _counted(texts: Sequence[str]) -> Iterator[str]:
    """Yield the distinct texts with their counts."""
    for text in dict.fromkeys(texts):
        count = texts.count(text)
        yield text if count == 1 else f"{count} × {text}"


def _bytes(count: int) -> str:
    return f"{count // 1024} KiB" if count >= 1024 and count % 1024 == 0 else f"{count} bytes"


def _buffer_sizes(kernel: Kernel) -> dict[str, str]:
    sizes = {}
    for buffer in kernel.buffers:
        if buffer.memory.private:
            count = -(-buffer.bytes // 4)
            sizes[buffer.name] = f"{count} register{'s' if count != 1 else ''} a thread"
        elif constant(buffer.total) is not None:
            sizes[buffer.name] = _bytes(buffer.bytes)
    return sizes


# ---------------------------------------------------------------------------------------------- boxes


def _box(page: Page, y: float, spec: Spec, facts: Facts, known: set[str]) -> float:
    """Draw the box of a spec; return its lower edge."""
    page.add(Rect(16, y, _BOX, 48, "#ffffff", "#57606a", 1.2, 5.0))
    page.add(Rect(16, y, _BOX, 20, _level_color(spec.level), "#57606a", 1.2, 5.0))
    size = min(11.0, (_BOX - 110) / (len(str(spec)) * 0.61))
    page.text(24, y + 14, str(spec), round(size, 1), mono=True, bold=True)
    page.text(16 + _BOX - 8, y + 14, _units(spec.level, facts), 9.5, anchor="end", color=INK)
    x = 24.0
    chips = list(_chips(spec))
    size = 9.5
    while size > 6 and sum(text_width(text, size, True) + 15 for text, _, _ in chips) > _BOX - 10:
        size -= 0.5
    for text, fill, title in chips:
        x = page.chip(x, y + 26, text, fill, size, title)
    return y + 48


def _chips(spec: Spec) -> Iterator[tuple[str, str, str]]:
    for name, view in spec.operands.items():
        if view.memory.is_coordinate:
            continue
        shape = "×".join(map(str, view.shape))
        memory = view.memory.name
        title = f"{name} is {shape} of {view.tensor.name}, {view.dtype.name} in {memory}"
        yield f"{name} {shape} {memory}", _memory_color(view.memory), title


def _memory_color(memory: Memory) -> str:
    """Return the color of a memory; a user-defined memory has that of the built-in memory with the same scope."""
    similar = "FR" if memory.fragment else {GRID: "GL", BLOCK: "SH", THREAD: "RF"}[memory.shared_by]
    return colors.MEMORY[similar]


def _level_color(level: Level) -> str:
    return colors.LANE_LEVEL if level.threads == 1 else colors.LEVELS.get(level.label, "#e6e6e6")


def _units(level: Level, facts: Facts) -> str:
    """Return the text of the number of units of a level."""
    if level.label == "kernel":
        return "the whole grid"
    if level.label == "block":
        return f"{facts.blocks} blocks" if len(facts.blocks) < 12 else "blocks"
    if level.threads is None or facts.threads is None:
        return str(level)
    count = facts.threads // level.threads
    if level.threads == 1:
        return f"{count} threads a block"
    label = level.label.replace("_", "-")
    return f"{count} {label}{'s' if count != 1 else ''} of {level.threads} threads"


# ---------------------------------------------------------------------------------------------- edges


def _edge(page: Page, y: float, node: Node, child: Node | None, facts: Facts, known: set[str]) -> float:
    """Draw a step with its allocations, loops, barriers and side paths; return where the next box starts."""
    if node.step is None:
        page.add(Line(((44, y), (44, y + 14)), "#57606a", 1.4, True))
        page.text(56, y + 16, "open: not decomposed yet", 11, color="#a40e26", bold=True)
        return y + 26
    top = y
    y += 8
    for line in wrapped("." + short(node.step), 68):
        page.text(56, y + 9, line, 10.0, mono=True)
        y += 13
    ends = 56 + max(text_width(line, 10.0, True) for line in wrapped("." + short(node.step), 68))
    sides = [pair for pair in node.children if child is None or pair[1] is not child]
    for text, fill, title in _marks(node, sides, child, facts, known):
        for position, line in enumerate(wrapped(text, 70)):
            page.chip(56 + (10 if position else 0), y, line, fill, 9.0, title)
            y += 17
    if child is None and not sides:
        names = dict.fromkeys(_performed(node))
        page.add(Rect(56, y + 2, text_width(_by(names), 10.5, True) + 16, 20, "#24292f", radius=4))
        page.text(64, y + 16, _by(names), 10.5, mono=True, color="#ffffff")
        y += 24
    low = top + 2
    for name, side in sides:
        middle = low + 10
        start = ends + 8 if name == sides[0][0] else 44
        if start < _SIDE:
            page.add(Line(((start, middle), (_SIDE, middle)), "#8c959f", 1.0, True))
        low = _side(page, low, name, side)
    bottom = max(y + 4, low, top + 18)
    page.add(Line(((44, top), (44, bottom - 1 if child is not None else y - 12)), "#57606a", 1.4, arrow=child is not None))
    return bottom


def _by(names: dict[str, None]) -> str:
    text = ", ".join(names) or "no statement"
    return text if len(text) <= 56 else text[:53] + "..."


def _performed(node: Node) -> Iterator[str]:
    for statement, _ in execs(node.program):
        yield statement.instruction.name


def _marks(
    node: Node, sides: Sequence[tuple[str, Node]], child: Node | None, facts: Facts, known: set[str]
) -> Iterator[tuple[str, str, str]]:
    """Yield `(text, color, tooltip)` of the buffers that a step allocates, of its loops and their barriers."""
    nodes = [child for _, child in node.children]
    for tensor in _new(nodes, known):
        shape = "×".join(map(str, tensor.shape))
        size = facts.sizes.get(tensor.name, "")
        number = facts.copies.get(tensor.name, tensor.copies)
        copies = f", {number} copies" if number > 1 else ""
        text = f"allocates {tensor.name}: {shape} {tensor.dtype.name} in {tensor.memory.name}{copies}" + (f", {size}" if size else "")
        yield text, _memory_color(tensor.memory), f"storage {tensor.layout}"
    for statement in statements(node.program):
        if isinstance(statement, For):
            extent = statement.extent
            stages = statement.asks[Pipelined].stages
            text = f"loop {statement.var}: {extent} iterations" + (f", {stages} stages in flight" if stages > 1 else "")
            text += ", unrolled" if statement.unroll else ""
            yield text, "#eaeef2", ""
            for barrier in _counted(facts.barriers.get(statement.var.name, [])):
                yield f"in each iteration of {statement.var}: {barrier}", "#ffd8d3", ""


def _new(nodes: Sequence[Node], known: set[str]) -> Iterator[Tensor]:
    seen = set(known)
    for node in nodes:
        for view in node.spec.operands.values():
            if view.tensor.name not in seen:
                seen.add(view.tensor.name)
                yield view.tensor


def _side(page: Page, y: float, name: str, node: Node) -> float:
    """Draw a side path as a small list in a frame; return its lower edge."""
    lines = list(_listed(node, 0))
    letters = int((_SIDE_WIDTH - 16) / (_SMALL * 0.605))
    rows: list[tuple[str, bool]] = [(line, False) for line in wrapped(f"{name}: {node.spec}", letters)]
    rows = [(line, True) for line, _ in rows]
    for line in lines:
        step, arrow, after = line.partition(" → ")
        depth = " " * (len(line) - len(line.lstrip()) + 4)
        parts = wrapped(line, letters) if len(line) <= letters or not arrow else [*wrapped(step, letters), f"→ {after}"]
        rows += [(parts[0], False), *((depth + part, False) for part in parts[1:])]
    height = len(rows) * 12.5 + 8
    page.add(Rect(_SIDE, y, _SIDE_WIDTH, height, "#f6f8fa", "#d1d9e0", 1.0, 4.0))
    for position, (line, bold) in enumerate(rows):
        page.text(_SIDE + 8, y + 13 + position * 12.5, line, _SMALL, mono=True, bold=bold)
    return y + height + 5


def _listed(node: Node, depth: int) -> Iterator[str]:
    """Yield the steps of a side path, each with the spec after it; its own side paths are indented."""
    here: Node | None = node
    indent = "  " * depth
    while here is not None:
        if here.step is None:
            yield f"{indent}open"
            return
        main = main_child(here)
        after = f" → {main[1].spec}" if main is not None else f" → {_by(dict.fromkeys(_performed(here)))}" if not here.children else ""
        yield f"{indent}.{short(here.step)}{after}"
        for name, side in here.children:
            if main is None or side is not main[1]:
                yield f"{indent}  {name}: {side.spec}"
                yield from _listed(side, depth + 2)
        here = None if main is None else main[1]


def _key(page: Page, y: float) -> float:
    page.text(16, y + 9, "Bars are colored by level, operands and buffers by memory:", 9.5, color=PALE)
    entries: list[tuple[str, Any]] = [("Kernel", colors.LEVELS["kernel"]), ("Block", colors.LEVELS["block"])]
    entries += [("Warp", colors.LEVELS["warp"]), ("Thread, Lane", colors.LANE_LEVEL)]
    memories = {"GL": "GL global", "SH": "SH shared", "RF": "RF registers", "FR": "FR fragments"}
    entries += [(memories[name], color) for name, color in colors.MEMORY.items()]
    return page.legend(16, y + 18, [(color, text) for text, color in entries], 868, 9.5)
