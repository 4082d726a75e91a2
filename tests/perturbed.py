"""Kernel IR of stored strategies with one change between two passes, and the result of the following passes.

The passes thus get programs that no strategy produces: statements removed, repeated, reordered, or moved into and out of loops; loops with
other plans; other accesses, conditions, required barriers and targets. Most of these kernels compute nothing useful, and some are refused.
The stored result of each (`goldens`) are digests of the printed text, or of the refusal. Any other exception is a defect of a pass, or of
the verifier before it.
"""

from __future__ import annotations

import functools
import itertools
import json
import multiprocessing
import random
import time
from collections.abc import Callable, Sequence
from typing import Any

import attrs
import corpus
import making
from goldens.cases import TEXT, Case, Outcome

from fireiron.compiler import Program
from fireiron.cuda import emit
from fireiron.errors import FireironError
from fireiron.ir import (
    BLOCK_SCOPE,
    WARP_SCOPE,
    WARPGROUP_SCOPE,
    Barrier,
    Commit,
    Exec,
    Fence,
    FenceKind,
    For,
    Kernel,
    Let,
    Mechanism,
    StepMarker,
    Stmt,
    SyncPoint,
    Wait,
    rewritten,
    statements,
    verify,
)
from fireiron.ir.asks import kinds
from fireiron.ir.asks.deferred import Deferred
from fireiron.ir.asks.ordered_mma import OrderedMma
from fireiron.ir.asks.pipelined import Pipelined
from fireiron.ir.asks.producer_threads import ProducerThreads
from fireiron.ir.effects.dependent_launch import DependentLaunch
from fireiron.ir.mechanisms.cp_async import CP_ASYNC_GROUPS
from fireiron.ir.mechanisms.tma_store import TMA_STORES
from fireiron.ir.mechanisms.wgmma import WGMMA_GROUPS
from fireiron.ir.rewrite import without_asks
from fireiron.language.store import loads
from fireiron.lower.passes import PASSES
from fireiron.values.expr import FALSE, TRUE, ZERO, Expr, as_expr, equal, less
from fireiron.values.machine import as_architecture
from fireiron.values.tensor import Mode

STAGES = ("walk", *(name for name, _ in PASSES))
"""The position of a change: after the walk, or after a pass."""

Random = random.Random


@attrs.frozen
class Perturbed:
    """The kernel of a corpus strategy, by its name there, after one of the passes, changed by a seed."""

    seed: int
    stage: str
    base: str

    @staticmethod
    def of(name: str) -> Perturbed:
        """The perturbed kernel of a given name."""
        seed, stage, base = name.split("  ")
        return Perturbed(int(seed), stage, base)

    @property
    def name(self) -> str:
        """Its name."""
        return f"{self.seed}  {self.stage}  {self.base}"

    def kernel(self) -> Kernel:
        """The changed kernel."""
        choose = Random(f"perturbed {self.seed}")
        kernel = kernel_of(self.base, self.stage)
        for _ in range(choose.choice((1, 1, 2, 3))):
            kernel = changed(choose, kernel)
        passed = STAGES[: STAGES.index(self.stage) + 1]  # after its consuming pass the verifier refuses every ask
        return attrs.evolve(kernel, body=without_asks(kernel.body, *(one for one in kinds() if one.taker in passed)))

    def lowered(self) -> Kernel:
        """The kernel after all passes, which get what the verifier accepts, as from each other."""
        kernel = verify(self.kernel())
        for _, function in PASSES[STAGES.index(self.stage) :]:
            next_kernel = function(kernel)
            kernel = kernel if next_kernel is kernel else verify(next_kernel)
        return verify(kernel, final=True)

    def outcome(self) -> Outcome:
        """The result: the launch and the text of the kernel, or the refusal."""
        try:
            kernel = self.lowered()
            text = emit(kernel)
        except FireironError as error:
            return Outcome.refused(error)
        points = [f"{one.require} {one.subject}" for one in kernel.ineffective]
        return Outcome(TEXT, "\n".join((str(kernel.grid), str(kernel.threads), str(kernel.dynamic_shared_bytes), *points, text)))

    def case(self) -> Case:
        """Its digests."""
        return Case.of(self.name, self.outcome())


