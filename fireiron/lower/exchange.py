"""Add the sums of all GPUs in the launch that computes them: blocks store tiles on the GPU that adds them, whose warps await and add them.

    launch 1: store own sums             consumers:    for each tile: store it on the GPU that owns its rows; count it there
    barrier of all GPUs                  -->
    launch 2: add the sums of all GPUs   adding warps: for each tile of own rows: wait until all GPUs have stored it; add their sums

Both launches are lowered separately. `exchanged` joins them. The workspaces of all GPUs are mapped at equal distances, so that the sums of
all GPUs are rows of one array, which one tensor map describes. Tiles of rows that other GPUs own, and own ones, alternate. If each GPU
stores the complete result, blocks store each tile on all GPUs, first on others, and each GPU adds all tiles.

Semaphores only grow, one per region and GPU that stores: launch `e` waits for `e + 1` times the tiles of a region of each GPU. One for all
GPUs would count those that are a launch ahead for others. So no launch resets a semaphore, and no barrier of GPUs
separates launches. The number of the launch is in memory, a word per warp, which the warp reads first and increments last: a launch of a
CUDA graph counts, too. Sums have two places, for even and odd launches. A GPU stores sums for launch `e + 2` after it has added those of
all GPUs in launch `e + 1`, before which each of them has read the sums of launch `e`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import attrs

from fireiron.errors import DecompositionError
from fireiron.ir import (
    WARP_SCOPE,
    WARPGROUP_SCOPE,
    Access,
    Buffer,
    Commit,
    Exec,
    For,
    Kernel,
    Let,
    Role,
    Scope,
    SemaphoreAction,
    SemaphoreBarrier,
    Stmt,
    Wait,
    Workspace,
    execs,
    lets,
    rewritten,
    statements,
)
from fireiron.ir.overlap import Exchange, Regions
from fireiron.ir.semaphore import HEADER_WORDS, MOST_SEMAPHORES, SEMAPHORE_BYTES
from fireiron.lower.overlap import LAUNCH, WARP_THREADS, JoinedRole, Rotation, number_along, opened
from fireiron.spec import Spec
from fireiron.specs.move import Move
from fireiron.values.expr import FALSE, TRUE, Expr, Var, as_expr, equal, less
from fireiron.values.tensor import RowMajor


def exchanged(kernel: Kernel, sum_: Kernel, spec: Spec, gpus: int, tile: tuple[int, ...], warps: int) -> Kernel:
    """Return one kernel that computes sums, stores them on the GPUs that add them, and adds those of all GPUs.

    Args:
        kernel: the final kernel of the launch that computes the sums of a GPU, in its output C.
        sum_: the final kernel of the launch that adds the sums `P` of all GPUs, in which a block is a warp that adds one tile.
        spec: the spec of the joined launch, whose output is the part of the result that a GPU stores.
        gpus: the number of GPUs.
        tile: the sizes of a region, for whose sums a warp waits.
        warps: the number of adding warps of a block.

    Raises: DecompositionError if the kernel does not store tiles by TMA in a loop over tiles, or if sizes do not fit.
    """
    return _Exchange(kernel, sum_, spec, gpus, tile, warps).joined()


@attrs.frozen
class Alternation(Rotation):
    """An order in which tiles of the parts of all GPUs alternate, so that stores to other GPUs never fill the link.

    `shift` is the number of the GPU whose part is first, of `gpus`.
    """

    gpus: int

    def of(self, number: Expr) -> Expr:
        return (number % self.gpus + self.shift) % self.gpus * (self.count // self.gpus) + number // self.gpus


class _Exchange(JoinedRole):
    name = "adding warps"
    what = "the sum"

    def __init__(self, kernel: Kernel, copy: Kernel, spec: Spec, gpus: int, tile: tuple[int, ...], warps: int) -> None:
        super().__init__(kernel, copy, spec, tile, warps)
        self.gpus, self.sums, self.rank = gpus, "sums_of_c", Var("gpu", 0, gpus - 1)
        self.rows, self.columns = (self.number(size, "elements") for size in kernel.buffer("C").tensor.shape)
        self.part = self.number(copy.buffer("C").tensor.shape[0], "rows of the result")
        self.storing = self._storing().name
        self.write, self.loops = self._store()
        self.exchange, self.regions = self._exchange(), self._regions()
        self.alone, self.kernel = kernel, attrs.evolve(kernel, body=self._rotated(kernel.body))
        self.__dict__.pop("top", None)
        self.write, self.loops = self._store()

    def joined(self) -> Kernel:
        """The joined kernel."""
        roles = self.with_role([self._changed(role) for role in self.top.roles])
        roles = [attrs.evolve(role, body=self._numbered(role, roles[-1])) if self._uses_sums(role) else role for role in roles]
        buffers = [self._stored() if one.name == "C" else one for one in self.kernel.buffers]
        buffers += [one for one in self.copy.buffers if one.name != "P"]
        buffers.sort(key=lambda one: not one.parameter)
        words = self.regions.count * self.gpus + self.blocks * (roles[-1].first // WARP_THREADS + 1)
        if words > MOST_SEMAPHORES - HEADER_WORDS:
            raise self.refused(f"{words} semaphores", f"at most {MOST_SEMAPHORES - HEADER_WORDS}: larger regions")
        workspace = Workspace("workspace", as_expr(words), regions=self.regions, exchange=self.exchange)
        joined = self.joined_kernel(roles, buffers, workspace, (*self.kernel.symbols, self.rank))
        return attrs.evolve(joined, joined=(self.alone, self.copy))

    def refused(self, why: str, legal: str) -> DecompositionError:
        return DecompositionError(
            f"to_gpus(...).overlap{self.tile}: {why}", legal=legal, within=self.kernel.spec, hint="remove overlap(...)"
        )

    def fresh(self, name: str) -> str:
        return f"sum_{name}"

    def _uses_sums(self, role: Role) -> bool:
        return any(access.buffer == self.sums for stmt, _ in execs(role.body) for access in stmt.accesses)

    # ------------------------------------------------------------------------------------------ the consumers, or warp, that store

    def _storing(self) -> Role:
        """The role that stores sums: the consumers, or a storing warp."""
        for role in self.top.roles[1:]:
            if any(access.buffer == "C" for stmt, _ in execs(role.body) for access in stmt.accesses):
                return role
        return self.top.roles[0]

    @property
    def _by_consumers(self) -> bool:
        """Whether the warpgroups that compute tiles store them."""
        return self.storing == self.top.roles[0].name

    def _store(self) -> tuple[Access, tuple[For, ...]]:
        """The store of a tile of sums, and the loops around it, of which the first is that over tiles, if there is one."""
        stores = [
            (stmt, access, loops)
            for role in self.top.roles
            for stmt, loops in execs(role.body)
            for access in stmt.accesses
            if access.buffer == "C" and access.write
        ]
        legal = "one store of a tile by TMA: epilog(RF, float32, Init, Move.tile(...).to(Warpgroup).load('src', SH, Move.done())...)"
        if len(stores) != 1 or not stores[0][0].mechanism.outlives or stores[0][0].tensor_map is None:
            raise self.refused("the sums are not stored by TMA, by the warpgroups that compute them, or by a storing warp", legal)
        ((_, access, loops),) = stores
        if any(bound is not None for bound in access.bounds):
            raise self.refused("tiles extend past the end of the result", "sizes that are multiples of the tiles")
        if any(ring.each for ring in self.kernel.rings):
            raise self.refused("warpgroups alternate tiles", "warpgroups that compute a tile together")
        return access, tuple(loops)

    @property
    def _over_tiles(self) -> For | None:
        """The loop of persistent blocks over tiles."""
        outer = self.loops[0] if self.loops else None
        computing = {loop.var for stmt, loops in execs(self.top.roles[0].body) if stmt.mechanism.in_registers for loop in loops}
        return outer if outer is not None and outer.var in computing else None

    def _changed(self, role: Role) -> Role:
        """A role of the product, which stores tiles on the GPU that adds them, and counts them there.

        Consumers count a tile after they have computed the next one, as they would wait for the link before. A storing warp counts it
        at once, and has one store in flight.
        """
        loop = self._over_tiles
        named = lets((*self.kernel.body, *role.body))
        first = [opened(coordinate, named).substitute(self._inner) for coordinate in self.write.base]

        def changed(stmt: Stmt) -> tuple[Stmt, ...]:
            if isinstance(stmt, Exec) and any(access.buffer == "C" for access in stmt.accesses):
                assert stmt.tensor_map is not None
                tensor_map = attrs.evolve(stmt.tensor_map, buffer=self.sums, name=f"{self.sums}_map")
                return tuple(attrs.evolve(stmt, accesses=one, tensor_map=tensor_map) for one in self._of_owners(stmt.accesses))
            if loop is not None and isinstance(stmt, For) and stmt.var == loop.var and not self._by_consumers:
                return (attrs.evolve(stmt, body=(*stmt.body, *self._signals(first, TRUE))),)
            if loop is not None and isinstance(stmt, For) and stmt.var == loop.var:
                before = {loop.var: loop.var - 1}
                stored = next(place for place, one in enumerate(stmt.body) if _writes(one, self.sums))
                signals = self._signals([value.substitute(before) for value in first], less(0, loop.var))
                return (attrs.evolve(stmt, body=(*stmt.body[:stored], *signals, *stmt.body[stored:])),)
            return (stmt,)

        if role.name != self.storing:
            return role
        if loop is not None and not self._by_consumers:
            return attrs.evolve(role, body=self._one_by_one(rewritten(role.body, changed)))
        last: dict[Var, Expr | int] = {} if loop is None else {loop.var: loop.extent - 1}
        active = TRUE if loop is None else less(0, loop.extent)
        signals = self._signals([value.substitute(last) for value in first], active)
        body = rewritten(role.body, changed)
        return attrs.evolve(role, body=(*(body if self._by_consumers else self._one_by_one(body)), *signals))

    def _one_by_one(self, body: Sequence[Stmt]) -> tuple[Stmt, ...]:
        """The program of a storing warp that waits until a store has arrived before it issues the next one.

        If all SMs store tiles on other GPUs at once, the link is full, and loads of the main loop wait for these stores. Stores on the own
        GPU need no link, so the next one follows when they have read shared memory; their count waits until they have arrived.
        """
        waits = [stmt for stmt in statements(body) if isinstance(stmt, Wait) and stmt.mechanism.outlives]

        def changed(stmt: Stmt) -> tuple[Stmt, ...]:
            if isinstance(stmt, Exec) and stmt.mechanism.outlives:
                (row,) = (access.base[0] for access in stmt.accesses if access.buffer == self.sums)
                own = equal(row // self.exchange.rows, self.rank) if self.part < self.rows else FALSE
                wait = Wait(0, "one store in flight", stmt.mechanism, arrival=True, reads_suffice=own, orders=waits[0].orders)
                return (stmt, Commit(stmt.mechanism), wait)
            return () if isinstance(stmt, (Commit, Wait)) and stmt.mechanism.outlives else (stmt,)

        return rewritten(tuple(body), changed)

    @property
    def _inner(self) -> Mapping[Var, Expr | int]:
        """The first iteration of the loops over the parts of a tile."""
        return {loop.var: 0 for loop in self.loops if loop is not self._over_tiles}

    def _owners(self, row: Expr) -> list[Expr]:
        """The GPUs that add a row of sums: the one that stores this row of the result; or all, others before this GPU."""
        if self.part < self.rows:
            return [row // self.part]
        return [(self.rank + step + 1) % self.gpus for step in range(self.gpus)]

    def _of_owners(self, accesses: Sequence[Access]) -> Iterator[tuple[Access, ...]]:
        """The accesses of stores of own sums, on each GPU that adds them."""
        row, column = next(access.base for access in accesses if access.buffer == "C")
        for owner in self._owners(row):
            base = (self.exchange.sums(owner, LAUNCH, self.rank, row % self.part), column)
            yield tuple(attrs.evolve(one, buffer=self.sums, base=base) if one.buffer == "C" else one for one in accesses)

    def _signals(self, first: Sequence[Expr], active: Expr) -> Iterator[SemaphoreBarrier]:
        """The counts of a tile, whose first element has these coordinates, on each GPU that adds it."""
        row, column = first
        index = self.regions.index((row % self.part, column)) * self.gpus + self.rank
        scope, tile = (WARPGROUP_SCOPE, "preceding") if self._by_consumers else (WARP_SCOPE, "stored")
        signal = self._semaphore(scope, SemaphoreAction.SIGNAL, index, f"count the {tile} tile on the GPU that adds it")
        for place, owner in enumerate(self._owners(row)):
            yield attrs.evolve(signal, gpu=owner, active=active, arrived=True, launch=LAUNCH, follows=place > 0)

    def _rotated(self, body: Sequence[Stmt]) -> tuple[Stmt, ...]:
        """The program in which tiles of rows of all GPUs alternate, if they have a number along rows: the next GPU's first, own last."""
        number = number_along(self.kernel, self.write.base, 0)
        if number is None or number == self.kernel.block or (number.high + 1) % self.gpus or self.part == self.rows:
            return tuple(body)
        return rewritten(tuple(body), Alternation(number, number, self.rank + 1, number.high + 1, self.gpus).let)

    # ------------------------------------------------------------------------------------------ the adding warps

    def access(self, access: Access) -> Access:
        if access.buffer != "P":
            return access
        if any(access.shape[dim] != 1 for dim in (0, 2)):
            raise self.refused("a thread loads sums of several rows or GPUs by one instruction", "a vector of one row of one GPU")
        row, column, source = access.base
        base = (self.exchange.sums(self.rank, LAUNCH, source, row), column)
        return attrs.evolve(
            access, buffer=self.sums, base=base, modes=access.modes[:2], bounds=access.bounds[:2], unit_modes=access.unit_modes[:2]
        )

    def statement(self, stmt: Exec) -> Exec:
        """A load of sums has no dimension of GPUs, since the sums of all GPUs are rows of one array."""
        changed = super().statement(stmt)
        if all(access.buffer != "P" for access in stmt.accesses):
            return changed
        views = {name: attrs.evolve(view, axes=(0, 1)) for name, view in stmt.spec.operands.items()}
        return attrs.evolve(changed, spec=Move.on(stmt.spec.level, *views.values()))

    def of_tile(self, body: tuple[Stmt, ...], lane: Var) -> tuple[Stmt, ...]:
        """The program of a tile, for whose sums a warp waits first."""
        write = next(access for stmt, _ in execs(body) for access in stmt.accesses if access.buffer == "C" and access.write)
        index = self.regions.index(self.of_warp(body, write, lane)) * self.gpus
        wait = self._semaphore(WARP_SCOPE, SemaphoreAction.AWAIT, index, "until all GPUs have stored their sums")
        names = [stmt for stmt in body if isinstance(stmt, Let)]
        wait = attrs.evolve(wait, position=as_expr(self.regions.copies), launch=LAUNCH)
        return (*names, wait, *(stmt for stmt in body if not isinstance(stmt, Let)))

    # ------------------------------------------------------------------------------------------ semaphores

    def _numbered(self, role: Role, producer: Role) -> tuple[Stmt, ...]:
        """The program of a role, whose warps read the number of the launch first, and increment it last."""
        warps = producer.first // WARP_THREADS + 1
        block, thread = self.kernel.block, self.kernel.thread
        if role.first >= self.kernel.workers:
            thread = Var(thread.name, 0, warps * WARP_THREADS - 1)
        index = block * warps + thread // WARP_THREADS + self.regions.count * self.gpus
        begin = self._semaphore(WARP_SCOPE, SemaphoreAction.BEGIN, index, "the number of this launch")
        end = self._semaphore(WARP_SCOPE, SemaphoreAction.END, index, "the number of the next launch")
        return (attrs.evolve(begin, last=LAUNCH), *role.body, attrs.evolve(end, launch=LAUNCH))

    def _semaphore(self, scope: Scope, action: SemaphoreAction, index: Expr, reason: str) -> SemaphoreBarrier:
        """An action on a semaphore of the workspace."""
        count, gpus = as_expr(self.regions.count), as_expr(self.gpus)
        return SemaphoreBarrier(scope, reason, action=action, group=self.sums, index=index, blocks=gpus, count=count)

    # ------------------------------------------------------------------------------------------ sizes

    def _exchange(self) -> Exchange:
        """The memory of the exchange."""
        row, used = self.columns * self.kernel.buffer("C").dtype.bytes, 2 * self.gpus * self.part
        return Exchange.of(self.gpus, self.rank, self.part, row, used, MOST_SEMAPHORES * SEMAPHORE_BYTES)

    def _regions(self) -> Regions:
        """The regions: whole numbers of them in the part of a GPU, and of the tiles of warpgroups and of adding warps in each."""
        stored = [size * math.prod(self._steps_along(dim)) for dim, size in enumerate(self.write.shape)]
        added = next(access for stmt, _ in execs(self.copy.body) for access in stmt.accesses if access.buffer == "C" and access.write)
        threads = self.number(self.copy.grid, "tiles of the sum")
        elements = self.part * self.columns // threads
        for size, part, store in zip((self.part, self.columns), self.tile, stored, strict=True):
            if size % part or part % store:
                raise self.refused(
                    f"regions of {part} of {size} elements, and stores of {store}", f"a multiple of {store} that divides {size}"
                )
        if math.prod(self.tile) % elements or not added.count:
            raise self.refused(
                f"a warp adds {elements} elements, a region has {math.prod(self.tile)}", f"a multiple of {elements} elements"
            )
        return Regions(self.sums, (self.part, self.columns), self.tile, math.prod(self.tile) // math.prod(stored))

    def _steps_along(self, dim: int) -> Iterator[int]:
        """The numbers of iterations of the loops that move a store along a dimension of a warpgroup's tile."""
        for loop in self.loops:
            if loop is not self._over_tiles and loop.var in self.write.base[dim].variables():
                yield self.number(loop.extent, "iterations")

    def _stored(self) -> Buffer:
        """The sums of all GPUs: rows at equal distances."""
        own = self.kernel.buffer("C")
        shape = (as_expr((self.gpus - 1) * self.exchange.rows + self.exchange.used), as_expr(self.columns))
        if own.tensor.order != RowMajor:
            raise self.refused("a column-major result", "C=RowMajor.over(GPU, 'm')")
        tensor = attrs.evolve(own.tensor, name=self.sums, shape=shape, layout=RowMajor, portion=None)
        return attrs.evolve(
            own, tensor=tensor, storage=tensor.storage(), elements=tensor.storage().extent, parameter=False, written=True, workspace=True
        )


def _writes(stmt: Stmt, buffer: str) -> bool:
    """Whether a statement or one inside of it writes a buffer."""
    return any(access.buffer == buffer and access.write for one, _ in execs((stmt,)) for access in one.accesses)


__all__ = ["exchanged"]
