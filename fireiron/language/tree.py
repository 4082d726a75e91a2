"""The decomposition tree, and the bases of what extends the language: Decomposition, Refinement, Executable.

A decomposition is one pure function, `expand(spec, context)`: the children are specs on views, the program is IR with a
`Hole` for each child. Nodes pair a spec with a decomposition; partial trees (open leaves) are legal to hold and print.
"""

from __future__ import annotations

import functools
import inspect
import operator
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Final, TypeVar

import attrs

from fireiron.errors import ArgumentError, DecompositionError, FireironError, IncompleteError, call_site, shown
from fireiron.generated_verbs import REFINEMENT_VERBS, OtherVerbs, StepVerbs
from fireiron.ir import (
    AT_ONCE,
    Access,
    BlockCluster,
    Buffer,
    Exec,
    For,
    Hole,
    Kernel,
    Let,
    Mechanism,
    Stmt,
    effect,
    execs,
    filled,
    located,
    statements,
)
from fireiron.ir.effect import Effects
from fireiron.ir.holding import Holding, owns
from fireiron.ir.rewrite import by_identities
from fireiron.ir.text import Item, Path, Printer
from fireiron.language.former import first_class
from fireiron.language.launching import Given, Launches
from fireiron.language.numerals import require_numerals
from fireiron.spec import Spec
from fireiron.specs.fused import fused
from fireiron.values.expr import BRACKETS, ONE, TRUE, Const, Expr, Var, all_of, constant
from fireiron.values.machine import Architecture, Block, DType
from fireiron.values.tensor import Storage, Tensor, View
from fireiron.values.typed import check_types
from fireiron.values.units import count_in, thread_name, unit_in

D = TypeVar("D", bound="Decomposition")
V = TypeVar("V", bound=Callable[..., Any])

MOST_STEPS = 100
"""Deepest chain of steps, copies included: about ten are usual, and every pass descends each level of the tree and its loops."""


OF_EACH_STEP: Final = ("refinements", "origin")
"""Fields of every step, which no verb takes."""

_NO_REFINEMENTS: Final = re.compile(r"(?<=\w)\(refinements=\(\)(, )?")
"""The field of every step in a `repr`, where it is empty: it says nothing there."""


def _called(value: Any, *found: type[Any]) -> str | None:
    """The call of the verb that makes a step or a refinement which was found in its folder; None where there is none."""
    name = next((name for one in found for name, method in vars(one).items() if getattr(method, "makes", None) is type(value)), None)
    if name is None:
        return None
    fields = (one for one in attrs.fields(type(value)) if one.init and one.name not in OF_EACH_STEP)
    said = (f"{one.alias}={getattr(value, one.name)!r}" for one in fields if getattr(value, one.name) != one.default)
    return f"{name}({', '.join(said)})"


def verb(*steps: str, name: str = "") -> Callable[[V], V]:
    """Make a function the verb of the step or the refinement in its file: a method of chains with its name, signature and docstring.

    The function returns the step or the refinement.

    Args: the verbs of the steps that a refinement refines here (none: all that it applies to); `name`, if the function has another.
    """

    def declared(make: V) -> V:
        make.__dict__.update(verb=name or make.__name__, applies_to=steps)
        return make

    return declared


@attrs.frozen
class Refinement:
    """Changes how a decomposition is carried out, never what it computes.

    Subclass it (a frozen attrs class), name the decompositions it `applies_to`, and override `plan` to change a
    decomposition's plan (a frozen value with fields such as `level` or `pad`), or `rewrite` to change its program.
    """

    verb: ClassVar[str] = ""
    """The name of a method of chains that takes the fields, if the class is in the package; other verbs are functions in its file."""

    applies_to: ClassVar[tuple[str, ...]] = ()

    usual: ClassVar[tuple[tuple[Any, ...], ...]] = ((),)
    """The arguments that matter, where they depend on neither the step nor its spec: `choices` are made of them."""

    @classmethod
    def choices(cls, step: Decomposition, spec: Spec, context: Context) -> Iterator[Refinement]:
        """Refinements of this kind that a step for a spec may have, among them one for each way in which it matters.

        Read by the generator of tests, so that a new file is drawn as soon as it is there. It need not judge what the step's `expand`, or
        the whole kernel, refuses.
        """
        needed = sum(one.default is attrs.NOTHING for one in attrs.fields(cls) if one.init)
        yield from (cls(*arguments) for arguments in cls.usual if len(arguments) >= needed)

    @property
    def idle(self) -> bool:
        """Whether it says nothing, as values of tunables made it: it is left out then, as if it had not been written."""
        return False

    def plan(self, plan: Any) -> Any:
        """The plan, changed with `attrs.evolve`; a `DecompositionError` where it does not go with what is planned already."""
        return plan

    def rewrite(self, expansion: Expansion, context: Context) -> Expansion:
        """The expansion, changed."""
        return expansion

    def __str__(self) -> str:
        return _called(self, OtherVerbs, *REFINEMENT_VERBS.values()) or f"refine({self!r})"

    def label(self) -> str:
        """The refinement as it is written in a chain: Python that evaluates. Those of this package have methods, others have `refine`."""
        return str(self) if type(self).__module__.partition(".")[0] == __name__.partition(".")[0] else f"refine({self!r})"


@attrs.frozen
class Child:
    """A sub-problem: its role, its spec on views, and the condition under which a thread takes part.

    `steps` is the strategy for it; None for the one that the rest of the chain decomposes. `prefix` starts the names of
    its variables. If `steps` follow who holds registers, and nobody says who does, `alone` are taken in their place. A child that warps
    may leave out has the spec that finds out where it is `needed`.
    """

    name: str
    spec: Spec
    steps: tuple[Decomposition, ...] | None = None
    active: Expr = TRUE
    prefix: str = ""
    alone: tuple[Decomposition, ...] = ()
    needed: Spec | None = None


