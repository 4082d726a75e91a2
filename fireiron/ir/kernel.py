"""The kernel IR: a small structured program whose three readers are the CUDA printer, the simulator and the checks.

A statement list is executed by every thread of every block in order. Units without work are a condition (`active`) on
`Exec`, never control flow, so every barrier stands in uniform control flow. Accesses carry coordinates in the whole
buffer; the only place that turns them into addresses is `Buffer.address`, so pad, swizzle and register numbers are
decided once and are the same for what is printed, simulated and checked.
"""

from __future__ import annotations

import enum
import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import attrs

from fireiron.errors import VerificationError
from fireiron.ir.text import Item, Printer
from fireiron.spec import Spec
from fireiron.values.expr import TRUE, ZERO, Expr, Var, all_of, as_expr, constant
from fireiron.values.machine import Architecture, DType, Memory
from fireiron.values.tensor import Dealt, Mode, Storage, Tensor
from fireiron.values.units import BLOCK, THREAD


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
    def packs(self) -> bool:
        """Whether its text takes two neighbours of 16 bits as one register, where they are kept so."""
        ...

    @property
    def headers(self) -> tuple[str, ...]:
        """The CUDA headers that its text needs, beside those of the element types."""
        ...

    def declaration(self, kernel: Kernel, buffer: Buffer) -> str:
        """The declaration of a buffer in fragments, which only instructions like this one touch."""
        ...

    def cuda(self, printer: Printer, statement: Exec) -> Sequence[Item]:
        """The CUDA C++ for one `Exec`, without the test of its `active` condition and its `guard`."""
        ...

    def completion_text(self, printer: Printer, statement: Commit | Wait) -> list[Item]:
        """The CUDA C++ for a commit of its asynchronous statements, or a wait for them."""
        ...


@attrs.frozen(cache_hash=True)
class Access:
    """Which elements of a buffer a statement touches, per executing thread.

    `base` is the coordinate of the first element, `modes` the `(size, stride)` modes of the element tile, per dimension;
    `bounds` the extent that a coordinate must stay below, where it may not. `dealt` are the modes that the path to this
    access took out of the buffer, from which a distributed buffer gets its registers. `copy` selects the unit's own copy.
    `storage` replaces the buffer's where a uniform write to registers numbers them in its own way. `points` are the offsets
    of the elements in the order in which an instruction numbers a lane's values. With `spread`, which thread of the warp
    touches which of the warp's elements is not specified: each counts as touched by all of them.
    """

    buffer: str
    base: tuple[Expr, ...]
    modes: tuple[tuple[Mode, ...], ...]
    bounds: tuple[Expr | None, ...]
    write: bool
    copy: Expr = ZERO
    dealt: tuple[tuple[Dealt, ...], ...] = ()
    storage: Storage | None = None
    points: tuple[tuple[int, ...], ...] = ()
    spread: bool = False
    origin: str | None = attrs.field(default=None, eq=False)

    @property
    def shape(self) -> tuple[int, ...]:
        """Elements per dimension."""
        return tuple(_extent(modes) for modes in self.modes)

    @property
    def reach(self) -> tuple[int, ...]:
        """The largest offset of an element from `base`, per dimension."""
        if self.points:
            return tuple(max(offsets) for offsets in zip(*self.points, strict=True))
        return tuple(offsets[-1] for offsets in _offsets(self.modes))

    def elements(self) -> tuple[tuple[int, ...], ...]:
        """Offsets from `base` of all elements: as an instruction numbers them, else the first dimension fastest."""
        return self.points or _elements(self.modes)

    def coordinates(self, offset: tuple[int, ...]) -> tuple[Expr, ...]:
        """Absolute coordinates of an element."""
        return tuple(base + step for base, step in zip(self.base, offset, strict=True))

    def inside(self, offset: tuple[int, ...]) -> Expr:
        """The condition that an element lies inside the tensor."""
        conditions = []
        for coordinate, bound in zip(self.coordinates(offset), self.bounds, strict=True):
            if bound is not None:
                conditions.append(coordinate < bound)
        return all_of(conditions)

    def expressions(self) -> tuple[Expr, ...]:
        """All expressions it contains."""
        return (*self.base, self.copy, *(bound for bound in self.bounds if bound is not None))

    def placed(self, coordinates: tuple[Expr, ...]) -> Access:
        """The access in a buffer of more dimensions, at fixed coordinates in its last ones."""
        if not coordinates:
            return self
        more = len(coordinates)
        return attrs.evolve(
            self,
            base=(*self.base, *coordinates),
            modes=(*self.modes, *((Mode(1, 1),),) * more),
            bounds=(*self.bounds, *(None,) * more),
            dealt=(*self.dealt, *((),) * more),
            points=tuple((*point, *(0,) * more) for point in self.points),
        )

    def substitute(self, values: Mapping[Var, Expr | int]) -> Access:
        """The access with variables replaced."""
        bounds = tuple(None if bound is None else bound.substitute(values) for bound in self.bounds)
        return attrs.evolve(self, base=tuple(b.substitute(values) for b in self.base), bounds=bounds, copy=self.copy.substitute(values))


