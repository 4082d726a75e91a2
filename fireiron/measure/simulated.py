"""Check in the simulator whether a kernel computes what its spec specifies: all blocks of small problems, a sample for large ones.

The data are small integers whose sums are exact in every accumulator type, so results are compared exactly. Definitions of several steps,
and others on request, use normally distributed numbers, and each element is compared within its own bound (`measure/judge.py`).
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
"""Work that is simulated without estimating its time."""

Report = Callable[..., None]
"""Receives what happens: a name, a value, `plain=` the value for programs if it differs from the text, and further values by name."""


def _no_report(name: str, value: Any, **more: Any) -> None:
    """Ignore reports."""


def symbol_values(spec: Spec, given: Mapping[str, int]) -> dict[str, int]:
    """Values of the run-time sizes: the given ones, else one more than a full tile, as far as its facts allow; strides leave no gaps."""
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
    from fireiron.measure.inputs import shape_of

    return {name: shape_of(view, symbols) for name, view in spec.operands.items()}


def data_for(program: Program, symbols: Mapping[str, int], seed: int, normal: bool = False) -> tuple[dict[str, Any], Judge | None]:
    """Random data, and the judge that compares results within bounds; no judge if sums are exact.

    Args: `normal`: normally distributed numbers even if integers would do. Raises: `ArgumentError` if no bounds are known for normally
    distributed numbers.
    """
    import numpy

    from fireiron.ir import execs
    from fireiron.measure.data import random_inputs
    from fireiron.measure.judge import Judge
    from fireiron.specs.fused import fused

    spec = program.spec
    if fused(spec) is None and not normal:
        return exact_data(program, symbols, seed), None
    if first_value(spec, symbols):
        raise ArgumentError(f"{spec} accumulates into its output", hint="--inputs auto: integers, whose sums are exact")
    arrays = random_inputs(spec, symbols, numpy.random.default_rng(seed))
    adders = [one.spec.C.dtype for one, _ in execs(program.ir.body) if one.spec.contracts]
    return arrays, Judge(spec, symbols, arrays, min(adders, key=lambda dtype: dtype.mantissa, default=None))


def exact_data(program: Program, symbols: Mapping[str, int], seed: int) -> dict[str, Any]:
    """Random integers by operand, so few and small that every sum is exact in every accumulator type."""
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
    typed_values = {name: value.astype(spec.operands[name].dtype.to_numpy()) for name, value in values.items()}
    return {name: as_stored(spec.operands[name].tensor, value, symbols) for name, value in typed_values.items()}


def _exact_limit(program: Program) -> int:
    """The largest integer up to which all integers are exact in every type in which products are accumulated."""
    from fireiron.ir import execs

    dtypes = {view.dtype for name, view in program.spec.operands.items() if name in program.spec.outputs}
    dtypes |= {one.spec.C.dtype for one, _ in execs(program.ir.body) if one.spec.contracts}
    return min((1 << dtype.mantissa if dtype.kind == "float" else (1 << (dtype.bits - 1)) - 1) for dtype in dtypes)


def _largest_sum(values: Mapping[str, Any]) -> float:
    """The largest sum of absolute values: no partial sum in any order exceeds it."""
    left, right = (abs(values[name]).astype("float32") for name in ("A", "B"))
    return float((left @ right).max(initial=0))


def first_value(spec: Spec, symbols: Mapping[str, int]) -> int | None:
    """The contents of outputs before a kernel accumulates into them; None if they do not matter."""
    from fireiron.gpu.arguments import keeps_elements, reads_output

    return 1 if reads_output(spec, symbols) else 0 if keeps_elements(spec) else None


def with_outputs(program: Program, symbols: Mapping[str, int], arrays: Mapping[str, Any]) -> Mapping[str, Any]:
    """The arrays, with the outputs that a kernel accumulates into."""
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
    report: Report = _no_report,
    progress: Callable[[str], object] = str,
    seconds: float | None = None,
) -> Mapping[str, Any] | None:
    """The first wrong element of a simulated run, or the simulator's error.

    All blocks at once for little work; else, or with `wanted`, a sample of them, as many as the time allows: `seconds`, or
    `SIMULATED_SECONDS`. `report` receives what was done, `progress` how far it is.
    """
    import math

    from fireiron.sim import simulate

    total = int(program.ir.grid.evaluate(symbols))
    work = math.prod(int(size.evaluate(symbols)) for size in program.spec.sizes)
    try:
        if any(not launch.spec.copies for launch in program.preceding):
            return _all_launches(program, symbols, arrays, judge, report)
        arrays, wrong = _after_copies(program, symbols, arrays, report)
        if wrong is not None:
            return wrong
        if _block_tiles(program) is None or (wanted is None and work <= MULTIPLY_ADDS):
            report("blocks", total)
            result = simulate(program.ir, with_outputs(program, symbols, arrays), symbols)
            report("ran in", f"the simulator, {result.seconds:.2f} s")
            return first_wrong(program.spec, result.outputs, arrays, first_value(program.spec, symbols), judge)
        chosen = order_of(program, symbols, total)[: _whole_sums(program, wanted or total)]
        most = SIMULATED_SECONDS if seconds is None else seconds
        return _sampled(program, symbols, arrays, judge, chosen, wanted is not None, report, progress, most)
    except SimulationError as error:
        return {"message": str(error), "error": type(error).__name__}


def _all_launches(
    program: Program, symbols: Mapping[str, int], arrays: Mapping[str, Any], judge: Judge | None, report: Report
) -> Mapping[str, Any] | None:
    """The first wrong element of the result of all launches; all blocks of each are simulated."""
    from fireiron.sim import simulate_launches

    started = time.monotonic()
    for launch in program.launches:
        report("launched", f"{launch.program.name}, {int(launch.kernel.grid.evaluate(symbols))} blocks")
    outputs = simulate_launches(program.launches, with_outputs(program, symbols, arrays), symbols, outputs=program.spec.outputs)
    report("ran in", f"the simulator, {time.monotonic() - started:.2f} s")
    return first_wrong(program.spec, outputs, arrays, first_value(program.spec, symbols), judge)


def _after_copies(
    program: Program, symbols: Mapping[str, int], arrays: Mapping[str, Any], report: Report
) -> tuple[Mapping[str, Any], Mapping[str, Any] | None]:
    """The arrays of the last launch after the preceding copy kernels, and the first wrong element of a copy."""
    from fireiron.gpu.arguments import as_stored
    from fireiron.sim import simulate

    current = dict(arrays)
    for launch in program.preceding:
        given = current[launch.arrays["src"]]
        result = simulate(launch.kernel, {"src": given}, _sizes_of(launch, symbols))
        report("copied", f"{launch.name} in {result.seconds:.2f} s, since {launch.reason}")
        wrong = _compared(result.outputs["dst"], given)
        if wrong is not None:
            return arrays, {**wrong, "message": f"the copy of {launch.name}: {wrong['message']}"}
        current[launch.arrays["dst"]] = as_stored(launch.kernel.buffer("dst").tensor, result.outputs["dst"], symbols)
    last = program.launches[-1].arrays
    return {name: current[last.get(name, name)] for name in arrays}, None


def _sizes_of(launch: Launch, symbols: Mapping[str, int]) -> Mapping[str, int]:
    """The sizes that are symbols of a launch."""
    known = {symbol.name for symbol in launch.program.ir.symbols}
    return {name: value for name, value in symbols.items() if name in known}


def _sampled(
    program: Program,
    symbols: Mapping[str, int],
    arrays: Mapping[str, Any],
    judge: Judge | None,
    order: Sequence[int],
    all_of_them: bool,
    report: Report,
    progress: Callable[[str], object],
    most: float,
) -> Mapping[str, Any] | None:
    """Simulate blocks in the given order, batch after batch until the time is used up, and compare the elements that each writes."""
    from fireiron.sim import simulate

    started = time.monotonic()
    total = int(program.ir.grid.evaluate(symbols))
    done, size, seconds = 0, len(order) if all_of_them else _whole_sums(program, 1), 0.0
    wrong: Mapping[str, Any] | None = None
    while done < len(order) and wrong is None:
        batch = sorted(order[done : done + size])
        result = simulate(program.ir, with_outputs(program, symbols, arrays), symbols, blocks=batch)
        wrong = _compared_blocks(program, symbols, arrays, result.outputs, batch, judge)
        done, seconds = done + len(batch), seconds + result.seconds
        left = most - (time.monotonic() - started)
        each = (most - left) / done
        progress(f"{done} of {total} blocks")
        if each > left and not all_of_them:
            break
        size = _whole_sums(program, max(1, min(int(left / 2 / each), 8 * size)))
    progress("")
    rest = total - done
    text = f"{done} of {total} are simulated and compared; the other {rest} are NOT executed" if rest else total
    report("blocks", text, plain=sorted(order[:done]), total=total)
    report("ran in", f"the simulator, {seconds:.2f} s")
    return wrong


def _whole_sums(program: Program, blocks: int) -> int:
    """The number of blocks, rounded up to those that accumulate into the same output tiles: only their sum can be compared."""
    part = program.grown.whole.part
    parts = 1 if part is None else part.high + 1
    return -(-blocks // parts) * parts


def order_of(program: Program, symbols: Mapping[str, int], total: int) -> list[int]:
    """All blocks: the first, the last, those in the corners of the outputs, then the others in random order; blocks of one tile are
    adjacent.
    """
    import numpy

    blocks = dict.fromkeys((0, total - 1))
    tiles = _block_tiles(program)
    if tiles is not None:
        tile = max(tiles.values(), key=len)
        first = {**symbols, **_tile_iterations(program, symbols, 0)[0]}
        starts = [
            numpy.broadcast_to(start, (total,)) for start in _evaluated(program, first, numpy.arange(total), [dim.base for dim in tile])
        ]
        for keys in (starts, [-start for start in starts], [starts[0], -starts[-1]], [-starts[0], starts[-1]]):
            blocks[int(numpy.lexsort(keys)[0])] = None
    blocks |= dict.fromkeys(numpy.random.default_rng(total).permutation(total).tolist())
    parts = _whole_sums(program, 1)
    return [first * parts + part for first in dict.fromkeys(block // parts for block in blocks) for part in range(parts)]


def _block_tiles(program: Program) -> dict[str, tuple[Any, ...]] | None:
    """By output, the dimensions of the view that one block computes."""
    from fireiron.values.machine import Block

    outputs = {name: program.inner.operands[name].tensor for name in program.inner.outputs}
    if any(tensor.through is not None for tensor in outputs.values()):
        return None
    for node in program.tree.nodes():
        views = {name: node.spec.operands.get(name) for name in outputs}
        dims_by_output = {name: view.dims for name, view in views.items() if view is not None and view.tensor == outputs[name]}
        if node.spec.level == Block and len(dims_by_output) == len(outputs):
            return dims_by_output
    return None


def _evaluated(program: Program, symbols: Mapping[str, int], block: Any, values: Iterable[Any]) -> list[Any]:
    """Evaluate expressions of the block index, with the names that the tree defines."""
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
    """The first wrong element among those that the blocks compute."""
    tiles, first = _block_tiles(program), first_value(program.spec, symbols)
    assert tiles is not None
    for block, iteration in [(one, iteration) for one in blocks for iteration in _tile_iterations(program, symbols, one)]:
        for output, tile in tiles.items():
            places = _tile_coordinates(program, symbols, block, tile, got[output].shape, iteration)
            if judge is None:
                wrong = _first_wrong_at(program.spec, symbols, output, places, got[output], arrays, first)
            else:
                wrong = _with_output_name(program.spec, output, judge.wrong_at(output, got[output], places))
            if wrong is not None:
                return {**wrong, "block": block, "message": f"block {block}: {wrong['message']}"}
    return None


def _tile_iterations(program: Program, symbols: Mapping[str, int], block: int) -> list[Mapping[str, int]]:
    """The iterations in which a block computes its tiles, as values of the loop variable; one without a variable if it has one tile."""
    from fireiron.check.persistence import persistence, static_schedule

    persistent_loops = persistence(static_schedule(program.lowered))
    if not persistent_loops:
        return [{}]
    loop = persistent_loops[0].loop
    (count,) = _evaluated(program, symbols, block, [loop.extent])
    return [{loop.var.name: iteration} for iteration in range(int(count))]


def _tile_coordinates(
    program: Program, symbols: Mapping[str, int], block: int, tile: Sequence[Any], shape: Sequence[int], iteration: Mapping[str, int]
) -> list[Any]:
    """The in-bounds coordinates of a block's tile in one iteration, by dimension."""
    import numpy

    places = []
    for dim, start, extent in zip(
        tile, _evaluated(program, {**symbols, **iteration}, block, [dim.base for dim in tile]), shape, strict=True
    ):
        steps = numpy.zeros(1, dtype=numpy.int64)
        for mode in dim.modes:
            size, stride = int(mode.size.evaluate(symbols)), int(mode.stride.evaluate(symbols))
            steps = (steps + (numpy.arange(size) * stride)[:, None]).ravel()
        places.append((start + steps)[start + steps < extent])
    return places


