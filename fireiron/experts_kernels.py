"""Find and launch the kernels of `fireiron.experts`: rows in tiles of one expert, products with wgmma or mma.sync, sums for each token."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from fireiron.batches import Shape, new_like, packed
from fireiron.copies import LIBRARIES, copied, library, refuse_stream, store, zeroed
from fireiron.errors import ArgumentError, FireironError
from fireiron.experts_routing import UNIT, Tables, tables_of
from fireiron.front.arrays import ALIGNMENT, Operand, operands_of, refuse_places
from fireiron.front.call import Answer, Empty, Request
from fireiron.front.place import Place
from fireiron.frozen import frozen
from fireiron.gpu.kernel import CompiledKernel
from fireiron.repeated import Replays
from fireiron.tune.records import Choice
from fireiron.values.expr import sym
from fireiron.values.machine import WARPGROUP_ARCHITECTURE, Architecture, DType, as_dtype
from fireiron.values.strides import Strides

if TYPE_CHECKING:
    from fireiron.spec import Spec

TYPES: Final = ("float16", "bfloat16")
"""Element types of rows and weights."""

OLDEST: Final = 80
"""The first compute capability with kernels."""

MOST_TILES: Final = 1 << 16
"""Upper bound of the number of tiles of a call."""

MOST_ROWS: Final = 1 << 22
"""Upper bound of the number of tokens, and of the rows of all tiles."""

ROWS: Final = (16, 32, 64, 128)
"""Rows of a tile. A call uses the smallest tile that has the average number of rows of an expert."""

VECTOR: Final = 8
"""Sizes of rows are multiples of this number of elements, 16 bytes."""


@frozen
class Sizes:
    """The sizes of a layer: tokens, experts per token, elements of a token, experts, elements of a hidden row."""

    tokens: int
    choices: int
    width: int
    experts: int
    hidden: int

    @property
    def rows(self) -> int:
        """The rows of all experts."""
        return self.tokens * self.choices

    def rows_of_tile(self, differentiated: bool) -> int:
        """Return the rows of a tile. Weight gradients need tiles of at least `UNIT` rows."""
        average = -(-self.rows // self.experts)
        rows = next((rows for rows in ROWS if rows >= average), ROWS[-1])
        return max(rows, UNIT) if differentiated else rows


class Form(NamedTuple):
    """What the kernels of a layer have in common: the rows of a tile, the sizes and the type of the layer, the target and the GPU."""

    rows: int
    width: int
    hidden: int
    experts: int
    choices: int
    dtype: DType
    architecture: Architecture
    device: int | None


# ---------------------------------------------------------------------------------------------- kernels


def _tiles() -> Any:
    return sym("TILES", high=MOST_TILES)


def _rows() -> Any:
    return sym("TOKENS", high=MOST_ROWS)


def _product(form: Form, kind: str, columns: int, depth: int, strides: Mapping[str, Strides]) -> Spec:
    """Return the problem of a product of tiles with the weights of their experts."""
    from fireiron.strategies import experts

    start = getattr(experts, f"{kind}_product" if kind else "product")
    spec: Spec = start(t=_tiles(), m=form.rows, n=columns, k=depth, e=form.experts, dtype=form.dtype, **strides)
    return spec


def _in_order(*sizes: int, swapped: bool = False) -> tuple[int, ...]:
    """Return the strides of a row-major array (e, n, k) of `sizes`; `swapped`: of the same array as (e, k, n)."""
    outer, down, along = packed(sizes)
    return (outer, along, down) if swapped else (outer, down, along)


def _strides(dims: str, steps: Sequence[int]) -> Strides:
    return Strides(**dict(zip(dims, steps, strict=True))).aligned(ALIGNMENT)


def _hopper(rows: int, gated: bool) -> list[tuple[str, dict[str, int]]]:
    """Return strategies for tiles of `rows` rows, with values of tunables, the fastest first. They need more than one iteration along k."""
    if rows < UNIT:
        name = "few_gated" if gated else "few"
        return [(name, {"bm": rows, "bn": 64, "bk": 64 if gated else 128, "stages": 5})]
    if gated:
        return [("gated", {"bm": rows, "bn": 128, "bk": 64, "stages": 4, "group_m": 8})]
    return [("strategy", {"bm": rows, "bn": 256, "bk": 64, "stages": 4})]


def _ampere(rows: int, name: str) -> list[tuple[str, dict[str, int]]]:
    """Return the strategies for targets without TMA."""
    return [(name, {"bm": rows, "wm": min(rows, 32)})]


@functools.lru_cache(maxsize=256)
def kernel_of(form: Form, step: str) -> tuple[CompiledKernel, str]:
    """Return the kernel of a step of a layer, and the text of its strategy. Raises: the error of the last strategy that was tried."""
    specs, candidates = STEPS[step](form)
    refused: FireironError | None = None
    for module, name, values in candidates:
        try:
            strategy = getattr(module, name)
            program = strategy.with_(**values)(specs).program(form.architecture)
            Place(form.architecture, form.device, False).prove(program)
        except FireironError as error:
            refused = error
            continue
        text = " ".join([name, *(f"{tunable}={value}" for tunable, value in values.items())])
        return CompiledKernel(program), text
    assert refused is not None
    raise refused


Candidates = list[tuple[Any, str, dict[str, int]]]


def _of_products(choices: list[tuple[str, dict[str, int]]]) -> Candidates:
    from fireiron.strategies import experts

    return [(experts, *candidate) for candidate in choices]


def _of_rows(name: str) -> Candidates:
    from fireiron.strategies import experts_rows

    return [(experts_rows, name, {})]


def _is_hopper(form: Form) -> bool:
    return form.architecture.name == WARPGROUP_ARCHITECTURE


def _gated(form: Form) -> tuple[Spec, Candidates]:
    """H = silu(X·G) * (X·U)."""
    weights = _strides("enk", _in_order(form.experts, 2 * form.hidden, form.width))
    spec = _product(form, "gated", form.hidden, form.width, {"G": weights, "U": weights})
    hopper = _hopper(form.rows, True) if _is_hopper(form) else []
    return spec, _of_products([*hopper, *_ampere(form.rows, "ampere_gated")])


def _plain(form: Form, columns: int, depth: int, strides: tuple[int, ...]) -> tuple[Spec, Candidates]:
    """Return a product of tiles with weights of these strides."""
    spec = _product(form, "", columns, depth, {"W": _strides("enk", strides)})
    return spec, _of_products([*(_hopper(form.rows, False) if _is_hopper(form) else ()), *_ampere(form.rows, "ampere")])


def _weights(form: Form, left: int, right: int) -> tuple[Spec, Candidates]:
    """Return the sums of outer products over the rows of each expert."""
    from fireiron.strategies import experts

    rows = sym("PLACES", high=MOST_ROWS, multiple_of=UNIT)
    spec = experts.weight_product(e=form.experts, k=left, n=right, m=rows, dtype=form.dtype)
    hopper = [("weight_gradient", {"bm": 128, "bn": 256, "stages": 4})] if _is_hopper(form) else []
    return spec, _of_products([*hopper, *_ampere(UNIT, "ampere_weights")])


def _moved(form: Form, name: str) -> tuple[Spec, Candidates]:
    """Return a step that moves rows."""
    from fireiron.strategies import experts_rows as rows

    problems: dict[str, Callable[[], Any]] = {
        "strategy": lambda: rows.sorted_rows(t=_tiles(), m=form.rows, n=form.width, r=_rows(), dtype=form.dtype),
        "weighted": lambda: rows.weighted_rows(t=_tiles(), m=form.rows, n=form.width, r=_rows(), dtype=form.dtype),
        "combined": lambda: rows.combined_rows(i=_rows(), j=form.choices, n=form.width, p=_places(), dtype=form.dtype),
        "dots": lambda: rows.dot_products(i=_rows(), j=form.choices, n=form.width, p=_places(), dtype=form.dtype),
    }
    return problems[name](), _of_rows(name)


def _places() -> Any:
    return sym("PLACES", high=MOST_ROWS)


def _activated(form: Form) -> tuple[Spec, Candidates]:
    from fireiron.strategies import experts_rows as rows

    pair = _strides("mn", (2 * form.hidden, 1))
    return rows.gated_rows(m=_places(), n=form.hidden, dtype=form.dtype, P=pair, Q=pair), _of_rows("activated")


def _slopes(form: Form) -> tuple[Spec, Candidates]:
    from fireiron.strategies import experts_rows as rows

    pair = _strides("mn", (2 * form.hidden, 1))
    return rows.gated_slopes(m=_places(), n=form.hidden, dtype=form.dtype, P=pair, Q=pair, dP=pair, dQ=pair), _of_rows("slopes")


STEPS: Final[Mapping[str, Callable[[Form], tuple[Any, Candidates]]]] = {
    "sort": lambda form: _moved(form, "strategy"),
    "gated": _gated,
    "up": lambda form: _plain(form, 2 * form.hidden, form.width, _in_order(form.experts, 2 * form.hidden, form.width)),
    "activate": _activated,
    "down": lambda form: _plain(form, form.width, form.hidden, _in_order(form.experts, form.width, form.hidden)),
    "combine": lambda form: _moved(form, "combined"),
    "weighted": lambda form: _moved(form, "weighted"),
    "dots": lambda form: _moved(form, "dots"),
    "hidden": lambda form: _plain(form, form.hidden, form.width, _in_order(form.experts, form.width, form.hidden, swapped=True)),
    "slopes": _slopes,
    "input": lambda form: _plain(form, form.width, 2 * form.hidden, _in_order(form.experts, 2 * form.hidden, form.width, swapped=True)),
    "down_weights": lambda form: _weights(form, form.width, form.hidden),
    "gate_up_weights": lambda form: _weights(form, 2 * form.hidden, form.width),
}
"""The steps of a layer and of its gradients, by name: their problem and their strategies."""


# ---------------------------------------------------------------------------------------------- a layer


class Saved(NamedTuple):
    """What the gradients of a layer need: the tables, and rows in tiles: tokens, both products, hidden rows, results."""

    tables: Tables
    tokens: Any
    pair: Any
    hidden: Any
    results: Any


@frozen
class Layer:
    """The kernels of a layer, with its sizes."""

    sizes: Sizes
    form: Form

    @property
    def is_fused(self) -> bool:
        """Whether the first product applies the activation, if no gradient needs both products. mma.sync does so for tiles of few rows."""
        return _is_hopper(self.form) or self.form.rows < ROWS[-1]

    def run(self, step: str, *arrays: Any, out: Any) -> Any:
        """Launch the kernel of a step, and return `out`."""
        kernel_of(self.form, step)[0](*arrays, out=out)
        return out

    def new(self, like: Any, *shape: int) -> Any:
        """Return a new array with the element type of the layer."""
        return new_like(like, shape, self.form.dtype)

    def forward(self, inputs: Sequence[Any], keep: bool, out: Any = None) -> tuple[Any, Saved | None]:
        """Return the result; with `keep`, also what the gradients need."""
        x, weights, index, gate_up, down = inputs
        tables = tables_of(index, self.sizes.experts, self.form.rows)
        of_rows = tables.rows, tables.filled, tables.expert, tables.steps, tables.places
        make = functools.partial(self._forward, keep)
        results = self._replayed(("forward", keep), out, (x, weights, gate_up, down, *of_rows), make)
        return (results[0], Saved(tables, *results[1:])) if keep else (results, None)

    def _forward(self, keep: bool, out: Any, x: Any, weights: Any, gate_up: Any, down: Any, *tables: Any) -> Any:
        """Launch the kernels, and return the result; with `keep`, a tuple of it, tokens, both products, hidden rows and results."""
        form, sizes, (rows, filled, *table, places) = self.form, self.sizes, tables
        tiles = rows.shape[0]
        tokens = self.run("sort", x, rows, filled, out=self.new(x, tiles, form.rows, sizes.width))
        hidden = self.new(x, tiles, form.rows, sizes.hidden)
        pair = self.new(x, tiles, form.rows, 2 * sizes.hidden) if keep or not self.is_fused else None
        if pair is None:
            self.run("gated", tokens, *table, gate_up[:, : sizes.hidden], gate_up[:, sizes.hidden :], out=hidden)
        else:
            self.run("up", tokens, *table, gate_up, out=pair)
            both = pair.reshape(-1, 2 * sizes.hidden)
            self.run("activate", both[:, : sizes.hidden], both[:, sizes.hidden :], out=hidden.reshape(-1, sizes.hidden))
        results = self.new(x, tiles, form.rows, sizes.width)
        self.run("down", hidden, *table, down, out=results)
        target = self.new(x, sizes.tokens, sizes.width) if out is None else out
        self.run("combine", results.reshape(-1, sizes.width), places, weights, out=target)
        return (target, tokens, pair, hidden, results) if keep else target

    def _replayed(self, options: tuple[Any, ...], out: Any, inputs: tuple[Any, ...], make: Callable[..., Any]) -> Any:
        """Return the results of launches, by a replay if possible."""
        if not hasattr(inputs[0], "is_cuda"):
            return make(out, *inputs)
        return REPLAYS.call((*options, self.form.rows, self.form.architecture.name), out, inputs, make)

    def backward(self, grad: Any, weights: Any, gate_up: Any, down: Any, saved: Saved) -> tuple[Any, ...]:
        """Return the gradients of the tokens, of their weights, and of the weights of experts."""
        tables, *kept = saved
        factors = weights.reshape(-1)[tables.choices.reshape(-1)].reshape(tables.rows.shape)
        units = (weights * 0 + 1) if library(weights) != "torch" else weights.new_ones(weights.shape)
        of_rows = tables.rows, tables.filled, tables.expert, tables.steps, tables.places, tables.first, tables.last
        given = (grad, weights, factors, units, gate_up, down, *of_rows, *kept)
        results: tuple[Any, ...] = self._replayed(("backward",), None, given, self._backward)
        return results

    def _backward(
        self, _: None, grad: Any, weights: Any, factors: Any, units: Any, gate_up: Any, down: Any, *others: Any
    ) -> tuple[Any, ...]:
        """Launch the kernels of the gradients."""
        sizes, (by_rows, filled, expert, steps, places, first, last, tokens, pair, hidden, results) = self.sizes, others
        of_weights = new_like(grad, tuple(weights.shape), as_dtype("float32"))
        self.run("dots", results.reshape(-1, sizes.width), places, grad, out=of_weights)
        of_results = self.run("weighted", grad, by_rows, factors, filled, out=self.new(grad, *results.shape))
        of_hidden = self.run("hidden", of_results, expert, steps, _swapped(down), out=self.new(grad, *hidden.shape))
        of_pair = self.new(grad, *pair.shape)
        gate_and_up = [slice(0, sizes.hidden), slice(sizes.hidden, None)]
        flat, flat_grad = pair.reshape(-1, 2 * sizes.hidden), of_pair.reshape(-1, 2 * sizes.hidden)
        inputs = (of_hidden.reshape(-1, sizes.hidden), *(flat[:, half] for half in gate_and_up))
        self.run("slopes", *inputs, out=tuple(flat_grad[:, half] for half in gate_and_up))
        of_tokens = self.run("input", of_pair, expert, steps, _swapped(gate_up), out=self.new(grad, *tokens.shape))
        of_x = self.new(grad, sizes.tokens, sizes.width)
        self.run("combine", of_tokens.reshape(-1, sizes.width), places, units, out=of_x)
        rows = [array.reshape(-1, array.shape[-1]) for array in (of_results, hidden, of_pair, tokens)]
        of_down = self.run("down_weights", rows[0], rows[1], first, last, out=self.new(grad, *down.shape))
        of_gate_up = self.run("gate_up_weights", rows[2], rows[3], first, last, out=self.new(grad, *gate_up.shape))
        return of_x, of_weights, of_gate_up, of_down


REPLAYS: Final = Replays()
"""The recorded launches of layers."""


def _swapped(array: Any) -> Any:
    """Return weights (e, n, k) as (e, k, n)."""
    return array.transpose(1, 2) if library(array) == "torch" else array.swapaxes(1, 2)


@frozen
class BoundExperts:
    """The kernels of a layer for the arrays of a call. The arrays at `places` are copied first; `is_stored`: the result is, too."""

    layer: Layer
    places: frozenset[int]
    is_stored: bool
    shape: Shape

    @property
    def kernel(self) -> CompiledKernel:
        """The kernel of the first product."""
        return kernel_of(self.layer.form, self.first)[0]

    @property
    def first(self) -> str:
        """The name of the first product."""
        return "gated" if self.layer.is_fused else "up"

    @property
    def choice(self) -> Choice:
        """The strategies of both products."""
        steps = {step: kernel_of(self.layer.form, step) for step in (self.first, "down")}
        texts = ", ".join(f"{step}: {text}" for step, (_, text) in steps.items())
        why = f"no record applies; tiles of {self.layer.form.rows} rows for {self.layer.form.dtype}: {texts}"
        return Choice(None, False, why, steps[self.first][0].program)

    def prepared(self, inputs: Sequence[Any]) -> tuple[Any, ...]:
        """Return the inputs with two-dimensional tokens and weights in float32, copied if no kernel can read them."""
        x, weights, index, *others = (copied(array) if place in self.places else array for place, array in enumerate(inputs))
        choices = index.shape[-1]
        return x.reshape(-1, x.shape[-1]), _as_float(weights).reshape(-1, choices), index.reshape(-1, choices), *others

    def __call__(self, inputs: Sequence[Any], out: Any, stream: Any) -> Any:
        """Return the result."""
        refuse_stream("experts", "tables are made by the library of the arrays", stream)
        target = None if out is None or self.is_stored else out.reshape(-1, out.shape[-1])
        result, _ = self.layer.forward(self.prepared(inputs), False, target)
        if out is None:
            return result.reshape(self.shape)
        if self.is_stored:
            store(out, result.reshape(self.shape))
        return out


def _as_float(weights: Any) -> Any:
    """Return weights of choices, contiguous and in float32."""
    if library(weights) == "torch":
        return weights.float().contiguous()
    return weights.astype("float32").copy(order="C")


# ---------------------------------------------------------------------------------------------- from arrays to kernels

NAMES: Final = ("x", "weights", "index", "gate_up", "down")
"""The names of the arrays of a call."""


def answer_to(request: Request, differentiated: bool = False) -> Answer:
    """Return the answer for a new request."""
    given = _operands(request)
    sizes = sizes_of({name: operand.shape for name, operand in given.items()})
    _check(given)
    dtype = as_dtype(given["x"].dtype)
    if 0 in (sizes.tokens, sizes.width, sizes.hidden):
        return Empty("experts", ((given["x"].shape, dtype, 0.0),), unchosen="nothing is chosen")
    place = Place.of(given["x"].device, request.arch, False)
    if place.architecture.capability < OLDEST:
        raise ArgumentError("experts: the target has no kernels", got=place.architecture.name, legal=f"sm_{OLDEST} or newer")
    form = Form(
        sizes.rows_of_tile(differentiated), sizes.width, sizes.hidden, sizes.experts, sizes.choices, dtype, place.architecture, place.device
    )
    places = frozenset(number for number, name in enumerate(NAMES) if name in ("x", "gate_up", "down") and not _is_packed(given[name]))
    return BoundExperts(Layer(sizes, form), places, "out" in given and not _is_packed(given["out"]), given["x"].shape)


def _is_packed(operand: Operand) -> bool:
    """Return whether an array is row-major, without gaps, at a multiple of 16 bytes."""
    same = all(size == 1 or step == own for size, step, own in zip(operand.shape, operand.steps, packed(operand.shape), strict=True))
    return same and operand.align >= ALIGNMENT


def sizes_of(shapes: Mapping[str, Shape]) -> Sizes:
    """Return the sizes of a layer by the shapes of its arrays. Raises: an `ArgumentError` if the shapes are incompatible."""
    x, weights, index, gate_up, down = (tuple(shapes[name]) for name in NAMES)
    legal = "x (..., width), weights and index (..., choices), gate_up (experts, 2 * hidden, width), down (experts, width, hidden)"
    if len(x) < 2 or len(gate_up) != 3 or len(down) != 3 or len(weights) != len(x) or weights != index or weights[:-1] != x[:-1]:
        raise ArgumentError("experts: the shapes of the arrays are incompatible", got=dict(shapes), legal=legal)
    experts, double, width = gate_up
    if double % 2 or width != x[-1] or down != (experts, width, double // 2) or experts < 1 or weights[-1] < 1:
        raise ArgumentError("experts: the shapes of the arrays are incompatible", got=dict(shapes), legal=legal)
    if width % VECTOR or double // 2 % VECTOR:
        legal = f"multiples of {VECTOR} elements, {ALIGNMENT} bytes"
        raise ArgumentError("experts: a row is not a multiple of 16 bytes", got={"width": width, "hidden": double // 2}, legal=legal)
    sizes = Sizes(math.prod(x[:-1]), weights[-1], width, experts, double // 2)
    most = MOST_ROWS // ROWS[-1] * ROWS[0]
    if sizes.rows > most:
        raise ArgumentError("experts: too many rows", got=sizes.rows, legal=f"at most {most}", hint="divide the tokens into several calls")
    return sizes


def _operands(request: Request) -> dict[str, Operand]:
    """Return the properties of the arrays by name."""
    arrays = {**dict(zip(NAMES, request.inputs, strict=True)), **({} if request.out is None else {"out": request.out})}
    kinds = {name: library(array) for name, array in arrays.items()}
    for name, kind in kinds.items():
        if kind not in LIBRARIES or kind != kinds["x"]:
            legal = "NumPy arrays, CuPy arrays or PyTorch tensors, all of one library"
            raise ArgumentError(f"experts: {name} is not an array of the same library as x", got=kinds, legal=legal)
    return operands_of(arrays)


def _check(given: Mapping[str, Operand]) -> None:
    """Refuse unsupported types and devices, and an output that does not match the inputs."""
    if given["x"].dtype not in TYPES:
        raise ArgumentError(
            "experts: no kernel supports the element type of x", got=given["x"].dtype, legal=TYPES, hint="convert the arrays"
        )
    for name in ("gate_up", "down", *(("out",) if "out" in given else ())):
        if given[name].dtype != given["x"].dtype:
            raise ArgumentError(f"experts: {name} has elements of {given[name].dtype}", legal=given["x"].dtype, hint="convert one of them")
    if given["index"].dtype not in ("int32", "int64"):
        raise ArgumentError("experts: index has no integers of 32 or 64 bits", got=given["index"].dtype, legal="int32, int64")
    if not given["weights"].dtype.startswith(("float", "bfloat")):
        raise ArgumentError("experts: weights has no floating-point numbers", got=given["weights"].dtype, legal="float32")
    if "out" in given and (given["out"].shape != given["x"].shape or given["out"].repeats):
        raise ArgumentError("experts: out does not have the shape of x", got=given["out"].shape, legal=f"{given['x'].shape}")
    refuse_places(given, "experts: ", "all on one GPU, or all NumPy")


__all__ = ["BoundExperts", "Layer", "Saved", "Sizes", "answer_to", "kernel_of", "sizes_of", "zeroed"]
