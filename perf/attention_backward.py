"""Compare attention backward with cuDNN and FlashAttention-2 (both by torch's scaled_dot_product_attention), in one run.

    python perf/attention_backward.py FOLDER [--sizes 1024,4096,16384] [--dims 64,128] [--rounds 5] [--tokens 16384] [--causal 0,1]
        [--pause 0.25] [--rival FILE]

Float16, 16k tokens, 2048 elements in all heads of a token, arrays (b, h, m, d). The times are those of dQ, dK and dV, without the forward
pass; ours contain the kernels before and after. Each result is first verified against float64, with outputs initialized to NaN. Then all
are measured in bursts. Buffers are larger than the L2 cache. Work is 10 b h m n d operations, half of it under a causal mask. Writes
`attention_backward.json` and `attention_backward.md`.

The file of a rival, as for `attention.py`, has a function `backward(q, k, v, o, lse, do, causal)`, which returns a launch of its gradients.
"""

import argparse
import itertools
import json
import math
import statistics
import time
from pathlib import Path

from attention import rival_of, table_of

WIDTH = 2048
"""Elements of all heads of a token."""

PEERS = {"cuDNN": "CUDNN_ATTENTION", "FA2": "FLASH_ATTENTION"}
"""Backends of torch."""

MOST = 3e-3
"""Maximum relative Frobenius error of a gradient in float16."""


def work_of(length, d, causal, tokens):
    """Return the operations of the five products."""
    return 10 * tokens * length * WIDTH / (2 if causal else 1)


def inputs_of(length, d, causal, tokens, width=WIDTH):
    """Return q, k, v, the result of the forward pass, its log-sum-exp and the gradient of the result."""
    import torch

    import fireiron

    shape = (tokens // length, width // d, length, d)
    generator = torch.Generator(device="cuda").manual_seed(0)
    q, k, v, do = (torch.randn(shape, generator=generator, device="cuda", dtype=torch.float16) for _ in range(4))
    o, lse = fireiron.attention(q, k, v, causal=causal, lse=True)
    return q, k, v, o, lse, do


def by_torch(backend, causal, inputs):
    """Return a launch of torch's gradients by a backend."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    q, k, v = (one.detach().requires_grad_() for one in inputs[:3])
    with sdpa_kernel(getattr(SDPBackend, backend)):
        o = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)
    return lambda: torch.autograd.grad(o, (q, k, v), inputs[5], retain_graph=True)


def as_queries(array):
    """Return an array (b, h, m, d) as `[b,m,g,r,d]`."""
    b, h, m, d = array.shape
    return array.as_strided((b, m, h, 1, d), (h * m * d, d, m * d, m * d, 1))


def strided(length, d):
    """Return the storage of arrays (b, h, m, d) for the spec."""
    from fireiron import Strides

    heads = WIDTH // d
    order = {"b": heads * length * d, "g": length * d, "d": 1}
    queries, keys = Strides(**order, r=length * d, m=d), Strides(**order, n=d)
    return {"Q": queries, "dO": queries, "K": keys, "V": keys, "dK": Strides(**order, r=length * d, n=d)}


def right_of(inputs, causal, batch, head):
    """Return the gradients of one head in float64."""
    import torch

    q, k, v, _, _, do = (one[batch, head].double() for one in inputs)
    scale = q.shape[-1] ** -0.5
    dq, dk, dv = (torch.zeros_like(one) for one in (q, k, v))
    for start in range(0, len(q), 2048):
        rows = slice(start, start + 2048)
        scores = q[rows] @ k.T * scale
        if causal:
            places = torch.arange(scores.shape[1], device=q.device)
            scores.masked_fill_(places[None] > torch.arange(start, start + len(scores), device=q.device)[:, None], -math.inf)
        p = scores.softmax(-1)
        dp = do[rows] @ v.T
        ds = p * (dp - (p * dp).sum(-1, keepdim=True))
        dq[rows] = ds @ k * scale
        dk += ds.T @ q[rows] * scale
        dv += p.T @ do[rows]
    return dq, dk, dv


def errors_of(results, inputs, causal):
    """Return the largest relative Frobenius error of each gradient in the first and the last head."""
    b, h = inputs[0].shape[:2]
    worst = [0.0, 0.0, 0.0]
    for batch, head in {(0, 0), (b - 1, h - 1)}:
        for place, (result, right) in enumerate(zip(results, right_of(inputs, causal, batch, head), strict=True)):
            error = float((result[batch, head].double() - right).norm() / right.norm())
            worst[place] = max(worst[place], error if math.isfinite(error) else math.inf)
    return worst


def by_fireiron(inputs, causal):
    """Return a launch of `fireiron.attention`'s gradients."""
    import torch

    import fireiron

    q, k, v = (one.detach().requires_grad_() for one in inputs[:3])
    o = fireiron.attention(q, k, v, causal=causal)
    return lambda: torch.autograd.grad(o, (q, k, v), inputs[5], retain_graph=True)


def times_of(calls, rounds, pause):
    """Return the median time of a call in microseconds, by contender: bursts of 20 ms after a pause, contenders alternate, no graphs."""
    import torch

    def timed(call, count):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        call()
        begin.record()
        for _ in range(count):
            call()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) * 1000 / count

    counts = {name: max(1, round(20_000 / timed(call, 1))) for name, call in calls.items()}
    times = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            torch.cuda.synchronize()
            time.sleep(pause)
            times[name].append(timed(call, counts[name]))
    return {name: statistics.median(one) for name, one in times.items()}


