"""`repack`: a preceding launch copies an operand to an array with the required alignment and order, if its own array lacks them.

TMA and 16-byte copies require a row stride that is a multiple of 16 bytes, which the user's array may not have. An instruction may
also require that an operand is contiguous along a given dimension; otherwise threads would have to transpose each tile. The copy takes a
time proportional to the bytes of the matrix, which is short compared with a large matmul.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import attrs

from fireiron.errors import ArgumentError, DecompositionError, FireironError, call_site
from fireiron.frozen import frozen
from fireiron.language.launching import Given, Launches, LaunchRequest
from fireiron.language.substrategy import chain, require_steps, steps_for
from fireiron.language.tree import Context, Decomposition, Expansion, Node, verb
from fireiron.spec import Spec
from fireiron.specs.move import Move
from fireiron.specs.operand import Operand, operand_name
from fireiron.values.affine import AffineIndex
from fireiron.values.expr import ONE, Expr, constant
from fireiron.values.indirect import DimIndex
from fireiron.values.layout import Layout, Swizzle
from fireiron.values.machine import GL, SH, Block, Kernel, Thread
from fireiron.values.tensor import ColMajor, MatrixLayout, RowMajor, Storage, Tensor, View, indirect, whole_view

if TYPE_CHECKING:
    from fireiron.language.strategy import Strategy

MULTIPLE = 16
"""Alignment in bytes of the rows (columns) and the start of the copy."""

RUN, ROWS = 256, 16
"""Elements along a row, one per thread, and rows (columns) per block in the default copy. A thread has one load in flight per row."""

LINE = 128
"""Bytes of an L2 line, and of a row (column) of a transposed tile, which maps to each bank once."""

BANK = 4
"""Bytes per bank of shared memory."""

THREADS, MOST_THREADS = 256, 1024
"""Threads of a block that transposes a tile: the first number, or the second if a thread would copy more than `MOST_ROWS` vectors."""

MOST_ROWS = 16
"""Maximum number of vectors of a tile that a thread copies, in an unrolled loop."""


@frozen
class Repack(Decomposition):
    """Copy `operand` by a preceding launch; see the verb `repack`.

    `move` are the steps of the copy; if it is empty, the storage determines them. `order` is the order of the new array; None for the order
    in which the operand is read.
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
            raise ArgumentError("repack: order must be a matrix layout", got=self.order, legal="RowMajor, ColMajor", at=call_site())

    @staticmethod
    def of(operand: object, move: Any, order: Any = None) -> Repack:
        """Return the step for the arguments of the verb."""
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
        """Yield repacks of a spec that is not decomposed yet. A separate launch performs the copy, so `expand` always raises an error."""
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
            f"repack({self.operand}): the copy is a separate launch, before the first step that distributes work",
            legal="first in a chain, for a spec of the whole kernel",
            within=spec,
            hint="put it first: MatMul.repack(A).tile(...).to(Block)",
        )

    def launches(self, spec: Spec, given: Given) -> Launches:
        """Return the launch of the copy; no launch if the operand's own array meets the requirements, or other GPUs store parts of it."""
        if self.operand in spec.inputs and spec.operands[self.operand].tensor.array.portion is not None:
            return Launches((), spec)
        tree = given.tree()
        read = {} if tree is None else read_along(given.spec, *tree)
        reason = self.reason(spec, read)
        if reason is None:
            return Launches((), spec)
        arrays = {"src": self._view(spec).tensor.name, "dst": self._copied(spec)}
        kernel = f"repack_{self.operand.lower()}"
        copy_launch = LaunchRequest(self.operand, self.copy(spec, read), reason, self.steps(spec, read), arrays, kernel)
        return Launches((copy_launch,), self.after_copy(spec, read))

    def _copied(self, spec: Spec) -> str:
        """The name of the new array."""
        return f"copy_of_{self._view(spec).tensor.name}"

    def reason(self, spec: Spec, read: Mapping[str, str]) -> str | None:
        """Return the reason for the copy; None if the operand need not be copied. `read` is the result of `read_along`."""
        view, dims = self._view(spec), self._dims(spec)
        along, target_axis = _along(view), self._target_dimension(spec, read)
        steps = view.tensor.storage().steps
        if along is None or None in steps:
            return f"{self.operand} is contiguous along no dimension"
        if along != target_axis:
            why = f"{self.order} is requested" if self.order is not None else f"the MMAs read it along {dims[target_axis]}"
            return f"{self.operand} is contiguous along {dims[along]}, and {why}"
        if view.tensor.align % MULTIPLE:
            return f"{self.operand} is aligned to {view.tensor.align} bytes"
        for axis in reversed(range(len(dims))):
            step = steps[axis]
            if axis != along and step is not None and step.factor * view.dtype.bytes % MULTIPLE:
                what = "matrix" if axis < len(dims) - 2 else "row" if along == len(dims) - 1 else "column"
                return f"the {what} stride of {self.operand} is {step} elements of {view.dtype.bytes} bytes"
        return None

    def copy(self, spec: Spec, read: Mapping[str, str]) -> Spec:
        """The spec of the copy, from the operand's array to the new one."""
        view = self._view(spec)
        packed = _packed(view, self._target_dimension(spec, read))
        copy: Spec = Move(*view.shape, dtype=view.dtype, src=view.tensor.order, dst=packed)(GL, GL)(Kernel)
        source = attrs.evolve(copy.src.tensor, align=view.tensor.align)
        return copy.with_operands(src=whole_view(source))

    def steps(self, spec: Spec, read: Mapping[str, str]) -> tuple[Decomposition, ...]:
        """The steps of the copy."""
        view = self._view(spec)
        along, target_axis = _along(view), self._target_dimension(spec, read)
        matrices = {len(view.shape) - 1, len(view.shape) - 2}
        return self.move or (
            _transposing(view, along, target_axis)
            if along is not None and {along, target_axis} == matrices
            else _by_rows(view, target_axis)
        )

    def after_copy(self, spec: Spec, read: Mapping[str, str]) -> Spec:
        """The remaining spec, which reads the new array."""
        view = self._view(spec)
        tensor = view.tensor
        packed = _packed(view, self._target_dimension(spec, read))
        new = Tensor(self._copied(spec), tensor.shape, tensor.dtype, tensor.memory, packed, origin=tensor.origin)
        operand = spec.operands[self.operand].tensor
        if operand.through is not None:
            new = indirect(new, operand.shape, operand.through.index, operand.through.outside)
        return spec.with_operands(**{self.operand: whole_view(new)})

    def _target_dimension(self, spec: Spec, read: Mapping[str, str]) -> int:
        """The dimension along which the new array is contiguous."""
        view = self._view(spec)
        rank = len(view.shape)
        if self.order is not None:
            return rank - (1 if self.order == RowMajor else 2)
        if self.operand in read:
            return self._dims(spec).index(read[self.operand])
        along = _along(view)
        return rank - 1 if along is None else along

    def _inner(self, spec: Spec) -> list[list[int]]:
        """Return, for each dimension of the operand's array, the dimensions whose coordinates are in its index with the factor 1."""
        through = spec.operands[self.operand].tensor.through
        assert through is not None
        return [
            [dim for dim, factor in index.terms if factor == 1]
            if isinstance(index, AffineIndex)
            else [index.dim]
            if isinstance(index, DimIndex)
            else []
            for index in through.index
        ]

    def _dims(self, spec: Spec) -> tuple[str, ...]:
        """Return the dimensions along which the operand's array is read."""
        dims = spec.uses[self.operand]
        return dims if spec.operands[self.operand].tensor.through is None else tuple(dims[inner[0]] for inner in self._inner(spec))

    def _view(self, spec: Spec) -> View:
        """Return the operand, or its array if its indices are affine. Refuse an operand that cannot be copied."""
        if self.operand not in spec.inputs:
            raise DecompositionError(f"repack({self.operand}): {spec.title} reads no such operand", legal=spec.inputs, within=spec)
        view: View = spec.operands[self.operand]
        through = view.tensor.through
        if not spec.level.is_launch or not view.memory.of_grid:
            raise DecompositionError(
                f"repack({self.operand}): the operand is in {view.memory}, and the spec at the level {spec.level}",
                legal="operands in GL, at the whole kernel",
                within=spec,
            )
        if through is not None and (view.tensor.by_digits or through.tables or any(len(dims) != 1 for dims in self._inner(spec))):
            raise DecompositionError(
                f"repack({self.operand}): its indices are digits or elements of arrays", legal="operands with plain dimensions", within=spec
            )
        view = view if through is None else whole_view(through.array)
        if len(view.dims) not in (2, 3) or len(view.tensor.shape) != len(view.dims):
            raise DecompositionError(
                f"repack({self.operand}): the operand has {len(view.tensor.shape)} dimensions",
                legal="matrices, or batches of them",
                within=spec,
            )
        return view


