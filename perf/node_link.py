"""The link between two GPUs: GB/s from or to the other GPU while both do the same. torchrun --nproc-per-node 2 perf/node_link.py FOLDER

Medians of 7 repetitions of 10 copies of 64 MB, the slower GPU counts. `read` loads vectors of 16 bytes of the other GPU's memory, `store`
stores them there, by all SMs; `copy engine` is a copy of PyTorch.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cupy
import torch
import torch.distributed as distributed
import torch.distributed._symmetric_memory as symmetric

BYTES, CALLS, TURNS = 1 << 26, 10, 7

SOURCE = r"""
extern "C" __global__ void copy(const uint4* __restrict__ source, uint4* __restrict__ target, int count) {
  const int step = gridDim.x * blockDim.x;
  for (int first = blockIdx.x * blockDim.x + threadIdx.x; first < count; first += 8 * step) {
    uint4 held[8];
    #pragma unroll
    for (int k = 0; k < 8; ++k) if (first + k * step < count) held[k] = source[first + k * step];
    #pragma unroll
    for (int k = 0; k < 8; ++k) if (first + k * step < count) target[first + k * step] = held[k];
  }
}
"""


def gigabytes_per_second(function: Callable[[], Any]) -> float:
    """The bytes of a copy, divided by its time on the slower GPU."""
    times = []
    for _ in range(TURNS):
        torch.cuda.synchronize()
        distributed.barrier()
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        function()
        start.record()
        for _ in range(CALLS):
            function()
        end.record()
        torch.cuda.synchronize()
        spent = torch.tensor([start.elapsed_time(end) / CALLS], device="cuda")
        distributed.all_reduce(spent, op=distributed.ReduceOp.MAX)
        times.append(float(spent))
    return round(BYTES / statistics.median(times) / 1e6, 1)


def main(folder: str) -> None:
    rank = int(os.environ["RANK"])
    torch.cuda.set_device(rank)
    distributed.init_process_group("nccl", device_id=torch.device("cuda", rank))
    shared = symmetric.empty(BYTES // 4, dtype=torch.int32, device="cuda")
    handle = symmetric.rendezvous(shared, distributed.group.WORLD)
    own = torch.zeros(BYTES // 4, dtype=torch.int32, device="cuda")
    other = handle.get_buffer(1 - rank, shared.shape, torch.int32)
    kernel = cupy.RawKernel(SOURCE, "copy")
    remote, local = handle.buffer_ptrs[1 - rank], own.data_ptr()

    def copied(source: int, target: int) -> Callable[[], Any]:
        stream = cupy.cuda.ExternalStream(torch.cuda.current_stream().cuda_stream)

        def call() -> None:
            with stream:
                kernel((264,), (512,), (source, target, cupy.int32(BYTES // 16)))

        return call

    ways = {"read": copied(remote, local), "store": copied(local, remote), "copy engine": lambda: other.copy_(own)}
    rows = {name: gigabytes_per_second(function) for name, function in ways.items()}
    if rank == 0:
        print("GB/s of the link, both directions at once:", rows, flush=True)
        Path(folder).mkdir(parents=True, exist_ok=True)
        Path(folder, "node_link.json").write_text(json.dumps(rows, indent=1))
    distributed.barrier()
    distributed.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
