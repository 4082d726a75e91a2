"""Replayed calls with PyTorch on a GPU: each compared with PyTorch's own result, in every order."""

import gc
import random
import threading

import pytest

import fireiron
from fireiron import attention, conv2d, function, matmul
from fireiron.errors import ArgumentError, LaunchError
from fireiron.gpu import launch
from fireiron.gpu.replays import module_here

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not launch.gpu_available(), reason="needs a CUDA GPU and CuPy (pip install 'fireiron[cuda13]')"),
]


@pytest.fixture
def torch(monkeypatch):
    monkeypatch.delenv("FIREIRON_RECORDS", raising=False)
    monkeypatch.delenv("FIREIRON_REQUIRE_RECORD", raising=False)
    monkeypatch.delenv("FIREIRON_NO_CACHE", raising=False)
    torch_module = pytest.importorskip("torch", reason="needs PyTorch")
    if not torch_module.cuda.is_available():
        pytest.skip("needs PyTorch for CUDA")
    module_here.wait()
    if module_here() is None:
        pytest.skip("needs a C compiler, Python.h and PyTorch 2.10")
    for calls in (matmul, attention, conv2d, function("layernorm")):
        calls.clear()
    torch_module.manual_seed(0)
    return torch_module


def float16_array(torch, *shape, dtype="bfloat16"):
    return (torch.randn(shape, device="cuda") * shape[-1] ** -0.5).to(getattr(torch, dtype))


def close(torch, got, expected):
    assert got.shape == expected.shape and got.dtype == expected.dtype and bool(torch.isfinite(got).all())
    right = expected.detach().double()
    assert float((got.detach().double() - right).norm()) <= 1e-2 * float(right.norm()) + 1e-12


def forms(torch):
    """Calls by name: ours and PyTorch's on the same tensors, which are allocated again each time."""
    softmax, norm = torch.nn.functional.scaled_dot_product_attention, torch.nn.functional.layer_norm

    def tensors(*shapes, **options):
        return [float16_array(torch, *shape, **options) for shape in shapes]

    def plain(a, b):
        return matmul(a, b), a @ b

    def filled(a, b):
        out = torch.empty(a.shape[0], b.shape[1], device="cuda", dtype=a.dtype)
        assert matmul(a, b, out) is out
        return out, a @ b

    def biased(a, b, bias):
        return matmul(a, b, epilogue="relu(acc + bias[n])", bias=bias), torch.relu((a @ b).float() + bias.float()).to(a.dtype)

    def normed(x, weight):
        return function("layernorm")(x, weight, weight, 1e-5), norm(x, x.shape[-1:], weight, weight)

    def both(q, k, v):
        return attention(q, k, v, lse=True)[0], softmax(q, k, v)

    return {
        "plain": lambda: plain(*tensors((64, 96), (96, 80))),
        "wide": lambda: plain(*tensors((256, 512), (512, 384))),
        "out": lambda: filled(*tensors((64, 96), (96, 80))),
        "halves": lambda: plain(*tensors((64, 96), (96, 80), dtype="float16")),
        "floats": lambda: plain(*tensors((64, 96), (96, 80), dtype="float32")),
        "by columns": lambda: plain(float16_array(torch, 96, 64).T, float16_array(torch, 80, 96).T),
        "odd": lambda: plain(*tensors((33, 65), (65, 17))),
        "a slice": lambda: plain(float16_array(torch, 64, 104)[:, 3:99], float16_array(torch, 96, 80)),
        "stack": lambda: plain(*tensors((4, 64, 96), (96, 80))),
        "stacks": lambda: plain(*tensors((4, 64, 96), (4, 96, 80))),
        "broadcast": lambda: plain(*tensors((2, 1, 64, 48), (3, 48, 80))),
        "vector": lambda: plain(*tensors((96,), (96, 80))),
        "Gram": lambda: (lambda a: plain(a, a.T))(float16_array(torch, 64, 96)),
        "square": lambda: (lambda a: plain(a, a))(float16_array(torch, 64, 64)),
        "steps": lambda: plain(float16_array(torch, 64, 192)[:, ::2], float16_array(torch, 96, 80)),
        "epilogue": lambda: biased(*tensors((64, 96), (96, 80), (80,))),
        "attention": lambda: (lambda q, k, v: (attention(q, k, v), softmax(q, k, v)))(
            *tensors((2, 4, 200, 64), (2, 4, 256, 64), (2, 4, 256, 64))
        ),
        "causal": lambda: (lambda q, k, v: (attention(q, k, v, causal=True), softmax(q, k, v, is_causal=True)))(
            *tensors(*[(2, 4, 256, 64)] * 3)
        ),
        "sequence first": lambda: (lambda q, k, v: (attention(q, k, v), softmax(q, k, v)))(
            *(one.transpose(1, 2) for one in tensors(*[(2, 256, 4, 64)] * 3))
        ),
        "self": lambda: (lambda q: (attention(q, q, q), softmax(q, q, q)))(float16_array(torch, 2, 4, 256, 64)),
        "decode": lambda: (lambda q, k, v: (attention(q, k, v), softmax(q, k, v)))(
            *tensors((2, 4, 1, 128), (2, 4, 4096, 128), (2, 4, 4096, 128))
        ),
        "narrow": lambda: (lambda q, k, v: (attention(q, k, v), softmax(q, k, v)))(*tensors(*[(2, 4, 256, 40)] * 3)),
        "with sums": lambda: both(*tensors(*[(2, 4, 256, 64)] * 3)),
        "convolution": lambda: (lambda x, w: (conv2d(x, w, padding=1), torch.nn.functional.conv2d(x, w, padding=1)))(
            *(one.to(memory_format=torch.channels_last) for one in tensors((2, 64, 16, 16), (64, 64, 3, 3)))
        ),
        "layernorm": lambda: normed(*tensors((96, 256), (256,))),
        "layernorm of more": lambda: normed(*tensors((4, 32, 256), (256,))),
    }


