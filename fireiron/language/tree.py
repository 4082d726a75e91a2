"""The decomposition tree, and the base classes of extensions: Decomposition, Refinement, Executable.

A decomposition is one pure function, `expand(spec, context)`. It returns children, which are specs on views, and a program, which is IR
with a `Hole` for each child. A node pairs a spec with a decomposition. A tree may be partial: it then has open leaves.
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
from fireiron.frozen import evolve, frozen
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
from fireiron.ir.register_ownership import Ownership, owns
from fireiron.ir.rewrite import by_identities
from fireiron.ir.text import Function, Item, Path, Printer
from fireiron.language.former import first_class
from fireiron.language.launching import Given, Launches
from fireiron.language.numerals import require_numerals
from fireiron.language.segments import Segment
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
"""Maximum number of steps of a chain, including those of copies; about ten are usual. Every pass descends all levels of the tree."""

OF_EACH_STEP: Final = ("refinements", "origin")
"""Fields of every step that are not arguments of verbs."""

_NO_REFINEMENTS: Final = re.compile(r"(?<=\w)\(refinements=\(\)(, )?")
"""Matches the empty `refinements` of a step in a `repr`, which labels omit."""


def _verb_call(value: Any, *owners: type[Any]) -> str | None:
    """Return the call of the verb that makes a step or a refinement; None if the classes `owners` have no such verb."""
    methods = ((name, method) for owner in owners for name, method in vars(owner).items())
    name = next((name for name, method in methods if getattr(method, "makes", None) is type(value)), None)
    if name is None:
        return None
    fields = (field for field in attrs.fields(type(value)) if field.init and field.name not in OF_EACH_STEP)
    arguments = (f"{field.alias}={getattr(value, field.name)!r}" for field in fields if getattr(value, field.name) != field.default)
    return f"{name}({', '.join(arguments)})"


def verb(*steps: str, name: str = "") -> Callable[[V], V]:
    """Make a function a verb: chains get a method with its name, signature and docstring.

    The function returns the step or the refinement.

    Args:
        steps: the verbs of the steps that the method refines (none: all that the refinement applies to).
        name: the name of the verb, if it is not that of the function.
    """

    def declare(make: V) -> V:
        make.__dict__.update(verb=name or make.__name__, applies_to=steps)
        return make

    return declare


@frozen
class Refinement:
    """A change of how a decomposition is carried out, never of what it computes.

    Subclass it (a frozen attrs class) and name the decompositions that it `applies_to`. Override `plan` to change a decomposition's plan
    (a frozen value with fields such as `level` or `pad`), or `rewrite` to change its program.
    """

    verb: ClassVar[str] = ""
    """The name of the method of chains whose arguments are the fields. Other verbs of a refinement are functions in its file."""

    applies_to: ClassVar[tuple[str, ...]] = ()

    usual: ClassVar[tuple[tuple[Any, ...], ...]] = ((),)
    """Representative arguments, if they depend on neither the step nor its spec. `choices` uses them."""

    @classmethod
    def choices(cls, step: Decomposition, spec: Spec, context: Context) -> Iterator[Refinement]:
        """Yield refinements of this kind that a step for a spec may have, with at least one for each distinct effect.

        The test generator calls it, so that it covers a new refinement without further changes. It need not predict what the step's
        `expand` or the whole kernel refuses.
        """
        needed = sum(field.default is attrs.NOTHING for field in attrs.fields(cls) if field.init)
        yield from (cls(*arguments) for arguments in cls.usual if len(arguments) >= needed)

    @property
    def idle(self) -> bool:
        """Whether it has no effect, due to values of tunables. It is then dropped from the step."""
        return False

    def plan(self, plan: Any) -> Any:
        """Return the plan, changed with `attrs.evolve`; raise a `DecompositionError` if it contradicts the plan so far."""
        return plan

    def rewrite(self, expansion: Expansion, context: Context) -> Expansion:
        """Return the changed expansion."""
        return expansion

    def __str__(self) -> str:
        return _verb_call(self, OtherVerbs, *REFINEMENT_VERBS.values()) or f"refine({self!r})"

    def label(self) -> str:
        """Return the refinement as a call in a chain, which evaluates: its method if it is part of this package, otherwise `refine`."""
        return str(self) if type(self).__module__.partition(".")[0] == __name__.partition(".")[0] else f"refine({self!r})"


@frozen
class Child:
    """A sub-problem of a step.

    Attributes:
        name: the role of the child.
        spec: its spec on views.
        steps: its strategy; None if the rest of the chain decomposes the child.
        active: the condition under which a thread takes part.
        prefix: the prefix of the names of its variables.
        alone: the steps to use if `steps` depend on the owners of registers and no other leaf determines the owners.
        needed: if warps may skip the child, the spec that computes in which threads it is needed.
        words: if the child scans a tile of a longer dimension, the part of a workspace in which its block publishes totals.
    """

    name: str
    spec: Spec
    steps: tuple[Decomposition, ...] | None = None
    active: Expr = TRUE
    prefix: str = ""
    alone: tuple[Decomposition, ...] = ()
    needed: Spec | None = None
    words: tuple[View, ...] | None = None


@frozen
class Named:
    """A named value that depends on block, thread and sizes only, and is at most `high` in the threads that take part.

    Parts of the tree with different `prefix` use different names.
    """

    value: Expr
    high: int
    prefix: str = ""


@frozen
class Expansion:
    """The result of a decomposition for one spec.

    Attributes:
        children: the sub-problems.
        program: the program around them.
        facts: conditions that the launcher must check.

    Additions to the whole kernel:
        names: the new names of loops, buffers and values.
        lets: the named values.
        grid: the number of blocks, if the step distributes tiles over blocks.
        part: the index of a block's part of k, for a later step that determines the grid.
        segment: the part of a tile's iterations along k that a block computes, for later steps, if blocks share tiles by Stream-K.
        outer: the indices of a block's tiles, each with the number of tiles, if a later step distributes more dimensions over blocks.
        effects: properties of all blocks and of the launch.
        cluster: the blocks of a cluster.
        waits: whether the leaf must wait: its instruction depends on the owners of its registers, which are not determined yet.
        chosen_storage: the storage chosen for buffers without one.
        launches: by child, the launch of a task program that it belongs to.
    """

    children: tuple[Child, ...]
    program: tuple[Stmt, ...]
    facts: tuple[tuple[str, Expr], ...] = ()
    names: tuple[str, ...] = attrs.field(default=(), kw_only=True)
    lets: tuple[tuple[Named, Var], ...] = attrs.field(default=(), kw_only=True)
    grid: Expr | None = attrs.field(default=None, kw_only=True)
    part: Var | None = attrs.field(default=None, kw_only=True)
    segment: Segment | None = attrs.field(default=None, kw_only=True)
    outer: tuple[tuple[Var, Expr], ...] = attrs.field(default=(), kw_only=True)
    effects: Effects = attrs.field(default=effect.NONE, kw_only=True)
    cluster: BlockCluster | None = attrs.field(default=None, kw_only=True)
    waits: bool = attrs.field(default=False, kw_only=True)
    chosen_storage: tuple[tuple[str, Storage], ...] = attrs.field(default=(), kw_only=True)
    launches: tuple[tuple[str, Any], ...] = attrs.field(default=(), kw_only=True, eq=False, repr=False)

    @property
    def has_kernel_effects(self) -> bool:
        """Whether the step adds anything to the whole kernel."""
        parts = (self.names, self.lets, self.effects, self.chosen_storage)
        return any((*parts, self.grid is not None, self.part is not None, self.segment is not None))

    def child(self, name: str) -> Child:
        """Return a child by name; raise a `DecompositionError` that lists the children if there is none."""
        for child in self.children:
            if child.name == name:
                return child
        raise DecompositionError(f"no child {name!r} here", legal=[child.name for child in self.children])

    def followed(self, name: str, inner: Expansion) -> Expansion:
        """Return the composition of two steps: this one, and the next step, which expanded child `name` to `inner`."""
        outer = self.child(name)
        children = tuple(evolve(child, active=all_of((outer.active, child.active))) for child in inner.children)
        others = tuple(child for child in self.children if child is not outer)
        return Expansion(
            (*others, *children),
            filled(self.program, {name: inner.program, **{child.name: (Hole(child.name),) for child in others}}),
            (*self.facts, *inner.facts),
            names=(*self.names, *inner.names),
            lets=(*self.lets, *inner.lets),
            grid=self.grid if inner.grid is None else inner.grid,
            part=self.part if inner.part is None else inner.part,
            segment=self.segment if inner.segment is None else inner.segment,
            outer=(*self.outer, *inner.outer),
            effects=self.effects.joined(inner.effects),
            cluster=inner.cluster or self.cluster,
            chosen_storage=(*self.chosen_storage, *inner.chosen_storage),
        )


def _undefined(extension: object, method: str) -> DecompositionError:
    name = type(extension).__name__
    return DecompositionError(f"{name} does not define {method}", hint=f"override it in the class {name}; see CONTRIBUTING")


def _check_refinements(step: Decomposition, _field: Any, value: object) -> None:
    if not isinstance(value, tuple) or not all(isinstance(refinement, Refinement) for refinement in value):
        raise DecompositionError("refinements must be a tuple of refinements", got=value, at=call_site())
    for refinement in value:
        kind = type(refinement)
        if step.verb not in refinement.applies_to:
            raise DecompositionError(f"{kind.__name__} does not refine {step.verb}", legal=refinement.applies_to, at=call_site())
        if kind.plan is Refinement.plan and kind.rewrite is Refinement.rewrite:
            raise DecompositionError(
                f"{kind.__name__} overrides neither plan nor rewrite, so it has no effect",
                got=[name for name in vars(kind) if inspect.isfunction(vars(kind)[name]) and not name.startswith("__")] or "no method",
                hint="def plan(self, plan) or def rewrite(self, expansion, context); see CONTRIBUTING",
                at=call_site(),
            )


def _refinement_order(refinement: Refinement) -> tuple[bool, str]:
    """Sort key: `to` first, the others by their original class names, so that renaming a class changes neither texts nor hashes."""
    name = type(refinement).__name__
    return name != "To", first_class(name)


@frozen
class Decomposition:
    """A step of a strategy.

    Subclass it (a frozen attrs class) and define `expand`, a pure function. `expand` makes new names in a draft of the context; they are
    fields of its `Expansion`.

    Attributes:
        refinements: at most one of each kind, in a canonical order, so that steps are equal if they were refined in another order.
        origin: the line of the strategy.
    """

    verb: ClassVar[str] = ""
    whole_kernel: ClassVar[tuple[str, str]] = ("", "")
    """The target and the name of the kernel, if the step itself determines them."""

    ends: ClassVar[bool] = False
    """Whether the step decomposes the spec completely, so that no step can follow."""

    in_words: ClassVar[bool] = True
    """Whether `label()` is Python that evaluates to the step."""

    makes_launches: ClassVar[bool] = False
    """Whether the step divides a spec into launches (`launches`). It must then precede all steps that divide the work of one launch."""

    kinds: ClassVar[tuple[str, ...]] = ()
    """The kinds of specs for which the step can be legal (none: all), as names of starts of chains. Type checkers accept its verb there."""

    refinements: tuple[Refinement, ...] = attrs.field(default=(), kw_only=True, validator=_check_refinements)
    origin: str | None = attrs.field(default=None, kw_only=True, eq=False, repr=False)

    def refined(self, refinement: Refinement) -> Decomposition:
        """Return the step with a refinement, which replaces one of the same kind.

        Raises: a `DecompositionError` if the refinement does not refine this step.
        """
        if not isinstance(refinement, Refinement):
            raise DecompositionError(f"refine({shown(refinement)}): the argument is not a refinement", at=call_site())
        if self.verb not in refinement.applies_to:
            raise DecompositionError(
                f"{type(refinement).__name__} does not refine {self.verb}",
                legal=f"it refines {', '.join(refinement.applies_to) or 'nothing'}",
                at=call_site(),
            )
        others = [other for other in self.refinements if type(other) is not type(refinement)]
        return evolve(self, refinements=tuple(sorted([*others, refinement], key=_refinement_order)))

    def unrefined(self, keep: tuple[type[Refinement], ...] = ()) -> Decomposition:
        """Return the step without refinements, except those of the kinds `keep`."""
        return evolve(self, refinements=tuple(refinement for refinement in self.refinements if isinstance(refinement, keep)))

    def planned(self, plan: Any) -> Any:
        """Return a plan after all refinements."""
        for refinement in self.refinements:
            plan = refinement.plan(plan)
        return plan

    def expand(self, spec: Spec, context: Context) -> Expansion:
        """Return the children and the program. Raises: `DecompositionError` if the step is not legal for the spec."""
        if self.makes_launches:
            raise DecompositionError(
                f"{self.summary()} must precede all steps that divide the work of one launch",
                legal="at the start of a chain",
                within=spec,
            )
        raise _undefined(self, "expand(self, spec, context)")

    def launches(self, spec: Spec, given: Given) -> Launches:
        """Return the launches of a step that `makes_launches`. Raises: `DecompositionError` if it is not legal for the spec."""
        raise _undefined(self, "launches(self, spec, given)")

    def threads(self, spec: Spec, context: Context) -> int | None:
        """Return the number of threads per block that this step requires; None if it does not determine it."""
        return None

    def threads_of_copies(self, spec: Spec, context: Context) -> int | None:
        """Return the number of threads that its copies require. It is used only if no other step determines the number of threads."""
        return None

    @classmethod
    def choices(cls, spec: Spec, context: Context) -> Iterator[Decomposition]:
        """Yield steps of this kind that are legal for a spec, for the test generator, the tuner and messages.

        By default, yield the step without arguments, if it needs none and is legal.
        """
        if all(field.default is not attrs.NOTHING for field in attrs.fields(cls) if field.init):
            yield from legal_among((cls(),), spec, context)

    def label(self) -> str:
        """Return the step, with its refinements, as calls in a chain, which evaluate."""
        plain = evolve(self, refinements=())
        own = _NO_REFINEMENTS.sub("(", repr(plain), count=1)
        return (_verb_call(plain, StepVerbs) or f"then({own})") + "".join(f".{refinement.label()}" for refinement in self.refinements)

    def summary(self) -> str:
        """Return the step for listings, without long texts."""
        return self.label()

    def title(self) -> tuple[str, ...]:
        """Return the lines for the step in the header comment of the printed kernel."""
        return (f".{self.summary()}",)

    def differences(self, other: Decomposition) -> tuple[str, ...]:
        """Return the differences to another step of the same kind, one per line, that the summary does not show."""
        return ()


@frozen
class Mismatch:
    """A reason why an executable does not match a spec: the field, the value that the executable needs, the value of the spec.

    >>> from fireiron import *
    >>> half = MatMul(1, 1, 1, dtype=float16)(RF, RF, RF)(Thread)
    >>> print(*FFMA.mismatches(half, ARCHITECTURES[-1]), sep=", ")
    Mismatch(field='C type', wanted='float32', got='float16')
    """

    field: str
    wanted: str
    got: str


@frozen
class Executable:
    """An instruction or a micro-kernel. It states the spec that it performs; the simulator executes the meaning of that spec.

    Subclass it (a frozen attrs class). `mismatches` compares a spec with what it performs, `cuda` returns its text.
    """

    handles_edges: ClassVar[bool] = False
    """Whether its text tests each element against the end of the tensor."""

    tests_edges: ClassVar[bool] = False
    """Whether its text receives the number of elements of each operand inside the tensors, and tests against it."""

    mechanism: ClassVar[Mechanism] = AT_ONCE
    """The completion mechanism of its effects, and the proxy by which it accesses memory."""

    packs: ClassVar[bool] = False
    """Whether its text accepts two adjacent 16-bit elements packed in one register."""

    loads_together: ClassVar[bool] = False
    """Whether its text loads or stores adjacent elements of memory as one vector."""

    rounds: ClassVar[DType | None] = None
    """The type in which it computes results before rounding, if it differs from the meaning of its spec."""

    each: ClassVar[bool] = False
    """Whether its text, which one thread executes, accepts any number of elements and treats each separately."""

    headers: ClassVar[tuple[str, ...]] = ()
    """The CUDA headers that its text needs, in addition to those of the element types."""

    prints: ClassVar[bool] = False
    """Whether it prints the elements that the condition of its formula selects; the simulator prints the same lines."""

    name: str = ""

    def __attrs_post_init__(self) -> None:
        check_types(self)
        if not self.name.isprintable():
            what = f"{type(self).__name__}: the name appears in comments, so it must be one line of text"
            raise ArgumentError(what, got=self.name, at=call_site())

    def may_perform(self, spec: Spec) -> bool:
        """Return False only if `mismatches` reports a difference on every target.

        This is a fast test before `mismatches`. A leaf is compared with all instructions; its kind, level and memories exclude most of
        them.
        """
        return True

    def mismatches(self, spec: Spec, architecture: Architecture) -> tuple[Mismatch, ...]:
        """Return all differences between a spec and the spec that the executable performs; none if they match."""
        raise _undefined(self, "mismatches(self, spec, architecture)")

    def fits(self, spec: Spec, context: Context) -> tuple[Mismatch, ...]:
        """Return all differences, including those that depend on other parts of the tree, such as the owners of a distributed operand."""
        return self.mismatches(spec, context.architecture)

    def instead_of(self, spec: Spec) -> str:
        """Return the usual tile, as advice for a spec that it performs only because the tile is unusual; else an empty text."""
        return ""

    def performs(self) -> str:
        """Return the spec that it performs, as text for listings."""
        return ""

    def takes_neighbors(self, spec: Spec) -> bool:
        """Return whether its text also accepts several adjacent elements instead of the one element of a spec that it matches."""
        return False

    def on_pairs(self, spec: Spec, architecture: Architecture) -> Executable | None:
        """Return its variant for pairs of adjacent 16-bit elements, each pair in one register; None if there is none."""
        return None

    def words(self, spec: Spec) -> tuple[tuple[str, str], ...]:
        """Return the operands whose words each contain both elements of a pair, and the coordinate that selects the elements."""
        return ()

    def atomic_widths(self, spec: Spec, architecture: Architecture) -> tuple[int, ...]:
        """Return the numbers of adjacent elements that one atomic instruction may combine, the largest first; empty for one."""
        return ()

    def singles(self, spec: Spec) -> frozenset[str]:
        """Return the operands whose elements an instruction on pairs reads one by one, such as scales of which floats are computed."""
        return frozenset()

    def repeats(self, spec: Spec) -> frozenset[str]:
        """Return the operands of which both elements of a pair may be one element, such as the scale of a group."""
        return frozenset()

    def identity_operand(self, spec: Spec) -> str:
        """Return the operand that has no effect if it is 1, or "". A thread for which all its values are 1 skips the statement."""
        return ""

    def emit(self, spec: Spec, draft: Draft) -> tuple[Stmt, ...]:
        """Return the statements for a matching spec: one `Exec` on the operands' views."""
        return (execution(self, spec, draft),)

    def prepared(self, operand: str) -> Function | None:
        """Return the function that prepares the registers of an input, before the fence of registers before its statements, if any does."""
        return None

    def clamped_later(self, spec: Spec) -> Executable | None:
        """Return its variant without the final max(x, 0), for results whose readers all apply it; None if there is none."""
        return None

    def clamping(self, spec: Spec) -> Executable | None:
        """Return its variant that applies max(x, 0) to its input, if this is cheaper than in the statement before; otherwise None."""
        return None

    def declaration(self, kernel: Kernel, buffer: Buffer) -> str:
        """Return the declaration of a buffer of fragments, which only instructions like this one access."""
        raise _undefined(self, "declaration(self, kernel, buffer)")

    def cuda(self, printer: Printer, statement: Exec) -> Sequence[Item]:
        """Return the CUDA C++ for one `Exec`: lines, and blocks of lines (see `fireiron.ir.text`)."""
        raise _undefined(self, "cuda(self, printer, statement)")


