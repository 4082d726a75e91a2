"""Data for a spec on the GPU, and whether a kernel computes with them what the spec says.

Inputs are standard normal (small integers for integer types): zeros hide what is never written and draw less power. The
outputs are poisoned before each check. The reference is computed once, in float64 on the GPU where it is a product of matrices or of
stacks, in NumPy by the spec's own `reference` otherwise: an array, or a tuple or a mapping by name where the spec has several outputs.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import attrs

from fireiron.errors import ArgumentError, WrongResultError
from fireiron.gpu import launch
from fireiron.gpu.arguments import as_stored, evaluated, in_order, reads_output, returned, solve_symbols
from fireiron.gpu.kernel import CompiledKernel
from fireiron.ir import execs
from fireiron.measure.definitions import borders, bound, spreads
from fireiron.spec import Spec, sizes_of
from fireiron.specs.fused import fused
from fireiron.stacks import of_stacks
from fireiron.values.machine import DType, float32, tf32
from fireiron.values.tensor import View

ROTATE_BYTES = 240e6
"""Bytes over which buffers rotate so that none is found in a cache: four times the L2 of an H200."""

MOST_SETS = 10_000
"""Sets at most; those of a product of 64 x 64 x 64 in float16 are 240 MB then, those of smaller problems less."""

CHUNK = 1 << 24
"""Elements that the check converts to float64 at a time."""

PER_ELEMENT = 8
"""How much further than the whole matrix a single element may be off, relative to it and to the mean square of all."""

Call = Callable[[], object]

Tolerance = float | Mapping[str, float]
"""A bound for all outputs, or one for each by name."""


@attrs.frozen(eq=False, slots=False)
class Data:
    """Sets of arrays by operand name, alike in content, and the reference for them.

    `sizes` are the values of the spec's symbols. `initials` are what the outputs hold before a kernel that adds to them.
    """

    spec: Spec
    sizes: Mapping[str, int]
    sets: tuple[dict[str, Any], ...]
    initials: Mapping[str, Any] = attrs.field(factory=dict)

    @staticmethod
    def of(spec: Spec, *, sizes: Mapping[str, int] | None = None, seed: int = 0, rotate_bytes: float = ROTATE_BYTES) -> Data:
        """Data on the current GPU.

        Args: `sizes` of the spec's symbols; `rotate_bytes`: so many sets that together they are larger, at least two and at most
            10 000; 0: one set.
        Raises: `LaunchError` without a GPU, `ArgumentError` where a size is missing or the type has no arrays there.
        """
        import numpy

        cupy = launch.require_cupy()
        known = all_sizes(spec, sizes)
        generator = numpy.random.default_rng(seed)
        hosts = drawn(spec, known, generator)
        added = spec.outputs if reads_output(spec, known) else ()
        hosts |= {name: _drawn(generator, spec.operands[name], known) for name in added}
        taken = {name: view for name, view in spec.operands.items() if not view.memory.counts}
        first = {name: _placed(cupy, view, known, hosts.get(name)) for name, view in taken.items()}
        count = min(MOST_SETS, max(2, int(rotate_bytes // _bytes_of_set(spec, known)) + 1)) if rotate_bytes else 1
        others = [{name: _placed(cupy, view, known, first[name]) for name, view in taken.items()} for _ in range(count - 1)]
        data = Data(spec, known, (first, *others), {name: cupy.asarray(hosts[name]) for name in added})
        for index in range(count):
            data.reset(index)
        return data

    @property
    def outputs(self) -> tuple[str, ...]:
        """The names of the operands that are written, in order."""
        return self.spec.outputs

    @property
    def output(self) -> str:
        """The name of the operand that is written, where it is one."""
        if len(self.outputs) != 1:
            raise ArgumentError(f"{self.spec.title} has {len(self.outputs)} outputs", got=self.outputs, hint="ask by name: references")
        return self.outputs[0]

    @property
    def initial(self) -> Any:
        """What the one output holds before a kernel that adds to it, else None."""
        return self.initials.get(self.output)

    @property
    def bytes(self) -> int:
        """Bytes of all sets."""
        return len(self.sets) * _bytes_of_set(self.spec, self.sizes)

    def check_rotation(self) -> None:
        """Refuse sets that all fit into the L2 cache of the current GPU: cycling through them does not empty it."""
        cache = int(launch.require_cupy().cuda.Device().attributes.get("L2CacheSize", 0))
        if len(self.sets) < 2 or self.bytes <= cache:
            asked = f"{self.spec}: its {len(self.sets)} sets of buffers, {self.bytes} bytes, lie in the L2 cache together"
            raise ArgumentError(asked, legal=f"more than {cache} bytes", hint='l2="flushed" or l2="hot"')

    @property
    def inputs(self) -> tuple[str, ...]:
        """The names of the operands that are only read, in order."""
        return self.spec.inputs

    def reset(self, index: int = 0) -> None:
        """The outputs of a set as before the first run: NaN, the least integer, or what a kernel adds to."""
        import numpy

        for name in self.outputs:
            out, dtype = self.sets[index][name], self.spec.operands[name].dtype
            if name in self.initials:
                out[...] = self.initials[name]
            else:
                out.fill(math.nan if dtype.kind == "float" else numpy.iinfo(out.dtype).min)

    def calls(self, contender: CompiledKernel | Callable[[Mapping[str, Any]], Call]) -> tuple[Call, ...]:
        """One launch for each set.

        Args: a compiled kernel, or a function that is given the arrays of a set by name and returns the launch on them.
        """
        if isinstance(contender, CompiledKernel):
            return tuple(_launch(contender, self, arrays) for arrays in self.sets)
        return tuple(contender(arrays) for arrays in self.sets)

    @functools.cached_property
    def references(self) -> dict[str, Any]:
        """The right outputs by name: float64 (int64 for integers) on the GPU, before they are rounded to the output's type."""
        cupy = launch.require_cupy()
        arrays = [self.sets[0][name] for name in self.inputs]
        if self.spec.multiplies:
            found = {self.output: _product(cupy, self.spec, *arrays)}
        elif of_stacks(self.spec):
            found = {self.output: _products(cupy, self.spec, *arrays)}
        else:
            found = {name: cupy.asarray(_wide(one)) for name, one in referred(self.spec, *map(cupy.asnumpy, arrays)).items()}
        for name, right in found.items():
            if right.shape != self.sets[0][name].shape:
                asked = f"{self.spec.title}.reference: {name} has another shape than the spec says"
                raise ArgumentError(asked, got=right.shape, legal=str(self.sets[0][name].shape))
        return {name: right + self.initials[name].astype(right.dtype) if name in self.initials else right for name, right in found.items()}

    @property
    def expected(self) -> Any:
        """The reference of the one output."""
        return self.references[self.output]

    @functools.cached_property
    def tolerance(self) -> Tolerance:
        """The bound of `tolerance_of`; by name where there are several outputs."""
        return self._bounds(None)

    @functools.cached_property
    def originals(self) -> dict[str, Any]:
        """Copies of the first set's inputs, as they are when this is first asked for."""
        return {name: self.sets[0][name].copy() for name in self.inputs if not self.spec.operands[name].memory.by_value}

    def tolerance_for(self, contender: object) -> Tolerance:
        """The bound for a contender of `calls`: for a kernel that of the type it adds in, which may be finer than the spec asks."""
        adder = adder_of(contender) if isinstance(contender, CompiledKernel) else None
        return self.tolerance if adder is None else self._bounds(adder)

    def _bounds(self, adder: DType | None) -> Tolerance:
        bounds = {name: tolerance_of(self.spec, self.sizes, adder, output=name) for name in self.outputs}
        return bounds if len(bounds) > 1 else bounds[self.output]

    def verify(self, call: Call, tolerance: Tolerance | None = None) -> float:
        """Run a launch on the first set, its outputs poisoned, and compare each.

        Args: `call` launches on the arrays of `sets[0]`; `tolerance` in place of the one derived from the spec (`tolerance_for` a kernel).
        Returns: the relative error in the Frobenius norm, against float64; of several outputs the largest.
        Raises: `WrongResultError` where that is above the tolerance, or one element is off by more than eight times as much,
            relative to its size and the root of the mean square of all; it names the first such element. And where the launch writes
            to an input, which is then restored.
        """
        device = launch.require_cupy().cuda.Device()
        _ = self.references, self.originals  # of the inputs as they are before a launch that might write over them
        self.reset()
        device.synchronize()
        call()
        device.synchronize()
        self._check_inputs()
        bound = self.tolerance if tolerance is None else tolerance
        return max(_compared(self, name, _bound_of(name, bound)) for name in self.outputs)

    def _check_inputs(self) -> None:
        for name, original in self.originals.items():
            array = self.sets[0][name]
            if not _same_bits(array, original):
                array[...] = original
                written = f"{' and '.join(self.outputs)} {'is' if len(self.outputs) == 1 else 'are'}"
                raise WrongResultError(f"the launch writes to its input {name}", legal=f"only {written} written")


