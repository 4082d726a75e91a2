"""Print lists of statements: consecutive statements with a common condition share an `if`, and loops that index registers are unrolled."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Iterable, Sequence

import attrs

from fireiron.cuda.expressions import Precedence, document, operand
from fireiron.cuda.lines import guarded
from fireiron.cuda.makers import Makers
from fireiron.cuda.outlined_functions import OutlinedFunction, buffers_of, in_order, name_of
from fireiron.cuda.outlining import Outlined, OutlinedCall
from fireiron.cuda.printer import BUILT_IN, KernelPrinter
from fireiron.cuda.reductions import LaneReduction
from fireiron.cuda.rings import CLUSTER_SYNC, acquired, branch, exit_loop, next_tile, released
from fireiron.cuda.semaphores import use_semaphore
from fireiron.cuda.skipping_loops import SkippingLoop, as_skipping_loop
from fireiron.cuda.tile_loops import TileLoop, tile_loop
from fireiron.cuda.versions import Branch
from fireiron.errors import DecompositionError, VerificationError
from fireiron.frozen import frozen
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
    SemaphoreBarrier,
    Stmt,
    Wait,
    execs,
    rewritten,
    statements,
    substituted,
    unknown,
    variables,
)
from fireiron.ir.awaited import awaited
from fireiron.ir.mechanisms.tma_store import ARRIVAL
from fireiron.ir.text import Braces, Function, If, Item, Noted, Path, WithSteps
from fireiron.ir.unrolled import indexes_registers, single
from fireiron.values.document import Assignment, Joined, Listed, Text, called
from fireiron.values.document import Chain as Terms
from fireiron.values.expr import FALSE, INT_MAX, Const, Expr, conjuncts, constant, equal
from fireiron.values.machine import float32

_WARPGROUP_BARRIER = Function(
    "warpgroup_sync",
    (),
    ('asm volatile("bar.sync %0, 128;" :: "r"(1 + threadIdx.x / 128) : "memory");',),
    "synchronize the 128 threads of a warpgroup, with one named barrier per warpgroup (0 is __syncthreads)",
)
"""PTX ISA 9.7.13.1. The number is not a constant, so ptxas reserves all 16 barriers of the block; nothing else here uses one."""


def _items(statement: Exec, items: object) -> list[Item]:
    """The items that an instruction returns; a string is refused, because each of its letters would become a line."""
    if isinstance(items, (list, tuple)):
        return list(items)
    name = type(statement.instruction).__name__
    raise DecompositionError(
        f"{name}.cuda(printer, statement) must return a list of lines",
        got=type(items).__name__,
        legal='["a = b;", "c = d;"], and blocks of fireiron.ir.text among them',
        within=statement.spec,
        hint=f"return [text] in {name}.cuda, or text.splitlines()",
    )


def _numbered_barriers(groups: int) -> Function:
    """The warpgroup barrier with constant barrier numbers, for a block with roles, which have separate barriers.

    If the number is in a register, ptxas reserves all 16 barriers, so that no second block fits on the SM.
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
    "order accesses of this thread to shared memory before later ones of the async proxy",
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
"""Maximum number of comparisons in the condition that skips a multiplication if all factors are 1."""


def straightened(kernel: Kernel) -> Kernel:
    """Replace loops of a single iteration by their bodies, and remove names in loops that no statement uses."""

    def without_loop(statement: Stmt) -> tuple[Stmt, ...]:
        if not isinstance(statement, For) or statement.extent != Const(1) or statement.step > 1:
            return (statement,)
        body = substituted(statement.body, {statement.var: 0})
        # A name that is bound in the body keeps a separate scope.
        return (attrs.evolve(statement, body=body),) if any(isinstance(one, Let) for one in body) else body

    return attrs.evolve(kernel, body=_without_unused(kernel, rewritten(kernel.body, without_loop)))


