"""`fireiron.linear_cross_entropy` and `fireiron.optim.AdamW` on a GPU, compared with PyTorch in float64."""

import importlib

import pytest

import fireiron
from fireiron import ArgumentError
from fireiron.gpu import launch

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
    return torch_module


def near(got, want, limit):
    return float((got.double() - want).norm()) <= limit * float(want.norm())


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("recompute", [None, True])
@pytest.mark.parametrize(
    ("shape", "classes", "dtype", "reduction"),
    [((3, 100, 128), 1000, "float16", "mean"), ((257, 64), 513, "bfloat16", "sum"), ((70, 50), 300, "float16", "none")],
)
def test_cross_entropy_of_a_linear_layer(torch, monkeypatch, shape, classes, dtype, reduction, recompute, compiled):
    monkeypatch.setattr(importlib.import_module("torch._functorch.config"), "donated_buffer", False)  # compiled calls keep their operands
    x, weight = (torch.randn(one, device="cuda").to(getattr(torch, dtype)).mul(0.5) for one in (shape, (classes, shape[-1])))
    targets = torch.randint(classes, shape[:-1], device="cuda")
    targets.flatten()[7] = -100
    leaves, wide = ([one.detach().to(kind).requires_grad_() for one in (x, weight)] for kind in (x.dtype, torch.float64))
    call = torch.compile(fireiron.linear_cross_entropy, fullgraph=True) if compiled else fireiron.linear_cross_entropy
    got = call(*leaves, targets, reduction=reduction, recompute=recompute)
    want = torch.nn.functional.cross_entropy((wide[0] @ wide[1].T).flatten(0, -2), targets.flatten(), reduction=reduction).view(got.shape)
    factor = torch.randn(got.shape, device="cuda")
    (got * factor).sum().backward(retain_graph=True)
    first = [one.grad for one in leaves]
    for leaf in leaves:
        leaf.grad = None
    (got * factor).sum().backward()
    assert all(map(torch.equal, first, [one.grad for one in leaves])), "a second backward pass has the same operands"
    (want * factor).sum().backward()
    assert near(got.detach(), want.detach(), 1e-4)
    assert all(near(mine.grad, other.grad, 1e-2) for mine, other in zip(leaves, wide, strict=True))


@pytest.mark.parametrize(("kind", "moment"), [("float32", "float32"), ("bfloat16", "float32"), ("bfloat16", "bfloat16")])
def test_adamw(torch, kind, moment):
    """Steps of contiguous, transposed and short parameters, with gradients in new memory; a state that is stored and loaded."""
    kind, moment = getattr(torch, kind), getattr(torch, moment)
    options = {"lr": 1e-2, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.1}
    given = [torch.randn(shape, device="cuda").to(kind) for shape in ((40, 513), (1001,), (7,), (256, 128))]
    given[0] = given[0].T
    ours, right = ([one.clone().to(own).requires_grad_() for one in given] for own in (kind, torch.float64))
    optimizer, other = fireiron.optim.AdamW(ours, **options, moment_dtype=moment), torch.optim.AdamW(right, **options)
    for _ in range(3):
        for param, wide in zip(ours, right, strict=True):
            param.grad = torch.randn_like(param)
            wide.grad = param.grad.double()
        optimizer.step()
        other.step()
        again = fireiron.optim.AdamW(ours, **options, moment_dtype=moment)
        again.load_state_dict(optimizer.state_dict())
        optimizer = again
    limit = 1e-6 if kind == torch.float32 else 1e-2
    for param, wide in zip(ours, right, strict=True):
        assert near(param.detach(), wide.detach(), limit)
        assert near(optimizer.state[param]["exp_avg_sq"], other.state[wide]["exp_avg_sq"], 1e-6 if moment == torch.float32 else 1e-2)


def test_adamw_refuses_parameters_with_gaps(torch):
    param = torch.randn(8, 8, device="cuda")[:, :4].requires_grad_()
    param.grad = torch.randn_like(param)
    with pytest.raises(ArgumentError, match="has gaps"):
        fireiron.optim.AdamW([param]).step()
