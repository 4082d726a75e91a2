"""The verbs that are legal for the kind of spec of a chain, for `dir()` and notebooks; type checkers list the same verbs."""

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
"""The name of an unknown kind, for which all verbs are listed."""


def listed(chain: object) -> list[str]:
    """Return the names of an object, without verbs for other kinds of specs."""
    kind = kind_of(chain)
    hidden = {verb for verb, step in steps().items() if kind != EVERY and step.kinds and kind not in step.kinds}
    return [name for name in object.__dir__(chain) if name not in hidden]


def kind_of(chain: object) -> str:
    """Return the kind of a chain, a spec or a starter, by its name in `Decomposition.kinds`."""
    start = chain.start if isinstance(chain, Strategy) else chain.starter if isinstance(chain, Spec) else chain
    if isinstance(start, AnyStarter) or not isinstance(start, Starter):
        return EVERY
    return "Fused" if isinstance(start.kind, FusedKind) else _kinds().get(start.kind, EVERY)


@functools.cache
def steps() -> dict[str, type[Decomposition]]:
    """Return the steps that have methods, by verb."""
    public = (getattr(module, name) for module in decomp.MODULES for name in getattr(module, "__all__", ()))
    kinds = (value for value in public if isinstance(value, type) and issubclass(value, Decomposition))
    return {kind.verb: kind for kind in kinds if hasattr(Verbs, kind.verb)}


@functools.cache
def _kinds() -> dict[Kind, str]:
    """Return the names of the kinds that have their own class of verbs, such as `ForMatMul`."""
    public = (getattr(module, name) for module in specs.modules() for name in getattr(module, "__all__", ()))
    offered = ((value.kind, base.__name__) for value in public if isinstance(value, Starter) for base in type(value).__mro__)
    return {kind: name.removeprefix("For") for kind, name in offered if name.startswith("For")}


__all__ = ["kind_of", "listed", "steps"]
