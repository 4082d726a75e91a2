"""Strategies: immutable chains of steps, bound to a spec or not. They can be composed, compared, changed and stored.

>>> from fireiron import *
>>> block = MatMul.tile(64, 64).to(Block).epilog(RF).split(8).load(A, SH).load(B, SH)
>>> warp = MatMul.tile(32, 32).to(Warp).tile(8, 4).to(Lane).split(1).tile(1, 1).done()
>>> block.then(warp).at(Load, "A").refine(Pad(4)) == block.then(warp)
False
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Self, SupportsIndex, TypeVar

import attrs

from fireiron.decomp.done import Done
from fireiron.decomp.epilog import Epilog
from fireiron.decomp.load import Load
from fireiron.decomp.split import Split
from fireiron.decomp.split_k import SplitK
from fireiron.decomp.tile import Tile
from fireiron.display import Displayed
from fireiron.errors import ArgumentError, DecompositionError, FireironError, StoreError, call_site, shown
from fireiron.executable import INSTRUCTIONS
from fireiron.frozen import evolve, frozen
from fireiron.generated_verbs import (
    EpilogVerbs,
    ForAny,
    LoadVerbs,
    OtherVerbs,
    SetMemoryVerbs,
    SplitKVerbs,
    SplitVerbs,
    TileVerbs,
    ToGpusVerbs,
)
from fireiron.language.substrategy import Chain, inner_chains, require_steps
from fireiron.language.tree import Decomposition, Executable, Refinement
from fireiron.language.tunable import Derived, Tunable, has_part, resolve, tunables_in
from fireiron.refine.prefetch_epilogue import PrefetchEpilogue
from fireiron.refine.to import To
from fireiron.refine.warp_specialize import WarpSpecialize
from fireiron.spec import AnySpec, AnyStarter, PlacedShape, Spec, SpecShape, Starter, as_spec
from fireiron.specs.operand import Operand
from fireiron.specs.verbs import Offering, Verbs, checked_arguments
from fireiron.values.machine import DEFAULT_ARCHITECTURE, WARPGROUP_ARCHITECTURE, Architecture, DType, Warpgroup, as_integer

if TYPE_CHECKING:
    from fireiron.compiler import Program
    from fireiron.derive import Derivation
    from fireiron.gpu.kernel import CompiledKernel


def _not_a_spec(given: tuple[Any, ...], named: Mapping[str, Any]) -> ArgumentError:
    from fireiron.language.bound import not_a_spec  # imported when needed

    return not_a_spec(given, named)


Bindable = Spec | SpecShape[Any] | PlacedShape[Any]
"""What a strategy can be bound to: a spec, or its short form without memories or level."""


def _binding(bind: Callable[[S, Bindable], S]) -> Callable[[S, Bindable], S]:
    """Refuse a call with anything but one spec."""

    @functools.wraps(bind)
    def called(self: S, *given: Any, **named: Any) -> S:
        if named or len(given) != 1:
            raise _not_a_spec(given, named)
        return bind(self, *given)

    return called


@attrs.frozen(repr=False, eq=False)
class Strategy(Offering, OtherVerbs, ForAny, Chain, Displayed):
    """A chain of `steps`; bound if it has a `spec`. Strategies are equal if steps, spec, start and `others` are equal.

    Attributes:
        steps: the steps.
        spec: the spec of a bound strategy.
        start: the kind of spec to which the chain applies, or `AnySpec`. It is checked when the chain is bound, passed to a step, or
        appended.
        others: the strategies that `fallback` added.
        refused: for a strategy that `fallback` selected, the errors of those before it.
    """

    steps: tuple[Decomposition, ...] = ()
    spec: Spec | None = None
    start: Starter | AnyStarter = attrs.field(default=attrs.Factory(lambda self: _start_of(self.spec), takes_self=True))
    others: tuple[Strategy, ...] = attrs.field(default=(), kw_only=True)
    refused: tuple[str, ...] = attrs.field(default=(), kw_only=True)

    def __attrs_post_init__(self) -> None:
        require_steps(self.steps, "Strategy")
        if self.spec is not None and not isinstance(self.spec, Spec):
            raise _not_a_spec((self.spec,), {})
        if not isinstance(self.start, (Starter, AnyStarter)):
            raise ArgumentError("Strategy: start is not a kind of spec", got=self.start, legal="MatMul Move Init AnySpec", at=call_site())
        if self.spec is not None and self.start != self.spec.starter:
            raise _of_another_start(self.start, self.spec)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Strategy):
            return NotImplemented
        return (self.steps, self.spec, self.start, self.others) == (other.steps, other.spec, other.start, other.others)

    def __hash__(self) -> int:
        return hash((self.steps, self.spec, self.start, self.others))

    def __repr__(self) -> str:
        if not self.steps:
            return f"Strategy((), {self.spec!r}, {self.start!r})"
        if not all(step.in_words for step in self.steps):
            return self._stored_repr()
        chain = repr(self.start if self.spec is None else self.spec) + "".join(f".{step.label()}" for step in self.steps)
        return chain + "".join(f".fallback({other!r})" for other in self.others)

    def _stored_repr(self) -> str:
        """Return the stored strategy, which evaluates; in angle brackets if it cannot be stored.

        Programs of tasks that are not in the library are passed by the names of their variables.
        """
        names = [step.given_program for part in self.alternatives for step in part.steps if hasattr(step, "given_program")]
        given = f", programs=[{', '.join(dict.fromkeys(filter(None, names)))}]" if any(names) else ""
        try:
            if None in names:
                raise StoreError("a program of tasks without a variable")
            return f"Strategy.from_json({self.to_json()!r}{given})"
        except StoreError:
            return f"<strategy {self.start!r}{''.join(f'.{step.label()}' for step in self.steps)}>"

    @_binding
    def __call__(self, spec: Bindable) -> Self:
        """Bind the strategy to a spec. A tunable without a value gets its first legal value.

        `MatMul(M, N, K)` without memories and level is a whole kernel: all operands in global memory, at the level Kernel.

        A strategy is not called with arrays: `strategy(spec).compile()` is the kernel.
        """
        spec = as_spec(spec)
        if not isinstance(spec, Spec):
            raise _not_a_spec((spec,), {})
        return evolve(self, spec=spec, start=_meet(self.start, spec))

    # ------------------------------------------------------------------------------------------ queries

    @property
    def finished(self) -> bool:
        """Whether the chain ends with `done`, or with another step that decomposes the spec completely."""
        return bool(self.steps) and (isinstance(self.steps[-1], Done) or self.steps[-1].ends)

    @property
    def result(self) -> Spec:
        """The spec after the last step. Legal when bound.

        >>> from fireiron import *
        >>> print(MatMul.tile(16, 16).to(Block)(MatMul(64, 64, 8)(GL, GL, GL)(Kernel)).result)
        MatMul(16,16,8)(GL,GL,GL)(Block)
        """
        return self.program().tree.residual

    def trace(self) -> tuple[tuple[str, Spec], ...]:
        """Return each step of the main chain with the spec after it; `tile` and `to` are separate, as in the paper's listings.

        >>> from fireiron import *
        >>> for step, spec in MatMul.tile(16, 16).to(Block).split(4)(MatMul(64, 64, 8)(GL, GL, GL)(Kernel)).trace():
        ...     print(f"{step:14} {spec}")
        tile(16, 16)   MatMul(16,16,8)(GL,GL,GL)(Kernel)
        to(Block)      MatMul(16,16,8)(GL,GL,GL)(Block)
        split(4)       MatMul(16,16,4)(GL,GL,GL)(Block)
        """
        return self.program().trace()

    @property
    def target(self) -> str:
        """The default target.

        If a step contains a complete kernel, it is the target of that kernel. Otherwise it is `"sm_90a"` if a step is for a Warpgroup,
        because only this target has instructions of warpgroups; for all other chains it is `"sm_90"`, whose code also runs on newer GPUs.
        """
        parts = (self.steps, *(other.steps for other in self.others))
        stated = next((step.whole_kernel[0] for step in self.steps if step.whole_kernel[0]), "")
        if stated:
            return stated
        return WARPGROUP_ARCHITECTURE if any(has_part(Warpgroup, steps) for steps in parts) else DEFAULT_ARCHITECTURE

    @checked_arguments
    def program(
        self, architecture: Architecture | str | None = None, instructions: tuple[Executable, ...] | None = None, name: str | None = None
    ) -> Program:
        """Return the program for a target (None: `target`): the decomposition tree and everything derived from it. Legal when bound.

        Args:
            instructions: those that leaves may match, the preferred first (default: all).
            name: the name of the kernel.
        """
        from fireiron.compiler import Program

        if self.spec is None:
            raise ArgumentError("the strategy is not bound to a spec", hint="strategy(MatMul(M,N,K)(GL,GL,GL)(Kernel))", at=call_site())
        known = INSTRUCTIONS if instructions is None else instructions
        if self.others:
            return _first_legal(self, lambda alternative: Program.of(alternative, architecture, known, name))
        return Program.of(self, architecture, known, name)

    def derive(self, target: Architecture | str | None = None, **options: Any) -> Derivation:
        """Derive the rest of this strategy: its steps and their numbers stay. Legal when bound and not complete.

        `options` are those of `fireiron.schedule`, which describes the result.

        >>> from fireiron import *
        >>> tiles = MatMul(64, 64, 64)(GL, GL, GL)(Kernel).tile(32, 32).to(Block)
        >>> tiles.derive("sm_80", candidates=2).strategy.steps[0].label()
        'tile(32, 32).to(Block)'
        """
        from fireiron.derive import schedule

        return checked_arguments(schedule)(self, target, **options)

    @checked_arguments
    def cuda(self, architecture: Architecture | str | None = None) -> str:
        """Return the CUDA C++ for a target (None: `target`). Legal when bound and complete."""
        return self.program(architecture).cuda

    @checked_arguments
    def compile(self, architecture: Architecture | str | None = None, options: tuple[str, ...] = ()) -> CompiledKernel:
        """Return a callable kernel: it runs NumPy arrays in the simulator, and arrays on a GPU there.

        This method reports all errors of the kernel, rather than the first call. It lowers, checks and prints the kernel. If an NVRTC for
        the target is installed (`pip install 'fireiron[check]'`), it also compiles the text, with or without a GPU, and the compile cache
        keeps the result.

        Args:
            architecture: the target. None for the target of the current GPU (`"sm_90a"` for an H100 or H200, which has all of its
                instructions), or for `target` without a GPU.
            options: further options of NVRTC: `("--use_fast_math",)`, `("--generate-line-info",)`; the simulator ignores them.

        Raises: an error of the language if the kernel is illegal, a LaunchError if NVRTC refuses it.
        """
        from fireiron.gpu.kernel import architecture_here
        from fireiron.gpu.node import kernel_of

        program = self.program(architecture_here() if architecture is None else architecture)
        try:
            return kernel_of(program, options).ready()
        except FireironError as error:
            raise error.with_traceback(None) from None  # the error contains the line of the strategy, so drop frames of this package

    # ------------------------------------------------------------------------------------------ changes

    def fallback(self, other: Strategy) -> Self:
        """Add a strategy that replaces this one if this one is not legal for the spec and the target.

        Legal when both end with `done` and the other is not bound to a spec. `at` and `refine` change this strategy only.
        rewrite: S --> S; T if S is illegal

        >>> from fireiron import *
        >>> fast = MatMul.tile(3, 3).to(Block).tile(1, 1).to(Thread).split(2).tile(1, 1).done()
        >>> slow = MatMul.tile(3, 3).to(Block).done("dot.cu text")
        >>> fast.fallback(slow).fallback(fast).others == (slow, fast)
        True
        """
        if not isinstance(other, Strategy):
            raise ArgumentError(
                "fallback: the argument is not a strategy", got=other, legal="MatMul.tile(...).to(Block) ... .done()", at=call_site()
            )
        if not self.finished or not other.finished:
            raise DecompositionError("fallback: both strategies must end with done()", at=call_site())
        if other.spec is not None:
            raise DecompositionError("fallback: the other strategy is bound to a spec", hint="bind the result of fallback", at=call_site())
        start = _meet(other.start, self.spec or self.start)
        all_others = (*self.others, other, *other.others)
        return evolve(self, start=start, others=tuple(Strategy(each.steps, None, start) for each in all_others))

    def fuse_epilogue(self, text: str, types: Mapping[str, Any] | None = None, **orders: Any) -> Strategy:
        """Fuse an epilogue, such as `relu(acc + bias[n])`; a bound strategy keeps its sizes, types and storage.

        An unbound strategy then starts from the definition `MatMul.fuse_epilogue(text)`. The accumulator has the same type as without an
        epilogue.
        Legal on a strategy for a matmul. rewrite: C = A B --> C = f(A B)      (Graphene, section 6)

        Args:
            text: the expression of `acc`, the accumulated element, and of further operands.
            types: for a bound strategy, types of further operands by name; default: C's type, float32 for numbers.
            orders: for a bound strategy, their storage orders by name; default: row-major.

        >>> from fireiron import *
        >>> mm = MatMul.tile(16, 16).to(Block).tile(4, 4).to(Thread).epilog(RF).split(4).tile(1, 1).done()
        >>> print(mm(MatMul(64, 64, 64)(GL, GL, GL)(Kernel)).fuse_epilogue("relu(acc + bias[n])").spec)
        gemm(64,64,64)(GL,GL,GL,GL)(Kernel)

        Raises: an `ArgumentError` if the text is not an epilogue.
        """
        from fireiron.specs.epilogue import epilogue, with_epilogue
        from fireiron.specs.sparse_matmul import SparseMatMul

        if types is not None and not isinstance(types, Mapping):
            raise ArgumentError(
                "epilogue: types must be a mapping from names of further operands to types",
                got=types,
                legal='{"bias": float32}',
                at=call_site(),
            )
        if self.spec is None:
            if types or orders:
                raise ArgumentError("epilogue: the strategy is not bound, so its operands have no types yet", got=(*(types or {}), *orders))
            return self._started(epilogue(text, compressed=self.start == SparseMatMul))
        is_product = self.spec.contracts or self.spec.kind == SparseMatMul.kind  # with_epilogue refuses other specs
        acc = self._accumulator(self.spec) if is_product else None
        return self.on_product(with_epilogue(self.spec, text, types or {}, orders, acc))

    def on_product(self, spec: Spec) -> Strategy:
        """Bind this strategy, which is for a matmul, to a spec of a matmul with an epilogue, as `MatMul.fuse_epilogue` makes it."""
        return self._started(None)(spec)

    def _started(self, start: Starter | None) -> Strategy:
        """Return the same steps from another start (None: that of a matmul); refuse steps for a kind that is not a matmul."""
        from fireiron.specs.matmul import MatMul
        from fireiron.specs.sparse_matmul import SparseMatMul

        if self.start not in (MatMul, SparseMatMul, AnySpec):
            raise DecompositionError(f"epilogue: the strategy starts from {self.start!r}", legal="a strategy for MatMul", at=call_site())
        start = start or (SparseMatMul if self.start == SparseMatMul else MatMul)
        others = tuple(evolve(other, steps=_prefetching(other.steps), start=start) for other in self.others)
        return evolve(self, steps=_prefetching(self.steps), spec=None, start=start, others=others)

    def _accumulator(self, spec: Spec) -> DType | None:
        """Return the accumulator type of an `epilog` without an explicit type; None if there is none."""
        plain = [step for step in self.steps if isinstance(step, Epilog) and step.dtype is None and step.memory.private]
        return spec.accumulator or (spec.C.dtype if plain else None)

    @property
    def alternatives(self) -> tuple[Strategy, ...]:
        """This strategy and those that `fallback` added, as separate strategies for the same spec."""
        return (evolve(self, others=()), *(evolve(other, spec=self.spec, start=self.start) for other in self.others))

    def at(self, kind: type[Decomposition], operand: Operand | str | None = None, index: SupportsIndex = 0) -> Cursor:
        """Return a cursor on the `index`-th step of a kind (and for loads, of an operand), to refine or replace it.

        >>> from fireiron import *
        >>> MatMul.tile(8, 8).to(Block).at(Tile).replace(Tile((4, 4)))
        MatMul.tile(4, 4)
        >>> MatMul.tile(32, 32).to(Block).load(A, SH).pad(4).load(B, SH).at(Load, A).unrefine(Pad)
        MatMul.tile(32, 32).to(Block).load(A, SH).load(B, SH)
        """
        from fireiron.specs.operand import operand_name

        if not isinstance(kind, type) or not issubclass(kind, Decomposition):
            raise ArgumentError("at: not a kind of step", got=kind, legal="Tile Load Split Epilog Done", at=call_site())
        if operand is not None and as_integer(operand) is not None:
            hint = f"at({kind.__name__}, index={operand})"
            raise ArgumentError("at: the second argument is an operand", got=operand, legal="A B C ...", hint=hint, at=call_site())
        positions = []
        for position, step in enumerate(self.steps):
            if isinstance(step, kind) and (operand is None or getattr(step, "operand", None) == operand_name(operand)):
                positions.append(position)
        number = as_integer(index)
        if number is None:
            raise ArgumentError("at: the index must be an integer", got=index, at=call_site())
        if not -len(positions) <= number < len(positions):
            names = [step.summary() for step in self.steps]
            raise DecompositionError(f"at({kind.__name__}, {operand}, {index}): the strategy has no such step", legal=names, at=call_site())
        return Cursor(self, positions[number])

    def unrefined(self) -> Self:
        """Remove all refinements except `to`. The result is slower, and correct (Fireiron, section 4.2).

        >>> from fireiron import *
        >>> loads = MatMul.tile(32, 32).to(Block).split(8).load(A, SH).pad(4).load(B, SH)
        >>> loads.unrefined()
        MatMul.tile(32, 32).to(Block).split(8).load(A, SH).load(B, SH)
        """
        others = tuple(evolve(other, steps=_unrefined(other.steps)) for other in self.others)
        return evolve(self, steps=_unrefined(self.steps), others=others)

    def with_(self, **values: SupportsIndex) -> Self:
        """Set values of tunables. Raises: `ArgumentError` for a tunable or a value that the strategy does not have.

        >>> from fireiron import *
        >>> tiles = MatMul.tile(Tunable("bm", 32, 64), 16).to(Block)
        >>> tiles.with_(bm=64)
        MatMul.tile(64, 16).to(Block)
        """
        known = self.tunables()
        numbers: dict[str, int] = {}
        for name, value in values.items():
            if name not in known:
                raise ArgumentError(
                    f"with_({name}={shown(value)}): the strategy has no tunable {name}", legal=known or "none", at=call_site()
                )
            number = as_integer(value)
            if number is None or number not in known[name].values:
                raise ArgumentError(
                    f"with_({name}={shown(value)}): this is not a value of {name}", legal=known[name].values, at=call_site()
                )
            numbers[name] = number
        others = tuple(evolve(other, steps=resolve(other.steps, numbers)) for other in self.others)
        return evolve(self, steps=resolve(self.steps, numbers), others=others)

    def tunables(self) -> dict[str, Tunable]:
        """Return the tunables without a value, by name.

        >>> from fireiron import *
        >>> tiles = MatMul.tile(Tunable("bm", 32, 64), 16).to(Block)
        >>> tiles.tunables()
        {'bm': Tunable('bm', 32, 64)}
        """
        return tunables_in((self.steps, *(other.steps for other in self.others)))

    def assignments(self) -> Iterator[dict[str, int]]:
        """Yield all combinations of the tunables' values, the first values first."""
        known = self.tunables()
        for combination in itertools.product(*(tunable.values for tunable in known.values())):
            yield dict(zip(known, combination, strict=True))

    def legal_assignments(self, architecture: Architecture | str | None = None) -> Iterator[dict[str, int]]:
        """Yield the combinations of values that are legal for the spec and the target. Legal when bound."""
        for values in self.assignments():
            try:
                _ = self.with_(**values).program(architecture).ir
            except FireironError:
                continue
            yield values

    def refine(self, refinement: Refinement) -> Self:
        """Refine the last step.

        Raises: a `DecompositionError` if there is no step, if the refinement does not refine it, or if the step has a refinement of the
        same kind; `at(...).refine(...)` replaces a refinement.
        """
        if not self.steps:
            raise DecompositionError("refine: the chain has no steps", at=call_site())
        previous = next((other for other in self.steps[-1].refinements if type(other) is type(refinement)), None)
        if previous is not None:
            raise DecompositionError(
                f"{refinement}: the step already has {previous}",
                got=self.steps[-1].summary(),
                hint=f"keep one; strategy.at({type(self.steps[-1]).__name__}).refine(...) replaces a refinement",
                at=call_site(),
            )
        return evolve(self, steps=(*self.steps[:-1], self.steps[-1].refined(refinement)))

    # ------------------------------------------------------------------------------------------ storage

    def to_json(self, classes: Iterable[type[Any]] = ()) -> str:
        """Return a text that `Strategy.from_json` converts back to an equal strategy.

        `classes` are the user's classes of steps, refinements and instructions that occur in it.

        >>> from fireiron import *
        >>> loads = MatMul.tile(32, 32).to(Block).split(8).load(A, SH).pad(4).load(B, SH)
        >>> Strategy.from_json(loads.to_json()) == loads
        True
        """
        from fireiron.language.store import dumps

        return dumps(self, classes=classes)

    @staticmethod
    def from_json(text: str, programs: Iterable[Any] = (), classes: Iterable[type[Any]] = ()) -> Strategy:
        """Return the strategy of a text made by `to_json`.

        `programs` are the programs of tasks in it that are not in the library, `classes` the user's classes.
        """
        from fireiron.language.store import loads

        return loads(text, programs=programs, classes=classes)


