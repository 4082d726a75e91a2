"""The fewest positions that meet all of some arcs, exactly, for any number of positions.

Positions 0 .. count-1 lie on a circle. An arc is a set of positions that are neighbours on it once the positions that are not
allowed are taken out. One position of the smallest arc is in every answer; with it taken and the circle cut there, the arcs that
it does not meet are intervals of a line, for which taking the last position of the interval that ends first is optimal.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

Arc = frozenset[int]


def fewest(arcs: Iterable[Arc], preferred: Sequence[int]) -> tuple[int, ...]:
    """As few positions as meet all arcs; of all such answers the first in the order of `preferred`, which names every position.

    Raises: ValueError for an arc without a position, which nothing can meet.
    """
    left = _minimal(arcs)
    size = _number(left)
    chosen: list[int] = []
    for position in preferred:
        if len(chosen) == size:
            break
        behind = [arc for arc in left if position not in arc]
        if len(behind) < len(left) and _number(behind) == size - len(chosen) - 1:
            chosen.append(position)
            left = behind
    return tuple(chosen)


def _minimal(arcs: Iterable[Arc]) -> list[Arc]:
    """The arcs that contain no other: whatever meets these meets all."""
    found: list[Arc] = []
    for arc in sorted(set(arcs), key=len):
        if not arc:
            raise ValueError("an arc without a position")
        if not any(other <= arc for other in found):
            found.append(arc)
    return found


def _number(arcs: Sequence[Arc]) -> int:
    """How many positions meet all arcs at the least."""
    if not arcs:
        return 0
    return 1 + min(_on_a_line([arc for arc in arcs if start not in arc], start) for start in min(arcs, key=len))


def _on_a_line(arcs: Sequence[Arc], start: int) -> int:
    """How many positions meet intervals that do not contain `start`, where the circle is cut."""
    count, taken = 0, -1
    for (_, end), arc in sorted(((_last(arc, start), arc) for arc in arcs), key=lambda one: one[0]):
        if taken not in arc:
            taken = end
            count += 1
    return count


def _last(arc: Arc, start: int) -> tuple[bool, int]:
    """Where an interval ends, in the order that begins behind `start` and goes round: what lies before `start` comes last."""
    before = [position for position in arc if position < start]
    return (True, max(before)) if before else (False, max(arc))
