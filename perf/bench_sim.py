"""How long the simulator takes for Listing 2 of the paper, race detection included: `python perf/bench_sim.py`."""

from __future__ import annotations

import random
import statistics

import numpy as np
from tabulate import tabulate

from fireiron import *
from fireiron.sim import simulate

copy = Move.tile(1, 1).to(Thread).done()
single = Move.tile(1, 1).done()


def dealt(verb):
    """A copy or an init of 8 x 8 elements a thread, dealt as the compute path is."""
    return verb.tile(64, 32).to(Warp).tile(8, 8).to(Thread).tile(1, 1).done()


LISTING_2 = (
    MatMul.tile(128, 128).to(Block)
    .epilog(RF, dealt(Init), dealt(Move))
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
    """Median seconds; the result is compared with NumPy, exactly."""
    M, N, K = sizes
    kernel = LISTING_2(MatMul(M, N, K)(GL, GL, GL)(Kernel)).program().ir
    draw = np.random.default_rng(0)
    a, b = draw.integers(-3, 4, (M, K)).astype("f4"), draw.integers(-3, 4, (K, N)).astype("f4")
    runs = [simulate(kernel, {"A": a, "B": b}, **options) for _ in range(rounds)]
    assert all(np.array_equal(run.outputs["C"], a @ b) for run in runs)
    return statistics.median(run.seconds for run in runs)


def main():
    """Print the table."""
    rows = []
    for name, sizes, options, aim in CASES:
        seconds = measured(sizes, options)
        rows.append([name, "x".join(map(str, sizes)), f"{seconds:.2f}", aim, f"{sizes[0] * sizes[1] * sizes[2] / seconds / 1e6:.0f}"])
    print(tabulate(rows, ["Listing 2", "M x N x K", "seconds", "aim", "million FMA/s"], disable_numparse=True))


if __name__ == "__main__":
    main()
