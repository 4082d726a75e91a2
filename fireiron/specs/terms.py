"""Split a sum of an expression into two steps: an elementwise step computes the terms, and a sum or a matmul reads them.

t[m] = sum(n, exp(X[m,n]) * 2)                t_terms[m,n] = exp(X[m,n]) * 2;  t[m] = sum(n, t_terms[m,n])
t[m] = sum(n, X[m,n] * X[m,n])                the same, because no operand has a dimension that the other lacks
C[m,n] = sum(k, relu(A[m,k]) * B[k,n])        C_left[m,k] = relu(A[m,k]);      C[m,n] = sum(k, C_left[m,k] * B[k,n])
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

import attrs

from fireiron.errors import ArgumentError
from fireiron.frozen import frozen
from fireiron.specs.formula import PAIR, Element, Formula, Index, Operation, Value, elements_of, is_decompressed


@frozen
class SumSplitter:
    """Splits sums of expressions into steps.

    `used_names` are names that a temporary must not have. `single` are dimensions of one element, which temporaries omit.
    `coordinate_prefix` is the prefix of the names of coordinates.
    """

    used_names: Collection[str]
    single: Collection[str]
    coordinate_prefix: str

    def split(self, step: str, formula: Formula) -> Iterator[tuple[str, Formula]]:
        """Yield the steps that replace a step, each with its name: the computation of terms, if it is separate, and then the step.

        Raises: ArgumentError if the step has more terms than each of its tensors has elements.
        """
        if formula.scan is not None and not self._reads_whole(formula):
            yield from self._scan(step, formula)
            return
        dims = set(self._dims(formula, formula.value))
        if formula.reduction is None or formula.reduces or formula.value is None or not dims >= set(formula.over):
            yield step, formula
            return
        sides = formula.value.arguments if formula.is_product_sum and isinstance(formula.value, Operation) else ()
        own = [
            bool(set(self._dims(formula, side)) - set(self._dims(formula, other))) for side, other in zip(sides, sides[::-1], strict=True)
        ]
        if all(map(_is_read, sides)) and any(own):
            yield step, formula
        elif sides and all(own):
            yield from self._product(step, formula, sides)
        else:
            self._require_few(step, formula)
            terms, read = self._temporary(f"{step}_terms", formula, formula.value)
            yield terms.output, terms
            yield step, attrs.evolve(formula, value=read)

    def _scan(self, step: str, formula: Formula) -> Iterator[tuple[str, Formula]]:
        """Yield the steps of a scan of an expression, or of a recurrence with an expression or without a dimension of its result."""
        read = list(formula.scanned)
        for place, value in enumerate(formula.scanned):
            if not self._is_whole(formula, value):
                name = f"{step}_factors" if formula.recurs and place == 0 else f"{step}_terms"
                terms, read[place] = self._temporary(name, formula, value, whole=formula.recurs)
                yield terms.output, terms
        yield step, attrs.evolve(formula, value=Operation(PAIR, tuple(read)) if formula.recurs else read[0])

    def _reads_whole(self, formula: Formula) -> bool:
        """Whether a scan reads tensors, those of a recurrence with all dimensions of its result."""
        return all(self._is_whole(formula, value) for value in formula.scanned)

    def _is_whole(self, formula: Formula, value: Value) -> bool:
        """Whether a value of a scan is a tensor, in a recurrence with all dimensions of the result."""
        if not isinstance(value, Element) or not value.plain:
            return False
        return not formula.recurs or {*value.dims} >= {*formula.target.dims} - {*self.single}

    def _product(self, step: str, formula: Formula, sides: tuple[Value, ...]) -> Iterator[tuple[str, Formula]]:
        """Yield the steps of a matmul with an expression as an operand."""
        read = list(sides)
        for place, side in enumerate(sides):
            if not _is_read(side):
                terms, read[place] = self._temporary(f"{step}_{('left', 'right')[place]}", formula, side)
                yield terms.output, terms
        yield step, attrs.evolve(formula, value=Operation("*", tuple(read)))

    def _temporary(self, name: str, formula: Formula, value: Value, whole: bool = False) -> tuple[Formula, Element]:
        """Return the formula that assigns a value to a temporary, and the element that reads the temporary.

        The temporary has the dimensions of the value, or, if `whole`, of the result.
        """
        while name in self.used_names:
            name += "_"
        dims = tuple(dim for dim in formula.target.dims if dim not in self.single) if whole else self._dims(formula, value)
        element = Element(name, tuple(map(Index, dims)))
        return Formula(element, "=", value), element

    def _dims(self, formula: Formula, value: Value | None) -> tuple[str, ...]:
        """The dimensions of a temporary for a value, in the order of the formula."""
        dims = {dim for element in elements_of(value) for dim in element.dims}
        return tuple(dim for dim in formula.dims if dim in dims and dim not in self.single)

    def _require_few(self, step: str, formula: Formula) -> None:
        """Refuse an expression if no tensor in it has all of its dimensions."""
        read = [set(element.dims) for element in formula.elements if not element.tensor.startswith(self.coordinate_prefix)]
        every = set().union(*read)
        if read and every not in read:
            raise ArgumentError(
                f"step {step}: no tensor in the expression of {formula.reduction} has all of its dimensions {', '.join(sorted(every))}",
                got=str(formula), legal=f"{formula.reduction} of an expression of one tensor and parts of it, sum of a product of two",
                hint=f"a later step for factors without {formula.over[0]}; or an earlier step that computes the terms, if they are few",
            )  # fmt: skip


def _is_read(value: Value) -> bool:
    """Whether a matmul reads a factor from its arrays, so that no step computes it."""
    return isinstance(value, Element) or is_decompressed(value)
