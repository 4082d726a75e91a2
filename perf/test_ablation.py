"""Effect of each refinement of `hmma_ampere`: the speed with one refinement changed, relative to the whole strategy.

Graphene (section 2) reports a loss of 17 % without ldmatrix. The table includes this row.
"""

import pytest

from fireiron import *
from fireiron.strategies import hmma_ampere

SIZES = (4096, 4096, 4096)
WHOLE = hmma_ampere.strategy
BY_LANES = Move.done(ThreadMove("Move"))


def without_ldmatrix(strategy):
    """Load the fragments of each lane separately, 4 bytes at a time."""
    for operand in (A, B):
        strategy = strategy.at(Load, operand, 1).replace(Load(operand, RF, BY_LANES.steps))
    return strategy


def without_swizzle(strategy):
    """Shared tiles in plain rows."""
    for operand in (A, B):
        strategy = strategy.at(Load, operand, 0).unrefine(SwizzleStorage)
    return strategy


def padded(strategy):
    """Pad rows by 16 bytes instead of a swizzle."""
    for operand in (A, B):
        strategy = strategy.at(Load, operand, 0).unrefine(SwizzleStorage).at(Load, operand, 0).refine(Pad(8))
    return strategy


def stored_directly(strategy):
    """Store results directly from the registers of the lanes, 4 bytes at a time."""
    init = Init.tile(hmma_ampere.wm, hmma_ampere.wn).to(Warp).done()
    store = Move.tile(hmma_ampere.wm, hmma_ampere.wn).to(Warp).done()
    return strategy.at(Epilog).replace(Epilog(RF, init.steps, store.steps, float32))


CHANGES = {
    "fragments loaded without ldmatrix": without_ldmatrix,
    "shared tiles without swizzle": without_swizzle,
    "pad(8) instead of swizzle": padded,
    "no prefetched fragments": lambda one: one.at(Split, None, 1).unrefine(Pipeline),
    "copies not interleaved with MMAs": lambda one: one.at(Split).refine(Pipeline(4)),
    "3 stages": lambda one: one.at(Split).refine(Pipeline(3, True)),
    "2 stages": lambda one: one.at(Split).refine(Pipeline(2, True)),
    "no pipeline at all": lambda one: one.at(Split).unrefine(Pipeline).at(Split, None, 1).unrefine(Pipeline),
    "no rasterization": lambda one: one.at(Tile).unrefine(Rasterize),
    "results stored directly": stored_directly,
}


@pytest.mark.parametrize("change", CHANGES)
def test_ablation(gpu_benchmark, change):
    """The ratio is that of the changed strategy to the whole: 0.9 means that the refinement is worth a tenth."""
    spec = hmma_ampere.spec(*SIZES)
    gpu_benchmark(CHANGES[change](WHOLE)(spec), against={"the whole strategy": WHOLE(spec).compile()})
