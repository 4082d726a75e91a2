"""Explain why each leaf matched an instruction, or which steps, which were tried, would make it match."""

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
from fireiron.decomp.done import Done, differences, nearest
from fireiron.decomp.epilog import Epilog
from fireiron.decomp.load import Load
from fireiron.decomp.split import Split
from fireiron.decomp.tile import Tile
from fireiron.errors import FireironError
from fireiron.gpu import programs
from fireiron.inspect.aims import accumulators, aims_at_matrices, matrix_chains
from fireiron.inspect.show import main_child, short
from fireiron.ir import Hole
from fireiron.language.launching import front
from fireiron.language.plain import plain
from fireiron.language.strategy import Strategy
from fireiron.language.substrategy import chain, default_copy, inner_chains
from fireiron.language.tree import Context, Decomposition, Executable, Expansion, Mismatch, Node, held_by
from fireiron.lower.walk import Grown, grow_tree
from fireiron.refine.to import To
from fireiron.spec import Spec
from fireiron.values.expr import constant
from fireiron.values.machine import RF, Block, Level, Thread, Warp, as_architecture

Steps = tuple[Decomposition, ...]
Compared = tuple[Executable, tuple[Mismatch, ...]]
Found = tuple[Executable | None, tuple[Compared, ...]]
"""The executable that performs a spec, and the differences of the others."""

MOST_STEPS: Final = 4
"""Length of the longest chain of steps to try."""

_MOST_TRIALS: Final = 24
"""Number of chains to try for one leaf."""

_MOST_COMPILED: Final = 16
"""Number of complete strategies to compile in the search for a legal one."""

_MOST_SHOWN: Final = 6
_MOST_SECONDS: Final = 10.0


@attrs.frozen
class End(Done):
    """A `done` that accepts every spec, so that the tree can be expanded; `written` if the strategy has it."""

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

    `match` performs it (None: nothing does), `others` are not taken and say why, nearest first; those without a reason would perform it
    too. `used` are the instructions that perform it in the final kernel, where there is one: a copy that matched as loads and stores is
    carried out by an asynchronous one under a pipeline. `steps` close the gap, those of all open leaves together: this was tried. They
    stand at the end of its chain, or right behind the step of the main chain that `behind` tells.
    `outcome` says so, or why there are none. `context` knows who holds what of registers in the tree.
    """

    number: int
    place: str
    spec: Spec
    asked: Executable | None
    written: bool
    at: str | None
    match: Executable | None
    others: tuple[Compared, ...]
    context: Context
    steps: Steps | None = None
    behind: str | None = None
    outcome: str = ""
    used: tuple[Executable, ...] = ()

    @property
    def performers(self) -> tuple[Executable, ...]:
        """The executables that perform it in the final kernel, else the one that matched."""
        return self.used or (() if self.match is None else (self.match,))

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        reasons = {one.name: [attrs.asdict(mismatch) for mismatch in mismatches] for one, mismatches in self.others}
        steps = None if self.steps is None else _line(self)
        return {
            "place": self.place, "spec": str(self.spec), "at": self.at, "done": self.written,
            "match": ", ".join(one.name for one in self.performers) or None,
            "mismatches": reasons, "steps": steps, "behind": self.behind, "outcome": self.outcome,
        }  # fmt: skip


@attrs.frozen(eq=False)
class Explanation:
    """A strategy without tunables, its tree without its executables, and its leaves; `refused` is why no code can be made, if so.

    `proof` says when the checks passed, where that was not now: the cache on disk kept the program.
    """

    program: Program
    grown: Grown
    leaves: tuple[Leaf, ...]
    refused: FireironError | None = None
    proof: str = ""


def explain(strategy: Strategy, architecture: Any = None) -> Explanation:
    """Explain all leaves of a bound strategy.

    Raises: the error of a step before the leaves that is not legal.
    """
    whole, refused = _whole(strategy, architecture)
    if whole is not None:
        program, grown = _grown(whole.strategy, architecture)
        program = attrs.evolve(program, chosen=whole.chosen)
        found = (_as_used(leaf, whole.ir) for leaf in _leaves(grown.node, holders(grown), "main"))
        return Explanation(program, grown, tuple(found), proof="" if whole.kept_since is None else whole.proof)
    program, grown = _grown(_chosen(strategy, architecture) if strategy.others else strategy, architecture)
    leaves = tuple(_leaves(grown.node, holders(grown), "main"))
    if any(leaf.match is None for leaf in leaves):
        leaves = _Search(program).closed(leaves)
    return Explanation(program, grown, leaves, refused)


def _whole(strategy: Strategy, architecture: Any) -> tuple[Program | None, FireironError | None]:
    """Return the program with its text, as `emit` makes it, or its error."""
    try:
        program = programs.recalled(strategy.program(architecture))
        _ = program.cuda
    except FireironError as error:
        return None, error
    return program, None


def _as_used(leaf: Leaf, kernel: ir.Kernel) -> Leaf:
    """Return the leaf with the instructions that perform it in the final kernel, identified by their operands."""
    operands = [view.tensor.name for view in leaf.spec.operands.values()]
    same = (one for one, _ in ir.execs(kernel.body) if [access.buffer for access in one.accesses] == operands and one.origin == leaf.at)
    found = tuple(dict.fromkeys(one.instruction for one in same if isinstance(one.instruction, Executable)))
    if found in ((), (leaf.match,)):
        return leaf
    names = {one.name for one in found}
    rest = [pair for pair in leaf.others if pair[0].name not in names]
    return attrs.evolve(leaf, used=found, others=tuple(rest if leaf.match is None or leaf.match in found else [(leaf.match, ()), *rest]))


def _chosen(strategy: Strategy, architecture: Any) -> Strategy:
    """Return the first legal alternative; the first one if none is legal."""
    try:
        return strategy.program(architecture).strategy
    except FireironError:
        return strategy.alternatives[0]


# ---------------------------------------------------------------------------------------------- the leaves


def with_ends(steps: Steps, end: Callable[[int, Done | None], Steps]) -> Steps:
    """The steps with the end of every chain replaced. Chains are numbered in the order of the text, inner ones first.

    The default copy stays as it is: it is always right, and known by its steps.
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


