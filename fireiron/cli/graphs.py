"""The commands on a kernel graph, a file `path.py:NAME` whose NAME is a `KernelGraph`: each kernel, and what lies between kernels."""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fireiron.cli.arguments import KERNEL_FILES, STORED_FILES, loaded, text_of
from fireiron.cli.findings import finding_of_error, findings_of, print_findings, print_proofs, print_usage, proofs_of
from fireiron.cli.output import FAILED, glyphs, print_json, width_of_output, working
from fireiron.cli.report import NORMAL, Report, placed
from fireiron.errors import KERNEL_ERRORS, ArgumentError, FireironError

if TYPE_CHECKING:
    from fireiron.kernel_graph.graph import KernelGraph
    from fireiron.kernel_graph.program import GraphProgram


def graph_of(arguments: argparse.Namespace) -> KernelGraph | None:
    """Return the graph that the argument STRATEGY names; None if it names anything else.

    Without a name, it is `graph`, or the only graph of a file without `strategy`. For a compiled graph, `arguments.arch` becomes its
    target.

    Raises: an `ArgumentError` for sizes, types, storage orders and tunables, which a graph already has.
    """
    name = arguments.strategy
    if name.endswith(KERNEL_FILES):
        return _written(name, arguments)
    from fireiron.language.library import is_of_library

    if name.endswith(STORED_FILES) or is_of_library(name):
        return None
    source = loaded(arguments, name)
    from fireiron.kernel_graph.compiled import CompiledGraph
    from fireiron.kernel_graph.graph import KernelGraph

    known = vars(source.module)
    graphs = {key: value for key, value in known.items() if isinstance(value, (KernelGraph, CompiledGraph))}
    unnamed = not source.name and "strategy" not in known
    only = next(iter(graphs)) if len(graphs) == 1 else "graph"
    value = graphs.get(only if unnamed else source.name)
    if value is None:
        return None
    if isinstance(value, CompiledGraph):
        _require_target(arguments, value.program.architecture.name)
        value = value.graph
    _refuse_choices(arguments, value)
    return value


def _written(name: str, arguments: argparse.Namespace) -> KernelGraph | None:
    """Return the graph of a file in Graphene's notation; None if it is the text of one kernel."""
    from fireiron.kernel_graph.notation import is_graph_text, parse_graph

    text = text_of(name)
    if not is_graph_text(text):
        return None
    try:
        graph = parse_graph(text)
    except FireironError as error:
        raise error.located(at=name) from None
    _refuse_choices(arguments, graph)
    return graph


def _require_target(arguments: argparse.Namespace, target: str) -> None:
    """Use the target of a compiled graph. Refuse another one."""
    if arguments.arch not in (None, target):
        raise ArgumentError(f"the graph is compiled for {target}: --arch {arguments.arch} cannot be chosen", hint="remove --arch")
    arguments.arch = target


def _refuse_choices(arguments: argparse.Namespace, graph: KernelGraph) -> None:
    """Refuse options of strategies whose specs are not bound."""
    options = [(f"-{dim}", getattr(arguments, dim)) for dim in "MNK"]
    options += [
        ("--batch", arguments.batch),
        ("--dtype", arguments.dtype),
        ("--layouts", arguments.layouts),
        ("--set", arguments.set or None),
    ]
    if not getattr(arguments, "takes_run_time_sizes", False):
        options.append(("--size", arguments.sizes or None))
    given = [name for name, value in options if value is not None]
    if given:
        raise ArgumentError(
            f"{graph.name} is a graph of kernels that are bound to specs, so {', '.join(given)} cannot be chosen", legal="--arch",
            hint="choose them where the file makes the graph",
        )  # fmt: skip


def _sizes(arguments: argparse.Namespace) -> dict[str, int]:
    """Return the values of run-time sizes according to `--size`."""
    for name, value in arguments.sizes:
        if not isinstance(value, int):
            raise ArgumentError(f"--size {name}={value}: a graph has its sizes", legal=f"--size {name}=1000")
    return dict(arguments.sizes)


