"""Compare calls of `fireiron.matmul` with `torch.matmul`, including GEMM that takes several launches, and rows that are copied first.

    python perf/products.py 128x128x16384 512x512x16384 ...
    python perf/products.py --odd 20 --seed 5

Row-major float16 A, B and C. Results are compared with float32 GEMM; calls with `out=` are captured in CUDA graphs that cycle through as
many sets of arrays as exceed L2 together (40 at most); events around replays, the median of nine. `--odd` draws sizes of 256 to 5800 of
which N or K is odd. Needs a GPU, CuPy and PyTorch.
"""

import argparse
import math
import statistics
from random import Random

import torch

import fireiron

ROTATED = 240e6
"""Bytes of all sets together."""


def median_us(call, sets, rounds=9):
    """Return microseconds of a call."""
    for number in range(3):
        call(number % sets)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for number in range(sets):
            call(number)
    times = []
    for _ in range(rounds):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda.synchronize()
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) * 1000 / sets)
    return statistics.median(times)


def drawn_odd(count, seed):
    """Return random sizes of which N or K is odd."""
    random, shapes = Random(seed), []
    while len(shapes) < count:
        m, n, k = (int(2 ** random.uniform(8, 12.5)) for _ in range(3))
        if n % 2 or k % 2:
            shapes.append((m, n, k))
    return shapes


def ratio(m, n, k):
    """cuBLAS's time divided by ours; raises if the result is wrong."""
    sets = max(2, min(40, int(ROTATED / (2 * (m * k + k * n)))))
    a = [torch.randn(m, k, device="cuda").half() for _ in range(sets)]
    b = [torch.randn(k, n, device="cuda").half() for _ in range(sets)]
    out = [torch.empty(m, n, device="cuda", dtype=torch.half) for _ in range(sets)]
    result, wanted = fireiron.matmul(a[0], b[0], out[0]), a[0].float() @ b[0].float()
    error = float((result.float() - wanted).norm() / wanted.norm())
    if not error < 2e-3:
        raise SystemExit(f"{m}x{n}x{k}: an error of {error}")
    ours = median_us(lambda number: fireiron.matmul(a[number], b[number], out[number]), sets)
    torch_us = median_us(lambda number: torch.matmul(a[number], b[number], out=out[number]), sets)
    print(f"{m}x{n}x{k}  cuBLAS {torch_us:.2f} us  fireiron {ours:.2f} us  {torch_us / ours:.2f}", flush=True)
    return torch_us / ours


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("shapes", nargs="*", help="MxNxK")
    parser.add_argument("--odd", type=int, default=0, help="the number of random sizes")
    parser.add_argument("--seed", type=int, default=5)
    options = parser.parse_args()
    shapes = [tuple(map(int, one.split("x"))) for one in options.shapes] + drawn_odd(options.odd, options.seed)
    print(torch.cuda.get_device_name(), torch.__version__)
    ratios = [ratio(*one) for one in shapes]
    mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
    print(f"geometric mean {mean:.3f}, lowest {min(ratios):.3f} of {len(ratios)}")


if __name__ == "__main__":
    main()
