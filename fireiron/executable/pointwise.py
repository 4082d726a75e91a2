"""Elementwise computation of one thread, by any formula; 16-bit floats also in pairs (Graphene, Table 2 rows 5, 6).

A formula is computed in float, or in double if an input is a double, and its result is converted once. Integers are exact until they are
combined with a float: they are computed in int, or in unsigned int or long long if int could overflow (`fireiron.specs.integers`).
Functions are those of the CUDA Math API, and the compiler contracts multiply-adds; so a result may differ from that of the simulator by
rounding errors. If 16-bit arithmetic gives the same result, adjacent elements in contiguous registers are computed in pairs
(`fireiron.performing.packed`).

>>> from fireiron import *
>>> leaf = Pointwise("y[m,n] = relu(x[m,n] + b[n])", 1, 1)(RF, RF, RF)(Thread)
>>> [instruction.name for instruction in INSTRUCTIONS if not instruction.mismatches(leaf, ARCHITECTURES[-1])]
['Pointwise']
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import ClassVar, Final

import attrs

from fireiron.frozen import frozen
from fireiron.ir import Exec
from fireiron.ir.text import Braces, Function, Item, Printer
from fireiron.language.tree import Executable, Mismatch
from fireiron.performing.integers import UNIFORM, common_type, philox, printed_operation
from fireiron.performing.integers import literal as bit_literal
from fireiron.performing.joining import SIGNS, old_value, together, widened
from fireiron.performing.packed import (
    APPROXIMATIONS,
    KINDS,
    Leaf,
    approximation,
    capability,
    leaf_of,
    opcodes,
    packed,
    packs,
    read_singly,
    unpacks,
)
from fireiron.performing.packed_integers import (
    FIELD,
    HALF_WORD,
    Fields,
    above_bits,
    base_bits,
    bytes_function,
    is_byte,
    pair_function,
    shared,
)
from fireiron.performing.pairs import pair, stored_pair
from fireiron.performing.small_floats import BFLOAT16_PAIR, DECODERS, E8M0_BITS, SCALE_FACTOR, TIMES_FACTOR
from fireiron.spec import Spec
from fireiron.specs.bits import BITWISE, INTEGER_ONLY, OF_LOW_BITS, QUOTIENTS, RANDOM, SHIFTS, TO_INTEGER, Range, uint32
from fireiron.specs.formula import FUNCTIONS, Element, Formula, Number, Operation, Value, elements_of
from fireiron.specs.integers import EXACT, WRAPPING, fits, is_integral, range_of, sides_of
from fireiron.specs.meaning import FULL_COUNTER, computing, computing_of
from fireiron.values.document import Assignment, Call, Chain, Choice, Joined, Text, in_parentheses
from fireiron.values.expr import FALSE, TRUE, Expr, as_expr, constant, floordiv, mod
from fireiron.values.machine import Architecture, DType, bfloat16, float16, float32, float64, int32, int64, tf32

_HALF = {"+": "__hadd", "-": "__hsub", "*": "__hmul"}

_VECTORS: Mapping[tuple[DType, int], str] = {
    (float16, 2): "__half2", (bfloat16, 2): "__nv_bfloat162", (float32, 2): "float2", (float32, 4): "float4",
}  # fmt: skip
"""The vector types whose components have names."""

APPROXIMATE_TANH: Final = 75
"""The first compute capability with `tanh.approx`."""


@frozen
class ThreadPointwise(Executable):
    """One element by any formula; with `pairs`, two of a sum, difference or product in half precision (`hadd2`, `hmul2`).

    Without `clamps`, the reader of the result performs the final clamping at zero, `relu(...)`. A `packed` instruction processes any even
    number of elements, all in pairs.
    """

    approximately: ClassVar[bool] = False
    """Whether functions of pairs may be less accurate than functions of single elements."""

    pairs: bool = False
    clamps: bool = True
    packed: bool = False

    @property
    def packs(self) -> bool:  # type: ignore[override]
        """Whether two adjacent 16-bit elements are processed as one register."""
        return self.pairs or self.packed

    @property
    def loads_together(self) -> bool:  # type: ignore[override]
        """Whether elements that are contiguous in memory are loaded or stored by one vector access."""
        return not self.pairs

    @property
    def rounds(self) -> DType | None:  # type: ignore[override]
        """Return the type in which a packed result is simulated: double, because a multiply-add is rounded once."""
        return float64 if self.packed else None

    def takes_neighbors(self, spec: Spec) -> bool:
        return not self.pairs and not spec.definition.accumulates

    def on_pairs(self, spec: Spec, architecture: Architecture) -> Executable | None:
        only = spec.definition.only
        types = {name: view.dtype for name, view in spec.operands.items()}
        if self.pairs or not self.clamps or only is None or not packs(only, types, self.approximately):
            return None
        enough = architecture.capability >= capability(only, types[only.output])
        return attrs.evolve(self, name=opcodes(only, types), packed=True) if enough else None

    def words(self, spec: Spec) -> tuple[tuple[str, str], ...]:
        only = spec.definition.only
        if only is None or not self.packed:
            return ()
        types = {name: view.dtype for name, view in spec.operands.items()}
        return tuple((fields.word.tensor, fields.coordinate.tensor) for fields in shared(only.value, types))

    def singles(self, spec: Spec) -> frozenset[str]:
        only = spec.definition.only
        return frozenset() if only is None or not self.packed else frozenset(read_singly(only.value))

    def repeats(self, spec: Spec) -> frozenset[str]:
        only = spec.definition.only
        types = {name: view.dtype for name, view in spec.operands.items()}
        if only is None or not self.packed or not unpacks(only, types):
            return frozenset()
        return frozenset(element.tensor for element in elements_of(only.value, conditions=False))

    def performs(self) -> str:
        return (
            "BinaryPointwise(2,1) or (1,2)(Thread), 16-bit floats"
            if self.pairs
            else "BinaryPointwise(1,1), UnaryPointwise(1,1) or any formulas of one element (Thread)"
        )

    def may_perform(self, spec: Spec) -> bool:
        return spec.level.threads == 1 and spec.pointwise

    def mismatches(self, spec: Spec, architecture: Architecture) -> tuple[Mismatch, ...]:
        if not spec.pointwise:
            return (Mismatch("spec", "Pointwise", spec.title),)
        if self.pairs and not _is_binary(spec):
            return (Mismatch("formula", "dst[m,n] = lhs[m,n] + rhs[m,n], or - or *", str(spec.definition)),)
        mismatches = []
        if spec.level.threads != 1:
            mismatches.append(Mismatch("level", "Thread", spec.level.name))
        sizes = sorted(constant(size) or 0 for size in spec.sizes)
        expected = [1] * (len(sizes) - 1) + [2 if self.pairs else 1] if sizes or self.pairs else []
        if sizes != expected:
            mismatches.append(Mismatch("shape", " and ".join(map(str, expected)), "x".join(map(str, spec.sizes))))
        kinds = {view.dtype for view in spec.operands.values()}
        if self.pairs and not (len(kinds) == 1 and kinds <= {float16, bfloat16}):
            mismatches.append(Mismatch("type", "all float16, or all bfloat16", ", ".join(sorted(map(str, kinds)))))
        if tf32 in kinds:
            mismatches.append(Mismatch("type", "a type that threads compute with", ", ".join(sorted(map(str, kinds)))))
        if self.pairs and any(view.bounded for view in spec.operands.values()):
            mismatches.append(Mismatch("bounds", "elements that are all inside the tensors", "the last tile may be partly out of bounds"))
        for name, view in spec.operands.items():
            if view.memory.fragment is not None:
                mismatches.append(Mismatch(f"{name} memory", "GL SH RF", view.memory.name))
        needed = 80 if bfloat16 in kinds else 53
        if "tanh_approx" in str(spec.definition) and architecture.capability < APPROXIMATE_TANH:
            mismatches.append(Mismatch("target", f"sm_{APPROXIMATE_TANH} or newer for tanh_approx", architecture.name))
        if _in_half(spec) and architecture.capability < needed:
            mismatches.append(Mismatch("target", f"sm_{needed} or newer", architecture.name))
        return tuple(mismatches)

    def clamped_later(self, spec: Spec) -> Executable | None:
        only = spec.definition.only
        types = {name: view.dtype for name, view in spec.operands.items()}
        if self.pairs or only is None or only.accumulates or _in_half(spec) or unclamped(only) == only:
            return None
        return attrs.evolve(self, clamps=False) if types[only.output] == computing(only, types) == float32 else None

    def cuda(self, printer: Printer, statement: Exec) -> Sequence[Item]:
        is_vector = any(access.count > 1 for access in statement.accesses)
        if not self.pairs and (is_vector or not _in_half(statement.spec)):
            return _assignments(printer, statement, self.packed)
        return _half_precision(printer, statement, self.pairs)


@frozen
class SkipIfIdentity(ThreadPointwise):
    """`x[m,n] = x[m,n] * f[m]` in registers, in one branch that a thread skips if all its factors are 1.

    The result equals that of the plain product, because x * 1 is x. The compiler does not move code across the branch, so it also limits
    the number of live registers. Used only on request: `done(SKIP_IF_IDENTITY)`.
    """

    def performs(self) -> str:
        return "x[m,n] = x[m,n] * f[m] (RF,RF,RF)(Thread), skipped if all factors of a thread are 1"

    def mismatches(self, spec: Spec, architecture: Architecture) -> tuple[Mismatch, ...]:
        mismatches = super().mismatches(spec, architecture)
        if spec.pointwise and not self.identity_operand(spec):
            mismatches = (*mismatches, Mismatch("formula", "x[m,n] = x[m,n] * f[m], f in registers", str(spec.definition)))
        return mismatches

    def takes_neighbors(self, spec: Spec) -> bool:
        return False

    def on_pairs(self, spec: Spec, architecture: Architecture) -> Executable | None:
        return None

    def identity_operand(self, spec: Spec) -> str:
        """Return the name of the factor; empty if the spec is not such a product."""
        only = spec.definition.only
        if only is None or only.accumulates or not isinstance(only.value, Operation) or only.value.name != "*":
            return ""
        result = spec.operands[only.output]
        names = [argument.tensor for argument in only.value.arguments if isinstance(argument, Element)]
        scaled = [name for name in names if spec.operands[name].tensor == result.tensor and spec.operands[name].dims == result.dims]
        others = [name for name in names if spec.operands[name].tensor != result.tensor and spec.operands[name].memory.private]
        return others[0] if len(scaled) == len(others) == 1 and result.memory.private else ""


@frozen
class ApproximatePairs(ThreadPointwise):
    """`exp2` or `tanh` of 16-bit floats, by the GPU's approximations on pairs of contiguous elements.

    Their error is about that of one additional rounding to 16 bits. Used only on request: `done(APPROXIMATE_PAIRS)`.
    """

    approximately: ClassVar[bool] = True

    def performs(self) -> str:
        return "y[m,n] = exp2(x[m,n]) or tanh, 16-bit floats, approximate for pairs of contiguous elements"

    def mismatches(self, spec: Spec, architecture: Architecture) -> tuple[Mismatch, ...]:
        mismatches, only = super().mismatches(spec, architecture), spec.definition.only
        types = {name: view.dtype for name, view in spec.operands.items()}
        if only is None or not packs(only, types, approximately=True) or packs(only, types):
            expected = f"one of {', '.join(APPROXIMATIONS)} of an element, all of float16 or all of bfloat16"
            return (*mismatches, Mismatch("formula", expected, str(spec.definition)))
        needed = capability(only, types[only.output])
        if architecture.capability < needed:
            mismatches = (*mismatches, Mismatch("target", f"sm_{needed} or newer", architecture.name))
        return mismatches


def _half_precision(printer: Printer, statement: Exec, pairs: bool) -> Sequence[Item]:
    """Print a sum, difference or product in half precision, of two elements or of two pairs."""
    spec = statement.spec
    (only,) = spec.definition.formulas
    assert isinstance(only.value, Operation)
    left, right = (element.tensor for element in only.elements) if len(only.elements) == 2 else (only.elements[0].tensor,) * 2
    name = _HALF[only.value.name]
    if pairs:
        values = (pair(printer, statement, left), pair(printer, statement, right))
        return stored_pair(printer, statement, only.output, Call(f"{name}2", values))
    dtype = spec.operands[only.output].dtype
    values = (printer.factor(statement, left, dtype), printer.factor(statement, right, dtype))
    return [Assignment(printer.element(statement, only.output), Call(name, values))]


def _assignments(printer: Printer, statement: Exec, in_pairs: bool = False) -> Sequence[Item]:
    """Print all elements or pairs of a statement in order, after the vector loads and before the vector stores."""
    formulas = statement.spec.definition.formulas
    if not getattr(statement.instruction, "clamps", True):
        formulas = tuple(map(unclamped, formulas))
    count = max(access.count for access in statement.accesses)
    if count == 1:
        return [_assignment(printer, _StatementElement(printer, statement), formula) for formula in formulas]
    used: set[str] = set()
    loads, loaded = _loads(printer, statement, in_pairs, used)
    stores, arrays = _stores(printer, statement, used)
    items: list[Item] = [*loads, *(f"{line};" for line, _ in arrays.values())]
    for number in range(0, count, 2 if in_pairs else 1):
        element = _StatementElement(printer, statement, number, loaded, {name: array for name, (_, array) in arrays.items()})
        for formula in formulas:
            condition = TRUE if formula.output in arrays else element.condition(formula.output)
            items.append(printer.under(condition, _on_pair(element, formula) if in_pairs else _assignment(printer, element, formula)))
    return [Braces("", (*items, *stores))] if loads or stores else items


def _own_name(printer: Printer, wanted: str, used: set[str]) -> str:
    """Return a name for a variable of a statement, different from those in `used`: operands may be called W and w."""
    name, number = printer.local(wanted), 1
    while name in used:
        number += 1
        name = printer.local(f"{wanted}{number}")
    used.add(name)
    return name


def _loads(printer: Printer, statement: Exec, in_pairs: bool, used: set[str]) -> tuple[list[Item], Mapping[str, tuple[str, ...]]]:
    """Return the vector loads, and the names of the loaded values by operand; with `in_pairs` elements have no separate names."""
    loads: list[Item] = []
    names: dict[str, tuple[str, ...]] = {}
    for position, (name, access) in enumerate(statement.operands.items()):
        width, dtype, count = statement.width(position), statement.spec.operands[name].dtype, access.count
        if width == 1 or access.write or statement.spec.operands[name].memory.private:
            continue
        kind = _VECTORS.get((dtype, width)) if width == count and not in_pairs else None
        if kind is not None and all(condition == TRUE for condition in statement.conditions(position)):
            vector = _own_name(printer, f"{name.lower()}_{'pair' if width == 2 else 'four'}", used)
            names[name] = tuple(f"{vector}.{part}" for part in "xyzw"[:width])
            loads.append(Assignment(f"const {kind} {vector}", Joined((f"*reinterpret_cast<const {kind}*>(", printer.pointer(access), ")"))))
            continue
        array = _own_name(printer, f"{name.lower()}_values", used)
        names[name] = tuple(f"{array}[{number}]" for number in range(count))
        loads.append(f"__align__({width * dtype.bytes}) {dtype.cuda} {array}[{count}];")
        for piece in statement.pieces[position]:
            loads.append(printer.loaded(statement, position, piece, f"{array}[{piece.first}]"))
    return loads, names


def _stores(printer: Printer, statement: Exec, used: set[str]) -> tuple[list[Item], Mapping[str, tuple[str, str]]]:
    """Return the vector stores, and by operand the declaration and name of the array that they store."""
    stores: list[Item] = []
    arrays: dict[str, tuple[str, str]] = {}
    for position, (name, access) in enumerate(statement.operands.items()):
        width, dtype, count = statement.width(position), statement.spec.operands[name].dtype, access.count
        if width > 1 and access.write and not statement.spec.operands[name].memory.private:
            array = _own_name(printer, f"{name.lower()}_values", used)
            arrays[name] = (f"__align__({width * dtype.bytes}) {dtype.cuda} {array}[{count}]", array)
            stores += [printer.stored(statement, position, piece, f"{array}[{piece.first}]") for piece in statement.pieces[position]]
    return stores, arrays


@frozen
class _StatementElement:
    """An element of a statement, by its index; operands with one element have only index 0.

    `loaded` are the elements of vector loads, `arrays` those of vector stores. With `clamps_coordinates`, the last coordinate of a
    dimension replaces coordinates past its end, whose elements are not stored.
    """

    printer: Printer
    statement: Exec
    number: int = 0
    loaded: Mapping[str, tuple[str, ...]] = {}
    arrays: Mapping[str, str] = {}
    clamps_coordinates: bool = False

    @property
    def spec(self) -> Spec:
        """Return the statement's spec."""
        return self.statement.spec

    @functools.cached_property
    def reaches(self) -> Mapping[str, Range]:
        """Return the ranges of the integers that it reads; those of coordinates include positions past the end of a tile."""
        return {name: self._reach(name, span) for name, span in self.spec.integer_ranges.items()}

    def _reach(self, name: str, span: Range) -> Range:
        if not self.spec.operands[name].memory.is_coordinate:
            return span
        access = self.statement.operands[name]
        address = self.printer.kernel.buffer(access.buffer).address(access, access.elements()[self._at(name)])
        return address.low, min(address.high, span[1]) if self.clamps_coordinates else address.high

    def is_wide(self, name: str) -> bool:
        """Whether an input holds 64-bit integers."""
        return self.spec.operands[name].dtype == int64

    def integer(self, name: str) -> Text:
        """Print the element of an input as an integer."""
        text, most = self.factor(name, self.spec.operands[name].dtype if self.is_wide(name) else int32), self.reaches[name][1]
        past = self.clamps_coordinates and attrs.evolve(self, clamps_coordinates=False).reaches[name][1] > most
        return Call("min", (text, self.printer.literal(most, int32))) if past else text

    @property
    def accumulate(self) -> Expr:
        """Return the condition under which it accumulates."""
        return self.statement.accumulate

    def place(self, name: str) -> Text:
        """Print the element of an operand as an lvalue."""
        if name in self.arrays:
            return f"{self.arrays[name]}[{self._at(name)}]"
        access = self.statement.operands[name]
        return self.printer.place(access, access.elements()[self._at(name)])

    def condition(self, name: str) -> Expr:
        """Return the condition, in addition to those of the statement, under which the element of an operand is accessed."""
        return self.statement.conditions(self._position(name))[self._at(name)]

    def factor(self, name: str, dtype: DType) -> Text:
        """Print the element of an input in another type; zero if it is not read."""
        if name in self.loaded:
            return self.printer.converted(self.loaded[name][self._at(name)], self.spec.operands[name].dtype, dtype)
        return self.printer.value(self.statement, self._position(name), self._at(name), dtype)

    def coordinate(self, name: str) -> Expr:
        """Return the coordinate that an operand holds."""
        access = self.statement.operands[name]
        return self.printer.kernel.buffer(access.buffer).address(access, access.elements()[self._at(name)])

    def counted(self, value: Value, dtype: DType) -> tuple[Text, ...]:
        """Print a sum or difference of coordinates in integer arithmetic (`Printer.counted`); empty for other values."""
        terms: dict[str, int] = {}
        if not isinstance(value, Operation) or not coordinates_of(value, self.spec, terms) or len(terms) - ("" in terms) < 2:
            return ()
        number = terms.pop("", 0)
        coordinates = {self._position(name): (self._at(name), times) for name, times in terms.items()}
        return self.printer.counted(self.statement, coordinates, number, dtype)

    def pair(self, name: str) -> Text:
        """Print this element of an operand and the next one as a pair; print the same element twice if the operand has only one."""
        access, dtype = self.statement.operands[name], self.spec.operands[name].dtype
        only = self.spec.definition.only
        assert only is not None
        result = self.spec.operands[only.output].dtype
        kind, twice = KINDS[result]
        if access.count == 1 or self._repeats(name):
            return Call(twice, (self.factor(name, result),))
        if is_byte(dtype, result):
            adjacent = Call("reinterpret_cast<const unsigned short*>", (f"&{self._array(name)}[{self.number}]",))
            return Call(self.printer.function(bytes_function(dtype)), (Joined(("*", adjacent)),))
        array = self.arrays.get(name) or self._array(name)
        pointer = self.printer.pointer(access, access.elements()[self.number]) if array is None else f"&{array}[{self.number}]"
        pair_text: Text = Joined(("*", Call(f"reinterpret_cast<{'' if access.write else 'const '}{kind}*>", (pointer,))))
        condition = TRUE if array is not None or access.write else self.condition(name)
        if condition == TRUE:
            return pair_text
        piece = self.statement.piece(self._position(name), self._at(name))
        outside = _twice(self.printer, self.spec.outside(name), dtype)
        if piece.outside is not None and piece.bounds == TRUE:
            outside = _twice(self.printer, piece.outside, dtype)
        elif piece.outside is not None:
            outside = Choice(self.printer.expression(piece.bounds), _twice(self.printer, piece.outside, dtype), outside)
        return Joined(("(", Choice(self.printer.expression(condition), pair_text, outside), ")"))

    def _repeats(self, name: str) -> bool:
        """Whether an operand has the same element here and next, such as a scale of a group."""
        access = self.statement.operands[name]
        buffer, elements = self.printer.kernel.buffer(access.buffer), access.elements()
        return buffer.address(access, elements[self.number]) == buffer.address(access, elements[self.number + 1])

    def second(self) -> _StatementElement:
        """Return the element after this one."""
        return attrs.evolve(self, number=self.number + 1)

    def _array(self, name: str) -> str | None:
        return self.loaded[name][0].partition("[")[0] if name in self.loaded else None

    def _position(self, name: str) -> int:
        return list(self.spec.operands).index(name)

    def _at(self, name: str) -> int:
        return self.number if self.statement.operands[name].count > 1 else 0


