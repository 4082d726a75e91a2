"""A program of tasks as one step of a strategy: its loops, and the work of its leaves as specs on views.

The variants run once with loop variables for numbers. A tensor whose memory differs from that of the tensor it is launched on becomes a
copy of it; one with NONE is the tensor itself. Where threads work on the parts of a matrix instruction's operand, all of them together are
one spec of their group, for which an instruction is found as for any other.
"""

from __future__ import annotations

import contextlib
import copy
import itertools
import math
from collections.abc import Callable, Collection, Iterator
from typing import Any, ClassVar

import attrs

from fireiron.decomp.done import Done
from fireiron.decomp.split import Split
from fireiron.decomp.tile import Tile
from fireiron.errors import ArgumentError, DecompositionError, FireironError, ResourceError, StoreError, call_site
from fireiron.executable.micro_kernel import MicroKernel
from fireiron.ir import BlockCluster, Comment, For, Hole, Stmt
from fireiron.ir.ask import NOTHING, Asks
from fireiron.ir.asks.pending_mmas import PendingMmas
from fireiron.ir.asks.pipelined import Pipelined
from fireiron.ir.asks.producer_threads import ProducerThreads
from fireiron.ir.effect import Effects
from fireiron.ir.effects.shared_bound import SharedBound
from fireiron.ir.rewrite import by_identities
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
from fireiron.tasks.grid import Blocks, dealt_to_blocks
from fireiron.tasks.legal import distinct, require_few_registers, require_inside, require_promises
from fireiron.tasks.made import MappingOf, Refused
from fireiron.tasks.mapping import NONE, Mapping, Place, Stored, TaskMapping, plain_mapping, read_mapping
from fireiron.tasks.named import changes, found_function, found_program, plain_function, plain_program, title
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
    """A tensor of the program, or a piece: the view that it is for its group, the tensor it is a piece of, by number, and how.

    `made` is the number of the tensor among those that variants make, 0 for others. `shares` are the partitions by which threads of the
    group have parts of the view, with the shapes that they divide. `present` is the condition under which it has any elements. `origin` is
    the piece of an operand that it is a copy of.
    """

    view: View
    root: int
    path: Path = ()
    shares: tuple[tuple[Partition, tuple[int, ...]], ...] = ()
    made: int = 0
    present: Expr = TRUE
    origin: View | None = None


@attrs.define(eq=False)
class Loop:
    """A group of launches that is read: its variables, how many turns, and the launches' accesses."""

    number: int
    variables: tuple[Expr, ...]
    extents: tuple[Expr, ...]
    parallel: bool
    fresh: int
    depth: int
    accesses: list[tuple[Part, bool, str, str | None]] = attrs.field(factory=list)


@attrs.define(eq=False)
class Known:
    """What a first reading finds: to which level each loop's launches go, which are about shares of a group's threads, and of each new
    tensor its name, its memory, and whether something is added up in it."""

    levels: dict[int, Level] = attrs.field(factory=dict)
    shared: set[int] = attrs.field(factory=set)
    names: dict[int, str] = attrs.field(factory=dict)
    memories: dict[int, Memory] = attrs.field(factory=dict)
    layouts: dict[int, Stored | None] = attrs.field(factory=dict)
    orders: dict[int, MatrixLayout] = attrs.field(factory=dict)
    sums: set[int] = attrs.field(factory=set)
    flows: dict[int, set[int]] = attrs.field(factory=dict)
    threads: int = 1
    performed: list[tuple[Spec, tuple[Decomposition, ...]]] = attrs.field(factory=list)


