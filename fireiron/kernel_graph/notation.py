"""Kernel graphs in Graphene's notation: the connections, then the text of each kernel.

graph   "Graph" name
        {"Connect" operand "=" array}       combine.P = split.P
        "Outputs" array, ...
        {"GraphKernel" name newline kernel} a kernel, as `fireiron.graphene` prints it
"""

from __future__ import annotations

import re
from typing import Final

from fireiron.errors import FireironError, LayoutError
from fireiron.graphene import graphene_text, parse_strategy
from fireiron.kernel_graph.graph import KernelGraph
from fireiron.kernel_graph.program import GraphProgram, of_kernel

_HEAD: Final = re.compile(r"^Graph (\w+)$")
_CONNECT: Final = re.compile(r"^Connect (\w+\.\w+) = (\w+\.\w+)$")
_KERNEL: Final = re.compile(r"^GraphKernel (\w+)$")


def graph_text(program: GraphProgram) -> str:
    """Return a graph on a target as text. Raises: a LayoutError for a kernel that the notation cannot express."""
    graph = program.graph
    lines = [
        f"Graph {graph.name}",
        *(f"Connect {target} = {array}" for target, array in graph.connect),
        f"Outputs {', '.join(graph.outputs)}",
    ]
    for name, kernel in program.kernels.items():
        with of_kernel(graph.name, name):
            lines += [f"GraphKernel {name}", graphene_text(kernel).rstrip("\n")]
    return "\n".join(lines) + "\n"


def is_graph_text(text: str) -> bool:
    """Return whether a text in Graphene's notation is that of a graph."""
    return _HEAD.match(text.partition("\n")[0].rstrip()) is not None


def parse_graph(text: str) -> KernelGraph:
    """Return the graph of a text that `graph_text` printed, whose kernels have the printed programs as strategies.

    Raises: a LayoutError with the line of an error; the errors of `KernelGraph`.
    """
    name, kernel, outputs = "", "", tuple[str, ...]()
    connect, parts, starts = dict[str, str](), dict[str, list[str]](), dict[str, int]()
    for number, line in enumerate(text.splitlines(), 1):
        plain = line.rstrip()
        if match := _KERNEL.match(plain):
            kernel = match[1]
            if kernel in parts:
                raise LayoutError(f"line {number}: two kernels are called {kernel}", got=plain)
            parts[kernel], starts[kernel] = [], number
        elif kernel:
            parts[kernel].append(line)
        elif not name and (match := _HEAD.match(plain)):
            name = match[1]
        elif name and (match := _CONNECT.match(plain)):
            connect[match[1]] = match[2]
        elif name and plain.startswith("Outputs "):
            outputs = tuple(part.strip() for part in plain.removeprefix("Outputs ").split(","))
        elif plain:
            raise LayoutError(
                f"line {number}: not a line of a graph", got=plain, legal="Graph NAME, Connect A.X = B.Y, Outputs A.X, GraphKernel NAME"
            )
    if not name or not parts:
        raise LayoutError("the text is not a graph", legal="Graph NAME, then GraphKernel NAME with the text of a kernel")
    kernels = {}
    for key, lines in parts.items():
        try:
            kernels[key] = parse_strategy("\n".join(lines) + "\n")
        except FireironError as error:
            raise error.located(within=f"the kernel {key}, whose text begins after line {starts[key]}") from None
    return KernelGraph(name, kernels, connect, outputs)


__all__ = ["graph_text", "is_graph_text", "parse_graph"]
