"""`fireiron.ssd` and `fireiron.linear_attention` on a GPU, against the recurrence in float64."""

import pytest

import fireiron

pytestmark = pytest.mark.gpu
torch = pytest.importorskip("torch")

CASES = {
    "one part": (2, 256, 80, 64, 128, 1),
    "parts": (1, 1024, 4, 64, 64, 2),
    "ragged": (2, 200, 4, 64, 128, 4),
    "short": (1, 40, 2, 128, 64, 1),
    "small heads": (1, 192, 4, 32, 16, 2),
}


def arrays(batch, length, heads, p, n, groups, dtype):
    torch.manual_seed(0)
    x = torch.randn(batch, length, heads, p, device="cuda", dtype=dtype)
    b, c = (torch.randn(batch, length, groups, n, device="cuda", dtype=dtype) * 0.3 for _ in range(2))
    return x, torch.rand(batch, length, heads, device="cuda") * 0.2, -4 * torch.rand(heads, device="cuda"), b, c


def recurrence(x, dt, a, b, c, d=None, z=None, state=None, is_linear=False):
    shared = x.shape[2] // b.shape[2]
    x, dt, a = x.double(), dt.double(), a.double()
    b, c = (one.double().repeat_interleave(shared, 2) for one in (b, c))
    state = x.new_zeros(x.shape[0], *x.shape[2:], b.shape[-1]) if state is None else state.double()
    outputs = []
    for t in range(x.shape[1]):
        decay = torch.exp(dt[:, t] * a)[..., None, None]
        state = state * decay + (x[:, t] if is_linear else x[:, t] * dt[:, t, :, None])[..., None] * b[:, t, :, None]
        outputs.append((state @ c[:, t, :, :, None])[..., 0])
    y = torch.stack(outputs, 1)
    y = y if d is None else y + d[:, None] * x
    return (y if z is None else y * torch.nn.functional.silu(z.double())), state


def close(result, expected, bound):
    return float((result.double() - expected).norm() / expected.norm()) < bound


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("case", CASES)
def test_ssd(case, dtype):
    given = arrays(*CASES[case], getattr(torch, dtype))
    x = given[0]
    bound = 2e-3 if dtype == "float16" else 1e-2
    y, state = fireiron.ssd(*given, return_final_state=True)
    expected, last = recurrence(*given)
    assert close(y, expected, bound) and close(state, last, bound)
    for _ in range(5):
        assert torch.equal(fireiron.ssd(*given), y)
    options = {"D": torch.randn(x.shape[2], device="cuda"), "z": torch.randn_like(x), "initial_state": torch.randn_like(state)}
    y, state = fireiron.ssd(*given, **options, return_final_state=True)
    expected, last = recurrence(*given, *options.values())
    assert close(y, expected, bound) and close(state, last, bound)


def test_other_arrays_replay_the_same_kernels():
    """A recorded call with other arrays of the same shapes gives their results."""
    first, second = (arrays(*CASES["parts"], torch.float16) for _ in range(2))
    second = tuple(one * 0.5 for one in second)
    for given in (first, first, second):
        assert close(fireiron.ssd(*given), recurrence(*given)[0], 2e-3)


def test_gates_of_zero_reset_the_state():
    x, dt, _, b, c = arrays(1, 256, 4, 64, 64, 1, torch.float16)
    gates = -dt
    gates[:, ::50] = float("-inf")
    expected, _ = recurrence(x, gates, torch.ones(4, device="cuda"), b, c, is_linear=True)
    assert close(fireiron.linear_attention(c, b, x, gates), expected, 2e-3)


def test_linear_attention_and_compiled_calls():
    x, dt, a, b, c = arrays(2, 256, 4, 64, 64, 4, torch.float16)
    y = fireiron.linear_attention(c, b, x, a * 0.1, scale=0.5)
    assert close(y, 0.5 * recurrence(x, torch.ones_like(dt), a * 0.1, b, c)[0], 2e-3)
    compiled = torch.compile(lambda *given: fireiron.ssd(*given) * 2, fullgraph=True)
    assert close(compiled(x, dt, a, b, c), 2 * recurrence(x, dt, a, b, c)[0], 3e-3)


def test_slices_of_one_projection_are_read_in_place():
    """x, B and C as slices of one tensor, as in Mamba-2."""
    torch.manual_seed(1)
    whole = torch.randn(2, 256, 4 * 64 + 2 * 128, device="cuda", dtype=torch.bfloat16) * 0.3
    x, b, c = whole.split((256, 128, 128), -1)
    x, b, c = x.unflatten(-1, (4, 64)), b.unflatten(-1, (1, 128)), c.unflatten(-1, (1, 128))
    dt, a = torch.rand(2, 256, 4, device="cuda") * 0.2, -torch.rand(4, device="cuda")
    assert close(fireiron.ssd(x, dt, a, b, c), recurrence(x, dt, a, b, c)[0], 1e-2)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_gradients(dtype, compiled):
    """Gradients of all arrays, compared with those of PyTorch for the recurrence in float64."""
    x, dt, a, b, c = arrays(2, 200, 4, 64, 128, 2, getattr(torch, dtype))
    given = [x, dt, a, b, c, torch.randn(4, device="cuda"), torch.randn_like(x), torch.randn(2, 4, 64, 128, device="cuda")]
    given = [one.requires_grad_() for one in given]

    def call(*given):
        return fireiron.ssd(*given, return_final_state=True)

    y, state = (torch.compile(call, fullgraph=True) if compiled else call)(*given)
    grads = torch.randn_like(y), torch.randn_like(state)
    results = torch.autograd.grad((y, state), given, grads)
    wide = [one.detach().double().requires_grad_() for one in given]
    expected = torch.autograd.grad(recurrence(*wide), wide, tuple(one.double() for one in grads))
    for result, right, array in zip(results, expected, given, strict=True):
        assert result.dtype == array.dtype and close(result, right, 4e-3 if dtype == "float16" else 2e-2)


@pytest.mark.parametrize("fastest", [4, 0.04])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_gradients_of_linear_attention(dtype, fastest):
    """The gradients of the logarithms keep their digits over 32 chunks, with fast and with slow decays."""
    kind = getattr(torch, dtype)
    _, _, _, k, q = arrays(1, 2048, 2, 64, 64, 2, kind)
    v, decay = torch.randn(1, 2048, 2, 64, device="cuda", dtype=kind), -fastest * torch.rand(1, 2048, 2, device="cuda")
    given = [one.detach().requires_grad_() for one in (q, k, v, decay)]
    y = fireiron.linear_attention(*given, scale=0.5)
    grad = torch.randn_like(y)
    results = torch.autograd.grad(y, given, grad)
    q, k, v, log = wide = [one.detach().double().requires_grad_() for one in given]
    y, _ = recurrence(v, log, v.new_ones(2), k, q, is_linear=True)
    for result, right in zip(results, torch.autograd.grad(0.5 * y, wide, grad.double()), strict=True):
        assert close(result, right, 4e-3 if dtype == "float16" else 1e-2)
    with pytest.raises(Exception, match="its gradients have no gradient"):
        torch.autograd.grad(fireiron.linear_attention(*given), given, grad, create_graph=True)[0].sum().backward()