@attrs.define(eq=False)
class Reader(Runner):
    """Reads a program: with a draft into statements and children, without one only to find out what is `known`."""

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
    made: int = attrs.field(default=0, init=False)
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
        for word, names, mine in (("no tensor", operands, variant.tensors), ("no result", self.spec.outputs, variant.writes)):
            missing = [name for name in names if name not in mine]
            if missing:
                raise DecompositionError(
                    f"{variant.name}: {word} is {missing[0]} of {self.spec}", got=variant.tensors, legal=tuple(names), at=variant.origin
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
            extents = {var: size for one in self.loops for var, size in zip(one.variables, one.extents, strict=True)}
            require_promises(by, tensor.extents)
            require_inside(by, place, by.counts(tensor.extents), extents, self.ended)
        if not by.raises:
            if part.shares:
                raise DecompositionError(f"{by}: the tensor is one thread's part of an operand already", at=call_site())
            present = all_of((part.present, by.present(place)))
            if part.root <= self.given and self.here.one.proc.level.is_launch:
                alike = self.present.get(part.root, present) == present
                self.present[part.root] = present if alike else TRUE
            units = frozenset(self.units)
            origin = None if part.origin is None else by.view(part.origin, place, units)
            return attrs.evolve(part, view=by.view(part.view, place, units), path=path, present=present, origin=origin)
        if not self.dry:
            self._require_all(tensor, by, place)
        return attrs.evolve(part, path=path, shares=(*part.shares, (by, tensor.extents)))

    def apart(self, one: TaskTensor, other: TaskTensor) -> bool:
        first: Part = one.data
        second: Part = other.data
        return self.draft is not None or first.root != second.root or distinct(first.path, second.path)

    def _require_all(self, tensor: TaskTensor, by: Partition, place: tuple[Expr, ...]) -> None:
        """Refuse shares of which not all are launched, in one loop: an instruction works for all threads of a group."""
        loop = next((one for one in self.loops if one.variables == place), None)
        wanted = pieces(by.counts(tensor.extents))
        if loop is None or not loop.parallel or pieces(loop.extents) != wanted:
            got = "another index" if loop is None else f"{' x '.join(map(str, loop.extents))}"
            raise DecompositionError(f"{by}: all pieces are launched together", got=got, legal=f"prange({wanted})", at=call_site())
        self.known.shared.add(loop.number)

    def again(self) -> contextlib.AbstractContextManager[None] | None:
        return self._counted_once() if self.draft is None else None

    @contextlib.contextmanager
    def _counted_once(self) -> Iterator[None]:
        """A second look at a turn, whose loops and tensors have no numbers."""
        counted = self.roots, self.made, self.numbers
        yield
        self.roots, self.made, self.numbers = counted

    def tensor(self, shape: tuple[Any, ...], dtype: DType) -> Part:
        self.made += 1
        number, sizes = self.made, tuple(map(as_expr, shape))
        if self.level.is_launch:
            raise DecompositionError(
                f"make_tensor: a tensor of {self.here.one.proc}, where a kernel has no memory of its own",
                legal="on BLOCK and inside",
                at=call_site(),
            )
        if any(constant(size) is None for size in sizes):
            raise DecompositionError("make_tensor: its size is known only at run time", got=shape, legal="sizes of blocks", at=call_site())
        memory = RF if self.here.variant.form is Leaf else self.known.memories.get(number)
        if memory is None and self.draft is not None and not self.dry:
            raise DecompositionError(
                "make_tensor: no instance below says where the tensor is, which NONE cannot be for all",
                legal="SHARED REGISTER",
                at=call_site(),
            )
        if memory is not None and memory.of_grid:
            raise DecompositionError(
                f"make_tensor: {self.known.names.get(number, 'a tensor')} is mapped to GLOBAL, and a kernel owns no global memory",
                got=memory, legal="SHARED REGISTER", at=call_site(),
                hint="SHARED or REGISTER in the mapping of the instance that it is launched on; or make it a tensor of the entry point",
            )  # fmt: skip
        name = self._name(self.known.names.get(number, "t"), memory or RF)
        owner = "accumulates" if number in self.known.sums else "reads"
        layout, stored = self.known.orders.get(number, ColMajor), self.known.layouts.get(number)
        view = self._made(name, sizes, dtype, memory or RF, layout, owner, stored)
        made = Part(view, self._root(), made=number)
        self.unset.add(made.root)
        return made

    def coordinates(self, tensor: TaskTensor, dim: int) -> Part:
        return Part(self._counted(tensor, dim), self._root())

    def extent(self, tensor: TaskTensor, dim: int) -> Part:
        return Part(extent_of(self._counted(tensor, dim)), self._root())

    def _counted(self, tensor: TaskTensor, dim: int) -> View:
        """The coordinates of a piece as a view."""
        part: Part = tensor.data
        view = part.view if part.origin is None else part.origin
        if not view.memory.of_grid or part.shares:
            raise DecompositionError(
                "coordinates: of what tasks make, and of threads' parts, there are none", got=view.memory,
                legal="pieces of the entry point's tensors, and copies of them", at=call_site(),
            )  # fmt: skip
        name = "index" if self.draft is None else self.draft.fresh("index")
        return whole_view(Tensor(name, (view.extent(dim),), int32, COORD, ColMajor)).with_dims({0: view.dims[dim]})

    def _name(self, wanted: str, memory: Memory) -> str:
        name = f"{wanted.lower()}_{memory.label}"
        return name if self.draft is None else self.draft.fresh(name)

    def _made(
        self, name: str, shape: tuple[Expr, ...], dtype: DType, memory: Memory, layout: MatrixLayout, owner: str, stored: Stored | None
    ) -> View:
        """A new tensor, stored as a mapping says, a copy for each unit of the level that reads the program now."""
        if memory.private and self.draft is not None:
            threads = self.known.threads if self.level == Block else self.level.threads or 1
            require_few_registers(name, shape, dtype, threads, self.registers)
        bare = Tensor(name, shape, dtype, memory, layout, owner=owner, free=memory.in_shared, origin=call_site())
        bare = bare if stored is None else _laid(bare, stored)
        if self.draft is None:
            return whole_view(bare)
        copies, copy = copies_of(memory, Init.on(self.level, whole_view(bare)), self.draft)
        return whole_view(attrs.evolve(bare, copies=copies), copy)

    # ------------------------------------------------------------------------------------------ loops

    def loop(self, extents: tuple[Any, ...], parallel: bool) -> Iterator[Any]:
        self.numbers += 1
        sizes = tuple(map(as_expr, extents))
        if ZERO in sizes or (self.dry and self.draft is not None):
            self.piped.add(self.here.one.instance)
            return  # no turns: what stands in it is only looked at
        number, level = self.numbers, self.known.levels.get(self.numbers, self.level)
        if number in self.known.shared or self.draft is None:
            loop = Loop(number, _variables(sizes, number), sizes, parallel, self.roots, len(self.frames))
            yield from self._inside(loop, loop.variables, self.level)
        elif parallel and level == Block != self.level:
            yield from self._on_blocks(Loop(number, (), sizes, parallel, self.roots, len(self.frames)))
        elif parallel and level != self.level:
            loop = Loop(number, (), sizes, parallel, self.roots, len(self.frames))
            indices, active = self._dealt(sizes, level)
            self.active.append(active)
            yield from self._inside(loop, indices, level)
            self.active.pop()
        else:
            yield from self._repeated(Loop(number, (), sizes, parallel, self.roots, len(self.frames)))

    def _inside(self, loop: Loop, indices: tuple[Expr, ...], level: Level) -> Iterator[Any]:
        """The launches of a loop, once: with its indices for numbers, on units of a level."""
        loop.variables = indices
        outer, self.level = self.level, level
        self.loops.append(loop)
        ended = frozenset(self.ended)
        met = tuple(map(scalar, indices))
        yield met if len(met) > 1 else met[0]
        self.loops.pop()
        self.ended |= {var for index in indices for var in index.variables()} if self.draft is None else set()
        self.level = outer
        if loop.parallel and self.draft is None:
            _require_apart(loop, self.ended - ended)

    @contextlib.contextmanager
    def _body(self) -> Iterator[list[Stmt]]:
        """The statements of a loop's body, filled while the loop is read; copies made there are not there behind it."""
        body: list[Stmt] = []
        self.out.append(body)
        self.copies.append({})
        yield body
        self.copies.pop()
        self.out.pop()

    def _on_blocks(self, loop: Loop) -> Iterator[Any]:
        """Launches of which each block has one, or takes several in turns."""
        assert self.draft is not None
        found = dealt_to_blocks(loop.extents, self.here.one, self.draft)
        self._take_grid(found)
        with self._body() as body:
            yield from self._inside(loop, found.indices, Block)
        self.out[-1] += found.taken.around(*body)

    def _take_grid(self, found: Blocks) -> None:
        if self.grid is not None:
            raise DecompositionError("launches on BLOCK from two places", legal="one prange of them", at=call_site())
        self.grid, self.launches, self.cluster = found.taken.blocks, found.launches, found.cluster
        self.units |= {var for index in found.indices for var in index.variables()}

    def _repeated(self, loop: Loop) -> Iterator[Any]:
        """A loop in which each unit does all turns."""
        assert self.draft is not None
        names = "ijkl" if loop.parallel or len(loop.extents) > 1 else "k"
        variables = tuple(Var(self.draft.fresh(names[place % 4]), 0, max(size.high - 1, 0)) for place, size in enumerate(loop.extents))
        here, inside = self.here.one, self.level not in (Kernel, Block)
        once = here.pipeline > 1 and not here.warpspecialize  # of one turn nothing runs ahead: it is no loop
        turning = [(var, size) for var, size in zip(variables, loop.extents, strict=True) if not once or size != ONE]
        kept = [var for var, _ in turning]
        with self._body() as statements:
            yield from self._inside(loop, tuple(var if var in kept else ZERO for var in variables), self.level)
        body = tuple(statements)
        ahead = (Pipelined(here.pipeline, here.interleave), PendingMmas(here.mma_in_flight)) if here.pipeline else ()
        asks = Asks((*ahead, ProducerThreads(here.producer_threads if here.warpspecialize else 0)))
        self.piped.add(here.instance)
        for var, size in reversed(turning):
            body = (For(var, size, body, inside and constant(size) is not None, call_site(), asks=asks),)
            asks = NOTHING  # the innermost loop is the pipeline
        self.out[-1] += body

    def _dealt(self, sizes: tuple[Expr, ...], level: Level) -> tuple[tuple[Expr, ...], Expr]:
        """The indices of a unit of a level, and the condition under which it has any."""
        assert self.draft is not None
        draft = self.draft
        if level == Block:
            self._take_grid(dealt_to_blocks(sizes, self.here.one, draft))
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
                f"a prange of {total} launches on {level}", got=f"{units} of them in a {self.level}", legal=f"{units} launches",
                hint="an srange around it", at=call_site(),
            )  # fmt: skip
        unit = self.draft.unit(level, self.level)
        return unit, less(unit, as_expr(total)) if total < units else TRUE

    # ------------------------------------------------------------------------------------------ launches

    def enter(self, one: TaskMapping, variant: Variant, tensors: tuple[TaskTensor, ...]) -> None:
        level = one.proc.level
        inner = self.loops[-1] if self.loops and self.loops[-1].depth == len(self.frames) else None
        within_shares = any(each.data.shares for each in tensors)
        if self.draft is None and self.frames:
            self._note(one, variant, tensors, inner, level, within_shares)
        for name, each in zip(variant.tensors, tensors, strict=True):
            for write, names in ((False, variant.reads), (True, variant.writes)):
                if name in names:
                    for loop in self.loops:
                        loop.accesses.append((each.data, write, f"{variant.name}({name})", call_site()))
        if self.draft is None or within_shares or level == self.level:
            outer, self.level = self.level, level if self.draft is None else self.level
            self._entered(one, variant, tensors)
            self.level = outer
            return
        _, active = self._dealt((ONE,), level)
        outer, self.level = self.level, level
        self.active.append(active)
        self._entered(one, variant, tensors)
        self.active.pop()
        self.level = outer

    def _note(
        self, one: TaskMapping, variant: Variant, tensors: tuple[TaskTensor, ...], inner: Loop | None, level: Level, shares: bool
    ) -> None:
        """What the launch says of the loop it stands in, of the threads of a block, and of new tensors."""
        of_this = inner is not None and inner.parallel and not shares
        if of_this and level != self.here.one.proc.level:
            assert inner is not None
            if self.known.levels.setdefault(inner.number, level) != level:
                raise DecompositionError("launches of one prange go to different processors", got=str(level), at=call_site())
        if self.here.one.proc.level == Block and level.threads is not None and not shares:
            total = _total(inner.extents, level) if of_this and inner is not None else 1
            self.known.threads = max(self.known.threads, threads_for(total, level))
        for name, place, each in zip(variant.tensors, one.mems, tensors, strict=True):
            self.known.names.setdefault(each.data.made, name)
            if each.data.made and place.memory is not None and each.data.made not in self.known.memories:
                self.known.memories[each.data.made] = place.memory
                self.known.layouts[each.data.made] = dict(one.layouts).get(name)

    def _entered(self, one: TaskMapping, variant: Variant, tensors: tuple[TaskTensor, ...]) -> None:
        """Run an instance on tensors where it wants them: copied before, if it reads them, and back, if it writes them."""
        passed, back, written = [], [], []
        results = [each.data for name, each in zip(variant.tensors, tensors, strict=True) if name in variant.writes]
        wanted = self._wanted(results)
        for name, place, each in zip(variant.tensors, one.mems, tensors, strict=True):
            part: Part = each.data
            if place == NONE or place.memory == self.known.memories.get(part.made, part.view.memory):
                passed.append(each)
                continue
            assert place.memory is not None
            stored, copies = dict(one.layouts).get(name), name not in variant.writes and part.root in self.constant
            key = (part.root, part.path, part.shares, place.memory, self.level, stored, tuple(self.active))
            known = self._known_copy(key, wanted) if copies else None
            if known is not None:
                passed.append(attrs.evolve(each, data=known))
                continue
            owner = "accumulates" if name in variant.reads & variant.writes else "reads"
            fresh = self._copied(name, part, place.memory, owner, one)
            passed.append(attrs.evolve(each, data=fresh))
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
        self.call(one, variant, passed)
        self.unset -= {root for fresh, root in written if fresh not in self.unset}
        if one.pipeline and self.draft is not None and one.instance not in self.piped:
            raise DecompositionError(
                f"instance {one.instance}: pipeline={one.pipeline}, and {variant.name} has no srange", legal="pipeline=0", at=variant.origin
            )
        for name, move, present in back:
            copied = move.src.tensor.name
            self._child(f"{copied}_out", move, f"{copied} to {name}", wanted=present, what=f"out {name}")

    def _known_copy(self, key: object, wanted: Expr) -> Part | None:
        """A copy that was made before, for all results or for those that are wanted now."""
        found = (scope[key, one] for scope in self.copies for one in (TRUE, wanted) if (key, one) in scope)
        return next(found, None)

    def _copied(self, name: str, part: Part, memory: Memory, owner: str, one: TaskMapping) -> Part:
        if memory.of_grid:
            raise DecompositionError(
                f"{name}: a copy in GLOBAL of what is in {part.view.memory}, which a kernel cannot make",
                legal="NONE SHARED REGISTER",
                at=call_site(),
            )
        if any(constant(size) is None for size in part.view.shape):
            raise DecompositionError(
                f"{name}: a copy in {memory} of {part.view.shape} elements, known only at run time",
                legal="pieces of known size",
                at=call_site(),
            )
        dims = list(range(len(part.view.dims)))
        dims = dims if memory.private else sorted(dims, key=part.view.axis)  # stored in the order of the source
        source = part.view.only(dims)
        layout = RowMajor if source.memory.private else MatrixLayout(source.order or "row")
        view = self._ringed(one, name, source)
        if view is None:
            stored = dict(one.layouts).get(name)
            view = self._made(self._name(name, memory), source.shape, source.dtype, memory, layout, owner, stored)
            self.stages.setdefault((one.instance, name), []).append((self.out[-1], view))
        origin = part.view if part.origin is None and part.view.memory.of_grid else part.origin
        view = view.only([dims.index(dim) for dim in range(len(dims))])
        return Part(view, self._root(), (), part.shares, present=part.present, origin=origin)

    def _ringed(self, one: TaskMapping, name: str, source: View) -> View | None:
        """The copy of another launch of an instance, where a warp loads ahead: a ring has its stages, in front of its loop and behind it.

        Launches side by side have copies of their own.
        """
        found = self.stages.get((one.instance, name), [])
        if not self.here.one.warpspecialize or any(out is self.out[-1] for out, _ in found):
            return None
        alike = (view for _, view in found if (view.shape, view.dtype) == (source.shape, source.dtype) and view.memory.of_block)
        view = next(alike, None)
        if view is not None:
            found.append((self.out[-1], view))
        return view

    def external(self, function: Any, tensors: tuple[TaskTensor, ...], options: dict[str, Any]) -> None:
        spec = external(function, self.level, tuple(one.data.view for one in tensors), options)
        by_name = dict(zip(order_of(function, spec), tensors, strict=True))
        mine = self.here.variant
        require_privileges(mine.name, mine.reads, mine.writes, spec, {operand: one.parameter for operand, one in by_name.items()})
        if spec.accumulate == TRUE:
            self.known.sums |= {by_name[name].data.made for name in spec.outputs}
        if spec.copies:
            self._note_order(by_name["dst"].data, by_name["src"].data)
        inputs, outputs = ([by_name[name].data for name in names] for names in (spec.inputs, spec.outputs))
        self._require_set(inputs + outputs if spec.accumulate == TRUE else inputs, tuple(by_name.values()))
        self.unset -= {part.root for part in outputs}
        self._note_flow(inputs, outputs)
        wanted = self._wanted(outputs) if inputs else all_of([one.present for one in outputs])
        kernel = performer(function, options)
        if kernel is not None and any(one.data.shares for one in tensors):
            raise DecompositionError(
                f"{mine.name}: {kernel} on threads' parts of an instruction's operand, which all threads together work on",
                legal="tensors, or pieces of them", at=call_site(),
            )  # fmt: skip
        spec = _raised(spec, {operand: one.data.shares for operand, one in by_name.items()})
        if spec.title == "Pointwise":
            for operand, one in by_name.items():
                self.known.names.setdefault(one.data.made, operand.removesuffix("_before"))
            needed = _needed(spec)
            if needed == FALSE:
                return
            wanted = all_of((wanted, needed))
        note = "" if isinstance(function, str) or kernel is not None else _noted(spec)
        if self.here.one.strategy is None:
            self._child(_called(function, spec), spec, note, named=False, wanted=wanted, kernel=kernel)
        else:
            self._by_strategy(_called(function, spec), spec, self.here.one.strategy, wanted)

    def _require_set(self, parts: list[Part], tensors: tuple[TaskTensor, ...]) -> None:
        """Refuse to read what no launch before has written any of."""
        missing = [one.called for one in tensors for part in parts if one.data is part and part.root in self.unset]
        if missing:
            raise DecompositionError(
                f"{self.here.variant.name} reads {missing[0]}, to which nothing was written before",
                legal="a launch that writes it, in front", at=call_site(),
            )  # fmt: skip

    def _by_strategy(self, name: str, spec: Spec, strategy: Strategy, wanted: Expr) -> None:
        """The work of a leaf as a child that the strategy of its instance performs."""
        steps = steps_for(strategy, f"instance {self.here.one.instance}: strategy", (spec.kind.title,))
        if not strategy.finished:
            raise DecompositionError(
                f"instance {self.here.one.instance}: its strategy is not complete", got=strategy, legal=".done() at its end", at=call_site()
            )
        self.known.performed.append((spec, steps))
        if self.draft is not None:
            self._perform(name, spec, f"by the strategy of {self.here.one.instance}", True, steps, follows=False, wanted=wanted)

    def _note_order(self, *parts: Part) -> None:
        """A new tensor in shared memory lies as what it is copied to, or from."""
        for part, other in (parts, parts[::-1]):
            if part.made and other.view.memory.of_grid and other.view.order and self.known.memories.get(part.made, RF).of_block:
                self.known.orders.setdefault(part.made, MatrixLayout(other.view.order))

    def _note_flow(self, inputs: list[Part], outputs: list[Part]) -> None:
        """What goes into what: from new tensors into others, or into those that the entry point was given."""
        for part in inputs:
            if part.made:
                goes = self.known.flows.setdefault(part.made, set())
                goes |= {-one.made if one.made else one.root if one.root <= self.given else 0 for one in outputs}

    def _wanted(self, outputs: list[Part]) -> Expr:
        """The condition under which anyone wants results: one has elements, and if it only goes into others, so have they."""
        conditions: list[Expr] = [] if outputs else [TRUE]
        for part in outputs:
            served = self._served(part.made) if part.made else set()
            further = [self.present.get(root, TRUE) for root in served] if len(served) == 1 else []
            conditions.append(all_of((*further, part.present)))
        return any_of(conditions)

    def _served(self, made: int) -> set[int]:
        """The given tensors that a new tensor goes into, by whatever ways; 0 among them where that is not known."""
        found, left = {made}, [made]
        while left:
            goes = self.known.flows.get(left.pop(), {0})
            new = {-one for one in goes if one < 0} - found
            found |= new
            left += new
        return {one for each in found for one in self.known.flows.get(each, {0}) if one >= 0}

    def _child(
        self, name: str, spec: Spec, note: str, named: bool = True, wanted: Expr = TRUE, kernel: MicroKernel | None = None, what: str = CALL
    ) -> None:
        """A spec as a child, at this place of the program, with a note, behind which the spec is `named`; `what` of a launch it is."""
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
        """A spec as a child that some steps perform, of whose registers others say who holds them where it `follows`."""
        assert self.draft is not None
        taken = {one.name for one in self.children}
        numbered = (name if number == 1 else f"{name}{number}" for number in itertools.count(1))
        called = next(one for one in numbered if one not in taken)
        follows = follows and spec.level.threads != 1 and any(view.memory.private for view in spec.views)
        alone = steps_at(default_copy(), spec) if follows and not spec.contracts else ()
        self.children.append(Child(called, spec, steps, all_of((*self.active, wanted)), f"{called.lower()}_", alone))
        self.labels.append((called, self.launch_of(what, inside=what == CALL)))
        self.out[-1] += [Comment(f"{note}: {spec}" if named else note)] if note else []
        self.out[-1].append(Hole(called))


