"""What is said where a refinement is called on what it does not refine: a definition or a spec without a step, or another step."""

from __future__ import annotations

from fireiron.errors import DecompositionError, call_site
from fireiron.generated_verbs import REFINEMENT_VERBS
from fireiron.language.strategy import Strategy

OF_A_STEP = {"unrefine": "strategy.at(Split).unrefine(Pipeline)", "replace": "strategy.at(Tile).replace(Tile((64, 32)))"}
"""What is asked of a step of a strategy, and how it is named."""


class MisplacedError(DecompositionError, AttributeError):
    """A refinement that this chain has not; `hasattr` says so."""


def misplaced(chain: object, name: str) -> MisplacedError | None:
    """The error of asking a chain, or what one starts from, for a refinement that it has not; None where no step has one of this name."""
    if isinstance(chain, Strategy) and name in OF_A_STEP:
        return MisplacedError(f"{name}: which step is meant?", legal=OF_A_STEP[name], at=call_site())
    verbs = [verb for verb, owner in REFINEMENT_VERBS.items() if name in vars(owner)]
    if not verbs:
        return None
    steps = chain.steps if isinstance(chain, Strategy) else ()
    what = steps[-1].summary() if steps else repr(chain) if isinstance(chain, Strategy) else getattr(chain, "title", type(chain).__name__)
    said = "refines a step, and there is none yet" if not steps else f"does not refine {steps[-1].verb}"
    return MisplacedError(
        f"{name}: it {said}", got=None if not steps else what, legal=[f"{verb}(...).{name}(...)" for verb in verbs], at=call_site(),
        hint=f"{verbs[0]}(...) first" if steps else f"{what}.{verbs[0]}(...).{name}(...)",
    )  # fmt: skip


__all__ = ["MisplacedError", "misplaced"]
