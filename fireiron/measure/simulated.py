"""Whether a kernel computes what its spec says, in the simulator: all blocks of small problems, a sample of those of large ones.

The data are small integers whose sums are exact in every type that adds them up, so results are compared exactly; those of definitions
of several steps, and others if that is wanted, are normal numbers, each element compared within its own bound (`measure/judge.py`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import attrs

from fireiron.errors import ArgumentError, SimulationError, WrongResultError

if TYPE_CHECKING:
    from fireiron.compiler import Launch, Program
    from fireiron.measure.judge import Judge
    from fireiron.spec import Spec

SIMULATED_SECONDS: Final = 60.0
"""Seconds above which a simulation uses a sample of blocks."""

MULTIPLY_ADDS: Final = 2e7
"""Work that is simulated without an estimate of its time."""

Say = Callable[..., None]
"""Is told what happens: a name, a value, `plain=` the value for other programs where it is not the text, and more by name."""


def _silent(name: str, value: Any, **more: Any) -> None:
    """Tells nobody."""


def symbol_values(spec: Spec, given: Mapping[str, int]) -> dict[str, int]:
    """Values for the sizes known at run time: those given, else one more than a full tile, as far as its facts allow; no gaps."""
    from fireiron.spec import sizes_of, symbols_of, with_strides

    symbols = {var.name: var for var in symbols_of(spec)}
    unknown = [name for name in given if name not in symbols]
    if unknown:
        raise ArgumentError(f"--size {unknown[0]}: the spec has no such size", legal=list(symbols) or "none")
    for name, value in given.items():
        var = symbols[name]
        if not var.low <= value <= var.high or value % var.multiple_of:
            raise ArgumentError(f"--size {name}={value}", legal=f"{var.low} ... {var.high}, multiples of {var.multiple_of}")
    chosen = {var.name: max(257 // var.multiple_of, 1) * var.multiple_of for var in sizes_of(spec)}
    return with_strides(spec, {**chosen, **given})


def shapes_of(spec: Spec, symbols: Mapping[str, int]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(int(size.evaluate(symbols)) for size in view.shape) for name, view in spec.operands.items()}


def data_for(program: Program, symbols: Mapping[str, int], seed: int, normal: bool = False) -> tuple[dict[str, Any], Judge | None]:
    """Random data, and who compares what becomes of them within bounds; nobody where sums are exact.

    Args: `normal`: normal numbers also where integers would do.
    Raises: `ArgumentError` where no bounds are known of normal numbers.
    """
    import numpy

    from fireiron.ir import execs
    from fireiron.measure.data import drawn
    from fireiron.measure.judge import Judge
    from fireiron.specs.fused import fused

    spec = program.spec
    if fused(spec) is None and not normal:
        return exact_data(program, symbols, seed), None
    if first_value(spec, symbols) is not None:
        raise ArgumentError(f"{spec} adds to what its output holds", hint="--inputs auto: integers, whose sums are exact")
    arrays = drawn(spec, symbols, numpy.random.default_rng(seed))
    adders = [one.spec.C.dtype for one, _ in execs(program.ir.body) if one.spec.contracts]
    return arrays, Judge(spec, symbols, arrays, min(adders, key=lambda dtype: dtype.mantissa, default=None))


def exact_data(program: Program, symbols: Mapping[str, int], seed: int) -> dict[str, Any]:
    """Random integers by operand, so few and small that every sum is exact in every type that adds up."""
    import numpy

    from fireiron.gpu.arguments import as_stored

    spec = program.spec
    shapes = shapes_of(spec, symbols)
    limit = _exact_limit(program)
    for amplitude, density in ((4, 1.0), (2, 1.0), (1, 1.0), (1, 0.5), (1, 0.25), (1, 0.1), (1, 0.03), (1, 0.01), (1, 0.0)):
        random = numpy.random.default_rng(seed)
        values = {}
        for name in spec.inputs:
            every = numpy.asarray(random.integers(-amplitude, amplitude + 1, shapes[name]))
            values[name] = every if density == 1 or not shapes[name] else every * (random.random(shapes[name]) < density)
        if spec.title != "MatMul" or _largest_sum(values) <= limit:
            break
    made = {name: value.astype(spec.operands[name].dtype.to_numpy()) for name, value in values.items()}
    return {name: as_stored(spec.operands[name].tensor, value, symbols) for name, value in made.items()}


def _exact_limit(program: Program) -> int:
    """The largest integer up to which all are exact in every type that products are added up in."""
    from fireiron.ir import execs

    dtypes = {view.dtype for name, view in program.spec.operands.items() if name in program.spec.outputs}
    dtypes |= {one.spec.C.dtype for one, _ in execs(program.ir.body) if one.spec.contracts}
    return min((1 << dtype.mantissa if dtype.kind == "float" else (1 << (dtype.bits - 1)) - 1) for dtype in dtypes)


def _largest_sum(values: Mapping[str, Any]) -> float:
    """The largest sum of magnitudes: no partial sum in any order is larger."""
    left, right = (abs(values[name]).astype("float32") for name in ("A", "B"))
    return float((left @ right).max(initial=0))


def first_value(spec: Spec, symbols: Mapping[str, int]) -> int | None:
    """What outputs hold before a kernel that adds to them; None where what they hold does not matter."""
    from fireiron.gpu.arguments import reads_output

    return 1 if reads_output(spec, symbols) else None


def with_outputs(program: Program, symbols: Mapping[str, int], arrays: Mapping[str, Any]) -> Mapping[str, Any]:
    """The arrays with those of the outputs that a kernel adds to."""
    import numpy

    spec, first = program.spec, first_value(program.spec, symbols)
    if first is None:
        return arrays
    shapes = shapes_of(spec, symbols)
    return {**arrays, **{name: numpy.full(shapes[name], first, spec.operands[name].dtype.to_numpy()) for name in spec.outputs}}


def simulated(
    program: Program,
    symbols: Mapping[str, int],
    arrays: Mapping[str, Any],
    judge: Judge | None,
    wanted: int | None = None,
    say: Say = _silent,
    tell: Callable[[str], object] = str,
    seconds: float | None = None,
) -> Mapping[str, Any] | None:
    """The first wrong element of a simulated run, or what the simulator met.

    All blocks at once where the work is small; else, or with `wanted`, a sample of them, as many as the time allows: `seconds`, or
    `SIMULATED_SECONDS`. `say` is told what was done, `tell` how far it is.
    """
    import math

    from fireiron.sim import simulate

    total = int(program.ir.grid.evaluate(symbols))
    work = math.prod(int(size.evaluate(symbols)) for size in program.spec.sizes)
    try:
        if any(not launch.spec.copies for launch in program.preceding):
            return _all_launches(program, symbols, arrays, judge, say)
        arrays, wrong = _behind_copies(program, symbols, arrays, say)
        if wrong is not None:
            return wrong
        if _block_tiles(program) is None or (wanted is None and work <= MULTIPLY_ADDS):
            say("blocks", total)
            result = simulate(program.ir, with_outputs(program, symbols, arrays), symbols)
            say("ran in", f"the simulator, {result.seconds:.2f} s")
            return first_wrong(program.spec, result.outputs, arrays, first_value(program.spec, symbols), judge)
        chosen = order_of(program, symbols, total)[: _whole(program, wanted or total)]
        most = SIMULATED_SECONDS if seconds is None else seconds
        return _sampled(program, symbols, arrays, judge, chosen, wanted is not None, say, tell, most)
    except SimulationError as error:
        return {"message": str(error), "error": type(error).__name__}


def _all_launches(
    program: Program, symbols: Mapping[str, int], arrays: Mapping[str, Any], judge: Judge | None, say: Say
) -> Mapping[str, Any] | None:
    """The first wrong element of what all launches make together; all blocks of each are simulated."""
    from fireiron.sim import simulate_launches

    started = time.monotonic()
    for launch in program.launches:
        say("launched", f"{launch.program.name}, {int(launch.kernel.grid.evaluate(symbols))} blocks")
    outputs = simulate_launches(program.launches, with_outputs(program, symbols, arrays), symbols, outputs=program.spec.outputs)
    say("ran in", f"the simulator, {time.monotonic() - started:.2f} s")
    return first_wrong(program.spec, outputs, arrays, first_value(program.spec, symbols), judge)


def _behind_copies(
    program: Program, symbols: Mapping[str, int], arrays: Mapping[str, Any], say: Say
) -> tuple[Mapping[str, Any], Mapping[str, Any] | None]:
    """The arrays of the last launch as the copies before it leave them, and the first wrong element of one of these."""
    from fireiron.gpu.arguments import as_stored
    from fireiron.sim import simulate

    held = dict(arrays)
    for launch in program.preceding:
        given = held[launch.arrays["src"]]
        result = simulate(launch.kernel, {"src": given}, _own(launch, symbols))
        say("copied", f"{launch.name} in {result.seconds:.2f} s, since {launch.reason}")
        wrong = _compared(result.outputs["dst"], given)
        if wrong is not None:
            return arrays, {**wrong, "message": f"the copy of {launch.name}: {wrong['message']}"}
        held[launch.arrays["dst"]] = as_stored(launch.kernel.buffer("dst").tensor, result.outputs["dst"], symbols)
    last = program.launches[-1].arrays
    return {name: held[last.get(name, name)] for name in arrays}, None


def _own(launch: Launch, symbols: Mapping[str, int]) -> Mapping[str, int]:
    """The sizes that a launch knows."""
    known = {symbol.name for symbol in launch.program.ir.symbols}
    return {name: value for name, value in symbols.items() if name in known}


def _sampled(
    program: Program,
    symbols: Mapping[str, int],
    arrays: Mapping[str, Any],
    judge: Judge | None,
    order: Sequence[int],
    all_of_them: bool,
    say: Say,
    tell: Callable[[str], object],
    most: float,
) -> Mapping[str, Any] | None:
    """Blocks in the given order, batch after batch until the time is over, each compared where it writes."""
    from fireiron.sim import simulate

    started = time.monotonic()
    total = int(program.ir.grid.evaluate(symbols))
    done, size, seconds = 0, len(order) if all_of_them else _whole(program, 1), 0.0
    wrong: Mapping[str, Any] | None = None
    while done < len(order) and wrong is None:
        batch = sorted(order[done : done + size])
        result = simulate(program.ir, with_outputs(program, symbols, arrays), symbols, blocks=batch)
        wrong = _compared_blocks(program, symbols, arrays, result.outputs, batch, judge)
        done, seconds = done + len(batch), seconds + result.seconds
        left = most - (time.monotonic() - started)
        each = (most - left) / done
        tell(f"{done} of {total} blocks")
        if each > left and not all_of_them:
            break
        size = _whole(program, max(1, min(int(left / 2 / each), 8 * size)))
    tell("")
    rest = total - done
    text = f"{done} of {total} are simulated and compared; the other {rest} are NOT executed" if rest else total
    say("blocks", text, plain=sorted(order[:done]), total=total)
    say("ran in", f"the simulator, {seconds:.2f} s")
    return wrong


def _whole(program: Program, blocks: int) -> int:
    """The number of blocks, rounded up to those that add to the same tiles of the outputs: only their sum can be compared."""
    part = program.grown.whole.part
    parts = 1 if part is None else part.high + 1
    return -(-blocks // parts) * parts


def order_of(program: Program, symbols: Mapping[str, int], total: int) -> list[int]:
    """All blocks: the first, the last, those in the corners of the outputs, then the others at random; those of one tile together."""
    import numpy

    blocks = dict.fromkeys((0, total - 1))
    tiles = _block_tiles(program)
    if tiles is not None:
        tile = max(tiles.values(), key=len)
        first = {**symbols, **_turns(program, symbols, 0)[0]}
        starts = [
            numpy.broadcast_to(start, (total,)) for start in _evaluated(program, first, numpy.arange(total), [dim.base for dim in tile])
        ]
        for keys in (starts, [-start for start in starts], [starts[0], -starts[-1]], [-starts[0], starts[-1]]):
            blocks[int(numpy.lexsort(keys)[0])] = None
    blocks |= dict.fromkeys(numpy.random.default_rng(total).permutation(total).tolist())
    parts = _whole(program, 1)
    return [first * parts + part for first in dict.fromkeys(block // parts for block in blocks) for part in range(parts)]


def _block_tiles(program: Program) -> dict[str, tuple[Any, ...]] | None:
    """By output, the dimensions of the view that one block is responsible for."""
    from fireiron.values.machine import Block

    outputs = {name: program.inner.operands[name].tensor for name in program.inner.outputs}
    for node in program.tree.nodes():
        views = {name: node.spec.operands.get(name) for name in outputs}
        found = {name: view.dims for name, view in views.items() if view is not None and view.tensor == outputs[name]}
        if node.spec.level == Block and len(found) == len(outputs):
            return found
    return None


def _evaluated(program: Program, symbols: Mapping[str, int], block: Any, values: Iterable[Any]) -> list[Any]:
    """Expressions of the block's number, with the names that the tree gave to parts of it."""
    context = program.grown.context
    environment: dict[str, Any] = {**symbols, context.block.name: block}
    for var, value in program.grown.names.items():
        if all(one.name in environment for one in value.variables()):
            environment[var.name] = value.evaluate(environment)
    return [value.evaluate(environment) for value in values]


