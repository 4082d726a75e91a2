"""Products over the GPUs of a node, compared with cuBLAS and NCCL: torchrun --nproc-per-node 2 perf/node.py OUT [gather:4096x3584x8192 ...]

Times are medians of CUDA graph replays with 8 calls, the slower GPU counts, variants alternate, L2 warm. Results are compared with those of
cuBLAS and NCCL first. Multicast is off.
"""

from __future__ import annotations

import functools
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import attrs
import torch
import torch.distributed as distributed

import fireiron.distributed
from fireiron import *
from fireiron.distributed_plan import NodeProduct, candidates
from fireiron.strategies import hopper

CASES = (
    "gather:1024x3584x8192", "gather:4096x3584x8192", "gather:8192x3584x8192", "gather:8192x14336x8192",
    "scatter:1024x8192x3584", "scatter:8192x8192x3584", "reduce:64x8192x3584", "reduce:128x8192x3584",
    "exchange:1024x8192x3584", "exchange:4096x8192x3584", "exchange:8192x8192x3584", "exchange:8192x8192x14336",
)  # fmt: skip
"""Products of tensor-parallel layers, by exchange: M x N x K of one GPU."""

KINDS = {"gather": "all_gather", "scatter": "reduce_scatter", "reduce": "all_reduce", "exchange": "reduce_scatter"}
CALLS, TURNS = 8, 5
EXCHANGED = {
    "exchanged, 1 warp": (1, {}),
    "exchanged, 2 warps": (2, {}),
    "exchanged, 2 warps, registers": (2, {"producer_threads": 128}),
    "exchanged, 2 warps, 4 stages": (2, {"stages": 4, "epi_n": 64}),
    "exchanged, 2 warps, group 8": (2, {"group_m": 8}),
}
"""Adding warps of a block, and parameters of the product, for sums that are exchanged in its launch."""