@attrs.frozen
class Named:
    """A named value: depends on block, thread and sizes only, at most `high` in the threads that take part.

    A part of the tree with a `prefix` has names of its own.
    """

    value: Expr
    high: int
    prefix: str = ""


@attrs.frozen
class Expansion:
    """What a decomposition does to a spec: children, the program around them, and conditions the launcher must check.

    The other fields are what the step adds to the whole kernel. `names` are those that it made, of loops, buffers and
    values; `lets` its named values; `grid` the number of blocks, where it deals tiles to them; `part` the number of a
    block's part of k, for the step behind that knows the grid; `outer` the numbers of a block's tiles, with how many there are, where a
    step behind deals more of them; `effects` what is said of all blocks and of the launch; `cluster` the blocks that are launched together.
    A leaf `waits` if who performs it depends on who holds registers of its operands, and nobody said so yet; it is asked again when
    somebody does.
    `settled` are the storages of buffers that were free; `launches` tell of children which launch of a program of tasks each is of.
    """

    children: tuple[Child, ...]
    program: tuple[Stmt, ...]
    facts: tuple[tuple[str, Expr], ...] = ()
    names: tuple[str, ...] = attrs.field(default=(), kw_only=True)
    lets: tuple[tuple[Named, Var], ...] = attrs.field(default=(), kw_only=True)
    grid: Expr | None = attrs.field(default=None, kw_only=True)
    part: Var | None = attrs.field(default=None, kw_only=True)
    outer: tuple[tuple[Var, Expr], ...] = attrs.field(default=(), kw_only=True)
    effects: Effects = attrs.field(default=effect.NONE, kw_only=True)
    cluster: BlockCluster | None = attrs.field(default=None, kw_only=True)
    waits: bool = attrs.field(default=False, kw_only=True)
    settled: tuple[tuple[str, Storage], ...] = attrs.field(default=(), kw_only=True)
    launches: tuple[tuple[str, Any], ...] = attrs.field(default=(), kw_only=True, eq=False, repr=False)

    @property
    def has_kernel_effects(self) -> bool:
        """Whether it adds anything to the whole kernel."""
        said = (self.names, self.lets, self.effects, self.settled)
        return any((*said, self.grid is not None, self.part is not None))

    def child(self, name: str) -> Child:
        """A child by name; a `DecompositionError` that lists them if there is none."""
        for one in self.children:
            if one.name == name:
                return one
        raise DecompositionError(f"no child {name!r} here", legal=[one.name for one in self.children])

    def followed(self, name: str, inner: Expansion) -> Expansion:
        """Two steps as one: this one, whose child `name` the step behind it expanded to `inner`."""
        outer = self.child(name)
        children = tuple(attrs.evolve(one, active=all_of((outer.active, one.active))) for one in inner.children)
        others = tuple(one for one in self.children if one is not outer)
        return Expansion(
            (*others, *children),
            filled(self.program, {name: inner.program, **{one.name: (Hole(one.name),) for one in others}}),
            (*self.facts, *inner.facts),
            names=(*self.names, *inner.names),
            lets=(*self.lets, *inner.lets),
            grid=self.grid if inner.grid is None else inner.grid,
            part=self.part if inner.part is None else inner.part,
            outer=(*self.outer, *inner.outer),
            effects=self.effects.joined(inner.effects),
            cluster=inner.cluster or self.cluster,
            settled=(*self.settled, *inner.settled),
        )


def _undefined(extension: object, method: str) -> DecompositionError:
    name = type(extension).__name__
    return DecompositionError(f"{name} does not define {method}", hint=f"override it in the class {name}; see CONTRIBUTING")


def _check_refinements(step: Decomposition, _field: Any, value: object) -> None:
    if not isinstance(value, tuple) or not all(isinstance(one, Refinement) for one in value):
        raise DecompositionError("refinements must be a tuple of refinements", got=value, at=call_site())
    for one in value:
        if step.verb not in one.applies_to:
            raise DecompositionError(f"{type(one).__name__} does not refine {step.verb}", legal=one.applies_to, at=call_site())
        kind = type(one)
        if kind.plan is Refinement.plan and kind.rewrite is Refinement.rewrite:
            raise DecompositionError(
                f"{kind.__name__} overrides neither plan nor rewrite: it changes nothing",
                got=[name for name in vars(kind) if inspect.isfunction(vars(kind)[name]) and not name.startswith("__")] or "no method",
                hint="def plan(self, plan) or def rewrite(self, expansion, context); see CONTRIBUTING",
                at=call_site(),
            )


def _refinement_order(refinement: Refinement) -> tuple[bool, str]:
    """`to` first, as it is written; the others by their first names, so that a new name changes neither texts nor hashes."""
    name = type(refinement).__name__
    return name != "To", first_class(name)


