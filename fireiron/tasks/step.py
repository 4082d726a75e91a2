"""A program of tasks as one step of a strategy: it becomes loops, and specs on views for the calls of its leaves.

The variants run once, with loop variables instead of numbers. If the memory of a tensor differs from that of the argument that the launch
passes, the tensor becomes a copy; with NONE, it is the argument itself. If threads work on parts of a matrix instruction's operand, all
parts together become one spec of the group of threads, and an instruction is selected for it as for any other spec.
"""

from __future__ import annotations

import contextlib
import copy
import itertools
import math
import operator
from collections.abc import Callable, Collection, Iterator
from typing import Any, ClassVar, Final

import attrs

from fireiron.decomp.done import Done
from fireiron.decomp.split import Split
from fireiron.decomp.tile import Tile
from fireiron.errors import ArgumentError, DecompositionError, FireironError, StoreError, call_site
from fireiron.executable.micro_kernel import MicroKernel
from fireiron.frozen import frozen
from fireiron.ir import BlockCluster, Comment, For, Hole, Stmt
from fireiron.ir.ask import NOTHING, Asks
from fireiron.ir.asks.pending_mmas import PendingMmas
from fireiron.ir.asks.pipelined import Pipelined
from fireiron.ir.asks.producer_threads import ProducerThreads
from fireiron.ir.effect import Effects
from fireiron.ir.effects.shared_bound import SharedBound
from fireiron.ir.rewrite import by_identities
from fireiron.language.former import present_tasks
from fireiron.language.grid import grid_facts
from fireiron.language.store.converter import Store
from fireiron.language.strategy import Strategy
from fireiron.language.substrategy import copies_of, default_copy, steps_at, steps_for
from fireiron.language.tree import Child, Context, Decomposition, Draft, Expansion, count_workers
from fireiron.language.tunable import has_part, tunables_in
from fireiron.refine.swizzle_storage import by_rows
from fireiron.refine.unroll import Unroll
from fireiron.spec import Spec
from fireiron.specs.formula import Element, Operation
from fireiron.specs.init import Init
from fireiron.specs.move import Move
from fireiron.stepping.masks import may_fail
from fireiron.stepping.steps import extent_of
from fireiron.tasks.external import external, order_of, performer, require_privileges
from fireiron.tasks.grid import Blocks, distributed_over_blocks
from fireiron.tasks.legal import distinct, require_declaration, require_few_registers, require_inside
from fireiron.tasks.mapping import NONE, Mapping, Place, Stored, TaskMapping, plain_mapping, read_mapping
from fireiron.tasks.mapping_of import MappingOf, Refused
from fireiron.tasks.named import changes, load_function, load_program, plain_function, plain_program, title, variable_of
from fireiron.tasks.partition import Partition, pieces
from fireiron.tasks.program import CALL, Launch, Leaf, Runner, Tasks, TaskTensor, Variant, plain, require_program
from fireiron.tasks.scalar import scalar
from fireiron.values.expr import FALSE, ONE, TRUE, ZERO, Expr, Var, all_of, any_of, as_expr, constant, less, mod
from fireiron.values.machine import COORD, RF, WARPGROUP_ARCHITECTURE, Block, DType, Kernel, Level, Memory, Warpgroup, int32
from fireiron.values.tensor import ColMajor, MatrixLayout, RowMajor, Tensor, View, whole_view
from fireiron.values.units import threads_for

Path = tuple[tuple[Partition, tuple[Expr, ...]], ...]


@attrs.frozen(eq=False)
class Part:
    """A tensor of the program, or a piece of it.

    `view` is the view of its group of threads. `root` is the number of the tensor that it is a piece of, and `path` has the partitions and
    indices that select it. `allocation` is the number of a tensor that a variant allocated, and 0 for other tensors. `shares` are the
    partitions by which the threads of the group own parts of the view, with the shapes that they divide. `present` is the condition under
    which it has any elements. `origin` is the piece of an operand of which it is a copy.
    """

    view: View
    root: int
    path: Path = ()
    shares: tuple[tuple[Partition, tuple[int, ...]], ...] = ()
    allocation: int = 0
    present: Expr = TRUE
    origin: View | None = None


@attrs.define(eq=False)
class Loop:
    """A loop of launches that is being read: its variables, its extents, and the accesses of the launches.

    Tensors with numbers above `fresh` are created in the loop. `depth` is the number of running variants. Each access has the part, whether
    it is a write, the tensor's name for messages, and the line.
    """

    number: int
    variables: tuple[Expr, ...]
    extents: tuple[Expr, ...]
    parallel: bool
    fresh: int
    depth: int
    accesses: list[tuple[Part, bool, str, str | None]] = attrs.field(factory=list)


@attrs.define(eq=False)
class Known:
    """The results of the first reading, by the numbers of loops and of new tensors.

    `levels` has the level of the launches of a loop, and `shared` the loops over parts of threads. `names`, `memories`, `layouts` and
    `orders` describe new tensors; `sums` are those that are accumulated to. `data_flows` has the tensors that a new tensor flows into:
    new tensors as negative numbers, operands as positive ones, others as 0. `threads` is the number of threads of a block. `performed` has
    the specs with given steps.
    """

    levels: dict[int, Level] = attrs.field(factory=dict)
    shared: set[int] = attrs.field(factory=set)
    names: dict[int, str] = attrs.field(factory=dict)
    memories: dict[int, Memory] = attrs.field(factory=dict)
    layouts: dict[int, Stored | None] = attrs.field(factory=dict)
    orders: dict[int, MatrixLayout] = attrs.field(factory=dict)
    sums: set[int] = attrs.field(factory=set)
    data_flows: dict[int, set[int]] = attrs.field(factory=dict)
    threads: int = 1
    performed: list[tuple[Spec, tuple[Decomposition, ...]]] = attrs.field(factory=list)


