"""Buffers without bytes of their own: loads that take turns in the slots of another load's ring, as `share` asks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import attrs

from fireiron.errors import DecompositionError
from fireiron.ir import Exec, For, Kernel


class SharedStages:
    """Who shares: `of` says by buffer in whose slots it lies."""

    def __init__(self, kernel: Kernel) -> None:
        self.of: Mapping[str, str] = {one.name: one.tensor.shares for one in kernel.buffers if one.tensor.shares}
        self._tensors = {one.name: one.tensor for one in kernel.buffers}

    def moved(self, statement: Exec) -> Exec:
        """A statement with the slots in the place of buffers that lie in them."""
        views = {name: view for name, view in statement.spec.operands.items() if view.tensor.name in self.of}
        if not views:
            return statement
        given = {name: attrs.evolve(view, tensor=self._tensors[self.of[view.tensor.name]]) for name, view in views.items()}
        accesses = tuple(attrs.evolve(one, buffer=self.of.get(one.buffer, one.buffer)) for one in statement.accesses)
        return attrs.evolve(statement, spec=statement.spec.with_operands(**given), accesses=accesses)

    def rings(self, used: Sequence[Sequence[str]], depth: Mapping[str, int], loop: For) -> list[list[Sequence[str]]]:
        """Of buffers by who uses them, those of each ring, and behind them all that take turns with them.

        Raises: a DecompositionError where some that are used together do not all lie in the slots of one ring, or in others than they fit.
        """
        rings = {frozenset(names): [names] for names in used if self.of.keys().isdisjoint(names)}
        for names in used:
            if not self.of.keys().isdisjoint(names):
                self._ring_of(names, rings, loop).append(names)
        for first, *others in rings.values():
            if depth[first[0]] <= len(others):
                raise DecompositionError(
                    f"share_stages: each iteration has {len(others) + 1} turns in the slots of {', '.join(first)}",
                    got=f"{depth[first[0]]} stage{'s' * (depth[first[0]] > 1)}",
                    legal=f"at least {len(others) + 1}",
                    at=loop.origin,
                    hint=f".pipeline({2 * len(others) + 2})",
                )
        return list(rings.values())

    def _ring_of(self, names: Sequence[str], rings: Mapping[frozenset[str], list[Sequence[str]]], loop: For) -> list[Sequence[str]]:
        others = [self.of.get(name, "its own") for name in names]
        found = rings.get(frozenset(others))
        if found is None or len(set(others)) < len(others):
            legal = " or ".join(f"those of {', '.join(sorted(one))}" for one in rings) or "there is no ring of others under this split"
            raise DecompositionError(
                f"share_stages: {', '.join(names)} are used together, so each of them fills slots of another buffer of one ring",
                got=", ".join(f"{name} in {other}" for name, other in zip(names, others, strict=True)),
                legal=legal,
                at=loop.origin,
                hint="share_stages(...) on each of these loads, or on none",
            )
        for name, other in zip(names, others, strict=True):
            one, two = self._tensors[name], self._tensors[other]
            if one.storage() != two.storage() or one.stages not in (0, two.stages):
                raise DecompositionError(
                    f"share_stages: {name} and {other} lie in the same slots",
                    got=f"{one} beside {two}",
                    legal="one layout, and stages(...) on the first load alone",
                    at=one.origin,
                    hint="leave share_stages out",
                )
        return found


__all__ = ["SharedStages"]
