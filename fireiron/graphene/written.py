"""A decomposition that is written out: its items, and the step that makes a tree and a program of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Final

import attrs

from fireiron.decomp.done import Done
from fireiron.errors import DecompositionError, FireironError, LayoutError, MatchError
from fireiron.ir import Access, BlockCluster, Exec, For, Hole, IfAnyLane, Let, Stmt, effect, statements
from fireiron.ir.effect import Effects
from fireiron.language.execution import Execution
from fireiron.language.tree import Child, Context, Decomposition, Draft, Executable, Expansion, access_of
from fireiron.spec import Spec
from fireiron.values.expr import TRUE, Expr, Var, all_of
from fireiron.values.tensor import Storage, Tensor

OF_STATEMENT: Final = tuple(
    one.name for one in attrs.fields(Exec) if one.name not in ("instruction", "spec", "accesses", "active", "origin", "path")
)
"""The fields of a statement that a text may say behind the name of its instruction."""

FORMER_FIELDS: Final = {"completion": "mechanism", "turn": "fill_index"}
"""Fields of statements by the names that former texts have for them."""

OF_ACCESS: Final = tuple(one.name for one in attrs.fields(Access) if one.eq)


@attrs.frozen
class Loop:
    """A loop without its body, and what stands in it."""

    loop: For
    items: tuple[Item, ...]


@attrs.frozen
class Under:
    """Items for those threads for which a condition holds."""

    condition: Expr
    items: tuple[Item, ...]


@attrs.frozen
class Unless:
    """Items that a warp leaves out unless one of its threads has a number other than 0 in the registers `needed`."""

    needed: str
    items: tuple[Item, ...]


@attrs.frozen
class Leaf:
    """An atomic spec: by the named instruction, which does it in its own way but for the `changes`, or by one that is to be found.

    `where` is its place in the text.
    """

    spec: Spec
    instruction: Executable | None = None
    changes: tuple[tuple[str, Any], ...] = ()
    where: str = attrs.field(default="", eq=False)


@attrs.frozen
class Inner:
    """A spec with its decomposition."""

    spec: Spec
    items: tuple[Item, ...]
    where: str = attrs.field(default="", eq=False)


Item = Stmt | Loop | Under | Unless | Leaf | Inner


@attrs.frozen
class Outermost:
    """What a text says of the whole kernel; the fields are those of the kernel IR."""

    threads: int
    grid: Expr
    target: str = ""
    name: str = ""
    lets: tuple[Let, ...] = ()
    settled: tuple[tuple[Tensor, Storage], ...] = ()
    facts: tuple[tuple[str, Expr], ...] = ()
    title: tuple[str, ...] = ()
    effects: Effects = effect.NONE
    cluster: BlockCluster | None = None
    names: tuple[str, ...] = ()
    execution: Execution = attrs.field(factory=Execution)


@attrs.frozen
class Written(Decomposition):
    """The decomposition of a spec that a text writes out; `outermost` is what it says of the kernel, where it is of all of it."""

    verb: ClassVar[str] = "written"
    items: tuple[Item, ...] = ()
    outermost: Outermost | None = None

    def label(self) -> str:
        return "then(parse_strategy(...))"

    def summary(self) -> str:
        return "written out"

    def title(self) -> tuple[str, ...]:
        return () if self.outermost is None else self.outermost.title

    @property
    def whole_kernel(self) -> tuple[str, str]:  # type: ignore[override]
        """The target and the name of the kernel."""
        return ("", "") if self.outermost is None else (self.outermost.target, self.outermost.name)

    def threads(self, spec: Spec, context: Context) -> int | None:
        return None if self.outermost is None else self.outermost.threads

    def expand(self, spec: Spec, context: Context) -> Expansion:
        draft = context.draft()
        whole: dict[str, Any] = {}
        if self.outermost is not None:
            whole = _begun(self.outermost, draft)
        children: list[Child] = []
        program = _program(self.items, TRUE, draft, children)
        known = {view.tensor.name for view in spec.operands.values()}
        made = [one.var.name for one in statements(program) if isinstance(one, (For, Let))]
        made += [view.tensor.name for child in children for view in child.spec.operands.values()]
        for name in dict.fromkeys(made):
            if name not in known:
                draft.claim(Var(name))
        return draft.expansion(tuple(children), program, **whole)


def _begun(outermost: Outermost, draft: Draft) -> dict[str, Any]:
    """The fields of the outermost expansion, the names of the text in the draft."""
    for name in outermost.names:
        draft.claim(Var(name))
    for let in outermost.lets:
        draft.define(let.var, let.value)
    for tensor, storage in outermost.settled:
        draft.settle(tensor, storage)
    said = ("facts", "grid", "effects", "cluster")
    return {name: getattr(outermost, name) for name in said}


def _program(items: tuple[Item, ...], condition: Expr, draft: Draft, children: list[Child]) -> tuple[Stmt, ...]:
    found: list[Stmt] = []
    for item in items:
        match item:
            case Loop(loop=loop, items=inner):
                found.append(attrs.evolve(loop, body=_program(inner, condition, draft, children)))
            case Under(condition=more, items=inner):
                found += _program(inner, all_of((condition, more)), draft, children)
            case Unless(needed=needed, items=inner):
                found.append(IfAnyLane(needed, _program(inner, condition, draft, children)))
            case Leaf(instruction=Executable()):
                there = attrs.evolve(draft, active=all_of((draft.active, condition)), origin=item.where or draft.origin)
                found += performed(item, there)
                _require_together(found[-1], there)
            case Leaf(spec=spec, where=where):
                found.append(_child(spec, Done(origin=where or None), condition, children))
            case Inner(spec=spec, items=inner, where=where):
                found.append(_child(spec, Written(inner, origin=where or None), condition, children))
            case Stmt():
                found.append(item)
    return tuple(found)


def _child(spec: Spec, step: Decomposition, condition: Expr, children: list[Child]) -> Hole:
    name = f"{spec.title.lower()}{len(children) + 1}"
    children.append(Child(name, spec, (step,), condition))
    return Hole(name)


# ---------------------------------------------------------------------------------------------- atomic specs


def performed(leaf: Leaf, draft: Draft) -> tuple[Stmt, ...]:
    """The statements of an atomic spec whose instruction is named."""
    assert leaf.instruction is not None
    wrong = leaf.instruction.mismatches(leaf.spec, draft.architecture)
    if leaf.changes:
        wrong = tuple(one for one in wrong if one.field == "target")
    if leaf.changes and not wrong:
        return (changed(statement_of(leaf.instruction, leaf.spec, draft), leaf.changes),)
    if wrong:
        rows = "; ".join(f"{one.field} requires {one.wanted}, got {one.got}" for one in wrong)
        raise MatchError(f"{leaf.instruction.name} does not perform {leaf.spec}: {rows}", at=leaf.where or None)
    return leaf.instruction.emit(leaf.spec, draft)


def _require_together(statement: Stmt, draft: Draft) -> None:
    """Refuse an instruction of a warp, or of more, for which a condition lets some threads of a unit go and not others."""
    if not isinstance(statement, Exec) or not statement.lane_maps or draft.thread not in (active := _expanded(draft)).variables():
        return
    others = {var.name: var.low for var in active.variables() if var != draft.thread}
    together = max(32, statement.spec.level.threads or 1)
    holds = [bool(active.evaluate({**others, draft.thread.name: number})) for number in range(draft.thread.high + 1)]
    if any(len(set(holds[first : first + together])) > 1 for first in range(0, len(holds), together)):
        where = f"all {together} threads of a unit take part in {statement.instruction.name}, and {draft.active} lets some of them go"
        raise DecompositionError(where, within=statement.spec, at=draft.origin, hint="a condition that units share, as thread // 32 < 2")


def _expanded(draft: Draft) -> Expr:
    """The condition of a statement over blocks, threads and loops alone."""
    active, definitions = draft.active, draft.whole.definitions
    while not active.variables().isdisjoint(definitions):
        active = active.substitute({var: definitions[var] for var in active.variables() & set(definitions)})
    return active


def single(instruction: Executable, spec: Spec, draft: Draft) -> Exec | None:
    """The one statement that an instruction makes of a spec by itself; None where it makes none, or others."""
    try:
        made = instruction.emit(spec, draft)
    except (FireironError, AssertionError):
        return None
    return made[0] if len(made) == 1 and isinstance(made[0], Exec) else None


def statement_of(instruction: Executable, spec: Spec, draft: Draft) -> Exec:
    """The statement that a text's changes are made to: the instruction's own, or else one on all of the operands."""
    found = single(instruction, spec, draft)
    if found is not None:
        return found
    accesses = tuple(access_of(view, name in spec.outputs, draft.origin) for name, view in spec.operands.items())
    return Exec(instruction, spec, accesses, spec.accumulate, draft.active, origin=draft.origin)


def changed(statement: Exec, changes: tuple[tuple[str, Any], ...]) -> Exec:
    """A statement with other fields, by name: its own, or an operand's access, or a field of that, as `src.points`."""
    fields: dict[str, Any] = {}
    accesses = dict(statement.operands)
    for name, value in changes:
        operand, _, field = name.partition(".")
        if not field and name in OF_STATEMENT:
            fields[name] = value
        elif operand in accesses and not field and isinstance(value, Access):
            accesses[operand] = value
        elif operand in accesses and field in OF_ACCESS:
            accesses[operand] = attrs.evolve(accesses[operand], **{field: value})
        else:
            raise unknown_change(name, statement.spec)
    return attrs.evolve(statement, accesses=tuple(accesses.values()), **fields)