def referred(spec: Spec, *inputs: Any) -> dict[str, Any]:
    """What the spec's `reference` says of each output."""
    return dict(zip(spec.outputs, in_order(spec, spec.reference(*inputs), f"{spec.title}.reference"), strict=True))


def adder_of(kernel: CompiledKernel) -> DType | None:
    """The least precise type in which the kernel's instructions add products up; None where none does."""
    types = [one.spec.C.dtype for one, _ in execs(kernel.ir.body) if one.spec.contracts]
    return min(types, key=lambda dtype: dtype.mantissa, default=None)


def tolerance_of(spec: Spec, sizes: Mapping[str, int] | None = None, adder: DType | None = None, *, output: str | None = None) -> float:
    """The relative error, in the Frobenius norm, that a correct kernel stays below on standard normal data.

    `adder` is the type that sums are kept in (`adder_of` a kernel); by default the spec's accumulator, or else its output's type.
    `output` names one of several outputs; by default it is the first.

    Zero for integers and for what only copies. Otherwise the sum of what each source of rounding may give, with u = 2**-p for a
    type of p significant bits (Higham, Accuracy and Stability of Numerical Algorithms, section 2.8: errors of a sum of K terms
    that round independently grow as the square root of K):

    - the output's type, once: u(C), and half of it to spare;
    - adding K terms in the accumulator, a random walk of steps below u: 2 u sqrt(K);
    - tensor cores drop, not round, what does not fit their float32 accumulator, once every 8 or 16 terms: u K / 8;
    - tf32 drops 13 bits of its inputs, and libraries round them: 2**-10;
    - products of 8-bit floats are added in 14 bits on Hopper: 13 instead of 24.

    Of a definition of several steps it is the sum of what each of them may give (`measure/definitions.py`).

    For float16 output accumulated in float32 that is 0.8e-3 for K = 4096.
    """
    name = spec.outputs[0] if output is None else output
    result = spec.operands[name].dtype
    if result.kind == "int" or spec.moves or spec.fills:
        return 0.0
    known = all_sizes(spec, sizes)
    if (made := fused(spec)) is not None:
        return bound(spec, made, name, known, adder)
    terms = math.prod(evaluated(spec.size(dim), known) for dim in spec.dims if dim not in spec.uses[name])
    first = spec.operands[spec.inputs[0]].dtype if spec.inputs else result
    adder = adder or spec.accumulator or result
    step = 2.0 ** -(min(adder.mantissa, 13) if first.bits == 8 else adder.mantissa)
    dropped = step * terms / 8 if adder == float32 else 0.0
    inputs = 2.0**-10 if first == tf32 else 0.0
    return 1.5 * 2.0**-result.mantissa + 2 * step * math.sqrt(terms) + dropped + inputs


