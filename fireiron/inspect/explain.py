"""Why a leaf matched, or what would make it match: the nearest instructions, and steps that were really tried."""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import attrs

from fireiron.compiler import Program
from fireiron.decomp.done import Done, nearest
from fireiron.decomp.load import Load
from fireiron.decomp.split import Split
from fireiron.decomp.tile import Tile
from fireiron.errors import FireironError
from fireiron.inspect.show import inner_chains, main_child, short
from fireiron.ir import Hole
from fireiron.language.strategy import Strategy
from fireiron.language.substrategy import chain, default_copy
from fireiron.language.tree import Context, Decomposition, Executable, Expansion, Mismatch, Node, held_by
from fireiron.lower.walk import Grown, grow_tree
from fireiron.refine.to import To
from fireiron.spec import Spec
from fireiron.values.expr import constant
from fireiron.values.machine import RF, Block, Kernel, Level, Thread, Warp, as_architecture
from fireiron.values.units import BLOCK, THREAD

Steps = tuple[Decomposition, ...]
Compared = tuple[Executable, tuple[Mismatch, ...]]

MOST_STEPS: Final = 4
"""The longest chain of steps that is tried."""

_MOST_TRIALS: Final = 24
_MOST_SHOWN: Final = 6
_MOST_SECONDS: Final = 10.0


@attrs.frozen
class End(Done):
    """`done` that accepts every spec, so that the tree grows and its leaves can be looked at; `written` if it is in the strategy."""

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

    `match` performs it (None: nothing does), `others` do not and say why, nearest first. `steps` close the gap; `outcome` says
    how far that was checked. `held` is what the instructions before it make lanes hold, see `Context`.
    """

    number: int
    place: str
    spec: Spec
    asked: Executable | None
    written: bool
    at: str | None
    match: Executable | None
    others: tuple[Compared, ...]
    held: Mapping[str, Any]
    steps: Steps | None = None
    outcome: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        reasons = {one.name: [attrs.asdict(mismatch) for mismatch in mismatches] for one, mismatches in self.others}
        match = None if self.match is None else self.match.name
        steps = None if self.steps is None else _line(self)
        return {
            "place": self.place, "spec": str(self.spec), "at": self.at, "done": self.written, "match": match,
            "mismatches": reasons, "steps": steps, "outcome": self.outcome,
        }  # fmt: skip


@attrs.frozen(eq=False)
class Explanation:
    """A strategy without tunables, its tree without its executables, and its leaves."""

    program: Program
    grown: Grown
    leaves: tuple[Leaf, ...]


def explain(strategy: Strategy, architecture: Any = None) -> Explanation:
    """All leaves of a bound strategy, explained; an error where a step before them is not legal."""
    if strategy.others:
        strategy = _chosen(strategy, architecture)
    program, grown = _grown(strategy, architecture)
    leaves = tuple(_leaves(grown.node, program, "main", {}))
    failing = {leaf.number for leaf in leaves if leaf.match is None}
    closed = tuple(leaf if leaf.match is not None else _closed(leaf, program, grown, failing) for leaf in leaves)
    return Explanation(program, grown, closed)


def _chosen(strategy: Strategy, architecture: Any) -> Strategy:
    """The first legal alternative; the first one where none is."""
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


def _probe(number: int, done: Done | None) -> Steps:
    return (
        End(
            None if done is None else done.executable, number=number, written=done is not None, origin=None if done is None else done.origin
        ),
    )


def _grown(strategy: Strategy, architecture: Any) -> tuple[Program, Grown]:
    """The first combination of tunables for which the tree grows."""
    first: FireironError | None = None
    target = as_architecture("sm_90" if architecture is None else architecture)
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
    return grow_tree(program.spec, steps, program.architecture, program.instructions)


def _leaves(node: Node, program: Program, place: str, held: Mapping[str, Any]) -> Iterator[Leaf]:
    if isinstance(node.step, Done):
        end = node.step if isinstance(node.step, End) else End(node.step.executable, number=-1, origin=node.step.origin)
        yield _leaf(end, node.spec, program, place, held)
    main = main_child(node)
    beside = held if main is None else {**held_by(main[1]), **held}
    for pair in node.children:
        name, child = pair
        inside = place if pair is main else f"{short(node.step)} {name}" if node.step is not None else name
        yield from _leaves(child, program, inside, held if pair is main else beside)


def _leaf(end: End, spec: Spec, program: Program, place: str, held: Mapping[str, Any]) -> Leaf:
    found, others = _compared(end.executable, spec, program, held)
    return Leaf(end.number, place, spec, end.executable, end.written, end.origin, found if end.written else None, others, held)


def _compared(
    asked: Executable | None, spec: Spec, program: Program, held: Mapping[str, Any]
) -> tuple[Executable | None, tuple[Compared, ...]]:
    context = Context(program.architecture, program.instructions, BLOCK, THREAD, held=held)
    if asked is not None:
        mismatches = asked.fits(spec, context)
        return (asked, ()) if not mismatches else (None, ((asked, mismatches),))
    found, compared = nearest(spec, context)
    others = sorted((pair for pair in compared if pair[0] is not found), key=lambda pair: (_another_kind(pair), len(pair[1])))
    return found, tuple(others)


def _another_kind(compared: Compared) -> bool:
    return any(mismatch.field == "spec" for mismatch in compared[1])


# ---------------------------------------------------------------------------------------------- closing the gap


def _closed(leaf: Leaf, program: Program, grown: Grown, failing: set[int]) -> Leaf:
    """The leaf with the shortest steps that make it match, tried in the whole strategy."""
    stop = time.monotonic() + _MOST_SECONDS
    fallback: Leaf | None = None
    for steps in itertools.islice(closing(leaf, program, grown), _MOST_TRIALS):
        try:
            outcome = _tried(leaf, steps, program, failing)
        except FireironError as error:
            fallback = fallback or attrs.evolve(leaf, steps=steps, outcome=f"the leaf matches then, but: {error.asked}")
        else:
            return attrs.evolve(leaf, steps=steps, outcome=outcome)
        if time.monotonic() > stop:
            break
    return fallback or attrs.evolve(leaf, outcome=f"no chain of up to {MOST_STEPS} tiles, splits and loads makes an instruction match")


def closing(leaf: Leaf, program: Program, grown: Grown) -> Iterator[Steps]:
    """Chains of steps after which an executable performs the leaf's spec, shortest first."""
    unknown = grown.workers == 1 and leaf.place == "main"
    context = attrs.evolve(grown.context, workers=None if unknown else grown.workers)
    queue: deque[tuple[Spec, Steps]] = deque([(leaf.spec, ())])
    seen = {_state(leaf.spec)}
    while queue:
        spec, steps = queue.popleft()
        if _compared(leaf.asked, spec, program, leaf.held)[0] is not None:
            yield steps
            continue
        if len(steps) == MOST_STEPS:
            continue
        for step in candidates(spec):
            after = _after(step, spec, context)
            if after is not None and _state(after) not in seen:
                if _compared(leaf.asked, after, program, leaf.held)[0] is None:
                    seen.add(_state(after))
                queue.append((after, (*steps, step)))


