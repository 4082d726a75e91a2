"""`SparseMatMul`: matrix multiplication with an operand that is 2:4 sparse along k.

A is stored as two arrays, the kept values A[m,k // 2] and the metadata E[m,k // 8] (`fireiron.specs.compression`). The product may be a
step of a definition, `acc[m,n] = sum(k, decompressed(A[m,k // 2], E[m,k // 8]) * B[k,n])`, with steps before and after it.

>>> from fireiron import *
>>> print(SparseMatMul(64, 32, 128)(GL, GL, GL, GL)(Kernel))
SparseMatMul(64,32,128)(GL,GL,GL,GL)(Kernel) with E uint8
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import attrs

from fireiron.errors import ArgumentError
from fireiron.frozen import frozen
from fireiron.generated_verbs import ForEvery
from fireiron.spec import Kind, SpecShape, Starter, located
from fireiron.specs.bits import Range
from fireiron.specs.compression import GROUP, decompress_2_4, kept_elements, places_of, random_metadata
from fireiron.specs.formula import Definition, Formula, formula_of
from fireiron.specs.matmul import MatMul
from fireiron.specs.meaning import perform as perform_formula
from fireiron.specs.meaning import reference as reference_of
from fireiron.values.expr import Expr
from fireiron.values.machine import DType, float32, uint8
from fireiron.values.strides import StorageOrder
from fireiron.values.tensor import ColMajor, RowMajor, whole_view

if TYPE_CHECKING:
    from fireiron.spec import Spec
    from fireiron.specs.epilogue import FusedEpilogue

_TEXT: Final = "C[m,n] += sum(k, decompressed(A[m,k // 2], E[m,k // 8]) * B[k,n])"


@functools.cache
def _definition() -> Definition:
    """Return the definition: `C[m,n] += sum(k, decompressed(A[m,k // 2], E[m,k // 8]) * B[k,n])`."""
    return Definition((formula_of(_TEXT),))


@functools.cache
def _dense() -> Formula:
    """Return the formula of the product of the dense matrix."""
    return MatMul.kind.definition(()).formulas[0]


@frozen
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
        return random_metadata(shape, generator) if name == "E" else None

    def reference(
        self, definition: Definition, arrays: Mapping[str, Any], types: Mapping[str, DType], sizes: Mapping[str, int]
    ) -> tuple[Any, ...]:
        """Compute the product from whole arrays, in float64 and rounded once."""
        import numpy

        dense = {"A": decompress_2_4(arrays["A"], arrays["E"]), "B": numpy.asarray(arrays["B"])}
        if numpy.isfinite(dense["B"].astype(numpy.float64)).all():
            return (reference_of(_dense(), dense, types, sizes),)
        # 0 * inf is NaN, and B at places that are not kept is not multiplied
        kept = kept_elements(arrays["E"])
        parts = ({"A": dense["A"][[row]][:, kept[row]], "B": dense["B"][kept[row]]} for row in range(len(kept)))
        return (numpy.concatenate([reference_of(_dense(), part, types, {**sizes, "m": 1}) for part in parts]),)

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
        order: StorageOrder = ColMajor,
        A: StorageOrder | None = None,
        E: StorageOrder | None = None,
        B: StorageOrder | None = None,
        C: StorageOrder | None = None,
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
        return self.shape((M, N, K), types, {"C": c_dtype}, layouts, order, accumulator=accumulator, accumulate=accumulate)

    def fuse_epilogue(self, text: str, name: str = "sparse_gemm", types: Mapping[str, Any] | None = None) -> FusedEpilogue:
        """Return a definition of the matmul with elementwise work on its result: `SparseMatMul.fuse_epilogue("relu(acc + bias[m])")`.

        Any strategy for a SparseMatMul accepts its spec. See `fireiron.specs.epilogue`.

        >>> from fireiron import *
        >>> print(SparseMatMul.fuse_epilogue("relu(acc + bias[m])")(m=64, n=32, k=128).notation)
        sparse_gemm(64,32,128)(GL,GL,GL,GL,GL)(Kernel)
        """
        from fireiron.specs.epilogue import FusedEpilogue

        return FusedEpilogue.of_product(self, text, name, types, compressed=True)


SparseMatMul: Final = SparseMatMulStarter(SparseKind("SparseMatMul", _TEXT))

__all__ = ["SparseMatMul"]
