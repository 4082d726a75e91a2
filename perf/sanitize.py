"""A clean and a racy kernel for compute-sanitizer, a third opinion on races and bounds.

    compute-sanitizer --tool racecheck python perf/sanitize.py clean      # must report 0 hazards
    compute-sanitizer --tool racecheck python perf/sanitize.py racy       # the planted control: must report hazards
    compute-sanitizer --tool memcheck --report-api-errors no python perf/sanitize.py clean      # must report 0 errors
    compute-sanitizer --tool memcheck --report-api-errors no python perf/sanitize.py hopper     # TMA, wgmma, rings: must report 0 errors

The racy kernel is Listing 2 with `no_sync` on both loads, which the compiler refuses unless told `unchecked`.
"""

import sys

import cupy as cp
import numpy as np

from fireiron import *
from fireiron.gpu.kernel import architecture_here
from fireiron.strategies import (
    hgemm_nt,
    hmma_ampere,
    hmma_turing,
    hopper,
    hopper_skinny,
    hopper_small,
    listing_1,
    listing_2,
    maxwell,
    sgemm,
    small,
    wmma_optimized,
)  # fmt: skip

CLEAN = (listing_1, listing_2, maxwell, hgemm_nt, sgemm, hmma_ampere, hmma_turing, small, wmma_optimized)
HOPPER = (hopper, hopper_small, hopper_skinny)
"""For an H100 or H200."""

SIZES = ((200, 150, 70), (200, 152, 72), (1800, 2312, 456))
"""M, N and K: rows that TMA does not take; rows that it does; more tiles than blocks, more turns along k than stages."""

COUNTED = ({"bm": 128, "bn": 192, "wm": 64, "wn": 192, "stages": 3}, {"bm": 128, "bn": 128, "wm": 64, "wn": 128, "stages": 5})
"""Values of the strategy `hopper` whose stages are counted on from tile to tile of a block."""


def run(strategy, spec):
    """Run on small integers; returns whether the result equals NumPy's."""
    generator = np.random.default_rng(0)
    a, b = (
        generator.integers(-2, 3, [int(str(size)) for size in spec.operands[name].shape]).astype(spec.A.dtype.to_numpy()) for name in "AB"
    )
    place = lambda array, layout: cp.asarray(array, order="C") if layout.order == "row" else cp.asarray(array.T, order="C").T
    got = strategy(spec).compile(architecture_here())(place(a, spec.A.tensor.layout), place(b, spec.B.tensor.layout))
    return np.array_equal(cp.asnumpy(got), spec.reference(a, b))


def main():
    if sys.argv[1:] == ["racy"]:
        racy = listing_2.strategy.at(Load, A).refine(NoSync()).at(Load, B).refine(NoSync()).at(Load, B).refine(Unchecked("planted control"))
        print("equal to NumPy:", run(racy, listing_2.spec(200, 150, 70)))
    else:
        of_hopper = sys.argv[1:] == ["hopper"]
        for module in HOPPER if of_hopper else CLEAN:
            for sizes in SIZES if of_hopper else SIZES[:1]:
                print(module.__name__, sizes, "equal to NumPy:", run(module.strategy, module.spec(*sizes)))
        for values in COUNTED if of_hopper else ():
            print("hopper", SIZES[-1], values, "equal to NumPy:", run(hopper.strategy.with_(**values), hopper.spec(*SIZES[-1])))


if __name__ == "__main__":
    main()
