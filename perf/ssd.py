"""Compare `fireiron.ssd` and `fireiron.linear_attention` with Triton, `torch.compile` and a copy.

    python perf/ssd.py FOLDER [--only NAME ...] [--compile NAME ...] [--kernels NAME ...] [--gradients NAME ...]

Sizes are those of Mamba-2 2.7B (80 heads of 64 elements, states of 128, one group), of 64 heads with 8 groups, of a hybrid of 8B (128 heads,
8 groups), and of a RetNet. Each result is first compared with the recurrence in float64, position by position, for the first sequence, and
20 calls are compared bit by bit. `copy` reads and writes as many bytes as x and y have. The share of bandwidth counts each input and output
once, at 4.8 TB/s. Times are medians of 7 rounds of 10 calls, by CUDA events, kept busy; L2 is not overwritten, and the arrays are larger
except for the case of 1 x 2048. Triton is the published algorithm in five kernels (`ssd_triton.py`), autotuned, with products C B^T in
float32 and in 16 bits; the faster one counts. `--compile` names the cases with `torch.compile` of the chunked form, whose chunks are 256
positions. `--kernels` prints the time of each kernel of a call, `--gradients` that of the outputs with all gradients. Writes `ssd.md`.
"""

import argparse
import functools
import statistics
import subprocess
import sys
import time
from pathlib import Path

import attrs
from gpu_turns import alone
from tabulate import tabulate


@attrs.frozen
class Case:
    """A problem: sequences, positions, heads, elements of x, groups, elements of B, and whether it is linear attention."""

    batch: int
    length: int
    heads: int = 80
    p: int = 64
    groups: int = 1
    n: int = 128
    is_linear: bool = False
    dtype: str = "bfloat16"


CASES = {
    "2.7B, 8 x 4096": Case(8, 4096),
    "2.7B, 8 groups, 8 x 4096": Case(8, 4096, groups=8),
    "64 heads, 8 x 4096": Case(8, 4096, 64),
    "64 heads, 8 groups, 8 x 4096": Case(8, 4096, 64, groups=8),
    "2.7B, 1 x 2048": Case(1, 2048),
    "2.7B, 1 x 8192": Case(1, 8192),
    "2.7B, 2 x 16384": Case(2, 16384),
    "2.7B, 4 x 2048, float16": Case(4, 2048, dtype="float16"),
    "8B, 4 x 4096": Case(4, 4096, 128, groups=8),
    "8B, 1 x 16384": Case(1, 16384, 128, groups=8),
    "2.7B, 4 x 4000": Case(4, 4000),
    "RetNet, 4 x 4096": Case(4, 4096, 16, 128, 16, 128, True),
}

CHUNK = 256
"""Positions of a chunk in PyTorch: 3 times as fast as 128 with `torch.compile`."""


def arrays(torch, case):
    """Return x, dt, A, B and C."""
    torch.manual_seed(0)
    kind, device = getattr(torch, case.dtype), "cuda"
    x = torch.randn(case.batch, case.length, case.heads, case.p, device=device, dtype=kind)
    b, c = (torch.randn(case.batch, case.length, case.groups, case.n, device=device, dtype=kind) * 0.3 for _ in range(2))
    dt = torch.rand(case.batch, case.length, case.heads, device=device) * 0.1
    return x, dt, -4 * torch.rand(case.heads, device=device), b, c


def call_of(fireiron, case, given):
    """Return the call of the library."""
    x, dt, a, b, c = given
    if case.is_linear:
        return lambda: fireiron.linear_attention(c, b, x, a * 0.1)
    return lambda: fireiron.ssd(x, dt, a, b, c)