def _grown(strategy: Strategy, architecture: Any) -> tuple[Program, Grown]:
    """Return the first combination of tunables for which the tree can be expanded."""
    first: FireironError | None = None
    target = as_architecture(strategy.target if architecture is None else architecture)
    for values in strategy.assignments():
        bound = strategy.with_(**values) if values else strategy
        assert bound.spec is not None
        program = Program(bound, bound.spec, target, name=bound.spec.title.lower(), chosen=values)
        try:
            return program, _grow(program, with_ends(bound.steps, _probe))
        except FireironError as error:
            first = first or error
    assert first is not None
    raise first


def _grow(program: Program, steps: Steps) -> Grown:
    return grow_tree(program.inner, steps[front(steps) :], program.architecture, program.instructions)


def holders(grown: Grown) -> Context:
    """Return the context of a complete tree, with the owners of its registers."""
    return attrs.evolve(grown.context, held=held_by(grown.node))


def _leaves(node: Node, context: Context, place: str) -> Iterator[Leaf]:
    if isinstance(node.step, Done) and not node.children and not node.spec.allocates:
        end = node.step if isinstance(node.step, End) else End(node.step.executable, number=-1, origin=node.step.origin)
        yield _leaf(end, node.spec, context, place)
    main = main_child(node)
    for pair in node.children:
        name, child = pair
        inside = place if pair is main else f"{short(node.step)} {name}" if node.step is not None else name
        yield from _leaves(child, context, inside)


def _leaf(end: End, spec: Spec, context: Context, place: str) -> Leaf:
    found, others = _compared(end.executable, spec, context)
    return Leaf(end.number, place, spec, end.executable, end.written, end.origin, found if end.written else None, others, context)


def _compared(asked: Executable | None, spec: Spec, context: Context) -> tuple[Executable | None, tuple[Compared, ...]]:
    if asked is not None:
        mismatches = differences(asked, spec, context)
        return (asked, ()) if not mismatches else (None, ((asked, mismatches),))
    found, compared = nearest(spec, context)
    others = sorted((pair for pair in compared if pair[0] is not found), key=lambda pair: (_another_kind(pair), len(pair[1])))
    return found, tuple(others)


def _of_another_level(compared: Compared) -> bool:
    return any(mismatch.field in ("spec", "level") for mismatch in compared[1])


def _another_kind(compared: Compared) -> bool:
    return any(mismatch.field == "spec" for mismatch in compared[1])


# ---------------------------------------------------------------------------------------------- closing the gap