def read_along(spec: Spec, tree: Node, chosen_storage: Mapping[str, Storage]) -> Mapping[str, str]:
    """Return the operands that instructions read along a dimension that is not contiguous, with that dimension.

    `tree` is the decomposition of the spec, `chosen_storage` the storage of buffers that instructions chose. A copy of such an operand to
    shared memory must transpose each tile, which no bulk copy can do.
    """
    names = {spec.operands[name].tensor.name: name for name in spec.inputs}
    transposed: dict[str, str] = {}
    for node in tree.nodes():
        copy = node.spec
        if not copy.copies or copy.src.tensor.name not in names or copy.dst.tensor.name not in chosen_storage:
            continue
        operand = names[copy.src.tensor.name]
        fastest = [
            axis for axis, digits in enumerate(chosen_storage[copy.dst.tensor.name].dims) if any(digit.weight == 1 for digit in digits)
        ]
        if len(fastest) != 1 or len(copy.src.dims) != len(copy.dst.dims):
            continue
        axis = copy.src.axis(copy.dst.axes.index(fastest[0]) if copy.dst.axes else fastest[0])
        if axis != _along(spec.operands[operand]):
            transposed[operand] = spec.uses[operand][axis]
    return transposed


def _along(view: View) -> int | None:
    """The contiguous dimension; None if there is none."""
    tensor = view.tensor
    if tensor.through is None and isinstance(tensor.layout, MatrixLayout):
        return tensor.layout.fastest_first(len(tensor.shape))[0]
    return next((axis for axis, step in enumerate(tensor.storage().steps) if step == ONE), None)