COUNT = 2000
"""The number of stored kernels."""

MOST_SECONDS = 0.1
"""The limit of processor time for one kernel, or for its base."""


def drawn() -> list[str]:
    """The names of new kernels with quick bases: half of them programs with roles, deferred loops, programmatic launches or clusters.

    Kernels with the same base are adjacent, since the base is lowered once.
    """
    bases = corpus.accepted()
    with multiprocessing.Pool() as pool:
        quick_bases = [one for one, quick in zip(bases, pool.map(_is_quick, bases, chunksize=8), strict=True) if quick]
        rare = [one for one in quick_bases if _is_rare(one)]
        draws = pool.imap(functools.partial(_draw, all_bases=quick_bases, rare=rare), itertools.count(), chunksize=8)
        some = itertools.islice((one for one in draws if one is not None), COUNT)
        return [one.name for one in sorted(some, key=lambda one: (one.base, STAGES.index(one.stage), one.seed))]


def _draw(seed: int, all_bases: Sequence[str], rare: Sequence[str]) -> Perturbed | None:
    """A perturbed kernel, if it is quick; only some of those that the verifier refuses."""
    choose = Random(f"base {seed}")
    perturbed = Perturbed(seed, choose.choice(DRAWN), choose.choice(choose.choice((all_bases, rare))))
    before = time.process_time()
    stopped = perturbed.outcome().kind == "VerificationError" and choose.random() < 0.8
    return None if stopped or time.process_time() - before > MOST_SECONDS else perturbed


DRAWN = ("walk", "walk", "walk", "vectorize", "asynchronous", "specialize", "wgmma_waits", "wait")
"""The drawn stages, some repeated to be more frequent."""


def _is_quick(base: str) -> bool:
    return _time(lambda: kernel_of(base, STAGES[-1])) <= MOST_SECONDS


def _is_rare(base: str) -> bool:
    final = kernel_of(base, STAGES[-1])
    loops = [one for one in statements(kernel_of(base, "walk").body) if isinstance(one, For)]
    return bool(
        final.rings
        or final.effects[DependentLaunch].enabled
        or final.cluster
        or any(not {Deferred, OrderedMma, ProducerThreads}.isdisjoint(map(type, one.asks)) for one in loops)
    )


def _time(function: Callable[[], object]) -> float:
    before = time.process_time()
    function()
    return time.process_time() - before


@functools.lru_cache(maxsize=256)
def kernel_of(base: str, stage: str) -> Kernel:
    """The kernel of a corpus strategy after one of the passes."""
    program = _program(base)
    return program.walked if stage == "walk" else program.stages[stage]


@functools.lru_cache(maxsize=8)
def _program(base: str) -> Program:
    stored = corpus.by_name()[base]
    return loads(json.dumps(stored.strategy)).program(stored.target)


# ---------------------------------------------------------------------------------------------- changes

Change = Callable[[Random, Kernel], Kernel]


def changed(choose: Random, kernel: Kernel) -> Kernel:
    """The kernel with one change."""
    (change,) = choose.choices((_statement, _loop, _list, _whole), (4, 3, 5, 1))
    return change(choose, kernel)


def _replaced(kernel: Kernel, old: Stmt, new: Sequence[Stmt]) -> Kernel:
    return attrs.evolve(kernel, body=rewritten(kernel.body, lambda one: tuple(new) if one is old else (one,)))


def _some(choose: Random, kernel: Kernel, *kinds: type[Stmt]) -> Any:
    """A statement of given classes, None if there is none."""
    candidates = [one for one in statements(kernel.body) if isinstance(one, kinds)]
    return choose.choice(candidates) if candidates else None


