"""Run a test for each combination of strategies, values of their tunables, and shapes."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import ModuleType
from typing import Any

import attrs

from fireiron.errors import ArgumentError, FireironError
from fireiron.language.strategy import Strategy
from fireiron.spec import Spec


@attrs.frozen(eq=False, repr=False)
class Case:
    """One combination of a sweep."""

    name: str
    strategy: Strategy
    spec: Spec
    values: Mapping[str, int]
    shape: tuple[int, ...]

    @property
    def bound(self) -> Strategy:
        """The strategy with the values of the case, bound to the spec."""
        return self.strategy.with_(**self.values)(self.spec)

    def __repr__(self) -> str:
        return f"Case({self})"

    def __str__(self) -> str:
        values = ",".join(f"{name}={value}" for name, value in self.values.items())
        return "-".join(part for part in (self.name, values, "x".join(map(str, self.shape))) if part)


def sweep(
    strategies: Any,
    shapes: Iterable[tuple[int, ...]],
    *,
    spec: Callable[..., Spec] | None = None,
    values: Iterable[Mapping[str, int]] | None = None,
    argument: str = "case",
    **tunables: int | Sequence[int],
) -> Any:
    """Return a pytest mark that runs a test for each strategy, each combination of tunable values, and each shape.

    Args:
        strategies: a name of the strategy library, a module that defines `strategy` and `spec`, or a strategy. Several of these are given
            as a list, or by name in a mapping.
        shapes: sizes in the order of the parameters of `spec`, such as `(4096, 4096, 4096)`.
        spec: a function that returns a spec for sizes. It is required for a strategy without such a function.
        values: combinations of values, a mapping for each.
        argument: the argument of the test that receives the `Case`.
        tunables: instead of `values`, the values of each tunable, for all combinations: `bm=(64, 128)`.

    Returns: `pytest.mark.parametrize`, with ids such as `hmma_ampere-bm=128,bn=256-4096x4096x4096`. A shape without a spec is skipped with
    the reason. `gpu_benchmark` skips illegal combinations.

    Raises: `ArgumentError` if a strategy does not have a tunable.
    """
    import pytest

    if values is not None and tunables:
        raise ArgumentError("sweep: values= and tunables by keyword exclude each other", legal="one of them", got=tuple(tunables))
    combinations = [dict(combination) for combination in values] if values is not None else _combinations(tunables)
    parameters = []
    for name, strategy, make in _strategies(strategies, spec):
        _check_tunables(name, strategy, combinations)
        for combination, shape in itertools.product(combinations, map(tuple, shapes := list(shapes))):
            try:
                case = Case(name, strategy, make(*shape), combination, shape)
            except FireironError as error:
                label = "-".join((name, "x".join(map(str, shape))))
                parameters.append(pytest.param(None, id=label, marks=pytest.mark.skip(reason=f"no such spec: {error.asked}")))
                continue
            parameters.append(pytest.param(case, id=str(case)))
    if not parameters:
        raise ArgumentError("sweep: there are no combinations", hint="give at least one strategy and one shape")
    return pytest.mark.parametrize(argument, parameters)


def _combinations(tunables: Mapping[str, int | Sequence[int]]) -> list[dict[str, int]]:
    choices = [(value,) if isinstance(value, int) else tuple(value) for value in tunables.values()]
    return [dict(zip(tunables, selected, strict=True)) for selected in itertools.product(*choices)]


def _check_tunables(name: str, strategy: Strategy, combinations: Sequence[Mapping[str, int]]) -> None:
    known = strategy.tunables()
    unknown = sorted({key for combination in combinations for key in combination if key not in known})
    if unknown:
        raise ArgumentError(f"sweep: {name} has no tunable {', '.join(unknown)}", legal=known or "none")
    for combination in combinations:
        strategy.with_(**combination)  # raises for values that a tunable does not have


def _strategies(given: Any, spec: Callable[..., Spec] | None) -> list[tuple[str, Strategy, Callable[..., Spec]]]:
    """Return the name, the strategy and the spec function of each given strategy."""
    if isinstance(given, Mapping):
        return [(name, *_strategy(strategy, spec)[1:]) for name, strategy in given.items()]
    strategies_ = given if isinstance(given, (list, tuple)) else [given]
    return [_strategy(strategy, spec) for strategy in strategies_]


def _strategy(given: Any, spec: Callable[..., Spec] | None) -> tuple[str, Strategy, Callable[..., Spec]]:
    name, strategy, default_spec = "strategy", given, None
    if isinstance(given, str):
        from fireiron.language import library

        entry = library.find(given)
        name, strategy, default_spec = given, entry.strategy, entry.problem
    elif isinstance(given, ModuleType):
        name = given.__name__.rpartition(".")[2]
        strategy, default_spec = getattr(given, "strategy", None), getattr(given, "spec", None)
    if not isinstance(strategy, Strategy):
        raise ArgumentError(
            "sweep: the argument is not a strategy", got=given, legal="a name of the library, a module with `strategy`, a strategy"
        )
    make = spec or default_spec
    if make is None and strategy.spec is not None:
        raise ArgumentError(f"sweep: {name} is already bound to {strategy.spec}", hint="give the unbound strategy, and spec=")
    if make is None:
        raise ArgumentError(
            f"sweep: {name} has no function `spec`", hint="sweep(..., spec=lambda M, N, K: MatMul(M, N, K)(GL, GL, GL)(Kernel))"
        )
    return name, strategy, make
