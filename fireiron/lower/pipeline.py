"""`pipeline`: issue the loads of a marked loop several iterations before their use, into one copy of the buffers per stage.

    for k: load(k); S(k)   -->   for j in stages-1: load(j); commit
                                 for k: load(k + stages-1); commit; S(k)

An access uses the copy that belongs to the stage of its iteration. Loads from global to shared memory are marked as possibly asynchronous,
and their groups are committed. `asynchronous` chooses their instruction when their width is known.

If a marked loop inside a pipelined one loads to registers, it is prefetched across the outer iterations. Its last steps load the first data
of the next outer iteration. They are separated from the other steps, so that the wait for that data is as late as possible.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

from fireiron.errors import DecompositionError
from fireiron.frozen import evolve, frozen
from fireiron.ir import (
    AT_ONCE,
    Access,
    Comment,
    Commit,
    Exec,
    For,
    Kernel,
    Let,
    Ring,
    Stmt,
    SyncPoint,
    commits_copies,
    edited,
    execs,
    lets,
    rewritten,
    statements,
    substituted,
)
from fireiron.ir.asks.consumer_groups import ConsumerGroups
from fireiron.ir.asks.deferred import Deferred
from fireiron.ir.asks.dynamic_tiles import DynamicTiles
from fireiron.ir.asks.ordered_mma import OrderedMma
from fireiron.ir.asks.pipelined import Pipelined
from fireiron.ir.asks.producer_threads import ProducerThreads
from fireiron.ir.mechanisms.cp_async import CP_ASYNC_GROUPS
from fireiron.lower.peeled_fills import PeeledFills, is_open
from fireiron.lower.shared_stages import SharedStages
from fireiron.lower.temporary_stages import with_stages
from fireiron.lower.walk import fresh_name, taken_names
from fireiron.values.expr import FALSE, ONE, Expr, Var, all_of, as_expr, constant, less, mod, tables_of
from fireiron.values.sharer import BLOCK, GRID

GROUP_THREADS = 128
"""Threads of a warpgroup."""

MOST_UNROLLED = 64
"""Maximum number of iterations of a loop whose loads go to registers."""


def pipeline(kernel: Kernel) -> Kernel:
    """Pipeline the marked loops of a kernel, outer loops first. Copies before an explicit commit may become asynchronous."""
    if any(isinstance(stmt, Commit) for stmt in statements(kernel.body)):
        kernel = evolve(kernel, body=_committed(kernel.body))
    kernel = with_stages(kernel)
    _require_rings(kernel)
    idle = [stmt.var.name for stmt in statements(kernel.body) if isinstance(stmt, For) and _is_idle(stmt)]
    if idle:
        kernel = evolve(kernel, body=rewritten(kernel.body, _without_idle_producer), title=_with_notes(kernel.title, idle))
    if not any(isinstance(stmt, For) and _stages(stmt) for stmt in statements(kernel.body)):
        return kernel
    pass_ = _Pipeline(kernel)
    body = pass_.body(kernel.body)
    buffers = tuple(
        evolve(buffer, tensor=evolve(buffer.tensor, copies=buffer.tensor.copies * pass_.stages.get(buffer.name, 1)))
        for buffer in kernel.buffers
        if buffer.name not in pass_.shared_stages.of
    )
    rings = sorted(pass_.rings, key=lambda ring: ring.name in pass_.single)
    return evolve(kernel, body=body, buffers=buffers, rings=tuple(rings))


class _Pipeline:
    """Transforms the loops of a kernel. `single` contains the rings that are filled once per execution of their statement list."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.rings: list[Ring] = []
        self.single: set[str] = set()
        self.produced = any(
            isinstance(stmt, For) and ProducerThreads in stmt.asks and _has_engine(stmt) for stmt in statements(kernel.body)
        )
        self.around: list[For] = []
        self.memories = {buffer.name: buffer.memory for buffer in kernel.buffers}
        self.requested_stages = {buffer.name: buffer.tensor.stages for buffer in kernel.buffers if buffer.tensor.stages}
        self.shared_stages = SharedStages(kernel)
        self.joins = {buffer.name: buffer.tensor.joins for buffer in kernel.buffers if buffer.tensor.joins}
        self.stages: dict[str, int] = {}
        self.used_names = taken_names(kernel)
        self.read = _read_from_memory(kernel)
        self.counts: dict[Var, Var] = {}
        self.increments: dict[Var, Expr] = {}
        self.definitions = lets(kernel.body)
        self.workers, self.clustered = kernel.workers, kernel.cluster is not None

    def body(self, body: Sequence[Stmt]) -> tuple[Stmt, ...]:
        """A statement list; a pipelined loop is preceded by its prologue."""
        result: list[Stmt] = []
        peeled = PeeledFills(body) if self.produced else PeeledFills(())
        for statement in self._prefetched(body, peeled) if self.produced else body:
            if isinstance(statement, For) and ProducerThreads in statement.asks:
                result.append(self._ring(statement, peeled))
            elif isinstance(statement, For) and _stages(statement):
                prologue, loop = self._loop(statement)
                inner, early = self._inside(loop)
                result += [*prologue, *early, _interleaved(inner, self._fresh) if Pipelined in inner.asks else inner]
            else:
                result.append(self._around(statement))
        return tuple(result) if peeled.loop is None else peeled.staged(result, self.rings, self._iteration_number())

    def _around(self, statement: Stmt) -> Stmt:
        """A statement with its nested marked loops pipelined."""
        if not isinstance(statement, For):
            return statement.rebuilt(tuple(self.body(child) for child in statement.children))
        self.around.append(statement)
        rings = len(self.rings)
        if DynamicTiles in statement.asks and self.produced:
            request = statement.asks[DynamicTiles]
            ring = Ring(self._fresh(f"{request.tile}_ring"), 2, (), tiles=True)
            statement = statement.with_asks(evolve(request, ring=ring.name))
            self.rings.append(ring)
            self.single.add(ring.name)
        rebuilt = statement.rebuilt((self.body(statement.body),))
        self.around.pop()
        rebuilt = self._counting(rebuilt)
        if ConsumerGroups not in statement.asks:
            return rebuilt
        return self._alternating(rebuilt, self.rings[rings:])

    def _counting(self, loop: For) -> For:
        """A loop that counts iterations, if fill numbers of inner loops depend on that count."""
        if loop.var not in self.counts:
            return loop
        return evolve(loop, prior_iterations=self.counts[loop.var], increment=self.increments.get(loop.var, ONE))

    def _alternating(self, loop: For, rings: Sequence[Ring]) -> For:
        """A loop whose iterations consumer groups alternate: each shared buffer gets a copy per group, and a ring orders the groups.

        If the loop fills no ring, it has only one group.
        """
        if not rings:
            return loop.without(ConsumerGroups)
        groups = loop.asks[ConsumerGroups].groups
        filled = {name for ring in rings for name in ring.buffers}
        names = {name for name in _written_inside(loop) if self.memories[name].of_block} - filled
        for name in names:
            self.stages[name] = self.stages.get(name, 1) * groups
        stage = mod(loop.var, as_expr(groups))

        def edit(statement: Exec) -> Exec:
            return evolve(
                statement,
                accesses=tuple(_at_stage(access, groups, stage) if access.buffer in names else access for access in statement.accesses),
            )

        self.rings.append(Ring(self._fresh(f"{loop.var.name}_order"), groups, ()))
        return evolve(loop, body=tuple(edited(loop.body, edit)))

    # ------------------------------------------------------------------------------------------ rings

    def _iteration_number(self, *loops: For) -> Expr:
        """The number of an iteration, counted through all enclosing loops. Iterations that are skipped because of data do not count.

        The iterations of a loop with a varying trip count are counted at run time, by the loop around it.
        """
        around = (*self.around, *loops)
        chosen = max((number for number, one in enumerate(self.around) if one.extent in self.read and one.extent.high <= 1), default=-1)
        differs = max((number for number in range(chosen + 1, len(around)) if self._differs(around[number], around[:number])), default=-1)
        if differs >= 0:
            return _iteration_number(
                around[differs + 1 :], self._iterations_before(around[differs], around[:differs]) + around[differs].var
            )
        if chosen < 0:
            return _iteration_number(around)
        skipping_loop = around[chosen]
        counter = self._count(
            skipping_loop, ONE, f"{skipping_loop.var}s_done", max(_iteration_number(around[: chosen + 1]).high, 0), skipping_loop
        )
        return _iteration_number(around[chosen + 1 :], counter)

    def _ring(self, loop: For, peeled: PeeledFills) -> For:
        """A loop whose loads a producer issues: the program stays sequential, and each fill uses the next stage."""
        loads, rest = self._parts(loop)
        _require_no_other(loop, rest)
        others = [stmt for stmt, _ in execs(loads) if not stmt.mechanism.counted]
        if others and loop.asks[ProducerThreads].copies:
            self._require_own(loop, others)
            # The copies need no commits, because their arrivals are deferred.
            loads = list(rewritten(tuple(loads), lambda one: () if commits_copies(one) else (one,)))
        elif others:
            raise DecompositionError(
                f"warp_specialize: the producer loads by TMA, but {others[0].instruction.name} performs {others[0].spec}",
                at=loop.origin,
                hint="Move.done() in the load, or leave out warp_specialize()",
            )
        # Fills are numbered through all enclosing loops, so that a ring continues with the next tile.
        number = self._iteration_number(loop)
        names, stages = _filled(loads), _stages(loop)
        depth = {name: self.requested_stages.get(self.shared_stages.of.get(name, name), stages) for name in sorted(names)}
        self._add_copies({name: stages for name, stages in depth.items() if name not in self.shared_stages.of})
        users = _by_users(self._determining_users(rest), [name for load in loads for name in sorted(_written(load) & names)])
        ordered = [buffers for _, buffers in sorted(users.items(), key=lambda pair: pair[0][:1])]  # in the order of first uses
        shared = self._joined([same_depth for buffers in ordered for same_depth in _by_depth(buffers, depth)], depth, loop)
        ring_and_fill: dict[str, tuple[str, Expr]] = {}
        body: Sequence[Stmt] = [*_in_order(loads, shared), *rest]
        for groups in self.shared_stages.rings(shared, depth, loop):
            first, stages = groups[0][0], depth[groups[0][0]]
            name = self._fresh(f"{first if len(shared) > 1 else loop.var.name}_ring")
            self.rings.append(Ring(name, stages, tuple(sorted(groups[0]))))
            alone = len(groups) == 1 and not self._differs(loop, self.around)
            first_fill = peeled.number(loop, [name for names in groups for name in names], number, self._iteration_number(), alone)
            for position, together in enumerate(sorted(groups, key=lambda names: shared.index(list(names)))):  # in the order of the loads
                fill_index = first_fill * len(groups) + position
                ring_and_fill |= dict.fromkeys(together, (name, fill_index))
                body = _staged(body, together, stages, mod(fill_index, as_expr(stages)))

        def edit(stmt: Exec) -> Exec:
            fills = stmt.mechanism.counted or (stmt.spec.moves and stmt.accesses[1].write and bool(others))
            if fills and stmt.accesses[1].buffer in ring_and_fill:  # buffers of an inner loop have their own rings
                ring, fill_index = ring_and_fill[stmt.accesses[1].buffer]
                stmt = evolve(stmt, ring=ring, fill_index=fill_index)
            return self.shared_stages.moved(stmt)

        loop = self._in_order(loop)
        inner = evolve(loop.without(Pipelined), body=tuple(edited(body, edit)), period=math.lcm(*depth.values(), loop.period or 1))
        self.around.append(loop)
        result: list[Stmt] = []
        for stmt in inner.body:
            result += self.body((stmt,)) if isinstance(stmt, For) and _stages(stmt) else (self._around(stmt),)
        self.around.pop()
        return self._counting(evolve(inner, body=tuple(result)))

    def _joined(self, groups: Sequence[list[str]], depth: Mapping[str, int], loop: For) -> list[list[str]]:
        """Merge groups of buffers that use the same mbarriers as `share_barriers` requests, each into that of the other buffer."""
        groups = [list(group) for group in groups]
        joins = {name: self.joins[name] for group in groups for name in group if name in self.joins}
        for name, other in joins.items():
            own, target = (next((group for group in groups if each in group), None) for each in (name, other))
            if own is None or target is None or depth[name] != depth[other] or not self.shared_stages.of.keys().isdisjoint((name, other)):
                raise DecompositionError(
                    f"share_barriers: {name} and {other} are not filled together by the producer of loop {loop.var}",
                    got=f"stages: {name} {depth.get(name, 'none')}, {other} {depth.get(other, 'none')}",
                    legal="loads of one split with warp_specialize, of as many stages, without share_stages",
                    at=loop.origin,
                    hint="leave out share_barriers(...), so that each load has its own mbarriers",
                )
            if own is not target:
                target += own
                groups.remove(own)
        return groups

    def _require_own(self, loop: For, copies: Sequence[Exec]) -> None:
        """Refuse copies into a ring if other loads also fill it, or if the copies of a fill belong to several iterations."""
        inside = {id(stmt) for stmt, _ in execs(loop.body)}
        filled = {access.buffer for one in copies for access in one.accesses if access.write}
        outside = [stmt for stmt, _ in execs(self.kernel.body) if id(stmt) not in inside and not filled.isdisjoint(_written(stmt))]
        if outside or Deferred in loop.asks:
            reason = f"and {outside[0].spec} fills them before or after the loop" if outside else "which has a deferred step"
            raise DecompositionError(
                f"warp_specialize(copies=True): threads fill stages of {', '.join(sorted(filled))} in loop {loop.var}, {reason}",
                at=loop.origin,
                legal="copies in one loop, whose steps all belong to one iteration",
                hint="TMA loads, or warp_specialize() without copies=True",
            )

    def _determining_users(self, body: Sequence[Stmt]) -> list[Stmt]:
        """The statements that determine which buffers are used together.

        A statement that reads the same stages as the list's MMAs, but shares no registers with them, runs concurrently with them. It does
        not extend the use of a stage, so it is left out.
        """
        products = [stmt for stmt in body if any(part.mechanism.in_registers for part, _ in execs((stmt,)))]
        private = {name for mma in products for name in _written(mma) | _read(mma) if self.memories[name].private}
        read = {name for mma in products for name in _read(mma)}
        return [stmt for stmt in body if stmt in products or not (private.isdisjoint(_written(stmt) | _read(stmt)) and _read(stmt) & read)]

    def _in_order(self, loop: For) -> For:
        """Add the ring that orders the MMAs of a loop with `order_mma`. With one warpgroup there is nothing to order."""
        groups = self.workers // GROUP_THREADS
        if OrderedMma not in loop.asks or groups < 2:
            return loop.without(OrderedMma)
        if self.workers % GROUP_THREADS:
            reason = f"{self.workers} threads are not a multiple of a warpgroup"
        elif any(ConsumerGroups in one.asks for one in self.around):
            reason = "consumer groups alternate tiles"
        elif self.clustered:
            reason = "blocks of a cluster wait for each other"
        elif any(ring.is_order for ring in self.rings):
            reason = "another loop has ordered MMAs"
        else:
            self.rings.append(Ring(self._fresh(f"{loop.var.name}_order"), groups, (), each=GROUP_THREADS))
            return loop
        legal = "one loop, in a tile of whole warpgroups"
        raise DecompositionError(f"order_mma in loop {loop.var}: {reason}", at=loop.origin, legal=legal)

    def _differs(self, loop: For, around: Sequence[For]) -> bool:
        """Whether the trip count of a loop varies between iterations of enclosing loops."""
        used, variables = set(loop.extent.variables()), {one.var for one in around}
        while names := used & set(self.definitions):
            used = (used - names).union(*(self.definitions[name].variables() for name in names))
        return not used.isdisjoint(variables)

    def _iterations_before(self, loop: For, around: Sequence[For]) -> Var:
        """The counter of the iterations of a loop in all earlier iterations of the enclosing loop: a persistent block adds those of each
        tile.
        """
        most = max(_iteration_number(around).high + 1, 1) * max(loop.extent.high, 1)
        return self._count(around[-1], loop.extent, f"{loop.var}_count", most, loop)

    def _count(self, around: For, growth: Expr, name: str, most: int, loop: For) -> Var:
        """The counter of a loop: it grows by `growth` per iteration, the trip count of an inner loop, or by one."""
        if around.var not in self.counts:
            self.counts[around.var] = Var(self._fresh(name), 0, most)
            self.increments[around.var] = growth
        if self.increments[around.var] != growth or (growth != ONE and ConsumerGroups in around.asks):
            raise DecompositionError(
                f"warp_specialize: the trip count of loop {loop.var} varies between iterations of loop {around.var}, and "
                + ("consumer groups alternate these" if ConsumerGroups in around.asks else "so does the trip count of another loop in it"),
                got=f"{loop.extent} iterations",
                legal="one varying trip count, and one consumer group",
                at=loop.origin,
                hint="leave out .pingpong()"
                if ConsumerGroups in around.asks
                else "leave out .persistent(), or the .skip_masked_tiles() of the split",
            )
        return self.counts[around.var]

    def _prefetched(self, body: Sequence[Stmt], peeled: PeeledFills) -> Sequence[Stmt]:
        """A list whose TMA loads outside of loops with a producer have rings. Loads that the same statements use share a ring.

        If the list is executed repeatedly, a ring has two stages, so that the next fill is in flight while the current one is used, or the
        requested number.
        """
        uses = [stmt for stmt in body if not is_open(stmt)]
        opened = [stmt.accesses[1].buffer for stmt in body if is_open(stmt)]
        depth = {name: self.requested_stages.get(name, 2 if self.around else 1) for name in opened}
        users = _by_users(uses, [name for name in opened if name not in peeled.buffers]).values()
        for buffers in (same_depth for names in users for same_depth in _by_depth(names, depth)):
            number, stages = self._iteration_number(), depth[buffers[0]]
            ring = Ring(self._fresh(f"{buffers[0]}_ring"), stages, tuple(buffers))
            self.rings.append(ring)
            self.single.add(ring.name)
            self.stages |= {name: self.stages.get(name, 1) * stages for name in buffers}
            staged = _staged(body, buffers, stages, mod(number, as_expr(stages)))
            body = [evolve(one, ring=ring.name, fill_index=number) if is_open(one, buffers) else one for one in staged]
        return body

    # ------------------------------------------------------------------------------------------ one loop

    def _loop(self, loop: For) -> tuple[list[Stmt], For]:
        """The prologue and the steady state of a pipelined loop."""
        loads, rest = self._parts(loop)
        stages, interleave = loop.asks[Pipelined].stages, loop.asks[Pipelined].interleave
        ahead = stages - 1
        names = self._staged(loads, loop)
        shared = any(self.memories[name].of_block for name in names)
        self._check_registers(loop, names)
        if ahead:
            self._check_threads(loop, loads)
        # Stages in registers belong to one thread, and later passes need not know when they repeat.
        period = math.lcm(stages, loop.period or 1) if shared else loop.period
        stage = mod(loop.var, as_expr(stages))
        consumers = _staged(rest, names, stages, stage)
        early = mod(loop.var + ahead, as_expr(stages))
        producers = _staged(_ahead(loads, {loop.var: loop.var + ahead}, loop, ahead), names, stages, early)
        commit: list[Stmt] = [Commit()] if shared else []
        # One barrier at the head of the body is enough: the data of this stage is complete, and the stage that is written next is free.
        preferred = [SyncPoint(None, loop.var.name)] if shared else []
        if all(stmt.active == FALSE for stmt, _ in execs(tuple(producers))):
            # The loop is so short that the prologue loads everything.
            producers, commit_after, interleave = [], [], False
        else:
            commit_after = commit
        unmarked = loop.with_asks(Pipelined(0, interleave))  # the copies are interleaved when the inner loops are transformed
        steady = evolve(unmarked, body=(*preferred, *producers, *commit_after, *consumers), period=period)
        return self._prologue(loads, names, loop, commit), steady

    def _check_registers(self, loop: For, names: Iterable[str]) -> None:
        """Refuse stages of private buffers in a loop that cannot be unrolled, because registers have no run-time index."""
        count, stages = constant(loop.extent), _stages(loop)
        private = sorted(name for name in names if self.memories[name].private)
        if private and stages > 1 and (count is None or count > MOST_UNROLLED):
            raise DecompositionError(
                f"pipeline({stages}): {', '.join(private)} are in registers, which have no run-time index, and loop "
                f"{loop.var} runs {loop.extent} times",
                at=loop.origin,
                legal=f"a known trip count of at most {MOST_UNROLLED}",
                hint="pipeline the split above the loads to SH, and this one for the loads to RF",
            )

    def _check_threads(self, loop: For, loads: Sequence[Stmt]) -> None:
        """Refuse stages of registers that all threads of a group fill together: such registers have one name."""
        for stmt, _ in execs(tuple(loads)):
            private = [name for name in sorted(_written(stmt)) if self.memories[name].private and self.memories[name].fragment is None]
            if stmt.collective and private:
                raise DecompositionError(
                    f"pipeline({_stages(loop)}): {stmt.instruction.name} fills {', '.join(private)} with all threads of a "
                    f"{stmt.spec.level}: these registers have one name, but each stage of a pipeline needs its own",
                    within=stmt.spec,
                    at=loop.origin,
                    hint="pipeline(1), or a load of single threads or lanes",
                )

    def _prologue(self, loads: Sequence[Stmt], names: Iterable[str], loop: For, commit: list[Stmt]) -> list[Stmt]:
        """The loads of the first iterations."""
        stages = _stages(loop)
        ahead = stages - 1
        if ahead == 0:
            return []
        number = Var(self._fresh(f"{loop.var.name}_ahead"), 0, ahead - 1)
        items = _staged(substituted(loads, {loop.var: number}), names, stages, number)
        items = _guarded(items, less(number, loop.extent))
        note = Comment(f"prologue: loads of the first {'iteration' if ahead == 1 else f'{ahead} iterations'} of {loop.var.name}")
        return [note, For(number, as_expr(ahead), (*items, *commit), True, loop.origin)]

    def _parts(self, loop: For) -> tuple[list[Stmt], list[Stmt]]:
        """The loads of a loop, and the statements that use them."""
        written = [_written(stmt) for stmt in loop.body]
        loads: list[Stmt] = []
        rest: list[Stmt] = []
        comments: list[Stmt] = []
        for position, stmt in enumerate(loop.body):
            others = set().union(*(names for other, names in enumerate(written) if other != position))
            if isinstance(stmt, Comment):
                comments.append(stmt)
            elif self._is_load(stmt, others):
                loads += [*comments, stmt]
                comments = []
            # `no_sync` refers to the position after its copy, which pipelining removes.
            elif isinstance(stmt, SyncPoint) and not stmt.require and loads and not rest:
                comments = []
            else:
                rest += [*comments, stmt]
                comments = []
        if not any(not isinstance(load, Comment) for load in loads):
            raise DecompositionError(
                "pipeline: no load directly under this split", at=loop.origin, hint=".split(...).pipeline(3).load(A, SH, ...)"
            )
        return loads, [*rest, *comments]

    def _is_load(self, item: Stmt, others: set[str]) -> bool:
        """Whether a statement is a load that can be issued iterations ahead; `others` are the buffers that other statements write."""
        inside = [statement for statement, _ in execs((item,))]
        if not inside or any(not one.spec.moves for one in inside):
            return False
        # A load that needs a result of the same iteration cannot be issued earlier.
        reads = {access.buffer for one in inside for access in one.accesses if not access.write}
        return all(not self.memories[name].of_grid for name in _written(item)) and reads.isdisjoint(others)

    def _staged(self, loads: Sequence[Stmt], loop: For) -> set[str]:
        """The buffers that the loads fill for other statements; their stages are recorded."""
        names = _filled(loads)
        self._add_copies(dict.fromkeys(names, _stages(loop)))
        return names

    def _add_copies(self, stages: Mapping[str, int]) -> None:
        """Record more copies of buffers."""
        for name, number in stages.items():
            self.stages[name] = self.stages.get(name, 1) * number

    def _fresh(self, wanted: str) -> str:
        return fresh_name(wanted, self.used_names)

    # ------------------------------------------------------------------------------------------ loops inside

    def _inside(self, loop: For) -> tuple[For, list[Stmt]]:
        """Pipeline the marked loops directly inside a loop, across its iterations if possible, else within each iteration.

        Returns the loop, and the statements that come before it.
        """
        body: list[Stmt] = []
        early: list[Stmt] = []
        self.around.append(loop)  # its iterations count in the fill numbers of inner rings
        for statement in loop.body:
            if not isinstance(statement, For):
                body.append(self._around(statement))
            elif _stages(statement) > 1 and loop.period > 1 and self._fills_registers(statement) and self._may_begin(loop, statement):
                first, steps, last = self._across(loop, statement)
                early += first
                # The preferred barrier position moves from the head of the body to the steps that load the next data: all uses of the
                # current stage precede them.
                body = [stmt for stmt in body if not (isinstance(stmt, SyncPoint) and stmt.require is None)]
                body += [*steps, SyncPoint(None, loop.var.name), *last]
            elif _stages(statement):
                body += self.body((statement,))
            else:
                body.append(self._around(statement))
        self.around.pop()
        return self._counting(evolve(loop, body=tuple(body))), early

    def _fills_registers(self, loop: For) -> bool:
        """Whether all loads of a loop go to registers; loads to shared memory have their own groups and barriers."""
        return all(self.memories[name].private for one in self._parts(loop)[0] for name in _written(one))

    def _may_begin(self, outer: For, loop: For) -> bool:
        """Whether an inner loop may start in the previous iteration of the outer one.

        It must not load results of the outer loop, because these are unknown until that iteration ends. It must not contain TMA loads,
        because their fills belong to one list, or pipelined loops.
        """
        if any(isinstance(stmt, For) and _stages(stmt) for stmt in statements(loop.body)):
            return False
        read = {name for one in self._parts(loop)[0] for name in _read(one)}
        return read.isdisjoint(_written_inside(outer) - set(self.stages)) and not _has_engine(loop)

    def _across(self, outer: For, loop: For) -> tuple[list[Stmt], list[Stmt], list[Stmt]]:
        """Loads to registers, pipelined over the iterations of both loops together.

        Returns the statements before the loops; the steps that need only data of this iteration; and the last steps, which load data of the
        next iteration. The latest position to wait for that data is between the latter two.
        """
        ahead, count = _stages(loop) - 1, _multiple_of_stages(loop)
        loads, rest = self._parts(loop)
        iterations = _Iterations(loop, tuple(loads), tuple(rest), self._staged(loads, loop))
        body = (*iterations.loading({loop.var: loop.var + ahead}, loop.var + ahead), *iterations.using({}, loop.var))
        steps = _narrowed(evolve(loop.without(Pipelined), body=body, extent=as_expr(count - ahead)))
        first: list[Stmt] = []
        for step in range(ahead):
            first += iterations.loading({loop.var: as_expr(step), outer.var: as_expr(0)}, as_expr(step))
        last: list[Stmt] = []
        for step in range(count - ahead, count):
            # These loads would go past the end of the loop: they are the first ones of the next outer iteration, if there is one.
            wrapped = {loop.var: as_expr(step + ahead - count), outer.var: outer.var + 1}
            last += _guarded(iterations.loading(wrapped, as_expr(step + ahead)), less(outer.var + 1, outer.extent))
            last += iterations.using({loop.var: as_expr(step)}, as_expr(step))
        return first, [steps], last


