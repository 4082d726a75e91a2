"""Draw a strategy: its tree, data flow, tiles and their owners, lane maps, banks, and pipeline, as SVG, PNG or HTML. No GPU is needed.

May import: the compiler, inspect, and what these may import.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, overload

from fireiron.errors import ArgumentError, shown

if TYPE_CHECKING:
    from fireiron.compiler import Program
    from fireiron.draw.explorer import Explorer
    from fireiron.draw.gallery import Gallery
    from fireiron.draw.picture import Picture
    from fireiron.gpu.kernel import CompiledKernel
    from fireiron.kernel_graph.compiled import CompiledGraph
    from fireiron.kernel_graph.graph import KernelGraph
    from fireiron.kernel_graph.program import GraphProgram
    from fireiron.language.strategy import Strategy
    from fireiron.values.expr import Var
    from fireiron.values.machine import Architecture

    Kernels: TypeAlias = Strategy | Program | CompiledKernel
    Graphs: TypeAlias = KernelGraph | GraphProgram | CompiledGraph

PictureName: TypeAlias = Literal["tree", "flow", "tiles", "lanes", "thread", "banks", "timeline"]
"""The name of one kind of picture."""

KINDS: Final = ("tree", "flow", "tiles", "lanes", "thread", "banks", "timeline")
"""The kinds of pictures."""


@overload
def draw(
    strategy: Kernels,
    what: PictureName = "tree",
    to: str | Path | None = None,
    *,
    sizes: Mapping[str, int] | None = None,
    architecture: Architecture | str | None = None,
    thread: int = 0,
    overwrite: bool = False,
) -> Picture: ...


@overload
def draw(
    strategy: Graphs,
    what: Literal["flow"],
    to: str | Path | None = None,
    *,
    sizes: Mapping[str, int] | None = None,
    architecture: Architecture | str | None = None,
    thread: int = 0,
    overwrite: bool = False,
) -> Picture: ...


@overload
def draw(
    strategy: Kernels | Graphs,
    what: Literal["all"] | list[str] | tuple[str, ...],
    to: str | Path | None = None,
    *,
    sizes: Mapping[str, int] | None = None,
    architecture: Architecture | str | None = None,
    thread: int = 0,
    overwrite: bool = False,
) -> Gallery: ...


@overload
def draw(
    strategy: Kernels | Graphs,
    what: str | Sequence[str] = "tree",
    to: str | Path | None = None,
    *,
    sizes: Mapping[str, int] | None = None,
    architecture: Architecture | str | None = None,
    thread: int = 0,
    overwrite: bool = False,
) -> Picture | Gallery: ...


def draw(
    strategy: Kernels | Graphs,
    what: str | Sequence[str] = "tree",
    to: str | Path | None = None,
    *,
    sizes: Mapping[str, int] | None = None,
    architecture: Architecture | str | None = None,
    thread: int = 0,
    overwrite: bool = False,
) -> Picture | Gallery:
    """Draw a bound strategy, a program or a compiled kernel; or a kernel graph.

    For a kernel graph, `"flow"` shows how arrays connect its kernels; every other name gives one picture for each kernel. For a program of
    the GPUs of a node, it shows which GPU stores what, and the launches on a time axis with the link.

    Args: `what` is `"tree"` (decompositions), `"flow"` (between the steps of a definition), `"tiles"` (owners of elements), `"lanes"`
        (lane maps of instructions), `"thread"` (the elements in the registers of the thread `thread` of a block), `"banks"` (of shared
        memory), `"timeline"` (of a pipeline), several of them, or `"all"`; `to` a file (`.svg`, `.png`, `.html`) or a folder to write;
        `sizes` values for run-time sizes; `architecture` the target of a strategy (its own by default).
    Returns: a picture for one name, a gallery for several; notebooks display both.
    Raises: an `ArgumentError` for an unknown name; an `IncompleteError` if the strategy has open leaves, except for the tree and
        the flow.

    >>> from fireiron import Block, GL, Kernel, MatMul, Thread
    >>> strategy = MatMul.tile(16, 16).to(Block).tile(1, 1).to(Thread).split(1).done()
    >>> draw(strategy(MatMul(32, 32, 8)(GL, GL, GL)(Kernel))).svg.count("<svg")
    1
    """
    from fireiron.draw.gallery import Gallery

    names = _names(what)
    if not names:
        raise ArgumentError("nothing to draw", legal=(*KINDS, "all"))
    if thread and "thread" not in names:
        raise ArgumentError(
            f"thread={thread}: only the picture of a thread has one",
            got=names,
            hint='draw(strategy, "thread", thread=37), or --what thread',
        )
    graph = graph_of(strategy, architecture)
    if graph is not None:
        return _drawn_graph(graph, tuple(dict.fromkeys(names)), what == "flow", to, sizes or {}, thread, overwrite)
    program = program_of(strategy, architecture)
    pictures = tuple(_drawn(program, name, _sizes(program, sizes or {}), thread) for name in dict.fromkeys(names))
    if isinstance(what, str) and what != "all":
        if to is not None:
            pictures[0].save(to, overwrite=overwrite)
        return pictures[0]
    gallery = Gallery(pictures, program)
    if to is not None:
        gallery.save(to, overwrite=overwrite)
    return gallery


def _names(what: Any) -> tuple[str, ...]:
    """Return the names of the requested pictures."""
    if isinstance(what, str):
        names: tuple[Any, ...] = KINDS if what == "all" else (what,)
    else:
        try:
            names = tuple(what)
        except TypeError:
            names = (what,)
    for name in names:
        if not isinstance(name, str) or name not in KINDS:
            raise ArgumentError(f"{shown(name)} is not a kind of picture", legal=(*KINDS, "all"))
    return names


def explore(strategy: Any, architecture: Any = None) -> Explorer:
    """Return a page of HTML with the decomposition tree next to the CUDA text, and links between lines and steps.

    Args: a bound strategy, a program or a compiled kernel; `architecture` the target of a strategy (its own by default).
    Raises: an `ArgumentError` for anything else; an `IncompleteError` if the strategy has open leaves; the errors of the checks.

    >>> from fireiron import Block, GL, Kernel, MatMul, Thread
    >>> strategy = MatMul.tile(16, 16).to(Block).tile(1, 1).to(Thread).split(1).done()
    >>> page = explore(strategy(MatMul(32, 32, 8)(GL, GL, GL)(Kernel))).html
    >>> page.count("fmaf("), "http" in page
    (1, False)
    """
    from fireiron.draw.explorer import Explorer

    program = program_of(strategy, architecture)
    _ = program.ir
    return Explorer(program)


def program_of(strategy: Any, architecture: Any = None) -> Program:
    """Return the program of a bound strategy, a program or a compiled kernel. Raises: `ArgumentError` for anything else."""
    from fireiron.compiler import Program
    from fireiron.language.strategy import Strategy

    if isinstance(strategy, Strategy):
        return strategy.program(architecture)
    program = strategy if isinstance(strategy, Program) else getattr(strategy, "program", None)
    if not isinstance(program, Program):
        raise ArgumentError(
            "draw(strategy): this is not a strategy", got=strategy, legal="a bound strategy, a program or a compiled kernel"
        )
    if architecture is not None:
        raise ArgumentError("a program already has its target", got=architecture, legal="draw(strategy, architecture=...)")
    return program


def graph_of(value: Any, architecture: Any = None) -> GraphProgram | None:
    """Return the program of a kernel graph, compiled or not; None for anything else."""
    from fireiron.kernel_graph.graph import KernelGraph
    from fireiron.kernel_graph.program import GraphProgram

    if isinstance(value, KernelGraph):
        return value.program(architecture)
    program = value if isinstance(value, GraphProgram) else getattr(value, "program", None)
    if not isinstance(program, GraphProgram):
        return None
    if architecture is not None:
        raise ArgumentError("a program already has its target", got=architecture, legal="draw(graph, architecture=...)")
    return program


def _drawn_graph(
    program: GraphProgram,
    names: tuple[str, ...],
    alone: bool,
    to: str | Path | None,
    sizes: Mapping[str, int],
    thread: int,
    overwrite: bool,
) -> Picture | Gallery:
    """Draw a graph: its flow, then each kernel."""
    import attrs

    from fireiron.draw.gallery import Gallery
    from fireiron.draw.graph_flow import graph_flow

    _check_sizes(program.name, {symbol.name: symbol for symbol in program.symbols}, sizes)
    flow = (graph_flow(program),) if "flow" in names else ()
    pictures: list[Picture] = [*flow]
    for kernel, part in program.kernels.items():
        own = {name: value for name, value in sizes.items() if name in {size.name for size in part.sizes}}
        drawn = (_drawn(part, name, own, thread) for name in names if name != "flow")
        pictures += [attrs.evolve(picture, name=f"{kernel}_{picture.name}", title=f"{kernel}: {picture.title}") for picture in drawn]
    if alone:
        if to is not None:
            pictures[0].save(to, overwrite=overwrite)
        return pictures[0]
    gallery = Gallery(tuple(pictures), program)
    if to is not None:
        gallery.save(to, overwrite=overwrite)
    return gallery


def _sizes(program: Program, sizes: Mapping[str, int]) -> Mapping[str, int]:
    from fireiron.spec import symbols_of

    return _check_sizes("the problem", {symbol.name: symbol for symbol in symbols_of(program.spec)}, sizes)


def _check_sizes(what: str, known: Mapping[str, Var], sizes: Mapping[str, int]) -> Mapping[str, int]:
    """Return the run-time sizes. Refuse unknown and illegal ones."""
    for name, value in sizes.items():
        if name not in known:
            raise ArgumentError(f"sizes: {what} has no run-time size {name}", legal=known or "none")
        symbol = known[name]
        if type(value) is not int or not symbol.low <= value <= symbol.high or value % symbol.multiple_of:
            message = f"sizes: {name} violates its declaration"
            raise ArgumentError(message, got=value, legal=f"integers from {symbol.low}, multiples of {symbol.multiple_of}")
    return sizes


def _drawn(program: Program, name: str, sizes: Mapping[str, int], thread: int) -> Picture:
    if name == "tree":
        from fireiron.draw.tree import tree

        return tree(program)
    if name == "flow" and program.spec.level.gpus is not None:
        from fireiron.draw.node_flow import node_flow

        return node_flow(program)
    if name == "flow":
        from fireiron.draw.flow import flow

        return flow(program)
    if name == "lanes":
        from fireiron.draw.lanes import lanes

        return lanes(program)
    if name == "thread":
        from fireiron.draw.thread import thread_picture

        return thread_picture(program, thread, sizes)
    if name == "banks":
        from fireiron.draw.banks import banks

        return banks(program)
    if name == "tiles":
        from fireiron.draw.tiles import tiles

        return tiles(program, sizes)
    from fireiron.draw.timeline import timeline

    return timeline(program, sizes)


__all__ = ["KINDS", "draw", "explore"]
