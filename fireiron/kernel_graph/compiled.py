"""Compiled kernel graphs: calls execute all kernels in order, in the simulator or on one stream of a GPU."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs

from fireiron.display import Displayed
from fireiron.errors import ArgumentError, LaunchError
from fireiron.gpu.arguments import host_view, returned, share_memory
from fireiron.gpu.arrays import ArrayView, library_of
from fireiron.gpu.interface import undetermined
from fireiron.gpu.kernel import CompiledKernel, UpstreamKernel, architecture_here
from fireiron.kernel_graph.program import of_kernel, program_of
from fireiron.operators import traced_by_jax, untraced
from fireiron.spec import sizes_of, symbols_of
from fireiron.values.expr import Var

if TYPE_CHECKING:
    from fireiron.gpu.interface import Callee
    from fireiron.kernel_graph.graph import KernelGraph
    from fireiron.kernel_graph.prepared import PreparedGraph
    from fireiron.kernel_graph.program import GraphProgram
    from fireiron.spec import Spec
    from fireiron.values.machine import Architecture

Places = tuple[int, ...]
"""Positions in the list of a call's arrays: the arguments, then the outputs of all kernels in order."""


@attrs.frozen(eq=False)
class Step:
    """A kernel of the graph, with the positions of its inputs and outputs.

    `sizes` are the run-time sizes that it may be given by name; `needed` are those that none of its inputs determines.
    """

    name: str
    kernel: CompiledKernel
    takes: Places
    fills: Places
    sizes: frozenset[str]
    needed: frozenset[str]

    def run(self, call_arrays: list[Any], stream: Any, sizes: Mapping[str, int], solved: Mapping[str, int]) -> None:
        """Launch, and store its new outputs in the list."""
        own = self.own_sizes(sizes, solved)
        arrays = tuple([call_arrays[place] for place in self.takes])
        outs = tuple([call_arrays[place] for place in self.fills])
        result = self.kernel(*arrays, out=self.out(arrays, outs, stream, own), stream=stream, **own)
        for place, array in zip(self.fills, (result,) if len(self.fills) == 1 else result, strict=True):
            call_arrays[place] = array

    def own_sizes(self, sizes: Mapping[str, int], solved: Mapping[str, int]) -> dict[str, int]:
        """Return the run-time sizes that the kernel takes by name."""
        own = {name: value for name, value in sizes.items() if name in self.sizes}
        return own | {name: solved[name] for name in self.needed if name in solved}

    def out(self, arrays: tuple[Any, ...], outs: tuple[Any, ...], stream: Any, sizes: Mapping[str, int]) -> Any:
        """Return the arrays that it writes; None if it allocates all of them."""
        given = [out is not None for out in outs]
        if not any(given):
            return None
        return returned(outs if all(given) else self.kernel.completed(arrays, outs, stream, sizes))


