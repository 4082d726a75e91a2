"""`rotate`: the end of a turn of a loop is done in the next turn, behind a step that does not need it.

    for i: F(i) R(i) D(i)   -->   F(0) R(0)
                                  for i in all turns but the last: F(i+1) D(i) R(i+1)
                                  D(last)

F ends with one step of a definition, D begins with the other, and R is what stands between them. What stands in front of the first step,
such as loads, moves with those who read it. The program stays sequential: nothing here knows of barriers, waits or who issues a load. It
means the same as before if no two statements that change places touch the same part of a buffer, which one of them writes: stages of a
pipeline are different parts.

Where the number of turns is known only when the kernel runs, so is the stage of the last one. Of a ring that does not matter; any other
loop keeps all its turns, and does D alone in the last one:

    F(0) R(0); for i in all turns: { if i+1 is one: F(i+1) }  D(i)  { if i+1 is one: R(i+1) }
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence

import attrs

from fireiron.errors import DecompositionError
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
    """The kernel with its delayed steps behind those of the next turn; a `DecompositionError` for two that do not commute."""
    if not any(isinstance(one, For) and Deferred in one.asks for one in statements(kernel.body)):
        return kernel
    return attrs.evolve(kernel, body=without_marks(_Rotate(kernel).rotated(kernel.body, {})))


Values = Mapping[Var, Expr]


class _Rotate:
    """Rotates the marked loops of a kernel, inner ones first."""

    def __init__(self, kernel: Kernel) -> None:
        self.taken = taken_names(kernel)

    def rotated(self, body: Sequence[Stmt], names: Values) -> tuple[Stmt, ...]:
        """A statement list; a loop that is rotated brings its first and its last turn along. `names` are those in front of the list."""
        found: list[Stmt] = []
        known = dict(names)
        for statement in body:
            if isinstance(statement, Let):
                known[statement.var] = statement.value.substitute(known)
            if statement.children:
                statement = statement.rebuilt(tuple(self.rotated(child, known) for child in statement.children))
            if isinstance(statement, For) and Deferred in statement.asks:
                runs = max(statement.extent.low, statement.extent.substitute(known).low) > 0
                delayed = statement.asks[Deferred]
                found += self._loop(statement.without(Deferred), delayed.step, delayed.after, runs)
            else:
                found.append(statement)
        return tuple(found)

    def _loop(self, loop: For, step: str, behind: str, runs: bool) -> list[Stmt]:
        """A loop as its first turn up to the delayed step, the turns between, and the delayed step of the last one.

        All under a condition, where it is not known that the loop `runs` at all.
        """
        turns = loop.extent
        if turns.high <= 1:
            return [loop]
        if ProducerThreads in loop.asks and tables_of(turns):
            raise DecompositionError(
                f"{_said(step, behind)}: arrays in memory say how many turns the loop {loop.var} has, and a producer fills stages",
                at=loop.origin,
                hint="leave out warp_specialize() or defer(...)",
            )
        pieces = _pieces(loop, step, behind)
        _require_own_rings(loop, pieces, step, behind)
        _require_commuting(loop, pieces, step, behind)
        first = [Comment(f"{loop.var}: the first turn up to {step}"), *_turn(pieces, early={loop.var: ZERO})]
        if constant(turns) is None and ProducerThreads not in loop.asks:
            return [*_guarded(first, less(ZERO, turns)), self._guarded(pieces, loop, step)]
        inner = Var(loop.var.name, 0, max(turns.high - 2, 0))
        body = _turn(pieces, early={loop.var: inner + 1}, delayed={loop.var: inner})
        steady = attrs.evolve(loop, var=inner, extent=turns - 1, body=(_note(inner, step), *body))
        every = (*first, steady, *self._last(pieces, loop, step))
        if runs:
            return list(every)
        # Without a turn there is neither a first one nor a last.
        return [For(Var(self._fresh(f"{loop.var.name}_any"), 0, 0), minimum(turns, ONE), every, origin=loop.origin)]

    def _guarded(self, pieces: Sequence[_Piece], loop: For, step: str) -> For:
        """All turns but for the first part of the first one, without that part of a turn behind the last."""
        next_turn = {loop.var: loop.var + 1}
        guarded = [
            attrs.evolve(one, statement=_guarded(substituted((one.statement,), next_turn), less(loop.var + 1, loop.extent))[0])
            if one.early
            else one
            for one in pieces
        ]
        return attrs.evolve(loop, body=(_note(loop.var, step), *(one.statement for one in guarded)))

    def _last(self, pieces: Sequence[_Piece], loop: For, step: str) -> list[Stmt]:
        """What is delayed of the last turn."""
        note, number = Comment(f"{loop.var}: {step}, and what comes behind it, of the last turn"), loop.extent - 1
        if constant(number) is not None:
            return [note, *_turn(pieces, delayed={loop.var: number})]
        last = Var(self._fresh(f"{loop.var.name}_last"), 0, max(loop.extent.high - 1, 0))
        return [note, Let(last, number), *_turn(pieces, delayed={loop.var: last})]

    def _fresh(self, wanted: str) -> str:
        return fresh_name(wanted, self.taken)


def _note(var: Var, step: str) -> Comment:
    return Comment(f"{step}, and what comes behind it: of turn {var}; all else of the one behind")


def _guarded(body: Sequence[Stmt], condition: Expr) -> list[Stmt]:
    """The statements under one more condition, where they do not stand under it already."""

    def edit(statement: Exec) -> Exec:
        known = any(_implies(one, condition) for one in conjuncts(statement.active))
        return statement if known else attrs.evolve(statement, active=all_of((condition, statement.active)))

    return list(edited(body, edit))


def _implies(known: Expr, condition: Expr) -> bool:
    """Whether of two comparisons with the same bound the first one, of a number as large or larger, implies the other."""
    if not (isinstance(known, Less) and isinstance(condition, Less) and known.right == condition.right):
        return False
    return (known.left - condition.left).low >= 0


# ---------------------------------------------------------------------------------------------- pieces


@attrs.frozen(eq=False)
class _Piece:
    """A statement directly in the loop: its place there, and what it is of, for messages.

    An `early` one is done one turn before those that are not; one that is `always` there orders others, and is done with either.
    """

    statement: Stmt
    place: int
    title: str
    early: bool
    always: bool = False


def _pieces(loop: For, step: str, behind: str) -> list[_Piece]:
    """The statements of a loop, in the order of a rotated turn."""
    body = _without_names(loop.body)
    marks = {one.step: place for place, one in enumerate(body) if isinstance(one, StepMarker)}
    missing = [name for name in (step, behind) if name not in marks]
    if missing:
        raise DecompositionError(
            f"{_said(step, behind)}: {missing[0]} does not stand directly in the loop {loop.var}, but in one inside",
            at=loop.origin,
            legal=list(marks) or "none",
            hint="no tiles one after the other between the split and the steps",
        )
    begin, start = min(marks.values()), marks[step]
    middle = min(place for place in marks.values() if place > marks[behind])
    parts = (range(begin, middle), range(start, len(body)), range(middle, start))
    steps = [_Piece(body[place], place, _step_at(place, marks), place < start) for part in parts for place in part]
    return [*_head(loop, body[:begin], steps, _said(step, behind)), *steps]


def _step_at(place: int, marks: Mapping[str, int]) -> str:
    """The step that the statement at a place is of."""
    return max((name for name in marks if marks[name] <= place), key=lambda name: marks[name])


def _without_names(body: Sequence[Stmt]) -> tuple[Stmt, ...]:
    """A list with the values themselves in the place of its names for them, which would be those of one turn only."""
    found: list[Stmt] = []
    names: dict[Var, Expr] = {}
    for one in body:
        (statement,) = substituted((one,), names) if names else (one,)
        if isinstance(statement, Let):
            names[statement.var] = statement.value
        else:
            found.append(statement)
    return tuple(found)


def _head(loop: For, body: Sequence[Stmt], steps: Sequence[_Piece], said: str) -> list[_Piece]:
    """What stands in front of the first step, such as loads: each with the steps that read it, all that fill one ring together.

    What both parts read comes with the first of them where it may overwrite nothing that the other one still reads, else with the last.
    """
    decided: list[_Piece] = []
    for places in _together(body):
        written = set().union(*(_touched(body[place], write=True) for place in places))
        readers = {one.early for one in (*decided, *steps) if written & _touched(one.statement, write=False)}
        _require_one_turn(loop, [body[place] for place in places], readers, said)
        early = readers <= {True}
        pieces = [_Piece(body[place], place, _title(body[place]), early) for place in places]
        if readers == {True, False}:
            first = [attrs.evolve(one, early=True) for one in pieces]
            pieces = first if _clash(loop, [*first, *steps]) is None else pieces
        decided += pieces
    return _with_others(body, {one.place: one for one in decided})


def _require_one_turn(loop: For, loads: Sequence[Stmt], readers: set[bool], said: str) -> None:
    """Refuse loads that take turns in the slots of one ring, of which some are read a turn later than others."""
    written = {access.copy: access.buffer for one, _ in execs(loads) for access in one.accesses if access.write}
    if readers == {True, False} and ProducerThreads in loop.asks and len(written) > 1 and len(set(written.values())) < len(written):
        raise DecompositionError(
            f"{said}: loads that share the slots of {next(iter(written.values()))} are read in different turns, and a ring is "
            "emptied in the order in which it is filled",
            at=loop.origin,
            hint="leave out share_stages(...), so that each load has a ring of its own, or defer(...)",
        )


def _together(body: Sequence[Stmt]) -> list[list[int]]:
    """The places of statements that do something, the last first; of those that fill one ring as one."""
    found: dict[str | int, list[int]] = {}
    for place in reversed(range(len(body))):
        inside = [one for one, _ in execs((body[place],))]
        if inside:
            found.setdefault(next((one.ring for one in inside if one.ring), place), []).append(place)
    return list(found.values())


def _with_others(body: Sequence[Stmt], decided: Mapping[int, _Piece]) -> list[_Piece]:
    """The pieces of a list, its notes with what they are about, and what orders others with either part."""
    found: list[_Piece] = []
    early = True
    for place in reversed(range(len(body))):
        always = isinstance(body[place], (SyncPoint, Commit))
        piece = decided.get(place, _Piece(body[place], place, "", early, always))
        early = piece.early
        found.append(piece)
    return found[::-1]


def _title(statement: Stmt) -> str:
    return f"the load of {', '.join(sorted(_touched(statement, write=True)))}"


def _touched(statement: Stmt, write: bool) -> set[str]:
    """The buffers that a statement writes, or those that it reads."""
    return {access.buffer for one, _ in execs((statement,)) for access in one.accesses if access.write is write}


# ---------------------------------------------------------------------------------------------- turns


def _turn(pieces: Sequence[_Piece], early: Values | None = None, delayed: Values | None = None) -> tuple[Stmt, ...]:
    """The two parts of a turn with the loop's number in each, or one of them; without what has nothing to do there, such as loads ahead."""
    found: list[Stmt] = []
    for piece in pieces:
        values = early if piece.early else delayed
        if values is None and not piece.always:
            continue
        statement = piece.statement if values is None else substituted((piece.statement,), values)[0]
        inside = [one.active for one, _ in execs((statement,))]
        if inside and all(active == FALSE for active in inside):
            while found and isinstance(found[-1], Comment):
                found.pop()
        else:
            found.append(statement)
    return _without_empty_commits(found)