def _called(function: Any, spec: Spec) -> str:
    """What the work of a call is named after: itself, or what a formula makes."""
    if isinstance(function, str):
        return function
    return spec.outputs[0] if spec.title == "Pointwise" else spec.title.lower()


def _noted(spec: Spec) -> str:
    """What the printed kernel says of work on data: its formula, or of which tensors others are made."""
    if spec.title == "Pointwise":
        return str(spec.definition.only)
    of, to = (", ".join(spec.operands[name].tensor.name for name in names) for names in (spec.inputs, spec.outputs))
    return f"{to} from {of}"


def _needed(spec: Spec) -> Expr:
    """The condition under which a formula changes elements: that its own may fail, where it keeps them in place under that."""
    one = spec.definition.only
    value = None if one is None else one.value
    if one is None or not isinstance(value, Operation) or value.name != "where":
        return TRUE
    kept, target = value.arguments[1], one.target
    if not isinstance(kept, Element) or kept.index != target.index or spec.operands[kept.tensor] != spec.operands[target.tensor]:
        return TRUE
    return may_fail(value.arguments[0], spec.operands)


def _laid(tensor: Tensor, stored: Stored) -> Tensor:
    """The tensor, stored as a mapping says; as its readers want it, if all that it says is about its ring or its bytes."""
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
    """Variables that stand for the indices of a loop which leaves nothing of itself."""
    return tuple(Var(f"piece{number}_{place}", 0, max(size.high - 1, 0)) for place, size in enumerate(sizes))


