"""Measure the simulator on Listing 2 of the paper, and on a block of attention on Hopper with each of its schedules.

Race detection is included: `python perf/bench_sim.py`. A block of attention is 128 queries, four blocks of 128 keys, head dimension 64.
"""

from __future__ import annotations

import random
import statistics

import numpy as np
from tabulate import tabulate

from fireiron import *
from fireiron.sim import simulate
from fireiron.strategies import hopper_attention

copy = Move.tile(1, 1).to(Thread).done()
single = Move.tile(1, 1).done()


def per_thread(verb):
    """Return a copy or an initialization of 8 x 8 elements per thread, distributed like the compute path."""
    return verb.tile(64, 32).to(Warp).tile(8, 8).to(Thread).tile(1, 1).done()


LISTING_2 = (
    MatMul.tile(128, 128).to(Block)
    .epilog(RF, per_thread(Init), per_thread(Move))
    .split(8).load(A, SH, copy).load(B, SH, copy)
    .tile(64, 32).to(Warp).tile(8, 8).to(Thread)
    .split(1).load(A, RF, single).load(B, RF, single)
    .tile(1, 1).done()
)  # fmt: skip

CASES = (
    ("one block", (128, 128, 1024), {}, "< 1"),
    ("one block, no shadow", (128, 128, 1024), {"shadow": False}, ""),
    ("one block, warps in random order", (128, 128, 1024), {"order": random.Random(0)}, ""),
    ("64 blocks", (1024, 1024, 1024), {}, "< 3"),
    ("64 blocks, no shadow", (1024, 1024, 1024), {"shadow": False}, ""),
    ("64 blocks, awkward", (1000, 1001, 999), {}, ""),
)


def measured(sizes, options, rounds=3):
    """Return median seconds; the result is compared with NumPy, exactly."""
    M, N, K = sizes
    kernel = LISTING_2(MatMul(M, N, K)(GL, GL, GL)(Kernel)).program().ir
    draw = np.random.default_rng(0)
    a, b = draw.integers(-3, 4, (M, K)).astype("f4"), draw.integers(-3, 4, (K, N)).astype("f4")
    runs = [simulate(kernel, {"A": a, "B": b}, **options) for _ in range(rounds)]
    assert all(np.array_equal(run.outputs["C"], a @ b) for run in runs)
    return statistics.median(run.seconds for run in runs)


ATTENTION = ("strategy", "causal", "no_overlap", "causal_no_overlap", "q_in_registers", "causal_q_in_registers")
"""The forms of `hopper_attention`, each with its warpgroups in lockstep and in random order."""


def attended(form, order, rounds=3):
    """Return median seconds of a block of attention; the result is compared with that of the definition, within the precision of fp16."""
    strategy = getattr(hopper_attention, form).with_(bm=128, bn=128, stages=2, epi_n=64)
    spec = hopper_attention.spec(128, 512, 64, fused=strategy.start)
    kernel = strategy(spec).program("sm_90a").ir
    draw = np.random.default_rng(0)
    shapes = {name: [int(str(size)) for size in spec.operands[name].tensor.shape] for name in "QKV"}
    arrays = {name: draw.standard_normal(shape).astype("f2") for name, shape in shapes.items()} | {"scale": np.float32(0.125)}
    runs = [simulate(kernel, arrays, order=order) for _ in range(rounds)]
    expected = np.asarray(spec.reference(*arrays.values()), dtype="f8")
    result = runs[0].outputs["O"].astype("f8")
    assert np.linalg.norm(result - expected) < 1e-3 * np.linalg.norm(expected)
    return statistics.median(run.seconds for run in runs)


def main():
    """Print the tables."""
    rows = []
    for name, sizes, options, aim in CASES:
        seconds = measured(sizes, options)
        rows.append([name, "x".join(map(str, sizes)), f"{seconds:.2f}", aim, f"{sizes[0] * sizes[1] * sizes[2] / seconds / 1e6:.0f}"])
    print(tabulate(rows, ["Listing 2", "M x N x K", "seconds", "goal", "million FMA/s"], disable_numparse=True))
    rows = [[form, *(f"{attended(form, order):.2f}" for order in (None, random.Random(0))), "< 3"] for form in ATTENTION]
    print(tabulate(rows, ["a block of attention", "lockstep", "warps in random order", "goal"], disable_numparse=True))


if __name__ == "__main__":
    main()
