"""What a name in a file means: a strategy, with the problem that it is for.

A file says what its strategies compute by `spec` or `problem`; of a strategy called `NAME`, by `NAME_spec` or `NAME_problem`, where there
is one. Each is a spec, a definition, or a function that makes a spec of sizes. Of a spec and a function the spec is meant where nobody says
sizes, types or storage orders, and the function makes all others. docs/howto/own-file.md is the page.
"""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import attrs

from fireiron.errors import ArgumentError
from fireiron.language.loading import users_code
from fireiron.language.strategy import Strategy
from fireiron.spec import AnySpec, PlacedShape, Spec, SpecShape
from fireiron.specs.fused import Fused
from fireiron.specs.init import Init
from fireiron.specs.matmul import MatMul
from fireiron.specs.move import Move
from fireiron.values.expr import Expr, constant
from fireiron.values.machine import GL, Architecture, Kernel, float32

DEFAULT_SIZES: Final = (1024, 1024, 1024)
"""M, N, K where a file names none."""

FEW: Final = 4
"""Elements of batch dimensions, or of dimensions that one step iterates over, if a file gives no sizes."""

Maker = Callable[..., Any]
"""A function that makes a spec of sizes."""

Usual = Callable[[Spec], Strategy]
"""What computes a spec where a file has no strategy for it."""


@attrs.frozen(eq=False)
class Entry:
    """A strategy with the problem it is meant for: `stated`, where nobody says sizes; `problem` makes a spec from `sizes` (None: the plain
    spec, unless one is stated).

    `suits` gives the values of tunables that suit a spec on a target, where its file states them; `architecture` is the target of a kernel
    that its file has compiled.
    """

    name: str
    strategy: Strategy
    problem: Maker | None = None
    sizes: tuple[Any, ...] = DEFAULT_SIZES
    doc: str = ""
    path: Path | None = None
    suits: Callable[[Spec, Architecture], Mapping[str, int]] | None = None
    stated: Spec | None = None
    architecture: str | None = None

    @property
    def batched(self) -> bool:
        """Whether it is meant for stacks of matrices: its problem says of how many."""
        return self.problem is not None and "batch" in inspect.signature(self.problem).parameters


# ---------------------------------------------------------------------------------------------- what a name means


def entry_of(argument: str, module: ModuleType, name: str, path: Path, usual: Usual) -> Entry:
    """The entry of a name in a file: a strategy, a program or compiled kernel, or what is to be computed; without one, `strategy`, or the
    only strategy that there is.

    Raises: an `ArgumentError` where it is none of these, or where what the file says of the problem contradicts itself.
    """
    there = {key: value for key, value in vars(module).items() if isinstance(value, Strategy)}
    found = vars(module).get(name)
    if isinstance(found, (Spec, Fused)) or (inspect.isfunction(found) and there):
        return _of_problem(argument, module, name, path, there, usual)
    made = _made(found)
    if made is not None:
        strategy, target = made
        return Entry(argument, strategy, doc=_doc(module), path=path, architecture=target)
    chosen = name or ("strategy" if "strategy" in there or len(there) != 1 else next(iter(there)))
    if chosen not in there:
        raise _no_strategy(module, chosen, path, there)
    return _entry(argument, module, chosen, path, there[chosen], _said(module, chosen, path))


def _entry(argument: str, module: ModuleType, key: str, path: Path, strategy: Strategy, said: tuple[Spec | None, Maker | None]) -> Entry:
    """The entry of a strategy of a file, called `key` there, and what is said of its problem."""
    stated, maker = said
    sizes = getattr(module, "SIZES", None)
    if sizes is None:
        sizes = _usual_sizes(strategy) if stated is None else tuple(constant(one) or str(one) for one in stated.sizes)
    if not isinstance(sizes, tuple):
        raise ArgumentError(f"{path}: SIZES must be a tuple of sizes", got=sizes, legal="SIZES = (1024, 1024, 1024)")
    suits = getattr(module, "values" if key == "strategy" else f"{key}_values", None)
    known = _of_targets(suits) if callable(suits) else None
    return Entry(argument, strategy, _of_start(maker, strategy), sizes, _doc(module), path, known, stated)