def access_of(view: View, write: bool, origin: str | None) -> Access:
    """Return the access to all elements of a view."""
    dims = view.numerals
    return Access(
        view.tensor.name,
        tuple(dim.base for dim in dims),
        tuple(dim.modes for dim in dims),
        tuple(None if view.memory.is_coordinate else dim.bound for dim in dims),  # a coordinate tensor has no end
        write,
        view.copy,
        tuple(dim.unit_modes for dim in dims),
        origin=origin,
    )


def edge_refused(executable: Executable, spec: Spec, name: str) -> DecompositionError:
    """Return the error for an instruction that cannot mask elements, if the last tile of an operand may extend past the end."""
    view = spec.operands[name]
    what = f"{executable.name} accesses all elements of {name} ({view.tensor.name}) or none, and the last tile may extend past the end"
    places = [place for place in range(len(view.dims)) if view.dims[place].bound is not None]
    if view.memory.of_block:
        return _edge_of_block(executable, spec, name, what, places)
    ends = [(spec.uses[name][place], view.tensor.shape[view.axis(place)], view.shape[place]) for place in places]
    if not view.memory.private:
        return DecompositionError(
            what, hint="load the operand first (a load fills elements past the end), or make the size a multiple of the tile"
        )
    fits = [(dim, _multiples(constant(size) or 0, constant(tile) or 1)) for dim, size, tile in ends]
    hint = "use such tiles for the instruction, the last by tile(...).done()"
    short = [dim for dim, tiles in fits if not tiles]
    return DecompositionError(
        what,
        got="; ".join(f"{size} elements along {dim}; the instruction accesses {tile}" for dim, size, tile in ends),
        legal="; ".join(f"tiles of {' or '.join(map(str, tiles))} along {dim}" for dim, tiles in fits if tiles) or None,
        hint=f"registers contain complete tiles: pad the operands along {', '.join(short)}, and mask the padding" if short else hint,
    )


