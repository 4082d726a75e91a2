"""Products over the GPUs of a node, compared with cuBLAS and NCCL: torchrun --nproc-per-node 2 perf/node.py OUT [gather:4096x3584x8192 ...]

Times are medians of CUDA graph replays with 8 calls, the slower GPU counts, variants alternate in orders that rotate, L2 warm. Results are compared with those of
cuBLAS and NCCL first. Multicast is off. `python perf/node.py compile [CASE ...]` compiles all variants with all cores, for later runs.

A case is an exchange, M x N x K of one GPU, and `:bf16` for bfloat16. `+` after the exchange adds candidates with several launches, and variants. Rivals besides
cuBLAS and NCCL: copies by the copy engine from symmetric memory between two barriers, and PyTorch's operators on symmetric memory, which
support bfloat16 only if they add. PyTorch's fused operators are measured by calls, since graphs of them fail.
"""

from __future__ import annotations

import concurrent.futures
import functools
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterable
from datetime import date
from pathlib import Path
from typing import Any

import attrs
import torch
import torch.distributed as distributed

import fireiron.distributed
from fireiron import *
from fireiron.cost.gpus import of_architecture
from fireiron.distributed_plan import NodeProduct, candidates, overlapping
from fireiron.errors import FireironError
from fireiron.front.place import Place
from fireiron.strategies import all_gather_gemm, hopper

ARCH = "sm_90a"

CASES = (
    "gather:1024x3584x8192", "gather:4096x3584x8192", "gather:8192x3584x8192", "gather:16384x3584x8192", "gather:8192x3584x8192:bf16",
    "gather:4096x14336x8192", "gather:8192x14336x8192", "gather:16384x14336x8192", "gather:2048x4096x4096",
    "scatter:1024x8192x3584", "scatter:4096x8192x3584", "scatter:8192x8192x3584", "scatter:4096x8192x14336", "scatter:8192x8192x14336",
    "reduce:16x8192x3584:bf16", "reduce:64x8192x3584:bf16", "reduce:128x8192x3584:bf16", "reduce:16x8192x1024:bf16",
)  # fmt: skip
"""Products of tensor-parallel layers."""

KINDS = {"gather": "all_gather", "scatter": "reduce_scatter", "reduce": "all_reduce"}
ONE_LAUNCH = ("overlapped", "exchanged", "recorded")
"""Candidates with one launch, and those of records."""

SLOW = ("direct", "sums")
"""Candidates that are never the fastest for these cases."""

CALLS, TURNS = 8, 5
WIDE = {"bm": 128, "bn": 256, "bk": 64, "wm": 64, "wn": 256, "num_blocks": 132, "cluster_m": 1, "cluster_n": 1, "raster": 0}
"""The tile of large products."""

OVERLAPPED = {
    "overlapped, 1024 columns": {"region_columns": 1024},
    "overlapped, 4096 columns": {"region_columns": 4096},
    "overlapped, 2 warps": {"copying_warps": 2},
    "overlapped, 4096 columns, 2 warps": {"region_columns": 4096, "copying_warps": 2},
}
"""Changes of the values of the strategy whose launch gathers."""

EXCHANGED = {
    "exchanged, 4 stages": {"stages": 4, "epi_n": 64},
    "storing": {"store_stages": 4},
    "storing, group 4": {"store_stages": 4, "group_m": 4},
    "storing, 1 adding warp": {"store_stages": 4, "warps": 1},
    "storing, 2 stages": {"store_stages": 2},
    "storing, 4 stages of tiles": {"store_stages": 1, "stages": 4},
}
"""Changes of the strategy whose launch exchanges sums."""


