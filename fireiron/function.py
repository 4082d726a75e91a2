"""`fireiron.function`: what a definition computes, as a function of arrays: by a record, or by the library's strategy for the GPU.

>>> import fireiron, numpy
>>> softmax = fireiron.function("softmax")
>>> softmax(numpy.zeros((2, 3, 8), "float16"))[0, 0, :2]
array([0.125, 0.125], dtype=float16)

In PyTorch a call that `torch.compile` traces, or one with fake tensors, is the operator `fireiron::function`, which is registered when the
first such call is made.
"""

from __future__ import annotations

import functools
import math
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import attrs

from fireiron import operators
from fireiron.display import Displayed
from fireiron.errors import ArgumentError, FireironError
from fireiron.language.strategy import Strategy
from fireiron.matmul import ALIGNMENT, Operand, fits, gpu_name, key_of, operand_of, recall, refused_by_compiler, target_of
from fireiron.repeated import Replays
from fireiron.specs.fused import Fused
from fireiron.values.machine import Architecture, as_architecture, as_dtype
from fireiron.values.strides import Strides

if TYPE_CHECKING:
    from fireiron.compiler import Program
    from fireiron.gpu.kernel import CompiledKernel
    from fireiron.spec import Spec
    from fireiron.tune.records import Choice


class Function(Displayed):
    """What a definition computes, of arrays; kernels are kept in memory, by the arrays' shapes, types, strides and alignment.

    `inputs` and `outputs` are the names of the definition's operands, in the order in which arrays are given and come back.
    """

    def __init__(self, name: str, start: Fused, strategies: Sequence[Strategy] = ()) -> None:
        made = start.made
        self.name, self.start, self.strategies = name, start, tuple(strategies)
        self.outputs = tuple(made.outputs)
        self.inputs = tuple(one for one in made.arrays if one not in made.outputs)
        self.dims = {one: tuple(made.uses[one]) for one in (*self.inputs, *self.outputs)}
        self.types = {one: str(kind) for one, kind in dict(made.types).items()}
        self._kernels: OrderedDict[Any, tuple[CompiledKernel, Choice]] = OrderedDict()
        self._replays = Replays()
        self._lock = threading.RLock()

    def __repr__(self) -> str:
        return f"function({self.name!r}): {', '.join(self.inputs)} -> {', '.join(self.outputs)}"

    def __call__(self, *arrays: Any, out: Any = None, arch: Any = None, stream: Any = None, pinned: bool | None = None) -> Any:
        """The output, or a tuple of all, of arrays and numbers in the order of `inputs`.

        CuPy and PyTorch arrays on a GPU run there, NumPy arrays in the simulator. The first call for shapes and strides chooses a strategy
        and compiles it; later ones launch only. Where the first array has more dimensions than its operand, those in front count as one:
        of all arrays whose first dimension is the same. Nothing has a gradient.

        Args:
            out: where to store the output, or a tuple of all; by default new arrays, row by row, of the type that the definition states,
                else of that of the first array, or float32 with fewer dimensions than its.
            arch: the target of the compiler; by default that of the GPU (of the simulator, sm_90).
            stream: as for a compiled kernel.
            pinned: only a record of exactly this problem may answer; as `FIREIRON_PINNED` says if None.

        Raises: ArgumentError for arrays that do not fit each other, and where no strategy is legal; StoreError where records are pinned and
            none answers.
        """
        if len(arrays) != len(self.inputs):
            raise ArgumentError(f"{self.name}: {len(arrays)} arrays and numbers", legal=", ".join(self.inputs))
        replays = self._replays
        is_torch = stream is None and any(hasattr(one, "is_cuda") for one in arrays)
        said = None if arch is None and pinned is None else (arch, pinned)
        if is_torch and replays.again is not None and not replays.tracing():
            done = replays.again(said, out, *arrays)
            if done is not None and done is not NotImplemented and done is not ...:
                return done
        if out is None and operators.traced(*arrays):
            return _through_torch(self.name, self.dims, self.inputs, arrays, len(self.outputs))
        if is_torch:
            return replays.call(said, out, arrays, lambda out, *arrays: self._anew(arrays, out, arch, stream, pinned))
        return self._anew(arrays, out, arch, stream, pinned)

    def _anew(self, arrays: tuple[Any, ...], out: Any, arch: Any, stream: Any, pinned: bool | None) -> Any:
        """The same, where no such call was made before."""
        lead, flat, outs = self._flat(arrays, out)
        kernel, _ = self._found(flat, outs, arch, pinned)
        if outs is not None:
            kernel(*flat, out=outs if len(outs) > 1 else outs[0], stream=stream)
            return out
        made = kernel(*flat, stream=stream)
        several = made if len(self.outputs) > 1 else (made,)
        given = tuple(self._shaped(name, one, lead) for name, one in zip(self.outputs, several, strict=True))
        return given if len(given) > 1 else given[0]

    def choice(self, *arrays: Any, out: Any = None, arch: Any = None, pinned: bool | None = None) -> Choice:
        """What is taken for these arrays: the record, if one answers, else the strategy, and why; nothing is launched."""
        _, flat, outs = self._flat(arrays, out)
        return self._found(flat, outs, arch, pinned)[1]

    def kernel(self, *arrays: Any, out: Any = None, arch: Any = None, pinned: bool | None = None) -> CompiledKernel:
        """The kernel that is called for these arrays, which takes them with as many dimensions as its operands have."""
        _, flat, outs = self._flat(arrays, out)
        return self._found(flat, outs, arch, pinned)[0]

    def clear(self) -> None:
        """Forget all kernels, so that records and environment variables are read anew."""
        with self._lock:
            self._kernels.clear()
            self._replays.clear()

    # ------------------------------------------------------------------------------------------ shapes

    def shapes(self, given: Sequence[Sequence[int]]) -> dict[str, tuple[int, ...]]:
        """The shapes of the outputs by name, of those of the inputs; an `ArgumentError` where these do not fit each other."""
        more = _more(given, self.inputs, self.dims)
        first = next((one for one in self.inputs if self.dims[one]), "")
        shared = self.dims[first][0] if first else ""
        lead = tuple(next((shape for name, shape in zip(self.inputs, given, strict=True) if name == first), ()))[: more + 1]
        sizes: dict[str, int] = {}
        for name, shape in zip(self.inputs, given, strict=True):
            dims = self.dims[name]
            own = (math.prod(shape[: more + 1]), *shape[more + 1 :]) if more and dims[:1] == (shared,) else tuple(shape)
            if len(own) != len(dims):
                raise ArgumentError(f"{self.name}: {name} has {len(shape)} dimensions", got=tuple(shape), legal=f"{name}[{','.join(dims)}]")
            for dim, size in zip(dims, own, strict=True):
                if sizes.setdefault(dim, size) != size:
                    got = {one: tuple(shape) for one, shape in zip(self.inputs, given, strict=True)}
                    raise ArgumentError(f"{self.name}: {name} has {size} along {dim}, another array has {sizes[dim]}", got=got)
        found = {}
        for name in self.outputs:
            own = tuple(sizes[dim] for dim in self.dims[name])
            found[name] = (*lead, *own[1:]) if more and self.dims[name][:1] == (shared,) else own
        return found

    def type_of(self, output: str) -> str:
        """The type of a new output: what the definition states, float32 with fewer dimensions than the first array; else ""."""
        first = next((self.dims[one] for one in self.inputs if self.dims[one]), ())
        return self.types.get(output) or ("float32" if len(self.dims[output]) < len(first) else "")

    def _flat(self, arrays: Sequence[Any], out: Any) -> tuple[tuple[int, ...], tuple[Any, ...], tuple[Any, ...] | None]:
        """What is in front of the operands' dimensions, and arrays without it."""
        shapes = [_shape_of(one) for one in arrays]
        more = _more(shapes, self.inputs, self.dims)
        outs = None if out is None else tuple(out) if isinstance(out, tuple | list) else (out,)
        if outs is not None and len(outs) != len(self.outputs):
            raise ArgumentError(f"{self.name}: out: {len(outs)} arrays", legal=", ".join(self.outputs))
        if not more:
            return (), tuple(arrays), outs
        first = next(one for one in self.inputs if self.dims[one])
        shared, lead = self.dims[first][0], shapes[self.inputs.index(first)][: more + 1]
        named = [*zip(self.inputs, arrays, strict=True), *zip(self.outputs, outs or (), strict=bool(outs))]
        flat = tuple(_joined(one, more, self.name, name) if self.dims[name][:1] == (shared,) else one for name, one in named)
        return lead, flat[: len(arrays)], flat[len(arrays) :] if outs else None

    def _shaped(self, name: str, array: Any, lead: tuple[int, ...]) -> Any:
        """An output with what stands in front of its dimensions."""
        first = next((one for one in self.inputs if self.dims[one]), "")
        if not lead or self.dims[name][:1] != self.dims[first][:1]:
            return array
        return array.reshape((*lead, *array.shape[1:]))

    # ------------------------------------------------------------------------------------------ kernels

    def _found(
        self, arrays: tuple[Any, ...], outs: tuple[Any, ...] | None, arch: Any, pinned: bool | None
    ) -> tuple[CompiledKernel, Choice]:
        keys = tuple(key_of(one) if hasattr(one, "shape") else None for one in arrays)
        key = (keys, None if outs is None else tuple(map(key_of, outs)), arch, pinned)
        return recall(self._kernels, self._lock, key, lambda: self._made(arrays, outs, arch, pinned))

    def _made(self, arrays: tuple[Any, ...], outs: tuple[Any, ...] | None, arch: Any, pinned: bool | None) -> tuple[CompiledKernel, Choice]:
        from fireiron.gpu.kernel import CompiledKernel
        from fireiron.tune.records import is_pinned

        shapes = self.shapes([tuple(getattr(one, "shape", ())) for one in arrays])
        named = {name: one for name, one in zip(self.inputs, arrays, strict=True) if self.dims[name]}
        named |= dict(zip(self.outputs, outs or (), strict=bool(outs)))
        given = {name: operand_of(one, name) for name, one in named.items()}
        wrong = next((name for name in self.outputs if name in given and given[name].shape != shapes[name]), None)
        if wrong is not None:
            raise ArgumentError(f"{self.name}: {wrong} has the shape {given[wrong].shape}", legal=f"{shapes[wrong]}")
        devices = {one.device for one in given.values()}
        if len(devices) > 1:
            raise ArgumentError(f"{self.name}: the arrays are in different places", got=devices, hint="all on one GPU, or all NumPy")
        (device,) = devices
        place = _Place(as_architecture(target_of(device) if arch is None else arch), device, given)
        choice = self._kept_or_chosen(self._spec(given, shapes), place, is_pinned(pinned))
        return CompiledKernel(choice.program), choice

    def _kept_or_chosen(self, spec: Spec, place: _Place, pinned: bool) -> Choice:
        """What another process chose on this GPU, else what is chosen now, and kept."""
        from fireiron.tune.records import kept

        asked = self.name, spec, tuple(self.strategies), {name: one.align for name, one in place.given.items()}, pinned
        return kept.chosen("function", place.architecture, place.device, asked, lambda: (self._chosen(spec, place, pinned), 0))[0]

    def _spec(self, given: Mapping[str, Operand], shapes: Mapping[str, tuple[int, ...]]) -> Spec:
        """The spec of arrays as they lie."""
        sizes = {dim: size for name, one in given.items() for dim, size in zip(self.dims[name], one.shape, strict=True)}
        first = next(given[name].dtype for name in self.inputs if name in given)
        types = {name: as_dtype(one.dtype) for name, one in given.items()}
        types |= {name: as_dtype(self.type_of(name) or first) for name in self.outputs if name not in given}
        orders = {name: _order(self.dims[name], one) for name, one in given.items() if not _by_rows(one)}
        words: dict[str, Any] = {**sizes, **orders}
        return self.start(types=types, **words)

    def _chosen(self, spec: Spec, place: _Place, pinned: bool) -> Choice:
        """What a record says, of just this or of a neighbour; else the first of the strategies that is legal."""
        from fireiron.tune.records import Choice, available
        from fireiron.tune.records.default import default_choice

        records, gpu = available(pinned), gpu_name(place.device)
        if pinned:
            return records.best(spec, place.architecture, neighbours=False, gpu=gpu, accept=place.accepts)
        found = records.find(spec, place.architecture, gpu=gpu, accept=place.accepts)
        if found is not None:
            return found
        refusals = []
        for number, strategy in enumerate(self.strategies):
            try:
                program = strategy(spec).program(place.architecture)
                _ = program.ir
            except FireironError as error:
                refusals.append(f"strategy {number}: {error.headline}")
                continue
            if place.accepts(program):
                return Choice(None, False, f"no record answers; strategy {number} of those given", program)
        try:
            return default_choice(spec, place.architecture, place.accepts)
        except ArgumentError as error:
            raise ArgumentError(f"{self.name}: {error.asked}", got="; ".join((*refusals, str(error.got)))) from None