def _assignment(printer: Printer, statement: _StatementElement, formula: Formula) -> Item:
    """Print the assignment of an output, or the combination with its old value; the value is rounded to the output's type first."""
    result = statement.spec.operands[formula.output].dtype
    target = statement.place(formula.output)
    value = _value(printer, statement, formula, result)
    if not formula.accumulates or statement.accumulate == FALSE:
        return Assignment(target, value)
    wide, by = widened(result), formula.combiner
    if wide.kind == "int" and by in SIGNS:  # only the lower bits of sums and products matter
        wide = uint32 if wide == int32 else attrs.evolve(wide, cuda="unsigned long long")
    if isinstance(formula.value, Operation) and formula.value.name in INTEGER_ONLY:
        value = Joined(("(", value, ")"))
    terms = [
        old_value(printer, statement.statement, by, printer.converted(target, result, wide), wide),
        printer.converted(value, result, wide),
    ]
    return Assignment(target, printer.converted(together(printer, by, terms, wide), wide, result))


def assignment_text(printer: Printer, statement: Exec, formula: Formula) -> Item:
    """Print the assignment of a formula with the operands of a statement on one element."""
    return _assignment(printer, _StatementElement(printer, statement), formula)


def condition_text(printer: Printer, statement: Exec, condition: Value) -> Text:
    """Print a condition on the operands of a statement on one element."""
    return _condition(printer, _StatementElement(printer, statement), condition)


