"""The command line. Nothing but the parser is imported until a command needs it, so that `--help` is quick."""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from fireiron._version import VERSION
from fireiron.errors import ArgumentError, DecompositionError, FireironError, ResourceError, SimulationError, SynchronizationError

if TYPE_CHECKING:
    from fireiron.compiler import Program
    from fireiron.spec import Spec
    from fireiron.strategy import Strategy

FAILED: Final = 1
"""Exit status where a check or a run found something wrong."""
REFUSED: Final = 2
"""Exit status of a user's mistake, as argparse has it."""

SIMULATED_SECONDS: Final = 60.0
"""A longer simulation is cut down to a sample of blocks."""

_MULTIPLY_ADDS: Final = 2e7
"""So much work is simulated without asking how long it takes."""


def main(argv: Sequence[str] | None = None) -> int:
    """The command line: the exit status of a command (0, 1 where something is wrong, 2 for a user's mistake)."""
    arguments = _parser().parse_args(argv)
    try:
        _make_printable()
        status: int = arguments.run(arguments)
        sys.stdout.flush()
        return status
    except FireironError as error:
        sys.stdout.flush()
        print(f"fireiron: {_paint('error', 31, sys.stderr)}: {error}", file=sys.stderr)
        return REFUSED
    except BrokenPipeError:
        _drop_output()
        return 128 + 13
    except OSError as error:
        _drop_output()
        print(f"fireiron: {_paint('error', 31, sys.stderr)}: {error.strerror or error}", file=sys.stderr)
        return REFUSED
    except KeyboardInterrupt:
        print("fireiron: interrupted", file=sys.stderr)
        return 128 + 2


# ---------------------------------------------------------------------------------------------- the parser


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="fireiron", description="A scheduling language for GPU kernels.", allow_abbrev=False)
    parser.add_argument("--version", action="version", version=f"fireiron {VERSION}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    common = _strategy_options()

    def add(name: str, run: Callable[[argparse.Namespace], int], text: str, strategy: bool = True) -> argparse.ArgumentParser:
        inherited = [common] if strategy else []
        command = commands.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".", parents=inherited, allow_abbrev=False)
        command.set_defaults(run=run)
        return command

    add("list", _list, "the strategy library as a table", strategy=False).add_argument("--arch", help="the target (sm_90)")
    _add_json(commands.choices["list"])
    _add_strategy(add("show", _show, "the decomposition tree, with the spec after every step, and the kernel in figures"), json=True)
    emit = add("emit", _emit, "the kernel in CUDA C++")
    _add_strategy(emit)
    emit.add_argument("-o", dest="output", metavar="FILE", help="write to a file instead")
    emit.add_argument("--force", action="store_true", help="overwrite the file")
    _add_strategy(add("check", _check, "races, bounds, bank conflicts, coalescing, resources; exit status 1 on an error"), json=True)
    run = add("run", _run, "run on the GPU if there is one, else in the simulator; compare with the spec's meaning in NumPy")
    _add_strategy(run, json=True)
    run.add_argument("--simulate", action="store_true", help="use the simulator though there is a GPU")
    run.add_argument("--seed", type=_natural, help="of the random data (printed if not given)")
    run.add_argument("--blocks", type=_positive, metavar="N", help="simulate a sample of N blocks only")
    run.add_argument("--let", action="append", default=[], type=_assignment, metavar="M=1000", help="the value of a size known at run time")
    explain = add("explain", _explain, "why each leaf matched an instruction, or the steps that would close the gap")
    _add_strategy(explain, json=True)
    diff = add("diff", _diff, "two strategies side by side")
    diff.add_argument("left", metavar="A", help="a strategy")
    diff.add_argument("right", metavar="B", help="another one")
    _add_json(diff)
    return parser


