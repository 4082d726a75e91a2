"""Check a sequence of launches: a launch reads only elements that the caller or an earlier launch wrote, and every output is written.

The end of a launch orders its accesses before those of the next one. So the check compares only the parts of arrays that the operands of
launches cover (`fireiron.check.written_parts`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

from fireiron.check.finding import Finding
from fireiron.check.written_parts import Box, Part, WrittenParts, error
from fireiron.ir.effect import Effects
from fireiron.ir.effects.dependent_launch import DependentLaunch
from fireiron.ir.effects.zeroed import Zeroed
from fireiron.spec import Spec
from fireiron.values.expr import FALSE


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
    if spec.level.gpus is not None:
        yield from _check_on_gpus(spec, launches)
        return
    parts = WrittenParts()
    for name, view in spec.operands.items():
        if name in spec.inputs or _accumulates(spec):
            parts.give(name, Part.of(view))
    for launch in launches:
        title = f"the launch {launch.name or 'last'}"
        for name in _read(launch.spec):
            array = launch.arrays[name]
            yield from parts.missing(array, part_of(launch, name), f"{title} reads {array}")
        yield from _shared(launch, title)
        for name in launch.spec.outputs:
            parts.write(launch.arrays[name], part_of(launch, name))
    for name in spec.outputs:
        yield from parts.unwritten(name, Part.of(spec.operands[name]), f"{spec.title} writes {name}")
    for name in spec.inputs:
        if name in parts.written:
            yield error(name, f"{name} is an input of {spec.title}, but a launch writes it")


def _check_on_gpus(spec: Spec, launches: Sequence[Launch]) -> Iterator[Finding]:
    """The errors in a sequence of launches that each GPU of a node performs on its own arrays.

    A launch writes whole arrays of its GPU. So every array is complete, on all GPUs, after the launch that writes it.
    """
    complete = {name for name in spec.operands if name in spec.inputs or _accumulates(spec)}
    for launch in launches:
        title = f"the launch {launch.name or 'last'}"
        for name in _read(launch.spec):
            if launch.arrays[name] not in complete:
                yield error(launch.arrays[name], f"{title} reads {launch.arrays[name]}, which no earlier launch wrote")
        yield from _shared(launch, title)
        for name in launch.spec.outputs:
            array, view = launch.arrays[name], launch.spec.operands[name]
            portion = view.tensor.array.portion
            if (portion is not None and portion.divided is None) or not Box.of(view).whole:
                yield error(array, f"{title} writes a part of {array}", "launches that write whole arrays of their GPU")
            if array in spec.inputs:
                yield error(array, f"{array} is an input of {spec.title}, but a launch writes it")
            complete.add(array)
    for name in spec.outputs:
        if all(name not in (launch.arrays[one] for one in launch.spec.outputs) for launch in launches):
            yield error(name, f"{spec.title} writes {name}, but no launch does")


def part_of(launch: Launch, name: str) -> Part:
    """The part of an array that an operand of a launch covers."""
    return Part.of(launch.spec.operands[name], launch.arrays)


def check_effects(launches: Sequence[tuple[Launch, Effects]]) -> Iterator[Finding]:
    """The errors in assumptions of kernels about arrays that earlier launches wrote."""
    written: set[str] = set()
    for launch, effects in launches:
        title = f"the launch {launch.name or 'last'}"
        for name in effects[DependentLaunch].no_wait:
            if launch.arrays[name] in written:
                yield error(launch.arrays[name], f"{title} does not wait for {name}, but an earlier launch writes {launch.arrays[name]}")
        for name in effects[Zeroed].names:
            array = launch.arrays[name]
            if array in written and not Part.of(launch.spec.operands[name]).box.whole:
                yield error(array, f"{title} sets all of {array} to zero, but an earlier launch wrote a part of it")
        written |= {launch.arrays[name] for name in launch.spec.outputs}


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
            yield error(array, f"{title} writes {array} as {name}, but {array} is also operand {others[0]} of this launch")


__all__ = ["Launch", "check_effects", "check_launches", "part_of"]
