"""Run `fireiron.distributed` in several processes: torchrun --nproc-per-node 2 tests/distributed_processes.py [cpu] [CHECK ...]

On CPUs, the backend is gloo and calls are products of PyTorch and collectives: the checks are those of arguments, gradients, operators and
DTensors. On GPUs, the same checks run with kernels.
"""

import os
import sys
import warnings

SIZES = (256, 384, 320)
"""M, N and K of one GPU: whole numbers of tiles are not needed."""

WHOLE_TILES = (384, 256, 512)
"""Sizes that are multiples of the tiles and regions of a copy in the launch of the product."""

KINDS = {
    "all_gather": ("all_gather_matmul", {"a": 0, "b": 1, "c": 1}),
    "reduce_scatter": ("matmul_reduce_scatter", {"a": 1, "b": 0, "c": 0}),
    "all_reduce": ("matmul_all_reduce", {"a": 1, "b": 0}),
}
"""The functions, and the dimension along which each matrix is distributed."""


class Here:
    """This process: its rank, the number of processes, the device and the element type."""

    def __init__(self):
        import torch

        self.on_cpu = "cpu" in sys.argv
        self.rank, self.gpus = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self.device = torch.device("cpu") if self.on_cpu else torch.device("cuda", self.rank)
        self.dtype = torch.float32 if self.on_cpu else torch.float16
        self.seed = 0

    def numbers(self, *shape):
        """The same small integers in all processes."""
        import torch

        self.seed += 1
        numbers = torch.randint(-2, 3, shape, generator=torch.Generator().manual_seed(self.seed))
        return numbers.to(self.device, self.dtype)

    def part(self, whole, axis):
        return whole if axis is None else whole.chunk(self.gpus, axis)[self.rank].contiguous()

    def case(self, kind, sizes=SIZES):
        """Whole a, b and c, the axes, and the function."""
        import fireiron.distributed

        name, axes = KINDS[kind]
        m, n, k = (size * self.gpus for size in sizes)
        a, b = self.numbers(m, k), self.numbers(k, n)
        return a, b, (a.float() @ b.float()).to(self.dtype), axes, getattr(fireiron.distributed, name)

    def equal(self, got, whole, axis, what):
        import torch

        expected = self.part(whole, axis)
        assert got.shape == expected.shape, (what, got.shape, expected.shape)
        assert torch.equal(got, expected), (what, self.rank, (got.float() - expected.float()).abs().max().item())


def results(here):
    """Changing inputs, one GPU late, transposed storage, and sizes without large powers of two."""
    import torch

    for kind in KINDS:
        for sizes in (SIZES, (12, 20, 24)):
            for call in range(4):
                a, b, c, axes, function = here.case(kind, sizes)
                b_part = here.part(b, axes["b"])
                b_part = b_part.t().contiguous().t() if call % 2 else b_part
                if not here.on_cpu and here.rank == call % here.gpus:
                    torch.cuda._sleep(200_000)
                here.equal(function(here.part(a, axes["a"]), b_part), c, axes.get("c"), (kind, sizes, call))


def candidates(here):
    """Each candidate computes the same result."""
    import fireiron.distributed as fd

    for kind, names in {
        "all_gather": ("gathered", "overlapped", "direct", "library"),
        "reduce_scatter": ("sums", "rounded sums", "exchanged", "library"),
        "all_reduce": ("sums", "rounded sums", "exchanged", "library"),
    }.items():
        for name in () if here.on_cpu else names:
            fd.configure(use=name)
            a, b, c, axes, function = here.case(kind, WHOLE_TILES if name in ("overlapped", "exchanged") else SIZES)
            here.equal(function(here.part(a, axes["a"]), here.part(b, axes["b"])), c, axes.get("c"), (kind, name))
    fd.configure()


