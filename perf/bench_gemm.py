"""Kernels of the strategy library beside cuBLAS in one run, on the GPU.

    python perf/bench_gemm.py [-o FILE.json] [--rounds 20]

Data are standard normal, the same arrays for all; each contender is checked against float64 first, on poisoned output.
Timing: CUDA events around a graph of launches whose length is about 10 ms, contenders in turn, a pause of 0.25 s before
each, median of the rounds ("burst" clocks). Buffers rotate over more than 240 MB unless the row says hot.
"""

import argparse
import datetime
import json
import platform
import subprocess
import time

import cupy as cp
import numpy as np
import torch
from tabulate import tabulate

from fireiron import *
from fireiron import launch
from strategies import gemm_nn, hgemm_nt, listing_2, maxwell, naive

CASES = (
    ("naive", naive.strategy, naive.spec, (1024, 1024, 1024)),
    ("listing_2", listing_2.strategy, listing_2.spec, (1024, 1024, 1024)),
    ("maxwell", maxwell.strategy, maxwell.spec, (1536, 1024, 2048)),
    ("maxwell", maxwell.strategy, maxwell.spec, (4096, 4096, 4096)),
    ("gemm_nn", gemm_nn.strategy, gemm_nn.spec, (1024, 1024, 1024)),
    ("gemm_nn", gemm_nn.strategy, gemm_nn.spec, (2048, 2048, 2048)),
    ("gemm_nn", gemm_nn.strategy, gemm_nn.spec, (4096, 4096, 4096)),
    ("gemm_nn bk=16", gemm_nn.strategy.with_(bk=16), gemm_nn.spec, (4096, 4096, 4096)),
    ("gemm_nn", gemm_nn.strategy, gemm_nn.spec, (4000, 4000, 4096)),  # as many tiles as 4096, the last ones guarded
    ("gemm_nn", gemm_nn.strategy, gemm_nn.spec, (4000, 3999, 4001)),
    ("hgemm_nt", hgemm_nt.strategy, hgemm_nt.spec, (1536, 1024, 2048)),
)


def stored(array, layout):
    """A device array of this order."""
    return cp.asarray(array, order="C") if layout.order == "row" else cp.asarray(array.T, order="C").T


def error(got, a, b):
    """Relative error in the Frobenius norm, against float64 on the device."""
    exact = a.astype(cp.float64) @ b.astype(cp.float64)
    return float(cp.linalg.norm(got.astype(cp.float64) - exact) / cp.linalg.norm(exact))


def graph_of(calls):
    """A CUDA graph of calls."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    return graph


def time_graph(graph, launches, rounds):
    """Microseconds of one launch, one value a round."""
    times = []
    for _ in range(rounds):
        start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        graph.replay()
        stop.record()
        stop.synchronize()
        times.append(start.elapsed_time(stop) * 1000 / launches)
    return times


def contenders(strategy, spec, sets):
    """Calls by name, one for each set of buffers; cuBLAS through torch, which multiplies row-major, so a column-major C is C.T = B.T A.T."""
    kernel = strategy(spec).compile(launch.device_arch())
    ours = [lambda a=a, b=b, c=c: kernel(a, b, out=c, stream=torch.cuda.current_stream()) for a, b, c in sets]
    as_torch = [[torch.from_dlpack(x) for x in one] for one in sets]
    library = [lambda a=a, b=b, c=c: torch.matmul(b.T, a.T, out=c.T) for a, b, c in as_torch]
    return kernel, {"fireiron": ours, "cublas": library}


def measure(name, strategy, make_spec, sizes, rounds):
    spec = make_spec(*sizes)
    M, N, K = sizes
    generator = np.random.default_rng(0)
    kinds = [spec.operands[one].dtype.to_numpy() for one in "ABC"]
    a, b = (generator.standard_normal(shape).astype(kind) for shape, kind in (((M, K), kinds[0]), ((K, N), kinds[1])))
    layouts = [spec.operands[one].tensor.layout for one in "ABC"]
    per_set = a.nbytes + b.nbytes + M * N * kinds[2].itemsize
    count = int(min(64, max(2, 240e6 // per_set + 1)))
    sets = [(stored(a, layouts[0]), stored(b, layouts[1]), stored(np.full((M, N), np.nan, kinds[2]), layouts[2])) for _ in range(count)]
    row = {
        "strategy": name,
        "M": M,
        "N": N,
        "K": K,
        "type": str(spec.A.dtype),
        "buffers": "rotated" if per_set * count > 240e6 else f"{count} sets",
    }
    kernel, calls = contenders(strategy, spec, sets)
    row |= {"registers": kernel.resources.registers, "spills": kernel.resources.spill_stores, "shared": kernel.ir.shared_bytes}
    graphs = {}
    for who, list_of_calls in calls.items():
        sets[0][2].fill(np.nan)
        torch.cuda.synchronize()
        list_of_calls[0]()
        torch.cuda.synchronize()
        row[f"{who} error"] = error(sets[0][2], sets[0][0], sets[0][1])
        once = graph_of(list_of_calls)
        single = max(np.median(time_graph(once, len(list_of_calls), 3)), 1)
        repeats = max(1, int(10_000 / single / len(list_of_calls)))
        graphs[who] = (graph_of(list_of_calls * repeats), repeats * len(list_of_calls))
    times = {who: [] for who in graphs}
    for _ in range(4):
        for who, (graph, launches) in graphs.items():
            time.sleep(0.25)
            graph.replay()
            times[who] += time_graph(graph, launches, rounds // 4)
    flops = 2 * M * N * K
    for who, values in times.items():
        row[f"{who} us"] = float(np.median(values))
        row[f"{who} TFLOP/s"] = flops / row[f"{who} us"] / 1e6
        row[f"{who} quartiles us"] = [float(q) for q in np.quantile(values, (0.25, 0.75))]
    row["ratio"] = row["cublas us"] / row["fireiron us"]
    return row


def environment():
    """Versions and the GPU's state."""
    query = "name,driver_version,clocks.sm,temperature.gpu,power.draw"
    state = subprocess.run(
        ["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader"], capture_output=True, text=True, check=False
    ).stdout.strip()
    return {
        "date": datetime.date.today().isoformat(), "gpu": state, "python": platform.python_version(), "cupy": cp.__version__, "numpy": np.__version__,
        "torch": torch.__version__, "cuda": torch.version.cuda, "tf32": torch.backends.cuda.matmul.allow_tf32,
    }  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("-o", "--output")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--only", help="only the rows whose strategy's name contains this")
    options = parser.parse_args()
    rows = [measure(*case, options.rounds) for case in CASES if options.only is None or options.only in case[0]]
    keys = [
        "strategy",
        "type",
        "M",
        "N",
        "K",
        "fireiron us",
        "cublas us",
        "fireiron TFLOP/s",
        "cublas TFLOP/s",
        "ratio",
        "registers",
        "spills",
        "fireiron error",
        "cublas error",
    ]
    print(tabulate([[row[key] for key in keys] for row in rows], keys, floatfmt=".3g"))
    if options.output:
        with open(options.output, "w") as file:
            json.dump({"environment": environment(), "command": "python perf/bench_gemm.py", "rows": rows}, file, indent=1)


if __name__ == "__main__":
    main()
