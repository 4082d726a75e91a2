"""Kernels of a node in one process per GPU, compared with one GPU with NCCL: torchrun --nproc-per-node 2 tests/node_processes.py [KIND ...] [10]"""

import os
import sys

from test_node import KINDS, spec

from fireiron import *
from fireiron.strategies import hopper

SIZES = (256, 128, 256)
OVERLAPPED = {"overlapped": (KINDS["gathered"][0], KINDS["gathered"][1].overlap(128, 256))}
STORING = hopper.storing.with_(bm=128, bn=256, wm=64, wn=256, epi_m=64, epi_n=64, stages=3, store_stages=4)
CLUSTERS = {
    "overlapped in clusters": (KINDS["gathered"][0], KINDS["gathered"][1].overlap(128, 64)),
    "stored in clusters": (KINDS["scattered"][0], MatMul.to_gpus("k", sums=float16).overlap(128, 256)),
}
EXCHANGED = {
    "stored by a warp": (KINDS["scattered"][0], MatMul.to_gpus("k", sums=float16).overlap(128, 256)),
    "exchanged": (KINDS["scattered"][0], MatMul.to_gpus("k", sums=float16).overlap(128, 256)),
    "exchanged by all": (KINDS["reduced"][0], MatMul.to_gpus("k", sums=float16).overlap(128, 256)),
}
ONE_LAUNCH = {**OVERLAPPED, **EXCHANGED, **CLUSTERS}
ALL = {**KINDS, **ONE_LAUNCH}
RESTS = {
    "stored by a warp": STORING,
    "stored in clusters": STORING.with_(cluster_m=2),
    "overlapped in clusters": hopper.strategy.with_(bm=128, bn=128, bk=64, wm=64, wn=128, epi_m=64, epi_n=64, stages=3, cluster_m=2),
}
"""The strategies of products that are not the default."""

LAUNCHES = 10_000
"""Further launches of kernels that wait for other GPUs; a number as an argument replaces it, such as 10 with compute-sanitizer."""

PLAIN = {
    "stored by a warp": "scattered", "overlapped": "gathered", "exchanged": "scattered", "exchanged by all": "reduced",
    "overlapped in clusters": "gathered", "stored in clusters": "scattered",
}  # fmt: skip
"""Also those that only strategies with a producer allow."""


def part(name, order, whole, rank, gpus):
    """The part of an operand that a GPU stores."""
    axis = {"A": "mk", "B": "kn", "C": "mn"}[name].find(order.get(name, "-"))
    return whole if axis < 0 else whole.chunk(gpus, axis)[rank].contiguous()


def checked(kind, rank, gpus, calls=20, launches=0):
    """Whether all results of a kind are equal to the product on one GPU, with changing inputs and one GPU late, and after more launches."""
    import torch
    import torch.distributed as distributed

    order, steps = ALL[kind]
    problem = spec(PLAIN.get(kind, kind), gpus, SIZES, dtype=float16, c_dtype=float16)
    run = steps.then(RESTS.get(kind, hopper.strategy))(problem).compile("sm_90a").over(seconds=20)
    m, n, k = (size * gpus for size in SIZES)
    generator = torch.Generator("cuda").manual_seed(1)
    for call in range(calls):
        wholes = {
            name: torch.randint(-2, 3, shape, device="cuda", generator=generator).half() for name, shape in (("A", (m, k)), ("B", (k, n)))
        }
        given = []
        for name, whole in wholes.items():
            own = part(name, order, whole, rank, gpus)
            given.append(run.array(name).copy_(own) if name in run.shared else own)
        if rank == call % gpus:
            torch.cuda._sleep(200_000)
        got = run(*given)
        if not torch.equal(got, part("C", order, (wholes["A"].float() @ wholes["B"].float()).half(), rank, gpus)):
            return False
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        again = run(*given)
    for _ in range(50):
        graph.replay()
    torch.cuda.synchronize()
    equal = torch.equal(again, got)
    for call in range(launches):
        if call % 1000 == rank * 500:
            torch.cuda._sleep(2_000_000)
        run(*given, out=again)
    torch.cuda.synchronize()
    equal = equal and torch.equal(again, got)
    distributed.barrier()
    run.close()
    return equal


def main():
    import torch
    import torch.distributed as distributed

    rank, gpus = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.cuda.set_device(rank)
    distributed.init_process_group("nccl", device_id=torch.device("cuda", rank))
    launches = next((int(word) for word in sys.argv[1:] if word.isdigit()), LAUNCHES)
    for kind in [word for word in sys.argv[1:] if not word.isdigit()] or ALL:
        result = torch.tensor([float(checked(kind, rank, gpus, launches=launches if kind in ONE_LAUNCH else 0))], device="cuda")
        distributed.all_reduce(result, op=distributed.ReduceOp.MIN)
        if rank == 0:
            print(f"{kind}: {'equal' if result.item() else 'different'}", flush=True)
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