def _doc(module: ModuleType) -> str:
    return (inspect.getdoc(module) or "").partition("\n")[0]


def _made(found: object) -> tuple[Strategy, str] | None:
    """The bound strategy of a program or a compiled kernel, and its target; None for anything else."""
    program = getattr(found, "program", found)
    strategy, target = getattr(program, "strategy", None), getattr(program, "architecture", None)
    if isinstance(found, (Strategy, ModuleType)) or not isinstance(strategy, Strategy) or strategy.spec is None:
        return None
    return strategy, str(target)


def _no_strategy(module: ModuleType, chosen: str, path: Path, there: Iterable[str]) -> ArgumentError:
    close = difflib.get_close_matches(chosen, there, 3, 0.5)
    found = getattr(module, chosen, None)
    what = "is not there" if found is None or isinstance(found, ModuleType) else f"is no strategy but {type(found).__name__}"
    problem = next((name for name, one in vars(module).items() if isinstance(one, Spec)), None)
    usual = "s = MatMul.tile(...)..." if problem is None else f"{path}:{problem} for the library's strategy"
    hint = f"did you mean {' or '.join(close)}?" if close else f"{path}:NAME" if there else usual
    return ArgumentError(f"{path}: {chosen} {what}", legal=list(there) or "the file has no strategy", hint=hint)


def _of_problem(argument: str, module: ModuleType, name: str, path: Path, there: Mapping[str, Strategy], usual: Usual) -> Entry:
    """The entry of what is to be computed, `name`: with the strategy of the file that starts from it, else the usual one."""
    said = _as_said(vars(module)[name], f"{path}: {name}")
    start = said[0].starter if said[0] is not None else getattr(said[1], "starter", None)
    fitting = {key: one for key, one in there.items() if _computes(one, said[0], start)}
    if len(fitting) > 1 and "strategy" not in fitting:
        hint = f"{path}:STRATEGY, and spec or problem in the file for what it computes"
        raise ArgumentError(f"{path}: several strategies start from {name}", legal=list(fitting), hint=hint)
    if fitting:
        key = "strategy" if "strategy" in fitting else next(iter(fitting))
        return _entry(argument, module, key, path, fitting[key], said)
    if said[0] is None:
        known = list(there) or "the file has no strategy"
        raise ArgumentError(f"{path}: no strategy starts from {name}", legal=known, hint=f"strategy = {name}.tile(...)... .done()")
    return _entry(argument, module, "strategy", path, usual(said[0]), said)


def _computes(strategy: Strategy, spec: Spec | None, start: object) -> bool:
    """Whether a strategy is for a spec, or for those that start so (None: nobody knows how)."""
    if strategy.spec is not None:
        return strategy.spec == spec
    return strategy.finished and (start is None or strategy.start in (start, AnySpec))


# ---------------------------------------------------------------------------------------------- what a file says of the problem


def _said(module: ModuleType, key: str, path: Path) -> tuple[Spec | None, Maker | None]:
    """What a file says of the problem of a strategy, called `key` there: a spec, and a function that makes other ones."""
    own = [] if key == "strategy" else [name for name in (f"{key}_spec", f"{key}_problem") if hasattr(module, name)]
    found = {name: vars(module).get(name) for name in own or ("spec", "problem")}
    said = {name: _as_said(one, f"{path}: {name}") for name, one in found.items() if one is not None and not isinstance(one, ModuleType)}
    specs = {name: spec for name, (spec, _) in said.items() if spec is not None}
    makers = {name: maker for name, (_, maker) in said.items() if maker is not None}
    for several, what in ((specs, "specs"), (makers, "functions")):
        first, *others = several.values() or [None]
        if any(one != first for one in others):
            raise ArgumentError(
                f"{path}: {' and '.join(several)} are different {what}", hint="say one of them: what the strategies compute"
            )
    return next(iter(specs.values()), None), next(iter(makers.values()), None)


