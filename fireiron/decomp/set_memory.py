"""`set_memory`: choose the memory of a temporary of a fused definition."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import ClassVar

import attrs

from fireiron.errors import ArgumentError, DecompositionError, call_site
from fireiron.frozen import frozen
from fireiron.ir import Hole
from fireiron.language.tree import Child, Context, Decomposition, Expansion, legal_among
from fireiron.refine.pad import MOST
from fireiron.spec import Spec
from fireiron.specs.fused import FusedKind, fused, with_definition
from fireiron.specs.fused_definition import FusedDefinition
from fireiron.specs.steps import TemporaryMemory
from fireiron.stepping.steps import allocated, unchanged
from fireiron.values.layout import Swizzle
from fireiron.values.machine import RF, SH, Memory


@frozen
class SetMemoryPlan:
    """The swizzle of the temporary's addresses, and the number of its copies that iterations use alternately (0: one)."""

    swizzle: Swizzle | Callable[[int, int], Swizzle | None] | None = None
    stages: int = 0


@frozen
class SetMemory(Decomposition):
    """Allocate a temporary of the definition in a memory, at this level; in shared memory, one copy per unit of the level.

    `pad` is the padding of its rows in elements. Other temporaries are in registers. Without padding and `swizzle_storage`, an instruction
    that reads the temporary from shared memory, such as `wgmma`, chooses its layout. Elementwise steps that write it and read no registers
    store vectors, by all threads of the level. `stages` is the number of copies that iterations use alternately.

    Legal below Block, for SH and RF. rewrite: definition --> allocate t in memory; definition on t

    Source: Cypress, section 3.3; decision 36.

    >>> from fireiron import *
    >>> doubled = Fused(
    ...     name="doubled", dims="m n k", operands={"A": "m k", "B": "k n", "C": "m n"},
    ...     body={"product": "c[m,n] = sum(k, A[m,k] * B[k,n])", "twice": "C[m,n] = c[m,n] * 2"},
    ... )

    >>> blocks = doubled.tile(m=16, n=16).to(Block).set_memory("c", SH, pad=1).step("product", MatMul.tile(1, 1).to(Thread).split(1).done())
    >>> text = blocks.done()(doubled(m=64, n=64, k=8)).cuda()
    >>> [line.strip() for line in text.splitlines() if "__shared__" in line]
    ['__shared__ __align__(16) float c_sh[272];  // 16 x 16']

    The next temporary is the operand of an MMA, which `ldmatrix` reads. The iterations of k use two copies of it alternately:

    >>> weights = Fused(
    ...     name="weights", dims="m n k", loop="k", operands={"A": "m k", "W": "n k", "C": "m n"}, init={"zero": "c[m,n] = 0"},
    ...     body={"weight": "w[n,k] = W[n,k] * 0.5", "product": "c[m,n] += sum(k, A[m,k] * w[n,k])"}, final={"out": "C[m,n] = c[m,n]"},
    ... )
    >>> chain = weights.tile(m=32, n=32).to(Block).split(k=32).load("A", SH).set_memory("w", SH).swizzle_storage().stages(2)
    >>> warps = MatMul.tile(16, 32).to(Warp).split(16).load(A, RF, Move.done()).load(B, RF, Move.done()).tile(16, 16).mma_tile().done()
    >>> text = chain.step("product", warps).done()(weights(m=64, n=64, k=128, types={"W": int8})).cuda("sm_80")
    >>> [line.strip() for line in text.splitlines() if "__half w_sh" in line]
    ['__shared__ __align__(16) __half w_sh[2048];  // 32 x 32, 2 stages']
    """

    verb: ClassVar[str] = "set_memory"
    kinds: ClassVar[tuple[str, ...]] = ("Fused",)
    tensor: str
    memory: Memory
    pad: int = 0

    def __attrs_post_init__(self) -> None:
        if not isinstance(self.tensor, str) or not isinstance(self.memory, Memory) or type(self.pad) is not int:
            raise ArgumentError(
                "set_memory needs the name of a temporary, a memory and a padding", got=(self.tensor, self.memory, self.pad), at=call_site()
            )
        if not 0 <= self.pad <= MOST:
            raise ArgumentError(
                "set_memory: pad must be a number of elements after each row", got=self.pad, legal=f"0 ... {MOST}", at=call_site()
            )

    @classmethod
    def choices(cls, spec: Spec, context: Context) -> Iterator[SetMemory]:
        definition = fused(spec)
        names = () if definition is None else definition.temporaries
        pads = ((SH, 0), (SH, 1), (SH, 4), (RF, 0))
        yield from legal_among((SetMemory(name, *where) for name in names for where in pads), spec, context)

    def expand(self, spec: Spec, context: Context) -> Expansion:
        definition, plan = fused(spec), self.planned(SetMemoryPlan())
        if definition is None or not isinstance(spec.kind, FusedKind):
            raise DecompositionError(
                f"set_memory({self.tensor!r}): {spec.title} has no temporaries", legal="a Fused definition of several steps"
            )
        if self.tensor in definition.known:
            legal = tuple(definition.temporaries) or "none"
            raise DecompositionError(
                f"set_memory({self.tensor!r}): {self.tensor} is an operand of {spec.title}, not a temporary",
                legal=legal,
                hint=f"load({self.tensor!r}, SH)",
            )
        if self.tensor not in definition.temporaries:
            if self.tensor in definition.uses or self.tensor not in definition.hidden:
                raise DecompositionError(
                    f"set_memory({self.tensor!r}): {self.tensor} is not a temporary of {spec.title}", legal=tuple(definition.temporaries)
                )
            return unchanged(spec)
        if spec.level.is_launch or self.memory.of_grid or self.memory.is_coordinate:
            raise DecompositionError(
                f"set_memory({self.tensor!r}, {self.memory}): a temporary cannot be in {self.memory} at the level {spec.level}",
                legal="SH RF, below tile(...).to(Block)",
            )
        self._require_effect(plan, definition, spec)
        draft = context.draft()
        free = self.memory.in_shared and not self.pad and plan.swizzle is None
        own = TemporaryMemory(self.tensor, self.memory, self.pad, swizzle=plan.swizzle, stages=plan.stages, free=free)
        placed = (*definition.placed, own)
        placed_spec = attrs.evolve(spec, kind=spec.kind.of(placed=placed))
        fresh = allocated(placed_spec, {self.tensor: definition.temporaries[self.tensor]}, draft)
        given = (*definition.given, (self.tensor, definition.temporaries[self.tensor]))
        types = {**dict(definition.types), self.tensor: fresh[self.tensor].dtype}
        child = with_definition(placed_spec, definition.of(given=given, placed=placed, types=tuple(types.items())), fresh)
        return draft.expansion((Child("body", child),), (Hole("body"),))

    def _require_effect(self, plan: SetMemoryPlan, definition: FusedDefinition, spec: Spec) -> None:
        """Refuse refinements of registers, and stages of a temporary that iterations leave to the next one."""
        requested = [name for name in ("swizzle", "stages") if getattr(plan, name)]
        if self.memory.private and requested:
            verbs = {"swizzle": "swizzle_storage", "stages": "stages"}
            raise DecompositionError(
                f"set_memory({self.tensor!r}, {self.memory}): {' and '.join(verbs[name] for name in requested)} of registers",
                legal="of SH", within=spec, hint=f"set_memory({self.tensor!r}, SH), or without {verbs[requested[0]]}",
            )  # fmt: skip
        if plan.stages and self.tensor in definition.carried:
            raise DecompositionError(
                f"stages({plan.stages}): {self.tensor} is carried between iterations, so each must use the same copy",
                legal="a temporary that each iteration writes before it reads it", within=spec, hint="leave out .stages(...)",
            )  # fmt: skip
        own = [step for step in definition.steps if step.formula.output == self.tensor]
        if plan.stages and not all(definition.loops_around(step) for step in own):
            raise DecompositionError(
                f"stages({plan.stages}): {self.tensor} is not computed in a loop of the definition, so no iterations alternate",
                legal="a temporary of body, with loop= or scan=", within=spec, hint="leave out .stages(...)",
            )  # fmt: skip
        copied = [step for step in own if step.formula.copies]
        operands = [view for step in copied for name, view in spec.operands.items() if name in step.reads and view.memory.of_grid]
        if plan.stages and operands:
            raise DecompositionError(
                f"stages({plan.stages}): step {copied[0].name} copies an operand to {self.tensor}, as a load does",
                legal="a temporary that is computed, or copied from SH or RF", within=spec,
                hint="pipeline(stages) of the split, without .stages",
            )  # fmt: skip


EXAMPLES = (SetMemory("h", Memory("SH", 1, "block", "shared memory")),)
"""Examples of the class, which has no default arguments."""

__all__ = ["SetMemory"]
