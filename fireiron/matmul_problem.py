"""Convert the arrays of a call of `fireiron.matmul` to the specs of the matmul and of the transposed matmul."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

import attrs

from fireiron.batched_matmul import MATRICES, BatchViews, batch_views
from fireiron.batches import result_shape
from fireiron.copies import LIBRARIES, is_matrix_readable, library
from fireiron.errors import ArgumentError
from fireiron.front.arrays import ALIGNMENT, MOST_ALIGNED, TYPES, Given, Operand, operand_of, operands_of, refuse_places
from fireiron.front.call import Request
from fireiron.front.place import Place, fits
from fireiron.frozen import frozen
from fireiron.spec import Spec, default_result
from fireiron.specs.matmul import MatMul
from fireiron.values.expr import constant
from fireiron.values.machine import DTYPES, GL, WARPGROUP_ARCHITECTURE, DType, Kernel, as_dtype, float32, float64, int64, uint8
from fireiron.values.strides import StorageOrder, Strides
from fireiron.values.tensor import ColMajor, MatrixLayout, RowMajor

if TYPE_CHECKING:
    from fireiron.compiler import Program

MULTIPLIED: Final = [name for name, dtype in TYPES.items() if dtype not in (uint8, int64)]
"""Supported element types of operands and results, by NumPy's names."""

Dtypes = tuple[Any, Any]
"""The requested types of the result and of the operands; None for those of the arrays."""


@frozen
class Problem:
    """A spec for the arrays, or for the transposed matmul of the same arrays, and the arrays by operand."""

    spec: Spec
    transposed: bool
    operands: Given = attrs.field(eq=False)

    @property
    def result_order(self) -> str:
        """The storage order of C: "row" or "col"."""
        layout = self.spec.operands["C"].tensor.layout
        return layout.order if isinstance(layout, MatrixLayout) else ""

    @property
    def aligned(self) -> dict[str, int]:
        """The alignment in bytes by operand; a new result is always aligned."""
        return {name: self.operands[name].align if name in self.operands else MOST_ALIGNED for name in self.spec.operands}

    def served(self, program: Program) -> bool:
        """Return whether the arrays have the alignment that a program requires."""
        return fits(self.aligned, program)

    def predicted(self, program: Program) -> bool:
        """Return whether tunable values of another problem apply: they do not if its copies use TMA and those of this problem cannot."""
        return self.served(program) and (program.strategy.target != WARPGROUP_ARCHITECTURE or bool(program.sequential.rings))


@frozen
class CacheKey:
    """The key of a kernel: the matmul and the transposed one, the alignment of operands in bytes, and the place where it runs."""

    problems: tuple[Problem, ...]
    aligned: tuple[int, ...]
    place: Place

    @property
    def disk_key(self) -> tuple[Any, ...]:
        """The part of the key without target and GPU, for choices on disk."""
        return tuple((problem.spec, problem.transposed) for problem in self.problems), self.aligned, self.place.require_record


def key_and_views(request: Request, flatten: bool = True) -> tuple[CacheKey, BatchViews]:
    """Return the key of the kernel for a request, and the views of the arrays."""
    (a, b, *_), out, options, arch, require_record, _ = request
    given = operands_of({"a": a, "b": b, "out": out})
    check(given)
    views = batch_views(given["a"].places, given["b"].places, given["out"].places if out is not None else None, flatten)
    by_operand = zip(given.items(), (views.a, views.b, views.c), strict=False)
    given = {name: operand.at(view.shape_and_strides(*operand.places)) for (name, operand), view in by_operand}
    arrays = [array for array in (a, b, out) if array is not None]
    problems = _problems(given, options.dtypes, have_views(arrays), views)
    return CacheKey(tuple(problems), tuple(problems[0].aligned.values()), Place.of(given["a"].device, arch, require_record)), views


def have_views(arrays: Iterable[Any]) -> bool:
    """Return whether `array.T` is a view on a GPU in the library of these arrays, so that a new result can have either storage order.

    In the simulator, the storage of the result has no effect on the time.
    """
    return set(map(library, arrays)) in ({"torch"}, {"cupy"})


