"""`warpgroup_matmul`, `warp_matmul`, `lane_matmul`: a matrix product with an epilogue, whose loop along k the strategy makes."""

from __future__ import annotations

from typing import Any, ClassVar

import attrs

from fireiron.derive.facts import Facts, Product
from fireiron.derive.families import Loaded, decision, family
from fireiron.derive.rule import Rule, Skeleton
from fireiron.derive.rules.loop import because, load_calls
from fireiron.derive.sketch import Call, Decision, Sketch, call
from fireiron.frozen import frozen
from fireiron.specs.init import Init
from fireiron.specs.move import Move
from fireiron.values.machine import MATRIX_ONLY, RF, Block, float32

RANK = 0


@frozen
class PlainProduct(Skeleton):
    """Blocks have tiles of C, accumulated in registers; a loop along k copies tiles of A and B to shared memory.

    It applies to `MatMul`, batched or not, and to definitions of one product with an epilogue of the same elements.
    """

    family: ClassVar[str]

    def refusal(self, facts: Facts) -> str:
        products = facts.products
        if len(products) != 1 or (facts.definition is not None and facts.definition.product is None):
            return "the spec is not one product of two arrays, without a loop or a batch of the definition"
        (product,) = products
        if facts.definition is not None and product.result in facts.spec.operands:
            return "its result is an array, so the accumulator belongs to the step"
        if facts.definition is None and not facts.spec.contracts:
            return "the spec is not a product of two matrices"
        if not (product.rows and product.columns and len(product.over) == 1):
            return "the product is not that of two matrices"
        inside = [dim for dim in facts.reduced if dim not in product.over]
        if inside:
            return f"a block would have all of {', '.join(inside)}"
        return family(self.family).refusal(facts, accumulated(product))

    def sketch(self, facts: Facts) -> Sketch:
        by, product = family(self.family), accumulated(facts.products[0])
        m, n, (k,) = product.rows[-1], product.columns[-1], product.over
        sizes = {m: "bm", n: "bn", k: "bk"}
        operands = [
            Loaded(name, tuple(dim for dim in facts.dims_of(name) if dim in sizes), facts.view(name).dtype.bytes) for name in product.arrays
        ]
        outputs = facts.view(facts.spec.outputs[0]).dtype.bytes
        tile = decision(facts, by, product, operands, sizes, outputs, live=facts.live_results)
        sketch = Sketch(self.name, because(by, (product,)), facts.spec.starter, family=by.name).deciding(tile)
        others = {dim: 1 for dim in facts.parallel if dim not in (m, n)}
        if others and facts.definition is None:
            sketch = sketch.then("batch", call("tile", **others), call("to", Block))
            blocks: dict[str, Any] = {m: tile["bm"], n: tile["bn"]}
        else:
            blocks = {**others, m: tile["bm"], n: tile["bn"]}
        sketch = sketch.then("blocks", call("tile", **blocks), call("to", Block))
        store = Move.done()
        sketch = sketch.then("store", call("epilog", RF, product.sum_type, Init.done(), store))
        loop = [call("split", **{k: tile["bk"]}), call("pipeline", tile["stages"])]
        sketch = sketch.then("loop", *loop, *([call("warp_specialize", 128)] if by.asynchronous else []))
        for operand, name in (("A", product.left), ("B", product.right)):
            sketch = sketch.then(f"load {name}", *with_operand(load_calls(facts, by, name, tile), operand))
        inner = by.inner(facts, attrs.evolve(product, left="A", right="B", arrays=("A", "B")), tile["wm"], tile["wn"])
        sketch = sketch.then("product", Call("then", (inner,)))
        return (
            sketch.deciding(Decision.of("lookahead", (2, 1), "fragments are loaded {lookahead} steps early"))
            if by.name == "warps"
            else sketch
        )


def with_operand(calls: Any, operand: str) -> list[Call]:
    """Return the calls of a load for another operand."""
    first, *rest = calls
    return [attrs.evolve(first, arguments=(operand, *first.arguments[1:])), *rest]


def accumulated(product: Product) -> Product:
    """Return the product with the usual accumulator: float32 for 16-bit and 8-bit floats whose result has 16 bits."""
    narrow = product.sum_type.kind == "float" and product.sum_type.bytes == 2
    wide = product.types[0].bytes <= 2 or product.types[0] in MATRIX_ONLY
    return attrs.evolve(product, sum_type=float32) if narrow and wide else product


@frozen
class WarpgroupMatmul(PlainProduct):
    """By wgmma, with a producer warp and a ring of stages."""

    name: ClassVar[str] = "warpgroup_matmul"
    family: ClassVar[str] = "warpgroups"


@frozen
class WarpMatmul(PlainProduct):
    """By mma.sync, with asynchronous copies where the target has them."""

    name: ClassVar[str] = "warp_matmul"
    family: ClassVar[str] = "warps"


@frozen
class LaneMatmul(PlainProduct):
    """By multiply-adds of lanes."""

    name: ClassVar[str] = "lane_matmul"
    family: ClassVar[str] = "lanes"


RULES: tuple[Rule, ...] = (WarpgroupMatmul(), WarpMatmul(), LaneMatmul())