def coordinate_text(printer: Printer, statement: Exec, name: str) -> Text:
    """Print a coordinate that a statement on one element reads."""
    return _StatementElement(printer, statement).integer(name)


def _on_pair(element: _StatementElement, formula: Formula) -> Item:
    """Print the assignment of two contiguous elements of an output."""
    dtype = element.spec.operands[formula.output].dtype

    types = {name: view.dtype for name, view in element.spec.operands.items()}

    def leaf(part: Value) -> Text:
        if isinstance(part, Number):
            return _twice(element.printer, part.value, dtype)
        if isinstance(part, Element):
            return element.pair(part.tensor)
        pair_leaf = leaf_of(part, types, dtype)
        assert pair_leaf is not None
        return _leaf(element, pair_leaf, dtype)

    def is_leaf(part: Value) -> bool:
        return leaf_of(part, types, dtype) is not None

    def chosen(value: Operation, first: Text, second: Text) -> Text:
        tests = (_condition(element.printer, part, value.arguments[0], loosely=True) for part in (element, element.second()))
        return Call(element.printer.function(_CHOSEN[dtype]), (*tests, first, second))

    def approximate(name: str, argument: Text) -> Text:
        return Call(element.printer.function(approximation(name, dtype)), (argument,))

    return Assignment(element.pair(formula.output), packed(formula.value, leaf, is_leaf, chosen, approximate))


