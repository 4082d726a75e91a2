"""`transposed`: copies between arrays with different contiguous dimensions pass through shared memory."""

from __future__ import annotations

import math
from typing import Any, ClassVar, Final

from fireiron.derive.facts import Facts, is_copy
from fireiron.derive.rule import Rule, Skeleton
from fireiron.derive.sketch import Decision, Sketch, call
from fireiron.frozen import frozen
from fireiron.specs.move import Move
from fireiron.values.machine import RF, SH, Block, Lane, Warp
from fireiron.values.tensor import ColMajor

RANK = 30

WORD: Final = 4
"""Bytes of a bank of shared memory."""

TILES: Final = ((64, 64), (128, 64), (64, 32), (32, 64), (32, 32))
"""Elements of a block along the contiguous dimension of the result, and along that of the operand."""

LANES: Final = (8, 4, 16, 2)
"""Lanes of a warp that write adjacent vectors of a result."""

COPIED: Final = (32, 64), 4
"""The tile and the lanes that suit a transposed copy without another operand (measured on an H200, 4096 x 4096, as those above)."""

ERROR: Final = 0.15
"""Error of the predicted times: tiles of 32 x 32 are predicted to be the fastest, and take 20 % more than those of 64 x 64."""


@frozen
class Transposed(Skeleton):
    """A block reads rows of an operand in vectors, keeps them in padded rows of shared memory, and writes rows of the result in vectors."""

    name: ClassVar[str] = "transposed"

    def refusal(self, facts: Facts) -> str:
        if facts.definition is None:
            return "the spec has no named steps"
        if facts.products or facts.reduced or facts.loops or facts.summed:
            return "its steps do more than functions of elements"
        names = turned(facts)
        if not names:
            return "all arrays have the same contiguous dimension, or one with a computed index"
        others = {facts.contiguous(name) for name in names}
        return "" if len(others) == 1 else "operands have several other contiguous dimensions"

    def sketch(self, facts: Facts) -> Sketch:
        along = written_along(facts)
        names = turned(facts)
        across = facts.contiguous(names[0])
        written = vector_of(facts)
        widths = [width for width in (8, 4, 2, 1) if width <= written]
        tile_first, lanes_first = COPIED if set(names) == set(facts.arrays) else (TILES[0], LANES[0])
        options = tuple({"b_along": first, "b_across": second} for first, second in dict.fromkeys((tile_first, *TILES)))
        block = Decision("block", options, "{b_along} x {b_across} elements: whole sectors of memory in both arrays")
        vector = Decision.of("vector", widths, "{vector} adjacent elements per store, the most that all rows allow")
        because = "{lanes} lanes write adjacent vectors, the others different rows: few bank conflicts"
        lanes = Decision.of("lanes", (lanes_first, *LANES), because)
        bank = max(WORD // facts.view(names[0]).dtype.bytes, 1)
        because = "{pad} elements after each row of shared memory, so that lanes read different banks"
        pad = Decision.of("pad", (bank, 2, 8, 4, 1), because)
        sketch = Sketch(self.name, f"it is read along {across} and written along {along}", facts.spec.starter, gain=ERROR)
        sketch = sketch.deciding(block, vector, lanes, pad).bounded(_fits)
        tile: dict[str, Any] = dict.fromkeys(facts.parallel, 1)
        tile |= {along: block["b_along"], across: block["b_across"]}
        sketch = sketch.then("blocks", call("tile", **tile), call("to", Block))
        for name in names:
            width = math.gcd(facts.vector(name), 16)
            sketch = sketch.then(f"load {name}", call("load", name, SH, Move.coalesced_copy(width).done()), call("pad", pad["pad"]))
        warp: dict[str, Any] = dict.fromkeys(facts.parallel, 1)
        warp |= {along: lanes["lanes"] * vector["vector"], across: 32 // lanes["lanes"]}
        lane: dict[str, Any] = {**dict.fromkeys(facts.parallel, 1), along: vector["vector"]}
        # Adjacent lanes write adjacent vectors: a warp stores 128-bit elements in quarters, which must be whole sectors.
        order = [call("layout", ColMajor)] if facts.parallel.index(along) < facts.parallel.index(across) else []
        sketch = sketch.then("warps", call("tile", **warp), call("to", Warp))
        sketch = sketch.then("lanes", call("tile", **lane), call("to", Lane), *order)
        for name in facts.arrays:
            if name not in names and _is_loaded(facts, name, along):
                dims = [dim for dim in facts.dims_of(name) if dim not in facts.batch]
                move = Move.tile(*(vector["vector"] if dim == along else 1 for dim in dims)).unroll().done()
                sketch = sketch.then(f"load {name}", call("load", name, RF, move))
        for step in facts.steps:
            if is_copy(step) and step.formula.output in facts.spec.outputs:
                sketch = sketch.then(f"store {step.name}", call("step", step.name, Move.done()))
        return sketch.then("done", call("done"))


def written_along(facts: Facts) -> str:
    """Return the dimension along which the results are contiguous; empty if they differ."""
    along = {facts.contiguous(name) for name in facts.spec.outputs}
    return along.pop() if len(along) == 1 else ""


def turned(facts: Facts) -> tuple[str, ...]:
    """Return the arrays that are contiguous along another dimension than the results, and have both."""
    along, names = written_along(facts), []
    for name in facts.arrays:
        across = facts.contiguous(name)
        if along and across not in ("", along) and {along, across} <= set(facts.dims_of(name)) & set(facts.parallel):
            names.append(name)
    return tuple(names)


def _is_loaded(facts: Facts, name: str, along: str) -> bool:
    """Whether a lane loads vectors of a matrix of 16-bit elements: the compiler does not combine its loads of single ones."""
    has_both = facts.contiguous(turned(facts)[0]) in facts.dims_of(name)
    return has_both and facts.contiguous(name) == along and facts.view(name).dtype.bytes < WORD and facts.vector(name) == vector_of(facts)


def vector_of(facts: Facts) -> int:
    """Return the most adjacent elements that a store of all results writes."""
    return min(facts.vector(name) for name in facts.spec.outputs)


def _fits(values: Any) -> str:
    if values["b_along"] % (values["lanes"] * values["vector"]):
        return f"a warp writes {values['lanes'] * values['vector']} elements of a row, which do not divide {values['b_along']}"
    threads = values["b_along"] * values["b_across"] // values["vector"]
    return "" if 32 <= threads <= 1024 else f"{threads} threads in a block"


RULES: tuple[Rule, ...] = (Transposed(),)