@attrs.frozen
class _Place:
    """Where a kernel is to run, and the arrays by operand."""

    architecture: Architecture
    device: int | None
    given: Mapping[str, Operand]

    def accepts(self, program: Program) -> bool:
        """Whether the arrays are aligned as it needs them, and the compiler here takes it."""
        from fireiron.gpu.kernel import CompiledKernel

        if not fits({name: one.align for name, one in self.given.items()}, program):
            return False
        return self.device is None or refused_by_compiler(CompiledKernel(program)) is None


class _Functions:
    """`fireiron.function`: see `__call__`. Functions are kept by what they are made of, and by the name that PyTorch's operator has."""

    def __init__(self) -> None:
        self._made: dict[Any, Function] = {}
        self._named: dict[str, Function] = {}
        self._lock = threading.RLock()

    def __call__(self, what: str | Fused, strategies: Sequence[Strategy] = ()) -> Function:
        """What a definition computes, as a function of arrays.

        Args:
            what: the name of a strategy of the library that starts from a definition, `"layernorm"`, `"lstm:tanh"`; or a definition.
            strategies: for it, not bound, the fastest first: the first legal one is taken where no record answers.

        Raises: ArgumentError where there is no such strategy, or it starts from no definition.
        """
        key = what, tuple(strategies)
        with self._lock:
            found = self._made.get(key)
            if found is None:
                name = what if isinstance(what, str) and not strategies else f"function {len(self._named)}"
                found = self._made[key] = self._named[name] = Function(name, _start_of(what), strategies)
            return found

    def named(self, name: str) -> Function:
        """The function of a name."""
        return self._named.get(name) or self(name)


