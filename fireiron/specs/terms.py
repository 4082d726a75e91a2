"""Sums of expressions as steps that kernels have: a step on elements makes the terms, and the sum, or the product of matrices, reads them.

t[m] = sum(n, exp(X[m,n]) * 2)                t_terms[m,n] = exp(X[m,n]) * 2;  t[m] = sum(n, t_terms[m,n])
t[m] = sum(n, X[m,n] * X[m,n])                the same: no factor has a dimension that the other has not
C[m,n] = sum(k, relu(A[m,k]) * B[k,n])        C_left[m,k] = relu(A[m,k]);      C[m,n] = sum(k, C_left[m,k] * B[k,n])
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

import attrs

from fireiron.errors import ArgumentError
from fireiron.specs.formula import Element, Formula, Index, Operation, Value, elements_of


@attrs.frozen
class Sums:
    """How sums are parted: `taken` are names that mean something, `single` dimensions that temporaries do not have, `counted` what the
    names of coordinates begin with."""

    taken: Collection[str]
    single: Collection[str]
    counted: str

    def parted(self, step: str, one: Formula) -> Iterator[tuple[str, Formula]]:
        """The steps, by name, that a step becomes: itself, or with its terms in front.

        Raises: ArgumentError where there would be more terms than any tensor in them has elements.
        """
        dims = set(self._dims(one, one.value))
        if one.reduction is None or one.reduces or one.value is None or not dims >= set(one.over):
            yield step, one
            return
        sides = one.value.arguments if one.is_product_sum and isinstance(one.value, Operation) else ()
        own = [bool(set(self._dims(one, side)) - set(self._dims(one, other))) for side, other in zip(sides, sides[::-1], strict=True)]
        if all(isinstance(side, Element) for side in sides) and any(own):
            yield step, one
        elif sides and all(own):
            yield from self._product(step, one, sides)
        else:
            self._require_few(step, one)
            made, read = self._made(f"{step}_terms", one, one.value)
            yield made.output, made
            yield step, attrs.evolve(one, value=read)

    def _product(self, step: str, one: Formula, sides: tuple[Value, ...]) -> Iterator[tuple[str, Formula]]:
        """A product of matrices of which a factor is an expression."""
        read = list(sides)
        for place, side in enumerate(sides):
            if not isinstance(side, Element):
                made, read[place] = self._made(f"{step}_{('left', 'right')[place]}", one, side)
                yield made.output, made
        yield step, attrs.evolve(one, value=Operation("*", tuple(read)))

    def _made(self, name: str, one: Formula, value: Value) -> tuple[Formula, Element]:
        """The step that makes a temporary of a value, and the element of it that is read."""
        while name in self.taken:
            name += "_"
        element = Element(name, tuple(map(Index, self._dims(one, value))))
        return Formula(element, "=", value), element

    def _dims(self, one: Formula, value: Value | None) -> tuple[str, ...]:
        """The dimensions that a temporary of a value has, in the order of the formula."""
        found = {dim for element in elements_of(value) for dim in element.dims}
        return tuple(dim for dim in one.dims if dim in found and dim not in self.single)

    def _require_few(self, step: str, one: Formula) -> None:
        """Refuse terms of which no tensor has all dimensions."""
        read = [set(element.dims) for element in one.elements if not element.tensor.startswith(self.counted)]
        every = set().union(*read)
        if read and every not in read:
            raise ArgumentError(
                f"step {step}: {one.reduction} of an expression of tensors of which none goes along all of {', '.join(sorted(every))}",
                got=str(one), legal=f"{one.reduction} of an expression of one tensor and parts of it, sum of a product of two",
                hint=f"what has no {one.over[0]} in a step behind; or a step in front that makes the terms, where they are few",
            )  # fmt: skip
