"""`fireiron.function`: a definition as a function of arrays, with a recorded or a default strategy of the library.

>>> import fireiron, numpy
>>> softmax = fireiron.function("softmax")
>>> softmax(numpy.zeros((2, 3, 8), "float16"))[0, 0, :2]
array([0.125, 0.125], dtype=float16)

A call that `torch.compile` traces, that autograd records, or on fake tensors uses the PyTorch operator `fireiron::function`. The first such
call registers it. Gradients are other functions (`fireiron.function_gradients`).
"""

from __future__ import annotations

import functools
import math
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from fireiron import operators
from fireiron.batches import packed
from fireiron.copies import copied
from fireiron.display import Displayed
from fireiron.errors import ArgumentError, FireironError
from fireiron.front import traced
from fireiron.front.arrays import ALIGNMENT, Given, Operand, each, joined, operands_of
from fireiron.front.call import Answer, Call, Empty, Request
from fireiron.front.place import Aligned, Place, fits
from fireiron.language.strategy import Strategy
from fireiron.repeated import Replays
from fireiron.specs.fused import Fused
from fireiron.values.machine import as_dtype

if TYPE_CHECKING:
    from fireiron.compiler import Program
    from fireiron.function_gradients import Gradient, Plan
    from fireiron.gpu.kernel import CompiledKernel
    from fireiron.spec import Spec
    from fireiron.tune.records import Choice
    from fireiron.values.machine import DType


Sizes = Sequence[tuple[str, int]]
"""Pairs of a dimension and its size."""


