"""The plan of a simulation: the part that does not depend on the data in arrays.

Every expression of the kernel is compiled. Loops around a single statement become array axes if no iteration accesses an element that
another one writes. All other loops run in Python.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, TypeAlias

import attrs
import numpy as np

from fireiron.errors import VerificationError
from fireiron.ir import (
    Access,
    Acquire,
    Barrier,
    Buffer,
    ClaimTile,
    ClusterBarrier,
    Comment,
    Commit,
    Exec,
    ExitIfDone,
    Fence,
    For,
    GridDepControl,
    IfAnyLane,
    Kernel,
    Let,
    Piece,
    Release,
    Role,
    Roles,
    SemaphoreBarrier,
    Stmt,
    Wait,
    execs,
    scratch_access,
    separated,
    statements,
    unknown,
)
from fireiron.sim.conditions import Conjunction, Reading
from fireiron.sim.tma_boxes import TmaBoxes
from fireiron.values.expr import FALSE, TRUE, Expr, Var, compiled, conjuncts
from fireiron.values.machine import Block

Array: TypeAlias = Any
Environment: TypeAlias = "dict[str, Any]"
Value: TypeAlias = Callable[[Mapping[str, Any]], Any]

MAX_ELEMENTS: Final = 1 << 21
"""Maximum number of elements of one vectorized statement; further loops run in Python."""


class Operand:
    """One access of a statement, as functions of the environment. The read and the write of an output are two operands.

    `conditions` apply to all of its elements; those of its statement, `active`, come first. `parts` are the conditions of its `pieces` if
    these differ, and `part_of` is the piece of each element. An access without pieces covers the elements within its bounds. `vectors` are
    the pieces of several elements. `spread` is the number of threads of which any may perform the access of one: 1, or those of a `unit`. A
    TMA copy accesses its `boxes`; an access to shared memory then specifies their first elements.
    """

    def __init__(
        self,
        plan: Plan,
        access: Access,
        axes: Sequence[int],
        conditions: Sequence[Expr],
        write: bool,
        scope: _Scope,
        pieces: tuple[Piece, ...],
        unit: int,
        boxes: TmaBoxes | None,
    ) -> None:
        buffer = plan.buffers[access.buffer]
        self.access, self.buffer, self.write, self.boxes = access, buffer, write, boxes
        # the dimensions of the spec's view: a buffer may have others
        self.tile = tuple(size for axis, size in enumerate(access.shape) if axis in axes)
        self.order = tuple(sorted(axes).index(axis) for axis in axes)
        self.element_order = _element_order(access)
        if boxes is None:
            elements = np.array(access.elements(), np.int64)
        else:
            elements = boxes.outside if boxes.array_access == access else boxes.inside
        self.offsets, self.count = [*elements.T], len(elements)
        self.sizes = tuple(plan.number(size) for size in buffer.tensor.shape)
        self.base = tuple(map(Reading.of, access.base))
        # After `guard`, the conditions of the pieces include the bounds.
        bounds = access.bounds if not pieces else (None,) * len(access.base)
        self.bounds = tuple(None if bound is None else Reading.of(bound) for bound in bounds)
        tested = tuple(dict.fromkeys(piece.condition for piece in pieces))
        common, parts = (conjuncts(*tested), ()) if len(tested) == 1 else ((), tested)
        self.active = Conjunction.of(conditions)
        conditions = (*conditions, *common)
        self.conditions, self.parts = Conjunction.of(conditions), tuple(Conjunction.of(conjuncts(part)) for part in parts)
        self.part_of = np.array([tested.index(piece.condition) for piece in pieces for _ in range(piece.width)])
        self.vectors = tuple(piece for piece in pieces if piece.width > 1)
        self.pieces = pieces
        # Elements that are in bounds and not in their array have another value than zero.
        self.within = (
            tuple(Conjunction.of(conjuncts(piece.bounds)) for piece in pieces) if any(piece.outside is not None for piece in pieces) else ()
        )
        self.piece_of = np.array([number for number, piece in enumerate(pieces) for _ in range(piece.width)])
        storage = access.storage or buffer.storage
        if boxes is not None and buffer.memory.in_shared:
            storage = storage.plain  # TMA swizzles by the address: a box starts in any phase
        self.storage = storage.evaluated(plan.symbols)
        self.copy = compiled(access.copy)
        self.elements = plan.number(buffer.elements)
        self.total = plan.number(buffer.total)
        ringed = buffer.name in plan.in_rings and (write or buffer.name not in plan.reused)
        stored_by_gpus = not buffer.written and buffer.tensor.of_all_gpus  # an earlier kernel of another GPU writes them
        self.checked = (buffer.memory.of_block and not ringed) or (buffer.memory.of_grid and (buffer.written or stored_by_gpus))
        self.reads_tables = [any(one is not None and one.tables for one in dim) for dim in zip(self.base, self.bounds, strict=True)]
        self.dependences = [scope.closure(dim, bound) for dim, bound in zip(access.base, bounds, strict=True)]
        everything = scope.closure(
            *access.expressions(), *conditions, *parts, *(piece.bounds for piece in pieces if piece.outside is not None)
        )
        loops = scope.loops
        self.key = tuple(name for name in loops if name in everything)
        self.keys = [tuple(name for name in loops if name in names) for names in self.dependences]
        self.cacheable = len(self.key) < len(loops)
        self.by_block = "block" in everything
        self.spread = unit if access.spread else 1
        self.adds = False

    @property
    def origin(self) -> str | None:
        return self.access.origin


def _element_order(access: Access) -> Array | None:
    """For an instruction with its own value order: the number of each element, first dimension fastest; else None."""
    elements = access.elements()
    element_order = {element: number for number, element in enumerate(elements)}
    regular = attrs.evolve(access, points=()).elements()
    return None if regular == elements or set(regular) != set(element_order) else np.array([element_order[one] for one in regular])


class PlannedStatement:
    """A statement with the surrounding loops that become array axes, and the names bound in them."""

    def __init__(self, plan: Plan, statement: Exec, nest: Sequence[For], lets: Sequence[Let], scope: _Scope) -> None:
        self.statement = statement
        self.enclosing = tuple(scope.loops)
        self.loops = tuple((loop.var.name, compiled(loop.extent)) for loop in nest)
        self.lets = tuple((let.var.name, compiled(let.value)) for let in lets)
        known = {TRUE: True, FALSE: False}
        late = statement.accumulate
        self.accumulate: Reading | bool = known[late] if late in known else Reading.of(late)
        self.collective = (statement.collective and not statement.mechanism.counted) or statement.scratch is not None
        self.wide = statement.wide
        unit = max(statement.spec.level.threads or 32, 32)
        self.level = Block if statement.spec.level.threads is None else statement.spec.level
        self.inputs: list[tuple[str, Operand]] = []
        self.outputs: list[tuple[str, Operand, Operand]] = []
        active = conjuncts(statement.performed)
        pieces = statement.pieces or ((),) * len(statement.accesses)
        self.boxes = TmaBoxes.of(statement, plan.buffers, plan.number)
        for (name, access), parts in zip(statement.operands.items(), pieces, strict=True):
            view = statement.spec.operands[name]
            axes = [view.axis(dim) for dim in range(len(view.dims))]
            if name in statement.spec.outputs:
                read = Operand(plan, access, axes, (*active, *conjuncts(late)), False, scope, parts, unit, self.boxes)
                self.outputs.append((name, Operand(plan, access, axes, active, True, scope, parts, unit, self.boxes), read))
                self.outputs[-1][1].adds = statement.atomic
            else:
                self.inputs.append((name, Operand(plan, access, axes, active, False, scope, parts, unit, self.boxes)))
        self.active = Conjunction.of(active)
        self.assigned = Conjunction.of(conjuncts(statement.active))  # without the bounds conditions
        self.outside = {name: statement.spec.outside(name) for name, _ in self.inputs}
        self.scratch = None
        if statement.scratch is not None:
            self.scratch = Operand(plan, scratch_access(statement.scratch), (), active, True, scope, (), unit, None)
        self.atomic = statement.atomic
        self.registers = frozenset(one.buffer for one in statement.accesses if plan.buffers[one.buffer].memory.private)
        self.written_registers = self.registers.intersection(one.buffer for one in statement.accesses if one.write)
        self.lane_maps = dict(zip(statement.operands, statement.lane_maps, strict=True)) if statement.lane_maps else {}
        self.multiply_add = not self.lane_maps and _is_multiply_add(statement)
        self.copy = not self.lane_maps and statement.spec.copies and all(self.operand_count(name) == 1 for name in ("src", "dst"))
        self.operand_list = [operand for _, operand in self.inputs] + [one for _, *pair in self.outputs for one in pair]

    def operand_count(self, name: str) -> int:
        return self.statement.operands[name].count

    def loop_values(self, env: Environment) -> Environment:
        """Values of the loops around the statement."""
        return {name: env[name] for name in self.enclosing}

    @property
    def what(self) -> str:
        return f"{self.statement.instruction.name} {self.statement.spec}"


def _is_multiply_add(statement: Exec) -> bool:
    """Whether the statement multiplies two elements and adds the product once, in the type of C."""
    if not statement.spec.contracts or any(access.count != 1 for access in statement.accesses):
        return False
    return statement.spec.C.dtype.name in ("float32", "float64", "int32")


@attrs.define(eq=False)
class Loop:
    """A loop that runs in Python."""

    name: str
    extent: Value
    body: list[Any]
    first: int = 0
    step: int = 1
    prior_iterations: str | None = None
    increment: Value | None = None


@attrs.define(eq=False)
class Nest:
    """Loops around one statement: `vector` has some of them as axes, `outer` holds the others; `plain` runs all of them in Python."""

    outer: list[tuple[str, Value]]
    vector: PlannedStatement
    plain: list[Any]


@attrs.define(eq=False)
class RolesPlan:
    """The programs of a block's roles."""

    roles: list[tuple[Role, list[Any]]]