@frozen
class _Iterations:
    """The loads of a loop to registers and the statements that use them, for any iteration, with the copy of the registers for that
    iteration.
    """

    loop: For
    loads: tuple[Stmt, ...]
    rest: tuple[Stmt, ...]
    names: Iterable[str]

    def loading(self, values: Mapping[Var, Expr], iteration: Expr) -> list[Stmt]:
        """The loads, with variables replaced, into the registers of an iteration."""
        return self._at(self.loads, values, iteration)

    def using(self, values: Mapping[Var, Expr], iteration: Expr) -> list[Stmt]:
        """The other statements, with variables replaced, reading the registers of an iteration."""
        return self._at(self.rest, values, iteration)

    def _at(self, items: tuple[Stmt, ...], values: Mapping[Var, Expr], iteration: Expr) -> list[Stmt]:
        stages = _stages(self.loop)
        return _staged(substituted(items, values), self.names, stages, mod(iteration, as_expr(stages)))


def _multiple_of_stages(loop: For) -> int:
    """The extent of a loop. It must be a multiple of the number of stages, so that register numbers are the same in each outer iteration.

    Raises: DecompositionError otherwise.
    """
    count, stages = constant(loop.extent), _stages(loop)
    if count is None or count % stages:
        raise DecompositionError(
            f"pipeline({stages}): loop {loop.var} has {loop.extent} iterations, and registers have no run-time index",
            at=loop.origin,
            legal=f"a trip count that is a multiple of {stages}",
            hint="another size of this split or of the one around it",
        )
    return count