class Function(Call, Displayed):
    """A definition as a function of arrays. It caches kernels by shapes, types, strides and alignment of the arrays.

    `inputs` and `outputs` are the names of the definition's operands, in the order of arguments and results, and `dims` the dimensions of
    their arrays. `plans` are the backward passes, by the inputs that require a gradient.
    """

    def __init__(
        self, name: str, start: Fused, strategies: Sequence[Strategy] = (), gradient: Sequence[str] = (), sizes: Sizes = ()
    ) -> None:
        super().__init__()
        definition = start.fused_definition
        self.name, self.start, self.strategies = name, start, tuple(strategies)
        self._stated, self.sizes = tuple(gradient), dict(sizes)
        self.outputs = tuple(definition.outputs)
        self.inputs = tuple(operand for operand in definition.arrays if operand not in definition.outputs)
        of_arrays = {one.operand: tuple(one.of) for one in definition.indexed}
        self.dims = {operand: of_arrays.get(operand, tuple(definition.uses[operand])) for operand in (*self.inputs, *self.outputs)}
        self.is_array = tuple(bool(self.dims[operand]) for operand in self.inputs)
        self.plans: dict[tuple[bool, ...], Plan] = {}
        self.backward_replays = Replays()
        self.types = {operand: str(dtype) for operand, dtype in dict(definition.types).items()}

    def __repr__(self) -> str:
        return f"function({self.name!r}): {', '.join(self.inputs)} -> {', '.join(self.outputs)}"

    @functools.cached_property
    def gradient(self) -> Gradient:
        """The functions of the backward pass. Raises: `ArgumentError` if the file or the caller states them inconsistently."""
        from fireiron.function_gradients import gradient_of

        return gradient_of(self, self._stated, function.named)

    def plan_for(self, wanted: tuple[bool, ...]) -> Plan:
        """Return the backward pass for the inputs that require a gradient. Raises: `ArgumentError` if one has no gradient."""
        plan = self.plans.get(wanted)
        if plan is None:
            from fireiron.function_gradients import plan_of

            plan = self.plans[wanted] = plan_of(self, wanted, function.named)
        return plan

    @functools.cached_property
    def _differentiated(self) -> Callable[..., Any]:
        """The function of plain tensors that autograd records."""
        from fireiron.function_gradients import replayed

        return replayed(self)

    def __call__(self, *arrays: Any, out: Any = None, arch: Any = None, stream: Any = None, require_record: bool | None = None) -> Any:
        """Return the output, or a tuple of outputs, for arrays and numbers in the order of `inputs`.

        CuPy and PyTorch arrays on a GPU run there, NumPy arrays in the simulator. The first call for given shapes and strides chooses a
        strategy and compiles it; later calls only launch it. If the first array has more dimensions than its operand, its leading
        dimensions, and those of all arrays with the same first dimension, are flattened into one. PyTorch tensors have a gradient if the
        function states one; others are refused if they require one.

        Args:
            out: the array for the output, or a tuple of arrays. The default is new row-major arrays, with the type that the definition
                declares, or else the type of the first array (float32 for outputs with fewer dimensions).
            arch: the target; the default is that of the GPU (sm_90 in the simulator).
            stream: as for a compiled kernel.
            require_record: use only a record of exactly this problem; None means the value of `FIREIRON_REQUIRE_RECORD`.

        Raises: ArgumentError for incompatible arrays, and if no strategy is legal; StoreError if an exact record is required and there is
            none.
        """
        if len(arrays) != len(self.inputs):
            raise ArgumentError(f"{self.name}: {len(arrays)} arrays and numbers are given", legal=", ".join(self.inputs))
        replays = self.replays
        is_torch = replays.again is not None and stream is None and any(hasattr(array, "is_cuda") for array in arrays)
        if is_torch and not replays.tracing():
            done = replays.again(None if arch is None and require_record is None else (arch, require_record), out, *arrays)
            if done is ... and out is None and arch is None and require_record is None:
                done = self._differentiated(*arrays)
            if done is not None and done is not NotImplemented and done is not ...:
                return done
        # torch.compile traces this code; a number may then be a symbol, of which no attribute may be read.
        tensors = [array for array, is_array in zip(arrays, self.is_array, strict=True) if is_array]
        differentiated = operators.differentiated(*tensors)
        if differentiated:
            operators.refuse_options(self.name, out=out, arch=arch, stream=stream, require_record=require_record)
        traced = (out is None or differentiated) and operators.traced(*tensors)
        if differentiated and not traced and not operators.watched(*tensors):
            return self._differentiated(*arrays)
        if differentiated or traced:
            return _through_torch(self.name, self.dims, self.inputs, arrays, len(self.outputs))
        return self.launched(Request(arrays, out, None, arch, require_record), stream)

    def choice(self, *arrays: Any, out: Any = None, arch: Any = None, require_record: bool | None = None) -> Choice:
        """Return the choice for these arrays, a record or a strategy, and the reason; launch nothing."""
        return self._answer(Request(arrays, out, None, arch, require_record)).choice

    def kernel(self, *arrays: Any, out: Any = None, arch: Any = None, require_record: bool | None = None) -> CompiledKernel:
        """Return the kernel for these arrays, which takes them with the dimensions of its operands."""
        return self._answer(Request(arrays, out, None, arch, require_record)).kernel

    def is_replayed(self, request: Request) -> bool:
        """Return whether any input is a PyTorch tensor."""
        return any(hasattr(array, "is_cuda") for array in request.inputs)

    def key_of_options(self, request: Request) -> Any:
        """Return the key of the options."""
        return None if request.arch is None and request.require_record is None else (request.arch, request.require_record)

    def run(self, request: Request, stream: Any) -> Any:
        """Return the outputs without a replay."""
        lead, flat, outs = self._flat(request.inputs, request.out)
        results = self.answer(Request(flat, outs, None, request.arch, request.require_record))(flat, outs, stream)
        if outs is not None:
            return request.out
        if not lead:
            return results
        return joined([self._shaped(name, array, lead) for name, array in zip(self.outputs, each(results), strict=True)])

    def begin(self, request: Request) -> None:
        """Choose and compile the kernels of a request; launch nothing."""
        _, flat, outs = self._flat(request.inputs, request.out)
        super().begin(request._replace(inputs=flat, out=outs))

    def _answer(self, request: Request) -> Answer:
        _, flat, outs = self._flat(request.inputs, request.out)
        return self.answer(request._replace(inputs=flat, out=outs))

    def clear(self) -> None:
        """Discard all kernels, so that records and environment variables are read again."""
        super().clear()
        self.backward_replays.clear()

    # ------------------------------------------------------------------------------------------ shapes

    def shapes(self, given: Sequence[Sequence[int]], outs: Sequence[Sequence[int]] = ()) -> dict[str, tuple[int, ...]]:
        """Return the shapes of outputs by name.

        Args: `outs`, the shapes of given outputs. They determine dimensions that no input has, such as those of scattered outputs.

        Raises: `ArgumentError` if the shapes of the inputs are incompatible, or a dimension is unknown.
        """
        more = _more(given, self.inputs, self.dims)
        first = next((name for name in self.inputs if self.dims[name]), "")
        shared = self.dims[first][0] if first else ""
        lead = tuple(next((shape for name, shape in zip(self.inputs, given, strict=True) if name == first), ()))[: more + 1]
        sizes: dict[str, int] = dict(self.sizes)
        for name, shape in zip(self.inputs, given, strict=True):
            dims = self.dims[name]
            own = (math.prod(shape[: more + 1]), *shape[more + 1 :]) if more and dims[:1] == (shared,) else tuple(shape)
            if len(own) != len(dims):
                raise ArgumentError(f"{self.name}: {name} has {len(shape)} dimensions", got=tuple(shape), legal=f"{name}[{','.join(dims)}]")
            for dim, size in zip(dims, own, strict=True):
                if sizes.setdefault(dim, size) != size:
                    got = {one: tuple(shape) for one, shape in zip(self.inputs, given, strict=True)}
                    raise ArgumentError(f"{self.name}: {name} has {size} elements along {dim}, but another array has {sizes[dim]}", got=got)
        for name, shape in zip(self.outputs, outs, strict=bool(outs)):
            for dim, size in zip(self.dims[name], shape, strict=False):
                sizes.setdefault(dim, size)
        shapes = {}
        for name in self.outputs:
            unknown = next((dim for dim in self.dims[name] if dim not in sizes), None)
            if unknown is not None:
                legal = f"{name}[{','.join(self.dims[name])}]"
                raise ArgumentError(f"{self.name}: no input has the dimension {unknown} of {name}", legal=legal, hint=f"out= with {name}")
            own = tuple(sizes[dim] for dim in self.dims[name])
            shapes[name] = (*lead, *own[1:]) if more and self.dims[name][:1] == (shared,) else own
        return shapes

    def type_of(self, output: str) -> str:
        """Return the type of a new output: the declared type, or float32 if it has fewer dimensions than the first array, or else "".

        Dimensions whose size the function states, such as two halves, do not count.
        """
        first = [dim for dim in next((self.dims[name] for name in self.inputs if self.dims[name]), ()) if dim not in self.sizes]
        return self.types.get(output) or ("float32" if len(self.dims[output]) < len(first) else "")

    def _flat(self, arrays: Sequence[Any], out: Any) -> tuple[tuple[int, ...], tuple[Any, ...], tuple[Any, ...] | None]:
        """Return the leading dimensions, and arrays with these flattened."""
        shapes = [_shape_of(array) for array in arrays]
        more = _more(shapes, self.inputs, self.dims)
        outs = None if out is None else each(out)
        if outs is not None and len(outs) != len(self.outputs):
            raise ArgumentError(f"{self.name}: out has {len(outs)} arrays", legal=", ".join(self.outputs))
        arrays = [copied(array) if _is_reversed(array) else array for array in arrays]
        if not more:
            return (), tuple(arrays), outs
        first = next(name for name in self.inputs if self.dims[name])
        shared, lead = self.dims[first][0], shapes[self.inputs.index(first)][: more + 1]
        named = [*zip(self.inputs, arrays, strict=True), *zip(self.outputs, outs or (), strict=bool(outs))]
        flat = tuple(self._joined(one, more, name) if self.dims[name][:1] == (shared,) else one for name, one in named)
        return lead, flat[: len(arrays)], flat[len(arrays) :] if outs else None

    def _joined(self, array: Any, more: int, name: str) -> Any:
        """Return a view of an array with its leading dimensions flattened; of an input, a copy if there is no view."""
        shape = (math.prod(array.shape[: more + 1]), *array.shape[more + 1 :])
        try:
            return array.view(shape) if hasattr(array, "is_cuda") else _without_copy(array, shape)
        except (RuntimeError, ValueError, AttributeError):
            if name in self.inputs:
                return copied(array).reshape(shape)
            got = f"shape {tuple(array.shape)}"
            asked = f"{self.name}: the leading dimensions of {name} cannot be flattened without a copy"
            raise ArgumentError(asked, got=got, hint="pass a copy") from None

    def _shaped(self, name: str, array: Any, lead: tuple[int, ...]) -> Any:
        """Return an output with the leading dimensions restored."""
        first = next((one for one in self.inputs if self.dims[one]), "")
        if self.dims[name][:1] != self.dims[first][:1]:
            return array
        return array.reshape((*lead, *array.shape[1:]))

    # ------------------------------------------------------------------------------------------ kernels

    def spec(self, *arrays: Any, out: Any = None) -> Spec:
        """Return the spec for the shapes, types and strides of arrays."""
        return self._spec(*self._given(Request(arrays, out, None)))

    def _given(self, request: Request) -> tuple[Given, dict[str, tuple[int, ...]]]:
        """Return the properties of the arrays by name, and the shapes of the outputs."""
        arrays, outs = request.inputs, request.out or ()
        shapes = self.shapes([tuple(getattr(array, "shape", ())) for array in arrays], [tuple(out.shape) for out in outs])
        named = {name: array for name, array in zip(self.inputs, arrays, strict=True) if self.dims[name]}
        given = operands_of(named | dict(zip(self.outputs, outs, strict=bool(outs))))
        wrong = next((name for name in self.outputs if name in given and given[name].shape != shapes[name]), None)
        if wrong is not None:
            raise ArgumentError(f"{self.name}: {wrong} has the shape {given[wrong].shape}", legal=f"{shapes[wrong]}")
        return given, shapes

    def new_answer(self, request: Request) -> Answer:
        """Return the answer for a new request."""
        given, shapes = self._given(request)
        devices = {operand.device for operand in given.values()}
        if len(devices) > 1:
            raise ArgumentError(f"{self.name}: the arrays are on different devices", got=devices, hint="all on one GPU, or all NumPy")
        if any(0 in operand.shape for operand in given.values()):
            return self._empty(given, shapes)
        place = Place.of(next(iter(devices)), request.arch, request.require_record)
        choice = self._cached_or_chosen(self._spec(given, shapes), {name: operand.align for name, operand in given.items()}, place)
        return _BoundKernel(choice)

    def _empty(self, given: Given, shapes: Mapping[str, tuple[int, ...]]) -> Answer:
        """Return the answer for arrays without elements. Raises: `ArgumentError` if an output has elements."""
        filled = next((name for name in self.outputs if 0 not in shapes[name]), None)
        if filled is not None:
            got = {name: operand.shape for name, operand in given.items()}
            asked = f"{self.name}: an array has no elements, but the output {filled} has"
            raise ArgumentError(asked, got=got, legal="sizes of at least 1, or outputs without elements")
        types = self._types(given)
        return Empty(self.name, tuple((shapes[name], types[name], 0.0) for name in self.outputs), self.outputs)

    def _types(self, given: Given) -> dict[str, DType]:
        """Return the element types of all arrays."""
        first = next(given[name].dtype for name in self.inputs if name in given)
        types = {name: as_dtype(one.dtype) for name, one in given.items()}
        return types | {name: as_dtype(self.type_of(name) or first) for name in self.outputs if name not in given}

    def _cached_or_chosen(self, spec: Spec, aligned: Aligned, place: Place) -> Choice:
        """Return the cached choice of another process, or a new choice, which is then cached."""
        asked = self.name, spec, tuple(self.strategies), dict(aligned), place.require_record
        return place.chosen("function", asked, lambda: (self._chosen(spec, aligned, place), 0))[0]

    def _spec(self, given: Given, shapes: Mapping[str, tuple[int, ...]]) -> Spec:
        """Return the spec for the storage of the arrays."""
        sizes = self.sizes | {dim: size for name, one in given.items() for dim, size in zip(self.dims[name], one.shape, strict=True)}
        types = self._types(given)
        orders = {name: one.strides(self.dims[name]) for name, one in given.items() if not _by_rows(one)}
        words: dict[str, Any] = {**sizes, **orders}
        return self.start(types=types, **words)

    def _chosen(self, spec: Spec, aligned: Aligned, place: Place) -> Choice:
        """Return the choice by a record of this or the nearest problem, or else the first legal strategy."""
        from fireiron.gpu.kernel import CompiledKernel
        from fireiron.tune.records import Choice
        from fireiron.tune.records.default import default_choice

        def accepts(program: Program) -> bool:
            return fits(aligned, program) and place.refusal(CompiledKernel(program)) is None

        if place.require_record:
            return place.exact_record(spec, accepts)
        record = place.find(spec, accepts, near=True)
        if record is not None:
            return record
        refusals = []
        for number, strategy in enumerate(self.strategies):
            try:
                program = strategy(spec).program(place.architecture)
                place.prove(program)
            except FireironError as error:
                refusals.append(f"strategy {number}: {error.headline}")
                continue
            if accepts(program):
                return Choice(None, False, f"no record applies; strategy {number} of the given ones", program)
        try:
            return default_choice(spec, place.architecture, accepts, place.prove)
        except ArgumentError as error:
            refusals.append(str(error.got))
        from fireiron.derive.default import derived_choice

        try:
            return derived_choice(spec, place.architecture, accepts)
        except ArgumentError as error:
            raise ArgumentError(f"{self.name}: {error.asked}", got="; ".join((*refusals, str(error.got)))) from None


