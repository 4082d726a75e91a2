"""The base of everything that a chain can start from, a spec class, a spec, a strategy: it has the verbs, and refuses what is none.

Each verb is short for `.then(Decomposition(...))`, and stands in the file of its step. What only the language knows, it tells when the
package is loaded (`language/methods.py`).
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


def unfitting(function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> ArgumentError | None:
    """The error of a call whose arguments are too few, too many or of other names; None where they fit."""
    signature = inspect.signature(function)
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        known = {name: one for name, one in signature.parameters.items() if name != "self"}
        texts = [str(one.replace(annotation=inspect.Parameter.empty)) for one in known.values()]
        owner, _, name = function.__qualname__.rpartition(".")
        what = owner.removesuffix("Starter") if name == "__call__" else name
        given = args[len(signature.parameters) - len(known) :]
        hint = _of_another_name(known, kwargs) or _completed(what, known, given, kwargs)
        return ArgumentError(f"{what}: {error}", legal=f"{what}({', '.join(texts)})", at=call_site(), hint=hint)
    return None


_EXAMPLES: Final = {
    "operand": "A", "memory": "SH", "level": "Block", "elements": "4", "stages": "3", "spec": "MatMul(M, N, K)(GL, GL, GL)(Kernel)",
}  # fmt: skip
"""What may stand for a parameter of a verb that a call leaves out; for others their names do."""

_ORDERS: Final = ("layout", "layouts", "order", "orders", "storage")
"""What people call the storage of all operands, which is said of each one."""


def _of_another_name(known: Mapping[str, inspect.Parameter], given: Mapping[str, Any]) -> str | None:
    """What may be meant by the first keyword that is no parameter."""
    other = next((name for name in given if name not in known), None)
    if other is None:
        return None
    stored = [name for name, one in known.items() if isinstance(one.default, MatrixLayout)]
    if other in _ORDERS and stored:
        return f"the order of each operand: {', '.join(f'{name}=RowMajor' for name in stored)}"
    near = [name for name in known if name.startswith(other)]
    meant = near[0] if near else closest(other, known)
    return f"did you mean {meant}?" if meant else None


def _completed(what: str, known: Mapping[str, inspect.Parameter], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str | None:
    """The call with an example of each argument that it lacks; None for one with too many."""
    plain = [name for name, one in known.items() if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
    missing = [name for name in plain[len(args) :] if known[name].default is inspect.Parameter.empty and name not in kwargs]
    if not missing:
        return None
    said = [*(_short(one) for one in args), *(_EXAMPLES.get(name, name) for name in missing)]
    return f"{what}({', '.join([*said, *(f'{name}={_short(one)}' for name, one in kwargs.items())])})"


def _short(value: object) -> str:
    """The `repr` of a value, where it is a word or two."""
    text = shown(value)
    return text if len(text) <= LONGEST_SHOWN and "\n" not in text else "..."


LONGEST_SHOWN: Final = 40
"""Most characters of an argument that an error repeats."""


def fitting(method: Callable[P, T]) -> Callable[P, T]:
    """The method; a call that does not fit its parameters is refused by an error that shows them."""

    @functools.wraps(method)
    def called(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return method(*args, **kwargs)
        except TypeError as error:
            raise unfitting(called, args, kwargs) or error from None

    return called


class Told:
    """What the language tells of chains and what they start from."""

    @staticmethod
    def listed(chain: object) -> list[str]:
        """The names that `dir` lists."""
        return list(object.__dir__(chain))

    @staticmethod
    def misplaced(chain: object, name: str) -> FireironError | None:
        """The error of asking for a refinement of what has none of this name; None where no step has one."""
        return None


def require_no_refinement(chain: object, name: str) -> None:
    """Refuse to look for a refinement on what it does not refine: a chain's last step, or what has no step yet."""
    error = None if name.startswith("_") else Told.misplaced(chain, name)
    if error is not None:
        raise error


class Refusing:
    """Refuses refinements that what a chain starts from, or its last step, has not, and lists no verbs of other kinds of specs."""

    __slots__: tuple[()] = ()

    def __dir__(self) -> list[str]:
        """The names, but for verbs that are for other kinds of specs."""
        return Told.listed(self)

    if not TYPE_CHECKING:  # a type checker knows which step has which refinement

        def __getattr__(self, name: str) -> Any:
            require_no_refinement(self, name)
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")


class Verbs(StepVerbs, Refusing):
    """The verbs of all steps, each declared in the file of its step, and `then`: added when the package is loaded."""

    __slots__ = ()


if TYPE_CHECKING:
    Offering = Refusing  # what is offered for which kind of spec, `generated_verbs.pyi` says
else:
    Offering = Verbs
