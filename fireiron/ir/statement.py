"""The statements of a kernel: what each thread of each block executes, in order.

A thread without work skips an `Exec` by its condition `active`, never by control flow. So all threads reach every barrier.
"""

from __future__ import annotations

import enum
import functools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import attrs

from fireiron.errors import VerificationError
from fireiron.frozen import evolve, frozen
from fireiron.ir import ask
from fireiron.ir.access import Access, Buffer, Piece
from fireiron.ir.ask import Ask, Asks
from fireiron.ir.cluster import BlockSet
from fireiron.ir.maps import TensorMap
from fireiron.ir.mechanism import AT_ONCE, Mechanism
from fireiron.ir.mechanisms.cp_async import CP_ASYNC_GROUPS
from fireiron.ir.text import Function, Item, Path, Printer
from fireiron.spec import Spec
from fireiron.values.expr import FALSE, ONE, TRUE, ZERO, Expr, Var, all_of
from fireiron.values.machine import Architecture, DType
from fireiron.values.tensor import Tensor

if TYPE_CHECKING:
    from fireiron.ir.kernel import Kernel


class Instruction(Protocol):
    """The instruction of an `Exec`: an instruction of the target or a micro-kernel.

    `cuda` returns its text. The simulator executes the `spec` of the statement instead.
    """

    @property
    def name(self) -> str:
        """The name in listings and messages."""
        ...

    @property
    def tests_edges(self) -> bool:
        """Whether its text receives the number of in-bounds elements of each operand and tests them itself; then it has no `pieces`."""
        ...

    @property
    def each(self) -> bool:
        """Whether it is an instruction of one thread that handles any number of elements, one at a time."""
        ...

    @property
    def mechanism(self) -> Mechanism:
        """How its completion is observed, and by which proxy it accesses memory."""
        ...

    @property
    def packs(self) -> bool:
        """Whether its text takes two adjacent 16-bit elements as one register, if they are stored so."""
        ...

    @property
    def loads_together(self) -> bool:
        """Whether its text loads or stores adjacent elements of memory together, if they are contiguous."""
        ...

    @property
    def rounds(self) -> DType | None:
        """The type of its results before rounding, if it differs from the type that the spec implies."""
        ...

    def prepared(self, operand: str) -> Function | None:
        """The function that prepares the registers of an input before a fence of registers; None if they need none."""
        ...

    def on_pairs(self, spec: Spec, architecture: Architecture) -> Instruction | None:
        """The same instruction on pairs of adjacent 16-bit elements, one pair per register; None if its text takes no pairs."""
        ...

    def words(self, spec: Spec) -> tuple[tuple[str, str], ...]:
        """The operands whose words each contain both elements of a pair, and the coordinate that selects the elements."""
        ...

    def atomic_widths(self, spec: Spec, architecture: Architecture) -> tuple[int, ...]:
        """The numbers of adjacent elements that one atomic instruction may combine, the largest first; empty for one."""
        ...

    def singles(self, spec: Spec) -> frozenset[str]:
        """The operands whose elements an instruction on pairs reads one by one, such as scales of which floats are computed."""
        ...

    def repeats(self, spec: Spec) -> frozenset[str]:
        """The operands of which both elements of a pair may be one element, such as the scale of a group."""
        ...

    def clamped_later(self, spec: Spec) -> Instruction | None:
        """The same instruction without its final `max(x, 0)`, which all readers of the result then apply; None if it has none."""
        ...

    def clamping(self, spec: Spec) -> Instruction | None:
        """The same instruction followed by `max(x, 0)`, if that costs less here than in a reader; else None."""
        ...

    @property
    def headers(self) -> tuple[str, ...]:
        """The CUDA headers that its text needs, in addition to those of the element types."""
        ...

    @property
    def prints(self) -> bool:
        """Whether it prints the elements that the condition of its formula selects."""
        ...

    def identity_operand(self, spec: Spec) -> str:
        """The operand whose value 1 changes nothing, so that a thread with only such values skips the statement; empty if none."""
        ...

    def instead_of(self, spec: Spec) -> str:
        """The usual tile, as advice for a spec that it performs only because the tile is unusual; else empty."""
        ...

    def declaration(self, kernel: Kernel, buffer: Buffer) -> str:
        """The declaration of a fragment buffer, which only instructions like this one access."""
        ...

    def cuda(self, printer: Printer, statement: Exec) -> Sequence[Item]:
        """The CUDA C++ of an `Exec`, without the tests of its `active` condition and its `guard`."""
        ...


