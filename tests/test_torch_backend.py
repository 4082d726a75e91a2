"""The backend of `torch.compile`: which operations it takes, that results and gradients are right, and what it reports."""

import operator
from types import SimpleNamespace

import numpy
import pytest

import fireiron

torch = pytest.importorskip("torch", reason="needs PyTorch")
functional = torch.nn.functional

import fireiron.torch_backend as torch_backend  # noqa: E402
from fireiron.errors import ArgumentError  # noqa: E402
from fireiron.torch_backend import attention  # noqa: E402
from fireiron.torch_backend.dims import CannotStateError, Dims  # noqa: E402
from fireiron.torch_backend.operations import divided, expm1, softplus  # noqa: E402
from fireiron.torch_backend.regions import Regions  # noqa: E402
from fireiron.torch_backend.rewriting import Rewriting, in_order  # noqa: E402
from fireiron.values.machine import as_architecture  # noqa: E402

FakeTensorMode = pytest.importorskip("torch._subclasses.fake_tensor", reason="needs PyTorch").FakeTensorMode

torch_backend.register()


@pytest.fixture(autouse=True)
def uncached():
    """No graphs of other processes, for which there is no report."""
    from torch._inductor import config

    with config.patch(force_disable_caches=True):
        yield


def half(*shape):
    """A random tensor, the same in each run."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape))).half()


def rewritten(module, inputs, **more):
    """A graph of ATen with derived kernels, interpreted without Inductor's code."""
    torch_backend.reports.add(torch_backend.reported(module, torch_backend.Options(simulate=True, candidates=2), "inference"))

    def run(arguments):
        return module(*arguments)

    run._boxed_call = True
    return run


def interpreted(module, inputs):
    """A backend that interprets the rewritten graph."""
    from torch._inductor.compile_fx import compile_fx

    return compile_fx(module, inputs, inner_compile=rewritten)


def compared(function, *given):
    """The largest difference between a function and its derived kernels, and the report."""
    torch._dynamo.reset()
    with torch.no_grad():
        expected, results = function(*given), torch.compile(function, backend=interpreted)(*given)
    expected, results = (one if isinstance(one, tuple) else (one,) for one in (expected, results))
    assert [one.shape for one in results] == [one.shape for one in expected]
    assert [one.dtype for one in results] == [one.dtype for one in expected]
    differences = [float((one.double() - two.double()).abs().max()) for one, two in zip(results, expected, strict=True)]
    return max(differences), torch_backend.reports[-1]


