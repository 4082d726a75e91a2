"""`fireiron.matmul`: matrix multiplication of two arrays, with the best recorded strategy for their sizes, types and storage.

>>> import fireiron, numpy
>>> a, b = numpy.ones((3, 5), "float32"), numpy.ones((5, 2), "float32")
>>> fireiron.matmul(a, b)[0]
array([5., 5.], dtype=float32)
>>> print(fireiron.matmul.choice(a, b).why)
no record applies; the default for float32 on sm_90: gemm_tt bm=64 bn=64
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple, TypeVar, overload

from fireiron import operators
from fireiron.errors import ArgumentError
from fireiron.front.arrays import key_of
from fireiron.front.cache import LruCache
from fireiron.front.call import Answer, Call, Empty, Request, takes

if TYPE_CHECKING:
    from fireiron.gpu.kernel import CompiledKernel
    from fireiron.matmul_choice import ProductKernel
    from fireiron.matmul_problem import CacheKey, Dtypes
    from fireiron.tune.records import Choice
    from fireiron.values.machine import Architecture, DType

ArrayT = TypeVar("ArrayT")


class Options(NamedTuple):
    """The options of a call; `names` are the further inputs of an epilogue."""

    c_dtype: Any = None
    ab_dtype: Any = None
    epilogue: str | None = None
    types: tuple[tuple[str, Any], ...] = ()
    names: tuple[str, ...] = ()

    @property
    def dtypes(self) -> Dtypes:
        """The requested types of the result and of the operands; None for those of the arrays."""
        return self.c_dtype, self.ab_dtype


_PLAIN: Final = Options()


def request(
    a: Any,
    b: Any,
    out: Any = None,
    *,
    c_dtype: DType | str | None = None,
    ab_dtype: DType | str | None = None,
    arch: Architecture | str | None = None,
    require_record: bool | None = None,
    epilogue: str | None = None,
    types: Mapping[str, DType | str] | None = None,
    **operands: Any,
) -> Request:
    """Return the request of a call."""
    if c_dtype is None and ab_dtype is None and epilogue is None and not operands and not types:
        return Request((a, b), out, _PLAIN, arch, require_record)
    named = tuple(types.items()) if types else ()
    if epilogue is None and (operands or named):
        name = next(iter((*operands, *dict(named))))
        raise ArgumentError(f"matmul: {name} is given, but no epilogue reads it", hint=f'epilogue="acc + {name}[n]"')
    return Request((a, b, *operands.values()), out, Options(c_dtype, ab_dtype, epilogue, named, tuple(operands)), arch, require_record)


class _MatMul(Call):
    """`fireiron.matmul`: see `__call__`.

    Calls with different arrays, or with and without `out`, may have the same problem. `kernels` is a cache by problem, so that each kernel
    is chosen, compiled and loaded once.
    """

    arrays: ClassVar[int] = 2

    def __init__(self) -> None:
        super().__init__()
        self.kernels: LruCache[ProductKernel] = LruCache(self.lock)

    @overload
    def __call__(
        self,
        a: ArrayT,
        b: ArrayT,
        out: ArrayT | None = None,
        *,
        c_dtype: DType | str | None = None,
        ab_dtype: DType | str | None = None,
        arch: Architecture | str | None = None,
        stream: object = None,
        require_record: bool | None = None,
    ) -> ArrayT: ...

    @overload
    def __call__(
        self,
        a: object,
        b: object,
        out: object = None,
        *,
        c_dtype: DType | str | None = None,
        ab_dtype: DType | str | None = None,
        arch: Architecture | str | None = None,
        stream: object = None,
        require_record: bool | None = None,
        epilogue: str,
        types: Mapping[str, DType | str] | None = None,
        **operands: object,
    ) -> Any: ...

    def __call__(
        self,
        a: Any,
        b: Any,
        out: Any = None,
        *,
        c_dtype: Any = None,
        ab_dtype: Any = None,
        arch: Any = None,
        stream: Any = None,
        require_record: bool | None = None,
        epilogue: str | None = None,
        types: Mapping[str, Any] | None = None,
        **operands: Any,
    ) -> Any:
        """Return `a @ b` for matrices M x K and K x N, or for arrays of any dimensions as NumPy and PyTorch multiply them.

        CuPy, PyTorch and JAX arrays on a GPU run there, NumPy arrays in the simulator. The first call for a shape chooses a strategy and
        compiles it. Matrices may be row-major or column-major with any leading dimension and any size, so slices are legal. Arrays with
        other strides (along both dimensions, negative, or 0) are copied first. Arrays without elements give results without elements, or
        zeros.

        Batches B x M x K and B x K x N may have any stride between matrices. An operand that is a matrix, or a batch of one matrix, is
        broadcast. Further leading dimensions are broadcast, too. A vector is a matrix with one row or column, and the result lacks this
        dimension. With an epilogue, and for JAX, operands must be matrices or batches.

        A call that `torch.compile` traces, or a call with tensors that require a gradient, is a PyTorch operator. Its gradients are two
        further matmuls. Under `torch.autocast`, tensors are converted as for torch.matmul, unless `out` or `ab_dtype` is given.

        Args:
            out: the array for the result; the default is a new row-major array.
            c_dtype: the type of the result; the default is that of `out`, or of `a` (int32 for int8, float32 for 8-bit floats).
            ab_dtype: the type in which elements of `a` and `b` are multiplied; the default is their own. With tf32, tensor cores
                multiply float32 arrays, of which they read the upper 19 bits.
            arch: the target; the default is that of the GPU (sm_90 in the simulator).
            stream: as for a compiled kernel.
            require_record: use only a record of exactly this problem; None means the value of `FIREIRON_REQUIRE_RECORD`.
            epilogue: elementwise work on the result in the same kernel, as for `MatMul.fuse_epilogue`: `relu(acc + bias[n])`. Several
                outputs are returned as a tuple, in the order of the text; `out` is then a tuple or a mapping.
            types: the types of outputs other than C; the default is the type of C, or float32 for outputs with fewer dimensions.
            operands: the arrays and numbers that the epilogue names.

        Raises: ArgumentError for incompatible arrays; StoreError if an exact record is required and there is none.
        """
        if hasattr(a, "is_cuda"):
            replays = self.replays
            again = replays.again
            if again is not None and stream is None and types is None and not replays.tracing():
                if out is None and ab_dtype is None and replays.casting():
                    a, b = operators.autocast(a, b)
                if epilogue is None and c_dtype is None and ab_dtype is None and arch is None and require_record is None and not operands:
                    done = again(None, out, a, b)
                    if done is ... and out is None:
                        done = self._differentiated(a, b)
                else:
                    done = again((c_dtype, ab_dtype, arch, require_record, epilogue, *operands), out, a, b, *operands.values())
                if done is not None and done is not NotImplemented and done is not ...:
                    return done
            if out is None and ab_dtype is None:
                a, b = operators.autocast(a, b)
            traced = operators.traced(a, b)
            if traced or operators.differentiated(a, b, *operands.values()):
                operators.refuse_options("matmul", arch=arch, stream=stream, require_record=require_record)
                from fireiron.matmul_operator import recorded, through_torch

                through = through_torch if traced else recorded
                return through(a, b, out, c_dtype, ab_dtype, epilogue, types, operands)
        if epilogue is None and not operands and operators.traced_by_jax(a, b):
            from fireiron.matmul_jax import through_jax

            return through_jax(a, b, out, stream, c_dtype=c_dtype, ab_dtype=ab_dtype, arch=arch, require_record=require_record)
        asked = request(
            a,
            b,
            out,
            c_dtype=c_dtype,
            ab_dtype=ab_dtype,
            arch=arch,
            require_record=require_record,
            epilogue=epilogue,
            types=types,
            **operands,
        )
        return self.launched(asked, stream)

    @takes(request)
    def choice(self, request: Request) -> Choice:
        """Return the choice for these arrays, a record or a default strategy, and the reason; launch nothing."""
        return self.answer(request).choice

    @takes(request)
    def kernel(self, request: Request) -> CompiledKernel:
        """Return the kernel for these arrays. It takes `b.T` and `a.T` if the choice is for the transposed product.

        For a batch and a matrix, it may multiply the rows of all matrices as one matrix. For more dimensions, it is called once per batch.
        """
        return self.answer(request).kernel

    def tuned(
        self,
        a: Any,
        b: Any,
        out: Any = None,
        *,
        c_dtype: Any = None,
        ab_dtype: Any = None,
        arch: Any = None,
        candidates: int = 4,
        report: Callable[[str], None] | None = None,
    ) -> Choice:
        """Measure the most promising kernels on these arrays on a GPU, and use the fastest one for later calls.

        Candidates are the default choice, further tiles, and split-K kernels. This compiles each candidate and takes seconds. If the arrays
        fit in L2, they are copied, up to 128 MB, and the launches take turns on the copies, so that operands come from memory. The disk
        cache keeps the choice for later processes; without a cache it is valid in this process. `out` is overwritten. Another call measures
        again.

        Args:
            candidates: the number of tiles in addition to the default choice.
            report: a function that receives a line about each candidate.

        Returns: the new result of `matmul.choice`.
        Raises: as a call does; ArgumentError for arrays that are not on a GPU, must be copied, or are empty.
        """
        from fireiron.matmul_kernels import measurable
        from fireiron.matmul_tuned import measured

        key, views, arrays = measurable(request(a, b, out, c_dtype=c_dtype, ab_dtype=ab_dtype, arch=arch, require_record=False))
        kernel = measured(key, views, arrays, candidates, report or (lambda line: None))
        with self.lock:
            before = self.kernels.entries.pop(key, None)
            self.answers.forget(lambda answer: before is not None and not isinstance(answer, Empty) and answer.kernel is before.kernel)
            self.replays.clear()
            self.kernels.keep(key, kernel)
        return kernel.choice

    @functools.cached_property
    def _differentiated(self) -> Callable[[Any, Any], Any]:
        """The matmul of two plain tensors that autograd records, by replayed calls."""
        from fireiron.matmul_operator import replayed

        return replayed(self.replays.again)

    def clear(self) -> None:
        """Discard all kernels, so that records and environment variables are read again."""
        with self.lock:
            super().clear()
            self.kernels.entries.clear()

    def key_of_options(self, request: Request) -> Any:
        """Return the key of the options, as `__call__` makes it."""
        _, _, options, arch, require_record, _ = request
        is_plain = options is _PLAIN and arch is None and require_record is None
        return None if is_plain else (*options.dtypes, arch, require_record, options.epilogue, *options.names)

    def key_of_outputs(self, out: Any, options: Options) -> Any:
        """Return the key of given outputs; a plain matmul has one output."""
        return key_of(out) if options.epilogue is None else super().key_of_outputs(out, options)

    def is_replayed(self, request: Request) -> bool:
        """Return whether the call is on PyTorch tensors and does not specify types of outputs."""
        return not request.options.types and super().is_replayed(request)

    def new_answer(self, request: Request) -> Answer:
        """Return the answer for a new request."""
        from fireiron.matmul_kernels import answer_to

        return answer_to(self, request, self.kernel_of)

    def kernel_of(self, key: CacheKey) -> ProductKernel:
        """Return the kernel of a problem, from the cache or newly chosen."""
        from fireiron.matmul_choice import cached_or_chosen

        return self.kernels.recall(key, lambda: cached_or_chosen(key))


matmul: Final = _MatMul()
"""Matrix multiplication of two arrays; see its `__call__`."""

__all__ = ["matmul"]
