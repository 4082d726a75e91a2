"""mma.sync: matrix multiply-accumulate by the lanes of a warp or quad-pair. All forms are values of the class `Mma`.

A form is data: the shape, the element types, the threads, and for each operand a `LaneMap` from lane and register to the element (figures
of the PTX ISA, "Matrix fragments for mma"). The simulation follows from the maps and from the definition of a MatMul. The text is one line
of PTX.

>>> from fireiron import *
>>> leaf = MatMul(16, 8, 16, dtype=float16, c_dtype=float32)(RF, RF, RF)(Warp)
>>> [instruction.name for instruction in INSTRUCTIONS if not instruction.mismatches(leaf, ARCHITECTURES[-1])]
['HMMA_16816_F32']
>>> HMMA_16816_F32.maps()["A"].coordinate(5, 0)  # row and column of the first value of A in lane 5
(1, 2)
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

import attrs

from fireiron.errors import ArgumentError, call_site
from fireiron.ir import Exec, Stmt
from fireiron.ir.lanes import LaneMap
from fireiron.ir.text import Function, Item, Printer
from fireiron.language.tree import Draft, Executable, Mismatch
from fireiron.performing.by_lanes import (
    level_mismatch,
    listed,
    memory_mismatch,
    product_mismatch,
    registers,
    registers_together,
    require_whole_warps,
    shape_mismatch,
    statements_by_lanes,
    target_mismatch,
    type_mismatch,
    with_registers,
)
from fireiron.spec import Spec
from fireiron.values.document import Assignment, called
from fireiron.values.machine import RF, Architecture, DType, Level, Warp, tf32
from fireiron.values.tensor import MatrixLayout
from fireiron.values.units import same_threads


def _is_shape(value: object) -> bool:
    return isinstance(value, tuple) and len(value) == 3 and all(type(size) is int and size > 0 for size in value)


def _is_orders(value: object) -> bool:
    return isinstance(value, tuple) and len(value) in (0, 2) and all(isinstance(order, str) and order in _LAYOUTS for order in value)


@attrs.frozen(repr=False)
class Mma(Executable):
    """`MatMul(m,n,k)(RF,RF,RF)(level)`: `opcode` is the PTX instruction, `a`, `b`, `c` are the lane maps of the operands.

    `factor` is the type of A and B, or a pair of types. `orders`, if given, are the storage orders of A and B, `"row"` or `"col"`, in which
    the variants of the instruction differ. `capability` is the first compute capability that has it, `last` the last one on which it is
    fast. On newer targets, it is used only if a strategy requests its shape or its name.
    """

    shape: tuple[int, int, int] = (16, 8, 16)
    factor: tuple[DType, ...] = ()
    result: DType | None = None
    opcode: str = ""
    a: LaneMap | None = None
    b: LaneMap | None = None
    c: LaneMap | None = None
    level: Level = Warp
    capability: int = 80
    last: int | None = None
    orders: tuple[str, ...] = ()

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        self._check_fields()
        m, n, k = self.shape
        for name, tile in (("A", (m, k)), ("B", (k, n)), ("C", (m, n))):
            lane_map = self.maps()[name]
            if lane_map.tile != tile or lane_map.threads != self.level.threads:
                raise ArgumentError(
                    f"{self.name}: the lane map of {name} is for {lane_map.threads} lanes and a tile {lane_map.tile}",
                    legal=f"{self.level.threads} lanes of {self.level}, a tile {tile}",
                    at=call_site(),
                )

    def _check_fields(self) -> None:
        """Refuse fields of wrong types."""
        types = (*self.factor, self.result) if isinstance(self.factor, tuple) and len(self.factor) in (1, 2) else ()
        checks = (
            (types and all(isinstance(dtype, DType) for dtype in types), "element types", (self.factor, self.result)),
            (all(isinstance(lane_map, LaneMap) for lane_map in (self.a, self.b, self.c)), "lane maps", (self.a, self.b, self.c)),
            (_is_shape(self.shape), "a shape (m, n, k)", self.shape),
            (isinstance(self.level, Level) and self.level.threads is not None, "a level with a number of threads", self.level),
            (isinstance(self.opcode, str) and isinstance(self.name, str), "a name and an opcode", (self.name, self.opcode)),
            (_is_orders(self.orders), "orders of A and B", self.orders),
            (type(self.capability) is int and type(self.last) in (int, type(None)), "compute capabilities", (self.capability, self.last)),
        )
        for holds, what, got in checks:
            if not holds:
                raise ArgumentError(
                    f"{self.name if isinstance(self.name, str) and self.name else 'mma'} needs {what}", got=got, at=call_site()
                )

    @property
    def factors(self) -> dict[str, DType]:
        """Return the types of A and B."""
        return {"A": self.factor[0], "B": self.factor[-1]}

    def maps(self) -> dict[str, LaneMap]:
        """Return the lane maps by operand."""
        assert self.a is not None and self.b is not None and self.c is not None
        return {"A": self.a, "B": self.b, "C": self.c}

    def __repr__(self) -> str:
        return self.name

    def performs(self) -> str:
        m, n, k = self.shape
        types = f"A and B {self.factor[0]}" if len(self.factor) == 1 else f"A {self.factor[0]}, B {self.factor[1]}"
        orders = "".join(f", {name} {_LAYOUTS[order]}" for name, order in zip("AB", self.orders, strict=False))
        return f"MatMul({m},{n},{k})(RF,RF,RF)({self.level}), {types}, C {self.result}{orders}"

    def may_perform(self, spec: Spec) -> bool:
        return spec.multiplies and same_threads(spec.level, self.level)

    def mismatches(self, spec: Spec, architecture: Architecture) -> tuple[Mismatch, ...]:
        if not spec.multiplies:
            return product_mismatch(spec)
        assert self.result is not None
        return (
            *level_mismatch(spec, self.level),
            *shape_mismatch(spec, dict(zip(spec.dims, self.shape, strict=True)), multiples=False),
            *(mismatch for name, factor in self.factors.items() for mismatch in type_mismatch(spec, name, (factor,))),
            *type_mismatch(spec, "C", (self.result,)),
            *(mismatch for name in "ABC" for mismatch in memory_mismatch(spec, name, (RF,))),
            *(mismatch for name, order in zip("AB", self.orders, strict=False) for mismatch in _order_mismatch(spec, name, order)),
            *target_mismatch(architecture, self.capability),
        )

    def emit(self, spec: Spec, draft: Draft) -> tuple[Stmt, ...]:
        require_whole_warps(self.name, spec, draft)
        vectors = tuple(registers_together(view) for view in spec.operands.values())
        return statements_by_lanes(self, spec, draft, self.maps(), vectors=vectors)

    def cuda(self, printer: Printer, statement: Exec) -> Sequence[Item]:
        a, b, c = (printer.registers(statement, position) for position in range(3))
        target = statement.accesses[2]
        zero = printer.literal(0, statement.spec.operands["C"].dtype)
        cleared = [Assignment(printer.place(target, offset), zero) for offset in target.elements()]
        product = with_registers([called(printer.function(self._function(printer)), c.place, a.place, b.place)], a, b, c)
        return [*printer.unless_adding(statement, cleared), *product]

    def _function(self, printer: Printer) -> Function:
        """Return the device function of the instruction, whose arguments are a lane's registers of C, A and B."""
        assert self.result is not None
        kinds = {"c": self.result, "a": self.factors["A"], "b": self.factors["B"]}
        counts = {name: self.maps()[name.upper()].count // max(4 // kind.bytes, 1) for name, kind in kinds.items()}
        total, left, right = (registers(first, counts[name]) for name, first in zip("cab", _starts(counts), strict=True))
        asm = f'asm volatile("{self.opcode} "'
        letters = {name: _LETTERS.get(kind.cuda, "r") if kind != tf32 else "r" for name, kind in kinds.items()}
        names = {name: name if letters[name] != "r" or kind.cuda == "int" else f"{name}_words" for name, kind in kinds.items()}
        views = [_words(name, names[name]) for name in kinds if names[name] != name]
        body = (
            *views,
            asm,
            f'    "{total}, {left}, {right}, {total};"',
            *wrapped(f"    : {listed('+' + letters['c'], names['c'], counts['c'])}"),
            *wrapped(f"    : {listed(letters['a'], names['a'], counts['a'])}, {listed(letters['b'], names['b'], counts['b'])});"),
        )
        parameters = tuple(f"{'' if name == 'c' else 'const '}{kind.cuda}* {name}" for name, kind in kinds.items())
        note = f"c += a * b: {''.join(f'{mode}{size}' for mode, size in zip('mnk', self.shape))} of a {self.level.label}"
        return Function(_function_name(self.opcode, bool(self.orders)), parameters, body, note)


_LAYOUTS: Mapping[str, str] = {"row": "RowMajor", "col": "ColMajor"}
_ALONG: Mapping[str, int] = {"row": 1, "col": 0}
"""The dimension along which elements are contiguous."""


def _order_mismatch(spec: Spec, operand: str, order: str) -> tuple[Mismatch, ...]:
    """Return why the storage order of an operand is not that of a variant."""
    view = spec.operands[operand]
    layout = view.tensor.layout
    if isinstance(layout, MatrixLayout) and view.storage_order[0] == _ALONG[order]:
        return ()
    return (Mismatch(f"{operand} layout", _LAYOUTS[order], str(layout)),)


_LETTERS: Mapping[str, str] = {"float": "f", "double": "d"}
"""Letters of inline PTX for registers of these types; all others are 32-bit words."""


def _starts(counts: Mapping[str, int]) -> tuple[int, int, int]:
    """Return the numbers of the first registers of C, A and B."""
    return 0, counts["c"], counts["c"] + counts["a"]


def _words(name: str, words: str) -> str:
    """Return the declaration of an operand's values as 32-bit registers."""
    const = "" if name == "c" else "const "
    return f"{const}unsigned* const {words} = reinterpret_cast<{const}unsigned*>({name});"


def wrapped(line: str, limit: int = 110) -> Iterator[str]:
    """Return operands of inline PTX, as many as fit on each line."""
    while len(line) > limit:
        break_at = line.rindex(", ", 0, limit) + 1
        yield line[:break_at]
        line = f"     {line[break_at:]}"
    yield line


def _function_name(opcode: str, ordered: bool) -> str:
    """Return the function's name, such as `mma_m16n8k16_f32_f16`: shape, storage orders if forms differ in them, types."""
    parts = [part for part in opcode.split(".") if part not in ("sync", "aligned")]
    if len(parts) == 8 and parts[4] == parts[7]:
        name, shape, *orders, result, left, right, _ = parts
        parts = [name, shape, *(orders if ordered else ()), result, left, *([right] if right != left else ())]
    return re.sub(r"\W+", "_", "_".join(parts))


__all__ = ["Mma"]