def _problems(given: Given, dtypes: Dtypes, has_views: bool, views: BatchViews) -> list[Problem]:
    """Return the matmul, and the transposed one C.T = B.T A.T, which accesses the same memory; the preferred one first.

    Kernels without tensor cores store column-major results, so they compute the transposed matmul for a row-major result. Batches are never
    transposed.
    """
    plain = Problem(spec_of(given, dtypes, RowMajor, views), False, dict(zip("ABC", given.values(), strict=False)))
    if not has_views or views.signature:
        return [plain]
    swapped = {name: given[other].transposed for name, other in (("a", "b"), ("b", "a"), ("out", "out")) if other in given}
    transposed = Problem(spec_of(swapped, dtypes, ColMajor, views), True, dict(zip("ABC", swapped.values(), strict=False)))
    on_plain_units = plain.spec.operands["A"].dtype in (float32, float64)
    by_rows = plain.result_order == RowMajor.order
    return [transposed, plain] if on_plain_units and by_rows else [plain, transposed]


def spec_of(given: Given, dtypes: Dtypes, result_order: MatrixLayout, views: BatchViews = MATRICES) -> Spec:
    """Return the spec of a matmul for the storage of the arrays."""
    a, b, out = given["a"], given["b"], given.get("out")
    kind = multiplied(a, dtypes)
    dims = views.dims
    sizes = {dim: size for operand, names in zip((a, b), dims, strict=False) for dim, size in zip(names, operand.shape, strict=True)}
    layouts = {name: storage(operand, name, names) for (name, operand), names in zip(given.items(), dims, strict=False)}
    orders: dict[str, Any] = {"A": layouts["a"], "B": layouts["b"], "C": layouts.get("out", result_order)}
    options = {"dtype": kind, "c_dtype": result(kind, out, dtypes), "signature": views.signature, **orders}
    spec: Spec = MatMul(*(sizes[dim] for dim in (*dims[2], "k")), **options)(GL, GL, GL)(Kernel)
    return loosened(spec, dict(zip("ABC", given.values(), strict=False)))


def loosened(spec: Spec, operands: Given) -> Spec:
    """Return the spec with the alignments of the arrays that are less than the default."""
    loose = {name: operand.align for name, operand in operands.items() if name in spec.operands and operand.align < ALIGNMENT}
    operand_views = {name: spec.operands[name] for name in loose}
    return spec.with_operands(
        **{name: attrs.evolve(view, tensor=attrs.evolve(view.tensor, align=loose[name])) for name, view in operand_views.items()}
    )


# ---------------------------------------------------------------------------------------------- storage of arrays


def have_other_ranks(a: Any, b: Any) -> bool:
    """Return whether an operand is neither a matrix nor a batch."""
    shapes = (getattr(array, "shape", None) for array in (a, b))
    return not all(2 <= len(shape) <= 3 for shape in shapes if isinstance(shape, tuple))  # a later check refuses arguments without a shape


def needs_copy(array: Any) -> bool:
    """Return whether an array must be copied: its matrices are neither row-major nor column-major, and its library can copy it."""
    if library(array) not in LIBRARIES or not isinstance(getattr(array, "shape", None), tuple):
        return False
    return not is_matrix_readable(*operand_of(array, "an array").places)


def order_of(shape: tuple[int, ...], steps: tuple[int, ...]) -> MatrixLayout | None:
    """Return row- or column-major with a leading dimension by the strides of a matrix; None if it is neither."""
    (rows, columns), (down, along) = shape, steps
    for order, inner, outer, step, leading in ((RowMajor, columns, rows, along, down), (ColMajor, rows, columns, down, along)):
        if (inner == 1 or step == 1) and (outer == 1 or leading >= inner):
            return order if outer == 1 or leading == inner else order(ld=leading)
    return None


def layout(operand: Operand, name: str) -> MatrixLayout:
    """Return row- or column-major with a leading dimension by the strides; strides along a dimension of one element are ignored."""
    order = order_of(operand.shape, operand.steps)
    if order is not None:
        return order
    what = "repeats elements (broadcast)" if 0 in operand.steps else "is neither row-major nor column-major"
    raise ArgumentError(
        f"{name} {what}: strides of {operand.steps} elements for the shape {operand.shape}",
        legal="row-major or column-major, with any leading dimension",
        hint=f"pass a copy: {name}.copy(), {name}.contiguous()",
    )