def _edge_of_block(executable: Executable, spec: Spec, name: str, what: str, places: Sequence[int]) -> DecompositionError:
    """Return the error for an operand in shared memory: its size is not a multiple of the instruction's, or a step does not divide it."""
    view = spec.operands[name]
    got, multiples, uneven = [], [], []
    for place in places:
        axis, tile = view.axis(place), view.shape[place]
        size = view.tensor.shape[axis]
        unit = ("rows", "columns")[axis] if spec.copies and len(view.tensor.shape) == 2 else f"elements along {spec.uses[name][place]}"
        got.append(f"{view.tensor.name} has {size} {unit}, and the instruction accesses {tile}")
        if size.factor % (constant(tile) or 1):
            multiples.append(f"a multiple of {tile} {unit}")
        else:
            legal = ", ".join(map(str, _multiples(constant(size) or 0, constant(tile) or 1))) or f"a multiple of {tile} that divides them"
            uneven.append(f"divide the {size} {unit} of {view.tensor.name} by {legal}")
    tile_of_block = f"{executable.instead_of(spec)}a tile of the block, or a split, with {' and '.join(multiples)}"
    return DecompositionError(what, got="; ".join(got), hint="; ".join([tile_of_block] * bool(multiples) + uneven))


def _multiples(size: int, tile: int) -> list[int]:
    """Return the multiples of a tile that divide a size."""
    return [multiple for multiple in range(tile, size + 1, tile) if size % multiple == 0]