def _total(sizes: tuple[Expr, ...], level: Level) -> int:
    found = pieces(sizes)
    if found is None:
        raise DecompositionError(f"a prange on {level} whose length is known only at run time", legal="prange on BLOCK", at=call_site())
    return found


def _operand(spec: Spec, name: str, variant: Variant) -> View:
    """The operand of the spec that a tensor of the entry point is."""
    if name not in spec.operands:
        raise DecompositionError(f"{variant.name}: {spec.title} has no operand {name}", legal=tuple(spec.operands), at=variant.origin)
    if name in variant.writes and name not in spec.outputs:
        raise DecompositionError(f"{variant.name} writes {name}, an input of {spec.title}", legal=spec.outputs, at=variant.origin)
    if name in variant.reads and name in spec.outputs and spec.accumulate != TRUE:
        raise DecompositionError(
            f"{variant.name} reads {name}, which {spec} only writes", hint="accumulate=True on the spec", at=variant.origin
        )
    return spec.operands[name]


def _steps(spec: Spec) -> tuple[Decomposition, ...]:
    """What performs a spec: a thread does it element by element; for a group an instruction, or whoever holds its registers, does.

    Of what threads see alike, and no instruction fills or computes, each takes elements.
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
    """Refuse launches of a prange of which one may write what another touches; `free` are indices that differ between launches."""
    inner = [access for access in loop.accesses if access[0].root <= loop.fresh]
    variables = [var for var, size in zip(loop.variables, loop.extents, strict=True) if constant(size) != 1]
    for (part, write, what, at), (other, also, whose, _) in itertools.combinations_with_replacement(inner, 2):
        if part.root != other.root or not (write or also):
            continue
        for var in () if distinct(part.path, other.path, free) else variables:
            if not _separates(var, part.path, other.path):
                raise DecompositionError(
                    f"two launches of a prange may touch the same elements: {what} {'writes' if write else 'reads'} what {whose} "
                    f"{'writes' if also else 'reads'}",
                    got="pieces that are not known to differ with each index", legal="pieces at the indices of the prange, or srange",
                    at=at,
                )  # fmt: skip


def _separates(index: Expr, path: Path, other: Path) -> bool:
    """Whether pieces are different ones, of the same disjoint partition, wherever an index differs."""
    for (by, place), (also, there) in zip(path, other, strict=False):
        if by != also or not by.disjoint:
            return False
        if any(one == two == index for one, two in zip(place, there, strict=True)):
            return True
        if place != there:
            return False
    return False


Chain = tuple[tuple[Partition, tuple[int, ...]], ...]


def _raised(spec: Spec, shares: dict[str, Chain]) -> Spec:
    """The work of a group, of which threads do this on their shares; refused where together they do not do it: each has other elements of
    the result, all of what is reduced, and of each operand those that belong to them.

    A reduction may have a dimension of its own for parts: each thread has another one, that of its terms.
    """
    chains = {len(one) for one in shares.values()}
    if chains == {0}:
        return spec
    by_value = {name for name, view in spec.operands.items() if view.memory.by_value}
    names = [name for name, one in shares.items() if len(one) < max(chains) and name not in by_value]
    if names:
        raise DecompositionError(f"{spec}: {names[0]} is no part of an instruction's operand, the others are", at=call_site())
    shares = {name: one for name, one in shares.items() if name not in by_value}
    counts = [by.counts(shape)[0] for by, shape in next(iter(shares.values()))]
    found = [_of_share(spec, shares, place) for place in itertools.product(*map(range, counts))]
    parts = [dim for dim in spec.tile_dims if spec.reduces and all(dim not in spec.uses[name] for name in spec.inputs)]
    if parts:
        _require_parts(spec, found, parts)
        return spec.with_options(in_parts=True)
    summed = {dim: constant(spec.size(dim)) for dim in spec.dims if dim not in spec.tile_dims}
    for one in found:
        for dim, where in one.items():
            if dim in summed and len(where) != summed[dim]:
                raise DecompositionError(
                    f"{spec}: a thread has a part of {dim}, over which is summed", at=call_site(),
                    hint='a number for each thread that has a part: partition_by_mma(T, instruction, processor, "parts")',
                )  # fmt: skip
    return spec


def _of_share(spec: Spec, shares: dict[str, Chain], place: tuple[int, ...]) -> dict[str, list[int]]:
    """The coordinates of a thread's share along each dimension; refused where operands differ."""
    found: dict[str, list[int]] = {}
    for name, chain in shares.items():
        for dim, where in zip(spec.uses[name], _coordinates(chain, place), strict=True):
            if found.setdefault(dim, where) != where:
                raise DecompositionError(
                    f"{spec}: threads have parts of {name} that do not conform with the others along {dim}",
                    hint='partition_by_mma(T, instruction, processor, "A") for A, and so on', at=call_site(),
                )  # fmt: skip
    return found


