"""The blocks and threads of a spec in Graphene's notation: `<<<#kernel:[8,8]:[1,8].block, #block:[16,16]:[1,16].thread>>>`.

    execution  "<<<" [group ","] group ">>>"     blocks and the threads of each; one group: the threads, or the blocks of the kernel

A spec has a level. An execution also specifies how the blocks of a kernel and the threads of a block are arranged, as tensors of their
indices. `execution_of` derives both from a decomposition tree. `_` in a text, and None in a value, leave the number to the strategy.

Source: Graphene (ASPLOS 2023), section 5.1, Figures 1d, 7 and 8.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeAlias

from fireiron.errors import LayoutError
from fireiron.frozen import frozen
from fireiron.language.tree import Node, Whole
from fireiron.values.expr import Expr, constant
from fireiron.values.layout import Layout
from fireiron.values.machine import LEVELS, Block, Kernel, Level
from fireiron.values.notation import Symbols, group_text, level_text, parse_group, parse_level
from fireiron.values.units import BLOCK, THREAD

Shapes: TypeAlias = "tuple[Layout, ...]"
"""Units arranged in nested shapes, the outermost first, as layouts over their indices."""


@frozen
class Execution:
    """The arrangement of a kernel's blocks and of the threads of each; None: that of the level.

    >>> Execution(threads=(Layout((16, 16)),)).threads[0].size()
    256
    """

    blocks: Shapes | None = None
    threads: Shapes | None = None


def execution_text(level: Level, execution: Execution) -> str:
    """Return the text between `<<<` and `>>>` for a spec of a level.

    >>> from fireiron import Warp
    >>> print(execution_text(Warp, Execution()), execution_text(Block, Execution(threads=(Layout(64),))), sep="; ")
    [1].block, #warp:[32].thread; [1].block, #block:[64].thread
    """
    if level.is_above_launch:
        return level_text(level)
    inner = Block if level.is_launch else level
    blocks = level_text(Kernel) if level.is_launch else "[1].block"
    blocks = blocks if execution.blocks is None else group_text(execution.blocks, level.label, "block")
    threads = level_text(inner) if execution.threads is None else group_text(execution.threads, inner.label, "thread")
    return f"{blocks}, {threads}"


def parse_execution(groups: list[str], symbols: Symbols, own: int | None = None) -> tuple[Level, Execution]:
    """Return the level of one group, or of the paper's two groups, and the arrangement of units if it differs from that of the level.

    In a kernel whose blocks have `own` threads, a group of all these threads is the block, in any arrangement.
    """
    parsed = [parse_group(group) for group in groups]
    units = [unit for _, unit, _ in parsed]
    if units == ["gpu"]:
        return parse_level(groups[0]), Execution()
    if units not in (["block"], ["thread"], ["block", "thread"]):
        raise LayoutError(
            f"<<<{', '.join(groups)}>>> is not an execution", legal="<<<#threads>>>, <<<#blocks, #threads>>>, or <<<#node:[2].gpu>>>"
        )
    blocks = parsed[0][2] if units[0] == "block" else (Layout(1),)
    if blocks is None or count_units(blocks) > 1 or parsed[0][0] == Kernel.label:
        threads = parsed[1][2] if len(parsed) > 1 else None
        return Kernel, Execution(blocks, threads)
    if len(parsed) == 1 and units == ["block"]:
        return Block, Execution()
    name, _, threads = parsed[-1]
    level = _level(name, threads, groups[-1], symbols, len(parsed) > 1, own)
    plain = threads is None or (level.layout is not None and len(threads) == 1 and _leaves(threads) == _leaves((level.layout,)))
    return level, Execution(threads=None if plain else threads)


def _level(name: str, threads: Shapes | None, text: str, symbols: Symbols, in_a_block: bool, own: int | None) -> Level:
    """Return the level with these threads: the named level, or the first, or the block if these are all of its threads."""
    known = (*(symbol for symbol in symbols.values() if isinstance(symbol, Level)), *LEVELS)
    fitting = [level for level in known if (level == Block if threads is None else _same(level, threads))]
    named = [level for level in known if level.label == name and (level in fitting or (level == Block and threads is not None))]
    if not named and name and not name.isdecimal():
        raise LayoutError(f"{text.strip()!r} is not a level", legal=[level_text(level) for level in known])
    whole = in_a_block if own is None else threads is not None and _set(threads) == [(own, 1)]
    if not (named or fitting) and not whole:
        legal = [level_text(level) for level in known]
        raise LayoutError(
            f"no level has the units of {text.strip()!r}",
            legal=legal if own is None else [*legal, f"[{own}].thread, all threads of a block"],
        )
    return (named or fitting or [Block])[0]


def _same(level: Level, threads: Shapes) -> bool:
    """Return whether shapes arrange the threads of one unit of a level."""
    return level.layout is not None and _set(threads) == _set((level.layout,))


def _leaves(shapes: Shapes) -> list[tuple[int, int]]:
    return [leaf for shape in shapes for leaf in shape.modes if leaf[0] > 1]


def _set(shapes: Shapes) -> list[tuple[int, int]]:
    """Return the set of indices of shapes, as leaves by ascending stride, with contiguous leaves merged."""
    merged: list[tuple[int, int]] = []
    for stride, size in sorted((stride, size) for size, stride in _leaves(shapes)):
        if merged and merged[-1][0] * merged[-1][1] == stride:
            size, stride = merged[-1][0] * size, merged.pop()[1]
        merged.append((size, stride))
    return merged


def count_units(shapes: Shapes) -> int:
    """Return the number of blocks or threads in an arrangement."""
    return math.prod(shape.size() for shape in shapes)


# ------------------------------------------------------------------------------------------------------ in a decomposition tree


def execution_of(node: Node, whole: Whole, threads: int | None) -> Execution:
    """Return how the units that compute a spec are arranged: blocks by the tiles of its result per block, threads by those per thread.

    Units are arranged by the result's dimensions if each tile coordinate is a digit of the unit's index; otherwise in a row. `threads` is
    the number of threads of a block.
    """
    blocks = None
    if node.spec.level.is_launch and whole.grid is not None and (grid := constant(whole.grid)) is not None:
        blocks = (_arranged(node, lambda level: level == Block, BLOCK, grid, whole),)
    if node.spec.level not in (Kernel, Block) or threads is None:
        return Execution(blocks)
    return Execution(blocks, (_arranged(_first(node, Block), lambda level: level.parent == Block, THREAD, threads, whole),))


def _first(node: Node, level: Level) -> Node:
    """Return the first node of a level at or below a node; the node itself if there is none."""
    return next((inner for inner in node.nodes() if inner.spec.level == level and not inner.spec.allocates), node)


def _arranged(node: Node, is_level: Callable[[Level], bool], unit: Expr, count: int, whole: Whole) -> Layout:
    """Return `count` units, arranged by the digits of the result's dimensions that are distributed over them."""
    row = Layout((count,), (1,))
    below = next((inner for inner in node.nodes() if is_level(inner.spec.level) and inner.spec.kind == node.spec.kind), None)
    if below is None or below.spec.level.threads not in (None, 1) or not node.spec.outputs:
        return row
    name = node.spec.outputs[0]
    before, after = (each.spec.operands[name].numerals for each in (node, below))
    if name not in below.spec.operands or len(before) != len(after):
        return row
    added = [inner.fixed[len(outer.fixed) :] for outer, inner in zip(before, after, strict=True)]
    dims = [[_digit(coordinate.index, unit, count, whole) for coordinate in fixed] for fixed in added]
    if any(digit is None for dim in dims for digit in dim):
        return row
    digits = [sorted(digit for digit in dim if digit is not None) for dim in dims]
    shape = tuple(_tree([size for _, size in dim] or [1]) for dim in digits)
    stride = tuple(_tree([step for step, _ in dim] or [0]) for dim in digits)
    arranged = Layout(shape, stride)
    return arranged if arranged.is_bijective() and arranged.size() == count else row


def _tree(leaves: list[int]) -> Any:
    return leaves[0] if len(leaves) == 1 else tuple(leaves)


def _digit(index: Expr, unit: Expr, count: int, whole: Whole) -> tuple[int, int] | None:
    """Return (stride, size) if an index is a digit of the unit's index; otherwise None."""
    while not index.variables().isdisjoint(whole.definitions):
        index = index.substitute({var: whole.definitions[var] for var in index.variables() & set(whole.definitions)})
    names = {var.name for var in index.variables()}
    if names - {unit.name} or count > 1 << 16:  # type: ignore[attr-defined]
        return None
    values = [int(index.evaluate(dict.fromkeys(names, number))) for number in range(count)]
    if values[0]:
        return None
    stride, size = next((number for number, value in enumerate(values) if value), count), max(values) + 1
    return (stride, size) if values == [number // stride % size for number in range(count)] else None
