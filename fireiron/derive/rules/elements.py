"""`elements`: a thread computes a vector of elements, and everything that they require. It is legal for nearly every definition."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping
from typing import Any, ClassVar, Final

import attrs

from fireiron.derive.facts import Facts, is_copy
from fireiron.derive.rule import Rule, Skeleton
from fireiron.derive.sketch import GAIN, Decision, Sketch, call
from fireiron.executable.thread_move import EVICT_FIRST
from fireiron.frozen import frozen
from fireiron.language.substrategy import Chain
from fireiron.language.tunable import Tunable
from fireiron.specs.matmul import MatMul
from fireiron.specs.move import Move
from fireiron.specs.operand import SRC
from fireiron.specs.pointwise import Pointwise
from fireiron.specs.reduction import Reduction
from fireiron.specs.steps import Step
from fireiron.values.expr import constant
from fireiron.values.machine import RF, Block, Thread

RANK = 90

THREADS: Final = (256, 512)
"""Threads of a block. Blocks of 64 and 128 threads took up to twice as long (2026-11-30, H200)."""

FEW_THREADS: Final = (256, 128, 64)
"""Threads of a block if there are fewer than `BLOCKS` blocks for each SM."""

BLOCKS: Final = 4
"""Blocks for each SM below which blocks have fewer threads."""

REGISTERS: Final = 64
"""32-bit elements that the temporaries of a thread may have, with vectors."""


@frozen
class Elements(Skeleton):
    """A thread computes a vector of adjacent results. Adjacent threads have adjacent vectors.

    It suits elementwise definitions, sums over a few elements, and reductions of columns of an array. It is legal for most others, too, but
    slow: a thread then reads all elements of the reduced dimensions, one after another.
    """

    name: ClassVar[str] = "elements"

    def refusal(self, facts: Facts) -> str:
        return "" if facts.definition is not None else "the spec has no named steps"

    def sketch(self, facts: Facts) -> Sketch:
        large = [dim for dim in facts.reduced if dim not in facts.loops and facts.about(dim) > REGISTERS]
        because = f"legal for all steps, but a thread reads all of {', '.join(large)}" if large else "all steps of a result fit in a thread"
        along, whole = adjacent(facts), shared_dims(facts)
        chunks = [step.name for step in facts.steps if along and _in_chunks(step, facts, along)]
        last = bool(set(large) - {dim for step in facts.steps if step.name in chunks for dim in step.formula.over}) or bool(
            [step for step in facts.steps if set(large) & set(step.formula.target.dims)]
        )
        many = math.prod(map(facts.about, facts.summed)) > REGISTERS
        sketch = Sketch(self.name, because, facts.spec.starter, last_resort=last or many, gain=ERROR_OF_ROWS if chunks else GAIN)
        pixels = _pixels(facts, along)
        tile: dict[str, Tunable | int] = {**dict.fromkeys(facts.parallel, 1), **whole}
        if along:
            sizes, vectors = _sizes(facts, along, whole, pixels), _vectors(facts, along)
            if chunks:
                sizes, vectors = _of_rows(facts, along, sizes, vectors)
            if pixels:
                vectors = vectors.fixed({"vector": _widest(facts, along)})
            sketch = sketch.deciding(sizes, vectors)
            tile |= {dim: sizes[f"t_{dim}"] for dim in tile if f"t_{dim}" in sizes.tunables}
            sketch = sketch.bounded(lambda values: _threads(values, along, math.prod(pixels.values())))
            rows = Decision.of("rows", ROWS, "{rows} rows are loaded before a thread adds them up")
            sketch = sketch.deciding(rows) if chunks else sketch
        if tile:
            sketch = sketch.then("blocks", call("tile", **tile), call("to", Block))
        short = math.prod(map(facts.about, facts.loops)) <= REGISTERS
        for dim in () if short else facts.loops:
            sketch = sketch.then(f"loop {dim}", call("split", **{dim: 1}))
        if tile:
            own = {dim: vectors["vector"] if dim == along else {**whole, **pixels}.get(dim, 1) for dim in tile}
            sketch = sketch.then("threads", call("tile", **own), call("to", Thread))
        for dim in facts.loops if short else ():
            sketch = sketch.then(f"loop {dim}", call("split", **{dim: 1}), call("unroll"))
        if along:
            for name in loaded(facts, along):
                sketch = sketch.then(f"load {name}", call("load", name, RF, _vector_copy(facts, name, along, vectors["vector"])))
        for step in facts.steps:
            chain = _reduced(step, facts, along, vectors["vector"], rows["rows"]) if step.name in chunks else _of_step(step, facts)
            if chain is None and along and (_stores(step, facts, along) or _taps(step, facts, along)):
                dims = [dim for dim in step.formula.target.dims if dim not in facts.single]
                move = Move.tile(*(vectors["vector"] if dim == along else 1 for dim in dims)).unroll()
                chain = move.done()
            if chain is not None:
                sketch = sketch.then(f"step {step.name}", call("step", step.name, chain))
        return sketch.then("done", call("done"))


WHOLE: Final = 4
"""Elements of a dimension that a thread has all of, if they share the elements of an operand."""

ROWS: Final = (8, 16, 32)
"""Rows that a thread reads before it adds them up: with few threads, more loads must be in flight."""


ROW_BYTES: Final = 2048
"""Bytes of a row of which a block adds up elements: 65.4 us with 2 kB, 68 us with 1 kB (sums of 1024 rows, float16, H200, 2026-11-30)."""

NARROW: Final = 2
"""Elements of 16 bits that a thread then adds up: 64.4 us with 2, 65.4 with 4, and 68.1 with 8, because fewer warps are in flight."""

ERROR_OF_ROWS: Final = 0.05
"""Error of the predicted times of such sums, relative to each other."""


def _of_rows(facts: Facts, along: str, sizes: Decision, vectors: Decision) -> tuple[Decision, Decision]:
    """Return the decisions of a block that adds up rows: parts of `ROW_BYTES` first, and threads with few elements of 16 bits."""
    width = min((facts.view(name).dtype.bytes for name in facts.arrays if facts.contiguous(name) == along), default=4)
    options = sorted(sizes.options, key=lambda option: option[f"t_{along}"] * width != ROW_BYTES)
    widths = [option["vector"] for option in vectors.options]
    if width == 2 and NARROW in widths:
        vectors = Decision.of("vector", (NARROW, *widths), "{vector} adjacent elements per access, so that many warps have loads in flight")
    return attrs.evolve(sizes, options=tuple(options)), vectors


def shared_dims(facts: Facts) -> dict[str, int]:
    """Return small parallel dimensions that an array of several dimensions lacks, with their extents: their results share its elements."""
    wide = [set(facts.dims_of(name)) for name in facts.arrays if len(facts.dims_of(name)) > 2]
    small = [dim for dim in facts.parallel if dim not in facts.batch and 1 < (facts.extent(dim) or WHOLE + 1) <= WHOLE]
    return {dim: facts.about(dim) for dim in small if any(dim not in dims for dims in wide)}


def _pixels(facts: Facts, along: str) -> dict[str, int]:
    """Return a dimension whose coordinate is added to that of a short loop, with the number of a thread's elements: they share a filter."""
    if not facts.loops or math.prod(map(facts.about, facts.loops)) > REGISTERS:
        return {}
    indices = [set(re.findall(r"\w+", str(index))) for step in facts.steps for element in step.formula.elements for index in element.stored]
    moved = [dim for dim in facts.parallel if dim != along and any(dim in words and words & set(facts.loops) for words in indices)]
    return {moved[-1]: WHOLE} if moved and facts.about(moved[-1]) >= WHOLE else {}