def _packed(view: View, along: int) -> MatrixLayout | Layout:
    """Return storage that is contiguous along one dimension, and row-major in the others.

    Each row is padded to a multiple of 128 bytes, or of 16 bytes if it is shorter than 128. Without this padding, pieces of rows cross L2
    lines and need both lines, and a matmul takes up to a third longer.
    """
    rank, length = len(view.shape), constant(view.shape[along])
    short = length is not None and length * view.dtype.bytes < LINE
    many = (MULTIPLE if short else LINE) // view.dtype.bytes
    leading = (view.shape[along] + many - 1) // many * many
    if along == rank - 1 or rank == 2:
        return (RowMajor if along == rank - 1 else ColMajor)(ld=leading)
    steps: list[Expr] = [ONE] * rank
    weight: Expr = leading
    for axis in (other for other in reversed(range(rank)) if other != along):
        steps[axis], weight = weight, weight * view.shape[axis]
    return Layout(tuple(view.shape), tuple(steps))  # type: ignore[arg-type]


def _by_rows(view: View, along: int) -> tuple[Decomposition, ...]:
    """Return a copy in which adjacent threads copy adjacent elements, and each thread has loads of several rows in flight."""
    across = len(view.shape) - 1 if along != len(view.shape) - 1 else along - 1
    tile, rows = [1] * len(view.shape), [1] * len(view.shape)
    tile[along], tile[across] = RUN, ROWS
    rows[across] = ROWS
    return Move.tile(*tile).to(Block).tile(*rows).to(Thread).tile(*([1] * len(tile))).unroll().done().steps