def _leaf(element: _StatementElement, leaf: Leaf, dtype: DType) -> Text:
    """Print two adjacent fields of a word, two scales, or their products, as a pair of floats."""
    printer = element.printer
    if leaf.scale is None:
        assert leaf.fields is not None
        return _fields(element, leaf.fields, dtype, f"0x{base_bits(leaf.fields, dtype):08x}u")
    scales = [_lower_bits(printer, part, leaf.scale) for part in (element, element.second())]
    if leaf.fields is None:
        return Call(printer.function(BFLOAT16_PAIR), (_bits_of_pair(printer.function(E8M0_BITS), scales),))
    first, second = (_bits_of_pair(f"{printer.function(SCALE_FACTOR)}<{number}>", scales) for number in (0, 1))
    return Call(printer.function(TIMES_FACTOR), (_fields(element, leaf.fields, dtype, first), second))


def _bits_of_pair(function: str, values: Sequence[Text]) -> Text:
    """Print the bits of a pair of 16-bit floats, each computed by a function of an integer."""
    low, high = (Call(function, (value,)) for value in values)
    return Chain((low, "* 0x10001u")) if low == high else Chain((low, Joined(("| ", high, " << 16"))))


def _fields(element: _StatementElement, fields: Fields, dtype: DType, base: Text) -> Text:
    """Print two adjacent fields of a word as a pair of floats; if their place in the word is constant, by operations that pairs share.

    `base` are the bits of a pair: what is subtracted from the fields, or the factor of FP4 numbers.
    """
    printer = element.printer
    word = element.integer(fields.word.tensor)
    coordinate = element.coordinate(fields.coordinate.tensor)
    if fields.distance == HALF_WORD:
        function = printer.function(pair_function(fields, dtype, known=False))
        above = (f"0x{above_bits(fields):08x}u",) if dtype == float16 else ()
        return Call(function, (word, base, *above, printer.expression(_shift_of(fields.shift, coordinate))))
    number = constant(mod(coordinate, as_expr(fields.period)))
    if number is not None:
        function = printer.function(pair_function(fields, dtype, known=True))
        return Call(f"{function}<{fields.shift_at(number) // FIELD}>", (word, base))
    shift, _ = _integer(printer, element, fields.shift)
    shifted = Chain((in_parentheses(word), Joined((">> (", shift, ")"))))
    return Call(printer.function(pair_function(fields, dtype, known=False)), (shifted, base))