def loaded(facts: Facts, along: str) -> tuple[str, ...]:
    """Return the arrays of which a thread loads vectors to registers: contiguous along the vectors, and few elements for each."""
    names = []
    for name in facts.arrays:
        dims = [dim for dim in facts.dims_of(name) if dim not in facts.parallel and dim not in facts.loops]
        few = math.prod(map(facts.about, dims)) * _widest(facts, along) <= REGISTERS
        if facts.contiguous(name) == along and facts.vector(name) > 1 and few:
            names.append(name)
    return tuple(names)


def _vector_copy(facts: Facts, name: str, along: str, vector: Tunable) -> Chain:
    """Return the copy of an array to registers, a vector at a time.

    Loads without a hint: evicting the elements first takes 2 to 5 % more, unless the stores do it, too (2026-11-30, H200).
    """
    dims = [dim for dim in facts.dims_of(name) if dim not in facts.single]
    return Move.tile(*(vector if dim == along else 1 for dim in dims)).unroll().done()


def _stores(step: Step, facts: Facts, along: str) -> bool:
    """Whether a step copies registers to a result that is contiguous along the vectors."""
    formula = step.formula
    stores = is_copy(step) and formula.output in facts.spec.outputs and facts.contiguous(formula.output) == along
    return stores and facts.vector(formula.output) > 1 and formula.elements[0].tensor not in facts.spec.operands


def _taps(step: Step, facts: Facts, along: str) -> bool:
    """Whether a step copies elements of an array, at computed indices, that are contiguous along the vectors."""
    formula = step.formula
    copies = len(formula.elements) == 1 and str(formula.value) == str(formula.elements[0])
    name = formula.elements[0].tensor if copies else ""
    if name not in facts.arrays or facts.is_direct(name):
        return False
    view, dims = facts.view(name), facts.dims_of(name)
    step_of = {dim: view.tensor.storage().steps[view.axis(axis)] for axis, dim in enumerate(dims)}
    distance = step_of.get(along)
    return distance is not None and constant(distance) == 1 and along in map(str, formula.elements[0].stored)


def _in_chunks(step: Step, facts: Facts, along: str) -> bool:
    """Whether a step reduces many rows of an array that is contiguous along the vectors."""
    formula = step.formula
    if formula.reduction is None or formula.contracts or len(formula.over) != 1 or len(formula.elements) != 1:
        return False
    name = formula.elements[0].tensor
    return name in facts.arrays and facts.contiguous(name) == along and facts.about(formula.over[0]) > REGISTERS


