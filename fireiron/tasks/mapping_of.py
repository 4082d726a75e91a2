"""Mappings that a function computes from values, including tunables."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from collections.abc import Mapping as Values
from typing import Any, ClassVar

import attrs

from fireiron.errors import ArgumentError, FireironError, call_site
from fireiron.frozen import frozen
from fireiron.language.tunable import chosen, resolve, tunables_in
from fireiron.tasks.digest import digest
from fireiron.tasks.mapping import Mapping, is_open, pairs


@frozen
class MappingOf:
    """A mapping that a function computes from values, some of which are tunables.

    The function can choose more than numbers, for example places and variants.
    """

    function: Callable[..., Mapping]
    arguments: tuple[tuple[str, Any], ...] = attrs.field(converter=pairs)

    def __attrs_post_init__(self) -> None:
        try:
            inspect.signature(self.function).bind(**dict(self.arguments))
        except TypeError as error:
            legal = inspect.signature(self.function).parameters
            raise ArgumentError(f"{self.name}: {error}", got=[name for name, _ in self.arguments], legal=legal, at=call_site()) from None

    @property
    def name(self) -> str:
        """The name of the function."""
        return getattr(self.function, "__name__", repr(self.function))

    @property
    def recorded(self) -> Values[str, Any]:
        """The identity of the function and its arguments, for hashes."""
        return {"function": digest(self.function), "arguments": self.arguments}

    @property
    def first(self) -> Mapping | None:
        """The mapping with the first value of each tunable; None if it is refused."""
        values = {tunable.name: tunable.values[0] for tunable in tunables_in(self.arguments).values()}
        result = self.resolved(lambda part: resolve(part, values))
        return result if isinstance(result, Mapping) else None

    def resolved(self, of: Callable[[Any], Any]) -> Mapping | MappingOf:
        """Replace tunables by `of`. Return the mapping if all tunables have values and it is legal, and otherwise a `MappingOf`.

        An illegal mapping raises its error when it is used.
        """
        arguments = tuple((name, of(value)) for name, value in self.arguments)
        if arguments == self.arguments:
            return self
        result = MappingOf(self.function, arguments)
        try:
            return result if tunables_in(arguments) else result.mapping()
        except FireironError:
            return result

    def mapping(self) -> Mapping:
        """Compute the mapping. Raises: ArgumentError if a tunable has no value, or the function does not return a mapping."""
        values = {name: chosen(value, f"{self.name}: {name}") if is_open(value) else value for name, value in self.arguments}
        try:
            mapping = self.function(**values)
        except ArithmeticError as error:
            raise ArgumentError(f"{self}: {type(error).__name__}: {error}") from None
        if not isinstance(mapping, Mapping):
            raise ArgumentError(f"{self.name} did not return a mapping", got=mapping, legal="Mapping([...])")
        return mapping

    def __str__(self) -> str:
        return f"{self.name}({', '.join(f'{name}={value}' for name, value in self.arguments)})"


@attrs.frozen(eq=False)
class Refused:
    """A placeholder for a mapping that is refused for the values of its tunables; the error is raised when it is used."""

    error: FireironError
    first: ClassVar[None] = None

    def mapping(self) -> Mapping:
        """Raise the error."""
        raise self.error
