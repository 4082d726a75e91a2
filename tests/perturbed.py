"""Kernel IR of kept strategies with something changed between two passes, and what the passes behind make of it.

Passes meet programs here that no strategy makes: statements left out, said twice, in another order, in loops of their own or out of them, loops
with other plans, other accesses and conditions, wishes for barriers, other targets. Most of these kernels compute nothing that anybody asked for;
some are refused. What is stored of each (`goldens`) are digests of the text that is printed in the end, or of the refusal. Nothing else may
come of them: an error of Python's is a fault of a pass, or of the verifier in front of it.
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
"""Where something is changed: behind the walk, or behind a pass."""

Random = random.Random


@attrs.frozen
class Perturbed:
    """A kernel of a strategy of the corpus, by its name there, behind one of the passes, changed by a seed."""

    seed: int
    stage: str
    base: str

    @staticmethod
    def of(name: str) -> Perturbed:
        """The kernel that is called so."""
        seed, stage, base = name.split("  ")
        return Perturbed(int(seed), stage, base)

    @property
    def name(self) -> str:
        """What it is called."""
        return f"{self.seed}  {self.stage}  {self.base}"

    def kernel(self) -> Kernel:
        """The changed kernel."""
        choose = Random(f"perturbed {self.seed}")
        kernel = kernel_of(self.base, self.stage)
        for _ in range(choose.choice((1, 1, 2, 3))):
            kernel = changed(choose, kernel)
        passed = STAGES[: STAGES.index(self.stage) + 1]  # behind its taker the verifier refuses an ask, whatever it is
        return attrs.evolve(kernel, body=without_asks(kernel.body, *(one for one in kinds() if one.taker in passed)))

    def lowered(self) -> Kernel:
        """The kernel behind all passes, which see what the verifier lets through, as they do of what a pass hands on."""
        kernel = verify(self.kernel())
        for _, function in PASSES[STAGES.index(self.stage) :]:
            made = function(kernel)
            kernel = kernel if made is kernel else verify(made)
        return verify(kernel, final=True)

    def outcome(self) -> Outcome:
        """What comes of it: how the kernel is launched, and its text; or the refusal."""
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
"""Kernels that are kept."""

MOST_SECONDS = 0.1
"""Of processor time that one may take, or its base."""


def drawn() -> list[str]:
    """The names of some, of bases that are quick: half of them of programs with roles, loops that are rotated, chains or clusters.

    Those with the same base stand together, since its kernel is made once.
    """
    bases = corpus.accepted()
    with multiprocessing.Pool() as pool:
        every = [one for one, quick in zip(bases, pool.map(_is_quick, bases, chunksize=8), strict=True) if quick]
        rare = [one for one in every if _is_rare(one)]
        made = pool.imap(functools.partial(_draw, every=every, rare=rare), itertools.count(), chunksize=8)
        some = itertools.islice((one for one in made if one is not None), COUNT)
        return [one.name for one in sorted(some, key=lambda one: (one.base, STAGES.index(one.stage), one.seed))]


def _draw(seed: int, every: Sequence[str], rare: Sequence[str]) -> Perturbed | None:
    """One, if it is quick; of those that the verifier stops some."""
    choose = Random(f"base {seed}")
    one = Perturbed(seed, choose.choice(DRAWN), choose.choice(choose.choice((every, rare))))
    before = time.process_time()
    stopped = one.outcome().kind == "VerificationError" and choose.random() < 0.8
    return None if stopped or time.process_time() - before > MOST_SECONDS else one


DRAWN = ("walk", "walk", "walk", "vectorize", "asynchronous", "specialize", "wgmma_waits", "wait")
"""Stages that are drawn, some more often."""


def _is_quick(base: str) -> bool:
    return _time(lambda: kernel_of(base, STAGES[-1])) <= MOST_SECONDS


def _is_rare(base: str) -> bool:
    final = kernel_of(base, STAGES[-1])
    loops = [one for one in statements(kernel_of(base, "walk").body) if isinstance(one, For)]
    return bool(
        final.rings
        or final.chained
        or final.cluster
        or any(not {Deferred, OrderedMma, ProducerThreads}.isdisjoint(map(type, one.asks)) for one in loops)
    )


def _time(function: Callable[[], object]) -> float:
    before = time.process_time()
    function()
    return time.process_time() - before


@functools.lru_cache(maxsize=256)
def kernel_of(base: str, stage: str) -> Kernel:
    """The kernel of a strategy of the corpus, behind one of the passes."""
    program = _program(base)
    return program.walked if stage == "walk" else program.stages[stage]


@functools.lru_cache(maxsize=8)
def _program(base: str) -> Program:
    one = corpus.by_name()[base]
    return loads(json.dumps(one.strategy)).program(one.target)


# ---------------------------------------------------------------------------------------------- changes

Change = Callable[[Random, Kernel], Kernel]


def changed(choose: Random, kernel: Kernel) -> Kernel:
    """The kernel with one thing changed."""
    (change,) = choose.choices((_statement, _loop, _list, _whole), (4, 3, 5, 1))
    return change(choose, kernel)


def _replaced(kernel: Kernel, old: Stmt, new: Sequence[Stmt]) -> Kernel:
    return attrs.evolve(kernel, body=rewritten(kernel.body, lambda one: tuple(new) if one is old else (one,)))


def _some(choose: Random, kernel: Kernel, *kinds: type[Stmt]) -> Any:
    """A statement of some kinds, None if there is none."""
    every = [one for one in statements(kernel.body) if isinstance(one, kinds)]
    return choose.choice(every) if every else None


def _statement(choose: Random, kernel: Kernel) -> Kernel:
    """An instruction on other elements, under other conditions, or of other kind."""
    one: Exec | None = _some(choose, kernel, Exec)
    if one is None:
        return kernel
    place = choose.randrange(len(one.accesses))
    access = one.accesses[place]

    def with_access(**fields: Any) -> Exec:
        accesses = list(one.accesses)
        accesses[place] = attrs.evolve(access, **fields)
        return attrs.evolve(one, accesses=tuple(accesses))

    dim = choose.randrange(len(access.base)) if access.base else 0
    loops = [loop.var for loop in statements(kernel.body) if isinstance(loop, For)]
    match choose.randrange(12):
        case 0 if access.base:
            added = choose.choice((1, 2, 8, -1, *loops, kernel.thread % 2))
            new = with_access(base=(*access.base[:dim], access.base[dim] + added, *access.base[dim + 1 :]))
        case 1:
            new = attrs.evolve(one, accumulate=_condition(choose, kernel, loops))
        case 2 | 3:
            new = attrs.evolve(one, active=_condition(choose, kernel, loops))
        case 4:
            width = choose.choice((1, 2, 4, 8))
            new = attrs.evolve(one, vector=width, vectors=() if not one.vectors else (width,) * len(one.accesses))
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
            new = attrs.evolve(one, mechanism=choose.choice(_mechanisms(one)))
        case _:
            new = attrs.evolve(one, follows=not one.follows)
    return _replaced(kernel, one, (new,))


def _mechanisms(one: Exec) -> tuple[Mechanism, ...]:
    """What may be asked of a statement: what its instruction does, and of a copy to shared memory that it may be in flight."""
    own = one.instruction.mechanism
    fills = one.spec.moves and [memory.shared_by for memory in one.spec.memories] == ["grid", "block"]
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
            ("interleave", (not loop.asks[Pipelined].interleave and loop.asks[Pipelined].stages > 0,)),  # of no stages nobody asks it
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
    said = {field: choose.choice(values)}
    return _replaced(kernel, loop, (making.asking(loop, **said) if field in making.ASKED else attrs.evolve(loop, **said),))


def _list(choose: Random, kernel: Kernel) -> Kernel:
    """Statements left out, said twice, elsewhere, or with another one beside."""
    one = _some(choose, kernel, Exec, For, Let, Barrier, Commit, Wait, Fence, StepMarker, SyncPoint)
    loop = _some(choose, kernel, For)
    if one is None:
        return kernel
    match choose.randrange(9):
        case 0:
            return _replaced(kernel, one, ())
        case 1:
            return _replaced(kernel, one, (one, one))
        case 2 | 3:
            return _replaced(kernel, one, choose.choice(((one, _beside(choose)), (_beside(choose), one))))
        case 4 if loop is not None and isinstance(one, Exec):
            around = making.asking(attrs.evolve(loop, body=(one,), unroll=choose.random() < 0.5), stages=choose.choice((0, 0, 2)))
            return _replaced(kernel, one, (around,))
        case 5 if loop is not None and loop.body:
            moved = loop.body[choose.choice((0, -1))]
            rest = attrs.evolve(loop, body=tuple(other for other in loop.body if other is not moved))
            return _replaced(kernel, loop, choose.choice(((moved, rest), (rest, moved))))
        case 6:
            other = _some(choose, kernel, Exec, Let, Barrier)
            if other is not None and not isinstance(one, For):
                swapped = {id(one): other, id(other): one}
                return attrs.evolve(kernel, body=rewritten(kernel.body, lambda each: (swapped.get(id(each), each),)))
        case 7 if loop is not None:
            return _replaced(kernel, loop, loop.body if choose.random() < 0.5 else (*loop.body, loop))
        case 8:
            other = _some(choose, kernel, Exec)
            return attrs.evolve(kernel, body=(*kernel.body, other) if choose.random() < 0.5 else (other, *kernel.body)) if other else kernel
    return kernel


def _beside(choose: Random) -> Stmt:
    return choose.choice(
        (
            making.barrier(BLOCK_SCOPE), making.barrier(WARP_SCOPE), making.barrier(WARPGROUP_SCOPE), making.sync_point(True, "something"), making.sync_point(False, "something"),
            making.sync_point(None, "something"), making.commit(), making.commit(WGMMA_GROUPS), making.wait(0), making.wait(1), making.wait(0, mechanism=WGMMA_GROUPS),
            making.wait(0, mechanism=TMA_STORES), making.fence(FenceKind.ASYNC_PROXY), making.fence(FenceKind.WGMMA_REGISTERS), making.comment("a remark"),
        )
    )  # fmt: skip


def _whole(choose: Random, kernel: Kernel) -> Kernel:
    """Something about the whole kernel, or a buffer."""
    match choose.randrange(7):
        case 0:
            target = choose.choice(("sm_70", "sm_75", "sm_80", "sm_90a"))
            return attrs.evolve(kernel, architecture=as_architecture(target))
        case 1:
            return making.evolved(kernel, chained=not making.said(kernel, "chained"))
        case 2:
            return making.evolved(kernel, ready=tuple(one.name for one in kernel.buffers if one.parameter and not one.written)[:1])
        case 3:
            return making.evolved(kernel, unchecked=() if making.said(kernel, "unchecked") else ("said by hand",))
        case 4:
            return making.evolved(kernel, within=choose.choice((0, 1024, 16384)))
        case 5:
            return making.evolved(kernel, resident=choose.choice((0, 1, 2)))
        case _:
            one = choose.choice(kernel.buffers)
            field, values = choose.choice(
                (
                    ("copies", (1, 2, 3)),
                    ("reuse", (True, False)),
                    ("must_reuse", (True, False)),
                    ("free", (True, False)),
                    ("stages", (0, 2, 3)),
                )
            )
            tensor = attrs.evolve(one.tensor, **{field: choose.choice(values)})
            return attrs.evolve(
                kernel, buffers=tuple(attrs.evolve(each, tensor=tensor) if each is one else each for each in kernel.buffers)
            )
