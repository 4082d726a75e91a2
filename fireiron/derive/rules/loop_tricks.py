"""Tricks for loops over blocks of keys: skip masked iterations, keep partial sums, run a product one iteration later."""

from __future__ import annotations

from typing import ClassVar, Final

from fireiron.derive.facts import Facts
from fireiron.derive.rule import Rule, Trick
from fireiron.derive.sketch import Decision, Part, Sketch, call
from fireiron.frozen import frozen
from fireiron.specs.formula import Element, Operation, Value
from fireiron.specs.move import Move
from fireiron.specs.steps import INDICES, Step
from fireiron.values.machine import RF, Block, Warpgroup

RANK = 45

LANES_OF_ROW = 4
"""Lanes that have elements of one row of an accumulator of mma.sync or wgmma (PTX ISA, figures of their fragments)."""


HEADS: Final = (4, 8, 16, 1)
"""Heads whose longest tiles start together. One after another takes 1.2 times as long (2026-11-30, H200, 16 heads of length 4096)."""


@frozen
class SkipMasked(Trick):
    """Skip the iterations in which a mask excludes all elements of a block's rows."""

    name: ClassVar[str] = "skip_masked_tiles"

    def refusal(self, facts: Facts, sketch: Sketch) -> str:
        if not sketch.has("loop") or not facts.loops:
            return "the definition has no loop of products"
        (loop, *_) = facts.loops
        return (
            ""
            if any(_is_masked(step.formula.value, loop) for step in facts.steps)
            else f"no step replaces elements by their position along {loop}"
        )

    def amend(self, facts: Facts, sketch: Sketch) -> Sketch:
        return sketch.refined("loop", call("skip_masked_tiles")).by(self.name, "a mask excludes whole iterations of some blocks")


def _is_masked(value: Value | None, loop: str) -> bool:
    """Whether a value contains `where` with a condition on the coordinate of a loop."""
    if not isinstance(value, Operation):
        return False
    if value.name == "where" and f"{INDICES}{loop}" in str(value.arguments[0]):
        return True
    return any(_is_masked(argument, loop) for argument in value.arguments)


@frozen
class PartialSums(Trick):
    """Each lane of a row adds up its own elements in the loop; the lanes' sums are combined once, after the loop."""

    name: ClassVar[str] = "partial_sums"

    def refusal(self, facts: Facts, sketch: Sketch) -> str:
        if sketch.family not in ("warpgroups", "warps") or not sketch.has("units"):
            return "lanes do not share whole rows of accumulators"
        return "" if self._sums(facts) else "no sum of a row is only added up in the loop"

    def amend(self, facts: Facts, sketch: Sketch) -> Sketch:
        first = sketch.parts[0].name
        for name in self._sums(facts):
            sketch = sketch.inserted(first, Part(f"rfactor {name}", (call("rfactor", name, LANES_OF_ROW),), "", self.name))
        return sketch.by(self.name, f"the {LANES_OF_ROW} lanes of a row exchange their sums once, not in each iteration")

    @staticmethod
    def _sums(facts: Facts) -> tuple[str, ...]:
        """The sums along a loop of elements of one tensor."""
        return tuple(
            step.name
            for step in facts.reductions
            if step.formula.reduction == "sum"
            and step.formula.reduces
            and set(step.formula.over) <= set(facts.loops)
            and len(step.formula.over) == 1
        )


@frozen
class DeferProduct(Trick):
    """Run the last product of an iteration in the next one, so that it overlaps with the functions of elements."""

    name: ClassVar[str] = "defer"

    def refusal(self, facts: Facts, sketch: Sketch) -> str:
        if sketch.family != "warpgroups" or not sketch.has("units"):
            return "products are not asynchronous, or no product follows another one"
        return (
            ""
            if len(facts.products) == 2 and facts.products[1].left not in facts.arrays
            else "it has not two products of which one reads the other"
        )

    def amend(self, facts: Facts, sketch: Sketch) -> Sketch:
        first, second = (product.step for product in facts.products)
        named = sketch.refined("loop", call("defer", second, after=first))
        return named.by(self.name, f"{second} of an iteration overlaps with the functions of the next one")


