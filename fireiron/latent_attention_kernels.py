"""Find the kernels for a call of `fireiron.latent_attention`, which read the cache in place."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import attrs

from fireiron.attention_kernels import NO_KEY, TYPES, module_of, needs_copy, result_steps
from fireiron.batches import Places, Shape, new_like, packed, viewed
from fireiron.copies import LIBRARIES, library
from fireiron.errors import ArgumentError, FireironError
from fireiron.front.arrays import ALIGNMENT, Given, Operand, each, joined, operand_of, operands_of, refuse_places
from fireiron.front.call import Answer, Copied, Empty, Request, copies_of
from fireiron.front.place import Place
from fireiron.frozen import frozen
from fireiron.gpu.kernel import CompiledKernel
from fireiron.paged_attention_kernels import OLDEST, bound_of, simple_view, used_entries
from fireiron.paged_attention_kernels import Sizes as CacheSizes
from fireiron.specs.fused import Fused
from fireiron.tune.records import Choice
from fireiron.tune.records.choosing import any_program
from fireiron.values.machine import WARPGROUP_ARCHITECTURE, as_dtype, float32
from fireiron.values.strides import Strides

if TYPE_CHECKING:
    from fireiron.latent_attention import Options

LATENT: Final = 64
"""The number of elements of a value is a multiple of this number: four warps compute a quarter each."""

MOST: Final = 512
"""Maximum number of elements of a value, whose sums are in registers."""

DEPTH: Final = 16
"""The elements of the rotated part of a key are a multiple of this number, K of one tensor-core MMA."""

BLOCKS: Final = 132
"""The largest number of blocks of whole tiles: one per SM of an H200."""

NAMES: Final = ("q", "cache", "lengths", "page_table")
"""The arrays of a call. The last one may be missing."""


@frozen
class Sizes:
    """The sizes of a problem: sequences, heads, queries and keys of a sequence, elements of values and rotated parts, keys of a page."""

    batch: int
    heads: int
    queries: int
    keys: int
    latent: int
    rope: int
    page: int | None

    @property
    def rows(self) -> int:
        """The number of queries of all heads of a sequence."""
        return self.heads * self.queries

    def operands(self) -> dict[str, tuple[str, int, int]]:
        """Return the operands of the kernels that are elements of queries and keys: the array, the first element, and their number."""
        file, latent = module_of("attention_latent"), self.latent
        slices = file.slices_of(latent)
        elements: dict[str, tuple[str, int, int]] = {}
        for array, whole, rotated in (("q", "Q", "R"), ("cache", "C", "E")):
            elements |= {whole: (array, 0, latent), rotated: (array, latent, self.rope)}
            size = latent // slices
            elements |= {name: (array, place * size, size) for place, name in enumerate(file.sliced(whole, slices))}
        return elements


def sizes_of(q: Sequence[int], cache: Sequence[int], table: Sequence[int] | None, lengths: Sequence[int], latent: int) -> Sizes:
    """Return the sizes of a problem by the shapes of its arrays. Raises: an `ArgumentError` if they are incompatible."""
    arrays = {"q": q, "cache": cache, "page_table": table, "lengths": lengths}
    shapes = {name: None if shape is None else tuple(shape) for name, shape in arrays.items()}
    if len(q) not in (3, 4) or len(cache) not in (3, 4) or (len(cache) == 4 and cache[2] != 1):
        legal = "q (batch, heads, m, k) or (batch, heads, k), cache (pages, page_size, k) or (pages, page_size, 1, k)"
        raise ArgumentError("latent_attention: q or the cache has another number of dimensions", got=shapes, legal=legal)
    batch, heads, *queries, elements = q
    pages, page = cache[:2]
    if cache[-1] != elements:
        raise ArgumentError("latent_attention: q and the cache must have the same elements", got=shapes)
    rope = elements - latent
    if latent % LATENT or latent > MOST or rope % DEPTH or rope < 2 * DEPTH:
        legal = f"value_elements a multiple of {LATENT}, at most {MOST}; the rest of a key a multiple of {DEPTH}, at least {2 * DEPTH}"
        got = f"{latent} of {elements} elements"
        raise ArgumentError("latent_attention: no kernel supports keys and values of these sizes", got=got, legal=legal)
    if table is None and pages != batch:
        legal = "a cache (batch, n, k), or a page_table"
        raise ArgumentError("latent_attention: a contiguous cache must have the batch size of q", got=shapes, legal=legal)
    if table is not None and (len(table) != 2 or table[0] != batch):
        raise ArgumentError("latent_attention: page_table has another shape", got=shapes, legal=f"({batch}, t)")
    if tuple(lengths) != (batch,):
        raise ArgumentError("latent_attention: lengths has another shape", got=shapes, legal=f"({batch},)")
    keys = page if table is None else table[1] * page
    return Sizes(batch, heads, queries[0] if queries else 1, keys, latent, rope, None if table is None else page)


def results_of(shape: Shape, steps: Shape, latent: int) -> tuple[Places, Places]:
    """Return shapes and strides of new results for queries: packed, with the other dimensions in the order of those of q."""
    wide = (*shape[:-1], latent)
    strides = result_steps(wide, steps)
    return (wide, strides), (shape[:-1], tuple(step // latent for step in strides[:-1]))


@frozen
class BoundLatent:
    """The kernels, and the views of the arrays of a call that they take.

    `ranges` computes the keys of the parts; `whole`, if it exists, computes all parts but the last, `rest` the others, and `combine` the
    result. `parts` is the number of all parts. `views` are the shapes and strides of arrays by operand.
    """

    ranges: CompiledKernel
    whole: CompiledKernel | None
    rest: CompiledKernel
    combine: CompiledKernel
    choice: Choice
    sizes: Sizes
    parts: int
    views: Mapping[str, Places]
    results: tuple[Places, ...]

    @property
    def kernel(self) -> CompiledKernel:
        """The kernel that computes most parts."""
        return self.rest if self.whole is None else self.whole

    def __call__(self, inputs: Sequence[Any], out: Any, stream: Any) -> Any:
        """Return the result, or a pair with the log-sum-exp."""
        *arrays, scale = inputs
        given = self._given(dict(zip(NAMES, arrays, strict=False)))
        given["begin"], given["end"] = self.ranges(given["length"], stream=stream)
        sizes = self.sizes
        rows = (sizes.batch, self.parts, sizes.rows)
        parts = [new_like(arrays[0], shape, float32) for shape in ((*rows, sizes.latent), rows, rows)]
        divided = ((0, self.parts),) if self.whole is None else ((0, self.parts - 1), (self.parts - 1, self.parts))
        kernels = [self.rest] if self.whole is None else [self.whole, self.rest]
        for kernel, (first, last) in zip(kernels, divided, strict=True):
            here = given | {name: given[name][:, first:last] for name in ("begin", "end")}
            order = [name for name in kernel.program.spec.operands if name in here]
            wide, *others = (array[:, first:last] for array in parts)
            size = sizes.latent // (len(kernel.program.spec.outputs) - len(others))
            slices = (wide[..., place : place + size] for place in range(0, sizes.latent, size))
            kernel(*(here[name] for name in order), scale, out=(*slices, *others), stream=stream)
        if out is None:
            kinds = zip((as_dtype(operand_of(arrays[0], "q").dtype), float32), self.results, strict=False)
            out = joined([viewed(new_like(arrays[0], (math.prod(places[0]),), dtype), places) for dtype, places in kinds])
        outs = [viewed(array, self.views[name]) for name, array in zip("OL", each(out), strict=False)]
        self.combine(*(array[:, None] for array in parts), out=joined(outs), stream=stream)
        return out

    def _given(self, arrays: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arrays of the kernels by operand."""
        given = {"length": viewed(arrays["lengths"], self.views["length"])}
        for operand, (name, first, _) in self.sizes.operands().items():
            given[operand] = viewed(arrays[name][..., first:], self.views[operand])
        if "page_table" in arrays:
            table = viewed(arrays["page_table"], self.views["table"])
            is_host = library(table) == "numpy" and self.sizes.page is not None
            given["table"] = used_entries(table, arrays["lengths"], self.sizes.page or 1) if is_host else table
        return given


