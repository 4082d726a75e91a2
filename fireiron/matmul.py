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
import importlib
import math
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Final, TypeVar, overload

import attrs

from fireiron import operators
from fireiron.batches import batches, cut, new_like, result_shape, viewed
from fireiron.copies import LIBRARIES, copied, is_matrix_readable, library, refuse_stream, store, zeroed
from fireiron.errors import ArgumentError, FireironError, LaunchError, closest
from fireiron.repeated import Replays
from fireiron.spec import Spec, default_result
from fireiron.specs.epilogue import (
    RESULT,
    folds_rows,
    outputs_of,
    signature_of,
    transposed,
    with_epilogue,
    without_stacks,
)
from fireiron.specs.epilogue import epilogue as epilogue_of
from fireiron.specs.fused import INDICES
from fireiron.specs.matmul import MatMul
from fireiron.stacks import MATRICES, Stacked, Way, seen, stack_of
from fireiron.values.expr import constant
from fireiron.values.machine import (
    DEFAULT_ARCHITECTURE,
    DTYPES,
    GL,
    WARPGROUP_ARCHITECTURE,
    Architecture,
    DType,
    Kernel,
    as_architecture,
    as_dtype,
    float32,
    float64,
    uint8,
)
from fireiron.values.strides import StorageOrder, Strides
from fireiron.values.tensor import ColMajor, MatrixLayout, RowMajor, View

if TYPE_CHECKING:
    from fireiron.compiler import Program
    from fireiron.gpu.kernel import CompiledKernel
    from fireiron.language.strategy import Strategy
    from fireiron.tune.records import Choice, Records

ArrayT = TypeVar("ArrayT")

Dtypes = tuple[Any, Any]
"""The types that are asked for, of the result and of the factors; None for what the arrays say."""

Given = Mapping[str, "Operand"]
"""Operands by argument: `a`, `b` and, where it is given, `out`."""

MOST_KERNELS: Final = 256
"""Kernels that are kept in memory; beyond that the one that was not used for longest is forgotten."""

ALIGNMENT: Final = 16
"""The bytes that the widest access takes, hence the alignment that specs assume where an array has it."""

_MOST_ALIGNED: Final = 64
_TYPES: Final = {dtype.numpy: dtype for dtype in reversed(DTYPES)}
"""Element types by NumPy's name; float32 is float32, not tf32."""

_FURTHER: Final = {**_TYPES, **{name: dtype for dtype in DTYPES for name in dtype.alike}}
"""Those of arrays that an epilogue reads."""

_MULTIPLIED: Final = [name for name, dtype in _TYPES.items() if dtype != uint8]
"""Those of arrays that are multiplied, and of results."""


