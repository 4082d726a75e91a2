"""Find a strategy and its problem by a name in a file.

A file specifies what its strategies compute by `spec` or `problem`, or for a strategy `NAME` by `NAME_spec` or `NAME_problem`. Each is a
spec, a definition, or a function from sizes to a spec. If a file has a spec and a function, the spec is the default, and the function makes
specs of other sizes, types and storage orders. See docs/howto/own-file.md.
"""

from __future__ import annotations

import ast
import difflib
import functools
import inspect
import itertools
import pkgutil
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from fireiron.errors import ArgumentError, FireironError
from fireiron.frozen import frozen
from fireiron.language.loading import users_code
from fireiron.language.strategy import Strategy
from fireiron.language.substrategy import inner_chains
from fireiron.spec import AnySpec, Spec, as_spec
from fireiron.specs.fused import Fused
from fireiron.specs.init import Init
from fireiron.specs.matmul import MatMul
from fireiron.specs.move import Move
from fireiron.values.expr import Expr, constant
from fireiron.values.machine import GL, Architecture, Kernel, float32

DEFAULT_SIZES: Final = (1024, 1024, 1024)
"""M, N, K if a file specifies none."""

FEW: Final = 4
"""The default size of batch dimensions, and of dimensions that a loop takes one by one, if a file gives no sizes."""

Maker = Callable[..., Any]
"""A function from sizes to a spec."""

StrategyOfSpec = Callable[[Spec], Strategy]
"""A function that returns the strategy for a spec if a file has none."""


@frozen(eq=False)
class Entry:
    """A strategy with its problem.

    Attributes:
        name: the STRATEGY argument.
        problem: a function that makes a spec from `sizes`; None for the plain spec of the strategy's kind, or for `stated`.
        sizes: the default sizes.
        described: a function that returns the description; it may parse the file.
        recommended: a function that returns values of tunables for a spec and a target; None if the file has none.
        stated: the spec of the file, which is the default.
        architecture: the target of a kernel that the file compiles.
    """

    name: str
    strategy: Strategy
    problem: Maker | None = None
    sizes: tuple[Any, ...] = DEFAULT_SIZES
    described: Callable[[], str] = str
    path: Path | None = None
    recommended: Callable[[Spec, Architecture], Mapping[str, int]] | None = None
    stated: Spec | None = None
    architecture: str | None = None

    @property
    def doc(self) -> str:
        """The first line of the text after the strategy's assignment, or else of the file's docstring."""
        return self.described()

    @property
    def batched(self) -> bool:
        """Whether the strategy is for batched problems: its problem has a parameter `batch`."""
        return self.problem is not None and "batch" in inspect.signature(self.problem).parameters


# ---------------------------------------------------------------------------------------------- entries of names


def entry_of(argument: str, module: ModuleType, name: str, path: Path, default: StrategyOfSpec) -> Entry:
    """Return the entry of a name in a file: a strategy, a program, a compiled kernel, or a problem.

    Without a name: `strategy`, or the only strategy of the file, or the only one for the problem of the file.

    Raises: an `ArgumentError` if the name is none of these, or if the file specifies the problem inconsistently.
    """
    strategies = {key: value for key, value in vars(module).items() if isinstance(value, Strategy)}
    graph, dot, kernel = name.partition(".")
    if dot and hasattr(vars(module).get(graph), "kernels"):
        value = vars(module)[graph]
        return Entry(argument, getattr(value, "graph", value)[kernel], described=functools.partial(_doc, module), path=path)
    named = as_spec(vars(module).get(name))
    if isinstance(named, (Spec, Fused)) or (inspect.isfunction(named) and strategies):
        return _of_problem(argument, module, name, path, strategies, default)
    compiled = _compiled(named)
    if compiled is not None:
        strategy, target = compiled
        return Entry(argument, strategy, described=functools.partial(_doc, module), path=path, architecture=target)
    chosen = name or _default_name(module, path, strategies)
    if chosen not in strategies:
        whole = [key for key, value in strategies.items() if is_whole(module, value)]
        raise _no_strategy(module, chosen, argument, path, whole or strategies)
    return _entry(argument, module, chosen, path, strategies[chosen], _problem_of(module, chosen, path))


Problem = tuple[Spec | None, Maker | None]
"""The problem of a file: a spec, and a function from sizes to specs; None for each that the file lacks."""