def _statement(choose: Random, kernel: Kernel) -> Kernel:
    """An instruction on other elements, under other conditions, or of another class."""
    stmt: Exec | None = _some(choose, kernel, Exec)
    if stmt is None:
        return kernel
    place = choose.randrange(len(stmt.accesses))
    access = stmt.accesses[place]

    def with_access(**fields: Any) -> Exec:
        accesses = list(stmt.accesses)
        accesses[place] = attrs.evolve(access, **fields)
        return attrs.evolve(stmt, accesses=tuple(accesses))

    dim = choose.randrange(len(access.base)) if access.base else 0
    loops = [loop.var for loop in statements(kernel.body) if isinstance(loop, For)]
    match choose.randrange(12):
        case 0 if access.base:
            added = choose.choice((1, 2, 8, -1, *loops, kernel.thread % 2))
            new = with_access(base=(*access.base[:dim], access.base[dim] + added, *access.base[dim + 1 :]))
        case 1:
            new = attrs.evolve(stmt, accumulate=_condition(choose, kernel, loops))
        case 2 | 3:
            new = attrs.evolve(stmt, active=_condition(choose, kernel, loops))
        case 4:
            width = choose.choice((1, 2, 4, 8))
            new = attrs.evolve(stmt, vector=width, vectors=() if not stmt.vectors else (width,) * len(stmt.accesses))
        case 5 if access.base:
            bound = None if access.bounds[dim] is not None else as_expr(choose.choice((1, 5, 16)))
            new = with_access(bounds=(*access.bounds[:dim], bound, *access.bounds[dim + 1 :]))
        case 6:
            new = with_access(buffer=_another(choose, kernel, access.buffer))
        case 7:
            new = with_access(copy=choose.choice((access.copy + 1, ZERO, *loops)))
        case 8:
            new = with_access(write=not access.write)
        case 9 if access.base:
            size = choose.choice((1, 2, 4))
            mode = Mode(as_expr(size), as_expr(choose.choice((1, 1, 2))))
            new = with_access(modes=(*access.modes[:dim], (mode,), *access.modes[dim + 1 :]))
        case 10:
            new = attrs.evolve(stmt, mechanism=choose.choice(_mechanisms(stmt)))
        case _:
            new = attrs.evolve(stmt, inherits_ownership=not stmt.inherits_ownership)
    return _replaced(kernel, stmt, (new,))


def _mechanisms(stmt: Exec) -> tuple[Mechanism, ...]:
    """The mechanisms that a statement may use: that of its instruction, and asynchrony for a copy to shared memory."""
    own = stmt.instruction.mechanism
    fills = stmt.spec.moves and [memory.shared_by for memory in stmt.spec.memories] == ["grid", "block"]
    return (own, CP_ASYNC_GROUPS) if fills else (own,)


def _condition(choose: Random, kernel: Kernel, loops: Sequence[Expr]) -> Expr:
    number = choose.choice((kernel.thread, kernel.block, *loops, *loops))
    return choose.choice((TRUE, FALSE, less(number, choose.choice((1, 2, 32))), less(0, number), equal(number % 2, 0)))


def _another(choose: Random, kernel: Kernel, name: str) -> str:
    """Another buffer in the same memory."""
    own = kernel.buffer(name)
    like = [one.name for one in kernel.buffers if one.memory == own.memory and len(one.tensor.shape) == len(own.tensor.shape)]
    return choose.choice(like)


def _loop(choose: Random, kernel: Kernel) -> Kernel:
    """A loop with another plan."""
    loop: For | None = _some(choose, kernel, For)
    if loop is None:
        return kernel
    field, values = choose.choice(
        (
            ("unroll", (not loop.unroll,)),
            ("extent", (as_expr(0), as_expr(1), as_expr(2), loop.extent + 1, loop.extent - 1, kernel.block % 3, loop.extent * 2)),
            ("stages", (0, 1, 2, 3, 4)),
            ("stages", (2, 3)),
            ("interleave", (not loop.asks[Pipelined].interleave and loop.asks[Pipelined].stages > 0,)),  # zero stages are never asked for
            ("producer_threads", (0, 32, 128)),
            ("mma_in_flight", (None, 0, 1, 2)),
            ("consumer_groups", (1, 2, 3)),
            ("pinned_registers", ((), tuple(one.name for one in kernel.buffers if one.memory.private))),
            ("period", (0, 1, 2, 3)),
            ("first", (0, 1, 2)),
            ("step", (1, 2)),
            ("defer", (("", ""),)),
            ("ordered_mma", (("", ""),)),
        )
    )
    change = {field: choose.choice(values)}
    return _replaced(kernel, loop, (making.with_asks(loop, **change) if field in making.ASKED else attrs.evolve(loop, **change),))