@attrs.define(eq=False)
class Reader(Runner):
    """Reads a program twice: first without a draft, to compute `known`, and then with a draft, into statements and children."""

    spec: Spec
    known: Known
    draft: Draft | None = None
    level: Level = Kernel
    registers: int = 0
    loops: list[Loop] = attrs.field(factory=list, init=False)
    out: list[list[Stmt]] = attrs.field(factory=lambda: [[]], init=False)
    children: list[Child] = attrs.field(factory=list, init=False)
    labels: list[tuple[str, Launch]] = attrs.field(factory=list, init=False)
    active: list[Expr] = attrs.field(factory=list, init=False)
    units: set[Var] = attrs.field(factory=set, init=False)
    grid: Expr | None = attrs.field(default=None, init=False)
    launches: Expr = attrs.field(default=ONE, init=False)
    cluster: BlockCluster | None = attrs.field(default=None, init=False)
    roots: int = attrs.field(default=0, init=False)
    allocations: int = attrs.field(default=0, init=False)
    constant: set[int] = attrs.field(factory=set, init=False)
    unset: set[int] = attrs.field(factory=set, init=False)
    copies: list[dict[Any, Part]] = attrs.field(factory=lambda: [{}], init=False)
    given: int = attrs.field(default=0, init=False)
    present: dict[int, Expr] = attrs.field(factory=dict, init=False)
    piped: set[str] = attrs.field(factory=set, init=False)
    numbers: int = attrs.field(default=0, init=False)
    ended: set[Expr] = attrs.field(factory=set, init=False)
    stages: dict[tuple[str, str], list[tuple[list[Stmt], View]]] = attrs.field(factory=dict, init=False)

    def read(self) -> None:
        """Read the program from its entry point."""
        variant = self.program[self.mapping.root.variant]
        operands = [name for name, view in self.spec.operands.items() if view.memory.of_grid]
        required = (("has no tensor for", operands, variant.tensors), ("does not write", self.spec.outputs, variant.writes))
        for problem, names, declared in required:
            missing = [name for name in names if name not in declared]
            if missing:
                raise DecompositionError(
                    f"{variant.name} {problem} {missing[0]} of {self.spec}", got=variant.tensors, legal=tuple(names), at=variant.origin
                )
        tensors = []
        for name in variant.tensors:
            view = _operand(self.spec, name, variant)
            tensors.append(TaskTensor(Part(view, self._root()), tuple(plain(size) for size in view.shape), view.dtype))
            if name not in variant.writes:
                self.constant.add(self.roots)
        self.given = self.roots
        self.start(tuple(tensors))

    def _root(self) -> int:
        self.roots += 1
        return self.roots

    # ------------------------------------------------------------------------------------------ tensors

    def piece(self, tensor: TaskTensor, by: Partition, place: tuple[Expr, ...], shape: tuple[Any, ...]) -> Part:
        part: Part = tensor.data
        place = (ZERO,) * len(place) if self.dry else place
        path = (*part.path, (by, place))
        if self.draft is None:
            extents = {var: size for loop in self.loops for var, size in zip(loop.variables, loop.extents, strict=True)}
            require_declaration(by, tensor.extents)
            require_inside(by, place, by.counts(tensor.extents), extents, self.ended)
        if not by.of_threads:
            if part.shares:
                raise DecompositionError(f"{by}: the tensor is already a thread's part of an operand", at=call_site())
            present = all_of((part.present, by.present(place)))
            if part.root <= self.given and self.here.mapping.proc.level.is_launch:
                is_same = self.present.get(part.root, present) == present
                self.present[part.root] = present if is_same else TRUE
            units = frozenset(self.units)
            origin = None if part.origin is None else by.view(part.origin, place, units)
            return attrs.evolve(part, view=by.view(part.view, place, units), path=path, present=present, origin=origin)
        if not self.dry:
            self._require_all(tensor, by, place)
        return attrs.evolve(part, path=path, shares=(*part.shares, (by, tensor.extents)))

    def apart(self, first_tensor: TaskTensor, second_tensor: TaskTensor) -> bool:
        first: Part = first_tensor.data
        second: Part = second_tensor.data
        return self.draft is not None or first.root != second.root or distinct(first.path, second.path)

    def _require_all(self, tensor: TaskTensor, by: Partition, place: tuple[Expr, ...]) -> None:
        """Refuse shares that are not all launched in one loop: all threads of a group execute an instruction together."""
        loop = next((loop for loop in self.loops if loop.variables == place), None)
        wanted = pieces(by.counts(tensor.extents))
        if loop is None or not loop.parallel or pieces(loop.extents) != wanted:
            got = "another index" if loop is None else f"{' x '.join(map(str, loop.extents))}"
            raise DecompositionError(f"{by}: all pieces must be launched together", got=got, legal=f"prange({wanted})", at=call_site())
        self.known.shared.add(loop.number)

    def again(self) -> contextlib.AbstractContextManager[None] | None:
        return self._without_counting() if self.draft is None else None

    @contextlib.contextmanager
    def _without_counting(self) -> Iterator[None]:
        """Restore the counters of loops and tensors after the second execution of an iteration."""
        counters = self.roots, self.allocations, self.numbers
        yield
        self.roots, self.allocations, self.numbers = counters

    def tensor(self, shape: tuple[Any, ...], dtype: DType) -> Part:
        self.allocations += 1
        number, sizes = self.allocations, tuple(map(as_expr, shape))
        if self.level.is_launch:
            raise DecompositionError(
                f"make_tensor: {self.here.mapping.proc} cannot allocate a tensor, because a kernel has no memory outside its blocks",
                legal="a variant on BLOCK or on an inner processor",
                at=call_site(),
            )
        if any(constant(size) is None for size in sizes):
            raise DecompositionError(
                "make_tensor: the size is known only at run time",
                got=shape,
                legal="known sizes, for example those of blocks",
                at=call_site(),
            )
        memory = RF if self.here.variant.form is Leaf else self.known.memories.get(number)
        if memory is None and self.draft is not None and not self.dry:
            raise DecompositionError(
                "make_tensor: no launched instance specifies a memory for the tensor, and at least one must",
                legal="SHARED REGISTER",
                at=call_site(),
            )
        if memory is not None and memory.of_grid:
            raise DecompositionError(
                f"make_tensor: {self.known.names.get(number, 'a tensor')} is mapped to GLOBAL, but a kernel cannot allocate global memory",
                got=memory, legal="SHARED REGISTER", at=call_site(),
                hint="map it to SHARED or REGISTER in the launched instance, or make it a tensor of the entry point",
            )  # fmt: skip
        name = self._name(self.known.names.get(number, "t"), memory or RF)
        owner = "accumulates" if number in self.known.sums else "reads"
        layout, stored = self.known.orders.get(number, ColMajor), self.known.layouts.get(number)
        view = self._new_tensor(name, sizes, dtype, memory or RF, layout, owner, stored)
        part = Part(view, self._root(), allocation=number)
        self.unset.add(part.root)
        return part

    def coordinates(self, tensor: TaskTensor, dim: int) -> Part:
        return Part(self._coordinate_view(tensor, dim), self._root())

    def extent(self, tensor: TaskTensor, dim: int) -> Part:
        return Part(extent_of(self._coordinate_view(tensor, dim)), self._root())

    def _coordinate_view(self, tensor: TaskTensor, dim: int) -> View:
        """The coordinates of a piece as a view."""
        part: Part = tensor.data
        view = part.view if part.origin is None else part.origin
        if not view.memory.of_grid or part.shares:
            raise DecompositionError(
                "coordinates: they are unknown for new tensors and for threads' parts of an operand", got=view.memory,
                legal="pieces of the entry point's tensors, or copies of them", at=call_site(),
            )  # fmt: skip
        name = "index" if self.draft is None else self.draft.fresh("index")
        return whole_view(Tensor(name, (view.extent(dim),), int32, COORD, ColMajor)).with_dims({0: view.dims[dim]})

    def _name(self, wanted: str, memory: Memory) -> str:
        name = f"{wanted.lower()}_{memory.label}"
        return name if self.draft is None else self.draft.fresh(name)

    def _new_tensor(
        self, name: str, shape: tuple[Expr, ...], dtype: DType, memory: Memory, layout: MatrixLayout, owner: str, stored: Stored | None
    ) -> View:
        """Return a new tensor, stored as the mapping specifies, with a copy for each unit of the current level."""
        if memory.private and self.draft is not None:
            threads = self.known.threads if self.level == Block else self.level.threads or 1
            require_few_registers(name, shape, dtype, threads, self.registers)
        bare = Tensor(name, shape, dtype, memory, layout, owner=owner, free=memory.in_shared, origin=call_site())
        bare = bare if stored is None else _with_storage(bare, stored)
        if self.draft is None:
            return whole_view(bare)
        copies, copy = copies_of(memory, Init.on(self.level, whole_view(bare)), self.draft)
        return whole_view(attrs.evolve(bare, copies=copies), copy)

    # ------------------------------------------------------------------------------------------ loops

    def loop(self, extents: tuple[Any, ...], parallel: bool) -> Iterator[Any]:
        self.numbers += 1
        sizes = tuple(map(as_expr, extents))
        if ZERO in sizes or (self.dry and self.draft is not None):
            self.piped.add(self.here.mapping.instance)
            return  # no iterations: the body is only examined
        number, level = self.numbers, self.known.levels.get(self.numbers, self.level)
        if number in self.known.shared or self.draft is None:
            loop = Loop(number, _variables(sizes, number), sizes, parallel, self.roots, len(self.frames))
            yield from self._inside(loop, loop.variables, self.level)
        elif parallel and level == Block != self.level:
            yield from self._on_blocks(Loop(number, (), sizes, parallel, self.roots, len(self.frames)))
        elif parallel and level != self.level:
            loop = Loop(number, (), sizes, parallel, self.roots, len(self.frames))
            indices, active = self._distributed(sizes, level)
            self.active.append(active)
            yield from self._inside(loop, indices, level)
            self.active.pop()
        else:
            yield from self._repeated(Loop(number, (), sizes, parallel, self.roots, len(self.frames)))

    def _inside(self, loop: Loop, indices: tuple[Expr, ...], level: Level) -> Iterator[Any]:
        """Read the launches of a loop once, with its indices as expressions, on units of a level."""
        loop.variables = indices
        outer, self.level = self.level, level
        self.loops.append(loop)
        ended = frozenset(self.ended)
        scalars = tuple(map(scalar, indices))
        yield scalars if len(scalars) > 1 else scalars[0]
        self.loops.pop()
        self.ended |= {var for index in indices for var in index.variables()} if self.draft is None else set()
        self.level = outer
        if loop.parallel and self.draft is None:
            _require_apart(loop, self.ended - ended)

    @contextlib.contextmanager
    def _body(self) -> Iterator[list[Stmt]]:
        """Collect the statements of a loop's body while the loop is read. Copies that the body makes are not visible after the loop."""
        body: list[Stmt] = []
        self.out.append(body)
        self.copies.append({})
        yield body
        self.copies.pop()
        self.out.pop()

    def _on_blocks(self, loop: Loop) -> Iterator[Any]:
        """Distribute launches over blocks, each of which runs one or several."""
        assert self.draft is not None
        blocks = distributed_over_blocks(loop.extents, self.here.mapping, self.draft)
        self._take_grid(blocks)
        with self._body() as body:
            yield from self._inside(loop, blocks.indices, Block)
        self.out[-1] += blocks.selected.around(*body)

    def _take_grid(self, blocks: Blocks) -> None:
        if self.grid is not None:
            raise DecompositionError(
                "the program has launches on BLOCK at two positions", legal="one prange for all of them", at=call_site()
            )
        self.grid, self.launches, self.cluster = blocks.selected.blocks, blocks.launches, blocks.cluster
        self.units |= {var for index in blocks.indices for var in index.variables()}

    def _repeated(self, loop: Loop) -> Iterator[Any]:
        """Read a loop whose iterations are executed by each unit."""
        assert self.draft is not None
        names = "ijkl" if loop.parallel or len(loop.extents) > 1 else "k"
        variables = tuple(Var(self.draft.fresh(names[place % 4]), 0, max(size.high - 1, 0)) for place, size in enumerate(loop.extents))
        here, inside = self.here.mapping, self.level not in (Kernel, Block)
        once = here.pipeline > 1 and not here.warpspecialize  # a single iteration needs no pipeline, and no loop
        repeated = [(var, size) for var, size in zip(variables, loop.extents, strict=True) if not once or size != ONE]
        kept = [var for var, _ in repeated]
        with self._body() as statements:
            yield from self._inside(loop, tuple(var if var in kept else ZERO for var in variables), self.level)
        body = tuple(statements)
        pipelining = (Pipelined(here.pipeline, here.interleave), PendingMmas(here.mma_in_flight)) if here.pipeline else ()
        asks = Asks((*pipelining, ProducerThreads(here.producer_threads if here.warpspecialize else 0)))
        self.piped.add(here.instance)
        for var, size in reversed(repeated):
            body = (For(var, size, body, inside and constant(size) is not None, call_site(), asks=asks),)
            asks = NOTHING  # the innermost loop is the pipeline
        self.out[-1] += body

    def _distributed(self, sizes: tuple[Expr, ...], level: Level) -> tuple[tuple[Expr, ...], Expr]:
        """Return the indices of the launch of a unit, and the condition under which the unit has a launch."""
        assert self.draft is not None
        draft = self.draft
        if level == Block:
            self._take_grid(distributed_over_blocks(sizes, self.here.mapping, draft))
            return sizes, TRUE
        unit, active = self._unit(sizes, level)
        indices: list[Expr] = []
        for place, size in reversed(list(enumerate(sizes))):
            index = unit if place == 0 else mod(unit, size)
            named = draft.let(f"{level.label}_{'ijkl'[place % 4]}", index, max(size.high - 1, 0))
            indices.insert(0, named)
            self.units |= named.variables()
            unit = unit // size
        return tuple(indices), active

    def _unit(self, sizes: tuple[Expr, ...], level: Level) -> tuple[Expr, Expr]:
        assert self.draft is not None
        total = _total(sizes, level)
        units = self.draft.units(level, self.level)
        if total > units:
            raise DecompositionError(
                f"a prange has {total} launches on {level}, more than there are units",
                got=f"{units} units in a {self.level}", legal=f"at most {units} launches", hint="add an enclosing srange", at=call_site(),
            )  # fmt: skip
        unit = self.draft.unit(level, self.level)
        return unit, less(unit, as_expr(total)) if total < units else TRUE

    # ------------------------------------------------------------------------------------------ launches

    def enter(self, instance: TaskMapping, variant: Variant, tensors: tuple[TaskTensor, ...]) -> None:
        level = instance.proc.level
        inner = self.loops[-1] if self.loops and self.loops[-1].depth == len(self.frames) else None
        within_shares = any(tensor.data.shares for tensor in tensors)
        if self.draft is None and self.frames:
            self._record_launch(instance, variant, tensors, inner, level, within_shares)
        for name, tensor in zip(variant.tensors, tensors, strict=True):
            for write, names in ((False, variant.reads), (True, variant.writes)):
                if name in names:
                    for loop in self.loops:
                        loop.accesses.append((tensor.data, write, f"{variant.name}({name})", call_site()))
        if self.draft is None or within_shares or level == self.level:
            outer, self.level = self.level, level if self.draft is None else self.level
            self._entered(instance, variant, tensors)
            self.level = outer
            return
        _, active = self._distributed((ONE,), level)
        outer, self.level = self.level, level
        self.active.append(active)
        self._entered(instance, variant, tensors)
        self.active.pop()
        self.level = outer

    def _record_launch(
        self, instance: TaskMapping, variant: Variant, tensors: tuple[TaskTensor, ...], inner: Loop | None, level: Level, shares: bool
    ) -> None:
        """Record the level of a loop's launches, the number of threads of a block, and the names and memories of new tensors."""
        of_this = inner is not None and inner.parallel and not shares
        if of_this and level != self.here.mapping.proc.level:
            assert inner is not None
            if self.known.levels.setdefault(inner.number, level) != level:
                raise DecompositionError("launches of one prange run on different processors", got=str(level), at=call_site())
        if self.here.mapping.proc.level == Block and level.threads is not None and not shares:
            total = _total(inner.extents, level) if of_this and inner is not None else 1
            self.known.threads = max(self.known.threads, threads_for(total, level))
        for name, place, tensor in zip(variant.tensors, instance.mems, tensors, strict=True):
            self.known.names.setdefault(tensor.data.allocation, name)
            if tensor.data.allocation and place.memory is not None and tensor.data.allocation not in self.known.memories:
                self.known.memories[tensor.data.allocation] = place.memory
                self.known.layouts[tensor.data.allocation] = dict(instance.layouts).get(name)

    def _entered(self, instance: TaskMapping, variant: Variant, tensors: tuple[TaskTensor, ...]) -> None:
        """Run an instance on tensors in its places. They are copied there before if it reads them, and back after if it writes them."""
        passed, back, written = [], [], []
        results = [tensor.data for name, tensor in zip(variant.tensors, tensors, strict=True) if name in variant.writes]
        wanted = self._needed_results(results)
        for name, place, tensor in zip(variant.tensors, instance.mems, tensors, strict=True):
            part: Part = tensor.data
            if place == NONE or place.memory == self.known.memories.get(part.allocation, part.view.memory):
                passed.append(tensor)
                continue
            assert place.memory is not None
            stored, copies = dict(instance.layouts).get(name), name not in variant.writes and part.root in self.constant
            key = (part.root, part.path, part.shares, place.memory, self.level, stored, tuple(self.active))
            known = self._known_copy(key, wanted) if copies else None
            if known is not None:
                passed.append(attrs.evolve(tensor, data=known))
                continue
            owner = "accumulates" if name in variant.reads & variant.writes else "reads"
            fresh = self._copied(name, part, place.memory, owner, instance)
            passed.append(attrs.evolve(tensor, data=fresh))
            if name not in variant.reads or part.root in self.unset:
                self.unset.add(fresh.root)
            if name in variant.writes:
                written.append((fresh.root, part.root))
            if copies:
                self.copies[-1][key, wanted] = fresh
                self.constant.add(fresh.root)
            if self.draft is None:
                continue
            if name in variant.reads:
                copied = fresh.view.tensor.name
                self._child(copied, Move.on(self.level, part.view, fresh.view), f"{name} to {copied}", wanted=wanted, what=f"in {name}")
            if name in variant.writes:
                back.append((name, Move.on(self.level, fresh.view, part.view), part.present))
        self.call(instance, variant, passed)
        self.unset -= {root for fresh, root in written if fresh not in self.unset}
        if instance.pipeline and self.draft is not None and instance.instance not in self.piped:
            raise DecompositionError(
                f"instance {instance.instance} has pipeline={instance.pipeline}, but {variant.name} has no srange",
                legal="pipeline=0",
                at=variant.origin,
            )
        for name, move, present in back:
            copied = move.src.tensor.name
            self._child(f"{copied}_out", move, f"{copied} to {name}", wanted=present, what=f"out {name}")

    def _known_copy(self, key: object, wanted: Expr) -> Part | None:
        """Return an earlier copy that was made under no condition or under the condition `wanted`; None if there is none."""
        copies = (scope[key, condition] for scope in self.copies for condition in (TRUE, wanted) if (key, condition) in scope)
        return next(copies, None)

    def _copied(self, name: str, part: Part, memory: Memory, owner: str, instance: TaskMapping) -> Part:
        if memory.of_grid:
            raise DecompositionError(
                f"{name}: a kernel cannot allocate a copy in GLOBAL",
                legal="NONE SHARED REGISTER",
                at=call_site(),
            )
        if any(constant(size) is None for size in part.view.shape):
            raise DecompositionError(
                f"{name}: the size of the copy in {memory}, {' x '.join(map(str, part.view.shape))} elements, is known only at run time",
                legal="pieces of known size",
                at=call_site(),
            )
        dims = list(range(len(part.view.dims)))
        dims = dims if memory.private else sorted(dims, key=part.view.axis)  # stored in the order of the source
        source = part.view.only(dims)
        layout = RowMajor if source.memory.private else MatrixLayout(source.order or "row")
        view = self._ring_copy(instance, name, source)
        if view is None:
            stored = dict(instance.layouts).get(name)
            view = self._new_tensor(self._name(name, memory), source.shape, source.dtype, memory, layout, owner, stored)
            self.stages.setdefault((instance.instance, name), []).append((self.out[-1], view))
        origin = part.view if part.origin is None and part.view.memory.of_grid else part.origin
        view = view.only([dims.index(dim) for dim in range(len(dims))])
        return Part(view, self._root(), (), part.shares, present=part.present, origin=origin)

    def _ring_copy(self, instance: TaskMapping, name: str, source: View) -> View | None:
        """With `warpspecialize`, return the copy of another launch of an instance, to use its circular buffer again; None if there is none.

        Launches before, in and after a loop share a copy. Launches in the same list of statements have separate copies.
        """
        copies = self.stages.get((instance.instance, name), [])
        if not self.here.mapping.warpspecialize or any(out is self.out[-1] for out, _ in copies):
            return None
        matching = (view for _, view in copies if (view.shape, view.dtype) == (source.shape, source.dtype) and view.memory.of_block)
        view = next(matching, None)
        if view is not None:
            copies.append((self.out[-1], view))
        return view

    def external(self, function: Any, tensors: tuple[TaskTensor, ...], options: dict[str, Any]) -> None:
        spec = external(function, self.level, tuple(tensor.data.view for tensor in tensors), options)
        by_name = dict(zip(order_of(function, spec), tensors, strict=True))
        variant = self.here.variant
        require_privileges(
            variant.name, variant.reads, variant.writes, spec, {operand: tensor.parameter for operand, tensor in by_name.items()}
        )
        if spec.accumulate == TRUE:
            self.known.sums |= {by_name[name].data.allocation for name in spec.outputs}
        if spec.copies:
            self._record_order(by_name["dst"].data, by_name["src"].data)
        inputs, outputs = ([by_name[name].data for name in names] for names in (spec.inputs, spec.outputs))
        self._require_set(inputs + outputs if spec.accumulate == TRUE else inputs, tuple(by_name.values()))
        self.unset -= {part.root for part in outputs}
        self._record_flow(inputs, outputs)
        wanted = self._needed_results(outputs) if inputs else all_of([part.present for part in outputs])
        kernel = performer(function, options)
        if kernel is not None and any(tensor.data.shares for tensor in tensors):
            raise DecompositionError(
                f"{variant.name}: {kernel} cannot use threads' parts of an instruction's operand, which all threads use together",
                legal="tensors, or pieces of them", at=call_site(),
            )  # fmt: skip
        spec = _group_spec(spec, {operand: tensor.data.shares for operand, tensor in by_name.items()})
        if spec.title == "Pointwise":
            for operand, tensor in by_name.items():
                self.known.names.setdefault(tensor.data.allocation, operand.removesuffix("_before"))
            needed = _needed(spec)
            if needed == FALSE:
                return
            wanted = all_of((wanted, needed))
        note = "" if isinstance(function, str) or kernel is not None else _comment_of(spec)
        if self.here.mapping.strategy is None:
            self._child(_name_of_call(function, spec), spec, note, named=False, wanted=wanted, kernel=kernel)
        else:
            self._by_strategy(_name_of_call(function, spec), spec, self.here.mapping.strategy, wanted)

    def _require_set(self, parts: list[Part], tensors: tuple[TaskTensor, ...]) -> None:
        """Refuse reads of tensors that no earlier launch has written."""
        missing = [tensor.called for tensor in tensors for part in parts if tensor.data is part and part.root in self.unset]
        if missing:
            raise DecompositionError(
                f"{self.here.variant.name} reads {missing[0]}, which no earlier launch writes",
                legal="an earlier launch that writes it", at=call_site(),
            )  # fmt: skip

    def _by_strategy(self, name: str, spec: Spec, strategy: Strategy, wanted: Expr) -> None:
        """Add the spec of a leaf as a child that the strategy of its instance implements."""
        steps = steps_for(strategy, f"instance {self.here.mapping.instance}: strategy", (spec.kind.title,))
        if not strategy.finished:
            raise DecompositionError(
                f"instance {self.here.mapping.instance}: its strategy is not complete",
                got=strategy,
                legal="a strategy that ends with .done()",
                at=call_site(),
            )
        self.known.performed.append((spec, steps))
        if self.draft is not None:
            self._perform(name, spec, f"by the strategy of {self.here.mapping.instance}", True, steps, follows=False, wanted=wanted)

    def _record_order(self, *parts: Part) -> None:
        """Record that a new tensor in shared memory has the storage order of the tensor in global memory that is copied from or to it."""
        for part, other in (parts, parts[::-1]):
            if part.allocation and other.view.memory.of_grid and other.view.order and self.known.memories.get(part.allocation, RF).of_block:
                self.known.orders.setdefault(part.allocation, MatrixLayout(other.view.order))

    def _record_flow(self, inputs: list[Part], outputs: list[Part]) -> None:
        """Record the data flow from new tensors to others, or to operands."""
        for part in inputs:
            if part.allocation:
                goes = self.known.data_flows.setdefault(part.allocation, set())
                goes |= {-output.allocation if output.allocation else output.root if output.root <= self.given else 0 for output in outputs}

    def _needed_results(self, outputs: list[Part]) -> Expr:
        """Return the condition under which results are needed: any of them has elements.

        If a result flows into a single operand, that operand must have elements, too.
        """
        conditions: list[Expr] = [] if outputs else [TRUE]
        for part in outputs:
            served = self._reached_operands(part.allocation) if part.allocation else set()
            further = [self.present.get(root, TRUE) for root in served] if len(served) == 1 else []
            conditions.append(all_of((*further, part.present)))
        return any_of(conditions)

    def _reached_operands(self, allocation: int) -> set[int]:
        """Return the operands that a new tensor flows into, directly or indirectly. They include 0 if some of them are unknown."""
        reached, left = {allocation}, [allocation]
        while left:
            goes = self.known.data_flows.get(left.pop(), {0})
            new = {-target for target in goes if target < 0} - reached
            reached |= new
            left += new
        return {target for source in reached for target in self.known.data_flows.get(source, {0}) if target >= 0}

    def _child(
        self, name: str, spec: Spec, note: str, named: bool = True, wanted: Expr = TRUE, kernel: MicroKernel | None = None, what: str = CALL
    ) -> None:
        """Add a spec as a child, with a comment that includes the spec if `named`. `what` is its role in a launch: `call`, or a copy."""
        steps = _steps(spec) if kernel is None else (Done(kernel, origin=call_site()),)
        if kernel is not None:
            self.known.performed.append((spec, steps))
        if self.draft is None:
            return
        self._perform(name, spec, note, named, steps, follows=kernel is None, wanted=wanted, what=what)

    def _perform(
        self,
        name: str,
        spec: Spec,
        note: str,
        named: bool,
        steps: tuple[Decomposition, ...],
        follows: bool,
        wanted: Expr,
        what: str = CALL,
    ) -> None:
        """Add a spec as a child that `steps` implement. With `follows`, other statements determine the ownership of its registers."""
        assert self.draft is not None
        used_names = {child.name for child in self.children}
        numbered = (name if number == 1 else f"{name}{number}" for number in itertools.count(1))
        called = next(candidate for candidate in numbered if candidate not in used_names)
        follows = follows and spec.level.threads != 1 and any(view.memory.private for view in spec.views)
        alone = steps_at(default_copy(), spec) if follows and not spec.contracts else ()
        self.children.append(Child(called, spec, steps, all_of((*self.active, wanted)), f"{called.lower()}_", alone))
        self.labels.append((called, self.launch_of(what, inside=what == CALL)))
        self.out[-1] += [Comment(f"{note}: {spec}" if named else note)] if note else []
        self.out[-1].append(Hole(called))


