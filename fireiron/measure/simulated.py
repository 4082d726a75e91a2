"""Check in the simulator whether a kernel computes what its spec specifies.

For small problems, all blocks are simulated. For large problems, a sample of the blocks is simulated. The data are small integers. Their
sums are exact in every accumulator type, so results are compared exactly. For definitions of several steps, and for other specs on request,
the data are normally distributed numbers, and each element is compared within an error bound (`measure/judge.py`).
"""

from __future__ import annotations

import functools
import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import attrs

from fireiron.errors import ArgumentError, SimulationError, WrongResultError
from fireiron.frozen import frozen

if TYPE_CHECKING:
    from fireiron.compiler import Launch, Program
    from fireiron.measure.judge import Judge
    from fireiron.spec import Spec

SIMULATED_SECONDS: Final = 60.0
"""Time limit in seconds of a simulation. Longer simulations are limited to a sample of blocks."""

MULTIPLY_ADDS: Final = 2e7
"""Number of multiply-adds up to which all blocks are simulated, without an estimate of the time."""

ELEMENTS: Final = 1e6
"""Number of elements up to which all blocks of a definition are simulated within a time limit: functions are slower than multiply-adds."""

Report = Callable[..., None]
"""A function that receives reports: a name, a value, and further values by name.

`plain=` is the value for programs, if it differs from the text.
"""


def _no_report(name: str, value: Any, **more: Any) -> None:
    """Ignore reports."""


