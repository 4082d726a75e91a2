"""Errors for a refinement that does not apply to the last step of a chain, or for a chain without steps."""

from __future__ import annotations

from fireiron.errors import DecompositionError, call_site
from fireiron.generated_verbs import REFINEMENT_VERBS
from fireiron.language.strategy import Strategy

OF_A_STEP = {"unrefine": "strategy.at(Split).unrefine(Pipeline)", "replace": "strategy.at(Tile).replace(Tile((64, 32)))"}
"""Methods of a step inside a strategy, with an example of their use."""


class MisplacedError(DecompositionError, AttributeError):
    """A refinement that the chain does not have. It is an `AttributeError`, so that `hasattr` returns False."""


def misplaced(chain: object, name: str) -> MisplacedError | None:
    """Return the error for the attribute `name` of a chain or of a kind of spec; None if no step has a refinement of this name."""
    if isinstance(chain, Strategy) and name in OF_A_STEP:
        return MisplacedError(f"{name} needs a step", legal=OF_A_STEP[name], at=call_site())
    verbs = [verb for verb, owner in REFINEMENT_VERBS.items() if name in vars(owner)]
    if not verbs:
        return None
    steps = chain.steps if isinstance(chain, Strategy) else ()
    what = steps[-1].summary() if steps else repr(chain) if isinstance(chain, Strategy) else getattr(chain, "title", type(chain).__name__)
    reason = "refines a step, but the chain has no steps" if not steps else f"does not refine {steps[-1].verb}"
    return MisplacedError(
        f"{name} {reason}", got=None if not steps else what, legal=[f"{verb}(...).{name}(...)" for verb in verbs], at=call_site(),
        hint=f"{verbs[0]}(...) first" if steps else f"{what}.{verbs[0]}(...).{name}(...)",
    )  # fmt: skip


def is_refinement(name: str) -> bool:
    """Whether a verb of this name refines a step."""
    return any(name in vars(owner) for owner in REFINEMENT_VERBS.values())


__all__ = ["MisplacedError", "is_refinement", "misplaced"]