def measured(length, d, causal, given):
    """Return times in microseconds by contender, and the errors."""
    inputs = inputs_of(length, d, causal, given.tokens)
    calls = {"fireiron": by_fireiron(inputs, causal)}
    for name, backend in PEERS.items():
        try:
            call = by_torch(backend, causal, inputs)
            call()
        except RuntimeError as error:
            print(f"left out: {name}: {str(error).splitlines()[0]}", flush=True)
            continue
        calls[name] = call
    if given.rival is not None:
        rival = rival_of(given.rival)
        call = rival.backward(*inputs, causal)
        calls |= {rival.NAME: call} if call is not None else {}
    errors = {name: errors_of(call(), inputs, causal) for name, call in calls.items()}
    if not max(map(max, errors.values())) < MOST:
        raise SystemExit(f"wrong: {length} {d} causal {causal}: {errors}")
    return times_of(calls, given.rounds, given.pause), errors


def main():
    """Measure, and write the tables."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--sizes", default="1024,4096,16384")
    parser.add_argument("--dims", default="64,128")
    parser.add_argument("--causal", default="0,1")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--pause", type=float, default=0.25)
    parser.add_argument("--tokens", type=int, default=16384)
    parser.add_argument("--rival", type=Path, help="a Python file with NAME and backward")
    given = parser.parse_args()
    sizes, dims, masks = ([int(one) for one in text.split(",")] for text in (given.sizes, given.dims, given.causal))
    records = []
    for d, causal, length in itertools.product(dims, [bool(mask) for mask in masks], sizes):
        times, errors = measured(length, d, causal, given)
        speed = {name: work_of(length, d, causal, given.tokens) / us / 1e6 for name, us in times.items()}
        records.append({"d": d, "type": "float16", "causal": causal, "length": length, "us": times, "TFLOP/s": speed, "errors": errors})
        print(d, "causal" if causal else "full", length, {name: round(one) for name, one in speed.items()}, flush=True)
    given.folder.mkdir(parents=True, exist_ok=True)
    (given.folder / "attention_backward.json").write_text(json.dumps(records, indent=1))
    (given.folder / "attention_backward.md").write_text(table_of(records) + "\n")
    print(table_of(records))


if __name__ == "__main__":
    main()