function: Final = _Functions()
"""What a definition computes, as a function of arrays; see its `__call__`."""


def _start_of(what: str | Fused) -> Fused:
    """The definition that is meant."""
    if isinstance(what, Fused):
        return what
    from fireiron.language.library import find

    start = find(what).strategy.start
    if not isinstance(start, Fused):
        raise ArgumentError(f"function: {what} starts from no definition", got=str(start), hint="fireiron.matmul(a, b)")
    return start


def _shape_of(value: Any) -> tuple[Any, ...]:
    """The shape of an array; of what is none, such as a number, that of one."""
    shape = getattr(value, "shape", ())
    return tuple(shape) if isinstance(shape, Sequence) else ()


def _more(shapes: Sequence[Sequence[int]], names: Sequence[str], dims: Mapping[str, tuple[str, ...]]) -> int:
    """How many dimensions the first array has in front of those of its operand."""
    first = next(((shape, dims[name]) for name, shape in zip(names, shapes, strict=True) if dims[name]), ((), ()))
    return max(len(first[0]) - len(first[1]), 0)


def _joined(array: Any, more: int, function: str, name: str) -> Any:
    """The first dimensions of an array as one, without a copy."""
    shape = (-1, *array.shape[more + 1 :])
    try:
        return array.view(shape) if hasattr(array, "is_cuda") else _without_copy(array, shape)
    except (RuntimeError, ValueError, AttributeError):
        got = f"shape {tuple(array.shape)}"
        raise ArgumentError(f"{function}: the first dimensions of {name} do not lie as one", got=got, hint="pass a copy") from None