def test_calls_in_any_order(torch):
    """Tensors are allocated and freed, so the same addresses occur in different calls."""
    calls, rng = forms(torch), random.Random(3)
    alive = []
    for number in range(6 * len(calls)):
        name = rng.choice([*calls]) if number >= len(calls) else [*calls][number]
        close(torch, *calls[name]())
        alive = [*alive[-5:], torch.empty(rng.randrange(1, 1 << 20), device="cuda")]
    assert len(matmul.replays.again) > 10 and len(attention.replays.again) > 3


def test_calls_are_replayed(torch, monkeypatch):
    """The second call with a signature executes none of our Python code."""
    calls, launched = forms(torch), []
    del calls["steps"], calls["narrow"]  # PyTorch copies
    for call in calls.values():
        call()
    monkeypatch.setattr("fireiron.gpu.prepared.Calls.__call__", lambda *given: launched.append(given))
    for name, call in calls.items():
        close(torch, *call())
        assert not launched, name


def test_on_streams(torch):
    a, b = float16_array(torch, 512, 512), float16_array(torch, 512, 512)
    expected = a @ b
    matmul(a, b)
    streams = [torch.cuda.Stream() for _ in range(3)]
    results = []
    for stream in streams * 4:
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            results.append(matmul(a, b))
    torch.cuda.synchronize()
    for result in results:
        close(torch, result, expected)


def test_in_a_graph(torch):
    """With tensors whose values change, and attention in two launches."""
    calls = [
        (float16_array(torch, 256, 256), float16_array(torch, 256, 256)),
        tuple(float16_array(torch, 1, 4, n, 128) for n in (1, 4096, 4096)),
    ]

    def run():
        return matmul(*calls[0]), attention(*calls[1])

    run(), run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = run()
    for _ in range(3):
        for tensor in (*calls[0], *calls[1]):
            tensor.copy_(torch.randn_like(tensor) * tensor.shape[-1] ** -0.5)
        graph.replay()
        torch.cuda.synchronize()
        close(torch, results[0], calls[0][0] @ calls[0][1])
        close(torch, results[1], torch.nn.functional.scaled_dot_product_attention(*calls[1]))


def test_by_threads(torch):
    calls, wrong = forms(torch), []

    def work(seed):
        rng = random.Random(seed)
        try:
            for _ in range(40):
                close(torch, *calls[rng.choice([*calls])]())
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong, wrong[0]


def test_an_output_over_an_input_is_refused(torch):
    a, b = float16_array(torch, 64, 64), float16_array(torch, 64, 64)
    out = torch.empty_like(a)
    for _ in range(2):
        matmul(a, b, out)
    for wrong in (a, b, float16_array(torch, 65, 64)[1:]):
        if wrong is a or wrong is b:
            with pytest.raises(LaunchError, match="overlaps"):
                matmul(a, b, wrong)
        else:
            close(torch, matmul(a, b, wrong), a @ b)