def _strategy_options() -> argparse.ArgumentParser:
    common = argparse.ArgumentParser(add_help=False)
    for dim in "MNK":
        common.add_argument(
            f"-{dim}", type=_size, metavar="SIZE", help='an integer, or a size known at run time: "M", or "M:8" for multiples of 8'
        )
    common.add_argument("--arch", help="the target, such as sm_80 (sm_90 if none is named)")
    common.add_argument("--set", action="append", default=[], type=_assignment, metavar="bm=64", help="the value of a tunable (repeatable)")
    common.add_argument("--dtype", help="the element type of A and B, such as float16")
    common.add_argument("--layouts", type=_layouts, metavar="NT", help="storage of A, B and optionally C: N column-major, T row-major")
    return common


def _add_strategy(command: argparse.ArgumentParser, json: bool = False) -> None:
    command.add_argument("strategy", metavar="STRATEGY", help="a name of the library, a path.py, or path.py:name")
    if json:
        _add_json(command)


def _add_json(command: argparse.ArgumentParser) -> None:
    command.add_argument("--json", action="store_true", help="print JSON")


def _size(text: str) -> Any:
    """A size on the command line: a positive integer, or a symbol `M` or `M:8`."""
    match = re.fullmatch(r"([A-Z][A-Za-z0-9_]*)(?::([0-9]{1,9}))?", text, re.ASCII)
    if match:
        from fireiron.expr import sym

        try:
            return sym(match[1], multiple_of=int(match[2] or 1))
        except FireironError as error:
            raise argparse.ArgumentTypeError(error.asked) from None
    if not re.fullmatch(r"[0-9]{1,10}", text, re.ASCII) or not 1 <= int(text) < 2**31:
        raise argparse.ArgumentTypeError(f'{text!r} is no size: a positive integer, or a symbol such as "M" or "M:8"')
    return int(text)


def _natural(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,18}", text, re.ASCII):
        raise argparse.ArgumentTypeError(f"{text!r} is no integer of at least 0")
    return int(text)


def _positive(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,9}", text, re.ASCII) or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no positive integer")
    return int(text)


def _assignment(text: str) -> tuple[str, int]:
    name, _, value = text.partition("=")
    if not name.isidentifier() or not re.fullmatch(r"[0-9]{1,10}", value, re.ASCII):
        raise argparse.ArgumentTypeError(f"{text!r} is no NAME=INTEGER")
    return name, int(value)


def _layouts(text: str) -> str:
    if not re.fullmatch(r"[NTnt]{2,3}", text):
        raise argparse.ArgumentTypeError(f"{text!r}: two or three letters, N (column-major) or T (row-major), for A, B and C")
    return text.upper()


# ---------------------------------------------------------------------------------------------- arguments to strategies


def _strategy(arguments: argparse.Namespace, name: str | None = None, known_only: bool = False) -> Strategy:
    """The strategy of the arguments, bound; `known_only` passes on only those tunables that it has."""
    from fireiron.library import bind, find
    from fireiron.machine import as_architecture, as_dtype
    from fireiron.tensor import ColMajor, RowMajor

    if arguments.arch is not None:
        as_architecture(arguments.arch)
    entry = find(arguments.strategy if name is None else name)
    sizes = {dim: getattr(arguments, dim) for dim in "MNK" if getattr(arguments, dim) is not None}
    options: dict[str, Any] = {} if arguments.dtype is None else {"dtype": as_dtype(arguments.dtype)}
    for operand, letter in zip("ABC", arguments.layouts or "", strict=False):
        options[operand] = ColMajor if letter == "N" else RowMajor
    values = dict(arguments.set)
    if known_only:
        values = {key: value for key, value in values.items() if key in entry.strategy.tunables()}
    return bind(entry, sizes, options, values)


def _program(arguments: argparse.Namespace) -> Program:
    return _strategy(arguments).program(arguments.arch)


# ---------------------------------------------------------------------------------------------- list, show, emit, explain, diff


def _list(arguments: argparse.Namespace) -> int:
    from fireiron.library import names
    from fireiron.machine import as_architecture

    if arguments.arch is not None:
        as_architecture(arguments.arch)
    entries = [_listed(name, arguments.arch) for name in names()]
    if arguments.json:
        return _print_json(entries)
    from tabulate import tabulate

    heads = ["name", "sizes", "threads", "shared bytes", "tunables", "what it is"]
    table = [[" ".join(map(str, row[head])) if isinstance(row[head], list) else row[head] for head in heads] for row in entries]
    print(tabulate(table, headers=heads, disable_numparse=True, colalign=("left", "left", "right", "right", "left", "left")))
    return 0


