"""Compare the gate of an LSTM cell, relu(X·W + H·R + bias), in one kernel with five and two kernels and Triton (Graphene, Figure 12).

    python perf/lstm.py FOLDER [--sizes 1024,2048,3072,4096] [--rounds 4] [--compile]

Float16, M = N = K: `lstm` with several tiles, and on wgmma (`hopper`); cuBLAS twice and three kernels of PyTorch; cuBLASLt twice, the
second time with the sum, the bias and the ReLU, by the first four algorithms of its heuristic; Triton restricted to mma.sync, and with TMA
and wgmma; with `--compile` torch.compile. Each is first verified, on an output initialized to NaN; all are measured once, then the best of
each alternately. Other processes compile meanwhile. Takes about 20 seconds to begin with and 8 per size. Writes `lstm.txt` and `lstm.json`.
"""

import argparse

from fused import CompilePool, Contenders, best, say, sets_of, written

from fireiron.strategies import lstm

FUSED = (
    {"bm": 128, "bn": 128, "wm": 64, "wn": 32, "stages": 4}, {"bm": 128, "bn": 128, "wm": 64, "wn": 32, "stages": 5},
    {"bm": 128, "bn": 64, "wm": 32, "wn": 32, "stages": 4}, {"bm": 64, "bn": 64, "wm": 32, "wn": 32, "stages": 5},
)  # fmt: skip
SEQUENTIAL = (
    {"bm": 128, "bn": 256, "wm": 64, "wn": 64, "stages": 3}, {"bm": 256, "bn": 128, "wm": 64, "wn": 64, "stages": 3},
    {"bm": 128, "bn": 128, "wm": 64, "wn": 64, "stages": 3}, {"bm": 128, "bn": 128, "wm": 64, "wn": 32, "stages": 4},
    {"bm": 128, "bn": 128, "wm": 64, "wn": 64, "stages": 4}, {"bm": 128, "bn": 128, "wm": 64, "wn": 64, "stages": 5},
    {"bm": 128, "bn": 128, "bk": 64, "wm": 64, "wn": 64, "stages": 3}, {"bm": 96, "bn": 128, "wm": 48, "wn": 64, "stages": 4},
    {"bm": 96, "bn": 128, "bk": 64, "wm": 48, "wn": 64, "stages": 3}, {"bm": 128, "bn": 96, "wm": 64, "wn": 48, "stages": 4},
    {"bm": 192, "bn": 128, "wm": 48, "wn": 64, "stages": 5},
)  # fmt: skip
"""With at most 128 x 128 two blocks share one of 132 SMs: 3072 x 3072 is 2.2 waves of 128 x 128, and 2.9 of 96 x 128."""


ENGINES = {
    1024: (
        {"bm": 128, "bn": 64, "stages": 4},
        {"bm": 64, "bn": 128, "stages": 4},
        {"bm": 64, "bn": 64, "stages": 5},
        {"bm": 128, "bn": 64, "bk": 128},
    ),
    3072: (
        {"bm": 192, "bn": 192},
        {"bm": 192, "bn": 192, "bk": 32, "stages": 4},
        {"bn": 192},
        {"bm": 192, "bn": 128},
        {"bm": 256, "bn": 128},
    ),
    2048: ({}, {"bk": 32, "stages": 4}, {"bn": 128, "stages": 3}, {"bm": 256, "bn": 128}),
}
"""On wgmma: tiles for which some size is a whole number of waves of 132, as 3072 is with 192 x 192 (1.94)."""

HEADS = ("M = N = K", "mma.sync us", "wgmma us", "TFLOP/s", "five us", "two us", "Triton mma.sync us", "Triton us", "compile us",
         "mma.sync of five", "of two", "of Triton mma.sync", "wgmma of five", "of two", "of Triton", "best")  # fmt: skip
GROUPS = ("ours", "wgmma", "five", "two", "Triton", "by TMA", "compile")
FORMS = {"relu": (lstm.strategy, FUSED), "two_loops": (lstm.two_loops, SEQUENTIAL)}


def begun(pool, size):
    """Ours, by name, as jobs."""
    jobs = {}
    for form, (strategy, choices) in FORMS.items():
        jobs |= pool.begin({f"ours {form} {one}": strategy.with_(**one) for one in choices}, lstm.spec(size, size, size, form=form))
    choices = (*ENGINES.get(size, ENGINES[2048]), *vars(lstm).get("defaults", lambda *sizes: ())(size, size, size))
    engines = {f"wgmma {one}": lstm.hopper.with_(**one) for one in choices}
    return jobs | pool.begin(engines, lstm.spec(size, size, size), "sm_90a")


def measured(size, rounds, kernels, compile):
    """Return times of all contenders; `kernels` are ours, by name."""
    import torch
    import triton_tma
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

    def five(number):
        def launch():
            torch.matmul(x[number], w[number], out=between[number])
            torch.matmul(h[number], r[number], out=other[number])
            torch.add(between[number], other[number], out=between[number])
            torch.add(between[number], bias, out=between[number])
            torch.clamp(between[number], min=0, out=d[number])

        return launch

    def two(number, rank):
        first = cublas_lt().plan(x[number], w[number], between[number], rank=rank)
        second = cublas_lt().plan(h[number], r[number], d[number], bias, between[number], rank=rank)
        return lambda: (first(), second())

    contenders.add("five kernels", five)
    for rank in range(4):
        contenders.add(f"two cuBLASLt kernels, rank {rank}", lambda one, rank=rank: two(one, rank))
    for config in CELLS:
        contenders.add(f"Triton {config}", lambda one, c=config: cells(x[one], w[one], h[one], r[one], bias, d[one], c, True))
    for tiles in triton_tma.CELLS:
        contenders.add(f"by TMA, Triton {tiles}", lambda one, t=tiles: triton_tma.lstm(x[one], w[one], h[one], r[one], bias, d[one], t))
    if compile:
        compiled = torch.compile(lambda x, w, h, r, bias: (x @ w + h @ r + bias).relu())
        contenders.add("compile", lambda one: lambda: compiled(x[one], w[one], h[one], r[one], bias), returned=True)
    say(f"{size}: {len(contenders.calls)} contenders")
    return contenders.times(rounds, GROUPS)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder")
    parser.add_argument("--sizes", default="1024,2048,3072,4096")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--compile", action="store_true", help="torch.compile, too: about 10 seconds more")
    options = parser.parse_args()
    pool, table, kept = CompilePool(), [], []
    jobs = {size: begun(pool, size) for size in map(int, options.sizes.split(","))}
    for size in jobs:
        first, times = measured(size, options.rounds, pool.kernels(jobs[size]), options.compile)
        ours, engine, five, two, triton, free, layer = (best(times, start) for start in GROUPS)
        pairs = [*((other, ours) for other in (five, two, triton)), *((other, engine) for other in (five, two, free))]
        ratios = [other[0] / us[0] if other[0] and us[0] else None for other, us in pairs]
        least, name = min((one for one in (ours, engine) if one[0]), default=(None, None))
        speed = 4e-6 * size**3 / least if least else None
        table.append([size, ours[0], engine[0], speed, five[0], two[0], triton[0], free[0], layer[0], *ratios, name])
        kept.append({"size": size, "us": times, "first us": first})
        written(options.folder, "lstm", HEADS, table, kept)


if __name__ == "__main__":
    main()