def _require_parts(spec: Spec, found: list[dict[str, list[int]]], parts: list[str]) -> None:
    """Refuse parts of sums that are not numbered as their terms lie: whose first term comes first has the first part."""
    terms = [dim for dim in spec.dims if dim not in spec.tile_dims]
    groups: dict[Any, list[tuple[list[int], list[int]]]] = {}
    for one in found:
        key = tuple(tuple(one[dim]) for dim in spec.tile_dims if dim not in parts)
        groups.setdefault(key, []).append((one[terms[0]], one[parts[0]]))
    sizes = constant(spec.size(terms[0])), constant(spec.size(parts[0]))
    for group in groups.values():
        group.sort()
        every = sorted(itertools.chain.from_iterable(where for where, _ in group))
        if len(terms) > 1 or every != list(range(sizes[0] or 0)) or [part for _, part in group] != [[one] for one in range(sizes[1] or 0)]:
            raise DecompositionError(
                f"{spec}: each thread that has terms of a result has a part of its own, in the order of their terms",
                hint='partition_by_mma(T, instruction, processor, "parts") for the result, "C" for the terms', at=call_site(),
            )  # fmt: skip


def _coordinates(chain: tuple[tuple[Partition, tuple[int, ...]], ...], place: tuple[int, ...]) -> list[list[int]]:
    """The coordinates of a share of shares, along each dimension of the operand."""
    found = [list(range(int(size))) for size in chain[0][1]]
    for (by, shape), number in zip(chain, place, strict=True):
        found = [[outer[one] for one in inner] for outer, inner in zip(found, by.coordinates(shape, (number,)), strict=True)]
    return found


