"""`warpgroup_rows`, `warp_rows`: chains of products over a loop, such as attention: a warp or warpgroup has whole rows of all results."""

from __future__ import annotations

import math
from typing import Any, ClassVar, Final

from fireiron.derive.facts import Facts, Product
from fireiron.derive.families import RESERVED, family
from fireiron.derive.rule import Rule, Skeleton
from fireiron.derive.rules.loop import because, load_calls
from fireiron.derive.sketch import Decision, Sketch, Values, call
from fireiron.frozen import frozen
from fireiron.language.substrategy import Chain
from fireiron.specs.matmul import MatMul
from fireiron.specs.move import Move
from fireiron.specs.operand import A, B
from fireiron.values.machine import RF, Block, Warp, Warpgroup

RANK = 0

WIDEST: Final = 256
"""Elements of a head, or of another dimension of which a block has everything."""

GROUP_BLOCKS: Final = ((128, 128), (192, 128), (128, 64), (128, 96), (64, 128), (64, 64), (64, 32), (64, 16))
WARP_BLOCKS: Final = ((64, 64), (128, 64), (128, 32), (64, 32), (32, 32), (16, 64), (16, 32), (16, 16), (64, 16))
"""Pairs (rows of a block, elements of the loop per iteration), the preferred ones first."""

REGISTERS: Final = 220
"""32-bit registers of a thread for accumulators and fragments."""