def answer_to(request: Request) -> Answer:
    """Return the answer for a new request."""
    given, options = _operands(request), request.options
    table = given["page_table"].shape if "page_table" in given else None
    sizes = sizes_of(given["q"].shape, given["cache"].shape, table, given["lengths"].shape, options.value_elements)
    results = results_of(*given["q"].places, sizes.latent)[: 1 + options.lse]
    _check(given, results)
    if 0 in (sizes.batch, sizes.rows, sizes.keys):
        kinds = zip(results, (as_dtype(given["q"].dtype), float32), (0.0, NO_KEY), strict=False)
        return Empty("latent_attention", tuple((shape, dtype, value) for (shape, _), dtype, value in kinds), unchosen="nothing is chosen")
    if not needs_copy(given["q"]) and given["q"].align >= ALIGNMENT and _row_step(given["q"].places) is not None:
        return _bound(request, given, sizes, results)
    copied = request._replace(inputs=copies_of(request.inputs, frozenset({0})))
    operands = _operands(copied)
    results = results_of(*operands["q"].places, sizes.latent)[: 1 + options.lse]
    return Copied("latent_attention", _bound(copied, operands, sizes, results), frozenset({0}), False)


def _operands(request: Request) -> dict[str, Operand]:
    """Return the properties of the arrays by name."""
    outs, wanted = () if request.out is None else each(request.out), ("out", "lse")[: 1 + request.options.lse]
    if request.out is not None and len(outs) != len(wanted):
        legal = "a pair, with lse=True" if request.options.lse else "one array"
        raise ArgumentError(f"latent_attention: out has {len(outs)} arrays", legal=legal)
    arrays = dict(zip(NAMES, request.inputs, strict=False)) | dict(zip(wanted, outs, strict=False))
    kinds = {name: library(array) for name, array in arrays.items()}
    for name, kind in kinds.items():
        if kind not in LIBRARIES or kind != kinds["q"]:
            legal = "NumPy arrays, CuPy arrays or PyTorch tensors, all of one library"
            raise ArgumentError(f"latent_attention: {name} is not an array of the same library as q", got=kinds, legal=legal)
    return operands_of(arrays)