def _name_of_call(function: Any, spec: Spec) -> str:
    """Return the name of a call's child: the name of the function or kind, or of the formula's output."""
    if isinstance(function, str):
        return function
    return spec.outputs[0] if spec.title == "Pointwise" else spec.title.lower()


def _comment_of(spec: Spec) -> str:
    """The comment of a call in the printed kernel: its formula, or its inputs and outputs."""
    if spec.title == "Pointwise":
        return str(spec.definition.only)
    of, to = (", ".join(spec.operands[name].tensor.name for name in names) for names in (spec.inputs, spec.outputs))
    return f"{to} from {of}"


def _needed(spec: Spec) -> Expr:
    """Return the condition under which a formula changes elements: the negation of the condition under which it keeps them."""
    formula = spec.definition.only
    value = None if formula is None else formula.value
    if formula is None or not isinstance(value, Operation) or value.name != "where":
        return TRUE
    kept, target = value.arguments[1], formula.target
    if not isinstance(kept, Element) or kept.index != target.index or spec.operands[kept.tensor] != spec.operands[target.tensor]:
        return TRUE
    return may_fail(value.arguments[0], spec.operands)


def _with_storage(tensor: Tensor, stored: Stored) -> Tensor:
    """Return the tensor, stored as a mapping specifies.

    If the mapping specifies only stages or reuse, the readers of the tensor determine its layout.
    """
    tensor = attrs.evolve(tensor, stages=stored.stages, reuse=stored.reuse)
    if not (stored.swizzle or stored.pad or stored.order):
        return tensor
    layout = MatrixLayout(stored.order) if stored.order else tensor.layout
    assert isinstance(layout, MatrixLayout)
    row = constant(tensor.shape[0 if layout.order == "col" else -1])
    assert row is not None
    swizzle = by_rows(row + stored.pad, tensor.dtype.bytes) if stored.swizzle else None
    return attrs.evolve(tensor, layout=layout, pad=stored.pad, swizzle=swizzle, free=False)