def _entry(argument: str, module: ModuleType, key: str, path: Path, strategy: Strategy, problem: Problem) -> Entry:
    """Return the entry of a strategy with the name `key` in a file."""
    stated, maker = problem
    sizes = getattr(module, "SIZES", None)
    if sizes is None:
        sizes = _sizes_of_problem(strategy, maker) if stated is None else tuple(constant(size) or str(size) for size in stated.sizes)
    if not isinstance(sizes, tuple):
        raise ArgumentError(f"{path}: SIZES must be a tuple of sizes", got=sizes, legal="SIZES = (1024, 1024, 1024)")
    sizes = _with_defaults(sizes, maker if stated is None else None)
    recommended = getattr(module, "values" if key == "strategy" else f"{key}_values", None)
    known = _of_targets(recommended) if callable(recommended) else None
    return Entry(argument, strategy, _of_start(maker, strategy), sizes, functools.partial(_doc, module, key), path, known, stated)


def _doc(module: ModuleType, key: str = "strategy") -> str:
    """Return the first line of the text after the assignment of a strategy, or else that of the file's docstring."""
    own = "" if key == "strategy" else _text_after(module, key)
    return (own or inspect.getdoc(module) or "").strip().partition("\n")[0]


def _text_after(module: ModuleType, key: str) -> str:
    """Return the string literal after the assignment of a name in the text of a module; empty if there is none."""
    try:
        body = ast.parse(inspect.getsource(module)).body
    except (OSError, TypeError, SyntaxError):
        return ""
    for statement, following in itertools.pairwise(body):
        names = [target.id for target in getattr(statement, "targets", ()) if isinstance(target, ast.Name)]
        match following:
            case ast.Expr(value=ast.Constant(value=str() as text)) if key in names:
                return text
    return ""


def _compiled(value: object) -> tuple[Strategy, str] | None:
    """Return the bound strategy and the target of a program or a compiled kernel; None for anything else."""
    program = getattr(value, "program", value)
    strategy, target = getattr(program, "strategy", None), getattr(program, "architecture", None)
    if isinstance(value, (Strategy, ModuleType)) or not isinstance(strategy, Strategy) or strategy.spec is None:
        return None
    return strategy, str(target)


def _default_name(module: ModuleType, path: Path, strategies: Mapping[str, Strategy]) -> str:
    """Return the strategy to use if an argument names none: `strategy`, the only one, or the only one for the problem of the file."""
    if "strategy" in strategies and is_whole(module, strategies["strategy"]):
        return "strategy"
    strategies = {key: value for key, value in strategies.items() if is_whole(module, value)} or strategies
    if "strategy" not in strategies and len(strategies) > 1:
        problem = _problem_of(module, "strategy", path)
        start = _start_of(problem)
        strategies = {key: value for key, value in strategies.items() if start is not None and _computes(value, problem[0], start)}
    return next(iter(strategies)) if len(strategies) == 1 else "strategy"


def is_whole(module: ModuleType, strategy: Strategy) -> bool:
    """Return whether a strategy of a module is a complete one, and not a part of another strategy of the module."""
    if not strategy.finished:
        return False
    others = (value for value in vars(module).values() if isinstance(value, Strategy) and value is not strategy)
    return strategy.spec is not None or not any(has_chain(other.steps, strategy.steps) for other in others)


def has_chain(steps: tuple[Any, ...], chain: tuple[Any, ...]) -> bool:
    """Return whether a chain of steps is the strategy of a step, such as the copy of a load."""
    return any(inner == chain or has_chain(inner, chain) for step in steps for inner in inner_chains(step).values())


def _no_strategy(module: ModuleType, chosen: str, argument: str, path: Path, strategies: Iterable[str]) -> ArgumentError:
    close = difflib.get_close_matches(chosen, strategies, 3, 0.5)
    value = getattr(module, chosen, None)
    what = "does not exist" if value is None or isinstance(value, ModuleType) else f"is not a strategy but {type(value).__name__}"
    problem = next((name for name, value in vars(module).items() if isinstance(as_spec(value), Spec)), None)
    example = "s = MatMul.tile(...)..." if problem is None else f"{path}:{problem} for the library's strategy"
    if value is not None and hasattr(value, "kernels"):
        kernel = next(iter(dict(getattr(value, "graph", value).kernels)))
        what = f"{path}: {chosen} is a graph of several kernels, and this command takes one kernel"
        hint = f"a kernel of the graph: {path}:{chosen}.{kernel}"
        return ArgumentError(what, legal="show, check, explain, cost, run, emit, export or draw", hint=hint)
    if not strategies and (modules := [info.name for info in pkgutil.iter_modules(getattr(module, "__path__", ()))]):
        package = module.__name__
        hint = f"fireiron list {package}, and one of these strategies: {package}.{modules[0]}:NAME"
        return ArgumentError(
            f"{package} is a package, and {path} has no strategy", legal=[f"{package}.{name}" for name in modules], hint=hint
        )
    hint = f"did you mean {' or '.join(close)}?" if close else f"{path}:NAME" if strategies else example
    if strategies and not close and chosen == "strategy":
        what = "(the name that a command takes by default) does not exist; the file has several strategies, or another name"
        hint = " or ".join(f"{argument.removesuffix(':strategy')}:{name}" for name in itertools.islice(strategies, 3))
    return ArgumentError(f"{path}: {chosen} {what}", legal=list(strategies) or "the file has no strategy", hint=hint)


