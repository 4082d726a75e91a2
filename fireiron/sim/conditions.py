"""Evaluate conditions in their order, as the printed text does: a condition reads arrays of integers only where those before it hold."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeAlias

import attrs
import numpy as np

from fireiron.values.expr import BRACKETS, Expr, compiled

Array: TypeAlias = Any


@attrs.frozen(eq=False)
class Reading:
    """A compiled expression, and the variables of the arrays that it reads."""

    value: Callable[[Mapping[str, Any]], Any]
    tables: tuple[str, ...]

    @staticmethod
    def of(value: Expr) -> Reading:
        """Compile an expression."""
        return Reading(compiled(value), tuple(sorted(var.name for var in value.variables() if var.name.endswith(BRACKETS))))

    def at(self, env: Mapping[str, Any], mask: Array | None) -> Array:
        """The value; only threads of the mask (None: all) read arrays, and the others get zeros from them."""
        if mask is not None and self.tables:
            env = {**env, **{name: env[name].where(mask) for name in self.tables}}
        return np.asarray(self.value(env))


@attrs.frozen(eq=False)
class Conjunction:
    """Conditions in the order in which a kernel tests them."""

    conditions: tuple[Reading, ...]

    @staticmethod
    def of(conditions: Iterable[Expr]) -> Conjunction:
        """Compile the conditions."""
        return Conjunction(tuple(map(Reading.of, conditions)))

    def values(self, env: Mapping[str, Any], rank: int, mask: Array | None = None) -> Iterator[tuple[Array, Array | None]]:
        """Yield the value of each condition, and the mask of threads for which it and all before it hold; None: all threads."""
        for condition in self.conditions:
            value = aligned(condition.at(env, mask), rank)
            mask = both(mask, value.astype(bool, copy=False))
            yield value, mask

    def mask(self, env: Mapping[str, Any], rank: int, mask: Array | None = None) -> Array | None:
        """Where all conditions hold, among the threads of a mask; None: everywhere."""
        masks = [held for _, held in self.values(env, rank, mask)]
        return masks[-1] if masks else mask

    def holds(self, env: Mapping[str, Any], rank: int, mask: Array | None) -> Array:
        """The mask as an array."""
        result = self.mask(env, rank, mask)
        return aligned(np.True_, rank) if result is None else result


def aligned(values: Array, rank: int) -> Array:
    """The array with leading axes of size 1."""
    return values.reshape((1,) * (rank - values.ndim) + values.shape)


def both(mask: Array | None, more: Array | None) -> Array | None:
    """The conjunction of two masks; None is true everywhere."""
    if more is None or (mask is not None and more.all()):
        return mask
    if more.all():
        return None
    return more if mask is None else mask & more


__all__ = ["Conjunction", "Reading", "aligned", "both"]