@attrs.frozen
class Decomposition:
    """A step of a strategy.

    Subclass it (a frozen attrs class) and define `expand`, a pure function: names are made in a draft of the context, and
    reach the tree as fields of the `Expansion`. `refinements` hold at most one of each kind, in a canonical
    order, so that refinements chain in any order to equal values. `origin` is the line of the strategy.
    """

    verb: ClassVar[str] = ""
    whole_kernel: ClassVar[tuple[str, str]] = ("", "")
    """The target and the name of the kernel, as far as the step itself says them."""

    ends: ClassVar[bool] = False
    """Whether nothing comes behind it: it decomposes all that there is."""

    in_words: ClassVar[bool] = True
    """Whether `label()` is Python that evaluates to the step."""

    makes_launches: ClassVar[bool] = False
    """Whether it makes launches of a spec, by `launches`: then it comes before all steps that divide the work of one."""

    kinds: ClassVar[tuple[str, ...]] = ()
    """The kinds of specs that it can be legal for, by the names that chains start from; none: all. Type checkers offer its verb there."""

    refinements: tuple[Refinement, ...] = attrs.field(default=(), kw_only=True, validator=_check_refinements)
    origin: str | None = attrs.field(default=None, kw_only=True, eq=False, repr=False)

    def refined(self, refinement: Refinement) -> Decomposition:
        """The same step with a refinement, which replaces one of its kind; a `DecompositionError` where it refines other steps."""
        if not isinstance(refinement, Refinement):
            raise DecompositionError(f"refine({shown(refinement)}): not a refinement", at=call_site())
        if self.verb not in refinement.applies_to:
            raise DecompositionError(
                f"{type(refinement).__name__} does not refine {self.verb}",
                legal=f"it refines {', '.join(refinement.applies_to) or 'nothing'}",
                at=call_site(),
            )
        others = [other for other in self.refinements if type(other) is not type(refinement)]
        return attrs.evolve(self, refinements=tuple(sorted([*others, refinement], key=_refinement_order)))

    def unrefined(self, keep: tuple[type[Refinement], ...] = ()) -> Decomposition:
        """The same step without refinements, but for those kinds that say what is computed where."""
        return attrs.evolve(self, refinements=tuple(one for one in self.refinements if isinstance(one, keep)))

    def planned(self, plan: Any) -> Any:
        """A plan after all refinements."""
        for refinement in self.refinements:
            plan = refinement.plan(plan)
        return plan

    def expand(self, spec: Spec, context: Context) -> Expansion:
        """The children and the program; a `DecompositionError` where it is not legal for the spec."""
        if self.makes_launches:
            raise DecompositionError(
                f"{self.summary()}: launches come before the first step that divides the work of one", legal="first in a chain", within=spec
            )
        raise _undefined(self, "expand(self, spec, context)")

    def launches(self, spec: Spec, given: Given) -> Launches:
        """What a step that `makes_launches` makes of a spec; a `DecompositionError` where it is not legal for the spec."""
        raise _undefined(self, "launches(self, spec, given)")

    def threads(self, spec: Spec, context: Context) -> int | None:
        """The threads a block needs for this step, if this step fixes them."""
        return None

    def threads_of_copies(self, spec: Spec, context: Context) -> int | None:
        """The number of threads that the copies take among what it performs: they decide only where nothing else does."""
        return None

    @classmethod
    def choices(cls, spec: Spec, context: Context) -> Iterator[Decomposition]:
        """Steps of this kind that are legal for a spec, with the parameters that it has: for the generator of tests, tuner and messages.

        Where a kind does not say: the step without arguments, if it can be made so and is legal.
        """
        if all(one.default is not attrs.NOTHING for one in attrs.fields(cls) if one.init):
            yield from legal_among((cls(),), spec, context)

    def label(self) -> str:
        """The step as it is written in a chain: Python that evaluates, refinements included."""
        plain = attrs.evolve(self, refinements=())
        own = _NO_REFINEMENTS.sub("(", repr(plain), count=1)
        return (_called(plain, StepVerbs) or f"then({own})") + "".join(f".{refinement.label()}" for refinement in self.refinements)

    def summary(self) -> str:
        """The step for listings; long texts left out."""
        return self.label()

    def title(self) -> tuple[str, ...]:
        """The lines for the step in the header of the printed kernel."""
        return (f".{self.summary()}",)

    def differences(self, other: Decomposition) -> tuple[str, ...]:
        """What differs in another step of its kind, a line each, where the summary does not say it."""
        return ()


@attrs.frozen
class Mismatch:
    """Why an executable does not perform a spec: the field, what the executable wants, what the spec has.

    >>> from fireiron import *
    >>> half = MatMul(1, 1, 1, dtype=float16)(RF, RF, RF)(Thread)
    >>> print(*FFMA.mismatches(half, ARCHITECTURES[-1]), sep=", ")
    Mismatch(field='C type', wanted='float32', got='float16')
    """

    field: str
    wanted: str
    got: str


@attrs.frozen
class Executable:
    """An instruction or a micro-kernel: states the spec that it performs; its simulation is that spec's meaning.

    Subclass it (a frozen attrs class): `mismatches` compares a spec with what it performs, `cuda` is its text.
    """

    handles_edges: ClassVar[bool] = False
    """Whether its text tests each of several elements against the tensor's end by itself."""

    tests_edges: ClassVar[bool] = False
    """Whether its text is told how many elements of each operand lie inside the tensors, and tests them itself."""

    mechanism: ClassVar[Mechanism] = AT_ONCE
    """When what it does is done, and by which proxy it reaches memory."""

    packs: ClassVar[bool] = False
    """Whether its text takes two neighbours of 16 bits as one register, where they are kept so."""

    loads_together: ClassVar[bool] = False
    """Whether its text loads, or stores, neighbours in memory together, where they lie so."""

    rounds: ClassVar[DType | None] = None
    """The type in which its results are made before they are rounded, where it is another than the meaning of its spec says."""

    each: ClassVar[bool] = False
    """Whether its text, that of one thread, takes any number of elements, each by itself."""

    headers: ClassVar[tuple[str, ...]] = ()
    """The CUDA headers that its text needs, beside those of the element types."""

    name: str = ""

    def __attrs_post_init__(self) -> None:
        check_types(self)
        if not self.name.isprintable():
            what = f"{type(self).__name__}: its name is printed in comments, so it is one line of text"
            raise ArgumentError(what, got=self.name, at=call_site())

    def may_perform(self, spec: Spec) -> bool:
        """Whether a spec is worth comparing: false, at little cost, only where `mismatches` finds a difference on every target.

        A leaf is compared with all instructions, most of which a look at the kind, the level and the memories rules out.
        """
        return True

    def mismatches(self, spec: Spec, architecture: Architecture) -> tuple[Mismatch, ...]:
        """All differences between a spec and what this performs, rather than an error; none if it matches."""
        raise _undefined(self, "mismatches(self, spec, architecture)")

    def fits(self, spec: Spec, context: Context) -> tuple[Mismatch, ...]:
        """All differences, those that only the rest of the tree shows included: who holds a distributed operand."""
        return self.mismatches(spec, context.architecture)

    def performs(self) -> str:
        """The spec it performs, as text for listings."""
        return ""

    def takes_neighbours(self, spec: Spec) -> bool:
        """Whether its text takes several neighbours as well as the one element of a spec that it matches."""
        return False

    def on_pairs(self, spec: Spec, architecture: Architecture) -> Executable | None:
        """The same on pairs of neighbours of 16 bits, each pair in one register; None where its text takes no such pairs."""
        return None

    def unless_one(self, spec: Spec) -> str:
        """The operand that changes nothing where it is 1: a thread with no other values of it leaves the statement out; empty for none."""
        return ""

    def emit(self, spec: Spec, draft: Draft) -> tuple[Stmt, ...]:
        """The statements for a matching spec: one `Exec` on the operands' views."""
        return (execution(self, spec, draft),)

    def clamped_later(self, spec: Spec) -> Executable | None:
        """The same without the clamping at zero with which it ends, where all who read the result clamp it; None if it ends otherwise."""
        return None

    def clamping(self, spec: Spec) -> Executable | None:
        """The same with zero in the place of negative elements, where that costs its text less than a reader before it; None if not."""
        return None

    def declaration(self, kernel: Kernel, buffer: Buffer) -> str:
        """The declaration of a buffer in fragments, which only instructions like this one touch; an error where it has none."""
        raise _undefined(self, "declaration(self, kernel, buffer)")

    def cuda(self, printer: Printer, statement: Exec) -> Sequence[Item]:
        """The CUDA C++ for one `Exec`: lines, and blocks of them (see `fireiron.ir.text`)."""
        raise _undefined(self, "cuda(self, printer, statement)")


