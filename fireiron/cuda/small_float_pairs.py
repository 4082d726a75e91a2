"""Copies that convert 8-bit floats to 16-bit floats two at a time: cvt.rn.f16x2.e4m3x2, for two adjacent elements of the destination.

The source elements of a pair may be adjacent, or in different rows: then `__byte_perm` joins a byte of each of two words. All numbers of
both 8-bit types are exact in float16 and bfloat16. Sources: PTX ISA, "cvt"; CUDA Math API, `__nv_cvt_fp8x2_to_halfraw2`, which computes
the same with other instructions before sm_89.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from fireiron.cuda.types import EIGHT_BITS, PAIRS, carrier
from fireiron.ir import Access, Buffer, Exec, Piece
from fireiron.ir.text import Braces, Function, Item
from fireiron.values.document import Assignment, Call, Joined, Text
from fireiron.values.expr import TRUE, Const, Expr
from fireiron.values.machine import DType, float8_e4m3, float16

WORD = 4
"""Elements of a 32-bit register."""

LOW_BYTES = 0x40
"""The selector of `__byte_perm` for byte 0 of both words; 0x11 more for the next byte of both."""


class Printer(Protocol):
    """The part of the printer that these copies need."""

    def buffer(self, access: Access) -> Buffer:
        """The buffer of an access."""

    def function(self, function: Function) -> str:
        """The name of a helper function."""

    def pointer(self, access: Access, offset: tuple[int, ...] | None = None) -> Text:
        """A pointer to an element."""

    def loaded_piece(self, access: Access, piece: Piece) -> Text:
        """The value of a load in the type of its buffer."""

    def stored_piece(self, access: Access, piece: Piece, value: Text) -> Item:
        """A store of the values of a piece."""


def pair_function(source: DType, target: DType) -> Function:
    """Return the device function that converts two 8-bit floats in the lower half of a word."""
    kind, floats = PAIRS[target]
    short, name = ("e4m3", "__NV_E4M3") if source == float8_e4m3 else ("e5m2", "__NV_E5M2")
    raw = f"const __half2_raw raw = __nv_cvt_fp8x2_to_halfraw2(static_cast<__nv_fp8x2_storage_t>(bytes), {name});"
    last: tuple[str, ...] = ("return *reinterpret_cast<const __half2*>(&raw);",)
    if target != float16:
        last = (
            "const float2 pair = __half22float2(*reinterpret_cast<const __half2*>(&raw));",
            f"return {floats}(pair.x, pair.y);",
        )
    suffix = "half2" if target == float16 else "bfloat162"
    return Function(f"{short}_pair_to_{suffix}", ("unsigned bytes",), (raw, *last), f"two floats of {short} in bits 0 to 15", result=kind)


def converted_in_pairs(printer: Printer, statement: Exec) -> list[Item] | None:
    """Print a copy that converts pairs; None for other copies, and if an element may be out of bounds."""
    source, target = statement.accesses
    kinds = printer.buffer(source).dtype, printer.buffer(target).dtype
    pieces = [piece for part in statement.pieces for piece in part]
    if kinds[0] not in EIGHT_BITS or kinds[1] not in PAIRS or any(piece.condition != TRUE for piece in pieces):
        return None
    pairs = _pairs(printer, target)
    if pairs is None:
        return None
    if printer.buffer(target).memory.private:
        stores = [_PairOf(printer, statement).assigned(pair, printer.pointer(target, target.elements()[pair[0]])) for pair in pairs]
        return _with_loads(printer, statement, stores, ())
    if any(piece.width % 2 for piece in statement.pieces[1]):
        return None
    name, dtype = "converted", kinds[1]
    stores = [_PairOf(printer, statement).assigned(pair, f"&{name}[{pair[0]}]") for pair in pairs]
    declared = f"__align__({statement.vector * dtype.bytes}) {dtype.cuda} {name}[{len(target.elements())}];"
    values = (f"*reinterpret_cast<const {carrier(dtype, piece.width)}*>(&{name}[{piece.first}])" for piece in statement.pieces[1])
    ends = [printer.stored_piece(target, piece, value) for piece, value in zip(statement.pieces[1], values, strict=True)]
    return _with_loads(printer, statement, [declared, *stores], ends)


def _with_loads(printer: Printer, statement: Exec, items: Sequence[Item], ends: Sequence[Item]) -> list[Item]:
    """Print the loads of elements in memory to an array, then other items."""
    source = statement.accesses[0]
    dtype = printer.buffer(source).dtype
    if printer.buffer(source).memory.private:
        return [Braces("", (*items, *ends))] if ends else list(items)
    loads: list[Item] = [f"__align__({max(statement.vector, WORD)}) {dtype.cuda} piece[{len(source.elements())}];"]
    for piece in statement.pieces[0]:
        place = f"piece[{piece.first}]"
        slot = place if piece.width == 1 else f"*reinterpret_cast<{carrier(dtype, piece.width)}*>(&{place})"
        loads.append(Assignment(slot, printer.loaded_piece(source, piece)))
    return [Braces("", (*loads, *items, *ends))]


def _pairs(printer: Printer, target: Access) -> list[tuple[int, int]] | None:
    """Return the numbers of elements of the destination that are pairs, or None if an element has no partner."""
    buffer, elements = printer.buffer(target), target.elements()
    addresses = [buffer.address(target, element) for element in elements]
    firsts = [number for number, address in enumerate(addresses) if address.factor % 2 == 0]
    pairs = [(first, second) for first in firsts for second in _after(addresses, first)]
    return pairs if 2 * len(pairs) == len(elements) else None


def _after(addresses: Sequence[Expr], first: int) -> Iterator[int]:
    """Yield the number of the element after an element."""
    yield from (number for number, address in enumerate(addresses) if number != first and address - addresses[first] == Const(1))


class _PairOf:
    """Prints the conversion of pairs of source elements, which are in the array `piece` or in registers."""

    def __init__(self, printer: Printer, statement: Exec) -> None:
        self.printer, self.statement = printer, statement
        self.source = statement.accesses[0]
        self.private = printer.buffer(self.source).memory.private
        buffer = printer.buffer(self.source)
        elements = self.source.elements()
        self.places = (
            [buffer.address(self.source, element) for element in elements] if self.private else [Const(n) for n in range(len(elements))]
        )

    def assigned(self, pair: tuple[int, int], pointer: Text) -> Item:
        """Print the assignment of a pair to the place that a pointer points to."""
        kinds = [self.printer.buffer(access).dtype for access in self.statement.accesses]
        kind, _ = PAIRS[kinds[1]]
        place = Joined(("*", Call(f"reinterpret_cast<{kind}*>", (pointer,))))
        return Assignment(place, Call(self.printer.function(pair_function(*kinds)), (self._bytes(*pair),)))

    def _bytes(self, first: int, second: int) -> Text:
        """Print two bytes in the lower half of a word."""
        if self.places[second] - self.places[first] == Const(1) and self.places[first].factor % 2 == 0:
            return self._read("unsigned short", first)
        byte = first % WORD
        if not self.private and byte == second % WORD and all(piece.width % WORD == 0 for piece in self.statement.pieces[0]):
            words = (self._read("unsigned int", first - byte), self._read("unsigned int", second - byte))
            return Call("__byte_perm", (*words, f"{LOW_BYTES + 0x11 * byte:#x}"))
        return Call("__byte_perm", (self._read("unsigned char", first), self._read("unsigned char", second), f"{LOW_BYTES:#x}"))

    def _read(self, kind: str, number: int) -> Text:
        pointer = self.printer.pointer(self.source, self.source.elements()[number]) if self.private else f"&piece[{number}]"
        return Joined(("*", Call(f"reinterpret_cast<const {kind}*>", (pointer,))))