def test_changes_of_a_call_are_noticed(torch):
    """Autocast, gradients, parameters, other records, tensors in host memory."""
    a, b = float16_array(torch, 64, 64, dtype="float32"), float16_array(torch, 64, 64, dtype="float32")
    for _ in range(2):
        assert matmul(a, b).dtype == torch.float32
        with torch.autocast("cuda", dtype=torch.bfloat16):
            assert matmul(a, b).dtype == torch.bfloat16
        assert matmul(a.bfloat16(), b.bfloat16(), c_dtype="float32").dtype == torch.float32
        assert not matmul(a, b).requires_grad
        weight = torch.nn.Parameter(b)
        assert matmul(a, weight).requires_grad
        with torch.no_grad():
            assert not matmul(a, weight).requires_grad
            close(torch, matmul(a, weight), a @ b)
        with pytest.raises(ArgumentError):
            matmul(a.cpu(), b)
        assert attention(*(float16_array(torch, 1, 2, 64, 64).requires_grad_() for _ in range(3))).requires_grad
    again = len(matmul.replays.again)
    matmul.clear()
    assert again and len(matmul.replays.again) == 0
    close(torch, matmul(a, b), a @ b)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_calls_under_autocast_are_replayed(torch, dtype, monkeypatch):
    """With converted tensors: the replayed call finds its launch without a new recording."""
    a, b = float16_array(torch, 64, 64, dtype=dtype), float16_array(torch, 64, 64, dtype=dtype)
    q = float16_array(torch, 2, 4, 64, 64, dtype=dtype)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        first = matmul(a, b), attention(q, q, q)
        monkeypatch.setattr(type(matmul), "answer", None)
        monkeypatch.setattr(type(attention), "answer", None)
        again = matmul(a, b), attention(q, q, q)
    for replayed, other in zip(first, again, strict=True):
        assert replayed.dtype == torch.bfloat16 and torch.equal(replayed, other)
    close(torch, again[0], (a @ b).bfloat16())


@pytest.mark.parametrize(
    "shapes", [((64, 96), (96, 80)), ((4, 64, 96), (96, 80)), ((4, 64, 96), (4, 96, 80)), ((33, 65), (65, 17))], ids=str
)
def test_gradients(torch, shapes):
    for _ in range(3):
        a, b = (float16_array(torch, *shape).requires_grad_() for shape in shapes)
        got, expected = matmul(a, b), a @ b
        grad = torch.randn_like(expected)
        close(torch, got, expected)
        for gradient, other in zip(torch.autograd.grad(got, (a, b), grad), torch.autograd.grad(expected, (a, b), grad), strict=True):
            close(torch, gradient, other)
        (gradient,) = torch.autograd.grad(matmul(a, b.detach()), (a,), grad)
        close(torch, gradient, torch.autograd.grad(a @ b.detach(), (a,), grad)[0])


def differentiated(torch):
    """By name: a call with gradients of ours, PyTorch's, and the tensors that require gradients. The tensors are allocated each time."""
    softmax, norm = torch.nn.functional.scaled_dot_product_attention, torch.nn.functional.layer_norm

    def heads(*shape):
        return [float16_array(torch, *shape).requires_grad_() for _ in range(3)]

    def rows():
        return [float16_array(torch, *shape).requires_grad_() for shape in ((96, 256), (256,), (256,))]

    def rms(x, weight, _):
        wide = x.float()
        return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-5) * weight.float()).to(x.dtype)

    targets = torch.randint(0, 1000, (256,), device="cuda")

    def logits():
        return [float16_array(torch, *shape).requires_grad_() for shape in ((256, 128), (1000, 128))]

    def loss(x, weight):
        return torch.nn.functional.cross_entropy((x @ weight.T).float(), targets)

    def image():
        shapes = (2, 32, 16, 12), (48, 32, 3, 3)
        return [float16_array(torch, *shape).to(memory_format=torch.channels_last).requires_grad_() for shape in shapes]

    return {
        "convolution": (lambda x, w: conv2d(x, w, padding=1), lambda x, w: torch.nn.functional.conv2d(x, w, padding=1), image),
        "matmul": (lambda a, b, _: matmul(a, b), lambda a, b, _: a @ b, lambda: heads(64, 64)),
        "attention": (attention, softmax, lambda: heads(2, 4, 256, 64)),
        "causal attention": (
            lambda *given: attention(*given, causal=True), lambda *given: softmax(*given, is_causal=True), lambda: heads(2, 4, 200, 128),
        ),
        "layernorm": (lambda *given: function("layernorm")(*given, 1e-5), lambda x, *given: norm(x, (256,), *given), rows),
        "rmsnorm": (lambda x, weight, _: function("rmsnorm")(x, weight, 1e-5), rms, rows),
        "linear_cross_entropy": (lambda x, weight: fireiron.linear_cross_entropy(x, weight, targets), loss, logits),
    }  # fmt: skip


def gradients_of(torch, call, tensors):
    result = call(*tensors)
    torch.manual_seed(1)
    grad = torch.randn_like(result)
    return result, *(one for one in torch.autograd.grad(result, tensors, grad, allow_unused=True) if one is not None)