def _compared_blocks(
    program: Program,
    symbols: Mapping[str, int],
    arrays: Mapping[str, Any],
    got: Mapping[str, Any],
    blocks: Sequence[int],
    judge: Judge | None,
) -> Mapping[str, Any] | None:
    """The first wrong element among those that the blocks are responsible for."""
    tiles, first = _block_tiles(program), first_value(program.spec, symbols)
    assert tiles is not None
    for block, turn in [(one, turn) for one in blocks for turn in _turns(program, symbols, one)]:
        for output, tile in tiles.items():
            places = _places(program, symbols, block, tile, got[output].shape, turn)
            if judge is None:
                wrong = _wrong_part(program.spec, output, places, got[output], arrays, first)
            else:
                wrong = _named(program.spec, output, judge.wrong_at(output, got[output], places))
            if wrong is not None:
                return {**wrong, "block": block, "message": f"block {block}: {wrong['message']}"}
    return None


def _turns(program: Program, symbols: Mapping[str, int], block: int) -> list[Mapping[str, int]]:
    """The turns in which a block takes its tiles, as values of the loop's variable; one without a variable where it has one tile."""
    from fireiron.check.persistence import persistence, static_schedule

    found = persistence(static_schedule(program.lowered))
    if not found:
        return [{}]
    loop = found[0].loop
    (count,) = _evaluated(program, symbols, block, [loop.extent])
    return [{loop.var.name: turn} for turn in range(int(count))]


