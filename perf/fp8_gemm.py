"""Compare GEMM of 8-bit floats with scales of blocks with cuBLAS in bfloat16, and with PyTorch's scaled GEMM if it has these scales.

    python perf/fp8_gemm.py FOLDER [--sizes 4096x7168x2048,...] [--rounds 4] [--sweep]

A (M x K) has a scale per 128 elements of a row, B (K x N, by columns) one per 128 x 128. Rows are first compared with float64. CUDA graphs,
bursts, operand sets that rotate through L2, all contenders of a size in one run. `--sweep` measures all tiles. Writes `fp8_gemm.json` and
`fp8_gemm.txt`.
"""

import argparse
import functools
import json
import math
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from other_types import ROTATED
from tabulate import tabulate

from fireiron import FireironError, sym
from fireiron.strategies import fp8_gemm

SIZES = "4096x7168x2048,4096x2048x7168,4096x4096x16384,8192x7168x7168,16x7168x2048,32x7168x2048,64x7168x2048"
PAUSE = 0.2

TILES = ((128, 256, 4, 128), (128, 256, 4, 64), (128, 128, 6, 64))
LARGE = [{"bm": bm, "bn": bn, "stages": stages, "epi_n": epi_n, "group_m": group} for bm, bn, stages, epi_n in TILES for group in (8, 16)]
FEW = [{"bn": bn, "stages": stages} for bn, stages in ((64, 6), (64, 8), (32, 8), (32, 12), (16, 8), (16, 12), (16, 16))]


def compiled(case):
    """Return the program of a variant, compiled into the cache; None if it is illegal."""
    form, values, N, K = case
    try:
        getattr(fp8_gemm, form).with_(**values)(fp8_gemm.spec(sym("M"), N, K)).compile("sm_90a").ready()
    except FireironError as error:
        return str(error).splitlines()[0]
    return None


def arrays(torch, M, N, K):
    """Return A, SA, B and SB."""
    a, b = (torch.randn(rows, K // 128, 128, device="cuda").to(torch.float8_e4m3fn) for rows in (M, N))
    return a, torch.rand(M, K // 128, device="cuda") + 0.5, b, torch.rand(-(-N // 128), K // 128, device="cuda") + 0.5


def checked(torch, name, c, given):
    """Compare the first rows with float64."""
    a, sa, b, sb = given
    rows, N = min(256, len(a)), len(b)
    wide_b = (b.double() * sb.double().repeat_interleave(128, 0)[:N, :, None]).flatten(1)
    want = (a[:rows].double() * sa[:rows, :, None].double()).flatten(1) @ wide_b.t()
    error = float((c[:rows].double() - want).norm() / want.norm())
    if not error < 4e-3:
        raise SystemExit(f"{name} is wrong: {error}")


def scaled(torch, given):
    """Return PyTorch's scaled GEMM of the arrays; None if it does not support these scales."""
    a, sa, b, sb = given
    flat_a, flat_b = a.flatten(1), b.flatten(1)
    of_a, of_b = sa.t().contiguous().t(), sb.contiguous()

    def run():
        return torch._scaled_mm(flat_a, flat_b.t(), scale_a=of_a, scale_b=of_b.t(), out_dtype=torch.bfloat16)

    try:
        return run if checked(torch, "torch._scaled_mm", run(), given) is None else None
    except (RuntimeError, ValueError, SystemExit) as error:
        print("torch._scaled_mm:", str(error)[:160])
        return None


def measured(torch, size, forms, rounds):
    """Return the times of all contenders in microseconds."""
    from fireiron.measure.timing import measure

    M, N, K = size
    count = max(2, math.ceil(ROTATED / (M * K + N * K + 2 * M * N)))
    sets = [arrays(torch, M, N, K) for _ in range(count)]
    outs = [torch.empty(M, N, device="cuda", dtype=torch.bfloat16) for _ in sets]
    calls = {}
    for form, values in forms:
        try:
            kernel = getattr(fp8_gemm, form).with_(**values)(fp8_gemm.spec(sym("M"), N, K)).compile("sm_90a")
            outs[0].fill_(math.nan)
            kernel(*sets[0], out=outs[0])
        except FireironError:
            continue
        label = " ".join(f"{name}={value}" for name, value in values.items())
        checked(torch, label, outs[0], sets[0])
        calls[f"{form} {label}"] = [kernel.prepare(*one, out=out) for one, out in zip(sets, outs, strict=True)]
    halves = [(one[0].flatten(1).bfloat16(), one[2].flatten(1).bfloat16().t()) for one in sets]
    calls["cuBLAS bf16"] = [functools.partial(torch.matmul, a, b, out=out) for (a, b), out in zip(halves, outs, strict=True)]
    if all(runs := [scaled(torch, one) for one in sets[:1]]) and all(runs := [scaled(torch, one) for one in sets]):
        calls["torch scaled"] = runs
    return {name: one.us for name, one in measure(calls, rounds=rounds, pause=PAUSE if M > 256 else 0.05).items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--sizes", default=SIZES)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--sweep", action="store_true")
    parser.add_argument("--processes", type=int, default=14)
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    sizes = [tuple(map(int, one.split("x"))) for one in options.sizes.split(",")]

    def forms(M):
        if M <= 64:
            return [("few", one) for one in (FEW if options.sweep else FEW[:1])]
        return [("strategy", one) for one in (LARGE if options.sweep else LARGE[:1])]

    cases = [(form, values, N, K) for M, N, K in sizes for form, values in forms(M)]
    with ProcessPoolExecutor(options.processes) as pool:
        for case, problem in zip(cases, pool.map(compiled, cases), strict=True):
            if problem:
                print(case, problem)
    import torch

    from fireiron.measure.timing import environment

    torch.manual_seed(0)
    table, result = [], []
    for M, N, K in sizes:
        times = measured(torch, (M, N, K), forms(M), options.rounds)
        own = {name: us for name, us in times.items() if name.startswith(("strategy", "few"))}
        best = min(own, key=own.get)
        rate = 2e-6 * M * N * K / own[best]
        row = (f"{M}x{N}x{K}", best, own[best], rate, times["cuBLAS bf16"] / own[best], times.get("torch scaled", math.nan) / own[best])
        table.append(row)
        result.append({"size": (M, N, K), "us": times})
        print(row, flush=True)
        for name, us in sorted(own.items(), key=lambda item: item[1])[:6]:
            print(f"   {us:8.2f} {name}")
    text = tabulate(
        table, ("size", "ours", "us", "TFLOP/s", "bf16/ours", "torch scaled/ours"), floatfmt=("", "", ".1f", ".0f", ".2f", ".2f")
    )
    print(text)
    (options.folder / "fp8_gemm.txt").write_text(text + "\n")
    (options.folder / "fp8_gemm.json").write_text(json.dumps({"environment": environment(), "measured": result}, indent=1) + "\n")


if __name__ == "__main__":
    main()
