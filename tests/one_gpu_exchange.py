"""Two launches on one GPU exchange sums as if they ran on two GPUs: python tests/one_gpu_exchange.py

Both have half of the SMs, so that all blocks are resident, and memory at the distance that their kernel expects. This checks the printed
text, counts and numbers of launches on a GPU, with changing inputs, one launch late, graph replays, and many launches. It measures nothing,
and proves nothing about NVLink.
"""

import sys
import time

from test_node import KINDS

from fireiron import *
from fireiron.gpu.node import _steps
from fireiron.ir.semaphore import HEADER_WORDS, MOST_SEMAPHORES, SEMAPHORE_BYTES


def product(store, stages, **threads):
    """A persistent product on half of the SMs, with tiles of 128 x 256 elements, which are stored in parts of `store` columns."""
    stored = Move.tile(64, 256).to(Warpgroup).tile(64, store).unroll().load("src", SH, Move.done()).cast_on_copy().done()
    blocks = MatMul.tile(128, 256).to(Block).rasterize(group_m=4).persistent(66).epilog(RF, float32, Init.done(), stored)
    loop = blocks.split(64).pipeline(stages).warp_specialize(**threads).load(A, SH, Move.done()).load(B, SH, Move.done())
    return loop.tile(64, 256).to(Warpgroup).done()


VARIANTS = {
    "one warp": (1, product(256, 3)),
    "two warps": (2, product(64, 4)),
    "warps of the producer": (2, product(256, 3, producer_threads=128)),
}


class Pair:
    """A kernel on two streams of one GPU, each with the number of a GPU."""

    def __init__(self, m, n, k, warps, rest):
        import torch

        over = {name: RowMajor.over(GPU, dim) for name, dim in KINDS["scattered"][0].items()}
        problem = MatMul(m, n, 2 * k, dtype=float16, c_dtype=float16, **over)(GL, GL, GL)(Node(2))
        steps = MatMul.to_gpus("k", sums=float16).overlap(128, 256, warps=warps)
        bound = steps.then(rest)(problem)
        self.runs = [_steps(bound.compile("sm_90a"))[0].kernel for _ in range(2)]
        exchange = self.runs[0].ir.workspace.exchange
        self.memory = torch.zeros(2 * exchange.distance, dtype=torch.uint8, device="cuda")
        self.report = torch.zeros(1, dtype=torch.int32).pin_memory()
        header = torch.tensor([5_000_000_000, self.report.data_ptr()], dtype=torch.int64, device="cuda").view(torch.uint8)
        for rank in range(2):  # a wait of 5 s is an error
            start = rank * exchange.distance + SEMAPHORE_BYTES * (MOST_SEMAPHORES - HEADER_WORDS)
            self.memory[start : start + len(header)] = header
        for rank, run in enumerate(self.runs):
            run.exchange_by(self.memory.data_ptr(), {exchange.rank.name: rank})
        # The driver loads a kernel only when the device is idle, so load all of them before one waits for another.
        for run in self.runs:
            _ = run.launcher
        torch.cuda._sleep(1000)
        self.streams = [torch.cuda.Stream() for _ in range(2)]
        self.out = [torch.empty(m // 2, n, dtype=torch.float16, device="cuda") for _ in range(2)]
        torch.cuda.synchronize()

    def __call__(self, given, late=None):
        import torch

        for rank in (0, 1) if late != 0 else (1, 0):
            with torch.cuda.stream(self.streams[rank]):
                if late == rank:
                    torch.cuda._sleep(300_000)
                self.runs[rank](*given[rank], out=self.out[rank])

    def result(self):
        import torch

        torch.cuda.synchronize()
        return torch.cat(self.out)


def inputs(m, n, k, seed):
    import torch

    generator = torch.Generator("cuda").manual_seed(seed)
    parts = [[torch.randn(shape, device="cuda", generator=generator).half() for shape in ((m, k), (k, n))] for _ in range(2)]
    return [[part.contiguous() for part in own] for own in parts]


def checked(m, n, k, warps, rest, launches):
    """The number of results that differ from the sums in order, or from each other."""
    import torch

    pair, wrong = Pair(m, n, k, warps, rest), 0
    plain = MatMul(m, n, k, dtype=float16, c_dtype=float16, A=RowMajor, B=RowMajor, C=RowMajor)(GL, GL, GL)(Kernel)
    alone = rest(plain).compile("sm_90a")
    for call in range(12):
        given = inputs(m, n, k, call)
        torch.cuda.synchronize()
        pair(given, late=(None, 0, 1)[call % 3])
        got = pair.result()
        sums = [alone(*own).float() for own in given]
        wrong += not torch.equal(got, (sums[0] + sums[1]).half())
    graphs = []
    for rank in (0, 1):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=pair.streams[rank]):
            for _ in range(4):
                pair.runs[rank](*given[rank], out=pair.out[rank])
        graphs.append(graph)
    for _ in range(25):
        for rank in (1, 0):
            with torch.cuda.stream(pair.streams[rank]):
                graphs[rank].replay()
    wrong += not torch.equal(pair.result(), got)
    for call in range(launches):
        pair(given, late=call // 100 % 2 if call % 100 == 0 else None)
        if call % 100 == 99:
            wrong += not torch.equal(pair.result(), got)
    return wrong


CASES = (
    ((4096, 4096, 1024), "two warps"), ((1024, 2048, 512), "one warp"), ((1024, 2048, 512), "warps of the producer"),
    ((256, 256, 128), "two warps"), ((4096, 4096, 1024), "warps of the producer"), ((1024, 2048, 512), "two warps"),
)  # fmt: skip


def main():
    for shape, name in CASES:
        started, (warps, rest) = time.perf_counter(), VARIANTS[name]
        wrong = checked(*shape, warps, rest, 2000)
        print(f"{shape} {name}: {wrong} wrong, {time.perf_counter() - started:.1f} s", flush=True)


if __name__ == "__main__":
    sys.exit(main())