@frozen
class Cursor:
    """A step inside a strategy."""

    strategy: Strategy
    position: int

    @property
    def step(self) -> Decomposition:
        """The step."""
        return self.strategy.steps[self.position]

    def refine(self, refinement: Refinement) -> Strategy:
        """Return the strategy with this step refined; a refinement of the same kind is replaced.

        >>> from fireiron import *
        >>> loads = MatMul.tile(32, 32).to(Block).split(8).load(A, SH).pad(4).load(B, SH)
        >>> loads.at(Load, B).refine(Pad(8))
        MatMul.tile(32, 32).to(Block).split(8).load(A, SH).pad(4).load(B, SH).pad(8)
        """
        return self.replace(self.step.refined(refinement))

    def unrefine(self, *kinds: type[Refinement]) -> Strategy:
        """Return the strategy without this step's refinements of some kinds. Legal if the step has all of them."""
        kept = self.step.refinements
        for kind in kinds or (None,):
            if not isinstance(kind, type) or not issubclass(kind, Refinement):
                raise ArgumentError("unrefine: not a kind of refinement", got=kind, legal="To Unroll Pad NoSync ...", at=call_site())
            if not any(isinstance(refinement, kind) for refinement in kept):
                raise DecompositionError(
                    f"unrefine({kind.__name__}): {self.step.summary()} has no such refinement",
                    legal=[type(refinement).__name__ for refinement in kept] or "none: it has no refinements",
                    at=call_site(),
                )
            kept = tuple(refinement for refinement in kept if not isinstance(refinement, kind))
        return self.replace(evolve(self.step, refinements=kept))

    def replace(self, step: Decomposition) -> Strategy:
        """Return the strategy with another step at this position. Raises: `ArgumentError` if it is not a decomposition.

        >>> from fireiron import *
        >>> loads = MatMul.tile(32, 32).to(Block).split(8).load(A, SH).pad(4).load(B, SH)
        >>> loads.at(Split).replace(Split((16,)))
        MatMul.tile(32, 32).to(Block).split(16).load(A, SH).pad(4).load(B, SH)
        """
        if not isinstance(step, Decomposition):
            raise ArgumentError("replace: not a decomposition", got=step, legal="Tile((64, 32))", at=call_site())
        steps = self.strategy.steps
        return evolve(self.strategy, steps=(*steps[: self.position], step, *steps[self.position + 1 :]))


