"""The kernel IR: a small structured program, read by the CUDA printer, the simulator and the checks.

Every thread of every block executes a statement list in order.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Mapping

import attrs

from fireiron.display import Displayed
from fireiron.ir import effect
from fireiron.ir.access import Buffer
from fireiron.ir.cluster import BlockCluster
from fireiron.ir.dynamic_scheduler import Counter
from fireiron.ir.effect import Effects
from fireiron.ir.maps import TensorMap
from fireiron.ir.reciprocal import Reciprocal
from fireiron.ir.rewrite import execs, statements
from fireiron.ir.semaphore import MOST_SEMAPHORES, SEMAPHORE_BYTES, SemaphoreBarrier, Workspace
from fireiron.ir.statement import Ring, Stmt, SyncPoint
from fireiron.ir.text import Path
from fireiron.spec import Spec
from fireiron.values.expr import Expr, Var, as_expr, constant
from fireiron.values.machine import Architecture
from fireiron.values.units import BLOCK, THREAD


@attrs.frozen(cache_hash=True)
class Kernel(Displayed):
    """A kernel in the IR: its launch, its parameters and buffers, and its program.

    - `grid`, `threads`, `workers`: the grid has `grid` blocks of `threads` threads. Tiles are distributed over the first `workers` threads.
    - `buffers`: parameters first. `symbols`: the run-time sizes, which are parameters, too.
    - `body`: the program. `spec`: what it computes. `title`: the header comment of the printed kernel.
    - `facts`: conditions on sizes that the launcher checks.
    - `effects`: properties of all blocks and of the launch (`fireiron.ir.effects`): programmatic launch, outputs that are zeroed first, a
      bound on shared memory, blocks per SM, accepted races.
    - `rings`: the circular buffers that producers fill for consumers.
    - `cluster`: the cluster that its blocks form, if any.
    - `reciprocals`: the reciprocals of launch constants that the kernel divides by; they are parameters after the sizes.
    - `counter`: with dynamic tile scheduling, the counter of claimed tiles; it is the last parameter.
    - `workspace`: memory that the launcher provides, if blocks produce results together; it is the last parameter.
    - `joined`: the kernels of the launches that this one performs together, if it was joined from several (`lower.overlap`).
    - `makers`: maps the name of a value, loop or buffer to the step of the tree that defined it, for listings.
    """

    name: str
    architecture: Architecture
    grid: Expr
    threads: int
    buffers: tuple[Buffer, ...]
    symbols: tuple[Var, ...]
    body: tuple[Stmt, ...]
    spec: Spec
    title: tuple[str, ...] = ()
    facts: tuple[tuple[str, Expr], ...] = ()
    shared_bytes: int = 0
    ineffective: tuple[SyncPoint, ...] = ()
    rings: tuple[Ring, ...] = attrs.field(default=(), kw_only=True)
    cluster: BlockCluster | None = attrs.field(default=None, kw_only=True)
    effects: Effects = attrs.field(default=effect.NONE, kw_only=True)
    makers: Mapping[str, Path] = attrs.field(factory=dict, eq=False, repr=False, kw_only=True)
    reciprocals: tuple[Reciprocal, ...] = attrs.field(default=(), kw_only=True)
    counter: Counter | None = attrs.field(default=None, kw_only=True)
    workspace: Workspace | None = attrs.field(default=None, kw_only=True)
    joined: tuple[Kernel, ...] = attrs.field(default=(), kw_only=True, repr=False)
    workers: int = attrs.field(default=attrs.Factory(lambda kernel: kernel.threads, takes_self=True), kw_only=True)

    def __repr__(self) -> str:
        return f"<kernel IR of {self.name}: {self.spec} for {self.architecture}, {self.grid} blocks of {self.threads} threads>"

    @property
    def thread(self) -> Var:
        """The variable of a thread's number in its block, among the threads that tiles are distributed over."""
        return Var(THREAD.name, 0, self.workers - 1)

    @property
    def block(self) -> Var:
        """The variable of a block's number in the grid."""
        number = constant(self.grid)
        return BLOCK if number is None else Var(BLOCK.name, 0, max(number - 1, 0))

    @functools.cached_property
    def _by_name(self) -> Mapping[str, Buffer]:
        return {buffer.name: buffer for buffer in self.buffers}

    def buffer(self, name: str) -> Buffer:
        """A buffer by name."""
        return self._by_name[name]

    def ring(self, name: str) -> Ring:
        """A ring by name."""
        return next(ring for ring in self.rings if ring.name == name)

    @property
    def block_bytes(self) -> int:
        """Bytes of all memories of a block in one numbering: shared memory, then other regions."""
        other_regions = (buffer for buffer in self.buffers if buffer.memory.of_block and not buffer.memory.in_shared)
        return max((one.offset + one.bytes for one in other_regions), default=self.shared_bytes)

    @property
    def dynamic_shared_bytes(self) -> int:
        """Bytes of dynamic shared memory that a launch must request; 0 if static arrays suffice."""
        shared = [buffer for buffer in self.buffers if buffer.memory.in_shared]
        # Overlapping arrays cannot be declared separately in C++: they become pointers into one array.
        pairs = itertools.combinations(shared, 2)
        overlap = any(a.offset < b.offset + b.bytes and b.offset < a.offset + a.bytes for a, b in pairs)
        return self.shared_bytes if overlap or self.shared_bytes > self.architecture.static_shared else 0

    @functools.cached_property
    def maps(self) -> tuple[TensorMap, ...]:
        """The tensor maps that are parameters."""
        return tuple(one for one in self.parameters if isinstance(one, TensorMap))

    @functools.cached_property
    def parameters(self) -> tuple[TensorMap | Buffer | Var | Reciprocal | Counter | Workspace, ...]:
        """The parameters in order: for each buffer its tensor maps, and a pointer if some statement accesses it without a map; then sizes,
        reciprocals, the tile counter and the workspace.
        """
        result: list[TensorMap | Buffer | Var] = []
        performed = [stmt for stmt, _ in execs(self.body)]
        for buffer in self.buffers:
            if buffer.parameter:
                accessing = [one for one in performed if any(access.buffer == buffer.name for access in one.accesses)]
                maps = dict.fromkeys(
                    stmt.tensor_map for stmt in accessing if stmt.tensor_map is not None and stmt.tensor_map.buffer == buffer.name
                )
                result += maps
                if not maps or any(one.tensor_map is None for one in accessing):
                    result.append(buffer)
            elif buffer.workspace:
                result += dict.fromkeys(
                    stmt.tensor_map for stmt in performed if stmt.tensor_map is not None and stmt.tensor_map.buffer == buffer.name
                )
        provided = tuple(one for one in (self.counter, self.workspace) if one is not None)
        return (*result, *self.symbols, *self.reciprocals, *provided)

    @functools.cached_property
    def awaits_copies(self) -> bool:
        """Whether threads wait for copies by warps of any block, so that all blocks must be resident."""
        return any(isinstance(one, SemaphoreBarrier) and one.action.counts_copies for one in statements(self.body))

    @property
    def exchanges(self) -> bool:
        """Whether the launches on the GPUs of a node wait for each other, so that all of them run at once."""
        return self.workspace is not None and self.workspace.exchange is not None

    @property
    def gathers(self) -> bool:
        """Whether warps of the launch copy the parts of other GPUs, of an array that other warps read."""
        return self.workspace is not None and self.workspace.regions is not None and self.workspace.regions.rank is not None

    def workspace_offset(self, buffer: Buffer) -> Expr:
        """The byte at which a buffer of the workspace starts; legal without words of scans."""
        before = itertools.takewhile(lambda one: one is not buffer, (one for one in self.buffers if one.workspace))
        return sum((one.total * one.dtype.bytes for one in before), as_expr(MOST_SEMAPHORES * SEMAPHORE_BYTES))

    @property
    def workspace_bytes(self) -> Expr:
        """Bytes of the workspace: all semaphores, then the partial results; or the words of scans."""
        if self.workspace is not None and self.workspace.looks_back:
            return self.workspace.semaphores * SEMAPHORE_BYTES
        partial = (buffer.total * buffer.dtype.bytes for buffer in self.buffers if buffer.workspace)
        return sum(partial, as_expr(MOST_SEMAPHORES * SEMAPHORE_BYTES))


def buffer_table(kernel: Kernel) -> Mapping[str, Buffer]:
    """All buffers by name."""
    return kernel._by_name
