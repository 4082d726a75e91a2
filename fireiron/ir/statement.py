"""The statements of a kernel: what each thread of each block executes, in order.

Units without work are a condition (`active`) on `Exec`, never control flow, so every barrier stands in uniform control flow.
"""

from __future__ import annotations

import enum
import functools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import attrs

from fireiron.errors import VerificationError
from fireiron.ir import ask
from fireiron.ir.access import Access, Buffer, Piece
from fireiron.ir.ask import Ask, Asks
from fireiron.ir.cluster import BlockSet
from fireiron.ir.maps import TensorMap
from fireiron.ir.mechanism import AT_ONCE, Mechanism
from fireiron.ir.mechanisms.cp_async import CP_ASYNC_GROUPS
from fireiron.ir.text import Item, Path, Printer
from fireiron.spec import Spec
from fireiron.values.expr import FALSE, ONE, TRUE, ZERO, Expr, Var, all_of
from fireiron.values.machine import Architecture, DType
from fireiron.values.tensor import Tensor

if TYPE_CHECKING:
    from fireiron.ir.kernel import Kernel


class Instruction(Protocol):
    """What an `Exec` performs: an instruction of the target or a micro-kernel.

    Its meaning for the simulator is that of the `spec` it performs; `cuda` is its text.
    """

    @property
    def name(self) -> str:
        """The name in listings and messages."""
        ...

    @property
    def tests_edges(self) -> bool:
        """Whether its text is told how many elements of each operand lie inside, and tests them itself: no `pieces` for it."""
        ...

    @property
    def each(self) -> bool:
        """Whether its text, that of one thread, takes any number of elements, each by itself."""
        ...

    @property
    def mechanism(self) -> Mechanism:
        """When what it does is done, and by which proxy it reaches memory."""
        ...

    @property
    def packs(self) -> bool:
        """Whether its text takes two neighbours of 16 bits as one register, where they are kept so."""
        ...

    @property
    def loads_together(self) -> bool:
        """Whether its text loads, or stores, neighbours in memory together, where they lie so."""
        ...

    @property
    def rounds(self) -> DType | None:
        """The type in which its results are made before they are rounded, where it is another than the meaning of its spec says."""
        ...

    def on_pairs(self, spec: Spec, architecture: Architecture) -> Instruction | None:
        """The same on pairs of neighbours of 16 bits, each pair in one register; None where its text takes no such pairs."""
        ...

    def clamped_later(self, spec: Spec) -> Instruction | None:
        """The same without the clamping at zero with which it ends, where all who read the result clamp it; None if it ends otherwise."""
        ...

    def clamping(self, spec: Spec) -> Instruction | None:
        """The same with zero in the place of negative elements, where that costs its text less than a reader before it; None if not."""
        ...

    @property
    def headers(self) -> tuple[str, ...]:
        """The CUDA headers that its text needs, beside those of the element types."""
        ...

    def unless_one(self, spec: Spec) -> str:
        """The operand that changes nothing where it is 1: a thread with no other values of it leaves the statement out; empty for none."""
        ...

    def declaration(self, kernel: Kernel, buffer: Buffer) -> str:
        """The declaration of a buffer in fragments, which only instructions like this one touch."""
        ...

    def cuda(self, printer: Printer, statement: Exec) -> Sequence[Item]:
        """The CUDA C++ for one `Exec`, without the test of its `active` condition and its `guard`."""
        ...


class Stmt:
    """A statement. One that contains others names them by `children` and is made anew from others by `rebuilt`.

    Every pass and reader goes through these two, or knows each kind of statement and refuses the others by `unknown`.
    """

    __slots__ = ()

    @property
    def children(self) -> tuple[tuple[Stmt, ...], ...]:
        """The statement lists inside, each executed in order."""
        return ()

    def rebuilt(self, children: tuple[tuple[Stmt, ...], ...]) -> Stmt:
        """The same statement around other lists, as many as `children` has; a `VerificationError` if it has none."""
        if children:
            raise VerificationError(f"{type(self).__name__} contains no statements, and was given {len(children)} lists")
        return self

    @property
    def expressions(self) -> tuple[Expr, ...]:
        """The expressions of the statement itself, without those of its children."""
        return ()

    def substitute(self, values: Mapping[Var, Expr | int]) -> Stmt:
        """The statement with variables replaced in its own expressions, not in its children's; an error where it does not know how."""
        if self.expressions:
            raise unknown(self, "substitution")
        return self