def _variables(sizes: tuple[Expr, ...], number: int) -> tuple[Var, ...]:
    """Return variables for the indices of a loop over threads' parts. The kernel does not contain this loop."""
    return tuple(Var(f"piece{number}_{place}", 0, max(size.high - 1, 0)) for place, size in enumerate(sizes))


def _total(sizes: tuple[Expr, ...], level: Level) -> int:
    total = pieces(sizes)
    if total is None:
        raise DecompositionError(
            f"the length of a prange on {level} is known only at run time", legal="a known length, or a prange on BLOCK", at=call_site()
        )
    return total


def _operand(spec: Spec, name: str, variant: Variant) -> View:
    """The operand of the spec for a tensor of the entry point."""
    if name not in spec.operands:
        raise DecompositionError(f"{variant.name}: {spec.title} has no operand {name}", legal=tuple(spec.operands), at=variant.origin)
    if name in variant.writes and name not in spec.outputs:
        raise DecompositionError(f"{variant.name} writes {name}, an input of {spec.title}", legal=spec.outputs, at=variant.origin)
    if name in variant.reads and name in spec.outputs and spec.accumulate != TRUE:
        raise DecompositionError(
            f"{variant.name} reads {name}, which {spec} only writes", hint="set accumulate=True in the spec", at=variant.origin
        )
    return spec.operands[name]


