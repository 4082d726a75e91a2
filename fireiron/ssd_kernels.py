"""Find the kernels for a call of `fireiron.ssd` or `fireiron.linear_attention`, which read the arrays in place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from fireiron.attention_kernels import TYPES, module_of, needs_copy
from fireiron.batches import Places, Shape, new_like, packed, viewed
from fireiron.copies import LIBRARIES, library, zeroed
from fireiron.errors import ArgumentError
from fireiron.front.arrays import ALIGNMENT, Given, Operand, joined, operands_of, refuse_places
from fireiron.front.call import Answer, Copied, Empty, Request, copies_of
from fireiron.front.place import Place
from fireiron.frozen import frozen
from fireiron.gpu.kernel import CompiledKernel
from fireiron.tune.records import Choice
from fireiron.tune.records.choosing import any_program
from fireiron.values.machine import as_dtype, float32
from fireiron.values.strides import Strides

if TYPE_CHECKING:
    from fireiron.specs.fused import Fused
    from fireiron.ssd import Options

CHUNK: Final = 64
"""Number of positions of a chunk."""

DEPTH: Final = 16
"""The elements of x and of B are multiples of this number, K of one tensor-core MMA."""

MOST_STATE: Final = 128
"""Maximum number of elements of B and C, for which a warpgroup has registers."""

ROWS: Final = 64
"""The elements of x of one block; by wgmma, x has a multiple."""

OLDEST: Final = 80
"""The first compute capability with kernels."""

WARP: Final = 32
"""A warp computes the decays of a head if x has a multiple of this number of elements; otherwise a thread does."""

SMS: Final = 132
"""Number of SMs of an H200. With fewer blocks, sequences are divided into parts."""

FEWEST_CHUNKS: Final = 4
"""Minimum number of chunks of a part."""

SMALL: Final = 0.8
"""A block alone on an SM needs this part of the time of two blocks on an SM."""

STATES: Final = 0.5
"""The time of the kernel of the states of parts, as a fraction of that of the outputs."""

WHOLE_ARRAYS: Final = ("x", "B", "C", "z")
"""The arrays that kernels read as tiles, of the type of x."""

NAMES: Final = {"v": "x", "k": "B", "q": "C", "decay": "dt"}
"""The names of the arrays of `ssd` by those of `linear_attention`."""


@frozen
class Sizes:
    """The sizes of a problem: sequences, positions, heads, elements of x, heads of B and C, and their elements."""

    batch: int
    length: int
    heads: int
    elements: int
    groups: int
    state: int

    @property
    def chunks(self) -> int:
        """The number of chunks of a sequence; at least 2, because a kernel of one chunk has no loop, and ptxas serializes its MMAs."""
        return max(2, -(-self.length // CHUNK))

    @property
    def blocks(self) -> int:
        """The number of blocks if sequences are not divided."""
        return self.batch * self.heads * -(-self.elements // ROWS)


def is_ragged(length: int) -> bool:
    """Return whether a sequence is shorter than its chunks."""
    return length % CHUNK != 0 or length < 2 * CHUNK


def sizes_of(given: Given, call: str, words: Mapping[str, str]) -> Sizes:
    """Return the sizes of a problem by its arrays. Raises: an `ArgumentError` if they are incompatible."""
    shapes = {words[name]: operand.shape for name, operand in given.items()}
    x, b = given["x"].shape, given["B"].shape
    if len(x) != 4 or len(b) != 4:
        legal = f"{words['x']} (batch, length, heads, p), {words['B']} and {words['C']} (batch, length, groups, n)"
        raise ArgumentError(f"{call}: {words['x']}, {words['B']} and {words['C']} have 4 dimensions", got=shapes, legal=legal)
    batch, length, heads, elements = x
    groups, state = b[2:]
    if heads % groups if groups else heads:
        raise ArgumentError(f"{call}: the {groups} heads of {words['B']} do not divide the {heads} heads of {words['x']}", got=shapes)
    wanted: dict[str, tuple[Shape, ...]] = {
        "B": ((batch, length, groups, state),), "C": ((batch, length, groups, state),), "z": (x,), "A": ((heads,),), "D": ((heads,),),
        "dt": ((batch, length, heads), *(((heads,),) if call != "ssd" else ())), "initial_state": ((batch, heads, elements, state),),
    }  # fmt: skip
    for name, operand in given.items():
        if name in wanted and operand.shape not in wanted[name]:
            legal = " or ".join(map(str, wanted[name]))
            raise ArgumentError(f"{call}: {words[name]} has another shape", got=shapes, legal=legal)
    if elements % DEPTH or state % DEPTH or not 0 < state <= MOST_STATE or not elements:
        legal = f"{words['x']} with a multiple of {DEPTH} elements per head; {words['B']} too, at most {MOST_STATE}"
        raise ArgumentError(f"{call}: no kernel supports states of {elements} x {state} numbers", got=shapes, legal=legal)
    return Sizes(batch, length, heads, elements, groups, state)


@frozen
class BoundScan:
    """The kernels, and how they view the arrays of a call.

    `decays` computes sums of logarithms, `kernel` the outputs. If sequences have several parts, `states` computes the states that parts
    add, and `joined` those before each part. `views` are the array, its shape and strides by operand. `names` are those of the inputs.
    """

    decays: CompiledKernel
    states: CompiledKernel | None
    joined: CompiledKernel | None
    kernel: CompiledKernel
    choice: Choice
    names: tuple[str, ...]
    sizes: Sizes
    views: Mapping[str, tuple[str, Places]]
    final: bool

    def __call__(self, inputs: Sequence[Any], out: Any, stream: Any) -> Any:
        """Return the outputs, and what else the options request: those of earlier chunks, states, the last state, sums of logarithms."""
        arrays, numbers = dict(zip(self.names, inputs, strict=False)), inputs[len(self.names) :]
        if "dt" not in arrays:
            arrays["dt"] = zeroed(new_like(arrays["x"], (1,), float32))
        given = {operand: viewed(arrays[name], places) for operand, (name, places) in self.views.items()}
        weights = self.decays(*_inputs(self.decays, given), *numbers, stream=stream)
        given |= zip(("at", "au", "rest", "keep"), weights, strict=True)
        end = self._join(given, stream)
        *outputs, state = self.kernel(*_inputs(self.kernel, given), stream=stream)
        results = [self._by_positions(output) for output in outputs[:2]] + [self._by_chunks(states) for states in outputs[2:]]
        if self.final:
            results.append(state if end is None else end)
        return joined([*results, *weights[:2]] if len(outputs) > 1 else results)

    def _by_positions(self, output: Any) -> Any:
        """Return the view by positions of an output by chunks."""
        sizes = self.sizes
        whole = (sizes.batch, sizes.chunks * CHUNK, sizes.heads, sizes.elements)
        output = viewed(output, (whole, packed(whole)))
        return output[:, : sizes.length] if whole[1] > sizes.length else output

    def _by_chunks(self, states: Any) -> Any:
        """Return the view by chunks of a sequence of states by chunks of its parts."""
        sizes = self.sizes
        whole = sizes.batch, sizes.chunks, sizes.heads, sizes.elements, sizes.state
        return viewed(states, (whole, packed(whole)))

    def _join(self, given: dict[str, Any], stream: Any) -> Any:
        """Add the states before the parts, and return the last state; None if a sequence is one part."""
        if self.states is None or self.joined is None:
            return None
        totals, added = self.states(*_inputs(self.states, given), stream=stream)
        given["W"], given["F"] = (viewed(one, _divided(one.shape, self.sizes.batch)) for one in (totals, added))
        before, end = self.joined(*_inputs(self.joined, given), stream=stream)
        given["I"] = viewed(before, _merged(before.shape))
        return end


def _inputs(kernel: CompiledKernel, given: Mapping[str, Any]) -> list[Any]:
    """Return the arrays that a kernel reads, in the order of its operands."""
    spec = kernel.program.spec
    return [given[name] for name in spec.operands if name in given and name not in spec.outputs]


def _divided(shape: Shape, batch: int) -> Places:
    """Return the view by sequences and parts of an array by parts."""
    places = (batch, shape[0] // batch, *shape[1:])
    return places, packed(places)


def _merged(shape: Shape) -> Places:
    """Return the view by parts of an array by sequences and parts."""
    places = (shape[0] * shape[1], *shape[2:])
    return places, packed(places)


# ---------------------------------------------------------------------------------------------- from arrays to kernels


def answer_to(request: Request) -> Answer:
    """Return the answer for a new request."""
    given, sizes, words = checked(request)
    options = request.options
    if 0 in (sizes.batch, sizes.length, sizes.heads):
        return _empty(request, sizes, given)
    copied = frozenset(place for place, name in enumerate(words) if name in (*WHOLE_ARRAYS, "initial_state") and _is_copied(given[name]))
    if not copied:
        return _bound(request, given, sizes)
    other = request._replace(inputs=copies_of(request.inputs, copied))
    return Copied(options.call, _bound(other, _operands(other, words), sizes), copied, False)


def checked(request: Request) -> tuple[Given, Sizes, Mapping[str, str]]:
    """Return the properties of the arrays by the names of `ssd`, their sizes, and the names of the call. Raises: an `ArgumentError`."""
    options = request.options
    words = {NAMES.get(name, name): name for name in options.given} if options.call != "ssd" else {name: name for name in options.given}
    given = _operands(request, words)
    sizes = sizes_of(given, options.call, words)
    _check(given, options.call, words)
    return given, sizes, words


def _empty(request: Request, sizes: Sizes, given: Given) -> Empty:
    """Return the answer for arrays without elements: the last state is zero."""
    if request.options.final and "initial_state" in given and 0 not in (sizes.batch, sizes.heads):
        asked = f"{request.options.call}: a sequence of length 0 has no kernel that returns its initial state"
        raise ArgumentError(asked, legal="a length of at least 1, or no return_final_state")
    state = (sizes.batch, sizes.heads, sizes.elements, sizes.state)
    results = ((given["x"].shape, as_dtype(given["x"].dtype), 0.0), (state, float32, 0.0))[: 1 + request.options.final]
    return Empty(request.options.call, results)


def _operands(request: Request, words: Mapping[str, str]) -> dict[str, Operand]:
    """Return the properties of the arrays by the names of `ssd`."""
    arrays = dict(zip(words, request.inputs, strict=True))
    kinds = {words[name]: library(array) for name, array in arrays.items()}
    for name, kind in kinds.items():
        if kind not in LIBRARIES or kind != kinds[words["x"]]:
            legal = "NumPy arrays, CuPy arrays or PyTorch tensors, all of one library"
            asked = f"{request.options.call}: {name} is not an array of the same library as {words['x']}"
            raise ArgumentError(asked, got=kinds, legal=legal)
    return operands_of(arrays)


def _check(given: Given, call: str, words: Mapping[str, str]) -> None:
    """Refuse unsupported types and places."""
    dtype = given["x"].dtype
    if dtype not in TYPES:
        raise ArgumentError(f"{call}: no kernel supports the element type of {words['x']}", got=dtype, legal=TYPES)
    for name, operand in given.items():
        legal = (dtype,) if name in WHOLE_ARRAYS else ("float32", dtype) if name == "dt" else ("float32",)
        if operand.dtype not in legal:
            asked = f"{call}: {words[name]} has elements of {operand.dtype}"
            raise ArgumentError(asked, legal=" or ".join(legal), hint="convert the array")
    refuse_places(given, f"{call}: ", "all on one GPU, or all NumPy")


def _is_copied(operand: Operand) -> bool:
    """Return whether no kernel can read an array in place: TMA and vectors need rows that start at multiples of 16 bytes."""
    size = as_dtype(operand.dtype).bytes
    rows = [step * size for extent, step in zip(operand.shape[:-1], operand.steps[:-1], strict=True) if extent > 1]
    return needs_copy(operand) or operand.align < ALIGNMENT or any(step % ALIGNMENT or not step for step in rows)


def _bound(request: Request, given: Given, sizes: Sizes) -> BoundScan:
    """Return the kernels for arrays with aligned rows."""
    options = request.options
    place = Place.of(given["x"].device, request.arch, request.require_record)
    if place.architecture.capability < OLDEST:
        asked = f"{options.call}: no kernel supports this target"
        raise ArgumentError(asked, got=place.architecture.name, legal=f"sm_{OLDEST} or newer")
    parts = parts_of(sizes) if _are_divisible(given, sizes) else 1
    answer = _Problem(given, sizes, options, parts).bound(place)
    if place.require_record:
        place.exact_record(answer.kernel.program.spec, any_program)
    return answer


def _are_divisible(given: Given, sizes: Sizes) -> bool:
    """Return whether parts of all sequences are at equal distances, so that they are a batch."""
    arrays = [given[name] for name in (*WHOLE_ARRAYS, "dt") if name in given and len(given[name].shape) > 1]
    return not is_ragged(sizes.length) and all(sizes.batch == 1 or one.steps[0] == sizes.length * one.steps[1] for one in arrays)


def parts_of(sizes: Sizes) -> int:
    """Return the number of parts of a sequence with the least expected time; 1 if there are enough heads."""
    if sizes.blocks >= SMS:
        return 1
    numbers = [parts for parts in range(1, sizes.chunks // FEWEST_CHUNKS + 1) if sizes.chunks % parts == 0]
    return min(numbers or [1], key=lambda parts: _time(sizes.blocks * parts, sizes.chunks // parts) * (1 + STATES * (parts > 1)))


def _time(blocks: int, chunks: int) -> float:
    """Return the time of blocks with equally many chunks, in units of two blocks on an SM that compute one chunk each."""
    most = -(-blocks // SMS)
    return chunks * (most // 2 + SMALL * (most % 2))


@frozen
class _Problem:
    """The arrays, sizes and options of a call, and the number of parts of a sequence."""

    given: Given
    sizes: Sizes
    options: Options
    parts: int

    def bound(self, place: Place) -> BoundScan:
        """Return the kernels for a target."""
        file, sizes, given = module_of("ssd"), self.sizes, self.given
        ragged, has_state = is_ragged(sizes.length), "initial_state" in given
        shared = None if sizes.groups == 1 else sizes.heads // sizes.groups
        sums = file.decays_definition(self.options.call == "ssd", ragged, as_dtype(given["dt"].dtype) if "dt" in given else float32)
        forms = {"initial": has_state or self.parts > 1, "past": self.options.past}
        fused = file.definition(shared, ragged, "D" in given, "z" in given, **forms)
        by_wgmma = place.architecture.name == "sm_90a" and sizes.elements % ROWS == 0
        form = file.by_wgmma if by_wgmma else file.by_warps
        of_sums = file.by_scans if sizes.elements % WARP == 0 else file.by_threads
        bound = [
            of_sums(sums)(self._spec(sums)),
            self._with_values(form(fused), fused),
        ]
        if self.parts > 1:
            states, combined = file.definition(shared, outputs=False), file.joined_definition(has_state)
            last = {"b": sizes.batch, "q": self.parts, "h": sizes.heads, "p": sizes.elements, "n": sizes.state}
            bound += [self._with_values(form(states), states), file.by_elements(combined)(combined(**last))]
        programs = [strategy.program(place.architecture) for strategy in bound]
        for program in programs:
            place.prove(program)
        decays, kernel, *others = (CompiledKernel(program) for program in programs)
        why = f"{sizes.blocks} heads of {sizes.chunks} chunks in {self.parts} parts, by {'wgmma' if by_wgmma else 'mma.sync'}"
        choice, views = Choice(None, False, why, programs[1]), self._views()
        words = tuple(NAMES.get(name, name) if self.options.call != "ssd" else name for name in self.options.given)
        states_kernel, joined_kernel = others or (None, None)
        return BoundScan(decays, states_kernel, joined_kernel, kernel, choice, words, sizes, views, self.options.final)

    def _with_values(self, form: Any, fused: Fused) -> Any:
        """Return a strategy with its values, bound to the problem of a definition."""
        spec = self._spec(fused)
        known = module_of("ssd").values(spec)
        return form.with_(**{name: value for name, value in known.items() if name in form.tunables()})(spec)

    def _spec(self, fused: Fused) -> Any:
        """Return the problem of a definition."""
        sizes, definition, views = self.sizes, fused.fused_definition, self._views()
        orders = {}
        for name, (source, (shape, steps)) in views.items():
            align = min(self.given[source].align if source in self.given else ALIGNMENT, ALIGNMENT)
            if name in definition.arrays and (steps != packed(shape) or align < ALIGNMENT):
                orders[name] = Strides(**dict(zip(definition.dims_of_array(name), steps, strict=True))).aligned(align)
        return module_of("ssd").spec(
            sizes.length, sizes.elements, sizes.state, sizes.heads, sizes.batch * self.parts, sizes.groups, fused,
            sizes.chunks // self.parts, dtype=as_dtype(self.given["x"].dtype), **orders,
        )  # fmt: skip

    def _views(self) -> dict[str, tuple[str, Places]]:
        """Return the array, its shape and strides by operand of the kernels."""
        given, sizes = self.given, self.sizes
        step = "dt" if self.options.call == "ssd" else "decay"
        views: dict[str, tuple[str, Places]] = {step: ("dt", self._by_chunks(*self._decay()))}
        for name, source in (("X", "x"), ("Xt", "x"), ("Z", "z"), ("B", "B"), ("C", "C")):
            if source in given:
                shape, steps = given[source].places
                inner = 3 if source in "BC" and sizes.groups == 1 else 2  # one head of B and C has no dimension
                views[name] = source, self._by_chunks((*shape[:2], *shape[inner:]), (*steps[:2], *steps[inner:]))
        state = "J" if self.parts > 1 else "I"
        whole = {"A": "A", "D": "D", state: "initial_state"}
        views |= {name: (source, given[source].places) for name, source in whole.items() if source in given}
        return views

    def _decay(self) -> Places:
        """Return the shape and strides of dt, or of decays that may be constant in time."""
        shape = (self.sizes.batch, self.sizes.length, self.sizes.heads)
        if "dt" not in self.given:
            return shape, (0, 0, 0)
        steps = self.given["dt"].steps
        return shape, steps if len(steps) == 3 else (0, 0, *steps)

    def _by_chunks(self, shape: Shape, steps: Shape) -> Places:
        """Return the view of an array by parts and chunks; that of the positions if the last chunk is incomplete."""
        if is_ragged(self.sizes.length):
            return shape, steps
        chunks = self.sizes.chunks // self.parts
        first = steps[0] if self.parts == 1 else steps[1] * chunks * CHUNK
        return (shape[0] * self.parts, chunks, CHUNK, *shape[2:]), (first, steps[1] * CHUNK, *steps[1:])


__all__ = ["BoundScan", "Sizes", "answer_to", "checked", "is_ragged", "parts_of", "sizes_of"]
