"""Show and explain kernel graphs: their arrays, their kernels, and what each kernel waits for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import attrs

from fireiron.check.launch_sequence import reads, writes
from fireiron.errors import FireironError
from fireiron.frozen import frozen
from fireiron.inspect.explain import Explanation, explain
from fireiron.inspect.explain import text as text_of_kernel
from fireiron.inspect.show import UNICODE, show
from fireiron.inspect.show import as_dict as kernel_dict
from fireiron.ir.effects.dependent_launch import DependentLaunch
from fireiron.kernel_graph.graph import KernelGraph
from fireiron.kernel_graph.program import GraphLaunch, GraphProgram, of_kernel
from fireiron.values.expr import constant
from fireiron.values.tensor import Tensor

HEADS = ("array", "role", "shape", "type", "storage", "bytes", "written by", "read by")
"""The columns of the table of arrays."""


@frozen
class ArrayRow:
    """An array of a graph: what callers and kernels do with it. `bytes` is text, since sizes may be known only at run time."""

    name: str
    role: str
    shape: str
    dtype: str
    storage: str
    bytes: str
    writer: str
    readers: tuple[str, ...]

    @property
    def cells(self) -> tuple[str, ...]:
        """Return the cells of the table of arrays."""
        return self.name, self.role, self.shape, self.dtype, self.storage, self.bytes, self.writer, ", ".join(self.readers)


def array_rows(graph: KernelGraph) -> tuple[ArrayRow, ...]:
    """Return the arrays of a graph: arguments, workspaces and results, in the order of their first use."""
    of, specs = graph.arrays.of, graph.specs
    rows = []
    for array in dict.fromkeys(of.values()):
        kernel, _, operand = array.partition(".")
        view = specs[kernel].operands[operand]
        if view.memory.is_coordinate:
            continue
        number = view.memory.by_value
        role = "number" if number else "argument" if array in graph.inputs else "result" if array in graph.outputs else "workspace"
        readers = tuple(name for name, spec in specs.items() if any(of[f"{name}.{read}"] == array for read in spec.inputs))
        shape = " x ".join(map(str, view.tensor.array.shape))
        layout, size = ("by value", "") if number else (str(view.tensor.array.layout), _bytes(view.tensor.array))
        writer = "" if array in graph.inputs else kernel
        rows.append(ArrayRow(graph.label(array), role, shape, view.dtype.name, layout, size, writer, readers))
    return tuple(rows)


def _bytes(array: Tensor) -> str:
    """Return the bytes of an array, as text."""
    elements = constant(array.storage().extent)
    return str((array.storage().extent if elements is None else elements) * array.dtype.bytes)


def workspace_bytes(graph: KernelGraph) -> int | None:
    """Return the bytes of all workspaces; None if they depend on run-time sizes."""
    sizes = [row.bytes for row in array_rows(graph) if row.role == "workspace"]
    return sum(map(int, sizes)) if all(size.isdigit() for size in sizes) else None


# ---------------------------------------------------------------------------------------------- show


def show_graph(program: GraphProgram, glyphs: tuple[str, ...] = UNICODE, columns: int | None = None) -> Iterator[str]:
    """Yield the text of `fireiron show` for a graph in parts: its kernels, its arrays, then each kernel."""
    from tabulate import tabulate

    graph = program.graph
    yield f"{graph}\n"
    yield tabulate([row.cells for row in array_rows(graph)], headers=HEADS, disable_numparse=True, colalign=(*["left"] * 5, "right"))
    for name, part in program.kernels.items():
        yield f"\n{name}: {'-' * 40}\n"
        with of_kernel(graph.name, name):
            yield from show(part, glyphs, columns)


def graph_dict(program: GraphProgram) -> dict[str, Any]:
    """Return the arrays and the kernels as plain values, for JSON."""
    graph = program.graph
    head = {
        "graph": graph.name,
        "architecture": program.architecture.name,
        "inputs": list(program.inputs),
        "outputs": list(program.outputs),
    }
    arrays = [attrs.asdict(row) for row in array_rows(graph)]
    kernels = {}
    for name, part in program.kernels.items():
        with of_kernel(graph.name, name):
            kernels[name] = kernel_dict(part)
    return {**head, "arrays": arrays, "connect": dict(graph.connect), "kernels": kernels}


# ---------------------------------------------------------------------------------------------- explain


@frozen
class Dependence:
    """How a launch is ordered after an earlier one whose arrays it reads.

    `waits` is empty if the launch starts after the previous one has ended; otherwise it states where the launch waits.
    """

    launch: str
    writer: str
    arrays: tuple[str, ...]
    waits: str

    def __str__(self) -> str:
        after = f"after {self.writer} has ended" if not self.waits else self.waits
        return f"{self.launch} reads {', '.join(self.arrays)} of {self.writer}, {after}"


def dependences(program: GraphProgram) -> tuple[Dependence, ...]:
    """Return which launch reads arrays of which, in order. Raises: the errors of lowering a kernel."""
    result: list[Dependence] = []
    writers: dict[str, GraphLaunch] = {}
    for launch in program.launches:
        by_writer: dict[str, list[str]] = {}
        for name in reads(launch.kernel):
            array = launch.arrays.get(name, "")
            if array in writers:
                by_writer.setdefault(writers[array].name, []).append(program.graph.label(array))
        result += [Dependence(launch.name, writer, tuple(arrays), _waits(launch)) for writer, arrays in by_writer.items()]
        writers |= {launch.arrays[name]: launch for name in writes(launch.kernel) if name in launch.arrays}
    return tuple(result)


def _waits(launch: GraphLaunch) -> str:
    """Return where a launch with programmatic dependent launch waits; empty for another launch."""
    dependent = launch.kernel.effects[DependentLaunch]
    if not dependent.enabled:
        return ""
    early = f" except {', '.join(dependent.no_wait)}" if dependent.no_wait else ""
    return f"which may not have ended when {launch.name} starts: griddepcontrol.wait precedes all accesses{early}"


@attrs.frozen(eq=False)
class GraphExplanation:
    """The explanation of each kernel, and how kernels wait for each other; `refused` are the errors between them, or of a kernel."""

    graph: KernelGraph
    kernels: Mapping[str, Explanation]
    dependences: tuple[Dependence, ...]
    refused: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        kernels = {
            name: {
                "leaves": [leaf.as_dict() for leaf in explanation.leaves],
                "refused": None if explanation.refused is None else str(explanation.refused),
            }
            for name, explanation in self.kernels.items()
        }
        ordered = [attrs.asdict(dependence) for dependence in self.dependences]
        return {"graph": self.graph.name, "kernels": kernels, "dependences": ordered, "refused": list(self.refused)}

    def __str__(self) -> str:
        parts = [str(self.graph), "\n".join(map(str, self.dependences)) or "no kernel reads an array of another one"]
        parts += [f"refused: {reason}" for reason in self.refused]
        parts += [f"{name}: {text_of_kernel(explanation)}" for name, explanation in self.kernels.items()]
        return "\n\n".join(parts)


def explain_graph(graph: KernelGraph, architecture: Any = None) -> GraphExplanation:
    """Explain the leaves of each kernel, and how kernels wait for each other.

    Raises: the error of an illegal step of a kernel before its leaves, with the name of the kernel.
    """
    program = graph.program(architecture)
    kernels = {}
    for name, strategy in graph.kernels:
        with of_kernel(graph.name, name):
            kernels[name] = explain(strategy, program.architecture)
    refused = [f"{name}: {explanation.refused}" for name, explanation in kernels.items() if explanation.refused is not None]
    if refused:
        return GraphExplanation(graph, kernels, (), tuple(refused))
    try:
        between = [finding.message for finding in program.between()]
    except FireironError as error:
        return GraphExplanation(graph, kernels, (), (str(error),))
    return GraphExplanation(graph, kernels, dependences(program), tuple(between))


__all__ = [
    "HEADS",
    "ArrayRow",
    "Dependence",
    "GraphExplanation",
    "array_rows",
    "dependences",
    "explain_graph",
    "graph_dict",
    "show_graph",
    "workspace_bytes",
]