def _first_wrong_at(
    spec: Spec, symbols: Mapping[str, int], output: str, places: Sequence[Any], got: Any, arrays: Mapping[str, Any], first: int | None
) -> Mapping[str, Any] | None:
    """The first wrong element of an output at these positions, if it had the value `first` before."""
    import numpy

    from fireiron.measure.data import references_of
    from fireiron.measure.inputs import select_at
    from fireiron.specs.fused import as_direct

    by_dim = dict(zip(spec.uses[output], places, strict=True))
    spec, arrays = as_direct(spec, arrays, symbols)
    right = references_of(spec, *(select_at(array, spec.uses[name], by_dim) for name, array in arrays.items()))[output]
    read = {dim for name in arrays for dim in spec.uses[name]}
    whole = {dim: place for dim, place in by_dim.items() if dim not in read}  # no input determines which part of the reference is wanted
    return _with_output_name(
        spec, output, _compared(got[numpy.ix_(*places)], select_at(right + (first or 0), spec.uses[output], whole), places)
    )


def first_wrong(
    spec: Spec, got: Mapping[str, Any], arrays: Mapping[str, Any], first: int | None, judge: Judge | None
) -> Mapping[str, Any] | None:
    """The first wrong element of the first output that has one, if they had the value `first` before."""
    from fireiron.measure.data import references_of

    if judge is not None:
        compared = (_with_output_name(spec, name, judge.wrong(name, got[name])) for name in spec.outputs)
    else:
        references = references_of(spec, *arrays.values())
        compared = (_with_output_name(spec, name, _compared(got[name], right + (first or 0))) for name, right in references.items())
    return next((wrong for wrong in compared if wrong is not None), None)


def _with_output_name(spec: Spec, output: str, wrong: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """The finding, with the output's name if there are several."""
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
    """What was executed: `blocks` of `total`, in `seconds`; `at` are the run-time sizes."""

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
    progress: Callable[[str], object] = str,
) -> Verified:
    """Execute a kernel in the simulator on generated data, and compare.

    Args: `sizes`: the run-time sizes; `seconds`: the approximate time after which a sample of the blocks suffices. Raises:
    `WrongResultError` if an element is wrong, or if the simulator reports an error; a `FireironError` if there is no kernel.
    """
    symbols = symbol_values(program.spec, sizes or {})
    arrays, judge = data_for(program, symbols, seed)
    reports: dict[str, Any] = {}
    started = time.monotonic()
    wrong = simulated(
        program,
        symbols,
        arrays,
        judge,
        report=lambda name, value, **more: reports.update({name: (value, more)}),
        progress=progress,
        seconds=seconds,
    )
    if wrong is not None:
        raise WrongResultError(f"{program.spec}: {wrong['message']}")
    value, more = reports["blocks"]
    done = more.get("plain")
    return Verified(value if done is None else len(done), more.get("total", value), time.monotonic() - started, symbols)
