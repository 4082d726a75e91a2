"""The tree walker: translates a decomposition tree into a sequential program without synchronization."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from typing import Final

from fireiron.errors import ArgumentError, DecompositionError, ResourceError
from fireiron.frozen import evolve, frozen
from fireiron.ir import (
    Buffer,
    Exec,
    For,
    Kernel,
    Let,
    SemaphoreBarrier,
    StepMarker,
    Stmt,
    Workspace,
    edited,
    execs,
    filled,
    rewritten,
    statements,
    variables,
    verify,
)
from fireiron.ir.asks.deferred import Deferred
from fireiron.ir.asks.producer_threads import ProducerThreads
from fireiron.ir.effects.joint_tiles import Combination, JointTiles
from fireiron.ir.look_back import ints_of_all, looks_back
from fireiron.ir.semaphore import MOST_SEMAPHORES
from fireiron.ir.text import Path
from fireiron.language.segments import Segment
from fireiron.language.tree import Context, Decomposition, Executable, Node, Whole, count_workers, grow, require_complete
from fireiron.lower.order_mma import with_ordered_registers
from fireiron.spec import Spec, symbols_of
from fireiron.stepping.look_back import dims_of_scans
from fireiron.values import sharer
from fireiron.values.cuda_names import FUNCTIONS, TAKEN, is_taken
from fireiron.values.expr import ONE, TRUE, ZERO, Expr, Positive, Var, less
from fireiron.values.layout import Layout
from fireiron.values.machine import Architecture
from fireiron.values.tensor import MatrixLayout, Storage, Tensor
from fireiron.values.units import BLOCK, THREAD


def _contract(operands: Iterable[str], dims: Iterable[str]) -> set[str]:
    """The names that the text of a micro-kernel can use for operands with dimensions."""
    suffixes = ("", "_type", "_at", "_registers", *(f"{kind}{dim}" for kind in ("_", "_stride_", "_size_") for dim in dims))
    return {f"{operand.lower()}{suffix}" for operand in operands for suffix in suffixes}


OPERANDS = ("a", "b", "c", "src", "dst", "lhs", "rhs")
"""Operand names of the specs that steps create. A kernel's own operands may have these names; nothing else may."""

_CONTRACT = _contract(OPERANDS, "mnkb")
"""The operand names of the specs that steps create; a spec adds its own."""

RESERVED = frozenset(_CONTRACT | TAKEN | {
    "block", "thread", "warp_size", "uid", "smem", "scratch", "scratch_size", "accumulate", "piece", "pair", "index_0", "index_1",
    "index_2", "index_3", "held_register", "hilbert", "quotient", "shared_address", "warp_index",
})  # fmt: skip
"""Names that generated code must not bind: those of CUDA C++, and those that the printer uses."""


@frozen
class ExpandedTree:
    """A tree with the results of its expansion.

    `workers` are the threads of a block over which tiles are distributed (None if no step specifies them). `context` is the context after
    all steps, with everything that they added to the kernel.
    """

    node: Node
    workers: int | None
    context: Context

    @property
    def whole(self) -> Whole:
        """Named values, the grid, and everything else that the steps added to the kernel."""
        return self.context.whole

    @property
    def names(self) -> dict[Var, Expr]:
        """All named values: those of the whole kernel, and those inside loops over a block's tiles."""
        inside = (stmt for node in self.node.nodes() for stmt in statements(node.program) if isinstance(stmt, Let))
        return {**self.whole.definitions, **{let.var: let.value for let in inside}}

    @property
    def grid(self) -> Expr:
        """The number of blocks; 1 if no step distributes tiles over them."""
        return ONE if self.whole.grid is None else self.whole.grid

    @property
    def threads(self) -> int | None:
        """The threads of a block as launched: those over which tiles are distributed, before a later step adds others."""
        return self.workers


ALL_OR_NONE: Final = "performs either all loads of a producer or none"
"""The reason why TMA performs no load if it could perform some loads of a producer."""

NO_PRODUCER: Final = "needs a producer: split(...).pipeline(stages).warp_specialize()"
"""The reason why TMA performs no load if the strategy has no producer."""


