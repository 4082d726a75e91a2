"""Check a sequence of launches: a launch reads only elements that the caller or an earlier launch wrote, and every output is written.

The end of a launch orders its accesses before those of the next one. So the check compares only the parts of arrays that the operands of
launches cover, which are boxes.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

import attrs

from fireiron.check.finding import Finding
from fireiron.ir.effect import Effects
from fireiron.ir.effects.dependent_launch import DependentLaunch
from fireiron.ir.effects.zeroed import Zeroed
from fireiron.spec import Spec
from fireiron.values.expr import FALSE, constant
from fireiron.values.tensor import Dim, View


class Launch(Protocol):
    """A launch: its name, its spec, and the array of each operand."""

    @property
    def name(self) -> str:
        """The name of the launch in messages."""

    @property
    def spec(self) -> Spec:
        """The spec that the launch performs."""

    @property
    def arrays(self) -> Mapping[str, str]:
        """The array name of each operand."""


def check_launches(spec: Spec, launches: Sequence[Launch]) -> Iterator[Finding]:
    """The errors in a sequence of launches that together perform a spec."""
    known = {name: [_Box.of(view)] for name, view in spec.operands.items() if name in spec.inputs or _accumulates(spec)}
    written: dict[str, list[_Box]] = {}
    for launch in launches:
        title = f"the launch {launch.name or 'last'}"
        for name in _read(launch.spec):
            array, box = launch.arrays[name], _Box.of(launch.spec.operands[name])
            yield from _uncovered_part(box, [*known.get(array, ()), *written.get(array, ())], f"{title} reads {array}", array)
        yield from _shared(launch, title)
        for name in launch.spec.outputs:
            written.setdefault(launch.arrays[name], []).append(_Box.of(launch.spec.operands[name]))
    for name in spec.outputs:
        yield from _uncovered_part(_Box.of(spec.operands[name]), written.get(name, []), f"{spec.title} writes {name}", name)
    for name in spec.inputs:
        if name in written:
            yield _error(name, f"{name} is an input of {spec.title}, but a launch writes it")


def check_effects(launches: Sequence[tuple[Launch, Effects]]) -> Iterator[Finding]:
    """The errors in assumptions of kernels about arrays that earlier launches wrote."""
    written: set[str] = set()
    for launch, effects in launches:
        title = f"the launch {launch.name or 'last'}"
        for name in effects[DependentLaunch].no_wait:
            if launch.arrays[name] in written:
                yield _error(launch.arrays[name], f"{title} does not wait for {name}, but an earlier launch writes {launch.arrays[name]}")
        for name in effects[Zeroed].names:
            array = launch.arrays[name]
            if array in written and not _Box.of(launch.spec.operands[name]).whole:
                yield _error(array, f"{title} sets all of {array} to zero, but an earlier launch wrote a part of it")
        written |= {launch.arrays[name] for name in launch.spec.outputs}


def unwritten_part(view: View, writers: Sequence[View], what: str, array: str) -> Iterator[Finding]:
    """A finding if a part of an array is not covered by the parts that earlier launches wrote, or if that is unknown."""
    boxes = [_Box.of(writer) for writer in writers]
    if any(box.whole and writer.tensor.through is None for box, writer in zip(boxes, writers, strict=True)):
        return
    if any(part.tensor.through is not None for part in (view, *writers)):
        yield _error(array, f"{what}: undecided whether the launches write all of it", "a launch that writes whole arrays")
        return
    yield from _uncovered_part(_Box.of(view), boxes, what, array)


def _accumulates(spec: Spec) -> bool:
    """Whether outputs are accumulated into."""
    return spec.atomic or spec.accumulate != FALSE


def _read(spec: Spec) -> tuple[str, ...]:
    """The operands that are read from arrays."""
    added = spec.outputs if _accumulates(spec) else ()
    return tuple(name for name in dict.fromkeys((*spec.inputs, *added)) if not spec.operands[name].memory.is_coordinate)


def _shared(launch: Launch, title: str) -> Iterator[Finding]:
    """Report an array that a launch writes and also uses as another operand: blocks of one launch are not ordered."""
    for name in launch.spec.outputs:
        others = [other for other, array in launch.arrays.items() if array == launch.arrays[name] and other != name]
        if others:
            array = launch.arrays[name]
            yield _error(array, f"{title} writes {array} as {name}, but {array} is also operand {others[0]} of this launch")


# ---------------------------------------------------------------------------------------------- boxes


@attrs.frozen
class _Span:
    """A dimension of a box: from `start` to `end` if these are known, else `form`, which is compared for equality."""

    form: object
    start: int | None
    end: int | None
    whole: bool

    def covers(self, other: _Span) -> bool:
        """Whether this span certainly contains another one."""
        if self.whole or self.form == other.form:
            return True
        if self.start is None or self.end is None or other.start is None or other.end is None:
            return False
        return self.start <= other.start and other.end <= self.end


@attrs.frozen
class _Box:
    """The part of an array that a view covers."""

    spans: tuple[_Span, ...]

    @staticmethod
    def of(view: View) -> _Box:
        return _Box(tuple(_span(dim, view, axis) for axis, dim in enumerate(view.numerals)))

    @property
    def whole(self) -> bool:
        return all(span.whole for span in self.spans)

    def covers(self, other: _Box) -> bool:
        return len(self.spans) == len(other.spans) and all(own.covers(span) for own, span in zip(self.spans, other.spans, strict=True))


def _span(dim: Dim, view: View, axis: int) -> _Span:
    """A dimension of a view; with its interval if it is contiguous with known ends."""
    extent, base, size = constant(view.tensor.shape[axis]), constant(dim.base), constant(dim.size)
    contiguous = not dim.modes or (len(dim.modes) == 1 and constant(dim.modes[0].stride) == 1)
    whole = dim.whole and dim.size == view.tensor.shape[axis]
    if not contiguous or base is None or size is None:
        return _Span(dim, None, None, whole)
    return _Span(dim, base, base + size if extent is None else min(base + size, extent), whole)


def _uncovered_part(box: _Box, written: Sequence[_Box], what: str, array: str) -> Iterator[Finding]:
    """A finding if a box is not covered by others, or if that is unknown."""
    if any(other.covers(box) for other in written):
        return
    if not written:
        yield _error(array, f"{what}, which no earlier launch wrote" if " reads " in what else f"{what}, but no launch does")
        return
    same = [all(other.spans[axis].covers(span) for other in written) for axis, span in enumerate(box.spans)]
    own, *others = [_intervals(part, same) for part in (box, *written)]
    if own is None or None in others:
        yield _error(array, f"{what}: undecided whether the launches write all of it", "parts of known sizes, or whole arrays")
        return
    at = _uncovered(own, [other for other in others if other is not None])
    if at is not None:
        yield _error(array, f"{what}, but no earlier launch wrote {array}[{', '.join(map(str, at))}]")


def _intervals(box: _Box, covered_everywhere: Sequence[bool]) -> list[tuple[int, int]] | None:
    """The intervals of a box, of length one in dimensions that all boxes cover; None if one is unknown."""
    spans = [(0, 1) if covered else (span.start, span.end) for span, covered in zip(box.spans, covered_everywhere, strict=True)]
    known = [(start, end) for start, end in spans if start is not None and end is not None]
    return known if len(known) == len(spans) else None


def _uncovered(own: Sequence[tuple[int, int]], others: Sequence[Sequence[tuple[int, int]]]) -> tuple[int, ...] | None:
    """The first element of a box that none of the others contains. The corners of cells between box edges represent all elements."""
    cuts = [
        sorted({start, *(edge for other in others for edge in other[axis] if start <= edge < end)}) for axis, (start, end) in enumerate(own)
    ]
    return next((corner for corner in itertools.product(*cuts) if not any(_is_inside(corner, other) for other in others)), None)


def _is_inside(corner: Sequence[int], box: Sequence[tuple[int, int]]) -> bool:
    return all(start <= at < end for at, (start, end) in zip(corner, box, strict=True))


def _error(array: str, message: str, legal: str = "") -> Finding:
    return Finding("launches", "error", array, message + (f" (legal: {legal})" if legal else ""))


__all__ = ["Launch", "check_effects", "check_launches", "unwritten_part"]
