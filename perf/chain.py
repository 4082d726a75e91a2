"""Compare chains of small GEMMs: kernels with programmatic launch, the same kernels without it, and cuBLAS.

    python perf/chain.py [-o FILE] [--sizes 128 256 512 768 1024] [--length 64] [--rounds 9] [--candidates]

Each chain is `length` float16 GEMMs, X <- X @ W, each of which needs the preceding one; it is captured once into a CUDA graph, which is
replayed. The result is the median time per GEMM: of a replay, divided by the length. cuBLAS is PyTorch's matmul with `out=`, captured
likewise. The kernels have the library's own tiles for each size; `ready` is the same programmatic kernel that loads W before it waits, as
no kernel of the chain writes W. With `--candidates` other tiles take part, too: with fewer stages, so that two blocks fit on an SM, one of
this kernel and one of the next; and kernels that let the next one start only after they have waited themselves (`late`). The results of all
chains are first compared, exactly: W are permutations. Needs an H100 or H200, CuPy and PyTorch.
"""

import argparse
import json
import statistics

import cupy
import numpy as np
import torch
from tabulate import tabulate

from fireiron import ProgrammaticLaunch, Tile
from fireiron.gpu import launch
from fireiron.gpu.kernel import CompiledKernel
from fireiron.language.library import defaults, find
from fireiron.measure.timing import environment
from fireiron.strategies import hopper

SIZES = (128, 256, 384, 512, 768, 1024)


def tile(bm, bn, bk, stages, wm, wn, epi_n=64, name="hopper"):
    """Return a candidate: the name of a strategy, and values."""
    values = {
        "bm": bm,
        "bn": bn,
        "bk": bk,
        "wm": wm,
        "wn": wn,
        "epi_m": 32 if wm == 96 else min(wm, 64),
        "epi_n": epi_n,
        "stages": stages,
        "group_m": 4,
    }
    return name, values


CANDIDATES = {
    512: (
        tile(32, 64, 128, 2, 32, 64, name="hopper_small"),
        tile(64, 64, 64, 8, 64, 64, name="hopper_small"),
        tile(64, 32, 128, 4, 64, 32, 32, name="hopper_small"),
        tile(16, 64, 128, 4, 16, 64, name="hopper_small"),
    ),
    768: (
        tile(64, 96, 64, 4, 64, 96, 32, name="hopper_small"),
        tile(64, 96, 128, 2, 64, 96, 32, name="hopper_small"),
        tile(64, 64, 64, 6, 64, 64, name="hopper_small"),
        tile(96, 64, 64, 4, 96, 64, name="hopper_small"),
        tile(64, 128, 64, 4, 64, 64),
    ),
    1024: (
        tile(64, 128, 64, 4, 64, 64),
        tile(128, 64, 64, 4, 64, 64),
        tile(128, 64, 64, 8, 64, 64),
        tile(128, 128, 64, 3, 64, 128),
        tile(64, 64, 64, 6, 64, 64, name="hopper_small"),
    ),
}
"""Tiles, steps along k and stages in addition to the library's own."""


def late(strategy, spec):
    """Return the programmatic kernel that lets the next one start only after its own wait."""
    program = strategy(spec).program("sm_90a")
    launch_next, wait = "griddepcontrol_launch_dependents();\n", "griddepcontrol_wait();\n"
    text = program.cuda
    head, body = text.split('extern "C"')
    producer = body.index("// producer")  # one thread of each block executes it
    body = body[:producer].replace(f"  {launch_next}", "") + body[producer:].replace(wait, f"{wait}    {launch_next}")
    if body.count(wait) == 1:  # one wait for all threads, before the roles
        body = body.replace(wait, f"{wait}  {launch_next}")
    program.__dict__["text"] = f'{head}extern "C"{body}'
    return CompiledKernel(program, ()).ready()


def kernels(size, candidates):
    """Return the library's default kernel, the same with programmatic launch, and with W exempt from the wait; on request other tiles."""
    spec = hopper.spec(size, size, size)
    name, values = defaults(spec, "sm_90a")[0]
    plain = find(name).strategy.with_(**values)
    programmatic, ready = (plain.at(Tile).refine(one) for one in (ProgrammaticLaunch(), ProgrammaticLaunch("B")))
    kernels_by_name = {"unchained": plain(spec).compile(), "chained": programmatic(spec).compile(), "ready": ready(spec).compile()}
    if candidates:
        kernels_by_name["late"], kernels_by_name["ready, late"] = late(programmatic, spec), late(ready, spec)
        for name, values in CANDIDATES.get(size, ()):
            label = "{bm}x{bn}, k {bk}, {stages} stages".format(**values)
            strategy = find(name).strategy.with_(**values).at(Tile)
            kernels_by_name[label] = strategy.refine(ProgrammaticLaunch())(spec).compile()
            kernels_by_name[f"{label}, ready"] = strategy.refine(ProgrammaticLaunch("B"))(spec).compile()
            kernels_by_name[f"{label}, ready, late"] = late(strategy.refine(ProgrammaticLaunch("B")), spec)
    return kernels_by_name


