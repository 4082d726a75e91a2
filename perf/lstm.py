"""The gate of an LSTM cell, relu(X·W + H·R + bias), in one kernel, beside five and two kernels and Triton (Graphene, Figure 12).

    python perf/lstm.py FOLDER [--sizes 1024,2048,3072,4096] [--rounds 4]

Halves, M = N = K: `lstm` by several tiles; cuBLAS, cuBLAS, and three kernels of PyTorch; cuBLASLt twice, the second time with the sum, the
bias and the ReLU; Triton restricted to mma.sync. Each is verified first, on an output of NaN; all are measured once, and the best of each in
turns. Kernels are compiled by other processes meanwhile. About 20 seconds to begin with and 7 a size. Writes `lstm.txt` and `lstm.json`.
"""

import argparse

from fused import Contenders, Crew, best, say, sets_of, written

from fireiron.strategies import lstm

TOGETHER = (
    {"bm": 128, "bn": 128, "wm": 64, "wn": 32, "stages": 4}, {"bm": 128, "bn": 128, "wm": 64, "wn": 32, "stages": 5},
    {"bm": 128, "bn": 64, "wm": 32, "wn": 32, "stages": 4}, {"bm": 64, "bn": 64, "wm": 32, "wn": 32, "stages": 5},
)  # fmt: skip
IN_TURN = (
    {"bm": 128, "bn": 256, "wm": 64, "wn": 64, "stages": 3}, {"bm": 256, "bn": 128, "wm": 64, "wn": 64, "stages": 3},
    {"bm": 128, "bn": 128, "wm": 64, "wn": 64, "stages": 3}, {"bm": 128, "bn": 128, "wm": 64, "wn": 32, "stages": 4},
    {"bm": 128, "bn": 128, "wm": 64, "wn": 64, "stages": 4}, {"bm": 128, "bn": 128, "wm": 64, "wn": 64, "stages": 5},
    {"bm": 128, "bn": 128, "bk": 64, "wm": 64, "wn": 64, "stages": 3}, {"bm": 96, "bn": 128, "wm": 48, "wn": 64, "stages": 4},
    {"bm": 96, "bn": 128, "bk": 64, "wm": 48, "wn": 64, "stages": 3}, {"bm": 128, "bn": 96, "wm": 64, "wn": 48, "stages": 4},
    {"bm": 192, "bn": 128, "wm": 48, "wn": 64, "stages": 5},
)  # fmt: skip
"""With 128 x 128 or less two blocks share one of 132 multiprocessors: 3072 x 3072 is 2.2 waves of 128 x 128, and 2.9 of 96 x 128."""


HEADS = ("M = N = K", "us", "TFLOP/s", "five us", "two us", "Triton mma.sync us", "of five", "of two", "of Triton", "best")
GROUPS = ("ours", "five", "two", "Triton")
FORMS = {"relu": (lstm.strategy, TOGETHER), "in_turn": (lstm.in_turn, IN_TURN)}


def begun(crew, size):
    """Ours, by name, as jobs."""
    jobs = {}
    for form, (strategy, choices) in FORMS.items():
        jobs |= crew.begin({f"ours {form} {one}": strategy.with_(**one) for one in choices}, lstm.spec(size, size, size, form=form))
    return jobs


def measured(size, rounds, kernels):
    """Times of all contenders; `kernels` are ours, by name."""
    import torch
    from cublas_lt import cublas_lt
    from fused_peers import CELLS, cells

    count = sets_of(10 * size * size)
    x, w, h, r = (torch.randn(count, size, size, device="cuda").half() for _ in range(4))
    bias = (torch.randn(size, device="cuda") * 8).half()
    d, between, other = (torch.empty_like(x) for _ in range(3))
    contenders = Contenders(d, (x[0].double() @ w[0].double() + h[0].double() @ r[0].double() + bias.double()).relu())
    for name, kernel in kernels.items():
        contenders.add(name, lambda one, kernel=kernel: kernel.prepare(x[one], w[one], h[one], r[one], bias, out=d[one]))
    say(f"{size}: {len(contenders.calls)} kernels are right")

    def five(one):
        def launch():
            torch.matmul(x[one], w[one], out=between[one])
            torch.matmul(h[one], r[one], out=other[one])
            torch.add(between[one], other[one], out=between[one])
            torch.add(between[one], bias, out=between[one])
            torch.clamp(between[one], min=0, out=d[one])

        return launch

    def two(one):
        first = cublas_lt().plan(x[one], w[one], between[one])
        second = cublas_lt().plan(h[one], r[one], d[one], bias, between[one])
        return lambda: (first(), second())

    contenders.add("five kernels", five)
    contenders.add("two cuBLASLt kernels", two)
    for config in CELLS:
        contenders.add(f"Triton {config}", lambda one, c=config: cells(x[one], w[one], h[one], r[one], bias, d[one], c, True))
    say(f"{size}: {len(contenders.calls)} contenders")
    return contenders.times(rounds, GROUPS)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder")
    parser.add_argument("--sizes", default="1024,2048,3072,4096")
    parser.add_argument("--rounds", type=int, default=4)
    options = parser.parse_args()
    crew, table, kept = Crew(), [], []
    jobs = {size: begun(crew, size) for size in map(int, options.sizes.split(","))}
    for size in jobs:
        first, times = measured(size, options.rounds, crew.kernels(jobs[size]))
        ours, five, two, triton = (best(times, start) for start in GROUPS)
        ratios = [other[0] / ours[0] if other[0] and ours[0] else None for other in (five, two, triton)]
        table.append([size, ours[0], 4e-6 * size**3 / ours[0] if ours[0] else None, five[0], two[0], triton[0], *ratios, ours[1]])
        kept.append({"size": size, "us": times, "first us": first})
        written(options.folder, "lstm", HEADS, table, kept)


if __name__ == "__main__":
    main()