class _BoundKernel:
    """An answer by a kernel that reads the arrays in place."""

    def __init__(self, choice: Choice) -> None:
        from fireiron.gpu.kernel import CompiledKernel

        self.choice, self.kernel = choice, CompiledKernel(choice.program)

    def __call__(self, inputs: Sequence[Any], out: Any, stream: Any) -> Any:
        """Return the output, or a tuple of several."""
        return self.kernel(*inputs, out=None if out is None else joined(out), stream=stream)


class _Functions:
    """`fireiron.function`: see `__call__`. Functions are cached by their arguments, and by name for PyTorch's operator."""

    def __init__(self) -> None:
        self._functions: dict[Any, Function] = {}
        self._named: dict[str, Function] = {}
        self._lock = threading.RLock()

    def __call__(
        self, what: str | Fused, strategies: Sequence[Strategy] = (), gradient: Sequence[str | Function] = (), sizes: Mapping[str, int] = {}
    ) -> Function:
        """Return a definition as a function of arrays.

        Args:
            what: the name of a strategy of the library that starts from a definition, `"layernorm"`, `"lstm:tanh"`; or a definition.
            strategies: unbound strategies for the definition, the fastest first. Without a record, the first legal one is used; then the
                library's, and then a derived one (`fireiron.schedule`).
            gradient: the functions of the backward pass, as `fireiron.function_gradients` describes; the default is that of the file.
            sizes: the sizes of dimensions that no input has, or that must have this size; the default is those of the file.

        Raises: ArgumentError if there is no such strategy, or it does not start from a definition.
        """
        backward = tuple(one.name if isinstance(one, Function) else one for one in gradient)
        fixed = tuple(sizes.items())
        key = what, tuple(strategies), backward, fixed
        with self._lock:
            function = self._functions.get(key)
            if function is None:
                is_library = isinstance(what, str) and not (strategies or backward or fixed)
                name = what if isinstance(what, str) and is_library else f"function_{len(self._named)}"
                stated = _stated(what) if isinstance(what, str) else ((), {})
                function = Function(name, _start_of(what), strategies, backward or stated[0], fixed or tuple(stated[1].items()))
                self._functions[key] = self._named[name] = function
            return function

    def named(self, name: str) -> Function:
        """Return the function of a name."""
        return self._named.get(name) or self(name)