def execution(executable: Executable, spec: Spec, context: Context) -> Exec:
    """Return the statement that performs a spec on its views; refuse it if some of its elements may be out of bounds."""
    for name, view in spec.operands.items():
        if view.bounded and not view.memory.is_coordinate and not executable.handles_edges and any(size != ONE for size in view.shape):
            raise edge_refused(executable, spec, name)
    accesses = tuple(access_of(view, name in spec.outputs, context.origin) for name, view in spec.operands.items())
    return Exec(executable, spec, accesses, spec.accumulate, context.active, origin=context.origin)


# ---------------------------------------------------------------------------------------------- context


@frozen
class Whole:
    """The additions of a tree's steps to the whole kernel so far: the collected fields of their `Expansion`s.

    `used_names` are the names in use, including those of sizes and operands.
    """

    used_names: frozenset[str] = frozenset()
    lets: Mapping[Named, Var] = attrs.field(factory=dict)
    grid: Expr | None = None
    part: Var | None = None
    outer: tuple[tuple[Var, Expr], ...] = ()
    effects: Effects = effect.NONE
    chosen_storage: Mapping[str, Storage] = attrs.field(factory=dict)
    cluster: BlockCluster | None = None
    segment: Segment | None = None

    def after(self, expansion: Expansion) -> Whole:
        """Return the state after one more step; itself if that step adds nothing."""
        if not expansion.has_kernel_effects:
            return self
        return Whole(
            self.used_names.union(expansion.names),
            {**self.lets, **dict(expansion.lets)} if expansion.lets else self.lets,
            self.grid if expansion.grid is None else expansion.grid,
            self.part if expansion.part is None else expansion.part,
            (*self.outer, *expansion.outer),
            self.effects.joined(expansion.effects),
            {**self.chosen_storage, **dict(expansion.chosen_storage)} if expansion.chosen_storage else self.chosen_storage,
            expansion.cluster or self.cluster,
            self.segment if expansion.segment is None else expansion.segment,
        )

    @functools.cached_property
    def definitions(self) -> dict[Var, Expr]:
        """The values by variable, each after the values that it uses."""
        return {var: named.value for named, var in self.lets.items()}


