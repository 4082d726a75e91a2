"""Compare products with quantized weights with cuBLAS in float16, and with the quantized products of PyTorch.

    python perf/quantised.py FOLDER [--sizes w4a16:16x8192x8192,...] [--rounds 4] [--sweep] [--processes 14]

A is M x K, weights are K x N, by columns. `w4a16` has a scale for 128 weights, `w8a16` and `w8a8` one for a column, `w8a8` also one for a row
of A. `fp8` has a scale for 128 elements of a row of A, and for 128 x 128 weights. Rows of each contender are first compared with float64,
on outputs of NaN. CUDA graphs, bursts, operand sets that rotate through L2 (so weights are cold), all contenders of a size in one run.
`--sweep` measures many values of the tunables. Writes `quantised.json` and `quantised.txt`.

Rivals: `torch.matmul` on weights in the type of A (cuBLAS; bfloat16 for fp8), `torch._weight_int4pack_mm`, `torch._weight_int8pack_mm`,
`torch._int_mm` with compiled scales, `torch._scaled_mm` with these scales, if PyTorch has them.
"""

import argparse
import functools
import itertools
import json
import math
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from other_types import ROTATED
from tabulate import tabulate

from fireiron import FireironError
from fireiron.strategies import fp8_gemm, w4a16, w8a8, w8a16

SIZES = (
    "w4a16:1x8192x8192,w4a16:16x8192x8192,w4a16:64x8192x8192,w4a16:16x4096x4096,w8a16:1x8192x8192,w8a16:16x8192x8192,w8a16:64x8192x8192,"
    "w8a16:16x4096x4096,w8a8:16x8192x8192,w8a8:4096x4096x4096,w4a16:4096x8192x8192,w8a16:4096x8192x8192,fp8:16x7168x2048,fp8:64x7168x2048"
)
MODULES = {"w4a16": w4a16, "w8a16": w8a16, "w8a8": w8a8, "fp8": fp8_gemm}
FEW = 64


def product_of(**values):
    """Return all combinations of values."""
    return [dict(zip(values, numbers, strict=True)) for numbers in itertools.product(*values.values())]


def forms(kind, M, sweep):
    """Return the forms of strategies and their values that are measured; without values, those that the library states."""
    low = next((size for size in (8, 16, 32, 64) if size >= M), 64)
    if M > FEW:
        tiles = [(192, 128, 4), (128, 128, 6), (256, 128, 3), (256, 128, 4)] if sweep else []
        return [("strategy", None)] + [("strategy", {"bm": bm, "bn": bn, "stages": stages}) for bm, bn, stages in tiles]
    if kind == "fp8":
        parts = [("few_parts", one) for one in product_of(bm=[low], stages=[4, 6], num_splits=[2, 3, 4])] if sweep else []
        return [("few", None), ("few_parts", None), *parts]
    if not sweep:
        return [("few", None)]
    tiles = [(64, 1), (64, 2), (64, 4), (128, 2), (128, 4), *([(256, 4)] if M > 16 else [])]
    steps = [(128, 4), (256, 3), (256, 4)] if M > 16 else [(256, 3), (256, 4), (512, 2)]
    return [("few", None)] + [
        ("few", {"bm": low, "bn": bn, "bk": bk, "stages": stages, "num_splits": parts})
        for (bn, parts), (bk, stages) in itertools.product(tiles, steps)
    ]


def strategy_of(kind, form, values, size):
    """Return a bound strategy; without values, those that the library states for the problem."""
    module, spec = MODULES[kind], MODULES[kind].spec(*size)
    strategy = getattr(module, form)
    given = module.values(spec, "sm_90a") if values is None else values
    return strategy.with_(**{name: value for name, value in given.items() if name in strategy.tunables()})(spec)


def compiled(case):
    """Compile a variant into the cache. Return the error if it is illegal."""
    try:
        strategy_of(*case).compile("sm_90a").ready()
    except FireironError as error:
        return str(error).splitlines()[0]
    return None