def storage(operand: Operand, name: str, dims: str) -> StorageOrder:
    """Return the storage of a matrix or of a batch, with any stride between matrices; `dims` are its dimensions."""
    if len(dims) == 2:
        return layout(operand, name)
    (batch, rows, columns), (apart, *inside) = operand.shape, operand.steps
    matrix = layout(operand.at(((rows, columns), tuple(inside))), name)
    by_rows = matrix.order == RowMajor.order
    leading = constant(matrix.leading) if matrix.leading is not None else columns if by_rows else rows
    assert leading is not None
    if by_rows and (batch == 1 or apart == rows * leading):
        return matrix
    return Strides(**dict(zip(dims, (apart, *((leading, 1) if by_rows else (1, leading))), strict=True)))


# ---------------------------------------------------------------------------------------------- types and shapes


def check(given: Given) -> None:
    """Refuse anything but matrices or batches of one type on one device with compatible shapes."""
    for name, operand in given.items():
        rank = len(operand.shape)
        if rank not in (2, 3):
            hint = f"{name}.reshape(-1, {operand.shape[-2]}, {operand.shape[-1]}), one batch of all matrices" if rank > 3 else None
            asked = f"{name} has {rank} dimensions; with an epilogue, and for JAX arrays, matmul requires matrices or batches"
            raise ArgumentError(asked, got=operand.shape, legal="2 or 3", hint=hint)
    check_types(given)
    check_result(given, result_shape(given["a"].shape, given["b"].shape))


def check_result(given: Given, shape: tuple[int, ...]) -> None:
    """Refuse an `out` with a shape other than that of the result."""
    if "out" in given and given["out"].shape != shape:
        raise ArgumentError(f"out has the shape {given['out'].shape}, but the result has the shape {shape}")


def check_types(given: Given) -> None:
    """Refuse unsupported types, two different types, and arrays on different devices."""
    for name, operand in given.items():
        _check_multiplied(name, operand.dtype)
    multiplied_type(given["a"].dtype, given["b"].dtype)
    refuse_places(given, "", "all on one GPU, or all NumPy for the simulator")


def refuse_repeated(out: Any) -> None:
    """Refuse an output in which several indices share an element."""
    if operand_of(out, "out").repeats:
        raise ArgumentError("out repeats elements (broadcast)", got=tuple(out.shape), hint="pass a separate array")


def _check_multiplied(name: str, dtype: str) -> None:
    if dtype not in MULTIPLIED:
        raise ArgumentError(f"{name}: no kernel supports its element type", got=dtype, legal=MULTIPLIED)


def multiplied_type(a: str, b: str, ab_dtype: Any = None) -> DType:
    """Return the type in which elements of two types are multiplied, by NumPy's names. Raises: `ArgumentError` if there is none."""
    _check_multiplied("a", a)
    _check_multiplied("b", b)
    if a != b:
        raise ArgumentError(f"a has the type {a}, but b has the type {b}", hint="convert one of them")
    return _multiplied(TYPES[a], ab_dtype)


def result_type(kind: DType, c_dtype: Any = None) -> str:
    """Return the type of a new result for operands of a type, by NumPy's name."""
    return result(kind, None, (c_dtype, None)).numpy


def multiplied(a: Operand, dtypes: Dtypes) -> DType:
    """Return the type of the operands: that of the arrays, or another one with the same storage."""
    return _multiplied(TYPES[a.dtype], dtypes[1])


def _multiplied(kind: DType, wanted: Any) -> DType:
    if wanted is None or as_dtype(wanted) == kind:
        return kind
    legal = [dtype for dtype in DTYPES if dtype.numpy == kind.numpy]
    if as_dtype(wanted) not in legal:
        raise ArgumentError(f"ab_dtype: the arrays have the type {kind}", got=as_dtype(wanted), legal=legal)
    return as_dtype(wanted)


def result(kind: DType, out: Operand | None, dtypes: Dtypes) -> DType:
    """Return the type of the result for operands of a type."""
    wanted = None if dtypes[0] is None else as_dtype(dtypes[0])
    if wanted is not None and wanted.numpy not in MULTIPLIED:
        raise ArgumentError("c_dtype: no kernel supports results of this type", got=wanted, legal=MULTIPLIED)
    if out is None:
        return wanted or default_result(kind)
    if wanted is not None and wanted.numpy != out.dtype:
        raise ArgumentError(f"out has the type {out.dtype}, but c_dtype is {wanted}")
    return wanted or TYPES[out.dtype]


__all__ = ["CacheKey", "Problem", "key_and_views"]
