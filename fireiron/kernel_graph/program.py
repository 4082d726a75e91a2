"""`GraphProgram`: a kernel graph on a target, with the program of each kernel, before machine code is needed."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import attrs

from fireiron.check.finding import Finding, Findings, ordered
from fireiron.check.launch_sequence import check_sequence
from fireiron.compiler import Launch, Program
from fireiron.display import Displayed
from fireiron.errors import ArgumentError, DecompositionError, FireironError
from fireiron.gpu import programs
from fireiron.ir import Buffer, Kernel
from fireiron.ir.effects.dependent_launch import DependentLaunch
from fireiron.spec import Spec, sizes_of, symbols_of
from fireiron.values.expr import FALSE, Var
from fireiron.values.machine import DType, as_architecture

if TYPE_CHECKING:
    from fireiron.kernel_graph.graph import KernelGraph
    from fireiron.values.machine import Architecture


@attrs.frozen(eq=False)
class GraphLaunch:
    """A launch of a kernel graph.

    Attributes:
        name: the kernel, `split`; with the name of the launch for a launch before the last one of a kernel, `split.A`.
        program: the program of the launch.
        arrays: the array of the graph for each operand; a temporary of the kernel has the name of the kernel, too.
    """

    name: str
    program: Program = attrs.field(repr=False)
    arrays: Mapping[str, str]

    @functools.cached_property
    def kernel(self) -> Kernel:
        """The final kernel IR."""
        return programs.recalled(self.program).ir

    @property
    def spec(self) -> Spec:
        """The spec of the launch, whose arrays have the names of its operands."""
        return self.program.inner

    @property
    def dependent(self) -> bool:
        """Whether it starts before the previous launch ends (`programmatic_launch`)."""
        return self.kernel.effects[DependentLaunch].enabled


@attrs.frozen(eq=False, slots=False)
class GraphProgram(Displayed):
    """A kernel graph on a target: `kernels` are the programs by the names of the kernels, in order.

    It has the interface of a `Program` for callers: `fireiron.gpu.interface`.
    """

    graph: KernelGraph
    architecture: Architecture
    kernels: Mapping[str, Program]

    def __repr__(self) -> str:
        return f"<program {self.graph.name} of {len(self.kernels)} kernels for {self.architecture}: {', '.join(self.kernels)}>"

    @functools.cached_property
    def launches(self) -> tuple[GraphLaunch, ...]:
        """All launches, in order."""
        of = self.graph.arrays.of
        return tuple(
            GraphLaunch(
                _title(kernel, launch),
                launch.program,
                {name: of.get(f"{kernel}.{array}", f"{kernel}.{array}") for name, array in launch.arrays.items()},
            )
            for kernel, program in self.kernels.items()
            for launch in program.launches
        )

    @property
    def cuda(self) -> str:
        """CUDA C++: one unit with all kernels, in their order."""
        from fireiron import cuda as printer

        return printer.emit(*(launch.program.ir for launch in self.launches))

    # ------------------------------------------------------------------------------------------ checks

    def between(self) -> Findings:
        """Return the errors between kernels: what they pass to each other, and how they wait for each other."""
        return ordered(check_sequence(self.launches, self.graph.inputs, self.graph.outputs))

    def require_legal(self) -> None:
        """Refuse a graph with an error between its kernels. Raises: the errors of the kernels; a DecompositionError."""
        for finding in self.between():
            raise DecompositionError(finding.message, within=self.graph.name)

    def check(self) -> Findings:
        """Return the findings about each kernel and about what lies between them; those about a kernel name it.

        Raises: the errors of lowering a kernel, with its name.
        """
        from fireiron.check import check

        findings: list[Finding] = []
        for launch in self.launches:
            with of_kernel(self.graph.name, launch.name):
                findings += [attrs.evolve(finding, details={**finding.details, "kernel": launch.name}) for finding in check(launch.kernel)]
        return ordered((*self.between(), *findings))

    # ------------------------------------------------------------------------------------------ the interface for callers

    @property
    def name(self) -> str:
        """The name of the graph."""
        return self.graph.name

    @functools.cached_property
    def inputs(self) -> tuple[str, ...]:
        """The names of the arguments, in order."""
        return tuple(self.graph.arrays.names[array] for array in self.graph.inputs)

    @functools.cached_property
    def outputs(self) -> tuple[str, ...]:
        """The names of the results, in order."""
        return tuple(self.graph.arrays.names[array] for array in self.graph.outputs)

    def operand_of(self, name: str) -> tuple[str, str]:
        """Return the kernel and the operand of an argument or a result."""
        for array, known in self.graph.arrays.names.items():
            if known == name:
                kernel, _, operand = array.partition(".")
                return kernel, operand
        raise ArgumentError(f"{self.graph.name} has no argument or result {name}", legal=(*self.inputs, *self.outputs))

    def stored(self, name: str) -> Buffer:
        """Return an argument or a result as the caller stores it."""
        kernel, operand = self.operand_of(name)
        return self.kernels[kernel].stored(operand)

    def shape(self, name: str) -> tuple[Any, ...]:
        """Return the extents of an argument or a result, as expressions."""
        kernel, operand = self.operand_of(name)
        return self.kernels[kernel].shape(operand)

    @functools.cached_property
    def numbers(self) -> Mapping[str, DType]:
        """The arguments that are numbers passed by value, with their types."""
        views = {name: self.graph.specs[kernel].operands[operand] for name in self.inputs for kernel, operand in [self.operand_of(name)]}
        return {name: view.dtype for name, view in views.items() if view.memory.by_value}

    @functools.cached_property
    def sizes(self) -> tuple[Var, ...]:
        """The run-time sizes, without strides, in the order of their first use."""
        return tuple(dict.fromkeys(size for spec in self.graph.specs.values() for size in sizes_of(spec)))

    @functools.cached_property
    def symbols(self) -> tuple[Var, ...]:
        """The run-time sizes and strides, in the order of their first use."""
        return tuple(dict.fromkeys(symbol for spec in self.graph.specs.values() for symbol in symbols_of(spec)))

    @property
    def adds_to(self) -> tuple[str, ...]:
        """The results to whose initial values a kernel adds."""
        names = self.graph.arrays.names
        adding = {kernel for kernel, spec in self.graph.specs.items() if spec.atomic or spec.accumulate != FALSE}
        return tuple(names[array] for array in self.graph.outputs if array.partition(".")[0] in adding)

    def symbols_for(self, name: str, known: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return known sizes with the strides of packed arrays, for the storage of an argument or a result."""
        kernel, operand = self.operand_of(name)
        return self.kernels[kernel].symbols_for(operand, known)


def _title(kernel: str, launch: Launch) -> str:
    return f"{kernel}.{launch.name}" if launch.name else kernel


@contextlib.contextmanager
def of_kernel(graph: str, kernel: str) -> Iterator[None]:
    """Add the name of a kernel to the errors of the enclosed block."""
    try:
        yield
    except FireironError as error:
        raise error.located(within=f"the kernel {kernel} of {graph}").with_traceback(None) from None


def program_of(graph: KernelGraph, architecture: Architecture | str | None) -> GraphProgram:
    """Return the program of a graph. None: the newest of the default targets of its strategies."""
    target = as_architecture(newest(graph) if architecture is None else architecture)
    kernels: dict[str, Program] = {}
    for name, strategy in graph.kernels:
        with of_kernel(graph.name, name):
            kernels[name] = strategy.program(target, name=f"{graph.name}_{name}")
    return GraphProgram(graph, target, kernels)


def newest(graph: KernelGraph) -> str:
    """Return the newest of the default targets of the strategies."""
    targets = [strategy.target for _, strategy in graph.kernels]
    return max(targets, key=lambda target: (as_architecture(target).capability, as_architecture(target).name))


__all__ = ["GraphLaunch", "GraphProgram", "newest", "of_kernel", "program_of"]
