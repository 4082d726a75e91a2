"""`fireiron.matmul`: the product of two arrays, by the strategy that is recorded as the best for their sizes, types and storage.

>>> import fireiron, numpy
>>> a, b = numpy.ones((3, 5), "float32"), numpy.ones((5, 2), "float32")
>>> fireiron.matmul(a, b)[0]
array([5., 5.], dtype=float32)
>>> print(fireiron.matmul.choice(a, b).why)
no record answers; the default for float32 on sm_90: gemm_tt bm=64 bn=64
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
    """What is asked for beside the arrays; `names` are those of the inputs that an epilogue names."""

    c_dtype: Any = None
    ab_dtype: Any = None
    epilogue: str | None = None
    types: tuple[tuple[str, Any], ...] = ()
    names: tuple[str, ...] = ()

    @property
    def dtypes(self) -> Dtypes:
        """The types that are asked for, of the result and of the factors; None for what the arrays say."""
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
    """The arguments of a call."""
    if c_dtype is None and ab_dtype is None and epilogue is None and not operands and not types:
        return Request((a, b), out, _PLAIN, arch, require_record)
    named = tuple(types.items()) if types else ()
    if epilogue is None and (operands or named):
        name = next(iter((*operands, *dict(named))))
        raise ArgumentError(f"matmul: {name} is given, and no epilogue reads it", hint=f'epilogue="acc + {name}[n]"')
    return Request((a, b, *operands.values()), out, Options(c_dtype, ab_dtype, epilogue, named, tuple(operands)), arch, require_record)


class _MatMul(Call):
    """`fireiron.matmul`: see `__call__`.

    Different arrays may ask for one problem, as those of a call with `out` do where the call without makes such a result
    itself: kernels are kept by problem too, so each is chosen, compiled and loaded once.
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
        """`a @ b` for two matrices of one element type, M x K and K x N, or arrays of any dimensions, as NumPy and PyTorch multiply them.

        CuPy, PyTorch and JAX arrays on a GPU run there, NumPy arrays in the simulator. Either storage order serves, with leading
        dimensions, so slices do; odd sizes too. What lies otherwise, with steps along both dimensions, backwards or repeated, is copied
        first; arrays without elements give results without elements, or zeros. The first call for a shape chooses a strategy and compiles
        it. Matrices of a stack,
        B x M x K and B x K x N, may lie any distance apart; where one operand is a matrix, or a stack of one, all are multiplied with it.
        More dimensions in front are broadcast likewise, and vectors are matrices of one row or column that the result has not; with an
        epilogue, and of JAX, they are matrices or stacks.

        A call that `torch.compile` traces, or of tensors that require a gradient, is an operator of PyTorch: the gradient is two more
        products. Under `torch.autocast` tensors are converted as for torch.matmul, unless `out` or `ab_dtype` is given.

        Args:
            out: where to store the result, and how; by default a new array, row-major.
            c_dtype: the type of the result; by default that of `out`, else of `a` (int32 for int8, float32 for 8-bit floats).
            ab_dtype: the type that elements of `a` and `b` are multiplied in: tf32 multiplies float32 on tensor cores, which read the upper
                19 bits of each; by default that of the arrays.
            arch: the target of the compiler; by default that of the GPU (of the simulator, sm_90).
            stream: as for a compiled kernel.
            require_record: only a record of exactly this problem may answer; as `FIREIRON_REQUIRE_RECORD` says if None.
            epilogue: what becomes of the elements of the product, as for `MatMul.epilogue`: `relu(acc + bias[n])`, computed in the same
                kernel. Several outputs come as a tuple, in the order in which the text assigns them; `out` is a tuple or a mapping then.
            types: those of outputs other than C, which have C's type, or float32 if they have fewer dimensions.
            operands: the arrays and numbers that the epilogue names.

        Raises: ArgumentError for arrays that are no matrices or stacks of one type that fit; StoreError if an exact record is required and
            none answers.
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
        """What `matmul` takes for these arrays: the record, if one answers, and why; nothing is launched."""
        return self.answer(request).choice

    @takes(request)
    def kernel(self, request: Request) -> CompiledKernel:
        """The kernel that `matmul` calls for these arrays; with `b.T` and `a.T` where the choice is for the transposed product.

        Of a stack and a matrix it may multiply the rows of all matrices, as one. Of more dimensions it is called for each stack.
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
        """Measure, on these arrays on a GPU, what is expected to be fastest, and take the fastest for them from now on: what `matmul` takes
        unasked, so many further tiles, and products in parts of K.

        It takes seconds, compiles as many kernels, and is remembered in the cache on disk, where later processes find it; where there is no
        cache, in this process. `out` is overwritten. The same again measures again.

        Args:
            candidates: how many tiles are measured beside what is taken unasked.
            report: is told a line about each.

        Returns: what `matmul.choice` says from now on.
        Raises: as a call does; ArgumentError for arrays that lie on no GPU, and for those that are copied or empty.
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
        """The product of two plain tensors that autograd records, by replayed calls."""
        from fireiron.matmul_operator import replayed

        return replayed(self.replays.again)

    def clear(self) -> None:
        """Forget all kernels, so that records and environment variables are read anew."""
        with self.lock:
            super().clear()
            self.kernels.entries.clear()

    def said(self, request: Request) -> Any:
        """What tells calls with the same arrays apart, as `__call__` says it."""
        _, _, options, arch, require_record, _ = request
        is_plain = options is _PLAIN and arch is None and require_record is None
        return None if is_plain else (*options.dtypes, arch, require_record, options.epilogue, *options.names)

    def key_of_outputs(self, out: Any, options: Options) -> Any:
        """What tells given outputs apart; a plain product has one."""
        return key_of(out) if options.epilogue is None else super().key_of_outputs(out, options)

    def is_replayed(self, request: Request) -> bool:
        """Whether the call is of PyTorch tensors, and states no types of outputs."""
        return not request.options.types and super().is_replayed(request)

    def new_answer(self, request: Request) -> Answer:
        """What answers a request that was not made before."""
        from fireiron.matmul_kernels import answer_to

        return answer_to(self, request, self.kernel_of)

    def kernel_of(self, key: CacheKey) -> ProductKernel:
        """The kernel of a problem: the one that it has already, else one that is chosen now."""
        from fireiron.matmul_choice import cached_or_chosen

        return self.kernels.recall(key, lambda: cached_or_chosen(key))


matmul: Final = _MatMul()
"""The product of two arrays; see its `__call__`."""

__all__ = ["matmul"]