class TileStrategy(TileVerbs, Strategy):
    """A chain that ends with `tile`."""


class SplitStrategy(SplitVerbs, Strategy):
    """A chain that ends with `split`."""


class SplitKStrategy(SplitKVerbs, Strategy):
    """A chain that ends with `split_k`."""


class LoadStrategy(LoadVerbs, Strategy):
    """A chain that ends with `load`."""


class EpilogStrategy(EpilogVerbs, Strategy):
    """A chain that ends with `epilog`."""


class SetMemoryStrategy(SetMemoryVerbs, Strategy):
    """A chain that ends with `set_memory`."""


class ToGpusStrategy(ToGpusVerbs, Strategy):
    """A chain that ends with `to_gpus`."""


S = TypeVar("S", bound=Strategy)


def appended(origin: Verbs | Strategy, step: Decomposition | Strategy, kind: type[S] = Strategy) -> S:  # type: ignore[assignment]
    """Append a step, or all steps of a strategy, to the chain `origin`.

    Raises: a `DecompositionError` if the chain ends with `done`, or for a strategy that is bound or starts from another kind of spec.
    """
    steps: tuple[Decomposition, ...] = ()
    spec: Spec | None = None
    start: Starter | AnyStarter = AnySpec
    if isinstance(origin, Strategy):
        steps, spec, start = origin.steps, origin.spec, origin.start
        if origin.finished:
            raise DecompositionError("the chain ends with done(), so no step can follow", within=origin.steps[-1].summary(), at=call_site())
    elif isinstance(origin, Spec):
        spec, start = origin, origin.starter
    elif isinstance(origin, (Starter, AnyStarter)):
        start = origin
    if isinstance(step, Strategy):
        if step.spec is not None:
            raise DecompositionError(
                "then: the strategy to append is bound to a spec", hint=f"build it from {start.title}, not from a spec", at=call_site()
            )
        if isinstance(start, Starter) and isinstance(step.start, Starter) and not start.takes(step.start):
            raise DecompositionError(
                f"then: the strategy to append starts from {step.start.title}, this chain from {start.title}",
                hint=f"pass a chain that starts from {step.start.title} as an argument: load(A, SH, ...), epilog(RF, init, store)",
                at=call_site(),
            )
        start = step.start if start == AnySpec else start
        others = tuple(evolve(other, steps=(*steps, *other.steps), start=start) for other in step.others)
        return kind((*steps, *step.steps), spec, start, others=others)
    if not isinstance(step, Decomposition):
        raise ArgumentError("then: the argument is neither a decomposition nor a strategy", got=step, at=call_site())
    return kind((*steps, step if step.origin else evolve(step, origin=call_site())), spec, start)


