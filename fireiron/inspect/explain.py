"""Explain why each leaf matches an instruction, or which steps would make it match. Proposed steps have been compiled."""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import attrs

from fireiron import ir
from fireiron.check.access_trace import AccessTrace
from fireiron.check.persistence import static_schedule
from fireiron.check.variable_trip_count import TripCounts, varying_trip_counts
from fireiron.compiler import Program
from fireiron.decomp.done import BY_ALL_THREADS, Done, differences, nearest
from fireiron.decomp.epilog import Epilog
from fireiron.decomp.load import Load
from fireiron.decomp.split import Split
from fireiron.decomp.tile import Tile
from fireiron.errors import FireironError
from fireiron.frozen import frozen
from fireiron.gpu import programs
from fireiron.inspect.aims import accumulators, aims_at_matrices, changes, matrix_chains, may_aim_at_matrices
from fireiron.inspect.exchanges import exchanges
from fireiron.inspect.final_tree import used_instructions
from fireiron.inspect.show import main_child, short
from fireiron.inspect.vectors import narrow_accesses
from fireiron.ir import Comment, Hole
from fireiron.language.launching import count_launch_steps
from fireiron.language.plain import plain
from fireiron.language.strategy import Strategy
from fireiron.language.substrategy import chain, default_copy, inner_chains
from fireiron.language.tree import Context, Decomposition, Executable, Expansion, Mismatch, Node, owners_in
from fireiron.lower.walk import ExpandedTree, grow_tree
from fireiron.performing.layout_propagation import undistributed
from fireiron.refine.to import To
from fireiron.spec import Spec
from fireiron.stepping.shares import BY_FIRST_UNIT
from fireiron.values.expr import constant
from fireiron.values.machine import DTYPES, RF, Block, DType, Level, Thread, Warp, as_architecture

Steps = tuple[Decomposition, ...]
Compared = tuple[Executable, tuple[Mismatch, ...]]
Comparison = tuple[Executable | None, tuple[Compared, ...]]
"""The executable that performs a spec, and the mismatches of the others."""

MOST_STEPS: Final = 4
"""Length of the longest chain of steps to try."""

_MOST_TRIALS: Final = 24
"""Number of chains to try for one leaf."""

_MOST_COMPILED: Final = 16
"""Number of complete strategies to compile in the search for a legal one."""

_MOST_SHOWN: Final = 3
_MOST_LETTERS: Final = 100
_MOST_SECONDS: Final = 10.0


@frozen
class End(Done):
    """A `done` that accepts every spec, so that the tree can be expanded. `written` is true if the strategy contains this `done`."""

    number: int = 0
    written: bool = True

    def expand(self, spec: Spec, context: Context) -> Expansion:
        try:
            return super().expand(spec, context)
        except FireironError:
            return Expansion((), (Hole("open"),))


@attrs.frozen(eq=False)
class Leaf:
    """A leaf: the end of the `number`-th chain of a strategy.

    `match` performs it (None: no executable does). `others` are the other executables with their mismatches, nearest first; those without
    mismatches perform it too. `used` are the instructions that perform it in the final kernel, if there is one: under a pipeline, a copy
    that matches as loads and stores becomes an asynchronous copy.

    `steps` make an executable match, together with the steps of the other open leaves. They are appended to the leaf's chain; `inserted`
    are inserted into the main chain after the step `after`. `change` is a change of the strategy's own steps that closes it. `outcome`
    reports the result of the search. `context` has the owners of registers. `note` states why all threads perform a copy. A leaf
    that `follows` depends on registers or storage that the instruction of the main chain determines, and that has none. `narrow` are the
    reasons why threads access fewer than 16 bytes at once.
    """

    number: int
    place: str
    spec: Spec
    requested: Executable | None
    written: bool
    at: str | None
    match: Executable | None
    others: tuple[Compared, ...]
    context: Context
    steps: Steps | None = None
    after: str | None = None
    inserted: Steps = ()
    change: str = ""
    outcome: str = ""
    used: tuple[Executable, ...] = ()
    note: str = ""
    follows: bool = False
    narrow: tuple[str, ...] = ()

    @property
    def performers(self) -> tuple[Executable, ...]:
        """Return the executables that perform it in the final kernel, or else the one that matched."""
        return self.used or (() if self.match is None else (self.match,))

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        reasons = {one.name: [attrs.asdict(mismatch) for mismatch in mismatches] for one, mismatches in self.others}
        steps = None if self.steps is None else _line(self)
        inserted = chain(self.inserted) if self.inserted else None
        return {
            "place": self.place, "spec": str(self.spec), "at": self.at, "done": self.written,
            "match": ", ".join(one.name for one in self.performers) or None,
            "mismatches": reasons, "steps": steps, "after": self.after, "inserted": inserted, "change": self.change or None,
            "outcome": self.outcome, "narrow": list(self.narrow),
        }  # fmt: skip


