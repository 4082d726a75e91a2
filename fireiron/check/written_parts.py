"""Which elements of arrays have values after some launches: the parts that the caller passes, and those that launches write.

`check_launches` and `check_launch_sequence` compare what a launch reads with these parts. The part of an operand is a box of its array. An
operand that is read or written by digits or tables is the part that its indices name: it is known to be covered only by the whole array, or
by the same indices.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence

import attrs

from fireiron.check.finding import Finding
from fireiron.frozen import frozen
from fireiron.values.expr import constant
from fireiron.values.tensor import Dim, View


@frozen
class Part:
    """The part of an array that a view covers. `tables` are the arrays, by name, whose elements are its indices."""

    view: View
    tables: tuple[str, ...] = ()

    @staticmethod
    def of(view: View, arrays: Mapping[str, str] | None = None) -> Part:
        """The part of an operand; `arrays` are the names of arrays by operand, None if they are equal."""
        through = view.tensor.through
        return Part(view, () if through is None else tuple((arrays or {}).get(name, name) for name in through.tables))

    @property
    def is_indirect(self) -> bool:
        """Whether indices name the elements."""
        return self.view.tensor.through is not None

    @property
    def box(self) -> Box:
        """The coordinates of the view."""
        return Box.of(self.view)

    @property
    def is_whole(self) -> bool:
        """Whether it is the whole array."""
        return not self.is_indirect and self.box.whole

    def has_same_indices(self, other: Part) -> bool:
        """Whether the indices of both name the same element at each coordinate."""
        own, its = self.view.tensor.through, other.view.tensor.through
        return (None if own is None else own.index) == (None if its is None else its.index) and self.tables == other.tables


@attrs.define
class WrittenParts:
    """The parts of arrays that have values, by the name of the array: `passed` by the caller, and `written` by launches, in order."""

    passed: dict[str, list[Part]] = attrs.field(factory=dict)
    written: dict[str, list[Part]] = attrs.field(factory=dict)
    complete: set[str] = attrs.field(factory=set)
    """The arrays all of whose elements have values, whatever parts of them launches write."""

    def give(self, array: str, part: Part) -> None:
        """Add a part that the caller passes. An array that is passed for an operand with indices is passed as a whole."""
        if part.is_indirect:
            self.complete.add(array)
        self.passed.setdefault(array, []).append(part)

    def write(self, array: str, part: Part) -> None:
        """Add a part that a launch writes."""
        self.written.setdefault(array, []).append(part)

    def has_values(self, array: str) -> bool:
        """Whether any part of an array has values."""
        return array in self.complete or array in self.passed or array in self.written

    def missing(self, array: str, part: Part, what: str) -> Iterator[Finding]:
        """A finding if an element of a part that a launch reads has no value, or if that is unknown; `what` reads it."""
        if array not in self.complete:
            parts = [*self.passed.get(array, ()), *self.written.get(array, ())]
            yield from _uncovered(array, part, parts, what, "which no earlier launch wrote")

    def unwritten(self, array: str, part: Part, what: str) -> Iterator[Finding]:
        """A finding if launches do not write all of a part, or if that is unknown; `what` states that they should."""
        yield from _uncovered(array, part, self.written.get(array, ()), what, "but no launch does")


def _uncovered(array: str, part: Part, written: Sequence[Part], what: str, nothing: str) -> Iterator[Finding]:
    """A finding if a part is not covered by others, or if that is unknown."""
    if any(other.is_whole or (other.has_same_indices(part) and other.box.covers(part.box)) for other in written):
        return
    if not written:
        yield error(array, f"{what}, {nothing}")
        return
    if any(one.is_indirect for one in (part, *written)):
        yield error(array, f"{what}: undecided whether the launches write all of it", "a launch that writes whole arrays")
        return
    box, boxes = part.box, [other.box for other in written]
    same = [all(other.spans[axis].covers(span) for other in boxes) for axis, span in enumerate(box.spans)]
    own, *others = [_intervals(each, same) for each in (box, *boxes)]
    if own is None or None in others:
        yield error(array, f"{what}: undecided whether the launches write all of it", "parts of known sizes, or whole arrays")
        return
    at = _first_outside(own, [other for other in others if other is not None])
    if at is not None:
        yield error(array, f"{what}, but no earlier launch wrote {array}[{', '.join(map(str, at))}]")


# ---------------------------------------------------------------------------------------------- boxes


@frozen
class Span:
    """A dimension of a box: from `start` to `end` if these are known, else `form`, which is compared for equality."""

    form: object
    start: int | None
    end: int | None
    whole: bool

    def covers(self, other: Span) -> bool:
        """Whether this span certainly contains another one."""
        if self.whole or self.form == other.form:
            return True
        if self.start is None or self.end is None or other.start is None or other.end is None:
            return False
        return self.start <= other.start and other.end <= self.end


@frozen
class Box:
    """The coordinates that a view covers."""

    spans: tuple[Span, ...]

    @staticmethod
    def of(view: View) -> Box:
        """The box of a view."""
        return Box(tuple(_span(dim, view, axis) for axis, dim in enumerate(view.numerals)))

    @property
    def whole(self) -> bool:
        """Whether it has all coordinates of the tensor."""
        return all(span.whole for span in self.spans)

    def covers(self, other: Box) -> bool:
        """Whether this box certainly contains another one."""
        return len(self.spans) == len(other.spans) and all(own.covers(span) for own, span in zip(self.spans, other.spans, strict=True))


def _span(dim: Dim, view: View, axis: int) -> Span:
    """A dimension of a view; with its interval if it is contiguous with known ends."""
    extent, base, size = constant(view.tensor.shape[axis]), constant(dim.base), constant(dim.size)
    contiguous = not dim.modes or (len(dim.modes) == 1 and constant(dim.modes[0].stride) == 1)
    whole = dim.whole and dim.size == view.tensor.shape[axis]
    if not contiguous or base is None or size is None:
        return Span(dim, None, None, whole)
    return Span(dim, base, base + size if extent is None else min(base + size, extent), whole)


def _intervals(box: Box, covered_everywhere: Sequence[bool]) -> list[tuple[int, int]] | None:
    """The intervals of a box, of length one in dimensions that all boxes cover; None if one is unknown."""
    spans = [(0, 1) if covered else (span.start, span.end) for span, covered in zip(box.spans, covered_everywhere, strict=True)]
    known = [(start, end) for start, end in spans if start is not None and end is not None]
    return known if len(known) == len(spans) else None


def _first_outside(own: Sequence[tuple[int, int]], others: Sequence[Sequence[tuple[int, int]]]) -> tuple[int, ...] | None:
    """The first element of a box that none of the others contains. The corners of cells between box edges represent all elements."""
    cuts = [
        sorted({start, *(edge for other in others for edge in other[axis] if start <= edge < end)}) for axis, (start, end) in enumerate(own)
    ]
    return next((corner for corner in itertools.product(*cuts) if not any(_is_inside(corner, other) for other in others)), None)


def _is_inside(corner: Sequence[int], box: Sequence[tuple[int, int]]) -> bool:
    return all(start <= at < end for at, (start, end) in zip(corner, box, strict=True))


def error(array: str, message: str, legal: str = "") -> Finding:
    """An error between launches."""
    return Finding("launches", "error", array, message + (f" (legal: {legal})" if legal else ""))


__all__ = ["Box", "Part", "Span", "WrittenParts", "error"]