def candidates(spec: Spec) -> Iterator[Decomposition]:
    """The steps that are tried on a spec."""
    if spec.level == Kernel:
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
        if spec.operands[name].memory != RF:
            yield Load(name, RF, default_copy())


def _deals(spec: Spec, level: Level) -> bool:
    return level.is_below(spec.level)


def _tile(spec: Spec, rows: int, columns: int, level: Level | None = None) -> Tile:
    """A tile, no larger than the spec."""
    sizes = [constant(spec.size(dim)) for dim in spec.tile_dims]
    wanted = tuple(size if total is None else min(size, total) for size, total in zip((rows, columns), sizes, strict=False))
    return Tile(wanted, refinements=() if level is None else (To(level),))


def _after(step: Decomposition, spec: Spec, context: Context) -> Spec | None:
    """The spec that a step leaves, or None where it is not legal."""
    try:
        expansion = step.expand(spec, context)
    except FireironError:
        return None
    return next((child.spec for child in expansion.children if child.steps is None), None)


def _state(spec: Spec) -> tuple[str, ...]:
    return (str(spec), *(view.dtype.name for view in spec.operands.values()))


def _tried(leaf: Leaf, steps: Steps, program: Program, failing: set[int]) -> str:
    """What became of the whole strategy with the steps in the leaf's place; the error where something does not go on."""
    rest = failing - {leaf.number}

    def end(number: int, done: Done | None) -> Steps:
        if number == leaf.number:
            return (*steps, Done(leaf.asked))
        return _probe(number, done) if number in rest else () if done is None else (done,)

    trial = attrs.evolve(program.strategy, steps=with_ends(program.strategy.steps, end))
    if rest:
        _grow(program, trial.steps)
        return "tried: the leaf matches then, and other leaves remain"
    _ = attrs.evolve(program, strategy=trial).ir
    return f"tried: the strategy is complete then, and code for {program.architecture} can be made"


# ---------------------------------------------------------------------------------------------- text


def text(explanation: Explanation) -> str:
    """The text of `fireiron explain`."""
    program = explanation.program
    values = "".join(f", {name}={value}" for name, value in program.chosen.items())
    head = f"{program.spec} on {program.architecture}{values}"
    head += "".join(f"\nrefused before it: {reason}" for reason in program.strategy.refused)
    return "\n\n".join([head, *(_leaf_text(leaf) for leaf in explanation.leaves)])


def _leaf_text(leaf: Leaf) -> str:
    lines = [f"{leaf.place}: {leaf.spec}" + (f"   ({leaf.at})" if leaf.at else "")]
    if leaf.match is not None:
        lines.append(f"  done by {leaf.match.name}: {leaf.match.performs()}")
        similar = [pair for pair in leaf.others if not _another_kind(pair)]
        lines += [f"  not {one.name:<6} {_reasons(mismatches)}" for one, mismatches in similar[:_MOST_SHOWN]]
        lines += [f"  not {len(similar) - _MOST_SHOWN} more"] if len(similar) > _MOST_SHOWN else []
        return "\n".join(lines)
    near = [pair for pair in leaf.others if not _another_kind(pair)] or list(leaf.others)
    if not any(mismatches for _, mismatches in leaf.others) and not leaf.written:
        lines.append("  open: the chain does not end with done()")
    else:
        lines.append(f"  {'nothing performs it' if leaf.written else 'open'}; the nearest:")
    for one, mismatches in near[:3]:
        lines.append(f"    {one.name}: {one.performs()}")
        lines += [f"      {mismatch.field:<8} wants {mismatch.wanted}, got {mismatch.got}" for mismatch in mismatches]
    if leaf.steps is not None:
        lines += ["  closed by", f"    {_line(leaf)}", f"  {leaf.outcome}"]
    else:
        lines.append(f"  {leaf.outcome}")
    return "\n".join(lines)


def _reasons(mismatches: tuple[Mismatch, ...]) -> str:
    return "; ".join(f"{one.field} wants {one.wanted}, got {one.got}" for one in mismatches)


def _line(leaf: Leaf) -> str:
    """The steps as a line to paste."""
    return chain((*(leaf.steps or ()), Done(leaf.asked)), summary=leaf.asked is not None)