def _transposing(view: View, along: int, target_axis: int) -> tuple[Decomposition, ...]:
    """Return a copy that transposes square tiles in shared memory, in vectors of 16 bytes if the rows consist of whole vectors.

    A tile is stored in the order in which it is read from global memory. The threads that write the result gather elements across its rows.
    Pieces of 16 bytes are swizzled by the number of the vector to which a row belongs, so that the lanes of a warp access different banks.
    If the rows of the result do not consist of whole vectors, adjacent lanes read adjacent rows, and a padding of one bank separates these.
    """
    element = view.dtype.bytes
    vector, side = MULTIPLE // element, LINE // element
    read, written = math.gcd(vector, *_factors(view, along)), math.gcd(vector, view.shape[target_axis].factor)
    most = side * side // min(read, written)
    threads = min(THREADS if most <= THREADS * MOST_ROWS else MOST_THREADS, side * side // vector)
    first = along < target_axis
    load = Move.tile(*_tile(view, side)).to(Block).load(Move.src, SH, _distributed(Move, side, read, threads, first))
    stored = load.storage_layout(ColMajor if first else RowMajor)
    bits = vector.bit_length() - 1
    conflict_free = stored.swizzle_storage(Swizzle(3, bits, bits + 3)) if 2 * written >= vector else stored.pad(max(BANK // element, 1))
    steps: tuple[Decomposition, ...] = _distributed(conflict_free, side, written, threads, not first).steps
    return steps


def _tile(view: View, side: int) -> tuple[int, ...]:
    """Return the sizes of a square tile of a matrix, or of one matrix of a batch."""
    return (*(1,) * (len(view.shape) - 2), side, side)


def _distributed(start: Any, side: int, vector: int, threads: int, first: bool) -> Any:
    """Distribute a square tile over threads by vectors along its first or second dimension; adjacent threads copy adjacent vectors."""
    rows = side * side // vector // threads or 1
    sizes, step = ((vector, rows), (vector, 1)) if first else ((rows, vector), (1, vector))
    return start.tile(*sizes).to(Thread).layout(ColMajor if first else RowMajor).tile(*step).unroll().done()


def _factors(view: View, along: int) -> tuple[int, ...]:
    """Numbers of elements that divide the offsets of row starts and row ends."""
    steps = (step.factor for axis, step in enumerate(view.tensor.storage().steps) if axis != along and step is not None)
    return max(view.tensor.align // view.dtype.bytes, 1), view.shape[along].factor, *steps


@verb()
def repack(operand: Operand | str, move: Strategy | None = None, *, order: MatrixLayout | None = None) -> Repack:
    """Copy an input operand to an array that TMA and 16-byte copies can read, by a preceding launch, if they cannot read its own array.

    The copy is necessary if the row stride is not a multiple of 16 bytes, or if an instruction reads the operand along a dimension that is
    not contiguous: wgmma reads elements of sizes other than 16 bits along k only.
    Args: operand: an input. move: a strategy for the `Move` (None: adjacent threads copy adjacent elements, or tiles are transposed in
    shared memory). order: the storage order of the new array (None: the order in which MMAs read it, or that of the operand, or row-major).
    The launcher allocates the new array for each call, or once for a prepared launch.
    Legal first in a chain, for matrices in GL and batches of them. It has no effect if the operand's array meets the requirements.
    rewrite: MatMul(..)(A) --> Move(A -> A'); MatMul(..)(A')

    >>> from fireiron import *
    >>> mm = MatMul(64, 64, 33, A=RowMajor)(GL, GL, GL)(Kernel).repack(A).tile(64, 64).to(Block)
    >>> print(mm.program().launches[0].program.spec.notation, mm.result.A.tensor.layout)
    Move(64,33)(GL,GL)(Kernel) RowMajor(ld=64)

    Source: decision 32.
    """
    return Repack.of(operand, move, order)


EXAMPLES = (Repack("A"),)
"""Examples of the class, which has no default arguments."""

__all__ = ["Repack"]
