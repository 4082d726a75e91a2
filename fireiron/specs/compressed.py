"""Compressed operands of a definition: 2:4 sparse matrices as factors of its products.

    acc[m,n] = sum(k, decompressed(W[m,k // 2], E[m,k // 8]) * X[k,n])

W and E have fewer elements than coordinates: one per two, and one per eight along k. Their views are those of arrays with K/2 and K/8
columns, which tiles divide in proportion (`Definition.coarse`). So the step is a `SparseMatMul`, and copies of W and E are those of plain
matrices. A `Compressed` states the dimensions and indices of both arrays.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import attrs

from fireiron.errors import ArgumentError
from fireiron.frozen import frozen
from fireiron.specs.compression import decompress_2_4, kept_elements
from fireiron.specs.formula import DECOMPRESSED, Element, Formula, Operation
from fireiron.specs.indirect import Stored
from fireiron.specs.meaning import aligned, evaluated
from fireiron.values.machine import DType, uint8


@frozen
class Compressed:
    """A 2:4 sparse operand: the arrays of its kept values and of its metadata."""

    values: Stored
    metadata: Stored

    @property
    def dims(self) -> tuple[str, ...]:
        """The dimension along which it is compressed."""
        return self.values.dims[-1:]

    @property
    def arrays(self) -> tuple[Stored, Stored]:
        """Both arrays."""
        return self.values, self.metadata

    def __str__(self) -> str:
        return f"{DECOMPRESSED}({self.values}, {self.metadata})"


def compressed_operands(steps: Iterable[tuple[str, Formula]], uses: Mapping[str, tuple[str, ...]]) -> tuple[Compressed, ...]:
    """Return the compressed operands of steps, given by name; `uses` are the declared dimensions of each operand.

    Raises: ArgumentError, which names the step, for temporaries, for arrays with other dimensions, and for arrays with another use.
    """
    operands: dict[str, Compressed] = {}
    named: dict[str, str] = {}
    pairs = [(step, formula) for step, formula in steps]
    for step, formula in pairs:
        if formula.sparse is None:
            continue
        values, metadata = (_stored(step, element, formula, uses) for element in formula.sparse.arguments)
        operand = operands.setdefault(values.operand, Compressed(values, metadata))
        if operand != Compressed(values, metadata) or named.setdefault(metadata.operand, values.operand) != values.operand:
            raise ArgumentError(
                f"step {step}: {formula.sparse}, and another step reads one of the two arrays otherwise", got=str(formula),
                legal="two arrays that all steps read together, by the same indices", hint="pass the array twice, as another operand",
            )  # fmt: skip
    for step, formula in pairs:
        _require_no_other_use(step, formula, {array.operand for operand in operands.values() for array in operand.arrays})
    return tuple(operands[name] for name in uses if name in operands)


def _stored(step: str, element: Any, formula: Formula, uses: Mapping[str, tuple[str, ...]]) -> Stored:
    dims = uses.get(element.tensor)
    if dims is None:
        raise ArgumentError(
            f"step {step}: {element.tensor} of {formula.sparse} is not an operand", got=str(formula), legal=tuple(uses),
            hint=f'operands={{"{element.tensor}": "..."}}, compressed before the call by compress_2_4',
        )  # fmt: skip
    if len(dims) != len(element.stored):
        raise ArgumentError(
            f"step {step}: {element} has other dimensions than the operand", got=str(formula), legal=f"{element.tensor}[{','.join(dims)}]"
        )
    return Stored(element.tensor, dims, element.stored)


def _require_no_other_use(step: str, formula: Formula, names: Iterable[str]) -> None:
    """Refuse a step that writes one of these arrays, or reads it outside of the products of the compressed operand."""
    own = () if formula.sparse is None else formula.sparse.arguments
    others = [element.tensor for element in (*formula.elements, formula.target) if element not in own]
    wrong = next((name for name in names if name in others), None)
    if wrong is not None:
        raise ArgumentError(
            f"step {step}: {wrong} is an array of a compressed operand", got=str(formula), legal=f"{wrong} in {DECOMPRESSED}(...) only",
            hint="pass the array twice, as another operand",
        )  # fmt: skip


def check_metadata_types(compressed: Iterable[Compressed], types: Mapping[str, DType]) -> None:
    """Refuse metadata of other types than uint8."""
    for operand in compressed:
        name = operand.metadata.operand
        if types[name] != uint8:
            raise ArgumentError(
                f"{name} is the metadata of {operand}, and has elements of {types[name]}", legal="uint8",
                hint=f'types={{"{name}": uint8}}, and the second array of compress_2_4',
            )  # fmt: skip


# ---------------------------------------------------------------------------------------------- meaning


def dense_operands(compressed: Iterable[Compressed], arrays: Mapping[str, Any]) -> dict[str, Any]:
    """Return the dense matrix under the name of the kept values, and which of its elements are kept under that of the metadata."""
    import numpy

    dense: dict[str, Any] = {}
    for operand in compressed:
        values, metadata = (one.operand for one in operand.arrays)
        if {values, metadata} <= set(arrays):
            stored = numpy.asarray(arrays[metadata])
            dense |= {values: decompress_2_4(numpy.asarray(arrays[values]), stored), metadata: kept_elements(stored)}
    return dense


def evaluated_product(formula: Formula, operands: Mapping[Element, Any], dropped: tuple[str, ...], ranges: Mapping[str, Any]) -> Any:
    """Compute a sum of products with a factor of `dense_operands`, as `meaning.evaluated` does.

    Only kept elements are multiplied: 0 * inf, which is NaN, does not occur.
    """
    import numpy

    dense = formula.dense
    values, other = dense.factors if formula.sparse is not None and formula.sparse.arguments[0] == dense.factors[0] else dense.factors[::-1]
    whole = {element: array for element, array in operands.items() if element in dense.factors}
    if numpy.isfinite(operands[other].astype(numpy.float64)).all() or formula.sparse is None:
        return evaluated(dense, whole, dropped, ranges)
    by_element = aligned(formula, operands, dropped)
    kept = by_element[formula.sparse.arguments[1]] != 0  # type: ignore[index]
    terms = numpy.where(kept, by_element[values] * by_element[other], 0)
    return terms.sum(axis=tuple(range(len(formula.target.dims), terms.ndim)))


def of_dense(formula: Formula) -> Formula:
    """Return a formula with the dense matrix instead of a compressed operand."""
    if formula.sparse is None:
        return formula
    stored = formula.sparse.arguments[0]
    factors = tuple(Element(element.tensor, element.index) if element == stored else element for element in formula.factors)
    return attrs.evolve(formula, value=Operation("*", factors))
