"""What atomic combinations of single elements in global memory require, and their text."""

from __future__ import annotations

from collections.abc import Mapping

from fireiron.ir import Exec
from fireiron.ir.text import Item, Printer
from fireiron.language.tree import Mismatch
from fireiron.spec import Spec
from fireiron.values.document import Joined, Text, called
from fireiron.values.expr import constant
from fireiron.values.machine import Architecture, DType


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


__all__ = ["atomic_mismatches", "atomic_text"]
