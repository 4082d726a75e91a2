"""`repack`: an operand copied, by a launch of its own, to an array that the widest accesses take: first, where its own is not one.

TMA and 16-byte copies want rows that are multiples of 16 bytes apart, which the user's array may not have. And the instruction behind may
read an operand along one of its dimensions only: stored across, threads would have to turn each tile round. A copy of a matrix
costs as much time as its bytes take, the product of two large ones far more.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import attrs

from fireiron.errors import ArgumentError, DecompositionError, FireironError, call_site
from fireiron.language.launching import Asked, Given, Launches
from fireiron.language.substrategy import chain, require_steps, steps_for
from fireiron.language.tree import Context, Decomposition, Expansion, Node, verb
from fireiron.spec import Spec
from fireiron.specs.move import Move
from fireiron.specs.operand import Operand, operand_name
from fireiron.values.expr import ONE, Expr, constant
from fireiron.values.layout import Layout, Swizzle
from fireiron.values.machine import GL, SH, Block, Kernel, Thread
from fireiron.values.tensor import ColMajor, MatrixLayout, RowMajor, Storage, Tensor, View, whole_view

if TYPE_CHECKING:
    from fireiron.language.strategy import Strategy

MULTIPLE = 16
"""Alignment in bytes of rows (columns) and address after the copy."""

RUN, ROWS = 256, 16
"""Elements side by side, one a thread, and rows (columns) of a block in the copy that is taken if none is said: each thread has as many
loads under way as there are rows."""

LINE = 128
"""Bytes of an L2 line, and of a row (column) of a transposed tile, which equals one pass over all banks."""

BANK = 4
"""Bytes of a bank of shared memory."""

THREADS, MOST_THREADS = 256, 1024
"""Threads of a block that turns a tile round: the second number where each of the first would have more rows than these."""

MOST_ROWS = 16
"""Most rows of a tile that a thread copies, one vector each: the loop over them is unrolled."""


@attrs.frozen
class Repack(Decomposition):
    """The copy of `operand` in front; see the verb `repack`.

    It is carried out by the steps `move` (none: those that suit its storage), and stored in `order` (None: as it is read behind).
    """

    verb: ClassVar[str] = "repack"
    makes_launches: ClassVar[bool] = True
    kinds: ClassVar[tuple[str, ...]] = ("MatMul", "Reduction", "AtomicAdd", "Pointwise", "Fused")
    operand: str = attrs.field(converter=operand_name)
    move: tuple[Decomposition, ...] = ()
    order: MatrixLayout | None = None

    def __attrs_post_init__(self) -> None:
        require_steps(self.move, "repack")
        if self.order is not None and (not isinstance(self.order, MatrixLayout) or self.order not in (RowMajor, ColMajor)):
            raise ArgumentError("repack: order", got=self.order, legal="RowMajor, ColMajor", at=call_site())

    @staticmethod
    def of(operand: object, move: Any, order: Any = None) -> Repack:
        """The step from the arguments of the verb."""
        return Repack(operand_name(operand), () if move is None else steps_for(move, "repack", ("Move",)), order)

    def label(self) -> str:
        return self._text(chain(self.move))

    def summary(self) -> str:
        return self._text(chain(self.move, summary=True))

    def _text(self, steps: str) -> str:
        order = f", order={self.order}" if self.order is not None else ""
        return f"repack({Operand(self.operand)}{f', Move{steps}' if self.move else ''}{order})"

    @classmethod
    def choices(cls, spec: Spec, context: Context) -> Iterator[Repack]:
        """Of a spec that nothing has decomposed yet: a launch of its own does the copy, so `expand` is refused everywhere."""
        if not spec.level.is_launch or context.path:
            return
        for name in spec.inputs:
            step = Repack(name)
            try:
                step.reason(spec, {})
            except FireironError:
                continue
            yield from (step, Repack(name, order=RowMajor), Repack(name, order=ColMajor))

    def expand(self, spec: Spec, context: Context) -> Expansion:
        raise DecompositionError(
            f"repack({self.operand}): a copy for all blocks is a launch of its own, before the first step that deals work",
            legal="first in a chain, for a spec of the whole kernel",
            within=spec,
            hint="move it to the front: MatMul.repack(A).tile(...).to(Block)",
        )

    def launches(self, spec: Spec, given: Given) -> Launches:
        """The copy, if the operand's own array does not serve."""
        tree = given.tree()
        read = {} if tree is None else read_along(given.spec, *tree)
        reason = self.reason(spec, read)
        if reason is None:
            return Launches((), spec)
        arrays = {"src": self._view(spec).tensor.name, "dst": self._copied(spec)}
        kernel = f"repack_{self.operand.lower()}"
        asked = Asked(self.operand, self.copy(spec, read), reason, self.steps(spec, read), arrays, kernel)
        return Launches((asked,), self.behind(spec, read))

    def _copied(self, spec: Spec) -> str:
        """The name of the new array."""
        return f"copy_of_{self._view(spec).tensor.name}"

    def reason(self, spec: Spec, read: Mapping[str, str]) -> str | None:
        """Why the operand is copied; None where its own array serves. `read` are dimensions as `read_along` finds them."""
        view, dims = self._view(spec), spec.uses[self.operand]
        along, wanted = _along(view), self._wanted(spec, read)
        steps = view.tensor.storage().steps
        if along is None or None in steps:
            return f"{self.operand} has no neighbours side by side"
        if along != wanted:
            who = f"{self.order} is asked for" if self.order is not None else f"the products read it along {dims[wanted]}"
            return f"{self.operand} is stored along {dims[along]}, and {who}"
        if view.tensor.align % MULTIPLE:
            return f"{self.operand} starts at a multiple of {view.tensor.align} bytes"
        for axis in reversed(range(len(dims))):
            step = steps[axis]
            if axis != along and step is not None and step.factor * view.dtype.bytes % MULTIPLE:
                what = "matrices" if axis < len(dims) - 2 else "rows" if along == len(dims) - 1 else "columns"
                return f"{self.operand} has {what} {step} elements of {view.dtype.bytes} bytes apart"
        return None

    def copy(self, spec: Spec, read: Mapping[str, str]) -> Spec:
        """The copy, from the operand's array to the new one."""
        view = self._view(spec)
        packed = _packed(view, self._wanted(spec, read))
        made: Spec = Move(*view.shape, dtype=view.dtype, src=view.tensor.layout, dst=packed)(GL, GL)(Kernel)
        source = attrs.evolve(made.src.tensor, align=view.tensor.align)
        return made.with_operands(src=whole_view(source))

    def steps(self, spec: Spec, read: Mapping[str, str]) -> tuple[Decomposition, ...]:
        """The steps of the copy."""
        view = self._view(spec)
        along, wanted = _along(view), self._wanted(spec, read)
        matrices = {len(view.shape) - 1, len(view.shape) - 2}
        return self.move or (_turned(view, along, wanted) if along is not None and {along, wanted} == matrices else _in_rows(view, wanted))

    def behind(self, spec: Spec, read: Mapping[str, str]) -> Spec:
        """The spec that is left, whose operand is the new array."""
        view = self._view(spec)
        tensor = view.tensor
        packed = _packed(view, self._wanted(spec, read))
        new = Tensor(self._copied(spec), tensor.shape, tensor.dtype, tensor.memory, packed, origin=tensor.origin)
        return spec.with_operands(**{self.operand: whole_view(new)})

    def _wanted(self, spec: Spec, read: Mapping[str, str]) -> int:
        """The dimension of the operand along which neighbours lie side by side behind the copy."""
        view = self._view(spec)
        rank = len(view.shape)
        if self.order is not None:
            return rank - (1 if self.order == RowMajor else 2)
        if self.operand in read:
            return spec.uses[self.operand].index(read[self.operand])
        along = _along(view)
        return rank - 1 if along is None else along

    def _view(self, spec: Spec) -> View:
        """The operand, if it can be copied."""
        if self.operand not in spec.inputs:
            raise DecompositionError(f"repack({self.operand}): {spec.title} reads no such operand", legal=spec.inputs, within=spec)
        view: View = spec.operands[self.operand]
        if not spec.level.is_launch or not view.memory.of_grid:
            raise DecompositionError(
                f"repack({self.operand}): {view.memory} at the level {spec.level}", legal="operands in GL, at the whole kernel", within=spec
            )
        if len(view.dims) not in (2, 3) or len(view.tensor.shape) != len(view.dims):
            raise DecompositionError(
                f"repack({self.operand}): an operand of {len(view.tensor.shape)} dimensions",
                legal="matrices, or stacks of them",
                within=spec,
            )
        return view