def _narrowed(loop: For) -> For:
    """The loop with its variable's range reduced to its iterations."""
    var = Var(loop.var.name, 0, loop.extent.high - 1)
    return evolve(loop, var=var, body=substituted(loop.body, {loop.var: var}))


def _interleaved(loop: For, fresh: Callable[[str], str]) -> For:
    """The loop with its copies moved into the inner loop, a part in each iteration, and their commit after the inner loop."""
    commit = next((position for position, stmt in enumerate(loop.body) if isinstance(stmt, Commit)), None)
    steps = next((position for position, stmt in enumerate(loop.body) if isinstance(stmt, For) and not _is_copy(stmt)), None)
    if commit is None or steps is None or commit > steps:
        raise DecompositionError(
            "pipeline(interleave=True): no inner loop to distribute the copies over",
            at=loop.origin,
            hint=".split(...) below the loads",
        )
    before = tuple(stmt for stmt in loop.body[:commit] if isinstance(stmt, SyncPoint))
    copies = tuple(stmt for stmt in loop.body[:commit] if not isinstance(stmt, SyncPoint))
    between, inner, rest = loop.body[commit + 1 : steps], loop.body[steps], loop.body[steps + 1 :]
    assert isinstance(inner, For)
    shares = tuple(_share(one, inner, fresh) for one in copies)
    inner = evolve(inner, body=(*shares, *inner.body))
    return evolve(loop.without(Pipelined), body=(*before, *between, inner, Commit(), *rest))


