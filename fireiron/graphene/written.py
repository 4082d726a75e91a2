"""Represent a decomposition in Graphene's notation, and expand it into a tree and a program."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Final

import attrs

from fireiron.decomp.done import Done
from fireiron.errors import DecompositionError, FireironError, LayoutError, MatchError
from fireiron.frozen import frozen
from fireiron.ir import Access, BlockCluster, Exec, For, Hole, IfAnyLane, Let, Stmt, effect, statements
from fireiron.ir.effect import Effects
from fireiron.language.execution import Execution
from fireiron.language.tree import Child, Context, Decomposition, Draft, Executable, Expansion, access_of
from fireiron.spec import Spec
from fireiron.values.expr import TRUE, Expr, Var, all_of
from fireiron.values.tensor import Storage, Tensor

OF_STATEMENT: Final = tuple(
    field.name for field in attrs.fields(Exec) if field.name not in ("instruction", "spec", "accesses", "active", "origin", "path")
)
"""The fields of a statement that a text may set after the name of its instruction."""

FORMER_FIELDS: Final = {"completion": "mechanism", "turn": "fill_index"}
"""The present names of statement fields, by their names in older texts."""

OF_ACCESS: Final = tuple(field.name for field in attrs.fields(Access) if field.eq)
"""The fields of an operand's access that a text may set."""


@frozen
class Loop:
    """A loop without its body, and the items of its body."""

    loop: For
    items: tuple[Item, ...]


@frozen
class Conditional:
    """Items that a thread executes only if a condition holds."""

    condition: Expr
    items: tuple[Item, ...]


@frozen
class IfAnyNonzero:
    """Items that a warp executes only if the register `needed` is not 0 in at least one of its threads."""

    needed: str
    items: tuple[Item, ...]


@frozen
class Leaf:
    """An atomic spec.

    `instruction` performs it, with `changes` to its statement. Without an instruction, the compiler chooses one that matches. `where` is
    the position of the spec in the text.
    """

    spec: Spec
    instruction: Executable | None = None
    changes: tuple[tuple[str, Any], ...] = ()
    where: str = attrs.field(default="", eq=False)


@frozen
class Inner:
    """A spec with its decomposition."""

    spec: Spec
    items: tuple[Item, ...]
    where: str = attrs.field(default="", eq=False)


Item = Stmt | Loop | Conditional | IfAnyNonzero | Leaf | Inner


@frozen
class Outermost:
    """The properties that a text specifies for the whole kernel. The fields are those of the kernel IR."""

    threads: int
    grid: Expr
    target: str = ""
    name: str = ""
    lets: tuple[Let, ...] = ()
    chosen_storage: tuple[tuple[Tensor, Storage], ...] = ()
    facts: tuple[tuple[str, Expr], ...] = ()
    title: tuple[str, ...] = ()
    effects: Effects = effect.NONE
    cluster: BlockCluster | None = None
    names: tuple[str, ...] = ()
    execution: Execution = attrs.field(factory=Execution)


@frozen
class Written(Decomposition):
    """The decomposition of a spec by a text. `outermost` is set only for the spec of the kernel."""

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
        """Return the target and the name of the kernel."""
        return ("", "") if self.outermost is None else (self.outermost.target, self.outermost.name)

    def threads(self, spec: Spec, context: Context) -> int | None:
        return None if self.outermost is None else self.outermost.threads

    def expand(self, spec: Spec, context: Context) -> Expansion:
        draft = context.draft()
        outermost_fields: dict[str, Any] = {}
        if self.outermost is not None:
            outermost_fields = _outermost_fields(self.outermost, draft)
        children: list[Child] = []
        program = _program(self.items, TRUE, draft, children)
        operand_names = {view.tensor.name for view in spec.operands.values()}
        names = [one.var.name for one in statements(program) if isinstance(one, (For, Let))]
        names += [view.tensor.name for child in children for view in child.spec.operands.values()]
        for name in dict.fromkeys(names):
            if name not in operand_names:
                draft.claim(Var(name))
        return draft.expansion(tuple(children), program, **outermost_fields)


def _outermost_fields(outermost: Outermost, draft: Draft) -> dict[str, Any]:
    """Return the fields of the outermost expansion, after adding the names of the text to the draft."""
    for name in outermost.names:
        draft.claim(Var(name))
    for let in outermost.lets:
        draft.define(let.var, let.value)
    for tensor, storage in outermost.chosen_storage:
        draft.choose_storage(tensor, storage)
    fields = ("facts", "grid", "effects", "cluster")
    return {name: getattr(outermost, name) for name in fields}


def _program(items: tuple[Item, ...], condition: Expr, draft: Draft, children: list[Child]) -> tuple[Stmt, ...]:
    program: list[Stmt] = []
    for item in items:
        match item:
            case Loop(loop=loop, items=inner):
                program.append(attrs.evolve(loop, body=_program(inner, condition, draft, children)))
            case Conditional(condition=more, items=inner):
                program += _program(inner, all_of((condition, more)), draft, children)
            case IfAnyNonzero(needed=needed, items=inner):
                program.append(IfAnyLane(needed, _program(inner, condition, draft, children)))
            case Leaf(instruction=Executable()):
                leaf_draft = attrs.evolve(draft, active=all_of((draft.active, condition)), origin=item.where or draft.origin)
                program += emit_leaf(item, leaf_draft)
                _require_whole_units(program[-1], leaf_draft)
            case Leaf(spec=spec, where=where):
                program.append(_child(spec, Done(origin=where or None), condition, children))
            case Inner(spec=spec, items=inner, where=where):
                program.append(_child(spec, Written(inner, origin=where or None), condition, children))
            case Stmt():
                program.append(item)
    return tuple(program)


