"""Compare GEMM with bias, with ReLU, with both (Graphene, Figure 10) with the same strategy's plain GEMM, cuBLASLt's epilogues and
PyTorch's two calls.

    python perf/epilogue.py FOLDER [--rounds 5]

Float16 with float32 sums, with the choice of `fireiron.matmul` for each size. The same tile is also measured without its two optimizations:
with the bias prefetched but clamped in float32 (`clamped early`), and with the bias also read after the main loop (`late bias`). Every
result is first compared with float64, on outputs initialized to NaN (relative Frobenius error of the first rows). Bursts, on operand sets
that rotate through L2, all contenders in one run; the plain GEMM, bias + ReLU and its peers also busy. cuBLASLt uses the best of the first
eight algorithms of its heuristic; torch.compile is included. The goal is the time of the plain GEMM, within 2 %, and of cuBLASLt. Writes
`epilogue.json` and `epilogue.txt` into the folder; takes about a minute on an H200.
"""

import argparse
import functools
import json
import math
from pathlib import Path

from other_types import ROTATED
from tabulate import tabulate

SIZES = ((4096, 4096, 4096), (5376, 5376, 2048), (5376, 5376, 5376))
TEXT = "relu(acc + bias[n])"
"""The contenders of the goal."""

FINISHED = {"plain": "", "bias": "b", "ReLU": "r", "bias + ReLU": "br", "clamped early": "br", "late bias": "br", "torch.mm": "",
            "cuBLASLt bias": "b", "cuBLASLt ReLU": "r", "_addmm_activation": "br", "cuBLASLt, best of 8": "br", "addmm, relu_": "br"}  # fmt: skip
"""The epilogue of each contender: a bias, a ReLU."""

BUSY = ("plain", "bias + ReLU", "torch.mm", "_addmm_activation", "cuBLASLt, best of 8")
"""The contenders measured busy, too."""

EARLY = "relu(acc + bias[n]) * 1"
"""The same numbers by a formula that does not end with the clamping: it is not moved, and the compiler drops the factor."""


def row_name(size):
    """4096x4096x4096."""
    return "x".join(map(str, size))


def sets_of(torch, m, n, k):
    """Return random operands with results initialized to NaN, as many sets as exceed L2 together."""
    count = max(2, math.ceil(ROTATED / (2 * (m * k + k * n + m * n))))
    sets = []
    for _ in range(count):
        a, b, bias = (torch.randn(*shape, device="cuda", dtype=torch.float16) for shape in ((m, k), (k, n), (n,)))
        sets.append((a, b, bias, torch.full((m, n), math.nan, device="cuda", dtype=torch.float16)))
    return sets


def error_of(torch, call, operands, does):
    """Return the relative error of a result, in the Frobenius norm, of the first rows."""
    a, b, bias, c = operands
    c.fill_(math.nan)
    call()
    torch.cuda.synchronize()
    want = a[:256].double() @ b.double()
    want = want + bias.double() if "b" in does else want
    want = torch.relu(want) if "r" in does else want
    return float((c[:256].double() - want).norm() / want.norm())


def two_calls(torch, a, b, bias, c):
    """Launch the GEMM with its bias, then the activation in place."""
    torch.addmm(bias, a, b, out=c)
    c.relu_()


def best_of(most, sets):
    """Return the launches of bias and ReLU with the fastest of the first algorithms that cuBLASLt proposes, and its rank."""
    from cublas_lt import cublas_lt

    from fireiron.measure.timing import measure

    plans = {}
    for rank in range(most):
        try:
            plans[rank] = [cublas_lt().plan(a, b, c, bias, rank=rank) for a, b, bias, c in sets]
        except RuntimeError:
            break
    times = measure({str(rank): calls for rank, calls in plans.items()}, rounds=1, pause=0.1)
    rank = min(plans, key=lambda one: times[str(one)].us)
    return plans[rank], rank


def by_compile(torch, sets):
    """Return microseconds of torch.compile's kernels, whose results are in new arrays; None if they are wrong."""
    from fireiron.measure.timing import measure

    compiled = torch.compile(lambda a, b, bias: torch.relu(a @ b + bias))
    a, b, bias, _ = sets[0]
    want = torch.relu(a[:256].double() @ b.double() + bias.double())
    if not float((compiled(a, b, bias)[:256].double() - want).norm() / want.norm()) < 1e-3:
        return None
    return measure({"compile": [functools.partial(compiled, *one[:3]) for one in sets]}, rounds=3)["compile"].us


