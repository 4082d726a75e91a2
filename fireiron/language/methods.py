"""Methods for steps and refinements that are found in their folders: a file says all.

A class with a `verb` has a method of this name, with its docstring, and its fields as arguments. Other verbs are the functions of its file
that are marked `verb`, with their signatures and docstrings; of a step they are all that it has.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator
from types import ModuleType
from typing import Any

from fireiron.errors import ArgumentError, FireironError, LayoutError
from fireiron.generated_verbs import REFINEMENT_VERBS, OtherVerbs, StepVerbs
from fireiron.language.strategy import EpilogStrategy, LoadStrategy, SplitKStrategy, SplitStrategy, Strategy, TileStrategy, appended
from fireiron.language.tree import OF_EACH_STEP, Decomposition, Refinement
from fireiron.spec import Spec
from fireiron.specs.verbs import Told, Verbs, fitting
from fireiron.values.tensor import Printed, Tensor, View

_ENDS = (TileStrategy, SplitStrategy, SplitKStrategy, LoadStrategy, EpilogStrategy)
_CHAINS = (Spec, Strategy, *_ENDS)


def add_found(decompositions: Iterable[ModuleType], refinements: Iterable[ModuleType]) -> None:
    """Give what modules state a method, but for refinements that state none, and tell rooms below what they cannot know.

    Raises: ArgumentError where a verb is no name, or that of another method.
    """
    setattr(Verbs, then.__name__, then)
    answers: tuple[tuple[type[Any], Callable[..., Any]], ...] = ((Told, listed), (Told, misplaced), (Printed, text))
    for owner, answer in answers:
        setattr(owner, answer.__name__, staticmethod(answer))
    for module in decompositions:
        for step in _stated(module, Decomposition):
            for make in _verbs(module) or (step,):
                _add(StepVerbs, step, make, _appending(make, _chain_of(step)))
    for module in refinements:
        for refinement in _stated(module, Refinement):
            for make in (*((refinement,) if refinement.verb else ()), *_verbs(module)):
                for chain in _owners(make.applies_to or refinement.applies_to):
                    _add(chain, refinement, make, _refining(make))


@fitting
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
    """The names that an object has, but for verbs that are for other kinds of specs."""
    from fireiron.language import offered  # when it is asked: the names need not be known for kernels

    return offered.listed(chain)


def misplaced(chain: object, name: str) -> FireironError | None:
    """The error of asking a chain, or what one starts from, for a refinement that it has not."""
    from fireiron.language import misplaced  # when something is refused

    return misplaced.misplaced(chain, name)


def text(value: Tensor | View, kind: str) -> str:
    """Graphene's notation of a tensor or a view; its `repr` where no text says all of it."""
    from fireiron.values import notation  # when something is printed

    try:
        return str(getattr(notation, kind)(value))
    except LayoutError:
        return repr(value)


def _stated(module: ModuleType, base: type[Any]) -> Iterator[Any]:
    public = (getattr(module, name) for name in getattr(module, "__all__", ()))
    yield from (one for one in public if isinstance(one, type) and issubclass(one, base))


def _verbs(module: ModuleType) -> tuple[Any, ...]:
    """The functions of a file that are verbs: they make its step or refinement of other arguments than its fields."""
    functions = (one for one in vars(module).values() if inspect.isfunction(one) and one.__module__ == module.__name__)
    return tuple(one for one in functions if hasattr(one, "verb"))


def _chain_of(step: type[Decomposition]) -> type[Strategy]:
    """The class of chains that end with a step: it has the methods that refine it."""
    owner = REFINEMENT_VERBS.get(step.verb)
    return next((chain for chain in _ENDS if owner is not None and issubclass(chain, owner)), Strategy)


def _owners(steps: Iterable[str]) -> set[type]:
    """The classes of chains that the method of a refinement of some steps is for."""
    owners = {REFINEMENT_VERBS.get(step, OtherVerbs) for step in steps}
    return {OtherVerbs} if OtherVerbs in owners else owners


def _add(owner: type[Any], extension: Any, make: Any, method: Callable[..., Any]) -> None:
    """Give the chains of an owner a method that makes an extension."""
    name = make.verb
    taken = any(hasattr(chain, name) for chain in _CHAINS if issubclass(chain, owner))
    if not name.isidentifier() or name.startswith("_") or taken:
        raise ArgumentError(f"{extension.__name__}: its verb {name!r} is no name for a method, or that of another", hint="another verb")
    method.__name__, method.__qualname__, method.__module__ = name, f"{owner.__name__}.{name}", make.__module__
    method.__doc__ = make.__doc__
    given = [one for one in inspect.signature(make).parameters.values() if one.name not in OF_EACH_STEP]
    itself = inspect.Parameter.POSITIONAL_ONLY if make is extension else inspect.Parameter.POSITIONAL_OR_KEYWORD  # fields have any name
    result = _chain_of(extension).__name__ if owner is StepVerbs else "Self"
    signature = inspect.Signature([inspect.Parameter("self", itself), *given], return_annotation=result)
    method.__dict__.update(makes=extension, made_by=make, __signature__=signature)
    setattr(owner, name, method)


def _appending(make: Any, kind: type[Strategy]) -> Callable[..., Strategy]:
    @fitting
    def method(self: Verbs, *args: Any, **kwargs: Any) -> Strategy:
        return appended(self, make(*args, **kwargs), kind)

    return method


def _refining(make: Any) -> Callable[..., Strategy]:
    @fitting
    def method(self: Strategy, *args: Any, **kwargs: Any) -> Strategy:
        return self.refine(make(*args, **kwargs))

    return method