def _without_empty_commits(body: Iterable[Stmt]) -> tuple[Stmt, ...]:
    """A list without the commits of copies in front of which it has none."""
    found: list[Stmt] = []
    issued = False
    for one in body:
        if commits_copies(one) and not issued:
            continue
        issued = not commits_copies(one) and (issued or any(part.mechanism.arrives_in_groups for part, _ in execs((one,))))
        found.append(one)
    return tuple(found)


# ---------------------------------------------------------------------------------------------- what commutes


def _require_commuting(loop: For, pieces: Sequence[_Piece], step: str, behind: str) -> None:
    """Refuse statements that change places and touch the same part of a buffer, which one of them writes."""
    clash = _clash(loop, pieces)
    if clash is None:
        return
    first, second, access, next_turn = clash
    stages = next(
        (one.statement for one in pieces if one.title.startswith("the load") and access.buffer in _touched(one.statement, True)), None
    )
    does = "writes" if access.write else "reads"
    other = f"{second.title} of the turn behind" if next_turn else second.title
    raise DecompositionError(
        f"{_said(step, behind)}: {first.title} and {other} do not commute: {first.title} {does} {access.buffer}, which {second.title} "
        f"{'touches' if access.write else 'writes'}",
        at=loop.origin,
        hint=f".pipeline(2) or more, so that {access.buffer} has a stage for each of both"
        if stages is not None
        else f"another temporary in the place of {access.buffer} for one of them, as p[m,n] = s[m,n]",
    )


