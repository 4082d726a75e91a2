"""Compare GEMM of groups of packed rows in one kernel with one cuBLAS GEMM per group, and with a GEMM of all rows with one matrix.

    python perf/ragged.py FOLDER [--rounds 5]

Float16; rows belong to random groups, one group is empty. `grouped_ragged` (mma.sync) and `hopper_ragged` (wgmma) with several tiles. The
last contender multiplies as many rows by one matrix, a lower bound for groups. Each is first verified on an output initialized to NaN; all
are measured once, then the best of each alternately, in bursts and busy. Other processes compile meanwhile. Takes about 10 seconds to begin
with and 7 per case. Writes `ragged.txt` and `ragged.json`.
"""

import argparse

from fused import CompilePool, Contenders, best, say, sets_of, written

from fireiron.strategies import grouped_ragged, hopper_ragged

CASES = ((4096, 1024, 1024, 8), (16384, 2048, 1024, 8), (16384, 2048, 1024, 64), (4096, 4096, 4096, 16))
"""Rows, columns, k, groups."""

CHOICES = ({}, {"bn": 64, "wn": 32}, {"bm": 64, "wm": 32}, {"bk": 64, "stages": 3})

BY_RINGS = (
    {}, {"stages": 5, "epi_n": 128}, {"bn": 192}, {"bm": 192}, {"bk": 128, "stages": 2},
    {"bm": 64, "producer_threads": 32}, {"bm": 64, "producer_threads": 32, "stages": 3}, {"bm": 64, "bn": 96, "producer_threads": 32, "stages": 3, "epi_n": 32},
)  # fmt: skip

GROUPS = ("mma.sync", "wgmma", "cuBLAS")
HEADS = (
    "M", "N", "K", "groups", "mma.sync us", "wgmma us", "mma.sync of cuBLAS by groups", "of one matrix", "wgmma of cuBLAS by groups",
    "of one matrix", "busy, of cuBLAS by groups", "values",
)  # fmt: skip


def begun(pool, case):
    """Ours, by name, as jobs."""
    spec = grouped_ragged.spec(*case[:3], groups=case[3])
    first = pool.begin({f"mma.sync {values}": grouped_ragged.strategy.with_(**values) for values in CHOICES}, spec)
    return first | pool.begin({f"wgmma {values}": hopper_ragged.strategy.with_(**values) for values in BY_RINGS}, spec, "sm_90a")


def measured(M, N, K, groups, rounds, kernels):
    """Return times of all contenders; `kernels` are ours, by name."""
    import torch

    generator = torch.Generator().manual_seed(1)
    inner = torch.randint(0, M + 1, (groups - 1,), generator=generator).sort().values
    inner[groups // 2] = inner[groups // 2 - 1]
    offsets = torch.cat([torch.tensor([0]), inner, torch.tensor([M])])
    count = sets_of(2 * (M * K + groups * K * N + M * N))
    a, b = torch.randn(count, M, K, device="cuda").half(), torch.randn(count, groups, K, N, device="cuda").half()
    d = torch.empty(count, M, N, device="cuda", dtype=torch.half)
    places, pairs = offsets.int().cuda(), list(zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True))
    wanted = torch.cat([a[0, begin:end].double() @ b[0, group].double() for group, (begin, end) in enumerate(pairs)])
    contenders = Contenders(d, wanted)
    for name, kernel in kernels.items():
        contenders.add(name, lambda one, kernel=kernel: kernel.prepare(a[one], b[one], places[:-1], places[1:], out=d[one]))

    def by_groups(number):
        def call():
            for group, (begin, end) in enumerate(pairs):
                torch.mm(a[number, begin:end], b[number, group], out=d[number, begin:end])

        return call

    contenders.add("cuBLAS by groups", by_groups)
    say(f"{M}x{N}x{K}, {groups} groups: {len(contenders.calls)} contenders are right")
    first, times = contenders.times(rounds, GROUPS)
    busy = contenders.times(rounds, GROUPS, regime="busy")[1]
    alone = Contenders(d, a[0].double() @ b[0, 0].double())
    alone.add("cuBLAS, one matrix", lambda one: lambda: torch.mm(a[one], b[one, 0], out=d[one]))
    return first, {**times, **alone.times(rounds, ("cuBLAS",))[1]}, busy


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    pool, rows, kept = CompilePool(), [], []
    jobs = {case: begun(pool, case) for case in CASES}
    for case in CASES:
        first, times, busy = measured(*case, arguments.rounds, pool.kernels(jobs[case]))
        older, ours = (best(times, start) for start in GROUPS[:2])
        others = [times.get("cuBLAS by groups"), times.get("cuBLAS, one matrix")]
        ratios = [one / us if one and us else None for us in (older[0], ours[0]) for one in others]
        pair = [best(busy, start)[0] for start in ("cuBLAS", "wgmma")]
        rows.append((*case, older[0], ours[0], *ratios, pair[0] / pair[1] if all(pair) else None, ours[1]))
        kept.append({"case": case, "us": times, "busy us": busy, "first us": first})
        written(arguments.folder, "ragged", HEADS, rows, kept)


if __name__ == "__main__":
    main()
