"""`print_values`: print values of a fused definition from inside the kernel, to debug it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import attrs

from fireiron.errors import ArgumentError, DecompositionError, call_site
from fireiron.frozen import frozen
from fireiron.ir import Hole
from fireiron.language.tree import Child, Context, Decomposition, Expansion, verb
from fireiron.spec import Spec
from fireiron.specs.formula import Element, Index, Operation, Value, formula_of
from fireiron.specs.fused import FusedKind, fused
from fireiron.specs.fused_definition import FusedDefinition
from fireiron.specs.steps import EXTENTS, INDICES, with_extents
from fireiron.specs.tracing import Traced, at_elements, first_of
from fireiron.stepping.steps import unchanged

LEGAL_CONDITION = 'where="m == 3 and n < 8", where="acc != acc"'


@frozen
class PrintValues(Decomposition):
    """Print elements of a tensor after each step that writes it; see the verb `print_values`.

    rewrite: t[m,n] = f --> t[m,n] = f; if where: print(m, n, t[m,n])
    """

    verb: ClassVar[str] = "print_values"
    kinds: ClassVar[tuple[str, ...]] = ("Fused",)
    tensor: str
    where: str = ""
    step: str = ""
    iterations: bool = False

    def __attrs_post_init__(self) -> None:
        if not isinstance(self.iterations, bool):
            raise ArgumentError("print_values: iterations must be True or False", got=self.iterations, at=call_site())
        if not all(isinstance(value, str) for value in (self.tensor, self.where, self.step)) or not self.tensor:
            raise ArgumentError(
                "print_values needs the name of a tensor, a condition and the name of a step", got=(self.tensor, self.where, self.step),
                legal='print_values("acc", where="m == 3 and n == 5"), print_values("acc", step="gelu")', at=call_site(),
            )  # fmt: skip
        _condition(self.where)

    def label(self) -> str:
        words = [f"{name}={value!r}" for name, value in (("where", self.where), ("step", self.step)) if value]
        words += ["iterations=True"] if self.iterations else []
        return f"print_values({', '.join([repr(self.tensor), *words])})"

    @classmethod
    def choices(cls, spec: Spec, context: Context) -> Iterator[PrintValues]:
        """Yield nothing: a search for fast strategies, or a random one, never prints."""
        yield from ()

    def expand(self, spec: Spec, context: Context) -> Expansion:
        definition = fused(spec)
        if definition is None or not isinstance(spec.kind, FusedKind):
            raise DecompositionError(
                f"{self.label()}: {spec.title} is one step", legal="a Fused definition of several steps",
                hint="write it as a definition with an epilogue, and print a temporary of it",
            )  # fmt: skip
        self._require_written(spec, definition)
        dims = self._dims(definition)
        if dims is None:  # another part of the definition writes the tensor
            return unchanged(spec)
        condition = _condition(self.where)
        resolved = None if condition is None else self._resolved(condition, definition, dims)
        traced = Traced(self.tensor, resolved, self.step, self._is_input(definition), self.iterations)  # type: ignore[arg-type]
        child = attrs.evolve(spec, kind=spec.kind.of(traced=(*definition.traced, traced)))
        return Expansion((Child("body", child),), (Hole("body"),))

    def _require_written(self, spec: Spec, definition: FusedDefinition) -> None:
        """Refuse an unknown tensor, an array whose indices are computed, and a step that does not write the tensor, or read an input."""
        if self.step and self.step not in definition.names:
            raise DecompositionError(f"{self.label()}: {spec.title} has no step {self.step}", legal=definition.names)
        if self.tensor not in (*definition.hidden, *definition.known) or self.tensor.startswith(INDICES):
            legal = list(dict.fromkeys((*definition.hidden, *(name for name in definition.known if not name.startswith(INDICES)))))
            raise DecompositionError(f"{self.label()}: {spec.title} has no tensor {self.tensor}", legal=legal)
        if any(operand.operand == self.tensor for operand in definition.indexed):
            raise DecompositionError(
                f"{self.label()}: the indices of {self.tensor} are no coordinates", within=spec, legal="tensors with plain indices",
                hint=f"copy its elements to a temporary: x[...] = {self.tensor}[...], and print the temporary",
            )  # fmt: skip
        if self._is_input(definition) and not definition.uses[self.tensor]:
            raise DecompositionError(
                f"{self.label()}: {self.tensor} is a number that the caller passes", within=spec, legal="inputs with dimensions",
                hint="print it before the call",
            )  # fmt: skip
        self._require_step(definition)
        self._require_product(spec, definition)

    def _require_product(self, spec: Spec, definition: FusedDefinition) -> None:
        """Refuse to print iterations of a step that is not a matmul with its own strategy."""
        steps = [one for one in definition.steps if one.formula.output == self.tensor and self.step in ("", one.name)]
        if not self.iterations or not steps:
            return
        products = [one.name for one in definition.steps if one.formula.contracts and definition.strategy_of(one.name) is not None]
        if not any(one.name in products for one in steps):
            raise DecompositionError(
                f"{self.label()}: {self.tensor} is not the result of a matmul that has a strategy", within=spec,
                legal=[one.formula.output for one in definition.steps if one.formula.contracts] or "the result of a matmul",
                hint='.step("...", MatMul.split(...)...) before print_values(..., iterations=True)',
            )  # fmt: skip

    def _require_step(self, definition: FusedDefinition) -> None:
        """Refuse a step that does not write the tensor; for an input, one that does not read it."""
        step = next((one for one in definition.steps if one.name == self.step), None)
        if step is None:
            return
        if self._is_input(definition):
            if self.tensor not in step.reads:
                readers = [one.name for one in definition.steps if self.tensor in one.reads]
                raise DecompositionError(f"{self.label()}: step {self.step} does not read {self.tensor}", legal=readers)
        elif step.formula.output != self.tensor:
            raise DecompositionError(
                f"{self.label()}: step {self.step} writes {step.formula.output}",
                legal=[one.name for one in definition.steps if one.formula.output == self.tensor] or "a step that writes the tensor",
            )

    def _is_input(self, definition: FusedDefinition) -> bool:
        """Whether the tensor is an operand that steps of this part read, and no step writes."""
        return self.tensor in definition.known and any(self.tensor in step.reads_others for step in definition.steps)

    def _dims(self, definition: FusedDefinition) -> tuple[str, ...] | None:
        """Return the dimensions of the tensor; None if no step of this part writes it, or reads it if it is an input.

        Dimensions of which all steps process one element are omitted.
        """
        formulas = [step.formula for step in definition.steps if self.step in ("", step.name)]
        is_input = self._is_input(definition)
        elements = [element for formula in formulas for element in (formula.elements if is_input else (formula.target,))]
        own = [element for element in elements if element.tensor == self.tensor]
        single = (*definition.batch, *definition.scan)
        return tuple(dim for dim in own[0].dims if dim not in single) if own else None

    def _resolved(self, value: Value, definition: FusedDefinition, dims: tuple[str, ...]) -> Value:
        """Return the condition with coordinates and elements as operands."""
        if isinstance(value, Operation):
            return Operation(value.name, tuple(self._resolved(argument, definition, dims) for argument in value.arguments))
        if not isinstance(value, Element) or value.tensor.startswith(EXTENTS):
            return value
        if value.tensor == self.tensor and value.dims in ((), dims):
            return at_elements(value, self.tensor, dims)
        if value.tensor in definition.order and not value.index:
            return Element(f"{INDICES}{value.tensor}", (Index(value.tensor),)) if value.tensor in dims else first_of(value.tensor)
        raise DecompositionError(
            f"{self.label()}: the condition reads {value}",
            legal=[self.tensor, *definition.order],
            hint="a condition on coordinates, or on the printed element",
        )


def _condition(text: str) -> Operation | None:
    """Parse a condition; None if the text is empty. Raises: ArgumentError if the text is not one."""
    if not text.strip():
        return None
    try:
        value = formula_of(with_extents(f"traced[i] = where({text[:]}, 1, 0)")).value
    except ArgumentError as error:
        raise ArgumentError("print_values: where must be a condition", got=text, legal=LEGAL_CONDITION, at=call_site()) from error
    assert isinstance(value, Operation)
    condition: Any = value.arguments[0]
    assert isinstance(condition, Operation)
    return condition


@verb()
def print_values(tensor: str, where: str = "", step: str = "", iterations: bool = False) -> PrintValues:
    """Print elements of a tensor from inside the kernel, after each step that writes it. The results of the kernel do not change.

    An input is printed before the first step that reads it, by each block that reads it. Of an output to which several blocks add, a line
    `y[3] += 2` has the value that a block adds.
    Args: tensor: a temporary, an output or an input. where: the elements to print, a condition on coordinates and on the element:
    `"m == 3 and n < 8"`, `"acc != acc"` (NaN); by default all. For a dimension that the tensor does not have, such as that of a loop, it
    compares the first coordinate of the iteration. step: the step after which to print; for an input, the step before which to print.
    iterations: print the accumulator of a matmul after each iteration of the loop in the strategy of its step, which precedes this step.
    The simulator and a GPU print the same lines, in any order. The thread that owns an element prints it.
    Legal on a Fused definition, for tensors in registers, and for tensors whose step computes each element from others.
    rewrite: t[m,n] = f --> t[m,n] = f; if where: print(m, n, t[m,n])

    Source: decision 96.

    >>> from fireiron import *
    >>> import numpy as np
    >>> sums = Fused(
    ...     name="sums", dims="m n", loop="n", operands={"X": "m n", "y": "m"}, init={"zero": "s[m] = 0"},
    ...     body={"add": "s[m] += sum(n, X[m,n])"}, final={"out": "y[m] = s[m]"},
    ... )
    >>> rows = Move.tile(1, 1).to(Thread).done()
    >>> blocks = sums.tile(m=1).to(Block).print_values("s", where="m == 2 and s > 40").split(n=32).load("X", RF, rows).done()
    >>> y = blocks(sums(m=4, n=128)).compile("sm_80")(np.ones((4, 128), np.float16))
    add: s[2] = 64 (n = 32, block 2, thread 0)
    add: s[2] = 96 (n = 64, block 2, thread 0)
    add: s[2] = 128 (n = 96, block 2, thread 0)
    """
    return PrintValues(tensor, where, step, iterations, origin=call_site())


EXAMPLES = (PrintValues("acc"),)
"""Examples of the class, which has no default arguments."""

__all__ = ["PrintValues"]