def _places(
    program: Program, symbols: Mapping[str, int], block: int, tile: Sequence[Any], shape: Sequence[int], turn: Mapping[str, int]
) -> list[Any]:
    """The coordinates of a block's tile, in one of its turns, that lie inside the output, by dimension."""
    import numpy

    places = []
    for dim, start, extent in zip(tile, _evaluated(program, {**symbols, **turn}, block, [dim.base for dim in tile]), shape, strict=True):
        steps = numpy.zeros(1, dtype=numpy.int64)
        for mode in dim.modes:
            size, stride = int(mode.size.evaluate(symbols)), int(mode.stride.evaluate(symbols))
            steps = (steps + (numpy.arange(size) * stride)[:, None]).ravel()
        places.append((start + steps)[start + steps < extent])
    return places


def _wrong_part(
    spec: Spec, output: str, places: Sequence[Any], got: Any, arrays: Mapping[str, Any], first: int | None
) -> Mapping[str, Any] | None:
    """The first wrong element of an output at these places, if it held `first` before."""
    import numpy

    from fireiron.measure.data import referred
    from fireiron.measure.inputs import taken_at

    by_dim = dict(zip(spec.uses[output], places, strict=True))
    right = referred(spec, *(taken_at(array, spec.uses[name], by_dim) for name, array in arrays.items()))[output]
    read = {dim for name in arrays for dim in spec.uses[name]}
    whole = {dim: place for dim, place in by_dim.items() if dim not in read}  # no input tells the reference which part is wanted
    return _named(spec, output, _compared(got[numpy.ix_(*places)], taken_at(right + (first or 0), spec.uses[output], whole), places))