def _listed(name: str, architecture: str | None) -> dict[str, Any]:
    """A row of the table; a strategy that cannot be built for the target says so."""
    from fireiron.library import bind, find

    try:
        entry = find(name)
    except FireironError as error:
        return {
            "name": name,
            "sizes": [],
            "threads": "-",
            "shared bytes": "-",
            "tunables": [],
            "what it is": f"cannot be loaded: {error.asked}",
        }
    row = {"name": name, "sizes": list(entry.sizes), "tunables": list(entry.strategy.tunables()), "what it is": entry.doc}
    try:
        kernel = bind(entry).program(architecture).ir
    except FireironError as error:
        return row | {"threads": "-", "shared bytes": "-", "what it is": f"{entry.doc} ({error.asked})"}
    return row | {"threads": kernel.threads, "shared bytes": kernel.shared_bytes}


def _show(arguments: argparse.Namespace) -> int:
    from fireiron.show import as_dict, show

    program = _program(arguments)
    if arguments.json:
        return _print_json(as_dict(program))
    for part in show(program, _glyphs()):
        print(part)
    return 0


def _emit(arguments: argparse.Namespace) -> int:
    text = _program(arguments).cuda
    if arguments.output is None or arguments.output == "-":
        print(text, end="" if text.endswith("\n") else "\n")
        return 0
    from fireiron.store import write_text

    write_text(arguments.output, text, overwrite=arguments.force)
    return 0


def _explain(arguments: argparse.Namespace) -> int:
    from fireiron.explain import explain, text

    explanation = explain(_strategy(arguments), arguments.arch)
    if arguments.json:
        program = explanation.program
        head = {"spec": str(program.spec), "architecture": program.architecture.name, "chosen": dict(program.chosen)}
        return _print_json(head | {"leaves": [leaf.as_dict() for leaf in explanation.leaves]})
    print(text(explanation))
    return 0


def _diff(arguments: argparse.Namespace) -> int:
    from fireiron.diff import as_dict, diff
    from fireiron.library import find

    names = (arguments.left, arguments.right)
    tunables = {tunable for name in names for tunable in find(name).strategy.tunables()}
    for tunable, _ in arguments.set:
        if tunable not in tunables:
            raise ArgumentError(f"{tunable}: neither strategy has such a tunable", legal=sorted(tunables) or "none")
    left, right = (_strategy(arguments, name, known_only=True).program(arguments.arch) for name in names)
    if arguments.json:
        return _print_json(as_dict(left, right, names))
    for part in diff(left, right, names, _glyphs()):
        print(part)
    return 0


# ---------------------------------------------------------------------------------------------- check


def _check(arguments: argparse.Namespace) -> int:
    from fireiron.check import check
    from fireiron.tree import require_complete

    program = _program_or_error(arguments)
    if isinstance(program, FireironError):
        findings = [_finding(program)]
    else:
        require_complete(program.tree)
        try:
            findings = list(check(program.ir))
        except (SynchronizationError, ResourceError, DecompositionError) as error:
            findings = [_finding(error)]
    counts = {severity: sum(one.severity == severity for one in findings) for severity in ("error", "warning", "note")}
    if arguments.json:
        _print_json({"strategy": arguments.strategy, "counts": counts, "findings": [one.as_dict() for one in findings]})
    else:
        _print_findings(findings)
        print(", ".join(f"{number} {severity}{'' if number == 1 else 's'}" for severity, number in counts.items()))
    return FAILED if counts["error"] else 0


def _program_or_error(arguments: argparse.Namespace) -> Program | FireironError:
    """The program; or why its tree or its tunables cannot be, where that is a finding."""
    strategy = _strategy(arguments)
    try:
        program = strategy.program(arguments.arch)
        _ = program.tree
    except (SynchronizationError, ResourceError, DecompositionError) as error:
        return error
    return program