# ---------------------------------------------------------------------------------------------- show, explain, cost, emit


def show(graph: KernelGraph, arguments: argparse.Namespace) -> int:
    """Print the kernels, the arrays, and the tree of each kernel."""
    if arguments.events is not None:
        raise ArgumentError(f"{graph.name}: --events shows one kernel", hint=f"{arguments.strategy}.{graph.kernels[0][0]}")
    from fireiron.inspect.graphs import graph_dict, show_graph

    with working(f"building {arguments.strategy}"):
        program = graph.program(arguments.arch)
    if arguments.graphene:
        from fireiron.kernel_graph.notation import graph_text

        print(graph_text(program), end="")
        return 0
    if arguments.json:
        return print_json(graph_dict(program))
    for part in show_graph(program, glyphs(), width_of_output()):
        print(part, flush=True)
    return 0


def explain(graph: KernelGraph, arguments: argparse.Namespace) -> int:
    """Print how kernels wait for each other, and why each leaf matches."""
    if arguments.sync:
        return _synchronization(graph, arguments)
    from fireiron.inspect.graphs import explain_graph

    with working(f"explaining {arguments.strategy}"):
        explanation = explain_graph(graph, arguments.arch)
    if arguments.json:
        print_json(explanation.as_dict())
    else:
        print(explanation)
    return FAILED if explanation.refused else 0


def _synchronization(graph: KernelGraph, arguments: argparse.Namespace) -> int:
    from fireiron.inspect.graphs import dependences
    from fireiron.inspect.synchronization import synchronization, text

    with working(f"explaining {arguments.strategy}"):
        program = graph.program(arguments.arch)
        reports = {launch.name: synchronization(launch.kernel) for launch in program.launches}
        between = dependences(program)
    if arguments.json:
        return print_json(
            {"kernels": {name: report.as_dict() for name, report in reports.items()}, "between": [str(one) for one in between]}
        )
    print("\n".join(map(str, between)))
    for name, report in reports.items():
        print(f"\n{name}\n\n{text(report)}")
    return 0


def cost(graph: KernelGraph, arguments: argparse.Namespace) -> int:
    """Print the predicted time of each kernel and their sum."""
    from fireiron.cost import predict
    from fireiron.cost.gpus import as_gpu

    gpu = None if arguments.gpu is None else as_gpu(arguments.gpu)
    with working(f"predicting {arguments.strategy}"):
        program = graph.program(arguments.arch or (None if gpu is None else gpu.architecture))
        prediction = predict(program, gpu, _sizes(arguments))
    if arguments.json:
        return print_json({"strategy": arguments.strategy, **prediction.as_dict()})
    print(f"{graph}\n{prediction}")
    return 0


# ---------------------------------------------------------------------------------------------- check


def check(graph: KernelGraph, arguments: argparse.Namespace) -> int:
    """Print the findings between kernels, then those of each kernel; the status is 1 if one is an error."""
    with working(f"checking {arguments.strategy}"):
        program, parts = _checked(graph, arguments)
    findings = [finding for part in parts.values() for finding in part]
    counts = {severity: sum(finding.severity == severity for finding in findings) for severity in ("error", "warning", "note")}
    if arguments.json:
        kernels = {name or "between": [finding.as_dict() for finding in part] for name, part in parts.items()}
        print_json({"strategy": arguments.strategy, "counts": counts, "findings": kernels})
        return FAILED if counts["error"] else 0
    for name, part in parts.items():
        print(f"\n{name}" if name else "between kernels" + ("" if part else ": no error"))
        print_findings(part)
        if name and program is not None and name in program.kernels:
            print_usage(program.kernels[name])
            print_proofs(proofs_of(program.kernels[name], part))
    print(", ".join(f"{number} {severity}{'' if number == 1 else 's'}" for severity, number in counts.items()))
    return FAILED if counts["error"] else 0


