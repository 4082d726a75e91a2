"""What answers a call of `fireiron.matmul`: a kernel and how it sees the arrays, copies, products of stacks, or nothing to multiply."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import attrs

from fireiron.batches import Batches, batches, new_like, result_shape, viewed
from fireiron.copies import LIBRARIES, library, refuse_stream, zeroed
from fireiron.errors import ArgumentError
from fireiron.front.arrays import TYPES, each, is_empty, joined, operand_of, operands_of
from fireiron.front.call import Answer, Call, Copied, Empty, Request, copies_of, returned
from fireiron.gpu.kernel import CompiledKernel
from fireiron.matmul_choice import ProductKernel
from fireiron.matmul_epilogue import finished, names_of_outputs, outputs_by_name
from fireiron.matmul_problem import (
    CacheKey,
    are_many,
    check,
    check_result,
    check_types,
    have_views,
    key_and_views,
    lies_oddly,
    multiplied,
    refuse_repeated,
    result,
)
from fireiron.specs.epilogue import RESULT
from fireiron.specs.epilogue import epilogue as epilogue_of
from fireiron.stacks import MATRICES, Stacked
from fireiron.values.machine import DType, as_dtype, float32

if TYPE_CHECKING:
    from fireiron.tune.records import Choice

KernelOf = Callable[[CacheKey], ProductKernel]


@attrs.frozen
class BoundKernel:
    """An answer by a kernel, and how it sees the arrays.

    Attributes:
        made: the kernel.
        stacked: how it sees stacks of matrices.
        order: the places of the further inputs, in the order in which the kernel takes them.
        outputs: the outputs by name.
        turned: those that are transposed arrays.
        folded: the places of the further inputs, and the names of the outputs, that are seen as the product is.
    """

    made: ProductKernel
    stacked: Stacked
    order: tuple[int, ...] = ()
    outputs: tuple[str, ...] = (RESULT,)
    turned: frozenset[str] = frozenset()
    folded: frozenset[Any] = frozenset((RESULT,))
    is_direct: bool = attrs.field(init=False)

    @is_direct.default
    def _is_direct(self) -> bool:
        """Whether the kernel takes the arrays as they are given."""
        is_plain = self.stacked is MATRICES and not self.order and self.outputs == (RESULT,)
        return is_plain and self.made.behind is None and not self.made.transposed

    @property
    def kernel(self) -> CompiledKernel:
        """The kernel that multiplies."""
        return self.made.kernel

    @property
    def choice(self) -> Choice:
        """Why it was chosen."""
        return self.made.choice

    def __call__(self, inputs: Sequence[Any], out: Any, stream: Any) -> Any:
        """The output, or a tuple of all."""
        if self.is_direct:
            return self.made.kernel(*inputs, out=out, stream=stream)
        ways = self.stacked
        further = [ways.c.of(inputs[place]) if place in self.folded else inputs[place] for place in self.order]
        arrays = (ways.a.of(inputs[0]), ways.b.of(inputs[1]), *further)
        if out is None:
            results = each(self._run(arrays, None, stream))
            return joined([self._outside(name, array) for name, array in zip(self.outputs, results, strict=True)])
        targets = zip(self.outputs, each(out, self.outputs), strict=True)
        self._run(arrays, joined([self._inside(name, array) for name, array in targets]), stream)
        return returned(out, self.outputs)

    def _run(self, arrays: tuple[Any, ...], out: Any, stream: Any) -> Any:
        """The outputs as the kernel makes them."""
        a, b, *further = arrays
        made = self.made
        if made.behind is not None:
            return made.behind(made.kernel(*made.cut(a, b), stream=stream), out=out, stream=stream)
        first = (b.T, a.T) if made.transposed else (a, b)
        return made.kernel(*first, *further, out=out, stream=stream)

    def _inside(self, name: str, array: Any) -> Any:
        """An output as the kernel fills it."""
        array = self.stacked.c.of(array) if name in self.folded else array
        return array.T if name in self.turned else array

    def _outside(self, name: str, array: Any) -> Any:
        """An output as the caller sees it."""
        array = array.T if name in self.turned else array
        return self.stacked.given_back(array) if name in self.folded else array


@attrs.frozen
class Many:
    """An answer for arrays of other dimensions, by products of stacks, whose results are the elements of one array.

    `request` has the options of each product and no arrays; `first` answers the first of them.
    """

    call: Call
    request: Request
    plan: Batches
    dtype: DType
    first: Answer

    @property
    def kernel(self) -> CompiledKernel:
        """That of the first product."""
        return self.first.kernel

    @property
    def choice(self) -> Choice:
        """That for the first product."""
        return self.first.choice

    def __call__(self, inputs: Sequence[Any], out: Any, stream: Any) -> Any:
        """The result."""
        made = new_like(inputs[0], self.plan.shape, self.dtype) if out is None else out
        views = _views(self.plan, inputs, made)
        for index in self.plan.indices:
            self.call.run(_at(self.request, views, index), stream)
        return made


@attrs.frozen(kw_only=True)
class NoTerms(Empty):
    """An answer for factors without terms, of a product with an epilogue: sums are zeros, as those of one term of zeros are.

    `request` has the options of the call and no arrays.
    """

    product: Call
    request: Request

    def __call__(self, inputs: Sequence[Any], out: Any, stream: Any) -> Any:
        """The outputs."""
        refuse_stream(self.call, f"an empty {self.noun} is made", stream)
        a, b, *further = inputs
        left = zeroed(new_like(a, (*a.shape[:-1], 1), TYPES[operand_of(a, "a").dtype]))
        right = zeroed(new_like(b, (*b.shape[:-2], 1, b.shape[-1]), TYPES[operand_of(b, "b").dtype]))
        return self.product.run(self.request._replace(inputs=(left, right, *further), out=out), None)


# ---------------------------------------------------------------------------------------------- from a request to its answer


def answer_to(call: Call, request: Request, kernel_of: KernelOf) -> Answer:
    """What answers a request that was not made before; `kernel_of` keeps kernels by what decides on them."""
    a, b = request.inputs[:2]
    has_epilogue = request.options.epilogue is not None
    if is_empty((a, b)):
        return _empty_with_epilogue(call, request) if has_epilogue else _empty(request)
    if has_epilogue:
        return _with_epilogue(request)
    if are_many(a, b):
        return _many(call, request)
    return _plain(request, kernel_of)


def _plain(request: Request, kernel_of: KernelOf) -> Answer:
    """The kernel for matrices or stacks of them, of copies of those that lie oddly."""
    odd, is_stored = places_of_odd(request.inputs), request.out is not None and lies_oddly(request.out)
    if not odd and not is_stored:
        return _bound(request, kernel_of)
    if is_stored:
        refuse_repeated(request.out)
        request = _as_new(request, request.out)
    request = request._replace(inputs=copies_of(request.inputs, odd))
    return Copied("matmul", _bound(request, kernel_of), odd, is_stored)


def places_of_odd(inputs: Sequence[Any]) -> frozenset[int]:
    """The places of inputs that no kernel reads as they lie."""
    return frozenset(place for place, array in enumerate(inputs) if lies_oddly(array))


def _bound(request: Request, kernel_of: KernelOf) -> BoundKernel:
    """The kernel of a product that the arrays serve."""
    key, stacked = key_and_views(request)
    made = kernel_of(key)
    return BoundKernel(made, stacked, turned=frozenset((RESULT,) if made.transposed else ()))


def _as_new(request: Request, out: Any) -> Request:
    """A request for a new result of the type that `out` has."""
    options = request.options
    kind = multiplied(operand_of(request.inputs[0], "a"), options.dtypes)
    dtype = result(kind, operand_of(out, "out"), options.dtypes)
    return request._replace(options=options._replace(c_dtype=dtype), out=None)


def _with_epilogue(request: Request) -> Answer:
    """The kernel with an epilogue, of copies of those arrays that no kernel reads as they lie."""
    names = names_of_outputs(request)
    outs = outputs_by_name(request.out, names)
    odd, odd_outs = places_of_odd(request.inputs), [array for array in outs.values() if lies_oddly(array)]
    if not odd and not odd_outs:
        return _bound_with_epilogue(request)
    for array in odd_outs:
        refuse_repeated(array)
    request = request._replace(inputs=copies_of(request.inputs, odd))
    if odd_outs:  # new results of the same types take the place of all outputs
        types = {**dict(request.options.types), **{name: operand_of(array, name).dtype for name, array in outs.items() if name != RESULT}}
        request = _as_new(request, outs[RESULT]) if RESULT in outs else request._replace(out=None)
        request = request._replace(options=request.options._replace(types=tuple(types.items())))
    return Copied("matmul", _bound_with_epilogue(request), odd, bool(odd_outs), names)


def _bound_with_epilogue(request: Request) -> BoundKernel:
    """The kernel with an epilogue that the arrays serve."""
    product, places = finished(request), {name: place for place, name in enumerate(request.options.names, 2)}
    order = tuple(places[name] for name in product.spec.inputs if name not in ("A", "B"))
    folded = frozenset(places.get(name, name) for name in product.folded)
    made = ProductKernel(CompiledKernel(product.choice.program), product.choice, product.problem)
    return BoundKernel(made, product.stacked, order, product.spec.outputs, product.turned, folded)


# ---------------------------------------------------------------------------------------------- arrays of many dimensions


def _first_product(request: Request) -> Request:
    """The first of the products of stacks that arrays of other dimensions are; arrays of two or three dimensions as they are."""
    if not are_many(*request.inputs) or is_empty(request.inputs):
        return request
    plan, dtype = _in_stacks(request)
    return _first_of(request, plan, dtype)


def measurable(request: Request) -> tuple[CacheKey, Stacked, tuple[Any, Any, Any]]:
    """What `matmul.tuned` measures: what decides on a kernel, how it sees the arrays, and the arrays of the first product."""
    request = _first_product(request)
    if is_empty(request.inputs) or any(array is not None and lies_oddly(array) for array in (*request.inputs, request.out)):
        raise ArgumentError("matmul.tuned: arrays that kernels read as they lie", got="empty arrays, or such as are copied first")
    return *key_and_views(request), (*request.inputs, request.out)


def _first_of(request: Request, plan: Batches, dtype: DType) -> Request:
    a, out = request.inputs[0], request.out
    views = _views(plan, request.inputs, new_like(a, plan.shape, dtype) if out is None else out)
    return _at(request, views, next(iter(plan.indices)))


def _views(plan: Batches, inputs: Sequence[Any], out: Any) -> list[Any]:
    return [viewed(array, places) for array, places in zip((*inputs, out), (plan.a, plan.b, plan.c), strict=True)]


def _at(request: Request, views: Sequence[Any], index: tuple[int, ...]) -> Request:
    """One of the products."""
    left, right, target = (view[index] for view in views)
    return request._replace(inputs=(left, right), out=target)


def _many(call: Call, request: Request) -> Answer:
    """The products of stacks that arrays of other dimensions are."""
    plan, dtype = _in_stacks(request)
    first = call.answer(_first_of(request, plan, dtype))
    return Many(call, request._replace(inputs=(), out=None), plan, dtype, first)


def _in_stacks(request: Request) -> tuple[Batches, DType]:
    """How arrays are multiplied as stacks, and the type of the result."""
    (a, b), out, dtypes = request.inputs, request.out, request.options.dtypes
    given = operands_of({"a": a, "b": b, "out": out})
    if given["a"].device is not None and not have_views([array for array in (a, b, out) if array is not None]):
        check(given)
    check_types(given)
    plan = batches(given["a"].places, given["b"].places, given["out"].places if "out" in given else None)
    check_result(given, plan.shape)
    return plan, result(multiplied(given["a"], dtypes), given.get("out"), dtypes)


# ---------------------------------------------------------------------------------------------- arrays without elements


def _empty(request: Request) -> Empty:
    """The answer for arrays without elements, checked as others are."""
    shape, dtype = _empty_result(request)
    return Empty("matmul", ((shape, dtype, 0),), noun="product")


def _empty_result(request: Request) -> tuple[tuple[int, ...], DType]:
    """Shape and type of a product of arrays without elements."""
    (a, b, *_), out, dtypes = request.inputs, request.out, request.options.dtypes
    given = operands_of({"a": a, "b": b, "out": out})
    check_types(given)
    shape = result_shape(given["a"].shape, given["b"].shape)
    check_result(given, shape)
    if not all(library(array) in LIBRARIES for array in (a, b)):
        name = "a" if 0 in given["a"].shape else "b"
        raise ArgumentError(f"{name} is empty", got=given[name].shape, legal="sizes of at least 1, of an array of this library")
    return shape, result(multiplied(given["a"], dtypes), given.get("out"), dtypes)


def _empty_with_epilogue(call: Call, request: Request) -> Empty:
    """The answer of an epilogue for arrays without elements."""
    options = request.options
    shape, dtype = _empty_result(request._replace(out=None))
    if 0 not in shape:
        return NoTerms("matmul", (), noun="product", product=call, request=request._replace(inputs=(), out=None))
    dims = "bmn" if len(shape) == 3 else "mn"
    definition = epilogue_of(options.epilogue, signature="bmk,bkn->bmn" if len(shape) == 3 else "").made
    sizes = dict(zip(dims, shape, strict=True))
    shapes = {name: tuple(sizes[dim] for dim in definition.uses[name]) for name in definition.outputs}
    summed = next((name for name, own in shapes.items() if 0 not in own), None)
    if summed is not None:
        asked = f"matmul: {summed} of the epilogue is made of no element: the result has the shape {shape}"
        raise ArgumentError(asked, got=options.epilogue, legal="outputs along the dimension without elements")
    plain = {name: dtype if len(own) == len(shape) else float32 for name, own in shapes.items()}
    types = {**plain, **{name: as_dtype(kind) for name, kind in options.types}}
    return Empty("matmul", tuple((own, types[name], 0) for name, own in shapes.items()), tuple(shapes), noun="product")


__all__ = ["BoundKernel", "answer_to", "measurable"]
