"""`short_rows`: several rows per warp, for rows that fill few lanes, such as the elements of an attention head."""

from __future__ import annotations

import math
from typing import Any, ClassVar, Final

from fireiron.derive.facts import Facts
from fireiron.derive.rule import Rule, Skeleton
from fireiron.derive.rules.rows import LANES, Rows, main_arrays, own_dims, row_dim
from fireiron.derive.sketch import Decision, Sketch, call
from fireiron.frozen import frozen
from fireiron.specs.move import Move
from fireiron.values.machine import RF, Block, Lane, Warp

RANK = 19

WARPS: Final = (4, 2, 8, 1)
"""Warps of a block."""

MOST_PADDED: Final = 1.25
"""Rows of all tiles along a dimension, relative to its extent: with more, too many lanes have rows past the end."""


@frozen
class ShortRows(Skeleton):
    """The lanes of a warp share several rows, so that none is idle. Reductions are shuffles among the lanes of a row.

    A block has rows along the dimension that other arrays lack: they share the elements of these arrays in the cache. Arrays without this
    dimension are read by the steps that need them.
    """

    name: ClassVar[str] = "short_rows"

    def refusal(self, facts: Facts) -> str:
        reason = Rows().refusal(facts)
        if reason:
            return reason
        along = row_dim(facts)
        if along in facts.loops:
            return "rows are read in a loop"
        if not _row_dims(facts, along):
            return "no array has several rows"
        lanes = _lanes(facts, along, _widest(facts, along))
        return f"a row of {along} has vectors for more than half of the lanes of a warp" if 2 * lanes > LANES else ""

    def sketch(self, facts: Facts) -> Sketch:
        along = row_dim(facts)
        dims, shape = _row_dims(facts, along), _shape(facts, along)
        because = f"a row of {along} has too few vectors for the lanes of a warp, so several rows share a warp"
        sketch = Sketch(self.name, because, facts.spec.starter).deciding(shape)
        tile: dict[str, Any] = {dim: shape[f"rows_{dim}"] if dim in dims else 1 for dim in facts.parallel}
        sketch = sketch.then("blocks", call("tile", **tile), call("to", Block))
        several_dims = {dim for dim in dims if any(option[f"rows_{dim}"] > 1 for option in shape.options)}
        for name in main_arrays(facts, along):
            if several_dims <= set(own_dims(facts, name)):
                copy = _several_rows(own_dims(facts, name), along, dims, shape)
                sketch = sketch.then(f"load {name}", call("load", name, RF, copy))
        for step in facts.steps:
            target = tuple(dim for dim in step.formula.target.dims if dim not in facts.batch)
            if step.formula.copies and step.formula.output in facts.spec.outputs and {along, *several_dims} <= set(target):
                sketch = sketch.then(f"store {step.name}", call("step", step.name, _several_rows(target, along, dims, shape)))
        return sketch.then("done", call("done"))


def _several_rows(own: tuple[str, ...], along: str, dims: tuple[str, ...], shape: Decision) -> Any:
    """Return the copy of the rows of a warp, of which each lane has a vector."""
    sizes: dict[str, Any] = {**{dim: shape[f"warp_{dim}"] for dim in dims}, along: shape["lanes"] * shape["vector"]}
    vectors = (shape["vector"] if dim == along else 1 for dim in own)
    return Move.tile(*(sizes.get(dim, 1) for dim in own)).to(Warp).tile(*vectors).to(Lane).done()


def _row_dims(facts: Facts, along: str) -> tuple[str, ...]:
    """Return the dimensions of which a block may have several rows: those that most arrays lack first, then the last ones."""
    names = main_arrays(facts, along)
    if not names:
        return ()
    largest = max(names, key=lambda name: math.prod(map(facts.about, own_dims(facts, name))))
    dims = [dim for dim in reversed(own_dims(facts, largest)) if dim in facts.parallel]
    return tuple(sorted(dims, key=lambda dim: -sum(dim not in facts.dims_of(name) for name in names)))


def _widest(facts: Facts, along: str) -> int:
    """Return the widest vector that all arrays of rows allow, and that divides a row."""
    return math.gcd(min(facts.vector(name) for name in main_arrays(facts, along)), facts.about(along))


def _lanes(facts: Facts, along: str, vector: int) -> int:
    """Return the lanes of a row, a power of two as shuffles need it."""
    return 1 << (-(-facts.about(along) // vector) - 1).bit_length()


def _shape(facts: Facts, along: str) -> Decision:
    """Return the decision about the rows of a block and of a warp, and the lanes of a row."""
    options = []
    dims, widest = _row_dims(facts, along), _widest(facts, along)
    widths = [width for width in (8, 4, 2, 1) if widest % width == 0 and _lanes(facts, along, width) <= LANES]
    for vector in dict.fromkeys((widest, *widths)):
        lanes = _lanes(facts, along, vector)
        for warps in WARPS:
            block, warp = (_spread(facts, dims, count) for count in (warps * LANES // lanes, LANES // lanes))
            rows = {f"rows_{dim}": count for dim, count in block.items()} | {f"warp_{dim}": count for dim, count in warp.items()}
            options.append({"vector": vector, "lanes": lanes, **rows})
    text = " x ".join(f"{{warp_{dim}}} of {dim}" for dim in dims)
    because = f"{facts.about(along)} elements of a row in {{lanes}} lanes with a vector of {{vector}}; rows of a warp: {text}"
    return Decision("row", tuple(options), because)


def _spread(facts: Facts, dims: tuple[str, ...], count: int) -> dict[str, int]:
    """Return how many rows along each dimension give `count` rows; fewer if the dimensions are too small."""
    rows = {}
    for dim in dims:
        extent, size = facts.about(dim), 1
        while 2 * size <= count and -(-extent // (2 * size)) * 2 * size <= MOST_PADDED * extent:
            size *= 2
        rows[dim] = size
        count //= size
    return rows


RULES: tuple[Rule, ...] = (ShortRows(),)