def _shift_of(value: Value, coordinate: Expr) -> Expr:
    """Return a shift as an expression of a coordinate."""
    if isinstance(value, Element):
        return coordinate
    if isinstance(value, Number):
        return as_expr(int(value.value))
    first, second = (_shift_of(argument, coordinate) for argument in value.arguments)
    match value.name:
        case "+":
            return first + second
        case "*":
            return second * first if constant(second) is None else first * second
        case "//":
            return floordiv(first, second)
        case "<<":
            return first * (1 << (constant(second) or 0))
        case "&":
            return mod(first, second + 1)
    return mod(first, second)


def _twice(printer: Printer, number: float, dtype: DType) -> Text:
    """Print a 16-bit number twice, as a pair."""
    return Call("__float2half2_rn" if dtype == float16 else "__float2bfloat162_rn", (printer.literal(number, float32),))


_CHOSEN: Mapping[DType, Function] = {
    dtype: Function(
        "chosen",
        ("bool low", "bool high", f"{kind} one", f"{kind} other"),
        (f"return {together}(low ? one.x : other.x, high ? one.y : other.y);",),
        "select each half of a pair: `one` if its condition holds, else `other`",
        result=kind,
    )
    for dtype, kind, together in ((float16, "__half2", "__halves2half2"), (bfloat16, "__nv_bfloat162", "__halves2bfloat162"))
}  # fmt: skip


def unclamped(formula: Formula) -> Formula:
    """Return a formula without its final `relu`; the formula itself if it does not end with one."""
    match formula.value:
        case Operation("relu", (value,)) | Operation("max", (value, Number(0))) | Operation("max", (Number(0), value)):
            return attrs.evolve(formula, value=value)
    return formula


def _is_binary(spec: Spec) -> bool:
    """Whether a formula assigns the sum, difference or product of two elements at the coordinates of the result."""
    only = spec.definition.only
    value = None if only is None else only.value
    if only is None or only.accumulates or not isinstance(value, Operation) or value.name not in _HALF or len(value.arguments) != 2:
        return False
    return all(isinstance(argument, Element) and argument.index == only.target.index for argument in value.arguments)


def _in_half(spec: Spec) -> bool:
    """Whether one instruction computes the spec in half precision."""
    if spec.definition.accumulates:
        return False
    kinds = {view.dtype for view in spec.operands.values()}
    return len(kinds) == 1 and kinds <= {float16, bfloat16} and _is_binary(spec)