def access_of(view: View, write: bool, origin: str | None) -> Access:
    """The access to all elements of a view."""
    dims = view.numerals
    return Access(
        view.tensor.name,
        tuple(dim.base for dim in dims),
        tuple(dim.modes for dim in dims),
        tuple(None if view.memory.counts else dim.bound for dim in dims),  # all coordinates are known, those behind the end too
        write,
        view.copy,
        tuple(dim.dealt for dim in dims),
        origin=origin,
    )


def edge_refused(instruction: str, spec: Spec, name: str) -> DecompositionError:
    """The error of an instruction that takes all elements of an operand or none, where its last tile may overhang."""
    view = spec.operands[name]
    what = f"{instruction} takes all elements of {name} ({view.tensor.name}) or none, and the last tile may overhang"
    if not view.memory.private:
        return DecompositionError(
            what, hint="load the operand first (a load fills what lies outside), or make the size a multiple of the tile"
        )
    places = [place for place in range(len(view.dims)) if view.dims[place].bound is not None]
    ends = [(spec.uses[name][place], view.tensor.shape[view.axis(place)], view.shape[place]) for place in places]
    fits = [(dim, _multiples(constant(size) or 0, constant(tile) or 1)) for dim, size, tile in ends]
    hint = "such tiles on the way to the instruction, the last by tile(...).done()"
    short = [dim for dim, tiles in fits if not tiles]
    return DecompositionError(
        what,
        got="; ".join(f"{size} elements along {dim}, of which the instruction takes {tile}" for dim, size, tile in ends),
        legal="; ".join(f"tiles of {' or '.join(map(str, tiles))} along {dim}" for dim, tiles in fits if tiles) or None,
        hint=f"registers hold whole tiles: pad the operands along {', '.join(short)}, and mask what that adds" if short else hint,
    )


def _multiples(size: int, tile: int) -> list[int]:
    """The multiples of a tile that divide a size."""
    return [one for one in range(tile, size + 1, tile) if size % one == 0]


def execution(executable: Executable, spec: Spec, context: Context) -> Exec:
    """The statement that performs a spec on its views; refused where some of its elements may lie outside a tensor."""
    for name, view in spec.operands.items():
        if view.bounded and not view.memory.counts and not executable.handles_edges and any(size != ONE for size in view.shape):
            raise edge_refused(executable.name, spec, name)
    accesses = tuple(access_of(view, name in spec.outputs, context.origin) for name, view in spec.operands.items())
    return Exec(executable, spec, accesses, spec.accumulate, context.active, origin=context.origin)


# ---------------------------------------------------------------------------------------------- context


@attrs.frozen
class Whole:
    """What the steps of a tree have made for the whole kernel so far; the fields are those of `Expansion`, gathered.

    `taken` are the names that no step may make again, those of sizes and operands included.
    """

    taken: frozenset[str] = frozenset()
    lets: Mapping[Named, Var] = attrs.field(factory=dict)
    grid: Expr | None = None
    part: Var | None = None
    outer: tuple[tuple[Var, Expr], ...] = ()
    effects: Effects = effect.NONE
    settled: Mapping[str, Storage] = attrs.field(factory=dict)
    cluster: BlockCluster | None = None

    def after(self, expansion: Expansion) -> Whole:
        """The same behind one more step; itself where that step says nothing."""
        if not expansion.has_kernel_effects:
            return self
        return Whole(
            self.taken.union(expansion.names),
            {**self.lets, **dict(expansion.lets)} if expansion.lets else self.lets,
            self.grid if expansion.grid is None else expansion.grid,
            self.part if expansion.part is None else expansion.part,
            (*self.outer, *expansion.outer),
            self.effects.joined(expansion.effects),
            {**self.settled, **dict(expansion.settled)} if expansion.settled else self.settled,
            expansion.cluster or self.cluster,
        )

    @functools.cached_property
    def definitions(self) -> dict[Var, Expr]:
        """The named values by name, each behind those that it is made of."""
        return {var: named.value for named, var in self.lets.items()}


def _in_a_draft(what: str) -> DecompositionError:
    return DecompositionError(
        f"{what}: names are made in a draft of the context",
        hint="draft = context.draft(), then draft.fresh(...), loop_over(.., draft, ..) and return draft.expansion(children, program)",
    )


