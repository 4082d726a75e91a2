"""Measure how well the cost model ranks: predictions compared with the measured times of a sweep. No GPU needed.

    python perf/cost_model.py SWEEP.json [--plot FILE.svg] [-o FILE.json] [--gpu H200] [--jobs 2] [--calibrate] [--recorded]

SWEEP.json is a list of rows {"strategy", "values", "M", "N", "K", "us"} (or an object with such "rows"); rows of contenders outside the
library are left out. Each row is lowered again: two to three minutes per thousand rows.

Prints for each strategy and shape, over the choices of tunables: Spearman's rank correlation; the regret, i.e. how much slower than the
best measured choice the result of a tuner is that measures only the best predicted ones (one, and 10, 20, 30 %); the geometric mean of
predicted over measured, and its spread. Shapes are numbered in the order of strategy, M, N, K: the even ones calibrate the constants of the
model, the odd ones are held out. `--calibrate` searches the constants again, on the even ones alone.
"""

from __future__ import annotations

import argparse
import collections
import concurrent.futures
import json
import pathlib

import attrs
import numpy as np
from tabulate import tabulate

from fireiron.cost import CONSTANTS
from fireiron.cost.gpus import as_gpu
from fireiron.cost.model import model
from fireiron.cost.work import Work
from fireiron.errors import FireironError
from fireiron.language.library import bind, find, names

SHARES = (0.1, 0.2, 0.3)
FEW = 5
"""Shapes with fewer choices are shown, and left out of means: a rank correlation of four choices means little."""

SEARCHED = (
    "launch_us",
    "l2_latency",
    "memory_latency",
    "shared_latency",
    "mma_latency",
    "barrier",
    "drain",
    "beside",
    "order",
    "growth",
    "alone_order",
)


# ------------------------------------------------------------------------------------------ data


def rows_of(path):
    """Return the rows of a sweep that measure a strategy of the library."""
    data = json.loads(pathlib.Path(path).read_text())
    rows = data["rows"] if isinstance(data, dict) else data
    known = names()
    return [row for row in rows if row["strategy"] in known and row.get("us")]


def shape(row):
    """Return the key that comparable choices share."""
    return (row["strategy"], row["M"], row["N"], row["K"])


def work_of(row, architecture):
    """Return the counted work of a row, or the reason why there is none."""
    try:
        sizes = {dim: row[dim] for dim in "MNK"}
        return Work(bind(find(row["strategy"]), sizes, values=row["values"]).program(architecture).lowered)
    except FireironError as error:
        return str(error)


def predicted(job):
    """Return microseconds of a row; a module-level function, so that processes can share the rows."""
    row, gpu = job
    work = work_of(row, gpu.architecture)
    return work if isinstance(work, str) else model(work, gpu).us


def predictions(rows, gpu, jobs):
    """Return rows with their predictions; those that present strategies refuse are counted and left out."""
    if jobs > 1:
        with concurrent.futures.ProcessPoolExecutor(jobs) as executor:
            results = list(executor.map(predicted, [(row, gpu) for row in rows], chunksize=8))
    else:
        results = [predicted((row, gpu)) for row in rows]
    refused = [one for one in results if isinstance(one, str)]
    if refused:
        print(f"{len(refused)} rows are refused. The first error is: {refused[0].splitlines()[0]}")
    return [(row, us) for row, us in zip(rows, results, strict=True) if not isinstance(us, str)]


# ------------------------------------------------------------------------------------------ statistics


def ranks(values):
    """Return ranks from 0; equal values share the mean of theirs."""
    values = np.asarray(values, dtype=float)
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts) - 1
    return (last - (counts - 1) / 2)[inverse]


def spearman(left, right):
    """Return Spearman's rank correlation; NaN if one side is constant."""
    left, right = ranks(left), ranks(right)
    left, right = left - left.mean(), right - right.mean()
    norm = np.sqrt((left**2).sum() * (right**2).sum())
    return float((left * right).sum() / norm) if norm else float("nan")


def regret(measured, guessed, count):
    """Return the best measured time among the `count` best predicted, divided by the best of all."""
    order = np.argsort(guessed, kind="stable")[:count]
    return float(np.min(np.asarray(measured)[order]) / np.min(measured))


def summary(pairs):
    """Return the statistics of `(measured, predicted)` pairs."""
    measured, guessed = (np.array(one) for one in zip(*pairs, strict=True))
    logs = np.log(guessed / measured)
    shares = {f"regret {share:.0%}": regret(measured, guessed, int(np.ceil(share * len(pairs)))) for share in SHARES}
    return {
        "choices": len(pairs),
        "rank correlation": spearman(measured, guessed),
        "regret 1": regret(measured, guessed, 1),
        **shares,
        "ratio": float(np.exp(logs.mean())),
        "spread": float(np.exp(logs.std())),
    }


def by_shape(predicted_rows):
    """Return the statistics of each shape, in order."""
    groups = collections.defaultdict(list)
    for row, us in predicted_rows:
        groups[shape(row)].append((row["us"], us))
    return {key: summary(groups[key]) for key in sorted(groups)}


