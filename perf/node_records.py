"""Records of the strategies of a node for tensor-parallel shapes, compared with cuBLAS and NCCL.

    python perf/node_records.py compile [all_gather:4096x14336x4096 ...]     compiles contenders with all cores, for the cache of later runs
    RANK=0 WORLD_SIZE=2 ... python perf/node_records.py FOLDER SECONDS [all_gather:4096x14336x4096 ...]      in each process

Contenders are the best tiles of `hopper` by their expected time, in the strategies of `strategies/`. Each result is compared with that of
cuBLAS and NCCL first. Times as in `perf/node.py`. Shapes with a stored record are omitted, unless they are named. Writes `records.jsonl` and
`node_records.json` (all times) into the folder after each shape; shapes that remain at the time limit are reported. Store the records by
`fireiron records merge FOLDER/records.jsonl strategies/records/h200.jsonl -o strategies/records/h200.jsonl`.
"""

from __future__ import annotations

import concurrent.futures
import datetime
import functools
import itertools
import json
import os
import statistics
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

from fireiron import *
from fireiron._version import VERSION
from fireiron.cost.gpus import of_architecture
from fireiron.distributed_plan import NodeProduct, exchanging, overlapping
from fireiron.errors import FireironError
from fireiron.front.place import Place
from fireiron.strategies import all_gather_gemm, gemm_all_reduce, gemm_reduce_scatter
from fireiron.tune.record import Record, describe, strategy_hash
from fireiron.tune.records import tiles
from fireiron.tune.records.choosing import Question, any_program, prove_only

ARCH, GPUS = "sm_90a", 2
WIDE = ((3072, 4096), (14336, 4096), (5120, 8192), (28672, 8192))
"""Columns of a GPU and K, of layers that gather: queries, keys and values, and the first matrices of the MLP, of 8B and 70B models."""

NARROW = ((4096, 2048), (4096, 7168), (8192, 4096), (8192, 14336))
"""Columns and K of a GPU, of layers that add: the projection of attention, and the second matrix of the MLP."""

OTHERS = (
    *(("all_gather", tokens, 3584, 8192) for tokens in (1024, 2048, 4096, 8192, 16384)), ("all_gather", 2048, 4096, 4096),
    *(("all_gather", tokens, 14336, 8192) for tokens in (1024, 4096, 8192)),
    *(("reduce_scatter", tokens, 8192, 3584) for tokens in (1024, 4096, 8192)), ("reduce_scatter", 8192, 8192, 14336),
)  # fmt: skip
"""A 70B model on eight GPUs, computed on two; and the shape that other projects publish."""

SHAPES = (
    *OTHERS,
    *(("all_gather", tokens, *shape) for tokens in (1024, 4096, 16384, 256) for shape in WIDE),
    *(("reduce_scatter", tokens, *shape) for tokens in (1024, 4096, 16384, 256) for shape in NARROW),
    *(("all_reduce", tokens, *shape) for tokens in (16, 64, 1, 256) for shape in NARROW),
)
"""Exchange, tokens of all GPUs, N of a GPU (or complete), K of a GPU (or complete)."""

LIBRARY = {
    "all_gather_gemm": all_gather_gemm.strategy, "all_gather_gemm:overlapped": all_gather_gemm.overlapped,
    "gemm_reduce_scatter": gemm_reduce_scatter.strategy, "gemm_all_reduce": gemm_all_reduce.strategy,
    "gemm_all_reduce:few_rows": gemm_all_reduce.few_rows, "gemm_all_reduce:exchanged": gemm_all_reduce.exchanged,
    "gemm_all_reduce:few_rows_exchanged": gemm_all_reduce.few_rows_exchanged,
    "gemm_reduce_scatter:exchanged": gemm_reduce_scatter.exchanged, "gemm_reduce_scatter:storing": gemm_reduce_scatter.storing,
}  # fmt: skip
SEPARATE = {"all_gather": "all_gather_gemm", "reduce_scatter": "gemm_reduce_scatter", "all_reduce": "gemm_all_reduce"}


