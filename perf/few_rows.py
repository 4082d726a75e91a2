"""Compare matmuls of few rows with an epilogue with cuBLAS and a separate epilogue, compiled by `torch.compile`.

    python perf/few_rows.py FOLDER [--rows 16,32,64,128] [--rounds 2] [--seconds 40]

Row-major float16, `silu(acc + bias[n])`. Contenders: `fireiron.matmul` with the epilogue; a split-K kernel, whether chosen or not; the
kernel without split-K that `fireiron.matmul` would choose; `torch.compile` of the product and the epilogue (dynamic sizes);
`torch.matmul` (cuBLAS) without epilogue. Each result is first compared with float64. Bursts, buffers rotated through L2, CUDA graphs, all
contenders of a size in one run. Writes `few_rows.json` and `few_rows.txt` into the folder.
"""

import argparse
import concurrent.futures
import functools
import json
import math
import time
from pathlib import Path

import numpy as np
from tabulate import tabulate

import fireiron
from fireiron import matmul_epilogue
from fireiron.errors import FireironError
from fireiron.gpu.kernel import CompiledKernel
from fireiron.matmul import request
from fireiron.matmul_choice import choice_in_parts, chosen, in_parts_of_k, number_of_parts
from fireiron.matmul_problem import key_and_views
from fireiron.specs.epilogue import with_epilogue
from fireiron.values.machine import as_architecture

SIZES = ((4096, 4096), (7168, 2048), (2048, 7168), (8192, 8192))
"""N and K."""

TEXT = "silu(acc + bias[n])"
ARCHITECTURE = "sm_90a"
ROTATED = 240e6
MOST_SETS = 64


def kernels_of(shape):
    """Return by name the kernels without split-K, and with split-K: (the kernel, and the one that adds), compiled."""
    M, N, K = shape
    a, b, c = np.empty((M, K), "float16"), np.empty((K, N), "float16"), np.empty((M, N), "float16")
    key = key_and_views(request(a, b, c, arch=ARCHITECTURE))[0]
    problem = key.problems[0]
    spec = with_epilogue(problem.spec, TEXT, {}, {})
    kernels = {}
    choices = [choice_in_parts(key, *one) for one in in_parts_of_k(key, math.inf, problem)[:1]]
    for choice in (one for one in choices if one is not None):
        parts = number_of_parts(choice, problem)
        adding = matmul_epilogue._finishing(spec, parts, TEXT, as_architecture(ARCHITECTURE))
        kernels[f"{parts} parts"] = (CompiledKernel(choice.program), CompiledKernel(adding))
    whole, _ = chosen(key)
    kernels["whole"] = (whole.program.strategy.on_product(spec).compile(ARCHITECTURE),)
    for pair in kernels.values():
        for kernel in pair:
            _ = kernel.compiled
    return kernels


def compiled(shape):
    """Compile in a separate process, and warm the cache on disk for the choice of `fireiron.matmul`."""
    M, N, K = shape
    try:
        given = np.empty((M, K), "float16"), np.empty((K, N), "float16"), np.empty((M, N), "float16")
        product = fireiron.matmul.answer(request(*given, arch=ARCHITECTURE, epilogue=TEXT, bias=np.empty(N, "float16"))).product
        for kernel in (product.kernel, product.sum_kernel):
            _ = None if kernel is None else kernel.compiled
        return kernels_of(shape)
    except FireironError as error:
        return str(error).splitlines()[0]