def _first_legal(strategy: Strategy, program_of: Callable[[Strategy], Program]) -> Program:
    """Return the program of the first legal alternative, with the errors of those before it."""
    first: FireironError | None = None
    refused: list[str] = []
    for alternative in strategy.alternatives:
        try:
            program = program_of(evolve(alternative, refused=tuple(refused)))
            _ = program.stages if program.tree.complete else None
        except FireironError as error:
            first = first or error
            refused.append(error.asked)
            continue
        return program
    assert first is not None
    rest = "; ".join(refused[1:])
    first.hint = (f"{first.hint}; " if first.hint else "") + f"the alternatives are not legal either: {rest}"
    raise first


def _start_of(spec: Spec | None) -> Starter | AnyStarter:
    return spec.starter if isinstance(spec, Spec) else AnySpec


def _prefetching(steps: tuple[Decomposition, ...]) -> tuple[Decomposition, ...]:
    """Return the steps of a matmul with an epilogue: an `epilog` before a warp-specialized loop prefetches vectors."""

    def has(step: Decomposition, kind: type[Refinement]) -> bool:
        return any(isinstance(refinement, kind) for refinement in step.refinements)

    last = max((position for position, step in enumerate(steps) if has(step, WarpSpecialize)), default=0)
    return tuple(
        step.refined(PrefetchEpilogue()) if isinstance(step, Epilog) and position < last and not has(step, PrefetchEpilogue) else step
        for position, step in enumerate(steps)
    )


