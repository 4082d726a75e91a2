"""Judge the cost model by measured candidates of derived strategies: the results of `perf/derived.py`.

    python perf/derive_gate.py RESULTS/derived.json ...

For each set of problems: the median of predicted / measured, the mean over problems of Spearman's rank correlation between predictions and
measurements, and by how much the best prediction is slower than the best measurement, in the mean and at worst.
"""

import json
import statistics
import sys
from pathlib import Path

from tabulate import tabulate

SETS = {
    "attention": ("hopper_attention", "hopper_attention:64", "hopper_attention:causal", "mlp"),
    "products (wgmma)": ("hopper:8192", "hopper:4096", "hopper:512", "hopper:ragged", "hopper:few", "hopper:16", "hopper_batched", "dual", "gated",
        "lstm", "gemm_row_sum", "w8a16", "w4a16", "w8a8", "experts", "grouped", "convolution"),
    "products (lanes)": ("sgemm", "gemm_tt", "gemm_nt:1000", "gemm_tt:int32", "gemm_tt:float64"),
    "rows": ("softmax", "softmax:1024", "softmax_online", "softmax_gradient", "layernorm", "layernorm_input_gradient", "rmsnorm", "rmsnorm_residual",
        "rmsnorm_input_gradient", "cross_entropy", "cross_entropy_gradient"),
    "elements and columns": ("transpose", "depthwise", "channels_last", "swiglu", "rope", "add_parts", "dropout", "filter_rows",
        "rmsnorm_weight_gradient", "layernorm_weight_gradient", "experts_rows:activated", "swiglu_gradient"),
}  # fmt: skip
"""Problems by set."""

LEAST = 4
"""Candidates of a problem for a rank correlation."""


def ranks(values):
    """Return the rank of each value; equal values share their mean rank."""
    order = sorted(values)
    return [order.index(value) + (order.count(value) - 1) / 2 for value in values]


def spearman(first, second):
    """Return the rank correlation of two lists; 0 if one is constant."""
    left, right = ranks(first), ranks(second)
    return statistics.correlation(left, right) if len(set(left)) > 1 and len(set(right)) > 1 else 0.0


def points(path):
    """Return the predicted and measured microseconds of the candidates by problem."""
    results = json.loads(Path(path).read_text())["results"]
    return {
        name: [(result["predicted"][label], us) for label, us in result["us"].items() if result["predicted"].get(label)]
        for name, result in results.items()
    }


def judged(by_problem):
    """Return the row of a set of problems."""
    every = [pair for pairs in by_problem.values() for pair in pairs]
    ratios = [predicted / us for predicted, us in every]
    orders = {name: spearman(*zip(*pairs, strict=True)) for name, pairs in by_problem.items() if len(pairs) >= LEAST}
    slower = {name: min(pairs)[1] / min(us for _, us in pairs) - 1 for name, pairs in by_problem.items() if pairs}
    worst = max(slower, key=slower.get)
    return [len(by_problem), len(every), statistics.median(ratios), statistics.fmean(orders.values()) if orders else None,
        statistics.fmean(slower.values()), f"{slower[worst]:.1%} {worst}"]  # fmt: skip


def main():
    measured = {}
    for path in sys.argv[1:]:
        for name, pairs in points(path).items():
            measured.setdefault(name, []).extend(pairs)
    rows = [[name, *judged(own)] for name, names in SETS.items() if (own := {one: measured[one] for one in names if measured.get(one)})]
    heads = ["set", "problems", "points", "predicted / measured", "Spearman", "best prediction slower", "at worst"]
    print(tabulate(rows, headers=heads, floatfmt=(".0f", ".0f", ".0f", ".2f", ".2f", ".1%", "")))
    rows = [[name, len(pairs), statistics.median(p / us for p, us in pairs), spearman(*zip(*pairs, strict=True))]
        for name, pairs in measured.items() if len(pairs) >= LEAST]  # fmt: skip
    print(tabulate(sorted(rows, key=lambda row: row[3]), headers=["problem", "points", "predicted / measured", "Spearman"], floatfmt=".2f"))


if __name__ == "__main__":
    main()
