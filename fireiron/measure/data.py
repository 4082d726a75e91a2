"""Generate data for a spec on the GPU, and check that a kernel computes what the spec specifies.

Inputs are standard normal numbers, or small integers for integer types. Zeros would hide unwritten elements, and the GPU would draw less
power. Outputs are poisoned before each check. The reference is computed once: in float64 on the GPU for (batched) matrix products, and
otherwise in NumPy by the spec's `reference`. That function returns an array; for several outputs, a tuple or a mapping by name.

Elements of a kernel's output are compared within separate error bounds (`measure/rounding.py`). For matrix products these are all elements,
and the GPU computes the bounds. For other specs, these are as many elements as NumPy analyzes in one or two seconds. The other elements are
compared as a whole (`measure/norms.py`), and each relative to the root mean square. So are the outputs of other launches, which may round
more often than the spec specifies.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from typing import Any, Final

import attrs

from fireiron.errors import ArgumentError, WrongResultError
from fireiron.frozen import frozen
from fireiron.gpu import launch
from fireiron.gpu.arguments import evaluated, in_order, keeps_elements, reads_output, require_room, returned
from fireiron.gpu.kernel import CompiledKernel
from fireiron.ir import execs
from fireiron.measure.inputs import all_sizes, initial_output, random_inputs, select_at, shape_of
from fireiron.measure.norms import PER_ELEMENT, ratio, tolerance_of, tolerances_of
from fireiron.measure.products import CHUNK, multiplies, product, product_bounds
from fireiron.measure.rounding import Bounded, expected, rounded_by, sample
from fireiron.spec import Spec
from fireiron.values.machine import DType
from fireiron.values.tensor import View

ROTATE_BYTES = 240e6
"""Total bytes of rotating buffers: four times the L2 cache of an H200, so that no buffer stays in the cache."""

MAX_SETS = 10_000
"""Maximum number of buffer sets. They take 240 MB for a float16 matmul of 64 x 64 x 64, and less for smaller problems."""

WORK: Final = 1 << 27
"""Number of terms whose errors NumPy analyzes for one check: one or two seconds. Larger problems are sampled by rows and columns."""

Call = Callable[[], object]


@frozen
class Derived:
    """Compare each element within a separate bound, for products accumulated in `accumulator` (None: the spec's accumulator)."""

    accumulator: DType | None = None


Tolerance = float | Mapping[str, float] | Derived
"""A relative error in the Frobenius norm for all outputs, such an error for each output by name, or bounds of elements."""


@attrs.frozen(eq=False)
class _ElementBounds:
    """The error bounds of the elements of an output: of all elements, or of those at some `places` by dimension.

    `whole` is the tolerance of the whole output in the Frobenius norm.
    """

    bounds: Any
    places: Mapping[str, Any]
    whole: float


@attrs.frozen(eq=False, slots=False)
class Data:
    """Sets of arrays by operand name, with equal contents, and their reference.

    `sizes` are the values of the spec's symbols. `initials` are the contents of outputs before a kernel accumulates into them.
    """

    spec: Spec
    sizes: Mapping[str, int]
    sets: tuple[dict[str, Any], ...]
    initials: Mapping[str, Any] = attrs.field(factory=dict)
    _bounds: dict[DType | None, dict[str, _ElementBounds]] = attrs.field(factory=dict, init=False, repr=False)

    @staticmethod
    def of(spec: Spec, *, sizes: Mapping[str, int] | None = None, seed: int = 0, rotate_bytes: float = ROTATE_BYTES) -> Data:
        """Return data on the current GPU.

        Args:
            sizes: the values of the spec's symbols.
            seed: the seed of the random numbers.
            rotate_bytes: the number of sets is chosen so that together they exceed this size, at least 2 and at most `MAX_SETS`. 0 means
                one set.

        Raises: `LaunchError` without a GPU; `ArgumentError` if a size is missing or CuPy has no arrays of the type.
        """
        import numpy

        cupy = launch.require_cupy()
        known = all_sizes(spec, sizes)
        generator = numpy.random.default_rng(seed)
        hosts = random_inputs(spec, known, generator)
        accumulated = spec.outputs if reads_output(spec, known) else ()
        hosts |= {name: initial_output(spec, name, known, generator) for name in accumulated}
        kept = [] if accumulated else keeps_elements(spec)
        hosts |= {name: numpy.zeros(shape_of(spec.operands[name], known), spec.operands[name].dtype.to_numpy()) for name in kept}
        accumulated = (*accumulated, *kept)
        stored = {name: view for name, view in spec.operands.items() if not view.memory.is_coordinate}
        first = {name: _device_array(cupy, view, known, hosts.get(name)) for name, view in stored.items()}
        count = min(MAX_SETS, max(2, int(rotate_bytes // _bytes_of_set(spec, known)) + 1)) if rotate_bytes else 1
        others = [{name: _device_array(cupy, view, known, first[name]) for name, view in stored.items()} for _ in range(count - 1)]
        data = Data(spec, known, (first, *others), {name: cupy.asarray(hosts[name]) for name in accumulated})
        for index in range(count):
            data.reset(index)
        return data

    @property
    def outputs(self) -> tuple[str, ...]:
        """The names of the written operands, in order."""
        return self.spec.outputs

    @property
    def output(self) -> str:
        """The name of the only written operand. Raises: `ArgumentError` if there are several."""
        if len(self.outputs) != 1:
            raise ArgumentError(f"{self.spec.title} has {len(self.outputs)} outputs", got=self.outputs, hint="use references, by name")
        return self.outputs[0]

    @property
    def initial(self) -> Any:
        """The contents of the only output before a kernel accumulates into it, else None."""
        return self.initials.get(self.output)

    @property
    def bytes(self) -> int:
        """The number of bytes of all sets."""
        return len(self.sets) * _bytes_of_set(self.spec, self.sizes)

    def check_rotation(self) -> None:
        """Require that all sets together exceed the L2 cache of the current GPU. Otherwise a cycle through them does not evict them.

        Raises: `ArgumentError` if they fit.
        """
        cache = int(launch.require_cupy().cuda.Device().attributes.get("L2CacheSize", 0))
        if len(self.sets) < 2 or self.bytes <= cache:
            asked = f"{self.spec}: the {len(self.sets)} sets of buffers, together {self.bytes} bytes, fit into the L2 cache"
            raise ArgumentError(asked, legal=f"more than {cache} bytes", hint='l2="flushed" or l2="hot"')

    @property
    def inputs(self) -> tuple[str, ...]:
        """The names of the operands that are only read, in order."""
        return self.spec.inputs

    def reset(self, index: int = 0) -> None:
        """Set the outputs of a set to NaN, the least integer, or the values into which a kernel accumulates."""
        import numpy

        for name in self.outputs:
            out, dtype = self.sets[index][name], self.spec.operands[name].dtype
            if name in self.initials:
                out[...] = self.initials[name]
            else:
                out.fill(math.nan if dtype.kind == "float" else numpy.iinfo(out.dtype).min)

    def calls(self, contender: CompiledKernel | Callable[[Mapping[str, Any]], Call]) -> tuple[Call, ...]:
        """Return a launch for each set.

        Args:
            contender: a compiled kernel, or a function that takes the arrays of a set by name and returns the launch on them.
        """
        if isinstance(contender, CompiledKernel):
            return tuple(_launch(contender, self, arrays) for arrays in self.sets)
        return tuple(contender(arrays) for arrays in self.sets)

    @functools.cached_property
    def references(self) -> dict[str, Any]:
        """The correct outputs by name: float64 (int64 for integers) on the GPU, before rounding to the output's type."""
        cupy = launch.require_cupy()
        arrays = [self.sets[0][name] for name in self.inputs]
        if multiplies(self.spec):
            references = {self.output: product(cupy, self.spec, *arrays)}
        else:
            on_host = references_of(self.spec, *map(cupy.asnumpy, arrays))
            references = {name: cupy.asarray(_widened(array)) for name, array in on_host.items()}
        for name, right in references.items():
            if right.shape != self.sets[0][name].shape:
                asked = f"{self.spec.title}.reference: {name} does not have the shape of the spec"
                raise ArgumentError(asked, got=right.shape, legal=str(self.sets[0][name].shape))
        return {
            name: right + self.initials[name].astype(right.dtype) if name in self.initials else right for name, right in references.items()
        }

    @property
    def expected(self) -> Any:
        """The reference of the only output."""
        return self.references[self.output]

    @functools.cached_property
    def tolerance(self) -> float | Mapping[str, float]:
        """The tolerance by `tolerance_of`. For several outputs, a mapping by name."""
        tolerances = tolerances_of(self.spec, self.sizes)
        return tolerances if len(tolerances) > 1 else tolerances[self.output]

    @functools.cached_property
    def originals(self) -> dict[str, Any]:
        """Copies of the first set's inputs, made at the first use of this property."""
        return {name: self.sets[0][name].copy() for name in self.inputs if not self.spec.operands[name].memory.by_value}

    def tolerance_for(self, contender: object) -> Tolerance:
        """Return the tolerance for a contender of `calls`: element bounds for a kernel, and `tolerance` for other contenders."""
        return Derived(accumulator_of(contender)) if isinstance(contender, CompiledKernel) else self.tolerance

    def verify(self, call: Call, tolerance: Tolerance | None = None) -> float:
        """Run a launch on the first set with poisoned outputs, and compare each output.

        Args:
            call: launches on the arrays of `sets[0]`.
            tolerance: the tolerance of a contender (`tolerance_for`). Default: the spec's relative error in the Frobenius norm.

        Returns: the relative error in the Frobenius norm, compared with float64. For several outputs, the largest error.

        Raises: `WrongResultError`, with the first wrong element, in these cases:

        - The error of an element exceeds its bound.
        - The error of a whole output exceeds its tolerance.
        - No bounds of elements are known, and the error of an element exceeds `PER_ELEMENT` times the tolerance, relative to the sum of its
          magnitude and the root mean square.
        - The launch writes to an input. The input is then restored.
        """
        device = launch.require_cupy().cuda.Device()
        _ = self.references, self.originals  # computed before a launch that might overwrite the inputs
        bound = self.tolerance if tolerance is None else tolerance
        bounds_ = self._element_bounds(bound.accumulator) if isinstance(bound, Derived) else {}
        whole = (
            tolerances_of(self.spec, self.sizes, bound.accumulator)
            if isinstance(bound, Derived) and len(bounds_) < len(self.outputs)
            else bound
        )
        self.reset()
        device.synchronize()
        call()
        device.synchronize()
        self._check_inputs()
        return max(_compared(self, name, bounds_.get(name) or _tolerance_of(name, whole)) for name in self.outputs)

    def _element_bounds(self, accumulator: DType | None) -> dict[str, _ElementBounds]:
        """Return the bounds of elements by output, for products accumulated in a type.

        Return no bounds if all results are exact, or if the kernel accumulates into its output.
        """
        if accumulator not in self._bounds:
            self._bounds[accumulator] = (
                self._bounds_of_product(accumulator) if multiplies(self.spec) else self._bounds_of_steps(accumulator)
            )
        return self._bounds[accumulator]

    def _bounds_of_product(self, accumulator: DType | None) -> dict[str, _ElementBounds]:
        """Return the bounds of all elements, with a sharper tolerance for the whole output."""
        name = self.output
        if self.spec.operands[name].dtype.kind == "int" or self.initials:
            return {}
        operands = [self.sets[0][operand] for operand in self.inputs]
        bounds = product_bounds(launch.require_cupy(), self.spec, operands, self.references[name], accumulator)
        return {name: _ElementBounds(bounds, {}, tolerance_of(self.spec, self.sizes, accumulator))}

    def _bounds_of_steps(self, accumulator: DType | None) -> dict[str, _ElementBounds]:
        """Return the bounds of as many elements as NumPy analyzes within seconds."""
        import numpy

        cupy, spec = launch.require_cupy(), self.spec
        if self.initials or spec.moves or spec.fills:
            return {}
        places = sample(spec, self.sizes, WORK, numpy.random.default_rng(0))
        arrays = {name: cupy.asnumpy(self.sets[0][name]) for name in self.inputs}
        bounded = expected(spec, arrays, self.sizes, accumulator, places=places, random=True)
        return {name: _element_bounds(cupy, output, spec.operands[name].dtype, places) for name, output in bounded.items()}

    def _check_inputs(self) -> None:
        for name, original in self.originals.items():
            array = self.sets[0][name]
            if not _same_bits(array, original):
                array[...] = original
                raise WrongResultError(f"the launch writes to its input {name}", legal=f"writes to {' and '.join(self.outputs)} only")


def references_of(spec: Spec, *inputs: Any) -> dict[str, Any]:
    """Return the result of the spec's `reference` for each output."""
    return dict(zip(spec.outputs, in_order(spec, spec.reference(*inputs), f"{spec.title}.reference"), strict=True))


def accumulator_of(kernel: CompiledKernel) -> DType | None:
    """Return the least precise type in which the kernel's instructions accumulate products; None if they accumulate none."""
    types = [stmt.spec.operands[stmt.spec.outputs[0]].dtype for stmt, _ in execs(kernel.ir.body) if stmt.spec.definition.is_product_sum]
    return min(types, key=lambda dtype: dtype.mantissa, default=None)


# ---------------------------------------------------------------------------------------------- arrays


def _bytes_of_set(spec: Spec, sizes: Mapping[str, int]) -> int:
    return sum(_extent(view, sizes) * view.dtype.bytes for view in spec.operands.values() if not view.memory.is_coordinate)


def _extent(view: View, sizes: Mapping[str, int]) -> int:
    """Return the number of elements in the memory of an operand, including gaps between rows."""
    return evaluated(view.tensor.array.storage().extent, sizes)


def _steps(view: View, sizes: Mapping[str, int]) -> tuple[int, ...]:
    """Return the strides of an operand, in elements. Raises: `ArgumentError` if a dimension has several strides."""
    steps = view.tensor.array.storage().steps
    if None in steps:
        message = f"{view.tensor.name}: an array cannot have the layout {view.tensor.layout}, in which a dimension has several strides"
        raise ArgumentError(message, legal="RowMajor ColMajor Strides(...)")
    return tuple(evaluated(step, sizes) for step in steps if step is not None)


def _device_array(cupy: Any, view: View, sizes: Mapping[str, int], values: Any) -> Any:
    """Return an array on the GPU with the storage of an operand, and with the values if given."""
    if view.memory.by_value:
        return values
    steps, shape = _steps(view, sizes), shape_of(view, sizes)
    require_room(view.tensor.name, shape, steps, _extent(view, sizes))
    strides = tuple(step * view.dtype.bytes for step in steps)
    try:
        flat = cupy.empty(_extent(view, sizes), dtype=view.dtype.to_numpy())
    except (TypeError, ValueError) as error:
        raise ArgumentError(f"{view.tensor.name}: CuPy has no arrays of {view.dtype}", got=str(error)) from None
    array = cupy.lib.stride_tricks.as_strided(flat, shape, strides)
    if values is not None:
        array[...] = cupy.asarray(values)
    return array


def _same_bits(left: Any, right: Any) -> bool:
    """Whether two arrays contain the same bits. NaN equals NaN."""
    cupy = launch.require_cupy()
    views = [cupy.ascontiguousarray(array).view(f"uint{8 * array.dtype.itemsize}") for array in (left, right)]
    return bool((views[0] == views[1]).all())


def _launch(kernel: CompiledKernel, data: Data, arrays: Mapping[str, Any]) -> Call:
    prepare = getattr(kernel, "prepare", None) or functools.partial(functools.partial, kernel)
    outs = returned(tuple(arrays[name] for name in data.outputs))
    launched: Call = prepare(*(arrays[name] for name in data.inputs), out=outs, **data.sizes)
    return launched


# ---------------------------------------------------------------------------------------------- comparison


def _widened(values: Any) -> Any:
    import numpy

    return values.astype(numpy.int64 if values.dtype.kind in "iu" else numpy.float64)


def _element_bounds(cupy: Any, bounded: Bounded, dtype: DType, places: Mapping[str, Any]) -> _ElementBounds:
    """Return the bounds of an output from the analysis of its elements, or of its elements at some places.

    The bounds include the rounding of the reference to the type of the output.
    """
    import numpy

    error = bounded.error + rounded_by(dtype, bounded.value)
    known = dtype.kind != "int" and bool(places) and bool(numpy.isfinite(error).all())
    whole = ratio(bounded) if known else 0.0 if dtype.kind == "int" else math.inf
    return _ElementBounds(cupy.asarray(error), {dim: cupy.asarray(positions) for dim, positions in places.items()}, whole)


def _compared(data: Data, name: str, allowed: float | _ElementBounds) -> float:
    """Return the relative error of an output in the Frobenius norm.

    Raises: `WrongResultError` if this error exceeds the tolerance, or the error of an element its bound.
    """
    out, expected = data.sets[0][name], data.references[name]
    bounds_ = allowed if isinstance(allowed, _ElementBounds) else None
    tolerance = bounds_.whole if bounds_ is not None else allowed
    assert isinstance(tolerance, (int, float))
    square = _square(expected)
    mean = math.sqrt(square / max(expected.size, 1))
    step = max(1, CHUNK // max(1, math.prod(expected.shape[1:])))
    wrong, first, total = 0, None, 0.0
    for start in range(0, expected.shape[0], step):
        right = expected[start : start + step]
        off = _off(out[start : start + step], right)
        if bounds_ is not None and not bounds_.places:
            limit = bounds_.bounds[start : start + step]
        else:
            limit = PER_ELEMENT * tolerance * (abs(right) + mean) if math.isfinite(tolerance) else math.inf
        bad = ~((off <= limit) | (off == 0))  # true for NaN instead of a number
        total += float((off.astype("float64") ** 2).sum())
        count = int(bad.sum())
        if count and first is None:
            first = _position(int(bad.argmax()), bad.shape, start)
        wrong += count
    error = math.sqrt(total / square) if square else math.sqrt(total)
    if wrong or not error <= tolerance:
        raise _wrong_result(
            data, name, wrong, first, error, bounds_ if bounds_ is not None and not bounds_.places and first is not None else tolerance
        )
    if bounds_ is not None and bounds_.places:
        _compare_at(data, name, bounds_)
    return error


def _compare_at(data: Data, name: str, bounds_: _ElementBounds) -> None:
    """Compare the elements at the positions. Raises: `WrongResultError` if the error of an element exceeds its bound."""
    dims = data.spec.uses[name]
    right = select_at(data.references[name], dims, bounds_.places)
    off = _off(select_at(data.sets[0][name], dims, bounds_.places), right)
    bad = ~((off <= bounds_.bounds) | (off == 0))
    if count := int(bad.sum()):
        at = _position(int(bad.argmax()), bad.shape, 0)
        place = tuple(int(bounds_.places[dim][index]) if dim in bounds_.places else index for dim, index in zip(dims, at, strict=True))
        raise _wrong_result(data, name, count, place, 0.0, attrs.evolve(bounds_, bounds=bounds_.bounds[at]), bad.size)


def _off(out: Any, right: Any) -> Any:
    """Return the absolute error of elements. It is zero if both are NaN or the same infinity."""
    import numpy

    have = out.astype(right.dtype)
    with numpy.errstate(invalid="ignore"):
        off = abs(have - right)
    off[(have == right) | ((have != have) & (right != right))] = 0
    return off


def _square(values: Any) -> float:
    """Return the sum of the squares of the finite elements."""
    wide = values.astype("float64")
    return float((wide[abs(wide) < math.inf] ** 2).sum())


def _tolerance_of(name: str, tolerance: Tolerance) -> float:
    if not isinstance(tolerance, Mapping):
        assert not isinstance(tolerance, Derived)
        return tolerance
    if name not in tolerance:
        raise ArgumentError(
            f"tolerance: there is no bound for {name}", got=dict(tolerance), hint="give a bound for each output, or one bound for all"
        )
    return tolerance[name]


def _position(flat: int, shape: tuple[int, ...], start: int) -> tuple[int, ...]:
    """Return the index of an element from its number in row-major order, for a part that starts at row `start`."""
    index: list[int] = []
    for size in reversed(shape):
        index.insert(0, flat % size)
        flat //= size
    return (index[0] + start, *index[1:])


def _wrong_result(
    data: Data, name: str, wrong: int, first: tuple[int, ...] | None, error: float, allowed: float | _ElementBounds, of: int | None = None
) -> WrongResultError:
    """Return the error that names the first wrong element. `of` is the number of compared elements; None means all."""
    if isinstance(allowed, _ElementBounds):
        assert first is not None
        bound = float(allowed.bounds if of is not None else allowed.bounds[first])
        legal = f"an error of at most {bound:.2g}, the rounding bound of its terms"
    else:
        legal = f"a relative error of at most {allowed:.2g} in the Frobenius norm"
    if first is None:
        return WrongResultError(
            f"{name} is wrong: its relative error is {error:.2g}, although no single element is an outlier", legal=legal
        )
    got, right = data.sets[0][name][first].item(), data.references[name][first].item()
    unwritten = not reads_output(data.spec, data.sizes) and _is_poison(data, name, got)
    whole = f"{math.prod(data.references[name].shape)}" if of is None else f"{of} compared"
    return WrongResultError(
        f"{name} is wrong: {wrong} of {whole} elements, the first is {name}{list(first)}, {right:.7g} expected",
        got=got,
        legal=legal,
        hint="the output had this value before the kernel ran; the kernel may not write the element" if unwritten else None,
    )


def _is_poison(data: Data, name: str, got: Any) -> bool:
    import numpy

    if data.spec.operands[name].dtype.kind == "float":
        return math.isnan(got)
    return bool(got == numpy.iinfo(data.sets[0][name].dtype).min)


__all__: list[str] = [
    "CHUNK", "PER_ELEMENT", "ROTATE_BYTES", "Call", "Data", "Derived", "Tolerance",
    "accumulator_of", "all_sizes", "random_inputs", "references_of",
    "tolerance_of",
]  # fmt: skip
