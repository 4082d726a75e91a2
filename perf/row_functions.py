"""Compare functions of rows with torch.compile and a copy: norms with residual, 8-bit outputs and gradients, softmax, cross-entropy, dropout.

    python perf/row_functions.py FOLDER [--rounds 5] [--only rmsnorm,cross_entropy]

Each result is first compared with the same formula in float64. `GB` are the bytes that a call must read and write at least once; the copy
moves as many. torch.compile gets the formula in float32 with conversions, as PyTorch computes it. CUDA graphs, bursts, operand sets that
rotate through L2, all contenders of a function in one run. Writes `row_functions.json` and `row_functions.txt`.
"""

import argparse
import functools
import json
import math
from pathlib import Path

from layernorm import EPSILON, PAUSE, kept
from other_types import ROTATED
from tabulate import tabulate

import fireiron

KEEP, SEED = 0.9, 1234
EIGHT_BITS = 448


def wide(function):
    """Return a formula in float32, or in float64 for arrays of float64; the results have the type of the first array."""

    def converted(torch, *arrays):
        kind = torch.float64 if arrays[0].dtype == torch.float64 else torch.float32
        return function(torch, *(one.to(kind) if one.is_floating_point() else one for one in arrays))

    return converted


@wide
def rmsnorm(torch, x, w):
    return (x * torch.rsqrt((x * x).mean(-1, keepdim=True) + EPSILON) * w,)


@wide
def rmsnorm_gradient(torch, x, w, dy):
    r = torch.rsqrt((x * x).mean(-1, keepdim=True) + EPSILON)
    g, n = dy * w, x * r
    return (g - n * (g * n).mean(-1, keepdim=True)) * r, (dy * n).sum(0)


@wide
def layernorm_gradient(torch, x, w, dy):
    c = x - x.mean(-1, keepdim=True)
    r = torch.rsqrt((c * c).mean(-1, keepdim=True) + EPSILON)
    g, n = dy * w, c * r
    return (g - g.mean(-1, keepdim=True) - n * (g * n).mean(-1, keepdim=True)) * r, (dy * n).sum(0), dy.sum(0)


@wide
def rmsnorm_residual(torch, x, residual, w):
    z = x + residual
    return z, *rmsnorm(torch, z, w)


@wide
def quantized(torch, x, residual, w):
    z, y = rmsnorm_residual(torch, x, residual, w)
    scale = y.abs().amax(-1, keepdim=True) / EIGHT_BITS
    return z, y / scale, scale[:, 0]


@wide
def softmax_gradient(torch, y, dy):
    return (y * (dy - (y * dy).sum(-1, keepdim=True)),)


@wide
def cross_entropy(torch, x, label):
    lse = torch.logsumexp(x, -1)
    return lse - x.gather(1, label[:, None])[:, 0], lse


@wide
def cross_entropy_gradient(torch, x, label, lse, dloss):
    hit = torch.arange(x.shape[1], device=x.device) == label[:, None]
    return ((torch.exp(x - lse[:, None]) - hit.to(x.dtype)) * dloss[:, None],)


@wide
def swiglu(torch, x):
    first, second = x.chunk(2, -1)
    return (torch.nn.functional.silu(first) * second,)


