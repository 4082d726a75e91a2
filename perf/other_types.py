"""Compare the strategy hopper on bfloat16, tf32 and 8-bit floats with PyTorch (cuBLAS), in one run; and float16 with a busy GPU.

    python perf/other_types.py FOLDER [--rounds 7]

bfloat16 with row-major (NN) and column-major B (NT); tf32 and float8 with column-major B, as their instructions read it: float32 arrays
compared with torch.matmul with allow_tf32, e4m3 with bfloat16 results with torch._scaled_mm with scales of 1. Each kernel is first compared
with float32 (its relative Frobenius error is printed); all are measured in bursts, or busy if the row states so, on operand sets that
rotate through L2. Writes `other_types.json` and `other_types.txt` into the folder.
"""

import argparse
import functools
import json
import math
from pathlib import Path

from tabulate import tabulate
from tune_hopper import square, values, wide

from fireiron import ColMajor, RowMajor, bfloat16, float8_e4m3, float16, float32, tf32
from fireiron.errors import FireironError
from fireiron.strategies import hopper

ROTATED = 240e6
"""Bytes of all sets together."""

FLOAT16 = (wide(group_m=4), wide(group_m=8), square(group_m=4), square(group_m=1, raster=2), values(256, 128, 128, 128, 4, group_m=4))
SMALL_FLOAT16 = (
    values(64, 128, 64, 64, 8, group_m=2, num_blocks=65536),
    values(192, 96, 64, 96, 5, group_m=4, num_blocks=65536),
    values(96, 128, 96, 64, 7, group_m=4),
)
EIGHTS = (wide(bk=128, group_m=4), wide(bk=128, group_m=8), square(bk=128, group_m=4), values(256, 128, 128, 128, 4, bk=128, group_m=4))
SINGLES = (
    wide(bk=32, epi_n=32, group_m=4), square(bk=32, epi_n=32, group_m=4), values(128, 128, 64, 128, 3, bk=64, epi_n=32, group_m=4),
    values(128, 192, 64, 192, 5, bk=32, epi_n=32, group_m=4), values(64, 128, 64, 128, 7, bk=32, epi_n=32, group_m=4),
)  # fmt: skip

ROWS = (
    *(("bfloat16", size, order, "burst") for size in (1024, 2048, 4096, 8192) for order in ("NN", "NT")),
    *(("tf32", size, "NT", "burst") for size in (1024, 2048, 4096)),
    *(("float8", size, "NT", "burst") for size in (4096, 8192)),
    *(("float16", size, "NN", "busy") for size in (2048, 4096, 8192)),
)
"""Element type, size, storage of B, clock state."""

KINDS = {
    "float16": (float16, float16, "float16"), "bfloat16": (bfloat16, bfloat16, "bfloat16"), "tf32": (tf32, float32, "float32"),
    "float8": (float8_e4m3, bfloat16, "float8_e4m3fn"),
}  # fmt: skip


def candidates(kind, size):
    """Return values of the tunables."""
    if kind in ("float16", "bfloat16"):
        return FLOAT16 if size > 1024 else SMALL_FLOAT16
    return EIGHTS if kind == "float8" else SINGLES


def sets_of(torch, kind, size, order):
    """Operands, as many sets as fill the L2 cache several times over."""
    _, result, name = KINDS[kind]
    each = size * size * (3 * 4 if kind == "tf32" else 6 if kind != "float8" else 4)
    sets = []
    for _ in range(max(2, math.ceil(ROTATED / each))):
        a, b = (torch.randn(size, size, device="cuda").to(getattr(torch, name)) for _ in range(2))
        sets.append((a, b.t() if order == "NT" else b, torch.empty(size, size, device="cuda", dtype=getattr(torch, str(result)))))
    return sets


def rival(torch, kind, operands):
    """Return PyTorch's GEMM of an operand set."""
    a, b, c = operands
    if kind != "float8":
        return functools.partial(torch.matmul, a, b, out=c)
    scale = torch.ones((), device="cuda")
    return functools.partial(torch._scaled_mm, a, b, scale_a=scale, scale_b=scale, out_dtype=c.dtype, use_fast_accum=True, out=c)


def error_of(torch, call, operands):
    """Return the relative error of a result, in the Frobenius norm, of the first rows."""
    a, b, c = operands
    c.fill_(float("nan"))
    call()
    torch.cuda.synchronize()
    want = a[:256].float().double() @ b.float().double()
    return float((c[:256].double() - want).norm() / want.norm()) + (0.0 if bool(torch.isfinite(c).all()) else math.inf)


def measured(torch, kind, size, order, regime, rounds):
    """Return times by name, and the errors of ours."""
    from fireiron.measure.timing import measure

    dtype, result, _ = KINDS[kind]
    spec = hopper.spec(size, size, size, dtype=dtype, c_dtype=result, B=RowMajor if order == "NN" else ColMajor)
    sets = sets_of(torch, kind, size, order)
    calls, errors = {"torch": [rival(torch, kind, one) for one in sets]}, {}
    for chosen in candidates(kind, size):
        name = f"{chosen['bm']}x{chosen['bn']}x{chosen['bk']}, {'Hilbert' if chosen['raster'] == 2 else chosen['group_m']}"
        try:
            kernel = hopper.strategy.with_(**chosen)(spec).compile()
            launches = [kernel.prepare(a, b, out=c) for a, b, c in sets]
        except FireironError as error:
            print(f"left out: {kind} {size} {order} {name}: {str(error).splitlines()[0]}", flush=True)
            continue
        errors[name] = error_of(torch, launches[0], sets[0])
        if errors[name] < 0.02:
            calls[name] = launches
        else:
            print(f"WRONG: {kind} {size} {order} {name}: relative error {errors[name]}", flush=True)
    return measure(calls, rounds=rounds, regime=regime), errors


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    import torch

    from fireiron.measure.timing import environment

    torch.backends.cuda.matmul.allow_tf32 = True
    rows, kept = [], []
    for kind, size, order, regime in ROWS:
        times, errors = measured(torch, kind, size, order, regime, options.rounds)
        us = {name: one.us for name, one in times.items()}
        best = min((name for name in us if name != "torch"), key=us.get)
        flops = 2.0 * size**3 / 1e6
        rows.append(
            [
                kind,
                size,
                order,
                regime,
                us["torch"],
                flops / us["torch"],
                us[best],
                flops / us[best],
                us["torch"] / us[best],
                errors[best],
                best,
            ]
        )
        print(rows[-1], flush=True)
        kept.append({"type": kind, "size": size, "order": order, "regime": regime, "errors": errors,
                     "times": {name: [one.us, *one.quartiles] for name, one in times.items()}})  # fmt: skip
        torch.cuda.empty_cache()
    heads = ("type", "M = N = K", "B", "regime", "torch us", "TFLOP/s", "hopper us", "TFLOP/s", "ratio", "error", "tile, group_m")
    text = tabulate(rows, heads, floatfmt=(".0f", ".0f", "", "", ".2f", ".0f", ".2f", ".0f", ".3f", ".1e", "")) + "\n"
    print(text)
    (options.folder / "other_types.txt").write_text(text)
    (options.folder / "other_types.json").write_text(
        json.dumps({"environment": environment(), "rounds": options.rounds, "measured": kept}, indent=1) + "\n"
    )


if __name__ == "__main__":
    main()