@attrs.frozen(eq=False)
class Explanation:
    """A strategy with values of its tunables, its tree, and its leaves; `refused` is the error if no code can be generated.

    `proof` reports when the checks passed if the program comes from the cache on disk.
    """

    program: Program
    tree: ExpandedTree
    leaves: tuple[Leaf, ...]
    refused: FireironError | None = None
    proof: str = ""


def explain(strategy: Strategy, architecture: Any = None) -> Explanation:
    """Explain all leaves of a bound strategy.

    Raises: the error of an illegal step before the leaves.
    """
    compiled, refused = _compiled(strategy, architecture)
    if compiled is not None:
        program, tree = _expandable(compiled.strategy, architecture)
        program = attrs.evolve(program, chosen=compiled.chosen)
        kernel = _launch_of_steps(compiled).ir
        leaves_in_use = (_with_used_instructions(leaf, kernel) for leaf in _leaves(tree.node, with_owners(tree), "main"))
        return Explanation(program, tree, tuple(leaves_in_use), proof="" if compiled.cached_since is None else compiled.proof)
    program, tree = _expandable(_chosen(strategy, architecture) if strategy.others else strategy, architecture)
    leaves = tuple(_leaves(tree.node, with_owners(tree), "main"))
    if any(leaf.match is None for leaf in leaves):
        leaves = _Search(program).closed(leaves)
    return Explanation(program, tree, leaves, refused)


def _compiled(strategy: Strategy, architecture: Any) -> tuple[Program | None, FireironError | None]:
    """Return the program with its CUDA code, as `emit` does, or its error."""
    try:
        program = programs.recalled(strategy.program(architecture))
        _ = program.cuda
    except FireironError as error:
        return None, error
    return program, None


def _with_used_instructions(leaf: Leaf, kernel: ir.Kernel) -> Leaf:
    """Return the leaf with the instructions that perform it in the final kernel, identified by their operands."""
    operands = tuple(view.tensor.name for view in leaf.spec.operands.values())
    leaf = attrs.evolve(leaf, narrow=narrow_accesses(kernel, operands, leaf.at))
    used = used_instructions(kernel).get((operands, leaf.at), ())
    if used in ((), (leaf.match,)):
        return leaf
    names = {instruction.name for instruction in used}
    rest = [pair for pair in leaf.others if pair[0].name not in names]
    return attrs.evolve(leaf, used=used, others=tuple(rest if leaf.match is None or leaf.match in used else [(leaf.match, ()), *rest]))


def _chosen(strategy: Strategy, architecture: Any) -> Strategy:
    """Return the first legal alternative. If none is legal, return the first alternative."""
    try:
        return strategy.program(architecture).strategy
    except FireironError:
        return strategy.alternatives[0]


# ---------------------------------------------------------------------------------------------- the leaves


def with_ends(steps: Steps, end: Callable[[int, Done | None], Steps]) -> Steps:
    """Replace the end of each chain. Chains are numbered in text order, inner ones first.

    The default copy is not changed: it always matches, and is recognized by its steps.
    """
    numbers = itertools.count()

    def changed(steps: Steps) -> Steps:
        kept: list[Decomposition] = []
        for step in steps:
            if isinstance(step, Done):
                return (*kept, *end(next(numbers), step))
            inner: dict[str, Any] = {name: changed(value) for name, value in inner_chains(step).items() if value != default_copy()}
            kept.append(attrs.evolve(step, **inner) if inner else step)
        return (*kept, *end(next(numbers), None))

    return changed(steps)