def _meet(start: Starter | AnyStarter, wanted: Spec | Starter | AnyStarter) -> Starter | AnyStarter:
    """Return the kind of spec that a chain and its use have in common; `AnySpec` fits all kinds. Refuse two different kinds."""
    starter = wanted.starter if isinstance(wanted, Spec) else wanted
    if isinstance(start, Starter) and isinstance(starter, Starter) and not starter.takes(start):
        raise _of_another_start(start, wanted)
    return start if starter == AnySpec else starter


def _of_another_start(start: Starter | AnyStarter, wanted: Spec | Starter | AnyStarter) -> DecompositionError:
    starter = wanted.starter if isinstance(wanted, Spec) else wanted
    if start.title == starter.title:
        return _of_another_definition(start, starter, wanted)
    return DecompositionError(
        f"the strategy starts from {start.title}, but the spec is a {starter.title}",
        within=wanted if isinstance(wanted, Spec) else None,
        hint=_remedy_of_start(start, starter),
        at=call_site(),
    )


def _remedy_of_start(start: Starter | AnyStarter, starter: Starter | AnyStarter) -> str:
    """Return what to do about a spec of another kind: a matmul lacks the epilogue that a strategy has."""
    definition = getattr(start, "fused_definition", None)
    if definition is None or definition.product is None or starter.title not in ("MatMul", "SparseMatMul"):
        return f"build it from {starter.title}"
    return f"the problem with the epilogue: {starter.title}.fuse_epilogue(TEXT)(M, N, K, ...), with the TEXT of the strategy"