@attrs.frozen
class Case:
    """A product, and the parts of its operands on this GPU."""

    kind: str
    m: int
    n: int
    k: int
    gpus: int
    a: Any
    b: Any

    @staticmethod
    def of(text: str, rank: int, gpus: int) -> Case:
        kind, sizes = text.split(":")
        m, n, k = map(int, sizes.split("x"))
        generator = torch.Generator("cuda").manual_seed(rank)

        def numbers(*shape: int) -> Any:
            return torch.randint(-2, 3, shape, device="cuda", generator=generator).half()

        return Case(kind, m, n, k, gpus, numbers(m // gpus if kind == "gather" else m, k), numbers(k, n))

    def plain(self) -> Any:
        """The result of cuBLAS and NCCL."""
        if self.kind == "gather":
            whole = torch.empty(self.m, self.k, device="cuda", dtype=torch.float16)
            distributed.all_gather_into_tensor(whole, self.a)
            return whole @ self.b
        product = self.a @ self.b
        if self.kind == "reduce":
            distributed.all_reduce(product)
            return product
        part = torch.empty(self.m // self.gpus, self.n, device="cuda", dtype=torch.float16)
        distributed.reduce_scatter_tensor(part, product)
        return part

    def functions(self) -> dict[str, Callable[[], Any]]:
        """The contenders: functions without arguments."""
        result: dict[str, Callable[[], Any]] = {"cuBLAS + NCCL": self.plain, "cuBLAS alone": self.alone}
        problem = NodeProduct.of(KINDS[self.kind], tuple(self.a.shape), tuple(self.b.shape), float16, gpus=self.gpus)
        if self.kind == "exchange":  # only sums that are exchanged in the launch of the product
            for name, (warps, changes) in EXCHANGED.items():
                run = self.exchanged(warps, **changes)(problem.spec).compile().over(seconds=20)
                result[name] = functools.partial(run, self.a, self.b)
            return result
        for candidate in candidates(problem, None, self.a.device.index):
            if candidate.strategy is not None and candidate.us < 2 * self.slow_us:
                run = candidate.strategy(problem.spec).compile().over(seconds=20)
                part = run.array("A").copy_(self.a) if "A" in run.shared else self.a
                result[candidate.name] = functools.partial(run, part, self.b)
        function = getattr(fireiron.distributed, {"gather": "all_gather_matmul"}.get(self.kind, f"matmul_{KINDS[self.kind]}"))
        result["function"] = functools.partial(function, self.a, self.b)
        return result

    def exchanged(self, warps: int, **changes: Any) -> Any:
        """The strategy that adds the sums of all GPUs in the launch of the product."""
        values = {"bm": 128, "bn": 256, "bk": 64, "wm": 64, "wn": 256, "num_blocks": 132, "cluster_m": 1, "cluster_n": 1, "raster": 0}
        values |= {"epi_m": 64, "epi_n": 256, "stages": 3, "group_m": 4, **changes}
        steps = MatMul.to_gpus("k", sums=float16).overlap(values["bm"], values["bn"], warps=warps)
        return steps.then(hopper.strategy.with_(**values))

    def alone(self) -> Any:
        """The product of this GPU without communication, a lower bound."""
        if self.kind == "gather":
            return self.whole @ self.b
        return self.a @ self.b

    @functools.cached_property
    def whole(self) -> Any:
        """An array of the size of the gathered A."""
        return self.a.repeat(self.gpus, 1)

    @property
    def slow_us(self) -> float:
        """A time that cuBLAS and NCCL do not exceed: 500 TFLOP/s, 200 GB/s and 20 us."""
        elements = self.m * (self.k if self.kind == "gather" else self.n)
        return 2 * self.m * self.n * self.k / 5e8 + 2 * elements / 2e5 + 20


def graph_of(function: Callable[[], Any]) -> Any:
    for _ in range(3):
        function()
    torch.cuda.synchronize()
    distributed.barrier()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(CALLS):
            function()
    return graph


def microseconds(graph: Any) -> float:
    torch.cuda.synchronize()
    distributed.barrier()
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    graph.replay()
    start.record()
    graph.replay()
    graph.replay()
    end.record()
    torch.cuda.synchronize()
    spent = torch.tensor([start.elapsed_time(end) / (2 * CALLS) * 1e3], device="cuda")
    distributed.all_reduce(spent, op=distributed.ReduceOp.MAX)
    return float(spent)


def measured(case: Case) -> dict[str, Any]:
    functions = case.functions()
    expected = case.plain().clone()
    row: dict[str, Any] = {"case": f"{case.kind}:{case.m}x{case.n}x{case.k}"}
    for name, function in functions.items():
        got = function()
        torch.cuda.synchronize()
        if name != "cuBLAS alone":
            row[f"{name}, largest difference"] = float((got.float() - expected.float()).abs().max())
        started = time.perf_counter()
        for _ in range(20):
            function()
        row[f"{name}, us of the host"] = round((time.perf_counter() - started) / 20 * 1e6, 1)
    graphs = {name: graph_of(function) for name, function in functions.items()}
    times: dict[str, list[float]] = {name: [] for name in graphs}
    for _ in range(TURNS):
        for name, graph in graphs.items():
            times[name].append(microseconds(graph))
    return row | {f"{name}, us": round(statistics.median(values), 1) for name, values in times.items()}


def main(folder: str, *cases: str) -> None:
    rank, gpus = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.cuda.set_device(rank)
    distributed.init_process_group("nccl", device_id=torch.device("cuda", rank))
    rows = []
    for text in cases or CASES:
        rows.append(measured(Case.of(text, rank, gpus)))
        if rank == 0:
            print(rows[-1], flush=True)
    if rank == 0:
        facts = {"date": str(date.today()), "gpu": f"{gpus} x {torch.cuda.get_device_name()}", "torch": torch.__version__}
        facts |= {"nccl": ".".join(map(str, torch.cuda.nccl.version())), "python": platform.python_version(), "command": " ".join(sys.argv)}
        Path(folder).mkdir(parents=True, exist_ok=True)
        Path(folder, "node.json").write_text(json.dumps({**facts, "rows": rows}, indent=1))
    distributed.barrier()
    distributed.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