def gradients(here):
    """Gradients are those of the product of whole matrices, for which each GPU has a part of the gradient of the result."""
    import torch

    for kind in KINDS:
        a, b, _, axes, function = here.case(kind, (8, 16, 24))
        whole = [matrix.float().clone().requires_grad_() for matrix in (a, b)]
        grad = here.numbers(a.shape[0], b.shape[1])
        (whole[0] @ whole[1]).backward(grad.float())
        parts = [here.part(matrix, axes[name]).clone().requires_grad_() for matrix, name in ((a, "a"), (b, "b"))]
        function(*parts).backward(here.part(grad, axes.get("c")))
        for part, matrix, name in zip(parts, whole, "ab", strict=True):
            here.equal(part.grad, matrix.grad.to(here.dtype), axes[name], (kind, "d" + name))
        assert torch.is_grad_enabled()


def compiled(here):
    """`torch.compile` of a layer of two matmuls, without graph breaks."""
    import torch

    import fireiron.distributed as fd

    def layer(x, w, v):
        return fd.matmul_reduce_scatter(torch.relu(fd.all_gather_matmul(x, w)), v)

    m, n, k = (4 * here.gpus, 16 * here.gpus, 24)
    x, w, v = here.numbers(m, k), here.numbers(k, n), here.numbers(n, k)
    expected = torch.relu(x.float() @ w.float()) @ v.float()
    given = here.part(x, 0), here.part(w, 1), here.part(v, 0)
    plain = layer(*given)
    here.equal(plain, expected.to(here.dtype), 0, "eager")
    backend = "aot_eager" if here.on_cpu else "inductor"
    assert torch.equal(torch.compile(layer, fullgraph=True, backend=backend)(*given), plain)
    with_gradients = [one.clone().requires_grad_() for one in given]
    torch.compile(layer, fullgraph=True, backend=backend)(*with_gradients).sum().backward()
    eager = [one.clone().requires_grad_() for one in given]
    layer(*eager).sum().backward()
    for got, wanted in zip(with_gradients, eager, strict=True):
        assert torch.equal(got.grad, wanted.grad)


def dtensors(here):
    """Placements of results, and the sharding rule of `fireiron.matmul`."""
    import torch
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Partial, Replicate, Shard, distribute_tensor

    import fireiron
    from fireiron.distributed_operator import matmul, register_sharding_rule
    from fireiron.matmul_operator import register_operators

    mesh = init_device_mesh(here.device.type, (here.gpus,))
    a, b = here.numbers(8, 16), here.numbers(16, 24)
    expected = (a.float() @ b.float()).to(here.dtype)
    cases = [
        (Shard(0), Shard(1), None, Shard(1)),
        (Shard(1), Shard(0), None, Shard(0)),
        (Shard(1), Shard(0), Replicate(), Replicate()),
    ]
    for place_a, place_b, wanted, result in cases:
        got = matmul(distribute_tensor(a, mesh, [place_a]), distribute_tensor(b, mesh, [place_b]), wanted)
        assert got.placements == (result,), got.placements
        assert torch.equal(got.full_tensor(), expected)
    if here.on_cpu:
        register_operators()[0].register_kernel("cpu")(lambda a, b, *kinds: a @ b)
    register_sharding_rule()
    for place_a, place_b, result in (
        (Shard(0), Replicate(), Shard(0)),
        (Replicate(), Shard(1), Shard(1)),
        (Shard(1), Shard(0), Partial()),
        (Replicate(), Replicate(), Replicate()),
    ):
        got = fireiron.matmul(distribute_tensor(a, mesh, [place_a]), distribute_tensor(b, mesh, [place_b]))
        assert got.placements == (result,), got.placements
        assert torch.equal(got.full_tensor(), expected)