class Stmt:
    """A statement. `children` returns its nested statements, and `rebuilt` a copy with other nested statements.

    Passes and readers use these two methods, or list the kinds of statements and raise `unknown` for all others.
    """

    __slots__ = ()

    if TYPE_CHECKING:

        @property
        def children(self) -> tuple[tuple[Stmt, ...], ...]:
            """The nested statement lists, each executed in order."""

    else:
        children = ()  # most statements have none, and reading an attribute calls no function

    def rebuilt(self, children: tuple[tuple[Stmt, ...], ...]) -> Stmt:
        """A copy with other nested lists, as many as `children` has; a `VerificationError` if it has none."""
        if children:
            raise VerificationError(f"{type(self).__name__} contains no statements, but got {len(children)} lists")
        return self

    @property
    def expressions(self) -> tuple[Expr, ...]:
        """The expressions of the statement itself, without those of nested statements."""
        return ()

    def substitute(self, values: Mapping[Var, Expr | int]) -> Stmt:
        """The statement with variables replaced in its own expressions only; an error if the class does not implement it."""
        if self.expressions:
            raise unknown(self, "substitution")
        return self


def unknown(statement: Stmt, reader: str) -> VerificationError:
    """The error of a pass or reader for a kind of statement that it does not handle."""
    return VerificationError(
        f"{reader} does not handle the statement {type(statement).__name__}",
        hint="each pass and reader must handle a new kind of statement",
    )


@frozen
class Hole(Stmt):
    """The position of a child's program; the pass `walk` inserts the program there."""

    child: str


@frozen
class Comment(Stmt):
    """A comment line of the generated code."""

    text: str


@frozen
class StepMarker(Stmt):
    """The start of a definition's step, and the end of the previous one. `defer` removes it."""

    step: str