@attrs.frozen
class Contender:
    """A strategy of the library with values, for a shape."""

    shape: tuple[str, int, int, int]
    name: str
    values: Mapping[str, int]

    @property
    def problem(self) -> NodeProduct:
        return problem_of(self.shape)

    @property
    def strategy(self) -> Any:
        return LIBRARY[self.name].with_(**self.values)

    def compiled(self) -> Any:
        return self.strategy(self.problem.spec).compile(ARCH)


def shapes_of(names: Sequence[str]) -> list[tuple[str, int, int, int]]:
    """Return the shapes with these names, or those without a stored record."""
    place = Place.of(None, ARCH, False)
    if names:
        return [shape for shape in SHAPES if f"{shape[0]}:{shape[1]}x{shape[2]}x{shape[3]}" in names]
    return [shape for shape in SHAPES if place.find(problem_of(shape).spec, any_program, prove=prove_only) is None]


def problem_of(shape: tuple[str, int, int, int]) -> NodeProduct:
    kind, m, n, k = shape
    return NodeProduct.of(kind, (m // GPUS if kind == "all_gather" else m, k), (k, n), float16, gpus=GPUS)


def contenders(shape: tuple[str, int, int, int], most: int = 2) -> Iterator[Contender]:
    """Yield the contenders of a shape."""
    problem, place, gpu = problem_of(shape), Place.of(None, ARCH, False), of_architecture(ARCH)
    for values, _ in itertools.islice(overlapping(problem, place, gpu), most):
        one_wave = -(-shape[1] // values["bm"]) * -(-shape[2] // values["bn"]) <= gpu.multiprocessors
        in_clusters = {**values, "cluster_m": 2, "cluster_n": 1}
        fits = one_wave and shape[1] % (2 * GPUS * values["bm"]) == 0 and in_clusters != values
        for columns in (values["region_columns"],) if one_wave else {1024, values["region_columns"]}:
            yield Contender(shape, "all_gather_gemm:overlapped", {**values, "region_columns": columns})
        if fits:
            yield Contender(shape, "all_gather_gemm:overlapped", in_clusters)
    for name, values, _ in itertools.islice(exchanging(problem, place, gpu), most):
        few = "few_rows_exchanged" if name == "hopper_skinny" else "exchanged"
        yield Contender(shape, f"{SEPARATE[shape[0]]}:{few}", dict(values))
        rows = shape[1] // GPUS
        stored = gemm_reduce_scatter.storing_values_of(values, rows, shape[2]) if shape[0] == "reduce_scatter" else None
        if stored is not None:
            yield Contender(shape, "gemm_reduce_scatter:storing", stored)
    known = tiles.candidates(place.records.records, Question(problem.own(float16), place.architecture, "NVIDIA H200"))
    best = [tile for tile in known if tile.name == "hopper"][:1]
    for tile in best:
        yield Contender(shape, SEPARATE[shape[0]], dict(tile.values))
    skinny = next((tile for tile in known if tile.name == "hopper_skinny"), None)
    if skinny is not None and shape[0] == "all_reduce":
        yield Contender(shape, "gemm_all_reduce:few_rows", dict(skinny.values))


def compile_one(contender: Contender) -> str:
    try:
        contender.compiled()
    except FireironError as error:
        return f"{contender.shape} {contender.name}: {error.headline}"
    return ""


def compile_all(*names: str) -> None:
    """Compile the contenders with all cores."""
    jobs = [contender for shape in shapes_of(names) for contender in contenders(shape)]
    started = time.perf_counter()
    with concurrent.futures.ProcessPoolExecutor(min(os.cpu_count() or 1, 16)) as pool:
        refused = [text for text in pool.map(compile_one, jobs) if text]
    print(f"{len(jobs)} kernels compiled in {time.perf_counter() - started:.0f} s, {len(refused)} refused", *refused[:4], sep="\n")


# ---------------------------------------------------------------------------------------------- two processes


def measured(shape: tuple[str, int, int, int], rank: int) -> tuple[dict[str, float], dict[str, Any]]:
    """The microseconds of cuBLAS and NCCL and of each contender, and the runs of these."""
    import node
    import torch

    kind, m, n, k = shape
    short = {value: name for name, value in node.KINDS.items()}[kind]
    case = node.Case.of(f"{short}:{m}x{n}x{k}", rank, GPUS)
    expected = case.plain().clone()
    functions: dict[str, Any] = {"library": case.plain}
    runs: dict[str, Any] = {}
    for contender in contenders(shape):
        name = json.dumps([contender.name, contender.values])
        run = contender.compiled().over()
        part = run.array("A").copy_(case.a) if "A" in run.shared else case.a
        if torch.equal(run(part, case.b), expected):
            functions[name], runs[name] = functools.partial(run, part, case.b), (contender, run)
        else:
            print(f"different: {shape} {contender}", flush=True)
    calls = max(1, min(node.CALLS, int(4000 / case.slow_us)))
    graphs = {name: node.graph_of(function, calls) for name, function in functions.items()}
    times: dict[str, list[float]] = {name: [] for name in graphs}
    for turn in range(3):
        for name in node.rotated(graphs, turn):
            times[name].append(node.microseconds(graphs[name], calls))
    return {name: statistics.median(values) for name, values in times.items()}, runs


def record_of(contender: Contender, run: Any, us: float, library_us: float, count: int) -> Record:
    import torch
    from cupy.cuda.runtime import driverGetVersion

    resources = run._steps[-1].kernel.resources
    m, n, k = contender.problem.sizes
    return Record(
        strategy=contender.name, strategy_hash=strategy_hash(LIBRARY[contender.name]), values=contender.values,
        spec=describe(contender.problem.spec), architecture=ARCH, gpu=torch.cuda.get_device_name(), us=us, quartiles=(us, us), tflops=2.0 * m * n * k / us / 1e6, regime="busy",
        l2="hot", error=0.0, registers=resources.registers, shared_bytes=resources.shared_bytes, spills=resources.spill_stores,
        library_us=library_us, toolchain=f"NVRTC {torch.version.cuda}", driver=str(driverGetVersion()), fireiron=VERSION,
        date=datetime.date.today().isoformat(), source=f"{count} contenders of perf/node_records.py",
    )  # fmt: skip


def main(folder: str, seconds: str, *names: str) -> None:
    import torch
    import torch.distributed as distributed

    rank = int(os.environ["RANK"])
    torch.cuda.set_device(rank)
    distributed.init_process_group("nccl", device_id=torch.device("cuda", rank))
    started, rows, records = time.perf_counter(), [], []
    shapes = shapes_of(names)
    for number, shape in enumerate(shapes):
        spent = torch.tensor([time.perf_counter() - started], device="cuda")
        distributed.all_reduce(spent, op=distributed.ReduceOp.MAX)
        if float(spent) > float(seconds):
            if rank == 0:
                print(f"{len(shapes) - number} shapes remain", flush=True)
            break
        times, runs = measured(shape, rank)
        best = min(runs, key=lambda name: times[name], default=None)
        if rank == 0 and best is not None:
            contender, run = runs[best]
            records.append(record_of(contender, run, times[best], times["library"], len(runs)))
            rows.append({"shape": shape, "us": times})
            print(f"{shape} cuBLAS + NCCL {times['library']:.1f}", *(f"{json.loads(name)[0]} {json.loads(name)[1]['bm']}x{json.loads(name)[1]['bn']} {us:.1f}" for name, us in times.items() if name != "library"), flush=True)  # fmt: skip
            Path(folder).mkdir(parents=True, exist_ok=True)
            Path(folder, "records.jsonl").write_text("".join(record.line() + "\n" for record in records))
            Path(folder, "node_records.json").write_text(json.dumps(rows, indent=1))
        torch.cuda.synchronize()
        distributed.barrier()
        for _, run in runs.values():
            run.close()
        torch.cuda.empty_cache()
    distributed.barrier()
    distributed.destroy_process_group()


if __name__ == "__main__":
    compile_all(*sys.argv[2:]) if sys.argv[1:2] == ["compile"] else main(*sys.argv[1:])
