"""Multiply-adds of one thread, scalar or packed: checks of their fields, and mismatches of specs."""

from __future__ import annotations

from typing import Any

from fireiron.errors import ArgumentError, call_site, shown
from fireiron.language.tree import Mismatch
from fireiron.spec import Spec
from fireiron.values.expr import constant
from fireiron.values.machine import Architecture, DType


def check_fields(executable: Any) -> None:
    """Refuse an instruction whose fields have wrong types."""
    if not isinstance(executable.name, str) or not executable.name.isprintable() or not executable.name:
        raise ArgumentError("an instruction's name must be one line of text", got=executable.name, at=call_site())
    types = (executable.result, *executable.factors) if isinstance(executable.factors, tuple) else (executable.factors,)
    for dtype in types:
        if not isinstance(dtype, DType):
            raise ArgumentError(
                f"{shown(executable.name)} needs element types", got=dtype, legal="float32, or (float32, float16)", at=call_site()
            )
    if type(executable.capability) is not int or executable.capability < 0:
        raise ArgumentError(
            f"{shown(executable.name)}: the compute capability must be an integer such as 80", got=executable.capability, at=call_site()
        )


def fma_mismatches(
    executable: Any, spec: Spec, architecture: Architecture, shapes: tuple[tuple[int, int, int], ...]
) -> tuple[Mismatch, ...]:
    """Return the mismatches between a spec and a multiply-add of one thread with one of the shapes."""
    if not spec.contracts:
        return (Mismatch("spec", "MatMul", spec.title),)
    mismatches = []
    if spec.level.threads != 1:
        mismatches.append(Mismatch("level", "Thread", spec.level.name))
    if not _is_of(spec, shapes):
        mismatches.append(Mismatch("shape", " or ".join("x".join(map(str, shape)) for shape in shapes), "x".join(map(str, spec.sizes))))
    if spec.C.dtype != executable.result:
        mismatches.append(Mismatch("C type", str(executable.result), str(spec.C.dtype)))
    for name in ("A", "B"):
        dtype = spec.operands[name].dtype
        if dtype not in executable.factors:
            mismatches.append(Mismatch(f"{name} type", " or ".join(map(str, executable.factors)), str(dtype)))
    if architecture.capability < executable.capability:
        mismatches.append(Mismatch("target", f"sm_{executable.capability} or newer", architecture.name))
    return tuple(mismatches)


def _is_of(spec: Spec, shapes: tuple[tuple[int, int, int], ...]) -> bool:
    """Whether a spec has one of the shapes m, n, k; a spec with other dimensions must be a product of single elements."""
    sizes = tuple(constant(size) for size in spec.sizes)
    return sizes in shapes if spec.multiplies else (1, 1, 1) in shapes and set(sizes) == {1}
