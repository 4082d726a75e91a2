"""The items of a statement's CUDA text, and the interface of the printer to instructions.

An instruction's `cuda(printer, statement)` returns items: lines of text, and blocks of items. An instruction declares helper functions,
such as wrappers of PTX instructions. The printer prints each of them once per kernel, in the order of first use.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol, TypeAlias

from fireiron.frozen import frozen
from fireiron.values.document import Doc, Text
from fireiron.values.expr import Expr
from fireiron.values.machine import DType

if TYPE_CHECKING:
    from fireiron.ir.access import Access, Piece
    from fireiron.ir.cluster import BlockSet
    from fireiron.ir.kernel import Kernel
    from fireiron.ir.statement import Exec, StageState


COLUMNS = 120
"""Columns of a line of text, if its parts allow it."""

Path: TypeAlias = "tuple[str, ...]"
"""A step of a decomposition tree: the names of children that lead from the root to the spec that it decomposes."""


@frozen
class Function:
    """A small `__device__` function before the kernel: `note` is the comment above it, `body` its lines. It is `inlined`, or called."""

    name: str
    parameters: tuple[str, ...]
    body: tuple[str, ...]
    note: str = ""
    template: str = ""
    result: str = "void"
    inlined: bool = True

    def text(self, name: str) -> tuple[str, ...]:
        """Its lines, under a name that is unique in the kernel."""
        note = (f"// {self.note}",) if self.note else ()
        template = (f"template <{self.template}>",) if self.template else ()
        inlining = "__forceinline__" if self.inlined else "__noinline__"
        start, parameters = f"__device__ {inlining} {self.result} {name}(", f"{', '.join(self.parameters)})"
        head = (start + parameters,) if len(start + parameters) <= COLUMNS else (start, f"    {parameters}")
        return (*note, *template, *head, "{", *(f"  {line}" for line in self.body), "}")


@frozen
class Braces:
    """Items in braces after a head such as `for (...)`; a single line needs no braces. `pragma` is printed before the head."""

    head: Text
    body: tuple[Item, ...]
    pragma: str = ""


@frozen
class If:
    """Items under a conjunction of conditions, and items for the other case. A nested `If` that is the only item is merged into it."""

    conditions: tuple[Text, ...]
    body: tuple[Item, ...]
    otherwise: tuple[Item, ...] = ()


@frozen
class Noted:
    """A line followed by a comment."""

    line: Text
    note: str


@frozen
class Remark:
    """A user's comment lines with their `//`: kept if they fit, else wrapped again by paragraph."""

    lines: tuple[str, ...]


@frozen
class WithSteps:
    """An item with the tree steps that produced it; it is printed like the item alone."""

    item: Item
    steps: tuple[Path, ...]


Item: TypeAlias = "str | Doc | Braces | If | Noted | Remark | WithSteps"
"""A line of text, or a block of items."""


@frozen
class Registers:
    """The contiguous values of one lane at an operand: `place` points to the first.

    If they are not stored contiguously, `before` copies them into an array and `after` copies written values back.
    """

    place: Text
    before: tuple[Item, ...] = ()
    after: tuple[Item, ...] = ()


@frozen
class Copy:
    """One part of an asynchronous copy: the shared-memory address, the source, and the condition under which the source is read."""

    target: Text
    source: Text
    condition: Text | None