def _without_unused(kernel: Kernel, body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
    """Return the program without unused names inside its statements; `prune` has removed those at its top level."""
    used = variables(body) | {var for buffer in kernel.buffers for value in buffer.register_origin for var in value.variables()}
    outer = {statement.var for statement in body if isinstance(statement, Let)}
    shorter = rewritten(body, lambda stmt: () if isinstance(stmt, Let) and stmt.var not in used | outer else (stmt,))
    unchanged = len(shorter) == len(body) and all(map(operator.is_, shorter, body))
    return body if unchanged else _without_unused(kernel, shorter)  # an unused name may have been the only use of another one


@frozen
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
        self.dropped: frozenset[Expr] = frozenset()
        self.alone = False
        """Whether the statements are those of the one thread that issues asynchronous copies."""
        self.factors_tested = False
        """Whether the statements are under a test that some factor is not 1."""

    def program(self) -> list[Item]:
        """The kernel's body without the definitions at its start, with new addresses before the first statement that needs them."""
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
                    items += [*self.printer.addresses.new_declarations(), *notes, *inner]
                    notes = []
        self.printer.quotients.named = named
        return [*items, *notes]

    # ------------------------------------------------------------------------------------------ conditions

    def _list(self, body: Sequence[Stmt]) -> list[Item]:
        items: list[Item] = []
        named = dict(self.printer.quotients.named)
        for run in self._runs(body):
            items += self._run(run)
        self.printer.quotients.named = named
        return items

    def _runs(self, body: Sequence[Stmt]) -> Iterable[_Run]:
        """The list in parts: consecutive statements with the conditions that they share, or a single statement."""
        position = 0
        while position < len(body):
            shared, stop = self._shared(body, position)
            yield _Run(shared, body[position:stop], self.makers.of_list(body, position, stop))
            position = stop

    def _run(self, run: _Run) -> list[Item]:
        addresses = self.printer.addresses
        around, addresses.steps = addresses.steps, run.steps or addresses.steps
        items = [WithSteps(item, addresses.steps) for item in self._items(run)]
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
        """The conditions that a statement shares with the next ones, and the end of that run."""
        own = self._conditions(body[position])
        if not own:
            return (), position + 1
        stop = here = position
        shared = own
        while here < len(body):
            conditions = self._conditions(body[here])
            # The first condition determines how far an `if` reaches; it contains the others as long as all statements have them.
            if own[0] in conditions:
                shared = tuple(one for one in shared if one in conditions)
                stop = here + 1
            elif not isinstance(body[here], Comment):
                break
            here += 1
        return shared, stop

    def _conditions(self, statement: Stmt) -> tuple[Expr, ...]:
        """The conditions of a statement that are not yet tested around it."""
        if isinstance(statement, (Exec, LaneReduction)):
            return tuple(condition for condition in conjuncts(statement.performed) if condition not in self.dropped)
        if isinstance(statement, For):
            inner = [one for one in statement.body if not isinstance(one, Comment)]
            bound = {statement.var} | {one.var for one in inner if isinstance(one, Let)}
            parts = [self._conditions(one) for one in inner if not isinstance(one, Let)]
            return tuple(one for one in _common(parts) if one.variables().isdisjoint(bound))
        if isinstance(statement, OutlinedCall):
            parts = [self._conditions(one) for one in statement.function.body if not isinstance(one, Comment)]
            return tuple(one for one in _common(parts) if one.variables().isdisjoint(statement.function.parameters))
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

    def _arrival(self, statement: Wait) -> Item:
        """A wait until TMA stores have written global memory, or, where this suffices, until they have read shared memory."""
        call = f"{self.printer.function(ARRIVAL)}();"
        arrival: Item = Noted(call, statement.reason) if statement.reason else call
        if statement.reads_suffice == FALSE:
            return arrival
        read = tuple(statement.mechanism.wait(self.printer, 0, "", (), self._one_of(lambda one: one is statement.mechanism)))
        return If(self.printer.conditions(conjuncts(statement.reads_suffice)), read, (arrival,))

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
                return exit_loop(self.printer, statement)
            case Acquire():
                return acquired(self.printer, statement)
            case Release():
                return released(self.printer, statement)
            case SemaphoreBarrier():
                return use_semaphore(self.printer, statement)
            case Barrier(scope=scope, reason=reason):
                call = self._barrier(scope)
                return [Noted(call, reason) if reason else call]
            case ClusterBarrier(reason=reason):
                call = f"{self.printer.function(CLUSTER_SYNC)}();"
                return [Noted(call, reason) if reason else call]
            case Fence(kind=FenceKind.WGMMA_REGISTERS):
                mma = self._one_of(lambda mechanism: mechanism.in_registers)
                return list(mma.mechanism.fence(self.printer, statement.pinned_registers, mma))
            case Fence(reason=reason):
                call = f"{self.printer.function(_PROXY_FENCE)}();"
                return [Noted(call, reason) if reason else call]
            case GridDepControl(action=link):
                return [f"{self.printer.function(_LINKS[link])}();"]
            case Commit(mechanism=mechanism):
                return list(self._one_of(lambda one: one is mechanism).mechanism.commit(self.printer))
            case Wait(arrival=True):
                return [self._arrival(statement)]
            case Wait(mechanism=mechanism, groups=groups, reason=reason, pinned_registers=pinned):
                return list(mechanism.wait(self.printer, groups, reason, pinned, self._one_of(lambda one: one is mechanism)))
            case IfAnyLane(needed=needed):
                # With a warp barrier inside, which costs nothing, the compiler keeps the branch. Otherwise it would predicate the few
                # instructions, and wait for their operands earlier.
                return [guarded((self._any_of_warp(needed),), [Noted("__syncwarp();", "keep a branch"), *self._list(statement.body)])]
            case For() | Exec() if not self.factors_tested and (factors := self._factors(statement)):
                self.factors_tested = True
                inner = self._statement(statement)
                self.factors_tested = False
                return [guarded((Terms((factors[0], *(Joined(("|| ", one)) for one in factors[1:]))),), inner)]
            case For():
                return self._loop(statement)
            case OutlinedCall():
                return self._outlined_call(statement)
            case LaneReduction(values=values):
                return [f"{self.printer.function(statement.function(self.kernel))}({values});"]
            case Branch(interior=interior, inside=inside, outside=outside):
                conditions = self.printer.conditions(conjuncts(interior))
                if not conditions:  # all tiles are in the interior
                    return list(self._list(inside))
                return [If(conditions, tuple(self._list(inside)), tuple(self._list(outside)))]
            case Exec():
                if not statement.pieces and not statement.collective and not statement.instruction.tests_edges:
                    raise VerificationError(f"{statement.instruction.name} {statement.spec}: no pieces specify the stored elements")
                return _items(statement, statement.instruction.cuda(self.printer, statement))
        raise unknown(statement, "the printer")

    def _any_of_warp(self, needed: str) -> Text:
        """Whether a thread of the warp has a nonzero value in some registers; all lanes vote, so the vote is not conditional."""
        own = [f"{needed}[{number}]" for number in range(self.kernel.buffer(needed).elements.high)]
        return f"__any_sync(0xffffffff, {' | '.join(own)})"

    def _factors(self, statement: Stmt) -> list[Text]:
        """The conditions `factor != 1`, for each factor of a thread in a statement that changes nothing if all factors are 1; else none."""
        conditions: dict[str, Text] = {}
        for stmt, loops in execs((statement,)):
            name = stmt.instruction.identity_operand(stmt.spec)
            counts = [constant(loop.extent) for loop in loops]
            if not name or None in counts:
                return []
            access, dtype = stmt.operands[name], stmt.spec.operands[name].dtype
            varying = [loop for loop in loops if any(loop.var in value.variables() for value in access.expressions())]
            for numbers in itertools.product(*(loop.values(loop.extent.high) for loop in varying)):
                at = access.substitute({loop.var: number for loop, number in zip(varying, numbers, strict=True)})
                for offset in at.elements():
                    place = self.printer.converted(self.printer.place(at, offset), dtype, float32)
                    conditions[str(place)] = Terms((place, f"!= {self.printer.literal(1, float32)}"))
                if len(conditions) > MOST_FACTORS:
                    return []
        return list(conditions.values())

    def _outlined_call(self, call: OutlinedCall) -> list[Item]:
        """The call of a function, which is printed at its first call.

        If other conditions are tested around this call than around the first one, its statements are printed instead.
        """
        conditions = {part for stmt, _ in execs(call.function.body) for part in conjuncts(stmt.performed)}
        tested = frozenset(conditions & self.dropped)
        outlined = self.printer.outlined
        if call.function not in outlined:
            outlined[call.function] = self._outlined(call.function, tested)
        function = outlined[call.function]
        if function.tested != tested:
            return self._list(call.body)
        buffers = (buffer.name for buffer in function.buffers)
        values = (self.printer.expression(value) for value in (*call.arguments, *function.variables))
        return [called(function.name, Listed((*buffers, *values)))]

    def _outlined(self, function: Outlined, tested: frozenset[Expr]) -> OutlinedFunction:
        """Print a function: nothing that its callers have named is visible in it."""
        addresses, names = self.printer.addresses, self.printer.names
        name = names.keep(name_of(function))
        loops, used, end = addresses.loops, addresses.used, names.scope()
        addresses.loops, addresses.used = [], set()
        items = self._list(function.body)
        inside = {stmt.var for stmt in statements(function.body) if isinstance(stmt, For)}
        variables = in_order(self.kernel, addresses.used - inside - {*function.parameters})
        addresses.loops, addresses.used = loops, used
        end()
        return OutlinedFunction(name, function, buffers_of(self.kernel, function), variables, tested, tuple(items), addresses.steps)

    def _roles(self, statement: Roles) -> list[Item]:
        """A branch for each role, with separate addresses."""
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

    def _one_of(self, matches: Callable[[Mechanism], bool]) -> Exec:
        """The first statement of the kernel whose completion mechanism matches; the verifier ensures that there is one.

        A commit, a wait, a fence or a loop refers to this mechanism.
        """
        return next(one for one, _ in execs(self.kernel.body) if matches(one.mechanism))

    def _let(self, statement: Let) -> Item:
        value = self.printer.quotients.define(statement.var, statement.value)
        self.printer.addresses.used |= value.variables()
        return Assignment(f"const {_integer(statement.var.high)} {statement.var}", document(value))

    def _skipping(self, skipping: SkippingLoop) -> list[Item]:
        """A loop whose executed iterations depend on data."""
        addresses, extent = self.printer.addresses, skipping.loop.extent
        addresses.used |= extent.variables()
        tests = self._list(skipping.names)
        before, body = self._running(skipping.loop)
        return [
            *before,
            *skipping.items(operand(extent, Precedence.SUM), addresses.names.fresh, tests, self._counting(skipping.loop, body)),
        ]

    def _counting(self, loop: For, body: list[Item]) -> list[Item]:
        """A loop's body, which counts its iterations if a later loop uses the count."""
        addresses = self.printer.addresses
        return (
            [*body, addresses.count(loop.prior_iterations, loop.increment)]
            if loop.prior_iterations is not None and loop.prior_iterations in addresses.used
            else body
        )

    def _loop(self, statement: For) -> list[Item]:
        if (skipping := as_skipping_loop(statement)) is not None:
            return self._skipping(skipping)
        unroll = statement.unroll or indexes_registers(self.kernel, statement)
        tiles = None if unroll else tile_loop(self.kernel, statement)
        if tiles is not None:
            statement = attrs.evolve(statement, body=tuple(stmt for stmt in statement.body if stmt is not tiles.let))
        before, body = ((), self._unrolled(statement)) if unroll else self._running(statement)
        if statement.pinned_registers:
            mma = self._one_of(lambda mechanism: mechanism.in_registers)
            before = (*mma.mechanism.pin(self.printer, statement.pinned_registers, mma), *before)
        body = self._counting(statement, body)
        if single(statement):
            only = (f"const int {statement.var} = 0;",) if statement.var in variables(statement.body) else ()
            return [*before, Braces("", (*only, *body))]
        if tiles is not None:
            return [*before, Braces(self._over_tiles(tiles, statement), tuple(body), self._rolled(statement))]
        name = statement.var.name
        self.printer.addresses.used |= statement.extent.variables()
        further = f"++{name}" if statement.step == 1 else f"{name} += {statement.step}"
        condition = "" if _has_exit(statement) else f" {name} < {operand(statement.extent, Precedence.SUM)}"
        head = f"for (int {name} = {statement.first};{condition}; {further})"  # sizes and numbers of tiles fit 32 bits
        return [*before, Braces(head, tuple(body), "#pragma unroll" if unroll else self._rolled(statement))]

    def _over_tiles(self, tiles: TileLoop, loop: For) -> str:
        """The head of a loop of persistent blocks over tiles."""
        constants = self.printer.addresses.constants
        count = constants.named("num_tiles", tiles.tiles) if isinstance(tiles.tiles, int) else self.printer.expression(tiles.tiles)
        blocks = constants.named("num_blocks", tiles.blocks)
        iteration = loop.var if loop.var in self.printer.addresses.used else None
        return tiles.head(BUILT_IN["block"], count, blocks, iteration)

    def _rolled(self, loop: For) -> str:
        """The pragma that keeps a loop rolled.

        An inner loop of one thread stays rolled if its extent is known only at run time: unrolled, it would begin with the addresses of
        several iterations, and its first load would wait for them. So does a loop with MMAs, whose remainder iterations would compute
        stages per lane.
        """
        inner = not any(isinstance(one, For) for one in loop.body)
        rolled = self.alone and inner and constant(loop.extent) is None
        return "#pragma unroll 1" if rolled or self._together(loop) else ""

    def _together(self, loop: For) -> bool:
        """Whether a loop over the fills of a ring has wgmma, and either a run-time trip count or a wait for its MMAs in each iteration.

        In other loops, the compiler derives that stages are warp-uniform, and keeps the addresses of MMAs in uniform registers. In these
        loops it does not, and copies each address from the registers of a lane before the first MMA of an iteration, or between MMAs.
        """
        if not any(isinstance(one, Acquire) for one in loop.body):
            return False
        mmas = [stmt for stmt, _ in execs(loop.body) if stmt.mechanism.in_registers]
        return bool(mmas) and (constant(loop.extent) is None or any(id(stmt) in awaited(self.kernel) for stmt in mmas))

    def _unrolled(self, loop: For) -> list[Item]:
        return self._list(loop.body)

    def _running(self, loop: For) -> tuple[Sequence[Item], list[Item]]:
        """The lines before a loop that is not unrolled, and its body, with the names that it defines."""
        self.printer.addresses.enter(loop, self._together(loop))
        items = self._list(loop.body)
        lines = self.printer.addresses.leave()
        return lines.before, [*lines.top, *items, *lines.end]


def _common(parts: Sequence[tuple[Expr, ...]]) -> tuple[Expr, ...]:
    """The conditions that all parts have, in the order of the first."""
    first, *others = parts or [()]
    return tuple(one for one in first if all(one in other for other in others))


def _has_exit(loop: For) -> bool:
    """Whether a statement of the body ends the loop."""
    return any(isinstance(one, ExitIfDone) for one in loop.body)


def _integer(high: int) -> str:
    """The type of an index."""
    return "long long" if high > INT_MAX else "int"
