"""Perturbed strategies: the stored strategy with an arbitrary change in its steps.

Random strategies are mostly legal, so they test few refusals, and only those accepted features that the generators draw. Here a number, a
word, a step, a refinement or two of them are changed: most results are refused, in later passes, and some are accepted.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator, Sequence
from typing import Any

GROUPS = (
    ("Block", "Warpgroup", "Warp", "QuadPair", "Thread", "Lane"), ("GL", "SH", "RF"), ("A", "B", "C"), ("ColMajor", "RowMajor"),
    ("float16", "float32", "bfloat16", "tf32", "int8", "float64"), ("NONE", "GLOBAL", "SHARED", "REGISTER"), ("m", "n", "k"),
)  # fmt: skip
"""Words that replace each other."""


def near(stored: dict[str, Any], choose: random.Random, refinements: Sequence[Any]) -> dict[str, Any]:
    """A stored strategy with a change in its steps; added refinements come from the given ones."""
    changed = copy.deepcopy(stored)
    for _ in range(choose.choice((1, 1, 1, 2))):
        if places := [*_places(changed["strategy"]["steps"])]:
            _change(*choose.choice(places), choose, refinements)
    return changed


def refinements_in(node: Any) -> Iterator[Any]:
    """The refinements of a stored strategy, including those of nested strategies."""
    if isinstance(node, dict):
        yield from node.get("refinements", ())
    for value in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
        yield from refinements_in(value)


def _places(node: Any) -> Iterator[tuple[Any, Any]]:
    for key, value in node.items() if isinstance(node, dict) else enumerate(node):
        if key in ("type", "program"):
            continue
        if not isinstance(value, str) or _others(value):
            yield node, key
        if isinstance(value, dict | list):
            yield from _places(value)


def _others(word: str) -> list[str]:
    return [one for group in GROUPS if word in group for one in group if one != word]


def _change(parent: Any, key: Any, choose: random.Random, refinements: Sequence[Any]) -> None:
    value = parent[key]
    if isinstance(value, bool):
        parent[key] = not value
    elif isinstance(value, int):
        parent[key] = choose.choice((value + 1, value - 1, 2 * value, 2 * value, value // 2, value // 2, 3 * value, 1, 8, 16, 0))
    elif isinstance(value, str):
        parent[key] = choose.choice(_others(value))
    elif key == "refinements" and value and choose.random() < 0.5:
        value.pop(choose.randrange(len(value)))
    elif key == "refinements":
        parent[key] = _with(value, choose, refinements)
    elif isinstance(value, dict) and "type" in value and isinstance(parent, list):
        fate = choose.random()
        if fate < 0.35:
            parent.pop(key)
        elif fate < 0.5:
            parent.insert(key, copy.deepcopy(value))
        elif fate < 0.7:
            other = choose.randrange(len(parent))
            parent[key], parent[other] = parent[other], parent[key]
        else:
            value["refinements"] = _with(value.get("refinements", []), choose, refinements)


def _with(others: list[Any], choose: random.Random, refinements: Sequence[Any]) -> list[Any]:
    """One more refinement, mostly in the order of storage, replacing one of its class."""
    refinement = copy.deepcopy(choose.choice(refinements))
    if choose.random() < 0.1:
        return [*others, refinement]
    return sorted(
        [*(each for each in others if each["type"] != refinement["type"]), refinement],
        key=lambda each: (each["type"] != "To", each["type"]),
    )
