"""PyTorch's operators on a GPU: gradients of `matmul`, one graph of torch.compile, CUDA graphs, user-defined kernels, autocast."""

import warnings

import pytest

from fireiron import *
from fireiron import operators, pytorch
from fireiron.gpu import launch
from fireiron.language.library import find

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not launch.gpu_available(), reason="needs a CUDA GPU and CuPy (pip install 'fireiron[cuda13]')"),
]


@pytest.fixture
def torch(monkeypatch):
    monkeypatch.delenv("FIREIRON_RECORDS", raising=False)
    monkeypatch.delenv("FIREIRON_REQUIRE_RECORD", raising=False)
    torch_module = pytest.importorskip("torch", reason="needs PyTorch")
    if not torch_module.cuda.is_available():
        pytest.skip("needs PyTorch for CUDA")
    torch_module.manual_seed(0)
    torch_module._dynamo.reset()
    return torch_module


def values(torch, *shape, dtype="float16", gradient=True):
    scale = shape[-2] ** -0.5 if len(shape) > 1 else 1
    return (torch.randn(shape, device="cuda") * scale).to(getattr(torch, dtype)).requires_grad_(gradient)


def close(torch, got, expected):
    """Within one rounding of the result, for sums of some hundred terms."""
    assert got.shape == expected.shape and bool(torch.isfinite(got).all())
    tolerance = {torch.float16: 2e-3, torch.bfloat16: 1e-2}.get(got.dtype, 1e-5)
    right = expected.detach().double()
    assert float((got.detach().double() - right).norm() / right.norm()) < tolerance


SHAPES = [
    ((256, 192), (192, 320)), ((33, 65), (65, 17)), ((4, 64, 96), (96, 128)), ((64, 96), (3, 96, 72)), ((2, 1, 64, 48), (3, 48, 80)), ((128,), (128, 96)),
    ((4, 64, 96), (96,)),
]  # fmt: skip


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("shapes", SHAPES, ids=str)
def test_gradients(torch, shapes, dtype):
    a, b = (values(torch, *shape, dtype=dtype) for shape in shapes)
    wide = [one.detach().double().requires_grad_() for one in (a, b)]
    got, expected = matmul(a, b), torch.matmul(*wide)
    close(torch, got, expected)
    grad = torch.randn_like(expected)
    for gradient, other in zip(
        torch.autograd.grad(got, (a, b), grad.to(got.dtype)), torch.autograd.grad(expected, wide, grad), strict=True
    ):
        close(torch, gradient, other)


def test_checks_of_pytorch(torch):
    a, b = values(torch, 64, 96), values(torch, 96, 128)
    pytorch.register()
    torch.library.opcheck(torch.ops.fireiron.matmul.default, (a, b, None, None))
    matmul(a, b).sum().backward()
    close(torch, a.grad, b.detach().double().sum(1).expand(64, 96))
    c = matmul(a, b, c_dtype="float32")
    assert c.dtype == torch.float32
    bias = values(torch, 128, dtype="float32", gradient=False)
    given = (a.detach(), b.detach(), "relu(acc + bias[n])", [bias], [], ["bias"], [], None, None)
    torch.library.opcheck(torch.ops.fireiron.matmul_epilogue.default, given)
    with pytest.raises(ArgumentError, match="in host memory"):
        matmul(a.detach().cpu(), b.detach().cpu())
    with pytest.raises(ArgumentError, match="no gradient"):
        matmul(a, b, epilogue="relu(acc + bias[n])", bias=bias)


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compiled(torch, backend):
    """One graph, forward and backward, with no warning except the compiler's own."""

    def layer(a, b, bias):
        return (matmul(a.relu(), b) + bias).sin()

    compiled = torch.compile(layer, fullgraph=True, backend=backend)
    for rows in (128, 72):
        a, b, bias = values(torch, rows, 256), values(torch, 256, 192), values(torch, 192)
        with warnings.catch_warnings():
            if backend == "aot_eager":
                warnings.simplefilter("error")
            result = compiled(a, b, bias)
            gradients = torch.autograd.grad(result.float().sum(), (a, b, bias))
        expected = layer(a, b, bias)
        close(torch, result, expected)
        for got, other in zip(gradients, torch.autograd.grad(expected.float().sum(), (a, b, bias)), strict=True):
            close(torch, got, other)


def test_captured_forward_and_backward(torch):
    """A CUDA graph of a GEMM and its gradients uses the current memory contents on replay."""
    a, b, grad = values(torch, 128, 256), values(torch, 256, 192), values(torch, 128, 192, gradient=False)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        torch.autograd.grad(matmul(a, b), (a, b), grad)  # compiled and loaded
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = matmul(a, b)
        gradients = torch.autograd.grad(result, (a, b), grad)
    with torch.no_grad():
        for tensor in (a, b, grad):
            tensor.normal_()
    graph.replay()
    torch.cuda.synchronize()
    wide = [one.detach().double() for one in (a, b, grad)]
    close(torch, result, wide[0] @ wide[1])
    close(torch, gradients[0], wide[2] @ wide[1].T)
    close(torch, gradients[1], wide[0].T @ wide[2])


def test_kernel(torch):
    """A user-defined kernel, of the target's fastest family, as an operator that is traced, exported and captured."""
    a, b = values(torch, 256, 128, gradient=False), values(torch, 128, 256, gradient=False)
    rows = {"A": RowMajor, "B": RowMajor, "C": RowMajor}
    kernel = best_strategy(MatMul(256, 256, 128, dtype=float16, **rows)(GL, GL, GL)(Kernel), default=True).compile()
    operator = kernel.as_torch_op("fireiron_tests::mine")
    torch.library.opcheck(operator, (a, b))
    compiled = torch.compile(lambda a, b: operator(a, b).relu(), fullgraph=True, backend="aot_eager")
    close(torch, compiled(a, b), (a.double() @ b.double()).relu())
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = operator(a, b)
    a.normal_()
    graph.replay()
    close(torch, out, a.double() @ b.double())
    free = find("gemm_tt").strategy.with_(bm=64, bn=64)(MatMul(sym("M"), sym("N"), sym("K"), **rows)(GL, GL, GL)(Kernel)).compile()
    wide = free.as_torch_op("fireiron_tests::free", into=True)
    left, right, out = torch.randn(96, 64, device="cuda"), torch.randn(64, 128, device="cuda"), torch.empty(96, 128, device="cuda")
    wide(left, right, out)
    close(torch, out, left.double() @ right.double())


def test_autocast_export_and_map(torch):
    a, b = values(torch, 128, 96, dtype="float32"), values(torch, 96, 64, dtype="float32")
    for kind in (torch.float16, torch.bfloat16):
        with torch.autocast("cuda", kind):
            result = matmul(a, b)
            assert result.dtype == kind == torch.matmul(a, b).dtype
            close(torch, result, a.double() @ b.double())
            result.float().sum().backward()
    assert a.grad.dtype == torch.float32

    class Product(torch.nn.Module):
        def forward(self, a, b):
            return matmul(a, b) * 2

    half = [one.detach().half() for one in (a, b)]
    program = torch.export.export(Product(), tuple(half), dynamic_shapes=({0: torch.export.Dim("rows")}, {}))
    close(torch, program.module()(half[0][:40], half[1]), 2 * half[0][:40].double() @ half[1].double())
    stack = values(torch, 3, 64, 96, gradient=False)
    close(torch, torch.vmap(matmul, (0, None))(stack, half[1]), stack.double() @ half[1].double())
    assert operators.traced(half[0]) is False