def _steps(spec: Spec) -> tuple[Decomposition, ...]:
    """Return the steps for a spec: a thread computes element by element; for a group, an instruction is selected.

    If all threads of a group can access the operands, and the spec is neither a copy nor a contraction, each thread computes some elements.
    """
    done = Done(origin=call_site())
    if spec.level.threads != 1:
        shared = not any(view.memory.private for view in spec.views)
        return steps_at(default_copy(), spec) if shared and not (spec.copies or spec.contracts) else (done,)
    unroll = (Unroll(),)
    inner = tuple((dim, 1) for dim in spec.dims if dim not in spec.tile_dims)
    split = (Split((), inner, refinements=unroll),) if inner else ()
    return (*split, Tile((1,) * len(spec.tile_dims), refinements=unroll), done)


def _require_apart(loop: Loop, free: Collection[Expr]) -> None:
    """Refuse a prange in which a launch may write elements that another accesses. `free` are indices that may differ between launches."""
    inner = [access for access in loop.accesses if access[0].root <= loop.fresh]
    variables = [var for var, size in zip(loop.variables, loop.extents, strict=True) if constant(size) != 1]
    for (part, write, tensor, at), (other, other_writes, other_tensor, _) in itertools.combinations_with_replacement(inner, 2):
        if part.root != other.root or not (write or other_writes):
            continue
        for var in () if distinct(part.path, other.path, free) else variables:
            if not _separates(var, part.path, other.path):
                raise DecompositionError(
                    f"two launches of a prange may access the same elements: {tensor} {'writes' if write else 'reads'} them, "
                    f"and {other_tensor} {'writes' if other_writes else 'reads'} them",
                    got="pieces that are not proved disjoint for different indices", legal="pieces at the indices of the prange, or srange",
                    at=at,
                )  # fmt: skip