@attrs.frozen
class Closing:
    """Steps that close a leaf: at its end, or after step number `behind` of the main chain."""

    leaf: Leaf
    steps: Steps
    behind: int | None = None

    def applied(self, steps: Steps) -> Steps:
        """Return the strategy's steps with these inserted, and `done` at the end of the leaf's chain."""
        done = End(self.leaf.asked, number=self.leaf.number)
        if self.behind is None:
            return _with_end(steps, self.leaf.number, (*self.steps, done))
        place = self.behind + 1
        return _with_end((*steps[:place], *self.steps, *steps[place:]), self.leaf.number, (done,))


class _Search:
    """The search for steps that close all open leaves of a strategy together, as one may decide what another needs: the copies and
    inits of registers follow the instruction of the main chain. What is found was compiled, to the text."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.aimed = aims_at_matrices(program.strategy.steps)
        """Whether the strategy uses matrix instructions, so that those of single threads are not proposed."""
        self.stop = time.monotonic() + _MOST_SECONDS
        self.compiled = 0
        self.refused: tuple[tuple[Closing, ...], FireironError] | None = None
        """The first steps with which every leaf matches although the strategy is refused, with the error."""
        self.kernel: ir.Kernel | None = None
        """The kernel with the steps of the search."""
        self.matches: Mapping[int, Executable | None] = {}
        """The executables of each leaf in it."""

    def closed(self, leaves: tuple[Leaf, ...]) -> tuple[Leaf, ...]:
        """Return the leaves, with the steps that close open ones, or the reason why none were found."""
        found = self._closings(with_ends(self.program.strategy.steps, _probe), ())
        told = (leaf if leaf.match is not None else self._told(leaf, found) for leaf in leaves)
        return tuple(leaf if self.kernel is None or leaf.match is None else _as_used(leaf, self.kernel) for leaf in told)

    def _told(self, leaf: Leaf, found: tuple[Closing, ...] | None) -> Leaf:
        if found is not None:
            done = f"tried: with it the strategy is complete, and code for {self.program.architecture} can be generated"
            others = sorted(leaf.others, key=lambda pair: pair[0] is not self.matches.get(leaf.number))  # what will perform it first
            return attrs.evolve(self._with(leaf, found), outcome=done, others=tuple(others))
        if self.aimed and leaf.place == "main":
            leaf = attrs.evolve(leaf, others=tuple(sorted(leaf.others, key=_of_another_level)))
        if self.refused is None:
            return attrs.evolve(leaf, outcome=self._nothing(leaf))
        closings, error = self.refused
        tried = self._with(leaf, closings)
        line = _line(tried) + (f" behind {tried.behind}" if tried.behind else "")
        return attrs.evolve(leaf, outcome=f"with {line} an instruction matches, but the strategy is refused: {error.asked}")

    def _nothing(self, leaf: Leaf) -> str:
        """Return the text for a search without a result."""
        if self.aimed and leaf.place == "main":
            return "matrix instructions are meant, and neither loads to registers, an accumulator nor mma_tile() alone lead to one"
        return f"no chain of up to {MOST_STEPS} tiles, splits and loads makes an instruction match"

    def _with(self, leaf: Leaf, closings: tuple[Closing, ...]) -> Leaf:
        """Return the leaf with its own steps of these; none if it also depends on others."""
        own = next((one for one in closings if one.leaf.number == leaf.number), Closing(leaf, ()))
        behind = None if own.behind is None else chain((self.program.strategy.steps[own.behind],), summary=True)
        return attrs.evolve(leaf, steps=own.steps, behind=behind)

    def _closings(self, steps: Steps, before: tuple[Closing, ...]) -> tuple[Closing, ...] | None:
        """Return steps that close all open ends, that of the main chain first; None if no such strategy compiles."""
        try:
            grown = _grow(self.program, steps)
        except FireironError:
            return None
        every = tuple(_leaves(grown.node, holders(grown), "main"))
        leaves = [leaf for leaf in every if leaf.match is None]
        if not leaves:
            self.matches = {leaf.number: leaf.match for leaf in every}
            return before if self._compiles(steps, before) else None
        if {leaf.number for leaf in leaves} & {one.leaf.number for one in before}:
            return None  # in the whole tree the leaf is another one than it was alone
        leaf = next((one for one in leaves if one.place == "main"), leaves[0])
        for one in itertools.islice(self._options(leaf, steps, grown), _MOST_TRIALS):
            found = self._closings(one.applied(steps), (*before, one))
            if found is not None:
                return found
            if time.monotonic() > self.stop or self.compiled >= _MOST_COMPILED:
                break
        return None

    def _options(self, leaf: Leaf, steps: Steps, grown: Grown) -> Iterator[Closing]:
        """Yield loads after the last split of the main chain, if only these are missing; then any chain."""
        splits = [number for number, step in enumerate(steps[:-2]) if isinstance(step, Split)]
        loads = tuple(_loads(leaf.spec, leaf.others))
        if leaf.place == "main" and splits and loads:
            yield Closing(leaf, loads, behind=splits[-1])
        if self.aimed and leaf.place == "main":
            yield from self._to_matrices(leaf, steps)
            return
        for chain_of_leaf in closing(leaf, grown):
            yield Closing(leaf, chain_of_leaf)

    def _to_matrices(self, leaf: Leaf, steps: Steps) -> Iterator[Closing]:
        """Yield steps to a matrix instruction, or its missing accumulator, after the last tile for blocks."""
        blocks = [number for number, step in enumerate(steps) if To(Block) in step.refinements]
        if leaf.match is None and _compared(leaf.asked, leaf.spec, leaf.context)[0] is not None:
            yield Closing(leaf, ())
        for one in matrix_chains(leaf.spec, steps):
            yield Closing(leaf, one)
        if blocks and not any(isinstance(step, Epilog) for step in steps):
            for accumulator in accumulators(leaf.spec):
                yield Closing(leaf, (accumulator,), behind=blocks[-1])

    def _compiles(self, steps: Steps, found: tuple[Closing, ...]) -> bool:
        self.compiled += 1
        trial = attrs.evolve(self.program, strategy=attrs.evolve(self.program.strategy, steps=_plain(steps)))
        try:
            _ = trial.cuda
        except FireironError as error:
            self.refused = self.refused or (found, error)
            return False
        self.kernel = trial.ir
        return True


def closing(leaf: Leaf, grown: Grown) -> Iterator[Steps]:
    """Yield chains of steps after which an executable performs the leaf's spec, shortest first."""
    unknown = grown.workers == 1 and leaf.place == "main"
    context = attrs.evolve(grown.context, workers=None if unknown else grown.workers)
    leaf = _of_its_kind(leaf)
    queue: deque[tuple[Spec, Steps, Found]] = deque([(leaf.spec, (), _compared(leaf.asked, leaf.spec, leaf.context))])
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
                found = _compared(leaf.asked, after, leaf.context)
                if found[0] is None:
                    seen.add(_state(after))
                queue.append((after, (*steps, step), found))