@attrs.frozen(cache_hash=True)
class Let(Stmt):
    """A name for an expression, valid to the end of the list."""

    var: Var
    value: Expr

    @property
    def expressions(self) -> tuple[Expr, ...]:
        """The value."""
        return (self.value,)

    def substitute(self, values: Mapping[Var, Expr | int]) -> Let:
        """The statement with variables replaced in its value."""
        return evolve(self, value=self.value.substitute(values))


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

    `separated`: iterations in which no condition on the variable holds are printed as a loop without the statements under these conditions.
    In parts of such a loop, which only the printer creates, `first` may be an expression.
    """

    var: Var
    extent: Expr
    body: tuple[Stmt, ...]
    unroll: bool = False
    origin: str | None = attrs.field(default=None, eq=False)
    period: int = 0
    first: Any = 0
    step: int = 1
    prior_iterations: Var | None = None
    increment: Expr = ONE
    pinned_registers: tuple[str, ...] = ()
    asks: Asks = ask.NOTHING
    separated: bool = False

    def values(self, count: int) -> range:
        """The values of the variable if the extent is `count`."""
        return range(self.first, count, self.step)

    @property
    def children(self) -> tuple[tuple[Stmt, ...], ...]:
        """The body."""
        return (self.body,)

    def rebuilt(self, children: tuple[tuple[Stmt, ...], ...]) -> For:
        """The loop with another body."""
        (body,) = children  # no `attrs.evolve`: each pass copies most loops
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
            self.separated,
        )

    @property
    def expressions(self) -> tuple[Expr, ...]:
        """The extent."""
        return (self.extent,)

    def substitute(self, values: Mapping[Var, Expr | int]) -> For:
        """The loop with variables replaced in its extent, increment and requests."""
        return evolve(
            self, extent=self.extent.substitute(values), increment=self.increment.substitute(values), asks=self.asks.substitute(values)
        )

    def with_asks(self, *asks: Ask) -> For:
        """The loop with these requests; they replace earlier ones of the same kinds."""
        return evolve(self, asks=self.asks.with_(*asks))

    def without(self, *kinds: type[Ask]) -> For:
        """The loop without requests of these kinds, after the passes that handle them."""
        return evolve(self, asks=self.asks.without(*kinds))


@attrs.frozen(cache_hash=True)
class Exec(Stmt):
    """Each thread for which `active` is true performs `spec` on the elements that `accesses` specify.

    - `accesses`: in the order of the spec's operands. An out-of-bounds element of an input reads as zero; one of an output is not written.
    - `accumulate`: the condition under which the result is added to the old value of the output.
    - `vector`: elements moved together. `vectors`: elements per load or store, by operand; empty before storage is known (one each).
    - `scratch`: shared memory that the statement uses internally.
    - `lane_maps`: for a warp or warpgroup instruction, the elements of its tile that each lane accesses, by operand. `lane` is the number
      of a lane among the lanes that perform it.
    - `mechanism`: how its completion is observed. A TMA load has a `tensor_map` and is fill number `fill_index` of a `ring`.
    - `multicast`: the load brings one part of a tile to all these blocks of a cluster, to the same address in each. The full mbarrier of
      each block counts its bytes.
    - `inherits_ownership`: its registers are distributed as another statement specifies; it never determines the distribution.
    - `path`: the step of the decomposition tree that produced it, for readers.

    The pass `guard` decides which elements are accessed. `guard` is a condition in addition to `active`. `pieces` are, by operand, all
    elements grouped by load or store, each group with its own condition. After the pass they replace the bounds of the accesses. Only a
    statement whose instruction `tests_edges` has no pieces: its text receives the bounds.

    If the warp-uniform condition `interior` is true, all conditions in `implied` are true, too. They are parts of its conditions and of
    those of its pieces, and that version of the statement omits them (see `fireiron.ir.versions`).
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
    interior: Expr = FALSE
    implied: tuple[Expr, ...] = ()
    inherits_ownership: bool = attrs.field(default=False, eq=False)
    origin: str | None = attrs.field(default=None, eq=False)
    path: Path | None = attrs.field(default=None, eq=False, repr=False, kw_only=True)

    @functools.cached_property
    def expressions(self) -> tuple[Expr, ...]:
        """Its conditions, and the expressions of its accesses."""
        tested = (piece.condition for pieces in self.pieces for piece in pieces if piece.condition != TRUE)
        return (
            self.active,
            self.guard,
            self.accumulate,
            self.fill_index,
            *(() if self.multicast is None else (self.multicast.first,)),
            *(value for access in self.accesses for value in access.expressions()),
            *tested,
            *(() if self.interior == FALSE else (self.interior,)),
        )

    @functools.cached_property
    def variables(self) -> frozenset[Var]:
        """The variables of its expressions."""
        return frozenset().union(*(value.variables() for value in self.expressions))

    @functools.cached_property
    def performed(self) -> Expr:
        """The condition under which a thread performs it: it takes part, and some element that it writes is in bounds."""
        return self.active if self.guard == TRUE else all_of((self.active, self.guard))

    def substitute(self, values: Mapping[Var, Expr | int]) -> Exec:
        """The statement with variables replaced in its conditions and accesses."""
        # A new object even if nothing changes: readers distinguish the statements of copied programs by identity.
        return evolve(
            self,
            accesses=tuple(access.substitute(values) for access in self.accesses),
            active=self.active.substitute(values),
            accumulate=self.accumulate.substitute(values),
            guard=self.guard.substitute(values),
            fill_index=self.fill_index.substitute(values),
            multicast=None if self.multicast is None else self.multicast.substitute(values),
            pieces=tuple(tuple(piece.substitute(values) for piece in pieces) for pieces in self.pieces),
            interior=self.interior.substitute(values),
            implied=tuple(one.substitute(values) for one in self.implied),
        )

    @property
    def asynchronous(self) -> bool:
        """Whether it may still be in flight when the issuing thread continues."""
        return self.mechanism is not AT_ONCE

    @property
    def collective(self) -> bool:
        """Whether the threads of the spec's level perform it together and no access belongs to one thread."""
        return self.spec.level.threads != 1 and not self.lane_maps

    @property
    def wide(self) -> bool:
        """Whether lanes of several warps perform it together, each on its own elements."""
        return bool(self.lane_maps) and (self.spec.level.threads or 1) > 32

    @property
    def atomic(self) -> bool:
        """Whether it adds to its output atomically for all threads of all blocks."""
        return self.spec.atomic

    def width(self, position: int) -> int:
        """The most elements that one load or store instruction accesses at an operand."""
        if self.pieces:
            return max(piece.width for piece in self.pieces[position])
        return self.vectors[position] if self.vectors else 1

    def conditions(self, position: int) -> tuple[Expr, ...]:
        """For each element of an operand, the access condition in addition to `active` and `guard`."""
        if self.pieces:
            return tuple(piece.condition for piece in self.pieces[position] for _ in range(piece.width))
        access = self.accesses[position]
        return tuple(access.inside(offset) for offset in access.elements())

    def piece(self, position: int, number: int) -> Piece:
        """The piece of element `number` of an operand."""
        return next((one for one in self.pieces[position] if one.first <= number < one.first + one.width), Piece(number))

    def at_first_lane(self, operand: str) -> Access:
        """The access of lane 0 to an operand."""
        return self.operands[operand].substitute({self.lane: 0} if isinstance(self.lane, Var) else {})

    @property
    def operands(self) -> dict[str, Access]:
        """Accesses by operand name."""
        return dict(zip(self.spec.operands, self.accesses, strict=True))


