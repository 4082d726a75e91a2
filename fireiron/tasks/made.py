"""Mappings that a function makes of values, tunables among them."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from collections.abc import Mapping as Values
from typing import Any, ClassVar

import attrs

from fireiron.errors import ArgumentError, FireironError, call_site
from fireiron.language.tunable import chosen, resolve, tunables_in
from fireiron.tasks.digest import digest
from fireiron.tasks.mapping import Mapping, is_open, pairs


@attrs.frozen
class MappingOf:
    """A mapping that a function makes of values, some of which are tunables: what arithmetic cannot say, places and variants among it."""

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
        """What tells it from others wherever it is written down."""
        return {"function": digest(self.function), "arguments": self.arguments}

    @property
    def first(self) -> Mapping | None:
        """The mapping with the first value of each tunable; None where it is refused."""
        values = {one.name: one.values[0] for one in tunables_in(self.arguments).values()}
        made = self.resolved(lambda part: resolve(part, values))
        return made if isinstance(made, Mapping) else None

    def resolved(self, of: Callable[[Any], Any]) -> Mapping | MappingOf:
        """The same with tunables as `of` says: the mapping where all have values; where it is refused, that is said where it is used."""
        arguments = tuple((name, of(value)) for name, value in self.arguments)
        if arguments == self.arguments:
            return self
        made = MappingOf(self.function, arguments)
        try:
            return made if tunables_in(arguments) else made.made()
        except FireironError:
            return made

    def made(self) -> Mapping:
        """The mapping; refused where a tunable has no value, or the function makes none of the values."""
        values = {name: chosen(value, f"{self.name}: {name}") if is_open(value) else value for name, value in self.arguments}
        try:
            found = self.function(**values)
        except ArithmeticError as error:
            raise ArgumentError(f"{self}: {type(error).__name__}: {error}") from None
        if not isinstance(found, Mapping):
            raise ArgumentError(f"{self.name}: it makes no mapping", got=found, legal="Mapping([...])")
        return found

    def __str__(self) -> str:
        return f"{self.name}({', '.join(f'{name}={value}' for name, value in self.arguments)})"


@attrs.frozen(eq=False)
class Refused:
    """What stands in the place of a mapping that is refused with the values of its tunables, which is said where it is used."""

    error: FireironError
    first: ClassVar[None] = None

    def made(self) -> Mapping:
        """The error."""
        raise self.error
