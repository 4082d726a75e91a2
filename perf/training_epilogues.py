"""Compare GEMM with the epilogues of a training step with torch.compile: bias, GELU, dropout and residual; residual; bias and GELU.

    python perf/training_epilogues.py FOLDER [--rounds 5] [--processes 16] [--only dropout]

bfloat16 and float16 with float32 sums. `choice` is the kernel of `fireiron.matmul`; the other rows are tiles of `strategies/hopper.py`.
Each result is first compared with float64 on outputs initialized to NaN (relative Frobenius error of the first rows); the random numbers
of dropout are those of `fireiron.specs.philox`. PyTorch's dropout has other random numbers. `cuBLAS` is the product alone. Operands rotate
through more than the L2 cache. Writes `training_epilogues.json` and `training_epilogues.txt`.
"""

import argparse
import concurrent.futures
import functools
import json
import math
from pathlib import Path

from epilogue import sets_of as plain_sets_of
from gpu_turns import alone
from tabulate import tabulate
from tune_hopper import square, values, wide

import fireiron
from fireiron import RowMajor
from fireiron.specs.epilogue import with_epilogue
from fireiron.specs.philox import uniform
from fireiron.strategies import hopper

SIZES = ((8192, 4096, 4096), (4096, 16384, 4096))

PAUSE = 0.05
"""Seconds before each burst."""

KEEP, SEED = 0.9, 1234

RANDOM = "uniform(int32(seed), m // 16 * 8 + m % 8, n // 2, 0, 0, n % 2 + 2 * (m // 8 % 2))"
"""A thread has rows m and m + 8 and two adjacent columns, so one call of Philox is enough for four elements."""

BY_COLUMNS = "uniform(int32(seed), m, n // 4, 0, 0, n % 4)"
"""The numbers of `fireiron.function("dropout")`: a thread has two of four adjacent columns."""

DROPPED = "where({} < keep, gelu(acc + bias[n]) * scale, 0) + R[m,n]"

TEXTS = {
    "dropout": DROPPED.format(RANDOM),
    "dropout by columns": DROPPED.format(BY_COLUMNS),
    "residual": "acc + R[m,n]",
    "gelu": "gelu(acc + bias[n])",
}

CANDIDATES = {
    "choice": None,
    "128x256": wide(group_m=8),
    "128x256, 3 stages, whole": wide(3, group_m=8, epi_n=256),
    "128x256, 128 producer threads": wide(group_m=8, producer_threads=128),
    "128x192": values(128, 192, 64, 192, 4, group_m=8),
    "192x128": values(192, 128, 64, 128, 4, group_m=8),
    "192x192": square(group_m=8),
    "128x128": values(128, 128, 64, 128, 6, group_m=8),
}
"""Tunables of each tile; None for the choice of the function."""


def problem(size, text, dtype):
    """Return the specification of a product with an epilogue."""
    plain = hopper.spec(*size, dtype=dtype, c_dtype=dtype)
    kinds, orders = {}, {}
    for name in ("R", "bias"):
        if name in text:
            kinds[name], orders[name] = dtype, RowMajor
    return with_epilogue(plain, text, kinds, orders)


def compiled(task):
    """Compile a candidate in a separate process; return the program, or the reason."""
    size, title, dtype, name = task
    try:
        kernel = (
            hopper.strategy.with_(**CANDIDATES[name])
            .fuse_epilogue(TEXTS[title])(problem(size, TEXTS[title], getattr(fireiron, dtype)))
            .compile("sm_90a")
        )
    except fireiron.FireironError as error:
        return str(error).splitlines()[0]
    return kernel.program, kernel.resources.registers, kernel.resources.spill_stores


def words_of(text, bias, r):
    """Return the further operands of an epilogue."""
    words = {"bias": bias, "R": r, "seed": SEED, "keep": KEEP, "scale": 1 / KEEP}
    return {name: value for name, value in words.items() if name in text.replace("relu", "")}


