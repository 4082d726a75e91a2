"""`staged_store`: results pass through shared memory, so that stores are wide and contiguous."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, ClassVar, Final

import attrs

from fireiron.derive.facts import Facts, is_copy
from fireiron.derive.rule import Rule, Trick
from fireiron.derive.sketch import Decision, Part, Sketch, call
from fireiron.frozen import frozen
from fireiron.language.substrategy import Chain
from fireiron.specs.move import Move
from fireiron.specs.operand import SRC
from fireiron.specs.steps import Step
from fireiron.values.machine import SH, Warp, Warpgroup

RANK = 40

STAGED: Final = ("warpgroups", "warps")
"""Families whose accumulators have few adjacent elements in a thread."""


@frozen
class StagedStore(Trick):
    """Convert results, write them to shared memory, and store them from there by TMA or in vectors of 16 bytes."""

    name: ClassVar[str] = "staged_store"

    def refusal(self, facts: Facts, sketch: Sketch) -> str:
        if sketch.family not in STAGED or not ("wn" in sketch.tunables or sketch.has("units")):
            return "results are stored as threads have them: in vectors, or not from accumulators"
        if sketch.has("store"):
            return "" if facts.vector(facts.spec.outputs[0]) > 1 else "rows of the result are not multiples of a vector"
        turned = sketch.family == "warpgroups"
        return "" if list(_stores(facts, turned)) else "no step copies an accumulator to a result of the same order"

    def amend(self, facts: Facts, sketch: Sketch) -> Sketch:
        reason = "an accumulator has two adjacent elements per thread; from shared memory, stores have 16 bytes"
        if sketch.has("units"):
            return self._of_rows(facts, sketch).by(self.name, reason)
        tile = next(decision for decision in sketch.decisions if decision.name == "tile")
        wm, wn = tile["wm"], tile["wn"]
        if sketch.family == "warpgroups":
            pieces = Decision.of("epi_n", (64, 32, 16, 128, 256), "{epi_n} columns of the result pass through shared memory at a time")
            sketch = sketch.deciding(pieces).bounded(
                lambda values: "" if values["wn"] % values["epi_n"] == 0 else "pieces do not divide wn"
            )
            store: Chain = (
                Move.tile(wm, wn).to(Warpgroup).tile(wm, pieces["epi_n"]).unroll().load(SRC, SH, Move.done()).cast_on_copy().done()
            )
        else:
            width = max(16 // facts.view(facts.spec.outputs[0]).dtype.bytes, 1)
            staged = Move.load(SRC, SH, Move.tile(wm, wn).to(Warp).done()).cast_on_copy()
            store = staged.swizzle_storage().reuse_buffer().coalesced_copy(width).done()
        if sketch.has("store"):
            (first,) = sketch.part("store").calls
            return sketch.replaced("store", attrs.evolve(first, arguments=(*first.arguments[:-1], store))).by(self.name, reason)
        for step in _stores(facts, turned=sketch.family == "warpgroups"):
            own = store if _dims(facts, step) in _tiles(facts) else _turned(Move.tile(wn, wm).to(Warpgroup))
            sketch = sketch.inserted("done", Part(f"store {step.name}", (call("step", step.name, own),), "", self.name))
        return sketch.by(self.name, reason)

    def _of_rows(self, facts: Facts, sketch: Sketch) -> Sketch:
        """Stage the results of a warp or warpgroup with whole rows."""
        for step in _stores(facts, turned=sketch.family == "warpgroups"):
            columns = step.formula.target.dims[-1]
            width = max(16 // facts.view(step.formula.output).dtype.bytes, 1)
            if _dims(facts, step) not in _tiles(facts):
                store: Chain = _turned(Move)
            elif sketch.family == "warpgroups":
                store = Move.tile(64, math.gcd(facts.about(columns), 64)).unroll().load(SRC, SH, Move.done()).cast_on_copy().done()
            else:
                staged = Move.load(SRC, SH, Move.done()).cast_on_copy().swizzle_storage().reuse_buffer()
                store = staged.coalesced_copy(width).done()
            sketch = sketch.inserted("done", Part(f"store {step.name}", (call("step", step.name, store),), "", self.name))
        return sketch


def _turned(chain: Any) -> Chain:
    """Return the store of a tile whose rows are columns of the accumulator: transposed by stmatrix, 32 rows of 64 columns at a time."""
    return chain.tile(32, 64).unroll().load(SRC, SH, Move.done()).cast_on_copy().done()  # type: ignore[no-any-return]


def _dims(facts: Facts, step: Step) -> tuple[str, ...]:
    """Return the dimensions of the result of a step in a block."""
    return tuple(dim for dim in step.formula.target.dims if dim not in facts.batch)


def _tiles(facts: Facts) -> set[tuple[str, ...]]:
    """Return the rows and columns of each product."""
    return {(product.rows[-1], product.columns[-1]) for product in facts.products if product.rows and product.columns}


def _stores(facts: Facts, turned: bool = False) -> Iterator[Step]:
    """Yield the steps that copy an accumulator to a result with the rows and columns of a product; with `turned`, also in reverse order."""
    tiles = _tiles(facts)
    tiles |= {dims[::-1] for dims in tiles} if turned else set()
    for step in facts.steps:
        formula = step.formula
        in_order = is_copy(step) and _dims(facts, step) in tiles and formula.output in facts.spec.outputs
        stores = in_order and formula.elements[0].tensor not in facts.spec.operands and formula.target.dims == facts.dims_of(formula.output)
        if stores and facts.vector(formula.output) > 1:
            yield step


RULES: tuple[Rule, ...] = (StagedStore(),)