def symbol_values(spec: Spec, given: Mapping[str, int]) -> dict[str, int]:
    """Return values of the run-time sizes: the given values, or else about 257, so that tiles at the end are partial if facts allow it.

    Strides leave no gaps. Raises: `ArgumentError` for an unknown size or an illegal value.
    """
    from fireiron.spec import sizes_of, symbols_of, with_strides

    symbols = {var.name: var for var in symbols_of(spec)}
    unknown = [name for name in given if name not in symbols]
    if unknown:
        raise ArgumentError(f"--size {unknown[0]}: the spec has no such size", legal=list(symbols) or "none")
    for name, value in given.items():
        var = symbols[name]
        if not var.low <= value <= var.high or value % var.multiple_of:
            legal = f"{var.low} ... {var.high}, multiples of {var.multiple_of}"
            raise ArgumentError(f"--size {name}={value}: the value is illegal", legal=legal)
    chosen = {var.name: max(257 // var.multiple_of, 1) * var.multiple_of for var in sizes_of(spec)}
    return with_strides(spec, {**chosen, **given})


def shapes_of(spec: Spec, symbols: Mapping[str, int]) -> dict[str, tuple[int, ...]]:
    """Return the shape of each operand's array, by name."""
    from fireiron.measure.inputs import shape_of

    return {name: shape_of(view, symbols) for name, view in spec.operands.items()}


def data_for(
    program: Program, symbols: Mapping[str, int], seed: int, normal: bool = False, scalars: Mapping[str, float] | None = None
) -> tuple[dict[str, Any], Judge | None]:
    """Return random data, and the judge that compares results within bounds; None instead of the judge if sums are exact.

    8-bit floats of definitions are -1, 0 or 1 (`integer_operands`), because the sums of other numbers have weak bounds. `normal` requests
    normally distributed numbers even if integers suffice. `scalars` are given values of scalars. Raises: `ArgumentError` if no bounds are
    known for normally distributed numbers, or for a scalar that the spec does not have.
    """
    import numpy

    from fireiron.measure.data import random_inputs
    from fireiron.measure.judge import Judge
    from fireiron.specs.fused import fused

    spec = program.spec
    given = _scalars(spec, scalars or {})
    if fused(spec) is None and not normal:
        return exact_data(program, symbols, seed) | given, None
    if first_value(spec, symbols):
        raise ArgumentError(
            f"{spec} accumulates into its output, for which normally distributed inputs have no error bounds",
            hint="--inputs auto: integers, whose sums are exact",
        )
    generator = numpy.random.default_rng(seed)
    arrays = random_inputs(spec, symbols, generator) | given
    for name in () if normal else integer_operands(spec):
        arrays[name][...] = generator.integers(-1, 2, arrays[name].shape)
    accumulators = [one.operands[one.outputs[0]].dtype for one in _sums_of_products(program)]
    return arrays, Judge(spec, symbols, arrays, min(accumulators, key=lambda dtype: dtype.mantissa, default=None))


def _scalars(spec: Spec, given: Mapping[str, float]) -> dict[str, Any]:
    """Return the given values of scalars as arrays of their types."""
    import numpy

    known = {name: view.dtype for name, view in spec.operands.items() if view.memory.by_value}
    for name, value in given.items():
        if name not in known:
            raise ArgumentError(f"--scalar {name}={value:g}: {spec} has no such scalar", legal=sorted(known) or "none")
    return {name: numpy.array(value, dtype=known[name].to_numpy()) for name, value in given.items()}


def integer_operands(spec: Spec) -> tuple[str, ...]:
    """Return the inputs of 8-bit floats: the integers -1, 0 and 1 have exact sums in them, so that bounds detect a missing term."""
    return tuple(name for name in spec.inputs if spec.operands[name].dtype.kind == "float" and spec.operands[name].dtype.bits == 8)


def exact_data(program: Program, symbols: Mapping[str, int], seed: int) -> dict[str, Any]:
    """Return random integers by operand. They are so few and small that every sum is exact in every accumulator type."""
    import numpy

    from fireiron.gpu.arguments import as_stored

    spec = program.spec
    shapes = shapes_of(spec, symbols)
    limit = _exact_limit(program)
    for amplitude, density in ((4, 1.0), (2, 1.0), (1, 1.0), (1, 0.5), (1, 0.25), (1, 0.1), (1, 0.03), (1, 0.01), (1, 0.0)):
        random = numpy.random.default_rng(seed)
        values = {}
        for name in spec.inputs:
            integers = spec.kind.random_input(name, shapes[name], random)
            if integers is not None:
                values[name] = integers
                continue
            integers = numpy.asarray(random.integers(-amplitude, amplitude + 1, shapes[name]))
            values[name] = integers if density == 1 or not shapes[name] else integers * (random.random(shapes[name]) < density)
        if spec.title not in ("MatMul", "SparseMatMul") or _largest_sum(values) <= limit:
            break
    typed_values = {name: value.astype(spec.operands[name].dtype.to_numpy()) for name, value in values.items()}
    return {name: as_stored(spec.operands[name].tensor, value, symbols) for name, value in typed_values.items()}


def _sums_of_products(program: Program) -> list[Spec]:
    """Return the specs of the statements that add products."""
    from fireiron.ir import execs

    return [stmt.spec for stmt, _ in execs(program.ir.body) if stmt.spec.definition.is_product_sum]


def _exact_limit(program: Program) -> int:
    """Return the largest integer n such that all integers up to n are exact in every type in which products are accumulated."""
    dtypes = {view.dtype for name, view in program.spec.operands.items() if name in program.spec.outputs}
    dtypes |= {one.operands[one.outputs[0]].dtype for one in _sums_of_products(program)}
    return min((1 << dtype.mantissa if dtype.kind == "float" else (1 << (dtype.bits - 1)) - 1) for dtype in dtypes)


def _largest_sum(values: Mapping[str, Any]) -> float:
    """Return the largest sum of absolute values. No partial sum exceeds it, in any order."""
    left, right = (abs(values[name]).astype("float32") for name in ("A", "B"))
    if left.shape[1] != right.shape[0]:  # a 2:4 sparse operand has half of the elements
        return float(left.sum(1).max(initial=0) * right.max(initial=0))
    return float((left @ right).max(initial=0))


def first_value(spec: Spec, symbols: Mapping[str, int]) -> int | None:
    """Return the value of all output elements before a kernel accumulates into them; None if it has no effect."""
    from fireiron.gpu.arguments import keeps_elements, reads_output

    return 1 if reads_output(spec, symbols) else 0 if keeps_elements(spec) else None


def with_outputs(program: Program, symbols: Mapping[str, int], arrays: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the arrays, including the outputs into which a kernel accumulates."""
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
    """Simulate a program. Return the first wrong element, or the simulator's error; None if the result is correct.

    Args:
        program: the program.
        symbols: the values of the run-time sizes.
        arrays: the inputs by name.
        judge: compares the results within bounds. None: results are compared exactly.
        wanted: the number of blocks to simulate. None: all blocks if they have at most `MULTIPLY_ADDS` multiply-adds, else as many blocks
            as the time limit allows.
        report: receives what was done.
        progress: receives the number of simulated blocks as text.
        seconds: the time limit. Default: `SIMULATED_SECONDS`.
    """
    import math

    from fireiron.sim import simulate
    from fireiron.specs.fused import fused

    if program.spec.level.gpus is not None:
        return _on_all_gpus(program, symbols, arrays, judge, report)
    total = int(program.ir.grid.evaluate(symbols))
    work = math.prod(int(size.evaluate(symbols)) for size in program.spec.sizes)
    try:
        if any(not launch.spec.copies for launch in program.preceding):
            return _all_launches(program, symbols, arrays, judge, report)
        arrays, wrong = _after_copies(program, symbols, arrays, report)
        if wrong is not None:
            return wrong
        limited = seconds is not None and seconds < SIMULATED_SECONDS and fused(program.spec) is not None and work > ELEMENTS
        whole = wanted is None and work <= MULTIPLY_ADDS
        if _block_tiles(program) is None or (whole and not (limited and not _Sharing.of(program, symbols, total).is_shared)):
            report("blocks", total)
            result = simulate(program.ir, with_outputs(program, symbols, arrays), symbols)
            report("ran in", f"the simulator, {result.seconds:.2f} s")
            return first_wrong(program.spec, result.outputs, arrays, first_value(program.spec, symbols), judge)
        sharing = _Sharing.of(program, symbols, total)
        order = sharing.grouped(order_of(program, symbols, total))
        chosen = order[: sharing.whole(order, _whole_sums(program, wanted or total))]
        limit = SIMULATED_SECONDS if seconds is None else seconds
        return _sampled(program, symbols, arrays, judge, chosen, sharing, wanted is not None, report, progress, limit)
    except SimulationError as error:
        return {"message": str(error), "error": type(error).__name__}


def _on_all_gpus(
    program: Program, symbols: Mapping[str, int], arrays: Mapping[str, Any], judge: Judge | None, report: Report
) -> Mapping[str, Any] | None:
    """Simulate all launches on all GPUs of a node; return the first wrong element."""
    from fireiron.sim.node import simulate_node

    started = time.monotonic()
    try:
        outputs = simulate_node(program.spec, program.launches, arrays, symbols)
    except SimulationError as error:
        return {"message": str(error), "error": type(error).__name__}
    report("launches", f"{len(program.launches)} on each of {program.spec.level.gpus} GPUs")
    report("ran in", f"the simulator, {time.monotonic() - started:.2f} s")
    return first_wrong(program.spec, outputs, arrays, first_value(program.spec, symbols), judge)


def _all_launches(
    program: Program, symbols: Mapping[str, int], arrays: Mapping[str, Any], judge: Judge | None, report: Report
) -> Mapping[str, Any] | None:
    """Simulate all blocks of all launches, and return the first wrong element of the result."""
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
    """Simulate the preceding copy kernels. Return the arrays of the last launch, and the first wrong element of a copy."""
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
    """Return the sizes that are symbols of a launch."""
    known = {symbol.name for symbol in launch.program.ir.symbols}
    return {name: value for name, value in symbols.items() if name in known}


def _sampled(
    program: Program,
    symbols: Mapping[str, int],
    arrays: Mapping[str, Any],
    judge: Judge | None,
    order: Sequence[int],
    sharing: _Sharing,
    in_one_batch: bool,
    report: Report,
    progress: Callable[[str], object],
    limit: float,
) -> Mapping[str, Any] | None:
    """Simulate batches of blocks in the given order until the time limit, and compare the elements that each block writes.

    With `in_one_batch`, simulate all blocks of `order` at once, without a time limit.
    """
    from fireiron.sim import simulate

    started = time.monotonic()
    total = int(program.ir.grid.evaluate(symbols))
    done, size, seconds = 0, len(order) if in_one_batch else _whole_sums(program, 1), 0.0
    wrong: Mapping[str, Any] | None = None
    compared: set[str] = set()
    while done < len(order) and wrong is None:
        batch = sorted(order[done : sharing.whole(order, done + size)])
        result = simulate(program.ir, with_outputs(program, symbols, arrays), symbols, blocks=batch)
        wrong = _compared_blocks(program, symbols, arrays, result.outputs, batch, judge, sharing, compared)
        done, seconds = done + len(batch), seconds + result.seconds
        left = limit - (time.monotonic() - started)
        each = (limit - left) / done
        progress(f"{done} of {total} blocks")
        if each > left and not in_one_batch:
            break
        size = _whole_sums(program, max(1, min(int(left / 2 / each), 8 * size)))
    progress("")
    rest = total - done
    text = f"{done} of {total} are simulated and compared; the other {rest} are NOT executed" if rest else total
    report("blocks", text, plain=sorted(order[:done]), total=total)
    left_out = [name for name in program.spec.outputs if name not in compared] if wrong is None else []
    if left_out:
        text = f"{', '.join(left_out)}, because other blocks write or add to the same elements; --blocks {total} compares all"
        report("not compared", text, plain=left_out)
    report("ran in", f"the simulator, {seconds:.2f} s")
    return wrong


def _whole_sums(program: Program, blocks: int) -> int:
    """Return a number of blocks, rounded up so that all blocks of an output tile are included.

    If several blocks accumulate into one output tile, only their sum can be compared.
    """
    part = program.grown.whole.part
    parts = 1 if part is None else part.high + 1
    return -(-blocks // parts) * parts


def order_of(program: Program, symbols: Mapping[str, int], total: int) -> list[int]:
    """Return all blocks in the order of their simulation.

    The first block, the last block and the blocks in the corners of the outputs precede the others, which are in random order. Blocks of
    the same tile are adjacent.
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


@frozen
class _Sharing:
    """Blocks that write or add to the same elements. Only all of them together have the values of these elements.

    Attributes:
        starts: the first coordinates of the tile that a block computes in an iteration, by output, block and iteration.
        blocks: the blocks with a tile, by output and first coordinates.
    """

    starts: Mapping[tuple[str, int, int], tuple[int, ...]]
    blocks: Mapping[tuple[str, tuple[int, ...]], frozenset[int]]

    @classmethod
    def of(cls, program: Program, symbols: Mapping[str, int], total: int) -> _Sharing:
        """Return it for all outputs of a definition with several outputs, or to whose outputs blocks add; nothing for other specs."""
        import numpy

        from fireiron.specs.fused import fused

        definition, tiles = fused(program.spec), _block_tiles(program)
        if definition is None or tiles is None or not (definition.added or len(tiles) > 1):
            return cls({}, {})
        starts: dict[tuple[str, int, int], tuple[int, ...]] = {}
        blocks: dict[tuple[str, tuple[int, ...]], set[int]] = {}
        for number, (iteration, members) in enumerate(_blocks_by_iteration(program, symbols, total)):
            for output, tile in tiles.items():
                values = _evaluated(program, {**symbols, **iteration}, members, [dim.base for dim in tile])
                columns = [numpy.broadcast_to(value, members.shape).tolist() for value in values]
                for block, start in zip(members.tolist(), zip(*columns) if columns else itertools.repeat(()), strict=False):
                    starts[output, block, number] = start
                    blocks.setdefault((output, start), set()).add(block)
        return cls(starts, {key: frozenset(members) for key, members in blocks.items()})

    @property
    def is_shared(self) -> bool:
        """Whether an element of an output has several blocks."""
        return any(len(members) > 1 for members in self.blocks.values())

    def _members(self, output: str, block: int, number: int) -> frozenset[int]:
        start = self.starts.get((output, block, number))
        return frozenset((block,)) if start is None else self.blocks[output, start]

    def compares(self, output: str, block: int, iteration: Mapping[str, int], executed: frozenset[int]) -> bool:
        """Whether a block's tile of an output is complete after the executed blocks, and this block is the first with it."""
        members = self._members(output, block, next(iter(iteration.values()), 0))
        return members <= executed and block == min(members)

    @functools.cached_property
    def _first(self) -> str:
        """The output whose blocks are simulated together, if all outputs have elements of several blocks; otherwise empty."""
        names = dict.fromkeys(name for name, _ in self.blocks)
        shared = {name for (name, _), members in self.blocks.items() if len(members) > 1}
        return next(iter(names)) if shared and shared == {*names} else ""

    def grouped(self, order: Sequence[int]) -> list[int]:
        """Return blocks in an order in which those of a group are adjacent."""
        return [*dict.fromkeys(member for block in order for member in sorted(self._group(block)))]

    def _group(self, block: int) -> frozenset[int]:
        return self._members(self._first, block, 0) if self._first else frozenset((block,))

    def whole(self, order: Sequence[int], count: int) -> int:
        """Return a number of blocks of an order, at least `count` if there are as many, that ends with a group."""
        while 0 < count < len(order) and order[count] in self._group(order[count - 1]):
            count += 1
        return min(count, len(order))


def _block_tiles(program: Program) -> dict[str, tuple[Any, ...]] | None:
    """Return the dimensions of the view that a block computes, by output; None if there is no such view."""
    from fireiron.values.machine import Block

    outputs = {name: program.inner.operands[name].tensor for name in program.inner.outputs}
    if any(tensor.through is not None for tensor in outputs.values()):
        return None
    for node in program.tree.nodes():
        views = {name: node.spec.operands.get(name) for name in outputs}
        dims_by_output = {name: view.dims for name, view in views.items() if view is not None and view.tensor == outputs[name]}
        if node.spec.level == Block and len(dims_by_output) == len(outputs):
            return dims_by_output if _has_values(program, [dim.base for dims in dims_by_output.values() for dim in dims]) else None
    return None


def _has_values(program: Program, values: Iterable[Any]) -> bool:
    """Whether expressions depend on the block, sizes and iterations of persistent blocks alone; not so those of segments of streams."""
    from fireiron.check.persistence import persistence, static_schedule

    loops = [one.loop.var.name for one in persistence(static_schedule(program.lowered))]
    known = {program.grown.context.block.name, *(one.name for one in program.lowered.symbols), *_single_iterations(program), *loops}
    for var, value in program.grown.names.items():
        if all(operand.name in known for operand in value.variables()):
            known.add(var.name)
    return all(operand.name in known for value in values for operand in value.variables())


def _evaluated(program: Program, symbols: Mapping[str, int], block: Any, values: Iterable[Any]) -> list[Any]:
    """Evaluate expressions of the block index, with the names that the tree defines."""
    context = program.grown.context
    environment: dict[str, Any] = {**dict.fromkeys(_single_iterations(program), 0), **symbols, context.block.name: block}
    for var, value in program.grown.names.items():
        if all(operand.name in environment for operand in value.variables()):
            environment[var.name] = value.evaluate(environment)
    return [value.evaluate(environment) for value in values]


def _single_iterations(program: Program) -> list[str]:
    """Return the variables of loops with one iteration, which passes remove."""
    from fireiron.ir import For, statements
    from fireiron.values.expr import constant

    return [one.var.name for one in statements(program.walked.body) if isinstance(one, For) and constant(one.extent) == 1]


def _compared_blocks(
    program: Program,
    symbols: Mapping[str, int],
    arrays: Mapping[str, Any],
    got: Mapping[str, Any],
    blocks: Sequence[int],
    judge: Judge | None,
    sharing: _Sharing,
    compared: set[str],
) -> Mapping[str, Any] | None:
    """Return the first wrong element among the elements that the blocks compute. The names of compared outputs are added to `compared`.

    Elements that other blocks write, too, are not compared.
    """
    tiles, first = _block_tiles(program), first_value(program.spec, symbols)
    assert tiles is not None
    executed = frozenset(blocks)
    iterations = [(block, iteration) for block in blocks for iteration in _tile_iterations(program, symbols, block)]
    for block, iteration in iterations:
        for output, tile in tiles.items():
            if not sharing.compares(output, block, iteration, executed):
                continue
            compared.add(output)
            places = _tile_coordinates(program, symbols, block, tile, got[output].shape, iteration)
            if judge is None:
                wrong = _first_wrong_at(program.spec, symbols, output, places, got[output], arrays, first)
            else:
                wrong = _with_output_name(program.spec, output, judge.wrong_at(output, got[output], places))
            if wrong is not None:
                return {**wrong, "block": block, "message": f"block {block}: {wrong['message']}"}
    return None


def _tile_iterations(program: Program, symbols: Mapping[str, int], block: int) -> list[Mapping[str, int]]:
    """Return the iterations in which a block computes its tiles, as values of the loop variable.

    A block that is not persistent has one iteration without a variable.
    """
    from fireiron.check.persistence import persistence, static_schedule

    persistent_loops = persistence(static_schedule(program.lowered))
    if not persistent_loops:
        return [{}]
    loop = persistent_loops[0].loop
    (count,) = _evaluated(program, symbols, block, [loop.extent])
    return [{loop.var.name: iteration} for iteration in range(int(count))]


def _blocks_by_iteration(program: Program, symbols: Mapping[str, int], total: int) -> Iterator[tuple[Mapping[str, int], Any]]:
    """Yield each iteration of the loop over tiles, as the value of its variable, and the blocks that have it, as an array."""
    import numpy

    from fireiron.check.persistence import persistence, static_schedule

    blocks = numpy.arange(total)
    persistent_loops = persistence(static_schedule(program.lowered))
    if not persistent_loops:
        yield {}, blocks
        return
    loop = persistent_loops[0].loop
    counts = numpy.broadcast_to(_evaluated(program, symbols, blocks, [loop.extent])[0], blocks.shape)
    for iteration in range(int(counts.max(initial=0))):
        yield {loop.var.name: iteration}, blocks[counts > iteration]


def _tile_coordinates(
    program: Program, symbols: Mapping[str, int], block: int, tile: Sequence[Any], shape: Sequence[int], iteration: Mapping[str, int]
) -> list[Any]:
    """Return the in-bounds coordinates of a block's tile in an iteration, by dimension."""
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
    """Return the first wrong element of an output at these positions. `first` is the value of all elements before the kernel."""
    import numpy

    from fireiron.measure.data import references_of
    from fireiron.measure.inputs import select_at
    from fireiron.specs.fused import as_direct

    by_dim = dict(zip(spec.uses[output], places, strict=True))
    spec, arrays = as_direct(spec, arrays, symbols)
    right = references_of(spec, *(select_at(array, spec.uses[name], by_dim) for name, array in arrays.items()))[output]
    read = {dim for name in arrays for dim in spec.uses[name]}
    whole = {
        dim: place for dim, place in by_dim.items() if dim not in read
    }  # the reference contains all positions of dimensions that no input has
    return _with_output_name(
        spec, output, _compared(got[numpy.ix_(*places)], select_at(right + (first or 0), spec.uses[output], whole), places)
    )


def first_wrong(
    spec: Spec, got: Mapping[str, Any], arrays: Mapping[str, Any], first: int | None, judge: Judge | None
) -> Mapping[str, Any] | None:
    """Return the first wrong element of the outputs; None if they are correct. `first` is the value of all elements before the kernel."""
    from fireiron.measure.data import references_of

    if judge is not None:
        compared = (_with_output_name(spec, name, judge.wrong(name, got[name])) for name in spec.outputs)
    else:
        references = references_of(spec, *arrays.values())
        compared = (_with_output_name(spec, name, _compared(got[name], right + (first or 0))) for name, right in references.items())
    return next((wrong for wrong in compared if wrong is not None), None)


def _with_output_name(spec: Spec, output: str, wrong: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """Add the name of the output to a wrong element, if there are several outputs."""
    if wrong is None or len(spec.outputs) == 1:
        return wrong
    return {**wrong, "output": output, "message": f"{output}: {wrong['message']}"}


def _compared(got: Any, want: Any, places: Sequence[Any] | None = None) -> Mapping[str, Any] | None:
    """Return the first element that differs, with its coordinates; None if there is none."""
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


@frozen
class Verified:
    """A verified kernel: `blocks` of `total` blocks were simulated in `seconds`, with the run-time sizes `at`.

    The outputs `left_out` were not compared, because other blocks write or add to the same elements.
    """

    blocks: int
    total: int
    seconds: float
    at: Mapping[str, int] = attrs.field(factory=dict, hash=False)
    left_out: tuple[str, ...] = ()

    def __str__(self) -> str:
        if self.blocks < self.total:
            return f"{self.blocks} of {self.total} blocks" + (f", without {', '.join(self.left_out)}" if self.left_out else "")
        return "its only block" if self.total == 1 else f"all {self.total} blocks"


def verified(
    program: Program,
    sizes: Mapping[str, int] | None = None,
    *,
    seed: int = 0,
    seconds: float | None = None,
    progress: Callable[[str], object] = str,
) -> Verified:
    """Execute a kernel in the simulator on generated data, and compare the results.

    `sizes` are the run-time sizes, and `seconds` is the approximate time limit. Slower kernels are verified by a sample of their blocks.

    Raises: `WrongResultError` if an element is wrong, or if the simulator reports an error; a `FireironError` if there is no kernel.
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
    left_out = tuple(reports.get("not compared", ("", {}))[1].get("plain", ()))
    return Verified(value if done is None else len(done), more.get("total", value), time.monotonic() - started, symbols, left_out)
