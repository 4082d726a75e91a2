"""`defer`: software-pipeline a loop. The end of an iteration runs in the next iteration, after a step that does not depend on it.

    for i: F(i) R(i) D(i)   -->   F(0) R(0)
                                  for i in all iterations but the last: F(i+1) D(i) R(i+1)
                                  D(last)

F ends with the step `after`, D begins with the deferred step, and R is what is between them. Statements before the first step, such as
loads, move with the steps that read them. The program stays sequential, without barriers, waits or roles. Its meaning is unchanged if no
two statements that change their order access the same part of a buffer with a write. The stages of a pipeline are different parts.

If the trip count is a run-time value, so is the stage of the last iteration. A ring supports this. Any other loop keeps all its iterations
and runs only D in the last one:

    F(0) R(0); for i in all iterations: { if i+1 < n: F(i+1) }  D(i)  { if i+1 < n: R(i+1) }
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence

from fireiron.errors import DecompositionError
from fireiron.frozen import evolve, frozen
from fireiron.ir import (
    Access,
    Comment,
    Commit,
    Exec,
    For,
    Kernel,
    Let,
    StepMarker,
    Stmt,
    SyncPoint,
    commits_copies,
    edited,
    execs,
    statements,
    substituted,
)
from fireiron.ir.asks.deferred import Deferred
from fireiron.ir.asks.producer_threads import ProducerThreads
from fireiron.lower.walk import fresh_name, taken_names, without_marks
from fireiron.values.expr import FALSE, ONE, ZERO, Expr, Less, Mod, Var, all_of, conjuncts, constant, less, minimum, tables_of


def defer(kernel: Kernel) -> Kernel:
    """The kernel with its deferred steps in the next iteration; a `DecompositionError` for two statements that do not commute."""
    if not any(isinstance(stmt, For) and Deferred in stmt.asks for stmt in statements(kernel.body)):
        return kernel
    return evolve(kernel, body=without_marks(_Deferral(kernel).deferred(kernel.body, {})))


Values = Mapping[Var, Expr]


class _Deferral:
    """Transforms the marked loops of a kernel, inner ones first."""

    def __init__(self, kernel: Kernel) -> None:
        self.used_names = taken_names(kernel)

    def deferred(self, body: Sequence[Stmt], names: Values) -> tuple[Stmt, ...]:
        """A statement list with deferred steps. A transformed loop is surrounded by parts of its first and last iteration. `names` are the
        values defined before the list.
        """
        result: list[Stmt] = []
        known = dict(names)
        for statement in body:
            if isinstance(statement, Let):
                known[statement.var] = statement.value.substitute(known)
            if statement.children:
                statement = statement.rebuilt(tuple(self.deferred(child, known) for child in statement.children))
            if isinstance(statement, For) and Deferred in statement.asks:
                runs = max(statement.extent.low, statement.extent.substitute(known).low) > 0
                request = statement.asks[Deferred]
                result += self._loop(statement.without(Deferred), request.step, request.after, runs)
            else:
                result.append(statement)
        return tuple(result)

    def _loop(self, loop: For, step: str, after: str, runs: bool) -> list[Stmt]:
        """The first iteration of a loop up to the deferred step, a loop over pairs of iterations, and the deferred steps of the last
        iteration.

        All of these are conditional unless the loop certainly `runs`.
        """
        iterations = loop.extent
        if iterations.high <= 1:
            return [loop]
        if ProducerThreads in loop.asks and tables_of(iterations):
            raise DecompositionError(
                f"{_request(step, after)}: the trip count of loop {loop.var} is read from memory, and a producer fills its stages",
                at=loop.origin,
                hint="leave out warp_specialize() or defer(...)",
            )
        pieces = _pieces(loop, step, after)
        _require_own_rings(loop, pieces, step, after)
        _require_commuting(loop, pieces, step, after)
        first = [Comment(f"{loop.var}: the first iteration up to {step}"), *_iteration(pieces, early={loop.var: ZERO})]
        if constant(iterations) is None and ProducerThreads not in loop.asks:
            return [*_guarded(first, less(ZERO, iterations)), self._guarded(pieces, loop, step)]
        inner = Var(loop.var.name, 0, max(iterations.high - 2, 0))
        body = _iteration(pieces, early={loop.var: inner + 1}, late={loop.var: inner})
        steady = evolve(loop, var=inner, extent=iterations - 1, body=(_note(inner, step), *body))
        transformed = (*first, steady, *self._last(pieces, loop, step))
        if runs:
            return list(transformed)
        # a loop without iterations has neither a first nor a last iteration
        return [For(Var(self._fresh(f"{loop.var.name}_any"), 0, 0), minimum(iterations, ONE), transformed, origin=loop.origin)]

    def _guarded(self, pieces: Sequence[_Piece], loop: For, step: str) -> For:
        """All iterations without the first part of the first one; each runs the first part of the next one, if there is one."""
        next_iteration = {loop.var: loop.var + 1}
        guarded = [
            evolve(piece, statement=_guarded(substituted((piece.statement,), next_iteration), less(loop.var + 1, loop.extent))[0])
            if piece.early
            else piece
            for piece in pieces
        ]
        return evolve(loop, body=(_note(loop.var, step), *(one.statement for one in guarded)))

    def _last(self, pieces: Sequence[_Piece], loop: For, step: str) -> list[Stmt]:
        """The deferred steps of the last iteration."""
        note, number = Comment(f"{step} and the steps after it, of the last iteration of {loop.var}"), loop.extent - 1
        if constant(number) is not None:
            return [note, *_iteration(pieces, late={loop.var: number})]
        last = Var(self._fresh(f"{loop.var.name}_last"), 0, max(loop.extent.high - 1, 0))
        return [note, Let(last, number), *_iteration(pieces, late={loop.var: last})]

    def _fresh(self, wanted: str) -> str:
        return fresh_name(wanted, self.used_names)


def _note(var: Var, step: str) -> Comment:
    return Comment(f"{step} and the steps after it are of iteration {var}, the other steps of the next one")


def _guarded(body: Sequence[Stmt], condition: Expr) -> list[Stmt]:
    """The statements under one more condition, unless they already are."""

    def edit(statement: Exec) -> Exec:
        known = any(_implies(one, condition) for one in conjuncts(statement.active))
        return statement if known else evolve(statement, active=all_of((condition, statement.active)))

    return list(edited(body, edit))


def _implies(known: Expr, condition: Expr) -> bool:
    """Whether the first of two comparisons with one bound implies the other: its left side is at least as large."""
    if not (isinstance(known, Less) and isinstance(condition, Less) and known.right == condition.right):
        return False
    return (known.left - condition.left).low >= 0


# ---------------------------------------------------------------------------------------------- pieces


@frozen(eq=False)
class _Piece:
    """A statement directly in the loop, with its position there and a title for messages.

    An `early` piece runs one iteration before the others. A piece that is `always` kept only orders other pieces, and runs with both parts.
    """

    statement: Stmt
    place: int
    title: str
    early: bool
    always: bool = False


def _pieces(loop: For, step: str, after: str) -> list[_Piece]:
    """The statements of a loop, in the order of a transformed iteration."""
    body = _without_names(loop.body)
    marks = {stmt.step: place for place, stmt in enumerate(body) if isinstance(stmt, StepMarker)}
    missing = [name for name in (step, after) if name not in marks]
    if missing:
        raise DecompositionError(
            f"{_request(step, after)}: step {missing[0]} is in a loop inside loop {loop.var}",
            at=loop.origin,
            legal=list(marks) or "none",
            hint="add .to(...) to each tile between the split and the steps",
        )
    begin, start = min(marks.values()), marks[step]
    middle = min(place for place in marks.values() if place > marks[after])
    parts = (range(begin, middle), range(start, len(body)), range(middle, start))
    steps = [_Piece(body[place], place, _step_at(place, marks), place < start) for part in parts for place in part]
    return [*_head(loop, body[:begin], steps, _request(step, after)), *steps]


def _step_at(place: int, marks: Mapping[str, int]) -> str:
    """The step that contains the statement at a position."""
    return max((name for name in marks if marks[name] <= place), key=lambda name: marks[name])


def _without_names(body: Sequence[Stmt]) -> tuple[Stmt, ...]:
    """A list with names replaced by their values, since a name is valid in one iteration only."""
    result: list[Stmt] = []
    names: dict[Var, Expr] = {}
    for stmt in body:
        (statement,) = substituted((stmt,), names) if names else (stmt,)
        if isinstance(statement, Let):
            names[statement.var] = statement.value
        else:
            result.append(statement)
    return tuple(result)


def _head(loop: For, body: Sequence[Stmt], steps: Sequence[_Piece], request: str) -> list[_Piece]:
    """The statements before the first step, such as loads: each runs with the steps that read it; loads that fill one ring run together.

    A statement that both parts read runs with the first part. If it could then overwrite data that the second part still reads, it runs
    with the second part.
    """
    decided: list[_Piece] = []
    for places in _together(body):
        written = set().union(*(_touched(body[place], write=True) for place in places))
        readers = {one.early for one in (*decided, *steps) if written & _touched(one.statement, write=False)}
        _require_same_iteration(loop, [body[place] for place in places], readers, request)
        early = readers <= {True}
        pieces = [_Piece(body[place], place, _title(body[place]), early) for place in places]
        if readers == {True, False}:
            first = [evolve(piece, early=True) for piece in pieces]
            pieces = first if _conflict(loop, [*first, *steps]) is None else pieces
        decided += pieces
    return _with_others(body, {one.place: one for one in decided})


def _require_same_iteration(loop: For, loads: Sequence[Stmt], readers: set[bool], request: str) -> None:
    """Refuse loads that share the stages of a ring if some are read an iteration later than others."""
    written = {access.copy: access.buffer for stmt, _ in execs(loads) for access in stmt.accesses if access.write}
    if readers == {True, False} and ProducerThreads in loop.asks and len(written) > 1 and len(set(written.values())) < len(written):
        raise DecompositionError(
            f"{request}: loads that share the stages of {next(iter(written.values()))} are read in different iterations, and a ring is "
            "emptied in the order in which it is filled",
            at=loop.origin,
            hint="leave out share_stages(...), so that each load has its own ring, or leave out defer(...)",
        )


def _together(body: Sequence[Stmt]) -> list[list[int]]:
    """The positions of statements that access data, the last ones first, in groups: statements that fill one ring are a group."""
    groups: dict[str | int, list[int]] = {}
    for place in reversed(range(len(body))):
        inside = [stmt for stmt, _ in execs((body[place],))]
        if inside:
            groups.setdefault(next((stmt.ring for stmt in inside if stmt.ring), place), []).append(place)
    return list(groups.values())


def _with_others(body: Sequence[Stmt], decided: Mapping[int, _Piece]) -> list[_Piece]:
    """The pieces of a list, with comments and synchronization added to the pieces that they belong to."""
    pieces: list[_Piece] = []
    early = True
    for place in reversed(range(len(body))):
        always = isinstance(body[place], (SyncPoint, Commit))
        piece = decided.get(place, _Piece(body[place], place, "", early, always))
        early = piece.early
        pieces.append(piece)
    return pieces[::-1]


def _title(statement: Stmt) -> str:
    return f"the load of {', '.join(sorted(_touched(statement, write=True)))}"


def _touched(statement: Stmt, write: bool) -> set[str]:
    """The buffers that a statement writes, or reads."""
    return {access.buffer for stmt, _ in execs((statement,)) for access in stmt.accesses if access.write is write}


# ---------------------------------------------------------------------------------------------- iterations


def _iteration(pieces: Sequence[_Piece], early: Values | None = None, late: Values | None = None) -> tuple[Stmt, ...]:
    """One or both parts of an iteration, with the iteration number of each; without statements that do nothing there, such as loads
    ahead.
    """
    result: list[Stmt] = []
    for piece in pieces:
        values = early if piece.early else late
        if values is None and not piece.always:
            continue
        statement = piece.statement if values is None else substituted((piece.statement,), values)[0]
        inside = [stmt.active for stmt, _ in execs((statement,))]
        if inside and all(active == FALSE for active in inside):
            while result and isinstance(result[-1], Comment):
                result.pop()
        else:
            result.append(statement)
    return _without_empty_commits(result)


def _without_empty_commits(body: Iterable[Stmt]) -> tuple[Stmt, ...]:
    """A list without commits of copies that have no copies before them."""
    result: list[Stmt] = []
    issued = False
    for stmt in body:
        if commits_copies(stmt) and not issued:
            continue
        issued = not commits_copies(stmt) and (issued or any(part.mechanism.arrives_in_groups for part, _ in execs((stmt,))))
        result.append(stmt)
    return tuple(result)


# ---------------------------------------------------------------------------------------------- what commutes


def _require_commuting(loop: For, pieces: Sequence[_Piece], step: str, after: str) -> None:
    """Refuse statements that change their order and access the same part of a buffer with a write."""
    conflict = _conflict(loop, pieces)
    if conflict is None:
        return
    first, second, access, next_iteration = conflict
    stages = next(
        (piece.statement for piece in pieces if piece.title.startswith("the load") and access.buffer in _touched(piece.statement, True)),
        None,
    )
    does = "writes" if access.write else "reads"
    other = f"{second.title} of the next iteration" if next_iteration else second.title
    raise DecompositionError(
        f"{_request(step, after)}: {first.title} and {other} do not commute: {first.title} {does} {access.buffer}, which {second.title} "
        f"{'accesses' if access.write else 'writes'}",
        at=loop.origin,
        hint=f".pipeline(2) or more, so that {access.buffer} has a stage for each"
        if stages is not None
        else f"another temporary instead of {access.buffer} for one of them, such as p[m,n] = s[m,n]",
    )


def _require_own_rings(loop: For, pieces: Sequence[_Piece], step: str, after: str) -> None:
    """Refuse a ring whose stages both parts read: a fill is acquired and released in one iteration."""
    filled: dict[str, set[str]] = {}
    for stmt in (stmt for piece in pieces for stmt, _ in execs((piece.statement,)) if stmt.ring):
        filled.setdefault(stmt.ring, set()).update(_touched(stmt, write=True))
    for ring, buffers in filled.items():
        readers = {piece.early: piece.title for piece in pieces if buffers & _touched(piece.statement, write=False)}
        if len(readers) == 2:
            raise DecompositionError(
                f"{_request(step, after)}: {readers[True]} and {readers[False]}, which runs an iteration later, read stages of one ring, "
                f"{ring}: {', '.join(sorted(buffers))}",
                legal="loads that only steps before the deferred one read, or only steps from it on",
                at=loop.origin,
                hint="leave out defer(...), or the .share_stages(...) of a load",
            )


def _request(step: str, after: str) -> str:
    return f'defer("{step}", after="{after}")'


Conflict = tuple[_Piece, _Piece, Access, bool]


def _conflict(loop: For, pieces: Sequence[_Piece]) -> Conflict | None:
    """Two pieces that do not commute: the first precedes the second in the original loop and follows it in the transformed one.

    The result also contains an access of the first piece to the common buffer, and whether the second belongs to the next iteration.
    """
    for first, second, later in _exchanged(pieces):
        access = _common(loop, first.statement, second.statement, later)
        if access is not None:
            return first, second, access, bool(later)
    return None


def _exchanged(pieces: Sequence[_Piece]) -> Iterator[tuple[_Piece, _Piece, int]]:
    """The pairs that change their order, with the iterations by which the second is later: 0 or 1, more never change."""
    for entry, other_entry in itertools.product(enumerate(pieces), repeat=2):
        (at, first), (after, second) = entry, other_entry
        for later in (0, 1):
            in_order = later or first.place < second.place
            if in_order and (later - second.early, after) < (-first.early, at):
                yield first, second, later


def _common(loop: For, first: Stmt, second: Stmt, later: int) -> Access | None:
    """An access of the first statement to a part that the second one, `later` iterations later, also accesses, if one of them writes."""
    shift = {loop.var: loop.var + later}
    others = [access for stmt, _ in execs((second,)) for access in stmt.accesses]
    for stmt, _ in execs((first,)):
        for access in stmt.accesses:
            for other in others:
                same = access.buffer == other.buffer and (access.write or other.write)
                if same and not _apart(loop, access.copy, other.copy.substitute(shift)):
                    return access
    return None


def _apart(loop: For, copy: Expr, other: Expr) -> bool:
    """Whether two copies of a buffer differ in each iteration of the loop."""
    if isinstance(copy, Mod) and isinstance(other, Mod) and copy.right == other.right:
        apart, stages = constant(copy.left - other.left), constant(copy.right)
        if apart is not None and stages is not None:
            return apart % stages != 0
    difference = copy - other
    if constant(difference) is not None:
        return difference != ZERO
    iterations = loop.period or constant(loop.extent) or 0
    values = [constant(difference.substitute({loop.var: iteration})) for iteration in range(iterations)]
    return bool(values) and None not in values and 0 not in values
