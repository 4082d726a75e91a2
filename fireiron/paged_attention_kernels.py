"""Find the kernels for a call of `fireiron.paged_attention`, which read the arrays in place."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import attrs

from fireiron.attention_kernels import DEPTH, NO_KEY, TYPES, module_of, needs_copy, result_steps
from fireiron.batches import Places, Shape, new_like, packed, viewed
from fireiron.copies import LIBRARIES, library
from fireiron.errors import ArgumentError
from fireiron.front.arrays import ALIGNMENT, Given, Operand, each, joined, operand_of, operands_of, refuse_places
from fireiron.front.call import Answer, Copied, Empty, Request, copies_of
from fireiron.front.place import Place
from fireiron.frozen import frozen
from fireiron.gpu.kernel import CompiledKernel
from fireiron.specs.fused import Fused
from fireiron.tune.records import Choice
from fireiron.tune.records.choosing import any_program
from fireiron.values.machine import as_dtype, float32
from fireiron.values.strides import Strides

if TYPE_CHECKING:
    from fireiron.paged_attention import Options

QUANTIZED: Final = "float8_e4m3fn"
"""The element type of 8-bit caches."""

MOST_ELEMENTS: Final = 256
"""Maximum number of elements of a head."""

WIDE: Final = 128
"""Maximum number of elements of a head for which queries stay in registers."""

OLDEST: Final = 80
"""The first compute capability with kernels."""

FEWEST: Final = 1024
"""The smallest bound of lengths for which separate kernels are compiled. Other values of `max_length` are rounded up to powers of two."""


@frozen
class Sizes:
    """The sizes of a problem: sequences, heads of queries and keys, queries and keys of a sequence, elements of a head, keys of a page.

    `page` is None for contiguous caches.
    """

    batch: int
    heads: int
    groups: int
    queries: int
    keys: int
    elements: int
    page: int | None

    @property
    def shared(self) -> int:
        """The number of heads of queries for each head of keys."""
        return self.heads // self.groups

    @property
    def rows(self) -> int:
        """The number of queries that read the same keys."""
        return self.shared * self.queries


def sizes_of(q: Sequence[int], k: Sequence[int], v: Sequence[int], table: Sequence[int] | None, lengths: Sequence[int]) -> Sizes:
    """Return the sizes of a problem by the shapes of its arrays. Raises: an `ArgumentError` if they are incompatible."""
    shapes = {
        "q": tuple(q),
        "key_cache": tuple(k),
        "value_cache": tuple(v),
        "page_table": table and tuple(table),
        "lengths": tuple(lengths),
    }
    if len(q) not in (3, 4) or len(k) != 4:
        legal = (
            "q (batch, heads, m, d) or (batch, heads, d); caches (pages, page_size, groups, d), or (batch, n, groups, d) without a table"
        )
        raise ArgumentError("paged_attention: q has 3 or 4 dimensions, and the caches have 4", got=shapes, legal=legal)
    if tuple(k) != tuple(v):
        raise ArgumentError("paged_attention: the caches must have the same shape", got=shapes)
    batch, heads, *queries, elements = q
    pages, page, groups, key_elements = k
    if key_elements != elements:
        raise ArgumentError("paged_attention: q and the caches must have the same elements per head", got=shapes)
    if elements % DEPTH or not 0 < elements <= MOST_ELEMENTS:
        legal = f"multiples of {DEPTH}, at most {MOST_ELEMENTS}"
        raise ArgumentError(f"paged_attention: no kernel supports heads of {elements} elements", got=shapes, legal=legal)
    if heads % groups if groups else heads:
        raise ArgumentError(f"paged_attention: the {groups} heads of keys do not divide the {heads} heads of q", got=shapes)
    if table is None and pages != batch:
        legal = "caches (batch, n, groups, d), or a page_table"
        raise ArgumentError("paged_attention: contiguous caches must have the batch size of q", got=shapes, legal=legal)
    if table is not None and (len(table) != 2 or table[0] != batch):
        raise ArgumentError("paged_attention: page_table has another shape", got=shapes, legal=f"({batch}, t)")
    if tuple(lengths) != (batch,):
        raise ArgumentError("paged_attention: lengths has another shape", got=shapes, legal=f"({batch},)")
    keys = page if table is None else table[1] * page
    return Sizes(batch, heads, groups, queries[0] if queries else 1, keys, elements, None if table is None else page)


# ---------------------------------------------------------------------------------------------- from arrays to kernels


@frozen
class BoundDecoding:
    """The kernels, and the views of the arrays of a call that they take.

    `starts` computes the first keys of parts under a window, `kernel` the parts, `combine` the result. `inputs` are names, in the order of
    the call's arrays; `views` are the shapes and strides of arrays by operand.
    """

    starts: CompiledKernel | None
    kernel: CompiledKernel
    combine: CompiledKernel
    choice: Choice
    inputs: tuple[str, ...]
    views: Mapping[str, Places]
    results: tuple[Places, ...]

    def __call__(self, inputs: Sequence[Any], out: Any, stream: Any) -> Any:
        """Return the result, or a pair with the log-sum-exp."""
        *arrays, scale = inputs
        given = {name: viewed(array, self.views[name]) for name, array in zip(self.inputs, arrays, strict=True)}
        if library(arrays[0]) == "numpy" and "table" in given:
            given["table"] = used_entries(given["table"], given["length"], self.views["K"][0][1])
        if self.starts is not None:
            given["begin"] = self.starts(given["length"], stream=stream)
        order = [name for name in self.kernel.program.spec.operands if name in given]
        parts = self.kernel(*(given[name] for name in order if name != "sinks"), scale, stream=stream)
        sinks = [given["sinks"]] if "sinks" in given else []
        if out is None:
            kinds = zip((as_dtype(operand_of(arrays[0], "q").dtype), float32), self.results, strict=False)
            out = joined([viewed(new_like(arrays[0], (math.prod(places[0]),), dtype), places) for dtype, places in kinds])
        outs = [viewed(array, self.views[name]) for name, array in zip("OL", each(out), strict=False)]
        self.combine(*parts, *sinks, out=joined(outs), stream=stream)
        return out


def used_entries(table: Any, lengths: Any, page: int) -> Any:
    """Return a table whose unused entries are 0. The simulator refuses other numbers that are no pages; kernels clamp them."""
    import numpy

    columns = numpy.arange(table.shape[1])
    return numpy.where(columns * page < numpy.maximum(lengths, 0)[:, None], table, 0).astype(table.dtype)


def answer_to(request: Request) -> Answer:
    """Return the answer for a new request."""
    given = _operands(request)
    table = given["table"].shape if "table" in given else None
    sizes = sizes_of(given["q"].shape, given["key_cache"].shape, given["value_cache"].shape, table, given["lengths"].shape)
    _check(given, sizes, request.options)
    q = given["q"]
    results = ((q.shape, result_steps(*q.places)), (q.shape[:-1], packed(q.shape[:-1])))[: 1 + request.options.lse]
    if 0 in (sizes.batch, sizes.heads, sizes.queries, sizes.keys):
        kinds = zip(results, (as_dtype(q.dtype), float32), (0.0, NO_KEY), strict=False)
        return Empty("paged_attention", tuple((shape, dtype, value) for (shape, _), dtype, value in kinds), unchosen="nothing is chosen")
    if not needs_copy(q):
        return _bound(request, given, sizes, results)
    copied = request._replace(inputs=copies_of(request.inputs, frozenset({0})))
    return Copied("paged_attention", _bound(copied, _operands(copied), sizes, results), frozenset({0}), False)


def _names(options: Options) -> tuple[str, ...]:
    """Return the names of a call's arrays."""
    return ("q", "key_cache", "value_cache", "lengths", *options.given)