def _of_its_kind(leaf: Leaf) -> Leaf:
    """Return the leaf with only the instructions for its kind and types, which tiles, splits and loads do not change."""
    if leaf.asked is not None or plain(leaf.spec) is not leaf.spec:
        return leaf
    never = {one for one, mismatches in leaf.others if any(found.field.endswith(("spec", " type", "target")) for found in mismatches)}
    kept = tuple(one for one in leaf.context.instructions if one not in never)
    return attrs.evolve(leaf, context=attrs.evolve(leaf.context, instructions=kept))


def _loads(spec: Spec, compared: tuple[Compared, ...]) -> Iterator[Decomposition]:
    """Yield loads of the inputs that an instruction needs in registers, if nothing else is missing."""
    lying = {f"{name} memory": name for name in spec.inputs}
    for _, mismatches in compared:
        if mismatches and all(one.field in lying and one.wanted == str(RF) for one in mismatches):
            yield from (Load(lying[one.field], RF, (Done(),)) for one in mismatches)
            return


def candidates(spec: Spec) -> Iterator[Decomposition]:
    """Yield the steps to try on a spec."""
    if spec.level.is_launch:
        yield from (_tile(spec, size, size, Block) for size in (64, 128, 16, 1))
        return
    if _deals(spec, Thread):
        yield from (_tile(spec, size, size, Thread) for size in (8, 4, 16, 2, 1))
        yield _tile(spec, 2, 1, Thread)
    yield from (_tile(spec, rows, columns) for rows, columns in ((1, 1), (2, 1), (1, 2), (4, 1), (1, 4)))
    if _deals(spec, Warp):
        yield from (_tile(spec, size, size, Warp) for size in (32, 64, 16, 1))
    if any(dim not in spec.tile_dims for dim in spec.dims):
        yield Split((1,))
    for name in spec.inputs:
        if not spec.operands[name].memory.like(RF):
            yield Load(name, RF, default_copy())