def _check(given: Given, results: Sequence[Places]) -> None:
    """Refuse unsupported types, shapes, strides and places."""
    q = given["q"]
    if q.dtype not in TYPES:
        raise ArgumentError("latent_attention: no kernel supports the element type of q", got=q.dtype, legal=TYPES)
    kinds = {"lengths": "int32", "page_table": "int32", "lse": "float32"}
    for name, operand in given.items():
        kind = kinds.get(name, q.dtype)
        if operand.dtype != kind:
            raise ArgumentError(f"latent_attention: {name} has elements of {operand.dtype}", legal=kind, hint="convert the array")
    if needs_copy(given["cache"]):
        got = f"strides {given['cache'].steps}"
        raise ArgumentError("latent_attention: the cache is not contiguous along k", got=got, legal="stride 1 along k, positive others")
    for name, (shape, steps) in zip(("out", "lse"), results, strict=False):
        if name in given and (given[name].shape != shape or given[name].steps != steps):
            got, legal = f"{given[name].shape} with strides {given[name].steps}", f"{shape} with strides {steps}"
            raise ArgumentError(f"latent_attention: {name} has another shape or other strides", got=got, legal=legal)
    refuse_places(given, "latent_attention: ", "all on one GPU, or all NumPy")


def _row_step(places: Places) -> tuple[int, bool] | None:
    """Return the stride of rows, and whether the rows of a query are adjacent, not those of a head; None if rows have no common stride."""
    shape, steps = places
    heads, queries = shape[1], shape[2] if len(shape) == 4 else 1
    head, query = steps[1], steps[2] if len(shape) == 4 else 0
    if queries == 1 or (heads > 1 and head == queries * query):
        return (head if queries == 1 or heads == 1 else query), False
    if heads == 1:
        return query, False
    return (head, True) if query == heads * head else None