def _as_said(found: Any, what: str) -> tuple[Spec | None, Maker | None]:
    """A spec, or a function that makes one, as a file has it.

    Raises: an `ArgumentError` where it is neither; `what` is what messages call it.
    """
    if isinstance(found, Spec):
        return found, None
    if isinstance(found, Fused):
        return None, of_definition(found)
    if isinstance(found, (SpecShape, PlacedShape)) or not callable(found) or isinstance(found, Strategy):
        legal = "MatMul(M, N, K)(GL, GL, GL)(Kernel), a definition, or a function that makes a spec of sizes"
        unfinished = isinstance(found, (SpecShape, PlacedShape))
        hint = "memories and a level behind the sizes: (GL, GL, GL)(Kernel)" if unfinished else None
        raise ArgumentError(f"{what} is no spec, but {type(found).__name__}", legal=legal, hint=hint)
    return None, found


def _of_targets(suits: Callable[..., Mapping[str, int]]) -> Callable[[Spec, Architecture], Mapping[str, int]]:
    """What a file states of a spec and a target; a function of the spec alone has the same values for all."""
    if "target" in inspect.signature(suits).parameters:
        return suits
    return lambda spec, target: suits(spec)


def _usual_sizes(strategy: Strategy) -> tuple[int, ...]:
    """Sizes where a file names none: of a definition, a few of the dimensions of which a step takes one element at a time."""
    if not isinstance(strategy.start, Fused):
        return DEFAULT_SIZES
    made = strategy.start.made
    return tuple(FEW if dim in (*made.scan, *made.batch) else DEFAULT_SIZES[0] for dim in made.order)


def _of_start(problem: Maker | None, strategy: Strategy) -> Maker | None:
    """A problem that takes the definition that it is `made` of is made of the one that the strategy starts from."""
    if problem is None or not isinstance(strategy.start, Fused) or "made" not in inspect.signature(problem).parameters:
        return problem
    return functools.partial(problem, made=strategy.start)


# ---------------------------------------------------------------------------------------------- the spec that is asked for


def spec_of(entry: Entry, sizes: Mapping[str, Any], options: Mapping[str, Any]) -> Spec:
    """The spec of an entry of a strategy that is not bound, for sizes by name, and types and storage orders.

    Raises: an `ArgumentError` where the problem has no such size or takes no such option.
    """
    if entry.stated is not None and not sizes and not options:
        return entry.stated
    if entry.stated is not None:
        _require_made(entry, entry.stated, ", ".join([*sizes, *options]))
    problem = entry.problem or _plain_problem(entry.strategy)
    with users_code(entry.path, f"spec of {entry.name}"):
        parameters = inspect.signature(problem).parameters
    dims, more = _sizes_among(parameters)
    sizes = _of_this_case(entry, sizes, (*dims, *more))
    unknown = [name for name in sizes if name not in (*dims, *more)]
    if unknown:
        how = f"-s {dims[0]}=64" if dims else None
        raise ArgumentError(f"{entry.name}: its problem has no size {', '.join(unknown)}", legal=[*dims, *more] or "none", hint=how)
    if len(entry.sizes) < len(dims) and any(name not in sizes for name in dims):
        raise ArgumentError(f"{entry.name}: SIZES has {len(entry.sizes)} sizes, its problem has {', '.join(dims)}", hint="name all sizes")
    _require_taken(entry, options, parameters)
    arguments = [sizes[name] if name in sizes else entry.sizes[position] for position, name in enumerate(dims)]
    named = {name: sizes[name] for name in more if name in sizes}
    if "made" in parameters and "made" not in options and isinstance(entry.strategy.start, Fused):
        named["made"] = entry.strategy.start
    with users_code(entry.path, f"spec of {entry.name}"):
        spec = problem(*arguments, **named, **options)
    if not isinstance(spec, Spec):
        raise ArgumentError(f"{entry.name}: its spec function returns no spec", got=spec, legal="MatMul(M, N, K)(GL, GL, GL)(Kernel)")
    return spec


def dimensions(entry: Entry) -> tuple[str, ...]:
    """Return the names of the sizes that an entry's problem takes; none if the entry is bound to one spec."""
    if entry.strategy.spec is not None or (entry.stated is not None and entry.problem is None):
        return ()
    problem = entry.problem or _plain_problem(entry.strategy)
    with users_code(entry.path, f"spec of {entry.name}"):
        required, optional = _sizes_among(inspect.signature(problem).parameters)
    return (*required, *optional)


