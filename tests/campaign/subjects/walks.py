"""Random strategies from what the extensions offer, on all targets: simulated, exactly equal to NumPy, no findings; with all pairs of verbs
one after the other.
"""

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
    """The verbs and the refinements of GEMM, as feature names."""
    steps = [one for one in extensions(decomp, Decomposition) if not one.kinds or "MatMul" in one.kinds]
    refinements = [one for one in extensions(refine, Refinement) if set(one.applies_to) & {step.verb for step in steps}]
    return sorted({*(f"verb {one.verb}" for one in steps), *(f"refine {one.__name__}" for one in refinements)})


@functools.cache
def pairs() -> tuple[tuple[str, str], ...]:
    """The pairs of them that GEMM can have."""
    return tuple(pair for pair in itertools.combinations(names(), 2) if possible(*pair))


def wanted(seed: int) -> tuple[str, ...]:
    """The pair requested by every second draw."""
    return pairs()[seed // 2 % len(pairs())] if seed % 2 else ()


def draw(seed: int) -> Outcome:
    """One accepted strategy."""
    judge = lambda program, symbols: wrong(program, symbols, seed)
    try:
        walk, refusals = walked(seed, wanted(seed))
    except Crashed as crash:
        return found(story(crash.strategy, crash.target, crash.symbols, judge, seed))
    if faults(walk, seed):
        return found(story(walk.strategy, walk.target, walk.symbols, judge, seed), walk.features)
    return agreed(walk.features, walk.program, clean=1, refusals=refusals)


def faults(walk: Walk, seed: int) -> bool:
    """Whether an oracle objects, by a message or an exception."""
    try:
        return bool(wrong(walk.program, walk.symbols, seed))
    except Exception:
        return True


SUBJECT = Subject(
    "walks",
    "strategies from the choices of all extensions, on all targets, simulated: exactly equal to NumPy, no alarm",
    draw,
    nightly=5_000,
    campaign=5_000,
    first=20_261_123,
    together=pairs,
)