def _operands(request: Request) -> dict[str, Operand]:
    """Return the properties of the arrays by name."""
    outs, wanted = () if request.out is None else each(request.out), ("out", "lse")[: 1 + request.options.lse]
    if request.out is not None and len(outs) != len(wanted):
        legal = "a pair, with lse=True" if request.options.lse else "one array"
        raise ArgumentError(f"paged_attention: out has {len(outs)} arrays", legal=legal)
    arrays = dict(zip((*_names(request.options), *wanted), (*request.inputs, *outs), strict=False))
    kinds = {name: library(array) for name, array in arrays.items()}
    for name, kind in kinds.items():
        if kind not in LIBRARIES or kind != kinds["q"]:
            legal = "NumPy arrays, CuPy arrays or PyTorch tensors, all of one library"
            raise ArgumentError(f"paged_attention: {name} is not an array of the same library as q", got=kinds, legal=legal)
    return operands_of(arrays)


def _check(given: Given, sizes: Sizes, options: Options) -> None:
    """Refuse unsupported types, shapes and places."""
    q, cache = given["q"], given["key_cache"].dtype
    if q.dtype not in TYPES:
        raise ArgumentError("paged_attention: no kernel supports the element type of q", got=q.dtype, legal=TYPES)
    if cache not in (q.dtype, QUANTIZED):
        raise ArgumentError("paged_attention: no kernel supports the element type of the caches", got=cache, legal=(q.dtype, QUANTIZED))
    kinds = {"q": q.dtype, "key_cache": cache, "value_cache": cache, "lengths": "int32", "table": "int32", "out": q.dtype}
    shapes = {"sinks": (sizes.heads,), "out": q.shape, "lse": q.shape[:-1]}
    for name, operand in given.items():
        kind = kinds.get(name, "float32")
        if operand.dtype != kind:
            raise ArgumentError(f"paged_attention: {name} has elements of {operand.dtype}", legal=kind, hint="convert the array")
        if name in shapes and operand.shape != shapes[name]:
            raise ArgumentError(f"paged_attention: {name} has the shape {operand.shape}", legal=f"{shapes[name]}")
        if name in ("key_scale", "value_scale") and operand.shape not in ((), (1,), (sizes.groups,)):
            raise ArgumentError(f"paged_attention: {name} has the shape {operand.shape}", legal=f"({sizes.groups},), or one element")
        if name in ("key_cache", "value_cache", "out") and needs_copy(operand):
            asked = f"paged_attention: {name} is not contiguous along d"
            raise ArgumentError(asked, got=f"strides {operand.steps}", legal="stride 1 along d, positive strides along other dimensions")
        if name in ("out", "lse") and operand.repeats:
            raise ArgumentError(f"paged_attention: several indices of {name} share an element (broadcast)", got=operand.steps)
    refuse_places(given, "paged_attention: ", "all on one GPU, or all NumPy")