def grow_tree(
    spec: Spec, steps: tuple[Decomposition, ...], architecture: Architecture, instructions: tuple[Executable, ...]
) -> ExpandedTree:
    """The decomposition tree of a spec on a target: threads are counted first, then every step is expanded.

    Raises a `ResourceError` if the target's blocks have fewer threads.
    """
    # Two passes over the strategy: thread indices depend on the number of threads, which later steps determine.
    counting = _context(spec, architecture, instructions, None)
    workers = spec.level.threads or count_workers(spec, steps, counting)
    # Nothing is distributed within the block: one thread does everything.
    if workers is None and steps and steps[-1].verb == "done":
        workers = 1
    if workers is not None and workers > architecture.threads_per_block:
        raise ResourceError(
            f"the strategy needs {workers} threads per block, but {architecture} has at most {architecture.threads_per_block}",
            within=spec,
            hint="larger tiles for Warp or Thread",
        )
    context = _context(spec, architecture, instructions, workers)
    node, whole = grow(spec, steps, context)
    is_mixed = _is_mixed(node)
    if is_mixed or (not _has_producer(node) and _lacks_producer(node)):
        # A ring needs a producer that performs all of its loads by TMA; otherwise all threads perform all loads.
        # The context keeps its other objects, so that steps which read no instructions recognize it.
        context = evolve(
            context,
            instructions=tuple(one for one in instructions if not one.mechanism.counted),
            left_out=tuple(one for one in instructions if one.mechanism.counted),
            left_out_because=ALL_OR_NONE if is_mixed else NO_PRODUCER,
        )
        node, whole = grow(spec, steps, context)
    return ExpandedTree(node, workers, evolve(context, whole=whole))


def _fills_a_ring(node: Node) -> bool:
    """Whether a step creates a loop with a producer, possibly inside its other loops."""
    return any(isinstance(stmt, For) and ProducerThreads in stmt.asks for stmt in statements(node.program))


def _copies(node: Node) -> bool:
    """Whether the producer of a loop copies what TMA does not load."""
    return any(isinstance(stmt, For) and stmt.asks[ProducerThreads].copies for stmt in statements(node.program))


def _is_mixed(node: Node) -> bool:
    """Whether TMA performs some loads of a loop with a producer, but not all."""
    for inner in node.nodes():
        if _fills_a_ring(inner) and not _copies(inner):
            loads = [one for part in inner.nodes() if (one := _load(part)) is not None]
            if len(set(loads)) > 1:
                return True
    return False


def _has_producer(node: Node) -> bool:
    """Whether a loop of the tree has a producer, which then also performs the loads before the loop."""
    loops = (part for part in node.nodes() if _fills_a_ring(part))
    return any(_copies(part) or any(_load(inner) for inner in part.nodes()) for part in loops)


def _lacks_producer(node: Node) -> bool:
    """Whether TMA would fill a ring, but the strategy does not name the instruction and has no producer."""
    named = getattr(node.step, "executable", None) is not None
    return (_load(node) and not named) or any(_lacks_producer(child) for _, child in node.children)


def _load(node: Node) -> bool | None:
    """For a load, whether it fills a ring by TMA; None for other specs."""
    if not node.spec.copies or node.spec.level.threads == 1 or [one.shared_by for one in node.spec.memories] != [sharer.GRID, sharer.BLOCK]:
        return None
    return any(stmt.mechanism.counted for stmt, _ in execs(node.program))


def _context(spec: Spec, architecture: Architecture, instructions: tuple[Executable, ...], workers: int | None) -> Context:
    symbols = symbols_of(spec)
    for var in symbols:
        # Identifiers with two underscores are reserved ([lex.name]).
        if var.name in (RESERVED - FUNCTIONS) | set(spec.operands) or is_taken(var.name):
            raise ArgumentError(
                f"the symbol name {var.name} is used by generated code", within=spec, hint=f'another name: sym("{var.name}_size")'
            )
    used_names = RESERVED | _contract(spec.uses, spec.dims) | {var.name for var in symbols} | set(spec.operands)
    thread = THREAD if workers is None else Var(THREAD.name, 0, workers - 1)
    return Context(architecture, instructions, BLOCK, thread, workers, whole=Whole(used_names))