# ---------------------------------------------------------------------------------------------- the step


@attrs.frozen
class TaskProgram(Decomposition):
    """All of a kernel by a program of tasks and a mapping; the entry point's tensors are the operands of the spec, by name."""

    verb: ClassVar[str] = "tasks"
    ends: ClassVar[bool] = True
    in_words: ClassVar[bool] = False
    program: Tasks
    mapping: Mapping | MappingOf | Refused

    def resolved(self, of: Callable[[Any], Any]) -> TaskProgram:
        """The step with its tunables as `of` says; what its mapping refuses then is said where it is used."""
        mapping: Any
        try:
            mapping = of(self.mapping)
        except FireironError as error:
            mapping = Refused(error)
        return self if mapping is self.mapping else attrs.evolve(self, mapping=mapping)

    @property
    def mapped(self) -> Mapping:
        """The mapping, all of whose values are known; an error where a function makes none of them."""
        return self.mapping if isinstance(self.mapping, Mapping) else self.mapping.made()

    @property
    def whole_kernel(self) -> tuple[str, str]:  # type: ignore[override]
        """The target, which of a mapping that has no values yet the first ones tell."""
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
        lines = () if self.program == other.program else changes(other.program, {one.name: one.digest for one in self.program.variants})
        return (*lines, *self.mapped.diff(other.mapped))

    def threads(self, spec: Spec, context: Context) -> int | None:
        known = self._known(spec)
        inner = [count_workers(one, steps, context.enter(Child("performed", one, steps))) for one, steps in known.performed]
        return max(one for one in (known.threads, *inner) if one is not None)

    def expand(self, spec: Spec, context: Context) -> Expansion:
        if not spec.level.is_launch:
            raise DecompositionError(f"a program of tasks is a whole kernel, {spec} is {spec.level}'s", legal="Kernel")
        known, draft = self._known(spec), context.draft()
        known.threads = max(known.threads, context.workers or 1)
        reader = Reader(self.program, self.mapped, spec, known, draft, registers=context.architecture.registers_per_thread)
        reader.read()
        fits = less(reader.launches, as_expr(2**31))  # of blocks that stay, too: they count on to their last launch
        if fits == FALSE:
            raise ResourceError(f"{reader.launches} launches on BLOCK: a grid has at most 2**31 - 1", hint="larger tiles in the mapping")
        facts = () if fits == TRUE else (("the grid has at most 2**31 - 1 blocks", fits),)
        (program,) = reader.out
        # Who fills registers follows who reads them: a fill decides last what threads hold.
        children = sorted(reader.children, key=lambda one: one.spec.fills)
        return draft.expansion(
            tuple(children),
            tuple(program),
            facts=facts,
            grid=reader.grid,
            cluster=reader.cluster,
            effects=Effects((SharedBound(self.mapped.max_shared_bytes),)),
            launches=tuple(reader.labels),
        )

    def _known(self, spec: Spec) -> Known:
        """What a first reading finds, for its caller to add to."""
        found = _found_first(self, spec)
        copies: dict[str, Any] = {name: copy.copy(getattr(found, name)) for name in attrs.fields_dict(Known)}
        return Known(**copies | {"flows": {made: set(goes) for made, goes in found.flows.items()}})

    def stored(self, store: Store) -> dict[str, Any]:
        """What is stored of it: which program it is of, and its mapping in full."""
        program = plain_program(self.program)
        if not isinstance(self.mapping, MappingOf):
            return {"program": program, "mapping": plain_mapping(self.mapped, store)}
        arguments = {name: store.plain(one) for name, one in self.mapping.arguments}
        return {"program": program, "mapping": {"of": plain_function(self.mapping.function), "arguments": arguments}}

    @staticmethod
    def of_stored(fields: dict[str, Any], store: Store) -> TaskProgram:
        """The step of what `stored` made; a `StoreError` where its program is not found, or is another by now."""
        if set(fields) != {"program", "mapping"}:
            raise StoreError("a step of tasks has a program and a mapping", got=sorted(fields))
        program, mapping = found_program(fields["program"], store.programs), fields["mapping"]
        if not isinstance(mapping, dict) or set(mapping) != {"of", "arguments"}:
            return TaskProgram(program, read_mapping(mapping, store))
        function, arguments = found_function(mapping["of"]), mapping["arguments"]
        if not isinstance(arguments, dict):
            raise StoreError("the arguments of a mapping are an object", got=arguments)
        return TaskProgram(program, MappingOf(function, {name: store.value(one, Any) for name, one in arguments.items()}))


