"""Compare `fireiron.linear_cross_entropy` with cuBLAS's product of the logits alone, and with PyTorch's cross-entropy of these logits.

    python perf/linear_cross_entropy.py FOLDER [--tokens 4096] [--classes 128256] [--features 4096] [--rounds 5] [--forms] [--no-gradients]
        [--transposed]

bfloat16, random rows and weights, the mean of the losses. `cuBLAS` is `x @ weight.T` into an existing array, the forward product and nothing
else. `PyTorch` is `cross_entropy(x @ weight.T)`, compiled, in float32 after the product. Loss and gradients are compared with PyTorch's in
float32 first. Bursts of CUDA graphs; the weights alone are larger than the L2 cache. `--forms` also measures tiles of the first kernel, and
of the one that stores exponentials.
Writes `linear_cross_entropy.json` and `linear_cross_entropy.txt`.
"""

import argparse
import functools
import json
from pathlib import Path

from gpu_turns import alone
from layernorm import PAUSE
from tabulate import tabulate

import fireiron

FORMS = (
    {},
    {"group_m": 16},
    {"group_m": 4},
    {"stages": 3},
    {"groups": 2, "bm": 64},
    {"groups": 2, "wm": 128, "wide": 128, "stages": 6},
    {"bm": 192, "wide": 192},
    {"bm": 256, "wm": 128, "wide": 128},
)
"""Arguments of `by_rings`."""

KEPT = ({"keep": 64}, {"keep": 64, "pick": True}, {"keep": 64, "stages": 3}, {"keep": 256, "stages": 3}, {"keep": 32})
"""The same for the kernel that stores exponentials; with `pick` also the logits of the targets."""


def arrays(torch, options):
    """Return rows, weights and targets."""
    x = torch.randn(options.tokens, options.features, device="cuda").bfloat16()
    weight = (torch.randn(options.classes, options.features, device="cuda") * options.features**-0.5).bfloat16()
    weight = weight.T.contiguous().T if options.transposed else weight
    return x, weight, torch.randint(options.classes, (options.tokens,), device="cuda")


def plain(torch, x, weight, targets):
    """Return PyTorch's loss."""
    return torch.nn.functional.cross_entropy((x @ weight.T).float(), targets)


def trained(function, x, weight, targets):
    """Return the loss and both gradients."""
    loss = function(x, weight, targets)
    loss.backward()
    result = loss.detach(), x.grad, weight.grad
    x.grad = weight.grad = None
    return result


def distance(got, want):
    """Return the relative Frobenius distance."""
    return float((got.double() - want.double()).norm() / want.double().norm())


def check(torch, x, weight, targets, gradients, recompute=None):
    """Compare with float32 on a part of the rows, and return the distances."""
    x, targets = x[:512].clone(), targets[:512].clone()
    targets[7] = -100
    leaves = [one.clone().requires_grad_(gradients) for one in (x, weight)]
    wide = [one.float().requires_grad_(gradients) for one in (x, weight)]
    got, want = (
        fireiron.linear_cross_entropy(*leaves, targets, recompute=recompute),
        torch.nn.functional.cross_entropy(wide[0] @ wide[1].T, targets),
    )
    distances = {"loss": distance(got.detach(), want.detach())}
    if gradients:
        got.backward()
        want.backward()
        distances |= {name: distance(one.grad, right.grad) for name, one, right in zip(("dx", "dw"), leaves, wide, strict=True)}
    if not all(far < limit for far, limit in zip(distances.values(), (1e-4, 1e-2, 1e-2), strict=False)):
        raise SystemExit(f"linear_cross_entropy is wrong: {distances}")
    again = fireiron.linear_cross_entropy(x, weight, targets)
    assert torch.equal(again, fireiron.linear_cross_entropy(x, weight, targets)), "the bits differ between runs"
    return distances