def launch_of(kernels, parts, operands):
    """Return a prepared launch."""
    a, b, bias, c = operands
    if parts == 1:
        return kernels[0].prepare(a, b, bias, out=c)
    M, K = a.shape
    left = a.view(M, parts, K // parts).transpose(0, 1)
    first = kernels[0].prepare(left, b.view(parts, K // parts, b.shape[1]))
    second = kernels[1].prepare(first.out, bias, out=c)
    return lambda: (first(), second())


def measured(torch, shape, kernels, fused, rounds):
    """Return microseconds by contender, and the reason of the choice."""
    from fireiron.measure.timing import measure

    M, N, K = shape
    count = min(MOST_SETS, max(2, math.ceil(ROTATED / (2 * (M * K + K * N + M * N)))))
    sets = [tuple(torch.randn(*size, device="cuda", dtype=torch.float16) for size in ((M, K), (K, N), (N,), (M, N))) for _ in range(count)]
    a, b, bias, c = sets[0]
    right = torch.nn.functional.silu(a.double() @ b.double() + bias.double())
    makers = {"matmul": lambda a, b, bias, c: functools.partial(fireiron.matmul, a, b, out=c, epilogue=TEXT, bias=bias)}
    for name, pair in kernels.items():
        parts = int(name.split()[0]) if name.endswith("parts") else 1
        makers[name] = functools.partial(lambda pair, parts, *operands: launch_of(pair, parts, operands), pair, parts)
    calls = {}
    for name, make in makers.items():
        launches = [make(*one) for one in sets]
        c.fill_(math.nan)
        launches[0]()
        torch.cuda.synchronize()
        error = float((c.double() - right).norm() / right.norm())
        if not error < 1e-3:
            print(f"WRONG: {shape} {name}: {error}", flush=True)
            continue
        calls[name] = launches
    if fused is not None:
        error = float((fused(a, b, bias).double() - right).norm() / right.norm())
        assert error < 4e-3, error
        calls["torch.compile"] = [functools.partial(fused, *one[:3]) for one in sets]
    calls["cuBLAS alone"] = [functools.partial(torch.matmul, a, b, out=c) for a, b, _, c in sets]
    times = {name: one.us for name, one in measure(calls, rounds=rounds, pause=0.03).items()}
    return times, fireiron.matmul.choice(a, b, c, epilogue=TEXT, bias=bias).why


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rows", default="16,32,64,128")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=40)
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument("--compile-only", action="store_true")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    start, rows, entries = time.monotonic(), [], []
    shapes = [(M, N, K) for N, K in SIZES for M in map(int, options.rows.split(","))]
    with concurrent.futures.ProcessPoolExecutor(options.processes) as workers:
        jobs = {shape: workers.submit(compiled, shape) for shape in shapes}
        if options.compile_only:
            print({shape: job.result() if isinstance(job.result(), str) else list(job.result()) for shape, job in jobs.items()})
            return
        import torch

        from fireiron.measure.timing import environment

        torch.zeros(1, device="cuda")
        where, fused = environment(), None
        try:
            fused = torch.compile(lambda a, b, bias: torch.nn.functional.silu(a @ b + bias), dynamic=True)
            for M, N, K in shapes[:2]:
                fused(*(torch.randn(*size, device="cuda", dtype=torch.float16) for size in ((M, K), (K, N), (N,))))
        except Exception as error:  # Inductor raises many kinds
            print(f"torch.compile: {type(error).__name__} {str(error)[:200]}", flush=True)
            fused = None
        print(f"torch.compile after {time.monotonic() - start:.0f} s", flush=True)
        for shape, job in jobs.items():
            if time.monotonic() - start > options.seconds:
                print(f"the time is over before {shape}", flush=True)
                break
            kernels = job.result()
            if isinstance(kernels, str):
                print(f"left out: {shape} {kernels}", flush=True)
                kernels = {}
            times, why = measured(torch, shape, kernels, fused, options.rounds)
            entries.append({"shape": shape, "why": why, "times": times})
            own = times["matmul"]
            split = {name: round(us, 2) for name, us in times.items() if name.endswith("parts")}
            rows.append(["x".join(map(str, shape)), own, times.get("whole"), split, times.get("torch.compile"), times["cuBLAS alone"],
                         times.get("torch.compile", math.nan) / own, times["cuBLAS alone"] / own, "parts" in why[:12]])  # fmt: skip
            (options.folder / "few_rows.json").write_text(json.dumps({"environment": where, "measured": entries}, indent=1) + "\n")
            torch.cuda.empty_cache()
    heads = ("M x N x K", "matmul us", "whole", "split", "torch.compile", "cuBLAS alone", "compile/ours", "cuBLAS/ours", "splits")
    text = tabulate(rows, heads, floatfmt=".2f") + "\n"
    (options.folder / "few_rows.txt").write_text(text)
    print(text, f"{time.monotonic() - start:.0f} s")


if __name__ == "__main__":
    main()