@attrs.frozen(eq=False, slots=False)
class CompiledGraph(Displayed):
    """A callable program of several kernels.

    `graph(a, b)` takes the arrays and numbers of `inputs` in order and returns the result, or a tuple of several in the order of `outputs`.
    `out` is an array, or a tuple or a mapping by name for several. Run-time sizes are read from the arrays; a size that no argument
    determines is a keyword.

    All kernels run on one stream, in order. A call allocates workspaces and results as a call of a kernel allocates its output, so a
    captured call is a CUDA graph without other work. A kernel with `programmatic_launch` starts before the previous kernel ends.
    """

    program: GraphProgram
    kernels: tuple[CompiledKernel, ...]

    @property
    def graph(self) -> KernelGraph:
        """The graph."""
        return self.program.graph

    @property
    def inputs(self) -> tuple[str, ...]:
        """The names of the arguments, in order."""
        return self.program.inputs

    @property
    def outputs(self) -> tuple[str, ...]:
        """The names of the results, in order."""
        return self.program.outputs

    @functools.cached_property
    def undetermined(self) -> tuple[str, ...]:
        """The run-time sizes that no argument determines, in order: a call takes them as keywords."""
        return undetermined(self.program)

    def as_torch_op(self, name: str, into: bool = False, gradient: Callee | None = None) -> Any:
        """Register the graph as a PyTorch operator, `torch.ops.NAMESPACE.NAME`, as `CompiledKernel.as_torch_op` does.

        One call of the operator launches all kernels on the current stream; PyTorch allocates the workspaces. In the schema, an argument
        `split.X` is called `split_X`.

        Args:
            name: `"mine::layer_norm"`.
            into: take the results as the last arguments, fill them, and return nothing.
            gradient: a compiled kernel or kernel graph that computes gradients, with the names `Y`, `dY` and `dX`.

        Raises: ArgumentError as for a kernel.
        """
        from fireiron.gpu.torch_operator import operator_of

        return operator_of(self, name, into, gradient)

    def as_jax_function(self, gradient: Callee) -> Callable[..., Any]:
        """Return the graph as a function of JAX with a gradient, as `CompiledKernel.as_jax_function` does.

        In a program that JAX traces, each kernel of both graphs is a custom call, and XLA allocates the workspaces.

        Args:
            gradient: a compiled kernel or kernel graph that computes gradients, with the names `Y`, `dY` and `dX`.

        Raises: ArgumentError as for a kernel.
        """
        from fireiron.gpu.jax_function import function_of

        return function_of(self, gradient)

    @property
    def cuda(self) -> str:
        """CUDA C++: one unit with all kernels, in their order."""
        return self.program.cuda

    def __repr__(self) -> str:
        kernels = ", ".join(kernel.program.name for kernel in self.kernels)
        return f"<{len(self.kernels)} kernels of {self.graph.name} for {self.kernels[0].program.architecture}: {kernels}>"

    @untraced("torch.compile cannot trace fireiron's kernels: op = graph.as_torch_op('mine::decode'), and call op")
    def __call__(self, *arrays: Any, out: Any = None, stream: Any = None, **sizes: int) -> Any:
        """Execute all kernels; see the class.

        Raises:
            ArgumentError: the arrays are too many or too few, or a size has two values.
            LaunchError: a result overlaps another result, or an argument that a later kernel reads.
            FireironError: those of a call of a kernel, with the name of the kernel.
        """
        call_arrays, solved = self.begun(arrays, out, sizes)
        for step in self.steps:
            with of_kernel(self.graph.name, step.name):
                step.run(call_arrays, stream, sizes, solved)
        return returned(tuple([call_arrays[place] for place in self.results]))

    def prepare(self, *arrays: Any, out: Any = None, stream: Any = None, **sizes: int) -> PreparedGraph:
        """Check and load all kernels once, so that each `prepared()` has minimal overhead.

        Workspaces, and results without `out`, are allocated once. `stream` is used only for these allocations. No kernel runs, except
        the launches before the last one of a kernel with `repack`.

        Raises:
            ArgumentError: an argument is wrong, or is in host memory.
            LaunchError: the arrays do not fit the kernels, a result overlaps an array of a later kernel, or there is no GPU.
        """
        from fireiron.kernel_graph.prepared import prepared

        return prepared(self, arrays, out, stream, sizes)

    def begun(self, arrays: tuple[Any, ...], out: Any, sizes: Mapping[str, int]) -> tuple[list[Any], dict[str, int]]:
        """Return the list of a call's arrays, None for new ones, and its run-time sizes. Raises: the errors of a call before any launch."""
        if len(arrays) != len(self.inputs):
            raise ArgumentError(f"{len(arrays)} arrays given, {self.graph.name} reads {len(self.inputs)}", legal=self.inputs)
        solved = self._solved(arrays, sizes)
        call_arrays = [*arrays, *[None] * (len(self._places) - len(arrays))]
        if out is not None:
            for place, array in zip(self.results, self.in_order(out), strict=True):
                call_arrays[place] = array
            self.require_apart(call_arrays)
        return call_arrays, solved

    # ------------------------------------------------------------------------------------------ the arrays of a call

    @functools.cached_property
    def _places(self) -> Mapping[str, int]:
        written = (f"{kernel}.{name}" for kernel, spec in self.graph.specs.items() for name in spec.outputs)
        return {array: place for place, array in enumerate((*self.graph.inputs, *written))}

    @functools.cached_property
    def results(self) -> Places:
        """The positions of the results."""
        return tuple(self._places[array] for array in self.graph.outputs)

    @functools.cached_property
    def steps(self) -> tuple[Step, ...]:
        """The kernels in order, with the positions of their arrays."""
        of, places, steps = self.graph.arrays.of, self._places, []
        for (name, spec), kernel in zip(self.graph.specs.items(), self.kernels, strict=True):
            takes = tuple(places[of[f"{name}.{operand}"]] for operand in spec.inputs)
            fills = tuple(places[f"{name}.{operand}"] for operand in spec.outputs)
            steps.append(Step(name, kernel, takes, fills, frozenset(var.name for var in symbols_of(spec)), _undetermined(spec)))
        return tuple(steps)

    @functools.cached_property
    def _extents(self) -> tuple[tuple[int, int, str], ...]:
        """The dimensions of arguments that are a run-time size: the argument, the dimension, the size."""
        extents = []
        for place, array in enumerate(self.graph.inputs):
            kernel, _, operand = array.partition(".")
            shape = self.graph.specs[kernel].operands[operand].tensor.array.shape
            extents += [(place, axis, size.name) for axis, size in enumerate(shape) if isinstance(size, Var)]
        return tuple(extents)

    def _solved(self, arrays: Sequence[Any], sizes: Mapping[str, Any]) -> dict[str, int]:
        """Return the run-time sizes that arguments determine. Refuse a size with two values, and unknown sizes."""
        known = {name for step in self.steps for name in step.sizes} if sizes else set()
        for name, value in sizes.items():
            if name not in known:
                raise ArgumentError(f"{name}: {self.graph.name} takes no such argument", got=value, legal=sorted({*known, "out", "stream"}))
        solved, origin = dict(sizes), dict.fromkeys(sizes, "the keyword")
        for place, axis, name in self._extents:
            shape = getattr(arrays[place], "shape", None)
            if not isinstance(shape, Sequence) or axis >= len(shape):
                continue  # the call of the kernel refuses it
            if solved.setdefault(name, shape[axis]) != shape[axis]:
                got = f"{origin[name]}: {solved[name]}, {self.inputs[place]}: {shape[axis]}"
                raise ArgumentError(f"{self.graph.name}: the size {name} has two values", got=got)
            origin.setdefault(name, self.inputs[place])
        return solved

    def in_order(self, given: Any) -> tuple[Any, ...]:
        """Return the arrays of `out=` in the order of the results."""
        names = self.outputs
        if len(names) == 1 and not isinstance(given, Mapping):
            return (given,)
        legal = f"a tuple ({', '.join(names)}), or a mapping by name"
        if isinstance(given, Mapping):
            if set(given) != set(names):
                raise ArgumentError(f"out: other names than the results of {self.graph.name}", got=list(given), legal=names)
            return tuple(given[name] for name in names)
        if not isinstance(given, (tuple, list)) or len(given) != len(names):
            raise ArgumentError(f"out: {self.graph.name} has {len(names)} results", got=type(given).__name__, legal=legal)
        return tuple(given)

    @functools.cached_property
    def _apart(self) -> tuple[tuple[int, int], ...]:
        """Pairs of positions that may not overlap: a result, and another one or an argument that a later kernel reads."""
        results = set(self.results)
        pairs = list(itertools.combinations(sorted(results), 2))
        for number, step in enumerate(self.steps):
            later = {place for other in self.steps[number + 1 :] for place in other.takes if place < len(self.inputs)}
            pairs += [(fill, place) for fill in step.fills if fill in results for place in sorted(later)]
        return tuple(pairs)

    def require_apart(self, call_arrays: Sequence[Any]) -> None:
        """Refuse a result that overlaps another one, or an argument that a later kernel reads."""
        names = dict(zip((*range(len(self.inputs)), *self.results), (*self.inputs, *self.outputs), strict=True))
        for result, other in self._apart:
            written, read = _placed(names[result], call_arrays[result]), _placed(names[other], call_arrays[other])
            if written is not None and read is not None and share_memory(*written, *read):
                raise LaunchError(
                    f"{names[result]} overlaps {names[other]} in memory, which a later kernel reads or another kernel writes",
                    hint="pass another array",
                )


