"""Assign loads with `share_stages` to the stages of another load's ring. Their buffers have no separate memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import attrs

from fireiron.errors import DecompositionError
from fireiron.ir import Exec, For, Kernel


class SharedStages:
    """The sharing buffers of a kernel: `of` maps a buffer to the one whose stages it uses."""

    def __init__(self, kernel: Kernel) -> None:
        self.of: Mapping[str, str] = {buffer.name: buffer.tensor.shares for buffer in kernel.buffers if buffer.tensor.shares}
        self._tensors = {buffer.name: buffer.tensor for buffer in kernel.buffers}

    def moved(self, statement: Exec) -> Exec:
        """A statement in which sharing buffers are replaced by the buffers whose stages they use."""
        views = {name: view for name, view in statement.spec.operands.items() if view.tensor.name in self.of}
        if not views:
            return statement
        given = {name: attrs.evolve(view, tensor=self._tensors[self.of[view.tensor.name]]) for name, view in views.items()}
        accesses = tuple(attrs.evolve(access, buffer=self.of.get(access.buffer, access.buffer)) for access in statement.accesses)
        return attrs.evolve(statement, spec=statement.spec.with_operands(**given), accesses=accesses)

    def rings(self, used: Sequence[Sequence[str]], depth: Mapping[str, int], loop: For) -> list[list[Sequence[str]]]:
        """For each ring, its buffers, followed by the groups of buffers that share its stages.

        `used` are the buffers grouped by the statements that use them, and `depth` the number of stages of each.

        Raises: DecompositionError if buffers that are used together do not all share the stages of one ring, or do not fit them.
        """
        rings = {frozenset(names): [names] for names in used if self.of.keys().isdisjoint(names)}
        for names in used:
            if not self.of.keys().isdisjoint(names):
                self._ring_of(names, rings, loop).append(names)
        for first, *others in rings.values():
            if depth[first[0]] <= len(others):
                raise DecompositionError(
                    f"share_stages: each iteration has {len(others) + 1} fills in the stages of {', '.join(first)}",
                    got=f"{depth[first[0]]} stage{'s' * (depth[first[0]] > 1)}",
                    legal=f"at least {len(others) + 1}",
                    at=loop.origin,
                    hint=f".pipeline({2 * len(others) + 2})",
                )
        return list(rings.values())

    def _ring_of(self, names: Sequence[str], rings: Mapping[frozenset[str], list[Sequence[str]]], loop: For) -> list[Sequence[str]]:
        others = [self.of.get(name, "its own") for name in names]
        ring = rings.get(frozenset(others))
        if ring is None or len(set(others)) < len(others):
            legal = " or ".join(f"those of {', '.join(sorted(names))}" for names in rings) or "this split has no ring of other buffers"
            raise DecompositionError(
                f"share_stages: {', '.join(names)} are used together, so each must share the stages of a different buffer of one ring",
                got=", ".join(f"{name} in {other}" for name, other in zip(names, others, strict=True)),
                legal=legal,
                at=loop.origin,
                hint="share_stages(...) on each of these loads, or on none",
            )
        for name, other in zip(names, others, strict=True):
            tensor, other_tensor = self._tensors[name], self._tensors[other]
            if tensor.storage() != other_tensor.storage() or tensor.stages not in (0, other_tensor.stages):
                raise DecompositionError(
                    f"share_stages: {name} and {other} share stages, but their layouts differ",
                    got=f"{tensor} and {other_tensor}",
                    legal="one layout, and stages(...) only on the first load",
                    at=tensor.origin,
                    hint="leave share_stages out",
                )
        return ring


__all__ = ["SharedStages"]
