"""Compare `fireiron.optim.AdamW` with PyTorch's fused AdamW: a step of all parameters of a model.

    python perf/adamw.py FOLDER [--layers 4] [--rounds 20]

The parameters are those of layers of an 8B model (`decoder.py`), without the classes, and one vector of 1001 elements. The moments of ours
are float32; those of PyTorch have the type of the parameters, so for bfloat16 it moves 14 bytes per element, ours 22. Both are first compared with
float64 after two steps. Times are medians of CUDA events around a step, contenders alternate; the tensors are larger than the L2 cache.
Writes `adamw.json` and `adamw.txt`.
"""

import argparse
import json
from pathlib import Path

import torch
from decoder import ELEMENTS, GROUPS, INNER, WIDTH, median_ms
from tabulate import tabulate

import fireiron

BYTES = {
    ("float32", "ours"): 28,
    ("float32", "PyTorch"): 28,
    ("bfloat16", "ours"): 22,
    ("bfloat16", "ours, moments in bfloat16"): 14,
    ("bfloat16", "PyTorch"): 14,
}
"""Bytes that a step moves per element."""

OPTIONS = {"lr": 1e-3, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.1}


def parameters(kind, layers):
    """Return parameters with gradients."""
    keys = GROUPS * ELEMENTS
    shapes = [(WIDTH,), (WIDTH, WIDTH + 2 * keys), (WIDTH, WIDTH), (WIDTH,), (WIDTH, 2 * INNER), (INNER, WIDTH)]
    result = [torch.randn(shape, device="cuda").to(kind).requires_grad_() for _ in range(layers) for shape in [*shapes, (1001,)]]
    for param in result:
        param.grad = torch.randn_like(param)
    return result


def check(kind):
    """Compare two steps of small tensors with float64, among them transposed ones and gradients in float32."""
    torch.manual_seed(1)
    given = [torch.randn(shape, device="cuda").to(kind) for shape in ((513, 40), (1001,), (7,), (256, 128))]
    given[0] = given[0].T.contiguous().T
    gradients = [[torch.randn_like(one) for one in given] for _ in range(2)]
    ours, right = ([one.clone().to(own).requires_grad_() for one in given] for own in (kind, torch.float64))
    both = fireiron.optim.AdamW(ours, **OPTIONS), torch.optim.AdamW(right, **OPTIONS)
    for step in gradients:
        for param, wide, grad in zip(ours, right, step, strict=True):
            param.grad, wide.grad = grad.clone(), grad.double()
        for optimizer in both:
            optimizer.step()
    limit = 1e-6 if kind == torch.float32 else 1e-2
    far = max(
        float((own.detach().double() - other.detach()).norm() / other.detach().norm()) for own, other in zip(ours, right, strict=True)
    )
    moments = [(both[0].state[mine]["exp_avg_sq"], both[1].state[other]["exp_avg_sq"]) for mine, other in zip(ours, right, strict=True)]
    worst = max(float((mine.double() - other).norm() / other.norm()) for mine, other in moments)
    if not (far < limit and worst < 1e-6):
        raise SystemExit(f"AdamW is wrong for {kind}: {far}, moments {worst}")
    stored = both[0].state_dict()
    again = fireiron.optim.AdamW(ours, **OPTIONS)
    again.load_state_dict(stored)
    assert (
        all(torch.equal(again.state[one]["exp_avg"], both[0].state[one]["exp_avg"]) for one in ours) and again.state[ours[0]]["step"] == 2
    )
    return far


FORMS = (
    {},
    {"vector": 8},
    {"block": 16},
    {"block": 32},
    {"vector": 8, "block": 16},
    {"vector": 8, "warps": 8, "block": 16},
    {"vector": 8, "warps": 2, "block": 4},
    {"warps": 8, "block": 8},
    {"policy": fireiron.EVICT_FIRST},
    {"vector": 8, "policy": fireiron.EVICT_FIRST},
    {"vector": 8, "block": 16, "policy": fireiron.EVICT_FIRST},
)
"""Arguments of `by_rows` of `strategies/_adamw.py`."""


def forms(given, rounds):
    """Print the milliseconds of a step by the forms of the kernel, each compared with the first."""
    from fireiron import optim
    from fireiron.strategies import _adamw

    plain, block, first = _adamw.by_rows, dict(_adamw.BLOCK), None
    for words in FORMS:
        optim.kernel_for.cache_clear()
        _adamw.by_rows = lambda width, words=words: plain(width, **words) if width == max(block) else plain(width)
        _adamw.BLOCK = block | {max(block): words.get("block", block[max(block)])}
        kept = [one.detach().clone() for one in given]
        optimizer = fireiron.optim.AdamW(given, **OPTIONS)
        optimizer.step()
        result = [one.detach().clone() for one in given[:7]]
        first = first or result
        if not all(float((new - old).norm()) < 1e-2 * float(old.norm()) for new, old in zip(result, first, strict=True)):
            raise SystemExit(f"AdamW is wrong for {words}")
        times = median_ms({"form": optimizer.step}, rounds)
        with torch.no_grad():
            for param, right in zip(given, kept, strict=True):
                param.copy_(right)
        print(f"{times['form']:.3f} ms", words, flush=True)
        del optimizer, kept
    _adamw.by_rows, _adamw.BLOCK = plain, block
    optim.kernel_for.cache_clear()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--bfloat16", action="store_true", help="omit float32")
    parser.add_argument("--forms", action="store_true", help="also measure forms of the kernel")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    from fireiron.measure.timing import environment

    rows, record = [], []
    for kind in (torch.bfloat16,) if options.bfloat16 else (torch.float32, torch.bfloat16):
        name, error = str(kind).removeprefix("torch."), check(kind)
        given = parameters(kind, options.layers)
        if options.forms:
            forms(given, options.rounds)
        elements = sum(one.numel() for one in given)
        optimizers = {"ours": fireiron.optim.AdamW(given, **OPTIONS), "PyTorch": torch.optim.AdamW(given, fused=True, **OPTIONS)}
        if kind == torch.bfloat16:
            optimizers["ours, moments in bfloat16"] = fireiron.optim.AdamW(given, **OPTIONS, moment_dtype=kind)
        for optimizer in optimizers.values():
            optimizer.step()
        times = median_ms({label: one.step for label, one in optimizers.items()}, options.rounds)
        for label, ms in times.items():
            rate = elements * BYTES[name, label] / ms / 1e9
            rows.append((name, label, elements / 1e6, ms, rate, times["PyTorch"] / ms))
            record.append({"type": name, "contender": label, "elements": elements, "ms": ms, "TB/s": rate, "error": error})
        del optimizers, given
        torch.cuda.empty_cache()
    heads = ("type", "contender", "million elements", "ms", "TB/s", "PyTorch / this")
    text = tabulate(rows, heads, floatfmt=("", "", ".1f", ".3f", ".2f", ".2f")) + "\n"
    print(text)
    (options.folder / "adamw.txt").write_text(text)
    (options.folder / "adamw.json").write_text(json.dumps({"environment": environment(), "measured": record}, indent=1) + "\n")


if __name__ == "__main__":
    main()
