"""Operands of wgmma in shared memory: their layouts, lane maps and descriptors (PTX ISA, "Matrix Descriptor Format").

Code shared by the dense and the sparse instructions.
"""

from __future__ import annotations

import functools
import math

from fireiron.ir import Exec
from fireiron.ir.awaited import awaited
from fireiron.ir.lanes import LaneMap, Part
from fireiron.ir.smem_layouts import PIECE, SPANS, SmemLayout, chunk_storage, smem_layout_of, widest_span
from fireiron.ir.text import Function, Printer
from fireiron.language.tree import Draft, Mismatch
from fireiron.spec import Spec
from fireiron.values.document import Call, Chain, Text
from fireiron.values.expr import ZERO, constant
from fireiron.values.tensor import MatrixLayout, Storage, View

THREADS = 128
"""Threads of a warpgroup."""

MODES = {128: 1, 64: 2, 32: 3, 16: 0}
"""The code of a span's swizzle in a descriptor."""


def storage_mismatch(spec: Spec, name: str) -> tuple[Mismatch, ...]:
    """Return the mismatch if an operand is not in chunks that the instruction can read; nothing if its storage is undecided."""
    view = spec.operands[name]
    shape = "x".join(map(str, view.tensor.shape))
    if view.tensor.free:
        if len(view.tensor.shape) != 2:
            return (Mismatch(f"{name} storage", "a buffer of two dimensions", shape),)
        best = preferred_storage(spec, name)
        if best is not None and isinstance(smem_layout_of(best, view, view.dtype.bytes), SmemLayout):
            return ()
        return (Mismatch(f"{name} size", "multiples of 16 bytes by 8 elements", shape),)
    layout = smem_layout_of(view.tensor.storage(), view, view.dtype.bytes)
    if isinstance(layout, str):
        return (Mismatch(f"{name} storage", f"chunks of {', '.join(map(str, SPANS))} bytes, swizzled", f"{layout}{_advice(view)}"),)
    if layout.along == along_k_of(spec, name):
        return ()
    if view.dtype.bytes != 2:
        expected = "elements contiguous along k, because they do not have 16 bits"
        return (Mismatch(f"{name} storage", expected, f"elements contiguous along {'m' if name == 'A' else 'n'}"),)
    return () if layout.span > PIECE else (Mismatch(f"{name} storage", "swizzled chunks", "chunks of 16 bytes"),)


def _advice(view: View) -> str:
    """Return what to remove if the load of an operand specifies its storage, which the instruction can determine."""
    given = stated_storage(view)
    return f"; remove {given} from its load: the instruction determines the storage" if given else ""


def stated_storage(view: View) -> str:
    """Return the refinements by which the load of an operand specifies its storage; empty if there are none."""
    tensor = view.tensor
    parts = (tensor.pad and f".pad({tensor.pad})", tensor.swizzle is not None and ".swizzle_storage(...)")
    return " and ".join(part for part in parts if part)


def decided(spec: Spec, name: str, draft: Draft) -> SmemLayout:
    """Return the chunks of an operand, which become its storage if that is undecided."""
    view = spec.operands[name]
    preferred = preferred_storage(spec, name) if view.tensor.free else None
    storage = view.tensor.storage() if preferred is None else draft.choose_storage(view.tensor, preferred)
    layout = smem_layout_of(storage, view, view.dtype.bytes)
    assert isinstance(layout, SmemLayout), layout
    return layout


def preferred_storage(spec: Spec, name: str) -> Storage | None:
    """Return the best storage of an undecided operand: contiguous as its source if the instruction can read this, otherwise along k."""
    view = spec.operands[name]
    along_k, element = along_k_of(spec, name), view.dtype.bytes
    order = view.order if isinstance(view.tensor.layout, MatrixLayout) else None
    fastest = along_k if order is None else (1 if order == "row" else 0)
    along = fastest if element == 2 else along_k
    extents = [constant(view.extent(dim)) or 0 for dim in (0, 1)]
    tile = [constant(size) or 0 for size in view.shape]
    span = widest_span(math.gcd(extents[along], extents[along] if along == along_k else tile[along]), element)
    if span is None or (span == PIECE and along != along_k):
        along, span = along_k, widest_span(extents[along_k], element)
    if span is None:
        return None
    return chunk_storage(view, along, span)


def along_k_of(spec: Spec, name: str) -> int:
    """Return the reduced dimension of an operand: A is rows x reduced, and B is reduced x columns."""
    (reduced,) = (dim for dim in spec.uses["A"] if dim not in spec.uses["C"])
    return spec.uses[name].index(reduced)


def chunks_of(printer: Printer, statement: Exec, name: str) -> SmemLayout:
    """Return the chunks of an operand in its buffer."""
    view: View = statement.spec.operands[name]
    layout = smem_layout_of(printer.kernel.buffer(view.tensor.name).storage, view, view.dtype.bytes)
    assert isinstance(layout, SmemLayout), layout
    return layout


def descriptor(printer: Printer, statement: Exec, name: str, chunks: SmemLayout) -> Text:
    """Print the descriptor of an operand.

    If each iteration of a loop waits for its wgmma group, the latency between MMAs matters. Then the descriptor is computed once, and the
    offsets of unrolled iterations are added to it. The sum does not exceed the 14 bits of the address in shared memory.
    """
    head = f"{printer.function(DESCRIPTOR)}<{chunks.chunk_stride}, {chunks.group_stride}, {MODES[chunks.span]}>"
    first = statement.at_first_lane(name)
    if id(statement) not in awaited(printer.kernel):
        return Call(head, (printer.shared_address(first),))
    address, step = printer.shared_address_and_step(first)
    first_of_loop = Call(head, (address,))
    return first_of_loop if step == ZERO else Chain((first_of_loop, f"+ {printer.expression(step // PIECE)}"))


@functools.lru_cache(maxsize=256)
def operand_map(tile: tuple[int, ...], along_k: int, along: int, element: int) -> LaneMap:
    """Return a lane map in which each thread reads 16 contiguous bytes. PTX does not specify which thread reads which element."""
    other = 1 - along_k
    piece, groups = PIECE // element, tile[other] // 8
    rows = THREADS // (8 * tile[along_k] // piece if along == along_k else tile[along_k])
    share = math.gcd(groups, rows)
    lanes: tuple[Part, ...] = ((share, other, 8), (rows // share, other, 0))
    if along == along_k:
        lanes, values = ((tile[along_k] // piece, along_k, piece), (8, other, 1), *lanes), (piece, along_k, 1)
    else:
        lanes, values = ((tile[along_k], along_k, 1), *lanes), (8, other, 1)
    return LaneMap.along(tile, lanes, (values, (groups // share, other, 8 * share)))


DESCRIPTOR = Function(
    "matrix_descriptor",
    ("unsigned address",),
    (
        "return static_cast<unsigned long long>((address & 0x3FFFF) >> 4 | (leading_bytes >> 4) << 16)",
        "     | static_cast<unsigned long long>(stride_bytes >> 4) << 32 | static_cast<unsigned long long>(swizzle) << 62;",
    ),
    "wgmma matrix descriptor: start address, leading and stride byte offsets, swizzle mode (1: 128, 2: 64, 3: 32 bytes)",
    "unsigned leading_bytes, unsigned stride_bytes, unsigned swizzle",
    "unsigned long long",
)


def filled_lines(text: str, width: int = 100) -> list[str]:
    """Break text into lines after commas."""
    lines = []
    while len(text) > width:
        break_at = text.rindex(", ", 0, width) + 2
        lines.append(text[:break_at])
        text = text[break_at:]
    return [*lines, text]