def forms(torch, x, weight):
    """Return calls of the first kernel by its arguments."""
    from fireiron.strategies import _linear_cross_entropy as parts

    (rows, features), classes, calls = x.shape, len(weight), {}
    row = torch.zeros(rows, device="cuda", dtype=torch.int32)
    order = fireiron.Strides(v=1, k=classes) if weight.stride(0) == 1 else fireiron.RowMajor
    for words in (*FORMS, *KEPT):
        wide, keep, pick = words.get("wide", parts.WIDE), "keep" in words, "pick" in words
        definition, tiles = parts.statistics(classes, wide, keep, pick), -(-classes // wide)
        spec = definition(m=rows, t=tiles, j=wide, k=features, v=classes, dtype=fireiron.bfloat16, W=order)
        kernel = parts.by_rings(definition, **{name: value for name, value in words.items() if name != "pick"})(spec).compile()
        outs = tuple(torch.empty(rows, tiles, device="cuda") for _ in range(3 if pick else 2))
        outs = (*outs, torch.empty(rows, tiles, wide, device="cuda", dtype=x.dtype)) if keep else outs
        given = (x, weight, row) if pick else (x, weight)
        kernel(*given, out=outs)
        lse = torch.logsumexp(outs[0] + outs[1].log(), 1)[:64]
        assert distance(lse, torch.logsumexp(x[:64].float() @ weight.float().T, 1)) < 1e-4, words
        calls[f"kernel {words or 'default'}"] = functools.partial(kernel, *given, out=outs)
    return calls


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path)
    for name, size in (("tokens", 4096), ("classes", 128256), ("features", 4096), ("rounds", 5)):
        parser.add_argument(f"--{name}", type=int, default=size)
    parser.add_argument("--forms", action="store_true")
    parser.add_argument("--no-gradients", action="store_true")
    parser.add_argument("--transposed", action="store_true", help="weights are a matrix (features, classes)")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    import torch

    from fireiron.measure.timing import environment, measure

    torch.manual_seed(0)
    x, weight, targets = arrays(torch, options)
    errors = check(torch, x, weight, targets, not options.no_gradients)
    if not options.no_gradients:
        errors |= {f"{name}, recomputed": far for name, far in check(torch, x, weight, targets, True, recompute=True).items()}
    print("distances", errors, flush=True)
    logits = torch.empty(options.tokens, options.classes, device="cuda", dtype=torch.bfloat16)
    compiled = torch.compile(functools.partial(plain, torch))
    compiled(x, weight, targets)
    calls = {
        "cuBLAS, the product alone": lambda: torch.mm(x, weight.T, out=logits),
        "linear_cross_entropy": lambda: fireiron.linear_cross_entropy(x, weight, targets),
        "PyTorch, compiled": lambda: compiled(x, weight, targets),
    }
    if options.forms:
        calls |= forms(torch, x, weight)
    with alone():
        timings = measure({name: [call] for name, call in calls.items()}, rounds=options.rounds, pause=PAUSE, l2="hot")
    times = {name: timing.us for name, timing in timings.items()}
    if not options.no_gradients:
        del logits
        leaves = [one.clone().requires_grad_() for one in (x, weight)]
        again = functools.partial(fireiron.linear_cross_entropy, recompute=True)
        calls = {
            "with gradients, linear_cross_entropy": lambda: trained(fireiron.linear_cross_entropy, *leaves, targets),
            "with gradients, recomputed": lambda: trained(again, *leaves, targets),
            "with gradients, PyTorch, compiled": lambda: trained(compiled, *leaves, targets),
        }
        for name, call in calls.items():
            call()
            with alone():
                times[name] = timed(torch, call, options.rounds)
    base = times["cuBLAS, the product alone"]
    operations = 2 * options.tokens * options.classes * options.features
    rows = [(name, us, operations / us / 1e6, base / us) for name, us in times.items()]
    text = tabulate(rows, ("call", "us", "TFLOP/s of one product", "cuBLAS / this"), floatfmt=("", ".1f", ".0f", ".3f")) + "\n"
    print(text)
    (options.folder / "linear_cross_entropy.txt").write_text(text)
    record = {"environment": environment(), "sizes": vars(options) | {"folder": ""}, "us": times, "errors": errors}
    (options.folder / "linear_cross_entropy.json").write_text(json.dumps(record, indent=1) + "\n")


def timed(torch, call, rounds):
    """Return the median microseconds of calls, whose memory the allocator reuses, and print the peak memory."""
    times = []
    for number in range(rounds + 2):
        if number == 1:
            torch.cuda.reset_peak_memory_stats()
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda.synchronize()
        begin.record()
        call()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) * 1e3)
    print(f"peak memory {torch.cuda.max_memory_allocated() / 2**30:.2f} GiB", flush=True)
    return sorted(times[2:])[len(times[2:]) // 2]


if __name__ == "__main__":
    main()
