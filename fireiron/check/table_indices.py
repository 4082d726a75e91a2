"""Addresses by arrays of integers: accesses stay inside of an array whatever the integers are, unless the definition promises their range.

An independent check of the storages in the final IR: they are compared with the indices and shapes of the spec's operands.
"""

from __future__ import annotations

from collections.abc import Iterator

from fireiron.check.access_trace import AccessTrace
from fireiron.check.finding import Finding, described
from fireiron.ir import Buffer, Kernel
from fireiron.specs.fused import fused
from fireiron.values.expr import FALSE, ONE, TRUE, conjuncts
from fireiron.values.indirect import Table, TableIndex


def wrong_tables(access_trace: AccessTrace) -> Iterator[Finding]:
    """An error for each table whose numbers may leave the array that they index, or that is read past its end."""
    kernel = access_trace.kernel
    for buffer in kernel.buffers:
        if buffer.tensor.through is None and not buffer.storage.tables:
            continue
        for message in _problems(kernel, buffer):
            yield Finding("bounds", "error", buffer.name, f"{buffer.name}: {message}", buffer.tensor.origin)
    yield from _unguarded_writes(access_trace)


def _unguarded_writes(access_trace: AccessTrace) -> Iterator[Finding]:
    """An error for each write by a number that is not tested to be an index."""
    for use in access_trace.uses:
        tables = access_trace.kernel.buffer(use.access.buffer).storage.tables if use.access.write else ()
        elements = use.access.elements()
        for piece in use.pieces if tables else ():
            known = (*conjuncts(use.statement.performed), *conjuncts(piece.condition))
            if FALSE in known:  # no element of the piece is in bounds
                continue
            offsets = elements[piece.first : piece.first + piece.width]
            needed = {table.inside(use.access.coordinates(offset)) for table in tables for offset in offsets}
            missing = next((condition for condition in needed if condition != TRUE and condition not in known), None)
            if missing is not None:
                message = f"{use.access.buffer} is written without the condition {missing}: the number may be no index"
                yield Finding("bounds", "error", use.access.buffer, message, use.access.origin, described(use.statement, use.access))
                break


def _problems(kernel: Kernel, buffer: Buffer) -> Iterator[str]:
    tensor = buffer.tensor
    view = kernel.spec.operands.get(buffer.name)
    if tensor.through is None or view is None or view.tensor != tensor:
        yield "its indices are not those of the spec's operand"
        return
    expected = tensor.through.storage(tensor.shape)
    if buffer.storage.layout != expected.layout or len(buffer.storage.tables) != len(expected.tables):
        yield f"its addresses are {buffer.storage.layout}, and its indices give {expected.layout}"
        return
    places = [(size, index) for size, index in zip(tensor.array.shape, tensor.through.index, strict=True) if isinstance(index, TableIndex)]
    for table, wanted, (size, index) in zip(buffer.storage.tables, expected.tables, places, strict=True):
        yield from _problems_of_table(kernel, table, wanted)
        if buffer.written and not table.drops:
            yield f"its elements are written whatever the numbers in {table.array} are"
        if table.most != size - ONE:
            yield f"an element of {table.array} is an index up to {table.most}, but the dimension has {size} elements"
        if kernel.buffer(table.array).array.shape != index.sizes:
            yield f"{table.array} is read as an array of {' x '.join(map(str, index.sizes))} elements, and has others"


def _problems_of_table(kernel: Kernel, table: Table, wanted: Table) -> Iterator[str]:
    """Why the numbers of a table, or the places of the numbers, may be out of bounds."""
    definition = fused(kernel.spec)
    promises = {} if definition is None else dict(definition.ranges)
    if table.promised and table.array not in promises:
        yield f"elements of {table.array} are not clamped, and the definition promises no range"
    if table.array != wanted.array or table.layout != wanted.layout or table.stride != wanted.stride:
        wrong, right = (f"{one.array} at {one.layout}, in steps of {one.stride} elements" for one in (table, wanted))
        yield f"it reads {wrong}, and its indices give {right}"


__all__ = ["wrong_tables"]
