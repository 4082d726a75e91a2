"""Add methods to chains for the steps and refinements of the folders `decomp` and `refine`.

A class with a `verb` becomes a method of this name, with its docstring, and with its fields as arguments. If the file of a class contains
functions with the decorator `verb`, each of them becomes a method with its signature and docstring; the class of a step then becomes none.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator
from types import ModuleType
from typing import Any

from fireiron.errors import ArgumentError, FireironError, LayoutError
from fireiron.generated_verbs import REFINEMENT_VERBS, OtherVerbs, StepVerbs
from fireiron.language.strategy import (
    EpilogStrategy,
    LoadStrategy,
    SetMemoryStrategy,
    SplitKStrategy,
    SplitStrategy,
    Strategy,
    TileStrategy,
    ToGpusStrategy,
    appended,
)
from fireiron.language.tree import OF_EACH_STEP, Decomposition, Refinement
from fireiron.spec import Spec
from fireiron.specs.verbs import ChainHooks, Verbs, checked_arguments
from fireiron.values.tensor import Printed, Tensor, View

_ENDS = (TileStrategy, SplitStrategy, SplitKStrategy, LoadStrategy, EpilogStrategy, SetMemoryStrategy, ToGpusStrategy)
_CHAINS = (Spec, Strategy, *_ENDS)


def add_verbs(decompositions: Iterable[ModuleType], refinements: Iterable[ModuleType]) -> None:
    """Add a method for each verb of the modules, and register functions of this layer with lower layers.

    Raises: an `ArgumentError` if a verb is not an identifier, or is the name of another method.
    """
    setattr(Verbs, then.__name__, then)
    answers: tuple[tuple[type[Any], Callable[..., Any]], ...] = (
        (ChainHooks, listed), (ChainHooks, misplaced), (ChainHooks, is_refinement), (Printed, text)
    )  # fmt: skip
    for owner, answer in answers:
        setattr(owner, answer.__name__, staticmethod(answer))
    for module in decompositions:
        for step in _public_classes(module, Decomposition):
            for make in _verbs(module) or (step,):
                _add(StepVerbs, step, make, _appending(make, _chain_of(step)))
    for module in refinements:
        for refinement in _public_classes(module, Refinement):
            for make in (*((refinement,) if refinement.verb else ()), *_verbs(module)):
                for chain in _owners(make.applies_to or refinement.applies_to):
                    _add(chain, refinement, make, _refining(make))


@checked_arguments
def then(self: Verbs, step: Decomposition | Strategy) -> Strategy:
    """Append a decomposition, or all steps of another strategy.

    Legal when the chain is not finished by `done`.
    rewrite: steps --> steps, step

    Source: Fireiron, section 3.3.

    >>> from fireiron import *
    >>> blocks, threads = MatMul.tile(16, 16).to(Block), MatMul.tile(4, 4).to(Thread)
    >>> blocks.then(threads)
    MatMul.tile(16, 16).to(Block).tile(4, 4).to(Thread)
    """
    return appended(self, step)


def listed(chain: object) -> list[str]:
    """Return the names of an object, without verbs for other kinds of specs."""
    from fireiron.language import offered  # imported when needed: compiling a kernel does not need it

    return offered.listed(chain)


def is_refinement(name: str) -> bool:
    """Whether a verb of this name refines a step."""
    from fireiron.language import misplaced  # imported when needed

    return misplaced.is_refinement(name)


def misplaced(chain: object, name: str) -> FireironError | None:
    """Return the error for a refinement that a chain does not have."""
    from fireiron.language import misplaced  # imported when needed

    return misplaced.misplaced(chain, name)


def text(value: Tensor | View, kind: str) -> str:
    """Return a tensor or a view in Graphene's notation; its `repr` if the notation cannot express it."""
    from fireiron.values import notation  # imported when needed

    try:
        return str(getattr(notation, kind)(value))
    except LayoutError:
        return repr(value)


def _public_classes(module: ModuleType, base: type[Any]) -> Iterator[Any]:
    public = (getattr(module, name) for name in getattr(module, "__all__", ()))
    yield from (value for value in public if isinstance(value, type) and issubclass(value, base))


def _verbs(module: ModuleType) -> tuple[Any, ...]:
    """Return the functions of a file with the decorator `verb`. They make its step or refinement from other arguments than its fields."""
    functions = (value for value in vars(module).values() if inspect.isfunction(value) and value.__module__ == module.__name__)
    return tuple(function for function in functions if hasattr(function, "verb"))


def _chain_of(step: type[Decomposition]) -> type[Strategy]:
    """Return the class of chains that end with a step: it has the methods that refine the step."""
    owner = REFINEMENT_VERBS.get(step.verb)
    return next((chain for chain in _ENDS if owner is not None and issubclass(chain, owner)), Strategy)


def _owners(steps: Iterable[str]) -> set[type]:
    """Return the classes of chains that get the method of a refinement of some steps."""
    owners = {REFINEMENT_VERBS.get(step, OtherVerbs) for step in steps}
    return {OtherVerbs} if OtherVerbs in owners else owners


def _add(owner: type[Any], extension: Any, make: Any, method: Callable[..., Any]) -> None:
    """Add a method that makes an extension to the chains of an owner."""
    name = make.verb
    is_defined = any(hasattr(chain, name) for chain in _CHAINS if issubclass(chain, owner))
    if not name.isidentifier() or name.startswith("_") or is_defined:
        raise ArgumentError(f"{extension.__name__}: its verb {name!r} is not an identifier, or is in use", hint="use another verb")
    method.__name__, method.__qualname__, method.__module__ = name, f"{owner.__name__}.{name}", make.__module__
    method.__doc__ = make.__doc__
    parameters = inspect.signature(make).parameters.values()
    arguments = [parameter for parameter in parameters if parameter.name not in OF_EACH_STEP]
    itself = (
        inspect.Parameter.POSITIONAL_ONLY if make is extension else inspect.Parameter.POSITIONAL_OR_KEYWORD
    )  # a field may be called self
    result = _chain_of(extension).__name__ if owner is StepVerbs else "Self"
    signature = inspect.Signature([inspect.Parameter("self", itself), *arguments], return_annotation=result)
    method.__dict__.update(makes=extension, made_by=make, __signature__=signature)
    setattr(owner, name, method)


def _appending(make: Any, kind: type[Strategy]) -> Callable[..., Strategy]:
    @checked_arguments
    def method(self: Verbs, *args: Any, **kwargs: Any) -> Strategy:
        return appended(self, make(*args, **kwargs), kind)

    return method


def _refining(make: Any) -> Callable[..., Strategy]:
    @checked_arguments
    def method(self: Strategy, *args: Any, **kwargs: Any) -> Strategy:
        return self.refine(make(*args, **kwargs))

    return method