def _committed(body: Sequence[Stmt]) -> tuple[Stmt, ...]:
    """A list whose copies before a commit may be asynchronous; commits without copies are removed."""
    result: list[Stmt] = []
    for stmt in body:
        stmt = stmt.rebuilt(tuple(_committed(child) for child in stmt.children)) if stmt.children else stmt
        if result and commits_copies(stmt):
            names = _written(result[-1])
            result[-1:] = _staged(result[-1:], names, 1, as_expr(0))
            if not any(copy.mechanism.arrives_in_groups for copy, _ in execs(result[-1:])):
                continue
        result.append(stmt)
    return tuple(result)


def _is_copy(item: Stmt) -> bool:
    return all(stmt.spec.moves for stmt, _ in execs((item,)))


def _share(copy: Stmt, steps: For, fresh: Callable[[str], str]) -> Stmt:
    """The part of a copy that is issued in one iteration of an inner loop. The copy's iterations are distributed evenly."""
    number = constant(steps.extent)
    if isinstance(copy, Comment) or number is None:
        return copy
    loops, inner = _nest(copy)
    total = math.prod(constant(loop.extent) or 0 for loop in loops)
    each = max(-(-total // number), 1)
    iteration = Var(fresh(loops[0].var.name), 0, each - 1) if each > 1 else None
    left: Expr = steps.var if iteration is None else steps.var * each + iteration
    guard = less(left, as_expr(total))
    values: dict[Var, Expr] = {}
    for position, loop in enumerate(reversed(loops)):
        values[loop.var] = left if position == len(loops) - 1 else mod(left, loop.extent)
        left = left // loop.extent
    shared = tuple(_guarded(substituted((inner,), values), guard))
    return evolve(loops[0], var=iteration, extent=as_expr(each), body=shared) if iteration is not None else shared[0]


def _nest(copy: Stmt) -> tuple[list[For], Stmt]:
    """The loops of known extent around the only statement of a copy, outermost first."""
    loops: list[For] = []
    while isinstance(copy, For) and len(copy.body) == 1 and constant(copy.extent) is not None:
        loops.append(copy)
        copy = copy.body[0]
    return loops, copy


def _by_users(body: Sequence[Stmt], buffers: Iterable[str]) -> dict[tuple[int, ...], list[str]]:
    """Buffers grouped by the statements of a list that read them; the keys are the positions of these."""
    together: dict[tuple[int, ...], list[str]] = {}
    read = [_read(stmt) for stmt in body]
    for buffer in dict.fromkeys(buffers):
        together.setdefault(tuple(number for number, names in enumerate(read) if buffer in names), []).append(buffer)
    return together


def _by_depth(buffers: Iterable[str], depth: Mapping[str, int]) -> list[list[str]]:
    """Buffers grouped by their number of stages."""
    together: dict[int, list[str]] = {}
    for buffer in buffers:
        together.setdefault(depth[buffer], []).append(buffer)
    return list(together.values())


def _in_order(loads: Sequence[Stmt], shared: Sequence[Sequence[str]]) -> list[Stmt]:
    """Loads in the order of the rings that they fill, each with its preceding comments."""
    place = {name: number for number, names in enumerate(shared) for name in names}
    keyed: list[tuple[int, list[Stmt]]] = []
    notes: list[Stmt] = []
    for load in loads:
        notes.append(load)
        if not isinstance(load, Comment):
            keyed.append((min((place[name] for name in _written(load) if name in place), default=len(place)), notes))
            notes = []
    return [one for _, items in sorted(keyed, key=lambda pair: pair[0]) for one in items] + notes


def _stages(loop: For) -> int:
    """The requested number of stages; 0 if none is requested."""
    return loop.asks[Pipelined].stages


def _is_idle(statement: Stmt) -> bool:
    """Whether a statement is a loop whose producer would load nothing, because threads perform all loads."""
    return isinstance(statement, For) and ProducerThreads in statement.asks and not _has_engine(statement)


def _without_idle_producer(statement: Stmt) -> tuple[Stmt, ...]:
    """The statement without its producer, if that would load nothing."""
    if isinstance(statement, For) and _is_idle(statement):
        return (statement.without(ProducerThreads, OrderedMma),)
    return (statement,)


def _with_notes(title: tuple[str, ...], loops: Sequence[str]) -> tuple[str, ...]:
    """The strategy in the header of a kernel, if there is one, with a line for each loop without the requested producer."""
    return (*title, *(f"without effect: warp_specialize() of loop {name}: TMA performs none of its copies" for name in loops if title))


def _require_no_other(loop: For, rest: Iterable[Stmt]) -> None:
    """Refuse nested loops that both have a producer, because the fill numbers of one would depend on the other."""
    inner = next((stmt for stmt in statements(rest) if isinstance(stmt, For) and ProducerThreads in stmt.asks and _has_engine(stmt)), None)
    if inner is not None:
        raise DecompositionError(
            f"warp_specialize: loop {inner.var}, whose loads a producer issues, is inside loop {loop.var}, "
            "whose loads a producer issues, too",
            legal="warp_specialize() on one of the splits",
            at=inner.origin or loop.origin,
            hint="leave out warp_specialize() on one of the splits, or load all operands in one",
        )


def _has_engine(loop: For) -> bool:
    """Whether a producer fills stages of a loop: by TMA, or by copies if requested. Otherwise all threads load, as in any pipeline."""
    return loop.asks[ProducerThreads].copies or any(stmt.mechanism.counted for stmt, _ in execs(loop.body))


def _read_from_memory(kernel: Kernel) -> frozenset[Expr]:
    """The names of values that depend on what the kernel reads from memory."""
    result: set[Expr] = set()
    for stmt in statements(kernel.body):
        if isinstance(stmt, Let) and (tables_of(stmt.value) or not result.isdisjoint(stmt.value.variables())):
            result.add(stmt.var)
    return frozenset(result)


def _iteration_number(loops: Sequence[For], before: Expr | int = 0) -> Expr:
    """The number of an iteration, counted through all these loops, outermost first, and through `before` executions of them."""
    number = as_expr(before)
    for loop in loops:
        number = number * loop.extent + loop.var
    return number


def _ahead(loads: Sequence[Stmt], values: Mapping[Var, Expr], loop: For, ahead: int) -> list[Stmt]:
    """The loads with loop variables replaced, under the condition that the loop has the iteration `ahead` iterations later."""
    items = list(substituted(loads, values))
    return items if ahead == 0 else _guarded(items, less(loop.var + ahead, loop.extent))


def _guarded(items: Sequence[Stmt], condition: Expr) -> list[Stmt]:
    """The statements under one more condition."""
    return list(edited(items, lambda statement: evolve(statement, active=all_of((condition, statement.active)))))


def _staged(items: Sequence[Stmt], names: Iterable[str], stages: int, stage: Expr) -> list[Stmt]:
    """The statements, with accesses to the copies of one stage. Copies from global to shared memory may become asynchronous."""

    def edit(statement: Exec) -> Exec:
        accesses = tuple(_at_stage(access, stages, stage) if access.buffer in names else access for access in statement.accesses)
        fills = statement.spec.moves and statement.accesses[1].buffer in names
        shared_by = [memory.shared_by for memory in statement.spec.memories]
        between = fills and shared_by == [GRID, BLOCK]  # the only direction of cp.async (PTX ISA, cp.async)
        plain = statement.mechanism is AT_ONCE
        return evolve(statement, accesses=accesses, mechanism=CP_ASYNC_GROUPS if between and plain else statement.mechanism)

    return list(edited(items, edit))


def _at_stage(access: Access, stages: int, stage: Expr) -> Access:
    return evolve(access, copy=access.copy * stages + stage)


def _require_rings(kernel: Kernel) -> None:
    """Refuse `stages` and `share_stages` of a load that fills no ring."""
    loops = [stmt for stmt in statements(kernel.body) if isinstance(stmt, For) and ProducerThreads in stmt.asks]
    filled = {name for loop in loops for stmt in loop.body for name in _written(stmt)}
    filled |= {name for stmt in statements(kernel.body) if loops and is_open(stmt) for name in _written(stmt)}
    by_engine = {name for loop in loops if _has_engine(loop) for stmt in loop.body for name in _written(stmt)}
    for buffer in kernel.buffers:
        if buffer.tensor.shares and buffer.name not in by_engine:
            raise DecompositionError(
                f"share_stages: no producer fills {buffer.name}, so there is no ring whose stages it could share",
                legal="a load directly under a split with pipeline() and warp_specialize(), like that of the sharing operand",
                at=buffer.tensor.origin,
                hint=".split(64).pipeline(4).warp_specialize(), or leave out share_stages",
            )
        if buffer.tensor.joins and buffer.name not in filled:
            raise DecompositionError(
                f"share_barriers: no producer fills {buffer.name}, so it has no mbarriers",
                legal="a load by the producer of a split with pipeline() and warp_specialize()",
                at=buffer.tensor.origin,
                hint=".split(64).pipeline(4).warp_specialize(), or leave out share_barriers",
            )
        if buffer.tensor.stages and buffer.name not in filled:
            raise DecompositionError(
                f"stages({buffer.tensor.stages}) of {buffer.name}: no producer fills it, so it has no separate ring. Threads "
                "that copy wait for all copies of an iteration together, so all its loads are equally far ahead",
                legal="a load by the producer of a split with pipeline() and warp_specialize()",
                at=buffer.tensor.origin,
                hint=".split(64).pipeline(4).warp_specialize(), or pipeline(stages) for all loads",
            )


def _filled(loads: Iterable[Stmt]) -> set[str]:
    """The buffers that loads fill for other statements."""
    filled = set().union(*(_written(load) for load in loads))
    # A buffer that a load writes and reads itself, such as registers between global and shared memory, is free before the next stage.
    return filled - {name for load in loads for name in _read(load) if name in _written(load)}


def _written(item: Stmt) -> set[str]:
    return {access.buffer for stmt, _ in execs((item,)) for access in stmt.accesses if access.write}


def _written_inside(loop: For) -> set[str]:
    return set().union(*(_written(stmt) for stmt in loop.body))


def _read(item: Stmt) -> set[str]:
    return {access.buffer for stmt, _ in execs((item,)) for access in stmt.accesses if not access.write}
