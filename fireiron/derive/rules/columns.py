"""`columns`: sums of columns, or of everything, to which several blocks add: warps have rows of a block, lanes adjacent columns."""

from __future__ import annotations

import math
from typing import Any, ClassVar, Final

from fireiron.derive.facts import Facts
from fireiron.derive.rule import Rule, Skeleton
from fireiron.derive.rules.rows import own_dims
from fireiron.derive.sketch import Decision, Sketch, Values, call
from fireiron.executable.thread_move import EVICT_FIRST
from fireiron.frozen import frozen
from fireiron.specs.move import Move
from fireiron.values.machine import RF, Block, Lane, Warp

RANK = 10

LANES: Final = 32
WARPS: Final = 8
"""Warps of a block."""

ROWS: Final = (128, 64, 256, 32)
"""Rows of a block."""


@frozen
class Columns(Skeleton):
    """A block adds up its rows of each column, or all of its elements, and adds the sum to the result atomically."""

    name: ClassVar[str] = "columns"

    def refusal(self, facts: Facts) -> str:
        if facts.definition is None:
            return "the spec has no named steps"
        if facts.products or facts.loops or facts.scans:
            return "it has products, loops or scans"
        if not facts.summed:
            return "no blocks add to one result"
        if facts.reduced:
            return f"a block would have all of {', '.join(facts.reduced)}"
        return "" if _arrays(facts) else "no array with rows and columns is contiguous along the columns"

    def sketch(self, facts: Facts) -> Sketch:
        names = _arrays(facts)
        along = facts.contiguous(names[0])
        down = next(dim for dim in reversed(facts.summed) if dim != along)
        vector = min(facts.vector(name) for name in names)
        few = [count for count in ROWS if count // WARPS * vector * len(names) <= PREFERRED] or [min(ROWS)]
        options = tuple(dict.fromkeys((max(few, key=lambda count: (count <= ROWS[0], count)), *ROWS)))
        rows = Decision.of("rows", options, "{rows} rows per block: fewer atomic additions, and still a block for each SM")
        widths = tuple({"columns": LANES * width, "vector": width} for width in dict.fromkeys((vector, max(vector // 2, 1))))
        columns = Decision("columns", widths, "a lane reads {vector} adjacent columns of a row at a time")
        summed = ", ".join(facts.summed)
        sketch = Sketch(self.name, f"blocks add their parts of {summed} to one result", facts.spec.starter).deciding(columns, rows)
        sketch = sketch.bounded(lambda values: _registers(values, len(names)))
        tile: dict[str, Any] = dict.fromkeys(facts.parallel, 1)
        tile |= {down: rows["rows"], along: columns["columns"]}
        sketch = sketch.then("blocks", call("tile", **tile), call("to", Block))
        for name in names:
            pieces: dict[str, Any] = {down: rows["rows"] // WARPS, along: columns["columns"]}
            vectors: dict[str, Any] = {along: columns["vector"]}
            dims = own_dims(facts, name)
            move = Move.tile(*(pieces.get(dim, 1) for dim in dims)).to(Warp).tile(*(vectors.get(dim, 1) for dim in dims)).to(Lane)
            sketch = sketch.then(f"load {name}", call("load", name, RF, move.done(EVICT_FIRST)))
        return sketch.then("done", call("done"))


MOST_ELEMENTS: Final = 256
"""Elements that a thread loads: more of them spill."""

PREFERRED: Final = 64
"""Elements of a thread up to which a second block fits on an SM and loads while the first one computes.

With 128, Kullback-Leibler divergences take 1.7 to 1.9 times as long (2026-11-30, H200, 16384 x 16384).
"""


def _registers(values: Values, arrays: int) -> str:
    count = values["rows"] // WARPS * values["vector"] * arrays
    return f"{count} elements per thread, at most {MOST_ELEMENTS}" if count > MOST_ELEMENTS else ""


def _arrays(facts: Facts) -> tuple[str, ...]:
    """Return the arrays with a summed dimension that are contiguous along another one, the same for all."""
    wide = [name for name in facts.arrays if set(facts.summed) & set(facts.dims_of(name)) and len(own_dims(facts, name)) > 1]
    along = {facts.contiguous(name) for name in wide}
    rows = set(facts.summed) - along
    fits = len(along) == 1 and "" not in along and len(rows) >= 1 and all(rows & set(facts.dims_of(name)) for name in wide)
    return tuple(wide) if fits and math.prod(map(facts.about, rows)) > 1 else ()


RULES: tuple[Rule, ...] = (Columns(),)
