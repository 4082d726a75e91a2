"""`SparseMatMul`: matrix multiplication with an operand that is 2:4 sparse along k.

Of four adjacent elements of A along k at most two are not zero. A is stored as two arrays, which `compress_2_4` returns:

    A[m,k // 2]   the kept elements, two of each four, in the order of k
    E[m,k // 8]   bytes with the places of the kept elements: four bits for each four elements of k

The lower half of a byte is for the first four elements. Its bits 0 and 1 are the place of the first kept element, bits 2 and 3 that of the
second, in ascending order, as in the metadata of PTX ("Sparse matrix storage" of mma.sp). Four bits of zeros, which PTX leaves undefined,
keep the first two elements, too. So the zeros that copies write past the end of an array are legal metadata.

>>> import numpy as np
>>> from fireiron import *
>>> values, metadata = compress_2_4(np.array([[0, 5, 0, 7, 1, 2, 0, 0]], np.float16))
>>> values, [hex(byte) for byte in metadata[0]]  # the places 1 and 3, then 0 and 1
(array([[5., 7., 1., 2.]], dtype=float16), ['0x4d'])
>>> decompress_2_4(values, metadata).tolist()
[[0.0, 5.0, 0.0, 7.0, 1.0, 2.0, 0.0, 0.0]]
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import attrs

from fireiron.errors import ArgumentError
from fireiron.generated_verbs import ForEvery
from fireiron.spec import Kind, SpecShape, Starter, located
from fireiron.specs.bits import Range
from fireiron.specs.formula import Definition, Element, Formula, Index, Operation
from fireiron.specs.matmul import MatMul
from fireiron.specs.meaning import perform as perform_formula
from fireiron.specs.meaning import reference as reference_of
from fireiron.values.expr import Expr
from fireiron.values.machine import DType, float32, uint8
from fireiron.values.strides import StorageOrder
from fireiron.values.tensor import ColMajor, RowMajor, whole_view

if TYPE_CHECKING:
    from fireiron.spec import Spec

GROUP: Final = 4
"""Adjacent elements of k of which two are kept."""

KEPT: Final = 2
"""Kept elements of a group."""

PER_BYTE: Final = 8
"""Elements of k whose places are in a byte of metadata."""

SECOND: Final = 4
"""Four bits of metadata that keep the first two elements."""


# ---------------------------------------------------------------------------------------------- compression


@located
def compress_2_4(dense: Any, prune: bool = False) -> tuple[Any, Any]:
    """Return the kept values and the metadata of a matrix that is 2:4 sparse along its last dimension.

    Args: dense: an array (NumPy, CuPy) of any rank; the extent of its last dimension is a multiple of 8. prune: keep the two elements of
    the largest magnitude of each four, the first ones if magnitudes are equal, and drop the others.
    Returns: values `[..., k / 2]` of the same type, and uint8 metadata `[..., k / 8]`, as `SparseMatMul` reads them.

    Raises: ArgumentError, with the place of the first four elements of which more than two are not zero; for other extents and values.
    """
    xp = _library(dense)
    if dense.ndim < 1 or dense.shape[-1] % PER_BYTE or not dense.shape[-1]:
        raise ArgumentError(
            "compress_2_4: the extent of the last dimension must be a multiple of 8", got=dense.shape, legal="8, 16, 24, ...",
            hint="extend it with zeros: numpy.pad(dense, ((0, 0), (0, -k % 8)))",
        )  # fmt: skip
    groups = dense.reshape(*dense.shape[:-1], -1, GROUP)
    kept = _largest_two(xp, groups) if prune else _nonzero_two(xp, groups)
    places = xp.sort(kept, axis=-1)
    values = xp.take_along_axis(groups, places, axis=-1).reshape(*dense.shape[:-1], -1)
    return values, _packed(xp, places.astype(xp.uint8))


@located
def decompress_2_4(values: Any, metadata: Any) -> Any:
    """Return the dense matrix of kept values and metadata: the inverse of `compress_2_4`.

    Raises: ArgumentError for metadata that no kernel accepts, with its place, and for arrays whose extents do not fit.
    """
    xp = _library(values)
    if values.shape[:-1] != metadata.shape[:-1] or values.shape[-1] * KEPT != metadata.shape[-1] * PER_BYTE or metadata.dtype != xp.uint8:
        raise ArgumentError(
            "decompress_2_4: values and metadata do not fit", got=f"{values.shape}, {metadata.shape} of {metadata.dtype}",
            legal="[..., k / 2], and [..., k / 8] of uint8",
        )  # fmt: skip
    places = places_of(metadata)
    dense = xp.zeros((*metadata.shape[:-1], metadata.shape[-1] * PER_BYTE // GROUP, GROUP), values.dtype)
    xp.put_along_axis(dense, places, values.reshape(*places.shape), axis=-1)
    return dense.reshape(*values.shape[:-1], -1)


def places_of(metadata: Any) -> Any:
    """Return the places of the kept elements in their groups, `[..., k / 4, 2]`.

    Raises: ArgumentError if the two of a group are not in ascending order.
    """
    xp = _library(metadata)
    halves = xp.stack([metadata & xp.uint8(15), metadata >> xp.uint8(4)], axis=-1)
    halves = xp.where(halves == 0, xp.uint8(SECOND), halves)
    places = xp.stack([halves & xp.uint8(3), halves >> xp.uint8(2)], axis=-1)
    places = places.reshape(*metadata.shape[:-1], -1, KEPT).astype(xp.int64)
    wrong = places[..., 0] >= places[..., 1]
    if wrong.any():
        at = tuple(map(int, xp.argwhere(wrong)[0]))
        raise ArgumentError(
            f"2:4 metadata: the places of group {at[-1]} of row {at[:-1]} are {' and '.join(map(str, places[at].tolist()))}",
            legal="two places in ascending order", hint="values, metadata = compress_2_4(dense)",
        )  # fmt: skip
    return places


def _largest_two(xp: Any, groups: Any) -> Any:
    return xp.argsort(-abs(groups.astype(xp.float64)), axis=-1, kind="stable")[..., :KEPT]


def _nonzero_two(xp: Any, groups: Any) -> Any:
    """Return the places of the elements that are not zero, and of zeros if there are fewer than two."""
    filled = groups != 0
    counts = filled.sum(axis=-1)
    if (counts > KEPT).any():
        at = tuple(map(int, xp.argwhere(counts > KEPT)[0]))
        row, first = at[:-1], at[-1] * GROUP
        place = ",".join((*map(str, row), f"{first}:{first + GROUP}"))
        raise ArgumentError(
            f"compress_2_4: {int(counts[at])} of 4 elements are not zero at [{place}]", got=groups[at].tolist(),
            legal="at most 2 of 4 adjacent elements along the last dimension", hint="compress_2_4(dense, prune=True) keeps the largest two",
        )  # fmt: skip
    return xp.argsort(~filled, axis=-1, kind="stable")[..., :KEPT]


def _packed(xp: Any, places: Any) -> Any:
    """Return the bytes of places `[..., k / 4, 2]`."""
    by_byte = places.reshape(*places.shape[:-2], -1, PER_BYTE // GROUP * KEPT)
    return by_byte[..., 0] | by_byte[..., 1] << xp.uint8(2) | by_byte[..., 2] << xp.uint8(4) | by_byte[..., 3] << xp.uint8(6)


def _library(array: Any) -> Any:
    """Return the module of an array: NumPy or CuPy. Raises: ArgumentError for other values."""
    import sys

    import numpy

    if isinstance(array, numpy.ndarray):
        return numpy
    cupy = sys.modules.get("cupy")
    if cupy is not None and isinstance(array, cupy.ndarray):
        return cupy
    raise ArgumentError("not an array", got=type(array).__name__, legal="an array of NumPy or CuPy")


# ---------------------------------------------------------------------------------------------- the kind


@attrs.frozen
class Decompressed(Operation):
    """The element of a 2:4 sparse matrix, from the kept values and the metadata of its group."""

    name: str = "decompressed"

    def __str__(self) -> str:
        return f"decompressed({', '.join(map(str, self.arguments))})"


@attrs.frozen
class SparseFormula(Formula):
    """The formula of `SparseMatMul`. Its operations are those of the dense product, as is usual for 2:4 sparsity."""

    @functools.cached_property
    def operations(self) -> int:
        return 2


@functools.cache
def _definition() -> Definition:
    """Return the definition: `C[m,n] += sum(k, decompressed(A[m,k // 2], E[m,k // 8]) * B[k,n])`."""
    m, n, k = map(Index, "mnk")
    values = Element.of("A", (m, Index("k", "//", GROUP // KEPT)))
    metadata = Element.of("E", (m, Index("k", "//", PER_BYTE)))
    product = Operation("*", (Decompressed(arguments=(values, metadata)), Element("B", (k, n))))
    return Definition((SparseFormula(Element("C", (m, n)), "+=", product, "sum", ("k",)),))


_DENSE: Final = MatMul.kind.definition(()).formulas[0]


@attrs.frozen
class SparseKind(Kind):
    """The kind of `SparseMatMul`, whose meaning is that of mma.sp: only elements of B at kept places are multiplied."""

    def definition(self, parameters: tuple[tuple[str, Any], ...], rank: int = 2) -> Definition:
        return _definition()

    def of_signature(self, parameters: tuple[tuple[str, Any], ...], signature: str) -> Definition:
        raise ArgumentError(f"{self.title} has no signature", got=signature, legal="A[m,k // 2], E[m,k // 8], B[k,n], C[m,n]")

    def of_views(self, parameters: tuple[tuple[str, Any], ...], views: tuple[Any, ...]) -> Definition:
        return _definition()

    def of_sizes(self, parameters: tuple[tuple[str, Any], ...], count: int, signature: str = "") -> Definition:
        return self.of_signature(parameters, signature) if signature else _definition()

    def direct(self, spec: Spec, arrays: Mapping[str, Any]) -> tuple[Spec, dict[str, Any]]:
        """Return the matmul of the dense A, and its inputs."""
        dense = {"A": decompress_2_4(arrays["A"], arrays["E"])} if {"A", "E"} <= set(arrays) else {}
        tensor = attrs.evolve(spec.A.tensor, shape=(spec.size("m"), spec.size("k")), layout=RowMajor)
        options = {"accumulate": spec.accumulate, "accumulator": spec.accumulator}
        product = MatMul.on(spec.level, whole_view(tensor), spec.operands["B"], spec.operands["C"], **options)
        return product, {name: array for name, array in {**arrays, **dense}.items() if name != "E"}

    def random_input(self, name: str, shape: Sequence[int], generator: Any) -> Any:
        """Return random metadata for E: all pairs of places are equally likely."""
        import numpy

        if name != "E":
            return None
        pairs = numpy.array([first | second << 2 for second in range(GROUP) for first in range(second)], numpy.uint8)
        low, high = (pairs[generator.integers(0, len(pairs), tuple(shape))] for _ in range(2))
        return low | high << numpy.uint8(4)

    def reference(
        self, definition: Definition, arrays: Mapping[str, Any], types: Mapping[str, DType], sizes: Mapping[str, int]
    ) -> tuple[Any, ...]:
        """Compute the product from whole arrays, in float64 and rounded once."""
        import numpy

        dense = {"A": decompress_2_4(arrays["A"], arrays["E"]), "B": numpy.asarray(arrays["B"])}
        if numpy.isfinite(dense["B"].astype(numpy.float64)).all():
            return (reference_of(_DENSE, dense, types, sizes),)
        # 0 * inf is NaN, and B at places that are not kept is not multiplied
        kept = decompress_2_4(numpy.ones(arrays["A"].shape, numpy.int8), arrays["E"]) != 0
        parts = ({"A": dense["A"][[row]][:, kept[row]], "B": dense["B"][kept[row]]} for row in range(len(kept)))
        return (numpy.concatenate([reference_of(_DENSE, part, types, {**sizes, "m": 1}) for part in parts]),)

    def perform(
        self,
        definition: Definition,
        values: Mapping[str, Any],
        types: Mapping[str, DType],
        accumulate: Any,
        compute_type: DType | None = None,
        ranges: Mapping[str, Range] | None = None,
    ) -> dict[str, Any]:
        """Multiply the kept values and the elements of B at their places, in the order of k.

        The arrays have the dimensions of their element first, then any further axes.
        """
        import numpy

        a, e, b = (values[name] for name in ("A", "E", "B"))
        further = numpy.broadcast_shapes(a.shape[2:], e.shape[2:], b.shape[2:])
        e = numpy.broadcast_to(e, (*e.shape[:2], *further))
        places = numpy.moveaxis(places_of(numpy.moveaxis(e, 1, -1)), (-2, -1), (1, 2))
        rows = places + GROUP * numpy.arange(places.shape[1]).reshape(1, -1, *(1,) * (places.ndim - 2))
        rows = rows.reshape(rows.shape[0], -1, *further)
        b = numpy.broadcast_to(b, (*b.shape[:2], *further))
        formula = _ELEMENTS
        taken = numpy.take_along_axis(b[None], rows[:, :, None], axis=1)
        arrays = {"A": a, "B": taken, "C": values["C"]}
        return {"C": perform_formula(formula, arrays, types, accumulate, compute_type, ranges)}


_ELEMENTS: Final = Kind("Elements", "C[m,n] += sum(k, A[m,k] * B[m,k,n])").definition(()).formulas[0]
"""The product if each row of A has separate elements of B."""


class SparseMatMulStarter(ForEvery, Starter):
    """The starter `SparseMatMul`."""

    @located
    def __call__(
        self,
        M: Expr | int,
        N: Expr | int,
        K: Expr | int,
        *,
        dtype: DType | tuple[DType, DType] | tuple[DType, DType, DType] = float32,
        c_dtype: DType | None = None,
        accumulator: DType | None = None,
        accumulate: Expr | bool = False,
        A: StorageOrder = ColMajor,
        E: StorageOrder = ColMajor,
        B: StorageOrder = ColMajor,
        C: StorageOrder = ColMajor,
    ) -> SpecShape[Spec]:
        """Specify `C (M x N) = A (M x K) * B (K x N)`, where A is 2:4 sparse along k, given by kept values and metadata.

        The calls take the sizes, then the memories of A, E, B and C, then the level. K is a multiple of 8. `dtype` is the type of A and B
        (or a pair), `c_dtype` that of C; the metadata E is uint8. `compress_2_4` returns A and E, RowMajor for a row-major matrix.

        Source: PTX ISA, "Sparse matrix storage" of mma.sp; decision 95.

        >>> from fireiron import *
        >>> product = SparseMatMul(64, 32, 128, dtype=float16, c_dtype=float32)(GL, GL, GL, GL)(Kernel)
        >>> [(name, *map(str, view.shape), view.dtype.name) for name, view in product.operands.items()]
        [('A', '64', '64', 'float16'), ('E', '64', '16', 'uint8'), ('B', '128', '32', 'float16'), ('C', '64', '32', 'float32')]
        """
        types = dtype if isinstance(dtype, tuple) else (dtype, dtype)
        types = (types[0], uint8, types[1]) if len(types) == 2 else types
        if len(types) != 3 or types[1] != uint8:
            raise ArgumentError("SparseMatMul: dtype must be one element type, or a pair for A and B", got=dtype)
        layouts = {"A": A, "E": E, "B": B, "C": C}
        return self.shape((M, N, K), types, {"C": c_dtype}, layouts, accumulator=accumulator, accumulate=accumulate)


SparseMatMul: Final = SparseMatMulStarter(SparseKind("SparseMatMul", "C[m,n] += sum(k, decompressed(A[m,k // 2], E[m,k // 8]) * B[k,n])"))

__all__ = ["SparseMatMul", "compress_2_4", "decompress_2_4"]