def _of_another_definition(start: Starter | AnyStarter, starter: Starter | AnyStarter, wanted: Any) -> DecompositionError:
    """Return the error for two definitions of the same name, with the first line of each that the other does not have."""
    own, wanted_lines = str(start).splitlines(), str(starter).splitlines()
    return DecompositionError(
        f"the strategy starts from another definition with the name {start.title}",
        got=next((line.strip() for line in own if line not in wanted_lines), _without_lines(start, own == wanted_lines)),
        legal=next((line.strip() for line in wanted_lines if line not in own), _without_lines(starter, own == wanted_lines)),
        within=wanted if isinstance(wanted, Spec) else None,
        hint="use a spec of the strategy's own definition, or a strategy for this definition",
        at=call_site(),
    )


def _without_lines(start: Starter | AnyStarter, same_text: bool) -> str:
    """Return how a definition without separate lines differs: in declared types if the text is the same, or by fewer steps."""
    definition = getattr(start, "fused_definition", None)
    if not same_text or definition is None:
        return "fewer steps"
    return ", ".join(f"{name} {dtype}" for name, dtype in definition.types) or "no declared types"


def _unrefined(steps: tuple[Decomposition, ...]) -> tuple[Decomposition, ...]:
    result = []
    for step in steps:
        step = step.unrefined((To,))
        if isinstance(step, Load) or step.makes_launches:
            chains: dict[str, Any] = {name: _unrefined(chain) for name, chain in inner_chains(step).items()}
            step = evolve(step, **chains) if chains else step
        elif isinstance(step, Epilog):
            step = evolve(step, init=_unrefined(step.init), store=_unrefined(step.store))
        elif isinstance(step, SplitK) and step.combine is not None:
            step = evolve(step, combine=_unrefined(step.combine))
        result.append(step)
    return tuple(result)


__all__ = [
    "Cursor", "Derived", "EpilogStrategy", "LoadStrategy", "SetMemoryStrategy", "Split", "SplitKStrategy", "SplitStrategy", "Strategy",
    "Tile", "TileStrategy", "ToGpusStrategy", "Tunable", "appended",
]  # fmt: skip
