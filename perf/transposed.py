"""Measure types that wgmma reads along k only, in all storage orders of A and B: the strategy hopper with preceding transposes, compared
with PyTorch.

    python perf/transposed.py FOLDER [--size 4096] [--rounds 5]

tf32 is compared with torch.matmul with allow_tf32, e4m3 with bfloat16 results with torch._scaled_mm, int8 with torch._int_mm, if these
support the order. The kernel is the library's default; it is first compared with float64 (relative Frobenius error of the first rows). The
copies are also measured alone, with their memory traffic per second. Bursts, on operand sets that rotate through L2. Writes `transposed.json`
and `transposed.txt` into the folder.
"""

import argparse
import functools
import json
import math
from pathlib import Path

from other_types import ROTATED
from tabulate import tabulate

from fireiron import ColMajor, RowMajor, bfloat16, float8_e4m3, float32, int8, int32, tf32
from fireiron.language.library import default_strategy, defaults
from fireiron.strategies import hopper

KINDS = {"tf32": (tf32, float32, "float32"), "e4m3": (float8_e4m3, bfloat16, "float8_e4m3fn"), "int8": (int8, int32, "int8")}
ORDERS = ("NT", "NN", "TT", "TN")


def matrix(torch, kind, size, transposed):
    """Return random elements, column-major if `transposed`."""
    elements = torch.randint(-8, 9, (size, size), device="cuda") if kind == "int8" else torch.randn(size, size, device="cuda")
    elements = elements.to(getattr(torch, KINDS[kind][2]))
    return elements.t() if transposed else elements


def rival(torch, kind, operands):
    """Return PyTorch's GEMM of an operand set."""
    a, b, c = operands
    if kind == "tf32":
        return functools.partial(torch.matmul, a, b, out=c)
    if kind == "int8":
        return functools.partial(torch._int_mm, a, b, out=c)
    scale = torch.ones((), device="cuda")
    return functools.partial(torch._scaled_mm, a, b, scale_a=scale, scale_b=scale, out_dtype=c.dtype, use_fast_accum=True, out=c)


def error_of(torch, call, operands):
    """Return the relative error of a result, in the Frobenius norm, of the first rows."""
    a, b, c = operands
    c.fill_(0)
    call()
    torch.cuda.synchronize()
    want = a[:256].float().double() @ b.float().double()
    return float((c[:256].double() - want).norm() / want.norm())


def measured(torch, kind, order, size, rounds):
    """Return the row of the table, and times by name."""
    from fireiron.gpu.kernel import CompiledKernel
    from fireiron.measure.timing import measure

    dtype, result, _ = KINDS[kind]
    layouts = {name: ColMajor if letter == "T" else RowMajor for name, letter in zip("AB", order, strict=True)}
    spec = hopper.spec(size, size, size, dtype=dtype, c_dtype=result, **layouts)
    name, chosen = defaults(spec, "sm_90a")[0]
    kernel = default_strategy(name, chosen, spec)(spec).compile("sm_90a")
    count = max(2, math.ceil(ROTATED / (size * size * (2 * dtype.bytes + result.bytes))))
    sets = []
    for _ in range(count):
        operands = [matrix(torch, kind, size, letter == "T") for letter in order]
        sets.append((*operands, torch.empty(size, size, device="cuda", dtype=getattr(torch, str(result)))))
    calls = {"hopper": [kernel.prepare(a, b, out=c) for a, b, c in sets]}
    error = error_of(torch, calls["hopper"][0], sets[0])
    for launch in kernel.program.launches:
        copy = CompiledKernel(launch.program)
        calls[f"copy of {launch.name}"] = [copy.prepare(one["AB".index(launch.name)]) for one in sets]
    try:
        rivals = [rival(torch, kind, one) for one in sets]
        rivals[0]()
        torch.cuda.synchronize()
        calls["torch"] = rivals
    except (RuntimeError, ValueError) as refusal:
        print(f"torch takes no {kind} {order}: {str(refusal).splitlines()[0]}", flush=True)
    times = {name: one.us for name, one in measure(calls, rounds=rounds).items()}
    copies = [us for name, us in times.items() if name.startswith("copy")]
    moved = 2 * size * size * dtype.bytes
    rate = moved * len(copies) / sum(copies) / 1e6 if copies else None
    ratio = times["torch"] / times["hopper"] if "torch" in times else None
    tile = f"{chosen['bm']}x{chosen['bn']}x{chosen['bk']}"
    return [
        kind,
        order,
        times.get("torch"),
        times["hopper"],
        2 * size**3 / times["hopper"] / 1e6,
        ratio,
        sum(copies),
        rate,
        error,
        tile,
    ], times


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--size", type=int, default=4096)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    import torch

    from fireiron.measure.timing import environment

    torch.backends.cuda.matmul.allow_tf32 = True
    rows, kept = [], []
    for kind in KINDS:
        for order in ORDERS:
            row, times = measured(torch, kind, order, options.size, options.rounds)
            rows.append(row)
            kept.append({"type": kind, "order": order, "times": times, "error": row[-2]})
            print(row, flush=True)
            torch.cuda.empty_cache()
    heads = ("type", "A, B", "torch us", "hopper us", "TFLOP/s", "ratio", "copies us", "copies TB/s", "error", "tile")
    table = tabulate(rows, heads, floatfmt=("", "", ".2f", ".2f", ".0f", ".3f", ".2f", ".2f", ".1e", "")) + "\n"
    print(table)
    (options.folder / "transposed.txt").write_text(table)
    (options.folder / "transposed.json").write_text(
        json.dumps({"environment": environment(), "size": options.size, "measured": kept}, indent=1) + "\n"
    )


if __name__ == "__main__":
    main()
