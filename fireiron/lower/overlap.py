"""Copy an array in the launch that reads it: additional warps of each block copy, and readers wait for the regions that they need.

The array is distributed over GPUs. Each GPU copies its part to all others, first to the next one. Readers load the part of the launch's GPU
where it is stored, and the copies of other parts. Blocks compute tiles of the own part first.

    launch 1: copy A to B             producer: for k: wait for the region of B[k]; load B[k] ...
    launch 2: for k: load B[k] ...    -->       copying warps: for each other GPU and own tile of A: copy it to B there; count it there

Both launches are lowered separately. `overlapped` joins them: the copy becomes the program of a role, whose blocks are those of the
reading launch. The copied array is a part of the workspace, and the workspaces of all GPUs are mapped at equal distances. A semaphore per
region counts the copies of warps. All blocks must be resident, because a block waits for copies by any block of other GPUs.

No barrier of GPUs surrounds the launch, and no copying warp waits. Copies have two places, for even and odd launches. A GPU copies for
launch `e + 2` after it has read the copies of all GPUs in launch `e + 1`, before which each of them has read those of launch `e`. Other
GPUs access the copies only, so the part needs no memory that they can read, and may change after the launch. Semaphores only grow: launch
`e` waits for `e + 1` times the counts of a launch. Each copying warp, and the producer, has a word with the number of the launch.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import attrs

from fireiron.errors import DecompositionError
from fireiron.ir import (
    THREAD_SCOPE,
    WARP_SCOPE,
    Access,
    Buffer,
    Exec,
    For,
    Kernel,
    Let,
    Role,
    Roles,
    Scope,
    SemaphoreAction,
    SemaphoreBarrier,
    Stmt,
    Workspace,
    execs,
    lets,
    rewritten,
    statements,
    substituted,
)
from fireiron.ir.overlap import Exchange, Regions
from fireiron.ir.semaphore import HEADER_WORDS, MOST_SEMAPHORES, SEMAPHORE_BYTES
from fireiron.spec import Spec
from fireiron.specs.move import Move
from fireiron.values.expr import INT_MAX, Expr, Var, all_of, as_expr, constant, equal, less
from fireiron.values.indirect import DimIndex
from fireiron.values.tensor import RowMajor

WARP_THREADS = 32

NAME = "copying warps"
"""The name of the role."""

LAUNCH: Final = Var("launch", 0, INT_MAX)
"""The number of the launch."""


def overlapped(kernel: Kernel, copy: Kernel, spec: Spec, operand: str, tile: tuple[int, ...], warps: int) -> Kernel:
    """Return one kernel that performs a copy while it reads the result.

    Args:
        kernel: the final kernel of the reading launch, in which `operand` is the copied array.
        copy: the final kernel of the copy, from `src` to `dst`, in which a block is a warp that copies one tile.
        spec: the spec of the joined launch, in which `operand` is the part of the launch's GPU.
        tile: the sizes of a region.
        warps: the number of copying warps of a block.

    Raises: DecompositionError if the kernel has no producer, or if sizes do not fit.
    """
    return _Join(kernel, copy, spec, operand, tile, warps).joined()


@attrs.frozen
class Rotation:
    """An order of tiles that begins at another place on each GPU.

    Attributes:
        number: the variable that numbers the tiles along a dimension, in the given order.
        place: the variable of the number in the new order.
        shift: the tiles by which the order of this GPU begins later.
        count: the number of tiles.
    """

    number: Var
    place: Var
    shift: Expr
    count: int

    def of(self, number: Expr) -> Expr:
        """Return the place of a tile in the new order."""
        return (number + self.shift) % self.count

    def let(self, stmt: Stmt) -> tuple[Stmt, ...]:
        """Return a statement with the new order, if it is the definition of the place."""
        return (attrs.evolve(stmt, value=self.of(stmt.value)),) if isinstance(stmt, Let) and stmt.var == self.place else (stmt,)


def number_along(kernel: Kernel, base: Sequence[Expr], dim: int) -> Var | None:
    """Return the variable that numbers the tiles of a kernel along a dimension of an access: no other dimension, and no thread, uses it.

    In clusters, it numbers the clusters.
    """
    named = lets(kernel.body)
    places = frozenset(() if kernel.cluster is None else kernel.cluster.places)
    others = {var for place, coordinate in enumerate(base) if place != dim for var in coordinate.variables()}
    numbers = [stmt.var for stmt in statements(kernel.body) if isinstance(stmt, Let)] + [kernel.block]
    own = [var for var in dict.fromkeys(numbers) if var in set(base[dim].variables()) - others - places and var.low == 0 and var.high > 0]
    own = [var for var in own if kernel.thread not in opened(named.get(var, var), named).variables()]
    return own[0] if len(own) == 1 else None


class JoinedRole:
    """Perform the program of another kernel, `copy`, by the warps of a role of `kernel`: each of its blocks, a warp, computes a tile.

    Subclasses define the texts of refusals, and what the warps and other roles wait for.
    """

    name = NAME
    what = "the copy"

    def __init__(self, kernel: Kernel, copy: Kernel, spec: Spec, tile: tuple[int, ...], warps: int) -> None:
        self.kernel, self.copy, self.spec, self.tile, self.warps = kernel, copy, spec, tile, warps
        self.blocks = self.number(kernel.grid, "blocks")

    @functools.cached_property
    def top(self) -> Roles:
        """The roles of the kernel. Raises: DecompositionError if it has no producer, or if blocks share results."""
        kernel = self.kernel
        top = next((stmt for stmt in kernel.body if isinstance(stmt, Roles)), None)
        if top is None or not top.roles[-1].elected or kernel.workspace is not None or kernel.counter is not None:
            raise self.refused("the kernel has no producer, or blocks that share results or tiles", "warp_specialize(), static tiles")
        return top

    def refused(self, why: str, legal: str) -> DecompositionError:
        """Return the error of a kernel that cannot perform both."""
        raise NotImplementedError

    def of_tile(self, body: tuple[Stmt, ...], lane: Var) -> tuple[Stmt, ...]:
        """The program of a tile of a warp."""
        raise NotImplementedError

    def access(self, access: Access) -> Access:
        """An access of the other kernel, in the joined one."""
        raise NotImplementedError

    def statement(self, stmt: Exec) -> Exec:
        """A statement of the other kernel, in the joined one."""
        return attrs.evolve(stmt, accesses=tuple(map(self.access, stmt.accesses)))

    def of_producer(self, body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
        """The program of the producer."""
        return body

    def with_role(self, roles: Sequence[Role]) -> list[Role]:
        """Insert the role before the producer; a producer of a warpgroup gives it its other warps."""
        *others, producer = roles
        threads, spare = self.warps * WARP_THREADS, producer.threads - WARP_THREADS
        if self.copy.threads != WARP_THREADS:
            raise self.refused(f"{self.what} has blocks of {self.copy.threads} threads", f"{WARP_THREADS}: a warp computes a tile")
        if producer.registers and threads > spare:
            raise self.refused(
                f"{self.warps} {self.name}, and the warpgroup of the producer has {spare // WARP_THREADS} others",
                f"warps=1 to {spare // WARP_THREADS}",
            )
        # The warps of a warpgroup release registers together.
        idle = spare - threads if producer.registers else 0
        first = producer.first + threads + idle
        own = Role(self.name, producer.first, threads, self.program(producer.first, first), registers=producer.registers)
        rest = [Role("idle warps", producer.first + threads, idle, (), registers=producer.registers)] if idle else []
        every = Var(self.kernel.thread.name, 0, first + WARP_THREADS - 1)  # of roles after the consumers
        all_threads = {Var(every.name, 0, self.kernel.threads - 1): every}
        others = [attrs.evolve(one, body=substituted(one.body, all_threads)) if one.first >= self.kernel.workers else one for one in others]
        return [*others, own, *rest, attrs.evolve(producer, first=first, threads=WARP_THREADS, body=self.of_producer(producer.body))]

    def program(self, first: int, producer: int) -> tuple[Stmt, ...]:
        """The program of the role: that of the other kernel, for the tiles of each warp.

        Its threads start with number `first`; the producer has the last warp, from number `producer` on.
        """
        copy = self.copy
        if any(isinstance(stmt, Roles) for stmt in copy.body):
            raise self.refused(f"{self.what} has roles", f"{self.what} by threads")
        thread = Var(copy.thread.name, 0, producer + WARP_THREADS - 1)
        warp, lane = Var(self.fresh("warp"), 0, self.warps - 1), Var(self.fresh("lane"), 0, WARP_THREADS - 1)
        block, tiles = Var(copy.block.name, 0, self.blocks - 1), self.number(copy.grid, f"tiles of {self.what}")
        if tiles % self.warps:
            raise self.refused(f"{self.warps} {self.name} cannot divide {tiles} tiles equally", "warps= a divisor of the tiles")
        rounds = tiles // self.warps
        bound = [stmt.var for stmt in statements(copy.body) if isinstance(stmt, (Let, For))]
        names = {var: Var(self.fresh(var.name), var.low, var.high) for var in bound}
        tile, group = Var(self.fresh("tile"), 0, tiles - 1), Var(self.fresh("group"), 0, rounds - 1)
        round_ = Var(self.fresh("round"), 0, (rounds - 1) // self.blocks)
        turned, lets = self.rotation, [Let(group, block + round_ * self.blocks), Let(tile, group * self.warps + warp)]
        values: dict[Var, Expr] = {**names, copy.thread: lane, copy.block: tile}
        if turned is not None:
            names[turned.number] = values[turned.number] = turned.place
            if turned.number == copy.block:
                lets.append(Let(turned.place, turned.of(tile)))
        body = self._bound(copy.body, names, values)
        if turned is not None:
            body = rewritten(body, turned.let)
        extent = less(block, rounds % self.blocks) + rounds // self.blocks
        of_tile = (*lets, *self.of_tile(body, lane))
        all_tiles = substituted(of_tile, {round_: 0}) if constant(extent) == 1 else (For(round_, extent, of_tile),)
        return (Let(warp, (thread - first) // WARP_THREADS), Let(lane, thread % WARP_THREADS), *all_tiles)

    @property
    def rotation(self) -> Rotation | None:
        """The order in which warps compute the tiles of the other kernel, if it differs on each GPU."""
        return None

    def _bound(self, body: Sequence[Stmt], names: Mapping[Var, Var], values: Mapping[Var, Expr]) -> tuple[Stmt, ...]:
        """The program with fresh names, numbers of threads among those of the role, and the arrays of the joined kernel."""

        def changed(stmt: Stmt) -> tuple[Stmt, ...]:
            if isinstance(stmt, Exec):
                return (self.statement(stmt),)
            if isinstance(stmt, (Let, For)) and stmt.var in names:
                return (attrs.evolve(stmt, var=names[stmt.var]),)
            return (stmt,)

        return rewritten(substituted(tuple(body), values), changed)

    def of_warp(self, body: tuple[Stmt, ...], access: Access, lane: Var) -> list[Expr]:
        """The coordinates of the first element of a tile that a warp accesses."""
        inner: dict[Var, Expr | int] = {stmt.var: 0 for stmt in statements(body) if isinstance(stmt, For)}
        return [opened(coordinate, lets(body)).substitute({**inner, lane: 0}) for coordinate in access.base]

    def joined_kernel(self, roles: Sequence[Role], buffers: Sequence[Buffer], workspace: Workspace, symbols: Sequence[Var]) -> Kernel:
        """The kernel with other roles."""
        kernel = self.kernel
        body = (Roles(tuple(roles)) if isinstance(stmt, Roles) else stmt for stmt in kernel.body)
        return attrs.evolve(
            kernel, body=tuple(body), buffers=tuple(buffers), symbols=tuple(dict.fromkeys(symbols)),
            threads=roles[-1].first + roles[-1].threads, spec=self.spec, reciprocals=(*kernel.reciprocals, *self.copy.reciprocals),
            facts=(*kernel.facts, *self.copy.facts), workspace=workspace, joined=(kernel, self.copy),
            makers={**kernel.makers, **{self.fresh(name): path for name, path in self.copy.makers.items()}},
        )  # fmt: skip

    def fresh(self, name: str) -> str:
        """The name in the joined kernel of a value of the other one."""
        return f"copy_{name}"

    def number(self, value: Expr, what: str) -> int:
        """The number that a size is. Raises: DecompositionError for run-time sizes."""
        number = constant(value)
        if number is None:
            raise self.refused(f"{what} known only at run time: {value}", "constant sizes")
        return number


def opened(value: Expr, named: Mapping[Var, Expr]) -> Expr:
    """Return an expression with named values replaced by their definitions."""
    while not named.keys().isdisjoint(value.variables()):
        value = value.substitute({var: named[var] for var in value.variables() if var in named})
    return value


class _Join(JoinedRole):
    def __init__(self, kernel: Kernel, copy: Kernel, spec: Spec, operand: str, tile: tuple[int, ...], warps: int) -> None:
        self.operand, self.copied = operand, f"gathered_{operand.lower()}"
        super().__init__(kernel, copy, spec, tile, warps)
        self.tensor = attrs.evolve(spec.operands[operand].tensor, name=operand)
        self.axis, self.part, self.gpus = self._distribution()
        self.rank = Var("gpu", 0, self.gpus - 1)
        self.regions = self._regions()
        self.exchange = self._exchange()
        self.words = self.regions.count
        self.alone, self.kernel = kernel, self._own_first()
        self.__dict__.pop("top", None)

    def joined(self) -> Kernel:
        """The joined kernel."""
        kernel = self.kernel
        roles = self.with_role([attrs.evolve(role, body=self._renamed(role.body)) for role in self.top.roles])
        buffers = [self._workspace(one) if one.name == self.operand else one for one in kernel.buffers]
        storage = self.tensor.storage()
        buffers.append(attrs.evolve(self.copy.buffer("src"), tensor=self.tensor, storage=storage, elements=storage.extent))
        names = [*self.spec.operands, *(one.name for one in buffers)]
        buffers.sort(key=lambda one: (not one.parameter, names.index(one.name)))
        words = self.words + self.blocks * (self.warps + 1)
        if words > MOST_SEMAPHORES - HEADER_WORDS:
            raise self.refused(f"{words} semaphores", f"at most {MOST_SEMAPHORES - HEADER_WORDS}: larger regions")
        workspace = Workspace("workspace", as_expr(words), regions=self.regions, exchange=self.exchange)
        symbols = (*kernel.symbols, *self.copy.symbols, self.rank)
        return attrs.evolve(self.joined_kernel(roles, buffers, workspace, symbols), joined=(self.alone, self.copy))

    # ------------------------------------------------------------------------------------------ the order of tiles

    @property
    def rotation(self) -> Rotation | None:
        """Warps copy to the next GPU first, and not to this GPU."""
        write = next(access for stmt, _ in execs(self.copy.body) for access in stmt.accesses if access.buffer == "dst")
        number, others = number_along(self.copy, write.base, self.axis), (self.gpus - 1) * self.part
        step = 0 if number is None or others % (number.high + 1) else others // (number.high + 1)
        if number is None or not step or self.part % step:
            raise self.refused("the copies of a warp have no number along the parts of GPUs", "copies of equal sizes that divide a part")
        place = Var(self.fresh(f"{number.name}_of_all"), 0, self.gpus * self.part // step - 1)
        return Rotation(number, place, (self.rank + 1) * (self.part // step), place.high + 1)

    def _own_first(self) -> Kernel:
        """The kernel whose blocks compute tiles of the own part first, if tiles have a number along the parts."""
        kernel = self.kernel
        written = (access for stmt, _ in execs(kernel.body) for access in stmt.accesses if access.write)
        stores = [access for access in written if access.buffer in self.spec.outputs]
        dim = self.spec.uses[self.operand][self.axis]
        axes = {access.buffer: self.spec.uses[access.buffer].index(dim) for access in stores if dim in self.spec.uses[access.buffer]}
        numbers = {number_along(kernel, access.base, axes[access.buffer]) if access.buffer in axes else None for access in stores}
        number = next(iter(numbers), None)
        if len(numbers) != 1 or number is None or number == kernel.block or (number.high + 1) % self.gpus:
            return kernel
        turned = Rotation(number, number, self.rank * ((number.high + 1) // self.gpus), number.high + 1)
        return attrs.evolve(kernel, body=rewritten(kernel.body, turned.let))

    # ------------------------------------------------------------------------------------------ the copying warps

    def access(self, access: Access) -> Access:
        if access.buffer == "src":
            return attrs.evolve(access, buffer=self.operand)
        *others, gpu = self._there(access.base)
        first, *rest = others
        return attrs.evolve(access, buffer=self.copied, base=(self.exchange.copies(gpu, LAUNCH, first), *rest))

    def _there(self, place: Sequence[Expr]) -> list[Expr]:
        """Where a warp copies to, for a place among the parts of all GPUs: the coordinates of the copy, and the GPU."""
        row = place[self.axis]
        copy = [row % self.part + self.rank * self.part if dim == self.axis else one for dim, one in enumerate(place)]
        return [*copy, row // self.part]

    def of_tile(self, body: tuple[Stmt, ...], lane: Var) -> tuple[Stmt, ...]:
        """The program of a tile, in which each warp counts its copy at the end, on the GPU to which it copies."""
        read = next(access for stmt, _ in execs(body) for access in stmt.accesses if access.buffer == self.operand)
        *copy, gpu = self._there(self.of_warp(body, read, lane))
        return (*body, attrs.evolve(self._semaphore(WARP_SCOPE, SemaphoreAction.SIGNAL, self.regions.index(copy)), gpu=gpu))

    def program(self, first: int, producer: int) -> tuple[Stmt, ...]:
        """The program of the copying warps, with the number of the launch."""
        warp, lane, *tiles = super().program(first, producer)
        assert isinstance(warp, Let)
        return (warp, lane, *self.numbered(WARP_SCOPE, warp.var, tiles))

    def numbered(self, scope: Scope, place: Expr, body: Sequence[Stmt]) -> tuple[Stmt, ...]:
        """The program of a warp, or of a thread, with a word of its number in the block for the number of the launch."""
        index = self.kernel.block * (self.warps + 1) + place + self.words
        begin = self._semaphore(scope, SemaphoreAction.BEGIN, index, "the number of this launch")
        end = self._semaphore(scope, SemaphoreAction.END, index, "the number of the next launch")
        return (attrs.evolve(begin, last=LAUNCH), *body, attrs.evolve(end, launch=LAUNCH))

    def _semaphore(self, scope: Scope, action: SemaphoreAction, index: Expr, reason: str = "") -> SemaphoreBarrier:
        """An action on a semaphore of the workspace."""
        count = as_expr(self.regions.count)
        return SemaphoreBarrier(scope, reason, action=action, group=self.copied, index=index, blocks=as_expr(1), count=count)

    # ------------------------------------------------------------------------------------------ the readers

    def _renamed(self, body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
        """The program of a role that reads the own part in place, and others from the copied array, for which it waits."""

        def changed(stmt: Stmt) -> tuple[Stmt, ...]:
            if isinstance(stmt, For):
                return (attrs.evolve(stmt, body=self._waiting(stmt.body)),)
            reads = [access for access in stmt.accesses if access.buffer == self.operand] if isinstance(stmt, Exec) else []
            if not isinstance(stmt, Exec) or not reads:
                return (stmt,)
            own, other = self.regions.is_own(reads[0].base), self.regions.is_copied(reads[0].base)
            in_place = attrs.evolve(self._of_parts(stmt), active=all_of((stmt.active, own)))
            return (self._wait(stmt, reads[0]), attrs.evolve(self._of_copy(stmt), active=all_of((stmt.active, other))), in_place)

        return self._waiting(rewritten(body, changed))

    @staticmethod
    def _waiting(body: Sequence[Stmt]) -> tuple[Stmt, ...]:
        """The statements of a list, with waits for regions first: the producer then waits for a region and for a free stage at once."""
        waits = [stmt for stmt in body if isinstance(stmt, SemaphoreBarrier) and stmt.action is SemaphoreAction.AWAIT]
        names = [stmt for stmt in body if isinstance(stmt, Let)] if waits else []
        return (*names, *waits, *(stmt for stmt in body if all(stmt is not other for other in (*names, *waits))))

    def _of_copy(self, stmt: Exec) -> Exec:
        """A statement that reads the copied array, in the workspace of this GPU."""

        def copied(access: Access) -> Access:
            first, *others = access.base
            return attrs.evolve(access, buffer=self.copied, base=(self.exchange.copies(self.rank, LAUNCH, first), *others))

        accesses = tuple(copied(access) if access.buffer == self.operand else access for access in stmt.accesses)
        tensor_map = stmt.tensor_map
        if tensor_map is not None and tensor_map.buffer == self.operand:
            tensor_map = attrs.evolve(tensor_map, buffer=self.copied, name=f"{self.copied}_map")
        return attrs.evolve(stmt, accesses=accesses, tensor_map=tensor_map)

    def _of_parts(self, stmt: Exec) -> Exec:
        """A statement that reads the part of this GPU where it is stored."""
        views = {
            name: attrs.evolve(view, tensor=self.tensor) if access.buffer == self.operand else view
            for (name, view), access in zip(stmt.spec.operands.items(), stmt.accesses, strict=True)
        }
        return attrs.evolve(stmt, spec=Move.on(stmt.spec.level, *views.values()))

    def of_producer(self, body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
        """The program of the producer, a thread with a word for the number of the launch."""
        return self.numbered(THREAD_SCOPE, as_expr(self.warps), body)

    def _wait(self, stmt: Exec, access: Access) -> SemaphoreBarrier:
        """The wait for the region of a load, at the first load from it along its columns."""
        *_, column = access.base
        reason = f"until {self.copied} has been copied"
        wait = self._semaphore(THREAD_SCOPE, SemaphoreAction.AWAIT, self.regions.index(access.base), reason)
        active = all_of((equal(column % self.regions.tile[-1], 0), self.regions.is_copied(access.base)))
        position, proxied = as_expr(self.regions.copies), stmt.mechanism.by_engine
        return attrs.evolve(wait, position=position, active=active, proxied=proxied, launch=LAUNCH)

    # ------------------------------------------------------------------------------------------ sizes and names

    def _regions(self) -> Regions:
        """The regions: whole numbers of them in the array, of copies in each, and of loads in each."""
        shape = tuple(self.number(size, "elements") for size in self.copy.buffer("dst").tensor.shape)
        loads = [one.shape for stmt, _ in execs(self.kernel.body) for one in stmt.accesses if one.buffer == self.operand and not one.write]
        writes = [one for stmt, _ in execs(self.copy.body) for one in stmt.accesses if one.buffer == "dst"]
        if not loads or len(writes) != 1:
            raise self.refused("the launch reads no tile of it, or the copy has several statements", "one copy, read by the producer")
        shape = tuple(self.part * self.gpus if place == self.axis else size for place, size in enumerate(shape))
        sizes = [self.part if place == self.axis else size for place, size in enumerate(shape)]
        for size, part, load in zip(sizes, self.tile, loads[0], strict=True):
            if size % part or part % load:
                raise self.refused(
                    f"regions of {part} of {size} elements, and loads of {load}", f"a multiple of {load} that divides {size}"
                )
        elements = math.prod(self.tile)
        rounds = math.prod(self.number(loop.extent, "iterations") for loop in self._inner_loops())
        copied = writes[0].count * WARP_THREADS * rounds
        if elements % copied:
            raise self.refused(f"a warp copies {copied} elements, a region has {elements}", f"regions of a multiple of {copied} elements")
        return Regions(self.copied, shape, self.tile, elements // copied, self.rank, self.axis, self.part)

    def _distribution(self) -> tuple[int, int, int]:
        """The dimension that the GPUs divide, the elements of a part along it, and the number of GPUs."""
        indices = () if self.tensor.through is None else self.tensor.through.index
        digit = next((one for one in indices if isinstance(one, DimIndex) and one.modulus), None)
        whole = None if digit is None else constant(self.tensor.shape[digit.dim])
        if digit is None or whole is None or whole < 2 * digit.modulus:
            raise self.refused(f"{self.operand} has no parts of several GPUs of a constant size", "constant sizes, two GPUs or more")
        return digit.dim, digit.modulus, whole // digit.modulus

    def _exchange(self) -> Exchange:
        """The memory of the semaphores and of the copied array."""
        own = self.kernel.buffer(self.operand).tensor
        if own.order != RowMajor:
            raise self.refused(f"a column-major {self.operand}", f"{self.operand}=RowMajor.over(GPU, ...)")
        rows, columns = self.regions.shape
        row = columns * own.dtype.bytes
        return Exchange.of(self.gpus, self.rank, self.part, row, 2 * rows, MOST_SEMAPHORES * SEMAPHORE_BYTES)

    def _inner_loops(self) -> Iterator[For]:
        """The loops of the copy, over the parts of a tile of a thread."""
        for stmt, loops in execs(self.copy.body):
            if any(access.buffer == "dst" for access in stmt.accesses):
                yield from loops

    def _workspace(self, buffer: Buffer) -> Buffer:
        """The copied arrays of all GPUs as a part of the workspaces: rows at equal distances."""
        shape = (as_expr((self.gpus - 1) * self.exchange.rows + self.exchange.used), as_expr(self.regions.shape[1]))
        tensor = attrs.evolve(buffer.tensor, name=self.copied, shape=shape, layout=RowMajor)
        return attrs.evolve(
            buffer, tensor=tensor, storage=tensor.storage(), elements=tensor.storage().extent, parameter=False, written=True, workspace=True
        )

    def refused(self, why: str, legal: str) -> DecompositionError:
        return DecompositionError(
            f"load({self.operand}, GL).overlap{self.tile}: {why}", legal=legal, within=self.kernel.spec, hint="remove overlap(...)"
        )


__all__ = ["NAME", "JoinedRole", "Rotation", "number_along", "opened", "overlapped"]