def _undetermined(spec: Spec) -> frozenset[str]:
    """Return the run-time sizes that no input of a kernel determines."""
    extents = {size.name for name in spec.inputs for size in spec.operands[name].tensor.array.shape if isinstance(size, Var)}
    return frozenset(var.name for var in sizes_of(spec)) - extents


def _placed(name: str, array: Any) -> tuple[ArrayView, int] | None:
    """Return the view and the address of an array; None for numbers, for arrays that JAX traces, and for other objects."""
    if traced_by_jax(array):
        return None
    library = library_of(type(array))
    if library is not None:
        address, signature, _ = library.read(name, array)
        return signature[0].view(signature), address
    return (host_view(array), array.ctypes.data) if hasattr(array, "ctypes") and hasattr(array, "strides") else None


# ---------------------------------------------------------------------------------------------- compilation


def compiled(graph: KernelGraph, architecture: Architecture | str | None, options: tuple[str, ...]) -> CompiledGraph:
    """Return the compiled graph; all kernels are compiled at the same time. Raises: the errors of `KernelGraph.compile`."""
    program = program_of(graph, architecture_here() if architecture is None else architecture)
    kernels = {name: _kernel(program, name, options) for name in program.kernels}
    for name, kernel in kernels.items():
        with of_kernel(graph.name, name):
            kernel.begin()
    program.require_legal()
    for name, kernel in kernels.items():
        with of_kernel(graph.name, name):
            kernel.ready()
    return CompiledGraph(program, tuple(kernels.values()))


def _kernel(program: GraphProgram, name: str, options: tuple[str, ...]) -> CompiledKernel:
    graph = program.graph
    hidden = not any(f"{name}.{output}" in graph.outputs for output in graph.specs[name].outputs)
    return (UpstreamKernel if hidden else CompiledKernel)(program.kernels[name], options)


__all__ = ["CompiledGraph", "compiled"]
