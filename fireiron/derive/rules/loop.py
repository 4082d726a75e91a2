"""`warpgroup_loop`, `warp_loop`, `lane_loop`: products in a loop of the definition, with everything around it in registers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Final

from fireiron.derive.facts import Facts, Product
from fireiron.derive.families import Family, Loaded, decision, family
from fireiron.derive.rule import Rule, Skeleton
from fireiron.derive.sketch import Decision, Sketch, call
from fireiron.frozen import frozen
from fireiron.specs.matmul import MatMul
from fireiron.specs.move import Move
from fireiron.specs.operand import SRC
from fireiron.specs.reduction import Reduction
from fireiron.values.machine import RF, SH, Block, Thread, Warpgroup
from fireiron.values.tensor import ColMajor, RowMajor

RANK = 0


@frozen
class ProductLoop(Skeleton):
    """Blocks have tiles of the results; each iteration of the definition's loop copies a part of all operands to shared memory.

    It suits any number of products of the same rows and columns in one loop (dual, gated, LSTM), sums of their operands, and epilogues.
    """

    family: ClassVar[str]

    def refusal(self, facts: Facts) -> str:
        if facts.definition is None:
            return "the spec has no named steps"
        if not facts.products:
            return "it multiplies no matrices"
        by = family(self.family)
        shapes = {(product.rows, product.columns, product.over) for product in facts.products}
        if len(shapes) != 1 or not facts.products[0].is_matrix:
            return "its products differ in their dimensions"
        product = facts.products[0]
        loop = loop_of(facts, product)
        if not loop:
            return f"no loop of the definition iterates over {', '.join(product.over)}"
        inside = {dim for dim in facts.reduced if dim not in (*facts.loops, *(product.over if loop not in product.over else ()))}
        if inside:
            return f"a block would have all of {', '.join(sorted(inside))}"
        return next(filter(None, (by.refusal(facts, each) for each in facts.products)), "")

    def sketch(self, facts: Facts) -> Sketch:
        by, product = family(self.family), facts.products[0]
        (m,), (n,), (k,) = product.rows, product.columns, product.over
        loop = loop_of(facts, product)
        loaded = loaded_arrays(facts, k) if loop == k else product.arrays
        sizes = {m: "bm", n: "bn"} | ({k: "bk"} if loop == k else {})
        sums = len({each.result for each in facts.products})
        operands = [Loaded(name, tuple(dim for dim in facts.dims_of(name) if dim in (m, n, k)), facts.bytes_of(name)) for name in loaded]
        tile = decision(facts, by, product, operands, sizes, facts.view(facts.spec.outputs[0]).dtype.bytes, sums)
        sketch = Sketch(self.name, because(by, facts.products), facts.spec.starter, family=by.name).deciding(tile)
        blocks: dict[str, Any] = dict.fromkeys(facts.parallel, 1)
        blocks |= {m: tile["bm"], n: tile["bn"]}
        sketch = sketch.then("blocks", call("tile", **blocks), call("to", Block))
        loops = [dim for dim in facts.loops if dim != loop]
        for dim in loops:
            sketch = sketch.then(f"loop {dim}", call("split", **{dim: 1}))
        computed = tuple(dict.fromkeys(each.left for each in facts.products if each.left not in facts.spec.operands))
        ring = [call("pipeline", tile["stages"]), *([call("warp_specialize", 128)] if by.asynchronous else [])]
        ring += [call("mma_in_flight", 1)] if by.asynchronous and computed else []
        sketch = sketch.then("loop", call("split", **{loop: tile["bk"] if loop == k else 1}), *ring)
        for name in loaded:
            converted = computed and by.asynchronous and facts.view(name).dtype.bytes == 1
            sketch = sketch.then(f"load {name}", *load_calls(facts, by, name, tile), *([call("swizzle_storage")] if converted else []))
        sums_of_rows = [step for step in facts.reductions if k in step.formula.over and by.asynchronous]
        whole_rows = by.asynchronous and bool(sums_of_rows or computed)
        if whole_rows:
            sketch = sketch.then("units", call("tile", **{m: tile["wm"]}), call("to", Warpgroup))
            sketch = sketch.bounded(lambda values: "" if values["wn"] == values["bn"] else "a warpgroup has whole rows of a tile")
        elif by.name == "warps":
            for name in computed:
                sketch = sketch.then(f"memory {name}", call("set_memory", name, SH), call("swizzle_storage"))
        for each in facts.products:
            inner = MatMul.split(32 // each.types[1].bytes).unroll().done() if whole_rows else by.inner(facts, each, tile["wm"], tile["wn"])
            sketch = sketch.then(f"step {each.step}", call("step", each.step, inner))
        for step in sums_of_rows:
            if step.formula.elements[0].tensor in loaded:
                sketch = sketch.then(f"step {step.name}", call("step", step.name, Reduction.load(SRC, RF, Move.done()).done()))
        sketch = sketch.then("done", call("done"))
        return (
            sketch.deciding(Decision.of("lookahead", (2, 1), "fragments are loaded {lookahead} steps early"))
            if by.name == "warps"
            else sketch
        )


def loop_of(facts: Facts, product: Product) -> str:
    """Return the dimension of the loop that copies parts of a product's operands; empty if there is none.

    It is the summed dimension; or another one, if each iteration sums all of a few elements, such as a block with one scale.
    """
    if product.looped:
        return product.over[0]
    both = [dim for dim in facts.loops if all(dim in facts.dims_of(name) for name in (product.left, product.right))]
    few = all((facts.extent(dim) or WIDEST + 1) <= WIDEST for dim in product.over)
    return both[0] if few and len(both) == 1 and len(product.arrays) == 2 else ""


WIDEST: Final = 256
"""Elements along a summed dimension of which an iteration has all."""


def loaded_arrays(facts: Facts, loop: str) -> tuple[str, ...]:
    """Return the arrays that an iteration copies: those with the dimension of the loop and another one that is not of the batch."""
    return tuple(
        name
        for name in facts.arrays
        if loop in facts.dims_of(name)
        and len([dim for dim in facts.dims_of(name) if dim not in facts.batch]) > 1
        and not _is_table(facts, name)
    )


def _is_table(facts: Facts, name: str) -> bool:
    return facts.definition is not None and name in facts.definition.tables


def load_calls(facts: Facts, by: Family, name: str, tile: Decision | None = None) -> Sequence[Any]:
    """Return the load of an operand to shared memory: by TMA, or by all threads in vectors."""
    if by.asynchronous:
        return (call("load", name, SH, Move.done()),)
    width = max(16 // facts.view(name).dtype.bytes, 1)
    copy = call("load", name, SH, Move.coalesced_copy(width).done())
    if by.name == "warps":
        return (copy, call("swizzle_storage"))
    return (copy,) if tile is None else _by_lanes(facts, name, tile)


def _by_lanes(facts: Facts, name: str, tile: Decision) -> Sequence[Any]:
    """Return the load of an operand of multiply-adds: rows or columns of the tile are contiguous, so that lanes read vectors of them.

    If the array is contiguous along the summed dimension, eight threads read adjacent elements, and each writes one.
    """
    over = {dim for each in facts.products for dim in each.over}
    dims = [dim for dim in facts.dims_of(name) if dim not in facts.batch]
    order = "to_row_major" if dims[0] in over else "to_col_major"
    if len(dims) != 2 or facts.view(name).dtype.bytes != WORD:
        return (call("load", name, SH, Move.coalesced_copy(max(16 // facts.view(name).dtype.bytes, 1)).done()),)
    if facts.contiguous(name) not in over:
        return call("load", name, SH, Move.coalesced_copy(4).done()), call(order)
    threads = tile["bm"] // tile["wm"] * (tile["bn"] // tile["wn"]) * 32
    sizes, layout = ((8, threads // 8), ColMajor) if dims[0] in over else ((threads // 8, 8), RowMajor)
    return call("load", name, SH, Move.tile(*sizes).unroll().tile(1, 1).to(Thread).layout(layout).done()), call(order), call("pad", 4)


WORD: Final = 4
"""Bytes of the elements that multiply-adds read in vectors of four."""


def because(by: Family, products: Sequence[Product]) -> str:
    """Return the reason for a family."""
    types = ", ".join(dict.fromkeys(str(dtype) for product in products for dtype in product.types))
    return {"warpgroups": f"wgmma multiplies {types}", "warps": f"mma.sync multiplies {types}", "lanes": f"multiply-adds of {types}"}[
        by.name
    ]


@frozen
class WarpgroupLoop(ProductLoop):
    """By wgmma, with a producer warp and a ring of stages."""

    name: ClassVar[str] = "warpgroup_loop"
    family: ClassVar[str] = "warpgroups"


@frozen
class WarpLoop(ProductLoop):
    """By mma.sync, with asynchronous copies where the target has them."""

    name: ClassVar[str] = "warp_loop"
    family: ClassVar[str] = "warps"


@frozen
class LaneLoop(ProductLoop):
    """By multiply-adds of lanes."""

    name: ClassVar[str] = "lane_loop"
    family: ClassVar[str] = "lanes"


RULES: tuple[Rule, ...] = (WarpgroupLoop(), WarpLoop(), LaneLoop())
