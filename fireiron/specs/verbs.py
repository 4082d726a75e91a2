"""The base class of everything that a chain can start from: a spec class, a spec, a strategy. It has the verbs, and refuses other names.

Each verb abbreviates `.then(Decomposition(...))`, and is defined in the file of its step. This file must not import the language, so
`language/methods.py` sets the functions of `ChainHooks` when the package is loaded.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, ParamSpec, TypeVar

from fireiron.errors import ArgumentError, FireironError, call_site, closest, shown
from fireiron.generated_verbs import StepVerbs
from fireiron.values.tensor import MatrixLayout

P = ParamSpec("P")
T = TypeVar("T")


def argument_error(function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> ArgumentError | None:
    """Return the error for a call with missing, surplus or unknown arguments; None if the arguments fit."""
    signature = inspect.signature(function)
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        known = {name: parameter for name, parameter in signature.parameters.items() if name != "self"}
        texts = [str(parameter.replace(annotation=inspect.Parameter.empty)) for parameter in known.values()]
        owner, _, name = function.__qualname__.rpartition(".")
        what = owner.removesuffix("Starter") if name == "__call__" else name
        given = args[len(signature.parameters) - len(known) :]
        hint = _named_sizes(known, given) or _near_name(known, kwargs) or _completed(what, known, given, kwargs)
        return ArgumentError(f"{what}: {error}", legal=f"{what}({', '.join(texts)})", at=call_site(), hint=hint)
    return None


def _named_sizes(known: Mapping[str, inspect.Parameter], given: tuple[Any, ...]) -> str | None:
    """Return a hint if positional arguments are given to a call that takes only names, such as the sizes of a definition."""
    positional = [
        name for name, parameter in known.items() if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    ]
    takes_names = any(parameter.kind == parameter.VAR_KEYWORD for parameter in known.values())
    integers = given and all(isinstance(value, int) for value in given)
    return "name the sizes: m=1000, n=520, ..." if takes_names and integers and len(given) > len(positional) else None


_EXAMPLES: Final = {
    "operand": "A", "memory": "SH", "level": "Block", "elements": "4", "stages": "3", "spec": "MatMul(M, N, K)(GL, GL, GL)(Kernel)",
}  # fmt: skip
"""Examples of arguments by parameter name, for messages. For other parameters, a message has the name of the parameter."""

_ORDERS: Final = ("layout", "layouts", "order", "orders", "storage")
"""Keywords with which users try to set the storage order of all operands. Each operand has a separate keyword."""


def _near_name(known: Mapping[str, inspect.Parameter], given: Mapping[str, Any]) -> str | None:
    """Return a hint for the first keyword that is not a parameter."""
    other = next((name for name in given if name not in known), None)
    if other is None:
        return None
    stored = [name for name, parameter in known.items() if isinstance(parameter.default, MatrixLayout)]
    if other in _ORDERS and stored:
        return f"the order of each operand: {', '.join(f'{name}=RowMajor' for name in stored)}"
    if ChainHooks.is_refinement(other):
        return f".{other}({_short(given[other])}) after the call: it refines the step"
    near = [name for name in known if name.startswith(other)]
    meant = near[0] if near else closest(other, known)
    return f"did you mean {meant}?" if meant else None


def _completed(what: str, known: Mapping[str, inspect.Parameter], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str | None:
    """Return the call completed with an example of each missing argument; None if no argument is missing."""
    plain = [name for name, parameter in known.items() if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)]
    missing = [name for name in plain[len(args) :] if known[name].default is inspect.Parameter.empty and name not in kwargs]
    if not missing:
        return None
    words = [*(_short(value) for value in args), *(_EXAMPLES.get(name, name) for name in missing)]
    return f"{what}({', '.join([*words, *(f'{name}={_short(value)}' for name, value in kwargs.items())])})"


def _short(value: object) -> str:
    """The `repr` of a value, if it is short."""
    text = shown(value)
    return text if len(text) <= LONGEST_SHOWN and "\n" not in text else "..."


LONGEST_SHOWN: Final = 40
"""Maximum length of an argument that an error repeats, in characters."""


def checked_arguments(method: Callable[P, T]) -> Callable[P, T]:
    """Wrap a method: a call with wrong arguments raises an `ArgumentError` that lists the parameters."""

    @functools.wraps(method)
    def called(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return method(*args, **kwargs)
        except TypeError as error:
            raise argument_error(called, args, kwargs) or error from None

    return called


class ChainHooks:
    """Functions of chains that `language/methods.py` sets."""

    @staticmethod
    def listed(chain: object) -> list[str]:
        """The names that `dir` lists."""
        return list(object.__dir__(chain))

    @staticmethod
    def is_refinement(name: str) -> bool:
        """Whether a verb of this name refines a step."""
        return False

    @staticmethod
    def misplaced(chain: object, name: str) -> FireironError | None:
        """Return the error for a refinement that the last step of a chain does not have; None if no step has a refinement of that name."""
        return None


def require_no_refinement(chain: object, name: str) -> None:
    """Refuse a refinement that the last step of a chain does not have."""
    error = None if name.startswith("_") else ChainHooks.misplaced(chain, name)
    if error is not None:
        raise error


class Refusing:
    """A chain: it refuses refinements that its last step does not have, and `dir` omits verbs of other kinds of specs."""

    __slots__: tuple[()] = ()

    def __dir__(self) -> list[str]:
        """Return the names, except for verbs of other kinds of specs."""
        return ChainHooks.listed(self)

    if not TYPE_CHECKING:  # a type checker knows the refinements of each step

        def __getattr__(self, name: str) -> Any:
            require_no_refinement(self, name)
            near = None if name.startswith("_") else closest(name, dir(self))
            asked = f"; did you mean {near}?" if near else ""
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}{asked}", name=name, obj=self)


class Verbs(StepVerbs, Refusing):
    """The verbs of all steps, each defined in the file of its step, and `then`; added when the package is loaded."""

    __slots__ = ()


if TYPE_CHECKING:
    Offering = Refusing  # `generated_verbs.pyi` lists the verbs per kind of spec
else:
    Offering = Verbs