# ---------------------------------------------------------------------------------------------- arrays


def all_sizes(spec: Spec, sizes: Mapping[str, int] | None) -> dict[str, int]:
    """The values of a spec's symbols; refused where a size is missing or outside its facts. Strides that are not given leave no gaps."""
    sizes = sizes or {}
    missing = [var.name for var in sizes_of(spec) if var.name not in sizes]
    if missing:
        raise ArgumentError(f"{spec}: no value for {', '.join(missing)}", hint=f'sizes={{"{missing[0]}": 1024}}')
    return solve_symbols(spec, {}, sizes)


def _shape(view: View, sizes: Mapping[str, int]) -> tuple[int, ...]:
    return tuple(evaluated(size, sizes) for size in view.shape)


def _bytes_of_set(spec: Spec, sizes: Mapping[str, int]) -> int:
    return sum(_extent(view, sizes) * view.dtype.bytes for view in spec.operands.values() if not view.memory.counts)


def _extent(view: View, sizes: Mapping[str, int]) -> int:
    """Elements of the memory that an operand takes, gaps between rows included."""
    return evaluated(view.tensor.storage().extent, sizes)


def drawn(spec: Spec, sizes: Mapping[str, int], generator: Any) -> dict[str, Any]:
    """Random inputs on the host by name, in logical shape; factors of the products of a definition so that sums stay small.

    Numbers passed by value are positive: scales, and what is added below a root.
    """
    made = fused(spec)
    scales = {} if made is None else spreads(spec, made, sizes)
    places = {} if made is None else borders(spec, made, sizes, generator)
    found = {}
    for name in (one for one in spec.operands if one in spec.inputs):
        view = spec.operands[name]
        known = name in places
        found[name] = as_stored(view.tensor, places[name], sizes) if known else _drawn(generator, view, sizes, scales.get(name, 1.0))
    return {name: abs(one) if spec.operands[name].memory.by_value else one for name, one in found.items()}