def _text(printer: Printer, statement: _StatementElement, value: Value | None, dtype: DType) -> Text:
    """Print a value of a formula in a floating-point type; a value of integers is converted once."""
    if isinstance(value, Number):
        return printer.literal(value.value, dtype)
    if isinstance(value, Element):
        return statement.factor(value.tensor, dtype)
    assert value is not None
    offset_texts = statement.counted(value, dtype)
    if offset_texts:
        return Chain((offset_texts[0], Joined(("+ ", offset_texts[1])))) if len(offset_texts) == 2 else offset_texts[0]
    if value.name in EXACT and range_of(value, statement.spec.integer_ranges) is not None:
        text, kind = _integer(printer, statement, value)
        return printer.converted(text, kind, dtype)
    if value.name in (*OF_LOW_BITS, "uniform"):
        return printer.converted(_float_of_bits(printer, statement, value), float32, dtype)
    if value.name == "where":
        condition, *values = value.arguments
        first, second = (_text(printer, statement, argument, dtype) for argument in values)
        return Joined(("(", Choice(_condition(printer, statement, condition, loosely=True), first, second), ")"))
    arguments = [_text(printer, statement, argument, dtype) for argument in value.arguments]
    if value.name in FUNCTIONS:
        return printer.applied(value.name, dtype, *arguments)
    placed = [
        text if _converts(statement, argument, dtype) else _operand(text, argument, value, number)
        for number, (text, argument) in enumerate(zip(arguments, value.arguments, strict=True))
    ]
    if value.name in ("+", "-"):
        placed = [_distributed(printer, statement, argument, dtype) or text for argument, text in zip(value.arguments, placed, strict=True)]
    return _signed(value.name, placed)


def _converts(statement: _StatementElement, value: Value, dtype: DType) -> bool:
    """Whether the floating-point value is printed as a conversion of a computed integer."""
    integral = isinstance(value, Operation) and value.name in EXACT and range_of(value, statement.spec.integer_ranges) is not None
    return integral and not statement.counted(value, dtype)


def _signed(sign: str, texts: Sequence[Text]) -> Text:
    """Print an operator between two texts, or before one."""
    return Joined((sign, texts[0])) if len(texts) == 1 else Chain((texts[0], Joined((f"{sign} ", texts[1]))))


def _in_64_bits(statement: _StatementElement, value: Value) -> _StatementElement:
    """Return the statement if a value fits into 64 bits; otherwise return one that limits coordinates to the last of their dimension.

    Only coordinates of tiles that are partly out of bounds need more than 64 bits.
    """
    return statement if range_of(value, statement.reaches) is not None else attrs.evolve(statement, clamps_coordinates=True)


def _width(statement: _StatementElement, value: Value) -> DType:
    """Return the type of an integer and all its operands: int32 or int64; uint32 only for operators of integers and what uses them."""
    span = range_of(value, statement.reaches)
    assert span is not None, "refused where a kernel is compiled"
    if not isinstance(value, Operation):
        return int32 if fits(span, int32) else int64
    if _takes_lower_bits(statement, value) or value.name in ("bits", "philox"):
        return uint32
    if value.name == "int32":
        return int32
    inner = value.arguments[value.name == "where" :]
    if value.name in SHIFTS:
        inner, count = value.arguments[:1], range_of(value.arguments[1], statement.reaches)
        if count is None or count[1] >= int32.bits:
            return int64
    kinds = [_width(statement, argument) for argument in inner if not isinstance(argument, Number)]
    if value.name in INTEGER_ONLY or value.name == "mulhi" or uint32 in kinds:
        spans = [span, *(_span(statement, argument) for argument in inner)]
        return common_type(spans, kinds, int64)
    return int32 if fits(span, int32) and all(_width(statement, argument) == int32 for argument in inner) else int64


def _span(statement: _StatementElement, value: Value) -> Range:
    span = range_of(value, statement.reaches)
    assert span is not None, "refused where a kernel is compiled"
    return span


def _takes_lower_bits(statement: _StatementElement, value: Operation) -> bool:
    """Whether a value is `x & mask`, whose mask has at most 32 bits, and no 32-bit type contains x and the mask."""
    if value.name != "&":
        return False
    spans = [range_of(argument, statement.reaches) for argument in value.arguments]
    if not any(span is not None and span[0] >= 0 and fits(span, uint32) for span in spans):
        return False
    known = [(span, argument) for span, argument in zip(spans, value.arguments, strict=True) if span is not None]
    kinds = [_width(statement, argument) for _, argument in known if not isinstance(argument, Number)]
    return len(known) < len(spans) or common_type([span for span, _ in known], kinds, int64) == int64


def _integer(printer: Printer, statement: _StatementElement, value: Value) -> tuple[Text, DType]:
    """Print an integer exactly, and return its type, which fits the value and all its operands."""
    statement = _in_64_bits(statement, value)
    kind = _width(statement, value)
    if isinstance(value, Number):
        return printer.literal(value.value, kind), kind
    if isinstance(value, Element):
        return statement.integer(value.tensor), kind
    if value.name in INTEGER_ONLY:
        return _of_integers_only(printer, statement, value, kind), kind
    if value.name in TO_INTEGER:
        return _call_of_integers(printer, statement, value, kind), kind
    if value.name in ("floor", "round"):
        return _in_type(printer, statement, value.arguments[0], kind), kind
    arguments = value.arguments
    condition: Text = ""
    if value.name == "where":
        condition, arguments = _condition(printer, statement, arguments[0], loosely=True), arguments[1:]
    if any(_width(_in_64_bits(statement, argument), argument) == uint32 for argument in arguments):
        texts = tuple(_in_type(printer, statement, argument, kind) for argument in arguments)
        kinds: tuple[DType, ...] = (kind,) * len(texts)
    else:
        texts, kinds = zip(*(_integer(printer, statement, argument) for argument in arguments), strict=True)
    if value.name == "where":
        return Joined(("(", Choice(condition, *texts), ")")), kind
    if value.name in FUNCTIONS:
        converted = [printer.converted(text, own, kind) for text, own in zip(texts, kinds, strict=True)]
        if value.name == "abs" and kind == uint32:
            return converted[0], kind
        return printer.applied(value.name, kind, *converted), kind
    placed = [_operand(text, argument, value, number) for number, (text, argument) in enumerate(zip(texts, arguments, strict=True))]
    if kind not in kinds:  # the operation has 64 bits if an operand has
        placed[0] = printer.converted(texts[0], int32, kind)
    return _signed(value.name, placed), kind


def _in_type(printer: Printer, statement: _StatementElement, value: Value, kind: DType) -> Text:
    """Print an integer in a type that contains it, as an operand of any operator."""
    if isinstance(value, Number):
        return bit_literal(printer, int(value.value), kind)
    text, own = _integer(printer, statement, value)
    if own != kind:
        return printer.converted(text, own, kind)
    return Joined(("(", text, ")")) if isinstance(value, Operation) and value.name not in FUNCTIONS else in_parentheses(text)


