"""Methods for steps and refinements that are found in their folders: a file says all.

A class with a `verb` has a method of this name, with its docstring, and its fields as arguments. Other verbs of a refinement are the
functions of its file that are marked `verb`, with their signatures and docstrings.
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
    for module in decompositions:
        for step in _stated(module, Decomposition):
            if step.verb not in vars(Verbs):
                _add(FoundSteps, step, step, _appending(step))
    for module in refinements:
        for refinement in _stated(module, Refinement):
            for make in _verbs(module, refinement):
                for owner in _owners(make.applies_to or refinement.applies_to):
                    _add(owner, refinement, make, _refining(owner, make))


def _stated(module: ModuleType, base: type[Any]) -> Iterator[Any]:
    public = (getattr(module, name) for name in getattr(module, "__all__", ()))
    yield from (one for one in public if isinstance(one, type) and issubclass(one, base))


def _verbs(module: ModuleType, refinement: type[Refinement]) -> Iterator[Any]:
    """What makes a refinement of arguments: the class, if it has a verb, and the functions of its file that are verbs."""
    if refinement.verb:
        yield refinement
    yield from (
        one for one in vars(module).values() if inspect.isfunction(one) and hasattr(one, "verb") and one.__module__ == module.__name__
    )


def _owners(steps: Iterable[str]) -> set[type]:
    """The classes of chains that the method of a refinement of some steps is for."""
    owners = {REFINING.get(step, FoundOnAny) for step in steps}
    return {FoundOnAny} if FoundOnAny in owners else owners


def _add(owner: type[Any], extension: Any, make: Any, method: Callable[..., Any]) -> None:
    """Give the chains of an owner a method that makes an extension."""
    name, is_step = make.verb, getattr(make, "is_step", False)
    taken = any(hasattr(chain, name) for chain in _CHAINS if issubclass(chain, owner))
    if not name.isidentifier() or name.startswith("_") or taken != is_step:
        raise ArgumentError(f"{extension.__name__}: its verb {name!r} is no name for a method, or that of another", hint="another verb")
    method.__name__, method.__qualname__, method.__module__ = name, f"{owner.__name__}.{name}", make.__module__
    method.__doc__ = make.__doc__
    given = [one for one in inspect.signature(make).parameters.values() if one.name not in OF_EACH_STEP]
    itself = inspect.Parameter.POSITIONAL_ONLY if make is extension else inspect.Parameter.POSITIONAL_OR_KEYWORD  # fields have any name
    result = "Strategy" if owner is FoundSteps or is_step else "Self"
    signature = inspect.Signature([inspect.Parameter("self", itself), *given], return_annotation=result)
    method.__dict__.update(makes=extension, made_by=make, __signature__=signature)
    setattr(owner, name, method)


def _appending(step: Any) -> Callable[..., Strategy]:
    @fitting
    def method(self: Verbs, *args: Any, **kwargs: Any) -> Strategy:
        return appended(self, step(*args, **kwargs))

    return method


def _refining(owner: type[Any], make: Any) -> Callable[..., Strategy]:
    @fitting
    def method(self: Strategy, *args: Any, **kwargs: Any) -> Strategy:
        refinement = make(*args, **kwargs)
        return self.refine(refinement) if refinement is not None else getattr(super(owner, self), make.verb)(*args, **kwargs)

    return method