def _of_problem(
    argument: str, module: ModuleType, name: str, path: Path, strategies: Mapping[str, Strategy], default: StrategyOfSpec
) -> Entry:
    """Return the entry of the problem `name`, with the strategy of the file that starts from it, or the default strategy."""
    problem = _as_problem(vars(module)[name], f"{path}: {name}")
    spec, _ = problem
    start = _start_of(problem)
    fitting = {key: strategy for key, strategy in strategies.items() if _computes(strategy, spec, start)}
    if len(fitting) > 1 and "strategy" not in fitting:
        hint = f"{path}:STRATEGY, and spec or problem in the file"
        raise ArgumentError(f"{path}: several strategies start from {name}", legal=list(fitting), hint=hint)
    if fitting:
        key = "strategy" if "strategy" in fitting else next(iter(fitting))
        return _entry(argument, module, key, path, fitting[key], problem)
    if spec is None:
        known = list(strategies) or "the file has no strategy"
        raise ArgumentError(f"{path}: no strategy starts from {name}", legal=known, hint=f"strategy = {name}.tile(...)... .done()")
    return _entry(argument, module, "strategy", path, default(spec), problem)


def _start_of(problem: Problem) -> object:
    """Return what strategies for a problem start from; None if it is unknown."""
    spec, maker = problem
    return spec.starter if spec is not None else getattr(maker, "starter", None)


def _computes(strategy: Strategy, spec: Spec | None, start: object) -> bool:
    """Return whether a strategy is for a spec, or for specs that start from `start` (None: unknown)."""
    if strategy.spec is not None:
        return strategy.spec == spec
    return strategy.finished and (start is None or strategy.start in (start, AnySpec))


# ---------------------------------------------------------------------------------------------- the problem of a file


def _problem_of(module: ModuleType, key: str, path: Path) -> Problem:
    """Return the problem that a file specifies for its strategy `key`."""
    own = [] if key == "strategy" else [name for name in (f"{key}_spec", f"{key}_problem") if hasattr(module, name)]
    values = {name: vars(module).get(name) for name in own or ("spec", "problem")}
    values = {name: value for name, value in values.items() if value is not None and not isinstance(value, ModuleType)}
    problems = {name: _as_problem(value, f"{path}: {name}") for name, value in values.items()}
    specs = {name: spec for name, (spec, _) in problems.items() if spec is not None}
    makers = {name: maker for name, (_, maker) in problems.items() if maker is not None}
    for by_name, what in ((specs, "specs"), (makers, "functions")):
        first, *others = by_name.values() or [None]
        if any(other != first for other in others):
            raise ArgumentError(f"{path}: {' and '.join(by_name)} are different {what}", hint="define one of them")
    return next(iter(specs.values()), None), next(iter(makers.values()), None)


def _as_problem(value: Any, what: str) -> Problem:
    """Return a value of a file as a problem.

    Raises: an `ArgumentError`, with the name `what`, if it is neither a spec, a definition nor a function.
    """
    value = as_spec(value)
    if isinstance(value, Spec):
        return value, None
    if isinstance(value, Fused):
        return None, of_definition(value)
    if not callable(value) or isinstance(value, Strategy):
        legal = "MatMul(M, N, K), a definition, or a function from sizes to a spec"
        raise ArgumentError(f"{what} is not a spec, but {type(value).__name__}", legal=legal)
    return None, value


def _of_targets(recommended: Callable[..., Mapping[str, int]]) -> Callable[[Spec, Architecture], Mapping[str, int]]:
    """Return a function of a spec and a target; a function of the spec alone returns the same values for all targets."""
    if "target" in inspect.signature(recommended).parameters:
        return recommended
    return lambda spec, target: recommended(spec)