def _with_end(steps: Steps, number: int, end: Steps) -> Steps:
    """Return the steps with the end of the given number replaced."""
    return _changed(steps, lambda step: end if isinstance(step, End) and step.number == number else (step,))


def _plain(steps: Steps) -> Steps:
    """Return the steps with a plain `done` at every end."""
    return _changed(steps, lambda step: (Done(step.executable, origin=step.origin),) if isinstance(step, End) else (step,))


def _changed(steps: Steps, change: Callable[[Decomposition], Steps]) -> Steps:
    """Return the steps, including nested ones, each changed by a function."""
    changed: list[Decomposition] = []
    for step in steps:
        inner: dict[str, Any] = {name: _changed(value, change) for name, value in inner_chains(step).items()}
        changed += change(attrs.evolve(step, **inner) if inner else step)
    return tuple(changed)


def _probe(number: int, done: Done | None) -> Steps:
    return (
        End(
            None if done is None else done.executable, number=number, written=done is not None, origin=None if done is None else done.origin
        ),
    )


def _expandable(strategy: Strategy, architecture: Any) -> tuple[Program, ExpandedTree]:
    """Return the first combination of tunables for which the tree can be expanded."""
    first: FireironError | None = None
    target = as_architecture(strategy.target if architecture is None else architecture)
    for values in strategy.assignments():
        bound = strategy.with_(**values) if values else strategy
        assert bound.spec is not None
        program = Program(bound, bound.spec, target, name=bound.spec.title.lower(), chosen=values)
        try:
            return program, _expand(program, with_ends(bound.steps, _probe))
        except FireironError as error:
            first = first or error
    assert first is not None
    raise first


def _expand(program: Program, steps: Steps) -> ExpandedTree:
    return grow_tree(_launch_of_steps(program).inner, steps[count_launch_steps(steps) :], program.architecture, program.instructions)


def _launch_of_steps(program: Program) -> Program:
    """Return the program of the launch that the steps of the strategy divide: the last one, unless the last one has separate steps."""
    steps = program.strategy.steps
    rest = steps[count_launch_steps(steps) :]
    if program.last.strategy.steps == rest:
        return program
    return next((launch.program for launch in program.preceding if launch.program.strategy.steps == rest), program)


def with_owners(tree: ExpandedTree) -> Context:
    """Return the context of a complete tree, with the owners of its registers."""
    return attrs.evolve(tree.context, owners=owners_in(tree.node))


def _leaves(node: Node, context: Context, place: str, note: str = "") -> Iterator[Leaf]:
    note = next((one.text for one in node.program if isinstance(one, Comment) and one.text.startswith(BY_ALL_THREADS)), note)
    if isinstance(node.step, Done) and not node.children and not node.spec.allocates:
        end = node.step if isinstance(node.step, End) else End(node.step.executable, number=-1, origin=node.step.origin)
        yield attrs.evolve(_leaf(end, node.spec, context, place), note=note)
    main, by_one = main_child(node), _by_first_unit(node)
    for pair in node.children:
        name, child = pair
        inside = place if pair is main else f"{short(node.step)} {name}" if node.step is not None else name
        yield from _leaves(child, context, inside, by_one.get(name, note))


def _by_first_unit(node: Node) -> dict[str, str]:
    """Return the comments on children that one of several units executes, by name."""
    pairs = zip(node.program, node.program[1:], strict=False)
    return {
        hole.child: comment.text
        for comment, hole in pairs
        if isinstance(comment, Comment) and isinstance(hole, Hole) and comment.text.startswith(BY_FIRST_UNIT)
    }


def _leaf(end: End, spec: Spec, context: Context, place: str) -> Leaf:
    match, others = _compared(end.executable, spec, context)
    return Leaf(end.number, place, spec, end.executable, end.written, end.origin, match if end.written else None, others, context)


def _compared(requested: Executable | None, spec: Spec, context: Context) -> tuple[Executable | None, tuple[Compared, ...]]:
    if requested is not None:
        mismatches = differences(requested, spec, context)
        return (requested, ()) if not mismatches else (None, ((requested, mismatches),))
    match, compared = nearest(spec, context)
    others = sorted((pair for pair in compared if pair[0] is not match), key=lambda pair: (_differs_in_kind(pair), len(pair[1])))
    return match, tuple(others)