def _separates(index: Expr, path: Path, other: Path) -> bool:
    """Whether pieces differ, as pieces of the same disjoint partition, whenever an index differs."""
    for (by, place), (other_by, other_place) in zip(path, other, strict=False):
        if by != other_by or not by.disjoint:
            return False
        if any(left == right == index for left, right in zip(place, other_place, strict=True)):
            return True
        if place != other_place:
            return False
    return False


Chain = tuple[tuple[Partition, tuple[int, ...]], ...]


def _group_spec(spec: Spec, shares: dict[str, Chain]) -> Spec:
    """Return the spec of a group of threads that perform `spec` on their shares, without shares the spec itself.

    Raises: DecompositionError unless the shares fit. Each thread must have different elements of the result, all elements along reduced
    dimensions, and the matching elements of each operand. A reduction may have a separate dimension for partial results, one per thread
    that has terms.
    """
    chains = {len(chain) for chain in shares.values()}
    if chains == {0}:
        return spec
    by_value = {name for name, view in spec.operands.items() if view.memory.by_value}
    names = [name for name, chain in shares.items() if len(chain) < max(chains) and name not in by_value]
    if names:
        raise DecompositionError(
            f"{spec}: all tensors or none must be parts of an instruction's operand, but {names[0]} is not", at=call_site()
        )
    shares = {name: chain for name, chain in shares.items() if name not in by_value}
    counts = [by.counts(shape)[0] for by, shape in next(iter(shares.values()))]
    coordinates = [_coordinates_of_share(spec, shares, place) for place in itertools.product(*map(range, counts))]
    parts = [dim for dim in spec.tile_dims if spec.reduces and all(dim not in spec.uses[name] for name in spec.inputs)]
    if parts:
        _require_parts(spec, coordinates, parts)
        return spec.with_options(in_parts=True)
    summed = {dim: constant(spec.size(dim)) for dim in spec.dims if dim not in spec.tile_dims}
    for by_dim in coordinates:
        for dim, where in by_dim.items():
            if dim in summed and len(where) != summed[dim]:
                raise DecompositionError(
                    f"{spec}: a thread has only a part of the reduced dimension {dim}", at=call_site(),
                    hint='use one partial result per thread: partition_by_mma(T, instruction, processor, "parts")',
                )  # fmt: skip
    return spec


