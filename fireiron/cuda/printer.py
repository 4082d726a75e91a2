"""The printer of operands, values, copies and helper functions, which instructions call (`fireiron.ir.text.Printer`)."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from fireiron.cuda.addresses import SHARED_ADDRESS, Addresses
from fireiron.cuda.expressions import Precedence, document, operand
from fireiron.cuda.lines import guarded
from fireiron.cuda.micro_kernel import micro_kernel
from fireiron.cuda.names import Names
from fireiron.cuda.outlined_functions import OutlinedFunction
from fireiron.cuda.outlining import Outlined
from fireiron.cuda.quotients import Quotients
from fireiron.cuda.small_float_pairs import converted_in_pairs
from fireiron.cuda.types import (
    ACCUMULATED,
    APPROXIMATE,
    COMPOSED,
    EIGHT_BITS,
    PAIRS,
    PERIODIC,
    TRUNCATED,
    TRUNCATED_TO_64_BITS,
    applied,
    approximate,
    carrier,
    composed,
    converted,
    literal,
    of_large,
    periodic,
    repeated,
    saturated,
    through_bytes,
    widened,
)
from fireiron.errors import DecompositionError
from fireiron.ir import Access, BlockSet, Buffer, Exec, Kernel, Piece, StageState
from fireiron.ir.accumulators import accumulators
from fireiron.ir.text import Braces, Copy, Function, Item, Path, Registers
from fireiron.values.document import Assignment, Call, Choice, Joined, Text, called
from fireiron.values.expr import FALSE, TRUE, ZERO, Const, Expr, Less, as_expr, conjuncts
from fireiron.values.machine import DType, float32, float64, int32, int64

BARRIER_BYTES = 8
"""Bytes of an mbarrier."""

EXACT = 1 << 24
"""Integers below it are exact in float."""


class KernelPrinter:
    """Prints the statements of one kernel; records the names and helper functions that the frame declares."""

    def __init__(self, kernel: Kernel, names: Names) -> None:
        self.kernel, self.names = kernel, names
        self.addresses = Addresses(kernel, names)
        self.quotients = Quotients(kernel)
        self.functions: dict[Function, str] = {}
        self.callers: dict[Function, dict[Path, None]] = {}
        self.outlined: dict[Outlined, OutlinedFunction] = {}

    def function(self, function: Function) -> str:
        """The name of a helper function, which is printed before the kernel."""
        if function not in self.functions:
            self.functions[function] = self.names.keep(function.name)
        self.callers.setdefault(function, {}).update(dict.fromkeys(self.addresses.steps))
        return self.functions[function]

    # ------------------------------------------------------------------------------------------ values

    def expression(self, value: Expr) -> str:
        """The text of an expression."""
        return self.addresses.expression(value)

    def literal(self, number: float, dtype: DType) -> str:
        """A constant of an element type."""
        return literal(number, dtype)

    def converted(self, text: Text, source: DType, target: DType) -> Text:
        """A value converted to another element type."""
        if source.kind == "float" and target == int64:
            return Call(self.function(TRUNCATED_TO_64_BITS), (converted(text, source, float32) if source != float64 else text,))
        if source == float64 and target.kind == "int":
            return saturated(Call(self.function(TRUNCATED), (text,)), target)
        return converted(text, source, target)

    def condition(self, value: Expr, place: Precedence = Precedence.COMPARISON) -> Text:
        """A condition as an operand of another condition, or of a choice."""
        value = self.addresses.stepped(value)
        self.addresses.used |= value.variables()
        return document(value) if place is Precedence.LOWEST or isinstance(value, Less) else operand(value, place)

    def applied(self, name: str, dtype: DType, *arguments: Text) -> Text:
        """A function of a formula on values of a type."""
        if name in APPROXIMATE and dtype == float32:
            return Call(self.function(approximate(name)), arguments)
        if name in PERIODIC and dtype == float32:
            return Call(self.function(periodic(name, self.function(of_large(name)))), arguments)
        if name in COMPOSED:
            return Call(self.function(composed(name, dtype)), arguments)
        return applied(name, dtype, *arguments)

    def conditions(self, values: Sequence[Expr]) -> tuple[Text, ...]:
        """Conditions of an `if`."""
        return tuple(self.condition(value) for value in values)

    # ------------------------------------------------------------------------------------------ operands

    def buffer(self, access: Access) -> Buffer:
        """The buffer of an access."""
        return self.kernel.buffer(access.buffer)

    def place(self, access: Access, offset: tuple[int, ...] | None = None) -> Text:
        """An element as an lvalue."""
        return self.addresses.place(access, access.elements()[0] if offset is None else offset)

    def pointer(self, access: Access, offset: tuple[int, ...] | None = None) -> Text:
        """A pointer to an element."""
        return self.addresses.pointer(access, access.elements()[0] if offset is None else offset)

    def shared_address(self, access: Access, offset: tuple[int, ...] | None = None) -> Text:
        """The address of an element in the window of shared memory, in bytes."""
        return self.addresses.shared(access, access.elements()[0] if offset is None else offset, self.function(SHARED_ADDRESS))

    def shared_address_and_step(self, access: Access) -> tuple[Text, Expr]:
        """The shared-memory address of the first element in the first iteration of unrolled loops, and the bytes that the loops add."""
        return self.addresses.shared_and_step(access, access.elements()[0], self.function(SHARED_ADDRESS))

    def element(self, statement: Exec, name: str) -> Text:
        """The only element of an operand as an lvalue."""
        return self.place(statement.operands[name])

    def factor(self, statement: Exec, name: str, dtype: DType) -> Text:
        """The only element of an input of a product, converted to another type; zero where it is not read."""
        position = list(statement.spec.operands).index(name)
        source = self.buffer(statement.accesses[position]).dtype
        single = source.kind == "int" and source.bits == 8 and dtype == int32
        return self.value(statement, position, 0, dtype, self.function(widened(source)) if single else None)

    def value(self, statement: Exec, position: int, number: int, dtype: DType, by: str | None = None) -> Text:
        """Element `number` of an input, converted to another type; by the function `by`, if it is given.

        If the element is not read, the value is zero, or the neutral element of a maximum or minimum; outside of the array of an affine
        index, the value there.
        """
        access = statement.accesses[position]
        condition = statement.conditions(position)[number]
        text = self._counted(access, number, dtype)
        if text is None:
            place = self.place(access, access.elements()[number])
            text = Call(by, (place,)) if by else self.converted(place, self.buffer(access).dtype, dtype)
        if condition == TRUE:
            return text
        neutral = statement.spec.outside(list(statement.operands)[position])
        return Choice(self.condition(condition), text, self.not_read(statement, position, number, dtype, neutral))

    def not_read(self, statement: Exec, position: int, number: int, dtype: DType, neutral: float = 0, width: int = 1) -> Text:
        """The value of `width` elements from `number` on that are not read: outside of an array, or out of bounds."""
        piece = statement.piece(position, number) if statement.pieces else Piece(number)
        return self._not_read(piece, dtype, neutral, width)

    def _not_read(self, piece: Piece, dtype: DType, neutral: float, width: int) -> Text:
        nothing = repeated(neutral, dtype, width)
        if piece.outside is None:
            return nothing
        value = repeated(piece.outside, dtype, width)
        return value if piece.bounds == TRUE else Choice(self.condition(piece.bounds), value, nothing)

    def _counted(self, access: Access, number: int, dtype: DType) -> Text | None:
        """A coordinate in float as the sum of two converted parts; unrolled loops add the second part.

        Only one iteration of these loops converts the first part; a conversion takes as long as sixteen additions. None if the coordinate
        is not such a sum, or may be too large to be exact.
        """
        if dtype != float32 or not self.buffer(access).memory.is_coordinate:
            return None
        parts = self.addresses.coordinates(access, access.elements()[number])
        if any(part.low <= -EXACT or part.high >= EXACT for part in parts) or not all(part.variables() for part in parts):
            return None
        first, second = (converted(operand(part, Precedence.FACTOR), self.buffer(access).dtype, dtype) for part in parts)
        return Joined(("(", first, " + ", second, ")"))

    def counted(self, statement: Exec, terms: Mapping[int, tuple[int, int]], number: int, dtype: DType) -> tuple[Text, ...]:
        """A sum of coordinates in float: the value in the first iteration of unrolled loops, converted once, and what the loops add.

        Empty if not all are read, or the sum may be too large to be exact.
        """
        sums: list[Expr] = [as_expr(number), ZERO]
        for position, (place, times) in terms.items():
            access = statement.accesses[position]
            if dtype != float32 or statement.conditions(position)[place] != TRUE:
                return ()
            parts = self.addresses.coordinates(access, access.elements()[place])
            sums = [one + part * times for one, part in zip(sums, parts, strict=True)]
        if any(max(-one.low, one.high) >= EXACT for one in sums):
            return ()
        shown = [one for one in sums if one != ZERO] or [ZERO]
        return tuple(converted(operand(one, Precedence.FACTOR), int32, dtype) for one in shown)

    def accumulator(self, statement: Exec, text: Text, dtype: DType, nothing: float = 0) -> Text:
        """The old value of an output, or `nothing` where the statement does not accumulate."""
        if statement.accumulate == TRUE:
            return text
        other = literal(nothing, dtype)
        return other if statement.accumulate == FALSE else Choice(self.condition(statement.accumulate), text, other)

    def unless_adding(self, statement: Exec, items: Sequence[Item]) -> tuple[Item, ...]:
        """Items under the condition that the statement does not accumulate."""
        if statement.accumulate in (TRUE, FALSE):
            return tuple(items) if statement.accumulate == FALSE else ()
        return (guarded((f"!({self.expression(statement.accumulate)})",), items),)

    def local(self, wanted: str) -> str:
        """A name for a variable in a nested scope."""
        return self.names.free(wanted)

    def loaded(self, statement: Exec, position: int, piece: Piece, into: str) -> Item:
        """The load of a piece to an array from an element on, zero where it is not read."""
        access = statement.accesses[position]
        dtype = self.buffer(access).dtype
        slot = into if piece.width == 1 else f"*reinterpret_cast<{carrier(dtype, piece.width)}*>(&{into})"
        return Assignment(slot, self._loaded(access, dtype, piece, piece.condition))

    def stored(self, statement: Exec, position: int, piece: Piece, source: str) -> Item:
        """The store of a piece from an array from an element on, where it is written."""
        access = statement.accesses[position]
        kind = carrier(self.buffer(access).dtype, piece.width) if piece.width > 1 else ""
        value = f"*reinterpret_cast<const {kind}*>(&{source})" if kind else source
        return self.under(piece.condition, self._store(access, piece, "")(value))

    def under(self, condition: Expr, item: Item) -> Item:
        """An item under a condition in addition to those of the statement."""
        return item if condition == TRUE else guarded(self.conditions(conjuncts(condition)), (item,))

    def registers(self, statement: Exec, position: int) -> Registers:
        """The values of a lane as one array; copied to one first if they are not contiguous."""
        access = statement.accesses[position]
        buffer = self.buffer(access)
        elements = access.elements()
        first = buffer.address(access, elements[0])
        if all(buffer.address(access, offset) - first == Const(step) for step, offset in enumerate(elements)):
            return Registers(self.pointer(access))
        if access.write and statement.mechanism.in_registers:
            # The copy from the array would read the accumulators while the MMA is in flight.
            raise DecompositionError(
                f"{statement.instruction.name} is asynchronous, but the registers of {buffer.name} are not in its order",
                within=statement.spec,
                at=statement.origin,
                hint=f"compute {buffer.name} by one instruction only",
            )
        name = self.names.fresh(f"{buffer.name.lower()}_values")
        size = max(buffer.tensor.align, buffer.dtype.bytes)
        places = tuple(self.place(access, offset) for offset in elements)
        reads = not access.write or statement.accumulate != FALSE
        values = f" = {{{', '.join(map(str, places))}}}" if reads else ""
        before = f"__align__({size}) {buffer.dtype.cuda} {name}[{len(elements)}]"
        gathered: Item = Assignment(before, Joined(("{", *_listed(places), "}"))) if values else f"{before};"
        after = tuple(Assignment(place, f"{name}[{number}]") for number, place in enumerate(places)) if access.write else ()
        return Registers(name, (gathered,), after)

    def fill(self, ring: str, number: Expr) -> Expr:
        """The number of a fill of a ring, up to a multiple that keeps its stage and its phase parity."""
        return self.addresses.fill(number, 2 * self.kernel.ring(ring).stages)

    def parity(self, ring: str, number: Expr, ahead: int) -> Expr:
        """The phase parity of a fill of a ring, `ahead` phases later."""
        return self.addresses.parity(self.fill(ring, number), self.kernel.ring(ring).stages, ahead)

    def barrier(self, ring: str, side: StageState, number: Expr) -> str:
        """The shared-memory address of a ring's mbarrier for a fill."""
        stages, name = self.kernel.ring(ring).stages, f"{ring}_{side.value}"
        if stages == 1:  # the same for each fill, which needs no name
            return name
        offset = self.expression(self.addresses.stage(self.fill(ring, number) % stages) * BARRIER_BYTES)
        return name + (f" + {offset}" if offset != "0" else "")

    def blocks(self, *sets: BlockSet) -> str:
        """Blocks of a cluster as a mask with one bit per rank."""
        masks = [(f"{peers.pattern:#x}", operand(peers.first, Precedence.NAME)) for peers in sets]
        self.addresses.used |= {var for peers in sets for var in peers.first.variables()}
        parts = [mask if str(first) == "0" else f"{mask} << {first}" for mask, first in masks]
        return parts[0] if len(parts) == 1 else " | ".join(f"({part})" if " " in part else part for part in parts)

    # ------------------------------------------------------------------------------------------ copies

    def each(self, statement: Exec, text: Callable[[Text, Text], Text]) -> list[Item]:
        """A line `text(source, target)` for each element that a statement copies, under the condition that it is written."""
        source, target = statement.accesses
        items: list[Item] = []
        for read, write, condition in zip(source.elements(), target.elements(), statement.conditions(1), strict=True):
            items.append(self.under(condition, text(self.place(source, read), self.place(target, write))))
        return items

    def copies(self, statement: Exec) -> list[Copy]:
        """The parts of an asynchronous copy."""
        source, target = statement.accesses
        copies = []
        for piece in statement.pieces[0]:
            read, write = source.elements()[piece.first], target.elements()[piece.first]
            condition = None if piece.condition == TRUE else self.condition(piece.condition, Precedence.LOWEST)
            copies.append(Copy(self.shared_address(target, write), self.pointer(source, read), condition))
        return copies

    def moved(self, statement: Exec, load: str = "", store: str = "") -> list[Item]:
        """A copy by one thread of as many elements at a time as the statement specifies; an element that is not read is zero.

        `load` and `store` are functions that read and write global memory instead of plain accesses, if given.
        """
        if self._in_pairs(statement):
            return self._converted_in_pairs(statement)
        in_pairs = None if load or store else converted_in_pairs(self, statement)
        if in_pairs is not None:
            return in_pairs
        by = _By(load, store)
        items: list[Item] = []
        for start in range(0, len(statement.accesses[0].elements()), statement.vector):
            stop = start + statement.vector
            parts = [[one for one in pieces if start <= one.first < stop] for pieces in statement.pieces]
            if all(one.condition == FALSE for one in parts[1]):  # nothing is ever stored
                continue
            single = all(len(pieces) == 1 for pieces in parts)
            items.append(self._at_once(statement, parts[0][0], parts[1][0], by) if single else self._staged(statement, start, parts, by))
        return items

    def loaded_piece(self, access: Access, piece: Piece) -> Text:
        """The value of a load in the type of its buffer."""
        return self._loaded(access, self.buffer(access).dtype, piece, piece.condition)

    def stored_piece(self, access: Access, piece: Piece, value: Text) -> Item:
        """A store of the values of a piece."""
        return self._store(access, piece, "")(value)

    def _in_pairs(self, statement: Exec) -> bool:
        """Whether a statement converts floats in registers, and writes each pair of results to one register."""
        source, target = (self.buffer(access) for access in statement.accesses)
        kinds = source.dtype == float32 and target.dtype in PAIRS
        if not kinds or not source.memory.private or not target.memory.private or target.memory.fragment is not None:
            return False
        pieces = [piece for part in statement.pieces for piece in part]
        whole = all(piece.width == 1 and piece.condition == TRUE for piece in pieces)
        addresses = [target.address(statement.accesses[1], one) for one in statement.accesses[1].elements()]
        pairs = zip(addresses[::2], addresses[1::2])
        return whole and len(addresses) % 2 == 0 and all(one.factor % 2 == 0 and other - one == Const(1) for one, other in pairs)

    def _converted_in_pairs(self, statement: Exec) -> list[Item]:
        source, target = statement.accesses
        kind, function = PAIRS[self.buffer(target).dtype]
        elements = source.elements()
        items: list[Item] = []
        for start in range(0, len(elements), 2):
            place = Joined(("*", Call(f"reinterpret_cast<{kind}*>", (self.pointer(target, target.elements()[start]),))))
            items.append(Assignment(place, Call(function, tuple(self.place(source, one) for one in elements[start : start + 2]))))
        return items

    def _at_once(self, statement: Exec, read: Piece, write: Piece, by: _By) -> Item:
        """One load and one store; the load does not repeat the conditions of the store."""
        source, target = statement.accesses
        read = read.under(conjuncts(write.condition))
        stored = self._store(target, write, by.store)  # its address is named first
        return self.under(write.condition, stored(self._loaded(source, self.buffer(target).dtype, read, read.condition, by.load)))

    def _staged(self, statement: Exec, start: int, parts: Sequence[Sequence[Piece]], by: _By) -> Item:
        """Loads into a small array, and stores from it. Elements are converted at the load; at the store if a load has several."""
        (source, target), (reads, writes) = statement.accesses, parts
        kind, dtype = self.buffer(source).dtype, self.buffer(target).dtype
        staged = kind if kind != dtype and reads[0].width > 1 else dtype
        count = statement.vector
        stored = [conjuncts(one.condition) for one in writes]
        first, *others = stored
        shared = [part for part in first if all(part in other for other in others)]
        if any(part in conjuncts(read.condition) for read in reads for part in shared):  # loads do not repeat conditions of all stores
            both = [[one.under(shared) for one in pieces] for pieces in parts]
            return guarded(self.conditions(shared), (self._staged(statement, start, both, by),))
        items: list[Item] = [f"__align__({staged.bytes * count}) {staged.cuda} piece[{count}];"]
        for read in reads:
            lane = read.first - start
            slot = f"piece[{lane}]" if read.width == 1 else f"*reinterpret_cast<{carrier(staged, read.width)}*>(&piece[{lane}])"
            items.append(Assignment(slot, self._loaded(source, dtype, read, read.condition, by.load)))
        for write in writes:
            lane = write.first - start
            element = self._narrowed(source, f"piece[{lane}]", staged, dtype)
            value = element if write.width == 1 else f"*reinterpret_cast<const {carrier(dtype, write.width)}*>(&piece[{lane}])"
            items.append(self.under(write.condition, self._store(target, write, by.store)(value)))
        return Braces("", tuple(items))

    def _store(self, access: Access, piece: Piece, by: str) -> Callable[[Text], Text]:
        """A store of the values of one piece, by a function if one is given for global memory."""
        if not by or not self.buffer(access).memory.of_grid:
            return functools.partial(Assignment, self._target(access, piece))
        return functools.partial(called, self._by(by, access, piece), self._address(access, piece))

    def _by(self, by: str, access: Access, piece: Piece) -> str:
        """The function that loads or stores a piece; for a single 8-bit float a helper function."""
        kind = self.buffer(access).dtype
        return self.function(through_bytes(by, kind)) if kind in EIGHT_BITS and piece.width == 1 else by

    def _address(self, access: Access, piece: Piece, const: str = "") -> Text:
        """The address of a piece, as a pointer to the vector type that moves it."""
        pointer = self.pointer(access, access.elements()[piece.first])
        if piece.width == 1:
            return pointer
        return Call(f"reinterpret_cast<{const}{carrier(self.buffer(access).dtype, piece.width)}*>", (pointer,))

    def _target(self, access: Access, piece: Piece) -> Text:
        offset = access.elements()[piece.first]
        if piece.width == 1:
            return self.place(access, offset)
        kind = carrier(self.buffer(access).dtype, piece.width)
        return Joined(("*", Call(f"reinterpret_cast<{kind}*>", (self.pointer(access, offset),))))

    def _loaded(self, access: Access, dtype: DType, piece: Piece, condition: Expr, by: str = "") -> Text:
        """The value of a load, in the type `dtype` if it is one element; if it is not performed, zero or the value outside of the array."""
        old = self.buffer(access).dtype
        offset = access.elements()[piece.first]
        nothing = self._not_read(piece, dtype if piece.width == 1 else old, 0, piece.width)
        if condition == FALSE:
            return nothing
        if by and self.buffer(access).memory.of_grid:
            value: Text = Call(self._by(by, access, piece), (self._address(access, piece, "const "),))
        elif piece.width == 1:
            value = self.place(access, offset)
        else:
            value = Joined(("*", self._address(access, piece, "const ")))
        if piece.width == 1:
            value = self._narrowed(access, value, old, dtype)
        return value if condition == TRUE else Choice(self.condition(condition, Precedence.ALL), value, nothing)

    def _narrowed(self, source: Access, value: Text, kind: DType, dtype: DType) -> Text:
        """A converted element of a copy; the function `ACCUMULATED` converts a single MMA accumulator to 16 bits."""
        if kind == float32 and dtype in PAIRS and source.buffer in accumulators(self.kernel):
            value = Call(self.function(ACCUMULATED), (value,))
        return self.converted(value, kind, dtype)

    def micro_kernel(self, statement: Exec, text: str) -> list[Item]:
        """A user's text in a separate scope."""
        return micro_kernel(self.kernel, statement, text, lambda value: self.addresses.used.update(value.variables()))


class _By(NamedTuple):
    """The functions with which a copy reads and writes global memory; empty for plain accesses."""

    load: str
    store: str


def _listed(texts: Sequence[Text]) -> tuple[Text, ...]:
    """Texts with commas between."""
    return tuple(part for number, text in enumerate(texts) for part in ((", ", text) if number else (text,)))


BUILT_IN: Mapping[str, str] = {"block": "blockIdx.x", "thread": "threadIdx.x"}
"""The CUDA names of the variables of the block's and the thread's number."""