def first_wrong(
    spec: Spec, got: Mapping[str, Any], arrays: Mapping[str, Any], first: int | None, judge: Judge | None
) -> Mapping[str, Any] | None:
    """The first wrong element of the first output that has one, if they held `first` before."""
    from fireiron.measure.data import referred

    if judge is not None:
        compared = (_named(spec, name, judge.wrong(name, got[name])) for name in spec.outputs)
    else:
        found = referred(spec, *arrays.values())
        compared = (_named(spec, name, _compared(got[name], right + (first or 0))) for name, right in found.items())
    return next((wrong for wrong in compared if wrong is not None), None)


def _named(spec: Spec, output: str, wrong: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """The finding, with the output's name where there are several."""
    if wrong is None or len(spec.outputs) == 1:
        return wrong
    return {**wrong, "output": output, "message": f"{output}: {wrong['message']}"}


def _compared(got: Any, want: Any, places: Sequence[Any] | None = None) -> Mapping[str, Any] | None:
    """The first element that differs, with its coordinates, or None."""
    import numpy

    if got.shape != want.shape:
        return {"message": f"the result has the shape {got.shape}, expected {want.shape}"}
    different = ~(got == want)  # NaN differs
    count = int(different.sum())
    if not count:
        return None
    first = tuple(int(index) for index in numpy.argwhere(different)[0])
    at = first if places is None else tuple(int(place[index]) for place, index in zip(places, first, strict=True))
    have, need = got[first].item(), want[first].item()
    return {
        "message": f"element {at}: got {have}, expected {need}; {count} of {got.size} differ",
        "at": list(at),
        "got": str(have),
        "expected": str(need),
    }


@attrs.frozen
class Verified:
    """What was executed: `blocks` of `total`, in so many `seconds`; `at` are the sizes known at run time."""

    blocks: int
    total: int
    seconds: float
    at: Mapping[str, int] = attrs.field(factory=dict, hash=False)

    def __str__(self) -> str:
        if self.blocks < self.total:
            return f"{self.blocks} of {self.total} blocks"
        return "its one block" if self.total == 1 else f"all {self.total} blocks"


def verified(
    program: Program,
    sizes: Mapping[str, int] | None = None,
    *,
    seed: int = 0,
    seconds: float | None = None,
    tell: Callable[[str], object] = str,
) -> Verified:
    """Execute a kernel in the simulator on data of its own, and compare.

    Args: `sizes` of those known at run time; `seconds` that it may take about, before a sample of the blocks is enough.
    Raises: `WrongResultError` where an element is wrong, or the simulator refuses what the kernel does; a `FireironError` where there is
        no kernel.
    """
    symbols = symbol_values(program.spec, sizes or {})
    arrays, judge = data_for(program, symbols, seed)
    told: dict[str, Any] = {}
    started = time.monotonic()
    wrong = simulated(
        program, symbols, arrays, judge, say=lambda name, value, **more: told.update({name: (value, more)}), tell=tell, seconds=seconds
    )
    if wrong is not None:
        raise WrongResultError(f"{program.spec}: {wrong['message']}")
    value, more = told["blocks"]
    done = more.get("plain")
    return Verified(value if done is None else len(done), more.get("total", value), time.monotonic() - started, symbols)