def _default_sizes(strategy: Strategy) -> tuple[int, ...]:
    """Return the default sizes; those of batch dimensions, and of dimensions that a loop takes one by one, are small."""
    if not isinstance(strategy.start, Fused):
        return DEFAULT_SIZES
    definition = strategy.start.fused_definition
    return tuple(FEW if dim in (*definition.scan, *definition.batch) else DEFAULT_SIZES[0] for dim in definition.order)


def _with_defaults(sizes: tuple[Any, ...], problem: Maker | None) -> tuple[Any, ...]:
    """Return the sizes of a file, with the default values of the signature for those that it does not require: they are the ones in use."""
    if problem is None:
        return sizes
    parameters = inspect.signature(problem).parameters
    required, optional = _sizes_among(parameters)
    values = [parameters[name].default for name in optional]
    return (*sizes[: len(required)], *values[: max(len(sizes) - len(required), 0)]) if optional else sizes


def _sizes_of_problem(strategy: Strategy, problem: Maker | None) -> tuple[int, ...]:
    """Return the default sizes; sizes with a default value in the signature of the problem have this value."""
    sizes = _default_sizes(strategy)
    if problem is None:
        return sizes
    parameters = inspect.signature(problem).parameters
    required, optional = _sizes_among(parameters)
    values = [parameters[name].default for name in optional]
    return (*sizes[: len(required)], *values[: max(0, len(sizes) - len(required))]) if required or optional else sizes


def _of_start(problem: Maker | None, strategy: Strategy) -> Maker | None:
    """Pass the definition that the strategy starts from as the argument `fused`, if the problem has it."""
    if problem is None or not isinstance(strategy.start, Fused) or "fused" not in inspect.signature(problem).parameters:
        return problem
    return functools.partial(problem, fused=strategy.start)


# ---------------------------------------------------------------------------------------------- the requested spec


def spec_of(entry: Entry, sizes: Mapping[str, Any], options: Mapping[str, Any]) -> Spec:
    """Return the spec of an unbound entry for sizes by name, and options: types and storage orders.

    Raises: an `ArgumentError` for a size or an option that the problem does not have.
    """
    if entry.stated is not None and not sizes and not options:
        return entry.stated
    if entry.stated is not None:
        _require_derivable(entry, entry.stated, sizes, options)
    problem = entry.problem or (None if entry.stated is None else _resized(entry.stated)) or _plain_problem(entry.strategy)
    with users_code(entry.path, f"spec of {entry.name}"):
        parameters = inspect.signature(problem).parameters
    dims, more = _sizes_among(parameters)
    sizes = _by_own_names(entry, sizes, (*dims, *more))
    unknown = [name for name in sizes if name not in (*dims, *more)]
    if unknown:
        how = f"-s {dims[0]}=64" if dims else None
        raise ArgumentError(f"{entry.name}: its problem has no size {', '.join(unknown)}", legal=[*dims, *more] or "none", hint=how)
    if len(entry.sizes) < len(dims) and any(name not in sizes for name in dims):
        raise ArgumentError(
            f"{entry.name}: SIZES has {len(entry.sizes)} sizes, but its problem has the sizes {', '.join(dims)}", hint="give all sizes"
        )
    _require_accepted(entry, options, parameters)
    arguments = [sizes[name] if name in sizes else entry.sizes[position] for position, name in enumerate(dims)]
    named = {name: sizes[name] for name in more if name in sizes}
    if "fused" in parameters and "fused" not in options and isinstance(entry.strategy.start, Fused):
        named["fused"] = entry.strategy.start
    with users_code(entry.path, f"spec of {entry.name}"):
        spec = as_spec(problem(*arguments, **named, **options))
    if not isinstance(spec, Spec):
        legal = "MatMul(M, N, K)"
        raise ArgumentError(f"{entry.name}: its spec function does not return a spec", got=spec, legal=legal)
    return spec


def dimensions(entry: Entry) -> tuple[str, ...]:
    """Return the names of the sizes that an entry's problem takes; none if the entry is bound to one spec."""
    problem = entry.problem or (None if entry.stated is None else _resized(entry.stated))
    if entry.strategy.spec is not None or (entry.stated is not None and problem is None):
        return ()
    problem = problem or _plain_problem(entry.strategy)
    with users_code(entry.path, f"spec of {entry.name}"):
        required, optional = _sizes_among(inspect.signature(problem).parameters)
    return (*required, *optional)