@attrs.frozen
class Context:
    """What an expansion may know: the target, the threads of a block, where in the tree it stands. It never changes.

    `workers` are the threads of a block to which tiles are dealt, None while they are still being counted. `block` and
    `thread` are the variables of the block's and the thread's number; `prefix` starts the names of variables; `active` is
    the condition under which a thread takes part. `held` says who holds what of tensors in registers, by tensor name, as far
    as it is decided; with `decides`, nobody else will say it, and who touches a tensor that is not there may decide by itself.
    `whole` is what the steps before have made for the whole kernel, `behind` the steps that follow in the chain; `left_out`
    are instructions that could take a part of what a producer loads, and not all of it. `needed` is that of the child.
    """

    architecture: Architecture
    instructions: tuple[Executable, ...]
    block: Var
    thread: Var
    workers: int | None = None
    path: tuple[str, ...] = ()
    prefix: str = ""
    active: Expr = TRUE
    origin: str | None = None
    held: Mapping[str, Holding] = attrs.field(factory=dict)
    decides: bool = False
    whole: Whole = attrs.field(factory=Whole)
    behind: tuple[Decomposition, ...] = ()
    left_out: tuple[Executable, ...] = ()
    needed: Spec | None = None

    def draft(self) -> Draft:
        """The context, to make names in: for one expansion."""
        return Draft(*_OF_CONTEXT(self))

    def after(self, expansion: Expansion) -> Context:
        """The context behind a step: what it made for the whole kernel is there."""
        return self.knowing(self.held, self.whole.after(expansion))

    def knowing(self, held: Mapping[str, Holding], whole: Whole) -> Context:
        """The context in which so much is decided; itself where no more is."""
        return self if held is self.held and whole is self.whole else self._with(held=held, whole=whole)

    def fresh(self, wanted: str) -> str:
        """Refused by an error: new names are made in a `Draft`."""
        raise _in_a_draft(f"fresh({wanted!r})")

    def let(self, wanted: str, value: Expr, high: int | None = None) -> Expr:
        """Refused by an error: values are named in a `Draft`."""
        raise _in_a_draft(f"let({wanted!r}, {value})")

    def unit(self, level: Any, parent: Any) -> Expr:
        """Refused by an error: units are named in a `Draft`."""
        raise _in_a_draft(f"unit({level}, {parent})")

    def units(self, level: Any, parent: Any) -> int:
        """How many units of `level` a unit of `parent` has."""
        return count_in(level, parent, self.workers)

    def enter(self, child: Child) -> Context:
        """The context of a child."""
        prefix = child.prefix if child.prefix.startswith(self.prefix) else self.prefix + child.prefix
        active = all_of((self.active, child.active))
        return self._with(path=(*self.path, child.name), prefix=prefix or self.prefix, active=active, needed=child.needed)

    def _with(self, **changed: Any) -> Context:
        """`attrs.evolve` of it, which a tree asks for at each node."""
        if type(self) is not Context:
            return attrs.evolve(self, **changed)
        return Context(**{**dict(zip(_FIELDS, _OF_CONTEXT(self), strict=True)), **changed})


_FIELDS: Final = tuple(field.name for field in attrs.fields(Context))
_OF_CONTEXT: Final = operator.attrgetter(*_FIELDS)


@attrs.frozen(eq=False)
class Draft(Context):
    """A context in which one expansion makes its names; they reach the tree as fields of its `expansion`, and by nothing else.

    Names come in order of request, so that the same expansion always makes the same; equal values share one name.
    """

    _names: dict[str, None] = attrs.field(factory=dict)
    _lets: dict[Named, Var] = attrs.field(factory=dict)
    _settled: dict[str, Storage] = attrs.field(factory=dict)

    def expansion(self, children: tuple[Child, ...], program: tuple[Stmt, ...], **more: Any) -> Expansion:
        """What the step does to its spec, with the names that it made; `more` are further fields of `Expansion`."""
        names, lets, settled = tuple(self._names), tuple(self._lets.items()), tuple(self._settled.items())
        return Expansion(children, program, names=names, lets=lets, settled=settled, **more)

    def fresh(self, wanted: str, otherwise: str = "") -> str:
        """A name that starts with the prefix of this part of the tree; if it is taken `otherwise`, and with a number if none is free."""
        return self._unused(self.prefix + (otherwise if otherwise and self._is_taken(self.prefix + wanted) else wanted))

    def _unused(self, wanted: str) -> str:
        name, number = wanted, 1
        while self._is_taken(name):
            number += 1
            name = f"{wanted}{number}"
        self._names[name] = None
        return name

    def _is_taken(self, name: str) -> bool:
        return name in self.whole.taken or name in self._names

    def settle(self, tensor: Tensor, storage: Storage) -> Storage:
        """Say how a free buffer lies in memory; the same again if another leaf said it, and refused where that said otherwise."""
        known = {**self.whole.settled, **self._settled}.get(tensor.name)
        if known is not None and known != storage:
            raise DecompositionError(
                f"{tensor.name}: two leaves want it stored differently, as {_stored(known)} and as {_stored(storage)}",
                at=self.origin,
                hint="load the operand twice, or say the storage: .storage_layout(...).swizzle_storage(...)",
            )
        self._settled[tensor.name] = storage
        return storage

    def claim(self, var: Var) -> None:
        """A name that a step before made, whose value stands in this expansion's program."""
        self._names[var.name] = None

    def define(self, var: Var, value: Expr) -> None:
        """Say the value of a name that a step before this one made, or that a text gives it."""
        named = Named(value, var.high)
        known = {**self.whole.lets, **self._lets}
        self._lets[named if known.get(named, var) == var else Named(value, var.high, var.name)] = var

    def let(self, wanted: str, value: Expr, high: int | None = None) -> Expr:
        """A name for a value that depends on block, thread and sizes only; the value itself where a name says no more.

        `high` narrows its range for threads that take part.
        """
        if isinstance(value, Const) or (isinstance(value, Var) and (high is None or high >= value.high)):
            return value
        known = {self.block.name, self.thread.name, *(var.name for lets in (self.whole.lets, self._lets) for var in lets.values())}
        if any(var.name not in known and not var.parameter and not var.name.endswith(BRACKETS) for var in value.variables()):
            return value
        top = value.high if high is None else min(high, value.high)
        for named in (Named(value, top), Named(value, top, self.prefix)):
            for lets in (self.whole.lets, self._lets):
                if named in lets:
                    return lets[named]
        own = self.prefix if self.prefix and wanted.startswith(self.prefix) else ""
        var = Var(self._unused(wanted), max(value.low, 0), top)
        self._lets[Named(value, top, own)] = var
        return var

    def unit(self, level: Any, parent: Any) -> Expr:
        """The number of this thread's unit of `level` inside its unit of `parent`, by name."""
        name = level.label if parent in (Block, level.parent) else f"{parent.label}_{level.label}"
        if level.threads == 1:
            name = thread_name(parent, "thread")
        return self.let(name, unit_in(level, parent, self.thread))