def read_along(spec: Spec, tree: Node, settled: Mapping[str, Storage]) -> Mapping[str, str]:
    """Operands of a spec that instructions read along another dimension than the one along which they are stored, by name: that dimension.

    `tree` is how the spec is decomposed, `settled` are storages of buffers that instructions chose. A copy to shared memory
    that goes across such a storage turns each of its tiles, which no engine does.
    """
    names = {spec.operands[name].tensor.name: name for name in spec.inputs}
    found: dict[str, str] = {}
    for node in tree.nodes():
        copy = node.spec
        if not copy.copies or copy.src.tensor.name not in names or copy.dst.tensor.name not in settled:
            continue
        name = names[copy.src.tensor.name]
        fastest = [axis for axis, digits in enumerate(settled[copy.dst.tensor.name].dims) if any(one.weight == 1 for one in digits)]
        if len(fastest) != 1 or len(copy.src.dims) != len(copy.dst.dims):
            continue
        axis = copy.src.axis(copy.dst.axes.index(fastest[0]) if copy.dst.axes else fastest[0])
        if axis != _along(spec.operands[name]):
            found[name] = spec.uses[name][axis]
    return found


def _along(view: View) -> int | None:
    """The dimension along which neighbours lie side by side; None if along none."""
    tensor = view.tensor
    if isinstance(tensor.layout, MatrixLayout):
        return tensor.layout.fastest_first(len(tensor.shape))[0]
    return next((axis for axis, step in enumerate(tensor.storage().steps) if step == ONE), None)


