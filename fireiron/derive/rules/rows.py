"""`rows`: whole rows in the registers of warps, for sums, maxima and scans along the contiguous dimension."""

from __future__ import annotations

import math
from typing import Any, ClassVar, Final

from fireiron.derive.facts import Facts
from fireiron.derive.rule import Rule, Skeleton
from fireiron.derive.sketch import Decision, Sketch, Values, call
from fireiron.frozen import frozen
from fireiron.specs.move import Move
from fireiron.values.machine import RF, Block, Lane, Warp

RANK = 20

LANES: Final = 32

WARPS_BY_ELEMENTS: Final = ((16, 1), (32, 2), (64, 4), (256, 8), (1024, 16))
"""Pairs (elements, warps): the warps of a row by the elements that a lane of one warp would have (measured on an H200, `_rows.fitting`)."""

WARPS: Final = 32
"""Maximum number of warps of a block."""

MOST_ELEMENTS: Final = 160
"""32-bit elements of rows that a thread may have in registers."""

MANY: Final = 4096
"""Rows from which one warp for each of them keeps all SMs busy."""

ERROR: Final = 0.15
"""Error of the predicted times of rows: which of two warps or iterations is faster is predicted right in half of the cases."""

CHUNKS: Final = (8, 4, 16, 2)
"""Warps that share the elements of one iteration of a loop along the row."""


@frozen
class Rows(Skeleton):
    """A block has whole rows, or an iteration has a part of a row; each lane has vectors of it in registers.

    Reductions are shuffles, and use shared memory if several warps share a row.
    """

    name: ClassVar[str] = "rows"

    def refusal(self, facts: Facts) -> str:
        if facts.definition is None:
            return "the spec has no named steps"
        if any(product.rows and product.columns for product in facts.products):
            return "it multiplies matrices"
        along = row_dim(facts)
        if not along:
            return "no step reduces or scans the contiguous dimension of an array that it reads"
        if along not in facts.loops and facts.extent(along) is None:
            return f"rows are in registers, so the extent of {along} must be a constant"
        return ""

    def sketch(self, facts: Facts) -> Sketch:
        along = row_dim(facts)
        looped = along in facts.loops
        names = main_arrays(facts, along)
        sketch = Sketch(self.name, f"{along} is reduced and contiguous, so a row stays in registers", facts.spec.starter, gain=ERROR)
        rows, shape = _rows_dim(facts, along), _shape(facts, along, names)
        sketch = sketch.deciding(shape).bounded(lambda values: _registers(values, len(names)))
        tile: dict[str, Any] = {dim: shape["rows"] if dim == rows else 1 for dim in facts.parallel}
        sketch = sketch.then("blocks", call("tile", **tile), call("to", Block)) if tile else sketch
        warps = shape["warps"] if looped else 1
        piece = LANES * shape["vector"] * shape["iterations"]
        for dim in facts.loops:
            sketch = sketch.then(f"loop {dim}", call("split", **{dim: warps * piece if dim == along else 1}))
        for name in names:
            copy = _pieces(facts.dims_of(name), facts, along, piece, shape["vector"]).done()
            sketch = sketch.then(f"load {name}", call("load", name, RF, copy))
        for name in facts.arrays:
            if name not in names and facts.dims_of(name) == (along,):
                sketch = sketch.then(f"load {name}", call("load", name, RF, Move.done()))
        for step in facts.steps:
            if step.formula.copies and step.formula.output in facts.spec.outputs and along in step.formula.target.dims:
                store = _pieces(step.formula.target.dims, facts, along, piece, shape["vector"]).done()
                sketch = sketch.then(f"store {step.name}", call("step", step.name, store))
        return sketch.then("done", call("done"))


def row_dim(facts: Facts) -> str:
    """Return the dimension of rows: reduced or scanned, and contiguous in an array that is read; empty if there is none."""
    along = [dim for step in (*facts.reductions, *facts.scans) for dim in (*step.formula.over, *step.formula.along)]
    along += [dim for product in facts.products for dim in product.over]
    wide = [dim for dim in dict.fromkeys(along) if any(facts.contiguous(name) == dim for name in facts.arrays)]
    wide = [dim for dim in wide if dim not in facts.parallel]
    return max(wide, key=facts.about) if wide else ""


def main_arrays(facts: Facts, along: str) -> tuple[str, ...]:
    """Return the arrays of rows: those with the dimension of rows, contiguous, and another one."""
    return tuple(name for name in facts.arrays if facts.contiguous(name) == along and len(own_dims(facts, name)) > 1)


def own_dims(facts: Facts, name: str) -> tuple[str, ...]:
    """Return the dimensions of an operand in a block, which has one element of each batch dimension."""
    return tuple(dim for dim in facts.dims_of(name) if dim not in facts.batch)


def _rows_dim(facts: Facts, along: str) -> str:
    """Return the dimension of which a block may have several rows: the last parallel one of the largest array."""
    names = main_arrays(facts, along)
    dims = [dim for name in names for dim in facts.dims_of(name) if dim in facts.parallel and dim not in facts.batch]
    return dims[-1] if dims else (facts.parallel[-1] if facts.parallel else "")


def _pieces(dims: tuple[str, ...], facts: Facts, along: str, piece: Any, vector: Any) -> Any:
    """Return the copy of a row in pieces of a warp, of which each lane has vectors: the result of steps in registers has them, too."""
    own = [dim for dim in dims if dim not in facts.batch]
    sizes, lanes = ([size if dim == along else 1 for dim in own] for size in (piece, vector))
    return Move.tile(*sizes).to(Warp).tile(*lanes).to(Lane)


def _shape(facts: Facts, along: str, names: tuple[str, ...]) -> Decision:
    """Return the decision about the distribution of a row."""
    size = facts.about(along)
    widest = min((facts.vector(name) for name in names), default=1)
    lane = math.gcd(widest, size) if size > widest else 1
    options = []
    if along in facts.loops:
        rows = math.prod(facts.about(dim) for dim in facts.parallel)
        for warps in (1, *CHUNKS) if rows >= MANY else CHUNKS:
            for iterations in (2, 1, 4) if rows >= MANY else (4, 2, 1):  # with few rows, more loads must be in flight
                options.append({"rows": 1, "vector": lane, "iterations": iterations, "warps": warps})
        return Decision("row", tuple(options), "{warps} warps share {iterations} vectors of {vector} elements per lane in an iteration")
    pieces = -(-size // (LANES * lane))
    preferred = next((count for most, count in WARPS_BY_ELEMENTS if pieces * lane <= most), WARPS)
    for warps in dict.fromkeys((preferred, 2 * preferred, max(preferred // 2, 1), 4 * preferred)):
        iterations = -(-pieces // warps)
        used = -(-pieces // iterations)
        for rows in dict.fromkeys((max(4 // used, 1), 1, max(8 // used, 1))):
            if used * rows <= WARPS:
                options.append({"rows": rows, "vector": lane, "iterations": iterations})
    because = f"{size} elements of a row: {{iterations}} vectors of {{vector}} per lane, {{rows}} rows per block"
    return Decision("row", tuple(dict(one) for one in dict.fromkeys(tuple(option.items()) for option in options)), because)


def _registers(values: Values, arrays: int) -> str:
    count = values["vector"] * values["iterations"] * max(arrays, 1)
    return f"{count} elements of rows per thread, at most {MOST_ELEMENTS}" if count > MOST_ELEMENTS else ""


RULES: tuple[Rule, ...] = (Rows(),)