@frozen(eq=False)
class Dependence:
    """A reason for synchronization: `after` may access a buffer only when `before` has completed, and at least one of them writes it.

    `writes` specifies which of them writes. `carried` is the loop that carries the dependence to a later iteration; empty if it follows
    program order. If `after` is None, it is the end of the block, where its memory is released.
    """

    buffer: str
    before: Exec
    after: Exec | None
    writes: tuple[bool, bool]
    carried: str = ""

    @property
    def kind(self) -> str:
        """The kinds of the two accesses, such as "write -> read"."""
        first, second = ("write" if one else "read" for one in self.writes)
        return f"{first} -> {second if self.after is not None else 'end'}"


def _orders() -> Any:
    """The dependences that a statement orders, recorded by the pass that inserted it, for listings; ignored by equality."""
    return attrs.field(default=(), eq=False, repr=False, kw_only=True)


@frozen
class Scope:
    """The threads that a barrier synchronizes: aligned groups of `threads` adjacent threads of a block; None: the whole block.

    Scopes are ordered by inclusion: `WARP_SCOPE <= BLOCK_SCOPE`, because a block barrier orders everything that a warp barrier orders.
    """

    name: str
    threads: int | None

    def __str__(self) -> str:
        return self.name

    def __le__(self, other: Scope) -> bool:
        return other.threads is None or (self.threads is not None and other.threads % self.threads == 0)


THREAD_SCOPE = Scope("thread", 1)
WARP_SCOPE = Scope("warp", 32)
WARPGROUP_SCOPE = Scope("warpgroup", 128)
BLOCK_SCOPE = Scope("block", None)


@frozen
class Barrier(Stmt):
    """All threads of a group of the `scope` arrive before any of them continues; `reason` describes the hazard that the barrier orders."""

    scope: Scope
    reason: str = ""
    orders: tuple[Dependence, ...] = _orders()


@frozen
class ClusterBarrier(Stmt):
    """All threads of all blocks of the cluster arrive before any of them continues; `reason` describes what the barrier orders.

    After the first one, the mbarriers of each block are initialized for the other blocks. No block exits before the last one.
    """

    reason: str = ""


@frozen
class Commit(Stmt):
    """The copies or MMAs that a thread issued since its last commit of this mechanism become a group."""

    mechanism: Mechanism = CP_ASYNC_GROUPS


def commits_copies(statement: Stmt) -> bool:
    """Whether a statement commits a group of copies, whose data arrives by a wait for the group."""
    return isinstance(statement, Commit) and statement.mechanism.arrives_in_groups


