"""Measure how well the cost model ranks the candidates of the strategy hopper: predictions compared with committed measurements. No GPU
needed.

    python perf/rank_cost.py [perf/results/2026-11-22-h200-hopper/hopper.json] [-o FILE.json] [--gpu H200] [--order NN]

The file is written by tune_hopper.py: times of all candidates of each shape. Each candidate is lowered again and predicted. Prints
Spearman's rank correlation of predicted and measured times over all points; the same for operations per second (where large problems do not
come first by size alone); the geometric mean of predicted over measured with its spread; how many pairs of candidates of one shape that
differ by more than 2 % are in the right order (ties of the model count half); and how much slower than the best the candidate with the best
prediction is.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import pathlib
import sys

import numpy as np
from tabulate import tabulate

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import tune_hopper
from cost_model import spearman

from fireiron import predict

COMMITTED = pathlib.Path(__file__).parent / "results" / "2026-11-22-h200-hopper" / "hopper.json"
APART = 1.02
"""Times that differ by less are considered equal: repeated runs differ as much."""


def points(path, gpu="H200", order=None):
    """Return rows `{"shape", "order", "name", "us", "predicted", "bottleneck"}` of all measured candidates that are still in the script."""
    rows = []
    for entry in json.loads(pathlib.Path(path).read_text())["measured"]:
        shape = tuple(entry["shape"])
        if order not in (None, entry["order"]):
            continue
        for name, (strategy, values) in tune_hopper.candidates_of(shape, entry["order"]).items():
            if name not in entry["times"]:
                continue
            spec = tune_hopper.spec_of(shape, entry["order"])
            prediction = predict(tune_hopper.STRATEGIES[strategy].strategy.with_(**values)(spec).program("sm_90a"), gpu)
            measured = entry["times"][name][0]
            rows.append({
                "shape": shape, "order": entry["order"], "name": name, "us": measured, "predicted": prediction.us, "bottleneck": prediction.bottleneck,
            })  # fmt: skip
    return rows


def summary(rows):
    """Return the figures of the docstring."""
    measured, predicted = (np.array([row[name] for row in rows]) for name in ("us", "predicted"))
    work = np.array([2.0 * math.prod(row["shape"]) for row in rows])
    logs = np.log(predicted / measured)
    right = total = 0.0
    slower = []
    for _, group in itertools.groupby(rows, key=lambda row: (row["shape"], row["order"])):
        rows_of_shape = list(group)
        best = min(row["us"] for row in rows_of_shape)
        slower.append(min(rows_of_shape, key=lambda row: row["predicted"])["us"] / best)
        for first, other in itertools.combinations(rows_of_shape, 2):
            fast, slow = sorted((first, other), key=lambda row: row["us"])
            if slow["us"] > APART * fast["us"]:
                total += 1
                same = math.isclose(fast["predicted"], slow["predicted"], rel_tol=1e-6)
                right += 0.5 if same else float(fast["predicted"] < slow["predicted"])
    return {
        "points": len(rows),
        "rank correlation, times": spearman(measured, predicted),
        "rank correlation, operations per second": spearman(work / measured, work / predicted),
        "predicted / measured": float(np.exp(logs.mean())),
        "spread": float(np.exp(logs.std())),
        "least": float(np.exp(logs.min())),
        "most": float(np.exp(logs.max())),
        "pairs apart": total,
        "in the right order": right,
        "slower, mean": float(np.mean(slower)),
        "slower, worst": float(np.max(slower)),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", nargs="?", default=COMMITTED)
    parser.add_argument("-o", dest="output", metavar="FILE.json")
    parser.add_argument("--gpu", default="H200")
    parser.add_argument("--order", choices=["NN", "NT"])
    options = parser.parse_args()
    rows = points(options.file, options.gpu, options.order)
    table = [
        [
            "x".join(map(str, row["shape"])),
            row["order"],
            row["name"],
            row["us"],
            row["predicted"],
            row["predicted"] / row["us"],
            row["bottleneck"],
        ]
        for row in rows
    ]
    print(tabulate(table, ["M x N x K", "B", "values", "measured us", "predicted us", "ratio", "bottleneck"], floatfmt=".2f"))
    figures = summary(rows)
    print()
    print(tabulate(figures.items(), floatfmt=".3f"))
    if options.output:
        pathlib.Path(options.output).write_text(json.dumps({"gpu": options.gpu, **figures, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
