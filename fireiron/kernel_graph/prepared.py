"""`PreparedGraph`: a kernel graph with its arrays, for repeated calls with minimal overhead."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs

from fireiron.errors import ArgumentError
from fireiron.gpu.arguments import returned
from fireiron.kernel_graph.program import of_kernel

if TYPE_CHECKING:
    from fireiron.gpu.kernel import PreparedLaunch, PreparedLaunches
    from fireiron.kernel_graph.compiled import CompiledGraph

Places = tuple[int, ...]
"""Positions in the list of a call's arrays."""


@attrs.frozen(eq=False)
class PreparedStep:
    """A prepared kernel of a graph, with the positions of its inputs and outputs."""

    name: str
    launch: PreparedLaunch | PreparedLaunches
    takes: Places
    fills: Places


class PreparedGraph:
    """A kernel graph with its arrays, for repeated calls: `graph.prepare(a, b, out=c)`.

    `prepared()` runs all kernels on the same arrays, and writes the same results `out` (a tuple for several). Workspaces are allocated
    once, so a captured call is a CUDA graph of its kernels alone, without allocations. `prepared(a2, b2, out=c2)` runs on other arrays,
    which must have the same library, element type, shape, strides and GPU; without `out`, it writes the prepared results.

    All calls use the same workspaces, so two streams must not run it at the same time.
    """

    def __init__(self, graph: CompiledGraph, steps: Sequence[PreparedStep], call_arrays: Sequence[Any], results: Places) -> None:
        self._graph, self._steps, self._call_arrays, self._results = graph, tuple(steps), list(call_arrays), results

    @property
    def out(self) -> Any:
        """The results of `prepared()`."""
        return returned(tuple([self._call_arrays[place] for place in self._results]))

    def __call__(self, *arrays: Any, out: Any = None, stream: Any = None) -> Any:
        """Run on the same arrays, or on others with the same signature.

        Raises: an ArgumentError for another number of arrays; the errors of a `PreparedLaunch`, with the name of the kernel; a LaunchError
            if a result overlaps another result, or an argument that a later kernel reads.
        """
        if not arrays and out is None:
            for step in self._steps:
                step.launch(stream=stream)
            return self.out
        names = self._graph.inputs
        if arrays and len(arrays) != len(names):
            raise ArgumentError(f"{len(arrays)} arrays given, {self._graph.graph.name} was prepared for {len(names)}", legal=names)
        call_arrays = self._changed(arrays, out)
        for step in self._steps:
            with of_kernel(self._graph.graph.name, step.name):
                self._run(step, call_arrays, stream)
        return returned(tuple([call_arrays[place] for place in self._results]))

    def _changed(self, arrays: Sequence[Any], out: Any) -> list[Any]:
        """Return the arrays of a call on other arguments or results."""
        call_arrays = list(self._call_arrays)
        call_arrays[: len(arrays)] = arrays
        if out is not None:
            for place, array in zip(self._results, self._graph.in_order(out), strict=True):
                call_arrays[place] = array
        self._graph.require_apart(call_arrays)
        return call_arrays

    def _run(self, step: PreparedStep, call_arrays: Sequence[Any], stream: Any) -> None:
        places = (*step.takes, *step.fills)
        if all(call_arrays[place] is self._call_arrays[place] for place in places):
            step.launch(stream=stream)
            return
        outs = returned(tuple([call_arrays[place] for place in step.fills]))
        step.launch(*[call_arrays[place] for place in step.takes], out=outs, stream=stream)

    def __repr__(self) -> str:
        return f"<prepared graph {self._graph.graph.name} of {len(self._steps)} kernels>"


def prepared(graph: CompiledGraph, arrays: tuple[Any, ...], out: Any, stream: Any, sizes: Mapping[str, int]) -> PreparedGraph:
    """Prepare all kernels, in order. Raises: the errors of `CompiledGraph.prepare`."""
    call_arrays, solved = graph.begun(arrays, out, sizes)
    steps = []
    for step in graph.steps:
        with of_kernel(graph.graph.name, step.name):
            own = step.own_sizes(sizes, solved)
            given = tuple([call_arrays[place] for place in step.takes])
            outs = tuple([call_arrays[place] for place in step.fills])
            launch = step.kernel.prepare(*given, out=step.out(given, outs, stream, own), stream=stream, **own)
            if launch.out is None:  # the library returns another array from each call
                raise ArgumentError("a prepared graph requires arrays that kernels write in place", legal="arrays of CuPy or PyTorch")
        for place, array in zip(step.fills, (launch.out,) if len(step.fills) == 1 else launch.out, strict=True):
            call_arrays[place] = array
        steps.append(PreparedStep(step.name, launch, step.takes, step.fills))
    return PreparedGraph(graph, steps, call_arrays, graph.results)


__all__ = ["PreparedGraph", "PreparedStep", "prepared"]
