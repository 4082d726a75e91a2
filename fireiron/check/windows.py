"""Affine indices: each access to an element that may be outside of its array is tested, and a false test reads zero.

The storages and conditions in the final IR are compared with the indices of the spec's operands, not with decisions of a pass. Which
indices may leave an array is computed by `values.affine.window`, as in the passes; only the simulator finds an error there.
"""

from __future__ import annotations

from collections.abc import Iterator

from fireiron.check.access_trace import AccessTrace, Use
from fireiron.check.finding import Finding, described
from fireiron.ir import Buffer, Kernel
from fireiron.values.affine import AffineIndex, Window
from fireiron.values.expr import FALSE, TRUE, ZERO, Expr, conjuncts, less


def wrong_windows(access_trace: AccessTrace) -> Iterator[Finding]:
    """An error for each storage that differs from the affine indices of its operand, and for each access without the test of an index."""
    kernel = access_trace.kernel
    for buffer in kernel.buffers:
        if _is_affine(buffer) and (message := _problem(kernel, buffer)) is not None:
            yield Finding("bounds", "error", buffer.name, f"{buffer.name}: {message}", buffer.tensor.origin)
    for use in access_trace.uses:
        buffer = kernel.buffer(use.access.buffer)
        message = _untested(use, _windows(kernel, buffer))
        if message is not None:
            yield Finding("bounds", "error", buffer.name, message, use.access.origin, described(use.statement, use.access))


def _is_affine(buffer: Buffer) -> bool:
    through = buffer.tensor.through
    return bool(buffer.storage.windows) or (through is not None and any(isinstance(one, AffineIndex) for one in through.index))


def _problem(kernel: Kernel, buffer: Buffer) -> str | None:
    """The difference between a storage and the indices of the operand; None if there is none."""
    view, tensor = kernel.spec.operands.get(buffer.name), buffer.tensor
    if tensor.through is None or view is None or view.tensor != tensor:
        return "its indices are not those of the spec's operand"
    wanted = tensor.through.storage(tensor.shape)
    if any(getattr(buffer.storage, name) != getattr(wanted, name) for name in ("layout", "offset", "reversed")):
        places = [f"{one.layout} from {one.offset} on" for one in (buffer.storage, wanted)]
        return f"its addresses are {places[0]}, and its indices give {places[1]}"
    return "it is written, and has an affine index" if buffer.written else None


def _windows(kernel: Kernel, buffer: Buffer) -> tuple[Window, ...]:
    """The windows that the indices of the spec's operand require, whatever the storage in the IR states."""
    view = kernel.spec.operands.get(buffer.name)
    if view is None or view.tensor.through is None:
        return buffer.storage.windows
    return view.tensor.through.storage(view.tensor.shape).windows


def _untested(use: Use, windows: tuple[Window, ...]) -> str | None:
    """The first access to an element whose index is not tested; None if there is none."""
    if windows and not use.pieces:
        return f"{use.access.buffer} is read by an instruction that tests no index"
    elements = use.access.elements()
    for piece in use.pieces if windows else ():
        known = (*conjuncts(use.statement.performed), *conjuncts(piece.condition))
        if FALSE in known:
            continue
        for offset in elements[piece.first : piece.first + piece.width]:
            needed = (test for window in windows for test in _tests(window, use.access.coordinates(offset)))
            missing = next((test for test in needed if test != TRUE and test not in known), None)
            if missing is not None:
                return f"{use.access.buffer} is read without the condition {missing}: the element may be outside of the array"
    return None


def _tests(window: Window, coordinates: tuple[Expr, ...]) -> Iterator[Expr]:
    """Both conditions that an index is inside of the array."""
    place = window.index.of(coordinates)
    yield less(ZERO, place + 1)
    if window.below_end:
        yield less(place, window.extent)


__all__ = ["wrong_windows"]