def _in_a_draft(what: str) -> DecompositionError:
    return DecompositionError(
        f"{what}: new names need a draft of the context",
        hint="draft = context.draft(), draft.fresh(...), loop_over(.., draft, ..), return draft.expansion(children, program)",
    )


@frozen
class Context:
    """The inputs of an expansion, in addition to the step and the spec. It is immutable.

    Attributes:
        architecture, instructions: the target, and the instructions that leaves may match.
        block, thread: the variables of the block index and the thread index.
        workers: the number of threads of a block over which tiles are distributed; None while it is being determined.
        path: the names of the children that lead to this node.
        prefix: the prefix of names of variables.
        active: the condition under which a thread takes part.
        origin: the line of the strategy.
        owners: by tensor in registers, the map from elements to owning threads, if it is determined already.
        decides: whether the leaf itself may determine the owners of tensors that are not in `owners`.
        whole: the additions of earlier steps to the whole kernel.
        later_steps: the steps that follow in the chain.
        left_out: instructions of producers that no load uses: they cannot perform all loads of a producer, or there is none.
        left_out_because: the reason, after the name of an instruction.
        needed, words: the fields of the child; its own children inherit `words`.
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
    owners: Mapping[str, Ownership] = attrs.field(factory=dict)
    decides: bool = False
    whole: Whole = attrs.field(factory=Whole)
    later_steps: tuple[Decomposition, ...] = ()
    left_out: tuple[Executable, ...] = ()
    left_out_because: str = ""
    needed: Spec | None = None
    words: tuple[View, ...] | None = None

    def draft(self) -> Draft:
        """Return a draft of this context, in which one expansion makes its names."""
        return Draft(*_OF_CONTEXT(self))

    def after(self, expansion: Expansion) -> Context:
        """Return the context after a step, with its additions to the whole kernel."""
        return self.knowing(self.owners, self.whole.after(expansion))

    def knowing(self, owners: Mapping[str, Ownership], whole: Whole) -> Context:
        """Return the context with these owners and this state; itself if both are the same."""
        return self if owners is self.owners and whole is self.whole else self._with(owners=owners, whole=whole)

    def fresh(self, wanted: str) -> str:
        """Raise an error: only a `Draft` makes new names."""
        raise _in_a_draft(f"fresh({wanted!r})")

    def let(self, wanted: str, value: Expr, high: int | None = None) -> Expr:
        """Raise an error: only a `Draft` names values."""
        raise _in_a_draft(f"let({wanted!r}, {value})")

    def unit(self, level: Any, parent: Any) -> Expr:
        """Raise an error: only a `Draft` names units."""
        raise _in_a_draft(f"unit({level}, {parent})")

    def units(self, level: Any, parent: Any) -> int:
        """Return the number of units of `level` in a unit of `parent`."""
        return count_in(level, parent, self.workers)

    def enter(self, child: Child) -> Context:
        """Return the context of a child."""
        prefix = child.prefix if child.prefix.startswith(self.prefix) else self.prefix + child.prefix
        active = all_of((self.active, child.active))
        path, words = (*self.path, child.name), child.words or self.words
        return self._with(path=path, prefix=prefix or self.prefix, active=active, needed=child.needed, words=words)

    def _with(self, **changed: Any) -> Context:
        """Return `evolve(self, **changed)`, but faster, because each node of a tree needs it."""
        if type(self) is not Context:
            return evolve(self, **changed)
        return Context(**{**dict(zip(_FIELDS, _OF_CONTEXT(self), strict=True)), **changed})


_FIELDS: Final = tuple(field.name for field in attrs.fields(Context))
_OF_CONTEXT: Final = operator.attrgetter(*_FIELDS)


@frozen(eq=False)
class Draft(Context):
    """A context in which one expansion makes its names. They reach the tree only as fields of its `expansion`.

    Names depend on the order of requests only, so the same expansion always makes the same names. Equal values share a name.
    """

    _names: dict[str, None] = attrs.field(factory=dict)
    _lets: dict[Named, Var] = attrs.field(factory=dict)
    _chosen_storage: dict[str, Storage] = attrs.field(factory=dict)

    def expansion(self, children: tuple[Child, ...], program: tuple[Stmt, ...], **more: Any) -> Expansion:
        """Return the `Expansion` with the names of this draft; `more` are further fields."""
        names, lets, chosen_storage = tuple(self._names), tuple(self._lets.items()), tuple(self._chosen_storage.items())
        return Expansion(children, program, names=names, lets=lets, chosen_storage=chosen_storage, **more)

    def fresh(self, wanted: str, otherwise: str = "") -> str:
        """Return an unused name with the prefix of this part of the tree: `wanted`, or else `otherwise`, or else a name with a number."""
        return self._unused(self.prefix + (otherwise if otherwise and self._is_taken(self.prefix + wanted) else wanted))

    def _unused(self, wanted: str) -> str:
        name, number = wanted, 1
        while self._is_taken(name):
            number += 1
            name = f"{wanted}{number}"
        self._names[name] = None
        return name

    def _is_taken(self, name: str) -> bool:
        return name in self.whole.used_names or name in self._names

    def choose_storage(self, tensor: Tensor, storage: Storage) -> Storage:
        """Choose the storage of a buffer without one; refuse a storage that contradicts the choice of another leaf."""
        known = {**self.whole.chosen_storage, **self._chosen_storage}.get(tensor.name)
        if known is not None and known != storage:
            raise DecompositionError(
                f"{tensor.name}: two leaves need different storage, {_stored(known)} and {_stored(storage)}",
                at=self.origin,
                hint="load the operand twice, or specify the storage: .storage_layout(...).swizzle_storage(...)",
            )
        self._chosen_storage[tensor.name] = storage
        return storage

    def claim(self, var: Var) -> None:
        """Register a name that an earlier step made. The program of this expansion contains its value."""
        self._names[var.name] = None

    def define(self, var: Var, value: Expr) -> None:
        """Define the value of a name that an earlier step or a text made."""
        named = Named(value, var.high)
        known = {**self.whole.lets, **self._lets}
        self._lets[named if known.get(named, var) == var else Named(value, var.high, var.name)] = var

    def let(self, wanted: str, value: Expr, high: int | None = None) -> Expr:
        """Return a name for a value that depends on block, thread and sizes only; the value itself if it needs no name.

        `high` limits its range in the threads that take part.
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
        """Return the named index of this thread's unit of `level` inside its unit of `parent`."""
        name = level.label if parent in (Block, level.parent) else f"{parent.label}_{level.label}"
        if level.threads == 1:
            name = thread_name(parent, "thread")
        return self.let(name, unit_in(level, parent, self.thread))


