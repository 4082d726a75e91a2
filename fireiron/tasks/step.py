"""A program of tasks as one step of a strategy: its loops, and the work of its leaves as specs on views.

The variants run once with loop variables for numbers. A tensor whose memory differs from that of the tensor it is launched on becomes a
copy of it; one with NONE is the tensor itself. Where threads work on the parts of a matrix instruction's operand, all of them together are
one spec of their group, for which an instruction is found as for any other.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any, ClassVar

import attrs

from fireiron.decomp.done import Done
from fireiron.decomp.split import Split
from fireiron.decomp.tile import Tile
from fireiron.errors import DecompositionError, call_site
from fireiron.ir import Comment, For, Hole, Stmt
from fireiron.language.strategy import Strategy
from fireiron.language.substrategy import copies_of, default_copy, steps_at
from fireiron.language.tree import Child, Context, Decomposition, Draft, Expansion
from fireiron.refine.swizzle import by_rows
from fireiron.refine.unroll import Unroll
from fireiron.spec import Spec
from fireiron.specs.init import Init
from fireiron.specs.move import Move
from fireiron.tasks.external import external, order_of, require_privileges
from fireiron.tasks.mapping import NONE, Mapping, Stored, TaskMapping
from fireiron.tasks.partition import Partition, pieces
from fireiron.tasks.program import Runner, Tasks, TaskTensor, Variant, plain
from fireiron.values.expr import ONE, TRUE, Expr, Var, all_of, as_expr, constant, less, mod
from fireiron.values.machine import RF, Block, DType, Kernel, Level, Memory
from fireiron.values.tensor import ColMajor, MatrixLayout, RowMajor, Tensor, View, whole_view
from fireiron.values.units import threads_for

PRODUCER = 32
"""Threads of the warp that loads ahead."""

Path = tuple[tuple[Partition, tuple[Expr, ...]], ...]


@attrs.frozen(eq=False)
class Part:
    """A tensor of the program, or a piece: the view that it is for its group, the tensor it is a piece of, by number, and how.

    `made` is the number of the tensor among those that variants make, 0 for others. `shares` are the partitions by which threads of the
    group have parts of the view, with the shapes that they divide.
    """

    view: View
    root: int
    path: Path = ()
    shares: tuple[tuple[Partition, tuple[int, ...]], ...] = ()
    made: int = 0


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
    sums: set[int] = attrs.field(factory=set)
    threads: int = 1


@attrs.define(eq=False)
class Reader(Runner):
    """Reads a program: with a draft into statements and children, without one only to find out what is `known`."""

    spec: Spec
    known: Known
    draft: Draft | None = None
    level: Level = Kernel
    loops: list[Loop] = attrs.field(factory=list, init=False)
    out: list[list[Stmt]] = attrs.field(factory=lambda: [[]], init=False)
    children: list[Child] = attrs.field(factory=list, init=False)
    active: list[Expr] = attrs.field(factory=list, init=False)
    units: set[Var] = attrs.field(factory=set, init=False)
    grid: Expr | None = attrs.field(default=None, init=False)
    roots: int = attrs.field(default=0, init=False)
    made: int = attrs.field(default=0, init=False)
    piped: set[str] = attrs.field(factory=set, init=False)
    numbers: int = attrs.field(default=0, init=False)

    def read(self) -> None:
        """Read the program from its entry point."""
        variant = self.program[self.mapping.root.variant]
        tensors = []
        for name in variant.tensors:
            view = _operand(self.spec, name, variant)
            tensors.append(TaskTensor(Part(view, self._root()), tuple(plain(size) for size in view.shape), view.dtype))
        self.start(tuple(tensors))

    def _root(self) -> int:
        self.roots += 1
        return self.roots

    # ------------------------------------------------------------------------------------------ tensors

    def piece(self, tensor: TaskTensor, by: Partition, place: tuple[Expr, ...], shape: tuple[Any, ...]) -> Part:
        part: Part = tensor.data
        path = (*part.path, (by, place))
        if not by.raises:
            if part.shares:
                raise DecompositionError(f"{by}: the tensor is one thread's part of an operand already", at=call_site())
            return attrs.evolve(part, view=by.view(part.view, place, frozenset(self.units)), path=path)
        self._require_all(tensor, by, place)
        return attrs.evolve(part, path=path, shares=(*part.shares, (by, tensor.shape)))

    def _require_all(self, tensor: TaskTensor, by: Partition, place: tuple[Expr, ...]) -> None:
        """Refuse shares of which not all are launched, in one loop: an instruction works for all threads of a group."""
        loop = next((one for one in self.loops if one.variables == place), None)
        wanted = pieces(by.counts(tensor.shape))
        if loop is None or not loop.parallel or pieces(loop.extents) != wanted:
            got = "another index" if loop is None else f"{' x '.join(map(str, loop.extents))}"
            raise DecompositionError(f"{by}: all pieces are launched together", got=got, legal=f"prange({wanted})", at=call_site())
        self.known.shared.add(loop.number)

    def tensor(self, shape: tuple[Any, ...], dtype: DType) -> Part:
        self.made += 1
        number, sizes = self.made, tuple(map(as_expr, shape))
        if self.level == Kernel:
            raise DecompositionError(
                f"make_tensor: a tensor of {self.here.one.proc}, where a kernel has no memory of its own",
                legal="on BLOCK and inside",
                at=call_site(),
            )
        if any(constant(size) is None for size in sizes):
            raise DecompositionError("make_tensor: its size is known only at run time", got=shape, legal="sizes of blocks", at=call_site())
        memory = self.known.memories.get(number)
        if memory is None and self.draft is not None:
            raise DecompositionError(
                "make_tensor: no instance below says where the tensor is, which NONE cannot be for all",
                legal="SHARED REGISTER",
                at=call_site(),
            )
        name = self._name(self.known.names.get(number, "t"), memory or RF)
        owner = "accumulates" if number in self.known.sums else "reads"
        return Part(self._made(name, sizes, dtype, memory or RF, ColMajor, owner), self._root(), made=number)

    def _name(self, wanted: str, memory: Memory) -> str:
        name = f"{wanted.lower()}_{memory.label}"
        return name if self.draft is None else self.draft.fresh(name)

    def _made(self, name: str, shape: tuple[Expr, ...], dtype: DType, memory: Memory, layout: MatrixLayout, owner: str) -> View:
        """A new tensor, a copy for each unit of the level that reads the program now."""
        bare = Tensor(name, shape, dtype, memory, layout, owner=owner, free=memory.of_block, origin=call_site())
        if self.draft is None:
            return whole_view(bare)
        copies, copy = copies_of(memory, Init.on(self.level, whole_view(bare)), self.draft)
        return whole_view(attrs.evolve(bare, copies=copies), copy)

    # ------------------------------------------------------------------------------------------ loops

    def loop(self, extents: tuple[Any, ...], parallel: bool) -> Iterator[Any]:
        self.numbers += 1
        sizes = tuple(map(as_expr, extents))
        number, level = self.numbers, self.known.levels.get(self.numbers, self.level)
        if number in self.known.shared or self.draft is None:
            loop = Loop(number, _variables(sizes, number), sizes, parallel, self.roots, len(self.frames))
            yield from self._inside(loop, loop.variables, self.level)
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
        depth = len(self.frames)
        yield indices if len(indices) > 1 else indices[0]
        if self.loops[-1] is not loop or len(self.frames) != depth:
            raise DecompositionError("a loop of a task is not left early", at=call_site())
        self.loops.pop()
        self.level = outer
        if loop.parallel and self.draft is None:
            _require_apart(loop)

    def _repeated(self, loop: Loop) -> Iterator[Any]:
        """A loop in which each unit does all turns."""
        assert self.draft is not None
        names = "ijkl" if loop.parallel or len(loop.extents) > 1 else "k"
        variables = tuple(Var(self.draft.fresh(names[place % 4]), 0, max(size.high - 1, 0)) for place, size in enumerate(loop.extents))
        self.out.append([])
        yield from self._inside(loop, variables, self.level)
        body = tuple(self.out.pop())
        here, inside = self.here.one, self.level not in (Kernel, Block)
        stages, producers = here.pipeline, PRODUCER if here.warpspecialize else 0
        self.piped.add(here.instance)
        for var, size in zip(reversed(variables), reversed(loop.extents), strict=True):
            body = (For(var, size, body, inside and constant(size) is not None, call_site(), stages=stages, producers=producers),)
            stages = producers = 0  # the innermost loop is the pipeline
        self.out[-1] += body

    def _dealt(self, sizes: tuple[Expr, ...], level: Level) -> tuple[tuple[Expr, ...], Expr]:
        """The indices of a unit of a level, and the condition under which it has any."""
        assert self.draft is not None
        draft = self.draft
        unit, active = (self._block(sizes), TRUE) if level == Block else self._unit(sizes, level)
        indices: list[Expr] = []
        for place, size in reversed(list(enumerate(sizes))):
            index = unit if place == 0 else mod(unit, size)
            named = draft.let(f"{level.label}_{'ijkl'[place % 4]}", index, max(size.high - 1, 0))
            indices.insert(0, named)
            self.units |= named.variables()
            unit = unit // size
        return tuple(indices), active

    def _block(self, sizes: tuple[Expr, ...]) -> Expr:
        assert self.draft is not None
        if self.grid is not None:
            raise DecompositionError("launches on BLOCK from two places", legal="one prange of them", at=call_site())
        grid: Expr = ONE
        for size in sizes:
            grid = grid * size
        self.grid, number = grid, constant(grid)
        return Var(self.draft.block.name, 0, self.draft.block.high if number is None else number - 1)

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
            if place.memory is not None:
                self.known.memories.setdefault(each.data.made, place.memory)

    def _entered(self, one: TaskMapping, variant: Variant, tensors: tuple[TaskTensor, ...]) -> None:
        """Run an instance on tensors where it wants them: copied before, if it reads them, and back, if it writes them."""
        passed, back = [], []
        for name, place, each in zip(variant.tensors, one.mems, tensors, strict=True):
            part: Part = each.data
            if place == NONE or place.memory == part.view.memory:
                passed.append(each)
                continue
            assert place.memory is not None
            owner = "accumulates" if name in variant.reads & variant.writes else "reads"
            fresh = self._copied(name, part, place.memory, owner, dict(one.layouts).get(name))
            passed.append(attrs.evolve(each, data=fresh))
            if self.draft is None:
                continue
            if name in variant.reads:
                self._child(fresh.view.tensor.name, Move.on(self.level, part.view, fresh.view), f"{name} to {fresh.view.tensor.name}")
            if name in variant.writes:
                back.append((name, Move.on(self.level, fresh.view, part.view)))
        self.call(one, variant, passed)
        if one.pipeline and self.draft is not None and one.instance not in self.piped:
            raise DecompositionError(
                f"instance {one.instance}: pipeline={one.pipeline}, and {variant.name} has no srange", legal="pipeline=0", at=variant.origin
            )
        for name, move in back:
            self._child(f"{move.src.tensor.name}_out", move, f"{move.src.tensor.name} to {name}")

    def _copied(self, name: str, part: Part, memory: Memory, owner: str, stored: Stored | None) -> Part:
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
        layout = RowMajor if part.view.memory.private else MatrixLayout(part.view.order or "row")
        view = self._made(self._name(name, memory), part.view.shape, part.view.dtype, memory, layout, owner)
        view = view if stored is None else attrs.evolve(view, tensor=_laid(view.tensor, stored))
        return Part(view, self._root(), (), part.shares)

    def external(self, function: Any, tensors: tuple[TaskTensor, ...], options: dict[str, Any]) -> None:
        spec = external(function, self.level, tuple(one.data.view for one in tensors), options)
        by_name = dict(zip(order_of(function, spec), tensors, strict=True))
        mine = self.here.variant
        require_privileges(mine.name, mine.reads, mine.writes, spec, {operand: one.parameter for operand, one in by_name.items()})
        if spec.accumulate == TRUE:
            self.known.sums |= {by_name[name].data.made for name in spec.outputs}
        _require_alike(spec, {operand: one.data.shares for operand, one in by_name.items()})
        self._child(str(function) if isinstance(function, str) else spec.title.lower(), spec, "")

    def _child(self, name: str, spec: Spec, note: str) -> None:
        """A spec as a child, at this place of the program."""
        if self.draft is None:
            return
        taken = {one.name for one in self.children}
        numbered = (name if number == 1 else f"{name}{number}" for number in itertools.count(1))
        called = next(one for one in numbered if one not in taken)
        steps, follows = _steps(spec), spec.level.threads != 1 and any(view.memory.private for view in spec.views)
        alone = steps_at(default_copy(), spec) if follows and not spec.contracts else ()
        self.children.append(Child(called, spec, steps, all_of(self.active), f"{called.lower()}_", alone))
        self.out[-1] += [Comment(f"{note}: {spec}")] if note else []
        self.out[-1].append(Hole(called))


def _laid(tensor: Tensor, stored: Stored) -> Tensor:
    """The tensor, stored as a mapping says."""
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
    """What performs a spec: a thread does it element by element; for a group an instruction, or whoever holds its registers, does."""
    done = Done()
    if spec.level.threads != 1:
        return (done,)
    unroll = (Unroll(),)
    inner = tuple((dim, 1) for dim in spec.dims if dim not in spec.tile_dims)
    split = (Split((), inner, refinements=unroll),) if inner else ()
    return (*split, Tile((1,) * len(spec.tile_dims), refinements=unroll), done)


def _require_apart(loop: Loop) -> None:
    """Refuse launches of a prange of which one may write what another touches."""
    inner = [access for access in loop.accesses if access[0].root <= loop.fresh]
    variables = [var for var, size in zip(loop.variables, loop.extents, strict=True) if constant(size) != 1]
    for (part, write, what, at), (other, also, whose, _) in itertools.combinations_with_replacement(inner, 2):
        if part.root != other.root or not (write or also):
            continue
        for var in variables:
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


def _require_alike(spec: Spec, shares: dict[str, tuple[tuple[Partition, tuple[int, ...]], ...]]) -> None:
    """Refuse work of threads on shares that together are not the work of their group: each has other elements of the result, all of what
    is reduced, and of each operand those that belong to them."""
    chains = {len(one) for one in shares.values()}
    if chains == {0}:
        return
    if len(chains) != 1:
        names = [name for name, one in shares.items() if len(one) < max(chains)]
        raise DecompositionError(f"{spec}: {names[0]} is no part of an instruction's operand, the others are", at=call_site())
    counts = [by.counts(shape)[0] for by, shape in next(iter(shares.values()))]
    for place in itertools.product(*map(range, counts)):
        found: dict[str, list[int]] = {}
        for name, chain in shares.items():
            for dim, where in zip(spec.uses[name], _coordinates(chain, place), strict=True):
                if found.setdefault(dim, where) != where:
                    raise DecompositionError(
                        f"{spec}: threads have parts of {name} that do not conform with the others along {dim}",
                        hint='partition_by_mma(T, instruction, processor, "A") for A, and so on', at=call_site(),
                    )  # fmt: skip
        for dim, where in found.items():
            if dim not in spec.tile_dims and len(where) != constant(spec.size(dim)):
                raise DecompositionError(f"{spec}: a thread has a part of {dim}, over which is summed", at=call_site())


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
    program: Tasks
    mapping: Mapping

    def label(self) -> str:
        return f"then(TaskProgram({', '.join(one.name for one in self.program.variants)}))"

    def title(self) -> tuple[str, ...]:
        return tuple(_line(one) for one in self.mapping.instances)

    def threads(self, spec: Spec, context: Context) -> int | None:
        return self._known(spec).threads

    def expand(self, spec: Spec, context: Context) -> Expansion:
        if spec.level != Kernel:
            raise DecompositionError(f"a program of tasks is a whole kernel, {spec} is {spec.level}'s", legal="Kernel")
        known, draft = self._known(spec), context.draft()
        reader = Reader(self.program, self.mapping, spec, known, draft)
        reader.read()
        fits = less(ONE if reader.grid is None else reader.grid, as_expr(2**31))
        facts = () if fits == TRUE else (("the grid has at most 2**31 - 1 blocks", fits),)
        (program,) = reader.out
        return draft.expansion(tuple(reader.children), tuple(program), facts=facts, grid=reader.grid)

    def _known(self, spec: Spec) -> Known:
        self.program.check(self.mapping)
        known = Known()
        Reader(self.program, self.mapping, spec, known).read()
        return known


def _line(one: TaskMapping) -> str:
    """An instance in the header of a kernel."""
    words = [f"{name}={value}" for name, value in one.tunables]
    words += [f"pipeline={one.pipeline}"] if one.pipeline else []
    words += ["warpspecialize"] if one.warpspecialize else []
    return f"{one.instance}: {one.variant} on {one.proc}, {' '.join(map(str, one.mems))}{''.join(f', {word}' for word in words)}"


def strategy(program: Tasks, mapping: Mapping) -> Strategy:
    """A program as a strategy, for any spec whose operands are the entry point's tensors: `strategy(gemm, mapping)(MatMul(...)...)`."""
    return Strategy((TaskProgram(program, mapping, origin=call_site()),))