def _checked(graph: KernelGraph, arguments: argparse.Namespace) -> tuple[GraphProgram | None, Mapping[str, Sequence[Any]]]:
    """Return the program, and the findings between kernels (with the name "") and of each kernel."""
    try:
        program = graph.program(arguments.arch)
        parts = {name: findings_of(part) for name, part in program.kernels.items()}
        legal = all(finding.severity != "error" for part in parts.values() for finding in part)
        return program, {"": list(program.between()) if legal else [], **parts}
    except KERNEL_ERRORS as error:
        return None, {"": [finding_of_error(error)]}


# ---------------------------------------------------------------------------------------------- run


def run(graph: KernelGraph, arguments: argparse.Namespace) -> int:
    """Call the graph on random data, and compare what each kernel writes with its spec on the arrays that it read."""
    from fireiron.gpu import launch
    from fireiron.gpu.kernel import target_for
    from fireiron.measure.graph_runs import graph_inputs, graph_sizes, graph_wrong, with_all_results

    if arguments.blocks is not None:
        raise ArgumentError(f"--blocks: all blocks of {graph.name} are executed, because later kernels read their results")
    gpu = not arguments.simulate and launch.gpu_available()
    whole = with_all_results(graph)
    with working(f"building {arguments.strategy}"):
        call = whole.compile(arguments.arch or (target_for(launch.device_arch()) if gpu else None))
    sizes = graph_sizes(whole, _sizes(arguments))
    seed = time.time_ns() % 2**32 if arguments.seed is None else arguments.seed
    say = Report(arguments.json)
    say("graph", str(graph).splitlines()[0], **({"sizes": sizes} if sizes else {}))
    for name, spec in graph.specs.items():
        say(name, str(spec))
    say("target", call.program.architecture.name)
    say("seed", seed)
    say("numbers", NORMAL, plain="normal")
    arrays = graph_inputs(whole, sizes, seed)
    start = time.monotonic()
    wrong, judges = graph_wrong(call.program, sizes, arrays, _called_on_gpu(call, sizes) if gpu else _called(call, sizes))
    say(
        "ran", f"{len(call.program.launches)} launches, " + ("on the GPU" if gpu else f"in the simulator, {time.monotonic() - start:.2f} s")
    )
    for name, judge in judges.items():
        if judge.closest:
            say(f"{name} errors", "; ".join(map(judge.summary, judge.closest)), plain=judge.as_dict())
    return say.verdict(wrong)


def _called(call: Any, sizes: Mapping[str, int]) -> Any:
    """Return a function that calls a graph in the simulator."""
    undetermined = {name: sizes[name] for name in call.undetermined if name in sizes}
    return lambda *arrays: call(*arrays, **undetermined)


def _called_on_gpu(call: Any, sizes: Mapping[str, int]) -> Any:
    """Return a function that calls a graph on the GPU, from NumPy arrays to NumPy arrays."""
    import cupy

    def called(*arrays: Any) -> Any:
        device = [placed(cupy, call.program, sizes, name, array) for name, array in zip(call.inputs, arrays, strict=True)]
        results = _called(call, sizes)(*device)
        return tuple(map(cupy.asnumpy, results)) if isinstance(results, tuple) else cupy.asnumpy(results)

    return called


# ---------------------------------------------------------------------------------------------- files


def emit(graph: KernelGraph, arguments: argparse.Namespace) -> str:
    """Return the text of `fireiron emit`."""
    if arguments.form == "cuda":
        return graph.program(arguments.arch).cuda
    return "\n".join(f"// {kernel.program.name}\n{kernel.asm[arguments.form]}" for kernel in graph.compile(arguments.arch).kernels)


__all__ = ["check", "cost", "emit", "explain", "graph_of", "run", "show"]
