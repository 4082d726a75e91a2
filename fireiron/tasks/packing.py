"""Places in a memory for tensors of which some may share bytes, as few of them as a bound on all bytes needs (Cypress, section 4.2.4).

At first all are apart: the graph of what interferes is completed by auxiliary edges. Auxiliary edges are dropped, as few as it takes until
a place for each is found within the bound; those that interfere stay apart.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Final, TypeAlias

import attrs

Pair: TypeAlias = "tuple[int, int]"
"""Two tensors by their numbers, the lower first."""

May: TypeAlias = "Callable[[frozenset[Pair]], bool]"
"""Whether some pairs may all share bytes."""

MOST_TRIED: Final = 1024
"""Most sets of auxiliary edges that are tried; above it edges are removed one by one, the most effective first."""

MOST_EXACT: Final = 7
"""Most tensors for which the minimum of bytes is found; for more, two orders of first fit decide."""


@attrs.frozen
class Packing:
    """The first byte of each tensor, the auxiliary edges that were dropped, and the bytes of all together."""

    offsets: tuple[int, ...]
    dropped: frozenset[Pair]
    bytes: int


def packed(sizes: Sequence[int], free: Sequence[Pair], bound: float, may: May = lambda dropped: True) -> Packing:
    """Places for tensors of some sizes within a bound. If there are none, what is found takes more bytes than that.

    Args: free: the auxiliary edges, of pairs that do not interfere. may: whether a set of them may be dropped together.
    """
    least: Packing | None = None
    for dropped in filter(may, _choices(sizes, free)):
        if dropped and sum(sizes[one] for one in together(sizes, dropped)) > bound:
            continue
        found = placed(sizes, dropped, bound)
        if found.bytes <= bound:
            return found
        least = found if least is None or found.bytes < least.bytes else least
    assert least is not None, "nothing is dropped at first, which is always legal"
    return least


def _choices(sizes: Sequence[int], free: Sequence[Pair]) -> Iterator[frozenset[Pair]]:
    """Sets of auxiliary edges to be dropped, the smallest first."""
    tried, count = 0, 0
    while count <= len(free) and tried + math.comb(len(free), count) <= MOST_TRIED:
        tried += math.comb(len(free), count)
        yield from map(frozenset, itertools.combinations(free, count))
        count += 1
    dropped: frozenset[Pair] = frozenset()
    for _ in range(len(free) if count <= len(free) else 0):
        left = [pair for pair in free if pair not in dropped]
        dropped |= {min(left, key=lambda pair: _height(sizes, _in_order(sizes, _apart(sizes, dropped | {pair}), range(len(sizes)))))}
        yield dropped


def placed(sizes: Sequence[int], dropped: frozenset[Pair], bound: float) -> Packing:
    """Places where only the pairs without their edge may share bytes: within a bound, or else of as few bytes as are found."""
    apart = _apart(sizes, dropped)
    needed = sum(sizes[one] for one in together(sizes, dropped))
    best: list[int] = []
    for order in _orders(sizes):
        offsets = _in_order(sizes, apart, order)
        if not best or _height(sizes, offsets) < _height(sizes, best):
            best = offsets
        if _height(sizes, best) <= max(bound, needed):
            break
    return Packing(tuple(best), dropped, _height(sizes, best))


def together(sizes: Sequence[int], dropped: frozenset[Pair]) -> tuple[int, ...]:
    """The tensors of most bytes that are all apart from each other: no places do with less."""
    return tuple(sorted(_heaviest(sizes, _apart(sizes, dropped), frozenset(range(len(sizes))))))


def _apart(sizes: Sequence[int], dropped: frozenset[Pair]) -> list[frozenset[int]]:
    everyone = range(len(sizes))
    return [frozenset(other for other in everyone if other != one and _pair(one, other) not in dropped) for one in everyone]


def _heaviest(sizes: Sequence[int], apart: Sequence[frozenset[int]], among: frozenset[int]) -> frozenset[int]:
    if not among:
        return among
    one = max(among, key=lambda each: (len(among - apart[each]), -each))
    if among <= apart[one] | {one}:
        return among
    found = (_heaviest(sizes, apart, among & apart[one]) | {one}, _heaviest(sizes, apart, among - {one}))
    return max(found, key=lambda each: sum(sizes[number] for number in each))


def _orders(sizes: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Orders in which tensors get the lowest place that is free; all of them, if those are few."""
    given = tuple(range(len(sizes)))
    yield given
    yield tuple(sorted(given, key=lambda one: -sizes[one]))
    if len(sizes) <= MOST_EXACT:
        yield from itertools.permutations(given)


def _in_order(sizes: Sequence[int], apart: Sequence[frozenset[int]], order: Sequence[int]) -> list[int]:
    offsets = [-1] * len(sizes)
    for one in order:
        taken = sorted((offsets[other], offsets[other] + sizes[other]) for other in apart[one] if offsets[other] >= 0)
        place = 0
        for first, behind in taken:
            if first >= place + sizes[one]:
                break
            place = max(place, behind)
        offsets[one] = place
    return offsets


def _height(sizes: Sequence[int], offsets: Sequence[int]) -> int:
    return max((first + size for first, size in zip(offsets, sizes, strict=True)), default=0)


def _pair(one: int, other: int) -> Pair:
    return min(one, other), max(one, other)
