"""Measure attention of packed sequences, with and without `isolated`, which copies tokens so that each sequence begins at a tile.

    python perf/packed.py FOLDER [--tokens 16384] [--rounds 5]

Causal, float16, lengths drawn around a mean. Before a measurement, one sequence gets NaN and infinity in all its arrays: with `isolated`, the
results and gradients of all others must keep their bits (dQ: up to rounding, because blocks add to it in no fixed order). All results are
compared with PyTorch's attention of each sequence. CUDA graphs, bursts, contenders alternate, each with one set of arrays (`l2="hot"`): those
of a call with 16384 tokens are larger than L2 together. Then, for the first case, attention with a window and a soft cap is compared with
compiled FlexAttention. Writes `packed.json` and `packed.txt`.
"""

import argparse
import functools
import itertools
import json
from pathlib import Path

import torch
from tabulate import tabulate

from fireiron.strategies import attention_packed, attention_packed_backward

CASES = {
    "mean 2048": (8, 16, 16, 128),
    "mean 256": (64, 16, 16, 128),
    "grouped, mean 2048": (8, 32, 8, 128),
    "d 64, mean 512": (32, 32, 32, 64),
}
"""The number of sequences, of query heads, of key heads, and of elements of a head."""


def offsets_of(count, tokens):
    """Return offsets of sequences with drawn lengths."""
    inside = torch.randint(1, tokens, (count - 1,), device="cuda").sort().values
    return torch.cat([inside.new_zeros(1), inside, inside.new_full((1,), tokens)]).int()


def right(q, k, v, bounds):
    """Return attention of each sequence in float32."""
    result, shared = torch.empty_like(q), q.shape[1] // k.shape[1]
    for begin, end in itertools.pairwise(bounds):
        wide = [array[begin:end].float().repeat_interleave(count, 1).transpose(0, 1) for array, count in ((q, 1), (k, shared), (v, shared))]
        result[begin:end] = torch.nn.functional.scaled_dot_product_attention(*wide, is_causal=True).transpose(0, 1)
    return result


def far(got, want):
    """Return the relative Frobenius error."""
    return float((got.double() - want.double()).norm() / want.double().norm())


