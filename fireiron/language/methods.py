"""Methods for steps and refinements that are found in their folders: the class says all.

Its `verb` is the name, its docstring what `help` shows, and its fields are the arguments.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator
from types import ModuleType
from typing import Any

from fireiron.errors import ArgumentError
from fireiron.found import REFINING, FoundOnAny, FoundSteps
from fireiron.language.strategy import EpilogStrategy, LoadStrategy, SplitKStrategy, SplitStrategy, Strategy, TileStrategy, appended
from fireiron.language.tree import OF_EACH_STEP, Decomposition, Refinement
from fireiron.spec import Spec
from fireiron.specs.verbs import Verbs, fitting

_CHAINS = (Spec, Strategy, TileStrategy, SplitStrategy, SplitKStrategy, LoadStrategy, EpilogStrategy)


def add_found(decompositions: Iterable[ModuleType], refinements: Iterable[ModuleType]) -> None:
    """Give what modules state a method, but for steps whose verb is written out, and refinements that state none.

    Raises: ArgumentError where a verb is no name, or that of another method.
    """
    for step in _stated(decompositions, Decomposition):
        if step.verb not in vars(Verbs):
            _require_free(step)
            _add(FoundSteps, step, _appending(step))
    for refinement in _stated(refinements, Refinement):
        if refinement.verb:
            _require_free(refinement)
            for owner in _owners(refinement):
                _add(owner, refinement, _refining(refinement))


def _stated(modules: Iterable[ModuleType], base: type[Any]) -> Iterator[Any]:
    for module in modules:
        for name in getattr(module, "__all__", ()):
            one = getattr(module, name)
            if isinstance(one, type) and issubclass(one, base):
                yield one


def _owners(refinement: type[Refinement]) -> set[type]:
    """The classes of chains that the method of a refinement is for."""
    owners = {REFINING.get(verb, FoundOnAny) for verb in refinement.applies_to}
    return {FoundOnAny} if FoundOnAny in owners else owners


def _require_free(extension: Any) -> None:
    name = extension.verb
    if not name.isidentifier() or name.startswith("_") or any(hasattr(chain, name) for chain in _CHAINS):
        raise ArgumentError(f"{extension.__name__}: its verb {name!r} is no name for a method, or that of another", hint="another verb")


def _add(owner: type[Any], extension: Any, method: Callable[..., Any]) -> None:
    name = extension.verb
    method.__name__, method.__qualname__, method.__doc__ = name, f"{owner.__name__}.{name}", extension.__doc__
    fields = [one for one in inspect.signature(extension).parameters.values() if one.name not in OF_EACH_STEP]
    made = inspect.Signature([inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY), *fields], return_annotation="Strategy")
    method.__dict__.update(makes=extension, __signature__=made)
    setattr(owner, name, method)


def _appending(step: Any) -> Callable[..., Strategy]:
    @fitting
    def method(self: Verbs, *args: Any, **kwargs: Any) -> Strategy:
        return appended(self, step(*args, **kwargs))

    return method


def _refining(refinement: Any) -> Callable[..., Strategy]:
    @fitting
    def method(self: Strategy, *args: Any, **kwargs: Any) -> Strategy:
        return self.refine(refinement(*args, **kwargs))

    return method