@frozen
class Wait(Stmt):
    """A thread waits until at most `groups` of its most recently committed groups are in flight.

    `pinned_registers` are buffers in registers that the thread may read only after the wait. The compiler does not know this, so an empty
    `asm` keeps their uses after it. `requested` is the number that a refinement requested; None if none did. A wait for TMA stores is until
    they have read shared memory; if it is for their `arrival`, until they have written global memory, and `groups` is 0. Where
    `reads_suffice` holds, it is until they have read shared memory all the same.
    """

    groups: int
    reason: str = ""
    mechanism: Mechanism = CP_ASYNC_GROUPS
    arrival: bool = attrs.field(default=False, kw_only=True)
    reads_suffice: Expr = attrs.field(default=FALSE, kw_only=True)
    pinned_registers: tuple[str, ...] = ()
    requested: int | None = attrs.field(default=None, eq=False, repr=False, kw_only=True)
    orders: tuple[Dependence, ...] = _orders()

    @property
    def expressions(self) -> tuple[Expr, ...]:
        """The condition."""
        return () if self.reads_suffice == FALSE else (self.reads_suffice,)

    def substitute(self, values: Mapping[Var, Expr | int]) -> Wait:
        """The statement with variables replaced in its condition."""
        return self if self.reads_suffice == FALSE else attrs.evolve(self, reads_suffice=self.reads_suffice.substitute(values))


class FenceKind(enum.Enum):
    """The accesses that a fence orders.

    - WGMMA_REGISTERS: accesses of this thread to registers before later wgmmas (`wgmma.fence`).
    - ASYNC_PROXY: its accesses to shared memory before later ones by the async proxy, which TMA and wgmma use (`fence.proxy.async`; PTX
      ISA, "Proxies").
    """

    WGMMA_REGISTERS = "registers"
    ASYNC_PROXY = "proxy"


@frozen
class Fence(Stmt):
    """A fence. For the async proxy, a thread executes it before the barrier or the arrival that orders its accesses with others.

    `pinned_registers` are buffers in registers that must have their values before a fence of registers.
    """

    kind: FenceKind
    reason: str = ""
    pinned_registers: tuple[str, ...] = ()
    orders: tuple[Dependence, ...] = _orders()


class GridDepAction(enum.Enum):
    """The action of `griddepcontrol` (PTX ISA) in a kernel that is launched with programmatic dependent launch.

    - LAUNCH_DEPENDENTS: the next kernel in the stream may start.
    - WAIT: wait until the preceding kernel has completed and its writes are visible.
    """

    LAUNCH_DEPENDENTS = "launch_dependents"
    WAIT = "wait"


@frozen
class GridDepControl(Stmt):
    """`griddepcontrol`, for programmatic dependent launch; it has no effect in a normal launch."""

    action: GridDepAction


@frozen
class Ring:
    """A circular buffer: buffers in shared memory with `stages` copies, which producers fill and consumers empty in order.

    Each stage has two mbarriers (PTX ISA 9.7.13.15). *Full* expects the `bytes` of a stage and the arrivals of `producers` threads. *Empty*
    expects one arrival of each of the `consumers`, which are warps, including those of other cluster blocks that receive the loads of this
    block. The mbarriers start at byte `offset`, the full ones first.

    A ring without buffers orders groups of threads. It has as many stages as groups and no full mbarriers. For tile `t` a group acquires
    fill `t + stages - 1` as empty and later releases fill `t`, for which the group of the next tile waits. If `each` is not 0, fills
    belong to units of `each` threads of one role instead of tiles; successive units own successive fills.

    A ring of `tiles` has no buffers either. Its mbarriers are followed by one int per stage, the tile number of that fill.

    The stages of a ring that is not `refilled` are filled at most once. Nothing releases them, and its empty mbarriers are not used.
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
    refilled: bool = True

    @property
    def is_order(self) -> bool:
        """Whether the ring only orders groups of threads."""
        return not self.buffers and not self.tiles

    @property
    def barrier_bytes(self) -> int:
        """Bytes of the mbarriers, and of the tile numbers after them."""
        return (1 if self.is_order else 3 if self.tiles else 2) * self.stages * 8


class StageState(enum.Enum):
    """The state of a stage that a ring's mbarrier signals: FULL or EMPTY."""

    FULL = "full"
    EMPTY = "empty"

    __hash__ = object.__hash__