@by_identities
def _found_first(step: TaskProgram, spec: Spec) -> Known:
    """What a first reading of a program finds for a spec; whoever counts threads asks for it, and whoever expands the step."""
    mapping, known = step.mapped, Known()
    step.program.check(mapping)
    Reader(step.program, mapping, spec, known).read()
    return known


SHOWN = ("group_m", "raster", "persistent", "pipeline", "interleave", "mma_in_flight")
"""Fields of an instance in the header of a kernel, where they say something."""


def lines_of(program: Tasks, mapping: Mapping) -> tuple[str, ...]:
    """The instances of a mapping, a line each: what an instance calls stands inside it."""
    lines: list[str] = []
    told: set[str] = set()

    def tell(one: TaskMapping, depth: int) -> None:
        again = one.instance in told
        lines.append(f"{'  ' * depth}{one.instance}{', as above' if again else _line(program, one)}")
        told.add(one.instance)
        for name in () if again else dict.fromkeys(one.calls):
            tell(mapping[name], depth + 1)

    tell(mapping.root, 0)
    return tuple(lines)


def _line(program: Tasks, one: TaskMapping) -> str:
    """An instance in the header of a kernel: its variant, its processor, where its tensors are, and its values."""
    variant = "" if one.variant == one.instance else f" {one.variant}"
    words = [f"{name}={value}" for name, value in one.tunables]
    words += [f"{name}={value}" for name in SHOWN if (value := getattr(one, name)) not in (0, None)]
    words += [f"cluster={'x'.join(map(str, one.cluster))}"] if math.prod(one.cluster) > 1 else []
    words += [f"warpspecialize by {one.producer_threads}" if one.producer_threads > 32 else "warpspecialize"] if one.warpspecialize else []
    words += [] if one.strategy is None else [f"by {one.strategy}"]
    words += [f"{name} {layout}" for name, layout in one.layouts]
    return ", ".join([f":{variant} on {one.proc}", _places(program[one.variant].tensors, one.mems), *words])


