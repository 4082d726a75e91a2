"""Compare LayerNorm, RMSNorm and softmax of fp16 rows with a copy of the same bytes, PyTorch, torch.compile and Triton (Graphene, Figure
13).

    python perf/layernorm.py FOLDER [--rounds 5] [--rows 4096,8192,16384,32768,65536] [--hidden 1024,4096,8192] [--no-compile]
    python perf/layernorm.py FOLDER --kernels rmsnorm,softmax --rounds 4 --rows 4096,16384,65536 [--no-compile]

Our kernels support any number of rows; `ours` is the library's choice for the size, the others distribute a row over other numbers of
warps, or sum rows and their squares `at once`. Each kernel is first compared with float64, on outputs initialized to NaN. The copy is the
better of `copy_` and `torch.neg`. TB/s count one read and one write of the matrix. Bursts, on operand sets that rotate through L2; all of
one size in one run. Writes `layernorm.json` and `layernorm.txt` into the folder, or files named after the kernels, `rmsnorm-softmax.json`.
The second call takes about 50 seconds on an H200, 25 without torch.compile.
"""

import argparse
import functools
import itertools
import json
import math
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from other_types import ROTATED
from tabulate import tabulate

from fireiron import float16, sym
from fireiron.strategies import layernorm, rmsnorm, softmax

EPSILON = 1e-5
PAUSE = 0.05
"""Seconds before each burst: these kernels are memory-bound, and not limited by power."""

ALL = "layernorm,rmsnorm,softmax"

LOADS = {1024: (1, 2, 4), 4096: (1, 2, 4), 8192: (2, 4, 8)}
"""The numbers of 16-byte loads per lane and row, by row size: the forms to measure."""