X, Y = half(8, 64), half(8, 64) * 0.5
NAN = torch.tensor([[1.0, float("nan"), 3.0], [2.0, 3.0, 5.0]])
WHOLE = {
    "add and gelu": (lambda x, y: functional.gelu(x + y) * 2, (X, Y), 1),
    "softmax": (lambda x: torch.softmax(x, -1), (X,), 1),
    "layernorm": (lambda x, w, b: functional.layer_norm(x, (64,), w, b), (X, half(64), half(64)), 1),
    "linear and gelu": (lambda x, w, b: functional.gelu(functional.linear(x, w, b)), (half(32, 64), half(48, 64) * 0.1, half(48)), 1),
    "group norm": (lambda x, w, b: functional.group_norm(x, 4, w, b), (half(2, 16, 6, 8), half(16), half(16)), 2),
    "mean": (lambda x, y: functional.mse_loss(x.float(), y.float()), (X, Y), 1),
    "transposed": (lambda x, y: torch.relu(x.t() + y), (X, half(64, 8)), 1),
    "diagonal": (lambda x: x + x.t(), (half(16, 16),), 1),
    "activations": (lambda x: functional.elu(functional.silu(functional.leaky_relu(functional.hardswish(x), 0.1))), (X,), 1),
    "softplus": (lambda x: functional.softplus(x) + functional.softplus(8 * x, threshold=1e9), (X,), 1),
    "log1p": (lambda x: torch.log1p(x.abs()), (X,), 1),
    "mask": (lambda x, mask: torch.where(mask, x, 0.5 * x) * mask, (X, X > 0.25), 1),
    "masked rows": (lambda x, mask: torch.softmax(x.masked_fill(mask, -1e4), -1), (X, X[0] < 0), 1),
    "bytes": (lambda q, scale: (q.half() - 3) * scale, (torch.arange(-64, 64, dtype=torch.int8).view(8, 16), half(16)), 1),
    "labels": (lambda x, labels: x * (labels[:, None] == torch.arange(64)) + labels[:, None], (X, 9 * torch.arange(8)), 1),
    "powers of bytes": (lambda q: (q.float() ** 4 * q.float() ** 2) / 1e12, (torch.arange(128, 256, dtype=torch.uint8).view(8, 16),), 1),
    "powers of positions": (lambda x: x + (torch.arange(64).float() * 90) ** 4 * 1e-14, (X,), 1),
    "scalar": (lambda x, s: x * s + 1, (X, torch.tensor(2.5).half()), 1),
    "coordinates": (lambda x: torch.triu(x) - 1, (X,), 1),
    "logsumexp": (lambda x: torch.logsumexp(x.float(), 1), (X,), 1),
    "array read before and after its mean": (lambda x: x / x.abs().mean(1, keepdim=True), (X.float(),), 1),
    "running sum": (lambda x: x.cumsum(1) * 2, (X.float(),), 1),
    "extremes and NaN": (lambda x, y: (x.min(1).values, y.max(1, keepdim=True).indices), (X, NAN), 2),
    "conversions of conditions": (lambda x: torch.where(x.bool(), (x > 1).float(), 0.5) * 2, (X,), 1),
    "counts of rows": (lambda x: (x > 0).sum(1), (X,), 1),
    "counts along rows": (lambda x: (x > 0).cumsum(1), (X,), 1),
    "bfloat16": (lambda x: torch.relu(x) + 1, (X.bfloat16(),), 1),
    "row sums and rows": (lambda x: (x.sum(1), torch.sigmoid(x)), (X,), 2),
}
"""Functions that are taken whole: arguments, and the largest number of kernels."""


@pytest.mark.parametrize("name", WHOLE)
def test_kernels_agree_with_pytorch(name):
    function, given, kernels = WHOLE[name]
    difference, report = compared(function, *given)
    assert difference < 0.02
    assert not report.left or name in ("group norm", "mean"), str(report)
    assert 1 <= len(report.taken) <= kernels


def test_regions_read_the_results_of_other_kernels():
    """Otherwise the operations that a kernel replaces would stay in the graph, and be computed twice."""
    graphs = []

    def kept(module, inputs, **more):
        graphs.append(module.graph)
        return rewritten(module, inputs, **more)

    def backend(module, inputs):
        from torch._inductor.compile_fx import compile_fx

        return compile_fx(module, inputs, inner_compile=kept)

    torch._dynamo.reset()
    with torch.no_grad():
        rows, columns = torch.compile(lambda x: ((y := torch.softmax(x, -1)), y.sum(0)), backend=backend)(X)
    assert torch.allclose(rows.sum(0), columns, atol=2e-3)
    assert len(torch_backend.reports[-1].taken) == 2
    names = [getattr(node.target, "__name__", "") for node in graphs[-1].nodes if node.op == "call_function"]
    assert not [name for name in names if "exp" in name or "sum" in name], names
    assert names.count("derived.default") == 2


def test_maximum_propagates_nan():
    with torch.no_grad():
        result = torch.compile(lambda x: x.amax(1) * 2, backend=interpreted)(NAN)
    assert torch.isnan(result[0])
    assert result[1] == 10
    assert torch_backend.reports[-1].taken


def test_operations_that_no_formula_states_are_left_with_the_reason():
    difference, report = compared(lambda x: torch.sort(torch.relu(x), 1).values * 2, X)
    assert difference == 0
    assert [one.operations for one in report.taken] == ["relu", "mul"]
    assert any(one.operations == "sort" and "no formula" in one.because for one in report.left)
    assert "left:  sort" in str(report)
    assert "step" not in report.explain().splitlines()[0]


