"""`step`: set the strategy of one step of a fused definition."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar

import attrs

from fireiron.errors import ArgumentError, DecompositionError, call_site, shown
from fireiron.frozen import frozen
from fireiron.ir import Hole
from fireiron.language.substrategy import Chain, chain, default_copy, require_steps
from fireiron.language.tree import Child, Context, Decomposition, Expansion, legal_among, verb
from fireiron.spec import Spec
from fireiron.specs.fused import FusedKind, fused

if TYPE_CHECKING:
    from fireiron.language.strategy import Strategy


def _steps(value: Any) -> Any:
    """Return the steps of a strategy; return a tuple of steps unchanged."""
    if not isinstance(value, Chain):
        return value
    if value.spec is not None or value.others:
        raise DecompositionError("step: the strategy is bound to a spec, or has alternatives", hint="build it from MatMul or Move")
    return value.steps


@frozen
class StepOf(Decomposition):
    """A strategy for the step `name`, which starts from the kind of spec of its formula, such as MatMul.

    Legal if the definition has such a step. rewrite: definition --> definition with a strategy for that step

    Source: Graphene, section 5.3: the decomposition of a spec defines a fused kernel.
    """

    verb: ClassVar[str] = "step"
    kinds: ClassVar[tuple[str, ...]] = ("Fused",)
    name: str
    strategy: Any = attrs.field(converter=_steps)

    def __attrs_post_init__(self) -> None:
        if not isinstance(self.name, str):
            raise ArgumentError("step needs the name of a step of the definition", got=self.name, at=call_site())
        require_steps(self.strategy, f"step {shown(self.name)}")

    def label(self) -> str:
        return f'step("{self.name}", AnySpec{chain(self.strategy)})'

    def summary(self) -> str:
        if self.strategy == default_copy():
            return f'step("{self.name}")'
        return f'step("{self.name}", AnySpec{chain(self.strategy, summary=True)})'

    @classmethod
    def choices(cls, spec: Spec, context: Context) -> Iterator[StepOf]:
        definition = fused(spec)
        open_steps = () if definition is None else (name for name in definition.names if definition.strategy_of(name) is None)
        yield from legal_among((StepOf(name, default_copy()) for name in open_steps), spec, context)

    def expand(self, spec: Spec, context: Context) -> Expansion:
        definition = fused(spec)
        if definition is None or not isinstance(spec.kind, FusedKind):
            raise DecompositionError(
                f"step({self.name!r}): {spec.title} is one step", legal="a Fused definition",
                hint="put step(...) before epilog(...) and split(...) of the matmul: steps after these apply to the matmul only",
            )  # fmt: skip
        if self.name not in definition.names:
            raise DecompositionError(f"step({self.name!r}): {spec.title} has no such step", legal=definition.names)
        chosen = {**dict(definition.chosen), self.name: self.strategy}
        child = attrs.evolve(spec, kind=spec.kind.of(chosen=tuple(chosen.items())))
        return Expansion((Child("body", child),), (Hole("body"),))


@verb()
def step(name: str, strategy: Strategy) -> StepOf:
    """Give one step of a fused definition a strategy: a chain from the kind of spec of its formula, such as MatMul.

    Legal on a definition with such a step.
    rewrite: definition --> definition with a strategy for the step      (Graphene, section 5.3)

    >>> from fireiron import *
    >>> doubled = Fused(
    ...     name="doubled", dims="m n k", operands={"A": "m k", "B": "k n", "C": "m n"},
    ...     body={"product": "c[m,n] = sum(k, A[m,k] * B[k,n])", "twice": "C[m,n] = c[m,n] * 2"},
    ... )

    >>> by_threads = MatMul.tile(1, 1).to(Thread).split(1).done()
    >>> text = doubled.tile(m=16, n=16).to(Block).step("product", by_threads).done()(doubled(m=64, n=64, k=8)).cuda()
    >>> [line.strip() for line in text.splitlines() if "// twice" in line]
    ['// twice: C[m,n] = c[m,n] * 2']
    """
    return StepOf(name, strategy, origin=call_site())


EXAMPLES = (StepOf("mm", ()),)
"""Examples of the class, which has no default arguments."""

__all__ = ["StepOf"]