@attrs.frozen
class Problem:
    """A product of the GPUs of a node."""

    kind: str
    m: int
    n: int
    k: int
    gpus: int
    dtype: Any
    varied: bool

    @staticmethod
    def of(text: str, gpus: int) -> Problem:
        kind, sizes, *dtype = text.split(":")
        m, n, k = map(int, sizes.split("x"))
        return Problem(kind.removesuffix("+"), m, n, k, gpus, bfloat16 if dtype else float16, kind.endswith("+"))

    @property
    def torch_type(self) -> Any:
        return torch.bfloat16 if self.dtype == bfloat16 else torch.float16

    @property
    def shapes(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """The shapes of a and b on a GPU."""
        return (self.m // self.gpus if self.kind == "gather" else self.m, self.k), (self.k, self.n)

    @property
    def text(self) -> str:
        return f"{self.kind}:{self.m}x{self.n}x{self.k}{':bf16' if self.dtype == bfloat16 else ''}"

    @functools.cached_property
    def product(self) -> NodeProduct:
        return NodeProduct.of(KINDS[self.kind], *self.shapes, self.dtype, gpus=self.gpus)

    def strategies(self, arch: str | None = None, device: int | None = None) -> dict[str, Any]:
        """The strategies of the candidates with one launch, and of records; variants, and candidates with several launches, if asked for."""
        fast = {
            candidate.name: candidate.strategy
            for candidate in candidates(self.product, arch, device)
            if candidate.strategy is not None and candidate.us < 2 * self.slow_us
            and (candidate.name not in SLOW if self.varied else candidate.name in ONE_LAUNCH)
        }  # fmt: skip
        return {**fast, **(self._variants(arch, device) if self.varied else {})}

    def _variants(self, arch: str | None, device: int | None) -> dict[str, Any]:
        place = Place.of(device, arch, False)
        gpu = of_architecture("sm_90a")
        if self.kind == "gather":
            values = dict(next(overlapping(self.product, place, gpu))[0])
            return {name: all_gather_gemm.overlapped.with_(**{**values, **changes}) for name, changes in OVERLAPPED.items()}
        if self.m < 1024:
            return {}
        values = {**WIDE, "epi_m": 64, "epi_n": 64, "stages": 3, "group_m": 8}
        return {name: self._exchanged(values, **changes) for name, changes in EXCHANGED.items()}

    def _exchanged(self, values: Any, warps: int = 2, **changes: Any) -> Any:
        product, rows = (hopper.storing, 128) if "store_stages" in changes else (hopper.strategy, 64)
        steps = MatMul.to_gpus("k", sums=self.dtype).overlap(rows, values["bn"], warps=warps)
        return steps.then(product.with_(**{**values, **changes}))

    @property
    def slow_us(self) -> float:
        """A time that cuBLAS and NCCL do not exceed: 500 TFLOP/s, 200 GB/s and 20 us."""
        elements = self.m * (self.k if self.kind == "gather" else self.n)
        return 2 * self.m * self.n * self.k / 5e8 + 2 * elements / 2e5 + 20


@attrs.frozen
class Case:
    """A product, and the parts of its operands on this GPU."""

    problem: Problem
    a: Any
    b: Any

    @staticmethod
    def of(text: str, rank: int, gpus: int) -> Case:
        problem = Problem.of(text, gpus)
        generator = torch.Generator("cuda").manual_seed(rank)

        def numbers(*shape: int) -> Any:
            return torch.randint(-2, 3, shape, device="cuda", generator=generator).to(problem.torch_type)

        return Case(problem, *(numbers(*shape) for shape in problem.shapes))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.problem, name)

    def plain(self) -> Any:
        """The result of cuBLAS and NCCL."""
        if self.kind == "gather":
            whole = torch.empty(self.m, self.k, device="cuda", dtype=self.torch_type)
            distributed.all_gather_into_tensor(whole, self.a)
            return whole @ self.b
        product = self.a @ self.b
        if self.kind == "reduce":
            distributed.all_reduce(product)
            return product
        part = torch.empty(self.m // self.gpus, self.n, device="cuda", dtype=self.torch_type)
        distributed.reduce_scatter_tensor(part, product)
        return part

    def functions(self) -> dict[str, Callable[[], Any]]:
        """The contenders: functions without arguments. Those that are illegal are absent."""
        result: dict[str, Callable[[], Any]] = {"cuBLAS + NCCL": self.plain, **self.rivals()}
        result |= {"cuBLAS alone": self.alone, "product alone": self.own}
        for name, strategy in self.strategies(None, self.a.device.index).items():
            try:
                run = strategy(self.product.spec).compile().over(seconds=20)
            except FireironError as error:
                print(f"{self.text} {name}: {error.headline}", flush=True)
                continue
            part = run.array("A").copy_(self.a) if "A" in run.shared else self.a
            result[name] = functools.partial(run, part, self.b)
        function = getattr(fireiron.distributed, {"gather": "all_gather_matmul"}.get(self.kind, f"matmul_{KINDS[self.kind]}"))
        result["function"] = functools.partial(function, self.a, self.b)
        return result

    def alone(self) -> Any:
        """The product of this GPU without communication, by cuBLAS."""
        return (self.whole if self.kind == "gather" else self.a) @ self.b

    def own(self) -> Any:
        """The product of this GPU without communication, by this package."""
        return fireiron.matmul(self.whole if self.kind == "gather" else self.a, self.b)

    # ------------------------------------------------------------------------------------------ rivals on symmetric memory

    def rivals(self) -> dict[str, Callable[[], Any]]:
        """Functions on PyTorch's symmetric memory that support this case."""
        import torch.distributed._symmetric_memory as symmetric

        shape = self.a.shape if self.kind == "gather" else (self.m, self.n)
        own = symmetric.empty(shape, dtype=self.torch_type, device="cuda")
        handle = symmetric.rendezvous(own, distributed.group.WORLD)
        group, rank, peer = distributed.group.WORLD.group_name, handle.rank, 1 - handle.rank
        other = handle.get_buffer(peer, shape, self.torch_type)
        if self.kind == "gather":
            own.copy_(self.a)
            gathered = torch.empty(self.m, self.k, device="cuda", dtype=self.torch_type)
            parts = gathered.chunk(2)

            def copied() -> Any:
                handle.barrier(0)
                parts[peer].copy_(other)
                parts[rank].copy_(own)
                handle.barrier(0)
                return gathered @ self.b

            return {"cuBLAS + copy engine": copied}
        if self.kind == "scatter":

            def added() -> Any:
                torch.matmul(self.a, self.b, out=own)
                handle.barrier(0)
                return own.chunk(2)[rank] + other.chunk(2)[rank]

            return {"cuBLAS + peer reads": added}
        if self.torch_type != torch.bfloat16:
            return {}

        def one_shot() -> Any:
            return torch.ops.symm_mem.one_shot_all_reduce(torch.matmul(self.a, self.b, out=own), "sum", group)

        def two_shot() -> Any:
            return torch.ops.symm_mem.two_shot_all_reduce_(torch.matmul(self.a, self.b, out=own), "sum", group)

        return {"cuBLAS + one_shot": one_shot, "cuBLAS + two_shot": two_shot}

    def fused(self) -> Callable[[], Any] | None:
        """PyTorch's fused operator, if there is one for this case."""
        group = distributed.group.WORLD.group_name
        if self.kind == "gather":
            return lambda: torch.ops.symm_mem.fused_all_gather_matmul(self.a, [self.b], 0, group)[1][0]
        if self.kind == "scatter":
            return lambda: torch.ops.symm_mem.fused_matmul_reduce_scatter(self.a, self.b, "sum", 0, group)
        return None

    @functools.cached_property
    def whole(self) -> Any:
        """An array of the size of the gathered A."""
        return self.a.repeat(self.gpus, 1)


def graph_of(function: Callable[[], Any], calls: int = CALLS) -> Any:
    for _ in range(3):
        function()
    torch.cuda.synchronize()
    distributed.barrier()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(calls):
            function()
    return graph


def rotated(names: Iterable[str], turn: int) -> list[str]:
    """Return names in another order in each round: what follows idle SMs has higher clocks."""
    every = list(names)
    first = turn * (len(every) // TURNS + 1) % len(every)
    return every[first:] + every[:first]


def microseconds(graph: Any, calls: int = CALLS) -> float:
    torch.cuda.synchronize()
    distributed.barrier()
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    graph.replay()
    start.record()
    graph.replay()
    graph.replay()
    end.record()
    torch.cuda.synchronize()
    spent = torch.tensor([start.elapsed_time(end) / (2 * calls) * 1e3], device="cuda")
    distributed.all_reduce(spent, op=distributed.ReduceOp.MAX)
    return float(spent)


def called_microseconds(function: Callable[[], Any], calls: int = 20) -> float:
    """The time of a call without a graph."""
    for _ in range(3):
        function()
    torch.cuda.synchronize()
    distributed.barrier()
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    for _ in range(calls):
        function()
    end.record()
    torch.cuda.synchronize()
    spent = torch.tensor([start.elapsed_time(end) / calls * 1e3], device="cuda")
    distributed.all_reduce(spent, op=distributed.ReduceOp.MAX)
    return float(spent)


def measured(case: Case) -> dict[str, Any]:
    functions = case.functions()
    expected = case.plain().clone()
    row: dict[str, Any] = {"case": case.text, "largest differences": {}, "us": {}, "us of the host": {}}
    for name, function in functions.items():
        got = function()
        torch.cuda.synchronize()
        if not name.endswith("alone"):
            row["largest differences"][name] = float((got.float() - expected.float()).abs().max())
        started = time.perf_counter()
        for _ in range(10):
            function()
        row["us of the host"][name] = round((time.perf_counter() - started) / 10 * 1e6, 1)
    graphs = {name: graph_of(function) for name, function in functions.items()}
    times: dict[str, list[float]] = {name: [] for name in graphs}
    for turn in range(TURNS):
        for name in rotated(graphs, turn):
            times[name].append(microseconds(graphs[name]))
    row["us"] = {name: round(statistics.median(values), 1) for name, values in times.items()}
    return row


def compile_one(job: tuple[str, str]) -> str:
    text, name = job
    try:
        problem = Problem.of(text, 2)
        problem.strategies(ARCH)[name](problem.product.spec).compile(ARCH)
    except FireironError as error:
        return f"{text} {name}: {error.headline}"
    return ""


def compile_all(*cases: str) -> None:
    """Compile all variants with all cores."""
    jobs = [(text, name) for text in cases or CASES for name in Problem.of(text, 2).strategies(ARCH)]
    started = time.perf_counter()
    with concurrent.futures.ProcessPoolExecutor(min(os.cpu_count() or 1, 12)) as pool:
        refused = [text for text in pool.map(compile_one, jobs) if text]
    print(f"{len(jobs)} kernels compiled in {time.perf_counter() - started:.0f} s, {len(refused)} refused", *refused, sep="\n")


def main(folder: str, *cases: str) -> None:
    rank, gpus = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.cuda.set_device(rank)
    distributed.init_process_group("nccl", device_id=torch.device("cuda", rank))
    rows = []
    for text in cases or CASES:
        rows.append(measured(Case.of(text, rank, gpus)))
        torch.cuda.empty_cache()
        if rank == 0:
            wrong = {name: error for name, error in rows[-1]["largest differences"].items() if error}
            print(rows[-1]["case"], rows[-1]["us"], f"different: {wrong}" if wrong else "equal", flush=True)
        write(folder, rows, rank, gpus)
    for row, text in zip(rows, cases or CASES, strict=True):  # last, because an error ends the process
        fused = Case.of(text, rank, gpus).fused()
        if fused is not None:
            row["us"]["PyTorch fused, calls"] = round(called_microseconds(fused), 1)
            if rank == 0:
                print(text, "PyTorch fused", row["us"]["PyTorch fused, calls"], flush=True)
    write(folder, rows, rank, gpus)
    distributed.barrier()
    distributed.destroy_process_group()


def write(folder: str, rows: list[dict[str, Any]], rank: int, gpus: int) -> None:
    """Write all results until now."""
    if rank == 0:
        facts = {"date": str(date.today()), "gpu": f"{gpus} x {torch.cuda.get_device_name()}", "torch": torch.__version__}
        facts |= {"nccl": ".".join(map(str, torch.cuda.nccl.version())), "python": platform.python_version(), "command": " ".join(sys.argv)}
        Path(folder).mkdir(parents=True, exist_ok=True)
        Path(folder, "node.json").write_text(json.dumps({**facts, "rows": rows}, indent=1))


if __name__ == "__main__":
    compile_all(*sys.argv[2:]) if sys.argv[1:2] == ["compile"] else main(*sys.argv[1:])
