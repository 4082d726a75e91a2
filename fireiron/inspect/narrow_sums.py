"""Find long sums in a narrow type that the strategy does not name: `epilog(RF)` accumulates in the type of C.

A sum of k terms in a type with rounding error u may be off by k * u times the sum of absolute terms (Higham, Accuracy and Stability of
Numerical Algorithms, 4.2). A proposed step has been compiled. A type that the strategy or the problem names is a decision, and no finding.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final

import attrs

from fireiron.check import Finding
from fireiron.compiler import Program
from fireiron.decomp.epilog import Epilog
from fireiron.inspect.other_steps import replaced, with_steps
from fireiron.language.substrategy import default_copy
from fireiron.language.tree import Node
from fireiron.spec import Spec
from fireiron.values.expr import constant
from fireiron.values.machine import float32

LEAST: Final = 0.125
"""Least error bound that is reported, as a share of the sum of absolute terms: 256 terms in float16, 32 in bfloat16."""


def narrow_sums(program: Program) -> Iterator[Finding]:
    """Yield a finding for each `epilog` without a type that sums many products in a 16-bit type because C has it.

    It is a warning if the strategy is legal with float32 in place of this type, and otherwise a note: instructions such as HFMA2 are a
    choice.

    Raises: the errors of the program if it has no tree.
    """
    seen: list[Epilog] = []
    for node in program.tree.nodes():
        step = node.step
        if isinstance(step, Epilog) and step not in seen and _takes_type_of_result(node, step):
            seen.append(step)
            yield from _reported(program, step, node.spec)


def _takes_type_of_result(node: Node, step: Epilog) -> bool:
    spec = node.spec
    return step.dtype is None and spec.title == "MatMul" and spec.accumulator is None


def _reported(program: Program, step: Epilog, spec: Spec) -> Iterator[Finding]:
    dtype = spec.C.dtype
    terms = _terms(spec)
    if dtype.kind != "float" or dtype.bits != 16 or (terms is not None and terms * 2.0**-dtype.mantissa < LEAST):
        return
    compiles = _compiles(program, step, attrs.evolve(step, dtype=float32))
    rest = "" if step.init == step.store == default_copy() else ", ..."
    wide, named = (f"epilog({step.memory}, {name}{rest})" for name in (float32, dtype))
    fix = f"{wide} accumulates in float32" if compiles else f"{wide} needs other steps after it"
    what = "sums of run-time length" if terms is None else f"sums of {terms} products"
    bound = "" if terms is None else f", with errors of up to {min(terms * 2.0**-dtype.mantissa, 1):.0%} of the sum of absolute products"
    message = f"epilog without a type computes {what} in {dtype}, the type of C{bound}; {fix}; {named} states that {dtype} is intended"
    details = {"terms": terms, "dtype": dtype.name, "better": wide if compiles else None}
    yield Finding("accumulator", "warning" if compiles else "note", None, message, step.origin, None, details)


def _terms(spec: Spec) -> int | None:
    """Return the number of products in an element of C, if it is known."""
    sizes = [constant(size) for size in spec.sizes]
    results = [constant(size) for size in spec.C.shape]
    if None in sizes or None in results:
        return None
    return math.prod(size for size in sizes if size is not None) // math.prod(size for size in results if size is not None)


def _compiles(program: Program, step: Epilog, wide: Epilog) -> bool:
    """Whether the program has a kernel with the step replaced."""
    steps = replaced(program.strategy.steps, step, wide)
    return steps != program.strategy.steps and with_steps(program, steps) is not None


__all__ = ["narrow_sums"]