def refused(here):
    """Arguments that differ between processes, do not fit or cannot be distributed; the warning of the fallback."""
    import torch

    import fireiron.distributed as fd
    from fireiron.errors import ArgumentError

    def refuses(call, text):
        try:
            call()
        except ArgumentError as error:
            assert text in str(error), error
        else:
            raise AssertionError(text)

    a, b = here.numbers(8, 16), here.numbers(16, 8)
    refuses(lambda: fd.all_gather_matmul(a[: 4 + here.rank], b), "the arguments of the GPUs differ")
    refuses(lambda: fd.all_gather_matmul(a, a), "do not fit")
    refuses(lambda: fd.matmul_reduce_scatter(a[:7], b), "6 or 8")
    refuses(lambda: fd.all_gather_matmul(a, b.double()), "convert one of them")
    refuses(lambda: fd.all_gather_matmul(a[0], b), "must be matrices")
    refuses(lambda: fd.configure(fallback="maybe"), "refuse")
    fd.configure(fallback="refuse")
    refuses(lambda: fd.all_gather_matmul(a.double(), b.double()), "no kernel")
    fd.configure(fallback="warn")
    fd._warn_once.cache_clear()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            assert torch.equal(fd.all_gather_matmul(a.double()[:4], b.double())[:4], (a.double() @ b.double())[:4])
    assert len([one for one in caught if "collectives of torch.distributed" in str(one.message)]) == 1


def graphs(here):
    """Replays of a CUDA graph of both functions, with inputs that `empty` allocated and others, are equal to calls."""
    import torch
    import torch.distributed as distributed

    import fireiron.distributed as fd

    if here.on_cpu:
        return
    for kind in KINDS:
        a, b, _, axes, function = here.case(kind)
        a_part, b_part = here.part(a, axes["a"]), here.part(b, axes["b"])
        given = fd.empty(a_part.shape, here.dtype).copy_(a_part) if kind == "all_gather" else a_part
        function(given, b_part)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            again = function(given, b_part)
        for _ in range(20):
            new_a, new_b, c, *_ = here.case(kind)
            given.copy_(here.part(new_a, axes["a"]))
            b_part.copy_(here.part(new_b, axes["b"]))
            graph.replay()
            here.equal(again, c, axes.get("c"), (kind, "graph"))
        distributed.barrier()


def rows(here):
    """Calls with many numbers of rows share kernels, and each result is right; also after a larger number of rows."""
    import torch.distributed as distributed

    import fireiron.distributed as fd

    fd.MOST_SIZES = 1
    for kind in KINDS:
        for count in (128, 60, 64, 33, 50, 126, 64, 7, 1):
            a, b, c, axes, function = here.case(kind, (count, 256, 256))
            here.equal(function(here.part(a, axes["a"]), here.part(b, axes["b"])), c, axes.get("c"), (kind, count))
        distributed.barrier()
    if not here.on_cpu:
        plans = fd._shared_plans(fd.group_of(None))
        assert len(plans) <= 5 * len(KINDS), len(plans)
    fd.MOST_SIZES = 8


SETS, REPLAYS = 8, 1250
"""Different inputs of the calls of a graph, and replays: 10,000 calls of each candidate."""


def launches(here):
    """Thousands of launches in graphs, with inputs that change and one GPU late in each call, have no wrong element."""
    import torch
    import torch.distributed as distributed

    import fireiron.distributed as fd

    if here.on_cpu:
        return
    for kind, name in (
        ("all_gather", "gathered"), ("all_gather", "overlapped"), ("all_gather", "direct"), ("reduce_scatter", "rounded sums"),
        ("reduce_scatter", "exchanged"), ("all_reduce", "exchanged"), ("reduce_scatter", "sums"), ("all_reduce", "rounded sums"), ("all_reduce", "sums"), ("all_reduce", "library"),
    ):  # fmt: skip
        fd.configure(use=name)
        cases = [here.case(kind, WHOLE_TILES) for _ in range(SETS)]
        parts = [(here.part(a, axes["a"]), here.part(b, axes["b"]), here.part(c, axes.get("c"))) for a, b, c, axes, _ in cases]
        function, own_a, own_b = cases[0][-1], parts[0][0].clone(), parts[0][1].clone()
        function(own_a, own_b)
        wrong = torch.zeros((), dtype=torch.int64, device=here.device)
        torch.cuda.synchronize()
        distributed.barrier()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for number, (a, b, c) in enumerate(parts):
                own_a.copy_(a)
                own_b.copy_(b)
                if number % (here.gpus + 1) == here.rank:
                    torch.cuda._sleep(20_000 * number)
                wrong += (function(own_a, own_b) != c).sum()
        for _ in range(REPLAYS):
            graph.replay()
        fd.synchronize()
        assert wrong.item() == 0, (kind, name, here.rank, wrong.item())
        distributed.barrier()
    fd.configure()