def _coordinates_of_share(spec: Spec, shares: dict[str, Chain], place: tuple[int, ...]) -> dict[str, list[int]]:
    """Return the coordinates of a thread's share along each dimension. Refuse shares of operands that differ."""
    by_dim: dict[str, list[int]] = {}
    for name, chain in shares.items():
        for dim, where in zip(spec.uses[name], _coordinates(chain, place), strict=True):
            if by_dim.setdefault(dim, where) != where:
                raise DecompositionError(
                    f"{spec}: the threads' parts of {name} do not match those of the other operands along {dim}",
                    hint='partition each operand by its name: partition_by_mma(T, instruction, processor, "A") for A', at=call_site(),
                )  # fmt: skip
    return by_dim


def _require_parts(spec: Spec, coordinates: list[dict[str, list[int]]], parts: list[str]) -> None:
    """Refuse partial results that are not numbered in the order of their terms."""
    terms = [dim for dim in spec.dims if dim not in spec.tile_dims]
    groups: dict[Any, list[tuple[list[int], list[int]]]] = {}
    for by_dim in coordinates:
        key = tuple(tuple(by_dim[dim]) for dim in spec.tile_dims if dim not in parts)
        groups.setdefault(key, []).append((by_dim[terms[0]], by_dim[parts[0]]))
    sizes = constant(spec.size(terms[0])), constant(spec.size(parts[0]))
    for group in groups.values():
        group.sort()
        every = sorted(itertools.chain.from_iterable(where for where, _ in group))
        if (
            len(terms) > 1
            or every != list(range(sizes[0] or 0))
            or [part for _, part in group] != [[index_of_part] for index_of_part in range(sizes[1] or 0)]
        ):
            raise DecompositionError(
                f"{spec}: each thread must have one partial result for its terms, and the order of results must be that of the terms",
                hint='partition the result as "parts" and the terms as "C": partition_by_mma(T, instruction, processor, "parts")',
                at=call_site(),
            )  # fmt: skip


def _coordinates(chain: tuple[tuple[Partition, tuple[int, ...]], ...], place: tuple[int, ...]) -> list[list[int]]:
    """Return the coordinates of a share of a share, along each dimension of the operand."""
    coordinates = [list(range(int(size))) for size in chain[0][1]]
    for (by, shape), number in zip(chain, place, strict=True):
        coordinates = [
            [outer[position] for position in inner] for outer, inner in zip(coordinates, by.coordinates(shape, (number,)), strict=True)
        ]
    return coordinates


# ---------------------------------------------------------------------------------------------- the step


@frozen
class TaskProgram(Decomposition):
    """Implement a whole kernel by a program of tasks and a mapping. The entry point's tensors match the operands of the spec by name."""

    verb: ClassVar[str] = "tasks"
    ends: ClassVar[bool] = True
    in_words: ClassVar[bool] = False
    program: Tasks
    mapping: Mapping | MappingOf | Refused

    def resolved(self, of: Callable[[Any], Any]) -> TaskProgram:
        """Return the step with tunables replaced. An illegal mapping raises its error when it is used."""
        mapping: Any
        try:
            mapping = of(self.mapping)
        except FireironError as error:
            mapping = Refused(error)
        return self if mapping is self.mapping else attrs.evolve(self, mapping=mapping)

    @property
    def given_program(self) -> str | None:
        """The variable of the program that loading needs; empty if it needs none, None if the program has no variable."""
        return variable_of(self.program)

    @property
    def mapped(self) -> Mapping:
        """The mapping with known values. Raises: the error of the function that computes it."""
        return self.mapping if isinstance(self.mapping, Mapping) else self.mapping.mapping()

    @property
    def whole_kernel(self) -> tuple[str, str]:  # type: ignore[override]
        """The target; for a mapping with tunables, according to their first values."""
        first = None if isinstance(self.mapping, Mapping) else self.mapping.first
        return (WARPGROUP_ARCHITECTURE if first is not None and has_part(Warpgroup, (first,)) else "", "")

    def label(self) -> str:
        return f"then(TaskProgram({title(self.program)}))"

    def summary(self) -> str:
        first = self.mapping if isinstance(self.mapping, Mapping) else self.mapping.first
        return f"tasks({title(self.program) if first is None else first.root.variant})"

    def title(self) -> tuple[str, ...]:
        return lines_of(self.program, self.mapped)

    def differences(self, other: Decomposition) -> tuple[str, ...]:
        if not isinstance(other, TaskProgram):
            return ()
        lines = (
            ()
            if self.program == other.program
            else changes(other.program, {variant.name: variant.digest for variant in self.program.variants})
        )
        return (*lines, *self.mapped.diff(other.mapped))

    def threads(self, spec: Spec, context: Context) -> int | None:
        known = self._known(spec)
        inner = [
            count_workers(performed_spec, steps, context.enter(Child("performed", performed_spec, steps)))
            for performed_spec, steps in known.performed
        ]
        return max(count for count in (known.threads, *inner) if count is not None)

    def expand(self, spec: Spec, context: Context) -> Expansion:
        if not spec.level.is_launch:
            raise DecompositionError(f"a program of tasks implements a whole kernel, but {spec} is at level {spec.level}", legal="Kernel")
        return _expansion(self, spec, *_WITHOUT_INSTRUCTIONS(context))

    def _known(self, spec: Spec) -> Known:
        """Return a copy of the results of the first reading, which the caller may change."""
        known = _first_reading(self, spec)
        copies: dict[str, Any] = {name: copy.copy(getattr(known, name)) for name in attrs.fields_dict(Known)}
        return Known(**copies | {"data_flows": {allocation: set(targets) for allocation, targets in known.data_flows.items()}})

    def stored(self, store: Store) -> dict[str, Any]:
        """The stored form: the name of the program, and its mapping in full."""
        program = plain_program(self.program)
        if not isinstance(self.mapping, MappingOf):
            return {"program": program, "mapping": plain_mapping(self.mapped, store)}
        arguments = {name: store.plain(argument) for name, argument in self.mapping.arguments}
        return {"program": program, "mapping": {"of": plain_function(self.mapping.function), "arguments": arguments}}

    @staticmethod
    def of_stored(fields: dict[str, Any], store: Store) -> TaskProgram:
        """The step that `stored` wrote. Raises: StoreError if its program is not found, or has changed."""
        if set(fields) != {"program", "mapping"}:
            raise StoreError("a step of tasks must have a program and a mapping", got=sorted(fields))
        plain, mapping = present_tasks(fields["program"], fields["mapping"])
        program = load_program(plain, store.programs)
        if not isinstance(mapping, dict) or set(mapping) != {"of", "arguments"}:
            return TaskProgram(program, read_mapping(mapping, store))
        function, arguments = load_function(mapping["of"]), mapping["arguments"]
        if not isinstance(arguments, dict):
            raise StoreError("the arguments of a mapping must be an object", got=arguments)
        return TaskProgram(program, MappingOf(function, {name: store.value(argument, Any) for name, argument in arguments.items()}))