def _differs_in_level(compared: Compared) -> bool:
    return any(mismatch.field in ("spec", "level") for mismatch in compared[1])


def _differs_in_kind(compared: Compared) -> bool:
    return any(mismatch.field == "spec" for mismatch in compared[1])


# ---------------------------------------------------------------------------------------------- the search for steps


@frozen
class Closing:
    """Steps that close an open leaf: `steps` at the end of its chain, and `inserted` after step number `after` of the main chain."""

    leaf: Leaf
    steps: Steps
    after: int | None = None
    inserted: Steps = ()

    def applied(self, steps: Steps) -> Steps:
        """Return the strategy's steps with these inserted, and `done` at the end of the leaf's chain."""
        position = 0 if self.after is None else self.after + 1
        done = End(self.leaf.requested, number=self.leaf.number)
        return _with_end((*steps[:position], *self.inserted, *steps[position:]), self.leaf.number, (*self.steps, done))


class _Search:
    """The search for steps that close all open leaves of a strategy.

    The leaves are closed together because they depend on each other: the instruction of the main chain determines the copies and
    initialization of its registers. Each result has been compiled to CUDA code.
    """

    def __init__(self, program: Program) -> None:
        self.program = program
        self.uses_matrices = aims_at_matrices(program.strategy.steps)
        """Whether the strategy uses matrix instructions. If so, instructions of single threads are not proposed."""
        self.may_use_matrices = self.uses_matrices
        """Whether it may be meant for them, because of its types and levels. If so, they are proposed before those of single threads."""
        self.stop = time.monotonic() + _MOST_SECONDS
        self.compiled = 0
        self.refused: tuple[tuple[Closing, ...], FireironError] | None = None
        """The first steps with which every leaf matches but the strategy is refused, and the error."""
        self.kernel: ir.Kernel | None = None
        """The kernel with the steps of the search."""
        self.matches: Mapping[int, Executable | None] = {}
        """The executable of each leaf in that kernel, by number of the leaf."""

    def closed(self, leaves: tuple[Leaf, ...]) -> tuple[Leaf, ...]:
        """Return the leaves with the steps that close them, or the reason why the search has no result."""
        (main,) = [leaf for leaf in leaves if leaf.place == "main"] or [leaves[0]]
        self.may_use_matrices = self.uses_matrices or may_aim_at_matrices(main.spec, self.program.strategy.steps, main.context)
        changed = self._changed(leaves, _required_results(main)) if main.match is None and self.may_use_matrices else None
        if changed is not None:
            return changed
        closings = self._closings(with_ends(self.program.strategy.steps, _probe), ())
        explained = (leaf if leaf.match is not None else self._explained(leaf, closings) for leaf in leaves)
        return tuple(
            leaf if self.kernel is None or leaf.match is None else _with_used_instructions(leaf, self.kernel) for leaf in explained
        )

    def _changed(self, leaves: tuple[Leaf, ...], results: tuple[DType, ...]) -> tuple[Leaf, ...] | None:
        """Return the leaves if a change of one step closes them all, possibly with an accumulator; else None."""
        program = self.program
        for what, steps, target in changes(program.strategy.steps, program.architecture, results):
            for text, complete in ((what, steps), *self._with_accumulator(what, steps)):
                changed = attrs.evolve(program, architecture=target, strategy=attrs.evolve(program.strategy, steps=_completed(complete)))
                try:
                    _ = changed.cuda
                except FireironError:
                    continue
                done = f"tried: with it the strategy is complete, and code for {target} can be generated"
                return tuple(leaf if leaf.match is not None else attrs.evolve(leaf, change=text, outcome=done) for leaf in leaves)
        return None

    def _with_accumulator(self, what: str, steps: Steps) -> Iterator[tuple[str, Steps]]:
        """Yield changed steps with an accumulator after the last tile for blocks, if there is none."""
        blocks = [number for number, step in enumerate(steps) if To(Block) in step.refinements]
        if blocks and not any(isinstance(step, Epilog) for step in steps):
            for accumulator in reversed(list(accumulators(self.program.inner))):
                after = steps[blocks[-1]].summary()
                inserted = (*steps[: blocks[-1] + 1], accumulator, *steps[blocks[-1] + 1 :])
                yield f"{what}, and .{accumulator.summary()} after .{after}", inserted

    def _explained(self, leaf: Leaf, closings: tuple[Closing, ...] | None) -> Leaf:
        if closings is not None:
            done = f"tried: with it the strategy is complete, and code for {self.program.architecture} can be generated"
            match = self.matches.get(leaf.number)
            others = sorted(leaf.others, key=lambda pair: (pair[0] is not match, self.uses_matrices and _differs_in_level(pair)))
            return attrs.evolve(self._with(leaf, closings), outcome=done, others=tuple(others))
        if self.uses_matrices and leaf.place == "main":
            leaf = attrs.evolve(leaf, others=tuple(sorted(leaf.others, key=_differs_in_level)))
        follows = "" if self.refused is not None or leaf.place == "main" else _what_follows(leaf)
        if follows:
            return attrs.evolve(leaf, follows=True, outcome=f"open until the main chain ends: its instruction {follows}")
        if self.refused is None:
            return attrs.evolve(leaf, outcome=self._no_result(leaf))
        closings, error = self.refused
        tried = self._with(leaf, closings)
        line = f"{chain(tried.inserted)} after {tried.after}" if tried.inserted else _line(tried)
        return attrs.evolve(leaf, outcome=f"with {line} an instruction matches, but the strategy is refused: {error.asked}")

    def _no_result(self, leaf: Leaf) -> str:
        """Return the text for a search without a result."""
        if self.uses_matrices and leaf.place == "main":
            return _no_matrix_instruction(leaf)
        return f"no instruction matches after any chain of up to {MOST_STEPS} tiles, splits and loads"

    def _with(self, leaf: Leaf, closings: tuple[Closing, ...]) -> Leaf:
        """Return the leaf with the steps that belong to it. It has no steps if the steps of other leaves suffice."""
        own = next((candidate for candidate in closings if candidate.leaf.number == leaf.number), Closing(leaf, ()))
        after = None if own.after is None else chain((self.program.strategy.steps[own.after],), summary=True)
        return attrs.evolve(leaf, steps=own.steps, after=after, inserted=own.inserted)

    def _closings(self, steps: Steps, before: tuple[Closing, ...]) -> tuple[Closing, ...] | None:
        """Return steps that close all open leaves, the leaf of the main chain first; None if no such strategy compiles."""
        try:
            tree = _expand(self.program, steps)
        except FireironError:
            return None
        every = tuple(_leaves(tree.node, with_owners(tree), "main"))
        leaves = [leaf for leaf in every if leaf.match is None]
        if not leaves:
            self.matches = {leaf.number: leaf.match for leaf in every}
            return before if self._compiles(steps, before) else None
        if {leaf.number for leaf in leaves} & {closed.leaf.number for closed in before}:
            return None  # a leaf that was closed before is open again
        leaf = next((candidate for candidate in leaves if candidate.place == "main"), leaves[0])
        for option in itertools.islice(self._options(leaf, steps, tree), _MOST_TRIALS):
            closings = self._closings(option.applied(steps), (*before, option))
            if closings is not None:
                return closings
            if time.monotonic() > self.stop or self.compiled >= _MOST_COMPILED:
                break
        return None

    def _options(self, leaf: Leaf, steps: Steps, tree: ExpandedTree) -> Iterator[Closing]:
        """Yield loads after the last split of the main chain, if only loads are missing. Then yield other chains."""
        splits = [number for number, step in enumerate(steps[:-2]) if isinstance(step, Split)]
        loads = tuple(_loads(leaf.spec, leaf.others))
        if leaf.place == "main" and splits and loads:
            yield Closing(leaf, (), splits[-1], loads)
        if self.may_use_matrices and leaf.place == "main":
            yield from self._matrix_options(leaf, steps)
        if self.uses_matrices and leaf.place == "main":
            return
        for chain_of_leaf in closing(leaf, tree):
            yield Closing(leaf, chain_of_leaf)

    def _matrix_options(self, leaf: Leaf, steps: Steps) -> Iterator[Closing]:
        """Yield steps to a matrix instruction, and a missing accumulator after the last tile for blocks."""
        blocks = [number for number, step in enumerate(steps) if To(Block) in step.refinements]
        if leaf.match is None and _compared(leaf.requested, leaf.spec, leaf.context)[0] is not None:
            yield Closing(leaf, ())
        for matrix_steps in matrix_chains(leaf.spec, steps):
            yield Closing(leaf, matrix_steps)
        if blocks and not any(isinstance(step, Epilog) for step in steps):
            for accumulator in reversed(list(accumulators(leaf.spec))):  # a wider type first
                yield Closing(leaf, (), blocks[-1], (accumulator,))
                for matrix_steps in matrix_chains(leaf.spec, steps):
                    yield Closing(leaf, matrix_steps, blocks[-1], (accumulator,))

    def _compiles(self, steps: Steps, closings: tuple[Closing, ...]) -> bool:
        self.compiled += 1
        trial = attrs.evolve(self.program, strategy=attrs.evolve(self.program.strategy, steps=_plain(steps)))
        try:
            _ = trial.cuda
        except FireironError as error:
            self.refused = self.refused or (closings, error)
            return False
        self.kernel = trial.ir
        return True