def _extent(modes: tuple[Mode, ...]) -> int:
    total = 1
    for mode in modes:
        size = constant(mode.size)
        if size is None:
            raise VerificationError(f"an access has {mode.size} elements, a number known only at run time")
        total *= size
    return total


@functools.lru_cache(maxsize=4096)
def _elements(modes: tuple[tuple[Mode, ...], ...]) -> tuple[tuple[int, ...], ...]:
    return tuple(point[::-1] for point in itertools.product(*reversed(_offsets(modes))))


@functools.lru_cache(maxsize=4096)
def _offsets(modes: tuple[tuple[Mode, ...], ...]) -> tuple[tuple[int, ...], ...]:
    """The offsets of a tile's elements along each dimension, in ascending order of the modes' digits."""
    axes = []
    for dim in modes:
        offsets = [0]
        for mode in dim:
            size, stride = constant(mode.size), constant(mode.stride)
            assert size is not None and stride is not None
            offsets = [offset + index * stride for index in range(size) for offset in offsets]
        axes.append(tuple(offsets))
    return tuple(axes)


@attrs.frozen(cache_hash=True)
class Buffer:
    """A tensor with its place.

    `storage` maps coordinates to an address in elements of one copy (for a distributed buffer: the register number);
    `elements` is the size of one copy (per thread for a distributed buffer); `offset` the byte offset in shared memory.
    `holder` are, for a distributed buffer, the coordinates of a thread's register 0.
    """

    tensor: Tensor
    storage: Storage
    elements: Expr = attrs.field(converter=as_expr)
    parameter: bool = False
    offset: int = 0
    written: bool = False
    holder: tuple[Expr, ...] = ()

    @property
    def name(self) -> str:
        """Its name in the kernel."""
        return self.tensor.name

    @property
    def dtype(self) -> DType:
        """Element type."""
        return self.tensor.dtype

    @property
    def memory(self) -> Memory:
        """Where it lies."""
        return self.tensor.memory

    @property
    def total(self) -> Expr:
        """Elements of all copies."""
        return self.elements * self.tensor.copies

    @property
    def bytes(self) -> int:
        """Bytes of all copies (per thread for a distributed buffer); legal for buffers of static size."""
        total = constant(self.total)
        if total is None:
            raise VerificationError(f"{self.name} has {self.total} elements, a number known only at run time")
        return total * self.dtype.bytes

    def held(self, register: Expr) -> tuple[Expr, ...]:
        """The coordinates of a register of a distributed buffer, in the executing thread."""
        coordinates = []
        for base, modes in zip(self.holder, self.storage.dims, strict=True):
            for mode in modes:
                digit = register // mode.weight
                base = base + (digit if mode.size is None else digit % mode.size) * mode.stride
            coordinates.append(base)
        return tuple(coordinates)

    def address(self, access: Access, offset: tuple[int, ...]) -> Expr:
        """The address of an element, in elements from the start of the buffer."""
        return _address(access.storage or self.storage, self.elements, access.copy, access.coordinates(offset))


@functools.lru_cache(maxsize=50_000)
def _address(storage: Storage, elements: Expr, copy: Expr, coordinates: tuple[Expr, ...]) -> Expr:
    address = storage.address(coordinates)
    return address if copy == ZERO else address + copy * elements