def inputs(torch, kind, M, N, K):
    """Return the arrays of a kernel, weights in the type of a plain product, and a function that computes rows of it in float64."""
    device = "cuda"
    if kind == "fp8":
        a, b = (torch.randn(rows, K // 128, 128, device=device).to(torch.float8_e4m3fn) for rows in (M, N))
        of_a, of_b = torch.rand(M, K // 128, device=device) + 0.5, torch.rand(-(-N // 128), K // 128, device=device) + 0.5
        wide = lambda: (b.double() * of_b.double().repeat_interleave(128, 0)[:N, :, None]).flatten(1)
        return (a, of_a, b, of_b), b.flatten(1).bfloat16(), lambda rows: (a[:rows].double() * of_a[:rows, :, None]).flatten(1) @ wide().t()
    a = torch.randn(M, K, device=device).half()
    if kind == "w8a8":
        a, b = (torch.randint(-127, 128, (rows, K), device=device, dtype=torch.int8) for rows in (M, N))
        of_a, of_b = (torch.rand(rows, device=device) * 1e-3 for rows in (M, N))
        return (a, of_a, b, of_b), b.half(), lambda rows: (a[:rows].double() @ b.double().t()) * of_a[:rows, None].double() * of_b.double()
    if kind == "w8a16":
        w, scale = torch.randint(-127, 128, (N, K), device=device, dtype=torch.int8), (torch.rand(N, device=device) * 1e-2).half()
        return (a, w, scale), w.half() * scale[:, None], lambda rows: (a[:rows].double() @ w.double().t()) * scale.double()
    u, scale = torch.randint(0, 16, (N, K), device=device), (torch.rand(K // 128, N, device=device) * 1e-1).half()
    w = (u - 8).half() * scale.repeat_interleave(128, 0).t()
    return (a, w4a16.pack(u), scale), w, lambda rows: a[:rows].double() @ w.double().t()


def check(torch, name, c, reference):
    """Compare the first rows with float64."""
    want = reference(min(256, len(c)))
    error = float((c[: len(want)].double() - want).norm() / want.norm())
    if not error < 4e-3:
        raise ValueError(f"{name} is wrong: {error}")


def rivals(torch, kind, sets, outs, size):
    """Return the calls of rivals by name, each with its result."""
    M, _, K = size
    calls = {}
    halves = [(one[0][0].flatten(1).to(one[1].dtype) if kind in ("fp8", "w8a8") else one[0][0], one[1].t()) for one in sets]
    calls["cuBLAS"] = [functools.partial(torch.matmul, a, b, out=out) for (a, b), out in zip(halves, outs, strict=True)]
    if kind == "w4a16" and M <= FEW and hasattr(torch, "_weight_int4pack_mm"):
        packed = []
        for (a, _, scale), w in ((one[0], one[1]) for one in sets):
            u = (w.float() / scale.repeat_interleave(128, 0).t().float()).round().int() + 8
            words = torch._convert_weight_to_int4pack((u[:, ::2] << 4 | u[:, 1::2]).to(torch.uint8), 8)
            zeros = torch.stack([scale, torch.zeros_like(scale)], -1).bfloat16().contiguous()
            packed.append((a.bfloat16(), words, 128, zeros))
        calls["torch int4pack"] = [functools.partial(torch._weight_int4pack_mm, *one) for one in packed]
    if kind == "w8a16" and M <= FEW and hasattr(torch, "_weight_int8pack_mm"):
        calls["torch int8pack"] = [functools.partial(torch._weight_int8pack_mm, a.bfloat16(), w, s.bfloat16()) for (a, w, s), *_ in sets]
    if kind == "w8a8":
        scaled = torch.compile(lambda x, of_a, of_b: (x * (of_a[:, None] * of_b)).half())
        rows = max(M, 32)  # _int_mm requires more than 16 rows
        wide = [(torch.cat([a, a.new_zeros(rows - M, K)]), of_a, b.t(), of_b) for (a, of_a, b, of_b), *_ in sets]
        calls["torch _int_mm"] = [lambda a=a, s=s, b=b, t=t: scaled(torch._int_mm(a, b)[:M], s, t) for a, s, b, t in wide]
    if kind == "fp8":
        flat = [(a.flatten(1), b.flatten(1).t(), of_a.t().contiguous().t(), of_b.t()) for (a, of_a, b, of_b), *_ in sets]
        calls["torch scaled"] = [
            functools.partial(torch._scaled_mm, a, b, scale_a=s, scale_b=t, out_dtype=torch.bfloat16) for a, b, s, t in flat
        ]
    return calls


def measured(torch, kind, size, variants, rounds):
    """Return the times of all contenders in microseconds."""
    from fireiron.measure.timing import measure

    M, N, K = size
    bits = 4 if kind == "w4a16" else 8
    count = max(2, math.ceil(ROTATED / (M * K * 2 + N * K * bits // 8 + 2 * M * N)))
    sets = [inputs(torch, kind, *size) for _ in range(min(count, 10))]
    result = torch.bfloat16 if kind == "fp8" else torch.float16
    outs = [torch.empty(M, N, device="cuda", dtype=result) for _ in sets]
    calls = {}
    for form, values in variants:
        label = " ".join([form, *(f"{name}={value}" for name, value in (values or {}).items())]) + (" (default)" if values is None else "")
        try:
            kernel = strategy_of(kind, form, values, size).compile("sm_90a")
            outs[0].fill_(math.nan)
            kernel(*sets[0][0], out=outs[0])
            check(torch, label, outs[0], sets[0][2])
        except (FireironError, ValueError) as error:
            print(label, str(error).splitlines()[0][:160])
            continue
        calls[label] = [kernel.prepare(*one[0], out=out) for one, out in zip(sets, outs, strict=True)]
    try:
        others = rivals(torch, kind, sets, outs, size)
    except (RuntimeError, ValueError, AttributeError) as error:
        print("rivals:", str(error)[:200])
        others = {}
    for name, runs in others.items():
        try:
            got = runs[0]()
            if not (name == "cuBLAS" and kind in ("w8a8", "fp8")):  # without the scales
                error = float((got[:64].double() - sets[0][2](min(64, M))).norm() / sets[0][2](min(64, M)).norm())
                if not error < 2e-2:
                    raise ValueError(f"wrong: {error}")
        except (RuntimeError, ValueError, AttributeError) as error:
            print(name, str(error)[:160])
            continue
        calls[name] = runs
    times = measure(calls, rounds=rounds, pause=0.2 if M > 256 else 0.05)
    return {name: one.us for name, one in times.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--sizes", default=SIZES)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--sweep", action="store_true")
    parser.add_argument("--processes", type=int, default=14)
    parser.add_argument("--compile-only", action="store_true")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    problems = [(one.split(":")[0], tuple(map(int, one.split(":")[1].split("x")))) for one in options.sizes.split(",")]
    cases = [(kind, form, values, size) for kind, size in problems for form, values in forms(kind, size[0], options.sweep)]
    with ProcessPoolExecutor(options.processes) as pool:
        for case, problem in zip(cases, pool.map(compiled, cases), strict=True):
            if problem:
                print(case, problem)
    if options.compile_only:
        return
    import torch

    from fireiron.measure.timing import environment

    torch.manual_seed(0)
    table, result = [], []
    for kind, size in problems:
        M, N, K = size
        times = measured(torch, kind, size, forms(kind, M, options.sweep), options.rounds)
        own = {name: us for name, us in times.items() if name.startswith(("strategy", "few"))}
        best = min(own, key=own.get)
        others = [f"{name} {us:.1f} ({us / own[best]:.2f})" for name, us in times.items() if name not in own]
        gigabytes = (N * K * (0.5 if kind == "w4a16" else 1) + 2 * M * (N + K)) / own[best] / 1e3
        table.append((kind, f"{M}x{N}x{K}", best, own[best], gigabytes, 2e-6 * M * N * K / own[best], "; ".join(others)))
        result.append({"kind": kind, "size": size, "us": times})
        print(*table[-1], flush=True)
        if options.sweep:
            print("   ", "; ".join(f"{us:.1f} {name}" for name, us in sorted(own.items(), key=lambda item: item[1])[:7]), flush=True)
        torch.cuda.empty_cache()
    head = ("kind", "M x N x K", "values", "us", "GB/s", "TFLOP/s", "rivals, us (ratio)")
    text = tabulate(table, head, floatfmt=("", "", "", ".1f", ".0f", ".0f", ""))
    (options.folder / "quantised.txt").write_text(text + "\n")
    (options.folder / "quantised.json").write_text(json.dumps({"environment": environment(), "measured": result}, indent=1) + "\n")


if __name__ == "__main__":
    main()