def experts(here):
    """Rows reach the GPU of their expert and return, with changing routes, one GPU late, and graphs, as by collectives."""
    import torch
    import torch.distributed as distributed

    import fireiron.distributed as fd
    import fireiron.distributed_experts as fe

    tokens, width, choices, count = 96, 256, 2, 4 * here.gpus
    here.dtype = torch.float16
    index = torch.zeros(tokens, choices, dtype=torch.int64, device=here.device)
    x = torch.zeros(tokens, width, dtype=torch.float16, device=here.device)
    weights = torch.ones(tokens, choices, device=here.device)

    def change(call):
        generator = torch.Generator().manual_seed(1000 * call + here.rank)
        scores = torch.rand(tokens, count, generator=generator)
        index.copy_(scores.topk(choices).indices)
        x.copy_(torch.randint(-3, 4, (tokens, width), generator=generator))
        weights.copy_(torch.randint(1, 4, (tokens, choices), generator=generator))

    def layer():
        routes = fe.route(index, count, rows=16)
        rows = fe.dispatch(x, routes)
        return fe.combine(rows, weights, routes), rows, routes

    def check(got, what):
        out, rows, routes = got
        expected = fe._dispatched(fe._from_all(x, fd.group_of(None)).cpu(), type(routes)(*(one.cpu() for one in routes)))
        assert torch.equal(rows.cpu(), expected), (what, here.rank)
        assert torch.equal(out, (x.float() * weights.sum(1, keepdim=True)).half()), (what, here.rank)

    for call in range(6):
        change(call)
        if not here.on_cpu and here.rank == call % here.gpus:
            torch.cuda._sleep(200_000)
        check(layer(), call)
    if here.on_cpu:
        return
    routes = fe.route(index, count, rows=16)
    torch.cuda.synchronize()
    distributed.barrier()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        rows = fe.dispatch(x, routes)
        out = fe.combine(rows, weights, routes)
    for call in range(6, 30):
        change(call)
        for own, new in zip(routes, fe.route(index, count, rows=16), strict=True):
            own.copy_(new)
        graph.replay()
        check((out, rows, routes), call)
        distributed.barrier()


def absent(here):
    """A GPU that does not arrive: the other process reports the place within the time limit. Ends the processes."""
    import time

    import torch
    import torch.distributed as distributed

    import fireiron.distributed as fd
    from fireiron.errors import LaunchError

    fd.configure(seconds=1.5)
    a, b, c, axes, function = here.case("reduce_scatter")
    given = here.part(a, axes["a"]), here.part(b, axes["b"])
    here.equal(function(*given), c, axes["c"], "before")
    distributed.barrier()
    torch.cuda.synchronize()
    if here.rank:
        time.sleep(5 if "late" in sys.argv else 0)
        os._exit(0)
    started = time.perf_counter()
    function(*given)
    for what in (fd.synchronize, lambda: function(*given)):
        try:
            what()
        except LaunchError as error:
            assert "GPU 1 did not arrive within 1.5 s" in str(error), error
            print(f"absent: LaunchError after {time.perf_counter() - started:.2f} s: {error.headline}", flush=True)
        else:
            raise AssertionError("no error")
    os._exit(0)


CHECKS = {one.__name__: one for one in (results, candidates, gradients, compiled, dtensors, refused, graphs, experts, rows, launches)}


def main():
    import torch
    import torch.distributed as distributed

    here = Here()
    if here.on_cpu:
        torch.set_num_threads(1)
        distributed.init_process_group("gloo")
    else:
        torch.cuda.set_device(here.rank)
        distributed.init_process_group("nccl", device_id=here.device)
    for name in [one for one in sys.argv[1:] if one not in ("cpu", "late")] or CHECKS:
        {**CHECKS, "absent": absent}[name](here)
        distributed.barrier()
        if here.rank == 0:
            print(f"{name}: passed", flush=True)
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
