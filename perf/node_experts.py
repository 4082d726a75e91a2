"""Dispatch and combine of experts over the GPUs of a node, compared with NCCL: RANK=0 WORLD_SIZE=2 ... python perf/node_experts.py FOLDER

Each GPU has 4096 tokens of 4096 elements. `peer`: each token has one expert, on the next GPU, so all rows cross the link. `random`: two random
experts of 16 per token. Times are medians of CUDA graph replays with 8 calls, the slower GPU counts, variants alternate, L2 warm. They
include the barriers of all GPUs, but not the tables. The baseline is `all_to_all_single` with the known number of rows per GPU, without the
order of experts. GB/s are bytes that a GPU receives of others, divided by the time.
"""

from __future__ import annotations

import functools
import json
import os
import statistics
import sys
from pathlib import Path
from typing import Any

import node
import torch
import torch.distributed as distributed

import fireiron.distributed as fd
import fireiron.distributed_experts as fe
from fireiron.strategies import all_to_all

TOKENS, WIDTH, EXPERTS = 4096, 4096, 16
VALUES = ((8, 256), (8, 512), (4, 512), (4, 1024), (16, 256), (2, 1024))
"""Rows and columns of a block."""


def chosen_experts(case: str, rank: int, gpus: int) -> Any:
    generator = torch.Generator("cuda").manual_seed(rank)
    scores = torch.rand(TOKENS, EXPERTS, device="cuda", generator=generator)
    if case == "random":
        return scores.topk(2).indices
    own = EXPERTS // gpus
    return scores[:, :own].topk(1).indices + (rank + 1) % gpus * own


def with_values(form: str, sizes: tuple[int, ...], gpus: int, rows: int, columns: int) -> Any:
    bound = fe.bound(form, "float16", gpus, sizes)
    start = all_to_all.strategy if form == "dispatch" else all_to_all.combine
    return start.with_(rows=rows, columns=columns)(bound.spec).compile().over()


def case_of(case: str, rank: int, gpus: int) -> dict[str, float]:
    """The microseconds of all variants, and the bytes that cross the link."""
    index = chosen_experts(case, rank, gpus)
    routes = fe.route(index, EXPERTS)
    x = fd.empty((TOKENS, WIDTH), torch.float16).normal_()
    weights = torch.rand(index.shape, device="cuda")
    rows = fe.dispatch(x, routes)
    z = fd.empty(tuple(rows.shape), torch.float16).copy_(rows)
    functions: dict[str, Any] = {
        "dispatch": functools.partial(fe.dispatch, x, routes),
        "combine": functools.partial(fe.combine, z, weights, routes),
    }
    out = fe.combine(z, weights, routes)
    expected = x.float() * weights.sum(1, keepdim=True)
    assert (out.float() - expected).abs().max() < 0.05, "combine"
    tiles, tile_rows = routes.row.shape
    for height, columns in VALUES:
        run = with_values("dispatch", (TOKENS, WIDTH, tiles, tile_rows), gpus, height, columns)
        functions[f"dispatch {height}x{columns}"] = functools.partial(run, x[None], routes.gpu, routes.row, routes.filled)
        run = with_values("combine", (TOKENS, WIDTH, index.shape[1], tiles * tile_rows), gpus, height, columns)
        functions[f"combine {height}x{columns}"] = functools.partial(run, z.view(1, -1, WIDTH), routes.to_gpu, routes.to_place, weights)
    own = EXPERTS // gpus
    sent = torch.bincount((index // own).reshape(-1), minlength=gpus)
    received = torch.empty_like(sent)
    distributed.all_to_all_single(received, sent)
    buffers = (
        torch.empty(int(sent.sum()), WIDTH, device="cuda", dtype=torch.float16),
        torch.empty(int(received.sum()), WIDTH, device="cuda", dtype=torch.float16),
    )
    sizes = received.tolist(), sent.tolist()
    functions["NCCL all_to_all"] = lambda: distributed.all_to_all_single(buffers[1], buffers[0], *sizes)
    used = torch.arange(tile_rows, device="cuda")[None] < routes.filled[:, None]
    link = torch.tensor([float((used & (routes.gpu != rank)).sum()), float((routes.to_gpu != rank).sum())], device="cuda") * WIDTH * 2
    distributed.all_reduce(link, op=distributed.ReduceOp.MAX)
    graphs = {name: node.graph_of(function) for name, function in functions.items()}
    times: dict[str, list[float]] = {name: [] for name in graphs}
    for _ in range(node.TURNS):
        for name, graph in graphs.items():
            times[name].append(node.microseconds(graph))
    row = {name: round(statistics.median(values), 1) for name, values in times.items()}
    return {"MB of dispatch": float(link[0]) / 1e6, "MB of combine": float(link[1]) / 1e6, **row}


def main(folder: str) -> None:
    rank, gpus = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.cuda.set_device(rank)
    distributed.init_process_group("nccl", device_id=torch.device("cuda", rank))
    rows = {}
    for case in ("peer", "random"):
        rows[case] = case_of(case, rank, gpus)
        if rank == 0:
            link = rows[case]["MB of dispatch"]
            print(case, rows[case], f"dispatch {link / rows[case]['dispatch'] * 1e3:.0f} GB/s", flush=True)
    if rank == 0:
        Path(folder).mkdir(parents=True, exist_ok=True)
        Path(folder, "node_experts.json").write_text(json.dumps(rows, indent=1))
    distributed.barrier()
    distributed.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
