"""`Interface`: what callers and operators need to know about a program, of one kernel or of several.

A `Program` and a `GraphProgram` have it. `Callee` is a compiled program with an interface.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from fireiron.ir import Buffer
from fireiron.values.expr import Expr, Var
from fireiron.values.machine import DType


class Interface(Protocol):
    """The arguments and results of a program: names, shapes, types, storage, and run-time sizes."""

    @property
    def inputs(self) -> tuple[str, ...]:
        """The names of the arguments, in the order of a call."""

    @property
    def outputs(self) -> tuple[str, ...]:
        """The names of the results, in order."""

    @property
    def numbers(self) -> Mapping[str, DType]:
        """The arguments that are numbers passed by value, with their types."""

    @property
    def sizes(self) -> tuple[Var, ...]:
        """The run-time sizes, without strides."""

    @property
    def adds_to(self) -> tuple[str, ...]:
        """The results to whose initial values the program adds."""

    def shape(self, name: str, /) -> tuple[Expr, ...]:
        """Return the extents of an array."""

    def stored(self, name: str, /) -> Buffer:
        """Return an array as the caller stores it."""

    def symbols_for(self, name: str, known: Mapping[str, Any], /) -> Mapping[str, Any]:
        """Return known sizes with the strides of packed arrays, for the storage of one array."""


class Callee(Protocol):
    """A compiled program: `program` is its interface, and a call executes it."""

    @property
    def program(self) -> Interface:
        """The interface."""

    def __call__(self, *arrays: Any, out: Any = None, stream: Any = None, **sizes: int) -> Any:
        """Execute the program."""


def undetermined(program: Interface) -> tuple[str, ...]:
    """Return the run-time sizes that no shape of an argument determines, in order: a call takes them as keywords."""
    arrays = (name for name in program.inputs if name not in program.numbers)
    determined = {str(size) for name in arrays for size in program.shape(name)}
    return tuple(size.name for size in program.sizes if size.name not in determined)


__all__ = ["Callee", "Interface", "undetermined"]