@attrs.define(eq=False)
class SkipPlan:
    """A body that a warp skips unless one of its threads has a nonzero value in the registers `needed`.

    `written` are the registers that the body writes.
    """

    needed: str
    body: list[Any]
    written: frozenset[str]


@attrs.define(eq=False)
class Name:
    """A named value."""

    name: str
    value: Value


class _Scope:
    """The loops around a position, outermost first, and the variables that each name there depends on."""

    def __init__(self, loops: tuple[str, ...] = (), names: Mapping[str, frozenset[str]] | None = None) -> None:
        self.loops = loops
        self.names = dict(names or {})

    def closure(self, *values: Expr | None) -> frozenset[str]:
        roots: set[str] = set()
        for value in values:
            for var in () if value is None else value.variables():
                roots |= self.names.get(var.name, frozenset((var.name,)))
        return frozenset(roots)

    def inside(self, name: str) -> _Scope:
        return _Scope((*self.loops, name), self.names)

    def bind(self, let: Let) -> None:
        self.names[let.var.name] = self.closure(let.value)


class Plan:
    """The program with every expression compiled, and loops marked as array axes or Python loops."""

    def __init__(self, kernel: Kernel, symbols: Mapping[str, int]) -> None:
        self.kernel, self.symbols = kernel, dict(symbols)
        self.buffers = {buffer.name: buffer for buffer in kernel.buffers}
        self.grid = self.number(kernel.grid)
        self.cluster = 1 if kernel.cluster is None else kernel.cluster.blocks
        widest = _group_sizes(kernel)[-1]
        self.pitch = -(-kernel.threads // widest) * widest
        self.in_rings = {name for ring in kernel.rings for name in ring.buffers}
        # Fills order a ring's own accesses, but not its reads with later writes of other buffers to the same bytes.
        others = [one for one in kernel.buffers if one.name not in self.in_rings]
        self.reused = {name for name in self.in_rings if any(kernel.buffer(name).shares(one) for one in others)}
        self.block_loops = False
        self.largest = kernel.threads
        self.sites: list[PlannedStatement] = []
        self.components = _components([buffer for buffer in kernel.buffers if buffer.memory.of_block])
        self.mixed = any(len({buffer.dtype.bytes for buffer in part}) > 1 for part in self.components)
        self.uses_async_proxy = any(statement.instruction.mechanism.by_engine for statement, _ in execs(kernel.body))
        mmas = [statement for statement, _ in execs(kernel.body) if statement.mechanism.in_registers]
        self.mma_registers = {one.buffer for statement in mmas for one in statement.accesses}
        self.granule = min((buffer.dtype.bytes for buffer in kernel.buffers if buffer.memory.of_block), default=1)
        self.nodes = self._list(kernel.body, _Scope())
        # Without rings: the ownership of fills determines the legal accesses to a ring.
        shared = [one for site in self.sites for one in site.operand_list if one.buffer.memory.of_block and one.checked]
        self.uniform = not self.block_loops and not any(operand.by_block for operand in shared)
        """Whether all blocks access shared memory alike, so that one block's shadow represents all."""

    @functools.cached_property
    def shared_in_use(self) -> list[Buffer]:
        """The buffers in shared memory that some statement accesses, including scratch memory."""
        operands = [operand for site in self.sites for operand in (*site.operand_list, *(() if site.scratch is None else (site.scratch,)))]
        used = {operand.buffer.name for operand in operands}
        return [buffer for group in self.components for buffer in group if buffer.name in used]

    def number(self, value: Expr) -> int:
        """The value of an expression over symbols."""
        return int(compiled(value)(self.symbols))

    def is_known(self, value: Expr) -> bool:
        """Whether an expression has only symbols."""
        return all(var.name in self.symbols for var in value.variables())

    def _list(self, body: Sequence[Stmt], scope: _Scope) -> list[Any]:
        nodes: list[Any] = []
        for statement in separated(body):
            match statement:
                case Let():
                    scope.bind(statement)
                    nodes.append(Name(statement.var.name, compiled(statement.value)))
                case For():
                    nodes.append(self._for(statement, scope))
                case Exec():
                    nodes.append(self._site(statement, (), (), scope))
                case IfAnyLane():
                    written = {access.buffer for one, _ in execs(statement.body) for access in one.accesses if access.write}
                    nodes.append(SkipPlan(statement.needed, self._list(statement.body, scope), frozenset(written)))
                case Roles():
                    nodes.append(RolesPlan([(role, self._list(role.body, scope)) for role in statement.roles]))
                case ClaimTile(var=var):
                    self.block_loops = True
                    scope = scope.inside(var.name)  # accesses depend on the tile number as on a loop variable
                    nodes.append(statement)
                case SemaphoreBarrier(last=Var() as last):
                    self.block_loops = True
                    scope = scope.inside(last.name)
                    nodes.append(statement)
                case Barrier() | ClusterBarrier() | Commit() | Wait() | Fence() | Acquire() | Release() | ExitIfDone():
                    nodes.append(statement)
                case Comment() | GridDepControl():  # no effect, because a single kernel runs
                    pass
                case _:
                    raise unknown(statement, "the simulator")
        return nodes

    def _site(self, statement: Exec, nest: Sequence[For], lets: Sequence[Let], scope: _Scope) -> PlannedStatement:
        self.sites.append(site := PlannedStatement(self, statement, nest, lets, scope))
        return site

    def _for(self, loop: For, scope: _Scope) -> Any:
        self.block_loops |= "block" in scope.closure(loop.extent)
        plain_scope = scope.inside(loop.var.name)
        if loop.prior_iterations is not None:
            body = self._list(loop.body, plain_scope.inside(loop.prior_iterations.name))
            return Loop(
                loop.var.name, compiled(loop.extent), body, loop.first, loop.step, loop.prior_iterations.name, compiled(loop.increment)
            )
        nest = _perfect_nest(loop)
        plain = self._list(loop.body, plain_scope)
        if nest is not None:
            loops, lets, statement = nest
            vector = self._vector_loops(loops, lets, statement, scope)
            if vector:
                outer = [one for one in loops if one not in vector]
                inner = scope
                for outer_loop in outer:
                    inner = inner.inside(outer_loop.var.name)
                site = self._site(statement, vector, lets, _with_lets(inner, lets))
                names = [(one.var.name, compiled(one.extent)) for one in outer]
                return Nest(names, site, [Loop(loop.var.name, compiled(loop.extent), plain)])
        return Loop(loop.var.name, compiled(loop.extent), plain, loop.first, loop.step)

    def _vector_loops(self, loops: list[For], lets: list[Let], statement: Exec, scope: _Scope) -> list[For]:
        """The loops that all writes depend on; none if the statement may read an element that another iteration writes."""
        if (
            statement.collective
            or statement.wide
            or statement.mechanism.counted
            or statement.scratch is not None
            or self._aliases(statement)
        ):
            return []
        inner = _with_lets(scope, lets)
        names = {loop.var.name for loop in loops}
        if any(not inner.closure(loop.extent).isdisjoint(names) for loop in loops):
            return []
        writes = [access for name, access in statement.operands.items() if name in statement.spec.outputs]
        used = [inner.closure(*access.base, access.copy) & names for access in writes]
        if len(set(used)) > 1:
            return []
        known = {symbol.name for symbol in self.kernel.symbols}
        stages = {name for access in statement.accesses if access.buffer in self.in_rings for name in inner.closure(access.copy)}
        varied = used[0] - stages  # stage ownership is checked stage by stage
        chosen = [loop for loop in loops if loop.var.name in varied and {var.name for var in loop.extent.variables()} <= known]
        size = self.kernel.threads * max(access.count for access in statement.accesses)
        while chosen and size * math.prod(self.number(loop.extent) for loop in chosen) > MAX_ELEMENTS:
            chosen = chosen[1:]
        if any(loop.var.name in used[0] for loop in loops if loop not in chosen) and chosen != loops[len(loops) - len(chosen) :]:
            return []
        self.largest = max(self.largest, size * math.prod(self.number(loop.extent) for loop in chosen))
        return chosen

    def _aliases(self, statement: Exec) -> bool:
        """Whether an input may overlap a written output."""
        spec = statement.spec
        writes = [access for name, access in statement.operands.items() if name in spec.outputs]
        reads = [access for name, access in statement.operands.items() if name not in spec.outputs]
        # By storage, not by name: buffers that share bytes count as one.
        part = {buffer.name: number for number, group in enumerate(self.components) for buffer in group}
        places = [part.get(access.buffer, access.buffer) for access in writes]
        return len(set(places)) < len(places) or any(part.get(access.buffer, access.buffer) in places for access in reads)


def _group_sizes(kernel: Kernel) -> list[int]:
    """The threads of a warp and of all barrier groups smaller than a block, ascending, each a multiple of the previous one."""
    barriers = [one for one in statements(kernel.body) if isinstance(one, Barrier)]
    sizes = sorted({32, *(one.scope.threads for one in barriers if one.scope.threads is not None)})
    for smaller, larger in itertools.pairwise(sizes):
        # With partially overlapping groups, a chain of barriers may order two threads that no single barrier spans, which a clock cannot
        # express.
        if larger % smaller:
            raise VerificationError(f"the simulator has no rule for barriers of {smaller} and of {larger} threads in one kernel")
    return sizes


def _with_lets(scope: _Scope, lets: Iterable[Let]) -> _Scope:
    inner = _Scope(scope.loops, scope.names)
    for let in lets:
        inner.bind(let)
    return inner


def _perfect_nest(loop: For) -> tuple[list[For], list[Let], Exec] | None:
    """The loops, names and the single statement of a nest; None if it has barriers, more statements, or a loop that skips iterations."""
    loops: list[For] = []
    lets: list[Let] = []
    while True:
        if loop.first or loop.step != 1 or loop.prior_iterations is not None:
            return None
        loops.append(loop)
        body = loop.body
        lets += [one for one in body if isinstance(one, Let)]
        rest = [one for one in body if not isinstance(one, (Let, Comment))]
        if len(rest) != 1:
            return None
        (only,) = rest
        if isinstance(only, Exec):
            return loops, lets, only
        if not isinstance(only, For):
            return None
        loop = only


def _components(buffers: list[Buffer]) -> list[list[Buffer]]:
    """Shared buffers, grouped such that only buffers of one group overlap."""
    groups: list[list[Buffer]] = []
    for buffer in sorted(buffers, key=lambda one: one.offset):
        if groups and buffer.offset < max(one.offset + one.bytes for one in groups[-1]):
            groups[-1].append(buffer)
        else:
            groups.append([buffer])
    return groups
