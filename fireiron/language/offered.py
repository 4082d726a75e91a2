"""Which verbs are for the kind of spec that a chain is for: what `dir()` and notebooks list, as type checkers do."""

from __future__ import annotations

import functools
from typing import Final

from fireiron import decomp, specs
from fireiron.language.strategy import Strategy
from fireiron.language.tree import Decomposition
from fireiron.spec import AnyStarter, Kind, Spec, Starter
from fireiron.specs.fused import FusedKind
from fireiron.specs.verbs import Verbs

EVERY: Final = "Every"
"""Where nobody knows the kind: all verbs."""


def listed(chain: object) -> list[str]:
    """The names that an object has, but for verbs that are for other kinds of specs."""
    kind = kind_of(chain)
    hidden = {verb for verb, step in steps().items() if kind != EVERY and step.kinds and kind not in step.kinds}
    return [name for name in object.__dir__(chain) if name not in hidden]


def kind_of(chain: object) -> str:
    """What `Decomposition.kinds` call the kind of spec that a chain, a spec, or a name of a kind is for."""
    start = chain.start if isinstance(chain, Strategy) else chain.starter if isinstance(chain, Spec) else chain
    if isinstance(start, AnyStarter) or not isinstance(start, Starter):
        return EVERY
    return "Fused" if isinstance(start.kind, FusedKind) else _kinds().get(start.kind, EVERY)


@functools.cache
def steps() -> dict[str, type[Decomposition]]:
    """The steps that have methods, by their verb."""
    every = (getattr(module, name) for module in decomp.MODULES for name in getattr(module, "__all__", ()))
    found = (one for one in every if isinstance(one, type) and issubclass(one, Decomposition))
    return {one.verb: one for one in found if hasattr(Verbs, one.verb)}


@functools.cache
def _kinds() -> dict[Kind, str]:
    """The kinds of the package that have a class of their own, by what is offered for them."""
    starters = (getattr(module, name) for module in specs.modules() for name in getattr(module, "__all__", ()))
    offered = ((one.kind, base.__name__) for one in starters if isinstance(one, Starter) for base in type(one).__mro__)
    return {kind: name.removeprefix("For") for kind, name in offered if name.startswith("For")}


__all__ = ["kind_of", "listed", "steps"]