@attrs.frozen
class Operand:
    """What of an array decides which kernel serves it: steps are in elements, `align` in bytes, `device` is a GPU or None for the host."""

    shape: tuple[int, ...]
    steps: tuple[int, ...]
    dtype: str
    align: int
    device: int | None

    @property
    def places(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Its shape and steps."""
        return self.shape, self.steps


@attrs.frozen
class Problem:
    """A spec for the arrays, or for the transposed product of the same arrays, and the arrays by operand."""

    spec: Spec
    transposed: bool
    operands: Mapping[str, Operand] = attrs.field(eq=False)

    @property
    def result_order(self) -> str:
        """How C is stored: "row" or "col"."""
        layout = self.spec.operands["C"].tensor.layout
        return layout.order if isinstance(layout, MatrixLayout) else ""

    @property
    def aligned(self) -> dict[str, int]:
        """Bytes by operand; a new result is always aligned."""
        return {name: self.operands[name].align if name in self.operands else _MOST_ALIGNED for name in self.spec.operands}

    def served(self, program: Program) -> bool:
        """Whether the arrays are aligned as a program needs them; a new result always is."""
        aligned = self.aligned
        needed = {buffer.name: buffer.tensor.align for buffer in program.sequential.buffers if buffer.parameter}
        needed |= {launch.name: launch.program.sequential.buffer("src").tensor.align for launch in program.launches}
        return all(aligned[name] >= bytes for name, bytes in needed.items())


@attrs.frozen
class _Asked:
    """What decides on a kernel: the product and the transposed one, how operands are aligned, the target, whose records answer, the GPU.

    `aligned` are bytes by operand; a result that the call is to make is aligned as new memory is.
    """

    problems: tuple[Problem, ...]
    aligned: tuple[int, ...]
    architecture: Architecture
    pinned: bool
    device: int | None

    @property
    def told(self) -> tuple[Any, ...]:
        """What decides on a kernel beside target and GPU, as choices on disk are told apart by."""
        return tuple((one.spec, one.transposed) for one in self.problems), self.aligned, self.pinned


@attrs.frozen
class _Made:
    """A kernel, why it was chosen, and for which of the problems: the product, or the transposed one C.T = B.T A.T.

    With a kernel `behind` it multiplies so many `parts` of K, as a stack, and the one behind adds them up.
    """

    kernel: CompiledKernel
    choice: Choice
    problem: Problem
    behind: CompiledKernel | None = None
    parts: int = 1

    def cut(self, a: Any, b: Any) -> tuple[Any, Any]:
        """The factors as stacks of their parts: the same memory."""
        left, right = cut(self.problem.operands["A"].places, self.problem.operands["B"].places, self.parts)
        return viewed(a, left), viewed(b, right)

    @property
    def transposed(self) -> bool:
        """Whether it computes the transposed product."""
        return self.problem.transposed


@attrs.frozen
class _Found:
    """What answers a call: a kernel, and how it sees the arrays."""

    made: _Made
    stacked: Stacked

    def __call__(self, a: Any, b: Any, out: Any, stream: Any) -> Any:
        """The product."""
        kernel = self.made.kernel
        if self.stacked is not MATRICES:
            return self._stack(a, b, out, stream)
        if self.made.behind is not None:
            return self.made.behind(kernel(*self.made.cut(a, b), stream=stream), out=out, stream=stream)
        if not self.made.transposed:
            return kernel(a, b, out=out, stream=stream)
        if out is None:
            return kernel(b.T, a.T, stream=stream).T
        kernel(b.T, a.T, out=out.T, stream=stream)
        return out

    def _stack(self, a: Any, b: Any, out: Any, stream: Any) -> Any:
        """The product of arrays of which one is a stack."""
        ways = self.stacked
        inner = _Found(self.made, MATRICES)
        result = inner(ways.a.of(a), ways.b.of(b), None if out is None else ways.c.of(out), stream)
        return ways.given_back(result) if out is None else out


@attrs.frozen
class _Finished:
    """What answers a call with an epilogue: a kernel, and how it sees the arrays.

    `names` are the further inputs in the order in which the kernel takes them, `outputs` the outputs with their number of dimensions;
    those of `turned` are the transposed arrays.
    """

    made: _Made
    stacked: Stacked
    names: tuple[str, ...]
    outputs: tuple[str, ...]
    turned: frozenset[str]
    folded: frozenset[str]

    def __call__(self, a: Any, b: Any, out: Any, given: Mapping[str, Any], stream: Any) -> Any:
        """The outputs: one, or a tuple of all."""
        ways, kernel = self.stacked, self.made.kernel
        further = [ways.c.of(given[name]) if name in self.folded else given[name] for name in self.names]
        a, b = ways.a.of(a), ways.b.of(b)
        first = (b.T, a.T) if self.made.transposed else (a, b)
        filled = (
            None
            if out is None
            else tuple(self._inside(name, one) for name, one in zip(self.outputs, _each(out, self.outputs), strict=True))
        )
        results = kernel(*first, *further, out=filled[0] if filled is not None and len(filled) == 1 else filled, stream=stream)
        if out is not None:
            return out if len(self.outputs) == 1 or not isinstance(out, Mapping) else tuple(out[name] for name in self.outputs)
        if len(self.outputs) == 1:
            return self._outside(self.outputs[0], results)
        return tuple(self._outside(name, one) for name, one in zip(self.outputs, results, strict=True))

    def _inside(self, name: str, array: Any) -> Any:
        """An output as the kernel fills it."""
        array = self.stacked.c.of(array) if name in self.folded else array
        return array.T if name in self.turned else array

    def _outside(self, name: str, array: Any) -> Any:
        """An output as the caller sees it."""
        array = array.T if name in self.turned else array
        return self.stacked.given_back(array) if name in self.folded else array


@attrs.frozen
class _FinishedCopied:
    """What answers a call with an epilogue whose `names`, operands or outputs, lie as no kernel reads them: copies take their place."""

    finished: _Finished
    names: frozenset[str]

    @property
    def made(self) -> _Made:
        """The kernel for the copies."""
        return self.finished.made

    def __call__(self, a: Any, b: Any, out: Any, given: Mapping[str, Any], stream: Any) -> Any:
        """The outputs: one, or a tuple of all."""
        refuse_stream("matmul", "arrays are copied", stream)
        arrays = {name: copied(one) if name in self.names else one for name, one in {**given, "a": a, "b": b}.items()}
        a, b, outputs = arrays.pop("a"), arrays.pop("b"), self.finished.outputs
        if self.names.isdisjoint(outputs):
            return self.finished(a, b, out, arrays, None)
        made = self.finished(a, b, None, arrays, None)
        targets = _each(out, outputs)
        for target, source in zip(targets, made if len(outputs) > 1 else (made,), strict=True):
            store(target, source)
        return out if len(outputs) == 1 or not isinstance(out, Mapping) else targets


@attrs.frozen
class _Copied:
    """What answers a call with arrays that no kernel reads as they lie, at these places among `a`, `b` and `out`: copies take their place.

    A result at such an `out` is computed as a new one, and stored there.
    """

    found: _Found
    places: frozenset[int]

    @property
    def made(self) -> _Made:
        """The kernel for the copies."""
        return self.found.made

    def __call__(self, a: Any, b: Any, out: Any, stream: Any) -> Any:
        """The product."""
        refuse_stream("matmul", "arrays are copied", stream)
        a, b = (copied(one) if place in self.places else one for place, one in enumerate((a, b)))
        if 2 not in self.places:
            return self.found(a, b, out, None)
        store(out, self.found(a, b, None, None))
        return out


@attrs.frozen
class _Empty:
    """What answers a call with an array that has no element: a result without elements, or, where there are no terms, zeros."""

    shape: tuple[int, ...]
    kind: DType

    @property
    def made(self) -> _Made:
        """There is none."""
        raise ArgumentError("matmul: an array has no element, so no kernel is chosen or launched", legal="sizes of at least 1")

    def __call__(self, a: Any, b: Any, out: Any, stream: Any) -> Any:
        """The product."""
        refuse_stream("matmul", "an empty product is made", stream)
        return zeroed(new_like(a, self.shape, self.kind) if out is None else out)


class _MatMul:
    """`fireiron.matmul`: see `__call__`. Kernels are kept in memory, by the arrays' shapes, types, strides and alignment.

    Different arrays may ask for one problem, as those of a call with `out` do where the call without makes such a result
    itself: kernels are kept by problem too, so each is chosen, compiled and loaded once.
    """

    def __init__(self) -> None:
        self._kernels: OrderedDict[Any, _Found | _Copied | _Empty] = OrderedDict()
        self._problems: OrderedDict[_Asked, _Made] = OrderedDict()
        self._finished: OrderedDict[Any, _Finished | _FinishedCopied] = OrderedDict()
        self._replays = Replays()
        self._lock = threading.RLock()

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
        pinned: bool | None = None,
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
        pinned: bool | None = None,
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
        pinned: bool | None = None,
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
            pinned: only a record of exactly this problem may answer; as `FIREIRON_PINNED` says if None.
            epilogue: what becomes of the elements of the product, as for `MatMul.epilogue`: `relu(acc + bias[n])`, computed in the same
                kernel. Several outputs come as a tuple, in the order in which the text assigns them; `out` is a tuple or a mapping then.
            types: those of outputs other than C, which have C's type, or float32 if they have fewer dimensions.
            operands: the arrays and numbers that the epilogue names.

        Raises: ArgumentError for arrays that are no matrices or stacks of one type that fit; StoreError where records are pinned and none
            answers.
        """
        if hasattr(a, "is_cuda"):
            replays = self._replays
            again = replays.again
            if again is not None and stream is None and types is None and not replays.tracing():
                if out is None and ab_dtype is None and replays.casting():
                    a, b = operators.autocast(a, b)
                if epilogue is None and c_dtype is None and ab_dtype is None and arch is None and pinned is None and not operands:
                    done = again(None, out, a, b)
                    if done is ... and out is None:
                        done = self._differentiated(a, b)
                else:
                    done = again(_said(c_dtype, ab_dtype, arch, pinned, epilogue, operands), out, a, b, *operands.values())
                if done is not None and done is not NotImplemented and done is not ...:
                    return done
            if out is None and ab_dtype is None:
                a, b = operators.autocast(a, b)
            traced = operators.traced(a, b)
            if traced or operators.differentiated(a, b, *operands.values()):
                operators.refuse_options("matmul", arch=arch, stream=stream, pinned=pinned)
                from fireiron.matmul_operator import recorded, through_torch

                through = through_torch if traced else recorded
                return through(a, b, out, c_dtype, ab_dtype, epilogue, types, operands)
        if epilogue is None and not operands and operators.traced_by_jax(a, b):
            from fireiron.matmul_jax import through_jax

            return through_jax(a, b, out, stream, c_dtype=c_dtype, ab_dtype=ab_dtype, arch=arch, pinned=pinned)
        place = {"arch": arch, "stream": stream, "pinned": pinned}
        return self.launched(a, b, out, c_dtype=c_dtype, ab_dtype=ab_dtype, epilogue=epilogue, types=types, **place, **operands)

    def launched(
        self,
        a: Any,
        b: Any,
        out: Any = None,
        *,
        c_dtype: Any = None,
        ab_dtype: Any = None,
        arch: Any = None,
        stream: Any = None,
        pinned: bool | None = None,
        epilogue: str | None = None,
        types: Mapping[str, Any] | None = None,
        **operands: Any,
    ) -> Any:
        """The same by our kernels at once: what autograd, autocast or a compiler make of the call is not asked."""

        def anew(out: Any, a: Any, b: Any, *given: Any) -> Any:
            named = dict(zip(operands, given, strict=True))
            return self._anew(a, b, out, (c_dtype, ab_dtype), arch, stream, pinned, epilogue, types, named)

        inputs = a, b, *operands.values()
        if stream is not None or types is not None or not hasattr(a, "is_cuda"):
            return anew(out, *inputs)
        return self._replays.call(_said(c_dtype, ab_dtype, arch, pinned, epilogue, operands), out, inputs, anew)

    def _anew(
        self,
        a: Any,
        b: Any,
        out: Any,
        dtypes: Dtypes,
        arch: Any,
        stream: Any,
        pinned: bool | None,
        epilogue: str | None,
        types: Mapping[str, Any] | None,
        operands: Mapping[str, Any],
    ) -> Any:
        """The same, where no such call was made before."""
        if epilogue is not None:
            if _is_empty(a, b):
                return _empty_with_epilogue(a, b, out, dtypes, epilogue, types or {}, operands, {"arch": arch, "pinned": pinned})
            return self._plan(a, b, out, dtypes, arch, pinned, epilogue, types, operands)(a, b, out, operands, stream)
        if operands or types:
            name = next(iter({**operands, **(types or {})}))
            raise ArgumentError(f"matmul: {name} is given, and no epilogue reads it", hint=f'epilogue="acc + {name}[n]"')
        if _are_many(a, b) and not _is_empty(a, b):
            return self._many(a, b, out, dtypes, arch, stream, pinned)
        return self._found(a, b, out, dtypes, arch, pinned)(a, b, out, stream)

    def _many(self, a: Any, b: Any, out: Any, dtypes: Dtypes, arch: Any, stream: Any, pinned: bool | None) -> Any:
        """The product of arrays of other dimensions, as products of stacks."""
        plan, *seen, made = _in_stacks(a, b, out, dtypes)
        for index in plan.indices:
            left, right, target = (one[index] for one in seen)
            self._found(left, right, target, dtypes, arch, pinned)(left, right, target, stream)
        return made

    def choice(
        self, a: Any, b: Any, out: Any = None, *, c_dtype: Any = None, ab_dtype: Any = None, arch: Any = None, pinned: bool | None = None
    ) -> Choice:
        """What `matmul` takes for these arrays: the record, if one answers, and why; nothing is launched."""
        a, b, out = _first(a, b, out, (c_dtype, ab_dtype))
        return self._found(a, b, out, (c_dtype, ab_dtype), arch, pinned).made.choice

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
        from fireiron.matmul_tuned import measured

        a, b, out = _first(a, b, out, (c_dtype, ab_dtype))
        if _is_empty(a, b) or _odd(a, b, out):
            raise ArgumentError("matmul.tuned: arrays that kernels read as they lie", got="empty arrays, or such as are copied first")
        asked, stacked = _asked(a, b, out, (c_dtype, ab_dtype), arch, False)
        made = measured(asked, stacked, (a, b, out), candidates, report or (lambda line: None))
        with self._lock:
            before = self._problems.pop(asked, None)
            for key in [key for key, one in self._kernels.items() if isinstance(one, _Found) and one.made is before]:
                del self._kernels[key]
            self._replays.clear()
            keep(self._problems, asked, made)
        return made.choice

    def kernel(
        self,
        a: Any,
        b: Any,
        out: Any = None,
        *,
        c_dtype: Any = None,
        ab_dtype: Any = None,
        arch: Any = None,
        pinned: bool | None = None,
        epilogue: str | None = None,
        types: Mapping[str, Any] | None = None,
        **operands: Any,
    ) -> CompiledKernel:
        """The kernel that `matmul` calls for these arrays; with `b.T` and `a.T` where the choice is for the transposed product.

        Of a stack and a matrix it may multiply the rows of all matrices, as one. Of more dimensions it is called for each stack.
        """
        if epilogue is not None:
            return self._plan(a, b, out, (c_dtype, ab_dtype), arch, pinned, epilogue, types, operands).made.kernel
        a, b, out = _first(a, b, out, (c_dtype, ab_dtype))
        return self._found(a, b, out, (c_dtype, ab_dtype), arch, pinned).made.kernel

    @functools.cached_property
    def _differentiated(self) -> Callable[[Any, Any], Any]:
        """The product of two plain tensors that autograd records, by replayed calls."""
        from fireiron.matmul_operator import replayed

        return replayed(self._replays.again)

    def clear(self) -> None:
        """Forget all kernels, so that records and environment variables are read anew."""
        with self._lock:
            self._kernels.clear()
            self._problems.clear()
            self._finished.clear()
            self._replays.clear()

    def _found(self, a: Any, b: Any, out: Any, dtypes: Dtypes, arch: Any, pinned: bool | None) -> _Found | _Copied | _Empty:
        key = (key_of(a), key_of(b), out if out is None else key_of(out), dtypes, arch, pinned)
        return recall(self._kernels, self._lock, key, lambda: self._chosen(a, b, out, dtypes, arch, pinned))

    def _chosen(self, a: Any, b: Any, out: Any, dtypes: Dtypes, arch: Any, pinned: bool | None) -> _Found | _Copied | _Empty:
        """What answers a call that was not made before."""
        if _is_empty(a, b):
            return _empty(a, b, out, dtypes)
        places = _odd(a, b, out)
        if places:
            left, right = (copied(one) if place in places else one for place, one in enumerate((a, b)))
            if 2 in places:
                dtypes, out = _dtypes_of(a, out, dtypes), None
            return _Copied(_Found(*self._problem(left, right, out, dtypes, arch, pinned)), places)
        return _Found(*self._problem(a, b, out, dtypes, arch, pinned))

    def _problem(self, a: Any, b: Any, out: Any, dtypes: Dtypes, arch: Any, pinned: bool | None) -> tuple[_Made, Stacked]:
        """The kernel for arrays that kernels read, and how it sees them."""
        asked, stacked = _asked(a, b, out, dtypes, arch, pinned)
        return self._of_problem(asked), stacked

    def _plan(
        self, a: Any, b: Any, out: Any, dtypes: Dtypes, arch: Any, pinned: bool | None, text: str, types: Any, given: Mapping[str, Any]
    ) -> _Finished | _FinishedCopied:
        """What answers a call with an epilogue."""
        outs = out if out is None else tuple(out.items()) if isinstance(out, Mapping) else out if isinstance(out, tuple | list) else (out,)
        keys = None if outs is None else tuple((one[0], key_of(one[1])) if isinstance(one, tuple) else key_of(one) for one in outs)
        further = tuple((name, key_of(one) if getattr(one, "shape", ()) else None) for name, one in given.items())
        said = None if types is None else tuple(types.items())
        key = (key_of(a), key_of(b), keys, dtypes, arch, pinned, text, said, further)
        return recall(
            self._finished, self._lock, key, lambda: _finished_or_copied(a, b, out, dtypes, arch, pinned, text, types or {}, given)
        )

    def _of_problem(self, asked: _Asked) -> _Made:
        """The kernel of a problem: the one that it has already, else one that is chosen now."""
        found = self._problems.get(asked) or _kept_or_made(asked)
        keep(self._problems, asked, found)
        return found


def _said(c_dtype: Any, ab_dtype: Any, arch: Any, pinned: Any, epilogue: str | None, operands: Mapping[str, Any]) -> Any:
    """What tells calls with the same arrays apart."""
    if epilogue is None and c_dtype is None and ab_dtype is None and arch is None and pinned is None and not operands:
        return None
    return c_dtype, ab_dtype, arch, pinned, epilogue, *operands


matmul: Final = _MatMul()
"""The product of two arrays; see its `__call__`."""


# ---------------------------------------------------------------------------------------------- arrays that no kernel reads


def _is_empty(*arrays: Any) -> bool:
    """Whether an array has no element; what has no shape is refused where it is read."""
    return any(isinstance(shape := getattr(one, "shape", None), tuple) and 0 in shape for one in arrays)


def _empty(a: Any, b: Any, out: Any, dtypes: Dtypes) -> _Empty:
    """The answer for arrays without elements, checked as others are."""
    given = {name: operand_of(array, name) for name, array in (("a", a), ("b", b), ("out", out)) if array is not None or name != "out"}
    _check_types(given)
    shape = result_shape(given["a"].shape, given["b"].shape)
    if "out" in given and given["out"].shape != shape:
        raise ArgumentError(f"out has the shape {given['out'].shape}, the result {shape}")
    if not all(library(array) in LIBRARIES for array in (a, b)):
        name = "a" if 0 in given["a"].shape else "b"
        raise ArgumentError(f"{name} is empty", got=given[name].shape, legal="sizes of at least 1, of an array of this library")
    return _Empty(shape, _result(_multiplied(_TYPES[given["a"].dtype], dtypes[1]), given.get("out"), dtypes[0]))


def _lies_oddly(array: Any) -> bool:
    """Whether a matrix, or those of a stack, lie in neither storage order; of a library whose arrays are copied here."""
    if library(array) not in LIBRARIES or not isinstance(getattr(array, "shape", None), tuple):
        return False
    return not is_matrix_readable(*operand_of(array, "an array").places)


def _odd(*arrays: Any) -> frozenset[int]:
    """The places among `a`, `b` and `out` of those that lie oddly."""
    places = frozenset(place for place, one in enumerate(arrays) if one is not None and _lies_oddly(one))
    _refuse_repeated([arrays[place] for place in places if place == 2])
    return places


def _refuse_repeated(outs: Iterable[Any]) -> None:
    for out in outs:
        if any(step == 0 and size > 1 for size, step in zip(*operand_of(out, "out").places, strict=True)):
            raise ArgumentError("out repeats elements (broadcast)", got=tuple(out.shape), hint="pass an array of its own")


def _dtypes_of(a: Any, out: Any, dtypes: Dtypes) -> Dtypes:
    """The types that are asked for by an `out` that a new result takes the place of."""
    kind = _multiplied(_TYPES[operand_of(a, "a").dtype], dtypes[1])
    return _result(kind, operand_of(out, "out"), dtypes[0]), dtypes[1]


def _empty_with_epilogue(
    a: Any, b: Any, out: Any, dtypes: Dtypes, text: str, types: Mapping[str, Any], given: Mapping[str, Any], place: Mapping[str, Any]
) -> Any:
    """The outputs of an epilogue for arrays without elements; without terms the sums are zeros, as those of one term of zeros are."""
    found = _empty(a, b, None, dtypes)
    if 0 not in found.shape:
        left = zeroed(new_like(a, (*a.shape[:-1], 1), _TYPES[operand_of(a, "a").dtype]))
        right = zeroed(new_like(b, (*b.shape[:-2], 1, b.shape[-1]), _TYPES[operand_of(b, "b").dtype]))
        options = {"c_dtype": dtypes[0], "ab_dtype": dtypes[1], "types": types or None, **place}
        return matmul.launched(left, right, out, epilogue=text, **options, **given)
    stacked = len(found.shape) == 3
    made = epilogue_of(text, signature="bmk,bkn->bmn" if stacked else "").made
    sizes = dict(zip("bmn" if stacked else "mn", found.shape, strict=True))
    shapes = {name: tuple(sizes[dim] for dim in made.uses[name]) for name in made.outputs}
    summed = next((name for name, shape in shapes.items() if 0 not in shape), None)
    if summed is not None:
        asked = f"matmul: {summed} of the epilogue is made of no element: the result has the shape {found.shape}"
        raise ArgumentError(asked, got=text, legal="outputs along the dimension without elements")
    if out is not None:
        return out
    plain = {name: found.kind if len(shape) == len(found.shape) else float32 for name, shape in shapes.items()}
    kinds = {**plain, **{name: as_dtype(kind) for name, kind in types.items()}}
    results = tuple(new_like(a, shape, kinds[name]) for name, shape in shapes.items())
    return results if len(results) > 1 else results[0]


# ---------------------------------------------------------------------------------------------- arrays of many dimensions


def _are_many(a: Any, b: Any) -> bool:
    """Whether arrays are of other dimensions than matrices and stacks have."""
    shapes = (getattr(one, "shape", None) for one in (a, b))
    return not all(2 <= len(shape) <= 3 for shape in shapes if isinstance(shape, tuple))  # what has no shape is refused where it is read


def _in_stacks(a: Any, b: Any, out: Any, dtypes: Dtypes) -> tuple[Any, ...]:
    """How arrays are multiplied as stacks, their views, and the result, new if there is none."""
    arrays = {"a": a, "b": b} if out is None else {"a": a, "b": b, "out": out}
    given = {name: operand_of(array, name) for name, array in arrays.items()}
    if not _have_views(arrays.values()) and any(one.device is not None for one in given.values()):
        _check(given)
    _check_types(given)
    plan = batches(given["a"].places, given["b"].places, given["out"].places if "out" in given else None)
    if out is not None and given["out"].shape != plan.shape:
        raise ArgumentError(f"out has the shape {given['out'].shape}, the result {plan.shape}")
    kind = _result(_multiplied(_TYPES[given["a"].dtype], dtypes[1]), given.get("out"), dtypes[0])
    made = new_like(a, plan.shape, kind) if out is None else out
    return plan, viewed(a, plan.a), viewed(b, plan.b), viewed(made, plan.c), made


def _first(a: Any, b: Any, out: Any, dtypes: Dtypes) -> tuple[Any, Any, Any]:
    """Arrays of other dimensions as the first of their products has them."""
    if not _are_many(a, b) or _is_empty(a, b):
        return a, b, out
    plan, *seen, _ = _in_stacks(a, b, out, dtypes)
    index = next(iter(plan.indices))
    left, right, target = (one[index] for one in seen)
    return left, right, target


# ---------------------------------------------------------------------------------------------- arrays


def key_of(array: Any) -> Any:
    """What tells arrays of one library apart, as that library has it, so that a call costs little."""
    kind = type(array).__module__.partition(".")[0]
    if kind == "torch":
        return array.shape, array.stride(), array.dtype, _alignment(array.data_ptr()), array.get_device()
    if kind == "cupy":
        return array.shape, array.strides, array.dtype, _alignment(array.data.ptr), array.data.device_id
    return operand_of(array, "the array")


def operand_of(array: Any, name: str) -> Operand:
    """What of an array decides; an ArgumentError for what is no array on a GPU or of NumPy."""
    kind = type(array).__module__.partition(".")[0]
    if kind == "numpy" and hasattr(array, "strides"):
        align = min(_alignment(array.__array_interface__["data"][0]), ALIGNMENT)  # more would be chance
        return Operand(array.shape, _steps(array.strides, array.dtype.itemsize, name), array.dtype.name, align, None)
    if kind == "torch":
        if not array.is_cuda:
            raise operators.refused_on_host("", name, array.device)
        dtype = str(array.dtype).removeprefix("torch.")
        return Operand(tuple(array.shape), array.stride(), dtype, _alignment(array.data_ptr()), array.get_device())
    if kind == "cupy":
        steps = _steps(array.strides, array.dtype.itemsize, name)
        return Operand(array.shape, steps, array.dtype.name, _alignment(array.data.ptr), array.data.device_id)
    return _foreign(array, name)


def _foreign(array: Any, name: str) -> Operand:
    """An array of another library on a GPU: by `__cuda_array_interface__`, or by DLPack, then row-major unless the launch refuses."""
    shape, dtype = getattr(array, "shape", None), getattr(array, "dtype", None)
    if operators.traced_by_jax(array):
        return Operand(tuple(array.shape), _packed(tuple(array.shape)), str(dtype), ALIGNMENT, _current_device())
    on_gpu = hasattr(array, "__dlpack_device__") and array.__dlpack_device__()[0] in (2, 13)
    if shape is None or dtype is None or not (on_gpu or hasattr(array, "__cuda_array_interface__")):
        legal = "a CuPy, PyTorch or JAX array on a GPU, or a NumPy array for the simulator"
        raise ArgumentError(f"{name} is no array on a GPU, nor of NumPy", got=type(array).__name__, legal=legal)
    device = array.__dlpack_device__()[1] if on_gpu else _current_device()
    interface = getattr(array, "__cuda_array_interface__", None)
    if interface is None:
        return Operand(tuple(shape), _packed(tuple(shape)), str(dtype), ALIGNMENT, device)
    import numpy

    size = numpy.dtype(interface["typestr"]).itemsize
    strides = interface.get("strides")
    steps = _packed(tuple(shape)) if strides is None else _steps(tuple(strides), size, name)
    return Operand(tuple(shape), steps, str(dtype), _alignment(interface["data"][0]), device)


def _current_device() -> int:
    from fireiron.gpu import launch

    return int(launch.require_cupy().cuda.Device().id)


def _packed(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(math.prod(shape[dim + 1 :]) for dim in range(len(shape)))


def _steps(strides: tuple[int, ...], size: int, name: str) -> tuple[int, ...]:
    """Strides in elements."""
    if any(stride % size for stride in strides):
        raise ArgumentError(f"{name} has strides of {strides} bytes, its elements {size}", hint="pass a copy")
    return tuple(stride // size for stride in strides)


def _alignment(address: int) -> int:
    """The largest power of two, up to 64, that divides an address."""
    low = address & (_MOST_ALIGNED - 1)
    return low & -low or _MOST_ALIGNED


def order_of(shape: tuple[int, ...], steps: tuple[int, ...]) -> MatrixLayout | None:
    """Row- or column-major with a leading dimension, as the steps of a matrix say; None where it is stored in neither order."""
    (rows, columns), (down, along) = shape, steps
    for order, inner, outer, step, leading in ((RowMajor, columns, rows, along, down), (ColMajor, rows, columns, down, along)):
        if (inner == 1 or step == 1) and (outer == 1 or leading >= inner):
            return order if outer == 1 or leading == inner else order(ld=leading)
    return None


def _layout(operand: Operand, name: str) -> MatrixLayout:
    """Row- or column-major with a leading dimension, as the strides say; steps along a dimension of one element do not matter."""
    found = order_of(operand.shape, operand.steps)
    if found is not None:
        return found
    what = "repeats elements (broadcast)" if 0 in operand.steps else "is stored in neither order"
    raise ArgumentError(
        f"{name} {what}: steps of {operand.steps} elements for the shape {operand.shape}",
        legal="row-major or column-major, rows or columns any distance apart",
        hint=f"pass a copy: {name}.copy(), {name}.contiguous()",
    )


def _storage(operand: Operand, name: str, dims: str) -> StorageOrder:
    """The storage of a matrix, or of a stack whose matrices are stored so, any distance apart; `dims` are its dimensions."""
    if len(dims) == 2:
        return _layout(operand, name)
    (stack, rows, columns), (apart, *inside) = operand.shape, operand.steps
    one = _layout(attrs.evolve(operand, shape=(rows, columns), steps=tuple(inside)), name)
    leading = constant(one.leading) if one.leading is not None else columns if one.order == RowMajor.order else rows
    assert leading is not None
    if one.order == RowMajor.order and (stack == 1 or apart == rows * leading):
        return one
    steps = (leading, 1) if one.order == RowMajor.order else (1, leading)
    return Strides(**dict(zip(dims, (apart, *steps), strict=True)))


# ---------------------------------------------------------------------------------------------- from arrays to a kernel


Kept = TypeVar("Kept")


def recall(kernels: OrderedDict[Any, Kept], lock: AbstractContextManager[Any], key: Any, make: Callable[[], Kept]) -> Kept:
    """What was kept for a key, else what is made now, by one thread at a time."""
    found = kernels.get(key)
    if found is not None:
        try:  # noqa: SIM105 (in every call, and a context manager costs as much as the rest of it)
            kernels.move_to_end(key)
        except KeyError:  # another thread forgot it meanwhile
            pass
        return found
    with lock:
        found = kernels.get(key) or make()
        keep(kernels, key, found)
    return found


def keep(kernels: OrderedDict[Any, Any], key: Any, made: Any) -> None:
    """Keep a kernel, and forget those that were not used for longest where there are too many."""
    kernels[key] = made
    kernels.move_to_end(key)
    while len(kernels) > MOST_KERNELS:
        kernels.popitem(last=False)


def _asked(a: Any, b: Any, out: Any, dtypes: Dtypes, arch: Any, pinned: bool | None, folds: bool = True) -> tuple[_Asked, Stacked]:
    from fireiron.tune.records import is_pinned

    arrays = {"a": a, "b": b} if out is None else {"a": a, "b": b, "out": out}
    given = {name: operand_of(array, name) for name, array in arrays.items()}
    _check(given)
    out_places = given["out"].places if "out" in given else None
    stacked = seen(given["a"].places, given["b"].places, out_places, folds)
    given = {name: _seen(one, way) for (name, one), way in zip(given.items(), (stacked.a, stacked.b, stacked.c), strict=False)}
    problems = _problems(given, dtypes, _have_views(arrays.values()), stacked)
    device = given["a"].device
    architecture = as_architecture(target_of(device) if arch is None else arch)
    return _Asked(tuple(problems), tuple(problems[0].aligned.values()), architecture, is_pinned(pinned), device), stacked


def _seen(operand: Operand, way: Way) -> Operand:
    shape, steps = way.stepped(operand.shape, operand.steps)
    return attrs.evolve(operand, shape=shape, steps=steps)


def _kept_or_made(asked: _Asked) -> _Made:
    """The kernel of a problem on a GPU as another process chose it, else one that is chosen now, and kept."""
    from fireiron.tune.records import kept

    def choose() -> tuple[Choice, int]:
        choice, problem = _decided(asked)
        return choice, asked.problems.index(problem)

    choice, number = kept.chosen("matmul", asked.architecture, asked.device, asked.told, choose)
    return with_adding(choice, asked.problems[number], asked.device)


def with_adding(choice: Choice, problem: Problem, device: int | None) -> _Made:
    """The kernel of a choice, and the one that adds up where the choice is for parts of K."""
    from fireiron.gpu.kernel import CompiledKernel, compiled_together

    kernel, spec = CompiledKernel(choice.program), choice.program.spec
    if "b" not in spec.dims or "b" in problem.spec.dims:
        return _Made(kernel, choice, problem)
    from fireiron.language.library import LIBRARY

    parts = constant(spec.size("b"))
    assert parts is not None
    adding = importlib.import_module(f"{LIBRARY}.add_parts").adding(problem.spec, parts)
    behind = CompiledKernel(adding.program(choice.program.architecture))
    if device is not None:
        compiled_together(kernel, behind)
    return _Made(kernel, choice, problem, behind, parts)


def in_parts_of_k(asked: _Asked, whole: float | None, problem: Problem) -> list[tuple[float, int, Problem]]:
    """Microseconds that are expected of a product in parts of K, how many, and the stack of them, the fastest first.

    Those that are expected to be faster than the `whole`, which is what is expected of it where that is None.
    """
    from fireiron.tune.records import available, in_parts
    from fireiron.tune.records.choosing import Question

    question = Question(problem.spec, asked.architecture, gpu_name(asked.device))
    views = asked.device is None or len(asked.problems) > 1  # the parts of a factor are views of it
    tried = [] if asked.pinned or problem.transposed or not views else in_parts.numbers_for(problem.spec, question)
    if not tried:
        return []
    records = available(asked.pinned).records
    whole = in_parts.expected(records, question) if whole is None else whole
    rows, columns = (constant(problem.spec.size(dim)) or 1 for dim in "mn")
    found = []
    for parts in tried:
        stack = _stack_of(problem, parts)
        us = in_parts.expected(records, attrs.evolve(question, spec=stack.spec))
        if us is not None and whole is not None:
            found.append((us + in_parts.adding_us(rows, columns, parts), parts, stack))
    return sorted((one for one in found if whole is not None and one[0] < whole), key=lambda one: one[:2])


def _in_parts(asked: _Asked, choice: Choice, problem: Problem) -> Choice | None:
    """The choice for parts of K, where that is expected to be faster than a choice for the whole."""
    recorded = choice.record.us if choice.exact and choice.record is not None else None
    for us, parts, stack in in_parts_of_k(asked, recorded, problem)[:1]:
        return choice_in_parts(asked, us, parts, stack)
    return None


def choice_in_parts(asked: _Asked, us: float, parts: int, stack: Problem) -> Choice | None:
    """The tile for a stack of parts that is expected to take least; None where none is legal."""
    from fireiron.tune.records import available

    accept = functools.partial(_answers_for, stack)
    found = available(asked.pinned).by_tiles(stack.spec, asked.architecture, gpu=gpu_name(asked.device), accept=accept)
    if found is None:
        return None
    why = f"{parts} parts of K, which add_parts adds up: {us:.4g} us expected; for the parts {found.why}"
    return attrs.evolve(found, exact=False, why=why)


def _stack_of(problem: Problem, parts: int) -> Problem:
    """The product of a stack whose matrices are parts of K, with a result of float32."""
    places = cut(problem.operands["A"].places, problem.operands["B"].places, parts)
    given = {
        name: attrs.evolve(problem.operands[letter], shape=shape, steps=steps)
        for name, letter, (shape, steps) in zip("ab", "AB", places, strict=True)
    }
    stacked = seen(*places, None, folds=False)
    spec = _spec(given, (float32, problem.spec.operands["A"].dtype), RowMajor, stacked)
    return Problem(spec, False, dict(zip("AB", given.values(), strict=True)))


def _decided(asked: _Asked) -> tuple[Choice, Problem]:
    """What is taken, and for which of the problems: in parts of K where that is expected to be faster."""
    from fireiron.gpu.kernel import CompiledKernel
    from fireiron.tune.records.default import default_choice

    choice, problem = _chosen(asked)
    parts = _in_parts(asked, choice, problem)
    if parts is not None and (asked.device is None or refused_by_compiler(CompiledKernel(parts.program)) is None):
        return parts, problem
    refused = None if asked.device is None else refused_by_compiler(CompiledKernel(choice.program))
    if refused is None or asked.pinned:
        return choice, problem
    # A compiler of another version may serialize products that the one of the measurements does not: another tile then.
    other = default_choice(
        problem.spec, asked.architecture, lambda one: problem.served(one) and refused_by_compiler(CompiledKernel(one)) is None
    )
    return attrs.evolve(other, why=f"{other.why}; {choice.why} was first, but {refused.headline}"), problem


def refused_by_compiler(kernel: Any) -> LaunchError | None:
    """Why the compiler refuses a kernel with a producer; None where it does not, where there is none, and for all other kernels."""
    if not kernel.ir.rings or kernel.compiler is None:
        return None
    try:
        _ = kernel.compiled
    except LaunchError as error:
        return error
    return None


def _have_views(arrays: Iterable[Any]) -> bool:
    """Whether `array.T` is the same memory on a GPU, for arrays of one library: a new result is of the first one's, in either order.

    In the simulator the storage of the result does not matter.
    """
    kinds = {type(array).__module__.partition(".")[0] for array in arrays}
    return kinds in ({"torch"}, {"cupy"})


def _problems(given: Given, dtypes: Dtypes, views: bool, stacked: Stacked) -> list[Problem]:
    """The product, and the transposed one C.T = B.T A.T, which reads and writes the same memory; the likelier first.

    What computes float32 without tensor cores stores column-major, so a row-major result is better computed transposed. Not so a stack.
    """
    plain = Problem(_spec(given, dtypes, RowMajor, stacked), False, dict(zip("ABC", given.values(), strict=False)))
    if not views or stacked.signature:
        return [plain]
    swapped = {name: _turned(given[other]) for name, other in (("a", "b"), ("b", "a"), ("out", "out")) if other in given}
    turned = Problem(_spec(swapped, dtypes, ColMajor, stacked), True, dict(zip("ABC", swapped.values(), strict=False)))
    on_plain_units = plain.spec.operands["A"].dtype in (float32, float64)
    by_rows = plain.result_order == RowMajor.order
    return [turned, plain] if on_plain_units and by_rows else [plain, turned]


def _turned(operand: Operand) -> Operand:
    return attrs.evolve(operand, shape=operand.shape[::-1], steps=operand.steps[::-1])


def _check(given: Given) -> None:
    for name, operand in given.items():
        rank = len(operand.shape)
        if rank not in (2, 3):
            hint = f"{name}.reshape(-1, {operand.shape[-2]}, {operand.shape[-1]}), one stack of all matrices" if rank > 3 else None
            asked = f"{name} has {rank} dimensions; with an epilogue, and of JAX, matmul takes matrices and stacks of them"
            raise ArgumentError(asked, got=operand.shape, legal="2 or 3", hint=hint)
    _check_types(given)
    a, b, out = given["a"], given["b"], given.get("out")
    result = result_shape(a.shape, b.shape)
    stack_of(a.shape, b.shape)
    if out is not None and out.shape != result:
        raise ArgumentError(f"out has the shape {out.shape}, the result {result}")


def _check_multiplied(name: str, dtype: str) -> None:
    if dtype not in _MULTIPLIED:
        raise ArgumentError(f"{name}: no kernels for its element type", got=dtype, legal=_MULTIPLIED)


def _check_types(given: Given) -> None:
    for name, operand in given.items():
        _check_multiplied(name, operand.dtype)
    multiplied_type(given["a"].dtype, given["b"].dtype)
    if len({operand.device for operand in given.values()}) > 1:
        places = {name: "host" if one.device is None else f"GPU {one.device}" for name, one in given.items()}
        raise ArgumentError("the arrays are in different places", got=places, hint="all on one GPU, or all NumPy for the simulator")


def _spec(given: Given, dtypes: Dtypes, result_order: MatrixLayout, stacked: Stacked) -> Spec:
    a, b, out = given["a"], given["b"], given.get("out")
    kind = _multiplied(_TYPES[a.dtype], dtypes[1])
    dims = stacked.dims
    sizes = {dim: size for one, names in zip((a, b), dims, strict=False) for dim, size in zip(names, one.shape, strict=True)}
    layouts = {name: _storage(one, name, names) for (name, one), names in zip(given.items(), dims, strict=False)}
    orders: dict[str, Any] = {"A": layouts["a"], "B": layouts["b"], "C": layouts.get("out", result_order)}
    options = {"dtype": kind, "c_dtype": _result(kind, out, dtypes[0]), "signature": stacked.signature, **orders}
    spec: Spec = MatMul(*(sizes[dim] for dim in (*dims[2], "k")), **options)(GL, GL, GL)(Kernel)
    loose = {name: min(one.align, ALIGNMENT) for name, one in zip("ABC", given.values(), strict=False) if one.align < ALIGNMENT}
    return spec.with_operands(**{name: _loosened(spec.operands[name], align) for name, align in loose.items()})


def _loosened(view: View, align: int) -> View:
    return attrs.evolve(view, tensor=attrs.evolve(view.tensor, align=align))


def multiplied_type(a: str, b: str, ab_dtype: Any = None) -> DType:
    """The type that elements of two types are multiplied in, by NumPy's names; an ArgumentError where there is none."""
    _check_multiplied("a", a)
    _check_multiplied("b", b)
    if a != b:
        raise ArgumentError(f"a has elements of {a}, b of {b}", hint="convert one of them")
    return _multiplied(_TYPES[a], ab_dtype)


def result_type(kind: DType, c_dtype: Any = None) -> str:
    """The type of a new result of factors of a type, by NumPy's name."""
    return _result(kind, None, c_dtype).numpy


def _multiplied(kind: DType, wanted: Any) -> DType:
    """The type of the factors: that of the arrays, or another one that is stored alike."""
    if wanted is None or as_dtype(wanted) == kind:
        return kind
    legal = [one for one in DTYPES if one.numpy == kind.numpy]
    if as_dtype(wanted) not in legal:
        raise ArgumentError(f"ab_dtype: the arrays have elements of {kind}", got=as_dtype(wanted), legal=legal)
    return as_dtype(wanted)


def _result(kind: DType, out: Operand | None, c_dtype: Any) -> DType:
    wanted = None if c_dtype is None else as_dtype(c_dtype)
    if wanted is not None and wanted.numpy not in _MULTIPLIED:
        raise ArgumentError("c_dtype: no kernels for results of this type", got=wanted, legal=_MULTIPLIED)
    if out is None:
        return wanted or default_result(kind)
    if wanted is not None and wanted.numpy != out.dtype:
        raise ArgumentError(f"out has elements of {out.dtype}, c_dtype is {wanted}")
    return wanted or _TYPES[out.dtype]


def target_of(device: int | None) -> str:
    """The best target of a GPU; the default one for the simulator."""
    if device is None:
        return DEFAULT_ARCHITECTURE
    from fireiron.gpu import launch
    from fireiron.gpu.kernel import target_for

    cupy = launch.require_cupy()
    with cupy.cuda.Device(device):
        return target_for(launch.device_arch())


def _chosen(asked: _Asked) -> tuple[Choice, Problem]:
    """The record that answers, for the product or the transposed one; else, if records are not pinned, the library's default."""
    from fireiron.tune.records import available, preference
    from fireiron.tune.records.default import default_choice

    problems, architecture = asked.problems, asked.architecture
    records, gpu = available(asked.pinned), gpu_name(asked.device)
    exact = [(records.find(one.spec, architecture, neighbours=False, gpu=gpu, accept=one.served), one) for one in problems]
    found = [(choice, problem) for choice, problem in exact if choice is not None and choice.record is not None]
    if found:
        choice, problem = min(found, key=lambda one: preference(one[0].record, gpu) if one[0].record else ())
        return (None if asked.pinned else _faster(records, choice, problem, asked)) or (choice, problem)
    first = problems[0]
    if asked.pinned:
        return records.best(first.spec, architecture, neighbours=False, gpu=gpu, accept=first.served), first
    for one in problems:
        tile = records.by_tiles(one.spec, architecture, gpu=gpu, accept=functools.partial(_answers_for, one))
        if tile is not None:
            return tile, one
    for one in problems:
        near = records.find(one.spec, architecture, gpu=gpu, accept=functools.partial(_answers_for, one))
        if near is not None:
            return near, one
    return default_choice(first.spec, architecture, first.served), first


def _faster(records: Records, choice: Choice, problem: Problem, asked: _Asked) -> tuple[Choice, Problem] | None:
    """What is expected to be faster than a record of just this problem that was measured with an older target's instructions."""
    record = choice.record
    if record is None or record.architecture == asked.architecture.name:
        return None
    accept = functools.partial(_answers_for, problem)
    tile = records.by_tiles(problem.spec, asked.architecture, gpu=gpu_name(asked.device), accept=accept, below=record.us)
    return None if tile is None else (tile, problem)


def _answers_for(problem: Problem, program: Program) -> bool:
    """Whether a neighbour's values tell something of a problem: not where its program copies by threads what theirs copies by TMA."""
    return problem.served(program) and (program.strategy.target != WARPGROUP_ARCHITECTURE or bool(program.ir.rings))


def gpu_name(device: int | None) -> str | None:
    """What a GPU calls itself; None for the host."""
    if device is None:
        return None
    from fireiron.gpu import launch

    name = launch.require_cupy().cuda.runtime.getDeviceProperties(device)["name"]
    return name.decode() if isinstance(name, bytes) else str(name)


# ---------------------------------------------------------------------------------------------- epilogues


def _finished_or_copied(
    a: Any, b: Any, out: Any, dtypes: Dtypes, arch: Any, pinned: bool | None, text: str, types: Mapping[str, Any], given: Mapping[str, Any]
) -> _Finished | _FinishedCopied:
    """The kernel for a product with an epilogue, of copies of those arrays that no kernel reads as they lie."""
    names = outputs_of(text, max(len(getattr(a, "shape", ())), len(getattr(b, "shape", ()))) == 3)
    outs = dict(zip(names, _each(out, names), strict=True)) if out is not None else {}
    arrays = {**{name: one for name, one in given.items() if getattr(one, "shape", ())}, "a": a, "b": b}
    odd = frozenset(name for name, one in {**arrays, **outs}.items() if _lies_oddly(one))
    if not odd:
        return _finished(a, b, out, dtypes, arch, pinned, text, types, given)
    _refuse_repeated([outs[name] for name in odd if name in outs])
    seen = {name: copied(one) if name in odd else one for name, one in arrays.items()}
    a, b, given = seen.pop("a"), seen.pop("b"), {**given, **seen}
    if not odd.isdisjoint(outs):  # results of the same types take the place of all outputs
        types = {**types, **{name: operand_of(one, name).dtype for name, one in outs.items() if name != RESULT}}
        dtypes, out = (_dtypes_of(a, outs[RESULT], dtypes) if RESULT in outs else dtypes), None
    return _FinishedCopied(_finished(a, b, out, dtypes, arch, pinned, text, types, given), odd)


def _finished(
    a: Any, b: Any, out: Any, dtypes: Dtypes, arch: Any, pinned: bool | None, text: str, types: Mapping[str, Any], given: Mapping[str, Any]
) -> _Finished:
    """The kernel for a product with an epilogue: by a record of just this, by the strategy for the plain product, else by a default."""
    shaped = {name: array for name, array in given.items() if getattr(array, "shape", ())}
    further = {name: operand_of(array, name) for name, array in shaped.items()}
    stacked_in = max(len(getattr(a, "shape", ())), len(getattr(b, "shape", ()))) == 3
    folds = stacked_in and not several(out) and folds_rows(text)
    several_outs = _each(out, outputs_of(text, stacked_in)) if out is not None else ()
    outs = {} if out is None else dict(zip(outputs_of(text, stacked_in), several_outs, strict=True))
    asked, stacked = _asked(a, b, outs.get(RESULT), dtypes, arch, pinned, folds)
    one_matrix = stacked_in and not stacked.signature
    inner = without_stacks(text) if one_matrix else text
    folded = frozenset(name for name in (*further, *outputs_of(text, stacked_in)) if one_matrix and _of_stack(text, name))
    further |= {name: operand_of(array, name) for name, array in outs.items() if name != RESULT}
    seen_so = {name: _seen_as(one, stacked, name in folded) for name, one in further.items()}
    specs = {one: _with_operands(one, transposed(inner) if one.transposed else inner, seen_so, types, given) for one in asked.problems}
    choice, problem = _kept_or_finished(specs, seen_so, asked, text)
    from fireiron.gpu.kernel import CompiledKernel

    spec, turned = specs[problem]
    made = _Made(CompiledKernel(choice.program), choice, problem)
    return _Finished(made, stacked, tuple(name for name in spec.inputs if name not in "AB"), spec.outputs, turned, folded)


def _kept_or_finished(specs: Specs, further: Given, asked: _Asked, text: str) -> tuple[Choice, Problem]:
    """The choice for a product with an epilogue as another process made it, else one that is made now, and kept."""
    from fireiron.tune.records import kept

    problems = tuple(specs)

    def choose() -> tuple[Choice, int]:
        choice, problem = _recorded(specs, further, asked) or _by_product(specs, further, asked, text)
        return choice, problems.index(problem)

    aligned = asked.aligned, {name: one.align for name, one in further.items()}
    made = tuple((one.spec, one.transposed, spec) for one, (spec, _) in specs.items())
    choice, number = kept.chosen("epilogue", asked.architecture, asked.device, (made, aligned, asked.pinned), choose)
    return choice, problems[number]


Specs = Mapping[Problem, tuple[Spec, frozenset[str]]]
"""The specs of a product with an epilogue, for it and for the transposed one; and which outputs are transposed arrays then."""


def _recorded(specs: Specs, further: Given, asked: _Asked) -> tuple[Choice, Problem] | None:
    """The record that was measured for just this product with this epilogue."""
    from fireiron.tune.records import available

    records, gpu = available(asked.pinned), gpu_name(asked.device)
    for problem, (spec, _) in specs.items():
        accept = functools.partial(fits, _aligned(problem, further))
        choice = records.find(spec, asked.architecture, neighbours=False, gpu=gpu, accept=accept)
        if choice is not None:
            return choice, problem
    return None


def _by_product(specs: Specs, further: Given, asked: _Asked, text: str) -> tuple[Choice, Problem]:
    """The strategy for the plain product with the epilogue, else a default that is legal with it."""
    choice, chosen = _chosen(asked)
    refusals: list[str] = []
    for problem in (chosen, *(one for one in asked.problems if one is not chosen)):
        program = _bound(choice if problem is chosen else None, problem, specs[problem][0], further, asked, refusals)
        if program is not None:
            return attrs.evolve(choice, program=program), problem
    said = "; ".join(dict.fromkeys(refusals))
    raise ArgumentError(f"no strategy of the library computes {text!r} behind {chosen.spec} on {asked.architecture}", got=said)


def several(out: Any) -> bool:
    """Whether more than one output is given."""
    return isinstance(out, tuple | list | Mapping) and len(out) > 1


def _each(out: Any, names: Iterable[str]) -> tuple[Any, ...]:
    """The arrays for the outputs, from one, a tuple of all, or a mapping by name."""
    wanted = tuple(names)
    if isinstance(out, Mapping):
        if set(out) != set(wanted):
            raise ArgumentError("out: other outputs than the epilogue has", got=tuple(out), legal=wanted)
        return tuple(out[name] for name in wanted)
    arrays = tuple(out) if isinstance(out, tuple | list) else (out,)
    if len(arrays) != len(wanted):
        raise ArgumentError(f"out: {len(arrays)} arrays, the epilogue has {len(wanted)} outputs", legal=wanted)
    return arrays


def _of_stack(text: str, name: str) -> bool:
    """Whether the epilogue names an operand for each matrix of a stack."""
    made = epilogue_of(text, signature="bmk,bkn->bmn").made
    return "b" in made.uses.get(name, ())


def _seen_as(operand: Operand, stacked: Stacked, folded: bool) -> Operand:
    """A further operand as the kernel sees it: where a stack is seen as one matrix, so are the arrays for each of its matrices."""
    if not folded:
        return operand
    if stacked.c is Way.FIRST:
        return attrs.evolve(operand, shape=operand.shape[1:], steps=operand.steps[1:])
    shape = (operand.shape[0] * operand.shape[1], *operand.shape[2:])
    return attrs.evolve(operand, shape=shape, steps=operand.steps[1:])


def _with_operands(
    problem: Problem, text: str, further: Mapping[str, Operand], types: Mapping[str, Any], given: Mapping[str, Any]
) -> tuple[Spec, frozenset[str]]:
    """The spec of a product with an epilogue, of the arrays; and which outputs are transposed arrays."""
    plain = problem.spec
    made = epilogue_of(text, signature=signature_of(plain)).made
    inputs = [name for name in made.uses if name not in plain.operands and name not in made.outputs and not name.startswith(INDICES)]
    missing = [name for name in inputs if name not in given]
    if missing:
        meant = closest(missing[0], [name for name in given if name not in inputs])
        hint = f"did you mean {meant}, which is given?" if meant else f"matmul(a, b, {missing[0]}=...)"
        raise ArgumentError(f"matmul: the epilogue reads {', '.join(missing)}, which is not given", got=text if meant else None, hint=hint)
    unknown = [name for name in given if name not in inputs]
    if unknown:
        raise ArgumentError(f"matmul: the epilogue does not read {unknown[0]}", got=text, legal=inputs or "none")
    bare = [name for name in inputs if made.uses[name] and name not in further]
    if bare:
        place = f"{bare[0]}[{','.join(made.uses[bare[0]])}]"
        raise ArgumentError(
            f"matmul: {bare[0]} is a number, and the epilogue reads {place}", got=given[bare[0]], hint=f"an array, or {bare[0]}"
        )
    strange = [name for name in types if name not in made.outputs or name == RESULT]
    if strange:
        raise ArgumentError(f"matmul: types: {strange[0]} is no further output", legal=[one for one in made.outputs if one != RESULT])
    turned = frozenset(name for name in made.outputs if problem.transposed and made.uses[name] == ("m", "n"))
    kinds: dict[str, Any] = {name: as_dtype(kind) for name, kind in types.items()}
    orders: dict[str, StorageOrder] = {name: ColMajor for name in turned if name != RESULT}
    for name, one in further.items():
        one = _turned(one) if name in turned else one
        if name != RESULT and name in made.uses:
            orders[name] = _stored(one, name, made.uses[name], plain)
            kinds[name] = _FURTHER[one.dtype]
    spec = with_epilogue(plain, text, kinds, orders)
    loose = {name: min(one.align, ALIGNMENT) for name, one in further.items() if name in spec.operands and one.align < ALIGNMENT}
    return spec.with_operands(**{name: _loosened(spec.operands[name], align) for name, align in loose.items()}), turned


def _stored(operand: Operand, name: str, dims: tuple[str, ...], plain: Spec) -> StorageOrder:
    """How a further operand is stored; refused where its shape is not that of its dimensions."""
    wanted = tuple(constant(plain.size(dim)) for dim in dims)
    if not dims:
        raise ArgumentError(f"{name} is passed by value, and is given as an array of {operand.shape}", hint=f"a number, or {name}[n]")
    if operand.dtype not in _FURTHER:
        raise ArgumentError(f"{name}: no kernels for its element type", got=operand.dtype, legal=list(_FURTHER))
    if operand.shape != wanted:
        raise ArgumentError(f"{name} has the shape {operand.shape}", legal=f"{wanted}, as {name}[{','.join(dims)}] says")
    if len(dims) == 1:
        return RowMajor if operand.steps[0] == 1 or operand.shape == (1,) else Strides(**{dims[0]: operand.steps[0]})
    return _layout(operand, name) if len(dims) == 2 else _storage(operand, name, "bmn")


def _bound(
    choice: Choice | None, problem: Problem, spec: Spec, further: Mapping[str, Operand], asked: _Asked, refusals: list[str]
) -> Program | None:
    """The program of the strategy that was chosen for the plain product, else of a default; None where none of them is legal."""
    from fireiron.language.library import default_strategy, defaults

    def candidates() -> Iterable[tuple[str, Strategy]]:
        if choice is not None:
            chosen = choice.program
            yield chosen.name, chosen.strategy
        for name, values in defaults(problem.spec, asked.architecture):
            yield name, default_strategy(name, values, problem.spec)

    aligned = _aligned(problem, further)
    for name, strategy in candidates():
        try:
            program = strategy.on_product(spec).program(asked.architecture)
            _ = program.ir
        except FireironError as error:
            refusals.append(f"{name}: {error.headline}")
            continue
        if fits(aligned, program):
            return program
        refusals.append(f"{name}: the arrays are aligned to {aligned} bytes, it needs {_needed(program)}")
    return None


def _aligned(problem: Problem, further: Mapping[str, Operand]) -> dict[str, int]:
    """Bytes by operand, those of an epilogue included."""
    return {**problem.aligned, **{name: one.align for name, one in further.items()}}


def _needed(program: Program) -> dict[str, int]:
    """The bytes to which a program needs its arrays aligned."""
    buffers = program.sequential.buffers
    needed = {buffer.name: buffer.tensor.align for buffer in buffers if buffer.parameter and not buffer.memory.by_value}
    return needed | {launch.name: launch.program.sequential.buffer("src").tensor.align for launch in program.launches}


def fits(aligned: Mapping[str, int], program: Program) -> bool:
    """Whether arrays are aligned as a program needs them; a new result always is."""
    return all(aligned.get(name, _MOST_ALIGNED) >= align for name, align in _needed(program).items())
