"""Products over the GPUs of a node, beside cuBLAS and NCCL: torchrun --nproc-per-node 2 perf/node.py OUT

Times are medians of CUDA graph replays, the slower GPU counts, variants in turns. Results are compared with those of one GPU first.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
from pathlib import Path

import torch
import torch.distributed as distributed

from fireiron import *
from fireiron.strategies import hopper

CASES = (("gather", 1024, 3584, 8192), ("gather", 4096, 3584, 8192), ("gather", 8192, 3584, 8192), ("gather", 8192, 14336, 8192),
         ("scatter", 1024, 8192, 3584), ("scatter", 8192, 8192, 3584), ("reduce", 64, 8192, 3584), ("reduce", 128, 8192, 3584))


def problem(kind, m, n, k, gpus):
    """The spec of a case: sizes as in tables of tensor-parallel layers, N (gather) or K (others) per GPU."""
    if kind == "gather":
        n *= gpus
        orders = {"A": RowMajor.over(GPU, "m"), "B": RowMajor.over(GPU, "n"), "C": RowMajor.over(GPU, "n")}
    else:
        k *= gpus
        orders = {"A": RowMajor.over(GPU, "k"), "B": RowMajor.over(GPU, "k"), "C": RowMajor.over(GPU, "m") if kind == "scatter" else RowMajor}
    return MatMul(m, n, k, dtype=float16, c_dtype=float16, **orders)(GL, GL, GL)(Node(gpus))


def strategies(kind):
    if kind == "gather":
        return {"gathered": MatMul.to_gpus("n").load("A", GL).then(hopper.strategy), "direct": MatMul.to_gpus("n").then(hopper.strategy)}
    return {"sums": MatMul.to_gpus("k").then(hopper.strategy)}


def graph_of(function):
    for _ in range(3):
        function()
    torch.cuda.synchronize()
    distributed.barrier()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(8):
            function()
    return graph


def seconds(graph):
    torch.cuda.synchronize()
    distributed.barrier()
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    graph.replay()
    start.record()
    graph.replay()
    graph.replay()
    end.record()
    torch.cuda.synchronize()
    time = torch.tensor([start.elapsed_time(end) / 16 * 1e3], device="cuda")
    distributed.all_reduce(time, op=distributed.ReduceOp.MAX)
    return float(time)


def main(folder):
    rank, gpus = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.cuda.set_device(rank)
    distributed.init_process_group("nccl", device_id=torch.device("cuda", rank))
    rows = []
    for kind, m, n, k in CASES:
        generator = torch.Generator("cuda").manual_seed(rank)
        rand = lambda *shape: torch.randint(-2, 3, shape, device="cuda", generator=generator).half()
        if kind == "gather":
            a, b = rand(m // gpus, k), rand(k, n)
            whole = torch.empty(m, k, device="cuda", dtype=torch.float16)

            def plain():
                distributed.all_gather_into_tensor(whole, a)
                return whole @ b
        else:
            a, b = rand(m, k), rand(k, n)
            part = torch.empty(m // gpus, n, device="cuda", dtype=torch.float16)

            def plain():
                product = a @ b
                if kind == "reduce":
                    distributed.all_reduce(product)
                    return product
                distributed.reduce_scatter_tensor(part, product)
                return part
        functions = {"cuBLAS + NCCL": plain}
        for name, strategy in strategies(kind).items():
            run = strategy(problem(kind, m, n, k, gpus)).compile("sm_90a").over()
            mine = run.array("A").copy_(a) if "A" in run.shared else a
            functions[name] = lambda run=run, mine=mine: run(mine, b)
        expected = plain().clone()
        torch.cuda.synchronize()
        row = {"kind": kind, "m": m, "n": n, "k": k}
        for name, function in functions.items():
            got = function()
            torch.cuda.synchronize()
            row[f"{name} equal"] = bool((got == expected).all()) or float((got - expected).abs().max())
        if rank == 0:
            print(row, flush=True)
        graphs = {name: graph_of(function) for name, function in functions.items()}
        times = {name: [] for name in graphs}
        for _ in range(5):
            for name, graph in graphs.items():
                times[name].append(seconds(graph))
        row |= {name: round(statistics.median(values), 1) for name, values in times.items()}
        rows.append(row)
        if rank == 0:
            print(row, flush=True)
    if rank == 0:
        Path(folder).mkdir(parents=True, exist_ok=True)
        Path(folder, "node.json").write_text(json.dumps(rows, indent=1))
    distributed.barrier()
    distributed.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