@frozen
class RowBlocks(Skeleton):
    """A block has rows of all products; each iteration of the loop multiplies them by a block of the loop's elements.

    The result of a product stays in registers and is an operand of the next one, so reductions along a row are shuffles.
    """

    family: ClassVar[str]
    level: ClassVar[Any]
    rows: ClassVar[int]

    def refusal(self, facts: Facts) -> str:
        if facts.definition is None or not facts.products:
            return "the spec is not a definition with products"
        if len(facts.loops) != 1:
            return "the definition has no loop, or several"
        (loop,) = facts.loops
        rows = {product.rows for product in facts.products}
        if len(rows) != 1 or len(next(iter(rows))) != 1:
            return "its products have different rows"
        (m,) = next(iter(rows))
        if m not in facts.parallel:
            return f"blocks cannot divide {m}"
        if any(not product.columns or len(product.over) != 1 for product in facts.products):
            return "a product has no columns, or sums several dimensions"
        whole = {dim for product in facts.products for dim in (*product.over, *product.columns) if dim != loop}
        wide = [dim for dim in sorted(whole) if (facts.extent(dim) or WIDEST + 1) > WIDEST]
        if wide:
            return f"a block would have all elements of {', '.join(wide)}, more than {WIDEST}"
        if all(set(product.arrays) == {product.left, product.right} for product in facts.products) and not _reduces(facts, loop):
            return "no product reads the result of another one"
        return next(filter(None, (family(self.family).refusal(facts, product) for product in facts.products)), "")

    def sketch(self, facts: Facts) -> Sketch:
        by = family(self.family)
        (loop,), (m,) = facts.loops, facts.products[0].rows
        kept = tuple(name for name in _operands(facts) if loop not in facts.dims_of(name))
        moved = tuple(name for name in _operands(facts) if loop in facts.dims_of(name))
        block = self._block(facts, kept, moved, m, loop)
        sketch = Sketch(self.name, f"{because(by, facts.products)}; rows of {m} stay in registers", facts.spec.starter, family=by.name)
        sketch = sketch.deciding(block).bounded(lambda values: self._registers(facts, values, m, loop))
        tile: dict[str, Any] = {dim: block["bm"] if dim == m else 1 for dim in facts.parallel if dim == m or not _is_column(facts, dim)}
        sketch = sketch.then("blocks", call("tile", **tile), call("to", Block))
        for name in kept:
            sketch = sketch.then(f"load {name}", *load_calls(facts, by, name))
        ring = [call("warp_specialize", 128)] if by.asynchronous else []
        sketch = sketch.then("loop", call("split", **{loop: block["bn"]}), call("pipeline", block["stages"]), *ring)
        for name in moved:
            sketch = sketch.then(f"load {name}", *load_calls(facts, by, name))
        sketch = sketch.then("units", call("tile", **{m: block["wm"]}), call("to", self.level))
        for product in facts.products:
            sketch = sketch.then(f"step {product.step}", call("step", product.step, self._inner(facts, product)))
        return sketch.then("done", call("done"))

    def _block(self, facts: Facts, kept: tuple[str, ...], moved: tuple[str, ...], m: str, loop: str) -> Decision:
        """Return the decision about the rows of a block, the elements of an iteration, and the stages."""
        options: list[dict[str, int]] = []
        pairs: tuple[tuple[int, int], ...] = GROUP_BLOCKS if self.family == "warpgroups" else WARP_BLOCKS
        if not any(loop in (*product.columns, *product.over) for product in facts.products):
            pairs = tuple(dict.fromkeys((bm, 1) for bm, _ in pairs))  # each iteration has all elements of its products
        for bm, bn in pairs:
            sizes = {m: bm, loop: bn}
            resident, stage = (sum(_bytes(facts, name, sizes) for name in names) for names in (kept, moved))
            room = facts.target.shared_per_block - RESERVED - resident
            stages = min(room // max(stage, 1), 2 if self.family == "warpgroups" or facts.target.capability < 80 else 3)
            if stages >= 1 or ((bm, bn) == pairs[-1] and not options):
                options.append({"bm": bm, "bn": bn, "wm": min(self.rows, bm), "stages": max(stages, 1)})
        rows = facts.about(m) * math.prod(facts.about(dim) for dim in facts.batch)
        fitting = [option for option in options if option["bm"] < 2 * max(facts.about(m), 16)] or options[-1:]
        full = [option for option in fitting if rows // option["bm"] >= facts.gpu.multiprocessors]
        ordered = [*full, *(option for option in fitting if option not in full)]
        text = "{bm} rows per block, {wm} per unit; {bn} elements of the loop per iteration, {stages} stages"
        return Decision("block", tuple(ordered or options), text)

    def _registers(self, facts: Facts, values: Values, m: str, loop: str) -> str:
        """Return why the accumulators of a thread do not fit in registers."""
        threads = 128 if self.family == "warpgroups" else 32
        results = {product.result: product for product in facts.products}
        elements = sum(values["bn"] if loop in each.columns else facts.about(each.columns[-1]) for each in results.values())
        count = values["wm"] * elements // threads
        return f"{count} accumulators of a thread, at most {REGISTERS}" if count > REGISTERS else ""

    def _inner(self, facts: Facts, product: Product) -> Chain:
        raise NotImplementedError


def _operands(facts: Facts) -> tuple[str, ...]:
    """Return the arrays that products read, in order; those of a temporary of one element each, too."""
    return tuple(dict.fromkeys(name for product in facts.products for name in (product.left, product.right) if name in facts.arrays))


def _reduces(facts: Facts, loop: str) -> bool:
    """Whether a step reduces the columns of a product along the loop."""
    return any(
        loop in step.formula.over and step.formula.elements[0].tensor in {product.result for product in facts.products}
        for step in facts.reductions
    )


def _is_column(facts: Facts, dim: str) -> bool:
    return any(dim in (*product.columns, *product.over) for product in facts.products)


def _bytes(facts: Facts, name: str, sizes: dict[str, int]) -> int:
    dims = [dim for dim in facts.dims_of(name) if dim not in facts.batch]
    return facts.view(name).dtype.bytes * math.prod(sizes.get(dim, facts.about(dim)) for dim in dims)


@frozen
class WarpgroupRows(RowBlocks):
    """By wgmma: a warpgroup has 64 rows, and a producer loads the blocks of the loop."""

    name: ClassVar[str] = "warpgroup_rows"
    family: ClassVar[str] = "warpgroups"
    level: ClassVar[Any] = Warpgroup
    rows: ClassVar[int] = 64

    def _inner(self, facts: Facts, product: Product) -> Chain:
        return MatMul.split(32 // product.types[1].bytes).unroll().done()


@frozen
class WarpRows(RowBlocks):
    """By mma.sync: a warp has 16 rows."""

    name: ClassVar[str] = "warp_rows"
    family: ClassVar[str] = "warps"
    level: ClassVar[Any] = Warp
    rows: ClassVar[int] = 16

    def _inner(self, facts: Facts, product: Product) -> Chain:
        mma = facts.by_warp(product)
        chain: Any = MatMul.split(16 if mma is None else max(mma.shape[2], 16)).unroll()
        for operand, name in ((A, product.left), (B, product.right)):
            chain = chain.load(operand, RF, Move.done()) if name in facts.arrays else chain
        return chain.tile(16, 16).unroll().mma_tile().done()  # type: ignore[no-any-return]


RULES: tuple[Rule, ...] = (WarpgroupRows(), WarpRows())