def _stored(storage: Storage) -> str:
    return f"{storage.layout}{f', {storage.swizzle}' if storage.swizzle else ''}"


# ---------------------------------------------------------------------------------------------- nodes


@attrs.frozen
class Node:
    """A spec with the step that decomposes it (None: an open leaf), its program and its children by name.

    A leaf that waits for who holds its registers keeps the context in which it will be expanded, and what it does `alone`. `names` are
    those that the step made: of values, loops and buffers; `launches` tell of children which launch of a program of tasks each is of.
    """

    spec: Spec
    step: Decomposition | None
    program: tuple[Stmt, ...] = attrs.field(default=(), repr=False)
    children: tuple[tuple[str, Node], ...] = attrs.field(default=(), repr=False)
    facts: tuple[tuple[str, Expr], ...] = attrs.field(default=(), repr=False)
    waiting: Context | None = attrs.field(default=None, repr=False)
    alone: tuple[Decomposition, ...] = attrs.field(default=(), repr=False)
    names: tuple[str, ...] = attrs.field(default=(), eq=False, repr=False)
    launches: tuple[tuple[str, Any], ...] = attrs.field(default=(), eq=False, repr=False)

    @functools.cached_property
    def complete(self) -> bool:
        """Whether every leaf is executable."""
        return self.step is not None and self.waiting is None and all(child.complete for _, child in self.children)

    @functools.cached_property
    def execs(self) -> tuple[tuple[Exec, tuple[For, ...]], ...]:
        """All statements that instructions perform with the loops around them, the main chain's first."""
        found = [(statement, tuple(around)) for statement, around in execs(self.program)]
        if self.children:
            placed = [(one.child, around) for one, around in located(self.program) if isinstance(one, Hole)]
            holes = {name: tuple(outer for outer in around if isinstance(outer, For)) for name, around in placed}
            for name, child in _bodies_first(self):
                loops = holes[name]
                found += [(statement, (*loops, *inner)) for statement, inner in child.execs] if loops else child.execs
        return tuple(found)

    @functools.cached_property
    def opens(self) -> bool:
        """Whether it, or anything below, is a leaf that nothing performs, and that does not wait for another."""
        return self.open or any(child.opens for _, child in self.children)

    @property
    def open(self) -> bool:
        """Whether it is a leaf that nothing performs, and does not wait for another."""
        return self.waiting is None and self.program == (Hole("open"),)

    def child(self, name: str) -> Node:
        """A child by name; a `DecompositionError` that lists them if there is none."""
        for other, node in self.children:
            if other == name:
                return node
        raise DecompositionError(f"no child {name!r} here", legal=[other for other, _ in self.children])

    def nodes(self) -> Iterator[Node]:
        """All nodes, parents first."""
        yield self
        for _, node in self.children:
            yield from node.nodes()

    def paths(self, path: Path = ()) -> Iterator[tuple[Path, Node]]:
        """All nodes, parents first, each with the names of children that lead to it."""
        yield path, self
        for name, node in self.children:
            yield from node.paths((*path, name))

    def open_leaves(self) -> tuple[Spec, ...]:
        """The specs that nothing performs yet."""
        return tuple(node.spec for node in self.nodes() if node.step is None)

    @property
    def residual(self) -> Spec:
        """The spec after the last step of the main chain."""
        node = self
        while node.children:
            node = node.children[_main(node)][1]
        return node.spec


def _main(node: Node) -> int:
    names = [name for name, _ in node.children]
    return names.index("body") if "body" in names else len(names) - 1


def grow(spec: Spec, steps: tuple[Decomposition, ...], context: Context) -> tuple[Node, Whole]:
    """The tree of a spec under a chain of steps, and what its steps made for the whole kernel.

    Who holds what of registers is a fixpoint: leaves that follow wait until somebody decides it, in whatever part of the tree.
    """
    node, whole = _grown(spec, steps, context)
    tried: Tried = {}
    while not node.complete and any(_waiting(node)):
        held = held_by(node)
        again, whole = _again(node, held, whole, tried)
        if again is node:
            again, whole = _decided(node, held, whole)
        if again is node:
            break
        node = again
    return node, whole


def _grown(spec: Spec, steps: tuple[Decomposition, ...], context: Context) -> tuple[Node, Whole]:
    """The tree as far as it is decided by what stands before; the main chain grows first, so that it has the plain names."""
    if not steps:
        return Node(spec, None, (Hole("open"),)), context.whole
    step, rest = steps[0], steps[1:]
    _require_shallow(spec, step, context)
    here = context._with(origin=step.origin or context.origin, behind=rest)
    expansion = expanded(step, spec, here)
    if expansion.waits:
        return Node(spec, step, expansion.program, waiting=context), context.whole
    here = here.after(expansion)
    grown: dict[str, Node] = {}
    order = sorted(expansion.children, key=lambda one: one.steps is not None)
    for number, child in enumerate(order):
        node, whole = _grown(child.spec, rest if child.steps is None else child.steps, here.enter(child))
        grown[child.name] = _or_alone(node, child.alone)
        asked = _in_registers(one.spec for one in order[number + 1 :]) - set(here.held)
        here = here.knowing({**held_by(node, asked), **here.held} if asked else here.held, whole)
    children = tuple((child.name, grown[child.name]) for child in expansion.children)
    return Node(spec, step, expansion.program, children, expansion.facts, names=expansion.names, launches=expansion.launches), here.whole