def _what_follows(leaf: Leaf) -> str:
    """Return what the instruction of the main chain determines for a leaf that no instruction performs without it; else an empty text."""
    if undistributed(leaf.spec, leaf.context):
        return "assigns these registers"
    waits = leaf.spec.copies and leaf.spec.dst.tensor.free
    if waits and any([mismatch.field for mismatch in mismatches] == ["dst storage"] for _, mismatches in leaf.others):
        return f"determines the storage of {leaf.spec.dst.tensor.name}"
    return ""


def _no_matrix_instruction(leaf: Leaf) -> str:
    """Return the text for a search of a matrix instruction without a result: what prevents the nearest one."""
    name, mismatches = leaf.others[0][0].name, leaf.others[0][1]
    fields = " and ".join(dict.fromkeys(mismatch.field for mismatch in mismatches))
    tried = "other tiles of warpgroups, loads to registers, accumulators, mma_tile()"
    return f"the strategy uses matrix instructions; the {fields} of this spec prevents {name}; tried without success: {tried}"


def _required_results(leaf: Leaf) -> tuple[DType, ...]:
    """Return the types of C that instructions require which otherwise differ in nothing but storage."""
    names = (
        mismatch.wanted
        for _, mismatches in leaf.others
        if all(mismatch.field.endswith((" type", "storage", "memory")) for mismatch in mismatches)
        for mismatch in mismatches
        if mismatch.field == "C type"
    )
    return tuple(dtype for name in dict.fromkeys(names) for dtype in DTYPES if dtype.name == name)