def walk(tree: ExpandedTree, spec: Spec, name: str) -> Kernel:
    """The program of a complete tree that starts at the kernel; an `ArgumentError` for a tree that starts elsewhere."""
    if not spec.level.is_launch:
        raise ArgumentError(f"code is generated for whole kernels, but {spec} is at {spec.level}", hint="MatMul(M,N,K)(GL,GL,GL)(Kernel)")
    require_complete(tree.node)
    whole = tree.whole
    if whole.part is not None and whole.grid is None:
        raise DecompositionError("split_k(.., Block): no later step distributes tiles over Block", hint=".tile(64, 64).to(Block)")
    assert tree.workers is not None and tree.threads is not None
    body = with_ordered_registers(_program(tree.node, ()))
    if not any(isinstance(stmt, For) and Deferred in stmt.asks for stmt in statements(body)):
        body = without_marks(body)
    lets = tuple(Let(var, value) for var, value in whole.definitions.items())
    body, semaphores = _with_semaphores(body)
    if semaphores is None and whole.effects[JointTiles].combination is Combination.ORDERED:
        raise DecompositionError(
            "ordered(): no step of a whole block adds to an output", legal="steps of a Fused spec with += on an operand", within=spec,
            hint="remove .ordered()",
        )  # fmt: skip
    _require_segments(whole.segment, semaphores, spec)
    kernel = Kernel(
        name,
        tree.context.architecture,
        tree.grid,
        tree.threads,
        tuple(_buffers(tree.node, spec, whole.chosen_storage)),
        symbols_of(spec),
        _used_lets(lets, body) + body,
        spec,
        facts=(
            *_positive_sizes(spec),
            *_leading_dimensions(spec),
            *(fact for node in tree.node.nodes() for fact in node.facts),
            *_enough_semaphores(semaphores),
        ),
        effects=whole.effects,
        cluster=whole.cluster,
        workspace=None if semaphores is None else Workspace("workspace", semaphores),
        workers=tree.workers,
        makers={name: path for path, node in tree.node.paths() for name in node.names},
    )
    return verify(_with_words(kernel))


def _with_words(kernel: Kernel) -> Kernel:
    """The kernel with a workspace for the words of its scans across blocks."""
    scans = [stmt for stmt, _ in execs(kernel.body) if looks_back(stmt)]
    if not scans:
        if kernel.effects[JointTiles].combination is Combination.LOOK_BACK:
            _require_scan(kernel.spec)
            combination = evolve(kernel.effects[JointTiles], combination=Combination.ATOMIC)
            return evolve(kernel, effects=kernel.effects.with_(combination))
        return kernel
    words = [buffer for buffer in kernel.buffers if buffer.workspace]
    return evolve(kernel, workspace=Workspace("workspace", ints_of_all(words), looks_back=True))


def _require_scan(spec: Spec) -> None:
    """Refuse `look_back` if no step scans."""
    if not dims_of_scans(spec):
        raise DecompositionError(
            "look_back(): no step scans a dimension that the tile divides", got=str(spec), within=spec,
            legal="steps of a Fused spec such as t[m,n] = cumsum(n, X[m,n])", hint="remove .look_back()",
        )  # fmt: skip


def _require_segments(segment: Segment | None, semaphores: Expr | None, spec: Spec) -> None:
    """Require that a loop divides the segments that Stream-K distributes over blocks, and that the last block sums them."""
    divided = segment is None or segment.divided or segment.units == 1
    if segment is None or (divided and semaphores is not None):
        return
    what, do = ("no loop over k", f"split({segment.step})") if semaphores is not None else ("no accumulator", "epilog(RF, float32)")
    raise DecompositionError(
        f"stream_k: blocks share the iterations of tiles, but the strategy has {what}", within=spec,
        legal="an accumulator in registers, and then a split of k", hint=f".tile(...).to(Block).stream_k(...).{do}",
    )  # fmt: skip


def _with_semaphores(body: tuple[Stmt, ...]) -> tuple[tuple[Stmt, ...], Expr | None]:
    """The program with the semaphores of all groups numbered, and their number; None if there are none."""
    first: dict[str, Expr] = {}
    total: Expr = ZERO
    for stmt in statements(body):
        if isinstance(stmt, SemaphoreBarrier) and stmt.group not in first:
            first[stmt.group], total = total, total + stmt.count
    if not first:
        return body, None

    def numbered(stmt: Stmt) -> tuple[Stmt, ...]:
        return (evolve(stmt, index=first[stmt.group] + stmt.index) if isinstance(stmt, SemaphoreBarrier) else stmt,)

    return rewritten(body, numbered), total


def _enough_semaphores(semaphores: Expr | None) -> Iterable[tuple[str, Expr]]:
    """The fact that the workspace has enough semaphores. Raises a `ResourceError` if it never has."""
    if semaphores is None:
        return
    if semaphores.low > MOST_SEMAPHORES:
        raise ResourceError(
            f"blocks share {semaphores} results", legal=f"at most {MOST_SEMAPHORES}, one semaphore each", hint="larger tiles for Block"
        )
    enough = semaphores <= MOST_SEMAPHORES
    if enough != TRUE:
        yield f"blocks share at most {MOST_SEMAPHORES} results", enough