# ---------------------------------------------------------------------------------------------- statements


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
        """The same statement around other lists, as many as `children` has."""
        if children:
            raise VerificationError(f"{type(self).__name__} contains no statements, and was given {len(children)} lists")
        return self

    @property
    def expressions(self) -> tuple[Expr, ...]:
        """The expressions of the statement itself, without those of its children."""
        return ()

    def substitute(self, values: Mapping[Var, Expr | int]) -> Stmt:
        """The statement with variables replaced in its own expressions, not in its children's."""
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
    """`for var in range(extent)`, the same for all threads; `unroll` asks the printer for `#pragma unroll`.

    `stages` asks the pass `pipeline` to keep that many iterations' loads in flight, with `spread` issued step by step in the
    loop inside. Behind it, `period` is the number of
    iterations after which the addresses of shared buffers that depend on `var` repeat (0: they are all different).
    """

    var: Var
    extent: Expr
    body: tuple[Stmt, ...]
    unroll: bool = False
    origin: str | None = attrs.field(default=None, eq=False)
    stages: int = 0
    spread: bool = False
    period: int = 0

    @property
    def children(self) -> tuple[tuple[Stmt, ...], ...]:
        """Its body."""
        return (self.body,)

    def rebuilt(self, children: tuple[tuple[Stmt, ...], ...]) -> For:
        """The loop around another body."""
        (body,) = children
        return attrs.evolve(self, body=body)

    @property
    def expressions(self) -> tuple[Expr, ...]:
        """Its extent."""
        return (self.extent,)

    def substitute(self, values: Mapping[Var, Expr | int]) -> For:
        """The loop over the extent with variables replaced."""
        return attrs.evolve(self, extent=self.extent.substitute(values))


class Completion(enum.Enum):
    """When what a statement does is done.

    NONE: when the next statement of the thread begins. GROUP: at a `Wait` of the thread that issued it, for the group in
    which a `Commit` put it (cp.async, PTX ISA 9.7.9.25.3).
    """

    NONE = "none"
    GROUP = "group"


@attrs.frozen(cache_hash=True)
class Piece:
    """Elements of an access that one load or store takes: `width` of them from number `first` on, as `Access.elements` counts.

    They are touched where `condition` holds, beside the statement's `active` and `guard`: elsewhere those of an input are not
    read and count as zero, and those of an output keep their values. They lie side by side, the first at a multiple of
    `width` elements.
    """

    first: int
    width: int = 1
    condition: Expr = TRUE

    def substitute(self, values: Mapping[Var, Expr | int]) -> Piece:
        """The piece with variables replaced in its condition."""
        return self if self.condition == TRUE else attrs.evolve(self, condition=self.condition.substitute(values))


@functools.lru_cache(maxsize=1024)
def whole_pieces(count: int, width: int) -> tuple[Piece, ...]:
    """The pieces of an access of `count` elements that are touched without condition."""
    return tuple(Piece(first, width) for first in range(0, count, width))


