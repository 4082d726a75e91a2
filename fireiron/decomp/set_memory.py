"""`set_memory`: choose the memory of a temporary of a fused definition."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import attrs

from fireiron.errors import ArgumentError, DecompositionError, call_site
from fireiron.ir import Hole
from fireiron.language.tree import Child, Context, Decomposition, Expansion, legal_among
from fireiron.refine.pad import MOST
from fireiron.spec import Spec
from fireiron.specs.fused import FusedKind, TemporaryMemory, fused, with_definition
from fireiron.stepping.steps import allocated, unchanged
from fireiron.values.machine import RF, SH, Memory


@attrs.frozen
class SetMemory(Decomposition):
    """Allocate a temporary of the definition in a memory, at this level; in shared memory, one copy per unit of the level.

    `pad` is the padding of its rows in elements. Other temporaries are in registers.

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
        definition = fused(spec)
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
        if spec.level.is_launch or self.memory.of_grid or self.memory.counts:
            raise DecompositionError(
                f"set_memory({self.tensor!r}, {self.memory}): a temporary cannot be in {self.memory} at the level {spec.level}",
                legal="SH RF, below tile(...).to(Block)",
            )
        draft = context.draft()
        placed = (*definition.placed, TemporaryMemory(self.tensor, self.memory, self.pad))
        placed_spec = attrs.evolve(spec, kind=spec.kind.of(placed=placed))
        fresh = allocated(placed_spec, {self.tensor: definition.temporaries[self.tensor]}, draft)
        given = (*definition.given, (self.tensor, definition.temporaries[self.tensor]))
        types = {**dict(definition.types), self.tensor: fresh[self.tensor].dtype}
        child = with_definition(placed_spec, definition.of(given=given, placed=placed, types=tuple(types.items())), fresh)
        return draft.expansion((Child("body", child),), (Hole("body"),))


EXAMPLES = (SetMemory("h", Memory("SH", 1, "block", "shared memory")),)
"""Examples of the class, which has no default arguments."""

__all__ = ["SetMemory"]
