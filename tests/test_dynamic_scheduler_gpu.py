"""Dynamic tile scheduling on a GPU: consecutive launches, concurrent launches and CUDA graphs give equal bits."""

import pytest
from ringed import float16_gemm, product

from fireiron import *
from fireiron.gpu import launch
from fireiron.gpu.counters import counters
from fireiron.strategies import attention, hopper_attention

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not launch.gpu_available(), reason="needs a CUDA GPU and CuPy (pip install 'fireiron[cuda13]')"),
]


@pytest.fixture
def torch():
    module = pytest.importorskip("torch", reason="needs PyTorch")
    if not module.cuda.is_available() or not launch.device_arch().startswith("sm_90"):
        pytest.skip("needs PyTorch for CUDA, and Hopper")
    module.manual_seed(0)
    return module


@pytest.fixture
def calls(torch):
    """Two prepared launches of a causal kernel with their outputs, and what these are after a launch of each alone."""
    definition = attention.definition(causal=True, rescale_threshold=8)
    kernel = hopper_attention.by_rows(definition, q_in_registers=True, dynamic=True)(
        hopper_attention.spec(1024, 1024, 128, heads=16, batch=4, fused=definition)
    )
    kernel, launches = kernel.compile("sm_90a"), []
    for _ in range(2):
        q, out = (torch.randn(4, 1024, 16, 1, 128, device="cuda").half() for _ in range(2))
        k, v = (torch.randn(4, 1024, 16, 128, device="cuda").half() for _ in range(2))
        call = kernel.prepare(q, k, v, 128**-0.5, out=out)
        call()
        expected = torch.nn.functional.scaled_dot_product_attention(
            *(one.flatten(2, -2).transpose(1, 2) for one in (q, k, v)), is_causal=True
        )
        assert float((out[:, :, :, 0].transpose(1, 2).float() - expected.float()).norm() / expected.float().norm()) < 2e-3
        launches.append((call, out, out.clone()))
    return launches


def require_same(torch, calls):
    """Require equal outputs, and clear them for the next launch."""
    torch.cuda.synchronize()
    for _, out, expected in calls:
        assert torch.equal(out, expected)
        out.fill_(float("nan"))
    torch.cuda.synchronize()


def test_consecutive_and_concurrent_launches(torch, calls):
    require_same(torch, calls)
    streams = [torch.cuda.Stream() for _ in calls]
    for _ in range(20):
        for (call, *_), stream in zip(calls, streams, strict=True):
            call()
            call(stream=stream)
        require_same(torch, calls)


def test_concurrent_graphs_and_an_ordinary_launch(torch, calls):
    graphs, streams = [], [torch.cuda.Stream() for _ in calls]
    counters(torch.cuda.current_device())._free.clear()  # the next ones are allocated while a graph is captured
    for call, *_ in calls:
        graphs.append(torch.cuda.CUDAGraph())
        with torch.cuda.graph(graphs[-1]):
            call()
            call()
    require_same(torch, calls)
    for _ in range(20):
        for graph, stream in zip(graphs, streams, strict=True):
            with torch.cuda.stream(stream):
                graph.replay()
        calls[0][0]()
        require_same(torch, calls)


def test_a_gemm_of_run_time_sizes(torch):
    """Fewer tiles than blocks, and many more."""
    spec = float16_gemm(sym("M", multiple_of=8), sym("N", multiple_of=8), 256)
    kernel = product((128, 128, 64), (64, 128), blocks=132, dynamic=True)(spec).compile("sm_90a")
    for m, n in ((256, 128), (4096, 3992)):
        a, b = torch.randn(m, 256, device="cuda").half(), torch.randn(256, n, device="cuda").half()
        expected = (a.float() @ b.float()).half()
        for _ in range(3):
            assert float((kernel(a, b).float() - expected.float()).abs().max()) < 0.1
