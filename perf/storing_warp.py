"""Compare the library's GEMM with a warp that stores C (`hopper.storing`) with the same GEMM whose consumers store (`hopper.strategy`).

    python perf/storing_warp.py FOLDER [--sizes 2048,4096,8192] [--rounds 7] [--k 0]

Float16, row-major, all contenders of a size in one run on the same operand sets, which rotate through L2; each kernel is first compared with
torch.matmul. `--k` replaces K by a smaller one, where the epilogue is a larger part of the time. Writes `storing_warp.txt` and
`storing_warp.json` into the folder.
"""

import argparse
import json
import math
from pathlib import Path

from other_types import ROTATED
from tabulate import tabulate

from fireiron.strategies import hopper

BASE = {"bk": 64, "wm": 64, "epi_m": 64, "group_m": 4, "raster": 0, "num_blocks": 132, "cluster_m": 1, "cluster_n": 1}
WIDE = {**BASE, "bm": 128, "bn": 256, "wn": 256}
SQUARE = {**BASE, "bm": 128, "bn": 128, "wn": 128}
CONTENDERS = {
    "consumers, one piece": (WIDE, {"stages": 3, "epi_n": 256, "producer_threads": 32}),
    "consumers, 4 stages, pieces of 64": (WIDE, {"stages": 4, "epi_n": 64, "producer_threads": 32}),
    "warp, one piece, 1 store stage": (WIDE, {"stages": 3, "epi_n": 256, "store_stages": 1}),
    "warp, pieces of 128, 2 store stages": (WIDE, {"stages": 3, "epi_n": 128, "store_stages": 2}),
    "warp, pieces of 64, 4 store stages": (WIDE, {"stages": 3, "epi_n": 64, "store_stages": 4}),
    "warp, 4 stages, pieces of 64, 2 store stages": (WIDE, {"stages": 4, "epi_n": 64, "store_stages": 2}),
    "128x128, consumers": (SQUARE, {"stages": 6, "epi_n": 64, "producer_threads": 32}),
    "128x128, warp, 2 store stages": (SQUARE, {"stages": 5, "epi_n": 64, "store_stages": 2}),
}
"""By name, the tile and the other values; those with `store_stages` belong to `hopper.storing`."""


def kernel_of(spec, tile, values):
    """Return the compiled kernel of a contender."""
    strategy = hopper.storing if "store_stages" in values else hopper.strategy
    return strategy.with_(**tile, **values)(spec).compile("sm_90a")


def measured(torch, size, depth, rounds):
    """Return microseconds by contender."""
    from fireiron.measure.timing import measure

    spec = hopper.spec(size, size, depth)
    count = max(2, math.ceil(ROTATED / (2 * (2 * size * depth + size * size))))
    sets = []
    for _ in range(count):
        a, b = (torch.randn(shape, device="cuda", dtype=torch.float16) for shape in ((size, depth), (depth, size)))
        sets.append((a, b, torch.empty(size, size, device="cuda", dtype=torch.float16)))
    a, b, c = sets[0]
    expected = torch.matmul(a.float(), b.float())
    calls = {"torch": [lambda a=a, b=b, c=c: torch.matmul(a, b, out=c) for a, b, c in sets]}
    for name, (tile, values) in CONTENDERS.items():
        kernel = kernel_of(spec, tile, values)
        calls[name] = [kernel.prepare(a, b, out=c) for a, b, c in sets]
        c.fill_(float("nan"))
        calls[name][0]()
        torch.cuda.synchronize()
        error = float((c.float() - expected).norm() / expected.norm())
        if not error < 1e-3:
            print(f"left out: {name} at {size}: error {error:.1e}", flush=True)
            del calls[name]
    return {name: one.us for name, one in measure(calls, rounds=rounds).items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--sizes", default="2048,4096,8192")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--k", type=int, default=0)
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    import torch

    from fireiron.measure.timing import environment

    rows, kept = [], {}
    for size in map(int, options.sizes.split(",")):
        depth = options.k or size
        times = kept[f"{size}x{size}x{depth}"] = measured(torch, size, depth, options.rounds)
        fastest = min(us for name, us in times.items() if "consumers" in name)
        rows += [(size, depth, name, us, 2 * size * size * depth / us / 1e6, fastest / us) for name, us in times.items()]
        torch.cuda.empty_cache()
    heads = ("M = N", "K", "kernel", "us", "TFLOP/s", "speedup over consumers")
    table = tabulate(rows, heads, floatfmt=("", "", "", ".2f", ".0f", ".3f")) + "\n"
    print(table)
    (options.folder / "storing_warp.txt").write_text(table)
    (options.folder / "storing_warp.json").write_text(json.dumps({"environment": environment(), "measured": kept}, indent=1) + "\n")


if __name__ == "__main__":
    main()