@attrs.frozen(cache_hash=True)
class Acquire(Stmt):
    """Wait until the stage of fill `fill_index` of a ring is full, or empty.

    Fills count from 0: fill `n` uses stage `n % stages`, in phase `n / stages`.
    """

    ring: str
    state: StageState
    fill_index: Expr

    @property
    def expressions(self) -> tuple[Expr, ...]:
        """The fill index."""
        return (self.fill_index,)

    def substitute(self, values: Mapping[Var, Expr | int]) -> Acquire:
        """The statement with variables replaced."""
        return evolve(self, fill_index=self.fill_index.substitute(values))


@attrs.frozen(cache_hash=True)
class Release(Stmt):
    """Arrive at the FULL or EMPTY mbarrier of fill `fill_index` of a ring: EMPTY releases the stage for this warp.

    One thread of the unit arrives, if `active` is true. In a cluster, the unit arrives once at each block of `to`, the blocks whose loads
    fill this stage: in CUDA, each by another lane of the warp. Without `to` it arrives at its own block.

    With a mechanism `by`, each thread arrives at the FULL mbarrier without expected bytes. The arrival is deferred until all earlier
    operations of the thread by the mechanism have completed; the thread continues meanwhile (PTX ISA, "cp.async.mbarrier.arrive",
    "tcgen05.commit"). With `AT_ONCE`, whose operations complete before the next statement, it is an ordinary arrival. Without a mechanism
    the arrival expects `part` bytes; None: all bytes of the ring.
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
        """The fill index, the condition, and the first rank of each set in `to`."""
        return (self.fill_index, self.active, *(peers.first for peers in self.to))

    def substitute(self, values: Mapping[Var, Expr | int]) -> Release:
        """The statement with variables replaced."""
        to = tuple(peers.substitute(values) for peers in self.to)
        return evolve(self, fill_index=self.fill_index.substitute(values), active=self.active.substitute(values), to=to)


@frozen
class Role:
    """The `threads` threads from thread `first` on, with a separate program; if `elected`, only one of them runs it.

    `registers` is the number of registers per thread after `setmaxnreg` (0: as launched).
    """

    name: str
    first: int
    threads: int
    body: tuple[Stmt, ...]
    elected: bool = False
    registers: int = 0


@frozen
class Roles(Stmt):
    """The threads of a block diverge: each runs the program of its role. No block barrier may be inside."""

    roles: tuple[Role, ...]

    @property
    def children(self) -> tuple[tuple[Stmt, ...], ...]:
        """The programs."""
        return tuple(role.body for role in self.roles)

    def rebuilt(self, children: tuple[tuple[Stmt, ...], ...]) -> Roles:
        """The same roles with other programs."""
        return Roles(tuple(evolve(role, body=body) for role, body in zip(self.roles, children, strict=True)))


@frozen
class IfAnyLane(Stmt):
    """A warp executes the body if any of its threads has a nonzero value in the registers `needed`; else it skips the body.

    The body contains only work of single threads on their own registers: no barrier, no wait, no statement of several lanes. `needed` may
    have any value in inactive threads, which do nothing in the body.
    """

    needed: str
    body: tuple[Stmt, ...]

    @property
    def children(self) -> tuple[tuple[Stmt, ...], ...]:
        """The body."""
        return (self.body,)

    def rebuilt(self, children: tuple[tuple[Stmt, ...], ...]) -> IfAnyLane:
        """The statement with another body."""
        (body,) = children
        return evolve(self, body=body)


@frozen
class SyncPoint(Stmt):
    """A request for this position: `require` a block barrier here, or forbid one; None: a barrier is best placed here if one is needed.

    `synchronize` removes it.
    """

    require: bool | None
    subject: str
    origin: str | None = attrs.field(default=None, eq=False)