def _places(tensors: tuple[str, ...], mems: tuple[Place, ...]) -> str:
    """Where tensors are: those in one place together."""
    names: dict[str, list[str]] = {}
    for name, place in zip(tensors, mems, strict=True):
        names.setdefault(str(place), []).append(name)
    return ", ".join(f"{' '.join(those)} {place}" for place, those in names.items())


def strategy(program: Tasks, mapping: Mapping | Callable[..., Mapping], **values: Any) -> Strategy:
    """A program as a strategy, for any spec whose operands are the entry point's tensors: `strategy(gemm, mapping)(MatMul(...)...)`.

    Args: a mapping, whose tunables may be those of strategies (`Tunable`), or a function that makes one, with its `values`, tunables among
    them: `strategy(gemm, hopper, U=Tunable("U", 64, 128))`.
    """
    require_program(program)
    if isinstance(mapping, Mapping):
        if values:
            raise ArgumentError("strategy: values are a function's", got=sorted(values), legal="Mapping.with_(...)", at=call_site())
        for one in mapping.instances:
            program[one.variant]  # which refuses others
        return Strategy((TaskProgram(program, mapping, origin=call_site()),))
    if not callable(mapping):
        raise ArgumentError(
            "a program wants a mapping, or a function that makes one", got=mapping, legal="Mapping([TaskMapping(...), ...])", at=call_site()
        )
    made = MappingOf(mapping, values)
    return Strategy((TaskProgram(program, made if tunables_in(made.arguments) else made.made(), origin=call_site()),))