@pytest.mark.parametrize(
    "function, reason",
    [
        (lambda x: x.to(torch.int32).float() * 2 + x, "would not round"),
        (lambda x: (x.double() * 1e-9 + 1).float(), "float64"),
        (lambda x: (x.view(torch.int32) + 1).float() * 1e-9, "integers of view"),
        (lambda x: (torch.arange(64) * 100000 * 100000).float() * 1e-12 + x, "integers up to"),
        (lambda x: (x.expand(1 << 17, 8, 64) > 0).sum((0, 2)), "integers, which float32"),
    ],
)
def test_elements_that_a_formula_would_change_or_slow_down_are_left(function, reason):
    torch._dynamo.reset()
    with torch.no_grad():
        torch.compile(function, backend=interpreted)(X.float())
    report = torch_backend.reports[-1]
    assert not report.taken
    assert any(reason in one.because for one in report.left), str(report)


def test_bits_of_another_type_are_no_view():
    difference, report = compared(lambda x: x.view(torch.bfloat16) * 2, X)
    assert difference == 0 and report.taken


def test_parts_of_tensors_with_dynamic_sizes():
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: torch.softmax(x[:8, :16], 1), backend=interpreted, dynamic=True)
    with torch.no_grad():
        for columns in (64, 48):
            given = half(8, columns)
            assert torch.allclose(compiled(given), torch.softmax(given[:, :16], 1), atol=2e-3)
    assert "run time" in str(torch_backend.reports[-1]) and torch_backend.reports[-1].taken


def test_product_without_an_epilogue_is_left():
    _, report = compared(lambda a, b: a @ b, half(16, 16), half(16, 24))
    assert not report.taken
    assert "without an epilogue" in report.left[0].because


def test_functions_of_a_product_of_the_library_join_what_reads_them():
    """A converted or activated product is not in memory in float32: float32 products are left, and rows read their results."""
    a, b = half(8, 16).float(), half(16, 64).float()
    difference, report = compared(lambda a, b: torch.softmax(torch.sigmoid(a @ b) * 2, 1), a, b)
    assert difference < 1e-5
    assert [one.operations for one in report.left] == ["mm"] and "float32 product" in report.left[0].because
    assert [one.operations.split()[0] for one in report.taken] == ["sigmoid"]
    difference, report = compared(lambda a, b: torch.sigmoid(a @ b), a, b)
    assert not report.taken
    assert "the same bytes" in report.left[-1].because


@pytest.mark.parametrize("concatenated", [True, False])
def test_copies_into_concatenations_count(concatenated, monkeypatch):
    """Inductor's kernel of a running sum writes into the concatenation: 183 us instead of 410 (H200)."""
    graph = torch.fx.Graph()
    with FakeTensorMode():
        x, zeros, sums = (torch.empty(8192, columns) for columns in (8191, 1, 8191))
    nodes = [graph.placeholder(name) for name in ("x", "zeros")]
    nodes.append(graph.call_function(torch.ops.aten.cumsum.default, (nodes[0], 1)))
    for node, value in zip(nodes, (x, zeros, sums), strict=True):
        node.meta["val"] = value
    graph.output(graph.call_function(torch.ops.aten.cat.default, ([nodes[1], nodes[2]], 1)) if concatenated else nodes[2])
    chosen = SimpleNamespace(values={})
    predicted = SimpleNamespace(us=184.0, spec=None, target=as_architecture("sm_90a"), chosen=chosen)
    monkeypatch.setattr(Rewriting, "_derived", lambda *given, **options: predicted)
    rewriting = Rewriting(torch.fx.GraphModule({}, graph), torch_backend.Options(simulate=True))
    (region,) = Regions(graph)
    answer = rewriting._answered(region)
    reason = "184 us predicted and 133 us for copies of its results, but its bytes and functions take 133 us"
    assert (answer == reason) if concatenated else (answer.derived is predicted)