def _or_alone(node: Node, alone: tuple[Decomposition, ...]) -> Node:
    """The node, if it waits with what it does where nobody decides for it."""
    return attrs.evolve(node, alone=alone) if alone and node.waiting is not None else node


def _in_registers(specs: Iterable[Spec]) -> set[str]:
    """The tensors in registers that specs touch."""
    return {view.tensor.name for spec in specs for view in spec.operands.values() if view.memory.private}


def _waiting(node: Node) -> Iterator[Node]:
    """The leaves that wait, those of the main chain first."""
    if node.waiting is not None:
        yield node
    for _, child in _bodies_first(node):
        yield from _waiting(child)


def _bodies_first(node: Node) -> list[tuple[str, Node]]:
    return sorted(node.children, key=lambda pair: pair[0] != "body")


Tried = dict[int, tuple[Node, Any]]
"""By their identity, the leaves that were tried in vain, with what was known of their registers."""


def _again(node: Node, held: Mapping[str, Holding], whole: Whole, tried: Tried) -> tuple[Node, Whole]:
    """The tree with each leaf that waits tried once more, if more of what it touches is held now; itself where none can be performed."""
    if node.complete:
        return node, whole
    if node.waiting is not None and node.step is not None:
        needed = () if node.waiting.needed is None else (node.waiting.needed,)
        known = {name: held.get(name) for name in sorted(_in_registers((node.spec, *needed)))}, whole.settled
        if id(node) in tried and tried[id(node)][1] == known:
            return node, whole
        found, after = _grown(node.spec, (node.step,), attrs.evolve(node.waiting, held=held, whole=whole))
        if found.waiting is not None:
            tried[id(node)] = node, known
            return node, whole
        return found, after
    grown = {}
    for name, child in _bodies_first(node):
        grown[name], whole = _again(child, held, whole, tried)
    if all(grown[name] is child for name, child in node.children):
        return node, whole
    return attrs.evolve(node, children=tuple((name, grown[name]) for name, _ in node.children)), whole


def _decided(node: Node, held: Mapping[str, Holding], whole: Whole) -> tuple[Node, Whole]:
    """The tree where the first leaf that can decides by itself who holds its registers; refused if none can.

    As long as other leaves are open nobody does, as who decides may come there.
    """
    if node.opens:
        return node, whole
    refused: FireironError | None = None
    for leaf in sorted(_waiting(node), key=lambda one: not _follows(one.spec, held)):
        assert leaf.waiting is not None and leaf.step is not None
        for steps in filter(None, ((leaf.step,), leaf.alone)):
            try:
                found, after = _grown(leaf.spec, steps, attrs.evolve(leaf.waiting, held=held, decides=True, whole=whole))
            except FireironError as error:
                refused = _told(error, node, leaf)
                continue
            if not found.opens:
                return _replaced(node, leaf, found), after
    if refused is not None:
        raise refused
    return node, whole


def _follows(spec: Spec, held: Mapping[str, Holding]) -> bool:
    """Whether it is known who holds an operand that has all dimensions of a spec: others then follow it, and none has to decide."""
    return any(len(spec.uses[name]) == len(spec.dims) and view.tensor.name in held for name, view in spec.operands.items())


def _replaced(node: Node, old: Node, new: Node) -> Node:
    if node is old:
        return new
    children = node.children if node.complete else tuple((name, _replaced(child, old, new)) for name, child in node.children)
    same = all(child is other for (_, child), (_, other) in zip(children, node.children, strict=True))
    return node if same else attrs.evolve(node, children=children)


def _told(error: FireironError, node: Node, leaf: Node) -> FireironError:
    """Why a leaf finds no holder: what holds its registers is known to a text only, or else as it says itself."""
    names = _in_registers((leaf.spec,))
    for inner in node.nodes():
        for statement, _ in execs(inner.program):
            name = next((access.buffer for access in statement.accesses if access.buffer in names), None)
            if statement.collective and name is not None:
                return DecompositionError(
                    f"{statement.instruction.name} performs {statement.spec} as a whole: what threads hold of {name}, only its text knows",
                    within=leaf.spec,
                    at=statement.origin,
                    legal="epilog(memory, init, store)",
                    hint="an init and a store by micro-kernels too, or tiles for Thread before done(...)",
                )
    return error


def _require_shallow(spec: Spec, step: Decomposition, context: Context) -> None:
    if len(context.path) >= MOST_STEPS:
        raise DecompositionError(
            f"a chain of more than {MOST_STEPS} steps", within=f"{spec} / {step.label()}", at=step.origin, legal=f"at most {MOST_STEPS}"
        )


def legal_among(steps: Iterable[D], spec: Spec, context: Context) -> Iterator[D]:
    """Those steps that expand a spec without an error."""
    for step in steps:
        try:
            expanded(step, spec, context)
        except FireironError:
            continue
        yield step


def expanded(step: Decomposition, spec: Spec, context: Context) -> Expansion:
    """What a step and its refinements do to a spec; refused where they do not keep to the contract of `Expansion`."""
    try:
        expansion = _checked(step.expand(spec, context), step, "expand", spec)
        for refinement in step.refinements:
            expansion = _checked(refinement.rewrite(expansion, context), refinement, "rewrite", spec)
        # While threads are counted, a thread's number has any value.
        for child in expansion.children if context.workers is not None else ():
            require_numerals(spec, child.spec, type(step).__name__)
    except FireironError as error:
        raise error.located(within=f"{spec} / {step.label()}", at=context.origin) from None
    return expansion


