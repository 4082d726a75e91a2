"""When elements were written, while a program runs in NumPy: what reads before, and what a task left out of its result, is refused.

Elsewhere than in the order of the text both would be visible: a copy of a tensor that is only written has no elements of the original.
"""

from __future__ import annotations

import weakref
from typing import Any

import attrs
import numpy

from fireiron.errors import DecompositionError, call_site

NEVER = -1
"""Time of elements of a new tensor."""


@attrs.define(eq=False)
class Written:
    """The number of the work that wrote each element last, by array."""

    clock: int = 0
    times: dict[int, tuple[Any, Any]] = attrs.field(factory=dict)

    def begin(self, array: Any, time: int = 0) -> None:
        """A new array, whose elements are as if written at a time; forgotten with it."""
        key, times = id(array), self.times
        times[key] = (weakref.ref(array, lambda _: times.pop(key, None)), numpy.full(array.shape, time))

    def _of(self, array: Any) -> Any:
        if id(array) not in self.times:
            self.begin(array)
        return self.times[id(array)][1]

    def require_read(self, array: Any, places: tuple[Any, ...], what: str) -> None:
        """Refuse to read elements of a new tensor that nothing has written."""
        found = self._of(array)[places] == NEVER
        if found.any():
            raise DecompositionError(
                f"{what}: reads elements of what make_tensor made, and nothing has written them", got=_element(places, found),
                legal="a task that writes them first", at=call_site(),
            )  # fmt: skip

    def write(self, array: Any, places: tuple[Any, ...]) -> None:
        """Some work writes elements."""
        self.clock += 1
        self._of(array)[places] = self.clock

    def require_all(self, array: Any, places: tuple[Any, ...], since: int, what: str, at: str) -> None:
        """Refuse a task that may only write a tensor and left elements of it as they were."""
        found = self._of(array)[places] <= since
        if found.any():
            name = what.rpartition(" ")[2]
            raise DecompositionError(
                f"{what} only in part, and does not read it: what a copy of it has there is anything", got=_element(places, found),
                legal=f'all of it, or reads=[..., "{name}"]', at=at,
            )  # fmt: skip


def _element(places: tuple[Any, ...], found: Any) -> str:
    first = numpy.argwhere(found)[0]
    numbers = [int(where.ravel()[one]) for where, one in zip(places, first, strict=True)]
    return f"element {tuple(numbers)}"
