"""What each refinement of `hmma_ampere` is worth: the strategy with one of them changed, beside the whole, on the GPU.

    python perf/bench_ablation.py [-o FILE.json] [--size 4096] [--rounds 20]

Method as in bench_gemm.py: the same standard normal data for all, each checked against float64 first, burst clocks, CUDA graphs,
contenders in turn, median. Graphene (section 2) reports a loss of 17 % without ldmatrix; that row is here too.
"""

import argparse
import json

import numpy as np
from bench_gemm import contenders, environment, error, graph_of, stored, time_graph
from tabulate import tabulate

from fireiron import *
from strategies import hmma_ampere

WHOLE = hmma_ampere.strategy
BY_LANES = Move.done(LaneMove("LaneMove"))


def without_ldmatrix(strategy):
    """Fragments loaded by each lane for itself, 4 bytes at a time."""
    for operand in (A, B):
        old = strategy.at(Load, operand, 1)
        strategy = old.replace(Load(operand, RF, BY_LANES.steps))
    return strategy


def without_swizzle(strategy):
    """Shared tiles in plain rows."""
    for operand in (A, B):
        strategy = strategy.at(Load, operand, 0).unrefine(SwizzleStorage)
    return strategy


def padded(strategy):
    """Rows padded by 16 bytes instead of swizzled."""
    for operand in (A, B):
        strategy = strategy.at(Load, operand, 0).unrefine(SwizzleStorage).at(Load, operand, 0).refine(Pad(8))
    return strategy


def stored_directly(strategy):
    """Results written as the lanes hold them, 4 bytes at a time."""
    old = strategy.at(Epilog)
    init = Init.tile(hmma_ampere.wm, hmma_ampere.wn).to(Warp).done()
    store = Move.tile(hmma_ampere.wm, hmma_ampere.wn).to(Warp).done()
    return old.replace(Epilog(RF, init.steps, store.steps, float32))


CHANGES = (
    ("the whole strategy", lambda one: one),
    ("fragments loaded without ldmatrix", without_ldmatrix),
    ("shared tiles without swizzle", without_swizzle),
    ("pad(8) instead of swizzle", padded),
    ("fragments not a step ahead", lambda one: one.at(Split, None, 1).unrefine(Pipeline)),
    ("copies in one burst, not spread", lambda one: one.at(Split).refine(Pipeline(4))),
    ("3 stages", lambda one: one.at(Split).refine(Pipeline(3, True))),
    ("2 stages", lambda one: one.at(Split).refine(Pipeline(2, True))),
    ("no pipeline at all", lambda one: one.at(Split).unrefine(Pipeline).at(Split, None, 1).unrefine(Pipeline)),
    ("blocks row by row, no bands", lambda one: one.at(Tile).unrefine(Bands)),
    ("results stored directly", stored_directly),
)


def measure(size, rounds):
    """A row for each change: microseconds, TFLOP/s, share of the whole strategy, share of cuBLAS."""
    spec = hmma_ampere.spec(size, size, size)
    generator = np.random.default_rng(0)
    a, b = (generator.standard_normal((size, size)).astype(np.float16) for _ in range(2))
    layouts = [spec.operands[one].tensor.layout for one in "ABC"]
    sets = [
        (stored(a, layouts[0]), stored(b, layouts[1]), stored(np.full((size, size), np.nan, np.float16), layouts[2]))
        for _ in range(max(2, int(240e6 // (6 * size * size)) + 1))
    ]
    rows = []
    graphs = {}
    for name, change in CHANGES:
        kernel, calls = contenders(change(WHOLE), spec, sets)
        if "cuBLAS" not in graphs:
            calls["cublas"][0]()
            graphs["cuBLAS"] = graph_of(calls["cublas"])
        calls["fireiron"][0]()
        wrong = error(sets[0][2], sets[0][0], sets[0][1])
        if not wrong < 1e-3:
            raise SystemExit(f"{name}: relative error {wrong}")
        graphs[name] = graph_of(calls["fireiron"])
        resources = kernel.resources
        rows.append({"change": name, "registers": resources.registers, "spills": resources.spill_stores, "shared": kernel.ir.shared_bytes})
    times = {name: [] for name in graphs}
    for _ in range(rounds):
        for name, graph in graphs.items():
            times[name] += time_graph(graph, len(sets), 1)
    microseconds = {name: float(np.median(values)) for name, values in times.items()}
    for row in rows:
        row["us"] = microseconds[row["change"]]
        row["TFLOP/s"] = 2 * size**3 / row["us"] / 1e6
        row["of the whole"] = microseconds[CHANGES[0][0]] / row["us"]
        row["of cuBLAS"] = microseconds["cuBLAS"] / row["us"]
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("-o", "--output")
    parser.add_argument("--size", type=int, default=4096)
    parser.add_argument("--rounds", type=int, default=20)
    options = parser.parse_args()
    rows = measure(options.size, options.rounds)
    print(tabulate(rows, headers="keys", floatfmt=".3g"))
    if options.output:
        with open(options.output, "w") as file:
            json.dump({"environment": environment(), "command": "python perf/bench_ablation.py", "rows": rows}, file, indent=1)


if __name__ == "__main__":
    main()