def _child(spec: Spec, step: Decomposition, condition: Expr, children: list[Child]) -> Hole:
    name = f"{spec.title.lower()}{len(children) + 1}"
    children.append(Child(name, spec, (step,), condition))
    return Hole(name)


# ---------------------------------------------------------------------------------------------- atomic specs


def emit_leaf(leaf: Leaf, draft: Draft) -> tuple[Stmt, ...]:
    """Return the statements of an atomic spec with a named instruction."""
    assert leaf.instruction is not None
    mismatches = leaf.instruction.mismatches(leaf.spec, draft.architecture)
    if leaf.changes:
        mismatches = tuple(mismatch for mismatch in mismatches if mismatch.field == "target")
    if leaf.changes and not mismatches:
        return (with_changes(statement_of(leaf.instruction, leaf.spec, draft), leaf.changes),)
    if mismatches:
        rows = "; ".join(f"{mismatch.field} requires {mismatch.wanted}, got {mismatch.got}" for mismatch in mismatches)
        raise MatchError(f"{leaf.instruction.name} does not perform {leaf.spec}: {rows}", at=leaf.where or None)
    return leaf.instruction.emit(leaf.spec, draft)


def _require_whole_units(statement: Stmt, draft: Draft) -> None:
    """Refuse a condition that holds for only some threads of a unit, if the instruction needs all of them."""
    if not isinstance(statement, Exec) or not statement.lane_maps or draft.thread not in (active := _expanded(draft)).variables():
        return
    others = {var.name: var.low for var in active.variables() if var != draft.thread}
    together = max(32, statement.spec.level.threads or 1)
    holds = [bool(active.evaluate({**others, draft.thread.name: number})) for number in range(draft.thread.high + 1)]
    if any(len(set(holds[first : first + together])) > 1 for first in range(0, len(holds), together)):
        what = f"all {together} threads of a unit execute {statement.instruction.name}, but {draft.active} holds for only some of them"
        raise DecompositionError(what, within=statement.spec, at=draft.origin, hint="use a condition such as thread // 32 < 2")


def _expanded(draft: Draft) -> Expr:
    """Return the condition of a statement in terms of blocks, threads and loops only."""
    active, definitions = draft.active, draft.whole.definitions
    while not active.variables().isdisjoint(definitions):
        active = active.substitute({var: definitions[var] for var in active.variables() & set(definitions)})
    return active


def single_statement(instruction: Executable, spec: Spec, draft: Draft) -> Exec | None:
    """Return the statement that an instruction emits for a spec; None if it emits several statements or refuses the spec."""
    try:
        emitted = instruction.emit(spec, draft)
    except (FireironError, AssertionError):
        return None
    return emitted[0] if len(emitted) == 1 and isinstance(emitted[0], Exec) else None


def statement_of(instruction: Executable, spec: Spec, draft: Draft) -> Exec:
    """Return the statement to which a text's changes apply: the emitted statement, or else a statement that accesses all operands."""
    emitted = single_statement(instruction, spec, draft)
    if emitted is not None:
        return emitted
    accesses = tuple(access_of(view, name in spec.outputs, draft.origin) for name, view in spec.operands.items())
    return Exec(instruction, spec, accesses, spec.accumulate, draft.active, origin=draft.origin)


def with_changes(statement: Exec, changes: tuple[tuple[str, Any], ...]) -> Exec:
    """Return the statement with changed fields: fields of the statement, an operand's access, or a field of an access (`src.points`)."""
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
            raise unknown_field(name, statement.spec)
    return attrs.evolve(statement, accesses=tuple(accesses.values()), **fields)


def unknown_field(name: str, spec: Spec) -> LayoutError:
    """Return the error of a change to a field that the statement of a spec does not have."""
    return LayoutError(
        f"a statement of {spec.title} has no field {name}", legal=[*OF_STATEMENT, *(f"{one}.points" for one in spec.operands)]
    )


def require_changes(changes: tuple[tuple[str, Any], ...], spec: Spec) -> None:
    """Refuse changes to fields that the statement of a spec does not have."""
    for name, _ in changes:
        operand, dot, field = name.partition(".")
        if not (name in OF_STATEMENT or (operand in spec.operands and (not dot or field in OF_ACCESS))):
            raise unknown_field(name, spec)


def changes_of(statement: Exec, draft: Draft) -> tuple[tuple[str, Any], ...]:
    """Return the changes that a text must specify for a statement, in addition to its instruction and spec."""
    instruction = statement.instruction
    if not isinstance(instruction, Executable):
        raise DecompositionError(f"{instruction.name} is not an instruction")
    emitted = single_statement(instruction, statement.spec, draft)
    base = emitted or statement_of(instruction, statement.spec, draft)
    changes = tuple(_differences(base, statement))
    fits = emitted is not None and not instruction.mismatches(statement.spec, draft.architecture)
    return changes if changes or fits else (("vector", statement.vector),)


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
