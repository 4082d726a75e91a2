"""Find copies that are slower than the strategy suggests: a pipeline whose copies are not asynchronous, a Hopper copy that is not TMA,
and copies by threads that warpgroup MMAs wait for.

A proposed step has been compiled, and has the effect.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import attrs

from fireiron.check import Finding
from fireiron.compiler import Program
from fireiron.decomp.coalesced_copy import CoalescedCopy
from fireiron.decomp.done import BY_ALL_THREADS, Done
from fireiron.decomp.load import Load
from fireiron.decomp.split import Split
from fireiron.errors import FireironError
from fireiron.executable.cp_async import CAPABILITY, WIDTHS
from fireiron.inspect.other_steps import replaced, with_steps
from fireiron.inspect.show import main_child, short
from fireiron.ir import AT_ONCE, Comment, Exec, Stmt, execs
from fireiron.language.tree import Node
from fireiron.refine.pipeline import Pipeline
from fireiron.refine.warp_specialize import WarpSpecialize
from fireiron.values.machine import Warpgroup
from fireiron.values.units import same_threads

LONGEST: Final = max(WIDTHS)
"""Bytes of the longest asynchronous copy of a thread."""

STAGES: Final = (4, 3, 2)
"""Numbers of stages to try for a pipeline, the preferred first."""


def downgraded(program: Program) -> Iterator[Finding]:
    """Yield a finding for each load whose copies are neither asynchronous nor by TMA although the strategy suggests it.

    It is a warning if another copy of the load is asynchronous, and otherwise a note. Raises: the errors of the program if it has no
    kernel.
    """
    yield from _synchronous(program)
    yield from _without_engine(program)
    yield from _without_pipeline(program)


# ---------------------------------------------------------------------------------------------- pipelines


def _synchronous(program: Program) -> Iterator[Finding]:
    """Yield a finding for each load of a pipeline from global to shared memory that some copy performs at once."""
    if program.architecture.capability < CAPABILITY:
        return
    for load, buffer, _ in _loads(program.tree, pipelined=True):
        copies = _copies(program, buffer)
        late = [stmt for stmt in copies if stmt.mechanism is AT_ONCE]
        if not late or len(late) < len(copies):
            continue
        better = _asynchronous(program, load, buffer)
        fix = "" if better is None else f"; {better.summary()} is asynchronous"
        message = f"{short(load)} is pipelined, but its copies are not asynchronous: {_why(late[0])}{fix}"
        yield Finding(
            "asynchronous", "note" if better is None else "warning", buffer, message, load.origin, None,
            {"load": short(load), "better": None if better is None else better.summary()},
        )  # fmt: skip


def _loads(node: Node, pipelined: bool, split: Split | None = None) -> Iterator[tuple[Load, str, Split]]:
    """Yield the loads from global to shared memory directly under a split that is pipelined, or is not; with their buffers."""
    step = node.step
    if isinstance(step, Split):
        split = step
    main = main_child(node)
    inside = split is not None and _is_pipelined(split) == pipelined
    if split is not None and inside and isinstance(step, Load) and step.memory.in_shared and main is not None:
        source, copied = (spec.operands.get(step.operand) for spec in (node.spec, main[1].spec))
        if source is not None and copied is not None and source.memory.of_grid and copied.tensor is not source.tensor:
            yield step, copied.tensor.name, split
    if main is not None:
        yield from _loads(main[1], pipelined, split)


def _is_pipelined(split: Split) -> bool:
    return any(isinstance(refinement, Pipeline) for refinement in split.refinements)


def _copies(program: Program, buffer: str) -> list[Exec]:
    """Return the statements of the final kernel that copy from global memory to a buffer."""
    kernel = program.lowered
    return [
        stmt
        for stmt, _ in execs(kernel.body)
        if len(stmt.accesses) == 2
        and stmt.accesses[1].write
        and stmt.accesses[1].buffer == buffer
        and kernel.buffer(stmt.accesses[0].buffer).memory.of_grid
    ]


def _why(stmt: Exec) -> str:
    """Return why a copy of a thread is not asynchronous."""
    source, target = (stmt.spec.operands[name] for name in ("src", "dst"))
    if source.dtype != target.dtype:
        return f"cp.async cannot convert {source.dtype} to {target.dtype}"
    if source.tensor.storage().outside:
        return "cp.async writes zeros for elements outside of the array"
    widths = sorted({stmt.width(position) * source.dtype.bytes for position in range(2)})
    legal = f"{', '.join(map(str, WIDTHS[:-1]))} or {WIDTHS[-1]}"
    if len(widths) > 1:
        return f"cp.async copies {legal} adjacent bytes, and they are not adjacent in both {source.tensor.name} and {target.tensor.name}"
    return f"cp.async copies {legal} bytes, and each thread copies {widths[0]} bytes at once"


def _asynchronous(program: Program, load: Load, buffer: str) -> Load | None:
    """Return the load with a wide copy, if that compiles and is asynchronous; else None."""
    width = LONGEST // program.lowered.buffer(buffer).dtype.bytes
    better = attrs.evolve(load, move=(CoalescedCopy(width), Done()))
    changed = with_steps(program, replaced(program.strategy.steps, load, better))
    copies = [] if changed is None else _copies(changed, buffer)
    return better if copies and all(stmt.mechanism is not AT_ONCE for stmt in copies) else None


# ---------------------------------------------------------------------------------------------- copies by TMA


def _without_engine(program: Program) -> Iterator[Finding]:
    """Yield a finding for each whole-tile copy `Move.done()` that threads perform because TMA does not.

    It is a warning if a producer makes it a copy by TMA, or if the strategy requests a producer, and otherwise a note.
    """
    requested = any(isinstance(refinement, WarpSpecialize) for step in program.strategy.steps for refinement in step.refinements)
    better = None
    for node in program.tree.nodes():
        for comment in node.program:
            if isinstance(comment, Comment) and _is_by_all_threads(comment):
                why = comment.text.removeprefix(f"{BY_ALL_THREADS}: ")
                better = _with_producer(program) if better is None else better
                views = node.spec.operands.values()
                buffer = next((view.tensor.name for view in views if view.memory.in_shared), None)
                at = None if node.step is None else node.step.origin
                fix = f"; with {better} it is a copy by TMA" if better else ""
                message = f"{node.spec} is copied by all threads, not by TMA: {why}{fix}"
                yield Finding(
                    "tma", "warning" if better or requested else "note", buffer, message, at, None, {"why": why, "better": better or None}
                )


def _without_pipeline(program: Program) -> Iterator[Finding]:
    """Yield a warning if warpgroup MMAs wait for copies by threads in each iteration, and TMA in a pipeline could do these copies."""
    loads = [(load, buffer, split) for load, buffer, split in _loads(program.tree, pipelined=False) if _copies(program, buffer)]
    multiplies = any(stmt.spec.multiplies and same_threads(stmt.spec.level, Warpgroup) for stmt, _ in execs(program.lowered.body))
    better = _with_stages(program, loads) if multiplies and loads else ""
    if better:
        names = " and ".join(dict.fromkeys(load.operand for load, _, _ in loads))
        message = (
            f"{names} are copied by threads, and the MMAs of an iteration wait for the copies; TMA copies them during MMAs with {better}"
        )
        yield Finding("tma", "warning", loads[0][1], message, loads[0][0].origin, None, {"why": "no pipeline", "better": better})


def _with_stages(program: Program, loads: Sequence[tuple[Load, str, Split]]) -> str:
    """Return the steps of a pipeline whose copies are by TMA, if they compile; else an empty text."""
    split = loads[0][2]
    steps = program.strategy.steps
    for load, _, _ in loads:
        steps = replaced(steps, load, attrs.evolve(load, move=(Done(),), refinements=()))
    for stages in STAGES:
        staged = split.refined(Pipeline(stages)).refined(WarpSpecialize())
        changed = with_steps(program, replaced(steps, split, staged))
        if changed is None:
            continue
        if any(_is_by_all_threads(stmt) for node in changed.tree.nodes() for stmt in node.program):
            return ""
        plain = dict.fromkeys(attrs.evolve(load, move=(Done(),), refinements=()).summary() for load, _, _ in loads)
        return ".".join([staged.summary(), *plain])
    return ""


def _with_producer(program: Program) -> str:
    """Return the pipelined split with a producer, if with it TMA performs all copies of whole tiles; else an empty text."""
    steps = program.strategy.steps
    for number, step in enumerate(steps):
        if isinstance(step, Split) and _is_pipelined(step):
            better = step.refined(WarpSpecialize())
            strategy = attrs.evolve(program.strategy, steps=(*steps[:number], better, *steps[number + 1 :]))
            changed = attrs.evolve(program, strategy=strategy)
            try:
                _ = changed.ir
            except FireironError:
                return ""
            return "" if any(_is_by_all_threads(stmt) for node in changed.tree.nodes() for stmt in node.program) else better.summary()
    return ""


def _is_by_all_threads(stmt: Stmt) -> bool:
    return isinstance(stmt, Comment) and stmt.text.startswith(BY_ALL_THREADS)


__all__ = ["downgraded"]