def measured(case, tokens, rounds):
    """Return microseconds by call."""
    from fireiron.measure.timing import measure

    count, heads, groups, d = case
    offsets = offsets_of(count, tokens)
    bounds = offsets.tolist()
    q, k, v, grad = (torch.randn(tokens, number, d, device="cuda").half() for number in (heads, groups, groups, heads))
    attend = functools.partial(attention_packed.attend, offsets=offsets, causal=True)
    gradients = functools.partial(attention_packed_backward.gradients, offsets=offsets, causal=True)
    want = right(q, k, v, bounds)
    o, lse = attend(q, k, v, lse=True)
    kept, logs = attend(q, k, v, lse=True, isolated=True)
    errors = far(o, want), far(kept, want), far(logs, lse)
    plain, apart = gradients(grad, q, k, v, o, lse), gradients(grad, q, k, v, kept, logs, isolated=True)
    errors += tuple(far(one, other) for one, other in zip(apart, plain, strict=True))
    if not max(errors) < 2e-3:
        raise SystemExit(f"wrong: {case} {errors}")
    for _ in range(20):
        if not torch.equal(attend(q, k, v, isolated=True), kept):
            raise SystemExit(f"wrong: {case}: two launches differ")
    begin, end = bounds[count // 2 : count // 2 + 2]
    bad = [array.clone() for array in (q, k, v, grad)]
    for array in bad:
        array[begin:end:2], array[begin + 1 : end : 2] = float("nan"), float("inf")
    poor, logs = attend(*bad[:3], lse=True, isolated=True)
    others = torch.ones(tokens, dtype=torch.bool, device="cuda")
    others[begin:end] = False
    if not torch.equal(poor[others], kept[others]) or bool(poor[begin:end].isfinite().any()):
        raise SystemExit(f"wrong: {case}: another sequence changed a result")
    reached = int((~attend(*bad[:3])[others].isfinite()).flatten(1).any(1).sum())
    poor = gradients(bad[3], *bad[:3], poor, logs, isolated=True)
    mixed = far(poor[0][others], apart[0][others])
    if not mixed < 1e-4 or not all(torch.equal(one[others], other[others]) for one, other in zip(poor[1:], apart[1:], strict=True)):
        raise SystemExit(f"wrong: {case}: another sequence changed a gradient: {mixed}")
    calls = {
        "forward": [lambda: attend(q, k, v)],
        "forward, isolated": [lambda: attend(q, k, v, isolated=True)],
        "gradients": [lambda: gradients(grad, q, k, v, o, lse)],
        "gradients, isolated": [lambda: gradients(grad, q, k, v, o, lse, isolated=True)],
    }
    times = {name: one.us for name, one in measure(calls, rounds=rounds, pause=0.05, l2="hot").items()}
    return times, reached


def with_window(case, tokens, rounds, window=1024, cap=30):
    """Return microseconds of attention with a window and a soft cap: ours, and compiled FlexAttention."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    from fireiron.measure.timing import measure

    count, heads, groups, d = case
    offsets = offsets_of(count, tokens)
    q, k, v = (torch.randn(tokens, number, d, device="cuda").half() for number in (heads, groups, groups))
    document = torch.searchsorted(offsets, torch.arange(tokens, device="cuda"), right=True)

    def seen(b, h, m, n):
        return (document[m] == document[n]) & (n <= m) & (m < n + window)

    mask = create_block_mask(seen, None, None, tokens, tokens, device="cuda")
    flex = torch.compile(flex_attention, dynamic=False)
    batched = [array.transpose(0, 1)[None].contiguous() for array in (q, k, v)]
    rival = functools.partial(
        flex, *batched, score_mod=lambda s, b, h, m, n: cap * torch.tanh(s / cap), block_mask=mask, enable_gqa=heads != groups
    )
    want = rival()[0].transpose(0, 1)
    calls = {"FlexAttention": [rival]}
    for function in ("tanh", "tanh_approx"):
        ours = functools.partial(attention_packed.attend, q, k, v, offsets, window=window, score=f"{cap} * {function}(s / {cap})")
        error = far(ours(), want)
        if not error < 3e-3:
            raise SystemExit(f"wrong: {function} {error}")
        calls[f"ours, {function}"] = [ours]
    return {name: one.us for name, one in measure(calls, rounds=rounds, pause=0.05, l2="hot").items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--tokens", type=int, default=16384)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    from fireiron.measure.timing import environment

    torch.manual_seed(0)
    rows, record = [], []
    for name, case in CASES.items():
        times, reached = measured(case, options.tokens, options.rounds)
        ratios = [times["forward, isolated"] / times["forward"], times["gradients, isolated"] / times["gradients"]]
        rows.append((name, *case, *times.values(), *ratios, reached))
        record.append({"case": name, "us": times, "tokens of others that are not finite without `isolated`": reached})
        print(rows[-1], flush=True)
    heads = (
        "case",
        "sequences",
        "heads",
        "key heads",
        "d",
        "forward us",
        "isolated",
        "gradients us",
        "isolated",
        "ratio",
        "ratio",
        "tokens reached",
    )
    text = tabulate(rows, heads, floatfmt=("", "", "", "", "", ".1f", ".1f", ".1f", ".1f", ".2f", ".2f", "")) + "\n"
    print(text)
    windows = with_window(CASES["mean 2048"], options.tokens, options.rounds)
    text += "window of 1024 and soft cap: " + ", ".join(f"{name} {us:.1f} us" for name, us in windows.items()) + "\n"
    print(text.splitlines()[-1], flush=True)
    record.append({"case": "window and soft cap", "us": windows})
    (options.folder / "packed.txt").write_text(text)
    (options.folder / "packed.json").write_text(json.dumps({"environment": environment(), "measured": record}, indent=1) + "\n")


if __name__ == "__main__":
    main()
