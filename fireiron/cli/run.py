"""`fireiron run`: execute a kernel and compare the result with the meaning of its spec."""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from fireiron.cli import graphs
from fireiron.cli.arguments import Add, add_strategy, natural, positive, run_time_sizes, scalar, strategy_of, takes_run_time_sizes
from fireiron.cli.output import progress, working
from fireiron.cli.report import EXACT, INTEGERS, NORMAL, Report, placed
from fireiron.cli.texts import examined, print_own_instructions
from fireiron.errors import ArgumentError

if TYPE_CHECKING:
    from fireiron.compiler import Program
    from fireiron.measure.judge import Judge
    from fireiron.spec import Spec


def register(add: Add) -> None:
    """Add the command."""
    command = add("run", run, "run on the GPU if there is one, else in the simulator; compare with the spec's meaning in NumPy")
    add_strategy(command)
    command.add_argument("--simulate", action="store_true", help="use the simulator even if there is a GPU")
    command.add_argument(
        "--inputs",
        choices=("auto", "normal"),
        default="auto",
        help="normally distributed numbers, each element checked against its error bound; auto: small integers where the result is exact",
    )
    command.add_argument("--seed", type=natural, help="seed of the random data (default: a new one, which is printed)")
    command.add_argument("--blocks", type=positive, metavar="N", help="simulate only a sample of N blocks")
    command.add_argument(
        "--scalar", dest="scalars", action="append", default=[], type=scalar, metavar="alpha=2.5", help="the value of a scalar (repeatable)"
    )
    takes_run_time_sizes(command)


def run(arguments: argparse.Namespace) -> int:
    """Run the kernel on random data. With small integers, the results must be exact.

    Definitions of several steps, and `--inputs normal`, use normally distributed numbers. Each element then has a separate error bound.
    """
    graph = graphs.graph_of(arguments)
    if graph is not None:
        if arguments.scalars:
            raise ArgumentError("--scalar: a kernel graph takes no scalars here", hint="run one of its kernels: graph.kernels['NAME']")
        return graphs.run(graph, arguments)
    from fireiron.gpu import launch
    from fireiron.gpu.kernel import target_for
    from fireiron.measure.simulated import data_for, integer_operands, simulated, symbol_values

    with working(f"building {arguments.strategy}"):
        gpu = not arguments.simulate and launch.gpu_available()
        if gpu and arguments.blocks is not None:
            raise ArgumentError(
                "--blocks selects blocks to simulate; this run uses the GPU, which executes all blocks",
                hint="add --simulate, or remove --blocks",
            )
        architecture = arguments.arch or (target_for(launch.device_arch()) if gpu else None)
        strategy = strategy_of(arguments, architecture=architecture)
        program = strategy.program(arguments.arch or architecture)
        print_own_instructions(program)  # report errors before the first line of output
        gpu = gpu and program.spec.level.gpus is None  # the GPUs of a node need a process each
    symbols = symbol_values(program.spec, run_time_sizes(arguments, program.spec))
    seed = time.time_ns() % 2**32 if arguments.seed is None else arguments.seed
    say = Report(arguments.json)
    say("strategy", arguments.strategy)
    say("spec", str(program.spec), **({"sizes": symbols} if symbols else {}))
    say(
        "operands",
        ", ".join(
            f"{name} {view.dtype}" + (f" {view.tensor.array.layout}" if len(view.dims) > 1 else "")
            for name, view in program.spec.operands.items()
            if not view.memory.is_coordinate
        ),
    )
    say("target", program.architecture.name)
    say("seed", seed)
    arrays, judge = data_for(program, symbols, seed, arguments.inputs == "normal", dict(arguments.scalars))
    exact = () if arguments.inputs == "normal" else integer_operands(program.spec)
    bounded = INTEGERS.format(", ".join(exact)) if exact else NORMAL
    say("numbers", EXACT if judge is None else bounded, plain="exact" if judge is None else "normal")
    if scalars := {name: arrays[name].item() for name in arrays if program.spec.operands[name].memory.by_value}:
        say("scalars", ", ".join(f"{name} {value:.6g}" for name, value in scalars.items()), plain=scalars)
    untested = ""
    if gpu:
        wrong = _on_gpu(program, symbols, arrays, judge, say)
    else:
        texts = examined(program)
        if texts is not None and not (texts.compiled or texts.executed):
            untested = f"the text of {', '.join(texts.names)} was neither compiled nor executed"
        if texts is not None:
            say("micro-kernel", texts.simulated)
        if texts is not None and texts.wrong is not None:
            wrong = {"message": texts.wrong, "error": "micro-kernel" if texts.error is None else type(texts.error).__name__}
        else:
            wrong = simulated(program, symbols, arrays, judge, arguments.blocks, say, progress)
    if judge is not None and judge.closest:
        say("errors", "; ".join(map(judge.summary, judge.closest)), plain=judge.as_dict())
    return say.verdict(wrong, untested)


def _on_gpu(
    program: Program, symbols: Mapping[str, int], arrays: Mapping[str, Any], judge: Judge | None, say: Report
) -> Mapping[str, Any] | None:
    """Run the kernel on the GPU. Return the first wrong element; None if the result is correct."""
    import cupy

    from fireiron.gpu.arguments import returned
    from fireiron.gpu.kernel import CompiledKernel
    from fireiron.measure.simulated import first_value, first_wrong, shapes_of

    kernel, spec = CompiledKernel(program), program.spec
    device = {name: placed(cupy, program, symbols, name, array) for name, array in arrays.items()}
    shapes = shapes_of(spec, symbols)
    results = {name: placed(cupy, program, symbols, name, None) for name in spec.outputs}
    first = first_value(spec, symbols)
    for name, result in results.items():
        result[...] = cupy.full(shapes[name], 77 if first is None else first, dtype=result.dtype)
    out = returned(tuple(results.values()))
    sizes = {name: value for name, value in symbols.items() if name in _undetermined_sizes(spec, symbols)}
    kernel(*device.values(), out=out, **sizes)
    got = {name: cupy.asnumpy(result) for name, result in results.items()}
    start, stop = cupy.cuda.Event(), cupy.cuda.Event()
    start.record()
    kernel(*device.values(), out=out, **sizes)
    stop.record()
    stop.synchronize()
    say("ran on", f"GPU, {cupy.cuda.get_elapsed_time(start, stop) * 1000:.1f} us")
    return first_wrong(spec, got, arrays, first, judge)


def _undetermined_sizes(spec: Spec, symbols: Mapping[str, int]) -> set[str]:
    """Return the run-time sizes that no shape of an input determines."""
    from fireiron.gpu.arguments import array_shape

    from_shapes = {str(size) for name in spec.inputs for size in array_shape(spec, name)}
    return {name for name in symbols if name not in from_shapes}