def _deals(spec: Spec, level: Level) -> bool:
    return level.is_below(spec.level)


def _tile(spec: Spec, rows: int, columns: int, level: Level | None = None) -> Tile:
    """Return a tile, no larger than the spec."""
    sizes = [constant(spec.size(dim)) for dim in spec.tile_dims]
    wanted = tuple(size if total is None else min(size, total) for size, total in zip((rows, columns), sizes, strict=False))
    return Tile(wanted, refinements=() if level is None else (To(level),))


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


def text(explanation: Explanation) -> str:
    """Return the text of `fireiron explain`."""
    program = explanation.program
    values = "".join(f", {name}={value}" for name, value in program.chosen.items())
    head = f"{program.spec} on {program.architecture}{values}"
    head += "".join(f"\nalternative refused: {reason}" for reason in program.strategy.refused)
    head += f"\nproof: {explanation.proof}" if explanation.proof else ""
    head += "".join(f"\npreceding launch: {one}" for one in program.preceding)
    head += "".join(f"\n{one}" for one in turns(explanation))
    parts = [head, *(_leaf_text(leaf) for leaf in explanation.leaves)]
    if explanation.refused is not None:
        parts.append(_refusal(explanation.leaves, explanation.refused))
    return "\n\n".join(parts)


def turns(explanation: Explanation) -> tuple[TripCounts, ...]:
    """Return the loops of which blocks skip iterations; none without a kernel, or with run-time sizes."""
    if explanation.refused is not None:
        return ()
    kernel = explanation.program.lowered
    return () if kernel.symbols else varying_trip_counts(AccessTrace(static_schedule(kernel)), {})


def _refusal(leaves: tuple[Leaf, ...], error: FireironError) -> str:
    """Return the error, shortened if the leaves already show it."""
    if any(leaf.match is None for leaf in leaves):
        return f"no code can be generated: {error.headline.removesuffix('; the nearest:').removesuffix(':')}"
    return f"every leaf matches, but no code can be generated: {error}"


def _leaf_text(leaf: Leaf) -> str:
    lines = [f"{leaf.place}: {leaf.spec}" + (f"   ({leaf.at})" if leaf.at else "")]
    if leaf.match is not None:
        lines += [f"  performed by {one.name}: {one.performs()}" for one in leaf.performers]
        similar = [pair for pair in leaf.others if not _another_kind(pair)]
        taken = leaf.performers[0].name
        lines += [
            f"  not {one.name:<6} {_reasons(mismatches) or f'performs it too; {taken} is used'}"
            for one, mismatches in similar[:_MOST_SHOWN]
        ]
        lines += [f"  not {len(similar) - _MOST_SHOWN} more"] if len(similar) > _MOST_SHOWN else []
        return "\n".join(lines)
    near = [pair for pair in leaf.others if not _another_kind(pair)] or list(leaf.others)
    if not any(mismatches for _, mismatches in leaf.others) and not leaf.written:
        lines.append("  open: the chain does not end with done()")
    else:
        lines.append(f"  {'no instruction performs it' if leaf.written else 'open'}; the nearest:")
    for one, mismatches in near[:3]:
        lines.append(f"    {one.name}: {one.performs()}")
        lines += [f"      {mismatch.field:<8} requires {mismatch.wanted}, got {mismatch.got}" for mismatch in mismatches]
    if leaf.steps is None:
        return "\n".join([*lines, f"  {leaf.outcome}"])
    if not leaf.steps and leaf.written:
        lines.append("  closed without changes, once the other leaves are")
    else:
        end = "" if leaf.written else ", and done() at the end"
        lines += [f"  closed after {leaf.behind} by{end}" if leaf.behind else "  closed by", f"    {_line(leaf)}"]
    return "\n".join([*lines, f"  {leaf.outcome}"])


def _reasons(mismatches: tuple[Mismatch, ...]) -> str:
    return "; ".join(f"{one.field} requires {one.wanted}, got {one.got}" for one in mismatches)


def _line(leaf: Leaf) -> str:
    """Return the steps as a line to paste."""
    if leaf.behind is not None:
        return chain(leaf.steps or ())
    return chain((*(leaf.steps or ()), Done(leaf.asked)), summary=leaf.asked is not None)