def _finding(error: FireironError) -> Any:
    from fireiron.check import Finding

    kinds: Mapping[type[FireironError], str] = {SynchronizationError: "race", ResourceError: "resources"}
    details = {name: str(value) for name, value in (("in", error.within), ("legal", error.legal), ("do", error.hint)) if value is not None}
    return Finding(kinds.get(type(error), "decomposition"), "error", None, str(error), error.at, None, details)


def _print_findings(findings: Sequence[Any]) -> None:
    from tabulate import tabulate

    if not findings:
        return
    colours = {"error": 31, "warning": 33, "note": 36}
    rows = [
        [
            _paint(one.severity, colours[one.severity]),
            one.kind,
            one.access or one.buffer or "",
            _without(one.message, one.access),
            one.at or "",
        ]
        for one in findings
    ]
    heads = ["severity", "kind", "access", "message", "line"]
    print(tabulate(rows, headers=heads, disable_numparse=True, maxcolwidths=[None, None, 44, 72, None]))


# ---------------------------------------------------------------------------------------------- run


def _run(arguments: argparse.Namespace) -> int:
    """Random small integers through the kernel, compared exactly with the spec's meaning."""
    from fireiron import launch

    gpu = not arguments.simulate and launch.gpu_available()
    if gpu and arguments.blocks is not None:
        raise ArgumentError("a sample of blocks is simulated, there is none on a GPU", hint="--simulate, or leave --blocks out")
    architecture = arguments.arch or (launch.device_arch() if gpu else None)
    program = _strategy(arguments).program(architecture)
    kernel = program.ir
    symbols = _symbol_values(program.spec, arguments)
    seed = time.time_ns() % 2**32 if arguments.seed is None else arguments.seed
    say = _Report(arguments.json)
    say("strategy", arguments.strategy)
    say("spec", str(program.spec), **({"sizes": symbols} if symbols else {}))
    say("target", program.architecture.name)
    say("seed", seed)
    arrays = _data(program, symbols, seed)
    kernels = _micro_kernels(kernel)
    if gpu:
        wrong = _on_gpu(program, symbols, arrays, say)
    else:
        if kernels:
            say("micro-kernel", f"{', '.join(kernels)}: the text is only checked on a GPU; the simulator used the meaning of its spec")
        wrong = _simulated(program, symbols, arrays, arguments.blocks, say)
    return say.verdict(wrong)


class _Report:
    """Lines as they come, or one JSON object at the end."""

    def __init__(self, as_json: bool) -> None:
        self.as_json = as_json
        self.values: dict[str, Any] = {}

    def __call__(self, name: str, value: Any, **more: Any) -> None:
        self.values |= {name: value} | more
        if not self.as_json:
            extra = "".join(
                f"  {' '.join(f'{key}={number}' for key, number in one.items())}" for one in more.values() if isinstance(one, dict)
            )
            print(f"{name:<12}  {value}{extra}", flush=True)

    def verdict(self, wrong: Mapping[str, Any] | None) -> int:
        """Says whether the result was right; the exit status."""
        if self.as_json:
            _print_json(self.values | {"passed": wrong is None} | ({} if wrong is None else {"wrong": dict(wrong)}))
        elif wrong is None:
            print(_paint("PASS", 32))
        else:
            print(_paint("FAIL", 31) + f"  {wrong['message']}")
        return 0 if wrong is None else FAILED


