"""Make tables and plots of the experiments from the file of `pytest perf/ --benchmark-json FILE`. No GPU is needed.

    python perf/report.py RESULTS.json ... [--output FOLDER]

Prints a table for each experiment with the mean and the minimum ratio to its first rival; writes `report.md` and a bar chart for each
experiment (`e7.svg`, with matplotlib) into the folder of the results.
"""

import argparse
import json
import re
import statistics
from collections import defaultdict
from pathlib import Path

from tabulate import tabulate

HEADS = ("benchmark", "problem", "tunables", "us", "TFLOP/s", "versus", "its us", "ratio", "registers", "spills", "shared")


def experiment_of(benchmark):
    """Return the number of the experiment, from the name of its file."""
    match = re.search(r"test_(e\d+|[a-z0-9]+)[_.]", benchmark["fullname"])
    return match[1] if match else "other"


def grouped(benchmarks):
    """Benchmarks by experiment, in order."""
    groups = defaultdict(list)
    for benchmark in benchmarks:
        groups[experiment_of(benchmark)].append(benchmark)
    return dict(sorted(groups.items()))


def shape_of(info):
    """M x N x K of a benchmark."""
    return "x".join(re.match(r"\w+\(([^)]*)\)", info["spec"])[1].split(","))


def lines_of(benchmark):
    """Yield a line for each rival; common information occurs once."""
    info = benchmark["extra_info"]
    values = " ".join(f"{name}={value}" for name, value in info["values"].items())
    ours = [label_of(benchmark), shape_of(info), values, info["us"], info["tflops"]]
    resources = [info["registers"], info["spills"], info["shared_bytes"]]
    for number, (name, rival) in enumerate(info["against"].items()):
        yield [*(ours if number == 0 else [""] * 5), name, rival["us"], rival["ratio"], *(resources if number == 0 else [""] * 3)]


def label_of(benchmark):
    """Return the part of a benchmark's name that distinguishes it within its experiment."""
    return benchmark["param"] or re.sub(r"test_[a-z0-9]+_?", "", benchmark["name"]) or benchmark["name"].removeprefix("test_")


def first_rival(benchmark):
    return next(iter(benchmark["extra_info"]["against"]), None)


def ratios_of(benchmarks, rival=None):
    """Return the ratios to the first rival; with `rival`, of those benchmarks whose first rival it is."""
    return [one["extra_info"]["ratio"] for one in benchmarks if first_rival(one) is not None and rival in (None, first_rival(one))]


def summary_of(benchmarks):
    """Return a line about the ratios to each first rival."""
    lines = []
    for rival in dict.fromkeys(map(first_rival, benchmarks)):
        ratios = ratios_of(benchmarks, rival)
        if rival is not None and len(ratios) > 1:
            wins = sum(ratio >= 1 for ratio in ratios)
            middle = f"mean {statistics.mean(ratios):.3f}, median {statistics.median(ratios):.3f}"
            lines.append(f"versus {rival}: {middle}, from {min(ratios):.3f} to {max(ratios):.3f}; at least 1 in {wins} of {len(ratios)}")
    return "\n".join(lines)


def title_of(name):
    """Return the first line of the experiment's file."""
    path = next(Path(__file__).parent.glob(f"test_{name}[_.]*py"), None)
    return path.read_text().partition("\n")[0].strip('"') if path else name


def report(saved):
    """Return the whole report as Markdown."""
    gpu, machine = saved.get("gpu_info", {}), saved.get("machine_info", {})
    facts = {**{key: value for key, value in gpu.items() if value is not None}, "host": machine.get("cpu", {}).get("brand_raw")}
    parts = ["# Experiments", ", ".join(f"{key} {value}" for key, value in facts.items() if value)]
    for name, benchmarks in grouped(saved["benchmarks"]).items():
        rows = [line for one in benchmarks for line in lines_of(one)]
        table = tabulate(rows, HEADS, tablefmt="github", floatfmt=".4g", disable_numparse=[0, 1, 2, 5])
        parts += [f"## {title_of(name)}", table, summary_of(benchmarks)]
    return "\n\n".join(part for part in parts if part) + "\n"


def plot(name, benchmarks, path):
    """Bars of the ratio to the first rival that most benchmarks have, as in the paper's figures."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    rival = statistics.mode(first_rival(one) for one in benchmarks)
    shown = [one for one in benchmarks if first_rival(one) == rival]
    labels = [label_of(one) for one in shown]
    figure, axes = pyplot.subplots(figsize=(max(4.0, 0.34 * len(shown) + 1.5), 3.6))
    axes.bar(range(len(shown)), [one["extra_info"]["ratio"] for one in shown], color="#0072b2")
    axes.axhline(1, color="#555555", linewidth=1)
    axes.set_xticks(range(len(shown)), labels, rotation=60, ha="right", fontsize=7)
    axes.set_ylabel(f"speed relative to {rival}")
    axes.set_title(title_of(name).partition(" (")[0][:90], fontsize=8)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("results", type=Path, nargs="+", help="one file, or those of parts of the sweeps, run on GPUs of one kind")
    parser.add_argument("--output", type=Path, help="folder for the report; default: the folder of the results")
    options = parser.parse_args()
    parts = [json.loads(path.read_text()) for path in options.results]
    saved = parts[0] | {"benchmarks": [one for part in parts for one in part["benchmarks"]]}
    folder = options.output or options.results[0].parent
    folder.mkdir(parents=True, exist_ok=True)
    text = report(saved)
    print(text, end="")
    (folder / "report.md").write_text(text)
    try:
        for name, benchmarks in grouped(saved["benchmarks"]).items():
            if ratios_of(benchmarks):
                plot(name, benchmarks, folder / f"{name}.svg")
    except ImportError:
        print("matplotlib is not installed, so there are no plots (pip install 'fireiron[plot]')")


if __name__ == "__main__":
    main()
