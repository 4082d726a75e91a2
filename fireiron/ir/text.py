"""What the CUDA of a statement is made of, and what an instruction may ask of the printer.

An instruction's `cuda(printer, statement)` returns items: lines, each a text, and blocks of them. Helper functions, such as those
that wrap a line of PTX, are declared by the instruction and printed once per kernel, in the order of their first use.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol, TypeAlias

import attrs

from fireiron.values.document import Doc, Text
from fireiron.values.expr import Expr
from fireiron.values.machine import DType

if TYPE_CHECKING:
    from fireiron.ir.access import Access, Piece
    from fireiron.ir.cluster import BlockSet
    from fireiron.ir.kernel import Kernel
    from fireiron.ir.statement import Exec, StageState


COLUMNS = 120
"""Columns of a line of text, if its parts allow."""

Path: TypeAlias = "tuple[str, ...]"
"""A step of a decomposition tree: the names of children that lead from the root to the spec that it decomposes."""


@attrs.frozen
class Function:
    """A small `__device__` function in front of the kernel: `note` is the comment above it, `body` its lines."""

    name: str
    parameters: tuple[str, ...]
    body: tuple[str, ...]
    note: str = ""
    template: str = ""
    result: str = "void"

    def text(self, name: str) -> tuple[str, ...]:
        """Its lines, under a name that nothing else in the kernel has."""
        note = (f"// {self.note}",) if self.note else ()
        template = (f"template <{self.template}>",) if self.template else ()
        start, parameters = f"__device__ __forceinline__ {self.result} {name}(", f"{', '.join(self.parameters)})"
        head = (start + parameters,) if len(start + parameters) <= COLUMNS else (start, f"    {parameters}")
        return (*note, *template, *head, "{", *(f"  {line}" for line in self.body), "}")


@attrs.frozen
class Braces:
    """Items in braces behind a head such as `for (...)`; a single line needs no braces. `pragma` stands in front of it."""

    head: Text
    body: tuple[Item, ...]
    pragma: str = ""


@attrs.frozen
class If:
    """Items under conditions that must all hold, and others for where they do not; one that has only another inside is printed as one."""

    conditions: tuple[Text, ...]
    body: tuple[Item, ...]
    otherwise: tuple[Item, ...] = ()


@attrs.frozen
class Noted:
    """A line with a comment behind it."""

    line: Text
    note: str


@attrs.frozen
class Remark:
    """Comment lines that somebody wrote, with their `//`: kept as they are where they fit, else filled anew, paragraph by paragraph."""

    lines: tuple[str, ...]


@attrs.frozen
class Made:
    """An item that some steps of the tree made; it is printed as if it stood alone."""

    item: Item
    steps: tuple[Path, ...]


Item: TypeAlias = "str | Doc | Braces | If | Noted | Remark | Made"
"""A line of text, or a block of items."""


@attrs.frozen
class Registers:
    """The values of one lane at an operand, side by side: `place` points to the first.

    Where they are kept apart, `before` gathers them into an array of their own, and `after` brings back what was written there.
    """

    place: Text
    before: tuple[Item, ...] = ()
    after: tuple[Item, ...] = ()


@attrs.frozen
class Copy:
    """One load and store of an asynchronous copy: the address in the window of shared memory, the source, and when it is read."""

    target: Text
    source: Text
    condition: Text | None


class Printer(Protocol):
    """What an instruction may ask while its text is made. The printer decides nothing: widths and conditions stand in the statement."""

    @property
    def kernel(self) -> Kernel:
        """The kernel that is printed."""
        ...

    def function(self, function: Function) -> str:
        """The name under which a helper function is called here; it is printed once per kernel."""
        ...

    # ------------------------------------------------------------------------------------------ values

    def expression(self, value: Expr) -> str:
        """The text of an expression, in 64 bits where 32 could overflow."""
        ...

    def literal(self, number: float, dtype: DType) -> str:
        """A constant of an element type."""
        ...

    def converted(self, text: Text, source: DType, target: DType) -> Text:
        """A value converted to another element type."""
        ...

    def applied(self, name: str, dtype: DType, *arguments: Text) -> Text:
        """A function of a formula on values of float32, float64 or int32."""
        ...

    # ------------------------------------------------------------------------------------------ operands

    def place(self, access: Access, offset: tuple[int, ...] | None = None) -> Text:
        """An element of an access (the first one) as an lvalue."""
        ...

    def pointer(self, access: Access, offset: tuple[int, ...] | None = None) -> Text:
        """A pointer to an element of an access (the first one)."""
        ...

    def element(self, statement: Exec, name: str) -> Text:
        """The only element of an operand as an lvalue; the statement's guard says that it is there."""
        ...

    def factor(self, statement: Exec, name: str, dtype: DType) -> Text:
        """The only element of an input in another type, zero where it is not read."""
        ...

    def value(self, statement: Exec, position: int, number: int, dtype: DType) -> Text:
        """Element `number` of the input at a position in another type, zero where it is not read."""
        ...

    def counted(self, statement: Exec, terms: Mapping[int, tuple[int, int]], number: int, dtype: DType) -> tuple[Text, ...]:
        """A sum of coordinates and a number in a type, in one part or two that are added; nothing where it may not be exact.

        By the position of an input: which of its elements, and how often it counts.
        """
        ...

    def accumulator(self, statement: Exec, text: Text, dtype: DType, nothing: float = 0) -> Text:
        """The old value of an output, or `nothing` where the statement does not accumulate."""
        ...

    def unless_adding(self, statement: Exec, items: Sequence[Item]) -> tuple[Item, ...]:
        """Items for where the old value of an output does not count."""
        ...

    def local(self, wanted: str) -> str:
        """A name for what lives in a scope of its own: the wanted one, with a number where it means something else in the kernel."""
        ...

    def loaded(self, statement: Exec, position: int, piece: Piece, into: str) -> Item:
        """The load of a piece to an array from an element on, zero where it is not read."""
        ...

    def stored(self, statement: Exec, position: int, piece: Piece, source: str) -> Item:
        """The store of a piece from an array from an element on, where it is written."""
        ...

    def under(self, condition: Expr, item: Item) -> Item:
        """An item under a condition beside those of the statement."""
        ...

    def registers(self, statement: Exec, position: int) -> Registers:
        """The values of a lane at an operand in registers, as one array, in the order in which the instruction numbers them."""
        ...

    def shared_address(self, access: Access, offset: tuple[int, ...] | None = None) -> Text:
        """The address of an element (the first one) in the window of shared memory, in bytes: what inline PTX takes."""
        ...

    def shared_address_and_step(self, access: Access) -> tuple[Text, Expr]:
        """The address of the first element where unrolled loops begin, and the bytes that they add to it."""
        ...

    def barrier(self, ring: str, side: StageState, number: Expr) -> str:
        """The address of a ring's barrier for a turn, in the window of shared memory."""
        ...

    def blocks(self, *several: BlockSet) -> str:
        """Blocks of a cluster as a mask, a bit for each rank."""
        ...

    # ------------------------------------------------------------------------------------------ whole statements

    def each(self, statement: Exec, text: Callable[[Text, Text], Text]) -> list[Item]:
        """A line `text(source, target)` for each element of a statement from one operand to another, where it is written."""
        ...

    def moved(self, statement: Exec, load: str = "", store: str = "") -> list[Item]:
        """A copy of one thread by loads and stores; those of global memory by functions, where they are given."""
        ...

    def copies(self, statement: Exec) -> list[Copy]:
        """The parts of an asynchronous copy."""
        ...

    def micro_kernel(self, statement: Exec, text: str) -> list[Item]:
        """A user's text in a scope of its own, with those names of its contract that it uses."""
        ...