def _list(choose: Random, kernel: Kernel) -> Kernel:
    """A statement removed, repeated, moved, or followed by another one."""
    stmt = _some(choose, kernel, Exec, For, Let, Barrier, Commit, Wait, Fence, StepMarker, SyncPoint)
    loop = _some(choose, kernel, For)
    if stmt is None:
        return kernel
    match choose.randrange(9):
        case 0:
            return _replaced(kernel, stmt, ())
        case 1:
            return _replaced(kernel, stmt, (stmt, stmt))
        case 2 | 3:
            return _replaced(kernel, stmt, choose.choice(((stmt, _next_to(choose)), (_next_to(choose), stmt))))
        case 4 if loop is not None and isinstance(stmt, Exec):
            around = making.with_asks(attrs.evolve(loop, body=(stmt,), unroll=choose.random() < 0.5), stages=choose.choice((0, 0, 2)))
            return _replaced(kernel, stmt, (around,))
        case 5 if loop is not None and loop.body:
            moved = loop.body[choose.choice((0, -1))]
            rest = attrs.evolve(loop, body=tuple(other for other in loop.body if other is not moved))
            return _replaced(kernel, loop, choose.choice(((moved, rest), (rest, moved))))
        case 6:
            other = _some(choose, kernel, Exec, Let, Barrier)
            if other is not None and not isinstance(stmt, For):
                swapped = {id(stmt): other, id(other): stmt}
                return attrs.evolve(kernel, body=rewritten(kernel.body, lambda each: (swapped.get(id(each), each),)))
        case 7 if loop is not None:
            return _replaced(kernel, loop, loop.body if choose.random() < 0.5 else (*loop.body, loop))
        case 8:
            other = _some(choose, kernel, Exec)
            return attrs.evolve(kernel, body=(*kernel.body, other) if choose.random() < 0.5 else (other, *kernel.body)) if other else kernel
    return kernel


def _next_to(choose: Random) -> Stmt:
    return choose.choice(
        (
            making.barrier(BLOCK_SCOPE), making.barrier(WARP_SCOPE), making.barrier(WARPGROUP_SCOPE), making.sync_point(True, "something"), making.sync_point(False, "something"),
            making.sync_point(None, "something"), making.commit(), making.commit(WGMMA_GROUPS), making.wait(0), making.wait(1), making.wait(0, mechanism=WGMMA_GROUPS),
            making.wait(0, mechanism=TMA_STORES), making.fence(FenceKind.ASYNC_PROXY), making.fence(FenceKind.WGMMA_REGISTERS), making.comment("a remark"),
        )
    )  # fmt: skip


def _whole(choose: Random, kernel: Kernel) -> Kernel:
    """A change of the whole kernel, or of a buffer."""
    match choose.randrange(7):
        case 0:
            target = choose.choice(("sm_70", "sm_75", "sm_80", "sm_90a"))
            return attrs.evolve(kernel, architecture=as_architecture(target))
        case 1:
            return making.evolved(kernel, chained=not making.effect_of(kernel, "chained"))
        case 2:
            return making.evolved(kernel, ready=tuple(one.name for one in kernel.buffers if one.parameter and not one.written)[:1])
        case 3:
            return making.evolved(kernel, unchecked=() if making.effect_of(kernel, "unchecked") else ("said by hand",))
        case 4:
            return making.evolved(kernel, within=choose.choice((0, 1024, 16384)))
        case 5:
            return making.evolved(kernel, resident=choose.choice((0, 1, 2)))
        case _:
            buffer = choose.choice(kernel.buffers)
            field, values = choose.choice(
                (
                    ("copies", (1, 2, 3)),
                    ("reuse", (True, False)),
                    ("must_reuse", (True, False)),
                    ("free", (True, False)),
                    ("stages", (0, 2, 3)),
                )
            )
            tensor = attrs.evolve(buffer.tensor, **{field: choose.choice(values)})
            return attrs.evolve(
                kernel, buffers=tuple(attrs.evolve(each, tensor=tensor) if each is buffer else each for each in kernel.buffers)
            )
