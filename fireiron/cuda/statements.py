"""Print lists of statements: consecutive ones with one condition share an `if`, loops that index registers are unrolled."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence

import attrs

from fireiron.cuda.chosen import ChosenTurns, chosen_turns
from fireiron.cuda.expressions import Binds, document, operand
from fireiron.cuda.lines import guarded
from fireiron.cuda.makers import Makers
from fireiron.cuda.printer import BUILT_IN, KernelPrinter
from fireiron.cuda.reductions import is_shuffle, with_reductions
from fireiron.cuda.rings import CLUSTER_SYNC, acquired, branch, left, next_tile, released
from fireiron.cuda.tile_loops import TileLoop, tile_loop
from fireiron.cuda.versions import Branch
from fireiron.errors import DecompositionError, VerificationError
from fireiron.ir import (
    BLOCK_SCOPE,
    WARP_SCOPE,
    WARPGROUP_SCOPE,
    Acquire,
    Barrier,
    ClaimTile,
    ClusterBarrier,
    Comment,
    Commit,
    Exec,
    ExitIfDone,
    Fence,
    FenceKind,
    For,
    GridDepAction,
    GridDepControl,
    IfAnyLane,
    Kernel,
    Let,
    Mechanism,
    Release,
    Roles,
    Scope,
    Stmt,
    Wait,
    execs,
    rewritten,
    substituted,
    unknown,
)
from fireiron.ir.awaited import awaited
from fireiron.ir.text import Braces, Function, If, Item, Made, Noted, Path
from fireiron.values.document import Assignment, Joined, Text
from fireiron.values.document import Chain as Terms
from fireiron.values.expr import INT_MAX, Const, Expr, conjuncts, constant, equal
from fireiron.values.machine import float32

_WARPGROUP_BARRIER = Function(
    "warpgroup_sync",
    (),
    ('asm volatile("bar.sync %0, 128;" :: "r"(1 + threadIdx.x / 128) : "memory");',),
    "synchronize the 128 threads of a warpgroup, with one named barrier per warpgroup (0 is __syncthreads)",
)
"""PTX ISA 9.7.13.1. The number is no constant, so that all 16 barriers of the block are taken: nothing else here uses one."""


def _items(statement: Exec, items: object) -> list[Item]:
    """What an instruction prints; refused where it is no list: of a text each letter would be a line."""
    if isinstance(items, (list, tuple)):
        return list(items)
    name = type(statement.instruction).__name__
    raise DecompositionError(
        f"{name}.cuda(printer, statement) returns no list of lines",
        got=type(items).__name__,
        legal='["a = b;", "c = d;"], and blocks of fireiron.ir.text among them',
        within=statement.spec,
        hint=f"return [text] in {name}.cuda, or text.splitlines()",
    )


def _numbered_barriers(groups: int) -> Function:
    """The same with numbers that are constants, for a block with roles, which have barriers of their own.

    ptxas counts a number in a register as all 16 barriers, and no other block fits beside.
    """
    lines = [f'if (warpgroup == {number}) asm volatile("bar.sync {number + 1}, 128;" ::: "memory");' for number in range(groups)]
    body = ("const unsigned warpgroup = threadIdx.x / 128;", *(f"{'else ' if number else ''}{line}" for number, line in enumerate(lines)))
    return Function("warpgroup_sync", (), body, "synchronize the 128 threads of a warpgroup, with one named barrier per warpgroup")


def _role_barrier(threads: int, groups: int) -> Function:
    texts = [f'asm volatile("bar.sync {15 - group}, {threads};" ::: "memory");' for group in range(groups)]
    lines = [f"if (threadIdx.x / {threads} == {group}) {text}" for group, text in enumerate(texts)] if groups > 1 else texts
    return Function("consumers_sync", (), tuple(lines), "synchronize the threads of a role at a named barrier")


_PROXY_FENCE = Function(
    "fence_proxy_async",
    (),
    ('asm volatile("fence.proxy.async.shared::cta;" ::: "memory");',),
    "make writes of this thread to shared memory visible to the async proxy",
)

_LINKS = {
    GridDepAction.LAUNCH_DEPENDENTS: Function(
        "griddepcontrol_launch_dependents",
        (),
        ('asm volatile("griddepcontrol.launch_dependents;" ::: "memory");',),
        "allow the next kernel of the stream to start",
    ),
    GridDepAction.WAIT: Function(
        "griddepcontrol_wait",
        (),
        ('asm volatile("griddepcontrol.wait;" ::: "memory");',),
        "wait until the previous kernel of the stream has completed and its writes are visible",
    ),
}

MOST_FACTORS = 16
"""Most comparisons that guard a multiplication which is skipped if all factors are 1."""

MOST_REGISTERS = 255
"""Registers of a thread; larger arrays are in local memory, with run-time indices."""


def straightened(kernel: Kernel) -> Kernel:
    """Replace loops of a single iteration by their bodies."""

    def turned(statement: Stmt) -> tuple[Stmt, ...]:
        if not isinstance(statement, For) or statement.extent != Const(1) or statement.step > 1:
            return (statement,)
        body = substituted(statement.body, {statement.var: 0})
        # A name that is bound in the body keeps a scope of its own.
        return (attrs.evolve(statement, body=body),) if any(isinstance(one, Let) for one in body) else body

    return attrs.evolve(kernel, body=rewritten(kernel.body, turned))


@attrs.frozen
class _Run:
    """Consecutive statements, the conditions that they share, and their steps."""

    conditions: tuple[Expr, ...]
    body: Sequence[Stmt]
    steps: tuple[Path, ...]


class Statements:
    """The items of a kernel's statements."""

    def __init__(self, printer: KernelPrinter) -> None:
        self.printer, self.kernel = printer, printer.kernel
        self.makers = Makers(printer.kernel)
        self.shuffles = any(is_shuffle(stmt) for stmt, _ in execs(printer.kernel.body))
        self.dropped: frozenset[Expr] = frozenset()
        self.alone = False
        """Whether the statements are those of one thread, which tells engines what to do."""
        self.moved = False
        """Whether some factor is known not to be 1 where the statements stand."""

    def program(self) -> list[Item]:
        """The kernel's body without the definitions at its top, each statement behind the addresses that it is the first to need."""
        return self._program([one for one in self.kernel.body if not isinstance(one, Let)])

    def _program(self, body: Sequence[Stmt]) -> list[Item]:
        items: list[Item] = []
        notes: list[Item] = []
        named = dict(self.printer.quotients.named)
        for run in self._runs(body):
            inner = self._run(run)
            match run.body:
                case [Comment()]:
                    notes += inner
                case _:
                    items += [*self.printer.addresses.taken(), *notes, *inner]
                    notes = []
        self.printer.quotients.named = named
        return self._reduced([*items, *notes])

    # ------------------------------------------------------------------------------------------ conditions

    def _list(self, body: Sequence[Stmt]) -> list[Item]:
        items: list[Item] = []
        named = dict(self.printer.quotients.named)
        for run in self._runs(body):
            items += self._run(run)
        self.printer.quotients.named = named
        return self._reduced(items)

    def _reduced(self, items: list[Item]) -> list[Item]:
        """Items with calls for reductions by shuffles."""
        return with_reductions(items, self.kernel, self.printer.function) if self.shuffles else items

    def _runs(self, body: Sequence[Stmt]) -> Iterable[_Run]:
        """The list in parts: each with the conditions under which all of its statements are, or a single statement."""
        position = 0
        while position < len(body):
            shared, stop = self._shared(body, position)
            yield _Run(shared, body[position:stop], self.makers.of_list(body, position, stop))
            position = stop

    def _run(self, run: _Run) -> list[Item]:
        addresses = self.printer.addresses
        around, addresses.steps = addresses.steps, run.steps or addresses.steps
        items = [Made(item, addresses.steps) for item in self._items(run)]
        addresses.steps = around
        return list(items)

    def _items(self, run: _Run) -> list[Item]:
        if not run.conditions:
            (statement,) = run.body
            return self._statement(statement)
        before = self.dropped
        self.dropped = before | frozenset(run.conditions)
        inner = self._list(run.body)
        self.dropped = before
        return [guarded(self.printer.conditions(run.conditions), inner)]

    def _shared(self, body: Sequence[Stmt], position: int) -> tuple[tuple[Expr, ...], int]:
        """The conditions that a statement shares with those behind it, and the end of that run."""
        own = self._conditions(body[position])
        if not own:
            return (), position + 1
        stop = here = position
        shared = own
        while here < len(body):
            conditions = self._conditions(body[here])
            # The first condition decides how far an `if` reaches; the others stand in it as long as all statements have them.
            if own[0] in conditions:
                shared = tuple(one for one in shared if one in conditions)
                stop = here + 1
            elif not isinstance(body[here], Comment):
                break
            here += 1
        return shared, stop

    def _conditions(self, statement: Stmt) -> tuple[Expr, ...]:
        """Conditions, not yet tested around it, without which a statement does nothing."""
        if isinstance(statement, Exec):
            return tuple(condition for condition in conjuncts(statement.performed) if condition not in self.dropped)
        if isinstance(statement, For):
            inner = [one for one in statement.body if not isinstance(one, Comment)]
            bound = {statement.var} | {one.var for one in inner if isinstance(one, Let)}
            parts = [self._conditions(one) for one in inner if not isinstance(one, Let)]
            return tuple(one for one in _common(parts) if one.variables().isdisjoint(bound))
        if isinstance(statement, Branch):
            return _common([self._conditions(one) for part in statement.children for one in part if not isinstance(one, Comment)])
        return ()

    # ------------------------------------------------------------------------------------------ statements

    def _barrier(self, scope: Scope) -> str:
        if scope == BLOCK_SCOPE:
            return "__syncthreads();"
        if scope == WARP_SCOPE:
            return "__syncwarp();"
        if scope == WARPGROUP_SCOPE:
            roles = any(isinstance(one, Roles) for one in self.kernel.body)
            function = _numbered_barriers(-(-self.kernel.workers // 128)) if roles else _WARPGROUP_BARRIER
            return f"{self.printer.function(function)}();"
        consumers = next((one.roles[0].threads for one in self.kernel.body if isinstance(one, Roles)), None)
        if consumers is not None and scope.threads == consumers:
            return f"{self.printer.function(_role_barrier(consumers, self.kernel.workers // consumers))}();"
        raise VerificationError(f"the printer has no text for a barrier of a {scope}")

    def _statement(self, statement: Stmt) -> list[Item]:
        match statement:
            case Comment(text=text):
                return [f"// {line}" for line in text.splitlines() or [""]]
            case Let():
                return [self._let(statement)]
            case Roles():
                return self._roles(statement)
            case ClaimTile():
                return next_tile(self.printer, statement)
            case ExitIfDone():
                return left(self.printer, statement)
            case Acquire():
                return acquired(self.printer, statement)
            case Release():
                return released(self.printer, statement)
            case Barrier(scope=scope, reason=reason):
                call = self._barrier(scope)
                return [Noted(call, reason) if reason else call]
            case ClusterBarrier(reason=reason):
                call = f"{self.printer.function(CLUSTER_SYNC)}();"
                return [Noted(call, reason) if reason else call]
            case Fence(kind=FenceKind.WGMMA_REGISTERS):
                one = self._one_of(lambda mechanism: mechanism.in_registers)
                return list(one.mechanism.fence(self.printer, statement.pinned_registers, one))
            case Fence(reason=reason):
                call = f"{self.printer.function(_PROXY_FENCE)}();"
                return [Noted(call, reason) if reason else call]
            case GridDepControl(action=link):
                return [f"{self.printer.function(_LINKS[link])}();"]
            case Commit(mechanism=mechanism):
                return list(self._one_of(lambda one: one is mechanism).mechanism.commit(self.printer))
            case Wait(mechanism=mechanism, groups=groups, reason=reason, pinned_registers=holds):
                return list(mechanism.wait(self.printer, groups, reason, holds, self._one_of(lambda one: one is mechanism)))
            case IfAnyLane(needed=needed):
                # With a barrier of the warp inside, which costs nothing, the compiler branches: it would issue few instructions anyway, and
                # what they read would be wanted, and waited for, earlier.
                return [guarded((self._any_of_warp(needed),), [Noted("__syncwarp();", "keep a branch"), *self._list(statement.body)])]
            case For() | Exec() if not self.moved and (factors := self._factors(statement)):
                self.moved = True
                inner = self._statement(statement)
                self.moved = False
                return [guarded((Terms((factors[0], *(Joined(("|| ", one)) for one in factors[1:]))),), inner)]
            case For():
                return self._loop(statement)
            case Branch(interior=interior, inside=inside, outside=outside):
                conditions = self.printer.conditions(conjuncts(interior))
                return [If(conditions, tuple(self._list(inside)), tuple(self._list(outside)))]
            case Exec():
                if not statement.pieces and not statement.collective and not statement.instruction.tests_edges:
                    raise VerificationError(f"{statement.instruction.name} {statement.spec}: nothing says which of its elements are stored")
                return _items(statement, statement.instruction.cuda(self.printer, statement))
        raise unknown(statement, "the printer")

    def _any_of_warp(self, needed: str) -> Text:
        """Whether one of a warp's threads has a number other than 0 in some registers: all lanes ask, so it stands under no condition."""
        own = [f"{needed}[{number}]" for number in range(self.kernel.buffer(needed).elements.high)]
        return f"__any_sync(0xffffffff, {' | '.join(own)})"

    def _factors(self, statement: Stmt) -> list[Text]:
        """That a factor is not 1, for each that a thread has in a statement that does nothing where all are; none where it may do more."""
        found: dict[str, Text] = {}
        for one, loops in execs((statement,)):
            name = one.instruction.identity_operand(one.spec)
            counts = [constant(loop.extent) for loop in loops]
            if not name or None in counts:
                return []
            access, dtype = one.operands[name], one.spec.operands[name].dtype
            turns = [loop for loop in loops if any(loop.var in value.variables() for value in access.expressions())]
            for numbers in itertools.product(*(loop.values(loop.extent.high) for loop in turns)):
                at = access.substitute({loop.var: number for loop, number in zip(turns, numbers, strict=True)})
                for offset in at.elements():
                    place = self.printer.converted(self.printer.place(at, offset), dtype, float32)
                    found[str(place)] = Terms((place, f"!= {self.printer.literal(1, float32)}"))
                if len(found) > MOST_FACTORS:
                    return []
        return list(found.values())

    def _roles(self, statement: Roles) -> list[Item]:
        """A branch for each role, with addresses of its own."""
        items: list[Item] = ["const int warp_index = __shfl_sync(0xffffffff, threadIdx.x / 32, 0);"]
        for number, role in enumerate(statement.roles):
            forget = self.printer.addresses.role()
            items.append(f"// {role.name}")
            before = self.dropped
            self.dropped = before | frozenset((equal(self.kernel.thread // role.threads, role.first // role.threads),))
            self.alone = role.elected
            items.append(branch(self.kernel, role, number, self._program(role.body), self.printer))
            self.dropped, self.alone = before, False
            forget()
        return items

    def _one_of(self, is_meant: Callable[[Mechanism], bool]) -> Exec:
        """The first statement of the kernel of such a completion mechanism, which a commit, a wait, a fence or a loop is for: the verifier
        sees to it that there is one."""
        return next(one for one, _ in execs(self.kernel.body) if is_meant(one.mechanism))

    def _let(self, statement: Let) -> Item:
        value = self.printer.quotients.define(statement.var, statement.value)
        self.printer.addresses.used |= value.variables()
        return Assignment(f"const {_integer(statement.var.high)} {statement.var}", document(value))

    def _chosen(self, turns: ChosenTurns) -> list[Item]:
        """A loop of which data say the turns."""
        addresses, extent = self.printer.addresses, turns.loop.extent
        addresses.used |= extent.variables()
        asked = self._list(turns.names)
        before, body = self._running(turns.loop)
        return [*before, *turns.items(operand(extent, Binds.SUM), addresses.names.fresh, asked, self._counting(turns.loop, body))]

    def _counting(self, loop: For, body: list[Item]) -> list[Item]:
        """A loop's body, which counts its turns if anything asks for them."""
        addresses = self.printer.addresses
        return (
            [*body, addresses.count(loop.prior_iterations, loop.increment)]
            if loop.prior_iterations is not None and loop.prior_iterations in addresses.used
            else body
        )

    def _loop(self, statement: For) -> list[Item]:
        if (turns := chosen_turns(statement)) is not None:
            return self._chosen(turns)
        unroll = statement.unroll or self._indexes_registers(statement)
        tiles = None if unroll else tile_loop(self.kernel, statement)
        if tiles is not None:
            statement = attrs.evolve(statement, body=tuple(stmt for stmt in statement.body if stmt is not tiles.let))
        before, body = ((), self._unrolled(statement)) if unroll else self._running(statement)
        if statement.pinned_registers:
            one = self._one_of(lambda mechanism: mechanism.in_registers)
            before = (*one.mechanism.pin(self.printer, statement.pinned_registers, one), *before)
        body = self._counting(statement, body)
        if statement.extent == Const(1) and statement.step == 1:
            return [*before, Braces("", (f"const int {statement.var} = 0;", *body))]
        if tiles is not None:
            return [*before, Braces(self._over_tiles(tiles, statement), tuple(body), self._rolled(statement))]
        name = statement.var.name
        self.printer.addresses.used |= statement.extent.variables()
        further = f"++{name}" if statement.step == 1 else f"{name} += {statement.step}"
        goes_on = "" if _is_left(statement) else f" {name} < {operand(statement.extent, Binds.SUM)}"
        head = f"for (int {name} = {statement.first};{goes_on}; {further})"  # sizes and numbers of tiles fit 32 bits
        return [*before, Braces(head, tuple(body), "#pragma unroll" if unroll else self._rolled(statement))]

    def _over_tiles(self, tiles: TileLoop, loop: For) -> str:
        """The head of a loop of persistent blocks over tiles."""
        constants = self.printer.addresses.constants
        count, blocks = constants.named("num_tiles", tiles.tiles), constants.named("num_blocks", tiles.blocks)
        iteration = loop.var if loop.var in self.printer.addresses.used else None
        return tiles.head(BUILT_IN["block"], count, blocks, iteration)

    def _rolled(self, loop: For) -> str:
        """An inner loop of one thread stays rolled where its extent is told at run time: unrolled, it begins with the addresses of
        several turns, for which its first load would wait. So does one with products, whose remainder would have stages for each lane.
        """
        inner = not any(isinstance(one, For) for one in loop.body)
        rolled = self.alone and inner and constant(loop.extent) is None
        return "#pragma unroll 1" if rolled or self._together(loop) else ""

    def _together(self, loop: For) -> bool:
        """Whether a loop over a ring's turns multiplies by warpgroups, and its extent is told at run time, or its products are waited for
        in each turn.

        Of a known extent, where products follow each other, the compiler finds by itself that stages are the same for all lanes, and keeps
        addresses of products once for a warp. Else it does not: each address of each product is brought there from the registers of a
        lane, in front of the first product of a turn, or between them.
        """
        if not any(isinstance(one, Acquire) for one in loop.body):
            return False
        products = [one for one, _ in execs(loop.body) if one.mechanism.in_registers]
        return bool(products) and (constant(loop.extent) is None or any(id(one) in awaited(self.kernel) for one in products))

    def _unrolled(self, loop: For) -> list[Item]:
        return self._list(loop.body)

    def _running(self, loop: For) -> tuple[Sequence[Item], list[Item]]:
        """What stands in front of a loop that runs at run time, and its body, with what it names of its variable."""
        self.printer.addresses.enter(loop, self._together(loop))
        items = self._list(loop.body)
        lines = self.printer.addresses.leave()
        return lines.before, [*lines.top, *items, *lines.end]

    def _indexes_registers(self, loop: For) -> bool:
        """Registers have no run-time index: a loop whose variable numbers them must be unrolled, if they are registers at all."""
        for statement, _ in execs((loop,)):
            for access in statement.accesses:
                buffer = self.kernel.buffer(access.buffer)
                registers = buffer.memory.private and buffer.elements.high <= MOST_REGISTERS and not statement.collective
                if registers and loop.var in buffer.address(access, access.elements()[0]).variables():
                    return True
        return False


def _common(parts: Sequence[tuple[Expr, ...]]) -> tuple[Expr, ...]:
    """The conditions of the first that all others have too; none of none."""
    first, *others = parts or [()]
    return tuple(one for one in first if all(one in other for other in others))


def _is_left(loop: For) -> bool:
    """Whether a statement of its body says when a loop is over."""
    return any(isinstance(one, ExitIfDone) for one in loop.body)


def _integer(high: int) -> str:
    """The type of an index."""
    return "long long" if high > INT_MAX else "int"
