"""PyTorch's operators with PyTorch itself, without a GPU: tensors in host memory are accepted, and the simulator replaces the GPU."""

import io
import warnings

import numpy as np
import pytest

import fireiron
from fireiron import *
from fireiron import attention_operator, matmul_operator, operators, pytorch
from fireiron.language.library import find

torch = pytest.importorskip("torch", reason="needs PyTorch")


def on_arrays(name, run, *arguments):
    """An operator on the memory of its tensors, by the simulator; it remains registered, and unchanged on a GPU."""
    if any(isinstance(one, torch.Tensor) and one.is_cuda for one in arguments):
        return run(*arguments)

    def array(given):
        return given.detach().numpy() if isinstance(given, torch.Tensor) else [*map(array, given)] if isinstance(given, list) else given

    def tensor(given):
        return torch.from_numpy(np.array(given, order="C")) if isinstance(given, np.ndarray) else given

    result = run(*map(array, arguments))
    return type(result)(map(tensor, result)) if isinstance(result, list | tuple) else tensor(result)


@pytest.fixture
def simulated(monkeypatch):
    """Operators take tensors in host memory."""
    multiply = matmul_operator._multiply
    monkeypatch.setattr(operators, "on_host", on_arrays)
    monkeypatch.setattr(operators, "SERVED", ("cpu", "cuda", "meta"))
    monkeypatch.setattr(matmul_operator, "_multiply", lambda *given: on_arrays("matmul", multiply, *given))
    attend, gradients = attention_operator._attend, attention_operator._gradients_of
    monkeypatch.setattr(attention_operator, "_attend", lambda *given: on_arrays("attention", attend, *given))
    monkeypatch.setattr(attention_operator, "_gradients_of", lambda *given: on_arrays("attention_gradients", gradients, *given))
    pytorch.register()
    torch._dynamo.reset()
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def doubles(*shape, gradient=True):
    return torch.randn(shape, dtype=torch.float64, requires_grad=gradient)


SHAPES = [
    ((4, 5), (5, 6)), ((3, 4, 5), (5, 6)), ((4, 5), (3, 5, 6)), ((2, 1, 4, 5), (1, 3, 5, 6)), ((1, 4, 5), (3, 5, 6)), ((5,), (5,)), ((5,), (2, 5, 3)),
    ((2, 4, 5), (5,)),
]  # fmt: skip


@pytest.mark.sampled(3)
@pytest.mark.parametrize("shapes", SHAPES, ids=str)
def test_gradients(simulated, shapes):
    """As torch.matmul: vectors, batches, repeated dimensions."""
    a, b = (doubles(*shape) for shape in shapes)
    got, expected = matmul(a, b), a @ b
    torch.testing.assert_close(got, expected)
    grad = torch.randn_like(expected)
    for gradient, other in zip(torch.autograd.grad(got, (a, b), grad), torch.autograd.grad(expected, (a, b), grad), strict=True):
        torch.testing.assert_close(gradient, other)


@pytest.mark.parametrize("shapes", [SHAPES[0], SHAPES[1], SHAPES[3], SHAPES[7]], ids=str)
def test_second_derivatives(simulated, shapes):
    """All second derivatives are included: those of a, of b and of the incoming gradient."""

    def second(product, a, b, grad):
        gradients = torch.autograd.grad(product(a, b), (a, b), grad, create_graph=True)
        return torch.autograd.grad(sum(one.pow(3).sum() for one in gradients), (a, b, grad))

    a, b = (doubles(*shape) for shape in shapes)
    grad = torch.randn_like(a @ b).requires_grad_()
    for gradient, other in zip(second(matmul, a, b, grad), second(torch.matmul, a, b, grad), strict=True):
        torch.testing.assert_close(gradient, other)


