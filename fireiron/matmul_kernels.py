"""Find the answer for a call of `fireiron.matmul`: a kernel on views of the arrays or copies, a loop of batched matmuls, or no kernel."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs

from fireiron.batched_matmul import BatchViews
from fireiron.batches import Batches, batches, new_like, result_shape, viewed
from fireiron.copies import LIBRARIES, library, refuse_stream, zeroed
from fireiron.errors import ArgumentError
from fireiron.front.arrays import TYPES, is_empty, operand_of, operands_of
from fireiron.front.call import Answer, Call, Copied, Empty, Request, copies_of
from fireiron.frozen import frozen
from fireiron.gpu.kernel import CompiledKernel
from fireiron.matmul_choice import BoundKernel, ProductKernel
from fireiron.matmul_epilogue import kernel_with_epilogue, outputs_named
from fireiron.matmul_problem import (
    CacheKey,
    check,
    check_result,
    check_types,
    have_other_ranks,
    have_views,
    key_and_views,
    multiplied,
    needs_copy,
    refuse_repeated,
    result,
)
from fireiron.specs.epilogue import RESULT
from fireiron.specs.epilogue import epilogue as epilogue_of
from fireiron.values.machine import DType, as_dtype, float32

if TYPE_CHECKING:
    from fireiron.matmul import Options
    from fireiron.tune.records import Choice

KernelOf = Callable[[CacheKey], ProductKernel]


@frozen
class BatchLoop:
    """An answer for arrays with other numbers of dimensions: a loop of batched matmuls, whose results are views of one array.

    `request` contains the options of each matmul, without arrays; `first` is the answer for the first matmul.
    """

    call: Call
    request: Request
    plan: Batches
    dtype: DType
    first: Answer

    @property
    def kernel(self) -> CompiledKernel:
        """The kernel of the first matmul."""
        return self.first.kernel

    @property
    def choice(self) -> Choice:
        """The choice for the first matmul."""
        return self.first.choice

    def __call__(self, inputs: Sequence[Any], out: Any, stream: Any) -> Any:
        """Return the result."""
        result = new_like(inputs[0], self.plan.shape, self.dtype) if out is None else out
        for product in _products(self.request._replace(inputs=tuple(inputs), out=result), self.plan, self.dtype):
            self.call.run(product, stream)
        return result


@attrs.frozen(kw_only=True)
class NoTerms(Empty):
    """An answer for operands with K = 0 and an epilogue: all sums are zero, so zeros with K = 1 replace the operands.

    `request` contains the options of the call, without arrays.
    """

    product: Call
    request: Request

    def __call__(self, inputs: Sequence[Any], out: Any, stream: Any) -> Any:
        """Return the outputs."""
        refuse_stream(self.call, f"an empty {self.noun} is made", stream)
        a, b, *further = inputs
        left = zeroed(new_like(a, (*a.shape[:-1], 1), TYPES[operand_of(a, "a").dtype]))
        right = zeroed(new_like(b, (*b.shape[:-2], 1, b.shape[-1]), TYPES[operand_of(b, "b").dtype]))
        return self.product.run(self.request._replace(inputs=(left, right, *further), out=out), None)


# ---------------------------------------------------------------------------------------------- from a request to its answer


def answer_to(call: Call, request: Request, kernel_of: KernelOf) -> Answer:
    """Return the answer for a new request; `kernel_of` caches kernels by their key."""
    if is_empty(request.inputs[:2]):
        return _empty(call, request)
    if request.options.epilogue is None and have_other_ranks(*request.inputs):
        return _many(call, request)
    outs = outputs_named(request)
    copied_inputs = frozenset(place for place, array in enumerate(request.inputs) if needs_copy(array))
    copied_outs = [array for array in outs.values() if needs_copy(array)]
    if not copied_inputs and not copied_outs:
        return _bound(request, outs, kernel_of)
    for array in copied_outs:
        refuse_repeated(array)
    request = request._replace(inputs=copies_of(request.inputs, copied_inputs))
    if copied_outs:
        request = _as_new(request, outs)
    answer = _bound(request, dict.fromkeys(outs) if copied_outs else outs, kernel_of)
    return Copied("matmul", answer, copied_inputs, bool(copied_outs), tuple(outs))


def _bound(request: Request, outs: Mapping[str, Any], kernel_of: KernelOf) -> BoundKernel:
    """Return the kernel for the arrays."""
    if request.options.epilogue is not None:
        return kernel_with_epilogue(request, outs)
    key, views = key_and_views(request)
    kernel = kernel_of(key)
    return BoundKernel(kernel, views, transposed_outputs=frozenset(outs if kernel.transposed else ()))


def _as_new(request: Request, outs: Mapping[str, Any]) -> Request:
    """Return the request without outputs, but with their types for the new results."""
    options, types = request.options, {name: operand_of(array, name).dtype for name, array in outs.items() if name != RESULT}
    kind = multiplied(operand_of(request.inputs[0], "a"), options.dtypes)
    dtype = result(kind, operand_of(outs[RESULT], "out"), options.dtypes)
    types = {**dict(options.types), **types}
    return request._replace(options=options._replace(c_dtype=dtype, types=tuple(types.items())), out=None)


# ---------------------------------------------------------------------------------------------- arrays of many dimensions


def measurable(request: Request) -> tuple[CacheKey, BatchViews, tuple[Any, Any, Any]]:
    """Return the key, the views and the arrays of the first matmul, which `matmul.tuned` measures."""
    if have_other_ranks(*request.inputs) and not is_empty(request.inputs):
        request = next(_products(request, *_as_batches(request)))
    arrays = request.inputs[0], request.inputs[1], request.out
    if is_empty(request.inputs) or any(map(needs_copy, arrays)):
        raise ArgumentError("matmul.tuned: kernels must read the arrays in place", got="empty arrays, or arrays that must be copied")
    return *key_and_views(request), arrays


def _many(call: Call, request: Request) -> Answer:
    """Return the answer for arrays with other numbers of dimensions."""
    plan, dtype = _as_batches(request)
    return BatchLoop(call, request._replace(inputs=(), out=None), plan, dtype, call.answer(next(_products(request, plan, dtype))))


def _products(request: Request, plan: Batches, dtype: DType) -> Iterator[Request]:
    """Yield the batched matmuls of views of the arrays; allocate the result if there is none."""
    out = new_like(request.inputs[0], plan.shape, dtype) if request.out is None else request.out
    views = [viewed(array, places) for array, places in zip((*request.inputs, out), (plan.a, plan.b, plan.c), strict=True)]
    for index in plan.indices:
        left, right, target = (view[index] for view in views)
        yield request._replace(inputs=(left, right), out=target)


def _as_batches(request: Request) -> tuple[Batches, DType]:
    """Return the loop over batched matmuls for the arrays, and the type of the result."""
    (a, b), out, dtypes = request.inputs, request.out, request.options.dtypes
    given = operands_of({"a": a, "b": b, "out": out})
    if given["a"].device is not None and not have_views([array for array in (a, b, out) if array is not None]):
        check(given)
    check_types(given)
    plan = batches(given["a"].places, given["b"].places, given["out"].places if "out" in given else None)
    check_result(given, plan.shape)
    return plan, result(multiplied(given["a"], dtypes), given.get("out"), dtypes)


# ---------------------------------------------------------------------------------------------- arrays without elements


def _empty(call: Call, request: Request) -> Empty:
    """Return the answer for arrays without elements, after the usual checks."""
    (a, b, *_), out, options = request.inputs, request.out, request.options
    has_epilogue = options.epilogue is not None
    given = operands_of({"a": a, "b": b, "out": None if has_epilogue else out})
    (check if has_epilogue else check_types)(given)
    shape = result_shape(given["a"].shape, given["b"].shape)
    check_result(given, shape)
    if not all(library(array) in LIBRARIES for array in (a, b)):
        name = "a" if 0 in given["a"].shape else "b"
        raise ArgumentError(f"{name} is empty", got=given[name].shape, legal="sizes of at least 1, of an array of this library")
    dtype = result(multiplied(given["a"], options.dtypes), given.get("out"), options.dtypes)
    if not has_epilogue:
        return Empty("matmul", ((shape, dtype, 0),), noun="product")
    outputs_named(request)
    if 0 not in shape:
        return NoTerms("matmul", (), noun="product", product=call, request=request._replace(inputs=(), out=None))
    return _empty_outputs(options, shape, dtype)


def _empty_outputs(options: Options, shape: tuple[int, ...], dtype: DType) -> Empty:
    """Return the outputs of an epilogue on a result without elements."""
    dims, signature = ("bmn", "bmk,bkn->bmn") if len(shape) == 3 else ("mn", "")
    definition = epilogue_of(options.epilogue or "", signature=signature).fused_definition
    sizes = dict(zip(dims, shape, strict=True))
    shapes = {name: tuple(sizes[dim] for dim in definition.uses[name]) for name in definition.outputs}
    summed = next((name for name, own in shapes.items() if 0 not in own), None)
    if summed is not None:
        asked = f"matmul: {summed} of the epilogue reduces no elements, because the result has the shape {shape}"
        raise ArgumentError(asked, got=options.epilogue, legal="outputs along the dimension without elements")
    types = {name: dtype if len(own) == len(shape) else float32 for name, own in shapes.items()}
    types |= {name: as_dtype(kind) for name, kind in options.types}
    return Empty("matmul", tuple((own, types[name], 0) for name, own in shapes.items()), tuple(shapes), noun="product")


__all__ = ["answer_to", "measurable"]
