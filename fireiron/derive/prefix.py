"""Partial strategies: compare the steps that a user gives with the first steps of a sketch, and take over their numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs

from fireiron.language.tree import Decomposition
from fireiron.language.tunable import Derived, Tunable
from fireiron.refine.to import To
from fireiron.spec import Spec

IGNORED = ("refinements", "origin", "move", "strategy", "sizes", "by_dim")
"""Fields that do not decide whether two steps are the same: how a step computes, or, for tiles and splits, fields that are compared by
dimension."""


def numbers_of(own: Sequence[Decomposition], given: Sequence[Decomposition], spec: Spec) -> dict[str, int] | str:
    """Return the values of tunables for which the steps `own` are those that a user gives, or why they cannot be.

    Refinements, and the strategies of copies, may differ: the user's are used.
    """
    values: dict[str, int] = {}
    for number, user_step in enumerate(given):
        if number >= len(own):
            return f"it has no step {user_step.summary()}"
        difference = _take(own[number], user_step, spec, values)
        if difference:
            return difference
    return values


def _take(own: Decomposition, given: Decomposition, spec: Spec, values: dict[str, int]) -> str:
    """Add the values of one step. Return the difference of the steps; empty if there is none."""
    text = f"the given step is {given.summary()}, but here it is {own.summary()}"
    if type(own) is not type(given) or _level(own) != _level(given):
        return text
    for field in attrs.fields(type(own)):
        if field.name not in IGNORED and not _equal(getattr(own, field.name), getattr(given, field.name), values):
            return text
    if hasattr(own, "by_dim"):
        own_sizes, given_sizes = (_by_dim(step, spec) for step in (own, given))
        unmatched = [dim for dim in {*own_sizes, *given_sizes} if not _equal(own_sizes.get(dim, 1), given_sizes.get(dim, 1), values)]
        return text if unmatched else ""
    return ""


def _by_dim(step: Any, spec: Spec) -> dict[str, Any]:
    """Return the sizes of a tile or split by dimension."""
    named = dict(step.by_dim)
    if named or not step.sizes:
        return named
    dims = spec.tile_dims if step.verb == "tile" else tuple(dim for dim in spec.dims if dim not in spec.tile_dims)
    return dict(zip(dims, step.sizes, strict=False))


def _level(step: Decomposition) -> Any:
    return next((refinement for refinement in step.refinements if isinstance(refinement, To)), None)


def _equal(own: Any, given: Any, values: dict[str, int]) -> bool:
    """Whether two fields can be equal; values of tunables are added."""
    if isinstance(own, Tunable) and isinstance(given, int):
        return values.setdefault(own.name, given) == given
    return own == given and not isinstance(given, (Tunable, Derived))
