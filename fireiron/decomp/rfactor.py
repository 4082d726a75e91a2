"""`rfactor`: keep a reduction of a fused definition in partial results, one per thread or warp that has some of its terms."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from fireiron.errors import ArgumentError, DecompositionError, call_site
from fireiron.frozen import frozen
from fireiron.ir import Hole
from fireiron.language.tree import Child, Context, Decomposition, Expansion, legal_among
from fireiron.spec import Spec
from fireiron.specs.fused import FusedKind, fused, with_definition
from fireiron.specs.rfactor import rfactor
from fireiron.specs.steps import INDICES
from fireiron.values.expr import as_expr
from fireiron.values.machine import COORD, int32
from fireiron.values.tensor import ColMajor, Tensor, whole_view


@frozen
class Rfactor(Decomposition):
    """Keep a reduction in `parts` partial results, which are combined before a step reads the result.

    With `attention.rfactor("sums", 4)`, each of four lanes keeps its part of the row sums, and of all tensors that are linear in them,
    during the loop over keys. Shuffles combine the parts once, after the loop (Halide and TVM: `rfactor`).

    Legal on the whole definition, before `split`, for the sum, the maximum or the minimum of one tensor whose result is a temporary in
    registers. Other steps may write it only if they distribute over the parts: `l * alpha + sums` for a sum, not `l + 1`. `parts` is the
    number of threads that have terms of one result, or a divisor of that number; the most expensive exchanges are done first: between
    warps, then between distant lanes.
    rewrite: t[m] = sum(n, s[m,n]); u[m] = f(t[m]) --> t_parts[m,p] = own terms; t[m] = sum(p, t_parts[m,p]); u[m] = f(t[m])

    Source: decision 37.

    >>> from fireiron import *
    >>> rows = Fused(
    ...     name="row_sum", dims="m n", loop="n", operands={"X": "m n", "y": "m"},
    ...     init={"zero": "t[m] = 0"}, body={"sums": "s[m] = sum(n, X[m,n])", "add": "t[m] = t[m] + s[m]"}, final={"out": "y[m] = t[m]"},
    ... )
    >>> row = Move.tile(1, 128).to(Warp).tile(1, 4).to(Lane).done()
    >>> joined = rows.rfactor("sums", 32).tile(m=1).to(Block).split(n=128).load("X", RF, row).done()(rows(m=8, n=512)).cuda()
    >>> joined.index("for (int n =") < joined.rindex("warp_reduce_sum(")  # after the loop, not in each iteration
    True
    """

    verb: ClassVar[str] = "rfactor"
    kinds: ClassVar[tuple[str, ...]] = ("Fused",)
    step: str
    parts: int

    def __attrs_post_init__(self) -> None:
        is_integer = isinstance(self.parts, int) and not isinstance(self.parts, bool)
        if not isinstance(self.step, str) or not is_integer or self.parts < 2:
            raise ArgumentError(
                "rfactor needs the name of a step and a number of parts",
                got=(self.step, self.parts),
                legal="at least 2 parts",
                at=call_site(),
            )

    @classmethod
    def choices(cls, spec: Spec, context: Context) -> Iterator[Rfactor]:
        definition = fused(spec)
        names = () if definition is None else definition.names
        yield from legal_among((Rfactor(name, parts) for name in names for parts in (2, 4, 8, 16, 32)), spec, context)

    def expand(self, spec: Spec, context: Context) -> Expansion:
        definition = fused(spec)
        if not isinstance(spec.kind, FusedKind):
            raise DecompositionError(f"rfactor({self.step!r}): {spec.title} is one step", legal="a Fused definition")
        assert definition is not None
        if definition.strategy_of(self.step) is not None:
            raise DecompositionError(
                f"rfactor({self.step!r}): the step has its own strategy, which distributes its terms",
                hint=f"remove step({self.step!r}, ...)",
            )
        rewritten = rfactor(definition, self.step)
        index = f"{INDICES}{rewritten.order[-1]}"
        draft = context.draft()
        counted = whole_view(Tensor(draft.fresh(index), (as_expr(self.parts),), int32, COORD, ColMajor))
        return draft.expansion((Child("body", with_definition(spec, rewritten, {index: counted})),), (Hole("body"),))


EXAMPLES = (Rfactor("sums", 4),)
"""Examples of the class, which has no default arguments."""

__all__ = ["Rfactor"]