def test_gradients_are_replayed(torch, monkeypatch):
    """From the third call on, neither the call nor its backward pass executes our launches in Python."""
    calls, launched, given = differentiated(torch), [], {}
    for name, (ours, peer, make) in calls.items():
        for _ in range(2):
            given[name] = make()
            for got, expected in zip(gradients_of(torch, ours, given[name]), gradients_of(torch, peer, given[name]), strict=True):
                error = float((got.double() - expected.double()).norm())
                assert error <= 2e-2 * float(expected.double().norm()) + 1e-12, name
    first = {name: gradients_of(torch, ours, given[name]) for name, (ours, _, _) in calls.items()}
    monkeypatch.setattr("fireiron.gpu.prepared._Plan.run", lambda *arguments: launched.append(arguments))
    for name, (ours, _, make) in calls.items():
        gradients_of(torch, ours, make())
        for got, expected in zip(gradients_of(torch, ours, given[name]), first[name], strict=True):
            error = float((got.double() - expected.double()).norm())
            assert error <= 1e-3 * float(expected.double().norm()) + 1e-12, name  # sums in another order
        assert not launched, name


def test_launches_of_ssd_and_experts_are_replayed(torch, monkeypatch):
    """PyTorch computes the tables of experts and sums of decays; all launches are replayed."""
    x, dt, decay = float16_array(torch, 1, 128, 2, 64), torch.rand(1, 128, 2, device="cuda"), -torch.rand(2, device="cuda")
    b, c = float16_array(torch, 1, 128, 1, 64), float16_array(torch, 1, 128, 1, 64)
    tokens, scores = float16_array(torch, 64, 64), torch.randn(64, 4, device="cuda")
    gate_up, down = float16_array(torch, 4, 256, 64), float16_array(torch, 4, 64, 128)
    scanned = [one.requires_grad_() for one in (x, dt, decay, b, c)]
    routed = [one.requires_grad_() for one in (tokens, gate_up, down)]
    calls = {
        "ssd": (lambda *given: fireiron.ssd(*given), scanned),
        "experts": (lambda x, *weights: fireiron.experts(x, scores, *weights, top_k=2), routed),
    }
    first = {name: [gradients_of(torch, *call) for _ in range(2)][-1] for name, call in calls.items()}
    launched = []
    monkeypatch.setattr("fireiron.gpu.prepared._Plan.run", lambda *arguments: launched.append(arguments))
    for name, call in calls.items():
        for got, expected in zip(gradients_of(torch, *call), first[name], strict=True):
            assert torch.equal(got, expected), name
        assert not launched, name


def test_gradients_of_gradients(torch):
    a, b = (float16_array(torch, 32, 32, dtype="float32").requires_grad_() for _ in range(2))

    def twice(multiply):
        (first,) = torch.autograd.grad(multiply(a, b).square().sum(), a, create_graph=True)
        return torch.autograd.grad(first.square().sum(), b)[0]

    for _ in range(2):
        close(torch, twice(matmul), twice(torch.matmul))


def test_under_transforms(torch):
    a, b = float16_array(torch, 5, 32, 48, dtype="float32"), float16_array(torch, 48, 64, dtype="float32")
    for _ in range(2):
        close(torch, torch.func.vmap(matmul, in_dims=(0, None))(a, b), a @ b)
        matmul(a[0], b)


def test_modes_see_operators(torch):
    """For example modes that count floating-point operations."""
    seen = []

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
            seen.append(str(operator))
            return operator(*args, **(kwargs or {}))

    a, b = (float16_array(torch, 32, 32, dtype="float32").requires_grad_() for _ in range(2))
    for _ in range(2):
        matmul(a, b).sum().backward()
    with Watch():
        matmul(a, b).sum().backward()
    assert sum("fireiron.matmul" in one for one in seen) == 3


def test_compiled(torch):
    torch._dynamo.reset()
    a, b = float16_array(torch, 64, 64), float16_array(torch, 64, 64)
    q = float16_array(torch, 2, 4, 64, 64)
    for _ in range(2):
        matmul(a, b), attention(q, q, q)
    layer = torch.compile(lambda a, b, q: (matmul(a.relu(), b), attention(q, q, q)), fullgraph=True)
    for _ in range(2):
        results = layer(a, b, q)
        close(torch, results[0], a.relu() @ b)
        close(torch, results[1], torch.nn.functional.scaled_dot_product_attention(q, q, q))


def test_memory_is_released(torch):
    a, b = float16_array(torch, 1024, 1024), float16_array(torch, 1024, 1024)
    matmul(a, b), matmul(a, b)
    gc.collect()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    for _ in range(50):
        matmul(a, b)
    assert torch.cuda.memory_allocated() == before
    assert fireiron.matmul is matmul