@frozen
class LongestFirst(Trick):
    """Start the blocks with the most iterations first, if a mask leaves blocks of later rows more iterations."""

    name: ClassVar[str] = "longest_first"
    trusted: ClassVar[bool] = True

    def refusal(self, facts: Facts, sketch: Sketch) -> str:
        if SkipMasked.name not in dict(sketch.tricks) or not sketch.has("units"):
            return "all blocks have equally many iterations"
        (loop, *_), (m, *_) = facts.loops, facts.products[0].rows
        rising = any(f"{INDICES}{loop}[{loop}] <= {INDICES}{m}[{m}]" in str(step.formula) for step in facts.steps)
        bounded = any(f"{INDICES}{m}[{m}] < {INDICES}{loop}" in str(step.formula) for step in facts.steps)
        return "" if rising and not bounded else f"the iterations do not grow with {m}"

    def amend(self, facts: Facts, sketch: Sketch) -> Sketch:
        (m, *_) = facts.products[0].rows
        group = Decision.of("heads_per_group", HEADS, "{heads_per_group} heads at a time, whose operands fit in L2 together")
        named = sketch.refined("blocks", call("longest_first", m, group["heads_per_group"])).deciding(group)
        return named.by(self.name, f"rows with a larger {m} have more iterations, so they start first")


@frozen
class BatchApart(Trick):
    """Number the blocks of one element of the batch, such as a head, in succession."""

    name: ClassVar[str] = "batch_apart"
    trusted: ClassVar[bool] = True

    def refusal(self, facts: Facts, sketch: Sketch) -> str:
        if not sketch.has("units") or LongestFirst.name in dict(sketch.tricks):
            return "blocks have no rows of a batch, or start in another order"
        return "" if self._others(sketch) else "a block has rows of the only batch"

    def amend(self, facts: Facts, sketch: Sketch) -> Sketch:
        first, *rest = sketch.part("blocks").calls
        others = self._others(sketch)
        rows = {dim: size for dim, size in first.named if dim not in others}
        batch = Part("batch", (call("tile", **dict.fromkeys(others, 1)), call("to", Block)), "", self.name)
        sketch = sketch.replaced("blocks", call("tile", **rows), *rest).inserted("blocks", batch)
        return sketch.by(self.name, f"concurrent blocks read the same elements of {', '.join(others)} from L2")

    @staticmethod
    def _others(sketch: Sketch) -> tuple[str, ...]:
        """The dimensions of which a block has one element."""
        (first, *_) = sketch.part("blocks").calls
        return tuple(dim for dim, size in first.named if size == 1 and isinstance(size, int))