def _reduced(step: Step, facts: Facts, along: str, vector: Tunable, rows: Tunable) -> Chain:
    """Return the strategy of a step that reduces many rows: some at a time, whose loads are in flight together."""
    dims = [dim for dim in (*step.formula.target.dims, *step.formula.over) if dim not in facts.single]
    copy = Move.tile(*(vector if dim == along else 1 for dim in _order(step, dims))).unroll().done(EVICT_FIRST)
    return Reduction.split(rows).load(SRC, RF, copy).done()


def _order(step: Step, dims: list[str]) -> list[str]:
    """Return dimensions in the order of the element that a step reduces."""
    return [dim for dim in step.formula.elements[0].dims if dim in dims]


def adjacent(facts: Facts) -> str:
    """Return the parallel dimension along which most bytes of arrays are contiguous; the last one if there is none; empty without any."""
    bytes_along: Counter[str] = Counter()
    for name in (*facts.arrays, *facts.spec.outputs):
        if (along := facts.contiguous(name)) in facts.parallel:
            bytes_along[along] += math.prod(facts.about(dim) for dim in facts.dims_of(name)) * facts.view(name).dtype.bytes
    if bytes_along:
        return bytes_along.most_common(1)[0][0]
    return facts.parallel[-1] if facts.parallel else ""


def _sizes(facts: Facts, along: str, whole: Mapping[str, int], pixels: Mapping[str, int]) -> Decision:
    """Return the decision about the tile of a block: the number of its threads' elements, those along a contiguous dimension first."""
    options = []
    vector = _widest(facts, along)
    results = math.prod(map(facts.about, facts.parallel)) // vector
    for threads in THREADS if results >= BLOCKS * THREADS[0] * facts.gpu.multiprocessors else FEW_THREADS:
        left, option = threads, {}
        for dim in (along, *(dim for dim in reversed(facts.parallel) if dim != along and dim not in facts.batch and dim not in whole)):
            width = vector if dim == along else pixels.get(dim, 1)
            count = min(left, _power(-(-facts.about(dim) // width)))
            option[f"t_{dim}"] = count * width
            left //= count
        options.append(option)
    text = ", ".join(f"{{{name}}} of {name.removeprefix('t_')}" for name in options[0])
    return Decision("block", tuple(options), f"adjacent threads access adjacent elements: {text}")


def _vectors(facts: Facts, along: str) -> Decision:
    """Return the decision about the elements of a thread along the contiguous dimension."""
    widest = _widest(facts, along)
    widths = [width for width in (8, 4, 2, 1) if width <= widest and widest % width == 0]
    return Decision.of("vector", (widest, *widths), "{vector} adjacent elements per access, the most that all rows allow")


def _widest(facts: Facts, along: str) -> int:
    """Return the widest vector along a dimension: at most 16 bytes of the narrowest array, and few enough for the registers."""
    names = [name for name in (*facts.arrays, *facts.spec.outputs) if facts.contiguous(name) == along]
    width = max((facts.vector(name) for name in names), default=1)
    small = [dim for dim in facts.reduced if dim not in facts.loops and facts.about(dim) <= REGISTERS]
    others = math.prod(map(facts.about, small))
    return max(1, min(width, 8, _power(max(REGISTERS // others, 1), down=True), _power(facts.about(along))))


def _threads(values: dict[str, int] | object, along: str, pixels: int) -> str:
    assert isinstance(values, dict)
    count = math.prod(size for name, size in values.items() if name.startswith("t_"))
    threads = count // values["vector"] // pixels
    if values[f"t_{along}"] % values["vector"]:
        return f"{values['vector']} does not divide {values[f't_{along}']}"
    return f"{threads} threads in a block" if threads > 1024 else ""


def _power(count: int, down: bool = False) -> int:
    """Return the least power of two of at least `count`; with `down`, the greatest of at most `count`."""
    exact = count.bit_length() - 1
    return 1 << exact if down or count == 1 << exact else 1 << (exact + 1)


def _of_step(step: Step, facts: Facts) -> Chain | None:
    """Return the strategy of a step for a thread, one element after another; None if the other steps determine it."""
    definition, formula = facts.definition, step.formula
    assert definition is not None
    others = {dim: 1 for dim in formula.dims if dim not in facts.parallel and dim not in (*formula.over, *facts.loops)}
    if formula.contracts:
        chain: Any = MatMul.tile(**others) if others else MatMul
        over = {dim: 1 for dim in formula.over if dim not in facts.parallel}
        return (chain.split(**over) if over else chain).done()  # type: ignore[no-any-return]
    from_arrays = all(element.tensor in definition.arrays for element in formula.elements if set(element.dims) & set(others))
    if others and formula.pointwise and from_arrays and formula.output in definition.arrays:
        return Pointwise.tile(**others).done()
    return None


RULES: tuple[Rule, ...] = (Elements(),)
