"""Find the kernel for a call of `fireiron.attention`. It reads the arrays in place, or copies of them."""

from __future__ import annotations

import contextlib
import functools
import importlib
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import attrs

from fireiron.batches import Places, Shape, new_like, packed, viewed
from fireiron.compiler import Program
from fireiron.copies import LIBRARIES, copied, library, store, zeroed
from fireiron.errors import ArgumentError, FireironError
from fireiron.front.arrays import ALIGNMENT, Given, Operand, each, joined, operand_of, operands_of, refuse_places
from fireiron.front.call import Answer, Copied, Empty, Request, copies_of
from fireiron.front.place import Place, fits
from fireiron.frozen import frozen
from fireiron.gpu.kernel import CompiledKernel
from fireiron.key_parts import size_for
from fireiron.language.strategy import Strategy
from fireiron.spec import Spec
from fireiron.tune.records import Choice
from fireiron.tune.records.choosing import any_program
from fireiron.values.machine import WARPGROUP_ARCHITECTURE, Architecture, DType, as_dtype, float32
from fireiron.values.strides import Strides

if TYPE_CHECKING:
    from fireiron.attention import Options

TYPES: Final = ("float16", "bfloat16")
"""Element types of queries, keys and values."""

BY_TMA: Final = "hopper_attention"
"""The strategy that requires that a producer fills its buffers by TMA."""

MOST_DIMENSIONS: Final = 4
"""Maximum number of dimensions of queries, keys and values: batch, heads, rows, elements."""

ELEMENTS: Final = 8
"""The number of elements of a head must be a multiple of this number."""

DEPTH: Final = 16
"""K of one tensor-core MMA. Heads of other sizes are copied and padded with zeros."""

NO_KEY: Final = -math.inf
"""The log-sum-exp of a query that attends to no keys."""

DIMS: Final[Mapping[str, str]] = {"Q": "bmgrd", "K": "bngd", "V": "bngd", "O": "bmgrd", "L": "bmgr"}
"""The dimensions of the kernel's arrays, with `r` query heads for each of `g` key heads."""