def _completed(steps: Steps) -> Steps:
    """Return the steps with `done` at the end."""
    return steps if isinstance(steps[-1], Done) else (*steps, Done())


def closing(leaf: Leaf, tree: ExpandedTree) -> Iterator[Steps]:
    """Yield chains of steps after which an executable performs the leaf's spec, shortest first."""
    unknown = tree.workers == 1 and leaf.place == "main"
    context = attrs.evolve(tree.context, workers=None if unknown else tree.workers)
    leaf = _with_possible_instructions(leaf)
    queue: deque[tuple[Spec, Steps, Comparison]] = deque([(leaf.spec, (), _compared(leaf.requested, leaf.spec, leaf.context))])
    seen = {_state(leaf.spec)}
    while queue:
        spec, steps, (match, compared) = queue.popleft()
        if match is not None:
            yield steps
            continue
        if len(steps) == MOST_STEPS:
            continue
        for step in (*_loads(spec, compared), *candidates(spec)):
            after = _after(step, spec, context)
            if after is not None and _state(after) not in seen:
                comparison = _compared(leaf.requested, after, leaf.context)
                if comparison[0] is None:
                    seen.add(_state(after))
                queue.append((after, (*steps, step), comparison))


def _with_possible_instructions(leaf: Leaf) -> Leaf:
    """Restrict the instructions of a leaf to those for its kind and types. Tiles, splits and loads do not change kind and types."""
    if leaf.requested is not None or plain(leaf.spec) is not leaf.spec:
        return leaf
    excluded = {
        executable
        for executable, mismatches in leaf.others
        if any(mismatch.field.endswith(("spec", " type", "target")) for mismatch in mismatches)
    }
    possible = tuple(instruction for instruction in leaf.context.instructions if instruction not in excluded)
    return attrs.evolve(leaf, context=attrs.evolve(leaf.context, instructions=possible))


