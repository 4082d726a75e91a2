"""Assign offsets in a memory to tensors, within a bound, such that as few pairs as possible share bytes (Cypress, section 4.2.4).

Initially, all tensors have separate bytes: auxiliary edges complete the interference graph. Then as few auxiliary edges as possible are
removed until offsets within the bound exist. Tensors that interfere never share bytes.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Final, TypeAlias

from fireiron.frozen import frozen

Pair: TypeAlias = "tuple[int, int]"
"""A pair of tensors by number, the lower first."""

May: TypeAlias = "Callable[[frozenset[Pair]], bool]"
"""A predicate: whether some pairs may all share bytes."""

MOST_TRIED: Final = 1024
"""Maximum number of sets of auxiliary edges that are tried. If there are more, edges are removed one by one, the most effective first."""

MOST_EXACT: Final = 7
"""Maximum number of tensors for which all orders are tried. For more tensors, the better of two first-fit orders is used."""


@frozen
class Packing:
    """The offset of each tensor, the auxiliary edges that were removed, and the total bytes."""

    offsets: tuple[int, ...]
    dropped: frozenset[Pair]
    bytes: int


def pack(sizes: Sequence[int], free: Sequence[Pair], bound: float, may: May = lambda dropped: True) -> Packing:
    """Return offsets for tensors of some sizes. If no offsets stay within the bound, the result exceeds it.

    Args: free: the auxiliary edges, that is, the pairs that do not interfere. may: whether a set of them may be removed together.
    """
    least: Packing | None = None
    for dropped in filter(may, _choices(sizes, free)):
        if dropped and sum(sizes[number] for number in heaviest_clique(sizes, dropped)) > bound:
            continue
        packing = first_fit(sizes, dropped, bound)
        if packing.bytes <= bound:
            return packing
        least = packing if least is None or packing.bytes < least.bytes else least
    assert least is not None, "the first choice removes nothing, which is always legal"
    return least


def _choices(sizes: Sequence[int], free: Sequence[Pair]) -> Iterator[frozenset[Pair]]:
    """Sets of auxiliary edges to remove, the smallest first."""
    tried, count = 0, 0
    while count <= len(free) and tried + math.comb(len(free), count) <= MOST_TRIED:
        tried += math.comb(len(free), count)
        yield from map(frozenset, itertools.combinations(free, count))
        count += 1
    dropped: frozenset[Pair] = frozenset()
    for _ in range(len(free) if count <= len(free) else 0):
        left = [pair for pair in free if pair not in dropped]
        dropped |= {min(left, key=lambda pair: _height(sizes, _in_order(sizes, _interfering(sizes, dropped | {pair}), range(len(sizes)))))}
        yield dropped


def first_fit(sizes: Sequence[int], dropped: frozenset[Pair], bound: float) -> Packing:
    """Return offsets where only pairs without an edge share bytes: within a bound, or with the fewest bytes of all tried orders."""
    interfering = _interfering(sizes, dropped)
    needed = sum(sizes[number] for number in heaviest_clique(sizes, dropped))
    best: list[int] = []
    for order in _orders(sizes):
        offsets = _in_order(sizes, interfering, order)
        if not best or _height(sizes, offsets) < _height(sizes, best):
            best = offsets
        if _height(sizes, best) <= max(bound, needed):
            break
    return Packing(tuple(best), dropped, _height(sizes, best))


def heaviest_clique(sizes: Sequence[int], dropped: frozenset[Pair]) -> tuple[int, ...]:
    """Return the set of pairwise interfering tensors with the most bytes, which is a lower bound of the memory."""
    return tuple(sorted(_heaviest(sizes, _interfering(sizes, dropped), frozenset(range(len(sizes))))))


def _interfering(sizes: Sequence[int], dropped: frozenset[Pair]) -> list[frozenset[int]]:
    numbers = range(len(sizes))
    return [frozenset(other for other in numbers if other != number and _pair(number, other) not in dropped) for number in numbers]


def _heaviest(sizes: Sequence[int], interfering: Sequence[frozenset[int]], among: frozenset[int]) -> frozenset[int]:
    if not among:
        return among
    pivot = max(among, key=lambda each: (len(among - interfering[each]), -each))
    if among <= interfering[pivot] | {pivot}:
        return among
    candidates = (_heaviest(sizes, interfering, among & interfering[pivot]) | {pivot}, _heaviest(sizes, interfering, among - {pivot}))
    return max(candidates, key=lambda each: sum(sizes[number] for number in each))


def _orders(sizes: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Orders in which tensors get the lowest free offset; all permutations, if there are few."""
    given = tuple(range(len(sizes)))
    yield given
    yield tuple(sorted(given, key=lambda number: -sizes[number]))
    if len(sizes) <= MOST_EXACT:
        yield from itertools.permutations(given)


def _in_order(sizes: Sequence[int], interfering: Sequence[frozenset[int]], order: Sequence[int]) -> list[int]:
    offsets = [-1] * len(sizes)
    for number in order:
        occupied = sorted((offsets[other], offsets[other] + sizes[other]) for other in interfering[number] if offsets[other] >= 0)
        place = 0
        for first, end in occupied:
            if first >= place + sizes[number]:
                break
            place = max(place, end)
        offsets[number] = place
    return offsets


def _height(sizes: Sequence[int], offsets: Sequence[int]) -> int:
    return max((first + size for first, size in zip(offsets, sizes, strict=True)), default=0)


def _pair(first: int, second: int) -> Pair:
    return min(first, second), max(first, second)
