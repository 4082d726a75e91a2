"""`partial`: a reduction of a fused definition left in parts, one for each of those who hold its terms."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import attrs

from fireiron.errors import ArgumentError, DecompositionError, call_site
from fireiron.ir import Hole
from fireiron.language.tree import Child, Context, Decomposition, Expansion, legal_among
from fireiron.spec import Spec
from fireiron.specs.fused import INDICES, FusedKind, fused, with_definition
from fireiron.specs.partial import in_parts
from fireiron.values.expr import as_expr
from fireiron.values.machine import INDEX, int32
from fireiron.values.tensor import ColMajor, Tensor, whole_view


@attrs.frozen
class Partial(Decomposition):
    """A reduction left in `parts`: lanes and warps keep what their own terms make, and it is completed where a step reads it as a whole.

    `attention.partial("sums", 4)`: of the row sums each of four lanes has its own, block of keys after block of keys, and so of all that
    is linear in them; shuffles join them once, behind the loop.

    Legal on the whole definition, before `split`, for the sum, the maximum or the minimum of one tensor whose result is a temporary in
    registers, and is written elsewhere only so that its parts make the same: `l * alpha + sums` of a sum, not `l + 1`. As many parts as
    threads that hold terms of one result, or a divisor; dearest to join first: warps, then lanes far apart.
    rewrite: t[m] = sum(n, s[m,n]); u[m] = f(t[m]) --> t_parts[m,p] = own terms; t[m] = sum(p, t_parts[m,p]); u[m] = f(t[m])

    Source: decision 37.

    >>> from fireiron import *
    >>> rows = Fused(
    ...     name="row_sum", dims="m n", over="n", operands={"X": "m n", "y": "m"},
    ...     first={"zero": "t[m] = 0"}, each={"sums": "s[m] = sum(n, X[m,n])", "add": "t[m] = t[m] + s[m]"}, last={"out": "y[m] = t[m]"},
    ... )
    >>> row = Move.tile(1, 128).to(Warp).tile(1, 4).to(Lane).done()
    >>> joined = rows.partial("sums", 32).tile(m=1).to(Block).split(n=128).load("X", RF, row).done()(rows(m=8, n=512)).cuda()
    >>> joined.index("for (int n =") < joined.index("__shfl_xor_sync")  # behind the loop, not in each turn
    True
    """

    verb: ClassVar[str] = "partial"
    kinds: ClassVar[tuple[str, ...]] = ("Fused",)
    name: str
    parts: int

    def __attrs_post_init__(self) -> None:
        whole = isinstance(self.parts, int) and not isinstance(self.parts, bool)
        if not isinstance(self.name, str) or not whole or self.parts < 2:
            raise ArgumentError(
                "partial: the name of a step and how many parts", got=(self.name, self.parts), legal="2 and more", at=call_site()
            )

    @classmethod
    def choices(cls, spec: Spec, context: Context) -> Iterator[Partial]:
        made = fused(spec)
        names = () if made is None else made.names
        yield from legal_among((Partial(name, parts) for name in names for parts in (2, 4, 8, 16, 32)), spec, context)

    def expand(self, spec: Spec, context: Context) -> Expansion:
        made = fused(spec)
        if not isinstance(spec.kind, FusedKind):
            raise DecompositionError(f"partial({self.name!r}): {spec.title} is one step", legal="a Fused definition")
        assert made is not None
        if made.strategy_of(self.name) is not None:
            raise DecompositionError(
                f"partial({self.name!r}): the step has a strategy of its own, which says who adds up what",
                hint=f"no step({self.name!r}, ...)",
            )
        rewritten = in_parts(made, self.name)
        index = f"{INDICES}{rewritten.order[-1]}"
        draft = context.draft()
        counted = whole_view(Tensor(draft.fresh(index), (as_expr(self.parts),), int32, INDEX, ColMajor))
        return draft.expansion((Child("body", with_definition(spec, rewritten, {index: counted})),), (Hole("body"),))


EXAMPLES = (Partial("sums", 4),)
"""Any of the kind, which cannot be made without arguments."""

__all__ = ["Partial"]