def test_visibility_of_operators(simulated, monkeypatch):
    """An eager call and its gradients are invisible; a dispatch mode sees all three, and several gradients at once as one."""

    class Seen(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            names.append(str(function))
            return function(*args, **(kwargs or {}))

    names, ran = [], []
    monkeypatch.setattr(operators, "on_host", lambda *given: ran.append(given[0]) or on_arrays(*given))
    a, b, grads = doubles(4, 5), doubles(5, 6), torch.randn(3, 4, 6, dtype=torch.float64)
    torch.autograd.grad(matmul(a, b).sum(), (a, b))
    assert ran == []
    with Seen():
        torch.autograd.grad(matmul(a, b).sum(), (a, b))
    assert ran == ["matmul"] * 3 and names.count("fireiron.matmul.default") == 3
    batched_gradients = torch.autograd.grad(matmul(a, b), (a, b), grads, is_grads_batched=True)
    torch.testing.assert_close(batched_gradients, (grads @ b.T, a.T @ grads))


def test_checks_of_pytorch(simulated):
    a, b, out = doubles(2, 4, 5), doubles(5, 6), torch.empty(2, 4, 6, dtype=torch.float64)
    matmul(a, b).sum().backward()  # its gradient repeats one element
    torch.testing.assert_close(b.grad, a.detach().reshape(-1, 5).T @ torch.ones(8, 6, dtype=torch.float64))
    torch.library.opcheck(torch.ops.fireiron.matmul.default, (a, b, None, None))
    with torch.no_grad():
        torch.library.opcheck(torch.ops.fireiron.matmul_into.default, (a, b, out, None, None))
        given = (a.float(), b.float(), "relu(acc + s * bias[n])", [torch.randn(6)], [2.0], ["bias", "s"], [], None, None)
        torch.library.opcheck(torch.ops.fireiron.matmul_epilogue.default, given)


@pytest.mark.parametrize("dynamic", [False, True])
def test_compiled(simulated, dynamic):
    """One graph, no warning, for the GEMM, its gradient, a given output and an epilogue."""
    out = torch.empty(4, 6)

    def layer(a, b):
        return matmul(a.relu(), b).sin()

    def others(a, b, bias):
        matmul(a, b, out)
        return matmul(a, b, epilogue="relu(acc + bias[n])", bias=bias) + out

    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager", dynamic=dynamic)
    for rows in (4, 7):
        a, b = doubles(rows, 5), doubles(5, 6)
        torch.testing.assert_close(compiled(a, b), (a.relu() @ b).sin())
        for got, expected in zip(
            torch.autograd.grad(compiled(a, b).sum(), (a, b)), torch.autograd.grad(layer(a, b).sum(), (a, b)), strict=True
        ):
            torch.testing.assert_close(got, expected)
    a, b, bias = torch.randn(4, 5), torch.randn(5, 6), torch.randn(6)
    got = torch.compile(others, fullgraph=True, backend="aot_eager", dynamic=dynamic)(a, b, bias)
    torch.testing.assert_close(got, (a @ b + bias).relu() + a @ b)
    torch.testing.assert_close(out, a @ b)


def test_exported_and_mapped(simulated):
    class Product(torch.nn.Module):
        def forward(self, a, b):
            return matmul(a, b) * 2

    a, b = doubles(4, 5, gradient=False), doubles(5, 6, gradient=False)
    program = torch.export.export(Product(), (a, b), dynamic_shapes=({0: torch.export.Dim("rows")}, {}))
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    wide = doubles(9, 5, gradient=False)
    torch.testing.assert_close(torch.export.load(file).module()(wide, b), 2 * wide @ b)
    stack = doubles(3, 4, 5, gradient=False)
    torch.testing.assert_close(torch.vmap(matmul, (0, None))(stack, b), stack @ b)
    torch.testing.assert_close(torch.vmap(matmul, (None, 1))(a, doubles(5, 3, gradient=False) * 0 + 1), (a @ torch.ones(5, 3).double()).T)


def test_kernels(simulated):
    """A kernel with run-time sizes, and one that accumulates into its output."""
    rows = {"A": RowMajor, "B": RowMajor, "C": RowMajor}
    spec = MatMul(sym("M"), sym("N"), sym("K"), **rows)(GL, GL, GL)(Kernel)
    kernel = find("gemm_tt").strategy.with_(bm=64, bn=64)(spec).compile("sm_80")
    operator, filling = kernel.as_torch_op("fireiron_tests::gemm"), kernel.as_torch_op("fireiron_tests::fill", into=True)
    a, b, out = torch.randn(64, 48), torch.randn(48, 80), torch.empty(64, 80)
    torch.library.opcheck(operator, (a, b))
    torch.library.opcheck(filling, (a, b, out))
    graphs = []
    backend = lambda graph, given: graphs.append(graph) or graph
    compiled = torch.compile(lambda a, b: operator(a + 1, b).relu(), fullgraph=True, dynamic=True, backend=backend)
    for left in (a, a[:32]):
        torch.testing.assert_close(compiled(left, b), ((left + 1) @ b).relu())
    assert len(graphs) == 1, "sizes are symbols"
    with pytest.raises(Exception, match="A has elements of another type"):
        compiled(a.double(), b)
    with pytest.raises(Exception, match=r"op = kernel.as_torch_op\('mine::gemm'\)"):
        torch.compile(kernel, fullgraph=True)(a, b)
    with pytest.raises(ArgumentError, match="the name of an operator"):
        kernel.as_torch_op("gemm")
    adding = find("gemm_tt").strategy.with_(bm=64, bn=64)(spec.with_options(accumulate=True)).compile("sm_80")
    with pytest.raises(ArgumentError, match="the kernel adds to C"):
        adding.as_torch_op("fireiron_tests::adds")


def test_kernel_graphs_as_operators(simulated):
    """A graph is one operator, whose gradient another kernel computes."""
    from test_graph_calls import scaled

    graph, backward = scaled(sym("n"))
    call = graph.compile("sm_90")
    operator = call.as_torch_op("fireiron_tests::scaled", gradient=backward.compile("sm_90"))
    filling = call.as_torch_op("fireiron_tests::scaled_into", into=True)
    x, out = torch.randn(40, requires_grad=True), torch.empty(40)
    torch.library.opcheck(operator, (x, 0.5))
    torch.library.opcheck(filling, (x.detach(), 0.5, out))
    torch.testing.assert_close(operator(x, 0.5), x * x + 0.5 * x)
    operator(x, 0.5).sum().backward()
    torch.testing.assert_close(x.grad, 2 * x.detach() + 0.5)
    compiled = torch.compile(lambda x: operator(x + 1, 0.5).relu(), fullgraph=True, dynamic=True, backend="aot_eager")
    for given in (x, x.detach()[:30]):
        torch.testing.assert_close(compiled(given), ((given + 1) ** 2 + 0.5 * (given + 1)).relu())


def test_refusals(monkeypatch):
    """Tensors in host memory, eagerly, traced, and by the operator's name; unsupported gradients."""
    a, b, bias = torch.randn(4, 5), torch.randn(5, 6), torch.randn(6)
    pytorch.register()
    for call in (
        lambda: matmul(a, b),
        lambda: torch.ops.fireiron.matmul(a, b, None, None),
        lambda: fireiron.attention(*(torch.randn(4, 16).half(),) * 3),
        lambda: fireiron.function("softmax")(torch.randn(4, 64).half()),
        lambda: matmul(a.requires_grad_(), b),
    ):
        with pytest.raises(FireironError, match="not in GPU memory|in host memory"):
            call()
    with pytest.raises(Exception, match="in host memory"):
        torch.compile(matmul, fullgraph=True, backend="eager")(a, b)
    with pytest.raises(Exception, match="a call with an epilogue has no gradient"):
        torch.compile(lambda a, b: matmul(a, b, epilogue="acc + 1"), fullgraph=True, backend="eager")(a, b)
    with pytest.raises(ArgumentError, match="a call with an epilogue has no gradient"):
        matmul(a.requires_grad_(), b, epilogue="acc + bias[n]", bias=bias)
    with pytest.raises(ArgumentError, match="out= is not supported in a call that PyTorch traces or differentiates"):
        matmul(a.requires_grad_(), b, torch.empty(4, 6))
    with pytest.raises(ArgumentError, match="arch= is not supported in a call"):
        matmul(a.requires_grad_(), b, arch="sm_80")


def attended(q, k, v, **options):
    """Attention by PyTorch, in float64, and its log-sum-exp."""
    q, k, v = (one.double() for one in (q, k, v))
    scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
    scores = scores.masked_fill(~torch.ones(scores.shape[-2:]).tril().bool(), -torch.inf) if options.get("causal") else scores
    return scores.softmax(-1) @ v, scores.logsumexp(-1)


@pytest.mark.parametrize("form", ["eager", "compiled", "log-sum-exp", "mode"])
def test_gradients_of_attention(simulated, form):
    """The autograd function, the operators that torch.compile and a dispatch mode see, and the gradient of the log-sum-exp."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Mode(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            return function(*args, **(kwargs or {}))

    arrays = [torch.randn(1, 2, length, 64).half().requires_grad_() for length in (20, 20, 20)]
    wide = [one.detach().double().requires_grad_() for one in arrays]
    grad, of_sums = torch.randn(1, 2, 20, 64), torch.randn(1, 2, 20)

    def loss(q, k, v):
        if form == "log-sum-exp":
            o, lse = fireiron.attention(q, k, v, causal=True, lse=True)
            return (o.float() * grad).sum() + (lse * of_sums).sum()
        return (fireiron.attention(q, k, v, causal=True).float() * grad).sum()

    if form == "mode":
        with Mode():
            got = torch.autograd.grad(loss(*arrays), arrays)
    else:
        run = torch.compile(loss, fullgraph=True, backend="aot_eager") if form == "compiled" else loss
        got = torch.autograd.grad(run(*arrays), arrays)
    o, lse = attended(*wide, causal=True)
    right = torch.autograd.grad((o * grad).sum() + (lse * of_sums).sum() * (form == "log-sum-exp"), wide)
    for gradient, other in zip(got, right, strict=True):
        assert gradient.dtype == torch.half and float((gradient.double() - other).norm() / other.norm()) < 2e-3


def test_second_derivatives_of_attention_are_refused(simulated):
    q = torch.randn(4, 64).half().requires_grad_()
    with pytest.raises(Exception, match="its gradients have no gradient"):
        torch.autograd.grad(fireiron.attention(q, q, q).float().pow(2).sum(), q, create_graph=True)