def _bound(request: Request, given: Given, sizes: Sizes, results: tuple[Places, ...]) -> BoundLatent:
    """Return the kernels for arrays with contiguous rows."""
    options, q = request.options, given["q"]
    place = Place.of(q.device, request.arch, request.require_record)
    if place.architecture.capability < OLDEST:
        asked = "latent_attention: no kernel supports this target"
        raise ArgumentError(asked, got=place.architecture.name, legal=f"sm_{OLDEST} or newer")
    bound = bound_of(CacheSizes(sizes.batch, 1, 1, 1, sizes.keys, sizes.latent, sizes.page), options.max_length)
    sizes = attrs.evolve(sizes, keys=bound)
    rows = _row_step(q.places)
    aligned = {name: operand.align for name, operand in given.items()}
    problem = _Problem(sizes, options, q.dtype, _views(given, sizes), aligned, rows is not None and rows[1])
    answer = problem.preferred(place, results)
    if place.require_record:
        place.exact_record(answer.kernel.program.spec, any_program)
    return answer


def _views(given: Given, sizes: Sizes) -> dict[str, Places]:
    """Return the shapes and strides of arrays by operand of the kernels."""
    batch, rows, q = sizes.batch, sizes.rows, given["q"]
    step = _row_step(q.places)
    assert step is not None
    row = step[0]
    first = given["cache"].shape[:2] if sizes.page is not None else (batch, sizes.keys)
    shapes = {"q": ((batch, rows), (q.steps[0], row)), "cache": (first, given["cache"].steps[:2])}
    views = {"length": simple_view((batch,), given["lengths"].steps)}
    for operand, (name, _, count) in sizes.operands().items():
        shape, steps = shapes[name]
        views[operand] = simple_view((*shape, count), (*steps, 1))
    if sizes.page is not None:
        views["table"] = simple_view((batch, -(-sizes.keys // sizes.page)), given["page_table"].steps)
    views["O"] = simple_view((batch, 1, rows, sizes.latent), packed((batch, 1, rows, sizes.latent)))
    views["L"] = simple_view((batch, 1, rows), packed((batch, 1, rows)))
    return views


@frozen
class _Problem:
    """The sizes, options and element type of a call, the views of its arrays, and the alignment of arrays in bytes.

    `is_by_query` is whether the rows of a query are adjacent, not those of a head.
    """

    sizes: Sizes
    options: Options
    dtype: str
    views: Mapping[str, Places]
    aligned: Mapping[str, int]
    is_by_query: bool

    def orders(self, fused: Fused) -> dict[str, Strides]:
        """Return the storage of the operands of a definition that are not row-major and aligned."""
        orders, definition = {}, fused.fused_definition
        elements = self.sizes.operands()
        names = {"table": "page_table", "length": "lengths"} | {operand: name for operand, (name, _, _) in elements.items()}
        for name, (shape, steps) in self.views.items():
            align = min(self.aligned.get(names.get(name, ""), ALIGNMENT), ALIGNMENT)
            align = math.gcd(align, elements.get(name, ("", 0))[1] * 2)
            if name in definition.arrays and (steps != packed(shape) or align < ALIGNMENT):
                orders[name] = Strides(**dict(zip(definition.dims_of_array(name), steps, strict=True))).aligned(align)
        return orders

    def preferred(self, place: Place, results: tuple[Places, ...]) -> BoundLatent:
        """Return the kernels with wgmma, or, on other targets, or if TMA cannot copy the arrays, with mma.sync."""
        if place.architecture.name != WARPGROUP_ARCHITECTURE:
            return self.kernels(place, results, by_wgmma=False)
        try:
            return self.kernels(place, results, by_wgmma=True)
        except FireironError as error:
            answer, reason = self.kernels(place, results, by_wgmma=False), f"wgmma: {error.headline}"
            return attrs.evolve(answer, choice=attrs.evolve(answer.choice, why=f"{answer.choice.why}; {reason}"))

    def kernels(self, place: Place, results: tuple[Places, ...], by_wgmma: bool) -> BoundLatent:
        """Return the kernels. Raises: FireironError if TMA cannot copy the arrays."""
        file, combine_file, sizes, options = module_of("attention_latent"), module_of("attention_combine"), self.sizes, self.options
        tiles = -(-sizes.rows // 64) if by_wgmma else -(-sizes.rows // 32)
        whole_parts = max(1, min(BLOCKS // (sizes.batch * tiles), -(-sizes.keys // file.TILE)))
        parts = whole_parts + 1
        causal = options.causal and sizes.queries > 1
        heads = sizes.heads if self.is_by_query else None
        dtype = as_dtype(self.dtype)
        strategies = []
        for clean in (False, True) if by_wgmma else (True,):
            slices = 1 if clean else file.slices_of(sizes.latent)
            fused = file.definition(sizes.page, sizes.queries, heads, causal, clean, dtype, slices)
            own = parts if not by_wgmma else 1 if clean else whole_parts
            stored = self.orders(fused) | _parts_of(parts, own, sizes, file.sliced("P", slices))
            pages = {} if sizes.page is None else {"pages": self.views["C"][0][0]}
            lengths = (sizes.rows, sizes.keys, sizes.latent, sizes.rope, sizes.batch, own, sizes.page)
            spec = file.spec(*lengths, fused=fused, dtype=dtype, **pages, **stored)
            strategy = file.by_warps(fused, sizes.latent).with_(**file.values(spec)) if clean else file.by_wgmma(fused, sizes.latent)
            strategies.append((strategy if clean else strategy.with_(stages=2))(spec))
        ranges = file.ranges(whole_parts)
        first = file.by_sequences(ranges)(ranges(b=sizes.batch, p=parts, **self.orders(ranges)))
        combined = combine_file.combined(options.lse)
        whole = combine_file.spec(sizes.rows, parts, sizes.latent, batch=sizes.batch, fused=combined, dtype=dtype)
        is_hopper = place.architecture.capability >= 90
        last = combine_file.by_columns(is_hopper, combined).with_(**combine_file.values(whole))(whole)
        programs = [strategy.program(place.architecture) for strategy in (first, *strategies, last)]
        for program in programs:
            place.prove(program)
        if by_wgmma and not programs[1].sequential.rings:
            raise ArgumentError("TMA cannot copy arrays with these strides")
        kernels = [CompiledKernel(program) for program in programs]
        how = "wgmma, and the keys after the last whole tile by mma.sync" if by_wgmma else "mma.sync"
        why = f"{sizes.rows} queries read the same keys: attention_latent in {parts} parts by {how}, then attention_combine"
        choice = Choice(None, False, why, programs[1])
        middle = kernels[1] if by_wgmma else None
        return BoundLatent(kernels[0], middle, kernels[-2], kernels[-1], choice, sizes, parts, self.views, results)


def _parts_of(parts: int, own: int, sizes: Sizes, results: Sequence[str]) -> dict[str, Strides]:
    """Return the storage of the arrays of `own` of all parts. `results` are the slices of the sums."""
    rows, latent = sizes.rows, sizes.latent
    sums = {name: Strides(b=parts * rows * latent, p=rows * latent, m=latent, d=1) for name in results}
    if own == parts:
        return {} if len(results) == 1 else dict(sums)
    return {
        "begin": Strides(b=parts, p=1).aligned(4), "end": Strides(b=parts, p=1).aligned(4), **sums,
        "T": Strides(b=parts * rows, p=rows, m=1).aligned(4), "S": Strides(b=parts * rows, p=rows, m=1).aligned(4),
    }  # fmt: skip


__all__ = ["BoundLatent", "Sizes", "answer_to", "results_of", "sizes_of"]