function: Final = _Functions()
"""A definition as a function of arrays; see its `__call__`."""


def _start_of(what: str | Fused) -> Fused:
    """Return a definition, or the definition from which the strategy of a name starts."""
    if isinstance(what, Fused):
        return what
    from fireiron.language.library import find

    start = find(what).strategy.start
    if not isinstance(start, Fused):
        raise ArgumentError(f"function: {what} does not start from a definition", got=str(start), hint="fireiron.matmul(a, b)")
    return start


def _stated(name: str) -> tuple[tuple[str, ...], Mapping[str, int]]:
    """Return the functions of the backward pass, and the sizes of dimensions, that the file of a strategy states.

    The gradient is that of the file's `strategy`, so a strategy for other operands or types has none.
    """
    from fireiron.language.library import load

    module = load(name).module
    first = getattr(module, "strategy", None)
    is_same = first is not None and _interface(first.start) == _interface(_start_of(name))
    return tuple(getattr(module, "gradient", ())) if is_same else (), getattr(module, "sizes", {})


def _interface(start: object) -> tuple[Any, ...]:
    """Return the operands of a definition, its outputs, and the types that it states for them; empty for other specs."""
    if not isinstance(start, Fused):
        return ()
    definition = start.fused_definition
    types = dict(definition.types)
    return tuple((name, tuple(definition.uses[name]), name in definition.outputs, types.get(name)) for name in definition.arrays)