@attrs.frozen(cache_hash=True)
class Exec(Stmt):
    """Each thread for which `active` holds performs `spec` on the elements that `accesses` name.

    The accesses stand in the order of the spec's operands. An element of an input that lies outside its tensor counts as
    zero; one of an output is not written. `accumulate` holds where the old value of an output is added to.
    `vector` is how many elements are moved together, `vectors` how many of them one load or store takes, per operand (set
    after storage is known; one element each if empty). `scratch` is shared
    memory of the statement's own. `lane_maps` say, for an instruction of a warp, which element of its tile each lane's
    accesses name, per operand. `completion` says when its effect is there, if not at once.

    The pass `guard` says who stores: `guard` is a condition, beside `active`, without which the statement does nothing, and
    `pieces` are, per operand, all elements in the parts by which they are loaded or stored, each with its own condition. From then
    on these decide, and no longer the bounds of the accesses. Only a statement whose instruction `tests_edges` has no pieces:
    its text is told the bounds.
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
    completion: Completion = Completion.NONE
    guard: Expr = TRUE
    pieces: tuple[tuple[Piece, ...], ...] = ()
    origin: str | None = attrs.field(default=None, eq=False)

    @property
    def expressions(self) -> tuple[Expr, ...]:
        """Its conditions and the expressions of its accesses."""
        tested = (piece.condition for pieces in self.pieces for piece in pieces if piece.condition != TRUE)
        return (self.active, self.guard, self.accumulate, *(value for access in self.accesses for value in access.expressions()), *tested)

    @property
    def performed(self) -> Expr:
        """The condition under which a thread performs it: it takes part, and something of what it writes lies inside."""
        return all_of((self.active, self.guard))

    def substitute(self, values: Mapping[Var, Expr | int]) -> Exec:
        """The statement with variables replaced in its conditions and accesses."""
        return attrs.evolve(
            self,
            accesses=tuple(access.substitute(values) for access in self.accesses),
            active=self.active.substitute(values),
            accumulate=self.accumulate.substitute(values),
            guard=self.guard.substitute(values),
            pieces=tuple(tuple(piece.substitute(values) for piece in pieces) for pieces in self.pieces),
        )

    @property
    def asynchronous(self) -> bool:
        """Whether it is still under way when the thread that issued it goes on."""
        return self.completion is not Completion.NONE

    @property
    def collective(self) -> bool:
        """Whether the threads of the spec's level perform it together, and no access belongs to one thread."""
        return self.spec.level.threads != 1 and not self.lane_maps

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

    @property
    def operands(self) -> dict[str, Access]:
        """Accesses by operand name."""
        return dict(zip(self.spec.operands, self.accesses, strict=True))


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

    def holds(self, one: int, other: int) -> bool:
        """Whether two threads of a block are in one group."""
        return self.threads is None or one // self.threads == other // self.threads


WARP_SCOPE = Scope("warp", 32)
WARPGROUP_SCOPE = Scope("warpgroup", 128)
BLOCK_SCOPE = Scope("block", None)


@attrs.frozen
class Barrier(Stmt):
    """All threads of a group of the `scope` arrive before any of them goes on; `reason` says which hazard it orders."""

    scope: Scope
    reason: str = ""


@attrs.frozen
class Commit(Stmt):
    """The asynchronous copies that a thread issued since its last commit become a group."""


@attrs.frozen
class Wait(Stmt):
    """A thread goes on when at most `groups` of the groups that it committed last are still under way."""

    groups: int
    reason: str = ""


@attrs.frozen
class SyncPoint(Stmt):
    """A wish for this position: `require` a block barrier here, or forbid one; None: the best place, if one is needed.

    Removed by `synchronize`.
    """

    require: bool | None
    subject: str
    origin: str | None = attrs.field(default=None, eq=False)