def _bound(request: Request, given: Given, sizes: Sizes, results: tuple[Places, ...]) -> BoundDecoding:
    """Return the kernels for arrays with contiguous heads."""
    options, q = request.options, given["q"]
    place = Place.of(q.device, request.arch, request.require_record)
    if place.architecture.capability < OLDEST:
        asked = "paged_attention: no kernel supports this target"
        raise ArgumentError(asked, got=place.architecture.name, legal=f"sm_{OLDEST} or newer")
    sizes = attrs.evolve(sizes, keys=bound_of(sizes, options.max_length))
    named = {**{name: operand.places for name, operand in given.items()}, **dict(zip(("out", "lse"), results, strict=False))}
    named |= {name: given[name].places for name in ("out", "lse") if name in given}
    views = {_OPERANDS.get(name, name): _view(name, *places, sizes) for name, places in named.items()}
    aligned = {_OPERANDS.get(name, name): operand.align for name, operand in given.items()}
    kernels = _kernels(_Problem(sizes, options, q.dtype, given["key_cache"].dtype, views, aligned), place)
    starts, parts, combine, why = kernels
    if place.require_record:
        place.exact_record(parts.program.spec, any_program)
    names = tuple(_OPERANDS.get(name, name) for name in _names(options))
    return BoundDecoding(starts, parts, combine, Choice(None, False, why, parts.program), names, views, results)


_OPERANDS: Final = {
    "q": "Q", "key_cache": "K", "value_cache": "V", "lengths": "length", "key_scale": "ks", "value_scale": "vs", "out": "O", "lse": "L",
}  # fmt: skip
"""The operands of the kernels by the names of arrays. Others have the same name."""