def _shape_of(value: Any) -> tuple[Any, ...]:
    """Return the shape of an array; () for a number."""
    shape = getattr(value, "shape", ())
    return tuple(shape) if isinstance(shape, Sequence) else ()


def _more(shapes: Sequence[Sequence[int]], names: Sequence[str], dims: Mapping[str, tuple[str, ...]]) -> int:
    """Return the number of leading dimensions of the first array."""
    first = next(((shape, dims[name]) for name, shape in zip(names, shapes, strict=True) if dims[name]), ((), ()))
    return max(len(first[0]) - len(first[1]), 0)


def _is_reversed(array: Any) -> bool:
    """Return whether an array has a negative stride, as arrays of NumPy and CuPy can have."""
    return any(step < 0 for step in getattr(array, "strides", ()))


def _without_copy(array: Any, shape: tuple[int, ...]) -> Any:
    view = array.view()
    view.shape = shape
    return view


def _by_rows(operand: Operand) -> bool:
    """Return whether an array is row-major and aligned."""
    by_rows = zip(operand.shape, operand.steps, packed(operand.shape), strict=True)
    return operand.align >= ALIGNMENT and all(size == 1 or step == row for size, step, row in by_rows)


# ---------------------------------------------------------------------------------------------- PyTorch's operator


# torch.compile traces this function, so it uses no caches or locks.