def _packed(view: View, along: int) -> MatrixLayout | Layout:
    """Storage with neighbours along a dimension side by side, the others row-major, every row a multiple of 128 bytes, or of 16 if shorter.

    A piece of a row that begins between two lines of L2 asks for both: a product whose tiles do takes up to a third longer.
    """
    rank, length = len(view.shape), constant(view.shape[along])
    short = length is not None and length * view.dtype.bytes < LINE
    many = (MULTIPLE if short else LINE) // view.dtype.bytes
    leading = (view.shape[along] + many - 1) // many * many
    if along == rank - 1 or rank == 2:
        return (RowMajor if along == rank - 1 else ColMajor)(ld=leading)
    steps: list[Expr] = [ONE] * rank
    weight: Expr = leading
    for axis in (one for one in reversed(range(rank)) if one != along):
        steps[axis], weight = weight, weight * view.shape[axis]
    return Layout(tuple(view.shape), tuple(steps))  # type: ignore[arg-type]


def _in_rows(view: View, along: int) -> tuple[Decomposition, ...]:
    """Neighbouring threads copy neighbours; each has its loads of several rows under way together."""
    across = len(view.shape) - 1 if along != len(view.shape) - 1 else along - 1
    tile, rows = [1] * len(view.shape), [1] * len(view.shape)
    tile[along], tile[across] = RUN, ROWS
    rows[across] = ROWS
    return Move.tile(*tile).to(Block).tile(*rows).to(Thread).tile(*([1] * len(tile))).unroll().done().steps