def _symbol_values(spec: Spec, arguments: argparse.Namespace) -> dict[str, int]:
    """Values for the sizes known at run time: those given, else one more than a full tile, as far as its facts allow."""
    from fireiron.lower.walk import symbols_of

    given = dict(arguments.let)
    symbols = {var.name: var for var in symbols_of(spec)}
    unknown = [name for name in given if name not in symbols]
    if unknown:
        raise ArgumentError(f"--let {unknown[0]}: the spec has no such size", legal=list(symbols) or "none")
    for name, value in given.items():
        var = symbols[name]
        if not var.low <= value <= var.high or value % var.multiple_of:
            raise ArgumentError(f"--let {name}={value}", legal=f"{var.low} ... {var.high}, multiples of {var.multiple_of}")
    chosen = {name: max(257 // var.multiple_of, 1) * var.multiple_of for name, var in symbols.items()}
    return {name: given.get(name, value) for name, value in chosen.items()}


def _shapes(spec: Spec, symbols: Mapping[str, int]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(int(size.evaluate(symbols)) for size in view.shape) for name, view in spec.operands.items()}


def _data(program: Program, symbols: Mapping[str, int], seed: int) -> dict[str, Any]:
    """Random integers by operand, so few and small that every sum is exact in every type that adds up."""
    import numpy

    spec = program.spec
    shapes = _shapes(spec, symbols)
    limit = _exact_limit(program)
    for amplitude, density in ((4, 1.0), (2, 1.0), (1, 1.0), (1, 0.5), (1, 0.25), (1, 0.1), (1, 0.03), (1, 0.01), (1, 0.0)):
        random = numpy.random.default_rng(seed)
        values = {}
        for name in spec.inputs:
            drawn = random.integers(-amplitude, amplitude + 1, shapes[name])
            values[name] = drawn if density == 1 else drawn * (random.random(shapes[name]) < density)
        if spec.title != "MatMul" or _largest_sum(values) <= limit:
            break
    return {name: value.astype(spec.operands[name].dtype.to_numpy()) for name, value in values.items()}


def _exact_limit(program: Program) -> int:
    """The largest integer up to which all are exact in every type that products are added up in."""
    from fireiron.ir import execs
    from fireiron.spec import MatMulSpec

    dtypes = {view.dtype for name, view in program.spec.operands.items() if name in program.spec.outputs}
    dtypes |= {one.spec.C.dtype for one, _ in execs(program.ir.body) if isinstance(one.spec, MatMulSpec)}
    return min((1 << dtype.mantissa if dtype.kind == "float" else (1 << (dtype.bits - 1)) - 1) for dtype in dtypes)


def _largest_sum(values: Mapping[str, Any]) -> float:
    """The largest sum of magnitudes: no partial sum in any order is larger."""
    left, right = (abs(values[name]).astype("float32") for name in ("A", "B"))
    return float((left @ right).max(initial=0))


def _micro_kernels(kernel: Any) -> tuple[str, ...]:
    from fireiron.show import micro_kernels

    return micro_kernels(kernel)


# ---------------------------------------------------------------------------------------------- run: the GPU


def _on_gpu(program: Program, symbols: Mapping[str, int], arrays: Mapping[str, Any], say: _Report) -> Mapping[str, Any] | None:
    """The first wrong element of a run on the GPU."""
    import cupy

    from fireiron.kernel import CompiledKernel

    kernel = CompiledKernel(program)
    (output,) = program.spec.outputs
    device = {name: _placed(cupy, program, symbols, name, array) for name, array in arrays.items()}
    shapes = _shapes(program.spec, symbols)
    result = _placed(cupy, program, symbols, output, None)
    result[...] = cupy.full(shapes[output], 77, dtype=result.dtype)
    sizes = {name: value for name, value in symbols.items() if name in _unseen(program.spec, symbols)}
    kernel(*device.values(), out=result, **sizes)
    got = cupy.asnumpy(result)
    start, stop = cupy.cuda.Event(), cupy.cuda.Event()
    start.record()
    kernel(*device.values(), out=result, **sizes)
    stop.record()
    stop.synchronize()
    say("ran on", f"GPU, {cupy.cuda.get_elapsed_time(start, stop) * 1000:.1f} us")
    return _compared(got, program.spec.reference(*arrays.values()))


def _placed(cupy: Any, program: Program, symbols: Mapping[str, int], name: str, array: Any) -> Any:
    """An array on the GPU with the strides that the kernel was made for."""
    from fireiron.kernel import element_strides, evaluated

    buffer = program.ir.buffer(name)
    shape = tuple(evaluated(size, symbols) for size in buffer.tensor.shape)
    flat = cupy.zeros(evaluated(buffer.elements, symbols), dtype=buffer.dtype.to_numpy())
    placed = cupy.ndarray(shape, flat.dtype, flat.data, tuple(step * buffer.dtype.bytes for step in element_strides(buffer, symbols)))
    if array is not None:
        placed[...] = cupy.asarray(array)
    return placed


def _unseen(spec: Spec, symbols: Mapping[str, int]) -> set[str]:
    """Sizes that no shape of an input tells."""
    seen = {str(size) for name in spec.inputs for size in spec.operands[name].shape}
    return {name for name in symbols if name not in seen}


# ---------------------------------------------------------------------------------------------- run: the simulator


def _simulated(
    program: Program, symbols: Mapping[str, int], arrays: Mapping[str, Any], wanted: int | None, say: _Report
) -> Mapping[str, Any] | None:
    """The first wrong element of a simulated run, or what the simulator met.

    All blocks at once where the work is small; else, or with `wanted`, a sample of them, as many as the time allows.
    """
    import math

    from fireiron.sim import simulate

    total = int(program.ir.grid.evaluate(symbols))
    work = math.prod(int(size.evaluate(symbols)) for size in program.spec.sizes)
    try:
        if _block_tile(program) is None or (wanted is None and work <= _MULTIPLY_ADDS):
            say("blocks", total)
            result = simulate(program.ir, arrays, symbols)
            say("ran in", f"the simulator, {result.seconds:.2f} s")
            (output,) = program.spec.outputs
            return _compared(result.outputs[output], program.spec.reference(*arrays.values()))
        chosen = _order(program, symbols, total)[: _whole(program, wanted or total)]
        return _sampled(program, symbols, arrays, chosen, wanted is not None, say)
    except SimulationError as error:
        return {"message": str(error), "error": type(error).__name__}


def _sampled(
    program: Program, symbols: Mapping[str, int], arrays: Mapping[str, Any], order: Sequence[int], all_of_them: bool, say: _Report
) -> Mapping[str, Any] | None:
    """Blocks in the given order, batch after batch until the time is over, each compared where it writes."""
    from fireiron.sim import simulate

    started = time.monotonic()
    total = int(program.ir.grid.evaluate(symbols))
    (output,) = program.spec.outputs
    done, size, seconds = 0, len(order) if all_of_them else _whole(program, 1), 0.0
    wrong: Mapping[str, Any] | None = None
    while done < len(order) and wrong is None:
        batch = sorted(order[done : done + size])
        result = simulate(program.ir, arrays, symbols, blocks=batch)
        wrong = _compared_blocks(program, symbols, arrays, result.outputs[output], batch)
        done, seconds = done + len(batch), seconds + result.seconds
        left = SIMULATED_SECONDS - (time.monotonic() - started)
        each = (SIMULATED_SECONDS - left) / done
        _progress(f"{done} of {total} blocks")
        if each > left and not all_of_them:
            break
        size = _whole(program, max(1, min(int(left / 2 / each), 8 * size)))
    _progress("")
    rest = total - done
    say("blocks", f"{done} of {total} are simulated and compared; the other {rest} are NOT executed" if rest else total, total=total)
    say.values["blocks"] = sorted(order[:done])
    say("ran in", f"the simulator, {seconds:.2f} s")
    return wrong


def _whole(program: Program, blocks: int) -> int:
    """The number of blocks, rounded up to those that add to the same tiles of the output: only their sum can be compared."""
    part = program.grown.context.names.part
    parts = 1 if part is None else part.high + 1
    return -(-blocks // parts) * parts


def _order(program: Program, symbols: Mapping[str, int], total: int) -> list[int]:
    """All blocks: the first, the last, those in the corners of the output, then the others at random; those of one tile together."""
    import numpy

    blocks = dict.fromkeys((0, total - 1))
    tile = _block_tile(program)
    if tile is not None:
        starts = [
            numpy.broadcast_to(start, (total,)) for start in _evaluated(program, symbols, numpy.arange(total), [dim.base for dim in tile])
        ]
        for keys in (starts, [-start for start in starts], [starts[0], -starts[-1]], [-starts[0], starts[-1]]):
            blocks[int(numpy.lexsort(keys)[0])] = None
    blocks |= dict.fromkeys(numpy.random.default_rng(total).permutation(total).tolist())
    parts = _whole(program, 1)
    return [first * parts + part for first in dict.fromkeys(block // parts for block in blocks) for part in range(parts)]


def _block_tile(program: Program) -> tuple[Any, ...] | None:
    """The dimensions of the output's view that one block is responsible for."""
    from fireiron.machine import Block

    (output,) = program.spec.outputs
    node = next((node for node in program.tree.nodes() if node.spec.level == Block), None)
    return None if node is None else node.spec.operands[output].dims


def _evaluated(program: Program, symbols: Mapping[str, int], block: Any, values: Iterable[Any]) -> list[Any]:
    """Expressions of the block's number, with the names that the tree gave to parts of it."""
    context = program.grown.context
    environment: dict[str, Any] = {**symbols, context.block.name: block}
    for (value, _, _), var in context.names.lets.items():
        if all(one.name in environment for one in value.variables()):
            environment[var.name] = value.evaluate(environment)
    return [value.evaluate(environment) for value in values]


def _compared_blocks(
    program: Program, symbols: Mapping[str, int], arrays: Mapping[str, Any], got: Any, blocks: Sequence[int]
) -> Mapping[str, Any] | None:
    """The first wrong element among those that the blocks are responsible for."""
    import numpy

    spec, tile = program.spec, _block_tile(program)
    assert tile is not None
    (output,) = spec.outputs
    for block in blocks:
        places = []
        for dim, start, extent in zip(tile, _evaluated(program, symbols, block, [dim.base for dim in tile]), got.shape, strict=True):
            steps = numpy.zeros(1, dtype=numpy.int64)
            for mode in dim.modes:
                size, stride = int(mode.size.evaluate(symbols)), int(mode.stride.evaluate(symbols))
                steps = (steps + (numpy.arange(size) * stride)[:, None]).ravel()
            places.append((start + steps)[start + steps < extent])
        by_dim = dict(zip(spec.uses[output], places, strict=True))
        inputs = [_part(array, spec.uses[name], by_dim) for name, array in arrays.items()]
        wrong = _compared(got[numpy.ix_(*places)], spec.reference(*inputs), places)
        if wrong is not None:
            return {**wrong, "block": block, "message": f"block {block}: {wrong['message']}"}
    return None


def _part(array: Any, dims: Sequence[str], places: Mapping[str, Any]) -> Any:
    """The part of an input that the given places of the output's dimensions need."""
    for axis, dim in enumerate(dims):
        if dim in places:
            array = array.take(places[dim], axis)
    return array


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


# ---------------------------------------------------------------------------------------------- output


def _drop_output() -> None:
    """Nobody can read the rest; without this, Python complains once more when it ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _make_printable() -> None:
    """Characters that the terminal does not have are escaped instead of ending the program."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None and stream.errors == "strict":
            reconfigure(errors="backslashreplace")


def _glyphs() -> tuple[str, ...]:
    from fireiron.show import ASCII, UNICODE

    try:
        "".join(UNICODE).encode(sys.stdout.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return ASCII
    return UNICODE


def _without(message: str, access: str | None) -> str:
    """A message without the access it starts with, which has a column of its own."""
    return message.removeprefix(f"{access}: ")


def _paint(text: str, colour: int, stream: Any = None) -> str:
    """Coloured text for a terminal whose user has not set NO_COLOR."""
    stream = sys.stdout if stream is None else stream
    plain = bool(os.environ.get("NO_COLOR")) or os.environ.get("TERM") == "dumb" or not stream.isatty()
    return text if plain else f"\x1b[{colour}m{text}\x1b[0m"


def _progress(text: str) -> None:
    """One line on a terminal that is overwritten; nothing elsewhere."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)


def _print_json(value: Any) -> int:
    print(json.dumps(value, indent=2))
    return 0