def _drawn(generator: Any, view: View, sizes: Mapping[str, int], scale: float = 1.0) -> Any:
    """Random values on the host, in logical shape."""
    import numpy

    shape, dtype = _shape(view, sizes), view.dtype.to_numpy()
    if view.dtype.kind == "int":
        values = numpy.asarray(generator.integers(max(-3, view.dtype.limits[0]), 4, shape)).astype(dtype)
    else:
        normal = numpy.asarray(generator.standard_normal(shape, dtype=numpy.float32))
        values = (normal if scale == 1 else normal * numpy.float32(scale)).astype(dtype)
    return as_stored(view.tensor, numpy.asarray(values), sizes)


def _steps(view: View, sizes: Mapping[str, int]) -> tuple[int, ...]:
    """The strides of an operand, in elements; an `ArgumentError` where a dimension has several, as no array has such."""
    steps = view.tensor.storage().steps
    if None in steps:
        what = f"{view.tensor.name}: no array is stored as {view.tensor.layout}, where a dimension has several strides"
        raise ArgumentError(what, legal="RowMajor ColMajor Strides(...)")
    return tuple(evaluated(step, sizes) for step in steps if step is not None)


def _placed(cupy: Any, view: View, sizes: Mapping[str, int], values: Any) -> Any:
    """An array on the GPU in the storage of an operand, with the values if there are any."""
    if view.memory.by_value:
        return values
    strides = tuple(step * view.dtype.bytes for step in _steps(view, sizes))
    try:
        flat = cupy.empty(_extent(view, sizes), dtype=view.dtype.to_numpy())
    except (TypeError, ValueError) as error:
        raise ArgumentError(f"{view.tensor.name}: CuPy has no arrays of {view.dtype}", got=str(error)) from None
    array = cupy.lib.stride_tricks.as_strided(flat, _shape(view, sizes), strides)
    if values is not None:
        array[...] = cupy.asarray(values)
    return array


def _same_bits(left: Any, right: Any) -> bool:
    """Whether two arrays hold the same bits; NaN is like NaN."""
    cupy = launch.require_cupy()
    views = [cupy.ascontiguousarray(one).view(f"uint{8 * one.dtype.itemsize}") for one in (left, right)]
    return bool((views[0] == views[1]).all())


def _launch(kernel: CompiledKernel, data: Data, arrays: Mapping[str, Any]) -> Call:
    prepare = getattr(kernel, "prepare", None) or functools.partial(functools.partial, kernel)
    outs = returned(tuple(arrays[name] for name in data.outputs))
    launched: Call = prepare(*(arrays[name] for name in data.inputs), out=outs, **data.sizes)
    return launched


# ---------------------------------------------------------------------------------------------- comparing