def overall(table, predicted_rows, keys):
    """Return means over some shapes, and the rank correlation over all their points."""
    chosen = [table[key] for key in keys if table[key]["choices"] >= FEW]
    points = [(row["us"], us) for row, us in predicted_rows if shape(row) in keys]
    means = {name: float(np.mean([one[name] for one in chosen])) for name in chosen[0] if name.startswith(("rank", "regret"))}
    worst = {f"worst {name}": max(one[name] for one in chosen) for name in means if name.startswith("regret")}
    return {"shapes": len(chosen), "points": len(points), "over all points": spearman(*zip(*points, strict=True)), **means, **worst}


# ------------------------------------------------------------------------------------------ report


def printed(table, parts, totals):
    """Print the tables."""
    head = ["strategy", "shape", "half", *next(iter(table.values()))]
    lines = [
        [key[0], "x".join(map(str, key[1:])), "held out" if key in parts["held out"] else "calibrated", *row.values()]
        for key, row in table.items()
    ]
    print(tabulate(lines, headers=head, floatfmt=".3f"))
    print()
    print(tabulate([[name, *row.values()] for name, row in totals.items()], headers=["half", *next(iter(totals.values()))], floatfmt=".3f"))


def plotted(predicted_rows, path):
    """Predicted over measured, one color per strategy."""
    try:
        import matplotlib
    except ImportError:
        raise SystemExit("--plot needs matplotlib: pip install matplotlib") from None
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6, 6))
    for name in sorted({row["strategy"] for row, _ in predicted_rows}):
        points = [(row["us"], us) for row, us in predicted_rows if row["strategy"] == name]
        axes.plot(*zip(*points, strict=True), ".", label=name, alpha=0.6)
    ends = [min(min(row["us"], us) for row, us in predicted_rows), max(max(row["us"], us) for row, us in predicted_rows)]
    axes.plot(ends, ends, color="black", linewidth=0.5)
    axes.set(xscale="log", yscale="log", xlabel="measured (us)", ylabel="predicted (us)", title="Cost model")
    axes.legend()
    figure.savefig(path, bbox_inches="tight")


# ------------------------------------------------------------------------------------------ calibration


def loss(table):
    """Small if ranks and times are right: the mean over shapes of 1 - correlation and of the root mean square of log ratios."""
    chosen = [one for one in table.values() if one["choices"] >= FEW]
    return float(np.mean([1 - one["rank correlation"] + np.hypot(np.log(one["ratio"]), np.log(one["spread"])) for one in chosen]))


def calibrated(rows, gpu):
    """Return the constants by coordinate search, with a factor that shrinks at each step."""
    works = [(row, work) for row in rows if not isinstance(work := work_of(row, gpu.architecture), str)]

    def judged(constants):
        return loss(by_shape([(row, model(work, gpu, constants).us) for row, work in works]))

    constants, step = CONSTANTS, 1.3
    best = judged(constants)
    print(f"loss {best:.4f} with {constants}")
    while step > 1.05:
        before = best
        for name in SEARCHED:
            for factor in (step, 1 / step):
                tried = attrs.evolve(constants, **{name: getattr(constants, name) * factor})
                value = judged(tried)
                if value < best - 1e-4:
                    best, constants = value, tried
                    break
        print(f"loss {best:.4f}, step {step:.3f}", flush=True)
        step = step if best < before else step**0.5
    return constants


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("sweep")
    parser.add_argument("--gpu", default="H200")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--plot", metavar="FILE")
    parser.add_argument("-o", dest="output", metavar="FILE.json")
    parser.add_argument("--calibrate", action="store_true")
    parser.add_argument(
        "--recorded", action="store_true", help="take the predictions that rows hold (predicted_us), made before the measurement"
    )
    options = parser.parse_args()
    rows, gpu = rows_of(options.sweep), as_gpu(options.gpu)
    keys = sorted({shape(row) for row in rows})
    parts = {"calibrated": keys[0::2], "held out": keys[1::2]}
    if options.calibrate:
        print(calibrated([row for row in rows if shape(row) in parts["calibrated"]], gpu))
        return
    predicted_rows = [(row, row["predicted_us"]) for row in rows] if options.recorded else predictions(rows, gpu, options.jobs)
    table = by_shape(predicted_rows)
    totals = {name: overall(table, predicted_rows, [key for key in part if key in table]) for name, part in {**parts, "all": keys}.items()}
    printed(table, parts, totals)
    if options.plot:
        plotted(predicted_rows, options.plot)
    if options.output:
        value = {"gpu": gpu.name, "constants": attrs.asdict(CONSTANTS), "totals": totals}
        value["shapes"] = [dict(zip(("strategy", "M", "N", "K"), key, strict=True)) | row for key, row in table.items()]
        value["rows"] = [
            {**{name: row[name] for name in ("strategy", "values", "M", "N", "K", "us")}, "predicted": us} for row, us in predicted_rows
        ]
        pathlib.Path(options.output).write_text(json.dumps(value, indent=1) + "\n")


if __name__ == "__main__":
    main()