def unknown(statement: Stmt, reader: str) -> VerificationError:
    """The error of a pass or reader that meets a kind of statement it has no rule for."""
    return VerificationError(
        f"{reader} has no rule for the statement {type(statement).__name__}",
        hint="a new kind of statement needs a rule in each pass and reader",
    )


@attrs.frozen
class Hole(Stmt):
    """The place of a child's program; filled by the tree walker."""

    child: str


@attrs.frozen
class Comment(Stmt):
    """A line for the reader of the generated code."""

    text: str


@attrs.frozen
class StepMarker(Stmt):
    """Here the statements of a definition's step begin; those of the one before end. Removed by `rotate`."""

    step: str


@attrs.frozen(cache_hash=True)
class Let(Stmt):
    """A name for an expression, valid until the end of the list."""

    var: Var
    value: Expr

    @property
    def expressions(self) -> tuple[Expr, ...]:
        """Its value."""
        return (self.value,)

    def substitute(self, values: Mapping[Var, Expr | int]) -> Let:
        """The name for the value with variables replaced."""
        return attrs.evolve(self, value=self.value.substitute(values))


@attrs.frozen(cache_hash=True)
class For(Stmt):
    """`for var in range(first, extent, step)`, with the same trip count for all threads; `unroll` prints `#pragma unroll`.

    `asks` are the requests of refinements to later passes for this loop (`fireiron.ir.asks`). After `pipeline`, `period` is the number of
    iterations after which the addresses of shared buffers that depend on `var` repeat; 0 if they never repeat.

    `prior_iterations` is a variable with the number of iterations that earlier executions of this loop had. It is needed where data
    determine the trip count. At the end of each iteration it grows by `increment`, which may contain names of the body: the trip count of
    an inner loop, if that is what it counts.

    `pinned_registers` are the buffers of accumulators that threads wrote before the loop and that MMAs still use at its end. An empty `asm`
    before the loop keeps them in their registers even if the loop has no iteration.
    """

    var: Var
    extent: Expr
    body: tuple[Stmt, ...]
    unroll: bool = False
    origin: str | None = attrs.field(default=None, eq=False)
    period: int = 0
    first: int = 0
    step: int = 1
    prior_iterations: Var | None = None
    increment: Expr = ONE
    pinned_registers: tuple[str, ...] = ()
    asks: Asks = ask.NOTHING

    def values(self, count: int) -> range:
        """The values of the variable, where the extent is `count`."""
        return range(self.first, count, self.step)

    @property
    def children(self) -> tuple[tuple[Stmt, ...], ...]:
        """Its body."""
        return (self.body,)

    def rebuilt(self, children: tuple[tuple[Stmt, ...], ...]) -> For:
        """The loop around another body."""
        (body,) = children  # written out, as each pass makes most loops anew
        return For(
            self.var,
            self.extent,
            body,
            self.unroll,
            self.origin,
            self.period,
            self.first,
            self.step,
            self.prior_iterations,
            self.increment,
            self.pinned_registers,
            self.asks,
        )

    @property
    def expressions(self) -> tuple[Expr, ...]:
        """Its extent."""
        return (self.extent,)

    def substitute(self, values: Mapping[Var, Expr | int]) -> For:
        """The loop over the extent with variables replaced."""
        return attrs.evolve(
            self, extent=self.extent.substitute(values), increment=self.increment.substitute(values), asks=self.asks.substitute(values)
        )

    def asking(self, *asks: Ask) -> For:
        """The loop for which passes are asked so, in the place of what was asked of these kinds."""
        return attrs.evolve(self, asks=self.asks.with_(*asks))

    def without(self, *kinds: type[Ask]) -> For:
        """The loop behind the passes that took these kinds of asks."""
        return attrs.evolve(self, asks=self.asks.without(*kinds))


