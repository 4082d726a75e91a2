"""The sizes and the tensors of a call of a definition."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fireiron.errors import ArgumentError
from fireiron.spec import check_layout, check_size, coarse_shape
from fireiron.specs.fused_definition import FusedDefinition
from fireiron.specs.indirect import derived_extents, tensor_of
from fireiron.specs.steps import INDICES
from fireiron.values.expr import Expr
from fireiron.values.machine import COORD, GL, VAL, DType, as_dtype, float32, int32, uint8
from fireiron.values.orders import Distributed
from fireiron.values.strides import USUAL_ALIGNMENT, StorageOrder, Strides
from fireiron.values.tensor import ColMajor, Tensor


def extents_of(title: str, definition: FusedDefinition, sizes: Mapping[str, Any]) -> dict[str, Expr]:
    """Return the sizes of all dimensions of a call. Those that a digit determines may be omitted.

    Raises: ArgumentError for sizes of other dimensions, and for sizes that differ from those that digits determine.
    """
    every = (*definition.order, *definition.array_dims)
    known = {dim: check_size(sizes[dim], dim) for dim in every if dim in sizes}
    derived = derived_extents(definition.indexed, known) if set(definition.order) <= set(known) else {}
    if not set(sizes) <= set(every) or not set(every) <= {*known, *derived}:
        raise ArgumentError(
            f"{title}: the sizes must be those of its dimensions", got=sorted(sizes), legal=every, hint=_hint_for_options(definition, sizes)
        )
    for dim, (size, index) in derived.items():
        if known.setdefault(dim, size) != size:
            raise ArgumentError(
                f"{title}: the size of {dim} must be that of the index {index}", got=f"{dim}={known[dim]}", legal=f"{dim}={size}",
                hint=f"omit {dim}" if dim in definition.array_dims else None,
            )  # fmt: skip
    return {dim: known[dim] for dim in every}


def _hint_for_options(definition: FusedDefinition, sizes: Mapping[str, Any]) -> str | None:
    """Return how to write options of other specs, `order=` and `c_dtype=`; None if there are none."""
    hints = []
    for option in (option for option in sizes if option.endswith("_dtype")):
        name = next((name for name in definition.arrays if name.lower() == option.removesuffix("_dtype")), definition.arrays[-1])
        hints.append(f'types={{"{name}": {sizes[option]}}} instead of {option}=')
    if "order" in sizes:
        orders = ", ".join(f"{name}={sizes['order']}" for name in definition.arrays)
        hints.append(f"{orders} instead of order=")
    return "; ".join(hints) or None


def check_equal_sizes(title: str, definition: FusedDefinition, sizes: Mapping[str, Any]) -> None:
    """Refuse different sizes of dimensions by which the same tensor is indexed."""
    for dim, other, name in definition.equal_sizes:
        if sizes[dim] != sizes[other]:
            raise ArgumentError(
                f"{title}: {name} is indexed by {dim} and by {other}, so both must have the same size",
                got=f"{dim}={sizes[dim]}, {other}={sizes[other]}", legal=f"{dim}={sizes[dim]}, {other}={sizes[dim]}",
                hint=swapped_indices(definition, name),
            )  # fmt: skip


def swapped_indices(definition: FusedDefinition, name: str) -> str | None:
    """Return the advice for an operand that a formula indexes by its dimensions in another order; None for other operands."""
    declared = definition.uses.get(name, ())
    swapped = any(
        element.tensor == name and element.dims != declared and sorted(element.dims) == sorted(declared) for element in definition.elements
    )
    return f"write {name}[{','.join(declared)}] if the indices are swapped" if swapped else None


def usual_type(definition: FusedDefinition, name: str, dtype: DType) -> DType:
    """Return the type of an operand that neither the call nor the definition states: `dtype`, or that of its role.

    A number is float32, indices are int32, and the metadata of a compressed operand is uint8.
    """
    if not definition.dims_of_array(name):
        return float32
    return int32 if name in definition.tables else uint8 if name in definition.metadata else as_dtype(dtype)


def operand_array(
    title: str, definition: FusedDefinition, name: str, extents: Mapping[str, Expr], dtype: DType,
    order: Expr | int | StorageOrder | Distributed,
) -> Tensor:  # fmt: skip
    """Return the array that a kernel takes for an operand, in a storage order. Numbers that no step writes are passed by value."""
    dims = definition.dims_of_array(name)
    is_coarse = name in definition.coarse
    shape = coarse_shape(definition, name, extents, title) if is_coarse else tuple(extents[dim] for dim in dims)
    scalar_result = not dims and name in definition.outputs
    align = order.align if isinstance(order, Strides) else dtype.bytes if scalar_result else USUAL_ALIGNMENT
    memory = GL if dims or scalar_result else VAL
    return Tensor(name, shape, dtype, memory, check_layout(order, name, dims, shape), align=align)


def operand_tensor(definition: FusedDefinition, name: str, arrays: Mapping[str, Tensor], extents: Mapping[str, Expr]) -> Tensor:
    """Return the tensor of an operand, or of the coordinates of a dimension."""
    shape = tuple(extents[dim] for dim in definition.uses[name])
    if name.startswith(INDICES):
        return Tensor(name, shape, int32, COORD, ColMajor)
    stored = definition.array_of(name)
    return (
        arrays[name]
        if stored is None
        else tensor_of(stored, arrays[name], arrays, shape, dict(definition.ranges), name in definition.outputs)
    )