def _require_derivable(entry: Entry, stated: Spec, sizes: Iterable[str], options: Iterable[str]) -> None:
    """Refuse sizes, types or orders for the spec of a file, unless the file has a function that makes this spec from its sizes.

    Another function would silently drop properties of the spec. Without a function, only sizes can be chosen (`_resized`).
    """
    requested = [*options] if entry.problem is None and _resized(stated) is not None else [*sizes, *options]
    if not requested:
        return
    head = f"{entry.name}: its file specifies one spec, {stated}, so {', '.join(requested)} cannot be chosen"
    if entry.problem is None:
        sizes = ", ".join(stated.dims)
        is_definition = isinstance(stated.starter, Fused)
        start = "strategy.start" if is_definition and entry.strategy.start == stated.starter else repr(stated.starter)
        passed = ", ".join(f"{dim}={dim}" for dim in stated.dims) if is_definition else sizes
        raise ArgumentError(head, hint=f"def spec({sizes}, **options): return {start}({passed}, **options)")
    dims, _ = _sizes_among(inspect.signature(entry.problem).parameters)
    with users_code(entry.path, f"spec of {entry.name}"):
        spec = as_spec(entry.problem(*stated.sizes)) if len(dims) == len(stated.sizes) else None
    if spec != stated:
        raise ArgumentError(
            head, got=spec, hint="the function of the file makes another spec from these sizes; use path.py:spec to choose it"
        )


def _resized(stated: Spec) -> Maker | None:
    """Return the function from sizes to specs that differ from a spec of a file in sizes only; None if it cannot be derived.

    It has the types and storage orders of the spec, and returns the same spec for the same sizes.
    """
    orders = {name: view.tensor.layout for name, view in stated.operands.items() if not view.memory.is_coordinate}
    make: Maker
    options: dict[str, Any]
    if isinstance(stated.starter, Fused):
        make, options = of_definition(stated.starter), {"types": {name: stated.operands[name].dtype for name in orders}}
    elif stated.starter == MatMul:
        make = _plain_problem(Strategy(start=MatMul))
        options = {"dtype": stated.operands["A"].dtype, "c_dtype": stated.operands["C"].dtype}
    else:
        return None
    resized = functools.partial(make, **options, **orders)
    try:
        same = as_spec(resized(*stated.sizes)) == stated
    except FireironError:
        return None
    return resized if same else None


def _sizes_among(parameters: Mapping[str, inspect.Parameter]) -> tuple[list[str], list[str]]:
    """Return the names of the required sizes of a problem, and of those with a default."""
    kinds = inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD
    defaults = {name: parameter.default for name, parameter in parameters.items() if parameter.kind in kinds}
    required = [name for name, default in defaults.items() if default is inspect.Parameter.empty]
    return required, [name for name, value in defaults.items() if isinstance(value, (int, Expr)) and not isinstance(value, bool)]


def _require_accepted(entry: Entry, options: Iterable[str], parameters: Mapping[str, inspect.Parameter]) -> None:
    """Refuse types and storage orders that a problem does not accept."""
    free = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values())
    refused = [] if free else [name for name in options if name not in parameters]
    if refused:
        named = {name for group in _sizes_among(parameters) for name in group}
        known = [name for name in parameters if name not in named]
        hint = "add **options to its function, and use MatMul(..., **options)"
        raise ArgumentError(f"{entry.name}: its problem does not accept {', '.join(refused)}", legal=known or "none", hint=hint)


def _by_own_names(entry: Entry, sizes: Mapping[str, Any], known: tuple[str, ...]) -> dict[str, Any]:
    """Return sizes by the names of the problem, which may differ in case: `M` of the command line can be `m` of a definition."""
    by_name: dict[str, Any] = {}
    for name, size in sizes.items():
        own = name if name in known else next((other for other in (name.lower(), name.upper()) if other in known), name)
        if own in by_name:
            raise ArgumentError(
                f"{entry.name}: the size {own} is given twice", got=[by_name[own], size], hint=f"give it once: -s {own}={size}"
            )
        by_name[own] = size
    return by_name


def of_definition(start: Fused) -> Callable[..., Spec]:
    """Return a function that calls a definition: dimensions in order, and element types and storage orders of operands by name."""

    def problem(*sizes: Any, **options: Any) -> Spec:
        return start(**dict(zip(start.fused_definition.order, sizes, strict=True)), **options)

    dims = [inspect.Parameter(dim, inspect.Parameter.POSITIONAL_OR_KEYWORD) for dim in start.fused_definition.order]
    others = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None) for name in (*start.fused_definition.arrays, "dtype", "types")
    ]
    problem.__signature__ = inspect.Signature([*dims, *others])  # type: ignore[attr-defined]
    problem.starter = start  # type: ignore[attr-defined]
    return problem


def _plain_problem(strategy: Strategy) -> Callable[..., Spec]:
    """Return the function for the plain spec, with all operands in global memory."""
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
