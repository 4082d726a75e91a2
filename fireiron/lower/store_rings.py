"""`store_rings`: give each tile that TMA stores a circular buffer, so that a separate warp can store it.

    for n: write tile; store tile   -->   for n: write tile[f % stages]; store tile[f % stages]      (fill f)

The program stays sequential. The writes of a tile are marked as a fill of a ring, whose number counts through all enclosing loops.
`specialize` assigns the store to a separate role, which acquires each fill full and releases it empty. If several units of threads, such as
warpgroups, each write and store a tile, the tiles of all units are one fill: they are adjacent in each stage.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fireiron.errors import DecompositionError
from fireiron.frozen import evolve, frozen
from fireiron.ir import AT_ONCE, Access, Buffer, Comment, Exec, For, Kernel, Ring, Stmt, edited, execs, statements
from fireiron.ir.asks.producer_threads import ProducerThreads
from fireiron.ir.asks.storing import Storing
from fireiron.ir.rewrite import without_asks
from fireiron.lower.walk import fresh_name, taken_names
from fireiron.values.expr import ZERO, Expr, as_expr, constant, mod
from fireiron.values.layout import Layout
from fireiron.values.tensor import Storage


def store_rings(kernel: Kernel) -> Kernel:
    """The kernel with a ring for each tile that TMA stores, if a loop with a producer requests it. A comment states why there is none.

    Raises: DecompositionError if a store cannot be left to a separate warp.
    """
    loops = [stmt for stmt in statements(kernel.body) if isinstance(stmt, For) and Storing in stmt.asks]
    if not loops:
        return kernel
    stages = max((loop.asks[Storing].stages for loop in loops if ProducerThreads in loop.asks), default=0)
    kernel = evolve(kernel, body=without_asks(kernel.body, Storing))
    stores = tuple(_stores(kernel.body))
    if not stages or not stores:
        reason = "TMA stores no tile" if stages else "there is no producer, as all threads copy"
        return evolve(kernel, body=(Comment(f"store_stages has no effect: {reason}"), *kernel.body))
    for store in stores:
        kernel = store.staged(kernel, stages)
    return kernel


def _stores(body: Sequence[Stmt], around: tuple[Stmt, ...] = ()) -> Iterator[_Store]:
    """The stores that still read shared memory when their threads continue."""
    for number, stmt in enumerate(body):
        if isinstance(stmt, Exec) and stmt.mechanism.outlives:
            yield _Store(stmt, tuple(body[:number]), around)
        for child in stmt.children:
            yield from _stores(child, (*around, stmt))


@frozen(eq=False)
class _Store:
    """A store, the statements before it in its list, and the enclosing statements, outermost first."""

    store: Exec
    before: tuple[Stmt, ...]
    around: tuple[Stmt, ...]

    @property
    def source(self) -> Access:
        """The access by which the store reads its buffer."""
        return next(access for access in self.store.accesses if not access.write)

    def staged(self, kernel: Kernel, stages: int) -> Kernel:
        """The kernel in which the buffer of the store is a ring with a given number of stages.

        Raises: DecompositionError if the buffer cannot be a ring.
        """
        buffer = kernel.buffer(self.source.buffer)
        problem = self._problem(kernel, buffer)
        if problem:
            raise DecompositionError(
                f"warp_specialize(store_stages={stages}): a separate warp cannot store {buffer.name}: {problem}",
                within=self.store.spec,
                at=self.store.origin,
                legal="a buffer that threads write and one TMA store reads, once in each iteration of the loops around it",
                hint="leave out store_stages=, or load the source of the store with .load(Move.src, SH, Move.done())",
            )
        ring, fill = Ring(fresh_name(f"{buffer.name}_ring", taken_names(kernel)), stages, (buffer.name,)), self._fill_index()
        stage = mod(fill, as_expr(stages))

        def edit(stmt: Exec) -> Exec:
            own = [access for access in stmt.accesses if access.buffer == buffer.name]
            if not own:
                return stmt
            accesses = tuple(evolve(_in_stage(one, buffer), copy=stage) if one in own else one for one in stmt.accesses)
            if not any(one.write for one in own):
                return evolve(stmt, accesses=accesses)
            return evolve(stmt, accesses=accesses, ring=ring.name, fill_index=fill)

        buffers = tuple(_with_stages(buffer, stages) if one is buffer else one for one in kernel.buffers)
        return evolve(kernel, body=tuple(edited(kernel.body, edit)), buffers=buffers, rings=(*kernel.rings, ring))

    def _problem(self, kernel: Kernel, buffer: Buffer) -> str:
        """Why the buffer cannot be a ring; empty if it can."""
        accesses = [(stmt, access) for stmt, _ in execs(kernel.body) for access in stmt.accesses if access.buffer == buffer.name]
        before = {id(stmt) for stmt, _ in execs(self.before)}
        loops = [stmt for stmt in self.around if isinstance(stmt, For) and (stmt.first, stmt.step) == (0, 1)]
        if len(loops) < len(self.around) or any((constant(loop.extent) or 0) < 1 for loop in loops[1:]):
            return "the store is in a condition, or in a loop whose trip count varies"
        if any(stmt is not self.store for stmt, access in accesses if not access.write):
            return "other statements read it"
        if any(id(stmt) not in before or stmt.mechanism is not AT_ONCE for stmt, access in accesses if access.write):
            return "it is not written by threads, directly before the store"
        if buffer.tensor.reuse:
            return "it reuses the memory of other buffers"
        return ""

    def _fill_index(self) -> Expr:
        """The number of an execution of the store, counted through all enclosing loops."""
        number: Expr = ZERO
        for loop in self.around:
            assert isinstance(loop, For)
            number = number * loop.extent + loop.var
        return number


def _in_stage(access: Access, buffer: Buffer) -> Access:
    """The access to the part of a stage that replaces the copy of a unit of threads."""
    shift = access.copy * buffer.tensor.shape[0]
    first, *others = access.bounds
    bounds = (None if first is None else first + shift, *others)
    return evolve(access, base=(access.base[0] + shift, *access.base[1:]), bounds=bounds)


def _with_stages(buffer: Buffer, stages: int) -> Buffer:
    """A buffer with stages; its copies, one per unit, become adjacent parts of each stage, along the first dimension."""
    tensor, storage, copies = buffer.tensor, buffer.storage, buffer.tensor.copies
    if copies > 1:
        shape, strides = storage.layout.shape, storage.layout.stride
        assert isinstance(shape, tuple) and isinstance(strides, tuple), storage
        layout = Layout(((shape[0], copies), *shape[1:]), ((strides[0], constant(storage.extent) or 0), *strides[1:]))
        storage = Storage(layout, storage.extent * copies, storage.swizzle)
        tensor = evolve(tensor, shape=(tensor.shape[0] * copies, *tensor.shape[1:]), layout=layout)
    return evolve(buffer, tensor=evolve(tensor, copies=stages), storage=storage, elements=storage.extent)


__all__ = ["store_rings"]