def measured(torch, size, rounds):
    """Return the row of the table, and times by name."""
    from cublas_lt import cublas_lt

    from fireiron import Epilog, PrefetchEpilogue, Tile, matmul
    from fireiron.measure.timing import measure

    sets = sets_of(torch, *size)
    a, b, bias, c = sets[0]
    plain, fused = matmul.kernel(a, b, c), matmul.kernel(a, b, c, epilogue=TEXT, bias=bias)
    early = matmul.kernel(a, b, c, epilogue=EARLY, bias=bias)
    without_prefetch = early.program.strategy.at(Epilog).refine(PrefetchEpilogue(enable=False)).compile("sm_90a")
    tiles = {kernel.program.strategy.at(Tile).step for kernel in (plain, fused, early, without_prefetch)}
    assert len(tiles) == 1, tiles
    added, cut = matmul.kernel(a, b, c, epilogue="acc + bias[n]", bias=bias), matmul.kernel(a, b, c, epilogue="relu(acc)")
    eighth, rank = best_of(8, sets)
    calls = {
        "plain": [plain.prepare(a, b, out=c) for a, b, _, c in sets],
        "bias": [added.prepare(a, b, bias, out=c) for a, b, bias, c in sets],
        "ReLU": [cut.prepare(a, b, out=c) for a, b, _, c in sets],
        "bias + ReLU": [fused.prepare(a, b, bias, out=c) for a, b, bias, c in sets],
        "clamped early": [early.prepare(a, b, bias, out=c) for a, b, bias, c in sets],
        "late bias": [without_prefetch.prepare(a, b, bias, out=c) for a, b, bias, c in sets],
        "torch.mm": [functools.partial(torch.mm, a, b, out=c) for a, b, _, c in sets],
        "cuBLASLt bias": [cublas_lt().plan(a, b, c, bias, relu=False) for a, b, bias, c in sets],
        "cuBLASLt ReLU": [cublas_lt().plan(a, b, c, relu=True) for a, b, _, c in sets],
        "_addmm_activation": [functools.partial(torch._addmm_activation, bias, a, b, out=c) for a, b, bias, c in sets],
        "cuBLASLt, best of 8": eighth,
        "addmm, relu_": [functools.partial(two_calls, torch, *one) for one in sets],
    }
    errors = {name: error_of(torch, found[0], sets[0], FINISHED[name]) for name, found in calls.items()}
    assert max(errors.values()) < 1e-3, errors
    times = {name: one.us for name, one in measure(calls, rounds=rounds).items()}
    busy = {name: one.us for name, one in measure({name: calls[name] for name in BUSY}, rounds=rounds, regime="busy").items()}
    measurement = {"plain": plain.resources.registers, "fused": fused.resources.registers, "spills": fused.resources.spill_stores}
    peers = (
        ("bias", "cuBLASLt bias"),
        ("ReLU", "cuBLASLt ReLU"),
        ("bias + ReLU", "_addmm_activation"),
        ("bias + ReLU", "cuBLASLt, best of 8"),
    )
    ratios = [times["plain"] / times["bias + ReLU"], *(times[peer] / times[name] for name, peer in peers)]
    ratios.append(busy["cuBLASLt, best of 8"] / busy["bias + ReLU"])
    measurement |= {"rank": rank, "torch.compile": by_compile(torch, sets)}
    row = [row_name(size), *times.values(), *ratios, measurement["fused"], measurement["spills"], measurement["torch.compile"]]
    return row, {"times": times, "busy": busy, "errors": errors, **measurement}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    import torch

    from fireiron.measure.timing import environment

    rows, kept = [], {}
    for size in SIZES:
        row, kept[row_name(size)] = measured(torch, size, options.rounds)
        rows.append(row)
        print(row, flush=True)
        torch.cuda.empty_cache()
    heads = (
        "size", *(f"{name} us" for name in FINISHED), "plain / ours", "cuBLASLt / bias", "cuBLASLt / ReLU", "cuBLASLt / both", "best of 8 / both",
        "busy", "registers", "spills", "torch.compile us",
    )  # fmt: skip
    table = tabulate(rows, heads, floatfmt=("", *[".2f"] * len(FINISHED), *[".3f"] * 6, "", "", ".1f")) + "\n"
    print(table)
    (options.folder / "epilogue.txt").write_text(table)
    (options.folder / "epilogue.json").write_text(json.dumps({"environment": environment(), "measured": kept}, indent=1) + "\n")


if __name__ == "__main__":
    main()
