"""Dimensions of tensors that a definition shares: axes are tuples of dimensions, which views split, merge and reorder."""

from __future__ import annotations

import math
from collections.abc import Sequence

import attrs

Axis = tuple[int, ...]
"""The dimensions of an axis, the outermost first, by number; an axis with one element has none."""

Axes = tuple[Axis, ...]


class CannotStateError(Exception):
    """A node that no formula states; the text is the reason."""


@attrs.define
class Dims:
    """Dimensions by number. Dimensions become equal, or are split into several, until all axes fit."""

    sizes: list[int] = attrs.field(factory=list)
    parts: dict[int, Axis] = attrs.field(factory=dict)

    def new(self, size: int) -> Axis:
        """Return an axis of one new dimension; an empty one for one element."""
        if size == 1:
            return ()
        self.sizes.append(size)
        return (len(self.sizes) - 1,)

    def of_shape(self, shape: Sequence[int]) -> Axes:
        """Return an axis of a new dimension for each extent."""
        return tuple(map(self.new, shape))

    def resolved(self, axis: Axis) -> Axis:
        """Return the dimensions that an axis has now."""
        return tuple(part for dim in axis for part in (self.resolved(self.parts[dim]) if dim in self.parts else (dim,)))

    def size(self, axis: Axis) -> int:
        """Return the number of elements of an axis."""
        return math.prod(self.sizes[dim] for dim in axis)

    def _split(self, dim: int, inner: int) -> None:
        """Split a dimension into an outer one and one of `inner` elements."""
        if inner < 1 or self.sizes[dim] % inner:
            raise CannotStateError(f"a view divides {self.sizes[dim]} elements by {inner}")
        self.parts[dim] = (*self.new(self.sizes[dim] // inner), *self.new(inner))

    def unify(self, first: Axis, second: Axis) -> Axis:
        """Make two axes equal, and return them. An axis with one element is broadcast. Raises: `CannotStateError`."""
        if not first or not second:
            return first or second
        while True:
            left, right = self.resolved(first), self.resolved(second)
            if left == right:
                return left
            place = next((i for i in range(1, min(len(left), len(right)) + 1) if left[-i] != right[-i]), None)
            if place is None or self.size(left) != self.size(right):
                raise CannotStateError(f"extents {self.size(left)} and {self.size(right)}")
            last, other = left[-place], right[-place]
            small, large = sorted((self.sizes[last], self.sizes[other]))
            if small == large:
                self.parts[other] = (last,)
            else:
                self._split(last if self.sizes[last] == large else other, small)

    def regrouped(self, axes: Axes, shape: Sequence[int]) -> Axes:
        """Return the axes of a view with another shape: dimensions in the same order. Raises: `CannotStateError`."""
        left = [dim for axis in axes for dim in self.resolved(axis)]
        grouped: list[Axis] = []
        if self.size(tuple(left)) != math.prod(shape):
            raise CannotStateError("a view of a broadcast tensor")
        for size in reversed(shape):
            own: list[int] = []
            while self.size(tuple(own)) < size:
                dim = left.pop()
                missing = size // self.size(tuple(own))
                if self.sizes[dim] > missing:
                    self._split(dim, missing)
                    left.extend(self.resolved((dim,)))
                    continue
                own.insert(0, dim)
            if self.size(tuple(own)) != size:
                raise CannotStateError(f"a view that has axes of {size} elements across dimensions")
            grouped.insert(0, tuple(own))
        return tuple(grouped)
