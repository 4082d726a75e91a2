"""Chains of small products: kernels that begin while the one before ends, beside the same kernels without that, and beside cuBLAS.

    python perf/chain.py [-o FILE] [--sizes 128 256 512 768 1024] [--length 64] [--rounds 9]

Each chain is `length` products of halves, X <- X @ W, each of which needs the one before; it is captured into a CUDA graph once, and the graph
is replayed. Printed is the median time of a product: of a replay, divided by the length. cuBLAS is PyTorch's matmul with `out=`, captured likewise.
The kernels are those of the library's own tiles at each size. The results of all chains are compared first, exactly: W are permutations.
Needs an H100 or H200, CuPy and PyTorch.
"""

import argparse
import json
import statistics

import cupy
import numpy as np
import torch
from tabulate import tabulate

from fireiron import Chained, Tile
from fireiron.gpu import launch
from fireiron.language.library import defaults, find
from fireiron.strategies import hopper

SIZES = (128, 256, 384, 512, 768, 1024)


def kernels(size):
    """The kernel that the library would take, and the same chained."""
    spec = hopper.spec(size, size, size)
    name, values = defaults(spec, "sm_90a")[0]
    plain = find(name).strategy.with_(**values)
    return {"unchained": plain(spec).compile(), "chained": plain.at(Tile).refine(Chained())(spec).compile()}


def chain_of(kernel, arrays, length):
    """The launches of a chain of one of our kernels."""
    first, factors, pair = arrays
    launches, source = [], first
    for step in range(length):
        launches.append(kernel.prepare(source, factors[step % len(factors)], out=pair[step % 2]))
        source = pair[step % 2]
    return launches


def chain_of_cublas(arrays, length):
    """The same by PyTorch, on the same memory."""
    first, factors, pair = ([torch.as_tensor(one) for one in some] for some in ([arrays[0]], *arrays[1:]))
    steps, source = [], first[0]
    for step in range(length):
        steps.append((source, factors[step % len(factors)], pair[step % 2]))
        source = pair[step % 2]
    return [lambda stream, step=step: torch.matmul(step[0], step[1], out=step[2]) for step in steps]


def captured(steps):
    """A graph of the launches."""
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream, torch.cuda.stream(torch.cuda.ExternalStream(stream.ptr)):
        for one in steps:  # what is made at a first launch is made outside the graph
            one(stream=stream)
        stream.synchronize()
        stream.begin_capture()
        for one in steps:
            one(stream=stream)
        graph = stream.end_capture()
    return graph, stream


def replay(graph, stream, times):
    """Microseconds of a replay, on average of `times` in a row."""
    start, stop = cupy.cuda.Event(), cupy.cuda.Event()
    start.record(stream)
    for _ in range(times):
        graph.launch(stream)
    stop.record(stream)
    stop.synchronize()
    return cupy.cuda.get_elapsed_time(start, stop) * 1000 / times


def inputs(size):
    """A start, three permutations, and the two arrays that are written in turn."""
    generator = np.random.default_rng(size)
    first = cupy.asarray(generator.integers(-1000, 1000, (size, size)).astype(np.float16))
    factors = [cupy.asarray(np.eye(size, dtype=np.float16)[generator.permutation(size)]) for _ in range(3)]
    return first, factors, [cupy.empty((size, size), np.float16) for _ in range(2)]


def measured(size, length, rounds):
    """Microseconds of a product, by contender."""
    graphs, results = {}, {}
    for name, kernel in {**kernels(size), "cuBLAS": None}.items():
        arrays = inputs(size)
        steps = chain_of_cublas(arrays, length) if kernel is None else chain_of(kernel, arrays, length)
        graphs[name] = (*captured(steps), arrays, steps)
        replay(*graphs[name][:2], 3)
        results[name] = arrays[2][(length - 1) % 2].get()
    for name, result in results.items():
        np.testing.assert_array_equal(result, results["cuBLAS"], err_msg=f"{name} at {size}")
    times = {name: [] for name in graphs}
    for _ in range(rounds):  # in turn, so that all meet the same clock
        for name, (graph, stream, *_) in graphs.items():
            times[name].append(replay(graph, stream, 20) / length)
    return {name: statistics.median(found) for name, found in times.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output")
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    if launch.visible_arch() != "sm_90":
        parser.error("needs an H100 or H200")
    rows = []
    for size in options.sizes:
        found = measured(size, options.length, options.rounds)
        rows.append({"size": size, **found})
    table = [
        [row["size"], *(f"{row[name]:.2f}" for name in ("unchained", "chained", "cuBLAS")), f"{row['unchained'] / row['chained']:.2f}",
         f"{row['cuBLAS'] / row['chained']:.2f}"]
        for row in rows
    ]  # fmt: skip
    heads = ["M = N = K", "unchained, us", "chained, us", "cuBLAS, us", "unchained / chained", "cuBLAS / chained"]
    print(tabulate(table, heads, disable_numparse=True))
    if options.output:
        with open(options.output, "w", encoding="utf-8") as file:
            json.dump(
                {"gpu": cupy.cuda.runtime.getDeviceProperties(0)["name"].decode(), "length": options.length, "rows": rows}, file, indent=1
            )


if __name__ == "__main__":
    main()
