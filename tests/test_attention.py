"""`fireiron.attention`: results for NumPy arrays in the simulator, chosen strategies, errors and caches; and the PyTorch operator.

PyTorch is simulated here: the tests examine the calls of `torch.library`. For a GPU see `test_attention_gpu.py`.
"""

import sys
import threading
import types

import numpy as np
import pytest
from near import Near

from fireiron import *
from fireiron import attention as attend
from fireiron import attention_kernels, attention_operator
from fireiron.front import place
from fireiron.gpu.kernel import CompiledKernel
from fireiron.values.machine import as_architecture

attention_module = sys.modules["fireiron.attention"]


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    monkeypatch.delenv("FIREIRON_RECORDS", raising=False)
    monkeypatch.delenv("FIREIRON_REQUIRE_RECORD", raising=False)
    attend.clear()


def random(*shape, seed=0):
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float16)


def softmax(q, k, v, scale, causal=False, window=None, changed=lambda s, m, n: s):
    """The result and the log-sum-exp, in float64, of arrays of four dimensions."""
    q, k, v = (one.astype(np.float64) for one in (q, k, v))
    k, v = (np.repeat(one, q.shape[1] // k.shape[1], 1) for one in (k, v))
    m, n = np.ogrid[: q.shape[2], : k.shape[2]]
    scores = changed(np.einsum("bhmd,bhnd->bhmn", q, k) * scale, m, n)
    scores = np.where((n <= m) | (not causal), scores, -np.inf)
    scores = np.where((m < n + window) & (n <= m), scores, -np.inf) if window else scores
    sums = np.log(np.exp(scores).sum(-1))
    return np.einsum("bhmn,bhnd->bhmd", np.exp(scores - sums[..., None]), v), sums


def grouped(kernel, **arrays):
    """Arrays (b, heads, length, ...) as the kernel's operands are: `Q[b,m,g,r,d]`, `K[b,n,g,d]`, `L[b,m,g,r]`; keys that are attended to."""
    shapes = {name: tuple(map(int, map(str, kernel.program.spec.operands[name].shape))) for name in arrays}
    return {name: one.swapaxes(1, 2)[:, : shapes[name][1]].reshape(shapes[name]) for name, one in arrays.items()}


def near(kernel, q, k, v, scale, **expected):
    """Compares the outputs with a plain softmax."""
    arrays = {**grouped(kernel, Q=q, K=k, V=v), "scale": np.float32(scale)}
    return Near(kernel.program.spec, arrays, grouped(kernel, **expected))


def test_heads_share_keys_and_scores_are_changed():
    """Projections as models have them, (batch, m, heads, d): views of them, and the result has the strides of `q`."""
    q, k, v = (random(2, length, heads, 16, seed=heads).swapaxes(1, 2) for length, heads in ((20, 4), (24, 2), (24, 2)))
    got, sums = attend(q, k, v, lse=True, score="3 * tanh(s / 3)", scale=0.3, arch="sm_90a")
    expected, logarithms = softmax(q, k, v, 0.3, changed=lambda s, m, n: 3 * np.tanh(s / 3))
    kernel = attend.kernel(q, k, v, lse=True, score="3 * tanh(s / 3)", arch="sm_90a")
    near(kernel, q, k, v, 0.3, O=expected, L=logarithms).require(grouped(kernel, O=got, L=sums))
    assert got.strides == q.strides and got.shape == q.shape and sums.shape == (2, 4, 20) and sums.dtype == np.float32
    assert attend.kernel(q, k, v, lse=True, score="3 * tanh(s / 3)", arch="sm_90a").program.name.startswith("attention")


def test_fewer_dimensions_with_outputs_given():
    q, k, v = random(20, 16), random(24, 16, seed=1), random(24, 48)[:, 16:32]
    out, sums = np.zeros_like(q), np.zeros(20, np.float32)
    got = attend(q, k, v, window=5, lse=True, out=(out, sums))
    assert got[0] is out and got[1] is sums
    whole = [one[None, None] for one in (q, k, v)]
    expected, logarithms = softmax(*whole, 0.25, window=5)
    kernel = attend.kernel(q, k, v, window=5, lse=True)
    near(kernel, *whole, 0.25, O=expected, L=logarithms).require(grouped(kernel, O=out[None, None], L=sums[None, None]))


@pytest.mark.nightly
def test_one_query_of_many_keys():
    """Heads that share keys are rows of one kernel, which splits the keys; another kernel combines the parts."""
    q, (k, v) = random(1, 1, 4, 16).swapaxes(1, 2), (random(1, 260, 2, 16, seed=seed).swapaxes(1, 2) for seed in (1, 2))
    out = np.zeros_like(q)
    assert attend(q, k, v, out=out) is out and "attention_decode in parts of 128" in attend.choice(q, k, v, out=out).why
    np.testing.assert_allclose(out, softmax(q, k, v, 0.25)[0], atol=2e-3)


def test_split_keys():
    """Few queries of many keys, if only the result is requested."""
    few = lambda queries=1, heads=8, groups=2, keys=4096, **options: attention_kernels.is_few(
        attention_kernels.Sizes(1, heads, groups, queries, keys, 64), attention_module.Options(**options), as_architecture("sm_90a")
    )
    assert few() and few(queries=3, groups=8) and few(heads=16, groups=1)
    assert not few(queries=2) and not few(queries=17, groups=8) and not few(keys=100) and not few(heads=32, groups=1)
    assert not few(lse=True) and not few(causal=True) and not few(score="s")


@pytest.mark.parametrize(
    ("arch", "shape", "options", "named"),
    [
        ("sm_90a", (1, 2, 64, 64), {}, "hopper_attention:q_in_registers bm=64"),
        ("sm_90a", (1, 2, 64, 96), {"window": 9}, "hopper_attention:causal bm=64"),
        ("sm_90", (1, 2, 64, 64), {}, "attention:steady bm=64"),
        ("sm_80", (1, 2, 64, 128), {"causal": True}, "attention:causal bm=64"),
    ],
)
def test_choice(arch, shape, options, named):
    """The best strategy for the target and the definition, by name and values."""
    q = random(*shape)
    choice = attend.choice(q, q, q, arch=arch, **options)
    assert choice.record is None and f"on {arch}: {named}" in choice.why
    assert attend.choice(q, q, q, arch=arch, **options) is choice


def test_hopper_strategies_need_arrays_that_tma_can_copy():
    apart = random(16, 33)[:, 1:17]
    assert "TMA cannot copy arrays with these strides" in attend.choice(apart, apart, apart, arch="sm_90a").why


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("shapes", "options", "message"),
    [
        (((4, 16), (4, 16), (5, 16)), {}, "k and v must have the same shape"),
        (((4, 16), (1, 4, 16), (1, 4, 16)), {}, "must have the same number of dimensions, 2 to 4"),
        (((2, 4, 16), (3, 4, 16), (3, 4, 16)), {}, "the 3 heads of k do not divide the 2 heads of q"),
        (((4, 16), (4, 32), (4, 32)), {}, "q and k must have the same batch size and the same elements per head"),
        (((4, 20), (4, 20), (4, 20)), {}, "heads of 20 elements"),
        (((4, 0), (4, 0), (4, 0)), {}, "heads of 0 elements"),
        (((4, 16),) * 3, {"window": 0}, "window"),
        (((4, 16),) * 3, {"score": 3}, "score must be a formula"),
        (((4, 16),) * 3, {"score": "s + bias"}, "bias is not an operand"),
        (((4, 16),) * 3, {"scale": -1}, "scale: the definition requires a positive number"),
        (((4, 16),) * 3, {"lse": True, "out": np.zeros((4, 16), np.float16)}, "out has 1 arrays"),
        (((4, 16),) * 3, {"out": np.zeros((4, 8), np.float16)}, "out has the shape"),
        (((4, 16),) * 3, {"out": np.zeros((4, 16), np.float32)}, "out has elements of float32"),
    ],
)
def test_refusals(shapes, options, message):
    with pytest.raises(ArgumentError, match=message):
        attend(*(random(*shape) for shape in shapes), **options)


def test_refused_arrays():
    q = random(16, 16)
    for arrays, message in (
        ((q.astype("f4"),) * 3, "no kernel supports the element type of q"),
        ((q, q.astype("f4"), q), "k has elements of float32"),
        (([1], q, q), "neither an array on a GPU nor a NumPy array"),
    ):
        with pytest.raises(ArgumentError, match=message):
            attend(*arrays)
    with pytest.raises(StoreError):
        attend(q, q, q, require_record=True)


def test_threads_make_a_kernel_once(monkeypatch):
    kernels, calls, choose = [], [], attention_kernels._chosen
    monkeypatch.setattr(attention_kernels, "_chosen", lambda *asked: kernels.append(asked) or choose(*asked))
    q = random(16, 16)
    threads = [threading.Thread(target=lambda: calls.append(attend.kernel(q, q, q))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(kernels) == 1 and len({id(thread) for thread in calls}) == 1


# ---------------------------------------------------------------------------------------------- simulated PyTorch


class Tensor:
    """The part of a tensor that is read, on a GPU or fake, with its views."""

    __module__ = "torch"
    is_cuda = True

    def __init__(self, shape, steps=None, dtype="float16"):
        self.shape, self.steps, self.dtype = tuple(shape), tuple(steps or np.zeros(shape, "i1").strides), f"torch.{dtype}"

    stride = lambda self: self.steps
    data_ptr = lambda self: 0x1000
    get_device = lambda self: 0
    as_strided = lambda self, shape, steps: Tensor(shape, steps, self.dtype.removeprefix("torch."))
    new_empty_strided = lambda self, shape, steps: Tensor(shape, steps)
    new_empty = lambda self, shape, dtype: Tensor(shape, dtype=dtype)

    @property
    def lies(self):
        """Shape and steps."""
        return self.shape, self.steps


class FakeTensor(Tensor):
    """A tensor without memory."""

    __module__ = "torch._subclasses.fake_tensor"


@pytest.fixture
def torch(monkeypatch):
    """The part of PyTorch that an operator needs: `registered` has its functions by name, `compiling` is true while a call is traced."""
    module = types.ModuleType("torch")
    module.registered, module.compiling = {}, False
    module.Tensor, module.float32, module.nn = Tensor, "float32", types.SimpleNamespace(Parameter=Tensor)
    module.compiler = types.SimpleNamespace(is_compiling=lambda: module.compiling)
    module.is_autocast_enabled = lambda kind: False
    module.ops = types.SimpleNamespace(fireiron=types.SimpleNamespace())

    def custom_op(name, function, *, mutates_args, device_types, schema):
        registered_operator = types.SimpleNamespace(name=name, run=function, schema=schema, fake=None, kinds=(mutates_args, device_types))
        registered_operator.register_fake = lambda fake: setattr(registered_operator, "fake", fake)
        registered_operator.register_autograd = lambda backward, *, setup_context: setattr(registered_operator, "remember", setup_context)
        registered_operator.register_kernel = lambda kind: lambda kernel: setattr(registered_operator, kind, kernel)
        assert name not in module.registered
        module.registered[name] = registered_operator
        operator = lambda *given: (
            registered_operator.fake if module.compiling or type(given[0]) is FakeTensor else registered_operator.run
        )(*given)
        setattr(module.ops.fireiron, name.removeprefix("fireiron::"), operator)
        return registered_operator

    module.library = types.SimpleNamespace(custom_op=custom_op)
    monkeypatch.setitem(sys.modules, "torch", module)
    attention_operator.register_operators.cache_clear()
    yield module
    attention_operator.register_operators.cache_clear()


@pytest.fixture
def launched(monkeypatch):
    """Arrays and keywords of launches, each with a result; only the target is queried."""
    calls = []

    def launch(self, *arrays, **named):
        calls.append((arrays, named))
        outputs = [Tensor([8], dtype=view.dtype.name) for view in (self.program.spec.operands[one] for one in self.program.spec.outputs)]
        return tuple(outputs) if len(outputs) > 1 else outputs[0]

    monkeypatch.setattr(CompiledKernel, "__call__", launch)
    monkeypatch.setattr(place, "target_of", lambda device: "sm_80")
    monkeypatch.setattr(place, "gpu_name", lambda device: "NVIDIA H200")
    return calls


def test_tensors_are_viewed_without_copies(torch, launched):
    """Nothing is copied, and without tracing nothing is registered."""
    q, k = Tensor((2, 4, 64, 16), (4096, 16, 64, 1)), Tensor((2, 2, 24, 16), (768, 16, 32, 1))
    out = attend(q, k, k, stream=7)
    ((seen, named),) = launched
    assert [one.lies for one in seen[:2]] == [((2, 64, 2, 2, 16), (4096, 64, 32, 16, 1)), ((2, 24, 2, 16), (768, 32, 16, 1))]
    assert seen[3] == 0.25 and named == {"stream": 7} and out.lies == (q.shape, q.steps) and not torch.registered


@pytest.mark.parametrize("kind", ("compiled", "fake"))
def test_operator(torch, launched, kind):
    """Tracing gives shapes and strides without a launch; the operator launches."""
    torch.compiling = kind == "compiled"
    q = (Tensor if torch.compiling else FakeTensor)((2, 64, 4, 16), (4096, 16, 1024, 1))
    assert attend(q, q, q).lies == (q.shape, q.steps)
    out, sums = attend(q, q, q, lse=True, window=3)
    assert out.lies == (q.shape, q.steps) and sums.lies == ((2, 64, 4), (256, 4, 1)) and sums.dtype == "torch.float32"
    assert not launched and set(torch.registered) == {f"fireiron::attention{kind}" for kind in ("", "_lse", "_gradients")}
    with pytest.raises(ArgumentError, match="out= is not supported in a call that PyTorch traces"):
        attend(q, q, q, out=q)
    with pytest.raises(ArgumentError, match="the 3 heads of k do not divide the 64 heads of q"):
        attend(q, FakeTensor((2, 3, 4, 16)), FakeTensor((2, 3, 4, 16)))
    operator = torch.registered["fireiron::attention_lse"]
    assert operator.kinds == ((), "cuda") and operator.schema.endswith("-> (Tensor, Tensor)")
    real = Tensor(q.shape, q.steps)
    out, sums = operator.run(real, real, real, True, 3, None, None, False)
    assert out.lies == (q.shape, q.steps) and sums.shape == (2, 64, 4) and len(launched) == 1
    backward = torch.registered["fireiron::attention_gradients"]
    assert [one.lies for one in backward.fake(q, q, q, q, q, sums, None, True, 3, None, None)] == [(q.shape, q.steps)] * 3
    with pytest.raises(ArgumentError, match="its gradients have no gradient"):
        backward.remember(None, (real, real, real), out)
