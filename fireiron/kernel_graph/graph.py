"""`KernelGraph`: several kernels as one program, with one call.

The kernels run in the order in which they are stated, on one stream. Arrays that one kernel writes and another reads are workspaces, which
each call allocates. `compile` returns the callable; `fireiron/kernel_graph/compiled.py` executes it.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import attrs

from fireiron.display import Displayed
from fireiron.errors import ArgumentError, FireironError, call_site
from fireiron.kernel_graph.arrays import Arrays, Pairs, arrays_of, expanded, require_outputs, unread
from fireiron.language.strategy import Strategy
from fireiron.spec import Spec
from fireiron.values.expr import is_cuda_name

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from fireiron.kernel_graph.compiled import CompiledGraph
    from fireiron.kernel_graph.program import GraphProgram
    from fireiron.values.machine import Architecture


def _pairs(given: Any) -> Any:
    """Return a mapping as pairs; anything else unchanged, if it consists of pairs."""
    if isinstance(given, Mapping):
        return tuple(given.items())
    if _is_iterable(given):
        pairs = tuple(tuple(pair) if isinstance(pair, (list, tuple)) else pair for pair in given)
        if all(isinstance(pair, tuple) and len(pair) == 2 for pair in pairs):
            return pairs
    raise ArgumentError(
        "KernelGraph: not a mapping", got=given, legal='{"split": strategy(spec)}, {"combine.P": "split.P"}', at=call_site()
    )


def _is_iterable(given: Any) -> bool:
    """Whether a value has elements, and is no text; arrays without dimensions have none, although their class has."""
    if isinstance(given, str):
        return False
    try:
        iter(given)
    except TypeError:
        return False
    return True


def _names(given: Any) -> Any:
    """Return the names of results as a tuple."""
    if not _is_iterable(given):
        raise ArgumentError("outputs: not a tuple of operands", got=given, legal='("combine.O",)', at=call_site())
    return tuple(given)


@attrs.frozen(repr=False)
class KernelGraph(Displayed):
    """Several kernels as one program: `kernels` run in order, and `connect` states which arrays they share.

    Attributes:
        name: the prefix of the names of all kernels.
        kernels: bound strategies by name, in the order of execution (a mapping; stored as pairs).
        connect: for inputs of kernels, the arrays that they read: the output of an earlier kernel, or an input of an earlier kernel, which
            both then read. `{"combine.P": "split.P"}` connects operands; `{"combine": "split"}` connects each input of `combine` that has
            the name of an output of `split`.
        outputs: the results, `("combine.O",)`; by default all outputs of kernels that no kernel reads.

    The arguments of a call are the inputs that nothing provides, in the order of kernels and operands. Outputs that are not results are
    workspaces.

    Legal if each connected operand is a whole array with the shape, the element type and the storage of the array that it reads, if kernels
    read only arrays of earlier kernels, and if each array has one writer. `program(architecture)` is the graph on a target, whose `check()`
    returns the findings about each kernel and between kernels. `compile()` returns the callable, `predict(graph)` the predicted time,
    `draw(graph, "flow")` a picture, and `export(graph, folder)` launchers in C. Source: decisions 88 and 94.

    >>> from fireiron import *
    >>> def elementwise(text, **operands):
    ...     start = Fused(name="work", dims="n", operands=operands, body={"work": text})
    ...     return start.tile(n=128).to(Block).tile(n=1).to(Thread).done()(start(n=1000, dtype=float32))
    >>> square = elementwise("Y[n] = X[n] * X[n]", X="n", Y="n")
    >>> shift = elementwise("Z[n] = Y[n] + X[n]", Y="n", X="n", Z="n")
    >>> both = KernelGraph("both", {"square": square, "shift": shift}, {"shift.Y": "square.Y", "shift.X": "square.X"})
    >>> print(both)
    both(X) -> Z
      square: work(1000)(GL,GL)(Kernel)      X -> Y
      shift: work(1000)(GL,GL,GL)(Kernel)    Y, X -> Z

    Raises: an ArgumentError for unknown names, cycles and arrays with two writers; a DecompositionError if connected operands differ.
    """

    name: str
    kernels: tuple[tuple[str, Strategy], ...] = attrs.field(converter=_pairs)
    connect: Pairs = attrs.field(default=(), converter=_pairs)
    outputs: tuple[str, ...] = attrs.field(default=(), converter=_names)

    def __attrs_post_init__(self) -> None:
        try:
            _check_kernels(self.name, self.kernels)
            connect = expanded(self.specs, self.connect)
            outputs = self.outputs or unread(self.specs, connect)
            require_outputs(self.specs, outputs)
            object.__setattr__(self, "connect", connect)
            object.__setattr__(self, "outputs", outputs)
            _ = self.arrays
        except FireironError as error:
            raise error.located(at=call_site()) from None

    @functools.cached_property
    def specs(self) -> Mapping[str, Spec]:
        """The specs by kernel, in order."""
        return {name: strategy.spec for name, strategy in self.kernels if strategy.spec is not None}

    @functools.cached_property
    def arrays(self) -> Arrays:
        """The arrays that its kernels access."""
        return arrays_of(self.specs, self.connect, self.outputs)

    @property
    def inputs(self) -> tuple[str, ...]:
        """The arguments of a call, in order, as operands of kernels: `("split.Q", ...)`."""
        return self.arrays.inputs

    @property
    def workspaces(self) -> tuple[str, ...]:
        """The arrays that each call allocates, and that are not results."""
        written = [f"{kernel}.{name}" for kernel, spec in self.specs.items() for name in spec.outputs]
        return tuple(array for array in written if array not in self.outputs)

    def __getitem__(self, kernel: str) -> Strategy:
        """Return the bound strategy of a kernel."""
        strategies = dict(self.kernels)
        if kernel not in strategies:
            raise ArgumentError(f"{self.name} has no kernel {kernel}", legal=list(strategies))
        return strategies[kernel]

    def __str__(self) -> str:
        names = self.arrays.names
        rows = [(f"  {kernel}: {spec}", self.flow(kernel)) for kernel, spec in self.specs.items()]
        width = max(len(row) for row, _ in rows)
        head = f"{self.name}({', '.join(names[array] for array in self.inputs)}) -> {', '.join(names[array] for array in self.outputs)}"
        return "\n".join([head, *(f"{row:{width}}    {flow}" for row, flow in rows)])

    def flow(self, kernel: str) -> str:
        """Return the arrays that a kernel reads and writes, `P, T, S -> O`."""
        spec = self.specs[kernel]
        arrays = {name: self.arrays.of[f"{kernel}.{name}"] for name in (*spec.inputs, *spec.outputs)}
        read, written = ([self.label(arrays[name]) for name in names] for names in (spec.inputs, spec.outputs))
        return f"{', '.join(read)} -> {', '.join(written)}"

    def label(self, array: str) -> str:
        """Return the name of an array for users: that of its operand, with the kernel if another array has the same."""
        operand = array.partition(".")[2]
        same = [other for other in dict.fromkeys(self.arrays.of.values()) if other.partition(".")[2] == operand]
        return operand if len(same) == 1 else array

    def __repr__(self) -> str:
        kernels = ", ".join(f"{name!r}: {strategy!r}" for name, strategy in self.kernels)
        connect = f", {dict(self.connect)!r}" if self.connect else ""
        outputs = f", outputs={self.outputs!r}" if self.outputs != unread(self.specs, self.connect) else ""
        return f"KernelGraph({self.name!r}, {{{kernels}}}{connect}{outputs})"

    # ------------------------------------------------------------------------------------------ meaning

    def reference(self, *inputs: ArrayLike) -> Any:
        """Return the results in NumPy (a tuple for several), from arrays in the order of `inputs`.

        The references of all specs are evaluated in order; each rounds its outputs to their element types, as its kernel does.
        Raises: ArgumentError if the number of arrays differs.
        """
        if len(inputs) != len(self.inputs):
            names = [self.arrays.names[array] for array in self.inputs]
            raise ArgumentError(f"reference: {len(inputs)} arrays given, {self.name} reads {len(names)}", legal=names)
        values: dict[str, Any] = dict(zip(self.inputs, inputs, strict=True))
        for kernel, spec in self.specs.items():
            results = spec.reference(*(values[self.arrays.of[f"{kernel}.{name}"]] for name in spec.inputs))
            results = (results,) if len(spec.outputs) == 1 else results
            values |= {f"{kernel}.{name}": result for name, result in zip(spec.outputs, results, strict=True)}
        outputs = tuple(values[array] for array in self.outputs)
        return outputs[0] if len(outputs) == 1 else outputs

    # ------------------------------------------------------------------------------------------ kernels

    def program(self, architecture: Architecture | str | None = None) -> GraphProgram:
        """Return the graph on a target, with the program of each kernel; no compiler and no GPU are needed.

        Args: architecture: the target of all kernels. None: the newest default target of the strategies.
        Raises: the errors of `Strategy.program`, with the name of the kernel.
        """
        from fireiron.kernel_graph.program import program_of

        return program_of(self, architecture)

    def compile(self, architecture: Architecture | str | None = None, options: tuple[str, ...] = ()) -> CompiledGraph:
        """Return the callable program: it runs NumPy arrays in the simulator, kernel by kernel, and arrays on a GPU there.

        Args:
            architecture: the target of all kernels. None: that of the current GPU; without a GPU, the newest default target of the
                strategies.
            options: further options of NVRTC, for all kernels.

        Raises: the errors of `Strategy.compile`, with the name of the kernel; a DecompositionError if a kernel does not wait for an array
            that another kernel writes (`programmatic_launch(no_wait=)`).
        """
        from fireiron.kernel_graph.compiled import compiled

        return compiled(self, architecture, options)

    def with_programmatic_launch(self, architecture: Architecture | str | None = None) -> KernelGraph:
        """Return the graph in which each kernel after the first starts before the previous one ends, where that is legal.

        Such a kernel waits for the previous one before its first access to memory (`programmatic_launch`). Kernels for which it is not
        legal stay as they are: those whose outputs must be set to zero first, and those without a tile that is distributed over blocks.

        Args: architecture: the target, sm_90 or newer. None: the newest default target of the strategies.
        Raises: an ArgumentError for an older target.
        """
        from fireiron.kernel_graph.overlap import overlapped

        return overlapped(self, architecture)

    # ------------------------------------------------------------------------------------------ storage

    def to_json(self) -> str:
        """Return a text that `KernelGraph.from_json` converts back to an equal graph. Raises: StoreError if a strategy cannot be stored."""
        from fireiron.kernel_graph.stored import dumps

        return dumps(self)

    @staticmethod
    def from_json(text: str) -> KernelGraph:
        """Return the graph of a text made by `to_json`. Raises: StoreError with the position of an error."""
        from fireiron.kernel_graph.stored import loads

        return loads(text, KernelGraph)


def _check_kernels(name: object, kernels: tuple[tuple[Any, Any], ...]) -> None:
    """Refuse names that are not identifiers, and anything but bound strategies for whole kernels."""
    for what, text in (("KernelGraph", name), *(("kernels", kernel) for kernel, _ in kernels)):
        if not is_cuda_name(text) or str(text).startswith("__"):
            raise ArgumentError(f"{what}: a name must be an identifier of Python and CUDA C++", got=text, legal="my_kernel")
    if not kernels:
        raise ArgumentError("KernelGraph: no kernels", legal='{"split": strategy(spec), ...}')
    given = [kernel for kernel, _ in kernels]
    twice = next((kernel for kernel in given if given.count(kernel) > 1), None)
    if twice is not None:
        raise ArgumentError(f"kernels: two kernels are called {twice}", got=given)
    for kernel, strategy in kernels:
        if not isinstance(strategy, Strategy) or strategy.spec is None:
            got = strategy if not isinstance(strategy, Strategy) else "a strategy without a spec"
            raise ArgumentError(f"kernels: {kernel} is not a bound strategy", got=got, legal="strategy(spec)")
        if not strategy.spec.level.has_arguments:
            raise ArgumentError(f"kernels: {kernel} is not a whole kernel", got=str(strategy.spec), legal="a spec at the level Kernel")


__all__ = ["KernelGraph"]