def _loads(spec: Spec, compared: tuple[Compared, ...]) -> Iterator[Decomposition]:
    """Yield loads of the inputs that an instruction requires in registers, if it requires nothing else."""
    names_by_field = {f"{name} memory": name for name in spec.inputs}
    for _, mismatches in compared:
        if mismatches and all(mismatch.field in names_by_field and mismatch.wanted == str(RF) for mismatch in mismatches):
            yield from (Load(names_by_field[mismatch.field], RF, (Done(),)) for mismatch in mismatches)
            return


def candidates(spec: Spec) -> Iterator[Decomposition]:
    """Yield the steps to try on a spec."""
    if spec.level.is_launch:
        yield from (_tile(spec, size, size, Block) for size in (64, 128, 16, 1))
        return
    if _can_distribute(spec, Thread):
        yield from (_tile(spec, size, size, Thread) for size in (8, 4, 16, 2, 1))
        yield _tile(spec, 2, 1, Thread)
    yield from (_tile(spec, rows, columns) for rows, columns in ((1, 1), (2, 1), (1, 2), (4, 1), (1, 4)))
    if _can_distribute(spec, Warp):
        yield from (_tile(spec, size, size, Warp) for size in (32, 64, 16, 1))
    if any(dim not in spec.tile_dims for dim in spec.dims):
        yield Split((1,))
    for name in spec.inputs:
        if not spec.operands[name].memory.like(RF):
            yield Load(name, RF, default_copy())


def _can_distribute(spec: Spec, level: Level) -> bool:
    return level.is_below(spec.level)


def _tile(spec: Spec, rows: int, columns: int, level: Level | None = None) -> Tile:
    """Return a tile, no larger than the spec."""
    sizes = [constant(spec.size(dim)) for dim in spec.tile_dims]
    sizes_of_tile = tuple(size if total is None else min(size, total) for size, total in zip((rows, columns), sizes, strict=False))
    return Tile(sizes_of_tile, refinements=() if level is None else (To(level),))


def _after(step: Decomposition, spec: Spec, context: Context) -> Spec | None:
    """Return the spec after a step; None if the step is illegal."""
    try:
        expansion = step.expand(spec, context)
    except FireironError:
        return None
    return next((child.spec for child in expansion.children if child.steps is None), None)


def _state(spec: Spec) -> tuple[str, ...]:
    return (str(spec), *(view.dtype.name for view in spec.operands.values()))


# ---------------------------------------------------------------------------------------------- text


def text(explanation: Explanation, every: bool = False) -> str:
    """Return the text of `fireiron explain`; `every`: with all instructions that a leaf does not use."""
    program = explanation.program
    values = "".join(f", {name}={value}" for name, value in program.chosen.items())
    head = f"{program.spec} on {program.architecture}{values}"
    head += "".join(f"\nalternative refused: {reason}" for reason in program.strategy.refused)
    head += f"\nproof: {explanation.proof}" if explanation.proof else ""
    head += "".join(f"\npreceding launch: {one}" for one in program.preceding)
    head += "".join(f"\n{line}" for line in exchanges(program))
    head += "".join(f"\n{one}" for one in trip_counts(explanation))
    parts = [head, *(_leaf_text(leaf, every) for leaf in sorted(explanation.leaves, key=_open_first))]
    if explanation.refused is not None:
        parts.append(_refusal(explanation.leaves, explanation.refused))
    return "\n\n".join(parts)


def _open_first(leaf: Leaf) -> tuple[bool, bool, bool]:
    """Sort key: open leaves first, among them those that need steps, and that of the main chain before others."""
    needs_steps = bool(leaf.steps or leaf.inserted or leaf.change) or leaf.steps is None
    return leaf.match is not None, not needs_steps, leaf.place != "main" if leaf.match is None else False