def test_backend_with_inductor_computes_gradients():
    torch._dynamo.reset()
    layers = torch.nn.Sequential(torch.nn.Linear(32, 16), torch.nn.GELU(), torch.nn.LayerNorm(16)).half()
    x = half(8, 32)

    def loss(x):
        return layers(x).float().pow(2).mean()

    loss(x).backward()
    expected = [parameter.grad.clone() for parameter in layers.parameters()]
    layers.zero_grad()
    before = len(torch_backend.reports)
    torch.compile(loss, backend="fireiron", options={"simulate": True, "candidates": 1})(x).backward()
    for right, parameter in zip(expected, layers.parameters(), strict=True):
        assert torch.allclose(right, parameter.grad, atol=2e-3)
    new = list(torch_backend.reports)[before:]
    assert {report.graph for report in new} == {"forward", "backward"}
    assert all(report.taken for report in new)


def test_tensors_in_host_memory_are_left_to_inductor():
    torch._dynamo.reset()
    with torch.no_grad():
        result = torch.compile(torch.relu, backend="fireiron")(X)
    assert torch.equal(result, torch.relu(X))
    assert "simulate=True" in torch_backend.reports[-1].left[0].because


def test_illegal_option_is_refused():
    with pytest.raises((ArgumentError, torch._dynamo.exc.BackendCompilerFailed), match="candidates"):
        torch.compile(lambda x: x + 1, backend="fireiron", options={"candidates": 0})(X)


X4 = half(2, 4, 6, 10).float()
MERGED = {
    "all": (lambda x: torch.tanh(x) * 2, (X4,), "y0[m] = "),
    "between reductions": (lambda x: functional.group_norm(x, 2), (X4,), "t0[m] = sum(n, x0[m,n])"),
    "around a broadcast operand": (lambda x, y: torch.relu(x) + y, (X4, half(4, 1, 1).float()), "y0[m,n,k] = "),
    "not of a part": (lambda x: torch.tanh(x) * 2, (X4[:, :, :4],), "y0[m,n] = "),
    "not around a scan": (lambda x: torch.cumsum(x, 3), (X4,), "t0[n,m] = cumsum(m, x0[n,m])"),
    "not if coordinates are read": (lambda x: torch.where(torch.arange(10) > 3, x, 0), (X4,), "y0[n,m] = "),
    "not along another order": (lambda x: x.movedim(1, 3) + 1, (X4,), "y0[m,k,n] = x0[m,n,k] + 1"),
    "not in a sum of blocks": (lambda x: (x * 2).mean((0, 1)), (X4,), "+= sum("),
}
"""Functions of tensors with four dimensions, and a part of their formulas."""


@pytest.mark.parametrize("name", MERGED)
def test_adjacent_dimensions_become_one(name):
    function, given, formula = MERGED[name]
    difference, report = compared(function, *given)
    assert difference < 0.01
    assert formula in report.explain(), report.explain()


IMAGES = torch.nn.Conv2d(4, 8, 3, bias=True), torch.nn.Conv2d(8, 8, 3, bias=False), torch.nn.Conv3d(2, 4, 3)
CONVOLUTIONS = {
    "with the channels last": (lambda x: torch.relu(IMAGES[0](x)).amax(1), "+ x1[", 1),
    "not in another order": (lambda x: torch.relu(IMAGES[0](x)), "another order of elements than images", 0),
    "not of volumes": (lambda x: torch.relu(IMAGES[2](x.view(2, 2, 3, 4, 10))), "x0[m,n,k] + x1[n]", 1),
    "not before another one": (lambda x: IMAGES[1](torch.relu(IMAGES[0](x))), "for which Inductor stores it with the channels last", 0),
    "before a pool": (lambda x: functional.avg_pool2d(torch.tanh(IMAGES[0](x)), 2) + 1, "add: Inductor computes it in the kernel", 0),
}
"""Functions with convolutions, a part of the report, and the number of kernels."""


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_kernels_read_convolutions_as_inductor_stores_them(name):
    function, text, kernels = CONVOLUTIONS[name]
    difference, report = compared(function, torch.randn(2, 4, 6, 10, generator=torch.Generator().manual_seed(1)))
    assert difference < 1e-5
    assert text in report.explain(), report.explain()
    assert len(report.taken) == kernels


