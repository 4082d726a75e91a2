"""Check scans across blocks: each block publishes the totals of one tile, and waits only for tiles of blocks that started before.

Blocks are numbered in the order in which they start, so a block waits only for blocks that run or have finished, provided that

- the blocks that scan a row have the tiles 0, 1, 2, ... of it in the order of their numbers;
- each block publishes once, outside of loops and conditions, so that every tile before is published.

Then the unfinished block with the lowest number never waits.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from fireiron.check.access_trace import MANY, AccessTrace
from fireiron.check.block_positions import positions_are_ordered
from fireiron.check.finding import Finding
from fireiron.ir import Exec, Kernel, execs
from fireiron.ir.effects.joint_tiles import Combination, JointTiles
from fireiron.ir.look_back import looks_back
from fireiron.values.expr import TRUE, as_expr, constant


def check_look_back(access_trace: AccessTrace) -> tuple[Finding, ...]:
    """An error for each violation of these conditions."""
    return tuple(Finding("race", "error", None, text) for text in dict.fromkeys(_problems(access_trace)))


def _problems(access_trace: AccessTrace) -> Iterator[str]:
    kernel = access_trace.kernel
    scans = [(stmt, around) for stmt, around in execs(kernel.body) if looks_back(stmt)]
    if not scans:
        if kernel.effects[JointTiles].combination is Combination.LOOK_BACK:
            yield "blocks scan tiles of one dimension, but no statement combines their totals"
        return
    if kernel.workspace is None or not kernel.workspace.looks_back:
        yield "the blocks of a scan are not numbered in the order in which they start"
        return
    for stmt, around in scans:
        if around or stmt.performed != TRUE:
            yield f"{_named(stmt)}: not all blocks take part once, because it is in a loop or under a condition"
            continue
        for buffer in _words(stmt):
            if _is_proved(access_trace, stmt, buffer):
                continue
            for sizes in [{}] if constant(kernel.grid) is not None else [_sizes(kernel, target) for target in (300, 5000)]:
                yield from _numbered(access_trace, stmt, buffer, sizes)
    published = [buffer for stmt, _ in scans for buffer in _words(stmt)]
    if len(set(published)) != len(published):
        yield "two scans publish totals in the same words"


def _words(stmt: Exec) -> list[str]:
    return [stmt.operands[name].buffer for name in ("words", "factors") if name in stmt.operands]


def _named(stmt: Exec) -> str:
    return f"the totals {stmt.operands['words'].buffer}"


def _sizes(kernel: Kernel, target: int) -> dict[str, int]:
    return {
        symbol.name: min(max(-(-target // symbol.multiple_of) * symbol.multiple_of, symbol.low), symbol.high) for symbol in kernel.symbols
    }


def _is_proved(access_trace: AccessTrace, stmt: Exec, name: str) -> bool:
    """Whether it is proved for all sizes that the blocks of a row have its tiles in order; rows are counted in whole tiles of blocks."""
    kernel = access_trace.kernel
    access = next(one for one in stmt.accesses if one.buffer == name)
    *rows, tiles = kernel.buffer(name).tensor.shape
    *row, tile = (access_trace.opened(value) for value in access.base)
    index, count = as_expr(0), as_expr(1)
    for place, size, rows_of_tile in zip(row, rows, access.shape, strict=False):
        index, count = index * (size // rows_of_tile) + place // rows_of_tile, count * (size // rows_of_tile)
    return positions_are_ordered(kernel.block, kernel.grid, index, count, tile, tiles, ())


def _numbered(access_trace: AccessTrace, stmt: Exec, name: str, sizes: Mapping[str, int]) -> Iterator[str]:
    """Problems of the tiles of all blocks."""
    kernel = access_trace.kernel
    frame = access_trace.frame([], sizes)
    blocks = int(frame.value(kernel.grid))
    if blocks > MANY:
        yield f"{_named(stmt)}: undecided whether blocks have their tiles in order, since there are too many blocks"
        return
    access = next(one for one in stmt.accesses if one.buffer == name)
    shape = [int(frame.value(size)) for size in kernel.buffer(name).tensor.shape]
    here = access_trace.frame([("block", np.arange(blocks))], sizes)
    *rows, tiles = (np.broadcast_to(here.full(value), (blocks,)) for value in access.base)
    first = np.zeros(blocks, np.int64)
    for row, size in zip(rows, shape, strict=False):
        first = first * size + row
    order = np.lexsort((np.arange(blocks), first))
    first, tiles = first[order], tiles[order]
    starts = np.flatnonzero(np.concatenate(([True], first[1:] != first[:-1])))
    spans = np.diff(np.append(starts, blocks))
    expected = np.arange(blocks) - np.repeat(starts, spans)
    if (spans != shape[-1]).any() or (tiles != expected).any():
        what = f"the blocks of a row do not have its {shape[-1]} tiles in order"
        yield f"{_named(stmt)}: {what}, so a block may wait for one that has not started"


__all__ = ["check_look_back"]
