"""Refuse stored values that no verb can make, because a file that was edited by hand must contain a possible strategy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import attrs

from fireiron.decomp.load import Load
from fireiron.decomp.split import Split
from fireiron.decomp.tile import Tile
from fireiron.errors import StoreError
from fireiron.language.strategy import LoadStrategy
from fireiron.language.tree import Decomposition
from fireiron.refine.pad import Pad
from fireiron.spec import check_layout, check_size
from fireiron.values.expr import constant
from fireiron.values.machine import SH
from fireiron.values.tensor import MatrixLayout, Mode, Tensor, View


def check_value(value: Any) -> None:
    """Refuse a value that no verb can make."""
    if isinstance(value, Decomposition):
        _check_refinements(value)
    check = _CHECKS.get(type(value))
    if check is not None:
        check(value)


def _check_refinements(step: Decomposition) -> None:
    bare: Decomposition = attrs.evolve(step, refinements=())
    for refinement in step.refinements:
        bare = bare.refined(refinement)
    if bare.refinements != step.refinements:
        raise StoreError(f"the refinements of {step.verb} are not in canonical order, or one occurs twice", legal=bare.refinements)


def _check_tile(step: Tile) -> None:
    rebuilt = Tile.of(step.sizes, dict(step.by_dim))
    if (rebuilt.sizes, rebuilt.by_dim) != (step.sizes, step.by_dim):
        raise StoreError("these are not sizes of a tile", got=(step.sizes, step.by_dim))


def _check_split(step: Split) -> None:
    rebuilt = Split.of(step.sizes, dict(step.by_dim))
    if (rebuilt.sizes, rebuilt.by_dim) != (step.sizes, step.by_dim):
        raise StoreError("these are not sizes of a split", got=(step.sizes, step.by_dim))


def _check_matrix_layout(value: MatrixLayout) -> None:
    _need(value.leading is None or value.leading.low >= 1, "a leading dimension must be at least 1", value.leading)


def _check_tensor(value: Tensor) -> None:
    _need(value.name.isidentifier(), "the name of a tensor must be an identifier", value.name)
    for size in value.shape:
        check_size(size, value.name)
    _need(value.pad >= 0 and value.copies >= 1, "pad must be at least 0, and copies at least 1", (value.pad, value.copies))
    _need(value.align >= 1 and value.align & (value.align - 1) == 0, "an alignment must be a power of two", value.align)
    _need(value.owner in ("reads", "accumulates"), "owner must be reads or accumulates", value.owner)
    if isinstance(value.layout, MatrixLayout) and value.memory.of_grid:
        check_layout(value.layout, value.name, (), value.shape)


def _check_mode(value: Mode) -> None:
    number = constant(value.size)
    _need(value.size.low >= 0 and number != 0, "a mode must have at least one element", value.size)


def _check_view(value: View) -> None:
    rank = len(value.tensor.shape)
    _need(len(value.numerals) == rank, "a view must have the rank of its tensor", len(value.numerals))
    axes = value.axes if value.axes is not None else tuple(range(rank))
    _need(len({*axes} & {*range(rank)}) == len(axes), "the axes of a view must be different dimensions of its tensor", axes)
    _need(
        all(not dim.modes for axis, dim in enumerate(value.numerals) if axis not in axes),
        "dimensions of the tensor that a view lacks must be fixed",
        axes,
    )


def _need(holds: bool, message: str, got: object) -> None:
    if not holds:
        raise StoreError(message, got=got)


_CHECKS: Final[Mapping[type[Any], Callable[[Any], Any]]] = {
    Tile: _check_tile,
    Split: _check_split,
    Load: lambda value: _need(value.operand.isidentifier(), "the operand must be a name", value.operand),
    Pad: lambda value: LoadStrategy((Load("A", SH),)).pad(value.elements),
    MatrixLayout: _check_matrix_layout,
    Tensor: _check_tensor,
    Mode: _check_mode,
    View: _check_view,
}
"""Checks that the constructors of the classes do not make."""
