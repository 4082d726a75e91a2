"""Tables and plots of the experiments, from what `pytest perf/ --benchmark-json FILE` saved. No GPU is needed.

    python perf/report.py RESULTS.json ... [--output FOLDER]

Prints a table for each experiment with the mean and the least ratio to its first rival; writes `report.md` and a bar chart for
each experiment (`e7.svg`, with matplotlib) into the folder of the results.
"""

import argparse
import json
import re
import statistics
from collections import defaultdict
from pathlib import Path

from tabulate import tabulate

HEADS = ("problem", "strategy's values", "us", "TFLOP/s", "beside", "its us", "ratio", "registers", "spills", "shared")


def experiment_of(benchmark):
    """The number of the experiment, from the name of its file."""
    found = re.search(r"test_(e\d+|[a-z0-9]+)[_.]", benchmark["fullname"])
    return found[1] if found else "other"


def grouped(benchmarks):
    """Benchmarks by experiment, in order."""
    groups = defaultdict(list)
    for one in benchmarks:
        groups[experiment_of(one)].append(one)
    return dict(sorted(groups.items()))


def shape_of(info):
    """M x N x K of a benchmark."""
    return "x".join(re.match(r"\w+\(([^)]*)\)", info["spec"])[1].split(","))


def lines_of(benchmark):
    """A line for each rival; the rest is said once."""
    info = benchmark["extra_info"]
    values = " ".join(f"{name}={value}" for name, value in info["values"].items())
    ours = [shape_of(info), values, info["us"], info["tflops"]]
    resources = [info["registers"], info["spills"], info["shared_bytes"]]
    for number, (name, rival) in enumerate(info["against"].items()):
        yield [*(ours if number == 0 else [""] * 4), name, rival["us"], rival["ratio"], *(resources if number == 0 else [""] * 3)]


def ratios_of(benchmarks):
    return [one["extra_info"]["ratio"] for one in benchmarks if one["extra_info"]["ratio"] is not None]


def summary_of(benchmarks):
    """One line about the ratios to the first rival."""
    ratios = ratios_of(benchmarks)
    if len(ratios) < 2:
        return ""
    wins = sum(ratio >= 1 for ratio in ratios)
    mean, middle = statistics.mean(ratios), statistics.median(ratios)
    return (
        f"ratio: mean {mean:.3f}, median {middle:.3f}, from {min(ratios):.3f} to {max(ratios):.3f}; at least 1 in {wins} of {len(ratios)}"
    )


def title_of(name):
    """The first line of the experiment's file."""
    path = next(Path(__file__).parent.glob(f"test_{name}[_.]*py"), None)
    return path.read_text().partition("\n")[0].strip('"') if path else name


def report(saved):
    """The whole report as Markdown."""
    gpu, machine = saved.get("gpu_info", {}), saved.get("machine_info", {})
    facts = {**{key: value for key, value in gpu.items() if value is not None}, "host": machine.get("cpu", {}).get("brand_raw")}
    parts = ["# Experiments", ", ".join(f"{key} {value}" for key, value in facts.items() if value)]
    for name, benchmarks in grouped(saved["benchmarks"]).items():
        rows = [line for one in benchmarks for line in lines_of(one)]
        table = tabulate(rows, HEADS, tablefmt="github", floatfmt=".4g", disable_numparse=[0, 1, 4])
        parts += [f"## {title_of(name)}", table, summary_of(benchmarks)]
    return "\n\n".join(part for part in parts if part) + "\n"


def plot(name, benchmarks, path):
    """Bars of the ratio to each benchmark's first rival, as in the paper's figures."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    shown = [one for one in benchmarks if one["extra_info"]["ratio"] is not None]
    labels = [shape_of(one["extra_info"]) if len(shown) > 4 else one["name"].removeprefix(f"test_{name}") for one in shown]
    figure, axes = pyplot.subplots(figsize=(max(4.0, 0.34 * len(shown) + 1.5), 3.6))
    axes.bar(range(len(shown)), [one["extra_info"]["ratio"] for one in shown], color="#0072b2")
    axes.axhline(1, color="#555555", linewidth=1)
    axes.set_xticks(range(len(shown)), labels, rotation=60, ha="right", fontsize=7)
    rivals = sorted({next(iter(one["extra_info"]["against"])) for one in shown})
    axes.set_ylabel("speed beside " + (rivals[0] if len(rivals) == 1 else "the rival"))
    axes.set_title(title_of(name).partition(" (")[0][:90], fontsize=8)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("results", type=Path, nargs="+", help="one file, or those of parts of the sweeps, run on GPUs of one kind")
    parser.add_argument("--output", type=Path, help="folder for the report; by default that of the results")
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
        print("no matplotlib here: no plots (pip install fireiron[plot])")


if __name__ == "__main__":
    main()
