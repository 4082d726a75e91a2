"""What lies near to a strategy: the stored one with something changed in its steps, by no rule of what is legal.

Draws of the generators are legal by and large, so of what is refused they show little, and of what is accepted only what they were made to
draw. Here a number, a word, a step, a refinement or two of them are others: most of that is refused, deep inside, and some is accepted.
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
"""Words that take each other's place."""


def near(stored: dict[str, Any], choose: random.Random, refinements: Sequence[Any]) -> dict[str, Any]:
    """A stored strategy with something changed in its steps; refinements that are added are some of these."""
    made = copy.deepcopy(stored)
    for _ in range(choose.choice((1, 1, 1, 2))):
        if places := [*_places(made["strategy"]["steps"])]:
            _change(*choose.choice(places), choose, refinements)
    return made


def refinements_in(node: Any) -> Iterator[Any]:
    """The refinements of a stored strategy, those of strategies in it too."""
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


def _change(holder: Any, key: Any, choose: random.Random, refinements: Sequence[Any]) -> None:
    value = holder[key]
    if isinstance(value, bool):
        holder[key] = not value
    elif isinstance(value, int):
        holder[key] = choose.choice((value + 1, value - 1, 2 * value, 2 * value, value // 2, value // 2, 3 * value, 1, 8, 16, 0))
    elif isinstance(value, str):
        holder[key] = choose.choice(_others(value))
    elif key == "refinements" and value and choose.random() < 0.5:
        value.pop(choose.randrange(len(value)))
    elif key == "refinements":
        holder[key] = _with(value, choose, refinements)
    elif isinstance(value, dict) and "type" in value and isinstance(holder, list):
        fate = choose.random()
        if fate < 0.35:
            holder.pop(key)
        elif fate < 0.5:
            holder.insert(key, copy.deepcopy(value))
        elif fate < 0.7:
            other = choose.randrange(len(holder))
            holder[key], holder[other] = holder[other], holder[key]
        else:
            value["refinements"] = _with(value.get("refinements", []), choose, refinements)


def _with(others: list[Any], choose: random.Random, refinements: Sequence[Any]) -> list[Any]:
    """One more, most often in the order in which they are stored, and in the place of one of its kind."""
    one = copy.deepcopy(choose.choice(refinements))
    if choose.random() < 0.1:
        return [*others, one]
    return sorted([*(each for each in others if each["type"] != one["type"]), one], key=lambda each: (each["type"] != "To", each["type"]))
