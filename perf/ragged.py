"""Products of groups of packed rows in one kernel, beside one cuBLAS product a group and the product of all rows with one matrix.

    python perf/ragged.py FOLDER [--rounds 5]

Halves; rows fall to groups at random, one group is empty. The last contender multiplies as many rows by one matrix: what groups cost at
least. Each is verified first on an output that was NaN. About 10 seconds a case. Writes `ragged.txt` and `ragged.json`.
"""

import argparse

from fused import Contenders, best, compiled, sets_of, written

from fireiron.strategies import grouped_ragged

CASES = ((4096, 1024, 1024, 8), (16384, 2048, 1024, 8), (16384, 2048, 1024, 64), (4096, 4096, 4096, 16))
"""Rows, columns, k, groups."""

CHOICES = ({}, {"bn": 64, "wn": 32}, {"bm": 64, "wm": 32}, {"bk": 64, "stages": 3})


def measured(M, N, K, groups, rounds):
    """Times of all contenders."""
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
    for values in CHOICES:
        kernel = compiled(grouped_ragged.strategy.with_(**values), grouped_ragged.spec(M, N, K, groups=groups))
        if isinstance(kernel, str):
            print(f"left out: {values}: {kernel}", flush=True)
            continue
        name = f"fireiron {values}"
        contenders.add(name, lambda one, kernel=kernel: lambda: kernel(a[one], b[one], places[:-1], places[1:], out=d[one]))

    def by_groups(one):
        def call():
            for group, (begin, end) in enumerate(pairs):
                torch.mm(a[one, begin:end], b[one, group], out=d[one, begin:end])

        return call

    contenders.add("cuBLAS by groups", by_groups)
    _, times = contenders.times(rounds, ("fireiron", "cuBLAS"))
    alone = Contenders(d, a[0].double() @ b[0, 0].double())
    alone.add("cuBLAS, one matrix", lambda one: lambda: torch.mm(a[one], b[one, 0], out=d[one]))
    return {**times, **alone.times(rounds, ("cuBLAS",))[1]}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    rows, kept = [], {}
    for case in CASES:
        times = kept[str(case)] = measured(*case, arguments.rounds)
        ours, name = best(times, "fireiron")
        others = [times.get("cuBLAS by groups"), times.get("cuBLAS, one matrix")]
        rows.append((*case, ours, *(None if None in (one, ours) else one / ours for one in others), name))
    written(arguments.folder, "ragged", ("M", "N", "K", "groups", "us", "of cuBLAS by groups", "of one matrix", "values"), rows, kept)


if __name__ == "__main__":
    main()