@attrs.frozen(cache_hash=True)
class Exec(Stmt):
    """Each thread for which `active` holds performs `spec` on the elements that `accesses` name.

    The accesses stand in the order of the spec's operands. An element of an input that lies outside its tensor counts as
    zero; one of an output is not written. `accumulate` holds where the old value of an output is added to.
    `vector` is how many elements are moved together, `vectors` how many of them one load or store takes, per operand (set
    after storage is known; one element each if empty). `scratch` is shared
    memory of the statement's own. `lane_maps` say, for an instruction of a warp, which element of its tile each lane's
    accesses name, per operand; `lane` is a lane's number among those that perform it. `mechanism` says when its effect is
    there, if not at once; for a load by a `tensor_map` that is at turn `fill_index` of a `ring`. With `multicast` such a load is one of the
    parts in which blocks of a cluster load a tile that all of them want: it arrives at the same place in each of them, and each one's full
    barrier counts its bytes.

    A statement that `follows` does what another made its threads hold: it decides nothing about that. `path` leads to the step of the
    tree that it is of, which the walk notes for readers.

    The pass `guard` says who stores: `guard` is a condition, beside `active`, without which the statement does nothing, and
    `pieces` are, per operand, all elements in the parts by which they are loaded or stored, each with its own condition. From then
    on these decide, and no longer the bounds of the accesses. Only a statement whose instruction `tests_edges` has no pieces:
    its text is told the bounds.

    Where `whole` holds, a condition that is the same in a warp, `implied` holds too, parts of its conditions and of those of its pieces:
    there it is performed without them (see `fireiron.ir.versions`).
    """

    instruction: Instruction
    spec: Spec
    accesses: tuple[Access, ...]
    accumulate: Expr = ZERO
    active: Expr = TRUE
    vector: int = 1
    vectors: tuple[int, ...] = ()
    scratch: Tensor | None = None
    lane_maps: tuple[Any, ...] = ()
    lane: Expr = ZERO
    mechanism: Mechanism = AT_ONCE
    tensor_map: TensorMap | None = None
    ring: str = ""
    fill_index: Expr = ZERO
    multicast: BlockSet | None = None
    guard: Expr = TRUE
    pieces: tuple[tuple[Piece, ...], ...] = ()
    whole: Expr = FALSE
    implied: tuple[Expr, ...] = ()
    follows: bool = attrs.field(default=False, eq=False)
    origin: str | None = attrs.field(default=None, eq=False)
    path: Path | None = attrs.field(default=None, eq=False, repr=False, kw_only=True)

    @functools.cached_property
    def expressions(self) -> tuple[Expr, ...]:
        """Its conditions and the expressions of its accesses."""
        tested = (piece.condition for pieces in self.pieces for piece in pieces if piece.condition != TRUE)
        return (
            self.active,
            self.guard,
            self.accumulate,
            self.fill_index,
            *(() if self.multicast is None else (self.multicast.first,)),
            *(value for access in self.accesses for value in access.expressions()),
            *tested,
            *(() if self.whole == FALSE else (self.whole,)),
        )

    @functools.cached_property
    def variables(self) -> frozenset[Var]:
        """The variables of its expressions."""
        return frozenset().union(*(value.variables() for value in self.expressions))

    @property
    def performed(self) -> Expr:
        """The condition under which a thread performs it: it takes part, and something of what it writes lies inside."""
        return self.active if self.guard == TRUE else all_of((self.active, self.guard))

    def substitute(self, values: Mapping[Var, Expr | int]) -> Exec:
        """The statement with variables replaced in its conditions and accesses."""
        # Anew also where nothing changes: a copy of a program has statements of its own, which readers tell apart by identity.
        return attrs.evolve(
            self,
            accesses=tuple(access.substitute(values) for access in self.accesses),
            active=self.active.substitute(values),
            accumulate=self.accumulate.substitute(values),
            guard=self.guard.substitute(values),
            fill_index=self.fill_index.substitute(values),
            multicast=None if self.multicast is None else self.multicast.substitute(values),
            pieces=tuple(tuple(piece.substitute(values) for piece in pieces) for pieces in self.pieces),
            whole=self.whole.substitute(values),
            implied=tuple(one.substitute(values) for one in self.implied),
        )

    @property
    def asynchronous(self) -> bool:
        """Whether it is still under way when the thread that issued it goes on."""
        return self.mechanism is not AT_ONCE

    @property
    def collective(self) -> bool:
        """Whether the threads of the spec's level perform it together, and no access belongs to one thread."""
        return self.spec.level.threads != 1 and not self.lane_maps

    @property
    def wide(self) -> bool:
        """Whether lanes of several warps perform it together, each with elements of its own."""
        return bool(self.lane_maps) and (self.spec.level.threads or 1) > 32

    @property
    def atomic(self) -> bool:
        """Whether it adds to its output in one step that no other thread, of any block, sees half of."""
        return self.spec.atomic

    def width(self, position: int) -> int:
        """The most elements that one load or store instruction takes at an operand."""
        if self.pieces:
            return max(piece.width for piece in self.pieces[position])
        return self.vectors[position] if self.vectors else 1

    def conditions(self, position: int) -> tuple[Expr, ...]:
        """For each element of an operand, the condition beside `active` and `guard` under which it is touched."""
        if self.pieces:
            return tuple(piece.condition for piece in self.pieces[position] for _ in range(piece.width))
        access = self.accesses[position]
        return tuple(access.inside(offset) for offset in access.elements())

    def at_first_lane(self, operand: str) -> Access:
        """The access to an operand of the lane whose number is 0."""
        return self.operands[operand].substitute({self.lane: 0} if isinstance(self.lane, Var) else {})

    @property
    def operands(self) -> dict[str, Access]:
        """Accesses by operand name."""
        return dict(zip(self.spec.operands, self.accesses, strict=True))