def _turned(view: View, along: int, wanted: int) -> tuple[Decomposition, ...]:
    """Square tiles turned round in shared memory: read along one dimension, written along the other, 16 bytes a time where rows allow it.

    The tile is stored as it is read. Whoever writes gathers elements across its rows: pieces of 16 bytes are swizzled by the number of
    the vector to which a row belongs, so that the lanes of a warp find theirs in different banks. Where rows of the result have no
    whole vectors, neighbouring lanes read neighbouring rows, and a bank of padding sets these apart.
    """
    element = view.dtype.bytes
    vector, side = MULTIPLE // element, LINE // element
    read, written = math.gcd(vector, *_factors(view, along)), math.gcd(vector, view.shape[wanted].factor)
    most = side * side // min(read, written)
    threads = min(THREADS if most <= THREADS * MOST_ROWS else MOST_THREADS, side * side // vector)
    first = along < wanted
    load = Move.tile(*_tile(view, side)).to(Block).load(Move.src, SH, _dealt(Move, side, read, threads, first))
    stored = load.storage_layout(ColMajor if first else RowMajor)
    bits = vector.bit_length() - 1
    apart = stored.swizzle_storage(Swizzle(3, bits, bits + 3)) if 2 * written >= vector else stored.pad(max(BANK // element, 1))
    steps: tuple[Decomposition, ...] = _dealt(apart, side, written, threads, not first).steps
    return steps


def _tile(view: View, side: int) -> tuple[int, ...]:
    """The sizes of a square tile of a matrix, or of one of a stack."""
    return (*(1,) * (len(view.shape) - 2), side, side)


def _dealt(start: Any, side: int, vector: int, threads: int, first: bool) -> Any:
    """A copy of a square tile by vectors along its first or second dimension: neighbouring threads have neighbours, each some rows."""
    rows = side * side // vector // threads or 1
    sizes, one = ((vector, rows), (vector, 1)) if first else ((rows, vector), (1, vector))
    return start.tile(*sizes).to(Thread).layout(ColMajor if first else RowMajor).tile(*one).unroll().done()


def _factors(view: View, along: int) -> tuple[int, ...]:
    """Elements of which rows begin and end at multiples."""
    steps = (step.factor for axis, step in enumerate(view.tensor.storage().steps) if axis != along and step is not None)
    return max(view.tensor.align // view.dtype.bytes, 1), view.shape[along].factor, *steps


@verb()
def repack(operand: Operand | str, move: Strategy | None = None, *, order: MatrixLayout | None = None) -> Repack:
    """Copy an input operand first, by a launch of its own, to an array that the steps behind can read by the widest accesses, if they
    cannot read its own so.

    That is where rows are no multiples of 16 bytes apart, and where an instruction reads the operand along another dimension than
    the one along which it is stored: those of warpgroups read elements that have not 16 bits along k only.
    Args: the operand; a strategy for the `Move` (none: neighbouring threads copy neighbours, or turn tiles round in shared memory);
    the storage order of the new array (none: as it is read behind, else that of the operand; row-major, if it has none). The new
    array belongs to the launcher, which allocates it for the call, or once for a prepared launch.
    Legal first in a chain, for matrices in GL and stacks of them; nothing happens where the operand serves as it is.
    rewrite: MatMul(..)(A) --> Move(A -> A'); MatMul(..)(A')

    >>> from fireiron import *
    >>> mm = MatMul(64, 64, 33, A=RowMajor)(GL, GL, GL)(Kernel).repack(A).tile(64, 64).to(Block)
    >>> print(mm.program().launches[0].program.spec.notation, mm.result.A.tensor.layout)
    Move(64,33)(GL,GL)(Kernel) RowMajor(ld=64)

    Source: decision 32.
    """
    return Repack.of(operand, move, order)


EXAMPLES = (Repack("A"),)
"""Any of the kind, which cannot be made without arguments."""

__all__ = ["Repack"]
