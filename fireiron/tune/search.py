"""Choose the candidates to lower, and the candidates to measure."""

from __future__ import annotations

import importlib
import random
from collections.abc import Iterator, Mapping
from typing import Any, Final

import attrs

from fireiron.errors import ArgumentError
from fireiron.frozen import frozen
from fireiron.tune.task import Space, Surveyed
from fireiron.values.machine import as_integer

SEARCHES: Final = ("exhaustive", "random", "tpe")
"""exhaustive: all combinations. random: distinct random combinations. tpe: the tree-structured Parzen estimator of optuna."""

MOST_EXHAUSTIVE: Final = 100_000
"""Maximum number of combinations of an exhaustive search. Lowering more takes more than an hour on two processors."""

TRIALS: Final = 100
"""Default number of legal candidates of a random or tpe search."""

BATCH: Final = 8
"""The batch size of the optimizer. It is fixed, so that proposals do not depend on the machine."""

MOST_STALE: Final = 25
"""Number of consecutive batches without a new candidate after which the search ends."""


def _factor(owner: Any, field: Any, value: Any) -> None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, (int, float)) or not value >= 1):
        raise ArgumentError("prune: the factor of the best prediction must be a number of at least 1", got=value)


def _most(owner: Any, field: Any, value: Any) -> None:
    number = as_integer(value)
    if value is not None and (number is None or number < 1):
        raise ArgumentError("prune: the number of candidates to keep must be a positive integer", got=value)


@frozen
class Prune:
    """The pruning rules. Pruned candidates are not compiled; their result has the status "pruned" and the reason.

    `factor` prunes a candidate if its predicted time exceeds `factor` times the best prediction. `most` prunes it if it is not among the
    `most` best predictions. `spills` prunes it if its arrays need more registers than a thread has. None and False disable a rule.
    """

    factor: float | None = attrs.field(default=3.0, validator=_factor)
    most: int | None = attrs.field(default=None, validator=_most)
    spills: bool = True

    @staticmethod
    def of(value: Any) -> Prune:
        """Return the rules for an argument `prune`: the defaults for True, none for False, and a factor for a number."""
        if isinstance(value, Prune):
            return value
        if isinstance(value, bool) or value is None:
            return Prune() if value else Prune(None, None, False)
        return Prune(value)

    def reasons(self, surveyed: Mapping[int, Surveyed]) -> dict[int, str]:
        """Return the reason for each pruned candidate, by index. `surveyed` has all legal candidates."""
        reasons: dict[int, str] = {}
        if self.spills:
            for number, candidate in surveyed.items():
                if candidate.spilled:
                    reasons[number] = f"its arrays do not fit into {candidate.registers} registers: about {candidate.spilled} would spill"
        predictions = {number: candidate.predicted_us for number, candidate in surveyed.items() if number not in reasons}
        rest = {number: us for number, us in predictions.items() if us is not None}
        best = min(rest.values(), default=0.0)
        if self.factor is not None:
            for number, us in list(rest.items()):
                if us > self.factor * best:
                    reasons[number] = f"predicted {us:.4g} us, {us / best:.2g} times the best prediction; the limit is {self.factor:g}"
                    del rest[number]
        if self.most is not None:
            for number in sorted(rest, key=lambda number: (rest[number], number))[self.most :]:
                reasons[number] = f"predicted {rest[number]:.4g} us, not among the best {self.most} predictions"
        return reasons


def in_order(surveyed: Mapping[int, Surveyed]) -> list[int]:
    """Sort candidates by prediction, the fastest first. Candidates without a prediction have the order of the strategy."""
    return sorted(surveyed, key=lambda number: (_predicted(surveyed[number]), number))


def _predicted(surveyed: Surveyed) -> float:
    return float("inf") if surveyed.predicted_us is None else surveyed.predicted_us


def draws(space: Space, seed: int) -> Iterator[int]:
    """Yield candidates in a random order, which depends only on the seed: all of them, or half of a very large space."""
    generator = random.Random(seed)
    total = len(space)
    if total <= MOST_EXHAUSTIVE:
        yield from generator.sample(range(total), total)
        return
    seen: set[int] = set()
    while len(seen) < total // 2:  # most further draws would repeat earlier ones
        number = generator.randrange(total)
        if number not in seen:
            seen.add(number)
            yield number


class Optimizer:
    """The TPE sampler of optuna, in batches of a fixed size, so that proposals depend only on the seed and the times."""

    def __init__(self, space: Space, seed: int) -> None:
        try:
            optuna: Any = importlib.import_module("optuna")
        except ImportError as error:
            raise ArgumentError(
                'search="tpe" requires the package optuna, which cannot be imported', got=str(error), hint="pip install 'fireiron[tune]'"
            ) from None
        self.space = space
        self.states = optuna.trial.TrialState
        kinds = optuna.distributions.CategoricalDistribution
        self.choices = {name: kinds(values) for name, values in space.values.items()}
        optuna.logging.disable_default_handler()
        sampler = optuna.samplers.TPESampler(seed=seed, multivariate=True, group=False, constant_liar=True, n_startup_trials=2 * BATCH)
        self.study = optuna.create_study(direction="minimize", sampler=sampler)

    def ask(self) -> list[tuple[Any, int]]:
        """Return a batch: for each candidate an object for `tell`, and its index."""
        trials = [self.study.ask(self.choices) for _ in range(BATCH)]
        return [(trial, self.space.number(trial.params)) for trial in trials]

    def tell(self, trial: Any, us: float | None) -> None:
        """Report the time of a candidate. A candidate without a time (None) ranks last."""
        if us is None:
            self.study.tell(trial, state=self.states.PRUNED)
        else:
            self.study.tell(trial, us)