_FIELDS: Final = tuple(name for name in attrs.fields_dict(Context) if name not in ("instructions", "left_out", "left_out_because"))
_WITHOUT_INSTRUCTIONS: Final = operator.attrgetter(*_FIELDS)


@by_identities
def _expansion(step: TaskProgram, spec: Spec, *fields: Any) -> Expansion:
    """The statements and children of a program. They do not depend on instructions, so a second tree without TMA reads nothing again."""
    context = Context(instructions=(), **dict(zip(_FIELDS, fields, strict=True)))
    known, draft = step._known(spec), context.draft()
    known.threads = max(known.threads, context.workers or 1)
    reader = Reader(step.program, step.mapped, spec, known, draft, registers=context.architecture.registers_per_thread)
    reader.read()
    facts = grid_facts(reader.launches, step.mapped.root.persistent, hint="larger tiles in the mapping")
    (program,) = reader.out
    # The ownership of registers follows from their readers: fills are decided last.
    children = sorted(reader.children, key=lambda child: child.spec.fills)
    return draft.expansion(
        tuple(children),
        tuple(program),
        facts=facts,
        grid=reader.grid,
        cluster=reader.cluster,
        effects=Effects((SharedBound(step.mapped.max_shared_bytes),)),
        launches=tuple(reader.labels),
    )


@by_identities
def _first_reading(step: TaskProgram, spec: Spec) -> Known:
    """The first reading of a program for a spec, cached for counting threads and for the expansion."""
    mapping, known = step.mapped, Known()
    step.program.check(mapping)
    Reader(step.program, mapping, spec, known).read()
    return known


SHOWN = ("group_m", "raster", "persistent", "pipeline", "interleave", "mma_in_flight")
"""Fields of an instance that the header of a kernel shows if they are neither 0 nor None."""


def lines_of(program: Tasks, mapping: Mapping) -> tuple[str, ...]:
    """Return one line per instance of a mapping. The calls of an instance are indented."""
    lines: list[str] = []
    listed: set[str] = set()

    def add(instance: TaskMapping, depth: int) -> None:
        again = instance.instance in listed
        lines.append(f"{'  ' * depth}{instance.instance}{', as above' if again else _line(program, instance)}")
        listed.add(instance.instance)
        for name in () if again else dict.fromkeys(instance.calls):
            add(mapping[name], depth + 1)

    add(mapping.root, 0)
    return tuple(lines)


def _line(program: Tasks, instance: TaskMapping) -> str:
    """An instance in the header of a kernel: its variant, its processor, the places of its tensors, and its values."""
    variant = "" if instance.variant == instance.instance else f" {instance.variant}"
    words = [f"{name}={value}" for name, value in instance.tunables]
    words += [f"{name}={value}" for name in SHOWN if (value := getattr(instance, name)) not in (0, None)]
    words += [f"cluster={'x'.join(map(str, instance.cluster))}"] if math.prod(instance.cluster) > 1 else []
    words += (
        [f"warpspecialize by {instance.producer_threads}" if instance.producer_threads > 32 else "warpspecialize"]
        if instance.warpspecialize
        else []
    )
    words += [] if instance.strategy is None else [f"by {instance.strategy}"]
    words += [f"{name} {layout}" for name, layout in instance.layouts]
    return ", ".join([f":{variant} on {instance.proc}", _places(program[instance.variant].tensors, instance.mems), *words])


def _places(tensors: tuple[str, ...], mems: tuple[Place, ...]) -> str:
    """The places of tensors, grouped by place."""
    names: dict[str, list[str]] = {}
    for name, place in zip(tensors, mems, strict=True):
        names.setdefault(str(place), []).append(name)
    return ", ".join(f"{' '.join(tensors_there)} {place}" for place, tensors_there in names.items())


def strategy(program: Tasks, mapping: Mapping | Callable[..., Mapping], **values: Any) -> Strategy:
    """Return a program as a strategy, for specs whose operands are the entry point's tensors: `strategy(gemm, mapping)(MatMul(...)...)`.

    Args: mapping: a mapping, which may contain `Tunable`s, or a function that returns a mapping. values: the arguments of that function,
    which may contain tunables: `strategy(gemm, hopper, U=Tunable("U", 64, 128))`.
    """
    require_program(program)
    if isinstance(mapping, Mapping):
        if values:
            raise ArgumentError(
                "strategy: values require a function that computes the mapping",
                got=sorted(values),
                legal="Mapping.with_(...)",
                at=call_site(),
            )
        for instance in mapping.instances:
            program[instance.variant]  # refuses unknown ones
        return Strategy((TaskProgram(program, mapping, origin=call_site()),))
    if not callable(mapping):
        raise ArgumentError(
            "a program requires a mapping, or a function that computes one",
            got=mapping,
            legal="Mapping([TaskMapping(...), ...])",
            at=call_site(),
        )
    mapping_of = MappingOf(mapping, values)
    return Strategy((TaskProgram(program, mapping_of if tunables_in(mapping_of.arguments) else mapping_of.mapping(), origin=call_site()),))