def _require_made(entry: Entry, stated: Spec, asked: str) -> None:
    """Refuse other sizes, types or orders than those of the spec that a file says, unless a function there makes that one of its sizes:
    what else the spec says would be lost silently."""
    head = f"{entry.name}: its file says one spec, {stated}: {asked} cannot be chosen"
    if entry.problem is None:
        hint = "a function spec(M, N, K, **options) there makes one of any size, MatMul(M, N, K, **options)(GL, GL, GL)(Kernel)"
        raise ArgumentError(head, hint=hint)
    dims, _ = _sizes_among(inspect.signature(entry.problem).parameters)
    with users_code(entry.path, f"spec of {entry.name}"):
        made = entry.problem(*stated.sizes) if len(dims) == len(stated.sizes) else None
    if made != stated:
        raise ArgumentError(head, got=made, hint="the function of the file makes another one of these sizes: name it, path.py:spec")


def _sizes_among(parameters: Mapping[str, inspect.Parameter]) -> tuple[list[str], list[str]]:
    """The sizes that a problem must be given, and those that it has a default for."""
    plain = {name: one for name, one in parameters.items() if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)}
    dims = [name for name, one in plain.items() if one.default is one.empty]
    return dims, [name for name, one in plain.items() if isinstance(one.default, (int, Expr)) and not isinstance(one.default, bool)]


def _require_taken(entry: Entry, options: Iterable[str], parameters: Mapping[str, inspect.Parameter]) -> None:
    """Refuse types and storage orders that a problem does not take."""
    free = any(one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters.values())
    refused = [] if free else [name for name in options if name not in parameters]
    if refused:
        named = {name for group in _sizes_among(parameters) for name in group}
        known = [name for name in parameters if name not in named]
        hint = "let its function take **options, for MatMul(..., **options)"
        raise ArgumentError(f"{entry.name}: its problem takes no {', '.join(refused)}", legal=known or "none", hint=hint)


def _of_this_case(entry: Entry, sizes: Mapping[str, Any], known: tuple[str, ...]) -> dict[str, Any]:
    """Sizes by the names that the problem has for them: `M` of the command line is `m` of a definition, and `m` is `M` of a product."""
    found: dict[str, Any] = {}
    for name, size in sizes.items():
        other = name if name in known else next((one for one in (name.lower(), name.upper()) if one in known), name)
        if other in found:
            raise ArgumentError(f"{entry.name}: the size {other} is named twice, once as {name}", got=[found[other], size])
        found[other] = size
    return found


def of_definition(start: Fused) -> Callable[..., Spec]:
    """The call of a definition: its dimensions in order, and by name element types and storage orders of operands."""

    def problem(*sizes: Any, **options: Any) -> Spec:
        return start(**dict(zip(start.made.order, sizes, strict=True)), **options)

    dims = [inspect.Parameter(dim, inspect.Parameter.POSITIONAL_OR_KEYWORD) for dim in start.made.order]
    others = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None) for name in (*start.made.arrays, "dtype", "types")]
    problem.__signature__ = inspect.Signature([*dims, *others])  # type: ignore[attr-defined]
    problem.starter = start  # type: ignore[attr-defined]
    return problem


def _plain_problem(strategy: Strategy) -> Callable[..., Spec]:
    """The short form with all operands in global memory."""
    if isinstance(strategy.start, Fused):
        return of_definition(strategy.start)

    def matmul(M: Any, N: Any, K: Any, *, dtype: Any = float32, **layouts: Any) -> Spec:
        spec: Spec = MatMul(M, N, K, dtype=dtype, **layouts)(GL, GL, GL)(Kernel)
        return spec

    def move(M: Any, N: Any, *, dtype: Any = float32) -> Spec:
        spec: Spec = Move(M, N, dtype=dtype)(GL, GL)(Kernel)
        return spec

    def init(M: Any, N: Any, *, dtype: Any = float32) -> Spec:
        spec: Spec = Init(M, N, dtype=dtype)(GL)(Kernel)
        return spec

    for start, problem in ((MatMul, matmul), (Move, move), (Init, init)):
        if strategy.start == start:
            return problem
    raise ArgumentError(
        f"a strategy for {strategy.start.title} needs a problem", hint="define spec(M, N) in its file, or bind the strategy there"
    )