@frozen
class SkipIdentity(Trick):
    """Skip multiplications by 1: a warp branches around steps that would change nothing."""

    name: ClassVar[str] = "skip_identity"

    def refusal(self, facts: Facts, sketch: Sketch) -> str:
        if not sketch.has("units"):
            return "no accumulator of a product is scaled in the loop"
        return "" if self._scalings(facts) else "no step only multiplies a carried tensor by a factor"

    def amend(self, facts: Facts, sketch: Sketch) -> Sketch:
        scalings = self._scalings(facts)
        vectors = {step.name: factor for step, factor in scalings if not self._is_sum(facts, step)}
        for factor in dict.fromkeys(vectors.values()):
            group = self._group(facts, factor, [name for name, own in vectors.items() if own == factor])
            if group is not None:
                names, condition = group
                part = Part(f"skip {factor}", (call("skip_steps", *names, where=condition),), "", self.name)
                sketch = sketch.inserted("done", part)
        for step, factor in scalings:
            if self._is_sum(facts, step):
                part = Part(f"skip {step.name}", (call("skip_steps", step.name, where=f"{factor} == 1"),), "", self.name)
                sketch = sketch.inserted("done", part)
        return sketch.by(self.name, "most iterations do not change a maximum, so accumulators are multiplied by 1")

    @staticmethod
    def _scalings(facts: Facts) -> list[tuple[Step, str]]:
        """The steps of a loop that only multiply a tensor by a factor with fewer dimensions, and the names of the factors."""
        scalings = []
        for step in facts.steps:
            value, target = step.formula.value, step.formula.target
            if step.part == "body" and isinstance(value, Operation) and value.name == "*" and not step.formula.reduction:
                left, right = value.arguments
                if left == target and isinstance(right, Element) and right.tensor not in facts.spec.operands:
                    scalings.append((step, right.tensor))
        return scalings

    @staticmethod
    def _is_sum(facts: Facts, step: Step) -> bool:
        return step.formula.output in {product.result for product in facts.products}

    @staticmethod
    def _group(facts: Facts, factor: str, scaled: list[str]) -> tuple[list[str], str] | None:
        """The steps that change nothing if a maximum stays: `f = exp2(old - new)`, `x = x * f`, `old = new`; and the condition."""
        writers = [step for step in facts.steps if step.formula.output == factor]
        readers = [step for step in facts.steps if any(element.tensor == factor for element in step.formula.elements)]
        value = writers[0].formula.value if len(writers) == 1 else None
        if not isinstance(value, Operation) or not value.name.startswith("exp") or not isinstance(value.arguments[0], Operation):
            return None
        difference = value.arguments[0]
        if difference.name != "-" or not all(isinstance(one, Element) for one in difference.arguments):
            return None
        old, new = (one.tensor for one in difference.arguments if isinstance(one, Element))
        keeps = [step for step in facts.steps if step.formula.output == old and step.formula.copies and step.part == "body"]
        plain = all(step.name in scaled or SkipIdentity._is_sum(facts, step) for step in readers)
        if len(keeps) != 1 or not plain or keeps[0].formula.elements[0].tensor != new:
            return None
        names = {writers[0].name, keeps[0].name, *scaled}
        return [step.name for step in facts.steps if step.name in names], f"{new} == {old}"


@frozen
class RowsInRegisters(Trick):
    """Keep the operand that a warpgroup has for the whole loop in registers, so that its product reads only the other one."""

    name: ClassVar[str] = "rows_in_registers"
    usual: ClassVar[bool] = False

    def refusal(self, facts: Facts, sketch: Sketch) -> str:
        if sketch.family != "warpgroups" or not sketch.has("units"):
            return "products read no operand again and again"
        return "" if self._kept(facts) else "each iteration loads all operands"

    def amend(self, facts: Facts, sketch: Sketch) -> Sketch:
        for name in self._kept(facts):
            fragments = Move.tile(64).to(Warpgroup).tile(64, 16).unroll().done()
            sketch = sketch.inserted("loop", Part(f"keep {name}", (call("load", name, RF, fragments),), "", self.name))
        return sketch.by(self.name, "a product reads one operand instead of two from shared memory")

    @staticmethod
    def _kept(facts: Facts) -> tuple[str, ...]:
        """The left operands of products that no loop changes."""
        loops = set(facts.loops)
        return tuple(
            product.left for product in facts.products if product.left in product.arrays and not loops & set(facts.dims_of(product.left))
        )


@frozen
class ClaimTiles(Trick):
    """Persistent blocks claim the tile with the most remaining iterations, if a mask leaves blocks different numbers of them."""

    name: ClassVar[str] = "claim_tiles"
    usual: ClassVar[bool] = False

    def refusal(self, facts: Facts, sketch: Sketch) -> str:
        if LongestFirst.name not in dict(sketch.tricks) or sketch.family != "warpgroups":
            return "all blocks have equally many iterations, or no producer warp could load the next tile early"
        return ""

    def amend(self, facts: Facts, sketch: Sketch) -> Sketch:
        named = sketch.refined("blocks", call("persistent", facts.gpu.multiprocessors, True))
        return named.by(self.name, "blocks with few iterations take more tiles")


RULES: tuple[Rule, ...] = (
    PartialSums(),
    SkipMasked(),
    LongestFirst(),
    BatchApart(),
    ClaimTiles(),
    DeferProduct(),
    SkipIdentity(),
    RowsInRegisters(),
)