def _of_integers_only(printer: Printer, statement: _StatementElement, value: Operation, kind: DType) -> Text:
    """Print an operation that only integers have, in a type that `_width` determines."""
    if _takes_lower_bits(statement, value):
        return _signed(value.name, [_lower_operand(printer, statement, argument) for argument in value.arguments])
    digit = _digit(printer, statement, value) if kind == int32 else None
    if digit is not None:
        return digit
    counts = 1 if value.name in SHIFTS else 2
    texts = [_in_type(printer, statement, argument, kind if place < counts else int32) for place, argument in enumerate(value.arguments)]
    return printed_operation(printer, value.name, kind, texts, value.arguments, _span(statement, value.arguments[0]))


def _digit(printer: Printer, statement: _StatementElement, value: Operation) -> Text | None:
    """Print a digit of a coordinate, `n // 4` or `n % 4`, such that unrolled iterations share the quotient; None for other values."""
    coordinate, divisor = value.arguments[0], value.arguments[-1]
    if value.name not in QUOTIENTS or not isinstance(coordinate, Element) or not isinstance(divisor, Number):
        return None
    if not statement.spec.operands[coordinate.tensor].memory.is_coordinate or statement.condition(coordinate.tensor) != TRUE:
        return None
    place = statement.coordinate(coordinate.tensor)
    if statement.clamps_coordinates or place.low < 0:
        return None
    by = as_expr(int(divisor.value))
    return printer.expression(floordiv(place, by) if value.name == "//" else mod(place, by))


def _call_of_integers(printer: Printer, statement: _StatementElement, value: Operation, kind: DType) -> Text:
    """Print a function whose result is an integer, of the type `kind`."""
    if value.name == "philox":
        return _random_word(printer, statement, value)
    if value.name == "mulhi":
        factors = tuple(_in_type(printer, statement, argument, kind) for argument in value.arguments)
        return Call("__umulhi" if kind == uint32 else "__mulhi", factors)
    (argument,) = value.arguments
    ranges = statement.spec.integer_ranges
    if value.name == "int32" and is_integral(argument, ranges):
        span = range_of(argument, ranges)
        if span is not None and fits(span, int32):
            return _in_type(printer, statement, argument, int32)
        return printer.converted(_lower_bits(printer, statement, argument), uint32, int32)
    types = {name: view.dtype for name, view in statement.spec.operands.items()}
    computed = computing_of(argument, types)
    computed = float32 if computed.kind == "int" else computed
    text = _text(printer, statement, argument, computed)
    if value.name == "int32":
        return printer.converted(text, computed, int32)
    return Call("__float_as_uint", (printer.converted(text, computed, float32),))


def _random_word(printer: Printer, statement: _StatementElement, value: Operation) -> Text:
    """Print a call of Philox: the seed in 64 bits, the words of the counter, and the number of a word."""
    seed, *words = value.arguments
    text, kind = _integer(printer, statement, seed)
    key = printer.converted(text, kind, attrs.evolve(int64, cuda="unsigned long long"))
    texts = [_lower_operand(printer, statement, word) for word in words]
    zeros = [printer.literal(0, uint32)] * (FULL_COUNTER - len(texts))
    return Call(printer.function(philox()), (key, *texts, *zeros))


def _float_of_bits(printer: Printer, statement: _StatementElement, value: Operation) -> Text:
    """Print a function of integers whose result is a float32."""
    if value.name in RANDOM:
        word = _random_word(printer, statement, value)
        return Call(printer.function(UNIFORM), (word,))
    function = printer.function(DECODERS[value.name]) if value.name in DECODERS else "__uint_as_float"
    return Call(function, (_lower_bits(printer, statement, value.arguments[0]),))


def _lower_operand(printer: Printer, statement: _StatementElement, value: Value) -> Text:
    """Print the lower 32 bits of an integer as unsigned, as an operand of any operator."""
    if isinstance(value, Number):
        return bit_literal(printer, int(value.value) & _LOWER_BITS, uint32)
    text = _lower_bits(printer, statement, value)
    return Joined(("(", text, ")")) if isinstance(value, Operation) and value.name in EXACT else text


def _lower_bits(printer: Printer, statement: _StatementElement, value: Value) -> Text:
    """Print the lower 32 bits of an integer as unsigned; they depend only on the lower 32 bits of its operands."""
    if isinstance(value, Number):
        return printer.literal(int(value.value) & _LOWER_BITS, uint32)
    if isinstance(value, Operation) and (value.name == "where" or value.name in WRAPPING):
        if value.name == "where":
            first, second = (_lower_bits(printer, statement, argument) for argument in value.arguments[1:])
            return Joined(("(", Choice(_condition(printer, statement, value.arguments[0], loosely=True), first, second), ")"))
        if value.name in INTEGER_ONLY:
            return _lower_bits_of_operator(printer, statement, value)
        texts = [_lower_bits(printer, statement, argument) for argument in value.arguments]
        placed = [
            _operand(text, argument, value, number) for number, (text, argument) in enumerate(zip(texts, value.arguments, strict=True))
        ]
        return _signed(value.name, placed)
    text, kind = _integer(printer, statement, value)
    return printer.converted(text, kind, uint32)


def _lower_bits_of_operator(printer: Printer, statement: _StatementElement, value: Operation) -> Text:
    """Print the lower 32 bits of a shift to the left, or of a bitwise operation."""
    first = _lower_operand(printer, statement, value.arguments[0])
    if value.name in BITWISE:
        return _signed(value.name, [first, *(_lower_operand(printer, statement, argument) for argument in value.arguments[1:])])
    count = range_of(value.arguments[1], statement.spec.integer_ranges)
    amount = _in_type(printer, statement, value.arguments[1], int32)
    if count is not None and count[1] < uint32.bits:
        return _signed(value.name, [first, amount])
    wide = printer.converted(first, uint32, attrs.evolve(int64, cuda="unsigned long long"))
    return printer.converted(Chain((wide, Joined(("<< ", amount)))), int64, uint32)