def _require_own_rings(loop: For, pieces: Sequence[_Piece], step: str, behind: str) -> None:
    """Refuse a ring whose stages both parts read: a turn is waited for and given back in one iteration."""
    filled: dict[str, set[str]] = {}
    for one in (one for piece in pieces for one, _ in execs((piece.statement,)) if one.ring):
        filled.setdefault(one.ring, set()).update(_touched(one, write=True))
    for ring, buffers in filled.items():
        readers = {one.early: one.title for one in pieces if buffers & _touched(one.statement, write=False)}
        if len(readers) == 2:
            raise DecompositionError(
                f"{_said(step, behind)}: {readers[True]} and {readers[False]}, which is done a turn later, read stages of one ring, "
                f"{ring}: {', '.join(sorted(buffers))}",
                legal="loads each of which is read by steps in front of the delayed one only, or by those from it on only",
                at=loop.origin,
                hint="leave out defer(...), or .share_stages(...) in the load where one stands",
            )


def _said(step: str, behind: str) -> str:
    return f'defer("{step}", after="{behind}")'


Clash = tuple[_Piece, _Piece, Access, bool]


def _clash(loop: For, pieces: Sequence[_Piece]) -> Clash | None:
    """Two pieces, the first in front of the second in the loop as it was, behind it as it is rotated, that do not commute.

    With an access of the first to what they have in common, and whether the second is of the turn behind.
    """
    for first, second, later in _exchanged(pieces):
        access = _common(loop, first.statement, second.statement, later)
        if access is not None:
            return first, second, access, bool(later)
    return None


