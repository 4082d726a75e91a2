"""`warpgroup_steps`, `warp_steps`: products of a definition without a loop: each product has its own loop along its summed dimension."""

from __future__ import annotations

import math
from typing import Any, ClassVar, Final

import attrs

from fireiron.decomp.split_k import MOST_PARTS
from fireiron.derive.facts import Facts, Product
from fireiron.derive.families import Family, Loaded, decision, family
from fireiron.derive.rule import Rule, Skeleton
from fireiron.derive.rules.loop import because, load_calls
from fireiron.derive.rules.matmul import accumulated, with_operand
from fireiron.derive.sketch import Decision, Sketch, call
from fireiron.frozen import frozen
from fireiron.specs.init import Init
from fireiron.specs.matmul import MatMul
from fireiron.specs.move import Move
from fireiron.values.expr import constant
from fireiron.values.machine import RF, Block

RANK = 1


@frozen
class StepLoops(Skeleton):
    """Blocks have tiles of the results, or whole rows if a step reduces them. The steps after a product work on its accumulators."""

    family: ClassVar[str]

    def refusal(self, facts: Facts) -> str:
        if facts.definition is None or not facts.products:
            return "the spec is not a definition with products"
        shapes = {(product.rows, product.columns) for product in facts.products}
        if len(shapes) != 1 or not all(has_tiles(product) for product in facts.products):
            return "its products differ in their dimensions"
        if any(product.looped or len(product.arrays) != 2 for product in facts.products):
            return "a loop of the definition iterates over a product, or a product reads another result"
        *_, row = facts.products[0].rows
        (column,) = facts.products[0].columns
        if row not in facts.parallel:
            return f"a block would have all of {row}"
        if column not in facts.parallel and constant(facts.spec.size(column)) is None:
            return f"a block has whole rows, so the extent of {column} must be a constant"
        return next(filter(None, (family(self.family).refusal(facts, accumulated(product)) for product in facts.products)), "")

    def divided(self, facts: Facts, by: Family, tile: Decision) -> Decision:
        """Return the decision about tiles; a subclass adds the number of blocks that share one."""
        return tile

    def sketch(self, facts: Facts) -> Sketch:
        by, product = family(self.family), facts.products[0]
        m, (n,), (k,) = product.rows[-1], product.columns, product.over
        operands = [
            Loaded(name, tuple(dim for dim in facts.dims_of(name) if dim in (m, n, k)), facts.view(name).dtype.bytes)
            for name in product.arrays
        ]
        whole = n not in facts.parallel
        sums = len({each.result for each in facts.products})
        tile = decision(
            facts,
            by,
            product,
            operands,
            {m: "bm", n: "bn", k: "bk"},
            facts.view(facts.spec.outputs[0]).dtype.bytes,
            sums,
            facts.live_results,
        )
        tile = self.divided(facts, by, tile)
        sketch = Sketch(self.name, because(by, facts.products), facts.spec.starter, family=by.name).deciding(tile)
        if "num_splits" in tile.tunables:
            sketch = sketch.then("splits", call("split_k", tile["num_splits"], Block, tile["bk"]), call("reduce_in_last_block"))
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
                for step in with_operand(load_calls(facts, by, name, tile), operand):
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


def has_tiles(product: Product) -> bool:
    """Whether a product has rows, one dimension of columns, and one that is summed. Blocks have one element of all rows but the last."""
    return bool(product.rows) and len(product.columns) == len(product.over) == 1


@frozen
class WarpgroupSteps(StepLoops):
    """By wgmma."""

    name: ClassVar[str] = "warpgroup_steps"
    family: ClassVar[str] = "warpgroups"


@frozen
class WarpSteps(StepLoops):
    """By mma.sync."""

    name: ClassVar[str] = "warp_steps"
    family: ClassVar[str] = "warps"


@frozen
class LaneSteps(StepLoops):
    """By multiply-adds of lanes."""

    name: ClassVar[str] = "lane_steps"
    family: ClassVar[str] = "lanes"


class SplitLoops(StepLoops):
    """Blocks share the sum of a tile, because there are fewer tiles than SMs; the last block adds up the parts in a fixed order."""

    def refusal(self, facts: Facts) -> str:
        reason = super().refusal(facts)
        if reason:
            return reason
        (product, *others), tiles = facts.products, _count(facts, LEAST_TILE, LEAST_TILE)
        if others or product.columns[0] not in facts.parallel or facts.definition is None or facts.definition.product is None:
            return "it has several products, or a block has whole rows"
        if 2 * tiles > facts.gpu.multiprocessors:
            return f"{tiles} tiles of {LEAST_TILE} x {LEAST_TILE} keep most SMs busy"
        return "" if facts.about(product.over[0]) >= LONG else f"a sum has fewer than {LONG} terms"

    def divided(self, facts: Facts, by: Family, tile: Decision) -> Decision:
        """Add the number of blocks that share a tile: two blocks for each SM, and at least four iterations for each block."""
        options, (k,) = [], facts.products[0].over
        for shape in SHARED_TILES[by.name]:
            size = dict(zip(("bm", "bn", "wm", "wn", "bk", "stages"), shape, strict=True))
            tiles = _count(facts, size["bm"], size["bn"])
            most = min(2 * facts.gpu.multiprocessors // tiles, facts.about(k) // (4 * size["bk"]), MOST_PARTS)
            options += [{**size, "num_splits": count} for count in dict.fromkeys((max(most, 2), max(most // 2, 2)))]
        because = "{num_splits} blocks share a tile of {bm} x {bn}, because there are few tiles"
        return Decision("tile", tuple(options), because)


LEAST_TILE: Final = 64
"""Rows and columns of a tile, of which a problem must have few."""

LONG: Final = 2048
"""Least number of terms of a sum that blocks share."""

SHARED_TILES: Final = {
    "warps": ((64, 64, 32, 32, 64, 4), (128, 128, 64, 32, 32, 4), (32, 64, 16, 32, 64, 4), (16, 64, 16, 16, 64, 4)),
    "lanes": ((128, 128, 64, 64, 16, 4), (64, 64, 64, 32, 16, 4), (64, 64, 32, 32, 16, 4), (32, 32, 32, 32, 16, 4)),
}
"""Tiles of blocks and warps, elements along the sum, and stages, by family."""


def _count(facts: Facts, bm: int, bn: int) -> int:
    """Return the number of tiles of all rows and columns."""
    (product, *_) = facts.products
    rows, columns = facts.about(product.rows[-1]), facts.about(product.columns[-1])
    others = [dim for dim in facts.parallel if dim not in (product.rows[-1], product.columns[-1])]
    return -(-rows // bm) * -(-columns // bn) * math.prod(map(facts.about, others))


@frozen
class WarpSplits(SplitLoops):
    """By mma.sync."""

    name: ClassVar[str] = "warp_splits"
    family: ClassVar[str] = "warps"


@frozen
class LaneSplits(SplitLoops):
    """By multiply-adds of lanes."""

    name: ClassVar[str] = "lane_splits"
    family: ClassVar[str] = "lanes"


RULES: tuple[Rule, ...] = (WarpgroupSteps(), WarpSteps(), LaneSteps(), WarpSplits(), LaneSplits())
