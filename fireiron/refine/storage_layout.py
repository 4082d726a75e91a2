"""The layout of a buffer: `storage_layout`, `to_row_major` and `to_col_major` on a load."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import attrs

from fireiron.errors import DecompositionError, call_site
from fireiron.frozen import frozen
from fireiron.language.tree import Context, Decomposition, Refinement, verb
from fireiron.spec import Spec
from fireiron.values.expr import constant
from fireiron.values.layout import Layout
from fireiron.values.tensor import ColMajor, MatrixLayout, RowMajor


@frozen
class StorageLayout(Refinement):
    """Store the new buffer row-major, column-major, or in a hierarchical layout.

    Legal for a layout with the shape of the buffer. rewrite: A_sh[k][m] --> A_sh[m][k]

    Source: Fireiron, section 4.2.

    >>> from fireiron import *
    >>> blocks = MatMul(64, 64, 64)(GL, GL, GL)(Kernel).tile(32, 32).to(Block)
    >>> loads = blocks.split(8).load(A, SH).to_row_major().load(B, SH)
    >>> text = loads.tile(4, 4).to(Thread).tile(1, 1).split(1).done().cuda()
    >>> [line.strip() for line in text.splitlines() if "a_sh[thread" in line]
    ['a_sh[thread_m * 4 * 8 + m * 8 + k2],']
    """

    applies_to: ClassVar[tuple[str, ...]] = ("load",)
    layout: MatrixLayout | Layout

    def __attrs_post_init__(self) -> None:
        if not isinstance(self.layout, (MatrixLayout, Layout)):
            raise DecompositionError(
                "storage_layout: the argument is not a layout",
                got=self.layout,
                legal="RowMajor ColMajor Layout(shape, stride)",
                at=call_site(),
            )

    @classmethod
    def choices(cls, step: Decomposition, spec: Spec, context: Context) -> Iterator[StorageLayout]:
        yield from map(StorageLayout, (RowMajor, ColMajor))
        view = spec.operands.get(getattr(step, "operand", ""))
        shape = () if view is None else tuple(map(constant, view.shape))
        if len(shape) == 2 and None not in shape and not any(size is None or size % 2 for size in shape):
            rows, columns = (size or 0 for size in shape)
            yield StorageLayout(Layout((rows, (2, columns // 2)), (2, (1, 2 * rows))))

    def plan(self, plan: Any) -> Any:
        return attrs.evolve(plan, layout=self.layout)

    def __str__(self) -> str:
        return f"storage_layout({self.layout!r})"


@verb()
def storage_layout(layout: MatrixLayout | Layout) -> StorageLayout:
    """Store the new buffer row-major, column-major, or in a hierarchical `shape:stride` layout.

    Legal for a layout with the shape of the buffer. rewrite: A_sh[k][m] --> A_sh[m][k]
    """
    return StorageLayout(layout)


@verb()
def to_row_major() -> StorageLayout:
    """Store the new buffer row-major. Legal on every load. rewrite: A_sh[k][m] --> A_sh[m][k]"""
    return StorageLayout(RowMajor)


@verb()
def to_col_major() -> StorageLayout:
    """Store the new buffer column-major. Legal on every load. rewrite: A_sh[m][k] --> A_sh[k][m]"""
    return StorageLayout(ColMajor)


__all__ = ["StorageLayout"]
