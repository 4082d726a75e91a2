"""Nested loops of a definition: steps in a loop inside of another loop, and the mappings that state them.

A step's `nest` contains the loops inside of its part, from the outermost one. Each is a text of dimensions: `("k",)`. In the arguments of
`Fused`, such a loop is a mapping from steps to formulas under the name of its dimensions: `body={"zero": "h[m,f] = 0", "k": {"mm": ...}}`.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from fireiron.errors import ArgumentError

Nest = tuple[str, ...]
"""The loops around a step inside of its part, from the outermost one; each is a text of dimensions."""


def flattened(formulas: Mapping[str, Any], part: str, loops: Collection[str], nest: Nest = ()) -> Iterator[tuple[str, Any, Nest]]:
    """Yield the steps of a part in order, each with its formula and the nested loops around it.

    Raises: ArgumentError for a nested loop whose key does not name dimensions of loops, or that has no steps.
    """
    for name, value in formulas.items():
        if not isinstance(value, Mapping):
            yield name, value, nest
            continue
        dims = name.replace(",", " ").split() if isinstance(name, str) else []
        if not dims or not set(dims) <= set(loops) or len(set(dims)) < len(dims):
            raise ArgumentError(
                f"Fused: {name!r} in {part} is a nested loop, so it must name dimensions of loop or scan", got=name, legal=tuple(loops),
                hint=f"loop={' '.join(dict.fromkeys((*loops, *dims)))!r}" if dims else None,
            )  # fmt: skip
        if not value:
            raise ArgumentError(f"Fused: the nested loop over {' '.join(dims)} has no steps", got=value, legal='{"mm": "acc[m,n] += ..."}')
        yield from flattened(value, part, loops, (*nest, " ".join(dims)))


def nested_mapping(items: Iterable[tuple[str, str, Nest]]) -> dict[str, Any]:
    """Return the mapping that states steps: nested loops are mappings in it. The inverse of `flattened`."""
    result: dict[str, Any] = {}
    for loop, group in itertools.groupby(items, lambda item: item[2][:1]):
        steps = list(group)
        if not loop:
            result |= {name: text for name, text, _ in steps}
        else:
            result[loop[0]] = nested_mapping((name, text, nest[1:]) for name, text, nest in steps)
    return result


def dims_of(nests: Iterable[Nest]) -> tuple[str, ...]:
    """Return the dimensions of nested loops."""
    return tuple(dict.fromkeys(dim for nest in nests for loop in nest for dim in loop.split()))


def first_loop(nests: Sequence[Nest]) -> tuple[int, int]:
    """Return the first step in a nested loop, and the first step after that loop; the number of steps twice if no step is in one."""
    start = next((number for number, nest in enumerate(nests) if nest), len(nests))
    end = next((number for number in range(start, len(nests)) if nests[number][:1] != nests[start][:1]), len(nests))
    return start, end


def check_nests(nests: Sequence[tuple[str, Nest]], outer: Collection[str], roles: Mapping[str, Collection[str]]) -> None:
    """Refuse loops that a definition cannot nest; `nests` are those of its steps with their parts, `outer` the dimensions of its loop.

    Raises: ArgumentError for two nested loops over one dimension, and for a nested loop that no loop contains.
    """
    loops = [*dict.fromkeys((part, nest[: depth + 1]) for part, nest in nests for depth in range(len(nest)))]
    dims = [dim for _, nest in loops for dim in nest[-1].split()]
    twice = next((dim for dim in dims if dims.count(dim) > 1), None)
    if twice is not None:
        raise ArgumentError(
            f"Fused: two nested loops iterate over {twice}", got=[" / ".join((part, *nest)) for part, nest in loops],
            legal="each dimension in one loop", hint=f"join their steps in one loop, or use another dimension of the size of {twice}",
        )  # fmt: skip
    if loops and not outer:
        (_, nest) = loops[0]
        raise ArgumentError(
            f"Fused: the loop over {nest[0]} is not inside of another loop", got=" ".join((*roles["loop"], *roles["scan"])),
            legal="an outer loop over other dimensions of loop or scan",
            hint="the steps before it in init, its steps in body, and those after it in final",
        )  # fmt: skip


SEPARATOR = "/"
"""Separates a step from the nested loops around it in stored definitions: `k/mm`."""


def plain_pairs(mapping: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Return a mapping as pairs; a step in a nested loop has a name with the loops around it."""
    pairs: list[tuple[str, Any]] = []
    for name, value in mapping.items():
        inner = plain_pairs(value) if isinstance(value, Mapping) else None
        pairs += [(name, value)] if inner is None else [(f"{name}{SEPARATOR}{step}", text) for step, text in inner]
    return pairs


def from_pairs(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Return the mapping of `plain_pairs`."""
    named = ((name.split(SEPARATOR), text) for name, text in pairs)
    return nested_mapping((path[-1], text, tuple(path[:-1])) for path, text in named)
