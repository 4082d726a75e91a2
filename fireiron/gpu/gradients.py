"""The names of a gradient by another compiled program, for operators of PyTorch and functions of JAX.

The gradient of a program with the inputs X and the outputs Y reads X, Y and `dY`, and writes `dX`. A dot in the name of an array of a
graph is an underscore: `split.X` is called `split_X`.
"""

from __future__ import annotations

from fireiron.errors import ArgumentError
from fireiron.gpu.interface import Callee, undetermined


def label(name: str) -> str:
    """Return the name of an argument outside of a graph: `split_X` for the argument `split.X`."""
    return name.replace(".", "_")


def require_gradient(callee: Callee, gradient: Callee, verb: str) -> None:
    """Refuse a gradient with other arguments or results; `verb` is the function that takes it, in messages."""
    program, backward = callee.program, gradient.program
    given = [*program.inputs, *program.outputs]
    legal = [*map(label, given), *(f"d{label(output)}" for output in program.outputs)]
    unknown = next((name for name in backward.inputs if label(name) not in legal), None)
    if unknown is not None:
        raise ArgumentError(f"{verb}: the gradient reads {unknown}, which the operator does not have", legal=legal)
    legal = [f"d{label(name)}" for name in program.inputs if name not in program.numbers]
    unknown = next((name for name in backward.outputs if label(name) not in legal), None)
    if unknown is not None:
        raise ArgumentError(f"{verb}: the gradient writes {unknown}, which is no gradient of an input", legal=legal)
    if backward.adds_to:
        raise ArgumentError(f"{verb}: the gradient adds to {', '.join(backward.adds_to)}", legal="new outputs")
    known = {size.name for size in program.sizes}
    unknown = next((name for name in undetermined(backward) if name not in known), None)
    if unknown is not None:
        raise ArgumentError(f"{verb}: the gradient takes the size {unknown}, which the operator does not have")


__all__ = ["label", "require_gradient"]