def trip_counts(explanation: Explanation) -> tuple[TripCounts, ...]:
    """Return the loops whose trip counts differ between blocks. Without a kernel, or with run-time sizes, return none."""
    if explanation.refused is not None:
        return ()
    kernel = explanation.program.lowered
    return () if kernel.symbols else varying_trip_counts(AccessTrace(static_schedule(kernel)), {})


def _refusal(leaves: tuple[Leaf, ...], error: FireironError) -> str:
    """Return the error, shortened if the leaves already show it."""
    if any(leaf.match is None for leaf in leaves):
        return f"no code can be generated: {error.headline.removesuffix('; the nearest:').removesuffix(':')}"
    return f"every leaf matches, but no code can be generated: {error}"


def _leaf_text(leaf: Leaf, every: bool = False) -> str:
    lines = [f"{leaf.place}: {leaf.spec}" + (f"   ({leaf.at})" if leaf.at else "")]
    if leaf.match is not None:
        lines += [f"  performed by {one.name}: {one.performs()}" for one in leaf.performers]
        lines += [f"  {leaf.note}"] if leaf.note else []
        lines += [f"  {line}" for line in leaf.narrow]
        similar = [pair for pair in leaf.others if not _differs_in_kind(pair)]
        used, most = leaf.performers[0].name, len(similar) if every else _MOST_SHOWN
        lines += [
            f"  not {executable.name:<6} {_reasons(mismatches)}" if mismatches else f"  also {executable.name}, but {used} is used"
            for executable, mismatches in similar[:most]
        ]
        lines += [f"  {len(similar) - most} more (--all)"] if len(similar) > most else []
        return "\n".join(lines)
    if leaf.follows:
        return "\n".join([*lines, f"  {leaf.outcome}"])
    if leaf.steps == () and not leaf.inserted and leaf.written:
        return "\n".join([*lines, "  closed without changes, once the other leaves are", f"  {leaf.outcome}"])
    if leaf.change and leaf.place != "main":
        return "\n".join([*lines, "  closed by the change of the main chain"])
    near = [pair for pair in leaf.others if not _differs_in_kind(pair)] or list(leaf.others)
    if not any(mismatches for _, mismatches in leaf.others) and not leaf.written:
        lines.append("  open: the chain does not end with done()")
    else:
        lines.append(f"  {'no instruction performs it' if leaf.written else 'open'}; the nearest:")
    for executable, mismatches in near[:3]:
        lines.append(f"    {executable.name}: {executable.performs()}")
        lines += [f"      {one.field:<8} requires {', got '.join(_values(one))}" for one in mismatches]
    if leaf.change:
        end = "" if leaf.written else ", and done() at the end"
        return "\n".join([*lines, "  closed by a change", f"    {leaf.change}{end}", f"  {leaf.outcome}"])
    if leaf.steps is None:
        return "\n".join([*lines, f"  {leaf.outcome}"])
    if leaf.inserted:
        end = ", and done() at the end" if not leaf.written and not leaf.steps else ""
        lines += [f"  closed after {leaf.after} by{end}", f"    {chain(leaf.inserted)}"]
        lines += ["  and at the end of the chain by", f"    {_line(leaf)}"] if leaf.steps else []
    else:
        lines += ["  closed by", f"    {_line(leaf)}"]
    return "\n".join([*lines, f"  {leaf.outcome}"])


def _reasons(mismatches: tuple[Mismatch, ...]) -> str:
    return "; ".join(f"{one.field} requires {', got '.join(_values(one))}" for one in mismatches)


def _values(mismatch: Mismatch) -> tuple[str, ...]:
    """Return what is required and what it is. The registers of all lanes, which fill a page, are shortened; `--json` prints them."""
    values = (str(mismatch.wanted), str(mismatch.got))
    if mismatch.field != "registers":
        return values
    return tuple(value if len(value) <= _MOST_LETTERS else f"{value[:_MOST_LETTERS].rpartition(' ')[0]} ..." for value in values)


def _line(leaf: Leaf) -> str:
    """Return the steps as a line to paste."""
    if leaf.inserted and not leaf.steps:
        return chain(leaf.inserted)
    return chain((*(leaf.steps or ()), Done(leaf.requested)), summary=leaf.requested is not None)