def _positive_sizes(spec: Spec) -> Iterable[tuple[str, Expr]]:
    """For each size that is an expression, also of arrays alone, the fact that it is at least 1; the launcher refuses other values."""
    shapes = (size for view in spec.operands.values() for size in view.tensor.array.shape)
    for size in dict.fromkeys((*spec.sizes, *shapes)):
        if isinstance(size, Positive):
            yield f"{size} is at least 1", less(0, size.value)


def _leading_dimensions(spec: Spec) -> Iterable[tuple[str, Expr]]:
    """For each run-time leading dimension, the fact that it is at least the length of a row or column."""
    for name, view in spec.operands.items():
        layout = view.tensor.array.layout
        if isinstance(layout, MatrixLayout) and layout.leading is not None:
            extent = view.tensor.array.shape[0 if layout.order == "col" else -1]
            holds = extent <= layout.leading
            if holds != TRUE:
                yield f"the leading dimension of {name} is at least {extent}", holds


def _program(node: Node, path: Path) -> tuple[Stmt, ...]:
    """The program of a tree, whose statements record the step that they come from."""
    own = edited(node.program, lambda statement: evolve(statement, path=path))
    return filled(own, {name: _program(child, (*path, name)) for name, child in node.children})


def without_marks(body: Iterable[Stmt]) -> tuple[Stmt, ...]:
    """The program without step markers."""
    return rewritten(body, lambda statement: () if isinstance(statement, StepMarker) else (statement,))


def taken_names(kernel: Kernel) -> set[str]:
    """The names that a pass must not give to new variables: bound names, names of buffers and sizes, and names in generated code."""
    bound = {statement.var.name for statement in statements(kernel.body) if isinstance(statement, (For, Let))}
    bound |= {
        statement.prior_iterations.name
        for statement in statements(kernel.body)
        if isinstance(statement, For) and statement.prior_iterations is not None
    }
    return {*RESERVED, *bound, *(buffer.name for buffer in kernel.buffers), *(symbol.name for symbol in kernel.symbols)}


def fresh_name(preferred: str, used_names: set[str]) -> str:
    """The preferred name or, if it is used, the first free one with a number from 2 on; it counts as used from then on."""
    numbered = (f"{preferred}{number}" for number in itertools.count(2))
    name = next(one for one in itertools.chain((preferred,), numbered) if one not in used_names)
    used_names.add(name)
    return name


def prune(kernel: Kernel) -> Kernel:
    """The kernel without unused named values."""
    named = tuple(statement for statement in kernel.body if isinstance(statement, Let))
    rest = tuple(statement for statement in kernel.body if not isinstance(statement, Let))
    # Register coordinates are needed only for collective statements; other names in them may be removed.
    origin_variables = [var for buffer in kernel.buffers for value in buffer.register_origin for var in value.variables()]
    return evolve(kernel, body=_used_lets(named, rest, origin_variables if any(stmt.collective for stmt, _ in execs(rest)) else ()) + rest)


def _used_lets(lets: tuple[Let, ...], body: tuple[Stmt, ...], more: Iterable[Var] = ()) -> tuple[Stmt, ...]:
    """The named values that the program, or a used name, refers to."""
    used = variables(body) | set(more)
    kept: list[Let] = []
    # Backwards: the definition of a name contains only earlier ones.
    for let in reversed(lets):
        if let.var in used:
            kept.append(let)
            used |= let.value.variables()
    return tuple(reversed(kept))


def _buffers(node: Node, spec: Spec, chosen_storage: Mapping[str, Storage]) -> Iterable[Buffer]:
    seen: dict[str, Tensor] = {}
    for name, view in spec.operands.items():
        seen[view.tensor.name] = view.tensor
        storage = view.tensor.storage()
        yield Buffer(view.tensor, storage, storage.extent, parameter=view.memory.of_grid, written=name in spec.outputs)
    for inner in node.nodes():
        for view in inner.spec.operands.values():
            tensor = view.tensor
            if tensor.name in seen:
                continue
            seen[tensor.name] = tensor
            if tensor.name in chosen_storage:
                tensor = evolve(tensor, layout=chosen_storage[tensor.name].layout, swizzle=chosen_storage[tensor.name].swizzle)
            # `distribute` determines the number of registers per thread.
            storage = Storage(Layout(()), 0) if tensor.memory.private else tensor.storage()
            yield Buffer(tensor, storage, storage.extent, written=True, workspace=tensor.memory.of_grid)
        for statement in inner.program:
            if isinstance(statement, Exec) and statement.scratch is not None and statement.scratch.name not in seen:
                storage = statement.scratch.storage()
                yield Buffer(statement.scratch, storage, storage.extent, written=True)
