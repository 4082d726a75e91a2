"""The steps of a definition, and the text of their formulas as a user writes it."""

from __future__ import annotations

import re
from typing import Any, Final

from fireiron.frozen import frozen
from fireiron.specs.formula import Element, Formula, Index, Operation, Value
from fireiron.specs.nested import Nest
from fireiron.values.machine import DType

PARTS: Final = ("init", "body", "final")
"""The parts of a definition: the steps before the loop, inside it, and after it."""

ROLES: Final = ("loop", "scan", "batch")
"""Roles of dimensions that are not tiled: `loop` takes any number of elements per iteration, `scan` takes one; `batch` one per block."""

FIELD_NAMES: Final = {"loop": "over"}
"""Arguments of `Fused` whose field of `FusedDefinition` has another name."""

INDICES: Final = "index_"
"""Prefix of the operand that holds the coordinates of a dimension: `index_n`."""

EXTENTS: Final = "size_"
"""Prefix of the operand that holds the extent of a dimension: `size_n`."""

FACTOR: Final = "factor "
"""Prefix of the name of an input whose values are truncated as matrix instructions truncate them."""

SECOND_LOOP: Final = "again"
"""The part of the steps that a second loop over the same dimensions executes, after the first one."""

LOOPED: Final = ("body", SECOND_LOOP)
"""The parts whose steps are in a loop."""


@frozen
class Step:
    """A named step: its formula, and its part of the definition. `nest` are the loops around it inside of that part.

    If a reduction is kept in partial results, `parts` is the dimension of these results. Each of them combines some of the terms.
    """

    name: str
    formula: Formula
    part: str = "body"
    parts: str = ""
    nest: Nest = ()

    def __str__(self) -> str:
        return f"{self.name}: {shown(self.formula)}{', partial results' if self.parts else ''}"

    @property
    def reads(self) -> tuple[str, ...]:
        """The tensors that the step reads, including its result if the step accumulates."""
        accumulated = (self.formula.output,) if self.formula.accumulates else ()
        return (*dict.fromkeys(element.tensor for element in self.formula.elements), *accumulated)

    @property
    def kind_of_product(self) -> str:
        """The title of the kind of a matmul."""
        return "MatMul" if self.formula.sparse is None else "SparseMatMul"

    @property
    def reads_others(self) -> tuple[str, ...]:
        """The tensors that the step reads, except for the tensor that it writes."""
        return tuple(name for name in self.reads if name != self.formula.output)


@frozen
class TemporaryMemory:
    """The memory that a strategy sets for a temporary, and an element type if it differs from that of the definition.

    - `pad`: the padding of its rows in elements. `stages`: the number of copies, which iterations use alternately (0: one copy).
    - `swizzle`: the swizzle of its addresses, or a function of the distance of its rows in elements and of the bytes of an element.
    - `free`: no layout is requested, so an instruction that reads the temporary may choose one.
    """

    tensor: str
    memory: Any
    pad: int = 0
    dtype: DType | None = None
    swizzle: Any = None
    stages: int = 0
    free: bool = False


@frozen
class Skipped:
    """Steps, by name, that a warp skips if a condition holds for all elements of its threads.

    The condition compares elements, `new[m] == mx[m]`; several are combined with `and`.
    """

    steps: tuple[str, ...]
    condition: Operation


def with_extents(text: str) -> str:
    """Replace extents by operands in a formula: `size(n)` by `size_n`."""
    return re.sub(r"\bsize\(\s*(\w+)\s*\)", rf"{EXTENTS}\1", text)


def with_coordinates(value: Value | None, order: tuple[str, ...]) -> Value | None:
    """Replace names of dimensions by coordinates: `n` by `index_n[n]`."""
    if isinstance(value, Element) and not value.index and value.tensor in order:
        return Element(f"{INDICES}{value.tensor}", (Index(value.tensor),))
    if isinstance(value, Operation):
        return Operation(value.name, tuple(with_coordinates(argument, order) for argument in value.arguments))  # type: ignore[misc]
    return value


def shown(formula: Formula | Value) -> str:
    """Return the text of a step's formula, or of a value in it, as a user writes it."""
    text = re.sub(rf"\b{INDICES}(\w+)\[\w+\]", r"\1", str(formula))
    return re.sub(rf"\b{EXTENTS}(\w+)", r"size(\1)", text)