def chain_of(kernel, arrays, length):
    """Return the launches of a chain of one of our kernels."""
    first, factors, pair = arrays
    launches, source = [], first
    for step in range(length):
        launches.append(kernel.prepare(source, factors[step % len(factors)], out=pair[step % 2]))
        source = pair[step % 2]
    return launches


def chain_of_cublas(arrays, length):
    """Return the launches of the same chain by PyTorch, on the same memory."""
    first, factors, pair = ([torch.as_tensor(one) for one in some] for some in ([arrays[0]], *arrays[1:]))
    steps, source = [], first[0]
    for step in range(length):
        steps.append((source, factors[step % len(factors)], pair[step % 2]))
        source = pair[step % 2]
    return [lambda stream, step=step: torch.matmul(step[0], step[1], out=step[2]) for step in steps]


def captured(steps):
    """Return a graph of the launches."""
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream, torch.cuda.stream(torch.cuda.ExternalStream(stream.ptr)):
        for launch in steps:  # work of a first launch is done outside the graph
            launch(stream=stream)
        stream.synchronize()
        stream.begin_capture()
        for launch in steps:
            launch(stream=stream)
        graph = stream.end_capture()
    return graph, stream


def replay(graph, stream, times):
    """Return microseconds per replay, the mean of `times` in a row."""
    start, stop = cupy.cuda.Event(), cupy.cuda.Event()
    start.record(stream)
    for _ in range(times):
        graph.launch(stream)
    stop.record(stream)
    stop.synchronize()
    return cupy.cuda.get_elapsed_time(start, stop) * 1000 / times


def inputs(size):
    """Return a start, three permutations, and the two arrays that are written alternately."""
    generator = np.random.default_rng(size)
    first = cupy.asarray(generator.integers(-1000, 1000, (size, size)).astype(np.float16))
    factors = [cupy.asarray(np.eye(size, dtype=np.float16)[generator.permutation(size)]) for _ in range(3)]
    return first, factors, [cupy.empty((size, size), np.float16) for _ in range(2)]


def measured(size, length, rounds, candidates=False):
    """Return microseconds per GEMM, by contender."""
    graphs, results = {}, {}
    for name, kernel in {**kernels(size, candidates), "cuBLAS": None}.items():
        arrays = inputs(size)
        steps = chain_of_cublas(arrays, length) if kernel is None else chain_of(kernel, arrays, length)
        graphs[name] = (*captured(steps), arrays, steps)
        replay(*graphs[name][:2], 3)
        results[name] = arrays[2][(length - 1) % 2].get()
    for name, result in results.items():
        np.testing.assert_array_equal(result, results["cuBLAS"], err_msg=f"{name} at {size}")
    times = {name: [] for name in graphs}
    for _ in range(rounds):  # alternately, so that all run at the same clock
        for name, (graph, stream, *_) in graphs.items():
            times[name].append(replay(graph, stream, 20) / length)
    return {name: statistics.median(found) for name, found in times.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output")
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--candidates", action="store_true")
    options = parser.parse_args()
    if launch.visible_arch() != "sm_90":
        parser.error("needs an H100 or H200")
    rows = []
    for size in options.sizes:
        times = measured(size, options.length, options.rounds, options.candidates)
        rows.append({"size": size, **times})
        for name, us in sorted(times.items(), key=lambda one: one[1]) if options.candidates else ():
            print(f"{size:5} {us:6.2f} us, {times['cuBLAS'] / us:.2f} of cuBLAS  {name}", flush=True)
    table = [
        [row["size"], *(f"{row[name]:.2f}" for name in ("unchained", "chained", "ready", "cuBLAS")), f"{row['unchained'] / row['chained']:.2f}",
         f"{row['cuBLAS'] / row['chained']:.2f}", f"{row['cuBLAS'] / row['ready']:.2f}"]
        for row in rows
    ]  # fmt: skip
    heads = [
        "M = N = K",
        "unchained, us",
        "chained, us",
        "ready, us",
        "cuBLAS, us",
        "unchained / chained",
        "cuBLAS / chained",
        "cuBLAS / ready",
    ]
    print(tabulate(table, heads, disable_numparse=True))
    if options.output:
        with open(options.output, "w", encoding="utf-8") as file:
            json.dump({"environment": environment(), "length": options.length, "rows": rows}, file, indent=1)


if __name__ == "__main__":
    main()