def _stored(storage: Storage) -> str:
    return f"{storage.layout}{f', {storage.swizzle}' if storage.swizzle else ''}"


# ---------------------------------------------------------------------------------------------- nodes


@frozen
class Node:
    """A spec with the step that decomposes it (None: an open leaf), its program and its children by name.

    Attributes:
        waiting: for a leaf that waits for the owners of its registers, the context of its later expansion.
        alone: the steps of such a leaf if no other leaf determines the owners.
        names: the new names of values, loops and buffers.
        launches: by child, the launch of a task program that it belongs to.
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
        """Whether an instruction or a micro-kernel performs every leaf."""
        return self.step is not None and self.waiting is None and all(child.complete for _, child in self.children)

    @functools.cached_property
    def execs(self) -> tuple[tuple[Exec, tuple[For, ...]], ...]:
        """All `Exec` statements with the loops around them, those of the main chain first."""
        result = [(statement, tuple(around)) for statement, around in execs(self.program)]
        if self.children:
            placed = [(stmt.child, around) for stmt, around in located(self.program) if isinstance(stmt, Hole)]
            holes = {name: tuple(outer for outer in around if isinstance(outer, For)) for name, around in placed}
            for name, child in _bodies_first(self):
                loops = holes[name]
                result += [(statement, (*loops, *inner)) for statement, inner in child.execs] if loops else child.execs
        return tuple(result)

    @functools.cached_property
    def opens(self) -> bool:
        """Whether it, or a node below it, is an open leaf that does not wait for another leaf."""
        return self.open or any(child.opens for _, child in self.children)

    @property
    def open(self) -> bool:
        """Whether it is an open leaf that does not wait for another leaf."""
        return self.waiting is None and self.program == (Hole("open"),)

    def child(self, name: str) -> Node:
        """Return a child by name; raise a `DecompositionError` that lists the children if there is none."""
        for other, node in self.children:
            if other == name:
                return node
        raise DecompositionError(f"no child {name!r} here", legal=[other for other, _ in self.children])

    def nodes(self) -> Iterator[Node]:
        """Yield all nodes, parents first."""
        nodes = [self]
        while nodes:
            node = nodes.pop()
            yield node
            nodes += [child for _, child in reversed(node.children)]

    def paths(self, path: Path = ()) -> Iterator[tuple[Path, Node]]:
        """Yield all nodes, parents first, each with the names of the children that lead to it."""
        yield path, self
        for name, node in self.children:
            yield from node.paths((*path, name))

    def open_leaves(self) -> tuple[Spec, ...]:
        """Return the specs of open leaves."""
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
    """Return the tree of a spec under a chain of steps, and the additions of the steps to the whole kernel.

    The owners of registers are a fixed point: a leaf that follows them waits until another leaf, anywhere in the tree, determines them.
    """
    node, whole = _grown(spec, steps, context)
    tried: Tried = {}
    while not node.complete and any(_waiting(node)):
        owners = owners_in(node)
        again, whole = _again(node, owners, whole, tried)
        if again is node:
            again, whole = _decided(node, owners, whole)
        if again is node:
            break
        node = again
    return node, whole


def _grown(spec: Spec, steps: tuple[Decomposition, ...], context: Context) -> tuple[Node, Whole]:
    """Return the tree without the leaves that wait. The main chain is expanded first, so that its names have no numbers."""
    if not steps:
        return Node(spec, None, (Hole("open"),)), context.whole
    step, rest = steps[0], steps[1:]
    _require_shallow(spec, step, context)
    here = context._with(origin=step.origin or context.origin, later_steps=rest)
    expansion = expanded(step, spec, here)
    if expansion.waits:
        return Node(spec, step, expansion.program, waiting=context), context.whole
    here = here.after(expansion)
    nodes: dict[str, Node] = {}
    order = sorted(expansion.children, key=lambda child: child.steps is not None)
    for number, child in enumerate(order):
        node, whole = _grown(child.spec, rest if child.steps is None else child.steps, here.enter(child))
        nodes[child.name] = _or_alone(node, child.alone)
        undetermined = _in_registers(later.spec for later in order[number + 1 :]) - set(here.owners)
        here = here.knowing({**owners_in(node, undetermined), **here.owners} if undetermined else here.owners, whole)
    children = tuple((child.name, nodes[child.name]) for child in expansion.children)
    return Node(spec, step, expansion.program, children, expansion.facts, names=expansion.names, launches=expansion.launches), here.whole


def _or_alone(node: Node, alone: tuple[Decomposition, ...]) -> Node:
    """Return the node; if it waits, with its steps for the case that no other leaf determines the owners."""
    return evolve(node, alone=alone) if alone and node.waiting is not None else node


def _in_registers(specs: Iterable[Spec]) -> set[str]:
    """Return the tensors in registers that specs access."""
    return {view.tensor.name for spec in specs for view in spec.operands.values() if view.memory.private}


def _waiting(node: Node) -> Iterator[Node]:
    """Yield the leaves that wait, those of the main chain first."""
    if node.waiting is not None:
        yield node
    for _, child in _bodies_first(node):
        yield from _waiting(child)


def _bodies_first(node: Node) -> list[tuple[str, Node]]:
    return sorted(node.children, key=lambda pair: pair[0] != "body")


Tried = dict[int, tuple[Node, Any]]
"""By identity, the leaves that had to wait when they were last tried, with the owners of registers that were known then."""


def _again(node: Node, owners: Mapping[str, Ownership], whole: Whole, tried: Tried) -> tuple[Node, Whole]:
    """Try each waiting leaf again if more owners of its registers are known now; return the tree itself if no leaf could be expanded."""
    if node.complete:
        return node, whole
    if node.waiting is not None and node.step is not None:
        needed = () if node.waiting.needed is None else (node.waiting.needed,)
        known = {name: owners.get(name) for name in sorted(_in_registers((node.spec, *needed)))}, whole.chosen_storage
        if id(node) in tried and tried[id(node)][1] == known:
            return node, whole
        grown_leaf, after = _grown(node.spec, (node.step,), evolve(node.waiting, owners=owners, whole=whole))
        if grown_leaf.waiting is not None:
            tried[id(node)] = node, known
            return node, whole
        return grown_leaf, after
    children = {}
    for name, child in _bodies_first(node):
        children[name], whole = _again(child, owners, whole, tried)
    if all(children[name] is child for name, child in node.children):
        return node, whole
    return evolve(node, children=tuple((name, children[name]) for name, _ in node.children)), whole


def _decided(node: Node, owners: Mapping[str, Ownership], whole: Whole) -> tuple[Node, Whole]:
    """Let the first waiting leaf that can determine the owners of its registers do so; refuse the tree if none can.

    If the tree has open leaves, it is returned unchanged, because a later step may determine the owners.
    """
    if node.opens:
        return node, whole
    refused: FireironError | None = None
    for leaf in sorted(_waiting(node), key=lambda waiting: not _follows(waiting.spec, owners)):
        assert leaf.waiting is not None and leaf.step is not None
        for steps in filter(None, ((leaf.step,), leaf.alone)):
            try:
                subtree, after = _grown(leaf.spec, steps, evolve(leaf.waiting, owners=owners, decides=True, whole=whole))
            except FireironError as error:
                refused = _owner_error(error, node, leaf)
                continue
            if not subtree.opens:
                return _replaced(node, leaf, subtree), after
    if refused is not None:
        raise refused
    return node, whole


def _follows(spec: Spec, owners: Mapping[str, Ownership]) -> bool:
    """Return whether the owners of an operand with all dimensions of a spec are known, so that the other operands follow it."""
    return any(len(spec.uses[name]) == len(spec.dims) and view.tensor.name in owners for name, view in spec.operands.items())


def _replaced(node: Node, old: Node, new: Node) -> Node:
    if node is old:
        return new
    children = node.children if node.complete else tuple((name, _replaced(child, old, new)) for name, child in node.children)
    same = all(child is other for (_, child), (_, other) in zip(children, node.children, strict=True))
    return node if same else evolve(node, children=children)


def _owner_error(error: FireironError, node: Node, leaf: Node) -> FireironError:
    """Return the error for a leaf whose registers have no owners: that only a micro-kernel's text determines them, or the given error."""
    names = _in_registers((leaf.spec,))
    for inner in node.nodes():
        for statement, _ in execs(inner.program):
            name = next((access.buffer for access in statement.accesses if access.buffer in names), None)
            if statement.collective and name is not None:
                return DecompositionError(
                    f"only the text of {statement.instruction.name} ({statement.spec}) determines the owners of {name}",
                    within=leaf.spec,
                    at=statement.origin,
                    legal="epilog(memory, init, store)",
                    hint="use micro-kernels also for the init and the store, or tiles for Thread before done(...)",
                )
    return error