def recurrence(torch, case, given):
    """Return the outputs of the first sequence in float64, position by position."""
    x, dt, a, b, c = (one.double() if place == 2 else one[0].double() for place, one in enumerate(given))
    decay = torch.exp(a * 0.1).expand(case.length, -1) if case.is_linear else torch.exp(dt * a)
    weighted = x if case.is_linear else x * dt[..., None]
    b, c = (one.repeat_interleave(case.heads // case.groups, 1) for one in (b, c))
    state = torch.zeros(case.heads, case.p, case.n, device="cuda", dtype=x.dtype)
    y = torch.empty_like(x)
    for t in range(case.length):
        state = torch.addcmul(state * decay[t, :, None, None], weighted[t, :, :, None], b[t, :, None])
        y[t] = (state @ c[t, :, :, None])[..., 0]
    return y


def chunked(x, dt, a, b, c):
    """Compute the recurrence in chunks: x (b,l,h,p), dt (b,l,h), a (h), b and c (b,l,g,n)."""
    import torch

    batch, length, heads, p = x.shape
    groups, n, chunks = b.shape[2], b.shape[3], length // CHUNK
    inner = (batch, chunks, CHUNK, groups, heads // groups)
    log = (dt * a).view(inner).permute(0, 1, 3, 4, 2).cumsum(-1)  # b c g r t
    mask = torch.ones(CHUNK, CHUNK, dtype=torch.bool, device=x.device).tril()
    decay = torch.exp(torch.where(mask, log[..., :, None] - log[..., None, :], -torch.inf))
    weighted = (x * dt[..., None]).to(x.dtype).view(*inner, p).permute(0, 1, 3, 4, 2, 5)  # b c g r t p
    b, c = (one.view(batch, chunks, CHUNK, groups, n).permute(0, 1, 3, 2, 4)[:, :, :, None] for one in (b, c))  # b c g 1 t n
    y = ((c @ b.transpose(-1, -2)) * decay).to(x.dtype) @ weighted
    last = log[..., -1:]
    states = (weighted * torch.exp(last - log)[..., None]).to(x.dtype).transpose(-1, -2) @ b  # b c g r p n
    state, before = torch.zeros_like(states[:, 0], dtype=torch.float32), []
    for i in range(chunks):
        before.append(state.to(x.dtype))
        state = state * torch.exp(last[:, i, ..., None]) + states[:, i]
    y = y + (c @ torch.stack(before, 1).transpose(-1, -2)) * torch.exp(log)[..., None]
    return y.permute(0, 1, 4, 2, 3, 5).reshape(x.shape).to(x.dtype)


def timed(torch, call, rounds=7, calls=10):
    """Return the median time of a call in microseconds."""
    call()
    times = []
    with alone():
        for _ in range(rounds):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            for _ in range(calls):
                call()
            end.record()
            torch.cuda.synchronize()
            times.append(start.elapsed_time(end) / calls * 1e3)
    return statistics.median(times)


def error_of(result, expected):
    """Return the relative error of the first sequence."""
    return float((result[0].double() - expected).norm() / expected.norm())


def rivals(torch, case, given, expected, compiled, triton=True):
    """Return the times of Triton and of `torch.compile`; NaN for those that are not measured."""
    if case.is_linear:  # the same recurrence: dt is constant, and scales the result
        x, dt, a, b, c = given
        given, expected = (x, torch.full_like(dt, 0.1), a, b, c), expected * 0.1
    times = []
    if case.length % CHUNK == 0 and triton:
        import ssd_triton

        for kind in (torch.float32, given[0].dtype):
            call = functools.partial(ssd_triton.chunked, *given, scores_dtype=kind)
            error = error_of(call(), expected)
            times.append(timed(torch, call) if error < 2e-2 else float("nan"))
            print(f"  Triton, C B^T in {kind}: {times[-1]:.1f} us, error {error:.1e}", flush=True)
    peer = float("nan")
    if compiled:
        call = functools.partial(torch.compile(chunked, dynamic=False), *given)
        assert error_of(call(), expected) < 2e-2
        peer = timed(torch, call, 3, 5)
    return min(times, default=float("nan")), peer


def bytes_of(case):
    """Return the bytes of x, y, B, C and dt."""
    return case.batch * case.length * (4 * case.heads * case.p + 4 * case.groups * case.n + 4 * case.heads * (not case.is_linear))


def measured(torch, fireiron, name, case, *rivals_of):
    """Return the row of a case; `rivals_of` states whether `torch.compile` and Triton are measured."""
    given = arrays(torch, case)
    call, expected = call_of(fireiron, case, given), recurrence(torch, case, given)
    first = call()
    error = error_of(first, expected)
    equal = all(torch.equal(call(), first) for _ in range(20))
    ours = timed(torch, call) if error < 1e-2 and equal else float("nan")
    source = given[0].reshape(-1)
    target = torch.empty_like(source)
    copy = timed(torch, lambda: target.copy_(source))
    share = bytes_of(case) / ours / 4.8e6
    why = call_choice(fireiron, case, given)
    print(f"{name}: {ours:.1f} us, copy {copy:.1f}, bandwidth {share:.2f}, error {error:.1e}, equal {equal}, {why}", flush=True)
    triton, peer = rivals(torch, case, given, expected, *rivals_of)
    print(f"  Triton {triton:.1f} us, torch.compile {peer:.1f} us", flush=True)
    return [name, case.dtype, f"{error:.1e}", ours, copy, share, triton, triton / ours, peer, peer / ours, why]


def gradients(torch, fireiron, name, case):
    """Print the times of the outputs with all gradients, and those of `torch.compile`, after a comparison with float64."""
    given = [one.requires_grad_() for one in arrays(torch, case)]
    grad = torch.randn_like(given[0])
    ours, peer = fireiron.ssd, chunked
    if case.is_linear:
        x, dt, a, b, c = given
        given = [c, b, x]
        decay, steps = (a * 0.1).detach(), torch.ones_like(dt).detach()
        ours, peer = (
            lambda c, b, x: fireiron.linear_attention(c, b, x, decay),
            lambda c, b, x: chunked(x, steps[: len(x)], decay, b, c),
        )
    exact, peer = exact_gradients(torch, peer, given, grad), torch.compile(peer, dynamic=False)

    def run(call):
        return torch.autograd.grad(call(*given), given, grad)

    names = "C, B, x" if case.is_linear else "x, dt, A, B, C"
    for title, call in (("ours", ours), ("torch.compile", peer)):
        pairs = zip(run(call), exact, strict=True)
        errors = ", ".join(f"{float((result.double() - right).norm() / right.norm()):.1e}" for result, right in pairs)
        print(f"  errors of the gradients of {names}, {title}: {errors}", flush=True)
    times = [timed(torch, functools.partial(run, call), 3, 4) for call in (ours, peer)]
    text = f"{name}, outputs and gradients: {times[0]:.1f} us, torch.compile {times[1]:.1f} us"
    print(text, flush=True)
    with alone():
        printed_kernels(torch, functools.partial(run, ours))
    return text


def exact_gradients(torch, call, given, grad):
    """Return the gradients of all arrays in float64: of one sequence after the other, to save memory."""
    parts = []
    for place in range(len(grad)):
        rows = [(one if one.dim() == 1 else one[place : place + 1]).detach().double().requires_grad_() for one in given]
        parts.append(torch.autograd.grad(call(*rows), rows, grad[place : place + 1].double()))
    return [sum(own) if own[0].dim() == 1 else torch.cat(own) for own in zip(*parts, strict=True)]


def call_choice(fireiron, case, given):
    """Return the reason of the choice."""
    x, dt, a, b, c = given
    return fireiron.linear_attention.choice(c, b, x, a).why if case.is_linear else fireiron.ssd.choice(x, dt, a, b, c).why


def parts_of_call(torch, case):
    """Print the time of each kernel of a call."""
    import fireiron

    call = call_of(fireiron, case, arrays(torch, case))
    call()
    printed_kernels(torch, call)


def printed_kernels(torch, call, calls=5):
    """Print the time of each kernel of several calls."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(calls):
            call()
        torch.cuda.synchronize()
    for event in profile.key_averages():
        print(f"  {event.key[:60]}: {event.device_time:.1f} us x {event.count}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    for option in ("only", "compile", "kernels", "gradients"):
        parser.add_argument(f"--{option}", nargs="*", default=[])
    parser.add_argument("--no-triton", action="store_true", help="omit Triton")
    arguments = parser.parse_args()
    import torch

    import fireiron

    started = time.time()
    rows, differentiated = [], []
    for name in arguments.only or CASES:
        rows.append(measured(torch, fireiron, name, CASES[name], name in arguments.compile, not arguments.no_triton))
        if name in arguments.kernels:
            parts_of_call(torch, CASES[name])
        if name in arguments.gradients:
            differentiated.append(gradients(torch, fireiron, name, CASES[name]))
    head = ["case", "type", "error", "ours us", "copy us", "bandwidth", "Triton us", "/ ours", "torch.compile us", "/ ours", "choice"]
    gpu = subprocess.run(["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"], capture_output=True, text=True).stdout
    text = tabulate(rows, head, tablefmt="github", floatfmt=".2f")
    words = " ".join(sys.argv)
    about = f"{time.strftime('%Y-%m-%d')}, {gpu.splitlines()[0] if gpu else 'GPU unknown'}, torch {torch.__version__}, `{words}`"
    (arguments.folder / "ssd.md").write_text("\n\n".join((about, text, *differentiated)) + "\n")
    print(f"{time.time() - started:.0f} s")


if __name__ == "__main__":
    main()