@attrs.frozen(eq=False)
class Dependence:
    """Why something must be ordered: `after` touches a buffer only when `before` is done with it, and one of the two writes there.

    `writes` says which of them does. `carried` names the loop from one iteration of which to a later one they meet; empty where they meet
    in program order. Without a statement `after` it is the end of the block, whose memory is given back.
    """

    buffer: str
    before: Exec
    after: Exec | None
    writes: tuple[bool, bool]
    carried: str = ""

    @property
    def kind(self) -> str:
        """What is ordered, such as "write -> read"."""
        first, second = ("write" if one else "read" for one in self.writes)
        return f"{first} -> {second if self.after is not None else 'end'}"


def _orders() -> Any:
    """The dependences that a statement orders, as the pass that placed it knew them: for readers, and no part of what it is."""
    return attrs.field(default=(), eq=False, repr=False, kw_only=True)


@attrs.frozen
class Scope:
    """Which threads of a block a barrier holds together: aligned groups of `threads` neighbours; None: the whole block.

    Scopes are ordered by inclusion: `WARP_SCOPE <= BLOCK_SCOPE`, because a barrier of the block orders whatever one of a warp does.
    """

    name: str
    threads: int | None

    def __str__(self) -> str:
        return self.name

    def __le__(self, other: Scope) -> bool:
        return other.threads is None or (self.threads is not None and other.threads % self.threads == 0)


WARP_SCOPE = Scope("warp", 32)
WARPGROUP_SCOPE = Scope("warpgroup", 128)
BLOCK_SCOPE = Scope("block", None)


@attrs.frozen
class Barrier(Stmt):
    """All threads of a group of the `scope` arrive before any of them goes on; `reason` says which hazard it orders."""

    scope: Scope
    reason: str = ""
    orders: tuple[Dependence, ...] = _orders()


@attrs.frozen
class ClusterBarrier(Stmt):
    """All threads of all blocks of the cluster arrive before any of them goes on; `reason` says what it orders.

    Behind the first one the blocks' barriers in memory are there for each other, and no block ends in front of the last one.
    """

    reason: str = ""


