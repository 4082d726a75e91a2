"""Kernel graphs on a GPU: prepared and captured calls, dependent launches, operators with gradients, and random graphs."""

import graph_examples
import graph_generator
import pytest
import test_graph_calls
from test_formulas_gpu import tensor

from fireiron import *
from fireiron.gpu import launch
from fireiron.measure import graph_runs

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not launch.gpu_available(), reason="needs a CUDA GPU and CuPy (pip install 'fireiron[cuda13]')"),
]


@pytest.mark.parametrize("dependent", [False, True])
def test_a_prepared_kernel_graph_in_a_cuda_graph(dependent):
    """Workspaces stay, so a captured call computes on the arrays of the capture; the second kernel starts before the first one ends."""
    torch = pytest.importorskip("torch")
    if dependent and not (launch.visible_arch() or "").startswith("sm_90"):
        pytest.skip("needs programmatic dependent launch")
    graph = graph_examples.layer_norm(130, 70, dependent=dependent)
    x, gain = torch.randn(130, 70, device="cuda"), torch.randn(70, device="cuda")
    prepared = graph.compile().prepare(x, gain)
    expected = torch.nn.functional.layer_norm(x, (70,), gain, eps=1e-5)
    torch.testing.assert_close(prepared(), expected, rtol=1e-3, atol=1e-3)
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        result = prepared()
    for seed in range(3):
        x.copy_(torch.randn(130, 70, generator=torch.Generator("cuda").manual_seed(seed), device="cuda"))
        result.zero_()
        captured.replay()
        torch.testing.assert_close(result, torch.nn.functional.layer_norm(x, (70,), gain, eps=1e-5), rtol=1e-3, atol=1e-3)
    other = torch.randn(130, 70, device="cuda")
    torch.testing.assert_close(prepared(other, gain), torch.nn.functional.layer_norm(other, (70,), gain, eps=1e-5), rtol=1e-3, atol=1e-3)


def test_a_kernel_graph_is_an_operator_with_a_gradient():
    torch = pytest.importorskip("torch")
    graph, backward = test_graph_calls.scaled(sym("n"))
    operator = graph.compile().as_torch_op("fireiron_gpu_tests::scaled", gradient=backward.compile())
    x = torch.randn(1000, device="cuda", requires_grad=True)
    torch.library.opcheck(operator, (x, 0.5))
    compiled = torch.compile(lambda x: operator(x, 0.5).sin(), fullgraph=True)
    compiled(x).sum().backward()
    torch.testing.assert_close(x.grad, (2 * x + 0.5) * torch.cos(x * x + 0.5 * x), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("seed", range(4))
def test_drawn_kernel_graphs(seed):
    """All arrays of random graphs, each kernel judged by the arrays that it read."""
    drawn = graph_generator.draw(seed)
    whole = graph_runs.with_all_results(drawn.graph)
    sizes = graph_runs.graph_sizes(whole, drawn.sizes)
    arrays = graph_runs.graph_inputs(whole, sizes, seed)
    call = whole.compile()

    def on_the_gpu(*given):
        results = call(*map(tensor, given))
        results = results if isinstance(results, tuple) else (results,)
        return tuple(result.cpu().numpy() for result in results) if len(results) > 1 else results[0].cpu().numpy()

    assert graph_runs.graph_wrong(call.program, sizes, arrays, on_the_gpu)[0] is None