def _require_shallow(spec: Spec, step: Decomposition, context: Context) -> None:
    if len(context.path) >= MOST_STEPS:
        raise DecompositionError(
            f"the chain has more than {MOST_STEPS} steps", within=f"{spec} / {step.label()}", at=step.origin, legal=f"at most {MOST_STEPS}"
        )


def legal_among(steps: Iterable[D], spec: Spec, context: Context) -> Iterator[D]:
    """Yield the steps that expand a spec without an error."""
    for step in steps:
        try:
            expanded(step, spec, context)
        except FireironError:
            continue
        yield step


def expanded(step: Decomposition, spec: Spec, context: Context) -> Expansion:
    """Expand a spec by a step and its refinements; refuse an `Expansion` that breaks its contract."""
    try:
        expansion = _checked(step.expand(spec, context), step, "expand", spec)
        for refinement in step.refinements:
            expansion = _checked(refinement.rewrite(expansion, context), refinement, "rewrite", spec)
        # While threads are being counted, the range of a thread index is unknown.
        for child in expansion.children if context.workers is not None else ():
            require_numerals(spec, child.spec, type(step).__name__)
    except FireironError as error:
        raise error.located(within=f"{spec} / {step.label()}", at=context.origin) from None
    return expansion


def _checked(expansion: Expansion, extension: Decomposition | Refinement, method: str, spec: Spec) -> Expansion:
    """Return the expansion; refuse it if holes and children differ, or if it lacks a name that its program binds."""
    what = f"{type(extension).__name__}.{method}"
    if not isinstance(expansion, Expansion):
        raise DecompositionError(f"{what} must return an Expansion", got=expansion, hint="return Expansion(children, program)")
    names = [child.name for child in expansion.children]
    inside = tuple(statements(expansion.program))
    holes = [statement.child for statement in inside if isinstance(statement, Hole)]
    if sorted(holes) != sorted(set(names)) and not (not names and holes == ["open"]):
        raise DecompositionError(f"{what}: the holes of its program differ from its children", got=holes or "none", legal=names or "none")
    if len(set(names)) != len(names):
        raise DecompositionError(f"{what}: two children share a name", got=names)
    bound = {statement.var.name for statement in inside if isinstance(statement, (For, Let))}
    bound |= {view.tensor.name for child in expansion.children for view in child.spec.operands.values()}
    missing = bound - {view.tensor.name for view in spec.operands.values()} - set(expansion.names)
    if missing:
        raise DecompositionError(
            f"{what}: its program defines {', '.join(sorted(missing))}, but the names of its Expansion do not contain them",
            hint="draft = context.draft(), draft.fresh(...) for names, return draft.expansion(children, program)",
        )
    return expansion