def _product(cupy: Any, spec: Spec, left: Any, right: Any) -> Any:
    """A B in float64, some rows at a time; integers, whose sums float64 holds exactly, wrap around as C's type does."""
    rows, depth = left.shape
    wide = _multiplied(cupy, right, spec.B).astype(cupy.float64)
    result = cupy.empty((rows, right.shape[1]), dtype=cupy.float64)
    step = max(1, CHUNK // depth)
    for start in range(0, rows, step):
        part = _multiplied(cupy, left[start : start + step], spec.A).astype(cupy.float64)
        result[start : start + step] = part @ wide
    if spec.C.dtype.kind == "int":
        return result.astype(cupy.int64).astype(spec.C.dtype.to_numpy()).astype(cupy.int64)
    return result


def _products(cupy: Any, spec: Spec, left: Any, right: Any) -> Any:
    """The products of all matrices of stacks, in the order of C's dimensions."""
    lefts, rights = _matrices(left, spec.uses["A"], "mk"), _matrices(right, spec.uses["B"], "kn")
    sizes = {dim: size for name, one in (("A", left), ("B", right)) for dim, size in zip(spec.uses[name], one.shape, strict=True)}
    made = [_product(cupy, spec, next(lefts), next(rights)) for _ in range(sizes["b"])]
    return cupy.stack(made).transpose(["bmn".index(dim) for dim in spec.uses["C"]])


def _matrices(array: Any, dims: Sequence[str], order: str) -> Iterator[Any]:
    """The matrices of a stack, or one for all, with their dimensions in an order."""
    axes = [dims.index(dim) for dim in order]
    return iter(array.transpose(dims.index("b"), *axes)) if "b" in dims else itertools.repeat(array.transpose(axes))


def _multiplied(cupy: Any, values: Any, view: View) -> Any:
    """What is multiplied: of tf32 the upper 19 bits."""
    if view.dtype != tf32:
        return values
    return (cupy.ascontiguousarray(values).view(cupy.uint32) & cupy.uint32(0xFFFFE000)).view(cupy.float32)


def _wide(values: Any) -> Any:
    import numpy

    return values.astype(numpy.int64 if values.dtype.kind in "iu" else numpy.float64)


def _compared(data: Data, name: str, tolerance: float) -> float:
    cupy = launch.require_cupy()
    out, expected = data.sets[0][name], data.references[name]
    square = float((expected.astype(cupy.float64) ** 2).sum())
    mean = math.sqrt(square / expected.size)
    step = max(1, CHUNK // max(1, math.prod(expected.shape[1:])))
    wrong, first, total = 0, None, 0.0
    for start in range(0, expected.shape[0], step):
        right = expected[start : start + step]
        off = cupy.abs(out[start : start + step].astype(right.dtype) - right)
        bad = ~(off <= PER_ELEMENT * tolerance * (cupy.abs(right) + mean))  # true for NaN
        total += float((off.astype(cupy.float64) ** 2).sum())
        count = int(bad.sum())
        if count and first is None:
            first = _position(int(bad.argmax()), bad.shape, start)
        wrong += count
    error = math.sqrt(total / square) if square else math.sqrt(total)
    if wrong or not error <= tolerance:
        raise _refusal(data, name, wrong, first, error, tolerance)
    return error


def _bound_of(name: str, tolerance: Tolerance) -> float:
    if not isinstance(tolerance, Mapping):
        return tolerance
    if name not in tolerance:
        raise ArgumentError(f"tolerance: none for {name}", got=dict(tolerance), hint="a bound for each output, or one for all")
    return tolerance[name]


def _position(flat: int, shape: tuple[int, ...], start: int) -> tuple[int, ...]:
    """The index of an element from its number in row-major order of a part that begins at row `start`."""
    index: list[int] = []
    for size in reversed(shape):
        index.insert(0, flat % size)
        flat //= size
    return (index[0] + start, *index[1:])


def _refusal(data: Data, name: str, wrong: int, first: tuple[int, ...] | None, error: float, tolerance: float) -> WrongResultError:
    whole = math.prod(data.references[name].shape)
    legal = f"a relative error of at most {tolerance:.2g} in the Frobenius norm"
    if first is None:
        return WrongResultError(f"{name} is wrong: its relative error is {error:.2g}, no single element stands out", legal=legal)
    got, right = data.sets[0][name][first].item(), data.references[name][first].item()
    unwritten = not reads_output(data.spec, data.sizes) and _is_poison(data, name, got)
    return WrongResultError(
        f"{name} is wrong: {wrong} of {whole} elements, the first is {name}{list(first)}, {right:.7g} expected",
        got=got,
        legal=legal,
        hint="the output held this before the kernel ran: it may not write the element at all" if unwritten else None,
    )


def _is_poison(data: Data, name: str, got: Any) -> bool:
    import numpy

    if data.spec.operands[name].dtype.kind == "float":
        return math.isnan(got)
    return bool(got == numpy.iinfo(data.sets[0][name].dtype).min)
