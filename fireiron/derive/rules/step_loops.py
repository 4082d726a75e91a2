"""`warpgroup_steps`, `warp_steps`: products of a definition without a loop: each product has its own loop along its summed dimension."""

from __future__ import annotations

from typing import Any, ClassVar

import attrs

from fireiron.derive.facts import Facts
from fireiron.derive.families import Loaded, decision, family
from fireiron.derive.rule import Rule, Skeleton
from fireiron.derive.rules.loop import because, load_calls
from fireiron.derive.rules.matmul import accumulated, with_operand
from fireiron.derive.sketch import Decision, Sketch, call
from fireiron.specs.init import Init
from fireiron.specs.matmul import MatMul
from fireiron.specs.move import Move
from fireiron.values.expr import constant
from fireiron.values.machine import RF, Block

RANK = 1


@attrs.frozen
class StepLoops(Skeleton):
    """Blocks have tiles of the results, or whole rows if a step reduces them. The steps after a product work on its accumulators."""

    family: ClassVar[str]

    def refusal(self, facts: Facts) -> str:
        if facts.definition is None or not facts.products:
            return "the spec is not a definition with products"
        shapes = {(product.rows, product.columns) for product in facts.products}
        if len(shapes) != 1 or not all(product.is_matrix for product in facts.products):
            return "its products differ in their dimensions"
        if any(product.looped or len(product.arrays) != 2 for product in facts.products):
            return "a loop of the definition iterates over a product, or a product reads another result"
        (row,), (column,) = facts.products[0].rows, facts.products[0].columns
        if row not in facts.parallel:
            return f"a block would have all of {row}"
        if column not in facts.parallel and constant(facts.spec.size(column)) is None:
            return f"a block has whole rows, so the extent of {column} must be a constant"
        return next(filter(None, (family(self.family).refusal(facts, accumulated(product)) for product in facts.products)), "")

    def sketch(self, facts: Facts) -> Sketch:
        by, product = family(self.family), facts.products[0]
        (m,), (n,), (k,) = product.rows, product.columns, product.over
        operands = [
            Loaded(name, tuple(dim for dim in facts.dims_of(name) if dim in (m, n, k)), facts.view(name).dtype.bytes)
            for name in product.arrays
        ]
        whole = n not in facts.parallel
        sums = len({each.result for each in facts.products})
        tile = decision(facts, by, product, operands, {m: "bm", n: "bn", k: "bk"}, facts.view(facts.spec.outputs[0]).dtype.bytes, sums)
        sketch = Sketch(self.name, because(by, facts.products), facts.spec.starter, family=by.name).deciding(tile)
        if whole:
            columns = facts.about(n)
            sketch = sketch.bounded(lambda values: "" if values["bn"] >= columns else f"{values['bn']} of {columns} columns of whole rows")
        blocks: dict[str, Any] = dict.fromkeys(facts.parallel, 1)
        blocks |= {m: tile["bm"]} if whole else {m: tile["bm"], n: tile["bn"]}
        sketch = sketch.then("blocks", call("tile", **blocks), call("to", Block))
        for loop in facts.loops:
            sketch = sketch.then(f"loop {loop}", call("split", **{loop: 1}))
        for number, each in enumerate(facts.products):
            start: Any = MatMul
            if each.result in facts.spec.operands:
                start = MatMul.epilog(RF, accumulated(each).sum_type, Init.done(), Move.done())
            chain: Any = start.split(tile["bk"]).pipeline(tile["stages"])
            chain = chain.warp_specialize(128) if by.asynchronous else chain
            for operand, name in (("A", each.left), ("B", each.right)):
                for step in with_operand(load_calls(facts, by, name), operand):
                    chain = step.on(chain)
                chain = chain.reuse_buffer() if number and not by.asynchronous else chain
            inner = by.inner(facts, attrs.evolve(accumulated(each), left="A", right="B", arrays=("A", "B")), tile["wm"], tile["wn"])
            sketch = sketch.then(f"step {each.step}", call("step", each.step, chain.then(inner)))
        sketch = sketch.then("done", call("done"))
        return (
            sketch.deciding(Decision.of("lookahead", (2, 1), "fragments are loaded {lookahead} steps early"))
            if by.name == "warps"
            else sketch
        )


@attrs.frozen
class WarpgroupSteps(StepLoops):
    """By wgmma."""

    name: ClassVar[str] = "warpgroup_steps"
    family: ClassVar[str] = "warpgroups"


@attrs.frozen
class WarpSteps(StepLoops):
    """By mma.sync."""

    name: ClassVar[str] = "warp_steps"
    family: ClassVar[str] = "warps"


@attrs.frozen
class LaneSteps(StepLoops):
    """By multiply-adds of lanes."""

    name: ClassVar[str] = "lane_steps"
    family: ClassVar[str] = "lanes"


RULES: tuple[Rule, ...] = (WarpgroupSteps(), WarpSteps(), LaneSteps())