@attrs.frozen
class Commit(Stmt):
    """The copies, or products, that a thread issued since its last commit of them become a group."""

    mechanism: Mechanism = CP_ASYNC_GROUPS


def commits_copies(statement: Stmt) -> bool:
    """Whether a statement makes copies a group, which are there at a wait for it."""
    return isinstance(statement, Commit) and statement.mechanism.arrives_in_groups


@attrs.frozen
class Wait(Stmt):
    """A thread waits until at most `groups` of the groups that it committed last are in flight.

    `pinned_registers` are the buffers in registers that the thread may read only after the wait. The compiler does not know this, so an
    empty `asm` keeps their uses after it. `requested` is the number that a refinement requested; None if none did.
    """

    groups: int
    reason: str = ""
    mechanism: Mechanism = CP_ASYNC_GROUPS
    pinned_registers: tuple[str, ...] = ()
    requested: int | None = attrs.field(default=None, eq=False, repr=False, kw_only=True)
    orders: tuple[Dependence, ...] = _orders()


class FenceKind(enum.Enum):
    """For whom a fence orders what a thread did before: REGISTERS: its registers, for the products that follow; PROXY: what it wrote to
    shared memory, for the asynchronous proxy, by which TMA and wgmma reach memory (PTX ISA, "Proxies").
    """

    WGMMA_REGISTERS = "registers"
    ASYNC_PROXY = "proxy"


@attrs.frozen
class Fence(Stmt):
    """What a thread did before is there for engines too. That of the proxy is executed by the thread that wrote, in front of the barrier
    behind which others rely on it. `pinned_registers` are registers, by buffer, that have their values in front of one for products.
    """

    kind: FenceKind
    reason: str = ""
    pinned_registers: tuple[str, ...] = ()
    orders: tuple[Dependence, ...] = _orders()


class GridDepAction(enum.Enum):
    """What a kernel says to its neighbours in a stream, launched as their dependent (PTX ISA, "griddepcontrol"): LAUNCH: the next one may
    begin; WAIT: go on when the one before is over, and all that it wrote is there.
    """

    LAUNCH_DEPENDENTS = "launch_dependents"
    WAIT = "wait"


@attrs.frozen
class GridDepControl(Stmt):
    """A link of a chain of kernels; nothing where the kernel is launched as any other."""

    action: GridDepAction


@attrs.frozen
class Ring:
    """Buffers in shared memory in `stages` copies, which a producer fills and consumers empty, one after the other, round and round.

    Each stage has two barriers in memory (mbarrier, PTX ISA 9.7.13.15): *full* counts the `bytes` of a stage and the arrivals of its
    `producers`, which are threads; *empty* counts one arrival of each of the `consumers`, which are warps, those of other blocks of the
    cluster included that this block's loads come to. The barriers begin at byte `offset`, first those of full stages.

    A ring without buffers is an order of as many groups as it has stages, and has no barriers of full ones: at tile `t` a group acquires
    the turn `t + stages - 1` empty, and then says that turn `t` is, for which the group of the next tile waits. With `each` its turns are
    not those of tiles, but of units of so many threads of one role: one turn after the other belongs to one unit after the other.

    One of `tiles` has no buffers either: behind its barriers lies an int for each stage, the number of the tile of that turn.
    """

    name: str
    stages: int
    buffers: tuple[str, ...]
    bytes: int = 0
    consumers: int = 0
    offset: int = 0
    tiles: bool = False
    each: int = 0
    producers: int = 1

    @property
    def is_order(self) -> bool:
        """Whether it is an order of groups."""
        return not self.buffers and not self.tiles

    @property
    def barrier_bytes(self) -> int:
        """Bytes of its barriers, and of the numbers behind them."""
        return (1 if self.is_order else 3 if self.tiles else 2) * self.stages * 8


class StageState(enum.Enum):
    """What a ring's barrier says of a stage: it is FULL, or EMPTY."""

    FULL = "full"
    EMPTY = "empty"

    __hash__ = object.__hash__


