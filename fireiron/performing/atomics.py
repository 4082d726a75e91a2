"""What atomic combinations of single elements in global memory require, and their text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from fireiron.ir import Exec
from fireiron.ir.text import Function, Item, Printer
from fireiron.language.tree import Mismatch
from fireiron.spec import Spec
from fireiron.values.document import Call, Joined, Text, called
from fireiron.values.expr import constant
from fireiron.values.machine import Architecture, DType, bfloat16, float16, float32


def atomic_mismatches(spec: Spec, architecture: Architecture, combiner: str, types: Mapping[DType, int]) -> tuple[Mismatch, ...]:
    """The mismatches of a thread that combines one element by `combiner`; `types` have the first compute capability of each type."""
    only = spec.definition.only
    if not spec.atomic or only is None or only.combiner != combiner:
        return (Mismatch("spec", "AtomicAdd" if combiner == "sum" else f"Atomic{combiner.capitalize()}", spec.title),)
    mismatches = []
    if not spec.dst.memory.of_grid:
        mismatches.append(Mismatch("dst memory", "GL", spec.dst.memory.name))
    first = types.get(spec.dst.dtype)
    if first is None:
        mismatches.append(Mismatch("dst type", " or ".join(map(str, types)), str(spec.dst.dtype)))
    elif architecture.capability < first:
        mismatches.append(Mismatch("target", f"sm_{first} or newer", architecture.name))
    if spec.level.threads != 1:
        mismatches.append(Mismatch("level", "Thread", spec.level.name))
    if any(constant(size) != 1 for size in spec.sizes):
        mismatches.append(Mismatch("shape", "1x1", "x".join(map(str, spec.sizes))))
    if spec.src.memory.fragment is not None:
        mismatches.append(Mismatch("src memory", "GL SH RF", spec.src.memory.name))
    return tuple(mismatches)


def atomic_text(printer: Printer, statement: Exec, function: str) -> list[Item]:
    """The call of a function with the address of each element and its value, converted to the type of dst."""
    source, target = (view.dtype for view in statement.spec.operands.values())

    def line(value: Text, place: Text) -> Text:
        return called(function, Joined(("&", place)), printer.converted(value, source, target))

    return printer.each(statement, line)


VECTORS: Final[Mapping[int, int]] = {8: 90, 4: 90, 2: 60}
"""Numbers of 16-bit floats that one instruction adds to adjacent elements, and the first compute capability of each (PTX ISA, "red")."""

_PAIRS: Final[Mapping[DType, tuple[str, str, str, str]]] = {
    float16: ("__half2", "f16", "__floats2half2_rn", "__halves2half2"),
    bfloat16: ("__nv_bfloat162", "bf16", "__floats2bfloat162_rn", "__halves2bfloat162"),
}
"""The type of a pair, the type in PTX, and the functions that make a pair of two floats, and of two elements."""


def half_addition(dtype: DType, width: int) -> Function:
    """The device function that adds `width` 16-bit floats to adjacent elements in global memory, each atomically."""
    kind, ptx, _, _ = _PAIRS[dtype]
    if width == 1:
        body = (
            f'asm volatile("red.global.add.noftz.{ptx} [%0], %1;"',
            '             :: "l"(place), "h"(*reinterpret_cast<const unsigned short*>(&value)) : "memory");',
        )
        return Function("add_in_memory", (f"{dtype.cuda}* place", f"{dtype.cuda} value"), body, "add to one element atomically")
    names = "abcd"[: width // 2]
    vector, registers = "" if width == 2 else f".v{width // 2}", ", ".join(f"%{number}" for number in range(1, len(names) + 1))
    operands = ", ".join(f'"r"(*reinterpret_cast<const unsigned*>(&{name}))' for name in names)
    template = f'"red.global.add.noftz{vector}.{ptx}x2 [%0], {registers if width == 2 else "{" + registers + "}"};"'
    body = (f"asm volatile({template}", f'             :: "l"(place), {operands} : "memory");')
    parameters = (f"{dtype.cuda}* place", *(f"{kind} {name}" for name in names))
    return Function(f"add_{width}_in_memory", parameters, body, f"add to {width} adjacent elements, to each atomically")


FLOAT_VECTORS: Final[Mapping[int, int]] = {4: 90, 2: 90}
"""Numbers of float32 that one instruction adds to adjacent elements, and the first compute capability of each (PTX ISA, "red")."""


def float_addition(width: int) -> Function:
    """The device function that adds `width` float32 to adjacent elements in global memory, each atomically."""
    names = "abcd"[:width]
    registers = ", ".join(f"%{number}" for number in range(1, width + 1))
    operands = ", ".join(f'"f"({name})' for name in names)
    body = (f'asm volatile("red.global.add.v{width}.f32 [%0], {{{registers}}};"', f'             :: "l"(place), {operands} : "memory");')
    parameters = ("float* place", *(f"float {name}" for name in names))
    return Function(f"add_{width}_floats_in_memory", parameters, body, f"add to {width} adjacent elements, to each atomically")


def float_additions(printer: Printer, statement: Exec) -> list[Item]:
    """The additions of float32, as many at once as the statement specifies."""
    source, target = statement.accesses
    (kind, dtype), reads, items = (view.dtype for view in statement.spec.operands.values()), source.elements(), list[Item]()
    for piece in statement.pieces[1]:
        texts = [printer.place(source, read) for read in reads[piece.first : piece.first + piece.width]]
        values = [printer.converted(text, kind, dtype) for text in texts]
        place = Joined(("&", printer.place(target, target.elements()[piece.first])))
        function = "atomicAdd" if piece.width == 1 else printer.function(float_addition(piece.width))
        items.append(printer.under(piece.condition, called(function, place, *values)))
    return items


def half_additions(printer: Printer, statement: Exec) -> list[Item]:
    """The additions of 16-bit floats, as many at once as the statement specifies."""
    source, target = statement.accesses
    (kind, dtype), reads, items = (view.dtype for view in statement.spec.operands.values()), source.elements(), list[Item]()
    _, _, of_floats, of_halves = _PAIRS[dtype]
    for piece in statement.pieces[1]:
        texts = [printer.place(source, read) for read in reads[piece.first : piece.first + piece.width]]
        if piece.width == 1:
            values: list[Text] = [printer.converted(texts[0], kind, dtype)]
        else:
            elements = texts if kind == dtype else [printer.converted(text, kind, float32) for text in texts]
            pairs = zip(elements[::2], elements[1::2], strict=True)
            values = [Call(of_halves if kind == dtype else of_floats, pair) for pair in pairs]
        place = Joined(("&", printer.place(target, target.elements()[piece.first])))
        items.append(printer.under(piece.condition, called(printer.function(half_addition(dtype, piece.width)), place, *values)))
    return items


__all__ = [
    "FLOAT_VECTORS",
    "VECTORS",
    "atomic_mismatches",
    "atomic_text",
    "float_addition",
    "float_additions",
    "half_addition",
    "half_additions",
]