def expected(torch, text, a, b, bias, r):
    """Return the first rows of the result in float64."""
    rows = 256
    acc = a[:rows].double() @ b.double()
    if text == TEXTS["residual"]:
        return acc + r[:rows].double()
    y = torch.nn.functional.gelu(acc + bias.double())
    if text == TEXTS["gelu"]:
        return y
    m, n = torch.arange(rows)[:, None].numpy(), torch.arange(b.shape[1])[None].numpy()
    numbers = (
        uniform(SEED, m, n // 4, 0, 0, word=n % 4)
        if text == TEXTS["dropout by columns"]
        else uniform(SEED, m // 16 * 8 + m % 8, n // 2, 0, 0, word=n % 2 + 2 * (m // 8 % 2))
    )
    kept = torch.from_numpy(numbers < KEEP).to(y.device)
    return torch.where(kept, y / KEEP, 0) + r[:rows].double()


def peer(torch, title):
    """Return PyTorch's function of an epilogue."""
    functional = torch.nn.functional
    if title == "residual":
        return lambda a, b, bias, r: a @ b + r
    if title == "gelu":
        return lambda a, b, bias, r: functional.gelu(a @ b + bias)
    return lambda a, b, bias, r: functional.dropout(functional.gelu(a @ b + bias), 1 - KEEP) + r


def measured(torch, size, title, dtype, programs, rounds):
    """Return microseconds by contender."""
    from fireiron.gpu.kernel import CompiledKernel
    from fireiron.measure.timing import measure

    kind, text = getattr(torch, dtype), TEXTS[title]
    sets = [tuple(one.to(kind) for one in each) for each in plain_sets_of(torch, *size)]
    sets = [(a, b, bias, torch.randn_like(c), c) for a, b, bias, c in sets]
    right = expected(torch, text, *sets[0][:4])
    calls = {"cuBLAS": [lambda a=a, b=b, c=c: torch.mm(a, b, out=c) for a, b, _, _, c in sets]}
    for name, program in programs.items():
        if program is None:
            launches = [
                functools.partial(fireiron.matmul, a, b, out=c, epilogue=text, **words_of(text, bias, r)) for a, b, bias, r, c in sets
            ]
            print(fireiron.matmul.choice(*sets[0][:2], epilogue=text, **words_of(text, *sets[0][2:4])).why[:200])
        else:
            kernel = CompiledKernel(program)
            names = kernel.program.spec.inputs
            launches = [
                kernel.prepare(*(({"A": a, "B": b} | words_of(text, bias, r))[one] for one in names), out=c) for a, b, bias, r, c in sets
            ]
        sets[0][4].fill_(math.nan)
        launches[0]()
        torch.cuda.synchronize()
        error = float((sets[0][4][:256].double() - right).norm() / right.norm())
        if not error < 1e-2:
            print(f"left out: {title} {size} {name} is wrong: {error}", flush=True)
            continue
        calls[name] = launches
    function = torch.compile(peer(torch, title))
    calls["torch.compile"] = [lambda one=one[:4]: function(*one) for one in sets]
    calls["torch.compile"][0]()
    with alone():
        return {name: timing.us for name, timing in measure(calls, rounds=rounds, pause=PAUSE).items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--processes", type=int, default=16)
    parser.add_argument("--only", default="", help="parts of the names of the epilogues")
    parser.add_argument("--dtypes", default="bfloat16,float16")
    parser.add_argument("--compile", action="store_true", help="only compile, without a GPU")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    cases = [(size, title, dtype) for title in TEXTS for size in SIZES for dtype in options.dtypes.split(",") if options.only in title]
    tasks = [(*case, name) for case in cases for name, chosen in CANDIDATES.items() if chosen]
    with concurrent.futures.ProcessPoolExecutor(options.processes) as pool:
        results = dict(zip(tasks, pool.map(compiled, tasks), strict=True))
    for (*case, name), result in results.items():
        print(*case, name, "left out: " + result if isinstance(result, str) else f"{result[1]} registers, {result[2]} bytes spilled")
    if options.compile:
        return
    import torch

    from fireiron.measure.timing import environment

    torch.manual_seed(0)
    rows, kept = [], []
    for case in cases:
        size, title, dtype = case
        programs = {"choice": None}
        for name in CANDIDATES:
            result = results.get((*case, name))
            if result is not None and not isinstance(result, str) and result[2] < 256:
                programs[name] = result[0]
        times = measured(torch, size, title, dtype, programs, options.rounds)
        kept.append({"size": size, "epilogue": title, "dtype": dtype, "us": times})
        best = min((name for name in times if name not in ("cuBLAS", "torch.compile")), key=times.__getitem__)
        base = times["torch.compile"]
        rows.append(
            ("x".join(map(str, size)), title, dtype, times["cuBLAS"], base, times["choice"], base / times["choice"], times[best],
             base / times[best], best)
        )  # fmt: skip
        print(rows[-1], {name: round(us, 1) for name, us in times.items()}, flush=True)
        torch.cuda.empty_cache()
    heads = ("M x N x K", "epilogue", "type", "cuBLAS us", "torch.compile us", "choice us", "speedup", "best us", "speedup", "best tile")
    text = tabulate(rows, heads, floatfmt=("", "", "", ".1f", ".1f", ".1f", ".2f", ".1f", ".2f", "")) + "\n"
    print(text)
    (options.folder / "training_epilogues.txt").write_text(text)
    (options.folder / "training_epilogues.json").write_text(json.dumps({"environment": environment(), "measured": kept}, indent=1) + "\n")


if __name__ == "__main__":
    main()
