"""Look back over the tiles before a tile: the instruction of `look_back`, by which the blocks of a scan exchange their totals.

A block publishes the total of its tile as words of 64 bits, each with 32 bits of the value and a flag. A word is stored and loaded at
once, so no fence is needed between value and flag (PTX ISA, "Memory Consistency Model": scalar accesses are single-copy atomic). The words
are the leaves of a tree with 32 children per node. The block of the last tile of a node publishes the total of the node. A block combines,
level by level, the words before its own in each node. So the order of all operations is fixed, and a block loads at most 31 words per
level. Words are adjacent to those of another area, which the next launch uses (`ir.look_back`).
Source: decision 102; Merrill and Garland, "Single-pass Parallel Prefix Scan with Decoupled Look-back", NVR-2016-002.

>>> from fireiron import *
>>> print(LOOK_BACK.performs())
TilePrefix(m,1)(SH,GL,SH)(Block), StatePrefix(m,1)(SH,SH,GL,GL,SH)(Block), of float32, float64 or int32
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from fireiron.frozen import frozen
from fireiron.ir import Exec
from fireiron.ir.text import Function, Item, Printer
from fireiron.language.tree import Context, Executable, Mismatch
from fireiron.performing.by_lanes import memory_mismatch
from fireiron.performing.joining import SIGNS
from fireiron.spec import Spec
from fireiron.specs.formula import SCANS
from fireiron.specs.meaning import neutral
from fireiron.specs.tile_prefix import StatePrefix, TilePrefix
from fireiron.values.document import Call, Joined
from fireiron.values.expr import ONE, Expr, as_expr, constant
from fireiron.values.machine import GL, SH, Architecture, Block, DType, float32, float64, int32

WORDS = ("words", "factors")
"""The operands in global memory."""

WARP = 32
"""Threads of a warp."""

LOOK = Function(
    "look", ("unsigned long long* words",), ("return *static_cast<volatile unsigned long long*>(words);",), "load a word",
    result="unsigned long long",
)  # fmt: skip

TYPES = (float32, float64, int32)
"""The types of totals."""


@frozen
class LookBackInstruction(Executable):
    """All threads of a block publish the totals of its rows, and obtain the totals of the tiles before.

    Legal on `TilePrefix` and `StatePrefix` of a block of whole warps, with totals in shared memory and words in global memory.
    """

    def performs(self) -> str:
        types = f"{', '.join(map(str, TYPES[:-1]))} or {TYPES[-1]}"
        return f"TilePrefix(m,1)(SH,GL,SH)(Block), StatePrefix(m,1)(SH,SH,GL,GL,SH)(Block), of {types}"

    def may_perform(self, spec: Spec) -> bool:
        return spec.kind in (TilePrefix.kind, StatePrefix.kind)

    def mismatches(self, spec: Spec, architecture: Architecture) -> tuple[Mismatch, ...]:
        if not self.may_perform(spec):
            return (Mismatch("spec", "TilePrefix or StatePrefix", spec.title),)
        mismatches = [] if spec.level == Block else [Mismatch("level", "Block", spec.level.name)]
        for name, view in spec.operands.items():
            mismatches += memory_mismatch(spec, name, (GL if name in WORDS else SH,))
            if view.dtype not in TYPES or view.dtype != spec.src.dtype:
                mismatches.append(Mismatch(f"{name} type", " or ".join(map(str, TYPES)), str(view.dtype)))
        if spec.sizes[-1] != ONE:
            mismatches.append(Mismatch("shape", "one tile", str(spec.sizes[-1])))
        if any(constant(size) is None for size in spec.sizes):
            mismatches.append(Mismatch("shape", "a number of rows known at compile time", "x".join(map(str, spec.sizes))))
        return tuple(mismatches)

    def fits(self, spec: Spec, context: Context) -> tuple[Mismatch, ...]:
        partial = context.workers is not None and context.workers % WARP
        return (*super().fits(spec, context), *((Mismatch("threads", "whole warps", str(context.workers)),) if partial else ()))

    def cuda(self, printer: Printer, statement: Exec) -> Sequence[Item]:
        spec, words = statement.spec, statement.operands["words"]
        *rows, tiles = printer.kernel.buffer(words.buffer).tensor.shape
        *row, tile = words.base
        number = as_expr(0)
        for place, size in zip(row, rows, strict=True):
            number = number * size + place
        count = math.prod(constant(size) or 1 for size in spec.sizes[:-1])
        operation = None if spec.kind == StatePrefix.kind else SCANS[dict(spec.parameters)["by"]]
        arrays = [statement.operands[name].buffer for name in WORDS if name in spec.operands]
        totals = [printer.pointer(statement.operands[name]) for name in ("src", "factor", "dst") if name in spec.operands]
        numbers: tuple[Expr, ...] = (number, as_expr(count), tile, tiles)
        function = printer.function(look_back_function(printer, operation, spec.src.dtype))
        return [Joined((Call(function, (*arrays, *totals, *map(printer.expression, numbers))), ";"))]


def look_back_function(printer: Printer, operation: str | None, dtype: DType) -> Function:
    """Return the function by which all threads of a block publish the totals of its rows and obtain those of the tiles before.

    `operation` combines two totals; None for the totals of a recurrence, pairs of a value and a factor.
    """
    look, published, publish = (printer.function(function) for function in (LOOK, _published(dtype), _publish(dtype)))
    width, kind = dtype.bits // 32, dtype.cuda
    parts = _Parts(printer, operation, dtype)
    names = parts.names
    words = f"{2 * width}"
    body = (
        "const int lane = threadIdx.x % 32;",
        "const long long row_words = tiles + tiles / 16 + 8;",
        *(f"unsigned long long* const {name}_row = {name}_words + row * row_words * {words};" for name in names),
        "for (int r = threadIdx.x; r < rows; r += blockDim.x) {",
        *(f"  {publish}({name}_row + (r * row_words + tile) * {words}, {name}_totals[r]);" for name in names),
        "}",
        "for (int r = threadIdx.x / 32; r < rows; r += blockDim.x / 32) {",
        *(f"  unsigned long long* {name}_level = {name}_row + r * row_words * {words};" for name in names),
        "  // the loads of two levels are in flight together",
        "  const int parent = tile / 32, parents = (tiles + 31) / 32;",
        *(f"  unsigned long long {name}_word = 0, {name}_next = 0;" for name in names),
        "  if (lane < tile % 32) {",
        *(f"    {name}_word = {look}({name}_level + (tile - tile % 32 + lane) * {words});" for name in names),
        "  }",
        "  if (parents > 1 && lane < parent % 32) {",
        *(f"    {name}_next = {look}({name}_level + (tiles + parent - parent % 32 + lane) * {words});" for name in names),
        "  }",
        *(f"  {kind} {name}_own = {name}_totals[r], {name}_before = {parts.none(name)};" for name in names),
        "  bool last = true;  // own is the total of a whole node",
        "#pragma unroll 1",
        "  for (int nodes = tiles, node = tile; nodes > 1;) {",
        "    const int number = node % 32;",
        *(f"    {kind} {name} = {parts.none(name)};" for name in names),
        "    if (lane < number) {",
        *(f"      {name} = {published}({name}_level + (node - number + lane) * {words}, {name}_word);" for name in names),
        "    }",
        "    for (int distance = 1; distance < 32; distance *= 2) {",
        *(f"      const {kind} {name}_later = __shfl_down_sync(~0u, {name}, distance);" for name in names),
        *(f"      {line}" for line in parts.combined("", "_later", "")),
        "    }",
        *(f"    {name} = __shfl_sync(~0u, {name}, 0);" for name in names),
        *(f"    {line}" for line in parts.combined("", "_before", "_before")),
        *(f"    {line}" for line in parts.combined("", "_own", "_own")),
        "    last = last && number == 31;",
        *(f"    {name}_level += nodes * {words};" for name in names),
        *(f"    {name}_word = {name}_next, {name}_next = 0;" for name in names),
        "    nodes = (nodes + 31) / 32, node /= 32;",
        "    if (last && nodes > 1 && lane == 0) {",
        *(f"      {publish}({name}_level + node * {words}, {name}_own);" for name in names),
        "    }",
        "  }",
        "  if (lane == 0) before[r] = value_before;",
        "}",
    )
    parameters = (
        *(f"unsigned long long* {name}_words" for name in names), *(f"const {kind}* {name}_totals" for name in names), f"{kind}* before",
        "long long row", "int rows", "int tile", "int tiles",
    )  # fmt: skip
    note = "publish the totals of the rows of a tile; before = those of the tiles before it, in a tree with 32 children per node"
    return Function("look_back", parameters, body, note)


@frozen
class _Parts:
    """The variables of a total in the text, and how two totals are combined."""

    printer: Printer
    operation: str | None
    dtype: DType

    @property
    def names(self) -> tuple[str, ...]:
        return ("value", "factor") if self.operation is None else ("value",)

    def none(self, name: str) -> str:
        """Return the total of no elements."""
        number = float(name == "factor") if self.operation is None else neutral(self.operation, self.dtype)
        return self.printer.literal(number, self.dtype)

    def combined(self, left: str, right: str, result: str) -> tuple[str, ...]:
        """Return the statements that combine an earlier and a later total, by the ends of the names of their variables."""
        first, second, target = (f"value{end}" for end in (left, right, result))
        if self.operation is None:
            factors = f"factor{target[5:]} = factor{left} * factor{right};"
            return (f"{target} = factor{right} * {first} + {second};", factors)
        sign = SIGNS.get(self.operation)
        if sign is None:
            return (f"{target} = {Joined((self.printer.applied(self.operation, self.dtype, first, second),)).flat};",)
        if self.dtype.kind == "int":  # integers wrap around, which C++ defines only for unsigned ones
            unsigned = [f"static_cast<unsigned>({name})" for name in (first, second)]
            return (f"{target} = static_cast<int>({unsigned[0]} {sign} {unsigned[1]});",)
        return (f"{target} = {first} {sign} {second};",)


def _publish(dtype: DType) -> Function:
    """Return the function that stores a value as words."""
    store = "*static_cast<volatile unsigned long long*>({}) = 1ull << 32 | {};"
    body: tuple[str, ...]
    if dtype == float64:
        body = (
            "const unsigned long long bits = __double_as_longlong(value);",
            store.format("words", "(bits & 0xffffffff)"),
            store.format("words + 2", "bits >> 32"),
        )
    else:
        body = (store.format("words", "__float_as_uint(value)" if dtype == float32 else "static_cast<unsigned>(value)"),)
    note = "a word has a flag in its upper half, and 32 bits of the value"
    return Function("publish", ("unsigned long long* words", f"{dtype.cuda} value"), body, note)


def _published(dtype: DType) -> Function:
    """Return the function that waits for a value in words."""
    load = "while (!({0} >> 32)) {0} = *static_cast<volatile unsigned long long*>({1});"
    body: tuple[str, ...] = (load.format("word", "words"),)
    if dtype == float64:
        body += ("unsigned long long high = 0;", load.format("high", "words + 2"))
        body += ("return __longlong_as_double(static_cast<long long>(high << 32 | (word & 0xffffffff)));",)
    else:
        bits = "static_cast<unsigned>(word)"
        body += (f"return __uint_as_float({bits});" if dtype == float32 else f"return static_cast<int>({bits});",)
    return Function(
        "published",
        ("unsigned long long* words", "unsigned long long word"),
        body,
        "wait for a value whose first word was loaded once",
        result=dtype.cuda,
    )


LOOK_BACK = LookBackInstruction("LOOK_BACK")

INSTRUCTIONS: tuple[Executable, ...] = (LOOK_BACK,)

EXAMPLES = (TilePrefix(2, 1)(SH, GL, SH)(Block),)

__all__ = ["LOOK_BACK", "LookBackInstruction"]