@attrs.frozen(cache_hash=True)
class Acquire(Stmt):
    """Wait until the stage of a ring's turn `fill_index` is full, or empty.

    Turns count from 0: turn `n` is round `n / stages` of stage `n % stages`.
    """

    ring: str
    state: StageState
    fill_index: Expr

    @property
    def expressions(self) -> tuple[Expr, ...]:
        """Its turn."""
        return (self.fill_index,)

    def substitute(self, values: Mapping[Var, Expr | int]) -> Acquire:
        """The statement with variables replaced."""
        return attrs.evolve(self, fill_index=self.fill_index.substitute(values))


@attrs.frozen(cache_hash=True)
class Release(Stmt):
    """Say that the stage of turn `fill_index` will be full when the ring's bytes are there (FULL), or is empty for this warp (EMPTY).

    One thread of the unit says so, where `active` holds. In a cluster it says so to all blocks of `to`, each once: those whose loads come
    to this stage. None: to its own block.

    `by` a mechanism each thread arrives at the FULL barrier, and announces no bytes: the arrival is deferred until all is done that the
    thread issued by the mechanism before, and the thread goes on meanwhile (PTX ISA, "cp.async.mbarrier.arrive", "tcgen05.commit"). By
    `AT_ONCE`, whose work is done when the next statement begins, it is an ordinary arrival. Without a mechanism, `part` are the bytes that
    the arrival announces; None: all of the ring's.
    """

    ring: str
    state: StageState
    fill_index: Expr
    active: Expr = TRUE
    to: tuple[BlockSet, ...] = ()
    by: Mechanism | None = None
    part: int | None = None

    @property
    def expressions(self) -> tuple[Expr, ...]:
        """Its turn and condition, and where the blocks of `to` begin."""
        return (self.fill_index, self.active, *(peers.first for peers in self.to))

    def substitute(self, values: Mapping[Var, Expr | int]) -> Release:
        """The statement with variables replaced."""
        to = tuple(peers.substitute(values) for peers in self.to)
        return attrs.evolve(self, fill_index=self.fill_index.substitute(values), active=self.active.substitute(values), to=to)


@attrs.frozen
class Role:
    """Threads `first` to `first + threads` with a program of their own; one of them runs it if `elected`.

    `registers` is how many a thread keeps of those that it was launched with, or gets (0: as launched).
    """

    name: str
    first: int
    threads: int
    body: tuple[Stmt, ...]
    elected: bool = False
    registers: int = 0


@attrs.frozen
class Roles(Stmt):
    """The threads of a block part: each runs the program of its role, and no barrier of the block stands inside."""

    roles: tuple[Role, ...]

    @property
    def children(self) -> tuple[tuple[Stmt, ...], ...]:
        """The programs."""
        return tuple(role.body for role in self.roles)

    def rebuilt(self, children: tuple[tuple[Stmt, ...], ...]) -> Roles:
        """The same roles with other programs."""
        return Roles(tuple(attrs.evolve(role, body=body) for role, body in zip(self.roles, children, strict=True)))


@attrs.frozen
class IfAnyLane(Stmt):
    """A warp performs the body if one of its threads has a number other than 0 in the registers `needed`; else it leaves it out.

    The body does nothing but work of single threads on registers of their own: no barrier, no wait, no statement of several lanes. What
    threads that take no part have in `needed` may be anything: they do nothing in the body.
    """

    needed: str
    body: tuple[Stmt, ...]

    @property
    def children(self) -> tuple[tuple[Stmt, ...], ...]:
        """Its body."""
        return (self.body,)

    def rebuilt(self, children: tuple[tuple[Stmt, ...], ...]) -> IfAnyLane:
        """The same condition around another body."""
        (body,) = children
        return attrs.evolve(self, body=body)


@attrs.frozen
class SyncPoint(Stmt):
    """A wish for this position: `require` a block barrier here, or forbid one; None: the best place, if one is needed.

    Removed by `synchronize`.
    """

    require: bool | None
    subject: str
    origin: str | None = attrs.field(default=None, eq=False)
