"""The common base of reductions and scans across threads: properties of their spec, and the statements of single threads."""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from fireiron.errors import DecompositionError
from fireiron.ir import For, Hole, Stmt
from fireiron.ir.register_ownership import Digit
from fireiron.language.tree import Child, Decomposition, Draft
from fireiron.performing.layout_propagation import Following, expand_definitions, is_owner
from fireiron.spec import Spec
from fireiron.values.expr import TRUE, Expr, Var, as_expr, compiled
from fireiron.values.machine import DType, Lane, Level, Thread, Warp, float32, int32

LANES = 32
"""Threads of a warp."""

JOINED = {"sum": "+", "max": "max", "min": "min", "prod": "*"}
"""The operation of `BinaryPointwise` that combines two partial results of a reduction."""


@attrs.define
class CrossThread:
    """A spec whose elements several threads combine, with the children that the expansion creates.

    `step` ends the chain of each child.
    """

    following: Following
    step: Decomposition
    draft: Draft
    children: list[Child] = attrs.field(factory=list, init=False)

    @property
    def spec(self) -> Spec:
        """The reduction or the scan."""
        return self.following.spec

    @property
    def _by(self) -> str:
        """The reduction that combines elements."""
        (only,) = self.spec.definition.formulas
        return only.combiner

    @property
    def _level(self) -> Level:
        """The level of the statements of a single thread."""
        return Lane if self.spec.level == Warp or self.spec.level.is_below(Warp) else Thread

    @property
    def _dtype(self) -> DType:
        """The type of partial results: that of the elements with at least 32 bits, so that only the results are rounded."""
        kind = self.spec.src.dtype
        return kind if kind.bits >= 32 else float32 if kind.kind == "float" else int32

    @property
    def _owning(self) -> Expr:
        """The condition that a thread has elements."""
        return is_owner(self.following.ownership, self.draft)

    @property
    def _steps(self) -> tuple[Digit, ...]:
        """The digits of the coordinates of a thread's elements."""
        return self.following.steps or ()

    @property
    def _distributed(self) -> list[Digit]:
        """The digits that distribute elements over threads."""
        return [digit for digit in self._steps if digit.index is not None]

    def _visits_of(self, digits: Sequence[Digit]) -> list[tuple[Digit, Var]]:
        """Return digits that a thread visits, each with the variable of its loop."""
        names = [self.draft.fresh(self.spec.labels[digit.dim]) for digit in digits]
        return [(digit, Var(name, 0, digit.size - 1)) for digit, name in zip(digits, names, strict=True)]

    def _nest(self, visits: Sequence[tuple[Digit, Var]], inner: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
        """Return loops over digits around statements; the last digit is the outer loop."""
        for digit, var in visits:
            inner = (For(var, as_expr(digit.size), inner, True, self.draft.origin),)
        return inner

    def _child(self, name: str, spec: Spec, active: Expr = TRUE, steps: tuple[Decomposition, ...] = ()) -> tuple[Stmt, ...]:
        """Add a child, and return the statement at its position."""
        self.children.append(Child(name, spec, steps or (self.step,), active))
        return (Hole(name),)

    def _require_parts(self, number: Expr, parts: int) -> None:
        """Refuse parts without an active thread: their partial results in shared memory would never be written."""
        import numpy

        threads = numpy.arange(self.draft.workers or 1)
        numbers, owning = (
            numpy.broadcast_to(compiled(expand_definitions(value, self.draft))({self.draft.thread.name: threads}), threads.shape)
            for value in (number, self._owning)
        )
        written = len(set(numbers[owning == 1].tolist()))
        if written < parts:
            raise DecompositionError(
                f"{self.spec}: some of the parts that go through shared memory have no thread", got=f"{written} parts of {parts}",
                within=self.spec, at=self.draft.origin, hint="choose tiles of the load that use all threads to which they are assigned",
            )  # fmt: skip


def number_of(digits: Sequence[Digit]) -> Expr:
    """Return the number that digits of threads form, the first one with the smallest stride."""
    total, weight = as_expr(0), 1
    for digit in digits:
        assert digit.index is not None
        total, weight = total + digit.index * weight, weight * digit.size
    return total


__all__ = ["JOINED", "LANES", "CrossThread", "number_of"]
