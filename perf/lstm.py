"""The gate of an LSTM cell, relu(X·W + H·R + bias), in one kernel, beside five and two kernels and Triton (Graphene, Figure 12).

    python perf/lstm.py FOLDER [--sizes 1024,2048,3072,4096] [--rounds 5]

Halves, M = N = K: `lstm` by several tiles; cuBLAS, cuBLAS, and three kernels of PyTorch; cuBLASLt twice, the second time with the sum, the
bias and the ReLU; Triton restricted to mma.sync. Each is verified first, on an output of NaN. About 15 seconds a size, compilation
included. Writes `lstm.txt` and `lstm.json`.
"""

import argparse

from fused import Contenders, best, prepared, sets_of, written

from fireiron.errors import FireironError
from fireiron.strategies import lstm

TOGETHER = (
    {"bm": 128, "bn": 128, "wm": 64, "wn": 32, "stages": 4}, {"bm": 128, "bn": 128, "wm": 64, "wn": 32, "stages": 5},
    {"bm": 128, "bn": 64, "wm": 32, "wn": 32, "stages": 4}, {"bm": 64, "bn": 64, "wm": 32, "wn": 32, "stages": 5},
)  # fmt: skip
IN_TURN = (
    {"bm": 128, "bn": 256, "wm": 64, "wn": 64, "stages": 3}, {"bm": 256, "bn": 128, "wm": 64, "wn": 64, "stages": 3},
    {"bm": 128, "bn": 128, "wm": 64, "wn": 64, "stages": 3}, {"bm": 128, "bn": 128, "wm": 64, "wn": 32, "stages": 4},
)  # fmt: skip


def measured(size, rounds):
    """Times of all contenders."""
    import torch
    from cublas_lt import cublas_lt
    from fused_peers import CELLS, cells

    count = sets_of(10 * size * size)
    x, w, h, r = (torch.randn(count, size, size, device="cuda").half() for _ in range(4))
    bias = (torch.randn(size, device="cuda") * 8).half()
    d, between, other = (torch.empty_like(x) for _ in range(3))
    contenders = Contenders(d, (x[0].double() @ w[0].double() + h[0].double() @ r[0].double() + bias.double()).relu())
    choices = [(lstm.strategy, "relu", values) for values in TOGETHER] + [(lstm.in_turn, "in_turn", values) for values in IN_TURN]
    for strategy, form, values in choices:
        try:
            kernel = prepared(strategy.with_(**values), lstm.spec(size, size, size, form=form))
        except FireironError as problem:
            print(f"left out: {form} {values}: {str(problem).splitlines()[0]}", flush=True)
            continue
        contenders.add(f"ours {form} {values}", lambda one, kernel=kernel: kernel.prepare(x[one], w[one], h[one], r[one], bias, out=d[one]))

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
    return contenders.times(rounds)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder")
    parser.add_argument("--sizes", default="1024,2048,3072,4096")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    table, kept = [], []
    for size in map(int, options.sizes.split(",")):
        times = measured(size, options.rounds)
        ours, five, two, triton = (best(times, start) for start in ("ours", "five", "two", "Triton"))
        ratios = [other[0] / ours[0] if other[0] and ours[0] else None for other in (five, two, triton)]
        table.append([size, ours[0], 4e-6 * size**3 / ours[0] if ours[0] else None, five[0], two[0], triton[0], *ratios, ours[1]])
        kept.append({"size": size, "us": times})
        print(table[-1], flush=True)
    heads = ("M = N = K", "us", "TFLOP/s", "five us", "two us", "Triton mma.sync us", "of five", "of two", "of Triton", "best")
    written(options.folder, "lstm", heads, table, kept)


if __name__ == "__main__":
    main()