def _exchanged(pieces: Sequence[_Piece]) -> Iterator[tuple[_Piece, _Piece, int]]:
    """The pairs that change places, the second so many turns behind the first; of those further apart none does."""
    for one, other in itertools.product(enumerate(pieces), repeat=2):
        (at, first), (behind, second) = one, other
        for later in (0, 1):
            in_order = later or first.place < second.place
            if in_order and (later - second.early, behind) < (-first.early, at):
                yield first, second, later


def _common(loop: For, first: Stmt, second: Stmt, later: int) -> Access | None:
    """An access of the first statement to what the second one, so many turns behind, touches as well, where one of them writes."""
    shift = {loop.var: loop.var + later}
    others = [access for one, _ in execs((second,)) for access in one.accesses]
    for one, _ in execs((first,)):
        for access in one.accesses:
            for other in others:
                same = access.buffer == other.buffer and (access.write or other.write)
                if same and not _apart(loop, access.copy, other.copy.substitute(shift)):
                    return access
    return None


def _apart(loop: For, one: Expr, other: Expr) -> bool:
    """Whether two copies of a buffer are different ones in each turn of the loop."""
    if isinstance(one, Mod) and isinstance(other, Mod) and one.right == other.right:
        apart, stages = constant(one.left - other.left), constant(one.right)
        if apart is not None and stages is not None:
            return apart % stages != 0
    difference = one - other
    if constant(difference) is not None:
        return difference != ZERO
    turns = loop.period or constant(loop.extent) or 0
    values = [constant(difference.substitute({loop.var: turn})) for turn in range(turns)]
    return bool(values) and None not in values and 0 not in values