def _through_torch(name: str, dims: Mapping[str, Any], inputs: Sequence[str], arrays: Sequence[Any], outputs: int) -> Any:
    """Call the operator."""
    import torch

    _operator()
    tensors = [one for given, one in zip(inputs, arrays, strict=True) if dims[given]]
    numbers = [float(one) for given, one in zip(inputs, arrays, strict=True) if not dims[given]]
    results = torch.ops.fireiron.function(tensors, numbers, name)
    return tuple(results) if outputs > 1 else results[0]


@operators.constant
def _operator() -> bool:
    with operators.registering:
        register_operator()
    return True


@functools.cache
def register_operator() -> Any:
    """Register and return the operator."""
    import torch

    from fireiron.function_gradients import register

    def given(of: Function, arrays: Sequence[Any], numbers: Sequence[float]) -> list[Any]:
        tensors, values = iter(arrays), iter(numbers)
        return [next(tensors) if of.dims[name] else next(values) for name in of.inputs]

    def run(arrays: Sequence[Any], numbers: Sequence[float], name: str) -> Any:
        results = function.named(name)(*given(function.named(name), arrays, numbers))
        return list(results) if isinstance(results, tuple) else [results]

    def shaped(arrays: Sequence[Any], numbers: Sequence[float], name: str) -> Any:
        of = function.named(name)
        shapes = of.shapes([tuple(getattr(one, "shape", ())) for one in given(of, arrays, numbers)])
        kinds = {one: getattr(torch, of.type_of(one)) if of.type_of(one) else arrays[0].dtype for one in of.outputs}
        return [arrays[0].new_empty(shapes[one], dtype=kinds[one]) for one in of.outputs]

    def begin(*arguments: Any) -> None:
        def prepare(arrays: Sequence[Any], numbers: Sequence[float], name: str) -> None:
            of = function.named(name)
            of.begin(Request(tuple(given(of, arrays, numbers)), None, None))

        traced.begin(prepare, arguments)

    schema = "(Tensor[] arrays, float[] numbers, str name) -> Tensor[]"
    operator = operators.define("function", schema, run, shaped, begin=begin)
    register(operator, function.named)
    return operator


__all__ = ["Function", "function"]