def bound_of(sizes: Sizes, max_length: int | None) -> int:
    """Return the bound of lengths for which kernels are compiled."""
    if max_length is None:
        return sizes.keys
    rounded = max(FEWEST, 1 << (max_length - 1).bit_length())
    page = sizes.page or 1
    return min(sizes.keys, -(-rounded // page) * page)


# ---------------------------------------------------------------------------------------------- views of arrays


def _view(name: str, shape: Shape, steps: Shape, sizes: Sizes) -> Places:
    """Return the shape and strides with which kernels take an array."""
    if name in ("q", "out", "lse"):
        return _rows(shape, steps, sizes, 1 - (name == "lse"))
    if name == "sinks":
        return simple_view((sizes.groups, sizes.shared), (sizes.shared * steps[0], steps[0]))
    if name in ("key_scale", "value_scale"):
        return (sizes.groups,), ((steps[0],) if shape == (sizes.groups,) else (0,))
    if name == "table":
        assert sizes.page is not None
        return simple_view((sizes.batch, -(-sizes.keys // sizes.page)), steps)
    if name in ("key_cache", "value_cache") and sizes.page is None:
        return simple_view((shape[0], sizes.keys, *shape[2:]), steps)
    return simple_view(shape, steps)


def _rows(shape: Shape, steps: Shape, sizes: Sizes, elements: int) -> Places:
    """Return the view of queries by head of keys: (b, g, r, i, d), or (b, g, r, d) for one query; without d for one number per query."""
    count = len(shape) - elements
    batch, head, query = (*steps[:count], 1)[:3] if count == 2 else steps[:3]
    inner = ((sizes.elements,), (1,)) if elements else ((), ())
    if sizes.queries == 1:
        return simple_view((sizes.batch, sizes.groups, sizes.shared, *inner[0]), (batch, sizes.shared * head, head, *inner[1]))
    extents = (sizes.batch, sizes.groups, sizes.shared, sizes.queries, *inner[0])
    return simple_view(extents, (batch, sizes.shared * head, head, query, *inner[1]))


def simple_view(shape: Shape, steps: Shape) -> Places:
    """Return a shape and its strides, with suitable strides for dimensions of one element."""
    by_rows = packed(shape)
    if all(size == 1 or step == row for size, step, row in zip(shape, steps, by_rows, strict=True)):
        return shape, by_rows
    beyond = max(size * step for size, step in zip(shape, steps, strict=True))
    return shape, tuple(beyond if size == 1 and step != 1 else step for size, step in zip(shape, steps, strict=True))


# ---------------------------------------------------------------------------------------------- kernels


@frozen
class _Problem:
    """The sizes, options and element types of a call, the views of its arrays, and their alignment in bytes."""

    sizes: Sizes
    options: Options
    dtype: str
    cache: str
    views: Mapping[str, Places]
    aligned: Mapping[str, int]

    def orders(self, fused: Fused) -> dict[str, Strides]:
        """Return the storage of the operands of a definition that are not row-major and aligned."""
        orders, definition = {}, fused.fused_definition
        for name, (shape, steps) in self.views.items():
            align = min(self.aligned.get(name, ALIGNMENT), ALIGNMENT)
            if name in definition.arrays and (steps != packed(shape) or align < ALIGNMENT):
                orders[name] = Strides(**dict(zip(definition.dims_of_array(name), steps, strict=True))).aligned(align)
        return orders


def _kernels(problem: _Problem, place: Place) -> tuple[CompiledKernel | None, CompiledKernel, CompiledKernel, str]:
    """Return the kernels of the first keys of parts under a window, of the parts, and of the combination, and the reason for the choice."""
    choices = _cached_or_chosen(problem, place)
    *first, split, last = (CompiledKernel(choice.program) for choice in choices)
    if place.device is None:
        for choice in choices:
            place.prove(choice.program)
    else:
        split.begin(*first, last)
    return (first[0] if first else None), split, last, choices[0].why


def _cached_or_chosen(problem: _Problem, place: Place) -> list[Choice]:
    """Return the cached choices of another process for this GPU, or new choices, which are then cached."""
    views = tuple((name, *places) for name, places in problem.views.items())
    key = attrs.astuple(problem.sizes), tuple(problem.options), problem.dtype, problem.cache, views, dict(problem.aligned)
    chosen = functools.cache(functools.partial(_chosen, problem, place))

    def choose(number: int) -> tuple[Choice, int]:
        return chosen()[number], 0

    numbers = range(3 if problem.options.window else 2)
    return [place.chosen("paged_attention", (*key, number), functools.partial(choose, number))[0] for number in numbers]


def _chosen(problem: _Problem, place: Place) -> list[Choice]:
    """Return the choices of the kernels."""
    file, combine_file = module_of("attention_paged"), module_of("attention_combine")
    sizes, options = problem.sizes, problem.options
    queries, is_scaled = sizes.queries, "key_scale" in options.given
    size = file.size_for(sizes.keys, sizes.batch * sizes.groups, sizes.rows)
    causal = options.causal and queries > 1
    fused = file.definition(
        size, sizes.page, queries, causal, options.window, options.score, problem.cache == QUANTIZED, is_scaled, as_dtype(problem.dtype)
    )
    whole = combine_file.combined(options.lse, "sinks" in options.given, queries)
    is_hopper = place.architecture.capability >= 90
    heads = {"heads": sizes.groups, "batch": sizes.batch, "queries": queries, "dtype": as_dtype(problem.dtype)}
    orders, outs = (problem.orders(one) for one in (fused, whole))
    pages = {} if sizes.page is None else {"pages": problem.views["K"][0][0]}
    spec = file.spec(sizes.rows, sizes.keys, sizes.elements, page=sizes.page, size=size, fused=fused, **pages, **heads, **orders)
    combined = combine_file.spec(sizes.rows, -(-sizes.keys // size), sizes.elements, fused=whole, **heads, **outs)
    values = file.values(spec)
    parts = file.by_parts(fused, is_hopper and not options.window, sizes.elements > WIDE, sizes.elements).with_(**values)
    bound = [parts(spec), combine_file.by_columns(is_hopper, whole).with_(**combine_file.values(combined))(combined)]
    if options.window:
        starts = file.window_starts(size, options.window, queries)
        stored: dict[str, Any] = problem.orders(starts)
        bound.insert(0, file.by_sequences(starts)(starts(b=sizes.batch, p=-(-sizes.keys // size), **stored)))
    text = " ".join(f"{name}={value}" for name, value in values.items())
    why = f"{sizes.rows} queries read the same keys: attention_paged {text} in parts of {size}, then attention_combine"
    return [Choice(None, False, why, strategy.program(place.architecture)) for strategy in bound]


__all__ = ["OLDEST", "BoundDecoding", "Sizes", "answer_to", "bound_of", "simple_view", "sizes_of", "used_entries"]