def _checked(expansion: Expansion, extension: Decomposition | Refinement, method: str, spec: Spec) -> Expansion:
    """The expansion, if its children have holes, and the names that it binds are those it says."""
    what = f"{type(extension).__name__}.{method}"
    if not isinstance(expansion, Expansion):
        raise DecompositionError(f"{what} must return an Expansion", got=expansion, hint="return Expansion(children, program)")
    names = [child.name for child in expansion.children]
    inside = tuple(statements(expansion.program))
    holes = [statement.child for statement in inside if isinstance(statement, Hole)]
    if sorted(holes) != sorted(set(names)) and not (not names and holes == ["open"]):
        raise DecompositionError(f"{what}: the holes of its program are not its children", got=holes or "none", legal=names or "none")
    if len(set(names)) != len(names):
        raise DecompositionError(f"{what}: two children share a name", got=names)
    made = {statement.var.name for statement in inside if isinstance(statement, (For, Let))}
    made |= {view.tensor.name for child in expansion.children for view in child.spec.operands.values()}
    unsaid = made - {view.tensor.name for view in spec.operands.values()} - set(expansion.names)
    if unsaid:
        raise DecompositionError(
            f"{what}: it makes the names {', '.join(sorted(unsaid))}, which its Expansion does not say",
            hint="draft = context.draft(), names by draft.fresh(...), and return draft.expansion(children, program)",
        )
    return expansion


def held_by(node: Node, names: Collection[str] | None = None) -> dict[str, Holding]:
    """Who holds what of tensors in registers that a tree touches: of those that `names` asks for, or all.

    Who reads a tensor decides, or who adds to an accumulator; the first one counts, and others only where there is none, those that follow
    last. What a group of threads does as a whole, by a text, says nothing.
    """
    owned: dict[str, Holding | None] = {}
    others: dict[str, Holding] = {}
    following: dict[str, Holding] = {}
    for statement, loops in node.execs:
        for access, view in zip(statement.accesses, statement.spec.operands.values(), strict=False):
            name = access.buffer
            if name in owned or not (view.memory.private if names is None else name in names):
                continue
            if owns(view.tensor, statement, access):
                owned[name] = None if statement.collective else _holding(statement, access, *loops)
            elif name not in (following if statement.follows else others) and not statement.collective:
                (following if statement.follows else others)[name] = _holding(statement, access, *loops)
    return {name: holding for name, holding in {**following, **others, **owned}.items() if holding is not None}


@by_identities  # a tree is asked again and again while it grows
def _holding(statement: Exec, access: Access, *loops: For) -> Holding:
    return Holding.of(statement, access, loops)


def count_workers(spec: Spec, steps: tuple[Decomposition, ...], context: Context) -> int | None:
    """The threads of a block to which tiles are dealt: what the first step of the body that deals them to groups of threads needs.

    Where no step of the body does, those count that fill an array in registers in front of it: then they decide who holds what. An error
    of a step is raised again, with its place in the strategy.
    """
    of_body, of_loads = _counted(spec, steps, context)
    return of_loads if of_body is None else of_body


def _counted(spec: Spec, steps: tuple[Decomposition, ...], context: Context) -> tuple[int | None, int | None]:
    """The threads that the body needs, and the most that a load to registers or a step that copies does."""
    if not steps:
        return None, None
    step, rest = steps[0], steps[1:]
    _require_shallow(spec, step, context)
    try:
        needed = step.threads(spec, context)
        if needed is not None:
            return needed, None
        here = context._with(origin=step.origin or context.origin, behind=rest)
        expansion = _checked(step.expand(spec, here), step, "expand", spec)
    except FireironError as error:
        raise error.located(within=f"{spec} / {step.label()}", at=step.origin) from None
    behind = context.after(expansion)
    counted = [_counted(child.spec, rest, behind.enter(child)) for child in expansion.children if child.steps is None]
    bodies = [of_body for of_body, _ in counted if of_body is not None]
    if bodies:
        return max(bodies), None
    loads = [
        count_workers(child.spec, child.steps or (), behind.enter(child)) for child in expansion.children if _fills_registers(child, spec)
    ]
    loads.append(step.threads_of_copies(spec, context))
    found = [count for count in (*loads, *(of_loads for _, of_loads in counted)) if count is not None]
    return None, max(found, default=None)


def _fills_registers(child: Child, spec: Spec) -> bool:
    """Whether a child with steps of its own writes to registers that are new below a spec; its outputs are only stored to."""
    written = [child.spec.operands[name] for name in child.spec.outputs]
    fresh = _in_registers((child.spec,)) - _in_registers((spec,))
    return child.steps is not None and all(view.tensor.name in fresh for view in written)


def require_complete(node: Node) -> None:
    """Refuse a tree with open leaves."""
    leaves = node.open_leaves()
    if leaves:
        listing = "; ".join(str(leaf) for leaf in leaves[:4])
        raise IncompleteError(
            f"{len(leaves)} open {'leaf' if len(leaves) == 1 else 'leaves'}: {listing}",
            within=node.spec,
            at=_last_origin(node),
            hint=_missing_step(node) or "decompose further and end with .done(), or .done(micro_kernel)",
        )


def _last_origin(node: Node) -> str | None:
    """Where the last step stands that leads to an open leaf; None where none does."""
    origin = None
    while True:
        origin = getattr(node.step, "origin", None) or origin
        child = next((child for _, child in node.children if not child.complete), None)
        if child is None:
            return origin
        node = child


def _missing_step(node: Node) -> str | None:
    """The verb that an open step of a definition lacks; None where none is open without a strategy."""
    for parent in node.nodes():
        made = fused(parent.spec)
        for name, child in parent.children:
            if made is not None and child.step is None and name in made.names and made.strategy_of(name) is None:
                return f'.step("{name}", {child.spec.title}. ... .done()): nothing else says who holds the elements of a product'
    return None