class Printer(Protocol):
    """The services of the printer for the `cuda` method of an instruction.

    The printer makes no decisions: widths and conditions are part of the statement.
    """

    @property
    def kernel(self) -> Kernel:
        """The kernel that is printed."""
        ...

    def function(self, function: Function) -> str:
        """The name of a helper function in this kernel; it is printed once."""
        ...

    # ------------------------------------------------------------------------------------------ values

    def expression(self, value: Expr) -> str:
        """The text of an expression, in 64 bits where 32 bits could overflow."""
        ...

    def literal(self, number: float, dtype: DType) -> str:
        """A constant of an element type."""
        ...

    def converted(self, text: Text, source: DType, target: DType) -> Text:
        """A value converted to another element type."""
        ...

    def applied(self, name: str, dtype: DType, *arguments: Text) -> Text:
        """The call of a formula's function, on float32, float64 or int32 values."""
        ...

    # ------------------------------------------------------------------------------------------ operands

    def place(self, access: Access, offset: tuple[int, ...] | None = None) -> Text:
        """An element of an access (the first one) as an lvalue."""
        ...

    def pointer(self, access: Access, offset: tuple[int, ...] | None = None) -> Text:
        """A pointer to an element of an access (the first one)."""
        ...

    def element(self, statement: Exec, name: str) -> Text:
        """The only element of an operand as an lvalue; the statement's guard ensures that it is in bounds."""
        ...

    def factor(self, statement: Exec, name: str, dtype: DType) -> Text:
        """The only element of an input, converted to another type; zero where it is not read."""
        ...

    def value(self, statement: Exec, position: int, number: int, dtype: DType) -> Text:
        """Element `number` of the input at a position, converted to another type; zero where it is not read."""
        ...

    def counted(self, statement: Exec, terms: Mapping[int, tuple[int, int]], number: int, dtype: DType) -> tuple[Text, ...]:
        """A weighted sum of coordinates and a number, converted to a type, as one part or two parts to add; empty if it may be inexact.

        `terms` maps the position of an input to an element of it and its weight.
        """
        ...

    def accumulator(self, statement: Exec, text: Text, dtype: DType, nothing: float = 0) -> Text:
        """The old value of an output, or `nothing` if the statement does not accumulate."""
        ...

    def unless_adding(self, statement: Exec, items: Sequence[Item]) -> tuple[Item, ...]:
        """Items that run only if the statement does not accumulate."""
        ...

    def local(self, wanted: str) -> str:
        """A name for a local variable: the requested one, with a number if the kernel uses it for anything else."""
        ...

    def loaded(self, statement: Exec, position: int, piece: Piece, into: str) -> Item:
        """The load of a piece into an array; zero where it is not read."""
        ...

    def stored(self, statement: Exec, position: int, piece: Piece, source: str) -> Item:
        """The store of a piece from an array, where it is written."""
        ...

    def under(self, condition: Expr, item: Item) -> Item:
        """An item under a condition in addition to those of the statement."""
        ...

    def registers(self, statement: Exec, position: int) -> Registers:
        """The register values of a lane at an operand as one array, in the order in which the instruction numbers them."""
        ...

    def shared_address(self, access: Access, offset: tuple[int, ...] | None = None) -> Text:
        """The address of an element (the first one) in the shared-memory window in bytes, as inline PTX needs it."""
        ...

    def shared_address_and_step(self, access: Access) -> tuple[Text, Expr]:
        """The address of the first element at the start of unrolled loops, and the bytes that the loops add."""
        ...

    def barrier(self, ring: str, side: StageState, number: Expr) -> str:
        """The address of a ring's mbarrier for a fill, in the shared-memory window."""
        ...

    def blocks(self, *sets: BlockSet) -> str:
        """Blocks of a cluster as a mask with one bit per rank."""
        ...

    # ------------------------------------------------------------------------------------------ whole statements

    def each(self, statement: Exec, text: Callable[[Text, Text], Text]) -> list[Item]:
        """A line `text(source, target)` for each element that a statement copies between operands, where it is written."""
        ...

    def moved(self, statement: Exec, load: str = "", store: str = "") -> list[Item]:
        """A copy by one thread with loads and stores; `load` and `store` are functions for global memory, if given."""
        ...

    def copies(self, statement: Exec) -> list[Copy]:
        """The parts of an asynchronous copy."""
        ...

    def micro_kernel(self, statement: Exec, text: str) -> list[Item]:
        """A user's text in its own scope, with the names of its contract that it uses."""
        ...
