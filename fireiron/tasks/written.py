"""Record when elements are written, while a program runs in NumPy, to refuse reads of unwritten elements and incomplete results.

Both would make results depend on the mapping: a copy of a tensor that is only written does not contain the original's elements.
"""

from __future__ import annotations

import weakref
from typing import Any

import attrs
import numpy

from fireiron.errors import DecompositionError, call_site

NEVER = -1
"""The time of an element that was never written."""


@attrs.define(eq=False)
class Written:
    """The time of the last write of each element, by array."""

    clock: int = 0
    times: dict[int, tuple[Any, Any]] = attrs.field(factory=dict)

    def begin(self, array: Any, time: int = 0) -> None:
        """Register an array whose elements count as written at a time; it is removed together with the array."""
        key, times = id(array), self.times
        times[key] = (weakref.ref(array, lambda _: times.pop(key, None)), numpy.full(array.shape, time))

    def _of(self, array: Any) -> Any:
        if id(array) not in self.times:
            self.begin(array)
        return self.times[id(array)][1]

    def require_read(self, array: Any, places: tuple[Any, ...], what: str) -> None:
        """Refuse reads of elements of a new tensor that were not written."""
        unwritten = self._of(array)[places] == NEVER
        if unwritten.any():
            raise DecompositionError(
                f"{what} reads elements of a new tensor that were not written", got=_element(places, unwritten),
                legal="an earlier task that writes them", at=call_site(),
            )  # fmt: skip

    def write(self, array: Any, places: tuple[Any, ...]) -> None:
        """Record a write."""
        self.clock += 1
        self._of(array)[places] = self.clock

    def require_all(self, array: Any, places: tuple[Any, ...], since: int, what: str, at: str) -> None:
        """Refuse a task that has only the privilege to write a tensor, and that left elements of it unwritten since a time."""
        unwritten = self._of(array)[places] <= since
        if unwritten.any():
            name = what.rpartition(" ")[2]
            raise DecompositionError(
                f"{what} only in part, and does not read it: the other elements of its copy are undefined", got=_element(places, unwritten),
                legal=f'writes of all elements, or reads=[..., "{name}"]', at=at,
            )  # fmt: skip


def _element(places: tuple[Any, ...], mask: Any) -> str:
    first = numpy.argwhere(mask)[0]
    numbers = [int(where.ravel()[position]) for where, position in zip(places, first, strict=True)]
    return f"element {tuple(numbers)}"