@frozen
class Sizes:
    """The sizes of a problem: batch, heads of queries, groups (heads of keys), numbers of queries and keys, elements of a head."""

    batch: int
    heads: int
    groups: int
    queries: int
    keys: int
    elements: int

    @property
    def extents(self) -> dict[str, int]:
        """The sizes by dimension of the definition."""
        sizes = {"b": self.batch, "g": self.groups, "r": self.heads // self.groups}
        return {**sizes, "m": self.queries, "n": self.keys, "d": self.elements}

    def attended(self, causal: bool, window: int | None) -> Sizes:
        """Return the sizes without the last keys, if no query attends to them: under a mask, query m attends to keys up to m.

        A kernel does not read these keys. In a tile with other keys, a NaN or an infinity times a probability of zero would be NaN.
        """
        return attrs.evolve(self, keys=min(self.keys, self.queries)) if causal or window is not None else self


@frozen
class BoundKernel:
    """A kernel with the views of its inputs and outputs, and of the caller's results.

    If the kernel computes parts of the result, `combine_kernel` combines them.
    """

    kernel: CompiledKernel
    choice: Choice
    inputs: tuple[Places, ...]
    outputs: tuple[Places, ...]
    results: tuple[Places, ...]
    combine_kernel: CompiledKernel | None = None

    def __call__(self, inputs: Sequence[Any], out: Any, stream: Any) -> Any:
        """Return the result, or a pair with the log-sum-exp."""
        *arrays, scale = inputs
        views = [viewed(array, places) for array, places in zip(arrays, self.inputs, strict=True)]
        if out is None:
            results = each(self._run(views, scale, stream))
            return joined([viewed(array, places) for array, places in zip(results, self.results, strict=True)])
        outs = [viewed(array, places) for array, places in zip(each(out), self.outputs, strict=True)]
        self._run(views, scale, stream, out=joined(outs))
        return out

    def _run(self, arrays: Sequence[Any], scale: float, stream: Any, **out: Any) -> Any:
        if self.combine_kernel is None:
            return self.kernel(*arrays, scale, stream=stream, **out)
        return self.combine_kernel(*self.kernel(*arrays, scale, stream=stream), stream=stream, **out)


@attrs.frozen(kw_only=True)
class _Padded(Copied):
    """An answer that copies heads and pads them with zeros to `elements`; `results` are shapes and strides of new results."""

    elements: int
    results: tuple[Places, ...]

    def copy(self, array: Any) -> Any:
        """Return the padded copy of an input."""
        return padded(array, self.elements)

    def part(self, result: Any, target: Any) -> Any:
        """Return a result without the padding of its heads."""
        return result if result.shape == target.shape else result[..., : target.shape[-1]]

    def __call__(self, inputs: Sequence[Any], out: Any, stream: Any) -> Any:
        """Return the result, or a pair with the log-sum-exp."""
        if out is None:
            out = joined([_new(inputs[0], dtype, places) for dtype, places in zip(_dtypes(inputs[0]), self.results, strict=False)])
        return super().__call__(inputs, out, stream)


def sizes_of(q: Sequence[int], k: Sequence[int], v: Sequence[int]) -> Sizes:
    """Return the sizes of a problem by the shapes of its arrays.

    Raises: an `ArgumentError` if the shapes are incompatible.
    """
    rank = len(q)
    shapes = {"q": tuple(q), "k": tuple(k), "v": tuple(v)}
    if not 2 <= rank <= MOST_DIMENSIONS or not len(k) == len(v) == rank:
        legal = "(m, d), (heads, m, d) or (batch, heads, m, d) for each"
        raise ArgumentError("attention: q, k and v must have the same number of dimensions, 2 to 4", got=shapes, legal=legal)
    (batch, heads, queries, elements), (key_batch, groups, keys, key_elements) = (
        (*(1,) * (MOST_DIMENSIONS - rank), *shape) for shape in (q, k)
    )
    if tuple(k) != tuple(v):
        raise ArgumentError("attention: k and v must have the same shape", got=shapes, legal="equal shapes of k and v")
    if batch != key_batch or key_elements != elements:
        raise ArgumentError("attention: q and k must have the same batch size and the same elements per head", got=shapes)
    if elements % ELEMENTS or not elements:
        legal = f"multiples of {ELEMENTS}, at least {ELEMENTS}"
        raise ArgumentError(
            f"attention: no kernel supports heads of {elements} elements",
            got=shapes,
            legal=legal,
            hint="pad q, k and v with zeros, and pass scale=",
        )
    if heads % groups if groups else heads:
        raise ArgumentError(
            f"attention: the {groups} heads of k do not divide the {heads} heads of q", got=shapes, legal="a divisor of the heads of q"
        )
    return Sizes(batch, heads, groups, queries, keys, elements)


def _check(given: Given, sizes: Sizes, options: Options) -> None:
    """Refuse unsupported types and devices, and outputs that do not match the inputs."""
    q = given["q"]
    if q.dtype not in TYPES:
        raise ArgumentError("attention: no kernel supports the element type of q", got=q.dtype, legal=TYPES, hint="convert q, k and v")
    wanted = {"q": q.shape, "k": given["k"].shape, "v": given["v"].shape, "out": q.shape, "lse": q.shape[:-1]}
    kinds = {name: "float32" if name == "lse" else q.dtype for name in wanted}
    for name, operand in given.items():
        if operand.shape != wanted[name]:
            raise ArgumentError(f"attention: {name} has the shape {operand.shape}", legal=f"{wanted[name]}")
        if operand.dtype != kinds[name]:
            raise ArgumentError(f"attention: {name} has elements of {operand.dtype}", legal=kinds[name], hint="convert one of the arrays")
        if name in ("out", "lse") and operand.repeats:
            raise ArgumentError(
                f"attention: several indices of {name} share an element (broadcast)", got=operand.steps, hint="pass a separate array"
            )
    refuse_places(given, "attention: ", "all on one GPU, or all NumPy")


def _operands(request: Request) -> dict[str, Operand]:
    """Return the properties of the arrays by name."""
    outs, lse = () if request.out is None else each(request.out), request.options.lse
    wanted = ["out", "lse"] if lse else ["out"]
    if request.out is not None and len(outs) != len(wanted):
        raise ArgumentError(f"attention: out has {len(outs)} arrays", legal="a pair, with lse=True" if lse else "one array")
    arrays = dict(zip(["q", "k", "v", *wanted], (*request.inputs, *outs), strict=False))
    kinds = {name: library(array) for name, array in arrays.items()}
    for name, kind in kinds.items():
        if kind not in LIBRARIES or kind != kinds["q"]:
            legal = "NumPy arrays, CuPy arrays or PyTorch tensors, all of one library"
            raise ArgumentError(f"attention: {name} is not an array of the same library as q", got=kinds, legal=legal)
    return operands_of(arrays)


# ---------------------------------------------------------------------------------------------- storage of arrays


def result_steps(shape: Sequence[int], steps: Sequence[int]) -> Shape:
    """Return the strides of a new result: packed, contiguous along a head, and with the other dimensions in the order of those of q."""
    outer = sorted(range(len(shape) - 1), key=lambda dim: -steps[dim])
    strides, step = [1] * len(shape), shape[-1]
    for dim in reversed(outer):
        strides[dim] = step
        step = step * shape[dim]
    return tuple(strides)


def as_kernel(name: str, shape: Shape, steps: Shape, sizes: Sizes) -> Places:
    """Return shape and strides for the kernel, with suitable strides for dimensions of one element."""
    missing = MOST_DIMENSIONS - len(shape) - (name == "L")
    beyond = max(size * step for size, step in zip(shape, steps, strict=True))
    extended = [beyond if size == 1 else step for size, step in zip((*(1,) * missing, *shape), (*(0,) * missing, *steps), strict=True)]
    batch, heads, along, *_ = extended
    extents = sizes.extents
    shared = extents["r"] if name in "QOL" else 1
    by_dim = {"b": batch, "m": along, "n": along, "g": heads * shared, "r": heads, "d": 1}
    extent = tuple(extents[dim] for dim in DIMS[name])
    strides = tuple(beyond if extents[dim] == 1 and dim != "d" else by_dim[dim] for dim in DIMS[name])
    by_rows = packed(extent)
    is_packed = all(size == 1 or step == row for size, step, row in zip(extent, strides, by_rows, strict=True))
    return extent, by_rows if is_packed else strides


def _storage(name: str, places: Places, align: int) -> dict[str, Strides]:
    """Return the storage order of an operand by its name; empty if it is row-major and aligned."""
    shape, steps = places
    if align >= ALIGNMENT and steps == packed(shape):
        return {}
    return {name: _strides(DIMS[name], places, align)}


def _strides(dims: str, places: Places, align: int) -> Strides:
    """Return the storage order of an operand by dimension, with its alignment in bytes."""
    return Strides(**dict(zip(dims, places[1], strict=True))).aligned(min(align, ALIGNMENT))


# ---------------------------------------------------------------------------------------------- from arrays to a kernel


def answer_to(request: Request) -> Answer:
    """Return the answer for a new request."""
    given = _operands(request)
    sizes = sizes_of(*(given[name].shape for name in "qkv"))
    _check(given, sizes, request.options)
    q, out = request.inputs[0], request.out
    results = _results(given["q"], request.options)
    if 0 in attrs.astuple(sizes):
        kinds = zip(results, _dtypes(q), (0.0, NO_KEY), strict=False)
        return Empty("attention", tuple((shape, dtype, value) for (shape, _), dtype, value in kinds), unchosen="nothing is chosen")
    elements = -(-sizes.elements // DEPTH) * DEPTH
    is_wider = elements > sizes.elements
    places = frozenset(place for place, name in enumerate("qkv") if is_wider or needs_copy(given[name]))
    is_direct = not is_wider and not any(needs_copy(given[name]) for name in ("out", "lse") if name in given)
    if not places and is_direct:
        return _bound(request)
    copies = copies_of(request.inputs, places, functools.partial(padded, elements=elements))
    answer = _bound(request._replace(inputs=copies, out=out if is_direct else None))
    return _Padded("attention", answer, places, out is None or not is_direct, elements=elements, results=results)


def _results(q: Operand, options: Options) -> tuple[Places, ...]:
    """Return shapes and strides of new results: the result with the shape of q, and the log-sum-exp if it is requested."""
    return ((q.shape, result_steps(*q.places)), (q.shape[:-1], packed(q.shape[:-1])))[: 1 + options.lse]


def _dtypes(q: Any) -> tuple[DType, DType]:
    """Return the element types of the result and of the log-sum-exp."""
    return as_dtype(operand_of(q, "q").dtype), float32


def needs_copy(operand: Operand) -> bool:
    """Return whether an array must be copied because it is not contiguous along a head, or has a negative stride."""
    steps = [step for size, step in zip(*operand.places, strict=True) if size > 1]
    return any(step < 0 for step in steps) or (operand.shape[-1] > 1 and operand.steps[-1] != 1)


def padded(array: Any, elements: int) -> Any:
    """Return a row-major copy with heads padded with zeros."""
    width = array.shape[-1]
    if width == elements:
        return copied(array)
    wide = zeroed(new_like(array, (*array.shape[:-1], elements), as_dtype(operand_of(array, "an array").dtype)))
    store(wide[..., :width], array)
    return wide


def _new(like: Any, dtype: DType, places: Places) -> Any:
    """Return a new packed array with this shape and the order of these strides."""
    return viewed(new_like(like, (math.prod(places[0]),), dtype), places)


@frozen
class _Arrays:
    """The views of arrays by operand of the kernel, their alignment in bytes, and the place where it runs."""

    sizes: Sizes
    dtype: str
    views: Mapping[str, Places]
    aligned: Mapping[str, int]
    place: Place

    def spec(self, options: Options, is_packed: bool = False) -> Spec:
        """Return the spec for the storage of the arrays, or, as in records, for row-major arrays."""
        sizes, orders = self.sizes, dict[str, Strides]()
        for letter, places in () if is_packed else self.views.items():
            orders |= _storage(letter, places, self.aligned.get(letter, ALIGNMENT))
        lengths = (sizes.queries, sizes.keys, sizes.elements)
        heads = {"heads": sizes.heads, "batch": sizes.batch, "shared": sizes.heads // sizes.groups}
        spec: Spec = module_of("attention").spec(*lengths, **heads, fused=_definition(options), dtype=as_dtype(self.dtype), **orders)
        return spec

    def legal(self, strategy: Strategy, spec: Spec) -> Program:
        """Bind a strategy to a spec, and lower and check it. Raises: `FireironError` if it is illegal, or requires other arrays."""
        program = self.served(strategy(spec).program(self.place.architecture), strategy)
        self.place.prove(program)
        return program

    def served(self, program: Program, strategy: Strategy) -> Program:
        """Return a strategy's program, lowered up to synchronization.

        The independent checks take longer than lowering, so only the chosen program runs them.

        Raises: FireironError if the program is illegal, or requires other arrays.
        """
        if strategy.start == program.spec.starter and _is_warp_specialized(strategy) and not program.sequential.rings:
            raise ArgumentError("TMA cannot copy arrays with these strides")
        if not fits(self.aligned, program):
            raise ArgumentError("the arrays do not have the alignment that the kernel requires")
        return program

    def spills(self, program: Program) -> bool:
        """Return whether the kernel spills registers. Raises: `LaunchError` if the compiler refuses it."""
        kernel = CompiledKernel(program)
        refused = self.place.refusal(kernel)
        if refused is not None:
            raise refused
        is_compiled = self.place.device is not None and program.ir.rings and kernel.compiler is not None
        return bool(is_compiled and kernel.resources.spill_stores)


def _bound(request: Request) -> BoundKernel:
    """Return the kernel, or the two kernels of a decode step, for arrays that need no copy."""
    options, given = request.options, _operands(request)
    sizes = sizes_of(*(given[name].shape for name in "qkv")).attended(options.causal, options.window)
    q, results = given["q"], _results(given["q"], options)
    operand_places = {**dict(zip(("out", "lse"), results, strict=False)), **{name: operand.places for name, operand in given.items()}}
    operands = {letter: name for letter, name in zip("QKVOL", ("q", "k", "v", "out", "lse"), strict=True) if name in operand_places}
    views = {letter: as_kernel(letter, *operand_places[name], sizes) for letter, name in operands.items()}
    aligned = {letter: given[name].align for letter, name in operands.items() if name in given}
    arrays = _Arrays(sizes, q.dtype, views, aligned, Place.of(q.device, request.arch, request.require_record))
    if is_few(sizes, options, arrays.place.architecture) and not arrays.place.require_record:
        with contextlib.suppress(FireironError):  # if TMA cannot copy the arrays, other strategies are tried
            return _decode_kernels(arrays, results)
    choice = _cached_or_chosen(arrays, options)
    view_places = tuple(views.values())
    return BoundKernel(CompiledKernel(choice.program), choice, view_places[:3], view_places[3:], results)


def module_of(name: str) -> Any:
    """Return a file of the strategy library as a module."""
    from fireiron.language.library import LIBRARY

    return importlib.import_module(f"{LIBRARY}.{name}")


@functools.cache
def _definition(options: Options) -> Any:
    """Return the library's definition for the options."""
    return module_of("attention").definition(**options._asdict())


FEW: Final = 16
"""Maximum number of queries, over all heads that share a key head, for which keys are split into parts (`attention_decode`)."""


def is_few(sizes: Sizes, options: Options, architecture: Architecture) -> bool:
    """Return whether there are few queries and many keys. Blocks then process parts of the keys, and a second kernel combines them."""
    shared = sizes.heads // sizes.groups
    plain = not (options.causal or options.window or options.lse or options.score)
    if not plain or min(sizes.queries, shared) > 1 or sizes.queries * shared > FEW or architecture.capability < 80:
        return False
    return sizes.keys > size_for(sizes.keys, sizes.batch * sizes.groups)


def _decode_kernels(arrays: _Arrays, results: tuple[Places, ...]) -> BoundKernel:
    """Return two kernels for few queries. The queries of `Q[b,m,g,r,d]` that share keys are rows of `Q[b,g,m,d]`."""
    sizes, place = arrays.sizes, arrays.place
    row_views = {name: _as_rows(name, *places, sizes) for name, places in arrays.views.items()}
    size, rows = size_for(sizes.keys, sizes.batch * sizes.groups), sizes.queries * (sizes.heads // sizes.groups)
    orders = {
        name: _strides("bgmd" if name in "QO" else "bngd", places, arrays.aligned.get(name, ALIGNMENT))
        for name, places in row_views.items()
    }
    shape = (rows, sizes.keys, sizes.elements, sizes.groups, sizes.batch, size)
    why = f"{rows} queries read the same {sizes.keys} keys: attention_decode in parts of {size}, then attention_combine"

    def choose(number: int) -> tuple[Choice, int]:
        bind = module_of("attention_decode").programs
        programs = bind(*shape, dtype=as_dtype(arrays.dtype), architecture=place.architecture, **orders)
        return Choice(None, False, why, programs[number]), 0

    key = shape, arrays.dtype, tuple((name, str(strides)) for name, strides in orders.items())
    choices = [place.chosen("attention in parts", (*key, number), functools.partial(choose, number))[0] for number in range(2)]
    parts, whole = (CompiledKernel(choice.program) for choice in choices)
    parts.begin(whole)
    places = tuple(row_views.values())
    return BoundKernel(parts.ready(), choices[0], places[:3], places[3:], results, whole.ready())


def _as_rows(name: str, shape: Shape, steps: Shape, sizes: Sizes) -> Places:
    """Return the view of queries or results by head of keys: its queries are rows. Keys do not change."""
    if name in "KV":
        return shape, steps
    b, m, g, r, d = range(5)
    row = m if sizes.queries > 1 else r
    return tuple(shape[dim] for dim in (b, g, row, d)), tuple(steps[dim] for dim in (b, g, row, d))


# ---------------------------------------------------------------------------------------------- choice of a strategy


@frozen
class _Problem:
    """A spec for the storage of the arrays, and `packed`, the same spec for row-major arrays, as in records."""

    options: Options
    spec: Spec
    packed: Spec


def _problems(arrays: _Arrays, options: Options) -> list[_Problem]:
    """Return the problem for each definition of the library, probably the fastest first; on sm_90a also with a `rescale_threshold`."""
    rescale_threshold = (module_of(BY_TMA).RESCALE_THRESHOLD,) if arrays.place.architecture.name == WARPGROUP_ARCHITECTURE else ()
    kinds = [options._replace(rescale_threshold=bits) for bits in (*rescale_threshold, 0)]
    return [_Problem(kind, arrays.spec(kind), arrays.spec(kind, is_packed=True)) for kind in kinds]


def _is_warp_specialized(strategy: Strategy) -> bool:
    """Return whether a strategy is for sm_90a, because all of these are warp-specialized."""
    return strategy.target == WARPGROUP_ARCHITECTURE


def _cached_or_chosen(arrays: _Arrays, options: Options) -> Choice:
    """Return the cached choice of another process for this GPU, or a new choice, which is then cached."""
    # The key determines the problems, so their specs are built only if no choice is cached.
    view_places = tuple((letter, *places) for letter, places in arrays.views.items())
    key = tuple(options), attrs.astuple(arrays.sizes), arrays.dtype, view_places, dict(arrays.aligned), arrays.place.require_record
    return arrays.place.chosen("attention", key, lambda: (_chosen(_problems(arrays, options), arrays), 0))[0]


def _chosen(problems: Sequence[_Problem], arrays: _Arrays) -> Choice:
    """Return the choice by records, or, if no exact record is required, the first default strategy that supports the problem."""
    recorded = _recorded(problems, arrays)
    if recorded is not None:
        return recorded
    if arrays.place.require_record:
        return arrays.place.exact_record(problems[-1].spec, any_program)
    return _default(problems, arrays)


def _default(problems: Sequence[_Problem], arrays: _Arrays) -> Choice:
    """Return the first default strategy that supports the problem, preferably one without register spills."""
    architecture, refusals, spilling = arrays.place.architecture, list[str](), None
    for problem in problems:
        for name, values, strategy in _candidates(problem, architecture):
            if spilling is not None and not _is_warp_specialized(strategy):
                break
            try:
                program = arrays.legal(strategy, problem.spec)
                spills = arrays.spills(program)
            except FireironError as error:
                refusals.append(f"{name}: {error.headline}")
                continue
            values_text = " ".join([name, *(f"{tunable}={value}" for tunable, value in values.items())])
            why = f"no record applies; the default for {problem.spec.operands['Q'].dtype} on {architecture}: {values_text}"
            choice = Choice(None, False, "; ".join((why, *refusals)), program)
            if not spills:
                return choice
            refusals.append(f"{name}: the kernel spills registers")
            spilling = spilling or choice
    if spilling is not None:
        return spilling
    asked = f"attention: no strategy of the library computes {problems[-1].spec} on {architecture}"
    raise ArgumentError(asked, got="; ".join(refusals))


def _recorded(problems: Sequence[_Problem], arrays: _Arrays) -> Choice | None:
    """Return the best record of exactly this problem, or of the nearest one.

    Records of row-major arrays are candidates, too, if their programs support the arrays.
    """
    exact = [
        choice
        for problem in problems
        for spec in dict.fromkeys((problem.spec, problem.packed))
        if (choice := _recorded_choice(problem, spec, arrays))
    ]
    if exact:
        return min(exact, key=lambda choice: math.inf if choice.record is None else choice.record.us)
    if arrays.place.require_record:
        return None
    return next((choice for problem in problems if (choice := _recorded_choice(problem, problem.packed, arrays, near=True))), None)


def _recorded_choice(problem: _Problem, spec: Spec, arrays: _Arrays, near: bool = False) -> Choice | None:
    """Return a recorded strategy with its values, for the storage of the arrays; None if none is legal without register spills."""

    def accept(program: Program) -> bool:
        try:
            return bool(arrays.served(program, program.strategy))
        except FireironError:
            return False

    choice = arrays.place.find(spec, accept, near, lowered=problem.spec)
    try:
        return None if choice is None or arrays.spills(choice.program) else choice
    except FireironError:  # the record was measured with another compiler
        return None


def _candidates(problem: _Problem, architecture: Architecture) -> Iterator[tuple[str, Mapping[str, int], Strategy]]:
    """Yield the library's strategies with tunable values, probably the fastest first; with a `rescale_threshold`, only those for Hopper."""
    from fireiron.language.library import defaults, find  # a cached choice needs none of them

    spec, definition = problem.spec, _definition(problem.options)
    if problem.options.rescale_threshold:
        file = module_of(BY_TMA)
        for form in file.forms(spec):
            yield _with_known_tunables(f"{BY_TMA}:{form}", file.by_rows(definition, **file.FORMS[form]), file.values_of(form, spec))
        return
    known = [(name, values, find(name).strategy) for name, values in defaults(spec, architecture)]
    if not known:
        file = module_of("attention")
        yield _with_known_tunables("attention", file.by_rows(definition), file.values(spec, architecture))
    yield from ((name, values, strategy.with_(**values)) for name, values, strategy in known)


def _with_known_tunables(name: str, strategy: Strategy, values: Mapping[str, int]) -> tuple[str, Mapping[str, int], Strategy]:
    """Return the name, the values of existing tunables, and the strategy with these values."""
    tunables = strategy.tunables()
    known = {tunable: value for tunable, value in values.items() if tunable in tunables}
    return name, known, strategy.with_(**known)


__all__ = ["BoundKernel", "Sizes", "answer_to", "as_kernel", "is_few", "module_of", "needs_copy", "padded", "result_steps", "sizes_of"]
