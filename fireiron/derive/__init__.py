"""Derive a strategy for a spec: readable, checked, with a reason for each choice.

    spec + target ──► Facts ──► Skeletons and tricks (rules/) ──► candidates ──► predicted, checked ──► Derivation

`facts.py` reads the spec. A *skeleton* (`rules/`) makes a complete strategy with open decisions, and a *trick* changes it. `search.py`
tries them in a fixed order; the cost model ranks candidates, and the checks of every strategy accept or refuse them.

May import: everything up to the compiler, and gpu.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from fireiron.derive.derivation import Candidate, Derivation, Reason
from fireiron.derive.facts import Facts, Product
from fireiron.derive.rule import Rule, Skeleton, Trick
from fireiron.derive.rules import RULES
from fireiron.derive.search import CANDIDATES, NoStrategyError, Progress, Search, _silent
from fireiron.derive.sketch import Decision, Part, Sketch, Values, call
from fireiron.errors import ArgumentError
from fireiron.language.strategy import Strategy
from fireiron.language.tree import Decomposition
from fireiron.spec import Spec, as_spec
from fireiron.values.machine import DEFAULT_ARCHITECTURE, as_architecture


def schedule(
    spec: Spec | Strategy,
    target: Any = None,
    *,
    fixed: Values | None = None,
    avoid: Collection[str] = (),
    rules: tuple[Rule, ...] = RULES,
    candidates: int = CANDIDATES,
    seconds: float = 60.0,
    progress: Progress = _silent,
    screen: bool = False,
) -> Derivation:
    """Return a derived strategy for a spec: an ordinary strategy with a reason for each choice.

    Args:
        spec: what to compute, with sizes; or the first steps of a strategy for it, whose rest is derived.
        target: the target, such as `"sm_80"` (default: `sm_90`).
        fixed: values of tunables that are given, such as `{"bm": 128}`.
        avoid: names of rules that are not used, such as `("persistent",)`.
        rules: the rules, in order of preference: `(MINE, *RULES)` adds one.
        candidates: the number of candidates to lower. A smaller number answers sooner.
        seconds: the time limit of the search.
        progress: receives the number of candidates so far, and the last one as text.
        screen: compile the best candidates by NVRTC, one after another, until it accepts one. It takes some seconds, and needs no GPU.

    Raises: a `NoStrategyError` if no rule finds a legal strategy, with the reason of each rule; an `ArgumentError` for an unknown rule or
        value.
    """
    prefix: tuple[Decomposition, ...] = ()
    if isinstance(spec, Strategy):
        if spec.spec is None or spec.finished or spec.others:
            raise ArgumentError(
                "schedule: the partial strategy is complete, or not bound to a spec", got=spec, legal="spec.tile(...).to(Block)"
            )
        prefix, spec = spec.steps, spec.spec
    spec = as_spec(spec)
    if not isinstance(spec, Spec):
        raise ArgumentError("schedule: not a spec", got=spec, legal="MatMul(M, N, K)(GL, GL, GL)(Kernel), or definition(m=M, n=N)")
    architecture = as_architecture(DEFAULT_ARCHITECTURE if target is None else target)
    facts = Facts(spec, architecture)
    return Search(facts, rules, fixed or {}, avoid, prefix, candidates, seconds, progress, screen).run()


__all__ = [
    "CANDIDATES",
    "RULES",
    "Candidate",
    "Decision",
    "Derivation",
    "Facts",
    "NoStrategyError",
    "Part",
    "Product",
    "Reason",
    "Rule",
    "Skeleton",
    "Sketch",
    "Trick",
    "call",
    "schedule",
]