_LOWER_BITS: Final = (1 << 32) - 1


def _value(printer: Printer, statement: _StatementElement, formula: Formula, result: DType) -> Text:
    """Print a formula in the type of its result: integers exactly, or their lower bits if the result is narrower."""
    value, ranges = formula.value, statement.spec.integer_ranges
    assert value is not None
    if not is_integral(value, ranges):
        computed = computing(formula, {name: view.dtype for name, view in statement.spec.operands.items()})
        return printer.converted(_text(printer, statement, value, computed), computed, result)
    if range_of(value, ranges) is None and result.kind == "float":
        computed = float64 if result == float64 else float32
        return printer.converted(_text(printer, statement, value, computed), computed, result)
    if (
        result.kind == "int"
        and result != int64
        and (range_of(value, ranges) is None or _width(_in_64_bits(statement, value), value) == int64)
    ):
        return printer.converted(_lower_bits(printer, statement, value), uint32, result)
    text, kind = _integer(printer, statement, value)
    return printer.converted(text, kind, result)


def _distributed(printer: Printer, statement: _StatementElement, value: Value, dtype: DType) -> Text | None:
    """Print a factor times a sum of coordinates, `slope * (m - n)`, such that unrolled iterations share the product.

    The product is computed for the first iteration, and a multiply-add adds the offset of each iteration. Return None for other terms, and
    if the factor depends on the coordinates. The result differs from the product by the rounding error of the product for the first
    iteration: 2^-24 of its value.
    """
    if not isinstance(value, Operation) or value.name != "*" or is_integral(value, statement.spec.integer_ranges):
        return None
    for factor, other in (value.arguments, value.arguments[::-1]):
        offset_texts = statement.counted(other, dtype)
        varies = {dim for element in elements_of(other) for dim in element.dims}
        if len(offset_texts) == 2 and varies.isdisjoint(dim for element in elements_of(factor) for dim in element.dims):
            text = _text(printer, statement, factor, dtype)
            product = Chain((_operand(text, factor, value, 0), Joined(("* ", offset_texts[0]))))
            return Call("fmaf", (text, offset_texts[1], product))
    return None


def coordinates_of(value: Value, spec: Spec, into: dict[str, int], sign: int = 1) -> bool:
    """Return whether a value is a signed sum of coordinates and integers. Add its coefficients to `into`, the constant with the name ""."""
    if isinstance(value, Number):
        is_integer = float(value.value).is_integer()
        into[""] = into.get("", 0) + (sign * int(value.value) if is_integer else 0)
        return is_integer
    if isinstance(value, Element):
        into[value.tensor] = into.get(value.tensor, 0) + sign
        return spec.operands[value.tensor].memory.is_coordinate
    if value.name not in ("+", "-"):
        return False
    *first, last = value.arguments
    signs = [sign] * len(first) + [sign if value.name == "+" else -sign]
    return all(coordinates_of(term, spec, into, term_sign) for term, term_sign in zip((*first, last), signs, strict=True))


def _condition(printer: Printer, statement: _StatementElement, value: Value, loosely: bool = False) -> Text:
    """Print a condition of a formula; the sides of a comparison have their own type."""
    assert isinstance(value, Operation)
    if value.name in ("and", "or"):
        first, second = (_condition(printer, statement, argument) for argument in value.arguments)
        both = Chain((first, Joined(("&& " if value.name == "and" else "|| ", second))))
        return both if loosely else Joined(("(", both, ")"))
    sides = sides_of(value, statement.spec.integer_ranges)
    if all(range_of(side, statement.spec.integer_ranges) is not None for side in sides):
        left, right = _compared_integers(printer, statement, sides)
    else:
        types = {name: view.dtype for name, view in statement.spec.operands.items()}
        kind = computing_of(Operation("+", sides), types)
        left, right = (in_parentheses(_text(printer, statement, side, kind)) for side in sides)
    return Chain((left, Joined((f"{value.name} ", right))))


def _compared_integers(printer: Printer, statement: _StatementElement, sides: Sequence[Value]) -> tuple[Text, Text]:
    """Print the sides of a comparison of integers; a comparison of an unsigned with a signed one is done in a type that contains both."""
    kinds = [_width(_in_64_bits(statement, side), side) for side in sides]
    if uint32 in kinds:
        spans = [_span(_in_64_bits(statement, side), side) for side in sides]
        kind = common_type(spans, [kind for kind, side in zip(kinds, sides, strict=True) if not isinstance(side, Number)], int64)
        left, right = (_in_type(printer, statement, side, kind) for side in sides)
        return left, right
    left, right = (_compared(_integer(printer, statement, side)[0], side) for side in sides)
    return left, right


def _compared(text: Text, side: Value) -> Text:
    """Print a side of a comparison; bitwise operators bind less tightly than comparisons in C++."""
    binds_less = isinstance(side, Operation) and side.name in INTEGER_ONLY
    return Joined(("(", text, ")")) if binds_less else in_parentheses(text)


def _operand(text: Text, inner: Value, outer: Operation, number: int) -> Text:
    """Print an operand of an operator, in parentheses if its precedence is lower."""
    if not isinstance(inner, Operation) or inner.name in FUNCTIONS:
        return in_parentheses(text)
    product = inner.name in ("*", "/") or len(inner.arguments) == 1
    left = len(outer.arguments) == 2 and number == 0 and inner.name not in INTEGER_ONLY
    binds = left and (product or outer.name in "+-")
    return text if binds else Joined(("(", text, ")"))


POINTWISE = ThreadPointwise("Pointwise")
POINTWISE2 = ThreadPointwise("Pointwise2", True)

SKIP_IF_IDENTITY = SkipIfIdentity("SkipIfIdentity")
APPROXIMATE_PAIRS = ApproximatePairs("ApproximatePairs")

INSTRUCTIONS: tuple[Executable, ...] = (POINTWISE, POINTWISE2)

__all__ = ["APPROXIMATE_PAIRS", "SKIP_IF_IDENTITY", "ApproximatePairs", "SkipIfIdentity", "ThreadPointwise"]
