"""Strategies drawn from what the extensions themselves offer, on all targets: simulated, equal to NumPy exactly, no alarm; pairs of verbs by turns."""

import functools
import itertools

from walker import Crashed, Walk
from walker import draw as walked
from walker import extensions_in as extensions

from campaign import Outcome, Subject, agreed, found
from campaign.impossible import possible
from campaign.judged import wrong
from campaign.shrink import story
from fireiron import Decomposition, Refinement, decomp, refine


def names() -> list[str]:
    """The verbs and the refinements of products, as features are called."""
    steps = [one for one in extensions(decomp, Decomposition) if not one.kinds or "MatMul" in one.kinds]
    refinements = [one for one in extensions(refine, Refinement) if set(one.applies_to) & {step.verb for step in steps}]
    return sorted({*(f"verb {one.verb}" for one in steps), *(f"refine {one.__name__}" for one in refinements)})


@functools.cache
def pairs() -> tuple[tuple[str, str], ...]:
    """The pairs of them that a product can have."""
    return tuple(pair for pair in itertools.combinations(names(), 2) if possible(*pair))


def wanted(seed: int) -> tuple[str, ...]:
    """The pair that every second draw asks for."""
    return pairs()[seed // 2 % len(pairs())] if seed % 2 else ()


def draw(seed: int) -> Outcome:
    """One strategy that the project accepts."""
    says = lambda program, symbols: wrong(program, symbols, seed)
    try:
        one, refusals = walked(seed, wanted(seed))
    except Crashed as crash:
        return found(story(crash.strategy, crash.target, crash.symbols, says, seed))
    if faults(one, seed):
        return found(story(one.strategy, one.target, one.symbols, says, seed), one.features)
    return agreed(one.features, clean=1, refusals=refusals)


def faults(one: Walk, seed: int) -> bool:
    """Whether an oracle says anything, by a text or by an exception."""
    try:
        return bool(wrong(one.program, one.symbols, seed))
    except Exception:
        return True


SUBJECT = Subject(
    "walks",
    "strategies from the choices of all extensions, on all targets, simulated: exactly equal to NumPy, no alarm",
    draw,
    nightly=5_000,
    campaign=5_000,
    first=20_261_123,
    sample=2,
    together=pairs,
)