def unknown_change(name: str, spec: Spec) -> LayoutError:
    """The error of a change that no statement of a spec has."""
    return LayoutError(f"what is {name} of {spec.title}?", legal=[*OF_STATEMENT, *(f"{one}.points" for one in spec.operands)])


def require_changes(changes: tuple[tuple[str, Any], ...], spec: Spec) -> None:
    """Refuse changes of what the statement of a spec has not."""
    for name, _ in changes:
        operand, dot, field = name.partition(".")
        if not (name in OF_STATEMENT or (operand in spec.operands and (not dot or field in OF_ACCESS))):
            raise unknown_change(name, spec)


def changes_of(statement: Exec, draft: Draft) -> tuple[tuple[str, Any], ...]:
    """What a text has to say of a statement beside its instruction and spec."""
    instruction = statement.instruction
    if not isinstance(instruction, Executable):
        raise DecompositionError(f"{instruction.name} is not an instruction")
    alone = single(instruction, statement.spec, draft)
    base = alone or statement_of(instruction, statement.spec, draft)
    found = tuple(_differences(base, statement))
    fits = alone is not None and not instruction.mismatches(statement.spec, draft.architecture)
    return found if found or fits else (("vector", statement.vector),)


def _differences(base: Exec, statement: Exec) -> Iterator[tuple[str, Any]]:
    for name in OF_STATEMENT:
        if getattr(base, name) != getattr(statement, name):
            yield name, getattr(statement, name)
    pairs: Mapping[str, tuple[Access, Access]] = {
        name: (old, new) for (name, old), new in zip(base.operands.items(), statement.accesses, strict=True)
    }
    for name, (old, new) in pairs.items():
        for field in OF_ACCESS:
            if getattr(old, field) != getattr(new, field):
                yield f"{name}.{field}", getattr(new, field)