@attrs.frozen(cache_hash=True)
class Kernel:
    """A whole kernel.

    `grid` blocks of `threads` threads, of which tiles are dealt to the first `workers`: these run `body`. `buffers` by name,
    parameters first; `symbols` are the run-time sizes, parameters too. `body` is the program. `facts` are conditions on sizes
    that the launcher checks. `unchecked` are the reasons by which a user took a check upon himself. `title` and `notes` go into
    the header of the printed kernel. `zeroed` names the outputs that blocks add to: whoever launches sets them to zero before.
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
    unchecked: tuple[str, ...] = ()
    shared_bytes: int = 0
    resident: int = 0
    zeroed: tuple[str, ...] = ()
    ineffective: tuple[SyncPoint, ...] = ()
    workers: int = attrs.field(default=attrs.Factory(lambda kernel: kernel.threads, takes_self=True), kw_only=True)

    @property
    def thread(self) -> Var:
        """The variable of the number, in its block, of a thread to which tiles are dealt."""
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


def buffer_table(kernel: Kernel) -> Mapping[str, Buffer]:
    """All buffers by name."""
    return kernel._by_name


def rewritten(body: Iterable[Stmt], rewrite: Callable[[Stmt], Sequence[Stmt]]) -> tuple[Stmt, ...]:
    """The program with each statement replaced by what `rewrite` makes of it, inner statements before the one around them.

    `rewrite` returns the statements that take the place of its argument: `(statement,)` leaves it, `()` removes it. A
    statement of which nothing changed inside stays the same object.
    """
    result: list[Stmt] = []
    for statement in body:
        children = statement.children
        if children:
            others = tuple(rewritten(child, rewrite) for child in children)
            if any(new is not old for child, other in zip(children, others) for new, old in itertools.zip_longest(other, child)):
                statement = statement.rebuilt(others)
        result += rewrite(statement)
    return tuple(result)


def edited(body: Iterable[Stmt], edit: Callable[[Exec], Exec]) -> tuple[Stmt, ...]:
    """The program with each `Exec` replaced by what `edit` makes of it."""
    return rewritten(body, lambda statement: (edit(statement) if isinstance(statement, Exec) else statement,))


def substituted(body: Iterable[Stmt], values: Mapping[Var, Expr | int]) -> tuple[Stmt, ...]:
    """The program with variables replaced everywhere."""
    return rewritten(body, lambda statement: (statement.substitute(values),))


def filled(program: Iterable[Stmt], holes: Mapping[str, tuple[Stmt, ...]]) -> tuple[Stmt, ...]:
    """The program with each hole replaced by the statements of its name."""
    return rewritten(program, lambda statement: holes[statement.child] if isinstance(statement, Hole) else (statement,))


def statements(body: Iterable[Stmt]) -> Iterator[Stmt]:
    """All statements, outer before inner, in program order."""
    for statement in body:
        yield statement
        for child in statement.children:
            yield from statements(child)


def located(body: Iterable[Stmt], around: tuple[Stmt, ...] = ()) -> Iterator[tuple[Stmt, tuple[Stmt, ...]]]:
    """All statements in program order, each with the statements that contain it, outermost first."""
    for statement in body:
        yield statement, around
        for child in statement.children:
            yield from located(child, (*around, statement))


def execs(body: Iterable[Stmt]) -> Iterator[tuple[Exec, tuple[For, ...]]]:
    """All `Exec` with the loops around them, outermost first."""
    for statement, around in located(body):
        if isinstance(statement, Exec):
            yield statement, tuple(one for one in around if isinstance(one, For))


def variables(body: Iterable[Stmt]) -> set[Var]:
    """All variables that the statements refer to."""
    return {var for statement in statements(body) for value in statement.expressions for var in value.variables()}


def scratch_access(tensor: Tensor) -> Access:
    """The access of a statement to all of its scratch memory."""
    return Access(tensor.name, (ZERO,), ((Mode(tensor.shape[0], 1),),), (None,), True, dealt=((),))


@functools.lru_cache(maxsize=256)
def lets(body: tuple[Stmt, ...]) -> Mapping[Var, Expr]:
    """All names with their definitions, in program order."""
    return {statement.var: statement.value for statement in statements(body) if isinstance(statement, Let)}


# ---------------------------------------------------------------------------------------------- the verifier


def verify(kernel: Kernel, *, final: bool = False) -> Kernel:
    """The kernel itself, if it is well formed; a `VerificationError` names the first thing that is not.

    Names are bound before use and once; accesses fit their buffers and the specs; conditions are truth values; loop
    extents do not depend on the thread. With `final`, no hole and no sync point is left.
    """
    if kernel.threads != kernel.workers:
        raise VerificationError(
            f"a block has {kernel.threads} threads, tiles are dealt to {kernel.workers}: no statement says what the others do"
        )
    scope = {var.name: var for var in (*kernel.symbols, kernel.thread, kernel.block)}
    names = [buffer.name for buffer in kernel.buffers]
    if len(set(names)) != len(names):
        raise VerificationError(f"buffers share a name: {names}")
    _verify_list(kernel, kernel.body, scope, frozenset({kernel.thread}), final)
    return kernel


def _verify_list(kernel: Kernel, body: tuple[Stmt, ...], scope: Mapping[str, Var], divergent: frozenset[Var], final: bool) -> None:
    for statement in body:
        match statement:
            case Let(var=var, value=value):
                _bound(value, scope, statement)
                _fresh(var, scope)
                scope = {**scope, var.name: var}
                if not value.variables().isdisjoint(divergent):
                    divergent = divergent | {var}
            case For(var=var, extent=extent):
                _bound(extent, scope, statement)
                _fresh(var, scope)
                if not extent.variables().isdisjoint(divergent):
                    raise VerificationError(f"loop {var} has an extent {extent} that differs between threads")
                if constant(extent) is not None and var.high < extent.high - 1:
                    raise VerificationError(f"loop variable {var} ends at {var.high}, its loop at {extent.high - 1}")
                _verify_list(kernel, statement.body, {**scope, var.name: var}, divergent, final)
            case Exec():
                _verify_exec(kernel, statement, scope, final)
            case Hole(child=child) if final:
                raise VerificationError(f"hole {child} was not filled")
            case SyncPoint(subject=subject) if final:
                raise VerificationError(f"sync point of {subject} was not resolved")
            case Barrier(scope=group) if (group.threads or 0) > 32 and kernel.threads % (group.threads or 1):
                raise VerificationError(f"a barrier of a {group} in a block of {kernel.threads} threads")
            case Wait(groups=groups) if groups < 0:
                raise VerificationError(f"a wait for {groups} groups")
            case Comment() | Hole() | SyncPoint() | Commit() | Wait() | Barrier():
                pass
            case _:
                raise unknown(statement, "the verifier")


def _fresh(var: Var, scope: Mapping[str, Var]) -> None:
    if var.name in scope:
        raise VerificationError(f"the name {var.name} is bound twice")


def _bound(value: Expr, scope: Mapping[str, Var], statement: Let | For | Exec) -> None:
    free = [var for var in value.variables() if (known := scope.get(var.name)) is not var and known != var]
    if free:
        names = ", ".join(sorted(var.name for var in free))
        raise VerificationError(f"{_described(statement)}: {names} is not bound in {value}")


def _described(statement: Let | For | Exec) -> str:
    if isinstance(statement, Exec):
        return f"{statement.instruction.name} {statement.spec}"
    return f"{'let' if isinstance(statement, Let) else 'for'} {statement.var}"


def _verify_exec(kernel: Kernel, statement: Exec, scope: Mapping[str, Var], final: bool) -> None:
    for value in statement.expressions:
        _bound(value, scope, statement)
    if len(statement.accesses) != len(statement.spec.operands):
        raise VerificationError(f"{_described(statement)}: {len(statement.accesses)} accesses for {len(statement.spec.operands)} operands")
    if statement.lane_maps and len(statement.lane_maps) != len(statement.accesses):
        raise VerificationError(f"{_described(statement)}: {len(statement.lane_maps)} lane maps for {len(statement.accesses)} accesses")
    table = buffer_table(kernel)
    for access in statement.accesses:
        if access.buffer not in table:
            raise VerificationError(f"{_described(statement)}: unknown buffer {access.buffer}")
        rank = len(table[access.buffer].tensor.shape)
        if not len(access.base) == len(access.modes) == len(access.bounds) == rank:
            raise VerificationError(f"{_described(statement)}: access to {access.buffer} has not its rank {rank}")
        if access.write and table[access.buffer].parameter and not table[access.buffer].written:
            raise VerificationError(f"{_described(statement)}: writes the input {access.buffer}")
    if statement.pieces:
        _verify_pieces(statement)
    elif final and not statement.collective and not statement.instruction.tests_edges:
        raise VerificationError(f"{_described(statement)}: nothing says which of its elements are stored", hint="the pass guard comes last")


def _verify_pieces(statement: Exec) -> None:
    """The pieces of each operand are all of its elements, each once and in order, under conditions."""
    if len(statement.pieces) != len(statement.accesses):
        where = _described(statement)
        raise VerificationError(f"{where}: pieces of {len(statement.pieces)} operands for {len(statement.accesses)} accesses")
    for access, pieces in zip(statement.accesses, statement.pieces, strict=True):
        count, reached = len(access.elements()), 0
        for piece in pieces:
            if piece.first != reached or piece.width < 1:
                raise VerificationError(f"{_described(statement)}: element {reached} of {access.buffer} is followed by a piece {piece}")
            reached += piece.width
            if piece.condition.low < 0 or piece.condition.high > 1:
                raise VerificationError(f"{_described(statement)}: {piece.condition} is no condition")
        if reached != count:
            raise VerificationError(f"{_described(statement)}: the pieces of {access.buffer} have {reached} elements, the access {count}")