def owners_in(node: Node, names: Collection[str] | None = None) -> dict[str, Ownership]:
    """Return the owners of the elements of tensors in registers that a tree accesses (`names`, or all).

    The first statement that reads a tensor, or accumulates into it, determines its owners. If there is none, the first other access does;
    accesses that follow other owners come last. A micro-kernel of a whole group of threads determines no owners.
    """
    owned: dict[str, Ownership | None] = {}
    others: dict[str, Ownership] = {}
    following: dict[str, Ownership] = {}
    for statement, loops in node.execs:
        for access, view in zip(statement.accesses, statement.spec.operands.values(), strict=False):
            name = access.buffer
            if name in owned or not (view.memory.private if names is None else name in names):
                continue
            if owns(view.tensor, statement, access):
                owned[name] = None if statement.collective else _holding(statement, access, *loops)
            elif name not in (following if statement.inherits_ownership else others) and not statement.collective:
                (following if statement.inherits_ownership else others)[name] = _holding(statement, access, *loops)
    return {name: holding for name, holding in {**following, **others, **owned}.items() if holding is not None}


@by_identities  # called repeatedly while a tree grows
def _holding(statement: Exec, access: Access, *loops: For) -> Ownership:
    return Ownership.of(statement, access, loops)


def count_workers(spec: Spec, steps: tuple[Decomposition, ...], context: Context) -> int | None:
    """Return the number of threads of a block. The first step of the body that distributes tiles over threads determines it.

    If the body has no such step, the loads to registers before it determine the number. Raises: the error of a step, with its place in the
    strategy.
    """
    of_body, of_loads = _counted(spec, steps, context)
    return of_loads if of_body is None else of_body


def _counted(spec: Spec, steps: tuple[Decomposition, ...], context: Context) -> tuple[int | None, int | None]:
    """Return the number of threads that the body requires, and the maximum that loads to registers and copying steps require."""
    if not steps:
        return None, None
    step, rest = steps[0], steps[1:]
    _require_shallow(spec, step, context)
    try:
        needed = step.threads(spec, context)
        if needed is not None:
            return needed, None
        here = context._with(origin=step.origin or context.origin, later_steps=rest)
        expansion = _checked(step.expand(spec, here), step, "expand", spec)
    except FireironError as error:
        raise error.located(within=f"{spec} / {step.label()}", at=step.origin) from None
    after = context.after(expansion)
    counted = [_counted(child.spec, rest, after.enter(child)) for child in expansion.children if child.steps is None]
    bodies = [of_body for of_body, _ in counted if of_body is not None]
    if bodies:
        return max(bodies), None
    loads = [
        count_workers(child.spec, child.steps or (), after.enter(child)) for child in expansion.children if _fills_registers(child, spec)
    ]
    loads.append(step.threads_of_copies(spec, context))
    numbers = [number for number in (*loads, *(of_loads for _, of_loads in counted)) if number is not None]
    return None, max(numbers, default=None)


def _fills_registers(child: Child, spec: Spec) -> bool:
    """Return whether a child with its own steps writes only registers that are new below a spec."""
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
    """Return the line of the last step that leads to an open leaf; None if there is none."""
    origin = None
    while True:
        origin = getattr(node.step, "origin", None) or origin
        child = next((child for _, child in node.children if not child.complete), None)
        if child is None:
            return origin
        node = child


def _missing_step(node: Node) -> str | None:
    """Return the verb that an open step of a definition needs; None if no step without a strategy is open."""
    for parent in node.nodes():
        definition = fused(parent.spec)
        for name, child in parent.children:
            if definition is not None and child.step is None and name in definition.names and definition.strategy_of(name) is None:
                return f'.step("{name}", {child.spec.title}. ... .done()), which determines the owners of elements'
    return None