@wide
def swiglu_gradient(torch, x, dy):
    (first, second), dy = x.chunk(2, -1), dy[:, : x.shape[1] // 2]
    slope = torch.sigmoid(first)
    return (torch.cat((dy * second * slope * (1 + first * (1 - slope)), dy * first * slope), -1),)


@wide
def rope(torch, x):
    halves = x.view(*HEADS)
    first, second = halves[..., 0, :], halves[..., 1, :]
    c, s = (one[:, None].to(x.dtype) for one in tables(torch))
    return (torch.stack((first * c - second * s, second * c + first * s), 3).view(x.shape),)


HEADS = (4, 4096, 32, 2, 64)
"""Batch, position, head, half, element of the rotated matrix."""


@functools.cache
def tables(torch):
    """Return cosines and sines by position and element."""
    angles = torch.arange(HEADS[1], device="cuda")[:, None] * 10000 ** (-torch.arange(HEADS[-1], device="cuda") / HEADS[-1])
    return angles.cos(), angles.sin()


def arrays_of(torch, rows, columns, *words):
    """Return arrays by words: `x` a matrix, `w` a vector of columns, `label`, and `lse` of the first matrix."""
    matrix = functools.partial(torch.randn, rows, columns, device="cuda", dtype=torch.float16)
    given = []
    for word in words:
        if word == "w":
            given.append(torch.randn(columns, device="cuda", dtype=torch.float16))
        elif word == "label":
            given.append(torch.randint(columns, (rows,), device="cuda"))
        elif word == "lse":
            given.append(torch.logsumexp(given[0].float(), -1))
        elif word == "dloss":
            given.append(torch.ones(rows, device="cuda"))
        else:
            given.append(torch.softmax(matrix().float(), -1).half() if word == "probabilities" else matrix())
    return given


def library(torch):
    """Return, by name: rows and columns, words of the arrays, our call, the formula, the types of results, and matrices moved."""
    f, half, single, eight = fireiron.function, torch.float16, torch.float32, torch.float8_e4m3fn

    def norm_gradients(name, outputs):
        of_input, of_weight = f(f"{name}_input_gradient"), f(f"{name}_weight_gradient")

        def run(x, w, dy):
            dx, *statistics = of_input(x, w, EPSILON, dy)
            sums = of_weight(x, *statistics, dy)
            return (dx, *(sums if outputs > 1 else (sums,)))

        return run

    def entropy_gradient(x, label, lse, dloss):
        return (f("cross_entropy_gradient")(x, label, lse, dloss, zeros(torch, len(label))),)

    return {
        "rmsnorm, gradients": ((16384, 4096), ("x", "w", "dy"), norm_gradients("rmsnorm", 1), rmsnorm_gradient, (half, single), 3),
        "layernorm, gradients": ((16384, 4096), ("x", "w", "dy"), norm_gradients("layernorm", 2), layernorm_gradient, (half, single, single), 3),
        "rmsnorm + residual": (
            (16384, 4096), ("x", "r", "w"), lambda x, r, w: f("rmsnorm_residual")(x, r, w, EPSILON), rmsnorm_residual, (half, half), 4,
        ),
        "rmsnorm + residual, fp8": (
            (16384, 4096), ("x", "r", "w"), lambda x, r, w: f("rmsnorm_residual:eight_bit")(x, r, w, EPSILON), quantized,
            (half, eight, single), 3.5,
        ),
        "softmax, gradient": ((16384, 4096), ("probabilities", "dy"), lambda y, dy: (f("softmax_gradient")(y, dy),), softmax_gradient, (half,), 3),
        "cross-entropy": ((4096, 128256), ("x", "label"), lambda x, label: f("cross_entropy")(x, label), cross_entropy, (single, single), 1),
        "cross-entropy, gradient": (
            (4096, 128256), ("x", "label", "lse", "dloss"), entropy_gradient, cross_entropy_gradient, (half,), 2,
        ),
        "rope": (
            (16384, 4096), ("x",), lambda x: (f("rope")(x.view(*HEADS), *tables(torch)).view(x.shape),), rope, (half,), 2,
        ),
        "swiglu": ((4096, 28672), ("x",), lambda x: (f("swiglu")(x.unflatten(-1, (2, -1))),), swiglu, (half,), 1.5),
        "swiglu, gradient": (
            (4096, 28672), ("x", "dy"),
            lambda x, dy: (f("swiglu_gradient")(dy[:, : x.shape[1] // 2], x.unflatten(-1, (2, -1))).flatten(1),), swiglu_gradient, (half,), 2.5,
        ),
        "dropout": ((16384, 4096), ("x",), lambda x: (f("dropout")(x, SEED, KEEP),), None, (half,), 2),
    }  # fmt: skip


@functools.cache
def zeros(torch, rows):
    """Return zeros, made once."""
    return torch.zeros(rows, device="cuda")


def checked(torch, name, got, arrays, formula):
    """Return the largest relative Frobenius error of the results."""
    if formula is None:
        kept_elements = got[0] != 0
        torch.testing.assert_close(got[0][kept_elements], (arrays[0] / KEEP)[kept_elements], rtol=2e-3, atol=1e-5)
        assert abs(float(kept_elements.float().mean()) - KEEP) < 1e-3, name
        return 0.0
    rows = min(len(arrays[0]), 16384 * 4096 // arrays[0].shape[1])
    whole = len(arrays[0]) == rows
    few = arrays if whole else [one[:rows] if len(one) == len(arrays[0]) else one for one in arrays]
    want = formula(torch, *(one.double() if one.is_floating_point() else one for one in few))
    errors = [float((one[: len(right)].double() - right).norm() / right.norm()) for one, right in zip(got, want, strict=True)]
    limit = 0.04 if "fp8" in name else 2e-3
    if not max(errors) < limit:
        raise SystemExit(f"{name} is wrong: relative errors {errors}")
    return max(errors)


def measured(torch, name, case, rounds):
    """Return the times by contender in microseconds, and our error."""
    from fireiron.measure.timing import measure

    (rows, columns), words, ours, formula, types, moved = case
    count = max(2, math.ceil(ROTATED / (rows * columns * 2 * moved)))
    sets = [arrays_of(torch, rows, columns, *words) for _ in range(count)]
    error = checked(torch, name, ours(*sets[0]), sets[0], formula)
    calls = {"ours": [kept(ours, *one) for one in sets]}

    def plain(*arrays):
        if formula is None:
            return (torch.nn.functional.dropout(arrays[0], 1 - KEEP),)
        return tuple(one.to(kind) for one, kind in zip(formula(torch, *arrays), types, strict=True))

    compiled = torch.compile(plain)
    compiled(*sets[0])
    calls["compile"] = [kept(compiled, *one) for one in sets]
    half = round(rows * moved / 2)
    pairs = [tuple(torch.randn(half, columns, device="cuda").half() for _ in range(2)) for _ in sets]
    calls["copy"] = [functools.partial(target.copy_, source) for source, target in pairs]
    return {label: one.us for label, one in measure(calls, rounds=rounds, pause=PAUSE).items()}, error


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    import torch
    import torch._dynamo

    from fireiron.measure.timing import environment

    torch.manual_seed(0)
    torch._dynamo.config.recompile_limit = 64  # one function, compiled for each case
    table, result = [], []
    for name, case in library(torch).items():
        if not any(word in name for word in options.only.split(",")):
            continue
        times, error = measured(torch, name, case, options.rounds)
        (rows, columns), moved = case[0], case[-1]
        rate = rows * columns * 2 * moved / times["ours"] / 1e6
        table.append((name, rows, columns, *times.values(), rate, times["compile"] / times["ours"], times["copy"] / times["ours"]))
        result.append({"function": name, "rows": rows, "columns": columns, "us": times, "error": error})
        print(table[-1], flush=True)
        torch.cuda.empty_cache()
    heads = ("function", "rows", "columns", "ours us", "compile us", "copy us", "ours TB/s", "compile/ours", "copy/ours")
    text = tabulate(table, heads, floatfmt=("", "", "", ".1f", ".1f", ".1f", ".2f", ".2f", ".2f")) + "\n"
    print(text)
    (options.folder / "row_functions.txt").write_text(text)
    (options.folder / "row_functions.json").write_text(json.dumps({"environment": environment(), "measured": result}, indent=1) + "\n")


if __name__ == "__main__":
    main()