def forms(module, hidden):
    """Return our kernels for a given row size, by name; any number of rows."""
    spec = module.spec(sym("M"), hidden, dtype=float16)
    chosen = module.values(spec)
    kernels = {"ours": module.strategy.with_(**chosen)(spec).compile()}
    for loads in LOADS.get(hidden, ()):
        warps = hidden // (256 * loads)
        values = {"rows": max(4 // warps, 1), "iterations": loads, "vector": 8}
        if values != chosen:
            kernels[f"{warps} warps"] = module.strategy.with_(**values)(spec).compile()
        if hasattr(module, "at_once"):
            at_once = module.spec(sym("M"), hidden, form="at_once", dtype=float16)
            kernels[f"{warps} warps at once"] = module.at_once.with_(**values)(at_once).compile()
            if warps > 1:
                kernels[f"{warps} warps in parts"] = module.in_parts(warps).with_(**values)(at_once).compile()
    return kernels


def triton_kernels():
    """Return Triton's kernels by name, for rows that fit one program: LayerNorm and softmax as in its tutorials, RMSNorm similarly."""
    import triton
    import triton.language as tl

    @triton.jit
    def layer_norm(X, Y, W, B, stride, N, eps, BLOCK: tl.constexpr):
        row = tl.program_id(0)
        columns = tl.arange(0, BLOCK)
        inside = columns < N
        x = tl.load(X + row * stride + columns, mask=inside, other=0.0).to(tl.float32)
        mean = tl.sum(x, axis=0) / N
        centered = tl.where(inside, x - mean, 0.0)
        scale = 1 / tl.sqrt(tl.sum(centered * centered, axis=0) / N + eps)
        w = tl.load(W + columns, mask=inside)
        b = tl.load(B + columns, mask=inside)
        tl.store(Y + row * stride + columns, centered * scale * w + b, mask=inside)

    @triton.jit
    def rms_norm(X, Y, W, B, stride, N, eps, BLOCK: tl.constexpr):
        row = tl.program_id(0)
        columns = tl.arange(0, BLOCK)
        inside = columns < N
        x = tl.load(X + row * stride + columns, mask=inside, other=0.0).to(tl.float32)
        scale = 1 / tl.sqrt(tl.sum(x * x, axis=0) / N + eps)
        tl.store(Y + row * stride + columns, x * scale * tl.load(W + columns, mask=inside), mask=inside)

    @triton.jit
    def softmax(X, Y, W, B, stride, N, eps, BLOCK: tl.constexpr):
        row = tl.program_id(0)
        columns = tl.arange(0, BLOCK)
        inside = columns < N
        x = tl.load(X + row * stride + columns, mask=inside, other=-float("inf")).to(tl.float32)
        power = tl.exp(x - tl.max(x, axis=0))
        tl.store(Y + row * stride + columns, power / tl.sum(power, axis=0), mask=inside)

    def launcher(kernel):
        def launch(x, w, b, y, warps):
            rows, hidden = x.shape
            kernel[(rows,)](x, y, w, b, x.stride(0), hidden, EPSILON, BLOCK=triton.next_power_of_2(hidden), num_warps=warps)

        return launch

    return {name: launcher(one) for name, one in (("layernorm", layer_norm), ("rmsnorm", rms_norm), ("softmax", softmax))}


def eager(torch, name):
    """Return PyTorch's function of x, w and b."""
    functional = torch.nn.functional
    return {
        "layernorm": lambda x, w, b: functional.layer_norm(x, x.shape[1:], w, b, EPSILON),
        "rmsnorm": lambda x, w, b: functional.rms_norm(x, x.shape[1:], w, EPSILON),
        "softmax": lambda x, w, b: torch.softmax(x, -1),
    }[name]


def kept(function, *arguments):
    """Return a call whose result is kept until the next one, so that each set has separate memory for it."""
    place = []

    def call():
        place[:] = [function(*arguments)]
        return place[0]

    return call


def wanted(torch, name, arrays):
    """Return the first rows of the result in float64."""
    x, w, b, _ = (part.double() if part is not None else None for part in arrays)
    x = x[:512]
    if name == "softmax":
        return torch.softmax(x, -1)
    if name == "rmsnorm":
        return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + EPSILON) * w
    return torch.nn.functional.layer_norm(x, x.shape[1:], w, b, EPSILON)


def checked(torch, name, label, call, arrays):
    """Return the relative Frobenius error of the first rows; outputs that the call writes in place start as NaN."""
    y = arrays[3]
    y.fill_(math.nan)
    result = call()
    torch.cuda.synchronize()
    got = y if result is None or not isinstance(result, torch.Tensor) else result
    want = wanted(torch, name, arrays)
    error = float((got[:512].double() - want).norm() / want.norm())
    if not error < 2e-3 or not bool(torch.isfinite(got).all()):
        raise SystemExit(f"{name} {label} {tuple(y.shape)} is wrong: relative error {error}")
    return error


def calls_of(torch, name, kernels, compiled, triton_launch, sets):
    """Return all contenders, by name, a call for each set."""
    count, numbers = {"layernorm": (3, (EPSILON,)), "rmsnorm": (2, (EPSILON,)), "softmax": (1, ())}[name]
    calls = {label: [kernel.prepare(*one[:count], *numbers, out=one[3]) for one in sets] for label, kernel in kernels.items()}
    calls["torch"] = [kept(eager(torch, name), x, w, b) for x, w, b, _ in sets]
    if compiled is not None:
        calls["compile"] = [kept(compiled, x, w, b) for x, w, b, _ in sets]
    for warps in (4, 8) if triton_launch is not None else ():
        calls[f"triton {warps}"] = [functools.partial(triton_launch, x, w, b, y, warps) for x, w, b, y in sets]
    return calls


def measured(torch, name, rows, hidden, kernels, compiled, triton_launch, rounds):
    """Return times by contender in microseconds, and the errors."""
    from fireiron.measure.timing import measure

    count = max(2, math.ceil(ROTATED / (rows * hidden * 4)))
    w, b = torch.randn(hidden, device="cuda", dtype=torch.float16), torch.randn(hidden, device="cuda", dtype=torch.float16)
    sets = []
    for _ in range(count):
        x = torch.randn(rows, hidden, device="cuda", dtype=torch.float16)
        if compiled is not None:
            torch._dynamo.maybe_mark_dynamic(x, 0)
        sets.append((x, w, b, torch.empty_like(x)))
    calls = calls_of(torch, name, kernels, compiled, triton_launch, sets)
    errors = {label: checked(torch, name, label, ones[0], sets[0]) for label, ones in calls.items()}
    calls["copy_"] = [functools.partial(y.copy_, x) for x, _, _, y in sets]
    calls["neg"] = [functools.partial(torch.neg, x, out=y) for x, _, _, y in sets]
    times = {label: one.us for label, one in measure(calls, rounds=rounds, pause=PAUSE).items()}
    return times, errors


def compiled_of(torch, name):
    """Return PyTorch's function through torch.compile, for any number of rows of one size, as `measured` marks them."""
    return torch.compile(eager(torch, name))


def row_of(name, rows, hidden, times):
    """Return a row of the table: TB/s, and ratios to the copy."""
    copy = min(times["copy_"], times["neg"])
    rate = lambda us: rows * hidden * 4 / us / 1e6
    own = {label: us for label, us in times.items() if label == "ours" or " warps" in label}
    best = min(own, key=own.get)
    triton = min((us for label, us in times.items() if label.startswith("triton")), default=None)
    others = [None if us is None else rate(us) for us in (times["torch"], times.get("compile"), triton)]
    return [name, rows, hidden, rate(copy), rate(times["ours"]), copy / times["ours"], f"{best} {copy / own[best]:.3f}", *others]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rows", default="4096,8192,16384,32768,65536")
    parser.add_argument("--hidden", default="1024,4096,8192")
    parser.add_argument("--kernels", default=ALL)
    parser.add_argument("--no-compile", action="store_true")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    import torch
    import torch._dynamo

    from fireiron.measure.timing import environment

    torch._dynamo.config.recompile_limit = 64  # one function, compiled for each size
    peers = triton_kernels()
    table, result, began = [], [], time.monotonic()
    modules = {"layernorm": layernorm, "rmsnorm": rmsnorm, "softmax": softmax}
    chosen = options.kernels.split(",")
    sizes = [int(one) for one in options.hidden.split(",")]
    with ThreadPoolExecutor(8) as pool:
        kernels = dict(
            zip(itertools.product(chosen, sizes), pool.map(lambda one: forms(modules[one[0]], one[1]), itertools.product(chosen, sizes)))
        )
    print(f"{time.monotonic() - began:.0f} s: {sum(map(len, kernels.values()))} kernels", flush=True)
    for name, hidden in kernels:
        compiled = None if options.no_compile else compiled_of(torch, name)
        for rows in map(int, options.rows.split(",")):
            if name != "layernorm" and options.kernels == ALL and rows not in (4096, 16384):
                continue
            times, errors = measured(torch, name, rows, hidden, kernels[name, hidden], compiled, peers[name], options.rounds)
            table.append(row_of(name, rows, hidden, times))
            result.append({"kernel": name, "rows": rows, "hidden": hidden, "us": times, "errors": errors})
            print(f"{time.monotonic() - began:.0f} s", table[-1], flush=True)
            torch.cuda.empty_cache()
    heads = ("kernel", "rows", "hidden", "copy TB/s", "ours TB/s", "ours/copy", "best form", "torch", "compile", "Triton")
    text = tabulate(table, heads, floatfmt=("", "", "", ".2f", ".2f", ".3f", "", ".2f", ".2f", ".2f")) + "\n"
    print(text)
    called = "layernorm" if "layernorm" in chosen else "-".join(chosen)
    (options.folder / f"{called}.txt").write_text(text)
    (options.folder / f"{called}.json").write_text(json.dumps({"environment": environment(), "measured": result}, indent=1) + "\n")


if __name__ == "__main__":
    main()