def _without_copy(array: Any, shape: tuple[int, ...]) -> Any:
    view = array.view()
    view.shape = shape
    return view


def _by_rows(one: Operand) -> bool:
    """Whether an array lies row by row, and is aligned."""
    packed = tuple(math.prod(one.shape[dim + 1 :]) for dim in range(len(one.shape)))
    return one.align >= ALIGNMENT and all(size == 1 or step == row for size, step, row in zip(one.shape, one.steps, packed, strict=True))


def _order(dims: tuple[str, ...], one: Operand) -> Strides:
    return Strides(**dict(zip(dims, one.steps, strict=True))).aligned(min(one.align, ALIGNMENT))


# ---------------------------------------------------------------------------------------------- PyTorch's operator


# What stands between here and the operator is traced by torch.compile itself: no caches, no locks.


def _through_torch(name: str, dims: Mapping[str, Any], inputs: Sequence[str], arrays: Sequence[Any], outputs: int) -> Any:
    """The call as an operator."""
    import torch

    _operator()
    tensors = [one for given, one in zip(inputs, arrays, strict=True) if dims[given]]
    numbers = [float(one) for given, one in zip(inputs, arrays, strict=True) if not dims[given]]
    made = torch.ops.fireiron.function(tensors, numbers, name)
    return tuple(made) if outputs > 1 else made[0]


@operators.constant
def _operator() -> bool:
    register_operator()
    return True


@functools.cache
def register_operator() -> Any:
    """The operator, registered."""
    import torch

    def given(of: Function, arrays: Sequence[Any], numbers: Sequence[float]) -> list[Any]:
        tensors, values = iter(arrays), iter(numbers)
        return [next(tensors) if of.dims[name] else next(values) for name in of.inputs]

    def run(arrays: Sequence[Any], numbers: Sequence[float], name: str) -> Any:
        made = function.named(name)(*given(function.named(name), arrays, numbers))
        return list(made) if isinstance(made, tuple) else [made]

    def shaped(arrays: Sequence[Any], numbers: Sequence[float], name: str) -> Any:
        of = function.named(name)
        shapes = of.shapes([tuple(getattr(one, "shape", ())) for one in given(of, arrays, numbers)])
        kinds = {one: getattr(torch, of.type_of(one)) if of.type_of(one) else arrays[0].dtype for one in of.outputs}
        return [arrays[0].new_empty(shapes[one], dtype=kinds[one]) for one in of.outputs]

    schema = "(Tensor[] arrays, float[] numbers, str name) -> Tensor[]"
    return operators.define("function", schema, run, shaped)


__all__ = ["Function", "function"]
