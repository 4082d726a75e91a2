"""Check that a kernel graph computes what its specs specify: one call on random data, then each kernel is judged by its own inputs.

Each kernel is compared with its spec on the arrays that it read in this call. So errors of earlier kernels need no bounds, and an error is
that of one kernel. All arrays between kernels are results of the call that is checked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import attrs

from fireiron.errors import ArgumentError, SimulationError
from fireiron.kernel_graph.graph import KernelGraph
from fireiron.measure.inputs import random_inputs
from fireiron.measure.judge import Judge
from fireiron.measure.simulated import first_value, first_wrong, symbol_values
from fireiron.spec import symbols_of

if TYPE_CHECKING:
    from fireiron.compiler import Program
    from fireiron.kernel_graph.program import GraphProgram


def graph_sizes(graph: KernelGraph, given: Mapping[str, int]) -> dict[str, int]:
    """Return values of all run-time sizes: the given values, or else about 257. Raises: `ArgumentError` for an unknown or illegal value."""
    values: dict[str, int] = {}
    known = {symbol.name for spec in graph.specs.values() for symbol in symbols_of(spec)}
    for name in given:
        if name not in known:
            raise ArgumentError(f"--size {name}: {graph.name} has no such size", legal=sorted(known) or "none")
    for spec in graph.specs.values():
        own = {symbol.name for symbol in symbols_of(spec)}
        values |= symbol_values(spec, {name: value for name, value in {**values, **given}.items() if name in own})
    return values


def with_all_results(graph: KernelGraph) -> KernelGraph:
    """Return the graph with all arrays that its kernels write as results, workspaces included."""
    return attrs.evolve(graph, outputs=tuple(f"{kernel}.{name}" for kernel, spec in graph.specs.items() for name in spec.outputs))


def graph_inputs(graph: KernelGraph, sizes: Mapping[str, int], seed: int) -> dict[str, Any]:
    """Return random arguments by array of the graph, in order. An argument of several kernels has the values for the first of them.

    Raises: `ArgumentError` if a kernel adds to the initial values of its outputs, for which no error bounds are known.
    """
    import numpy

    generator = numpy.random.default_rng(seed)
    values: dict[str, Any] = {}
    for kernel, spec in graph.specs.items():
        own = own_sizes(graph, kernel, sizes)
        if first_value(spec, own) is not None:
            raise ArgumentError(f"run: {kernel} adds to an output, or writes a part of it, so its results depend on initial values",
                                hint=f"run the kernel alone: FILE.py:{graph.name}.{kernel}")  # fmt: skip
        for name, array in random_inputs(spec, own, generator).items():
            if (operand := f"{kernel}.{name}") in graph.inputs:
                values[operand] = array
    return {array: values[array] for array in graph.inputs}


def own_sizes(graph: KernelGraph, kernel: str, sizes: Mapping[str, int]) -> dict[str, int]:
    """Return the run-time sizes and strides of one kernel."""
    own = {symbol.name for symbol in symbols_of(graph.specs[kernel])}
    return {name: value for name, value in sizes.items() if name in own}


def judges_of(program: GraphProgram, sizes: Mapping[str, int], values: Mapping[str, Any]) -> dict[str, Judge]:
    """Return the judge of each kernel; `values` are all arrays of a call."""
    graph = program.graph
    judges = {}
    for kernel, spec in graph.specs.items():
        arrays = {name: values[graph.arrays.of[f"{kernel}.{name}"]] for name in spec.inputs}
        given = all(graph.arrays.of[f"{kernel}.{name}"] in graph.inputs for name in spec.inputs)
        judges[kernel] = Judge(spec, own_sizes(graph, kernel, sizes), arrays, _accumulator(program.kernels[kernel]), random=given)
    return judges


def _accumulator(program: Program) -> Any:
    from fireiron.ir import execs

    dtypes = [stmt.spec.C.dtype for launch in program.launches for stmt, _ in execs(launch.kernel.body) if stmt.spec.contracts]
    return min(dtypes, key=lambda dtype: dtype.mantissa, default=None)


def graph_wrong(
    program: GraphProgram, sizes: Mapping[str, int], arrays: Mapping[str, Any], call: Callable[..., Any]
) -> tuple[Mapping[str, Any] | None, dict[str, Judge]]:
    """Call a compiled graph whose results are all arrays (`with_all_results`), and return the first wrong element, with the judges.

    `call` takes the arguments in order and returns NumPy arrays in the order of the results.
    """
    graph = program.graph
    try:
        results = call(*arrays.values())
    except SimulationError as error:
        return {"message": str(error), "error": type(error).__name__}, {}
    results = (results,) if len(graph.outputs) == 1 else results
    values = {**arrays, **dict(zip(graph.outputs, results, strict=True))}
    judges = judges_of(program, sizes, values)
    for kernel, judge in judges.items():
        spec = graph.specs[kernel]
        got = {name: values[f"{kernel}.{name}"] for name in spec.outputs}
        wrong = first_wrong(spec, got, judge.arrays, None, judge)
        if wrong is not None:
            return {**wrong, "kernel": kernel, "message": f"{kernel}: {wrong['message']}"}, judges
    return None, judges


__all__ = ["graph_inputs", "graph_sizes", "graph_wrong", "judges_of", "own_sizes", "with_all_results"]
