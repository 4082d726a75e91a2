"""A clean and a racy kernel for compute-sanitizer, a third opinion on races and bounds.

    compute-sanitizer --tool racecheck python perf/sanitize.py clean      # must report 0 hazards
    compute-sanitizer --tool racecheck python perf/sanitize.py racy       # the planted control: must report hazards
    compute-sanitizer --tool memcheck --report-api-errors no python perf/sanitize.py clean      # must report 0 errors
    compute-sanitizer --tool memcheck --report-api-errors no python perf/sanitize.py hopper     # TMA, wgmma, rings: must report 0 errors
    compute-sanitizer --tool memcheck --report-api-errors no python perf/sanitize.py fused      # several steps: must report 0 errors
    compute-sanitizer --tool racecheck python perf/sanitize.py fused                            # must report 0 hazards

The racy kernel is Listing 2 with `no_sync` on both loads, which the compiler refuses unless told `unchecked`.
"""

import sys

import cupy as cp
import numpy as np

from fireiron import *
from fireiron.errors import WrongResultError
from fireiron.gpu.kernel import architecture_here
from fireiron.language.library import bind, find
from fireiron.measure.data import Data
from fireiron.strategies import (
    attention,
    dual,
    gated,
    gemm_layernorm,
    gemm_row_sum,
    grouped,
    hgemm_nt,
    hmma_ampere,
    hmma_turing,
    hopper,
    hopper_attention,
    hopper_skinny,
    hopper_small,
    layernorm,
    listing_1,
    listing_2,
    lstm,
    maxwell,
    mlp,
    rmsnorm,
    sgemm,
    small,
    softmax,
    softmax_online,
    wmma_optimized,
)  # fmt: skip

CLEAN = (listing_1, listing_2, maxwell, hgemm_nt, sgemm, hmma_ampere, hmma_turing, small, wmma_optimized)
HOPPER = (hopper, hopper_small, hopper_skinny)
"""For an H100 or H200."""

SIZES = ((200, 150, 70), (200, 152, 72), (1800, 2312, 456))
"""M, N and K: rows that TMA does not take; rows that it does; more tiles than blocks, more turns along k than stages."""

COUNTED = ({"bm": 128, "bn": 192, "wm": 64, "wn": 192, "stages": 3}, {"bm": 128, "bn": 128, "wm": 64, "wn": 128, "stages": 5})
"""Values of the strategy `hopper` whose stages are counted on from tile to tile of a block."""

SMALL = {"bm": 64, "bn": 64, "wm": 32, "wn": 32, "stages": 3}
EPILOGUE = "acc = acc * alpha + bias[n] + R[m,n]; Z = acc; C = relu(acc); y[m] += sum(n, acc); z[n] += sum(m, acc)"


def attentions():
    """Strategies for attention and their specs, by name: masks, sums of exponentials, heads that share keys, queries in registers."""
    forms = {"": {}, " causal": {"causal": True}, " window": {"window": 20, "lse": True}}
    for held in (False, True):
        for name, options in forms.items():
            made = attention.definition(**options)
            spec = attention.spec(100, 110, 64, heads=2, shared=2, made=made)
            yield f"attention{name}{' held' * held}", attention.by_rows(made, held).with_(bm=64, bn=32, wm=16)(spec)


def rows():
    """Those for rows: of one warp, of several, in chunks; sizes that overhang."""
    for module in (layernorm, rmsnorm, softmax):
        for sizes in ((5, 1000), (3, 100), (2, 4100)):
            spec = module.spec(*sizes)
            yield f"{module.__name__.rpartition('.')[2]} {sizes}", module.strategy.with_(**module.values(spec))(spec)
    yield "softmax_online", softmax_online.strategy.with_(warps=2, turns=1)(softmax_online.spec(2, 1100))


def products():
    """Those around products, and epilogues."""
    for module in (dual, gated, gemm_row_sum, lstm):
        yield module.__name__.rpartition(".")[2], module.strategy.with_(**SMALL)(module.spec(100, 72, 40))
    yield "lstm in_turn", lstm.in_turn.with_(**SMALL)(lstm.spec(100, 72, 40, form="in_turn"))
    yield "gemm_layernorm", gemm_layernorm.strategy.with_(bm=64, wm=32, wn=32, stages=3)(gemm_layernorm.spec(70, 96, 40))
    for strategy in (mlp.strategy, mlp.registers):
        yield "mlp", strategy.with_(bm=64, wm=32, wn=32)(mlp.spec(100, 64, 3))
    yield "grouped", grouped.strategy.with_(**SMALL)(grouped.spec(100, 72, 40, groups=2))
    names = ("hmma_ampere", "wmma_optimized", *(["hopper", "hopper_small"] if architecture_here() == "sm_90a" else []))
    for name in names:
        yield f"{name} with an epilogue", bind(find(name), {"M": 104, "N": 72, "K": 40}).epilogue(EPILOGUE)


def on_hopper():
    """Those by TMA, wgmma and rings, where they run: with more blocks of keys than stages, and more tiles than blocks."""
    if architecture_here() != "sm_90a":
        return
    forms = {"": {}, " causal": {"causal": True}, " with slack": {"slack": 8}, " causal with slack": {"causal": True, "slack": 8}}
    for name, options in forms.items():
        made = attention.definition(**options)
        spec = attention.spec(300, 330, 64, heads=2, shared=2, made=made)
        for form in ({"delayed": False}, {}, {"held": True}, {"stays": True}, {"dynamic": True}):
            strategy = hopper_attention.by_rows(made, **form, blocks=3).with_(bn=64, chunk=64)
            yield f"hopper_attention{name} {form}", strategy(spec)
    for module, sizes in (
        (dual, (300, 264, 200)),
        (gated, (300, 264, 200)),
        (gemm_row_sum, (300, 264, 200)),
        (lstm, (300, 264, 200)),
        (mlp, (300, 128, 5)),
    ):
        yield f"{module.__name__.rpartition('.')[2]}:hopper", module.hopper(module.spec(*sizes))


def fused():
    """Run all of them, outputs poisoned, beside their definitions."""
    for part in (attentions, rows, products, on_hopper):
        for name, strategy in part():
            kernel = strategy.compile(architecture_here())
            data = Data.of(kernel.program.spec, rotate_bytes=0)
            try:
                found = f"error {data.verify(data.calls(kernel)[0], data.tolerance_for(kernel)):.1e}"
            except WrongResultError as wrong:
                found = str(wrong)
            print(name, found, flush=True)


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
    elif sys.argv[1:] == ["fused"]:
        fused()
    else:
        of_hopper = sys.argv[1:] == ["hopper"]
        for module in HOPPER if of_hopper else CLEAN:
            for sizes in SIZES if of_hopper else SIZES[:1]:
                print(module.__name__, sizes, "equal to NumPy:", run(module.strategy, module.spec(*sizes)))
        for values in COUNTED if of_hopper else ():
            print("hopper", SIZES[-1], values, "equal to NumPy:", run(hopper.strategy.with_(**values), hopper.spec(*SIZES[-1])))


if __name__ == "__main__":
    main()