def test_dimensions_are_split_by_views_and_joined_by_operations():
    dims = Dims()
    (rows, columns) = dims.of_shape((6, 8))
    grouped = dims.regrouped((rows, columns), (2, 3, 4, 2))
    assert [dims.size(dims.resolved(axis)) for axis in grouped] == [2, 3, 4, 2]
    (other,) = dims.of_shape((8,))
    assert dims.unify(other, columns) == dims.resolved(columns)
    assert dims.unify((), rows) == rows
    with pytest.raises(CannotStateError):
        dims.unify(dims.new(7), rows)
    with pytest.raises(CannotStateError):
        dims.regrouped((dims.new(6),), (4, 2))


def test_nodes_are_ordered_after_those_that_they_read():
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    first = graph.call_function(torch.relu, (x,))
    second = graph.call_function(torch.neg, (x,))
    first.args = (second,)
    graph.output(first)
    in_order(graph)
    graph.lint()
    assert [node.name for node in graph.nodes] == ["x", "neg", "relu", "output"]


def attention_graph(dropout=0.0):
    """A graph of attention on tensors without memory."""
    shape, graph = (1, 2, 256, 64), torch.fx.Graph()
    metas = [torch.empty(shape, dtype=torch.float16, device="meta") for _ in range(3)]
    inputs = [graph.placeholder(name) for name in "qkv"]
    for node, meta in zip(inputs, metas, strict=True):
        node.meta["val"] = meta
    operation = torch.ops.aten._scaled_dot_product_flash_attention.default
    results = operation(*metas, dropout, True)
    node = graph.call_function(operation, (*inputs, dropout, True))
    node.meta["val"] = results
    result = graph.call_function(operator.getitem, (node, 0))
    result.meta["val"] = results[0]
    graph.output((result,))
    return graph, node


def test_attention_becomes_the_operator(monkeypatch):
    kind = type(fireiron.attention)
    choose = kind.choice

    def on_host(self, *described, **options):
        return choose(self, *(numpy.empty(tuple(one.shape), "float16") for one in described), **options)

    monkeypatch.setattr(kind, "choice", on_host)
    graph, node = attention_graph()
    taken = attention.replaced(graph, node, 0, "sm_90a")
    (call,) = [one for one in graph.nodes if one.op == "call_function"]
    assert call.target is torch.ops.fireiron.attention.default and call.args[3:] == (True, None, None, None, None)
    assert "hopper_attention" in taken.because and taken.us > 0


def test_attention_with_dropout_is_left():
    with pytest.raises(CannotStateError, match="dropout"):
        attention.replaced(*attention_graph(0.5), 0, "sm_90a")


def test_functions_without_cancellation_and_divisions():
    x = numpy.concatenate([numpy.logspace(-30, 1, 2001), -numpy.logspace(-30, 1, 2001)]).astype("float32")
    words = {"x": x, "where": numpy.where, "exp": numpy.exp, "log": numpy.log, "abs": abs}
    words |= {"power": numpy.exp(-abs(8 * x)), "inf": numpy.inf}
    for text, right, values in ((expm1("x"), numpy.expm1, x), (softplus("x", "power"), lambda x: numpy.log1p(numpy.exp(x)), 8 * x)):
        expected = right(values.astype("float64"))
        assert numpy.max(abs(eval(text, words | {"x": values}) - expected) / abs(expected)) < 3e-7
    assert eval(softplus("x", "power"), words | {"x": numpy.float32(88.72284), "power": 0}) == numpy.inf
    assert divided("x", "10") == "x * 0.1"
    assert divided("x", "1e-39") == "x / 1e-39", "the reciprocal is no float32"
    assert divided("x", "(exp(x) + 1)") == "x * (rsqrt(exp(x) + 1) * rsqrt(exp(x) + 1))"
    assert divided("x", "(exp(x) * exp(y) + 1)") == "x / (exp(x) * exp(y) + 1)"
